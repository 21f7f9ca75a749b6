"""Random masks that depend only on an element's coordinates.

A fragment holds the index of each element, computed from coordinates and integers.  If the index is an
integer expression of the coordinates, the emitter computes it in a loop, where it takes one register.  Then
no operation reads the fragments of the index, and they get no text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from tilewright.dtypes import i64, limits
from tilewright.ir.fragment_ops import Coordinates
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import Elementwise
from tilewright.ir.types import Value
from tilewright.symbolic.expr import add, expand, floordiv, mod, mul
from tilewright.symbolic.nodes import Expr, Int, Sym, bounds, divisor
from tilewright.symbolic.rebuilding import substitute
from tilewright.threads.distribution import merge

MASKED = "random_at_least"
"""The function whose results are bits of a mask."""

FOUR = 4
"""Neighbouring elements that share one generation."""

WIDE = 64
"""Bits of the integers in which generated text computes an index."""

SUMS: dict[str, Callable[[Int, Int], Int]] = {"add": add, "mul": mul, "floordiv": floordiv, "mod": mod}


@dataclass(frozen=True)
class RandomPlace:
    """The index of each element of a fragment of random truth values.

    Args:
        at: the symbols of the coordinates in the index.
        index: the index, an integer expression of the coordinates.
        along: the dimension in which aligned groups of four neighbours share a generation; None if unknown.
        lanes: whether two neighbouring lanes hold two of the four each; else a thread holds all of them.
    """

    at: tuple[Sym, ...]
    index: Int
    along: int | None
    lanes: bool


class RandomPlaces:
    """Finds the random masks of a kernel whose index is an integer expression of coordinates.

    Args:
        kernel: the lowered kernel.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.of: dict[Value, RandomPlace] = {}
        self._passed: set[Value] = set()  # fragments from which an index was computed
        ops = [op for op in kernel.walk() if not op.regions]
        masks = [op for op in ops if isinstance(op, Elementwise) and op.function == MASKED]
        self.unread: set[Value] = set()
        """Fragments without text: only indices were computed from them."""
        if masks:
            self._made = {op.results[0]: op for op in ops if isinstance(op, Elementwise | Coordinates)}
            changed = {value for op in ops for value in op.written}
            self._made = {value: op for value, op in self._made.items() if value not in changed}
            for op in masks:
                self._find(op)
            read: set[Value] = set()
            for one in reversed(ops):
                if one.results and one.results[0] in self._passed and one.results[0] not in read:
                    self.unread.add(one.results[0])
                    continue
                own = {*one.operands, *one.read}
                if isinstance(one, Elementwise):
                    first = 1 if one.result in self.of else 0  # a place replaces the first operand
                    own = {value for value in one.operands_[first:] if isinstance(value, Value)}
                read |= own

    def _find(self, op: Elementwise) -> None:
        if not op.result.is_fragment:
            return
        spread = op.result.fragment.distribution
        if spread.size_values < FOUR:
            return
        at = tuple(Sym(f"%at{dim}", 0, extent - 1) for dim, extent in enumerate(spread.shape))
        index = self._integer(op.operands_[0], at)
        if index is None:
            return
        along, lanes = None, False
        values, threads = merge(spread.values), merge(spread.threads)
        first, lane = values[0], threads[0] if threads else None
        if first.dim is not None and first.step == 1 and _in_fours(index, at, first.dim):
            if first.extent % FOUR == 0:
                along = first.dim
            elif first.extent == 2 and lane is not None and lane[1:] == (first.dim, 2):
                # Two pairs of registers of two lanes: each lane generates the four of one pair.
                lanes = lane.extent % 2 == 0 and spread.size_values % FOUR == 0
                along = first.dim if lanes else None
        self.of[op.result] = RandomPlace(at, index, along, lanes)

    def _integer(self, value: Value | float | Int, at: tuple[Sym, ...]) -> Int | None:
        """Return a value as an integer expression of the coordinates; None if it is not one."""
        if isinstance(value, int | Expr):
            return value
        op = self._made.get(value) if isinstance(value, Value) else None
        found: Int | None = None
        if isinstance(op, Coordinates):
            found = at[op.dim] if op.distribution.shape[op.dim] > 1 else 0
        elif op is not None and op.result.dtype.kind in ("int", "uint") and op.result.dtype.bits >= 32:
            assert isinstance(op, Elementwise)
            found = self._of_function(op, at)
            if found is not None and not self._is_exact(op, found):
                return None
        if found is not None and isinstance(value, Value):
            self._passed.add(value)
        return found

    def _of_function(self, op: Elementwise, at: tuple[Sym, ...]) -> Int | None:
        """Return the result of an integer function as an integer expression of the coordinates."""
        given = op.operands_
        if op.function == "convert" and len(given) == 1:
            return self._integer(given[0], at)
        if op.function == "select" and given[1] == given[2]:  # one tile, repeated
            return self._integer(given[1], at)
        if op.function not in SUMS:
            return None
        first, second = (self._integer(one, at) for one in given)
        divides = op.function in ("floordiv", "mod")
        if divides and op.result.dtype.bits == WIDE and not _is_within(first, 0, limits(i64)[1]):
            return None  # the dividend may have overflowed
        return None if first is None or second is None else SUMS[op.function](first, second)

    def _is_exact(self, op: Elementwise, found: Int) -> bool:
        """Whether a function's result does not overflow its dtype, or overflows as in the text.

        The text computes in 64 bits.  Sums, products and conversions of 32 bits must be in range; the sum of
        a coordinate and the start of its tile is.
        """
        if op.result.dtype.bits == WIDE or op.function not in ("add", "mul", "convert"):
            return True
        kinds = [
            isinstance(one, Value) and isinstance(self._made.get(one), Coordinates) for one in op.operands_
        ]
        is_place = op.function == "add" and any(kinds) and not all(isinstance(x, Value) for x in op.operands_)
        return is_place or _is_within(found, *limits(op.result.dtype))


def _is_within(value: Int | None, least: float, most: float) -> bool:
    """Whether an integer is known to be in a range."""
    low, high = (-inf, inf) if value is None else bounds(value)
    return least <= low and high <= most


def _in_fours(index: Int, at: tuple[Sym, ...], dim: int) -> bool:
    """Whether aligned groups of four neighbours along a dimension share one generation."""
    extent = (at[dim].high or 0) + 1
    if extent % FOUR:
        return False
    four = mul(Sym("%four", 0, extent // FOUR - 1), FOUR)
    first, *others = (expand(substitute(index, {at[dim]: add(four, step)})) for step in range(FOUR))
    apart = (add(other, mul(first, -1)) for other in others)
    return divisor(first) % FOUR == 0 and all(one == step for step, one in enumerate(apart, 1))
