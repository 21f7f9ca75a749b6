"""One copy has four engines: their rules, and a chosen engine prints and reads back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir.copies import ENGINES, Copy, Matrices
from tilewright.ir.kernel import Kernel
from tilewright.ir.verify import broken_rules
from tilewright.targets import cuda


@tw.kernel(X="M N", Y="M N")
def moves(X, Y, *, mma):
    """One copy by each engine, and a barrier."""
    held, other = (tw.shared((64, 64), X.dtype, swizzle=128) for _ in range(2))
    full = tw.hopper.mbarrier(1, arrivals=1)
    tw.copy(X.tile((64, 64), (0, 0)), held, threads=128)
    tw.copy_async(X.tile((64, 64), (0, 0)), other, threads=128)
    tw.hopper.tma_load(X.tile((64, 64), (0, 0)), held, full[0])
    tw.hopper.tma_store(held, Y.tile((64, 64), (0, 0)))
    tw.load(held, tw.operand_a(mma, 64))


def traced() -> Kernel:
    x = np.zeros((64, 64), np.float16)
    return moves.trace(x, x.copy(), mma=tw.TiledMma(tw.atoms.MMA_F16, (4, 1), (1, 8)))


def copies(kernel: Kernel) -> list[Copy]:
    return [op for op in kernel.walk() if isinstance(op, Copy)]


def test_the_verbs_say_the_engine_and_how_it_completes() -> None:
    said = [(op.verb, op.engine, op.completion) for op in copies(traced())]
    assert said == [
        ("copy", None, "none"),
        ("copy_async", "async", "group"),
        ("tma_load", "bulk", "barrier"),
        ("tma_store", "bulk", "group"),
        ("copy", None, "none"),
    ]


def test_the_pass_chooses_what_was_left_open_and_the_choice_reads_back() -> None:
    lowered, _ = cuda.lower(traced(), cuda.architecture("sm_90a"))
    assert [op.engine for op in copies(lowered)] == ["direct", "async", "bulk", "bulk", "matrix"]
    again = tw.ir.parse_kernel(tw.ir.print_kernel(lowered))
    assert [op.matrices for op in copies(again)] == [op.matrices for op in copies(lowered)]
    chosen = copies(again)[-1].matrices
    assert isinstance(chosen, Matrices)
    assert (chosen.count, chosen.transposed, chosen.word) == (4, False, 2)
    assert chosen.lanes[0].extent == 8


WRONG: dict[str, tuple[int, dict[str, Any], str, str]] = {
    "no such engine": (0, {"engine": "carrier"}, "unknown engine 'carrier'", " or ".join(ENGINES)),
    "a group of direct copies": (
        *(0, {"engine": "direct", "completion": "group"}),
        *("the direct engine completes by none, not by group", "completion='none'"),
    ),
    "asynchronous, at once": (
        *(1, {"completion": "none"}),
        *("the async engine completes by group, not by none", "completion='group'"),
    ),
    "matrices from global memory": (
        *(0, {"engine": "matrix"}),
        *("matrices move between shared memory and registers, not from global to shared", "engine='direct'"),
    ),
    "a load that nobody can wait for": (
        *(2, {"barrier": None}),
        *("no barrier for a copy that completes by barrier", "a tw.hopper.mbarrier"),
    ),
    "an asynchronous sum": (
        *(1, {"reduction": "add"}),
        *("the async engine reduces nothing from global into shared", "a target in global memory"),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_an_engine_does_not_take_is_refused(name: str) -> None:
    number, changes, message, nearest = WRONG[name]
    wrong = replace(copies(traced())[number], **changes)
    found = [violation for violation in broken_rules(wrong) if violation.message.startswith(message)]
    assert len(found) == 1, [violation.message for violation in broken_rules(wrong)]
    assert found[0].nearest.startswith(nearest)
