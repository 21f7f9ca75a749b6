"""`complex_matmul` in host memory: numbers, conjugates, strides, batches, planes, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.checking.compare import Accumulation
from tilewright.checking.complex_products import compare_complex, planes
from tilewright.checking.sample import normal
from tilewright.dtypes import DType
from tilewright.targets.atoms import TENSOR_CORE, fma

C = {"f16": tw.c32, "f32": tw.c64, "f64": tw.c128}


def numbers(rng: np.random.Generator, shape: tuple[int, ...], part: DType, how: str) -> Any:
    """Random complex numbers: interleaved or planar, dense, transposed or of odd strides."""
    layout, _, order = how.partition(" ")
    if order == "transposed":
        turned = numbers(rng, (*shape[:-2], *shape[:-3:-1]), part, layout)
        return tuple(one.mT for one in turned) if layout == "planar" else turned.swapaxes(-1, -2)
    step = 1 if order == "" else 3
    held = normal(rng, (*shape[:-1], step * shape[-1] + 5, 2), part)[..., : step * shape[-1] : step, :]
    if layout == "planar":
        return held[..., 0], np.ascontiguousarray(held[..., 1])
    return np.stack([held[..., 0], held[..., 1]], -1).view(C[part.name].numpy)[..., 0]


def poisoned(shape: tuple[int, ...], part: DType, how: str) -> Any:
    whole = np.full((*shape[:-1], 2 * shape[-1] + 3, 2), np.nan, part.numpy)
    if how.startswith("planar"):
        return whole[..., : shape[-1], 0], whole[..., shape[-1] : -3, 1]
    return whole.view(C[part.name].numpy)[..., 1 : 2 * shape[-1] : 2, 0]


def check(
    d: Any, a: Any, b: Any, c: Any, *, how: Accumulation | None = None, conjugates: Any, **factors: Any
) -> None:
    """Every matrix of the batches, each element."""
    (a, b, d), added = (planes(one) for one in (a, b, d)), None if c is None else planes(c)
    sides = [(re, -im if wanted else im) for (re, im), wanted in zip((a, b), conjugates, strict=True)]
    shape = d[0].shape
    lead = shape[:-2]
    for index in np.ndindex(lead):
        one, other = (
            tuple(np.broadcast_to(x, (*lead, *x.shape[-2:]))[index] for x in side) for side in sides
        )
        c_there = None if added is None else tuple(np.broadcast_to(x, shape)[index] for x in added)
        made = tuple(x[index] for x in d)
        compare_complex(one, other, made, c_there, how=how, **factors).raise_if_wrong()


CASES = {
    # dtype of the parts, layouts of a, b, c and out, (M, N, K), batches of a and b, conjugates, alpha, beta
    "c64": ("f32", "interleaved", "interleaved", None, None, (70, 61, 150), (), (), (0, 0), 1, None),
    "c64, everything": (
        *("f32", "interleaved transposed", "interleaved odd", "interleaved", "interleaved"),
        *((33, 18, 65), (2, 1), (3,), (1, 0), 0.5 - 2j, 1 + 1j),
    ),
    "c128": ("f64", "interleaved", "planar", "planar odd", "interleaved", (19, 35, 40), (), (), (1, 1), 2, 1),
    "f32 planes": (
        "f32",
        "planar odd",
        "planar transposed",
        None,
        None,
        (33, 40, 20),
        (),
        (4,),
        (0, 1),
        1j,
        None,
    ),
    "c32": ("f16", "interleaved", "interleaved", None, "interleaved", (65, 30, 70), (), (), (0, 0), 1, None),
    "bf16 planes": ("bf16", "planar", "planar", "planar", "planar", (30, 65, 33), (), (), (0, 0), 1, -0.5),
    "f64 planes": ("f64", "planar", "interleaved transposed", None, None, (5, 3, 0), (), (), (0, 0), 1, None),
}


def made(name: str, seed: int = 0) -> tuple[dict[str, Any], dict[str, Any], tuple[int, int]]:
    part, *layouts, (m, n, k), lead_a, lead_b, conjugates, alpha, beta = CASES[name]
    element, rng = tw.dtype(part), np.random.default_rng(seed)
    lead = np.broadcast_shapes(lead_a, lead_b)
    shapes = ((*lead_a, m, k), (*lead_b, k, n), (*lead, m, n))
    arrays = {
        one: numbers(rng, shape, element, layout)
        for one, shape, layout in zip("abc", shapes, layouts, strict=False)
        if layout is not None
    }
    if layouts[3] is not None:
        arrays["out"] = poisoned(shapes[2], element, layouts[3])
    return arrays, {"alpha": alpha, "beta": beta}, conjugates


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("name", CASES)
def test_every_element_is_right(name: str, target: str) -> None:
    arrays, factors, conjugates = made(name)
    flags = {"conjugate_a": bool(conjugates[0]), "conjugate_b": bool(conjugates[1])}
    d = tw.complex_matmul(**arrays, **factors, **flags, target=target)
    if "out" in arrays:
        assert d is arrays["out"]
    else:
        assert isinstance(d, tuple) == isinstance(arrays["a"], tuple)
    part = tw.dtype(planes(arrays["a"])[0].dtype)
    how = Accumulation.of(
        TENSOR_CORE[part.name] if target == "reference" and part.name in ("f16", "bf16") else fma(part)
    )
    beta = 1 if factors["beta"] is None else factors["beta"]
    check(
        d,
        arrays["a"],
        arrays["b"],
        arrays.get("c"),
        how=how,
        conjugates=conjugates,
        alpha=factors["alpha"],
        beta=beta,
    )


def test_matmul_of_complex_arrays_and_a_result_that_is_added_to() -> None:
    rng = np.random.default_rng(3)
    a, b, c = (numbers(rng, (48, 48), tw.f32, "interleaved") for _ in range(3))
    check(tw.matmul(a, b), a, b, None, conjugates=(0, 0))
    before = c.copy()
    assert tw.matmul(a, b, c, alpha=1j, beta=2 - 1j) is c
    check(c, a, b, before, conjugates=(0, 0), alpha=1j, beta=2 - 1j)
    parts = c.real, c.imag
    before = c.copy()
    assert tw.matmul(a, b, parts, c=c) is parts
    check(c, a, b, before, conjugates=(0, 0), beta=1)
    vector = tw.complex_matmul(a[0], b)
    assert vector.shape == (48,)
    check(vector[None], a[:1], b, None, conjugates=(0, 0))


def test_a_result_of_other_numbers() -> None:
    rng = np.random.default_rng(4)
    a, b = (numbers(rng, (20, 20), tw.f16, "interleaved") for _ in range(2))
    for wide in (
        tw.complex_matmul(a, b, out_dtype="c64"),
        tw.complex_matmul(a, b, out=np.empty((20, 20), "c8")),
    ):
        assert wide.dtype == np.complex64
        check(wide, a, b, None, conjugates=(0, 0))


@pytest.mark.parametrize("fault", ["a lost k", "a conjugate forgotten", "parts in the wrong order", "a sign"])
def test_what_is_wrong_is_found(fault: str) -> None:
    rng = np.random.default_rng(5)
    a, b = (numbers(rng, (40, 40), tw.f32, "interleaved") for _ in range(2))
    d = tw.complex_matmul(a, b, conjugate_a=True)
    check(d, a, b, None, conjugates=(1, 0))
    if fault == "a lost k":
        d = tw.complex_matmul(a[:, 1:], b[1:], conjugate_a=True)
    elif fault == "a conjugate forgotten":
        d = tw.complex_matmul(a, b)
    elif fault == "parts in the wrong order":
        d = d.imag + 1j * d.real
    else:
        d = d.conj()
    with pytest.raises(tw.WrongResultError):
        check(d, a, b, None, conjugates=(1, 0))


X = np.ones((4, 4), np.complex64)
PLANES = (X.real, X.imag)
NARROW = (X.real.astype(tw.f8e4m3.numpy),) * 2


@pytest.mark.parametrize(
    ("error", "words", "given", "options"),
    [
        (tw.DTypeError, "a is f32, whose numbers are real; nearest", (X.real, X), {}),
        (tw.DTypeError, "of c64 and c128: convert one", (X, X.astype(np.complex128)), {}),
        (tw.DTypeError, "of a pair of f32 and c128: convert one", (PLANES, X.astype(np.complex128)), {}),
        (tw.DTypeError, "a is a pair of f32 and f64", ((X.real, X.imag.astype(float)), X), {}),
        (tw.DTypeError, "no product of a pair of f8e4m3 yet", (NARROW, NARROW), {}),
        (tw.DTypeError, "out_dtype is f32, a @ b is complex", (X, X), {"out_dtype": "f32"}),
        (tw.LaunchError, "a is 3 arrays", ((X.real,) * 3, X), {}),
        (tw.LaunchError, r"real parts of b have shape \(4, 4\), the imaginary parts \(4, 3\)",
         (X, (X.real, X.imag[:, :3])), {}),
        (tw.LaunchError, r"K is 4 in a and 3 in b", (X, X[:3]), {}),
        (tw.LaunchError, r"out has shape \(4, 3\)", (X, X), {"out": np.empty((4, 3), np.complex64)}),
        (tw.LaunchError, "out and a share memory", (X, X.copy()), {"out": X}),
        (tw.LaunchError, "out and b share memory", (X.copy(), X), {"out": (X.real, np.empty((4, 4), "f4"))}),
        (tw.LaunchError, "its real and imaginary parts share memory", (X, X), {"out": (X.real.copy(),) * 2}),
        (tw.LaunchError, "out and c share memory", (X.copy(), X.copy(), X.T), {"out": X, "beta": 1}),
        (tw.LaunchError, "beta=2j multiplies neither c nor out", (X, X), {"beta": 2j}),
        (tw.LaunchError, "method='5m'; choose one of", (X, X), {"method": "5m"}),
        (tw.LaunchError, "precision='half'; choose one of exact, tf32", (X, X), {"precision": "half"}),
        (tw.LaunchError, "alpha='x'", (X, X), {"alpha": "x"}),
    ],
)  # fmt: skip
def test_what_is_refused(error: type[Exception], words: str, given: Any, options: Any) -> None:
    given = [one.copy() if one is X and "share" not in words else one for one in given]
    with pytest.raises(error, match=words):
        tw.complex_matmul(*given, **options)


def test_what_matmul_refuses_of_complex_arrays() -> None:
    with pytest.raises(tw.LaunchError, match="bias of complex arrays; nearest legal choice: c="):
        tw.matmul(X, X, bias=X[0])
    with pytest.raises(tw.LaunchError, match="alpha=1j beside arrays of real numbers"):
        tw.matmul(X.real, X.real, alpha=1j)
