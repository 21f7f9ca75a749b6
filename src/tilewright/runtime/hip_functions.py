"""The functions of ROCm's runtime that are called here, and the types of their arguments.

Source: AMD, "HIP Runtime API Reference".
"""

from __future__ import annotations

from tilewright.runtime.driver import Names

LIBRARY = "libamdhip64.so"
VERSIONS = (7, 6, 5)
"""Of its interface."""

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
"""Every function, its arguments in the words of `tilewright.runtime.shared_objects`."""

NAMES = Names(
    allocate="hipMalloc",
    free="hipFree",
    allocate_host="hipHostMalloc",
    free_host="hipHostFree",
    fill="hipMemsetD8Async",
    copy_in="hipMemcpyHtoD",
    copy_out="hipMemcpyDtoH",
    copy_in_order="hipMemcpyHtoDAsync",
    create_event="hipEventCreateWithFlags",
    record="hipEventRecord",
    wait_event="hipEventSynchronize",
    elapsed="hipEventElapsedTime",
    destroy_event="hipEventDestroy",
    wait_stream="hipStreamSynchronize",
)
