"""A transform that reorders a tensor by the bits of one linear index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.calls import layouts
from tilewright.errors import LayoutError
from tilewright.symbolic.expr import add, floordiv, mod, mul, xor
from tilewright.symbolic.nodes import Int
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
        if not self._is_bijective(count):
            raise LayoutError(f"{self.bits} do not name every element once by the {count} bits of one index")
        index = coordinates((1 << count,))[0]
        return view.map((1 << count,), [_coordinate(index, of) for of in self.bits])

    def _is_bijective(self, count: int) -> bool:
        """Return whether the rows, as vectors of bits, are linearly independent."""
        rows = [sum(1 << bit for bit in set(of)) for dim in self.bits for of in dim]
        for at in range(count):
            pivot = next((row for row in rows if row >> at & 1), None)
            if pivot is None:
                return False
            rows.remove(pivot)
            rows = [row ^ pivot if row >> at & 1 else row for row in rows]
        return not rows


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
