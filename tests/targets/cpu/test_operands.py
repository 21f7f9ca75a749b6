"""Layouts of operands: followed through views, or packed if that fails."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tilewright as tw
from tilewright.targets import cpu
from tilewright.targets.rules import EmittedText

pytestmark = pytest.mark.in_turns(3)

Machine = Callable[..., EmittedText]

MMA = tw.TiledMma(tw.atoms.MMA_F16, warps=(2, 1), repeats=(2, 4))
TILE = (64, 32, 32)


@tw.kernel(A="M K", B="N K", C="M N")
def split_depth(A, B, C):
    """Both operands in pieces of 8 along K."""
    tile_m, tile_n, tile_k = TILE
    m, n = tw.block_index(tw.ceil_div(C.shape, (tile_m, tile_n)))
    acc = tw.accumulator(MMA)
    sA = tw.shared((tile_k // 8, tile_m, 8), A.dtype)
    sB = tw.shared((tile_n, tile_k // 8, 8), B.dtype)
    for k in tw.range(tw.ceil_div(A.shape[1], tile_k)):
        rows = sA.permute(1, 0, 2).merge(1)
        tw.copy(A.tile((tile_m, tile_k), (m, k)), rows, threads=(16, 4))
        tw.copy(B.tile((tile_n, tile_k), (n, k)), sB.merge(1), threads=(16, 4))
        tw.barrier()
        tw.mma(rows, sB.merge(1), acc)
        tw.barrier()
    tw.copy(acc, C.tile((tile_m, tile_n), (m, n)))


@tw.kernel(A="M K", B="N K", C="M N")
def slices(A, B, C):
    """Multiply half of the depth, with rows that are a box of a larger tensor."""
    tile_m, tile_n, tile_k = TILE
    m, n = tw.block_index(tw.ceil_div(C.shape, (tile_m, tile_n)))
    acc = tw.accumulator(MMA)
    both = tw.shared((2, tile_m + tile_n, tile_k), A.dtype)
    for k in tw.range(tw.ceil_div(A.shape[1], tile_k)):
        sA, sB = both[k % 2, :tile_m], both[k % 2, tile_m:]
        tw.copy(A.tile((tile_m, tile_k), (m, k)), sA, threads=(16, 4))
        tw.copy(B.tile((tile_n, tile_k), (n, k)), sB, threads=(16, 4))
        tw.barrier()
        for half in tw.unroll(2):
            at = slice(16 * half, 16 * (half + 1))
            tw.mma(sA[:, at], sB[:, at], acc)
        tw.barrier()
    tw.copy(acc, C.tile((tile_m, tile_n), (m, n)))


@tw.kernel(A="M K", B="N K", C="M N")
def also_stored(A, B, C):
    """Another operation than a multiply reads an operand in registers, so its layout stays the author's."""
    tile_m, tile_n, tile_k = TILE
    m, n = tw.block_index(tw.ceil_div(C.shape, (tile_m, tile_n)))
    acc = tw.accumulator(MMA)
    for k in tw.range(tw.ceil_div(A.shape[1], tile_k)):
        rA = tw.load(A.tile((tile_m, tile_k), (m, k)), tw.operand_a(MMA, tile_k))
        rB = tw.load(B.tile((tile_n, tile_k), (n, k)), tw.operand_b(MMA, tile_k))
        tw.mma(rA + rA, rB, acc)
        tw.mma(rA, rB, acc)
    tw.copy(acc, C.tile((tile_m, tile_n), (m, n)))


@tw.kernel(A="M K", B="N K", C="M N")
def doubled_depth(A, B, C):
    """A multiply of twice the depth uses the same tile twice: no order of the tile gives that."""
    tile_m, tile_n, tile_k = TILE
    m, n = tw.block_index(tw.ceil_div(C.shape, (tile_m, tile_n)))
    acc = tw.accumulator(MMA)
    sA, sB = tw.shared((tile_m, tile_k), A.dtype), tw.shared((tile_n, tile_k), B.dtype)
    for k in tw.range(tw.ceil_div(A.shape[1], tile_k)):
        tw.copy(A.tile((tile_m, tile_k), (m, k)), sA, threads=(16, 4))
        tw.copy(B.tile((tile_n, tile_k), (n, k)), sB, threads=(16, 4))
        tw.barrier()
        tw.mma(sA.broadcast(1, 2).merge(1), sB.broadcast(1, 2).merge(1), acc)
        tw.barrier()
    tw.copy(acc, C.tile((tile_m, tile_n), (m, n)))


