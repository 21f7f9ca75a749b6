"""Rows chosen by integers in memory: gathered by loads, scattered by stores, alone and in groups."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.eight_lines import product as plain

import tilewright as tw
from tilewright.checking.flows import compare_flow
from tilewright.schedule.legality import reasons

from .chosen_rows import KERNELS, added, check, chosen_features, gated, gathered, grouped, problem, scattered
from .forms import FORMS

DTYPES = ("f32", "f16", "bf16")

BY_THREADS = [name for name, schedule in FORMS.items() if not schedule.by_bulk]
"""Schedules whose threads load the operands."""

MIXED = {
    f"mixed, {name}": replace(FORMS[name], staging="mixed")
    for name in ("cooperative", "cooperative, promoted", "ping-pong")
}
"""Schedules whose threads load the operand that bulk copies do not carry."""


@tw.kernel(A="T K", B="N K", rows="M", C="M N")
def strict(A, B, rows, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[rows[m], k] @ B[n, k].T
        C[m, n] = acc


@tw.kernel(A="M K", B="N K", rows="M", C="T N")
def strict_scatter(A, B, rows, C):
    for m, n in tw.tiles((A.shape[0], B.shape[0])):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        C[rows[m], n] = acc


def normal(*shape: int, seed: int = 0, dtype: Any = np.float16) -> np.ndarray[Any, Any]:
    """Return normal random numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


# ---------------------------------------------------------------- every kernel, on random problems


@pytest.mark.in_turns(5)
@pytest.mark.parametrize(
    ("name", "target", "seed"),
    [
        (name, *drawn)
        for number, name in enumerate(KERNELS)
        # Each dtype on the reference; a processor compiles one, and another one in the next case.
        for drawn in (*(("reference", seed) for seed in range(3)), ("cpu", 3 + number % 3))
    ],
)
def test_random_problems(name: str, target: str, seed: int) -> None:
    _, found = check(name, KERNELS[name][0], seed, DTYPES[seed % 3], target)
    assert found.ok, found


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("form", BY_THREADS)
@pytest.mark.parametrize("name", ["gathered", "scattered", "added", "chosen_features"])
def test_every_schedule_of_threads(name: str, form: str) -> None:
    bound = KERNELS[name][0].bind(schedule=FORMS[form])
    launch, found = check(name, bound, 3, "f16", "reference")
    assert launch.schedule == FORMS[form]
    assert found.ok, found


@pytest.mark.parametrize("name", KERNELS)
def test_flows_are_texts(name: str) -> None:
    arrays, _ = problem(name, 1, "f32")
    flow = KERNELS[name][0](*arrays.values(), target="reference").flow
    text = tw.ir.print_flow(flow)
    assert "Rows(dim=" in text
    assert tw.ir.parse_flow(text) == flow


def test_a_text_with_two_uses_of_one_index_is_refused() -> None:
    arrays, _ = problem("gathered", 1, "f32")
    text = tw.ir.print_flow(gathered(*arrays.values(), target="reference").flow)
    one = "Rows(dim=0, index=rows, padded=True)"
    assert one in text
    with pytest.raises(tw.ParseError, match="rows of A are chosen twice"):
        tw.ir.parse_flow(text.replace(one, f"{one}, {one.replace('dim=0', 'dim=1')}"))
    with pytest.raises(tw.ParseError, match="rows are chosen by B"):
        tw.ir.parse_flow(text.replace(one, one.replace("index=rows", "index=B")))


# ---------------------------------------------------------------- algebra against the plain product


@pytest.mark.parametrize("form", MIXED)
def test_chosen_rows_next_to_bulk_copies_give_the_same_bits(form: str) -> None:
    """The threads that copy load the chosen rows; the result is that of rows that bulk copies load."""
    a, b = normal(50, 72), normal(70, 72, seed=1)
    rows = np.random.default_rng(2).integers(-2, 52, 195).astype(np.int32)
    first = np.where(((rows >= 0) & (rows < 50))[:, None], a[rows.clip(0, 49)], np.float16(0))
    c, expected = (np.full((195, 70), np.nan, np.float32) for _ in range(2))
    plain.bind(schedule=replace(MIXED[form], staging="tma"))(first, b, expected, target="reference")
    made = gathered.bind(schedule=MIXED[form])(a, b, rows, c, target="reference")
    assert (made.target, made.schedule) == ("reference", MIXED[form])
    assert np.array_equal(c.view(np.int32), expected.view(np.int32))


