"""The caller's arrays: how each is read, where it lies, and new ones like it.

No framework is imported.  `frameworks.py` has the readers of NumPy, PyTorch, CuPy and DLPack; the reader of
the CUDA array interface is here, because it asks the driver.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from operator import attrgetter, methodcaller
from typing import Any

import numpy as np

from tilewright.dtypes import IN_TORCH, DType
from tilewright.errors import LaunchError, shown
from tilewright.lang.specs import TensorSpec
from tilewright.runtime import frameworks, packed_arrays
from tilewright.runtime.drivers import driver_of
from tilewright.runtime.frameworks import (
    ArrayInfo,
    ArrayReader,
    Device,
    Strided,
    base_of,
    finish,
    located,
    none,
    numpy_element,
)
from tilewright.runtime.packed_arrays import Packed, in_bytes
from tilewright.runtime.specimens import Specimen
from tilewright.targets.target import AMD_GPU, GPU

__all__ = [
    "LOCATORS",
    "ArrayInfo",
    "Device",
    "current_stream",
    "describe",
    "described",
    "elements",
    "exact_key",
    "locate",
    "locate_new",
    "overlap",
    "reach",
    "sharing",
    "stream_handle",
    "stream_reader",
    "watch",
]


# ---------------------------------------------------------------- the CUDA array interface
#
# Source: Numba's documentation, "CUDA Array Interface (Version 3)".


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


CUDA_ARRAYS = ArrayReader(_describe_cuda, _locate_cuda, _watch_cuda, _cuda_stream, one_stream=False)


def _locate_own(array: Any, stream: int) -> tuple[Hashable, int]:
    memory = array.memory
    pointer: int = memory.address
    return (array.shape, array.strides, array.dtype, pointer & 15, memory.driver, memory.index), pointer


DEVICE_ARRAYS = ArrayReader(_describe_cuda, _locate_own, _watch_cuda, lambda array, index: none)
"""How the library's own arrays in the memory of a GPU are read, whose place needs no question to a driver."""


# ---------------------------------------------------------------- one array of the caller


_WORK = 1 << 16
"""How many candidates `overlap` tries, in at most some milliseconds."""

_FAMILIES: dict[type, ArrayReader] = {}
LOCATORS: dict[type, Callable[[Any, int], tuple[Hashable, int]]] = {}
"""`locate` for each type of array seen so far, for those who count every call; others take `locate_new`."""


def describe(
    array: Any, name: str = "", stream: int = 0, located: tuple[Hashable, int] | None = None
) -> ArrayInfo:
    """Where an array lies and what it looks like; nothing is copied.

    Args:
        array: a NumPy array, a PyTorch tensor, a CuPy array, or anything with `__dlpack__` or
            `__cuda_array_interface__`.
        name: what messages call it.
        stream: the handle of the CUDA stream that will use it; a DLPack producer orders its work before.
        located: the key and the address that `locate` gave for it; saves reading them again.

    Raises:
        LaunchError: it is no array, or one that no kernel can take.

    Example:
        >>> describe(np.zeros((4, 6), np.float16)[:, ::2])
        ArrayInfo(pointer=..., shape=(4, 3), strides=(6, 2), dtype=f16, device='cpu', readonly=False)
    """
    try:
        family = _family(array)
        if located is not None and family.complete is not None:
            return family.complete(array, *located)
        return family.describe(array, stream)
    except LaunchError as problem:
        if name:
            raise LaunchError(f"{name}: {problem}") from problem.__cause__
        raise


def described(kernel: str, name: str, argument: Any) -> ArrayInfo:
    """What a kernel's argument for an array is.

    Raises:
        LaunchError: it is no array; of a number says how a parameter is declared as one.
    """
    if isinstance(argument, Specimen):
        return argument.info
    if isinstance(argument, bool | int | float | np.number):
        declared = "int" if isinstance(argument, int | np.integer) else "tw.f32"
        raise LaunchError(
            f"kernel {kernel}: {name}={shown(argument)} is a number, but {name} is a parameter for an array; "
            f"declare it as a number with @tw.kernel({name}={declared}), or make it a constant, which is "
            "given by keyword only"
        )
    return describe(argument, f"kernel {kernel}, argument {name}")


def exact_key(array: Any) -> Hashable:
    """Everything about an array that a prepared launch depends on, except where it lies: hashable, cheap.

    Two arrays with one key have equal dtypes, extents, strides, devices and addresses modulo 16, and may both
    be written or not.

    Raises:
        LaunchError: it is no array, or one that no kernel can take.

    Example:
        >>> a = np.zeros((64, 64), np.float32)
        >>> exact_key(a) == exact_key(a.copy()), exact_key(a) == exact_key(a.T)
        (True, False)
    """
    return locate(array)[0]


def locate(array: Any, stream: int = 0) -> tuple[Hashable, int]:
    """An array's `exact_key` and its address, for less than both cost alone."""
    return LOCATORS.get(type(array), locate_new)(array, stream)


