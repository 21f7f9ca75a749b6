"""A staging whose threads copy the next tile into one half of shared memory, and multiply the other half."""

from __future__ import annotations

from tilewright.lang import operations as tw
from tilewright.schedule.pipeline import LoopStep, Verb
from tilewright.schedule.plans import Sums
from tilewright.schedule.provenance import made_by
from tilewright.schedule.rings import WholeBlock
from tilewright.schedule.work import Work


class DoubleBuffer(WholeBlock):
    """A ring that all threads fill themselves, with one barrier for each step."""

    least_stages, most_stages = 2, 0

    def verbs(self, work: Work, sums: Sums) -> list[Verb]:
        """Meet, copy the next tile, multiply this one; the barrier frees the stage that is copied to."""

        def load(step: LoopStep) -> None:
            for move in self._pairs(work, step):
                with made_by(node=move.part):
                    tw.copy(move.source, move.target, **move.dealing)

        return [
            Verb("ready", 0, lambda step: self._meet()),
            Verb("load", self.schedule.stages - 1, load),
            *self.accumulation.verbs(sums, self._operands, work),
            *self.accumulation.promoting(sums, work),
        ]

    def end(self, work: Work) -> None:
        """The next tile fills the ring again."""
        if self.schedule.blocks or self.schedule.batches > 1:
            tw.barrier()
