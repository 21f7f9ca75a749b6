"""What an operand is computed by, in vectors along its columns, and what belongs to a column alone.

A number of 16 bits is held as the f32 of the same value, and rounded where the author's operations round.  Of
integers it is known how large they are, so that what is exact is not rounded, and of products by what numbers
of the arrays beside it none overflows or is subnormal: a simpler way rounds those.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tilewright.dtypes import DType, bf16, f4e2m1, f16, f32, holds, limits
from tilewright.ir.types import Value
from tilewright.targets.cpu.decoding import Decoding

HALF, CODES = 8, 16
"""Of the codes of 4 bits; a code is taken for a fraction of what is as large as there are codes."""

LARGEST_BITS = 8
"""Of integers whose sizes are used."""


def offset_of(kind: DType) -> int:
    """By how much the number that a code of 4 bits is taken for at first is too large; 0 of floats.

    Example:
        >>> from tilewright.dtypes import f4e2m1, i4
        >>> offset_of(i4), offset_of(f4e2m1)
        (24, 0)
    """
    return 0 if kind.is_float else CODES + (HALF if kind.kind == "int" else 0)


def largest_of(kind: DType) -> int:
    """The largest size of an integer of a dtype; 0 of floats, and of wide ones."""
    if kind.kind not in ("int", "uint") or kind.bits > LARGEST_BITS:
        return 0
    return int(max(-limits(kind)[0], limits(kind)[1]))


def sizes_of(kind: DType) -> tuple[float, float] | None:
    """Of numbers but for 0 the smallest size, and the largest; None: not known."""
    if kind == f4e2m1:
        return 0.5, 6.0
    largest = largest_of(kind)
    return (1.0, float(largest)) if largest else None


SIMPLE = {f16: (2.0**-14, 65504.0), bf16: (2.0**-126, 2.0**100)}
"""Sizes of f32 that are rounded to a format by additions alone."""

DIGITS = {f16: 11, bf16: 8, f32: 24}

SIGNS = {"add": "+", "sub": "-", "mul": "*"}


@dataclass(frozen=True)
class Known:
    """What is known of a number.

    Args:
        text: that gives it, for a vector of columns, or for one column.
        dtype: that it has.
        is_outer: whether it belongs to a column, for all neighbours along K that are computed together.
        largest: its size at most, of an integer; 0: it is none, or not known.
        sizes: the smallest size but for 0 and the largest; None: they are not known.
        offset: by how much the text is too large.
    """

    text: str
    dtype: DType
    is_outer: bool = False
    largest: int = 0
    sizes: tuple[float, float] | None = None
    offset: int = 0


@dataclass
class Computing:
    """Collects what computes an operand.

    Args:
        convert: spells a conversion of one number, as `CpuEmitter.convert` does.
        lines: for a vector of columns at one k.
        arrays: for each array that belongs to columns what one column's number is.
        within: between what sizes numbers of an array are, or 0, where products are rounded by additions.
        kept: the formats that vectors are rounded to.
    """

    convert: Callable[[str, DType, DType], str]
    lines: list[str] = field(default_factory=list)
    arrays: list[str] = field(default_factory=list)
    within: dict[int, tuple[float, float]] = field(default_factory=dict)
    kept: set[DType] = field(default_factory=set)

    def result(self, op: Decoding) -> str:
        """The operand of what is decoded, as a vector; ``loaded0[n]`` is a column's number of an array."""
        kind = op.packed or op.elements.source.dtype
        own = Known("raw", op.held.dtype, False, largest_of(kind), sizes_of(kind))
        known = {op.held: replace(own, offset=offset_of(kind) if op.packed else 0)}
        for at, copy in enumerate(op.beside):
            of = copy.source.dtype
            known[copy.target] = Known(f"loaded{at}[n]", of, True, largest_of(of), sizes_of(of))
        for one in op.ops:
            given = [known[value] for value in one.operands_ if isinstance(value, Value)]
            known[one.result] = self._computed(one.function, given, one.result.dtype)
        return self._vector(known[op.made])

    def _computed(self, function: str, given: list[Known], dtype: DType) -> Known:
        """A function of numbers, which are converted to the format of its result before."""
        left, *others = (self._converted(one, dtype) for one in given)
        return self._combined(function, left, others[0]) if others else left

    def _converted(self, value: Known, dtype: DType) -> Known:
        """A number in another format."""
        if _is_exact(value.largest, dtype) or holds(dtype, value.dtype):
            return replace(value, dtype=dtype)
        return self._rounded(replace(self._placed(value), dtype=dtype))

    def _combined(self, function: str, left: Known, right: Known) -> Known:
        """A function of two numbers of one format."""
        dtype, is_sum = left.dtype, function != "mul"
        largest = left.largest + right.largest if is_sum and left.largest and right.largest else 0
        exact = bool(largest) and _is_exact(largest, dtype)
        if left.offset and exact and right.is_outer:  # what is too much is taken away at once
            sign = "-" if function == "add" else "+"
            right = replace(right, text=f"({right.text} {sign} {float(left.offset)}f)")
            left = replace(left, offset=0)
        left, right = self._placed(left), self._placed(right)
        is_outer = left.is_outer and right.is_outer
        texts = [one.text if is_outer else self._vector(one) for one in (left, right)]
        text = f"({texts[0]} {SIGNS[function]} {texts[1]})"
        sizes = (1.0, 2.0 * largest) if largest else None
        made = Known(text, dtype, is_outer, largest if exact else 0, sizes)
        if exact or dtype == f32:
            return made
        return self._rounded(made, () if is_sum else (left, right))

    def _rounded(self, value: Known, factors: tuple[Known, ...] = ()) -> Known:
        """A number rounded to its format; of a product it may be known that a simple way does."""
        dtype = value.dtype
        if value.is_outer:
            narrow = self.convert(value.text, f32, dtype)
            return replace(value, text=self.convert(narrow, dtype, f32))
        self.kept.add(dtype)
        exact = self._line(value.text)
        sizes = next((one.sizes for one in factors if not one.is_outer and one.sizes), None)
        scale = next((one for one in factors if one.is_outer), None)
        text = f"kept_{dtype}<vector, bits>({exact})"
        if sizes is not None and scale is not None:
            least, largest = SIMPLE[dtype]
            at = self._array(scale)
            low, high = self.within.get(at, (0.0, math.inf))
            self.within[at] = max(low, least / sizes[0]), min(high, largest / sizes[1])
            text = f"SIMPLE ? near_{dtype}<vector, bits>({exact}) : {text}"
        return replace(value, text=self._line(text))

    def _placed(self, value: Known) -> Known:
        """A number that its text gives exactly."""
        if not value.offset:
            return value
        return replace(value, text=self._line(f"{value.text} - {float(value.offset)}f"), offset=0)

    def _vector(self, value: Known) -> str:
        """A number as a vector of columns."""
        value = self._placed(value)
        return f"of_column{self._array(value)}" if value.is_outer else value.text

    def _array(self, value: Known) -> int:
        """The array of a number that belongs to columns."""
        if value.text not in self.arrays:
            self.arrays.append(value.text)
        return self.arrays.index(value.text)

    def _line(self, text: str) -> str:
        """A vector of its own."""
        name = f"x{len(self.lines)}"
        self.lines.append(f"const vector {name} = {text};")
        return name


def _is_exact(largest: int, dtype: DType) -> bool:
    """Whether a format has all integers up to a size."""
    return 0 < largest <= 1 << DIGITS[dtype]
