"""From the caller's arguments to the integers of one launch: sizes, grid, workspace lengths."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.errors import LaunchError, shown
from tilewright.ir.kernel import Argument, Derived, Extent, Kernel, Stride
from tilewright.ir.types import Value
from tilewright.kinds import is_integer, near_integer
from tilewright.runtime.arrays import ArrayInfo
from tilewright.symbolic.nodes import Sym
from tilewright.symbolic.rebuilding import evaluate

MOST_ELEMENTS = 2**31 - 1
"""Of memory that the launcher provides."""


@dataclass(frozen=True)
class Binding:
    """The integers of one launch.

    Args:
        sizes: value of every size parameter, by name.
        grid: blocks along each axis, x first; never empty.
        workspaces: elements of each workspace, by name.
    """

    sizes: Mapping[str, int]
    grid: tuple[int, ...]
    workspaces: Mapping[str, int]

    @property
    def blocks(self) -> int:
        """Blocks in all."""
        return math.prod(self.grid)


def bind(kernel: Kernel, arrays: Mapping[str, ArrayInfo], indices: Mapping[str, int]) -> Binding:
    """Compute the integers of one launch.

    Args:
        kernel: the traced kernel.
        arrays: the caller's arrays by parameter name.
        indices: the caller's integer arguments by parameter name.

    Raises:
        LaunchError: extents disagree, an integer does not fit, or a guard fails.
    """
    env = _extents(kernel, arrays)
    for param in kernel.sizes:
        source = param.source
        if isinstance(source, Extent):
            env[param.sym] = arrays[source.tensor].shape[source.dim]
        elif isinstance(source, Stride):
            env[param.sym] = arrays[source.tensor].strides[source.dim]
        elif isinstance(source, Argument):
            env[param.sym] = integer(kernel.name, source.name, indices[source.name])
    for param in kernel.sizes:
        if isinstance(param.source, Derived):
            env[param.sym] = int(evaluate(param.source.value, env))
    for guard in kernel.guards:
        if (message := guard.broken(env)) is not None:
            raise LaunchError(f"kernel {kernel.name}: {message}")
    grid = tuple(int(evaluate(axis.extent, env)) for axis in kernel.grid) or (1,)
    if min(grid) < 0:
        raise LaunchError(f"kernel {kernel.name}: a grid of {grid} blocks; every extent must be 0 or more")
    _check_cluster(kernel, grid)
    lengths = {space.value.name: int(evaluate(space.elems, env)) for space in kernel.workspaces}
    for name, length in lengths.items():
        if length > MOST_ELEMENTS:
            raise LaunchError(
                f"kernel {kernel.name}: {length} elements of memory for {name}, whose places have 32 bits; "
                f"nearest legal choice: {MOST_ELEMENTS}, by fewer blocks or parts that keep their own"
            )
    return Binding({param.sym.name: env[param.sym] for param in kernel.sizes}, grid, lengths)


def _extents(kernel: Kernel, arrays: Mapping[str, ArrayInfo]) -> dict[Sym, int]:
    """The value of each dimension; all arrays that share its name must agree."""
    env: dict[Sym, int] = {}
    where: dict[Sym, str] = {}
    for tensor in kernel.tensors:
        for dim, extent in enumerate(tensor.tensor.shape):
            if not isinstance(extent, Sym):
                continue
            given, place = arrays[tensor.name].shape[dim], f"{tensor.name}.shape[{dim}]"
            if env.setdefault(extent, given) != given:
                own = f"{tensor.name}.shape"
                others = {sym: env[sym] for sym in where if not where[sym].startswith(own)}
                raise LaunchError(
                    f"kernel {kernel.name}: {extent.name} is {env[extent]} in {where[extent]} "
                    f"but {given} in {place}{_transposed(tensor, arrays[tensor.name], others)}"
                )
            where.setdefault(extent, place)
    return env


def _transposed(param: Value, array: ArrayInfo, others: Mapping[Sym, int]) -> str:
    """What to pass instead of a matrix whose transpose would fit; empty if it would not."""
    dims = param.tensor.shape
    if len(dims) != 2 or not all(
        isinstance(dim, Sym) and others.get(dim, extent) == extent
        for dim, extent in zip(dims, reversed(array.shape), strict=True)
    ):
        return ""
    return f"; {param.name} is ({dims[0]}, {dims[1]}); nearest: {param.name}.T"


def integer(kernel: str, name: str, value: Any) -> int:
    """A caller's integer, as Python's own.

    Args:
        kernel: the kernel's name.
        name: the parameter's.
        value: what the caller gave.

    Raises:
        LaunchError: it is no integer, or one that 32 bits do not hold.

    Example:
        >>> integer("k", "steps", 2.5)
        Traceback (most recent call last):
        tilewright.errors.LaunchError: kernel k: steps=2.5 must be an integer; nearest: 2
    """
    try:
        number = operator.index(value) if is_integer(value) or isinstance(value, int) else None
    except Exception:  # noqa: BLE001 what a stranger's __index__ raises
        number = None
    if number is None or isinstance(value, bool):
        whole = None if isinstance(value, bool) else near_integer(value)
        nearest = "" if whole is None else f"; nearest: {min(max(whole, -(2**31)), 2**31 - 1)}"
        raise LaunchError(f"kernel {kernel}: {name}={shown(value)} must be an integer{nearest}")
    if not -(2**31) <= number < 2**31:
        nearest = f"nearest: {min(max(number, -(2**31)), 2**31 - 1)}"
        raise LaunchError(f"kernel {kernel}: {name}={shown(value)} does not fit 32 bits; {nearest}")
    return number


def _check_cluster(kernel: Kernel, grid: Sequence[int]) -> None:
    for member in kernel.cluster:
        if grid[member.axis] % member.extent:
            raise LaunchError(
                f"kernel {kernel.name}: {grid[member.axis]} blocks along axis {member.axis} are no multiple "
                f"of the cluster's {member.extent}"
            )


def check_no_stream(stream: Any, target: str) -> None:
    """Check that no stream is given to a target that has none.

    Args:
        stream: what the caller gave.
        target: its name, as errors have it.

    Raises:
        LaunchError: one was given.
    """
    if stream is not None:
        raise LaunchError(
            f"stream={shown(stream)} is for GPUs; the {target} target runs before it returns; nearest legal "
            "choice: stream=None"
        )


def check_output(writer: str, name: str, info: ArrayInfo) -> None:
    """Check that an array can be written: each element once, to memory of its own.

    Args:
        writer: who writes it, as errors name it, e.g. ``"kernel gemm"``.
        name: what the writer calls the array.
        info: the array.

    Raises:
        LaunchError: it is read-only, or its elements lie over each other.
    """
    if info.readonly:
        raise LaunchError(f"{writer} writes {name}, which is read-only; pass a writable array")
    if 0 in info.shape:
        return
    reach = 0
    for stride, extent in sorted(zip(map(abs, info.strides), info.shape, strict=True)):
        if extent == 1:
            continue
        if stride <= reach:
            raise LaunchError(
                f"{writer} writes {name}, whose strides {info.strides} lay several of its "
                f"{info.shape} elements over each other; pass a contiguous array"
            )
        reach += stride * (extent - 1)
