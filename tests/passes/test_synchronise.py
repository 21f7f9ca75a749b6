"""Barriers from effects: no more than by hand, clean under the checker, and each is necessary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.hazards.ladder import traced
from tests.hazards.test_mutants import CASES

import tilewright as tw
from tilewright.errors import SignatureError, TilewrightError, TraceError
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import AsyncCommit, AsyncWait, Barrier, If, Op
from tilewright.ir.parser import parse_kernel
from tilewright.ir.printer import print_kernel
from tilewright.passes.hazards import hazards
from tilewright.passes.pipeline import stages
from tilewright.passes.rewrite import rewrite_kernel
from tilewright.passes.routes import may_hold
from tilewright.passes.synchronise import cheapest_cover, synchronise
from tilewright.symbolic.expr import equal, less, negate
from tilewright.symbolic.nodes import Element, Sym
from tilewright.targets.reference import Kind, run

from .small_programs import ELEMS, Small, Step, build, random_program

pytestmark = pytest.mark.in_turns(3)

PLACED = (Barrier, AsyncCommit, AsyncWait)
ORDERS = {Kind.WRITE_WRITE, Kind.WRITE_READ, Kind.READ_WRITE}
RACES = {*ORDERS, Kind.IN_FLIGHT, Kind.DIVERGENCE, Kind.DEADLOCK}
HAND_WRITTEN = ("basic_gemm", "optimized_gemm", "serial", "buffered", "prefetched", "pipelined_gemm")


def placed(kernel: Kernel) -> list[str]:
    """Return the barriers, commits and waits of a kernel, in program order."""
    ops = [op for op in kernel.walk() if isinstance(op, PLACED)]
    return [f"{op.name} {op.pending}" if isinstance(op, AsyncWait) else op.name for op in ops]


def without(kernel: Kernel, left_out: Sequence[int] | None = None) -> Kernel:
    """Return the kernel without some of its barriers, commits and waits, by number; None: without any."""
    seen: list[Op] = []

    def change(op: Op, rewriter: object) -> tuple[Op, ...] | None:
        if not isinstance(op, PLACED):
            return None
        seen.append(op)
        return () if left_out is None or len(seen) - 1 in left_out else None

    return rewrite_kernel(kernel, change)


def races(kernel: Kernel, arrays: Mapping[str, np.ndarray], **sizes: int) -> set[Kind]:
    """Return the checker's findings about the order of a kernel's accesses."""
    report = run(kernel, {name: array.copy() for name, array in arrays.items()}, sizes)
    return RACES & {finding.kind for finding in report.findings}


def unnoticed(
    kernel: Kernel, trials: Sequence[tuple[Mapping[str, np.ndarray], Mapping[str, int]]]
) -> list[int]:
    """Return the barriers, commits and waits that can be removed without a finding in any trial."""
    return [
        number
        for number in range(len(placed(kernel)))
        if not any(races(without(kernel, [number]), arrays, **sizes) for arrays, sizes in trials)
    ]


# ---------------------------------------------------------------- kernels that were written by hand


@pytest.fixture(scope="module", params=HAND_WRITTEN)
def pair(request: pytest.FixtureRequest) -> tuple[str, Kernel, Kernel]:
    """Return the name of a hand-written kernel, the kernel, and the same kernel with automatic barriers."""
    arrays, constants = CASES[request.param]
    by_hand = traced(request.param, arrays, **constants)
    return request.param, by_hand, synchronise(without(by_hand))[0]


def test_no_more_barriers_than_by_hand(pair: tuple[str, Kernel, Kernel]) -> None:
    name, by_hand, made = pair
    assert placed(made).count("barrier") <= placed(by_hand).count("barrier")
    if name != "pipelined_gemm":  # which has a barrier more than it needs
        assert sorted(placed(made)) == sorted(placed(by_hand))


def test_the_checker_finds_nothing_and_results_are_the_same_bits(pair: tuple[str, Kernel, Kernel]) -> None:
    name, by_hand, made = pair
    results = []
    for kernel in (by_hand, made):
        arrays = {key: array.copy() for key, array in CASES[name][0].items()}
        assert run(kernel, arrays).is_clean
        results.append(arrays["C"])
    np.testing.assert_array_equal(*results)


def test_each_barrier_commit_and_wait_is_needed(pair: tuple[str, Kernel, Kernel]) -> None:
    name, _, made = pair
    assert len(placed(made)) >= 2
    assert unnoticed(made, [(CASES[name][0], {})]) == []


def test_what_is_placed_prints_and_reads_back(pair: tuple[str, Kernel, Kernel]) -> None:
    text = print_kernel(pair[2])
    assert print_kernel(parse_kernel(text)) == text


# ---------------------------------------------------------------- single decisions


def through_shared(X, Y, *, readers):
    held = tw.shared((64,), tw.f32)
    tw.copy(X.tile((64,), (0,)), held, threads=64)
    tw.copy(held, Y.tile((64,), (0,)), threads=readers)


def automatic(function: Any, *arrays: Any, **constants: Any) -> Kernel:
    """The traced kernel of a function, synchronised automatically."""
    return tw.kernel(sync="auto", X="N", Y="N")(function).trace(*arrays, **constants)


SPECIMENS = tw.like("f32", 256), tw.like("f32", 256)


def test_a_thread_that_reads_what_it_wrote_needs_no_barrier() -> None:
    assert placed(automatic(through_shared, *SPECIMENS, readers=64)) == []
    assert placed(automatic(through_shared, *SPECIMENS, readers=32)) == ["barrier"]


def ring(X, Y, *, stages):
    """Fill a ring ``stages - 1`` iterations ahead; nothing is copied past the end."""
    held = tw.shared((stages, 64), tw.f32)
    count = tw.ceil_div(X.shape[0], 64)
    for k in tw.unroll(stages - 1):
        with tw.when(k < count):
            tw.copy_async(X.tile((64,), (k,)), held[k], threads=64)
    for k in tw.range(count):
        with tw.when(k + stages - 1 < count):
            tw.copy_async(X.tile((64,), (k + stages - 1,)), held[(k + stages - 1) % stages], threads=64)
        tw.copy(held[k % stages], Y.tile((64,), (k,)), threads=32)


@pytest.mark.parametrize("stages_", [2, 3, 4, 6])
def test_a_ring_has_one_barrier_and_lets_all_but_the_next_tile_go_on(stages_: int) -> None:
    made = automatic(ring, *SPECIMENS, stages=stages_)
    before = ["async_commit"] * (stages_ - 1)
    assert placed(made) == [*before, f"async_wait {stages_ - 2}", "barrier", "async_commit"]
    arrays = {name: np.arange(64 * (2 * stages_ + 1), dtype=np.float32) for name in "XY"}
    assert not races(made, arrays)
    assert unnoticed(made, [(arrays, {})]) == []


def test_nothing_is_placed_in_a_branch_for_what_is_outside_of_it() -> None:
    made = automatic(ring, *SPECIMENS, stages=3)
    inside = [op for branch in made.walk() if isinstance(branch, If) for op in branch.then.walk()]
    assert inside
    assert not any(isinstance(op, PLACED) for op in inside)


def within(X, Y):
    held = tw.shared((64,), tw.f32)
    with tw.when(X.shape[0] > 64):
        tw.copy_async(X.tile((64,), (0,)), held, threads=64)
        tw.copy(held, Y.tile((64,), (0,)), threads=32)


def test_what_is_passed_on_within_a_branch_is_waited_for_there() -> None:
    made = automatic(within, *SPECIMENS)
    [branch] = [op for op in made.body.ops if isinstance(op, If)]
    names = [op.name for op in branch.then.ops if isinstance(op, PLACED)]
    assert names == ["async_commit", "async_wait", "barrier"]
    arrays = {name: np.ones(100, np.float32) for name in "XY"}
    assert unnoticed(made, [(arrays, {})]) == []


def with_a_barrier(X, Y, *, early):
    held = tw.shared((64,), tw.f32)
    for k in tw.range(tw.ceil_div(X.shape[0], 64)):
        tw.copy(X.tile((64,), (k,)), held, threads=64)
        if not early:
            tw.barrier()
        tw.copy(held, Y.tile((64,), (k,)), threads=32)
        if early:
            tw.barrier()


@pytest.mark.parametrize("early", [False, True])
def test_an_authors_barrier_stays_and_counts(early: bool) -> None:
    made = automatic(with_a_barrier, *SPECIMENS, early=early)
    assert placed(made) == ["barrier", "barrier"]
    assert len(made.notes) == 1
    assert not races(made, {name: np.ones(300, np.float32) for name in "XY"})


def by_turns(X, Y, *, buffers, period, fill, named):
    """Each iteration fills one of several buffers in a branch, and reads it in another branch."""
    held = [tw.shared((64,), tw.f32, name=f"held{at}") for at in range(buffers)]
    for k in tw.range(tw.ceil_div(X.shape[0], 64)):
        turn = tw.let(k // (period // buffers) % buffers) if named else k // (period // buffers) % buffers
        for at in range(buffers):
            with tw.when(turn == at):
                fill(X.tile((64,), (k,)), held[at], threads=64)
        for at in range(buffers):
            with tw.when(turn == at):
                tw.copy(held[at], Y.tile((64,), (k,)), threads=32)


def by_turns_or_else(X, Y, *, fill):
    """There are two buffers; the second one serves every other iteration."""
    even, odd = tw.shared((64,), tw.f32), tw.shared((64,), tw.f32)
    for k in tw.range(tw.ceil_div(X.shape[0], 64)):
        with tw.when(k % 2 == 0):
            fill(X.tile((64,), (k,)), even, threads=64)
        with tw.otherwise():
            fill(X.tile((64,), (k,)), odd, threads=64)
        with tw.when(k % 2 == 0):
            tw.copy(even, Y.tile((64,), (k,)), threads=32)
        with tw.otherwise():
            tw.copy(odd, Y.tile((64,), (k,)), threads=32)


TURNS = {"two": (2, 2, False), "three": (3, 3, False), "a name": (2, 2, True)}


@pytest.mark.parametrize("fill", [tw.copy, tw.copy_async])
@pytest.mark.parametrize("case", ["or else", *TURNS])
def test_buffers_that_branches_use_by_turns_need_one_barrier_a_turn(case: str, fill: Any) -> None:
    """A later iteration overwrites a buffer; a barrier in an iteration between them orders both."""
    if case == "or else":
        made = automatic(by_turns_or_else, *SPECIMENS, fill=fill)
    else:
        buffers, period, named = TURNS[case]
        made = automatic(by_turns, *SPECIMENS, buffers=buffers, period=period, fill=fill, named=named)
    assert placed(made).count("barrier") == 1
    given = [({name: np.ones(64 * n, np.float32) for name in "XY"}, {}) for n in (7, 4, 3, 2, 1)]
    assert not any(races(made, arrays) for arrays, _ in given)
    assert unnoticed(made, given) == []


def test_turns_that_use_one_buffer_twice_need_a_barrier_in_between() -> None:
    """Buffers change every second iteration: the next one may overwrite what others still read."""
    made = automatic(by_turns, *SPECIMENS, buffers=2, period=4, fill=tw.copy, named=False)
    assert placed(made).count("barrier") == 2
    arrays = {name: np.ones(64 * 9, np.float32) for name in "XY"}
    assert not races(made, arrays)
    assert unnoticed(made, [(arrays, {})]) == []


def flagged(X, Y, flags):
    """Integers in memory choose the iterations that fill and read a buffer."""
    held = tw.shared((64,), tw.f32)
    for k in tw.range(tw.ceil_div(X.shape[0], 64)):
        flag = tw.index(flags[k])
        with tw.when(flag == 0):
            tw.copy(X.tile((64,), (k,)), held, threads=64)
        with tw.when(flag == 0):
            tw.copy(held, Y.tile((64,), (k,)), threads=32)


def test_integers_from_memory_may_choose_any_turns() -> None:
    made = tw.kernel(sync="auto", X="N", Y="N", flags="F")(flagged).trace(*SPECIMENS, tw.like("i32", 4))
    assert placed(made) == ["barrier", "barrier"]
    arrays: dict[str, Any] = {name: np.ones(256, np.float32) for name in "XY"}
    arrays["flags"] = np.zeros(4, np.int32)
    assert not races(made, arrays)
    assert unnoticed(made, [(arrays, {})]) == []


def test_conditions_that_may_hold_together() -> None:
    t, more, n, there = Sym("t"), Sym("more"), Sym("n"), Element(Sym("flags"), 0, 0, 9)
    for together in (
        (equal(t % 2, 0), equal((t + more) % 2, 0)),
        (equal(t // 2 % 2, 0), equal((t + 1) // 2 % 2, 0)),
        (equal(t % n, 0), equal((t + 1) % n, 0)),
        (equal(there, 0), negate(equal(there, 0))),  # memory may change in between
    ):
        assert may_hold(together), together
    for apart in (
        (equal(t % 2, 0), equal((t + 2 * more + 1) % 2, 0)),
        (negate(equal(t % 2, 0)), negate(equal((t + 1) % 2, 0))),
        (equal(t // 2 % 2, 0), equal((t + 2) // 2 % 2, 0)),
        (less(t, n), negate(less(t, n))),
        (equal(t % 2, 0), less(t, n), equal(t % 4, 3)),
    ):
        assert not may_hold(apart), apart


def in_place(X, Y):
    """Threads overwrite in global memory what others have read there."""
    for k in tw.range(tw.ceil_div(X.shape[0], 64)):
        half = X.tile((64,), (k,))
        x = tw.load(half.partition((64,)))
        tw.copy(x, half)
        y = tw.load(half, tw.blocked((64,), (32,)))
        tw.copy(y, Y.tile((64,), (k,)))


def test_global_memory_is_ordered_too_and_tiles_of_other_turns_are_apart() -> None:
    made = automatic(in_place, *SPECIMENS)
    assert placed(made) == ["barrier"]
    arrays = {name: np.ones(300, np.float32) for name in "XY"}
    assert not races(made, arrays)
    assert unnoticed(made, [(arrays, {})]) == []


def padded(X, Y):
    """The first iteration writes before the tensor, the second one inside it."""
    held = tw.shared((64,), tw.f32)
    behind = held.pad((64,), (0,))
    for k in tw.range(2):
        tw.copy(X.tile((64,), (k,)), behind.tile((64,), (k,)), threads=64)
        tw.copy(behind.tile((64,), (k,)), Y.tile((64,), (k,)), threads=32)


def test_an_edge_that_depends_on_the_turn_hides_nothing() -> None:
    made = automatic(padded, *SPECIMENS)
    assert "barrier" in placed(made)
    assert not races(made, {name: np.ones(128, np.float32) for name in "XY"})


def drained(X, Y, *, stages):
    """The last iterations are after the loop, and copy nothing."""
    held = tw.shared((stages, 64), tw.f32)
    count = tw.ceil_div(X.shape[0], 64)
    for k in tw.unroll(stages - 1):
        tw.copy_async(X.tile((64,), (k,)), held[k], threads=64)
    for k in tw.range(count - (stages - 1)):
        tw.copy_async(X.tile((64,), (k + stages - 1,)), held[(k + stages - 1) % stages], threads=64)
        tw.copy(held[k % stages], Y.tile((64,), (k,)), threads=32)
    for j in tw.unroll(stages - 1):
        last = count - (stages - 1) + j
        tw.copy(held[last % stages], Y.tile((64,), (last,)), threads=32)


def test_turns_behind_a_loop_wait_for_what_its_last_turns_began() -> None:
    made = automatic(drained, *SPECIMENS, stages=3)
    for count in (2, 3, 4, 7):
        arrays = {name: np.ones(64 * count, np.float32) for name in "XY"}
        assert not races(made, arrays)


def test_results_are_right_on_the_reference_and_the_cpu() -> None:
    kernel = tw.kernel(X="N", Y="N", sync="auto")(ring)
    x = np.random.default_rng(0).random(1000, np.float32)
    for target in ("reference", "cpu"):
        y = np.full_like(x, np.nan)
        assert kernel(x, y, stages=3, target=target).target == target
        np.testing.assert_array_equal(x, y)


def test_notes_say_what_was_placed_and_why() -> None:
    kernel = tw.kernel(X="N", Y="N", sync="auto")(through_shared)
    made = kernel.trace(*SPECIMENS, readers=32)
    [note] = made.notes
    assert note.startswith("tw.barrier() before copy at test_synchronise.py:")
    assert "held, written by copy at test_synchronise.py:" in note
    assert note.endswith("by other threads")
    [barrier] = [op for op in made.walk() if isinstance(op, Barrier)]
    assert barrier.location is not None
    assert "tw.copy(held, Y" in barrier.location.frame.excerpt()
    assert note in kernel.compile(*SPECIMENS, readers=32, target="cpu").notes
    assert next(iter(stages(made, tw.arch.REFERENCE, ()))).notes == (note,)


# ---------------------------------------------------------------- what is refused


def with_commit(X, Y):
    held = tw.shared((64,), tw.f32)
    tw.copy_async(X.tile((64,), (0,)), held, threads=64)
    tw.async_commit()


def with_role(X, Y):
    with tw.role(warps=1):
        tw.copy(X.tile((64,), (0,)), Y.tile((64,), (0,)), threads=32)


def with_mbarrier(X, Y):
    tw.hopper.mbarrier(1, arrivals=1)


def with_cluster(X, Y):
    tw.block_index(2)
    tw.hopper.cluster_index(2)


def with_signal(X, Y):
    done = tw.counter(1)
    tw.signal(done[0])


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (with_commit, "async_commit in a kernel of sync='auto', where the library closes groups of copies"),
        (with_role, "role synchronises only some warps"),
        (with_mbarrier, "mbarrier synchronises only some warps"),
        (with_cluster, "has clusters of blocks"),
        (with_signal, "signal synchronises blocks"),
    ],
)
def test_what_accesses_do_not_tell_is_refused_at_its_line(function: Any, said: str) -> None:
    with pytest.raises(TraceError) as error:
        automatic(function, *SPECIMENS)
    assert said in str(error.value)
    assert '@tw.kernel(sync="explicit")' in str(error.value)
    if function is not with_cluster:
        assert error.value.location is not None
        assert error.value.location.frame.function == function.__name__


def test_another_word_is_refused() -> None:
    with pytest.raises(SignatureError, match="sync='manual'; nearest legal choice: sync='explicit'"):
        tw.kernel(sync="manual")(through_shared)


def test_broken_rules_are_told_first() -> None:
    def wrong(X, Y):
        tw.copy(X.tile((64,), (0,)), Y.tile((32,), (0,)), threads=32)

    with pytest.raises(TilewrightError, match="shape"):
        tw.kernel(X="N", Y="N", sync="auto")(wrong)(*(np.ones(64, np.float32),) * 2, target="reference")


# ---------------------------------------------------------------- random programs


def trials(program: Small) -> list[tuple[dict[str, np.ndarray], dict[str, int]]]:
    """Return numbers of iterations that show every hazard: none, one, and more than the ring has slots."""
    nested = any(inner.what == "loop" for step in program.steps for inner in step.body)
    arrays = {"X": np.ones(8 * ELEMS, np.float32)}
    inner = (0, 1, 2, 4) if nested else (0,)
    return [(arrays, {"n": n, "m": m}) for n in reversed(range(8)) for m in reversed(inner)]


@pytest.mark.parametrize("seed", range(10))
def test_random_programs_are_clean_and_nothing_could_be_left_out(seed: int) -> None:
    program = random_program(seed, branches=False)
    made = build(program)
    for arrays, sizes in trials(program):
        assert not races(made, arrays, **sizes), (program, sizes)
    assert unnoticed(made, trials(program)) == [], (program, made.notes)


@settings(max_examples=8, deadline=None, derandomize=True)
@given(st.integers(1000, 10**6))
def test_random_programs_with_branches_are_clean(seed: int) -> None:
    program = random_program(seed, branches=True)
    made = build(program)
    for arrays, sizes in trials(program)[::3]:
        assert not races(made, arrays, **sizes), (program, sizes)


def test_a_random_program_without_its_barriers_is_not_clean() -> None:
    """Without its barriers, trials must have findings."""
    steps = (
        Step("loop", body=(Step("start", turns=True), Step("read", slot=1, turns=True, spread="two each"))),
    )
    program = Small((2,), steps)
    bare = without(build(program))
    assert any(races(bare, arrays, **sizes) for arrays, sizes in trials(program))


# ---------------------------------------------------------------- the choice of points


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 4)), min_size=1, max_size=6))
def test_of_intervals_as_few_points_as_possible_are_chosen(spans: list[tuple[int, int]]) -> None:
    sets = [set(range(low, low + length + 1)) for low, length in spans]
    chosen = cheapest_cover(sets, lambda point: 1, max)
    assert all(points & set(chosen) for points in sets)
    fewest = next(
        count
        for count in range(1, len(sets) + 1)
        if any(all(points & set(some) for points in sets) for some in combinations(range(12), count))
    )
    assert len(chosen) == fewest


def test_a_point_in_a_loop_is_dearer_than_several_before_it() -> None:
    chosen = cheapest_cover([{"loop", "a"}, {"loop", "b"}], lambda p: 16 if p == "loop" else 1, max)
    assert sorted(chosen) == ["a", "b"]


@pytest.mark.in_turns(1)
def test_elements_of_two_accesses_are_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The epilogue of a LayerNorm after a product has hundreds of pairs of accesses to one ring."""

    @tw.kernel(X="M K", W="K N", Y="M N")
    def normalised(X, W, Y):
        for m, n in tw.tiles(Y):
            acc = tw.zeros()
            for k in tw.steps(X.shape[1]):
                acc += X[m, k] @ W[k, n]
            centred = acc - (acc.sum(axis=1) / W.shape[1])[:, None]
            Y[m, n] = centred * tw.rsqrt((centred * centred).sum(axis=1) / W.shape[1] + 1.0)[:, None]

    schedule = tw.Schedule(tw.atoms.MFMA_F16_M16, (64, 128, 64), warps=(4, 1), stages=2, staging="cp_async")
    arrays = [tw.like("f16", shape) for shape in ((256, 256), (256, 256), (256, 256))]
    made = normalised.bind(schedule=schedule).compile(*arrays, target="reference")
    compared = []
    whole = np.intersect1d
    monkeypatch.setattr(np, "intersect1d", lambda *given, **how: compared.append(1) or whole(*given, **how))
    assert hazards(parse_kernel(made.ir))
    assert 0 < len(compared) < 3000  # 20000 if each case of each pair is compared
