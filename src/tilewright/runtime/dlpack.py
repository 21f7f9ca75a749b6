"""DLPack from the consumer's side: the tensor in a capsule, and its owner's deleter.

Source: DLPack 1.x, `dlpack.h` and the Python specification.
"""

from __future__ import annotations

import ctypes
from typing import Any

from tilewright.errors import LaunchError

CPU, CUDA, CUDA_HOST, CUDA_MANAGED, ROCM, ROCM_HOST = 1, 2, 3, 13, 10, 11

_VERSION = 1
_READ_ONLY, _COPIED = 1, 2

# A capsule keeps the pointer to its name, so the names must outlive it.
_NAME, _USED_NAME = b"dltensor", b"used_dltensor"
_VERSIONED_NAME, _USED_VERSIONED_NAME = b"dltensor_versioned", b"used_dltensor_versioned"

_get_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", ctypes.pythonapi))
_set_name = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_SetName", ctypes.pythonapi)
)
_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
# Called with the interpreter's lock held: some producers' deleters need it and do not take it.
_Deleter = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


class Imported:
    """A tensor from a capsule; its producer's deleter runs when this object is collected.

    Args:
        capsule: the result of `__dlpack__`; it cannot be used again.

    Raises:
        LaunchError: it is no DLPack capsule, is used up, or has a newer major version.

    Example:
        >>> import numpy as np
        >>> found = Imported(np.zeros((2, 3), np.float32).__dlpack__())
        >>> found.shape, found.strides, (found.code, found.bits), found.device
        ((2, 3), (3, 1), (2, 32), (1, 0))
    """

    def __init__(self, capsule: object) -> None:
        self._address = 0
        name = _get_name(capsule) if type(capsule).__name__ == "PyCapsule" else None
        if name not in (_NAME, _VERSIONED_NAME):
            raise LaunchError(f"__dlpack__ returned {capsule!r}, which is no fresh DLPack capsule")
        address = _get_pointer(capsule, name)
        managed: Any = (_Versioned if name == _VERSIONED_NAME else _Managed).from_address(address)
        _set_name(capsule, _USED_VERSIONED_NAME if name == _VERSIONED_NAME else _USED_NAME)
        self._address, self._deleter = address, managed.deleter
        # Only the deleter of a newer version may be read.
        if name == _VERSIONED_NAME and managed.major > _VERSION:
            raise LaunchError(f"DLPack {managed.major}.{managed.minor} is not known; {_VERSION}.x is")
        tensor: _Tensor = managed.tensor
        rank = tensor.ndim
        self.pointer: int = (tensor.data or 0) + tensor.byte_offset
        self.shape: tuple[int, ...] = tuple(tensor.shape[:rank]) if rank else ()
        self.strides: tuple[int, ...] | None = tuple(tensor.strides[:rank]) if tensor.strides else None
        self.code: int = tensor.code
        self.bits: int = tensor.bits
        self.lanes: int = tensor.lanes
        self.device: tuple[int, int] = (tensor.device_type, tensor.device_id)
        # Writes into a copy are lost, so a copy counts as read-only.
        self.readonly = name == _VERSIONED_NAME and bool(managed.flags & (_READ_ONLY | _COPIED))

    def __del__(self, _deleter: Any = _Deleter) -> None:  # the module's names may be gone by then
        address, self._address = self._address, 0
        if address and self._deleter:
            _deleter(self._deleter)(address)


def export(array: Any, stream: int) -> Imported:
    """Ask an array for its tensor; on a GPU, the producer orders its work before later work on `stream`.

    Args:
        array: anything with `__dlpack__` and `__dlpack_device__`.
        stream: the handle of the stream that will use it; 0 is the legacy default stream.

    Raises:
        LaunchError: the array refuses.
    """
    try:
        kind, _ = array.__dlpack_device__()
        order: dict[str, int] = {}
        if kind == ROCM:
            order["stream"] = stream
        elif kind in (CUDA, CUDA_MANAGED):  # DLPack calls CUDA's legacy default stream 1; 0 is ambiguous
            order["stream"] = stream or 1
        try:
            capsule = array.__dlpack__(max_version=(_VERSION, 0), **order)
        except TypeError:
            capsule = array.__dlpack__(**order)
    except (AttributeError, BufferError, NotImplementedError, RuntimeError, TypeError, ValueError) as problem:
        what = f"{type(array).__module__}.{type(array).__qualname__}"
        raise LaunchError(f"{what} does not share its memory through DLPack: {problem}") from problem
    return Imported(capsule)
