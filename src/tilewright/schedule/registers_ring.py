"""The ring that keeps the next tile in registers, for one group of warps or for two alternating groups.

Operands may bypass shared memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from tilewright.dtypes import DType
from tilewright.lang import operations as tw
from tilewright.lang.control import when
from tilewright.lang.roles import role, role_barrier
from tilewright.lang.scalars import Index
from tilewright.lang.tensors import Fragment
from tilewright.lang.tile_arithmetic import redistribute
from tilewright.lang.tracer import current
from tilewright.schedule.facts import Reasons, ScheduleFacts
from tilewright.schedule.form import Form
from tilewright.schedule.pipeline import LoopStep, Verb
from tilewright.schedule.plans import Held, Sums
from tilewright.schedule.provenance import made_by
from tilewright.schedule.rings import Move, OperandSource, Sources, Staging, WholeBlock, of_both
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.sides import OperandSide, OperandTile
from tilewright.schedule.stages import HeldTile, PackedTile, PlainStages, SwizzledStages
from tilewright.schedule.work import Work


class Registers(WholeBlock):
    """The next tile is loaded into registers while this one is multiplied.

    An operand that bypasses shared memory has two tiles in registers: this one and the next.  A decoded
    operand is decoded on its way to shared memory, once for all warps.
    """

    through_registers, alternates = True, True

    @classmethod
    def variant(cls, schedule: Schedule, *, decodes: bool) -> type[Any]:
        """The class for two groups that alternate, or for one group."""
        return Alternating if schedule.alternates else cls

    @classmethod
    def kept(cls, schedule: Schedule, tile: OperandTile) -> DType:
        """Dtype in shared memory; decoded operands have the dtype of the multiplication there."""
        kinds = schedule.atom.a_dtype, schedule.atom.b_dtype
        return super().kept(schedule, tile) if tile.factor.is_plain else kinds[tile.side]

    @classmethod
    def registers(cls, facts: ScheduleFacts) -> int:
        """Registers for the next tile of each operand, and for this one if it bypasses shared memory."""
        total = 0
        for side, tile in zip(facts.sides, facts.tiles, strict=True):
            if facts.goes_past(side):
                total += 2 * cls.multiplied(facts, tile)
            else:
                values = facts.copied_rows(side) * facts.tile[2] // facts.mma.threads or 1
                total += -(-values * tile.dtype.bytes // 4)
        return total

    @classmethod
    def multiplied(cls, facts: ScheduleFacts, tile: OperandTile) -> int:
        """Registers that hold an operand tile when the instruction reads it from registers."""
        values = (facts.mma.b if tile.side else facts.mma.a)(facts.tile[2]).size_values
        return -(-values * tile.dtype.bytes // 4)

    @classmethod
    def decodes_operand(cls, facts: ScheduleFacts, side: OperandSide) -> bool:
        """Operands are decoded in registers on their way to shared memory.

        Packed operands are not, because whole bytes are transposed and written.  Neither are operands of an
        asynchronous atom, because their tiles have several boxes.
        """
        is_whole = side.dtype.is_packed or facts.schedule.atom.asynchronous
        return not facts.goes_past(side) and not is_whole

    def _ring(self, source: OperandSource) -> HeldTile | PackedTile | PlainStages | SwizzledStages:
        schedule, side = self.schedule, "ab"[source.side]
        if side not in schedule.bypass:
            return super()._ring(source)
        spread = (tw.operand_a if side == "a" else tw.operand_b)(schedule.mma, schedule.block_k)
        return HeldTile(source.sample, spread, f"r{source.name}")

    def verbs(self, work: Work, sums: Sums) -> list[Verb]:
        """One stage in shared memory, one in registers."""
        shares = not all(isinstance(ring, HeldTile) for ring in self.rings)
        write, fetch = self._through_registers(work)

        def put(step: LoopStep) -> None:
            write(step)
            if shares:
                self._meet()

        return [
            Verb("put", 0, put),
            Verb("fetch", 1, fetch, outside=True),
            *self.accumulation.verbs(sums, self._operands, work),
            *([Verb("release", 0, lambda step: tw.barrier())] if shares else []),
            *self.accumulation.promoting(sums, work),
        ]

    def _loaded(self, work: Work, step: LoopStep) -> list[Move]:
        """The copies into registers for one step."""
        return self._pairs(work, step)

    def _through_registers(self, work: Work) -> tuple[Callable[[LoopStep], None], Callable[[LoopStep], None]]:
        """Two functions: write a tile from registers to shared memory, and load a tile into registers."""
        held: list[Fragment] = []

        def fetch(step: LoopStep) -> None:
            first = not held
            for at, move in enumerate(self._loaded(work, step)):
                with made_by(node=move.part):
                    past = isinstance(move.target, Fragment)
                    dealing = move.dealing | ({"vector_dim": 0} if move.is_turned else {})
                    own = move.source if past else move.source.partition(**dealing)
                    if first:
                        held.append(tw.load(own, move.target if past else None, name="prefetched"))
                    elif past or own.value.tensor.distribution == held[at].distribution:
                        tw.copy(own, held[at])
                    else:  # the first tile was known to be whole, this one is not
                        tw.copy(move.source, held[at])

        def put(step: LoopStep) -> None:
            for fragment, move in zip(held, self._pairs(work, step), strict=True):
                with made_by(node=move.part):
                    if isinstance(move.target, Fragment):
                        move.target.assign(fragment)
                        continue
                    made = fragment
                    if move.is_turned:
                        along_k = move.target.partition(**move.dealing).value.tensor.distribution
                        assert along_k is not None
                        made = redistribute(fragment, along_k)
                    operand = move.operand
                    if operand is not None and operand.decode is not None:
                        block_k, row = self.schedule.block_k, operand.row(work)
                        made = operand.decoded(made, work, step, block_k, row)
                    tw.copy(made, move.target)

        return put, fetch


# ---------------------------------------------------------------- two groups that alternate

GROUPS, STAGES = 2, 2
"""One group loads while the other one multiplies; one stage is read while the other one is written."""

MATRIX_CORES = "mfma"
"""The feature of machines whose SIMDs multiply for one warp while they load for another one."""

SIMDS = 4
"""SIMDs of a multiprocessor; each executes warps of both groups."""

ALL_WARPS_BARRIER = 1
"""The number of the barrier for all threads of the block; each group reaches it at its own lines."""


class Alternating(Registers):
    """Two groups share the rows of a tile and do the same work, one of them half a step after the other.

    A step along K has two halves.  First a group loads: it writes its half of the next tile from registers to
    shared memory, loads its half of the tile after that into registers, and reads the operands of this tile
    into registers.  Then it multiplies without access to memory.  All threads of the block wait at a barrier
    after each half.  Since the second group passes one more barrier before its first step, one group loads
    while the other one multiplies.

    Two stages are enough.  When the first group has multiplied a tile, both have read it; the stage is
    written again only after the next barrier.
    """

    def __init__(
        self, schedule: Schedule, form: Form, sources: Sources, before: Staging | None = None
    ) -> None:
        super().__init__(schedule, form, sources, before)
        maps = tw.operand_a, tw.operand_b
        self.spreads = [maps[source.side](schedule.mma, schedule.block_k) for source in sources]

    @classmethod
    def registers(cls, facts: ScheduleFacts) -> int:
        """Registers of a thread for the next tile of each operand, and for this one."""
        return super().registers(facts) + sum(cls.multiplied(facts, tile) for tile in facts.tiles)

    @classmethod
    def against(cls, facts: ScheduleFacts) -> Reasons:
        """Two groups and two stages; each group runs on all SIMDs, and all threads pass every barrier."""
        schedule, form = facts.schedule, facts.form
        product, what = form.sum, 'roles="alternating"'
        if facts.target.machine_code and MATRIX_CORES not in facts.arch.features:
            text = (
                f"{what}; {facts.arch.name} has no matrix cores that work while other units load and compute"
            )
            yield "roles", text, 'roles="none", groups=1 and stages=1', product
        if schedule.groups > GROUPS:
            text = f"{schedule.groups} groups; one group loads while the other multiplies"
            yield "groups", text, f"groups={GROUPS}", product
        if schedule.stages != STAGES:
            text = f"{schedule.stages} stages; one stage is read while the other is written"
            yield "stages", text, f"stages={STAGES}", product
        if math.prod(schedule.warps) % SIMDS:
            warps = f"{math.prod(schedule.warps)} warps of a group"
            text = f"{warps}; the {SIMDS} SIMDs must execute equal numbers of warps"
            yield "warps", text, "warps=(2, 2), or another multiple of 4 warps", product
        if facts.tile[1] % GROUPS:
            text = f"{facts.tile[1]} columns of a tile; each group copies half of them"
            yield "tile", text, "an even number of columns", product
        if schedule.bypass:
            text = f'bypass="{schedule.bypass}" with {what}, whose groups share the operands'
            yield "bypass", text, 'bypass=""', product
        if schedule.epilogue_class.hands_over:
            text = f'epilogue="{schedule.epilogue}" with {what}, which has no warps that store alone'
            yield "epilogue", text, 'epilogue="staged"', form.stores[0]
        for field, plain in (("split_k", 1), ("balanced", False), ("batches", 1)):
            if getattr(schedule, field) != plain:
                text = (
                    f"{field}={schedule.spelled(field)} with {what}, whose groups alternate over whole tiles"
                )
                yield field, text, f'{field}={plain}, or roles="none"', product
        alone = 'roles="none", groups=1 and stages=1'
        computed = [s.label for s in facts.sides if not (s.factor.is_plain and s.factor.scale is None)]
        if computed:
            copied = f"{what}, whose groups copy operands without decoding them"
            text = f"{copied}; {computed[0]} must be decoded"
            yield "roles", text, alone, product
        if form.reductions:
            text = f"{what}; a reduction needs all warps of the block at once"
            yield "roles", text, alone, product

    @contextmanager
    def role(self, *, again: bool = False) -> Iterator[Index]:
        """All warps of the block, in groups."""
        schedule = self.schedule
        with role(warps=schedule.mma.threads // current().lanes, groups=schedule.groups) as group:
            yield group

    def drain(self, work: Work) -> None:
        """Let the first group pass one more barrier, where the second group waits, half a step later."""
        with when(work.group == 0):
            self._meet()

    def end(self, work: Work) -> None:
        """Drain the ring before all warps store; the next tile fills it again."""
        self.drain(work)

    def verbs(self, work: Work, sums: Sums) -> list[Verb]:
        """Load, wait at the barrier of the block, multiply, wait again."""
        put, fetch = self._through_registers(work)
        held = [
            tw.fragment(spread, source.sample.dtype, name=f"r{source.name}")
            for spread, source in zip(self.spreads, self.sources, strict=True)
        ]

        def read(step: LoopStep) -> None:
            for source, ring, fragment in zip(self.sources, self.rings, held, strict=True):
                with made_by(node=source.part):
                    at = (0 if source.side else work.group, 0)
                    tw.copy(ring.shared[step.index % self.schedule.stages].tile(fragment.shape, at), fragment)

        def operands(step: LoopStep) -> tuple[Held, Held]:
            return of_both(self.sources, held)

        def turn(step: LoopStep) -> None:
            self._meet()
            if not step.ahead:  # before the first step
                with when(work.group == 1):
                    self._meet()

        return [
            Verb("put", 1, put, outside=True),
            Verb("fetch", 2, fetch, outside=True),
            Verb("read", 0, read),
            Verb("turn", 1, turn, outside=True),
            *self.accumulation.verbs(sums, operands, work),
            *self.accumulation.promoting(sums, work),
            Verb("turn", 0, lambda step: self._meet()),
        ]

    def _loaded(self, work: Work, step: LoopStep) -> list[Move]:
        """The copies of a group: its part of each tile."""
        schedule, found = self.schedule, []
        for source, ring in zip(self.sources, self.rings, strict=True):
            with made_by(node=source.part):
                row = source.row(work) * schedule.groups + work.group
                tile = source.matrix(work).tile(self._part(ring), (row, work.segment.begin + step.index))
            turned = self._is_turned(source)
            found.append(Move(tile, None, source.part, self._dealing(source), turned, source))
        return found

    def _pairs(self, work: Work, step: LoopStep) -> list[Move]:
        """The same copies with their targets."""
        found = []
        for move, ring in zip(self._loaded(work, step), self.rings, strict=True):
            with made_by(node=move.part):
                stage = ring.shared[step.index % self.schedule.stages]
                found.append(replace(move, target=stage.tile(self._part(ring), (work.group, 0))))
        return found

    def _part(self, ring: PlainStages) -> tuple[int, int]:
        """Rows and depth of the part of a tile that a group copies."""
        rows, depth = ring.shape
        return rows // self.schedule.groups, depth

    def _meet(self) -> None:
        meet_all(self.schedule)


def meet_all(schedule: Schedule) -> None:
    """Wait for all threads of the block, which may call this at different lines."""
    role_barrier(ALL_WARPS_BARRIER, threads=schedule.mma.threads * schedule.groups)
