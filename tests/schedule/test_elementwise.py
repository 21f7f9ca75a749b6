"""Flows without products and loops: their accesses, their refusals, and every schedule of a small one."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from tests.problems.elementwise_problems import KERNELS, added_in_order, added_to_a_vector, line, scaled

import tilewright as tw
from tilewright.checking.flows import compare_flow
from tilewright.runtime import workers
from tilewright.schedule.folds import kept

F16 = {"A": ("f16", 512, 1024), "b": ("f32", 1024), "r": ("f32", 512), "C": ("f16", 512, 1024)}


def widths(made: Any) -> list[int]:
    """Bytes of each access to global memory in a kernel's text."""
    return [int(found) for found in re.findall(r"(\d+) bytes at a time", made.source)]


def as_said(message: str) -> str:
    """A pattern of a message, with its nearest legal choice after the semicolon."""
    what, _, nearest = message.rpartition("; ")
    return re.escape(f"{what}\n  nearest legal choice: {nearest}" if what else nearest)


@pytest.mark.parametrize("arch", ["sm_90a", "gfx942"])
def test_aligned_arrays_are_accessed_by_16_bytes(arch: str) -> None:
    target = "cuda" if arch.startswith("sm") else "hip"
    given = {name: tw.like(*of) for name, of in F16.items()}
    made = scaled.compile(**given, target=target, arch=arch)
    assert sorted(widths(made))[1:] == [16, 16, 16]  # but one element of r for each row of a lane
    assert made.resources.get("spill_store_bytes", 0) == 0


def test_a_ragged_line_has_wide_accesses_except_in_its_last_tile() -> None:
    made = line.compile(**{name: tw.like("f16", 100_003) for name in "xyz"}, target="cuda", arch="sm_90a")
    inside, last = made.source.split("else {")
    text = re.compile(r"(\d+) bytes at a time")
    assert set(text.findall(inside)) == {"16"}
    assert set(text.findall(last)) == {"2"}


def test_unaligned_rows_are_accessed_by_neighbouring_lanes() -> None:
    given = {name: tw.like(*(n + 1 if isinstance(n, int) else n for n in of)) for name, of in F16.items()}
    schedule = scaled.bind().schedule_for(**given, target="cuda", arch="sm_90a")
    assert schedule.atom.shape == (1, 32, 1)


def test_columns_are_the_dimension_along_which_arrays_are_contiguous() -> None:
    given = {"A": tw.like("f32", 64, 48), "C": tw.like("f32", 48, 64)}
    by_rows = KERNELS["turned"].bind().schedule_for(**given, target="cuda", arch="sm_90a")
    assert not by_rows.swap_ab
    given = {"A": tw.like("f32", 64, 48), "C": tw.like("f32", 48, 64, strides=(1, 48))}
    assert KERNELS["turned"].bind().schedule_for(**given, target="cuda", arch="sm_90a").swap_ab


SCHEDULES = (
    tw.Schedule(tw.atoms.fma("f32", lanes=(4, 8), each=(2, 4)), (16, 64, 1), (2, 2)),
    tw.Schedule(tw.atoms.fma("f32", lanes=(1, 32), each=(1, 1)), (3, 96, 1), (1, 3)),
    tw.Schedule(tw.atoms.fma("f32", lanes=(32, 1), each=(1, 8)), (64, 8, 1), (2, 1), swap_ab=True),
)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules_of_an_author(schedule: tw.Schedule) -> None:
    rng = np.random.default_rng(3)
    given = {name: rng.standard_normal(shape, np.float32) for name, shape in (("A", (37, 101)), ("b", 101))}
    given |= {"r": rng.standard_normal(37, np.float32), "C": np.full((37, 101), np.nan, np.float32)}
    ran = scaled.bind(schedule=schedule)(**given, alpha=1.5, target="reference")
    assert (ran.target, ran.schedule) == ("reference", schedule)
    found = compare_flow(ran.flow, {"C": given["C"]}, given, {"alpha": 1.5})
    assert found.ok, found


REFUSED = {
    "stages": ({"stages": 2}, "stages=2 for C, which has no product; stages=1"),
    "atom": ({"atom": tw.atoms.MMA_F16}, "for C, which has no product; tw.atoms.fma"),
    "lanes": ({"atom": tw.atoms.fma("f32", lanes=(8, 8))}, "sm_90a has 32"),
    "tile": (
        {"tile": (4, 33, 1)},
        "is no multiple of (1, 32), and a depth of 1; tile=(4, 64, 1)",
    ),
}


