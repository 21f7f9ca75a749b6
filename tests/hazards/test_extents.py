"""Slices, indices and tiles leave their tensor, but not its allocation: they reach another row or stage."""

from __future__ import annotations

import numpy as np
import pytest
from tests.windows import window

import tilewright as tw
from tilewright.errors import LayoutError, TraceError
from tilewright.targets.reference import Kind, run

from .test_aliases import matrix


@tw.kernel(X="M N", Y="M N", start=int)
def by_slice(X, Y, start):
    """Copy eight columns through eight places of the first of two stages, from a run-time start on."""
    held = tw.shared((2, 32, 8), X.dtype)
    tw.copy(X[:, start : start + 8].tile((32, 8), (0, 0)), held[0], threads=(32, 1))
    tw.warp_barrier()
    tw.copy(held[0], Y[:, start : start + 8].tile((32, 8), (0, 0)), threads=(32, 1))


@tw.kernel(X="M N", Y="M N", stage=int)
def by_stage(X, Y, stage):
    """Two stages share an allocation with the memory after them; the caller gives the stage."""
    held = tw.shared((2, 32, 8), X.dtype)
    beyond = tw.shared((2, 32, 8), X.dtype)
    tw.copy(X.tile((32, 8), (0, 0)), held[stage], threads=(32, 1))
    tw.copy(X.tile((32, 8), (0, 0)), beyond[0], threads=(32, 1))
    tw.copy(held[stage], Y.tile((32, 8), (0, 0)), threads=(32, 1))


@tw.kernel(X="M N", Y="M N", row=int)
def in_stage(X, Y, row):
    """Copy eight rows of the first stage of 16, from a run-time row on."""
    held = tw.shared((2, 16, 8), X.dtype)
    for stage in tw.unroll(2):
        tw.copy(X.tile((16, 8), (stage, 0)), held[stage], threads=(16, 1))
    tw.barrier()
    tw.copy(held[0, row : row + 8], Y.tile((8, 8), (0, 0)), threads=(8, 1))


@tw.kernel(X="M N", Y="R N")
def one_row(X, Y):
    """Row 70 of an array whose extent is known at launch."""
    tw.copy(X[70:71].tile((1, 8), (0, 0)), Y.tile((1, 8), (0, 0)), threads=(1, 8))


@tw.kernel(X="M N", Y="M N", place=int)
def by_tile(X, Y, place):
    """Copy a tile of shared memory at one of three run-time places."""
    held = tw.shared((96, 8), X.dtype)
    for part in tw.unroll(3):
        tw.copy(X.tile((32, 8), (part, 0)), held.tile((32, 8), (part, 0)), threads=(32, 1))
    tw.barrier()
    tw.copy(held.tile((32, 8), (place, 0)), Y.tile((32, 8), (0, 0)), threads=(32, 1))


@tw.kernel(X="M N", Y="M N", start=int)
def guarded(X, Y, start):
    """Take the slice, but use it only if it is inside."""
    part = X[:, start : start + 8]
    with tw.when(start + 8 <= X.shape[1]):
        tw.copy(part.tile((32, 8), (0, 0)), Y.tile((32, 8), (0, 0)), threads=(32, 1))


def beyond(report, *texts):
    """Return the findings, after checking that all are of this kind, and the text of the first."""
    assert {finding.kind for finding in report.findings} == {Kind.OUT_OF_BOUNDS}, str(report)
    for text in texts:
        assert text in str(report.findings[0])
    return report.findings


@pytest.mark.parametrize("start", [0, 24, 32])
def test_a_slice_inside_is_clean(start) -> None:
    x = matrix(32, 40)
    assert by_slice.check(x, np.zeros_like(x), start, partial="Y").is_clean


@pytest.mark.parametrize("start", [33, 39, 40])
def test_a_slice_over_the_end_of_a_row_does_not_wrap_into_the_next_unseen(start) -> None:
    x = matrix(32, 40)
    report = by_slice.check(x, np.zeros_like(x), start, partial="Y")
    text = f"slice {start}:{start + 8} of dimension 1, whose extent is 40 (written slice start:start + 8)"
    found = beyond(report, text, "X[:, start : start + 8]", "test_extents.py")
    assert {finding.tensor for finding in found} == {"X", "Y"}


def test_a_slice_before_the_row_is_found() -> None:
    x = matrix(32, 40)
    beyond(by_slice.check(x, np.zeros_like(x), -1, partial="Y"), "slice -1:7 of dimension 1")


def test_a_stage_that_is_not_there_is_found() -> None:
    x = matrix(32, 8)
    assert by_stage.check(x, np.zeros_like(x), 1, partial="Y").is_clean
    for stage in (2, -1):
        report = by_stage.check(x, np.zeros_like(x), stage, partial="Y")
        found = beyond(report, f"index {stage} of dimension 0")
        assert {finding.access.action for finding in found} == {"read", "write"}


