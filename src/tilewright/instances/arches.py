"""The architectures that instances are made for."""

from __future__ import annotations

from typing import NamedTuple

LDS_BYTES = 64 * 1024
"""Shared memory of a block, where no architecture says otherwise."""


class Machine(NamedTuple):
    """What an instance asks of an architecture.

    Args:
        matrix: the matrix instructions that it has, ``"wmma"`` or ``"xdl"``.
        lds_bytes: most shared memory of one block.
    """

    matrix: str
    lds_bytes: int = LDS_BYTES


WMMA = ("gfx1100", "gfx1101", "gfx1102", "gfx1103", "gfx1150", "gfx1151", "gfx1152", "gfx1200", "gfx1201")
XDL = ("gfx908", "gfx90a", "gfx940", "gfx941", "gfx942")

MACHINES: dict[str, Machine] = {
    **{name: Machine("wmma") for name in WMMA},
    **{name: Machine("xdl") for name in XDL},
    "gfx950": Machine("xdl", 160 * 1024),
}
"""By the name that a compiler has for them."""


def of_matrix(matrix: str) -> tuple[str, ...]:
    """The architectures that have these instructions."""
    return tuple(name for name, machine in MACHINES.items() if machine.matrix == matrix)
