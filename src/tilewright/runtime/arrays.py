"""The caller's arrays: reading their metadata, and making new arrays like them.

No framework is imported. `frameworks.py` has the readers of NumPy, PyTorch, CuPy and DLPack. The reader of
the CUDA array interface is here, because it asks the driver.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter, methodcaller
from types import SimpleNamespace
from typing import Any

import numpy as np

from tilewright.dataflow.nodes import ArrayPart, Flow, Store, walk
from tilewright.dtypes import IN_TORCH, DType
from tilewright.errors import LaunchError, shown
from tilewright.lang.specs import TensorSpec
from tilewright.runtime import frameworks
from tilewright.runtime.drivers import driver_of
from tilewright.runtime.frameworks import ArrayInfo as ArrayInfo
from tilewright.runtime.frameworks import (
    ArrayReader,
    Strided,
    base_of,
    finish,
    located,
    none,
    numpy_element,
    reader_by_description,
    row_major,
)
from tilewright.runtime.frameworks import Device as Device
from tilewright.runtime.packed_arrays import Packed, in_bytes, seen_as
from tilewright.runtime.specimens import Specimen
from tilewright.targets.target import AMD_GPU, GPU

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
    try:
        address, readonly = face["data"]
        pointer = operator.index(address or 0)
        if not 0 <= pointer < 2**64:
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise _malformed("data", face.get("data"), "an address, and whether it may only be read") from None
    owners = ((memory, driver_of(memory).device_of(pointer)) for memory in (GPU, AMD_GPU))
    device = next(((memory, index) for memory, index in owners if index is not None), (GPU, 0))
    element = _interface_element(array, face)
    return finish(pointer, shape, strides, element, device, bool(readonly), array, element.bytes)


def _face(array: Any) -> Mapping[str, Any]:
    try:
        face = array.__cuda_array_interface__
    except (AttributeError, RuntimeError, TypeError, ValueError) as problem:
        raise LaunchError(f"the array does not give its device: {problem}") from problem
    if not isinstance(face, Mapping):
        raise LaunchError(f"__cuda_array_interface__ is {face!r}, and must be a dictionary")
    return face


def _integers(face: Mapping[str, Any], name: str) -> tuple[int, ...]:
    given = face.get(name)
    try:
        if not isinstance(given, Iterable):
            raise TypeError
        return tuple(map(operator.index, given))
    except TypeError:
        raise _malformed(name, given, "a tuple of integers") from None


def _interface_element(array: Any, face: Mapping[str, Any]) -> DType:
    """Return the element type: the array's own dtype for extension types, which "typestr" calls raw bytes."""
    text = face.get("typestr")
    own = getattr(array, "dtype", None)
    if isinstance(own, np.dtype) and text == own.str:
        return numpy_element(own)  # NumPy does not know "<f1", the text of ml_dtypes' float8_e5m2
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


CUDA_ARRAYS = replace(
    reader_by_description(_describe_cuda, _cuda_stream), watch=_watch_cuda, one_stream=False
)


def _locate_own(array: Any, stream: int) -> tuple[Hashable, int]:
    memory = array.memory
    pointer: int = memory.address
    return (array.shape, array.strides, array.dtype, pointer & 15, memory.driver, memory.index), pointer


DEVICE_ARRAYS = ArrayReader(_describe_cuda, _locate_own, _watch_cuda, lambda array, index: none)
"""The reader of the library's own arrays on GPUs. It knows their device without asking the driver."""


# ---------------------------------------------------------------- one array of the caller


_WORK = 1 << 16
"""Candidates that `overlap` tries, which takes some milliseconds."""


def describe(
    array: Any, name: str = "", stream: int = 0, located: tuple[Hashable, int] | None = None
) -> ArrayInfo:
    """Return the metadata of an array; nothing is copied.

    Args:
        array: a NumPy array, a PyTorch tensor, a CuPy array, or anything with `__dlpack__` or
            `__cuda_array_interface__`.
        name: what messages call it.
        stream: the handle of the CUDA stream that will use it; a DLPack producer orders its work before.
        located: the result of `locate` for this array, which saves reading it again.

    Raises:
        LaunchError: it is no array, or no kernel can take it.

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
    """Return the metadata of a kernel's array argument.

    Raises:
        LaunchError: it is no array. For a number, the message says how to declare a parameter as one.
    """
    if isinstance(argument, Specimen):
        return argument.info
    if isinstance(argument, bool | int | float | np.number):
        declared = "int" if isinstance(argument, int | np.integer) else "tw.f32"
        raise LaunchError(
            f"kernel {kernel}: {name}={shown(argument)} is a number, and the parameter {name} takes an "
            f"array; declare a number with @tw.kernel({name}={declared}), or make {name} a "
            "keyword-only constant"
        )
    return describe(argument, f"kernel {kernel}, argument {name}")


def exact_key(array: Any) -> Hashable:
    """Return a hashable key of everything that a prepared launch depends on, except the address.

    Arrays with one key have equal dtypes, extents, strides, devices, addresses modulo 16, and write
    permission.

    Raises:
        LaunchError: it is no array, or no kernel can take it.

    Example:
        >>> a = np.zeros((64, 64), np.float32)
        >>> exact_key(a) == exact_key(a.copy()), exact_key(a) == exact_key(a.T)
        (True, False)
    """
    return locate(array)[0]


def locate(array: Any, stream: int = 0) -> tuple[Hashable, int]:
    """Return an array's `exact_key` and its address."""
    return LOCATORS.get(type(array), locate_new)(array, stream)


