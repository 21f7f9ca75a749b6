"""Dataflow kernels of complex numbers, against NumPy in wider types under the standard error model.

A result that is computed with ``count`` roundings differs from the exact one by at most ``count * u * size``,
to first order in the unit roundoff u. The size is the formula with absolute values in place of all numbers.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.dataflow.evaluate import evaluate
from tilewright.errors import LaunchError, SignatureError, TraceError
from tilewright.ops.complex_products import four_products
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.gpu_memory import DeviceArray
from tilewright.shipping.folder import export
from tilewright.targets.target import CUDA

M, N, K = 37, 29, 43

KINDS = {"c64": (np.complex64, np.float32), "c128": (np.complex128, np.float64)}
WIDE = {"c64": (np.complex128, np.float64), "c128": (np.clongdouble, np.longdouble)}


# ---------------------------------------------------------------- kernels


@tw.kernel(A="M K", B="K N", C="M N")
def product(A: Any, B: Any, C: Any) -> None:
    for m, n in tw.tiles(C):
        C[m, n] = A[m] @ B[:, n]


@tw.kernel(A="M K", B="N K", C="M N")
def conjugates(A: Any, B: Any, C: Any) -> None:
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc -= A[m, k].conj() @ B[n, k].conj().T
        C[m, n] = acc.conj()


@tw.kernel(A="M K", B="N K", C="M N")
def one_conjugate(A: Any, B: Any, C: Any) -> None:
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].conj().T
        C[m, n] = acc


@tw.kernel(A="M K", B="K N", window="M N", P="M N")
def beam_power(A: Any, B: Any, window: Any, P: Any) -> None:
    for m, n in tw.tiles(P):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]
        P[m, n] = abs(acc) ** 2 * window[m, n]


@tw.kernel(A="M K", B="K N", x="N", r="M", D="M N", C="M N", E="M N")
def endings(A: Any, B: Any, x: Any, r: Any, D: Any, C: Any, E: Any) -> None:
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]
        C[m, n] = (2 - 1j) * acc * x[n] + 1j * r[m][:, None] + D[m, n]
        E[m, n] = abs(acc) + acc.imag


@tw.kernel(A="M K", B="K N", C="M N")
def real_times_complex(A: Any, B: Any, C: Any) -> None:
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]
        C[m, n] = acc


@tw.kernel(A="M K", B="K N", phase="N", C="M N")
def steered(A: Any, B: Any, phase: Any, C: Any) -> None:
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]
        C[m, n] = acc * tw.exp(1j * phase[n])


@tw.kernel(A="... M K", B="... K N", C="... M N")
def batches(A: Any, B: Any, C: Any) -> None:
    for *b, m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[-1]):
            acc += A[*b, m, k] @ B[*b, k, n]
        C[*b, m, n] = acc


@tw.kernel(A="M K", x="K", y="M")
def by_vector(A: Any, x: Any, y: Any) -> None:
    for m in tw.tiles(y):
        acc = tw.zeros()
        for k in tw.steps(x.shape[0]):
            acc += A[::-1][m, k] @ x[k]
        y[m] = acc


@tw.kernel(X="M N", Y="M N", Z="M N")
def quotients(X: Any, Y: Any, Z: Any) -> None:
    for m, n in tw.tiles(Z):
        Z[m, n] = X[m, n] / Y[m, n]


@tw.kernel(X="M N", Y="M N", Z="M N")
def choices(X: Any, Y: Any, Z: Any) -> None:
    for m, n in tw.tiles(Z):
        x, y = X[m, n], Y[m, n]
        Z[m, n] = tw.where((x == y) | (x.real > 0), x + y, x.conj() * y)


@tw.kernel(X="M N", Y="M N", s="M", q="M")
def sums_of_rows(X: Any, Y: Any, s: Any, q: Any) -> None:
    for m, n in tw.tiles(X):
        s[m] = (X[m, n] * Y[m, n].conj()).sum(axis=1)
        q[m] = (abs(X[m, n]) ** 2).sum(axis=1)


@tw.kernel(X="M N", Y="M N", s="M")
def in_steps(X: Any, Y: Any, s: Any) -> None:
    for m in tw.tiles(s):
        total = tw.zeros((m,), X.dtype)
        for k in tw.steps(X.shape[1]):
            total.assign(total + (X[m, k] * Y[m, k].conj()).sum(axis=1))
        s[m] = total


@tw.kernel(Q="M K", W="N K", V="N E", O="M E")
def fused(Q: Any, W: Any, V: Any, O: Any) -> None:
    for m in tw.tiles(O.shape[0]):
        O[m] = (abs(Q[m].conj() @ W.T) ** 2) @ V


# ---------------------------------------------------------------- cases


@dataclass(frozen=True)
class Case:
    """A kernel, its arrays and results.

    Args:
        kernel: the kernel.
        given: shapes of its arrays; "r" before a shape: real numbers.
        made: shapes of its results, likewise.
        exact: the results in the arrays' dtype.
        sizes: the formula with absolute values.
        count: roundings of each result.
    """

    kernel: Any
    given: tuple[Any, ...]
    made: tuple[Any, ...]
    exact: Callable[..., Any]
    sizes: Callable[..., Any]
    count: int


AB = ((M, K), (K, N))
BT = ((M, K), (N, K))
XY = ((M, N), (M, N))
OF_SUM = 2 * K + 4  # a part of a sum has 2 K products, each rounded once, and as many sums; times sqrt(2)

CASES = {
    "product": Case(product, AB, (XY[0],), lambda a, b: a @ b, lambda a, b: a @ b, 2 * OF_SUM),
    "conjugates": Case(conjugates, BT, (XY[0],), lambda a, b: -(a @ b.T), lambda a, b: a @ b.T, 2 * OF_SUM),
    "one conjugate": Case(
        one_conjugate, BT, (XY[0],), lambda a, b: a @ b.conj().T, lambda a, b: a @ b.T, 2 * OF_SUM
    ),
    "power": Case(
        *(beam_power, (*AB, ("r", M, N)), (("r", M, N),)),
        *(lambda a, b, w: abs(a @ b) ** 2 * w, lambda a, b, w: (a @ b) ** 2 * w, 4 * OF_SUM + 4),
    ),
    "endings": Case(
        *(endings, (*AB, (N,), ("r", M), (M, N)), ((M, N), ("r", M, N))),
        lambda a, b, x, r, d: ((2 - 1j) * (a @ b) * x + 1j * r[:, None] + d, abs(a @ b) + (a @ b).imag),
        lambda a, b, x, r, d: (abs(2 - 1j) * (a @ b) * x + r[:, None] + d, 2 * (a @ b)),
        2 * OF_SUM + 16,
    ),
    "real": Case(
        real_times_complex,
        (("r", M, K), (K, N)),
        (XY[0],),
        lambda a, b: a @ b,
        lambda a, b: a @ b,
        2 * OF_SUM,
    ),
    "steered": Case(
        *(steered, (*AB, ("r", N)), (XY[0],)),
        *(lambda a, b, p: (a @ b) * np.exp(1j * p), lambda a, b, p: a @ b, 2 * OF_SUM + 12),
    ),
    "batches": Case(
        *(batches, ((3, M, K), (3, K, N)), ((3, M, N),)),
        *(lambda a, b: np.stack([*map(np.matmul, a, b)]), lambda a, b: a @ b, 2 * OF_SUM),
    ),
    "vector": Case(
        by_vector, ((M, K), (K,)), ((M,),), lambda a, x: a[::-1] @ x, lambda a, x: a[::-1] @ x, 2 * OF_SUM
    ),
    "quotients": Case(quotients, XY, (XY[0],), lambda x, y: x / y, lambda x, y: x / y, 24),
    "choices": Case(
        *(choices, XY, (XY[0],)),
        lambda x, y: np.where(x.real > 0, x + y, x.conj() * y),
        lambda x, y: x + y + x * y,
        4,
    ),
    "sums": Case(
        *(sums_of_rows, XY, ((M,), ("r", M))),
        lambda x, y: ((x * y.conj()).sum(1), (abs(x) ** 2).sum(1)),
        lambda x, y: ((x * y).sum(1), (x * x).sum(1)),
        2 * N + 8,
    ),
    "steps": Case(
        *(in_steps, XY, ((M,),)),
        *(lambda x, y: (x * y.conj()).sum(1), lambda x, y: (x * y).sum(1), 2 * N + 8),
    ),
    "fused": Case(
        *(fused, ((M, K), (N, K), (N, 7)), ((M, 7),)),
        lambda q, w, v: (abs(q.conj() @ w.T) ** 2) @ v,
        lambda q, w, v: ((q @ w.T) ** 2) @ v,
        4 * OF_SUM + 2 * N + 8,
    ),
}

LAYOUTS = ("plain", "odd", "turned", "reversed", "misaligned")


def made(rng: np.random.Generator, shape: Any, kind: str, layout: str, *, empty: bool = False) -> Any:
    """Return an array of random numbers, or of NaN, with a layout in memory."""
    real = shape[0] == "r"
    shape = shape[1:] if real else shape
    dtype = np.dtype(KINDS[kind][real])
    if layout == "odd":
        held = np.empty((*shape[:-1], 3 * shape[-1] + 1), dtype)[..., 1 : 1 + 3 * shape[-1] : 3]
    elif layout == "turned":
        held = np.empty(shape[::-1], dtype).T
    elif layout == "reversed":
        held = np.empty(shape, dtype)[..., ::-1]
    elif layout == "misaligned":
        part = dtype.itemsize if real else dtype.itemsize // 2
        count = int(np.prod(shape)) * dtype.itemsize
        held = np.empty(count + 64, np.uint8)
        start = -held.ctypes.data % 64 + part
        held = held[start : start + count].view(dtype).reshape(shape)
    else:
        held = np.empty(shape, dtype)
    if empty:
        held[...] = np.nan
    else:
        held[...] = rng.standard_normal(shape)
        if not real:
            held.imag = rng.standard_normal(shape)
    return held


def widened(array: Any, kind: str) -> Any:
    return array.astype(WIDE[kind][array.dtype.kind != "c"])


def tupled(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


def check(case: Case, kind: str, given: Any, found: Any) -> None:
    wide = [widened(one, kind) for one in given]
    exact, sizes = case.exact(*wide), case.sizes(*map(abs, wide))
    unit = np.finfo(KINDS[kind][1]).eps / 2
    for one, true, size in zip(found, tupled(exact), tupled(sizes), strict=True):
        assert np.isfinite(one).all()
        assert (abs(widened(one, kind) - true) <= case.count * unit * size).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CASES)
def test_on_cpus(name: str, kind: str) -> None:
    case, rng = CASES[name], np.random.default_rng(3)
    layouts = LAYOUTS if name == "product" else ("plain", LAYOUTS[1 + [*CASES].index(name) % 4])
    for layout in layouts:
        given = [made(rng, one, kind, layout) for one in case.given]
        found = [made(rng, one, kind, layout, empty=True) for one in case.made]
        case.kernel(*given, *found, target="cpu")
        check(case, kind, given, found)


@pytest.mark.parametrize("name", CASES)
def test_the_flow_has_the_meaning_of_the_authors_flow(name: str) -> None:
    case, rng = CASES[name], np.random.default_rng(5)
    given = [made(rng, one, "c64", "plain") for one in case.given]
    results = [made(rng, one, "c64", "plain", empty=True) for one in case.made]
    names = [one.name for one in case.kernel.program.parameters]
    arrays = dict(zip(names, (*given, *results), strict=True))
    found = evaluate(case.kernel.flow(*arrays.values()), arrays)
    check(case, "c64", given, [found[name] for name in names[len(given) :]])


GPUS = {"sm_90a": "cuda", "sm_80": "cuda", "gfx942": "hip"}


@pytest.mark.parametrize("name", ["product", "endings", "sums", "steps", "fused"])
def test_under_the_schedules_of_gpus(name: str) -> None:
    """The reference runs the explicit kernels of each GPU's schedule, and finds no hazards."""
    case, rng = CASES[name], np.random.default_rng(7)
    for arch, target in GPUS.items():
        given = [made(rng, one, "c64", "plain") for one in case.given]
        found = [made(rng, one, "c64", "plain", empty=True) for one in case.made]
        schedule = case.kernel.bind().schedule_for(*given, *found, target=target, arch=arch)
        if schedule.atom.instruction == "fma" or target == "cuda":
            case.kernel.bind(schedule=schedule)(*given, *found, target="reference")
            check(case, "c64", given, found)


