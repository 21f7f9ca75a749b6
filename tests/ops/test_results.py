"""The dtype of results: every operation refuses illegal dtypes before it compiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.ops.results import MOST_IN_I32

X, Y = np.ones((4, 8), np.float32), np.ones((8, 4), np.float32)
H = np.ones((4, 4), np.float16)
I, J = np.ones((4, 8), np.int8), np.ones((8, 4), np.int8)
ENDS = np.int32([4])
Call = Callable[..., Any]


def four_bits(*shape: int) -> Any:
    """A float of 4 bits."""
    return tw.packed(tw.pack(np.ones(shape), "f4e2m1"), "f4e2m1")


def grouped(**words: Any) -> Any:
    return tw.grouped_matmul(X, Y[None], ENDS, **words)


def lists(out: Any = None, bias: Any = None, **words: Any) -> Any:
    words |= {name: [one] for name, one in (("out", out), ("bias", bias)) if one is not None}
    return tw.grouped_matmul([X], [Y], **words)


OPS: dict[str, Call] = {
    "matmul": lambda **words: tw.matmul(X, Y, **words),
    "einsum": lambda **words: tw.einsum("mk,kn->mn", X, Y, **words),
    "grouped_matmul": grouped,
    "lists": lists,
    "scaled_mm": lambda **words: tw.scaled_mm(X, Y, **words),
    "complex_matmul": lambda **words: tw.complex_matmul((X, X), (Y, Y), **words),
}


@pytest.mark.parametrize("op", OPS)
def test_no_result_shares_bytes_because_its_dtype_is_asked_for(op: str) -> None:
    for kind in ("f4e2m1", "i4"):
        with pytest.raises(tw.DTypeError, match=f"out_dtype is {kind}.*; nearest"):
            OPS[op](out_dtype=kind, target="reference")
    with pytest.raises(tw.DTypeError, match="out_dtype is i4, and 2 of its numbers share a byte"):
        tw.einsum("mk,kn->mn", X, Y, out_dtype="i4", saturate=True, target="reference")


WRITTEN: dict[str, Callable[[str], Any]] = {
    "matmul": lambda target: tw.matmul(X, Y, out=four_bits(4, 4), target=target),
    "einsum": lambda target: tw.einsum("mk,kn->mn", X, Y, out=four_bits(4, 4), saturate=True, target=target),
    "grouped_matmul": lambda target: grouped(out=four_bits(4, 4), target=target),
    "lists": lambda target: lists(out=four_bits(4, 4), target=target),
    "scaled_mm": lambda target: tw.scaled_mm(X, Y, out=four_bits(4, 4), target=target),
    "complex_matmul": lambda target: tw.complex_matmul(
        (X, X), (Y, Y), out=(four_bits(4, 4), four_bits(4, 4)), target=target
    ),
    "gated_matmul": lambda target: tw.gated_matmul(X, Y, Y, out=four_bits(4, 4), target=target),
    "gemm_chain": lambda target: tw.gemm_chain(H, H, H, out=four_bits(4, 4), target=target),
    "attention": lambda target: tw.attention(H, H, H, out=four_bits(4, 4), target=target),
    "reduced_matmul": lambda target: tw.reduced_matmul(X, Y, "sum", out=four_bits(4), target=target),
    "a product": lambda target: tw.reduced_matmul(X, Y, "sum", product=four_bits(4, 4), target=target),
}


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("op", WRITTEN)
def test_no_array_is_written_whose_numbers_share_bytes(op: str, target: str) -> None:
    with pytest.raises(tw.DTypeError, match=r"(out|out of sum|product) is (a pair of )?f4e2m1.*; nearest"):
        WRITTEN[op](target)


@pytest.mark.parametrize(
    ("op", "name"),
    [("matmul", "bias"), ("matmul", "c"), ("einsum", "bias"), ("einsum", "multiply"), ("lists", "bias")],
)
def test_nothing_is_added_whose_numbers_share_bytes_or_are_complex(op: str, name: str) -> None:
    extents = (4,) if name == "bias" else (4, 4)
    with pytest.raises(tw.DTypeError, match=f"{name} is f4e2m1, and 2 of its numbers share a byte"):
        OPS[op](**{name: four_bits(*extents)}, target="reference")
    with pytest.raises(tw.DTypeError, match=f"{name} is c64, and sums of f32 are real"):
        OPS[op](**{name: np.ones(extents, np.complex64)}, target="reference")


@pytest.mark.parametrize("kind", [np.int8, np.int32, np.complex64])
def test_a_product_that_is_reduced_is_stored_as_fractions(kind: Any) -> None:
    with pytest.raises(tw.DTypeError, match=r"product is .*, a @ b is f32: .*; nearest legal choice: f32"):
        tw.reduced_matmul(X, Y, "sum", product=np.zeros((4, 4), kind), target="reference")
    with pytest.raises(tw.DTypeError, match="bias is c64, and sums of f32 are real"):
        tw.reduced_matmul(X, Y, "sum", bias=np.ones(4, np.complex64), target="reference")


def contracted(**words: Any) -> Any:
    return tw.einsum("mk,kn->mn", I, J, target="reference", **words)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ({"dropout": 0.3}, "dropout"),
        ({"multiply": np.float32([0.3])}, "multiply"),
        ({"multiply": np.int32([3]), "derivative": "gelu"}, "derivative"),
        ({"multiply": np.float32([0.3]), "dropout": 0.1}, "multiply and dropout"),
    ],
)
def test_results_of_integers_lose_no_fractions(words: dict[str, Any], name: str) -> None:
    with pytest.raises(tw.DTypeError, match=f"^{name}: the result has fractions, and i32 cannot hold them"):
        contracted(**words)
    assert contracted(**words, out_dtype="f32").dtype == np.float32
    assert contracted(**words, saturate=True).dtype == np.int32


def test_what_keeps_integers_whole_is_taken_and_not_mixed_up_with_what_does_not() -> None:
    assert np.array_equal(contracted(multiply=np.int32([3])), np.full((4, 4), 24))
    steps = contracted(multiply=np.float32([0.3, -0.3, 2, 0]), derivative="relu")
    assert np.array_equal(steps, np.tile([8, 0, 8, 0], (4, 1)))
    for target in ("reference", "cpu"):
        halved = tw.einsum("mk,kn->mn", I, J, dropout=0.5, target=target)
        assert {*np.unique(halved)} == {0, 16}
        # Another dropout is known already.
        with pytest.raises(tw.DTypeError, match="dropout: the result has fractions"):
            tw.einsum("mk,kn->mn", I, J, dropout=0.3, target=target)


def test_sums_with_which_something_is_done_must_fit() -> None:
    a, b = np.zeros((1, MOST_IN_I32 + 1), np.int8), np.zeros((MOST_IN_I32 + 1, 1), np.int8)
    one = np.int32([2])
    added: list[dict[str, Any]] = [{"bias": one}, {"alpha": 2}, {"activation": "relu"}]
    own: list[dict[str, Any]] = [{"multiply": one}, {"dropout": 0.5}, {"residual": np.int32([[2]])}]
    for words in added + own:
        with pytest.raises(
            tw.LaunchError, match="einsum: sums of 131072 products of i8 may overflow the i32 accumulator"
        ):
            tw.einsum("mk,kn->mn", a, b, **words, target="reference")
    c = {"c": np.int32([[2]])}
    for words in (*added, {**c, "beta": 1}):
        with pytest.raises(
            tw.LaunchError, match="matmul: sums of 131072 products of i8 may overflow the i32 accumulator"
        ):
            tw.matmul(a, b, **words, target="reference")
    assert tw.matmul(a, b, **c, beta=0, target="reference").dtype == np.int32, "c is not read"
    for grouped in ((a, b[None], one // 2), ([a], [b])):
        biases = [one] if isinstance(grouped[0], list) else one[None]
        for words in ({"activation": "relu"}, {"bias": biases}):
            with pytest.raises(
                tw.LaunchError, match="grouped_matmul: sums of 131072 products of i8 may overflow"
            ):
                tw.grouped_matmul(*grouped, **words, target="reference")


@pytest.mark.parametrize("op", ["matmul", "complex_matmul"])
def test_out_and_out_dtype_say_the_same_or_one_of_them_is_left_out(op: str) -> None:
    a, b, out = X.astype(np.complex64), Y.astype(np.complex64), np.zeros((4, 4), np.complex64)
    product = getattr(tw, op)
    assert product(a, b, out=out, out_dtype="c64", target="reference") is out
    assert np.array_equal(out, a @ b)
    with pytest.raises(tw.DTypeError, match=r"out is c64, and out_dtype=c128; .*: one of them alone"):
        product(a, b, out=out, out_dtype="c128", target="reference")


@pytest.mark.parametrize("op", OPS)
def test_out_and_out_dtype_are_taken_alike(op: str) -> None:
    planes = op == "complex_matmul"
    out = np.full((4, 4), np.nan, np.float16)
    given: Any = (out, out.copy()) if planes else out
    OPS[op](out=given, out_dtype="f16", target="reference")
    assert np.array_equal(out, np.full((4, 4), 0 if planes else 8))
    assert not planes or np.array_equal(given[1], np.full((4, 4), 16))
    what = "a pair of f16" if planes else "f16"
    with pytest.raises(tw.DTypeError, match=f"out is {what}, and out_dtype=f32; .*: one of them alone"):
        OPS[op](out=given, out_dtype="f32", target="reference")
