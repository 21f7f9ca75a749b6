"""Complex arrays as two real arrays, of real and of imaginary parts, in the same memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from tilewright.dtypes import ALL, DType
from tilewright.errors import DTypeError, LaunchError
from tilewright.functions.function import WITH_PARTS
from tilewright.lang.exact_functions import bitcast
from tilewright.ops.problem import IMAGINARY
from tilewright.runtime.arrays import ArrayInfo, describe, is_same, overlap, sharing
from tilewright.runtime.binding import check_output
from tilewright.runtime.frameworks import Strided
from tilewright.schedule.real_flow import BITS, MOVED


@dataclass(frozen=True)
class Parts:
    """A complex array, seen as two real ones of one shape.

    Args:
        given: the caller's argument: an array of complex numbers, or a pair of real arrays.
        re: the real parts.
        im: the imaginary parts.
        is_conjugate: whether the numbers are the conjugates of those in memory (PyTorch's lazy conjugate).
        is_real: whether the numbers are real; then both parts are the array itself.
    """

    given: Any
    re: Strided
    im: Strided
    is_conjugate: bool = False
    is_real: bool = False

    @property
    def is_planar(self) -> bool:
        """Whether real and imaginary parts are separate arrays."""
        return isinstance(self.given, tuple | list)

    @property
    def dtype(self) -> DType:
        """Dtype of the parts."""
        return self.re.info.dtype

    @property
    def name_of_dtype(self) -> str:
        """Name of the dtype in messages."""
        return f"a pair of {self.dtype}" if self.is_planar else WITH_PARTS[self.dtype.name]

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents."""
        return self.re.info.shape


def parts_of(
    op: str,
    name: str,
    given: Any,
    located: Mapping[str, tuple[Any, Any]] = MappingProxyType({}),
    *,
    may_be_real: bool = False,
) -> Parts:
    """The parts of a caller's array.

    Args:
        op: the operation's name in messages.
        name: the argument.
        given: an array of complex numbers, or a pair ``(re, im)`` of real ones.
        located: the keys and addresses of its parts by their names, if the caller has read them.
        may_be_real: whether the array may have a real dtype, a float.

    Raises:
        LaunchError: no array, or a pair of arrays of unequal shapes.
        DTypeError: real numbers, or a pair of two dtypes.
    """
    if isinstance(given, tuple | list):
        if len(given) != 2:
            raise LaunchError(
                f"{op}: {name} is a tuple of {len(given)} arrays",
                "two arrays, the real and the imaginary parts",
            )
        read = (located.get(name), located.get(name + IMAGINARY))
        labels = (f"{op}, argument {name}[{at}]" for at in range(2))
        found = [describe(one, label, 0, at) for one, label, at in zip(given, labels, read, strict=True)]
        first, second = (Strided(one, info) for one, info in zip(given, found, strict=True))
        kind = first.info.dtype
        if kind != second.info.dtype or kind.components != 1 or not kind.is_float or kind.is_packed:
            raise DTypeError(
                f"{op}: {name} is a pair of {kind} and {second.info.dtype}",
                "two arrays of f64, of f32, of f16 or of bf16",
            )
        if first.info.shape != second.info.shape:
            raise LaunchError(
                f"{op}: the real parts of {name} have shape {first.info.shape}, the imaginary parts "
                f"{second.info.shape}",
                "the same shape for both",
            )
        return Parts(given, first, second)
    lazy = getattr(given, "is_conj", None)
    is_conjugate = bool(lazy()) if callable(lazy) else False
    label = f"{op}, argument {name}"
    info = describe(given.conj(), label) if is_conjugate else describe(given, label, 0, located.get(name))
    element = info.dtype.component
    if may_be_real and info.dtype.is_float and info.dtype.components == 1 and not info.dtype.is_packed:
        return Parts(given, Strided(given, info), Strided(given, info), is_real=True)
    if info.dtype.components != 2:
        raise DTypeError(
            f"{op}: {name} is {info.dtype}, a real dtype",
            f"an array of c32, c64 or c128, or a pair ({name}.real, {name}.imag) of real arrays",
        )
    steps = tuple(2 * step for step in info.strides)
    re = replace(info, strides=steps, dtype=element)
    im = replace(re, pointer=info.pointer + element.bytes if info.pointer else 0)
    return Parts(given, Strided(given, re), Strided(given, im), is_conjugate)


def interleaved(element: DType) -> DType:
    """The complex dtype of a real one.

    Raises:
        DTypeError: the dtype has no complex dtype.
    """
    if element.name not in WITH_PARTS:
        raise DTypeError(
            f"there is no complex dtype with parts of {element}", f"out=(re, im), a pair of {element} arrays"
        )
    return ALL[WITH_PARTS[element.name]]


def named(parts: Mapping[str, Parts]) -> dict[str, Strided]:
    """The real arrays of complex arrays, by name: ``a`` for real parts, ``a_im`` for imaginary parts."""
    found = {}
    for name, one in parts.items():
        found[name] = one.re
        if not one.is_real:
            found[name + IMAGINARY] = one.im
    return found


def check_apart(op: str, parts: Mapping[str, Parts]) -> None:
    """Check that written arrays are writable, and share no memory with arrays that are read or written.

    Raises:
        LaunchError: an array is not writable, or shares memory; the message names it.
    """
    out = parts["out"]
    for at, part in enumerate((out.re, out.im)):
        check_output(op, f"out[{at}]" if out.is_planar else "out", part.info)
    _refuse(op, "out", "out", out.re.info, out.im.info)
    for name, other in parts.items():
        if name == "out":
            continue
        for at, mine in enumerate((out.re.info, out.im.info)):
            for where, theirs in enumerate((other.re.info, other.im.info)):
                if not (name == "c" and at == where and is_same(mine, theirs)):
                    _refuse(op, "out", name, mine, theirs)


def _refuse(op: str, out: str, name: str, mine: ArrayInfo, theirs: ArrayInfo) -> None:
    if overlap(mine, theirs):
        what = f"the real and imaginary parts of {out}" if name == out else f"{out} and {name}"
        why = (
            "one would overwrite the other"
            if name == out
            else f"{name} would be overwritten before it is read"
        )
        raise sharing(f"{op}: {what}", why, out)


# ---------------------------------------------------------------- both parts of a number moved as one
#
# If both parts of a result's numbers are adjacent in memory, one store writes both, and bulk copies store
# whole rows.


def are_paired(re: ArrayInfo, im: ArrayInfo) -> bool:
    """Whether copies can move both parts of a number as one element; see `are_together`.

    Args:
        re: the real parts.
        im: the imaginary parts.
    """
    return re.dtype.name in MOVED and are_together(re, im)


def are_together(re: ArrayInfo, im: ArrayInfo) -> bool:
    """Whether both parts of each number are adjacent in memory, and each pair is aligned to its size.

    Args:
        re: the real parts.
        im: the imaginary parts.
    """
    steps = zip(re.shape, re.strides, im.strides, strict=True)
    are_even = all(one == other and one % 2 == 0 for extent, one, other in steps if extent > 1)
    size = re.dtype.bytes
    return are_even and im.pointer == re.pointer + size and re.pointer % (2 * size) == 0


def as_pairs(re: Strided, dtype: DType | None = None) -> Strided:
    """View both parts as one array of pairs.

    Args:
        re: the real parts; the imaginary parts are their neighbours in memory.
        dtype: dtype of a pair; default: from `MOVED`.
    """
    strides = tuple(step // 2 for step in re.info.strides)
    return Strided(re.array, replace(re.info, strides=strides, dtype=dtype or MOVED[re.info.dtype.name]))


def with_both(re: Strided) -> Strided:
    """View both parts as one array of numbers, with a last dimension of two.

    Args:
        re: the real parts; the imaginary parts are their neighbours in memory.
    """
    info = replace(re.info, shape=(*re.info.shape, 2), strides=(*re.info.strides, 1))
    return Strided(re.array, info)


def paired(re: Any, im: Any, part: DType) -> Any:
    """Round both parts to a dtype, and pack them to one element that copies move."""
    narrow, wide = BITS[part.name]
    low, high = (bitcast(one.to(part), narrow).to(wide) for one in (re, im))
    both = (low & ((1 << part.bits) - 1)) | (high << part.bits)
    return bitcast(both, MOVED[part.name]) if MOVED[part.name] != wide else both


def parted(pair: Any, part: DType) -> tuple[Any, Any]:
    """Unpack both parts from one element that copies move."""
    narrow, wide = BITS[part.name]
    both = bitcast(pair, wide) if MOVED[part.name] != wide else pair
    low, high = both.to(narrow), (both >> part.bits).to(narrow)
    return bitcast(low, part), bitcast(high, part)
