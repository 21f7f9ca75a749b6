"""Results that leave in shards: bits on all ranks, the order of parts, wrong twins, refusals, texts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.inspect.draw import Costs
from tilewright.schedule.work import SentShards
from tilewright.targets.reference.findings import Kind

from .test_arrivals import BULK, FMA, PLAIN, line_of

CLUSTERS = replace(BULK, atom=tw.atoms.wgmma(tw.f16, 128), tile=(64, 128, 64), cluster=(2, 1))


@tw.kernel(A="P S K", B="K N", PARTS="P S N", SENT="P", rank=int)
def scattered(A, B, PARTS, SENT, rank):
    for p, m, n in tw.tiles(PARTS):
        tw.leaves(PARTS, SENT, first=rank + 1)
        acc = tw.zeros()
        for k in tw.steps(A.shape[2]):
            acc += A[p, m, k] @ B[k, n]
        PARTS[p, m, n] = acc


@tw.kernel(PARTS="Q S N", SENT="Q", C="S N", epoch=int)
def added(PARTS, SENT, C, epoch, *, ranks, waits=True):
    """``C = PARTS[0] + PARTS[1] + ...`` in the order of the ranks."""
    for m, n in tw.tiles(C):
        if waits:
            tw.arrives(PARTS, SENT, epoch)  # the parts arrive
        total = PARTS[0][m, n]  # the first part
        for rank in range(1, ranks):
            total = total + PARTS[rank][m, n]
        C[m, n] = total


def scatter(
    ranks: int, schedule: Any, shape: tuple[int, int, int], calls: int = 1, *, waits: bool = True
) -> Any:
    """A product whose K is cut into one part for each rank; returns the report, and the results of all."""
    (m, n, k), rng = shape, np.random.default_rng(ranks)
    kind = np.float16 if schedule is not None and schedule.atom.a_dtype == tw.f16 else np.float32
    rows, cuts = -(-m // ranks), [k * rank // ranks for rank in range(ranks + 1)]
    a, b = np.zeros((ranks * rows, k), kind), rng.standard_normal((k, n)).astype(kind)
    a[:m] = rng.standard_normal((m, k))
    parts = np.full((ranks, ranks, rows, n), np.nan, np.float32)
    sent, free = (np.zeros((ranks, ranks), np.uint32) for _ in range(2))
    c = np.full((ranks, rows, n), np.nan, np.float32)
    programs = []
    for rank in range(ranks):
        own, steps = slice(cuts[rank], cuts[rank + 1]), []
        given = (
            np.ascontiguousarray(a[:, own]).reshape(ranks, rows, -1),
            b[own],
            parts[:, rank],
            sent[:, rank],
        )
        sums = added.bind(ranks=ranks, waits=waits)
        for call in range(1, calls + 1):
            steps += [tw.testing.hold(free[p, rank : rank + 1], call - 1) for p in range(ranks) if call > 1]
            steps.append(tw.testing.launch(scattered.bind(schedule=schedule), *given, rank))
            steps.append(tw.testing.launch(sums, parts[rank], sent[rank], c[rank], call))
            steps += [tw.testing.post(free[rank, p : p + 1], call) for p in range(ranks)]
        programs.append(steps)
    report = tw.testing.ranks(programs)
    if report.is_clean:
        tw.testing.compare_gemm(a[:m], b, c.reshape(ranks * rows, n)[:m]).raise_if_wrong()
        assert (sent == calls).all()  # each part is counted once in each call
    return report, c


LEAVING = {
    "two calls": (2, None, (70, 40, 24), 2),
    "a persistent grid": (3, tw.Schedule(FMA, (16, 32, 16), blocks=4, group_n=2), (40, 40, 25), 1),
    "ping-pong": (2, replace(BULK, roles="ping-pong", groups=2, blocks=2), (130, 72, 128), 1),
    "clusters": (2, CLUSTERS, (300, 72, 64), 1),
    "groups share a tile": (2, replace(BULK, tile=(128, 64, 64), groups=2), (130, 72, 128), 1),
}


@pytest.mark.parametrize("name", LEAVING)
def test_a_complete_part_is_counted_where_it_is_awaited(name: str) -> None:
    report, c = scatter(*LEAVING[name])
    report.raise_if_any()
    if name == "two calls":
        _, again = scatter(*LEAVING[name])
        assert c.tobytes() == again.tobytes()


def test_the_parts_of_the_next_rank_come_first() -> None:
    """Rank 0 sends three parts, and each of ranks 1 to 3 copies one of them when it is complete."""
    a, b = np.ones((3, 40, 16), np.float32), np.ones((16, 40), np.float32)
    parts, sent = np.zeros((3, 40, 40), np.float32), np.zeros(3, np.uint32)
    launch = tw.testing.launch(scattered.bind(schedule=PLAIN), a, b, parts, sent, 0)
    copies = [
        [tw.testing.hold(sent[p : p + 1], 1), tw.testing.send(parts[p], np.zeros_like(parts[p]))]
        for p in range(3)
    ]
    report = tw.testing.ranks([[launch], *copies])
    report.raise_if_any()
    spans = report.log.times(Costs(tflops=1, blocks=1))
    begun = {one.rank - 1: one.start for one in spans if one.kind == "copy"}
    assert sorted(begun, key=begun.__getitem__) == [1, 2, 0]


def test_parts_that_are_not_awaited_are_found_at_their_line() -> None:
    report, _ = scatter(2, None, (40, 33, 16), waits=False)
    assert any(line_of("the first part", __file__) in str(one) for one in report.findings)
    assert {one.kind for one in report.findings} <= {Kind.WRITE_READ, Kind.READ_WRITE}


def test_a_part_that_is_told_before_its_last_tile_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SentShards, "count", told_at_once)
    report, _ = scatter(2, tw.Schedule(FMA, (16, 32, 8)), (40, 33, 16))
    assert any(one.kind in (Kind.WRITE_READ, Kind.READ_WRITE) for one in report.findings)


def told_at_once(shards: SentShards, work: Any) -> None:
    """Tell the rank that waits after each tile, in place of the last one."""
    tw.signal(shards.counters[work.batch[0]], scope="system")


# ---------------------------------------------------------------- refusals


@tw.kernel(A="P M K", B="K N", C="P M N", D="P M N", SENT="P", READY="Q")
def cannot_leave(A, B, C, D, SENT, READY, *, wrong):
    for p, m, n in tw.tiles(C):
        if wrong == "required":
            tw.require(READY.shape[0] == C.shape[0], "a counter for each part")
        counters = READY if wrong in ("counters", "required") else SENT
        tw.leaves(D if wrong == "other" else C, counters)
        if wrong == "twice":
            tw.leaves(C, SENT)
        if wrong == "arrives":
            tw.arrives(A, READY, 1)
        if wrong == "no product":
            C[p, m, n] = D[p, m, n] * 2.0
            continue
        acc = tw.zeros()
        for k in tw.steps(A.shape[2]):
            acc += A[p, m, k] @ B[k, n]
        C[p, m, n] = acc


LEFT = {
    "other": "D leaves in shards of its first dimension, and is not stored; nearest legal choice: the",
    "twice": "C leaves already; nearest legal choice: one call of tw.leaves",
    "arrives": "C leaves in shards of its first dimension, and A arrives; both order tiles",
    "no product": "C leaves in shards, which only products of arrays count; nearest legal choice",
    "counters": "C has P shards, and READY has Q counters; nearest legal choice: one name for both",
}


@pytest.mark.parametrize("wrong", LEFT)
def test_what_cannot_leave_is_refused(wrong: str) -> None:
    arrays = [tw.like("f32", 2, 8, 8), tw.like("f32", 8, 8), *[tw.like("f32", 2, 8, 8)] * 2]
    with pytest.raises(tw.TraceError) as caught:
        cannot_leave.bind(wrong=wrong).schedule_for(*arrays, *[tw.like("u32", 2)] * 2, target="reference")
    assert LEFT[wrong] in str(caught.value)
    cannot_leave.bind(wrong="required").schedule_for(*arrays, *[tw.like("u32", 2)] * 2, target="reference")


@pytest.mark.parametrize(("dim", "rows", "columns"), [(1, 0, 6), (2, 4, 0)])
def test_parts_without_elements_are_refused(dim: int, rows: int, columns: int) -> None:
    """No tile would count them, and the next call would wait for ever."""
    a, b, sent = np.ones((2, rows, 5), "f4"), np.ones((5, columns), "f4"), np.zeros(2, np.uint32)
    with pytest.raises(tw.LaunchError, match=rf"PARTS.shape\[{dim}\] must be 1 or more: no tile counts"):
        scattered(a, b, np.ones((2, rows, columns), "f4"), sent, 0, target="reference")


def test_sums_of_parts_that_arrive_are_refused_on_a_processor() -> None:
    given = tw.like("f32", 2, 8, 8), tw.like("u32", 2), tw.like("f32", 8, 8), 1
    with pytest.raises(tw.ScheduleError, match=r"PARTS arrives in shards; blocks of .* of the same launch"):
        added.bind(ranks=2).compile(*given, target="cpu")


@pytest.mark.parametrize(
    ("change", "near"),
    [
        ({"epilogue": "staged"}, 'epilogue="direct"'),
        ({"split_k": 2}, "split_k=1"),
        ({"across": True}, "across=False"),
    ],
)
def test_schedules_that_do_not_store_whole_tiles_are_refused(change: dict[str, Any], near: str) -> None:
    given = tw.like("f32", 2, 32, 32), tw.like("f32", 32, 32), tw.like("f32", 2, 32, 32), tw.like("u32", 2), 0
    with pytest.raises(
        tw.ScheduleError, match="PARTS leaves in shards, and a block counts each tile"
    ) as caught:
        scattered.bind(schedule=replace(PLAIN, **change)).compile(*given, target="reference")
    assert near in str(caught.value)


# ---------------------------------------------------------------- texts


@pytest.mark.parametrize("arch", ["sm_90a", "gfx942"])
def test_kernels_whose_results_leave_compile_and_spill_nothing(arch: str) -> None:
    given = tw.like("bf16", 8, 1024, 4096), tw.like("bf16", 4096, 4096), tw.like("f32", 8, 1024, 4096)
    target = "hip" if "gfx" in arch else "cuda"
    made = scattered.bind().compile(*given, tw.like("u32", 8), 0, target=target, arch=arch)
    assert {made.resources[name] for name in made.resources if "spill" in name or "stack" in name} == {0}
    ticket, told = (
        made.source.index("take_ticket_of(sent_tiles"),
        made.source.index("signal_counter_system(SENT"),
    )
    assert ticket < told
