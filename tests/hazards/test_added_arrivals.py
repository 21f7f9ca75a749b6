"""Arrays that arrive while a product runs, and are added to it: results, bits, wrong twins, texts."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.inspect.draw import Costs
from tilewright.schedule import work
from tilewright.targets.reference.findings import Kind

from .test_arrivals import BULK, F16, FMA, PLAIN, line_of


@tw.kernel(A="S K", B="K N", PART="S N", OTHER="S N", READY="R", C="S N", first=int, epoch=int)
def added(A, B, PART, OTHER, READY, C, first, epoch, *, waits=True):
    """``C = PART + A B + OTHER``; PART arrives in shards of its rows, and OTHER is there."""
    for m, n in tw.tiles(C):
        if waits:
            tw.arrives(PART, READY, epoch, first=first)  # the part arrives
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]
        C[m, n] = PART[m, n] + acc + OTHER[m, n]  # the part is read


@tw.kernel(PART="S N", OWN="S N", OTHER="S N", C="S N")
def added_after(PART, OWN, OTHER, C):
    for m, n in tw.tiles(C):
        C[m, n] = PART[m, n] + OWN[m, n] + OTHER[m, n]


@tw.kernel(A="S K", B="K N", C="S N")
def product(A, B, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]
        C[m, n] = acc


@tw.kernel(A="G M K", B="K N", PART="G N M", READY="G", C="G M N")
def added_batches(A, B, PART, READY, C):
    for g, m, n in tw.tiles(C):
        tw.arrives(PART, READY, 1)
        acc = tw.zeros()
        for k in tw.steps(A.shape[2]):
            acc += A[g, m, k] @ B[k, n]
        C[g, m, n] = PART[g, n, m].T + acc


@tw.kernel(A="M K", B="K N", PART="N M", READY="R", C="M N")
def added_columns(A, B, PART, READY, C):
    for m, n in tw.tiles(C):
        tw.arrives(PART, READY, 1)
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]
        C[m, n] = PART[n, m].T + acc


class Owner:
    """The arrays of the rank that adds, and the shards of its part that a copy engine brings."""

    def __init__(self, shape: tuple[int, int, int], shards: int, kind: Any = np.float32) -> None:
        (m, n, k), rng = shape, np.random.default_rng(shape)
        self.a, self.b = rng.standard_normal((m, k)).astype(kind), rng.standard_normal((k, n)).astype(kind)
        self.part, self.other = rng.standard_normal((2, m, n)).astype(np.float32)
        self.inbox, self.c = (np.full((m, n), np.nan, np.float32) for _ in range(2))
        self.ready, rows = np.zeros(shards, np.uint32), -(-m // shards)
        self.cuts = list(pairwise(min(rows * at, m) for at in range(shards + 1)))

    def sends(self, value: int, sign: float = 1.0) -> list[Any]:
        """The copies of the shards, in their order."""
        made = list[Any]()
        for at, (begin, end) in enumerate(self.cuts):
            counter, source = self.ready[at : at + 1], sign * self.part[begin:end]
            made.append(
                tw.testing.send(source, self.inbox[begin:end], counter, value)
                if begin < end
                else tw.testing.post(counter, value)
            )
        return made

    def launch(self, schedule: Any, epoch: int = 1, *, first: int = 0, waits: bool = True) -> Any:
        given = self.a, self.b, self.inbox, self.other, self.ready, self.c, first, epoch
        return tw.testing.launch(added.bind(schedule=schedule, waits=waits), *given)

    def check(self, sign: float = 1.0) -> None:
        """Compare every element with float64."""
        a, b = self.a.astype(np.float64), self.b.astype(np.float64)
        exact = sign * self.part.astype(np.float64) + a @ b + self.other
        terms = abs(a) @ abs(b) + abs(self.part) + abs(self.other)
        assert (abs(self.c - exact) <= (self.a.shape[1] + 3) * 2.0**-23 * terms).all()


STAGED = replace(BULK, epilogue="staged")

RIGHT = {
    "plain": ((70, 40, 24), 2, PLAIN),
    "the library's choice": ((70, 40, 24), 3, None),
    "an empty shard, bands": ((4, 40, 24), 3, tw.Schedule(FMA, (16, 32, 16), group_m=2)),
    "a persistent grid": ((90, 40, 24), 4, tw.Schedule(FMA, (16, 32, 16), blocks=3)),
    "turned operands": ((70, 40, 24), 2, tw.Schedule(FMA, (32, 32, 16), swap_ab=True, group_n=2)),
    "bulk copies": ((136, 72, 64), 3, BULK),
    "bulk stores": ((136, 72, 128), 3, STAGED),
    "ping-pong": ((136, 72, 64), 2, replace(STAGED, roles="ping-pong", groups=2, blocks=2)),
    "groups share a tile": ((130, 72, 128), 2, replace(BULK, tile=(128, 64, 64), groups=2)),
    "in the background": ((72, 40, 64), 2, tw.Schedule(F16, (32, 32, 32), stages=2, staging="cp_async")),
}


@pytest.mark.parametrize("name", RIGHT)
def test_the_ending_waits_for_what_it_adds(name: str) -> None:
    shape, shards, schedule = RIGHT[name]
    is_f16 = schedule is not None and schedule.atom.a_dtype == tw.f16
    owner = Owner(shape, shards, np.float16 if is_f16 else np.float32)
    copies = owner.sends(1)
    tw.testing.ranks([[owner.launch(schedule, first=shards - 1)], copies]).raise_if_any()
    owner.check()
    # The bits are those of a kernel that adds after the product, in the same order.
    alone, after = np.full_like(owner.c, np.nan), np.full_like(owner.c, np.nan)
    if schedule is None:
        given = owner.a, owner.b, owner.part, owner.other, owner.ready, alone, 0, 1
        schedule = added.bind().schedule_for(*given, target="reference")
    product.bind(schedule=schedule)(owner.a, owner.b, alone, target="reference")
    added_after(owner.part, alone, owner.other, after, target="reference")
    assert after.tobytes() == owner.c.tobytes()


def test_a_later_call_waits_for_its_own_part() -> None:
    owner, free = Owner((70, 40, 24), 2), np.zeros(1, np.uint32)
    kernels = [owner.launch(PLAIN), tw.testing.post(free, 1), owner.launch(PLAIN, 2)]
    copies = [*owner.sends(1), tw.testing.hold(free, 1), *owner.sends(2, -1.0)]
    tw.testing.ranks([[kernels], copies]).raise_if_any()
    owner.check(-1.0)


@pytest.mark.parametrize("kernel", [added_batches, added_columns])
def test_shards_lie_along_any_dimension_of_the_tiles(kernel: Any) -> None:
    rng = np.random.default_rng(3)
    lead = (3,) if kernel is added_batches else ()
    a, b = rng.standard_normal((*lead, 40, 24), np.float32), rng.standard_normal((24, 36), np.float32)
    part = rng.standard_normal((*lead, 36, 40), np.float32)
    inbox, c = np.full_like(part, np.nan), np.full((*lead, 40, 36), np.nan, np.float32)
    ready, each = np.zeros(3, np.uint32), 1 if lead else 12
    cuts = [slice(at * each, (at + 1) * each) for at in range(3)]
    copies = [tw.testing.send(part[cut], inbox[cut], ready[at : at + 1], 1) for at, cut in enumerate(cuts)]
    launch = tw.testing.launch(kernel.bind(schedule=PLAIN), a, b, inbox, ready, c)
    tw.testing.ranks([[launch], copies]).raise_if_any()
    exact = a.astype(np.float64) @ b + part.swapaxes(-1, -2)
    np.testing.assert_allclose(c, exact, rtol=1e-5, atol=1e-5)


def test_tiles_are_multiplied_before_their_part_is_there() -> None:
    """On a slow link all products end before the first shard is there; tiles wait for their shard alone."""
    owner = Owner((64, 64, 64), 2)
    report = tw.testing.ranks([[owner.launch(PLAIN)], owner.sends(1)])
    report.raise_if_any()
    spans = report.log.times(Costs(tflops=0.05, blocks=8, link_gbs=0.01))
    copies = [one for one in spans if one.kind == "copy"]
    waits = [one for one in spans if one.kind == "wait"]
    products = [one for one in spans if one.kind == "tile" and one.start == 0]
    assert len(products) == len(waits) == 4
    assert max(one.end for one in products) < copies[0].end
    for one in waits:  # two tiles lie in each shard
        assert (one.end < copies[1].end) == (one.lane < 2)


# ---------------------------------------------------------------- wrong twins


def test_a_missing_wait_is_found_where_the_part_is_read() -> None:
    owner = Owner((70, 40, 24), 2)
    findings = tw.testing.ranks([[owner.launch(PLAIN, waits=False)], owner.sends(1)]).findings
    assert {one.kind for one in findings} <= {Kind.WRITE_READ, Kind.READ_WRITE}
    assert any(line_of("the part is read", __file__) in str(one) for one in findings)
    assert any("nothing orders the two ranks here" in one.reason for one in findings)


def test_a_counter_left_from_the_call_before_is_found_where_the_part_arrives() -> None:
    owner, free = Owner((70, 40, 24), 2), np.zeros(1, np.uint32)
    kernels = [owner.launch(PLAIN), tw.testing.post(free, 1), owner.launch(PLAIN)]  # both wait for 1
    findings = tw.testing.ranks(
        [[kernels], [*owner.sends(1), tw.testing.hold(free, 1), *owner.sends(1)]]
    ).findings
    race = next(one for one in findings if one.kind in (Kind.WRITE_READ, Kind.READ_WRITE))
    assert f"the wait for 1 at {line_of('the part arrives', __file__)}" in race.reason
    assert any(one.kind is Kind.ARMED for one in findings)


def test_a_wait_of_the_scope_of_one_gpu_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def narrow(counter: Any, value: Any, *, barrier: Any = None, scope: str = "gpu") -> None:
        tw.await_(counter, value, barrier=barrier)

    monkeypatch.setattr(work, "await_", narrow)
    owner = Owner((136, 72, 64), 3, np.float16)
    findings = tw.testing.ranks([[owner.launch(replace(STAGED, stages=3))], owner.sends(1)]).findings
    scopes = [one for one in findings if one.kind is Kind.SCOPE]
    assert line_of("the part arrives", __file__) in str(scopes[0])


# ---------------------------------------------------------------- refusals


def like(kind: str, m: int, n: int, k: int) -> list[Any]:
    parts = [tw.like("f32", m, n)] * 2
    return [tw.like(kind, m, k), tw.like(kind, k, n), *parts, tw.like("u32", 4), tw.like(kind, m, n), 0, 1]


@pytest.mark.parametrize(
    ("change", "near"),
    [
        ({"split_k": 2}, "split_k=1"),
        ({"across": True}, "across=False"),
        ({"epilogue": "overlapped"}, 'epilogue="staged"'),
    ],
)
def test_schedules_whose_endings_others_compute_are_refused(change: dict[str, Any], near: str) -> None:
    with pytest.raises(
        tw.ScheduleError, match="PART arrives in shards, and the warps that multiply wait"
    ) as caught:
        added.bind(schedule=replace(BULK, **change)).compile(*like("f16", 64, 64, 64), target="reference")
    assert near in str(caught.value)


@tw.kernel(A="S K", B="K N", PARTS="P S N", READY="P", C="S N")
def refused(A, B, PARTS, READY, C):
    for m, n in tw.tiles(C):
        tw.arrives(PARTS, READY, 1)
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]
        C[m, n] = PARTS[0][m, n] + acc


def test_views_are_refused() -> None:
    given = [tw.like("f32", 8, 8), tw.like("f32", 8, 8), tw.like("f32", 2, 8, 8), tw.like("u32", 2)]
    with pytest.raises(tw.TraceError, match="PARTS arrives in shards, and a view of it is read") as caught:
        refused.bind().schedule_for(*given, tw.like("f32", 8, 8), target="reference")
    assert "as a factor or after the loop" in str(caught.value)


# ---------------------------------------------------------------- texts


@pytest.mark.parametrize("arch", ["sm_90a", "sm_80", "gfx942"])
def test_chosen_schedules_wait_after_their_loop(arch: str) -> None:
    target = "hip" if "gfx" in arch else "cuda"
    made = added.compile(*like("bf16", 8192, 4096, 4096), target=target, arch=arch)
    assert made.schedule is not None
    assert made.schedule.group_m > 0
    spilled = [name for name in made.resources if "spill" in name or "stack" in name]
    if arch != "sm_80":  # 255 registers of a thread there hold 128 sums, and the ending reads two arrays
        assert {made.resources[name] for name in spilled} == {0}
    waits = made.source.index("await_counter_system(READY")
    assert made.source.count("await_counter_system(READY") == 1
    assert made.source.index("PART +") > waits
    last = {"sm_90a": "mma_wait<0>();", "sm_80": "mma_m16n8k16_bf16(", "gfx942": "mfma_32x32x16_bf16("}
    assert made.source.rindex(last[arch]) < waits


@tw.kernel(A="M K", B="K N", READY="R", C="M N")
def arriving_factor(A, B, READY, C):
    for m, n in tw.tiles(C):
        tw.arrives(A, READY, 1)
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]
        C[m, n] = acc


@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
@pytest.mark.parametrize("is_factor", [False, True])
def test_all_warps_acquire_after_the_wait_of_the_first(arch: str, is_factor: bool) -> None:
    """Only the first warp waited; the cheap barrier would leave old lines in the caches of the others."""
    matrix = tw.like("f16", 4096, 4096)
    made = (
        arriving_factor.compile(matrix, matrix, tw.like("u32", 4), matrix, target="hip", arch=arch)
        if is_factor
        else added.compile(*like("f16", 4096, 4096, 4096), target="hip", arch=arch)
    )
    names = re.compile(r"block_barrier\(\)|block_barrier_of_shared\(\)|await_counter_system\(READY")
    text = made.source[made.source.index('extern "C"') :]
    whole, wait = "block_barrier()", "await_counter_system(READY"
    met = names.findall(text)
    assert met.count(whole) == met.count(wait) == 1
    assert met[met.index(wait) + 1] == whole
    assert set(met) - {whole, wait}, "the barriers of the main loop leave loads on their way"
    reads = re.search(r"\bA \+" if is_factor else r"\bPART \+", text)
    assert reads is not None
    assert text.index(whole) < reads.start()


@tw.kernel(A="M K", B="K N", P0="M N", P2="M N", P3="M N", R0="R", R2="R", R3="R", bias="N", Y="M N")
def second_of_four(A, B, P0, P2, P3, R0, R2, R3, bias, Y):
    """``Y = relu(P0 + A B + P2 + P3 + bias)``: the second rank of four adds the parts of the others."""
    for m, n in tw.tiles(Y):
        tw.arrives(P0, R0, 1)
        tw.arrives(P2, R2, 1)
        tw.arrives(P3, R3, 1)
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]
        total = P0[m, n].to(tw.f32) + acc + P2[m, n].to(tw.f32) + P3[m, n].to(tw.f32)
        Y[m, n] = tw.maximum(total + bias[n].to(tw.f32), 0)


def test_parts_of_several_ranks_are_added_in_their_order() -> None:
    """Numbers whose sum depends on the order: 2^30, a product, then -2^30, and a small number."""
    m, n, k = 136, 72, 64
    parts = np.full((3, m, n), 2.0**30, np.float32) * np.array([1, -1, 0], np.float32)[:, None, None]
    parts[2] = 0.25
    inbox, ready = np.full_like(parts, np.nan), np.zeros((3, 2), np.uint32)
    a, b, bias = np.ones((m, k), np.float16), np.ones((k, n), np.float16), np.zeros(n, np.float16)
    y = np.full((m, n), np.nan, np.float16)
    copies = [
        [
            tw.testing.send(parts[at, half], inbox[at, half], ready[at, turn : turn + 1], 1)
            for turn, half in enumerate((slice(0, 68), slice(68, None)))
        ]
        for at in range(3)
    ]
    launch = tw.testing.launch(second_of_four.bind(schedule=STAGED), a, b, *inbox, *ready, bias, y)
    tw.testing.ranks([[launch], *[[one] for one in copies]]).raise_if_any()
    assert (y == 0.25).all()  # 2^30 + 64 rounds to 2^30: in another order, 64 would remain


@pytest.mark.parametrize(("wire", "spilled"), [("f32", 4), ("bf16", 0)])
def test_parts_of_four_ranks_spill_at_most_one_register(wire: str, spilled: int) -> None:
    m, n, k, parts = 2048, 4096, 7168, [tw.like(wire, 2048, 4096)] * 3
    given = [tw.like("bf16", m, k), tw.like("bf16", k, n), *parts, *[tw.like("u32", 8)] * 3]
    given += [tw.like("bf16", n), tw.like("bf16", m, n)]
    made = second_of_four.compile(*given, target="cuda", arch="sm_90a")
    assert made.resources["spill_store_bytes"] <= spilled
    assert made.schedule is not None
    assert made.schedule.staging == "tma"
