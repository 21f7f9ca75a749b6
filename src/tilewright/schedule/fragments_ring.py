"""The ring whose tiles are copied from shared memory into two alternating sets of registers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from tilewright.dtypes import i4
from tilewright.lang import operations as tw
from tilewright.lang.control import let
from tilewright.lang.roles import meeting, role
from tilewright.lang.scalars import Index, minimum
from tilewright.lang.tensors import Tensor
from tilewright.lang.tile_arithmetic import redistribute
from tilewright.lang.tracer import current
from tilewright.schedule.facts import Reasons, ScheduleFacts
from tilewright.schedule.form import Form
from tilewright.schedule.needs import ACCESS_BYTES, Buffer
from tilewright.schedule.operand_metadata import groups_in
from tilewright.schedule.pipeline import LoopStep, Verb
from tilewright.schedule.plans import Held, Sums
from tilewright.schedule.rings import CpAsync, Move, Sources, Staging, of_both
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.sides import (
    APART,
    OperandSide,
    OperandTile,
    along_k_first,
    common_run,
    in_runs,
    lanes_along_k,
    row_gap,
)
from tilewright.schedule.stages import plain_tiles
from tilewright.schedule.work import Work


class Fragments(CpAsync):
    """A `CpAsync` ring with two sets of registers: one is multiplied while the other one is loaded.

    Decoded operands are decoded in registers, between the multiplications.
    """

    by_parts, splits_steps = True, True

    def __init__(
        self, schedule: Schedule, form: Form, sources: Sources, before: Staging | None = None
    ) -> None:
        self.schedule, self.sources = schedule, sources
        tiles = [source.tile for source in sources]
        self.run = common_run(schedule.atom, schedule.block_k, tiles)
        super().__init__(schedule, form, sources, before)
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
            if self.run and source.sample.dtype.is_packed  # decoded as it is loaded from shared memory
            else [tw.fragment(part, source.factor.held, name=f"r{source.name}") for _ in range(2)]
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
            source.beside.stage(source.rows, schedule.block_k, self.stages)

    def _apart(self) -> int:
        """Return the distance along K of the two numbers that one register of a decoded operand holds.

        At distance `APART`, decoding 4-bit integers takes fewer instructions.  But the other operand has
        neighbours along K in each register, and must be permuted to match.
        """
        mma, warps = self.schedule.mma, self.schedule.warps
        packed = {source.side for source in self.sources if source.sample.dtype == i4}
        if len(packed) != 1:
            return 1
        side = packed.pop()
        own, other = (mma.tile[at] // warps[at] for at in (side, 1 - side))
        return APART if own > other else 1

    @classmethod
    def variant(cls, schedule: Schedule, *, decodes: bool) -> type[Any]:
        """The class for several groups that share a tile along K, or for one group."""
        return AlongK if schedule.along_k > 1 else cls

    @classmethod
    def buffers_of(cls, schedule: Schedule, tile: OperandTile, run: int) -> list[Buffer]:
        """The ring of an operand; packed operands that lanes take in runs have gaps between their rows."""
        if not run or not tile.dtype.is_packed:
            return super().buffers_of(schedule, tile, run)
        gap, stages = row_gap(tile.dtype, schedule.block_k), schedule.stages * schedule.along_k
        size = tile.rows, schedule.block_k, stages
        return [plain_tiles(f"s{tile.factor.name}", tile.dtype, *size, along_rows=tile.along_rows, gap=gap)]

    @classmethod
    def metadata(cls, facts: ScheduleFacts) -> list[Buffer]:
        """Scales and zero points of groups along K, for packed operands."""
        depth, stages, found = facts.tile[2], facts.schedule.stages * facts.schedule.along_k, []
        for side in facts.sides if facts.run else ():
            for part in side.factor.beside:
                count = groups_in(part, side.factor.depth, depth)
                if count:
                    operand = part.operand
                    size = side.rows, count, stages
                    found.append(plain_tiles(f"s{operand.name}", operand.dtype, *size, along_rows=False))
        return found

    @classmethod
    def registers(cls, facts: ScheduleFacts) -> int:
        """Registers of a thread for two sets of parts of each operand, and for two more if it is decoded."""
        atom, total = facts.schedule.atom, 0
        if atom.asynchronous:
            return 0
        for tile in facts.tiles:
            values = (facts.mma.b if tile.side else facts.mma.a)(facts.part_depth).size_values
            kinds = [] if facts.run and tile.dtype.is_packed else [tile.factor.held]
            if not tile.factor.is_plain:
                kinds.append((atom.a_dtype, atom.b_dtype)[tile.side])
            total += sum(2 * -(-values * kind.bytes // 4) for kind in kinds)
        return total

    @classmethod
    def decodes_operand(cls, facts: ScheduleFacts, side: OperandSide) -> bool:
        """True: operands are decoded between shared memory and the instruction."""
        return True

    @classmethod
    def against(cls, facts: ScheduleFacts) -> Reasons:
        """Two sets of registers take turns at the parts of a tile, so that their number must be even."""
        (m, n, k), depth, product = facts.tile, facts.part_depth, facts.form.sum
        parts = k // depth
        if parts % 2:
            rule = "two register sets alternate, so the number of parts must be even"
            text = f"tile depth {k} has {parts} parts of {depth}; {rule}"
            yield "tile", text, f"tile={(m, n, k + depth)}", product
        decodes = not all(side.factor.is_plain for side in facts.sides)
        if decodes and parts == 2 and facts.schedule.stages == 2 and not facts.run:
            rule = "a decoded operand is loaded two parts ahead, which needs more stages or a deeper tile"
            text = f"2 stages of {parts} parts; {rule}"
            yield "stages", text, f"stages=3, or tile={(m, n, 2 * k)}", product

    def _part_of(self, matrix: Tensor, along: int, work: Work) -> Tensor:
        """The matrix, whose dimension ``along`` is K, up to the end of the part of K."""
        end = work.segment.end
        if end is None:  # another block loads the rest
            return matrix
        return matrix[:end] if along == 0 else matrix[:, :end]

    @property
    def ahead(self) -> int:
        """Lead in parts: a tile must have arrived this many parts before its multiplication."""
        return 2 if self.decodes and not self.run else 1

    @property
    def pending(self) -> int:
        """Tiles that may be on their way; one less if a tile must arrive a whole tile ahead."""
        return super().pending - self.ahead // self.parts

    def verbs(self, work: Work, sums: Sums) -> list[Verb]:
        """While a part is multiplied, the next one is decoded and another one is loaded.

        Decoded operands are loaded one part earlier than others, because their set of registers is free
        after decoding, not after the multiplication.
        """
        if self.schedule.along_k > 1 or self.schedule.is_split:  # the part of K has an end
            end = (work.segment.begin + work.steps) * self.schedule.block_k
            cut = let(minimum(end, self.sources[0].matrix(work).shape[1]))
            work = replace(work, segment=replace(work.segment, end=cut))

        def operands(step: LoopStep) -> tuple[Held, Held]:
            parts = []
            for source, decoded, part in zip(self.sources, self.decoded, self.multiplied, strict=True):
                held = decoded[step.part % 2]
                # With runs, the registers of the instruction are in another order than the loaded ones.
                parts.append(redistribute(held, part) if self.run and source.decode is None else held)
            return of_both(self.sources, parts)

        ready, load, *_ = super().verbs(work, sums)
        multiplying = self.accumulation.verbs(sums, operands, work)
        fetch = partial(self._fetch, work)
        filling = [
            Verb("ready", self.ahead, ready.do, self.parts, outside=True),
            Verb("fetch", self.ahead, partial(fetch, self.decodes and not self.run), outside=True),
            Verb("load", self.distance * self.parts, load.do, self.parts, outside=True),
        ]
        if self.run:
            filling.insert(2, Verb("decode", 1, partial(self._decode, work), outside=True))
        elif self.decodes:
            # The last part of a stage is read before the barrier, after which the stage is filled again.
            plain = Verb("fetch", 1, partial(fetch, False), outside=True)
            filling = [
                plain,
                filling[0],
                Verb("decode", 1, partial(self._decode, work), outside=True),
                *filling[1:],
            ]
        return [*filling, *multiplying, *self.accumulation.promoting(sums, work)]

    def _fetch(self, work: Work, decoded: bool, step: LoopStep) -> None:
        """Load one part of the decoded operands, or of the others."""
        for source, ring, part, held in zip(self.sources, self.rings, self.maps, self.held, strict=True):
            if (source.decode is not None) == decoded and held:
                stage = ring.shared[self._stage(work, step)]
                tw.copy(stage.tiles(part.shape)[0, step.part], held[step.part % 2])

    def _decode(self, work: Work, step: LoopStep) -> None:
        """Decode one part."""
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
                taken = tw.load(tile, multiplied, element=source.factor.held, name=f"r{source.name}")
            row, block_k = source.row(work), self.schedule.block_k
            decoded[step.part % 2].assign(source.decoded(taken, work, step, block_k, row, stage))

    def _beside(self, work: Work, step: LoopStep) -> list[Move]:
        """The copies of side arrays into the ring."""
        stage, tile, found = self._stage(work, step), work.segment.begin + step.index, []
        block_k, most = self.schedule.block_k, self.schedule.mma.threads
        for source in self.sources if self.run else ():
            for part, here, there in source.beside.moves(work, source.row(work), tile, stage, block_k):
                rows, count = (int(extent) for extent in there.shape)
                threads = rows * count * there.dtype.bytes // ACCESS_BYTES  # one for each access
                found.append(Move(here, there, part, {"threads": max(min(threads, most), 1)}))
        return found


class AlongK(Fragments):
    """`Fragments` for groups of warps with a part of K each; a group waits only for its own warps."""

    @classmethod
    def against(cls, facts: ScheduleFacts) -> Reasons:
        """Each group waits only for its own warps, and the first group stores."""
        yield from super().against(facts)
        schedule, product, arch = facts.schedule, facts.form.sum, facts.arch
        text = f"{schedule.groups} groups without roles"
        if facts.target.machine_code and not (facts.target.warps and arch.named_barriers):
            yield "groups", f"{text}; {arch.name} does not support warp roles", "groups=1", product
        elif facts.mma.threads > arch.lanes and schedule.groups > arch.named_barriers:
            most = f"{arch.name} has {arch.named_barriers} barriers for groups of several warps"
            yield "groups", f"{text}; {most}", f"groups={arch.named_barriers}, or warps=(1, 1)", product
        plain = {
            "split_k": 1,
            "balanced": False,
            "batches": 1,
            "blocks": 0,
            "epilogue": "direct",
            "promote": 0,
        }
        for field, value in plain.items():
            if getattr(schedule, field) != value:
                said = f'"{value}"' if isinstance(value, str) else value
                rule = "these groups share one tile, each with a part of its K"
                why = f"{text} and {field}={schedule.spelled(field)}; {rule}"
                yield field, why, f"{field}={said}, or groups=1", product
        if len(facts.form.totals) > 1:
            several = f"{len(facts.form.totals)} sums for each element"
            yield "groups", f"{text}, with {several}", "groups=1", product
        if facts.form.reductions:
            yield "groups", f"{text}; a reduction needs all warps of the block at once", "groups=1", product

    @contextmanager
    def role(self, *, again: bool = False) -> Iterator[Index]:
        """Open the role of all groups; after the K loop, of the first group only."""
        schedule = self.schedule
        warps = schedule.mma.threads // current().lanes
        with role(warps=warps, groups=1 if again else schedule.groups, first=0) as group:
            yield group

    def _stage(self, work: Work, step: LoopStep) -> Index:
        return work.group * self.schedule.stages + super()._stage(work, step)

    def drain(self, work: Work) -> None:
        """Wait for all copies, and until the threads of the group have read the last stages."""
        tw.async_wait(0)
        self._arrived(work)

    def _arrived(self, work: Work) -> None:
        warps = self.schedule.mma.threads // current().lanes
        meeting(None if warps == 1 else 1 + work.group, "groups that share a tile along K")()
