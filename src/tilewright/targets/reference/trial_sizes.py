"""Sizes for `check_sizes`: extents and integers derived from a kernel, each with the reason to try it.

They give loops no, one and many iterations, cut tiles at an edge, take both sides of each comparison with a
constant, and launch more blocks than are resident.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.functions.conversions import Array
from tilewright.ir.kernel import Argument, Derived, Kernel
from tilewright.ir.op import Op
from tilewright.ir.ops import Elementwise, For, If, Let
from tilewright.ir.signal_ops import Await
from tilewright.symbolic.expr import add, floordiv, less, mul
from tilewright.symbolic.nodes import Cond, Equal, Expr, Int, Less, Max, Min, Sym
from tilewright.symbolic.rebuilding import evaluate, parts, substitute, symbols
from tilewright.targets.reference.equivalence import named
from tilewright.targets.reference.report import extents, place, stages_of

LARGEST = 4096
"""Largest extent to try; up to this extent the other dimensions have several tiles."""

FARTHEST = 1 << 15
"""Largest extent to try if the other extents are minimal."""

GRIDS = (1, 2)
"""Numbers of blocks to try along each axis of the grid."""

TURNS = 48
"""Most loop iterations, or blocks along an axis, for which conditions are evaluated."""

CHANGES = 2
"""Most changes of a condition to try: the first ones."""

CONDITIONS = 8
"""Most conditions to try along one dimension: the first that change."""


@dataclass(frozen=True)
class SizeTrial:
    """Sizes at which to run a kernel.

    Args:
        sizes: extents and integer arguments, by name.
        why: the reason to try them.
    """

    sizes: Mapping[str, int]
    why: str


@dataclass(frozen=True)
class IndexRange:
    """A loop or an axis of the grid: its index, and the number of values that the index takes.

    Args:
        index: the index.
        turns: that number, as an expression over the kernel's sizes.
        noun: the unit of the number in messages, e.g. ``"block"``.
        where: the loop or axis in messages.
        tried: the numbers to try, in this order.
        loop: the loop; None for an axis of the grid.
    """

    index: Sym
    turns: Int
    noun: str
    where: str
    tried: tuple[int, ...]
    loop: For | None

    def told(self, count: int) -> str:
        """Return a number of values with its unit and place, for a message."""
        return f"{count} {self.noun}{'s' * (count != 1)} {self.where}"


def trial_sizes(
    kernel: Kernel, given: Mapping[str, int], asked: Mapping[str, Sequence[int]], resident: int
) -> list[SizeTrial]:
    """Return sizes at which to run a kernel: each dimension varied alone, and all ragged together.

    Args:
        kernel: the kernel, traced for arrays whose extents have no known divisors.
        given: the integer arguments by name, and default extents.
        asked: the values that the caller wants to try, by extent or integer.
        resident: number of blocks that certainly run at once.

    Returns:
        Different sizes, by name.
    """
    ranges, lets = list[IndexRange](), named(kernel)
    for op in kernel.walk():
        if isinstance(op, For):
            ring = max(stages_of(op), 1)
            few = tuple(dict.fromkeys((2 * ring + 1, ring + 1, ring, ring - 1, 1, 0)))
            turns = substitute(floordiv(add(op.stop, mul(op.start, -1), op.step - 1), op.step), lets)
            ranges.append(IndexRange(op.index, turns, "turn", f"of the loop at {place(op)}", few, op))
    for at, axis in enumerate(kernel.grid):
        ranges.append(IndexRange(axis.sym, axis.extent, "block", f"along axis {at}", GRIDS, None))
    integers = deciding_integers(kernel)
    varied: dict[str, dict[int, str]] = {}
    for sym in (*extents(kernel), *integers):
        if sym.name in asked:
            varied[sym.name] = dict.fromkeys(asked[sym.name], "as asked")
        else:
            varied[sym.name] = _by_turns(kernel, ranges, sym, given, sym in integers)
    base = {name: next(iter(sizes)) for name, sizes in varied.items()}
    known = {**given, **base}
    found = [SizeTrial(base, "whole tiles")]
    found += [SizeTrial({**base, name: n}, why) for name, sizes in varied.items() for n, why in sizes.items()]
    ragged = {
        sym.name: next((n for n in list(varied[sym.name])[1:] if n and sym not in integers), base[sym.name])
        for sym in (*extents(kernel), *integers)
    }
    found.append(SizeTrial(ragged, "all dimensions ragged"))
    least = {name: min((n for n in sizes if n), default=0) for name, sizes in varied.items()}
    for sym in (*extents(kernel), *integers):
        if sym.name in asked:
            continue
        others = {**base, sym.name: 0}
        for n, why in _at_conditions(kernel, ranges, sym, known).items():
            found.append(SizeTrial({**(others if n <= LARGEST else least), sym.name: n}, why))
        if sym not in integers and any(isinstance(op, Await) for op in kernel.walk()):
            found += _beyond_residents(kernel, sym, {**given, **least}, least, resident)
    unique: dict[tuple[tuple[str, int], ...], SizeTrial] = {}
    for trial in found:
        unique.setdefault(tuple(trial.sizes.items()), trial)
    return list(unique.values())


def deciding_integers(kernel: Kernel) -> tuple[Sym, ...]:
    """Return the integer arguments that decide loop bounds, conditions, or the extents of the grid.

    An argument that is only an index of an access keeps its value, because most other values would be out of
    range.
    """
    lets = named(kernel)
    decide: set[Sym] = set()
    for op in kernel.walk():
        if isinstance(op, For | If):
            what = (op.start, op.stop) if isinstance(op, For) else (op.condition,)
            decide |= {sym for part in what for sym in symbols(substitute(part, lets))}
    decide |= {sym for axis in kernel.grid for sym in symbols(axis.extent)}
    for param in kernel.sizes:
        if isinstance(param.source, Derived) and param.sym in decide:
            decide |= symbols(param.source.value)
    return tuple(
        param.sym for param in kernel.sizes if isinstance(param.source, Argument) and param.sym in decide
    )


def _by_turns(
    kernel: Kernel, ranges: Sequence[IndexRange], sym: Sym, given: Mapping[str, int], is_integer: bool
) -> dict[int, str]:
    """Return values to try with reasons: whole tiles, then the longest ragged extent, then others."""
    intervals: list[tuple[int, int, str]] = []
    for span in ranges:
        counts = _counted(kernel, span, sym, given)
        if counts is None:
            continue
        for wanted in span.tried:
            at = np.flatnonzero(counts == wanted)
            if len(at) and at[-1] < LARGEST:
                intervals.append((int(at[0]), int(at[-1]), span.told(wanted)))
    mine = min(given.get(sym.name, 1), LARGEST)
    if is_integer:
        few = {mine: "as given", 0: "0", 1: "1", 2: "2", mine + 1: "one more than given"}
        return {**few, **{n: why for _, n, why in intervals if n not in few}}
    if not intervals:
        return {mine: "as given", 1: "1 element"}
    whole = [(last, why) for _, last, why in intervals]
    if not any(last for last, _ in whole):
        whole.insert(
            0, (mine, "as given")
        )  # at 0 elements, variations of the other dimensions would do nothing
    whole.sort(key=lambda pair: not pair[0])
    ragged = [(last - 1 if last > first else last, f"{why}, the last cut") for first, last, why in intervals]
    least = min(((first, why) for first, _, why in intervals if first), default=(0, "nothing"))
    found: dict[int, str] = {}
    for n, why in (whole[0], max(ragged), *whole, *ragged, least):
        found.setdefault(n, why)
    return found


def _counted(kernel: Kernel, span: IndexRange, sym: Sym, given: Mapping[str, int]) -> Array | None:
    """Return the number of iterations in the first block for every value of a size, or None."""
    turns = substitute(span.turns, _derived(kernel))
    if sym not in symbols(turns):
        return None
    of = np.arange(LARGEST + 1)
    return _value(turns, {**_environment(kernel, given), sym: of}, of.shape)


def _environment(kernel: Kernel, given: Mapping[str, int]) -> dict[Sym, Any]:
    return {size.sym: given.get(size.sym.name, 1) for size in kernel.sizes}


def _derived(kernel: Kernel) -> dict[Sym, Int]:
    return {param.sym: param.source.value for param in kernel.sizes if isinstance(param.source, Derived)}


def _value(what: Any, env: Mapping[Sym, Any], shape: tuple[int, ...]) -> Array | None:
    """Evaluate an integer or condition in the first block and first iteration; None if it is unknown."""
    first = {inner: inner.low for inner in symbols(what) if inner not in env}
    try:
        with np.errstate(divide="ignore"):  # an integer that is tried may be 0
            return np.broadcast_to(np.asarray(evaluate(what, {**first, **env})), shape)
    except (KeyError, TypeError, ZeroDivisionError):
        return None


# ---------------------------------------------------------------- conditions


def _comparisons(kernel: Kernel) -> dict[Cond, Op]:
    """Return the comparisons in conditions, minima and maxima, each with its first operation."""
    lets = {**named(kernel), **_derived(kernel)}
    found: dict[Cond, Op] = {}
    for op in kernel.walk():
        match op:
            case If():
                whole: tuple[Any, ...] = (op.condition,)
            case For():
                whole = (op.start, op.stop)
            case Let():
                whole = (op.value,)
            case Elementwise():
                whole = tuple(operand for operand in op.operands_ if isinstance(operand, Expr | Cond))
            case _:
                continue
        for part in (part for one in whole for part in parts(substitute(one, lets))):
            compared = less(part.left, part.right) if isinstance(part, Min | Max) else part
            if isinstance(compared, Less | Equal):
                found.setdefault(compared, op)
    return found


def _at_conditions(
    kernel: Kernel, ranges: Sequence[IndexRange], sym: Sym, known: Mapping[str, int]
) -> dict[int, str]:
    """Return the values of a size at and next to each change of a condition, with reasons."""
    found: dict[int, str] = {}
    changing = 0
    for condition, op in _comparisons(kernel).items():
        inner = [span for span in ranges if span.index in symbols(condition)]
        made: dict[int, str] = {}
        if not inner and sym in symbols(condition):
            of = np.arange(FARTHEST + 1)
            holds = _value(condition, {**_environment(kernel, known), sym: of}, of.shape)
            changes = (
                [] if holds is None else (np.flatnonzero(holds[1:] != holds[:-1]) + 1)[:CHANGES].tolist()
            )
            for at in changes:
                why = f"a condition at {place(op)} changes at {sym.name} = {at}"
                above = -(-(at + 1) // 64) * 64  # for kernels that take only multiples of 64
                made |= dict.fromkeys((at - 1, at, at + 1, above), why)
        for span in inner:
            made.update(_turns_of_change(kernel, span, condition, op, sym, known))
        if made and changing < CONDITIONS:
            changing += 1
            found = {**made, **found}
    return found


def _turns_of_change(
    kernel: Kernel, span: IndexRange, condition: Cond, op: Op, sym: Sym, known: Mapping[str, int]
) -> Iterator[tuple[int, str]]:
    """Yield the size at which a loop first reaches a change of a condition, and the next larger one."""
    counts = _counted(kernel, span, sym, known)
    if counts is None:
        return
    seen: frozenset[bool] | None = None
    changes = 0
    for turns in range(1, TURNS):
        at = np.flatnonzero(counts == turns)
        if not len(at) or at[-1] >= LARGEST:
            continue
        start = 0 if span.loop is None else span.loop.start
        step = 1 if span.loop is None else span.loop.step
        env = {**_environment(kernel, known), sym: int(at[-1])}
        begin = _value(start, env, ())
        index = np.arange(turns) * step + (0 if begin is None else int(begin))
        holds = _value(condition, {**env, span.index: index}, index.shape)
        if holds is None:
            return
        now = frozenset(holds.tolist())
        if seen is not None and now != seen:
            changes += 1
            why = f"a condition at {place(op)} changes after {span.told(turns - 1)}"
            yield int(at[-1]), why
            following = np.flatnonzero(counts == turns + 1)
            if len(following) and following[-1] < LARGEST:
                yield int(following[-1]), why
        seen = now
        if changes == CHANGES:
            return


def _beyond_residents(
    kernel: Kernel, sym: Sym, known: Mapping[str, int], least: Mapping[str, int], resident: int
) -> list[SizeTrial]:
    """Return a size with more blocks than are resident, for blocks that wait for each other."""
    of = np.arange(FARTHEST + 1)
    env = {**_environment(kernel, known), sym: of}
    derived = _derived(kernel)
    axes = [_value(substitute(axis.extent, derived), env, of.shape) for axis in kernel.grid]
    if any(axis is None for axis in axes):
        return []
    enough = np.flatnonzero(math.prod(axes) > resident)  # type: ignore[arg-type]
    if not len(enough) or not enough[0]:
        return []
    why = f"more blocks than the {resident} that are certain to be resident"
    return [SizeTrial({**least, sym.name: int(enough[0])}, why)]
