"""The ring that bulk copies fill: one warp copies, groups of warps multiply, with transaction barriers.

Groups may decode operand A.  A group loads its part of A from shared memory and decodes it in registers.  It
multiplies these registers by the tile of B in shared memory, while it decodes the next part.

If bulk copies can load one operand only, four warps copy.  All their threads load the other operand, such as
rows that integers choose, by ``cp.async``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tilewright.dtypes import DType
from tilewright.lang import operations as tw
from tilewright.lang.asynchrony import acquire_map, fence_async, tma_load
from tilewright.lang.control import let, unroll, when
from tilewright.lang.roles import role, role_barrier
from tilewright.lang.scalars import Index, minimum
from tilewright.lang.tensors import Fragment, Tensor
from tilewright.lang.tracer import current
from tilewright.lang.transaction_barriers import Barriers, arrive, cluster_barrier, wait
from tilewright.schedule.bulk_views import against_bulk, anywhere, aside
from tilewright.schedule.facts import Reasons, ScheduleFacts
from tilewright.schedule.form import Form
from tilewright.schedule.needs import ROW_BYTES, Buffer, Needs, barriers
from tilewright.schedule.pipeline import LoopStep, Verb
from tilewright.schedule.plans import Held, Sums, TileAccumulation, accumulation
from tilewright.schedule.provenance import made_by
from tilewright.schedule.rings import Agent, OperandSource, Sources, Staging, of_both, ring_of
from tilewright.schedule.scaled_sums import ScaleRing, scale_tiles
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.sides import width
from tilewright.schedule.stages import Share, SwizzledStages, zero_after
from tilewright.schedule.work import Work, natural

COPYING_WARPS = 4
"""Warps of the group whose first warp copies; only whole warpgroups can give registers away."""

COPYING_REGISTERS = 40
"""Registers of each thread of the copying group."""


class BulkStaging(Staging):
    """A ring of stages that bulk copies fill; each stage has a full barrier and an empty barrier."""

    least_stages, most_stages = 2, 0
    takes_layout, is_aligned, by_bulk = False, True, True

    rank: tuple[Index, Index]
    shares: tuple[Share, Share]
    full: Barriers
    empty: Barriers
    turn: Barriers | None

    is_accessed_by_threads = False
    """Whether threads access a stage, not only bulk copies and an asynchronous atom."""

    copying_warps = 1
    """Warps that copy."""

    def __init__(
        self, schedule: Schedule, form: Form, sources: Sources, before: Staging | None = None
    ) -> None:
        super().__init__(schedule, form, sources, before)
        self.before = before if isinstance(before, BulkStaging) else None
        self.store_work: list[Callable[[], None]] = []
        """Functions that store results; the other warps of the copying group run them."""
        self.stages = schedule.stages
        self.pingpong = schedule.roles == "ping-pong"
        self.rings = tuple(self._ring(source) for source in sources)
        self.scales = ScaleRing.of([source.scales for source in sources], schedule)

    @classmethod
    def variant(cls, schedule: Schedule, *, decodes: bool) -> type[Any]:
        """`DecodingBulk` if threads decode operand A for an asynchronous atom, else this class."""
        return DecodingBulk if decodes and schedule.atom.asynchronous else cls

    @classmethod
    def needs(cls, facts: ScheduleFacts) -> Needs:
        """Stages, scales, two barriers for each stage, and the threads of the role that copies."""
        schedule, lanes, named = facts.schedule, facts.arch.lanes, cls.barriers_of(facts.schedule)
        copying = (COPYING_WARPS if schedule.registers else cls.copying_warps) * lanes
        threads = copying + schedule.groups * facts.mma.threads
        return replace(super().needs(facts), barriers=tuple(named.values()), threads=threads)

    @classmethod
    def metadata(cls, facts: ScheduleFacts) -> list[Buffer]:
        """Buffers in shared memory for the scales of rows."""
        return [*scale_tiles(facts.schedule, facts.form, facts.specs)]

    @staticmethod
    def barriers_of(schedule: Schedule) -> dict[str, Buffer]:
        """Barriers by name: full and empty of each stage, and turns of ping-pong groups."""
        counts = {"full": schedule.stages, "empty": schedule.stages}
        if schedule.roles == "ping-pong":
            counts["turn"] = schedule.groups
        return {name: barriers(name, count) for name, count in counts.items()}

    def _ring(self, source: OperandSource) -> SwizzledStages:
        [buffer] = map(self.placed, self.buffers_of(self.schedule, source.tile, 0))
        return ring_of(self.schedule, source, buffer)

    def begin_block(self, rank: tuple[Index, Index]) -> None:
        """Make the barriers of the ring, or take over those of an earlier loop.

        Args:
            rank: this block's place in its cluster.
        """
        if (first := self.before) is not None:  # a later loop reuses the barriers of the first one
            self.rank, self.shares = first.rank, first.shares
            self.full, self.empty, self.turn = first.full, first.empty, first.turn
            return
        self.rank, (across, beside) = rank, self.schedule.cluster
        warps = self.schedule.mma.threads // current().lanes
        arrivals = warps * (1 if self.pingpong else self.schedule.groups) * (across + beside - 1)
        # Blocks along N load the same rows of A, blocks along M the same rows of B.
        self.shares = Share(beside, rank[1], 1), Share(across, rank[0], 0)
        made = self.barriers_of(self.schedule)
        full = made["full"].barriers(arrivals=self.arrivals)
        empty = made["empty"].barriers(arrivals=arrivals)
        turn = made["turn"].barriers(arrivals=warps) if self.pingpong else None
        self.full, self.empty, self.turn = full, empty, turn
        tw.barrier() if self.alone else cluster_barrier()

    @property
    def arrivals(self) -> int:
        """Arrivals that the full barrier of a stage expects, in addition to the bytes of bulk copies."""
        return 1

    @property
    def alone(self) -> bool:
        """Whether a block shares no operands with others."""
        return self.schedule.cluster == (1, 1)

    def assign_stores(self, works: Sequence[Callable[[], None]]) -> None:
        """Assign functions that store results to the other warps of the copying group."""
        self.store_work = [*works]

    def end_block(self) -> None:
        """Wait until no other block can arrive at this block's barriers."""
        if not self.alone:
            with made_by("cluster"):
                cluster_barrier()

    def release(self, stage: Index) -> None:
        """Arrive at the empty barriers of a stage in every block whose copies fill it."""
        if self.alone:
            arrive(self.empty[stage], each="warp")
            return
        (across, beside), (row, column) = self.schedule.cluster, self.rank
        relaxed = self.schedule.atom.asynchronous and not self.is_accessed_by_threads and not self.scales
        relaxed = relaxed and not self.form.row_sums and self.form.bounded is None
        for i in unroll(across):
            arrive(self.empty[stage], each="warp", block=((row + i) % across, column), relaxed=relaxed)
        for j in unroll(beside - 1):
            arrive(self.empty[stage], each="warp", block=(row, (column + 1 + j) % beside), relaxed=relaxed)

    def agents(self) -> list[Producer | Consumer]:
        """The agent that copies and the agent that multiplies.

        If no registers are given away, one warp copies; it comes last, so that whole warpgroups multiply.
        """
        copying, multiplying = self.producer(), self.consumer()
        return [copying, multiplying] if self.schedule.registers else [multiplying, copying]

    def producer(self) -> Producer:
        """The agent that copies."""
        return Producer(self)

    def consumer(self) -> Consumer:
        """The agent that multiplies."""
        return Consumer(self)

    def number(self, work: Work, at: LoopStep) -> Index:
        """The number of a step since the block began; it determines the stage and its phase."""
        if "number" in at.shared:
            return at.shared["number"] + at.ahead  # type: ignore[no-any-return]
        if at.ahead or not at.inside:
            return work.first + at.index
        step = let(work.first + at.index)
        at.shared["number"] = step
        return step


