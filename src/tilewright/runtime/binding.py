"""Binding a kernel to the caller's arguments: classes of arrays, sizes, grid, workspaces, and numbers."""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright.argument_checks import is_integer, near_integer
from tilewright.dtypes import DType, has_infinity, limits, nearest_held
from tilewright.errors import DTypeError, LaunchError, shown
from tilewright.ir.kernel import Argument, Derived, Extent, Kernel, ScalarParam, SizeParam, Stride
from tilewright.ir.types import Value
from tilewright.lang.program import Program
from tilewright.lang.specs import TensorSpec
from tilewright.runtime.arrays import ArrayInfo, described
from tilewright.runtime.frameworks import NOWHERE, Device, Strided
from tilewright.runtime.specimens import check_count
from tilewright.symbolic.nodes import Sym
from tilewright.symbolic.rebuilding import evaluate
from tilewright.targets.target import HOST

MOST_ELEMENTS = 2**31 - 1
"""Limit for the elements of one workspace."""


# ----------------------------------------------------------------
# The class of an array: what a kernel is traced for.

MAX_EXTENT = 2**31 - 1

_EXTENT_DIVISOR = 256
_STRIDE_DIVISOR = 16
_ALIGN_BYTES = 16

KINDS = ("float", "int", "uint", "bool")
"""Kinds of dtypes that kernels compute with."""


def spec_of(info: ArrayInfo, name: str = "array") -> TensorSpec:
    """Return the class of an array.

    Args:
        info: the array.
        name: what messages call it.

    Raises:
        LaunchError: an extent is 2**31 or more.
        DTypeError: no kernel computes with its dtype.

    Example:
        >>> import numpy as np
        >>> from tilewright.runtime.arrays import describe
        >>> spec_of(describe(np.empty((130, 96), np.float16))).stride_divisors
        (16, 1)
    """
    for dim, extent in enumerate(info.shape):
        if extent > MAX_EXTENT:
            raise LaunchError(f"{name}: extent {extent} of dimension {dim} must be at most {MAX_EXTENT}")
    if info.dtype.kind not in KINDS:
        text = f"{name} is {info.dtype}, a dtype that kernels do not support"
        raise DTypeError(text, f"its bytes, {name}.view(np.uint8)")
    empty = 0 in info.shape
    # The contiguous dimension: the last of stride 1 and extent above 1, else the last of stride 1. The
    # strides of an empty array mean nothing, unless elements share bytes; it counts as row-major.
    units = [dim for dim, stride in enumerate(info.strides) if stride == 1]
    likely = [dim for dim in units if info.shape[dim] > 1] or units
    unit = likely[-1] if likely else None
    if empty and (unit is None or not info.dtype.is_packed):
        unit = len(info.shape) - 1
    # The largest number in the addresses of an array: an offset, or a stride, also along an extent of 1.
    steps = [abs(stride) for stride in info.strides]
    pairs, parts = zip(info.shape, steps, strict=True), info.dtype.components
    farthest = max((0 if empty else sum((extent - 1) * step for extent, step in pairs), *steps))
    farthest = farthest * parts + parts - 1  # a kernel may have complex numbers as parts
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
        wide=farthest > MAX_EXTENT,
        signed=not empty and min(info.strides, default=0) < 0,
    )


