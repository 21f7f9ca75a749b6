"""Factors and dropout of complex products: whole numbers equal NumPy's exactly, others are within a bound."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.turns import calls_on

import tilewright as tw
from tilewright.ops import complex_matmul, complex_strategies
from tilewright.ops.complex_matmul import ComplexWanted, plan_complex
from tilewright.ops.complex_products import ComplexFactor, four_products
from tilewright.ops.ending import DropoutMask
from tilewright.ops.wanted import Dropout
from tilewright.testing import device_get, device_put

from .complex_cases import C, numbers, poisoned
from .test_complex_halves import SYNC

pytestmark = pytest.mark.in_turns(2)

Array = np.ndarray[Any, Any]
ALL_TARGETS = pytest.mark.parametrize(
    "target", ["reference", "cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
)
SEED, OFFSET = 5, 7


def whole(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Return small whole numbers; f16 represents their sums and products."""
    return rng.integers(-1, 2, shape) + 1j * rng.integers(-1, 2, shape)


def held(values: Array, part: str, layout: str) -> Any:
    """Return the numbers in memory with gaps: interleaved, planar, or only their real parts."""
    kind = tw.dtype(part)
    parts = np.empty((*values.shape[:-1], 2 * values.shape[-1], 2), kind.numpy)[..., ::2, :]
    parts[..., 0], parts[..., 1] = values.real, values.imag
    if layout == "real":
        return parts[..., 0]
    if layout == "planar":
        return parts[..., 0], np.ascontiguousarray(parts[..., 1])
    return np.stack([parts[..., 0], parts[..., 1]], -1).view(C[part].numpy)[..., 0]


def put(given: Any, target: str) -> Any:
    return tuple(put(one, target) for one in given) if isinstance(given, tuple) else device_put(given, target)


def got(given: Any) -> Array:
    if isinstance(given, tuple):
        re, im = (device_get(one).astype(np.float64) for one in given)
        return np.asarray(re + 1j * im)
    made: Array = device_get(given)
    return made if made.dtype.kind == "c" else np.asarray(made["re"] + 1j * made["im"])


def is_kept(shape: tuple[int, ...], seed: int = SEED) -> Array:
    return np.asarray(tw.testing.philox(np.arange(np.prod(shape)).reshape(shape), seed, OFFSET) >= 2**31)


CASES = {
    # dtype of the parts, layouts of operands and result, of the factor, its shape, batches, method
    "interleaved": ("f32", "interleaved", "interleaved", (35, 27), (), "4m"),
    "by a pair": ("f32", "interleaved", "planar", (3, 35, 1), (3,), "4m"),
    "by real numbers": ("f32", "interleaved", "real", (27,), (3,), "4m"),
    "planes": ("f32", "planar", "interleaved", (35, 27), (), "3m"),
    "f64": ("f64", "interleaved", "interleaved", (2, 35, 27), (2,), "4m"),
    "f64, three products": ("f64", "interleaved", "real", (35, 1), (), "3m"),
    "bf16 planes": ("bf16", "planar", "planar", (27,), (), "4m"),
    "f16 planes": ("f16", "planar", "real", (1, 1), (2,), "3m"),
}


@ALL_TARGETS
@pytest.mark.parametrize("drops", [False, True], ids=["", "dropout"])
@pytest.mark.parametrize("name", CASES)
def test_every_element_is_numpy_s(name: str, drops: bool, target: str) -> None:
    part, layout, of_factor, shape, lead, method = CASES[name]
    rng = np.random.default_rng(len(name))
    values = {"a": whole(rng, (*lead, 35, 9)), "b": whole(rng, (9, 27)), "c": whole(rng, (35, 27))}
    there = {one: put(held(array, part, layout), target) for one, array in values.items()}
    y = whole(rng, shape)
    y = y.real if of_factor == "real" else y
    words: dict[str, Any] = {"multiply": put(held(y, part, of_factor), target), "method": method}
    words |= {"dropout": 0.5, "seed": SEED, "offset": OFFSET} if drops else {}
    result = (*lead, 35, 27)
    out = put(poisoned(result, tw.dtype(part), layout), target)
    for given, factor in (({}, 0), ({"c": there["c"], "alpha": 1j, "beta": 2 - 1j}, 1)):
        sums = (1j if given else 1) * (values["a"] @ values["b"]) + factor * (2 - 1j) * values["c"]
        want = np.where(is_kept(result), 2 * sums * y, 0) if drops else sums * y
        for _ in calls_on(target):
            made = tw.complex_matmul(there["a"], there["b"], out=out, **given, **words, target=target)
            assert made is out
            assert np.array_equal(got(out), want)


