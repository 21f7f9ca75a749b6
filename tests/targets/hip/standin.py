"""A stand-in for ROCm's runtime, with AMD GPUs whose launches NumPy executes from the listing.

The C library is `standin.cpp`, which is compiled here; each of its functions calls the method of `StandIn`
with its name.  Memory is the host's, and all calls are recorded.
"""

# ruff: noqa: N802 - methods have the names of C functions
from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.amdgcn import execute, read_listing
from tilewright.runtime import comgr, environment, gpu_memory, hip, native, recent
from tilewright.runtime.driver import UnwantedCode
from tilewright.runtime.hip_driver import HIP_DRIVER

SOURCE = Path(__file__).parent / "standin.cpp"
POISON = 0xA5
INVALID, OUT_OF_MEMORY, NOT_FOUND, NOT_READY, FAILED = 1, 2, 500, 600, 719
NO_DEVICE, INVALID_DEVICE, NO_BINARY, INVALID_HANDLE, TOO_LARGE = 100, 101, 209, 400, 720

_HANDLER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint64), ctypes.c_int)


@functools.cache
def library_bytes() -> bytes:
    """Return the C library, compiled by this machine's compiler."""
    return native.compile_library(SOURCE.read_text())


class StandIn:
    """The functions of the library.

    Args:
        arch: of its GPUs, as the runtime spells it.
        devices: how many there are.
    """

    def __init__(self, arch: str, devices: int = 1) -> None:
        self.arch, self.devices = arch, devices
        self.current = 0
        self.calls: list[tuple[str, tuple[int, ...]]] = []
        self.fails: dict[str, int] = {}
        self.memory: dict[int, tuple[np.ndarray[Any, Any], int]] = {}
        self.host_memory: dict[int, Any] = {}
        self.modules: dict[int, bytes] = {}
        self.devices_of: dict[int, int] = {}
        self.functions: dict[int, tuple[int, str]] = {}
        self.events: dict[int, float] = {}
        self.pending: set[int] = set()
        self.capturing: set[int] = set()
        self.mode = 0
        self.listings: dict[bytes, str] = {}
        self.problem: Exception | None = None
        self.executed = 0
        self._handles = iter(range(0x1000, 1 << 20, 16))
        self._handler = _HANDLER(self._handle)

    # ---------------------------------------------------------------- what tests ask

    def of(self, name: str) -> list[tuple[int, ...]]:
        """Return the arguments of each call of a function."""
        return [given for called, given in self.calls if called == name]

    def adopt(self, array: np.ndarray[Any, Any]) -> None:
        """Treat host memory as memory of device 0."""
        self.memory[array.ctypes.data] = (array.reshape(-1).view(np.uint8), 0)

    def check(self) -> None:
        """Raise the error of a function that C called."""
        if self.problem is not None:
            raise self.problem

    # ---------------------------------------------------------------- the way from C

    def _handle(self, name: bytes, words: Any, count: int) -> int:
        called, given = name.decode(), tuple(int(words[at]) for at in range(count))
        self.calls.append((called, given))
        if called in self.fails:
            return self.fails[called]
        try:
            return int(getattr(self, called)(*given) or 0)
        except Exception as problem:  # noqa: BLE001 - nothing may be raised through C
            self.problem = self.problem or problem
            return FAILED

    def _region(self, address: int, size: int) -> tuple[np.ndarray[Any, Any], int] | None:
        """Return the bytes from an address on, and their device; None if the memory ends too early."""
        for start, (octets, device) in self.memory.items():
            if start <= address <= start + len(octets) - size:
                return octets[address - start :], device
        return None

    # ---------------------------------------------------------------- devices

    def hipRuntimeGetVersion(self, made: int) -> None:
        put(made, "i", 60241133)

    def hipGetDeviceCount(self, made: int) -> int:
        put(made, "i", self.devices)
        return 0 if self.devices else NO_DEVICE

    def hipGetDevice(self, made: int) -> None:
        put(made, "i", self.current)

    def hipSetDevice(self, device: int) -> int:
        if device >= self.devices:
            return INVALID_DEVICE
        self.current = device
        return 0

    def hipDeviceGetAttribute(self, made: int, attribute: int, device: int) -> int:
        known = {63: 4, 74: 65536, 19: 4096}  # hip_runtime_api.h: multiprocessors, shared memory, L2
        put(made, "i", known[attribute])
        return 0 if device < self.devices else INVALID_DEVICE

    def hipGetDevicePropertiesR0600(self, made: int, device: int) -> int:
        if device >= self.devices:
            return INVALID_DEVICE
        ctypes.memmove(made, b"Stand-in GPU gfx000\0", 20)
        ctypes.memmove(made + 1160, self.arch.encode() + b"\0", len(self.arch) + 1)
        return 0

    def hipDeviceSynchronize(self) -> None:
        self.pending.clear()

    # ---------------------------------------------------------------- code

    def hipModuleLoadData(self, made: int, image: int) -> int:
        sections, entry, count = struct.unpack_from("<Q10xHH", ctypes.string_at(image + 40, 24))
        data = ctypes.string_at(image, sections + entry * count)
        if data[:4] != b"\x7fELF" or data not in self.listings:
            return NO_BINARY
        handle = next(self._handles)
        self.modules[handle] = data
        self.devices_of[handle] = self.current
        put(made, "P", handle)
        return 0

    def hipModuleGetFunction(self, made: int, module: int, name: int) -> int:
        entry = ctypes.string_at(name).decode()
        if entry not in read_listing(self.listings[self.modules[module]]).kernels:
            return NOT_FOUND
        handle = next(self._handles)
        self.functions[handle] = (module, entry)
        put(made, "P", handle)
        return 0

    def hipModuleUnload(self, module: int) -> None:
        self.modules.pop(module, None)

    def hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(self, made: int, *_: int) -> None:
        put(made, "i", 2)

    def hipModuleLaunchKernel(self, function: int, *given: int) -> int:
        grid, block, shared, arguments = given[:3], given[3:6], given[6], given[8]
        module, entry = self.functions[function]
        if self.devices_of[module] != self.current:
            return INVALID_HANDLE
        listing = read_listing(self.listings[self.modules[module]])
        passed = []
        for number, argument in enumerate(listing.kernel(entry).arguments):
            place = ctypes.c_uint64.from_address(arguments + 8 * number).value
            octets = ctypes.string_at(place, argument.size)
            if argument.kind == "global_buffer":
                address = int.from_bytes(octets, "little")
                region = self._region(address, 1)
                if region is None and address:
                    return FAILED
                passed.append(None if region is None else region[0])
            else:
                passed.append(octets)
        execute(listing, passed, grid, block, kernel=entry, lds_bytes=shared)
        self.executed += 1
        return 0

    def hipModuleLaunchCooperativeKernel(self, *given: int) -> int:
        blocks = given[1] * given[2] * given[3]
        return TOO_LARGE if blocks > 2 * 4 else self.hipModuleLaunchKernel(*given)

    # ---------------------------------------------------------------- memory

    def hipMalloc(self, made: int, size: int) -> None:
        room = np.full(size + 256, POISON, np.uint8)
        start = -room.ctypes.data % 256
        self.memory[room.ctypes.data + start] = (room[start : start + size], self.current)
        put(made, "P", room.ctypes.data + start)

    def hipFree(self, address: int) -> None:
        self.memory.pop(address, None)  # what an earlier test left is nothing to this one

    def hipHostMalloc(self, made: int, size: int, flags: int) -> None:
        assert flags == 0
        kept = ctypes.create_string_buffer(size)
        self.host_memory[ctypes.addressof(kept)] = kept
        put(made, "P", ctypes.addressof(kept))

    def hipHostFree(self, address: int) -> None:
        del self.host_memory[address]

    def hipMemsetD8Async(self, at: int, byte: int, count: int, stream: int) -> int:
        region = self._region(at, count)
        if region is None:
            return INVALID
        region[0][:count] = byte
        return 0

    def hipMemcpyHtoD(self, to: int, source: int, size: int) -> int:
        if self._region(to, size) is None:
            return INVALID
        ctypes.memmove(to, source, size)
        return 0

    def hipMemcpyDtoH(self, to: int, source: int, size: int) -> int:
        if self._region(source, size) is None:
            return INVALID
        ctypes.memmove(to, source, size)
        return 0

    def hipMemcpyHtoDAsync(self, to: int, source: int, size: int, stream: int) -> int:
        return self.hipMemcpyHtoD(to, source, size)

    def hipPointerGetAttribute(self, made: int, attribute: int, at: int) -> int:
        region = self._region(at, 0)
        if region is None or attribute != 9:  # HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL
            return INVALID
        put(made, "i", region[1])
        return 0

    # ---------------------------------------------------------------- streams and events

    def hipStreamIsCapturing(self, stream: int, made: int) -> None:
        put(made, "i", int(stream in self.capturing))

    def hipStreamSynchronize(self, stream: int) -> None:
        """Launches have ended when they return."""

    def hipThreadExchangeStreamCaptureMode(self, mode: int) -> None:
        self.mode, before = ctypes.c_int.from_address(mode).value, self.mode
        put(mode, "i", before)

    def hipEventCreateWithFlags(self, made: int, flags: int) -> None:
        assert flags in (0, 2)
        handle = next(self._handles)
        self.events[handle] = 0.0
        put(made, "P", handle)

    def hipEventRecord(self, event: int, stream: int) -> None:
        self.events[event] = float(self.executed)
        self.pending.add(event)

    def hipEventQuery(self, event: int) -> int:
        return NOT_READY if event in self.pending else 0

    def hipEventSynchronize(self, event: int) -> None:
        assert event in self.events
        self.pending.clear()

    def hipEventElapsedTime(self, made: int, begin: int, end: int) -> None:
        put(made, "f", self.events[end] - self.events[begin])

    def hipEventDestroy(self, event: int) -> None:
        del self.events[event]


