"""What a launch says beside its grid: the attributes that follow from a kernel's operations."""

from __future__ import annotations

from typing import Any

from tilewright.ir.kernel import Kernel


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
        extents = [1, 1, 1]
        for member in kernel.cluster:
            extents[member.axis] = member.extent
        found.append(attribute := _attribute(bindings, "CLUSTER_DIMENSION"))
        dims = attribute.value.clusterDim
        dims.x, dims.y, dims.z = extents
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