@pytest.mark.parametrize("arch", GPUS)
@pytest.mark.parametrize("kind", KINDS)
def test_gpus_compile_them(kind: str, arch: str) -> None:
    rng = np.random.default_rng(9)
    for name in ("product", "endings", "sums", "steps"):
        case = CASES[name]
        given = [made(rng, one, kind, "plain") for one in (*case.given, *case.made)]
        made_ = case.kernel.compile(*given, target=GPUS[arch], arch=arch)
        assert made_.schedule is not None


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CASES)
def test_on_a_gpu(name: str, kind: str) -> None:
    """Chosen schedules, on arrays that are contiguous along either dimension; canaries lie between rows."""
    case, rng = CASES[name], np.random.default_rng(13)
    for layout in ("plain", "turned"):
        given = [made(rng, one, kind, layout) for one in case.given]
        found = [made(rng, one, kind, layout, empty=True) for one in case.made]
        there = [DeviceArray.of(one) for one in (*given, *found)]
        assert case.kernel(*there).target == CUDA.name
        CUDA_DRIVER.synchronize()
        check(case, kind, given, [one.host() for one in there[len(given) :]])


@pytest.mark.gpu
def test_a_large_product_on_a_gpu() -> None:
    """Blocks of many tiles along each dimension; every element is compared."""
    rng, (m, n, k) = np.random.default_rng(17), (1030, 777, 515)
    given = [made(rng, one, "c64", "plain") for one in ((m, k), (k, n))]
    there = [DeviceArray.of(one) for one in (*given, made(rng, (m, n), "c64", "plain", empty=True))]
    assert product(*there).target == CUDA.name
    CUDA_DRIVER.synchronize()
    of_sum = 2 * (2 * k + 4)
    case = dataclasses.replace(CASES["product"], count=of_sum)
    check(case, "c64", given, [there[-1].host()])


