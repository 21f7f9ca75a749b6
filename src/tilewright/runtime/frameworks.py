"""Readers of the arrays of each framework, none of which is imported.

NumPy, PyTorch and CuPy arrays are read through their own attributes, which is fastest. Everything else is
read through DLPack (`dlpack.py`) or the CUDA array interface (`arrays.py`).
"""

from __future__ import annotations

import ctypes
import functools
import math
import sys
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from tilewright.dtypes import ALL, IN_DLPACK, DType, dtype
from tilewright.errors import DTypeError, LaunchError
from tilewright.runtime import dlpack
from tilewright.targets.target import AMD_GPU, GPU, HOST

Device: TypeAlias = str | tuple[str, int]
"""`HOST`, or what the frameworks call a kind of device, with the device's number."""


def memory_of(device: Device) -> str:
    """`HOST`, or the kind of device in whose memory an array lies."""
    return device if isinstance(device, str) else device[0]


@dataclass(frozen=True, slots=True)
class ArrayInfo:
    """One of the caller's arrays.

    Args:
        pointer: the address of the first element.
        shape: extents.
        strides: strides in elements; 0 repeats, a negative one steps towards lower addresses.
        dtype: the element type.
        device: where it lies: ``"cpu"``, ``("cuda", index)`` or ``("rocm", index)``.
        readonly: whether it may not be written.
        owner: what keeps the memory alive.
    """

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    device: Device
    readonly: bool
    owner: object = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class ArrayReader:
    """How the arrays of one framework are read.

    Args:
        describe: everything about an array.
        locate: a key of what does not change when the array lies elsewhere, and its address.
        watch: for an array, cheap functions whose answers change when it is moved or resized.
        stream: for an array and a device's index, a function that asks for the framework's current stream.
        one_stream: whether that function serves all arrays of a type on that device.
        complete: for an array, its key and its address, everything about it; None: `describe` reads it again.
    """

    describe: Callable[[Any, int], ArrayInfo]
    locate: Callable[[Any, int], tuple[Hashable, int]]
    watch: Callable[[Any], tuple[Callable[[], object], ...]]
    stream: Callable[[Any, int], Callable[[], int | None]]
    one_stream: bool = True
    complete: Callable[[Any, Any, int], ArrayInfo] | None = None


def finish(
    pointer: int,
    shape: Iterable[int],
    strides: Sequence[int] | None,
    element: DType,
    device: Device,
    readonly: bool,
    owner: object,
    unit: int = 1,
) -> ArrayInfo:
    """Check what every framework's arrays must keep; `strides` count `unit` bytes, or elements if 1."""
    extents = tuple(map(int, shape))
    if min(extents, default=0) < 0:
        raise LaunchError(f"shape {extents} has a negative extent")
    if not pointer and 0 not in extents:
        raise LaunchError(f"an array of shape {extents} has no memory: its address is 0")
    if pointer % element.component.bytes:
        raise LaunchError(
            f"address {pointer:#x} is no multiple of the {element.component.bytes} bytes of {element}; "
            "nearest: a copy"
        )
    if strides is None:
        steps = tuple(math.prod(extents[dim + 1 :]) for dim in range(len(extents)))
    else:
        steps = _in_elements(extents, strides, unit, 0 in extents)
    return ArrayInfo(pointer, extents, steps, element, device, readonly, owner)


_CONTIGUOUS = (
    "nearest: np.ascontiguousarray(array) for one that is read; for one that is written, pass a contiguous "
    "array and assign it back: array[...] = contiguous"
)


def _in_elements(shape: tuple[int, ...], strides: Sequence[int], unit: int, empty: bool) -> tuple[int, ...]:
    steps = []
    for dim, (extent, stride) in enumerate(zip(shape, strides, strict=True)):
        step, rest = divmod(stride, unit)
        if step < 0 or rest:
            if extent <= 1 or empty:
                step = 0  # never taken
            elif rest:
                raise LaunchError(
                    f"stride {stride} bytes of dimension {dim} is no multiple of the {unit} bytes of an "
                    f"element; {_CONTIGUOUS}"
                )
        steps.append(int(step))
    return tuple(steps)


def none() -> None:
    """What has no streams."""
    return


def _no_stream(array: Any, index: int) -> Callable[[], int | None]:
    return none


def located(info: ArrayInfo) -> tuple[Hashable, int]:
    """The key and the address of an array that has been described."""
    key = (info.shape, info.strides, info.dtype, info.pointer & 15, info.device, info.readonly)
    return key, info.pointer