def locate_new(array: Any, stream: int = 0) -> tuple[Hashable, int]:
    """`locate` for an array whose type is not in `LOCATORS` yet."""
    return _family(array).locate(array, stream)


def elements(info: ArrayInfo) -> np.ndarray[Any, np.dtype[np.void]]:
    """Return the memory as a NumPy array of opaque elements, or of bytes for packed elements.

    Only host memory may be read through it.
    """
    held = in_bytes(info)
    size = held.dtype.bytes
    described = {
        "version": 3,
        "typestr": f"|V{size}",
        "shape": held.shape,
        "strides": tuple(stride * size for stride in held.strides),
        "data": (held.pointer, held.readonly),
    }
    return np.asarray(SimpleNamespace(__array_interface__=described))


def sharing(what: str, why: str, written: str) -> LaunchError:
    """Return the error for two arrays that `overlap`.

    Args:
        what: the two arrays.
        why: the reason that they must not overlap.
        written: the array that is written.

    Example:
        >>> str(sharing("out and a", "a is overwritten", "out"))
        'out and a share memory, or may: a is overwritten; nearest legal choice: another array for out'
    """
    return LaunchError(f"{what} share memory, or may: {why}", f"another array for {written}")


def overlap(one: ArrayInfo, other: ArrayInfo) -> bool:
    """Return whether two arrays share memory; True if they are too intricate to tell.

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
    """Return the bytes from an array's address to its lowest element and to the end of its highest.

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
    """Return cheap functions whose results change when this array is moved or resized.

    Example:
        >>> a = np.zeros(6)
        >>> before = [look() for look in watch(a)]
        >>> a.resize(5000, refcheck=False)
        >>> before == [look() for look in watch(a)]
        False
    """
    return _family(array).watch(array)


def stream_reader(array: Any, index: int) -> tuple[Callable[[], int | None], bool]:
    """Return a function that reads the current stream of the array's framework.

    Returns:
        The function, which returns a handle, or None for a framework without streams; and whether it serves
        all arrays of the same type on device ``index``.
    """
    family = _family(array)
    return family.stream(array, index), family.one_stream


def current_stream(device: Device, arrays: Iterable[Any]) -> int:
    """Return the handle of the current CUDA stream of the arrays' framework, or 0, the legacy default.

    Args:
        device: the device that the kernel will run on.
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
    """Return the handle of a stream, given as a number or as an object of PyTorch, CuPy or cuda.core.

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
        near = "nearest: its handle as an integer, or an object with __cuda_stream__(), .cuda_stream or .ptr"
        text = f"stream={stream!r} is no CUDA stream; {near}"
        raise LaunchError(text)
    return handle


def _family(array: Any) -> ArrayReader:
    """Return the reader for an array's type."""
    found = _FAMILIES.get(type(array))
    if found is None:
        found = _FAMILIES[type(array)] = _classify(array)
        LOCATORS[type(array)] = found.locate
    return found


def _wrapper_reader(
    describe: Callable[[Any, int], ArrayInfo], locate: Callable[[Any, int], tuple[Hashable, int]]
) -> ArrayReader:
    """Return a reader of objects that hold an array of any framework."""
    return ArrayReader(
        describe,
        locate,
        lambda given: _family(given.array).watch(given.array),
        lambda given, index: _family(given.array).stream(given.array, index),
        one_stream=False,
    )


def _locate_packed(given: Packed, stream: int) -> tuple[Hashable, int]:
    key, pointer = _family(given.array).locate(given.array, stream)
    return (given.dtype, given.axis, key), pointer


PACKED_ARRAYS = _wrapper_reader(
    lambda given, stream: seen_as(describe(given.array, "", stream), given.dtype, given.axis), _locate_packed
)
STRIDED_ARRAYS = _wrapper_reader(lambda given, stream: given.info, lambda given, stream: located(given.info))


_FAMILIES = {np.ndarray: frameworks.NUMPY, Packed: PACKED_ARRAYS, Strided: STRIDED_ARRAYS}
"""Readers of the types of arrays that are known or were seen."""

