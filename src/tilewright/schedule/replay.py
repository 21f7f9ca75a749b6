"""A value of a dataflow graph, computed again for some of its elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.dataflow.nodes import Literal, Map, Node
from tilewright.functions.table import CONVERSION
from tilewright.lang.fragments import elementwise
from tilewright.schedule.factors import plain


def replay(node: Node, leaf: Callable[[Node], Any], made: dict[Node, Any] | None = None) -> Any:
    """The value, by the functions that it is made of; each value that it is made of is computed once.

    Args:
        node: the value.
        leaf: gives what is no function of other values: parts of arrays, sums, numbers of the launch.
        made: the values that are computed already; grows.
    """
    made = {} if made is None else made
    node = plain(node)  # the same elements, which are known by their rows and k
    if isinstance(node, Literal):
        return node.value
    if not isinstance(node, Map):
        return leaf(node)
    given = [plain(argument) for argument in node.given]
    for argument in given:
        if argument not in made:
            made[argument] = replay(argument, leaf, made)
    values = [made[argument] for argument in given]
    return elementwise(node.function, *values, dtype=node.dtype if node.function in CONVERSION else None)
