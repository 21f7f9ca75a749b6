"""The main loop: the one place where a K loop is written.

Its body is a list of verbs, each with the distance at which it runs ahead of the multiplication or behind
it: load the tile ``s`` steps ahead, multiply this one, release the last one.  What comes before the steady
state and after it follows from the distances, and is written nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.lang.control import range as traced_range
from tilewright.lang.control import unroll, when
from tilewright.lang.scalars import Condition, Index
from tilewright.schedule.provenance import FIELD_OF_VERB, made_by


@dataclass
class LoopStep:
    """The step on which a verb works.

    Args:
        index: the tile along K.
        part: which of its parts.
        behind: how many parts have been begun after this one.
        ahead: tiles between this one and the iteration's own; negative behind it.
        shared: what the verbs of one iteration know together, such as the name of its stage.
        inside: whether the loop has such a tile.
    """

    index: Index
    part: int
    behind: int
    ahead: int
    shared: dict[str, Any] = field(default_factory=dict)
    inside: Condition | bool = True


@dataclass(frozen=True)
class Verb:
    """Something that is done once for each part of each tile, or once for each tile.

    Args:
        name: one of `FIELD_OF_VERB`, e.g. ``"load"``.
        distance: how many parts ahead of the multiplication; negative behind it.
        do: what it does.
        every: 1, or the number of parts of a tile: then it is done for a tile's first part alone.
        outside: whether it may run for tiles before the first and behind the last: then no branch guards it.
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
) -> None:
    """``for k in range(count): for part in range(parts): every verb, each at its distance``.

    Args:
        verbs: in the order in which one iteration does them.
        count: tiles along K.
        parts: how many parts a tile is multiplied in.
        issued: what is done when the last step is begun, before those are ended that are under way.
        copies: of the body in each turn of the loop.
    """
    ahead = max(verb.distance for verb in verbs)
    behind = -min(verb.distance for verb in verbs)
    for time in unroll(ahead):
        for verb, at in _due(verbs, time - ahead):
            if at >= 0:
                tile = at // parts
                _do(verb, LoopStep(tile, at % parts, 0, tile, inside=tile < count))
    for k in traced_range(count, unroll=copies > 1 and copies, provenance="mainloop"):
        shared: dict[str, Any] = {}
        for part in unroll(parts):
            for verb, at in _due(verbs, part):
                tile = at // parts
                inside = True if tile == 0 else k + tile < count if tile > 0 else k + tile >= 0
                _do(verb, LoopStep(k + tile, at % parts, part - at, tile, shared, inside))
    with made_by("roles"):
        issued()
    for time in unroll(behind):
        for verb, at in _due(verbs, time):
            if at < 0:
                tile = at // parts
                _do(verb, LoopStep(count + tile, at % parts, -1 - at, tile, inside=count + tile >= 0))


def _due(verbs: Sequence[Verb], time: int) -> list[tuple[Verb, int]]:
    """The verbs that are done at a time, each with the part that it is done for."""
    return [(verb, time + verb.distance) for verb in verbs if (time + verb.distance) % verb.every == 0]


def _do(verb: Verb, step: LoopStep) -> None:
    with made_by(FIELD_OF_VERB[verb.name]):
        if verb.outside or step.inside is True:
            verb.do(step)
        elif step.inside is not False:
            with when(step.inside):
                verb.do(step)
