"""The loop nest of a pair of views: splits, edges, order, and the innermost loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import NamedTuple

from tilewright.dtypes import DType
from tilewright.symbolic.expr import add, all_of, ceil_div, expand, floordiv, minimum, mul
from tilewright.symbolic.nodes import TRUE, And, Cond, FloorDiv, Int, Less, Mod, Sym
from tilewright.symbolic.rebuilding import parts, replaced, slope, split_elements, substitute, symbols
from tilewright.targets.cpu.linear import size, split_points
from tilewright.views.transforms import Merge, Permute
from tilewright.views.view import View

PAIR = 2
"""Stride of the real parts, and of the imaginary parts, of interleaved complex numbers."""

LEAST_BLOCK_BYTES = 32
"""Least bytes of a row of pairs that are transposed in registers."""


@dataclass(frozen=True)
class Edges:
    """The parts of a validity predicate.

    Args:
        upper: exclusive upper bounds of single coordinates, by dimension.
        uniform: the part that is the same for all coordinates.
        rest: the part that must be tested for every element.
    """

    upper: dict[int, Int]
    uniform: Cond
    rest: Cond


def edges(view: View) -> Edges:
    """Split the validity predicate of a view.

    Example:
        >>> from tilewright.views.transforms import Tile
        >>> M = Sym("M", 0, 1000)
        >>> edges(Tile((64,), (2,)).apply(View.strided((M,), (1,)))).upper
        {0: M - 128}
    """
    upper: dict[int, Int] = {}
    uniform: list[Cond] = []
    rest: list[Cond] = []
    # The part without integers in memory comes first: it guards the reading of these integers.
    valid = all_of(*split_elements(view.valid))
    for part in valid.parts if isinstance(valid, And) else (valid,):
        inner = [dim for dim, coord in enumerate(view.coords) if coord in symbols(part)]
        if all(view.shape[dim] == 1 for dim in inner):
            uniform.append(substitute(part, {view.coords[dim]: 0 for dim in inner}))
            continue
        dim, *others = inner
        coord = view.coords[dim]
        gap = expand(add(part.right, mul(part.left, -1))) if isinstance(part, Less) else 0
        factor = slope(gap, coord)
        if others or not isinstance(factor, int) or factor >= 0:
            rest.append(part)
            continue
        bound = ceil_div(expand(add(gap, mul(coord, -factor))), -factor)  # the condition is coord < bound
        upper[dim] = minimum(upper[dim], bound) if dim in upper else bound
    return Edges(upper, all_of(*uniform), all_of(*rest))


def coalesced(views: tuple[View, ...]) -> tuple[View, ...]:
    """Merge every two dimensions that are contiguous with each other in all views, and have no edge.

    Example:
        >>> whole, rows = View.strided((4, 8, 8), (64, 8, 1)), View.strided((4, 8, 8), (100, 8, 1))
        >>> [str(view) for view in coalesced((whole, rows))]
        ['(4, 64) -> 64*i0 + i1', '(4, 64) -> 100*i0 + i1']
    """

    def is_one_run(view: View, outer: int, inner: int) -> bool:
        along, across = (slope(view.offset, view.coords[dim]) for dim in (inner, outer))
        if along is None or across is None or {outer, inner} & edges(view).upper.keys():
            return False
        return across == mul(along, view.shape[inner])

    for outer, inner in permutations(range(views[0].rank), 2):
        if all(is_one_run(view, outer, inner) for view in views):
            rest = [dim for dim in range(views[0].rank) if dim not in (outer, inner)]
            at = sum(dim < inner for dim in rest)
            order = Permute((*rest[:at], outer, inner, *rest[at:]))
            return coalesced(tuple(Merge(at, 2).apply(order.apply(view)) for view in views))
    return views


@dataclass(frozen=True)
class Axis:
    """A loop over part of a coordinate.

    Args:
        sym: the loop's variable.
        dim: the dimension of the coordinate.
        extent: the maximum number of iterations.
        scale: the step of the coordinate per iteration.
        outer: the axes of the same coordinate with larger scales.
    """

    sym: Sym
    dim: int
    extent: int
    scale: int
    outer: tuple[Axis, ...] = ()

    @property
    def start(self) -> Int:
        """The coordinate where this loop begins."""
        return add(0, *(mul(axis.sym, axis.scale) for axis in self.outer))


@dataclass(frozen=True)
class Nest:
    """Loops over a tile, with the offsets of its views in terms of the loop variables.

    Args:
        axes: the loops, outermost first.
        offsets: the offset of each view.
        conditions: the predicate of each view.
    """

    axes: tuple[Axis, ...]
    offsets: tuple[Int, ...]
    conditions: tuple[Cond, ...]

    def stride(self, side: int, axis: Axis) -> Int | None:
        """Return the stride of a side's offset along an axis."""
        return slope(self.offsets[side], axis.sym)

    def size(self, side: int, axis: Axis) -> float:
        """Return the stride's magnitude for comparisons; a stride that varies is larger than all others."""
        step = self.stride(side, axis)
        return float("inf") if step is None else float(size(step))


