"""The elementwise functions: name, arity, and the dtype of their result."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.dtypes import DType, boolean, f32, f64, limits
from tilewright.errors import DTypeError

ARITHMETIC = {"add": 2, "sub": 2, "mul": 2, "min": 2, "max": 2, "neg": 1, "abs": 1}
"""Of numbers; integers wrap.  A maximum or minimum with a NaN is NaN."""
ROUNDING_DOWN = {"floordiv": 2, "mod": 2}
"""The quotient rounded down, and the rest, which has the divisor's sign.  Integers divided by 0 give 0 for
both; the least integer divided by -1 gives itself."""
FLOATING = {"div": 2, "pow": 2, "exp": 1, "exp2": 1, "log": 1, "sqrt": 1, "rsqrt": 1, "tanh": 1}
"""Of floats only."""
BITWISE = {"and": 2, "or": 2, "xor": 2, "invert": 1}
"""Of integers bit by bit, and of truth values."""
SHIFT = {"shift_left": 2, "shift_right": 2}
"""Of integers.  A count outside of the dtype's bits shifts all of them out: the result is 0, or -1 where a
negative integer goes right."""
COMPARISON = {"less": 2, "less_equal": 2, "equal": 2, "not_equal": 2}
CONVERSION = {"convert": 1, "saturate": 1}
OTHER = {"select": 3, "fma": 3}

FUNCTIONS: dict[str, int] = {
    **ARITHMETIC,
    **ROUNDING_DOWN,
    **FLOATING,
    **BITWISE,
    **SHIFT,
    **COMPARISON,
    **CONVERSION,
    **OTHER,
}
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
    if obstacle := _obstacle(function, values[0]):
        raise DTypeError(f"{function} of {values[0]}: {obstacle}")
    return boolean if function in COMPARISON else values[0]


def _obstacle(function: str, kind: DType) -> str:
    """Why a function does not take a dtype, and what to do instead; empty if it takes it."""
    numbers = function in ARITHMETIC or function in ROUNDING_DOWN or function in SHIFT
    if kind.kind == "bool" and numbers:
        return "needs numbers; combine truth values with & | ^ ~, or convert them with .to(tw.i32)"
    if function == "fma" and kind not in (f32, f64):
        return "needs f32 or f64; convert first"
    if function in FLOATING and not kind.is_float:
        return "needs a float; convert it first"
    if function == "pow" and kind == f64:
        lost = "which loses as many bits as y * log(x) has before its point"
        return f"no target has it; nearest legal choice: tw.exp(y * tw.log(x)), {lost}"
    if (function in BITWISE or function in SHIFT) and kind.is_float:
        return "needs integers; convert them first"
    if function in ("pow", *ROUNDING_DOWN) and kind.components > 1:
        return "needs real numbers"
    return ""