def test_rows_of_the_next_stage_are_found() -> None:
    x = matrix(32, 8)
    assert in_stage.check(x, np.zeros_like(x), 8, partial="Y").is_clean
    text = "slice 9:17 of dimension 1, whose extent is 16"
    [finding] = beyond(in_stage.check(x, np.zeros_like(x), 9, partial="Y"), text, "held[0, row : row + 8]")
    assert (finding.tensor, finding.memory, finding.access.action) == ("held", "shared", "read")


def test_a_constant_row_of_an_extent_known_at_launch_is_found() -> None:
    y = np.zeros((1, 8), np.float32)
    assert one_row.check(matrix(71, 8), y).is_clean
    beyond(one_row.check(matrix(70, 8), y), "slice 70:71 of dimension 0, whose extent is 70:")


def test_a_tile_of_shared_memory_that_is_not_there_is_found() -> None:
    x = matrix(96, 8)
    assert by_tile.check(x, np.zeros_like(x), 2, partial="Y").is_clean
    report = by_tile.check(x, np.zeros_like(x), 3, partial="Y")
    beyond(report, "tile 3 of dimension 0, whose extent is 3 tiles")


def test_a_slice_that_nothing_accesses_may_lie_anywhere() -> None:
    x = matrix(32, 40)
    assert guarded.check(x, np.zeros_like(x), 32, partial="Y").is_clean
    assert guarded.check(x, np.zeros_like(x), 33, partial="Y").is_clean


@tw.kernel(X="M N", Y="M N", stage=int, chunk=int)
def in_the_background(X, Y, stage, chunk):
    """TMA loads a box into one of two stages, and stores it from there; another tensor follows the stages."""
    held = tw.shared((2, 8, 64), X.dtype, swizzle=128)
    behind = tw.shared((2, 8, 64), X.dtype, swizzle=128)
    full = tw.hopper.mbarrier(1, arrivals=1)
    tw.barrier()
    with tw.role(warps=1):
        tw.hopper.arrive(full[0], expect_bytes=2 * 8 * 64 * X.dtype.bytes)
        tw.hopper.tma_load(window(X, (8, 64), (0, 8 * chunk)), held[stage], full[0])
        tw.hopper.tma_load(X.tile((8, 64), (1, 0)), behind[0], full[0])
        tw.hopper.wait(full[0], 0)
        tw.hopper.tma_store(held[stage], Y.tile((8, 64), (0, 0)))
        tw.hopper.bulk_commit()
        tw.hopper.bulk_wait(0)


def test_boxes_in_the_background_keep_to_their_stages_too() -> None:
    x = matrix(16, 64, np.float16)
    assert in_the_background.check(x, np.zeros_like(x), 1, 0, partial="Y").is_clean
    assert in_the_background.check(x, np.zeros_like(x), 1, 9, partial="Y").is_clean, "TMA cuts boxes itself"
    report = in_the_background.check(x, np.zeros_like(x), 2, 0, partial="Y")
    found = [f for f in report.findings if "index 2 of dimension 0, whose extent is 2" in f.reason]
    assert {f.access.op.verb for f in found} == {"tma_load", "tma_store"}


@tw.kernel(X="M N", Y="R N")
def by_block(X, Y):
    """Every third block takes columns 16 to 24."""
    b = tw.block_index(Y.shape[0] // 32)
    part = X[:, 8 * b % 24 : 8 * b % 24 + 8].tile((32, 8), (0, 0))
    tw.copy(part, Y.tile((32, 8), (b, 0)), threads=(32, 1))


@pytest.mark.parametrize("work", [None, 1])
def test_blocks_whose_slices_leave_the_array_do_not_stand_for_others(work) -> None:
    for columns in (24, 20):
        arrays = {"X": matrix(32, columns), "Y": np.zeros((10 * 32, columns), np.float32)}
        report = run(by_block.trace(*arrays.values()), arrays, work=work)
        assert (report.blocks == 10) is (work is None)
        assert len(report.findings) == (columns < 24)


@tw.kernel(X="M N")
def certainly_outside(X, *, index):
    held = tw.shared((2, 8), X.dtype)
    tw.copy(held[index].unmerge(0, (1, 8)), X.tile((1, 8), (0, 0)), threads=(1, 8))


def test_what_is_certainly_outside_is_refused_at_its_line() -> None:
    with pytest.raises((LayoutError, TraceError), match=r"index 2 of dimension 0.*\n.*test_extents.py"):
        certainly_outside.check(matrix(1, 8), index=2)
