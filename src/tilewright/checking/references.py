"""Float64 references for attention, chained and gated products and reductions, with bounds for kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt

from tilewright.calls import launches
from tilewright.checking.compare import SPREAD, Array
from tilewright.dtypes import DType, dtype, f32, f64, limits
from tilewright.errors import LaunchError
from tilewright.functions.table import FUNCTIONS


@launches
def softmax_attention(
    q: Array, k: Array, v: Array, scale: float, shift: int | None = None
) -> npt.NDArray[np.float64]:
    """``softmax(scale q kᵀ) v`` over the last two dimensions, in float64.

    Infinities and NaNs are allowed: a row with a score of +inf or NaN is NaN.

    Args:
        q: queries (..., M, D).
        k: keys (..., N, D).
        v: values (..., N, D).
        scale: factor of the scores.
        shift: query i sees the keys up to i + shift; None: each sees all.  A query without keys gives zeros.

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
    with np.errstate(all="ignore"):
        values, scores = v.astype(np.float64), _scores(q, k, scale, shift)
        largest = scores.max(axis=-1, keepdims=True, initial=-np.inf)
        weights = np.exp(scores - np.where(np.isinf(largest), 0, largest))
        total: Array = weights.sum(axis=-1, keepdims=True)
        made: npt.NDArray[np.float64] = weights @ values / np.maximum(total, np.finfo(float).tiny)
    return made


@np.errstate(all="ignore")
def attention_room(
    q: Array, k: Array, v: Array, scale: float, shift: int | None = None, *, exact: bool = False
) -> Array:
    """Return the largest error of each element of a correct result of `softmax_attention`.

    With ``u`` the unit roundoff of f32 and ``w`` that of the arrays' dtype:

    - a score is a sum of D exact products: off by at most ``(D + 1) 2u sum |q k|`` (twice, as matrix units
      truncate); see `_moved` for its effect on the weights;
    - `exp2` and its argument add a relative error of the weight, ``4u + 3u |argument|``; the weight of an
      argument of more than 40 is negligible;
    - a weight is rounded to the arrays' dtype before it is multiplied: ``w``;
    - both sums have at most N terms and are scaled once for each tile of keys: ``(2 N) u`` together;
    - if values have a relative error ``e``, their average has an error of ``2 e`` times the average of
      ``|values|``; the sum of the weights adds no ``w``, but its reciprocal may be rounded;
    - the result is rounded to the dtype: ``w |o|``.

    With ``exact`` scores have no error: f32 holds every partial sum of every score.
    """
    element, u = dtype(q.dtype), f32.unit_roundoff
    w, keys = element.unit_roundoff, k.shape[-2]
    off = 4 * u + 3 * u * 40 + w + 2 * keys * u
    wide = v.astype(np.float64)
    averages = softmax_attention(q, k, np.abs(wide), scale, shift)
    wanted = softmax_attention(q, k, wide, scale, shift)
    made: Array = 2 * off * averages + w * np.abs(wanted) + _smallest(element)
    return made if exact else made + _moved(q, k, np.abs(wide), averages, scale, shift)


def _moved(q: Array, k: Array, sizes: Array, averages: Array, scale: float, shift: int | None) -> Array:
    """Return the change of averages of values when every score changes by up to ``d``, which is `score_room`.

    A weight p changes by a factor between ``exp(-2d)`` and ``exp(2d)``: averages move by at most
    ``(exp(2d) - 1) sum p |v|``, which is ``2d sum p |v|`` for small d.  For large scores d may exceed 1, but
    keys with scores far below the largest one still have no weight: a weight moves by at most ``m = min(1,
    p (exp(2d) - 1))``, the weight of the largest score by the sum of the other m, and averages by the sum of
    ``m (|v| + |v of the largest|)`` over the other keys.
    """
    room = score_room(q, k, scale)
    scores = _scores(q, k, scale, shift)
    if not scores.shape[-1]:
        return np.zeros_like(averages)
    top = scores.argmax(axis=-1)[..., None]
    largest = np.take_along_axis(scores, top, axis=-1)
    below = scores - np.where(np.isinf(largest), 0, largest)
    logarithms = below - np.log(np.exp(below).sum(axis=-1, keepdims=True))
    factor = np.where(room < 1, np.log(np.expm1(2 * room)), 2 * room)
    moved = np.exp(np.minimum(logarithms + factor, 0))
    moved[~np.isfinite(scores)] = 0
    np.put_along_axis(moved, top, 0, axis=-1)
    of_top = np.take_along_axis(sizes, np.broadcast_to(top, (*top.shape[:-1], sizes.shape[-1])), axis=-2)
    by_each = moved @ sizes + moved.sum(axis=-1, keepdims=True) * of_top
    by_all = np.where(room < 1, np.expm1(2 * np.minimum(room, 1)) * averages, np.inf)
    made: Array = np.minimum(by_each, by_all)
    return made


