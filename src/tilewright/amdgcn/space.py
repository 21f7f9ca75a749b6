"""Memory of the interpreter: the arrays of a launch, LDS, and scratch memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.amdgcn.faults import (
    LdsRaceError,
    ListingError,
    MisalignedError,
    MissingWaitError,
    OutOfBoundsError,
    StoredTwiceError,
)
from tilewright.amdgcn.state import Array, Outstanding, Waves
from tilewright.amdgcn.steps import DecodedStep

BASE = 0x4000_0000_0000
"""Address of the first byte of device memory; no aperture of flat instructions contains it."""
GUARD = 256
"""Unused bytes at the begin of device memory.  Constants follow them."""
GUARD_PLACE = 64
"""Distance from the end of a memory to the bytes that inactive lanes access."""
NONE_UNKNOWN = np.zeros((1, 1), np.uint32)
"""Undefined bits of a word whose bits are all defined."""


class Space:
    """Bytes that are loaded and stored by their places.

    Args:
        size: number of bytes.
    """

    def __init__(self, size: int) -> None:
        self.octets = np.zeros((size + 2 * GUARD) // 16 * 16 + 16, np.uint8)
        self.words = self.octets.view(np.uint32)

    def load(self, places: Array, size: int) -> list[Array]:
        """Return the words that begin at places: one for each 4 bytes, or one of 1 or 2 bytes and zeros."""
        if size < 4:
            value = self.octets[places].astype(np.uint32)
            if size == 2:
                value |= self.octets[places + 1].astype(np.uint32) << np.uint32(8)
            return [value]
        if np.any(places & 3):
            octets = self.octets[places[..., None] + np.arange(size)]
            return [
                np.ascontiguousarray(octets[..., i : i + 4]).view(np.uint32)[..., 0]
                for i in range(0, size, 4)
            ]
        first = places >> 2
        return [self.words[first + i] for i in range(size // 4)]

    def store(self, places: Array, size: int, words: Sequence[Array], mask: Array) -> None:
        """Store words, or their lower 1 or 2 bytes, at the places where a mask is true."""
        at = places[mask]
        if size >= 4 and not np.any(at & 3):
            for i, word in enumerate(words):
                self.words[(at >> 2) + i] = np.broadcast_to(word, mask.shape)[mask]
            return
        for i in range(size):
            word = np.broadcast_to(words[i // 4], mask.shape)[mask]
            self.octets[at + i] = (word >> np.uint32(8 * (i % 4))).astype(np.uint8)


def unknown_space(size: int) -> Space:
    """Return the undefined bits of a memory: at first, all bits."""
    space = Space(size)
    space.octets[...] = 255
    return space


@dataclass(frozen=True, slots=True)
class MemoryRegion:
    """Bytes of an array, or of several overlapping arrays.

    Args:
        name: name of the argument, for messages.
        first: place of the first byte.
        end: one past the last place.
        legal: mask of the bytes that belong to elements; None for all.
    """

    name: str
    first: int
    end: int
    legal: npt.NDArray[np.bool_] | None = None


def extent(array: Array) -> tuple[int, int]:
    """Return the addresses of an array's first byte and one past its last byte."""
    low = high = array.ctypes.data
    if array.size == 0:
        return low, low
    for count, stride in zip(array.shape, array.strides, strict=True):
        step = (count - 1) * stride
        low, high = (low + step, high) if step < 0 else (low, high + step)
    return low, high + array.itemsize


def _strided(octets: Array, first: int, array: Array) -> Array:
    """Return the bytes of an array's elements, (…, itemsize), among those of its extent."""
    return np.lib.stride_tricks.as_strided(
        octets[first:], (*array.shape, array.itemsize), (*array.strides, 1)
    )


