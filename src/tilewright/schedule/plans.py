"""Accumulation plans: how the products of a step are added up, and when their sums are complete."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright.errors import TraceError
from tilewright.ir.mma import MmaAtom, TiledMma
from tilewright.lang import operations as tw
from tilewright.lang.asynchrony import mma_async, mma_commit, mma_fence, mma_wait
from tilewright.lang.control import when
from tilewright.lang.scalars import Index
from tilewright.lang.source import here
from tilewright.lang.tensors import Fragment, Tensor
from tilewright.schedule.factors import FactorProduct, same
from tilewright.schedule.form import Form
from tilewright.schedule.inner import InnerPlan
from tilewright.schedule.pipeline import LoopStep, Verb
from tilewright.schedule.provenance import made_by
from tilewright.schedule.row_sums import RowSum, RowSumPlan, add_rows
from tilewright.schedule.scaled_sums import HeldScales, Scales, ScaleSource
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.work import Work

Held = Sequence[Tensor | Fragment]
"""Tiles of operands, in the memory or registers from which they are multiplied."""

Operands = Callable[[LoopStep], tuple[Held, Held]]
"""Returns the operands of a step as they are multiplied: those along M, and those along N."""

Column = Callable[[LoopStep], Tensor]
"""Returns the scales of the rows of a step, (rows, 1) in shared memory."""


@dataclass(frozen=True)
class Sums:
    """The sums of one tile, for each total.

    Args:
        acc: accumulators of the instruction.
        total: sums of full precision, to which ``acc`` is promoted; ``acc`` itself without promotion.
        scales: factors of ``acc`` when it is promoted.
        rows: partial sums of rows of operands, of each thread.
        inner: sums of inner products.
    """

    acc: tuple[Fragment, ...]
    total: tuple[Fragment, ...]
    scales: HeldScales = ()
    rows: tuple[Fragment, ...] = ()
    inner: tuple[Fragment, ...] = ()


@dataclass(frozen=True)
class TileAccumulation:
    """How the products of a tile are added up.

    Args:
        mma: the tiled MMA.
        products: the products of a step.
        totals: sums of each element of a tile, of all loops.
        overlap: parts that may begin before an asynchronous product must be complete.
        promote: tiles along K after which sums are promoted; 0: never.
        scales: factors of the sums when they are promoted.
        row_sums: sums of rows of operands, of all loops.
        parts: number of parts along K in which a tile is multiplied.
        inner: inner products, of all loops.
    """

    mma: TiledMma
    products: tuple[FactorProduct, ...]
    totals: int
    overlap: int
    promote: int
    scales: Scales
    row_sums: tuple[RowSumPlan, ...] = ()
    parts: int = 1
    inner: tuple[InnerPlan, ...] = ()

    @property
    def added(self) -> list[int]:
        """Indices of the accumulators to which the loop adds: those of its totals, or of their slices."""
        totals = {one.total for one in self.products}
        return [at for at in range(self.totals * self.slices) if at // self.slices in totals]

    @property
    def slices(self) -> int:
        """Slices of a tile's columns that are multiplied and promoted in turn."""
        return slices(self.mma, self.promote)

    @property
    def takes_turns(self) -> bool:
        """Whether all totals, or all slices, are promoted in turn from the same accumulators."""
        return takes_turns(self.mma.atom, self.totals * self.slices, self.promote)

    @property
    def behind(self) -> int:
        """Number of parts after which an asynchronous product is complete."""
        return 0 if self.takes_turns else self.overlap

    @property
    def refreshes(self) -> bool:
        """Whether the first product after a promotion overwrites the sums, so that they are not cleared."""
        return bool(self.promote) and self.mma.atom.asynchronous

    def begin(self) -> Sums:
        """Allocate the sums of a tile, and clear those that no product overwrites."""
        count, fill = range(self.totals * self.slices), None if self.refreshes else 0
        mma = slice_of(self.mma, self.slices)
        if self.takes_turns:
            acc = (tw.accumulator(mma, fill=fill),) * len(count)
        else:
            acc = tuple(tw.accumulator(mma, fill=fill) for _ in count)
        total = tuple(tw.accumulator(mma) for _ in count) if self.promote else acc
        rows = tuple(one.begin() for one in self.row_sums)
        inner = tuple(tw.accumulator(one.mma, name=one.node.sum.variable) for one in self.inner)
        return Sums(acc, total, self.scales.begin(), rows, inner)

    def verbs(self, sums: Sums, operands: Operands, work: Work, column: Column | None = None) -> list[Verb]:
        """The verbs that multiply a step, and wait until an earlier one is complete.

        Args:
            sums: the sums of the tile.
            operands: the operands of a step.
            work: the tile.
            column: the scales of rows of a step, if bulk copies bring them.
        """

        def multiply(step: LoopStep) -> None:
            of_m, of_n = operands(step)
            if any(one.a < 0 for one in self.products):
                of_m = [*of_m, *(one.tile(work.group) for one in self.inner)]
            if not self.mma.atom.asynchronous:
                for one in self.products:
                    tw.mma(of_m[one.a], of_n[one.b], sums.acc[one.total], negative=one.negative)
                for a, b, total in self._inner_products(sums):
                    tw.mma(of_m[a], of_n[b], total)
                self._add_rows(sums, of_m, of_n)
                return
            if self.takes_turns:
                self._in_turns(step, sums, of_m, of_n, work, column)
                self._add_rows(sums, of_m, of_n)
                return
            mma_fence()
            self._begin(self.products, step, sums, of_m, of_n)
            mma_commit()
            self._read_scales(step, sums, column)
            self._add_rows(sums, of_m, of_n)

        found = [Verb("multiply", 0, multiply)]
        if self.mma.atom.asynchronous and not self.takes_turns:
            found.append(Verb("retire", -self.behind, lambda step: mma_wait(step.behind), outside=True))
        return found

    def _add_rows(self, sums: Sums, of_m: Held, of_n: Held) -> None:
        """Add up rows of a step, while the matrix unit multiplies."""
        known: dict[tuple[int, int], list[tuple[RowSumPlan, Fragment]]] = {}
        for one, total in zip(self.row_sums, sums.rows, strict=True):
            if one.operand is not None:
                known.setdefault((one.side, one.operand), []).append((one, total))
        for (side, operand), plans in known.items():
            with made_by(node=plans[0][0].node):
                add_rows(plans, (of_m, of_n)[side][operand])

    def _read_scales(self, step: LoopStep, sums: Sums, column: Column | None) -> None:
        """Read the scales of rows of a step while its products are added up."""
        if self.scales.come_with_tiles:
            assert column is not None, "the operand ring must pass the scales"
            with made_by("promote"):
                self.scales.read(sums.scales, column(step))

    def _in_turns(
        self, step: LoopStep, sums: Sums, of_m: Held, of_n: Held, work: Work, column: Column | None
    ) -> None:
        """Multiply a step for each total or slice in turn, and promote the sums of all turns but the last.

        While one group of warps waits and adds, the matrix unit works for another one.  Another verb promotes
        the last sums, after the stage has been released.
        """
        numbers = self.added
        for number in numbers:
            total, at = divmod(number, self.slices)
            products = [one for one in self.products if one.total == total]
            mma_fence()
            self._begin(products, step, sums, of_m, [_columns(b, at, self.slices) for b in of_n])
            mma_commit()
            if number == numbers[0]:
                self._read_scales(step, sums, column)
            if number == numbers[0] and self._asks_early:
                with made_by("promote"):
                    step.shared["factors"] = self.scales.factors(sums.scales)
                    self.scales.load(sums.scales, work, step.index + 1)
            mma_wait(0)
            if number != numbers[-1]:
                with made_by("promote"):
                    self._promote_one(sums, number, step)

    def _begin(
        self, products: Sequence[FactorProduct], step: LoopStep, sums: Sums, of_m: Held, of_n: Held
    ) -> None:
        """Begin products of a step in the background; the first one of a total may overwrite it."""
        begun: set[int] = set()
        for one in products:
            b = of_n[one.b]
            if not isinstance(b, Tensor):
                text = f"{self.mma.atom} takes operand B from shared memory"
                raise TraceError(text, here(), 'staging="cp_async"')
            is_first = one.total not in begun and (step.part == 0 or self.takes_turns)
            fresh = self.refreshes and is_first and step.index % self.promote == 0
            mma_async(of_m[one.a], b, sums.acc[one.total], fresh=fresh, negative=one.negative)
            begun.add(one.total)
        for at_a, at_b, inner in self._inner_products(sums):
            right = of_n[at_b]
            assert isinstance(right, Tensor), "refused above"
            mma_async(of_m[at_a], right, inner)

    def _inner_products(self, sums: Sums) -> list[tuple[int, int, Fragment]]:
        """The operands of the loop's inner products, and their sums."""
        pairs = [(one.node.a, one.node.b, total) for one, total in zip(self.inner, sums.inner, strict=True)]
        return [(a, b, total) for a, b, total in pairs if a is not None and b is not None]

    def promoting(self, sums: Sums, work: Work) -> Sequence[Verb]:
        """Return the verbs that add the sums of ``promote`` tiles to the f32 totals.

        They come after all verbs that wait for products.  Then the scales of the next sums are loaded.
        """

        def promote(step: LoopStep) -> None:
            with when((step.index + 1) % self.promote == 0):
                if self.behind:
                    mma_wait(0)
                self._promote(sums, again=True)

        def scale(step: LoopStep) -> None:
            with when(step.index % self.promote == 0):
                self.scales.load(sums.scales, work, step.index)

        if not self.promote:
            return []
        found = [Verb("promote", 1 - self.parts, promote, self.parts)]
        if self.takes_turns:
            found = [Verb("promote", 0, lambda step: self._promote_one(sums, self.added[-1], step))]
        if self._asks_early:
            with made_by("promote"):
                self.scales.load(sums.scales, work, 0)
            return found
        return [*found, Verb("scale", 1, scale, self.parts, outside=True)] if self.scales else found

    def _promote(self, sums: Sums, *, again: bool) -> None:
        """Add all sums to those of full precision; clear them if more products follow."""
        for number in self.added:
            self._promote_one(sums, number)
            if again and not self.refreshes:
                tw.fill(sums.acc[number], 0)

    @property
    def _asks_early(self) -> bool:
        """Whether the next scales are loaded while products are added up, not afterwards."""
        return self.takes_turns and self.parts == 1 and self.scales.have_factors

    def _promote_one(self, sums: Sums, number: int, step: LoopStep | None = None) -> None:
        """Add the sums of one total, or of one slice, to those of full precision."""
        total, acc = sums.total[number], sums.acc[number]
        if self.scales:
            factors = None if step is None else step.shared.get("factors")
            part = number % self.slices, self.slices
            total.assign(self.scales.scaled(acc, total, sums.scales, part, factors))
        else:
            total.assign(total + acc)

    def end_loop(self, sums: Sums, steps: Index, *, again: bool = True) -> None:
        """Complete the sums after the last step of a loop.

        Args:
            sums: the sums of the tile.
            steps: the steps of the loop.
            again: whether another loop follows.
        """
        if self.promote > 1:
            with when(steps % self.promote != 0):
                self._promote(sums, again=again)

    def rescale(self, sums: Sums, number: int, scale: Any) -> None:
        """Multiply a total by a number, between two loops."""
        for total in sums.total[number * self.slices : (number + 1) * self.slices]:
            total.assign(total * scale)

    def end(self, sums: Sums, steps: Index) -> tuple[Fragment, ...]:
        """The totals after all steps, and the sums of rows."""
        self.end_loop(sums, steps, again=False)
        rows = (one.end(total) for one, total in zip(self.row_sums, sums.rows, strict=True))
        if self.slices == 1:
            return *sums.total, *rows
        each = range(0, len(sums.total), self.slices)
        return *(Slices(sums.total[at : at + self.slices]) for at in each), *rows


