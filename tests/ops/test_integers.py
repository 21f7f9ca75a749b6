"""Products of integers and truth values follow NumPy's rules: dtypes, wrapping, shapes, strides."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from tests.targets.hip.machine import ARCHS, machines
from tests.turns import calls_on

import tilewright as tw
from tilewright.ops.products import plain
from tilewright.ops.results import whole_product
from tilewright.ops.wanted import Wanted
from tilewright.runtime.arrays import describe

Array = np.ndarray[Any, Any]
INTEGERS = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")
KINDS = ("boolean", *INTEGERS)
GPU = pytest.param(
    "cuda", marks=[pytest.mark.gpu, pytest.mark.filterwarnings("ignore::tilewright.SlowWarning")]
)
ON_ALL = pytest.mark.parametrize("target", ["reference", "cpu", GPU])


def drawn(shape: tuple[int, ...], kind: str, seed: int = 0) -> Array:
    """Return random integers over the whole range of a dtype; a quarter of booleans is true."""
    rng, dtype = np.random.default_rng([seed, *shape]), tw.dtype(kind).numpy
    if kind == "boolean":
        return rng.random(shape) < 0.25
    bits = rng.bytes(int(np.prod(shape)) * dtype.itemsize)
    return np.frombuffer(bits, dtype).reshape(shape).copy()


def multiplied(a: Array, b: Array, target: str, out: Array | None = None, **words: Any) -> Array:
    """Return the product of a target."""
    left, right = (tw.testing.device_put(one, target) for one in (a, b))
    if out is None:
        made = tw.matmul(left, right, target=target, **words)
        return np.asarray(tw.testing.device_get(made))
    written = tw.testing.device_put(out, target)
    assert tw.matmul(left, right, written, target=target, **words) is written
    return np.asarray(tw.testing.device_get(written))


def check(a: Array, b: Array, made: Array) -> None:
    """Compare with NumPy's product, element by element."""
    expected = a @ b
    if expected.dtype == np.int8:  # the documented exception
        expected = a.astype(np.int32) @ b.astype(np.int32)
    assert made.dtype == expected.dtype
    assert made.shape == expected.shape
    if expected.dtype.kind != "f":
        assert np.array_equal(made, expected)
        return
    # Each of both rounds its operands, its products and its sums in f64.
    exact = a.astype(object) @ b.astype(object)
    size = abs(a.astype(object)) @ abs(b.astype(object))
    bound = (a.shape[-1] + 3) * 2.0**-53 * size.astype(float)
    assert (abs((made.astype(object) - exact).astype(float)) <= bound).all()


@ON_ALL
@pytest.mark.parametrize("first", KINDS)
def test_each_mixture_has_the_dtype_of_numpy_and_wraps(first: str, target: str) -> None:
    # The reference compiles nothing; the others try each kind with itself and two more.
    for second in KINDS if target == "reference" else KINDS[KINDS.index(first) % 3 :: 3]:
        a, b = drawn((19, 45), first), drawn((45, 23), second, 1)
        for _ in calls_on(target):
            check(a, b, multiplied(a, b, target))


@ON_ALL
@pytest.mark.parametrize("kind", ["boolean", "i16", "u8", "u32", "i64"])
def test_shapes_and_strides_follow_numpy(kind: str, target: str) -> None:
    for left, right in (
        ((37,), (37,)),
        ((37,), (37, 5)),
        ((6, 37), (37,)),
        ((2, 1, 6, 37), (3, 37, 5)),
        ((3, 6, 37), (37,)),
        ((1, 1), (1, 1)),
        ((6, 0), (0, 5)),
        ((0, 4), (4, 5)),
        ((2, 6, 4), (4, 0)),
    ):
        a, b = drawn(left, kind), drawn(right, kind, 1)
        check(a, b, multiplied(a, b, target))
    whole = drawn((70, 74), kind)
    for a, b in (
        (whole.T, whole[:, :9]),
        (whole[::2, ::3], whole[5:30, 40:44]),
        (whole[::-1, ::-1], np.broadcast_to(whole[0, :1], (74, 3))),
    ):
        check(a, b, multiplied(a, b, target))


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("kind", ["boolean", "i16", "u64"])
def test_an_array_to_write_may_have_any_strides(kind: str, target: str) -> None:
    a, b = drawn((2, 17, 40), kind), drawn((40, 13), kind, 1)
    for order in ((0, 1, 2), (2, 0, 1)):
        memory = np.ones([2 * (2, 17, 13)[dim] for dim in order], a.dtype)
        out = memory.transpose(np.argsort(order))[::2, ::2, ::2]
        assert multiplied(a, b, target, out) is out
        check(a, b, out)
        assert memory.transpose(np.argsort(order))[1::2].all(), "nothing between is written"


