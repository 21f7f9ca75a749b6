"""Rule tables: what a target does for each kind of operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from tilewright.errors import MissingRuleError
from tilewright.ir.ops import Op

RuleType = TypeVar("RuleType", bound=Callable[..., Any])


class RuleTable:
    """Maps operation classes to functions; what it lacks it asks of its parent.

    Example:
        >>> from tilewright.ir.ops import Barrier
        >>> table = RuleTable("demo")
        >>> @table.rule(Barrier)
        ... def barrier(op):
        ...     return "wait"
        >>> table.lookup(Barrier())(Barrier())
        'wait'
    """

    def __init__(self, target: str, parent: RuleTable | None = None) -> None:
        self.target = target
        self.parent = parent
        self._rules: dict[type[Op], Callable[..., Any]] = {}

    def rule(self, *ops: type[Op]) -> Callable[[RuleType], RuleType]:
        """Decorate the function that serves the operation classes ``ops``."""

        def register(function: RuleType) -> RuleType:
            for op in ops:
                self._rules[op] = function
            return function

        return register

    def find(self, op: type[Op]) -> Callable[..., Any] | None:
        """The rule of an operation class here or in a parent, or None."""
        if op in self._rules:
            return self._rules[op]
        return None if self.parent is None else self.parent.find(op)

    def lookup(self, op: Op) -> Callable[..., Any]:
        """The rule of an operation.

        Raises:
            MissingRuleError: the target has none; names the operation and the target.
        """
        found = self.find(type(op))
        if found is None:
            raise MissingRuleError(f"target {self.target} has no rule for operation {op.name}", op.location)
        return found
