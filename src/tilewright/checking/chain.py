"""Two products, one behind the other, in higher precision, and how far off a right result may be."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt

from tilewright.checking.arrays import Array
from tilewright.checking.compare import SPREAD
from tilewright.dtypes import dtype, f32
from tilewright.functions.table import FUNCTIONS

Doubles = npt.NDArray[np.float64]


class Activation(NamedTuple):
    """What is done to each element of the first product.

    Args:
        meaning: in float64.
        steepest: the largest slope.
        error: of the function itself in f32, relative to its operand or its result.
    """

    meaning: Callable[[Doubles], Doubles]
    steepest: float
    error: float


def _of_table(name: str, steepest: float) -> Activation:
    row = FUNCTIONS[name]
    assert row.meaning is not None
    return Activation(row.meaning, steepest, 2 * row.ulp * f32.unit_roundoff)


ACTIVATIONS: dict[str | None, Activation] = {
    None: Activation(lambda x: x, 1.0, 0.0),
    "relu": Activation(lambda x: np.maximum(x, 0.0), 1.0, 0.0),
    "gelu": _of_table("gelu", 1.13),
    "gelu_tanh": _of_table("gelu_tanh", 1.13),
    "silu": _of_table("silu", 1.1),
    "sigmoid": _of_table("sigmoid", 0.25),
    "tanh": _of_table("tanh", 1.0),
}
"""Those of `tw.gemm_chain`, by name."""


class Chained(NamedTuple):
    """What ``activation(a @ b) @ c`` is, and how far off each element of a right result may be."""

    wanted: Doubles
    room: Doubles


def chained(a: Array, b: Array, c: Array, activation: str | None) -> Chained:
    """``activation(a @ b) @ c`` of arrays of one dtype, by the documentation of `tw.gemm_chain`.

    Each element of the first product is rounded to the dtype on its own, so that these errors add up as noise
    does, and at most as all of them.
    """
    element, given = dtype(a.dtype), ACTIVATIONS[activation]
    wide_a, wide_b, wide_c = (x.astype(np.float64) for x in (a, b, c))
    u, w = f32.unit_roundoff, element.unit_roundoff
    tiny = float(ml_dtypes.finfo(element.numpy).smallest_subnormal)  # type: ignore[no-untyped-call]
    sums, sizes = wide_a @ wide_b, np.abs(wide_a) @ np.abs(wide_b)
    h, depth, terms = given.meaning(sums), a.shape[-1], c.shape[-2]
    off = given.steepest * 2 * (depth + 1) * u * sizes + given.error * np.maximum(np.abs(h), np.abs(sums))
    rounded, size = w * (np.abs(h) + off) + tiny, np.abs(wide_c)
    noise = np.minimum(rounded @ size, SPREAD * np.sqrt((rounded * rounded) @ (size * size)))
    added = 2 * (terms + 1) * u * ((np.abs(h) + off + rounded) @ size)
    wanted = h @ wide_c
    return Chained(wanted, off @ size + noise + added + w * np.abs(wanted) + tiny)
