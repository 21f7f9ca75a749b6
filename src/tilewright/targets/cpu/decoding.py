"""Operands decoded while their panels are packed, from a tile's elements and side arrays such as scales.

A schedule with ``staging="panels"`` loads the elements and the side arrays into fragments, computes the
operand there, and stores it.  A CPU has no registers for a tile.  So everything between memory and a panel
of B becomes one `Decoding`, which produces one panel at a time, just before that panel is multiplied.
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
from tilewright.symbolic.nodes import Int, Sym
from tilewright.symbolic.rebuilding import substitute, symbols
from tilewright.targets.cpu.linear import slowest_first

FUNCTIONS = ("convert", "add", "sub", "mul")
"""Functions that may compute an operand."""

KINDS = (f16, bf16, f32)
"""Dtypes in which they compute."""

LEAST_RUN = 8
"""Runs of neighbours along K that share their side elements must be multiples of this."""


@dataclass(frozen=True)
class Decoding(Op):
    """A copy of an operand computed from elements in memory.  It exists only while text is emitted.

    Args:
        elements: the copy of the operand's own elements, or of the bytes that hold them, to a fragment.
        held: the fragment of the elements.
        packed: the dtype of elements that share bytes; None: they do not.
        dim: along which neighbours share bytes.
        beside: the copies of its side arrays, to fragments.
        ops: the operations that compute it, in program order.
        made: the operand.
        target: where it goes.
        run: neighbours along K that share their side elements.
    """

    name = "decoding"
    roles: ClassVar = {}
    elements: Copy
    held: Value
    packed: DType | None
    dim: int
    beside: tuple[Copy, ...]
    ops: tuple[Elementwise, ...]
    made: Value
    target: Value
    run: int

    @property
    def source(self) -> Value:
        """The tensor of the elements, or of their bytes."""
        return self.elements.source

    @property
    def operands(self) -> tuple[Value, ...]:
        """See `Op.operands`."""
        return (*self.read, self.target)

    @property
    def read(self) -> tuple[Value, ...]:
        """See `Op.read`."""
        return tuple(copy.source for copy in (self.elements, *self.beside))

    @property
    def written(self) -> tuple[Value, ...]:
        """See `Op.written`."""
        return (self.target,)


def decoding_of(
    copy: Copy, before: Sequence[Op], readers: Mapping[Value, Sequence[Op]]
) -> tuple[Decoding, list[Op]] | None:
    """The copy of a fragment to panels as one decoding, or None for unknown computations.

    Args:
        copy: from the fragment.
        before: what comes before it in its block.
        readers: who reads each fragment.

    Returns:
        The operation, and those that it is made of.
    """
    chain = _Chain(before)
    if not chain.follow(copy.source) or not chain.ops or not chain.is_closed(copy, readers):
        return None
    unpack = chain.unpacks[0] if chain.unpacks else None
    elements = next((one for one in chain.loads if not _is_still(one, LEAST_RUN)), None)
    if elements is None or len(chain.unpacks) > 1 or (unpack and unpack.source is not elements.target):
        return None
    beside = tuple(one for one in chain.loads if one is not elements)
    run = _common_run(beside, copy.target.tensor.shape[1])
    order = slowest_first(elements.source.tensor.view)
    if not run or order is None or (unpack and (order[-1] != unpack.dim or not _is_known(unpack.packed))):
        return None
    held = unpack.target if unpack else elements.target
    kind, dim = (unpack.packed, unpack.dim) if unpack else (None, order[-1])
    ops = tuple(chain.ops)
    made = Decoding(
        elements, held, kind, dim, beside, ops, copy.source, copy.target, run, location=copy.location
    )
    return made, chain.taken


def _is_known(packed: DType) -> bool:
    """Whether codes are taken apart here: integers, and the one float of 4 bits."""
    return not packed.is_float or packed == f4e2m1


@dataclass
class _Chain:
    """The operations that compute a fragment.

    Args:
        before: the operations of the block.
        loads: the copies of arrays that it begins with.
        unpacks: what takes bytes apart.
        ops: the operations.
        taken: all of them.
    """

    before: Sequence[Op]
    loads: list[Copy] = field(default_factory=list)
    unpacks: list[Unpack] = field(default_factory=list)
    ops: list[Elementwise] = field(default_factory=list)
    taken: list[Op] = field(default_factory=list)

    def follow(self, value: Value) -> bool:
        """Find what makes a fragment, and what that is made of; whether all of it is known."""
        makers = [op for op in self.before if _makes(op, value)]
        if len(makers) != 1:
            return False
        (maker,) = makers
        if any(maker is one for one in self.taken):
            return True
        if isinstance(maker, Copy) and _is_far(maker):
            self.loads.append(maker)
        elif isinstance(maker, Unpack) and self.follow(maker.source):
            self.unpacks.append(maker)
        elif isinstance(maker, Elementwise) and self._is_computed(maker):
            self.ops.append(maker)
        else:
            return False
        self.taken.append(maker)
        return True

    def _is_computed(self, op: Elementwise) -> bool:
        """Whether it is a function that is known, of fragments that are."""
        if op.function not in FUNCTIONS or op.result.dtype not in KINDS:
            return False
        return all(isinstance(one, Value) and one.is_fragment and self.follow(one) for one in op.operands_)

    def is_closed(self, copy: Copy, readers: Mapping[Value, Sequence[Op]]) -> bool:
        """Whether no other operation reads its fragments, or writes its sources before they are computed."""
        own = (copy, *self.taken)
        made = {value for op in self.taken for value in (*op.written, *op.results)}
        for value in made:
            if not all(any(reader is one for one in own) for reader in readers.get(value, ())):
                return False
        loaded = {load.source.buffer for load in self.loads}
        others = (op for op in self.before if not any(op is one for one in own))
        return not any(loaded & {value.buffer for value in op.written} for op in others)


def _makes(op: Op, value: Value) -> bool:
    """Whether an operation gives a fragment its contents."""
    return op.result is value if isinstance(op, Elementwise) else value in op.written


def _is_far(copy: Copy) -> bool:
    """Whether a copy reads an array, zeros past its edge, as it is."""
    kind = copy.source.type
    is_far = isinstance(kind, TensorType) and kind.memory is Memory.GLOBAL and kind.view.rank == 2
    return is_far and copy.reduction is None and copy.other == 0 and copy.source.dtype == copy.target.dtype


def _common_run(beside: Sequence[Copy], depth: Int) -> int:
    """Neighbours along K that share their elements of all side arrays; 0 if they are too few."""
    assert isinstance(depth, int)
    if depth % LEAST_RUN:
        return 0
    runs = (run for run in range(depth, 0, -LEAST_RUN) if depth % run == 0)
    return next((run for run in runs if all(_is_still(one, run) for one in beside)), 0)


def _is_still(copy: Copy, run: int) -> bool:
    """Whether a run of neighbours along K is one element of a copy's source."""
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
"""Of the codes of 4 bits; a code is taken for a fraction of what is as large as there are codes."""

