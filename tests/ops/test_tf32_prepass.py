"""Products of f32 as tf32: for Hopper, a prepass writes operands along K."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.ops.layouts import layouts

import tilewright as tw
from tilewright.ops import matmul
from tilewright.ops import matmul as matmuls
from tilewright.ops.launching import Call
from tilewright.ops.planes import REAL, Writing, splitting, splitting_of_two, tf32_planes, written
from tilewright.ops.problem import Problem, problem_of
from tilewright.ops.products import combined, plain
from tilewright.runtime.arrays import ArrayInfo
from tilewright.runtime.backends import backend_named
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.gpu_memory import DeviceArray
from tilewright.schedule.question import Splitting
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import CUDA

BULK = tw.Schedule(
    tw.atoms.wgmma("f32", 32), (64, 32, 32), stages=3, staging="tma", roles="cooperative", groups=1
)

BOUND = {"rounded": 2.0**-10, "one as it lies": 1.5 * 2.0**-10, "as they lie": 2.0**-9}
"""Of the sum of sizes of products, what is off; sums on top."""


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Write operands along K on every target, also with a schedule; return the list of plans."""
    names: list[str] = []

    def along_k(call: Call, problem: Problem, wanted: Any) -> Any:
        planes = written({name: problem.operands[name].of(call.infos[name]) for name in ("a", "b")})
        names.extend(one.name for one in planes)
        return planes

    monkeypatch.setattr(matmul, "planes_first", along_k)
    return names


def laid(rng: np.random.Generator, shape: tuple[int, ...], order: str, gap: int = 0) -> Any:
    """Return numbers along rows (n) or along columns (t), with gaps in between."""
    *batch, rows, columns = shape
    inner = (rows, columns + gap) if order == "n" else (columns, rows + gap)
    whole = rng.standard_normal((*batch, *inner), np.float32)
    return whole[..., :columns] if order == "n" else whole[..., :rows].swapaxes(-1, -2)