def _scores(q: Array, k: Array, scale: float, shift: int | None) -> Array:
    """Return scores in float64, -inf for hidden keys."""
    made: Array = scale * (q.astype(np.float64) @ k.astype(np.float64).swapaxes(-1, -2))
    if shift is not None:
        i, j = np.indices(made.shape[-2:])
        made = np.where(j <= i + shift, made, -np.inf)
    return made


@np.errstate(all="ignore")
def score_room(q: Array, k: Array, scale: float) -> Array:
    """Return the largest error of the scores of each row, (..., M, 1); see `attention_room`."""
    sizes = (np.abs(x.astype(np.float64)) for x in (q, k))
    queries, keys = sizes
    largest = (queries @ keys.swapaxes(-1, -2)).max(axis=-1, keepdims=True, initial=0)
    made: Array = abs(scale) * (q.shape[-1] + 1) * 2 * f32.unit_roundoff * largest
    return made


def _smallest(element: DType) -> float:
    return float(ml_dtypes.finfo(element.numpy).smallest_subnormal)  # type: ignore[no-untyped-call]


# ---------------------------------------------------------------- two chained products


Doubles = npt.NDArray[np.float64]


class Activation(NamedTuple):
    """An activation, applied to each element of the first product.

    Args:
        meaning: the function in float64.
        steepest: its largest slope.
        error: its error in f32, relative to its operand or to its result.
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
"""The activations of `tw.gemm_chain`, by name."""


class Bounded(NamedTuple):
    """A reference, and the largest error of each element of a correct result."""

    wanted: Doubles
    room: Doubles


def chained(a: Array, b: Array, c: Array, activation: str | None) -> Bounded:
    """Return ``activation(a @ b) @ c`` of arrays of one dtype, as `tw.gemm_chain` documents it.

    The roundings of the elements of the first product are independent, so that their errors add up as noise
    does, and at most to their sum.
    """
    element, given = dtype(a.dtype), ACTIVATIONS[activation]
    wide_a, wide_b, wide_c = (x.astype(np.float64) for x in (a, b, c))
    u, w = f32.unit_roundoff, element.unit_roundoff
    tiny = _smallest(element)
    sums, sizes = wide_a @ wide_b, np.abs(wide_a) @ np.abs(wide_b)
    h, depth, terms = given.meaning(sums), a.shape[-1], c.shape[-2]
    off = given.steepest * 2 * (depth + 1) * u * sizes + given.error * np.maximum(np.abs(h), np.abs(sums))
    rounded, size = w * (np.abs(h) + off) + tiny, np.abs(wide_c)
    noise = np.minimum(rounded @ size, SPREAD * np.sqrt((rounded * rounded) @ (size * size)))
    added = 2 * (terms + 1) * u * ((np.abs(h) + off + rounded) @ size)
    wanted = h @ wide_c
    return Bounded(wanted, off @ size + noise + added + w * np.abs(wanted) + tiny)


# ---------------------------------------------------------------- gated products


def gated(
    a: Array,
    b: Array,
    c: Array,
    activation: str | None,
    out: DType,
    scaling: Mapping[str, Any] | None = None,
    unit: float = 0.0,
) -> Bounded:
    """Return ``activation(a @ b) * (a @ c)`` with scales and biases, and the largest error of each element.

    Args:
        a: (..., M, K).
        b: (..., K, N).
        c: an array of the shape of ``b``.
        activation: the function of the first product.
        out: dtype of the result, which saturates if it has 8 bits.
        scaling: scales and biases, by the names of the arguments; an array has an element for each row or
            column.
        unit: unit roundoff of the factors and of the sums; 0: that of f32, or of f64 for operands of f64.
    """
    given, scaling = ACTIVATIONS[activation], scaling or {}
    number = f64 if a.dtype == np.float64 else f32
    u = number.unit_roundoff
    scale_a = np.asarray(scaling.get("scale_a", 1.0), np.float64)
    rows = scale_a[..., None] if scale_a.ndim else scale_a
    made = list[tuple[Doubles, Doubles]]()
    for name, other in (("b", b), ("c", c)):
        scale_n = np.asarray(scaling.get(f"scale_{name}", 1.0), np.float64)
        scale = rows * (scale_n[..., None, :] if scale_n.ndim else scale_n)
        bias = np.asarray(scaling.get(f"bias_{name}", 0.0), np.float64)
        wide = a.astype(np.float64), other.astype(np.float64)
        sizes = np.abs(scale) * (np.abs(wide[0]) @ np.abs(wide[1]))
        value = scale * (wide[0] @ wide[1]) + bias
        made.append((value, 4 * (a.shape[-1] + 4) * max(u, unit) * sizes + 4 * u * np.abs(bias)))
    (before, off), (factor, off_factor) = made
    gate = given.meaning(before)
    off = given.steepest * off + given.error / f32.unit_roundoff * u * np.maximum(
        np.abs(gate), np.abs(before)
    )
    wanted = gate * factor
    room = off * np.abs(factor) + off_factor * np.abs(gate) + off * off_factor + 2 * u * np.abs(wanted)
    if out.bits == 8:
        low, high = limits(out)
        wanted = np.clip(wanted, low, high)
    if not out.is_float:
        return Bounded(wanted, room + 0.5)
    return Bounded(wanted, room + out.unit_roundoff * (np.abs(wanted) + room) + _smallest(out))


def worst_of(found: Array, exact: Bounded) -> float:
    """Return the largest error of a result, divided by its bound; infinite for a wrong NaN."""
    most = limits(dtype(found.dtype))[1]
    off = np.abs(found.astype(np.float64) - exact.wanted) / exact.room
    overflows = np.isinf(found.astype(np.float64)) & (np.abs(exact.wanted) + exact.room >= most)
    right = overflows & (np.sign(found.astype(np.float64)) == np.sign(exact.wanted))
    return float(np.max(np.where(right, 0.0, np.nan_to_num(off, nan=np.inf)), initial=0.0))


# ---------------------------------------------------------------- reductions


EXPONENTIALS = 2.0**-18
"""Errors of exponentials and of the logarithm in f32, in addition to those of their sums."""


def reductions(elements: Doubles, near: Doubles, axis: int, unit: float) -> dict[str, Bounded]:
    """Return the reductions of `tw.reduced_matmul`, by name.

    Args:
        elements: the array to reduce.
        near: the largest error of each element.
        axis: the axis to reduce.
        unit: unit roundoff of the sums.
    """
    high, steps = elements.max(axis, keepdims=True), 4 * elements.shape[axis] * unit
    logarithm = np.log(np.exp(elements - high).sum(axis)) + high.squeeze(axis)
    wanted = {
        "sum": (elements.sum(axis), near.sum(axis) + steps * np.abs(elements).sum(axis)),
        "max": (elements.max(axis), near.max(axis)),
        "min": (elements.min(axis), near.max(axis)),
        "logsumexp": (logarithm, 2 * near.max(axis) + steps + EXPONENTIALS),
    }
    return {name: Bounded(exact, room + unit * np.abs(exact)) for name, (exact, room) in wanted.items()}
