"""The steps by which ranks write into each other's memory, under the checker: results, and wrong twins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
from tilewright.distributed import calls as calls_over_ranks
from tilewright.distributed import exchange, products
from tilewright.distributed.calls import Ending, How, _adding, add_parts, adding_to_own, gathering, scattering

SHAPE = (24, 8, 5)
"""M, N and K: shards travel in one or two pieces."""

ENDING = Ending((), None, None, tw.f32)

SCHEDULE = tw.Schedule(tw.atoms.fma(tw.f32), (8, 8, 8), warps=(1, 1))


class Ranks:
    """The memory of all ranks, and the programs of calls that gather and scatter in turn."""

    def __init__(self, ranks: int, calls: int, *, released_first: bool = False) -> None:
        rng = np.random.default_rng(ranks)
        m, n, k = SHAPE
        self.ranks, self.calls, self.released_first = ranks, calls, released_first
        self.rows = m // ranks
        self.slot_bytes = 4 * m * max(n, k)
        size = exchange.COUNTERS_BYTES + exchange.SLOTS * self.slot_bytes
        self.memory = np.zeros((ranks, size), np.uint8)
        self.memory[:, exchange.COUNTERS_BYTES :] = 0xFF  # NaN
        self.at = 0
        self.fresh = np.zeros((calls, ranks, 4 * exchange.MOST_COUNTERS), np.uint32)
        self.a = rng.standard_normal((calls, m, k), np.float32)
        self.b = rng.standard_normal((calls, ranks, k, n), np.float32)
        self.lefts = rng.standard_normal((calls, ranks, m, k), np.float32)
        self.parts = np.full((calls, ranks, m, n), np.nan, np.float32)
        self.gathered = np.full((calls, ranks, m, n), np.nan, np.float32)
        self.adding = adding_to_own
        self.summed = np.full((calls, ranks, self.rows, n), np.nan, np.float32)

    def view(self, place: exchange.PeerByte, shape: tuple[int, ...], kind: Any = np.float32) -> Any:
        size = 4 * int(np.prod(shape))
        return self.memory[place.rank, place.offset : place.offset + size].view(kind).reshape(shape)

    def counters(self, place: exchange.PeerByte, count: int = 1) -> Any:
        """Counters; those of pieces are new in each call, because the checker's counters only count up."""
        found = self.view(place, (count,), np.uint32)
        index = place.offset // 4
        if index >= 4 * exchange.MOST_COUNTERS or index // exchange.MOST_COUNTERS % 2:
            return found
        return self.fresh[self.at, place.rank, index : index + count]

    def steps(self, plan: Sequence[Any], source: Any = None) -> list[Any]:
        """The checker's steps; counters must be cleared before peers are told that the slot is free."""
        made: list[Any] = []
        for step in plan:
            if isinstance(step, exchange.ClearCounters):
                assert plan.index(step) == 0
                assert step.first.offset // 4 % (2 * exchange.MOST_COUNTERS) == 0
                assert step.extent == self.ranks * (1 + self.at % 2)  # the counters of all pieces
                continue
            counter = self.counters(step.counter)
            if isinstance(step, exchange.AwaitCounter):
                made.append(tw.testing.hold(counter, step.value))
            elif isinstance(step, exchange.SetCounter):
                made.append(tw.testing.post(counter, step.value))
            else:
                part = source.reshape(-1)[step.begin // 4 : (step.begin + step.size) // 4]
                made.append(tw.testing.send(part, self.view(step.target, part.shape), counter, step.value))
        return made

    def program(self, rank: int) -> list[list[Any]]:
        """The side stream and the stream of kernels."""
        side, main, last = list[Any](), list[Any](), [0] * exchange.SLOTS
        (m, _, k), sizes = SHAPE, [self.rows] * self.ranks
        counts = [0] * exchange.MOST_COUNTERS
        for at in range(self.calls):
            self.at, epoch, pieces = at, at + 1, 1 + at % 2
            slot = epoch % exchange.SLOTS
            turn = exchange.SlotUse(rank, self.ranks, slot, epoch, last[slot], self.slot_bytes)
            last[slot] = epoch
            free = self.steps(turn.released(self.ranks * pieces))
            main += free if self.released_first else []
            if at % 3 != 1:
                own = self.a[at].reshape(self.ranks, self.rows, k)[rank]
                side += self.steps(exchange.shards_to_peers(turn, sizes, 4 * k, pieces), own)
                main += self.steps(exchange.shard_to_itself(turn, sizes, 4 * k, pieces), own)
                whole = self.view(turn.data(rank), (m, k))
                ready = self.counters(turn.ready(rank, 0), self.ranks * pieces)
                given = (
                    whole,
                    self.b[at, rank],
                    self.gathered[at, rank],
                    ready,
                    rank * pieces,
                    exchange.ARRIVED,
                )
                main.append(tw.testing.launch(gathering(ENDING).bind(schedule=SCHEDULE), *given))
            else:
                for index in turn.sent_pieces(pieces):
                    counts[index] += 1
                main += self.scatter(at, rank, turn, side, counts)
            main += [] if self.released_first else free
        return [side, main]

    def scatter(
        self, at: int, rank: int, turn: exchange.SlotUse, side: list[Any], counts: Sequence[int]
    ) -> list[Any]:
        """The steps of a sum over ranks; the owner adds in the ending of its product, or afterwards."""
        _, n, k = SHAPE
        steps, pieces = list[Any](), 1 + at % 2
        local = self.parts[at, rank].reshape(self.ranks * pieces, self.rows // pieces, n)
        left = self.lefts[at, rank].reshape(*local.shape[:2], k)
        sent, b = self.counters(turn.sent(0), len(local)), self.b[at, rank]
        in_ending = at != 4
        if in_ending:  # no kernel computes the own part, so none counts it
            runs, counted, first = [(rank + 1, self.ranks), (0, rank)], sent, 0
        else:
            runs, counted, first = [(0, self.ranks)], np.zeros_like(sent), (rank + 1) * pieces
        for begin, end in runs:
            some = slice(begin * pieces, end * pieces)
            if begin < end:
                given = left[some], b, local[some], counted[some], first
                steps.append(tw.testing.launch(scattering.bind(schedule=SCHEDULE), *given))
        if not in_ending:
            posts = [exchange.SetCounter(turn.sent(one), counts[one]) for one in turn.sent_pieces(pieces)]
            steps += self.steps(posts)
        side += self.steps(exchange.parts_to_peers(turn, 4 * self.rows * n, pieces, counts), local)
        received, out = self.view(turn.data(rank), (self.ranks, self.rows, n)), self.summed[at, rank]
        if not in_ending:
            steps += self.steps(exchange.arrived(turn, pieces, turn.peers(1)))
            own = local.reshape(self.ranks, self.rows, n)[rank]
            adding = _adding(self.ranks, False, rank, ENDING, tw.f32)
            return [*steps, tw.testing.launch(adding, received, own, out)]
        peers = [peer for peer in range(self.ranks) if peer != rank]
        ready = [self.counters(turn.ready(rank, peer * pieces), pieces) for peer in peers]
        own_rows = self.lefts[at, rank].reshape(self.ranks, self.rows, k)[rank]
        multiply = self.adding(self.ranks, rank, ENDING).bind(schedule=SCHEDULE)
        return [*steps, tw.testing.launch(multiply, own_rows, b, *(received[p] for p in peers), *ready, out)]

    def run(self) -> Any:
        report = tw.testing.ranks([self.program(rank) for rank in range(self.ranks)])
        for at in range(self.calls) if report.is_clean else ():
            for rank in range(self.ranks):
                if at % 3 != 1:
                    given = self.a[at], self.b[at, rank], self.gathered[at, rank]
                    tw.testing.compare_gemm(*given).raise_if_wrong()
            if at % 3 == 1:
                wide = np.einsum("rmk,rkn->mn", self.lefts[at].astype(np.float64), self.b[at])
                np.testing.assert_allclose(self.summed[at].reshape(wide.shape), wide, rtol=1e-5, atol=1e-5)
        return report


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_calls_in_a_row_have_no_races(ranks: int) -> None:
    Ranks(ranks, 11).run().raise_if_any()


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_a_product_adds_the_parts_in_its_ending_with_the_same_bits(ranks: int) -> None:
    """Both ways add in the order of the ranks."""
    memory = Ranks(ranks, 5)
    memory.lefts[4], memory.b[4] = memory.lefts[1], memory.b[1]
    memory.run().raise_if_any()
    assert memory.summed[1].tobytes() == memory.summed[4].tobytes()


def test_own_parts_that_are_counted_deadlock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of pieces changes: the index of an own piece is that of a peer's piece in a later call."""
    monkeypatch.setattr(exchange.SlotUse, "sent_pieces", lambda turn, pieces: range(turn.ranks * pieces))
    assert any("deadlock" in str(one) for one in Ranks(2, 11).run().findings)


def unawaited(turn: exchange.SlotUse, peer: int) -> list[Any]:
    return []


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("vacant", unawaited), ("released", None), ("arrived", lambda *_: [])],
)
def test_a_missing_wait_is_found(
    name: str, wrong: Callable[..., Any] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slot is written while a peer reads it, is free too early, or is read before the parts are there."""
    if wrong is not None:
        monkeypatch.setattr(exchange.SlotUse if name == "vacant" else exchange, name, wrong)
    report = Ranks(2, 5, released_first=wrong is None).run()
    assert report.findings
    assert not any("deadlock" in str(one) for one in report.findings)


def test_an_ending_that_does_not_wait_for_a_part_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls_over_ranks, "arrives", lambda *given: None)
    memory = Ranks(2, 5)
    memory.adding = adding_to_own.__wrapped__
    findings = memory.run().findings
    assert findings
    assert any("nothing orders the two ranks here" in one.reason for one in findings)
    assert not any("deadlock" in str(one) for one in findings)


def test_the_counter_of_an_empty_shard_is_awaited() -> None:
    """Else it could be set after the call has cleared it, and a later call would not wait for its rows."""
    b, ranks = torch.ones(3, 2), SimpleNamespace(rank=0, size=2)
    how: Any = How("gathered", ranks)
    for sizes, is_one in (((1, 1), True), ((1, 0), False), ((1, 2), False)):
        assert products._is_one_kernel(how, torch.ones(1, 3), [b], sizes) == is_one


def test_an_own_part_keeps_the_dtype_of_sums() -> None:
    """Parts that travelled are narrower; that of one rank alone is the sum."""
    f64, parts = torch.float64, torch.full((2, 1, 2), torch.nan, dtype=torch.float32)
    own, out = torch.tensor([[1 + 2.0**-40, -(2.0**-45)]], dtype=f64), torch.empty(1, 2, dtype=f64)
    parts[1] = torch.tensor([[2.0, 1.0]])
    add_parts(parts, out, own=(0, own))
    assert torch.equal(out, own + parts[1])
    for kind in (f64, torch.float32):
        found = torch.empty(1, 2, dtype=kind)
        add_parts(parts[:1], found, own=(0, own.to(kind)))
        assert torch.equal(found, own.to(kind))
    rounded = torch.empty(1, 2, dtype=torch.bfloat16)
    add_parts(torch.full((1, 1, 2), torch.nan, dtype=torch.bfloat16), rounded, own=(0, own.float()))
    assert torch.equal(rounded, own.to(torch.bfloat16))
