"""Modes of a thread map: how one digit of a thread or value index moves a coordinate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tilewright.errors import LayoutError, shown
from tilewright.kinds import is_integer


class Mode(NamedTuple):
    """``extent`` steps of ``step`` along ``dim``; ``dim`` None means replication.

    Example:
        >>> Mode(4, 0, 2)
        Mode(extent=4, dim=0, step=2)
    """

    extent: int
    dim: int | None
    step: int


def merge(modes: Iterable[Mode]) -> tuple[Mode, ...]:
    """Return the same walk in the fewest modes: join neighbouring modes that continue each other.

    Example:
        >>> merge([Mode(8, 0, 1), Mode(2, 0, 8), Mode(1, 1, 4), Mode(2, 1, 8)])
        (Mode(extent=16, dim=0, step=1), Mode(extent=2, dim=1, step=8))
    """
    merged: list[Mode] = []
    for mode in modes:
        if mode.extent == 1:
            continue
        last = merged[-1] if merged else None
        continues = last is not None and last.dim == mode.dim
        if last is not None and continues and (mode.dim is None or mode.step == last.step * last.extent):
            merged[-1] = Mode(last.extent * mode.extent, last.dim, last.step)
        else:
            merged.append(mode)
    return tuple(merged)


def take(modes: Sequence[Mode], count: int) -> tuple[tuple[Mode, ...], tuple[Mode, ...]] | None:
    """Split off the fastest ``count`` steps of a walk; None if the modes cannot be cut there.

    Example:
        >>> take([Mode(2, 1, 8), Mode(8, 0, 8)], 4)
        ((Mode(extent=2, dim=1, step=8), Mode(extent=2, dim=0, step=8)), (Mode(extent=4, dim=0, step=16),))
    """
    taken: list[Mode] = []
    left = list(modes)
    while count > 1:
        if not left:
            return None
        mode = left.pop(0)
        if count % mode.extent == 0:
            taken.append(mode)
            count //= mode.extent
        elif mode.extent % count == 0:
            taken.append(Mode(count, mode.dim, mode.step))
            left.insert(0, Mode(mode.extent // count, mode.dim, mode.step * count))
            count = 1
        else:
            return None
    return tuple(taken), tuple(left)


def check_modes(modes: Iterable[Mode], rank: int) -> None:
    """Refuse modes that are illegal in a map of a tile of this rank.

    Raises:
        LayoutError: an extent is below 1, the tile has no such dimension, or a number is not an integer.
    """
    for mode in modes:
        extent, dim, step = mode
        if not (is_integer(extent) and is_integer(step) and (dim is None or is_integer(dim))):
            raise LayoutError(f"{shown(mode)}: extent and step are integers, and dim is one or None")
        if extent < 1 or (dim is not None and not 0 <= dim < rank):
            raise LayoutError(
                f"{mode} of a map of a tile of rank {rank}: the extent is at least 1, and dim one of the "
                f"tile's dimensions, 0 to {rank - 1}, or None"
            )
