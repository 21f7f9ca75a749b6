"""The HIP backend: compiles HIP text to listings for AMD GPUs, and launches code objects made of them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from tilewright.amdgcn.text import read_metadata
from tilewright.arch import Arch
from tilewright.errors import LaunchError, ToolchainError
from tilewright.ir.kernel import Kernel
from tilewright.lang.program import Parameter
from tilewright.runtime import amdgcn
from tilewright.runtime.arrays import ArrayInfo
from tilewright.runtime.binding import Binding
from tilewright.runtime.cache import Cache, key
from tilewright.runtime.driver import Driver, LoadedFunction
from tilewright.runtime.executable import Executable
from tilewright.runtime.gpu_launch import FixedLaunch, GpuBackend, Loaded, PreparedGpu, Start
from tilewright.runtime.hip_driver import HIP_DRIVER
from tilewright.targets import hip
from tilewright.targets.amd import warps_per_simd
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
"""What the metadata says of a thread, or of a block, by the name under which it is reported.

``registers`` counts vector registers of a thread, with matrix cores of CDNA those of accumulation among them;
``scalar_registers`` those that all threads of a warp have in common.
"""

_THREADS = ".max_flat_workgroup_size"


def resources_of(assembly: str, arch: Arch) -> dict[str, int]:
    """What a kernel takes, of the names in `METADATA`, and ``warps_per_simd`` with that.

    Args:
        assembly: the compiler's listing, with its metadata.
        arch: the architecture that it was compiled for.

    Raises:
        ToolchainError: the listing says nothing of the registers that the kernel takes.
    """
    records = read_metadata(assembly).values()
    return resources_in(next(iter(records)).fields if len(records) == 1 else {}, arch)


def resources_in(said: Mapping[str, str], arch: Arch) -> dict[str, int]:
    """The same from what the metadata says of one kernel.

    Args:
        said: its fields, which begin with a point.
        arch: the architecture that the kernel was compiled for.

    Raises:
        ToolchainError: they say nothing of the registers that it takes.
    """
    found = {name: int(said[f".{called}"]) for name, called in METADATA.items() if f".{called}" in said}
    if "registers" not in found or _THREADS not in said:
        raise ToolchainError(
            f"the compiler's listing for {arch.name} has no metadata of one kernel; nearest: a clang of "
            "version 19 or later"
        )
    shared = found.get("shared_bytes", 0)
    return {**found, "warps_per_simd": warps_per_simd(arch, found["registers"], shared, threads_in(said))}


def threads_in(said: Mapping[str, str]) -> int:
    """The most threads of a block, from what the metadata says of one kernel."""
    return int(said[_THREADS])


# ---------------------------------------------------------------- the backend


class HipBackend(GpuBackend):
    """Compiles for the GPU of this machine, or, without one, for the architecture asked for."""

    name = HIP.name
    driver: ClassVar[Driver] = HIP_DRIVER
    default_arch = HIP.arch
    lowering: ClassVar[Any] = hip

    def compile(self, kernel: Kernel, arch: str | None) -> Executable:
        """Lower, emit, and compile to a listing or find it in the cache."""
        start = time.perf_counter()
        chosen = arch or self.arch_name()
        listing = self.listing(kernel, chosen)
        toolchain = amdgcn.find_toolchain(chosen)
        meta: dict[str, object] = {"kernel": kernel.name, "target": self.name, "arch": chosen}

        def build() -> bytes:
            return amdgcn.compile_text(listing.text, chosen, kernel.name, toolchain).encode()

        address = key([listing.code, toolchain.identity, self.name, chosen])
        entry = Cache.default().get_or_build(address, ".s", build, meta)
        assembly = entry.data.decode()
        resources = resources_of(assembly, HIP.architecture(chosen))
        seconds = time.perf_counter() - start
        # Shared memory is declared in the text, so that a launch adds none.
        loaded = Loaded(HIP_DRIVER, lambda: _code_object(assembly, chosen, kernel.name), listing.entry, 0)
        return Executable(
            self.name, chosen, kernel, listing, entry.path, entry.hit, seconds, resources, loaded, assembly
        )

    def prepare(
        self,
        executable: Executable,
        binding: Binding,
        parameters: Sequence[Parameter],
        arrays: Mapping[str, ArrayInfo],
    ) -> PreparedHip:
        """A launch for arguments of this exact shape.

        Raises:
            LaunchError: the device is of another architecture than the executable.
        """
        index = self.device_of(arrays)
        if executable.arch != (wanted := HIP_DRIVER.device(index).arch):
            raise LaunchError(f"compiled for {executable.arch}, but device {index} is {wanted}")
        return PreparedHip(executable, binding, parameters, arrays, index)


class PreparedHip(PreparedGpu):
    """Launches of one exact shape on an AMD GPU."""

    driver: ClassVar[Driver] = HIP_DRIVER

    @staticmethod
    def launch_of(
        function: LoadedFunction,
        kernel: Kernel,
        grid: Sequence[int],
        offsets: Sequence[int],
        size: int,
        together: bool,
    ) -> FixedLaunch:
        """A launch, cooperative where blocks wait for each other."""
        return FixedLaunch(
            HIP_DRIVER, function, grid, kernel.threads, offsets, size, _cooperative if together else None
        )

    @staticmethod
    def resident_blocks(function: LoadedFunction, kernel: Kernel) -> int:
        """How many blocks of a kernel the device holds at once."""
        return HIP_DRIVER.resident_blocks(function, kernel.threads)


def _cooperative(bindings: Any, handle: Any, shape: tuple[int, ...], stream: Any, arguments: int) -> Start:
    """A launch whose blocks are all resident at once."""
    return partial(bindings.hipModuleLaunchCooperativeKernel, handle, *shape, stream, arguments)


def code_object(executable: Executable) -> bytes:
    """The code object that an AMD GPU loads, assembled from an executable's listing.

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
    """The listing of an executable, in which the compiler says of what lines of the text it was made.

    Args:
        executable: compiled for the target.
    """
    assert executable.arch is not None
    toolchain, text = amdgcn.find_toolchain(executable.arch), executable.source
    name = executable.kernel.name
    address = key([text, toolchain.identity, HIP.name, executable.arch, amdgcn.LINES])
    meta: dict[str, Any] = {"kernel": name, "target": HIP.name, "arch": executable.arch}

    def build() -> bytes:
        return amdgcn.compile_text(text, executable.arch, name, toolchain, lines=True).encode()

    return Cache.default().get_or_build(address, ".s", build, meta).data.decode()


