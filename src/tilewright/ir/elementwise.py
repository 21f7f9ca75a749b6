"""The dtype of an elementwise function's result, and where a saturating conversion clamps."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.dtypes import DType, boolean, f32, i32, i64, limits
from tilewright.errors import DTypeError
from tilewright.functions.table import COMPARISON, CONVERSION, FUNCTIONS
from tilewright.symbolic.nodes import Expr
from tilewright.symbolic.ranges import bounds
from tilewright.threads.distribution import Distribution


def result_dtype(function: str, operands: Sequence[DType], asked: DType | None) -> DType:
    """Return the dtype of ``function(operands)``: ``asked`` (conversions), boolean (comparisons), or theirs.

    Args:
        function: the elementwise function.
        operands: the dtypes of the operands that have one; the first one of a select is its condition's.
        asked: the dtype of a conversion, and of a function whose operands are all plain numbers.

    Raises:
        DTypeError: the operands' dtypes differ, the function is unknown, or it needs floats.
    """
    if function not in FUNCTIONS:
        raise DTypeError(f"unknown elementwise function {function!r}; known: {', '.join(FUNCTIONS)}")
    if function in CONVERSION:
        if asked is None:
            raise DTypeError(f"{function} needs the dtype to convert to")
        if function == "bitcast" and operands and (obstacle := _no_bits(operands[0], asked)):
            raise DTypeError(f"bitcast of {operands[0]} to {asked}: {obstacle}")
        return asked
    values = list(operands[1:]) if function == "select" else list(operands)
    if len(set(values)) > 1:
        raise DTypeError(f"{function} of {' and '.join(str(v) for v in values)}: convert one of them first")
    if not values:
        return f32 if asked is None else asked
    if obstacle := FUNCTIONS[function].takes.obstacle(values[0]):
        raise DTypeError(f"{function} of {values[0]}: {obstacle}")
    return boolean if function in COMPARISON else values[0]


def choice_dtype(function: str, operands: Sequence[object]) -> DType | None:
    """Return the dtype of a select between integers, or between truth values, without dtypes of their own.

    Truth values stay truth values.  Integers of the author and of the kernel become i32 if it holds all of
    them, otherwise i64.

    Args:
        function: the elementwise function.
        operands: the condition and both alternatives.

    Returns:
        None if an alternative has a dtype, or is a float; then use `result_dtype`.

    Example:
        >>> choice_dtype("select", (True, 1, 0)), choice_dtype("select", (True, 1, 2**40))
        (i32, i64)
    """
    if function != "select":
        return None
    plain = [arm for arm in operands[1:] if isinstance(arm, int | Expr)]
    if len(plain) < len(operands) - 1:
        return None
    if all(isinstance(arm, bool) for arm in plain):
        return boolean
    ends = [end for arm in plain for end in bounds(arm)]
    low, high = limits(i32)
    return i32 if low <= min(ends) and max(ends) <= high else i64


def _no_bits(given: DType, asked: DType) -> str:
    """Return why a bitcast between two dtypes is illegal; empty if it is legal."""
    if given.kind == "bool" or asked.kind == "bool" or given.bits < 8:
        return "needs numbers of whole bytes; nearest legal choice: .to(...)"
    if given.components > 1 or asked.components > 1:
        return "needs real numbers"
    if given.bits != asked.bits:
        return f"needs as many bits; nearest legal choice: tw.u{given.bits}"
    return ""


def widest_map(maps: Sequence[Distribution]) -> Distribution:
    """Return the map that the others broadcast to, if they fit: the first with the most elements."""
    return max(maps, key=lambda spread: math.prod(spread.shape))
