"""The ladder's programs as the examples define them, each with arrays and its expected result."""

from __future__ import annotations

import runpy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.ir.kernel import Kernel

EXAMPLES = Path(__file__).parents[3] / "examples"


def example(number: str) -> dict[str, Any]:
    """Return the names that an example defines."""
    [path] = EXAMPLES.glob(f"{number}_*.py")
    return runpy.run_path(str(path))


_LEVELS, _FUSED, _ATTENTION = example("07"), example("08"), example("09")
GEMMS = {
    "basic_gemm": example("02")["LARGE"],
    "optimized_gemm": example("04")["LARGE"],
    "warp_tiles_gemm": example("06")["BOUND"][tw.f16],
    **{level.name: _LEVELS["bind"](level) for level in _LEVELS["LEVELS"]},
    "prefetched, wide": _LEVELS["bind"](_LEVELS["prefetched"], tile=(128, 256, 32), warps=(2, 4)),
}
WIDE = ("basic_gemm", "optimized_gemm")
"""They read eight elements along K at once."""
NAMES = (*GEMMS, "fused_gemms", "attention 64", "attention 128")


@dataclass(frozen=True)
class Case:
    """A kernel on arrays.

    Args:
        kernel: traced for the arrays.
        arguments: by name; outputs hold NaN.
        result: the output among them.
        expected: what it must hold, in float64.
        bound: how far each element may be off.
    """

    kernel: Kernel
    arguments: dict[str, Any]
    result: str
    expected: np.ndarray
    bound: np.ndarray

    def check(self) -> None:
        """Check that every element of the result is within its bound."""
        found = self.arguments[self.result].astype(np.float64)
        assert np.isfinite(found).all()
        error = np.abs(found - self.expected)
        assert (error <= self.bound).all(), f"{np.max(error - self.bound)} past the bound"


def case(name: str, extent: int) -> Case:
    """Return a program on arrays of about ``extent`` in each direction; no tile divides an odd extent."""
    if name in GEMMS:
        depth = extent + 4 * (extent % 2)
        return _gemm(name, (extent, extent + 2 * (extent % 2), -(-depth // 8) * 8 if name in WIDE else depth))
    if name == "fused_gemms":
        return _fused((extent, extent + 2 * (extent % 2), extent + 4 * (extent % 2), extent))
    return _attention(extent, int(name.split()[1]))


def random(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Return f16 numbers in [-1, 1); rows begin at multiples of 16 bytes, with NaN in between."""
    *lead, columns = shape
    made = np.full((*lead, -(-columns // 8) * 8), np.nan, np.float16)[..., :columns]
    made[...] = np.random.default_rng(seed).uniform(-1, 1, shape)
    return made


def blank(shape: tuple[int, ...], dtype: type) -> np.ndarray:
    """Return NaN, with the strides of `random`."""
    *lead, columns = shape
    return np.full((*lead, -(-columns // 8) * 8), np.nan, dtype)[..., :columns]


def _product(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return A Bᵀ, and the error bound of sums of K rounded products in f32."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    return a @ b.T, (a.shape[1] + 1) * 2.0**-24 * (np.abs(a) @ np.abs(b).T)


def _rounded(value: np.ndarray, bound: np.ndarray) -> np.ndarray:
    """Return the bound after one rounding to f16."""
    return bound + 2.0**-11 * (np.abs(value) + bound) + 2.0**-25


def _gemm(name: str, shape: tuple[int, int, int]) -> Case:
    m, n, k = shape
    a, b = random((m, k), 1), random((n, k), 2)
    out = blank((m, n), np.float16)
    expected, bound = _product(a, b)
    arguments = {"A": a, "B": b, "C": out}
    return Case(GEMMS[name].trace(a, b, out), arguments, "C", expected, _rounded(expected, bound))


def _fused(shape: tuple[int, int, int, int]) -> Case:
    m, n, k, p = shape
    a, b, c = random((m, k), 1), random((n, k), 2), random((p, n), 3)
    out = blank((m, p), np.float32)
    inner, inner_bound = _product(a, b)
    _, outer_bound = _product(np.abs(inner) + inner_bound, c)
    size = np.abs(c).astype(np.float64).T
    bound = _rounded(inner, inner_bound) @ size + 1.01 * outer_bound
    arguments = {"A": a, "B": b, "C": c, "D": out}
    kernel = _FUSED["bound"]("f16").trace(a, b, c, out)
    return Case(kernel, arguments, "D", inner @ c.astype(np.float64).T, bound)


def _attention(extent: int, depth: int) -> Case:
    lengths = (extent, extent + 9, extent + 9)
    q, k, v = (random((1, 2, rows, depth), seed) for seed, rows in enumerate(lengths))
    out = blank(q.shape, np.float16)
    kernel = _ATTENTION["bound"]("f16", depth, causal=True).trace(q, k, v, out, 0.5, 3)
    arguments = {"Q": q, "K": k, "V": v, "O": out, "scale": np.float32(0.5), "shift": 3}
    softmax = tw.testing.softmax_attention
    expected, size = (softmax(q, k, values, 0.5, 3) for values in (v, np.abs(v)))
    # Weights are rounded to f16; scores are sums in f32, and their error is that of the exponent.
    scores = 2.0**-24 * (depth + 2) * 0.5 * depth
    bound = (2.0**-10 + 4 * scores + 2.0**-24 * (2 * extent + 64)) * size
    return Case(kernel, arguments, "O", expected, _rounded(expected, bound))
