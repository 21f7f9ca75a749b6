"""The legality rules of copies and matrix multiplies that hold on every target."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tilewright.errors import Violation
from tilewright.ir.mma import TiledMma
from tilewright.ir.types import FragmentType, Memory, TensorType, Value
from tilewright.layout.distribution import Distribution
from tilewright.layout.nodes import Int

if TYPE_CHECKING:
    from tilewright.ir.ops import Copy, Mma


def _shape(value: Value) -> tuple[Int, ...]:
    assert isinstance(value.type, TensorType | FragmentType)
    return value.type.shape


def verify_copy(op: Copy) -> Iterator[Violation]:
    """The rules of `Copy` that a copy breaks."""
    source, target = _shape(op.source), _shape(op.target)
    if source != target:
        yield op.violation(
            "shape", f"copy from shape {source} to shape {target}", f"a tile of shape {target}"
        )
        return
    maps = {
        v.type.distribution
        for v in (op.source, op.target)
        if isinstance(v.type, TensorType | FragmentType) and v.type.distribution is not None
    }
    if op.distribution is not None:
        maps.add(op.distribution)
    if len(maps) != 1:
        what = (
            "no distribution: which thread moves what?"
            if not maps
            else f"{len(maps)} different distributions"
        )
        yield op.violation("distribution", f"copy {op.source} -> {op.target} has {what}", "threads=...")
        return
    spread = maps.pop()
    if spread.shape != source:
        yield op.violation(
            "distribution", f"distribution of shape {spread.shape} for a tile of shape {source}"
        )
        return
    if not spread.is_exact:
        yield op.violation(
            "threads x slice = tile", f"the distribution does not cover the tile {source} exactly once"
        )
    if op.vector is not None:
        yield from _verify_vector(op, spread, op.vector)


def _verify_vector(op: Copy, spread: Distribution, vector: int) -> Iterator[Violation]:
    dim, run = spread.vector()
    if vector < 1 or vector & (vector - 1):
        yield op.violation("vector width", f"vector {vector} is not a power of two", "vector=1")
        return
    if run % vector:
        nearest = next(w for w in (16, 8, 4, 2, 1) if run % w == 0)
        yield op.violation(
            "vector width",
            f"vector {vector} does not divide the {run} neighbours a thread moves along dimension {dim}",
            f"vector={nearest}",
        )
        return
    widest = widest_vector(op, spread)
    for value in (op.source, op.target):
        if isinstance(value.type, TensorType):
            if obstacle := value.type.view.vector_obstacle(dim, vector):
                yield op.violation(
                    "vector width", f"vector {vector} on {value}: {obstacle}", f"vector={widest}"
                )
            elif value.type.align % (vector * value.dtype.bytes) and vector * value.dtype.bytes <= 16:
                yield op.violation(
                    "alignment",
                    f"vector {vector} of {value.dtype} needs {vector * value.dtype.bytes}-byte alignment, "
                    f"{value.buffer} has {value.type.align}",
                    f"vector={widest}",
                )
            elif vector * value.dtype.bytes > 16:
                yield op.violation(
                    "vector width",
                    f"vector {vector} of {value.dtype} has {vector * value.dtype.bytes} bytes, at most 16",
                    f"vector={widest}",
                )


def widest_vector(op: Copy, spread: Distribution | None = None) -> int:
    """The widest vector that is legal on both sides of a copy, in elements; at most 16 bytes."""
    spread = op.spread if spread is None else spread
    dim, run = spread.vector()
    width = run & -run
    for value in (op.source, op.target):
        limit = 16 // value.dtype.bytes
        if isinstance(value.type, TensorType):
            limit = min(limit, max(value.type.align // value.dtype.bytes, 1))
            limit = value.type.view.vector_width(dim, min(width, limit))
        width = min(width, max(limit, 1))
    return width


def verify_mma(op: Mma) -> Iterator[Violation]:
    """The rules of `Mma` that a matrix multiply breaks."""
    m, n, k = op.mma.tile
    for label, value, rows, dtype in (
        ("A", op.a, m, op.mma.atom.a_dtype),
        ("B", op.b, n, op.mma.atom.b_dtype),
    ):
        shape = _shape(value)
        if value.dtype != dtype:
            yield op.violation(
                "dtype", f"{op.mma.atom} takes {label} of {dtype}, {value} is {value.dtype}", str(dtype)
            )
        if len(shape) != 2 or shape[0] != rows or not isinstance(shape[1], int) or shape[1] % k:
            yield op.violation(
                "mma shape",
                f"{label} = {value} has shape {shape}; warps {op.mma.warps} x repeats {op.mma.repeats} of "
                f"{op.mma.atom} need ({rows}, a multiple of {k})",
                _nearest_mma(op.mma, label, shape),
            )
        elif isinstance(value.type, FragmentType):
            want = op.mma.a(shape[1]) if label == "A" else op.mma.b(shape[1])
            if value.type.distribution != want:
                yield op.violation("distribution", f"fragment {value} is not distributed as operand {label}")
        elif value.tensor.memory is not Memory.SHARED:
            yield op.violation(
                "mma operand", f"{label} = {value} lies in global memory", "copy it to shared memory"
            )
    ka, kb = _shape(op.a)[-1], _shape(op.b)[-1]
    if ka != kb:
        yield op.violation("mma shape", f"A has K = {ka}, B has K = {kb}")
    if not op.c.is_fragment or op.c.fragment.distribution != op.mma.c():
        yield op.violation("distribution", f"{op.c} is not distributed as the accumulator of {op.mma.atom}")
    elif op.c.dtype != op.mma.atom.c_dtype:
        yield op.violation(
            "dtype", f"{op.mma.atom} accumulates in {op.mma.atom.c_dtype}, {op.c} is {op.c.dtype}"
        )


def _nearest_mma(mma: TiledMma, label: str, shape: tuple[Int, ...]) -> str:
    """The repeats, or else the tile, that would make the operand fit."""
    axis = 0 if label == "A" else 1
    unit = mma.atom.shape[axis] * mma.warps[axis]
    rows = shape[0] if shape and isinstance(shape[0], int) else 0
    if rows and rows % unit == 0:
        repeats = list(mma.repeats)
        repeats[axis] = rows // unit
        return f"repeats={tuple(repeats)}"
    return f"a tile of {max(rows // unit, 1) * unit} rows, K a multiple of {mma.atom.shape[2]}"