LARGEST_BITS = 8
"""Bits of integers whose ranges are used, at most."""


def offset_of(kind: DType) -> int:
    """The offset by which the first reading of a 4-bit code is too large; 0 for floats.

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
    """The smallest nonzero size of a dtype's numbers, and the largest; None if unknown."""
    if kind == f4e2m1:
        return 0.5, 6.0
    largest = largest_of(kind)
    return (1.0, float(largest)) if largest else None


SIMPLE = {f16: (2.0**-14, 65504.0), bf16: (2.0**-126, 2.0**100)}
"""Sizes of f32 that are rounded to a format by additions alone."""

DIGITS = {f16: 11, bf16: 8, f32: 24}

SIGNS = {"add": "+", "sub": "-", "mul": "*"}


@dataclass(frozen=True)
class DecodedNumber:
    """A number of the computation, with the bounds that are known of it.

    Args:
        text: its expression, for a vector of columns or for one column.
        dtype: its dtype.
        is_outer: whether it belongs to a column, for all neighbours along K of one part.
        largest: upper bound of an integer's size; 0 for floats and unknown integers.
        sizes: the smallest nonzero size and the largest; None if unknown.
        offset: the excess of the text over the number.
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
        """The decoded operand, as a vector; ``loaded0[n]`` is a column's number of a side array."""
        kind = op.packed or op.elements.source.dtype
        own = DecodedNumber("raw", op.held.dtype, False, largest_of(kind), sizes_of(kind))
        known = {op.held: replace(own, offset=offset_of(kind) if op.packed else 0)}
        for at, copy in enumerate(op.beside):
            of = copy.source.dtype
            known[copy.target] = DecodedNumber(f"loaded{at}[n]", of, True, largest_of(of), sizes_of(of))
        for one in op.ops:
            given = [known[value] for value in one.operands_ if isinstance(value, Value)]
            known[one.result] = self._computed(one.function, given, one.result.dtype)
        return self._vector(known[op.made])

    def _computed(self, function: str, given: list[DecodedNumber], dtype: DType) -> DecodedNumber:
        """A function of numbers, which are converted to the format of its result before."""
        left, *others = (self._converted(one, dtype) for one in given)
        return self._combined(function, left, others[0]) if others else left

    def _converted(self, value: DecodedNumber, dtype: DType) -> DecodedNumber:
        """A number in another format."""
        if _is_exact(value.largest, dtype) or holds(dtype, value.dtype):
            return replace(value, dtype=dtype)
        return self._rounded(replace(self._placed(value), dtype=dtype))

    def _combined(self, function: str, left: DecodedNumber, right: DecodedNumber) -> DecodedNumber:
        """A function of two numbers of one format."""
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

    def _placed(self, value: DecodedNumber) -> DecodedNumber:
        """A number that its text gives exactly."""
        if not value.offset:
            return value
        return replace(value, text=self._line(f"{value.text} - {float(value.offset)}f"), offset=0)

    def _vector(self, value: DecodedNumber) -> str:
        """A number as a vector of columns."""
        value = self._placed(value)
        return f"of_column{self._array(value)}" if value.is_outer else value.text

    def _array(self, value: DecodedNumber) -> int:
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
