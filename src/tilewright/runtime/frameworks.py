"""Readers of the arrays of each framework. No framework is imported.

NumPy, PyTorch and CuPy arrays are read through their own attributes, which is fastest. All other arrays are
read through DLPack (`dlpack.py`) or the CUDA array interface (`arrays.py`).
"""

from __future__ import annotations

import ctypes
import functools
import math
import sys
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, TypeAlias, TypeVar

import numpy as np

from tilewright.dtypes import ALL, IN_DLPACK, DType, dtype
from tilewright.errors import DTypeError, LaunchError
from tilewright.runtime import dlpack
from tilewright.targets.target import AMD_GPU, GPU, HOST

Device: TypeAlias = str | tuple[str, int]
"""`HOST`, or the frameworks' name of a kind of device and the device's index."""


NOWHERE = ""
"""Device of an array that does not exist; any target may compile for it."""


def memory_of(device: Device) -> str:
    """Return `HOST`, or the kind of device."""
    return device if isinstance(device, str) else device[0]


@dataclass(frozen=True, slots=True)
class ArrayInfo:
    """One of the caller's arrays.

    Args:
        pointer: the address of the first element.
        shape: extents.
        strides: strides in elements; 0 repeats an element, negative strides step towards lower addresses.
        dtype: the element type.
        device: where it lies: ``"cpu"``, ``("cuda", index)`` or ``("rocm", index)``.
        readonly: whether writing is forbidden.
        owner: an object that keeps the memory alive.
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
    """The functions that read the arrays of one framework.

    Args:
        describe: returns everything about an array.
        locate: returns a key of everything except the address, and the address.
        watch: for an array, returns cheap functions whose results change when it is moved or resized.
        stream: for an array and a device index, returns a function that reads the framework's current stream.
        one_stream: whether that function serves all arrays of a type on that device.
        complete: makes the description from an array, its key and its address; None: `describe` reads again.
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
    """Check the metadata of an array of any framework, and return it with strides in elements.

    ``strides`` count elements if ``unit`` is 1; otherwise bytes, and an element has ``unit`` of them.
    """
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
        steps = row_major(extents)
    else:
        found = []
        for dim, (extent, stride) in enumerate(zip(extents, strides, strict=True)):
            step, rest = divmod(stride, unit)
            if step < 0 or rest:
                if extent <= 1 or 0 in extents:
                    step = 0  # with one element the stride is not used
                elif rest:
                    raise LaunchError(
                        f"stride {stride} bytes of dimension {dim} is no multiple of the {unit} bytes of an "
                        f"element; {_CONTIGUOUS}"
                    )
            found.append(int(step))
        steps = tuple(found)
    return ArrayInfo(pointer, extents, steps, element, device, readonly, owner)


def row_major(shape: Sequence[int], unit: int = 1) -> tuple[int, ...]:
    """Return the strides of a row-major array whose elements are ``unit`` apart."""
    return tuple(unit * math.prod(shape[dim + 1 :]) for dim in range(len(shape)))


_CONTIGUOUS = (
    "nearest: np.ascontiguousarray(array) for an input; for an output, pass a contiguous array and copy it "
    "back: array[...] = contiguous"
)


def none() -> None:
    """Return None as the current stream, for a framework without streams."""
    return


def _no_stream(array: Any, index: int) -> Callable[[], int | None]:
    return none


def located(info: ArrayInfo) -> tuple[Hashable, int]:
    """Return the key and the address from a description."""
    key = (info.shape, info.strides, info.dtype, info.pointer & 15, info.device, info.readonly)
    return key, info.pointer


def reader_by_description(
    describe: Callable[[Any, int], ArrayInfo], stream: Callable[[Any, int], Callable[[], int | None]]
) -> ArrayReader:
    """Return a reader that describes the array again for every question."""

    def locate(array: Any, stream: int) -> tuple[Hashable, int]:
        return located(describe(array, stream))

    return ArrayReader(describe, locate, lambda array: (lambda: locate(array, 0),), stream)


def _reader_of_subclass(base: ArrayReader, plain: Callable[[Any], Any]) -> ArrayReader:
    """Return a reader that ignores what a subclass overrides; ``plain`` makes a view for ``base``."""
    return ArrayReader(
        lambda array, stream: replace(base.describe(plain(array), stream), owner=array),
        lambda array, stream: base.locate(plain(array), stream),
        lambda array: (lambda: base.locate(plain(array), 0),),
        base.stream,
    )


class AsBase:
    """A view of an array through its framework's own class; attributes of a subclass are ignored."""

    def __init__(self, array: Any, base: type) -> None:
        self._array = array
        self._base = base

    def __getattr__(self, name: str) -> Any:
        return getattr(self._base, name).__get__(self._array)


def base_of(cls: type, framework: str, name: str) -> type | None:
    """Return the class of a framework that a class is or derives from."""
    for base in cls.__mro__:
        if (base.__module__.partition(".")[0], base.__name__) == (framework, name):
            return base
    return None


