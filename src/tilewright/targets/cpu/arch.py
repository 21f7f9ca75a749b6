"""Micro-tiles that fit a processor's vector registers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tilewright.arch import Arch
from tilewright.dtypes import DType, i8, i32
from tilewright.ir.mma import MmaAtom
from tilewright.targets.atoms import DOTS
from tilewright.threads.distribution import Distribution, Mode

MOST_ROWS, MOST_VECTORS = 14, 4
"""Rows and vectors per row of the largest micro-tile."""

LOADS_PER_FMA = 0.75
"""Loads per multiply-add above which loads limit a micro-kernel: processors issue two of each per cycle."""

BROADCASTS = 2
"""Registers that are reserved for broadcast elements of A if the others hold several sums."""

LEAST_SUMS = 16
"""Fewest vectors of sums that hide the latency of multiply-adds: 4 or 5 cycles, up to 4 issued per cycle."""

GROUP, LEAST_LANES, MOST_DEPTH = 4, 4, 1024
"""Limits of byte products: K must be a multiple of `GROUP` neighbours that one instruction multiplies, a
vector has at least `LEAST_LANES` sums, and rows of at most `MOST_DEPTH` elements fit the stack."""


PANELS_OF_B, ROWS_IN_PLACE, NEAR_BYTES = 4, 96, 1 << 19
"""Limits for operands that are read in their arrays instead of being packed: most panels of B for which
panels of A are; most rows of A for which panels of B are; and most bytes that a low panel of B spans in its
array, if it is read there for any number of rows (half of a second-level cache).

Rows of A that are a power of 2 apart share sets of the first-level cache, and distant rows of B lie in a
page of memory each.  Copies avoid both, at a cost that all panels share.  Measured on a Zen 4, one
thread, f32, with copies and without: 136 x 32 x 224 19.8 and 16.7 us, 2048 x 64 x 2048 6.2 and 5.5 ms, 48
x 1000 x 256 246 and 219 us; but 2048 x 256 x 2048 21.2 and 22.1 ms, whose rows of A are 8 KiB apart.
"""

FIRST_CACHE_BYTES, PANELS_FAR = 1 << 15, 2
"""Bytes of the first-level cache; and most panels of A for which a panel of B is read in its array even if
its rows share few sets of this cache.

Measured on a Zen 3, one thread: 48 x 512 x 512 f64, whose rows of B are 4 KiB apart, 1.51 ms in place and
0.70 packed; 8 x 512 x 512 0.23 and 0.39; 300 x 301 x 1000 f32, whose panel fills 32 KiB in place, 2.40 and
2.13.
"""

PANELS_TOGETHER, SHALLOW = 4, 64
"""Panels of A that are multiplied by all panels of B before the next ones are, if no panel is packed and sums
are stored in the result's array; and the largest depth for which this pays.

Sums are then stored in runs along few rows.  Measured on a Zen 3, one thread of f32, all panels of A and 4:
1000 x 1000 x 30 1.05 and 0.89 ms, 200 x 2370 x 6 0.21 and 0.18; but 96 x 1000 x 200 0.44 and 0.49.
"""


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
    """Return the micro-tile that divides ``rows`` x ``columns`` with the fewest loads per multiply-add.

    Products that share sums get a lower micro-tile: the fewest rows whose sums hide the latency of
    multiply-adds, if the registers hold all these sums.  Its rows of A and a panel of B fit the first-level
    cache.

    Args:
        arch: the processor.
        rows: rows of the tile.
        columns: columns of the tile.
        element_bytes: bytes of a sum.
        factors: number of operands B of the products that are computed together.
        sums: number of their sums.
        products: number of the products.

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

    def merit(tile: MicroTile) -> tuple[bool, float, int]:
        """Return the sort key: whether loads keep up, then multiply-adds per loaded element, then columns."""
        paced = tile.rows + tile.vectors <= LOADS_PER_FMA * tile.rows * tile.vectors
        width = tile.columns if paced else tile.vectors
        return paced, tile.rows * width / (tile.rows + width), tile.columns

    alone = max(candidates, key=merit)
    if not 1 < sums < products:
        return alone
    lower = (tile for tile in candidates if tile.vectors == alone.vectors and tile.rows <= alone.rows)
    enough = (tile for tile in lower if tile.rows * tile.vectors * sums >= LEAST_SUMS)
    return next((tile for tile in enough if holds(arch, tile.rows, tile.vectors, factors, sums)), alone)


def has_masks(arch: Arch, row_bytes: int) -> bool:
    """Whether masked vectors multiply the ragged right edge of a micro-tile whose rows are whole vectors.

    AVX-512 loads and stores part of a vector by one instruction, and half a vector in half the time.

    Args:
        arch: the processor.
        row_bytes: bytes of a row of the micro-tile.
    """
    return arch.name == "x86-64-v4" and row_bytes % arch.vector_bytes == 0


def holds(arch: Arch, rows: int, vectors: int, factors: int, sums: int) -> bool:
    """Whether the registers hold several sums of ``rows`` x ``vectors`` and their operands."""
    return (rows * sums + factors) * vectors + BROADCASTS <= arch.vector_registers


def micro_atom(tile: MicroTile, compute: DType, multiplied: MmaAtom) -> MmaAtom:
    """Return the micro-tile as an MMA atom of one thread.

    Args:
        tile: rows and columns.
        compute: dtype of the panels.
        multiplied: the author's atom; its rounding and its accumulator dtype stay.
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
        instruction=DOTS if multiplied.instruction == DOTS else "micro",
        precision=precision,
        rounding=multiplied.rounding,
    )


def operand_dtype(atom: MmaAtom, depth: int, lanes: int, arch: Arch) -> DType:
    """Return the dtype in which the micro-kernel reads the operands of a multiply.

    Args:
        atom: the author's atom.
        depth: depth of the operands.
        lanes: sums in one vector of the micro-tile.
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
    has_dots = arch.name in ("x86-64-v3", "x86-64-v4")
    return i8 if are_bytes and fits and has_dots else atom.c_dtype.computed


def adds_groups(atom: MmaAtom) -> bool:
    """Whether a micro-tile multiplies groups of neighbours along K; A then needs rows of contiguous K."""
    return atom.a_dtype == i8


def adds_along_k(atom: MmaAtom) -> bool:
    """Whether a micro-tile may add products in vectors along K; A then needs rows of contiguous K."""
    return atom.instruction == DOTS
