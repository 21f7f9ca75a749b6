"""Illegal uses of 4-bit elements, and their error messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw


@tw.kernel(W="N K", Y="N K")
def widen(W, Y):
    tw.copy(tw.load(W.tile((4, 8), (0, 0)).partition(32), element=Y.dtype), Y.tile((4, 8), (0, 0)))


def test_one_thread_moves_whole_bytes() -> None:
    @tw.kernel(W="N K", Y="N K")
    def apart(W, Y):
        tile = W.tile((8, 64), (0, 0))
        x = tw.load(tile.partition(tw.Layout((8, 64)), vector_dim=0), element=tw.f32)
        tw.copy(x, Y.tile((8, 64), (0, 0)))

    with pytest.raises(tw.LegalityError, match=r"neighbours of i4 along dimension .* share a byte"):
        apart(tw.packed(np.zeros((8, 32), np.uint8), tw.i4), np.zeros((8, 64), np.float32))


def test_elements_of_a_byte_are_not_kept_in_registers() -> None:
    @tw.kernel(W="N K", Y="N K")
    def kept(W, Y):
        tw.copy(tw.load(W.tile((8, 64), (0, 0)).partition(32)), Y.tile((8, 64), (0, 0)))

    with pytest.raises(tw.LegalityError, match=r"(?s)elements of i4 share bytes.*element=tw.i8"):
        kept(tw.packed(np.zeros((8, 32), np.uint8), tw.i4), np.zeros((8, 64), np.float32))


def test_vectors_across_the_bytes_are_told_the_dimension_along_them() -> None:
    @tw.kernel(X="N K")
    def across(X):
        held = tw.shared((32, 64), tw.i4, layout=tw.Layout((32, 64)))
        tw.copy(X.tile((32, 64), (0, 0)), held, threads=64, vector_dim=1)

    with pytest.raises(tw.LegalityError, match=r"(?s)do not share a byte.*choice: vector_dim=0"):
        across(np.zeros((32, 64), np.float32), target="reference")


def test_slices_that_begin_within_a_byte_are_refused() -> None:
    @tw.kernel(W="N K", Y="N L")
    def sliced(W, Y):
        x = tw.load(W[:, 1:33].tile((8, 32), (0, 0)).partition((8, 4)), element=tw.f32)
        tw.copy(x, Y.tile((8, 32), (0, 0)))

    with pytest.raises(tw.LegalityError, match="do not share a byte"):
        sliced(tw.packed(np.zeros((8, 32), np.uint8), tw.i4), np.zeros((8, 32), np.float32))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: tw.packed(np.zeros((4, 4), np.int8), tw.i4), "an array of i8 for packed i4"),
        (lambda: tw.packed(np.zeros((4, 8), np.uint8)[:, ::2], tw.i4), "contiguous along no dimension"),
        (lambda: np.zeros((4, 4), tw.i4.numbers), r"one number per byte.*tw.packed\(tw.pack"),
    ],
)
def test_arrays_that_hold_no_packed_elements(given: Callable[[], Any], message: str) -> None:
    with pytest.raises(tw.LaunchError, match=message):
        widen(given(), np.zeros((4, 8), np.float32))


def test_tiles_that_share_no_whole_bytes() -> None:
    @tw.kernel(W="N K", Y="N K")
    def odd(W, Y):
        tw.copy(W.tile((8, 31), (0, 0)), Y.tile((8, 31), (0, 0)), threads=8)

    with pytest.raises(tw.LegalityError, match=r"(?s)31 elements along dimension 1, where 2 share .* 30"):
        odd(tw.packed(np.zeros((8, 32), np.uint8), tw.i4), np.zeros((8, 64), np.float32))


@pytest.mark.parametrize(
    ("more", "message"),
    [({"other": 1}, "other=1 of packed i4.*choice: other=0"), ({"reduction": "add"}, "element=tw.i32")],
)
def test_what_copies_of_packed_elements_cannot_do(more: dict[str, Any], message: str) -> None:
    @tw.kernel(W="N K", Y="N K")
    def more_than_moved(W, Y):
        tw.copy(W.tile((8, 64), (0, 0)), Y.tile((8, 64), (0, 0)), threads=32, **more)

    with pytest.raises(tw.LegalityError, match=f"(?s){message}"):
        more_than_moved(tw.packed(np.zeros((8, 32), np.uint8), tw.i4), np.zeros((8, 64), np.int32))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: tw.like("i4", 5, 7), "extent 7 of dimension 1 for i4, .* choice: 8"),
        (lambda: tw.like("i4", 5, 8, strides=(9, 1)), "stride 9 of i4 would begin within a byte.*10"),
        (lambda: tw.like("i4", 5, 8, strides=(16, 2)), r"strides \(16, 2\) of i4.*order="),
    ],
)
def test_specimens_fill_bytes(given: Callable[[], Any], message: str) -> None:
    with pytest.raises(tw.LaunchError, match=message):
        given()


@pytest.mark.parametrize("given", [[1.5, 3.0], np.array([200], np.int16), np.uint8(3), None])
def test_only_bytes_are_unpacked(given: Any) -> None:
    with pytest.raises(tw.DTypeError, match=r"unpack: an array of .* bytes that tw\.pack gives"):
        tw.unpack(given, tw.i4)


def test_packing_asks_for_types_of_four_bits_and_whole_bytes() -> None:
    with pytest.raises(
        tw.DTypeError, match="u8 fills bytes by itself; nearest legal choice: i4, u4 or f4e2m1"
    ):
        tw.packed(np.zeros((4, 4), np.uint8), tw.u8)
    with pytest.raises(tw.DTypeError, match=r"shape \(3,\) fills no bytes.*multiple of 2"):
        tw.pack([1, 2, 3], tw.i4)


@pytest.mark.parametrize("call", [tw.pack, tw.unpack], ids=["pack", "unpack"])
@pytest.mark.parametrize("given", [[[1, 2], [3]], range(10**15)], ids=["ragged", "too long"])
def test_what_makes_no_array_is_refused(call, given) -> None:
    with pytest.raises(tw.DTypeError, match=rf"{call.__name__}: .* makes no array"):
        call(given, tw.i4)


def test_a_number_is_no_operand_of_a_multiply() -> None:
    @tw.kernel(A="M K", I="N")
    def number(A, I):
        acc = tw.accumulator(tw.TiledMma(tw.atoms.MMA_F16))
        tw.mma(tw.shared((16, 16), tw.f16), I[0], acc)

    with pytest.raises(tw.LegalityError, match=r"B = \S+ has shape \(\)"):
        number.compile(tw.like("f16", 16, 16), tw.like("f16", 8), target="cuda", arch="sm_90a")
