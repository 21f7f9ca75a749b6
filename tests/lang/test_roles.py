"""Roles: their regions are watched like branches, and barriers take stages."""

# ruff: noqa: F841

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tilewright as tw

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
        full = tw.mbarrier(2, arrivals=1)
        with tw.role(warps=4):
            for k in tw.range(n):
                stage = tw.let(k % 2)
                tw.arrive(full[stage])
        with tw.role(warps=8):
            for k in tw.range(n):
                stage = tw.let(k % 2)
                tw.wait(full[stage], k // 2 % 2)

    traced = trace(kernel, DECLARED)
    assert ops(traced) == ["mbarrier", "role", "for", "let", "arrive", "role", "for", "let", "wait"]
    assert names(traced) == ["full", "k", "stage", "k_1", "stage_1"]
    assert (traced.threads, broken(traced)) == (384, [])


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        (lambda full: tw.wait(full, 0), "is no stage of a tw.mbarrier; index it"),
        (lambda full: full[2], "stage 2 of 2 barriers"),
        (lambda full: tw.arrive(full[0], each="lane"), "choose 'role' or 'warp'"),
        (lambda full: tw.arrive(full[0.5]), "0.5 of type float is no integer"),
    ],
)
def test_barriers_are_indexed_by_stage(statement: Callable[[Any], None], message: str) -> None:
    def kernel(A, n, alpha):
        statement(tw.mbarrier(2, arrivals=1))

    assert message in refusal(kernel).message
