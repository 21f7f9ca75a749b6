"""The main loop: the only K loop of all schedules.

Its body is a list of verbs, such as load, multiply and release.  Each verb has a distance at which it runs
ahead of the multiplication or after it: load the tile ``s`` steps ahead, multiply this one, release the last
one.  The distances determine the prologue and the epilogue of the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from tilewright.lang.control import range as traced_range
from tilewright.lang.control import unroll, var, when
from tilewright.lang.scalars import Condition, Index
from tilewright.schedule.provenance import FIELD_OF_VERB, made_by


@dataclass
class LoopStep:
    """The step on which a verb works.

    Args:
        index: index of the tile along K.
        part: index of the part in the tile.
        behind: number of parts that have begun after this one.
        ahead: distance of the tile from the iteration's own tile; negative for an earlier tile.
        shared: values that the verbs of one iteration share, such as its stage.
        inside: whether the loop has this tile.
    """

    index: Index
    part: int
    behind: int
    ahead: int
    shared: dict[str, Any] = field(default_factory=dict)
    inside: Condition | bool = True


@dataclass(frozen=True)
class Verb:
    """An action for each part of each tile, or for each tile.

    Args:
        name: one of `FIELD_OF_VERB`, e.g. ``"load"``.
        distance: parts by which it runs ahead of the multiplication; negative: after it.
        do: the action.
        every: 1, or the number of parts of a tile: then it is done only for a tile's first part.
        outside: whether it may also run before the first tile and after the last; then no branch guards it.
    """

    name: str
    distance: int
    do: Callable[[LoopStep], None]
    every: int = 1
    outside: bool = False


def main_loop(
    verbs: Sequence[Verb],
    count: Index,
    parts: int = 1,
    issued: Callable[[], None] = lambda: None,
    copies: int = 1,
    *,
    peeled: bool = False,
) -> None:
    """``for k in range(count): for part in range(parts): every verb, each at its distance``.

    Args:
        verbs: the verbs, in the order of one iteration.
        count: number of tiles along K.
        parts: number of parts of a tile.
        issued: called after the last step has begun, before pending steps are completed.
        copies: copies of the body in each turn of the loop.
        peeled: whether the first turns, in which a verb has no earlier tile yet, stand before the loop.  Then
            no verb of the loop stands in a branch.  Tiles have one part.
    """
    ahead = max(verb.distance for verb in verbs)
    behind = -min(verb.distance for verb in verbs)
    first = behind if peeled else 0
    if isinstance(count, int):  # with known indices, tracing would copy whole tiles differently
        verbs = [_hiding(verb) if verb.outside and verb.distance > 0 else verb for verb in verbs]
    for time in unroll(ahead + first):
        of_turn: dict[str, Any] = {}
        due = [(verb, at) for verb, at in _due(verbs, time - ahead) if at >= 0]
        for at, some in groupby(due, lambda one: one[1]):
            tile = at // parts
            with when(tile < count) if peeled else nullcontext():
                for verb, _ in some:
                    shared = of_turn if peeled else {}
                    _do(verb, LoopStep(tile, at % parts, 0, tile, shared, inside=peeled or tile < count))
    bounds = (first, count) if peeled else (count,)
    for k in traced_range(*bounds, unroll=copies > 1 and copies, provenance="mainloop"):
        shared = {}
        for part in unroll(parts):
            for verb, at in _due(verbs, part):
                tile = at // parts
                is_known = tile == 0 or (peeled and tile < 0)
                inside = True if is_known else k + tile < count if tile > 0 else k + tile >= 0
                _do(verb, LoopStep(k + tile, at % parts, part - at, tile, shared, inside))
    with made_by("roles"):
        issued()
    for time in unroll(behind):
        due = [(verb, at) for verb, at in _due(verbs, time) if at < 0]
        for at, some in groupby(due, lambda one: one[1]):
            tile = at // parts
            with when(count + tile >= 0) if peeled else nullcontext():
                for verb, _ in some:
                    inside = peeled or count + tile >= 0
                    _do(verb, LoopStep(count + tile, at % parts, -1 - at, tile, inside=inside))


def _hiding(verb: Verb) -> Verb:
    """Return a verb that sees the index of its tile as a variable, so that it copies all tiles in one way."""
    return replace(verb, do=lambda step: verb.do(replace(step, index=var(step.index).get())))


def _due(verbs: Sequence[Verb], time: int) -> list[tuple[Verb, int]]:
    """The verbs that are due at a time, each with the index of its part."""
    return [(verb, time + verb.distance) for verb in verbs if (time + verb.distance) % verb.every == 0]


def _do(verb: Verb, step: LoopStep) -> None:
    """Record a verb for a step, within a branch if the loop may not have the step."""
    with made_by(FIELD_OF_VERB[verb.name]):
        if verb.outside or step.inside is True:
            verb.do(step)
        elif step.inside is not False:
            with when(step.inside):
                verb.do(step)