@pytest.mark.parametrize("kind", [np.int32, np.int64])
@pytest.mark.parametrize(("target", "form"), [("cpu", None), *(("reference", form) for form in BY_THREADS)])
def test_gathering_first_gives_the_same_bits(target: str, form: str | None, kind: Any) -> None:
    a, b = normal(50, 72), normal(70, 72, seed=1)
    rows = np.random.default_rng(2).integers(-2, 52, 67).astype(kind)
    first = np.where(((rows >= 0) & (rows < 50))[:, None], a[rows.clip(0, 49)], np.float16(0))
    c, expected = (np.full((67, 70), np.nan, np.float32) for _ in range(2))
    given: dict[str, Any] = {} if form is None else {"schedule": FORMS[form]}
    made = plain.bind(**given)(first, b, expected, target=target)
    found = gathered.bind(**(given or {"schedule": made.schedule}))(a, b, rows, c, target=target)
    assert (found.target, found.schedule) == (target, made.schedule)
    assert np.array_equal(c.view(np.int32), expected.view(np.int32))


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_scattering_later_gives_the_same_bits(target: str) -> None:
    a, b = normal(50, 40), normal(33, 40, seed=1)
    rows = np.random.default_rng(3).permutation(60)[:50].astype(np.int32) - 4
    product, c = np.empty((50, 33), np.float32), np.full((53, 33), 7, np.float32)
    made = plain(a, b, product, target=target)
    assert scattered.bind(schedule=made.schedule)(a, b, rows, c, target=target).target == target
    expected = np.full((53, 33), 7, np.float32)
    legal = (rows >= 0) & (rows < 53)
    expected[rows[legal]] = product[legal]
    assert np.array_equal(c, expected)


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_groups_of_chosen_rows_are_products_of_their_own(target: str) -> None:
    a, b = normal(30, 48), normal(3, 40, 48, seed=1)
    rows, ends = np.random.default_rng(4).integers(0, 30, 64), [20, 20, 61]
    c = np.full((64, 40), 9, np.float32)
    grouped(a, b, rows, np.int32(ends), c, target=target)
    for one, start, end in zip(b, [0, *ends], ends, strict=False):
        expected = a[rows[start:end]].astype(np.float64) @ one.T.astype(np.float64)
        assert np.allclose(c[start:end], expected, rtol=0, atol=48 * 2e-5)
    assert (c[61:] == 9).all()


# ---------------------------------------------------------------- integers outside, and equal integers


def test_the_reference_finds_a_row_outside() -> None:
    a, b, c = normal(20, 16), normal(8, 16), np.empty((4, 8), np.float32)
    with pytest.raises(tw.HazardError, match=r"row 20 of A, of 20 along dimension 0.*\n?.*padded=True"):
        strict(a, b, np.int32([0, 3, 20, 1]), c, target="reference")
    strict(a, b, np.int32([0, 3, 20, 1]), c, target="cpu")
    assert (c[2] == 0).all()


def test_the_reference_finds_a_row_that_is_stored_twice() -> None:
    a, b, c = normal(4, 16), normal(8, 16), np.empty((20, 8), np.float32)
    with pytest.raises(tw.HazardError, match="one element written twice"):
        strict_scatter(a, b, np.int32([0, 3, 3, 1]), c, target="reference")


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_rows_are_added_to_the_same_rows(target: str) -> None:
    a, b, bias = normal(20, 16), normal(8, 16), normal(20, dtype=np.float32)
    rows, c = np.int64([7, -1, 0, 19, 20, 3]), normal(20, 8, dtype=np.float32)
    before = c.copy()
    flow = added(a, b, bias, rows, c, target=target).flow
    given = {"A": a, "B": b, "bias": bias, "rows": rows, "C": before}
    assert compare_flow(flow, {"C": c}, given).ok
    kept = [row for row in range(20) if row not in rows]
    assert np.array_equal(c[kept], before[kept])
    assert not np.array_equal(c[7], before[7])


