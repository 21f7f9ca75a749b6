"""Rings that bulk copies fill: one warp copies, groups of warps multiply, with transaction barriers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from tilewright.lang import operations as tw
from tilewright.lang.asynchrony import acquire_map, tma_load
from tilewright.lang.control import let, unroll, when
from tilewright.lang.roles import role
from tilewright.lang.scalars import Index, minimum
from tilewright.lang.tensors import Tensor
from tilewright.lang.tracer import current
from tilewright.lang.transaction_barriers import Barriers, arrive, cluster_barrier, mbarrier, wait
from tilewright.schedule.factors import Product
from tilewright.schedule.partition import Work
from tilewright.schedule.pipeline import Step, Verb
from tilewright.schedule.plans import Held, Sums, accumulation
from tilewright.schedule.provenance import made_by
from tilewright.schedule.rings import Source, Sources, of_both
from tilewright.schedule.scaled_sums import ScaleRing
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.stages import Share, SwizzledStages

COPYING_WARPS = 4
"""Warps of the group whose first one copies: registers are given away by whole warpgroups."""

COPYING_REGISTERS = 40
"""Registers of each of their threads."""


class Bulk:
    """The ring: stages of all operands, each with a barrier for its coming and one for its going."""

    is_read_by_threads = False
    """Whether those who multiply by an asynchronous atom read a stage themselves."""

    def __init__(self, schedule: Schedule, sources: Sources, products: tuple[Product, ...]) -> None:
        self.schedule, self.sources, self.products = schedule, sources, products
        self.beside: list[Callable[[], None]] = []
        """What is recorded of the other warps of the group whose first one copies."""
        self.stages = schedule.stages
        self.pingpong = schedule.roles == "ping-pong"
        self.rings = tuple(self._ring(source) for source in sources)
        self.scales = ScaleRing.of([source.scales for source in sources], schedule)

    def _ring(self, source: Source) -> SwizzledStages:
        """Groups that do not play ping-pong share the rows of A, and take the same ones of B."""
        schedule = self.schedule
        shared_by = 0 if self.pingpong or source.side else schedule.groups
        rows, depth, name = source.rows, schedule.block_k, f"s{source.name}"
        return SwizzledStages(source.sample, rows, depth, self.stages, shared_by, name)

    def synchronise(self, rank: tuple[Index, Index]) -> None:
        """Make the barriers.

        Args:
            rank: this block's place in its cluster.
        """
        self.rank, (across, beside) = rank, self.schedule.cluster
        warps = self.schedule.mma.threads // current().lanes
        arrivals = warps * (1 if self.pingpong else self.schedule.groups) * (across + beside - 1)
        # Blocks along N take the same rows of A, blocks along M the same rows of B.
        self.shares = Share(beside, rank[1], 1), Share(across, rank[0], 0)
        full = mbarrier(self.stages, arrivals=1)
        empty = mbarrier(self.stages, arrivals=arrivals)
        self.full, self.empty, self.turn = full, empty, self._turns(warps)
        tw.barrier() if self.alone else cluster_barrier()

    @property
    def alone(self) -> bool:
        """Whether a block shares nothing with others."""
        return self.schedule.cluster == (1, 1)

    def part(self) -> None:
        """No block ends while another one may still arrive at its barriers."""
        if not self.alone:
            cluster_barrier()

    def release(self, stage: Index) -> None:
        """Let every block that fills a stage fill it again."""
        if self.alone:
            arrive(self.empty[stage], each="warp")
            return
        (across, beside), (row, column) = self.schedule.cluster, self.rank
        relaxed = self.schedule.atom.asynchronous and not self.is_read_by_threads and not self.scales
        for i in unroll(across):
            arrive(self.empty[stage], each="warp", block=((row + i) % across, column), relaxed=relaxed)
        for j in unroll(beside - 1):
            arrive(self.empty[stage], each="warp", block=(row, (column + 1 + j) % beside), relaxed=relaxed)

    def _turns(self, warps: int) -> Barriers | None:
        """For each group that plays ping-pong a barrier that says that it has multiplied."""
        if not self.pingpong:
            return None
        return mbarrier(self.schedule.groups, arrivals=warps)

    def agents(self) -> list[Producer | Consumer]:
        """Those who copy, and those who multiply; where no registers are given away, one warp copies alone.

        Whole warpgroups multiply, so that it comes behind them.
        """
        copying, multiplying = Producer(self), self.consumer()
        return [copying, multiplying] if self.schedule.registers else [multiplying, copying]

    def consumer(self) -> Consumer:
        """Those who multiply."""
        return Consumer(self)

    def number(self, work: Work, at: Step) -> Index:
        """The running number of a step, by which it finds its stage and that stage's phase."""
        if "number" in at.shared:
            return at.shared["number"] + at.ahead  # type: ignore[no-any-return]
        if at.ahead or not at.inside:
            return work.first + at.index
        step = let(work.first + at.index)
        at.shared["number"] = step
        return step


