"""A convolution is a GEMM whose A is a view of the image: `Tensor.im2col` equals plain loops."""

from __future__ import annotations

import itertools
import math
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.problems.window_problems import WindowProblem, depthwise, grouped
from tests.runtime.fake_gpu import OnGpu
from tests.runtime.fake_gpu import gpu as gpu  # a fixture

import tilewright as tw
from tilewright.runtime.arrays import describe
from tilewright.runtime.backends import backend_named
from tilewright.runtime.binding import spec_of
from tilewright.targets.atoms import fma

pytestmark = pytest.mark.in_turns(3)

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


@pytest.mark.parametrize("target", ["reference", "cpu", "cuda"])
@pytest.mark.parametrize(
    ("extents", "taps", "padding", "named"),
    [
        ((4,), (5,), 0, (5, 9, 4, 4, 5)),
        ((9, 2), (3, 4), 1, (4, 7, 2, 4, 5)),
        ((9, 9, 5), (2, 3, 7), 3, (7, 13, 5, 11, 8)),
    ],
)
def test_a_filter_that_does_not_fit_is_refused_before_anything_is_compiled(
    extents: Any, taps: Any, padding: int, named: Any, target: str, monkeypatch: pytest.MonkeyPatch, gpu: Any
) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("compiled")

    monkeypatch.setattr(type(backend_named(target)), "compile", never)
    filter_, reach, extent, padded, nearest = named
    arrays = [
        np.zeros(shape, np.float32) for shape in ((2, *extents, 5), (7, 5 * int(np.prod(taps))), (1, 7))
    ]
    if target == "cuda":
        arrays = [OnGpu(array) for array in arrays]
    message = (
        f"kernel convolution: a filter of {filter_} with dilation 2 spans {reach} elements; "
        f"the extent {extent} has {padded} with its padding; nearest legal padding: {nearest} in all"
    )
    geometry = {"stride": 1, "dilation": 2, "padding": padding}
    with pytest.raises(tw.LaunchError) as refused:
        convolution(*arrays, taps=taps, **geometry, target=target)
    assert str(refused.value) == message


def test_a_filter_that_fits_one_class_of_images_is_still_refused_for_another() -> None:
    """One compiled kernel serves both; the launcher checks each new extent."""
    w, geometry = np.ones((7, 45), np.float32), {"stride": 1, "dilation": 1, "padding": 0}
    bound = convolution.bind(taps=(3, 3), **geometry)
    bound(np.ones((2, 5, 3, 5), np.float32), w, np.ones((6, 7), np.float32), target="cpu")
    with pytest.raises(tw.LaunchError, match="the extent 1 has 1 with its padding"):
        bound(np.ones((2, 5, 1, 5), np.float32), w, np.ones((6, 7), np.float32), target="cpu")
    kernel = bound.trace(np.ones((2, 5, 3, 5), np.float32), w, np.ones((6, 7), np.float32))
    assert len(kernel.guards) == 2
    text = tw.ir.print_kernel(kernel)
    assert tw.ir.parse_kernel(text).guards == kernel.guards


EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "05_im2col.py"))


