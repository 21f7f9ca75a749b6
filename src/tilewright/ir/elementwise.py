"""The elementwise functions: name, arity, and the dtype of their result."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.dtypes import DType, boolean, f32, f64, limits
from tilewright.errors import DTypeError

ARITHMETIC = {"add": 2, "sub": 2, "mul": 2, "div": 2, "min": 2, "max": 2, "neg": 1, "abs": 1}
TRANSCENDENTAL = {"exp": 1, "exp2": 1, "log": 1, "sqrt": 1, "rsqrt": 1, "tanh": 1}
COMPARISON = {"less": 2, "less_equal": 2, "equal": 2}
CONVERSION = {"convert": 1, "saturate": 1}
OTHER = {"select": 3, "fma": 3}

FUNCTIONS: dict[str, int] = {**ARITHMETIC, **TRANSCENDENTAL, **COMPARISON, **CONVERSION, **OTHER}
"""Arity of every elementwise function."""


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
        return asked
    values = list(operands[1:]) if function == "select" else list(operands)
    if len(set(values)) > 1:
        raise DTypeError(f"{function} of {' and '.join(str(v) for v in values)}: convert one of them first")
    if not values:
        return f32 if asked is None else asked
    if function == "fma" and values[0] not in (f32, f64):
        raise DTypeError(f"fma of {values[0]}: needs f32 or f64; convert first")
    if function in TRANSCENDENTAL and not values[0].is_float:
        raise DTypeError(f"{function} of {values[0]}: needs a float; convert it first")
    return boolean if function in COMPARISON else values[0]