def put(address: int, code: str, value: Any) -> None:
    """Write a number to C's address."""
    ctypes.memmove(address, struct.pack(code, value), struct.calcsize(code))


@contextmanager
def standing_in(folder: Path, monkeypatch: pytest.MonkeyPatch, made: StandIn) -> Iterator[StandIn]:
    """Replace ROCm by the stand-in, through `ROCM_PATH`; caches are empty before and after."""
    (folder / "lib").mkdir(parents=True)
    # By a link, so that the process does not take it for a loaded runtime when the test has ended.
    (folder / "stand_in.so").write_bytes(library_bytes())
    (folder / "lib" / "libamdhip64.so").symlink_to(folder / "stand_in.so")
    monkeypatch.setenv("ROCM_PATH", str(folder))
    monkeypatch.setattr(comgr, "MAPPED", folder / "nothing")
    monkeypatch.setattr(environment, "ROCM", folder)
    monkeypatch.setattr(HIP_DRIVER._process, "bindings", None)
    monkeypatch.setattr(HIP_DRIVER, "unwanted", UnwantedCode())
    monkeypatch.setattr(gpu_memory._idle, "held", {})
    monkeypatch.setattr(gpu_memory._uploads, "held", {})
    code_object: Callable[[str, str, str], bytes] = hip._code_object

    def recorded(assembly: str, arch: str, name: str) -> bytes:
        data = code_object(assembly, arch, name)
        made.listings[data] = assembly
        return data

    monkeypatch.setattr(hip, "_code_object", recorded)
    library = ctypes.CDLL(str(folder / "lib" / "libamdhip64.so"))
    library.standin_handler(made._handler)
    HIP_DRIVER.device.cache_clear()
    yield made
    HIP_DRIVER.device.cache_clear()
    for known in list(recent._entered._values.values()):
        recent._let_go(known)  # what was prepared for this device is no launch of another test's
    made.check()
