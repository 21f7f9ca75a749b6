"""Functions of floats: rows, and how to compute those that not every target has."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.dtypes import DType, f64
from tilewright.functions.function import FLOATS, Domain, Function


def _powers(kind: DType) -> str:
    lost = "which loses as many bits as y * log(x) has before its point"
    if kind == f64:
        return f"no target has it; nearest legal choice: tw.exp(y * tw.log(x)), {lost}"
    return FLOATS.obstacle(kind) or ("needs real numbers" if kind.components > 1 else "")


def _rsqrt(x: Any) -> Any:
    return (1 / np.sqrt(x)).astype(x.dtype)


FLOATING = (
    Function("div", 2, FLOATS, np.divide, keeps_sign=all),
    Function("pow", 2, Domain(_powers), np.power, c="pow", ulp=4.0, keeps_sign=all),
    # NumPy's exp and log of f32 are the least exact: 2.52 and 3.83, says its documentation.
    Function("exp", 1, FLOATS, np.exp, c="exp", ulp=3.0, non_negative=True),
    Function("exp2", 1, FLOATS, np.exp2, c="exp2", ulp=2.0, non_negative=True),
    Function("log", 1, FLOATS, np.log, c="log", ulp=4.0),
    Function("sqrt", 1, FLOATS, np.sqrt, c="sqrt", non_negative=True),
    Function("rsqrt", 1, FLOATS, _rsqrt, ulp=1.5, keeps_sign=all),
    Function("tanh", 1, FLOATS, np.tanh, c="tanh", ulp=2.5),
)
