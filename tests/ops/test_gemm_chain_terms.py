"""Terms of `gemm_chain`: whole numbers equal NumPy's exactly, others are within a bound."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.ops import gemm_chain as chains
from tilewright.ops import matmul
from tilewright.ops.gemm_chain import ARRAYS, TERMS, ChainWords, plan_chain
from tilewright.ops.planes import REAL, Planes
from tilewright.ops.wanted import Dropout
from tilewright.testing import device_get, device_put

pytestmark = pytest.mark.in_turns(2)

Array = np.ndarray[Any, Any]
ALL_TARGETS = pytest.mark.parametrize(
    "target", ["reference", "cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
)
SEED, OFFSET = 5, 7


def whole(rng: np.random.Generator, shape: tuple[int, ...], kind: str = "f32") -> Array:
    """Return an array of small whole numbers with gaps between rows."""
    return rng.integers(-1, 2, (*shape, 2)).astype(tw.dtype(kind).numpy)[..., 0]


def drawn(lead: tuple[int, ...], kind: str) -> dict[str, Array]:
    rng = np.random.default_rng(len(lead))
    shapes = {"a": (*lead, 35, 9), "b": (9, 27), "c": (27, 13), "bias_b": (27,), "bias_c": (13,)}
    shapes |= {"multiply": (*lead, 35, 1), "residual": (13,)}
    return {name: whole(rng, shape, kind) for name, shape in shapes.items()}


def by_numpy(given: dict[str, Array], alpha: float, *, drops: bool) -> Array:
    x = {name: one.astype(np.float64) for name, one in given.items()}
    first = np.maximum(x["a"] @ x["b"] + x.get("bias_b", 0), 0)
    made = (alpha * (first @ x["c"]) + x.get("bias_c", 0)) * x.get("multiply", 1)
    if drops:
        kept = tw.testing.philox(np.arange(made.size).reshape(made.shape), SEED, OFFSET) >= 2**31
        made = np.where(kept, 2 * made, 0)
    return np.asarray(made + x.get("residual", 0))


@ALL_TARGETS
@pytest.mark.parametrize("kind", ["f64", "f32", "f16"])
@pytest.mark.parametrize("lead", [(), (3,)], ids=str)
@pytest.mark.parametrize("names", ["bias_b", "bias_c residual", "multiply dropout", "all"])
def test_every_element_is_numpy_s(names: str, lead: tuple[int, ...], kind: str, target: str) -> None:
    given = drawn(lead, kind)
    drops = names == "all" or "dropout" in names
    terms = {name for name in TERMS if names == "all" or name in names.split()}
    given = {name: one for name, one in given.items() if name in (*terms, "a", "b", "c")}
    out_kind = tw.dtype("f64" if kind == "f64" else "f32").numpy
    held = device_put(np.full((*lead, 35, 18), np.nan, out_kind), target)
    there = {name: device_put(one, target) for name, one in given.items()}
    factors = [there.pop(name) for name in "abc"]
    words: dict[str, Any] = {"dropout": 0.5, "seed": SEED, "offset": OFFSET} if drops else {}
    for alpha in (0.5, 0.5, -2):  # the second call is replayed
        out = held[..., 2:-3]
        made = tw.gemm_chain(
            *factors, activation="relu", out=out, alpha=alpha, **there, **words, target=target
        )
        assert made is out
        back = device_get(held)
        assert np.array_equal(back[..., 2:-3], by_numpy(given, alpha, drops=drops))
        assert np.isnan(back[..., :2]).all()
        assert np.isnan(back[..., -3:]).all()


@ALL_TARGETS
@pytest.mark.parametrize("kind", ["f32", "bf16"])
def test_other_numbers_lie_under_a_bound(kind: str, target: str) -> None:
    """The bound is that of the docstring, for K and N of equal length, plus a rounding for each term."""
    rng, (m, k, n, p) = np.random.default_rng(3), (33, 40, 90, 29)
    numbers = tw.dtype(kind).numpy
    a, b, c = (rng.standard_normal(shape).astype(numpy) for shape, numpy in (
        ((m, k), numbers), ((k, n), numbers), ((n, p), numbers)
    ))  # fmt: skip
    bias, y, r = (rng.standard_normal(shape).astype(np.float32) for shape in ((n,), (m, p), (m, p)))
    there = [device_put(one, target) for one in (a, b, c, bias, y, r)]
    made = tw.gemm_chain(
        *there[:3], bias_b=there[3], multiply=there[4], residual=there[5], out_dtype="f32", target=target
    )
    a, b, c, bias, y, r = (one.astype(np.float64) for one in (a, b, c, bias, y, r))
    u, w = 2.0**-24, 2.0**-24 if kind == "f32" else 2.0**-9
    h = a @ b + bias
    off = (2 * (k + 1) + 2) * u * (abs(a) @ abs(b) + abs(bias)) + w * abs(h)
    sums = abs(h) + off
    want = (h @ c) * y + r
    bound = (off @ abs(c) + (2 * (n + 1) + 2) * u * (sums @ abs(c))) * abs(y) + 4 * u * (abs(want) + abs(r))
    assert (abs(device_get(made) - want) <= bound).all()


@ALL_TARGETS
def test_results_saturate_and_have_another_dtype(target: str) -> None:
    rng = np.random.default_rng(4)
    a, b, c = whole(rng, (35, 9), "f16"), whole(rng, (9, 27), "f16"), 9 * whole(rng, (27, 13), "f16")
    there = [device_put(one, target) for one in (a, b, c)]
    want = (a.astype(np.int64) @ b.astype(np.int64)) @ c.astype(np.int64)
    assert (abs(want) > 127).any()
    made = device_get(tw.gemm_chain(*there, saturate=True, out_dtype="i8", target=target))
    assert np.array_equal(made, np.clip(want, -128, 127))
    wide = device_get(tw.gemm_chain(*there, out_dtype="f32", target=target))
    assert wide.dtype == np.float32
    assert np.array_equal(wide, want)


@ALL_TARGETS
def test_a_result_may_be_its_residual(target: str) -> None:
    given = drawn((), "f32")
    before = whole(np.random.default_rng(5), (35, 13))
    there = [device_put(given[name], target) for name in "abc"]
    out = device_put(before.copy(), target)
    tw.gemm_chain(*there, activation="relu", residual=out, out=out, target=target)
    want = by_numpy({name: given[name] for name in "abc"} | {"residual": before}, 1, drops=False)
    assert np.array_equal(device_get(out), want)


def test_products_with_prepasses_share_the_scratch_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second product reads operands that a prepass copied to padded rows, after the first result."""

    def padded(call: Any, problem: Any, wanted: Any) -> tuple[Planes, ...]:
        seen = {name: problem.operands[name].of(call.infos[name]) for name in "ab"}
        return tuple(Planes.of(name, info, REAL, padded=True) for name, info in seen.items())

    monkeypatch.setattr(matmul, "planes_first", padded)
    given = drawn((), "f16")
    given = {name: np.ascontiguousarray(one) for name, one in given.items()}
    out = np.full((35, 13), np.nan, np.float16)
    in_call = {name: given.get(name) for name in (*ARRAYS, *TERMS)} | {"out": out}
    words = ChainWords("relu", None, "reference", alpha=0.5, dropped=Dropout(0.5, SEED, OFFSET))
    plan = plan_chain(in_call, words)
    assert len(plan.launches) == 4
    offsets = [
        [
            one.info.pointer
            for one, name in zip(launch.arrays, launch.names, strict=True)
            if name == chains.OWN
        ]
        for launch in plan.launches
    ]
    assert all(one % 256 == 0 for place in offsets for one in place)
    assert max(place for launch in offsets for place in launch) < plan.scratch_bytes
    plan.run()
    assert np.array_equal(out, by_numpy(given, 0.5, drops=True))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("kind", "precision", "launches"), [("f16", "exact", 4), ("f32", "f32", 4), ("f32", "tf32", 4)]
)
def test_large_chains_of_a_gpu(kind: str, precision: str, launches: int) -> None:
    """Products have prepasses: rows of odd length, halves of f32, and tf32 operands along the wrong axis."""
    rng = np.random.default_rng(6)
    shapes = ((4096, 1027), (1027, 2051), (2051, 777))
    a, b, c = (rng.integers(-1, 2, shape).astype(tw.dtype(kind).numpy) for shape in shapes)
    c *= rng.random(c.shape) < 0.02  # so that f16 and halves hold the sums
    there = [device_put(one, "cuda") for one in (a, b, c)]
    given = dict.fromkeys((*ARRAYS, *TERMS)) | dict(zip("abc", there, strict=True))
    plan = plan_chain(given, ChainWords("relu", False, None, precision=precision))
    assert 2 <= len(plan.launches) <= launches
    want = np.maximum(a.astype(np.float64) @ b, 0) @ c
    for _ in range(2):
        made = tw.gemm_chain(*there, activation="relu", fused=False, precision=precision, out_dtype="f32")
        assert np.array_equal(device_get(made), want)


