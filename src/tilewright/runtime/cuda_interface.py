"""How arrays are read that describe themselves by the CUDA array interface.

Source: Numba's documentation, "CUDA Array Interface (Version 3)".
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

import numpy as np

from tilewright.dtypes import DType
from tilewright.errors import LaunchError
from tilewright.runtime.drivers import driver_of
from tilewright.runtime.frameworks import ArrayInfo, Device, Family, finish, located, none, numpy_element
from tilewright.targets.target import AMD_GPU, GPU


def _describe_cuda(array: Any, stream: int) -> ArrayInfo:
    face = _face(array)
    if face.get("mask") is not None:
        raise LaunchError("the array's mask would be lost; nearest: an array without one")
    shape, strides = _integers(face, "shape"), face.get("strides")
    if strides is not None:
        strides = _integers(face, "strides")
        if len(strides) != len(shape):
            raise _malformed("strides", strides, f"one for each of the {len(shape)} dimensions")
    pointer, readonly = _data(face)
    element = _interface_element(array, face)
    device = _device(pointer)
    return finish(pointer, shape, strides, element, device, readonly, array, element.bytes)


def _face(array: Any) -> Mapping[str, Any]:
    try:
        face = array.__cuda_array_interface__
    except (AttributeError, RuntimeError, TypeError, ValueError) as problem:
        raise LaunchError(f"the array does not say where it lies: {problem}") from problem
    if not isinstance(face, Mapping):
        raise LaunchError(f"__cuda_array_interface__ is {face!r}, which is no dictionary")
    return face


def _integers(face: Mapping[str, Any], name: str) -> tuple[int, ...]:
    given = face.get(name)
    try:
        if not isinstance(given, Iterable):
            raise TypeError
        return tuple(map(operator.index, given))
    except TypeError:
        raise _malformed(name, given, "a tuple of integers") from None


def _data(face: Mapping[str, Any]) -> tuple[int, bool]:
    """The address, and whether it may only be read."""
    try:
        address, readonly = face["data"]
        pointer = operator.index(address or 0)
        if not 0 <= pointer < 2**64:
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise _malformed("data", face.get("data"), "an address, and whether it may only be read") from None
    return pointer, bool(readonly)


def _interface_element(array: Any, face: Mapping[str, Any]) -> DType:
    """The element type: extension types look like raw bytes in "typestr", and are the array's own dtype."""
    text = face.get("typestr")
    own = getattr(array, "dtype", None)
    if isinstance(own, np.dtype) and text == own.str:
        return numpy_element(own)  # NumPy itself does not know the "<f1" that ml_dtypes' float8_e5m2 says
    try:
        said = np.dtype(text)
    except (TypeError, ValueError):
        said = None
    if said is None or not isinstance(text, str):
        raise _malformed("typestr", text, "a type as NumPy writes it, e.g. '<f4'")
    if said.kind != "V" or not isinstance(own, np.dtype):
        return numpy_element(said)
    if own.itemsize != said.itemsize:
        raise _malformed("typestr", text, f"a type of {own.itemsize} bytes, like the array's dtype {own}")
    return numpy_element(own)


def _malformed(name: str, value: object, wanted: str) -> LaunchError:
    return LaunchError(f"__cuda_array_interface__[{name!r}] is {value!r}; it must be {wanted}")


def _locate_cuda(array: Any, stream: int) -> tuple[Hashable, int]:
    return located(_describe_cuda(array, stream))


def _watch_cuda(array: Any) -> tuple[Callable[[], object], ...]:
    def face() -> object:
        now = _face(array)
        return now.get("data"), now.get("shape"), now.get("strides")

    return (face,)


def _cuda_stream(array: Any, index: int) -> Callable[[], int | None]:
    def ask() -> int | None:
        stream = _face(array).get("stream")
        if stream is None or isinstance(stream, int):
            return stream
        raise _malformed("stream", stream, "the handle of a stream, or None")

    return ask


def _device(pointer: int) -> Device:
    """The device that a pointer belongs to, which the interface does not say."""
    index = _ordinal(pointer)
    amd = driver_of(AMD_GPU).device_of(pointer) if index is None else None
    return (GPU, index or 0) if amd is None else (AMD_GPU, amd)


def _ordinal(pointer: int) -> int | None:
    """The number of the NVIDIA GPU that a pointer belongs to; None if CUDA does not know."""
    try:
        from cuda.bindings import driver

        attribute = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        status, index = driver.cuPointerGetAttribute(attribute, pointer)
    except (ImportError, RuntimeError):
        return None
    return int(index) if int(status) == 0 else None


CUDA = Family(_describe_cuda, _locate_cuda, _watch_cuda, _cuda_stream, one_stream=False)


def _locate_own(array: Any, stream: int) -> tuple[Hashable, int]:
    memory = array.memory
    pointer: int = memory.address
    return (array.shape, array.strides, array.dtype, pointer & 15, memory.driver, memory.index), pointer


OWN = Family(_describe_cuda, _locate_own, _watch_cuda, lambda array, index: none)
"""How the library's own arrays in the memory of a GPU are read, whose place needs no question to a driver."""
