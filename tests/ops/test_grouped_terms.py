"""Terms of grouped products, and positions along groups: whole numbers, so each element is exact."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.turns import calls_on

import tilewright as tw
from tilewright.ops.ending import LateTerms
from tilewright.ops.products import grouped
from tilewright.schedule.schedule import Schedule
from tilewright.testing import device_get, device_put

Array = np.ndarray[Any, Any]
ALL_TARGETS = pytest.mark.parametrize(
    "target", ["reference", "cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
)
ROWS, DEPTH, COLUMNS = 137, 19, 41
ENDS = np.int32([5, 5, 100, 130])
SEED, OFFSET = 5, 7


def whole(rng: np.random.Generator, *shape: int, kind: str = "f32") -> Array:
    return rng.integers(-3, 4, shape).astype(tw.dtype(kind).numpy)


def kept() -> Array:
    """Return which elements dropout keeps, by their numbers in the whole result."""
    return tw.testing.philox(np.arange(ROWS * COLUMNS).reshape(ROWS, COLUMNS), SEED, OFFSET) >= 2**31


def by_numpy(a: Array, b: Array, out: Array, terms: dict[str, Any]) -> Array:
    """Return every row of a group in f64; other rows of ``out`` stay unchanged."""
    made, begin = out.astype(np.float64), 0
    beta = terms.get("beta", 1.0)
    added = terms.get("c", out if "beta" in terms else np.zeros(1))
    wide = {
        name: np.broadcast_to(np.float64(one), out.shape)
        for name, one in {"c": added, "multiply": terms.get("multiply", 1), "residual": 0, **terms}.items()
        if name in ("c", "multiply", "residual")
    }
    for group, end in enumerate(ENDS):
        rows = slice(begin, end)
        sums = a[rows].astype(np.float64) @ b[group].astype(np.float64)
        value = terms.get("alpha", 1.0) * sums + (beta * wide["c"][rows] if beta else 0)
        value = value + (terms["bias"][group] if "bias" in terms else 0)
        value = np.maximum(value, 0) if "activation" in terms else value
        if terms.get("derivative") == "relu":
            value = value * (wide["multiply"][rows] > 0)
        else:
            value = value * wide["multiply"][rows]
        value = np.where(kept()[rows], 2 * value, 0) if "dropout" in terms else value
        value = value + wide["residual"][rows]
        made[rows] = np.clip(value, -128, 127) if "saturate" in terms else value
        begin = end
    return made


def drawn(rng: np.random.Generator, names: str, kind: str) -> dict[str, Any]:
    wide = "f64" if kind == "f64" else "f32"
    found: dict[str, Any] = {
        "alpha": 0.5,
        "beta": -2.0,
        "c": whole(rng, 1, COLUMNS, kind=wide),
        "bias": whole(rng, len(ENDS), COLUMNS, kind=wide),
        "activation": "relu",
        "multiply": whole(rng, ROWS, 1, kind=wide),
        "derivative": "relu",
        "dropout": 0.5,
        "residual": whole(rng, COLUMNS, kind=wide),
        "saturate": True,
    }
    chosen = {name: found[name] for name in names.split()}
    return chosen | ({"seed": SEED, "offset": OFFSET} if "dropout" in chosen else {})


TERMS = (
    "alpha",
    "c",
    "beta c bias",
    "multiply",
    "multiply derivative",
    "dropout",
    "residual",
    "alpha beta c bias activation multiply dropout residual",
)


@ALL_TARGETS
@pytest.mark.parametrize("kind", ["f32", "f16", "f64"])
@pytest.mark.parametrize("terms", TERMS)
def test_every_element_is_numpy_s(terms: str, kind: str, target: str) -> None:
    rng = np.random.default_rng(len(terms))
    a, b = whole(rng, ROWS, DEPTH, kind=kind), whole(rng, len(ENDS), DEPTH, COLUMNS, kind=kind)
    given = drawn(rng, terms, kind)
    there = {n: device_put(one, target) if isinstance(one, np.ndarray) else one for n, one in given.items()}
    operands = [device_put(one, target) for one in (a, b, ENDS)]
    for padding in (0, 3):
        large = np.full((ROWS, COLUMNS + padding), np.nan, np.float64 if kind == "f64" else np.float32)
        out = large[:, padding:]
        want, result = by_numpy(a, b, out, given), device_put(out, target)
        for _ in calls_on(target):
            tw.grouped_matmul(*operands, result, **there, target=target)
            assert np.array_equal(device_get(result), want, equal_nan=True)


@ALL_TARGETS
def test_numbers_of_a_known_call_are_its_own(target: str) -> None:
    rng = np.random.default_rng(1)
    a, b, c = whole(rng, ROWS, DEPTH), whole(rng, len(ENDS), DEPTH, COLUMNS), whole(rng, ROWS, COLUMNS)
    there = [device_put(one, target) for one in (a, b, ENDS)]
    for alpha, beta in ((2.0, 3.0), (0.5, -1.0), (1, 3.0), (0, 0.5), (0.0, 0), (2.0, 0), (2.0, 3.0)):
        result = device_put(c.copy(), target)
        tw.grouped_matmul(*there, result, alpha=alpha, beta=beta, target=target)
        want = by_numpy(a, b, c, {"alpha": alpha, "beta": beta})
        assert np.array_equal(device_get(result), want), (alpha, beta)


@ALL_TARGETS
@pytest.mark.parametrize("name", ["c", "residual"])
def test_the_result_may_be_the_array_that_is_added(name: str, target: str) -> None:
    rng = np.random.default_rng(2)
    a, b, added = whole(rng, ROWS, DEPTH), whole(rng, len(ENDS), DEPTH, COLUMNS), whole(rng, ROWS, COLUMNS)
    want = by_numpy(a, b, added, {name: added})
    a, b, ends, result = (device_put(one, target) for one in (a, b, ENDS, added.copy()))
    tw.grouped_matmul(a, b, ends, result, **{name: result}, target=target)
    assert np.array_equal(device_get(result), want)


@ALL_TARGETS
def test_a_product_by_0_reads_no_operand(target: str) -> None:
    a, b = np.full((ROWS, DEPTH), np.nan, np.float32), np.full((4, DEPTH, COLUMNS), np.inf, np.float32)
    bias = whole(np.random.default_rng(3), 4, COLUMNS)
    out = np.full((ROWS, COLUMNS), 9, np.float32)
    given = [device_put(one, target) for one in (a, b, ENDS, out)]
    tw.grouped_matmul(*given, alpha=0, bias=device_put(bias, target), target=target)
    want = by_numpy(np.zeros_like(a), np.zeros_like(b), out, {"bias": bias})
    assert np.array_equal(device_get(given[3]), want)


@ALL_TARGETS
def test_saturation(target: str) -> None:
    rng = np.random.default_rng(4)
    a, b = 9 * whole(rng, ROWS, DEPTH), whole(rng, len(ENDS), DEPTH, COLUMNS)
    out = np.full((ROWS, COLUMNS), 77, np.int8)
    want = by_numpy(a, b, out, {"saturate": True})
    assert {-128, 127} <= set(want.ravel().tolist())
    given = [device_put(one, target) for one in (a, b, ENDS, out)]
    tw.grouped_matmul(*given, saturate=True, target=target)
    assert np.array_equal(device_get(given[3]), want)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"c": np.zeros((3, 5), np.float32)}, tw.LaunchError, "c has shape (3, 5), which does not broadcast"),
        ({"residual": np.zeros((1, 6, 5), np.float32)}, tw.LaunchError, "residual has shape (1, 6, 5)"),
        ({"derivative": "relu"}, tw.LaunchError, "nearest legal choice: multiply="),
        ({"dropout": 1.0}, tw.LaunchError, "dropout=1.0"),
        ({"alpha": 1j}, tw.LaunchError, "alpha=1j"),
        ({"beta": 2.0}, tw.LaunchError, "nearest legal choice: c="),
        ({"multiply": np.zeros(5, np.complex64)}, tw.DTypeError, "multiply is c64"),
    ],
)
def test_refusals(change: dict[str, Any], error: type[Exception], words: str) -> None:
    a, b = np.zeros((6, 4), np.float32), np.zeros((2, 4, 5), np.float32)
    with pytest.raises(error) as caught:
        tw.grouped_matmul(a, b, np.int32([2, 6]), **change, target="cpu")
    assert words in str(caught.value)


def test_lists_take_only_bias_and_activation() -> None:
    a, b = [np.zeros((6, 4), np.float32)], [np.zeros((4, 5), np.float32)]
    terms: dict[str, Any] = {
        "alpha": 2.0,
        "beta": 1.0,
        "dropout": 0.5,
        "saturate": True,
        "c": b,
        "residual": b,
    }
    for name, given in terms.items():
        with pytest.raises(
            tw.LaunchError, match=f"{name} with lists; nearest legal choice: bias and activation"
        ):
            tw.grouped_matmul(a, b, **{name: given}, target="cpu")
    assert tw.grouped_matmul(a, b, bias=[b[0][0]], activation="relu", target="cpu")[0].shape == (6, 5)


@pytest.mark.parametrize("precision", ["exact", "f32", "f16"])
@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_every_precision_of_matmul_is_taken(precision: str, kind: str) -> None:
    rng = np.random.default_rng(8)
    a, b = whole(rng, ROWS, DEPTH, kind=kind), whole(rng, len(ENDS), DEPTH, COLUMNS, kind=kind)
    out = np.full((ROWS, COLUMNS), np.nan, np.float32)
    tw.grouped_matmul(a, b, ENDS, out, precision=precision, target="reference")
    assert np.array_equal(out, by_numpy(a, b, np.full_like(out, np.nan), {}), equal_nan=True)
    (made,) = tw.grouped_matmul([a], [b[0]], precision=precision, out_dtype="f32", target="cpu")
    assert np.array_equal(made, a.astype(np.float64) @ b[0].astype(np.float64))


# ---------------------------------------------------------------- positions along groups


@tw.kernel(A="T K", B="G K N", ends="G", D="T N")
def numbered(A: Any, B: Any, ends: Any, D: Any) -> None:
    for g, m, n in tw.tiles(D, groups=ends):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[g, k, n]
        D[m, n] = acc + (tw.positions(m)[:, None] * 64 + tw.positions(n)).to(tw.f32)


SIMT = Schedule(tw.atoms.fma("f32", each=(4, 4)), (32, 32, 16))
SCHEDULES = {
    "chosen": None,
    "one tile": SIMT,
    "few rows": replace(SIMT, tile=(16, 64, 16)),
    "blocks that stay": replace(SIMT, blocks=3),
    "staged": replace(SIMT, epilogue="staged"),
}


@ALL_TARGETS
@pytest.mark.parametrize("name", SCHEDULES)
def test_positions_count_from_the_first_row_of_the_array(name: str, target: str) -> None:
    rng = np.random.default_rng(6)
    a, b = whole(rng, ROWS, DEPTH), whole(rng, len(ENDS), DEPTH, COLUMNS)
    out = np.full((ROWS, COLUMNS), np.nan, np.float32)
    number = np.add.outer(64 * np.arange(ROWS), np.arange(COLUMNS))
    want = by_numpy(a, b, out, {"residual": number})
    given = [device_put(one, target) for one in (a, b, ENDS, out)]
    bound = numbered.bind(schedule=SCHEDULES[name])
    assert bound(*given, target=target).target == target
    assert np.array_equal(device_get(given[3]), want, equal_nan=True)


@pytest.mark.parametrize("arch", ["sm_90a", "sm_80"])
def test_text_without_spills(arch: str) -> None:
    """Kernels of products on tensor cores with terms spill no registers."""
    made = (
        grouped(tw.f32, ("alpha", "c", "dropout"))
        .bind(
            precision="exact",
            terms=frozenset({"alpha", "c", "dropout"}),
            activation=None,
            late=LateTerms(None, (0, 1)),
        )
        .compile(
            tw.like("bf16", 4096, 4096),
            tw.like("bf16", 8, 4096, 4096),
            tw.like("i32", 8),
            tw.like("bf16", 8, 4096),
            tw.like("bf16", 4096, 4096),
            tw.like("bf16", 4096, 4096),
            1.0,
            1.0,
            0,
            0,
            0,
            1.0,
            target="cuda",
            arch=arch,
        )
    )
    assert made.target == "cuda"
    assert ("wgmma" in made.source) == (arch == "sm_90a")
    assert made.resources["spill_store_bytes"] == made.resources["stack_bytes"] == 0