class AsBase:
    """An array as its framework's own class reads it, whatever attributes a subclass overrides."""

    def __init__(self, array: Any, base: type) -> None:
        self._array = array
        self._base = base

    def __getattr__(self, name: str) -> Any:
        return getattr(self._base, name).__get__(self._array)


def base_of(cls: type, framework: str, name: str) -> type | None:
    """The class of a framework that a class is, or is derived from."""
    for base in cls.__mro__:
        if (base.__module__.partition(".")[0], base.__name__) == (framework, name):
            return base
    return None


# NumPy.

_BY_NUMPY = {element.numpy: element for element in ALL.values() if not element.is_packed}
_ONE_IN_A_BYTE = {element.numbers: element for element in ALL.values() if element.is_packed}
"""What NumPy holds one of in a byte, and kernels several."""


class _ArrayStruct(ctypes.Structure):
    """Source: NumPy's array interface, `PyArrayInterface`."""

    _fields_ = (
        ("two", ctypes.c_int),
        ("nd", ctypes.c_int),
        ("typekind", ctypes.c_char),
        ("itemsize", ctypes.c_int),
        ("flags", ctypes.c_int),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("data", ctypes.c_void_p),
    )


_struct_address = ctypes.PYFUNCTYPE(ctypes.c_ssize_t, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_read_address = ctypes.c_void_p.from_address
_DATA = _ArrayStruct.data.offset


def numpy_element(given: Any) -> DType:
    """The element type of a NumPy dtype.

    Raises:
        LaunchError: no kernel takes it.
    """
    found = _BY_NUMPY.get(given)
    if found is not None:
        return found
    if (one := _ONE_IN_A_BYTE.get(given)) is not None:
        raise LaunchError(
            f"an array of {given} holds one number in a byte; nearest legal choice: "
            f"tw.packed(tw.pack(array, tw.{one}), tw.{one}), with {one.per_byte} in each"
        )
    if not given.isnative:
        raise LaunchError(
            f"elements {given!r} have the other byte order; "
            "nearest: array.astype(array.dtype.newbyteorder('='))"
        )
    raise unsupported(given)


def unsupported(given: object) -> LaunchError:
    """The error for an element type that no kernel takes."""
    return LaunchError(f"elements of type {given} are not supported; known: {', '.join(ALL)}")


def _describe_numpy(array: Any, stream: int) -> ArrayInfo:
    return _complete_numpy(array, *_locate_numpy(array, stream))


def _complete_numpy(array: Any, key: Any, pointer: int) -> ArrayInfo:
    shape, strides, kind, _, writeable = key
    element = numpy_element(kind)
    return finish(pointer, shape, strides, element, HOST, not writeable, array, element.bytes)


def _locate_numpy(array: Any, stream: int) -> tuple[Hashable, int]:
    capsule = array.__array_struct__  # a seventh of the time of `__array_interface__`
    pointer = _read_address(_struct_address(capsule, None) + _DATA).value or 0
    return (array.shape, array.strides, array.dtype, pointer & 15, array.flags.writeable), pointer


def _watch_numpy(array: Any) -> tuple[Callable[[], object], ...]:
    def address() -> int | None:
        return _read_address(_struct_address(array.__array_struct__, None) + _DATA).value

    return address, lambda: array.shape


NUMPY = ArrayReader(_describe_numpy, _locate_numpy, _watch_numpy, _no_stream, complete=_complete_numpy)


def _plain(array: Any) -> np.ndarray[Any, np.dtype[Any]]:
    """The array without what a subclass says of it: attributes may be overridden, memory may not."""
    return np.ndarray.view(array, np.ndarray)


def _describe_numpy_subclass(array: Any, stream: int) -> ArrayInfo:
    return replace(_describe_numpy(_plain(array), stream), owner=array)


def _locate_numpy_subclass(array: Any, stream: int) -> tuple[Hashable, int]:
    return _locate_numpy(_plain(array), stream)


def _watch_numpy_subclass(array: Any) -> tuple[Callable[[], object], ...]:
    return (lambda: _locate_numpy(_plain(array), 0),)


NUMPY_SUBCLASS = ArrayReader(
    _describe_numpy_subclass, _locate_numpy_subclass, _watch_numpy_subclass, _no_stream
)


# CuPy.


def _cupy_memory() -> str:
    """Which vendor's GPUs CuPy was built for."""
    try:
        return AMD_GPU if sys.modules["cupy"].cuda.runtime.is_hip else GPU
    except (AttributeError, KeyError):
        return GPU


def _describe_cupy(array: Any, stream: int) -> ArrayInfo:
    element, memory = numpy_element(array.dtype), array.data
    device: Device = (_cupy_memory(), memory.device_id)
    return finish(memory.ptr, array.shape, array.strides, element, device, False, array, element.bytes)


def _locate_cupy(array: Any, stream: int) -> tuple[Hashable, int]:
    memory = array.data
    pointer = memory.ptr
    return (array.shape, array.strides, array.dtype, pointer & 15, ("cupy", memory.device_id)), pointer


def _watch_cupy(array: Any) -> tuple[Callable[[], object], ...]:
    return lambda: array.data.ptr, lambda: array.shape


def _cupy_stream(array: Any, index: int) -> Callable[[], int | None]:
    current = sys.modules["cupy"].cuda.get_current_stream
    return lambda: int(current().ptr)


CUPY = ArrayReader(_describe_cupy, _locate_cupy, _watch_cupy, _cupy_stream)


def cupy_subclass(base: type) -> ArrayReader:
    """How arrays are read whose class is derived from CuPy's: by what CuPy's own says."""
    return ArrayReader(
        lambda array, stream: replace(_describe_cupy(AsBase(array, base), stream), owner=array),
        lambda array, stream: _locate_cupy(AsBase(array, base), stream),
        lambda array: _watch_cupy(AsBase(array, base)),
        _cupy_stream,
    )


# DLPack.

_CODES = {"int": 0, "uint": 1, "float": 2, "bool": 6}
_KNOWN = {t.name: _CODES[t.kind] for t in ALL.values() if t.kind in _CODES} | IN_DLPACK
_BY_DLPACK = {(_KNOWN[t.name], t.bits): t for t in ALL.values() if not t.is_packed}

_MEMORIES = {
    **dict.fromkeys((dlpack.CPU, dlpack.CUDA_HOST, dlpack.ROCM_HOST), HOST),
    **dict.fromkeys((dlpack.CUDA, dlpack.CUDA_MANAGED), GPU),
    dlpack.ROCM: AMD_GPU,
}
"""Where an array lies, by the type of its device."""


def _describe_dlpack(array: Any, stream: int) -> ArrayInfo:
    found = dlpack.export(array, stream)
    kind, index = found.device
    if kind not in _MEMORIES:
        raise LaunchError(
            f"the array lies on a device of DLPack type {kind}; nearest: a copy on the CPU or a device of "
            "CUDA or ROCm"
        )
    memory = _MEMORIES[kind]
    device: Device = HOST if memory == HOST else (memory, index)
    element = _BY_DLPACK.get((found.code, found.bits)) if found.lanes == 1 else None
    if element is None:
        shown = getattr(array, "dtype", f"(code {found.code}, {found.bits} bits, {found.lanes} lanes)")
        raise unsupported(shown)
    # JAX's arrays never change, whatever the capsule's flags say.
    readonly = found.readonly or type(array).__module__.partition(".")[0] in ("jax", "jaxlib")
    return finish(found.pointer, found.shape, found.strides, element, device, readonly, (array, found))


def _locate_dlpack(array: Any, stream: int) -> tuple[Hashable, int]:
    return located(_describe_dlpack(array, stream))


def _watch_dlpack(array: Any) -> tuple[Callable[[], object], ...]:
    return (lambda: _locate_dlpack(array, 0),)


DLPACK = ArrayReader(_describe_dlpack, _locate_dlpack, _watch_dlpack, _no_stream)


# ---------------------------------------------------------------- arrays seen with other extents and strides


@dataclass(frozen=True, eq=False)
class Strided:
    """What stands for an array in calls of kernels, seen with other extents and strides.

    Args:
        array: the array, of any framework.
        info: what it is seen as; it begins where the array begins.
    """

    array: Any
    info: ArrayInfo


def strided_family(of: Callable[[Any], ArrayReader]) -> ArrayReader:
    """How they are read: as they say, and on the stream that their arrays' framework uses.

    Args:
        of: the family of any array.
    """

    def locate(given: Strided, stream: int) -> tuple[Hashable, int]:
        return located(given.info)

    return ArrayReader(
        lambda given, stream: given.info,
        locate,
        lambda given: of(given.array).watch(given.array),
        lambda given, index: of(given.array).stream(given.array, index),
        one_stream=False,
    )


# ---------------------------------------------------------------- PyTorch


_BY_TORCH: dict[object, DType] = {}


def _torch_element(given: object) -> DType:
    found = _BY_TORCH.get(given)
    if found is None:
        name = str(given).removeprefix("torch.")
        try:
            found = _BY_TORCH[given] = dtype(name)
        except DTypeError:
            raise unsupported(given) from None
    return found


def _records_gradient(tensor: Any) -> bool:
    """Whether PyTorch records what is computed from a tensor, for its gradient."""
    return bool(tensor.requires_grad and sys.modules["torch"].is_grad_enabled())


def _refuse_gradient(tensor: Any) -> None:
    if _records_gradient(tensor):
        raise LaunchError(
            "the tensor requires a gradient, which the result of a kernel would not have; nearest legal "
            "choice: tensor.detach(), or a call under torch.no_grad()"
        )


def _gpus() -> str:
    """Which vendor's GPUs are meant by the device that PyTorch calls CUDA: it is built for one of them."""
    try:
        return AMD_GPU if sys.modules["torch"].version.hip else GPU
    except AttributeError:
        return GPU


def _describe_torch(tensor: Any, stream: int) -> ArrayInfo:
    if str(tensor.layout) != "torch.strided":
        raise LaunchError(f"a tensor of layout {tensor.layout} has no strides; nearest: tensor.to_dense()")
    if tensor.is_conj():
        raise LaunchError("the tensor is a conjugate not carried out yet; nearest: tensor.resolve_conj()")
    if tensor.is_neg():
        raise LaunchError("the tensor is a negation not carried out yet; nearest: tensor.resolve_neg()")
    _refuse_gradient(tensor)
    where = tensor.device
    if where.type not in (HOST, GPU):
        raise LaunchError(f"the tensor lies on {where}; nearest: tensor.cpu() or tensor.cuda()")
    device: Device = HOST if where.type == HOST else (_gpus(), where.index)
    element = _torch_element(tensor.dtype)
    try:
        pointer = tensor.data_ptr()
    except RuntimeError as problem:  # a tensor that stands for another while it is being transformed
        raise LaunchError(f"the tensor has no memory: {problem}") from problem
    return finish(pointer, tensor.shape, tensor.stride(), element, device, False, tensor)


def _locate_torch(tensor: Any, stream: int) -> tuple[Hashable, int]:
    try:
        pointer, element = tensor.data_ptr(), tensor.dtype
    except RuntimeError:
        return located(_describe_torch(tensor, stream))
    if tensor.requires_grad:
        _refuse_gradient(tensor)
    # Only complex tensors have a conjugate bit.
    if not pointer or tensor.is_neg() or (element.is_complex and tensor.is_conj()):
        _describe_torch(tensor, stream)
    return (tensor.shape, tensor.stride(), element, pointer & 15, tensor.device), pointer


def _watch_torch(tensor: Any) -> tuple[Callable[[], object], ...]:
    # Where no gradient is required, that it is not costs less to ask than whether one is recorded.
    look = functools.partial(_records_gradient, tensor) if tensor.requires_grad else None
    return tensor.data_ptr, tensor.size, look or functools.partial(getattr, tensor, "requires_grad")


def _torch_stream(tensor: Any, index: int) -> Callable[[], int | None]:
    if not tensor.is_cuda:
        return none
    return functools.partial(sys.modules["torch"]._C._cuda_getCurrentRawStream, index)


TORCH = ArrayReader(_describe_torch, _locate_torch, _watch_torch, _torch_stream)


def _torch_base(tensor: Any) -> AsBase:
    base = base_of(type(tensor), "torch", "Tensor")
    assert base is not None
    return AsBase(tensor, base)


def _describe_torch_subclass(tensor: Any, stream: int) -> ArrayInfo:
    # A subclass may also answer in the place of PyTorch's own methods.
    with sys.modules["torch"]._C.DisableTorchFunctionSubclass():
        return replace(_describe_torch(_torch_base(tensor), stream), owner=tensor)


def _locate_torch_subclass(tensor: Any, stream: int) -> tuple[Hashable, int]:
    return located(_describe_torch_subclass(tensor, stream))


def _watch_torch_subclass(tensor: Any) -> tuple[Callable[[], object], ...]:
    return (lambda: _locate_torch_subclass(tensor, 0),)


def _torch_subclass_stream(tensor: Any, index: int) -> Callable[[], int | None]:
    with sys.modules["torch"]._C.DisableTorchFunctionSubclass():
        return _torch_stream(_torch_base(tensor), index)


TORCH_SUBCLASS = ArrayReader(
    _describe_torch_subclass, _locate_torch_subclass, _watch_torch_subclass, _torch_subclass_stream
)
