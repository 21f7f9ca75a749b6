"""The CUDA backend: compiles CUDA text with NVRTC, launches on the caller's stream."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from tilewright.errors import LaunchError, LegalityError
from tilewright.ir.kernel import Kernel
from tilewright.lang.program import Parameter
from tilewright.runtime import nvrtc
from tilewright.runtime.arrays import ArrayInfo
from tilewright.runtime.binding import Binding
from tilewright.runtime.cache import Cache, key
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.driver import Driver, LoadedFunction
from tilewright.runtime.executable import Executable
from tilewright.runtime.gpu_launch import GpuBackend, Loaded, PreparedGpu
from tilewright.runtime.launch_attributes import launch_attributes, resident_blocks, with_attributes
from tilewright.runtime.launches import Launch
from tilewright.targets import cuda
from tilewright.targets.target import CUDA


class CudaBackend(GpuBackend):
    """Compiles for the GPU of this machine, or, without one, for the architecture asked for."""

    name = CUDA.name
    driver: ClassVar[Driver] = CUDA_DRIVER
    default_arch = CUDA.arch
    lowering: ClassVar[Any] = cuda

    def compile(self, kernel: Kernel, arch: str | None) -> Executable:
        """Lower, emit, and compile or find in the cache."""
        start = time.perf_counter()
        chosen = arch or self.arch_name()
        listing = self.listing(kernel, chosen)
        meta: dict[str, Any] = {"kernel": kernel.name, "target": self.name, "arch": chosen}
        meta["resources"] = {"registers": 0}  # its form; the build says how many

        def build() -> bytes:
            binary = nvrtc.compile_text(listing.text, chosen, kernel.name)
            meta["resources"] = binary.resources
            return binary.cubin

        address = key([listing.code, nvrtc.toolchain_id(), self.name, chosen])
        entry = Cache.default().get_or_build(address, ".cubin", build, meta)
        resources = {**dict(entry.meta["resources"]), "shared_bytes": listing.shared_bytes}  # type: ignore[call-overload]
        if broken := cuda.too_many_as_compiled(kernel, CUDA.architecture(chosen), resources["registers"]):
            raise LegalityError(kernel.name, self.name, broken)
        seconds = time.perf_counter() - start
        return Executable(
            self.name,
            chosen,
            kernel,
            listing,
            entry.path,
            entry.hit,
            seconds,
            resources,
            Loaded(CUDA_DRIVER, lambda: entry.data, listing.entry, listing.shared_bytes),
        )

    def prepare(
        self,
        executable: Executable,
        binding: Binding,
        parameters: Sequence[Parameter],
        arrays: Mapping[str, ArrayInfo],
    ) -> PreparedCuda:
        """A launch for arguments of this exact shape."""
        index = self.device_of(arrays)
        wanted = CUDA_DRIVER.device(index).arch
        if executable.arch.rstrip("a") != wanted.rstrip("a"):
            raise LaunchError(f"compiled for {executable.arch}, but device {index} is {wanted}")
        return PreparedCuda(executable, binding, parameters, arrays, index)


class PreparedCuda(PreparedGpu):
    """Launches of one exact shape on an NVIDIA GPU."""

    driver: ClassVar[Driver] = CUDA_DRIVER

    @staticmethod
    def launch_of(
        function: LoadedFunction,
        kernel: Kernel,
        grid: Sequence[int],
        offsets: Sequence[int],
        size: int,
        together: bool,
    ) -> Launch:
        """A launch with the attributes that follow from the kernel's operations."""
        special = with_attributes(launch_attributes(kernel, CUDA_DRIVER.bindings(), together=together))
        return Launch(CUDA_DRIVER, function, grid, kernel.threads, offsets, size, special)

    @staticmethod
    def resident_blocks(function: LoadedFunction, kernel: Kernel) -> int:
        """How many blocks of a kernel the device holds at once."""
        return resident_blocks(function, kernel)


def cubin(executable: Executable) -> bytes:
    """The machine code of an executable, as NVRTC made it."""
    found: bytes = executable.handle.image()
    return found


def cubin_with_lines(executable: Executable) -> bytes:
    """The same, from which a disassembler tells of what lines of the text it was made.

    Args:
        executable: compiled for the target.
    """
    text, name = executable.source, executable.kernel.name
    address = key([text, nvrtc.toolchain_id(), CUDA.name, executable.arch, nvrtc.LINES])
    meta: dict[str, Any] = {"kernel": name, "target": CUDA.name, "arch": executable.arch}

    def build() -> bytes:
        return nvrtc.compile_text(text, executable.arch, name, lines=True).cubin

    return Cache.default().get_or_build(address, ".cubin", build, meta).data