def nest(
    shape: Sequence[int],
    views: Sequence[View],
    conditions: Sequence[Cond],
    local: Callable[[str], str],
    leading: int,
) -> Nest:
    """Split the coordinates where the offsets divide them; order the loops by the strides of one view.

    Args:
        shape: the extents of the tile.
        views: views of this shape.
        conditions: for each view, the predicate of every element.
        local: makes a name for a loop variable.
        leading: the view whose larger strides belong to the outer loops.
    """
    coords = views[0].coords
    points = split_points([v.offset for v in views], coords, tuple(shape))
    axes: list[Axis] = []
    old: dict[Sym, Int] = {}
    for dim, (coord, extent) in enumerate(zip(coords, shape, strict=True)):
        made: list[Axis] = []
        sizes = [*points[coord], extent] if extent > 1 else []
        for level in reversed(range(len(sizes))):
            scale = 1 if level == 0 else sizes[level - 1]
            count = sizes[level] // scale
            suffix = "" if level == len(sizes) - 1 else f"_{len(sizes) - 1 - level}"
            sym = Sym(local(f"{coord.name}{suffix}"), 0, count - 1)
            made.append(Axis(sym, dim, count, scale, tuple(made)))
        axes += made
        old[coord] = add(0, *(mul(axis.sym, axis.scale) for axis in made))
    offsets = tuple(expand(substitute(v.offset, old)) for v in views)
    asked = tuple(TRUE if c == TRUE else substitute(c, old) for c in conditions)
    unordered = Nest(tuple(axes), offsets, asked)
    return Nest(_ordered(unordered, leading), offsets, asked) if axes else unordered


def _ordered(loops: Nest, leading: int) -> tuple[Axis, ...]:
    """Order loops by strides; the innermost loop has unit stride in all views, or the last, or any."""
    last = len(loops.offsets) - 1
    axes = sorted(loops.axes, key=lambda axis: -loops.size(leading, axis))

    def merit(axis: Axis) -> tuple[int, int]:
        unit = [loops.stride(side, axis) == 1 for side in range(last + 1)]
        still = [loops.stride(side, axis) == 0 for side in range(last + 1)]
        near = sum(a or b for a, b in zip(unit, still, strict=True))
        return (4 * unit[last] + 2 * near) if any(unit) else 0, axis.extent

    inner = max((axis for axis in axes if is_last(axis, axes)), key=merit)
    ordered: list[Axis] = []
    for axis in axes:
        # An axis comes after the coarser axes of its coordinate: its edge is relative to them.
        ordered += [a for a in (*axis.outer, axis) if a not in ordered and a is not inner]
    return (*ordered, inner)


