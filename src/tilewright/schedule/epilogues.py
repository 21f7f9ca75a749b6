"""Epilogues: what is computed from the sums of a tile, and how it comes to global memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilewright.dataflow.nodes import Literal, Map, Node, Number, Part, Rearrange, Span, Store, Sum
from tilewright.errors import TraceError
from tilewright.functions.table import CONVERSION
from tilewright.lang import operations as tw
from tilewright.lang.asynchrony import bulk_commit, bulk_wait, fence_async, tma_store
from tilewright.lang.control import unroll
from tilewright.lang.fragments import Fragment, elementwise
from tilewright.lang.roles import role_barrier
from tilewright.lang.scalars import Index
from tilewright.lang.tensors import Tensor
from tilewright.schedule.form import EXPLICIT, Form, matrix
from tilewright.schedule.partition import Work
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.stages import ROW_BYTES

Arguments = Mapping[str, Any]
"""The kernel's arguments by name."""


class Slice:
    """A block of the result: some of the columns of the tile that one group of warps holds.

    Args:
        form: what is computed.
        arguments: the kernel's.
        work: the tile.
        shape: of the slice.
        at: its place in the result, in slices.
        sums: what was added up there.
    """

    def __init__(
        self,
        form: Form,
        arguments: Arguments,
        work: Work,
        shape: tuple[int, int],
        at: tuple[Index, Index],
        sums: Fragment,
    ) -> None:
        self.form, self.arguments, self.work = form, arguments, work
        self.shape, self.at, self.sums = shape, at, sums
        self._known: dict[int, Any] = {}

    def value(self, node: Node) -> Any:
        """A value of the graph, for the elements of this slice."""
        if id(node) not in self._known:
            self._known[id(node)] = self._compute(node)
        return self._known[id(node)]

    def _compute(self, node: Node) -> Any:
        match node:
            case Sum():
                return self.sums
            case Literal(value=value):
                return value
            case Number(name=name):
                return self.arguments[name]
            case Part() | Rearrange():
                return tw.load(self._part(node), self.sums)
            case Map(function=function, given=given):
                asked = node.dtype if function in CONVERSION else None
                return elementwise(function, *map(self.value, given), dtype=asked)
        raise TraceError(
            f"no schedule computes a {type(node).__name__} of sums; nearest legal choice: {EXPLICIT}",
            node.location,
        )

    def _part(self, node: Node) -> Tensor:
        """A part of an array as a tensor of the slice's shape, repeated along the axes that it lacks."""
        axes, part = node.axes, node
        while isinstance(part, Rearrange):
            part = part.argument
        if not isinstance(part, Part):
            raise TraceError(
                f"only parts of arrays are transposed or given new axes; nearest legal choice: {EXPLICIT}",
                node.location,
            )
        named = [span for span in axes if span is not None]
        tile = self.tile(self.arguments[part.operand.name], part.at, named)
        for dim, span in enumerate((self.form.m, self.form.n)):
            if span not in named:
                tile = tile.broadcast(dim, self.shape[dim])
        return tile

    def tile(self, tensor: Tensor, at: Sequence[Span], wanted: Sequence[Span]) -> Tensor:
        """The elements of an array that belong to the slice."""
        place = dict(zip((self.form.m, self.form.n), zip(self.shape, self.at, strict=True), strict=True))
        whole = matrix(tensor, at, wanted, self.form.batch, self.work.batch)
        return whole.tile([place[span][0] for span in wanted], [place[span][1] for span in wanted])

    def target(self, store: Store) -> Tensor:
        """Where a store goes."""
        wanted = [span for span in store.at if span not in self.form.batch]
        if wanted != [self.form.m, self.form.n]:
            raise TraceError(
                f"stores go to tiles along {self.form.m.name} and {self.form.n.name}; nearest legal choice: "
                f"{EXPLICIT}",
                store.location,
            )
        return self.tile(self.arguments[store.operand.name], store.at, wanted)


class Direct:
    """From registers to global memory."""

    def __init__(self, form: Form, schedule: Schedule, arguments: Arguments) -> None:
        self.form, self.schedule, self.arguments = form, schedule, arguments

    def store(self, work: Work, sums: Fragment) -> None:
        """Compute and store what becomes of the sums of a group's tile."""
        rows, columns, _ = self.schedule.mma.tile
        row = _row(self.schedule, work)
        made = Slice(self.form, self.arguments, work, (rows, columns), (row, work.n), sums)
        for store in self.form.stores:
            tw.copy(made.value(store.value), made.target(store))

    def drain(self) -> None:
        """Nothing is under way."""


class Staged:
    """Through buffers in shared memory, from which bulk copies take it while the next slice is computed."""

    def __init__(self, form: Form, schedule: Schedule, arguments: Arguments) -> None:
        self.form, self.schedule, self.arguments = form, schedule, arguments
        (self.out,) = form.stores
        target = arguments[self.out.operand.name]
        self.columns = ROW_BYTES // target.dtype.bytes
        rows = schedule.mma.tile[0]
        shape = (schedule.groups, schedule.buffers, rows, self.columns)
        self.held = tw.shared(shape, target.dtype, swizzle=ROW_BYTES, name=f"s{self.out.operand.name}")

    def store(self, work: Work, sums: Fragment) -> None:
        """Slice by slice; a buffer is written again when its store before the last has read it."""
        schedule = self.schedule
        rows, columns, _ = schedule.mma.tile
        row, count = _row(schedule, work), columns // self.columns
        for j in unroll(count):
            buffer = self.held[work.group, j % schedule.buffers]
            bulk_wait(schedule.buffers - 1)
            role_barrier(1 + work.group, threads=schedule.mma.threads)
            part = sums[:, j * self.columns : (j + 1) * self.columns]
            at = (row, work.n * count + j)
            made = Slice(self.form, self.arguments, work, (rows, self.columns), at, part)
            tw.copy(made.value(self.out.value), buffer)
            fence_async()
            role_barrier(1 + work.group, threads=schedule.mma.threads)
            tma_store(buffer, made.target(self.out))
            bulk_commit()

    def drain(self) -> None:
        """Wait for the stores that are under way."""
        bulk_wait(0)


def _row(schedule: Schedule, work: Work) -> Index:
    """Which rows of a group's tiles."""
    return (
        work.m
        if schedule.roles == "ping-pong" or schedule.groups == 1
        else work.m * schedule.groups + work.group
    )


EPILOGUES: Mapping[str, Callable[[Form, Schedule, Arguments], Direct | Staged]] = {
    "direct": Direct,
    "staged": Staged,
}