@pytest.mark.parametrize(("target", "arch"), [("cuda", "sm_90a"), ("cuda", "sm_80"), ("hip", "gfx942")])
@pytest.mark.parametrize("shape", [(512, 384, 256), (4096, 4096, 4096), (100, 60, 2048)])
def test_a_product_has_the_schedule_of_complex_matmul(target: str, arch: str, shape: Any) -> None:
    m, n, k = shape
    own = product.bind().schedule_for(
        *(tw.like("c64", one) for one in ((m, k), (k, n), (m, n))), target=target, arch=arch
    )
    operands = [tw.like("f32", one) for one in ((m, k, 2), (m, k, 2), (k, n, 2), (k, n, 2))]
    pairs = [tw.like("f64", (m, n))] * 4
    theirs = four_products(0, tw.f32, ("m k", "k n")).bind(
        precision="exact", terms=frozenset(), conjugates=(False,) * 3, pairs=(tw.f32, tw.f32)
    )
    assert own == theirs.schedule_for(*operands, *pairs, *[1.0] * 4, target=target, arch=arch)


def test_a_product_on_cpus_has_the_schedule_of_complex_matmul() -> None:
    a, b, c = (np.ones(one, np.complex64) for one in ((200, 100), (100, 300), (200, 300)))
    theirs = four_products(0, tw.f32).bind(precision="exact", terms=frozenset(), conjugates=(False,) * 3)
    parts = [part for one in (a, b, c, c) for part in (one.real, one.imag)]
    own = product.bind().schedule_for(a, b, c, target="cpu")
    assert own == theirs.schedule_for(*parts, *[1.0] * 4, target="cpu")


