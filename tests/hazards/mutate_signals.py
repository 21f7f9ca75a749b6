"""Mutants of counters: signals, tickets, waits and resets that are missing, doubled, or miscounted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilewright.ir.op import Op
from tilewright.ir.signal_ops import Await, Reset, Signal, Ticket
from tilewright.symbolic.expr import add

from .mutate_async import Change


def signal_changes(op: Op) -> Iterator[tuple[str, Change]]:
    """Yield every small change of an operation on a counter."""
    match op:
        case Signal() | Ticket() | Await() | Reset():
            yield "removed", lambda op: ()
    match op:
        case Signal() | Ticket():
            yield "twice", lambda op: (op, op)
            if op.of is not None:
                yield "not reset", lambda op: (replace(op, of=None),)
                for by in (1, -1):
                    yield f"of {by:+}", lambda op, by=by: (replace(op, of=add(op.of, by)),)
        case Await():
            for by in (1, -1):
                yield f"value {by:+}", lambda op, by=by: (replace(op, value=add(op.value, by)),)
