"""Table of NVIDIA's MMA atoms, one row each; fragment maps and records are derived from the rows.

Fragment maps of ``mma.sync`` from the PTX ISA, section "Matrix fragments for mma.m16n8k*": lane ``4*g + t``
holds rows ``g`` and ``g + 8``; the K positions of 16-bit operands are ``2*t + {0, 1}`` and ``+ 8``.  The four
warps of ``wgmma`` hold 16 rows each in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from tilewright.calls import layouts
from tilewright.dtypes import DType, bf16, f8e4m3, f8e5m2, f16, f32, f64, i8, i32, u8
from tilewright.dtypes import dtype as dtype_named
from tilewright.errors import LayoutError
from tilewright.functions.conversions import AlignedSum
from tilewright.ir.mma import REGISTERS, SHARED, MmaAtom
from tilewright.layout.tuples import integer, integers
from tilewright.namespaces import namespace
from tilewright.targets.matrix_cores import MATRIX_CORES
from tilewright.threads.distribution import Distribution, Mode

__all__ = ["dots", "fma", "wgmma"]

__getattr__, __dir__ = namespace(__name__, __all__)

FLOAT_SUM_BITS = 24
"""Bits that sums of 16-bit and tf32 products keep at least, from the largest addend's leading bit down.

This holds on sm_80 and later.

Source: Fasi, Higham, Mikaitis, Pranesh, "Numerical behavior of NVIDIA tensor cores", 2021, sections 3.3-3.6.
"""

HALF_SUMS, TF32_SUMS, FP8_SUMS = (
    AlignedSum(25, 16),
    AlignedSum(25, 8),
    AlignedSum(13, 32, fraction=13, zeros=False),
)
"""How Hopper adds up the products of one step along K: of 16 bits, of tf32, and of 8 bits (``wgmma``).

Source: `benchmarks/sum_bits.py` on an H100, equal bit by bit on random numbers.  Other architectures may keep
fewer bits, down to `FLOAT_SUM_BITS`.  Hopper executes ``mma.sync`` of 8-bit floats by the instruction of f16,
which keeps more bits; the atoms of ``mma.sync`` have the bits of sm_89, and the groups of ``wgmma``.
"""

FP8_SUM_BITS = 13
"""Bits that sums of 8-bit floats keep on sm_89 and sm_90; their accumulators are stored as f32.

Source: DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, section 3.5.2; Zhang et al., "SageAttention2",
2024, section 3.2; both measured it.
"""

DOTS = "dots"
"""The `MmaAtom.instruction` of dot products along K."""

FP8 = (f8e4m3, f8e5m2)
BYTES = (i8, u8)


@dataclass(frozen=True)
class AtomRow:
    """The documented properties of an atom; `MmaAtom` describes the other fields.

    Args:
        k: elements along K of one instruction: 32 bytes of A, unless its dtype is f64.
        m: rows of the result of ``mma.sync``.
        wide: ``wgmma`` with more than 32 columns has a multiple of this number.
    """

    a: DType
    b: DType
    c: DType
    k: int
    feature: str
    m: int = 16
    wide: int = 8
    precision: int | None = None
    rounding: str = "nearest"
    sum_bits: int | None = None
    sums: AlignedSum | None = None
    majors: tuple[str, ...] = ("k",)

    @property
    def named(self) -> str:
        """The end of the atom's name: the dtype of C, of A, and of B if it differs from A."""
        a, b = (_NAMES.get((x.name, self.precision), x.name) for x in (self.a, self.b))
        return f"{self.c}.{a}" + (f".{b}" if b != a else "")


_NAMES = {("f32", 10): "tf32", ("i8", None): "s8", ("f8e4m3", None): "e4m3", ("f8e5m2", None): "e5m2"}
"""PTX names of dtypes, by name and multiplied fraction bits."""