class Slices(Fragment):
    """The sums of a tile, with a fragment for each slice of its columns.

    Args:
        parts: the fragments, in the order of the columns.
    """

    def __init__(self, parts: Sequence[Fragment]) -> None:
        self.parts = tuple(parts)

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the tile."""
        rows, columns = self.parts[0].shape
        return rows, columns * len(self.parts)

    def __getitem__(self, index: Any) -> Fragment:
        """All rows of some columns of one slice."""
        _, columns = index
        at, first = divmod(int(columns.start), self.parts[0].shape[1])
        return self.parts[at][:, first : first + columns.stop - columns.start]


def _columns(b: Tensor | Fragment, at: int, slices: int) -> Tensor | Fragment:
    """The rows of B that belong to one slice of a tile's columns."""
    if slices == 1 or not isinstance(b, Tensor):
        return b
    rows, depth = b.shape
    part: Tensor = b.tiles((rows // slices, depth))[at, 0]
    return part


def slices(mma: TiledMma, promote: int) -> int:
    """Slices of a group's columns that are promoted in turn from the same registers.

    Args:
        mma: the tiled MMA of the group.
        promote: tiles along K after which sums are promoted; 0: never.
    """
    alone = mma.warps[1] == 1 and promote == 1 and mma.atom.asynchronous
    return mma.repeats[1] if alone else 1


def slice_of(mma: TiledMma, count: int) -> TiledMma:
    """The tiled MMA of one of ``count`` slices of the columns."""
    rows, columns = mma.repeats
    return mma if count == 1 else TiledMma(mma.atom, mma.warps, (rows, columns // count))


def takes_turns(atom: MmaAtom, totals: int, promote: int) -> bool:
    """Whether all totals are promoted in turn from the same accumulators, which saves registers.

    This needs a promotion after each tile along K, and an asynchronous atom, whose product can overwrite the
    accumulators.

    Args:
        atom: the instruction.
        totals: number of sums of each element.
        promote: tiles along K after which sums are promoted; 0: never.
    """
    return promote == 1 and atom.asynchronous and totals > 1


def values_of_sums(mma: TiledMma, totals: int, promote: int) -> int:
    """Values that a thread holds for its sums, and for the accumulators that are promoted to them.

    Args:
        mma: the tiled MMA of the group.
        totals: number of sums of each element.
        promote: tiles along K after which sums are promoted; 0: never.
    """
    count, each = slices(mma, promote), mma.c().size_values
    in_turns = takes_turns(mma.atom, totals * count, promote)
    return each * totals + (each // count if in_turns else each * totals * bool(promote))


def accumulation(
    schedule: Schedule,
    scales: Sequence[ScaleSource | None],
    form: Form,
    overlap: int,
    inner: Sequence[InnerPlan] = (),
) -> TileAccumulation:
    """The accumulation plan of a schedule.

    Args:
        schedule: the schedule.
        scales: the scales of each operand, or None; operands along M first.
        form: the form of the loop.
        overlap: parts that may begin before an asynchronous product must be complete.
        inner: the inner products of all loops.
    """
    totals, factors, mma = len(form.totals), Scales(scales, schedule), schedule.mma
    rows = tuple(row_sum_plan(form, one, schedule) for one in form.row_sums)
    found = tuple(replace(plan, node=node) for plan, node in zip(inner, form.inner, strict=True))
    return TileAccumulation(
        *(mma, form.products, totals, overlap, schedule.promote, factors, rows), inner=found
    )


def row_sum_plan(form: Form, node: RowSum, schedule: Schedule) -> RowSumPlan:
    """The plan for a sum of rows, in a loop that may have its operand or not."""
    side = 0 if node.row == form.m else 1
    factors = (form.rows_m, form.rows_n)[side]
    operand = next((at for at, one in enumerate(factors) if one.is_plain and same(one.part, node.part)), None)
    operand = operand if node.span in form.depths else None
    is_held = multiplied_from_registers(schedule, side)
    return RowSumPlan(node, operand, side, schedule.mma, is_held, schedule.block_k)


def multiplied_from_registers(schedule: Schedule, side: int) -> bool:
    """Whether threads hold the tile of operand A (side 0) or B (1) in registers before they multiply it."""
    return schedule.staging_class.by_parts or schedule.alternates or "ab"[side] in schedule.bypass
