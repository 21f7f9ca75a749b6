"""The HIP backend: compiles HIP text to listings for AMD GPUs, and launches their code objects."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from tilewright.amdgcn.text import read_metadata
from tilewright.arch import Arch
from tilewright.errors import LaunchError, ToolchainError
from tilewright.ir.kernel import Kernel
from tilewright.runtime import amdgcn
from tilewright.runtime.cache import Cache, CacheEntry, key
from tilewright.runtime.driver import Driver, LoadedFunction
from tilewright.runtime.executable import Executable
from tilewright.runtime.gpu_launch import GpuBackend, Loaded, PreparedGpu, Special, Start
from tilewright.runtime.hip_driver import HIP_DRIVER
from tilewright.targets import hip
from tilewright.targets.amd import warps_per_simd
from tilewright.targets.rules import EmittedText
from tilewright.targets.target import HIP

# ----------------------------------------------------------------
# Resources of a kernel, from the metadata of its listing.
#
# Source: LLVM, "User Guide for AMDGPU Backend", "Code Object V5 Metadata".


METADATA = {
    "registers": "vgpr_count",
    "accumulation_registers": "agpr_count",
    "scalar_registers": "sgpr_count",
    "spilled_registers": "vgpr_spill_count",
    "spilled_scalar_registers": "sgpr_spill_count",
    "stack_bytes": "private_segment_fixed_size",
    "shared_bytes": "group_segment_fixed_size",
}
"""Fields of the metadata by the names under which we report them.