# ---------------------------------------------------------------- random expressions


LEAVES = ("X", "Y", "r", "x", "c", "q", "s", "(2 - 1j)", "1j", "0.5")


def drawn(rng: random.Random, depth: int) -> str:
    """Return an expression that means the same for tiles and, up to names, for NumPy's arrays."""
    if depth == 0 or rng.random() < 0.15:
        return rng.choice(LEAVES)
    one, other = drawn(rng, depth - 1), drawn(rng, depth - 1)
    return rng.choice(
        (
            *(f"({one} {sign} {other})" for sign in "+-*"),
            f"({one} / (3 + abs(some({other}))))",
            *(f"some({one}).{part}" for part in ("real", "imag", "conj()")),
            *(f"abs(some({one}))", f"(-{one})", f"exp(0.1 * some({one}))"),
            *(f"where(r > 0, {one}, {other})", f"where(X == {one}, {one}, {other})"),
        )
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(12))
def test_random_expressions(seed: int, kind: str) -> None:
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    first, second = drawn(rng, 4), drawn(rng, 3)
    number = tw.f64 if kind == "c128" else tw.f32

    @tw.kernel(X="M N", Y="M N", r="M N", x="N", c="M", q="N", Z="M N", w="M", s=number)
    def computed(X: Any, Y: Any, r: Any, x: Any, c: Any, q: Any, Z: Any, w: Any, s: Any) -> None:
        for m, n in tw.tiles(Z):
            tiles = {"X": X[m, n], "Y": Y[m, n], "r": r[m, n], "x": x[n], "c": c[m][:, None], "q": q[n]}
            tiles |= {"s": s, "exp": tw.exp, "where": tw.where}
            tiles["some"] = lambda one, none=0 * r[m, n]: one if isinstance(one, tw.Tile) else one + none
            Z[m, n] = eval(first, tiles) + 0 * X[m, n]
            w[m] = (eval(second, tiles) + X[m, n]).sum(axis=1)

    shapes = ((5, 11), (5, 11), ("r", 5, 11), (11,), (5,), ("r", 11))
    given = [made(numbers, one, kind, "plain") for one in shapes]
    arrays = dict(zip("XYrxcq", (widened(one, kind) for one in given), strict=True))
    arrays["c"] = arrays["c"][:, None]
    arrays |= {"s": 0.75, "exp": np.exp, "where": np.where, "some": np.asarray}
    exact = eval(first, arrays) + 0 * arrays["X"], (eval(second, arrays) + arrays["X"]).sum(1)
    for target in ("reference", "cpu")[: 2 if seed < 2 else 1]:
        results = [made(numbers, one, kind, "plain", empty=True) for one in ((5, 11), (5,))]
        computed(*given, *results, 0.75, target=target)
        for found, true in zip(results, exact, strict=True):
            # An expression has at most 2**5 functions, each of a few roundings, and factors of at most 20.
            limit = 256 * np.finfo(KINDS[kind][1]).eps * (1 + abs(true).max())
            assert (abs(widened(found, kind) - true) <= limit).all()


