"""`attention`: look at the arrays, choose a kernel and its tiles, launch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NoReturn

from tilewright.calls import launches
from tilewright.dtypes import bf16, f16, f32
from tilewright.errors import DTypeError, LaunchError, close_to, shown
from tilewright.ops.attending.choice import KERNELS, Question, chosen
from tilewright.ops.attending.tiles import MOST_COLUMNS
from tilewright.ops.planning import check_apart
from tilewright.runtime.arrays import ArrayInfo
from tilewright.runtime.arrays import describe as described
from tilewright.runtime.backends import arch_of, backend_for
from tilewright.runtime.fresh import fresh
from tilewright.runtime.strided import Strided

SUPPORTED = (f16, bf16, f32)

MOST_SCALE = 2.0**64
"""Scales below it have an exponent in f32."""


@launches
def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: bool = False,
    diagonal: int = 0,
    scale: float | None = None,
    out: Any = None,
    return_lse: bool = False,
    kernel: str | None = None,
    target: str | None = None,
    stream: Any = None,
) -> Any:
    """``out = softmax(scale * q @ kᵀ) @ v`` for every batch and head, in one pass over the keys.

    With ``s[i, j] = scale * sum_d q[i, d] * k[j, d]`` and ``p[i, j] = exp(s[i, j] - lse[i])``, where
    ``lse[i] = log(sum_j exp(s[i, j]))``, it is ``out[i] = sum_j p[i, j] * v[j]``.  Scores never leave
    registers.

    Products are exact and sums are in f32; weights are rounded to the arrays' dtype before they multiply
    values, and the result is rounded once.  With ``u`` the unit roundoff of f32 and ``w`` that of the dtype,
    an element is off by at most ``2 e sum_j p[i, j] |v[j]| + w |out[i]|``, where ``e = w + u (2 (D + 1)
    |scale| max_j sum_d |q[i, d] k[j, d]| + 2 N + 124)``.

    Args:
        q: array (B, H, M, D) of f16, bf16 or f32, of any strides; D is at most 256.  (H, M, D) is one batch,
            (M, D) one head.
        k: array (B, G, N, D) of the same dtype.  H is a multiple of G: ``H // G`` neighbouring heads of ``q``
            share a head of keys and values.
        v: array (B, G, N, E); E is at most 256, and may differ from D.
        causal: whether row i sees only the keys up to ``i + diagonal``.
        diagonal: where the mask begins; 0 as in PyTorch.  ``N - M`` lets the last row see every key, as is
            wanted where keys of earlier rows are cached.
        scale: a number; default: ``1 / sqrt(D)``.
        out: array (B, H, M, E) to write, of any strides; default: a new array of the framework of ``q``.
        return_lse: whether to return ``lse`` too, a new f32 array (B, H, M), with which parts of the keys
            that were attended to on their own are combined.
        kernel: ``"warpgroups"`` (TMA and wgmma, of Hopper) or ``"warps"``; default: the former where machine,
            dtype and strides let it.
        target: ``"cpu"``, ``"cuda"`` or ``"reference"``; default: where the arrays lie.
        stream: the CUDA stream; default: the framework's current stream.

    Returns:
        ``out``, or ``(out, lse)``.  A row that sees no key is 0 in ``out`` and -inf in ``lse``.

    Raises:
        LaunchError: shapes or devices do not fit, ``out`` shares memory with what is read, a diagonal without
            ``causal``, or a kernel that cannot serve the call.
        DTypeError: an unsupported dtype or mixture.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> q, k, v = np.zeros((2, 8), np.float32), np.ones((3, 8), np.float32), np.eye(3, dtype=np.float32)
        >>> tw.attention(q, k, v, causal=True, target="reference").tolist()
        [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]]

        Four heads of queries share two of keys:

        >>> q, k = np.ones((4, 5, 16), np.float16), np.ones((2, 7, 16), np.float16)
        >>> out, lse = tw.attention(q, k, k, return_lse=True, target="reference")
        >>> out.shape, lse.shape, float(out[3, 4, 15])
        ((4, 5, 16), (4, 5), 1.0)
    """
    _check_words(causal, diagonal, scale, kernel)
    arrays = {"q": q, "k": k, "v": v} | ({} if out is None else {"out": out})
    infos = {name: described(array, f"attention, argument {name}") for name, array in arrays.items()}
    shape = _result_shape(infos)
    backend = backend_for("attention", list(infos.items()), target)
    if out is None:
        out = arrays["out"] = fresh(q, shape, infos["q"].dtype).make()
        infos["out"] = described(out)
    check_apart(infos)
    lse = fresh(q, shape[:-1], f32).make() if return_lse else None
    if 0 not in shape:
        seen = {name: _in_four(info) for name, info in infos.items()}
        # A column of the result stands for logarithms that nobody wants; it is not touched.
        seen["lse"] = _first_column(seen["out"]) if lse is None else _in_four(_in_columns(described(lse)))
        given = arrays | {"lse": out if lse is None else lse}
        by = 1 / math.sqrt(infos["q"].shape[-1]) if scale is None else float(scale)
        question = Question(
            {name: seen[name] for name in ("q", "k", "v", "out")},
            by,
            diagonal if causal else None,
            return_lse,
            arch_of(backend, None),
            backend.processors(),
        )
        answer = chosen(question, kernel)
        tensors = [Strided(given[name], seen[name]) for name in ("q", "k", "v", "out", "lse")]
        names = [p.name for p in answer.kernel.program.parameters if p.kind == "tensor"]
        by_name = {name: one.info for name, one in zip(names, tensors, strict=True)}
        arguments = (*tensors, *answer.numbers)
        plan, pointers = answer.kernel.planned(arguments, backend.name, by_name)
        plan.prepared.launch(arguments, pointers, stream)
    return (out, lse) if return_lse else out


def _check_words(causal: bool, diagonal: int, scale: float | None, kernel: str | None) -> None:
    """Refuse arguments that say nothing, before any array is looked at."""
    if diagonal and not causal:
        raise LaunchError(
            f"attention: diagonal={diagonal} without a mask that begins there; nearest legal choice: "
            "causal=True"
        )
    if scale is not None and not abs(scale) < MOST_SCALE:
        raise LaunchError(f"attention: scale={scale}; nearest legal choice: a number below {MOST_SCALE:g}")
    if kernel is not None and kernel not in KERNELS:
        raise LaunchError(
            f"attention: kernel={shown(kernel)}; choose one of {', '.join(KERNELS)}"
            f"{close_to(kernel, KERNELS)}"
        )


def _result_shape(infos: Mapping[str, ArrayInfo]) -> tuple[int, ...]:
    """The shape of the result, of arrays that fit each other.

    Raises:
        LaunchError: shapes do not fit.
        DTypeError: an unsupported dtype or mixture.
    """
    kinds = {name: info.dtype for name, info in infos.items()}
    if len(set(kinds.values())) > 1:
        listed = ", ".join(f"{name} is {kind}" for name, kind in kinds.items())
        raise DTypeError(f"attention: {listed}; nearest legal choice: one dtype")
    if infos["q"].dtype not in SUPPORTED:
        known = ", ".join(map(str, SUPPORTED))
        raise DTypeError(f"attention of {infos['q'].dtype}; nearest legal choice: one of {known}")
    q, k, v = (infos[name].shape for name in ("q", "k", "v"))
    if not 2 <= len(q) <= 4 or {len(k), len(v)} != {len(q)}:
        _refuse(infos, "(B, H, M, D), (B, G, N, D) and (B, G, N, E); or without B; or without heads")
    if k[:-1] != v[:-1]:
        _refuse(infos, f"v with shape ({', '.join(map(str, (*k[:-1], v[-1])))}), beside each key its value")
    if q[-1] != k[-1]:
        _refuse(infos, f"k with {q[-1]} columns, as q has")
    if q[:-3] != k[:-3]:
        _refuse(infos, f"k and v with {q[0]} batches, as q has")
    if len(q) > 2 and (q[-3] % k[-3] if k[-3] else q[-3]):
        _refuse(
            infos,
            f"heads of q that are a multiple of those of k, as {max(q[-3] // max(k[-3], 1), 1) * k[-3]}",
        )
    for name, columns in (("q", q[-1]), ("v", v[-1])):
        if not 1 <= columns <= MOST_COLUMNS:
            _refuse(infos, f"{name} with {min(max(columns, 1), MOST_COLUMNS)} columns")
    shape = (*q[:-1], v[-1])
    if "out" in infos and infos["out"].shape != shape:
        _refuse(infos, f"out with shape {shape}")
    return shape


def _refuse(infos: Mapping[str, ArrayInfo], nearest: str) -> NoReturn:
    shapes = ", ".join(f"{name} {info.shape}" for name, info in infos.items())
    raise LaunchError(f"attention: {shapes} do not fit; nearest legal choice: {nearest}")


def _in_four(info: ArrayInfo) -> ArrayInfo:
    """The array with four dimensions; those that are missing have one element."""
    missing = 4 - len(info.shape)
    span = abs(info.strides[0]) * info.shape[0] if missing else 0
    return replace(info, shape=(1,) * missing + info.shape, strides=(span,) * missing + info.strides)


def _in_columns(info: ArrayInfo) -> ArrayInfo:
    """The array with one column."""
    return replace(info, shape=(*info.shape, 1), strides=(*info.strides, 1))


def _first_column(info: ArrayInfo) -> ArrayInfo:
    """The first column of an array, as an array with one column."""
    return replace(info, shape=(*info.shape[:-1], 1))
