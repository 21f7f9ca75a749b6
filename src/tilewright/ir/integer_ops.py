"""Integers of the kernel: variables, named integers, and integers in memory (group sizes, offsets).

An operation with an integer result has a function ``symbol``, which returns its known range and divisor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, TypeGuard

from tilewright.dtypes import limits
from tilewright.errors import Violation
from tilewright.ir.indices import VARIABLE, named_integer
from tilewright.ir.op import Op
from tilewright.ir.traits import ADDRESSED, CONTROL, NAMES, Traits
from tilewright.ir.types import Type, Value, VariableType
from tilewright.symbolic.expr import less, prove
from tilewright.symbolic.nodes import Int, Sym
from tilewright.symbolic.ranges import bits, bounds


@dataclass(frozen=True)
class Variable(Op):
    """A mutable integer with an initial value."""

    name = "var"
    traits = CONTROL
    roles: ClassVar = {"result": "defines"}
    result: Value
    initial: Int

    @staticmethod
    def infer(initial: Int) -> Type:
        """Type of the result."""
        return VariableType()


@dataclass(frozen=True)
class SetVariable(Op):
    """``variable = value``."""

    name = "set_var"
    traits = CONTROL
    roles: ClassVar = {"variable": "writes"}
    variable: Value
    value: Int


@dataclass(frozen=True)
class GetVariable(Op):
    """Define a symbol with the variable's current value."""

    name = "get_var"
    traits = CONTROL
    roles: ClassVar = {"result": "defines", "variable": "reads"}
    result: Sym
    variable: Value

    @staticmethod
    def symbol(name: str, variable: Value) -> Sym:
        """The symbol of the result."""
        return Sym(name, *VARIABLE)


@dataclass(frozen=True)
class Let(Op):
    """Name an integer: the result is a symbol with the value's range and divisor."""

    name = "let"
    traits = NAMES
    roles: ClassVar = {"result": "defines"}
    result: Sym
    value: Int

    @staticmethod
    def symbol(name: str, value: Int) -> Sym:
        """The symbol of the result."""
        return named_integer(name, value)


@dataclass(frozen=True)
class ReadIndex(Op):
    """Define a symbol with an integer from memory, the same for all threads; each thread reads it.

    The read takes place at the operation, after the barriers and waits before it.

    Args:
        source: a tensor without dimensions, of an integer dtype; outside of its array it reads as 0.
        low: smallest legal value; None: the smallest of its dtype.
        stop: one more than the largest legal value; None: as large as its dtype allows.
        multiple: a divisor of the value.
    """

    name = "read_index"
    traits = Traits(ADDRESSED)
    roles: ClassVar = {"result": "defines", "source": "reads"}
    result: Sym
    source: Value
    low: Int | None = None
    stop: Int | None = None
    multiple: int = 1

    @staticmethod
    def symbol(
        name: str, source: Value, low: Int | None = None, stop: Int | None = None, multiple: int = 1
    ) -> Sym:
        """The symbol of the result, with its known range and divisor."""
        least, most = (int(end) for end in limits(source.dtype))
        first = least if low is None else max(bounds(low)[0], least)
        last = most if stop is None else min(bounds(stop)[1] - 1, most)
        return Sym(name, int(first), int(max(first, last)), multiple, None if isinstance(stop, int) else stop)

    def verify(self) -> Iterator[Violation]:
        """Require one element of an integer dtype in memory, and a range that is not empty."""
        if not self.source.is_tensor or self.source.tensor.view.rank:
            text = f"{self.source} is no single element of a tensor in memory"
            yield self.violation("index", text, f"an index for each dimension of {self.source}")
        elif self.source.tensor.indices:
            text = f"where {self.source} lies is read from {self.source.tensor.indices[0]} itself"
            yield self.violation("index", text, "tw.index of the row, then of the element")
        elif self.source.dtype.kind not in ("int", "uint") or self.source.dtype.bits < 8:
            yield self.violation(
                "index", f"{self.source} is {self.source.dtype}", "a tensor of integers of 8 bits or more"
            )
        if self.multiple < 1:
            yield self.violation("index", f"multiples of {self.multiple}", "a multiple of 1 or more")
        if self.low is not None and self.stop is not None and prove(less(self.low, self.stop)) is False:
            yield self.violation("index", f"no integer lies in [{self.low}, {self.stop})", "low < stop")


def is_wide(op: Op) -> TypeGuard[GetVariable | ReadIndex]:
    """Return whether an operation takes a 64-bit integer from a variable or from memory."""
    return isinstance(op, GetVariable | ReadIndex) and bits(op.result) == 64


INTEGER_OPS: tuple[type[Op], ...] = (Variable, SetVariable, GetVariable, Let, ReadIndex)
