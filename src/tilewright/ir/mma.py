"""Matrix-multiply atoms and their tilings, as data.

An `MmaAtom` is one instruction (or one multiply-add per thread), with maps of the coordinates of A, B and C
to lanes and registers.  A `TiledMma` repeats it over warps and registers.  `tilewright.targets.atoms` lists
the atoms of each target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from tilewright.argument_checks import is_sequence
from tilewright.calls import layouts
from tilewright.dtypes import DType, dtype
from tilewright.errors import LayoutError
from tilewright.functions.conversions import AlignedSum
from tilewright.layout.limits import REPEATS, WARPS
from tilewright.layout.tuples import integer, integers
from tilewright.symbolic.nodes import hashed_once
from tilewright.threads.distribution import Distribution
from tilewright.threads.warps import by_warps

REGISTERS, SHARED = "registers", "shared"
"""Possible memories of an atom's operand."""

_shared_out = lru_cache(maxsize=4096)(by_warps)
"""Cached maps of tiles, because the candidates of a schedule choice need the same few."""

ROUNDINGS = ("nearest", "truncate")
"""Rounding of A and B to the fraction bits that an atom multiplies; ties go away from zero."""


@layouts
@hashed_once
@dataclass(frozen=True, repr=False)
class MmaAtom:
    """``C[m, n] += sum_k A[m, k] * B[n, k]``, executed by ``lanes`` threads together.

    These fields are the full description: targets generate its text, the reference executes it, and the
    comparator bounds its error from only these.  In the maps, modes without a dimension are lanes that hold
    copies.

    Args:
        name: e.g. ``"mma.m16n8k16.f32.f16"``; for people only, no code parses it.
        a_dtype: element type of A; this and the other types may be given by name.
        b_dtype: element type of B.
        c_dtype: element type of the accumulator.
        a: distribution of A over (m, k).
        b: distribution of B over (n, k).
        c: distribution of C over (m, n).
        instruction: the kind of instruction, from which a target generates its text: ``"mma.sync"``,
            ``"wgmma"``, ``"mfma"``, ``"wmma"``, ``"fma"``, ``"dots"``.
        feature: the required hardware feature; empty if every target executes it.
        precision: number of multiplied fraction bits if fewer than A's dtype has (tf32: 10), else None.
        rounding: how elements lose the other bits, one of `ROUNDINGS`: earlier instructions round to nearest,
            or the hardware itself truncates.
        sum_bits: minimum number of bits that a step keeps of its addends, on every architecture with the
            atom.  The step aligns products and the accumulator to the largest of them.  It truncates towards
            zero the bits that are more than ``sum_bits`` below the leading one.  None: each sum is rounded
            once.
        sums: the measured bit-exact addition of a step, which the reference uses.  None: the reference sums a
            step in f64 and rounds once.
        a_places: possible memories of A, some of `REGISTERS` and `SHARED`.
        b_places: possible memories of B.
        majors: possible contiguous dimensions of operands in shared memory: ``"k"``, ``"mn"``.
        asynchronous: whether it is asynchronous, between a fence, a commit and a wait.
        section: section of its documentation.

    Example:
        >>> from tilewright.targets.atoms import MMA_F16
        >>> MMA_F16.shape, MMA_F16.lanes, MMA_F16.a_dtype, MMA_F16.c_dtype
        ((16, 8, 16), 32, f16, f32)
    """

    name: str
    a_dtype: DType
    b_dtype: DType
    c_dtype: DType
    a: Distribution
    b: Distribution
    c: Distribution
    instruction: str = ""
    feature: str = ""
    precision: int | None = None
    rounding: str = "nearest"
    sum_bits: int | None = None
    sums: AlignedSum | None = None
    a_places: tuple[str, ...] = (REGISTERS,)
    b_places: tuple[str, ...] = (REGISTERS,)
    majors: tuple[str, ...] = ("k",)
    asynchronous: bool = False
    section: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        for what in ("a_dtype", "b_dtype", "c_dtype"):
            object.__setattr__(self, what, dtype(getattr(self, what)))
        (m, k), (n, depth), shape = self.a.shape, self.b.shape, self.c.shape
        if k != depth or shape != (m, n):
            raise LayoutError(
                f"atom {self.name}: A ({m}, {k}), B ({n}, {depth}) and C {shape} do not fit together"
            )
        lanes = [part.size_threads for part in (self.a, self.b, self.c)]
        if len(set(lanes)) > 1:
            raise LayoutError(
                f"atom {self.name}: A, B and C are spread over {lanes} lanes; they must be equal"
            )
        for what, given, known in (
            ("rounding", (self.rounding,), ROUNDINGS),
            ("a_places", self.a_places, (REGISTERS, SHARED)),
            ("b_places", self.b_places, (REGISTERS, SHARED)),
            ("majors", self.majors, ("k", "mn")),
        ):
            if not given or set(given) - {*known}:
                raise LayoutError(f"atom {self.name}: {what}={given!r}", f"some of {', '.join(known)}")

    @property
    def shape(self) -> tuple[int, int, int]:
        """Extents (m, n, k)."""
        return (self.a.shape[0], self.b.shape[0], self.a.shape[1])

    @property
    def lanes(self) -> int:
        """Threads that execute the atom together."""
        return self.c.size_threads

    @property
    def step(self) -> int:
        """Number of products that are added before a sum is rounded; 1 if each sum is rounded."""
        return 1 if self.sum_bits is None else self.shape[2]

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        extents = " x ".join(map(str, self.shape))
        needs = f", {self.feature}" if self.feature else ""
        kinds = f"{self.a_dtype} * {self.b_dtype} + {self.c_dtype}"
        return f"<atom {self.name}: {extents}, {kinds}, {self.lanes} lane{'s' * (self.lanes != 1)}{needs}>"


