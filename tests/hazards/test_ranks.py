"""Several ranks under the checker: right programs, and each with one fault, found at the author's line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.targets.reference.findings import Finding, Kind

LINES = Path(__file__).read_text().splitlines()
SPREAD = tw.blocked((32,), (32,))


def line_of(text: str) -> str:
    """Return the place of the only line of this file that ends with a comment, as findings show it."""
    (number,) = (n for n, line in enumerate(LINES, 1) if line.endswith(f"  # {text}"))
    return f"{Path(__file__).name}:{number}:"


@tw.kernel(INBOX="R N", READY="R", Y="N", epoch=int)
def total(INBOX, READY, Y, epoch, *, ranks, scope, waits):
    """``Y = the sum of the ranks' shards``, in the order of ranks; each shard is awaited."""
    x = tw.fragment(SPREAD, tw.f32, 0)
    for rank in tw.range(ranks):
        if waits:
            tw.await_(READY[rank], epoch, scope=scope)  # it waits
        x += tw.load(INBOX[rank].tile((32,), (0,)), SPREAD)  # the shard is read
    tw.copy(x, Y.tile((32,), (0,)))


@tw.kernel(X="N", INBOX="P R N", READY="P R", rank=int)
def push(X, INBOX, READY, rank, *, scope):
    """``INBOX[p, rank] = X`` in the memory of each rank p, which a signal tells."""
    peer = tw.block_index(INBOX.shape[0])
    x = tw.load(X.tile((32,), (0,)), SPREAD)
    tw.copy(x, INBOX[peer, rank].tile((32,), (0,)))
    tw.signal(READY[peer, rank], scope=scope)  # the shard is there


class Memory:
    """The arrays of ranks whose first dimension is the rank, and the sum that each rank must find."""

    def __init__(self, ranks: int) -> None:
        rng = np.random.default_rng(ranks)
        self.ranks = ranks
        self.shards = rng.integers(-9, 9, (ranks, 32)).astype(np.float32)
        self.inbox = np.zeros((ranks, ranks, 32), np.float32)
        self.ready, self.free = (np.zeros((ranks, ranks), np.uint32) for _ in range(2))
        self.y = np.zeros((ranks, 32), np.float32)

    def copies(self, rank: int, epoch: int, value: int, *, acknowledged: bool) -> list[Any]:
        """The copies of a rank's shard to all ranks."""
        steps = []
        for peer in range(self.ranks):
            to, ready = self.inbox[peer, rank], self.ready[peer, rank : rank + 1]
            if acknowledged and epoch > 1:
                steps.append(tw.testing.hold(self.free[peer, rank : rank + 1], epoch - 1))
            steps.append(tw.testing.send(self.shards[rank], to, ready, value))  # a copy engine sends
        return steps

    def launches(self, rank: int, epoch: int, value: int, **how: Any) -> list[Any]:
        """The kernel of a rank, and its posts that the shards have been read."""
        bound = total.bind(ranks=self.ranks, **{"scope": "system", "waits": True, **how})
        held = self.inbox[rank], self.ready[rank], self.y[rank]
        own = [tw.testing.launch(bound, *held, value)]
        return own + [tw.testing.post(self.free[rank, p : p + 1], epoch) for p in range(self.ranks)]

    def check(self) -> None:
        assert np.array_equal(self.y, np.broadcast_to(self.shards.sum(axis=0), self.y.shape))


def gathered(
    ranks: int, values: tuple[int, ...] = (1,), *, acknowledged: bool = True, **how: Any
) -> tuple[Finding, ...]:
    """Run calls in which copy engines send the shards; ``values``: the counters' values of the calls."""
    memory = Memory(ranks)
    calls = list(enumerate(values, 1))
    report = tw.testing.ranks(
        [
            [
                [s for e, v in calls for s in memory.copies(rank, e, v, acknowledged=acknowledged)],
                [s for e, v in calls for s in memory.launches(rank, e, v, **how)],
            ]
            for rank in range(ranks)
        ]
    )
    assert report.launches == ranks * len(values)
    if report.is_clean:
        memory.check()
    return report.findings


def pushed(ranks: int, *, sends: str = "system", scope: str = "system") -> tuple[Finding, ...]:
    """Run a kernel of each rank that writes its shard into the memory of all ranks, and then `total`."""
    memory = Memory(ranks)
    report = tw.testing.ranks(
        [
            [
                tw.testing.launch(
                    push.bind(scope=sends), memory.shards[rank], memory.inbox, memory.ready, rank
                ),
                *memory.launches(rank, 1, 1, scope=scope),
            ]
            for rank in range(ranks)
        ]
    )
    if report.is_clean:
        memory.check()
    return report.findings


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_right_programs_are_clean(ranks: int) -> None:
    assert gathered(ranks) == ()
    assert gathered(ranks, (1, 2, 3)) == ()
    assert pushed(ranks) == ()


def test_steps_after_launches_without_blocks_run() -> None:
    """Such launches end as they begin, whatever else the ranks have to do."""

    @tw.kernel(X="M N", Y="M N")
    def copied(X, Y):
        for m, n in tw.tiles(Y):
            Y[m, n] = X[m, n]

    x, y, none = np.ones((3, 6), np.float32), np.full((3, 6), np.nan, np.float32), np.empty((0, 6), "f4")
    nothing = tw.testing.launch(copied, none, none.copy())
    report = tw.testing.ranks([[nothing, nothing, tw.testing.launch(copied, x, y), nothing], []])
    assert (report.is_clean, report.launches) == (True, 4)
    assert (y == 1).all()
    counter = np.zeros(1, np.uint32)
    waits = [tw.testing.hold(counter, 1), nothing, nothing]
    report = tw.testing.ranks([[nothing, tw.testing.post(counter, 1)], waits])
    assert (report.is_clean, report.launches, counter[0]) == (True, 3, 1)


