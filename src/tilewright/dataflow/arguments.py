"""Arguments for the evaluation of a flow: sizes, numbers, and views of arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.dataflow.nodes import Flow, Integer, Operand
from tilewright.errors import LaunchError, shown
from tilewright.functions.conversions import Array
from tilewright.kinds import is_complex
from tilewright.symbolic.nodes import Int, Sym
from tilewright.symbolic.rebuilding import evaluate as value_of
from tilewright.symbolic.rebuilding import symbols
from tilewright.views.view import View


class Arguments:
    """The arguments with which a flow is evaluated.

    Args:
        flow: the flow.
        arrays: the arrays by parameter name.
        numbers: the numbers and integers by parameter name.

    Raises:
        LaunchError: an array has the wrong rank, extents differ, or sizes violate a requirement.
    """

    def __init__(self, flow: Flow, arrays: Mapping[str, Any], numbers: Mapping[str, float]) -> None:
        self.flow = flow
        self.arrays = {name: np.asarray(array) for name, array in arrays.items()}
        for name, array in self.arrays.items():
            if array.dtype.kind in "OSUMm":
                raise LaunchError(
                    f"evaluate of kernel {flow.name}: {name} is {shown(arrays[name])}; pass numbers"
                )
        self.numbers = numbers
        self.sizes: dict[Sym, int] = {}
        self.parameters = {one.name: one for one in flow.parameters if isinstance(one, Operand)}
        for one in flow.parameters:
            if isinstance(one, Integer) and isinstance(one.value, Sym):
                self.sizes[one.value] = int(self.number(one.value.name))
        for name, operand in self.parameters.items():
            if name in self.arrays:
                self._learn(operand, self.arrays[name].shape)
        for guard in flow.requirements:
            if (message := guard.broken(self.sizes)) is not None:
                raise LaunchError(f"evaluate of kernel {flow.name}: {message}")

    def _learn(self, operand: Operand, shape: tuple[int, ...]) -> None:
        """Take sizes from the extents of an array."""
        if len(shape) != len(operand.shape):
            raise LaunchError(
                f"{operand.name} has rank {len(shape)}, and is declared of rank {len(operand.shape)}"
            )
        for extent, given in zip(operand.shape, shape, strict=True):
            if isinstance(extent, int) and extent != given:
                raise LaunchError(f"{operand.name} has an extent of {given}, and is declared with {extent}")
            if isinstance(extent, Sym) and self.sizes.setdefault(extent, given) != given:
                raise LaunchError(
                    f"{operand.name} has {extent} = {given}, another array {self.sizes[extent]}"
                )

    def number(self, name: str) -> float:
        """Return the value of a number parameter."""
        if name not in self.numbers:
            raise LaunchError(f"evaluate of kernel {self.flow.name}: the number {name} is missing in numbers")
        number = self.numbers[name]
        if not is_complex(number):
            raise LaunchError(
                f"evaluate of kernel {self.flow.name}: the number {name} is {shown(number)}; pass a number"
            )
        return number

    def integer(self, value: Int) -> int:
        """Evaluate an integer expression over the sizes."""
        if missing := symbols(value) - self.sizes.keys():
            names = ", ".join(sorted(sym.name for sym in missing))
            raise LaunchError(
                f"evaluate of kernel {self.flow.name}: no array tells {names}; pass the arrays that do"
            )
        return int(value_of(value, self.sizes))

    def shape(self, operand: Operand) -> tuple[int, ...]:
        """Return the extents of an operand."""
        return tuple(map(self.integer, operand.shape))

    def parameter(self, name: str) -> Array:
        """Return the array of a parameter."""
        if name not in self.arrays:
            raise LaunchError(f"evaluate of kernel {self.flow.name}: the array {name} is missing in arrays")
        return self.arrays[name].astype(self.parameters[name].dtype.numbers, copy=False)

    def elements(self, operand: Operand) -> Array:
        """Return the elements of an array or a view of it; elements outside the array are 0."""
        given = self.parameter(operand.name)
        if not operand.transforms:
            return given
        offset, valid = self.places(operand)
        flat = given.reshape(-1)
        taken = flat[np.where(valid, offset, 0)] if flat.size else np.zeros(offset.shape, flat.dtype)
        return np.where(valid, taken, np.zeros((), flat.dtype))

    def places(self, operand: Operand) -> tuple[Array, Array]:
        """Return the row-major offsets of a view's elements in the array, and a mask of those that exist."""
        extents = self.parameters[operand.name].shape
        strides: list[Int] = [1]
        for extent in extents[:0:-1]:
            strides.insert(0, strides[0] * self.integer(extent))
        view = View.strided(extents, strides)
        for transform in operand.transforms:
            view = transform.apply(view)
        shape = tuple(map(self.integer, view.shape))
        index = np.indices(shape)
        known: dict[Any, Any] = {**self.sizes, **dict(zip(view.coords, index, strict=True))}
        offset, valid = (value_of(what, known) for what in (view.offset, view.valid))
        return np.broadcast_to(offset, shape), np.broadcast_to(valid, shape)