def specs_of(program: Program, arguments: Sequence[Any]) -> dict[str, TensorSpec]:
    """Return the classes of the arrays among a kernel's arguments, by parameter.

    Raises:
        LaunchError: too many or too few arguments, or an argument that is no array.
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
    """Return the extents of the arrays among the arguments; a `TensorSpec` has none."""
    found = arrays_of(program, arguments, classes=True)
    return {name: info.shape for name, info in found.items()}


def arrays_of(program: Program, arguments: Sequence[Any], *, classes: bool = False) -> dict[str, ArrayInfo]:
    """Return the metadata of the arrays among a kernel's arguments, by parameter.

    Args:
        program: the kernel.
        arguments: the arguments in the order of its parameters.
        classes: whether to accept and skip a `TensorSpec`; a launch needs arrays.

    Raises:
        LaunchError: too many or too few arguments, or an argument that is no array.
    """
    check_count(program, arguments)
    return {
        p.name: argument.info if type(argument) is Strided else described(program.name, p.name, argument)
        for p, argument in zip(program.parameters, arguments, strict=True)
        if p.kind == "tensor" and not (classes and isinstance(argument, TensorSpec))
    }


# ----------------------------------------------------------------
# The integers of a launch.


@dataclass(frozen=True)
class Binding:
    """The integers of one launch.

    Args:
        sizes: value of every size parameter, by name.
        grid: blocks along each axis, x first; never empty.
        workspaces: elements of each workspace, by name.
        layouts: extents and strides of each array, by parameter.
        device: where the arrays lie.
    """

    sizes: Mapping[str, int]
    grid: tuple[int, ...]
    workspaces: Mapping[str, int]
    layouts: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]
    device: Device

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return math.prod(self.grid)


def passed(kernel: Kernel, arrays: Mapping[str, ArrayInfo]) -> dict[str, ArrayInfo]:
    """Return the arrays with the dtypes and dimensions of a kernel's parameters; see `real_array`.

    Args:
        kernel: the traced kernel.
        arrays: the caller's arrays by parameter name.
    """
    held = {one.name: one.tensor for one in kernel.tensors}
    return {
        name: real_array(info, held[name].dtype, len(held[name].shape)) if name in held else info
        for name, info in arrays.items()
    }


def real_array(info: ArrayInfo, dtype: DType, rank: int) -> ArrayInfo:
    """Return an array of complex numbers as the real array that is the kernel's parameter; others stay.

    Args:
        info: the caller's array.
        dtype: the dtype of the kernel's array.
        rank: its number of dimensions: with one more than the caller's array, the last has both parts.
    """
    if info.dtype.components == 1 or info.dtype == dtype:
        return info
    if rank == len(info.shape):
        return replace(info, dtype=dtype)
    parts = info.dtype.components
    steps = (*(parts * step for step in info.strides), 1)
    return replace(info, dtype=dtype, shape=(*info.shape, parts), strides=steps)


def bind(kernel: Kernel, arrays: Mapping[str, ArrayInfo], indices: Mapping[str, int]) -> Binding:
    """Compute the integers of one launch.

    Args:
        kernel: the traced kernel.
        arrays: the caller's arrays by parameter name.
        indices: the caller's integer arguments by parameter name.

    Raises:
        LaunchError: extents disagree, an integer does not fit, or a guard fails.
    """
    arrays = passed(kernel, arrays)
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
    for member in kernel.cluster:
        if grid[member.axis] % member.extent:
            raise LaunchError(
                f"kernel {kernel.name}: {grid[member.axis]} blocks along axis {member.axis} are no multiple "
                f"of the cluster's {member.extent}"
            )
    lengths = {space.value.name: int(evaluate(space.elems, env)) for space in kernel.workspaces}
    for name, length in lengths.items():
        if length > MOST_ELEMENTS:
            text = f"kernel {kernel.name}: {length} elements of memory for {name}, whose indices have 32 bits"
            raise LaunchError(text, f"{MOST_ELEMENTS}, by fewer blocks or fewer parts")
    sizes = {param.sym.name: env[param.sym] for param in kernel.sizes}
    layouts = {name: (info.shape, info.strides) for name, info in arrays.items()}
    devices = (info.device for info in arrays.values() if info.device != NOWHERE)
    return Binding(sizes, grid, lengths, layouts, next(devices, HOST))


def _extents(kernel: Kernel, arrays: Mapping[str, ArrayInfo]) -> dict[Sym, int]:
    """Return the value of each dimension; arrays that share its name must agree."""
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
    """Return advice to pass the transpose of a matrix; empty if the transpose would not fit."""
    dims = param.tensor.shape
    if len(dims) != 2 or not all(
        isinstance(dim, Sym) and others.get(dim, extent) == extent
        for dim, extent in zip(dims, reversed(array.shape), strict=True)
    ):
        return ""
    return f"; {param.name} is ({dims[0]}, {dims[1]}); nearest: {param.name}.T"


def integer(kernel: str, name: str, value: Any) -> int:
    """Convert a caller's integer to a Python int.

    Args:
        kernel: the kernel's name.
        name: the parameter's name.
        value: the caller's value.

    Raises:
        LaunchError: it is no integer, or does not fit 32 bits.

    Example:
        >>> integer("k", "steps", 2.5)
        Traceback (most recent call last):
        tilewright.errors.LaunchError: kernel k: steps=2.5 must be an integer; nearest: 2
    """
    try:
        number = operator.index(value) if is_integer(value) or isinstance(value, int) else None
    except Exception:  # noqa: BLE001 a user's `__index__` may raise anything
        number = None
    if number is None or isinstance(value, bool):
        whole = None if isinstance(value, bool) else near_integer(value)
        nearest = "" if whole is None else f"; nearest: {min(max(whole, -(2**31)), 2**31 - 1)}"
        raise LaunchError(f"kernel {kernel}: {name}={shown(value)} must be an integer{nearest}")
    if not -(2**31) <= number < 2**31:
        nearest = f"nearest: {min(max(number, -(2**31)), 2**31 - 1)}"
        raise LaunchError(f"kernel {kernel}: {name}={shown(value)} does not fit 32 bits; {nearest}")
    return number


def check_no_stream(stream: Any, target: str) -> None:
    """Check that no stream is given to a target without streams.

    Args:
        stream: the caller's value.
        target: the target's name.

    Raises:
        LaunchError: a stream was given.
    """
    if stream is not None:
        raise LaunchError(
            f"stream={shown(stream)} is for GPUs; the {target} target runs before it returns", "stream=None"
        )


def check_output(writer: str, name: str, info: ArrayInfo) -> None:
    """Check that an array can be written: it is writable, and no two elements share memory.

    Args:
        writer: what messages call the writer, e.g. ``"kernel gemm"``.
        name: the writer's name for the array.
        info: the array.

    Raises:
        LaunchError: it is read-only, or its elements share memory.
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
                f"{writer} writes {name}, whose strides {info.strides} give several of its {info.shape} "
                "elements the same address; pass a contiguous array"
            )
        reach += stride * (extent - 1)