@ON_ALL
def test_many_true_pairs_are_still_true(target: str) -> None:
    """The sums 256 and 65536 would be 0 in 8 and 16 bits."""
    for depth in (256,) if target == "reference" else (256, 65536):
        ones = np.ones((3, depth), bool)
        assert multiplied(ones, ones.T, target).all()
        assert np.array_equal(multiplied(ones, ones.T, target, out_dtype="i32"), np.full((3, 3), depth))


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize(
    ("kind", "order"),
    [*((kind, "CF"[at % 2]) for at, kind in enumerate(KINDS)), ("boolean", "F"), ("i8", "C")],
)
def test_every_byte_of_a_boolean_but_0_is_true(kind: str, order: Any, target: str) -> None:
    """As in NumPy. Some bytes have products that cancel as integers of 8 bits, or are 0 in 8 bits."""
    rng, depth = np.random.default_rng(11), 100 if target == "reference" else 300
    odd = rng.choice(np.uint8([0, 0, 0, 1, 2, 16, 128, 254, 255]), (19, depth))
    a, b = odd.view(bool), drawn((depth, 23), kind, 1)
    if kind == "boolean":
        b = rng.choice(np.uint8([0, 0, 0, 0, 128, 255]), (depth, 23)).view(bool)
    plain_b = b != 0 if kind == "boolean" else b
    for left, right, plain_left, plain_right in (
        (a, b, odd != 0, plain_b),
        (b.T, a.T, plain_b.T, (odd != 0).T),
    ):
        made = multiplied(np.array(left, order=order), np.array(right, order=order), target)
        check(plain_left, plain_right, made)
    counted = multiplied(a, a.T, target, out_dtype="i32")
    assert np.array_equal(counted, (odd != 0).astype(np.int32) @ (odd.T != 0).astype(np.int32))


@ON_ALL
@pytest.mark.parametrize(("kind", "wide"), [("i16", "i64"), ("u8", "i32"), ("u8", "f32"), ("i32", "f64")])
def test_a_wider_result_is_multiplied_in_its_own_dtype(kind: str, wide: str, target: str) -> None:
    a, b = drawn((19, 45), kind), drawn((45, 23), kind, 1)
    made = multiplied(a, b, target, out_dtype=wide)
    if wide != "f64":
        assert np.array_equal(made, a.astype(np.int64) @ b.astype(np.int64))  # all sums are exact
    else:
        check(a.astype(np.float64), b.astype(np.float64), made)


@ON_ALL
@pytest.mark.parametrize("words", [{"split_k": 3}, {"batch_invariant": True}], ids=str)
def test_sums_in_parts_wrap_alike(words: dict[str, Any], target: str) -> None:
    for kind in ("boolean", "u16", "i32", "u64"):
        a, b = drawn((17, 300), kind), drawn((300, 20), kind, 1)
        check(a, b, multiplied(a, b, target, **words))
    a, b = drawn((3, 40), "u32"), drawn((40, 5), "u32", 1)
    assert not multiplied(a, b, target, alpha=0).any()


@ON_ALL
@pytest.mark.parametrize("kind", ["boolean", "i8", "i16", "i32", "u64"])
def test_factors_that_change_nothing_are_taken(kind: str, target: str) -> None:
    """`beta=0` does not read `c`, whatever its dtype, and `alpha=1` multiplies nothing."""
    a, b = drawn((19, 45), kind), drawn((45, 23), kind, 1)
    for c in (np.full((19, 23), 7, np.int32), np.full(23, np.nan)):
        there = tw.testing.device_put(c, target)
        for words in ({}, {"alpha": 1}, {"alpha": 1.0}, {"alpha": np.int64(1)}):
            check(a, b, multiplied(a, b, target, c=there, beta=0, **words))
        zero = multiplied(a, b, target, c=there, beta=0.0, alpha=0)
        assert not zero.any()
        assert zero.shape == (19, 23)
    out = multiplied(a, b, target)
    check(a, b, multiplied(a, b, target, np.ones_like(out), c=tw.testing.device_put(out, target), beta=0))
    check(a, b, multiplied(a, b, target, np.ones_like(out), alpha=1, beta=0))


def test_an_array_that_is_not_read_must_fit() -> None:
    a, b = drawn((3, 40), "i32"), drawn((40, 5), "i32")
    for shape in ((3, 4), (2, 3, 5)):
        with pytest.raises(tw.LaunchError, match=r"c has shape .*, which does not broadcast to"):
            tw.matmul(a, b, c=np.ones(shape), beta=0, target="cpu")
    with pytest.raises(tw.DTypeError, match=r"c is c128, and sums of i32 are real; nearest.*: c.real"):
        tw.matmul(a, b, c=np.ones((3, 5), complex), beta=0, target="cpu")