``registers`` counts the vector registers of a thread; on CDNA they include the accumulation registers of
matrix cores. ``scalar_registers`` are shared by the threads of a warp.
"""

_THREADS = ".max_flat_workgroup_size"


def resources_of(assembly: str, arch: Arch) -> dict[str, int]:
    """Return the resources of the only kernel in a listing: the names in `METADATA`, and ``warps_per_simd``.

    Args:
        assembly: the compiler's listing, with its metadata.
        arch: the architecture that it was compiled for.

    Raises:
        ToolchainError: the listing has no metadata of one kernel.
    """
    records = read_metadata(assembly).values()
    return resources_in(next(iter(records)).fields if len(records) == 1 else {}, arch)


def resources_in(said: Mapping[str, str], arch: Arch) -> dict[str, int]:
    """Return the resources of one kernel from its metadata.

    Args:
        said: the fields, whose names begin with a point.
        arch: the architecture that the kernel was compiled for.

    Raises:
        ToolchainError: the fields do not give its registers.
    """
    found = {name: int(said[f".{called}"]) for name, called in METADATA.items() if f".{called}" in said}
    if "registers" not in found or _THREADS not in said:
        near = "nearest: a clang of version 19 or later"
        text = f"the compiler's listing for {arch.name} has no metadata of one kernel; {near}"
        raise ToolchainError(text)
    shared = found.get("shared_bytes", 0)
    return {**found, "warps_per_simd": warps_per_simd(arch, found["registers"], shared, threads_in(said))}


def threads_in(said: Mapping[str, str]) -> int:
    """Return the most threads of a block, from the metadata of one kernel."""
    return int(said[_THREADS])


# ---------------------------------------------------------------- the backend


class PreparedHip(PreparedGpu):
    """Launches of one exact shape on an AMD GPU."""

    driver: ClassVar[Driver] = HIP_DRIVER

    @staticmethod
    def special_of(kernel: Kernel, together: bool) -> Special | None:
        """Return the call of a cooperative launch if blocks wait for each other; None for a plain launch."""

        def cooperative(
            bindings: Any, handle: Any, shape: tuple[int, ...], stream: Any, arguments: int
        ) -> Start:
            return partial(bindings.hipModuleLaunchCooperativeKernel, handle, *shape, stream, arguments)

        return cooperative if together else None

    @staticmethod
    def resident_blocks(function: LoadedFunction, kernel: Kernel) -> int:
        """Return how many blocks of a kernel the device holds at once."""
        return HIP_DRIVER.resident_blocks(function, kernel.threads)


class HipBackend(GpuBackend):
    """Compiles for the GPU of this machine, or for any architecture without one."""

    name = HIP.name
    driver: ClassVar[Driver] = HIP_DRIVER
    default_arch = HIP.arch
    lowering: ClassVar[Any] = hip
    prepared: ClassVar[type[PreparedGpu]] = PreparedHip

    def compile(self, kernel: Kernel, arch: str | None, listing: EmittedText | None = None) -> Executable:
        """Lower, emit, and compile to a listing or find it in the cache."""
        start = time.perf_counter()
        chosen = arch or self.arch_name()
        listing = listing or self.listing(kernel, chosen)
        entry = _listing([listing.code], listing.text, kernel.name, chosen)
        assembly = entry.data.decode()
        resources = resources_of(assembly, HIP.architecture(chosen))
        seconds = time.perf_counter() - start
        # The text declares shared memory, so a launch adds none.
        loaded = Loaded(HIP_DRIVER, lambda: _code_object(assembly, chosen, kernel.name), listing.entry, 0)
        return Executable(
            self.name, chosen, kernel, listing, entry.path, entry.hit, seconds, resources, loaded, assembly
        )


def _listing(parts: Sequence[str], text: str, name: str, arch: str, *, lines: bool = False) -> CacheEntry:
    """Compile HIP text to a listing, or find it in the cache; ``parts`` stand for the text in its key."""
    toolchain = amdgcn.find_toolchain(arch)
    address = key([parts[0], toolchain.identity, HIP.name, arch, *parts[1:]])
    meta: dict[str, object] = {"kernel": name, "target": HIP.name, "arch": arch}

    def build() -> bytes:
        return amdgcn.compile_text(text, arch, name, toolchain, lines=lines).encode()

    return Cache.default().get_or_build(address, ".s", build, meta)


def code_object(executable: Executable) -> bytes:
    """Return the code object that an AMD GPU loads, assembled from an executable's listing.

    Args:
        executable: compiled for the target.

    Raises:
        CompileError: the assembler refused the listing.
        ToolchainError: there is no assembler or linker.
    """
    return _code_object(executable.assembly, executable.arch, executable.kernel.name)


def _code_object(assembly: str, arch: str, name: str) -> bytes:
    toolchain = amdgcn.find_toolchain(arch)
    address = key([assembly, toolchain.identity, arch, "code object"])
    meta: dict[str, Any] = {"kernel": name, "target": HIP.name, "arch": arch}

    def build() -> bytes:
        return amdgcn.assemble(assembly, arch, name, toolchain)

    return Cache.default().get_or_build(address, ".hsaco", build, meta).data


def listing_with_lines(executable: Executable) -> str:
    """Return the listing of an executable, with the line of the text for each instruction.

    Args:
        executable: compiled for the target.
    """
    text, name = executable.source, executable.kernel.name
    return _listing([text, amdgcn.LINES], text, name, executable.arch, lines=True).data.decode()


# ---------------------------------------------------------------- several kernels in one code object


def listing_together(executables: Sequence[Executable]) -> str:
    """Return one listing of several kernels, from which one code object is assembled.

    Args:
        executables: compiled for one architecture of AMD's, with different names.

    Raises:
        LaunchError: two have the same name, or they are for several architectures.
        CompileError: the compiler refused the text.
    """
    names = [made.kernel.name for made in executables]
    archs = sorted({made.arch for made in executables})
    if len({*names}) < len(names) or len(archs) != 1:
        what = f"kernels {', '.join(names)} for {', '.join(archs)} in one code object"
        raise LaunchError(what, "kernels of different names, for one architecture")
    # The texts define shared functions under equal names; namespaces keep them apart.
    parts = [f"namespace part_{at} {{\n{made.source}}}\n" for at, made in enumerate(executables)]
    text = "\n".join(parts)
    return _listing([text], text, " ".join(names), archs[0]).data.decode()
