"""The checker's clocks of two proxies agree with a plain graph, on random programs with bulk copies."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tilewright.dtypes import f32
from tilewright.ir import async_ops, ops
from tilewright.ir.builder import Builder
from tilewright.ir.kernel import Kernel, TensorParam
from tilewright.ir.types import Memory, TensorType, Value
from tilewright.targets.reference import Kind, run
from tilewright.views.view import View

from .test_happens_before import ELEMS, LANES, SPREADS, THREADS

pytestmark = pytest.mark.in_turns(3)

Step = tuple[str, ...] | tuple[str, int]

WARPS = THREADS // LANES


def build(program: list[Step]) -> tuple[Kernel, dict[int, int]]:
    """Build a kernel that executes the steps on one shared tensor; return it with each operation's step."""
    kind = TensorType(Memory.GLOBAL, f32, View.strided((ELEMS,), (1,)))
    source, out = Value("G", kind), Value("H", kind)
    builder = Builder()
    for name in "GH":
        builder.names.unique(name)
    tile = builder.define(ops.Shared, "S", dtype=f32, view=View.strided((ELEMS,), (1,)), elems=ELEMS)
    stages = max(len(program), 1)
    full, first, every = (
        builder.define(async_ops.MBarrier, name, stages=stages, arrivals=arrivals)
        for name, arrivals in (("full", 1), ("first", 1), ("every", WARPS))
    )
    builder.append(ops.Barrier())
    number: dict[int, int] = {}
    loads: list[int] = []
    for at, step in enumerate(program):
        made: list[ops.Op] = []
        match step:
            case ("write", spread):
                held = builder.define(ops.FragmentOp, "held", dtype=f32, distribution=SPREADS[spread], fill=1)
                made = [ops.Copy(held, tile)]
            case ("read", spread):
                held = builder.define(ops.FragmentOp, "held", dtype=f32, distribution=SPREADS[spread])
                made = [ops.Copy(tile, held)]
            case ("load",):
                arrival = async_ops.Arrive(full, at, ELEMS * 4)
                ends = {"barrier": full, "stage": at, "completion": "barrier"}
                made = [arrival, ops.Copy(source, tile, engine="bulk", **ends)]
                loads.append(at)
            case ("wait for the load",) if loads:
                made = [async_ops.Wait(full, loads[-1], 0)]
            case ("store",):
                made = [ops.Copy(tile, out, engine="bulk", completion="group")]
            case ("bulk_wait", pending):
                made = [async_ops.BulkWait(pending)]
            case ("tell", each):
                barrier = first if each == "role" else every
                made = [async_ops.Arrive(barrier, at, 0, each), async_ops.Wait(barrier, at, 0)]
            case ("arrive", each):
                made = [async_ops.Arrive(first if each == "role" else every, at, 0, each)]
            case (name,) if name in SIMPLE:
                made = [SIMPLE[name]()]
        number.update((id(builder.append(op)), at) for op in made)
    params = (TensorParam(source), TensorParam(out))
    return Kernel("steps", params, (), THREADS, builder.close(), lanes=LANES), number


SIMPLE = {
    "bulk_commit": async_ops.BulkCommit,
    "fence_async": async_ops.FenceAsync,
    "meet": lambda: async_ops.RoleBarrier(1, THREADS),
    "warp_barrier": ops.WarpBarrier,
}


@dataclass
class Thread:
    """A thread's order: the accesses before its own accesses, and the accesses before its bulk copies.

    ``heard`` are the accesses that it learned of by a barrier, including its own.
    """

    generic: set[int] = field(default_factory=set)
    bulk: set[int] = field(default_factory=set)
    heard: set[int] = field(default_factory=set)

    def learn(self, *others: Thread) -> None:
        for other in others:
            self.generic |= other.generic
            self.heard |= other.generic
            self.bulk |= other.bulk

    def copy(self) -> Thread:
        return Thread(set(self.generic), set(self.bulk), set(self.heard))


@dataclass(frozen=True)
class Done:
    """One access by one thread, or by a bulk copy, with all accesses before it."""

    step: int
    thread: int
    is_bulk: bool
    writes: bool
    elements: frozenset[int]
    before: frozenset[int]


