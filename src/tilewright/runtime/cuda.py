"""The CUDA driver: devices, modules, memory, launches; through `cuda.bindings`, on the primary context."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from tilewright.errors import LaunchError, ToolchainError
from tilewright.namespaces import import_whole
from tilewright.runtime import launches
from tilewright.runtime.driver import LEGACY_STREAM, LoadedFunction, Names, Started
from tilewright.runtime.forks import renew_after_fork
from tilewright.runtime.unwanted import UnwantedCode
from tilewright.targets.cuda.arch import of_capability
from tilewright.targets.target import CPU

_process = renew_after_fork(Started())


def driver() -> Any:
    """The driver's bindings, initialised.

    Raises:
        ToolchainError: the bindings or the driver are missing.
        LaunchError: the driver was started by a process that forked this one.
    """
    if _process.bindings is None:
        _process.bindings = _start()
    return _process.bindings


def _start() -> Any:
    if _process.inherited:
        raise LaunchError(
            "the CUDA driver was started by the process that forked this one, and a forked child cannot use "
            "it; nearest: start the child with multiprocessing.get_context('spawn')"
        )
    try:
        import_whole("cuda.bindings.driver")
        from cuda.bindings import driver as bindings
    except ImportError as error:
        raise ToolchainError(
            f"the CUDA driver's bindings cannot be loaded ({error}); "
            "install them with: pip install 'tilewright[cuda]'"
        ) from error
    try:
        (status,) = bindings.cuInit(0)
    except RuntimeError as error:
        raise ToolchainError(f"no CUDA driver on this machine ({error}); use target={CPU.name!r}") from error
    if status != bindings.CUresult.CUDA_SUCCESS:
        forked = " in a forked process (nearest: one that is spawned)" if _process.forked else ""
        raise ToolchainError(f"the CUDA driver cannot start{forked}: {status.name}; use target={CPU.name!r}")
    return bindings


def call(name: str, *arguments: Any) -> Any:
    """Call a driver function and give back its value.

    Raises:
        LaunchError: the driver reports an error; names the function and the error.
    """
    bindings = driver()
    status, *values = getattr(bindings, name)(*arguments)
    if status != bindings.CUresult.CUDA_SUCCESS:
        raise failure(name, status)
    return values[0] if len(values) == 1 else tuple(values)


def failure(what: str, status: Any) -> LaunchError:
    """The error for a status of the driver: its name and what the driver says about it."""
    _, text = driver().cuGetErrorString(status)
    return LaunchError(f"CUDA: {what} failed with {status.name}: {text.decode() if text else ''}")


def version() -> str:
    """The CUDA version that the driver implements, e.g. ``"13.0"``.

    Raises:
        ToolchainError: no driver.
    """
    number = int(call("cuDriverGetVersion"))
    return f"{number // 1000}.{number % 1000 // 10}"


@dataclass(frozen=True)
class Device:
    """A GPU.

    Args:
        index: its number.
        name: as the driver reports it.
        capability: compute capability, e.g. ``(9, 0)``.
        multiprocessors: number of streaming multiprocessors.
        shared_bytes: shared memory that one block may have.
        l2_bytes: size of the L2 cache.
    """

    index: int
    name: str
    capability: tuple[int, int]
    multiprocessors: int
    shared_bytes: int
    l2_bytes: int

    @property
    def arch(self) -> str:
        """The architecture to compile for.

        Raises:
            LaunchError: there is none for this GPU.
        """
        return of_capability(*self.capability).name


def device_count() -> int:
    """Number of GPUs that target ``"cuda"`` reaches; 0 without a driver.

    Example:
        >>> device_count() >= 0
        True
    """
    try:
        return int(call("cuDeviceGetCount"))
    except (ToolchainError, LaunchError):
        return 0


@lru_cache(maxsize=64)
def device(index: int = 0) -> Device:
    """What is known of a GPU.

    Raises:
        ToolchainError: no driver.
        LaunchError: no such device.
    """
    handle = call("cuDeviceGet", index)
    attribute = driver().CUdevice_attribute
    prefix = "CU_DEVICE_ATTRIBUTE_"

    def get(what: str) -> int:
        return int(call("cuDeviceGetAttribute", getattr(attribute, prefix + what), handle))

    return Device(
        index,
        call("cuDeviceGetName", 256, handle).split(b"\0")[0].decode(),
        (get("COMPUTE_CAPABILITY_MAJOR"), get("COMPUTE_CAPABILITY_MINOR")),
        get("MULTIPROCESSOR_COUNT"),
        get("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        get("L2_CACHE_SIZE"),
    )


@lru_cache(maxsize=64)
def context(index: int) -> Any:
    """The device's primary context: the one that frameworks use too."""
    return call("cuDevicePrimaryCtxRetain", call("cuDeviceGet", index))


def activate(index: int) -> Any | None:
    """Make the device's primary context current in this thread, if it is not.

    Returns:
        The context to give back to `restore` afterwards; None if there is nothing to restore.  Where no
        context was current, that of device 0 stays: without one, the CUDA runtime takes device 0 too.
    """
    wanted = context(index)
    bindings = driver()
    status, now = bindings.cuCtxGetCurrent()
    if status == bindings.CUresult.CUDA_SUCCESS and int(now) == int(wanted):
        return None
    call("cuCtxSetCurrent", wanted)
    return now if int(now) or index else None


def restore(before: Any | None) -> None:
    """Make current again what `activate` found."""
    if before is not None:
        call("cuCtxSetCurrent", before)


