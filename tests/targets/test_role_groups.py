"""Several groups of warps execute one role on their own; an index tells them apart."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import LegalityError
from tilewright.ir import verify
from tilewright.runtime.nvrtc import compile_text
from tilewright.targets import cuda

LINE = tw.blocked((1, 64), (1, 64))


@tw.kernel(X="M N", Y="M N")
def mirrored(X, Y, *, number):
    """Each of three groups reverses a row through its own shared memory."""
    held = tw.shared((3, 1, 64), X.dtype)
    with tw.role(warps=1):
        pass
    with tw.role(warps=2, groups=3) as g:
        x = tw.fragment(LINE, X.dtype)
        tw.copy(X.tile((1, 64), (g, 0)), x)
        tw.copy(x, held[g])
        tw.role_barrier(1 + g if number == "own" else 1, threads=64)
        with tw.role(warps=1):
            part = tw.fragment(tw.blocked((1, 32), (1, 32)), X.dtype)
            tw.copy(held[g, :, 32:], part)
            tw.copy(part, Y.tile((1, 32), (g, 0)))
        with tw.role(warps=1):
            part = tw.fragment(tw.blocked((1, 32), (1, 32)), X.dtype)
            tw.copy(held[g, :, :32], part)
            tw.copy(part, Y.tile((1, 32), (g, 1)))


@tw.kernel(X="M N")
def shared_by_all(X):
    """Two groups write the same shared memory."""
    held = tw.shared((1, 32), X.dtype)
    with tw.role(warps=1, groups=2) as g:
        x = tw.fragment(tw.blocked((1, 32), (1, 32)), X.dtype)
        tw.copy(X.tile((1, 32), (g, 0)), x)
        tw.copy(x, held)


@tw.kernel(X="M N")
def greedy(X, *, registers):
    with tw.role(warps=4, registers=40):
        pass
    with tw.role(warps=4, groups=2, registers=registers) as g:
        tw.copy(tw.fragment(tw.blocked((1, 128), (1, 128)), X.dtype, 0), X.tile((1, 128), (g, 0)))


def arrays() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)
    return x, np.full_like(x, np.nan)


def test_each_group_has_rows_threads_and_a_barrier_of_its_own() -> None:
    x, y = arrays()
    report = mirrored.bind(number="own").check(x, y)
    assert report.is_clean, str(report)
    assert mirrored.bind(number="own")(x, y, target="reference").target == "reference"
    assert (y == np.concatenate([x[:, 32:], x[:, :32]], 1)).all()


def test_groups_that_share_a_barrier_are_found() -> None:
    assert not mirrored.bind(number="one").check(*arrays()).is_clean


def test_groups_that_write_the_same_memory_race() -> None:
    report = shared_by_all.check(np.ones((2, 32), np.float32))
    assert any("write-write race" in str(finding) for finding in report.findings)


def test_it_prints_reads_back_and_is_one_branch_of_text() -> None:
    kernel = mirrored.bind(number="own").trace(*arrays())
    assert not verify.violations(kernel)
    assert kernel.threads == 7 * 32
    text = tw.ir.print_kernel(kernel)
    assert "with role(first=1, count=2, groups=3) as g:" in text
    assert tw.ir.print_kernel(tw.ir.parse_kernel(text)) == text
    source = cuda.emit(kernel, "sm_90a").text
    assert source.count("role_barrier_of_group<64>(g + 1)") == 1
    assert "const int g = uniform((threadIdx.x - 32) / 64);" in source
    assert "const int tid = threadIdx.x - (64*g + 32);" in source
    assert "const int tid = threadIdx.x - (64*g + 64);" in source, "the second role inside of it"
    assert compile_text(source, "sm_90a").resources["spill_store_bytes"] == 0


def test_registers_are_those_of_all_groups() -> None:
    x = np.zeros((2, 128), np.float32)
    assert cuda.violations(greedy.bind(registers=232).trace(x), "sm_90a") == []
    [broken] = cuda.violations(greedy.bind(registers=240).trace(x), "sm_90a")
    assert "40 x 128 + 240 x 256" in broken.message
    assert "registers=232 instead of 240" in broken.nearest


def test_one_group_has_the_index_0() -> None:
    @tw.kernel(X="M N")
    def alone(X):
        with tw.role(warps=1, groups=1) as g:
            assert g == 0
            tw.copy(tw.fragment(tw.blocked((1, 32), (1, 32)), X.dtype, 1), X.tile((1, 32), (g, 0)))

    x = np.zeros((1, 32), np.float32)
    alone(x, target="reference")
    assert x.sum() == 32


def test_numbers_that_no_barrier_has_are_refused() -> None:
    @tw.kernel(X="M N")
    def many(X):
        with tw.role(warps=1, groups=16) as g:
            tw.role_barrier(1 + g, threads=32)

    with pytest.raises(LegalityError, match="a number from 1 to 15"):
        many.compile(np.zeros((1, 32), np.float32), target="cuda", arch="sm_90a")
