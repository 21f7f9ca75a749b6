"""`tw.col2im`: every element against a loop over positions and taps in NumPy, on ragged shapes."""

from __future__ import annotations

import itertools
import math
import runpy
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest

import tilewright as tw
from tilewright.ops.col2im import MOST_CHANNELS, SUMS, TILE, Blocks, dense_strides, summing
from tilewright.runtime.arrays import describe
from tilewright.runtime.kernel import Bound
from tilewright.views.im2col import Geometry

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "05_im2col.py"))
UNIT = {tw.f16: 2.0**-11, tw.bf16: 2.0**-8, tw.f32: 2.0**-24, tw.f64: 2.0**-53}


class Problem(NamedTuple):
    """An image, its filter, and the arguments of `tw.col2im` for them.

    Args:
        dtype: of the columns.
        shape: of the image.
        filter: extents of the filter.
        spatial: dimensions of the image.
        words: the rest.
    """

    dtype: tw.DType
    shape: tuple[int, ...]
    filter: tuple[int, ...]
    spatial: tuple[int, ...]
    words: Mapping[str, Any] = MappingProxyType({})

    @property
    def geometry(self) -> dict[str, Any]:
        """The arguments that place the filter."""
        return {"spatial": self.spatial, "filter": self.filter, **self.words}

    @property
    def windows(self) -> Any:
        """The filter along each spatial dimension."""
        words = {"stride": 1, "dilation": 1, "padding": 0, **self.words}
        return Geometry(
            range(len(self.filter)), self.filter, words["stride"], words["dilation"], words["padding"]
        ).windows()

    @property
    def dims(self) -> list[int]:
        """The dimensions of the image as (group, batch, spatial..., channel), or without a group."""
        rank, group = len(self.shape), self.words.get("group")
        named = [self.words.get("batch", 0), *self.spatial, self.words.get("channel", -1)]
        return [dim % rank for dim in ([] if group is None else [group]) + named]

    def images(self, image: Any) -> Any:
        """An image, or a view of it, as (group, batch, spatial..., channel)."""
        turned, groups = image.transpose(self.dims), self.words.get("groups", 1)
        if self.words.get("group") is not None:
            return turned
        return np.moveaxis(turned.reshape(*turned.shape[:-1], groups, -1), -2, 0)

    @property
    def positions(self) -> list[int]:
        """The number of places of the filter along each spatial dimension."""
        extents = [self.shape[dim] for dim in self.spatial]
        return [int(w.positions(n)) for w, n in zip(self.windows, extents, strict=True)]

    def columns(self, seed: int = 0) -> Any:
        """Random columns as (group, batch, position..., tap..., channel), with groups in the middle."""
        groups, batches, *_, channels = self.images(np.empty(self.shape, np.int8)).shape
        shape = (batches, *self.positions, groups, *self.filter, channels)
        rng = np.random.default_rng(seed)
        if not self.dtype.is_float:
            made = rng.integers(np.iinfo(self.dtype.numpy).min, np.iinfo(self.dtype.numpy).max, shape)
        else:
            made = rng.standard_normal(shape)
        return np.moveaxis(made.astype(self.dtype.numpy), 1 + len(self.filter), 0)

    def matrix(self, columns: Any) -> Any:
        """Columns as `tw.col2im` takes them; not dense if there are groups."""
        count = len(self.filter) + 1
        groups, rows, across = (
            len(columns),
            math.prod(columns.shape[1 : 1 + count]),
            columns[0, *[0] * count].size,
        )
        turned = np.moveaxis(columns, 0, count).reshape(rows, groups, across).transpose(1, 0, 2)
        has_groups = self.words.get("group") is not None or self.words.get("groups", 1) > 1
        return turned if has_groups else turned[0]


