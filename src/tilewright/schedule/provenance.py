"""Provenance of the operations of an expanded kernel: a value of the graph, and a field of the schedule.

Code that records a part of the explicit kernel names both in a `with` statement.  They become part of the
location of every operation, which errors, findings and the generated text show.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from tilewright.dataflow.nodes import Arrival, Departure, Node, Store
from tilewright.errors import Origin
from tilewright.lang.source import made_from, origin
from tilewright.schedule.schedule import Schedule

FIELD_OF_VERB = {
    "load": "staging",
    "put": "staging",
    "fetch": "staging",
    "read": "staging",
    "decode": "staging",
    "ready": "stages",
    "acquire": "stages",
    "clear": "stages",
    "release": "stages",
    "turn": "roles",
    "multiply": "atom",
    "retire": "atom",
    "promote": "promote",
    "scale": "promote",
}
"""For each verb of the main loop the field of the schedule that controls it."""

_SCHEDULE: ContextVar[Schedule] = ContextVar("the schedule by which a kernel is being expanded")

Item = TypeVar("Item")


@contextmanager
def expanding(schedule: Schedule, node: Node | Store) -> Iterator[None]:
    """Attribute the operations of the with block to a schedule and to a value of the graph."""
    token = _SCHEDULE.set(schedule)
    try:
        with made_by("tile", node):
            yield
    finally:
        _SCHEDULE.reset(token)


@contextmanager
def made_by(
    field: str | None = None, node: Node | Store | Arrival | Departure | None = None
) -> Iterator[None]:
    """Attribute the operations of the with block to a field of the schedule and to a value of the graph.

    Args:
        field: the field of `Schedule`; default: the field of the enclosing block.
        node: the value; default: the value of the enclosing block.
    """
    outer = origin()
    if outer is not None:
        field, node = field or outer.field, node or outer.node
    assert field is not None
    assert node is not None
    where = node.location
    frames = where.frames if where is not None else outer.frames if outer is not None else ()
    with made_from(Origin(node, frames, field, _SCHEDULE.get().spelled(field))):
        yield


def each_made_by(field: str, items: Iterable[Item], node: Node | Store | None = None) -> Iterator[Item]:
    """Yield the items, and attribute the operations that find the next item to a field."""
    found, end = iter(items), object()
    while True:
        with made_by(field, node):
            item: Any = next(found, end)
        if item is end:
            return
        yield item
