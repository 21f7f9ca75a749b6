"""The copy: one operation for every movement of a tile, executed by one of four engines.

``direct``: threads load and store, and the copy is complete when they continue.  ``matrix``: the lanes of a
warp exchange rows of 16 bytes as they load or store.  ``async``: threads start asynchronous accesses, in
groups.  ``bulk``: one thread starts the copy of a box, which a separate unit executes.  `ENGINES` lists the
copies that each engine supports.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, TypeAlias, TypeGuard

from tilewright.dtypes import i64, limits, u64
from tilewright.errors import LayoutError, Violation
from tilewright.ir.op import ANYWHERE, ASYNC, BULK, CONTROL, NAMES, THREADS, Op, Traits
from tilewright.ir.types import BarrierType, FragmentType, MapInMemory, Memory, TensorType, Type, Value
from tilewright.symbolic.nodes import Int, Sym, divisor
from tilewright.threads.distribution import Distribution, Mode
from tilewright.views.transforms import chosen_rows

# ---------------------------------------------------------------- reductions into memory
# ``target = combine(target, source)``, atomic for each element.
#
# One table lists the kinds for each element type. Threads and blocks may reduce into one element at the
# same time: no update is lost, and their order is unknown.


_INTEGERS = ("i64", "u64", "i32", "u32")

REDUCTIONS: dict[str, tuple[str, ...]] = {
    "add": ("f64", "f32", "f16", "bf16", *_INTEGERS),
    "min": ("f64", "f32", *_INTEGERS),
    "max": ("f64", "f32", *_INTEGERS),
    "and": _INTEGERS,
    "or": _INTEGERS,
}
"""Element types of each kind of reduction.

Minima and maxima of floats are exact in any order, and NaN if any operand is NaN.  For zeros of different
sign, either may be the result.  Sums of floats depend on the order.
"""


def verify_reduction(op: Op, kind: str | None, target: Value) -> Iterator[Violation]:
    """Yield the rules that an operation's reduction into a tensor breaks; nothing if it does not reduce."""
    if kind is None:
        return
    if kind not in REDUCTIONS:
        known = ", ".join(map(repr, REDUCTIONS))
        yield op.violation("reduction", f"reduction={kind!r} is none of {known}", "reduction='add'")
    elif target.dtype.name not in REDUCTIONS[kind]:
        names = REDUCTIONS[kind]
        same = [name for name in names if name[0] == target.dtype.name[0]]
        text = f"no {kind!r} of {target.dtype} in memory; the dtypes with one are {', '.join(names)}"
        yield op.violation("reduction", text, f"a target of {(same or list(names))[-1]}")


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
        """The operands of a bulk copy: first the tensor in global memory, then the tile in shared memory."""
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
class CopyEngine:
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

ENGINES: Mapping[str, CopyEngine] = {
    "direct": CopyEngine(
        {(a, b): "none" for a in PLACES for b in PLACES},
        {(place, memory): tuple(REDUCTIONS) for place in PLACES for memory in ("global", "shared")},
    ),
    "matrix": CopyEngine({("shared", "registers"): "none", ("registers", "shared"): "none"}),
    "async": CopyEngine({("global", "shared"): "group"}),
    "bulk": CopyEngine(
        {("global", "shared"): "barrier", ("shared", "global"): "group"},
        {("shared", "global"): tuple(REDUCTIONS)},
    ),
}
"""The engines by name."""


# ---------------------------------------------------------------- gathered and scattered rows