PROBLEMS = {
    "rows and columns": Problem(
        tw.f32,
        (2, 7, 6, 5),
        (3, 2),
        (1, 2),
        {"stride": (2, 1), "dilation": (1, 2), "padding": ((1, 0), (2, 1))},
    ),
    "one dimension": Problem(tw.f16, (3, 11, 7), (4,), (1,), {"stride": 3, "padding": 2}),
    "volumes in groups": Problem(
        tw.bf16,
        (2, 4, 5, 7, 3, 9),
        (2, 1, 3),
        (1, 2, 3),
        {"stride": (1, 2, 3), "dilation": (2, 1, 1), "group": 4},
    ),
    "channels first": Problem(tw.f64, (2, 5, 6, 7), (3, 3), (2, 3), {"channel": 1, "padding": 1}),
    "channels in groups": Problem(tw.i8, (1, 5, 6, 6), (3, 2), (1, 2), {"stride": (1, 3), "groups": 3}),
    "gaps between windows": Problem(tw.f32, (1, 9, 8, 3), (1, 2), (1, 2), {"stride": (4, 3)}),
    "wide": Problem(tw.f16, (1, 4, 5, 130), (2, 3), (1, 2), {"padding": ((0, 1), (3, 0))}),
    "sums that wrap": Problem(tw.i32, (2, 6, 5, 4), (3, 3), (1, 2), {"dilation": (2, 1)}),
    "spatial dimensions swapped": Problem(tw.f32, (2, 5, 6, 4), (3, 1), (2, 1), {"stride": (2, 1)}),
}


def summed(problem: Problem, columns: Any, old: Any = None) -> tuple[Any, Any]:
    """Return the image, and the sum of its terms' magnitudes, by a loop over positions and taps."""
    wide = np.float64 if problem.dtype.is_float else np.int64
    sums, sizes = (np.zeros(problem.shape, wide) for _ in range(2))
    for position in itertools.product(*map(range, problem.positions)):
        for tap in itertools.product(*map(range, problem.filter)):
            there = zip(position, tap, problem.windows, strict=True)
            at = [y * w.stride + r * w.dilation - w.before for y, r, w in there]
            extents = [problem.shape[dim] for dim in problem.spatial]
            if all(0 <= one < extent for one, extent in zip(at, extents, strict=True)):
                term = columns[:, :, *position, *tap].astype(wide)
                problem.images(sums)[:, :, *at] += term
                problem.images(sizes)[:, :, *at] += np.abs(term)
    if old is not None:
        sums, sizes = sums + old.astype(wide), sizes + np.abs(old.astype(wide))
    return sums, sizes


def check(problem: Problem, image: Any, columns: Any, old: Any = None) -> None:
    """Check that each element is within the documented bound, and that integers are exact."""
    exact, sizes = summed(problem, columns, old)
    if not problem.dtype.is_float:
        np.testing.assert_array_equal(image, exact.astype(np.int32))
        return
    terms = math.prod(problem.filter) + (old is not None)
    bound = terms * UNIT[SUMS[problem.dtype]] * sizes + UNIT[problem.dtype] * np.abs(exact)
    off = np.abs(image.astype(np.float64) - exact)
    assert (off <= 1.001 * bound).all(), f"an element is off by {off.max()}"


def poisoned(problem: Problem) -> tuple[Any, Any]:
    """Return an image to write, surrounded by numbers that must not change, and all of these."""
    kind = problem.dtype.numpy if problem.dtype.is_float else np.dtype(np.int32)
    around = np.full([extent + 2 for extent in problem.shape], -77, kind)
    made = around[tuple(slice(1, -1) for _ in problem.shape)]
    made[...] = np.nan if problem.dtype.is_float else -(2**31)
    return made, around


