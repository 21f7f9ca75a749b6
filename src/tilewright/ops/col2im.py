"""`col2im`: the sum of overlapping windows into an image, the transpose of the view `im2col`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from math import prod
from operator import itemgetter, mul
from typing import Any, cast

from tilewright.calls import launches
from tilewright.dtypes import DType, bf16, f16, f32, f64, i8, i32
from tilewright.errors import DTypeError, LaunchError, LayoutError
from tilewright.lang.control import let
from tilewright.lang.control import range as traced_range
from tilewright.lang.fragments import Fragment
from tilewright.lang.launch import block_index
from tilewright.lang.operations import copy, fragment, load
from tilewright.lang.scalars import Index, ceil_div
from tilewright.ops.launching import Call, Launch, LaunchPlan
from tilewright.ops.replay import Located, Replay, called, repeated
from tilewright.runtime.arrays import ArrayInfo
from tilewright.runtime.frameworks import Strided
from tilewright.runtime.kernel import Bound, Kernel, kernel
from tilewright.runtime.plans import Plans
from tilewright.targets.target import TARGETS
from tilewright.threads.distribution import Distribution, raked
from tilewright.views.im2col import Geometry, Window, im2col
from tilewright.views.view import View

SUMS = {f16: f32, bf16: f32, f32: f32, f64: f64, i8: i32, i32: i32}
"""The dtype of the sums, by that of the columns."""

TILE = 2048
"""Elements of the image that a block writes."""

MOST_CHANNELS = 64
"""Most channels of a block's tile."""

THREADS = 128
"""Threads of a block of a GPU."""

VECTOR_BYTES = 16
"""Most bytes that a thread reads at once."""

_PLANS: Plans[Replay] = Plans()


@repeated(_PLANS, ("columns", "out"))
@launches
def col2im(
    columns: Any,
    shape: Sequence[int] | None = None,
    *,
    spatial: Sequence[int],
    filter: Sequence[int],  # noqa: A002
    stride: int | Sequence[int] = 1,
    dilation: int | Sequence[int] = 1,
    padding: int | Sequence[int | tuple[int, int]] = 0,
    batch: int = 0,
    channel: int = -1,
    group: int | None = None,
    groups: int = 1,
    out: Any = None,
    accumulate: bool = False,
    target: str | None = None,
    stream: Any = None,
) -> Any:
    """``out[n, h, w, c] = sum columns[(n, y, x), (r, s, c)]`` over ``h = y*stride + r*dilation - padding``.

    The sum runs over all ``y`` and ``r`` with that ``h``, and over ``x`` and ``s`` likewise. It is the
    transpose of `im2col`: each element of the image is the sum of the elements of the columns that `im2col`
    copies from it, so that ``sum(im2col(x) * y) == sum(x * col2im(y))``. Columns in the padding are dropped.

    Each thread sums its own elements of the image, tap after tap, the last dimension of the filter fastest:
    the result is the same at every run, without atomics. Columns of f16, bf16 and f32 are summed in f32, f64
    in f64, and i8 and i32 in i32, which wraps. Let ``u`` be the unit roundoff of the sums, ``w`` that of the
    image, and ``T`` the number of taps; with ``accumulate`` the old image is one of the terms. An element is
    off by at most ``T u sum |terms| + w |out|``.

    Args:
        columns: array ``(N*Ho*Wo, Y*X*C)``, or with groups ``(G, N*Ho*Wo, Y*X*C)``, of any strides.
        shape: extents of the image; default: those of ``out``.
        spatial: the spatial dimensions of the image, one to three, outermost first.
        filter: extents of the filter, one per spatial dimension.
        stride: distance between positions of the filter; one number, or one per spatial dimension.
        dilation: distance between taps of the filter, likewise.
        padding: elements around the image, likewise; a pair gives those before and after.
        batch: the dimension of images.
        channel: the dimension of channels.
        group: the dimension of groups, if the image has one.
        groups: the number of groups of channels, if the image has no dimension of groups.
        out: the image to write; default: a new array of the framework of ``columns``, of the dtype of the
            columns, or i32 for integers.
        accumulate: whether the sums are added to the old values of ``out``.
        target: ``"cpu"``, ``"cuda"``, ``"hip"`` or ``"reference"``; default: where the arrays lie.
        stream: the CUDA stream; default: the framework's current stream.

    Returns:
        ``out``.

    Raises:
        LaunchError: neither ``shape`` nor ``out`` is given, or they differ; the dimensions do not name each
            dimension of the image once; the filter does not fit; the columns have another shape; ``out``
            shares memory with the columns; ``accumulate`` without ``out``.
        DTypeError: columns of another dtype, or an ``out`` of another dtype than the result.

    Source: Composable Kernel, ``client_example/27_im2col_col2im``.

    Example:
        How many windows of 2 x 2 cover each element of an image of 3 x 3:

        >>> import numpy as np
        >>> import tilewright as tw
        >>> windows = np.ones((4, 4), np.float32)
        >>> image = tw.col2im(windows, (1, 3, 3, 1), spatial=(1, 2), filter=(2, 2), target="reference")
        >>> image[0, :, :, 0].tolist()
        [[1.0, 2.0, 1.0], [2.0, 4.0, 2.0], [1.0, 2.0, 1.0]]
    """
    how = Geometry(spatial, filter, stride, dilation, padding, batch, channel, group, groups)
    return called(
        _PLANS,
        (columns, out),
        (shape, *how, accumulate, target),
        (),
        stream,
        lambda located: plan_col2im(columns, shape, out, how, accumulate, target, located).launch(stream),
        itemgetter(1),
    )


