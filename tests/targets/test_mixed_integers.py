"""Kernel integers with fragments, floats and each other behave as in Python and NumPy."""

from __future__ import annotations

import operator

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir.parser import parse_kernel
from tilewright.ir.printer import print_kernel
from tilewright.runtime.nvrtc import compile_text
from tilewright.targets import cuda

TARGETS = pytest.mark.parametrize("target", ["reference", "cpu"])


@tw.kernel(X="M N", Y="M N")
def centred(X, Y, *, how):
    m = tw.block_index(tw.ceil_div(X.shape[0], 8))
    x = tw.load(X.tile((8, 64), (m, 0)).partition((8, 4)))
    total = tw.reduce_sum(x, 1)
    tw.copy(x - how(total, X.shape[1]), Y.tile((8, 64), (m, 0)))


@TARGETS
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_a_mean_divides_by_an_extent(target: str, dtype: type) -> None:
    x = np.random.default_rng(0).standard_normal((21, 50)).astype(dtype)
    y = np.full_like(x, 7)
    assert centred.bind(how=lambda total, n: total / n)(x, y, target=target).target == target
    bound = 60 * np.finfo(dtype).eps
    np.testing.assert_allclose(y, x - x.mean(1, keepdims=True, dtype=np.float64), atol=bound, rtol=bound)


@TARGETS
@pytest.mark.parametrize(
    "how",
    [
        lambda total, n: total * (1.0 / n),
        lambda total, n: total * (2 / n) * 0.5,
        lambda total, n: total / (n * 1.0),
        lambda total, n: total / (n + 0.0),
        lambda total, n: total / (np.float64(1.0) * n),
        lambda total, n: total * np.float32(1.0) / n,
        lambda total, n: np.float32(1.0) * total / tw.maximum(n, 0.5),
    ],
)
def test_floats_and_extents_make_numbers(target: str, how) -> None:
    x = np.random.default_rng(0).standard_normal((21, 50)).astype(np.float32)
    y = np.full_like(x, 7)
    assert centred.bind(how=how)(x, y, target=target).target == target
    np.testing.assert_allclose(y, x - x.mean(1, keepdims=True, dtype=np.float64), atol=1e-5)


@tw.kernel(X="M N", Y="M N", n=int)
def selected(X, Y, n, *, mask):
    m = tw.block_index(tw.ceil_div(X.shape[0], 8))
    x = tw.load(X.tile((8, 64), (m, 0)).partition((8, 4)))
    i, j = tw.coordinates(x, 0) + 8 * m, tw.coordinates(x, 1)
    tw.copy(tw.where(mask(i, j, n), x, -1.0), Y.tile((8, 64), (m, 0)))


