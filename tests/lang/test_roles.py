"""Regions of roles are watched like branches, and barriers take stages."""

# ruff: noqa: F841

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tilewright as tw
from tilewright.ir.async_ops import Role
from tilewright.ir.verify import violations

from .kernels import broken, names, ops, pointed, trace
from .refused import DECLARED, refusal


def rebound(A, n, alpha):
    x = n + 1
    with tw.role(warps=4):
        x = n + 2


def bound_and_used_after(A, n, alpha):
    with tw.role(warps=4):
        x = 1
    A[x]


@pytest.mark.parametrize("kernel", [rebound, bound_and_used_after])
def test_variables_are_watched(kernel: Callable[..., Any]) -> None:
    error = refusal(kernel)
    assert "inside the role" in error.message
    assert "the new value would hold for the other warps too" in error.message
    assert pointed(error) == "x"


def test_leaving_early_is_refused() -> None:
    def kernel(A, n, alpha):
        with tw.role(warps=4):
            return
        tw.barrier()

    error = refusal(kernel)
    assert error.message.startswith("a traced role is left by return")
    assert pointed(error) == "return"


def test_roles_take_the_warps_in_order_and_may_reuse_names() -> None:
    def kernel(A, n, alpha):
        full = tw.hopper.mbarrier(2, arrivals=1)
        with tw.role(warps=4):
            for k in tw.range(n):
                stage = tw.let(k % 2)
                tw.hopper.arrive(full[stage])
        with tw.role(warps=8):
            for k in tw.range(n):
                stage = tw.let(k % 2)
                tw.hopper.wait(full[stage], k // 2 % 2)

    traced = trace(kernel, DECLARED)
    assert ops(traced) == ["mbarrier", "role", "for", "let", "arrive", "role", "for", "let", "wait"]
    assert names(traced) == ["full", "k", "stage", "k_1", "stage_1"]
    assert (traced.threads, broken(traced)) == (384, [])


def test_a_role_inside_of_a_role_takes_warps_of_that_one() -> None:
    def kernel(A, n, alpha):
        with tw.role(warps=4, registers=40), tw.role(warps=1):
            tw.hopper.bulk_wait()
        with tw.role(warps=8, registers=232):
            with tw.role(warps=3):
                tw.hopper.bulk_wait()
            with tw.role(warps=5), tw.role(warps=2):
                tw.hopper.bulk_wait()

    traced = trace(kernel, DECLARED)
    roles = [(op.first, op.count) for op in traced.walk() if isinstance(op, Role)]
    assert roles == [(0, 4), (0, 1), (4, 8), (0, 3), (3, 5), (0, 2)]
    assert (traced.threads, broken(traced)) == (384, [])


def test_variables_are_watched_in_inner_roles() -> None:
    def kernel(A, n, alpha):
        with tw.role(warps=4):
            x = n + 1
            with tw.role(warps=1):
                x = n + 2

    error = refusal(kernel)
    assert "inside the role" in error.message
    assert pointed(error) == "x"


def test_leaving_an_inner_role_is_refused() -> None:
    def kernel(A, n, alpha):
        with tw.role(warps=4), tw.role(warps=1):
            return

    assert refusal(kernel).message.startswith("a traced role is left by return")


def inner(*counts: int, registers: int | None = None) -> list[tuple[str, str, str]]:
    def kernel(A, n, alpha):
        with tw.role(warps=4):
            for count in counts:
                with tw.role(warps=count, registers=registers):
                    pass

    return [(v.rule, v.message, v.nearest) for v in violations(trace(kernel, DECLARED))]


@pytest.mark.parametrize(
    ("counts", "message", "nearest"),
    [
        ((5,), "5 warps from warp 0 on; the role around it has 4", "tw.role(warps=4)"),
        ((1, 4), "4 warps from warp 1 on; the role around it has 4", "tw.role(warps=3)"),
        ((4, 1), "1 warps from warp 4 on; the role around it has 4", "tw.role(warps=5) around it"),
    ],
)
def test_inner_roles_must_fit(counts: tuple[int, ...], message: str, nearest: str) -> None:
    assert inner(*counts) == [("role", message, nearest)]


def test_inner_roles_set_no_registers() -> None:
    message = "registers=40 of a nested role; whole warpgroups set them together"
    assert inner(4, registers=40) == [("registers", message, "registers=40 of the outermost role")]


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        (
            lambda full: tw.hopper.wait(full, 0),
            "nearest legal choice: one stage of a tw.hopper.mbarrier: full[stage]",
        ),
        (lambda full: full[2], "stage 2 of 2 barriers"),
        (lambda full: tw.hopper.arrive(full[0], each="lane"), "choose 'role' or 'warp'"),
        (lambda full: tw.hopper.arrive(full[0.5]), "0.5 of type float is not an integer"),
    ],
)
def test_barriers_are_indexed_by_stage(statement: Callable[[Any], None], message: str) -> None:
    def kernel(A, n, alpha):
        statement(tw.hopper.mbarrier(2, arrivals=1))

    assert message in refusal(kernel).message
