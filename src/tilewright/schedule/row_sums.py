"""Sums of rows of operands, computed from the tiles that are multiplied.

``square += (x * x).sum(axis=1)`` next to ``acc += x @ w`` needs every element of the operand x once.  Its
tile is in shared memory or in registers anyway.  Each thread adds up a function of the elements that it
multiplies.  After the last step, lanes that share a row add their sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd, lcm

import numpy as np

from tilewright.dataflow.nodes import (
    ArrayPart,
    Flow,
    Folded,
    Literal,
    Map,
    Node,
    Rearrange,
    Reduce,
    Span,
    walk,
    with_arguments,
)
from tilewright.functions.table import ASKED
from tilewright.ir.mma import TiledMma
from tilewright.lang import operations as tw
from tilewright.lang.control import range as traced_range
from tilewright.lang.fragments import Fragment, elementwise
from tilewright.lang.tensors import Tensor
from tilewright.lang.tile_arithmetic import redistribute, reduce_sum
from tilewright.lang.tracer import current
from tilewright.schedule.factors import at_zero, leaves, plain, same
from tilewright.threads.distribution import Distribution, Mode, registers
from tilewright.threads.registers import reduction, thread_digits

# ---------------------------------------------------------------- the flow


@dataclass(frozen=True, eq=False)
class RowSum(Node):
    """The sum along K of a function of an operand's elements, for each row: a leaf of a form's flow.

    Args:
        part: the operand.
        span: the span along K.
        view: the function of its elements.
    """

    part: ArrayPart
    span: Span
    view: Node

    @property
    def row(self) -> Span:
        """The span of the rows."""
        (axis,) = self.axes
        assert axis is not None
        return axis


def with_row_sums(flow: Flow) -> Flow:
    """The flow with sums of rows of operands as leaves, if its loops carry nothing else; else the same flow.

    A loop carries the sum of a row if each step adds ``f(X[m, k]).sum(axis=1)`` to it, where f maps 0 to 0
    and X is multiplied along the same span.
    """
    carried = [node for node in flow.walk() if isinstance(node, Folded)]
    found = {id(node): _row_sum(node, flow) for node in carried}
    if not found or None in found.values():
        return flow
    return replaced(flow, {at: one for at, one in found.items() if one is not None})


def _row_sum(node: Folded, flow: Flow) -> RowSum | None:
    """The sum of a row that a loop carries; None for other values."""
    fold = node.fold
    if fold.results:
        return None
    cell, step = fold.cells[node.index], fold.steps[node.index]
    starts_at_zero = isinstance(cell.start, Literal) and cell.start.value == 0
    if fold.turns or not starts_at_zero or not isinstance(step, Map) or step.function != "add":
        return None
    left, right = step.given
    added = right if left is cell else left
    if cell not in (left, right) or not isinstance(added, Reduce) or added.combine != "sum":
        return None
    view = added.argument
    if added.argument.axes[added.axis] != fold.span or len(view.axes) != 2 or len(added.axes) != 1:
        return None
    if any(not isinstance(one, ArrayPart | Literal | Map | Rearrange) for one in walk(view)):
        return None
    parts = [leaf for leaf in leaves(view) if isinstance(leaf, ArrayPart)]
    if not parts or any(not same(one, parts[0]) for one in parts) or np.any(at_zero(view)):
        return None
    products = (one for one in flow.sums if one.span == fold.span)
    factors = [plain(side) for one in products for side in (one.a, one.b)]
    if not any(same(one, parts[0]) for one in factors):
        return None
    made = RowSum(added.dtype, added.axes, parts[0], fold.span, plain(view), location=added.location)
    return replace(made, variable=node.variable)


def replaced(flow: Flow, made: dict[int, Node]) -> Flow:
    """The flow with other values in place of some, and of all that depend on them.

    Args:
        flow: the flow.
        made: the other values, by the `id` of those that they replace.
    """
    made = dict(made)
    for store in flow.stores:
        for node in walk(store.value, set(made)):
            made[id(node)] = with_arguments(node, lambda one: made[id(one)])
    stores = tuple(replace(store, value=made[id(store.value)]) for store in flow.stores)
    return replace(flow, stores=stores)


# ---------------------------------------------------------------- the kernel

DEPTH = 32
"""Least depth of the part of a tile that a warp reads at once."""

MOST_UNROLLED = 8
"""Most parts of a tile that are unrolled; more are a loop."""


@dataclass(frozen=True)
class RowSumPlan:
    """How a group of warps adds up rows of a tile.

    Args:
        node: the sum.
        operand: index of the operand on its side; None in a loop along another span.
        side: 0 for rows of the result, 1 for its columns.
        mma: the tiled MMA of the group.
        is_held: whether the operand is multiplied from registers.
        tile_depth: depth of a tile of the operand.
    """

    node: RowSum
    operand: int | None
    side: int
    mma: TiledMma
    is_held: bool
    tile_depth: int

    @property
    def depth(self) -> int:
        """Depth of a part; it divides the depth of a tile, because all parts have the same map `partial`."""
        return gcd(lcm(self.mma.atom.shape[2], DEPTH), self.tile_depth)

    def spread(self, depth: int) -> Distribution:
        """The threads that hold a part of a tile, (rows, depth) or (depth, columns).

        A tile that is multiplied from registers is held as the instruction takes it.  Otherwise the threads
        that hold a row of the accumulator read the same row, and lanes that hold copies share its depth.
        """
        if self.is_held:
            return self.mma.a(depth)
        lanes, weight, own, threads = current().lanes, 1, depth, list[Mode]()
        for mode in self.result.threads:
            is_shared = mode.dim is None and weight < lanes and own % mode.extent == 0
            own //= mode.extent if is_shared else 1
            threads.append(Mode(mode.extent, self.along, own) if is_shared else mode)
            weight *= mode.extent
        extents = list(self.result.shape)
        extents[self.along] = depth
        return Distribution(tuple(extents), tuple(threads), (Mode(own, self.along, 1), *self.result.values))

    @property
    def result(self) -> Distribution:
        """The map of the sums of whole rows, (rows, 1) or (1, columns): a projection of the accumulators."""
        c = self.mma.c()
        return c.projected((1, c.shape[1]) if self.side else (c.shape[0], 1))

    @property
    def along(self) -> int:
        """The dimension of a part along K."""
        return 1 - self.side

    @property
    def partial(self) -> Distribution:
        """The map of the partial sums of each thread, before lanes that share a row add them up."""
        spread = self.spread(self.depth)
        return reduction(spread, self.along, thread_digits(spread, self.along)).result

    @property
    def values(self) -> int:
        """Registers of a thread for the sums."""
        return self.result.size_values * self.node.dtype.bytes // 4

    def begin(self) -> Fragment:
        """Allocate the sums of the rows, and set them to 0."""
        return tw.fragment(self.partial, self.node.dtype, 0, name=self.node.variable or "row_sum")

    def add(self, held: Fragment, total: Fragment) -> None:
        """Add a part of the operand.

        Args:
            held: the part, in the map of `spread`.
            total: the sums.
        """
        # The function of the elements.
        known: dict[int, object] = {}
        for one in walk(self.node.view):
            if isinstance(one, Literal):
                known[id(one)] = one.value
            elif isinstance(one, Map):
                given: Sequence[object] = [known[id(argument)] for argument in one.given]
                kind = one.dtype if one.function in ASKED else None
                known[id(one)] = elementwise(one.function, *given, dtype=kind)
            elif isinstance(one, Rearrange):
                known[id(one)] = known[id(one.argument)]
            else:
                known[id(one)] = held
        value = known[id(self.node.view)]
        assert isinstance(value, Fragment), "the function depends on the elements"
        total.assign(total + reduce_sum(value, self.along, per_thread=True))

    def end(self, total: Fragment) -> Fragment:
        """The sums of whole rows."""
        return redistribute(reduce_sum(total, self.along), self.result)


def add_rows(plans: Sequence[tuple[RowSumPlan, Fragment]], tile: Tensor | Fragment) -> None:
    """Add a tile of an operand, (rows, depth), to all sums of its rows; each part is read once.

    Args:
        plans: the plans for one operand, each with its sums.
        tile: the tile, in shared memory or in the registers of the multiplication.
    """
    first, _ = plans[0]
    if isinstance(tile, Fragment):
        for plan, total in plans:
            plan.add(tile, total)
        return
    depth = first.depth
    assert int(tile.shape[1]) % depth == 0, "a tile has whole parts"
    parts, count = tile.tiles((tile.shape[0], depth)), int(tile.shape[1]) // depth
    for number in range(count) if count <= MOST_UNROLLED else traced_range(count):
        part = parts[0, number].permute(1, 0) if first.side else parts[0, number]
        held = tw.load(part, first.spread(depth), name=f"r{first.node.part.operand.name}")
        for plan, total in plans:
            plan.add(held, total)


def rows_of_a_are_of_c(mma: TiledMma) -> bool:
    """Whether the threads that hold a row of operand A in registers hold the same row of the accumulators."""
    rows = reduction(mma.a(mma.atom.shape[2]), 1).result
    return registers(rows, mma.c().projected((mma.tile[0], 1)), (0, 0)) is not None