def in_groups(loops: Nest, local: Callable[[str], str], most: int) -> Nest:
    """Return the nest with a loop over panels of the target divided into groups, if panels are far apart.

    The loop around it then writes to a few panels, whose lines stay in the first-level cache until they are
    full: panels lie a multiple of a power of 2 apart, in few sets of this cache.

    Args:
        loops: loops over a source and a target.
        local: makes a name for a loop variable.
        most: most panels of a group.
    """
    if len(loops.axes) < 3:
        return loops
    *before, along, panel, inner = loops.axes
    near, far, run = (loops.stride(1, axis) for axis in (along, panel, inner))
    each = next(each for each in range(most, 0, -1) if panel.extent % each == 0)
    if run != 1 or near != inner.extent or not isinstance(far, int) or far <= inner.extent or each == 1:
        return loops
    if panel.outer or inner.outer != (panel,) or panel.extent == each:
        return loops
    count = panel.extent // each
    group = Axis(Sym(local("group"), 0, count - 1), panel.dim, count, each * panel.scale)
    part = replace(panel, sym=Sym(local(panel.sym.name), 0, each - 1), extent=each, outer=(group,))
    last = replace(inner, outer=(group, part))
    known = {panel.sym: add(mul(group.sym, each), part.sym)}
    offsets = tuple(expand(substitute(offset, known)) for offset in loops.offsets)
    conditions = tuple(TRUE if one == TRUE else substitute(one, known) for one in loops.conditions)
    return Nest((*before, group, along, part, last), offsets, conditions)


def is_last(axis: Axis, axes: Sequence[Axis]) -> bool:
    """Return whether an axis is the finest of its coordinate."""
    return not any(axis in other.outer for other in axes)


def transposed(loops: Nest) -> tuple[Axis, Axis] | None:
    """Return the contiguous axes of target and source in a nest of ``(source, target)``, if they differ."""
    source = [axis for axis in loops.axes if loops.stride(0, axis) == 1]
    target = [axis for axis in loops.axes if loops.stride(1, axis) == 1]
    if len(source) != 1 or len(target) != 1 or source[0] is target[0]:
        return None
    if not (is_last(source[0], loops.axes) and is_last(target[0], loops.axes)):
        return None
    return target[0], source[0]


def in_pairs(loops: Nest) -> tuple[Sym, Nest] | None:
    """Return the nest for a run-time stride of `PAIR`, or None if no stride of the innermost loop is unknown.

    With a constant stride the compiler loads whole vectors, and picks lanes from them.

    Returns:
        The stride, which is known only at run time, and the nest in which it is `PAIR`.
    """
    steps = [loops.stride(side, loops.axes[-1]) for side in range(len(loops.offsets))] if loops.axes else []
    unknown = [step for step in steps if isinstance(step, Sym)]
    if len(unknown) != 1 or 1 not in steps:
        return None
    offsets = tuple(substitute(offset, {unknown[0]: PAIR}) for offset in loops.offsets)
    return unknown[0], replace(loops, offsets=offsets)


class PairBlocks(NamedTuple):
    """Square blocks of a copy between pairs and two arrays of their parts, contiguous along different axes.

    Args:
        along: the contiguous axis of the parts.
        across: the contiguous axis of the pairs.
        lanes: the side of a block.
        row_step: stride of the pairs along `along`.
        step: stride of the parts along `across`.
    """

    along: Axis
    across: Axis
    lanes: int
    row_step: Int
    step: Int


def blocks_of_pairs(loops: Nest, pairs: int, vector_bytes: int, pair_bytes: int) -> PairBlocks | None:
    """Return the blocks of a copy; None if it has one contiguous axis, or accesses under conditions.

    Args:
        loops: the loops of the copy.
        pairs: index of the side with pairs.
        vector_bytes: vector width of the processor.
        pair_bytes: bytes of a pair.
    """
    along = [axis for axis in loops.axes if loops.stride(1 - pairs, axis) == 1]
    across = [axis for axis in loops.axes if loops.stride(pairs, axis) == PAIR]
    if len(along) != 1 or len(across) != 1 or along == across or loops.conditions != (TRUE, TRUE):
        return None
    found = along[0], across[0]
    if not all(is_last(axis, loops.axes) and axis.scale == 1 for axis in found):
        return None
    lanes = vector_bytes // pair_bytes
    while lanes > 1 and any(axis.extent % lanes for axis in found):
        lanes //= 2
    row_step, step = loops.stride(pairs, found[0]), loops.stride(1 - pairs, found[1])
    if lanes * pair_bytes < LEAST_BLOCK_BYTES or row_step is None or step is None:
        return None
    return PairBlocks(*found, lanes, row_step, step)


