"""The matrices of examples, tests and the command line."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import tilewright as tw
from tilewright.checking.sample import INITS, laid_out, operands

DTYPES = (tw.f64, tw.f32, tw.f16, tw.bf16, tw.f8e4m3, tw.f8e5m2, tw.i8)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("init", ["random", "integers"])
def test_extents_dtypes_and_seeds(init: str, dtype: tw.DType) -> None:
    made = operands(init, dtype, (5, 6, 7), seed=3)
    assert made.a.shape, made.b.shape == ((5, 7), (7, 6))
    assert made.shape == (5, 6, 7)
    assert made.a.dtype == made.b.dtype == dtype.numpy
    again, other = operands(init, dtype, (5, 6, 7), seed=3), operands(init, dtype, (5, 6, 7), seed=4)
    assert made.a.tobytes() == again.a.tobytes()
    assert made.a.tobytes() != other.a.tobytes()
    assert made.a.tobytes() != made.b.tobytes()


def test_random_numbers_are_normal() -> None:
    made = operands("random", tw.f32, (300, 300, 300))
    assert abs(float(made.a.mean())) < 0.02
    assert abs(float(made.a.std()) - 1) < 0.02
    assert len(np.unique(operands("random", tw.i8, (300, 300, 300)).a)) > 100


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_integers_are_whole_and_every_dtype_holds_them(dtype: tw.DType) -> None:
    values = set(operands("integers", dtype, (50, 50, 50)).a.astype(np.float64).ravel())
    assert values == {float(i) for i in range(-4, 5)}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_elevations_and_their_products_stay_in_range(dtype: tw.DType) -> None:
    made = operands("elevation", dtype)
    assert made.shape == (344, 344, 403)
    assert np.array_equal(made.a.astype(np.float64), made.b.T.astype(np.float64))
    product = made.a.astype(np.float64) @ made.b.astype(np.float64)
    out = tw.f16 if dtype.bits == 8 and dtype.is_float else dtype
    assert np.isfinite(product.astype(out.numpy).astype(np.float64)).all()
    assert (made.a.astype(np.float64) > 0).all()
    unit = {"kilometres": 1e3, "decametres": 10.0, "metres": 1.0}[made.about.split()[2].rstrip(":")]
    heights = unit * made.a.astype(np.float64)
    assert 200 < heights.min() < 300
    assert 1000 <= heights.max() < 1150


def test_letters_say_how_matrices_are_stored() -> None:
    for layout in ("nn", "nt", "tn", "tt"):
        made = operands("random", tw.f32, (5, 6, 7), layout=layout)
        plain = operands("random", tw.f32, (5, 6, 7))
        assert np.array_equal(made.a, plain.a)
        assert np.array_equal(made.b, plain.b)
        assert (made.a.flags.c_contiguous, made.b.flags.c_contiguous) == (layout[0] == "n", layout[1] == "n")
    assert laid_out(np.zeros((2, 3)), "n").strides == (24, 8)


def test_what_cannot_be() -> None:
    with pytest.raises(tw.LaunchError, match="own shape"):
        operands("elevation", tw.f32, (1, 2, 3))
    with pytest.raises(tw.LaunchError, match="M N K"):
        operands("random", tw.f32)
    with pytest.raises(tw.LaunchError, match=", ".join(INITS)):
        operands("zeros", tw.f32, (1, 2, 3))
    with pytest.raises(tw.DTypeError, match="c64"):
        operands("elevation", tw.c64)


def test_without_matplotlib_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(tw.ToolchainError, match=r"pip install 'tilewright\[plot\]'"):
        operands("elevation", tw.f32)
