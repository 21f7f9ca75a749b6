"""A driver without a GPU: memory is the host's, and launches are recorded with their arguments."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver as bindings

from tilewright.runtime.cuda import CUDA_DRIVER, CudaDevice
from tilewright.runtime.driver import UnwantedCode


@dataclass
class Launched:
    """One launch: the driver's function, the stream, the grid, the attributes, the first arguments."""

    function: str
    stream: int
    shape: tuple[int, ...]
    attributes: dict[str, Any]
    words: tuple[int, ...]


def said(attributes: list[Any]) -> dict[str, Any]:
    """Return launch attributes by name."""
    found: dict[str, Any] = {}
    for attribute in attributes:
        name = attribute.id.name.removeprefix("CU_LAUNCH_ATTRIBUTE_").lower()
        dims, value = attribute.value.clusterDim, attribute.value.programmaticStreamSerializationAllowed
        value = attribute.value.cooperative if name == "cooperative" else value
        found[name] = (dims.x, dims.y, dims.z) if name == "cluster_dimension" else value
    return found


_OF_TESTS: list[dict[int, Any]] = []
"""The memory of the drivers of all tests of the process."""


@dataclass
class Driver:
    """The bindings' own classes, and functions that record their calls.

    ``current`` is the current context, or 0; ``used`` records it at each call.
    """

    arguments: int = 1
    launched: list[Launched] = field(default_factory=list)
    cleared: list[tuple[int, int, int]] = field(default_factory=list)
    freed: list[int] = field(default_factory=list)
    loaded: int = 4096
    unloaded: list[int] = field(default_factory=list)
    maps: list[int] = field(default_factory=list)
    waits: int = 0
    stream_ids: dict[int, int] = field(default_factory=dict)
    memory: dict[int, Any] = field(default_factory=dict)
    status: Any = bindings.CUresult.CUDA_SUCCESS
    capturing: set[int] = field(default_factory=set)
    mode: Any = bindings.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
    devices: int = 1
    current: int = 0
    used: list[tuple[str, int]] = field(default_factory=list)
    events: int = 0
    pending: set[int] = field(default_factory=set)
    clusters: int = 66

    def __getattr__(self, name: str) -> Any:
        return getattr(bindings, name)

    def cuLaunchKernel(self, handle: Any, *rest: Any) -> tuple[Any]:  # noqa: N802
        return self._launch("cuLaunchKernel", int(rest[7]), rest[:7], [], rest[8])

    def cuLaunchKernelEx(self, config: Any, handle: Any, arguments: int, _: Any) -> tuple[Any]:  # noqa: N802
        shape = (config.gridDimX, config.gridDimY, config.gridDimZ)
        shape += (config.blockDimX, config.blockDimY, config.blockDimZ, config.sharedMemBytes)
        return self._launch("cuLaunchKernelEx", int(config.hStream), shape, config.attrs, arguments)

    def _launch(
        self, name: str, stream: int, shape: Any, attributes: list[Any], arguments: int
    ) -> tuple[Any]:
        pointers = struct.unpack(f"{self.arguments}P", ctypes.string_at(arguments, 8 * self.arguments))
        words = tuple(ctypes.c_uint64.from_address(pointer).value for pointer in pointers)
        self.used.append((name, self.current))
        if not self.current:
            return (bindings.CUresult.CUDA_ERROR_INVALID_CONTEXT,)
        self.launched.append(Launched(name, stream, tuple(shape), said(attributes), words))
        return (self.status,)

    def cuStreamIsCapturing(self, stream: int) -> tuple[Any, Any]:  # noqa: N802
        status = bindings.CUstreamCaptureStatus
        is_it = stream in self.capturing
        active, none = status.CU_STREAM_CAPTURE_STATUS_ACTIVE, status.CU_STREAM_CAPTURE_STATUS_NONE
        return bindings.CUresult.CUDA_SUCCESS, active if is_it else none

    def cuCtxGetCurrent(self) -> tuple[Any, int]:  # noqa: N802
        return bindings.CUresult.CUDA_SUCCESS, self.current

    def cuGetErrorString(self, status: Any) -> tuple[Any, bytes]:  # noqa: N802
        return status, b"as the test asked"

    def cuModuleUnload(self, module: Any) -> None:  # noqa: N802
        self.used.append(("cuModuleUnload", self.current))
        self.unloaded.append(int(module))

    def cuMemFree(self, address: int) -> None:  # noqa: N802
        self.used.append(("cuMemFree", self.current))
        self.freed.append(address)
        self._forget(address)

    def cuMemFreeHost(self, address: int) -> None:  # noqa: N802
        self._forget(address)

    def _forget(self, address: int) -> None:
        """Free memory that outlived its test, by a later test's driver; no address is freed twice."""
        owner = next(one for one in (self.memory, *_OF_TESTS) if address in one)
        del owner[address]

    def cuEventDestroy(self, event: int) -> None:  # noqa: N802
        assert event <= self.events

    def cuEventQuery(self, event: int) -> tuple[Any]:  # noqa: N802
        relaxed = bindings.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        assert self.mode == relaxed or not self.capturing, "a question that spoils the graph"
        results = bindings.CUresult
        return (results.CUDA_ERROR_NOT_READY if event in self.pending else results.CUDA_SUCCESS,)

    def call(self, name: str, *arguments: Any) -> Any:
        if name == "cuCtxSetCurrent":
            self.current = int(arguments[0])
            return None
        if name == "cuThreadExchangeStreamCaptureMode":
            self.mode, before = arguments[0], self.mode
            return before
        self.used.append((name, self.current))
        if name == "cuEventCreate":
            self.events += 1
            return self.events
        if name == "cuEventRecord":
            assert arguments[1] not in self.capturing, "the event would be the graph's"
            self.pending.add(arguments[0])
            return None
        if name in ("cuMemAlloc", "cuMemAllocHost"):
            relaxed = bindings.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
            assert self.mode == relaxed or not self.capturing, "an allocation spoils the graph"
            kept = ctypes.create_string_buffer(arguments[0] + 256)
            address = -(-ctypes.addressof(kept) // 256) * 256
            self.memory[address] = kept
            return address
        if name == "cuMemsetD8Async":
            self.cleared.append((arguments[0], arguments[2], int(arguments[3])))
            return None
        if name in ("cuMemcpyHtoD", "cuMemcpyDtoH", "cuMemcpyHtoDAsync"):
            ctypes.memmove(*arguments[:3])
            return None
        if name == "cuStreamGetId":
            assert arguments[0] not in self.capturing, "not permitted when a stream is capturing"
            return self.stream_ids.get(arguments[0], arguments[0])
        if name == "cuOccupancyMaxActiveBlocksPerMultiprocessor":
            return 2
        if name == "cuOccupancyMaxActiveClusters":
            return self.clusters
        if name == "cuCtxSynchronize":
            self.waits += 1
            return None
        if name == "cuTensorMapEncodeTiled":
            self.maps.append(arguments[2])
            return SimpleNamespace(getPtr=lambda: self._map(arguments[2]))
        assert name in ("cuModuleLoadData", "cuModuleGetFunction", "cuFuncSetAttribute"), name
        self.loaded += name == "cuModuleLoadData"
        return bindings.CUfunction(self.loaded)

    def _map(self, address: int) -> int:
        self.memory[-address] = made = ctypes.create_string_buffer(struct.pack("P", address) * 16, 128)
        return ctypes.addressof(made)


class OnGpu:
    """A NumPy array that claims to be on GPU 0."""

    def __init__(self, array: np.ndarray[Any, Any], stream: int | None = None) -> None:
        self.array = array
        self.stream = stream

    @property
    def address(self) -> int:
        return int(self.array.ctypes.data)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        face = dict(self.array.__array_interface__)
        del face["descr"]
        return {**face, "version": 3, "stream": self.stream}


def context(index: int) -> int:
    """Return the primary context of a device."""
    return 0xC000 + index


def fake_driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """Replace the real driver."""
    made = Driver()
    _OF_TESTS.append(made.memory)
    device = CudaDevice(0, "none", (9, 0), 132, 232448, 50 << 20)
    monkeypatch.setattr(CUDA_DRIVER._process, "bindings", made)
    monkeypatch.setattr(CUDA_DRIVER, "unwanted", UnwantedCode())
    monkeypatch.setattr(CUDA_DRIVER, "bindings", lambda: made)
    monkeypatch.setattr(CUDA_DRIVER, "call", made.call)
    monkeypatch.setattr(CUDA_DRIVER, "device", lambda index=0: replace(device, index=index))
    monkeypatch.setattr(CUDA_DRIVER, "device_count", lambda: made.devices)
    monkeypatch.setattr(CUDA_DRIVER, "context", context)
    monkeypatch.setattr(CUDA_DRIVER, "device_of", lambda pointer: 0)
    return made


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """The driver without a GPU, in place of the real one."""
    return fake_driver(monkeypatch)
