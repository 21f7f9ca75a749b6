"""Bytes that lanes load from and store to: the arrays of a launch, LDS, scratch memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.amdgcn.faults import ListingError, OutOfBoundsError, StoredTwiceError
from tilewright.amdgcn.state import Array

BASE = 0x4000_0000_0000
"""The address at which arrays begin: in no aperture of flat instructions."""
GUARD = 256
"""Bytes before the first of them, which is where constants begin."""


class Space:
    """Bytes that are loaded and stored by their places.

    Args:
        size: how many.
    """

    def __init__(self, size: int) -> None:
        self.octets = np.zeros((size + 2 * GUARD) // 16 * 16 + 16, np.uint8)
        self.words = self.octets.view(np.uint32)

    def load(self, places: Array, size: int) -> list[Array]:
        """Words that begin at places: one for each 4 bytes, or one of 1 or 2 bytes and zeros."""
        if size < 4:
            value = self.octets[places].astype(np.uint32)
            return (
                [value | (self.octets[places + 1].astype(np.uint32) << np.uint32(8))]
                if size == 2
                else [value]
            )
        if np.any(places & 3):
            octets = self.octets[places[..., None] + np.arange(size)]
            return [
                np.ascontiguousarray(octets[..., i : i + 4]).view(np.uint32)[..., 0]
                for i in range(0, size, 4)
            ]
        first = places >> 2
        return [self.words[first + i] for i in range(size // 4)]

    def store(self, places: Array, size: int, words: Sequence[Array], mask: Array) -> None:
        """Stores words, or their lower 1 or 2 bytes, at the places where a mask is true."""
        at = places[mask]
        if size >= 4 and not np.any(at & 3):
            for i, word in enumerate(words):
                self.words[(at >> 2) + i] = np.broadcast_to(word, mask.shape)[mask]
            return
        for i in range(size):
            word = np.broadcast_to(words[i // 4], mask.shape)[mask]
            self.octets[at + i] = (word >> np.uint32(8 * (i % 4))).astype(np.uint8)


def unknown_space(size: int) -> Space:
    """Says which bits of as many bytes are undefined: all, at the begin."""
    space = Space(size)
    space.octets[...] = 255
    return space


@dataclass(frozen=True, slots=True)
class Region:
    """Bytes of an array, or of several that overlap.

    Args:
        name: which argument, for messages.
        first: place of the first byte.
        end: place behind the last one.
        legal: which of the bytes are elements; None for all.
    """

    name: str
    first: int
    end: int
    legal: npt.NDArray[np.bool_] | None = None


def extent(array: Array) -> tuple[int, int]:
    """Addresses of an array's first byte and behind its last one."""
    low = high = array.ctypes.data
    if array.size == 0:
        return low, low
    for count, stride in zip(array.shape, array.strides, strict=True):
        step = (count - 1) * stride
        low, high = (low + step, high) if step < 0 else (low, high + step)
    return low, high + array.itemsize


def _strided(octets: Array, first: int, array: Array) -> Array:
    """The bytes of an array's elements, (…, itemsize), among those of its extent."""
    return np.lib.stride_tricks.as_strided(
        octets[first:], (*array.shape, array.itemsize), (*array.strides, 1)
    )