def freedom(loops: Nest, sides: Sequence[tuple[str, DType]], vector_bytes: int, in_order: str) -> str:
    """Return in words how the compiler can vectorise the innermost loop of a nest of ``(source, target)``.

    Args:
        loops: the loops of a copy.
        sides: names and dtypes of both sides.
        vector_bytes: vector width of the processor.
        in_order: the reason why elements are copied one after the other; empty if they are not.
    """
    if not loops.axes:
        return "one element"
    if in_order:
        return f"a loop over elements that {in_order}"
    inner = loops.axes[-1]
    for at, (name, _) in enumerate(sides):
        if inner.sym in symbols(loops.conditions[at]):
            return f"a loop that checks the bounds of each element of {name}"
    for at, (name, _) in enumerate(sides):
        if (step := loops.stride(at, inner)) != 1:
            apart = "unevenly" if step is None else f"{step} elements apart"
            return f"a loop over {inner.extent} elements that lie {apart} in {name}"
    lanes = min(vector_bytes // max(kind.bytes for _, kind in sides), inner.extent)
    return f"a loop over {inner.extent} neighbours on both sides, up to {lanes} in a vector"


# ----------------------------------------------------------------
#
# Runs: innermost loops whose index would be divided by an extent.
#
# Rows of an im2col matrix or of merged dimensions are runs with gaps: element ``e`` of a row is element ``e
# % C`` of run ``e // C``.  A division for each element would dominate the time, so an outer loop goes over
# the quotients.


@dataclass(frozen=True)
class Runs:
    """The runs into which the innermost loop is divided.

    Args:
        first: the number of the row's element at which the loop begins.
        length: number of elements of a run.
        number: the index of a run.
        loops: the nest over one run, without divisions of the innermost index.
    """

    first: Int
    length: Int
    number: Sym
    loops: Nest


def runs(loops: Nest, local: Callable[[str], str]) -> Runs | None:
    """Return the runs of a nest whose innermost index is divided; None if it is not.

    Args:
        loops: loops over a source and a target.
        local: makes a name for a variable.
    """
    if not loops.axes:
        return None
    index = loops.axes[-1].sym
    divided = {*_divided((*loops.offsets, *loops.conditions), index)}
    if not divided or len({node.left for node in divided}) > 1:
        return None
    (dividend,) = {node.left for node in divided}
    length = min((node.right for node in divided), key=lambda right: len(str(right)))
    if isinstance(length, int):  # `nest` has split loops by constants
        return None
    number = Sym(local("run"), 0, None)
    known: dict[Int, Int] = {}
    for node in divided:
        factor = _factor(node.right, length)
        if factor is None:
            return None
        quotient = floordiv(number, factor)
        rest = add(dividend, mul(mul(quotient, node.right), -1))
        known[node] = quotient if isinstance(node, FloorDiv) else rest
    offsets = tuple(expand(replaced(offset, known)) for offset in loops.offsets)
    conditions = tuple(replaced(condition, known) for condition in loops.conditions)
    if index in symbols(conditions[0]) | symbols(conditions[1]) or any(
        slope(offset, index) is None for offset in offsets
    ):
        return None
    made = Nest(loops.axes, offsets, conditions)
    return Runs(substitute(dividend, {index: 0}), length, number, made)


def _divided(values: tuple[Int | Cond, ...], index: Sym) -> Iterator[FloorDiv | Mod]:
    """Yield divisions of an integer that grows by one in each iteration of the index."""
    for value in values:
        for part in parts(value):
            if (
                isinstance(part, FloorDiv | Mod)
                and index in symbols(part.left)
                and slope(part.left, index) == 1
            ):
                yield part


def _factor(divisor: Int, length: Int) -> int | None:
    """Return a divisor as a multiple of the length."""
    for factor in range(1, MOST_TAPS + 1):
        if expand(add(divisor, mul(length, -factor))) == 0:
            return factor
    return None


MOST_TAPS = 64
"""Most taps of a filter along one dimension."""
