"""The copy: one operation for every movement of a tile, which one of four engines carries out.

``direct``: threads load and store, and the copy is done when they go on.  ``matrix``: the lanes of a warp
exchange rows of 16 bytes as they load or store.  ``async``: threads start accesses that go on in the
background, in groups.  ``bulk``: one thread starts the copy of a box, which an engine beside the threads
makes.  `ENGINES` says what each of them takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias, TypeGuard

from tilewright.errors import Violation
from tilewright.ir.op import Op
from tilewright.ir.reductions import REDUCTIONS
from tilewright.ir.traits import ANYWHERE, ASYNC, BULK, THREADS, Traits
from tilewright.ir.types import BarrierType, FragmentType, TensorType, Value
from tilewright.symbolic.nodes import Int
from tilewright.threads.distribution import Distribution, Mode

BULK_VERBS = ("tma_load", "tma_store")
"""What authors call bulk copies, into shared memory and out of it."""

Way: TypeAlias = tuple[str, str]
"""From where to where: ``"global"``, ``"shared"`` or ``"registers"``."""


@dataclass(frozen=True)
class Matrices:
    """How the lanes of a warp exchange what they load or store: matrices of 8 rows of 16 bytes.

    Args:
        count: matrices of one instruction.
        transposed: whether a lane gets elements of a column, instead of a row.
        lanes: the rows whose addresses the threads give, as modes of the thread index.
        values: the matrices of further instructions, as modes.
        word: elements in four bytes.
    """

    count: int
    transposed: bool
    lanes: tuple[Mode, ...]
    values: tuple[Mode, ...]
    word: int


@dataclass(frozen=True)
class Copy(Op):
    """``target = source``, element by element, converting to the target's dtype (round to nearest even).

    Elements invalid in the source read as ``other``; those invalid in the target are not written.

    Args:
        source: tensor or fragment.
        target: tensor or fragment of the same shape.
        distribution: which thread moves what, for a copy between memories; a fragment brings its own.
        vector: elements per access along the distribution's first value mode; None: the widest legal.
        other: what elements outside of the source read as, in the source's dtype.
        engine: who moves the tile, one of `ENGINES`; None: the target chooses between those that need no
            waiting for.
        completion: how others know that it is done: ``"none"``: when its threads go on; ``"group"``: when the
            group of copies is waited for that they close next; ``"barrier"``: its bytes count for the present
            phase of ``barrier[stage]``.
        barrier: a transaction barrier.
        stage: which of its stages.
        reduction: None, or ``target = reduction(target, source)`` for each element by itself.
        matrices: of the matrix engine, who names which row; None before a target has chosen.
        multicast: of a bulk copy, axes of the cluster: every block that differs from this one only along them
            gets the box, at the same place of its own ``target``, and the bytes count at its own barrier.
        readers: of a bulk copy, how many load these elements in the whole launch; 0: nobody says.
    """

    name = "copy"
    traits = Traits(ANYWHERE, (THREADS, ASYNC, BULK))
    roles: ClassVar = {"source": "reads", "target": "writes", "barrier": "uses"}
    source: Value
    target: Value
    distribution: Distribution | None = None
    vector: int | None = None
    other: float | int = 0
    engine: str | None = None
    completion: str = "none"
    barrier: Value | None = None
    stage: Int = 0
    reduction: str | None = None
    matrices: Matrices | None = None
    multicast: tuple[int, ...] = ()
    readers: Int = 0

    @property
    def variant(self) -> str:
        """The engine; threads that load and store, if none is chosen yet."""
        return self.engine or "direct"

    @property
    def verb(self) -> str:
        """What authors call it."""
        if self.engine == "bulk":
            return BULK_VERBS[self.completion != "barrier"]
        return "copy_async" if self.engine == "async" else "copy"

    @property
    def way(self) -> Way:
        """From where to where."""
        return place_of(self.source), place_of(self.target)

    @property
    def ends(self) -> tuple[Value, Value]:
        """Of a bulk copy, the end in global memory and that in shared memory."""
        return (self.source, self.target) if self.verb == BULK_VERBS[0] else (self.target, self.source)

    @property
    def spread(self) -> Distribution:
        """The distribution that the copy follows."""
        if self.distribution is not None:
            return self.distribution
        for value in (self.target, self.source):
            if isinstance(value.type, FragmentType | TensorType) and value.type.distribution is not None:
                return value.type.distribution
        raise TypeError(f"copy {self.source} -> {self.target} has no distribution")


def place_of(value: Value) -> str:
    """Where a value lies: ``"global"``, ``"shared"`` or ``"registers"``."""
    return "registers" if value.is_fragment else value.tensor.memory.value


def is_bulk(op: Op) -> TypeGuard[Copy]:
    """Whether an operation is a copy of a box by the engine beside the threads."""
    return isinstance(op, Copy) and op.engine == "bulk"


def is_bulk_load(op: Op) -> TypeGuard[Copy]:
    """Whether an operation is a bulk copy whose bytes count at a barrier: into shared memory."""
    return is_bulk(op) and op.completion == "barrier"


def is_bulk_store(op: Op) -> TypeGuard[Copy]:
    """Whether an operation is a bulk copy that completes with its group: out of shared memory."""
    return is_bulk(op) and op.completion == "group"


def is_by_threads(op: Op) -> TypeGuard[Copy]:
    """Whether an operation is a copy whose elements the threads share out by a distribution."""
    return isinstance(op, Copy) and op.engine != "bulk"


def is_in_background(op: Op) -> TypeGuard[Copy]:
    """Whether an operation is a copy whose accesses threads start, and which goes on beside them."""
    return isinstance(op, Copy) and op.engine == "async"


@dataclass(frozen=True)
class Engine:
    """What an engine takes.

    Args:
        ways: from where to where it moves tiles, and how each way completes.
        reductions: with what each way may combine the element that is there.
    """

    ways: Mapping[Way, str]
    reductions: Mapping[Way, tuple[str, ...]] = field(default_factory=dict)

    def verify_ends(self, op: Copy) -> Iterator[Violation]:
        """Whether a copy completes, and reduces, as its engine does between these ends."""
        completes = self.ways[op.way]
        if op.completion != completes:
            text = f"the {op.variant} engine completes by {completes}, not by {op.completion}"
            yield op.violation("completion", text, f"completion={completes!r}")
        has_barrier = op.barrier is not None and isinstance(op.barrier.type, BarrierType)
        if has_barrier != (completes == "barrier"):
            text = f"{op.barrier or 'no barrier'} for a copy that completes by {op.completion}"
            yield op.violation(
                "completion", text, "a tw.hopper.mbarrier" if completes == "barrier" else "none"
            )
        if op.reduction is not None and op.reduction not in (known := self.reductions.get(op.way, ())):
            text = f"the {op.variant} engine reduces nothing from {op.way[0]} into {op.way[1]}"
            nearest = " or ".join(known) or "a target in global memory, or arithmetic in registers"
            yield op.violation("reduction", text, nearest)


PLACES = ("global", "shared", "registers")

ENGINES: Mapping[str, Engine] = {
    "direct": Engine(
        {(a, b): "none" for a in PLACES for b in PLACES},
        {(place, memory): tuple(REDUCTIONS) for place in PLACES for memory in ("global", "shared")},
    ),
    "matrix": Engine({("shared", "registers"): "none", ("registers", "shared"): "none"}),
    "async": Engine({("global", "shared"): "group"}),
    "bulk": Engine(
        {("global", "shared"): "barrier", ("shared", "global"): "group"},
        {("shared", "global"): tuple(REDUCTIONS)},
    ),
}
"""Who moves tiles."""
