"""The checker's vector clocks agree with a plain graph of happens-before, on random small programs."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tilewright.dtypes import f32
from tilewright.ir import ops
from tilewright.ir.builder import Builder
from tilewright.ir.kernel import Kernel, TensorParam
from tilewright.ir.types import Memory, TensorType, Value
from tilewright.targets.reference import run
from tilewright.threads.distribution import Distribution, Mode
from tilewright.views.view import View

LANES, THREADS, ELEMS = 4, 8, 16

SPREADS = {
    "chunks": Distribution((16,), (Mode(8, 0, 2),), (Mode(2, 0, 1),)),
    "strided": Distribution((16,), (Mode(8, 0, 1),), (Mode(2, 0, 8),)),
    "crossed": Distribution((16,), (Mode(2, 0, 8), Mode(4, 0, 2)), (Mode(2, 0, 1),)),
    "copies over warps": Distribution((16,), (Mode(4, 0, 4), Mode(2, None, 0)), (Mode(4, 0, 1),)),
    "copies over lanes": Distribution((16,), (Mode(2, None, 0), Mode(4, 0, 4)), (Mode(4, 0, 1),)),
    "one warp": Distribution((16,), (Mode(4, 0, 4),), (Mode(4, 0, 1),)),
    "one lane": Distribution((16,), (Mode(1, 0, 1),), (Mode(16, 0, 1),)),
}

Step = tuple[str, str] | tuple[str, int] | tuple[str]


def build(program: list[Step]) -> Kernel:
    """Return a kernel that performs the steps on one shared tensor."""
    source = Value("G", TensorType(Memory.GLOBAL, f32, View.strided((ELEMS,), (1,))))
    builder = Builder()
    builder.names.unique("G")
    target = builder.define(ops.Shared, "S", dtype=f32, view=View.strided((ELEMS,), (1,)), elems=ELEMS)
    for step in program:
        match step:
            case ("write", spread):
                held = builder.define(ops.FragmentOp, "held", dtype=f32, distribution=SPREADS[spread], fill=1)
                builder.append(ops.Copy(held, target))
            case ("read", spread):
                held = builder.define(ops.FragmentOp, "held", dtype=f32, distribution=SPREADS[spread])
                builder.append(ops.Copy(target, held))
            case ("copy_async", spread):
                builder.append(
                    ops.Copy(source, target, SPREADS[spread], 1, engine="async", completion="group")
                )
            case ("async_commit",):
                builder.append(ops.AsyncCommit())
            case ("async_wait", pending):
                builder.append(ops.AsyncWait(pending))
            case ("barrier",):
                builder.append(ops.Barrier())
            case ("warp_barrier",):
                builder.append(ops.WarpBarrier())
    return Kernel("steps", (TensorParam(source),), (), THREADS, builder.close(), lanes=LANES)


class Graph:
    """Every access of every thread as a node, with the set of nodes that come before it."""

    def __init__(self) -> None:
        self.before: list[int] = []
        self.accesses: list[tuple[int, int, bool, frozenset[int]]] = []
        self.last = [self.node() for _ in range(THREADS)]
        self.open: list[list[int]] = [[] for _ in range(THREADS)]
        self.groups: list[list[list[int]]] = [[] for _ in range(THREADS)]

    def node(self, *parents: int) -> int:
        self.before.append(0)
        for parent in parents:
            self.before[-1] |= self.before[parent] | 1 << parent
        return len(self.before) - 1

    def carry_out(self, number: int, step: Step) -> None:
        match step:
            case ("write" | "read" | "copy_async" as what, spread):
                self.access(number, what, SPREADS[spread])
            case ("async_commit",):
                for thread in range(THREADS):
                    self.groups[thread].append(self.open[thread])
                    self.open[thread] = []
            case ("async_wait", pending):
                for thread in range(THREADS):
                    groups = self.groups[thread]
                    done = [node for group in groups[: max(len(groups) - pending, 0)] for node in group]
                    self.last[thread] = self.node(self.last[thread], *done)
            case ("barrier",):
                self.last = [self.node(*self.last)] * THREADS
            case ("warp_barrier",):
                for first in range(0, THREADS, LANES):
                    warp = slice(first, first + LANES)
                    self.last[warp] = [self.node(*self.last[warp])] * LANES

    def access(self, number: int, what: str, spread: Distribution) -> None:
        holders: set[frozenset[int]] = set()
        for thread in range(spread.size_threads):
            elements = frozenset(int(i) for i in spread.table[thread, :, 0])
            # Of threads that hold copies, the first writes.
            if what != "read" and elements in holders:
                continue
            holders.add(elements)
            node = self.node(self.last[thread])
            if what == "copy_async":
                self.open[thread].append(node)
            else:
                self.last[thread] = node
            self.accesses.append((node, number, what != "read", elements))

    def races(self) -> set[tuple[int, int]]:
        """Return pairs of unordered steps in which two threads access one element, and one writes it."""
        found = set()
        for (a, first, a_writes, mine), (b, second, b_writes, other) in combinations(self.accesses, 2):
            ordered = self.before[b] >> a & 1 or self.before[a] >> b & 1
            if (a_writes or b_writes) and mine & other and not ordered:
                found.add((min(first, second), max(first, second)))
        return found


def found_races(program: list[Step]) -> set[tuple[int, int]]:
    kernel = build(program)
    copies = [op for op in kernel.body.ops if isinstance(op, ops.Copy)]
    steps = [at for at, step in enumerate(program) if step[0] in ("write", "read", "copy_async")]
    number = {id(op): at for op, at in zip(copies, steps, strict=True)}
    report = run(kernel, {"G": np.zeros(ELEMS, np.float32)})
    pairs = set()
    for finding in report.findings:
        assert finding.earlier is not None, str(finding)
        pair = number[id(finding.earlier.op)], number[id(finding.access.op)]
        pairs.add((min(pair), max(pair)))
    return pairs


def true_races(program: list[Step]) -> set[tuple[int, int]]:
    graph = Graph()
    for number, step in enumerate(program):
        graph.carry_out(number, step)
    return graph.races()


WRITTEN: list[Step] = [("write", "chunks"), ("barrier",)]
STEPS = st.one_of(
    st.tuples(st.sampled_from(["write", "read", "copy_async"]), st.sampled_from(sorted(SPREADS))),
    st.sampled_from([("barrier",), ("warp_barrier",), ("async_commit",)]),
    st.tuples(st.just("async_wait"), st.integers(0, 2)),
)


@settings(max_examples=400)
@given(st.lists(STEPS, max_size=9))
@example([("read", "chunks"), ("read", "strided"), ("write", "chunks")])
@example([("copy_async", "chunks"), ("async_commit",), ("async_wait", 0), ("read", "chunks")])
@example(
    [("copy_async", "chunks"), ("async_commit",), ("async_wait", 0), ("warp_barrier",), ("read", "crossed")]
)
def test_races_are_those_of_the_graph(steps) -> None:
    program = [*WRITTEN, *steps]
    found, expected = found_races(program), true_races(program)
    assert found <= expected
    assert bool(found) == bool(expected)


@pytest.mark.parametrize("spread", sorted(SPREADS))
def test_own_copies_are_seen_after_waiting_and_by_others_after_a_barrier(spread) -> None:
    copied = [*WRITTEN, ("copy_async", spread), ("async_commit",)]
    assert found_races([*copied, ("async_wait", 0), ("barrier",), ("read", "strided")]) == set()
    assert found_races([*copied, ("barrier",), ("read", spread)])
    assert found_races([*copied, ("async_wait", 1), ("barrier",), ("read", spread)])
    itself = found_races([*copied, ("async_wait", 0), ("read", spread)])
    assert bool(itself) == (SPREADS[spread].copies > 1)
