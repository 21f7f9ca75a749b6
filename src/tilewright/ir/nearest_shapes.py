"""Suggestions for copies whose two sides have different shapes."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.types import Value
from tilewright.symbolic.nodes import Int


def nearest_shapes(source: Value, target: Value, shapes: tuple[Sequence[Int], Sequence[Int]]) -> str:
    """Return the transform that gives one side in memory the shape of the other; empty if none exists.

    Args:
        source: the source of the copy.
        target: the target of the copy.
        shapes: the shapes of both.
    """
    if not all(isinstance(extent, int) for shape in shapes for extent in shape):
        return _tile_of(source, target, shapes)
    from_source, from_target = shapes, shapes[::-1]
    tried = (
        (source, _permuted(*from_source)),
        (target, _permuted(*from_target)),
        (target, _with_one_more(*from_target)),
        (source, _with_one_more(*from_source)),
        (source, _repeated(*from_source)),  # the target must not be written several times
    )
    return next((f"{value}.{way}" for value, way in tried if way and not value.is_fragment), "")


def _tile_of(source: Value, target: Value, shapes: tuple[Sequence[Int], Sequence[Int]]) -> str:
    """Return a tile of the side that is a whole array, in the shape of the other side."""
    for value, own, wanted in ((source, *shapes), (target, *shapes[::-1])):
        known = [all(isinstance(extent, int) for extent in shape) for shape in (own, wanted)]
        if known == [False, True] and len(own) == len(wanted) <= 3:
            one = "," * (len(own) == 1)
            return (
                f"{value}.tile(({', '.join(map(str, wanted))}{one}), ({', '.join('mnk'[: len(own)])}{one}))"
            )
    return ""


def _permuted(own: Sequence[Int], wanted: Sequence[Int]) -> str:
    swapped = len(own) == len(wanted) == 2 and list(own) == [wanted[1], wanted[0]]
    return "permute(1, 0)" if swapped else ""


def _with_one_more(own: Sequence[Int], wanted: Sequence[Int]) -> str:
    """Return the transform that adds a dimension of extent 1."""
    for at in range(len(wanted)):
        if wanted[at] == 1 and [*wanted[:at], *wanted[at + 1 :]] == list(own) and own:
            dim, parts = (at - 1, (own[at - 1], 1)) if at else (0, (1, own[0]))
            return f"unmerge({dim}, {parts})"
    return ""


def _repeated(own: Sequence[Int], wanted: Sequence[Int]) -> str:
    """Return the transform that adds a dimension along which elements repeat."""
    for at in range(len(wanted)):
        if [*wanted[:at], *wanted[at + 1 :]] == list(own):
            return f"broadcast({at}, {wanted[at]})"
    return ""