@ALL_TARGETS
def test_matmul_and_einsum_take_them_too(target: str) -> None:
    rng = np.random.default_rng(1)
    a, b, y = whole(rng, (2, 35, 9)), whole(rng, (9, 3, 8)), whole(rng, (3, 1, 8))
    there = [device_put(one.astype(np.complex64), target) for one in (a, b, y)]
    words = {"dropout": 0.5, "seed": SEED, "offset": OFFSET, "target": target}
    want = np.einsum("bsk,khe->bhse", a, b)
    for _ in calls_on(target):
        made = device_get(tw.einsum("bsk,khe->bhse", *there[:2], multiply=there[2], **words))
        assert np.array_equal(made, np.where(is_kept(want.shape), 2 * want * y, 0))
    flat = device_put(b.reshape(9, 24).astype(np.complex64), target)
    product = a @ b.reshape(9, 24)
    for _ in calls_on(target):
        made = device_get(tw.matmul(there[0], flat, **words))
        assert np.array_equal(made, np.where(is_kept(product.shape), 2 * product, 0))


@ALL_TARGETS
@pytest.mark.parametrize("part", ["f32", "f64"])
def test_other_numbers_lie_under_a_bound(part: str, target: str) -> None:
    """A part is a sum of 2 K products; the factor adds a product, a sum and a rounding."""
    rng, kind = np.random.default_rng(2), tw.dtype(part)
    a, b, y = (numbers(rng, shape, kind, "interleaved odd") for shape in ((33, 70), (70, 45), (33, 45)))
    out = np.full((33, 50), np.nan, a.dtype)
    there = [device_put(one, target) for one in (a, b, y, out)]
    tw.complex_matmul(*there[:2], multiply=there[2], out=there[3][:, 3:-2], target=target)
    back = device_get(there[3])
    assert np.isnan(back[:, :3]).all()
    assert np.isnan(back[:, -2:]).all()
    wide = np.clongdouble
    wrong = back[:, 3:-2] - (a.astype(wide) @ b.astype(wide)) * y.astype(wide)
    size = (np.abs(a.real) + np.abs(a.imag)).astype(float) @ (np.abs(b.real) + np.abs(b.imag)).astype(float)
    bound = (2 * 70 + 4) * 2.0 ** (-53 if part == "f64" else -24) * size * (np.abs(y.real) + np.abs(y.imag))
    assert (np.maximum(np.abs(wrong.real), np.abs(wrong.imag)) <= bound).all()


@ALL_TARGETS
def test_numbers_of_a_known_call_are_its_own(target: str) -> None:
    rng = np.random.default_rng(3)
    a, b = (whole(rng, shape).astype(np.complex64) for shape in ((35, 9), (9, 27)))
    there = [device_put(one, target) for one in (a, b)]
    for seed, alpha in ((1, 2), (2, 2), (1, 1j), (1, 2)):
        words = {"dropout": 0.5, "seed": seed, "offset": OFFSET, "alpha": alpha}
        made = device_get(tw.complex_matmul(*there, **words, target=target))
        assert np.array_equal(made, np.where(is_kept((35, 27), seed), 2 * alpha * (a @ b), 0))


def test_a_known_call_is_not_planned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(4)
    words = {"dropout": 0.5, "seed": SEED, "offset": OFFSET, "target": "cpu"}
    for name in ("first", "second"):
        a, b, y = (whole(rng, shape).astype(np.complex64) for shape in ((35, 9), (9, 27), (27,)))
        made = tw.complex_matmul(a, b, multiply=y, **words)
        assert np.array_equal(made, np.where(is_kept((35, 27)), 2 * (a @ b) * y, 0)), name
        monkeypatch.setattr(complex_matmul, "plan_complex", lambda *given: pytest.fail("planned again"))


