"""From the caller's array to the class of arrays that one compiled kernel serves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.errors import LaunchError
from tilewright.lang.program import Program
from tilewright.lang.specs import TensorSpec
from tilewright.runtime.arrays import ArrayInfo, described
from tilewright.runtime.backends import Backend, backend_for, backend_named
from tilewright.runtime.specimens import Specimen, check_count

MAX_EXTENT = 2**31 - 1

_EXTENT_DIVISOR = 256
_STRIDE_DIVISOR = 16
_ALIGN_BYTES = 16


def spec_of(info: ArrayInfo, name: str = "array") -> TensorSpec:
    """The class that an array belongs to.

    Args:
        info: the array.
        name: what messages call it.

    Raises:
        LaunchError: an extent is 2**31 or more.

    Example:
        >>> import numpy as np
        >>> from tilewright.runtime.arrays import describe
        >>> spec_of(describe(np.empty((130, 96), np.float16))).stride_divisors
        (16, 1)
    """
    _check_extents(info, name)
    unit, empty = _unit_dim(info), 0 in info.shape
    return TensorSpec(
        dtype=info.dtype,
        rank=len(info.shape),
        unit_dim=unit,
        extent_divisors=tuple(math.gcd(extent, _EXTENT_DIVISOR) for extent in info.shape),
        stride_divisors=tuple(
            1 if dim == unit else math.gcd(0 if empty else stride, _STRIDE_DIVISOR * info.dtype.per_byte)
            for dim, stride in enumerate(info.strides)
        ),
        align=math.gcd(0 if empty else info.pointer, _ALIGN_BYTES),
        wide=_reach(info) > MAX_EXTENT,
        signed=not empty and min(info.strides, default=0) < 0,
    )


def specs_of(program: Program, arguments: Sequence[Any]) -> dict[str, TensorSpec]:
    """The classes of the arrays among the arguments of a kernel, by the names of its parameters.

    Raises:
        LaunchError: too many or too few arguments, or one that is no array.
    """
    check_count(program, arguments)
    return {
        p.name: argument
        if isinstance(argument, TensorSpec)
        else spec_of(described(program.name, p.name, argument))
        for p, argument in zip(program.parameters, arguments, strict=True)
        if p.kind == "tensor"
    }


def shapes_of(program: Program, arguments: Sequence[Any]) -> dict[str, tuple[int, ...]]:
    """Extents of the arrays among the arguments; a `TensorSpec` has none."""
    found = arrays_of(program, arguments, classes=True)
    return {name: info.shape for name, info in found.items()}


def arrays_of(program: Program, arguments: Sequence[Any], *, classes: bool = False) -> dict[str, ArrayInfo]:
    """What the arrays among the arguments of a kernel are, by parameter.

    Args:
        program: the kernel.
        arguments: in the order of its parameters.
        classes: whether a `TensorSpec` may stand for an array, and is left out; a launch has need of arrays.

    Raises:
        LaunchError: too many or too few arguments, or one that is no array.
    """
    check_count(program, arguments)
    return {
        p.name: described(program.name, p.name, argument)
        for p, argument in zip(program.parameters, arguments, strict=True)
        if p.kind == "tensor" and not (classes and isinstance(argument, TensorSpec))
    }


def serving(
    program: Program, arguments: Sequence[Any], arrays: Mapping[str, ArrayInfo], target: str | None
) -> Backend:
    """The backend that serves the arrays among the arguments; specimens lie nowhere.

    Raises:
        LaunchError: arrays on different devices, or a target that cannot reach them.
    """
    pairs = zip(program.parameters, arguments, strict=True)
    nowhere = {p.name for p, argument in pairs if isinstance(argument, Specimen)}
    there = [(name, info) for name, info in arrays.items() if name not in nowhere]
    return backend_for(program.name, there, target)


def compiling(program: Program, arguments: Sequence[Any], target: str | None) -> Backend:
    """The backend that compiles for arrays, or for what stands for them.

    Raises:
        LaunchError: only specimens or classes of arrays, and no target.
    """
    if target is not None:
        return backend_named(target)
    pairs = zip(program.parameters, arguments, strict=True)
    if all(isinstance(a, TensorSpec | Specimen) for p, a in pairs if p.kind == "tensor"):
        raise LaunchError(f"kernel {program.name}: say target= when compiling without arrays")
    return serving(program, arguments, arrays_of(program, arguments, classes=True), None)


def _check_extents(info: ArrayInfo, name: str) -> None:
    for dim, extent in enumerate(info.shape):
        if extent > MAX_EXTENT:
            raise LaunchError(f"{name}: extent {extent} of dimension {dim} must be at most {MAX_EXTENT}")


def _unit_dim(info: ArrayInfo) -> int | None:
    """The last dimension of stride 1 that is stepped along; the last of stride 1 if none is.

    An array without elements has no strides worth the name: it counts as packed, the last dimension fastest.
    """
    if 0 in info.shape:
        return len(info.shape) - 1
    units = [dim for dim, stride in enumerate(info.strides) if stride == 1]
    stepped = [dim for dim in units if info.shape[dim] > 1]
    found = stepped or units
    return found[-1] if found else None


def _reach(info: ArrayInfo) -> int:
    """The largest number that addressing the array takes: a part of an offset, or a stride, taken or not."""
    steps = [abs(stride) for stride in info.strides]
    pairs = zip(info.shape, steps, strict=True)
    return max((0 if 0 in info.shape else sum((extent - 1) * step for extent, step in pairs), *steps))
