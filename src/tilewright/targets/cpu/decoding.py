"""Operands that are decoded while their panels are packed, from elements and side arrays such as scales.

A schedule with ``staging="panels"`` loads the elements and the side arrays into fragments, computes the
operand there, and stores it.  A CPU has no registers for a tile.  So all operations between memory and a
panel of B become one `Decoding`, which produces one panel at a time, just before that panel is multiplied.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from tilewright.dtypes import DType, bf16, f4e2m1, f16, f32, holds, limits
from tilewright.ir.ops import Copy, Elementwise, Op
from tilewright.ir.packed_ops import Unpack
from tilewright.ir.types import Memory, TensorType, Value
from tilewright.symbolic.expr import add, expand, mul
from tilewright.symbolic.nodes import Sym
from tilewright.symbolic.rebuilding import substitute, symbols
from tilewright.targets.cpu.linear import slowest_first

FUNCTIONS = ("convert", "add", "sub", "mul")
"""Functions that may compute an operand."""

KINDS = (f16, bf16, f32)
"""Dtypes in which these functions compute."""

LEAST_RUN = 8
"""Side elements are shared by a multiple of this number of neighbours along K."""


@dataclass(frozen=True)
class Decoding(Op):
    """A copy of an operand computed from elements in memory.  It exists only while text is emitted.

    Args:
        elements: the copy of the main array's elements, or of the bytes that hold them, to a fragment.
        held: the fragment of the elements.
        packed: the dtype of elements that share bytes; None if each has bytes of its own.
        dim: the dimension along which neighbours share bytes.
        sides: the copies of the side arrays to fragments.
        ops: the operations that compute the operand, in program order.
        made: the operand.
        target: the tensor to which it is stored.
        run: neighbours along K that share their side elements.
    """

    name = "decoding"
    roles: ClassVar = {}
    elements: Copy
    held: Value
    packed: DType | None
    dim: int
    sides: tuple[Copy, ...]
    ops: tuple[Elementwise, ...]
    made: Value
    target: Value
    run: int

    @property
    def source(self) -> Value:
        """The tensor of the main array's elements, or of their bytes."""
        return self.elements.source

    @property
    def operands(self) -> tuple[Value, ...]:
        """See `Op.operands`."""
        return (*self.read, self.target)

    @property
    def read(self) -> tuple[Value, ...]:
        """See `Op.read`."""
        return tuple(copy.source for copy in (self.elements, *self.sides))

    @property
    def written(self) -> tuple[Value, ...]:
        """See `Op.written`."""
        return (self.target,)


def decoding_of(
    copy: Copy, before: Sequence[Op], readers: Mapping[Value, Sequence[Op]]
) -> tuple[Decoding, list[Op]] | None:
    """Return the copy of a fragment to panels as one decoding, or None if the computation is unknown.

    Args:
        copy: the copy from the fragment.
        before: the operations before it in its block.
        readers: the operations that read each fragment.

    Returns:
        The decoding, and the operations that it replaces.
    """
    chain = _Chain(before)
    if not chain.follow(copy.source) or not chain.ops or not chain.is_closed(copy, readers):
        return None
    unpack = chain.unpacks[0] if chain.unpacks else None
    elements = next((one for one in chain.loads if not _is_constant(one, LEAST_RUN)), None)
    if elements is None or len(chain.unpacks) > 1 or (unpack and unpack.source is not elements.target):
        return None
    sides = tuple(one for one in chain.loads if one is not elements)
    # The longest run of neighbours along K that share their elements of all side arrays.
    depth = copy.target.tensor.shape[1]
    assert isinstance(depth, int)
    runs = (run for run in range(depth, 0, -LEAST_RUN) if depth % run == depth % LEAST_RUN == 0)
    run = next((run for run in runs if all(_is_constant(one, run) for one in sides)), 0)
    order = slowest_first(elements.source.tensor.view)
    if not run or order is None:
        return None
    held, dim = elements.target, order[-1]
    kind: DType | None = None
    if unpack:
        held, kind = unpack.target, unpack.packed
        if dim != unpack.dim or (kind.is_float and kind != f4e2m1):  # the one packed float that is decoded
            return None
    ops = tuple(chain.ops)
    made = Decoding(
        elements, held, kind, dim, sides, ops, copy.source, copy.target, run, location=copy.location
    )
    return made, chain.taken