def locate_new(array: Any, stream: int = 0) -> tuple[Hashable, int]:
    """`locate` for an array whose type is not in `LOCATORS` yet."""
    return _family(array).locate(array, stream)


def elements(info: ArrayInfo) -> np.ndarray[Any, np.dtype[np.void]]:
    """The same memory as a NumPy array of opaque elements, or bytes of packed ones.

    Only that of the host may be looked into.
    """
    return np.asarray(_Memory(in_bytes(info)))


class _Memory:
    """Memory described by NumPy's array interface."""

    def __init__(self, info: ArrayInfo) -> None:
        size = info.dtype.bytes
        self.__array_interface__ = {
            "version": 3,
            "typestr": f"|V{size}",
            "shape": info.shape,
            "strides": tuple(stride * size for stride in info.strides),
            "data": (info.pointer, info.readonly),
        }


def sharing(what: str, why: str, written: str) -> LaunchError:
    """The error of arrays that `overlap`.

    Args:
        what: the two.
        why: they must not.
        written: the one that is written.

    Example:
        >>> str(sharing("out and a", "a is overwritten", "out"))
        'out and a share memory, or may: a is overwritten; nearest legal choice: another array for out'
    """
    return LaunchError(
        f"{what} share memory, or may: {why}; nearest legal choice: another array for {written}"
    )


def overlap(one: ArrayInfo, other: ArrayInfo) -> bool:
    """Whether two arrays have memory in common; arrays that are too intricate to tell count as if they had.

    Example:
        >>> x = np.zeros((8, 8), np.float32)
        >>> overlap(describe(x[:, :4]), describe(x[:, 4:])), overlap(describe(x[:, :5]), describe(x[:, 4:]))
        (False, True)
    """
    (low, high), (other_low, other_high) = reach(one), reach(other)
    apart = one.pointer + high <= other.pointer + other_low or other.pointer + other_high <= one.pointer + low
    if one.device != other.device or apart:
        return False
    try:
        return bool(np.shares_memory(elements(one), elements(other), max_work=_WORK))  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def reach(info: ArrayInfo) -> tuple[int, int]:
    """Bytes from the address of an array to its lowest element, and to behind its highest.

    Example:
        >>> x = np.zeros((4, 6), np.float32)
        >>> reach(describe(x)), reach(describe(x[::-1])), reach(describe(x[:, :0]))
        ((0, 96), (-72, 24), (0, 0))
    """
    if 0 in info.shape:
        return 0, 0
    steps = [(extent - 1) * stride for extent, stride in zip(info.shape, info.strides, strict=True)]
    back, ahead = (sum(step for step in steps if (step < 0) is negative) for negative in (True, False))
    return -info.dtype.bytes_of(-back), info.dtype.bytes_of(ahead + 1)


def watch(array: Any) -> tuple[Callable[[], object], ...]:
    """Cheap functions whose answers change when this array is moved or resized.

    Example:
        >>> a = np.zeros(6)
        >>> before = [look() for look in watch(a)]
        >>> a.resize(5000, refcheck=False)
        >>> before == [look() for look in watch(a)]
        False
    """
    return _family(array).watch(array)


def stream_reader(array: Any, index: int) -> tuple[Callable[[], int | None], bool]:
    """A function that asks for the handle of the stream that the array's framework is using now.

    It gives None where the framework has no streams.

    Returns:
        The function, and whether it serves all arrays of the same type on device ``index``.
    """
    family = _family(array)
    return family.stream(array, index), family.one_stream


def current_stream(device: Device, arrays: Iterable[Any]) -> int:
    """The handle of the CUDA stream that the arrays' framework is using now; 0, the legacy default, if none.

    Args:
        device: where the kernel will run.
        arrays: the first array whose framework has a current stream decides.
    """
    if isinstance(device, str):
        return 0
    for array in arrays:
        stream = stream_reader(array, device[1])[0]()
        if stream is not None:
            return stream
    return 0


def stream_handle(stream: Any) -> int:
    """The handle of a stream given as a number, or as an object of PyTorch, CuPy or cuda.core.

    Raises:
        LaunchError: it is no stream.

    Example:
        >>> stream_handle(7)
        7
    """
    handle = stream
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        handle = (protocol() if callable(protocol) else protocol)[1]
    elif not isinstance(stream, int):
        handle = getattr(stream, "cuda_stream", getattr(stream, "ptr", None))
    if not isinstance(handle, int) or isinstance(handle, bool) or handle < 0:
        raise LaunchError(
            f"stream={stream!r} is no CUDA stream; nearest: its handle as an integer, or an object with "
            "__cuda_stream__(), .cuda_stream or .ptr"
        )
    return handle


def _family(array: Any) -> ArrayReader:
    cls = type(array)
    found = _FAMILIES.get(cls)
    if found is None:
        found = _FAMILIES[cls] = _classify(array)
        LOCATORS[cls] = found.locate
    return found


