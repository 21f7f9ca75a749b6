"""One thread's walk over the values of a distribution: its coordinates, loops and registers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tilewright.symbolic.expr import add, all_of, equal, expand, floordiv, mod, mul, parts_of, product
from tilewright.symbolic.nodes import TRUE, And, Cond, Int, Mul, Sym
from tilewright.symbolic.rebuilding import symbols
from tilewright.threads.distribution import Distribution, Mode, merge, take


def thread_coordinate(modes: Sequence[Mode], rank: int, thread: Int) -> tuple[Int, ...]:
    """Return the coordinate at which a thread starts."""
    at: list[Int] = [0] * rank
    for mode, digit in digits(modes, thread):
        if mode.dim is not None:
            at[mode.dim] = add(at[mode.dim], mul(digit, mode.step))
    return tuple(at)


def digits(modes: Sequence[Mode], thread: Int) -> list[tuple[Mode, Int]]:
    """Return each merged mode of the thread index, with the thread's digit of it."""
    found: list[tuple[Mode, Int]] = []
    weight = 1
    for mode in merge(modes):
        found.append((mode, mod(floordiv(thread, weight), mode.extent)))
        weight *= mode.extent
    return found


def first_copy(distribution: Distribution, thread: Sym) -> Cond:
    """Return the condition that a thread holds the first of several copies of its values."""
    return all_of(*(equal(d, 0) for mode, d in digits(distribution.threads, thread) if mode.dim is None))


@dataclass(frozen=True)
class Walk:
    """The values of one thread, ``vector`` at a time.

    Args:
        loops: index symbol of each loop, outermost first; each runs from 0 to its ``high``.
        offset: the coordinate in the loops, relative to the thread's start.
        register: the index of a vector's first value, in terms of the loops.
        vector: consecutive values of one access.
        batch: number of the innermost loops that make one batch.
    """

    loops: tuple[Sym, ...]
    offset: tuple[Int, ...]
    register: Int
    vector: int
    batch: int

    @property
    def count(self) -> int:
        """Number of accesses."""
        return math.prod(extent(loop) for loop in self.loops)


def extent(loop: Sym) -> int:
    """Return the number of iterations."""
    assert loop.high is not None
    return loop.high + 1


def turn(loops: Sequence[Sym]) -> Int:
    """Return the index of an iteration of nested loops."""
    number: Int = 0
    for loop in loops:
        number = add(mul(number, extent(loop)), loop)
    return number


def walk(
    modes: Sequence[Mode], rank: int, vector: int, names: Iterable[str], batch: int | None = None
) -> Walk:
    """Return the walk over value modes, ``vector`` at a time.

    Args:
        modes: the value modes of a distribution.
        rank: dimensions of the tile.
        vector: values of one access.
        names: names of the loops, innermost first.
        batch: most accesses of one batch; loops are split so that some of the innermost loops make a batch.
    """
    split = take(merge(modes), vector)
    assert split is not None, "a legal vector divides the run of a thread's values"
    cut, inner = _cut(merge(split[1]), batch)
    naming = iter(names)
    loops: list[Sym] = []
    offset: list[Int] = [0] * rank
    register: Int = 0
    weight = vector
    for mode in cut:
        loop = Sym(next(naming), 0, mode.extent - 1)
        loops.insert(0, loop)
        register = add(register, mul(loop, weight))
        if mode.dim is not None:
            offset[mode.dim] = add(offset[mode.dim], mul(loop, mode.step))
        weight *= mode.extent
    return Walk(tuple(loops), tuple(offset), register, vector, inner)


def _cut(modes: Sequence[Mode], batch: int | None) -> tuple[list[Mode], int]:
    """Split modes where a batch ends; return also how many of the fastest modes make a batch."""
    if batch is None:
        return list(modes), len(modes)
    cut: list[Mode] = []
    inner, room = 0, batch
    for mode in modes:
        fits = max(n for n in range(1, mode.extent + 1) if mode.extent % n == 0 and n <= room)
        room = room // fits if fits == mode.extent else 1
        if fits > 1:
            cut.append(Mode(fits, mode.dim, mode.step))
            inner = len(cut)
        if fits < mode.extent:
            cut.append(Mode(mode.extent // fits, mode.dim, mode.step * fits))
    return cut, inner


def split_offset(offset: Int, loops: Iterable[Sym], sizes: set[Sym]) -> tuple[Int, Int]:
    """Return ``(base, step)`` with sum ``offset``; only step depends on the loops; sizes are factored out."""
    inner = set(loops)
    if not symbols(offset) & inner:
        return offset, 0
    parts, constant = parts_of(expand(offset))
    base: list[Int] = [constant]
    step: list[Int] = []
    for term, factor in parts:
        (step if symbols(term) & inner else base).append(mul(term, factor))
    return factor_sizes(add(*base), sizes), factor_sizes(add(*step), sizes)


def factor_sizes(value: Int, sizes: set[Sym]) -> Int:
    """Rewrite ``lda*m*256 + lda*row`` as ``lda*(256*m + row)``."""
    parts, constant = parts_of(value)
    groups: dict[tuple[Int, ...], list[Int]] = {}
    for term, factor in parts:
        factors = term.factors if isinstance(term, Mul) else (term,)
        common = tuple(f for f in factors if f in sizes)
        rest = product(factor, *(f for f in factors if f not in sizes))
        groups.setdefault(common, []).append(rest)
    return add(constant, *(mul(product(*common), add(*rest)) for common, rest in groups.items()))


def split_valid(valid: Cond, loops: Iterable[Sym]) -> tuple[Cond, Cond]:
    """Return ``(outer, inner)`` with conjunction ``valid``; only inner depends on the loops."""
    within = set(loops)
    parts = valid.parts if isinstance(valid, And) else (valid,)
    outer = [part for part in parts if not symbols(part) & within]
    inner = [part for part in parts if symbols(part) & within]
    return all_of(*outer), all_of(*inner) if inner else TRUE
