"""Elements narrower than a byte: byte views of tensors, conversions of byte fragments, and legality.

Authors copy tensors of packed elements.  The pass `tilewright.passes.packed` makes these operations and is
the only code that addresses anything below a byte.  All other code then sees bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from tilewright.dtypes import DType, u8
from tilewright.errors import Violation
from tilewright.ir.copies import Copy
from tilewright.ir.op import ANYWHERE, NAMES, Op, Traits
from tilewright.ir.types import BarrierType, Type, Value, VariableType
from tilewright.symbolic.expr import add, all_of, expand, floordiv, less, mul, parts_of, product
from tilewright.symbolic.nodes import And, Cond, Int, Less, Mul, divisor
from tilewright.threads.distribution import Distribution, Mode, merge
from tilewright.threads.registers import Digit, register_digits
from tilewright.views.view import View, coordinates


def view_in_bytes(view: View, dim: int, each: int) -> View:
    """Return the byte view of a view of elements; a byte holds ``each`` neighbours along ``dim``.

    Example:
        >>> print(view_in_bytes(View.strided((4, 8), (8, 1)), 1, 2))
        (4, 4) -> 4*i0 + i1
    """
    shape = tuple(floordiv(n, each) if d == dim else n for d, n in enumerate(view.shape))
    old = tuple(mul(i, each) if d == dim else i for d, i in enumerate(coordinates(shape)))
    made = view.map(shape, old)
    elems = floordiv(add(made.elems, each - 1), each)
    return View(shape, divided(made.offset, each), elems, condition_in_bytes(made.valid, each))


def condition_in_bytes(part: Cond, each: int) -> Cond:
    """Return the same condition with multiples divided by the number of elements per byte.

    A coordinate without a factor shows that neighbours are inside together; ``2*i < K`` hides that.

    Example:
        >>> from tilewright.symbolic.expr import less
        >>> from tilewright.symbolic.nodes import Sym
        >>> print(condition_in_bytes(less(Sym("i") * 2, Sym("K", 0, None, 4)), 2))
        i < K // 2
    """
    match part:
        case And():
            return all_of(*(condition_in_bytes(piece, each) for piece in part.parts))
        case Less() if not divisor(part.left) % each and not divisor(part.right) % each:
            return less(divided(part.left, each), divided(part.right, each))
        case _:
            return part


def divided(offset: Int, each: int) -> Int:
    """Divide an offset that is a multiple of a number; in a product, divide the factor that is a multiple.

    Example:
        >>> from tilewright.symbolic.nodes import Sym
        >>> row, stride = Sym("row"), Sym("stride", 0, None, 2)
        >>> print(divided(row * stride + 4, 2))
        (stride // 2)*row + 2
    """
    parts, constant = parts_of(expand(offset))
    total = floordiv(constant, each)
    for term, factor in parts:
        factors = term.factors if isinstance(term, Mul) else (term,)
        known = next((f for f in factors if divisor(f) % each == 0), None)
        if factor % each == 0:
            total = add(total, mul(term, factor // each))
        elif known is None:
            total = add(total, floordiv(mul(term, factor), each))
        else:
            rest = (f for f in factors if f is not known)
            total = add(total, product(factor, floordiv(known, each), *rest))
    return total


def map_in_bytes(spread: Distribution, each: int) -> Distribution:
    """Return the distribution of the bytes, given the distribution ``spread`` of the elements.

    Example:
        >>> map_in_bytes(Distribution((4, 8), (Mode(4, 0, 1),), (Mode(8, 1, 1),)), 2).values
        (Mode(extent=4, dim=1, step=1),)
    """
    dim = spread.vector()[0]

    def fewer(mode: Mode) -> Mode:
        if mode.dim != dim:
            return mode
        run = mode.step == 1
        return Mode(mode.extent // each, dim, 1) if run else Mode(mode.extent, dim, mode.step // each)

    shape = tuple(n // each if d == dim else n for d, n in enumerate(spread.shape))
    values = (fewer(mode) for mode in merge(spread.values) if mode.extent > 1)
    return Distribution(shape, tuple(map(fewer, spread.threads)), tuple(values))


def in_memory_order(spread: Distribution) -> Distribution:
    """Return the same map with each thread's neighbours in consecutive registers, in the order of the bytes.

    Example:
        >>> spread = Distribution((1, 8), (), (Mode(2, 1, 4), Mode(4, 1, 1)))
        >>> in_memory_order(spread).values
        (Mode(extent=4, dim=1, step=1), Mode(extent=2, dim=1, step=4))
    """
    dim, width = spread.vector()
    if width == 1:
        runs = [mode.dim for mode in spread.values if mode.dim is not None and mode.step == 1]
        dim = max(runs, default=dim)
    along = sorted((mode for mode in spread.values if mode.dim == dim), key=lambda mode: mode.step)
    others = (mode for mode in spread.values if mode.dim != dim)
    return Distribution(spread.shape, spread.threads, (*along, *others))


@dataclass(frozen=True)
class AsBytes(Op):
    """A tensor of packed elements viewed as bytes; ``dim`` shrinks by the number of elements per byte."""

    name = "as_bytes"
    traits = NAMES
    roles: ClassVar = {"result": "defines", "source": "uses"}
    result: Value
    source: Value
    dim: int

    @staticmethod
    def infer(source: Value, dim: int) -> Type:
        """Type of the result."""
        old = source.tensor
        view = view_in_bytes(old.view, dim, old.dtype.per_byte)
        return replace(old, dtype=u8, view=view, distribution=None)


@dataclass(frozen=True)
class _Conversion(Op):
    """Base of `Unpack` and `Pack`."""

    traits = Traits(ANYWHERE)
    roles: ClassVar = {"source": "reads", "target": "writes"}
    source: Value
    target: Value
    packed: DType
    dim: int

    @property
    def ends(self) -> tuple[Value, Value]:
        """The fragment of bytes, and the fragment of numbers."""
        return self.source, self.target

    def verify(self) -> Iterator[Violation]:
        """Require bytes of a packed dtype, and numbers of another."""
        held, numbers = self.ends
        if held.dtype != u8 or not self.packed.is_packed or numbers.dtype.is_packed:
            kinds = f"{held.dtype} bytes of {self.packed} and numbers of {numbers.dtype}"
            yield self.violation("dtype", kinds, "bytes of u8, of a packed dtype, and numbers of another")


@dataclass(frozen=True)
class Unpack(_Conversion):
    """``target[..., i, ...] = source[..., i // n, ...] >> bits * (i % n)``, as numbers of a packed dtype.

    Args:
        source: a fragment of bytes.
        target: the fragment of the numbers, converted to its dtype; ``n`` times as long along ``dim``.
        packed: the dtype of the elements in the bytes.
        dim: the dimension along which neighbours share bytes.
        table: if not empty, the number of each pattern of bits, rounded to the dtype of ``target``.
    """

    name = "unpack"
    table: tuple[float, ...] = ()

    def verify(self) -> Iterator[Violation]:
        """Require also a number for each pattern of bits."""
        yield from super().verify()
        if self.table and len(self.table) != 1 << self.packed.bits:
            text = f"a table of {len(self.table)} numbers for {self.packed}"
            yield self.violation("elementwise", text, f"{1 << self.packed.bits} numbers")

    @property
    def digits(self) -> tuple[Digit, ...]:
        """Digits of the register number, in the order in which the bytes hold the numbers."""
        spread = self.target.fragment.distribution
        found = register_digits(spread, in_memory_order(spread), (0,) * spread.rank)
        assert found is not None, "each thread holds the same numbers in another order"
        return found[1]


@dataclass(frozen=True)
class Pack(_Conversion):
    """The inverse of `Unpack`: the numbers of ``source``, rounded to a packed dtype, as bytes.

    Args:
        source: the fragment of the numbers.
        target: the fragment of bytes.
        packed: the dtype of the elements in the bytes.
        dim: the dimension along which neighbours share bytes.
    """

    name = "pack"

    @property
    def ends(self) -> tuple[Value, Value]:
        """The fragment of bytes, and the fragment of numbers."""
        return self.target, self.source


PACKED_OPS: tuple[type[Op], ...] = (AsBytes, Unpack, Pack)


# ---------------------------------------------------------------- legality of packed elements
# They can only be stored in memory and copied.


KEEPS = ("shared", "view", "gather", "peer", "partition", "as_bytes", "copy")
"""Names of the operations that may have packed operands or results."""


def is_packed(value: object) -> bool:
    """Return whether a value holds elements narrower than a byte."""
    if not isinstance(value, Value) or isinstance(value.type, VariableType | BarrierType):
        return False
    return value.dtype.is_packed


def verify_packed(op: Op) -> Iterator[Violation]:
    """Yield the rules of packed elements that an otherwise legal operation breaks."""
    found = next((v for v in (*op.results, *op.operands) if is_packed(v)), None)
    if found is not None and (op.name not in KEEPS or found.is_fragment):
        what = "kept in registers" if found.is_fragment else f"an operand of {op.verb}"
        text = f"elements of {found.dtype} share bytes in memory; {found} cannot be {what}"
        near = f"tw.load(tensor, element=tw.{'f16' if found.dtype.is_float else 'i8'}), which converts them"
        yield op.violation("packed", text, near)
    if isinstance(op, Copy):
        yield from _verify_copy(op)


def _verify_copy(op: Copy) -> Iterator[Violation]:
    """Check a copy of packed elements: one thread must move whole bytes, synchronously or by `copy_async`."""
    sides = [value for value in (op.source, op.target) if is_packed(value) and value.is_tensor]
    if not sides:
        return
    kind = sides[0].dtype
    if len(sides) == 2 and op.source.dtype != op.target.dtype:
        text = f"{op.source} is {op.source.dtype}, {op.target} is {op.target.dtype}"
        yield op.violation("packed", text, "through a fragment of a wider type")
    if op.engine == "bulk":
        nearest = "the array of bytes itself, of u8, or tw.copy"
        yield op.violation("packed", f"{op.verb} of packed {kind}", nearest)
        return
    if op.reduction is not None:
        nearest = f"tw.load(tensor, element=tw.{op.target.dtype}), and a copy of the fragment"
        yield op.violation("packed", f"reduction={op.reduction!r} of packed {kind} in memory", nearest)
        return
    if op.other != 0:
        yield op.violation("packed", f"other={op.other} of packed {kind}", "other=0")
        return
    spread = in_memory_order(op.spread) if op.target.is_fragment else op.spread
    dim, run = spread.vector()
    each = kind.per_byte
    steps = [mode.step for mode in (*spread.threads, *spread.values) if mode.dim == dim]
    if run % each or (op.vector or each) % each or any(step % each for step in steps if step != 1):
        taken = run if run % each else op.vector
        yield op.violation(
            "packed",
            f"each thread takes {taken} neighbours of {kind} along dimension {dim}: {each} share a byte, "
            "which one thread must move as a whole",
            f"runs of {each} or more along the dimension that is contiguous, and vectors that are a multiple",
        )
        return
    for side in sides:
        if obstacle := side.tensor.view.vector_obstacle(dim, each):
            apart = f"{each} neighbours of {kind} along dimension {dim} of {side} do not share a byte"
            view = side.tensor.view
            others = (d for d in range(view.rank) if d != dim and not view.vector_obstacle(d, each))
            along = next(others, None)
            nearest = "tiles and slices that begin and end at whole bytes, along the contiguous dimension"
            if along is not None:
                nearest = f"vector_dim={along}, along which they do"
            yield op.violation("packed", f"{apart}: {obstacle}", nearest)
