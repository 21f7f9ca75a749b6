"""Sizes that `check_sizes` tries by itself, against kernels that go wrong at some of them only."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.targets.reference import Kind

from .kernels import basic_gemm

GEMM = tw.kernel(A="M K", B="N K", C="M N")(basic_gemm)


def like(*shape: int, dtype: str = "f32", order: str = "C") -> object:
    return tw.like(dtype, *shape, order=order)


@tw.kernel(X="M N", Y="M N")
def ring(X, Y, *, stages, ahead, drain=True, edge=True):
    """Tiles along N through a ring of stages, ``ahead`` of them copied in the background."""
    m = tw.block_index(tw.ceil_div(X.shape[0], 16))
    held = tw.shared((stages, 16, 32), X.dtype)
    count = tw.ceil_div(X.shape[1], 32) if edge else X.shape[1] // 32

    def start(n):
        with tw.when(n < count):
            tw.copy_async(X.tile((16, 32), (m, n)), held[n % stages], threads=64)
        tw.async_commit()

    for n in tw.unroll(ahead):
        start(n)
    for n in tw.range(count):
        tw.async_wait(ahead - 1 if drain else ahead)
        tw.barrier()
        start(n + ahead)
        tw.copy(held[n % stages], Y.tile((16, 32), (m, n)), threads=(2, 32))


def bad(report) -> set[int]:
    return {dict(sizes)["N"] for sizes, one in report.reports if not one.is_clean}


def test_a_right_ring_is_clean_at_every_size() -> None:
    report = ring.check_sizes(like(40, 70), like(40, 70), stages=3, ahead=2)
    assert report.is_clean, report
    tried = [dict(sizes) for sizes, _ in report.reports]
    turns = {-(-sizes["N"] // 32) for sizes in tried}
    assert turns >= {0, 1, 2, 3, 4, 7}
    assert any(sizes["N"] % 32 and sizes["M"] % 16 for sizes in tried)
    assert {-(-sizes["M"] // 16) for sizes in tried} == {1, 2}
    assert report.idle == report.short == ()
    report.raise_if_any()


def test_a_ring_without_room_is_found_once_it_comes_round() -> None:
    report = ring.check_sizes(like(16, 32), like(16, 32), stages=2, ahead=2)
    assert not report.is_clean
    assert min(bad(report)) > 2 * 32
    with pytest.raises(tw.HazardError, match=r"at M = 16, N = \d+"):
        report.raise_if_any()
    assert ring.check(*(np.zeros((16, 32), np.float32),) * 2, stages=2, ahead=2, partial="Y").is_clean


def test_elements_behind_the_last_whole_tile_are_found_at_ragged_sizes() -> None:
    report = ring.check_sizes(like(16, 64), like(16, 64), stages=3, ahead=2, edge=False)
    assert {finding.kind for finding in report.findings} == {Kind.UNCOVERED}
    assert all(n % 32 for n in bad(report))


@tw.kernel(X="N", Y="N")
def counted(X, Y, *, stages):
    """The number of turns has a name of its own."""
    held = tw.shared((stages, 64), X.dtype)
    count = tw.let(tw.ceil_div(X.shape[0], 64))
    for n in tw.range(count):
        tw.copy(X.tile((64,), (n,)), held[n % stages], threads=64)
        tw.barrier()
        tw.copy(held[n % stages], Y.tile((64,), (n,)), threads=32)


def test_turns_that_are_counted_by_name_are_varied_too() -> None:
    report = counted.check_sizes(like(64), like(64), stages=2)
    assert {-(-dict(sizes)["N"] // 64) for sizes, _ in report.reports} >= {0, 1, 2, 3, 5}
    assert report.short == ()


def test_a_finding_is_told_once_with_all_sizes_that_show_it() -> None:
    report = ring.check_sizes(like(16, 64), like(16, 64), stages=3, ahead=2, drain=False)
    places = [(f.kind, f.tensor, str(f.earlier and f.earlier.op.location)) for f in report.findings]
    assert len(places) == len(set(places))
    assert str(report).count("  at M = ") == len(places)


def test_sizes_that_a_kernel_does_not_take_are_rounded_and_told() -> None:
    """Vectors of 8 need rows of 8."""
    gemm = GEMM.bind(
        tile=(32, 32, 16),
        threads=64,
        mma=tw.TiledMma(tw.atoms.MMA_F16, warps=(1, 2), repeats=(2, 2)),
        vector=8,
    )
    report = gemm.check_sizes(*(like(64, 64, dtype="f16"),) * 3)
    assert report.is_clean, report
    assert any("vector width" in why for _, why in report.refused)
    ragged = {dict(sizes)["K"] for sizes, _ in report.reports if dict(sizes)["K"] % 16}
    assert ragged
    assert all(k % 8 == 0 for k in ragged)


def test_columns_stay_columns_and_extents_that_are_asked_for_are_taken() -> None:
    seen = []

    @tw.kernel(X="M N", Y="M N", n=int)
    def copied(X, Y, n):
        m = tw.block_index(tw.ceil_div(X.shape[0], 32))
        seen.append(X.unit_dim)
        tw.copy(X.tile((32, 8), (m, n)), Y.tile((32, 8), (m, n)), threads=32)

    specimens = (like(64, 8, order="F"), like(64, 8, order="F"))
    report = copied.check_sizes(*specimens, 0, sizes={"N": 8, "M": (32, 33, 1)})
    assert [dict(sizes) for sizes, _ in report.reports] == [{"M": m, "N": 8} for m in (32, 33, 1)]
    assert 0 in seen


def test_no_further_size_is_begun_when_time_is_up() -> None:
    report = ring.check_sizes(like(16, 64), like(16, 64), stages=3, ahead=2, seconds=0)
    assert not report.reports
    assert not report.is_clean, "nothing ran"
    assert report.left_out
    assert "not tried, as time was up" in str(report)


@pytest.mark.parametrize("sizes", [{"Q": 3}, {"N": -1}, {"N": []}, {"N": 1.5}, 7])
def test_extents_of_no_dimension_are_refused(sizes) -> None:
    with pytest.raises(tw.LaunchError, match="nearest legal choice: extents of M, N"):
        ring.check_sizes(like(16, 64), like(16, 64), stages=3, ahead=2, sizes=sizes)


def test_a_kernel_that_is_illegal_at_every_size_is_refused() -> None:
    with pytest.raises(tw.LegalityError, match="threads x slice"):
        GEMM.check_sizes(
            *(like(64, 64, dtype="f16"),) * 3,
            tile=(32, 32, 16),
            threads=(5, 7),
            mma=tw.TiledMma(tw.atoms.MMA_F16, warps=(1, 2), repeats=(2, 2)),
            vector=1,
        )
