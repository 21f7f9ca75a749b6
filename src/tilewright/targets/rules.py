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
        self._rules: dict[tuple[type[Op], str], Callable[..., Any]] = {}

    def rule(self, *ops: type[Op], variant: str = "") -> Callable[[RuleType], RuleType]:
        """Decorate the function that serves the operation classes ``ops``.

        Args:
            ops: the classes.
            variant: which operations of them, by `Op.variant`: of copies the engine.
        """

        def register(function: RuleType) -> RuleType:
            for op in ops:
                self._rules[op, variant] = function
            return function

        return register

    def find(self, op: type[Op], variant: str = "") -> Callable[..., Any] | None:
        """The rule of an operation class here or in a parent, or None."""
        if (op, variant) in self._rules:
            return self._rules[op, variant]
        return None if self.parent is None else self.parent.find(op, variant)

    def lookup(self, op: Op) -> Callable[..., Any]:
        """The rule of an operation.

        Raises:
            MissingRuleError: the target has none; names the operation and the target.
        """
        found = self.find(type(op), op.variant)
        if found is None:
            raise MissingRuleError(f"target {self.target} has no rule for operation {op.verb}", op.location)
        return found
