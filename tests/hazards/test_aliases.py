"""Arguments that share memory have one history for each byte; their copies share memory alike."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import HazardError
from tilewright.targets.reference import Kind

from .test_mutants import TENSOR

RNG = np.random.default_rng(0)


@tw.kernel(X="M N", Y="M N")
def scaled(X, Y, *, by=2.0):
    m, n = tw.block_index(tw.ceil_div(X.shape, (32, 32)))
    tw.copy(tw.load(X.tile((32, 32), (m, n)).partition((16, 4))) * by, Y.tile((32, 32), (m, n)))


@tw.kernel(X="M N", Y="N M")
def transposed(X, Y, *, tile):
    m, n = tw.block_index(tw.ceil_div(X.shape, (tile, tile)))
    held = tw.shared((tile, tile), X.dtype)
    tw.copy(X.tile((tile, tile), (m, n)), held, threads=(16, 4))
    tw.barrier()
    tw.copy(held.permute(1, 0), Y.tile((tile, tile), (n, m)), threads=(16, 4))


@tw.kernel(A="M K", B="N K", C="M N")
def product(A, B, C):
    m, n = tw.block_index(tw.ceil_div(C.shape, (32, 32)))
    sA, sB = tw.shared((32, 16), A.dtype), tw.shared((32, 16), B.dtype)
    acc = tw.accumulator(TENSOR)
    for k in tw.range(tw.ceil_div(A.shape[1], 16)):
        tw.copy(A.tile((32, 16), (m, k)), sA, threads=(16, 4))
        tw.copy(B.tile((32, 16), (n, k)), sB, threads=(16, 4))
        tw.barrier()
        tw.mma(sA, sB, acc)
        tw.barrier()
    tw.copy(acc, C.tile((32, 32), (m, n)))


@tw.kernel(X="N", Y="N")
def widened(X, Y):
    """Convert each byte to a number of four bytes in the same memory."""
    n = tw.block_index(tw.ceil_div(X.shape[0], 64))
    tw.copy(tw.load(X.tile((64,), (n,)).partition((32,))).to(Y.dtype), Y.tile((64,), (n,)))


def matrix(rows, columns, dtype=np.float32):
    return RNG.integers(-9, 9, (rows, columns)).astype(dtype)


def raced(report, *names):
    """Return the findings between two blocks, and check that each names both arrays."""
    found = [f for f in report.findings if f.earlier is not None]
    assert found, str(report)
    for finding in found:
        assert finding.kind in (Kind.READ_WRITE, Kind.WRITE_READ, Kind.WRITE_WRITE)
        assert any(f"{one} and {other} share memory" in str(finding) for one, other in permutations(names))


def test_an_elementwise_kernel_in_place_is_clean_and_right_on_every_target() -> None:
    x = matrix(45, 70)
    want = 2 * x
    assert scaled.check(x, x).is_clean
    assert not np.array_equal(x, want), "check must not write the caller's arrays"
    for target in ("reference", "cpu"):
        y = x.copy()
        assert scaled(y, y, target=target).target == target
        assert np.array_equal(y, want)


def test_a_transposition_in_place_is_a_race_of_blocks() -> None:
    x = matrix(64, 64)
    assert transposed.check(x, np.empty_like(x), tile=32).is_clean
    raced(transposed.check(x, x, tile=32), "X", "Y")
    raced(scaled.check(x, x.T), "X", "Y")
    assert transposed.check(x, x.T, tile=32).is_clean, "each element is moved to where it is"
    with pytest.raises(HazardError, match="share memory"):
        transposed(x, x, tile=32, target="reference")


def test_a_transposition_in_place_by_one_block_is_clean_and_right() -> None:
    x = matrix(32, 32)
    assert transposed.check(x, x, tile=32).is_clean
    for target in ("reference", "cpu"):
        y = x.copy()
        transposed(y, y, tile=32, target=target)
        assert np.array_equal(y, x.T), target


def test_a_product_over_its_own_operand_is_a_race_of_blocks() -> None:
    a, b = matrix(64, 64, np.float16), matrix(64, 64, np.float16)
    assert product.check(a, b, np.empty_like(a)).is_clean
    assert product.check(a, a, np.empty_like(a)).is_clean, "reading one array twice is no race"
    raced(product.check(a, b, a), "A", "C")
    raced(product.check(a, b, b), "B", "C")


def test_slices_that_overlap_are_one_memory_and_slices_that_do_not_are_not() -> None:
    x = matrix(64, 100)
    assert scaled.check(x[:, :48], x[:, 50:98]).is_clean
    raced(scaled.check(x[:, :48], x[:, 40:88]), "X", "Y")
    raced(scaled.check(x[:-1], x[1:]), "X", "Y")


@pytest.mark.parametrize("start", [0, 60, 255])
def test_arrays_of_different_dtypes_share_their_bytes(start) -> None:
    memory = np.zeros(4096, np.uint8)
    y = memory[:1024].view(np.float32)
    apart, inside = memory[1024:1280].view(np.int8), memory[start : start + 256].view(np.int8)
    assert widened.check(apart, y).is_clean
    raced(widened.check(inside, y), "X", "Y")


def test_what_another_name_has_written_counts_as_covered() -> None:
    x = matrix(64, 32)
    assert scaled.check(x, x).uncovered == {"Y": 0}
    assert scaled.check(x[:32], x[32:]).uncovered == {"Y": 0}
