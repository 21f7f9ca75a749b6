"""Calls of other libraries for the same work: NumPy on the CPU, PyTorch (cuBLAS) on the GPU."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from tilewright.checking.sample import Array
from tilewright.dtypes import IN_TORCH, DType, dtype
from tilewright.runtime.gpu_memory import DeviceArray
from tilewright.targets.target import CUDA, GPU, HOST, target_named

Calls = dict[str, Callable[[], object]]

NUMPY = "NumPy, in f32"

_MULTIPLIED = ("f64", "f32", "f16", "bf16", "i8", "i32")
"""Dtypes that PyTorch multiplies without conversion."""


def installed_torch() -> Any:
    """Import PyTorch if it is installed, else return None. The import is slow: call this on a GPU only."""
    if "torch" not in sys.modules and find_spec("torch") is None:
        return None
    import torch

    return torch


def rivals(a: Any, b: Any, c: Any, target: str, *, tf32: bool = False) -> Calls:
    """Return calls of other libraries that compute ``a @ b`` into their own array, by name.

    Args:
        a: (M, K).
        b: (K, N).
        c: (M, N), not written.
        target: ``"cpu"`` and ``"reference"`` for NumPy, ``"cuda"`` for PyTorch, if it is installed.
        tf32: whether f32 may be rounded to tf32.

    Returns:
        No calls if the library does not multiply these matrices.
    """
    element = dtype(a.dtype)
    if target_named(target).memory == HOST:
        name = "NumPy"
        if element.name not in ("f32", "f64", "c64", "c128"):  # NumPy has no fast product of these
            a, b = (array.astype(np.float32) for array in (a, b))
            name = NUMPY
        host_out = np.empty((a.shape[0], b.shape[1]), a.dtype)
        return {name: functools.partial(np.matmul, a, b, out=host_out)}
    torch = installed_torch()
    if torch is None or element.name not in _MULTIPLIED or not torch.cuda.is_available():
        return {}
    left, right = as_tensor(a), as_tensor(b)
    if element.name == "i8":
        if any(extent % 8 for extent in (*a.shape, *b.shape)) or a.shape[0] <= 16:
            return {}  # the library refuses these extents
        return {"torch._int_mm": functools.partial(torch._int_mm, left, right)}
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    out = torch.empty(c.shape, dtype=left.dtype, device=left.device)
    return {"torch.mm (cuBLAS)": functools.partial(torch.mm, left, right, out=out)}


def as_tensor(array: DeviceArray) -> Any:
    """Return a PyTorch tensor of the same memory."""
    import torch

    element: DType = dtype(array.dtype)
    raw = {1: "|i1", 2: "<i2", 4: "<i4", 8: "<i8"}[element.bytes]
    return torch.as_tensor(_Raw(array, raw), device=GPU).view(getattr(torch, IN_TORCH[element.name]))


class _Raw:
    """A view of an array's memory as integers, which every library accepts."""

    def __init__(self, array: DeviceArray, typestr: str) -> None:
        self.__cuda_array_interface__ = {**array.__cuda_array_interface__, "typestr": typestr}
        self.array = array


# ---------------------------------------------------------------- attention, chains and reductions


ACTIVATIONS: dict[str | None, Callable[[Array], Array]] = {
    None: lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "gelu_tanh": lambda x: x * _sigmoid(np.float32(np.sqrt(8 / np.pi)) * (x + np.float32(0.044715) * x**3)),
    "silu": lambda x: x * _sigmoid(x),
    "sigmoid": lambda x: _sigmoid(x),
    "tanh": np.tanh,
}
"""Activations that NumPy computes. ``"gelu"`` is missing: NumPy has no error function."""


def _sigmoid(x: Array) -> Array:
    return np.tanh(x / 2) / 2 + np.float32(0.5)