class Arrays(Space):
    """The memory of a device, in which the arrays of a launch lie, each with a gap before and behind.

    Args:
        arrays: by the names of their arguments; those that overlap keep their places to each other.
        more: bytes of other memory, such as the arguments themselves.
        constants: of the listing, which lie first.
    """

    def __init__(self, arrays: dict[str, Array], more: int, constants: bytes = b"") -> None:
        for name, array in arrays.items():
            if not isinstance(array, np.ndarray):
                raise ListingError(f"argument {name!r} is no NumPy array but {type(array).__name__}")
        groups = self._grouped(arrays)
        size = GUARD + -(-len(constants) // GUARD) * GUARD
        places = []
        for low, high, _ in groups:
            places.append(size + low % GUARD)
            size = (places[-1] + (high - low) + 2 * GUARD) // GUARD * GUARD
        super().__init__(size + more)
        self.arrays = arrays
        self.stored: npt.NDArray[np.bool_] | None = None
        self.place: dict[str, int] = {}
        self.regions: list[Region] = []
        if constants:
            self.octets[GUARD : GUARD + len(constants)] = list(constants)
            self.regions.append(Region("the listing's constants", GUARD, GUARD + len(constants)))
        for (low, high, names), first in zip(groups, places, strict=True):
            legal = np.zeros(high - low, np.bool_)
            for name in names:
                array = arrays[name]
                self.place[name] = first + array.ctypes.data - low
                if array.size:
                    _strided(self.octets, self.place[name], array)[...] = _octets(array)
                    _strided(legal, array.ctypes.data - low, array)[...] = True
            whole = bool(legal.all())
            self.regions.append(Region(", ".join(names), first, first + high - low, None if whole else legal))
        self.more = size
        self.regions.append(Region("the kernel's arguments", size, size + more))
        self._first = [region.first for region in self.regions]

    @staticmethod
    def _grouped(arrays: dict[str, Array]) -> list[tuple[int, int, list[str]]]:
        groups: list[tuple[int, int, list[str]]] = []
        for (low, high), name in sorted((extent(array), name) for name, array in arrays.items()):
            if groups and low < groups[-1][1]:
                before, end, names = groups[-1]
                groups[-1] = (before, max(end, high), [*names, name])
            else:
                groups.append((low, high, [name]))
        return groups

    def address(self, name: str) -> int:
        """The address of an array's first element."""
        return BASE + self.place[name]

    def store_once(self, places: Array, size: int, mask: Array, line: int, text: str) -> None:
        """Looks whether bytes were stored before, where each may be stored once.

        Raises:
            StoredTwiceError: they were.
        """
        if self.stored is None:
            return
        octets = places[mask][:, None] + np.arange(size)
        again = self.stored[octets].any(-1)
        same = np.unique(octets[:, 0], return_index=True)[1]
        again |= ~np.isin(np.arange(len(octets)), same)
        if again.any():
            place = int(octets[again][0, 0])
            region = self.regions[int(np.searchsorted(self._first, place, "right")) - 1]
            raise StoredTwiceError(
                f"{int(again.sum())} lanes store to bytes that others stored to, "
                f"the first {place - region.first} bytes from the begin of {region.name}",
                line,
                text,
            )
        self.stored[octets] = True

    def take_back(self) -> None:
        """Copies what kernels stored into the arrays of the launch."""
        for name, array in self.arrays.items():
            if array.size and array.flags.writeable:
                _octets(array)[...] = _strided(self.octets, self.place[name], array)

    def places(self, addresses: Array, size: int, mask: Array, what: str, line: int, text: str) -> Array:
        """Places of addresses in the active lanes, 0 in others.

        Raises:
            OutOfBoundsError: bytes that belong to no array.
        """
        places = np.where(mask, addresses - np.uint64(BASE), np.uint64(0)).astype(np.int64)
        active = places[mask]
        if not active.size:
            return places
        which = int(np.searchsorted(self._first, active[0], "right")) - 1
        region = self.regions[max(which, 0)]
        inside = active.min() >= region.first and active.max() + size <= region.end
        if inside and region.legal is None:
            return places
        which_of = np.searchsorted(self._first, active, "right") - 1
        for number in np.unique(which_of):
            of = active[which_of == number]
            self._check(self.regions[max(int(number), 0)], of, size, what, line, text)
        return places

    def _check(self, region: Region, places: Array, size: int, what: str, line: int, text: str) -> None:
        beyond = (places < region.first) | (places + size > region.end)
        gap: Any = np.zeros_like(beyond)
        if region.legal is not None and not beyond.any():
            gap = ~region.legal[(places - region.first)[:, None] + np.arange(size)].all(-1)
        if not (beyond | gap).any():
            return
        bad = int(places[beyond | gap][0])
        by = (
            f"{bad - region.first} bytes from the begin"
            if bad < region.end
            else f"{bad - region.end} bytes behind the end"
        )
        why = "between the elements" if gap.any() else by
        length = region.end - region.first
        raise OutOfBoundsError(
            f"{what} of {size} bytes {why} of {region.name or 'an argument'} "
            f"({length} bytes), in {int((beyond | gap).sum())} lanes",
            line,
            text,
        )


class _Octets:
    """Lends an array's memory as bytes, whatever its type is."""

    def __init__(self, array: Array) -> None:
        self.array = array
        self.__array_interface__ = {
            "shape": (*array.shape, array.itemsize),
            "typestr": "|u1",
            "data": (array.ctypes.data, not array.flags.writeable),
            "strides": (*array.strides, 1),
            "version": 3,
        }


def _octets(array: Array) -> Array:
    """The bytes of an array's elements, (…, itemsize), as a view."""
    return np.asarray(_Octets(array))
