"""The reference backend: runs a kernel on host arrays, with the hazard checker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.errors import LaunchError, Violation
from tilewright.ir.kernel import Kernel
from tilewright.lang.program import Parameter
from tilewright.runtime.arguments import number
from tilewright.runtime.arrays import ArrayInfo, describe, elements
from tilewright.runtime.binding import Binding
from tilewright.runtime.executable import Executable
from tilewright.targets.reference.report import Report
from tilewright.targets.reference.run import run


class ReferenceBackend:
    """Executes the traced kernel itself, operation by operation."""

    name = "reference"

    def arch_name(self) -> str:
        """There is one."""
        return "numpy"

    def violations(self, kernel: Kernel, arch: str | None) -> list[Violation]:
        """None of its own."""
        return []

    def compile(self, kernel: Kernel, arch: str | None) -> Executable:
        """Nothing to compile."""
        return Executable(self.name, self.arch_name(), kernel)

    def prepare(
        self,
        executable: Executable,
        binding: Binding,
        parameters: Sequence[Parameter],
        arrays: Mapping[str, ArrayInfo],
    ) -> PreparedReference:
        """A launch for arguments of this exact shape."""
        return PreparedReference(executable, binding, tuple(parameters))


@dataclass(frozen=True)
class PreparedReference:
    """Runs the kernel and raises what the checker finds."""

    executable: Executable
    binding: Binding
    parameters: tuple[Parameter, ...]

    def launch(self, arguments: Sequence[Any], pointers: Sequence[int], stream: Any) -> None:
        """Run on these arguments, in place.

        Raises:
            HazardError: the checker found hazards.
        """
        self.run(arguments).raise_if_any()

    def run(self, arguments: Sequence[Any], *, lanes: int | None = None, copy: bool = False) -> Report:
        """Run on these arguments, or on copies of the arrays, and report."""
        arrays, numbers = {}, {}
        for parameter, argument in zip(self.parameters, arguments, strict=True):
            if parameter.kind == "tensor":
                array = host_array(describe(argument))
                arrays[parameter.name] = copied(array) if copy else array
            elif parameter.kind == "scalar":
                numbers[parameter.name] = number(parameter.name, parameter.dtype, argument)
        return run(self.executable.kernel, arrays, self.binding.sizes, numbers, lanes=lanes)


def copied(array: np.ndarray[Any, np.dtype[Any]]) -> np.ndarray[Any, np.dtype[Any]]:
    """A copy with the same strides: the kernel's offsets hold for it too."""
    if array.size == 0:
        return array.copy()
    span = 1 + sum((n - 1) * s // array.itemsize for n, s in zip(array.shape, array.strides, strict=True))
    made: np.ndarray[Any, np.dtype[Any]] = np.ndarray(
        array.shape, array.dtype, np.empty(span, array.dtype), strides=array.strides
    )
    made[...] = array
    return made


def host_array(info: ArrayInfo) -> np.ndarray[Any, np.dtype[Any]]:
    """A NumPy view of an array in host memory.

    Raises:
        LaunchError: the array lies on a GPU.
    """
    if info.device != "cpu":
        raise LaunchError(
            f"the reference runs on host arrays; this one lies on {info.device}: copy it to the host"
        )
    return elements(info).view(info.dtype.numpy)
