"""Which memories an operation touches, what carries it out, and which accesses it orders: data on each op.

What an op says here holds for every target; passes, checkers and the page of the grammar read it.
"""

from __future__ import annotations

from typing import NamedTuple

REGISTERS, SHARED, GLOBAL = "registers", "shared", "global"
ADDRESSED = (SHARED, GLOBAL)
ANYWHERE = (REGISTERS, SHARED, GLOBAL)

THREADS = "threads"
"""Ordinary instructions of the threads themselves."""
ASYNC = "asynchronous copies"
"""Copies that threads issue and that move on without them, element by element."""
BULK = "bulk copies"
"""Copies that one thread issues and that another unit carries out as a whole."""
MULTIPLIES = "asynchronous multiplies"
"""Multiplies that a warpgroup issues and that read shared memory by themselves."""
ENGINES = (THREADS, ASYNC, BULK, MULTIPLIES)

SCOPES = ("thread", "warp", "role", "block", "cluster", "device", "grid")
"""Whose accesses an ordering is about, the smallest first; ``"grid"`` is one grid after another."""


class Traits(NamedTuple):
    """What is true of every operation of a class.

    Args:
        memories: what its contents may lie in; empty if it touches none.
        engines: what may carry it out; empty if nothing is executed: it declares or names.
    """

    memories: tuple[str, ...] = ()
    engines: tuple[str, ...] = (THREADS,)


class Order(NamedTuple):
    """Accesses to ``memories`` by ``before`` come before those by ``after``, within a scope.

    Args:
        scope: one of `SCOPES`.
        memories: whose contents are ordered.
        before: the engines whose earlier accesses are waited for, or made visible.
        after: the engines whose later accesses come behind.
        half: an ordering may have two halves: ``"release"`` and ``"acquire"``; empty if it is whole.
    """

    scope: str
    memories: tuple[str, ...]
    before: tuple[str, ...] = (THREADS,)
    after: tuple[str, ...] = (THREADS,)
    half: str = ""


NAMES = Traits((), ())
"""Of what declares or names something: nothing is executed."""
IN_REGISTERS = Traits((REGISTERS,))
CONTROL = Traits()
"""Of what only steers, counts or waits."""