@pytest.mark.parametrize("field", REFUSED)
def test_refused_schedules(field: str) -> None:
    change, message = REFUSED[field]
    known = {"atom": tw.atoms.fma("f32", lanes=(1, 32)), "tile": (4, 64, 1)}
    given = {name: tw.like(*of) for name, of in F16.items()}
    with pytest.raises(tw.errors.ScheduleError, match=as_said(message)):
        scaled.bind(schedule=tw.Schedule(**(known | change))).compile(**given, target="cuda", arch="sm_90a")


def test_a_single_row_has_one_row_of_lanes_and_no_other_order() -> None:
    given = {name: tw.like("f32", 1000) for name in "xyz"}
    for change, message in (
        (
            {"tile": (2, 64, 1)},
            "one tiled dimension, which is a single row; tile=(1, 128, 1)",
        ),
        (
            {"tile": (1, 64, 1), "swap_ab": True},
            "swap_ab=True with one tiled dimension; swap_ab=False",
        ),
    ):
        schedule = tw.Schedule(tw.atoms.fma("f32", lanes=(1, 32)), **change)
        with pytest.raises(tw.errors.ScheduleError, match=as_said(message)):
            line.bind(schedule=schedule).compile(**given, target="cuda", arch="sm_90a")


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0)])
def test_nothing_is_stored_to_arrays_without_elements(target: str, shape: tuple[int, int]) -> None:
    given = [np.ones(extents, np.float32) for extents in (shape, shape[1], shape[0], shape)]
    assert scaled(*given, 2.0, target=target).target == target


def test_lanes_of_amd_exchange_elements_of_one_byte() -> None:
    """A row is reduced by several lanes, in the dtype of its elements."""

    @tw.kernel(A="M N", least="M")
    def least_of_rows(A, least):
        for m in tw.tiles(least):
            least[m] = A[m].min(axis=1)

    made = least_of_rows.compile(tw.like("i8", 64, 4096), tw.like("i8", 64), target="hip", arch="gfx942")
    assert "exchanged(" in made.source


def test_three_tiled_dimensions_are_refused() -> None:
    @tw.kernel(A="L M N", C="L M N")
    def cube(A, C):
        for i, m, n in tw.tiles(C, batch=0):
            C[i, m, n] = A[i, m, n] + 1

    a = np.zeros((2, 3, 4), np.float32)
    with pytest.raises(tw.errors.TraceError, match=r"nearest legal choice: batch=1 of tw\.tiles"):
        cube(a, a.copy(), target="cpu")


def test_transpositions_pass_through_shared_memory() -> None:
    given = {"A": tw.like("f16", 1024, 512), "C": tw.like("f16", 512, 1024)}
    made = KERNELS["turned"].compile(**given, target="cuda", arch="sm_90a")
    assert made.schedule.tile == (64, 64, 1)
    assert re.findall(r"(?:tile -> rA|-> tile_\d), (\d+) bytes", made.source) == ["16", "16"]


@pytest.mark.parametrize("kinds", [("i8", "f32", "f32", "f32"), ("i64", "f64", "f32", "i8")], ids="-".join)
@pytest.mark.parametrize(("target", "arch"), [("hip", "gfx942"), ("hip", "gfx1100"), ("cuda", "sm_80")])
def test_transpositions_of_many_arrays_fit_in_shared_memory(
    kinds: tuple[str, ...], target: str, arch: str
) -> None:
    """Arrays of one dtype share a tile of shared memory, also in the last tile of ragged rows."""

    @tw.kernel(S="N M", T="N M", U="N M", V="N M", X="M N", Y="M N", Z="M N", C="M N")
    def sums(S, T, U, V, X, Y, Z, C):
        for m, n in tw.tiles(C):
            turned = (one[n, m].T.to(tw.f32) for one in (S, T, U, V))
            C[m, n] = sum(turned, X[m, n].to(tw.f32) + Y[m, n] + Z[m, n])

    rng = np.random.default_rng(1)
    turned = [rng.integers(-3, 4, (67, 131)).astype(tw.dtype(one).numpy) for one in kinds]
    x, c = rng.integers(-3, 4, (131, 67)).astype(np.int8), np.full((131, 67), np.nan, np.float32)
    given = *turned, x, x.astype(np.float32), x.astype(np.float32), c
    chosen = sums.bind().schedule_for(*given, target=target, arch=arch)
    assert not chosen.swap_ab
    made = sums.bind().under(chosen)
    assert made.compile(*given, target=target, arch=arch).arch == arch
    assert made(*given, target="cpu").target == "cpu"
    assert (c == sum(turned).T + 3.0 * x).all()


