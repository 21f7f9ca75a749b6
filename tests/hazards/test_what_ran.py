"""The scope that a report states: sizes, blocks, statements that never ran, and sampled blocks."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.runtime.reference import WORK
from tilewright.targets.reference import Kind

RNG = np.random.default_rng(5)


def arrays(*shape: int) -> tuple[np.ndarray, np.ndarray]:
    return RNG.standard_normal(shape).astype(np.float32), np.zeros(shape, np.float32)


@tw.kernel(X="M N", Y="M N")
def ringed(X, Y, *, stages, wrong=False):
    """Pass rows of tiles through a ring of stages; ``wrong`` leaves out a barrier."""
    m = tw.block_index(tw.ceil_div(X.shape[0], 32))
    held = tw.shared((stages, 32, 32), X.dtype)
    for n in tw.range(tw.ceil_div(X.shape[1], 32)):
        tw.copy(X.tile((32, 32), (m, n)), held[n % stages], threads=64)
        if not wrong:
            tw.barrier()
        tw.copy(held[n % stages], Y.tile((32, 32), (m, n)), threads=(2, 32))
        with tw.when(n == 5):
            tw.barrier()


@tw.kernel(X="M N", Y="M N")
def placed(X, Y, *, where, rows=None):
    """Copies tile (m, n) to the tile that ``where`` says."""
    m, n = tw.block_index(tw.ceil_div(X.shape, (32, 32)) if rows is None else (rows, X.shape[1] // 32))
    at = where(m, n, tw)
    tw.copy(X.tile((32, 32), (m, n)), Y.tile((32, 32), at), threads=32)


def straight(m, n, tw):
    return m, n


def one_goes_astray(m, n, tw):
    """Block (13, 7) writes where block (11, 7) does."""
    return m - 2 * (m // 13) * (1 - tw.minimum(m - 13, 1)) * (n // 7) * (1 - tw.minimum(n - 7, 1)), n


def folded(m, n, tw):
    """Blocks 9 apart write one tile."""
    return m % 9, n


# ---------------------------------------------------------------- the head


def test_the_head_says_sizes_blocks_and_warps() -> None:
    report = ringed.check(*arrays(70, 300), stages=3)
    assert str(report).splitlines() == [
        "kernel ringed: no findings",
        "ran 3 blocks of 64 threads in warps of 32, for M = 70, N = 300",
    ]
    report = ringed.check(*arrays(70, 300), stages=3, lanes=64)
    assert "in warps of 64" in str(report)


def test_operations_that_never_ran_are_named_with_their_line() -> None:
    report = ringed.check(*arrays(32, 160), stages=2)
    (idle,) = report.coverage.idle
    assert idle.startswith("barrier() at test_what_ran.py:")
    assert f"never ran: {idle}" in str(report)
    report = ringed.check(*arrays(32, 0), stages=2)
    (idle,) = report.coverage.idle
    assert "copy(" not in idle
    assert idle.endswith("other operations of its block")
    assert ringed.check(*arrays(32, 192), stages=2).coverage.idle == ()


@pytest.mark.parametrize(("stages", "columns", "trips"), [(3, 6 * 32, 6), (2, 32, 1), (2, 0, 0), (1, 64, 2)])
def test_loops_shorter_than_twice_round_their_ring_are_named(stages, columns, trips) -> None:
    (loop,) = ringed.check(*arrays(32, columns), stages=stages).coverage.short
    assert (loop.trips, loop.stages, loop.needed) == (trips, stages, 2 * stages + 1)
    assert "test_what_ran.py:" in str(loop)


@pytest.mark.parametrize(("stages", "columns"), [(3, 7 * 32), (2, 5 * 32), (1, 3 * 32)])
def test_loops_that_come_round_twice_are_not(stages, columns) -> None:
    assert ringed.check(*arrays(32, columns), stages=stages).coverage.short == ()


@tw.kernel(Y="N")
def stuck(Y):
    b = tw.block_index(tw.ceil_div(Y.shape[0], 32))
    done = tw.hopper.mbarrier(1, arrivals=1)
    with tw.when(b == 2):
        tw.hopper.wait(done[0], 0)
    tw.copy(tw.fragment(tw.blocked((32,), (32,)), tw.f32, 1), Y.tile((32,), (b,)))


def test_a_run_that_stops_early_says_so() -> None:
    report = stuck.check(np.zeros(32 * 5, np.float32))
    assert Kind.DEADLOCK in {finding.kind for finding in report.findings}
    assert "it stopped early: a block could not go on, and 3 did not come to their end" in str(report)


# ---------------------------------------------------------------- warps that exist, blocks that are asked for


@pytest.mark.parametrize(("lanes", "nearest"), [(-1, 32), (0, 32), (16, 32), (33, 32), (63, 64), (2**40, 64)])
def test_warps_that_no_machine_has_are_refused(lanes, nearest) -> None:
    """-1 lanes would find nothing in a racy kernel, and 0 lanes would divide by zero."""
    with pytest.raises(tw.LaunchError, match=f"nearest legal choice: lanes={nearest}$"):
        ringed.check(*arrays(32, 64), stages=1, wrong=True, lanes=lanes)
    for legal in (None, 32, 64, np.int64(64)):
        assert not ringed.check(*arrays(32, 96), stages=1, wrong=True, lanes=legal).is_clean


def test_blocks_are_run_as_they_are_asked_for() -> None:
    x, y = arrays(320, 64)
    report = ringed.check(x, y, stages=3, blocks=[(2,), 7])
    assert report.blocks == 2
    assert "8 blocks did not run: only those that were asked for did" in str(report)
    assert ringed.check(x, y, stages=3, blocks=4).blocks == 4
    assert ringed.check(x, y, stages=3, blocks=99).blocks == 10
    assert ringed.check(x, y, stages=3, blocks=np.array([2, 7])).blocks == 2
    assert ringed.check(x, y, stages=3, blocks="all").blocks == 10


@pytest.mark.parametrize("blocks", [0, -3, [], [(10,)], [-1], [(0, 0)], "some", 2.5])
def test_blocks_that_the_grid_does_not_have_are_refused(blocks) -> None:
    with pytest.raises(tw.LaunchError, match="blocks"):
        ringed.check(*arrays(320, 64), stages=3, blocks=blocks)


# ---------------------------------------------------------------- equal blocks


@pytest.fixture
def sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are left out from the first one on."""
    monkeypatch.setattr("tilewright.runtime.reference.WORK", 1)


