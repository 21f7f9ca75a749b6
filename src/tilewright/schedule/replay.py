"""A value of a dataflow graph, computed again for some of its elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.dataflow.nodes import Literal, Map, Node, Rearrange
from tilewright.functions.table import CONVERSION
from tilewright.lang.fragments import elementwise


def replay(node: Node, leaf: Callable[[Node], Any]) -> Any:
    """The value, by the functions that it is made of.

    Args:
        node: the value.
        leaf: gives what is no function of other values: parts of arrays, sums, numbers of the launch.
    """
    if isinstance(node, Rearrange):  # the same elements, which are known by their rows and k
        return replay(node.argument, leaf)
    if isinstance(node, Literal):
        return node.value
    if not isinstance(node, Map):
        return leaf(node)
    given = [replay(argument, leaf) for argument in node.given]
    return elementwise(node.function, *given, dtype=node.dtype if node.function in CONVERSION else None)
