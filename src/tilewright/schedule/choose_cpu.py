"""Schedules for processors: the tile that is estimated to take least time on the threads that there are."""

from __future__ import annotations

from tilewright.schedule.choose import Question
from tilewright.schedule.choose_reference import tensor_core
from tilewright.schedule.schedule import Schedule
from tilewright.targets.atoms import fma

ROWS, COLUMNS, DEPTH = (24, 48, 96, 192, 288), (32, 64, 128, 256, 384), 256
"""Tiles that the micro-kernels of all vector widths divide, and whose operands fit the second-level cache."""

PACKING = 16
"""Time to pack one element of a tile's operands, in multiply-adds of the micro-kernel; from measurements."""


def choose(question: Question) -> Schedule:
    """The tile that is estimated to take least time."""
    atom = tensor_core(question) if question.form.precision == "tf32" else None
    atom = atom or fma(question.dtype)
    m, n, _ = question.shape
    side_m, side_n, _ = atom.shape
    tiles = [(tm, tn) for tm in ROWS for tn in COLUMNS if tm % side_m == 0 and tn % side_n == 0]
    tile = min(sorted(tiles, reverse=True), key=lambda tile: tile_time(tile, m, n, question.processors))
    return Schedule(atom, (*tile, DEPTH))


def tile_time(tile: tuple[int, int], m: int, n: int, threads: int) -> float:
    """Estimated time of one step along K: turns of all threads times the work of a tile.

    Example:
        >>> tile_time((192, 256), 512, 512, 2) > tile_time((288, 256), 512, 512, 2)
        True
    """
    turns = -(-(-(-m // tile[0]) * -(-n // tile[1])) // threads)
    return turns * (tile[0] * tile[1] + PACKING * (tile[0] + tile[1]))