@tw.kernel(A="M K", B="E N K", w="M", rows="M", ends="E", C="T N")
def combined(A, B, w, rows, ends, C):
    for g, m, n in tw.tiles((A.shape[0], B.shape[1]), groups=ends):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[g, n, k].T
        C[rows[m], n] += acc * w[m][:, None]


@pytest.mark.parametrize(
    "form", [None, "direct", "persistent", "wgmma, cp_async", "cooperative", "ping-pong"]
)
@pytest.mark.parametrize("out", ["f32", "f16", "f64"])
def test_equal_rows_are_added(form: str | None, out: str) -> None:
    """Experts add to the rows of their tokens; the result is exact for small whole numbers."""
    rng = np.random.default_rng(5)
    a, b = (rng.integers(-2, 3, shape).astype(np.float16) for shape in ((150, 24), (3, 70, 24)))
    w, c = (
        rng.integers(-2, 3, 150).astype(np.float32),
        rng.integers(-9, 9, (20, 70)).astype(tw.dtype(out).numpy),
    )
    rows, ends = rng.integers(0, 20, 150).astype(np.int32), [60, 60, 140]
    expected = c.astype(np.float64)
    for one, start, end in zip(b, [0, *ends], ends, strict=False):
        np.add.at(expected, rows[start:end], (a[start:end] @ one.T) * w[start:end, None].astype(np.float64))
    bound = combined if form is None else combined.bind(schedule=FORMS[form])
    if form == "ping-pong":
        with pytest.raises(
            tw.ScheduleError, match="the sizes of the groups of m are known only on the device"
        ):
            bound(a, b, w, rows, np.int32(ends), c, target="reference")
        return
    for target in ("cpu",) if form is None else ("reference",):
        assert bound(a, b, w, rows, np.int32(ends), c, target=target).target == target
        assert np.array_equal(c.astype(np.float64), expected)


def test_added_rows_are_texts_and_their_bound_is_tight() -> None:
    a, b, w = normal(90, 16), normal(2, 24, 16, seed=1), normal(90, dtype=np.float32)
    rows, ends = np.random.default_rng(6).integers(0, 7, 90).astype(np.int32), np.int32([50, 90])
    c = normal(7, 24, dtype=np.float32)
    given = {"A": a, "B": b, "w": w, "rows": rows, "ends": ends, "C": c.copy()}
    flow = combined(a, b, w, rows, ends, c, target="cpu").flow
    text = tw.ir.print_flow(flow)
    assert "C_view[m, n] += " in text
    assert tw.ir.parse_flow(text) == flow
    assert tw.ir.parse_flow(text.replace("] += ", "] = ")) != flow
    assert compare_flow(flow, {"C": c}, given).ok
    assert np.allclose(tw.ir.evaluate(flow, given)["C"], c, rtol=1e-4, atol=1e-4)
    forgotten = c - given["C"]
    assert not compare_flow(flow, {"C": forgotten}, given).ok
    c[3, 3] *= 1.0005
    assert compare_flow(flow, {"C": c}, given).wrong == 1


def test_a_value_does_not_read_the_rows_that_it_is_added_to() -> None:
    @tw.kernel(A="M K", B="N K", rows="M", C="T N")
    def circular(A, B, rows, C):
        for m, n in tw.tiles((A.shape[0], B.shape[0])):
            acc = tw.zeros()
            for k in tw.steps(A.shape[1]):
                acc += A[m, k] @ B[n, k].T
            C[rows[m], n] += acc * C[rows[m], n]

    words = r"C\[rows\[m\], n\] \+= a value that C\[rows\[m\], n\] enters"
    with pytest.raises(tw.TraceError, match=words):
        circular(
            normal(4, 8), normal(3, 8), np.int32([0, 1, 1, 0]), np.zeros((2, 3), np.float32), target="cpu"
        )


