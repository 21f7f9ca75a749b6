"""Run a problem: arrays between canaries, every element compared with the flow's result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
from tests.movers.random_movers import Array
from tests.problems.drawing import WITH_BATCHES, Group, Problem
from tests.problems.partitions import partitions_of, parts_of

import tilewright as tw
from tilewright.checking.compare import Accumulation
from tilewright.checking.flows import compare_flow
from tilewright.checking.sample import normal
from tilewright.errors import LaunchError, ScheduleError, TilewrightError
from tilewright.runtime.gpu_memory import DeviceArray
from tilewright.schedule.fixup import FAN
from tilewright.schedule.question import Splitting
from tilewright.schedule.resources import REDUCTION_CLASSES
from tilewright.schedule.schedule import Schedule


@dataclass(frozen=True)
class Outcome:
    """The outcome of a problem.

    Args:
        wrong: the error in words; empty if results are right.
        schedule: the schedule that ran, or None.
        refused: why a drawn schedule is refused; empty if it ran.
        elements: number of compared elements.
        kinds: the kinds of problem that it counts for.
    """

    wrong: str = ""
    schedule: Schedule | None = None
    refused: str = ""
    elements: int = 0
    kinds: Counter[str] = field(default_factory=Counter)


def carry_out(problem: Problem, target: str) -> Outcome:
    """Run a problem on a target, and compare."""
    group = problem.group
    rng = np.random.default_rng(problem.number)
    arrays = {name: _filled(problem, name, rng) for name, _ in problem.places}
    numbers = {name: float(rng.uniform(0.5, 2)) for name in group.about.numbers}
    before = {name: made.array.copy() for name, made in arrays.items()}
    try:
        ran = _launched(problem, arrays, numbers, target)
    except TilewrightError as error:
        return refused(error, group.schedule)
    extents = dict(problem.extents)
    extents = extents if group.subject in WITH_BATCHES else {**extents, "L": 1}
    schedule, kinds = ran.schedule, Counter(kinds_of(group, ran.schedule, extents))
    if ran.target != target:
        return Outcome(f"it ran on {ran.target}")
    if isinstance(group.schedule, Schedule) and group.partition not in partitions_of(schedule):
        return Outcome(f"its partitions are {partitions_of(schedule)}", schedule)
    if wrong := misplaced(arrays, before, group.about.stored):
        return Outcome(wrong, schedule)
    stored = {name: arrays[name].array for name in group.about.stored}
    read = {name: array for name, array in before.items() if name not in stored or name == "C"}
    how = Accumulation.of(schedule.atom, schedule.promote * schedule.block_k or None)
    flow = group.bound.flow(*before.values(), *numbers.values())
    found = compare_flow(flow, stored, read, numbers, how)
    return Outcome("" if found.ok else str(found), schedule, elements=found.size, kinds=kinds)


def refused(error: TilewrightError, schedule: Schedule | Splitting | None) -> Outcome:
    """Return the outcome of an error: nothing is wrong if the problem is rightly refused.

    Args:
        error: the error.
        schedule: what the problem asks for: a schedule, or a way to split K; None: nothing.
    """
    is_waiting = isinstance(error, LaunchError) and "blocks wait for each other" in str(error)
    if isinstance(schedule, Schedule):  # how many blocks it has follows from the extents
        is_right = is_waiting or isinstance(error, ScheduleError)
    else:
        has_parts = schedule is not None and isinstance(schedule.split_k, int)
        is_right = is_waiting and has_parts and bool(schedule.reduction)
        is_right = is_right and REDUCTION_CLASSES[schedule.reduction].waits
    return Outcome(refused=str(error)) if is_right else Outcome(f"{type(error).__name__}: {error}")


def misplaced(arrays: Mapping[str, Array], before: Mapping[str, Any], stored: tuple[str, ...]) -> str:
    """Return which memory was written wrongly; "" if none."""
    if touched := [name for name, made in arrays.items() if not made.is_whole_around()]:
        return f"memory around {', '.join(touched)} was written"
    read = [name for name in arrays if name not in stored]
    changed = [name for name in read if before[name].tobytes() != arrays[name].array.tobytes()]
    return f"{', '.join(changed)}, which is read alone, was written" if changed else ""


def kinds_of(group: Group, how: Schedule, extents: Mapping[str, int]) -> Iterator[str]:
    """Return the kinds of problem that a problem counts for.

    Args:
        group: what it shares with others.
        how: the schedule that ran.
        extents: L, M, N and K.
    """
    yield from (f"kernel {group.subject}", f"dtype {group.kind}", f"layout {group.layout[:2]}")
    yield "schedule drawn" if isinstance(group.schedule, Schedule) else "schedule chosen"
    yield from (f"staging {how.staging}", f"roles {how.roles}", f"epilogue {how.epilogue}")
    yield f"cluster {how.cluster[0]} x {how.cluster[1]}"
    yield from (f"partition {name}" for name in partitions_of(how))
    if how.split_k != 1:
        yield f"reduction {how.reduction}"
        yield f'split_k="{how.split_k}"' if isinstance(how.split_k, str) else "split_k a number"
        yield from (f"split, K = {depth}" for depth in (0, 1) if extents["K"] == depth)
    if how.split_k not in (1, "stream"):
        parts = parts_of(how, extents)
        count = "one part" if parts == 1 else f"2 to {FAN}" if parts <= FAN else f"more than {FAN}"
        yield f"split into {count}"
        if isinstance(how.split_k, int) and parts < how.split_k:
            yield "fewer steps than parts"


def _launched(problem: Problem, arrays: dict[str, Array], numbers: dict[str, float], target: str) -> Any:
    """Launch the kernel; its results are in the arrays."""
    there = There(arrays, target)
    ran = problem.group.bound(
        *there.given.values(), *numbers.values(), **{} if there.is_gpu else {"target": target}
    )
    there.fetch()
    return ran


class There:
    """Arrays with the memory around them, accessible to a target.

    Args:
        arrays: by name.
        target: the target.
    """

    def __init__(self, arrays: Mapping[str, Array], target: str) -> None:
        self.arrays, self.is_gpu = arrays, target == "cuda"
        self._buffers = {name: DeviceArray.of(made.buffer) for name, made in arrays.items() if self.is_gpu}
        self.given = {name: self._seen(name) if self.is_gpu else made.array for name, made in arrays.items()}

    def _seen(self, name: str) -> DeviceArray:
        """Return the array inside of its buffer."""
        made, memory = self.arrays[name], self._buffers[name].memory
        at = SimpleNamespace(address=memory.address + made.offset, index=memory.index, driver=memory.driver)
        return DeviceArray(at, made.array.shape, made.strides, tw.dtype(made.array.dtype))

    def fetch(self) -> None:
        """Copy the results back."""
        for name, buffer in self._buffers.items():
            self.arrays[name].buffer[...] = buffer.host()


def _filled(problem: Problem, name: str, rng: np.random.Generator) -> Array:
    """Return an array between canaries; results hold wrong values."""
    group, extents = problem.group, dict(problem.extents)
    kernel = group.about.kernel
    dims = next(p.dims for p in kernel.program.parameters if p.name == name) or ()
    shape, kind = tuple(extents[dim] for dim in dims), group.dtype(name)
    made = Array(shape, dict(problem.places)[name], kind)  # type: ignore[arg-type]
    is_poisoned = name in group.about.stored and not (group.subject == "scaled" and name == "C")
    fill(made, rng, "poison" if is_poisoned else "integers" if problem.integers else "normal")
    return made


def fill(made: Array, rng: np.random.Generator, what: str) -> None:
    """Fill an array with ``"poison"``, which is wrong if it stays, ``"integers"`` or ``"normal"``."""
    kind = tw.dtype(made.array.dtype)
    if what == "poison":
        made.array[...] = np.nan if kind.is_float else 99
    elif what == "integers":
        made.array[...] = rng.integers(-3, 4, made.array.shape).astype(kind.numpy)
    else:
        made.array[...] = normal(rng, made.array.shape, kind)
