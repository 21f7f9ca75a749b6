"""What `check` may be asked: warps that exist, blocks that the grid has."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from tilewright.arch import Arch
from tilewright.argument_checks import is_integer, is_sequence, legal
from tilewright.errors import LaunchError, shown
from tilewright.ir.kernel import Kernel

Blocks: TypeAlias = str | int | Sequence[Any]
"""Which blocks run: ``"all"``, how many, or their indices."""

legal(
    "Blocks",
    '"all", a number of blocks or a sequence of their indices',
    "blocks",
    lambda value: value == "all" if isinstance(value, str) else is_integer(value) or is_sequence(value),
)

LANES = (32, 64)
"""Threads of the warps that GPUs have."""

WORK = 6_000_000
"""Accesses to elements, a few seconds of them, after which `check` runs only blocks that stand for others."""


def resident_blocks(arch: Arch) -> int | None:
    """How many blocks are certain to run at once on every known product of an architecture; None: unknown."""
    boards = () if arch.rates is None else arch.rates.boards
    return min((board.multiprocessors for board in boards), default=None)


def check_lanes(kernel: Kernel, lanes: object) -> None:
    """Refuse warps that no machine has.

    Raises:
        LaunchError: neither 32 nor 64 nor what the kernel's MMA atoms are executed by.
    """
    legal = sorted({*LANES, kernel.lanes})
    asked = int(lanes) if is_integer(lanes) else None  # type: ignore[call-overload]
    if lanes is None or asked in legal:
        return
    near = kernel.lanes if asked is None else min(legal, key=lambda n: abs(n - asked))
    raise LaunchError(
        f"kernel {kernel.name}: lanes={shown(lanes)}; warps have {' or '.join(map(str, legal))} threads; "
        f"nearest legal choice: lanes={near}"
    )


def asked_blocks(kernel: Kernel, grid: Sequence[int], blocks: Blocks | None) -> list[tuple[int, ...]] | None:
    """The blocks that are asked for, in the order of the grid; None for all of them.

    Raises:
        LaunchError: no number of blocks, and no indices in the grid.
    """
    total = math.prod(grid)
    if blocks is None or isinstance(blocks, str):
        return None
    if is_integer(blocks):
        if int(blocks) < 1:  # type: ignore[arg-type]
            raise _refused(kernel, grid, blocks)
        numbers = np.linspace(0, total - 1, min(int(blocks), total)).round()  # type: ignore[arg-type]
        return [_index(int(number), grid) for number in numbers]
    found = [_inside(block, grid) for block in blocks] if is_sequence(blocks) else []  # type: ignore[union-attr]
    if not found or None in found:
        raise _refused(kernel, grid, blocks)
    return [index for index in found if index is not None]


def _inside(block: Any, grid: Sequence[int]) -> tuple[int, ...] | None:
    """The index of a block, if the grid has it."""
    at = tuple(block) if is_sequence(block) else (block,)
    legal = all(is_integer(i) and 0 <= i < extent for i, extent in zip(at, grid, strict=False))
    return tuple(map(int, at)) if legal and len(at) == len(grid) else None


def _index(number: int, grid: Sequence[int]) -> tuple[int, ...]:
    at = []
    for extent in grid:
        number, here = divmod(number, extent)
        at.append(here)
    return tuple(at)


def _refused(kernel: Kernel, grid: Sequence[int], given: object) -> LaunchError:
    last = tuple(extent - 1 for extent in grid)
    return LaunchError(
        f"kernel {kernel.name}: blocks={shown(given)} names no blocks of the grid {tuple(grid)}; "
        f'nearest legal choice: "all", a number of them, or indices such as [{last}]'
    )
