"""What `scaled_mm` takes: dtypes and their mixtures, and scales whose shapes say what they belong to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from tilewright import dtypes
from tilewright.arch import Arch
from tilewright.dtypes import DType
from tilewright.dtypes import dtype as dtype_named
from tilewright.errors import DTypeError, LaunchError
from tilewright.ops.planning import Wanted
from tilewright.runtime.arrays import ArrayInfo
from tilewright.targets.atoms import wgmma
from tilewright.targets.target import Target

SCALES = ("scale_a", "scale_b")
WIDE = (dtypes.f32, dtypes.f16, dtypes.bf16)
NARROW = (dtypes.f8e4m3, dtypes.f8e5m2, dtypes.i8)
FP8 = (dtypes.f8e4m3, dtypes.f8e5m2)
OPERANDS = (*WIDE, *NARROW)
"""Dtypes of operands, and of results; scales and biases are wide."""


NARROWEST = 8
"""Columns of an atom, of which those of one dtype have the same feature."""


def multiplied_as(a: DType, b: DType) -> DType:
    """The dtype in which two operands are multiplied: one that holds the numbers of both.

    Args:
        a: dtype of the operand on the left.
        b: dtype of that on the right.

    Raises:
        DTypeError: one that is not multiplied, or f16 with bf16, or with f32.

    Example:
        >>> from tilewright.dtypes import bf16, f8e4m3, f8e5m2, i8
        >>> multiplied_as(bf16, i8), multiplied_as(f8e4m3, f8e5m2), multiplied_as(i8, i8)
        (bf16, f16, i8)
    """
    for dtype in (a, b):
        if dtype not in OPERANDS:
            raise DTypeError(f"scaled_mm of {dtype}; nearest: {', '.join(map(str, OPERANDS))}")
    if a == b:
        return a
    wide = [dtype for dtype in (a, b) if dtype in WIDE]
    if len(wide) > 1:
        raise DTypeError(f"scaled_mm of {a} and {b}: convert one of them first")
    return wide[0] if wide else dtypes.f16


def multiplied_on(a: ArrayInfo, b: ArrayInfo, target: Target, arch: Arch) -> DType:
    """The dtype in which two operands are multiplied on a machine.

    It is that of `multiplied_as`; but two of the same fp8 are widened to f16, exactly, where a GPU would add
    up their products with 13 bits or without tensor cores: on all but Hopper, and there if one is not
    contiguous along K.

    Args:
        a: the operand on the left.
        b: that on the right.
        target: the machine's.
        arch: its architecture.
    """
    found = multiplied_as(a.dtype, b.dtype)
    if found not in FP8 or not target.warps:
        return found
    along_k = a.strides[-1] == 1 and b.strides[-2 if len(b.shape) > 1 else -1] == 1
    return found if along_k and wgmma(found, NARROWEST).feature in arch.features else dtypes.f16


def natural_dtype(multiplied: DType) -> DType:
    """The dtype of a result of which none is asked for.

    Args:
        multiplied: the dtype in which operands are multiplied.
    """
    if multiplied == dtypes.i8:
        return dtypes.f32
    return dtypes.f16 if multiplied.bits == 8 else multiplied


def scaled_dtype(infos: Mapping[str, ArrayInfo], wanted: Wanted) -> DType:
    """The dtype of the result.

    Args:
        infos: the arrays, by the names of the arguments.
        wanted: what is asked for.

    Raises:
        DTypeError: a dtype that an array of its name cannot have.
    """
    multiplied = multiplied_as(infos["a"].dtype, infos["b"].dtype)
    for name in (*SCALES, "bias"):
        if name in infos and infos[name].dtype not in WIDE:
            near = ", ".join(map(str, WIDE))
            raise DTypeError(f"scaled_mm: {name} is {infos[name].dtype}; nearest legal choice: {near}")
    asked = None if wanted.out_dtype is None else dtype_named(wanted.out_dtype)
    made = asked or natural_dtype(multiplied)
    if "out" in infos:
        made = infos["out"].dtype
        if asked is not None and made != asked:
            raise DTypeError(f"out is {made}, and out_dtype={asked}; nearest legal choice: one of them alone")
    if made not in OPERANDS:
        what = "out" if "out" in infos else "out_dtype"
        raise DTypeError(f"scaled_mm: {what} is {made}; nearest: {', '.join(map(str, OPERANDS))}")
    return made


def broadcast_scales(infos: Mapping[str, ArrayInfo]) -> dict[str, ArrayInfo]:
    """The arrays with scales that are broadcast to the result.

    Args:
        infos: the arrays, by the names of the arguments.

    Raises:
        LaunchError: a scale whose shape does not say what it scales.
    """
    found = dict(infos)
    a, b = infos["a"].shape, infos["b"].shape
    own = {"scale_a": a[:-1], "scale_b": (*b[:-2], b[-1]) if len(b) > 1 else ()}
    # Where K was, the result has the dimension of the other operand, unless that is a vector.
    places = {"scale_a": len(a) - 1, "scale_b": len(b) - 2}
    others = {"scale_a": len(b), "scale_b": len(a)}
    for name in SCALES:
        if name in infos:
            found[name] = _broadcast(name, infos[name], own[name], places[name], others[name] > 1)
    return found


def _broadcast(name: str, info: ArrayInfo, own: tuple[int, ...], place: int, whole: bool) -> ArrayInfo:
    """A scale with the dimensions that it has in the result.

    Args:
        name: of the scale.
        info: what it is.
        own: the shape of its operand without K.
        place: of K among the dimensions of its operand.
        whole: whether the result has the dimension of the other operand there.
    """
    if prod(info.shape) == 1:
        return replace(info, shape=(), strides=())
    shape, strides = list(info.shape), list(info.strides)
    if len(shape) == len(own) + 1 and shape[place] == 1:
        del shape[place], strides[place]
    fits = len(shape) == len(own) and all(n in (1, extent) for n, extent in zip(shape, own, strict=True))
    if not fits or not own:
        each = f", or one for each {'row of a' if name == SCALES[0] else 'column of b'}, of shape {own} or "
        near = "a number" + (each + str((*own[:place], 1, *own[place:])) if own else "")
        raise LaunchError(f"scaled_mm: {name} has shape {info.shape}; nearest legal choice: {near}")
    if whole:
        shape.insert(place, 1)
        strides.insert(place, 0)
    return replace(info, shape=tuple(shape), strides=tuple(strides))