@tw.kernel(R="M N", r="N", y="N", X="M N", s="M", t="M", Z="M N")
def with_fewer_axes(R: Any, r: Any, y: Any, X: Any, s: Any, t: Any, Z: Any) -> None:
    for m, n in tw.tiles(Z):
        s[m] = tw.where(r[n] > 0, 1j * R[m, n], y[n]).sum(axis=1)
        t[m] = (0 * X[m, n] + y[n]).sum(axis=1)
        Z[m, n] = 3 - 4j


@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_sums_of_values_one_part_of_which_has_fewer_axes(target: str) -> None:
    rng = np.random.default_rng(25)
    real, r, y, x = (made(rng, one, "c64", "plain") for one in (("r", 4, 9), ("r", 9), (9,), (4, 9)))
    s, t, z = (made(rng, one, "c64", "plain", empty=True) for one in ((4,), (4,), (4, 9)))
    with_fewer_axes(real, r, y, x, s, t, z, target=target)
    unit = 4 * 9 * np.finfo(np.float32).eps
    assert (abs(s - np.where(r > 0, 1j * real, y).sum(1)) <= unit * (abs(real).sum(1) + abs(y).sum())).all()
    assert (abs(t - y.sum()) <= unit * abs(y).sum()).all()
    assert (z == 3 - 4j).all()


