"""`einsum` of complex arrays: whole numbers equal NumPy's exactly, others are within a bound."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.turns import calls_on

import tilewright as tw
from tilewright.ops.einsum import ARRAYS, plan_einsum
from tilewright.ops.wanted import Wanted
from tilewright.runtime.arrays import pairs_of
from tilewright.testing import device_get, device_put

pytestmark = pytest.mark.in_turns(2)

Array = np.ndarray[Any, Any]
ALL_TARGETS = pytest.mark.parametrize(
    "target", ["reference", "cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
)
CONTRACTIONS = {
    "a product": ("mk,kn->mn", (35, 41), (41, 70)),
    "heads": ("bsk,khe->bhse", (2, 35, 17), (17, 3, 4)),
    "a turned result": ("ab,cb->ca", (35, 17), (66, 17)),
    "batches": ("bij,bjk", (3, 34, 5), (3, 5, 33)),
    "a view of the result": ("ijk,kl->jil", (2, 33, 4), (4, 5)),
    "a number": ("i,i", (9,), (9,)),
    "a diagonal": ("aab,bc->ac", (33, 33, 4), (4, 5)),
    "no products": ("mk,kn->mn", (5, 0), (0, 6)),
}


def whole(rng: np.random.Generator, shape: tuple[int, ...], kind: str = "complex64") -> Array:
    return np.asarray(rng.integers(-3, 4, shape) + 1j * rng.integers(-3, 4, shape)).astype(kind)


# The processor has one dtype of each contraction, and takes turns: a contraction needs several kernels.
@pytest.mark.parametrize(
    ("name", "kind", "target"),
    [
        pytest.param(name, kind, target, marks=[pytest.mark.gpu] * (target == "cuda"))
        for at, name in enumerate(CONTRACTIONS)
        for number, kind in enumerate(("complex64", "complex128"))
        for target in ("reference", "cuda", *["cpu"] * ((at + number) % 2))
    ],
)
def test_every_element_is_numpy_s(name: str, kind: str, target: str) -> None:
    subscripts, *shapes = CONTRACTIONS[name]
    rng = np.random.default_rng(len(name))
    a, b = (whole(rng, shape, kind) for shape in shapes)
    want = np.asarray(np.einsum(subscripts, a, b))
    c, blank = whole(rng, want.shape, kind), np.full(want.shape, np.nan, kind)
    there = [device_put(one.copy(), target) for one in (a, b, c, blank)]
    for _ in calls_on(target):
        tw.einsum(subscripts, *there[:2], there[3], target=target)
        assert np.array_equal(device_get(there[3]), want)
    tw.einsum(subscripts, *there[:2], there[3], c=there[2], alpha=1 + 2j, beta=2 - 1j, target=target)
    assert np.array_equal(device_get(there[3]), (1 + 2j) * want + (2 - 1j) * c)
    tw.einsum(subscripts, *there[:2], there[3], conjugate_a=True, conjugate_b=True, target=target)
    assert np.array_equal(device_get(there[3]), np.einsum(subscripts, a.conj(), b.conj()))
    tw.einsum(subscripts, *there[:2], there[2], beta=2, target=target)  # in place
    assert np.array_equal(device_get(there[2]), want + 2 * c)
    tw.einsum(subscripts, *there[:2], there[3], alpha=0, c=there[2], beta=0, target=target)
    assert np.array_equal(device_get(there[3]), np.zeros_like(want))


@ALL_TARGETS
@pytest.mark.parametrize("name", ["a product", "heads"])
def test_pairs_of_real_arrays_are_multiplied_as_they_lie(name: str, target: str) -> None:
    subscripts, *shapes = CONTRACTIONS[name]
    rng = np.random.default_rng(3)
    a, b = (whole(rng, shape) for shape in shapes)
    pair = tuple(device_put(np.ascontiguousarray(one), target) for one in (a.real, a.imag))
    re, im = tw.einsum(subscripts, pair, device_put(b, target), target=target)
    want = np.einsum(subscripts, a, b)
    assert np.array_equal(device_get(re), want.real)
    assert np.array_equal(device_get(im), want.imag)


@ALL_TARGETS
@pytest.mark.parametrize("precision", ["exact", "tf32", "f32"])
def test_other_numbers_lie_under_a_bound(precision: str, target: str) -> None:
    """Each part is a sum of 2 K products; the error is a share of the sum of their magnitudes."""
    rng = np.random.default_rng(4)
    a, b = (
        (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(np.complex64)
        for shape in ((2, 35, 300), (300, 3, 24))
    )
    there = [device_put(one, target) for one in (a, b)]
    made = tw.einsum("bsk,khe->bhse", *there, precision=precision, target=target)
    want = np.einsum("bsk,khe->bhse", a.astype(np.complex128), b.astype(np.complex128))
    sizes = np.einsum(
        "bsk,khe->bhse", np.abs(a.real) + np.abs(a.imag), np.abs(b.real) + np.abs(b.imag)
    ).astype(np.float64)
    share = 2.0**-10 if precision == "tf32" else 600 * 2.0**-24
    wrong = device_get(made) - want
    assert (np.maximum(np.abs(wrong.real), np.abs(wrong.imag)) <= share * sizes).all()


def test_terms_of_real_numbers_are_refused() -> None:
    ones = np.ones((3, 3), np.complex64)
    real = np.ones((3, 3), np.float32)
    for words in (
        {"bias": ones},
        {"residual": ones},
        {"activation": "relu"},
        {"derivative": "relu", "multiply": ones},
        {"saturate": True},
    ):
        name, *_ = words
        with pytest.raises(
            tw.LaunchError, match=rf"einsum: {name}.* with complex arrays.*; nearest legal choice"
        ):
            tw.einsum("ij,jk", ones, ones, **words, target="reference")
    with pytest.raises(tw.LaunchError, match=r"einsum: alpha=1j is complex and the arrays are real; nearest"):
        tw.einsum("ij,jk", real, real, alpha=1j, target="reference")
    with pytest.raises(tw.LaunchError, match="einsum of '': 1 operands; einsum multiplies two"):
        tw.einsum("", ones, ones, target="reference")
    x, w = np.ones((2, 3, 4), np.complex64), np.ones((4, 2, 3), np.complex64)
    with pytest.raises(tw.LaunchError, match="batch_invariant=True, and out need a view"):
        tw.einsum("bsk,khe->bhse", x, w, batch_invariant=True, target="reference")
    with pytest.raises(tw.DTypeError, match="einsum: b is f32, a real dtype"):
        tw.einsum("ij,jk", ones, real, target="reference")
    with pytest.raises(tw.LaunchError, match=r"einsum of 'ij,jk->ik': out has shape \(3, 4\)"):
        tw.einsum("ij,jk->ik", ones, ones, np.ones((3, 4), np.complex64), target="reference")


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_results_through_views_may_be_what_is_added(target: str) -> None:
    """A result may be the added array, real or complex, element for element, but not in another order."""
    rng = np.random.default_rng(5)
    a, b = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((2, 5, 7), (7, 3, 4)))
    want = np.einsum("bsk,khe->bhse", a, b)
    out = rng.integers(-3, 4, want.shape).astype(np.float32)
    before = out.copy()
    tw.einsum("bsk,khe->bhse", a, b, out, residual=out, beta=2.0, target=target)
    assert np.array_equal(out, want + 3 * before)


def test_results_through_views_share_memory_with_nothing_else() -> None:
    """The test asks the rule of kernels, because the plan refuses the call earlier."""
    x, w = np.ones((2, 5, 7), np.float32), np.ones((7, 3, 4), np.float32)
    out = np.ones((2, 3, 5, 4), np.float32)
    padded, turned = (
        np.ones((2, 3, 5, 8), np.float32)[..., :4],
        np.ones((2, 3, 4, 5), np.float32).swapaxes(2, 3),
    )
    given = dict.fromkeys(ARRAYS) | {"a": x, "b": w, "out": out}
    for residual, is_one in ((out, True), (padded, False), (turned, False)):
        launch = plan_einsum("bsk,khe->bhse", given | {"residual": residual}, Wanted(target="cpu")).product
        flow = launch.kernel.flow(*launch.arrays, *launch.numbers)
        tensors = [one.name for one in launch.kernel.program.parameters if one.kind == "tensor"]
        infos = {name: one.info for name, one in zip(tensors, launch.arrays, strict=True)}
        places = {name: place for place, name in enumerate(infos)}
        pairs = {(pair.stored, pair.other): pair.in_place for pair in pairs_of(flow, infos)}
        assert pairs[places["D"], places["R"]] == is_one