class Graph:
    """Execute a program step by step with plain sets."""

    def __init__(self) -> None:
        self.threads = [Thread() for _ in range(THREADS)]
        self.done: list[Done] = []
        self.open: set[int] = set()
        self.groups: list[set[int]] = []
        self.loads: list[int] = []
        self.told: dict[int, Thread] = {}

    def carry_out(self, at: int, step: Step) -> None:
        warps = [self.threads[first : first + LANES] for first in range(0, THREADS, LANES)]
        match step:
            case ("write" | "read" as what, spread):
                self.access(at, what == "write", spread)
            case ("load",):
                self.loads.append(self.bulk(at, writes=True))
            case ("wait for the load",) if self.loads:
                heard = Thread({self.loads[-1]}, {self.loads[-1]})
                told = self.told[self.loads[-1]]
                for thread in self.threads:
                    thread.learn(heard, told)
            case ("store",):
                self.open.add(self.bulk(at, writes=False))
            case ("bulk_commit",):
                self.groups.append(self.open)
                self.open = set()
            case ("bulk_wait", pending):
                over = set().union(*self.groups[: max(len(self.groups) - pending, 0)])
                self.threads[0].learn(Thread(over, over))
            case ("fence_async",):
                for thread in self.threads:
                    thread.bulk |= thread.generic
            case ("meet",) | ("tell", "warp"):
                self.join(self.threads)
            case ("warp_barrier",) | ("arrive", "warp"):
                for warp in warps:
                    self.join(warp)
            case ("tell", "role"):
                told = self.threads[0].copy()
                for thread in self.threads:
                    thread.learn(told)

    def join(self, threads: list[Thread]) -> None:
        whole = Thread()
        whole.learn(*threads)
        for thread in threads:
            thread.learn(whole)

    def bulk(self, at: int, writes: bool) -> int:
        issuer = self.threads[0]
        number = len(self.done)
        everything = frozenset(range(ELEMS))
        # A copy over what has been read only needs a barrier in between.
        read = {n for n in issuer.heard if not self.done[n].writes} if writes else set()
        self.done.append(Done(at, 0, True, writes, everything, frozenset(issuer.bulk | read)))
        self.told[number] = issuer.copy()
        return number

    def access(self, at: int, writes: bool, name: str) -> None:
        spread = SPREADS[name]
        holders: set[frozenset[int]] = set()
        for number in range(spread.size_threads):
            elements = frozenset(int(i) for i in spread.table[number, :, 0])
            if writes and elements in holders:
                continue
            holders.add(elements)
            thread = self.threads[number]
            self.done.append(Done(at, number, False, writes, elements, frozenset(thread.generic)))
            thread.generic.add(len(self.done) - 1)

    def races(self) -> set[tuple[int, int]]:
        found = set()
        for (a, one), (_, other) in combinations(enumerate(self.done), 2):
            if (one.writes or other.writes) and one.elements & other.elements and a not in other.before:
                found.add((one.step, other.step))
        return found


def found_races(program: list[Step]) -> set[tuple[int, int]]:
    kernel, number = build(program)
    report = run(kernel, {"G": np.zeros(ELEMS, np.float32), "H": np.zeros(ELEMS, np.float32)})
    pairs = set()
    for finding in report.findings:
        if finding.kind is Kind.UNFINISHED or finding.tensor == "H":
            continue
        assert finding.earlier is not None, str(finding)
        pair = number[id(finding.earlier.op)], number[id(finding.access.op)]
        pairs.add((min(pair), max(pair)))
    return pairs


def true_races(program: list[Step]) -> set[tuple[int, int]]:
    graph = Graph()
    for at, step in enumerate(program):
        graph.carry_out(at, step)
    return graph.races()


WRITTEN: list[Step] = [("write", "chunks"), ("fence_async",), ("meet",)]
STEPS = st.one_of(
    st.tuples(st.sampled_from(["write", "read"]), st.sampled_from(sorted(SPREADS))),
    st.sampled_from([("load",), ("wait for the load",), ("store",), ("bulk_commit",), ("fence_async",)]),
    st.sampled_from([("meet",), ("warp_barrier",), ("tell", "role"), ("tell", "warp")]),
    st.tuples(st.just("arrive"), st.sampled_from(["role", "warp"])),
    st.tuples(st.just("bulk_wait"), st.integers(0, 1)),
)


@settings(max_examples=400)
@given(st.lists(STEPS, max_size=10))
@example([("load",), ("wait for the load",), ("read", "crossed"), ("fence_async",), ("meet",), ("load",)])
@example([("read", "chunks"), ("meet",), ("fence_async",), ("load",)])
@example([("store",), ("bulk_commit",), ("bulk_wait", 0), ("tell", "role"), ("write", "one lane")])
@example([("write", "one lane"), ("fence_async",), ("store",), ("bulk_commit",), ("tell", "warp"), ("load",)])
@example([("write", "crossed"), ("warp_barrier",), ("tell", "role"), ("read", "crossed")])
@example([("write", "one lane"), ("arrive", "role"), ("read", "one warp")])
@example([("write", "one warp"), ("arrive", "warp"), ("read", "one lane")])
def test_races_are_those_of_the_graph(steps) -> None:
    program = [*WRITTEN, *steps]
    found, expected = found_races(program), true_races(program)
    assert found <= expected
    assert bool(found) == bool(expected)