def attempt(problem: Problem, target: str) -> None:
    """Compare every element, and check that the memory around the image is unchanged."""
    columns = problem.columns()
    made, around = poisoned(problem)
    assert tw.col2im(problem.matrix(columns), out=made, target=target, **problem.geometry) is made
    check(problem, made, columns)
    made[...] = -77
    assert (around == -77).all()


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_every_element(name: str, target: str) -> None:
    attempt(PROBLEMS[name], target)


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_dropped_tap_is_found(name: str) -> None:
    """The comparison detects that the last tap of one position is missing."""
    problem = PROBLEMS[name]
    columns = problem.columns()
    position = [count // 2 for count in problem.positions]
    lost = columns.copy()
    last = [
        max(r for r in range(w.filter) if 0 <= y * w.stride + r * w.dilation - w.before < problem.shape[dim])
        for y, w, dim in zip(position, problem.windows, problem.spatial, strict=True)
    ]
    lost[:, :, *position, *last] = 0
    made = tw.col2im(problem.matrix(lost), problem.shape, target="cpu", **problem.geometry)
    with pytest.raises(AssertionError):
        check(problem, made, columns)


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("name", ["one dimension", "channels in groups", "channels first"])
def test_sums_are_added_to_an_image(name: str, target: str) -> None:
    problem = PROBLEMS[name]
    columns, (made, _) = problem.columns(), poisoned(problem)
    old = np.random.default_rng(1).integers(-9, 9, problem.shape).astype(made.dtype)
    made[...] = old
    tw.col2im(problem.matrix(columns), out=made, accumulate=True, target=target, **problem.geometry)
    check(problem, made, columns, old)


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_a_second_call_and_a_new_image(target: str) -> None:
    """Repeated calls are replayed and write the same bits, also after calls with other geometries."""
    problem = PROBLEMS["rows and columns"]
    columns = problem.columns()
    first, again = (
        tw.col2im(problem.matrix(columns), problem.shape, target=target, **problem.geometry) for _ in range(2)
    )
    np.testing.assert_array_equal(first, again)
    other = problem._replace(shape=(2, 6, 6, 5), words={**problem.words, "padding": ((2, 0), (2, 1))})
    assert other.matrix(columns).shape == problem.matrix(columns).shape
    made = tw.col2im(other.matrix(columns), other.shape, target=target, **other.geometry)
    check(other, made, columns)


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_it_is_the_transpose_of_im2col(target: str) -> None:
    """Exactly, for small integers: ``sum(im2col(x) * y) == sum(x * col2im(y))``."""
    rng = np.random.default_rng(3)
    for _ in range(4):
        taps, stride, dilation = (tuple(int(n) for n in rng.integers(1, 4, 3)) for _ in range(3))
        padding = tuple((int(a), int(b)) for a, b in rng.integers(0, 3, (3, 2)))
        reach = [d * (t - 1) + 1 for t, d in zip(taps, dilation, strict=True)]
        shape = (2, *(n + int(rng.integers(0, 4)) for n in reach), 3, 5)
        geometry: dict[str, Any] = {"stride": stride, "dilation": dilation, "padding": padding}
        x = rng.integers(-4, 5, shape).astype(np.float64)
        matrix = EXAMPLE["matrix_of"](EXAMPLE["windows"](x, taps, **geometry))
        copied = np.full(matrix.shape, np.nan)
        EXAMPLE["im2col"].bind(taps=taps, tile=(32, 64), **geometry)(x, copied, target=target)
        y = rng.integers(-4, 5, matrix.shape).astype(np.float64)
        image = tw.col2im(y, shape, spatial=(1, 2, 3), filter=taps, group=4, target=target, **geometry)
        assert (copied * y).sum() == (x * image).sum() != 0


def test_empty_images_are_not_launched() -> None:
    made = tw.col2im(np.ones((0, 12), np.float32), (0, 5, 5, 3), spatial=(1, 2), filter=(2, 2), target="cpu")
    assert made.shape == (0, 5, 5, 3)
    words: dict[str, Any] = {"spatial": (1, 2), "filter": (2, 2), "groups": 2, "target": "cpu"}
    assert tw.col2im(np.ones((2, 16, 0), np.float32), (1, 5, 5, 0), **words).shape == (1, 5, 5, 0)
    with pytest.raises(tw.LaunchError, match=r"legal choice: columns of shape \(2, 16, 0\)"):
        tw.col2im(np.ones((2, 16, 4), np.float32), (1, 5, 5, 0), **words)


X, Y = (1, 5, 5, 3), np.ones((16, 12), np.float32)
WHERE: dict[str, Any] = {"spatial": (1, 2), "filter": (2, 2), "target": "reference"}


@pytest.mark.parametrize(
    ("columns", "shape", "words", "error", "text", "legal"),
    [
        (
            Y,
            None,
            {},
            tw.LaunchError,
            "neither shape nor out is given; nearest legal choice: shape=",
            {"shape": X},
        ),
        (Y[:15], X, {}, tw.LaunchError, "nearest legal choice: columns of shape (16, 12)", {"columns": Y}),
        (Y[None], X, {}, tw.LaunchError, "nearest legal choice: columns of shape (16, 12)", {"columns": Y}),
        (Y, X, {"filter": (6, 2)}, tw.LaunchError, "nearest legal padding: 1 in all", None),
        (Y, X, {"spatial": (1, 1)}, tw.LaunchError, "do not name each of the 4 dimensions once", None),
        (Y, X, {"groups": 2}, tw.LaunchError, "nearest legal choice: groups=1", {"groups": 1}),
        (Y, X, {"accumulate": True}, tw.LaunchError, "accumulate=True without out", {"accumulate": False}),
        (Y, (1, 5, 5, -3), {}, tw.LaunchError, "nearest legal choice: (1, 5, 5, 0)", None),
        (Y, (2, 5, 5, 3), {"out": np.zeros(X, "f4")}, tw.LaunchError, "one of them alone", {"shape": None}),
        (Y.astype("c8"), X, {}, tw.DTypeError, "nearest legal choice: one of f16, bf16, f32", {"columns": Y}),
        (
            Y,
            X,
            {"out": np.zeros(X, "f2")},
            tw.DTypeError,
            "nearest legal choice: f32",
            {"out": np.zeros(X, "f4")},
        ),
        (Y, X, {"out": np.broadcast_to(np.float32(0), X)}, tw.LaunchError, "out", {"out": np.zeros(X, "f4")}),
    ],
)
def test_what_it_refuses(
    columns: Any, shape: Any, words: dict[str, Any], error: type[Exception], text: str, legal: Any
) -> None:
    """The message names a legal choice, which works."""
    called = {"columns": columns, "shape": shape, **WHERE, **words}
    with pytest.raises(error) as raised:
        tw.col2im(**called)
    assert text in str(raised.value)
    if legal is not None:
        assert tw.col2im(**called | legal).shape == X


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_an_image_over_its_columns_is_refused(target: str) -> None:
    """The call is refused even if it is already known."""
    memory, words = np.ones(400, np.float32), WHERE | {"target": target}
    columns = memory[:192].reshape(16, 12)
    tw.col2im(columns, out=memory[192:267].reshape(X), **words)
    with pytest.raises(tw.LaunchError, match="share memory"):
        tw.col2im(columns, out=memory[100:175].reshape(X), **words)
    assert (memory[:192] == 1).all()


def kernel(dtype: tw.DType, channels: int) -> tuple[Bound, list[tw.Specimen]]:
    """The kernel for a GPU, and arrays for it."""
    problem = Problem(dtype, (2, 9, 8, channels), (3, 2), (1, 2), {"stride": (2, 3), "padding": 1})
    written = dtype if dtype.is_float else tw.i32
    shape = (1, 2, *problem.positions, *problem.filter, channels)
    vector = min(16 // dtype.bytes, channels)
    blocks = Blocks(2048 // min(channels, 64), min(channels, 64), vector, on_host=False)
    bound = summing(2).bind(windows=tuple(problem.windows), sums=SUMS[dtype], accumulate=True, blocks=blocks)
    return bound, [tw.like(dtype, shape), tw.like(written, (1, *problem.shape))]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("dtype", SUMS, ids=str)
def test_text_for_nvidia_compiles(dtype: tw.DType, arch: str) -> None:
    """Neighbouring channels are read together, in up to 16 bytes."""
    bound, arrays = kernel(dtype, 64)
    made = bound.compile(*arrays, target="cuda", arch=arch)
    assert made.source.count("16 bytes at a time") == made.source.count("bytes at a time") == 3
    assert made.resources["spill_store_bytes"] == made.resources["spill_load_bytes"] == 0


@pytest.mark.parametrize("dtype", SUMS, ids=str)
def test_more_than_half_of_a_tile_is_channels(dtype: tw.DType) -> None:
    """Tiles cover all channels of a group, or the most that fit, and more than half of a tile is used."""
    for channels in range(1, 200):
        made = Blocks.of(describe(np.empty((1, 2, 2, channels), dtype.numpy)), on_host=False)
        assert min(channels, MOST_CHANNELS) <= made.channels < 2 * channels
        assert made.channels % made.vector == 0
        assert made.rows * made.channels == TILE


def test_strides_of_a_dense_array() -> None:
    assert dense_strides((4, 3, 2)) == [6, 2, 1]
    assert dense_strides((5,)) == [1]
