"""Comparisons of vectors: a bit for each lane."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.amdgcn.floats import classes


def _ordered(a: Any, b: Any) -> Any:
    return ~(np.isnan(a) | np.isnan(b))


_FLOAT: dict[str, Any] = {
    "f": lambda a, b: np.zeros(np.broadcast_shapes(a.shape, b.shape), np.bool_),
    "lt": np.less,
    "eq": np.equal,
    "le": np.less_equal,
    "gt": np.greater,
    "lg": lambda a, b: (a < b) | (a > b),
    "ge": np.greater_equal,
    "o": _ordered,
    "u": lambda a, b: ~_ordered(a, b),
    "nge": lambda a, b: ~(a >= b),
    "nlg": lambda a, b: ~((a < b) | (a > b)),
    "ngt": lambda a, b: ~(a > b),
    "nle": lambda a, b: ~(a <= b),
    "neq": lambda a, b: ~(a == b),
    "nlt": lambda a, b: ~(a < b),
    "tru": lambda a, b: np.ones(np.broadcast_shapes(a.shape, b.shape), np.bool_),
    "t": lambda a, b: np.ones(np.broadcast_shapes(a.shape, b.shape), np.bool_),
}
_INTEGER: dict[str, Any] = {
    "f": _FLOAT["f"],
    "lt": np.less,
    "eq": np.equal,
    "le": np.less_equal,
    "gt": np.greater,
    "ne": np.not_equal,
    "ge": np.greater_equal,
    "t": _FLOAT["t"],
}


def _class(a: Any, mask: Any) -> Any:
    return (classes(a) & mask.astype(np.uint32)) != 0


def _rows() -> dict[str, tuple[tuple[str, str], Any]]:
    rows: dict[str, tuple[tuple[str, str], Any]] = {}
    for kind in ("f16", "f32", "f64"):
        for name, function in _FLOAT.items():
            rows[f"{name}_{kind}"] = ((kind, kind), function)
        rows[f"class_{kind}"] = ((kind, "u16" if kind == "f16" else "u32"), _class)
    for kind in ("u16", "i16", "u32", "i32", "u64", "i64"):
        for name, function in _INTEGER.items():
            rows[f"{name}_{kind}"] = ((kind, kind), function)
    return rows


COMPARISONS = _rows()
"""Kinds of both operands, and the meaning, by what follows ``v_cmp_`` or ``v_cmpx_``."""
