"""How much compiled code this process keeps loaded: a bound, and who goes when it is reached.

Bound kernels and plans remember launches, which hold their executables, which hold the machine code.  When
there are too many executables, one that was not launched for long is chosen, and everybody who remembers it
forgets it.  What a caller holds, such as a prepared launch, goes on to work: code is unloaded when the last
one that holds it is gone.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Protocol

from tilewright.runtime.executable import Executable, Prepared
from tilewright.runtime.recent import Recent, clock

MOST_EXECUTABLES = 256
"""How many executables are remembered in one process, over all kernels, constants and classes of arrays."""


class Rememberer(Protocol):
    """Whoever keeps executables, or launches of them, for later calls."""

    def forget(self, executable: Executable) -> None:
        """Let go of an executable and of everything that holds it."""


_rememberers: weakref.WeakSet[Rememberer] = weakref.WeakSet()
_numbers = itertools.count()


def remembers(who: Rememberer) -> None:
    """Have ``who`` told what to forget, as long as it lives."""
    _rememberers.add(who)


def enter(executable: Executable) -> None:
    """Count an executable that is remembered from now on; one that was not used for long may go for it."""
    _entered.forget(lambda known: known() is None)
    _entered.keep(next(_numbers), weakref.ref(executable))


def last_launch(launch: Prepared) -> int:
    """When it was launched last, as far as anybody has asked: several ask, so the answer is kept."""
    if launch.recent:
        launch.recent, launch.seen = False, next(clock)
    return launch.seen


def last_use(executable: Executable) -> int:
    """When any launch of it was launched last."""
    return max(map(last_launch, list(executable.launches)), default=0)


def _used(known: weakref.ref[Executable]) -> int:
    executable = known()
    return 0 if executable is None else last_use(executable)


def _let_go(known: weakref.ref[Executable]) -> None:
    executable = known()
    if executable is not None:
        for who in list(_rememberers):
            who.forget(executable)


_entered: Recent[int, weakref.ref[Executable]] = Recent(MOST_EXECUTABLES, _used, _let_go)