def attention_rivals(arrays: Sequence[Any], host: Sequence[Array], target: str, shift: int | None) -> Calls:
    """Return calls of another library that compute attention of four dimensions, by name.

    Args:
        arrays: queries, keys and values in the memory of the target.
        host: the same in host memory.
        target: the target of our kernel.
        shift: row i sees the keys up to i + shift; None: each sees all.

    Returns:
        No calls if the library has none, or is not installed.
    """

    def by_torch(torch: Any) -> Calls:
        q, k, v = map(as_tensor, arrays)
        words: dict[str, Any] = {"is_causal": True} if shift == 0 else {}
        if shift:
            seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril(shift)
            words = {"attn_mask": seen}
        if q.shape[1] != k.shape[1]:
            words["enable_gqa"] = True
        attend = torch.nn.functional.scaled_dot_product_attention
        return {"torch.scaled_dot_product_attention": lambda: attend(q, k, v, **words)}

    if target == CUDA.name:
        return _tried(by_torch)
    q, k, v = (one.astype(np.float32) for one in host)
    shared = q.reshape(q.shape[0], k.shape[1], -1, *q.shape[2:])  # queries by their head of keys
    k, v = k[:, :, None].swapaxes(-1, -2), v[:, :, None]
    scale = np.float32(q.shape[-1] ** -0.5)
    hidden = None if shift is None else ~np.tri(q.shape[2], k.shape[-1], shift, dtype=np.bool_)

    def call() -> Array:
        scores = shared @ k
        scores *= scale
        if hidden is not None:
            scores[..., hidden] = np.finfo(np.float32).min
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=-1, keepdims=True)
        found: Array = scores @ v
        return found.reshape(*q.shape[:3], -1)

    return {NUMPY: call}


def chain_rivals(arrays: Sequence[Any], host: Sequence[Array], target: str, activation: str | None) -> Calls:
    """Return calls of another library that compute ``activation(A @ B) @ C`` in steps, by name.

    Args:
        arrays: A, B and C in the memory of the target.
        host: the same in host memory.
        target: the target of our kernel.
        activation: the function of each element of the first product.
    """

    def by_torch(torch: Any) -> Calls:
        (a, b, c), activate = map(as_tensor, arrays), _of_torch(torch, activation)
        return {"PyTorch, in steps": lambda: activate(a @ b) @ c}

    if target == CUDA.name:
        return _tried(by_torch)
    if activation not in ACTIVATIONS:
        return {}
    (a, b, c), activate = (one.astype(np.float32) for one in host), ACTIVATIONS[activation]
    return {NUMPY: lambda: activate(a @ b) @ c}


def reduce_rivals(
    arrays: Sequence[Any],
    host: Sequence[Array],
    target: str,
    activation: str | None,
    asked: tuple[Sequence[str], int],
) -> Calls:
    """Return calls of another library that store ``activation(A @ B)`` and reduce it, by name.

    Args:
        arrays: A and B in the memory of the target.
        host: the same in host memory.
        target: the target of our kernel.
        activation: the function of each element of the product.
        asked: names of reductions, and their axis.
    """

    def by_torch(torch: Any) -> Calls:
        (a, b), activate, (names, axis) = map(as_tensor, arrays), _of_torch(torch, activation), asked
        known = {"sum": torch.sum, "max": torch.amax, "min": torch.amin, "logsumexp": torch.logsumexp}

        def call() -> list[Any]:
            product = activate(a @ b).float()
            return [known[name](product, dim=axis) for name in names]

        return {"PyTorch, in steps": call}

    if target == CUDA.name:
        return _tried(by_torch)
    if activation not in ACTIVATIONS:
        return {}
    (a, b), activate, (names, axis) = (one.astype(np.float32) for one in host), ACTIVATIONS[activation], asked

    def logsumexp(x: Array) -> Array:
        high = x.max(axis, keepdims=True)
        found: Array = np.log(np.exp(x - high).sum(axis)) + high.squeeze(axis)
        return found

    known: dict[str, Callable[[Array], Array]] = {
        "sum": lambda x: x.sum(axis),
        "max": lambda x: x.max(axis),
        "min": lambda x: x.min(axis),
        "logsumexp": logsumexp,
    }

    def call() -> list[Array]:
        product = activate(a @ b)
        return [known[name](product) for name in names]

    return {NUMPY: call}


def _of_torch(torch: Any, activation: str | None) -> Callable[[Any], Any]:
    known: dict[str | None, Callable[[Any], Any]] = {
        None: lambda x: x,
        "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    }
    return known.get(activation) or getattr(torch.nn.functional, str(activation))


def _tried(of: Callable[[Any], Calls]) -> Calls:
    """Return calls of PyTorch that run: only a call shows whether it has a kernel for a problem."""
    torch = installed_torch()
    if torch is None:
        return {}
    torch.set_float32_matmul_precision("highest")
    try:
        calls = of(torch)
        for call in calls.values():
            call()
    except (RuntimeError, TypeError):
        return {}
    return calls