@tw.kernel(X="M N", Q="M N", E="M N", Z="M N")
def of_special_numbers(X: Any, Q: Any, E: Any, Z: Any) -> None:
    for m, n in tw.tiles(X):
        Q[m, n] = X[m, n] / (X[m, n] - X[m, n])
        E[m, n] = tw.exp(X[m, n])
        Z[m, n] = 0 * X[m, n]


@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_quotients_by_zero_and_powers_that_overflow_are_those_of_numpy(target: str) -> None:
    x = np.array([[1 + 2j, -3j, 4, -0.5 + 1j, 200, -200, 89 + 0j, np.inf, np.nan + 1j]], np.complex64)
    found = [np.empty_like(x) for _ in range(3)]
    of_special_numbers(x, *found, target=target)
    with np.errstate(all="ignore"):
        quotients, powers, zeros = x / (x - x), np.exp(x), 0 * x.real
    pairs = [*zip(found, (quotients, powers), strict=False)]
    pairs = [(one.imag, exact.imag) for one, exact in pairs] + [
        (one.real, exact.real) for one, exact in pairs
    ]
    for one, exact in (*pairs, (found[2].real, zeros)):
        assert np.allclose(one, exact, rtol=1e-5, atol=0, equal_nan=True)


# ---------------------------------------------------------------- memory, tools


@tw.kernel(X="M N", Y="M N")
def turned(X: Any, Y: Any) -> None:
    for m, n in tw.tiles(X):
        Y[m, n] = 1j * X[m, n]


@tw.kernel(A="M K", B="K N", C="M N")
def updated(A: Any, B: Any, C: Any) -> None:
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]
        C[m, n] = acc + 1j * C[m, n]


@pytest.mark.parametrize("kind", KINDS)
def test_both_parts_are_read_before_either_is_stored(kind: str) -> None:
    rng = np.random.default_rng(11)
    a, b, c = (made(rng, one, kind, "plain") for one in (*AB, (M, N)))
    schedules = [
        updated.bind().schedule_for(a, b, c, target=target, arch=arch) for arch, target in GPUS.items()
    ]
    exact, scale = a @ b + 1j * c, abs(a) @ abs(b) + abs(c)
    for target, schedule in (("cpu", None), *(("reference", one) for one in (None, *schedules))):
        found = c.copy()
        updated.bind(schedule=schedule)(a, b, found, target=target)
        assert (abs(found - exact) <= 4 * OF_SUM * np.finfo(KINDS[kind][1]).eps * scale).all()


def test_elementwise_kernels_work_in_place() -> None:
    x = made(np.random.default_rng(19), (M, N), "c64", "plain")
    for target in ("cpu", "reference"):
        found = x.copy()
        turned(found, found, target=target)
        assert (found == 1j * x).all()


@tw.kernel(Q="M D", W="N D", V="N E", O="M E")
def fused_into(Q: Any, W: Any, V: Any, O: Any) -> None:
    for m in tw.tiles(O.shape[0]):
        O[m] = (abs(Q[m] @ W.T) ** 2) @ V + 1j * O[m]


@tw.kernel(C="M N")
def scaled_rows(C: Any) -> None:
    for m, n in tw.tiles(C):
        C[m, n] = 1j * C[m, n] / (abs(C[m, n]) ** 2).sum(axis=1)[:, None]


@pytest.mark.parametrize("kind", KINDS)
def test_loops_read_both_parts_before_either_is_stored(kind: str) -> None:
    rng, unit = np.random.default_rng(13), np.finfo(KINDS[kind][1]).eps
    q, w, v, o = (made(rng, one, kind, "plain") for one in ((M, K), (N, K), (N, 7), (M, 7)))
    rows = made(rng, (5, 700), kind, "plain")
    exact = (abs(q @ w.T) ** 2) @ v + 1j * o
    scale = ((abs(q) @ abs(w.T)) ** 2) @ abs(v) + abs(o)
    for target in ("cpu", "reference"):
        found, scaled = o.copy(), rows.copy()
        fused_into(q, w, v, found, target=target)
        scaled_rows(scaled, target=target)
        assert (abs(found - exact) <= 8 * OF_SUM * unit * scale).all()
        whole = (abs(rows) ** 2).sum(1)[:, None]
        assert (abs(scaled - 1j * rows / whole) <= 2 * 700 * unit * abs(rows) / whole).all()


