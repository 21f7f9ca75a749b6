"""Where K is split among the blocks of a cluster: they read each other's sums in shared memory."""

from __future__ import annotations

from tilewright.lang import operations as tw
from tilewright.lang.fragments import Fragment
from tilewright.lang.scalars import Index
from tilewright.lang.transaction_barriers import cluster_barrier, peer
from tilewright.schedule.adding import add_slices
from tilewright.schedule.epilogue.buffers import spare
from tilewright.schedule.partition import Work
from tilewright.schedule.provenance import made_by
from tilewright.schedule.schedule import Schedule
from tilewright.threads.distribution import Distribution
from tilewright.views.view import View


class ClusterSums:
    """The sums of a block's part, in its shared memory, where all blocks of the cluster read them.

    The blocks meet twice, with all their warps: when all sums are written, and when nobody reads them any
    more.  Groups of warps that share a tile have sums of their own.

    Args:
        schedule: how the product is computed.
    """

    def __init__(self, schedule: Schedule) -> None:
        assert isinstance(schedule.split_k, int), "a number of blocks, by the rules"
        self.blocks, kind = schedule.split_k, schedule.atom.c_dtype
        groups = schedule.groups if schedule.roles != "none" else 1
        rows, columns, _ = schedule.mma.tile
        stride = columns + spare(kind, along_rows=False)
        view = View.strided((groups, rows, columns), (rows * stride, stride, 1))
        self.sums = tw.shared((groups, rows, columns), kind, layout=view, name="partial_sums")

    def keep(self, work: Work, total: Fragment) -> None:
        """Write the sums of this block's part to where all read them."""
        with made_by("reduction"):
            tw.copy(total, self.sums[work.group])

    def meet(self) -> None:
        """Wait for all blocks of the cluster."""
        with made_by("reduction"):
            cluster_barrier()

    def total(self, work: Work, spread: Distribution, number: Index = 0) -> Fragment:
        """The sums of all parts, added up in their order, of some columns of a group's tile.

        Args:
            work: the tile.
            spread: which threads hold which elements of so many columns.
            number: which of the tile's equal slices they are.
        """
        with made_by("reduction"):
            total = tw.fragment(spread, self.sums.dtype)
            add_slices(total, self.blocks, self.blocks, number, lambda i: peer(self.sums, i)[work.group])
        return total