def plan_col2im(
    columns: Any,
    shape: Sequence[int] | None,
    out: Any,
    how: Geometry,
    accumulate: bool,
    target: str | None,
    located: Sequence[Located] = (),
) -> LaunchPlan:
    """Check the arguments of `col2im`, and plan its launches; ``how`` has those of `im2col`."""
    call = Call.of("col2im", {"columns": columns, "out": out}, ("columns",), located)
    if accumulate and out is None:
        raise LaunchError("col2im: accumulate=True without out", "out=, the image to add to")
    extents = _extents(shape, call.infos.get("out"))
    kind = call.infos["columns"].dtype
    if kind not in SUMS:
        raise DTypeError(f"col2im of {kind}", f"one of {', '.join(map(str, SUMS))}")
    made = kind if kind.is_float else i32
    if "out" in call.infos and call.infos["out"].dtype != made:
        written = call.infos["out"].dtype
        raise DTypeError(f"col2im: out is {written}, and the sums of {kind} are {made}", made)
    _check_columns(call.infos["columns"].shape, extents, how)
    backend = call.serve(target)
    call.make("out", extents, made)
    call.check_apart()
    if 0 in extents:
        return call.plan()
    windows = how.windows()
    # The image as (group, batch, spatial..., channel).
    out, rank = call.infos["out"], len(extents)
    dims = [how.batch % rank, *(dim % rank for dim in how.spatial), how.channel % rank]
    sizes, strides = ([of[dim] for dim in dims] for of in (out.shape, out.strides))
    if how.group is not None:
        first = out.shape[how.group % rank], out.strides[how.group % rank]
    else:
        sizes[-1] //= how.groups
        first = how.groups, sizes[-1] * strides[-1]
    image = replace(out, shape=(first[0], *sizes), strides=(first[1], *strides))
    seen = {"columns": _columns(call.infos["columns"], image, windows), "out": image}
    arrays = tuple(Strided(call.arrays[name], info) for name, info in seen.items())
    on_host = TARGETS[backend.name].machine_code and not TARGETS[backend.name].warps
    bound = _bound(seen["columns"], windows, accumulate=accumulate, on_host=on_host)
    return call.plan(Launch(bound, arrays, call.names))


def _extents(shape: Sequence[int] | None, out: ArrayInfo | None) -> tuple[int, ...]:
    """The shape of the image. ``shape`` and the array to write must agree."""
    if shape is None:
        if out is None:
            raise LaunchError("col2im: neither shape nor out is given", "shape=, the shape of the image")
        return out.shape
    extents = tuple(shape)
    if min(extents, default=0) < 0:
        raise LaunchError(f"col2im: shape {extents}", tuple(max(extent, 0) for extent in extents))
    if out is not None and out.shape != extents:
        raise LaunchError(f"col2im: out has shape {out.shape}, and shape={extents}", "one of them alone")
    return extents


def _check_columns(found: tuple[int, ...], extents: tuple[int, ...], how: Geometry) -> None:
    """Refuse columns that are not the matrix of the image."""
    # `im2col` divides by the number of channels: an image without any has the rows of one with channels.
    is_empty = extents[how.channel : how.channel + 1 or None] == (0,)
    whole = list(extents)
    if is_empty:
        whole[how.channel] = how.groups
    try:
        shape = im2col(View.strided(whole, dense_strides(whole)), **how._asdict()).shape
    except LayoutError as error:
        raise LaunchError(f"col2im of an image {extents}: {error}") from None
    wanted = (*shape[:-1], 0) if is_empty else shape
    if found != wanted:
        raise LaunchError(
            f"col2im: columns has shape {found}, and an image of shape {extents} has columns of shape "
            f"{wanted}",
            f"columns of shape {wanted}",
        )


