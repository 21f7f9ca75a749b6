"""Operands that arrive in shards: results on all ranks, the order of tiles, wrong twins, refusals, texts."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.inspect.draw import Costs
from tilewright.schedule.bulk import Producer
from tilewright.schedule.folds import block
from tilewright.targets.reference.findings import Kind
from tilewright.targets.reference.ranks import RanksReport

FMA, F16, WGMMA = tw.atoms.fma(tw.f32), tw.atoms.MMA_F16, tw.atoms.wgmma(tw.f16, 64)
PLAIN = tw.Schedule(FMA, (32, 32, 16), warps=(2, 1))
BULK = tw.Schedule(WGMMA, (64, 64, 64), stages=2, staging="tma", roles="cooperative")


@tw.kernel(A="M K", B="K N", C="M N", READY="R", rank=int, epoch=int)
def gathered(A, B, C, READY, rank, epoch):
    for m, n in tw.tiles(C):
        tw.arrives(A, READY, epoch, first=rank)  # the shards arrive
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]  # the operand is read
        C[m, n] = acc


@tw.kernel(A="M K", B="K N", C="M N", READY="R", rank=int, epoch=int)
def not_awaited(A, B, C, READY, rank, epoch):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]  # it is read without a wait
        C[m, n] = acc


@tw.kernel(A="P S K", B="K N", C="P S N", READY="P", rank=int, epoch=int)
def gathered_batches(A, B, C, READY, rank, epoch):
    for p, s, n in tw.tiles(C):
        tw.arrives(A, READY, epoch, first=rank)
        acc = tw.zeros()
        for k in tw.steps(A.shape[2]):
            acc += A[p, s, k] @ B[k, n]
        C[p, s, n] = acc


@tw.kernel(A="K M", B="N K", C="M N", READY="R", epoch=int)
def columns_arrive(A, B, C, READY, epoch):
    for m, n in tw.tiles(C):
        tw.arrives(B, READY, epoch)
        acc = tw.zeros()
        for k in tw.steps(A.shape[0]):
            acc += A[k, m].T @ B[n, k].T
        C[m, n] = acc


@tw.kernel(X="S K", A="P M K", READY="P R", rank=int)
def push(X, A, READY, rank, *, rows, scope):
    """Write the shard of a rank into the memory of all ranks, and signal it."""
    peer = tw.block_index(A.shape[0])
    spread = tw.blocked((4, 8), (4, 8))
    for m in tw.range(tw.ceil_div(X.shape[0], 4)):
        for k in tw.range(tw.ceil_div(X.shape[1], 8)):
            x = tw.load(X.tile((4, 8), (m, k)), spread)
            tw.copy(x, A[peer, rank * rows : rank * rows + X.shape[0]].tile((4, 8), (m, k)))
    tw.signal(READY[peer, rank], scope=scope)  # the shard is there


def line_of(text: str, file: str = __file__) -> str:
    """Return the place of the only line of a file that ends with a comment, as findings show it."""
    lines = Path(file).read_text().splitlines()
    (number,) = (n for n, line in enumerate(lines, 1) if line.endswith(f"  # {text}"))
    return f"{Path(file).name}:{number}:"


class Memory:
    """The arrays of all ranks: each has its rows of A, and all of B."""

    def __init__(self, ranks: int, shape: tuple[int, int, int], kind: Any = np.float32) -> None:
        m, n, k = shape
        rng = np.random.default_rng(ranks)
        self.ranks, self.rows = ranks, -(-m // ranks)
        self.a, self.b = (rng.standard_normal(one).astype(kind) for one in ((m, k), (k, n)))
        self.owns = [slice(min(r * self.rows, m), min((r + 1) * self.rows, m)) for r in range(ranks)]
        self.gathered = np.full((ranks, m, k), np.nan, kind)
        for rank, own in enumerate(self.owns):
            self.gathered[rank, own] = self.a[own]
        self.c = np.full((ranks, m, n), np.nan, np.float32)
        self.ready, self.free = (np.zeros((ranks, ranks), np.uint32) for _ in range(2))

    def program(self, rank: int, kernel: Any, values: tuple[int, ...]) -> list[list[Any]]:
        """The copy engine and the kernels of a rank; ``values``: those of the counters in each call."""
        post, hold, (copies, kernels) = tw.testing.post, tw.testing.hold, ([], [])
        for call, value in enumerate(values, 1):
            if call == 1 or value > values[call - 2]:
                copies.append(post(self.ready[rank, rank : rank + 1], value))
            for turn in range(1, self.ranks):
                to, own = (rank - turn) % self.ranks, self.owns[rank]
                copies += [hold(self.free[to, rank : rank + 1], call - 1)] if call > 1 else []
                ready, target = self.ready[to, rank : rank + 1], self.gathered[to][own]
                empty = own.start == own.stop
                copies.append(
                    post(ready, value) if empty else tw.testing.send(self.a[own], target, ready, value)
                )
            given = self.gathered[rank], self.b, self.c[rank], self.ready[rank], rank, value
            kernels.append(tw.testing.launch(kernel, *given))
            kernels += [post(self.free[rank, p : p + 1], call) for p in range(self.ranks)]
        return [copies, kernels]

    def run(self, kernel: Any, values: tuple[int, ...] = (1,)) -> RanksReport:
        """Run the calls on all ranks; if nothing is found, every result is right."""
        report = tw.testing.ranks([self.program(rank, kernel, values) for rank in range(self.ranks)])
        for c in self.c if report.is_clean else ():
            tw.testing.compare_gemm(self.a, self.b, c).raise_if_wrong()
        return report


RIGHT = {
    "two calls": (2, (70, 40, 24), PLAIN, (1, 2)),
    "tiles of three shards": (4, (37, 33, 20), None, (1,)),
    "an empty shard, bands": (3, (4, 40, 24), tw.Schedule(FMA, (16, 32, 16), group_m=2), (3,)),
    "eight ranks, a stream": (
        8,
        (90, 33, 24),
        tw.Schedule(FMA, (32, 32, 8), split_k="stream", blocks=3),
        (1,),
    ),
    "turned operands": (2, (70, 40, 24), tw.Schedule(FMA, (32, 32, 16), swap_ab=True, group_n=2), (1,)),
    "parts of K": (3, (70, 40, 40), tw.Schedule(FMA, (32, 32, 16), split_k=2), (1,)),
    "bulk copies": (2, (136, 72, 64), BULK, (1, 2)),
    "ping-pong": (
        2,
        (136, 72, 64),
        tw.Schedule(WGMMA, (64, 64, 64), stages=2, staging="tma", roles="ping-pong", groups=2, blocks=2),
        (1,),
    ),
    "clusters": (
        2,
        (136, 72, 64),
        tw.Schedule(
            tw.atoms.wgmma(tw.f16, 128),
            (64, 128, 64),
            stages=2,
            staging="tma",
            roles="cooperative",
            cluster=(2, 1),
        ),
        (1,),
    ),
    "in the background": (
        2,
        (72, 40, 64),
        tw.Schedule(F16, (32, 32, 32), stages=2, staging="cp_async"),
        (1,),
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_each_tile_waits_for_its_shards(name: str) -> None:
    ranks, shape, schedule, values = RIGHT[name]
    is_f16 = schedule is not None and schedule.atom.a_dtype == tw.f16
    memory = Memory(ranks, shape, np.float16 if is_f16 else np.float32)
    report = memory.run(gathered.bind(schedule=schedule), values)
    report.raise_if_any()
    assert report.launches == ranks * len(values)


def test_the_tiles_of_the_local_shard_come_first() -> None:
    report = Memory(3, (96, 64, 32)).run(gathered.bind(schedule=PLAIN))
    spans = report.log.times(Costs(link_gbs=0.01, tflops=1, blocks=1))
    for rank in range(3):
        own = [one for one in spans if one.rank == rank and one.kind == "tile"]
        first = min(one.end for one in spans if one.kind == "copy")
        assert len(own) == 6
        assert sum(one.end < first for one in own) == 2  # the two tiles of its own shard


@pytest.mark.parametrize("blocks", [0, 2])
def test_shards_are_batches(blocks: int) -> None:
    """Each index of the first dimension is a shard, and blocks go round from the local one."""
    ranks, rows, rng = 3, 20, np.random.default_rng(0)
    a = rng.standard_normal((ranks, rows, 24), np.float32)
    b, c = rng.standard_normal((24, 40), np.float32), np.full((ranks, rows, 40), np.nan, np.float32)
    inbox, ready = np.full_like(a, np.nan), np.zeros(ranks, np.uint32)
    schedule = tw.Schedule(FMA, (16, 32, 8), blocks=blocks)
    launch = tw.testing.launch(gathered_batches.bind(schedule=schedule), inbox, b, c, ready, 1, 4)
    sends = [
        tw.testing.send(a[p], inbox[p], ready[p : p + 1], 4) for p in (1, 2, 0)
    ]  # as the tiles need them
    report = tw.testing.ranks([[launch], sends])
    report.raise_if_any()
    for one, found in zip(a, c, strict=True):
        tw.testing.compare_gemm(one, b, found).raise_if_wrong()


def test_columns_of_the_result_arrive() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((24, 40), np.float32), rng.standard_normal((70, 24), np.float32)
    inbox, c, ready = np.full_like(b, np.nan), np.full((40, 70), np.nan, np.float32), np.zeros(2, np.uint32)
    launch = tw.testing.launch(columns_arrive.bind(schedule=PLAIN), a, inbox, c, ready, 2**31 - 1)
    sends = [
        tw.testing.send(b[35 * p :][:35], inbox[35 * p :][:35], ready[p : p + 1], 2**31 - 1) for p in range(2)
    ]
    tw.testing.ranks([[launch], sends]).raise_if_any()
    tw.testing.compare_gemm(a.T, b.T, c).raise_if_wrong()


@tw.kernel(A="M K", B="N K", C="M N", ROWS="R", COLUMNS="Q")
def lower(A, B, C, ROWS, COLUMNS):
    for m, n in tw.tiles(C):
        tw.arrives(A, ROWS, 1, first=1)
        tw.arrives(B, COLUMNS, 2)
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        C[m, n] = tw.where(tw.positions(m)[:, None] >= tw.positions(n), acc, 0)


@tw.kernel(A="M K", y="M", ROWS="R")
def largest(A, y, ROWS):
    for m in tw.tiles(y):
        tw.arrives(A, ROWS, 1)
        y[m] = A[m].max(axis=1)


def sends(source: Any, target: Any, counters: Any, value: int) -> list[Any]:
    """Copies of equal shards, one for each counter."""
    rows, tell = -(-len(source) // len(counters)), tw.testing.send
    cuts = [slice(rank * rows, (rank + 1) * rows) for rank in range(len(counters))]
    return [tell(source[cut], target[cut], counters[at : at + 1], value) for at, cut in enumerate(cuts)]


def test_two_operands_arrive_and_masks_leave_out_tiles() -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal((rows, 20), np.float32) for rows in (90, 70))
    inboxes, ready = (
        [np.full_like(one, np.nan) for one in (a, b)],
        [np.zeros(count, np.uint32) for count in (3, 2)],
    )
    c = np.full((90, 70), np.nan, np.float32)
    schedule = tw.Schedule(FMA, (16, 16, 8), blocks=3, group_m=2)
    launch = tw.testing.launch(lower.bind(schedule=schedule), *inboxes, c, *ready)
    copies = sends(a, inboxes[0], ready[0], 1) + sends(b, inboxes[1], ready[1], 2)
    tw.testing.ranks([[launch], copies]).raise_if_any()
    below = np.tri(90, 70) > 0
    assert (c[~below] == 0).all()
    exact = a.astype(np.float64) @ b.T.astype(np.float64)
    bound = 21 * 2.0**-24 * (abs(a).astype(np.float64) @ abs(b).T)
    assert (abs(c - exact) <= bound)[below].all()


def test_a_loop_without_a_product_waits_for_all_shards() -> None:
    a = np.random.default_rng(4).standard_normal((45, 20), np.float32)
    inbox, y, ready = np.full_like(a, np.nan), np.full(45, np.nan, np.float32), np.zeros(3, np.uint32)
    launch = tw.testing.launch(largest, inbox, y, ready)
    tw.testing.ranks([[launch], sends(a, inbox, ready, 1)]).raise_if_any()
    assert np.array_equal(y, a.max(axis=1))


@tw.kernel(Q="M D", K="N D", V="N D", O="M D", READY="R")
def attention(Q, K, V, O, READY, *, waits):
    for m in tw.tiles(O.shape[0]):
        if waits:
            tw.arrives(K, READY, 1)
        O[m] = tw.softmax(Q[m] @ K.T, axis=1).to(V.dtype) @ V  # the keys are read


def attend(*, waits: bool, stages: int = 2) -> tuple[RanksReport, Any]:
    """Weighted averages by warpgroups; the keys are there, or arrive in three shards."""
    q, k, v = (np.random.default_rng(5).standard_normal((rows, 16)).astype("f2") for rows in (70, 75, 75))
    inbox, o = np.full_like(k, np.nan) if waits else k, np.full_like(q, np.nan)
    ready = np.zeros(3, np.uint32)
    schedule = tw.Schedule(
        tw.atoms.wgmma("f16", 16),
        (128, 16, 16),
        stages=stages,
        staging="tma",
        roles="cooperative",
        groups=2,
        width=16,
        resident=True,
        epilogue="staged",
    )
    launch = tw.testing.launch(attention.bind(schedule=schedule, waits=waits), q, inbox, v, o, ready)
    return tw.testing.ranks([[launch], sends(k, inbox, ready, 1) if waits else []]), o


def test_warpgroups_of_a_loop_wait_and_need_the_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    (before, right), (report, found) = attend(waits=False), attend(waits=True)
    before.raise_if_any()
    report.raise_if_any()
    assert np.isfinite(right).all()
    assert found.tobytes() == right.tobytes()
    monkeypatch.setattr(block, "fence_async", lambda memory: None)
    findings = attend(waits=True, stages=3)[0].findings
    assert {one.kind for one in findings} == {Kind.PROXY}
    assert line_of("the keys are read") in str(findings[0])


# ---------------------------------------------------------------- wrong twins


def test_a_missing_wait_is_found_where_the_operand_is_read() -> None:
    found = Memory(2, (70, 40, 24)).run(not_awaited.bind(schedule=PLAIN)).findings
    assert {one.kind for one in found} <= {Kind.WRITE_READ, Kind.READ_WRITE}
    assert any(line_of("it is read without a wait") in str(one) for one in found)
    assert any("nothing orders the two ranks here" in one.reason for one in found)


def test_a_counter_left_from_the_call_before_is_found_where_the_shards_arrive() -> None:
    found = Memory(2, (70, 40, 24)).run(gathered.bind(schedule=PLAIN), (1, 1)).findings
    assert any(one.kind is Kind.ARMED for one in found)  # the copy sets the value that the counter has
    race = next(one for one in found if one.kind in (Kind.WRITE_READ, Kind.READ_WRITE))
    assert f"the wait for 1 at {line_of('the shards arrive')}" in race.reason
    assert "did not wait, because an earlier call had left the counter there" in race.reason


@pytest.mark.parametrize("scope", ["system", "gpu"])
def test_a_shard_that_a_kernel_sends_needs_the_scope_of_the_system(scope: str) -> None:
    memory = Memory(2, (34, 33, 24))
    pushes = push.bind(rows=memory.rows, scope=scope)
    report = tw.testing.ranks(
        [
            [
                tw.testing.launch(pushes, memory.a[own], memory.gathered, memory.ready, rank),
                tw.testing.launch(
                    gathered.bind(schedule=PLAIN),
                    memory.gathered[rank],
                    memory.b,
                    memory.c[rank],
                    memory.ready[rank],
                    rank,
                    1,
                ),
            ]
            for rank, own in enumerate(memory.owns)
        ]
    )
    if scope == "system":
        report.raise_if_any()
        for c in memory.c:
            tw.testing.compare_gemm(memory.a, memory.b, c).raise_if_wrong()
        return
    scopes = [one for one in report.findings if one.kind is Kind.SCOPE]
    assert line_of("the shard is there") in str(scopes[0])
    assert line_of("the shards arrive") in str(scopes[0])


def test_bulk_copies_need_the_fence_after_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Producer, "arrived", lambda self: None)
    schedule = tw.Schedule(WGMMA, (64, 64, 64), stages=3, staging="tma", roles="cooperative")
    found = Memory(2, (136, 72, 64), np.float16).run(gathered.bind(schedule=schedule)).findings
    assert {one.kind for one in found} == {Kind.PROXY}
    assert line_of("the operand is read") in str(found[0])


# ---------------------------------------------------------------- refusals


@tw.kernel(A="M K", B="K N", C="M N", READY="R", epoch=int)
def refused(A, B, C, READY, epoch, *, wrong):
    if wrong == "outside":
        tw.arrives(A, READY, epoch)
    for m, n in tw.tiles(C):
        if wrong in ("", "twice"):
            tw.arrives(A, READY, epoch)
        if wrong == "twice":
            tw.arrives(A, READY, epoch)
        if wrong == "counters":
            tw.arrives(A, READY[1:], epoch)
        if wrong == "dtype":
            tw.arrives(A, B[0], epoch)
        if wrong == "view":
            tw.arrives(A[1:], READY, epoch)
        if wrong == "steps":
            tw.arrives(B, READY, epoch)
        if wrong == "stored":
            tw.arrives(C, READY, epoch)
        if wrong in ("-3", "4294967296"):
            tw.arrives(A, READY, int(wrong))
        if wrong == "2^22 in each call":
            tw.arrives(A, READY, epoch * (1 << 22))
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]
        C[m, n] = acc


REFUSED = {
    "outside": "belongs in a loop over tiles; nearest legal choice: its first line",
    "twice": "A arrives twice; nearest legal choice: one call",
    "counters": "counters of shards are an array of u32 with one dimension, and READY is a view",
    "dtype": "counters of shards are an array of u32 with one dimension, and B is a view",
    "view": "A consists of shards, and is a view",
    "steps": "B arrives in shards of its first dimension, which k indexes, a span of a loop; nearest legal",
    "stored": "C arrives in shards of its first dimension, and is stored; nearest legal choice: another",
    "-3": "waits for -3; counters of shards are u32 that begin with 0 and count up; nearest legal choice: 1",
    "4294967296": "waits for 4294967296; counters of shards .* nearest legal choice: 4294967295",
}


def like(dtype: str, m: int, n: int, k: int) -> list[Any]:
    return [tw.like(dtype, m, k), tw.like(dtype, k, n), tw.like(dtype, m, n), tw.like("u32", 8), 1]


@pytest.mark.parametrize("wrong", REFUSED)
def test_what_cannot_arrive_is_refused_at_the_line(wrong: str) -> None:
    with pytest.raises(tw.TraceError) as caught:
        refused.bind(wrong=wrong).schedule_for(*like("f32", 48, 48, 48), target="reference")
    assert re.search(REFUSED[wrong], str(caught.value))
    assert Path(__file__).name in str(caught.value)


@pytest.mark.parametrize(
    ("counters", "epoch", "message"),
    [
        (0, 1, "READY must have 1 or more counters"),
        (2, 0, "the value to wait for must be 1 or more"),
        (2, -1, "the value to wait for must be 1 or more"),
        (2, 1 << 10, "the value to wait for must be less than 2\\^32"),
    ],
)
def test_waits_that_end_at_once_or_never_are_refused(counters: int, epoch: int, message: str) -> None:
    a, c = np.ones((4, 4), np.float32), np.full((4, 4), np.nan, np.float32)
    ready = np.zeros(counters, np.uint32)
    with pytest.raises(tw.LaunchError, match=message):
        refused.bind(wrong="2^22 in each call")(a, a.copy(), c, ready, epoch, target="reference")
    assert np.isnan(c).all()
    if not counters:
        with pytest.raises(tw.LaunchError, match="ROWS must have 1 or more counters"):
            largest(a, c[0], ready, target="reference")


@tw.kernel(A="M K", B="G K N", u="K", index="M", ends="G", C="M N", v="N", READY="R")
def other_arrays(A, B, u, index, ends, C, v, READY, *, what):
    if what == "u":
        for n in tw.tiles(v):
            tw.arrives(u, READY, 1)
            acc = tw.zeros()
            for k in tw.steps(u.shape[0]):
                acc += u[k] @ B[0][k, n]
            v[n] = acc
        return
    for g, m, n in tw.tiles(C, groups=ends):
        tw.arrives(ends if what == "ends" else index, READY, 1)
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[index[m], k] @ B[g, k, n]
        C[m, n] = acc


@pytest.mark.parametrize("what", ["ends", "index", "u"])
def test_arrays_that_no_tile_loads_are_refused(what: str) -> None:
    """Integers that choose rows are read before a tile waits, and a vector along K by all tiles."""
    given = [*[tw.like("f32", 8, 8), tw.like("f32", 2, 8, 8), tw.like("f32", 8)]]
    given += [tw.like("i32", 8), tw.like("i32", 2), tw.like("f32", 8, 8), tw.like("f32", 8)]
    with pytest.raises(tw.TraceError) as caught:
        other_arrays.bind(what=what).compile(*given, tw.like("u32", 2), target="reference")
    wrong = "its integers choose rows, which are read before a tile waits; nearest legal choice: a wait in an"
    if what == "u":
        wrong = "which k indexes, a span of a loop"
    assert f"{what} arrives in shards of its first dimension" in str(caught.value)
    assert wrong in str(caught.value)


@tw.kernel(A="M M", C="M M", READY="R", epoch=int)
def squared(A, C, READY, epoch, *, more):
    for m, n in tw.tiles(C):
        tw.arrives(A, READY, epoch)
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ A[n, k].T
        C[m, n] = acc + (A[m, n] if more else 0)


def test_an_operand_of_both_sides_is_awaited_along_both() -> None:
    rng = np.random.default_rng(2)
    a, inbox = rng.standard_normal((70, 70), np.float32), np.full((70, 70), np.nan, np.float32)
    c, ready = np.full((70, 70), np.nan, np.float32), np.zeros(2, np.uint32)
    launch = tw.testing.launch(squared.bind(more=False, schedule=PLAIN), inbox, c, ready, 1)
    sends = [tw.testing.send(a[35 * p :][:35], inbox[35 * p :][:35], ready[p : p + 1], 1) for p in range(2)]
    tw.testing.ranks([[launch], sends]).raise_if_any()
    tw.testing.compare_gemm(a, a.T, c).raise_if_wrong()


def test_other_reads_of_the_operand_are_refused() -> None:
    given = [tw.like("f32", 8, 8), tw.like("f32", 8, 8), tw.like("u32", 2), 1]
    with pytest.raises(
        tw.TraceError, match="A arrives in shards, and is read by a product and after"
    ) as caught:
        squared.bind(more=True).schedule_for(*given, target="reference")
    assert "nearest legal choice: a second array, with counters of its own" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"group_n": 4},
            "group_n=4; A arrives in shards along m, and bands along n need all of them at once",
        ),
        ({"balanced": True}, "balanced=True; A arrives in shards"),
        (
            {"groups": 2, "warps": (1, 1), "stages": 2, "staging": "fragments"},
            "warps that wait meet at a barrier, and such groups have none",
        ),
    ],
)
def test_schedules_that_break_the_order_are_refused(change: dict[str, Any], message: str) -> None:
    schedule = tw.Schedule(**{"atom": FMA, "tile": (32, 32, 16), "warps": (2, 1), **change})
    with pytest.raises(tw.ScheduleError) as caught:
        refused.bind(wrong="", schedule=schedule).compile(*like("f32", 48, 48, 48), target="reference")
    assert message in str(caught.value)


def test_blocks_that_copy_by_several_warps_or_take_several_items_are_refused() -> None:
    mixed = replace(BULK, staging="mixed", stages=3)
    with pytest.raises(tw.ScheduleError, match="A arrives in shards: one warp waits for them, and four"):
        refused.bind(wrong="", schedule=mixed).compile(*like("f16", 64, 64, 64), target="reference")
    given = [tw.like("f32", *shape) for shape in ((4, 16, 16), (16, 16), (4, 16, 16))]
    several = gathered_batches.bind(schedule=replace(PLAIN, batches=2))
    with pytest.raises(tw.ScheduleError, match="batches=2; A consists of shards, and a block takes tiles of"):
        several.compile(*given, tw.like("u32", 4), 0, 1, target="reference")


def test_a_processor_does_not_wait_for_other_processes() -> None:
    for kernel, given in (
        (refused.bind(wrong=""), like("f32", 48, 48, 48)),
        (largest, [tw.like("f32", 45, 20), tw.like("f32", 45), tw.like("u32", 3)]),
    ):
        with pytest.raises(
            tw.ScheduleError, match=r"blocks of .* wait only for blocks of the same launch"
        ) as caught:
            kernel.compile(*given, target="cpu")
        assert "a GPU, or the reference" in str(caught.value)


# ---------------------------------------------------------------- texts


@pytest.mark.parametrize("arch", ["sm_90a", "sm_80", "gfx942"])
def test_chosen_schedules_compile_and_spill_nothing(arch: str) -> None:
    made = refused.bind(wrong="").compile(
        *like("bf16", 8192, 4096, 4096), target="hip" if "gfx" in arch else "cuda", arch=arch
    )
    assert made.schedule is not None
    assert made.schedule.staging == {"sm_90a": "tma", "sm_80": "cp_async", "gfx942": "registers"}[arch]
    assert made.schedule.group_m > 0
    assert made.schedule.group_n == 0
    spilled = [name for name in made.resources if "spill" in name or "stack" in name]
    assert {made.resources[name] for name in spilled} == {0}
    waits = made.source.index("await_counter_system(READY")
    loads = made.source.index({"sm_90a": "tma_load", "sm_80": "copy_async<", "gfx942": "A +"}[arch], waits)
    assert "for (int number" in made.source[:waits]
    assert "A +" not in made.source[:waits]
    assert loads > waits
    assert made.source.count("await_counter_system(READY") == 1


def test_the_flow_reads_and_prints_its_arrivals() -> None:
    made = refused.bind(wrong="").flow(*like("f32", 48, 48, 48))
    text = tw.ir.print_flow(made)
    assert "arrives(A, READY, epoch, 0)" in text
    assert tw.ir.parse_flow(text) == made
    assert tw.ir.parse_flow(text.replace("epoch, 0)", "epoch, 1)")) != made
    with pytest.raises(
        tw.ParseError, match="A arrives in shards of its first dimension, and no tile reads it"
    ):
        tw.ir.parse_flow(text.replace("A[m, k]", "C[m, k]"))
