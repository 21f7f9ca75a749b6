"""Halves of both parts of both operands of a complex product, in scratch memory; see `complex_splitting`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from tilewright import dtypes
from tilewright.ops.complex_pairs import are_paired, as_pairs
from tilewright.ops.complex_products import HALVES
from tilewright.ops.complex_splitting import Tiling, splitting_of_both
from tilewright.ops.halves import UNIT, Part, once, transposed, turned
from tilewright.ops.launching import Prepass
from tilewright.ops.problem import IMAGINARY, Problem
from tilewright.runtime.arrays import ArrayInfo
from tilewright.runtime.frameworks import Strided

UNITS = ("p", "q")
"""The arrays of the units of rows of A, and of columns of B."""

PAIR_BYTES = 8
"""Of a number of both parts side by side."""


@dataclass(frozen=True)
class Halves:
    """The halves of one operand.

    Args:
        name: of the operand, whose rows are those along M or N.
        half: the layout of each of its four halves.
        units: that of the units of its rows.
        tiling: how they are made.
        both: whether the second halves are made too; else the first ones stand for them, and nobody reads
            them.
    """

    name: str
    half: Part
    units: Part
    tiling: Tiling
    both: bool = True

    @staticmethod
    def of(name: str, infos: Mapping[str, ArrayInfo], problem: Problem, *, both: bool = True) -> Halves:
        """The halves of an operand, contiguous along its rows.

        Args:
            name: ``"a"`` or ``"b"``.
            infos: the arrays of the problem, by name.
            problem: what is multiplied.
            both: whether the second halves are made too.
        """
        of_b = name == "b"
        *batch, rows, depth = turned(problem.operands[name].shape, of_b)
        *lead, row_step, depth_step = turned(infos[name].strides, of_b)
        own = [extent if step else 1 for extent, step in zip(batch, lead, strict=True)]  # one of what repeats
        pitch = -(-rows // UNIT) * UNIT
        steps = [bool(step) * pitch * depth * prod(own[at + 1 :]) for at, step in enumerate(lead)]
        unit_steps = [bool(step) * rows * prod(own[at + 1 :]) for at, step in enumerate(lead)]
        along_k = rows == 1 or (depth > 1 and abs(depth_step) < abs(row_step))
        return Halves(
            name,
            Part(dtypes.f16, (*batch, rows, depth), (*steps, 1, pitch)),
            Part(dtypes.f32, (*batch, rows), (*unit_steps, 1)),
            Tiling.of(depth, turned=along_k, packed=are_paired(infos[name], infos[name + IMAGINARY])),
            both,
        )

    @property
    def rank(self) -> int:
        """Dimensions of its batches."""
        return len(self.units.shape) - 1

    @property
    def places(self) -> tuple[int, ...]:
        """Which of the halves lies where, in the order of `ARRAYS`."""
        return (0, 1, 2, 3) if self.both else (0, 0, 1, 1)

    @property
    def size_bytes(self) -> int:
        """Of all halves and the units."""
        return len({*self.places}) * self.half.bytes + self.units.bytes

    @property
    def moved_bytes(self) -> int:
        """What is read, both times, and written."""
        numbers = self.half.bytes // dtypes.f16.bytes
        return 2 * PAIR_BYTES * numbers + self.size_bytes

    def arrays(self, re: Strided, im: Strided, address: int) -> tuple[Strided, ...]:
        """The operand's parts, its halves from an address on, and the units, all with rows along M or N."""
        parts = [as_pairs(re, dtypes.i64)] * 2 if self.tiling.packed else [re, im]
        if self.name == "b":
            parts = [transposed(one) for one in parts]
        halves = [self.half.at(address + at * self.half.bytes, re) for at in self.places]
        return (*parts, *halves, self.units.at(address + self.size_bytes - self.units.bytes, re))


@dataclass(frozen=True)
class BothHalves:
    """The halves of both operands, which one launch makes.

    Args:
        a: those of A.
        b: those of B.
    """

    a: Halves
    b: Halves

    @property
    def both(self) -> bool:
        """Whether there are second halves."""
        return self.a.both

    @property
    def size_bytes(self) -> int:
        """Of the memory that they take."""
        return self.a.size_bytes + self.b.size_bytes

    @property
    def moved_bytes(self) -> int:
        """What the launch reads and writes."""
        return self.a.moved_bytes + self.b.moved_bytes

    def prepass(self, arrays: Mapping[str, Strided]) -> Prepass:
        """The launch that makes them.

        Args:
            arrays: of the product, by name.
        """
        address = 0
        given, names, made = list[Strided](), list[str](), dict[str, Strided]()
        for one, ours, unit in zip((self.a, self.b), (HALVES[:4], HALVES[4:]), UNITS, strict=True):
            re, im = one.name, one.name + IMAGINARY
            found = one.arrays(arrays[re], arrays[im], address)
            address += one.size_bytes
            names += [re, re if one.tiling.packed else im, *[""] * 5]
            given += [once(array, one.rank) for array in found]
            seen = (transposed(half) if one.name == "b" else half for half in found[2:6])
            made |= dict(zip(ours, seen, strict=True)) | {unit: found[6]}
        tilings = self.a.tiling, self.b.tiling
        kernel = splitting_of_both(self.a.rank, self.b.rank).bind(tilings=tilings, both=self.both)
        return Prepass(kernel, tuple(given), tuple(names), made)
