"""Products of halves with rows that bulk copies cannot load: a prepass copies operands to padded rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.ops.layouts import layouts

import tilewright as tw
from tilewright.ops import matmul
from tilewright.ops import matmul as matmuls
from tilewright.ops.launching import Call, LaunchPlan
from tilewright.ops.planes import REAL, Planes, Writing, is_dense, padded_planes, splitting, splitting_of_two
from tilewright.ops.problem import Problem, problem_of
from tilewright.ops.wanted import Wanted
from tilewright.runtime.arrays import ArrayInfo
from tilewright.runtime.backends import backend_named
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.gpu_memory import DeviceArray
from tilewright.schedule.question import Splitting
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import CUDA

BULK = tw.Schedule(
    tw.atoms.wgmma("f16", 64), (64, 64, 64), stages=3, staging="tma", roles="cooperative", epilogue="staged"
)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> list[LaunchPlan]:
    """Copy operands with odd rows on every target, also with a schedule; return the list of plans."""
    plans: list[LaunchPlan] = []

    def all_odd(call: Call, problem: Problem, wanted: Wanted) -> tuple[Planes, ...]:
        seen = {name: problem.operands[name].of(call.infos[name]) for name in ("a", "b")}
        odd = [name for name, info in seen.items() if not is_dense(info, None)]
        return tuple(Planes.of(name, seen[name], REAL, padded=True) for name in odd)

    def listed(call: Call, *given: Any) -> LaunchPlan:
        plans.append(plan_with_prepass(call, *given))
        return plans[-1]

    plan_with_prepass = Call.plan_with_prepass
    monkeypatch.setattr(Call, "plan_with_prepass", listed)
    monkeypatch.setattr(matmul, "planes_first", all_odd)
    return plans


def laid(rng: np.random.Generator, shape: tuple[int, ...], order: str, gap: int, base: int) -> Any:
    """Return numbers along rows (n) or columns (t), with NaN in gaps between them and before the first."""
    *batch, rows, columns = shape
    inner = (rows, columns) if order == "n" else (columns, rows)
    size = int(np.prod(batch, dtype=int)) * inner[0] * (inner[1] + gap)
    whole = np.full(size + base, np.nan, np.float16)
    made = whole[base:].reshape(*batch, inner[0], inner[1] + gap)[..., : inner[1]]
    made[...] = rng.standard_normal(made.shape)
    return made if order == "n" else made.swapaxes(-1, -2)


def assert_right(a: Any, b: Any, made: Any) -> None:
    """Check every element within f32 sums and one rounding; a missing last step along K exceeds this."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    want = a @ b
    bound = (a.shape[-1] + 1) * 2.0**-23 * (np.abs(a) @ np.abs(b)) + 2.0**-11 * np.abs(want) + 2.0**-25
    off = np.abs(made.astype(np.float64) - want)
    assert (off <= bound).all(), f"{(off / bound).max():.3} of the bound"
    lost = a[..., -1:] @ b[..., -1:, :]
    assert (np.abs(lost) > 2 * bound).mean() > 0.25, "what is lost would go unnoticed"  # deep K: a third


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize(
    ("layout", "gaps", "bases", "names"),
    [
        ("nn", (0, 0), (0, 0), "ab"),
        ("nt", (0, 0), (0, 0), "ab"),
        ("tn", (0, 0), (0, 0), "ab"),
        ("tt", (3, 5), (1, 2), "ab"),
        ("nt", (1, 0), (0, 0), "b"),
        ("nt", (1, 1), (0, 1), "b"),
    ],
)
def test_odd_rows_are_copied_and_multiplied(
    target: str,
    layout: str,
    gaps: tuple[int, int],
    bases: tuple[int, int],
    names: str,
    always: list[LaunchPlan],
) -> None:
    """There are two tiles along M and N; the second tile and the last step along K are cut."""
    rng = np.random.default_rng(0)
    m, n, k = 75, 69, 71
    a = laid(rng, (m, k), layout[0], gaps[0], bases[0])
    b = laid(rng, (k, n), layout[1], gaps[1], bases[1])
    if names == "b":  # the first operand's rows of 72 elements are as bulk copies need them
        assert a.strides[0] == 144
    out = np.full((m, n), np.nan, np.float16)
    schedule = BULK if target == "reference" else None
    made = tw.matmul(a, b, out, schedule=schedule, target=target)
    assert made is out
    (plan,) = always
    assert [place for place in plan.product.names if place] == [*({*"ab"} - {*names}), "out"]
    assert plan.scratch_bytes
    assert f"rows of {' and '.join(names)} do not begin" in str(plan)
    if target == "reference":
        assert plan.schedule == BULK
    assert_right(a, b, made)


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_batches_and_terms(target: str, always: list[LaunchPlan]) -> None:
    """An operand that batches repeat is copied once; strides along M may be negative, along K any."""
    rng = np.random.default_rng(2)
    a = laid(rng, (3, 1, 41, 139), "n", 0, 1)[:, :, ::-1, ::2]
    b = laid(rng, (2, 70, 23), "n", 0, 0)
    c, bias = (rng.standard_normal(n).astype(np.float16) for n in ((41, 23), 23))
    made = tw.matmul(a, b, c=c, alpha=2.0, beta=-0.5, bias=bias, activation="relu", target=target)
    assert len(always) == 1
    wide = a.astype(np.float64), b.astype(np.float64)
    want = np.maximum(2 * (wide[0] @ wide[1]) - 0.5 * c + bias, 0)
    assert made.shape == (3, 2, 41, 23)
    bound = 71 * 2.0**-22 * (np.abs(wide[0]) @ np.abs(wide[1])) + 2.0**-10 * np.abs(want) + 1e-5
    assert (np.abs(made - want) <= bound).all()


