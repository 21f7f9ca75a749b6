"""With alpha = 0 A and B are not read; alphas and betas that become infinite or 0 are refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.turns import calls_on

import tilewright as tw

Array = np.ndarray[Any, Any]
ON_ALL = pytest.mark.parametrize("target", ["reference", "cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
M, N, K = 37, 29, 40
LARGEST = int(np.finfo(np.float32).max)


def spoiled(kind: str, shape: tuple[int, ...]) -> Array:
    """Return numbers that spoil every sum: NaN and infinities, or the largest integers."""
    made = (
        np.full(shape, 127, np.int8) if kind == "i8" else np.full(shape, np.nan).astype(tw.dtype(kind).numpy)
    )
    if kind != "i8":
        made[..., ::2] = np.inf if kind != "f8e4m3" else np.nan
    return made


def whole(shape: tuple[int, ...], dtype: Any = np.float32) -> Array:
    """Return integers that every dtype of this file holds."""
    return np.random.default_rng(len(shape)).integers(-4, 5, shape).astype(dtype)


def on(target: str, *arrays: Array) -> list[Any]:
    return [tw.testing.device_put(one, target) for one in arrays]


def back(array: Any) -> Array:
    return np.asarray(tw.testing.device_get(array))


@ON_ALL
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("f32", {}),
        ("f32", {"precision": "f32"}),
        ("f32", {"precision": "f16", "batch_invariant": True}),
        ("f16", {"split_k": 4}),
        ("f16", {"split_k": "stream"}),
        ("bf16", {"batch_invariant": True}),
        ("f64", {}),
        ("f8e4m3", {}),
        ("i8", {}),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore::tilewright.SlowWarning")  # f8 along N is slow, but not read here
def test_a_product_by_0_reads_no_operand(kind: str, words: dict[str, Any], target: str) -> None:
    a, b, added, bias = spoiled(kind, (M, K)), spoiled(kind, (K, N)), whole((M, N)), whole((N,))
    a, b, c, row = on(target, a, b, added, bias)
    for alpha in (0.0, 0, -0.0):
        for _ in calls_on(target):
            made = tw.matmul(a, b, c=c, alpha=alpha, beta=2.0, out_dtype="f32", target=target, **words)
            assert np.array_equal(back(made), 2 * added)
            made = tw.matmul(
                a, b, alpha=alpha, bias=row, activation="relu", out_dtype="f32", target=target, **words
            )
            assert np.array_equal(back(made), np.broadcast_to(np.maximum(bias, 0), (M, N)))
            assert not back(tw.matmul(a, b, alpha=alpha, target=target, **words)).any()


@pytest.mark.parametrize("target", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("layout", ["nn", "tt"])
def test_large_products_by_0_take_the_ways_of_large_ones(layout: str, target: str) -> None:
    """Halves, planes, prepasses and bulk copies all have K = 0."""
    size = 768
    for kind, precision in (("f32", "f32"), ("f32", "tf32"), ("f32", "f16"), ("f16", "exact")):
        spoilt = spoiled(kind, (size, size))
        a, b = on(target, spoilt, spoilt)
        a, b = (a.T, b.T) if layout == "tt" else (a, b)
        (c,) = on(target, whole((size, size)))
        made = tw.matmul(a, b, c=c, alpha=0, precision=precision, target=target)
        assert np.array_equal(back(made), whole((size, size)))
        made = tw.einsum("ij,jk->ki", a, b, residual=c, alpha=0, precision=precision, target=target)
        assert np.array_equal(back(made), whole((size, size)))


@ON_ALL
@pytest.mark.parametrize("split", [3])
def test_the_caller_s_schedule_computes_a_product_by_0(split: int, target: str) -> None:
    schedule = tw.Schedule(tw.atoms.fma("f32"), (32, 32, 8), split_k=split)
    a, b, c = on(target, spoiled("f32", (M, K)), spoiled("f32", (K, N)), whole((M, N)))
    made = tw.matmul(a, b, c=c, alpha=0, schedule=schedule, target=target)
    assert np.array_equal(back(made), whole((M, N)))


@ON_ALL
@pytest.mark.parametrize("subscripts", ["bik,kj->bij", "bik,bjk->jbi", "bik,jl->bijl", "bii,bj->j"])
def test_a_contraction_by_0_reads_no_operand(subscripts: str, target: str) -> None:
    labels = dict(zip("bijkl", (2, 5, 7, 5, 3), strict=True))
    of_a, of_b, of_out = re.split(",|->", subscripts)
    shapes = [tuple(labels[one] for one in axes) for axes in (of_a, of_b, of_out)]
    added, factor = whole(shapes[2]), whole(shapes[2])
    a, b, bias, multiply = on(target, spoiled("f32", shapes[0]), spoiled("f32", shapes[1]), added, factor)
    for _ in calls_on(target):
        words = {"alpha": 0, "bias": bias, "multiply": multiply, "target": target}
        assert np.array_equal(back(tw.einsum(subscripts, a, b, **words)), added * factor)
        words |= {"derivative": "relu", "residual": bias}
        assert np.array_equal(back(tw.einsum(subscripts, a, b, **words)), added * (factor > 0) + added)


@ON_ALL
@pytest.mark.parametrize("method", ["4m", "3m"])
def test_a_complex_product_by_0_reads_no_operand(method: str, target: str) -> None:
    a, b = (np.full(shape, complex(np.nan, np.inf), np.complex64) for shape in ((M, K), (K, N)))
    added = whole((M, N)) + 1j * whole((N, M)).T
    a, b, c = on(target, a, b, added.astype(np.complex64))
    for alpha in (0, 0.0, 0j):
        words = {"alpha": alpha, "method": method, "target": target}
        assert np.array_equal(back(tw.complex_matmul(a, b, c, beta=2j, **words)), 2j * added)
        assert not back(tw.complex_matmul(a, b, conjugate_a=True, **words)).any()
    assert np.array_equal(back(tw.matmul(a, b, c=c, alpha=0, target=target)), added)


@ON_ALL
@pytest.mark.parametrize("axis", [-1, -2])
def test_a_reduced_product_by_0_reads_no_operand(axis: int, target: str) -> None:
    bias = whole((N,))
    a, b, row = on(target, spoiled("f32", (M, K)), spoiled("f32", (K, N)), bias)
    made = tw.reduced_matmul(a, b, ("sum", "max"), axis, alpha=0, bias=row, target=target)
    want = np.broadcast_to(bias, (M, N))
    assert np.array_equal(back(made[0]), want.sum(axis=axis))
    assert np.array_equal(back(made[1]), want.max(axis=axis))


SMALL = np.ones((4, 4), np.float32)
COMPLEX = SMALL.astype(np.complex64)
CALLS: dict[str, Callable[..., Any]] = {
    "matmul: alpha": lambda number, **how: tw.matmul(SMALL, SMALL, alpha=number, **how),
    "matmul: beta": lambda number, **how: tw.matmul(SMALL, SMALL, c=SMALL, beta=number, **how),
    "einsum: alpha": lambda number, **how: tw.einsum("ij,jk->ik", SMALL, SMALL, alpha=number, **how),
    "reduced_matmul: alpha": lambda number, **how: tw.reduced_matmul(
        SMALL, SMALL, "sum", alpha=number, **how
    ),
    "complex_matmul: alpha": lambda number, **how: tw.complex_matmul(COMPLEX, COMPLEX, alpha=number, **how),
    "complex_matmul: beta": lambda number, **how: tw.complex_matmul(
        COMPLEX, COMPLEX, COMPLEX, beta=number, **how
    ),
    "matmul: alpha of complex": lambda number, **how: tw.matmul(COMPLEX, COMPLEX, alpha=number, **how),
}


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("name", CALLS)
def test_what_f32_does_not_hold_is_refused_with_the_nearest(name: str, target: str) -> None:
    call, said = CALLS[name], name.split(" of ")[0]
    largest, least = float(np.finfo(np.float32).max), float(np.finfo(np.float32).smallest_subnormal)
    for known in (2.5, 3.0):  # what is known is looked at, too
        call(known, target=target)
    cases = ((1e39, "becomes infinite", largest), (-1e39, "becomes infinite", -largest))
    cases += ((1e-50, "becomes 0", least), (-(2.0**-150), "becomes 0", -least))
    for number, why, nearest in cases:
        for _ in range(2):
            with pytest.raises(tw.LaunchError, match=why) as caught:
                call(number, target=target)
            text = str(caught.value)
            assert said in text or said.split(": ")[1] in text  # of what is known only the argument is said
            assert text.endswith(f"nearest legal choice: {nearest}")
        call(nearest, target=target)
    call(float(np.float32(3e38)) * (1 + 2.0**-25), target=target)  # rounded to a number


WIDE: dict[str, tuple[str, Callable[[Array, Any], Array]]] = {
    "matmul": ("alpha", lambda a, n: tw.matmul(a, a, alpha=n, target="cpu")),
    "of f64": ("alpha", lambda a, n: tw.matmul(a.astype(float), a, alpha=n, target="cpu")),
    "beta": ("beta", lambda a, n: tw.matmul(a, a, c=a, beta=n, target="cpu")),
    "complex": ("alpha", lambda a, n: tw.complex_matmul(a + 0j, a + 0j, alpha=n, target="cpu").real),
    "einsum": ("alpha", lambda a, n: tw.einsum("ij,jk->ik", a, a, alpha=n, target="cpu")),
    "reduced": ("alpha", lambda a, n: tw.reduced_matmul(a, a, "max", -1, alpha=n, target="cpu")),
}


@pytest.mark.parametrize("name", WIDE)
@pytest.mark.parametrize("integer", [2**64, -(2**63) - 1, 2**70, 3**400, -(3**4000)], ids=int.bit_length)
def test_an_integer_of_more_than_64_bits_is_given_as_a_float(name: str, integer: int) -> None:
    argument, call = WIDE[name]
    a = whole((4, 4))
    if name == "of f64":
        a = a.astype(float)
    call(a, 7)  # whole numbers are known, and a call of another is refused as before it was
    message = f"{argument} must be a number.*; an integer of more than 64 bits is given as a float; nearest "
    with pytest.raises(tw.LaunchError, match=f"{message}legal choice: {argument}=") as caught:
        call(a, integer)
    nearest = float(str(caught.value).rpartition("=")[2])
    call(a, nearest)
    assert nearest == float(min(max(integer, -LARGEST), LARGEST))


def test_parts_of_complex_numbers_are_named() -> None:
    for number, part in ((1e39 + 1j, "real"), (1 - 1e39j, "imag")):
        with pytest.raises(
            tw.LaunchError, match=rf"complex_matmul: alpha\.{part}=-?1e\+39 becomes infinite in f32"
        ):
            tw.complex_matmul(COMPLEX, COMPLEX, alpha=number, target="reference")


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_products_of_f64_hold_them(target: str) -> None:
    wide = SMALL.astype(np.float64)
    assert np.array_equal(tw.matmul(wide, wide, alpha=1e39, target=target), np.full((4, 4), 4e39))
    made = tw.matmul(SMALL, SMALL, alpha=1e39, out_dtype="f64", target=target)
    assert np.array_equal(made, np.full((4, 4), 4e39))
    assert np.isinf(tw.matmul(SMALL, SMALL, alpha=np.inf, target=target)).all()
    assert np.isnan(tw.matmul(SMALL, SMALL, alpha=np.nan, target=target)).all()


def test_nothing_is_written_or_compiled_for_a_number_that_is_refused() -> None:
    out, built = np.full((4, 4), 7, np.float32), []

    @tw.kernel(X="M N", by=tw.f32)
    def scale(X: Any, by: Any) -> None:
        built.append(by)
        part = X.tile((4, 4), (0, 0))
        tw.copy(tw.load(part) * by, part)

    for target in ("reference", "cpu"):
        with pytest.raises(tw.LaunchError, match=r"by=1e\+39 becomes infinite in f32"):
            scale(out, 1e39, target=target)
    assert not built
    assert (out == 7).all()


def test_plain_numbers_within_kernels_are_held() -> None:
    @tw.kernel(X="M N")
    def scale(X: Any, *, by: float) -> None:
        part = X.tile((4, 4), (0, 0))
        tw.copy(tw.load(part) * by, part)

    for number, why in ((1e39, "becomes infinite in f32"), (1e-60, "becomes 0 in f32")):
        with pytest.raises(tw.TilewrightError, match=why):
            scale.bind(by=number)(np.ones((4, 4), np.float32), target="reference")