def dense_strides(extents: Sequence[int]) -> list[int]:
    """Strides of a dense array."""
    return [*accumulate(extents[:0:-1], mul, initial=1)][::-1]


def _columns(columns: ArrayInfo, image: ArrayInfo, windows: Sequence[Window]) -> ArrayInfo:
    """The columns as (group, batch, position..., tap..., channel)."""
    groups, batches, *extents, channels = image.shape
    pairs = zip(windows, extents, strict=True)
    rows = (batches, *[cast("int", window.positions(extent)) for window, extent in pairs])
    across = (*(window.filter for window in windows), channels)
    *lead, row, column = columns.strides
    strides = [
        *(lead or [0]),
        *(row * step for step in dense_strides(rows)),
        *(column * step for step in dense_strides(across)),
    ]
    return replace(columns, shape=(groups, *rows, *across), strides=tuple(strides))


@dataclass(frozen=True)
class Blocks:
    """A block's tile of the image, and its distribution over the threads.

    Args:
        rows: positions of the image in a tile.
        channels: channels of a tile.
        vector: neighbouring channels of a thread.
        on_host: whether a block is one thread.
    """

    rows: int
    channels: int
    vector: int
    on_host: bool

    @staticmethod
    def of(columns: ArrayInfo, *, on_host: bool) -> Blocks:
        """Return tiles with power-of-two extents that are as wide as the channels."""
        channels = min(1 << (columns.shape[-1] - 1).bit_length(), MOST_CHANNELS)
        vector = min(VECTOR_BYTES // columns.dtype.bytes, channels)
        return Blocks(TILE // channels, channels, vector, on_host)

    @property
    def spread(self) -> Distribution:
        """The map of the tile's elements to threads."""
        tile = (self.rows, self.channels)
        if self.on_host:
            return raked(tile, (1, 1), 1, 1)
        across = self.channels // self.vector
        return raked(tile, (THREADS // across, across), self.vector, 1)


def _bound(columns: ArrayInfo, windows: Sequence[Window], *, accumulate: bool, on_host: bool) -> Bound:
    """The kernel, bound to the constants of these columns."""
    return summing(len(windows)).bind(
        windows=tuple(windows),
        sums=SUMS[columns.dtype],
        accumulate=accumulate,
        blocks=Blocks.of(columns, on_host=on_host),
    )


@lru_cache(maxsize=3)
def summing(count: int) -> Kernel:
    """The kernel that sums columns into an image of ``count`` spatial dimensions."""
    positions, taps, extents = (" ".join(f"{name}{dim}" for dim in range(count)) for name in "PTS")
    declared: dict[str, Any] = {"columns": f"G N {positions} {taps} C", "image": f"G N {extents} C"}

    @kernel(**declared)
    def col2im(
        columns: Any,
        image: Any,
        *,
        windows: tuple[Window, ...],
        sums: DType,
        accumulate: bool,
        blocks: Blocks,
    ) -> None:
        groups, *places, channels = image.shape
        across, down = ceil_div(channels, blocks.channels), ceil_div(prod(places), blocks.rows)
        number = block_index(groups * down * across)
        group, at = let(number // (across * down)), (let(number // across % down), let(number % across))
        tile, spread = (blocks.rows, blocks.channels), blocks.spread
        written = image[group].merge(0, count + 1).tile(tile, at)
        acc: Fragment = load(written, spread).to(sums) if accumulate else fragment(spread, sums, 0)
        filters = [window.filter for window in windows]
        for number_of_tap in traced_range(prod(filters)):
            tap = list[Index]()
            for extent in reversed(filters):
                tap.insert(0, let(number_of_tap % extent))
                number_of_tap = number_of_tap // extent
            seen = columns[(group, *(slice(None) for _ in places), *tap, slice(None))]
            for dim, (window, where) in enumerate(zip(windows, tap, strict=True), 1):
                # new[h] = old[y] where y*stride + tap*dilation - before = h, and 0 where there is no such y:
                # positions are spread apart by stride - 1 zeros, and moved.
                if window.stride > 1:
                    none, after = [0] * (len(seen.shape) + 1), [0] * (len(seen.shape) + 1)
                    after[dim + 1] = window.stride - 1
                    seen = seen.unmerge(dim, (seen.shape[dim], 1)).pad(none, after).merge(dim)
                offset = where * window.dilation - window.before
                seen = seen.embed(dim, (image.shape[dim + 1],), (1,), offset=offset)
            acc += load(seen.merge(0, count + 1).tile(tile, at), spread).to(sums)
        copy(acc.to(image.dtype), written)

    return col2im
