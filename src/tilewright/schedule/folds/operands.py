"""Operands of a loop in shared memory, and the tiles of a block at each step.

`HeldOperand` copies the tile of an operand to shared memory.  `StepPlace` knows the addresses of the elements
of a step, and the thread that holds each.  Both use the block through the protocol `LoopBlock`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from math import gcd, prod
from typing import Any, Protocol

from tilewright.dataflow.nodes import ArrayPart, Axis, Map, Node, Operand, Span, Sum, walk
from tilewright.dtypes import DType
from tilewright.functions.table import CONVERSION
from tilewright.ir.mma import TiledMma
from tilewright.lang import operations as tw
from tilewright.lang.control import let, otherwise, when
from tilewright.lang.exact_functions import where
from tilewright.lang.fragments import Fragment
from tilewright.lang.scalars import Index
from tilewright.lang.tensors import Tensor
from tilewright.lang.tile_arithmetic import coordinates
from tilewright.schedule.folds.form import FoldForm, transposed
from tilewright.schedule.folds.masks import Mask, Trials
from tilewright.schedule.folds.values import TileValues, tile_of
from tilewright.schedule.form import array, integer_in
from tilewright.schedule.schedule import Schedule
from tilewright.threads.distribution import Distribution, blocked


def is_exchanged(schedule: Schedule, form: FoldForm) -> bool:
    """Whether left operands pass through shared memory, because other threads computed their elements."""
    in_place = schedule.atom.instruction == "mma.sync" and form.element.bytes == 2
    return bool(form.mixtures) and not in_place and schedule.atom.lanes * prod(schedule.warps) > 1


class LoopBlock(Protocol):
    """The attributes and methods of a block that its operands and places use."""

    form: FoldForm
    schedule: Schedule
    arguments: dict[str, Any]
    threads: int
    tiled: dict[Span, TiledMma]
    at: dict[Span, Index]
    loop_turns: dict[Span, Index]
    of_turn: dict[Span, tuple[Index, Index]]
    cuts: dict[Span, slice]
    bounds: dict[tuple[str, tuple[Span, ...]], Index]
    trials: Trials
    masks: dict[int, Mask]

    def length(self, span: Span) -> int:
        """Extent of a tile along a span; 1 along a batch."""

    @property
    def mixing(self) -> TiledMma:
        """The multiplication of products along the loop's span."""

    def mix(self, node: Sum, values: TileValues, step: Index, total: Fragment) -> None:
        """Add a product along the loop's span to ``total``."""

    def exchange_memory(self, shape: tuple[int, ...] | None, dtype: DType) -> Tensor | None:
        """Shared memory of a shape and a dtype, for one exchange at a time; None for no shape."""


