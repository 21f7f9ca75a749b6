"""The caller's arguments as one launch: sizes, grid, lengths of workspaces, and the buffer of arguments."""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tilewright.argument_checks import is_integer, near_integer
from tilewright.dtypes import DType, has_infinity, limits, nearest_held
from tilewright.errors import LaunchError, shown
from tilewright.ir.kernel import (
    Argument,
    Derived,
    Extent,
    Kernel,
    ScalarParam,
    SizeParam,
    Stride,
    passed_params,
)
from tilewright.ir.types import Value
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


# ----------------------------------------------------------------
# The buffer of arguments: C struct alignment, in launch order.


SMALLEST = 2.0**-149
"""The least positive number of f32: smaller ones may be rounded to 0."""

_FLOATS = {64: "d", 32: "f", 16: "H", 8: "B"}  # of those narrower than f32, the bits
_INTEGERS = {64: "q", 32: "i", 16: "h", 8: "b"}


def _code(kind: DType) -> str:
    """How `struct` writes a number of a dtype."""
    if kind.kind == "bool":
        return "?"
    code = (_FLOATS if kind.is_float else _INTEGERS)[kind.bits]
    return code.upper() if kind.kind == "uint" else code


@dataclass(frozen=True)
class NumberSlot:
    """Where one of the author's numbers goes in the buffer.

    Args:
        position: its position among the author's arguments.
        name: its name.
        dtype: its dtype.
        offset: bytes from the start of the buffer.
    """

    position: int
    name: str
    dtype: DType
    offset: int

    def write(self, buffer: Any, arguments: Sequence[Any]) -> None:
        """Write the caller's value, as the dtype stores it.

        Raises:
            LaunchError: it is no number, or one that the dtype does not hold.
        """
        stored = number(self.name, self.dtype, arguments[self.position]).tobytes()
        struct.pack_into(f"{len(stored)}s", buffer, self.offset, stored)


class NumberWriter:
    """Writes one number into one buffer, and not again when the same value comes next."""

    def __init__(self, number: NumberSlot) -> None:
        self._number = number
        self._position = number.position
        self._last: object = None
        code = _code(number.dtype)
        # Packed natively, a number beyond f32 would be infinite and no error.
        self._pack = struct.Struct(f"={code}").pack_into if code in ("f", "d") else None

    def write(self, buffer: Any, arguments: Sequence[Any]) -> None:
        """Write the caller's value, as `NumberSlot.write` does."""
        value = arguments[self._position]
        # Other kinds of numbers may change without becoming another object.
        if value is self._last and type(value) in (int, float):
            return
        if not self._is_packed(buffer, value):
            self._number.write(buffer, arguments)
        self._last = value

    def _is_packed(self, buffer: Any, value: object) -> bool:
        """Whether the value was written the short way, as a float of the kernel's own width is rounded."""
        if self._pack is None or type(value) is not float:
            return False
        try:
            self._pack(buffer, self._number.offset, value)
        except OverflowError:  # which `number` refuses
            return False
        return abs(value) >= SMALLEST or not value or value != value


def number(name: str, dtype: DType, value: Any) -> np.ndarray[Any, np.dtype[Any]]:
    """A caller's number as a dtype holds it: rounded if it is a float, else a whole number in range.

    A number that would be rounded to infinity or to 0 is refused; infinities, zeros and NaN are held.

    Raises:
        LaunchError: the dtype does not hold it; names the argument.

    Example:
        >>> from tilewright.dtypes import i8
        >>> number("shift", i8, 300)
        Traceback (most recent call last):
        tilewright.errors.LaunchError: shift=300 does not fit i8, which holds -128 to 127
    """
    plain = _plain(name, dtype, value)
    if (nearest := nearest_held(dtype, plain)) is not None:
        becomes = "0" if abs(plain) < 1 else "infinite" if has_infinity(dtype) else "NaN"
        raise LaunchError(
            f"{name}={shown(value)} becomes {becomes} in {dtype}; nearest legal choice: {nearest}"
        )
    return np.asarray(plain).astype(dtype.numpy)


def _plain(name: str, dtype: DType, value: Any) -> float | int:
    if dtype.is_float:
        try:
            if hasattr(type(value), "__float__") or hasattr(type(value), "__index__"):
                return float(value)
        except OverflowError:  # of an integer
            most = math.copysign(limits(dtype)[1], 1 if value > 0 else -1)
            text = f"{name}={shown(value)} must be a number, which {dtype} holds"
            raise LaunchError(f"{text}; nearest legal choice: {most}") from None
        except Exception:  # noqa: BLE001 whatever a stranger's __float__ raises
            pass
        raise LaunchError(f"{name}={shown(value)} must be a number, which {dtype} holds")
    try:
        whole = operator.index(value)
    except Exception:  # noqa: BLE001 what a stranger's __index__ raises
        raise LaunchError(f"{name}={shown(value)} must be an integer, to be passed as {dtype}") from None
    low, high = (0, 1) if dtype.kind == "bool" else (np.iinfo(dtype.numpy).min, np.iinfo(dtype.numpy).max)
    if not low <= whole <= high:
        raise LaunchError(f"{name}={whole} does not fit {dtype}, which holds {low} to {high}")
    return whole


@dataclass(frozen=True)
class Packing:
    """A `struct` format with native alignment, and the byte offset of every argument.

    Example:
        >>> Packing(("P", "P", "i", "q")).offsets, Packing(("P", "P", "i", "q")).format
        ((0, 8, 16, 24), '@PPiq')
    """

    codes: tuple[str, ...]

    @cached_property
    def format(self) -> str:
        """The `struct` format string."""
        return "@" + "".join(self.codes)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Byte offset of each argument."""
        found, at = [], 0
        for code in self.codes:
            at = -(-at // struct.calcsize(code)) * struct.calcsize(code)
            found.append(at)
            at += struct.calcsize(code)
        return tuple(found)


def packing(kernel: Kernel) -> Packing:
    """The packing of a kernel's parameters."""
    codes = []
    for param in passed_params(kernel):
        if isinstance(param, SizeParam):
            codes.append("q" if param.bits == 64 else "i")
        elif isinstance(param, ScalarParam):
            codes.append(_code(param.value.dtype))
        else:
            codes.append("P")
    return Packing(tuple(codes))
