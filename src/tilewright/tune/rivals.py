"""What a user would call instead of us: NumPy on the CPU, PyTorch (cuBLAS) on the GPU."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np

from tilewright.dtypes import IN_TORCH, DType, dtype
from tilewright.runtime.device_array import DeviceArray
from tilewright.targets.target import GPU, HOST, target_named

Calls = dict[str, Callable[[], object]]

_MULTIPLIED = ("f64", "f32", "f16", "bf16", "i8", "i32")
"""Dtypes that PyTorch multiplies by themselves."""


def rivals(a: Any, b: Any, c: Any, target: str, *, tf32: bool = False) -> Calls:
    """Calls of other libraries that compute ``a @ b`` into an array of their own; by name.

    Args:
        a: (M, K).
        b: (K, N).
        c: (M, N), not written.
        target: ``"cpu"`` and ``"reference"`` for NumPy, ``"cuda"`` for PyTorch, if it is installed.
        tf32: whether f32 may be rounded to tf32.

    Returns:
        Nothing where the library has no such product.
    """
    if target_named(target).memory == HOST:
        return _numpy_rivals(a, b, c)
    return _torch_rivals(a, b, c, tf32)


def _torch_rivals(a: DeviceArray, b: DeviceArray, c: DeviceArray, tf32: bool) -> Calls:
    """PyTorch, if it is installed and has the product."""
    # An installed PyTorch is slow to import; it is worth that where there is a GPU.
    if "torch" not in sys.modules and find_spec("torch") is None:
        return {}
    return _torch(a, b, c, tf32)


def _numpy_rivals(a: Any, b: Any, c: Any) -> Calls:
    """NumPy; in f32 where its own dtype has no fast product."""
    element = dtype(a.dtype)
    name = "NumPy"
    if element.name not in ("f32", "f64", "c64", "c128"):
        a, b = (array.astype(np.float32) for array in (a, b))
        name = "NumPy, in f32"
    out = np.empty((a.shape[0], b.shape[1]), a.dtype)
    return {name: functools.partial(np.matmul, a, b, out=out)}


def _torch(a: DeviceArray, b: DeviceArray, c: DeviceArray, tf32: bool) -> Calls:
    import torch

    element = dtype(a.dtype)
    if element.name not in _MULTIPLIED or not torch.cuda.is_available():
        return {}
    left, right = as_tensor(a), as_tensor(b)
    if element.name == "i8":
        if any(extent % 8 for extent in (*a.shape, *b.shape)) or a.shape[0] <= 16:
            return {}  # what the library refuses
        return {"torch._int_mm": functools.partial(torch._int_mm, left, right)}
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    out = torch.empty(c.shape, dtype=left.dtype, device=left.device)
    return {"torch.mm (cuBLAS)": functools.partial(torch.mm, left, right, out=out)}


def as_tensor(array: DeviceArray) -> Any:
    """A PyTorch tensor of the same memory."""
    import torch

    element: DType = dtype(array.dtype)
    raw = {1: "|i1", 2: "<i2", 4: "<i4", 8: "<i8"}[element.bytes]
    return torch.as_tensor(_Raw(array, raw), device=GPU).view(getattr(torch, IN_TORCH[element.name]))


class _Raw:
    """The same memory as integers, which every library knows."""

    def __init__(self, array: DeviceArray, typestr: str) -> None:
        self.__cuda_array_interface__ = {**array.__cuda_array_interface__, "typestr": typestr}
        self.array = array