@dataclass
class _Chain:
    """The operations that compute a fragment.

    Args:
        before: the operations of the block.
        loads: the copies from memory.
        unpacks: the operations that take bytes apart.
        ops: the elementwise operations.
        taken: all of these operations.
    """

    before: Sequence[Op]
    loads: list[Copy] = field(default_factory=list)
    unpacks: list[Unpack] = field(default_factory=list)
    ops: list[Elementwise] = field(default_factory=list)
    taken: list[Op] = field(default_factory=list)

    def follow(self, value: Value) -> bool:
        """Collect all operations that compute a fragment; return False if one of them cannot be decoded."""
        makers = [
            op
            for op in self.before
            if (op.result is value if isinstance(op, Elementwise) else value in op.written)
        ]
        if len(makers) != 1:
            return False
        (maker,) = makers
        if any(maker is one for one in self.taken):
            return True
        if isinstance(maker, Copy):
            # Only loads of matrices in global memory, with zeros outside, without a conversion.
            kind, is_plain = maker.source.type, maker.reduction is None and maker.other == 0
            if not isinstance(kind, TensorType) or kind.memory is not Memory.GLOBAL or kind.view.rank != 2:
                return False
            if not is_plain or maker.source.dtype != maker.target.dtype:
                return False
            self.loads.append(maker)
        elif isinstance(maker, Unpack) and self.follow(maker.source):
            self.unpacks.append(maker)
        elif (
            isinstance(maker, Elementwise)
            and maker.function in FUNCTIONS
            and maker.result.dtype in KINDS
            and all(isinstance(v, Value) and v.is_fragment and self.follow(v) for v in maker.operands_)
        ):
            self.ops.append(maker)
        else:
            return False
        self.taken.append(maker)
        return True

    def is_closed(self, copy: Copy, readers: Mapping[Value, Sequence[Op]]) -> bool:
        """Whether no other operation reads its fragments, or writes its sources before they are computed."""
        own = (copy, *self.taken)
        for value in {value for op in self.taken for value in (*op.written, *op.results)}:
            if not all(any(reader is one for one in own) for reader in readers.get(value, ())):
                return False
        loaded = {load.source.buffer for load in self.loads}
        others = (op for op in self.before if not any(op is one for one in own))
        return not any(loaded & {value.buffer for value in op.written} for op in others)