@pytest.mark.parametrize("method", ["4m", "3m"])
def test_products_after_a_prepass_take_them_too(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(complex_strategies, "_planes_pay", lambda *given: True)
    rng = np.random.default_rng(5)
    a, b, y = (whole(rng, shape).astype(np.complex64) for shape in ((35, 9), (9, 27), (35, 27)))
    given = {"a": a, "b": b, "multiply": y, "out": np.full((35, 27), np.nan, np.complex64)}
    asked = ComplexWanted(method=method, target="reference", dropped=Dropout(0.5, SEED, OFFSET))
    plan = plan_complex(given, asked)
    assert len(plan.details.planes) == 2
    plan.run()
    assert np.array_equal(given["out"], np.where(is_kept((35, 27)), 2 * (a @ b) * y, 0))


def test_halves_of_f32_take_them_too() -> None:
    rng = np.random.default_rng(6)
    a, b, y = (whole(rng, shape).astype(np.complex64) for shape in ((35, 72), (72, 27), (35, 27)))
    words = {"precision": "f32", "schedule": SYNC, "target": "reference", "offset": OFFSET}
    made = tw.complex_matmul(a, b, multiply=y, dropout=0.5, seed=SEED, **words)
    assert np.array_equal(made, np.where(is_kept((35, 27)), 2 * (a @ b) * y, 0))


@pytest.mark.gpu
@pytest.mark.parametrize(("part", "precision"), [("f16", "exact"), ("f32", "f32"), ("f32", "tf32")])
def test_large_products_of_a_gpu_take_them_too(part: str, precision: str) -> None:
    """The calls use prepasses, halves and tensor cores, and store parts as pairs."""
    rng = np.random.default_rng(7)
    a, b, y = (whole(rng, shape) for shape in ((700, 503), (503, 901), (700, 901)))
    there = [put(held(one, part, "interleaved"), "cuda") for one in (a, b, y)]
    words = {"precision": precision, "dropout": 0.5, "seed": SEED, "offset": OFFSET}
    for _ in range(2):
        made = tw.complex_matmul(*there[:2], multiply=there[2], out_dtype="c64", **words)
        assert np.array_equal(got(made), np.where(is_kept((700, 901)), 2 * (a @ b) * y, 0))


class Lazy(np.ndarray[Any, Any]):
    """An array that stands for the conjugates of its numbers, like PyTorch's lazy conjugates."""

    def is_conj(self) -> bool:
        return True

    def conj(self) -> Any:  # type: ignore[override]
        return self.view(np.ndarray)


def test_a_lazy_conjugate_is_a_factor() -> None:
    rng = np.random.default_rng(8)
    a, b, y = (whole(rng, shape).astype(np.complex64) for shape in ((35, 9), (9, 27), (35, 27)))
    given = {"a": a, "b": b, "multiply": y.view(Lazy), "out": np.full((35, 27), np.nan, np.complex64)}
    plan_complex(given, ComplexWanted(target="reference")).run()
    assert np.array_equal(given["out"], (a @ b) * y.conj())


@pytest.mark.parametrize("part", ["f16", "f32"])
def test_text_for_pairs_on_a_gpu_spills_nothing(part: str) -> None:
    """One access reads or writes both parts of the factor and of the result."""
    kind = tw.dtype(part)
    plane, pairs = np.empty((512, 512), kind.numpy), np.empty((512, 512), "i4" if part == "f16" else "f8")
    late = (ComplexFactor(True, kind), DropoutMask("out", (0, 1)))
    rare = ("multiply", "multiply_im", "dropout")
    bound = four_products(0, tw.f32, rare=rare).bind(
        precision="exact",
        terms=frozenset(),
        conjugates=(False,) * 3,
        pairs=(None, kind),
        late=late,
    )
    arrays = (*[plane] * 4, *[pairs] * 6)
    ran = bound.compile(*arrays, 1, 0, 0, 0, SEED, OFFSET, 2**31, 2.0, target="cuda", arch="sm_90a")
    assert ran.target == "cuda"
    assert ran.resources["spill_store_bytes"] == ran.resources["stack_bytes"] == 0


X = np.ones((4, 4), np.complex64)


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        (
            {"multiply": np.ones((4, 4), np.int8)},
            tw.DTypeError,
            "multiply is i8, a real dtype; nearest legal",
        ),
        ({"multiply": np.ones((4, 3), np.complex64)}, tw.LaunchError, r"multiply has shape \(4, 3\), which"),
        (
            {"multiply": (X.real,) * 3},
            tw.LaunchError,
            "multiply is a tuple of 3 arrays; nearest legal choice",
        ),
        ({"dropout": 1.0}, tw.LaunchError, "complex_matmul: dropout=1.0; nearest legal choice"),
        ({"dropout": 0.5, "seed": -1}, tw.LaunchError, "complex_matmul: seed=-1; nearest legal choice"),
    ],
)
def test_terms_that_do_not_fit_are_refused(words: dict[str, Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        tw.complex_matmul(X, X, **words, target="reference")


def test_a_factor_shares_no_memory_with_the_result() -> None:
    out = X.copy()
    for factor in (out, out.real, (out.real, out.imag)):
        with pytest.raises(tw.LaunchError, match="out and multiply share memory"):
            tw.complex_matmul(X, X.copy(), multiply=factor, out=out, target="reference")
