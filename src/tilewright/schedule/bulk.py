"""The ring that bulk copies fill: one warp copies, groups of warps multiply, with transaction barriers.

Groups may decode operand A on its way into the registers from which it is multiplied.  A group loads its
part of it from shared memory, decodes it in registers, and multiplies these by the tile of B in shared
memory, while it decodes the next part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tilewright.dtypes import DType
from tilewright.lang import operations as tw
from tilewright.lang.asynchrony import acquire_map, tma_load
from tilewright.lang.control import let, unroll, when
from tilewright.lang.roles import role
from tilewright.lang.scalars import Index, minimum
from tilewright.lang.tensors import Fragment, Tensor
from tilewright.lang.tracer import current
from tilewright.lang.transaction_barriers import arrive, cluster_barrier, wait
from tilewright.schedule.factors import FactorProduct
from tilewright.schedule.facts import Reasons, ScheduleFacts
from tilewright.schedule.fragments_ring import decoded_part
from tilewright.schedule.needs import ROW_BYTES, Buffer, Needs, barriers
from tilewright.schedule.partition import Work
from tilewright.schedule.pipeline import LoopStep, Verb
from tilewright.schedule.plans import Held, Sums, accumulation
from tilewright.schedule.provenance import made_by
from tilewright.schedule.rings import OperandSource, Sources, Staging, of_both, ring_of
from tilewright.schedule.scaled_sums import ScaleRing, scale_tiles
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.stages import Share, SwizzledStages

COPYING_WARPS = 4
"""Warps of the group whose first one copies: registers are given away by whole warpgroups."""

COPYING_REGISTERS = 40
"""Registers of each of their threads."""


class BulkStaging(Staging):
    """The ring: stages of all operands, each with a barrier for its coming and one for its going."""

    least_stages, most_stages = 2, 0
    takes_layout, is_aligned = False, True

    is_read_by_threads = False
    """Whether those who multiply by an asynchronous atom read a stage themselves."""

    def __init__(self, schedule: Schedule, sources: Sources, products: tuple[FactorProduct, ...]) -> None:
        super().__init__(schedule, sources, products)
        self.products = products
        self.beside: list[Callable[[], None]] = []
        """The work of the other warps of the group whose first warp copies."""
        self.stages = schedule.stages
        self.pingpong = schedule.roles == "ping-pong"
        self.rings = tuple(self._ring(source) for source in sources)
        self.scales = ScaleRing.of([source.scales for source in sources], schedule)

    @classmethod
    def variant(cls, schedule: Schedule, *, decodes: bool) -> type[Any]:
        """Threads decode operand A, if the instruction takes it from registers, or nobody decodes."""
        return DecodingBulk if decodes and schedule.atom.asynchronous else cls

    @classmethod
    def needs(cls, facts: ScheduleFacts) -> Needs:
        """Stages and scales, a barrier for the coming and the going of each stage, and a role that copies."""
        schedule, lanes, named = facts.schedule, facts.arch.lanes, cls.barriers_of(facts.schedule)
        copying = (COPYING_WARPS if schedule.registers else 1) * lanes
        threads = copying + schedule.groups * facts.mma.threads
        return replace(super().needs(facts), barriers=tuple(named.values()), threads=threads)

    @classmethod
    def metadata(cls, facts: ScheduleFacts) -> list[Buffer]:
        """Scales of rows."""
        return [*scale_tiles(facts.schedule, facts.form, facts.specs)]

    @staticmethod
    def barriers_of(schedule: Schedule) -> dict[str, Buffer]:
        """Barriers of the stages, and of groups that take turns at whole tiles."""
        counts = {"full": schedule.stages, "empty": schedule.stages}
        if schedule.roles == "ping-pong":
            counts["turn"] = schedule.groups
        return {name: barriers(name, count) for name, count in counts.items()}

    def _ring(self, source: OperandSource) -> SwizzledStages:
        """Groups that do not play ping-pong share the rows of A, and take the same ones of B."""
        [buffer] = self.buffers_of(self.schedule, source.tile, 0)
        return ring_of(self.schedule, source, buffer)

    def begin_block(self, rank: tuple[Index, Index]) -> None:
        """Make the barriers.

        Args:
            rank: this block's place in its cluster.
        """
        self.rank, (across, beside) = rank, self.schedule.cluster
        warps = self.schedule.mma.threads // current().lanes
        arrivals = warps * (1 if self.pingpong else self.schedule.groups) * (across + beside - 1)
        # Blocks along N take the same rows of A, blocks along M the same rows of B.
        self.shares = Share(beside, rank[1], 1), Share(across, rank[0], 0)
        made = self.barriers_of(self.schedule)
        full = made["full"].barriers(arrivals=1)
        empty = made["empty"].barriers(arrivals=arrivals)
        turn = made["turn"].barriers(arrivals=warps) if self.pingpong else None
        self.full, self.empty, self.turn = full, empty, turn
        tw.barrier() if self.alone else cluster_barrier()

    @property
    def alone(self) -> bool:
        """Whether a block shares nothing with others."""
        return self.schedule.cluster == (1, 1)

    def serve_beside(self, works: Sequence[Callable[[], None]]) -> None:
        """The other warps of the role that copies store what others have computed."""
        self.beside = [*works]

    def end_block(self) -> None:
        """No block ends while another one may still arrive at its barriers."""
        if not self.alone:
            with made_by("cluster"):
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

    def agents(self) -> list[Producer | Consumer]:
        """The copying agent and the multiplying agent; if no registers are given away, one warp copies alone.

        Whole warpgroups multiply, so that it comes behind them.
        """
        copying, multiplying = Producer(self), self.consumer()
        return [copying, multiplying] if self.schedule.registers else [multiplying, copying]

    def consumer(self) -> Consumer:
        """The agent that multiplies."""
        return Consumer(self)

    def number(self, work: Work, at: LoopStep) -> Index:
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

    def __init__(self, ring: BulkStaging) -> None:
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

        def load(step: LoopStep) -> None:
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

    def __init__(self, ring: BulkStaging) -> None:
        self.ring = ring
        schedule = ring.schedule
        self.each = schedule.groups if ring.pingpong else 1
        self.accumulation = accumulation(
            schedule, [source.scales for source in ring.sources], ring.products, 1
        )

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

        def acquire(step: LoopStep) -> None:
            number = ring.number(work, step)
            stage = let(number % ring.stages)
            step.shared["stage"] = stage
            wait(ring.full[stage], number // ring.stages % 2)

        def operands(step: LoopStep) -> tuple[Held, Held]:
            stage, groups = step.shared["stage"], (work.group, 0)
            pairs = zip(ring.rings, ring.sources, strict=True)
            return of_both(ring.sources, [held.operand(stage, groups[source.side]) for held, source in pairs])

        def column(step: LoopStep) -> Tensor:
            [scales] = ring.scales
            return scales.column(step.shared["stage"], 0 if ring.pingpong else work.group)

        def release(step: LoopStep) -> None:
            ring.release(ring.number(work, step) % ring.stages)

        return [
            Verb("acquire", 0, acquire),
            *self.accumulation.verbs(sums, operands, work, column),
            Verb("release", -self.accumulation.behind, release),
            *self.accumulation.promoting(sums, work),
        ]


# ---------------------------------------------------------------- operand A decoded in registers

SETS = 2
"""Sets of registers that take turns: the multiplication reads one while the other is decoded into."""


def part_depth(dtype: DType) -> int:
    """How deep a part is: a row of 128 bytes of what is multiplied, so that parts of B are whole panels."""
    return ROW_BYTES // dtype.bytes


@dataclass(frozen=True)
class Decoded:
    """The registers of an operand along M that is decoded.

    Args:
        source: the operand.
        ring: the stages that bulk copies bring it to.
        raw: a part as it lies in memory.
        made: the operand that is made of it, in as many sets as take turns.
    """

    source: OperandSource
    ring: SwizzledStages
    raw: Fragment
    made: tuple[Fragment, ...]


class DecodingConsumer(Consumer):
    """A `Consumer` that works part by part: it decodes the next part while it multiplies this one."""

    def __init__(self, ring: BulkStaging) -> None:
        super().__init__(ring)
        schedule = ring.schedule
        self.depth = part_depth(schedule.atom.a_dtype)
        self.parts = schedule.block_k // self.depth
        self.accumulation = replace(self.accumulation, parts=self.parts)
        self.spread = tw.operand_a(schedule.mma, self.depth)

    def verbs(self, work: Work, sums: Sums) -> list[Verb]:
        """Multiply a part; when the one before it is done, decode the next into its registers, fetch another.

        What is fetched is decoded one part later, so that nobody waits for shared memory.  It is decoded at
        once where a part is half of a tile, and the next tile would be asked for too early; and where
        neighbours along K are none in memory, and each number would take a register of its own until then.
        """
        pairs = [*zip(self.ring.sources, self.ring.rings, strict=True)]
        decoded = [self._registers(source, ring) for source, ring in pairs if not source.side]
        of_n = [ring for source, ring in pairs if source.side]

        def operands(step: LoopStep) -> tuple[Held, Held]:
            stage = self.ring.number(work, step) % self.ring.stages
            parts = []
            for ring in of_n:
                b = ring.operand(stage, 0)
                parts.append(b.tiles((b.shape[0], self.depth))[0, step.part])
            return [one.made[step.part % SETS] for one in decoded], parts

        def release(step: LoopStep) -> None:
            self.ring.release(self.ring.number(work, step) % self.ring.stages)

        at_once = self.parts == SETS or any(one.source.sample.unit_dim == 0 for one in decoded)
        ahead = 1 if at_once else 2
        decode = Verb("decode", 1, partial(self._decode, decoded, work), outside=not at_once)
        fetching = [
            Verb("acquire", ahead, partial(self._acquire, work), self.parts),
            Verb("fetch", ahead, partial(self._fetch, decoded, work)),
        ]
        return [
            *self.accumulation.verbs(sums, operands, work),
            Verb("release", -self.parts, release, self.parts),
            *([*fetching, decode] if at_once else [decode, *fetching]),
            *self.accumulation.promoting(sums, work),
        ]

    def _registers(self, source: OperandSource, ring: SwizzledStages) -> Decoded:
        with made_by("staging", source.part):
            # What is decoded behind the last part is multiplied by nobody, but it must be something.
            raw = tw.fragment(self.spread, source.held or source.sample.dtype, 0, name=f"r{source.name}")
            kind, name = self.ring.schedule.atom.a_dtype, f"d{source.name}"
            return Decoded(
                source, ring, raw, tuple(tw.fragment(self.spread, kind, name=name) for _ in range(SETS))
            )

    def _acquire(self, work: Work, step: LoopStep) -> None:
        """Wait until a stage is full."""
        ring, number = self.ring, self._number(work, step)
        wait(ring.full[number % ring.stages], number // ring.stages % 2)

    def _fetch(self, decoded: Sequence[Decoded], work: Work, step: LoopStep) -> None:
        """Load a part from shared memory as it lies there."""
        stage = self._number(work, step) % self.ring.stages
        for one in decoded:
            tile = one.ring.operand(stage, work.group)
            tw.copy(tile.tiles(self.spread.shape)[0, step.part], one.raw)

    def _decode(self, decoded: Sequence[Decoded], work: Work, step: LoopStep) -> None:
        """Make the operands of a part: into registers whose multiplication is known to be complete."""
        for one in decoded:
            row = one.source.row(work)
            if not self.ring.pingpong:  # whose groups take tiles of their own
                row = row * self.ring.schedule.groups + work.group
            made = decoded_part(one.source, one.raw, work, step, self.ring.schedule.block_k, row)
            one.made[step.part % SETS].assign(made)

    def _number(self, work: Work, step: LoopStep) -> Index:
        """The running number of a step; before the loop no iteration has a name for it yet."""
        return self.ring.number(work, step) if step.inside is True else work.first + step.index


class DecodingBulk(BulkStaging):
    """The ring from which operand A is decoded by those who multiply it."""

    is_read_by_threads = True

    @classmethod
    def registers(cls, facts: ScheduleFacts) -> int:
        """A part of operand A as it comes, and the sets that it is decoded into."""
        kind, rows_m = facts.schedule.atom.a_dtype, facts.form.rows_m
        values = facts.mma.a(part_depth(kind)).size_values
        raw = sum(-(-values * factor.dtype.bytes // 4) for factor in rows_m)
        return raw + SETS * len(rows_m) * -(-values * kind.bytes // 4)

    @classmethod
    def against(cls, facts: ScheduleFacts) -> Reasons:
        """Sets of registers take turns at the parts of a tile, whose sums are complete with its last part."""
        (m, n, k), depth = facts.tile, SETS * part_depth(facts.schedule.atom.a_dtype)
        if k % depth:
            text = f"a depth of {k} is no multiple of {depth}, for which {SETS} sets of registers take turns"
            near = (m, n, max(round(k / depth), 1) * depth)
            yield "tile", text, f"tile={near}", facts.form.sum

    def consumer(self) -> DecodingConsumer:
        """The agent that decodes and multiplies."""
        return DecodingConsumer(self)
