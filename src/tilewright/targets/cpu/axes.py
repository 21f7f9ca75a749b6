"""Which coordinates of a tensor are rows and depth of a multiply's operand that is a view of it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from tilewright.ir.ops import Op, Reshape, Shared
from tilewright.ir.types import Value
from tilewright.symbolic.expr import add, floordiv, mod, mul
from tilewright.symbolic.nodes import Int, Sym
from tilewright.views.transforms import Merge, Permute, Slice, Tile, Transform, Unmerge


@dataclass(frozen=True)
class Coordinate:
    """A coordinate of a view over the whole buffer: its value in the buffer's coordinates, and its extent."""

    value: Int
    extent: int


@dataclass(frozen=True)
class OperandAxes:
    """The coordinates of a buffer, sorted by what they are for a multiply.

    Args:
        lead: those that choose one of several operands, such as a stage.
        row: row of A or column of B.
        depth: along K.
    """

    lead: tuple[Coordinate, ...]
    row: Coordinate
    depth: Coordinate

    def row_dimension(self, shared: Shared) -> int | None:
        """The buffer's dimension that alone is the row, counted from the end; None if there is no such."""
        coords = shared.view.coords
        found = self.row.value
        return coords.index(found) - len(coords) if isinstance(found, Sym) and found in coords else None


def operand_axes(shared: Shared, operand: Value, using: Iterable[Op]) -> OperandAxes | None:
    """Follow the views from a shared tensor to an operand.

    A box of a dimension counts as the dimension: the operands that a tensor holds side by side lie as one.

    Args:
        shared: defines the tensor.
        operand: a view of it, of rank 2.
        using: the operations that name it, with all of its views.

    Returns:
        None where a view does more than sort, split, join and choose coordinates.
    """
    chain: list[Transform] = []
    made = {op.result: op for op in using if isinstance(op, Reshape)}
    while operand is not shared.result:
        chain.append(made[operand].transform)
        operand = made[operand].source
    axes: list[Coordinate] = []
    for coord, extent in zip(shared.view.coords, shared.view.shape, strict=True):
        if not isinstance(extent, int):
            return None
        axes.append(Coordinate(coord, extent))
    lead: list[Coordinate] = []
    for transform in reversed(chain):
        followed = _follow(transform, axes, lead)
        if followed is None:
            return None
        axes = followed
    return OperandAxes(tuple(lead), axes[0], axes[1]) if len(axes) == 2 else None


def _follow(transform: Transform, axes: list[Coordinate], lead: list[Coordinate]) -> list[Coordinate] | None:
    """The axes after one more view; what it drops goes to ``lead``."""
    match transform:
        case Permute():
            return [axes[dim] for dim in transform.order]
        case Merge():
            end = transform.dim + transform.count
            return [*axes[: transform.dim], _joined(axes[transform.dim : end]), *axes[end:]]
        case Unmerge():
            parts = _split(axes[transform.dim], transform.lengths)
            return None if parts is None else [*axes[: transform.dim], *parts, *axes[transform.dim + 1 :]]
        case Slice():
            kept = [part is None or isinstance(part, tuple) for part in transform.at]
            lead += [axis for axis, keep in zip(axes, kept, strict=True) if not keep]
            return [axis for axis, keep in zip(axes, kept, strict=True) if keep]
        case Tile():
            return axes
        case _:
            return None


def _joined(axes: list[Coordinate]) -> Coordinate:
    whole = axes[0]
    for axis in axes[1:]:
        whole = Coordinate(add(mul(whole.value, axis.extent), axis.value), whole.extent * axis.extent)
    return whole


def _split(axis: Coordinate, lengths: tuple[Int, ...]) -> list[Coordinate] | None:
    parts: list[Coordinate] = []
    rest = axis.value
    for length in reversed(lengths[1:]):
        if not isinstance(length, int):
            return None
        parts.append(Coordinate(mod(rest, length), length))
        rest = floordiv(rest, length)
    inner = math.prod(part.extent for part in parts)
    return None if axis.extent % inner else [Coordinate(rest, axis.extent // inner), *reversed(parts)]
