"""ROCm's runtime, libamdhip64, through ctypes: its symbols, and the description of an AMD GPU.

Source: AMD, "HIP Runtime API Reference". The numbers of attributes are in `hip_runtime_api.h`, and have not
    changed since ROCm 5.
"""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from typing import Any

from tilewright.errors import LaunchError
from tilewright.runtime.comgr import SharedObject
from tilewright.runtime.driver import Driver, Symbols
from tilewright.targets.target import HIP

LIBRARY = "libamdhip64.so"

VERSIONS = (7, 6, 5)
"""Versions of its interface, the newest first."""

SIGNATURES = {
    "hipRuntimeGetVersion": "*i",
    "hipGetDeviceCount": "*i",
    "hipGetDevice": "*i",
    "hipSetDevice": "i",
    "hipDeviceGetAttribute": "*i i i",
    "hipGetDeviceProperties": "p i",
    "hipGetDevicePropertiesR0600": "p i",
    "hipDeviceSynchronize": "",
    "hipModuleLoadData": "*p p",
    "hipModuleGetFunction": "*p p s",
    "hipModuleUnload": "p",
    "hipModuleLaunchKernel": "p u u u u u u u p p p",
    "hipModuleLaunchCooperativeKernel": "p u u u u u u u p p",
    "hipModuleOccupancyMaxActiveBlocksPerMultiprocessor": "*i p i z",
    "hipMalloc": "*p z",
    "hipFree": "p",
    "hipHostMalloc": "*p z u",
    "hipHostFree": "p",
    "hipMemsetD8Async": "p i z p",
    "hipMemcpyHtoD": "p p z",
    "hipMemcpyDtoH": "p p z",
    "hipMemcpyHtoDAsync": "p p z p",
    "hipPointerGetAttribute": "*i i p",
    "hipStreamIsCapturing": "p *i",
    "hipStreamGetId": "p *U",
    "hipStreamSynchronize": "p",
    "hipThreadExchangeStreamCaptureMode": "&i",
    "hipEventCreateWithFlags": "*p u",
    "hipEventRecord": "p p",
    "hipEventQuery": "p",
    "hipEventSynchronize": "p",
    "hipEventElapsedTime": "*f p p",
    "hipEventDestroy": "p",
}
"""The functions that we call, with their arguments in the codes of `tilewright.runtime.comgr`."""

_MULTIPROCESSORS, _SHARED_BYTES, _L2_BYTES = 63, 74, 19
"""Numbers of device attributes."""

_DEVICE_ORDINAL = 9
"""Number of the attribute of an address that is the index of its GPU."""


def _explain(bindings: Any, status: int) -> str:
    said = []
    for name in ("hipGetErrorName", "hipGetErrorString"):
        ask = getattr(bindings.library, name)
        ask.argtypes, ask.restype = [ctypes.c_int], ctypes.c_char_p
        said.append((ask(status) or b"").decode(errors="replace"))
    return f"{said[0]} ({status}): {said[1]}"


@dataclass(frozen=True)
class HipDevice:
    """An AMD GPU.

    Args:
        index: its number.
        name: the runtime's name for it.
        gfx: its architecture with the enabled features, e.g. ``"gfx942:sramecc+:xnack-"``.
        multiprocessors: number of compute units, or of pairs of them, as the runtime counts.
        shared_bytes: most shared memory of one block.
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
            LaunchError: no known architecture fits this GPU.
        """
        return HIP.architecture(self.gfx.partition(":")[0]).name


def _describe(driver: Driver, index: int = 0) -> HipDevice:
    """Return the description of a GPU.

    Raises:
        ToolchainError: no runtime.
        LaunchError: no such device.
    """
    # The record of a device has two layouts. In both, the name comes first and the architecture later.
    newer, library = "hipGetDevicePropertiesR0600", driver.bindings()
    record = ctypes.create_string_buffer(1 << 14)
    ask = newer if library.has(newer) else "hipGetDeviceProperties"
    driver.call(ask, ctypes.addressof(record), index)
    gfx = re.search(rb"gfx[0-9a-f]+[\w:+-]*", record.raw[256:])
    if gfx is None:
        raise LaunchError(f"{library.path} does not report the architecture of device {index}")

    def get(attribute: int) -> int:
        return int(driver.call("hipDeviceGetAttribute", attribute, index))

    name = record.value.decode(errors="replace")[:255]
    return HipDevice(index, name, gfx[0].decode(), get(_MULTIPROCESSORS), get(_SHARED_BYTES), get(_L2_BYTES))


HIP_DRIVER = Driver(
    Symbols(
        vendor="HIP",
        library="ROCm's runtime",
        target=HIP,
        load=lambda forked: SharedObject(LIBRARY, VERSIONS, SIGNATURES),
        has=SharedObject.has,
        explain=_explain,
        spell_version=lambda number: f"{number // 10_000_000}.{number // 100_000 % 100}.{number % 100_000}",
        describe=_describe,
        owner=lambda bindings, address: bindings.hipPointerGetAttribute(_DEVICE_ORDINAL, address),
        absent=f"target {HIP.name} launches through {LIBRARY}, and cannot here: {{}}; or "
        f"kernel.compile(..., target={HIP.name!r}, arch=...), which needs no device",
        threads_along_x=2**32 - 1,
        reads_images=True,
        success=0,
        relaxed=2,
        not_capturing=0,
        version="hipRuntimeGetVersion",
        count="hipGetDeviceCount",
        get_current="hipGetDevice",
        set_current="hipSetDevice",
        wait_device="hipDeviceSynchronize",
        load_module="hipModuleLoadData",
        find_function="hipModuleGetFunction",
        unload_module="hipModuleUnload",
        launch="hipModuleLaunchKernel",
        resident="hipModuleOccupancyMaxActiveBlocksPerMultiprocessor",
        allocate="hipMalloc",
        free="hipFree",
        allocate_host="hipHostMalloc",
        free_host="hipHostFree",
        fill="hipMemsetD8Async",
        copy_in="hipMemcpyHtoD",
        copy_out="hipMemcpyDtoH",
        copy_in_order="hipMemcpyHtoDAsync",
        exchange_capture="hipThreadExchangeStreamCaptureMode",
        is_capturing="hipStreamIsCapturing",
        stream_number="hipStreamGetId",
        wait_stream="hipStreamSynchronize",
        create_event="hipEventCreateWithFlags",
        record="hipEventRecord",
        query_event="hipEventQuery",
        wait_event="hipEventSynchronize",
        elapsed="hipEventElapsedTime",
        destroy_event="hipEventDestroy",
        more={"hipHostMalloc": (0,)},  # flags
    )
)
"""The driver of AMD's GPUs."""