def _is_constant(copy: Copy, run: int) -> bool:
    """Whether a copy's source has one element for each run of neighbours along K."""
    view = copy.source.tensor.view
    depth = view.shape[1]
    if depth == 1:
        return True
    assert isinstance(depth, int)
    which, inner = Sym("which", 0, -(-depth // run) - 1), Sym("inner", 0, run - 1)
    offset = substitute(view.offset, {view.coords[1]: add(mul(which, run), inner)})
    return inner not in symbols(expand(offset))


# ----------------------------------------------------------------
#
# The computation of a decoded operand, in vectors along its columns.
#
# A 16-bit number is held as the f32 of the same value, and rounded where the author's operations round.
# The ranges of integers are known: an exact result is not rounded, and a product that can neither overflow
# nor be subnormal is rounded in fewer steps.


HALF, CODES = 8, 16
"""Offset of a signed 4-bit code, and of the float whose upper fraction bits hold a code: 16 + code."""

LARGEST_BITS = 8
"""Largest width of integers whose ranges are used."""


def offset_of(kind: DType) -> int:
    """Return the excess of the float that holds a 4-bit code over the number; 0 for floats.

    Example:
        >>> from tilewright.dtypes import f4e2m1, i4
        >>> offset_of(i4), offset_of(f4e2m1)
        (24, 0)
    """
    return 0 if kind.is_float else CODES + (HALF if kind.kind == "int" else 0)


def largest_of(kind: DType) -> int:
    """Return the largest magnitude of an integer dtype; 0 for floats and for wide integers."""
    if kind.kind not in ("int", "uint") or kind.bits > LARGEST_BITS:
        return 0
    return int(max(-limits(kind)[0], limits(kind)[1]))


def sizes_of(kind: DType) -> tuple[float, float] | None:
    """Return the smallest nonzero magnitude of a dtype and the largest; None if unknown."""
    if kind == f4e2m1:
        return 0.5, 6.0
    largest = largest_of(kind)
    return (1.0, float(largest)) if largest else None


SIMPLE = {f16: (2.0**-14, 65504.0), bf16: (2.0**-126, 2.0**100)}
"""Least and largest magnitude of an f32 that the short rounding, by two additions, rounds to a format."""

DIGITS = {f16: 11, bf16: 8, f32: 24}
"""Significand bits of a format."""

SIGNS = {"add": "+", "sub": "-", "mul": "*"}


@dataclass(frozen=True)
class DecodedNumber:
    """A number of the decoding computation: its expression, and its known bounds.

    Args:
        text: its expression, for a vector of columns or for one column.
        dtype: its dtype.
        is_outer: whether it is a number of a column, the same for all k of one part.
        largest: upper bound of an integer's magnitude; 0 for floats and unknown integers.
        sizes: the smallest nonzero magnitude and the largest; None if unknown.
        offset: the excess of the text's value over the number.
    """

    text: str
    dtype: DType
    is_outer: bool = False
    largest: int = 0
    sizes: tuple[float, float] | None = None
    offset: int = 0


@dataclass
class Computing:
    """Collects the text that computes an operand.

    Args:
        convert: spells a conversion of one number, as `CpuEmitter.convert` does.
        lines: the statements for a vector of columns at one k.
        arrays: for each array over columns, the expression of one column's number.
        within: by array, the range of magnitudes in which the short rounding is right for all products.
        kept: the formats to which vectors are rounded.
    """

    convert: Callable[[str, DType, DType], str]
    lines: list[str] = field(default_factory=list)
    arrays: list[str] = field(default_factory=list)
    within: dict[int, tuple[float, float]] = field(default_factory=dict)
    kept: set[DType] = field(default_factory=set)

    def result(self, op: Decoding) -> str:
        """Return the text of the decoded vector; ``loaded0[n]`` is a column's number of a side array."""
        kind = op.packed or op.elements.source.dtype
        own = DecodedNumber("raw", op.held.dtype, False, largest_of(kind), sizes_of(kind))
        known = {op.held: replace(own, offset=offset_of(kind) if op.packed else 0)}
        for at, copy in enumerate(op.sides):
            of = copy.source.dtype
            known[copy.target] = DecodedNumber(f"loaded{at}[n]", of, True, largest_of(of), sizes_of(of))
        for one in op.ops:
            given = [known[value] for value in one.operands_ if isinstance(value, Value)]
            left, *others = (self._converted(value, one.result.dtype) for value in given)
            known[one.result] = self._combined(one.function, left, others[0]) if others else left
        return self._vector(known[op.made])

    def _converted(self, value: DecodedNumber, dtype: DType) -> DecodedNumber:
        """Return a number converted to another format."""
        if _is_exact(value.largest, dtype) or holds(dtype, value.dtype):
            return replace(value, dtype=dtype)
        return self._rounded(replace(self._placed(value), dtype=dtype))

    def _combined(self, function: str, left: DecodedNumber, right: DecodedNumber) -> DecodedNumber:
        """Return the sum, difference or product of two numbers of one format."""
        dtype, is_sum = left.dtype, function != "mul"
        largest = left.largest + right.largest if is_sum and left.largest and right.largest else 0
        exact = bool(largest) and _is_exact(largest, dtype)
        if left.offset and exact and right.is_outer:  # subtract the offset at once
            sign = "-" if function == "add" else "+"
            right = replace(right, text=f"({right.text} {sign} {float(left.offset)}f)")
            left = replace(left, offset=0)
        left, right = self._placed(left), self._placed(right)
        is_outer = left.is_outer and right.is_outer
        texts = [one.text if is_outer else self._vector(one) for one in (left, right)]
        text = f"({texts[0]} {SIGNS[function]} {texts[1]})"
        sizes = (1.0, 2.0 * largest) if largest else None
        made = DecodedNumber(text, dtype, is_outer, largest if exact else 0, sizes)
        if exact or dtype == f32:
            return made
        return self._rounded(made, () if is_sum else (left, right))

    def _rounded(self, value: DecodedNumber, factors: tuple[DecodedNumber, ...] = ()) -> DecodedNumber:
        """Return a number rounded to its format; known factors of a product may allow a short rounding."""
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

    def _placed(self, value: DecodedNumber) -> DecodedNumber:
        """Return a number with its offset subtracted."""
        if not value.offset:
            return value
        return replace(value, text=self._line(f"{value.text} - {float(value.offset)}f"), offset=0)

    def _vector(self, value: DecodedNumber) -> str:
        """Return a number as a vector of columns."""
        value = self._placed(value)
        return f"of_column{self._array(value)}" if value.is_outer else value.text

    def _array(self, value: DecodedNumber) -> int:
        """Return the index of the array over columns that holds a number."""
        if value.text not in self.arrays:
            self.arrays.append(value.text)
        return self.arrays.index(value.text)

    def _line(self, text: str) -> str:
        """Declare a vector; return its name."""
        name = f"x{len(self.lines)}"
        self.lines.append(f"const vector {name} = {text};")
        return name


def _is_exact(largest: int, dtype: DType) -> bool:
    """Whether a format represents all integers up to a magnitude."""
    return 0 < largest <= 1 << DIGITS[dtype]
