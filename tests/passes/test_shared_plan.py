"""Tensors share memory only if their lifetimes are apart; the reference finds every other plan."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import LegalityError
from tilewright.ir.async_ops import FenceAsync
from tilewright.ir.kernel import Kernel, layout_shared
from tilewright.ir.ops import AsyncWait, Barrier, Shared
from tilewright.ir.parser import parse_kernel
from tilewright.ir.printer import print_kernel
from tilewright.ir.verify import broken_rules
from tilewright.passes.rewrite import rewrite_kernel
from tilewright.passes.shared_plan import plan_shared
from tilewright.targets import cuda
from tilewright.targets.reference import Kind, Report, run
from tilewright.targets.target import CUDA

ROWS, COLUMNS = 16, 32
TILE = (ROWS, COLUMNS)
BYTES = ROWS * COLUMNS * 4


def turn(source: Any, held: Any, target: Any) -> None:
    """Copy through shared memory; each thread reads what others have written."""
    tw.copy(source, held, threads=64)
    tw.barrier()
    tw.copy(held, target, threads=tw.Layout((8, 8), (1, 8)))


@tw.kernel(X="M N", Y="M N", Z="M N")
def one_after_another(X, Y, Z):
    first, second = tw.shared(TILE, X.dtype), tw.shared(TILE, X.dtype)
    at = (tw.block_index(1), 0)
    turn(X.tile(TILE, at), first, Y.tile(TILE, at))
    tw.barrier()
    turn(Y.tile(TILE, at), second, Z.tile(TILE, at))


@tw.kernel(X="M N", Y="M N", Z="M N")
def without_a_barrier(X, Y, Z):
    first, second = tw.shared(TILE, X.dtype), tw.shared(TILE, X.dtype)
    at = (tw.block_index(1), 0)
    turn(X.tile(TILE, at), first, Y.tile(TILE, at))
    turn(X.tile(TILE, at), second, Z.tile(TILE, at))


@tw.kernel(X="M N", I="M", Y="M N")
def chosen_rows(X, I, Y):
    """The copy reads an index in shared memory, not the line that chooses the rows."""
    tw.block_index(1)
    index, other = tw.shared((ROWS,), tw.i32), tw.shared(TILE, X.dtype)
    tw.copy(I.tile((ROWS,), (0,)), index, threads=ROWS)
    tw.barrier()
    rows = X.rows(index)
    tw.barrier()
    turn(X.tile(TILE, (0, 0)), other, Y.tile(TILE, (0, 0)))
    tw.barrier()
    tw.copy(rows.tile(TILE, (0, 0)), Y.tile(TILE, (0, 0)), threads=64)


def test_an_index_lives_until_the_rows_that_it_names_are_accessed() -> None:
    x, index = np.ones((ROWS, COLUMNS), np.float32), np.arange(ROWS, dtype=np.int32)
    kernel = chosen_rows.trace(x, index, np.zeros_like(x))
    _, notes = plan_shared(kernel)
    assert not [note for note in notes if "share the same bytes" in note]


@tw.kernel(X="M N", Y="M N", Z="M N")
def in_a_loop(X, Y, Z):
    first, second = tw.shared(TILE, X.dtype), tw.shared(TILE, X.dtype)
    tw.block_index(1)
    for m in tw.range(tw.ceil_div(X.shape[0], ROWS)):
        turn(X.tile(TILE, (m, 0)), first, Y.tile(TILE, (m, 0)))
        tw.barrier()
        turn(X.tile(TILE, (m, 0)), second, Z.tile(TILE, (m, 0)))
        tw.barrier()


@tw.kernel(X="M N", Y="M N", Z="M N")
def in_a_loop_that_is_open_at_its_end(X, Y, Z):
    first, second = tw.shared(TILE, X.dtype), tw.shared(TILE, X.dtype)
    tw.block_index(1)
    for m in tw.range(tw.ceil_div(X.shape[0], ROWS)):
        turn(X.tile(TILE, (m, 0)), first, Y.tile(TILE, (m, 0)))
        tw.barrier()
        turn(X.tile(TILE, (m, 0)), second, Z.tile(TILE, (m, 0)))


@tw.kernel(X="M N", Y="M N", Z="M N")
def carried_over(X, Y, Z):
    first, second = tw.shared(TILE, X.dtype), tw.shared(TILE, X.dtype)
    tw.block_index(1)
    tw.copy(X.tile(TILE, (0, 0)), first, threads=64)
    tw.barrier()
    for m in tw.range(tw.ceil_div(X.shape[0], ROWS)):
        tw.copy(first, Y.tile(TILE, (m, 0)), threads=tw.Layout((8, 8), (1, 8)))
        tw.barrier()
        turn(X.tile(TILE, (m, 0)), second, Z.tile(TILE, (m, 0)))
        tw.barrier()


def in_the_background(waits: int) -> Callable[..., Any]:
    @tw.kernel(X="M N", Y="M N", Z="M N")
    def background(X, Y, Z):
        first, second = tw.shared(TILE, X.dtype), tw.shared(TILE, X.dtype)
        at = (tw.block_index(1), 0)
        tw.copy(X.tile(TILE, at), first, threads=64)
        tw.barrier()
        tw.copy(first, Y.tile(TILE, at), threads=tw.Layout((8, 8), (1, 8)))
        tw.barrier()
        tw.copy_async(X.tile(TILE, at), first, threads=(4, 16))
        tw.async_commit()
        tw.async_wait(waits)
        tw.barrier()
        turn(X.tile(TILE, at), second, Z.tile(TILE, at))
        tw.async_wait(0)

    return background


def in_turns(at_once: bool) -> Callable[..., Any]:
    """There are two groups; the second arrives two barriers later, until both have arrived equally often."""
    half, others = (ROWS // 2, COLUMNS), tw.Layout((8, 8), (1, 8))
    meet = partial(tw.role_barrier, 1, threads=128)

    @tw.kernel(X="M N", Y="M N", Z="M N")
    def groups(X, Y, Z):
        first, second = tw.shared(TILE, X.dtype), tw.shared(TILE, X.dtype)
        block = tw.block_index(1)
        with tw.role(warps=2, groups=2) as g:
            with tw.when(g == 1):
                meet()
                meet()
            for _ in tw.range(2):
                tw.copy(X.tile(half, (2 * block + g, 0)), first.tile(half, (g, 0)), threads=64)
                meet()
                tw.copy(first.tile(half, (g, 0)), Y.tile(half, (2 * block + g, 0)), threads=others)
                meet()
            with tw.when(g == (0 if at_once else 2)):
                meet()
                meet()
            meet()
            tw.copy(X.tile(half, (2 * block + g, 0)), second.tile(half, (1 - g, 0)), threads=64)
            meet()
            tw.copy(second.tile(half, (1 - g, 0)), Z.tile(half, (2 * block + g, 0)), threads=others)
            with tw.when(g == (2 if at_once else 0)):
                meet()
                meet()

    return groups


def traced(kernel: Any, rows: int = 3 * ROWS) -> Kernel:
    return kernel.trace(*(tw.like("f32", rows, COLUMNS) for _ in range(3)))


def ran(kernel: Kernel, rows: int = 3 * ROWS, check: bool = True) -> tuple[Report, dict[str, np.ndarray]]:
    rng = np.random.default_rng(rows)
    x = rng.standard_normal((rows, COLUMNS)).astype(np.float32)
    arrays = {"X": x, "Y": np.full_like(x, np.nan), "Z": np.full_like(x, np.nan)}
    return run(kernel, arrays, check=check), arrays


def placed(kernel: Kernel, **places: int) -> Kernel:
    """Return the kernel with other places of its shared tensors."""
    return rewrite_kernel(
        kernel,
        lambda op, _: (replace(op, at=places[op.result.name]),) if isinstance(op, Shared) else None,
    )


def without(kernel: Kernel, kind: type, number: int) -> Kernel:
    """Return the kernel without one of its operations of a kind."""
    lost = [op for op in kernel.walk() if isinstance(op, kind)][number]
    return rewrite_kernel(kernel, lambda op, _: () if op is lost else None)


def then_a_box(fence: bool, box_first: bool = False) -> Callable[..., Any]:
    @tw.kernel(X="M N", Y="M N", Z="M N")
    def boxes(X, Y, Z):
        at = (tw.block_index(1), 0)
        first, second = tw.shared(TILE, X.dtype, swizzle=128), tw.shared(TILE, X.dtype, swizzle=128)
        full = tw.hopper.mbarrier(1, arrivals=1)
        if not box_first:
            turn(X.tile(TILE, at), first, Y.tile(TILE, at))
        if fence:
            tw.hopper.fence_async()
        tw.barrier()
        with tw.role(warps=1):
            tw.hopper.arrive(full[0], expect_bytes=BYTES)
            tw.hopper.tma_load(X.tile(TILE, at), second, full[0])
        tw.hopper.wait(full[0], 0)
        tw.copy(second, Z.tile(TILE, at), threads=64)
        if box_first:
            tw.barrier()
            turn(X.tile(TILE, at), first, Y.tile(TILE, at))

    return boxes


SHARING = {
    "straight": one_after_another,
    "loop": in_a_loop,
    "background": in_the_background(0),
    "box": then_a_box(True),
    "turns": in_turns(at_once=True),
}
APART = {
    "no barrier": without_a_barrier,
    "no barrier at the end of a turn": in_a_loop_that_is_open_at_its_end,
    "carried over": carried_over,
    "still in flight": in_the_background(1),
    "no fence": then_a_box(False),
    "turns that are not over": in_turns(at_once=False),
}


@pytest.mark.parametrize("case", SHARING)
def test_lives_that_do_not_meet_share_memory(case: str) -> None:
    kernel = traced(SHARING[case])
    planned, notes = plan_shared(kernel)
    assert kernel.shared_bytes - planned.shared_bytes == BYTES
    assert notes == (
        "first, second share the same bytes of shared memory: a barrier separates their uses",
        f"{planned.shared_bytes} bytes of shared memory instead of {kernel.shared_bytes}",
    )
    assert print_kernel(parse_kernel(print_kernel(planned))) == print_kernel(planned)
    report, arrays = ran(planned)
    assert report.findings == ()
    expected = ran(kernel)[1]
    for name in ("Y", "Z"):
        np.testing.assert_array_equal(arrays[name], expected[name])
    text = cuda.emit(kernel, CUDA.architecture("sm_90a"))
    assert text.shared_bytes in (BYTES, BYTES + 8)
    assert set(notes) <= set(text.notes)


@pytest.mark.parametrize("case", APART)
def test_lives_that_may_meet_share_nothing(case: str) -> None:
    kernel = traced(APART[case])
    assert plan_shared(kernel) == (kernel, ())


@pytest.mark.parametrize("case", APART)
def test_the_reference_finds_a_plan_that_lets_them_meet(case: str) -> None:
    kernel = traced(APART[case])
    assert ran(kernel)[0].findings == ()
    report = ran(placed(kernel, first=0, second=0))[0]
    assert report.findings, "the plan is wrong, and nothing was found"
    assert ran(placed(kernel, first=0, second=BYTES))[0].findings == ()


@pytest.mark.parametrize("case", SHARING)
def test_every_barrier_of_a_plan_is_needed(case: str) -> None:
    planned, _ = plan_shared(traced(SHARING[case]))
    count = sum(isinstance(op, Barrier) for op in planned.walk())
    for number in range(count):
        broken = without(planned, Barrier, number)
        assert ran(broken)[0].findings, f"barrier {number} is gone, and nothing was found"


def test_the_engines_beside_the_threads_leave_memory_to_nobody() -> None:
    kernel = traced(then_a_box(True, box_first=True))
    assert plan_shared(kernel) == (kernel, ())


def test_a_missing_fence_is_found_across_tensors() -> None:
    planned, _ = plan_shared(traced(then_a_box(True)))
    assert {finding.kind for finding in ran(without(planned, FenceAsync, 0))[0].findings} == {Kind.PROXY}


def test_what_another_tensor_left_is_no_value() -> None:
    kernel = traced(carried_over)
    found = ran(placed(kernel, first=0, second=BYTES // 2))[0].findings
    assert {finding.kind for finding in found} == {Kind.UNWRITTEN}
    assert "second, which lies in the same shared memory, was written here last" in str(found[0])


def test_tensors_that_share_memory_hold_the_same_bytes() -> None:
    _, arrays = ran(placed(traced(carried_over), first=0, second=0), check=False)
    np.testing.assert_array_equal(arrays["Y"][ROWS : 2 * ROWS], arrays["X"][:ROWS])


def test_a_wait_that_is_gone_is_found() -> None:
    planned, _ = plan_shared(traced(SHARING["background"]))
    report, _ = ran(without(planned, AsyncWait, 0))
    assert report.findings


def test_a_place_must_be_aligned() -> None:
    kernel = placed(traced(one_after_another), first=64, second=0)
    [violation] = [str(v) for op in kernel.walk() for v in broken_rules(op)]
    assert "first lies at byte 64; it wants a multiple of its alignment, 128 bytes" in violation
    assert "at=128" in violation


def test_a_kernel_that_fits_only_as_planned_is_legal() -> None:
    big = (256, 128)

    @tw.kernel(X="M N", Y="M N", Z="M N")
    def large(X, Y, Z, *, barrier):
        first, second = tw.shared(big, X.dtype), tw.shared(big, X.dtype)
        at = (tw.block_index(1), 0)
        turn(X.tile(big, at), first, Y.tile(big, at))
        if barrier:
            tw.barrier()
        turn(X.tile(big, at), second, Z.tile(big, at))

    like = [tw.like("f32", 256, 128) for _ in range(3)]
    kernel = large.bind(barrier=True).trace(*like)
    assert kernel.shared_bytes == 2 * 131072
    assert [v for v in cuda.violations(kernel, CUDA.architecture("sm_80")) if v.rule == "shared bytes"] == []
    with pytest.raises(LegalityError, match="262144 bytes of shared memory"):
        large.bind(barrier=False).compile(*like, target="cuda", arch="sm_80")


def test_tensors_of_three_sizes_lie_under_the_largest() -> None:
    @tw.kernel(X="M N", Y="M N", Z="M N")
    def three(X, Y, Z):
        small, large, last = (
            tw.shared((8, 32), X.dtype),
            tw.shared((32, 32), X.dtype),
            tw.shared((8, 32), "f16"),
        )
        at = (tw.block_index(1), 0)
        for held, shape in ((small, (8, 32)), (large, (32, 32)), (last, (8, 32))):
            tw.copy(X.tile(shape, at), held, threads=64)
            tw.barrier()
            tw.copy(held, (Y if held is large else Z).tile(shape, at), threads=tw.Layout((8, 8), (1, 8)))
            tw.barrier()

    kernel = three.trace(*(tw.like("f32", 48, 32) for _ in range(3)))
    planned, _ = plan_shared(kernel)
    assert (kernel.shared_bytes, planned.shared_bytes) == (1024 + 4096 + 512, 4096)
    assert set(layout_shared(planned)[0].values()) == {0}
    report, arrays = ran(planned, 48)
    assert report.findings == ()
    np.testing.assert_array_equal(arrays["Y"][:32], arrays["X"][:32])


def random_program(seed: int) -> Callable[..., Any]:
    """Write three tensors and read them, with barriers and one loop at random places."""
    rng = random.Random(seed)
    steps = []
    for _ in range(4):
        which = rng.randrange(3)
        steps += [(verb, which, rng.random() < 0.85) for verb in ("put", "get")]
    looped = rng.randrange(9), rng.randrange(9)
    layouts = (64, tw.Layout((8, 8), (1, 8)), (4, 16))

    @tw.kernel(X="M N", Y="M N", Z="M N")
    def program(X, Y, Z):
        held = [tw.shared(TILE, X.dtype, name=f"s{n}") for n in range(3)]
        tw.block_index(1)

        def do(some, at):
            for number, (verb, which, barrier) in enumerate(some):
                if verb == "put":
                    tw.copy(X.tile(TILE, (at, 0)), held[which], threads=layouts[which])
                else:
                    place = (Y if which else Z).tile(TILE, (at, 0))
                    tw.copy(held[which], place, threads=layouts[(which + number) % 3])
                if barrier:
                    tw.barrier()

        first, last = min(looped), max(looped)
        do(steps[:first], 0)
        for m in tw.range(tw.ceil_div(X.shape[0], ROWS)):
            do(steps[first:last], m)
        do(steps[last:], 2)

    return program


def test_random_programs_that_are_right_are_right_as_planned() -> None:
    shared = 0
    for seed in range(24):
        kernel = traced(random_program(seed))
        planned, _ = plan_shared(kernel)
        if planned is kernel:
            continue
        report, expected = ran(kernel)
        if report.findings:
            continue
        shared += 1
        report, arrays = ran(planned)
        assert report.findings == (), f"seed {seed}: {report.findings[0]}\n{print_kernel(planned)}"
        for name in ("Y", "Z"):
            np.testing.assert_array_equal(arrays[name], expected[name], err_msg=f"seed {seed}")
    assert shared >= 10, "most programs share nothing"
