"""ROCm's runtime, libamdhip64: devices, modules, memory, launches; by ctypes, loaded when it is first asked.

Source: AMD, "HIP Runtime API Reference"; the numbers of attributes are those of `hip_runtime_api.h`,
which are the same from ROCm 5 on.
"""

from __future__ import annotations

import ctypes
import re
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from tilewright.errors import LaunchError, ToolchainError
from tilewright.runtime import hip_functions, launches
from tilewright.runtime.driver import LEGACY_STREAM, LoadedFunction, Started
from tilewright.runtime.forks import renew_after_fork
from tilewright.runtime.hip_functions import LIBRARY, SIGNATURES, VERSIONS
from tilewright.runtime.shared_objects import SharedObject
from tilewright.runtime.unwanted import UnwantedCode
from tilewright.targets.target import HIP

SUCCESS = 0
_RELAXED, _NOT_CAPTURING = 2, 0
_MULTIPROCESSORS, _SHARED_BYTES, _L2_BYTES, _ORDINAL = 63, 74, 19, 9

NAMES = hip_functions.NAMES

_process = renew_after_fork(Started())


def library() -> SharedObject:
    """The runtime, loaded.

    Raises:
        ToolchainError: it is not there.
        LaunchError: it was started by a process that forked this one.
    """
    if _process.bindings is None:
        if _process.inherited:
            raise LaunchError(
                "ROCm's runtime was started by the process that forked this one, and a forked child cannot "
                "use it; nearest: start the child with multiprocessing.get_context('spawn')"
            )
        _process.bindings = SharedObject(LIBRARY, VERSIONS, SIGNATURES)
    found: SharedObject = _process.bindings
    return found


def call(name: str, *arguments: Any) -> Any:
    """Call a function of the runtime and give back its value.

    Raises:
        LaunchError: the runtime reports an error; names the function and the error.
        ToolchainError: there is no runtime, or it has no such function.
    """
    if name == NAMES.allocate_host:
        arguments = (*arguments, 0)  # flags, of which none is needed
    status, values = library().function(name)(*arguments)
    if status != SUCCESS:
        raise failure(name, status)
    return values[0] if values else None


def failure(what: str, status: int) -> LaunchError:
    """The error for a status of the runtime: its name and what the runtime says about it."""
    said = []
    for name in ("hipGetErrorName", "hipGetErrorString"):
        ask = getattr(library().library, name)
        ask.argtypes, ask.restype = [ctypes.c_int], ctypes.c_char_p
        said.append((ask(status) or b"").decode(errors="replace"))
    return LaunchError(f"HIP: {what} failed with {said[0]} ({status}): {said[1]}")


def version() -> str:
    """The version of the runtime, e.g. ``"6.2.41133"``."""
    number = call("hipRuntimeGetVersion")
    return f"{number // 10_000_000}.{number // 100_000 % 100}.{number % 100_000}"


@dataclass(frozen=True)
class Device:
    """An AMD GPU.

    Args:
        index: its number.
        name: as the runtime reports it.
        gfx: its architecture with what is switched on, e.g. ``"gfx942:sramecc+:xnack-"``.
        multiprocessors: number of compute units, or of pairs of them, as the runtime counts.
        shared_bytes: shared memory that one block may have.
        l2_bytes: size of the L2 cache.
    """

    index: int
    name: str
    gfx: str
    multiprocessors: int
    shared_bytes: int
    l2_bytes: int

    @property
    def arch(self) -> str:
        """The architecture to compile for.

        Raises:
            LaunchError: there is none for this GPU.
        """
        return HIP.architecture(self.gfx.partition(":")[0]).name


def device_count() -> int:
    """Number of GPUs that target ``"hip"`` reaches; 0 without a runtime.

    Example:
        >>> device_count() >= 0
        True
    """
    try:
        return int(call("hipGetDeviceCount"))
    except (ToolchainError, LaunchError):
        return 0


@lru_cache(maxsize=64)
def device(index: int = 0) -> Device:
    """What is known of a GPU.

    Raises:
        ToolchainError: no runtime.
        LaunchError: no such device.
    """
    # The record of a device has had two layouts.  In both its name comes first, and its architecture later.
    newer = "hipGetDevicePropertiesR0600"
    record = ctypes.create_string_buffer(1 << 14)
    call(newer if library().has(newer) else "hipGetDeviceProperties", ctypes.addressof(record), index)
    gfx = re.search(rb"gfx[0-9a-f]+[\w:+-]*", record.raw[256:])
    if gfx is None:
        raise LaunchError(f"{library().path} does not say of which architecture device {index} is")

    def get(attribute: int) -> int:
        return int(call("hipDeviceGetAttribute", attribute, index))

    name = record.value.decode(errors="replace")[:255]
    return Device(index, name, gfx[0].decode(), get(_MULTIPROCESSORS), get(_SHARED_BYTES), get(_L2_BYTES))


def device_of(pointer: int) -> int | None:
    """The number of the GPU in whose memory an address lies; None if no runtime knows."""
    try:
        return int(call("hipPointerGetAttribute", _ORDINAL, pointer))
    except (ToolchainError, LaunchError):
        return None