def test_rows_of_8_bits_are_not_added() -> None:
    a, b, rows = np.ones((4, 8), np.int8), np.ones((3, 8), np.int8), np.int32([0, 1, 1, 0])

    @tw.kernel(A="M K", B="N K", rows="M", C="T N")
    def narrow(A, B, rows, C):
        for m, n in tw.tiles((A.shape[0], B.shape[0])):
            acc = tw.zeros()
            for k in tw.steps(A.shape[1]):
                acc += A[m, k] @ B[n, k].T
            C[rows[m], n] += acc

    with pytest.raises(tw.TraceError, match="C, an array of i8, is added to, which blocks do atomically"):
        narrow(a, b, rows, np.zeros((2, 3), np.int8), target="cpu")
    c = np.zeros((2, 3), np.int32)
    narrow(a, b, rows, c, target="cpu")
    assert (c == 16).all()
    halves = [one.astype(np.float16) for one in (a, b)]
    with pytest.raises(tw.TraceError, match=r"value is f32: .*; nearest legal choice: an array of f32, or"):
        narrow(*halves, rows, c, target="cpu")


def test_loops_with_a_state_add_no_rows() -> None:
    @tw.kernel(A="M K", rows="M", y="T")
    def largest(A, rows, y):
        for m in tw.tiles(A.shape[0]):
            top = tw.full((m,), -1.0, tw.f32)
            for k in tw.steps(A.shape[1]):
                top.assign(tw.maximum(top, A[m, k].max(axis=1)))
            y[rows[m]] += top

    with pytest.raises(tw.TraceError, match="rows of y are added to, and a loop carries a state"):
        largest(normal(4, 8, dtype=np.float32), np.int32([0, 1, 1, 0]), np.zeros(2, np.float32), target="cpu")


@pytest.mark.parametrize(("target", "arch"), [("cuda", "sm_90a"), ("cuda", "sm_80"), ("hip", "gfx942")])
@pytest.mark.parametrize("out", ["f32", "bf16"])
def test_added_rows_on_gpus(target: str, arch: str, out: str) -> None:
    shapes = [("bf16", (32768, 1408)), ("bf16", (64, 4096, 1408)), ("f32", (32768,)), ("i32", (32768,))]
    args = [tw.like(*one) for one in (*shapes, ("i32", (64,)), (out, (4096, 4096)))]
    if out == "bf16" and arch != "sm_90a":
        with pytest.raises(tw.LegalityError, match=f"{arch} has no 'add' of bf16 in memory"):
            combined.compile(*args, target=target, arch=arch)
        return
    made = combined.compile(*args, target=target, arch=arch)
    assert f"reduce_add_{out}" in made.source
    if arch == "sm_90a":
        assert combined.bind().schedule_for(*args, target=target, arch=arch).staging == "tma"
        assert {"f32": "reduce_add_f32x4(", "bf16": "reduce_add_bf16x8("}[out] in made.source
        assert made.resources["spill_store_bytes"] == 0


def test_integers_share_no_memory_with_results() -> None:
    a, b = normal(20, 16), normal(4, 16)
    c = np.zeros((20, 4), np.float32)
    with pytest.raises(tw.LaunchError, match="rows would be overwritten before they are read"):
        strict(a, b, c.view(np.int32)[:, 0], c, target="cpu")


# ---------------------------------------------------------------- engines

MACHINES = [("cuda", "sm_90a"), ("cuda", "sm_80"), ("hip", "gfx942"), ("hip", "gfx1100")]


def like(dtype: str, k: int) -> list[Any]:
    """Return specimens of the arrays of `strict`."""
    shapes = (dtype, (4096, k)), (dtype, (1408, k)), ("i32", (8192,)), (dtype, (8192, 1408))
    return [tw.like(*one) for one in shapes]


