"""Conversions in HIP text, executed and compared with the reference."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.dtypes import dtype as dtype_named
from tilewright.errors import DTypeError, TraceError
from tilewright.functions.table import COMPLEX, CONVERSION, FUNCTIONS, TAKE
from tilewright.lang.fragments import elementwise

from .executed import launched

DTYPES = ("f64", "f32", "f16", "bf16", "f8e4m3", "f8e5m2", "i64", "u64", "i32", "u32", "i16", "i8", "u8")
OTHERS = {*CONVERSION, TAKE, "select", *(row.name for row in COMPLEX)}
FORMS = [name for name in FUNCTIONS if name not in OTHERS]


@tw.kernel(X="N", Y="M")
def applied(X, Y, *, names):
    x = tw.load(X.tile((64,), (0,)).partition((64,)))
    for at, name in enumerate(names):
        made = elementwise(name, *(x for _ in range(FUNCTIONS[name].arity)))
        tw.copy(made.to(Y.dtype), Y.tile((64,), (at,)))


def taken(name: str, dtype: str) -> bool:
    """Whether the language has a function for numbers of a dtype."""
    try:
        applied.trace(tw.like(dtype, 64), tw.like("f32", 64), names=(name,))
    except (TraceError, DTypeError):
        return False
    return True


@tw.kernel(X="N", Y="M")
def converted(X, Y, *, dtypes):
    x = tw.load(X.tile((64,), (0,)).partition((64,)))
    for at, dtype in enumerate(dtypes):
        tw.copy(x.to(dtype_named(dtype)).to(Y.dtype), Y.tile((64,), (at,)))


def numbers(dtype: tw.DType) -> np.ndarray:
    """Return numbers of all sizes; for floats also ties, numbers out of range, infinities and NaN."""
    random = np.random.default_rng(3)
    if not dtype.is_float:
        info = np.iinfo(dtype.numpy)
        found = random.integers(info.min, info.max, 64, dtype.numpy, endpoint=True)
        found[:32] >>= np.arange(32).astype(dtype.numpy) * (dtype.bits // 32)
        return found
    found = random.standard_normal(64) * 2.0 ** random.integers(-30, 60, 64)
    found[:12] = [0.0, -0.0, np.inf, -np.inf, np.nan, 2.5, -1.5, 464.0, 65519.99, 65520.0, 2.0**31, 2.0**-25]
    with np.errstate(over="ignore"):
        return found.astype(dtype.numpy)


@pytest.mark.parametrize(("arch", "source"), [("gfx942", "f64"), ("gfx1151", "f32"), ("gfx942", "u64")])
def test_every_conversion_is_that_of_the_reference(arch: str, source: str) -> None:
    """The bits are equal: each conversion rounds once."""
    x, bound = numbers(dtype_named(source)), converted.bind(dtypes=DTYPES)
    found, meant = (np.full(64 * len(DTYPES), -1.0) for _ in range(2))
    launched(bound, arch, {"X": x, "Y": found})
    assert bound(x, meant, target="reference").target == "reference"
    for dtype, one, other in zip(DTYPES, found.reshape(-1, 64), meant.reshape(-1, 64), strict=True):
        same = (one == other) & (np.signbit(one) == np.signbit(other)) | np.isnan(one) & np.isnan(other)
        assert same.all(), (dtype, x[~same], one[~same], other[~same])