def _operand_map(rows: int, k: int, per_register: int, warps: int = 1) -> Distribution:
    """Return the fragment map of A or B: 4 lanes along K, 8 along rows; 4 bytes per register, or one f64."""
    along_k = (Mode(4, 1, per_register), Mode(8, 0, 1))
    run = (Mode(per_register, 1, 1),) if per_register > 1 else ()
    lower_rows = (Mode(2, 0, 8),) if rows // warps == 16 else ()
    deeper = (Mode(k // (4 * per_register), 1, 4 * per_register),) if k > 4 * per_register else ()
    return Distribution((rows, k), (*along_k, *_warps(warps)), (*run, *lower_rows, *deeper))


def _sum_map(m: int, n: int, warps: int = 1) -> Distribution:
    """Return the fragment map of the accumulator: a lane holds pairs of neighbouring columns."""
    lower_rows = (Mode(2, 0, 8),) if m // warps == 16 else ()
    columns = (Mode(n // 8, 1, 8),) if warps > 1 else ()
    return Distribution(
        (m, n), (Mode(4, 1, 2), Mode(8, 0, 1), *_warps(warps)), (Mode(2, 1, 1), *lower_rows, *columns)
    )


def _warps(count: int) -> tuple[Mode, ...]:
    return (Mode(count, 0, 16),) if count > 1 else ()


def _mma_sync(row: AtomRow) -> MmaAtom:
    """Return the atom of ``mma.sync`` with 8 columns."""
    shape, per_register = f"m{row.m}n8k{row.k}", max(4 // row.a.bytes, 1)
    return MmaAtom(
        f"mma.{shape}.{row.named}",
        row.a,
        row.b,
        row.c,
        _operand_map(row.m, row.k, per_register),
        _operand_map(8, row.k, per_register),
        _sum_map(row.m, 8),
        "mma.sync",
        row.feature,
        row.precision,
        row.rounding,
        row.sum_bits,
        row.sums,
        section=f"PTX ISA, Matrix fragments for mma.{shape}",
    )


MMA_F16 = _mma_sync(AtomRow(f16, f16, f32, 16, "sm_80", sum_bits=FLOAT_SUM_BITS, sums=HALF_SUMS))
MMA_F16_F16 = _mma_sync(
    AtomRow(f16, f16, f16, 16, "sm_80", sum_bits=FLOAT_SUM_BITS, sums=AlignedSum(25, 16, "nearest"))
)
MMA_BF16 = _mma_sync(AtomRow(bf16, bf16, f32, 16, "sm_80", sum_bits=FLOAT_SUM_BITS, sums=HALF_SUMS))
MMA_TF32 = _mma_sync(
    AtomRow(f32, f32, f32, 8, "sm_80", precision=10, sum_bits=FLOAT_SUM_BITS, sums=TF32_SUMS)
)
MMA_I8 = _mma_sync(AtomRow(i8, i8, i32, 32, "sm_80"))
MMA_U8 = _mma_sync(AtomRow(u8, u8, i32, 32, "sm_80"))
MMA_F64 = _mma_sync(AtomRow(f64, f64, f64, 4, "sm_80", m=8))
MMA_F64_M16 = _mma_sync(AtomRow(f64, f64, f64, 8, "sm_90"))
MMA_F64_M16K4 = _mma_sync(AtomRow(f64, f64, f64, 4, "sm_90"))
MMA_F64_M16K16 = _mma_sync(AtomRow(f64, f64, f64, 16, "sm_90"))
MMA_E4M3 = _mma_sync(AtomRow(f8e4m3, f8e4m3, f32, 32, "sm_89", sum_bits=FP8_SUM_BITS, sums=FP8_SUMS))
MMA_E5M2 = _mma_sync(AtomRow(f8e5m2, f8e5m2, f32, 32, "sm_89", sum_bits=FP8_SUM_BITS, sums=FP8_SUMS))

_MMA_SYNC = {name: atom for name, atom in globals().items() if isinstance(atom, MmaAtom)}
MMA_SYNC: tuple[MmaAtom, ...] = tuple(_MMA_SYNC.values())
"""Every atom of ``mma.sync``."""

__all__ += _MMA_SYNC

globals().update(MATRIX_CORES)  # ``tw.atoms`` has the atoms of all vendors
__all__ += MATRIX_CORES

WGMMA: tuple[AtomRow, ...] = (
    AtomRow(f16, f16, f32, 16, "sm_90a", sum_bits=FLOAT_SUM_BITS, sums=HALF_SUMS, majors=("k", "mn")),
    AtomRow(bf16, bf16, f32, 16, "sm_90a", sum_bits=FLOAT_SUM_BITS, sums=HALF_SUMS, majors=("k", "mn")),
    AtomRow(
        f32,
        f32,
        f32,
        8,
        "sm_90a",
        precision=10,
        rounding="truncate",
        sum_bits=FLOAT_SUM_BITS,
        sums=TF32_SUMS,
    ),
    *(AtomRow(a, b, f32, 32, "sm_90a", sum_bits=FP8_SUM_BITS, sums=FP8_SUMS) for a in FP8 for b in FP8),
    *(AtomRow(a, b, i32, 32, "sm_90a", wide=16) for a in BYTES for b in BYTES),
)
"""The atoms of ``wgmma`` without their columns, of which `wgmma` takes up to 256.

Source: PTX ISA, "Asynchronous warpgroup level matrix instructions: wgmma.mma_async".
"""


@layouts
def fma(
    dtype: DType | str,
    acc: DType | str | None = None,
    lanes: tuple[int, int] = (4, 8),
    each: tuple[int, int] = (1, 1),
    paired: bool = False,
) -> MmaAtom:
    """Return the atom of one multiply-add per thread and coordinate, for any dtype and warp size.

    Args:
        dtype: element type of A and B.
        acc: accumulator type; default: f32 for narrow floats, i32 for integers up to 32 bits, else ``dtype``.
        lanes: lanes along M and N; their product is the warp size.
        each: neighbouring rows and columns that one lane computes.
        paired: whether lanes are numbered in squares of 2 x 2.  Then two neighbours read the same rows of A,
            and two lanes at a distance of 2 the same rows of B: equal accesses of 16 bytes to shared memory
            are served together.

    Raises:
        LayoutError: pairs of an odd number of lanes.

    Example:
        >>> fma(f32, lanes=(8, 8), each=(4, 4)).shape, fma(f32, lanes=(8, 8)).lanes
        ((32, 32, 1), 64)
    """
    dtype, acc = dtype_named(dtype), None if acc is None else dtype_named(acc)
    if acc is None:
        acc = dtype.computed if dtype.is_float or dtype.bits > i32.bits else i32
    lanes_m, lanes_n = integers("lanes", lanes, 2, "lanes along M and N")
    rows_and_columns = integers("each", each, 2, "rows and columns of one lane")
    if paired and (lanes_m % 2 or lanes_n % 2):
        raise LayoutError(f"{lanes_m} x {lanes_n} lanes in pairs", "even numbers of both")
    return _fma(dtype, acc, (lanes_m, lanes_n), rows_and_columns, bool(paired))


@lru_cache(maxsize=1024)
def _fma(dtype: DType, acc: DType, lanes: tuple[int, int], each: tuple[int, ...], paired: bool) -> MmaAtom:
    (lanes_m, lanes_n), (m, n) = lanes, each
    shape = (lanes_m * m, lanes_n * n)
    a = Distribution((shape[0], 1), _lanes(lanes, (m, None), (0, 0), paired), (Mode(m, 0, 1),))
    b = Distribution((shape[1], 1), _lanes(lanes, (None, n), (0, 0), paired), (Mode(n, 0, 1),))
    c = Distribution(shape, _lanes(lanes, (m, n), (0, 1), paired), (Mode(n, 1, 1), Mode(m, 0, 1)))
    name = f"fma.{acc}.{dtype}.{lanes_m}x{lanes_n}" + ("" if (m, n) == (1, 1) else f".{m}x{n}")
    name += ".paired" if paired else ""
    return MmaAtom(name, dtype, dtype, acc, a, b, c, "fma")


@layouts
def dots(dtype: DType | str, each: tuple[int, int] = (4, 4), depth: int = 16) -> MmaAtom:
    """Return the atom of dot products along K, ``c[m, n] += sum a[m, k] * b[n, k]``, for processors.

    Vectors lie along K, so that few rows of A are multiplied by columns of B that are contiguous along K as
    fast as B is read.  A sum is added up in any order.

    Args:
        dtype: element type of A and B; sums have its accumulator type, as with `fma`.
        each: rows and columns whose sums are computed together.
        depth: neighbours along K whose products are added up in any order.

    Raises:
        LayoutError: integers, whose products are not added in vectors along K.

    Example:
        >>> dots(f32, (2, 4)).shape, dots("bf16").c_dtype
        ((2, 4, 16), f32)
    """
    dtype = dtype_named(dtype)
    if not dtype.is_float:
        raise LayoutError(f"dots({dtype}): integers", f"fma({dtype})")
    m, n = integers("each", each, 2, "rows and columns whose sums are computed together")
    k, acc = integer("depth", depth), dtype.computed
    a, b = (Distribution((rows, k), (), (Mode(k, 1, 1), Mode(rows, 0, 1))) for rows in (m, n))
    name, sums = f"{DOTS}.{acc}.{dtype}.{m}x{n}x{k}", Distribution((m, n), (), (Mode(n, 1, 1), Mode(m, 0, 1)))
    return MmaAtom(name, dtype, dtype, acc, a, b, sums, DOTS)


def _lanes(
    lanes: tuple[int, int], steps: tuple[int | None, int | None], dims: tuple[int, int], paired: bool
) -> tuple[Mode, ...]:
    """Return the lanes along N and then M, or two of each alternately; lanes without a step hold copies."""

    def along(axis: int, first: int, count: int) -> Mode:
        step = steps[axis]
        return Mode(count, None, 0) if step is None else Mode(count, dims[axis], first * step)

    m, n = lanes
    if not paired:
        return along(1, 1, n), along(0, 1, m)
    made = along(1, 1, 2), along(0, 1, 2), along(1, 2, n // 2), along(0, 2, m // 2)
    return tuple(mode for mode in made if mode.extent > 1)


TENSOR_CORE: dict[str, MmaAtom] = {"f16": MMA_F16, "bf16": MMA_BF16, "f32": MMA_TF32, "i8": MMA_I8}
"""The ``mma.sync`` atom for each dtype of A and B; f32 computes in tf32."""

COARSE_TENSOR_CORES: dict[str, str] = {"f8e4m3": "sm_89", "f8e5m2": "sm_89"}
"""Dtypes whose sums keep few bits on tensor cores, with the feature of architectures that have these.

They are multiplied on tensor cores only on request.

Source: PTX ISA, "Warp-level matrix instructions: mma", types and target architectures.
"""


def multiplied_without_tensor_cores(atom: MmaAtom, arch: str, features: frozenset[str]) -> str:
    """Return a note if an atom multiplies fp8 or wide integers without tensor cores, else ``""``."""
    name = atom.a_dtype.name
    if atom.instruction == "fma" and not atom.c_dtype.is_float and atom.a_dtype.bits > i8.bits:
        return (
            f"integers of {atom.a_dtype.bits} bits are multiplied by scalar multiply-adds; {arch} has no "
            "tensor cores for them; nearest: operands of i8, or floats that hold "
            "all products and sums, as f64 up to 2**53"
        )
    if atom.instruction != "fma" or COARSE_TENSOR_CORES.get(name) not in features:
        return ""
    along_k = (
        "operands that are contiguous along K, which wgmma multiplies, or " if "wgmma" in features else ""
    )
    return (
        f"{name} is multiplied by scalar fma instructions; the tensor cores of {arch} support it, but keep "
        f"only {FP8_SUM_BITS} bits of its sums; nearest: {along_k}convert to f16, which holds all "
        "these numbers exactly and runs on tensor cores"
    )


@layouts
def wgmma(
    dtype: DType | str, n: int, b_dtype: DType | str | None = None, acc: DType | str | None = None
) -> MmaAtom:
    """Return the asynchronous m64 atom of a warpgroup.

    B is in shared memory, A in shared memory or in registers.  Operands of 16 bits may be contiguous along M
    and N, others only along K.

    Source: PTX ISA, "Asynchronous warpgroup-level matrix instructions", register fragments of wgmma.m64nNk16.

    Args:
        dtype: element type of A, one of those in `WGMMA`.
        n: columns, a multiple of 8 up to 256; of integers beyond 32 a multiple of 16.
        b_dtype: element type of B; default: that of A.
        acc: accumulator type; default: that of the first such atom in `WGMMA`.

    Raises:
        LayoutError: no such atom.

    Example:
        >>> wgmma(f16, 256).shape, wgmma(f16, 256).lanes, wgmma(f16, 256).c.size_values
        ((64, 256, 16), 128, 128)
    """
    dtype, n = dtype_named(dtype), integer("n", n, "columns")
    right = dtype if b_dtype is None else dtype_named(b_dtype)
    total = None if acc is None else dtype_named(acc)
    fitting = (row for row in WGMMA if (row.a, row.b) == (dtype, right) and total in (None, row.c))
    row = next(fitting, None)
    if row is None:
        asked = f"{dtype}" + (f" by {right}" if right != dtype else "") + (f" into {total}" if total else "")
        known = ", ".join(f"{x.a} by {x.b} into {x.c}" for x in WGMMA)
        raise LayoutError(f"there is no wgmma atom for {asked}", f"one of {known}")
    unit = row.wide if n > 32 else 8
    if n % unit or not 8 <= n <= 256:
        nearest = min(max(round(n / unit) * unit, 8), 256)
        raise LayoutError(f"wgmma has no atom of {n} columns", nearest)
    return _wgmma(row, n)


@lru_cache(maxsize=1024)
def _wgmma(row: AtomRow, n: int) -> MmaAtom:
    return MmaAtom(
        f"wgmma.m64n{n}k{row.k}.{row.named}",
        row.a,
        row.b,
        row.c,
        _operand_map(64, row.k, 4 // row.a.bytes, warps=4),
        Distribution((n, row.k), (Mode(128, None, 0),), (Mode(row.k, 1, 1), Mode(n, 0, 1))),
        _sum_map(64, n, warps=4),
        "wgmma",
        row.feature,
        row.precision,
        row.rounding,
        row.sum_bits,
        row.sums,
        a_places=(REGISTERS, SHARED),
        b_places=(SHARED,),
        majors=row.majors,
        asynchronous=True,
        section=f"PTX ISA, Register fragments and shared memory matrix layouts of wgmma.m64nNk{row.k}",
    )


@lru_cache(maxsize=1024)
def is_listed(atom: MmaAtom) -> bool:
    """Return whether an atom equals a row of the table, except for its name; others cannot be emitted.

    Example:
        >>> is_listed(MMA_F16), is_listed(wgmma(bf16, 64)), is_listed(replace(MMA_F16, c_dtype=f64))
        (True, True, False)
    """
    listed = (*MMA_SYNC, *MATRIX_CORES.values())
    if atom.instruction == "wgmma":
        fitting = (
            row for row in WGMMA if (row.a, row.b, row.c) == (atom.a_dtype, atom.b_dtype, atom.c_dtype)
        )
        listed = tuple(wgmma(row.a, atom.shape[1], row.b, row.c) for row in fitting)
    return atom.instruction == "fma" or any(replace(atom, name=other.name) == other for other in listed)


@lru_cache(maxsize=256)
def spelled(atom: MmaAtom) -> str:
    """Return an atom as an author writes it, which `eval` reads if ``tw`` is tilewright.

    An atom that is not listed here, and was made by hand, has only its `repr`.

    Example:
        >>> spelled(MMA_F16), spelled(wgmma("bf16", 256)), spelled(fma("f16", lanes=(8, 8), each=(4, 4)))
        ('tw.atoms.MMA_F16', 'tw.atoms.wgmma("bf16", 256)', 'tw.atoms.fma("f16", lanes=(8, 8), each=(4, 4))')
    """
    for name, known in (*_MMA_SYNC.items(), *MATRIX_CORES.items()):
        if known == atom:
            return f"tw.atoms.{name}"
    if atom.instruction == "wgmma" and is_listed(atom):
        asked = [f'"{atom.a_dtype}"', str(atom.shape[1])]
        asked += [f'b_dtype="{atom.b_dtype}"'] if atom.b_dtype != atom.a_dtype else []
        return f"tw.atoms.wgmma({', '.join(asked)})"
    m, n, k = atom.shape
    if atom.instruction == DOTS and dots(atom.a_dtype, (m, n), k) == atom:
        return f'tw.atoms.dots("{atom.a_dtype}", each=({m}, {n}), depth={k})'
    count = atom.lanes if atom.instruction == "fma" else 0
    for lanes_m in (lanes for lanes in range(1, count + 1) if count % lanes == 0):
        lanes = (lanes_m, count // lanes_m)
        for paired in (False, True)[: 1 if lanes[0] % 2 or lanes[1] % 2 else 2]:
            each = (max(m // lanes[0], 1), max(n // lanes[1], 1))
            if fma(atom.a_dtype, atom.c_dtype, lanes, each, paired) == atom:
                plain = fma(atom.a_dtype).c_dtype == atom.c_dtype
                asked = [f'"{atom.a_dtype}"', *([] if plain else [f'acc="{atom.c_dtype}"'])]
                asked += [f"lanes={lanes}"] if lanes != (4, 8) else []
                asked += [f"each={each}"] if each != (1, 1) else []
                asked += ["paired=True"] if paired else []
                return f"tw.atoms.fma({', '.join(asked)})"
    return repr(atom)
