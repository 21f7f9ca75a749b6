"""The CUDA driver, through `cuda.bindings`: its symbols, and the description of an NVIDIA GPU."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from functools import cache
from typing import Any

from tilewright.errors import ToolchainError
from tilewright.namespaces import import_whole
from tilewright.runtime.driver import Driver, Symbols
from tilewright.targets.nvidia import of_capability
from tilewright.targets.target import CPU, CUDA

_DEVICE_ORDINAL = 9
"""Number of the attribute of an address that is the index of its GPU. Source: "CUDA Driver API",
`CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL`."""


def _load(forked: bool) -> Any:
    """Load and initialise the driver's bindings."""
    try:
        import_whole("cuda.bindings.driver")
        from cuda.bindings import driver as bindings
    except ImportError as error:
        near = "install them with: pip install 'tilewright[cuda]'"
        text = f"the CUDA driver's bindings cannot be loaded ({error}); {near}"
        raise ToolchainError(text) from error
    try:
        (status,) = bindings.cuInit(0)
    except RuntimeError as error:
        raise ToolchainError(f"no CUDA driver on this machine ({error}); use target={CPU.name!r}") from error
    if status != bindings.CUresult.CUDA_SUCCESS:
        fork = " in a forked process (nearest: one that is spawned)" if forked else ""
        raise ToolchainError(f"the CUDA driver cannot start{fork}: {status.name}; use target={CPU.name!r}")
    return bindings


def _explain(bindings: Any, status: Any) -> str:
    _, text = bindings.cuGetErrorString(status)
    return f"{status.name}: {text.decode() if text else ''}"


@dataclass(frozen=True)
class CudaDevice:
    """An NVIDIA GPU.

    Args:
        index: its number.
        name: the driver's name for it.
        capability: compute capability, e.g. ``(9, 0)``.
        multiprocessors: number of streaming multiprocessors.
        shared_bytes: most shared memory of one block.
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
            LaunchError: no known architecture fits this GPU.
        """
        return of_capability(*self.capability).name


def _describe(driver: Driver, index: int = 0) -> CudaDevice:
    """Return the description of a GPU.

    Raises:
        ToolchainError: no driver.
        LaunchError: no such device.
    """
    handle = driver.call("cuDeviceGet", index)

    def get(what: str) -> int:
        attribute = driver.constant(f"CUdevice_attribute.CU_DEVICE_ATTRIBUTE_{what}")
        return int(driver.call("cuDeviceGetAttribute", attribute, handle))

    return CudaDevice(
        index,
        driver.call("cuDeviceGetName", 256, handle).split(b"\0")[0].decode(),
        (get("COMPUTE_CAPABILITY_MAJOR"), get("COMPUTE_CAPABILITY_MINOR")),
        get("MULTIPROCESSOR_COUNT"),
        get("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        get("L2_CACHE_SIZE"),
    )


@cache
def _libcuda() -> Any:
    return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")


def _owner(_bindings: Any, address: int) -> tuple[int, int]:
    """Ask the driver's library which GPU owns an address: cuda-bindings 13.3 answers 0 for every GPU."""
    index = ctypes.c_int()
    try:
        ask = _libcuda().cuPointerGetAttribute
    except (AttributeError, OSError) as error:
        raise ToolchainError(f"the CUDA driver's library cannot be loaded ({error})") from error
    return ask(ctypes.byref(index), _DEVICE_ORDINAL, ctypes.c_uint64(address)), index.value


CUDA_DRIVER = Driver(
    Symbols(
        vendor="CUDA",
        library="the CUDA driver",
        target=CUDA,
        load=_load,
        explain=_explain,
        spell_version=lambda number: f"{number // 1000}.{number % 1000 // 10}",
        describe=_describe,
        owner=_owner,
        stream=lambda bindings, handle: bindings.CUstream(handle),
        success="CUresult.CUDA_SUCCESS",
        relaxed="CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED",
        not_capturing="CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE",
        most_shared="CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES",
        version="cuDriverGetVersion",
        count="cuDeviceGetCount",
        retain="cuDevicePrimaryCtxRetain",
        handle="cuDeviceGet",
        get_current="cuCtxGetCurrent",
        set_current="cuCtxSetCurrent",
        wait_device="cuCtxSynchronize",
        load_module="cuModuleLoadData",
        find_function="cuModuleGetFunction",
        unload_module="cuModuleUnload",
        set_attribute="cuFuncSetAttribute",
        launch="cuLaunchKernel",
        resident="cuOccupancyMaxActiveBlocksPerMultiprocessor",
        allocate="cuMemAlloc",
        free="cuMemFree",
        allocate_host="cuMemAllocHost",
        free_host="cuMemFreeHost",
        fill="cuMemsetD8Async",
        copy_in="cuMemcpyHtoD",
        copy_out="cuMemcpyDtoH",
        copy_in_order="cuMemcpyHtoDAsync",
        exchange_capture="cuThreadExchangeStreamCaptureMode",
        is_capturing="cuStreamIsCapturing",
        stream_number="cuStreamGetId",
        wait_stream="cuStreamSynchronize",
        create_event="cuEventCreate",
        record="cuEventRecord",
        query_event="cuEventQuery",
        wait_event="cuEventSynchronize",
        elapsed="cuEventElapsedTime",
        destroy_event="cuEventDestroy",
        more={},
    )
)
"""The driver of NVIDIA's GPUs.

Source: NVIDIA, "CUDA Driver API".
"""


def device_count() -> int:
    """Number of GPUs that target ``"cuda"`` reaches; 0 without a driver.

    Example:
        >>> device_count() >= 0
        True
    """
    return CUDA_DRIVER.device_count()