def test_reductions_without_a_value_for_each_row_are_refused() -> None:
    @tw.kernel(A="M N", C="M N")
    def over_a_whole_column(A, C):
        for m, n in tw.tiles(C):
            C[m, n] = A[m, n] / A[:, n].sum(axis=0)

    @tw.kernel(x="N", y="N")
    def softmax_of_a_vector(x, y):
        for n in tw.tiles(y):
            y[n] = tw.softmax(x[n])

    @tw.kernel(A="M N", rows="M", columns="N")
    def both(A, rows, columns):
        for m, n in tw.tiles(A):
            rows[m] = A[m, n].sum(axis=1)
            columns[n] = A[m, n].sum(axis=0)

    A, x, y = np.ones((5, 7), np.float32), np.ones(7, np.float32), np.ones(5, np.float32)
    for kernel, given, match in (
        (
            over_a_whole_column,
            (A, A.copy()),
            r"for each of \(n\), .* one for each m; nearest .*sum\(axis=0\)",
        ),
        (
            softmax_of_a_vector,
            (x, x.copy()),
            r"max along n is one value.*x\.unmerge\(0, \(1, x\.shape\[0\]\)\)",
        ),
        (both, (A, y, x), "a kernel for rows and one for columns"),
    ):
        with pytest.raises(tw.errors.TraceError, match=match):
            kernel(*given, target="cpu")


def test_a_vector_is_normalised_as_a_view_with_one_row() -> None:
    @tw.kernel(x="N", y="N")
    def softmax_of_a_row(x, y):
        row, result = (one.unmerge(0, (1, x.shape[0])) for one in (x, y))
        for m, n in tw.tiles(result):
            result[m, n] = tw.softmax(row[m, n])

    x = np.random.default_rng(0).standard_normal(333).astype(np.float32)
    y = np.full_like(x, np.nan)
    softmax_of_a_row(x, y, target="cpu")
    power = np.exp(x.astype(np.float64))
    assert np.allclose(y, power / power.sum(), rtol=1e-5, atol=0)


