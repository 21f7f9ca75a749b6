"""Register correspondence between fragments, for reductions, broadcasts, and changes of the thread map.

Register numbers are mixed-radix numbers over the value modes of a distribution.  A `Digit` is the weight that
one digit of a number adds to another number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tilewright.errors import LayoutError
from tilewright.symbolic.expr import add, floordiv, mod, mul
from tilewright.symbolic.nodes import Int
from tilewright.symbolic.rebuilding import evaluate, symbols
from tilewright.threads.distribution import Distribution, Mode, registers

Keep: TypeAlias = tuple[tuple[int, int], ...]
"""Digits of a coordinate, finest first: ``(extent, step)`` is ``coordinate // step % extent``."""

MOST_TURNS = 4096
"""Largest range of an index for which a change of map is enumerated."""


class Digit(NamedTuple):
    """A digit with ``extent`` values, each of which adds ``weight``."""

    extent: int
    weight: int


def indexed(digits: Sequence[Digit], index: Int) -> Int:
    """Return the sum of the weighted digits of ``index``, fastest digit first.

    Example:
        >>> from tilewright.symbolic.nodes import Sym
        >>> str(indexed([Digit(2, 0), Digit(2, 1), Digit(4, 2)], Sym("i", 0, 15)))
        'i // 2'
    """
    merged: list[Digit] = []
    for digit in digits:
        last = merged[-1] if merged else None
        if digit.extent == 1:
            continue
        if last is not None and digit.weight == last.weight * last.extent:
            merged[-1] = Digit(last.extent * digit.extent, last.weight)
        else:
            merged.append(digit)
    total: Int = 0
    unit = 1
    for digit in merged:
        total = add(total, mul(mod(floordiv(index, unit), digit.extent), digit.weight))
        unit *= digit.extent
    return total