# What each adds up, in products; and how many operands are packed before they are multiplied.
CASES = {split_depth: (1, 0), slices: (1, 2), also_stored: (3, 2), doubled_depth: (2, 2)}


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("kernel", CASES, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("shape", [(64, 32, 64), (70, 45, 67)], ids=str)
def test_operands(machine: Machine, kernel: tw.Kernel, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    drawn = np.random.default_rng(0)
    A, B = (drawn.uniform(-1, 1, extents).astype(np.float16) for extents in ((m, k), (n, k)))
    C = np.full((m, n), np.nan, np.float32)
    listing = machine(kernel.trace(A, B, C), {"A": A, "B": B, "C": C})
    times, packed = CASES[kernel]
    a, b = A.astype(np.float64), B.astype(np.float64)
    error = np.abs(C - times * a @ b.T)
    assert (error <= (times * k + 1) * 2.0**-24 * times * (np.abs(a) @ np.abs(b).T)).all()
    assert sum("is packed into" in note for note in listing.notes) == packed


def test_a_tensor_in_pieces_gets_the_order_of_the_multiply() -> None:
    A, B, C = np.zeros((64, 64), np.float16), np.zeros((32, 64), np.float16), np.zeros((64, 32), np.float32)
    _, notes = cpu.lower(split_depth.trace(A, B, C), "x86-64-v4")
    assert "sA re-laid out: strides (8, 32, 1)" in notes
    assert "sB re-laid out: strides (1, 256, 32)" in notes


@tw.kernel(A="M K", B="N K", C="M N")
def converted(A, B, C):
    """B is converted while it is copied."""
    tile_m, tile_n, tile_k = TILE
    m, n = tw.block_index(tw.ceil_div(C.shape, (tile_m, tile_n)))
    acc = tw.accumulator(MMA)
    sA, sB = tw.shared((tile_m, tile_k), A.dtype), tw.shared((tile_n, tile_k), A.dtype)
    for k in tw.range(tw.ceil_div(A.shape[1], tile_k)):
        tw.copy(A.tile((tile_m, tile_k), (m, k)), sA, threads=(16, 4))
        tw.copy(B.tile((tile_n, tile_k), (n, k)), sB, threads=(16, 4))
        tw.barrier()
        tw.mma(sA, sB, acc)
        tw.barrier()
    tw.copy(acc, C.tile((tile_m, tile_n), (m, n)))


@pytest.mark.parametrize(
    ("kind", "rounds"), [("f8e4m3", False), ("i8", False), ("f32", True), ("bf16", True)]
)
def test_an_operand_is_widened_at_once_unless_it_is_rounded_on_its_way(
    machine: Machine, kind: str, rounds: bool
) -> None:
    (m, n, k), drawn = (70, 45, 67), np.random.default_rng(0)
    A = drawn.uniform(-1, 1, (m, k)).astype(np.float16)
    B = (8 * drawn.uniform(-1, 1, (n, k))).astype(tw.dtype(kind).numpy)
    C = np.full((m, n), np.nan, np.float32)
    listing = machine(converted.trace(A, B, C), {"A": A, "B": B, "C": C})
    assert ("sB holds its elements as f32, exactly" in listing.notes) != rounds
    a, b = A.astype(np.float64), B.astype(np.float16).astype(np.float64)
    assert (np.abs(C - a @ b.T) <= (k + 1) * 2.0**-24 * (np.abs(a) @ np.abs(b).T)).all()


@tw.kernel(A="M K", B="N K", C="M N")
def halves(A, B, C, *, between, sets):
    """Each tile has two halves of the depth, in one or two sets of registers, with an operation between."""
    tile_m, tile_n, tile_k = TILE
    m, n = tw.block_index(tw.ceil_div(C.shape, (tile_m, tile_n)))
    acc = tw.accumulator(MMA)
    rA = [tw.fragment(tw.operand_a(MMA, 16), A.dtype, name="rA") for _ in range(sets)]
    rB = [tw.fragment(tw.operand_b(MMA, 16), B.dtype, name="rB") for _ in range(sets)]
    for k in tw.range(tw.ceil_div(A.shape[1], tile_k)):
        for half in tw.unroll(2):
            at = half % sets
            tw.copy(A.tile((tile_m, 16), (m, 2 * k + half)), rA[at])
            tw.copy(B.tile((tile_n, 16), (n, 2 * k + half)), rB[at])
            tw.mma(rA[at], rB[at], acc)
            if between == "scaled" and half == 0:
                acc *= 0.5
            if between == "multiplied again" and half == 1:
                tw.mma(rA[0], rB[1], acc)
    tw.copy(acc, C.tile((tile_m, tile_n), (m, n)))


@pytest.mark.parametrize(
    ("between", "sets", "joined"),
    [("nothing", 2, True), ("nothing", 1, False), ("scaled", 2, False), ("multiplied again", 2, True)],
)
def test_slices_are_joined_where_they_can_meet(
    machine: Machine, between: str, sets: int, joined: bool
) -> None:
    m, n, k = 70, 45, 67
    drawn = np.random.default_rng(0)
    A, B = (drawn.uniform(-1, 1, extents).astype(np.float16) for extents in ((m, k), (n, k)))
    C = np.full((m, n), np.nan, np.float32)
    listing = machine(halves.trace(A, B, C, between=between, sets=sets), {"A": A, "B": B, "C": C})
    assert any("side by side" in note for note in listing.notes) == joined
    depth = -(-k // 32) * 32
    a, b = (np.zeros((rows, depth)) for rows in (m, n))
    a[:, :k], b[:, :k] = A, B
    expected, size = np.zeros((m, n)), np.zeros((m, n))
    for start in range(0, depth, 32):
        first, second = slice(start, start + 16), slice(start + 16, start + 32)
        products = [(first, first), (second, second)]
        if between == "multiplied again":
            products.append((first, second))
        for turn, (left, right) in enumerate(products):
            expected += a[:, left] @ b[:, right].T
            size += np.abs(a[:, left]) @ np.abs(b[:, right]).T
            if between == "scaled" and turn == 0:
                expected *= 0.5
    assert (np.abs(C - expected) <= 2 * (k + 8) * 2.0**-24 * size).all()