@layouts(warps=WARPS, repeats=REPEATS)
@dataclass(frozen=True, repr=False, init=False)
class TiledMma:
    """An atom repeated over a grid of warps and, within each warp, over registers.

    A warp owns a contiguous block of ``repeats`` atoms, or the atoms of different warps are interleaved.
    Warps are numbered along M first.

    Args:
        atom: the instruction.
        warps: warps along M and N.  With ``tile``, a single number is the total; the grid with the fewest
            bytes of A and B read from shared memory is chosen, and among equal ones that with the most warps
            along M.
        repeats: atoms per warp along M and N; default: 1 of each, or as many as fill the tile.
        tile: extents (m, n) of all warps together, instead of the repeats.
        interleaved: whether atoms of different warps alternate: first one atom of every warp, then the next
            one of every warp; not for asynchronous atoms.

    Raises:
        LayoutError: the warps cannot share the tile in whole atoms; names the nearest legal tile.

    Example:
        >>> from tilewright.targets.atoms import MMA_F16
        >>> mma = TiledMma(MMA_F16, warps=(4, 2), repeats=(4, 8))
        >>> mma.tile, mma.threads
        ((256, 128, 16), 256)
        >>> mma == TiledMma(MMA_F16, tile=(256, 128), warps=8)
        True
    """

    atom: MmaAtom
    warps: tuple[int, int]
    repeats: tuple[int, int]
    interleaved: bool = False

    def __init__(
        self,
        atom: MmaAtom,
        warps: int | tuple[int, int] = (1, 1),
        repeats: tuple[int, int] | None = None,
        *,
        tile: tuple[int, int] | None = None,
        interleaved: bool = False,
    ) -> None:
        if tile is None:
            each = integers("repeats", (1, 1) if repeats is None else repeats, 2, "along M and N")
            grid = integers("warps", warps, 2, "along M and N")
        else:
            extents = integers("tile", tile, 2, "along M and N")
            grid = _grid(atom, extents, warps)
            each = tuple(extent // unit for extent, unit in zip(extents, _unit(atom, grid), strict=True))
            if repeats is not None and integers("repeats", repeats, 2, "along M and N") != each:
                text = f"repeats={repeats} of {atom} by {grid} warps do not make the tile {extents}"
                raise LayoutError(text, "tile=... without repeats=, which follow from it")
        if interleaved and atom.asynchronous:
            text = f"interleaved=True: {atom} takes the neighbouring rows of each group from shared memory"
            raise LayoutError(text, "interleaved=False")
        for name, value in (("atom", atom), ("warps", grid), ("repeats", each), ("interleaved", interleaved)):
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        extents = " x ".join(map(str, self.tile))
        turns = ", interleaved" if self.interleaved else ""
        return (
            f"<{self.atom} by {self.warps} warps of {self.repeats}{turns}: {extents}, {self.threads} threads>"
        )

    @property
    def tile(self) -> tuple[int, int, int]:
        """Extents (m, n, k) of one step: all warps, all repeats, one atom deep."""
        m, n, k = self.atom.shape
        return (m * self.warps[0] * self.repeats[0], n * self.warps[1] * self.repeats[1], k)

    @property
    def threads(self) -> int:
        """Threads of all warps."""
        return self.atom.lanes * self.warps[0] * self.warps[1]

    @layouts
    def a(self, k: int) -> Distribution:
        """Distribution of an A tile of shape (m, k): warps in a row of the grid hold copies."""
        self._check_depth(k)
        return _shared_out(
            (self.tile[0], k), self.atom.a, self.warps, reuse="row", interleaved=self.interleaved
        )

    @layouts
    def b(self, k: int) -> Distribution:
        """Distribution of a B tile of shape (n, k): warps in a column of the grid hold copies."""
        self._check_depth(k)
        return _shared_out(
            (self.tile[1], k), self.atom.b, self.warps, reuse="column", along=0, interleaved=self.interleaved
        )

    def c(self) -> Distribution:
        """Distribution of the accumulator of shape (m, n)."""
        return _shared_out(self.tile[:2], self.atom.c, self.warps, interleaved=self.interleaved)

    def _check_depth(self, k: int) -> None:
        unit = self.atom.shape[2]
        if k < 1 or k % unit:
            text = f"K = {k} is not a multiple of {unit}, the depth of {self.atom}"
            raise LayoutError(text, f"K = {max(k // unit, 1) * unit}")


def _unit(atom: MmaAtom, grid: Sequence[int]) -> tuple[int, int]:
    """Return the rows and columns of one atom per warp; a tile is a multiple of them."""
    return atom.shape[0] * grid[0], atom.shape[1] * grid[1]


def _grid(atom: MmaAtom, tile: tuple[int, ...], warps: int | tuple[int, int]) -> tuple[int, ...]:
    """Return the grid of warps over a tile: the given grid, or the grid that reads the fewest bytes.

    Raises:
        LayoutError: no grid with this number of warps shares the tile in whole atoms.
    """
    if is_sequence(warps):
        grids = [integers("warps", warps, 2, "along M and N")]
    else:
        count = integer("warps", warps)
        grids = [(along, count // along) for along in range(count, 0, -1) if count % along == 0]
    # The nearest multiple of the unit along each dimension; the larger of two.
    nearest = {
        grid: tuple(
            max((extent + n // 2) // n, 1) * n for extent, n in zip(tile, _unit(atom, grid), strict=True)
        )
        for grid in grids
    }

    def cost(grid: tuple[int, ...]) -> tuple[float, int]:
        """Return the change of the tile, and the bits of A and B read from shared memory per step along K.

        Each warp in a row of the grid reads the same rows of A, and each warp in a column the same rows of B.
        A warp reads a register operand once, and a shared-memory operand once per atom.
        """
        rows, columns = nearest[grid]
        change = sum(abs(near / extent - 1) for near, extent in zip(nearest[grid], tile, strict=True))
        times_a = columns // atom.shape[1] if SHARED in atom.a_places else grid[1]
        times_b = rows // atom.shape[0] if SHARED in atom.b_places else grid[0]
        return change, rows * times_a * atom.a_dtype.bits + columns * times_b * atom.b_dtype.bits

    best = min(grids, key=cost)
    if nearest[best] != tile:
        unit = _unit(atom, best)
        rule = f"it is not a multiple of {unit}, one {atom} of each warp"
        text = f"a tile of {tile} by {best[0]} x {best[1]} warps: {rule}"
        raise LayoutError(text, f"tile={nearest[best]}")
    return best
