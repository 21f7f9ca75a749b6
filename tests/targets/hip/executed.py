"""Executes the listings of compiled kernels in NumPy, like a device's launch."""

from __future__ import annotations

from typing import Any

from tilewright.amdgcn import ListingExecution
from tilewright.inspect.isa import execute_listing
from tilewright.runtime.executable import Executable
from tilewright.runtime.kernel import Bound


def launched(
    bound: Bound, arch: str, arrays: dict[str, Any], **numbers: Any
) -> tuple[Executable, ListingExecution]:
    """Compile a kernel for the class of some arrays, and execute its listing on them.

    Args:
        bound: the kernel, its constants fixed.
        arch: the architecture.
        arrays: those of the kernel, by parameter; results are stored in them.
        numbers: its numbers and integers.
    """
    made = bound.compile(**arrays, target="hip", arch=arch)
    assert (made.target, made.arch) == ("hip", arch)
    return made, execute_listing(made, arrays, numbers)