class Current:
    """While it is entered, a device is current in this thread; then what was before.

    Args:
        index: the device.
    """

    __slots__ = ("_before", "_index")

    def __init__(self, index: int) -> None:
        self._index = index
        self._before = index

    def __enter__(self) -> None:
        self._before = call("hipGetDevice")
        if self._before != self._index:
            call("hipSetDevice", self._index)

    def __exit__(self, *_: object) -> None:
        if self._before != self._index:
            call("hipSetDevice", self._before)


class AnyCapture:
    """While it is entered, this thread may allocate and free memory though a graph is being captured."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = call("hipThreadExchangeStreamCaptureMode", _RELAXED)

    def __exit__(self, *_: object) -> None:
        call("hipThreadExchangeStreamCaptureMode", self._before)


def is_capturing(stream: int) -> bool:
    """Whether launches on a stream go into a graph instead, which launches them later; never on stream 0."""
    return stream not in LEGACY_STREAM and call("hipStreamIsCapturing", stream) != _NOT_CAPTURING


def stream_number(stream: int) -> int:
    """A number that no other stream has.

    Runtimes before 7.1 number no streams; there the handle stands for it, which another stream may have after
    this one was destroyed.
    """
    return int(call("hipStreamGetId", stream)) if library().has("hipStreamGetId") else stream


def has_passed(event: Any) -> bool:
    """Whether an event has come to pass."""
    status, _ = library().function("hipEventQuery")(event)
    return status == SUCCESS


unwanted = UnwantedCode()
"""Machine code that nobody holds."""


def give_back(owner: object, index: int, name: str, handle: Any) -> None:
    """Have the runtime take something of a device back when its owner is collected.

    Not at the interpreter's end, when the runtime may be gone before the owner is.
    """
    weakref.finalize(owner, _take, index, name, handle).atexit = False


def _take(index: int, name: str, handle: Any) -> None:
    if _process.bindings is None:  # a forked child, to which nothing belongs
        return
    if isinstance(handle, _Module):
        unwanted.append(index, handle)
        return
    with Current(index), AnyCapture():
        _quietly(name, handle)


@dataclass(frozen=True, eq=False)
class _Module:
    """A loaded module, and its code object: the runtime reads that for as long as the module is loaded."""

    handle: Any
    image: bytes

    def unload(self) -> None:
        """Have the runtime let go of it."""
        _quietly("hipModuleUnload", self.handle)


def _quietly(name: str, handle: Any) -> None:
    """Call a function whose error would help nobody."""
    library().function(name)(handle)


class Function:
    """A kernel loaded on one device.

    Args:
        image: its code object.
        entry: its name.
        index: the device.
        shared_bytes: dynamic shared memory per block.
    """

    def __init__(self, image: bytes, entry: str, index: int, shared_bytes: int) -> None:
        self.index = index
        self.shared_bytes = shared_bytes
        with Current(index):
            unwanted.make_room(index, synchronize)
            module = call("hipModuleLoadData", image)
            # Every launch prepared with the code holds this object.
            give_back(self, index, "hipModuleUnload", _Module(module, image))
            self.handle = call("hipModuleGetFunction", module, entry.encode())


class Launch(launches.Launch):
    """A launch whose shape is fixed; see `tilewright.runtime.launches.Launch`.

    Args:
        function: the kernel.
        grid: blocks along x, y, z.
        threads: threads per block.
        offsets: byte offset of each argument in the buffer.
        size: bytes of the buffer.
        together: whether all blocks must be resident at once.

    Raises:
        LaunchError: more blocks than a GPU launches.
    """

    def __init__(
        self,
        function: LoadedFunction,
        grid: Sequence[int],
        threads: int,
        offsets: Sequence[int],
        size: int,
        together: bool = False,
    ) -> None:
        x, *others = HIP.architecture(device(function.index).arch).grid
        limits = (min(x, (2**32 - 1) // threads), *others)  # threads along x are counted in 32 bits
        super().__init__(function, grid, threads, limits, offsets, size, success=SUCCESS, alone=False)
        self._together = together

    def call_on(self, stream: int) -> Callable[[], tuple[Any]]:
        """The runtime's call for a stream."""
        given = (self._handle, *self._shape, stream, self._arguments)
        if self._together:
            return partial(_status, "hipModuleLaunchCooperativeKernel", given)
        return partial(_status, "hipModuleLaunchKernel", (*given, None))

    def current(self) -> Current:
        """While it is entered, the device is current."""
        return Current(self._index)

    def failed(self, status: Any) -> LaunchError:
        """The error for a status of the runtime."""
        return failure("the launch", status)


def _status(name: str, given: tuple[Any, ...]) -> tuple[int]:
    return (library().function(name)(*given)[0],)


def resident_blocks(function: LoadedFunction, threads: int) -> int:
    """How many blocks of a kernel a device holds at once."""
    with Current(function.index):
        name = "hipModuleOccupancyMaxActiveBlocksPerMultiprocessor"
        each = call(name, function.handle, threads, function.shared_bytes)
    return int(each) * device(function.index).multiprocessors


def synchronize(index: int = 0) -> None:
    """Wait for everything on a device.

    Raises:
        LaunchError: a kernel failed.
    """
    with Current(index):
        unwanted.unload_after(index, partial(call, "hipDeviceSynchronize"), _Module.unload)