@pytest.mark.usefixtures("sampled")
def test_of_equal_blocks_the_first_its_neighbours_and_the_last_run() -> None:
    """16 x 16 blocks, with cut tiles in the last row and column: four classes."""
    report = placed.check(*arrays(500, 500), where=straight)
    assert report.is_clean
    assert report.blocks == 4 + 3 + 3 + 1
    assert "245 blocks did not run: each is equal, up to its place, to one that did" in str(report)
    assert "no two blocks touch an element that one of them writes" in str(report)
    assert report.uncovered == {"Y": 0}


@pytest.mark.usefixtures("sampled")
@pytest.mark.parametrize("where", [one_goes_astray, folded])
def test_blocks_that_meet_run_also_where_they_are_equal_to_others(where) -> None:
    report = placed.check(*arrays(32 * 18, 32 * 10), where=where, partial="Y")
    assert {finding.kind for finding in report.findings} == {Kind.WRITE_WRITE}
    assert report.blocks < 40


@pytest.mark.usefixtures("sampled")
def test_elements_that_no_block_writes_are_found_among_those_that_did_not_run() -> None:
    report = placed.check(*arrays(32 * 18, 32 * 10), where=straight, rows=17)
    assert [finding.kind for finding in report.findings] == [Kind.UNCOVERED]
    assert report.uncovered == {"Y": 32 * 320}
    astray = placed.check(*arrays(32 * 18, 32 * 10), where=one_goes_astray)
    assert astray.uncovered == {"Y": 32 * 32}


@tw.kernel(X="M N", Y="M N")
def different(X, Y):
    """Block 37 lacks a barrier."""
    b = tw.block_index(tw.ceil_div(X.shape[0], 32))
    held = tw.shared((32, 32), X.dtype)
    tw.copy(X.tile((32, 32), (b, 0)), held, threads=64)
    with tw.when(b != 37):
        tw.barrier()
    tw.copy(held, Y.tile((32, 32), (b, 0)), threads=(2, 32))


@pytest.mark.usefixtures("sampled")
def test_a_block_of_another_control_flow_stands_for_itself() -> None:
    report = different.check(*arrays(32 * 64, 64), partial="Y")
    assert {finding.access.block for finding in report.findings} == {(37,)}


@tw.kernel(X="M N")
def in_place(X, *, by):
    b = tw.block_index(tw.ceil_div(X.shape[0], 32) - by)
    tw.copy(X.tile((32, 32), (b + by, 0)), X.tile((32, 32), (b, 0)), threads=32)


@pytest.mark.usefixtures("sampled")
@pytest.mark.parametrize("by", [0, 1, 9])
def test_blocks_that_read_what_others_write_run(by) -> None:
    report = in_place.check(arrays(32 * 40, 32)[0], by=by, partial="X")
    assert report.is_clean == (by == 0)
    assert report.blocks < 12


@pytest.mark.usefixtures("sampled")
def test_arrays_that_share_memory_leave_no_block_out() -> None:
    x = arrays(32 * 20, 64)[0]
    report = placed.check(x, x, where=straight)
    assert (report.blocks, report.is_clean) == (40, True)


def test_a_large_problem_takes_the_work_of_a_few_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.runtime.reference.WORK", 50 * 32 * 32 * 2)
    small, large = (placed.check(*arrays(n, n), where=straight) for n in (32 * 7, 32 * 30))
    assert (small.blocks, large.blocks) == (49, 50 + 1)
    assert WORK >= 1_000_000, "small problems run as a whole"
