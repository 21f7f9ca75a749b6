"""Launches of CUDA with attributes, which follow from a kernel's operations, and how many blocks fit then."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from tilewright.ir.kernel import Kernel
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.driver import LoadedFunction
from tilewright.runtime.launches import Special, Start


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
