"""The matrix view of a convolution's input, composed of `tilewright.views.transforms`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tilewright.calls import layouts
from tilewright.errors import LayoutError
from tilewright.layout.limits import divisor_at_most
from tilewright.symbolic.expr import add, equal, floordiv, less, mod, mul, prove
from tilewright.symbolic.nodes import Int, divisor
from tilewright.symbolic.rebuilding import Guard
from tilewright.views.transforms import Embed, Merge, Permute, Slice, Transform, Unmerge
from tilewright.views.view import View


class Window(NamedTuple):
    """A filter along one spatial dimension."""

    filter: int
    stride: int = 1
    dilation: int = 1
    before: int = 0
    after: int = 0

    def positions(self, extent: Int) -> Int:
        """``(extent + before + after - dilation*(filter - 1) - 1) // stride + 1``: places for the filter.

        Raises:
            LayoutError: the filter does not fit once.

        Example:
            >>> Window(3).positions(9), Window(3, stride=2, before=1, after=1).positions(9)
            (7, 5)
        """
        fits = self.fits(extent)
        if prove(fits.condition) is False:
            raise LayoutError(fits.message.format(*fits.values))
        return add(floordiv(add(self._padded(extent), -self.reach), self.stride), 1)

    @property
    def reach(self) -> int:
        """``dilation*(filter - 1) + 1``: elements from the first tap to the last one."""
        return self.dilation * (self.filter - 1) + 1

    def fits(self, extent: Int) -> Guard:
        """Return the condition that an extent, with its padding, holds the filter at least once.

        Example:
            >>> print(Window(3).fits(2).condition)
            False
        """
        padded = self._padded(extent)
        message = (
            f"a filter of {self.filter} with dilation {self.dilation} spans {self.reach} elements; "
            "the extent {} has {} with its padding; nearest legal padding: {} in all"
        )
        values = (extent, padded, add(self.reach, mul(extent, -1)))
        return Guard(less(self.reach - 1, padded), message, values)

    def _padded(self, extent: Int) -> Int:
        return add(extent, self.before, self.after)

    def embed(self, dim: int, extent: Int) -> Embed:
        """The transform of dimension ``dim`` into (position, tap)."""
        lengths = (self.positions(extent), self.filter)
        return Embed(dim, lengths, (self.stride, self.dilation), self.before)


class Geometry(NamedTuple):
    """The arguments of `im2col`: how a filter moves along the dimensions of a tensor."""

    spatial: Sequence[int]
    filter: Sequence[int]
    stride: int | Sequence[int] = 1
    dilation: int | Sequence[int] = 1
    padding: int | Sequence[int | tuple[int, int]] = 0
    batch: int = 0
    channel: int = -1
    group: int | None = None
    groups: int = 1

    def windows(self) -> list[Window]:
        """Return the filter window of each spatial dimension.

        Raises:
            LayoutError: a field does not give one legal number per dimension.

        Example:
            >>> Geometry((1, 2), (3, 3), padding=((1, 0), 2)).windows()[0]
            Window(filter=3, stride=1, dilation=1, before=1, after=0)
        """
        count = len(self.spatial)
        taps = _each("filter", self.filter, count)
        steps = _each("stride", self.stride, count)
        dilations = _each("dilation", self.dilation, count)
        pads = [self.padding] * count if isinstance(self.padding, int | np.integer) else list(self.padding)
        pairs = [(pad, pad) if isinstance(pad, int | np.integer) else pad for pad in pads]
        if len(pairs) != count or any(min(pair) < 0 for pair in pairs):
            raise LayoutError(
                f"padding {tuple(pads)} for {count} spatial dimensions; each needs one, 0 or more"
            )
        return [Window(t, s, d, *p) for t, s, d, p in zip(taps, steps, dilations, pairs, strict=True)]

    def transforms(self, shape: Sequence[Int]) -> tuple[Transform, ...]:
        """Return the transforms that make the view of `im2col` out of a tensor of ``shape``.

        Raises the errors of `im2col`.
        """
        rank, count = len(shape), len(self.spatial)
        named = [self.batch, *self.spatial, self.channel, *(() if self.group is None else (self.group,))]
        where = [dim + rank if dim < 0 else dim for dim in named]
        if sorted(where) != list(range(rank)):
            free = [dim for dim in range(rank) if dim not in where[: 1 + count]]
            raise LayoutError(
                f"batch {self.batch}, spatial {tuple(self.spatial)}, channel {self.channel} and group "
                f"{self.group} do not name each of the {rank} dimensions once",
                f"channel={free[0]}" if len(free) == 1 and self.group is None else None,
            )
        windows, extents = self.windows(), [shape[dim] for dim in where[1 : 1 + count]]
        split, where = _split_groups(shape, where, self.group, self.groups)
        first = len(where) - count - 2
        embeds = [w.embed(dim, n) for dim, w, n in zip(where[1 : 1 + count], windows, extents, strict=True)]
        return (
            *split,
            # From the last dimension to the first, because every window inserts a dimension after its own.
            *sorted(embeds, key=lambda embed: -embed.dim),
            Permute(_order(where, count)),
            Merge(first + 1 + count, count + 1),
            Merge(first, count + 1),
        )

    def requirements(self, shape: Sequence[Int]) -> list[Guard]:
        """Return the conditions of `im2col` on a tensor of ``shape`` that only the run time can check."""
        pairs = zip(self.spatial, self.windows(), strict=True)
        found = [window.fits(shape[dim]) for dim, window in pairs]
        if self.groups > 1:
            channels = shape[self.channel]
            message = f"{self.groups} groups do not divide {{}} channels; {{}} are left over"
            left = mod(channels, self.groups)
            found.append(Guard(equal(left, 0), message, (channels, left)))
        return [one for one in found if prove(one.condition) is not True]


@layouts
def im2col(
    view: View,
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
) -> View:
    """``matrix[(g,) (n, y, x), (r, s, c)] = image[n, y*stride + r*dilation - padding, ..., (g,) c]``.

    The result is the A operand of a convolution as a GEMM.  Its rows are all filter positions in all images.
    Its columns are the input elements under one filter, with the channel fastest.  Padding reads as 0.  One
    to three spatial dimensions are possible, and the tensor's dimensions may be in any order.

    Args:
        view: the input.
        spatial: the spatial dimensions, outermost first.
        filter: extents of the filter, one per spatial dimension.
        stride: distance between positions of the filter; one number, or one per spatial dimension.
        dilation: distance between taps of the filter; one number, or one per spatial dimension.
        padding: elements around the input; one number or pair (before, after), or one per spatial dimension.
        batch: the dimension of images.
        channel: the dimension of channels.
        group: the dimension of groups, if the tensor has one.
        groups: the number of groups that the channels fall into, if the tensor has no dimension of groups.
            If the channels are known only at launch, the launcher checks that the groups divide them.

    Returns:
        A view of shape ``(N*Ho*Wo, Y*X*C)``, with groups ``(G, N*Ho*Wo, Y*X*C)``.

    Raises:
        LayoutError: the dimensions do not name each dimension of the view once, the filter does not fit, or
            the groups do not divide the channels.

    Example:
        >>> image = View.strided((2, 9, 9, 8), (648, 72, 8, 1))       # NHWC
        >>> matrix = im2col(image, spatial=(1, 2), filter=(3, 3), padding=1)
        >>> matrix.shape, matrix.vector_width(1)
        ((162, 72), 8)
    """
    geometry = Geometry(spatial, filter, stride, dilation, padding, batch, channel, group, groups)
    for transform in geometry.transforms(view.shape):
        view = transform.apply(view)
    return view


def _each(what: str, value: int | Sequence[int], count: int) -> list[int]:
    values = [value] * count if isinstance(value, int | np.integer) else list(value)
    if len(values) != count or min(values, default=1) < 1:
        raise LayoutError(f"{what} {tuple(values)} for {count} spatial dimensions; each needs one, 1 or more")
    return values


def _split_groups(
    shape: Sequence[Int], where: list[int], group: int | None, groups: int
) -> tuple[list[Transform], list[int]]:
    """Split the channels into groups; the returned ``where`` ends with the group dimension, if any."""
    if groups == 1:
        return [], where
    if group is not None:
        raise LayoutError(
            f"{groups} groups of a tensor that has groups as its dimension {group}; give one of both"
        )
    channel = where[-1]
    channels = divisor(shape[channel])
    moved = [dim + 1 if dim >= channel else dim for dim in where]
    each = floordiv(shape[channel], groups) if groups > 0 else 0
    if groups > 0 and channels % groups and not isinstance(shape[channel], int):
        whole: list[tuple[int, Int]] = [(0, extent) for extent in shape]
        whole[channel] = (0, mul(each, groups))  # `Geometry.requirements` checks that these are all channels
        return [Slice(tuple(whole)), Unmerge(channel, (groups, each))], [*moved, channel]
    if groups < 1 or channels % groups:
        count = divisor_at_most(channels, groups)
        near = f"groups={count}, or an array with a dimension of groups, and group= instead of groups="
        raise LayoutError(f"{groups} groups do not divide {shape[channel]} channels", near)
    return [Unmerge(channel, (groups, each))], [*moved, channel]


def _order(where: list[int], count: int) -> tuple[int, ...]:
    """Return the positions of (group,) batch, outputs, taps, channel after windows became two dimensions."""
    windows = where[1 : 1 + count]

    def place(dim: int) -> int:
        return dim + sum(window < dim for window in windows)

    batch, channel, *group = (place(dim) for dim in (where[0], *where[1 + count :]))
    outputs = [place(dim) for dim in windows]
    return (*group, batch, *outputs, *(out + 1 for out in outputs), channel)
