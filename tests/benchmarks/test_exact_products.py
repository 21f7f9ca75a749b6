"""Reference products for errors of f64, compared with exact fractions."""

from __future__ import annotations

import importlib
import sys
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from .test_benchmarks import HERE


@pytest.fixture
def exact_products(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(HERE), *sys.path])
    return importlib.import_module("exact_products")


def operands() -> tuple[Any, Any]:
    """Factors of any size along each sum; most products cancel."""
    rng = np.random.default_rng(0)
    unit = np.exp2(rng.integers(-30, 31, 24))
    a, b = rng.standard_normal((5, 24)) * unit, rng.standard_normal((24, 4)) / unit[:, None]
    return np.hstack([a, -a]), np.vstack([b, b * (1 + 2.0**-40)])


def test_products_have_twice_the_bits(exact_products: Any) -> None:
    a, b = operands()
    high, low = exact_products.exact_product(a, b)
    for m, n in np.ndindex(high.shape):
        want = sum(Fraction(x) * Fraction(y) for x, y in zip(a[m], b[:, n], strict=True))
        size = float(np.abs(a[m]) @ np.abs(b[:, n]))
        assert abs(float(Fraction(high[m, n]) + Fraction(low[m, n]) - want)) <= 48**2 * 2.0**-105 * size
    off, _ = exact_products.off_by(a @ b, a, b, is_wide=True)
    assert 0 < np.abs(off).max() <= 48 * 2.0**-53 * (np.abs(a) @ np.abs(b)).max()


def test_both_parts_of_a_complex_product(exact_products: Any) -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal(shape) + 1j * rng.standard_normal(shape) for shape in ((3, 7), (7, 2)))
    pairs = exact_products.parts_of_product((a.real, a.imag), (b.real, b.imag), np.concatenate)
    for (x, y), want in zip(pairs, ((a @ b).real, (a @ b).imag), strict=True):
        np.testing.assert_allclose(x @ y, want, rtol=1e-13)
