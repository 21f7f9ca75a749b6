"""Arrays with poison around them, and how to run a kernel on them on every target."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.dtypes import DType, dtype
from tilewright.runtime.gpu_memory import DeviceArray
from tilewright.targets.reference import run
from tilewright.targets.reference.findings import Kind

TARGETS = ["reference", "cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
POISON = 77


class Poisoned:
    """An array inside of a larger one, whose other elements must not change."""

    def __init__(self, shape: tuple[int, ...], element: DType) -> None:
        self.around = np.full([extent + 6 for extent in shape], POISON, element.numpy)
        self.array = self.around[tuple(slice(3, 3 + extent) for extent in shape)]

    def is_intact(self) -> bool:
        inside = tuple(slice(3, -3) for _ in self.around.shape)
        left = self.around.copy()
        left[inside] = POISON
        return left.tobytes() == np.full_like(left, POISON).tobytes()


def attempt(target: str, kernel: Any, arguments: list[Any], lanes: int | None = None) -> None:
    """Run a bound kernel; the reference uses any warp size and must have no finding.

    But for elements beyond an edge in a result: they are 0, and these tests mean them.
    """
    given = [a.array if isinstance(a, Poisoned) else a for a in arguments]
    if target == "cuda":
        _on_device(kernel, arguments)
    elif target == "cpu":
        assert kernel(*given, target=target).target == target
    else:
        traced = kernel.trace(*given)
        tensors = iter(a for a in given if isinstance(a, np.ndarray))
        arrays = {value.name: next(tensors) for value in traced.tensors}
        sizes = {"shift": next((a for a in given if isinstance(a, int)), 0)}
        report = run(traced, arrays, sizes, lanes=lanes)
        assert all(finding.kind is Kind.EDGE for finding in report.findings), str(report)
    assert all(a.is_intact() for a in arguments if isinstance(a, Poisoned)), "written outside of an array"


class Inside(DeviceArray):
    """The part of a device array that corresponds to `Poisoned.array`."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        skipped = sum(3 * stride for stride in self.strides)
        return {**super().__cuda_array_interface__, "data": (self.memory.address + skipped, False)}


def _on_device(kernel: Any, arguments: list[Any]) -> None:
    """Copy the arrays and the memory around them to the GPU and back."""
    whole = {id(a): DeviceArray.of(a.around) for a in arguments if isinstance(a, Poisoned)}
    moved = [_moved(a, whole) for a in arguments]
    assert kernel(*moved, target="cuda").target == "cuda"
    for a in arguments:
        if isinstance(a, Poisoned):
            a.around[...] = whole[id(a)].host()


def _moved(argument: Any, whole: dict[int, DeviceArray]) -> Any:
    if (d := whole.get(id(argument))) is not None:
        return Inside(d.memory, argument.array.shape, d.strides, dtype(d.dtype))
    return DeviceArray.of(argument) if isinstance(argument, np.ndarray) else argument
