"""Matrix-multiply atoms and their tilings, as data.

An `MmaAtom` is one instruction (or one multiply-add per thread) together with the maps that say which lane
holds which coordinate of A, B and C in which register.  A `TiledMma` repeats it over warps and registers.
Which target offers which atom is listed in `tilewright.targets.atoms`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.calls import layouts
from tilewright.dtypes import DType, dtype
from tilewright.errors import LayoutError
from tilewright.layout.limits import REPEATS, WARPS
from tilewright.layout.tuples import integers
from tilewright.threads.distribution import Distribution
from tilewright.threads.warps import by_warps

REGISTERS, SHARED = "registers", "shared"
"""Where an operand of an atom may live."""

ROUNDINGS = ("nearest", "truncate")
"""How elements of A and B lose the fraction bits that an atom does not multiply: ties go away from zero."""


@layouts
@dataclass(frozen=True, repr=False)
class MmaAtom:
    """``C[m, n] += sum_k A[m, k] * B[n, k]``, executed by ``lanes`` threads together.

    All that is known of it stands here: targets spell it, the reference executes it and the comparator
    bounds its error, from these fields alone.  Lanes that hold copies are modes of no dimension in the maps.

    Args:
        name: e.g. ``"mma.m16n8k16.f32.f16"``; for people, nothing is read from it.
        a_dtype: element type of A; it and the others also by name.
        b_dtype: element type of B.
        c_dtype: element type of the accumulator.
        a: distribution of A over (m, k).
        b: distribution of B over (n, k).
        c: distribution of C over (m, n).
        instruction: the kind of instruction, by which a target finds how it is spelled: ``"mma.sync"``,
            ``"wgmma"``, ``"fma"``.
        feature: what the hardware must have; empty if every target executes it.
        precision: fraction bits that it multiplies if fewer than A's dtype has (tf32: 10), else None.
        rounding: how elements lose the others, one of `ROUNDINGS`: rounded to nearest by instructions before
            it, or truncated by the hardware itself.
        sum_bits: a step aligns its products and the accumulator to the largest of them, and cuts off, towards
            zero, what lies more than so many bits below its leading one.  None: each sum is rounded once.
        a_places: where A may live, some of `REGISTERS` and `SHARED`.
        b_places: where B may live.
        majors: along which dimension operands in shared memory may be contiguous: ``"k"``, ``"mn"``.
        asynchronous: whether it multiplies in the background, between a fence, a commit and a wait.
        section: where it is documented.

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
                raise LayoutError(
                    f"atom {self.name}: {what}={given!r}; nearest legal choice: some of {', '.join(known)}"
                )

    @property
    def shape(self) -> tuple[int, int, int]:
        """Extents (m, n, k)."""
        return (self.a.shape[0], self.b.shape[0], self.a.shape[1])

    @property
    def lanes(self) -> int:
        """Threads that execute the atom together."""
        return self.c.size_threads

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        extents = " x ".join(map(str, self.shape))
        needs = f", {self.feature}" if self.feature else ""
        kinds = f"{self.a_dtype} * {self.b_dtype} + {self.c_dtype}"
        return f"<atom {self.name}: {extents}, {kinds}, {self.lanes} lane{'s' * (self.lanes != 1)}{needs}>"


@layouts(warps=WARPS, repeats=REPEATS)
@dataclass(frozen=True, repr=False)
class TiledMma:
    """An atom repeated over a grid of warps and, within each warp, over registers.

    A warp owns a contiguous ``repeats``-fold block of atoms; warps are numbered along M first.

    Args:
        atom: the instruction.
        warps: warps along M and N.
        repeats: atoms per warp along M and N.

    Example:
        >>> from tilewright.targets.atoms import MMA_F16
        >>> mma = TiledMma(MMA_F16, warps=(4, 2), repeats=(4, 8))
        >>> mma.tile, mma.threads
        ((256, 128, 16), 256)
    """

    atom: MmaAtom
    warps: tuple[int, int] = (1, 1)
    repeats: tuple[int, int] = (1, 1)

    def __post_init__(self) -> None:
        for what in ("warps", "repeats"):
            pair = integers(what, getattr(self, what), 2, "along M and N")
            object.__setattr__(self, what, pair)

    def __repr__(self) -> str:
        extents = " x ".join(map(str, self.tile))
        return f"<{self.atom} by {self.warps} warps of {self.repeats}: {extents}, {self.threads} threads>"

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
        """Distribution of an A tile of shape (m, k): the warps of a row of the grid hold the same."""
        self._check_depth(k)
        return by_warps((self.tile[0], k), self.atom.a, self.warps, reuse="row")

    @layouts
    def b(self, k: int) -> Distribution:
        """Distribution of a B tile of shape (n, k): the warps of a column of the grid hold the same."""
        self._check_depth(k)
        return by_warps((self.tile[1], k), self.atom.b, self.warps, reuse="column", along=0)

    def c(self) -> Distribution:
        """Distribution of the accumulator of shape (m, n)."""
        return by_warps(self.tile[:2], self.atom.c, self.warps)

    def _check_depth(self, k: int) -> None:
        unit = self.atom.shape[2]
        if k < 1 or k % unit:
            raise LayoutError(
                f"K = {k} is not a multiple of {unit}, the depth of {self.atom}; "
                f"nearest legal choice: K = {max(k // unit, 1) * unit}"
            )
