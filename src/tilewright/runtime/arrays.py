"""The caller's arrays, of any framework, without importing one: what they are, and where they lie."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any

import numpy as np

from tilewright.errors import LaunchError, shown
from tilewright.lang.specs import TensorSpec
from tilewright.runtime import cuda_interface, frameworks, packed_arrays, strided, torch_tensors
from tilewright.runtime.frameworks import ArrayInfo, Device, Family, base_of
from tilewright.runtime.packed_arrays import Packed, in_bytes
from tilewright.runtime.specimens import Specimen
from tilewright.runtime.strided import Strided

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

_WORK = 1 << 16
"""How many candidates `overlap` tries, in at most some milliseconds."""

_FAMILIES: dict[type, Family] = {}
LOCATORS: dict[type, Callable[[Any, int], tuple[Hashable, int]]] = {}
"""`locate` for each type of array seen so far, for those who count every call; others take `locate_new`."""


def describe(array: Any, name: str = "", stream: int = 0) -> ArrayInfo:
    """Where an array lies and what it looks like; nothing is copied.

    Args:
        array: a NumPy array, a PyTorch tensor, a CuPy array, or anything with `__dlpack__` or
            `__cuda_array_interface__`.
        name: what messages call it.
        stream: the handle of the CUDA stream that will use it; a DLPack producer orders its work before.

    Raises:
        LaunchError: it is no array, or one that no kernel can take.

    Example:
        >>> describe(np.zeros((4, 6), np.float16)[:, ::2])
        ArrayInfo(pointer=..., shape=(4, 3), strides=(6, 2), dtype=f16, device='cpu', readonly=False)
    """
    try:
        return _family(array).describe(array, stream)
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


def _family(array: Any) -> Family:
    cls = type(array)
    found = _FAMILIES.get(cls)
    if found is None:
        found = _FAMILIES[cls] = _classify(array)
        LOCATORS[cls] = found.locate
    return found


def _classify(array: Any) -> Family:
    cls = type(array)
    if isinstance(array, Packed):
        return packed_arrays.family(lambda given, stream: describe(given, "", stream), _family)
    if isinstance(array, Strided):
        return strided.family(_family)
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
        return torch_tensors.TORCH if plain else torch_tensors.TORCH_SUBCLASS
    if base := base_of(cls, "cupy", "ndarray"):
        return frameworks.CUPY if base is cls else frameworks.cupy_subclass(base)
    if base_of(cls, "tilewright", "DeviceArray") is cls:
        return cuda_interface.OWN
    if base_of(cls, "jax", "Tracer"):
        raise LaunchError(
            "a JAX tracer stands for arrays that are not there while a function is being transformed; "
            "nearest legal choice: a call outside of jax.jit, jax.grad and jax.vmap"
        )
    if hasattr(cls, "__dlpack__"):
        return frameworks.DLPACK
    if hasattr(array, "__cuda_array_interface__"):
        return cuda_interface.CUDA
    raise LaunchError(f"{cls.__module__}.{cls.__qualname__} is not an array; nearest: numpy.asarray(it)")
