"""The copy: one operation for every movement of a tile, executed by one of four engines.

``direct``: threads load and store, and the copy is complete when they continue.  ``matrix``: the lanes of a
warp exchange rows of 16 bytes as they load or store.  ``async``: threads start asynchronous accesses, in
groups.  ``bulk``: one thread starts the copy of a box, which a separate unit executes.  `ENGINES` lists the
copies that each engine supports.
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
"""Authors' names of bulk copies into and out of shared memory."""

Way: TypeAlias = tuple[str, str]
"""Source and target of a copy: ``"global"``, ``"shared"`` or ``"registers"``."""


@dataclass(frozen=True)
class Matrices:
    """The exchange of loaded or stored elements in a warp: matrices of 8 rows of 16 bytes.

    Args:
        count: matrices per instruction.
        transposed: whether a lane receives elements of a column instead of a row.
        lanes: the rows whose addresses the threads provide, as modes of the thread index.
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
        distribution: the elements of each thread, for a copy between memories; a fragment has its own.
        vector: elements per access along the distribution's first value mode; None: the largest legal number.
        other: value of elements outside the source, in the source's dtype.
        engine: the engine, one of `ENGINES`; None: the target chooses a synchronous one.
        completion: how the copy completes.  ``"none"``: when its threads continue.  ``"group"``: by a wait
            for the group of copies that they commit next.  ``"barrier"``: its bytes count for the current
            phase of ``barrier[stage]``.
        barrier: a transaction barrier.
        stage: the stage of the barrier.
        reduction: None, or the function in ``target = reduction(target, source)``, atomic for each element.
        matrices: for the matrix engine, the row addresses of each lane; None before a target has chosen.
        multicast: for a bulk copy, axes of the cluster: every block that differs from this one only along
            them gets the box at the same offset of its own ``target``; the bytes count at its own barrier.
        readers: for a bulk copy, the number of readers of these elements in the launch; 0: unknown.
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
        """The engine; ``"direct"`` if none is chosen yet."""
        return self.engine or "direct"

    @property
    def verb(self) -> str:
        """The author's name of the operation."""
        if self.engine == "bulk":
            return BULK_VERBS[self.completion != "barrier"]
        return "copy_async" if self.engine == "async" else "copy"

    @property
    def way(self) -> Way:
        """Source and target memory."""
        return place_of(self.source), place_of(self.target)

    @property
    def ends(self) -> tuple[Value, Value]:
        """The operands of a bulk copy: the one in global memory, then the one in shared memory."""
        return (self.source, self.target) if self.verb == BULK_VERBS[0] else (self.target, self.source)

    @property
    def spread(self) -> Distribution:
        """The distribution of the copy over threads."""
        if self.distribution is not None:
            return self.distribution
        for value in (self.target, self.source):
            if isinstance(value.type, FragmentType | TensorType) and value.type.distribution is not None:
                return value.type.distribution
        raise TypeError(f"copy {self.source} -> {self.target} has no distribution")


def place_of(value: Value) -> str:
    """Return the memory of a value: ``"global"``, ``"shared"`` or ``"registers"``."""
    return "registers" if value.is_fragment else value.tensor.memory.value


def is_bulk(op: Op) -> TypeGuard[Copy]:
    """Return whether an operation is a bulk copy."""
    return isinstance(op, Copy) and op.engine == "bulk"


def is_bulk_load(op: Op) -> TypeGuard[Copy]:
    """Return whether an operation is a bulk copy into shared memory, whose bytes count at a barrier."""
    return is_bulk(op) and op.completion == "barrier"


def is_bulk_store(op: Op) -> TypeGuard[Copy]:
    """Return whether an operation is a bulk copy out of shared memory, which completes with its group."""
    return is_bulk(op) and op.completion == "group"


def is_by_threads(op: Op) -> TypeGuard[Copy]:
    """Return whether an operation is a copy that threads execute by a distribution."""
    return isinstance(op, Copy) and op.engine != "bulk"


def is_in_background(op: Op) -> TypeGuard[Copy]:
    """Return whether an operation is an asynchronous copy by threads."""
    return isinstance(op, Copy) and op.engine == "async"


@dataclass(frozen=True)
class Engine:
    """The copies that an engine supports.

    Args:
        ways: the supported pairs of source and target memory, with the completion of each.
        reductions: the supported reductions of each pair.
    """

    ways: Mapping[Way, str]
    reductions: Mapping[Way, tuple[str, ...]] = field(default_factory=dict)

    def verify_ends(self, op: Copy) -> Iterator[Violation]:
        """Check that the engine supports a copy's memories, completion and reduction."""
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
"""The engines by name."""
