"""Run a call of `tw.matmul`.

Its result is compared with that of a dataflow kernel, on arrays that NumPy broadcasts to the whole result.
The call is then repeated as a known launch: the bits must be equal, except for atomic reductions.  If the
call is batch-invariant, some rows are also multiplied alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from math import prod
from typing import Any
from unittest.mock import patch

import numpy as np
from tests.movers.random_movers import Array
from tests.problems.calls import RESULT_SIZED, Call
from tests.problems.carried_out import Outcome, There, fill, kinds_of, misplaced, refused
from tests.problems.kernels import called
from tests.problems.partitions import partitions_of

import tilewright as tw
from tilewright.checking.compare import Accumulation
from tilewright.checking.flows import StoredComparison, compare_flow
from tilewright.errors import TilewrightError
from tilewright.ops.problem import result_shape
from tilewright.runtime.kernel import Bound
from tilewright.schedule.schedule import Schedule


def carry_out_call(call: Call, target: str) -> Outcome:
    """Make a call on a target, and compare."""
    run = Run(call, target)
    run.forget_launches()
    try:
        with launched() as ran:
            result = run.stored(run.made())
    except TilewrightError as error:
        return refused(error, call.group.schedule)
    schedule = ran[-1].schedule
    if ran[-1].target != target:
        return Outcome(f"it ran on {ran[-1].target}")
    if call.group.schedule is not None and call.group.partition not in partitions_of(schedule):
        return Outcome(f"its partitions are {partitions_of(schedule)}", schedule)
    if wrong := misplaced(run.arrays, run.before, ("out",)):
        return Outcome(wrong, schedule)
    found = compared(call, run.before, result, schedule)
    wrong = ("" if found.ok else str(found)) or run.again(result) or run.rows()
    kinds = Counter(kinds_of(call.group, schedule, call.extents))
    kinds.update(f"argument {name}" for name in (*call.kinds, *call.words))
    kinds.update(f"in place: {name}" for name in call.in_place)
    return Outcome(wrong, schedule, elements=found.size, kinds=kinds)


class Run:
    """A call with its arrays.

    Args:
        call: the call.
        target: what runs it.
    """

    def __init__(self, call: Call, target: str) -> None:
        self.call, self.target = call, target
        rng = np.random.default_rng(call.number)
        self.arrays: dict[str, Array] = {}
        for name, shape in call.shapes.items():
            made = Array(shape, call.places[name], tw.dtype(call.kinds[name]))  # type: ignore[arg-type]
            # What is not read holds what is wrong.
            unread = (name == "out" and not call.in_place) or (name == "c" and call.scale_of_c == 0)
            fill(made, rng, "poison" if unread else "integers" if call.integers else "normal")
            self.arrays[name] = made
        self.before = {name: made.array.copy() for name, made in self.arrays.items()}
        # A GPU's arrays say themselves where they lie.
        self.words = {**call.words, **({} if target == "cuda" else {"target": target})}

    def forget_launches(self) -> None:
        """`matmul` plans every launch anew; its kernels stay compiled."""
        matmul = import_module("tilewright.ops.matmul")
        matmul._PLANS.forget()
        matmul._SHORTCUTS.forget()

    def made(self) -> Any:
        """Make the call."""
        there = There(self.arrays, self.target)
        given = there.given | {name: there.given[self.call.source(name)] for name in self.call.aliases}
        result = tw.matmul(**given, **self.words)
        assert "out" not in given or result is given["out"], "it returned another array than out"
        there.fetch()
        return result

    def stored(self, result: Any) -> Any:
        """Return what a call stored, as a NumPy array."""
        return self.arrays["out"].array.copy() if "out" in self.arrays else host(result)

    def again(self, first: Any) -> str:
        """Return whether the same call, now known, stores the same bits."""
        if self.call.is_atomic:
            return ""
        if "out" in self.arrays:
            self.arrays["out"].array[...] = self.before["out"]
        return "" if same_bits(first, self.stored(self.made())) else "the same call stored other bits"

    def rows(self) -> str:
        """Return whether rows of batch-invariant calls have the same bits among any others."""
        a, b = (self.before[name] for name in "ab")
        if not self.call.words.get("batch_invariant") or a.ndim < 2 or self.target == "cuda":
            return ""
        words = {name: word for name, word in self.words.items() if name != "beta"}
        words["out_dtype"] = self.call.group.out
        whole = tw.matmul(a, b, **words)
        for rows in {1, a.shape[-2] // 2} if a.shape[-2] > 1 else ():
            among = whole[..., :rows, :] if b.ndim > 1 else whole[..., :rows]
            if not same_bits(among, tw.matmul(a[..., :rows, :], b, **words)):
                return f"{rows} rows have other bits alone"
        return ""


def host(array: Any) -> Any:
    """Return an array of a target as a NumPy array."""
    return array.host() if hasattr(array, "host") else array


def same_bits(one: Any, other: Any) -> bool:
    """Return whether two arrays hold the same bits, in any layout."""
    return np.ascontiguousarray(one).tobytes() == np.ascontiguousarray(other).tobytes()


@contextmanager
def launched() -> Iterator[list[Any]]:
    """Collect the executables of the launches planned in the with block."""
    found: list[Any] = []
    planned = Bound.planned

    def watched(self: Bound, *given: Any) -> Any:
        plan, pointers = planned(self, *given)
        found.append(plan.prepared.executable)
        return plan, pointers

    with patch.object(Bound, "planned", watched):
        yield found


def compared(call: Call, before: Mapping[str, Any], stored: Any, schedule: Schedule) -> StoredComparison:
    """Compare every element with a kernel on arrays that are broadcast to the whole result.

    That kernel has as many fraction bits as the atom, which may be more than the call asks for.
    """
    a, b = before["a"], before["b"]
    a, b = a[None] if a.ndim == 1 else a, b[:, None] if b.ndim == 1 else b
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    items, m, k, n = prod(batch), *a.shape[-2:], b.shape[-1]
    out = stored.reshape(items, m, n)
    read = {
        "A": np.broadcast_to(a, (*batch, m, k)).reshape(items, m, k),
        "B": np.broadcast_to(b, (*batch, k, n)).reshape(items, k, n),
    }
    result = result_shape(call.shapes["a"], call.shapes["b"])
    for parameter, name in zip("CR", RESULT_SIZED, strict=True):
        source = call.source(name)
        if source in before and (name != "c" or call.scale_of_c != 0):
            read[parameter] = np.broadcast_to(before[source], result).reshape(items, m, n)
    if "bias" in before:
        read["bias"] = before["bias"]
    alpha = float(call.words.get("alpha", 1.0))
    is_wide = call.group.kind == "i8" or any(one.dtype == np.float64 for one in (*before.values(), stored))
    kernel = called(tw.f64 if is_wide else tw.f32).bind(
        terms=frozenset({*read} - {"A", "B"} | ({"alpha"} if alpha != 1 else set())),
        activation=call.words.get("activation"),
        # A schedule that is given may multiply all bits where fewer would do.
        precision="exact" if schedule.atom.precision is None else call.words.get("precision", "exact"),
    )
    # What is not there is not read; any array of the shape stands for it.
    absent = {"C": out, "R": out, "bias": np.zeros(n, out.dtype)}
    order = [(absent | read)[name] for name in ("A", "B", "C", "bias", "R")]
    numbers = {"alpha": alpha, "beta": call.scale_of_c}
    how = Accumulation.of(schedule.atom, schedule.promote * schedule.block_k or None)
    return compare_flow(kernel.flow(*order, out, *numbers.values()), {"D": out}, read, numbers, how)
