"""Lists of the caller's arrays: their common class, their addresses, and their tensor maps.

A kernel takes a list as one buffer and a table. The buffer begins at the lowest element of any array. The
table has each array's offset in the buffer, its strides and its extents. No kernel touches the bytes between
the arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd
from typing import Any, TypeAlias

import numpy as np

from tilewright.arch import BULK
from tilewright.errors import LaunchError
from tilewright.ir.async_legality import in_plain_numbers
from tilewright.ir.copies import MAP_WORDS
from tilewright.ir.kernel import TensorMap
from tilewright.lang.specs import TensorSpec
from tilewright.namespaces import part
from tilewright.runtime.arrays import ArrayInfo, describe, elements, overlap, reach, sharing
from tilewright.runtime.binding import MAX_EXTENT
from tilewright.runtime.frameworks import Strided
from tilewright.runtime.recent import Recent

ALIGN_BYTES = 16
DIVISOR = 16
"""Largest power of 2 that a class records as a divisor of strides."""

Integers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


class ListShape:
    """The metadata of the arrays of a list, except their addresses; only addresses modulo 16 count.

    Args:
        infos: arrays of one dtype, rank and device.
    """

    def __init__(self, infos: Sequence[ArrayInfo]) -> None:
        self.infos = tuple(infos)
        self.dtype = self.infos[0].dtype
        reaches = np.asarray([reach(info) for info in self.infos], np.int64)
        self.low, self.high = reaches[:, 0], reaches[:, 1]
        """Bytes from each array's address to its lowest element and to the end of its highest."""
        self.there = self.low < self.high
        """Mask of the arrays that have elements."""
        # The stride of a dimension with one element may be anything; 0 is divisible by everything.
        self.steps: Integers = np.asarray(
            [
                [
                    step if extent > 1 and there else 0
                    for step, extent in zip(info.strides, info.shape, strict=True)
                ]
                for info, there in zip(self.infos, self.there, strict=True)
            ],
            np.int64,
        )

    @cached_property
    def spec(self) -> TensorSpec:
        """The common class of the arrays, with a leading dimension for the list."""
        found = [info for info, there in zip(self.infos, self.there, strict=True) if there]
        dims = range(len(self.infos[0].shape))
        unit = next(
            (
                dim
                for dim in reversed(dims)
                if all(1 in (info.strides[dim], info.shape[dim]) for info in found)
            ),
            None,
        )
        steps = [1 if dim == unit else gcd(DIVISOR, *map(int, self.steps[:, dim])) for dim in dims]
        # The buffer begins at the lowest element of one of them.
        begins = [info.pointer + low for info in found for low in (0, reach(info)[0])]
        return TensorSpec(
            dtype=self.dtype,
            rank=1 + len(dims),
            unit_dim=None if unit is None else unit + 1,
            extent_divisors=(1, *(gcd(256, *(info.shape[dim] for info in self.infos)) for dim in dims)),
            stride_divisors=(DIVISOR, *steps),  # nothing steps from one array to the next
            align=gcd(ALIGN_BYTES, *begins),
            wide=True,
            signed=bool((self.steps < 0).any()),
        )


