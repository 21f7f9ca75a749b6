"""The dtype of an elementwise function's result, and where a saturating conversion clamps."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.dtypes import DType, boolean, f32, limits
from tilewright.errors import DTypeError
from tilewright.functions.table import FUNCTIONS
from tilewright.threads.distribution import Distribution

COMPARISON = tuple(name for name, row in FUNCTIONS.items() if row.gives == "truth")
CONVERSION = tuple(name for name, row in FUNCTIONS.items() if row.gives == "asked")


def clamped_in(computed: DType, target: DType) -> DType:
    """The dtype in which a saturating conversion clamps: the wider of two floats, which holds both's numbers.

    Args:
        computed: the dtype in which the source computes.
        target: the dtype to convert to.

    Example:
        >>> from tilewright.dtypes import f16, f64, i8
        >>> clamped_in(f32, f64), clamped_in(f32, f16), clamped_in(i8, f64)
        (f64, f32, i8)
    """
    widens = computed.is_float and target.is_float and target.bits > computed.bits
    return target if widens else computed


def saturation(computed: DType, target: DType) -> tuple[float, float] | None:
    """The least and largest number of a saturating conversion, where it clamps; None where it need not.

    Args:
        computed: the dtype in which it clamps, of `clamped_in`.
        target: the dtype to convert to.

    Example:
        >>> from tilewright.dtypes import f8e4m3, i8, i32, u8
        >>> saturation(f32, f8e4m3), saturation(i8, u8), saturation(i32, f8e4m3), saturation(f32, i8)
        ((-448.0, 448.0), (0, 127), (-448, 448), None)
    """
    if {"bool"} & {computed.kind, target.kind} or max(target.components, computed.components) > 1:
        return None
    low, high = limits(target)
    if computed.is_float:
        return (low, high) if target.is_float else None
    least, most = limits(computed)
    ends = int(max(low, least)), int(min(high, most))
    return None if low <= least and most <= high else ends


def result_dtype(function: str, operands: Sequence[DType], asked: DType | None) -> DType:
    """The dtype of ``function(operands)``: ``asked`` of conversions, boolean of comparisons, else theirs.

    Raises:
        DTypeError: operands of different dtypes, an unknown function, or one that needs floats.
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


def _no_bits(given: DType, asked: DType) -> str:
    """Why the bits of one dtype are none of another; empty if they are."""
    if given.kind == "bool" or asked.kind == "bool" or given.bits < 8:
        return "needs numbers of whole bytes; nearest legal choice: .to(...)"
    if given.components > 1 or asked.components > 1:
        return "needs real numbers"
    if given.bits != asked.bits:
        return f"needs as many bits; nearest legal choice: tw.u{given.bits}"
    return ""


def widest_map(maps: Sequence[Distribution]) -> Distribution:
    """The map that the others are broadcast to, if they fit: the first of the most elements."""
    return max(maps, key=lambda spread: math.prod(spread.shape))
