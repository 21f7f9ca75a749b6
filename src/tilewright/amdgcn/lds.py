"""The LDS of blocks: its bytes, which of them were written, and who accessed them since the last barrier.

For each granule of bytes a word says who wrote it last, and another who read it: the number of barriers that
the block had passed, the line of the listing, whether it was an atomic, and the wave. Two accesses of one
block by different waves with as many barriers behind them, one of which writes, are a race. What a wave has
not waited for when it comes to a barrier counts as done behind the barrier.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.amdgcn.faults import LdsRaceError, MisalignedError, MissingWaitError, OutOfBoundsError
from tilewright.amdgcn.space import Space, unknown_space
from tilewright.amdgcn.state import Array, Waves
from tilewright.amdgcn.steps import Step
from tilewright.amdgcn.waits import Flight

Watch = Callable[[int, int, Array, bool], None]
"""Is told of each access of waves: the line of the listing, bytes of a lane, and the offset in LDS of each
wave's lanes, -1 for those that take no part; whether they store."""

_ALIGNED = 16
"""Bytes of the widest access, which begins at a multiple of them."""


MULTIPLE = 0x7FFF
MOST_OPEN = 64
"""Accesses that are remembered until somebody looks which were waited for."""
ATOMIC = 1 << 15
_WAVE, _LINE, _EPOCH = (1 << 15) - 1, 16, 40


@dataclass(slots=True, eq=False)
class _Access:
    """An access that some wave may not have waited for."""

    flight: Flight
    waves: Array
    granules: Array
    mask: Array
    writes: bool
    keys: Array