def test_the_parts_of_a_split_product_end_along_k() -> None:
    rng = np.random.default_rng(17)
    a, b, c = (made(rng, one, "c128", "plain") for one in ((70, 90), (90, 66), (70, 66)))
    chosen = product.bind().schedule_for(a, b, c, target="cuda", arch="sm_90a")
    schedule = dataclasses.replace(chosen, split_k=2)
    product.bind(schedule=schedule)(a, b, c, target="reference")
    theirs = tw.complex_matmul(a, b, schedule=schedule, target="reference")
    for found in (c, theirs):
        assert (abs(found - a @ b) <= 4 * 90 * np.finfo(np.float64).eps * (abs(a) @ abs(b))).all()


def test_results_that_share_memory_with_other_elements_are_refused() -> None:
    x = np.ones((8, 8), np.complex64)
    for target in ("cpu", "reference"):
        with pytest.raises(LaunchError, match="share memory"):
            turned(x, x.T, target=target)
        with pytest.raises(LaunchError, match="share memory"):
            product(x, x, x, target=target)


@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_real_arrays_are_not_taken_for_complex_ones_of_an_earlier_call(target: str) -> None:
    """Arrays of f64 have the class of pairs of c64, and arrays of f32 with both parts that of parts."""
    rng = np.random.default_rng(21)
    z, r = made(rng, (4, 6), "c64", "plain"), made(rng, ("r", 4, 6), "c128", "plain")
    for order in ((z, r, z), (r, z, r)):
        kernel = turned.bind()
        kernel.forget()
        for one in order:
            found = np.empty((4, 6), np.complex64)
            kernel(one, found, target=target)
            assert (found == (1j * one).astype(np.complex64)).all()
    parts = np.stack([z.real, z.imag], axis=-1)
    for given in ((z, parts), (parts, z)):
        summing = sums_of_last.bind()
        summing.forget()
        for one in given:
            sums = np.empty(one.shape[:-1], one.dtype)
            summing(one, sums, target=target)
            assert np.allclose(sums, one.sum(axis=-1), rtol=1e-5, atol=1e-5)


@tw.kernel(X="... M N", s="... M")
def sums_of_last(X: Any, s: Any) -> None:
    for *b, m, n in tw.tiles(X):
        s[*b, m] = X[*b, m, n].sum(axis=1)


def test_a_forgotten_kernel_has_no_flow() -> None:
    """The flow of complex arrays is kept under their class, and goes with the executable."""
    kernel = turned.bind()
    kernel.forget()
    x, kept = np.ones((4, 5), np.complex64), kernel._builds.scheduled
    found = kernel(x, np.empty_like(x), target="reference")
    assert len(kept._flows) == len(kept._programs) == 1
    kernel.forget(found)
    assert len(kept._flows) == len(kept._programs) == 0


def test_exports_take_real_arrays() -> None:
    with pytest.raises(LaunchError, match="A is c64, and C functions take no arrays of complex numbers"):
        export(product.bind(), [[tw.like("c64", 8, 8)] * 3], ["x86-64"], "unused")


# ---------------------------------------------------------------- refusals


@tw.kernel(X="M N", y="M")
def greatest(X: Any, y: Any) -> None:
    for m, n in tw.tiles(X):
        y[m] = X[m, n].max(axis=1)


@tw.kernel(X="M N", Y="M N")
def larger(X: Any, Y: Any) -> None:
    for m, n in tw.tiles(X):
        Y[m, n] = tw.maximum(X[m, n], 1)


@tw.kernel(X="M N", Y="M N")
def rooted(X: Any, Y: Any) -> None:
    for m, n in tw.tiles(X):
        Y[m, n] = tw.sqrt(X[m, n])


@tw.kernel(X="M N", Y="M N")
def compared(X: Any, Y: Any) -> None:
    for m, n in tw.tiles(X):
        Y[m, n] = tw.where(X[m, n] < 1, X[m, n], 0)


@tw.kernel(X="M N", Y="M N")
def cut_off(X: Any, Y: Any) -> None:
    for m, n in tw.tiles(X):
        Y[m, n] = X[m, n].to(tw.f32)


