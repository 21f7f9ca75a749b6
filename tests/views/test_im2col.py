"""The matrix view of a convolution's input equals a gather in plain loops."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.errors import LayoutError
from tilewright.symbolic.nodes import Sym
from tilewright.symbolic.rebuilding import evaluate, substitute
from tilewright.views.im2col import Geometry, im2col
from tilewright.views.transforms import Merge
from tilewright.views.view import View


def read(view: View, buffer: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the tensor that a view shows, with 0 for invalid elements."""
    index = np.indices(view.shape)
    valid = np.broadcast_to(view.valid_at(tuple(index)), view.shape)
    offset = np.broadcast_to(view.at(tuple(index)), view.shape)
    return np.where(valid, buffer[np.where(valid, offset, 0)], 0)


def naive(
    image: np.ndarray[Any, Any],
    taps: list[int],
    stride: list[int],
    dilation: list[int],
    padding: list[tuple[int, int]],
) -> np.ndarray[Any, Any]:
    """Gather an image (G, N, spatial..., C) into (G, N*outputs, taps*C)."""
    groups, batch, *extents, channels = image.shape
    padded = np.pad(image, [(0, 0), (0, 0), *padding, (0, 0)])
    outputs = [
        (n + sum(p) - d * (t - 1) - 1) // s + 1
        for n, t, s, d, p in zip(extents, taps, stride, dilation, padding, strict=True)
    ]
    rows = []
    for n in range(batch):
        for out in itertools.product(*map(range, outputs)):
            row = [
                padded[:, n, *(o * s + t * d for o, s, t, d in zip(out, stride, tap, dilation, strict=True))]
                for tap in itertools.product(*map(range, taps))
            ]
            rows.append(np.concatenate(row, axis=-1))
    return np.stack(rows, axis=1).reshape(groups, -1, int(np.prod(taps)) * channels)


@st.composite
def convolutions(draw: st.DrawFn) -> dict[str, Any]:
    rank = draw(st.integers(1, 3))

    def each(low: int, high: int) -> list[int]:
        return [draw(st.integers(low, high)) for _ in range(rank)]

    taps, stride, dilation = each(1, 3), each(1, 3), each(1, 2)
    padding = [(draw(st.integers(0, 2)), draw(st.integers(0, 2))) for _ in range(rank)]
    least = [max(1, d * (t - 1) + 1 - sum(p)) for t, d, p in zip(taps, dilation, padding, strict=True)]
    extents = [n + draw(st.integers(0, 3)) for n in least]
    return {
        "geometry": (taps, stride, dilation, padding),
        "shape": (draw(st.integers(1, 2)), draw(st.integers(1, 2)), *extents, draw(st.integers(1, 3))),
        "order": draw(st.permutations(range(rank + 3))),
        "groups": draw(st.sampled_from(["none", "dimension", "channels"])),
    }