def test_what_is_refused_says_what_may_be_passed() -> None:
    a, b = drawn((3, 40), "i32"), drawn((40, 5), "i32")
    for words, message in (
        ({"bias": np.ones(5)}, "bias with operands of i32 and i32"),
        ({"c": np.ones((3, 5), np.int32), "alpha": 2}, "c, alpha with"),
        ({"activation": "relu"}, "activation with"),
    ):
        with pytest.raises(
            tw.DTypeError,
            match=f"matmul: {message}.*whose sums wrap around on overflow; nearest.*operands of f64",
        ):
            tw.matmul(a, b, target="cpu", **words)
        tw.matmul(a.astype(float), b.astype(float), target="cpu", **words)
    for kind in ("i16", "u32", "f32", "boolean", "c64", "bf16"):
        with pytest.raises(
            tw.DTypeError, match=rf"out_dtype is {kind}, and the product of i32 and i32 is i32"
        ):
            tw.matmul(a, b, target="cpu", out_dtype=kind)
    with pytest.raises(tw.DTypeError, match="out is i16, and the product of i32 and i32 is i32"):
        tw.matmul(a, b, np.zeros((3, 5), np.int16))
    with pytest.raises(tw.DTypeError, match="matmul of i32 and f32: convert one of them first"):
        tw.matmul(a, b.astype(np.float32))


@pytest.mark.parametrize(
    ("first", "second", "atom"),
    [
        ("boolean", "boolean", "i8"),
        ("u8", "boolean", "i8"),
        ("i16", "u16", "u32"),
        ("i64", "i64", "u64"),
        ("u64", "i64", "f64"),
    ],
)
@pytest.mark.parametrize(("target", "arch"), [("cuda", "sm_90a"), ("hip", "gfx942")])
def test_the_text_of_gpus_compiles_without_spills(
    first: str, second: str, atom: str, target: str, arch: str
) -> None:
    pair = {"a": describe(drawn((300, 260), first)), "b": describe(drawn((260, 200), second))}
    whole = whole_product({name: one.dtype for name, one in pair.items()}, Wanted())
    assert whole is not None
    assert whole.multiplied == tw.dtype(atom)
    shapes = [(whole.read(one.dtype, on_gpu=True), *one.shape) for one in pair.values()]
    given = [tw.like(*one) for one in (*shapes, (whole.result, 300, 200))]
    made = plain(0, whole.multiplied).bind(precision="exact").compile(*given, target=target, arch=arch)
    spills = [count for name, count in made.resources.items() if "spill" in name or name == "stack_bytes"]
    assert spills
    assert not any(spills)
    atoms = {op.mma.atom for op in made.kernel.walk() if hasattr(op, "mma")}
    assert {one.instruction == "fma" for one in atoms} == {atom in ("u32", "u64")}
    slow = [note for note in made.notes if "integers of" in note] if target == "cuda" else []
    assert bool(slow) == (target == "cuda" and atom in ("u32", "u64"))


def test_an_author_s_product_of_wide_integers_compiles_for_gpus() -> None:
    @tw.kernel(A="M K", B="N K", C="M N", zero=tw.i64)
    def shifted(A, B, C, zero):
        for m, n in tw.tiles(C):
            acc = tw.zeros()
            for k in tw.steps(A.shape[1]):
                acc += (A[m, k] - zero) @ B[n, k].T
            C[m, n] = acc

    a, b = drawn((19, 45), "i64"), drawn((23, 45), "i64", 1)
    c = np.zeros((19, 23), np.int64)
    assert shifted(a, b, c, 3, target="cpu").target == "cpu"
    assert (c == (a - 3) @ b.T).all()
    made = shifted.compile(a, b, c, 3, target="cuda", arch="sm_90a")
    assert {op.mma.atom.a_dtype for op in made.kernel.walk() if hasattr(op, "mma")} == {tw.i64}


@pytest.mark.parametrize("arch", ARCHS)
def test_listings_of_amd_multiply_integers(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.ops.launching._SAID", {"u64"})
    a, b = drawn((19, 21), "i16"), drawn((21, 23), "i16", 1)
    message = "integers of 32 bits are multiplied by scalar multiply-adds"
    with machines(), pytest.warns(tw.SlowWarning, match=message):
        check(a, b, np.asarray(tw.matmul(a, b, target=arch)))
    with machines(), warnings.catch_warnings():
        warnings.simplefilter("error")  # one is said already, and the other has matrix instructions
        for kind in ("u64", "boolean"):
            a, b = drawn((19, 21), kind), drawn((21, 23), kind, 1)
            check(a, b, np.asarray(tw.matmul(a, b, target=arch)))


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["i16", "i64"])
def test_a_gpu_says_that_no_tensor_core_multiplies_it(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.ops.launching._SAID", set())
    bits = 32 if kind == "i16" else 64
    with pytest.warns(
        tw.SlowWarning, match=f"integers of {bits} bits are multiplied by scalar multiply-adds"
    ):
        multiplied(drawn((19, 47), kind), drawn((47, 23), kind), "cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        multiplied(drawn((19, 47), "boolean"), drawn((47, 23), "boolean"), "cuda")