@TARGETS
@pytest.mark.parametrize(
    "mask",
    [
        lambda i, j, n: (i > 3) & (i < n),
        lambda i, j, n: ~((i > 3) | (j < n)),
        lambda i, j, n: (i < n) ^ (j < n),
        lambda i, j, n: (i != n) & (n != j),
        lambda i, j, n: (i >> 1 == j // 3) | ((i + j) % n == 0),
        lambda i, j, n: (j & 5 == 4) & True,
        lambda i, j, n: (i < 4) == (j < 9),
        lambda i, j, n: n % (j + 1) == 0,
        lambda i, j, n: (i < 4) & (n == 6),
        lambda i, j, n: ((n == 6) | (n < 2)) & (i < 4),
        lambda i, j, n: (i < 4) ^ ~(n == 6),
    ],
)
def test_masks_are_numpys(target: str, mask) -> None:
    x = np.random.default_rng(0).standard_normal((21, 50)).astype(np.float32)
    i, j = np.indices(x.shape)
    for n in (6, 13):
        y = np.full_like(x, 7)
        assert selected.bind(mask=mask)(x, y, n, target=target).target == target
        np.testing.assert_array_equal(y, np.where(mask(i, j, np.int64(n)), x, np.float32(-1)))


SCALARS = [
    *(lambda n, d=d: n // d for d in (3, -3, 7, -1)),
    *(lambda n, d=d: n % d for d in (3, -3, 7, -1, 8)),
    *(lambda n, d=d: divmod(n, d)[1] for d in (5, -5)),
    lambda n: n >> 2,
    lambda n: n << 3,
    lambda n: n & 7,
    lambda n: ~n,
    lambda n: -(+n),
    lambda n: n**3,
    lambda n: (n * n + 5) // -4,
    lambda n: 100 // tw.maximum(n, 1),
    lambda n: -100 % tw.maximum(n, 1),
]


@tw.kernel(Y="N", n=int)
def numbered(Y, n):
    part = Y.tile((32,), (0,)).partition((32,))
    at, y = tw.coordinates(part.value.type.distribution, 0), tw.fragment(part, tw.i32, 0)
    for number, function in enumerate(
        [*SCALARS, abs, lambda n: tw.maximum(n, -4), lambda n: tw.minimum(4, n)]
    ):
        y.assign(tw.where(at == number, y + function(n), y))
    tw.copy(y, part)


@TARGETS
def test_integers_divide_as_in_python(target: str) -> None:
    for n in (-101, -8, -7, -1, 0, 1, 6, 7, 1000):
        wanted = [function(n) for function in [*SCALARS, abs, lambda n: max(n, -4), lambda n: min(4, n)]]
        y = np.full(len(wanted), 77, np.int32)
        assert numbered(y, n, target=target).target == target
        np.testing.assert_array_equal(y, wanted, err_msg=str(n))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda i, f, n: i / 2 + f.to(tw.f64), "add of f32 and f64: convert one of them first"),
        (lambda i, f, n: i**-1, "i: i32 fragment (32,) ** -1: an integer has integer powers of constants"),
        (lambda i, f, n: i**i, "nearest legal choice: x.to(tw.f32) ** "),
        (lambda i, f, n: 2**i, "nearest legal choice: 2 ** x.to(tw.f32) or `1 << x`"),
        (lambda i, f, n: f & 1, "and of f32: needs integers; convert them first"),
        (
            lambda i, f, n: (i < 3) + (i < 4),
            "add of boolean: needs numbers; combine truth values with & | ^ ~",
        ),
        (lambda i, f, n: i << -1, "shift by -1; nearest legal choice: the other direction, by 1"),
        (lambda i, f, n: operator.itruediv(i, 2), "`/=` would make f32 of i: i32 fragment"),
        (lambda i, f, n: f.to(tw.f64) ** n, "pow of f64: no target has it; nearest legal choice: tw.exp(y"),
        (lambda i, f, n: tw.range(n / 2), "quotients of integers that are integers are `//`"),
        (lambda i, f, n: n | 1, "n | 1: integers have no bitwise or"),
        (lambda i, f, n: 2**n, "2 ** n: the exponent is known only when the kernel runs"),
    ],
)
def test_what_has_no_meaning_is_refused_with_what_has(function, message: str) -> None:
    @tw.kernel(X="N", n=int)
    def kernel(X, n):
        f = tw.load(X.tile((32,), (0,)).partition((32,)))
        i = f.to(tw.i32)
        function(i, f, n)

    with pytest.raises(tw.TraceError) as refused:
        kernel.trace(np.zeros(32, np.float32), 3)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda x, n: x.to(tw.i8) + n,
            "the integer n, -2147483648 to 2147483647, need not be within -128 to 127",
        ),
        (lambda x, n: (x < 3) & n, "n is not a truth value"),
        (lambda x, n: (x < 3) & 1, "1 is not a truth value"),
        (lambda x, n: x.to(tw.i32) & True, "True is no i32"),
    ],
)
def test_integers_must_be_numbers_of_the_dtype(function, message: str) -> None:
    @tw.kernel(X="N", n=int)
    def kernel(X, n):
        function(tw.load(X.tile((32,), (0,)).partition((32,))), n)

    with pytest.raises(tw.LegalityError) as refused:
        kernel(np.zeros(32, np.float32), 3, target="reference")
    assert message in str(refused.value)


