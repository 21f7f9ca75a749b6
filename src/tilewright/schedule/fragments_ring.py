"""The ring whose tiles go from shared memory into two sets of registers, one of which is multiplied."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from tilewright.dtypes import i4
from tilewright.lang import operations as tw
from tilewright.lang.control import let
from tilewright.lang.fragments import Fragment, elementwise
from tilewright.lang.scalars import Index, minimum
from tilewright.lang.tensors import Tensor
from tilewright.lang.tile_arithmetic import coordinates, redistribute
from tilewright.schedule.beside import Spot
from tilewright.schedule.factors import Product
from tilewright.schedule.fixup import is_split
from tilewright.schedule.lane_runs import (
    ACCESS_BYTES,
    APART,
    Taken,
    along_k_first,
    common_run,
    in_runs,
    lanes_along_k,
    row_gap,
)
from tilewright.schedule.partition import Work
from tilewright.schedule.pipeline import Step, Verb
from tilewright.schedule.plans import Held, Sums
from tilewright.schedule.rings import CpAsync, Move, Source, Sources, of_both
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.stages import HeldTile, PackedTile, PlainStages, SwizzledStages
from tilewright.threads.distribution import Distribution


class Fragments(CpAsync):
    """As `CpAsync`, and from shared memory into two sets of registers, one of which is multiplied.

    Operands that are functions of what lies in memory are decoded there, between the multiplications.
    """

    def __init__(self, schedule: Schedule, sources: Sources, products: tuple[Product, ...]) -> None:
        self.schedule, self.sources = schedule, sources
        self.run = self._run()
        super().__init__(schedule, sources, products)
        depth = self.run * lanes_along_k(schedule.atom.a) if self.run else schedule.mma.tile[2]
        self.parts = schedule.block_k // depth
        self.accumulation = replace(self.accumulation, parts=self.parts)
        self.decodes = any(source.decode is not None for source in sources)
        both = (tw.operand_a(schedule.mma, depth), tw.operand_b(schedule.mma, depth))
        apart = self._apart()
        multiplied = tuple(in_runs(one, self.run, apart) for one in both) if self.run else both
        loaded = tuple(along_k_first(one) for one in multiplied) if self.run else both
        self.multiplied = tuple(multiplied[source.side] for source in sources)
        self.maps = tuple(loaded[source.side] for source in sources)
        self.held = [
            []
            if self._is_decoded_at_once(source)
            else [
                tw.fragment(part, source.held or source.sample.dtype, name=f"r{source.name}")
                for _ in range(2)
            ]
            for part, source in zip(self.maps, sources, strict=True)
        ]
        kinds = schedule.mma.atom.a_dtype, schedule.mma.atom.b_dtype
        self.decoded = [
            held
            if source.decode is None
            else [tw.fragment(part, kinds[source.side], name=f"d{source.name}") for _ in range(2)]
            for part, source, held in zip(self.multiplied, sources, self.held, strict=True)
        ]
        for source in sources if self.run else ():
            if source.beside is not None:
                source.beside.stage(source.rows, schedule.block_k, self.stages)

    def _run(self) -> int:
        """How many neighbours along K a lane has where operands are packed; 0: as instructions have them."""
        taken = [
            Taken(
                source.sample.dtype,
                source.sample.unit_dim == 1,
                source.side,
                source.decode is not None,
                tuple(source.beside.runs) if source.beside else (),
            )
            for source in self.sources
        ]
        return common_run(self.schedule.atom, self.schedule.block_k, taken)

    def _apart(self) -> int:
        """How far the two numbers of a register of packed operands lie from each other along K.

        Integers of 4 bits are decoded by fewer instructions where that is `APART`; but pairs of the other
        operand, which are neighbours in memory, have to be put together then.
        """
        mma, warps = self.schedule.mma, self.schedule.warps
        packed = {source.side for source in self.sources if source.sample.dtype == i4}
        if len(packed) != 1:
            return 1
        side = packed.pop()
        own, other = (mma.tile[at] // warps[at] for at in (side, 1 - side))
        return APART if own > other else 1

    def _ring(self, source: Source) -> HeldTile | PackedTile | PlainStages | SwizzledStages:
        if not self._is_decoded_at_once(source):
            return super()._ring(source)
        schedule, name = self.schedule, f"s{source.name}"
        behind = row_gap(source.sample.dtype, schedule.block_k)
        return PlainStages(source.sample, source.rows, schedule.block_k, self.stages, name, behind=behind)

    def _is_decoded_at_once(self, source: Source) -> bool:
        """Whether an operand is decoded as it is loaded from shared memory: packed it has no registers."""
        return bool(self.run) and source.sample.dtype.is_packed

    def _part_of(self, matrix: Tensor, work: Work) -> Tensor:
        """It ends with the part of K: what lies behind is another part, and would be loaded in vain."""
        end = work.segment.end
        return matrix if end is None else matrix[:, :end]

    def _with_end(self, work: Work) -> Work:
        """A tile of the result, with the end of its part of K."""
        if self.schedule.along_k == 1 and not is_split(self.schedule):
            return work
        end = (work.segment.begin + work.steps) * self.schedule.block_k
        cut = let(minimum(end, self.sources[0].matrix(work).shape[1]))
        return replace(work, segment=replace(work.segment, end=cut))

    @property
    def ahead(self) -> int:
        """How many parts before its multiplication a tile must be there."""
        return 2 if self.decodes and not self.run else 1

    @property
    def pending(self) -> int:
        """Tiles that may be on their way; one less where a tile must be there a whole tile ahead."""
        return super().pending - self.ahead // self.parts

    def verbs(self, work: Work, sums: Sums) -> list[Verb]:
        """The next part is loaded, and the one before it decoded, while this one is multiplied.

        What is decoded is loaded one part earlier than what is multiplied as it is, for its set of registers
        is free again when it is decoded, and not when it is multiplied.
        """
        work = self._with_end(work)
        ready, load, *_ = super().verbs(work, sums)
        multiplying = self.accumulation.verbs(sums, self._held_operands, work)
        fetch = partial(self._fetch, work)
        filling = [
            Verb("ready", self.ahead, ready.do, self.parts, outside=True),
            Verb("fetch", self.ahead, partial(fetch, self.decodes and not self.run), outside=True),
            Verb("load", self.distance * self.parts, load.do, self.parts, outside=True),
        ]
        if self.run:
            filling.insert(2, Verb("decode", 1, partial(self._decode, work), outside=True))
        elif self.decodes:
            # Its last part is read before all meet, after which its place in the ring is filled again.
            plain = Verb("fetch", 1, partial(fetch, False), outside=True)
            filling = [
                plain,
                filling[0],
                Verb("decode", 1, partial(self._decode, work), outside=True),
                *filling[1:],
            ]
        return [*filling, *multiplying, *self.accumulation.promoting(sums, work)]

    def _fetch(self, work: Work, decoded: bool, step: Step) -> None:
        """Load one part of the operands that are decoded, or of those that are not."""
        for source, ring, part, held in zip(self.sources, self.rings, self.maps, self.held, strict=True):
            if (source.decode is not None) == decoded and held:
                stage = ring.shared[self._stage(work, step)]
                tw.copy(stage.tiles(part.shape)[0, step.part], held[step.part % 2])

    def _decode(self, work: Work, step: Step) -> None:
        every = zip(
            self.sources, self.rings, self.maps, self.multiplied, self.held, self.decoded, strict=True
        )
        stage = self._stage(work, step)
        for source, ring, part, multiplied, held, decoded in every:
            if source.decode is None:
                continue
            if held:
                taken = held[step.part % 2]
            else:
                tile = ring.shared[stage].tiles(part.shape)[0, step.part]
                taken = tw.load(tile, multiplied, element=source.held, name=f"r{source.name}")
            row, block_k = source.row(work), self.schedule.block_k
            decoded[step.part % 2].assign(decoded_part(source, taken, work, step, block_k, row, stage))

    def _renamed(self, made: Any, multiplied: Distribution) -> Any:
        """A part in the registers of the instruction, which counts them otherwise where lanes have runs."""
        return redistribute(made, multiplied) if self.run else made

    def _beside(self, work: Work, step: Step) -> list[Move]:
        """What is copied of the arrays beside operands, where these lie in the ring."""
        schedule = self.schedule
        stage, tile, found = self._stage(work, step), work.segment.begin + step.index, []
        for source in self.sources if self.run else ():
            if source.beside is not None:
                moved = source.beside.moves(work, source.row(work), tile, stage, schedule.block_k)
                found += [
                    Move(here, there, part, {"threads": self._copying(there)}) for part, here, there in moved
                ]
        return found

    def _copying(self, target: Tensor) -> int:
        """How many threads copy a small tile, by the widest accesses."""
        rows, count = (int(extent) for extent in target.shape)
        return max(min(rows * count * target.dtype.bytes // ACCESS_BYTES, self.schedule.mma.threads), 1)

    def _held_operands(self, step: Step) -> tuple[Held, Held]:
        parts = [
            decoded[step.part % 2]
            if source.decode is not None
            else self._renamed(decoded[step.part % 2], part)
            for source, decoded, part in zip(self.sources, self.decoded, self.multiplied, strict=True)
        ]
        return of_both(self.sources, parts)


def decoded_part(
    source: Source, held: Fragment, work: Work, step: Step, block_k: int, row: Index, stage: Index = 0
) -> Any:
    """What is multiplied of a part of an operand: decoded, and 0 past the edge of K.

    Args:
        source: the operand, which is decoded.
        held: the part, as it lies in memory.
        work: the tile of the result.
        step: which part of which tile along K.
        block_k: how deep a tile is.
        row: which part of so many rows of the operand.
        stage: the stage of the ring in which the tile is.
    """
    assert source.decode is not None, "there is nothing to decode"
    depth, tile = held.shape[1], work.segment.begin + step.index
    made = source.decode(held, Spot(work, row, tile * (block_k // depth) + step.part, stage, step.part))
    if not source.is_cut:
        return made
    first = tile * block_k
    left = source.matrix(work).shape[1] - first - step.part * depth
    return elementwise("select", coordinates(made, 1) < left, made, 0)
