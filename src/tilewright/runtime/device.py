"""The CUDA backend: compiles CUDA text with NVRTC and launches on the caller's stream."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

from tilewright.errors import LegalityError
from tilewright.ir.kernel import Kernel
from tilewright.runtime import nvrtc
from tilewright.runtime.cache import Cache, key
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.driver import Driver, LoadedFunction
from tilewright.runtime.executable import Executable
from tilewright.runtime.gpu_launch import GpuBackend, Loaded, PreparedGpu, Special, Start
from tilewright.targets import cuda
from tilewright.targets.rules import EmittedText
from tilewright.targets.target import CUDA

# ----------------------------------------------------------------
# Launch attributes. They follow from a kernel's operations.


def launch_attributes(kernel: Kernel, bindings: Any, *, together: bool = False) -> list[Any]:
    """Return the driver's launch attributes of a kernel.

    Args:
        kernel: the kernel.
        bindings: the module with the driver's classes, `cuda.bindings.driver`.
        together: whether blocks wait for later blocks.

    Returns:
        The extents of clusters; for a kernel with `prior_grid_wait`, programmatic stream serialization, which
        lets it begin before the previous grid in the stream has ended; for blocks that wait for each other, a
        cooperative launch, which makes all of them resident at once after the previous grid.  Empty for a
        plain launch.

    Source: CUDA Driver API, `CUlaunchAttributeID`.
    """
    found: list[Any] = []

    def add(name: str) -> Any:
        made = bindings.CUlaunchAttribute()
        made.id = getattr(bindings.CUlaunchAttributeID, f"CU_LAUNCH_ATTRIBUTE_{name}")
        found.append(made)
        return made.value

    if kernel.cluster:
        dims = add("CLUSTER_DIMENSION").clusterDim
        dims.x, dims.y, dims.z = _cluster_extents(kernel)
    if kernel.waits_for_prior_grid and not together:
        add("PROGRAMMATIC_STREAM_SERIALIZATION").programmaticStreamSerializationAllowed = 1
    if together:
        add("COOPERATIVE").cooperative = 1
    return found


def _cluster_extents(kernel: Kernel) -> list[int]:
    """Return the blocks of a cluster along x, y, z."""
    extents = [1, 1, 1]
    for member in kernel.cluster:
        extents[member.axis] = member.extent
    return extents


def with_attributes(attributes: Sequence[Any]) -> Special | None:
    """Return the driver's call of a launch with attributes; None for a plain launch.

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
    """Return the driver's record of a launch: extents of grid and block, shared bytes, attributes."""
    config = bindings.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = shape[:3]
    config.blockDimX, config.blockDimY, config.blockDimZ = shape[3:6]
    config.sharedMemBytes = shape[6]
    config.attrs, config.numAttrs = list(attributes), len(attributes)
    return config


class PreparedCuda(PreparedGpu):
    """Launches of one exact shape on an NVIDIA GPU."""

    driver: ClassVar[Driver] = CUDA_DRIVER

    @staticmethod
    def special_of(kernel: Kernel, together: bool) -> Special | None:
        """Return the call of a launch with the attributes of the kernel; None for a plain launch."""
        return with_attributes(launch_attributes(kernel, CUDA_DRIVER.bindings(), together=together))

    @staticmethod
    def resident_blocks(function: LoadedFunction, kernel: Kernel) -> int:
        """Return how many blocks of a kernel the device holds at once, in whole clusters.

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
    """Compiles for the GPU of this machine, or for any architecture without one."""

    name = CUDA.name
    driver: ClassVar[Driver] = CUDA_DRIVER
    default_arch = CUDA.arch
    lowering: ClassVar[Any] = cuda
    prepared: ClassVar[type[PreparedGpu]] = PreparedCuda
    variant: ClassVar[str] = "a"

    def compile(self, kernel: Kernel, arch: str | None, listing: EmittedText | None = None) -> Executable:
        """Lower, emit, and compile or find in the cache."""
        start = time.perf_counter()
        chosen = arch or self.arch_name()
        listing = listing or self.listing(kernel, chosen)
        meta: dict[str, Any] = {"kernel": kernel.name, "target": self.name, "arch": chosen}
        meta["resources"] = {"registers": 0}  # the build replaces the number

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


def cubin(executable: Executable) -> bytes:
    """Return the machine code of an executable."""
    found: bytes = executable.handle.image()
    return found


def cubin_with_lines(executable: Executable) -> bytes:
    """Return the machine code with the line of the text for each instruction.

    Args:
        executable: compiled for the target.
    """
    text, name = executable.source, executable.kernel.name
    address = key([text, nvrtc.toolchain_id(), CUDA.name, executable.arch, nvrtc.LINES])
    meta: dict[str, Any] = {"kernel": name, "target": CUDA.name, "arch": executable.arch}

    def build() -> bytes:
        return nvrtc.compile_text(text, executable.arch, name, lines=True).cubin

    return Cache.default().get_or_build(address, ".cubin", build, meta).data