@tw.kernel(Y="N", n=int)
def divided(Y, n, *, inside):
    k = tw.let(n - 4)
    divisor = k if inside else n - 4
    part = Y.tile((32,), (0,)).partition((32,))
    tw.copy(tw.fragment(part, tw.i32, 0) + 7 // divisor, part)


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_a_divisor_that_depends_on_the_launch_must_be_positive(target: str) -> None:
    y = np.zeros(32, np.int32)
    assert divided(y, 6, inside=False, target=target).target == target
    assert (y == 3).all()
    with pytest.raises(tw.LaunchError, match="the divisor must be positive"):
        divided(y, 2, inside=False, target=target)


@tw.kernel(Y="N", n=int, d=int)
def divided_inside(Y, n, d):
    """Quotient, remainder, quotient rounded up, and the sign of the remainder, from a variable's value."""
    left, right = tw.var(n), tw.var(d)
    a, b = left.get(), right.get()
    part = Y.tile((32,), (0,)).partition((32,))
    at = tw.coordinates(part.value.type.distribution, 0)
    y = tw.fragment(part, tw.i32, 0)
    with tw.when(a % b < 0):
        tw.fill(y, 1)
    upper = tw.where(at == 2, tw.ceil_div(a, b), y)
    tw.copy(tw.where(at == 0, a // b, tw.where(at == 1, a % b, upper)), part)


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize(("n", "d"), [(7, 2), (-7, 2), (7, -2), (-7, -2), (-6, -3), (6, -3), (2, -9)])
def test_divisors_that_only_the_kernel_knows_divide_as_in_python(n: int, d: int, target: str) -> None:
    y = np.full(32, 77, np.int32)
    assert divided_inside(y, n, d, target=target).target == target
    assert y[:4].tolist() == [n // d, n % d, -(-n // d), n % d < 0]


def test_divisors_that_only_the_kernel_knows_are_spelled_for_cuda() -> None:
    listing = cuda.emit(divided_inside.trace(np.zeros(32, np.int32), 7, -2), "sm_90a")
    assert "? floor_mod(" in listing.text
    assert compile_text(listing.text, "sm_90a", listing.entry)


def test_a_divisor_of_0_that_only_the_kernel_knows_is_found() -> None:
    report = divided_inside.check(np.zeros(32, np.int32), 7, 0)
    assert "division by zero" in str(report)


def test_a_negative_divisor_of_an_index_is_found() -> None:
    report = divided.bind(inside=True).check(np.zeros(32, np.int32), 2)
    assert "by a negative number" in str(report)


@tw.kernel(X="N", Y="N", Z="N", W="N")
def with_narrow_floats(X, Y, Z, W):
    """An extent is an operand and an arm of a choice, and a narrow float is its condition."""
    n, tile = X.shape[0], (64,)
    x = tw.load(X.tile(tile, (0,)).partition((32,)))
    tw.copy((x + n) / n, Y.tile(tile, (0,)))
    tw.copy(tw.where(x > 0, x, -n), Z.tile(tile, (0,)))
    tw.copy(tw.where(x, n, 3).to(X.dtype), W.tile(tile, (0,)))


NARROW = pytest.mark.parametrize("dtype", [tw.f16, tw.bf16, tw.f8e4m3, tw.f8e5m2], ids=str)


@TARGETS
@NARROW
def test_extents_stand_beside_narrow_floats(dtype: tw.DType, target: str) -> None:
    x = np.random.default_rng(0).integers(-2, 3, 48).astype(dtype.numpy)
    made = [np.full_like(x, 77) for _ in range(3)]
    assert with_narrow_floats(x, *made, target=target).target == target
    wide = x.astype(np.float32)
    total = (wide + 48).astype(dtype.numpy).astype(np.float32)
    wanted = [total / np.float32(48), np.where(wide > 0, wide, -48), np.where(wide != 0, 48, 3)]
    for found, want in zip(made, wanted, strict=True):
        np.testing.assert_array_equal(found.astype(np.float32), want.astype(dtype.numpy).astype(np.float32))


@NARROW
def test_the_text_for_cuda_compiles_beside_narrow_floats(dtype: tw.DType) -> None:
    x = np.zeros(48, dtype.numpy)
    listing = cuda.emit(with_narrow_floats.trace(x, x.copy(), x.copy(), x.copy()), "sm_90a")
    assert compile_text(listing.text, "sm_90a", listing.entry)


# ---------------------------------------------------------------- choices between plain numbers


@tw.kernel(X="N", Y="N", Z="N", B="N", W="N", V="N", H="B", i=int)
def chosen(X, Y, Z, B, W, V, H, i):
    n = tw.block_index(tw.ceil_div(X.shape[0], 64))
    x = tw.load(X.tile((64,), (n,)).partition((32,)))
    small, large = tw.where(x == 3, 1, 0), tw.where(x > 1, 2**60 + 1, -1)
    truth, index, mixed = tw.where(x > 1, True, False), tw.where(x > 1, i, 0), tw.where(x > 1, 1, 0.5)
    uniform, size = tw.where(n < 1, 7, -7), tw.absolute(n - i)
    kinds = [made.dtype for made in (small, large, truth, index, mixed, uniform, tw.where(x > 1, 0, x))]
    assert [*map(str, kinds)] == ["i32", "i64", "boolean", "i32", "f32", "i32", str(X.dtype)]
    tw.copy(small + uniform + size, Y.tile((64,), (n,)))
    tw.copy(large, Z.tile((64,), (n,)))
    tw.copy(truth.to(tw.u8), B.tile((64,), (n,)))
    tw.copy(index, W.tile((64,), (n,)))
    tw.copy(mixed, V.tile((64,), (n,)))
    tw.copy(tw.reduce_sum(small, 0), H[n : n + 1])


def choices(kind: type) -> tuple[np.ndarray, list[np.ndarray], list[np.ndarray]]:
    """Return numbers, arrays to write, and the results of `chosen` with i = 12345."""
    x = np.random.default_rng(0).integers(0, 6, 150).astype(kind)
    block = np.arange(150) // 64
    first = np.where(x == 3, 1, 0)
    wanted = [
        (first + np.where(block < 1, 7, -7) + np.abs(block - 12345)).astype(np.int32),
        np.where(x > 1, 2**60 + 1, -1),
        (x > 1).astype(np.uint8),
        np.where(x > 1, 12345, 0).astype(np.int32),
        np.where(x > 1, 1, 0.5).astype(np.float32),
        np.bincount(block, first).astype(np.int32),
    ]
    return x, [np.full_like(array, 77) for array in wanted], wanted


@TARGETS
@pytest.mark.parametrize("kind", [np.int32, np.uint8, np.float16])
def test_a_choice_between_integers_is_an_integer(target: str, kind: type) -> None:
    """As in NumPy: i32 if it holds both, else i64; with a fragment, the fragment's dtype."""
    x, made, wanted = choices(kind)
    chosen(x, *made, 12345, target=target)
    for got, want in zip(made, wanted, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_choices_compile_and_read_back(arch: str) -> None:
    x, made, _ = choices(np.int32)
    kernel = chosen.trace(x, *made, 12345)
    text = print_kernel(kernel)
    assert print_kernel(parse_kernel(text)) == text
    binary = compile_text(cuda.emit(kernel, arch).text, arch, "chosen")
    assert binary.resources["spill_store_bytes"] == 0


@TARGETS
def test_a_choice_in_a_flow_is_an_integer(target: str) -> None:
    @tw.kernel(A="M K", B="K N", C="M N")
    def above(A, B, C, *, low, high):
        for m, n in tw.tiles(C):
            acc = tw.zeros()
            for k in tw.steps(A.shape[1]):
                acc += A[m, k] @ B[k, n]
            C[m, n] = tw.where(acc > 0, high, low)

    rng = np.random.default_rng(0)
    a, b = rng.integers(-4, 5, (33, 20)).astype(np.float32), rng.integers(-4, 5, (20, 41)).astype(np.float32)
    for low, high, kind in ((-3, 2**24 + 1, np.int32), (-3, 2**60 + 1, np.int64), (0, 0.5, np.float32)):
        c = np.full((33, 41), 77, kind)
        above(a, b, c, low=low, high=high, target=target)
        np.testing.assert_array_equal(c, np.where(a @ b > 0, high, low).astype(kind))


def test_an_integer_that_no_dtype_holds_is_refused() -> None:
    @tw.kernel(X="N")
    def beyond(X):
        part = X.tile((32,), (0,)).partition((32,))
        tw.copy(tw.where(tw.load(part) > 0, 2**63, 0).to(X.dtype), part)

    with pytest.raises(tw.TilewrightError, match=r"9223372036854775808 is not within .* range of i64"):
        beyond(np.zeros(5, np.float32), target="reference")


@TARGETS
def test_a_truth_value_beside_an_integer_is_refused(target: str) -> None:
    @tw.kernel(X="N", Y="N")
    def mixed(X, Y, *, high):
        part = X.tile((32,), (0,)).partition((32,))
        tw.copy(tw.where(tw.load(part) > 0, high, 2), Y.tile((32,), (0,)))

    x, y = np.arange(5, dtype=np.float32), np.zeros(5, np.int32)
    with pytest.raises(tw.TilewrightError, match=r"True is not a value of i32\s+nearest legal choice: 1"):
        mixed(x, y, high=True, target=target)
    mixed(x, y, high=1, target=target)
    assert y.tolist() == [2, 1, 1, 1, 1]


def test_scratch_of_another_dtype_is_named() -> None:
    @tw.kernel(X="N", H="B")
    def count(X, H, *, kind):
        x = tw.load(X.tile((256,), (0,)).partition((128,)), other=-1)
        scratch = tw.shared((4,), kind)
        tw.copy(tw.reduce_sum(tw.where(x == 3, 1, 0), 0, scratch=scratch), H[0:1])

    x, h = np.arange(200, dtype=np.int32) % 5, np.zeros(1, np.int32)
    message = (
        r"scratch is shared memory for f32 of shape \(4,\), and i32 of shape \(4,\) are exchanged; nearest "
        r"legal choice: tw.shared\(\(4,\), tw.i32\)"
    )
    with pytest.raises(tw.TraceError, match=message):
        count(x, h, kind=tw.f32, target="reference")
    for target in ("reference", "cpu"):
        h[:] = 77
        count(x, h, kind=tw.i32, target=target)
        assert h[0] == (x == 3).sum()
