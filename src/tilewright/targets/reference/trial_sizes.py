"""Sizes at which a kernel shows what it does: loops of no, one and many iterations, tiles cut by an edge."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import For
from tilewright.symbolic.expr import add, floordiv, mul
from tilewright.symbolic.nodes import Int, Sym
from tilewright.symbolic.rebuilding import evaluate, substitute, symbols
from tilewright.targets.reference.coverage import extents, stages_of
from tilewright.targets.reference.sampling import named

LARGEST = 4096
"""The largest extent that is tried."""

GRIDS = (1, 2)
"""Blocks along each axis that are tried."""


def trial_sizes(
    kernel: Kernel, given: Mapping[str, int], asked: Mapping[str, Sequence[int]]
) -> list[dict[str, int]]:
    """Sizes to run a kernel at, one dimension varied at a time, and all ragged together.

    Args:
        kernel: traced for arrays of which nothing divides the extents.
        given: the integer arguments, by name, and extents to fall back on.
        asked: for some extents those to try.

    Returns:
        The extents by name, without repetitions.
    """
    varied = {
        sym.name: list(asked[sym.name]) if sym.name in asked else choices(kernel, sym, given)
        for sym in extents(kernel)
    }
    base = {name: sizes[0] for name, sizes in varied.items()}
    found = [base]
    for name, sizes in varied.items():
        found += [{**base, name: size} for size in sizes]
    found.append({name: sizes[min(1, len(sizes) - 1)] for name, sizes in varied.items()})
    return list({tuple(sizes.items()): sizes for sizes in found}.values())


def choices(kernel: Kernel, sym: Sym, given: Mapping[str, int]) -> list[int]:
    """Extents to try for one dimension: first of whole tiles, then the longest ragged one, then others."""
    spans: list[tuple[int, int]] = []
    for count, wanted in _counts(kernel, sym):
        of = np.arange(LARGEST + 1)
        env = {size.sym: given.get(size.sym.name, 1) for size in kernel.sizes} | {sym: of}
        try:
            turns = np.broadcast_to(np.asarray(evaluate(count, env)), of.shape)
        except (KeyError, ZeroDivisionError):
            continue
        for turn in wanted:
            at = np.flatnonzero(turns == turn)
            if len(at) and at[-1] < LARGEST:
                spans.append((int(at[0]), int(at[-1])))
    if not spans:
        return [min(given.get(sym.name, 1), LARGEST), 1]
    whole = [last for _, last in spans]
    ragged = [last - 1 if last > first else last for first, last in spans]
    least = min((first for first, _ in spans if first), default=0)
    return list(dict.fromkeys([whole[0], max(ragged), *whole, *ragged, least]))


def _counts(kernel: Kernel, sym: Sym) -> Iterator[tuple[Int, tuple[int, ...]]]:
    """What counts iterations or blocks along a dimension, with the counts that are tried, the first first."""
    for op in kernel.walk():
        if isinstance(op, For):
            turns = _iterations(kernel, op)
            if sym in symbols(turns):
                ring = max(stages_of(op), 1)
                few = (2 * ring + 1, ring + 1, ring, ring - 1, 1, 0)
                yield turns, tuple(dict.fromkeys(few))
    for axis in kernel.grid:
        if sym in symbols(axis.extent):
            yield axis.extent, GRIDS


def _iterations(kernel: Kernel, loop: For) -> Int:
    """How often a loop turns in the first block, on the first turn of loops around it."""
    known = {size.sym for size in kernel.sizes}
    first: dict[Sym, Any] = {}
    turns: Int = floordiv(add(loop.stop, mul(loop.start, -1), loop.step - 1), loop.step)
    turns = substitute(turns, named(kernel))
    for inner in symbols(turns) - known:
        first[inner] = inner.low
    found: Int = substitute(turns, first)
    return found