LOCATORS = {cls: reader.locate for cls, reader in _FAMILIES.items()}
"""`locate` of each of these types, for hot paths; `locate_new` serves other types."""


def _classify(array: Any) -> ArrayReader:
    """Return the reader for an array of a new type."""
    cls = type(array)
    if isinstance(array, TensorSpec):
        raise LaunchError(
            f"{array} describes a class of arrays and has no memory; nearest: an array, or compile"
        )
    if isinstance(array, Specimen):
        raise LaunchError(f"{array} has no memory; nearest: an array, or compile, trace and check")
    if base_of(cls, "numpy", "MaskedArray"):
        raise LaunchError("a masked array's mask would be lost; nearest: array.filled()")
    if issubclass(cls, np.ndarray):
        return frameworks.NUMPY_SUBCLASS
    if base_of(cls, "torch", "Tensor"):
        plain = cls.__module__.partition(".")[0] == "torch" and cls.__name__ in ("Tensor", "Parameter")
        return frameworks.TORCH if plain else frameworks.TORCH_SUBCLASS
    if base := base_of(cls, "cupy", "ndarray"):
        return frameworks.CUPY if base is cls else frameworks.cupy_subclass(base)
    if base_of(cls, "tilewright", "DeviceArray") is cls:
        return DEVICE_ARRAYS
    if base_of(cls, "jax", "Tracer"):
        text = "a JAX tracer has no memory: it stands for an array while JAX transforms a function"
        raise LaunchError(text, "a call outside of jax.jit, jax.grad and jax.vmap")
    if hasattr(cls, "__dlpack__"):
        return frameworks.DLPACK
    if hasattr(array, "__cuda_array_interface__"):
        return CUDA_ARRAYS
    raise LaunchError(f"{cls.__module__}.{cls.__qualname__} is not an array; nearest: numpy.asarray(it)")


# ---------------------------------------------------------------- new arrays of the caller's framework


_LARGE_BYTES = 64 << 20
"""Size from which we check that an array fits into memory."""


@dataclass(frozen=True, slots=True)
class Fresh:
    """Functions that make uninitialised row-major arrays of one shape, and read their addresses.

    Args:
        make: makes an array.
        address: returns the address of an array that `make` made.
    """

    make: Callable[[], Any]
    address: Callable[[Any], int]


def fresh(like: Any, shape: tuple[int, ...], dtype: DType) -> Fresh:
    """Return functions that make arrays of a shape, in the framework and on the device of another array.

    Args:
        like: the other array.
        shape: extents.
        dtype: element type.

    Raises:
        LaunchError: the framework makes no writable arrays, or none of the dtype, or memory is too small.

    Example:
        >>> from tilewright.dtypes import f16
        >>> made = fresh(np.zeros(3), (4, 2), f16).make()
        >>> made.shape, made.dtype
        ((4, 2), dtype('float16'))
    """
    if isinstance(like, np.ndarray):
        if (size := math.prod(shape) * dtype.bytes) >= _LARGE_BYTES:  # a broadcast operand allows any extent
            try:
                np.empty(shape, dtype.numpy)  # the system maps pages only when they are touched
            except (MemoryError, ValueError):
                raise LaunchError(
                    f"the result, {' x '.join(map(str, shape))} of {dtype}, takes {size / (1 << 30):.1f} "
                    "GiB, more than the free memory; nearest: fewer rows at once, or out= that is "
                    "mapped to a file (np.memmap)"
                ) from None
        return Fresh(partial(np.empty, shape, dtype.numpy), _located)
    roots = (base.__module__.partition(".")[0] for base in type(like).__mro__)
    name = next((root for root in roots if root in ("torch", "tilewright", "cupy")), "")
    library: Any = sys.modules.get(name)
    if name == "torch":
        element = None if dtype.is_packed else getattr(library, IN_TORCH[dtype.name], None)
        if element is None:
            raise LaunchError(f"PyTorch has no tensors of {dtype}; pass out=, or another out_dtype=")
        strides = row_major(shape)
        # The fastest way to make a tensor.
        none = library.empty(0, dtype=element, device=like.device)
        return Fresh(partial(none.new_empty_strided, shape, strides), methodcaller("data_ptr"))
    if name == "tilewright":
        where = like.memory.index, like.memory.driver
        return Fresh(partial(type(like).empty, shape, dtype, *where), attrgetter("memory.address"))
    if name == "cupy":
        return Fresh(partial(library.empty, shape, dtype.numpy), attrgetter("data.ptr"))
    raise LaunchError(f"cannot make an output for {type(like).__name__}; pass out=")


def _located(array: Any) -> int:
    return locate(array)[1]