@tw.kernel(X="M N", Y="M N")
def doubled(X: Any, Y: Any) -> None:
    for m, n in tw.tiles(X):
        Y[m, n] = 2 * X[m, n]


@tw.kernel(X="M N", Y="M N")
def counted(X: Any, Y: Any) -> None:
    for m, n in tw.tiles(X):
        Y[m, n] = X[m, n] * Y[m, n]


@tw.kernel(X="M N", Y="M N")
def set_to_a_number(X: Any, Y: Any) -> None:
    for m, n in tw.tiles(X):
        Y[m, n] = 3 + 4j


@tw.kernel(X="M N", Y="M N")
def summed_so_far(X: Any, Y: Any) -> None:
    for m, n in tw.tiles(X):
        Y[m, n] = X[m, n].cumsum(axis=1)


REFUSED = {
    greatest: (np.complex64, "max of a value, which is of c64"),
    larger: (np.complex64, "max of a value, which is of c64: complex numbers have no order"),
    rooted: (np.complex64, "sqrt of a value, which is of c64"),
    compared: (np.complex64, "less of a value, which is of c64"),
    cut_off: (np.float32, "convert to f32 of a value, which is of c64.*x.real, x.imag, abs"),
    doubled: (np.float32, "Y holds f32, and the value is c64: its imaginary parts would be lost.*abs"),
    counted: (np.int32, "mul of c64 and i32: no dtype holds both"),
    set_to_a_number: (np.float32, "Y holds f32, and the value is c64: its imaginary parts would be lost"),
    summed_so_far: (np.complex64, "cumsum.*c64.*the real and of the imaginary part"),
}


@pytest.mark.parametrize("target", ["cpu", "reference"])
@pytest.mark.parametrize("kernel", REFUSED, ids=lambda one: one.name)
def test_what_parts_cannot_express_is_refused_at_the_authors_line(kernel: Any, target: str) -> None:
    kind, said = REFUSED[kernel]
    x = np.ones((4, 5), np.complex64)
    y = np.empty(4 if kernel is greatest else (4, 5), kind)
    with pytest.raises(TraceError, match=f"(?s){said}") as found:
        kernel(x, y, target=target)
    assert "test_complex.py" in str(found.value)


def test_complex_numbers_are_no_arguments() -> None:
    with pytest.raises(SignatureError, match="a number of c64 cannot be passed"):

        @tw.kernel(X="N", alpha=tw.c64)
        def scaled(X: Any, alpha: Any) -> None: ...


@tw.kernel(X="M N", V="N E", C="M E")
def summed_rows_and_products(X: Any, V: Any, C: Any) -> None:
    for m, e in tw.tiles(C):
        total = tw.zeros((m,), X.dtype)
        acc = tw.zeros((m, e), X.dtype)
        for n in tw.steps(X.shape[1]):
            x = X[m, n] * X[m, n]
            total.assign(total + x.sum(axis=1))
            acc += x @ V[n, e]
        C[m, e] = acc + total[:, None]


@pytest.mark.parametrize("arch", ["sm_90a", "sm_80"])
@pytest.mark.parametrize("kind", KINDS)
def test_steps_of_loops_fit_the_registers_of_threads(kind: str, arch: str) -> None:
    """Three left operands are held at once; longer steps are refused, and the nearest legal ones compile."""
    shapes = ((470, 594), (594, 537), (470, 537))
    arrays = [tw.like(tw.dtype(kind), shape) for shape in shapes]
    bound = summed_rows_and_products.bind()
    chosen = bound.schedule_for(*arrays, target="cuda", arch=arch)
    assert summed_rows_and_products.bind(schedule=chosen).compile(*arrays, target="cuda", arch=arch)
    rows, run, depth = chosen.tile
    long = dataclasses.replace(chosen, tile=(rows, 2 * run, depth))
    with pytest.raises(tw.ScheduleError) as refused:
        summed_rows_and_products.bind(schedule=long).compile(*arrays, target="cuda", arch=arch)
    assert "registers of a thread hold the state and the left operands of its products" in str(refused.value)
    assert f"nearest legal choice: tile={chosen.tile}" in str(refused.value)
