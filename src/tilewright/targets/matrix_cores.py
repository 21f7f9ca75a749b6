"""Table of AMD's MMA atoms, one row each; fragment maps and records are derived from the rows.

A wave of 64 lanes executes ``v_mfma``: a lane holds neighbours along K of one row of A and of B, and rows of
one column of C.  A wave of 32 lanes executes ``v_wmma``; before gfx12, lanes 16 apart hold copies of the same
rows of A and B.

The order of k within an instruction does not change a product, as long as A and B agree.  So atoms in which a
lane holds 16 bytes, one access, consist of one or several instructions, depending on the hardware.

AMD does not document in which order the hardware adds the products of one instruction, and where it rounds.
The records assume that each sum is rounded once.

Source: AMD, "Instinct MI300 Instruction Set Architecture", section "Matrix Arithmetic Instructions"; "RDNA3
Instruction Set Architecture" and "RDNA4 Instruction Set Architecture", sections "Wave Matrix Multiply
Accumulate".
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.dtypes import DType, bf16, f8e4m3, f8e4m3fnuz, f8e5m2, f8e5m2fnuz, f16, f32, f64, i8, i32, u8
from tilewright.ir.mma import MmaAtom
from tilewright.threads.distribution import Distribution, Mode

MFMA, WMMA = "mfma", "wmma"
"""The kinds of instruction."""

_SECTIONS = {
    MFMA: "AMD Instinct MI300 ISA, Matrix Arithmetic Instructions",
    WMMA: "RDNA3 ISA, Wave Matrix Multiply Accumulate",
    "gfx12": "RDNA4 ISA, Wave Matrix Multiply Accumulate",
}


@dataclass(frozen=True)
class MatrixCoreRow:
    """The documented properties of a square atom.

    Args:
        a: dtype of A and B.
        c: dtype of the sums.
        side: rows of C, and also its columns.
        k: the depth.
        feature: the feature that the architecture must have.
        run: number of consecutive rows of C that a lane holds; the next rows are in the next lanes.
    """

    a: DType
    c: DType
    side: int
    k: int
    feature: str
    run: int = 4

    @property
    def named(self) -> str:
        """The end of the atom's name: extents and dtypes."""
        return f"{self.side}x{self.side}x{self.k}.{self.c}.{self.a}"