A, B, C = np.ones((6, 8), np.float16), np.ones((8, 5), np.float16), np.ones((5, 3), np.float16)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"bias_b": C[0]}, r"bias_b has shape \(3,\); nearest legal choice: \(5,\), one number for each"),
        ({"bias_c": B[0]}, r"bias_c has shape \(5,\); nearest legal choice: \(3,\), one number for each"),
        ({"multiply": A}, r"multiply has shape \(6, 8\), which does not broadcast"),
        ({"residual": A}, r"residual has shape \(6, 8\), which does not broadcast"),
        ({"dropout": 1.5}, "gemm_chain: dropout=1.5; nearest legal choice"),
        ({"precision": "half"}, "precision='half'; choose one of exact, tf32"),
        ({"alpha": 1e60}, r"gemm_chain: alpha=1e\+60 becomes infinite in f32; nearest legal choice"),
        (
            {"bias_b": B[0], "saturate": True, "fused": True},
            "fused=True, but one kernel has no bias_b and one kernel does not saturate; nearest",
        ),
        (
            {"alpha": 2, "out_dtype": "f32", "fused": True},
            "but the result is f32, and one kernel writes f16 and alpha is 2, and one kernel has no factor",
        ),
    ],
)
def test_terms_that_do_not_fit_are_refused(words: dict[str, Any], message: str) -> None:
    with pytest.raises(tw.LaunchError, match=message):
        tw.gemm_chain(A, B, C, **words, target="reference")


def test_dtypes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(tw.DTypeError, match="out_dtype is i8, a @ b is f16: the fractions would be lost"):
        tw.gemm_chain(A, B, C, out_dtype="i8", target="reference")
    with pytest.raises(tw.DTypeError, match="residual is c64, and sums of f16 are real"):
        tw.gemm_chain(A, B, C, residual=np.ones((6, 3), np.complex64), target="reference")
