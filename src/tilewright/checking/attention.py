"""Attention of higher precision, which a kernel's result is compared with, and how far off that may be."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import numpy.typing as npt

from tilewright.calls import launches
from tilewright.checking.arrays import Array
from tilewright.dtypes import dtype, f32
from tilewright.errors import LaunchError


@launches
def softmax_attention(
    q: Array, k: Array, v: Array, scale: float, shift: int | None = None
) -> npt.NDArray[np.float64]:
    """``softmax(scale q kᵀ) v`` over the last two dimensions, in float64.

    Infinities and NaNs are numbers like any others here: a row with a score of +inf or NaN is NaN.

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
    return _averages(q, k, v, scale, shift)


@np.errstate(all="ignore")
def _averages(q: Array, k: Array, v: Array, scale: float, shift: int | None) -> npt.NDArray[np.float64]:
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


@np.errstate(all="ignore")
def attention_room(q: Array, k: Array, v: Array, scale: float, shift: int | None = None) -> Array:
    """How far off `softmax_attention` each element of a right result may be; of arrays as that takes them.

    With ``u`` the unit roundoff of f32 and ``w`` that of the arrays' dtype:

    - a score is a sum of D exact products: off by at most ``(D + 1) 2u sum |q k|`` (matrix units cut off what
      sticks out, hence twice); times the scale, that is a relative error of the weight, as is what `exp2` and
      its argument add, ``4u + 3u |argument|``, where an argument of more than 40 belongs to a weight that
      does not matter;
    - a weight is rounded to the arrays' dtype before it is multiplied: ``w``;
    - both sums have at most N terms and are scaled once for each tile of keys: ``(2 N) u`` together;
    - an average of values that are off by a relative ``e`` is off by ``2 e`` times the average of
      ``|values|``; the sum of the weights takes no ``w``, in whose place its reciprocal may be rounded;
    - the result is rounded to the dtype: ``w |o|``.
    """
    element, u = dtype(q.dtype), f32.unit_roundoff
    w, keys = element.unit_roundoff, k.shape[-2]
    off = score_room(q, k, scale) + 4 * u + 3 * u * 40 + w + 2 * keys * u
    wide = v.astype(np.float64)
    averages = softmax_attention(q, k, np.abs(wide), scale, shift)
    wanted = softmax_attention(q, k, wide, scale, shift)
    made: Array = 2 * off * averages + w * np.abs(wanted) + _smallest(element.numpy)
    return made


@np.errstate(all="ignore")
def score_room(q: Array, k: Array, scale: float) -> Array:
    """How far off the scores of each row may be, (..., M, 1); see `attention_room`."""
    sizes = (np.abs(x.astype(np.float64)) for x in (q, k))
    queries, keys = sizes
    largest = (queries @ keys.swapaxes(-1, -2)).max(axis=-1, keepdims=True, initial=0)
    made: Array = abs(scale) * (q.shape[-1] + 1) * 2 * f32.unit_roundoff * largest
    return made


def _smallest(element: object) -> float:
    return float(ml_dtypes.finfo(element).smallest_subnormal)  # type: ignore[no-untyped-call]