def _mfma(row: MatrixCoreRow) -> MmaAtom:
    """Return the atom of 64 lanes: ``side`` lanes hold a row of A, of B, or a column of C each.

    Further groups of as many lanes hold other k of A and B, and other rows of C.
    """
    along_k = 64 // row.side
    held = row.k // along_k
    values = (Mode(held, 1, 1),) if held > 1 else ()
    operand = Distribution((row.side, row.k), (Mode(row.side, 0, 1), Mode(along_k, 1, held)), values)
    step = row.run * along_k
    runs = [Mode(row.run, 0, 1), Mode(row.side // step, 0, step)]
    return MmaAtom(
        f"mfma.{row.named}",
        *(row.a, row.a, row.c),
        operand,
        operand,
        Distribution(
            (row.side, row.side),
            (Mode(row.side, 1, 1), Mode(along_k, 0, row.run)),
            tuple(mode for mode in runs if mode.extent > 1),
        ),
        MFMA,
        row.feature,
        section=_SECTIONS[MFMA],
    )


def _wmma(row: MatrixCoreRow) -> MmaAtom:
    """Return the atom of 32 lanes: the second half holds copies of A and B, and the odd rows of C."""
    operand = Distribution((16, row.k), (Mode(16, 0, 1), Mode(2, None, 0)), (Mode(row.k, 1, 1),))
    sums = Distribution((16, 16), (Mode(16, 1, 1), Mode(2, 0, 1)), (Mode(8, 0, 2),))
    kinds = row.a, row.a, row.c
    return MmaAtom(
        f"wmma.{row.named}", *kinds, operand, operand, sums, WMMA, row.feature, section=_SECTIONS[WMMA]
    )


def _wmma_gfx12(row: MatrixCoreRow) -> MmaAtom:
    """Return the atom of 32 lanes: the second half holds the second half of K, and the lower rows of C."""
    operand = Distribution((16, row.k), (Mode(16, 0, 1), Mode(2, 1, row.k // 2)), (Mode(row.k // 2, 1, 1),))
    sums = Distribution((16, 16), (Mode(16, 1, 1), Mode(2, 0, 8)), (Mode(8, 0, 1),))
    kinds, section = (row.a, row.a, row.c), _SECTIONS["gfx12"]
    return MmaAtom(
        f"wmma.gfx12.{row.named}", *kinds, operand, operand, sums, WMMA, row.feature, section=section
    )


MFMA_F16 = _mfma(MatrixCoreRow(f16, f32, 32, 8, "mfma"))
MFMA_F16_K16 = _mfma(MatrixCoreRow(f16, f32, 32, 16, "mfma"))
MFMA_F16_M16 = _mfma(MatrixCoreRow(f16, f32, 16, 16, "mfma"))
MFMA_F16_M16K32 = _mfma(MatrixCoreRow(f16, f32, 16, 32, "mfma"))
MFMA_BF16 = _mfma(MatrixCoreRow(bf16, f32, 32, 8, "mfma"))
MFMA_BF16_K16 = _mfma(MatrixCoreRow(bf16, f32, 32, 16, "mfma"))
MFMA_BF16_M16 = _mfma(MatrixCoreRow(bf16, f32, 16, 16, "mfma"))
MFMA_BF16_M16K32 = _mfma(MatrixCoreRow(bf16, f32, 16, 32, "mfma"))
MFMA_F32 = _mfma(MatrixCoreRow(f32, f32, 32, 2, "mfma"))
MFMA_F32_K8 = _mfma(MatrixCoreRow(f32, f32, 32, 8, "mfma"))
MFMA_F32_M16 = _mfma(MatrixCoreRow(f32, f32, 16, 4, "mfma"))
MFMA_F32_M16K16 = _mfma(MatrixCoreRow(f32, f32, 16, 16, "mfma"))
MFMA_F64_M16 = _mfma(MatrixCoreRow(f64, f64, 16, 4, "mfma", run=1))
MFMA_F64_M16K8 = _mfma(MatrixCoreRow(f64, f64, 16, 8, "mfma", run=1))
MFMA_I8_K8 = _mfma(MatrixCoreRow(i8, i32, 32, 8, "gfx90a"))
MFMA_I8_M16K16 = _mfma(MatrixCoreRow(i8, i32, 16, 16, "gfx90a"))
MFMA_I8 = _mfma(MatrixCoreRow(i8, i32, 32, 16, "gfx940"))
MFMA_I8_K32 = _mfma(MatrixCoreRow(i8, i32, 32, 32, "gfx940"))
MFMA_I8_M16 = _mfma(MatrixCoreRow(i8, i32, 16, 32, "gfx940"))
MFMA_I8_M16K64 = _mfma(MatrixCoreRow(i8, i32, 16, 64, "gfx940"))
MFMA_E4M3 = _mfma(MatrixCoreRow(f8e4m3, f32, 32, 16, "gfx950"))
MFMA_E4M3_K32 = _mfma(MatrixCoreRow(f8e4m3, f32, 32, 32, "gfx950"))
MFMA_E4M3_M16 = _mfma(MatrixCoreRow(f8e4m3, f32, 16, 32, "gfx950"))
MFMA_E5M2 = _mfma(MatrixCoreRow(f8e5m2, f32, 32, 16, "gfx950"))
MFMA_E5M2_K32 = _mfma(MatrixCoreRow(f8e5m2, f32, 32, 32, "gfx950"))
MFMA_E5M2_M16 = _mfma(MatrixCoreRow(f8e5m2, f32, 16, 32, "gfx950"))
MFMA_E4M3FNUZ = _mfma(MatrixCoreRow(f8e4m3fnuz, f32, 32, 16, "gfx942"))
MFMA_E4M3FNUZ_K32 = _mfma(MatrixCoreRow(f8e4m3fnuz, f32, 32, 32, "gfx942"))
MFMA_E4M3FNUZ_M16 = _mfma(MatrixCoreRow(f8e4m3fnuz, f32, 16, 32, "gfx942"))
MFMA_E5M2FNUZ = _mfma(MatrixCoreRow(f8e5m2fnuz, f32, 32, 16, "gfx942"))
MFMA_E5M2FNUZ_K32 = _mfma(MatrixCoreRow(f8e5m2fnuz, f32, 32, 32, "gfx942"))
MFMA_E5M2FNUZ_M16 = _mfma(MatrixCoreRow(f8e5m2fnuz, f32, 16, 32, "gfx942"))

WMMA_F16 = _wmma(MatrixCoreRow(f16, f32, 16, 16, "gfx11"))
WMMA_BF16 = _wmma(MatrixCoreRow(bf16, f32, 16, 16, "gfx11"))
WMMA_I8 = _wmma(MatrixCoreRow(i8, i32, 16, 16, "gfx11"))
WMMA_U8 = _wmma(MatrixCoreRow(u8, i32, 16, 16, "gfx11"))

WMMA_F16_GFX12 = _wmma_gfx12(MatrixCoreRow(f16, f32, 16, 16, "gfx12"))
WMMA_BF16_GFX12 = _wmma_gfx12(MatrixCoreRow(bf16, f32, 16, 16, "gfx12"))
WMMA_I8_GFX12 = _wmma_gfx12(MatrixCoreRow(i8, i32, 16, 16, "gfx12"))
WMMA_U8_GFX12 = _wmma_gfx12(MatrixCoreRow(u8, i32, 16, 16, "gfx12"))
WMMA_E4M3_GFX12 = _wmma_gfx12(MatrixCoreRow(f8e4m3, f32, 16, 16, "gfx12"))
WMMA_E5M2_GFX12 = _wmma_gfx12(MatrixCoreRow(f8e5m2, f32, 16, 16, "gfx12"))

MATRIX_CORES: dict[str, MmaAtom] = {
    name: atom for name, atom in globals().items() if isinstance(atom, MmaAtom)
}
"""Every atom of matrix cores, by the author's name.

The fp8 formats of gfx942 have another bias and another NaN than those of later hardware, so they are separate
dtypes.  On gfx942 the later formats are widened to f16, which is exact.
"""


def nearest(
    a: DType, c: DType, features: frozenset[str], *, most: tuple[int, int] = (32, 64)
) -> MmaAtom | None:
    """Return the atom for a dtype on hardware with these features: the widest, and of these the deepest.

    Args:
        a: dtype of A and B.
        c: dtype of the sums.
        features: features of the hardware.
        most: the maximum of rows, and of the depth.

    Example:
        >>> nearest(f16, f32, frozenset({"mfma"})), nearest(f64, f64, frozenset({"gfx11"}))
        (<atom mfma.32x32x16.f32.f16: 32 x 32 x 16, f16 * f16 + f32, 64 lanes, mfma>, None)
    """
    fitting = (
        atom
        for atom in MATRIX_CORES.values()
        if (atom.a_dtype, atom.c_dtype) == (a, c)
        and atom.feature in features
        and (atom.shape[0] <= most[0] and atom.shape[2] <= most[1])
    )
    return max(fitting, key=lambda atom: (atom.shape[0], atom.shape[2]), default=None)
