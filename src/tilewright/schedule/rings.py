"""Rings: the interface of stagings and of their agents, and the stagings of a block without roles.

An agent is a group of warps that runs the main loop over the partition's tiles with its own verbs.  Without
roles the whole block is one agent; with roles one agent copies and others multiply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from tilewright.dataflow.nodes import ArrayPart
from tilewright.dtypes import DType
from tilewright.lang import operations as tw
from tilewright.lang.asynchrony import fence_async
from tilewright.lang.fragments import elementwise
from tilewright.lang.scalars import Index
from tilewright.lang.tensors import Fragment, Tensor
from tilewright.lang.tile_arithmetic import coordinates
from tilewright.layout.layout import Layout
from tilewright.schedule.factors import Factor
from tilewright.schedule.facts import Reasons, ScheduleFacts
from tilewright.schedule.form import Form
from tilewright.schedule.inner import InnerPlan, inner_plans
from tilewright.schedule.needs import ROW_BYTES, Buffer, Needs, taken
from tilewright.schedule.operand_metadata import OperandMetadata, Spot
from tilewright.schedule.pipeline import LoopStep, Verb
from tilewright.schedule.plans import Held, Sums, TileAccumulation, accumulation
from tilewright.schedule.provenance import made_by
from tilewright.schedule.scaled_sums import ScaleSource
from tilewright.schedule.schedule import Schedule, StagingTraits
from tilewright.schedule.sides import OperandSide, OperandTile
from tilewright.schedule.stages import (
    HeldTile,
    PackedTile,
    PairedStages,
    PlainStages,
    Share,
    SwizzledStages,
    Together,
    plain_tiles,
    swizzled_tiles,
)
from tilewright.schedule.work import Work


@dataclass(frozen=True)
class Pairs:
    """An array of pairs of numbers; each number of a pair belongs to one operand.

    Args:
        array: (rows, K, 2) or (K, rows, 2) in global memory, for a tile of the result.
        along_rows: whether the order is (K, rows, 2).
        which: index of the operand's number in a pair.
    """

    array: Callable[[Any], Tensor]
    along_rows: bool
    which: int


@dataclass(frozen=True)
class OperandSource:
    """Operand A or B of the traced kernel.

    Args:
        factor: the operand in the graph.
        matrix: (rows, K) in global memory, for a tile of the result.
        sample: the same matrix for any tile, with its dtype and contiguous dimension.
        side: 0 for operand A, 1 for operand B.
        rows: rows of the tile of one group.
        decode: function of a fragment of elements and of their place that returns the operand; None: the
            elements are multiplied as they are.
        is_cut: whether decoded elements past the edge of K are not 0, and must be replaced by 0.
        readers: number of blocks, or clusters, that load each element; 0: not known.
        scales: the scales of its products.
        beside: its side arrays.
        pairs: the array of pairs to which it belongs; None: it is copied by itself.
        is_inner: whether its rows are the columns of an inner product; one tile holds all of them.
    """

    factor: Factor
    matrix: Any
    sample: Tensor
    side: int
    rows: int
    decode: Callable[[Fragment, Spot], Any] | None
    is_cut: bool
    readers: Index
    scales: ScaleSource | None
    beside: OperandMetadata
    pairs: Pairs | None
    is_inner: bool = False

    @property
    def name(self) -> str:
        """The name of the operand."""
        return self.factor.name

    @property
    def part(self) -> ArrayPart:
        """The part of an array from which its tiles are loaded."""
        return self.factor.part

    @property
    def has_map(self) -> bool:
        """Whether the tensor maps of its arrays are in memory."""
        return self.sample.value.tensor.map is not None

    @property
    def tile(self) -> OperandTile:
        """The operand's tile, for its layout in shared memory."""
        unit, width = self.sample.unit_dim, ROW_BYTES // self.sample.dtype.bytes
        boxes_along_rows = self.sample.value.tensor.view.run_dim(width) == 0
        return OperandTile(self.factor, self.side, self.rows, unit == 0, unit == 1, boxes_along_rows)

    def row(self, work: Work) -> Index:
        """The row of tiles of the operand that a tile of the result needs."""
        return 0 if self.is_inner else work.n if self.side else work.m

    def decoded(
        self, held: Fragment, work: Work, step: LoopStep, block_k: int, row: Index, stage: Index = 0
    ) -> Any:
        """A decoded part of the operand, with 0 past the edge of K.

        Args:
            held: the elements of the part.
            work: the tile of the result.
            step: the tile along K, and the part of it.
            block_k: depth of a tile.
            row: index of the part among parts with the same number of rows.
            stage: the stage of the ring that holds the tile.
        """
        assert self.decode is not None, "this operand is not decoded"
        depth, tile = held.shape[1], work.segment.begin + step.index
        made = self.decode(held, Spot(work, row, tile * (block_k // depth) + step.part, stage, step.part))
        if not self.is_cut:
            return made
        first = tile * block_k
        left = self.matrix(work).shape[1] - first - step.part * depth
        return elementwise("select", coordinates(made, 1) < left, made, 0)


Sources = tuple[OperandSource, ...]
"""All operands, those along M first."""


def ring_of(schedule: Schedule, source: OperandSource, buffer: Buffer) -> SwizzledStages:
    """The ring of an operand in rows of 128 bytes under the swizzle."""
    tile, sharing = source.tile, 0 if source.side else schedule.sharing
    return SwizzledStages(buffer, tile.rows, schedule.block_k, sharing, along_rows=tile.boxes_along_rows)


def of_both(sources: Sources, held: Sequence[Tensor | Fragment]) -> tuple[Held, Held]:
    """The tiles of operands along M, and of those along N."""
    first = sum(source.side == 0 for source in sources)
    return held[:first], held[first:]


@dataclass(frozen=True)
class Move:
    """The copy of a tile for one step.

    Args:
        source: the tile in global memory.
        target: its place in shared memory, or a fragment for the multiplication.
        part: the part of an array in the graph.
        dealing: arguments of `tw.copy` that distribute the copy among threads.
        is_turned: whether each thread reads its part along the rows, and writes it along K.
        operand: the operand; None: the tile belongs to a side array.
    """

    source: Tensor
    target: Any
    part: ArrayPart | None
    dealing: dict[str, Any]
    is_turned: bool = False
    operand: OperandSource | None = None


class Agent:
    """A group of warps that runs the main loop over the tiles of a block."""

    each = 1
    """The agent takes one in this number of the block's tiles."""

    parts = 1
    """Parts of a step along K that are multiplied in turn."""

    accumulation: Any = None
    """Its accumulation plan; None if it only copies."""

    loads = True
    """Whether it loads operands from global memory."""

    def role(self, *, again: bool = False) -> AbstractContextManager[Index]:
        """Record operations of these warps only; yields the number of their group.

        Args:
            again: whether the warps take the role once more, after the last tile.
        """
        raise NotImplementedError

    def begin(self, work: Work) -> Any:
        """Prepare a tile; returns its sums."""
        raise NotImplementedError

    def arrived(self) -> None:
        """Prepare to load a tile whose shards have arrived; by default nothing."""

    def verbs(self, work: Work, sums: Any) -> list[Verb]:
        """The verbs of the main loop for a tile."""
        raise NotImplementedError

    def issued(self, work: Work) -> None:
        """Act when the last step of a tile has begun; by default nothing."""

    def drain(self, work: Work) -> None:
        """Wait until the ring can be filled from its first stage again."""

    def meet(self, work: Work) -> None:
        """Make the writes of the warps that multiply a tile visible to them and to the matrix unit."""
        raise NotImplementedError

    def end(self, work: Work) -> None:
        """Act after the last step of a tile; by default nothing."""


class Staging(StagingTraits):
    """A way to load tiles of the operands for the instruction that multiplies them.

    A subclass declares its needs, its reasons to refuse a schedule, and the verbs of its agents.

    Args:
        schedule: the schedule.
        form: the form of one loop.
        sources: the operands of the loop.
        before: the staging of the loop that comes before it in the kernel.
    """

    least_stages, most_stages = 1, 1
    """Fewest and most stages in shared memory; 0: any number."""

    takes_layout = True
    """Whether a schedule may choose the layout in shared memory (`k1`) and the copying threads (`dealt`)."""

    is_aligned = False
    """Whether copies must begin at multiples of 4 or 16 bytes."""

    copying_warps = 0
    """Warps of a role that copies."""

    run = 0
    """Neighbours along K of packed operands that a lane multiplies; 0: as the instruction orders them."""

    @classmethod
    def variant(cls, schedule: Schedule, *, decodes: bool) -> type[Any]:
        """The class for a schedule: this class or a subclass.

        Args:
            schedule: the schedule.
            decodes: whether operand A is decoded inside the main loop.
        """
        return cls

    @classmethod
    def buffers_of(cls, schedule: Schedule, tile: OperandTile, run: int) -> list[Buffer]:
        """The tensors in shared memory for an operand; the instruction reads the last one.

        Args:
            schedule: the schedule.
            tile: the operand's tile.
            run: neighbours along K of packed operands that a lane multiplies, or 0.
        """
        name, sharing = f"s{tile.factor.name}", 0 if tile.side else schedule.sharing
        depth, stages = schedule.block_k, schedule.stages * schedule.along_k
        if schedule.atom.asynchronous or schedule.by_bulk:
            along_rows = tile.boxes_along_rows
            return [
                swizzled_tiles(name, tile.dtype, tile.rows, depth, stages, sharing, along_rows=along_rows)
            ]
        rows, kept = max(sharing, 1) * tile.rows, cls.kept(schedule, tile)
        together = Together(schedule.k1[tile.side], schedule.extra_rows[tile.side])
        return [plain_tiles(name, kept, rows, depth, stages, along_rows=tile.along_rows, together=together)]

    @classmethod
    def kept(cls, schedule: Schedule, tile: OperandTile) -> DType:
        """Dtype of an operand in shared memory."""
        return tile.kept(schedule.atom)

    @classmethod
    def needs(cls, facts: ScheduleFacts) -> Needs:
        """Needs of the staging."""
        pairs = [pair for pair in zip(facts.sides, facts.tiles, strict=True) if not facts.goes_past(pair[0])]
        buffers = [buffer for _, tile in pairs for buffer in cls.buffers_of(facts.rounded, tile, facts.run)]
        threads = facts.mma.threads * facts.schedule.cooperating * facts.schedule.along_k
        return Needs((*buffers, *cls.metadata(facts)), threads=threads, registers=cls.registers(facts))

    @classmethod
    def metadata(cls, facts: ScheduleFacts) -> list[Buffer]:
        """The tensors in shared memory for side arrays of operands."""
        return []

    @classmethod
    def registers(cls, facts: ScheduleFacts) -> int:
        """Registers of a thread for operands, at least, in addition to the sums."""
        return 0

    @classmethod
    def decodes_operand(cls, facts: ScheduleFacts, side: OperandSide) -> bool:
        """Whether the staging can decode an operand."""
        return False

    @classmethod
    def against(cls, facts: ScheduleFacts) -> Reasons:
        """Reasons of this staging to refuse a schedule."""
        return iter(())

    def __init__(
        self, schedule: Schedule, form: Form, sources: Sources, before: Staging | None = None
    ) -> None:
        self.schedule, self.form, self.sources = schedule, form, sources
        self.inner: tuple[InnerPlan, ...] = inner_plans(form, schedule) if before is None else before.inner
        """The inner products of all loops, with their tiles in shared memory."""
        self.buffers: list[Buffer] = [] if before is None else before.buffers
        """The tensors in shared memory of all loops."""
        self._free = [*self.buffers]

    def placed(self, buffer: Buffer) -> Buffer:
        """A buffer in the memory of an earlier loop, or in new memory.

        Args:
            buffer: the buffer that the loop needs.
        """
        if (found := taken(self._free, buffer)) is not None:
            self._free.remove(found)
            return found
        made = replace(buffer, memory=buffer.allocate())
        self.buffers.append(made)
        return made

    def begin_block(self, rank: tuple[Index, Index]) -> None:
        """Prepare the ring before the first tile of a block.

        Args:
            rank: the block's place in its cluster.
        """

    def assign_stores(self, works: Sequence[Callable[[], None]]) -> None:
        """Take over the functions that store results, for warps that do nothing else."""
        assert not works, "this ring has no warps that can store"

    def end_block(self) -> None:
        """Complete the work on the ring after the last tile of a block."""


class WholeBlock(Staging, Agent):
    """The whole block copies and multiplies."""

    accumulation: TileAccumulation

    def __init__(
        self, schedule: Schedule, form: Form, sources: Sources, before: Staging | None = None
    ) -> None:
        super().__init__(schedule, form, sources, before)
        self.asynchronous = schedule.mma.atom.asynchronous
        overlap, scales = self.behind if self.asynchronous else 0, [source.scales for source in sources]
        self.accumulation = accumulation(schedule, scales, form, overlap, self.inner)
        rings: list[Any] = []
        paired: PairedStages | None = None
        for source in sources:
            if (pairs := source.pairs) is None:
                rings.append(self._ring(source))
                continue
            if pairs.which == 0:  # both numbers of pairs are in one ring
                size = source.rows, schedule.block_k, self.stages
                dtype, name = source.sample.dtype, f"s{source.name}"
                paired = PairedStages(dtype, *size, name, along_rows=pairs.along_rows)
            assert paired is not None, "the first number of a pair comes before the second"
            rings.append(paired.one(pairs.which))
        self.rings = tuple(rings)

    behind = 0
    """Steps that may begin before an asynchronous product must be complete."""

    @property
    def stages(self) -> int:
        """Stages of all groups that share the steps along K."""
        return self.schedule.stages * self.schedule.along_k

    def _stage(self, work: Work, step: LoopStep) -> Index:
        """The stage of a step's tile."""
        return step.index % self.schedule.stages if self.schedule.stages > 1 else 0

    def _ring(self, source: OperandSource) -> HeldTile | PackedTile | PlainStages | SwizzledStages:
        [buffer] = map(self.placed, self.buffers_of(self.schedule, source.tile, self.run))
        return ring_of(self.schedule, source, buffer) if self.asynchronous else PlainStages(buffer)

    def _dealing(self, source: OperandSource) -> dict[str, Any]:
        """Arguments of `tw.copy`: the number of threads that copy a tile, or their grid over rows and K.

        Neighbouring threads copy neighbours in global memory.  The elements of a thread are neighbours there
        too, unless neighbours along K stay together in shared memory.
        """
        along_rows, along_k = (0, 0) if source.is_inner else self.schedule.dealt[source.side]
        if not along_rows:
            return {"threads": self.schedule.mma.threads}
        in_columns = source.sample.unit_dim == 0
        grid = Layout((along_rows, along_k), (1, along_rows) if in_columns else (along_k, 1))
        return {"threads": grid, "vector_dim": 0 if in_columns and not self.schedule.k1[source.side] else 1}

    def _is_turned(self, source: OperandSource) -> bool:
        """Return whether registers transpose an operand; `dealt` leaves out operands of inner products."""
        is_chosen = "ab"[source.side] in self.schedule.turned and not source.is_inner
        return is_chosen and source.sample.unit_dim == 0

    @contextmanager
    def role(self, *, again: bool = False) -> Iterator[Index]:
        """Record operations of all warps; yields group 0."""
        yield 0

    def agents(self) -> list[WholeBlock]:
        """The block is the only agent."""
        return [self]

    def begin(self, work: Work) -> Sums:
        """Prepare a tile; returns its sums."""
        return self.accumulation.begin()

    def _pairs(self, work: Work, step: LoopStep) -> list[Move]:
        """The copies of one step."""
        stage, found = self._stage(work, step), []
        for source, ring in zip(self.sources, self.rings, strict=True):
            with made_by(node=source.part):
                array = source.matrix if source.pairs is None else source.pairs.array
                along = 0 if source.pairs is not None and source.pairs.along_rows else 1
                matrix, row = self._part_of(array(work), along, work), source.row(work)
                pairs = ring.pairs(matrix, row, work.segment.begin + step.index, stage, Share())
            dealing = self._dealing(source)
            is_turned = self._is_turned(source)
            found += [Move(here, there, source.part, dealing, is_turned, source) for here, there in pairs]
        return found

    def _part_of(self, matrix: Tensor, along: int, work: Work) -> Tensor:
        """The part of a matrix, whose dimension ``along`` is K, that is loaded for a part of K."""
        return matrix

    def _beside(self, work: Work, step: LoopStep) -> list[Move]:
        """The copies of side arrays into the ring."""
        return []

    def _operands(self, step: LoopStep) -> tuple[Held, Held]:
        stage = step.index % self.schedule.stages if self.schedule.stages > 1 else 0
        return of_both(self.sources, [self._multiplied(ring, stage) for ring in self.rings])

    def _multiplied(self, ring: Any, stage: Index) -> Tensor | Fragment:
        """The tensor or fragment from which the tile of a stage is multiplied."""
        if isinstance(ring, HeldTile):
            return ring.held
        found: Tensor = ring.operand(stage, 0) if isinstance(ring, SwizzledStages) else ring.shared[stage]
        return found

    def meet(self, work: Work) -> None:
        """Make the writes of all threads visible to all threads and to the matrix unit."""
        self._meet()

    def _meet(self) -> None:
        """Wait at the barrier of the block, after a fence for the matrix unit if the atom is asynchronous."""
        if self.asynchronous:
            fence_async()
        tw.barrier()


class DirectStaging(WholeBlock):
    """Copy a tile, multiply it."""

    def verbs(self, work: Work, sums: Sums) -> list[Verb]:
        """One stage: all threads wait before it is read, and before it is written again."""

        def load(step: LoopStep) -> None:
            for move in self._pairs(work, step):
                with made_by(node=move.part):
                    tw.copy(move.source, move.target, **move.dealing)
            self._meet()

        return [
            Verb("load", 0, load),
            *self.accumulation.verbs(sums, self._operands, work),
            Verb("release", 0, lambda step: tw.barrier()),
            *self.accumulation.promoting(sums, work),
        ]


class DoubleBuffer(WholeBlock):
    """A ring in shared memory that all threads fill by ordinary copies, with one barrier for each step."""

    least_stages, most_stages = 2, 0

    def verbs(self, work: Work, sums: Sums) -> list[Verb]:
        """Wait at a barrier, copy the next tile, multiply this one; the barrier frees the copy's stage."""

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

    def drain(self, work: Work) -> None:
        """Wait until all threads have read the last stages."""
        tw.barrier()

    def end(self, work: Work) -> None:
        """Drain the ring if the block may have another tile, which fills the ring again."""
        if self.schedule.blocks or self.schedule.batches > 1:
            self.drain(work)


class CpAsync(WholeBlock):
    """A ring of tiles in shared memory, filled in the background while one tile is multiplied."""

    least_stages, most_stages = 2, 0
    is_aligned, in_background = True, True

    @property
    def behind(self) -> int:  # type: ignore[override]
        """An asynchronous product may overlap the next one if there is a stage to spare."""
        return int(self.schedule.stages > 2)

    @property
    def distance(self) -> int:
        """Tiles that are loaded ahead.  A stage is filled again after all threads have read it."""
        return self.schedule.stages - 1 - self.accumulation.behind

    @property
    def pending(self) -> int:
        """Tiles that may still be on their way when the next tile must have arrived."""
        return self.distance - 1

    def _arrived(self, work: Work) -> None:
        """Make an arrived tile visible to all threads that multiply it."""
        self._meet()

    def verbs(self, work: Work, sums: Sums) -> list[Verb]:
        """Wait for a tile, load one ahead, multiply; the copies of a tile are committed as one group."""

        def ready(step: LoopStep) -> None:
            tw.async_wait(self.pending)
            self._arrived(work)

        def load(step: LoopStep) -> None:
            for move in [*self._pairs(work, step), *self._beside(work, step)]:
                with made_by(node=move.part):
                    is_converted = move.source.dtype != move.target.dtype
                    copy = tw.copy if is_converted else tw.copy_async
                    copy(move.source, move.target, **move.dealing)
            tw.async_commit()

        return [
            Verb("ready", 0, ready),
            Verb("load", self.distance, load, outside=True),
            *self.accumulation.verbs(sums, self._operands, work),
            *self.accumulation.promoting(sums, work),
        ]

    def drain(self, work: Work) -> None:
        """Wait for all copies, and until all threads have read the last stages."""
        tw.async_wait(0)
        tw.barrier()

    def end(self, work: Work) -> None:
        """Drain the ring if the block may have another tile, which fills the ring again."""
        if self.schedule.blocks or self.schedule.batches > 1:
            self.drain(work)
