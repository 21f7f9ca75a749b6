"""Transforms of views: each a frozen dataclass whose `apply` writes the old coordinates in terms of the new.

To add one: write the class here and list it in `TRANSFORMS`; printing, parsing, every target and the
tensor surface then know it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tilewright.errors import LayoutError
from tilewright.layout.expr import add, all_of, ceil_div, floordiv, less, less_equal, mod, mul, prove, xor
from tilewright.layout.nodes import Int
from tilewright.layout.view import View, coordinates


class Transform(Protocol):
    """A map from one view to another."""

    def apply(self, view: View) -> View:
        """The transformed view.

        Raises:
            LayoutError: the transform does not fit the view.
        """


def _check_rank(what: str, given: Sequence[object], view: View) -> None:
    if len(given) != view.rank:
        raise LayoutError(f"{what} {tuple(given)} has rank {len(given)}, the tensor has rank {view.rank}")


def _check_dim(dim: int, view: View) -> None:
    if not 0 <= dim < view.rank:
        raise LayoutError(
            f"dimension {dim} of a tensor of rank {view.rank}; dimensions are 0 to {view.rank - 1}"
        )


@dataclass(frozen=True, slots=True)
class Tile:
    """The tile ``at`` of the partition into tiles of ``shape``; elements past the edge are invalid.

    ``new[d] = old[at[d]*shape[d] + i_d]``.
    """

    shape: tuple[int, ...]
    at: tuple[Int, ...]

    def apply(self, view: View) -> View:
        """See `Transform.apply`."""
        _check_rank("tile", self.shape, view)
        _check_rank("tile index", self.at, view)
        for dim, (extent, at) in enumerate(zip(view.shape, self.at, strict=True)):
            count = ceil_div(extent, self.shape[dim])
            if prove(less(at, count)) is False or prove(less(at, 0)):
                raise LayoutError(f"tile index {at} of dimension {dim} is outside its {count} tiles")
        index = coordinates(self.shape)
        old = [add(mul(at, n), i) for at, n, i in zip(self.at, self.shape, index, strict=True)]
        inside = [less(o, extent) for o, extent in zip(old, view.shape, strict=True)]
        return view.map(self.shape, old, all_of(*inside))


@dataclass(frozen=True, slots=True)
class Slice:
    """A box: per dimension an index, which drops the dimension, or a half-open pair ``(start, stop)``."""

    at: tuple[Int | tuple[Int, Int], ...]

    def apply(self, view: View) -> View:
        """See `Transform.apply`."""
        _check_rank("slice", self.at, view)
        shape: list[Int] = []
        for dim, (part, extent) in enumerate(zip(self.at, view.shape, strict=True)):
            start, stop = part if isinstance(part, tuple) else (part, add(part, 1))
            if prove(less_equal(0, start)) is False or prove(less_equal(stop, extent)) is False:
                raise LayoutError(f"slice {part} of dimension {dim} is outside its extent {extent}")
            if prove(less(start, stop)) is False:
                raise LayoutError(f"slice {part} of dimension {dim} is empty")
            if isinstance(part, tuple):
                shape.append(add(stop, mul(start, -1)))
        index = iter(coordinates(shape))
        old = [add(part[0], next(index)) if isinstance(part, tuple) else part for part in self.at]
        return view.map(shape, old)


@dataclass(frozen=True, slots=True)
class Pad:
    """Grow each dimension by ``before`` and ``after`` invalid elements."""

    before: tuple[Int, ...]
    after: tuple[Int, ...]

    def apply(self, view: View) -> View:
        """See `Transform.apply`."""
        _check_rank("padding", self.before, view)
        _check_rank("padding", self.after, view)
        shape = [add(n, b, a) for n, b, a in zip(view.shape, self.before, self.after, strict=True)]
        old = [add(i, mul(b, -1)) for i, b in zip(coordinates(shape), self.before, strict=True)]
        inside = [all_of(less_equal(0, o), less(o, n)) for o, n in zip(old, view.shape, strict=True)]
        return view.map(shape, old, all_of(*inside))


@dataclass(frozen=True, slots=True)
class PadTo:
    """Grow each dimension at its end to a multiple of ``multiple``; the new elements are invalid."""

    multiple: tuple[int, ...]

    def apply(self, view: View) -> View:
        """See `Transform.apply`."""
        _check_rank("padding multiple", self.multiple, view)
        after = [
            add(mul(ceil_div(n, m), m), mul(n, -1)) for n, m in zip(view.shape, self.multiple, strict=True)
        ]
        return Pad((0,) * view.rank, tuple(after)).apply(view)


@dataclass(frozen=True, slots=True)
class Unmerge:
    """Split ``dim`` into dimensions of ``lengths``, the last one fastest: ``old = (n0*L1 + n1)*L2 + n2``."""

    dim: int
    lengths: tuple[Int, ...]

    def apply(self, view: View) -> View:
        """See `Transform.apply`."""
        _check_dim(self.dim, view)
        total: Int = 1
        for length in self.lengths:
            total = mul(total, length)
        if prove(less_equal(total, view.shape[self.dim])) is not True or total != view.shape[self.dim]:
            raise LayoutError(
                f"unmerge of dimension {self.dim} into {self.lengths}: the product {total} "
                f"is not its extent {view.shape[self.dim]}"
            )
        shape = (*view.shape[: self.dim], *self.lengths, *view.shape[self.dim + 1 :])
        index = coordinates(shape)
        inner = index[self.dim : self.dim + len(self.lengths)]
        joined: Int = 0
        for i, length in zip(inner, self.lengths, strict=True):
            joined = add(mul(joined, length), i)
        return view.map(shape, [*index[: self.dim], joined, *index[self.dim + len(self.lengths) :]])


@dataclass(frozen=True, slots=True)
class Merge:
    """Join ``count`` neighbouring dimensions from ``dim`` on into one, the last one fastest."""

    dim: int
    count: int

    def apply(self, view: View) -> View:
        """See `Transform.apply`."""
        _check_dim(self.dim, view)
        _check_dim(self.dim + self.count - 1, view)
        lengths = view.shape[self.dim : self.dim + self.count]
        total: Int = 1
        for length in lengths:
            total = mul(total, length)
        shape = (*view.shape[: self.dim], total, *view.shape[self.dim + self.count :])
        index = coordinates(shape)
        rest: Int = index[self.dim]
        digits: list[Int] = []
        for length in reversed(lengths[1:]):
            digits.append(mod(rest, length))
            rest = floordiv(rest, length)
        digits.append(rest)
        return view.map(shape, [*index[: self.dim], *reversed(digits), *index[self.dim + 1 :]])


@dataclass(frozen=True, slots=True)
class Embed:
    """Replace ``dim`` by dimensions of ``lengths`` with ``old = sum(n_i * strides_i) - offset``.

    Sliding windows: an output position times its stride plus a filter tap times its dilation.  Positions
    outside the old dimension are invalid.
    """

    dim: int
    lengths: tuple[Int, ...]
    strides: tuple[Int, ...]
    offset: Int = 0

    def apply(self, view: View) -> View:
        """See `Transform.apply`."""
        _check_dim(self.dim, view)
        if len(self.lengths) != len(self.strides):
            raise LayoutError(f"embed: {len(self.lengths)} lengths and {len(self.strides)} strides")
        shape = (*view.shape[: self.dim], *self.lengths, *view.shape[self.dim + 1 :])
        index = coordinates(shape)
        inner = index[self.dim : self.dim + len(self.lengths)]
        old = add(mul(self.offset, -1), *(mul(i, s) for i, s in zip(inner, self.strides, strict=True)))
        inside = all_of(less_equal(0, old), less(old, view.shape[self.dim]))
        return view.map(shape, [*index[: self.dim], old, *index[self.dim + len(self.lengths) :]], inside)


@dataclass(frozen=True, slots=True)
class Permute:
    """Reorder dimensions: ``new[d]`` is the old dimension ``order[d]``."""

    order: tuple[int, ...]

    def apply(self, view: View) -> View:
        """See `Transform.apply`."""
        if sorted(self.order) != list(range(view.rank)):
            raise LayoutError(f"permute {self.order} is no permutation of the {view.rank} dimensions")
        shape = [view.shape[dim] for dim in self.order]
        index = coordinates(shape)
        return view.map(shape, [index[self.order.index(dim)] for dim in range(view.rank)])


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Insert a dimension of ``extent`` at ``dim`` along which the element is the same."""

    dim: int
    extent: Int

    def apply(self, view: View) -> View:
        """See `Transform.apply`."""
        if not 0 <= self.dim <= view.rank:
            raise LayoutError(f"broadcast at dimension {self.dim} of a tensor of rank {view.rank}")
        shape = (*view.shape[: self.dim], self.extent, *view.shape[self.dim :])
        index = coordinates(shape)
        return view.map(shape, [*index[: self.dim], *index[self.dim + 1 :]])