# NumPy.

_BY_NUMPY = {element.numpy: element for element in ALL.values() if not element.is_packed}
_ONE_IN_A_BYTE = {element.numbers: element for element in ALL.values() if element.is_packed}
"""Sub-byte elements as NumPy stores them: one per byte. Kernels pack several in a byte."""


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
    """Return the element type of a NumPy dtype.

    Raises:
        LaunchError: no kernel takes it.
    """
    found = _BY_NUMPY.get(given)
    if found is not None:
        return found
    if (one := _ONE_IN_A_BYTE.get(given)) is not None:
        near = f"tw.packed(tw.pack(array, tw.{one}), tw.{one}), with {one.per_byte} in each"
        raise LaunchError(f"an array of {given} has one number per byte", near)
    if not given.isnative:
        raise LaunchError(
            f"elements {given!r} have the other byte order; "
            "nearest: array.astype(array.dtype.newbyteorder('='))"
        )
    raise unsupported(given)


def unsupported(given: object) -> LaunchError:
    """The error for an element type that no kernel takes."""
    return LaunchError(f"elements of type {given} are not supported; known: {', '.join(ALL)}")


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


NUMPY = ArrayReader(
    lambda array, stream: _complete_numpy(array, *_locate_numpy(array, stream)),
    _locate_numpy,
    _watch_numpy,
    _no_stream,
    complete=_complete_numpy,
)
NUMPY_SUBCLASS = _reader_of_subclass(NUMPY, lambda array: np.ndarray.view(array, np.ndarray))


# CuPy.


def _describe_cupy(array: Any, stream: int) -> ArrayInfo:
    element, memory = numpy_element(array.dtype), array.data
    try:
        vendor = AMD_GPU if sys.modules["cupy"].cuda.runtime.is_hip else GPU
    except (AttributeError, KeyError):
        vendor = GPU
    device: Device = (vendor, memory.device_id)
    return finish(memory.ptr, array.shape, array.strides, element, device, False, array, element.bytes)


def _locate_cupy(array: Any, stream: int) -> tuple[Hashable, int]:
    memory = array.data
    pointer = memory.ptr
    return (array.shape, array.strides, array.dtype, pointer & 15, ("cupy", memory.device_id)), pointer


CUPY = ArrayReader(
    _describe_cupy,
    _locate_cupy,
    lambda array: (lambda: array.data.ptr, lambda: array.shape),
    lambda array, index: lambda: int(sys.modules["cupy"].cuda.get_current_stream().ptr),
)


def cupy_subclass(base: type) -> ArrayReader:
    """Return the reader of a subclass of CuPy's array."""
    return _reader_of_subclass(CUPY, lambda array: AsBase(array, base))


# DLPack.

_CODES = {"int": 0, "uint": 1, "float": 2, "bool": 6}
_KNOWN = {t.name: _CODES[t.kind] for t in ALL.values() if t.kind in _CODES} | IN_DLPACK
_BY_DLPACK = {(_KNOWN[t.name], t.bits): t for t in ALL.values() if not t.is_packed}

_MEMORIES = {
    **dict.fromkeys((dlpack.CPU, dlpack.CUDA_HOST, dlpack.ROCM_HOST), HOST),
    **dict.fromkeys((dlpack.CUDA, dlpack.CUDA_MANAGED), GPU),
    dlpack.ROCM: AMD_GPU,
}
"""The memory of each DLPack device type."""


def _describe_dlpack(array: Any, stream: int) -> ArrayInfo:
    found = dlpack.export(array, stream)
    kind, index = found.device
    if kind not in _MEMORIES:
        near = "nearest: a copy on the CPU or a device of CUDA or ROCm"
        text = f"the array lies on a device of DLPack type {kind}; {near}"
        raise LaunchError(text)
    memory = _MEMORIES[kind]
    device: Device = HOST if memory == HOST else (memory, index)
    element = _BY_DLPACK.get((found.code, found.bits)) if found.lanes == 1 else None
    if element is None:
        shown = getattr(array, "dtype", f"(code {found.code}, {found.bits} bits, {found.lanes} lanes)")
        raise unsupported(shown)
    # JAX's arrays never change, whatever the capsule's flags say.
    readonly = found.readonly or type(array).__module__.partition(".")[0] in ("jax", "jaxlib")
    return finish(found.pointer, found.shape, found.strides, element, device, readonly, (array, found))


DLPACK = reader_by_description(_describe_dlpack, _no_stream)


# ---------------------------------------------------------------- arrays seen with other extents and strides


@dataclass(frozen=True, eq=False)
class Strided:
    """An array viewed with other extents and strides, for calls of kernels.

    Args:
        array: the array, of any framework.
        info: the view; it begins at the array's address.
    """

    array: Any
    info: ArrayInfo


# ---------------------------------------------------------------- PyTorch


_BY_TORCH: dict[object, DType] = {}


def _records_gradient(tensor: Any) -> bool:
    """Return whether PyTorch records operations on a tensor for its gradient."""
    return bool(tensor.requires_grad and sys.modules["torch"].is_grad_enabled())