# ----------------------------------------------------------------
# The buffer of arguments: C struct alignment, in launch order.


SMALLEST = 2.0**-149
"""The least positive number of f32; smaller ones may be rounded to 0."""

_FLOATS = {64: "d", 32: "f", 16: "H", 8: "B"}  # narrower than f32: the bits
_INTEGERS = {64: "q", 32: "i", 16: "h", 8: "b"}


def _code(kind: DType) -> str:
    """Return the `struct` code of a dtype."""
    if kind.kind == "bool":
        return "?"
    code = (_FLOATS if kind.is_float else _INTEGERS)[kind.bits]
    return code.upper() if kind.kind == "uint" else code


@dataclass(frozen=True)
class NumberSlot:
    """The place of one of the author's numbers in the argument buffer.

    Args:
        position: position among the author's arguments.
        name: the parameter's name.
        dtype: the parameter's dtype.
        offset: offset in the buffer, in bytes.
    """

    position: int
    name: str
    dtype: DType
    offset: int

    def write(self, buffer: Any, arguments: Sequence[Any]) -> None:
        """Write the caller's value in the dtype.

        Raises:
            LaunchError: it is no number, or the dtype does not hold it.
        """
        stored = number(self.name, self.dtype, arguments[self.position]).tobytes()
        struct.pack_into(f"{len(stored)}s", buffer, self.offset, stored)


class NumberWriter:
    """Writes one number into one buffer, and skips a repeated value."""

    def __init__(self, number: NumberSlot) -> None:
        self._number = number
        self._position = number.position
        self._last: object = None
        code = _code(number.dtype)
        # Native packing would turn a number beyond f32 into infinity without an error.
        self._write_float = struct.Struct(f"={code}").pack_into if code in ("f", "d") else None

    def write(self, buffer: Any, arguments: Sequence[Any]) -> None:
        """Write the caller's value, as `NumberSlot.write` does."""
        value = arguments[self._position]
        # Objects of other types may change their value.
        if value is self._last and type(value) in (int, float):
            return
        if self._write_float is not None and type(value) is float:
            try:
                self._write_float(buffer, self._number.offset, value)
                if abs(value) >= SMALLEST or not value or value != value:
                    self._last = value
                    return
            except OverflowError:  # `NumberSlot.write` refuses it
                pass
        self._number.write(buffer, arguments)
        self._last = value


def number(name: str, dtype: DType, value: Any) -> np.ndarray[Any, np.dtype[Any]]:
    """Convert a caller's number to a dtype: a float is rounded, an integer must be in range.

    A number that would be rounded to infinity or to 0 is refused; infinities, zeros and NaN are kept.

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
        raise LaunchError(f"{name}={shown(value)} becomes {becomes} in {dtype}", nearest)
    return np.asarray(plain).astype(dtype.numpy)


def _plain(name: str, dtype: DType, value: Any) -> float | int:
    if dtype.is_float:
        try:
            if hasattr(type(value), "__float__") or hasattr(type(value), "__index__"):
                return float(value)
        except OverflowError:  # an integer beyond f64
            most = math.copysign(limits(dtype)[1], 1 if value > 0 else -1)
            text = f"{name}={shown(value)} must be a number that {dtype} can hold"
            raise LaunchError(text, most) from None
        except Exception:  # noqa: BLE001 a user's `__float__` may raise anything
            pass
        raise LaunchError(f"{name}={shown(value)} must be a number that {dtype} can hold")
    try:
        whole = operator.index(value)
    except Exception:  # noqa: BLE001 a user's `__index__` may raise anything
        raise LaunchError(f"{name}={shown(value)} must be an integer, to be passed as {dtype}") from None
    low, high = (0, 1) if dtype.kind == "bool" else (np.iinfo(dtype.numpy).min, np.iinfo(dtype.numpy).max)
    if not low <= whole <= high:
        raise LaunchError(f"{name}={whole} does not fit {dtype}, which holds {low} to {high}")
    return whole


def argument_codes(kernel: Kernel) -> tuple[str, ...]:
    """Return the `struct` code of each parameter that a launch passes."""
    return tuple(
        ("q" if param.bits == 64 else "i")
        if isinstance(param, SizeParam)
        else _code(param.value.dtype)
        if isinstance(param, ScalarParam)
        else "P"
        for param in kernel.passed
    )
