"""`gram`: every element is within its bound, both triangles are written, and illegal calls are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.schedule.forms import FORMS
from tests.turns import calls_on

import tilewright as tw
from tilewright.checking.compare import Accumulation, gemm_bound
from tilewright.ops.gram import gram, symmetric

DTYPES = {"f16": tw.f16, "bf16": tw.bf16, "f32": tw.f32, "f64": tw.f64}


def problem(seed: int, kind: str) -> tuple[Any, Any, Any, float]:
    """Return random rows with gaps, a result full of NaN with gaps, all of its memory, and alpha."""
    draw = np.random.default_rng(seed)
    batch = [(), (), (3,), (2, 2)][seed % 4]
    rows, depth, gap = (int(draw.integers(low, 90)) for low in (1, 0, 0))
    wide = np.zeros((*batch, rows, depth + gap), DTYPES[kind].numpy)
    wide[...] = draw.standard_normal(wide.shape).astype(wide.dtype)
    a = wide[..., :depth]
    around = np.full((*batch, rows + 2, rows + gap), np.nan, wide.dtype)
    return a, around[..., 1:-1, :rows], around, float(draw.choice([1.0, 0.5, -2.0]))


def assert_right(a: Any, made: Any, alpha: float, how: Any = None) -> None:
    """Check that every element is within the bound of its sum and of one rounding of the result."""
    kind = tw.dtype(made.dtype)
    sums = tw.f64 if kind == tw.f64 else tw.f32
    how = how or Accumulation.default(sums)
    for one, found in zip(a.reshape(-1, *a.shape[-2:]), made.reshape(-1, *made.shape[-2:]), strict=True):
        exact = alpha * (one.astype(np.longdouble) @ one.astype(np.longdouble).T)
        bound = abs(alpha) * np.asarray(gemm_bound(one, one.T, how, sums)[2], np.longdouble)
        bound = bound + 2 * kind.unit_roundoff * (np.abs(exact) + bound) + 1e-7 * (kind == tw.f16)
        assert (np.abs(found - exact) <= bound).all(), float((np.abs(found - exact) / bound).max())


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_random_rows(target: str, kind: str, seed: int) -> None:
    a, out, around, alpha = problem(seed, kind)
    for _ in calls_on(target):
        out[...] = np.nan
        assert gram(a, out, alpha=alpha, target=target) is out
        assert_right(a, out, alpha)
    assert np.isfinite(around.astype(np.float64)).sum() == out.size, "memory around the result"
    made = gram(a, alpha=alpha, target=target)
    assert np.array_equal(made, out)


@pytest.mark.parametrize("name", ["persistent", "cooperative", "ping-pong", "double", "fragments"])
def test_schedules(name: str) -> None:
    a, _, _, _ = problem(1, "f16")
    a = np.tile(a, (4, 4))
    schedule = FORMS[name]
    made = gram(a, schedule=schedule, out_dtype="f32", target="reference")
    assert_right(a, made, 1.0, Accumulation.of(schedule.atom))


def test_complex_rows_are_conjugated() -> None:
    draw = np.random.default_rng(2)
    a = (draw.standard_normal((20, 30)) + 1j * draw.standard_normal((20, 30))).astype(np.complex64)
    for target in ("reference", "cpu"):
        made = gram(a, alpha=0.5, target=target)
        wide = a.astype(np.complex128)
        assert np.abs(made - 0.5 * wide @ wide.conj().T).max() < 30 * 64 * 2.0**-23
        assert (made.diagonal().real > 0).all()


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        (lambda: gram(np.ones(3, np.float32), target="cpu"), tw.LaunchError, "a matrix"),
        (lambda: gram(np.ones((3, 3), np.int8), target="cpu"), tw.DTypeError, "gram of i8"),
        (
            lambda: gram(np.ones((3, 3), np.float32), np.ones((3, 4), np.float32), target="cpu"),
            tw.LaunchError,
            r"\(3, 3\)",
        ),
    ],
)
def test_refused(given: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        given()


def test_a_result_that_is_its_operand_is_refused() -> None:
    a = np.ones((4, 4), np.float32)
    with pytest.raises(tw.LaunchError, match="share memory"):
        gram(a, a, target="cpu")


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "gfx942", "gfx1100"])
def test_half_of_the_tiles_without_spills(arch: str) -> None:
    target = "hip" if arch.startswith("gfx") else "cuda"
    bound = symmetric(0, tw.f32).bind(precision="exact", terms=frozenset())
    given = tw.like(tw.bf16, 4096, 2048), tw.like(tw.bf16, 2048, 4096, order="F")
    compiled = bound.compile(*given, tw.like(tw.bf16, 4096, 4096), 1.0, target=target, arch=arch)
    spilled = "spilled_registers" if target == "hip" else "spill_store_bytes"
    assert compiled.resources[spilled] == 0


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "gfx942", "gfx1100"])
@pytest.mark.parametrize("kind", [tw.bf16, tw.f16, tw.f32], ids=str)
def test_every_chosen_schedule_is_legal(arch: str, kind: Any) -> None:
    """`schedule_for` refuses an illegal choice; extents are random, and some are 2048 or more."""
    bound = symmetric(0, tw.f32).bind(precision="exact", terms=frozenset())
    draw = np.random.default_rng(3)
    for rows in (2048, 8192, *(int(x) for x in np.exp(draw.uniform(5, 9.5, 6)))):
        depth = int(draw.integers(1, 500)) * int(draw.choice([1, 8]))
        given = tw.like(kind, rows, depth), tw.like(kind, depth, rows, order="F"), tw.like(kind, rows, rows)
        target = "hip" if arch.startswith("gfx") else "cuda"
        made = bound.schedule_for(*given, 1.0, target=target, arch=arch)
        assert made is not None
        high, wide = made.tile[:2]
        assert max(high, wide) % min(high, wide) == 0, made


def test_a_batch_of_sums_without_terms_is_zero() -> None:
    out = np.full((2, 3, 3), np.nan, np.float32)
    tw.gram(np.empty((2, 3, 0), np.float32), out, target="reference")
    assert not out.any()