class Producer(Agent):
    """The warps that copy: one warp, if bulk copies load all operands."""

    def __init__(self, ring: BulkStaging) -> None:
        self.ring = ring

    @contextmanager
    def role(self, *, again: bool = False) -> Iterator[Index]:
        """Open the role of the copying warps; with a register budget, four warps release most registers."""
        budget = self.ring.schedule.registers
        outer = role(warps=COPYING_WARPS, registers=COPYING_REGISTERS) if budget else nullcontext()
        with outer:
            with role(warps=self.ring.copying_warps):
                yield 0
            for work in self.ring.store_work:
                work()

    def begin(self, work: Work) -> None:
        """Acquire the tensor maps of the arrays of a tile, if the maps are in global memory."""
        matrices = [source.matrix(work) for source in self.ring.sources if source.has_map]
        if not matrices:
            return
        with when(work.begins):
            for matrix in matrices:
                acquire_map(matrix)

    def arrived(self) -> None:
        """Make the writes of other GPUs visible to bulk copies."""
        fence_async("global")

    def verbs(self, work: Work, sums: None) -> list[Verb]:
        """Wait until a stage is empty, announce its bytes, copy."""
        ring = self.ring

        def load(step: LoopStep) -> None:
            number = ring.number(work, step)
            stage = let(number % ring.stages)
            wait(ring.empty[stage], 1 - number // ring.stages % 2)
            pairs = [*zip(ring.sources, ring.rings, strict=True)]
            carried = [pair for pair in pairs if self.carries(*pair)]
            sizes = [held.bytes for _, held in carried] + [one.bytes for one in ring.scales]
            arrive(ring.full[stage], expect_bytes=sum(sizes))
            for one in ring.scales:
                one.load(work, step.index, stage, ring.full[stage])
            # The first thread begins the bulk copies before it copies with the others.
            for source, held in [*carried, *(pair for pair in pairs if pair not in carried)]:
                with made_by(node=source.part):
                    matrix, row, share = source.matrix(work), source.row(work), ring.shares[source.side]
                    at = work.segment.begin + step.index
                    for tile, target in held.pairs(matrix, row, at, stage, share):
                        if (source, held) in carried:
                            barrier, axis = ring.full[stage], share.multicast
                            tma_load(tile, target, barrier, multicast=axis, readers=source.readers)
                        else:
                            tw.copy_async(tile, target, threads=ring.copying_warps * current().lanes)

        return [Verb("load", 0, load)]

    def carries(self, source: OperandSource, held: SwizzledStages) -> bool:
        """Whether bulk copies load an operand."""
        return True


class Consumer(Agent):
    """Groups of warps that multiply."""

    accumulation: TileAccumulation
    loads = False

    def __init__(self, ring: BulkStaging) -> None:
        self.ring = ring
        schedule = ring.schedule
        self.each = schedule.groups if ring.pingpong else 1
        scales = [source.scales for source in ring.sources]
        self.accumulation = accumulation(schedule, scales, ring.form, 1, ring.inner)

    @contextmanager
    def role(self, *, again: bool = False) -> Iterator[Index]:
        """Open the role of the multiplying groups; ``again`` opens it once more, for the first warps."""
        schedule = self.ring.schedule
        warps, first = schedule.mma.threads // current().lanes, 0 if again else None
        registers = schedule.registers or None
        with role(warps=warps, groups=schedule.groups, registers=registers, first=first) as g:
            yield g

    def begin(self, work: Work) -> Sums:
        """Allocate the sums; ping-pong groups wait for their turn to multiply."""
        sums = self.accumulation.begin()
        ring, groups = self.ring, self.ring.schedule.groups
        if ring.turn is not None:
            before = (work.group + groups - 1) % groups
            # Parity 1 of a fresh barrier passes at once, for the first group.
            wait(ring.turn[before], (work.item + 1 - minimum(work.group, 1)) % 2)
        return sums

    def meet(self, work: Work) -> None:
        """Synchronise the warps of a group.  The epilogue uses the barriers with lower numbers."""
        fence_async()
        schedule = self.ring.schedule
        role_barrier(1 + schedule.groups + work.group, threads=schedule.mma.threads)

    def issued(self, work: Work) -> None:
        """Give the next ping-pong group its turn to multiply."""
        if self.ring.turn is not None:
            arrive(self.ring.turn[work.group], each="warp")

    def verbs(self, work: Work, sums: Sums) -> list[Verb]:
        """Wait until a stage is full, multiply, release the previous stage."""
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

        def clear(step: LoopStep) -> None:
            self._clear(work, step)

        return [
            Verb("acquire", 0, acquire),
            *([Verb("clear", 0, clear)] if ring.form.ends_within(ring.schedule.block_k) else []),
            *self.accumulation.verbs(sums, operands, work, column),
            Verb("release", -self.accumulation.behind, release),
            *self.accumulation.promoting(sums, work),
        ]

    def _clear(self, work: Work, step: LoopStep) -> None:
        """Zero the elements of a stage after the end of a group along K: boxes reach into the next group.

        Groups of warps that multiply the same stage share its tile of B.  Each of them clears an equal part
        of this tile.  If it has no equal parts, the first group clears all of it.
        """
        ring, cut = self.ring, work.cuts[2]
        assert cut is not None, "K has groups"
        schedule, depth = ring.schedule, ring.schedule.block_k
        left = let(natural(cut.stop - cut.start - (work.segment.begin + step.index) * depth))
        sharing = 1 if ring.pingpong else schedule.groups
        with when(left < depth):
            for source, held in zip(ring.sources, ring.rings, strict=True):
                tile = held.operand(step.shared["stage"], 0 if source.side else work.group)
                is_whole = bool(source.side and tile.shape[0] % sharing)
                if source.side and sharing > 1 and not is_whole:
                    tile = tile.tiles((tile.shape[0] // sharing, depth))[work.group, 0]
                with when(work.group == 0) if is_whole else nullcontext():
                    zero_after(tile, left, schedule.mma.threads)
            fence_async()
            first = 1 + schedule.groups  # the epilogue uses the barriers with lower numbers
            number = first + work.group if ring.pingpong else first
            role_barrier(number, threads=schedule.mma.threads * sharing)


# ---------------------------------------------------------------- operands that bulk copies do not carry


class MixedProducer(Producer):
    """The copying warps; their threads copy the operands that bulk copies cannot load.

    The matrix unit sees copies by threads only after a fence, which a barrier that waits for the copies
    cannot execute.  So a thread waits for its copies of an earlier step, while later ones are in flight.
    Then it executes the fence and arrives at the barrier.
    """

    ring: MixedStaging

    def carries(self, source: OperandSource, held: SwizzledStages) -> bool:
        """Whether bulk copies load an operand."""
        with aside():
            tile, target = held.pairs(source.sample, anywhere("row"), anywhere("step"), 0, Share())[0]
            return not against_bulk(tile, target.dtype, stored=False)

    def verbs(self, work: Work, sums: None) -> list[Verb]:
        """Copy a step; wait for the own copies of an earlier step, and arrive at its full barrier."""
        ring = self.ring
        [copying] = super().verbs(work, sums)

        def load(step: LoopStep) -> None:
            copying.do(step)
            tw.async_commit()

        def ready(step: LoopStep) -> None:
            tw.async_wait(step.behind)
            fence_async()
            arrive(ring.full[ring.number(work, step) % ring.stages], each="warp")

        return [replace(copying, do=load), Verb("ready", -ring.under_way, ready)]


class MixedStaging(BulkStaging):
    """A ring that bulk copies fill; threads of the copying warps copy the operands that these cannot load."""

    is_accessed_by_threads = copies_too = True
    copying_warps = COPYING_WARPS

    @property
    def arrivals(self) -> int:
        """One arrival for the bulk copies, and one of each copying warp for its own copies."""
        return 1 + self.copying_warps

    @property
    def under_way(self) -> int:
        """Steps whose copies begin before a thread waits for the copies of an earlier step.

        A stage is released only when the next step is multiplied, so more steps would deadlock.
        """
        return self.stages - 2

    @classmethod
    def variant(cls, schedule: Schedule, *, decodes: bool) -> type[Any]:
        """This class; `against` refuses operands that are decoded."""
        return cls

    @classmethod
    def against(cls, facts: ScheduleFacts) -> Reasons:
        """Reasons unless bulk copies can load some operands, and ``cp.async`` all others."""
        schedule, product, what = facts.schedule, facts.form.sum, 'staging="mixed"'
        copied = [side for side in facts.sides if not facts.is_carried(side)]
        if not copied:
            yield "staging", f"{what}; bulk copies carry all operands", 'staging="tma"', product
        if len(copied) == len(facts.sides):
            yield "staging", f"{what}; bulk copies carry no operand", 'staging="cp_async"', product
        for factor in (side.factor for side in facts.sides if not side.factor.is_plain):
            text = f"{what}; {factor.name} is decoded, and warps that copy would have to decode it"
            yield "staging", text, 'staging="fragments"', factor.part
        if 1 in (facts.form.m.extent, facts.form.n.extent):
            text = f"{what}; the result is a vector, and is not stored in slices of its columns"
            yield "staging", text, 'staging="cp_async"', product
        least = min(facts.arch.async_bytes, default=1)
        for side in copied:
            name, part, vector = side.factor.name, side.factor.part, width(side.spec)
            if vector < least:
                text = f"{what}; rows of {name} begin at multiples of {vector} bytes"
                text += f", and cp.async needs {least}"
                yield "staging", text, 'staging="registers"', part
            if facts.parts(side) > 1:
                text = f"cluster={schedule.cluster}; threads copy {name} for their own block"
                yield "cluster", text, "cluster=(1, 1)", part
            size = (facts.tile[2] if side.along_rows else facts.box_rows(side)) * ROW_BYTES
            if size % (unit := cls.copying_warps * facts.arch.lanes * least):
                text = f"{what}; {cls.copying_warps} warps copy boxes of {size} bytes of {name}"
                yield "tile", text, f"an extent of boxes of a multiple of {unit} bytes", part

    def producer(self) -> MixedProducer:
        """The agent that copies."""
        return MixedProducer(self)


# ---------------------------------------------------------------- operand A decoded in registers

SETS = 2
"""Sets of registers: the multiplication reads one while the next part is decoded into the other."""


def part_depth(dtype: DType) -> int:
    """Depth of a part along K: 128 bytes of the multiplied dtype, so that parts of B are whole boxes."""
    return ROW_BYTES // dtype.bytes


@dataclass(frozen=True)
class Decoded:
    """The registers of a decoded operand along M.

    Args:
        source: the operand.
        ring: its stages, which bulk copies fill.
        raw: the elements of a part before they are decoded.
        made: the decoded parts, in `SETS` sets.
    """

    source: OperandSource
    ring: SwizzledStages
    raw: Fragment
    made: tuple[Fragment, ...]


class DecodingConsumer(Consumer):
    """A `Consumer` that decodes the next part of a tile while it multiplies this part."""

    def __init__(self, ring: BulkStaging) -> None:
        super().__init__(ring)
        schedule = ring.schedule
        self.depth = part_depth(schedule.atom.a_dtype)
        self.parts = schedule.block_k // self.depth
        self.accumulation = replace(self.accumulation, parts=self.parts)
        self.spread = tw.operand_a(schedule.mma, self.depth)

    def verbs(self, work: Work, sums: Sums) -> list[Verb]:
        """Multiply a part; when the part before is complete, decode the next one into its registers.

        A part is fetched one part before it is decoded, to hide the latency of shared memory.  It is decoded
        at once in two cases.  If a part is half of a tile, the next tile would be needed too early.  If the
        operand is not contiguous along K, each fetched element would take a register of its own.
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

        def acquire(step: LoopStep) -> None:
            number = self._number(work, step)
            wait(self.ring.full[number % self.ring.stages], number // self.ring.stages % 2)

        at_once = self.parts == SETS or any(one.source.sample.unit_dim == 0 for one in decoded)
        ahead = 1 if at_once else 2
        decode = Verb("decode", 1, partial(self._decode, decoded, work), outside=not at_once)
        fetching = [
            Verb("acquire", ahead, acquire, self.parts),
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
            # The part after the last one is decoded too, and not multiplied: it must have some value.
            raw = tw.fragment(self.spread, source.factor.held, 0, name=f"r{source.name}")
            kind, name = self.ring.schedule.atom.a_dtype, f"d{source.name}"
            return Decoded(
                source, ring, raw, tuple(tw.fragment(self.spread, kind, name=name) for _ in range(SETS))
            )

    def _fetch(self, decoded: Sequence[Decoded], work: Work, step: LoopStep) -> None:
        """Load the elements of a part from shared memory."""
        stage = self._number(work, step) % self.ring.stages
        for one in decoded:
            tile = one.ring.operand(stage, work.group)
            tw.copy(tile.tiles(self.spread.shape)[0, step.part], one.raw)

    def _decode(self, decoded: Sequence[Decoded], work: Work, step: LoopStep) -> None:
        """Decode a part into the set of registers that no multiplication reads any more."""
        for one in decoded:
            row = one.source.row(work)
            if not self.ring.pingpong:  # groups share the rows of a tile
                row = row * self.ring.schedule.groups + work.group
            made = one.source.decoded(one.raw, work, step, self.ring.schedule.block_k, row)
            one.made[step.part % SETS].assign(made)

    def _number(self, work: Work, step: LoopStep) -> Index:
        """The number of a step; outside the loop it is computed again, because no iteration holds it."""
        return self.ring.number(work, step) if step.inside is True else work.first + step.index


class DecodingBulk(BulkStaging):
    """The ring whose consumers decode operand A."""

    is_accessed_by_threads = True

    @classmethod
    def registers(cls, facts: ScheduleFacts) -> int:
        """Registers of a thread for one part of operand A before decoding, and for `SETS` decoded parts."""
        kind, rows_m = facts.schedule.atom.a_dtype, facts.form.rows_m
        values = facts.mma.a(part_depth(kind)).size_values
        raw = sum(-(-values * factor.dtype.bytes // 4) for factor in rows_m)
        return raw + SETS * len(rows_m) * -(-values * kind.bytes // 4)

    @classmethod
    def against(cls, facts: ScheduleFacts) -> Reasons:
        """A reason if the number of parts of a tile is no multiple of `SETS`."""
        (m, n, k), depth = facts.tile, SETS * part_depth(facts.schedule.atom.a_dtype)
        if k % depth:
            rule = f"{SETS} register sets hold one part of the depth each"
            text = f"tile depth {k} is no multiple of {depth}: {rule}"
            near = (m, n, max(round(k / depth), 1) * depth)
            yield "tile", text, f"tile={near}", facts.form.sum

    def consumer(self) -> DecodingConsumer:
        """The agent that decodes and multiplies."""
        return DecodingConsumer(self)
