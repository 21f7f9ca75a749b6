"""Small random kernels without barriers: threads and background copies share a ring in memory."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tilewright as tw
from tilewright.dtypes import f32
from tilewright.ir.kernel import Kernel
from tilewright.lang.program import Program
from tilewright.lang.specs import TensorSpec

ELEMS, THREADS = 64, 64
SPREADS = {
    "one each": tw.blocked((ELEMS,), (THREADS,)),
    "two each": tw.blocked((ELEMS,), (THREADS // 2,)),
}
MAPS = ("one each", "two each")


@dataclass(frozen=True)
class Step:
    """One statement.

    Args:
        what: ``"write"``, ``"read"``, ``"start"`` a copy, ``"loop"``, ``"when"``.
        tensor: which ring.
        slot: which slot; in a loop relative to its turn, if ``turns``; of ``"when"`` the parity of its turns.
        turns: whether the slot turns with the loop.
        spread: which thread has what.
        body: of a loop or branch.
    """

    what: str
    tensor: int = 0
    slot: int = 0
    turns: bool = False
    spread: str = "one each"
    body: tuple[Step, ...] = ()


@dataclass(frozen=True)
class Small:
    """A program: rings of some slots, and statements."""

    stages: tuple[int, ...]
    steps: tuple[Step, ...]


def random_program(seed: int, branches: bool) -> Small:
    """Draw a program with a loop, and statements before and after it."""
    rng = random.Random(seed)
    stages = tuple(rng.randint(1, 3) for _ in range(rng.randint(1, 2)))
    inner = _steps(rng, stages, rng.randint(2, 4), in_loop=True)
    for at in range(len(inner)):
        if branches and rng.random() < 0.5:
            inner[at] = Step("when", slot=rng.randrange(2), body=(inner[at],))
    if rng.random() < 0.3:
        again = tuple(_steps(rng, stages, rng.randint(1, 3), in_loop=True))
        inner.insert(rng.randint(0, len(inner)), Step("loop", body=again))
    around = [_steps(rng, stages, rng.randint(0, 2), in_loop=False) for _ in range(2)]
    return Small(stages, (*around[0], Step("loop", body=tuple(inner)), *around[1]))


def _steps(rng: random.Random, stages: Sequence[int], count: int, in_loop: bool) -> list[Step]:
    found = []
    for _ in range(count):
        tensor = rng.randrange(len(stages))
        what = rng.choices(("write", "read", "start"), (3, 4, 3))[0]
        slot, turns = rng.randrange(stages[tensor]), in_loop and rng.random() < 0.8
        found.append(Step(what, tensor, slot, turns, rng.choice(MAPS)))
    return found


def _perform(steps: Sequence[Step], X: Any, rings: Sequence[Any], sizes: Sequence[Any], turn: Any) -> None:
    for step in steps:
        _perform_one(step, X, rings, sizes, turn)


def _perform_one(step: Step, X: Any, rings: Sequence[Any], sizes: Sequence[Any], turn: Any) -> None:
    """Execute a statement; ``sizes`` are the turns of the next loop, and of those within it."""
    spread = SPREADS[step.spread]
    if step.what == "loop":
        for k in tw.range(sizes[0]):
            _perform(step.body, X, rings, sizes[1:], k)
        return
    if step.what == "when":
        with tw.when(turn % 2 == step.slot):
            _perform(step.body, X, rings, sizes, turn)
        return
    ring = rings[step.tensor]
    place = ring[(turn + step.slot) % ring.shape[0] if step.turns else step.slot]
    if step.what == "write":
        tw.copy(tw.fragment(spread, tw.f32, fill=1), place)
    elif step.what == "read":
        tw.load(place, spread)
    else:
        tw.copy_async(X.tile((ELEMS,), (turn,)), place, threads=spread)


def build(program: Small) -> Kernel:
    """Build the kernel with automatic barriers; all tensors are written before it begins."""

    def small(X, n, m):
        rings = [
            tw.shared((stages, ELEMS), tw.f32, name=f"ring{i}") for i, stages in enumerate(program.stages)
        ]
        for ring in rings:
            for slot in range(ring.shape[0]):
                tw.copy(tw.fragment(SPREADS["one each"], tw.f32, fill=0), ring[slot])
        _perform(program.steps, X, rings, (n, m), 0)

    spec = TensorSpec(f32, 1, 0, (16,), (1,), 16, False)
    return Program(small, {"X": "N", "n": int, "m": int}, sync="auto").trace({"X": spec})
