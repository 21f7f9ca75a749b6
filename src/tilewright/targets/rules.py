"""Rule tables of targets, and the record of the text that a target emits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from tilewright.errors import Location, MissingRuleError
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import Op

RuleType = TypeVar("RuleType", bound=Callable[..., Any])


class RuleTable:
    """Maps operation classes to functions; a missing rule is looked up in the parent.

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
        """Decorate the function that emits the operation classes ``ops``.

        Args:
            ops: the classes.
            variant: the `Op.variant` of the operations; for copies the engine.
        """

        def register(function: RuleType) -> RuleType:
            for op in ops:
                self._rules[op, variant] = function
            return function

        return register

    def find(self, op: type[Op], variant: str = "") -> Callable[..., Any] | None:
        """Return the rule of an operation class here or in a parent, or None."""
        if (op, variant) in self._rules:
            return self._rules[op, variant]
        return None if self.parent is None else self.parent.find(op, variant)

    def lookup(self, op: Op) -> Callable[..., Any]:
        """Return the rule of an operation.

        Raises:
            MissingRuleError: the target has no rule; the message names the operation and the target.
        """
        found = self.find(type(op), op.variant)
        if found is None:
            raise MissingRuleError(f"target {self.target} has no rule for operation {op.verb}", op.location)
        return found


# ---------------------------------------------------------------- emitted text


class CopySpelling(NamedTuple):
    """Access width of a copy that the lowered kernel leaves open.

    Args:
        elems: elements per access; None if the compiler decides.
        how: the access in words, with what limits the compiler's choice.
    """

    elems: int | None
    how: str


@dataclass(frozen=True)
class EmittedText:
    """Generated text, with the data that the launcher needs.

    Args:
        text: the source.
        entry: the name of the function to call.
        kernel: the lowered kernel; its parameters are the function's, in order.
        shared_bytes: bytes of shared memory per block (CPU: scratch memory per worker).
        notes: choices of the target, one sentence each (a re-laid-out shared tensor, a widened vector).
        accesses: the access of copies, by operation and line, if the target chooses it during emission.
        lines: the operation of the lowered kernel for each line of the text, counted from 1.
    """

    text: str
    entry: str
    kernel: Kernel
    shared_bytes: int
    notes: tuple[str, ...] = ()
    accesses: Mapping[tuple[Op, Location | None], CopySpelling] = field(default_factory=dict)
    lines: Mapping[int, Op] = field(default_factory=dict)

    @property
    def code(self) -> str:
        """The compiled text: without comment lines, which name the author's source lines."""
        return "\n".join(line for line in self.text.splitlines() if not line.lstrip().startswith("//"))