class Lds(Space):
    """The LDS of several blocks, one behind the other.

    Args:
        size: bytes of one block.
        block_of: the number of the block of each wave.
        granule: bytes that are told apart: 1, 2 or 4.
    """

    def __init__(self, size: int, block_of: Array, granule: int) -> None:
        blocks = int(block_of.max()) + 1
        self.size, self.granule = size, granule
        self.pitch = (size + 15) // 16 * 16
        super().__init__(blocks * self.pitch)
        self.block_of = block_of
        self.epoch = np.ones(len(block_of), np.int64)
        granules = len(self.octets) // granule
        self.writer, self.reader = np.zeros(granules, np.int64), np.zeros(granules, np.int64)
        self.unknown = unknown_space(len(self.octets))
        self.open: list[_Access] = []
        self.watch: Watch | None = None

    def places(self, waves: Waves, offsets: Array, size: int, step: Step) -> Array:
        """Places of the offsets of lanes; those of inactive lanes lie behind all blocks.

        Raises:
            OutOfBoundsError: an offset beyond the block's LDS.
        """
        offsets = np.broadcast_to(offsets, waves.mask.shape).astype(np.int64)
        bad = waves.mask & (offsets + size > self.size)
        if bad.any():
            wave, lane = np.argwhere(bad)[0]
            raise OutOfBoundsError(
                f"LDS is accessed at bytes {offsets[wave, lane]} to {offsets[wave, lane] + size - 1} "
                f"of {self.size}, in wave {waves.selected()[wave]}, lane {lane}",
                step.line,
                step.text,
            )
        base = self.block_of[waves.at] * self.pitch
        return np.where(waves.mask, base[:, None] + offsets, len(self.octets) - GUARD_PLACE)

    def record(
        self,
        waves: Waves,
        places: Array,
        size: int,
        step: Step,
        flight: Flight,
        writes: bool,
        atomic: bool = False,
    ) -> None:
        """Looks whether an access races with those before, and remembers it.

        Raises:
            LdsRaceError: it does.
        """
        if self.watch is not None:
            base = self.block_of[waves.at] * self.pitch
            self.watch(step.line, size, np.where(waves.mask, places - base[:, None], -1), writes)
        if size == _ALIGNED and (off := np.where(waves.mask, places % _ALIGNED, 0)).any():
            wave, lane = np.argwhere(off)[0]
            where = int(places[wave, lane] - self.block_of[waves.at][wave] * self.pitch)
            raise MisalignedError(
                f"{size} bytes of LDS at {where} in wave {waves.selected()[wave]}, lane {lane}; such an "
                f"access begins at a multiple of {_ALIGNED}",
                step.line,
                step.text,
            )
        count = max(size // self.granule, 1)
        granules = places[..., None] // self.granule + np.arange(count)
        selected = waves.selected()
        mine = (
            (self.epoch[waves.at] << _EPOCH)
            | (step.line << _LINE)
            | (ATOMIC if atomic else 0)
            | (selected + 1)
        )
        keys = np.broadcast_to(mine[:, None, None], granules.shape)
        mask = np.broadcast_to(waves.mask[..., None], granules.shape)
        if len(self.open) > MOST_OPEN:
            self.open = [access for access in self.open if waves.waits.on_way(access.flight).any()]
        self._loading(waves, granules, mask, step)
        self._mark(granules, keys, mask, writes, step)
        self.open.append(_Access(flight, selected, granules, mask, writes, keys))

    def _loading(self, waves: Waves, granules: Array, mask: Array, step: Step) -> None:
        """Refuses to access what a load of the same wave from global memory may still be on its way to."""
        for access in self.open:
            if access.flight.stream != "vm" or not (late := waves.waits.on_way(access.flight)).any():
                continue
            for row, wave in enumerate(waves.selected()):
                if not late[wave] or wave not in access.waves:
                    continue
                place = int(np.flatnonzero(access.waves == wave)[0])
                if np.isin(granules[row][mask[row]], access.granules[place][access.mask[place]]).any():
                    raise MissingWaitError(
                        f"LDS is accessed before what line {access.flight.line} ({access.flight.text}) loads "
                        "into it is waited for by vmcnt",
                        step.line,
                        step.text,
                    )

    def _mark(self, granules: Array, keys: Array, mask: Array, writes: bool, step: Step) -> None:
        self._against(self.writer, granules, keys, mask, "written", "write" if writes else "read", step)
        if writes:
            self._against(self.reader, granules, keys, mask, "read", "write", step)
        table = self.writer if writes else self.reader
        if mask.all():
            flat, own = granules.reshape(-1), keys.reshape(-1)
        else:
            flat, own = granules[mask], keys[mask]
        new = own
        old = table[flat]
        shared = (old >> _EPOCH == own >> _EPOCH) & ((old ^ own) & _WAVE != 0)
        if shared.any():
            new = np.where(shared, own | MULTIPLE, own)
        table[flat] = new
        others = (table[flat] ^ own) & _WAVE != 0
        if others.any():
            if writes and not (own & ATOMIC).all():
                self._race(flat[others][0], table[flat][others][0], own[others][0], "written", "write", step)
            table[flat[others]] = table[flat[others]] | MULTIPLE

    def _against(
        self, table: Array, granules: Array, keys: Array, mask: Array, did: str, does: str, step: Step
    ) -> None:
        old = table[granules]
        # What counts as done behind the next barrier began before it: it meets what others do on either side.
        conflict = mask & (old >> _EPOCH >= keys >> _EPOCH) & ((old ^ keys) & _WAVE != 0)
        if conflict.any():
            conflict &= (old & keys & ATOMIC) == 0
        if conflict.any():
            self._race(granules[conflict][0], old[conflict][0], keys[conflict][0], did, does, step)

    def _race(self, granule: int, old: int, new: int, did: str, does: str, step: Step) -> None:
        place = int(granule) * self.granule
        wave = int(old) & _WAVE
        by = "several waves" if wave == MULTIPLE else f"wave {wave - 1}"
        mine = int(new) & _WAVE
        raise LdsRaceError(
            f"wave {mine - 1 if mine != MULTIPLE else '?'} {does}s LDS at byte {place % self.pitch}, "
            f"which {by} of its block {did.replace('read', 'reads').replace('written', 'writes')} at line "
            f"{(int(old) >> _LINE) & 0xFFFFFF}, with no barrier between",
            step.line,
            step.text,
        )

    def arrive(self, waves: Waves, flights_on_way: Any, step: Step) -> None:
        """Waves have come to a barrier: what they have not waited for is done behind it."""
        at = waves.selected()
        self.epoch[waves.at] += 1
        left = []
        for access in self.open:
            late = flights_on_way(access.flight)
            if not late.any():
                continue
            left.append(access)
            rows = np.isin(access.waves, at) & late[access.waves]
            if rows.any():
                keys = access.keys[rows] + (np.int64(1) << _EPOCH)
                access.keys = np.array(access.keys)
                access.keys[rows] = keys
                self._mark(access.granules[rows], keys, access.mask[rows], access.writes, step)
        self.open = left


GUARD_PLACE = 64
"""Inactive lanes access bytes so far before the end, behind all blocks."""
