"""Attention of higher precision, which a kernel's result is compared with."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tilewright.calls import launches
from tilewright.checking.arrays import Array
from tilewright.errors import LaunchError


@launches
def softmax_attention(
    q: Array, k: Array, v: Array, scale: float, shift: int | None = None
) -> npt.NDArray[np.float64]:
    """``softmax(scale q kᵀ) v`` over the last two dimensions, in float64.

    Args:
        q: queries (..., M, D).
        k: keys (..., N, D).
        v: values (..., N, D).
        scale: of the scores.
        shift: query i sees the keys up to i + shift; None: each sees all.  One that sees none gives zeros.

    Raises:
        LaunchError: the shapes do not fit.

    Example:
        >>> softmax_attention(np.ones((2, 4)), np.ones((3, 4)), np.eye(3), 0.5, shift=0).round(2).tolist()
        [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]]
    """
    if (
        min(q.ndim, k.ndim, v.ndim) < 2
        or (*k.shape[:-2], q.shape[-1]) != (*q.shape[:-2], k.shape[-1])
        or (v.shape[:-1] != k.shape[:-1])
    ):
        raise LaunchError(f"softmax_attention: q {q.shape}, k {k.shape} and v {v.shape} do not fit")
    queries, keys, values = (x.astype(np.float64) for x in (q, k, v))
    scores = scale * queries @ keys.swapaxes(-1, -2)
    if shift is not None:
        i, j = np.indices(scores.shape[-2:])
        scores = np.where(j <= i + shift, scores, -np.inf)
    largest = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - np.where(np.isinf(largest), 0, largest))
    total: Array = weights.sum(axis=-1, keepdims=True)
    made: npt.NDArray[np.float64] = weights @ values / np.maximum(total, np.finfo(float).tiny)
    return made
