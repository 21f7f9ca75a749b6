"""The CPU backend: compiles C++ text with the machine's compiler, runs blocks on threads."""

from __future__ import annotations

import ctypes
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.errors import LaunchError, Violation
from tilewright.ir.kernel import Kernel, SizeParam, Workspace
from tilewright.ir.printer import print_kernel
from tilewright.lang.program import Parameter
from tilewright.runtime.arguments import NumberWriter
from tilewright.runtime.arrays import ArrayInfo
from tilewright.runtime.binding import Binding
from tilewright.runtime.cache import Cache, key, package_hash
from tilewright.runtime.executable import Executable, argument_layout
from tilewright.runtime.native import compile_library, host_arch, toolchain_id
from tilewright.runtime.workers import Launcher, Library, Scratch
from tilewright.targets import cpu


class CpuBackend:
    """Compiles for the machine it runs on."""

    name = "cpu"

    def arch_name(self) -> str:
        """The machine's own architecture."""
        return host_arch()

    def violations(self, kernel: Kernel, arch: str | None) -> list[Violation]:
        """The target's own rules that a kernel breaks."""
        return cpu.violations(kernel, arch or self.arch_name())

    def compile(self, kernel: Kernel, arch: str | None) -> Executable:
        """Lower, emit, and compile or find in the cache."""
        start = time.perf_counter()
        chosen = arch or self.arch_name()
        listing = cpu.emit(kernel, chosen)
        address = key([print_kernel(kernel), package_hash(), toolchain_id(), self.name, chosen])
        meta = {"kernel": kernel.name, "target": self.name, "arch": chosen}
        entry = Cache.default().get_or_build(address, ".so", lambda: compile_library(listing.text), meta)
        launcher = Launcher(Library(entry.path), listing.entry, listing.shared_bytes)
        seconds = time.perf_counter() - start
        return Executable(
            self.name, chosen, kernel, listing, entry.path, entry.hit, seconds, {}, (entry, launcher)
        )

    def prepare(
        self,
        executable: Executable,
        binding: Binding,
        parameters: Sequence[Parameter],
        arrays: Mapping[str, ArrayInfo],
    ) -> PreparedCpu:
        """A launch for arguments of this exact shape."""
        for name, info in arrays.items():
            if info.device != "cpu":
                raise LaunchError(f"{name} lies on {info.device}; the cpu target takes arrays in host memory")
        return PreparedCpu(executable, binding, parameters)


class PreparedCpu:
    """A packed argument buffer in which only pointers and numbers change between launches."""

    def __init__(self, executable: Executable, binding: Binding, parameters: Sequence[Parameter]) -> None:
        assert executable.listing is not None
        kernel = executable.listing.kernel
        self.executable = executable
        self._blocks = binding.blocks
        self._launcher: Launcher = executable.handle[1]
        layout = argument_layout(kernel, parameters)
        self._buffer = ctypes.create_string_buffer(max(layout.size, 1))
        self._address = ctypes.addressof(self._buffer)
        self._numbers = tuple(NumberWriter(number) for number in layout.numbers)
        arrays = sum(parameter.kind == "tensor" for parameter in parameters)
        self._write_addresses = layout.address_writer(self._buffer, arrays)
        self._written: Sequence[int] = ()
        self._lock = threading.Lock()
        self._zeroed: list[Scratch] = []
        self._workspaces: list[Scratch] = []
        for param, code, offset in zip(
            kernel.params, layout.packing.codes, layout.packing.offsets, strict=True
        ):
            if isinstance(param, SizeParam):
                struct.pack_into("@" + code, self._buffer, offset, binding.sizes[param.sym.name])
            elif isinstance(param, Workspace):
                size = binding.workspaces[param.value.name] * param.value.dtype.bytes
                memory = Scratch(max(size, 1))
                (self._zeroed if param.zeroed else self._workspaces).append(memory)
                struct.pack_into("@P", self._buffer, offset, memory.address)

    def launch(self, arguments: Sequence[Any], pointers: Sequence[int], stream: Any) -> None:
        """Run on these arguments and return when they are done."""
        if stream is not None:
            raise LaunchError("stream= is for the cuda target; the cpu target runs before it returns")
        with self._lock:
            if pointers is not self._written:  # a prepared launch brings the same ones again
                self._write_addresses(*pointers)
                self._written = pointers
            for number in self._numbers:
                number.write(self._buffer, arguments)
            for memory in self._zeroed:
                ctypes.memset(memory.address, 0, memory.size_bytes)
            self._launcher.launch(self._address, self._blocks)
