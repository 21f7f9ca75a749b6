"""Copies through every kind of view, between every pair of memories, at edges, and in stages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.pipelined import gemm

import tilewright as tw
from tilewright.dtypes import DType
from tilewright.targets.rules import EmittedText

pytestmark = pytest.mark.in_turns(3)

Machine = Callable[..., EmittedText]
SHAPES = [(65, 31), (1, 1), (16, 32), (37, 50), (64, 96)]
"""The first one tells nothing that would not hold of the others."""


def values(shape: tuple[int, ...], dtype: DType = tw.f32, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 100, shape).astype(dtype.numpy)


def blank(shape: tuple[int, ...], dtype: DType = tw.f32) -> np.ndarray:
    return np.full(shape, np.nan if dtype.is_float else 77).astype(dtype.numpy)


def run(machine: Machine, kernel: tw.Kernel, *arrays: np.ndarray, **constants: Any) -> EmittedText:
    names = [parameter.name for parameter in kernel.program.parameters]
    return machine(kernel.trace(*arrays, **constants), dict(zip(names, arrays, strict=True)))


@tw.kernel(X="M N", Y="M N")
def everywhere(X, Y, *, tile, threads):
    m, n = tw.block_index(tw.ceil_div(X.shape, tile))
    first, second = tw.shared(tile, X.dtype), tw.shared(tile, Y.dtype)
    x = tw.load(X.tile(tile, (m, n)).partition(threads))
    tw.copy(x, first)
    tw.warp_barrier()
    tw.barrier()
    tw.copy(first, second, threads=threads)
    tw.barrier()
    y = tw.load(second.partition(threads))
    z = tw.fragment(y, fill=1)
    z.assign(y)
    tw.copy(z, Y.tile(tile, (m, n)))


@pytest.mark.parametrize("target", [tw.f32, tw.f16, tw.i32], ids=str)
def test_through_all_memories(machine: Machine, target: DType) -> None:
    kernel = None
    for shape in SHAPES:
        X, Y = values(shape), blank(shape, target)
        kernel = kernel or everywhere.trace(X, Y, tile=(16, 32), threads=(4, 8))
        machine(kernel, {"X": X, "Y": Y})
        assert np.array_equal(X.astype(target.numpy), Y)


def test_one_element_goes_through_all_memories(machine: Machine) -> None:
    X, Y = values((3, 2)), blank((3, 2))
    run(machine, everywhere, X, Y, tile=(1, 1), threads=(1, 1))
    assert np.array_equal(X, Y)


@tw.kernel(X="M N", Y="M N")
def directly(X, Y, *, tile):
    m, n = tw.block_index(tw.ceil_div(X.shape, tile))
    tw.copy(X.tile(tile, (m, n)), Y.tile(tile, (m, n)), threads=(4, 8))


@pytest.mark.parametrize("layouts", ["CC", "CF", "FC", "FF"])
@pytest.mark.parametrize("dtype", [tw.f32, tw.f64, tw.i32, tw.f16, tw.u8], ids=str)
def test_between_row_and_column_major(machine: Machine, layouts: str, dtype: DType) -> None:
    X, Y = (
        np.asarray(a, order=o)
        for a, o in zip((values((70, 90), dtype), blank((70, 90), dtype)), layouts, strict=True)
    )
    run(machine, directly, X, Y, tile=(32, 32))
    assert np.array_equal(X, Y)


def test_in_place(machine: Machine) -> None:
    X = values((37, 50))
    kept = X.copy()
    machine(directly.trace(X, X, tile=(16, 32)), {"X": X, "Y": X})
    assert np.array_equal(X, kept)


@tw.kernel(X="M N", Y="N M")
def transpose(X, Y, *, tile):
    m, n = tw.block_index(tw.ceil_div(X.shape, tile))
    staged = tw.shared(tile, X.dtype)
    tw.copy(X.tile(tile, (m, n)), staged, threads=(4, 8))
    tw.barrier()
    tw.copy(staged.permute(1, 0), Y.tile((tile[1], tile[0]), (n, m)), threads=(8, 4))


@pytest.mark.parametrize("dtype", [tw.f32, tw.f64, tw.f16, tw.i8], ids=str)
def test_transpose(machine: Machine, dtype: DType) -> None:
    kernel = None
    for shape in SHAPES:
        X, Y = values(shape, dtype), blank(shape[::-1], dtype)
        kernel = kernel or transpose.trace(X, Y, tile=(16, 32))
        machine(kernel, {"X": X, "Y": Y})
        assert np.array_equal(X.T, Y)


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("dtype", [tw.f32, tw.f64, tw.i32], ids=str)
def test_transposition_in_registers_on_every_architecture(machine: Machine, arch: str, dtype: DType) -> None:
    X, Y = values((70, 90), dtype), blank((90, 70), dtype)
    listing = machine(transpose.trace(X, Y, tile=(32, 32)), {"X": X, "Y": Y}, arch=arch)
    assert np.array_equal(X.T, Y)
    assert "__builtin_shufflevector" in listing.text or dtype == tw.f64


@tw.kernel(X="M N", V="N", Y="M N")
def broadcast(X, V, Y, *, tile):
    m, n = tw.block_index(tw.ceil_div(X.shape, tile))
    x = tw.load(X.tile(tile, (m, n)).partition((4, 8)))
    row = tw.shared((tile[1],), V.dtype)
    v = tw.load(V.tile((tile[1],), (n,)).partition((4, 8), projection=(None, 1)))
    tw.copy(v, row)
    tw.barrier()
    spread = tw.load(row.broadcast(0, tile[0]), like=x)
    tw.copy(x + spread.to(x.dtype), Y.tile(tile, (m, n)))


def test_replication_and_broadcast(machine: Machine) -> None:
    X, V, Y = values((37, 50)), values((50,), tw.f16, 1), blank((37, 50))
    run(machine, broadcast, X, V, Y, tile=(16, 32))
    assert np.array_equal(X + V.astype(np.float32), Y)


@tw.kernel(X="M N", Y="P Q")
def padded(X, Y, *, before, tile):
    m, n = tw.block_index(tw.ceil_div(Y.shape, tile))
    grown = X.pad(before, before)
    part = tw.shared(tile, X.dtype)
    tw.copy(grown.tile(tile, (m, n)), part, threads=(4, 8))
    tw.barrier()
    tw.copy(part, Y.tile(tile, (m, n)), threads=(4, 8))


@pytest.mark.parametrize("before", [(0, 0), (1, 2), (5, 3)])
def test_padding_reads_as_zero(machine: Machine, before: tuple[int, int]) -> None:
    X = values((37, 50))
    Y = blank((37 + 2 * before[0], 50 + 2 * before[1]))
    run(machine, padded, X, Y, before=before, tile=(16, 32))
    assert np.array_equal(Y, np.pad(X, [(b, b) for b in before]))


@tw.kernel(X="M N", Y="A B")
def windows(X, Y, *, width, step, dilation, pad):
    """Rows of sliding windows along the second dimension."""
    count = (X.shape[1] + 2 * pad - dilation * (width - 1) - 1) // step + 1
    m = tw.block_index(X.shape[0])
    slid = X[m].embed(0, (count, width), (step, dilation), pad)
    n = 0
    part = tw.shared((8, 8), X.dtype)
    tw.copy(slid.tile((8, 8), (n, 0)), part, threads=(4, 8))
    tw.barrier()
    tw.copy(part.merge(0, 2), Y[m].tile((64,), (0,)), threads=(32,))


@pytest.mark.parametrize(("step", "dilation", "pad"), [(1, 1, 0), (2, 1, 1), (1, 2, 2), (3, 2, 1)])
def test_sliding_windows(machine: Machine, step: int, dilation: int, pad: int) -> None:
    width = 3
    X = values((5, 11))
    Y = blank((5, 64))
    run(machine, windows, X, Y, width=width, step=step, dilation=dilation, pad=pad)
    count = (11 + 2 * pad - dilation * (width - 1) - 1) // step + 1
    grown = np.pad(X, ((0, 0), (pad, pad + 64)))
    expected = np.zeros((5, 8, 8), np.float32)
    for i in range(min(count, 8)):
        for j in range(width):
            expected[:, i, j] = grown[:, i * step + j * dilation]
    assert np.array_equal(Y, expected.reshape(5, 64))


@tw.kernel(X="M N", Y="M N")
def swizzled(X, Y, *, tile):
    m, n = tw.block_index(tw.ceil_div(X.shape, tile))
    part = tw.shared(tile, X.dtype).swizzle(3, 2, 3)
    tw.copy(X.tile(tile, (m, n)), part, threads=(4, 8))
    tw.barrier()
    tw.copy(part, Y.tile(tile, (m, n)), threads=(8, 4))


def test_swizzles(machine: Machine) -> None:
    X, Y = values((37, 50)), blank((37, 50))
    run(machine, swizzled, X, Y, tile=(16, 32))
    assert np.array_equal(X, Y)


@tw.kernel(X="M N", Y="M N")
def merged(X, Y, *, tile):
    m, n = tw.block_index(tw.ceil_div(X.shape, tile))
    part = tw.shared(tile, X.dtype)
    tw.copy(X.tile(tile, (m, n)), part, threads=(4, 8))
    tw.barrier()
    again = (
        part.merge(0, 2).unmerge(0, (tile[0], tile[1] // 4, 4)).permute(0, 2, 1).permute(0, 2, 1).merge(1, 2)
    )
    tw.copy(again, Y.tile(tile, (m, n)), threads=(8, 4))


def test_merges_and_splits(machine: Machine) -> None:
    X, Y = values((37, 50)), blank((37, 50))
    run(machine, merged, X, Y, tile=(16, 32))
    assert np.array_equal(X, Y)


@tw.kernel(X="B M N", Y="B M N")
def batched(X, Y, *, tile):
    m, n = tw.block_index(tw.ceil_div(X.shape[1:], tile))
    b = tw.batch_index(X.shape[0])
    tw.copy(X[b].tile(tile, (m, n)), Y[b].tile(tile, (m, n)), threads=(4, 8))


def test_batches(machine: Machine) -> None:
    X, Y = values((5, 37, 50)), blank((5, 37, 50))
    run(machine, batched, X, Y, tile=(16, 32))
    assert np.array_equal(X, Y)


@tw.kernel(X="M N", Y="M N")
def in_clusters(X, Y, *, tile):
    m, n = tw.block_index((X.shape[0] // tile[0], X.shape[1] // tile[1]))
    rank_m, rank_n = tw.hopper.cluster_index((2, 1))
    kept = tw.workspace((X.shape[0], X.shape[1]), tw.f32)
    x = tw.load(X.tile(tile, (m, n)).partition((4, 8)))
    tw.copy(x, kept.tile(tile, (m, n)))
    y = tw.load(kept.tile(tile, (m, n)).partition((4, 8)))
    with tw.when(rank_m == rank_n):
        y += 1000.0
    tw.copy(y, Y.tile(tile, (m, n)))


def test_clusters_and_workspaces(machine: Machine) -> None:
    X, Y = values((64, 64)), blank((64, 64))
    run(machine, in_clusters, X, Y, tile=(16, 32))
    first = np.arange(64)[:, None] // 16 % 2 == 0
    assert np.array_equal(X + 1000 * first, Y)


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("dtype", [tw.f32, tw.f16], ids=str)
def test_pipelines(machine: Machine, dtype: DType, stages: int) -> None:
    mma = tw.TiledMma(tw.atoms.fma(dtype, each=(4, 4)), (2, 2))
    kernel = None
    for depth in (257, 1, 16, 100):
        A = np.random.default_rng(1).integers(-4, 5, (70, depth)).astype(dtype.numpy)
        B = np.random.default_rng(2).integers(-4, 5, (50, depth)).astype(dtype.numpy)
        C = blank((70, 50))
        kernel = kernel or gemm.trace(A, B, C, tile=(32, 64, 16), mma=mma, stages=stages)
        machine(kernel, {"A": A, "B": B, "C": C})
        assert np.array_equal(C, A.astype(np.float32) @ B.astype(np.float32).T)


@tw.kernel(A="M K", B="N K", C="M N")
def from_registers(A, B, C, *, mma):
    """Operands are fragments, one of them computed, and a shared tensor that another operation reads, too."""
    K = 32
    m, n = tw.block_index(tw.ceil_div(C.shape, (32, 64)))
    sB = tw.shared((64, K), B.dtype)
    acc = tw.accumulator(mma)
    for k in tw.range(tw.ceil_div(A.shape[1], K)):
        a = tw.load(A.tile((32, K), (m, k)), like=tw.operand_a(mma, K))
        tw.copy(B.tile((64, K), (n, k)), sB, threads=(4, 8))
        tw.barrier()
        tw.mma(a + a, sB, acc)
        tw.barrier()
    tw.copy(acc, C.tile((32, 64), (m, n)))


@pytest.mark.parametrize("dtype", [tw.f32, tw.f16], ids=str)
def test_operands_in_fragments_are_packed(machine: Machine, dtype: DType) -> None:
    A = np.random.default_rng(1).integers(-4, 5, (70, 50)).astype(dtype.numpy)
    B = np.random.default_rng(2).integers(-4, 5, (80, 50)).astype(dtype.numpy)
    C = blank((70, 80))
    mma = tw.TiledMma(tw.atoms.fma(dtype), repeats=(8, 8))
    listing = run(machine, from_registers, A, B, C, mma=mma)
    assert np.array_equal(C, 2 * A.astype(np.float32) @ B.astype(np.float32).T)
    assert any("packed" in note for note in listing.notes)


@tw.kernel(A="M K", B="N K", C="M N")
def converting(A, B, C, *, mma):
    """f32 in memory becomes f16 in shared memory, so the multiply reads rounded numbers."""
    m, n = tw.block_index(tw.ceil_div(C.shape, (32, 64)))
    sA, sB = tw.shared((32, 16), tw.f16), tw.shared((64, 16), tw.f16)
    acc = tw.accumulator(mma)
    for k in tw.range(tw.ceil_div(A.shape[1], 16)):
        tw.copy(A.tile((32, 16), (m, k)), sA, threads=(4, 8))
        tw.copy(B.tile((64, 16), (n, k)), sB, threads=(4, 8))
        tw.barrier()
        tw.mma(sA, sB, acc)
        tw.barrier()
    tw.copy(acc, C.tile((32, 64), (m, n)))


def test_shared_memory_that_rounds_is_not_widened(machine: Machine) -> None:
    A = np.random.default_rng(1).uniform(1, 2, (70, 1)).astype(np.float32)
    B = np.ones((80, 1), np.float32)
    C = blank((70, 80))
    run(machine, converting, A, B, C, mma=tw.TiledMma(tw.atoms.fma(tw.f16), repeats=(8, 8)))
    assert np.array_equal(C, np.repeat(A.astype(np.float16).astype(np.float32), 80, axis=1))
    assert not np.array_equal(C[:, :1], A)


@tw.kernel(A="M K", C="M M", D="P P")
def gram(A, C, D, *, mma):
    """One tensor is both operands, an accumulator is used twice, and rows past an edge are read."""
    sA = tw.shared((32, 32), A.dtype)
    acc = tw.accumulator(mma, fill=1)
    tw.copy(A.tile((32, 32), (0, 0)), sA, threads=(4, 8))
    tw.barrier()
    tw.mma(sA, sA, acc)
    tw.copy(acc, D.tile((32, 32), (0, 0)))
    acc += acc
    tw.copy(acc, C.tile((32, 32), (0, 0)))


def test_one_tensor_as_both_operands(machine: Machine) -> None:
    A = np.random.default_rng(1).integers(-4, 5, (20, 32)).astype(np.float32)
    C, D = blank((20, 20)), blank((32, 32))
    run(machine, gram, A, C, D, mma=tw.TiledMma(tw.atoms.fma(tw.f32), repeats=(8, 4)))
    grown = np.pad(A, ((0, 12), (0, 0)))
    assert np.array_equal(D, grown @ grown.T + 1)
    assert np.array_equal(C, 2 * (A @ A.T + 1))


@tw.kernel(X="M N", Y="M N")
def double(X, Y, *, tile):
    new, within = tw.block_index(tw.ceil_div(X.shape, tile))
    given = tw.load(X.tile(tile, (new, within)).partition((4, 8)))
    block = given * 2.0
    i0_1 = block + 0.0
    short = i0_1 + 0.0
    for made in (i0_1, short):
        tw.copy(made, Y.tile(tile, (new, within)))


def test_names_that_cpp_or_the_text_uses(machine: Machine) -> None:
    X, Y = values((37, 50)), blank((37, 50))
    run(machine, double, X, Y, tile=(16, 32))
    assert np.array_equal(2 * X, Y)
