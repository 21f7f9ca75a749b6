"""The ring that holds the next tile in registers, and operands that go past shared memory."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.dtypes import DType
from tilewright.lang import operations as tw
from tilewright.lang.tensors import Fragment
from tilewright.lang.tile_arithmetic import redistribute
from tilewright.schedule.fragments_ring import decoded_part
from tilewright.schedule.partition import Work
from tilewright.schedule.pipeline import Step, Verb
from tilewright.schedule.plans import Sums
from tilewright.schedule.provenance import made_by
from tilewright.schedule.rings import Move, Source, Whole
from tilewright.schedule.stages import HeldTile, PackedTile, PlainStages, SwizzledStages


class Registers(Whole):
    """The next tile is on its way into registers while this one is multiplied.

    Of an operand that goes past shared memory two tiles are in registers: the next one, and the one that is
    multiplied.  One that is computed from what lies in memory is so on its way to shared memory, once for
    all warps.
    """

    def _kept(self, source: Source) -> DType:
        """The dtype of an operand in shared memory: that in which it is multiplied, if it is computed."""
        atom = self.schedule.mma.atom
        return super()._kept(source) if source.decode is None else (atom.a_dtype, atom.b_dtype)[source.side]

    def _ring(self, source: Source) -> HeldTile | PackedTile | PlainStages | SwizzledStages:
        schedule, side = self.schedule, "a" if source.along == "m" else "b"
        if side not in schedule.bypass:
            return super()._ring(source)
        spread = (tw.operand_a if side == "a" else tw.operand_b)(schedule.mma, schedule.block_k)
        return HeldTile(source.sample, spread, f"r{source.name}")

    def verbs(self, work: Work, sums: Sums) -> list[Verb]:
        """One stage in shared memory, one in registers."""
        shares = not all(isinstance(ring, HeldTile) for ring in self.rings)
        write, fetch = self._through_registers(work)

        def put(step: Step) -> None:
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

    def _loaded(self, work: Work, step: Step) -> list[Move]:
        """What is loaded into registers for one step."""
        return self._pairs(work, step)

    def _through_registers(self, work: Work) -> tuple[Callable[[Step], None], Callable[[Step], None]]:
        """What writes the tile of a step from registers to shared memory, and what loads one into these."""
        held: list[Fragment] = []

        def fetch(step: Step) -> None:
            first = not held
            for at, move in enumerate(self._loaded(work, step)):
                with made_by(node=move.part):
                    past = isinstance(move.target, Fragment)
                    dealing = move.dealing | ({"vector_dim": 0} if move.is_turned else {})
                    own = move.source if past else move.source.partition(**dealing)
                    if first:
                        held.append(tw.load(own, move.target if past else None, name="prefetched"))
                    else:
                        tw.copy(own, held[at])

        def put(step: Step) -> None:
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
                        made = decoded_part(operand, made, work, step, block_k, row)
                    tw.copy(made, move.target)

        return put, fetch