@pytest.mark.parametrize(("target", "arch"), MACHINES)
def test_threads_copy_16_bytes_of_a_chosen_row(target: str, arch: str) -> None:
    made = strict.compile(*like("bf16", 4096), target=target, arch=arch)
    schedule = strict.bind().schedule_for(*like("bf16", 4096), target=target, arch=arch)
    assert schedule.staging == {"sm_90a": "mixed", "sm_80": "cp_async"}.get(arch, schedule.staging)
    if target == "cuda":
        assert "copy_async<16>(to" in made.source
        assert "rows[" in made.source
    if arch == "sm_90a":
        assert schedule.atom.asynchronous
        assert "&B_map" in made.source
        assert made.resources["spill_store_bytes"] == 0


def test_rows_of_odd_length_are_loaded_by_elements() -> None:
    made = strict.compile(*like("bf16", 4097), target="cuda", arch="sm_90a")
    assert "copy_async" not in made.source
    assert "rows[" in made.source


def test_bulk_copies_are_refused_with_the_reason() -> None:
    bound, args = strict.bind(schedule=FORMS["cooperative"]), like("f16", 4096)
    args[-1] = tw.like("f32", (8192, 1408))
    made = bound.compile(*args, target="cuda", arch="sm_90a")
    text = "A is loaded by cp_async instead of TMA: A as a view: gathered rows may lie anywhere in A"
    assert text in made.notes
    assert bound.schedule_for(*args, target="cuda", arch="sm_90a") == replace(
        FORMS["cooperative"], staging="mixed"
    )


@pytest.mark.parametrize(
    ("kernel", "changed", "k", "reason"),
    [
        (plain, {}, 264, 'bulk copies carry all operands; nearest legal choice: staging="tma"'),
        (strict, {}, 257, "rows of A begin at multiples of 2 bytes, and cp.async needs 4"),
        (strict, {"cluster": (1, 2)}, 264, "threads copy A for their own block"),
        (strict, {"epilogue": "overlapped"}, 264, "4 warps that copy and 2 warps that store"),
        (chosen_features, {}, 264, "bulk copies carry no operand"),
    ],
)
def test_what_refuses_threads_next_to_bulk_copies(
    kernel: Any, changed: dict[str, Any], k: int, reason: str
) -> None:
    shapes = {"A": (512, k), "B": (384, k), "rows": (640,), "features": (k,), "C": (640, 384)}
    names = [one.name for one in kernel.program.parameters]
    kinds = {one: "i32" if one in ("rows", "features") else "f16" for one in names}
    orders = {one: "F" if one == "B" and k % 8 else "C" for one in names}
    args = [tw.like(kinds[one], shapes[one], order=orders[one]) for one in names]
    asked = kernel.bind().question(*args, target="cuda", arch="sm_90a")
    schedule = replace(MIXED["mixed, cooperative"], **changed)
    found = reasons(schedule, asked.form, asked.classes, asked.arch)
    assert any(reason in f"{one.message}; nearest legal choice: {one.nearest}" for one in found), found


def test_scattered_rows_are_stored_by_threads() -> None:
    shapes = ("f16", (8192, 1408)), ("f16", (4096, 1408)), ("i32", (8192,)), ("f16", (8192, 4096))
    args = [tw.like(*one) for one in shapes]
    made = strict_scatter.compile(*args, target="cuda", arch="sm_90a")
    schedule = strict_scatter.bind().schedule_for(*args, target="cuda", arch="sm_90a")
    assert schedule.staging == "tma"
    note = (
        "C is stored by threads, row by row, instead of TMA: C as a view: gathered rows may lie anywhere in C"
    )
    assert note in made.notes


def test_warpgroups_multiply_several_products_of_gathered_rows() -> None:
    shapes = [("bf16", (4096, 4096)), *[("bf16", (8, 14336, 4096))] * 2, ("i32", (8192,)), ("i32", (8,))]
    args = [tw.like(*one) for one in (*shapes, ("bf16", (8192, 14336)))]
    schedule = gated.bind().schedule_for(*args, target="cuda", arch="sm_90a")
    assert (schedule.staging, schedule.atom.asynchronous) == ("cp_async", True)
    narrow = [tw.like("bf16", (*one.shape[:-1], 4095)) if one.shape[-1] == 4096 else one for one in args]
    schedule = gated.bind().schedule_for(*narrow, target="cuda", arch="sm_90a")
    assert not schedule.atom.asynchronous
