"""Reductions that results along one dimension alone are made of: tiles may compute a part of each."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.dataflow.nodes import Map, Node, Rearrange, Reduce, Store, walk
from tilewright.schedule.form import Form

POWERS = ("exp", "exp2")
"""Functions ``f`` for which ``f(x - a) = f(x - b) * f(b - a)``."""


def reduced_in_parts(form: Form) -> tuple[Reduce, ...]:
    """The reductions of a flow, if all of them can be made of those of its tiles.

    That is so where only what is stored along rows or columns alone is computed from them, and where none is
    computed from another one, but for the sum of powers above their maximum.

    Args:
        form: what is computed.
    """
    found = [node for node in form.flow.walk() if isinstance(node, Reduce)]
    if form.lists or form.flow.grouped is not None or not found:
        return ()
    stored = [node for store in form.stores if is_block(form, store) for node in walk(store.value)]
    if any(isinstance(node, Reduce) for node in stored):
        return ()
    return tuple(found) if all(_is_alone(node) for node in found) else ()


def is_block(form: Form, store: Store) -> bool:
    """Whether a result is stored along rows and columns."""
    return {form.m, form.n} <= {*store.at}


def shift_of(node: Reduce) -> tuple[Reduce, str] | None:
    """Of ``sum of f(x - max of x)`` the maximum, and f; None of anything else."""
    power = _plain(node.argument)
    if node.combine != "sum" or not isinstance(power, Map) or power.function not in POWERS:
        return None
    difference = _plain(power.given[0])
    if not isinstance(difference, Map) or difference.function != "sub":
        return None
    value, top = (_plain(one) for one in difference.given)
    if not isinstance(top, Reduce) or top.combine != "max" or _plain(top.argument) is not value:
        return None
    same = top.argument.axes[top.axis] == node.argument.axes[node.axis]
    return (top, power.function) if same else None


def _is_alone(node: Reduce) -> bool:
    """Whether a reduction is of what tiles know by themselves."""
    inner = [one for one in _inside(node) if isinstance(one, Reduce)]
    shift = shift_of(node)
    return not inner or (shift is not None and inner == [shift[0]])


def _inside(node: Reduce) -> Iterator[Node]:
    return (one for one in walk(node.argument))


def _plain(node: Node) -> Node:
    """A value without what only puts its axes in another order, or adds some."""
    while isinstance(node, Rearrange):
        node = node.argument
    return node
