"""Resources of a schedule on a multiprocessor: the sum of the needs of its strategies.

A test compares them with the expanded kernel. They answer for thousands of schedules, and before anything is
expanded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

from tilewright.schedule.bulk import BulkStaging
from tilewright.schedule.epilogue_resources import Leaving
from tilewright.schedule.facts import ScheduleFacts
from tilewright.schedule.fixup import SplitReduction, is_clustered, is_split, reduction_of
from tilewright.schedule.fragments_ring import Fragments
from tilewright.schedule.needs import PARTIAL, RESULT, RING, TICKET, Buffer, Needs, shared_of
from tilewright.schedule.panels_ring import PanelStaging
from tilewright.schedule.plans import values_of_sums
from tilewright.schedule.registers_ring import Registers
from tilewright.schedule.rings import CpAsync, DirectStaging, Staging
from tilewright.schedule.scaled_sums import scale_maps
from tilewright.schedule.schedule import Schedule

RINGS: Mapping[str, type[Staging]] = {
    "direct": DirectStaging,
    "panels": PanelStaging,
    "registers": Registers,
    "cp_async": CpAsync,
    "fragments": Fragments,
    "tma": BulkStaging,
}
"""The stagings, by the names that a schedule has for them."""


def staging_of(schedule: Schedule, *, decodes: bool) -> type[Staging]:
    """The staging of a schedule.

    Args:
        schedule: the schedule.
        decodes: whether operand A is decoded inside the main loop.
    """
    found: type[Staging] = RINGS[schedule.staging].variant(schedule, decodes=decodes)
    return found


@dataclass(frozen=True)
class ScheduleOnMachine(ScheduleFacts):
    """A schedule for a kernel, on arrays of some classes, on a machine, with its strategies."""

    @cached_property
    def staging(self) -> type[Staging]:
        """The way in which tiles of the operands come."""
        return staging_of(self.schedule, decodes=not self.form.a.is_plain)

    @cached_property
    def reduction(self) -> type[SplitReduction]:
        """The way in which the sums of the parts of K come together."""
        return reduction_of(self.schedule)

    @cached_property
    def leaving(self) -> Leaving:
        """The epilogue."""
        lanes = self.schedule.atom.lanes if not self.schedule.atom.asynchronous else self.arch.lanes
        return Leaving(self.schedule, self.form, self.specs, self.mma, lanes, self.arch.lanes)

    @cached_property
    def staging_needs(self) -> Needs:
        """Needs of the staging."""
        return self.staging.needs(self)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.staging_needs.threads + self.leaving.needs.threads

    @property
    def copying(self) -> int:
        """Threads of the roles that copy, or store what others have computed."""
        return self.threads - self.schedule.groups * self.mma.threads

    @property
    def storing_warps(self) -> int:
        """Warps that store what others have computed."""
        return self.leaving.storing_warps

    @property
    def held(self) -> int:
        """Registers of a thread that hold operands besides the sums, at least."""
        return self.staging_needs.registers

    @property
    def accumulators(self) -> int:
        """Registers of a thread that hold sums, and their scales."""
        values = values_of_sums(self.mma, len(self.form.totals), self.schedule.promote)
        return -(-values * self.schedule.atom.c_dtype.bytes // 4) + self._of_scales

    @property
    def _of_scales(self) -> int:
        """Registers of a thread that hold the scales of a sum."""
        scaled = [(side.at, side.factor.scale) for side in self.sides if side.factor.scale is not None]
        aligned = not self.schedule.balanced
        maps = (scale_maps(self.mma, at, scale, aligned=aligned) for at, scale in scaled)
        return sum(spread.size_values for held in maps for spread in held)

    @cached_property
    def shared(self) -> Sequence[Buffer]:
        """Everything in shared memory, in order."""
        return shared_of(self.staging_needs, self.leaving.needs, self.reduction.needs(self))

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a block."""
        total = 0
        for buffer in self.shared:
            total = _up(total, buffer.align) + buffer.bytes
        apart = any(self._are_apart(*pair) for pair in combinations(self.shared, 2))
        return min(total, self._overlaid()) if apart else total

    def _overlaid(self) -> int:
        """Bytes where buffers lie in the same memory: the largest first, each as low as others leave room."""
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
        return max(high for _, high, _ in placed)

    def _are_apart(self, one: Buffer, other: Buffer) -> bool:
        """Whether two buffers may lie in the same memory.

        So may results and what was used before them, where a barrier of the whole block stands between, no
        engine beside the threads has used what was there, and the block computes one tile alone.
        """
        schedule, kinds = self.schedule, {one.kind, other.kind}
        in_cluster = is_clustered(schedule)  # where no barrier holds the threads of one block alone
        if schedule.stores_by_groups or in_cluster or self.is_persistent or not self.target.machine_code:
            return False
        if schedule.atom.asynchronous and RING in kinds:
            return False
        if self.run and kinds == {TICKET, RING}:
            return False  # some threads alone copy the scales of groups into the ring
        return kinds in ({RESULT, PARTIAL}, {RESULT, RING}, {TICKET, RING}) or (
            is_split(schedule) and kinds == {PARTIAL, RING}
        )


def _up(count: int, unit: int) -> int:
    return -(-count // unit) * unit