def test_rows_that_are_added_in_order_have_the_same_bits_among_other_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And with other numbers of threads, wherever the list has their contributions."""
    rng = np.random.default_rng(0)
    counts = np.bincount(rng.integers(0, 40, 890), minlength=40)
    given = {"A": rng.standard_normal((900, 130), np.float32), "weight": rng.standard_normal(900, np.float32)}
    given |= {"order": rng.permutation(900), "begins": np.cumsum(counts) - counts, "ends": np.cumsum(counts)}
    old, made = rng.standard_normal((40, 130), np.float32), []
    for threads, shift, turn in ((1, 0, 1), (3, 0, 1), (2, 5, -1)):
        with monkeypatch.context() as patch:
            pool = workers._Shared()
            patch.setenv("TILEWRIGHT_THREADS", str(threads))
            patch.setattr(workers, "_shared", pool)
            patch.setattr(workers, "INLINE_NS", 0)  # even a short launch asks for the threads
            order = np.roll(given["order"], shift)  # whose last 10 elements are added to no row
            moved = {name: (given[name] + shift)[::turn].copy() for name in ("begins", "ends")}
            made.append(old[::turn].copy())
            ran = added_in_order(**{**given, **moved, "order": order}, C=made[-1], target="cpu")
            assert (ran.target, pool.threads) == ("cpu", threads)
            pool.close()
    assert made[0].tobytes() == made[1].tobytes() == made[2][::-1].tobytes()
    terms = given["A"].astype(np.float64) * given["weight"][:, None]
    right, sizes, rows = old.astype(np.float64), np.abs(old), np.repeat(np.arange(40), counts)
    np.add.at(right, rows, terms[given["order"][:890]])
    np.add.at(sizes, rows, np.abs(terms[given["order"][:890]]))
    assert (np.abs(made[0] - right) <= (counts.max() + 2) * tw.f32.unit_roundoff * sizes).all()


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_bad_bounds_of_a_list_are_those_of_a_slice_without_negative_numbers(target: str) -> None:
    """Bounds beyond the list are cut, and a row whose begin is not before its end has no contributions."""
    rng, far = np.random.default_rng(1), 2**63 - 1
    begins = np.array([7, -3, 4, 2, 5, 12, -9, 1, -far, far, 0])
    ends = np.array([9, 2, 1, 2, 99, 15, -2, far, 3, -far, 0])
    A, weight = rng.standard_normal((9, 37), np.float32), rng.standard_normal(9, np.float32)
    order, C = rng.permutation(9), rng.standard_normal((11, 37), np.float32)
    exact = C.astype(np.float64)
    for t, part in enumerate(map(slice, begins.clip(0, 9), ends.clip(0, 9))):
        exact[t] += weight[order[part]].astype(np.float64) @ A[order[part]]
    assert added_in_order(A, order, begins, ends, weight, C, target=target).target == target
    sizes = abs(exact) + abs(C) + np.abs(weight) @ np.abs(A)
    assert (np.abs(C - exact) <= 11 * tw.f32.unit_roundoff * sizes).all()
    with pytest.raises(
        tw.errors.TraceError, match="and begins is u64; nearest legal choice: a whole array of i32"
    ):
        added_in_order(A, order, begins.astype(np.uint64), ends, weight, C, target=target)


def test_the_checker_finds_a_lane_that_stores_before_others_have_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a, y = np.ones((20, 70), np.float32), np.ones(20, np.float32)
    kernel = added_to_a_vector.bind()
    assert not kernel.check(a, y.copy()).findings

    monkeypatch.setattr(kept, "meet", lambda schedule: None)
    kernel.forget()
    try:
        assert kernel.check(a, y.copy()).findings
    finally:
        kernel.forget()


@tw.kernel(A="M N", v="M", tau=tw.f32)
def reflected(A, v, tau):
    """A Householder update in place, ``A -= tau v (v^T A)``."""
    for m, n in tw.tiles(A):
        row = (A[m, n] * v[m][:, None]).sum(axis=0)
        A[m, n] = A[m, n] - tau * v[m][:, None] * row


@tw.kernel(C="M N", f="M", b="N", g="N", eps=tw.f32)
def sinkhorn(C, f, b, g, eps):
    for m, n in tw.tiles(C):
        s = (f[m][:, None] - C[m, n]) / eps
        top = s.max(axis=0)
        g[n] = eps * (tw.log(b[n]) - top - tw.log(tw.exp(s - top).sum(axis=0)))


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("kernel", [reflected, sinkhorn], ids=["reflected", "sinkhorn"])
def test_columns_with_a_factor_for_each_row_are_loaded_in_whole_sectors(kernel: Any, dtype: str) -> None:
    """A vector along the reduced dimension does not turn the tile: lanes load neighbouring columns."""
    vectors = (tw.like(dtype, 4096), tw.like("f32", 4096), tw.like("f32", 4096))
    given = tw.like("f32", 4096, 4096), *(vectors[:1] if kernel is reflected else vectors), 0.5
    made = kernel.compile(*given, target="cuda", arch="sm_90a")
    assert made.resources["spill_store_bytes"] == 0
    down, columns = made.schedule.warps[0], made.schedule.tile[0]
    lanes = made.schedule.atom.shape[0] // 4
    assert lanes >= 2, "two lanes with 16 bytes each load a sector"
    assert made.schedule.is_split or 4096 // columns >= 132
    assert columns == 4 * lanes * down


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("shape", [(37, 13), (1, 1), (0, 3), (3, 0), (300, 44), (70, 130)])
@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_reflections_in_place(dtype: str, shape: tuple[int, int], target: str) -> None:
    rng = np.random.default_rng(3)
    a, v = rng.standard_normal(shape, np.float32), rng.standard_normal(shape[0])
    v = v.astype(tw.dtype(dtype).numbers)
    found, wide, factor = a.copy(), a.astype(np.float64), v.astype(np.float64)
    bound = reflected.bind()
    if target == "reference":
        bound = reflected.bind(schedule=bound.schedule_for(found, v, 0.5, target="cuda", arch="sm_90a"))
    bound(found, v, 0.5, target=target)
    exact = wide - 0.5 * np.outer(factor, factor @ wide)
    sizes = np.abs(wide) + 0.5 * np.outer(np.abs(factor), np.abs(factor) @ np.abs(wide))
    assert (np.abs(found - exact) <= (shape[0] + 5) * tw.f32.unit_roundoff * sizes).all()
