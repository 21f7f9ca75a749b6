"""Activations: their differences, their rounding, and their small number of instructions."""

from __future__ import annotations

import re

import numpy as np
import pytest
from cuda.bindings import nvrtc

import tilewright as tw
from tilewright.dtypes import DType
from tilewright.targets.cuda.prelude import DIALECT

from .elementary import EXACT, points

TILE = 512


@tw.kernel(X="N", Y="P N")
def each(X, Y):
    n = tw.block_index(tw.ceil_div(X.shape[0], TILE))
    x = tw.load(X.tile((TILE,), (n,)).partition((32,)))
    made = tw.relu(x), tw.silu(x), tw.gelu(x), tw.gelu(x, approximate=True)
    for at, y in enumerate(made):
        tw.copy(y, Y[at].tile((TILE,), (n,)))


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("dtype", [tw.f32, tw.f64], ids=str)
@np.errstate(all="ignore")
def test_relu_is_exact_and_the_approximation_of_gelu_is_near(dtype: DType, target: str) -> None:
    x = points(dtype)
    x = x[~np.isnan(x)]
    y = np.full((4, x.size), 7, dtype.numpy)
    assert each(x, y, target=target).target == target
    np.testing.assert_array_equal(y[0], np.maximum(x, 0))
    wide = x.astype(np.longdouble)
    near = np.abs(wide) < 100
    assert np.all(np.abs(y[3] - EXACT["gelu"](wide))[near] <= 5e-4)
    finite = np.isfinite(x)
    assert np.array_equal(y[3][~near & finite], np.where(x > 0, x, 0)[~near & finite])


@pytest.mark.parametrize("dtype", [tw.f16, tw.bf16], ids=str)
def test_narrow_floats_are_rounded_once(dtype: DType) -> None:
    x = np.linspace(-6, 6, 400).astype(dtype.numpy)
    y, wide = np.empty((4, x.size), dtype.numpy), np.empty((4, x.size), np.float32)
    assert each(x, y, target="cpu").target == "cpu"
    assert each(x.astype(np.float32), wide, target="cpu").target == "cpu"
    np.testing.assert_array_equal(y, wide.astype(dtype.numpy))


def instructions(function: str) -> list[str]:
    """Return the PTX instructions of a function of one f32, between the load and the store."""
    pieces = "\n".join(DIALECT.before([function], {}))
    text = f'{pieces}\nextern "C" __global__ void f(float* x) {{ *x = {function}(*x); }}'
    _, program = nvrtc.nvrtcCreateProgram(text.encode(), b"f.cu", 0, [], [])
    options = [b"--gpu-architecture=compute_90a", b"--fmad=false"]
    assert nvrtc.nvrtcCompileProgram(program, len(options), options) == (nvrtc.nvrtcResult.NVRTC_SUCCESS,)
    ptx = b" " * nvrtc.nvrtcGetPTXSize(program)[1]
    nvrtc.nvrtcGetPTX(program, ptx)
    nvrtc.nvrtcDestroyProgram(program)
    body = ptx.decode().partition("ld.global.f32")[2].partition("st.global.f32")[0]
    # Negations and constants are parts of other instructions.
    return [op for op in re.findall(r"^\s*([a-z]\w*[.\w]*)\s", body, re.M) if not re.match(r"mov|neg", op)]


@pytest.mark.parametrize(
    ("function", "most"),
    [("fast_silu", 6), ("fast_gelu_tanh", 8), ("fast_gelu", 13), ("fast_sigmoid", 11), ("rsqrtf", 1)],
)
def test_they_take_few_instructions_and_no_branch_on_a_gpu(function: str, most: int) -> None:
    found = instructions(function)
    assert 0 < len(found) <= most, found
    assert not [op for op in found if re.match(r"bra|call|div|setp|@", op)], found