def _classify(array: Any) -> ArrayReader:
    cls = type(array)
    if isinstance(array, Packed):
        return packed_arrays.family(lambda given, stream: describe(given, "", stream), _family)
    if isinstance(array, Strided):
        return frameworks.strided_family(_family)
    if isinstance(array, TensorSpec):
        raise LaunchError(f"{array} is a class of arrays, without memory; nearest: an array, or compile")
    if isinstance(array, Specimen):
        raise LaunchError(f"{array} has no memory; nearest: an array, or compile, trace and check")
    if base_of(cls, "numpy", "MaskedArray"):
        raise LaunchError("a masked array's mask would be lost; nearest: array.filled()")
    if issubclass(cls, np.ndarray):
        return frameworks.NUMPY if cls is np.ndarray else frameworks.NUMPY_SUBCLASS
    if base_of(cls, "torch", "Tensor"):
        plain = cls.__module__.partition(".")[0] == "torch" and cls.__name__ in ("Tensor", "Parameter")
        return frameworks.TORCH if plain else frameworks.TORCH_SUBCLASS
    if base := base_of(cls, "cupy", "ndarray"):
        return frameworks.CUPY if base is cls else frameworks.cupy_subclass(base)
    if base_of(cls, "tilewright", "DeviceArray") is cls:
        return DEVICE_ARRAYS
    if base_of(cls, "jax", "Tracer"):
        raise LaunchError(
            "a JAX tracer stands for arrays that are not there while a function is being transformed; "
            "nearest legal choice: a call outside of jax.jit, jax.grad and jax.vmap"
        )
    if hasattr(cls, "__dlpack__"):
        return frameworks.DLPACK
    if hasattr(array, "__cuda_array_interface__"):
        return CUDA_ARRAYS
    raise LaunchError(f"{cls.__module__}.{cls.__qualname__} is not an array; nearest: numpy.asarray(it)")


# ---------------------------------------------------------------- new arrays of the caller's framework


_LARGE_BYTES = 64 << 20
"""Bytes from which an array may not fit into memory."""


@dataclass(frozen=True, slots=True)
class Fresh:
    """Makes uninitialised arrays of one shape, row by row.

    Args:
        make: makes one.
        address: of one that was made.
    """

    make: Callable[[], Any]
    address: Callable[[Any], int]


def fresh(like: Any, shape: tuple[int, ...], dtype: DType) -> Fresh:
    """What makes arrays of a shape in the framework and on the device of another array.

    Args:
        like: the other array.
        shape: extents.
        dtype: element type.

    Raises:
        LaunchError: the framework makes no arrays that can be written, or none of the dtype, or there is not
            enough memory for one.

    Example:
        >>> from tilewright.dtypes import f16
        >>> made = fresh(np.zeros(3), (4, 2), f16).make()
        >>> made.shape, made.dtype
        ((4, 2), dtype('float16'))
    """
    if isinstance(like, np.ndarray):
        _require_memory(shape, dtype)
        return Fresh(partial(np.empty, shape, dtype.numpy), _located)
    library: Any = sys.modules.get(type(like).__module__.partition(".")[0])
    name = getattr(library, "__name__", "")
    if name == "torch":
        element = None if dtype.is_packed else getattr(library, IN_TORCH[dtype.name], None)
        if element is None:
            raise LaunchError(f"PyTorch has no tensors of {dtype}; pass out=, or another out_dtype=")
        strides = tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))
        # Of all that makes a tensor this looks at its arguments in the shortest time.
        none = library.empty(0, dtype=element, device=like.device)
        return Fresh(partial(none.new_empty_strided, shape, strides), methodcaller("data_ptr"))
    if name == "tilewright":
        where = like.memory.index, like.memory.driver
        return Fresh(partial(type(like).empty, shape, dtype, *where), attrgetter("memory.address"))
    if name == "cupy":
        return Fresh(partial(library.empty, shape, dtype.numpy), attrgetter("data.ptr"))
    raise LaunchError(f"cannot make an output for {type(like).__name__}; pass out=")


def _require_memory(shape: tuple[int, ...], dtype: DType) -> None:
    """Refuse an array of NumPy that does not fit into memory.  A broadcast operand can ask for any extent.

    Raises:
        LaunchError: the system does not give that much memory.
    """
    if math.prod(shape) * dtype.bytes < _LARGE_BYTES:
        return
    try:
        np.empty(shape, dtype.numpy)  # pages that nobody touches take no memory
    except (MemoryError, ValueError):
        size = math.prod(shape) * dtype.bytes / (1 << 30)
        raise LaunchError(
            f"the result, {' x '.join(map(str, shape))} of {dtype}, takes {size:.1f} GiB, and there is not "
            "that much memory; nearest: fewer rows at once, or out= that is mapped to a file (np.memmap)"
        ) from None


def _located(array: Any) -> int:
    return locate(array)[1]
