"""The elementwise functions: name, arity, and the dtype of their result."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.dtypes import DType, boolean, f32
from tilewright.errors import DTypeError

ARITHMETIC = {"add": 2, "sub": 2, "mul": 2, "div": 2, "min": 2, "max": 2, "neg": 1, "abs": 1}
TRANSCENDENTAL = {"exp": 1, "log": 1, "sqrt": 1, "rsqrt": 1, "tanh": 1}
COMPARISON = {"less": 2, "less_equal": 2, "equal": 2}
OTHER = {"convert": 1, "select": 3}

FUNCTIONS: dict[str, int] = {**ARITHMETIC, **TRANSCENDENTAL, **COMPARISON, **OTHER}
"""Arity of every elementwise function."""


def result_dtype(function: str, operands: Sequence[DType], asked: DType | None) -> DType:
    """The dtype of ``function(operands)``: ``asked`` for convert, boolean for comparisons, or as operands.

    Raises:
        DTypeError: operands of different dtypes, an unknown function, or one that needs floats.
    """
    if function not in FUNCTIONS:
        raise DTypeError(f"unknown elementwise function {function!r}; known: {', '.join(FUNCTIONS)}")
    if function == "convert":
        if asked is None:
            raise DTypeError("convert needs the dtype to convert to")
        return asked
    values = list(operands[1:]) if function == "select" else list(operands)
    if len(set(values)) > 1:
        raise DTypeError(f"{function} of {' and '.join(str(v) for v in values)}: convert one of them first")
    if not values:
        return f32 if asked is None else asked
    if function in TRANSCENDENTAL and not values[0].is_float:
        raise DTypeError(f"{function} of {values[0]}: needs a float; convert it first")
    return boolean if function in COMPARISON else values[0]
