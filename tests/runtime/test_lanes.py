"""The architecture determines the threads of a warp and of a block before a kernel is traced."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tilewright as tw
from tilewright.arch import REFERENCE
from tilewright.ir.verify import violations
from tilewright.runtime.binding import specs_of
from tilewright.threads.banks import coalesced

WAVE64 = replace(REFERENCE, name="wave64", lanes=64, other_lanes=())
WIDE = tw.TiledMma(tw.atoms.fma(tw.f32, lanes=(8, 8)), (1, 1), (1, 1))


@tw.kernel(X="M P", A="M K", B="N K", C="M P")
def sums_then_product(X, A, B, C):
    """64 lanes of one warp hold a row of X: without scratch memory its sum needs warps of 64."""
    x = tw.load(X.tile((8, 64), (0, 0)).partition((1, 64)))
    totals = tw.reduce_sum(x, dim=1)
    sA, sB = tw.shared((8, 8), tw.f32), tw.shared((8, 8), tw.f32)
    tw.copy(A.tile((8, 8), (0, 0)), sA, threads=64)
    tw.copy(B.tile((8, 8), (0, 0)), sB, threads=64)
    acc = tw.accumulator(WIDE)
    tw.barrier()
    tw.mma(sA, sB, acc)
    tw.copy(acc, C.tile((8, 8), (0, 0)))
    tw.barrier()
    part = C.tile((8, 64), (0, 0)).partition((1, 64))
    tw.copy(tw.load(part) + totals, part)


def problem() -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    shapes = ((8, 64), (8, 8), (8, 8), (8, 64))
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_an_atom_decides_before_anything_is_recorded(target: str) -> None:
    x, a, b, c = problem()
    wanted = c.astype(np.float64)
    wanted[:, :8] = a.astype(np.float64) @ b.astype(np.float64).T
    wanted += x.astype(np.float64).sum(axis=1, keepdims=True)
    made = sums_then_product(x, a, b, c, target=target)
    assert made.target == target
    assert made.kernel.lanes == 64
    assert np.abs(c - wanted).max() < 64 * 2.0**-23 * np.abs(x).sum(axis=1).max()


def test_an_architecture_with_other_warps_refuses_the_atom_and_names_the_nearest() -> None:
    with pytest.raises(tw.LegalityError) as refused:
        sums_then_product.compile(*problem(), target="cuda", arch="sm_90a")
    said = str(refused.value)
    assert "fma.f32.f32.8x8 has 64 lanes, the kernel 32" in said
    assert "nearest legal choice: an atom of 32 lanes" in said
    assert not sums_then_product.check(*problem(), target="reference").violations
    [broken] = sums_then_product.check(*problem(), target="cuda", arch="sm_90a").violations
    assert broken.message == "the kernel is written for warps of 64 lanes, sm_90a has 32"


@tw.kernel(X="M N", Y="M P")
def row_sums(X, Y):
    x = tw.load(X.tile((8, 64), (0, 0)).partition((1, 64)))
    tw.copy(tw.reduce_sum(x, dim=1), Y.tile((8, 1), (0, 0)))


def test_lanes_are_those_of_the_architecture_that_a_kernel_is_traced_for() -> None:
    arrays = tw.like("f32", 8, 64), tw.like("f32", 8, 1)
    for options in ({}, {"target": "cuda", "arch": "sm_80"}, {"target": "reference"}):
        narrow = row_sums.trace(*arrays, **options)
        assert narrow.lanes == 32
        [found] = violations(narrow)
        assert "2 warps" in found.message
    specs = specs_of(row_sums.program, arrays)
    wide = row_sums.program.trace(specs, {}, WAVE64)
    assert (wide.lanes, wide.threads) == (64, 64)
    assert violations(wide) == []
    with pytest.raises(tw.LaunchError, match=r"arch=.sm_80. without a target; nearest .*cuda"):
        row_sums.trace(*arrays, arch="sm_80")


@tw.kernel(X="N")
def two_roles(X):
    for _ in range(2):
        with tw.role(warps=1):
            tw.fragment(tw.blocked((64,), (64,)), tw.f32, 0.0)


def test_roles_are_of_whole_warps_of_the_architecture() -> None:
    specs = specs_of(two_roles.program, [tw.like("f32", 64)])
    for arch, threads in ((REFERENCE, 64), (WAVE64, 128)):
        assert two_roles.program.trace(specs, {}, arch).threads == threads


@tw.kernel(X="M N", Y="M N")
def five_columns(X, Y, *, threads):
    s = tw.shared((8, 5), X.dtype)
    tw.copy(X.tile((8, 5), (0, 0)), s, threads=threads)
    tw.barrier()
    x = tw.load(s.partition(threads))
    tw.copy(x + x, Y.tile((8, 5), (0, 0)))


@pytest.mark.parametrize("threads", [40, 64, (8, 5)])
def test_threads_that_a_tile_cannot_use_idle(threads: int | tuple[int, int]) -> None:
    """No multiple of 32 threads divides 40 elements, so 24 of 64 threads are idle."""
    x = np.random.default_rng(1).standard_normal((8, 5)).astype(np.float32)
    for target in ("reference", "cpu"):
        y = np.full_like(x, np.nan)
        made = five_columns(x, y, threads=threads, target=target)
        assert (made.target, made.kernel.threads) == (target, 64)
        assert np.array_equal(y, x + x)
    made = five_columns.compile(x, x.copy(), threads=threads, target="cuda", arch="sm_80")
    assert "__launch_bounds__(64)" in made.source
    assert "if (tid < 40)" in made.source
    assert five_columns.check(x, x.copy(), threads=threads).is_clean


@tw.kernel(X="M N", Y="M N")
def narrow_rows(X, Y):
    held = tw.shared((8, 48), tw.i8)
    tw.copy(X.tile((8, 48), (0, 0)), held, threads=64, vector_dim=1)
    tw.barrier()
    tw.copy(held, Y.tile((8, 48), (0, 0)), threads=64)


def test_tiles_are_shared_out_by_the_warps_of_the_architecture() -> None:
    specs = specs_of(narrow_rows.program, [tw.like("i8", 8, 48)] * 2)
    for arch in (REFERENCE, WAVE64):
        traced = narrow_rows.program.trace(specs, {}, arch)
        first = next(op for op in traced.walk() if op.name == "copy")
        assert first.spread == coalesced((8, 48), 64, None, 16, 1, (None, 1), lanes=arch.lanes)
    assert coalesced((8, 48), 64, None, 8, 1) != coalesced((8, 48), 64, None, 8, 1, lanes=64)
