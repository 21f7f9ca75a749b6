"""Accumulation plans: which instructions add up the products of a step, and when their sums are complete."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tilewright.errors import TraceError
from tilewright.ir.mma import MmaAtom, TiledMma
from tilewright.lang import operations as tw
from tilewright.lang.asynchrony import mma_async, mma_commit, mma_fence, mma_wait
from tilewright.lang.control import when
from tilewright.lang.scalars import Index
from tilewright.lang.source import here
from tilewright.lang.tensors import Fragment, Tensor
from tilewright.schedule.factors import FactorProduct
from tilewright.schedule.partition import Work
from tilewright.schedule.pipeline import LoopStep, Verb
from tilewright.schedule.provenance import made_by
from tilewright.schedule.scaled_sums import HeldScales, Scales, ScaleSource, scaled_tile
from tilewright.schedule.schedule import Schedule

Held = Sequence[Tensor | Fragment]
"""Tiles of operands, where they are multiplied from."""

Operands = Callable[[LoopStep], tuple[Held, Held]]
"""The operands along M and those along N of a step, when they are multiplied."""

Column = Callable[[LoopStep], Tensor]
"""The scales of the rows of a step, (rows, 1) in shared memory."""


@dataclass(frozen=True)
class Sums:
    """The sums of one tile, for each total.

    Args:
        acc: what products are added to.
        total: what keeps all bits; ``acc`` itself where nothing is promoted.
        scales: by what ``acc`` is multiplied when it is promoted.
    """

    acc: tuple[Fragment, ...]
    total: tuple[Fragment, ...]
    scales: HeldScales = ()


@dataclass(frozen=True)
class TileAccumulation:
    """How the products of a tile are added up.

    Args:
        mma: the tiled MMA.
        products: what is multiplied.
        overlap: parts that may be begun before an asynchronous product must be complete.
        promote: tiles along K after which sums are added to others that keep all bits; 0: never.
        scales: by what sums are multiplied then.
        parts: in which a tile is multiplied.
    """

    mma: TiledMma
    products: tuple[FactorProduct, ...]
    overlap: int
    promote: int
    scales: Scales
    parts: int = 1

    @property
    def totals(self) -> int:
        """How many sums a tile has."""
        return len({one.total for one in self.products})

    @property
    def slices(self) -> int:
        """Slices of a tile's columns that are multiplied and promoted one after the other."""
        return slices(self.mma, self.promote)

    @property
    def takes_turns(self) -> bool:
        """Whether all totals, and all slices of one, are promoted from the same sums, one after the other."""
        return takes_turns(self.mma.atom, self.totals * self.slices, self.promote)

    @property
    def behind(self) -> int:
        """Parts after which an asynchronous product is known to be complete."""
        return 0 if self.takes_turns else self.overlap

    @property
    def refreshes(self) -> bool:
        """Whether the first product after a promotion overwrites the sums, which need no zeros then."""
        return bool(self.promote) and self.mma.atom.asynchronous

    def begin(self) -> Sums:
        """Clear the sums; those that are promoted begin afresh with a product where the atom can do so."""
        count, fill = range(self.totals * self.slices), None if self.refreshes else 0
        mma = slice_of(self.mma, self.slices)
        if self.takes_turns:
            acc = (tw.accumulator(mma, fill=fill),) * len(count)
        else:
            acc = tuple(tw.accumulator(mma, fill=fill) for _ in count)
        total = tuple(tw.accumulator(mma) for _ in count) if self.promote else acc
        return Sums(acc, total, self.scales.begin())

    def verbs(
        self,
        sums: Sums,
        operands: Operands,
        work: Work,
        column: Column | None = None,
    ) -> list[Verb]:
        """Multiply a step; wait for the one that is known to be complete then.

        Args:
            sums: of the tile.
            operands: where they are.
            work: the tile.
            column: where scales of rows are that come with the operands.
        """

        def multiply(step: LoopStep) -> None:
            of_m, of_n = operands(step)
            if not self.mma.atom.asynchronous:
                for one in self.products:
                    tw.mma(of_m[one.a], of_n[one.b], sums.acc[one.total], negative=one.negative)
                return
            if self.takes_turns:
                self._in_turns(step, sums, of_m, of_n, work, column)
                return
            mma_fence()
            self._begin(self.products, step, sums, of_m, of_n)
            mma_commit()
            self._read_scales(step, sums, column)

        found = [Verb("multiply", 0, multiply)]
        if self.mma.atom.asynchronous and not self.takes_turns:
            found.append(Verb("retire", -self.behind, lambda step: mma_wait(step.behind), outside=True))
        return found

    def _read_scales(self, step: LoopStep, sums: Sums, column: Column | None) -> None:
        """Read the scales of rows that came with a step, while its products are added up."""
        if self.scales.come_with_tiles:
            assert column is not None, "they are where the operands are"
            with made_by("promote"):
                self.scales.read(sums.scales, column(step))

    def _in_turns(
        self, step: LoopStep, sums: Sums, of_m: Held, of_n: Held, work: Work, column: Column | None
    ) -> None:
        """One turn after the other its products of a step, of which the sums are promoted.

        While one group of warps waits and adds, the matrix unit works for another one.  The last sums are
        promoted by a verb of their own, when the stage has been released.
        """
        count = len(sums.total)
        for number in range(count):
            total, at = divmod(number, self.slices)
            products = [one for one in self.products if one.total == total]
            mma_fence()
            self._begin(products, step, sums, of_m, [_columns(b, at, self.slices) for b in of_n])
            mma_commit()
            if number == 0:
                self._read_scales(step, sums, column)
            if number == 0 and self._asks_early:
                with made_by("promote"):
                    step.shared["factors"] = self.scales.factors(sums.scales)
                    self.scales.load(sums.scales, work, step.index + 1)
            mma_wait(0)
            if number + 1 < count:
                with made_by("promote"):
                    self._promote_one(sums, number, step)

    def _begin(
        self, products: Sequence[FactorProduct], step: LoopStep, sums: Sums, of_m: Held, of_n: Held
    ) -> None:
        """Products of a step, in the background; the first one of a total may begin it afresh."""
        begun: set[int] = set()
        for one in products:
            b = of_n[one.b]
            if not isinstance(b, Tensor):
                text = f"{self.mma.atom} takes operand B from shared memory"
                raise TraceError(f'{text}; nearest legal choice: staging="cp_async"', here())
            is_first = one.total not in begun and (step.part == 0 or self.takes_turns)
            fresh = self.refreshes and is_first and step.index % self.promote == 0
            mma_async(of_m[one.a], b, sums.acc[one.total], fresh=fresh, negative=one.negative)
            begun.add(one.total)

    def promoting(self, sums: Sums, work: Work) -> Sequence[Verb]:
        """Every so often add the sums to those that keep all bits; behind all that waits for products.

        By what the next ones are multiplied is asked for when these have been, and not before.
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
            found = [Verb("promote", 0, lambda step: self._promote_one(sums, len(sums.total) - 1, step))]
        if self._asks_early:
            with made_by("promote"):
                self.scales.load(sums.scales, work, 0)
            return found
        return [*found, Verb("scale", 1, scale, self.parts, outside=True)] if self.scales else found

    def _promote(self, sums: Sums, *, again: bool) -> None:
        """Add the sums to those that keep all bits, and clear them if they are added to again."""
        for number, acc in enumerate(sums.acc):
            self._promote_one(sums, number)
            if again and not self.refreshes:
                tw.fill(acc, 0)

    @property
    def _asks_early(self) -> bool:
        """Whether the next scales are asked for while products are added up, and not when they have been."""
        return self.takes_turns and self.parts == 1 and self.scales.have_factors

    def _promote_one(self, sums: Sums, number: int, step: LoopStep | None = None) -> None:
        """Add the sums of one total, or of a slice of it, to those that keep all bits."""
        total, acc = sums.total[number], sums.acc[number]
        if self.scales:
            factors = None if step is None else step.shared.get("factors")
            part = number % self.slices, self.slices
            made = self.scales.scaled(acc, total, sums.scales, part, factors)
        else:
            made = total + acc
        total.assign(made)

    def end(self, sums: Sums, steps: Index) -> tuple[Fragment, ...]:
        """The sums, when all steps are done."""
        if self.promote > 1:
            with when(steps % self.promote != 0):
                self._promote(sums, again=False)
        if self.slices == 1:
            return sums.total
        each = range(0, len(sums.total), self.slices)
        return tuple(Slices(sums.total[at : at + self.slices]) for at in each)


class Slices(Fragment):
    """The sums of a tile whose columns were added up slice by slice, which are never in one fragment.

    Args:
        parts: the sums of one slice of the columns after the other.
    """

    def __init__(self, parts: Sequence[Fragment]) -> None:
        self.parts = tuple(parts)

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the tile."""
        rows, columns = self.parts[0].shape
        return rows, columns * len(self.parts)

    def __getitem__(self, index: Any) -> Fragment:
        """All rows of some columns, which lie in one slice."""
        _, columns = index
        at, first = divmod(int(columns.start), self.parts[0].shape[1])
        return self.parts[at][:, first : first + columns.stop - columns.start]


