"""Integers of the kernel: index symbols, variables, named integers, and integers in memory.

An operation with an integer result has a function ``symbol``, which returns its known range and divisor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, TypeGuard

from tilewright.dtypes import limits
from tilewright.errors import Violation
from tilewright.ir.op import ADDRESSED, CONTROL, NAMES, Op, Traits
from tilewright.ir.types import Type, Value, VariableType
from tilewright.symbolic.expr import add, less, prove
from tilewright.symbolic.nodes import Int, Mul, Sym, bits, bounds, divisor
from tilewright.symbolic.rebuilding import parts

# ---------------------------------------------------------------- index symbols


VARIABLE = -(2**63), 2**63 - 1
"""Smallest and largest integer that a variable holds."""

COUNTED = 2**31
"""Upper bound of loop indices over sizes and of named integers. Derived integers may have 64 bits."""


def is_product(value: Int) -> bool:
    """Return whether an integer contains a product of sizes: it may exceed 32 bits although each size fits.

    Example:
        >>> m, n = Sym("m", 0, 2**31 - 1), Sym("n", 0, 2**31 - 1)
        >>> is_product(m * n + 1), is_product(4 * m), is_product(m % 64 * (n % 64))
        (True, False, False)
    """
    return bits(value) == 64 and any(isinstance(part, Mul) and bits(part) == 64 for part in parts(value))


def loop_index(name: str, start: Int, stop: Int, step: int) -> Sym:
    """Return the index symbol of ``for name in range(start, stop, step)``, with its range and divisor."""
    low, high = bounds(start)[0], bounds(add(stop, -1))[1]
    exact = divisor(start) if start != 0 else step
    return Sym(
        name,
        int(low) if low > -float("inf") else -(2**31),
        int(max(high, low)) if high < float("inf") else None,
        max(1, math.gcd(exact, step)),
        stop,
    )


def grid_index(name: str, extent: Int) -> Sym:
    """Return the index symbol of a grid axis."""
    high = bounds(extent)[1]
    return Sym(name, 0, int(max(high - 1, 0)) if high < float("inf") else None, 1, extent)


def named_integer(name: str, value: Int) -> Sym:
    """Return the symbol of `Let`, with the known range and divisor of its value."""
    low, high = bounds(value)
    return Sym(
        name,
        int(low) if low > -float("inf") else -(2**31),
        int(high) if high < float("inf") else None,
        max(divisor(value), 1),
    )


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
            text = f"{self.source} is not a single element of a tensor in memory"
            yield self.violation("index", text, f"an index for each dimension of {self.source}")
        elif self.source.tensor.indices:
            text = f"{self.source} is itself indexed by integers in memory, {self.source.tensor.indices[0]}"
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