def assert_right(a: Any, b: Any, made: Any, unit: float) -> None:
    """Check every element within its bound, which a missing first step along K exceeds."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    bound = (unit + (a.shape[-1] + 1) * 2.0**-23) * (np.abs(a) @ np.abs(b))
    off = np.abs(made - a @ b)
    assert (off <= bound).all(), f"{(off / bound).max():.3} of the bound"
    lost = a[..., :32] @ b[..., :32, :]
    assert (np.abs(lost) > 2 * bound).mean() > 0.5, "what is lost would go unnoticed"


@pytest.mark.parametrize(
    ("layout", "gap", "names", "bound"),
    [
        ("nn", 0, ["b"], "one as it lies"),
        ("tn", 0, ["a", "b"], "rounded"),
        ("tt", 4, ["a"], "one as it lies"),
        ("nt", 0, [], "as they lie"),
        ("nt", 3, ["a", "b"], "rounded"),
    ],
)
def test_warpgroups_multiply_what_is_written_along_k(
    layout: str, gap: int, names: list[str], bound: str, always: list[str]
) -> None:
    """There are two tiles along M and N; the second tile and the last step along K are cut."""
    rng = np.random.default_rng(0)
    a, b = laid(rng, (72, 76), layout[0], gap), laid(rng, (76, 52), layout[1], gap)
    out = np.full((72, 52), np.nan, np.float32)
    made = tw.matmul(a, b, out, precision="tf32", schedule=BULK, target="reference")
    assert made is out
    assert always == names
    assert_right(a, b, made, BOUND[bound])


def test_numbers_are_rounded_to_nearest(always: list[str]) -> None:
    """Truncation instead of rounding would make sums of positive numbers far too small."""
    rng = np.random.default_rng(1)
    a, b = (np.abs(laid(rng, shape, order)) for shape, order in (((64, 128), "t"), ((128, 32), "n")))
    made = tw.matmul(a.T.copy().T, b, precision="tf32", schedule=BULK, target="reference")
    off = made / (a.astype(np.float64) @ b) - 1
    assert always == ["a", "b"]
    assert abs(off.mean()) < 2.0**-14


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_batches_and_what_is_added(target: str, always: list[str]) -> None:
    """An operand that batches repeat is written once; strides along M may be negative, along K any."""
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal((3, 1, 40, 140), np.float32)[:, :, ::-1, ::2], laid(rng, (2, 70, 24), "n")
    c, bias, residual = (rng.standard_normal(n, np.float32) for n in ((40, 24), 24, (3, 2, 40, 24)))
    schedule = BULK if target == "reference" else None
    words = {"precision": "tf32", "schedule": schedule, "target": target}
    made = tw.matmul(
        a, b, c=c, alpha=2.0, beta=-0.5, bias=bias, activation="relu", residual=residual, **words
    )
    assert always == ["a", "b"]
    product = a.astype(np.float64) @ b
    want = np.maximum(2 * product - 0.5 * c + bias, 0) + residual
    bound = 2.0**-9 * (np.abs(a).astype(np.float64) @ np.abs(b)) + 1e-4
    assert made.shape == (3, 2, 40, 24)
    assert (np.abs(made - want) <= 2 * bound).all()


@pytest.mark.parametrize("terms", [False, True])
def test_what_was_launched_is_launched_again(
    terms: bool, always: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(3)
    matmuls._PLANS.forget()

    def product() -> None:
        a, b, bias = laid(rng, (40, 72), "t"), laid(rng, (72, 24), "n"), rng.standard_normal(24, np.float32)
        alpha = rng.random() if terms else 1.0
        added = {"bias": bias, "alpha": alpha} if terms else {}
        made = tw.matmul(a, b, precision="tf32", target="cpu", **added)
        assert_right(alpha * a, b, made - (bias if terms else 0), BOUND["rounded"] * 1.01)

    product()
    assert always == ["a", "b"]
    monkeypatch.setattr(matmuls, "multiplied", lambda *given: pytest.fail("looked at again"))
    product()
    matmuls._PLANS.forget()


@pytest.mark.parametrize(("target", "alone"), [("cpu", True), ("reference", True), ("cuda", False)])
def test_threads_of_a_block_write_planes_where_there_are_some(
    target: str, alone: bool, always: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block that writes operands along K has one thread on a host, and many on a GPU."""

    def serve(call: Call, target: str) -> Any:
        call.backend = backend_named(target)
        return call.backend

    monkeypatch.setattr(Call, "serve", serve)
    a, b = np.ones((64, 64), np.float32).T, np.ones((64, 64), np.float32)
    given = dict.fromkeys(matmul.ARRAYS) | {"a": a, "b": b}
    plan = matmul.plan_matmul(given, matmul.Wanted(precision="tf32", target=target))
    assert always == ["a", "b"]
    assert {how.on_host for how in plan.launches[0].kernel.constants["hows"]} == {alone}


def on_a_gpu(shape: tuple[int, int, int], layout: str, dtype: tw.DType = tw.f32) -> dict[str, ArrayInfo]:
    (m, n, k), made = shape, {}
    for name, (rows, columns), order in zip(
        ("a", "b", "out"), ((m, k), (k, n), (m, n)), f"{layout}n", strict=True
    ):
        steps = (columns, 1) if order == "n" else (1, rows)
        made[name] = ArrayInfo(4096, (rows, columns), steps, dtype, ("cuda", 0), False, None)
    return made


