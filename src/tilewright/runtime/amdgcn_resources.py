"""What the metadata of a listing for AMD GPUs says that a kernel takes.

Source: LLVM, "User Guide for AMDGPU Backend", "Code Object V5 Metadata".
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.amdgcn.metadata import read_metadata
from tilewright.arch import Arch
from tilewright.errors import ToolchainError
from tilewright.targets.simt.occupancy import warps_per_simd

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