def registers_of(digits: Sequence[Digit], count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return `indexed` for 0, 1 ... ``count - 1``."""
    rest = np.arange(count)
    total = np.zeros(count, np.int64)
    for digit in digits:
        total += rest % digit.extent * digit.weight
        rest = rest // digit.extent
    return total


def broadcast(full: Distribution, part: Distribution) -> tuple[Digit, ...] | None:
    """Return the operand register for each result register of a broadcast; None if the maps do not fit.

    Args:
        full: distribution of the result.
        part: distribution of the operand: the same, or the result of `Distribution.projected`.
    """
    if part.canonical == full.canonical:
        return (Digit(full.size_values, 1),)
    if len(part.shape) != full.rank or any(
        p not in (1, f) for p, f in zip(part.shape, full.shape, strict=True)
    ):
        return None
    if part.canonical != full.projected(part.shape).canonical:
        return None
    digits, weight = [], 1
    for mode in full.values:
        gone = mode.dim is not None and part.shape[mode.dim] == 1 != full.shape[mode.dim]
        digits.append(Digit(mode.extent, 0 if gone else weight))
        weight *= 1 if gone else mode.extent
    return tuple(digits)


# ---------------------------------------------------------------- reductions


@dataclass(frozen=True)
class Reduction:
    """The plan by which the threads of a distribution reduce a tile along one dimension.

    Args:
        result: distribution of the result.
        kept: digits that map a result register to a source register.
        reduced: digits that map the number of a reduced value to a source register.
        lanes: digits of the thread index over which threads then combine their results.
    """

    result: Distribution
    kept: tuple[Digit, ...]
    reduced: tuple[Digit, ...]
    lanes: tuple[Digit, ...]

    @property
    def count(self) -> int:
        """Number of values that each thread reduces to one."""
        return math.prod(digit.extent for digit in self.reduced)

    @property
    def span(self) -> int:
        """Smallest number of consecutive threads that hold all inputs of one result."""
        return max((digit.extent * digit.weight for digit in self.lanes), default=1)


@lru_cache(maxsize=1024)
def reduction(source: Distribution, dim: int, keep: Keep = ()) -> Reduction:
    """Plan the reduction of a tile along ``dim``; the digits ``keep`` of that coordinate are not reduced.

    Raises:
        LayoutError: the dimension or the digits do not exist, or a mode crosses the end of a kept digit.

    Example:
        >>> rows = Distribution((4, 8), (Mode(4, 1, 2), Mode(4, 0, 1)), (Mode(2, 1, 1),))
        >>> reduction(rows, 1).result.threads
        (Mode(extent=4, dim=None, step=0), Mode(extent=4, dim=0, step=1))
        >>> reduction(rows, 1, ((4, 2),)).result.shape
        (4, 4)
    """
    _check(source, dim, keep)
    threads: list[Mode] = []
    values: list[Mode] = []
    kept: list[Digit] = []
    reduced: list[Digit] = []
    lanes: list[Digit] = []
    for modes, stay, gone in ((source.threads, threads, lanes), (source.values, values, reduced)):
        weight = 1
        for mode in modes:
            for piece, step in _pieces(mode, dim, keep):
                if step is not None:
                    stay.append(piece._replace(step=step) if piece.dim == dim else piece)
                    if modes is source.values:
                        kept.append(Digit(piece.extent, weight))
                else:
                    gone.append(Digit(piece.extent, weight))
                    if modes is source.threads:
                        stay.append(Mode(piece.extent, None, 0))
                weight *= piece.extent
    shape = list(source.shape)
    shape[dim] = math.prod(extent for extent, _ in keep)
    result = Distribution(tuple(shape), tuple(threads), tuple(values))
    return Reduction(result, tuple(kept), tuple(reduced), tuple(d for d in lanes if d.extent > 1))


def _check(source: Distribution, dim: int, keep: Keep) -> None:
    if not 0 <= dim < source.rank:
        raise LayoutError(f"dimension {dim} of a tile of rank {source.rank}")
    end = 1
    for extent, step in keep:
        if extent < 1 or step < 1 or step % end or source.shape[dim] % (extent * step):
            raise LayoutError(f"{keep} are not digits of a coordinate below {source.shape[dim]}")
        end = extent * step


def _pieces(mode: Mode, dim: int, keep: Keep) -> Iterator[tuple[Mode, int | None]]:
    """Yield the parts of a mode, each with its step in the result, or None if it is reduced."""
    if mode.dim != dim:
        yield mode, mode.step
        return
    cuts = sorted({cut for extent, step in keep for cut in (step, extent * step)})
    step, rest = mode.step, mode.extent
    while rest > 1:
        cut = next((cut for cut in cuts if step < cut < step * rest), step * rest)
        size = cut // step
        if cut % step or rest % size:
            raise LayoutError(
                f"the {mode.extent} steps of {mode.step} that threads or values take along dimension {dim} "
                f"do not end at {cut}, where a kept digit does"
            )
        made, weight = None, 1
        for extent, unit in keep:
            if unit <= step and step * size <= unit * extent:
                made = step // unit * weight
                break
            weight *= extent
        yield Mode(size, dim, step), made
        step, rest = cut, rest // size


def thread_digits(source: Distribution, dim: int, least: int = 1) -> Keep:
    """Return the digits of the coordinate along ``dim`` that number threads, in groups of ``least`` threads.

    Example:
        >>> rows = Distribution((4, 16), (Mode(4, 1, 2), Mode(4, 0, 1), Mode(2, 1, 8)), (Mode(2, 1, 1),))
        >>> thread_digits(rows, 1), thread_digits(rows, 1, 16)
        (((4, 2), (2, 8)), ((2, 8),))
    """
    found: list[tuple[int, int]] = []
    weight = 1
    for mode in source.threads:
        inside = min(max(least // weight, 1), mode.extent)
        if mode.dim == dim and mode.extent > inside:
            found.append((mode.extent // inside, mode.step * inside))
        weight *= mode.extent
    return tuple(sorted(found, key=lambda digit: digit[1]))


# ---------------------------------------------------------------- prefix sums


class PrefixStage(NamedTuple):
    """A digit of a coordinate along which prefix sums pass between registers, or between lanes."""

    in_lanes: bool
    extent: int
    weight: int


@dataclass(frozen=True)
class PrefixPlan:
    """The plan by which the threads of a distribution compute prefix sums of runs along one dimension.

    Args:
        runs: the reduction of each run to its sum.
        stages: the digits of a coordinate inside a run, finest first.
    """

    runs: Reduction
    stages: tuple[PrefixStage, ...]

    @property
    def registers(self) -> tuple[Digit, ...]:
        """Digits that map the number of an element of a run in a thread to its register, finest first."""
        return tuple(Digit(stage.extent, stage.weight) for stage in self.stages if not stage.in_lanes)


@lru_cache(maxsize=1024)
def prefix(source: Distribution, dim: int, run: int) -> PrefixPlan:
    """Plan the prefix sums of runs of ``run`` neighbours along ``dim``.

    Raises:
        LayoutError: the dimension does not exist, ``run`` does not divide it, or a mode crosses the end of a
            run or of another mode.

    Example:
        >>> rows = Distribution((1, 64), (Mode(8, 1, 2), Mode(2, 1, 32)), (Mode(2, 1, 1), Mode(2, 1, 16)))
        >>> [stage.in_lanes for stage in prefix(rows, 1, 32).stages], prefix(rows, 1, 32).runs.result.shape
        ([False, True, False], (1, 2))
    """
    if not 0 <= dim < source.rank or run < 1 or source.shape[dim] % run:
        raise LayoutError(f"runs of {run} along dimension {dim} of a tile of {source.shape}")
    keep = ((source.shape[dim] // run, run),)
    found: list[tuple[int, PrefixStage]] = []
    for in_lanes, modes in ((False, source.values), (True, source.threads)):
        weight = 1
        for mode in modes:
            for piece, step in _pieces(mode, dim, keep):
                if piece.dim == dim and step is None:
                    found.append((piece.step, PrefixStage(in_lanes, piece.extent, weight)))
                weight *= piece.extent
    found.sort()
    unit = 1
    for step, stage in found:
        if step != unit:
            raise LayoutError(f"no mode along dimension {dim} has the step {unit}; {source}")
        unit *= stage.extent
    if unit != run:
        raise LayoutError(f"threads hold {unit} of the {run} elements of a run along dimension {dim}")
    return PrefixPlan(reduction(source, dim, keep), tuple(stage for _, stage in found))


def run_in_warps(source: Distribution, dim: int, lanes: int) -> int:
    """Return the longest runs along ``dim`` that each lie in one warp, for `prefix`; 0 if there are none.

    Example:
        >>> rows = Distribution((1, 64), (Mode(8, 1, 2), Mode(2, 1, 32)), (Mode(2, 1, 1), Mode(2, 1, 16)))
        >>> run_in_warps(rows, 1, 8), run_in_warps(rows, 1, 16)
        (32, 64)
    """
    run = min((step for _, step in thread_digits(source, dim, lanes)), default=source.shape[dim])
    try:
        stages = prefix(source, dim, run).stages
    except LayoutError:
        return 0
    sizes = [size for stage in stages if stage.in_lanes for size in (stage.extent, stage.weight)]
    return 0 if any(size & (size - 1) for size in sizes) else run


# ---------------------------------------------------------------- other maps


def register_digits(
    source: Distribution, target: Distribution, start: tuple[Int, ...]
) -> tuple[Int, tuple[Digit, ...]] | None:
    """Return the source registers of a new map: the first register, and digits for the others.

    Args:
        source: distribution of the existing tile.
        target: distribution of the new tile.
        start: start of the new tile in the source tile; may contain at most one symbol, which has bounds.

    Returns:
        None if a thread lacks a value, if threads hold values in different registers, or if no digits
        describe the register numbers.
    """
    names = {sym for at in start for sym in symbols(at)}
    if not names:
        return _at(source, target, tuple(int(evaluate(at, {})) for at in start))
    sym = names.pop()
    if names or sym.high is None or sym.high - sym.low >= MOST_TURNS:
        return None
    found = [
        _at(source, target, tuple(int(evaluate(at, {sym: turn})) for at in start))
        for turn in range(sym.low, sym.high + 1)
    ]
    first = found[0]
    step = found[1][0] - first[0] if len(found) > 1 and first is not None and found[1] is not None else 0
    for turn, one in enumerate(found):
        if one is None or first is None or one != (first[0] + turn * step, first[1]):
            return None
    assert first is not None
    return add(first[0], mul(add(sym, -sym.low), step)), first[1]


@lru_cache(maxsize=4096)
def _at(
    source: Distribution, target: Distribution, at: tuple[int, ...]
) -> tuple[int, tuple[Digit, ...]] | None:
    table = registers(source, target, at)
    if table is None:
        return None
    digits, unit = [], 1
    for mode in target.values:
        rest, factor = mode.extent, 2
        while rest > 1:  # one digit for each prime factor
            if rest % factor:
                factor += 1
                continue
            digits.append(Digit(factor, table[unit] - table[0]))
            unit *= factor
            rest //= factor
    fits = (registers_of(digits, target.size_values) + table[0] == table).all()
    return (table[0], tuple(digits)) if fits else None


def is_local(source: Distribution, target: Distribution, start: tuple[Int, ...]) -> bool:
    """Return whether every thread already holds its values of the target map, all at the same registers."""
    if any(symbols(at) for at in start):
        return register_digits(source, target, start) is not None
    return registers(source, target, [int(evaluate(at, {})) for at in start]) is not None
