"""Planes of operands: real parts, imaginary parts and their sums, dense, in memory of their own.

Bulk copies carry no array of which every other number is left out, the third of three products multiplies
sums of real and imaginary parts, and Hopper's multiply takes tf32 along K alone, also of real numbers, which
are one plane.  One launch writes what is wanted of one operand, or of both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from tilewright.ops.complex_pairs import are_paired, as_pairs
from tilewright.ops.launching import Prepass
from tilewright.ops.plane_kernels import PLANES, Writing, sources_of, splitting, splitting_of_two
from tilewright.runtime.arrays import ArrayInfo
from tilewright.runtime.frameworks import Strided
from tilewright.runtime.gpu_memory import ALIGNMENT

UNIT_BYTES = 16
"""Of a row of a plane, a multiple: what bulk copies ask for."""


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
        rounded: whether numbers are rounded to tf32.
    """

    name: str
    kept: tuple[str, ...]
    shape: tuple[int, ...]
    source: int
    target: int
    repeated: frozenset[int]
    item_bytes: int
    negative: bool = False
    rounded: bool = False

    @staticmethod
    def of(
        name: str,
        array: ArrayInfo,
        kept: tuple[str, ...],
        along: int | None = None,
        *,
        negative: bool = False,
        rounded: bool = False,
    ) -> Planes:
        """Planes of an array of real parts.

        Args:
            name: of the operand.
            array: its real parts.
            kept: which planes are written.
            along: which of the last two dimensions is contiguous in them; None: as in the array.
            negative: whether the third plane is the difference.
            rounded: whether numbers are rounded to tf32.
        """
        rank = len(array.shape)
        steps = [
            abs(step) if extent > 1 else 0 for extent, step in zip(array.shape, array.strides, strict=True)
        ]
        source = rank - 2 if 0 < steps[-2] < steps[-1] else rank - 1
        repeated = frozenset(dim for dim in range(rank - 2) if steps[dim] == 0)
        target = source if along is None else along
        return Planes(name, kept, array.shape, source, target, repeated, array.dtype.bytes, negative, rounded)

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
        return whole * self.item_bytes * (len(sources_of(self.kept)) + len(self.kept))

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

    def written(
        self, arrays: Mapping[str, Strided], address: int, *, on_host: bool
    ) -> tuple[Writing, list[Strided], list[str], dict[str, Strided]]:
        """How they are written, what the kernel sees, which of that is given, and the planes.

        Args:
            arrays: of the product, by name.
            address: of memory for all of them.
            on_host: whether a block is one thread.
        """
        ends = sources_of(self.kept)
        re, im = arrays[self.name + ends[0]], arrays[self.name + ends[-1]]
        packed = not on_host and are_paired(re.info, im.info)
        turned = self.source != self.target
        how = Writing(self.kept, re.info.dtype, self.negative, turned, packed, on_host, self.rounded)
        planes = self.placed(re, address)
        absent = next(iter(planes))  # stands for what is not written
        names = [self.name + end if self.name + end in planes else absent for end in PLANES]
        read = [as_pairs(re)] * 2 if packed else [re, im]
        given = [self._as_read(one) for one in (*read, *(planes[name] for name in names))]
        sources = [self.name, self.name + (PLANES[0] if packed else ends[-1])]
        return how, given, [*sources, *[""] * len(names)], planes

    def _as_read(self, one: Strided) -> Strided:
        """An array with its batches that repeat it left out, and the dimension last that is read fastest."""
        dims = [*range(len(self.shape) - 2), 2 * len(self.shape) - 3 - self.source, self.source]
        shape = tuple(1 if dim in self.repeated else one.info.shape[dim] for dim in dims)
        return Strided(
            one.array, replace(one.info, shape=shape, strides=tuple(one.info.strides[d] for d in dims))
        )


def is_dense(info: ArrayInfo, along: int | None) -> bool:
    """Whether bulk copies carry an array.

    Args:
        info: the array.
        along: the dimension along which it must be contiguous; None: one of the last two.
    """
    unit = UNIT_BYTES // info.dtype.bytes
    pairs = [pair for pair in zip(info.shape, info.strides, strict=True) if pair[0] > 1]
    last = [step for extent, step in list(zip(info.shape, info.strides, strict=True))[-2:] if extent > 1]
    if along is not None:
        last = [info.strides[along]]
    return (
        1 in last
        and info.pointer % UNIT_BYTES == 0
        and all(step % unit == 0 or step == 1 for _, step in pairs)
    )


def prepass_of(
    planes: Sequence[Planes], arrays: Mapping[str, Strided], address: int, *, on_host: bool
) -> Prepass:
    """The launch that writes the planes of one operand, or of both.

    Args:
        planes: of each operand.
        arrays: of the product, by name.
        address: of memory for all of them.
        on_host: whether a block is one thread.
    """
    hows, given, names = list[Writing](), list[Strided](), list[str]()
    made: dict[str, Strided] = {}
    for one in planes:
        how, seen, called, written = one.written(arrays, address, on_host=on_host)
        address += one.size_bytes
        hows, given, names, made = [*hows, how], given + seen, names + called, made | written
    rank = len(planes[0].shape) - 2
    if len(planes) == 1:
        return Prepass(splitting(rank).bind(how=hows[0]), tuple(given), tuple(names), made)
    return Prepass(splitting_of_two(rank).bind(hows=tuple(hows)), tuple(given), tuple(names), made)
