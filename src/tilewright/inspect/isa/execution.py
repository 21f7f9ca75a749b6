"""Executes a compiled kernel from its listing, and counts bank conflicts of its waves in LDS."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.amdgcn import ListingExecution, execute
from tilewright.amdgcn.space import Watch
from tilewright.arch import Arch
from tilewright.errors import LaunchError
from tilewright.ir.kernel import ScalarParam, SizeParam, TensorParam, passed_params
from tilewright.runtime.arrays import describe
from tilewright.runtime.binding import bind, number
from tilewright.runtime.executable import Executable
from tilewright.targets.simt.banks import Conflicts
from tilewright.threads.banks import bank_passes, lanes_together, served_together


def execute_listing(
    made: Executable,
    arrays: Mapping[str, Any],
    numbers: Mapping[str, Any] | None = None,
    watch: Watch | None = None,
    *,
    stores_once: bool = False,
) -> ListingExecution:
    """Execute a kernel from its listing for an AMD GPU, in the way of a launch.

    All waves of a block must pass the same number of barriers, which holds for verified kernels.

    Args:
        made: the kernel, compiled for the class of the arrays.
        arrays: the kernel's arrays, by parameter; results are stored in them.
        numbers: its numbers and integers.
        watch: an argument of `tilewright.amdgcn.execute`.
        stores_once: an argument of `tilewright.amdgcn.execute`.

    Raises:
        LaunchError: a number has no value.
        ListingError: the execution found an error.
    """
    assert made.listing is not None
    kernel, values = made.listing.kernel, dict(numbers or {})
    scalars = [param.value.name for param in passed_params(kernel) if isinstance(param, ScalarParam)]
    if missing := [name for name in scalars if name not in values]:
        raise LaunchError(f"no value for {', '.join(missing)}, which kernel {kernel.name} takes")
    binding = bind(kernel, {name: describe(array) for name, array in arrays.items()}, values)
    given: list[Any] = []
    for param in passed_params(kernel):
        if isinstance(param, TensorParam):
            given.append(arrays[param.value.name])
        elif isinstance(param, SizeParam):
            given.append((np.int64 if param.bits == 64 else np.int32)(binding.sizes[param.sym.name]))
        elif isinstance(param, ScalarParam):
            given.append(number(param.value.name, param.value.dtype, values[param.value.name]))
        else:
            given.append(np.zeros(binding.workspaces[param.value.name], param.value.dtype.numpy))
    grid = (*binding.grid, 1, 1)[:3]
    return execute(
        made.assembly,
        given,
        grid,
        (kernel.threads, 1, 1),
        kernel=made.listing.entry,
        watch=watch,
        stores_once=stores_once,
        all_meet=True,
    )


class BankCounter:
    """The watch of an execution that counts bank conflicts.

    A pass serves as many lanes as fill all banks once. They are neighbours, but loads of 16 bytes take the
    lanes in the order of the architecture's record.

    Args:
        arch: the architecture of the banks.

    Example:
        >>> from tilewright.targets.amd import GFX1151
        >>> counter = BankCounter(GFX1151)
        >>> counter(7, 4, np.arange(32)[None] * np.array([[4], [8]]), False)
        >>> counter.lines[7]
        Conflicts(accesses=2, passes=3, fewest=2)
    """

    def __init__(self, arch: Arch) -> None:
        self.arch = arch
        self.lines: dict[int, Conflicts] = {}

    def __call__(
        self, line: int, size: int, offsets: np.ndarray[Any, np.dtype[np.int64]], writes: bool
    ) -> None:
        """Count an access of some waves."""
        if size == self.arch.access_bytes and not writes and self.arch.read_order:
            offsets = offsets[:, self.arch.read_order]
        together = lanes_together(size, self.arch.banks, self.arch.lanes)
        parts = served_together(offsets, together, self.arch.lanes)
        used = parts[(parts >= 0).any(axis=1)]
        passes = int(bank_passes(used, size, self.arch.banks).sum())
        found = Conflicts(len(offsets), passes, len(used))
        self.lines[line] = self.lines.get(line, Conflicts()) + found