def _refuse_gradient(tensor: Any) -> None:
    if _records_gradient(tensor):
        text = "the tensor requires a gradient, and kernels record none"
        raise LaunchError(text, "tensor.detach(), or a call under torch.no_grad()")


_forward_mode: Any = SimpleNamespace(_current_level=-1)
"""PyTorch's module of forward mode, from the first tensor on. Its level is -1 outside of forward mode."""


def has_tangent(tensor: Any) -> bool:
    """Return whether a tensor of PyTorch carries a tangent of forward mode."""
    global _forward_mode
    torch: Any = sys.modules["torch"]
    _forward_mode = getattr(getattr(torch, "autograd", None), "forward_ad", _forward_mode)
    if _forward_mode._current_level < 0:
        return False
    # `torch.autograd.Function` switches forward mode off, and an unpacked tensor then has no tangent.
    with _forward_mode._set_fwd_grad_enabled(True):
        return _forward_mode.unpack_dual(tensor).tangent is not None


def _refuse_tangent(tensor: Any) -> None:
    if has_tangent(tensor):
        text = "the tensor has a tangent of PyTorch's forward mode, which kernels would lose"
        raise LaunchError(text, "torch.autograd.forward_ad.unpack_dual(tensor).primal")


def _describe_torch(tensor: Any, stream: int) -> ArrayInfo:
    if str(tensor.layout) != "torch.strided":
        raise LaunchError(f"a tensor of layout {tensor.layout} has no strides; nearest: tensor.to_dense()")
    if tensor.is_conj():
        raise LaunchError("the tensor is a lazy conjugate; nearest: tensor.resolve_conj()")
    if tensor.is_neg():
        raise LaunchError("the tensor is a lazy negation; nearest: tensor.resolve_neg()")
    _refuse_gradient(tensor)
    _refuse_tangent(tensor)
    where = tensor.device
    if where.type not in (HOST, GPU):
        raise LaunchError(f"the tensor lies on {where}; nearest: tensor.cpu() or tensor.cuda()")
    device: Device = HOST
    if where.type == GPU:  # PyTorch calls GPUs of both vendors CUDA; a build serves one vendor
        try:
            vendor = AMD_GPU if sys.modules["torch"].version.hip else GPU
        except AttributeError:
            vendor = GPU
        device = (vendor, where.index)
    element = _BY_TORCH.get(tensor.dtype)
    if element is None:
        try:
            element = _BY_TORCH[tensor.dtype] = dtype(str(tensor.dtype).removeprefix("torch."))
        except DTypeError:
            raise unsupported(tensor.dtype) from None
    try:
        pointer = tensor.data_ptr()
    except RuntimeError as problem:  # a placeholder while PyTorch transforms a function
        raise LaunchError(f"the tensor has no memory: {problem}") from problem
    return finish(pointer, tensor.shape, tensor.stride(), element, device, False, tensor)


def _locate_torch(tensor: Any, stream: int) -> tuple[Hashable, int]:
    try:
        pointer, element = tensor.data_ptr(), tensor.dtype
    except RuntimeError:
        return located(_describe_torch(tensor, stream))
    if tensor.requires_grad:
        _refuse_gradient(tensor)
    if _forward_mode._current_level >= 0:
        _refuse_tangent(tensor)
    # Only complex tensors have a conjugate bit.
    if not pointer or tensor.is_neg() or (element.is_complex and tensor.is_conj()):
        _describe_torch(tensor, stream)
    return (tensor.shape, tensor.stride(), element, pointer & 15, tensor.device), pointer


def _watch_torch(tensor: Any) -> tuple[Callable[[], object], ...]:
    # Reading `requires_grad` costs less than asking whether a gradient is recorded.
    look = functools.partial(_records_gradient, tensor) if tensor.requires_grad else None
    return tensor.data_ptr, tensor.size, look or functools.partial(getattr, tensor, "requires_grad")


def _torch_stream(tensor: Any, index: int) -> Callable[[], int | None]:
    if not tensor.is_cuda:
        return none
    return functools.partial(sys.modules["torch"]._C._cuda_getCurrentRawStream, index)


TORCH = ArrayReader(_describe_torch, _locate_torch, _watch_torch, _torch_stream)


Found = TypeVar("Found")


def _of_base(read: Callable[[Any, int], Found]) -> Callable[[Any, int], Found]:
    """Let a function read a tensor of a subclass, which may also override PyTorch's own functions."""

    def function(tensor: Any, number: int) -> Found:
        with sys.modules["torch"]._C.DisableTorchFunctionSubclass():
            base = base_of(type(tensor), "torch", "Tensor")
            assert base is not None
            return read(AsBase(tensor, base), number)

    return function


_describe_base = _of_base(_describe_torch)
TORCH_SUBCLASS = reader_by_description(
    lambda tensor, stream: replace(_describe_base(tensor, stream), owner=tensor), _of_base(_torch_stream)
)
