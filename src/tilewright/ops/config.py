"""Configurations of the GEMM: which tile, which atom, how many stages, for each target and dtype."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.calls import launches
from tilewright.dtypes import DType
from tilewright.dtypes import dtype as dtype_named
from tilewright.errors import DTypeError
from tilewright.ir.mma import MmaAtom, TiledMma
from tilewright.layout.limits import STAGES
from tilewright.runtime.environment import settings
from tilewright.schedule.choose_cpu import DEPTH, tile_for
from tilewright.targets.atoms import MMA_F64, TENSOR_CORE, fma
from tilewright.targets.target import part, target_named


@launches(stages=STAGES)
@dataclass(frozen=True)
class Config:
    """One way to run a GEMM.

    Args:
        tile: extents (m, n, k) of a block's tile.
        mma: the tiled MMA.
        stages: tiles of A and B in flight; 1 for no overlap.

    Example:
        >>> from tilewright.targets.atoms import MMA_F16
        >>> Config.of(MMA_F16, tile=(128, 128, 32), warps=(2, 2), stages=3).mma.repeats
        (4, 8)
    """

    tile: tuple[int, int, int]
    mma: TiledMma
    stages: int = 1

    @staticmethod
    @launches
    def of(atom: MmaAtom, tile: tuple[int, int, int], warps: tuple[int, int], stages: int = 1) -> Config:
        """The configuration whose repeats fill ``tile`` with ``warps`` warps."""
        return Config(tile, TiledMma(atom, warps, tile=tile[:2]), stages)


PRECISIONS = ("exact", "tf32")
"""How numbers of f32 are multiplied: as they are, or on tensor cores with 10 fraction bits."""


SUPPORTED = ("f64", "f32", "f16", "bf16", "f8e4m3", "f8e5m2", "i8")
"""Element types that `default_config` has a configuration for."""


@launches
def default_config(
    target: str, dtype: DType, shape: tuple[int, int, int], precision: str = "exact"
) -> Config:
    """The configuration that `matmul` uses.

    Args:
        target: ``"cuda"``, ``"cpu"`` or ``"reference"``.
        dtype: element type of A and B.
        shape: extents (M, N, K).
        precision: one of `PRECISIONS`; applies to f32.

    Raises:
        DTypeError: the GEMM has no atom for the dtype.
    """
    dtype = dtype_named(dtype)
    if dtype.name not in SUPPORTED:
        raise DTypeError(f"no GEMM for {dtype} yet; nearest: {', '.join(SUPPORTED)}")
    chosen: Config = part(target_named(target).configuration)(dtype, shape, precision)
    return chosen


def _atom(dtype: DType, precision: str) -> MmaAtom | None:
    """The tensor-core atom for a dtype, if it keeps the accuracy that was asked for."""
    return None if dtype.name == "f32" and precision != "tf32" else TENSOR_CORE.get(dtype.name)


def reference_config(dtype: DType, shape: tuple[int, int, int], precision: str) -> Config:
    """A small tile: what is executed one operation after the other should be little."""
    atom = _atom(dtype, precision) or fma(dtype)
    return Config.of(atom, (32, 32, 32), (2, 2) if atom.shape[0] == 16 else (1, 1))


def cuda_config(dtype: DType, shape: tuple[int, int, int], precision: str) -> Config:
    """Tensor cores where there is an atom; a larger tile where its blocks still fill the GPU."""
    m, n, _ = shape
    atom = MMA_F64 if dtype.name == "f64" else _atom(dtype, precision)
    depth = 128 // dtype.bytes
    if atom is None:
        return Config.of(fma(dtype, each=(8, 8), paired=True), (128, 128, min(depth, 32)), (4, 2), stages=3)
    if m * n >= 128 * 128 * 132:
        return Config.of(atom, (128, 128, depth), (4, 2) if dtype.bytes > 4 else (2, 2), stages=3)
    return Config.of(atom, (64, 64, depth), (2, 2), stages=4)


def cpu_config(dtype: DType, shape: tuple[int, int, int], precision: str) -> Config:
    """The tile that is estimated to take least time on the threads that there are."""
    atom = _atom(dtype, precision) if precision == "tf32" else None
    tile = tile_for(shape, settings().threads)
    return Config.of(atom or fma(dtype), (*tile, DEPTH), (1, 1))
