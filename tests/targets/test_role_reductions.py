"""Reductions and redistributions across the warps of a role, which meet at their own numbered barrier."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import HazardError, TraceError
from tilewright.ir import verify
from tilewright.ir.async_ops import RoleBarrier
from tilewright.passes.rewrite import rewrite_kernel
from tilewright.runtime.nvrtc import FATAL, compile_text
from tilewright.targets import cuda
from tilewright.targets.reference import run

from .poisoned import Poisoned, attempt

pytestmark = pytest.mark.in_turns(3)

SPREAD = tw.TiledMma(tw.atoms.MMA_F16, (1, 4), (2, 2)).c()  # four warps along N
OTHER = tw.raked((32, 64), (4, 32), 2, 1)  # four warps along M
WARPS = 4


@tw.kernel(X="P M N", S="P M Q", L="P Q N", Y="P M N")
def in_roles(X, S, L, Y, *, numbers, turns):
    """Roles take different tiles: sums of rows, largest of columns, another map."""
    n = tw.block_index(1)
    for role, number in enumerate(numbers):
        with tw.role(warps=WARPS):
            across, along = tw.shared((32, 4), tw.f32), tw.shared((4, 64), tw.f32)
            moving = tw.shared((32, 64), tw.f32)
            for turn in tw.range(turns + role):  # no two roles run in step
                at = role + len(numbers) * tw.minimum(turn, turns - 1)
                x = tw.load(X[at].tile((32, 64), (n, 0)), like=SPREAD)
                named = {} if number is None else {"barrier": number}
                tw.copy(tw.reduce_sum(x, 1, scratch=across, **named), S[at].tile((32, 1), (n, 0)))
                moved = tw.redistribute(x, OTHER, scratch=moving, **named)
                tw.copy(moved * 2.0, Y[at].tile((32, 64), (n, 0)))
                largest = tw.reduce_max(moved, 0, scratch=along, **named)
                tw.copy(largest, L[at].tile((1, 64), (n, 0)))


def arguments(roles: int, turns: int) -> list[Poisoned]:
    tiles = roles * turns
    made = [
        Poisoned(shape, tw.f32)
        for shape in ((tiles, 32, 64), (tiles, 32, 1), (tiles, 1, 64), (tiles, 32, 64))
    ]
    made[0].array[...] = np.random.default_rng(roles).integers(-9, 10, made[0].array.shape)
    return made


@pytest.mark.parametrize("target", ["reference", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("numbers", [(1,), (1, 2), (7, 15, 3)], ids=str)
def test_every_role_reduces_its_own_tiles(numbers: tuple[int, ...], target: str) -> None:
    turns = 3
    made = arguments(len(numbers), turns)
    attempt(target, in_roles.bind(numbers=numbers, turns=turns), made)
    x, sums, largest, moved = (each.array for each in made)
    np.testing.assert_array_equal(sums, x.sum(axis=2, keepdims=True))
    np.testing.assert_array_equal(largest, x.max(axis=1, keepdims=True))
    np.testing.assert_array_equal(moved, 2 * x)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_the_text_compiles_and_names_the_barriers(arch: str) -> None:
    kernel = in_roles.trace(*(each.array for each in arguments(2, 3)), numbers=(1, 2), turns=3)
    assert [*verify.violations(kernel), *cuda.violations(kernel, arch)] == []
    text = cuda.emit(kernel, arch).text
    for number in (1, 2):  # two for each of three operations
        assert text.count(f"role_barrier<{number}, {32 * WARPS}>();") == 6
    assert "__syncthreads" not in text
    assert not any(code in compile_text(text, arch).log for code in FATAL)


def test_two_roles_that_share_a_number_are_found() -> None:
    made = [each.array for each in arguments(2, 3)]
    report = in_roles.check(*made, numbers=(1, 1), turns=3)
    assert any("let each group of warps name a number of its own" in str(found) for found in report.findings)
    with pytest.raises(HazardError):
        in_roles(*made, numbers=(1, 1), turns=3, target="reference")


@pytest.mark.parametrize("dropped", [0, 2, 4])
def test_a_role_that_does_not_meet_before_it_reads_is_found(dropped: int) -> None:
    made = [each.array for each in arguments(1, 2)]
    kernel = in_roles.trace(*made, numbers=(1,), turns=2)
    barriers = [op for op in kernel.walk() if isinstance(op, RoleBarrier)]
    assert len(barriers) == 6

    def without(op: Any, rewriter: Any) -> Any:
        return () if op is barriers[dropped] else None

    report = run(rewrite_kernel(kernel, without), dict(zip("XSLY", made, strict=True)))
    assert any("race" in str(found) for found in report.findings)
    assert run(kernel, dict(zip("XSLY", made, strict=True))).is_clean


def refusal(call: Any) -> str:
    def kernel(X):
        call(tw.load(X.tile((32, 64), (0, 0)), like=SPREAD), tw.shared((32, 4), tw.f32))

    with pytest.raises(TraceError) as refused:
        tw.kernel(X="M N")(kernel).trace(np.ones((32, 64), np.float32))
    return str(refused.value)


@pytest.mark.parametrize(
    ("barrier", "taken", "message"),
    [
        (None, (), "that no other warps use; nearest legal choice: barrier=1"),
        (None, (1, 2), "that no other warps use; nearest legal choice: barrier=3"),
        (0, (), "barrier=0: the warps of a role"),
        (16, (2,), "nearest legal choice: barrier=1"),
    ],
)
@pytest.mark.parametrize("what", ["reduce", "redistribute"])
def test_without_a_number_the_nearest_free_one_is_named(barrier, taken, message: str, what: str) -> None:
    def call(x, scratch):
        for number in taken:
            tw.role_barrier(number, 32 * WARPS)
        with tw.role(warps=WARPS):
            if what == "reduce":
                tw.reduce_sum(x, 1, scratch=scratch, barrier=barrier)
            else:
                tw.redistribute(x, OTHER, scratch=tw.shared((32, 64), tw.f32), barrier=barrier)

    assert message in refusal(call)


def test_outside_of_a_role_all_threads_of_the_block_meet() -> None:
    said = refusal(lambda x, scratch: tw.reduce_sum(x, 1, scratch=scratch, barrier=1))
    assert "barrier=1 outside of a role; there a barrier is for all threads" in said
    assert "nearest legal choice: no barrier" in said


@pytest.mark.parametrize("what", ["reduce", "redistribute"])
def test_a_wrong_number_is_refused_where_no_warps_meet_too(what: str) -> None:
    def call(x, scratch):
        if what == "reduce":
            tw.reduce_sum(x, 1, barrier=99)
        else:
            tw.redistribute(x, x, barrier=99)

    assert "barrier=99 outside of a role; there a barrier is for all threads" in refusal(call)
