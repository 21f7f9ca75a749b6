"""A problem, carried out: arrays between canaries, every element compared with what the flow computes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from tests.movers.random_movers import Array
from tests.problems.drawing import Problem

import tilewright as tw
from tilewright.checking.compare import Accumulation
from tilewright.checking.flows import compare_flow
from tilewright.checking.sample import normal
from tilewright.errors import ScheduleError, TilewrightError
from tilewright.runtime.device_array import DeviceArray


@dataclass(frozen=True)
class Outcome:
    """What came of a problem.

    Args:
        wrong: what is wrong; empty if nothing is.
        schedule: the one that ran; None if none did.
        refused: why a schedule that was drawn is refused; empty if it ran.
        elements: how many were compared.
    """

    wrong: str = ""
    schedule: tw.Schedule | None = None
    refused: str = ""
    elements: int = 0

    def kinds(self, problem: Problem) -> Counter[str]:
        """What it counts for."""
        group = problem.group
        found = [f"kernel {group.subject}", f"dtype {group.kind}", f"layout {group.layout[:2]}"]
        found.append("schedule chosen" if group.schedule is None else "schedule drawn")
        if self.schedule is not None:
            how = self.schedule
            found += [f"staging {how.staging}", f"roles {how.roles}", f"epilogue {how.epilogue}"]
            found.append(f"cluster {how.cluster[0]} x {how.cluster[1]}")
        if self.refused:
            found.append("refused")
        return Counter(found)


def carry_out(problem: Problem, target: str) -> Outcome:
    """Run a problem on a target, and compare."""
    group = problem.group
    rng = np.random.default_rng(problem.number)
    arrays = {name: _filled(problem, name, rng) for name, _ in problem.places}
    numbers = {name: float(rng.uniform(0.5, 2)) for name in group.about.numbers}
    before = {name: made.array.copy() for name, made in arrays.items()}
    try:
        ran = _launched(problem, arrays, numbers, target)
    except ScheduleError as error:
        return Outcome("" if group.schedule else f"{error}", refused=str(error))
    except TilewrightError as error:
        return Outcome(f"{type(error).__name__}: {error}")
    if ran.target != target:
        return Outcome(f"it ran on {ran.target}")
    if touched := [name for name, made in arrays.items() if not made.is_whole_around()]:
        return Outcome(f"what lies around {', '.join(touched)} was written", ran.schedule)
    stored = {name: arrays[name].array for name in group.about.stored}
    read = {name: array for name, array in before.items() if name not in stored or name == "C"}
    for name, array in before.items():
        if name not in stored and array.tobytes() != arrays[name].array.tobytes():
            return Outcome(f"{name}, which is read alone, was written", ran.schedule)
    schedule = ran.schedule
    how = Accumulation.of(schedule.atom, schedule.promote * schedule.block_k or None)
    flow = group.bound.flow(*before.values(), *numbers.values())
    found = compare_flow(flow, stored, read, numbers, how)
    return Outcome("" if found.ok else str(found), schedule, elements=found.size)


def _launched(problem: Problem, arrays: dict[str, Array], numbers: dict[str, float], target: str) -> Any:
    """Launch the kernel; what it wrote is in the arrays."""
    bound = problem.group.bound
    if target != "cuda":
        return bound(*(made.array for made in arrays.values()), *numbers.values(), target=target)
    there = {name: (DeviceArray.of(made.buffer), made) for name, made in arrays.items()}
    given = [
        DeviceArray(
            SimpleNamespace(address=buffer.memory.address + made.offset, index=buffer.memory.index),
            made.array.shape,
            made.strides,
            tw.dtype(made.array.dtype),
        )
        for buffer, made in there.values()
    ]
    ran = bound(*given, *numbers.values())
    for buffer, made in there.values():
        made.buffer[...] = buffer.host()
    return ran


def _filled(problem: Problem, name: str, rng: np.random.Generator) -> Array:
    """An array between canaries; what is only stored holds what is wrong."""
    group, extents = problem.group, dict(problem.extents)
    kernel = group.about.kernel
    dims = next(p.dims for p in kernel.program.parameters if p.name == name) or ()
    shape, kind = tuple(extents[dim] for dim in dims), group.dtype(name)
    made = Array(shape, dict(problem.places)[name], kind)  # type: ignore[arg-type]
    if name in group.about.stored and not (group.subject == "scaled" and name == "C"):
        made.array[...] = np.nan if kind.is_float else 99
    elif problem.integers:
        made.array[...] = rng.integers(-3, 4, shape).astype(kind.numpy)
    else:
        made.array[...] = normal(rng, shape, kind)
    return made
