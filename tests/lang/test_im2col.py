"""A convolution is a GEMM whose A is a view of the image: `Tensor.im2col`, against plain loops."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.runtime.arrays import describe
from tilewright.runtime.specialise import spec_of
from tilewright.targets.atoms import fma

MMA = tw.TiledMma(fma(tw.f32), warps=(1, 1), repeats=(4, 4))
TILE_M, TILE_N, _ = MMA.tile
TILE_K = 16


@tw.kernel
def convolution(X, W, Y, *, taps, stride, dilation, padding):
    """Y (N*outputs, F) = im2col(X (N, spatial..., C)) @ W (F, taps*C).T"""
    spatial = tuple(range(1, 1 + len(taps)))
    A = X.im2col(spatial, taps, stride=stride, dilation=dilation, padding=padding)
    m, n = tw.block_index(tw.ceil_div(Y.shape, (TILE_M, TILE_N)))
    sA = tw.shared((TILE_M, TILE_K), X.dtype)
    sW = tw.shared((TILE_N, TILE_K), W.dtype)
    acc = tw.accumulator(MMA)
    for k in tw.range(tw.ceil_div(W.shape[1], TILE_K), provenance="mainloop"):
        tw.copy(A.tile((TILE_M, TILE_K), (m, k)), sA, threads=(4, 8), vector=1)
        tw.copy(W.tile((TILE_N, TILE_K), (n, k)), sW, threads=(4, 8), vector=1)
        tw.barrier()
        tw.mma(sA, sW, acc)
        tw.barrier()
    tw.copy(acc, Y.tile((TILE_M, TILE_N), (m, n)))


def gather(x: Any, taps: Any, stride: int, dilation: int, padding: int) -> Any:
    rank = len(taps)
    padded = np.pad(x, [(0, 0), *[(padding, padding)] * rank, (0, 0)])
    outputs = [
        (n - dilation * (t - 1) - 1) // stride + 1 for n, t in zip(padded.shape[1:-1], taps, strict=True)
    ]
    return np.stack(
        [
            np.concatenate(
                [
                    padded[n, *(o * stride + t * dilation for o, t in zip(out, tap, strict=True))]
                    for tap in itertools.product(*map(range, taps))
                ]
            )
            for n in range(len(x))
            for out in itertools.product(*map(range, outputs))
        ]
    )


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize(
    ("extents", "taps", "stride", "dilation", "padding"),
    [
        ((37,), (3,), 1, 1, 1),
        ((9, 11), (3, 2), 2, 1, 1),
        ((9, 8), (3, 3), 1, 2, 0),
        ((5, 6, 4), (2, 3, 2), 1, 1, 1),
    ],
    ids=str,
)
def test_convolutions(extents: Any, taps: Any, stride: int, dilation: int, padding: int, target: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(-3, 4, (2, *extents, 5)).astype(np.float32)
    matrix = gather(x, taps, stride, dilation, padding)
    w = rng.integers(-3, 4, (7, matrix.shape[1])).astype(np.float32)
    y = np.full((len(matrix), 7), np.nan, np.float32)
    ran = convolution(x, w, y, taps=taps, stride=stride, dilation=dilation, padding=padding, target=target)
    assert ran.target == target
    assert np.array_equal(y, matrix @ w.T)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_its_text_compiles_for_gpus(arch: str) -> None:
    arrays = (np.zeros(shape, np.float32) for shape in ((2, 9, 8, 5), (7, 45), (126, 7)))
    specs = (spec_of(describe(array)) for array in arrays)
    made = convolution.compile(*specs, taps=(3, 3), stride=1, dilation=1, padding=1, target="cuda", arch=arch)
    assert (made.target, made.arch, made.resources["spill_store_bytes"]) == ("cuda", arch, 0)


def test_dimensions_that_are_not_all_named() -> None:
    x, w, y = np.zeros((2, 9, 9, 5)), np.zeros((7, 15)), np.zeros((14, 7))
    with pytest.raises(
        tw.TraceError, match=r"do not name each of the 4 dimensions once\n  at test_im2col.py"
    ):
        convolution(x, w, y, taps=(3,), stride=1, dilation=1, padding=0, target="reference")