# ---------------------------------------------------------------- several kernels in one code object


def listing_together(executables: Sequence[Executable]) -> str:
    """The listing of several kernels, which one code object is assembled from; each keeps its name.

    Args:
        executables: compiled for one architecture of AMD's, under names of their own.

    Raises:
        LaunchError: two have the same name, or they are for several architectures.
        CompileError: the compiler refused the text.
    """
    names = [made.kernel.name for made in executables]
    archs = sorted({made.arch for made in executables})
    if len({*names}) < len(names) or len(archs) != 1:
        raise LaunchError(
            f"kernels {', '.join(names)} for {', '.join(archs)} in one code object; nearest legal choice: "
            "kernels of different names, for one architecture"
        )
    # Pieces that several kernels need have one name in each text: a namespace keeps them apart.
    parts = [f"namespace part_{at} {{\n{made.source}}}\n" for at, made in enumerate(executables)]
    text, toolchain = "\n".join(parts), amdgcn.find_toolchain(archs[0])
    meta: dict[str, object] = {"kernel": " ".join(names), "target": HIP.name, "arch": archs[0]}

    def build() -> bytes:
        return amdgcn.compile_text(text, archs[0], names[0], toolchain).encode()

    address = key([text, toolchain.identity, HIP.name, archs[0]])
    return Cache.default().get_or_build(address, ".s", build, meta).data.decode()
