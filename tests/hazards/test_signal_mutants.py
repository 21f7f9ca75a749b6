"""Every signal, ticket, wait, reset, fence and barrier between blocks is needed: each mutant is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.targets import signals

from tilewright.targets.reference import run

from .mutate import FoundError, mutants, names, outcome

KINDS = ("signal", "ticket", "await_", "reset", "barrier", "fence_async", "read_index")

rng = np.random.default_rng(5)


def numbers(*shape: int) -> np.ndarray[Any, Any]:
    return rng.standard_normal(shape).astype(np.float32)


def turnstile() -> tuple[Any, dict[str, Any], Callable[[], bool]]:
    a, b, c = numbers(40, 90), numbers(20, 90), np.full((40, 20), np.float32(np.nan))
    return signals.SMALL_TURNSTILE, {"A": a, "B": b, "C": c}, lambda: np.allclose(c, a @ b.T, atol=1e-4)


def last_block() -> tuple[Any, dict[str, Any], Callable[[], bool]]:
    x, y = numbers(1000), np.full(1, np.float32(np.nan))
    return signals.last_block_sum, {"X": x, "Y": y}, lambda: np.allclose(y[0], x.sum(), atol=1e-4)


def hand_over() -> tuple[Any, dict[str, Any], Callable[[], bool]]:
    x, y = numbers(128), np.full(128, np.float32(np.nan))
    return signals.hand_over, {"X": x, "Y": y}, lambda: (y == np.append(x[:64], x[64:] + x[:64])).all()


def around() -> tuple[Any, dict[str, Any], Callable[[], bool]]:
    x, y = numbers(192), np.full(192, np.float32(np.nan))
    return signals.around.bind(blocks=3), {"X": x, "Y": y}, lambda: (y == x + np.roll(x, -64)).all()


def by_tma() -> tuple[Any, dict[str, Any], Callable[[], bool]]:
    x, y = numbers(64).astype(np.float16), np.full((16, 64), np.float16(np.nan))
    return signals.hand_over_by_tma, {"X": x, "Y": y}, lambda: (y == x).all()


SUBJECTS = (turnstile, last_block, hand_over, around, by_tma)

ONE_TURN = "scratch is read once, and a barrier comes before the ticket anyway"
ONE_WARP = "the block has one warp, which waits itself: another barrier, or none, comes before its next use"
NOTHING_LEFT = "nobody touches again what the block has read; its first warp has seen what is reset"
BOTH_BEFORE = "both come before the copy by TMA, in the warp that issues it"

EQUIVALENT: dict[str, dict[str, str]] = {
    "turnstile": {},
    "last_block": {"barrier 1: removed": ONE_TURN},
    "hand_over": {},
    "around": {"barrier 2: removed": NOTHING_LEFT},
    "by_tma": {
        "barrier 0: removed": ONE_WARP,
        "barrier 2: removed": ONE_WARP,
        "barrier 2: after fence_async 0": ONE_WARP,
        "fence_async 0: after arrive 0": BOTH_BEFORE,
    },
}
"""Mutants that compute the same without a hazard, and why."""


@pytest.mark.parametrize("subject", SUBJECTS)
def test_every_mutant_is_found_or_equivalent_for_a_named_reason(subject, golden) -> None:
    bound, arrays, is_right = subject()
    kernel = bound.trace(*arrays.values())
    assert not run(kernel, arrays).findings
    assert is_right()
    found = {}
    for mutant in mutants(kernel, [name for name in names(kernel) if name.split()[0] in KINDS]):
        arrays = subject_arrays(arrays)
        first: list[str] = []

        def execute(changed: Any, arrays: Any = arrays, first: list[str] = first) -> Any:
            try:
                return run(changed, arrays)
            except FoundError as kind:
                first.append(str(kind))
                raise

        said = outcome(mutant, execute, is_right)
        found[mutant.name] = first[-1] if said == "finding" else said
    survived = {name for name, how in found.items() if how == "survived"}
    equivalent = EQUIVALENT[subject.__name__]
    width = max(map(len, found))
    lines = [
        f"{name:{width}}  {'equivalent: ' + equivalent.get(name, '?') if name in survived else how}"
        for name, how in found.items()
    ]
    golden("\n".join(lines) + "\n", f"signal_mutants_{subject.__name__}.txt")
    assert survived == set(equivalent)


def subject_arrays(arrays: dict[str, Any]) -> dict[str, Any]:
    """Return the same arrays; results hold poison again."""
    last = list(arrays.values())[-1]
    last[...] = np.nan
    return arrays
