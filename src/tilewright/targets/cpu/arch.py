"""Micro-tiles that fit a processor's vector registers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tilewright.arch import Arch
from tilewright.dtypes import DType, i8, i32
from tilewright.ir.mma import MmaAtom
from tilewright.threads.distribution import Distribution, Mode

MOST_ROWS = 14
MOST_VECTORS = 4
# A multiply-add issues twice per cycle, as does a load: more loads than this would set the pace.
LOADS_PER_FMA = 0.75

BROADCASTS = 2
"""Registers for broadcast elements of A, next to several sums."""

LEAST_SUMS = 16
"""Vectors of sums that keep multiply-adds busy: of 64 bytes one or two begin in each clock, of 16 bytes up to
four, and each takes four or five."""

GROUP, LEAST_LANES, MOST_DEPTH = 4, 4, 1024
"""Of products of bytes: neighbours along K that are multiplied at once, of which depths are multiples; the
sums of the narrowest vector; and how deep operands are whose rows wait on the stack."""


@dataclass(frozen=True)
class MicroTile:
    """The block of an accumulator that one micro-kernel keeps in registers.

    Args:
        rows: rows of A.
        columns: columns of B, a multiple of ``lanes``.
        lanes: elements of one vector.
    """

    rows: int
    columns: int
    lanes: int

    @property
    def vectors(self) -> int:
        """Vectors along the columns."""
        return self.columns // self.lanes


@lru_cache(maxsize=1024)
def micro_tile(
    arch: Arch,
    rows: int,
    columns: int,
    element_bytes: int,
    *,
    factors: int = 1,
    sums: int = 1,
    products: int = 1,
) -> MicroTile:
    """The micro-tile that divides a tile of ``rows`` x ``columns`` and loads least per multiply-add.

    Of several sums and more products it has fewer rows where registers then hold all sums of all its columns,
    and as few as keep multiply-adds busy: rows of A and a panel of B fit the first-level cache together.

    Args:
        arch: the processor.
        rows: of the tile.
        columns: of the tile.
        element_bytes: of a sum.
        factors: how many operands B products have that are computed together.
        sums: how many sums they are added to.
        products: how many there are.

    Example:
        >>> from tilewright.arch import PROCESSORS
        >>> wide, narrow = PROCESSORS["x86-64-v4"], PROCESSORS["x86-64-v3"]
        >>> micro_tile(wide, 192, 256, 4), micro_tile(narrow, 192, 256, 4)
        (MicroTile(rows=12, columns=32, lanes=16), MicroTile(rows=6, columns=16, lanes=8))
        >>> micro_tile(wide, 192, 256, 4, factors=2, sums=2, products=4)
        MicroTile(rows=4, columns=32, lanes=16)
    """
    lanes = arch.vector_bytes // element_bytes
    while columns % lanes:
        lanes //= 2
    candidates = [
        MicroTile(r, v * lanes, lanes)
        for v in range(1, MOST_VECTORS + 1)
        for r in range(1, MOST_ROWS + 1)
        if columns % (v * lanes) == 0 and rows % r == 0 and r * v + v + 1 <= arch.vector_registers
    ]
    alone = max(candidates, key=_merit)
    if not 1 < sums < products:
        return alone
    lower = (tile for tile in candidates if tile.vectors == alone.vectors and tile.rows <= alone.rows)
    enough = (tile for tile in lower if tile.rows * tile.vectors * sums >= LEAST_SUMS)
    return next((tile for tile in enough if holds(arch, tile.rows, tile.vectors, factors, sums)), alone)


def holds(arch: Arch, rows: int, vectors: int, factors: int, sums: int) -> bool:
    """Whether the registers hold several sums of that many rows and vectors, and their operands."""
    return (rows * sums + factors) * vectors + BROADCASTS <= arch.vector_registers


def _merit(tile: MicroTile) -> tuple[bool, float, int]:
    """Whether loads keep up, then multiply-adds per element read from the panels."""
    rows, vectors = tile.rows, tile.vectors
    paced = rows + vectors <= LOADS_PER_FMA * rows * vectors
    width = tile.columns if paced else vectors
    return paced, rows * width / (rows + width), tile.columns


def micro_atom(tile: MicroTile, compute: DType, multiplied: MmaAtom) -> MmaAtom:
    """The micro-tile as an MMA atom of one thread.

    Args:
        tile: rows and columns.
        compute: dtype of the panels.
        multiplied: the author's atom, whose rounding and accumulator stay.
    """
    rows, columns = tile.rows, tile.columns
    acc, precision = multiplied.c_dtype, multiplied.precision
    return MmaAtom(
        f"micro.{rows}x{columns}.{acc}.{compute}" + (f".{precision}" if precision is not None else ""),
        compute,
        compute,
        acc,
        Distribution((rows, 1), (), (Mode(rows, 0, 1),)),
        Distribution((columns, 1), (), (Mode(columns, 0, 1),)),
        Distribution((rows, columns), (), (Mode(columns, 1, 1), Mode(rows, 0, 1))),
        instruction="micro",
        precision=precision,
        rounding=multiplied.rounding,
    )


def operand_dtype(atom: MmaAtom, depth: int, lanes: int, arch: Arch) -> DType:
    """The dtype in which the operands of a multiply lie for the micro-kernel.

    Args:
        atom: the author's.
        depth: of the operands.
        lanes: sums of a vector of the micro-tile.
        arch: the processor.

    Example:
        >>> from tilewright.targets.atoms import fma
        >>> from tilewright.arch import PROCESSORS
        >>> wide, plain = PROCESSORS["x86-64-v3"], PROCESSORS["generic"]
        >>> [operand_dtype(fma("i8"), 64, 8, arch) for arch in (wide, plain)]
        [i8, i32]
    """
    are_bytes = (atom.a_dtype, atom.b_dtype, atom.c_dtype) == (i8, i8, i32)
    fits = depth % GROUP == 0 and depth <= MOST_DEPTH and lanes >= LEAST_LANES
    return i8 if are_bytes and fits and _has_dots(arch) else atom.c_dtype.computed


def adds_groups(atom: MmaAtom) -> bool:
    """Whether a micro-tile multiplies neighbours along K at once, so that those of A lie side by side."""
    return atom.a_dtype == i8


def _has_dots(arch: Arch) -> bool:
    return arch.name in ("x86-64-v3", "x86-64-v4")
