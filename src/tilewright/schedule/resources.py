"""The tables of strategies, and the resources of a schedule: the sum of the needs of its strategies.

Resources are computed for thousands of schedules, without expanding a kernel; a test compares them with the
expanded kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations

from tilewright.schedule.bulk import BulkStaging, MixedStaging
from tilewright.schedule.epilogue.direct import DirectEpilogue
from tilewright.schedule.epilogue.staged import OverlappedEpilogue, StagedEpilogue
from tilewright.schedule.facts import ScheduleFacts
from tilewright.schedule.fixup import (
    AtomicSums,
    ClusterSums,
    GroupSums,
    ReduceScatter,
    SplitReduction,
    TurnstileSums,
    WorkspaceSums,
)
from tilewright.schedule.form import Form
from tilewright.schedule.fragments_ring import Fragments
from tilewright.schedule.inner import inner_buffers, schedule_of
from tilewright.schedule.lists import ListTiles
from tilewright.schedule.needs import (
    PARTIAL,
    RESULT,
    RING,
    TICKET,
    Buffer,
    Needs,
    shared_by_loops,
    shared_of,
    tickets,
)
from tilewright.schedule.panels_ring import PanelStaging
from tilewright.schedule.partition import Batches, DataParallel, Partition, Shares
from tilewright.schedule.persistent import Persistent, Stream
from tilewright.schedule.plans import row_sum_plan, values_of_sums
from tilewright.schedule.registers_ring import Registers
from tilewright.schedule.rings import CpAsync, DirectStaging, DoubleBuffer, Staging
from tilewright.schedule.scaled_sums import scale_maps
from tilewright.schedule.schedule import Schedule, declare

STAGING_CLASSES: Mapping[str, type[Staging]] = {
    "direct": DirectStaging,
    "panels": PanelStaging,
    "double": DoubleBuffer,
    "registers": Registers,
    "cp_async": CpAsync,
    "fragments": Fragments,
    "tma": BulkStaging,
    "mixed": MixedStaging,
}
"""Stagings: how tiles of A and B are loaded before they are multiplied, by the values of `Schedule.staging`.

``"direct"``: copied into shared memory, then multiplied.  ``"panels"``: packed in the order in which a single
thread multiplies them.  ``"double"``: the next tile is copied into one half of shared memory while the other
half is multiplied.  ``"registers"``: the next tile waits in registers while this one is multiplied.
``"cp_async"``: a ring of tiles in shared memory is filled in the background.  ``"fragments"``: as before, and
from there into registers one part ahead of the multiplication.  ``"tma"``: a separate warp fills the ring by
bulk copies; see ``roles``.  ``"mixed"``: likewise, with four warps, whose threads copy the operands that bulk
copies do not carry, such as rows that integers choose.
"""

EPILOGUE_CLASSES: Mapping[str, type[DirectEpilogue]] = {
    "direct": DirectEpilogue,
    "staged": StagedEpilogue,
    "overlapped": OverlappedEpilogue,
}
"""Epilogues: how a tile of the result is stored to global memory, by the values of `Schedule.epilogue`.

``"direct"``: from registers.  ``"staged"``: through shared memory; if warps have roles, slice by slice and by
bulk copies.  ``"overlapped"``: likewise, but separate warps store a tile while the next one is multiplied,
and load the arrays that are added to the sums.
"""

REDUCTION_CLASSES: Mapping[str, type[SplitReduction]] = {
    "workspace": WorkspaceSums,
    "reduce-scatter": ReduceScatter,
    "turnstile": TurnstileSums,
    "atomic": AtomicSums,
    "cluster": ClusterSums,
}
"""Reductions: how the sums of the parts of K are added up, by the values of `Schedule.reduction`.

