"""Transforms of views: frozen dataclasses whose `apply` writes the old coordinates in terms of the new ones.

To add a transform, list its class in `TRANSFORMS`.  Printing, parsing, targets and tensors then support it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, Protocol

from tilewright.calls import layouts
from tilewright.errors import LayoutError
from tilewright.layout.limits import SWIZZLE_BITS
from tilewright.symbolic.expr import (
    add,
    all_of,
    ceil_div,
    equal,
    floordiv,
    less,
    less_equal,
    mod,
    mul,
    product,
    prove,
    within,
    xor,
)
from tilewright.symbolic.nodes import Cond, Element, Expr, Int, Sym, divisor
from tilewright.symbolic.rebuilding import Guard
from tilewright.symbolic.spelling import format_int
from tilewright.views.view import View, coordinates


@layouts
@dataclass(frozen=True, slots=True)
class Bits:
    """Index a tensor by one linear index, whose bits form the old coordinates.

    Bit ``b`` of coordinate ``d`` is the exclusive or of the bits of the new index listed in ``bits[d][b]``.
    Every extent is a power of two, and every old coordinate appears once.  With this transform a swizzled
    tile can be traversed in the order of its addresses.

    Example:
        Rows of 8 whose halves change places in every other row:

        >>> view = Bits((((3,),), ((0,), (1,), (2, 3)))).apply(View.strided((2, 8), (100, 1)))
        >>> [view.at((i,)) for i in (0, 3, 4, 8, 12)]
        [0, 3, 4, 104, 100]
    """

    bits: tuple[tuple[tuple[int, ...], ...], ...]

    @layouts
    def apply(self, view: View) -> View:
        """See `Transform.apply`."""
        shape = tuple(1 << len(of) for of in self.bits)
        if shape != view.shape:
            raise LayoutError(f"bits of a tile of {shape}; the tensor has the extents {view.shape}")
        count = sum(map(len, self.bits))
        # The rows, as vectors of bits, must be linearly independent.
        rows = [sum(1 << bit for bit in set(of)) for dim in self.bits for of in dim]
        for at in range(count):
            pivot = next((row for row in rows if row >> at & 1), None)
            if pivot is None:
                raise LayoutError(
                    f"{self.bits} do not name every element once by the {count} bits of one index"
                )
            rows.remove(pivot)
            rows = [row ^ pivot if row >> at & 1 else row for row in rows]
        index = coordinates((1 << count,))[0]
        return view.map((1 << count,), [_coordinate(index, of) for of in self.bits])


def _coordinate(index: Int, of: Sequence[tuple[int, ...]]) -> Int:
    """Return one coordinate as an expression; a run of bits that comes from a run is extracted at once."""
    total: Int = 0
    first = 0
    while first < len(of):
        last = first + 1
        while last < len(of) and of[last] == tuple(bit + last - first for bit in of[first]):
            last += 1
        part: Int = 0
        for bit in of[first]:
            part = xor(part, mod(floordiv(index, 1 << bit), 1 << (last - first)))
        total = add(total, mul(part, 1 << first))
        first = last
    return total


@layouts
@dataclass(frozen=True, slots=True)
class Repeat:
    """``new[i] = old[i // count]`` along ``dim``: each element appears ``count`` times.

    The last element may appear fewer times.  The new ``extent`` must not reach past the old elements.

    Example:
        >>> print(Repeat(1, 128, 300).apply(View.strided((4, 3), (3, 1))))
        (4, 300) -> 3*i0 + (i1 // 128)
    """

    dim: int
    count: int
    extent: Int

    @layouts
    def apply(self, view: View) -> View:
        """See `Transform.apply`."""
        if not 0 <= self.dim < view.rank:
            rule = f"dimensions are 0 to {view.rank - 1}"
            text = f"repeat along dimension {self.dim} of a tensor of rank {view.rank}; {rule}"
            raise LayoutError(text)
        if self.count < 1:
            raise LayoutError(f"repeat of each element {self.count} times; the least is 1")
        if prove(less_equal(ceil_div(self.extent, self.count), view.shape[self.dim])) is False:
            raise LayoutError(
                f"repeat of {view.shape[self.dim]} elements, {self.count} times each, to {self.extent}; "
                f"nearest legal extent: {mul(view.shape[self.dim], self.count)}"
            )
        shape = (*view.shape[: self.dim], self.extent, *view.shape[self.dim + 1 :])
        index = coordinates(shape)
        old = floordiv(index[self.dim], self.count)
        return view.map(shape, [*index[: self.dim], old, *index[self.dim + 1 :]])


@layouts
@dataclass(frozen=True, slots=True)
class AsStrided:
    """Replace one dimension by ``lengths`` and ``strides``: ``old = start + sum(n_i * strides_i)``.

    As with `Slice`, the new elements must be elements of the old view.  If the numbers are known only to the
    running kernel, the author must ensure this.

    Example:
        >>> print(AsStrided((4, 8), (16, 1), 3).apply(View.strided((100,), (1,))))
        (4, 8) -> 16*i0 + i1 + 3
    """

    lengths: tuple[Int, ...]
    strides: tuple[Int, ...]
    start: Int = 0

    @layouts
    def apply(self, view: View) -> View:
        """See `Transform.apply`."""
        if view.rank != 1:
            raise LayoutError(f"as_strided of a tensor of rank {view.rank}; nearest: a view of rank 1 first")
        if len(self.lengths) != len(self.strides):
            raise LayoutError(
                f"as_strided: lengths {self.lengths} and strides {self.strides} differ in number"
            )
        steps = zip(coordinates(self.lengths), self.strides, strict=True)
        return view.map(self.lengths, [add(self.start, *(mul(i, stride) for i, stride in steps))])


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


@layouts
@dataclass(frozen=True, slots=True)
class Tile:
    """The tile with index ``at`` in a partition into tiles of ``shape``; elements outside are invalid.

    ``new[d] = old[at[d]*shape[d] + i_d]``.  None in ``shape`` and ``at`` takes the whole dimension.

    Example:
        >>> tile = Tile((32, None), (2, None)).apply(View.strided((70, 5), (5, 1)))
        >>> print(tile)
        (32, 5) -> 5*i0 + i1 + 320 if i0 + 64 < 70
    """

    shape: tuple[int | None, ...]
    at: tuple[Int | None, ...]

    @layouts
    def apply(self, view: View) -> View:
        """See `Transform.apply`."""
        _check_rank("tile", self.shape, view)
        _check_rank("tile index", self.at, view)
        shape, start = list[Int](), list[Int]()
        inside: list[Cond] = []
        for dim, (length, at, extent) in enumerate(zip(self.shape, self.at, view.shape, strict=True)):
            if length is None or at is None:
                if length is not at:
                    raise LayoutError(
                        f"tile {self.shape} at {self.at}: only one of both takes dimension {dim} whole (None)"
                    )
                shape.append(extent)
                start.append(0)
                continue
            if length < 1:
                raise LayoutError(f"tile {self.shape} has the extent {length}; extents are at least 1")
            count = ceil_div(extent, length)
            if prove(less(at, count)) is False or prove(less(at, 0)) is True:
                raise LayoutError(f"tile index {at} of dimension {dim} is outside [0, {count})")
            shape.append(length)
            start.append(mul(at, length))
            inside.append(less_equal(0, at))
        old = [add(first, i) for first, i in zip(start, coordinates(shape), strict=True)]
        inside += map(within, old, view.shape, self.at, self.shape)
        return view.map(shape, old, all_of(*inside))


@layouts
@dataclass(frozen=True, slots=True)
class Slice:
    """A box: per dimension an index, which drops the dimension, or a half-open pair ``(start, stop)``.

    As in Python, None in a pair stands for an end of the dimension, and None without a pair for all of it.
    An integer that is provably negative counts from the end.  A box that is provably outside or empty is an
    error.

    Args:
        at: the index, the pair or None of each dimension.
        edges: dimensions in which elements outside the view are invalid, like those of a `Tile`; for boxes
            whose start or end only the running kernel knows.

    Example:
        >>> view = View.strided((8, 16), (16, 1))
        >>> print(Slice((-1, (4, None))).apply(view))
        (12) -> i0 + 116
        >>> from tilewright.symbolic.nodes import Sym
        >>> print(Slice((Sym("r", -100, 100), (4, None)), edges=(0,)).apply(view))
        (12) -> 16*r + i0 + 4 if r < 8 and 0 < r + 1
    """

    at: tuple[Int | tuple[Int | None, Int | None] | None, ...]
    edges: tuple[int, ...] = ()

    @layouts
    def apply(self, view: View) -> View:
        """See `Transform.apply`."""
        _check_rank("slice", self.at, view)
        rank = len(self.at)
        if wrong := [dim for dim in self.edges if not -rank <= dim < rank]:
            text = f"slice has edges={self.edges}: dimension {wrong[0]} is none of the {rank} dimensions"
            raise LayoutError(text, min(max(wrong[0], -rank), rank - 1))
        shape: list[Int] = []
        start: list[Int] = []
        for dim, (part, extent) in enumerate(zip(self.at, view.shape, strict=True)):
            low, high = slice_span(part, extent)
            if prove(less_equal(0, low)) is False or prove(less_equal(high, extent)) is False:
                raise LayoutError(f"slice {part} of dimension {dim} is outside its extent [0, {extent})")
            if prove(less(low, high)) is False:
                raise LayoutError(f"slice {part} of dimension {dim} is empty")
            start.append(low)
            if part is None or isinstance(part, tuple):
                shape.append(add(high, mul(low, -1)))
        index, kept = iter(coordinates(shape)), (part is None or isinstance(part, tuple) for part in self.at)
        old = [add(s, next(index)) if k else s for s, k in zip(start, kept, strict=True)]
        inside = list[Cond]()
        for dim in self.edges:
            # The start is compared first: start + index overflows if the start is the largest integer.
            inside += [less(at, view.shape[dim]) for at in (start[dim], old[dim])]
            inside.append(less_equal(0, old[dim]))
        return view.map(shape, old, all_of(*inside))

    def requirements(self, shape: Sequence[Int], name: str) -> list[Guard]:
        """Return the conditions under which the box lies in a tensor, without those that are proved.

        Args:
            shape: the extents of the tensor.
            name: its name, for the messages.

        Example:
            >>> from tilewright.symbolic.nodes import Sym
            >>> [needed] = Slice((2, None)).requirements((Sym("M", 0, None), 8), "A")
            >>> needed.message, needed.condition
            ('index {} of dimension {} of A, whose extent is {}', 3 < M + 1)
        """
        found = []
        for dim, (part, extent) in enumerate(zip(self.at, shape, strict=True)):
            low, high = slice_span(part, extent)
            what, ends = ("slice {}:{}", (low, high)) if isinstance(part, tuple) else ("index {}", (low,))
            text = f"{what} of dimension {{}} of {name}, whose extent is {{}}"
            inside = (less_equal(0, low), less_equal(low, high), less_equal(high, extent))
            if dim not in self.edges:  # elements outside of an edge are invalid
                found += [Guard(one, text, (*ends, dim, extent)) for one in inside if prove(one) is not True]
        return found


def slice_span(part: Int | tuple[Int | None, Int | None] | None, extent: Int) -> tuple[Int, Int]:
    """Return the first index and the end (excluded) of one part of a slice."""
    if part is None or isinstance(part, tuple):
        first, last = part or (None, None)
        low = 0 if first is None else _from_end(first, extent)
        return low, extent if last is None else _from_end(last, extent)
    low = _from_end(part, extent)
    return low, add(low, 1)


def _from_end(index: Int, extent: Int) -> Int:
    return add(extent, index) if prove(less(index, 0)) is True else index


@layouts
@dataclass(frozen=True, slots=True)
class Pad:
    """Grow each dimension by ``before`` and ``after`` invalid elements.

    Example:
        >>> print(Pad((1,), (1,)).apply(View.strided((3,), (1,))))
        (5) -> i0 - 1 if 0 < i0 and i0 - 1 < 3
    """

    before: tuple[Int, ...]
    after: tuple[Int, ...]

    @layouts
    def apply(self, view: View) -> View:
        """See `Transform.apply`."""
        _check_rank("padding", self.before, view)
        _check_rank("padding", self.after, view)
        for width in (*self.before, *self.after):
            if prove(less(width, 0)) is True:
                raise LayoutError(f"padding by {width}; a Slice makes a tensor smaller")
        shape = [add(n, b, a) for n, b, a in zip(view.shape, self.before, self.after, strict=True)]
        old = [add(i, mul(b, -1)) for i, b in zip(coordinates(shape), self.before, strict=True)]
        inside = [all_of(less_equal(0, o), less(o, n)) for o, n in zip(old, view.shape, strict=True)]
        return view.map(shape, old, all_of(*inside))


@layouts
@dataclass(frozen=True, slots=True)
class PadTo:
    """Grow each dimension at its end to a multiple of ``multiple``; the new elements are invalid.

    Example:
        >>> print(PadTo((8,)).apply(View.strided((67,), (1,))))
        (72) -> i0 if i0 < 67
    """

    multiple: tuple[int, ...]

    @layouts
    def apply(self, view: View) -> View:
        """See `Transform.apply`."""
        _check_rank("padding multiple", self.multiple, view)
        if (least := min(self.multiple, default=1)) < 1:
            raise LayoutError(f"padding to a multiple of {least}; the least is 1, which pads nothing")
        after = [
            add(mul(ceil_div(n, m), m), mul(n, -1)) for n, m in zip(view.shape, self.multiple, strict=True)
        ]
        return Pad((0,) * view.rank, tuple(after)).apply(view)


@layouts
@dataclass(frozen=True, slots=True)
class Unmerge:
    """Split ``dim`` into dimensions of ``lengths``, the last one fastest: ``old = (n0*L1 + n1)*L2 + n2``.

    Example:
        >>> print(Unmerge(1, (4, 8)).apply(View.strided((5, 32), (32, 1))))
        (5, 4, 8) -> 32*i0 + 8*i1 + i2
    """

    dim: int
    lengths: tuple[Int, ...]

    @layouts
    def apply(self, view: View) -> View:
        """See `Transform.apply`."""
        _check_dim(self.dim, view)
        extent = view.shape[self.dim]
        if not self.lengths or prove(equal(product(*self.lengths), extent)) is not True:
            raise LayoutError(
                f"unmerge of dimension {self.dim} into {self.lengths}: the product {product(*self.lengths)} "
                f"is not known to be its extent {extent}{self._nearest(extent)}"
            )
        shape = (*view.shape[: self.dim], *self.lengths, *view.shape[self.dim + 1 :])
        index = coordinates(shape)
        inner = index[self.dim : self.dim + len(self.lengths)]
        joined: Int = 0
        for i, length in zip(inner, self.lengths, strict=True):
            joined = add(mul(joined, length), i)
        return view.map(shape, [*index[: self.dim], joined, *index[self.dim + len(self.lengths) :]])

    def _nearest(self, extent: Int) -> str:
        free = next((at for at, one in enumerate(self.lengths) if isinstance(one, int) and one < 0), 0)
        before, after = self.lengths[:free], self.lengths[free + 1 :]
        inner = product(*before, *after)
        if isinstance(inner, int) and inner > 0:
            if divisor(extent) % inner == 0:
                return f"; nearest legal lengths: {(*before, floordiv(extent, inner), *after)}"
            return f"; pad it to a multiple of {inner} first"
        return "" if isinstance(extent, int) else "; nearest legal choice: tw.require that they are equal"


@layouts
@dataclass(frozen=True, slots=True)
class Merge:
    """Join ``count`` neighbouring dimensions, starting at ``dim``, into one; the last one is fastest.

    Example:
        >>> print(Merge(0, 2).apply(View.strided((4, 8, 3), (24, 1, 8))))
        (32, 3) -> 24*(i0 // 8) + 8*i1 + (i0 % 8)
    """

    dim: int
    count: int

    @layouts
    def apply(self, view: View) -> View:
        """See `Transform.apply`."""
        if self.count < 1:
            raise LayoutError(f"merge of {self.count} dimensions; at least one is needed")
        _check_dim(self.dim, view)
        _check_dim(self.dim + self.count - 1, view)
        lengths = view.shape[self.dim : self.dim + self.count]
        shape = (*view.shape[: self.dim], product(*lengths), *view.shape[self.dim + self.count :])
        index = coordinates(shape)
        rest: Int = index[self.dim]
        digits: list[Int] = []
        for length in reversed(lengths[1:]):
            digits.append(mod(rest, length))
            rest = floordiv(rest, length)
        digits.append(rest)
        return view.map(shape, [*index[: self.dim], *reversed(digits), *index[self.dim + 1 :]])


@layouts
@dataclass(frozen=True, slots=True)
class Embed:
    """Replace ``dim`` by dimensions of ``lengths`` with ``old = sum(n_i * strides_i) - offset``.

    Sliding windows: an output position times its stride plus a filter tap times its dilation.  Positions
    outside the old dimension are invalid.

    Example:
        >>> print(Embed(0, (7, 3), (1, 1), 1).apply(View.strided((7,), (1,))))
        (7, 3) -> i0 + i1 - 1 if 0 < i0 + i1 and i0 + i1 - 1 < 7
    """

    dim: int
    lengths: tuple[Int, ...]
    strides: tuple[Int, ...]
    offset: Int = 0

    @layouts
    def apply(self, view: View) -> View:
        """See `Transform.apply`."""
        _check_dim(self.dim, view)
        if len(self.lengths) != len(self.strides):
            raise LayoutError(f"embed: lengths {self.lengths} and strides {self.strides} differ in number")
        shape = (*view.shape[: self.dim], *self.lengths, *view.shape[self.dim + 1 :])
        index = coordinates(shape)
        inner = index[self.dim : self.dim + len(self.lengths)]
        old = add(mul(self.offset, -1), *(mul(i, s) for i, s in zip(inner, self.strides, strict=True)))
        inside = all_of(less_equal(0, old), less(old, view.shape[self.dim]))
        return view.map(shape, [*index[: self.dim], old, *index[self.dim + len(self.lengths) :]], inside)


@layouts
@dataclass(frozen=True, slots=True)
class Permute:
    """Reorder dimensions: ``new[d]`` is the old dimension ``order[d]``.

    Example:
        >>> print(Permute((1, 0)).apply(View.strided((4, 8), (8, 1))))
        (8, 4) -> 8*i1 + i0
    """

    order: tuple[int, ...]

    @layouts
    def apply(self, view: View) -> View:
        """See `Transform.apply`."""
        if sorted(self.order) != list(range(view.rank)):
            raise LayoutError(f"permute {self.order} is not a permutation of the {view.rank} dimensions")
        shape = [view.shape[dim] for dim in self.order]
        index = coordinates(shape)
        return view.map(shape, [index[self.order.index(dim)] for dim in range(view.rank)])


@layouts
@dataclass(frozen=True, slots=True)
class Broadcast:
    """Insert a dimension of ``extent`` at ``dim`` along which the element is the same.

    Example:
        >>> print(Broadcast(1, 8).apply(View.strided((4,), (1,))))
        (4, 8) -> i0
    """

    dim: int
    extent: Int

    @layouts
    def apply(self, view: View) -> View:
        """See `Transform.apply`."""
        if not 0 <= self.dim <= view.rank:
            raise LayoutError(f"broadcast at dimension {self.dim} of a tensor of rank {view.rank}")
        shape = (*view.shape[: self.dim], self.extent, *view.shape[self.dim :])
        index = coordinates(shape)
        return view.map(shape, [*index[: self.dim], *index[self.dim + 1 :]])


@layouts
@dataclass(frozen=True, slots=True)
class Swizzle:
    """Exclusive-or swizzle: bits ``[base, base+bits)`` of the offset ^= those ``shift`` places higher.

    A bijection on every aligned block of ``2**(base + bits)`` elements.  The notation is CuTe's
    ``Swizzle<bits, base, shift>``.

    Example:
        >>> Swizzle(3, 3, 3).apply(View.strided((8, 64), (64, 1))).at((1, 0))
        72
    """

    bits: int
    base: int
    shift: int

    def __post_init__(self) -> None:
        places = (self.bits, self.base, self.shift)
        if min(places) < 0 or self.shift < self.bits or sum(places) > SWIZZLE_BITS:
            needs = f"bits >= 0, base >= 0, shift >= bits, and at most {SWIZZLE_BITS} bits in all"
            raise LayoutError(f"swizzle<{self.bits}, {self.base}, {self.shift}>: needs {needs}")

    @layouts
    def offset(self, value: Int) -> Int:
        """The swizzled offset."""
        picked = mul(mod(floordiv(value, 1 << (self.base + self.shift)), 1 << self.bits), 1 << self.base)
        return xor(value, picked)

    @layouts
    def apply(self, view: View) -> View:
        """See `Transform.apply`."""
        block = 1 << (self.base + self.bits)
        nearest = mul(ceil_div(view.elems, block), block)
        if divisor(view.elems) % block:
            raise LayoutError(
                f"swizzle<{self.bits}, {self.base}, {self.shift}> permutes blocks of {block} elements; the "
                f"buffer's {view.elems} are no known multiple; nearest: {nearest} "
                f"(elems={nearest} where it is allocated)"
            )
        return replace(view, offset=self.offset(view.offset))


def chosen_rows(view: View, dim: int, table: Sym, numbers: View, low: int, high: int) -> View:
    """Return the view with the rows along a dimension that integers in memory choose.

    The dimensions of the integers replace it.  Elements of rows outside of ``[0, extent)`` are invalid, and
    so are those past the edge of the integers.

    Args:
        view: the view.
        dim: the dimension along which rows are chosen.
        table: the buffer of the integers.
        numbers: the view of the integers.
        low: the smallest integer.
        high: the largest integer.

    Example:
        >>> chosen_rows(View.strided((9, 4), (4, 1)), 0, Sym("I"), View.strided((2,), (1,)), -128, 127)
        View((2, 4) -> 4*I[i0] + i1 if -1 < I[i0] and I[i0] < 9)
    """
    shape, end = (*view.shape[:dim], *numbers.shape, *view.shape[dim + 1 :]), dim + numbers.rank
    at = coordinates(shape)
    own = at[dim:end]
    row = Element(table, numbers.at(own), low, high)
    inside = all_of(numbers.valid_at(own), less(-1, row), less(row, view.shape[dim]))
    return view.map(shape, [*at[:dim], row, *at[end:]], inside)


TRANSFORMS: tuple[type, ...] = (
    *(Tile, Slice, Pad, PadTo, Unmerge, Merge, Embed, Permute, Broadcast, Repeat, Swizzle, AsStrided, Bits),
)


# ---------------------------------------------------------------- transforms as text


def as_written(transform: Transform, shape: Sequence[Int]) -> str:
    """Return the source text that applies a transform to a tensor of this shape.

    Example:
        >>> from tilewright.symbolic.nodes import Sym
        >>> as_written(Slice((Sym("stage", 0, 3), (0, 64), (0, 8))), (4, 64, 64))
        '[stage, :, :8]'
        >>> as_written(Merge(0, 2), (4, 64))
        '.merge(0)'
    """
    if isinstance(transform, Slice):
        parts = [":" if part == (0, n) else _part(part) for part, n in zip(transform.at, shape, strict=True)]
        while len(parts) > 1 and parts[-1] == ":":
            parts.pop()
        return f"[{', '.join(parts)}]"
    record: Any = transform
    given = [(f, getattr(record, f.name)) for f in fields(record)]
    if isinstance(transform, Merge) and transform.count == 2:
        given = given[:1]
    shown = [_argument(value) for f, value in given if f.default is MISSING or value != f.default]
    if isinstance(transform, Permute):
        shown = [_argument(dim) for dim in transform.order]
    letters = (f"_{letter.lower()}" if letter.isupper() else letter for letter in type(transform).__name__)
    return f".{''.join(letters).lstrip('_')}({', '.join(shown)})"


def _part(part: Any) -> str:
    if part is None:
        return ":"
    if isinstance(part, tuple):
        start, stop = (None if end is None else _argument(end) for end in part)
        return f"{'' if start in (None, '0') else start}:{stop or ''}"
    return _argument(part)


def _argument(value: Any) -> str:
    if isinstance(value, tuple):
        inner = ", ".join(map(_argument, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return format_int(value) if isinstance(value, int | Expr) else str(value)