class Current:
    """While it is entered, a device's primary context is current in this thread; then what was before.

    Args:
        index: the device.
    """

    __slots__ = ("_before", "_index")

    def __init__(self, index: int) -> None:
        self._index = index
        self._before: Any | None = None

    def __enter__(self) -> None:
        self._before = activate(self._index)

    def __exit__(self, *_: object) -> None:
        restore(self._before)


def give_back(owner: object, index: int, name: str, handle: Any) -> None:
    """Have the driver take something of a device back when its owner is collected.

    Not at the interpreter's end, when the driver may be gone before the owner is.
    """
    weakref.finalize(owner, _take, index, name, handle).atexit = False


def _take(index: int, name: str, handle: Any) -> None:
    if _process.bindings is None:  # a forked child, to which nothing belongs
        return
    if name == "cuModuleUnload":
        unwanted.append(index, handle)
        return
    with Current(index), AnyCapture():
        _quietly(name, handle)


def _quietly(name: str, handle: Any) -> None:
    """Call a function of the driver, and ignore its status: an error would help nobody."""
    getattr(driver(), name)(handle)


unwanted = UnwantedCode()
"""Machine code that nobody holds."""


class AnyCapture:
    """While it is entered, this thread may allocate and free memory though a graph is being captured."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        relaxed = driver().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        self._before = call("cuThreadExchangeStreamCaptureMode", relaxed)

    def __exit__(self, *_: object) -> None:
        call("cuThreadExchangeStreamCaptureMode", self._before)


def is_capturing(stream: int) -> bool:
    """Whether launches on a stream go into a graph instead, which launches them later; never on stream 0."""
    if stream in LEGACY_STREAM:
        return False
    status, state = driver().cuStreamIsCapturing(stream)[:2]
    none = driver().CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
    return bool(status == driver().CUresult.CUDA_SUCCESS and state != none)


def stream_number(stream: int) -> int:
    """A number that no other stream has, not even one that has its handle later."""
    return int(call("cuStreamGetId", stream))


def has_passed(event: Any) -> bool:
    """Whether an event has come to pass."""
    (status,) = driver().cuEventQuery(event)
    return bool(status == driver().CUresult.CUDA_SUCCESS)


NAMES = Names(
    allocate="cuMemAlloc",
    free="cuMemFree",
    allocate_host="cuMemAllocHost",
    free_host="cuMemFreeHost",
    fill="cuMemsetD8Async",
    copy_in="cuMemcpyHtoD",
    copy_out="cuMemcpyDtoH",
    copy_in_order="cuMemcpyHtoDAsync",
    create_event="cuEventCreate",
    record="cuEventRecord",
    wait_event="cuEventSynchronize",
    elapsed="cuEventElapsedTime",
    destroy_event="cuEventDestroy",
    wait_stream="cuStreamSynchronize",
)


class Function:
    """A kernel loaded on one device.

    Args:
        cubin: its machine code.
        entry: its name.
        index: the device.
        shared_bytes: dynamic shared memory per block.
    """

    def __init__(self, cubin: bytes, entry: str, index: int, shared_bytes: int) -> None:
        self.index = index
        self.shared_bytes = shared_bytes
        with Current(index):
            unwanted.make_room(index, synchronize)
            module = call("cuModuleLoadData", cubin)
            # Every launch prepared with the code holds this object.
            give_back(self, index, "cuModuleUnload", module)
            self.handle = call("cuModuleGetFunction", module, entry.encode())
            if shared_bytes > 48 * 1024:
                attribute = driver().CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                call("cuFuncSetAttribute", self.handle, attribute, shared_bytes)


class Launch(launches.Launch):
    """A launch whose shape is fixed; see `tilewright.runtime.launches.Launch`.

    Args:
        function: the kernel.
        grid: blocks along x, y, z.
        threads: threads per block.
        offsets: byte offset of each argument in the buffer.
        size: bytes of the buffer.
        attributes: the driver's launch attributes.

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
        attributes: Sequence[Any] = (),
    ) -> None:
        limits = of_capability(*device(function.index).capability).grid
        # Where there is one device, its context is current as a rule: asking would cost as much as trying.
        alone, success = device_count() <= 1, driver().CUresult.CUDA_SUCCESS
        super().__init__(function, grid, threads, limits, offsets, size, success=success, alone=alone)
        self._attributes = list(attributes)

    def call_on(self, stream: int) -> Callable[[], tuple[Any]]:
        """The driver's call for a stream."""
        bindings = driver()
        handle = bindings.CUstream(stream)
        if self._attributes:
            config = self._configure(handle)
            return partial(bindings.cuLaunchKernelEx, config, self._handle, self._arguments, 0)
        return partial(bindings.cuLaunchKernel, self._handle, *self._shape, handle, self._arguments, 0)

    def current(self) -> Current:
        """While it is entered, the device is current."""
        return Current(self._index)

    def failed(self, status: Any) -> LaunchError:
        """The error for a status of the driver."""
        return failure("the launch", status)

    def _configure(self, stream: Any) -> Any:
        config = driver().CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = self._shape[:3]
        config.blockDimX, config.blockDimY, config.blockDimZ = self._shape[3:6]
        config.sharedMemBytes = self._shape[6]
        config.hStream = stream
        config.attrs, config.numAttrs = self._attributes, len(self._attributes)
        return config


def synchronize(index: int = 0) -> None:
    """Wait for everything on a device.

    Raises:
        LaunchError: a kernel failed.
    """
    with Current(index):
        unwanted.unload_after(index, partial(call, "cuCtxSynchronize"), partial(_quietly, "cuModuleUnload"))
