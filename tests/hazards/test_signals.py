"""The checker's messages about blocks that signal: missing order, wrong counts, endless waits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.targets import signals

import tilewright as tw
from tilewright.targets.reference import Report, run
from tilewright.targets.reference.findings import Kind


def checked(kernel: Any, *arrays: Any, **how: Any) -> Report:
    traced = kernel.trace(*arrays)
    return run(traced, dict(zip([value.name for value in traced.tensors], arrays, strict=True)), **how)


def tiles(count: int) -> tuple[Any, Any]:
    return np.ones(64 * count, np.float32), np.zeros(64 * count, np.float32)


@tw.kernel(X="N", Y="N")
def counted_wrongly(X, Y, *, value, needs):
    """Blocks 0 and 1 write tiles of Y and count; block 2 reads tile 0 of it once ``needs`` is reached."""
    block, ready, spread = tw.block_index(3), tw.counter(2), tw.blocked((64,), (64,))
    with tw.when(block < 2):
        tw.copy(tw.load(X.tile((64,), (block,)), spread), Y.tile((64,), (block,)))
        tw.signal(ready[0], value)
    with tw.otherwise():
        tw.await_(ready[0], needs)
        tw.copy(tw.load(Y.tile((64,), (0,)), spread), Y.tile((64,), (2,)))
        tw.reset(ready[0])


WRITES, READS = (
    next(n for n, line in enumerate(Path(__file__).read_text().splitlines(), 1) if text in line)
    for text in ("Y.tile((64,), (block,)))", "tw.load(Y.tile((64,), (0,)), spread), Y.tile((64,), (2,))")
)
"""The lines of the two accesses."""


def test_a_wait_comes_after_the_signals_without_which_it_does_not_end() -> None:
    assert checked(counted_wrongly.bind(value=1, needs=2), *tiles(3)).findings == ()
    assert checked(counted_wrongly.bind(value=3, needs=4), *tiles(3)).findings == ()


def test_a_wait_that_either_of_two_signals_ends_comes_after_none_of_them() -> None:
    found = checked(counted_wrongly.bind(value=1, needs=1), *tiles(3)).findings
    assert found[0].kind is Kind.WRITE_READ
    assert "no tw.signal comes after the first access" in found[0].reason
    assert found[0].reason.endswith(f"; signal after line {WRITES}, await it before line {READS}")
    assert "counted_wrongly" in str(found[0])
    # The reset does not come after the signal that the wait did without.
    assert found[1].kind is Kind.COUNTER
    assert "the counter becomes 0 here, and nothing orders this after the signal" in found[1].reason


def test_a_wait_for_more_than_is_ever_counted_stands_still() -> None:
    (found,) = checked(counted_wrongly.bind(value=1, needs=3), *tiles(3)).findings
    assert found.kind is Kind.DEADLOCK
    assert "for ready[0] to be 3; it is 2" in found.reason


@tw.kernel(X="N", Y="N")
def reset_by_each(X, Y):
    """Blocks 1 and 2 wait for block 0, and each resets the counter."""
    block, ready, spread = tw.block_index(3), tw.counter(1), tw.blocked((64,), (64,))
    with tw.when(block == 0):
        tw.copy(tw.load(X.tile((64,), (0,)), spread), Y.tile((64,), (0,)))
        tw.signal(ready[0])
    with tw.otherwise():
        tw.await_(ready[0], 1)
        tw.copy(tw.load(Y.tile((64,), (0,)), spread), Y.tile((64,), (block,)))
        tw.reset(ready[0])


def test_a_wait_for_what_another_block_reset_says_who() -> None:
    (found,) = checked(reset_by_each, *tiles(3)).findings
    assert found.kind is Kind.DEADLOCK
    assert "for ready[0] to be 1; it is 0, since block (1,) reset it" in found.reason


def test_blocks_that_were_left_out_may_have_reset_a_counter() -> None:
    everything, some = (
        counted_wrongly.bind(value=1, needs=2).check(*tiles(3), blocks=blocks) for blocks in ("all", [(1,)])
    )
    assert everything.findings == some.findings == ()


@tw.kernel(X="N", Y="N")
def late_signal(X, Y):
    """Block 2 counts on block 1 alone, and block 3 counts too, in no order with it."""
    block, ready, spread = tw.block_index(4), tw.counter(1), tw.blocked((64,), (64,))
    with tw.when(block == 1):
        tw.copy(tw.load(X.tile((64,), (1,)), spread), Y.tile((64,), (1,)))
        tw.signal(ready[0])
    with tw.when(block == 2):
        tw.await_(ready[0], 1)
        tw.copy(tw.load(Y.tile((64,), (1,)), spread), Y.tile((64,), (2,)))
    with tw.when(block == 3):
        tw.signal(ready[0])


def test_what_a_wait_lets_through_that_another_signal_can_end_is_a_race() -> None:
    report = checked(late_signal, *tiles(4))
    assert [one.kind for one in report.findings] == [Kind.WRITE_READ, Kind.NOT_RESET]
    assert "pass a tw.await_ that needs this signal" in report.findings[0].reason
    assert "it is 2 when the kernel ends" in report.findings[1].reason
    (note,) = report.notes
    assert "await_(ready[0]) returns whichever signals come first" in note


THROTTLE = 5


@tw.kernel(X="N", Y="N")
def throttled(X, Y, *, needs, reads=""):
    """Each block writes its tile of Y and goes on once ``needs`` of the blocks have, whichever they are."""
    block, done, left = tw.block_index(THROTTLE), tw.counter(1), tw.counter(1)
    spread = tw.blocked((64,), (64,))
    tw.copy(tw.load(X.tile((64,), (block,)), spread), Y.tile((64,), (block,)))
    tw.signal(done[0])
    tw.await_(done[0], needs)
    if reads == "its own":
        tw.copy(tw.load(Y.tile((64,), (block,)), spread) + 1, Y.tile((64,), (block,)))
    elif reads == "another":
        tw.copy(tw.load(Y.tile((64,), ((block + 1) % THROTTLE,)), spread), X.tile((64,), (block,)))
    with tw.when(tw.ticket(left[0], of=THROTTLE) == THROTTLE - 1):
        tw.reset(done[0])


@pytest.mark.parametrize("needs", range(1, THROTTLE + 1))
@pytest.mark.parametrize("reads", ["", "its own"])
def test_a_wait_for_any_of_several_signals_is_clean_if_nothing_depends_on_which(reads, needs) -> None:
    x, y = np.arange(64.0 * THROTTLE, dtype=np.float32), np.full(64 * THROTTLE, np.nan, np.float32)
    report = checked(throttled.bind(needs=needs, reads=reads), x, y)
    assert report.findings == ()
    assert bool(report.notes) == (needs < THROTTLE)
    np.testing.assert_array_equal(y, x + (reads == "its own"))


@pytest.mark.parametrize("needs", range(1, THROTTLE))
def test_another_blocks_tile_needs_all_of_the_signals(needs) -> None:
    x, y = tiles(THROTTLE)
    found = checked(throttled.bind(needs=needs, reads="another"), x, y).findings
    assert {one.kind for one in found} == {Kind.WRITE_READ, Kind.READ_WRITE}
    # X is written by the block whose tile of it another one may not have loaded yet.
    assert {one.tensor for one in found} <= {"X", "Y"}
    assert checked(throttled.bind(needs=THROTTLE, reads="another"), *tiles(THROTTLE)).findings == ()


@tw.kernel(X="N", Y="N")
def relayed(X, Y, *, counts):
    """Block 1 passes on to block 2 that block 0 has written; block 3 counts where block 1 waits."""
    block, ready, on = tw.block_index(4), tw.counter(1), tw.counter(1)
    spread = tw.blocked((64,), (64,))
    with tw.when(block == 0):
        tw.copy(tw.load(X.tile((64,), (0,)), spread), Y.tile((64,), (0,)))
        tw.signal(ready[0])
    with tw.when(block == 1):
        tw.await_(ready[0], counts)
        tw.signal(on[0])
    with tw.when(block == 2):
        tw.await_(on[0], 1)
        tw.copy(tw.load(Y.tile((64,), (0,)), spread), Y.tile((64,), (2,)))
        tw.reset(on[0])
    with tw.when(block == 3):
        tw.signal(ready[0])


def test_who_learns_of_a_signal_by_way_of_a_block_that_did_not_need_it_races() -> None:
    """Block 1 waits for too few signals, and block 2 reads what needs more."""
    kinds = {
        counts: {(one.kind, one.tensor) for one in checked(relayed.bind(counts=counts), *tiles(4)).findings}
        for counts in (1, 2)
    }
    assert (Kind.WRITE_READ, "Y") in kinds[1]
    assert kinds[2] == {(Kind.NOT_RESET, "ready")}


@tw.kernel(X="N", Y="N")
def two_rounds(X, Y, *, ordered):
    """Every block takes a ticket of two rounds; in order only if it waits in between."""
    block, first, go = tw.block_index(2), tw.counter(1), tw.counter(1)
    last = tw.ticket(first[0], of=2) == 1
    if ordered:
        with tw.when(last):
            tw.signal(go[0])
        tw.await_(go[0], 1)
    with tw.when(tw.ticket(first[0], of=2) == 1):
        if ordered:
            tw.reset(go[0])
        tw.copy(tw.load(X.tile((64,), (block,)), tw.blocked((64,), (64,))), Y.tile((64,), (0,)))


def test_tickets_of_a_second_round_come_after_the_first_has_ended() -> None:
    assert checked(two_rounds.bind(ordered=True), *tiles(2)).findings == ()
    found = checked(two_rounds.bind(ordered=False), *tiles(2)).findings
    assert Kind.COUNTER in {one.kind for one in found}
    assert "the counter became 0 before this signal, and nothing orders the two" in found[0].reason


def test_blocks_that_wait_for_higher_numbers_must_be_resident_at_once() -> None:
    x, y = tiles(6)
    assert checked(signals.around.bind(blocks=6), x, y, resident=6).findings == ()
    (found,) = checked(signals.around.bind(blocks=6), x, y, resident=4).findings
    assert found.kind is Kind.RESIDENT
    assert "4 blocks wait for one with a higher number, so 5 blocks must be resident at once" in found.reason
    assert "no more than 4" in found.reason
    # Those that wait for lower numbers need no other beside them.
    a, b = np.ones((64, 70), np.float32), np.ones((32, 70), np.float32)
    report = checked(signals.SMALL_TURNSTILE, a, b, np.zeros((64, 32), np.float32), resident=1)
    assert report.findings == ()


@tw.kernel(X="N", Y="M N")
def stored_by_tma(X, Y):
    """Block 0 stores a tile by TMA and signals; block 1 reads it after that."""
    block, ready = tw.block_index(2), tw.counter(1)
    tile, spread = tw.shared((8, 64), Y.dtype, swizzle=128), tw.blocked((8, 64), (4, 8))
    with tw.when(block == 0):
        tw.copy(tw.load(X.tile((64,), (0,)).broadcast(0, 8), spread), tile)
        tw.hopper.fence_async("shared")
        tw.barrier()
        tw.hopper.tma_store(tile, Y.tile((8, 64), (0, 0)))
        tw.hopper.bulk_commit()
        tw.hopper.bulk_wait(0)
        tw.signal(ready[0])
    with tw.otherwise():
        tw.await_(ready[0], 1)
        tw.copy(tw.load(Y.tile((8, 64), (0, 0)), spread), Y.tile((8, 64), (1, 0)))
        tw.reset(ready[0])


def test_no_signal_tells_that_a_bulk_store_has_arrived() -> None:
    (found,) = checked(stored_by_tma, np.ones(64, np.float16), np.zeros((16, 64), np.float16)).findings
    assert found.kind is Kind.IN_FLIGHT
    assert "no wait in a kernel covers the writes" in found.reason
    assert "tw.signal" not in found.reason


@tw.kernel(X="N")
def counts_down(X, *, way):
    """What a signal adds, or after how many the counter wraps round, is known at the launch only."""
    done = tw.counter(1)
    if way == "value":
        tw.signal(done[0], X.shape[0] - 65)
    elif way == "of":
        tw.signal(done[0], of=X.shape[0] - 64)
    else:
        tw.ticket(done[0], of=X.shape[0] - 64)


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("value", "value=-1: a counter is unsigned and can only count up"),
        ("of", "of=0: a counter wraps around after at least one signal"),
        ("ticket", "of=0: a counter wraps around after at least one signal"),
    ],
)
def test_a_counter_goes_up_by_ones_or_more(way, words) -> None:
    found = checked(counts_down.bind(way=way), np.zeros(64, np.float32)).findings[0]
    assert found.kind is Kind.COUNTER
    assert found.reason == words


@tw.kernel(X="N", Y="N")
def in_roles(X, Y, *, number):
    """One warp of block 0 writes and signals, two warps of block 1 wait and read."""
    block, ready = tw.block_index(2), tw.counter(1)
    with tw.role(warps=1), tw.when(block == 0):
        tw.copy(tw.load(X.tile((64,), (0,)), tw.blocked((64,), (32,))), Y.tile((64,), (0,)))
        tw.signal(ready[0])
    with tw.role(warps=2), tw.when(block == 1):
        tw.await_(ready[0], 1, barrier=number)
        tw.copy(tw.load(Y.tile((64,), (0,)), tw.blocked((64,), (64,))), Y.tile((64,), (1,)))
        tw.reset(ready[0])


def test_roles_signal_and_wait_by_themselves() -> None:
    x, y = tiles(2)
    x[:] = np.arange(128)
    assert checked(in_roles.bind(number=1), x, y).findings == ()
    assert (y == np.tile(x[:64], 2)).all()


@pytest.mark.parametrize(("number", "words"), [(None, "barrier=1"), (16, "1 to 15")])
def test_a_role_of_several_warps_says_at_which_barrier_it_meets(number, words) -> None:
    with pytest.raises(tw.TraceError, match=words):
        in_roles.bind(number=number).trace(*tiles(2))


def test_ordinary_accesses_to_a_counter_race_with_its_signals() -> None:
    @tw.kernel(Y="N")
    def peeks(Y):
        done, block = tw.counter(1), tw.block_index(2)
        seen = tw.load(done.partition((1,)))
        tw.copy(seen.to(tw.f32), Y.tile((1,), (block,)))
        tw.signal(done[0], of=2)

    found = checked(peeks, np.zeros(2, np.float32)).findings
    assert {one.kind for one in found} <= {Kind.READ_WRITE, Kind.WRITE_READ}
    assert found


@tw.kernel(X="N", Y="K")
def by_clusters(X, Y, *, ordered):
    """The first block of each cluster of two signals for both, after they met."""
    block, done, parts = tw.block_index(6), tw.counter(1), tw.workspace(6, tw.f32)
    member = tw.hopper.cluster_index(2)
    x = tw.load(X.tile((32,), (block,)).partition((32,)))
    tw.copy(tw.reduce_sum(x, dim=0), parts[block : block + 1])
    if ordered:
        tw.hopper.cluster_barrier()
    with tw.when(member == 0), tw.when(tw.ticket(done[0], of=3) == 2):
        total = tw.fragment(tw.blocked((1,), (1,)), tw.f32, 0)
        for part in tw.range(6):
            total += tw.load(parts[part : part + 1], total)
        tw.copy(total, Y[0:1])


def test_a_signal_tells_what_a_cluster_barrier_told_before() -> None:
    x, y = np.ones(192, np.float32), np.zeros(1, np.float32)
    assert checked(by_clusters.bind(ordered=True), x, y).findings == ()
    assert y[0] == 192
    (found,) = checked(by_clusters.bind(ordered=False), x, y).findings
    assert found.kind is Kind.WRITE_READ
    assert found.count == 3  # what the second blocks of the clusters wrote
