"""The traits of Composable Kernel's wrapper, by which its block GEMM names its instructions, as tilings."""

from __future__ import annotations

import re

from tilewright.calls import launches
from tilewright.dtypes import DType, dtype
from tilewright.errors import LaunchError, close_to, shown
from tilewright.ir.mma import MmaAtom, TiledMma
from tilewright.targets.matrix_cores import MATRIX_CORES, MFMA
from tilewright.targets.target import HIP

WAVE = 64
"""Lanes that execute an instruction."""

GEMM_TRAITS = tuple(
    f"{side}x{side}Xdl_{m}x{n}XdlPerWave_{k1}K1"
    for side in (32, 16)
    for k1 in (4, 8, 16)
    for m, n in ((4, 2), (2, 4), (2, 2))
)
"""Every name: rows and columns of an instruction, instructions of a wave along M and N, neighbours along K
that a lane holds."""


@launches
def tiled_mma(traits: str, dtype: DType | str, tile: tuple[int, int]) -> TiledMma:
    """The tiled MMA for the traits of Composable Kernel's wrapper block GEMM, over the waves of a tile.

    A lane holds ``K1`` neighbours along K, or as many as its deepest instruction takes.

    Args:
        traits: such as ``"32x32Xdl_4x2XdlPerWave_8K1"``: instructions of 32 x 32 or 16 x 16, of which each
            wave has 4 x 2, 2 x 4 or 2 x 2, and of whose operands a lane holds 4, 8 or 16 neighbours along K.
        dtype: of A and B.
        tile: rows and columns of a block's tile of C.

    Returns:
        What `tw.mma` and `tw.accumulator` take, for gfx942.

    Raises:
        LaunchError: no such traits, no instruction for the dtype, or a tile that whole waves do not make.

    Example:
        >>> import tilewright as tw
        >>> mma = tw.ck.tiled_mma("32x32Xdl_4x2XdlPerWave_8K1", "f16", (256, 128))
        >>> mma.warps, mma.repeats, mma.threads, mma.atom
        ((2, 2), (4, 2), 256, <atom mfma.32x32x16.f32.f16: 32 x 32 x 16, f16 * f16 + f32, 64 lanes, mfma>)
    """
    if traits not in GEMM_TRAITS:
        known = f"{', '.join(GEMM_TRAITS)}{close_to(traits, GEMM_TRAITS)}"
        raise LaunchError(f"tiled_mma(traits={shown(traits)}): no such traits; choose one of {known}")
    side, _, m, n, k1 = map(int, re.findall(r"\d+", traits)[:5])
    atom = _atom(traits, dtype, side, k1)
    units = side * m, side * n
    if any(extent % unit or extent < unit for extent, unit in zip(tile, units, strict=True)):
        near = tuple(max(round(extent / unit), 1) * unit for extent, unit in zip(tile, units, strict=True))
        raise LaunchError(
            f"tiled_mma({traits!r}): a tile of {tile} is not made of waves of {units[0]} x {units[1]}; "
            f"nearest legal choice: tile={near}"
        )
    return TiledMma(atom, (tile[0] // units[0], tile[1] // units[1]), (m, n))


def _atom(traits: str, kind: DType | str, side: int, k1: int) -> MmaAtom:
    """The instruction of so many rows whose lanes hold K1 neighbours, or the most below."""
    wanted, beside = dtype(kind), WAVE // side
    arch = HIP.architecture(HIP.arch)
    known = [atom for atom in MATRIX_CORES.values() if atom.instruction == MFMA and atom.a_dtype == wanted]
    listed = [atom for atom in known if atom.feature in arch.features]
    fitting = [atom for atom in listed if atom.shape[0] == side and atom.shape[2] <= k1 * beside]
    if not fitting:
        sizes = sorted({atom.shape[0] for atom in listed})
        near = f"traits of {sizes[0]} x {sizes[0]}" if sizes else "f16, bf16, f32 or i8"
        raise LaunchError(
            f"tiled_mma({traits!r}): {arch.name} has no instruction of {side} x {side} that multiplies "
            f"{wanted} with {k1} neighbours of a lane; nearest legal choice: {near}"
        )
    return max(fitting, key=lambda atom: atom.shape[2])
