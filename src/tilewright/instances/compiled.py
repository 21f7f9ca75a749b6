"""Kernels under the schedules of instances, by the names that these have in a code object."""

from __future__ import annotations

import copy
from typing import Any

from tilewright.dtypes import DType
from tilewright.instances.device import DeviceGemm
from tilewright.runtime.kernel import Bound, Kernel


def bound_to(
    instance: DeviceGemm, kernel: Kernel, arch: str, b_memory: DType | str | None = None, **constants: Any
) -> Bound:
    """A dataflow kernel under the schedule of an instance, named by its symbol.

    Args:
        instance: the instance.
        kernel: what is computed.
        arch: the architecture, as `schedule` of the instance takes it.
        b_memory: likewise.
        constants: of the kernel.
    """
    program = copy.copy(kernel.program)
    program.name = instance.symbol
    return Kernel(program).bind(schedule=instance.schedule(arch, b_memory), **constants)
