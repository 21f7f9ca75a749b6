"""Traits of operations: the memories that each touches, the engines that execute it, and its orderings.

Traits hold for every target.  Passes, checkers and the generated grammar page read them.
"""

from __future__ import annotations

from typing import NamedTuple

REGISTERS, SHARED, GLOBAL = "registers", "shared", "global"
ADDRESSED = (SHARED, GLOBAL)
ANYWHERE = (REGISTERS, SHARED, GLOBAL)

THREADS = "threads"
"""Ordinary instructions of the threads themselves."""
ASYNC = "asynchronous copies"
"""Asynchronous copies that threads issue, element by element."""
BULK = "bulk copies"
"""Copies of a whole box that one thread issues and a separate unit executes."""
MULTIPLIES = "asynchronous multiplies"
"""Asynchronous multiplies that a warpgroup issues; the unit itself reads shared memory."""
ENGINES = (THREADS, ASYNC, BULK, MULTIPLIES)

SCOPES = ("thread", "warp", "role", "block", "cluster", "device", "grid")
"""Scopes of an ordering, the smallest first; ``"grid"`` orders one grid after another."""


class Traits(NamedTuple):
    """Properties of every operation of a class.

    Args:
        memories: memories that the operation may touch; empty if it touches none.
        engines: engines that may execute it; empty if it only declares or names a value.
    """

    memories: tuple[str, ...] = ()
    engines: tuple[str, ...] = (THREADS,)


class Order(NamedTuple):
    """Accesses to ``memories`` by ``before`` come before those by ``after``, within a scope.

    Args:
        scope: one of `SCOPES`.
        memories: the memories whose accesses are ordered.
        before: the engines whose earlier accesses are waited for, or made visible.
        after: the engines whose later accesses come after these.
        half: the half of a split ordering: ``"release"`` or ``"acquire"``; empty if it is whole.
    """

    scope: str
    memories: tuple[str, ...]
    before: tuple[str, ...] = (THREADS,)
    after: tuple[str, ...] = (THREADS,)
    half: str = ""


NAMES = Traits((), ())
"""Traits of operations that only declare or name a value: nothing is executed."""
IN_REGISTERS = Traits((REGISTERS,))
CONTROL = Traits()
"""Traits of operations that only control the flow, count or wait."""
