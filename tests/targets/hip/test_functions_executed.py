"""Elementwise functions on AMD, executed from the compiler's listing, compared with the reference."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from tests.targets.elementary import VERBS, check, points
from tests.targets.hip.executed import launched
from tests.targets.hip.machine import machines
from tests.targets.hip.test_functions import FORMS, taken

import tilewright as tw
from tilewright.dtypes import dtype as dtype_named
from tilewright.functions.table import FUNCTIONS
from tilewright.lang.fragments import elementwise

pytestmark = pytest.mark.in_turns(3)


@tw.kernel(X="N", Z="N", Y="M")
def combined(X, Z, Y, *, names):
    x = tw.load(X.tile((64,), (0,)).partition((64,)))
    z = tw.load(Z.tile((64,), (0,)).partition((64,)))
    for at, name in enumerate(names):
        made = elementwise(name, *(x, z, x)[: FUNCTIONS[name].arity])
        tw.copy(made.to(Y.dtype), Y.tile((64,), (at,)))


def numbers(dtype: tw.DType) -> np.ndarray:
    random = np.random.default_rng(0)
    if dtype.is_float:
        return (random.standard_normal(64) * 3).astype(dtype.numpy)
    info = np.iinfo(dtype.numpy)
    found = random.integers(info.min, info.max, 64, dtype=dtype.numpy, endpoint=True)
    found[:20] = np.arange(1, 21)
    return np.where(found == 0, 3, found).astype(dtype.numpy)


CASES = [("gfx1151", name) for name in ("f64", "f32", "i64", "i16", "u8")]
CASES += [("gfx942", name) for name in ("f32", "bf16", "f8e4m3", "i64", "u16")]


@pytest.mark.in_turns(2)
@pytest.mark.parametrize(("arch", "name"), CASES)
def test_every_function_is_executed(arch: str, name: str) -> None:
    dtype = dtype_named(name)
    names = [form for form in FORMS if taken(form, name)]
    assert len(names) >= 12
    x = numbers(dtype)
    z = np.roll(x, 7).copy()
    found, meant = (np.full(64 * len(names), np.nan, np.float32) for _ in range(2))
    bound = combined.bind(names=tuple(names))
    launched(bound, arch, {"X": x, "Z": z, "Y": found})
    assert bound(x, z, meant, target="reference").target == "reference"
    for form, one, other in zip(names, found.reshape(-1, 64), meant.reshape(-1, 64), strict=True):
        row = FUNCTIONS[form]
        scale = np.abs(x.astype(np.float64)) if row.of_operand else np.abs(other)
        rounded = 0.0 if row.ulp == 0 or not dtype.is_float else float(ml_dtypes.finfo(dtype.numpy).eps)
        bound_of = np.nan_to_num(scale) * (row.ulp * 2.0**-23 + rounded)
        with np.errstate(invalid="ignore"):
            near = np.abs(one - other) <= bound_of
        assert np.all(near | (one == other) | (np.isnan(one) & np.isnan(other))), form


@tw.kernel(X="N", Y="P N")
def each(X, Y, *, names):
    n = tw.block_index(tw.ceil_div(X.shape[0], 64))
    x = tw.load(X.tile((64,), (n,)).partition((64,)))
    for at, name in enumerate(names):
        tw.copy(VERBS[name](x), Y[at].tile((64,), (n,)))


@pytest.mark.parametrize(
    ("target", "dtype"),
    [("gfx942", tw.f32), ("gfx1151", tw.f64), ("gfx942 older", tw.f64), ("gfx1151 older", tw.f32)],
    ids=str,
)
def test_functions_are_within_their_bounds(target: str, dtype: tw.DType) -> None:
    """Two compilers, numbers of all magnitudes; functions that no AMD compiler provides are included."""
    x = points(dtype, 200)
    y = np.full((len(VERBS), x.size), 7, dtype.numpy)
    with machines():
        assert each.bind(names=tuple(VERBS))(x, y, target=target).target == target
    check(dtype, x, y)
