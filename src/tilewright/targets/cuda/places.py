"""What all rules of background operations spell: who acts for a role, and where barriers and tiles lie."""

from __future__ import annotations

from tilewright.ir.types import Value
from tilewright.symbolic.expr import add
from tilewright.symbolic.nodes import Int
from tilewright.targets.simt.copies import when
from tilewright.targets.simt.dialect import THREAD
from tilewright.targets.simt.emitter import SimtEmitter
from tilewright.targets.statements import Code, Do, code, named

TID = named(THREAD)
FIRST_THREAD = code("{} == 0", TID)


def by_first_thread(emitter: SimtEmitter, what: Code) -> None:
    """What the first thread of the role, or of the block, does for all of it."""
    emitter.add(when(FIRST_THREAD, Do(what)))


def barrier_of(emitter: SimtEmitter, barrier: Value, stage: Int) -> Code:
    """The address of a stage of a transaction barrier."""
    return emitter.plus(emitter.name(barrier), stage)


def address_of(emitter: SimtEmitter, tile: Value, step: Int = 0) -> Code:
    """The address of a tile's first element, plus ``step`` elements."""
    view = tile.tensor.view
    start = view.at((0,) * view.rank)
    return emitter.plus(emitter.name(tile.buffer), add(start, step))
