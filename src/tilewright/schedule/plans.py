"""Accumulation plans: which instructions add up the products of a step, and when their sums are complete."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.errors import TraceError
from tilewright.ir.mma import TiledMma
from tilewright.lang import operations as tw
from tilewright.lang.async_mma import mma_async, mma_commit, mma_fence, mma_wait
from tilewright.lang.control import when
from tilewright.lang.scalars import Index
from tilewright.lang.source import here
from tilewright.lang.tensors import Fragment, Tensor
from tilewright.schedule.factors import Product
from tilewright.schedule.pipeline import Step, Verb

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
    """

    acc: tuple[Fragment, ...]
    total: tuple[Fragment, ...]


@dataclass(frozen=True)
class Accumulation:
    """How the products of a tile are added up.

    Args:
        mma: the tiled MMA.
        products: what is multiplied.
        behind: parts after which an asynchronous product is known to be complete.
        promote: tiles along K after which sums are added to others that keep all bits; 0: never.
    """

    mma: TiledMma
    products: tuple[Product, ...]
    behind: int
    promote: int

    @property
    def refreshes(self) -> bool:
        """Whether the first product after a promotion overwrites the sums, which need no zeros then."""
        return bool(self.promote) and self.mma.atom.asynchronous

    def begin(self) -> Sums:
        """Clear the sums; those that are promoted begin afresh with a product where the atom can do so."""
        count, fill = {one.total for one in self.products}, None if self.refreshes else 0
        acc = tuple(tw.accumulator(self.mma, fill=fill) for _ in count)
        total = tuple(tw.accumulator(self.mma) for _ in count) if self.promote else acc
        return Sums(acc, total)

    def verbs(self, sums: Sums, operands: Operands) -> list[Verb]:
        """Multiply a step; wait for the one that is known to be complete then."""

        def multiply(step: Step) -> None:
            of_m, of_n = operands(step)
            if not self.mma.atom.asynchronous:
                for one in self.products:
                    tw.mma(of_m[one.a], of_n[one.b], sums.acc[one.total], negative=one.negative)
                return
            mma_fence()
            self._begin(step, sums, of_m, of_n)
            mma_commit()

        found = [Verb("multiply", 0, multiply)]
        if self.mma.atom.asynchronous:
            found.append(Verb("retire", -self.behind, lambda step: mma_wait(step.behind), outside=True))
        return found

    def _begin(self, step: Step, sums: Sums, of_m: Held, of_n: Held) -> None:
        """All products of a step, in the background; the first one of a total may begin it afresh."""
        begun: set[int] = set()
        for one in self.products:
            b = of_n[one.b]
            if not isinstance(b, Tensor):
                text = f"{self.mma.atom} takes operand B from shared memory"
                raise TraceError(f'{text}; nearest legal choice: staging="cp_async"', here())
            fresh = self.refreshes and one.total not in begun and step.index % self.promote == 0
            mma_async(of_m[one.a], b, sums.acc[one.total], fresh=fresh, negative=one.negative)
            begun.add(one.total)

    def promoting(self, sums: Sums) -> Sequence[Verb]:
        """Every so often add the sums to those that keep all bits; behind all that waits for products."""

        def promote(step: Step) -> None:
            with when((step.index + 1) % self.promote == 0):
                if self.behind:
                    mma_wait(0)
                for total, acc in zip(sums.total, sums.acc, strict=True):
                    total.assign(total + acc)
                    if not self.refreshes:
                        tw.fill(acc, 0)

        return [Verb("promote", 0, promote)] if self.promote else []

    def end(self, sums: Sums, steps: Index) -> tuple[Fragment, ...]:
        """The sums, when all steps are done."""
        if self.promote > 1:
            with when(steps % self.promote != 0):
                for total, acc in zip(sums.total, sums.acc, strict=True):
                    total.assign(total + acc)
        return sums.total
