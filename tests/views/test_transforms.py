"""Every transform equals an oracle in NumPy: an array of the visible elements, with 0 for missing ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.errors import LayoutError
from tilewright.symbolic.nodes import Sym
from tilewright.symbolic.rebuilding import substitute
from tilewright.views.transforms import (
    TRANSFORMS,
    AsStrided,
    Bits,
    Broadcast,
    Embed,
    Merge,
    Pad,
    PadTo,
    Permute,
    Repeat,
    Slice,
    Swizzle,
    Tile,
    Transform,
    Unmerge,
)
from tilewright.views.view import View

pytestmark = pytest.mark.in_turns(3)

Array: TypeAlias = np.ndarray[Any, Any]
Step: TypeAlias = tuple[Transform, Callable[[Array], Array]]


def read(view: View, buffer: Array) -> Array:
    """Return the tensor that a view shows, 0 if invalid; check that valid offsets are inside."""
    index = tuple(np.indices(view.shape))
    valid = np.broadcast_to(view.valid_at(index), view.shape)
    offset = np.broadcast_to(view.at(index), view.shape)
    assert view.elems <= buffer.size
    assert np.all((offset[valid] >= 0) & (offset[valid] < view.elems))
    return np.where(valid, buffer[np.where(valid, offset, 0)], 0)


@st.composite
def views(draw: st.DrawFn) -> tuple[View, Array]:
    """Draw a view of a buffer without zeros, with dimensions in any order and perhaps padded strides."""
    shape = [draw(st.integers(1, 6)) for _ in range(draw(st.integers(1, 3)))]
    strides, span = [0] * len(shape), 1
    for dim in draw(st.permutations(range(len(shape)))):
        strides[dim] = span
        span = span * shape[dim] + draw(st.integers(0, 2))
    return View.strided(shape, strides), np.arange(1, span + 1)


def tile(draw: st.DrawFn, shape: tuple[int, ...]) -> Step:
    sizes = [draw(st.integers(1, 4)) for _ in shape]
    at = [draw(st.integers(0, -(-n // s) - 1)) for n, s in zip(shape, sizes, strict=True)]
    whole = [draw(st.booleans()) for _ in shape]

    def oracle(array: Array) -> Array:
        padded = np.pad(array, [(0, 0 if w else s) for s, w in zip(sizes, whole, strict=True)])
        box = [
            slice(None) if w else slice(i * s, i * s + s) for s, i, w in zip(sizes, at, whole, strict=True)
        ]
        return padded[tuple(box)]

    def choose(values: list[int]) -> tuple[int | None, ...]:
        return tuple(None if w else value for value, w in zip(values, whole, strict=True))

    return Tile(choose(sizes), choose(at)), oracle


def box(draw: st.DrawFn, shape: tuple[int, ...]) -> Step:
    at: list[Any] = []
    for extent in shape:
        start = draw(st.integers(0, extent - 1))
        stop = draw(st.integers(start + 1, extent))
        forms = [
            start,
            start - extent,
            (start, stop),
            (start - extent, stop),
            (start, None),
            (None, stop),
            None,
        ]
        at.append(draw(st.sampled_from([*forms[2:], *forms] if stop == extent else forms)))
    if all(isinstance(part, int) for part in at):
        at[0] = None
    python = tuple(slice(None) if p is None else slice(*p) if isinstance(p, tuple) else p for p in at)
    return Slice(tuple(at)), lambda array: array[python]


def pad(draw: st.DrawFn, shape: tuple[int, ...]) -> Step:
    before, after = ([draw(st.integers(0, 2)) for _ in shape] for _ in range(2))
    return Pad(tuple(before), tuple(after)), lambda array: np.pad(
        array, list(zip(before, after, strict=True))
    )


def pad_to(draw: st.DrawFn, shape: tuple[int, ...]) -> Step:
    multiple = [draw(st.integers(1, 4)) for _ in shape]
    return PadTo(tuple(multiple)), lambda array: np.pad(
        array, [(0, -n % m) for n, m in zip(array.shape, multiple, strict=True)]
    )


def unmerge(draw: st.DrawFn, shape: tuple[int, ...]) -> Step:
    dim = draw(st.integers(0, len(shape) - 1))
    inner = draw(st.sampled_from([n for n in range(1, shape[dim] + 1) if shape[dim] % n == 0]))
    lengths = (shape[dim] // inner, inner)
    return Unmerge(dim, lengths), lambda array: array.reshape(*shape[:dim], *lengths, *shape[dim + 1 :])


def merge(draw: st.DrawFn, shape: tuple[int, ...]) -> Step:
    dim = draw(st.integers(0, len(shape) - 1))
    count = draw(st.integers(1, len(shape) - dim))
    joined = (*shape[:dim], math.prod(shape[dim : dim + count]), *shape[dim + count :])
    return Merge(dim, count), lambda array: array.reshape(joined)


def embed(draw: st.DrawFn, shape: tuple[int, ...]) -> Step:
    dim = draw(st.integers(0, len(shape) - 1))
    lengths = (draw(st.integers(1, 4)), draw(st.integers(1, 3)))
    strides = (draw(st.integers(0, 3)), draw(st.integers(-2, 2)))
    offset = draw(st.integers(-1, 3))

    def oracle(array: Array) -> Array:
        out = np.zeros((*shape[:dim], *lengths, *shape[dim + 1 :]), dtype=array.dtype)
        for a in range(lengths[0]):
            for b in range(lengths[1]):
                old = a * strides[0] + b * strides[1] - offset
                if 0 <= old < shape[dim]:
                    np.moveaxis(out, (dim, dim + 1), (0, 1))[a, b] = np.moveaxis(array, dim, 0)[old]
        return out

    return Embed(dim, lengths, strides, offset), oracle


def permute(draw: st.DrawFn, shape: tuple[int, ...]) -> Step:
    order = tuple(draw(st.permutations(range(len(shape)))))
    return Permute(order), lambda array: array.transpose(order)


def broadcast(draw: st.DrawFn, shape: tuple[int, ...]) -> Step:
    dim, extent = draw(st.integers(0, len(shape))), draw(st.integers(1, 3))
    return Broadcast(dim, extent), lambda array: np.repeat(np.expand_dims(array, dim), extent, axis=dim)


def repeat(draw: st.DrawFn, shape: tuple[int, ...]) -> Step:
    dim, count = draw(st.integers(0, len(shape) - 1)), draw(st.integers(1, 3))
    extent = draw(st.integers(1, shape[dim] * count))
    return Repeat(dim, count, extent), lambda array: np.take(
        np.repeat(array, count, axis=dim), range(extent), axis=dim
    )


STEPS = {
    Tile: tile,
    Slice: box,
    Pad: pad,
    PadTo: pad_to,
    Unmerge: unmerge,
    Merge: merge,
    Embed: embed,
    Permute: permute,
    Broadcast: broadcast,
    Repeat: repeat,
}


@st.composite
def drawn(draw: st.DrawFn, kind: type, shape: tuple[int, ...]) -> Step:
    return STEPS[kind](draw, shape)


def test_every_transform_has_an_oracle() -> None:
    assert {*STEPS, Swizzle, AsStrided, Bits} == set(TRANSFORMS)


@pytest.mark.parametrize("kind", STEPS, ids=lambda kind: kind.__name__)
@given(view=views(), data=st.data())
def test_a_transform_shows_what_numpy_shows(
    kind: type, view: tuple[View, Array], data: st.DataObject
) -> None:
    before, buffer = view
    kept = (before.shape, before.offset, before.elems, before.valid)
    transform, oracle = data.draw(drawn(kind, before.shape))
    after = transform.apply(before)
    expected = oracle(read(before, buffer))
    assert after.shape == expected.shape
    assert np.array_equal(read(after, buffer), expected)
    assert (before.shape, before.offset, before.elems, before.valid) == kept


@given(view=views(), data=st.data())
def test_transforms_of_transforms(view: tuple[View, Array], data: st.DataObject) -> None:
    shown, buffer = view
    expected = read(shown, buffer)
    for _ in range(data.draw(st.integers(2, 4))):
        kind = data.draw(st.sampled_from(list(STEPS)))
        transform, oracle = data.draw(drawn(kind, shown.shape))
        shown, expected = transform.apply(shown), oracle(expected)
        if shown.rank > 4 or math.prod(shown.shape) > 5000:
            break
    assert np.array_equal(read(shown, buffer), expected)


@given(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3), st.integers(1, 3))
def test_a_swizzle_is_a_bijection_of_every_block(bits: int, base: int, more: int, blocks: int) -> None:
    swizzle = Swizzle(bits, base, bits + more)
    size = blocks << (base + bits)
    view = swizzle.apply(View.strided((size,), (1,)))
    moved = np.broadcast_to(view.at((np.arange(size),)), (size,))
    assert np.array_equal(np.sort(moved), np.arange(size))
    assert np.array_equal(moved >> (base + bits), np.arange(size) >> (base + bits))
    assert all(swizzle.offset(swizzle.offset(i)) == i for i in range(size))
    assert [swizzle.offset(i) for i in range(size)] == moved.tolist()


@pytest.mark.parametrize("swizzle", [(3, 3, 3), (2, 3, 3), (1, 3, 3), (3, 2, 3), (3, 0, 5)])
def test_swizzles_follow_their_definition(swizzle: tuple[int, int, int]) -> None:
    bits, base, shift = swizzle
    for offset in range(2048):
        picked = (offset >> (base + shift)) & ((1 << bits) - 1)
        assert Swizzle(*swizzle).offset(offset) == offset ^ (picked << base)


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=3),
    st.lists(st.integers(1, 4), min_size=3, max_size=3),
    st.booleans(),
)
def test_the_tiles_of_a_ragged_tensor_cover_each_element_once(
    shape: list[int], tile: list[int], padded: bool
) -> None:
    strides = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
    view = View.strided(shape, strides)
    tile = tile[: len(shape)]
    if padded:
        view = PadTo(tuple(tile)).apply(view)
    counts = np.zeros(math.prod(shape), dtype=int)
    for at in np.ndindex(*(-(-n // t) for n, t in zip(shape, tile, strict=True))):
        part = Tile(tuple(tile), at).apply(view)
        index = tuple(np.indices(part.shape))
        valid = np.broadcast_to(part.valid_at(index), part.shape)
        np.add.at(counts, np.broadcast_to(part.at(index), part.shape)[valid], 1)
    assert (counts == 1).all()


def test_symbolic_tiles_lose_their_predicate_where_tiles_divide() -> None:
    M, K = Sym("M", 1), Sym("K", 32, divisor=32)
    view = View.strided((M, K), (K, 1))
    m, k = Sym("m", 0, None, 1, (M + 127) // 128), Sym("k", 0, None, 1, K // 32)
    part = Tile((128, 32), (m, k)).apply(view)
    assert str(part) == "(128, 32) -> 32*k + (128*m + i0)*K + i1 if 128*m + i0 < M"
    for sizes in ({M: 130, K: 64}, {M: 128, K: 32}):
        for at in [(0, 0), (1, 5), (3, 31)]:
            env = {**sizes, m: 1 if sizes[M] > 128 else 0, k: 0, **dict(zip(part.coords, at, strict=True))}
            assert substitute(part.offset, env) == (at[0] + 128 * env[m]) * sizes[K] + at[1]
            assert substitute(part.valid, env).value == (at[0] + 128 * env[m] < sizes[M])


def test_merging_what_was_unmerged_gives_the_view_back() -> None:
    H, W = Sym("H", 1), Sym("W", 1)
    view = View.strided((H * W * 4,), (1,))
    assert Merge(0, 3).apply(Unmerge(0, (H, W, 4)).apply(view)) == view
    packed = View.strided((H, W, 4), (W * 4, 4, 1))
    merged = Merge(0, 3).apply(packed)
    assert (merged.shape, merged.offset, merged.valid) == (view.shape, view.offset, view.valid)


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (Tile((4,), (0,)), "has rank 1, the tensor has rank 2"),
        (Tile((4, 4), (2, 0)), r"outside \[0, 2\)"),
        (Tile((4, 4), (-1, 0)), r"outside \[0, 2\)"),
        (Tile((4, 0), (0, 0)), "at least 1"),
        (Tile((4, None), (0, 1)), "whole"),
        (Slice((8, None)), r"outside its extent \[0, 8\)"),
        (Slice((-9, None)), r"outside its extent \[0, 8\)"),
        (Slice(((0, 9), None)), r"outside its extent \[0, 8\)"),
        (Slice((1, None), (-1, 4)), r"dimension 4 is none of the 2 dimensions; nearest legal choice: 1"),
        (Slice(((4, 4), None)), "is empty"),
        (Pad((-1, 0), (0, 0)), "Slice makes a tensor smaller"),
        (PadTo((0, 1)), "least is 1"),
        (Unmerge(1, (5, 4)), r"nearest legal lengths: \(4, 4\)"),
        (Unmerge(1, (8, -1)), r"nearest legal lengths: \(8, 2\)"),
        (Unmerge(1, (5, 3)), "pad it to a multiple of 3 first"),
        (Unmerge(2, (4, 4)), "dimensions are 0 to 1"),
        (Merge(1, 2), "dimensions are 0 to 1"),
        (Merge(0, 0), "at least one"),
        (Embed(0, (3, 3), (1,)), "differ in number"),
        (Permute((0, 0)), "not a permutation"),
        (Broadcast(3, 4), "broadcast at dimension 3"),
        (Repeat(0, 0, 8), "the least is 1"),
        (Repeat(0, 4, 33), "nearest legal extent: 32"),
        (Swizzle(3, 5, 3), "nearest: 256"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_what_does_not_fit_is_refused(transform: Transform, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        transform.apply(View.strided((8, 16), (16, 1)))


def test_a_swizzle_that_is_none_is_refused() -> None:
    with pytest.raises(LayoutError, match="shift >= bits"):
        Swizzle(3, 3, 2)


@given(data=st.data())
def test_other_strides_show_what_numpy_shows(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    strides = [data.draw(st.integers(-4, 7)) for _ in lengths]
    ends = [(n - 1) * step for n, step in zip(lengths, strides, strict=True)]
    start = data.draw(st.integers(0, 5)) - sum(end for end in ends if end < 0)
    step = data.draw(st.integers(1, 3))
    count = start + sum(end for end in ends if end > 0) + 1
    buffer = np.arange(1, step * count + 1)
    after = AsStrided(tuple(lengths), tuple(strides), start).apply(View.strided((count,), (step,)))
    whole = np.lib.stride_tricks.as_strided
    steps = [stride * step * buffer.itemsize for stride in strides]
    assert np.array_equal(read(after, buffer), whole(buffer[start * step :], lengths, steps))


def test_other_strides_are_of_one_dimension() -> None:
    with pytest.raises(LayoutError, match="as_strided of a tensor of rank 2"):
        AsStrided((2,), (1,)).apply(View.strided((4, 4), (4, 1)))
    with pytest.raises(LayoutError, match="differ in number"):
        AsStrided((2, 2), (1,)).apply(View.strided((4,), (1,)))
