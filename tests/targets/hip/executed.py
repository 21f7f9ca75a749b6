"""Compiled kernels whose listing is executed in NumPy, on arrays, as a device would launch it."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.amdgcn import Execution, execute
from tilewright.ir.kernel import ScalarParam, SizeParam, TensorParam
from tilewright.ir.passed import passed_params
from tilewright.runtime.arguments import number
from tilewright.runtime.arrays import describe
from tilewright.runtime.binding import bind
from tilewright.runtime.executable import Executable
from tilewright.runtime.kernel import Bound


def launched(bound: Bound, arch: str, arrays: dict[str, Any], **numbers: Any) -> tuple[Executable, Execution]:
    """Compile a kernel for the class of some arrays, and execute its listing on them.

    Args:
        bound: the kernel, its constants fixed.
        arch: the architecture.
        arrays: those of the kernel, by parameter; results are stored in them.
        numbers: its numbers and integers.
    """
    made = bound.compile(**arrays, target="hip", arch=arch)
    assert (made.target, made.arch) == ("hip", arch)
    assert made.listing is not None
    kernel = made.listing.kernel
    binding = bind(kernel, {name: describe(array) for name, array in arrays.items()}, numbers)
    given: list[Any] = []
    for param in passed_params(kernel):
        if isinstance(param, TensorParam):
            given.append(arrays[param.value.name])
        elif isinstance(param, SizeParam):
            given.append((np.int64 if param.bits == 64 else np.int32)(binding.sizes[param.sym.name]))
        elif isinstance(param, ScalarParam):
            given.append(number(param.value.name, param.value.dtype, numbers[param.value.name]))
        else:
            given.append(np.zeros(binding.workspaces[param.value.name], param.value.dtype.numpy))
    grid = (*binding.grid, 1, 1)[:3]
    return made, execute(made.assembly, given, grid, (kernel.threads, 1, 1))
