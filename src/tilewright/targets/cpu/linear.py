"""Offsets as linear functions: strides, panels, and the coordinates to split so that they become linear."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tilewright.ir.ops import Op
from tilewright.ir.types import Value
from tilewright.symbolic.expr import add, expand, mul
from tilewright.symbolic.nodes import TRUE, Cond, FloorDiv, Int, Mod, Sym
from tilewright.symbolic.rebuilding import evaluate, parts, slope, substitute, symbols
from tilewright.views.questions import strides
from tilewright.views.view import View, coordinates

_LARGE = 4096
"""Assumed value of a stride that is known only at run time."""


def size(step: Int) -> int:
    """Return the magnitude of a stride for comparisons."""
    return abs(int(evaluate(step, dict.fromkeys(symbols(step), _LARGE))))


def slowest_first(view: View) -> tuple[int, ...] | None:
    """Return the dimensions of a view by descending stride; None if a stride varies, or is 0.

    Example:
        >>> slowest_first(View.strided((4, 64, 8), (8, 32, 1)))
        (1, 0, 2)
    """
    sizes = [size(step) for step in strides(view) or ()]
    if 0 in sizes or len(sizes) < view.rank:
        return None
    return tuple(sorted(range(view.rank), key=lambda dim: -sizes[dim]))


def linear(view: View) -> tuple[int, tuple[int, ...]] | None:
    """Return the first offset of a view and its step along each dimension; None if they are not constants.

    Example:
        >>> linear(View.strided((4, 8), (16, 1)))
        (0, (16, 1))
    """
    offset = expand(view.offset)
    first = substitute(offset, dict.fromkeys(view.coords, 0))
    steps = tuple(step for coord in view.coords if isinstance(step := slope(offset, coord), int))
    return (first, steps) if isinstance(first, int) and len(steps) == view.rank else None


def split_points(
    values: Iterable[Int | Cond], coords: tuple[Sym, ...], extents: tuple[int, ...]
) -> dict[Sym, list[int]]:
    """Return the constants by which each coordinate is divided, ascending.

    Only constants that divide the next one, and finally the extent, are kept.  A coordinate that is split
    there leaves neither quotient nor remainder.
    """
    found: dict[Sym, set[int]] = {coord: set() for coord in coords}
    for value in values:
        for node in parts(value):
            if isinstance(node, FloorDiv | Mod) and isinstance(node.right, int):
                coord, scale = _divided(node.left)
                if coord in found:
                    found[coord].add(scale * node.right)
    kept: dict[Sym, list[int]] = {coord: [] for coord in coords}
    for coord, extent in zip(coords, extents, strict=True):
        for point in sorted(found[coord]):
            before = kept[coord][-1] if kept[coord] else 1
            if 1 < point < extent and extent % point == point % before == 0:
                kept[coord].append(point)
    return kept


def _divided(left: Int) -> tuple[Sym | None, int]:
    """Return the coordinate and the constant of ``coordinate`` or ``coordinate // constant``."""
    if isinstance(left, FloorDiv) and isinstance(left.left, Sym) and isinstance(left.right, int):
        return left.left, left.right
    return (left, 1) if isinstance(left, Sym) else (None, 1)


def place_of(ops: Sequence[Op], wanted: Op) -> int:
    """Return the index of an operation by its identity, because equal operations may occur."""
    return next(at for at, op in enumerate(ops) if op is wanted)


def same_place(left: Value, right: Value) -> bool:
    """Whether two tensors are the same elements of the same memory: one value, or equal views."""
    if left is right:
        return True
    same_buffer = left.buffer is right.buffer and left.is_tensor and right.is_tensor
    return same_buffer and left.tensor.view == right.tensor.view


def distinct(values: Iterable[Value]) -> list[Value]:
    """Return the values without those that are the same place as an earlier one."""
    found = list[Value]()
    for value in values:
        if not any(same_place(value, other) for other in found):
            found.append(value)
    return found


@dataclass(frozen=True)
class PanelLayout:
    """Strides of an operand of shape (rows, depth) for a micro-kernel.

    ``offset(panel * unit + row, k) == base + panel * panel_stride + row * row_stride + k * k_stride``.
    """

    base: Int
    panel_stride: int
    row_stride: int
    k_stride: int


def panels(view: View, unit: int) -> PanelLayout | None:
    """Return the strides of a view as panels of ``unit`` rows; None if it does not consist of such panels."""
    rows = view.shape[0]
    if view.rank != 2 or view.valid != TRUE or not isinstance(rows, int) or rows % unit:
        return None
    panel, row = Sym("panel", 0, rows // unit - 1), Sym("row", 0, unit - 1)
    k = view.coords[1]
    offset = expand(substitute(view.offset, {view.coords[0]: add(mul(panel, unit), row)}))
    steps = [slope(offset, sym) for sym in (panel, row, k)]
    base = substitute(offset, {panel: 0, row: 0, k: 0})
    panel_stride, row_stride, k_stride = (step if isinstance(step, int) else None for step in steps)
    if panel_stride is None or row_stride is None or k_stride is None:
        return None
    return PanelLayout(base, panel_stride, row_stride, k_stride)


def panel_view(shape: tuple[int, ...], unit: int) -> View:
    """Return a view of panels of ``unit`` rows, k slowest; leading dimensions count operands."""
    *lead, rows, depth = shape
    *outer, row, k = coordinates(shape)
    offset = add(mul(row // unit, unit * depth), mul(k, unit), row % unit)
    return _stacked(shape, lead, outer, offset, rows * depth)


def row_view(shape: tuple[int, ...], pitch: int) -> View:
    """Return a view of rows of contiguous k, ``pitch`` elements apart; leading dimensions count operands."""
    *lead, rows, _ = shape
    *outer, row, k = coordinates(shape)
    return _stacked(shape, lead, outer, add(mul(row, pitch), k), rows * pitch)


def _stacked(shape: tuple[int, ...], lead: list[int], outer: list[Sym], offset: Int, size: int) -> View:
    for extent, index in zip(reversed(lead), reversed(outer), strict=True):
        offset = add(offset, mul(index, size))
        size *= extent
    return View(shape, offset, size)


def fragment_view(shape: tuple[int, ...], modes: Iterable[tuple[int, int | None, int]]) -> View:
    """Return the map from the coordinates of a one-thread fragment to offsets in its array."""
    coords = coordinates(shape)
    offset: Int = 0
    weight = 1
    for extent, dim, step in modes:
        if dim is not None:
            offset = add(offset, mul((coords[dim] // step) % extent, weight))
        weight *= extent
    return View(shape, offset, weight)