@dataclass(frozen=True, slots=True)
class Swizzle:
    """Exclusive-or swizzle: bits ``[base, base+bits)`` of the offset ^= those ``shift`` places higher.

    A bijection on every aligned block of ``2**(base + shift + bits)`` elements.  The notation is CuTe's
    ``Swizzle<bits, base, shift>``.
    """

    bits: int
    base: int
    shift: int

    def __post_init__(self) -> None:
        if self.bits < 0 or self.base < 0 or self.shift < self.bits:
            raise LayoutError(
                f"swizzle<{self.bits}, {self.base}, {self.shift}>: needs bits >= 0, base >= 0, shift >= bits"
            )

    def offset(self, value: Int) -> Int:
        """The swizzled offset."""
        picked = mul(mod(floordiv(value, 1 << (self.base + self.shift)), 1 << self.bits), 1 << self.base)
        return xor(value, picked)

    def apply(self, view: View) -> View:
        """See `Transform.apply`."""
        block = 1 << (self.base + self.shift + self.bits)
        if isinstance(view.elems, int) and view.elems % (1 << (self.base + self.bits)):
            raise LayoutError(f"a swizzle of blocks of {block} elements over a buffer of {view.elems}")
        return View(view.shape, self.offset(view.offset), view.elems, view.valid)


TRANSFORMS: tuple[type, ...] = (
    *(Tile, Slice, Pad, PadTo, Unmerge, Merge, Embed, Permute, Broadcast, Swizzle),
)
