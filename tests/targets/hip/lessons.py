"""Kernels of the examples 02 and 04 to 09 for AMD GPUs, with atoms and tiles of these GPUs."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
from tests.ops.attending import Problem

import tilewright as tw
from tilewright.checking.compare import Accumulation, compare_gemm
from tilewright.targets.matrix_cores import nearest

from .machine import MACHINES
from .members import Case, matrix

EXAMPLES = Path(__file__).parents[3] / "examples"
(BASIC, OPTIMIZED, IM2COL, WARP_TILES, LEVELS, FUSED, ATTENTION) = (
    runpy.run_path(str(next(EXAMPLES.glob(f"{number:02}_*.py")))) for number in (2, *range(4, 10))
)

RAGGED = (67, 69, 41)
"""Extents that no tile divides."""


def atom_of(target: str, kind: tw.DType) -> tw.MmaAtom:
    """Return the matrix-core instruction for a dtype, with 16 rows, or else a multiply-add."""
    arch, depth = MACHINES[target].architecture(MACHINES[target].arch), 32 // kind.bytes
    found = nearest(
        kind, kind.computed if kind.is_float else tw.i32, arch.features, most=(16, max(depth, 16))
    )
    return found or tw.atoms.fma(kind, lanes=(arch.lanes // 8, 8), each=(4, 4))


def multiplied(
    bound: Any, kind: tw.DType, atom: tw.MmaAtom, shape: tuple[int, int, int], target: str
) -> None:
    """C = A Bᵀ by a kernel of an example, into an array of NaN."""
    (m, n, k), out = shape, kind if kind.is_float else tw.i32
    a, b = matrix((m, k), kind), matrix((n, k), kind, seed=1)
    c = np.full((m, n), np.nan if out.is_float else 77, out.numpy)
    assert bound(a, b, c, target=target).target == target
    compare_gemm(a, b.T, c, Accumulation.of(atom)).raise_if_wrong()


def basic(kind: tw.DType) -> Case:
    """Example 02: a tile of 64 x 64; each access has one element."""

    def run(target: str) -> None:
        atom = atom_of(target, kind)
        mma = tw.TiledMma(atom, tile=(64, 64), warps=(2, 2))
        bound = BASIC["basic_gemm"].bind(tile=(64, 64, 32), mma=mma, vector=1)
        multiplied(bound, kind, atom, RAGGED, target)

    return run


def optimized(kind: tw.DType) -> Case:
    """Example 04: the next tile in registers, padded rows in shared memory, and a staged result."""

    def run(target: str) -> None:
        atom = atom_of(target, kind)
        mma = tw.TiledMma(atom, tile=(64, 64), warps=(2, 2))
        words = {"threads": mma.threads, "mma": mma, "vector": 1, "k1": 16 // kind.bytes}
        multiplied(OPTIMIZED["optimized_gemm"].bind(tile=(64, 64, 32), **words), kind, atom, RAGGED, target)

    return run


def windows(name: str, shape: tuple[int, ...]) -> Case:
    """Example 05: the matrix of an image, copied bit by bit."""

    def run(target: str) -> None:
        bound = IM2COL[name]
        image = np.random.default_rng(0).standard_normal(shape, np.float32)
        geometry = {word: bound.constants[word] for word in ("taps", "stride", "dilation", "padding")}
        expected = IM2COL["matrix_of"](IM2COL["windows"](image, **geometry))
        made = np.full(expected.shape, np.nan, np.float32)
        assert bound(image, made, target=target).target == target
        np.testing.assert_array_equal(made, expected)

    return run


def warp_tiles(kind: tw.DType) -> Case:
    """Example 06: from global memory to registers."""

    def run(target: str) -> None:
        atom = atom_of(target, kind)
        mma = tw.TiledMma(atom, tile=(64, 64), warps=(2, 2))
        multiplied(WARP_TILES["warp_tiles_gemm"].bind(tile=(64, 64, 32), mma=mma), kind, atom, RAGGED, target)

    return run


def level(name: str) -> Case:
    """Example 07: a tile over three memories: in order, doubled, or with several under way."""

    def run(target: str) -> None:
        atom = atom_of(target, tw.f16)
        mma = tw.TiledMma(atom, tile=(64, 64), warps=(2, 2))
        more = {"stages": 3} if name == "prefetched" else {}
        multiplied(LEVELS[name].bind(tile=(64, 64, 32), mma=mma, **more), tw.f16, atom, RAGGED, target)

    return run


def fused(kind: tw.DType) -> Case:
    """Example 08: the first product is operand A of the second; small integers with exact sums."""

    def run(target: str) -> None:
        rng, (m, n, k, p) = np.random.default_rng(0), (70, 72, 40, 130)
        a, b, c = (rng.integers(-2, 3, s).astype(kind.numpy) for s in ((m, k), (n, k), (p, n)))
        d = np.full((m, p), np.nan, np.float32)
        bound = FUSED["fused_gemms"].bind(tile=(64, 64, 32, 64), atom=atom_of(target, kind), warps=4)
        assert bound(a, b, c, d, target=target).target == target
        product = (a.astype(np.float64) @ b.astype(np.float64).T).astype(np.float32).astype(kind.numpy)
        np.testing.assert_array_equal(d, product.astype(np.float64) @ c.astype(np.float64).T)

    return run


def attention(kind: tw.DType, depth: int, tile: tuple[int, int], diagonal: int | None = None) -> Case:
    """Example 09: scores stay within a block."""

    def run(target: str) -> None:
        problem = Problem((1, 2, 2), (70, 70), (depth, depth), kind, diagonal)
        words = {"causal": diagonal is not None, "tile": (*tile, depth), "warps": 4}
        bound = ATTENTION["attention"].bind(**words, atom=atom_of(target, kind))
        out = np.full(problem.q.shape, np.nan, kind.numpy)
        numbers = problem.by, 0 if diagonal is None else diagonal
        assert bound(problem.q, problem.k, problem.v, out, *numbers, target=target).target == target
        problem.check(out)

    return run


def traits(name: str, kind: str, tile: tuple[int, int], *, is_optimized: bool) -> Case:
    """Examples 02 and 04 with the instructions that the wrapper's traits name for its programs."""

    def run(target: str) -> None:
        mma, dtype = tw.ck.tiled_mma(name, kind, tile), tw.dtype(kind)
        k1 = mma.atom.a.size_values
        words: dict[str, Any] = {"tile": (*tile, 32), "mma": mma, "vector": k1}
        shape = (tile[0] + 8, tile[1] + 8, 72) if dtype.is_float else (tile[0] + 16, tile[1] + 16, 80)
        if is_optimized:
            depth = 32 // k1
            words |= {"threads": tw.Layout((depth, mma.threads // depth, 1), (1, depth, 1)), "k1": k1}
        bound = OPTIMIZED["optimized_gemm"] if is_optimized else BASIC["basic_gemm"]
        multiplied(bound.bind(**words), dtype, mma.atom, shape, target)

    return run


LESSONS: dict[str, dict[str, Case]] = {
    "02": {str(kind): basic(kind) for kind in (tw.f16, tw.f32, tw.i8, tw.f8e4m3fnuz)},
    "04": {str(kind): optimized(kind) for kind in (tw.f16, tw.f32, tw.i8, tw.f8e5m2fnuz)},
    "05": {
        "whole channels": windows("LARGE", IM2COL["SMALL"]),
        "ragged": windows("RAGGED", IM2COL["RAGGED_SHAPE"]),
    },
    "06": {str(kind): warp_tiles(kind) for kind in (tw.f16, tw.bf16)},
    "07": {name: level(name) for name in ("serial", "buffered", "prefetched")},
    "08": {str(kind): fused(kind) for kind in (tw.f16, tw.bf16)},
    "09": {
        "f16, causal": attention(tw.f16, 64, (64, 64), diagonal=-60),
        "bf16, deep": attention(tw.bf16, 128, (64, 32)),
    },
}
"""By the example's number, and what is particular of a case."""

TRAITS: dict[str, Case] = {
    "02, 32x32Xdl_4x2XdlPerWave_8K1": traits(
        "32x32Xdl_4x2XdlPerWave_8K1", "f16", (256, 128), is_optimized=False
    ),
    "02, 16x16Xdl_4x2XdlPerWave_8K1": traits(
        "16x16Xdl_4x2XdlPerWave_8K1", "bf16", (64, 64), is_optimized=False
    ),
    "02, 32x32Xdl_2x2XdlPerWave_4K1": traits(
        "32x32Xdl_2x2XdlPerWave_4K1", "f32", (128, 64), is_optimized=False
    ),
    "04, 32x32Xdl_4x2XdlPerWave_8K1": traits(
        "32x32Xdl_4x2XdlPerWave_8K1", "f16", (128, 128), is_optimized=True
    ),
    "04, 32x32Xdl_2x4XdlPerWave_16K1": traits(
        "32x32Xdl_2x4XdlPerWave_16K1", "i8", (64, 128), is_optimized=True
    ),
    "04, 16x16Xdl_2x2XdlPerWave_4K1": traits(
        "16x16Xdl_2x2XdlPerWave_4K1", "f16", (64, 64), is_optimized=True
    ),
}
"""By the example's number and the traits; gfx942 alone has these instructions."""
