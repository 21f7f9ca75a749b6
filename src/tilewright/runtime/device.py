"""The CUDA backend: compiles CUDA text with NVRTC, launches on the caller's stream."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from functools import partial
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
from tilewright.runtime.gpu_launch import FixedLaunch, GpuBackend, Loaded, PreparedGpu, Special, Start
from tilewright.targets import cuda
from tilewright.targets.target import CUDA

# ----------------------------------------------------------------
# Launch attributes, which follow from a kernel's operations.


def launch_attributes(kernel: Kernel, bindings: Any, *, together: bool = False) -> list[Any]:
    """The driver's launch attributes of a kernel; no user chooses them.

    Args:
        kernel: the kernel.
        bindings: the module with the driver's classes, `cuda.bindings.driver`.
        together: whether blocks wait for blocks of higher numbers.

    Returns:
        Clusters: their extents.  A kernel with `prior_grid_wait`: leave to begin before the grid before it in
        the stream has ended (programmatic stream serialization).  Blocks that wait for each other: all of
        them are resident at once, or none begins (cooperative launch); they begin when the grid before them
        has ended.  Empty for all others, which a plain launch starts.

    Source: CUDA Driver API, `CUlaunchAttributeID`.
    """
    found = []
    if kernel.cluster:
        found.append(attribute := _attribute(bindings, "CLUSTER_DIMENSION"))
        dims = attribute.value.clusterDim
        dims.x, dims.y, dims.z = _cluster_extents(kernel)
    if kernel.waits_for_prior_grid and not together:
        found.append(attribute := _attribute(bindings, "PROGRAMMATIC_STREAM_SERIALIZATION"))
        attribute.value.programmaticStreamSerializationAllowed = 1
    if together:
        found.append(attribute := _attribute(bindings, "COOPERATIVE"))
        attribute.value.cooperative = 1
    return found


def _attribute(bindings: Any, name: str) -> Any:
    made = bindings.CUlaunchAttribute()
    made.id = getattr(bindings.CUlaunchAttributeID, f"CU_LAUNCH_ATTRIBUTE_{name}")
    return made


def _cluster_extents(kernel: Kernel) -> list[int]:
    """Blocks of a cluster along x, y, z."""
    extents = [1, 1, 1]
    for member in kernel.cluster:
        extents[member.axis] = member.extent
    return extents


def with_attributes(attributes: Sequence[Any]) -> Special | None:
    """A launch with attributes; None if there are none, for a plain one.

    Args:
        attributes: from `launch_attributes`.
    """
    if not attributes:
        return None

    def special(bindings: Any, handle: Any, shape: tuple[int, ...], stream: Any, arguments: int) -> Start:
        config = _launch_config(bindings, shape, attributes)
        config.hStream = stream
        return partial(bindings.cuLaunchKernelEx, config, handle, arguments, 0)

    return special


def _launch_config(bindings: Any, shape: Sequence[int], attributes: Sequence[Any]) -> Any:
    """The driver's record of a launch: extents of the grid and of a block, shared bytes, attributes."""
    config = bindings.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = shape[:3]
    config.blockDimX, config.blockDimY, config.blockDimZ = shape[3:6]
    config.sharedMemBytes = shape[6]
    config.attrs, config.numAttrs = list(attributes), len(attributes)
    return config


def resident_blocks(function: LoadedFunction, kernel: Kernel) -> int:
    """How many blocks of a kernel a device holds at once, in whole clusters.

    Source: CUDA Driver API, "Occupancy".
    """
    if not kernel.cluster:
        return CUDA_DRIVER.resident_blocks(function, kernel.threads)
    bindings, extents = CUDA_DRIVER.bindings(), _cluster_extents(kernel)
    with CUDA_DRIVER.current(function.index):
        shape = (*extents, kernel.threads, 1, 1, function.shared_bytes)
        config = _launch_config(bindings, shape, launch_attributes(kernel, bindings))
        clusters = CUDA_DRIVER.call("cuOccupancyMaxActiveClusters", function.handle, config)
    return int(clusters) * math.prod(extents)


# ---------------------------------------------------------------- the backend


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
    ) -> FixedLaunch:
        """A launch with the attributes that follow from the kernel's operations."""
        special = with_attributes(launch_attributes(kernel, CUDA_DRIVER.bindings(), together=together))
        return FixedLaunch(CUDA_DRIVER, function, grid, kernel.threads, offsets, size, special)

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