class StepPlace:
    """The tile of a block at a step of its loop.

    Args:
        block: the block.
        step: index of the step along the loop; after the loop, 0.
        inner: index of the tile along the depth of the scores.
    """

    def __init__(self, block: LoopBlock, step: Index = 0, inner: Index = 0) -> None:
        self.block, self.step, self.inner = block, step, inner
        self.found: dict[Span, Index] = {}
        """Index of the step along the loop's span, and of its turns, if the loop has turns."""

        if block.loop_turns:
            first, each = block.of_turn[block.form.n]
            self.found[block.form.n] = let(first + step % each)
            rest: Index = let(step // each)
            outer, *inner_turns = block.loop_turns
            for span in reversed(inner_turns):
                count = block.loop_turns[span]
                self.found[span], rest = let(rest % count), let(rest // count)
            self.found[outer] = rest

    def array(self, operand: Operand) -> Tensor:
        """An array of the kernel, or the view of it that an operand names."""
        return array(self.block.arguments, operand)

    def number(self, name: str) -> Any:
        """A number that the launch passes."""
        return self.block.arguments[name]

    def integer(self, value: Any) -> Index:
        """The value of a flow's integer in the kernel's arguments."""
        return integer_in(self.block.form.flow, self.block.arguments, value)

    def length(self, span: Span) -> int:
        """Extent of the tile along a span."""
        return self.block.length(span)

    def at(self, span: Span) -> Index:
        """Index of the tile along a span; of a batch, the index of its item."""
        form = self.block.form
        if span in self.found:
            return self.found[span]
        if form.n in (span, span.of):
            return self.step
        return self.inner if span in form.depths else self.block.at[span]

    def begin(self, span: Span) -> Index:
        """The first index of the block's group along a span; 0 without groups."""
        cut = self.block.cuts.get(span.of or span)
        return 0 if cut is None else cut.start

    def extent(self, span: Span) -> Index:
        """The extent of a span, or of the block's group along it."""
        if (cut := self.block.cuts.get(span.of or span)) is None:
            return self.integer(span.extent)
        found: Index = cut.stop - cut.start
        return found

    def cut(self, span: Span, *, whole: bool = False) -> slice:
        """The elements of the block's group along a span; see `Place`."""
        if (cut := self.block.cuts.get(span.of or span)) is None:
            return slice(None)
        return slice(cut.start, None) if whole else cut

    def apart(self, span: Span) -> tuple[int, int]:
        """Distance of neighbouring elements of the tile along a span, and the first."""
        return 1, 0

    def loaded(self, part: ArrayPart) -> Index | None:
        """The integer that a part of an array has for the whole tile; None if the part varies in the tile."""
        return self.block.bounds.get((part.operand.name, part.at))

    def spread(self, axes: tuple[Axis, ...]) -> Distribution:
        """The map of a value with these axes to threads: that of the sums with the same columns."""
        form = self.block.form
        spans = [axis for axis in axes if axis is not None]
        column = next((span for span in spans if span != form.m), None)
        whole = self.block.tiled[column or form.n].c()
        shape = (whole.shape[0] if form.m in spans else 1, whole.shape[1] if column is not None else 1)
        return whole if shape == whole.shape else whole.projected(shape)

    def ordered(self, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        """Axes of a value in the order of a tile: rows, then columns."""
        m = self.block.form.m
        return (m, *(axis for axis in axes if axis != m)) if m in axes else axes

    def exchange_memory(self, shape: tuple[int, ...] | None, dtype: DType) -> Tensor | None:
        """Shared memory of a shape and a dtype, for one exchange at a time; None for no shape."""
        return self.block.exchange_memory(shape, dtype)

    @property
    def loop(self) -> Span:
        """The span of the loop."""
        return self.block.form.n

    def numbers_where(self, node: Node, number: float) -> Mapping[int, float]:
        """The values of a step that are one known number wherever ``node`` is ``number``, by their `id`."""
        return self.block.trials.numbers_where(node, number)

    def mask(self, node: Map) -> Mask | None:
        """The mask of a choice that may change its value in place; None for other choices."""
        return self.block.masks.get(id(node))

    def product(self, node: Sum, values: TileValues) -> Fragment:
        """A product along the loop's span; its left operand is computed in registers."""
        total = tw.accumulator(self.block.mixing, name="product")
        self.block.mix(node, values, self.step, total)
        return total


class OperandPlace(StepPlace):
    """The tile of an operand of a product, distributed over all threads for the copy to shared memory."""

    def __init__(self, place: StepPlace, spans: tuple[Span, Span], threads: int) -> None:
        super().__init__(place.block, place.step, place.inner)
        self.spans = spans
        rows, columns = map(self.length, spans)
        across = gcd(columns, threads)
        self.whole = blocked((rows, columns), (gcd(rows, threads // across), across), order=(1, 0))

    def ordered(self, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        """Axes of a value in the order of the operand."""
        return tuple(sorted(axes, key=lambda axis: self.spans.index(axis) if axis in self.spans else -1))

    def spread(self, axes: tuple[Axis, ...]) -> Distribution:
        """The map of a value with these axes to threads."""
        shape = tuple(self.length(span) if span in axes else 1 for span in self.spans)
        return self.whole if shape == self.whole.shape else self.whole.projected(shape)


class HeldOperand:
    """An operand of a product in shared memory.

    Args:
        block: the block that holds it.
        node: the operand in the graph, as it is multiplied.
        along: the span of the sum.
    """

    def __init__(self, block: LoopBlock, node: Node, along: Span) -> None:
        self.block, self.along = block, along
        self.node, _ = transposed(node)
        """The operand without transpositions: a part of an array has its order of memory."""

        spans = [axis for axis in self.node.axes if axis is not None]
        assert len(spans) == 2, "rows, and the span of the sum"
        self.spans = (spans[0], spans[1])
        form, schedule = block.form, block.schedule
        self.moves = any(form.n in (span, span.of) for span in spans) or not schedule.resident
        """Whether each step has its own tile."""

        self.is_plain = isinstance(self.node, ArrayPart) and self.node.dtype == form.element
        self.stages = schedule.stages if self.moves else 1
        names = [one.operand.name for one in walk(self.node) if isinstance(one, ArrayPart)]
        self.held = tw.shared(
            (self.stages, *map(block.length, self.spans)), form.element, name=f"s{names[0] if names else 'X'}"
        )

    @property
    def copies_are_many(self) -> bool:
        """Whether one warp copies a whole tile, so that it pays to branch once for tiles inside the array."""
        schedule = self.block.schedule
        return schedule.copies_in_background and schedule.warps[0] == 1 and schedule.atom.lanes > 1

    def stage(self, step: Index) -> Tensor:
        """The tile of a step, in the order of memory."""
        return self.held[step % self.stages if self.stages > 1 else 0]

    def multiplied(self, step: Index, along: Span | None = None) -> Tensor:
        """The tile of a step as (rows, k).

        Args:
            step: index of the step.
            along: the span of the sum; default: that for which the tile was made.
        """
        tile = self.stage(step)
        return tile if self.spans[1] == (along or self.along) else tile.permute(1, 0)

    def bring(self, place: StepPlace) -> None:
        """Copy the tile of a step to shared memory; apply the operand's elementwise functions, if any."""
        block = self.block
        is_inner = self.along in block.form.depths and not block.schedule.resident
        target = self.stage(place.inner if is_inner else place.step)
        if self.is_plain:
            assert isinstance(self.node, ArrayPart)
            copy = tw.copy_async if block.schedule.copies_in_background else tw.copy
            n, bring = (
                block.form.n,
                functools.partial(tile_of, place, self.node.operand, self.node.at, self.spans),
            )
            if not (self.moves and n in self.spans and self.copies_are_many):
                copy(bring(), target, threads=block.threads)
                return
            with when((place.at(n) + 1) * place.length(n) <= place.extent(n)):
                copy(bring(inside=n), target, threads=block.threads)
            with otherwise():
                copy(bring(), target, threads=block.threads)
            return
        made = TileValues(OperandPlace(place, self.spans, block.threads), {}).tile(self.node)
        if made.dtype != self.block.form.element:
            made = made.to(self.block.form.element)
        if not is_converted(self.node):  # a function of 0 may be another number
            dim = self.spans.index(self.along)
            left = place.extent(self.along) - place.at(self.along) * place.length(self.along)
            made = where(coordinates(made, dim) < left, made, 0)
        tw.copy(made, target)


def is_converted(node: Node) -> bool:
    """Whether an operand is a part of an array with conversions alone, and so 0 beyond the array's end."""
    while isinstance(node, Map) and node.function in CONVERSION:
        node = node.given[0]
    return isinstance(node, ArrayPart)
