"""The kernels of examples 02 and 04 to 07 with multiply-add atoms, for any number of lanes in a warp."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.targets import signals

import tilewright as tw
from tilewright.arch import Arch
from tilewright.ir.kernel import Kernel
from tilewright.targets.matrix_cores import nearest

EXAMPLES = Path(__file__).parents[3] / "examples"
BASIC = runpy.run_path(str(EXAMPLES / "02_basic_gemm.py"))
OPTIMIZED = runpy.run_path(str(EXAMPLES / "04_optimized_gemm.py"))
IM2COL = runpy.run_path(str(EXAMPLES / "05_im2col.py"))
WARP_TILES = runpy.run_path(str(EXAMPLES / "06_warp_tiles_gemm.py"))
LEVELS = runpy.run_path(str(EXAMPLES / "07_three_levels_gemm.py"))


def multiply_adds(
    dtype: tw.DType, lanes: int, tile: tuple[int, int], each: tuple[int, int], warps: tuple[int, int]
) -> tw.TiledMma:
    """Return a tiling of multiply-adds that covers a tile, for any number of lanes."""
    atom = tw.atoms.fma(dtype, lanes=(lanes // 8, 8), each=each)
    repeats = (tile[0] // (warps[0] * atom.shape[0]), tile[1] // (warps[1] * atom.shape[1]))
    return tw.TiledMma(atom, warps, repeats)


def traced(
    bound: Any, arch: Arch, dtype: tw.DType, out: tw.DType | None = None, whole: bool = True
) -> Kernel:
    """Trace the kernel for an architecture, for matrices of whole tiles or of any extents."""
    extents, strides = (256, 16) if whole else (1, 1)
    a, c = (
        tw.TensorSpec(each, 2, 1, (extents, extents), (strides, 1), 16 if whole else each.bytes, False)
        for each in (dtype, out or dtype)
    )
    specs = dict(zip(("A", "B", "C"), (a, a, c), strict=True))
    return bound.program.trace(specs, bound.constants, arch)


def basic(arch: Arch) -> Kernel:
    mma = multiply_adds(tw.f16, arch.lanes, (64, 64), (4, 4), (2, 2))
    constants = {"tile": (64, 64, 32), "threads": mma.threads, "mma": mma, "vector": 8}
    return traced(BASIC["basic_gemm"].bind(**constants), arch, tw.f16)


def padded(arch: Arch, dtype: tw.DType, out: tw.DType) -> Kernel:
    mma = multiply_adds(dtype, arch.lanes, (64, 64), (4, 4), (2, 2))
    constants = {"tile": (64, 64, 32), "threads": mma.threads, "mma": mma, "vector": 1}
    return traced(BASIC["basic_gemm"].bind(**constants), arch, dtype, out, whole=False)


def optimized(arch: Arch) -> Kernel:
    mma = multiply_adds(tw.f16, arch.lanes, (64, 64), (4, 4), (2, 2))
    threads = tw.Layout((4, mma.threads // 4, 1), (1, 4, 1))
    constants = {"tile": (64, 64, 32), "threads": threads, "mma": mma, "vector": 8, "k1": 8}
    return traced(OPTIMIZED["optimized_gemm"].bind(**constants), arch, tw.f16)


def im2col(arch: Arch) -> Kernel:
    """Whole rows of 64 channels, which vectors of four divide."""
    x = tw.TensorSpec(tw.f32, 6, 5, (1, 1, 1, 1, 1, 64), (16, 16, 16, 16, 16, 1), 16, False)
    y = tw.TensorSpec(tw.f32, 3, 2, (1, 1, 64), (16, 16, 1), 16, False)
    bound = IM2COL["LARGE"]
    return bound.program.trace({"X": x, "Y": y}, bound.constants, arch)


def matrices(arch: Arch) -> Kernel:
    """Use the matrix instructions of each architecture: 4 warps on 128 x 128."""
    atom = nearest(tw.f16, tw.f32, arch.features)
    assert atom is not None
    repeats = (64 // atom.shape[0], 64 // atom.shape[1])
    mma = tw.TiledMma(atom, (2, 2), repeats)
    threads = tw.Layout((4, mma.threads // 4, 1), (1, 4, 1))
    constants = {"tile": (128, 128, 32), "threads": threads, "mma": mma, "vector": 8, "k1": 8}
    return traced(OPTIMIZED["optimized_gemm"].bind(**constants), arch, tw.f16)


def warp_tiles(arch: Arch) -> Kernel:
    mma = multiply_adds(tw.f32, arch.lanes, (64, 64), (4, 4), (2, 2))
    return traced(WARP_TILES["warp_tiles_gemm"].bind(tile=(64, 64, 8), mma=mma), arch, tw.f32)


def level(arch: Arch, name: str) -> Kernel:
    mma = multiply_adds(tw.f32, arch.lanes, (64, 64), (4, 4), (2, 2))
    more = {"stages": 3} if name == "prefetched" else {}
    return traced(LEVELS[name].bind(tile=(64, 64, 16), mma=mma, **more), arch, tw.f32)


def turnstile(arch: Arch) -> Kernel:
    """A split-K product whose blocks add up in turn; the tests of signals run it on every other target."""
    mma = multiply_adds(tw.f32, arch.lanes, (64, 64), (4, 4), (2, 2))
    constants = {"mma": mma, "tile": (64, 64, 16), "splits": 3, "threads": mma.threads}
    return traced(signals.turnstile.bind(**constants), arch, tw.f32)


KERNELS: dict[str, Callable[[Arch], Kernel]] = {
    "02 f16": basic,
    "02 padded f32": lambda arch: padded(arch, tw.f32, tw.f32),
    "02 padded i8": lambda arch: padded(arch, tw.i8, tw.i32),
    "04 f16": optimized,
    "04 matrices": matrices,
    "05 f32": im2col,
    "06 f32": warp_tiles,
    "07 serial": lambda arch: level(arch, "serial"),
    "07 buffered": lambda arch: level(arch, "buffered"),
    "07 prefetched": lambda arch: level(arch, "prefetched"),
}