def test_a_missing_wait_for_a_shard_is_found_at_both_lines() -> None:
    found = gathered(2, waits=False)
    assert {one.kind for one in found} <= {Kind.WRITE_READ, Kind.READ_WRITE}
    of_two = next(one for one in found if one.earlier and one.earlier.device != one.access.device)
    assert "nothing orders the two ranks here" in of_two.reason
    for text in ("the shard is read", "a copy engine sends"):
        assert line_of(text) in str(of_two)
    assert "rank 0" in str(of_two)
    assert "rank 1, copy engine" in str(of_two)


@pytest.mark.parametrize("narrow", ["sends", "scope"])
def test_a_scope_of_one_gpu_is_found_at_the_line_of_the_narrow_side(narrow: str) -> None:
    found = pushed(2, **{narrow: "gpu"})
    scopes = [one for one in found if one.kind is Kind.SCOPE]
    assert scopes
    verb = "signal" if narrow == "sends" else "await_"
    assert f'say {verb}(..., scope="system")' in scopes[0].reason
    assert line_of("the shard is there") in str(scopes[0])
    assert line_of("it waits") in str(scopes[0])
    # What came before the signal is then a race with the read.
    assert any(one.kind is Kind.WRITE_READ for one in found)


def test_signals_of_one_gpu_reach_its_own_waits() -> None:
    assert pushed(1, sends="gpu", scope="gpu") == ()


def test_a_counter_left_from_the_call_before_is_found() -> None:
    found = gathered(2, (1, 1))
    armed = [one for one in found if one.kind is Kind.ARMED]
    assert armed
    assert "READY[0, 0] is already 1" in armed[0].reason or "READY[0] is already 1" in armed[0].reason
    assert line_of("a copy engine sends") in str(armed[0])


def test_a_wait_that_an_earlier_call_has_satisfied_is_named_beside_the_race() -> None:
    memory = Memory(2)
    memory.ready[...] = 1  # left by a call of yesterday
    first = tw.testing.launch(push.bind(scope="system"), memory.shards[1], memory.inbox, memory.ready, 1)
    report = tw.testing.ranks([memory.launches(0, 1, 1), [first]])
    race = next(one for one in report.findings if one.kind in (Kind.READ_WRITE, Kind.WRITE_READ))
    assert "the wait for 1 at" in race.reason
    assert line_of("it waits").rstrip(":") in race.reason


def test_a_shard_that_is_overwritten_before_it_was_read_is_found() -> None:
    found = gathered(2, (1, 2), acknowledged=False)
    assert {one.kind for one in found} <= {Kind.WRITE_READ, Kind.READ_WRITE}
    assert found


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_that_call_in_other_orders_are_told_who_waits_for_what(ranks: int) -> None:
    x, y = Memory(ranks), Memory(ranks)
    programs = []
    for rank in range(ranks):
        calls = [(x, rank), (y, rank)] if rank else [(y, rank), (x, rank)]  # rank 0 has them the other way
        steps: list[Any] = []
        for memory, own in calls:
            steps += memory.copies(own, 1, 1, acknowledged=True)
            steps += memory.launches(own, 1, 1)
        programs.append(steps)
    report = tw.testing.ranks(programs)
    deadlock = next(one for one in report.findings if one.kind is Kind.DEADLOCK)
    text = str(deadlock)
    assert "deadlock: no rank can go on" in text
    for rank in range(ranks):
        assert f"rank {rank} waits at" in text
    assert "to be 1; it is 0" in text
    assert "only later, at" in text
    assert line_of("it waits") in text


def test_wrong_steps_are_refused_with_the_nearest_legal_choice() -> None:
    x = np.zeros(4, np.float32)
    with pytest.raises(tw.LaunchError, match="the target f32 of shape"):
        tw.testing.send(x, x[:3])
    with pytest.raises(tw.LaunchError, match="an array of one u32 that can be written"):
        tw.testing.post(np.zeros(2, np.uint32), 1)
    with pytest.raises(tw.LaunchError, match="value=0 of a u32 counter; nearest legal choice: value=1"):
        tw.testing.hold(np.zeros(1, np.uint32), 0)
    with pytest.raises(tw.LaunchError, match="the program of rank 1 has 'send' as a step"):
        tw.testing.ranks([[], ["send"]])
    tw.testing.post(np.zeros(4, np.uint32)[1:2], 1)


@pytest.mark.parametrize(
    ("target", "arch", "wait", "signal"),
    [
        ("cuda", "sm_90a", "ld.acquire.sys.global.u32", "red.release.sys.global.add.u32"),
        ("cuda", "sm_80", "ld.acquire.sys.global.u32", "red.release.sys.global.add.u32"),
        (
            "hip",
            "gfx942",
            "__ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_SYSTEM",
            "__ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_SYSTEM",
        ),
    ],
)
def test_texts_for_gpus_have_the_scope_of_the_system(target: str, arch: str, wait: str, signal: str) -> None:
    shard, counters, inbox = tw.like("f32", 32), tw.like("u32", 2, 2), tw.like("f32", 2, 2, 32)
    for scope in ("gpu", "system"):
        how = {"target": target, "arch": arch, "name": "text"}
        reads = total.bind(ranks=2, scope=scope, waits=True)
        reader = reads.as_text(tw.like("f32", 2, 32), tw.like("u32", 2), shard, 1, **how)
        writer = push.bind(scope=scope).as_text(shard, inbox, counters, 1, **how)
        for text, words in ((reader.source, wait), (writer.source, signal)):
            assert (words in text) is (scope == "system")
            assert "multimem" not in text
