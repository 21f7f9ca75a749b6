"""Groups of warps that share a tile along K: each has a ring of its own, and sums meet in shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tilewright.lang import operations as tw
from tilewright.lang.fragments import Fragment
from tilewright.lang.roles import meeting, role
from tilewright.lang.scalars import Index
from tilewright.lang.tracer import current
from tilewright.schedule.adding import add_parts
from tilewright.schedule.epilogue.buffers import spare
from tilewright.schedule.factors import Product
from tilewright.schedule.fragments_ring import Fragments
from tilewright.schedule.partition import Work
from tilewright.schedule.pipeline import Step
from tilewright.schedule.provenance import made_by
from tilewright.schedule.rings import Sources
from tilewright.schedule.schedule import Schedule
from tilewright.threads.distribution import Distribution
from tilewright.views.view import View


class AlongK(Fragments):
    """As `Fragments`, by each group of warps for a part of K: groups wait for nobody but themselves."""

    @contextmanager
    def role(self, *, again: bool = False) -> Iterator[Index]:
        """All groups; behind their parts of K the first one alone."""
        schedule = self.schedule
        warps = schedule.mma.threads // current().lanes
        with role(warps=warps, groups=1 if again else schedule.groups, first=0) as group:
            yield group

    def _stage(self, work: Work, step: Step) -> Index:
        return work.group * self.schedule.stages + super()._stage(work, step)

    def _arrived(self, work: Work) -> None:
        warps = self.schedule.mma.threads // current().lanes
        meeting(None if warps == 1 else 1 + work.group, "groups that share a tile along K")()


class GroupSums:
    """The sums of each group's part of K, in shared memory.

    Args:
        schedule: how the product is computed.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.groups, kind = schedule.groups, schedule.atom.c_dtype
        rows, columns, _ = schedule.mma.tile
        stride = columns + spare(kind, along_rows=False)
        shape = (self.groups, rows, columns)
        view = View.strided(shape, (rows * stride, stride, 1))
        self.sums = tw.shared(shape, kind, layout=view, name="partial_sums")

    def keep(self, work: Work, total: Fragment) -> None:
        """Write the sums of a group's part to where the first one reads them."""
        with made_by("reduction"):
            tw.copy(total, self.sums[work.group])

    def meet(self) -> None:
        """Wait for all groups."""
        with made_by("reduction"):
            tw.barrier()

    def total(self, spread: Distribution) -> Fragment:
        """The sums of all parts, added up in their order."""
        with made_by("reduction"):
            total = tw.fragment(spread, self.sums.dtype)
            add_parts(total, self.groups, self.groups, lambda i: self.sums[i])
        return total


def fragments_ring(schedule: Schedule, sources: Sources, products: tuple[Product, ...]) -> Fragments:
    """The ring of one group of warps, or of several that share a tile along K."""
    return (AlongK if schedule.along_k > 1 else Fragments)(schedule, sources, products)