@dataclass(frozen=True)
class ArrayList:
    """The arrays of a list.

    Args:
        name: what messages call it.
        arrays: the arrays, of any framework.
        shape: their metadata.
        pointers: their addresses.
        base: the address of the buffer.
        length: elements of the buffer, as passed to the kernel.
        owner: an object that keeps a buffer of our own alive.
    """

    name: str
    arrays: Sequence[Any]
    shape: ListShape
    pointers: Integers
    base: int
    length: int = MAX_EXTENT
    owner: Any = None

    @staticmethod
    def of(name: str, arrays: Sequence[Any], shape: ListShape, pointers: Sequence[int]) -> ArrayList:
        """Make a list in the caller's memory; its buffer begins with the lowest element of all arrays."""
        known = np.asarray(pointers, np.int64)
        begins = (known + shape.low)[shape.there]
        return ArrayList(name, arrays, shape, known, int(begins.min()) if begins.size else ALIGN_BYTES)

    @property
    def buffer(self) -> Strided:
        """The array that the kernel takes for the whole list."""
        first = self.shape.infos[0]
        readonly = any(one.readonly for one in self.shape.infos)
        info = replace(first, pointer=self.base, shape=(self.length,), strides=(1,), readonly=readonly)
        return Strided(self.arrays[0], info if self.owner is None else replace(info, owner=self.owner))

    @property
    def starts(self) -> Integers:
        """The offset of each array in the buffer, in elements.

        Raises:
            LaunchError: an array begins between two elements of the buffer.
        """
        size = self.shape.dtype.bytes
        found, rest = np.divmod(np.where(self.shape.there, self.pointers - self.base, 0), size)
        if rest.any():
            at = int(rest.argmax())
            raise LaunchError(
                f"{self.name}[{at}] has a distance to the others that is {rest[at]} bytes more than a "
                f"multiple of {size} bytes",
                f"arrays aligned to {size} bytes",
            )
        return found

    @property
    def infos(self) -> list[ArrayInfo]:
        """The metadata of the arrays, with their addresses."""
        pairs = zip(self.shape.infos, self.pointers.tolist(), strict=True)
        return [replace(info, pointer=pointer) for info, pointer in pairs]

    def together(self) -> ArrayList:
        """Copy the arrays into one new buffer, with the same strides and alignment."""
        size, place, places = self.shape.dtype.bytes, 0, []
        for pointer, low, high in zip(self.pointers, self.shape.low, self.shape.high, strict=True):
            place += int(pointer + low - place) % ALIGN_BYTES
            places.append(place - int(low))
            place += int(high - low)
        length = max(-(-place // size), 1)
        memory = np.full(length * size + ALIGN_BYTES, 0xFF, np.uint8)
        base = memory.ctypes.data + -memory.ctypes.data % ALIGN_BYTES
        copies = []
        for info, at in zip(self.infos, places, strict=True):
            steps = tuple(step * size for step in info.strides)
            offset = base - memory.ctypes.data + at
            copy = np.empty(info.shape, info.dtype.numpy)
            if copy.size:
                copy = np.ndarray(info.shape, info.dtype.numpy, memory, offset, steps)
                copy.view(f"V{size}")[...] = elements(info)
            copies.append(copy)
        pointers = base + np.asarray(places, np.int64)
        return ArrayList(self.name, copies, self.shape, pointers, base, length, memory)

    def take(self, copies: ArrayList) -> None:
        """Copy the result of `together` back to these arrays."""
        for info, copy in zip(self.infos, copies.arrays, strict=True):
            elements(info)[...] = elements(describe(copy))


def check_apart(lists: Mapping[str, ArrayList], written: str) -> None:
    """Refuse written arrays that share memory with another array.

    Args:
        lists: the lists by name.
        written: the list that is written; the others are only read.

    Raises:
        LaunchError: two arrays share memory; names both.
    """
    own = _ranges(lists[written])
    own = own[:, np.argsort(own[0], kind="stable")]
    apart = bool((own[1, :-1] <= own[0, 1:]).all())
    for name, list_ in lists.items():
        if not apart:
            break
        if name == written or not own.size:
            continue
        low, high = _ranges(list_)
        # The last written array that begins before this one ends also ends last.
        before = np.searchsorted(own[0], high) - 1
        apart = not bool(((before >= 0) & (own[1, before] > low)).any())
    if apart:
        return
    # Arrays that interleave may still be apart.
    results = lists[written].infos
    for at, one in enumerate(results):
        for name, list_ in lists.items():
            for other, info in enumerate(results[:at] if name == written else list_.infos):
                if overlap(one, info):
                    why = "elements would be overwritten before they are read, or twice"
                    raise sharing(f"{written}[{at}] and {name}[{other}]", why, f"{written}[{at}]")


def _ranges(list_: ArrayList) -> Integers:
    """Return begin and end addresses of the arrays that have elements."""
    shape = list_.shape
    return np.stack((list_.pointers + shape.low, list_.pointers + shape.high))[:, shape.there]


# ----------------------------------------------------------------
# Tensor maps. We encode them when a list first has these addresses, and keep them.


ENCODED = "tilewright.runtime.gpu_launch:encoded"
"""The function that encodes a map; imported at the first use."""

UNIT_BYTES = BULK.unit_bytes
"""Strides are multiples of this."""

KEPT = 16
"""Sets of addresses for which the maps of a list are kept."""

KEPT_MAPS = 4096
"""Single maps that are kept."""


class ListMaps:
    """The tensor maps of lists with the same metadata, at any addresses.

    Args:
        shape: the metadata of the list.
    """

    def __init__(self, shape: ListShape) -> None:
        unit = shape.spec.unit_dim
        assert unit is not None, "the rules of bulk copies ask for one"
        self._shape, self._unit, self._steps = shape, unit - 1, shape.steps.copy()
        self._steps[:, self._unit] = 1
        self._kept: Recent[tuple[TensorMap, bool, bytes], Integers] = Recent(KEPT)

    def of(self, list_: ArrayList, form: TensorMap, *, encoded: bool) -> Integers:
        """Return the maps as rows of integers; zeros for arrays without elements.

        Args:
            list_: the arrays.
            form: the map that the kernel asks for.
            encoded: whether a driver encodes the maps; otherwise they hold plain numbers and buffer offsets.
        """
        places = list_.pointers if encoded else list_.starts
        key = (form, encoded, places.tobytes())
        found = self._kept.get(key)
        if found is None:
            infos, per_unit = self._shape.infos, UNIT_BYTES // self._shape.dtype.bytes
            found = np.zeros((len(infos), MAP_WORDS), np.int64)
            for at in np.flatnonzero(self._shape.there):
                shape, steps, place = infos[at].shape, self._steps[at].tolist(), int(places[at])
                if not encoded:
                    found[at] = in_plain_numbers(place, shape, steps, form.box)
                    continue
                # A dimension with one element gets the stride of whole rows, which drivers accept.
                whole = -(-shape[self._unit] // per_unit) * per_unit
                strides = tuple(
                    step if extent > 1 or dim == self._unit else whole
                    for dim, (extent, step) in enumerate(zip(shape, steps, strict=True))
                )
                device = infos[at].device
                assert not isinstance(device, str), "drivers encode maps of arrays on their devices"
                found[at] = np.frombuffer(_encoded(form, shape, strides, place, device[1]), np.int64)
            self._kept.keep(key, found)
        return found


_MAPS: Recent[Any, bytes] = Recent(KEPT_MAPS)


def _encoded(
    form: TensorMap, shape: tuple[int, ...], strides: tuple[int, ...], address: int, index: int
) -> bytes:
    """Return the map of one array. Maps are shared by lists: some arrays stay while others vary."""
    key = (form, shape, strides, address, index)
    found = _MAPS.get(key)
    if found is None:
        found = part(ENCODED)(*key)
        _MAPS.keep(key, found)
    return found
