"""Distributions: each coordinate has one owner, the right thread, in the right order."""

from __future__ import annotations

import contextlib
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.errors import LayoutError
from tilewright.symbolic.nodes import Sym
from tilewright.symbolic.rebuilding import evaluate
from tilewright.threads.distribution import Distribution, Mode, blocked, raked, registers


@st.composite
def deals(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int]:
    rank = draw(st.integers(1, 3))
    threads = tuple(draw(st.sampled_from([1, 2, 3, 4])) for _ in range(rank))
    tile = tuple(n * draw(st.sampled_from([1, 2, 4])) for n in threads)
    return tile, threads, tuple(draw(st.permutations(range(rank)))), draw(st.integers(0, rank - 1))


@given(deals())
def test_blocked_deals_every_element_once_in_chunks(
    deal: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int],
) -> None:
    tile, threads, order, vector_dim = deal
    made = blocked(tile, threads, order, vector_dim)
    assert made.is_exact
    assert made.copies == 1
    assert made.size_threads * made.size_values == np.prod(tile)
    chunk = [n // t for n, t in zip(tile, threads, strict=True)]
    for at in itertools.product(*map(range, threads)):
        thread, times = 0, 1
        for dim in order:
            thread, times = thread + at[dim] * times, times * threads[dim]
        held = [made.coordinate(thread, value) for value in range(made.size_values)]
        box = itertools.product(*(range(a * c, a * c + c) for a, c in zip(at, chunk, strict=True)))
        assert sorted(held) == sorted(box)
        for value in range(chunk[vector_dim]):
            assert held[value][vector_dim] - held[0][vector_dim] == value
    assert chunk[vector_dim] == 1 or made.vector() == (vector_dim, chunk[vector_dim])


@st.composite
def distributions(draw: st.DrawFn) -> Distribution:
    shape = tuple(draw(st.sampled_from([2, 4])) for _ in range(2))
    modes = [
        Mode(
            draw(st.sampled_from([1, 2, 4])),
            draw(st.sampled_from([0, 1, None])),
            draw(st.sampled_from([1, 2])),
        )
        for _ in range(draw(st.integers(1, 4)))
    ]
    cut = draw(st.integers(0, len(modes)))
    return Distribution(shape, tuple(modes[:cut]), tuple(modes[cut:]))


@given(distributions())
def test_exactness_is_counting(made: Distribution) -> None:
    counts = dict.fromkeys(itertools.product(*map(range, made.shape)), 0)
    outside = 0
    for thread, value in itertools.product(range(made.size_threads), range(made.size_values)):
        at = made.coordinate(thread, value)
        if at in counts:
            counts[at] += 1
        else:
            outside += 1
    assert made.is_exact == (outside == 0 and set(counts.values()) == {made.copies})


@given(distributions())
def test_table_and_symbolic_coordinates_agree(made: Distribution) -> None:
    thread, value = Sym("t", 0, made.size_threads - 1), Sym("v", 0, made.size_values - 1)
    symbolic = made.coordinate(thread, value)
    assert made.table.shape == (made.size_threads, made.size_values, 2)
    for t, v in itertools.product(range(made.size_threads), range(made.size_values)):
        at = made.coordinate(t, v)
        assert tuple(made.table[t, v]) == at
        assert tuple(evaluate(part, {thread: t, value: v}) for part in symbolic) == at


@given(distributions())
def test_consecutive_values_are_neighbours(made: Distribution) -> None:
    dim, width = made.vector()
    assert made.size_values % width == 0
    for thread in range(made.size_threads):
        for first in range(0, made.size_values, width):
            held = made.table[thread, first : first + width]
            assert (held[:, dim] == held[0, dim] + np.arange(width)).all()
            assert (np.delete(held, dim, axis=1) == np.delete(held[:1], dim, axis=1)).all()


def test_replicated_threads_hold_copies() -> None:
    made = Distribution((4,), (Mode(4, 0, 1), Mode(2, None, 0)), ())
    assert (made.is_exact, made.copies, made.size_threads) == (True, 2, 8)
    assert [made.coordinate(t, 0) for t in (1, 5)] == [(1,), (1,)]


def test_the_wrappers_thread_layouts() -> None:
    """Tile 256x32 on (64,4):(4,1): four threads share a row, with eight elements each."""
    made = blocked((256, 32), (64, 4), order=(1, 0))
    assert made.coordinate(0, 0) == (0, 0)
    assert made.coordinate(1, 0) == (0, 8)
    assert made.coordinate(4, 0) == (4, 0)
    assert made.coordinate(255, 31) == (255, 31)
    assert made.vector() == (1, 8)


def test_what_does_not_divide_is_refused() -> None:
    with pytest.raises(LayoutError, match="nearest legal number of threads: 16"):
        blocked((32, 48), (1, 20), order=(1, 0))
    with pytest.raises(LayoutError, match="differ in rank"):
        blocked((32, 48), (4,), order=(0,))


ATOM = Distribution(  # the accumulator of mma.m16n8, four times along N
    (16, 32), (Mode(4, 1, 2), Mode(8, 0, 1)), (Mode(2, 1, 1), Mode(2, 0, 8), Mode(4, 1, 8))
)


@given(st.sampled_from([ATOM, blocked((8, 32), (4, 4), (1, 0)), raked((16, 64), (4, 8), 4, 1)]), st.data())
def test_a_slice_holds_what_its_threads_held_in_the_box(whole: Distribution, data: st.DataObject) -> None:
    start = [data.draw(st.integers(0, extent - 1)) for extent in whole.shape]
    shape = [data.draw(st.integers(1, n - at)) for n, at in zip(whole.shape, start, strict=True)]
    held = [
        {
            tuple(at)
            for at in row.tolist()
            if all(a <= c < a + n for a, c, n in zip(start, at, shape, strict=True))
        }
        for row in whole.table
    ]
    if (part := _sliced(whole, start, shape)) is None:
        return
    assert part.is_exact
    for thread, row in enumerate(part.table.tolist()):
        assert {tuple(c + a for c, a in zip(at, start, strict=True)) for at in row} == held[thread]
    chosen = registers(whole, part, start)
    assert chosen is not None
    assert (whole.table[:, list(chosen)] == part.table + np.array(start)).all()


def _sliced(whole: Distribution, start: list[int], shape: list[int]) -> Distribution | None:
    """Return the slice, or None if it is refused; an aligned box of an offered extent must be legal."""
    nearest = tuple(whole._nearest(dim, extent) for dim, extent in enumerate(shape))
    if tuple(shape) == nearest and all(at % extent == 0 for at, extent in zip(start, shape, strict=True)):
        return whole.slice(start, shape)
    with contextlib.suppress(LayoutError):
        return whole.slice(start, shape)
    return None


def test_slices_of_an_accumulator() -> None:
    part = ATOM.slice((0, 8), (16, 16))
    assert registers(ATOM, part, (0, 8)) == tuple(range(4, 12))
    assert registers(ATOM, ATOM.slice((8, 0), (8, 32)), (8, 0)) == (2, 3, 6, 7, 10, 11, 14, 15)
    with pytest.raises(LayoutError, match=r"nearest legal choice: boxes of \(8, 8\)"):
        ATOM.slice((0, 0), (4, 4))
    with pytest.raises(LayoutError, match="not inside a tile"):
        ATOM.slice((0, 24), (16, 16))


def test_registers_of_another_order() -> None:
    """The accumulator of two m16n8 tiles is the operand A of one m16n8k16, register by register."""
    pair = ATOM.slice((0, 0), (16, 16))
    operand = Distribution((16, 16), pair.threads, (Mode(2, 1, 1), Mode(2, 0, 8), Mode(2, 1, 8)))
    other = Distribution((16, 16), pair.threads, (Mode(2, 1, 1), Mode(2, 1, 8), Mode(2, 0, 8)))
    assert registers(pair, operand, (0, 0)) == tuple(range(8))
    assert registers(pair, other, (0, 0)) == (0, 1, 4, 5, 2, 3, 6, 7)
    assert registers(pair, blocked((16, 16), (8, 4), (1, 0)), (0, 0)) is None
    assert registers(pair, blocked((16, 16), (4, 4), (1, 0)), (0, 0)) is None


@pytest.mark.parametrize(
    ("tile", "threads", "vector", "along", "nearest"),
    [
        ((64, 60), (8, 4), 8, 1, "vector=1"),
        ((64, 48), (8, 4), 8, 1, "vector=4"),
        ((64, 48), (8, 5), 8, 1, "3 threads"),
        ((60, 64), (8, 4), 8, 1, "6 threads"),
        ((64, 7), (8, 4), 2, 1, "1 thread with vector=1"),
    ],
)
def test_rakes_that_do_not_fit_name_what_does(tile, threads, vector, along, nearest) -> None:
    with pytest.raises(LayoutError, match="nearest legal choice") as raised:
        raked(tile, threads, vector, along)
    assert str(raised.value).endswith(f"nearest legal choice: {nearest}")
    dim = int(str(raised.value).split("of dimension ")[1][0])
    fewer = int(nearest.split()[0]) if "thread" in nearest else threads[dim]
    narrower = int(nearest.split("=")[1]) if "=" in nearest else vector
    made = raked(tile, [fewer if d == dim else n for d, n in enumerate(threads)], narrower, along)
    assert made.is_exact


@pytest.mark.parametrize("order", [(1, 1), (0, 2), (-1, 0)])
def test_an_order_that_is_no_permutation_is_refused(order: tuple[int, int]) -> None:
    with pytest.raises(
        LayoutError, match=r"nearest legal choice: order=\(0, 1\), the first dimension fastest"
    ):
        blocked((32, 64), (4, 4), order=order)


@pytest.mark.parametrize(("shape", "nearest"), [((16, 4), (16, 8)), ((8, 1), (16, 1)), ((2, 2), (16, 8))])
def test_a_projection_keeps_an_extent_or_makes_it_one(shape, nearest) -> None:
    atom = Distribution((16, 8), (Mode(4, 1, 2), Mode(8, 0, 1)), (Mode(2, 1, 1), Mode(2, 0, 8)))
    with pytest.raises(LayoutError, match="is not a projection of a tile") as raised:
        atom.projected(shape)
    assert str(raised.value).endswith(f"nearest legal choice: {nearest}")
    assert atom.projected(nearest).is_exact


def test_threads_are_numbered_along_the_first_dimension_first_unless_asked_otherwise() -> None:
    """A compact layout numbers threads in this order, like a tuple of counts elsewhere."""
    assert blocked((8, 12, 6), (2, 3, 6)) == blocked((8, 12, 6), (2, 3, 6), order=(0, 1, 2))
    assert blocked((8, 12), (2, 3)).coordinate(1, 0) == (4, 0)
    assert blocked((8, 12), (2, 3), order=(1, 0)).coordinate(1, 0) == (0, 4)
