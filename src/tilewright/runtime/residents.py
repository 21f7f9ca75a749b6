"""How many blocks of a kernel a device holds at once."""

from __future__ import annotations

import math

from tilewright.ir.kernel import Kernel
from tilewright.runtime import cuda
from tilewright.runtime.driver import LoadedFunction
from tilewright.runtime.launch_attributes import launch_attributes


def resident_blocks(function: LoadedFunction, kernel: Kernel) -> int:
    """How many blocks of a kernel a device holds at once, in whole clusters.

    Source: CUDA Driver API, "Occupancy".
    """
    driver = cuda.driver()
    with cuda.Current(function.index):
        if not kernel.cluster:
            size = function.shared_bytes
            each = cuda.call(
                "cuOccupancyMaxActiveBlocksPerMultiprocessor", function.handle, kernel.threads, size
            )
            return int(each) * cuda.device(function.index).multiprocessors
        config = driver.CUlaunchConfig()
        extents = [1, 1, 1]
        for member in kernel.cluster:
            extents[member.axis] = member.extent
        config.gridDimX, config.gridDimY, config.gridDimZ = extents
        config.blockDimX, config.blockDimY, config.blockDimZ = kernel.threads, 1, 1
        config.sharedMemBytes = function.shared_bytes
        config.attrs = attributes = launch_attributes(kernel, driver)
        config.numAttrs = len(attributes)
        clusters = cuda.call("cuOccupancyMaxActiveClusters", function.handle, config)
    return int(clusters) * math.prod(extents)