def test_planes_do_not_overlap() -> None:
    """The kernel fills whole rows of a plane with zeros, at most up to the next plane."""
    for rows, columns in ((3, 65), (2, 127), (2, 511), (2, 513), (647, 2457), (5, 1023), (64, 1087)):
        for shape, strides in (((rows, columns), (columns, 1)), ((columns, rows), (1, columns))):
            info = ArrayInfo(2, shape, strides, tw.f16, ("cpu", 0), False, None)
            plane = Planes.of("a", info, REAL, padded=True)
            pitch = max(step for step in plane.strides)
            assert pitch % 8 == 0
            assert columns <= pitch
            assert plane.plane_bytes >= rows * pitch * 2
            assert pitch * 2 <= max(columns * 2 + 16, columns * 2 * 9 / 8)


def test_replays_launch_both(always: list[LaunchPlan], monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    matmuls._PLANS.forget()

    def product() -> None:
        a, b = laid(rng, (41, 73), "n", 0, 1), laid(rng, (73, 25), "n", 0, 1)
        assert_right(a, b, tw.matmul(a, b, target="cpu"))

    product()
    assert len(always) == 1
    monkeypatch.setattr(matmuls, "multiplied", lambda *given: pytest.fail("planned again"))
    product()
    matmuls._PLANS.forget()


def on_a_gpu(
    shape: tuple[int, int, int], layout: str, kind: tw.DType = tw.f16, base: int = 0
) -> dict[str, ArrayInfo]:
    (m, n, k), made = shape, {}
    for name, (rows, columns), order in zip(
        ("a", "b", "out"), ((m, k), (k, n), (m, n)), f"{layout}n", strict=True
    ):
        steps = (columns, 1) if order == "n" else (1, rows)
        made[name] = ArrayInfo(4096 + base, (rows, columns), steps, kind, ("cuda", 0), False, None)
    return made


@pytest.mark.parametrize(
    ("shape", "layout", "base", "how", "arch", "names"),
    [
        ((4095, 4095, 4095), "nn", 0, None, "sm_90a", "ab"),
        ((4096, 4096, 4096), "nn", 0, None, "sm_90a", ""),
        ((4096, 4096, 4096), "nn", 2, None, "sm_90a", "ab"),
        ((4096, 4095, 4096), "nn", 0, None, "sm_90a", "b"),
        ((4095, 4096, 4096), "tn", 0, None, "sm_90a", "a"),
        ((4095, 4095, 4096), "nt", 0, None, "sm_90a", ""),
        ((647, 922, 2457), "nt", 0, None, "sm_90a", "ab"),
        ((49, 19, 9161), "nn", 0, None, "sm_90a", ""),
        ((872, 29, 2183), "nt", 0, None, "sm_90a", ""),
        ((4095, 4095, 4095), "nn", 0, Splitting(split_k=2), "sm_90a", "ab"),
        ((4095, 4095, 4095), "nn", 0, Splitting(batch_invariant=True), "sm_90a", ""),
        ((4095, 4095, 4095), "nn", 0, BULK, "sm_90a", ""),
        ((4095, 4095, 4095), "nn", 0, None, "sm_80", ""),
    ],
)
def test_operands_are_copied_where_that_is_estimated_to_pay(
    shape: tuple[int, int, int],
    layout: str,
    base: int,
    how: Schedule | Splitting | None,
    arch: str,
    names: str,
) -> None:
    infos, machine = on_a_gpu(shape, layout, base=base), (CUDA.architecture(arch), 132)
    planes = padded_planes(infos, problem_of(layouts(infos)), how, machine)
    assert "".join(one.name for one in planes) == names
    wide = {name: replace(info, dtype=tw.f32) for name, info in infos.items()}
    assert not padded_planes(wide, problem_of(layouts(wide)), how, machine)


def plan_on_h200(shape: tuple[int, int, int], layout: str, monkeypatch: pytest.MonkeyPatch) -> LaunchPlan:
    """Return an H200's plan of a product, for arrays on the host."""

    def serve(call: Call, target: str) -> Any:
        call.backend = backend_named(target)
        return call.backend

    arch = CUDA.architecture("sm_90a")
    monkeypatch.setattr(Call, "serve", serve)
    monkeypatch.setattr("tilewright.ops.launching.arch_of", lambda backend, name: arch)
    monkeypatch.setattr(type(backend_named("cuda")), "processors", lambda self: 132)
    m, n, k = shape
    a, b = (
        np.zeros(size, np.float16, order="C" if order == "n" else "F")
        for size, order in zip(((m, k), (k, n)), layout, strict=True)
    )
    given = dict.fromkeys(matmul.ARRAYS) | {"a": a, "b": b}
    return matmul.plan_matmul(given, Wanted(target="cuda"))


@pytest.mark.parametrize("layout", ["nn", "tt"])
def test_the_product_of_copies_is_by_bulk_copies(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans for an H200 compile without spills, and multiply tiles that bulk copies load."""
    plan = plan_on_h200((647, 921, 2457), layout, monkeypatch)
    first, product = plan.launches
    assert product.names == ("", "", "out")
    for launch in (first, product):
        made = launch.kernel.compile(*launch.arrays, target="cuda", arch="sm_90a")
        assert made.resources["spill_store_bytes"] == made.resources["stack_bytes"] == 0
        if launch is product:
            assert "wgmma" in made.source
            assert "cp.async.bulk.tensor" in made.source
            assert made.schedule is not None
            assert made.schedule.by_bulk


@pytest.mark.parametrize("rank", [0, 2])
def test_copies_store_four_bytes_at_once(rank: int) -> None:
    batch, how = (5, 3)[:rank], Writing(REAL, tw.f16, False, False, False, False, vector_bytes=4)
    odd, padded = tw.like("f16", *batch, 517, 261, align=2), tw.like("f16", *batch, 517, 264)
    given = [odd, odd, padded, padded, padded]
    for kernel in (splitting(rank, True).bind(how=how), splitting_of_two(rank, True).bind(hows=(how, how))):
        made = kernel.compile(*given * (1 + (kernel.program.name != "planes")), target="cuda", arch="sm_90a")
        assert made.resources["spill_store_bytes"] == made.resources["stack_bytes"] == 0
        assert "4 bytes at a time" in made.source


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["nn", "tn", "tt", "nt"])
@pytest.mark.parametrize(("shape", "base"), [((1031, 1021, 1999), 0), ((1024, 1024, 2048), 1)])
def test_a_gpu_multiplies_the_copies(
    layout: str, shape: tuple[int, int, int], base: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, asked, found = np.random.default_rng(5), matmul.planes_first, list[Any]()
    monkeypatch.setattr(matmul, "planes_first", lambda *given: found.append(asked(*given)) or found[-1])
    m, n, k = shape
    wide = laid(rng, (m, k), layout[0], 0, base), laid(rng, (k, n), layout[1], 0, base)
    a, b = (Placed(one, base) for one in wide)
    out = DeviceArray.of(np.full((m, n), np.nan, np.float16))
    matmuls._PLANS.forget()
    for _ in range(2):  # the second time is a replay
        tw.matmul(a, b, out)
        CUDA_DRIVER.synchronize()
        assert_right(*wide, out.host())
    assert found[0][0].padded


class Placed:
    """A copy of an array on the GPU, which begins some elements after a multiple of 16 bytes."""

    def __init__(self, given: Any, base: int) -> None:
        rows = given if given.strides[-1] == 2 else given.T
        whole = np.full(rows.size + base, np.nan, np.float16)
        whole[base:] = rows.reshape(-1)
        self.there = DeviceArray.of(whole)
        self.__cuda_array_interface__ = self.there.__cuda_array_interface__ | {
            "shape": given.shape,
            "strides": given.strides,
            "data": (self.there.memory.address + 2 * base, False),
        }
