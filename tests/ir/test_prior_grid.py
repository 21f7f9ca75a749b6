"""A kernel that may begin early accesses global memory only after the wait, and all of its blocks wait."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import LegalityError
from tilewright.runtime.arrays import describe
from tilewright.runtime.binding import spec_of

from .broken import found, said

TILE = (8, 8)


def move(source, target):
    tw.copy(source.tile(TILE, (0, 0)), target.tile(TILE, (0, 0)), threads=(8, 4))


def messages(author) -> list[str]:
    return [message for rule, message, _ in said(author) if rule == "prior_grid_wait"]


def test_nothing_is_asked_of_kernels_that_do_not_wait() -> None:
    def author(A, B):
        move(A, B)
        tw.hopper.launch_dependents()

    assert messages(author) == []


def test_after_the_wait_all_is_allowed_and_before_it_what_is_the_blocks_own() -> None:
    def author(A, B, n):
        staged = tw.shared(TILE, A.dtype)
        tw.hopper.mbarrier(2, arrivals=1)
        tw.copy(tw.fragment(tw.blocked(TILE, (8, 4), (1, 0)), tw.f16, 1), staged)
        tw.hopper.launch_dependents()
        tw.hopper.prior_grid_wait()
        for _ in tw.range(n):
            move(A, B)
            tw.hopper.prior_grid_wait()
        with tw.when(n > 3):
            move(B, A)

    assert messages(author) == []


def test_reads_and_writes_before_the_wait_are_named() -> None:
    def author(A, B, n):
        kept = tw.workspace((8, 8), tw.f32)
        x = tw.load(A.tile(TILE, (0, 0)).partition((8, 4)))
        for _ in tw.range(n):
            tw.copy(x, kept)
        tw.hopper.prior_grid_wait()
        tw.copy(x, B.tile(TILE, (0, 0)))

    assert messages(author) == [
        "copy reads A before the wait for the previous grid, which may not have written it yet",
        "copy writes kept before the wait for the previous grid, which may not have read it yet",
    ]


def test_bulk_copies_count() -> None:
    def author(A, B):
        sA = tw.shared((64, 64), A.dtype, swizzle=128)
        full = tw.hopper.mbarrier(1, arrivals=1)
        tw.hopper.tma_load(A.tile((64, 64), (0, 0)), sA, full[0])
        tw.hopper.tma_store(sA, B.tile((64, 64), (0, 0)))
        tw.hopper.prior_grid_wait()

    assert [message.split(" before")[0] for message in messages(author)] == [
        "tma_load reads A",
        "tma_store writes B",
    ]


def test_every_role_waits_for_itself() -> None:
    def author(A, B):
        sA = tw.shared(TILE, A.dtype)
        with tw.role(warps=1):
            tw.hopper.prior_grid_wait()
            tw.copy(A.tile(TILE, (0, 0)), sA, threads=(8, 4))
        with tw.role(warps=1):
            tw.copy(sA, B.tile(TILE, (0, 0)), threads=(8, 4))

    assert [message.split(" before")[0] for message in messages(author)] == ["copy writes B"]


@pytest.mark.parametrize("way", ["branch", "loop"])
def test_no_block_may_pass_the_wait_by(way: str) -> None:
    def author(A, B, n):
        if way == "branch":
            with tw.when(n > 3):
                tw.hopper.prior_grid_wait()
                move(A, B)
        else:
            for _ in tw.range(n):
                tw.hopper.prior_grid_wait()
                move(A, B)

    [(rule, message, nearest)] = said(author)
    assert rule == "prior_grid_wait"
    assert "may skip this wait" in message
    assert nearest == "outside of the loop or branch"


def test_it_points_at_the_authors_line() -> None:
    def author(A, B):
        move(A, B)
        tw.hopper.prior_grid_wait()

    for violation in found(author):
        assert violation.location is not None
        assert "tw.copy(source.tile" in str(LegalityError("author", "any", [violation]))


@pytest.mark.parametrize("target", ["reference", "cuda"])
def test_no_target_compiles_it(target: str) -> None:
    @tw.kernel(X="N")
    def early(X):
        part = X.tile((64,), (0,))
        x = tw.load(part.partition((32,)))
        tw.hopper.prior_grid_wait()
        tw.copy(x, part)

    with pytest.raises(LegalityError, match="copy reads X before the wait for the previous grid"):
        early.compile(spec_of(describe(np.zeros(64))), target=target, **_arch(target))


def test_an_architecture_without_dependent_launches_refuses_it() -> None:
    @tw.kernel(X="N")
    def waits(X):
        tw.hopper.prior_grid_wait()

    with pytest.raises(LegalityError, match="sm_90a"):
        waits.compile(spec_of(describe(np.zeros(64))), target="cuda", arch="sm_80")


def _arch(target: str) -> dict[str, str]:
    return {"arch": "sm_90a"} if target == "cuda" else {}