``"workspace"``: each part is written to its own memory, and the last block to arrive adds the parts in their
order.  ``"reduce-scatter"``: likewise, but the blocks of a tile wait for each other, and each adds up all
parts, in their order, of a share of the tile; on a GPU all of them must run at once.  If the result is
reduced, or stored along one dimension, the first block does the whole tile.  ``"turnstile"``: each part waits
for the one before it and adds its own.  ``"atomic"``: parts are added in memory in the order in which they
arrive, so that floats may be rounded differently from run to run. ``"cluster"``: the blocks of a tile's parts
are a cluster; each keeps its sums in its shared memory, and all add up the parts, in their order, of a share
of the tile.
"""

PARTITIONS: Sequence[type[Partition]] = (ListTiles, Stream, Shares, Persistent, Batches, DataParallel)
"""The partitions: a kernel has the first that takes its schedule."""

declare(STAGING_CLASSES, EPILOGUE_CLASSES, REDUCTION_CLASSES)


def staging_of(schedule: Schedule, *, decodes: bool) -> type[Staging]:
    """The staging of a schedule.

    Args:
        schedule: the schedule.
        decodes: whether operand A is decoded inside the main loop.
    """
    return STAGING_CLASSES[schedule.staging].variant(schedule, decodes=decodes)


def reduction_of(schedule: Schedule) -> type[SplitReduction]:
    """The reduction of a schedule."""
    if schedule.along_k > 1:
        return GroupSums
    return REDUCTION_CLASSES[schedule.reduction] if schedule.is_split else SplitReduction


def partition_of(form: Form, schedule: Schedule) -> type[Partition]:
    """The partition of a schedule for a kernel."""
    return next(one for one in PARTITIONS if one.takes(form, schedule))


@dataclass(frozen=True)
class ScheduleOnMachine(ScheduleFacts):
    """A schedule for a kernel, on arrays of some classes, on a machine, with its strategies."""

    @cached_property
    def staging(self) -> type[Staging]:
        """The staging: how tiles of the operands are loaded."""
        return staging_of(self.schedule, decodes=not self.form.a.is_plain)

    @cached_property
    def reduction(self) -> type[SplitReduction]:
        """The reduction: how the sums of the parts of K are added up."""
        return reduction_of(self.schedule)

    @cached_property
    def epilogue(self) -> type[DirectEpilogue]:
        """The epilogue: how results are stored to global memory."""
        return EPILOGUE_CLASSES[self.schedule.epilogue]

    @cached_property
    def staging_needs(self) -> Needs:
        """Needs of the staging: loops that follow each other share memory, threads and registers."""
        if len(self.form.loops) == 1:
            return self.staging.needs(self)
        cases = [replace(self, form=one, schedule=schedule_of(one, self.schedule)) for one in self.form.loops]
        every = [
            (staging_of(one.schedule, decodes=False) if one.form.reads_inner else self.staging).needs(one)
            for one in cases
        ]
        return replace(
            every[0],
            buffers=(
                *inner_buffers(self.form, self.rounded),
                *shared_by_loops([one.buffers for one in every]),
            ),
            registers=max(one.registers for one in every),
        )

    @cached_property
    def epilogue_needs(self) -> Needs:
        """Needs of the epilogue."""
        return self.epilogue.needs(self)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.staging_needs.threads + self.epilogue_needs.threads

    @property
    def copying(self) -> int:
        """Threads of the roles that copy, or that only store."""
        return self.threads - self.schedule.groups * self.mma.threads

    @property
    def held(self) -> int:
        """Registers of a thread that hold operands besides the sums, at least."""
        return self.staging_needs.registers

    @property
    def accumulators(self) -> int:
        """Registers of a thread that hold sums, and their scales."""
        schedule = self.schedule
        values = values_of_sums(self.mma, len(self.form.totals), schedule.promote)
        scaled = [(side.at, side.factor.scale) for side in self.sides if side.factor.scale is not None]
        maps = (scale_maps(self.mma, at, scale, aligned=not schedule.balanced) for at, scale in scaled)
        scales = sum(spread.size_values for held in maps for spread in held)
        rows = sum(row_sum_plan(self.form, one, self.rounded).values for one in self.form.row_sums)
        values += sum(self.inner_mma.c().size_values for _ in self.form.inner)
        return -(-values * schedule.atom.c_dtype.bytes // 4) + scales + rows

    @cached_property
    def shared(self) -> Sequence[Buffer]:
        """All buffers in shared memory, in the order of their allocation."""
        needs = self.reduction.needs(self)
        if self.form.flow.departure is not None:  # groups that store take a ticket for each tile
            count = self.schedule.groups if self.is_bulk else 1
            needs = replace(needs, tickets=(*needs.tickets, tickets(count)))
        return shared_of(self.staging_needs, self.epilogue_needs, needs)

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a block; buffers that are used at different times may share memory."""
        total, schedule = 0, self.schedule
        for buffer in self.shared:
            total = _up(total, buffer.align) + buffer.bytes
        # Memory is shared if a block computes one tile, and its barriers separate the uses of buffers.
        if schedule.stores_by_groups or self.is_persistent or not self.target.machine_code:
            return total
        # A barrier of a cluster holds the threads of all its blocks.
        if schedule.is_clustered or not any(self._are_apart(*pair) for pair in combinations(self.shared, 2)):
            return total
        # The largest buffer first, each as low as others leave room.
        placed: list[tuple[int, int, Buffer]] = []
        for buffer in sorted(self.shared, key=lambda one: -one.bytes):
            at = 0
            for low, high, other in sorted(placed, key=lambda one: one[:2]):
                if self._are_apart(buffer, other):
                    continue
                if at + buffer.bytes <= low:
                    break
                at = max(at, _up(high, buffer.align))
            placed.append((at, at + buffer.bytes, buffer))
        return min(total, max(high for _, high, _ in placed))

    def _are_apart(self, one: Buffer, other: Buffer) -> bool:
        """Whether two buffers of a block with phases may lie in the same memory.

        Results may lie in memory that was used before them if a barrier of the whole block comes between, and
        if only threads have used that memory.
        """
        schedule, kinds = self.schedule, {one.kind, other.kind}
        if schedule.atom.asynchronous and RING in kinds:
            return False
        if self.run and kinds == {TICKET, RING}:  # only some threads copy scales of groups into the ring
            return False
        return kinds in ({RESULT, PARTIAL}, {RESULT, RING}, {TICKET, RING}) or (
            schedule.is_split and kinds == {PARTIAL, RING}
        )


def _up(count: int, unit: int) -> int:
    return -(-count // unit) * unit