@dataclass(frozen=True)
class Gather(Op):
    """A view of chosen rows: ``result[..., i, ...] = source[..., index[i], ...]`` along dimension ``dim``.

    An index of several dimensions replaces the dimension by them, as in NumPy.  Elements of rows outside of
    ``[0, extent)`` are invalid, and so are those past the edge of ``index``.  The operation that accesses the
    view reads the index.

    Args:
        source: a tensor in memory.
        index: a tensor of integers, in memory.
        dim: the dimension of the source.
        padded: whether rows outside are allowed; otherwise the reference reports them.
    """

    name = "gather"
    traits = NAMES
    roles: ClassVar = {"result": "defines", "source": "uses", "index": "uses"}
    result: Value
    source: Value
    index: Value
    dim: int = 0
    padded: bool = False

    @staticmethod
    def infer(source: Value, index: Value, dim: int = 0, padded: bool = False) -> Type:
        """Type of the result."""
        old, numbers = source.tensor, index.tensor
        if not 0 <= dim < old.view.rank:
            raise LayoutError(
                f"dimension {dim} of {source}, of rank {old.view.rank}", min(max(dim, 0), old.view.rank - 1)
            )
        if not numbers.view.rank or numbers.dtype.kind not in ("int", "uint") or numbers.dtype.bits < 8:
            text = f"rows of {source} are chosen by {index}, of rank {numbers.view.rank} and {numbers.dtype}"
            raise LayoutError(text, "integers of 8 bits or more, of one dimension or several")
        if numbers.indices or any(index.buffer is known.buffer for known in old.indices):
            raise LayoutError(
                f"rows of {source} are chosen by {index}, which has chosen rows itself or is an index of "
                "the source already",
                "a copy of it in shared memory",
            )
        # Generated code has signed integers, so it sees rows of 2**63 and more as negative.
        least, most = (int(end) for end in limits(i64 if numbers.dtype == u64 else numbers.dtype))
        view = chosen_rows(old.view, dim, Sym(index.buffer.name), numbers.view, least, most)
        return replace(old, view=view, distribution=None, indices=(*old.indices, index))


# ---------------------------------------------------------------- tensor maps in memory


MAP_WORDS, MAP_UNIT = 16, 8
"""Size and alignment of a tensor map, in 64-bit integers."""


@dataclass(frozen=True)
class ByMap(Op):
    """The same tensor, for bulk copies that use the tensor map in ``table[row, column:]``.

    Args:
        source: a view of a buffer in global memory.
        table: an i64 tensor of two dimensions; the launcher has written the map there.
        row: the row of the table.
        column: the first column of the map.
    """

    name = "by_map"
    traits = NAMES
    roles: ClassVar = {"result": "defines", "source": "uses", "table": "uses"}
    result: Value
    source: Value
    table: Value
    row: Int
    column: int

    @staticmethod
    def infer(source: Value, table: Value, row: Int, column: int) -> Type:
        """Type of the result."""
        array = replace(source.tensor.view, index=None)
        return replace(source.tensor, view=array, map=MapInMemory(table, row, column, array))

    def verify(self) -> Iterator[Violation]:
        """Require a whole array, and a legal position of the tensor map."""
        kind, source = self.table.tensor, self.source.tensor
        if kind.dtype.name != "i64" or kind.view.rank != 2 or kind.memory is not Memory.GLOBAL:
            text = f"tensor maps lie in rows of {self.table}, of rank {kind.view.rank} and {kind.dtype}"
            yield self.violation("tensor map", text, "i64 in global memory, of two dimensions")
        elif divisor(kind.view.at((self.row, self.column))) % MAP_UNIT:
            text = (
                f"the tensor map at [{self.row}, {self.column}] of {self.table} begins at no known multiple"
            )
            nearest = f"columns, and rows of the table, that are multiples of {MAP_UNIT}"
            yield self.violation("tensor map", f"{text} of {MAP_UNIT} integers, 64 bytes", nearest)
        if source.memory is not Memory.GLOBAL or source.indices or source.distribution is not None:
            text = f"{self.source} is not a whole array in global memory; only arrays have tensor maps"
            yield self.violation("tensor map", text, str(self.source.buffer))


@dataclass(frozen=True)
class AcquireMap(Op):
    """Let the role's first thread see the tensor map of ``source`` as it was when the kernel was launched.

    It must come before the role's first bulk copy with that map.
    """

    name = "acquire_map"
    traits = CONTROL
    roles: ClassVar = {"source": "uses"}
    source: Value

    def verify(self) -> Iterator[Violation]:
        """Require a tensor with a map in memory."""
        if self.source.tensor.map is None:
            text = f"the launch itself passes the tensor maps of {self.source.buffer}"
            yield self.violation("tensor map", text, "a view of the result of tw.hopper.by_map")