def _columns(b: Tensor | Fragment, at: int, slices: int) -> Tensor | Fragment:
    """The rows of B that are columns of a slice of a tile."""
    if slices == 1 or not isinstance(b, Tensor):
        return b
    rows, depth = b.shape
    part: Tensor = b.tiles((rows // slices, depth))[at, 0]
    return part


def slices(mma: TiledMma, promote: int) -> int:
    """Slices of a group's columns that are promoted one after the other from the same registers.

    Args:
        mma: the tiled MMA of the group.
        promote: as `TileAccumulation` has it.
    """
    alone = mma.warps[1] == 1 and promote == 1 and mma.atom.asynchronous
    return mma.repeats[1] if alone else 1


def slice_of(mma: TiledMma, count: int) -> TiledMma:
    """The tiled MMA of one of ``count`` slices of the columns."""
    rows, columns = mma.repeats
    return mma if count == 1 else TiledMma(mma.atom, mma.warps, (rows, columns // count))


def takes_turns(atom: MmaAtom, totals: int, promote: int) -> bool:
    """Whether all totals are promoted from the same sums, which saves the registers of all but one.

    So it is where each tile along K is promoted, and an asynchronous product can begin sums afresh.

    Args:
        atom: the instruction.
        totals: how many are added up.
        promote: as `TileAccumulation` has it.
    """
    return promote == 1 and atom.asynchronous and totals > 1


def values_of_sums(mma: TiledMma, totals: int, promote: int) -> int:
    """How many values a thread holds of its sums, and of those that are promoted to them.

    Args:
        mma: the tiled MMA of the group.
        totals: how many are added up.
        promote: as `TileAccumulation` has it.
    """
    count, each = slices(mma, promote), mma.c().size_values
    in_turns = takes_turns(mma.atom, totals * count, promote)
    return each * totals + (each // count if in_turns else each * totals * bool(promote))


class Scaled(Protocol):
    """An operand, which may have scales."""

    @property
    def scales(self) -> ScaleSource | None:
        """The scales of the operand; None if it has none."""


def accumulation(
    schedule: Schedule, operands: Sequence[Scaled], products: tuple[FactorProduct, ...], behind: int
) -> TileAccumulation:
    """How products are added up under a schedule.

    Args:
        schedule: how all of it is computed.
        operands: what is multiplied, along M first.
        products: of them.
        behind: parts after which an asynchronous product is known to be complete.
    """
    scaled = Scales([operand.scales for operand in operands], scaled_tile(schedule))
    return TileAccumulation(schedule.mma, products, behind, schedule.promote, scaled)