def naive(image: Any, taps: Any, stride: Any, dilation: Any, padding: Any) -> Any:
    """Compute element by element, from the definition."""
    images, *extents, groups, channels = image.shape
    pairs = list(zip(extents, taps, stride, dilation, padding, strict=True))
    outputs = [(n + sum(pad) - gap * (tap - 1) - 1) // step + 1 for n, tap, step, gap, pad in pairs]
    matrix = np.zeros((groups, images, *outputs, *taps, channels), image.dtype)
    for group, n, *at in itertools.product(range(groups), range(images), *map(range, (*outputs, *taps))):
        out, tap = at[:3], at[3:]
        where = [o * p[2] + t * p[3] - p[4][0] for o, t, p in zip(out, tap, pairs, strict=True)]
        if all(0 <= w < extent for w, extent in zip(where, extents, strict=True)):
            matrix[(group, n, *at)] = image[(n, *where, group)]
    rows = images * int(np.prod(outputs))
    return matrix.reshape(groups, rows, int(np.prod(taps)) * channels)


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize(
    ("shape", "taps", "stride", "dilation", "padding", "vector"),
    [
        ((1, 3, 3, 3, 1, 4), (3, 3, 3), (1, 1, 1), (1, 1, 1), ((0, 0),) * 3, 4),
        ((2, 5, 4, 6, 2, 8), (3, 2, 3), (2, 1, 3), (1, 3, 1), ((1, 1), (0, 2), (3, 0)), 4),
        ((3, 4, 6, 5, 3, 5), (2, 3, 1), (1, 2, 2), (2, 1, 4), ((0, 1), (2, 2), (1, 0)), 1),
        ((1, 1, 1, 9, 2, 3), (1, 1, 4), (1, 1, 2), (1, 1, 2), ((0, 0), (0, 0), (2, 3)), None),
        ((2, 7, 1, 1, 1, 12), (4, 1, 1), (3, 1, 1), (1, 1, 1), ((2, 1), (0, 0), (0, 0)), 4),
    ],
)
def test_the_example_against_the_definition(
    shape: Any, taps: Any, stride: Any, dilation: Any, padding: Any, vector: Any, target: str
) -> None:
    image = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    expected = naive(image, taps, stride, dilation, padding)
    matrix = np.full(expected.shape, np.nan, np.float32)
    bound = EXAMPLE["im2col"].bind(
        taps=taps,
        tile=(32, 64),
        threads=(8, 16),
        vector=vector,
        stride=stride,
        dilation=dilation,
        padding=padding,
    )
    assert bound(image, matrix, target=target).target == target
    np.testing.assert_array_equal(matrix, expected)


@pytest.mark.parametrize(
    ("choices", "channels", "rule", "nearest"),
    [
        ({"vector": 4}, 6, "vector width", "vector=2"),
        ({"vector": 8}, 64, "vector width", "vector=4"),
        ({"threads": (8, 5)}, 64, "threads x slice = tile", "threads=(8, 4)"),
        ({"tile": (30, 64), "threads": (8, 16)}, 64, "threads x slice = tile", "threads=(6, 16)"),
    ],
)
def test_an_illegal_im2col_is_refused_with_the_nearest_legal_choice(
    choices: Any, channels: int, rule: str, nearest: str
) -> None:
    image = np.zeros((1, 3, 3, 3, 1, channels), np.float32)
    matrix = np.zeros((1, 1, 27 * channels), np.float32)
    bound = EXAMPLE["im2col"].bind(**{**EXAMPLE["LARGE"].constants, **choices})
    with pytest.raises(tw.LegalityError) as caught:
        bound(image, matrix, target="cpu")
    assert rule in str(caught.value)
    assert f"nearest legal choice: {nearest}" in str(caught.value)
    assert "05_im2col.py:" in str(caught.value)


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_the_example_refuses_a_filter_that_does_not_fit(target: str) -> None:
    image, matrix = np.ones((1, 3, 2, 3, 1, 4), np.float32), np.full((1, 1, 108), np.nan, np.float32)
    with pytest.raises(tw.LaunchError, match="spans 3 elements; the extent 2 has 2 with its padding"):
        EXAMPLE["LARGE"](image, matrix, target=target)
    assert np.isnan(matrix).all()


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ((2, 49, 216), "Y's second extent must be N times the positions of the filter"),
        ((2, 47, 216), "Y's second extent"),
        ((2, 48, 224), "Y's third extent must be the taps times the channels of a group"),
        ((1, 48, 216), "G is 2 in X"),
    ],
)
def test_the_example_refuses_a_matrix_of_another_geometry(shape, said) -> None:
    image = np.zeros(EXAMPLE["SMALL"], np.float32)
    with pytest.raises(tw.LaunchError, match=said):
        EXAMPLE["LARGE"](image, np.zeros(shape, np.float32), target="reference")
    EXAMPLE["LARGE"](image, np.zeros((2, 48, 216), np.float32), target="reference")


# ---------------------------------------------------------------- windows and groups in dataflow kernels


def test_the_launcher_checks_that_groups_divide_the_channels() -> None:
    made = WindowProblem("grouped", (2, 7, 6, 24), (3, 2), (1, 1, 1), 3, 5, "f32", 0)
    draw = np.random.default_rng(0)
    x, f = (draw.standard_normal(shape).astype(np.float32) for shape in ((2, 7, 6, 24), (3, 5, 48)))
    y = np.empty((2 * math.prod(made.positions), 3, 5), np.float32)
    bound = grouped.bind(taps=made.taps, how=made.how, groups=3)
    bound(x, f, y, target="cpu")
    seen = made.seen(x).reshape(len(y), 6, 3, 8).transpose(2, 0, 1, 3).reshape(3, len(y), 48)
    assert np.allclose(y, np.einsum("gpk,gok->pgo", seen, f), rtol=0, atol=1e-4)
    with pytest.raises(tw.LaunchError, match="3 groups do not divide 25 channels; 1 are left over"):
        bound(np.zeros((2, 7, 6, 25), np.float32), f, y, target="cpu")


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize(("target", "arch"), [("cuda", "sm_90a"), ("cuda", "sm_80"), ("hip", "gfx942")])
def test_depthwise_loads_are_wide(target: str, arch: str, dtype: str) -> None:
    given = [tw.like(dtype, shape) for shape in ((32, 28, 28, 384), (7, 7, 384), (32, 28, 28, 384))]
    bound = depthwise.bind(how=(1, 1, 3))
    schedule = bound.schedule_for(*given, target=target, arch=arch)
    made = bound.compile(*given, target=target, arch=arch)
    assert schedule.atom.shape[1] * 2 % (128 // tw.dtype(dtype).bytes) == 0  # whole sectors of a row
    assert schedule.tile[0] == 28  # no row of a tile lies outside
    assert "16 bytes at a time" in made.source
    assert "quotient(" not in made.source.partition("__global__")[2]
    if target == "cuda":
        assert made.resources["spill_store_bytes"] == made.resources["stack_bytes"] == 0