@settings(max_examples=60)
@given(convolutions())
def test_im2col_is_the_naive_gather(case: dict[str, Any]) -> None:
    (taps, stride, dilation, padding), shape = case["geometry"], case["shape"]
    image = np.arange(1, np.prod(shape) + 1).reshape(shape)  # (G, N, spatial..., C)
    rank = len(taps)
    geometry = {"filter": taps, "stride": stride, "dilation": dilation, "padding": padding}
    expected = naive(image, taps, stride, dilation, padding)
    if case["groups"] == "dimension":
        stored, order = image, list(case["order"])
        place = {"batch": order.index(1), "channel": order.index(rank + 2), "group": order.index(0)}
        spatial = [order.index(2 + at) for at in range(rank)]
    else:
        # (N, spatial..., G*C): the groups are neighbouring runs of channels.
        stored = np.moveaxis(image, 0, -2).reshape(*shape[1:-1], shape[0] * shape[-1])
        order = [at - 1 for at in case["order"] if at != 0]
        place = {"batch": order.index(0), "channel": order.index(rank + 1), "groups": shape[0]}
        spatial = [order.index(1 + at) for at in range(rank)]
        if case["groups"] == "none":
            place["groups"] = 1
            expected = naive(stored[None], taps, stride, dilation, padding)[0]
        elif shape[0] == 1:
            expected = expected[0]
    buffer = np.ascontiguousarray(stored.transpose(order))
    strides = [step // buffer.itemsize for step in buffer.strides]
    view = View.strided(buffer.shape, strides)
    matrix = im2col(view, spatial=spatial, **place, **geometry)
    assert matrix.shape == expected.shape
    assert np.array_equal(read(matrix, buffer.ravel()), expected)


@settings(max_examples=100)
@given(convolutions(), st.lists(st.integers(-4, 2), min_size=3, max_size=3))
def test_a_filter_that_is_larger_than_the_padded_image_is_refused(case: dict[str, Any], more: Any) -> None:
    """It is refused statically, and by conditions on sizes of the launch; the suggested padding fits."""
    (taps, stride, dilation, padding), rank = case["geometry"], len(case["geometry"][0])
    reach = [d * (t - 1) + 1 for t, d in zip(taps, dilation, strict=True)]
    extents = [max(r + n, 0) for r, n in zip(reach, more, strict=False)]
    missing = [max(r - n - sum(p), 0) for r, n, p in zip(reach, extents, padding, strict=True)]
    geometry = {"filter": taps, "stride": stride, "dilation": dilation}
    spatial = range(1, 1 + rank)
    sizes = [Sym(f"n{at}", 0) for at in range(rank)]
    known = dict(zip(sizes, extents, strict=True))
    needed = Geometry(spatial, padding=padding, **geometry).requirements((1, *sizes, 1))
    broken = [each for each in needed if not evaluate(each.condition, known)]
    assert len(broken) == sum(n > 0 for n in missing)

    def strided(padding: Any) -> View:
        view = View.strided((1, *extents, 1), [0] * (rank + 2))
        return im2col(view, spatial=spatial, padding=padding, **geometry)

    if not any(missing):
        assert min(strided(padding).shape) >= 1
        return
    with pytest.raises(LayoutError) as refused:
        strided(padding)
    said = broken[0].message.format(*(evaluate(value, known) for value in broken[0].values))
    assert str(refused.value) == said
    first = next(at for at, n in enumerate(missing) if n)
    assert said.endswith(f"nearest legal padding: {sum(padding[first]) + missing[first]} in all")
    assert f"a filter of {taps[first]} with dilation {dilation[first]} spans {reach[first]} elements" in said
    enough = [(before, after + n) for (before, after), n in zip(padding, missing, strict=True)]
    assert min(strided(enough).shape) >= 1


def test_the_example_of_composable_kernel() -> None:
    """NDHWGC with 4 groups, 32 images, 64 channels, a 3x3x3 filter: 31360 x 1728 in all."""
    shape = (32, 9, 9, 7, 4, 64)
    strides = [int(np.prod(shape[at + 1 :])) for at in range(6)]
    matrix = im2col(View.strided(shape, strides), spatial=(1, 2, 3), filter=(3, 3, 3), group=4)
    assert matrix.shape == (4, 32 * 7 * 7 * 5, 27 * 64)
    assert Merge(0, 2).apply(matrix).shape == (31360, 1728)
    assert matrix.vector_width(2) == 16


def test_sizes_known_at_run_time() -> None:
    N, H = Sym("N", 1), Sym("H", 3)
    view = View.strided((N, H, 6, 4), (H * 24, 24, 4, 1))
    matrix = im2col(view, spatial=(1, 2), filter=(3, 3), padding=1)
    assert matrix.vector_width(1) == 4
    sizes = {N: 2, H: 5}
    static = im2col(View.strided((2, 5, 6, 4), (120, 24, 4, 1)), spatial=(1, 2), filter=(3, 3), padding=1)
    assert substitute(matrix.shape[0], sizes) == static.shape[0] == 2 * 5 * 6
    for row, column in [(0, 0), (17, 35), (59, 4), (30, 19)]:
        at = {**sizes, **dict(zip(matrix.coords, (row, column), strict=True))}
        assert substitute(matrix.offset, at) == static.at((row, column))
        assert substitute(matrix.valid, at).value == static.valid_at((row, column))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"filter": (3,)}, "filter"),
        ({"filter": (9, 9)}, "nearest legal padding: 3 in all"),
        ({"padding": -1}, "padding"),
        ({"stride": 0}, "stride"),
        ({"groups": 3}, "nearest legal choice: groups=2"),
        ({"spatial": (1, 1)}, "do not name each"),
        ({"spatial": (5, 6)}, "do not name each"),
    ],
)
def test_bad_calls_are_refused(change: dict[str, Any], message: str) -> None:
    view = View.strided((2, 6, 6, 4), (144, 24, 4, 1))
    with pytest.raises(LayoutError, match=message):
        im2col(view, **{"spatial": (1, 2), "filter": (3, 3), **change})
