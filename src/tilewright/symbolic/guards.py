"""Conditions on the sizes of a launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.symbolic.nodes import Cond, Int, Sym
from tilewright.symbolic.rebuilding import evaluate, symbols


@dataclass(frozen=True)
class Guard:
    """A condition on the sizes that the launcher checks.

    Args:
        condition: over the sizes.
        message: what it means to the caller, with a place ``{}`` for each value if there are any.
        values: integers over the sizes that the message names.
    """

    condition: Cond
    message: str
    values: tuple[Int, ...] = ()

    def broken(self, env: Mapping[Sym, int]) -> str | None:
        """The message, if these sizes are known to break the condition.

        Args:
            env: the value of each size that is known.
        """
        if not symbols(self.condition) <= env.keys() or evaluate(self.condition, env):
            return None
        if not self.values:
            return self.message  # an author's own words, in which braces are braces
        return self.message.format(*(evaluate(value, env) for value in self.values))
