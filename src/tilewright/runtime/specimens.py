"""Specimens: descriptions of arrays without memory, for compiling, tracing and checking kernels."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from tilewright.argument_checks import legal
from tilewright.calls import launches
from tilewright.dtypes import DType, dtype
from tilewright.errors import LaunchError, shown
from tilewright.lang.program import Program
from tilewright.packing import packed_dim
from tilewright.runtime.frameworks import NOWHERE, ArrayInfo
from tilewright.runtime.packed_arrays import Packed, in_bytes, packed

Order: TypeAlias = Literal["C", "F"]
legal(
    "Order",
    "'C', the last dimension fastest, or 'F', the first",
    "orders",
    lambda value: isinstance(value, str) and value in get_args(Order),
)


@launches
@dataclass(frozen=True)
class Specimen:
    """Dtype, shape, strides and alignment of an array that need not exist; made by `like`.

    Args:
        dtype: the element type.
        shape: extents.
        strides: strides in elements.
        align: bytes that divide the address of the first element.
    """

    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    align: int

    @property
    def info(self) -> ArrayInfo:
        """The metadata of the described array."""
        return ArrayInfo(self.align, self.shape, self.strides, self.dtype, NOWHERE, False, None)

    @launches
    def filled(self, rng: np.random.Generator) -> np.ndarray[Any, np.dtype[Any]] | Packed:
        """Make such an array in host memory, with random whole numbers that every dtype holds."""
        if self.dtype.is_packed:
            seen = in_bytes(self.info)
            held = replace(self, dtype=seen.dtype, shape=seen.shape, strides=seen.strides)
            return packed(held.filled(rng), self.dtype, packed_dim(self.strides, self.shape))
        low, high = (0, 2) if self.dtype.kind == "bool" else (0 if self.dtype.kind == "uint" else -4, 5)
        size = self.dtype.bytes
        span = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)) + 1
        memory = np.zeros((0 if 0 in self.shape else span) * size + 32, np.uint8)
        start = -memory.ctypes.data % 16 + self.align % 16
        steps = tuple(stride * size for stride in self.strides)
        made: np.ndarray[Any, np.dtype[Any]] = np.ndarray(
            self.shape, self.dtype.numpy, memory, start, None if 0 in self.shape else steps
        )
        made[...] = rng.integers(low, high, self.shape).astype(self.dtype.numpy)
        return made

    def __repr__(self) -> str:
        extents = "x".join(map(str, self.shape))
        return f"<like {self.dtype}[{extents}], strides {self.strides}, align {self.align}>"


@launches
def like(
    element: Any, *shape: Any, strides: Sequence[int] | None = None, order: Order = "C", align: int = 16
) -> Specimen:
    """Describe an array by dtype and shape, for `compile`, `trace` and `check`; allocates no memory.

    A kernel is compiled for a class of arrays: dtype, contiguous dimension, divisors of extents and strides,
    alignment.  A specimen has the class of an array with its dtype, extents and strides.

    Args:
        element: the dtype: its name, or anything that `tw.dtype` accepts.
        shape: extents, one by one or as a tuple.
        strides: strides in elements; default: the array has no gaps.
        order: order of dimensions without ``strides``: ``"C"``, the last dimension fastest, or ``"F"``, the
            first.
        align: bytes that divide the address of the first element; allocations have 16 or more.

    Returns:
        A `Specimen`.

    Raises:
        LaunchError: extents, strides or alignment that no array has; packed elements that fill no bytes.
        DTypeError: no such dtype.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> tw.like("f16", 4096, 96)
        <like f16[4096x96], strides (96, 1), align 16>
        >>> tw.like(tw.f32, (8, 16), order="F").strides
        (1, 8)
        >>> tw.like("i8", 8, 16, strides=(20, 1), align=4)
        <like i8[8x16], strides (20, 1), align 4>
        >>> @tw.kernel(X="M N", Y="N M")
        ... def transpose(X, Y):
        ...     m, n = tw.block_index(tw.ceil_div(X.shape, (32, 32)))
        ...     tw.copy(X.tile((32, 32), (m, n)).permute(1, 0), Y.tile((32, 32), (n, m)), threads=(8, 32))
        >>> x, y = tw.like("f16", 4096, 96), tw.like("f16", 96, 4096)
        >>> made = transpose.compile(X=x, Y=y, target="reference")
        >>> made, "copy" in made.source
        (<transpose for reference numpy>, True)
        >>> x, y = np.random.default_rng(0).random((40, 96), np.float32), np.empty((96, 40), np.float32)
        >>> _ = transpose(x, y, target="reference")
        >>> bool((y == x.T).all())
        True
    """
    if hasattr(element, "__array__") and not isinstance(element, type):
        raise LaunchError(f"like({shown(element)}, …): pass a dtype such as 'f16' or tw.f16, then extents")
    kind = dtype(element)
    given = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
    extents = _counts("extent", given)
    if strides is None:
        inner = [extents[dim + 1 :] if order == "C" else extents[:dim] for dim in range(len(extents))]
        steps = tuple(map(math.prod, inner))
    else:
        steps = _counts("stride", strides)
    if len(steps) != len(extents):
        raise LaunchError(
            f"{len(steps)} strides {steps} for {len(extents)} extents {extents}; each extent needs one stride"
        )
    least = kind.component.bytes
    (bytes_,) = _counts("alignment", (align,))
    if bytes_ < least or bytes_ % least:
        text = f"align={align!r}: an address of {kind} is a multiple of its {least} bytes"
        raise LaunchError(text, max(bytes_ // least, 1) * least)
    if kind.is_packed and 0 not in extents:
        each, dim = kind.per_byte, packed_dim(steps, extents)
        if dim is None:
            rule = "numbers that share a byte must lie along a dimension of stride 1"
            text = f"strides {steps} of {kind}: {rule}"
            raise LaunchError(text, "strides=None, and order='C' or 'F'")
        if rest := extents[dim] % each:
            text = f"extent {extents[dim]} of dimension {dim} for {kind}, where {each} numbers share a byte"
            raise LaunchError(text, extents[dim] - rest + each)
        for step in (step for step in steps if step != 1 and step % each):
            nearest = step + each - step % each
            raise LaunchError(f"stride {step} of {kind} would begin within a byte", nearest)
    return Specimen(kind, extents, steps, bytes_)


def _counts(what: str, given: Any) -> tuple[int, ...]:
    try:
        found = tuple(map(operator.index, given))
    except TypeError:
        raise LaunchError(
            f"{what}s {shown(given)} are not whole numbers; e.g. tw.like('f16', 512, 512)"
        ) from None
    for number in found:
        if not 0 <= number < 2**63:
            raise LaunchError(f"{what} {number} is out of range", "0 to 2**63 - 1")
    return found


def check_count(program: Program, given: Sequence[Any]) -> None:
    """Check the number of a kernel's arguments.

    Raises:
        LaunchError: too many or too few; names the parameters.
    """
    names = [parameter.name for parameter in program.parameters]
    if len(given) != len(names):
        least = sum(parameter.default is None for parameter in program.parameters)
        count = str(len(names)) if least == len(names) else f"{least} to {len(names)}"
        raise LaunchError(
            f"kernel {program.name} takes {count} arguments ({', '.join(names)}), {len(given)} given"
        )


def in_order(
    program: Program, given: Sequence[Any], named: Mapping[str, Any], *, numbers: bool = False
) -> Sequence[Any]:
    """Return the arguments of a kernel in the order of its parameters.

    Args:
        program: the kernel.
        given: arguments by position.
        named: arguments by name.
        numbers: whether numbers are required; otherwise a missing number without a default is None.

    Raises:
        LaunchError: an argument is given twice, unknown, or missing.
    """
    if not named and len(given) >= len(program.parameters):
        return given
    names = [parameter.name for parameter in program.parameters]
    known: dict[str, Any] = dict(zip(names, given, strict=False))
    if not named:
        rest = program.parameters[len(given) :]
        return given if any(p.default is None for p in rest) else (*given, *(p.default for p in rest))
    twice = [name for name in named if name in known]
    unknown = [name for name in named if name not in names]
    if twice or unknown or len(given) > len(names):
        wrong = "given twice" if twice else "not among its parameters"
        which = ", ".join(twice or unknown) or f"{len(given)} arguments by position"
        raise LaunchError(f"kernel {program.name}: {which} {wrong}; its parameters are {', '.join(names)}")
    known |= named
    known = {p.name: p.default for p in program.parameters if p.default is not None} | known
    wanted = [p.name for p in program.parameters if numbers or p.kind == "tensor"]
    if missing := [name for name in wanted if name not in known]:
        example = "" if numbers else f"; e.g. {missing[0]}=tw.like('f16', 512, 512)"
        raise LaunchError(f"kernel {program.name}: missing arguments {', '.join(missing)}{example}")
    return tuple(known.get(name) for name in names)


def with_arrays(arguments: Sequence[Any]) -> Sequence[Any]:
    """Return the arguments with an array of random numbers for each specimen."""
    rng = np.random.default_rng(0)
    return tuple(a.filled(rng) if isinstance(a, Specimen) else a for a in arguments)