class Arrays(Space):
    """Device memory with the arrays of a launch, each between two gaps.

    Args:
        arrays: arrays by the names of their arguments; overlapping arrays overlap here too.
        more: bytes of other memory, such as the arguments themselves.
        constants: constants of the listing, which lie first.
    """

    def __init__(self, arrays: dict[str, Array], more: int, constants: bytes = b"") -> None:
        for name, array in arrays.items():
            if not isinstance(array, np.ndarray):
                raise ListingError(f"argument {name!r} is no NumPy array but {type(array).__name__}")
        groups: list[tuple[int, int, list[str]]] = []  # arrays that overlap, with their extent
        for (low, high), name in sorted((extent(array), name) for name, array in arrays.items()):
            if groups and low < groups[-1][1]:
                before, end, names = groups[-1]
                groups[-1] = (before, max(end, high), [*names, name])
            else:
                groups.append((low, high, [name]))
        size = GUARD + -(-len(constants) // GUARD) * GUARD
        places = []
        for low, high, _ in groups:
            places.append(size + low % GUARD)
            size = (places[-1] + (high - low) + 2 * GUARD) // GUARD * GUARD
        super().__init__(size + more)
        self.arrays = arrays
        self.stored: npt.NDArray[np.bool_] | None = None
        self.place: dict[str, int] = {}
        self.regions: list[MemoryRegion] = []
        if constants:
            self.octets[GUARD : GUARD + len(constants)] = list(constants)
            self.regions.append(MemoryRegion("the listing's constants", GUARD, GUARD + len(constants)))
        for (low, high, names), first in zip(groups, places, strict=True):
            legal = np.zeros(high - low, np.bool_)
            for name in names:
                array = arrays[name]
                self.place[name] = first + array.ctypes.data - low
                if array.size:
                    _strided(self.octets, self.place[name], array)[...] = _octets(array)
                    _strided(legal, array.ctypes.data - low, array)[...] = True
            gaps = None if legal.all() else legal
            self.regions.append(MemoryRegion(", ".join(names), first, first + high - low, gaps))
        self.more = size
        self.regions.append(MemoryRegion("the kernel's arguments", size, size + more))
        self._first = [region.first for region in self.regions]

    def address(self, name: str) -> int:
        """Return the address of an array's first element."""
        return BASE + self.place[name]

    def store_once(self, places: Array, size: int, mask: Array, step: DecodedStep) -> None:
        """Refuse a second store to a byte, if the launch permits only one.

        Raises:
            StoredTwiceError: a lane stores to bytes that were stored before.
        """
        if self.stored is None:
            return
        octets = places[mask][:, None] + np.arange(size)
        again = self.stored[octets].any(-1)
        again |= ~np.isin(np.arange(len(octets)), np.unique(octets[:, 0], return_index=True)[1])
        if again.any():
            place = int(octets[again][0, 0])
            region = self.regions[int(np.searchsorted(self._first, place, "right")) - 1]
            raise StoredTwiceError(
                f"{int(again.sum())} lanes store to bytes that others stored to, "
                f"the first {place - region.first} bytes from the begin of {region.name}",
                *step.position,
            )
        self.stored[octets] = True

    def take_back(self) -> None:
        """Copy device memory back into the arrays of the launch."""
        for name, array in self.arrays.items():
            if array.size and array.flags.writeable:
                _octets(array)[...] = _strided(self.octets, self.place[name], array)

    def places(self, addresses: Array, size: int, mask: Array, what: str, step: DecodedStep) -> Array:
        """Return the places of addresses in the active lanes, 0 in others.

        Raises:
            OutOfBoundsError: an access to bytes outside all arrays.
        """
        places = np.where(mask, addresses - np.uint64(BASE), np.uint64(0)).astype(np.int64)
        active = places[mask]
        if not active.size:
            return places
        region = self.regions[max(int(np.searchsorted(self._first, active[0], "right")) - 1, 0)]
        inside = active.min() >= region.first and active.max() + size <= region.end
        if inside and region.legal is None:
            return places
        which_of = np.searchsorted(self._first, active, "right") - 1
        for number in np.unique(which_of):
            region, of = self.regions[max(int(number), 0)], active[which_of == number]
            beyond = (of < region.first) | (of + size > region.end)
            gap: Any = np.zeros_like(beyond)
            if region.legal is not None and not beyond.any():
                gap = ~region.legal[(of - region.first)[:, None] + np.arange(size)].all(-1)
            if not (beyond | gap).any():
                continue
            bad = int(of[beyond | gap][0])
            if gap.any():
                why = "between the elements"
            elif bad < region.end:
                why = f"{bad - region.first} bytes from the begin"
            else:
                why = f"{bad - region.end} bytes after the end"
            raise OutOfBoundsError(
                f"{what} of {size} bytes {why} of {region.name or 'an argument'} "
                f"({region.end - region.first} bytes), in {int((beyond | gap).sum())} lanes",
                *step.position,
            )
        return places


def _octets(array: Array) -> Array:
    """Return the bytes of an array's elements, (…, itemsize), as a view."""
    return array[..., None].view(np.uint8)


# ---------------------------------------------------------------- LDS of the blocks, with race detection
#
# For each granule of bytes, one word records the last write and one the last read: the number of barriers
# that the block had passed, the line of the listing, whether it was an atomic, and the wave.  Two accesses
# are a race if different waves of a block make them between the same barriers and one of them writes. An
# access that a wave has not waited for at a barrier counts as done after the barrier.


Watch = Callable[[int, int, Array, bool], None]
"""Observer of LDS accesses.  Its arguments: the line of the listing, the bytes that a lane accesses, the
offsets in LDS of all lanes (-1 for inactive lanes), and whether they store."""

_ALIGNED = 16
"""Bytes and alignment of the widest access."""

MULTIPLE = 0x7FFF
"""Number of the wave in a record of several waves."""
MOST_OPEN = 64
"""Number of kept accesses above which finished ones are dropped."""
ATOMIC = 1 << 15
"""Bit of a record: the access was an atomic."""
_WAVE, _LINE, _EPOCH = (1 << 15) - 1, 16, 40
"""Mask of the wave in a record; first bits of the line and of the number of passed barriers."""


@dataclass(slots=True, eq=False)
class _Access:
    """An access that some wave may not have waited for."""

    flight: Outstanding
    waves: Array
    granules: Array
    mask: Array
    writes: bool
    keys: Array


class Lds(Space):
    """The LDS of several blocks, one after the other.

    Args:
        size: bytes of one block.
        block_of: block of each wave.
        granule: bytes of one record of accesses: 1, 2 or 4.
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

    def places(self, waves: Waves, offsets: Array, size: int, step: DecodedStep) -> Array:
        """Return the places of the lanes' offsets.  Inactive lanes get a place after all blocks.

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
                *step.position,
            )
        base = self.block_of[waves.at] * self.pitch
        return np.where(waves.mask, base[:, None] + offsets, len(self.octets) - GUARD_PLACE)

    def record(
        self,
        waves: Waves,
        places: Array,
        size: int,
        step: DecodedStep,
        flight: Outstanding,
        writes: bool,
        atomic: bool = False,
    ) -> None:
        """Refuse an access that races with an earlier one, and record it.

        Raises:
            LdsRaceError: it races with an earlier access.
            MisalignedError: 16 bytes at an address that is no multiple of 16.
            MissingWaitError: a load into these bytes of LDS may be outstanding.
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
                *step.position,
            )
        granules = places[..., None] // self.granule + np.arange(max(size // self.granule, 1))
        selected = waves.selected()
        line = step.line << _LINE | (ATOMIC if atomic else 0)
        mine = self.epoch[waves.at] << _EPOCH | line | (selected + 1)
        keys = np.broadcast_to(mine[:, None, None], granules.shape)
        mask = np.broadcast_to(waves.mask[..., None], granules.shape)
        if len(self.open) > MOST_OPEN:
            self.open = [access for access in self.open if waves.waits.on_way(access.flight).any()]
        # A load of the same wave from global memory into these bytes may be outstanding.
        for access in self.open:
            if access.flight.stream != "vm" or not (late := waves.waits.on_way(access.flight)).any():
                continue
            for row, wave in enumerate(selected):
                if not late[wave] or wave not in access.waves:
                    continue
                place = int(np.flatnonzero(access.waves == wave)[0])
                if np.isin(granules[row][mask[row]], access.granules[place][access.mask[place]]).any():
                    load = access.flight.step
                    raise MissingWaitError(
                        f"LDS is accessed before what line {load.line} ({load.text}) loads into it is waited "
                        "for by vmcnt",
                        *step.position,
                    )
        self._mark(granules, keys, mask, writes, step)
        self.open.append(_Access(flight, selected, granules, mask, writes, keys))

    def _mark(self, granules: Array, keys: Array, mask: Array, writes: bool, step: DecodedStep) -> None:
        self._against(self.writer, granules, keys, mask, "write", "write" if writes else "read", step)
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
                self._race(flat[others][0], table[flat][others][0], own[others][0], "write", "write", step)
            table[flat[others]] = table[flat[others]] | MULTIPLE

    def _against(
        self, table: Array, granules: Array, keys: Array, mask: Array, did: str, does: str, step: DecodedStep
    ) -> None:
        old = table[granules]
        # An access that counts as done after the next barrier began before it: it races with both sides.
        conflict = mask & (old >> _EPOCH >= keys >> _EPOCH) & ((old ^ keys) & _WAVE != 0)
        if conflict.any():
            conflict &= (old & keys & ATOMIC) == 0
        if conflict.any():
            self._race(granules[conflict][0], old[conflict][0], keys[conflict][0], did, does, step)

    def _race(self, granule: int, old: int, new: int, did: str, does: str, step: DecodedStep) -> None:
        place = int(granule) * self.granule
        wave = int(old) & _WAVE
        by = "several waves" if wave == MULTIPLE else f"wave {wave - 1}"
        mine = int(new) & _WAVE
        raise LdsRaceError(
            f"wave {mine - 1 if mine != MULTIPLE else '?'} {does}s LDS at byte {place % self.pitch}, "
            f"which {by} of its block {did}s at line {(int(old) >> _LINE) & 0xFFFFFF}, "
            "with no barrier between",
            *step.position,
        )

    def arrive(self, waves: Waves, flights_on_way: Any, step: DecodedStep) -> None:
        """Waves reach a barrier: their outstanding accesses count as done after it."""
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
