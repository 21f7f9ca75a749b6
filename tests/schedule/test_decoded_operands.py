"""Operands with functions under chosen schedules, and products of two dtypes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.checking.compare import Accumulation
from tilewright.checking.flows import compare_flow
from tilewright.schedule.form import form_of

pytestmark = pytest.mark.in_turns(3)

TARGETS = pytest.mark.parametrize("target", ["reference", "cpu"])
DIMS: dict[str, Any] = {"A": "M K", "B": "K N", "C": "M N"}
EDGES = [(70, 50, 45), (33, 9, 2), (3, 4, 0)]
"""None of whose depths is a multiple of a tile's."""


@tw.kernel(**DIMS)
def converted(A, B, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n].to(A.dtype)
        C[m, n] = acc


@tw.kernel(**DIMS)
def clipped(A, B, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += tw.maximum(A[m, k], 0) @ B[k, n]
        C[m, n] = acc


@tw.kernel(**DIMS)
def shifted(A, B, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += (A[m, k] + 1.0) @ (B[k, n] * 2.0 + 3.0)
        C[m, n] = acc


@tw.kernel(**DIMS)
def inverted(A, B, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += (1.0 / A[m, k]) @ B[k, n]
        C[m, n] = acc


@tw.kernel(**DIMS, scale=tw.f32)
def numbered(A, B, C, scale):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += (A[m, k].to(tw.f32) * scale + A.shape[0]).to(A.dtype) @ B[k, n]
        C[m, n] = acc


def drawn(m: int, n: int, k: int, kind: Any, other: Any = None) -> tuple[Any, Any, Any]:
    """Draw A (without small numbers, because it is a divisor), B, and a poisoned C."""
    rng = np.random.default_rng(m + n + k)
    a = (rng.uniform(1, 2, (m, k)) * rng.choice((-1, 1), (m, k))).astype(kind)
    b = (3 * rng.standard_normal((k, n))).astype(kind if other is None else other)
    return a, b, np.full((m, n), np.nan, np.float32)


def check(kernel: Any, target: str, a: Any, b: Any, c: Any, **numbers: float) -> None:
    ran = kernel(a, b, c, *numbers.values(), target=target)
    flow = kernel.flow(a, b, c, *numbers.values())
    factors = form_of(flow).factors
    is_packed = target == "cpu" and all(one.is_plain or one.is_converted for one in factors)
    assert (ran.target, ran.schedule.staging) == (target, "panels" if is_packed else "fragments")
    found = compare_flow(flow, {"C": c}, {"A": a, "B": b}, numbers, Accumulation.of(ran.schedule.atom, None))
    assert found.ok, found


@TARGETS
@pytest.mark.parametrize("kernel", [clipped, shifted, inverted], ids=lambda kernel: kernel.name)
def test_what_lies_past_the_edge_adds_nothing(kernel: Any, target: str) -> None:
    """The kernel would add 0 + 1 times 3 there, and infinity times 0."""
    for extents in EDGES:
        check(kernel, target, *drawn(*extents, np.float16))


@pytest.mark.parametrize("split", [2, "stream"])
def test_the_edge_of_k_is_where_it_is_though_k_is_split(split: int | str) -> None:
    schedule = tw.Schedule(
        tw.atoms.MMA_F16, (32, 32, 32), (2, 2), stages=3, staging="fragments", split_k=split
    )
    given = drawn(40, 30, 75, np.float16)
    check(shifted.bind(schedule=replace(schedule, blocks=3 if split == "stream" else 0)), "reference", *given)


@TARGETS
def test_numbers_and_sizes_are_among_what_is_computed(target: str) -> None:
    check(numbered, target, *drawn(70, 50, 45, np.float16), scale=0.5)


@TARGETS
@pytest.mark.parametrize(
    ("kind", "other"), [(np.float16, np.int8), (ml_dtypes.bfloat16, np.int8), (np.float32, np.float16)]
)
def test_an_operand_is_converted_on_its_way(kind: Any, other: Any, target: str) -> None:
    check(converted, target, *drawn(70, 50, 45, kind, other))


@tw.kernel(**DIMS)
def squared(A, B, C, *, times):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            a = A[m, k]
            for _ in range(times):
                a = a * a
            acc += a @ B[k, n]
        C[m, n] = acc


@TARGETS
def test_a_value_that_is_used_twice_is_in_the_text_once(target: str) -> None:
    """Each square is the square of the one before: without sharing there would be 2**40 products."""
    times = 40
    given = drawn(19, 23, 21, np.float32)
    made = squared.bind(times=times).compile(*given, target=target)
    products = [op for op in made.kernel.walk() if getattr(op, "function", "") == "mul"]
    multiplied = [op for op in made.kernel.walk() if hasattr(op, "mma")]
    assert products
    assert len(products) % times == 0
    assert len(products) // times <= len(multiplied) + 1  # the first are computed before the loop
    check(squared.bind(times=3), target, *given)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_a_gpu_has_such_a_schedule_and_text(arch: str) -> None:
    for kernel, extent in ((shifted, 4096), (converted, 100)):
        x, c = tw.like("f16", extent, extent), tw.like("f32", extent, extent)
        y = tw.like("i8", extent, extent) if kernel is converted else x
        made = kernel.compile(x, y, c, target="cuda", arch=arch)
        assert (made.target, made.arch, made.schedule.staging) == ("cuda", arch, "fragments")
        assert made.schedule.atom == tw.atoms.MMA_F16
        assert not made.resources.get("spill_store_bytes")


@pytest.mark.in_turns(1)
@pytest.mark.parametrize("rows", [40, 600, 5000])
def test_buffers_of_two_results_leave_room_for_a_ring(rows: int) -> None:
    """Large tiles with two results of f32 have no room for two stages, and are not proposed."""

    @tw.kernel(A="M K", B="N K", C="M N", least="M")
    def with_two_results(A, B, C, least):
        for m, n in tw.tiles(C):
            acc = tw.zeros(dtype=tw.f32)
            for k in tw.steps(A.shape[1]):
                acc += tw.relu(A[m, k]) @ B[n, k].T
            C[m, n] = acc
            least[m] = acc.min(axis=1)

    halves, results = (
        (tw.like("f16", side, 640) for side in (rows, 96)),
        (tw.like("f32", rows, 96), tw.like("f32", rows)),
    )
    made = with_two_results.compile(*halves, *results, target="cuda", arch="sm_90a")
    assert made.schedule.staging == "tma"
    assert made.schedule.stages > 1
    assert made.resources["spill_store_bytes"] == 0


def test_fragments_read_weights_from_shared_memory_as_they_are() -> None:
    """Weights along K stay packed, and take the same space in shared memory as in global memory."""
    schedule = tw.Schedule(
        tw.atoms.WMMA_F16, (32, 32, 32), warps=(2, 2), stages=3, staging="fragments", epilogue="staged"
    )
    b = tw.packed(np.empty((64, 128), np.uint8).T, tw.i4)
    given = tw.like("f16", 96, 256), b, tw.like("f16", 96, 64)
    made = converted.bind(schedule=schedule).compile(*given, target="hip", arch="gfx1151")
    assert "sB = shared(dtype=i4," in tw.ir.print_kernel(made.kernel)


def test_what_keeps_zero_is_not_cut() -> None:
    f16, i8 = tw.like("f16", 64, 64), tw.like("i8", 64, 64)
    for kernel, other, kept in (
        (converted, i8, (True, True)),
        (clipped, f16, (True, True)),
        (shifted, f16, (False, False)),
        (inverted, f16, (False, True)),
    ):
        form = form_of(kernel.flow(f16, other, f16))
        assert (form.a.keeps_zero, form.b.keeps_zero) == kept, kernel.name
    form = form_of(numbered.flow(f16, f16, f16, 1.0))
    assert not form.a.keeps_zero, "scale may be infinite, and the number of rows is none of the graph"


@tw.kernel(**DIMS)
def product(A, B, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]
        C[m, n] = acc


@pytest.mark.parametrize("target", ["reference", "cpu", "cuda"])
@pytest.mark.parametrize(
    ("kinds", "nearest"),
    [
        (("f16", "f32"), r"A\[m, k\].to\(tw.f32\)"),
        (("f32", "bf16"), r"B\[k, n\].to\(tw.f32\)"),
        (("f16", "bf16"), r"B\[k, n\].to\(tw.f16\), which rounds"),
        (("f8e4m3", "f16"), r"A\[m, k\].to\(tw.f16\)"),
    ],
    ids=str,
)
def test_mixed_dtypes_are_refused_in_terms_of_the_product(
    kinds: tuple[str, str], nearest: str, target: str
) -> None:
    given = (*(tw.like(kind, 32, 32) for kind in kinds), tw.like("f32", 32, 32))
    arch = {"cuda": "sm_90a"}.get(target)
    message = rf"{kinds[0]} and B\[k, n\] in {kinds[1]}.*choice: {nearest}"
    with pytest.raises(tw.TraceError, match=message) as no:
        product.compile(*given, target=target, arch=arch)
    assert "acc += A[m, k] @ B[k, n]" in str(no.value)


def test_what_is_the_nearest_choice_is_legal() -> None:
    @tw.kernel(**DIMS)
    def halves(A, B, C):
        for m, n in tw.tiles(C):
            acc = tw.zeros()
            for k in tw.steps(A.shape[1]):
                acc += A[m, k].to(tw.f32) @ B[k, n]
            C[m, n] = acc

    for target in ("reference", "cpu"):
        check(halves, target, *drawn(33, 20, 17, np.float16, np.float32))


def test_mixtures_that_an_instruction_takes_are_left_to_the_schedule() -> None:
    @tw.kernel(A="M K", B="N K", C="M N")
    def transposed(A, B, C):
        for m, n in tw.tiles(C):
            acc = tw.zeros()
            for k in tw.steps(A.shape[1]):
                acc += A[m, k] @ B[n, k].T
            C[m, n] = acc

    atom = tw.atoms.wgmma("f8e4m3", 64, b_dtype="f8e5m2")
    said = transposed.bind(schedule=tw.Schedule(atom, (64, 64, 128), promote=4))
    given = (tw.like(kind, 128, 128) for kind in ("f8e4m3", "f8e5m2", "f32"))
    assert said.compile(*given, target="cuda", arch="sm_90a").schedule.atom == atom


@TARGETS
def test_a_number_of_each_batch_decodes_an_operand(target: str) -> None:
    @tw.kernel(A="B M K", W="B N K", zero="B", scale="B", decay="B M", C="B M N")
    def of_batches(A, W, zero, scale, decay, C):
        for b, m, n in tw.tiles(C):
            acc = tw.zeros()
            for k in tw.steps(A.shape[2]):
                rows = A[b, m, k] * (scale[b] - decay[b, m])[:, None]
                acc += rows @ ((W[b, n, k].to(A.dtype) - zero[b]) * scale[b]).T
            C[b, m, n] = acc

    rng = np.random.default_rng(0)
    for shape in EDGES:
        m, n, k = shape
        a, w = (
            rng.integers(-2, 3, (3, m, k)).astype(np.float32),
            rng.integers(-4, 5, (3, n, k)).astype(np.int8),
        )
        zero, scale = rng.integers(-2, 3, (2, 3)).astype(np.float32)
        decay = rng.integers(-2, 3, (3, m)).astype(np.float32)
        c = np.full((3, m, n), np.nan, np.float32)
        of_batches(a, w, zero, scale, decay, c, target=target)
        weights = (w - zero[:, None, None]) * scale[:, None, None]
        assert (c == (a * (scale[:, None] - decay)[:, :, None]) @ weights.swapaxes(1, 2)).all()


@pytest.mark.parametrize(("target", "arch"), [("cuda", "sm_90a"), ("cuda", "sm_80"), ("hip", "gfx942")])
def test_a_number_of_each_group_decodes_an_operand(target: str, arch: str) -> None:
    @tw.kernel(X="T K", W="E N K", scale="E", ends="E", Y="T N")
    def experts(X, W, scale, ends, Y):
        for g, t, n in tw.tiles(Y, groups=ends):
            acc = tw.zeros()
            for k in tw.steps(X.shape[1]):
                acc += X[t, k] @ (W[g, n, k].to(X.dtype) * scale[g]).T
            Y[t, n] = acc

    shapes = {"X": (512, 256), "W": (4, 256, 256), "scale": (4,), "ends": (4,), "Y": (512, 256)}
    kinds = {"X": "f16", "W": "i8", "scale": "f16", "ends": "i32", "Y": "f32"}
    arrays = {name: tw.like(kinds[name], shape) for name, shape in shapes.items()}
    assert "scale" in experts.compile(**arrays, target=target, arch=arch).source
