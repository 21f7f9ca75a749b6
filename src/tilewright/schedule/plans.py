"""Accumulation plans: which instructions add up the products of a step, and when their sums are complete."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tilewright.errors import TraceError
from tilewright.ir.mma import MmaAtom, TiledMma
from tilewright.lang import operations as tw
from tilewright.lang.async_mma import mma_async, mma_commit, mma_fence, mma_wait
from tilewright.lang.control import when
from tilewright.lang.scalars import Index
from tilewright.lang.source import here
from tilewright.lang.tensors import Fragment, Tensor
from tilewright.schedule.factors import Product
from tilewright.schedule.partition import Work
from tilewright.schedule.pipeline import Step, Verb
from tilewright.schedule.provenance import made_by
from tilewright.schedule.scaled_sums import HeldScales, Scales, ScaleSource, scaled_tile
from tilewright.schedule.schedule import Schedule

Held = Sequence[Tensor | Fragment]
"""Tiles of operands, where they are multiplied from."""

Operands = Callable[[Step], tuple[Held, Held]]
"""Where the operands along M and those along N of a step are, when its turn has come."""


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
class Accumulation:
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
    products: tuple[Product, ...]
    overlap: int
    promote: int
    scales: Scales
    parts: int = 1

    @property
    def takes_turns(self) -> bool:
        """Whether all totals are promoted from the same sums, one after the other."""
        return takes_turns(self.mma.atom, len({one.total for one in self.products}), self.promote)

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
        count, fill = {one.total for one in self.products}, None if self.refreshes else 0
        if self.takes_turns:
            acc = (tw.accumulator(self.mma, fill=fill),) * len(count)
        else:
            acc = tuple(tw.accumulator(self.mma, fill=fill) for _ in count)
        total = tuple(tw.accumulator(self.mma) for _ in count) if self.promote else acc
        return Sums(acc, total, self.scales.begin())

    def verbs(self, sums: Sums, operands: Operands) -> list[Verb]:
        """Multiply a step; wait for the one that is known to be complete then."""

        def multiply(step: Step) -> None:
            of_m, of_n = operands(step)
            if not self.mma.atom.asynchronous:
                for one in self.products:
                    tw.mma(of_m[one.a], of_n[one.b], sums.acc[one.total], negative=one.negative)
                return
            if self.takes_turns:
                self._in_turns(step, sums, of_m, of_n)
                return
            mma_fence()
            self._begin(self.products, step, sums, of_m, of_n)
            mma_commit()

        found = [Verb("multiply", 0, multiply)]
        if self.mma.atom.asynchronous and not self.takes_turns:
            found.append(Verb("retire", -self.behind, lambda step: mma_wait(step.behind), outside=True))
        return found

    def _in_turns(self, step: Step, sums: Sums, of_m: Held, of_n: Held) -> None:
        """For one total after the other its products of a step, of which the sums are added to it.

        While one group of warps waits and adds, the matrix unit works for another one.
        """
        for number, total in enumerate(sums.total):
            mma_fence()
            self._begin([one for one in self.products if one.total == number], step, sums, of_m, of_n)
            mma_commit()
            mma_wait(0)
            with made_by("promote"):
                total.assign(total + sums.acc[number])

    def _begin(self, products: Sequence[Product], step: Step, sums: Sums, of_m: Held, of_n: Held) -> None:
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

        def promote(step: Step) -> None:
            with when((step.index + 1) % self.promote == 0):
                if self.behind:
                    mma_wait(0)
                self._promote(sums, again=True)

        def scale(step: Step) -> None:
            with when(step.index % self.promote == 0):
                self.scales.load(sums.scales, work, step.index)

        if not self.promote or self.takes_turns:
            return []
        found = [Verb("promote", 1 - self.parts, promote, self.parts)]
        return [*found, Verb("scale", 1, scale, self.parts, outside=True)] if self.scales else found

    def _promote(self, sums: Sums, *, again: bool) -> None:
        """Add the sums to those that keep all bits, and clear them if they are added to again."""
        for total, acc in zip(sums.total, sums.acc, strict=True):
            total.assign(self.scales.scaled(acc, total, sums.scales) if self.scales else total + acc)
            if again and not self.refreshes:
                tw.fill(acc, 0)

    def end(self, sums: Sums, steps: Index) -> tuple[Fragment, ...]:
        """The sums, when all steps are done."""
        if self.promote > 1:
            with when(steps % self.promote != 0):
                self._promote(sums, again=False)
        return sums.total


def takes_turns(atom: MmaAtom, totals: int, promote: int) -> bool:
    """Whether all totals are promoted from the same sums, which saves the registers of all but one.

    So it is where each tile along K is promoted, and an asynchronous product can begin sums afresh.

    Args:
        atom: the instruction.
        totals: how many are added up.
        promote: as `Accumulation` has it.
    """
    return promote == 1 and atom.asynchronous and totals > 1


class Scaled(Protocol):
    """An operand, which may have scales."""

    @property
    def scales(self) -> ScaleSource | None:
        """Where they are."""


def accumulation(
    schedule: Schedule, operands: Sequence[Scaled], products: tuple[Product, ...], behind: int
) -> Accumulation:
    """How products are added up under a schedule.

    Args:
        schedule: how all of it is computed.
        operands: what is multiplied, along M first.
        products: of them.
        behind: parts after which an asynchronous product is known to be complete.
    """
    scaled = Scales([operand.scales for operand in operands], scaled_tile(schedule))
    return Accumulation(schedule.mma, products, behind, schedule.promote, scaled)
