"""The rules of matrix multiplies: tiles, repeats, operands, accumulators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tilewright as tw
from tilewright.errors import LayoutError
from tilewright.ir.mma import MmaAtom

from .broken import said

MMA = tw.TiledMma(tw.atoms.MMA_F16, warps=(2, 2), repeats=(4, 4))


def multiply(*, a=(128, 32), b=(64, 32), dtype=tw.f16, mma=MMA, acc=MMA) -> Callable[..., Any]:
    def author():
        sA, sB = tw.shared(a, dtype), tw.shared(b, dtype)
        tw.mma(sA, sB, tw.accumulator(acc), mma)

    return author


def test_a_fitting_multiply() -> None:
    assert said(multiply()) == []


def test_wrong_repeats_are_told_the_right_ones() -> None:
    """TileFusion's own snippet declares this tile for a 128 x 32 chunk on 2 x 2 warps, and accepts it."""
    wrong = tw.TiledMma(tw.atoms.MMA_F16, warps=(2, 2), repeats=(8, 8))
    rules = said(multiply(mma=wrong, acc=wrong))
    assert [(rule, nearest) for rule, _, nearest in rules] == [("mma shape", "repeats=(4, 4)")] * 2
    assert "has shape (128, 32)" in rules[0][1]
    assert "takes (256, a multiple of 16): 16 x 2 x 8 rows" in rules[0][1]


def test_impossible_tiles_are_told_the_nearest() -> None:
    rules = said(multiply(a=(100, 24), b=(64, 24)))
    nearest = "A (96, 16) and B (64, 16), with repeats=(3, 4)"
    assert [(rule, near) for rule, _, near in rules] == [("mma shape", nearest)] * 2


def test_depths_must_agree() -> None:
    [(rule, message, nearest)] = said(multiply(a=(128, 32), b=(64, 16)))
    assert (rule, nearest) == ("mma shape", "equal K")
    assert message == "A = sA has K = 32, B = sB has K = 16"


def test_operand_dtypes() -> None:
    rules = said(multiply(dtype=tw.bf16))
    assert [rule for rule, _, _ in rules] == ["dtype", "dtype"]
    assert rules[0][1].startswith("mma.m16n8k16.f32.f16 takes A of f16, ")


def test_the_accumulator_must_be_the_mmas() -> None:
    other = tw.TiledMma(tw.atoms.MMA_F16, warps=(4, 1), repeats=(2, 8))
    [(rule, message, nearest)] = said(multiply(acc=other))
    assert (rule, nearest) == ("distribution", "tw.accumulator(mma), with the same mma")
    assert "the (128, 64) accumulator of mma.m16n8k16.f32.f16 with warps (2, 2)" in message


def test_operands_in_registers() -> None:
    def author():
        sA, sB = tw.shared((128, 32), tw.f16), tw.shared((64, 32), tw.f16)
        acc = tw.accumulator(MMA)
        right, swapped = tw.load(sA, tw.operand_a(MMA, 32)), tw.load(sB, tw.operand_b(MMA, 32))
        tw.mma(right, swapped, acc)
        plain = tw.load(sA, tw.blocked((128, 32), (32, 4), (1, 0)))
        tw.mma(plain, swapped, acc)

    [(rule, message, nearest)] = said(author)
    assert (rule, nearest) == ("distribution", "tw.load(..., tw.operand_a(mma, 32))")
    assert message == (
        "fragment plain is not distributed as operand A of mma.m16n8k16.f32.f16: the warps of a row of the "
        "2x2 grid hold the same rows"
    )


def test_inconsistent_fragments_are_told_the_right_shapes() -> None:
    """A fragment for 256 rows cannot be loaded from a tile of 128."""
    wrong = tw.TiledMma(tw.atoms.MMA_F16, warps=(2, 2), repeats=(8, 8))

    def author():
        sA = tw.shared((128, 32), tw.f16)
        x = tw.load(sA, tw.operand_a(wrong, 32))
        tw.mma(x, tw.load(tw.shared((128, 32), tw.f16), tw.operand_b(wrong, 32)), tw.accumulator(MMA), MMA)

    rules = said(author)
    assert rules[0][:2] == ("shape", "copy from sA of shape (128, 32) to x of shape (256, 32)")
    assert rules[1][0] == "mma shape"
    assert "takes (128, a multiple of 16)" in rules[1][1]


def test_global_operands() -> None:
    def author(A):
        tile = A.tile((128, 32), (0, 0))
        tw.mma(tile, tw.shared((64, 32), tw.f16), tw.accumulator(MMA))

    [(rule, message, nearest)] = said(author)
    assert rule == "mma operand"
    assert nearest == "copy it to shared memory, or tw.load(tile, tw.operand_a(mma, 32))"
    assert "A = tile lies in global memory" in message


def test_lanes_must_agree() -> None:
    def author():
        for lanes in ((4, 8), (8, 8)):
            mma = tw.TiledMma(tw.atoms.fma(tw.f32, lanes=lanes))
            sA, sB = tw.shared((lanes[0], 4), tw.f32), tw.shared((lanes[1], 4), tw.f32)
            tw.mma(sA, sB, tw.accumulator(mma))

    [(rule, message, _)] = said(author)
    assert rule == "warp size"
    assert "has 32 lanes, the kernel 64" in message


def test_tiled_mma_checks_itself() -> None:
    atom = tw.atoms.MMA_F16
    with pytest.raises(LayoutError, match=r"warps=\(0, 2\) must be two positive integers"):
        tw.TiledMma(atom, warps=(0, 2))
    with pytest.raises(LayoutError, match=r"repeats=\(1, 1, 1\)"):
        tw.TiledMma(atom, repeats=(1, 1, 1))  # type: ignore[arg-type]
    with pytest.raises(LayoutError, match="K = 24 is not a multiple of 16"):
        MMA.a(24)
    with pytest.raises(LayoutError, match="do not fit"):
        MmaAtom("wrong", tw.f16, tw.f16, tw.f32, atom.a, atom.b, atom.a)
    with pytest.raises(LayoutError, match=r"\[32, 32, 1\] lanes"):
        MmaAtom("wrong", tw.f16, tw.f16, tw.f32, atom.a, atom.b, tw.Distribution((16, 8), (), ()))
