"""Rings: the interface of stagings and of their agents, and the stagings of a block without roles.

An agent is a group of warps that runs the main loop over the partition's tiles with verbs of its own.
Without roles the whole block is one agent; with roles one agent copies and others multiply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from tilewright.dataflow.nodes import ArrayPart
from tilewright.dtypes import DType
from tilewright.lang import operations as tw
from tilewright.lang.asynchrony import fence_async
from tilewright.lang.scalars import Index
from tilewright.lang.tensors import Fragment, Tensor
from tilewright.layout.layout import Layout
from tilewright.schedule.factors import FactorProduct
from tilewright.schedule.facts import Reasons, ScheduleFacts
from tilewright.schedule.needs import ROW_BYTES, Buffer, Needs
from tilewright.schedule.operand_metadata import OperandMetadata, Spot
from tilewright.schedule.partition import Work
from tilewright.schedule.pipeline import LoopStep, Verb
from tilewright.schedule.plans import Held, Sums, accumulation
from tilewright.schedule.provenance import made_by
from tilewright.schedule.scaled_sums import ScaleSource
from tilewright.schedule.schedule import Schedule
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


@dataclass(frozen=True)
class Pairs:
    """An array whose elements are pairs, each number of which is an operand.

    Args:
        array: (rows, K, 2) or (K, rows, 2) in global memory, for a tile of the result.
        along_rows: whether rows follow K.
        which: number of a pair the operand is.
    """

    array: Callable[[Any], Tensor]
    along_rows: bool
    which: int


@dataclass(frozen=True)
class OperandSource:
    """Operand A or B.

    Args:
        name: of its tensor in shared memory.
        matrix: (rows, K) in global memory, for a tile of the result.
        sample: the same, of any tile: its dtype, and along what it is contiguous.
        along: ``"m"`` or ``"n"``, which place of a tile chooses its rows.
        rows: of the tile of one group.
        decode: what makes the operand of a fragment of its elements, and of where they lie; None: they are
            multiplied as they are.
        part: what the graph says of it.
        is_cut: whether what is decoded of elements past the edge of K is not 0, and so is replaced by 0.
        readers: how many blocks, or clusters, load each of its elements; 0: it is not known.
        held: dtype of its elements in registers, before they are decoded; None: that in memory.
        scales: of its products.
        beside: the arrays beside it, of which it is computed too.
        pairs: of which array of pairs it is one number; None: of none that is copied as such.
    """

    name: str
    matrix: Any
    sample: Tensor
    along: str
    rows: int
    decode: Callable[[Fragment, Spot], Any] | None = None
    part: ArrayPart | None = None
    is_cut: bool = False
    readers: Index = 0
    held: DType | None = None
    scales: ScaleSource | None = None
    beside: OperandMetadata | None = None
    pairs: Pairs | None = None

    @property
    def has_map(self) -> bool:
        """Whether the tensor maps of its arrays lie in memory."""
        return self.sample.value.tensor.map is not None

    @property
    def side(self) -> int:
        """0 of operand A, 1 of B."""
        return 0 if self.along == "m" else 1

    @property
    def tile(self) -> OperandTile:
        """The operand's tile, for its layout in shared memory."""
        sample, factor = self.sample, None if self.beside is None else self.beside.factor
        return OperandTile(
            self.name,
            self.side,
            self.rows,
            sample.dtype,
            self.held or sample.dtype,
            sample.unit_dim == 0,
            sample.unit_dim == 1,
            sample.value.tensor.view.run_dim(ROW_BYTES // sample.dtype.bytes) == 0,
            self.decode is not None,
            factor is not None and not (factor.is_plain or factor.is_converted),
            () if self.beside is None else tuple(self.beside.runs),
        )

    def row(self, work: Work) -> Index:
        """The number of its tile that a tile of the result takes."""
        return work.m if self.along == "m" else work.n


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
    """A tile that is copied for one step.

    Args:
        source: in global memory.
        target: in shared memory, or a fragment in the registers that multiply.
        part: what the graph says of it.
        dealing: which threads copy what, as `tw.copy` takes it.
        is_turned: whether each thread reads its part along the rows, and writes it along K.
        operand: of which it is a tile, or a box of one; None: of an array beside one.
    """

    source: Tensor
    target: Any
    part: ArrayPart | None
    dealing: dict[str, Any]
    is_turned: bool = False
    operand: OperandSource | None = None


class Agent(Protocol):
    """A group of warps that runs the main loop over the tiles of a block."""

    each: int
    """It takes every tile of the block, or one in this number of tiles."""

    parts: int
    """Parts of a step along K that are multiplied one after the other."""

    accumulation: Any
    """Its plan to add up products; None if it only copies."""

    def role(self) -> AbstractContextManager[Index]:
        """Record operations of these warps alone; gives the number of their group."""

    def begin(self, work: Work) -> Any:
        """Prepare a tile; returns its sums."""

    def verbs(self, work: Work, sums: Any) -> list[Verb]:
        """The verbs of the main loop for a tile."""

    def issued(self, work: Work) -> None:
        """Continue after the last step of a tile has begun."""

    def end(self, work: Work) -> None:
        """Continue after the last step of a tile."""


class Staging:
    """A way in which tiles of the operands come to where they are multiplied.

    A subclass declares its needs, what is against it, and the verbs of its agents.
    """

    least_stages, most_stages = 1, 1
    """Tiles that shared memory may hold; 0: any number."""

    takes_layout = True
    """Whether a schedule may choose the layout in shared memory (`k1`) and who copies what (`dealt`)."""

    is_aligned = False
    """Whether copies begin at multiples of 4 or 16 bytes."""

    run = 0
    """Neighbours along K of packed operands that a lane multiplies; 0: as instructions have them."""

    @classmethod
    def variant(cls, schedule: Schedule, *, decodes: bool) -> type[Any]:
        """The class for a schedule: this one, or one that specialises it.

        Args:
            schedule: the schedule.
            decodes: whether operand A is decoded inside the main loop.
        """
        return cls

    @classmethod
    def buffers_of(cls, schedule: Schedule, tile: OperandTile, run: int) -> list[Buffer]:
        """The tensors in shared memory for an operand; it is multiplied from the last one.

        Args:
            schedule: the schedule.
            tile: the operand's tile.
            run: neighbours along K that a lane multiplies of packed operands, or 0.
        """
        name, sharing = f"s{tile.name}", 0 if tile.side else schedule.sharing
        depth, stages = schedule.block_k, schedule.stages * schedule.along_k
        if schedule.atom.asynchronous or schedule.staging == "tma":
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
        """Registers of a thread that hold operands, at least, besides the sums."""
        return 0

    @classmethod
    def decodes_operand(cls, facts: ScheduleFacts, side: OperandSide) -> bool:
        """Whether an operand can be decoded on its way."""
        return False

    @classmethod
    def against(cls, facts: ScheduleFacts) -> Reasons:
        """Reasons to refuse a schedule that only this staging has."""
        return iter(())

    def __init__(self, schedule: Schedule, sources: Sources, products: tuple[FactorProduct, ...]) -> None:
        self.schedule, self.sources = schedule, sources

    def begin_block(self, rank: tuple[Index, Index]) -> None:
        """Prepare the ring before the first tile of a block.

        Args:
            rank: the block's place in its cluster.
        """

    def serve_beside(self, works: Sequence[Callable[[], None]]) -> None:
        """Take over the work of warps that only store."""
        assert not works, "no warps of this ring can store"

    def end_block(self) -> None:
        """Complete the work on the ring after the last tile of a block."""


class WholeBlock(Staging):
    """The whole block copies and multiplies."""

    each = 1

    def __init__(self, schedule: Schedule, sources: Sources, products: tuple[FactorProduct, ...]) -> None:
        super().__init__(schedule, sources, products)
        self.asynchronous = schedule.mma.atom.asynchronous
        overlap, scales = self.behind if self.asynchronous else 0, [source.scales for source in sources]
        self.accumulation = accumulation(schedule, scales, products, overlap)
        self.parts = 1
        self.rings: tuple[Any, ...] = tuple(self._rings())

    behind = 0

    @property
    def stages(self) -> int:
        """Tiles that shared memory holds, of all groups that share the steps along K."""
        return self.schedule.stages * self.schedule.along_k

    def _stage(self, work: Work, step: LoopStep) -> Index:
        """The stage of a step's tile."""
        return step.index % self.schedule.stages if self.schedule.stages > 1 else 0

    def _rings(self) -> Iterator[Any]:
        """The ring of each operand; both numbers of pairs are in one."""
        paired: PairedStages | None = None
        for source in self.sources:
            if source.pairs is None:
                yield self._ring(source)
                continue
            if source.pairs.which == 0:
                dtype, along_rows = source.sample.dtype, source.pairs.along_rows
                size = source.rows, self.schedule.block_k, self.stages
                paired = PairedStages(dtype, *size, f"s{source.name}", along_rows=along_rows)
            assert paired is not None, "the first numbers come first"
            yield paired.one(source.pairs.which)

    def _ring(self, source: OperandSource) -> HeldTile | PackedTile | PlainStages | SwizzledStages:
        [buffer] = self.buffers_of(self.schedule, source.tile, self.run)
        return ring_of(self.schedule, source, buffer) if self.asynchronous else PlainStages(buffer)

    def _dealing(self, source: OperandSource) -> dict[str, Any]:
        """The threads that copy a tile: a number of them, or a grid over its rows and K.

        Neighbours follow each other along what is contiguous in global memory.  A thread's own elements do
        so too, unless neighbours along K stay together in shared memory.
        """
        along_rows, along_k = self.schedule.dealt[source.side]
        if not along_rows:
            return {"threads": self.schedule.mma.threads}
        in_columns = source.sample.unit_dim == 0
        grid = Layout((along_rows, along_k), (1, along_rows) if in_columns else (along_k, 1))
        return {"threads": grid, "vector_dim": 0 if in_columns and not self.schedule.k1[source.side] else 1}

    @contextmanager
    def role(self, *, again: bool = False) -> Iterator[Index]:
        """All warps."""
        yield 0

    def agents(self) -> list[WholeBlock]:
        """The block is the only agent."""
        return [self]

    def begin(self, work: Work) -> Sums:
        """Prepare a tile; returns its sums."""
        return self.accumulation.begin()

    def issued(self, work: Work) -> None:
        """Continue after the last step of a tile has begun: nothing to do."""

    def end(self, work: Work) -> None:
        """Continue after the last step of a tile: nothing to do."""

    def _pairs(self, work: Work, step: LoopStep) -> list[Move]:
        """The copies of one step."""
        stage, found = self._stage(work, step), []
        for source, ring in zip(self.sources, self.rings, strict=True):
            with made_by(node=source.part):
                array = source.matrix if source.pairs is None else source.pairs.array
                matrix, row = self._part_of(array(work), work), source.row(work)
                pairs = ring.pairs(matrix, row, work.segment.begin + step.index, stage, Share())
            dealing = self._dealing(source)
            is_turned = "ab"[source.side] in self.schedule.turned and source.sample.unit_dim == 0
            found += [Move(here, there, source.part, dealing, is_turned, source) for here, there in pairs]
        return found

    def _part_of(self, matrix: Tensor, work: Work) -> Tensor:
        """The part of a matrix that is loaded for a part of K."""
        return matrix

    def _beside(self, work: Work, step: LoopStep) -> list[Move]:
        """The copies of side arrays that lie in the ring."""
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

    def _meet(self) -> None:
        """Make the writes of all threads visible to all threads and to the matrix unit."""
        if self.asynchronous:
            fence_async()
        tw.barrier()


class DirectStaging(WholeBlock):
    """Copy a tile, multiply it."""

    def verbs(self, work: Work, sums: Sums) -> list[Verb]:
        """One stage: all wait before it is read, and before it is written again."""

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


class CpAsync(WholeBlock):
    """A ring of tiles in shared memory, filled in the background while one tile is multiplied."""

    least_stages, most_stages = 2, 0
    is_aligned = True

    @property
    def behind(self) -> int:  # type: ignore[override]
        """An asynchronous product may go on under the next one where there is a stage to spare."""
        return int(self.schedule.stages > 2)

    @property
    def distance(self) -> int:
        """Tiles that are loaded ahead; a stage is filled again after all threads have read it."""
        return self.schedule.stages - 1 - self.accumulation.behind

    @property
    def pending(self) -> int:
        """Tiles that may still be on their way when the next one must have arrived."""
        return self.distance - 1

    def _arrived(self, work: Work) -> None:
        """Make an arrived tile visible to all threads that multiply it."""
        self._meet()

    def verbs(self, work: Work, sums: Sums) -> list[Verb]:
        """A ring of stages, filled in groups."""

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

    def end(self, work: Work) -> None:
        """The next tile fills the ring again."""
        if self.schedule.blocks or self.schedule.batches > 1:
            tw.async_wait(0)
            tw.barrier()
