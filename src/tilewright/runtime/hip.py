"""The HIP backend: compiles HIP text to listings for AMD GPUs; it launches nothing yet."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from tilewright.errors import LaunchError, Violation
from tilewright.ir.kernel import Kernel
from tilewright.lang.program import Parameter
from tilewright.runtime import amdgcn
from tilewright.runtime.amdgcn_resources import resources_of
from tilewright.runtime.arrays import ArrayInfo
from tilewright.runtime.binding import Binding
from tilewright.runtime.cache import Cache, key
from tilewright.runtime.executable import Executable
from tilewright.targets import hip
from tilewright.targets.listing import Listing
from tilewright.targets.target import HIP

MISSING = (
    f"target {HIP.name} launches nothing yet: it needs ROCm's runtime, libamdhip64, which this version does "
    f"not load; nearest: kernel.compile(..., target={HIP.name!r}, arch=...), which needs no device"
)


def device_count() -> int:
    """How many AMD GPUs there are that kernels can be launched on: none."""
    return 0


def missing() -> str:
    """Why nothing can be launched on this machine."""
    return MISSING


class HipBackend:
    """Compiles for the architecture asked for, on any machine."""

    name = HIP.name

    def arch_name(self) -> str:
        """The default architecture."""
        return HIP.arch

    def processors(self) -> int:
        """How many blocks run side by side: none, without a device."""
        return 0

    def device_name(self) -> str:
        """No device's."""
        return ""

    def violations(self, kernel: Kernel, arch: str | None) -> list[Violation]:
        """The target's own rules that a kernel breaks."""
        return hip.violations(kernel, arch or self.arch_name())

    def listing(self, kernel: Kernel, arch: str | None) -> Listing:
        """Lower and emit."""
        return hip.emit(kernel, arch or self.arch_name())

    def compile(self, kernel: Kernel, arch: str | None) -> Executable:
        """Lower, emit, and compile to a listing or find it in the cache."""
        start = time.perf_counter()
        chosen = arch or self.arch_name()
        listing = self.listing(kernel, chosen)
        toolchain = amdgcn.find_toolchain()
        meta: dict[str, object] = {"kernel": kernel.name, "target": self.name, "arch": chosen}

        def build() -> bytes:
            return amdgcn.compile_text(listing.text, chosen, kernel.name, toolchain).encode()

        address = key([listing.code, toolchain.identity, self.name, chosen])
        entry = Cache.default().get_or_build(address, ".s", build, meta)
        assembly = entry.data.decode()
        resources = resources_of(assembly, HIP.architecture(chosen))
        seconds = time.perf_counter() - start
        return Executable(
            self.name, chosen, kernel, listing, entry.path, entry.hit, seconds, resources, entry, assembly
        )

    def prepare(
        self,
        executable: Executable,
        binding: Binding,
        parameters: Sequence[Parameter],
        arrays: Mapping[str, ArrayInfo],
    ) -> NoReturn:
        """Refuse.

        Raises:
            LaunchError: always; says what is missing.
        """
        raise LaunchError(MISSING)


def code_object(executable: Executable) -> bytes:
    """The code object that an AMD GPU loads, assembled from an executable's listing.

    Args:
        executable: compiled for the target.

    Raises:
        CompileError: the assembler refused the listing.
        ToolchainError: there is no assembler or linker.
    """
    toolchain = amdgcn.find_toolchain()
    address = key([executable.assembly, toolchain.identity, executable.arch, "code object"])
    meta: dict[str, Any] = {"kernel": executable.kernel.name, "target": HIP.name, "arch": executable.arch}

    def build() -> bytes:
        return amdgcn.assemble(executable.assembly, executable.arch, executable.kernel.name, toolchain)

    return Cache.default().get_or_build(address, ".hsaco", build, meta).data


def listing_with_lines(executable: Executable) -> str:
    """The listing of an executable, in which the compiler says of what lines of the text it was made.

    Args:
        executable: compiled for the target.
    """
    toolchain, text, name = amdgcn.find_toolchain(), executable.source, executable.kernel.name
    address = key([text, toolchain.identity, HIP.name, executable.arch, amdgcn.LINES])
    meta: dict[str, Any] = {"kernel": name, "target": HIP.name, "arch": executable.arch}

    def build() -> bytes:
        return amdgcn.compile_text(text, executable.arch, name, toolchain, lines=True).encode()

    return Cache.default().get_or_build(address, ".s", build, meta).data.decode()
