"""Errors for NumPy functions on traced values; each names the function to call instead."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.errors import TraceError
from tilewright.functions.table import FUNCTIONS
from tilewright.lang.source import here

_OPERATORS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "true_divide": operator.truediv,
    "floor_divide": operator.floordiv,
    "remainder": operator.mod,
    "power": operator.pow,
    "float_power": operator.pow,
    "bitwise_and": operator.and_,
    "bitwise_or": operator.or_,
    "bitwise_xor": operator.xor,
    "left_shift": operator.lshift,
    "right_shift": operator.rshift,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
    "equal": operator.eq,
    "not_equal": operator.ne,
}
"""Universal functions that NumPy calls if one of its numbers is the left operand of an operator."""

_INSTEAD = {
    **{name: f"tw.{name}(x)" for name, row in FUNCTIONS.items() if row.arity == 1 and row.c},
    "absolute": "tw.absolute(x)",
    **{name: f"tw.{name}(x, y)" for name in ("maximum", "minimum")},
    "abs": "abs(x)",
    "fabs": "abs(x)",
    "fmax": "tw.maximum(x, y)",
    "fmin": "tw.minimum(x, y)",
    "square": "x * x",
    "negative": "-x",
    "reciprocal": "1 / x",
    "logical_and": "x & y",
    "logical_or": "x | y",
    "logical_not": "~x",
    "where": "tw.where(condition, x, y)",
    **dict.fromkeys(("clip", "clamp"), "tw.clamp(x, low, high)"),
    "astype": "x.to(tw.f16)",
    "sum": "tw.reduce_sum(x, dim)",
    "mean": "tw.reduce_sum(x, dim) / x.shape[dim]",
    **dict.fromkeys(("max", "amax"), "tw.reduce_max(x, dim)"),
    **dict.fromkeys(("min", "amin"), "tw.reduce_min(x, dim)"),
    **dict.fromkeys(("matmul", "dot", "einsum"), "tw.mma(a, b, acc)"),
    **dict.fromkeys(("zeros_like", "full_like", "ones_like"), "tw.fragment(x, fill=0)"),
    "transpose": "X.permute(1, 0)",
    "copyto": "tw.copy(source, target)",
}
"""Replacements of NumPy functions."""

_BEFORE = "a view of the array before it is indexed, such as A.unmerge(0, (A.shape[0] // 4, 4))[i, j]"

OF_FRAGMENTS = {
    **{f"reduce_{name}": f"x.{name}(axis=1)" for name in ("sum", "max", "min")},
    "prefix_sum": "x.cumsum(axis=1)",
    "argmax": "x.argmax(axis=1)",
    "coordinates": "tw.positions(n)",
    "causal_mask": "tw.where(tw.positions(n) <= tw.positions(m)[:, None], x, -math.inf)",
}
"""Replacements of functions of fragments in dataflow kernels."""

_OF_TILES = {
    "cumsum": "x.cumsum(axis)",
    **dict.fromkeys(("conj", "conjugate"), "x.conj()"),
    **{name: f"x.{name}" for name in ("real", "imag")},
    "softmax": "tw.softmax(x)",
    **dict.fromkeys(("var", "std"), "moments, x.sum(axis) and (x * x).sum(axis)"),
    **dict.fromkeys(("reshape", "view", "ravel", "flatten"), _BEFORE),
    **dict.fromkeys(("unsqueeze", "expand_dims"), "x[:, None]"),
    **{name: f"x.{name}(axis)" for name in ("sum", "max", "min", "argmax", "argmin")},
    **{f"a{name}": f"x.{name}(axis)" for name in ("max", "min")},
    "mean": "x.sum(axis) / x.shape[axis]",
    "count_nonzero": "(x != 0).sum(axis)",
    "any": "x.max(axis) of truth values, such as x != 0",
    "all": "x.min(axis) of truth values, such as x != 0",
    "norm": "tw.sqrt((x * x).sum(axis))",
    **dict.fromkeys(("prod", "product"), "tw.exp(tw.log(x).sum(axis)), if all numbers are positive"),
    "cumprod": "tw.exp(tw.log(x).cumsum(axis)), if all numbers are positive",
    **dict.fromkeys(("cummax", "cummin"), "an explicit kernel, with tw.range over the row"),
    **dict.fromkeys(("matmul", "dot", "einsum"), "acc += a @ b in a loop over tw.steps"),
    **dict.fromkeys(("zeros_like", "full_like", "ones_like"), "tw.zeros(dtype=dtype)"),
    "transpose": "x.T",
    "copyto": "C[m, n] = x",
}
"""Replacements of NumPy functions in dataflow kernels, if they differ from `_INSTEAD`."""


def apply_ufunc(given: object, kinds: Any, ufunc: Any, method: str, inputs: tuple[Any, ...]) -> Any:
    """Apply the operator of a universal function to traced values and NumPy numbers.

    Args:
        given: the traced value whose `__array_ufunc__` was called.
        kinds: the legal types of operands.
        ufunc: the universal function.
        method: its method; only a call has an operator.
        inputs: the operands.

    Raises:
        TraceError: the function is not an operator, or an operand has another type.
    """
    apply = _OPERATORS.get(ufunc.__name__) if method == "__call__" else None
    if apply is None or not all(isinstance(i, kinds) for i in inputs):
        raise no_numpy_function(ufunc.__name__, given)
    return apply(*(i.item() if isinstance(i, np.generic) else i for i in inputs))


def replacement(name: str, kind: str) -> str | None:
    """Return what to write instead of a NumPy function or method; None if nothing is known.

    Args:
        name: its name.
        kind: the class of the traced value.
    """
    return (kind in ("Tile", "Accumulator") and _OF_TILES.get(name)) or _INSTEAD.get(name)


def no_numpy_function(name: str, given: object) -> TraceError:
    """Return the error for a NumPy computation with a traced value."""
    nearest = replacement(name, type(given).__name__)
    if nearest is None and name in _OPERATORS:
        nearest = "the operator, between fragments or a fragment and a number"
    if nearest is not None and type(given).__name__ == "Tensor":
        nearest = f"x = tw.load(...) of a tile of it, then {nearest}"
    advice = f"nearest legal choice: {nearest}" if nearest else "see `help(tw)` for the functions of tiles"
    return TraceError(
        f"np.{name} of {given!r}: NumPy computes with arrays, and a kernel has none while it is traced; "
        f"{advice}",
        here(),
    )