# ---------------------------------------------------------------- arrays of a launch that share memory
#
# A kernel stores one tile of a result while it computes other tiles. A result must therefore share no memory
# with the operands of a product, with an array that is indexed along rows or columns alone, or with another
# result. An array that is read element by element above the product may be the result itself: the thread that
# stores an element has read it before, and no other thread reads it.


@dataclass(frozen=True, slots=True)
class AliasPair:
    """Two arrays of a launch that must not share memory.

    Args:
        stored: position of the stored array among the arrays.
        other: position of the array that is read, or also stored.
        in_place: whether both may begin at one address; they are then one array, element for element.
    """

    stored: int
    other: int
    in_place: bool = False


def pairs_of(flow: Flow | None, arrays: Mapping[str, ArrayInfo]) -> tuple[AliasPair, ...]:
    """Return the pairs of arrays that must not share memory.

    Args:
        flow: the dataflow kernel; None for an explicit kernel, whose author is responsible.
        arrays: its arrays, by parameter, in order.
    """
    if flow is None:
        return ()
    places = {name: place for place, name in enumerate(arrays)}
    multiplied = {id(node) for one in flow.sums for side in (one.a, one.b) for node in walk(side)}
    stored = [store.operand.name for store in flow.stores]
    read: dict[str, list[ArrayPart]] = {}
    choosing = {index.name for store in flow.stores for index in store.operand.indices}
    choosing |= {one.name for span in flow.cut if span.groups for one in span.groups.bounds}
    tiles = {*flow.tiles}
    if flow.grouped is not None and flow.grouped.groups is not None:
        tiles.discard(flow.grouped.groups.index)  # each row belongs to one group
    for node in flow.walk():
        if isinstance(node, ArrayPart):
            read.setdefault(node.operand.name, []).append(node)
            choosing |= {index.name for index in node.operand.indices}
    read |= {name: [] for name in choosing - read.keys()}
    made = []
    for at, store in enumerate(flow.stores):
        own = arrays[store.operand.name]
        for name in (name for name in read if name not in stored):
            # At one address, each element is read where it is stored, and nowhere else.
            other = arrays[name]
            in_place = (
                name not in choosing
                and own.dtype == other.dtype
                and all(
                    id(part) not in multiplied
                    and tiles == {*store.at} == {*part.at}
                    and store.operand.transforms == part.operand.transforms
                    and _steps(store, own) == _steps(part, other)
                    for part in read[name]
                )
            )
            made.append(AliasPair(places[store.operand.name], places[name], in_place))
        later = (name for name in stored[at + 1 :] if name != store.operand.name)
        made += [AliasPair(places[store.operand.name], places[name]) for name in later]
    return tuple(made)


def _steps(part: ArrayPart | Store, info: ArrayInfo) -> object:
    """Return extent and stride of each span whose extent is not 1; of each dimension, through a view."""
    if part.operand.transforms:
        return info.shape, info.strides
    found = zip(part.at, info.shape, info.strides, strict=True)
    return {span: (extent, stride) for span, extent, stride in found if extent != 1}


def is_same(one: ArrayInfo, other: ArrayInfo) -> bool:
    """Return whether two arrays are the same elements; strides of dimensions of extent 1 do not matter.

    Example:
        >>> x = np.zeros((1, 4), np.float32)
        >>> is_same(describe(x), describe(x[0])), is_same(describe(x), describe(x[:, ::-1]))
        (True, False)
    """
    found = [
        [step for step in zip(info.shape, info.strides, strict=True) if step[0] != 1] for info in (one, other)
    ]
    return (one.pointer, one.dtype) == (other.pointer, other.dtype) and found[0] == found[1]


def check_apart(flow: Flow | None, arrays: Mapping[str, ArrayInfo]) -> tuple[AliasPair, ...]:
    """Refuse results that share memory with an array that is read elsewhere, or with each other.

    Args:
        flow: the dataflow kernel; nothing is refused for an explicit kernel (None).
        arrays: its arrays, by parameter, in order.

    Returns:
        The pairs of arrays that must not share memory.

    Raises:
        LaunchError: two arrays share memory, or interleave in a way that is too intricate to tell.
    """
    pairs = pairs_of(flow, arrays)
    if flow is None:
        return pairs
    names, infos = list(arrays), list(arrays.values())
    results = {store.operand.name for store in flow.stores}
    for pair in pairs:
        stored, other = infos[pair.stored], infos[pair.other]
        if (pair.in_place and stored.pointer == other.pointer) or not overlap(stored, other):
            continue
        result, name = names[pair.stored], names[pair.other]
        why = (
            f"the kernel stores both, and the order of their tiles would decide which values remain in {name}"
            if name in results
            else f"elements of {name} would be overwritten before they are read"
        )
        raise sharing(f"kernel {flow.name}: {result} and {name}", why, result)
    return pairs