@pytest.mark.parametrize(
    ("shape", "layout", "how", "arch", "names"),
    [
        ((4096, 4096, 4096), "nn", None, "sm_90a", "b"),
        ((4096, 4096, 4096), "tn", None, "sm_90a", "ab"),
        ((4096, 4096, 4096), "tt", None, "sm_90a", "a"),
        ((4096, 4096, 4096), "nt", None, "sm_90a", ""),
        ((1024, 1024, 1024), "nn", None, "sm_90a", "b"),
        ((4096, 4096, 4097), "nn", None, "sm_90a", "ab"),
        ((4096, 4096, 4096), "nn", Splitting(split_k=2), "sm_90a", "b"),
        ((4096, 4096, 4096), "nn", Splitting(batch_invariant=True), "sm_90a", ""),
        ((4096, 4096, 4096), "nn", BULK, "sm_90a", ""),
        ((4096, 4096, 4096), "nn", None, "sm_80", ""),
        ((512, 512, 512), "nn", None, "sm_90a", ""),
        ((16, 65536, 4096), "nn", None, "sm_90a", ""),
    ],
)
def test_operands_are_written_where_that_is_estimated_to_pay(
    shape: tuple[int, int, int], layout: str, how: Schedule | Splitting | None, arch: str, names: str
) -> None:
    infos, machine = on_a_gpu(shape, layout), (CUDA.architecture(arch), 132)
    planes = tf32_planes(infos, problem_of(layouts(infos)), how, machine)
    assert "".join(one.name for one in planes) == names
    assert all(one.rounded and one.strides[one.target] == 1 for one in planes)
    held = sum(one.size_bytes for one in planes)
    assert held <= sum(1.01 * 4 * infos[name].shape[0] * infos[name].shape[1] for name in names)
    wide = {**infos, "out": replace(infos["out"], dtype=tw.f64)}
    assert not tf32_planes(wide, problem_of(layouts(infos)), how, machine)


@pytest.mark.parametrize("rank", [0, 2])
def test_what_is_launched_compiles(rank: int) -> None:
    batch, how = (5, 3)[:rank], Writing(REAL, tw.f32, False, True, False, False, rounded=True)
    given = [tw.like("f32", (*batch, 516, 260))] * 5
    for kernel in (splitting(rank).bind(how=how), splitting_of_two(rank).bind(hows=(how, how))):
        made = kernel.compile(*given * (1 + (kernel.program.name != "planes")), target="cuda", arch="sm_90a")
        assert made.resources["spill_store_bytes"] == made.resources["stack_bytes"] == 0
    square, row = np.empty((*batch, 4096, 4096)[-2:], np.float32), np.empty(4096, np.float32)
    rest = {"terms": frozenset({"bias", "alpha"}), "activation": "relu"}
    for kernel, arrays in (
        (plain(0).bind(precision="tf32"), (square, square.T, square)),
        (
            combined(0, tw.f32).bind(precision="tf32", **rest),
            (square, square.T, square, row, square, square, 1.0, 1.0),
        ),
    ):
        made = kernel.compile(*arrays, target="cuda", arch="sm_90a")
        assert "wgmma" in made.source
        assert made.resources["spill_store_bytes"] == made.resources["stack_bytes"] == 0


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["nn", "tn", "tt", "nt"])
@pytest.mark.parametrize("depth", [1000, 1003])
def test_a_gpu_multiplies_what_is_written_along_k(
    layout: str, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, asked, found = np.random.default_rng(5), matmul.planes_first, []
    monkeypatch.setattr(matmul, "planes_first", lambda *given: found.append(asked(*given)) or found[-1])
    a, b = laid(rng, (2100, depth), layout[0]), laid(rng, (depth, 1900), layout[1])
    c = rng.standard_normal((2100, 1900), np.float32)
    there = [DeviceArray.of(one) for one in (a, b, c, np.full(c.shape, np.nan, np.float32))]
    matmuls._PLANS.forget()
    for _ in range(2):  # the second time it is known
        tw.matmul(*there[:2], there[3], precision="tf32")
        CUDA_DRIVER.synchronize()
        assert_right(a, b, there[3].host(), BOUND["as they lie"])
    assert [not one for one in found] == [layout == "nt"]
    tw.matmul(*there[:2], there[3], c=there[2], alpha=-1.0, precision="tf32")
    CUDA_DRIVER.synchronize()
    assert_right(-a, b, there[3].host() - c, 1.1 * BOUND["as they lie"])
