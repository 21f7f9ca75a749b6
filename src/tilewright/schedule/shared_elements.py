"""Parts of arrays of which neighbours have elements in common."""

from __future__ import annotations

from dataclasses import replace

from tilewright.dataflow.nodes import Node, Part, Span
from tilewright.views.transforms import Repeat


def same(one: Node, other: Node) -> bool:
    """Whether two nodes are the same part of the same array."""
    if not (isinstance(one, Part) and isinstance(other, Part)):
        return False
    return (one.operand, one.at) == (other.operand, other.at)


def run_along(part: Part, span: Span) -> int | None:
    """How many neighbours along a span are one element of the array; None: all of them.

    Args:
        part: of an array, or of a view in which each of its elements stands several times.
        span: along which.
    """
    if span not in part.at:
        return None
    dim, found = part.at.index(span), 1
    for transform in reversed(part.operand.transforms):
        if not isinstance(transform, Repeat):
            break
        found *= transform.count if transform.dim == dim else 1
    return found


def without_repeats(part: Part) -> Part:
    """A part of an array in whose view the last transform repeats elements, without that transform."""
    operand = part.operand
    return replace(part, operand=replace(operand, transforms=operand.transforms[:-1]))
