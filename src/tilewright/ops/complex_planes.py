"""Planes of interleaved operands: real parts, imaginary parts and their sums, dense, in memory of their own.

Bulk copies carry no array of which every other number is left out, and the third of three products multiplies
sums of real and imaginary parts.  One kernel, one launch for each operand, writes what is wanted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any

from tilewright.lang.launch import batch_index, block_index
from tilewright.lang.operations import barrier, copy, load, shared
from tilewright.lang.scalars import ceil_div
from tilewright.layout.layout import Layout
from tilewright.runtime.arrays import ArrayInfo
from tilewright.runtime.decorator import kernel
from tilewright.runtime.kernel import Bound, Kernel
from tilewright.runtime.scratch import ALIGNMENT
from tilewright.runtime.strided import Strided
from tilewright.threads.distribution import raked

ROWS, COLUMNS = 32, 64
"""Of the tile of a block."""

THREADS, HOST_THREADS = (4, 32), (1, 1)
"""Along both dimensions of a tile."""

UNIT_BYTES = 16
"""Of a row of a plane, a multiple: what bulk copies ask for."""

PLANES = ("", "_im", "_sum")
"""What ends the names of planes: of real parts, of imaginary parts, and of their sums or differences."""


@dataclass(frozen=True)
class Planes:
    """The planes of one operand.

    Args:
        name: of the operand.
        kept: which of `PLANES` are written.
        shape: extents, those of batches first.
        source: which dimension of the last two is the faster one in the arrays.
        target: which of them is contiguous in the planes.
        repeated: the batches along which the operand is the same.
        item_bytes: of an element.
        negative: whether the third plane is the difference, as of a conjugate.
    """

    name: str
    kept: tuple[str, ...]
    shape: tuple[int, ...]
    source: int
    target: int
    repeated: frozenset[int]
    item_bytes: int
    negative: bool = False

    @staticmethod
    def of(
        name: str,
        array: ArrayInfo,
        kept: tuple[str, ...],
        along: int | None = None,
        *,
        negative: bool = False,
    ) -> Planes:
        """Planes of an array of real parts.

        Args:
            name: of the operand.
            array: its real parts.
            kept: which planes are written.
            along: which of the last two dimensions is contiguous in them; None: as in the array.
            negative: whether the third plane is the difference.
        """
        rank = len(array.shape)
        steps = [
            abs(step) if extent > 1 else 0 for extent, step in zip(array.shape, array.strides, strict=True)
        ]
        source = rank - 2 if 0 < steps[-2] < steps[-1] else rank - 1
        repeated = frozenset(dim for dim in range(rank - 2) if steps[dim] == 0)
        target = source if along is None else along
        return Planes(name, kept, array.shape, source, target, repeated, array.dtype.bytes, negative)

    @property
    def strides(self) -> tuple[int, ...]:
        """Of each plane, in elements."""
        rank = len(self.shape)
        other = 2 * rank - 3 - self.target
        unit = UNIT_BYTES // self.item_bytes
        steps = [0] * rank
        steps[self.target] = 1
        reach = steps[other] = -(-max(self.shape[self.target], 1) // unit) * unit
        reach *= max(self.shape[other], 1)
        for dim in reversed(range(rank - 2)):
            if dim not in self.repeated:
                steps[dim] = reach
                reach *= max(self.shape[dim], 1)
        return tuple(steps)

    @property
    def plane_bytes(self) -> int:
        """Of one plane, up to where the next one begins."""
        dims = [dim for dim in range(len(self.shape)) if dim not in self.repeated]
        last = sum((max(self.shape[dim], 1) - 1) * self.strides[dim] for dim in dims)
        return -(-(last + 1) * self.item_bytes // ALIGNMENT) * ALIGNMENT

    @property
    def size_bytes(self) -> int:
        """Of all of them."""
        return self.plane_bytes * len(self.kept)

    @property
    def moved_bytes(self) -> int:
        """What is read and written."""
        whole = prod(extent for dim, extent in enumerate(self.shape) if dim not in self.repeated)
        return whole * self.item_bytes * (2 + len(self.kept))

    def placed(self, like: Strided, address: int) -> dict[str, Strided]:
        """The planes at an address, by the names of the kernel's arrays.

        Args:
            like: an array of the operand, whose framework says which stream is used.
            address: where the first of them begins.
        """
        info = replace(like.info, shape=self.shape, strides=self.strides, readonly=False)
        places = {end: address + at * self.plane_bytes for at, end in enumerate(self.kept)}
        return {
            self.name + end: Strided(like.array, replace(info, pointer=place))
            for end, place in places.items()
        }

    def launchable(
        self, re: Strided, im: Strided, planes: dict[str, Strided], *, on_host: bool
    ) -> tuple[Bound, tuple[Strided, ...]]:
        """What writes the planes, and its arguments.

        Args:
            re: the real parts.
            im: the imaginary parts.
            planes: the planes, as `placed` has them.
            on_host: whether a block is one thread.
        """
        bound = splitting(len(self.shape) - 2).bind(
            kept=self.kept, negative=self.negative, turned=self.source != self.target, on_host=on_host
        )
        absent = next(iter(planes.values()))  # stands for what is not written
        given = (re, im, *(planes.get(self.name + end, absent) for end in PLANES))
        return bound, tuple(self._as_read(one) for one in given)

    def _as_read(self, one: Strided) -> Strided:
        """An array with its batches that repeat it left out, and the dimension last that is read fastest."""
        dims = [*range(len(self.shape) - 2), 2 * len(self.shape) - 3 - self.source, self.source]
        shape = tuple(1 if dim in self.repeated else one.info.shape[dim] for dim in dims)
        return Strided(
            one.array, replace(one.info, shape=shape, strides=tuple(one.info.strides[d] for d in dims))
        )


@lru_cache(maxsize=16)
def splitting(rank: int) -> Kernel:
    """The kernel that writes planes.

    Args:
        rank: how many dimensions of batches there are.
    """
    lead = "".join(f"B{dim} " for dim in range(rank))
    declared: dict[str, Any] = dict.fromkeys(("re", "im", "first", "second", "both"), f"{lead}S F")

    @kernel(**declared)
    def complex_planes(
        re: Any,
        im: Any,
        first: Any,
        second: Any,
        both: Any,
        *,
        kept: tuple[str, ...],
        negative: bool,
        turned: bool,
        on_host: bool,
    ) -> None:
        shape, tile, threads = re.shape, (ROWS, COLUMNS), HOST_THREADS if on_host else THREADS
        j, i = block_index((ceil_div(shape[-1], COLUMNS), ceil_div(shape[-2], ROWS)))
        arrays = [re, im, first, second, both]
        if rank:
            number, places = batch_index(prod(shape[:-2])), list[Any]()
            for extent in reversed(shape[:-2]):
                places.insert(0, number % extent)
                number = number // extent
            arrays = [array[tuple(places)] for array in arrays]
        spread = raked(tile, threads, 1, 1)
        values = [load(array.tile(tile, (i, j)), spread) for array in arrays[:2]]
        targets = [array.tile(tile, (i, j)) for array in arrays[2:]]
        if turned:
            held = [shared(tile, re.dtype, layout=Layout(tile, (COLUMNS + 1, 1))) for _ in values]
            for value, place in zip(values, held, strict=True):
                copy(value, place)
            barrier()
            turned_spread = raked((COLUMNS, ROWS), threads, 1, 1)
            values = [load(place.permute(1, 0), turned_spread) for place in held]
            targets = [target.permute(1, 0) for target in targets]
        values.append(values[0] - values[1] if negative else values[0] + values[1])
        for end, value, target in zip(PLANES, values, targets, strict=True):
            if end in kept:
                copy(value, target)

    return complex_planes
