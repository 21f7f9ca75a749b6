"""Every term of every operation, on whole numbers, so that each element equals NumPy's exactly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from tests.turns import calls_on

import tilewright as tw
from tilewright.ops.ending import LateTerms
from tilewright.ops.products import combined, scaled
from tilewright.testing import device_get, device_put

Array = np.ndarray[Any, Any]
ALL_TARGETS = pytest.mark.parametrize(
    "target", ["reference", "cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
)
NO_SUCH = ("scaled_mm", "f64")
SEED, OFFSET = 5, 7


class Asked(NamedTuple):
    """Operands and terms of a call, and NumPy's product of the operands.

    Args:
        operands: of the call.
        product: what the terms are applied to.
        terms: arrays and numbers by the names of the arguments.
    """

    operands: tuple[Any, ...]
    product: Array
    terms: dict[str, Any]


def whole(rng: np.random.Generator, *shape: int, kind: str = "f32", most: int = 3) -> Array:
    return rng.integers(-most, most + 1, shape).astype(tw.dtype(kind).numpy)


def drawn(rng: np.random.Generator, lead: tuple[int, ...], kind: str, names: str) -> Asked:
    """Return operands of shapes (..., 5, 7) and (7, 6), and the named terms."""
    a, b = whole(rng, *lead, 5, 7, kind=kind), whole(rng, 7, 6, kind=kind)
    product = a.astype(np.float64) @ b.astype(np.float64)
    shapes = {"c": (5, 6), "bias": (6,), "multiply": (*lead, 5, 6), "residual": (*lead, 1, 6)}
    wide = "f64" if kind == "f64" else "f32"
    terms: dict[str, Any] = {
        one: whole(rng, *shapes[one], kind=wide) for one in names.split() if one in shapes
    }
    terms |= {"beta": -2.0} if "c" in terms else {}
    terms |= {"dropout": 0.5, "seed": SEED, "offset": OFFSET} if "dropout" in names.split() else {}
    return Asked((a, b), product, terms)


def by_numpy(asked: Asked, alpha: float = 1.0) -> Array:
    """``dropout((alpha * product + beta * c + bias) * multiply) + residual`` in f64."""
    terms = {name: np.float64(one) for name, one in asked.terms.items()}
    made = alpha * asked.product + terms.get("beta", 1.0) * terms.get("c", 0) + terms.get("bias", 0)
    made = np.asarray(made * terms.get("multiply", 1))
    if "dropout" in terms:
        kept = tw.testing.philox(np.arange(made.size).reshape(made.shape), SEED, OFFSET) >= 2**31
        assert kept.any()
        assert not kept.all()
        made = np.where(kept, 2 * made, 0)
    return np.asarray(made + terms.get("residual", 0))


TERMS = (
    "multiply",
    "dropout",
    "residual",
    "c dropout",
    "c bias multiply dropout residual",
)
CALLS: dict[str, Callable[..., Any]] = {
    "matmul": lambda a, b, out, **terms: tw.matmul(a, b, out, alpha=0.5, **terms),
    "scaled_mm": lambda a, b, out, **terms: tw.scaled_mm(a, b, out, scale_a=0.5, **terms),
    "einsum": lambda a, b, out, **terms: tw.einsum("...mk,kn->...mn", a, b, out, alpha=0.5, **terms),
}


def results(shape: tuple[int, ...], kind: str) -> list[Array]:
    """Return results full of NaN: in C order, with rows and columns exchanged in memory, and with gaps."""
    whole_one = np.full((*shape[:-1], shape[-1] + 3), np.nan, tw.dtype(kind).numpy)
    turned = np.full((*shape[:-2], shape[-1], shape[-2]), np.nan, tw.dtype(kind).numpy)
    return [np.full(shape, np.nan, tw.dtype(kind).numpy), turned.swapaxes(-1, -2), whole_one[..., 1:-2]]


LEADS = ((), (3,), (2, 3))
KINDS = [(op, kind) for op in CALLS for kind in ("f32", "f16", "f64") if (op, kind) != NO_SUCH]


@pytest.mark.in_turns(5)
@pytest.mark.parametrize(
    ("op", "kind", "terms", "lead", "target"),
    [
        pytest.param(*KINDS[a], TERMS[b], LEADS[c], target, marks=[pytest.mark.gpu] * (target == "cuda"))
        for a, b, c in np.ndindex(len(KINDS), len(TERMS), len(LEADS))
        # The processor and the reference take turns: each sees every pair of an operation, terms and a shape.
        for target in ("cuda", ("reference", "cpu")[(a + b + c) % 2])
    ],
    ids=str,
)
def test_every_element_is_numpy_s(op: str, kind: str, terms: str, lead: tuple[int, ...], target: str) -> None:
    rng = np.random.default_rng(len(lead) + len(terms))
    asked = drawn(rng, lead, kind, terms)
    want = by_numpy(asked, 0.5)
    for out in results(want.shape, "f64" if kind == "f64" else "f32")[:: 2 if target == "cuda" else 1]:
        there = {
            name: device_put(one, target) if isinstance(one, np.ndarray) else one
            for name, one in asked.terms.items()
        }
        operands = [device_put(one, target) for one in asked.operands]
        result = device_put(out, target)
        for _ in calls_on(target):
            CALLS[op](*operands, result, **there, target=target)
            assert np.array_equal(device_get(result), want)


@ALL_TARGETS
@pytest.mark.parametrize("kind", ["f32", "f16", "f64"])
def test_the_argument_of_an_activation_is_stored_too(kind: str, target: str) -> None:
    rng = np.random.default_rng(6)
    for lead in LEADS:
        asked = drawn(rng, lead, kind, "c bias multiply dropout residual")
        given = {
            name: device_put(one, target) if isinstance(one, np.ndarray) else one
            for name, one in asked.terms.items()
        }
        operands = [device_put(one, target) for one in asked.operands]
        before = asked._replace(terms={name: asked.terms[name] for name in ("c", "beta", "bias")})
        after = asked._replace(
            product=np.maximum(by_numpy(before, 0.5), 0),
            terms={name: one for name, one in asked.terms.items() if name not in before.terms},
        )
        for sums in results(asked.product.shape, "f64" if kind == "f64" else "f32"):
            stored = device_put(sums, target)
            out = device_put(np.full(asked.product.shape, np.nan, asked.operands[0].dtype), target)
            for _ in calls_on(target):
                CALLS["matmul"](*operands, out, activation="relu", sums=stored, **given, target=target)
                assert np.array_equal(device_get(stored), by_numpy(before, 0.5))
                assert np.array_equal(device_get(out), by_numpy(after))


@ALL_TARGETS
def test_numbers_of_a_known_call_are_its_own(target: str) -> None:
    """Another beta, seed or probability launches the same kernel with these numbers."""
    rng = np.random.default_rng(1)
    a, b, c = (device_put(whole(rng, *shape), target) for shape in ((9, 4), (4, 33), (9, 33)))
    product = device_get(a).astype(np.float64) @ device_get(b)
    asked = [(2.0, 0.5, 3), (-1.0, 0.5, 4), (2.0, 0.75, 3), (2.0, 0.5, 3), (1, 0.5, 3), (None, 0.5, 5)]
    for op in CALLS:
        for beta, share, seed in (*asked, (0, 0.5, 3), (0.0, 0.5, 4), (0, 0.5, 3)):
            out = device_put(np.full((9, 33), np.nan, np.float32), target)
            CALLS[op](a, b, out, c=c, beta=beta, dropout=share, seed=seed, target=target)
            kept = tw.testing.philox(np.arange(9 * 33).reshape(9, 33), seed, 0) >= share * 2**32
            factor = 1.0 if beta is None else beta
            want = np.where(kept, (0.5 * product + factor * device_get(c)) / (1 - share), 0)
            assert np.array_equal(device_get(out), want), (op, beta, share, seed)


@ALL_TARGETS
@pytest.mark.parametrize("op", CALLS)
def test_a_beta_of_0_reads_nothing_and_is_no_number_of_the_kernel(op: str, target: str) -> None:
    rng = np.random.default_rng(8)
    a, b = (device_put(whole(rng, *shape), target) for shape in ((9, 4), (4, 33)))
    half = 0.5 * (device_get(a).astype(np.float64) @ device_get(b))
    for words in ({}, {"c": device_put(np.full((9, 33), np.nan, np.float32), target)}):
        for drawn_by in ({}, {"dropout": 0.5, "seed": 0}):
            for _ in range(2):
                out = device_put(np.full((9, 33), np.nan, np.float32), target)
                CALLS[op](a, b, out, beta=0, **words, **drawn_by, target=target)
                kept = tw.testing.philox(np.arange(9 * 33).reshape(9, 33), 0, 0) >= 2**31
                assert np.array_equal(device_get(out), np.where(kept, 2 * half, 0) if drawn_by else half)


@ALL_TARGETS
@pytest.mark.parametrize(
    ("subscripts", "shapes"),
    [
        ("mk,k->m", ((2, 3), (3,))),
        ("k,k->", ((3,), (3,))),
        ("bk,bk->b", ((2, 3), (2, 3))),
        ("bk,bk->bk", ((2, 3), (2, 3))),
        ("ak,kb->ab", ((1, 4), (4, 1))),
        ("mk,kn->nm", ((5, 4), (4, 6))),
    ],
)
def test_a_result_may_be_what_is_added_to_it(
    subscripts: str, shapes: tuple[tuple[int, ...], ...], target: str
) -> None:
    rng = np.random.default_rng(9)
    a, b = (whole(rng, *shape) for shape in shapes)
    product = np.asarray(np.einsum(subscripts, a, b))
    before = whole(rng, *product.shape)
    there = [device_put(one, target) for one in (a, b)]
    for words, factor in (({"beta": 2.0}, 2), ({"residual": "out"}, 1), ({"c": "out", "residual": "out"}, 2)):
        out = device_put(before.copy(), target)
        given = {name: out if isinstance(one, str) else one for name, one in words.items()}
        tw.einsum(subscripts, *there, out, **given, target=target)
        assert np.array_equal(device_get(out), product + factor * before), words


@ALL_TARGETS
@pytest.mark.parametrize("lead", [(), (3,)], ids=str)
def test_gated_products_take_terms_after_the_gate(lead: tuple[int, ...], target: str) -> None:
    rng = np.random.default_rng(2)
    a, b, c = whole(rng, *lead, 5, 7), whole(rng, 7, 6), whole(rng, 7, 6)
    product = np.maximum(a @ b, 0).astype(np.float64) * (a @ c)
    terms = {"multiply": whole(rng, *lead, 5, 6), "residual": whole(rng, 6), "dropout": 0.5}
    asked = Asked((a, b, c), product, terms)
    given = {
        name: device_put(one, target) if isinstance(one, np.ndarray) else one for name, one in terms.items()
    }
    operands = [device_put(one, target) for one in asked.operands]
    out = device_put(np.full((*lead, 5, 6), np.nan, np.float32), target)
    for _ in range(2):
        tw.gated_matmul(*operands, out, activation="relu", **given, seed=SEED, offset=OFFSET, target=target)
        assert np.array_equal(device_get(out), by_numpy(asked))


@ALL_TARGETS
def test_scales_of_groups_and_of_blocks_take_them_too(target: str) -> None:
    rng = np.random.default_rng(3)
    a, terms = (
        whole(rng, 40, 256, kind="f16", most=1),
        drawn(rng, (), "f32", "c multiply dropout residual").terms,
    )
    terms = {
        name: np.resize(one, (40, 24)) if isinstance(one, np.ndarray) else one for name, one in terms.items()
    }
    weights, scales = whole(rng, 256, 24, kind="i8"), (2.0 ** rng.integers(-1, 2, (8, 24))).astype(np.float32)
    of_groups = a.astype(np.float64) @ (weights * np.repeat(scales, 32, 0).astype(np.float64))
    blocks = (2.0 ** rng.integers(-1, 2, (2, 24))).astype(np.float32)
    of_blocks = a.astype(np.float64) @ (weights * np.repeat(blocks, 128, 0).astype(np.float64))
    given = {
        name: device_put(one, target) if isinstance(one, np.ndarray) else one for name, one in terms.items()
    }
    for scale, product, words in ((scales, of_groups, {"group": 32}), (blocks, of_blocks, {})):
        out = device_put(np.full((40, 24), np.nan, np.float32), target)
        operands = [device_put(one, target) for one in (a, weights)]
        tw.scaled_mm(*operands, out, scale_b=device_put(scale, target), **words, **given, target=target)
        assert np.array_equal(device_get(out), by_numpy(Asked((), product, terms)))


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["f32", "f16", "tf32"])
def test_prepasses_of_a_gpu_take_them_too(precision: str) -> None:
    """Halves of f16, and operands written along K for tf32, hold small whole numbers exactly."""
    rng = np.random.default_rng(4)
    a, b, y, r = whole(rng, 700, 901).T, whole(rng, 700, 803), whole(rng, 901, 803), whole(rng, 803)
    asked = Asked((a, b), a.astype(np.float64) @ b, {"multiply": y, "dropout": 0.5, "residual": r})
    there = [device_put(one, "cuda") for one in (a, b, y, r)]
    out = device_put(np.full((901, 803), np.nan, np.float32), "cuda")
    words = {"multiply": there[2], "residual": there[3], "dropout": 0.5, "seed": SEED, "offset": OFFSET}
    for _ in range(2):
        tw.matmul(*there[:2], out, precision=precision, **words)
        assert np.array_equal(device_get(out), by_numpy(asked))


@ALL_TARGETS
def test_results_of_matmul_saturate(target: str) -> None:
    rng = np.random.default_rng(6)
    a, b = 100 * whole(rng, 9, 7), whole(rng, 7, 6)
    there = [device_put(one, target) for one in (a, b)]
    for kind, low, high in (("i8", -128, 127), ("f8e4m3", -448, 448)):
        made = device_get(tw.matmul(*there, saturate=True, out_dtype=kind, target=target))
        want = np.clip(a @ b, low, high).astype(tw.dtype(kind).numpy)
        assert np.array_equal(made.astype(np.float32), want.astype(np.float32))


@ALL_TARGETS
@pytest.mark.parametrize("op", CALLS)
def test_the_derivative_of_an_activation_is_the_factor(op: str, target: str) -> None:
    """NumPy computes the derivative of silu in f64: s + x s (1 - s) with the sigmoid s of x."""
    rng = np.random.default_rng(7)
    a, b = whole(rng, 9, 7), whole(rng, 7, 6)
    y = rng.standard_normal((9, 6)).astype(np.float32)
    there = [device_put(one, target) for one in (a, b, y)]
    out = device_put(np.full((9, 6), np.nan, np.float32), target)
    CALLS[op](*there[:2], out, multiply=there[2], derivative="silu", target=target)
    x = y.astype(np.float64)
    s = 1 / (1 + np.exp(-x))
    want = 0.5 * (a.astype(np.float64) @ b) * (s + x * s * (1 - s))
    assert (np.abs(device_get(out) - want) <= 2.0**-18 * (1 + np.abs(want))).all()


A, B = np.ones((4, 3), np.float32), np.ones((3, 5), np.float32)


@pytest.mark.parametrize("op", CALLS)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"dropout": 1.0}, "dropout=1.0; nearest legal choice: a number from 0 to below 1"),
        ({"dropout": 0.5, "seed": -1}, "seed=-1; nearest legal choice: an integer of at least 0"),
        ({"offset": -1}, "offset=-1; nearest legal choice: an integer of at least 0"),
        ({"dropout": "half"}, "dropout must be a number"),
        ({"dropout": np.array([0.5, 0.5])}, "dropout must be a number"),
        ({"dropout": None}, "dropout must be a number"),
        ({"seed": np.zeros(2)}, "seed must be an integer"),
        ({"derivative": "gelu"}, "derivative='gelu' needs multiply; nearest legal choice: multiply="),
        ({"derivative": "gelo", "multiply": np.ones((4, 5), np.float32)}, "derivative='gelo'; choose one of"),
        ({"beta": 2.0}, r"beta=2.0 needs c or out, and neither is given; nearest legal choice: c="),
        ({"multiply": np.ones((3, 5), np.float32)}, r"multiply has shape \(3, 5\), which does not broadcast"),
        ({"c": np.ones((3, 5), np.float32), "beta": 0.0}, r"c has shape \(3, 5\), which does not broadcast"),
    ],
    ids=lambda value: "" if isinstance(value, str) else " ".join(value),
)
def test_bad_terms_are_refused(op: str, words: dict[str, Any], message: str) -> None:
    with pytest.raises(tw.LaunchError, match=message):
        CALLS[op](A, B, None, **words, target="reference")


def test_terms_of_wrapped_integers_and_of_complex_numbers_are_refused() -> None:
    ones = np.ones((3, 3), np.uint8)
    for words in ({"multiply": ones}, {"dropout": 0.5}, {"saturate": True}):
        (name,) = words
        with pytest.raises(tw.DTypeError, match=f"{name} with operands of u8 and u8, whose sums wrap"):
            tw.matmul(ones, ones, **words, target="reference")
    with pytest.raises(tw.LaunchError, match="matmul: saturate with complex arrays; nearest"):
        tw.matmul(ones.astype(np.complex64), ones.astype(np.complex64), saturate=True, target="reference")


def test_invariant_contractions_need_no_view() -> None:
    a, b = np.ones((2, 3, 4), np.float32), np.ones((4, 5), np.float32)
    made = tw.einsum("bmk,kn->bmn", a, b, batch_invariant=True, target="cpu")
    assert np.array_equal(made, np.full((2, 3, 5), 4, np.float32))
    x, w = np.ones((3, 6, 4), np.float32), np.ones((4, 2, 5), np.float32)
    with pytest.raises(tw.LaunchError, match="batch_invariant=True, and out need a view; nearest"):
        tw.einsum("bsk,khe->bhse", x, w, batch_invariant=True, target="reference")


def test_results_of_integers_hold_what_is_added_to_them() -> None:
    ones = np.ones((3, 3), np.int8)
    for name in ("c", "residual", "multiply"):
        with pytest.raises(
            tw.DTypeError, match=f"{name} is i64, and a result of i32 cannot hold all its values"
        ):
            tw.matmul(ones, ones, **{name: np.full((3, 3), 2**40)}, target="reference")
    added = np.full((3, 3), 2**30, np.int32)
    assert np.array_equal(tw.matmul(ones, ones, residual=added, target="cpu"), np.full((3, 3), 2**30 + 3))


M, N, K = 512, 768, 1024


@pytest.mark.parametrize(("target", "arch"), [("cuda", "sm_90a"), ("cuda", "sm_80"), ("hip", "gfx942")])
@pytest.mark.parametrize("op", ["matmul", "scaled_mm"])
def test_kernels_of_every_gpu_have_room_for_all_terms(op: str, target: str, arch: str) -> None:
    """The compiler keeps all values in registers."""
    late = LateTerms("gelu", (0, 1))
    terms = frozenset({"alpha", "c", "bias", "multiply", "dropout", "residual"})
    numbers = (1.0, 1.0, SEED, OFFSET, 2**31, 2.0)
    wide = tw.like("f16", M, N)
    if op == "matmul":
        kernel = combined(0, tw.f32, None, ("multiply", "dropout"))
        bound = kernel.bind(precision="exact", terms=terms, activation="silu", late=late)
        given = [tw.like("f16", M, K), tw.like("f16", K, N), wide, tw.like("f16", N), wide, wide, wide]
    else:
        kernel = scaled(0, ("c", "multiply", "residual", "dropout"))
        bound = kernel.bind(multiplied=tw.f16, terms=terms | {"scale_b"}, activation=None, late=late)
        scales = tw.like("f32", M), tw.like("f32", N)
        given = [tw.like("f16", M, K), tw.like("f8e4m3", K, N, order="F"), *scales, tw.like("f16", N)]
        given += [wide] * 4
    resources = bound.compile(*given, *numbers, target=target, arch=arch).resources
    assert resources["stack_bytes"] == 0
    assert not any(count for name, count in resources.items() if "spill" in name), resources


@pytest.mark.parametrize(
    ("sums", "operand", "error", "message"),
    [
        (np.zeros((3, 4), np.float32), np.float32, tw.LaunchError, r"sums has shape \(3, 4\); .* \(4, 4\)"),
        (np.zeros((4, 4), np.int32), np.float32, tw.DTypeError, "sums is i32; nearest legal choice: f32"),
        (np.zeros((4, 4), np.complex64), np.float32, tw.DTypeError, "sums is c64; nearest legal choice: f32"),
        (np.zeros((4, 4), np.float32), np.int8, tw.DTypeError, "sums with operands of i8"),
        (np.zeros((4, 4), np.float32), np.complex64, tw.LaunchError, "sums with complex arrays"),
    ],
)
def test_other_arrays_are_refused_as_sums(sums: Array, operand: Any, error: Any, message: str) -> None:
    a, one = np.ones((4, 4), operand), np.ones((4, 4), np.float32)
    with pytest.raises(error, match=message):
        tw.matmul(a, a, sums=sums, target="reference")
    with pytest.raises(tw.LaunchError, match="sums and a share memory"):
        tw.matmul(one, one, sums=one, target="reference")