class Producer:
    """One warp of a group of its own that copies."""

    each, parts, accumulation = 1, 1, None

    def __init__(self, ring: Bulk) -> None:
        self.ring = ring

    @contextmanager
    def role(self) -> Iterator[Index]:
        """One warp; one of four, which give most of their registers away."""
        budget = self.ring.schedule.registers
        outer = role(warps=COPYING_WARPS, registers=COPYING_REGISTERS) if budget else nullcontext()
        with outer:
            with role(warps=1):
                yield 0
            for work in self.ring.beside:
                work()

    def begin(self, work: Work) -> None:
        """Before the steps of a tile: see the tensor maps of its arrays, where these lie in memory."""
        matrices = [source.matrix(work) for source in self.ring.sources if source.has_map]
        if not matrices:
            return
        with when(work.begins):
            for matrix in matrices:
                acquire_map(matrix)

    def issued(self, work: Work) -> None:
        """When the last step is begun: nothing."""

    def end(self, work: Work) -> None:
        """Behind the steps: nothing."""

    def verbs(self, work: Work, sums: None) -> list[Verb]:
        """Wait until a stage is empty, say what is coming, copy."""
        ring = self.ring

        def load(step: Step) -> None:
            number = ring.number(work, step)
            stage = let(number % ring.stages)
            wait(ring.empty[stage], 1 - number // ring.stages % 2)
            sizes = [held.bytes for held in ring.rings] + [one.bytes for one in ring.scales]
            arrive(ring.full[stage], expect_bytes=sum(sizes))
            for one in ring.scales:
                one.load(work, step.index, stage, ring.full[stage])
            for source, held in zip(ring.sources, ring.rings, strict=True):
                with made_by(node=source.part):
                    matrix, row, share = source.matrix(work), source.row(work), ring.shares[source.side]
                    at = work.segment.begin + step.index
                    for tile, target in held.pairs(matrix, row, at, stage, share):
                        barrier, axis = ring.full[stage], share.multicast
                        tma_load(tile, target, barrier, multicast=axis, readers=source.readers)

        return [Verb("load", 0, load)]


class Consumer:
    """Groups of warps that multiply."""

    parts = 1

    def __init__(self, ring: Bulk) -> None:
        self.ring = ring
        schedule = ring.schedule
        self.each = schedule.groups if ring.pingpong else 1
        self.accumulation = accumulation(schedule, ring.sources, ring.products, 1)

    @contextmanager
    def role(self, *, again: bool = False) -> Iterator[Index]:
        """A role of several groups; where no registers are dealt out, the first warps may take it again."""
        schedule = self.ring.schedule
        warps, first = schedule.mma.threads // current().lanes, 0 if again else None
        registers = schedule.registers or None
        with role(warps=warps, groups=schedule.groups, registers=registers, first=first) as g:
            yield g

    def begin(self, work: Work) -> Sums:
        """Clear the sums; groups that play ping-pong wait for their turn to multiply."""
        sums = self.accumulation.begin()
        ring, groups = self.ring, self.ring.schedule.groups
        if ring.turn is not None:
            before = (work.group + groups - 1) % groups
            # Parity 1 of a fresh barrier passes at once: nobody multiplies before the first group.
            wait(ring.turn[before], (work.item + 1 - minimum(work.group, 1)) % 2)
        return sums

    def issued(self, work: Work) -> None:
        """Groups that play ping-pong leave the multiplying to the next one."""
        if self.ring.turn is not None:
            arrive(self.ring.turn[work.group], each="warp")

    def end(self, work: Work) -> None:
        """Behind the steps of a tile: nothing."""

    def verbs(self, work: Work, sums: Sums) -> list[Verb]:
        """Wait until a stage is full, multiply, let go of the stage before."""
        ring = self.ring

        def acquire(step: Step) -> None:
            number = ring.number(work, step)
            stage = let(number % ring.stages)
            step.shared["stage"] = stage
            wait(ring.full[stage], number // ring.stages % 2)

        def operands(step: Step) -> tuple[Held, Held]:
            stage, groups = step.shared["stage"], (work.group, 0)
            pairs = zip(ring.rings, ring.sources, strict=True)
            return of_both(ring.sources, [held.operand(stage, groups[source.side]) for held, source in pairs])

        def column(step: Step) -> Tensor:
            [scales] = ring.scales
            return scales.column(step.shared["stage"], 0 if ring.pingpong else work.group)

        def release(step: Step) -> None:
            ring.release(ring.number(work, step) % ring.stages)

        return [
            Verb("acquire", 0, acquire),
            *self.accumulation.verbs(sums, operands, work, column),
            Verb("release", -self.accumulation.behind, release),
            *self.accumulation.promoting(sums, work),
        ]
