"""Buffers: the elements of tensors in memory, and the last accesses to each element."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import gcd
from typing import Any

import numpy as np

from tilewright.dtypes import DType
from tilewright.errors import LaunchError
from tilewright.functions.conversions import Array
from tilewright.ir.kernel import Kernel, TensorParam
from tilewright.ir.types import Memory, Value
from tilewright.packing import packed_dim
from tilewright.passes.rewrite import Rewriter
from tilewright.symbolic.expr import add
from tilewright.targets.reference.agents import Actor, Clocks, Events
from tilewright.targets.reference.findings import element_of, strided_element
from tilewright.targets.reference.numbers import NUMBERS, Numbers


@dataclass
class Marks:
    """The last access to each element: an event of the log, and a lane."""

    event: Array
    lane: Array

    @staticmethod
    def blank(elems: int) -> Marks:
        """Return marks without accesses."""
        return Marks(np.zeros(elems, np.int32), np.zeros(elems, np.int16))

    def put(self, at: Array, event: Any, lanes: Any) -> None:
        """Mark the elements ``at``."""
        self.event[at] = event
        self.lane[at] = lanes

    def get(self, at: Array) -> tuple[Array, Array]:
        """Return the events and lanes of the elements ``at``."""
        return self.event[at], self.lane[at]


@dataclass
class AgentReads:
    """The last reads of each element by one agent, by up to two different lanes.

    With two lanes, one of them differs from the lane of any later access.  ``other`` is None while only one
    lane read each element.  ``first`` and ``newest`` are the oldest and the newest event; ``newest`` is None
    if the agent runs in the background, because its times may be postponed.
    """

    last: Marks
    other: Marks | None = None
    first: int = 0
    newest: int | None = None

    @staticmethod
    def blank(elems: int, first: int = 0) -> AgentReads:
        """Return an object without reads."""
        return AgentReads(Marks.blank(elems), first=first)

    def put_other(self, at: Array, event: Any, lanes: Any) -> None:
        """Mark the elements ``at`` as read by a second lane."""
        if len(at):
            self.other = self.other or Marks.blank(len(self.last.event))
            self.other.put(at, event, lanes)

    @property
    def marks(self) -> list[Marks]:
        """The marks of the last reads: one or two."""
        return [self.last] if self.other is None else [self.last, self.other]


@dataclass
class Crowd:
    """Accesses that need no order among each other: the last access to each element by each agent.

    If groups of agents run concurrently, there are too many agents for one record each.  An access then
    replaces an access that comes before it, and only unordered accesses are in separate layers.
    """

    by_agent: dict[int, AgentReads] = field(default_factory=dict)
    layers: list[AgentReads] = field(default_factory=list)
    former: Marks | None = None
    """Accesses by earlier groups that a later access replaced."""

    @property
    def every(self) -> list[AgentReads]:
        """All recorded accesses."""
        return [*self.by_agent.values(), *self.layers]

    def record(self, events: Events, agent: Actor, event: int, at: Array, lanes: Array, marks: Marks) -> None:
        """Record that lane ``lanes[i]`` of ``agent`` accessed element ``at[i]`` of ``marks``."""
        elems = len(marks.event)
        if events.are_together:
            for layer in self.layers:
                before, before_lanes = layer.last.get(at)
                unknown = events.unknown(agent, before)
                mine = events.is_by(before, agent)
                free = mine | ~unknown
                if layer.other is not None:
                    layer.other.event[at[free & ~mine]] = 0
                counts = mine & unknown & (before_lanes != lanes)
                layer.put_other(at[counts], before[counts], before_lanes[counts])
                _put_last(layer, event, at[free], lanes[free])
                at, lanes = at[~free], lanes[~free]
                if not len(at):
                    return
            self.layers.append(AgentReads.blank(elems))
            _put_last(self.layers[-1], event, at, lanes)
            return
        reads = self.by_agent.get(agent.slot)
        if reads is None:
            reads = self.by_agent[agent.slot] = AgentReads.blank(elems, event)
        reads.newest = None if agent.in_background else event
        before, before_lanes = reads.last.get(at)
        if np.count_nonzero(before):
            foreign = events.is_foreign(before, agent)
            if np.count_nonzero(foreign):
                self.former = self.former or Marks.blank(elems)
                self.former.put(at[foreign], before[foreign], before_lanes[foreign])
            counts = events.unknown(agent, before) & (before_lanes != lanes) & ~foreign
            reads.put_other(at[counts], before[counts], before_lanes[counts])
        _put_last(reads, event, at, lanes)

    def earlier(self, at: Array, events: Events, clocks: Clocks) -> list[tuple[Array, Array]]:
        """Return accesses to elements that ``clocks`` may not know, as pairs (events, lanes)."""
        every = [
            marks
            for reads in self.every
            if reads.newest is None or not events.are_known(clocks, reads.first, reads.newest)
            for marks in reads.marks
        ]
        return [marks.get(at) for marks in (*every, *([self.former] if self.former is not None else []))]


def _put_last(reads: AgentReads, event: int, at: Array, lanes: Array) -> None:
    """Mark elements as accessed last, by up to two lanes."""
    reads.last.put(at, event, lanes)
    replaced = reads.last.lane[at] != lanes
    if np.count_nonzero(replaced):
        reads.put_other(at[replaced], event, lanes[replaced])


@dataclass
class History:
    """The last write of each element, and its last reads and reductions by each agent."""

    writes: Marks
    reads: Crowd = field(default_factory=Crowd)
    reductions: dict[str, Crowd] = field(default_factory=dict)
    """Reductions by their kind.  Reductions of one kind need no order among each other."""
    skips: Marks | None = None
    """The last write that excluded each element, because an edge cuts its view."""

    @staticmethod
    def blank(elems: int) -> History:
        """Return a history without accesses."""
        return History(Marks.blank(elems))

    def reduced(self, at: Array, events: Events, clocks: Clocks, but: str = "") -> list[tuple[Array, Array]]:
        """Return the reductions into elements, of all kinds but one, like `Crowd.earlier`."""
        crowds = (crowd for kind, crowd in self.reductions.items() if kind != but)
        return [marks for crowd in crowds for marks in crowd.earlier(at, events, clocks)]

    def is_written(self, at: Any) -> Array:
        """Return which of the elements ``at`` any access has written."""
        found = self.writes.event[at] != 0
        for crowd in self.reductions.values():
            for reads in crowd.every:
                found |= reads.last.event[at] != 0
        return np.asarray(found)


@dataclass(eq=False)
class Storage:
    """The memory of one tensor.

    Args:
        owner: the value that owns it.
        elements: its elements in address order, a view of the caller's array.
        address: byte address of element 0, for alignment and banks.
        written: whether it holds values from the start.
        locate: returns the coordinate of an element offset, or None.
        exists: mask of the elements that belong to the array; None if all do.
        history: the last accesses; None without a search for hazards.
        beyond: marks of elements of shared memory that lie beyond the edge of an array, or None.
        first: place of element 0 in the history, which overlapping buffers share.
        units: entries of the history for one element.
        overlaid: whether other shared tensors use the same bytes.
        numbers: the arithmetic of its elements.
    """

    owner: Value
    elements: Array
    address: int
    written: bool
    locate: Callable[[int], tuple[int, ...] | None]
    exists: Array | None = None
    history: History | None = None
    beyond: Array | None = None
    first: int = 0
    units: int = 1
    overlaid: bool = False
    numbers: Numbers = NUMBERS

    @property
    def bounds(self) -> tuple[int, int]:
        """The byte addresses of the first element and of the end."""
        return self.address, self.address + len(self.elements) * self.owner.dtype.bytes

    def places(self, at: Array, lanes: Array) -> tuple[Array, Array, Array]:
        """Return elements, their places in the history, and their lanes: one entry for each place."""
        if self.units == 1:
            return at, at + self.first if self.first else at, lanes
        places = (self.first + at * self.units)[:, None] + np.arange(self.units)
        return np.repeat(at, self.units), places.ravel(), np.repeat(lanes, self.units)

    def never_written(self) -> Array:
        """Return the offsets of elements that no access has written; none if there is no history."""
        if self.history is None:
            return np.zeros(0, np.int64)
        last = self.first + len(self.elements) * self.units
        missing = ~self.history.is_written(slice(self.first, last, self.units))
        return np.flatnonzero(missing if self.exists is None else missing & self.exists)

    def forget(self) -> None:
        """Fill the buffer with poison, so that a read before the next write is reported."""
        self.written = False
        at: Any = slice(None) if self.exists is None else self.exists
        self.elements[at] = self.numbers.poison(self.owner.dtype, ())

    @property
    def memory(self) -> str:
        """``"shared"`` or ``"global"``."""
        return self.owner.tensor.memory.value

    @property
    def is_shared(self) -> bool:
        """Whether it lies in shared memory."""
        return self.owner.tensor.memory is Memory.SHARED

    def outside(self, at: Array) -> Array:
        """Return which offsets lie outside the array or allocation."""
        outside = (at < 0) | (at >= len(self.elements))
        if self.exists is not None:
            outside[~outside] = ~self.exists[at[~outside]]
        return outside


def new_buffer(
    owner: Value, elems: int, address: int, check: bool, numbers: Numbers = NUMBERS, *, zeroed: bool = False
) -> Storage:
    """Return zeroed or uninitialised memory, in bytes if elements are narrower than a byte."""
    kind, count = owner.dtype, -(-elems // owner.dtype.per_byte)
    elements = np.zeros(count, numbers.storage(kind)) if zeroed else numbers.poison(kind, count)
    history = History.blank(count) if check else None
    locate = partial(element_of, owner)
    return Storage(owner, elements, address, zeroed, locate, None, history, numbers=numbers)


def overlay(buffers: Iterable[Storage]) -> None:
    """Let shared tensors with overlapping addresses use the same bytes and one history."""
    known = list(buffers)
    for numbers in overlapping(buffer.bounds for buffer in known):
        group = [known[number] for number in numbers]
        if len(group) == 1:
            continue
        low, high = min(buffer.address for buffer in group), max(buffer.bounds[1] for buffer in group)
        memory = np.empty(high - low, np.uint8)
        for buffer in group:
            start, end = buffer.address - low, buffer.bounds[1] - low
            held = memory[start:end].view(buffer.elements.dtype)
            held[:] = buffer.elements
            buffer.elements, buffer.overlaid = held, True
        share_histories(group, {buffer.owner for buffer in group})


def overlapping(bounds: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Group overlapping ranges of addresses, and return the numbers of the ranges in each group.

    Example:
        >>> overlapping([(0, 8), (8, 16), (4, 8), (7, 7)])
        [[0, 2], [1]]
    """
    groups: list[list[int]] = []
    reach = 0
    for low, high, number in sorted((low, high, number) for number, (low, high) in enumerate(bounds)):
        if low == high:
            continue
        if groups and low < reach:
            groups[-1].append(number)
        else:
            groups.append([number])
        reach = max(reach, high)
    return groups


def share(one: Storage, other: Storage) -> bool:
    """Return whether two buffers overlap in memory."""
    return len(overlapping([one.bounds, other.bounds])) == 1 and len(one.elements) * len(other.elements) > 0


def share_histories(buffers: Iterable[Storage], written: Container[Value]) -> None:
    """Give overlapping arrays one history if any of them is written, and otherwise none.

    An entry of the history has the largest size that divides all elements and distances of the arrays.
    """
    known = [buffer for buffer in buffers if buffer.history is not None]
    for numbers in overlapping(buffer.bounds for buffer in known):
        group = [known[number] for number in numbers]
        if not any(buffer.owner in written for buffer in group):
            for buffer in group:
                buffer.history = None
            continue
        if len(group) == 1:
            continue
        low, high = min(buffer.address for buffer in group), max(buffer.bounds[1] for buffer in group)
        sizes = [buffer.owner.dtype.bytes for buffer in group]
        grain = gcd(*sizes, *(buffer.address - low for buffer in group))
        history = History.blank((high - low) // grain)
        for buffer, size in zip(group, sizes, strict=True):
            buffer.history = history
            buffer.first, buffer.units = (buffer.address - low) // grain, size // grain


# ---------------------------------------------------------------- arrays of the caller


def array_buffer(
    owner: Value, array: Array, is_written: bool, check: bool, numbers: Numbers = NUMBERS
) -> Storage:
    """Return the memory of a caller's array, in place, in address order.

    Raises:
        LaunchError: wrong dtype, fractional strides, or a read-only array that is written.
    """
    want = numbers.storage(owner.dtype)
    if array.dtype != want:
        raise LaunchError(f"{owner} is an array of {array.dtype}; the kernel takes {owner.dtype}")
    if is_written and not array.flags.writeable:
        raise LaunchError(f"{owner} is read-only and the kernel writes it")
    strides, rest = zip(*(divmod(s, want.itemsize) for s in array.strides), strict=True) or ((), ())
    if any(rest):
        raise LaunchError(
            f"{owner} has strides of {array.strides} bytes; they must be multiples of {want.itemsize}"
        )
    upwards: Any = (*(slice(None, None, -1 if step < 0 else 1) for step in strides), ...)
    rising = array[upwards]
    steps = tuple(abs(step) for step in strides)
    span = 0 if array.size == 0 else 1 + sum((n - 1) * s for n, s in zip(array.shape, steps, strict=True))
    # As raw bytes: NumPy's array interface has no name for some dtypes.
    raw = rising.view(f"V{want.itemsize}")
    spread = np.lib.stride_tricks.as_strided(raw, (span,), (want.itemsize,), writeable=array.flags.writeable)
    flat = spread.view(want)
    exists = None
    if span > array.size:
        exists = np.zeros(span, bool)
        np.lib.stride_tricks.as_strided(exists, array.shape, steps)[...] = True
    address = rising.__array_interface__["data"][0]
    locate = partial(strided_element, array.shape, strides)
    history = History.blank(span) if check else None
    return Storage(owner, flat, address, True, locate, exists, history, numbers=numbers)


def in_elements(dtype: DType, array: Array) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return extents and strides of an array in elements; a byte may hold several elements.

    Example:
        >>> from tilewright.dtypes import i4
        >>> in_elements(i4, np.zeros((3, 5), np.uint8))
        ((3, 10), (10, 1))
    """
    each, strides = dtype.per_byte, tuple(stride // array.itemsize for stride in array.strides)
    dim = packed_dim(strides, array.shape, in_bytes=True) if each > 1 else None
    shape = tuple(n * each if d == dim else n for d, n in enumerate(array.shape))
    return shape, tuple(step if d == dim else step * each for d, step in enumerate(strides))


def from_lowest(kernel: Kernel, arrays: Mapping[str, Array]) -> Kernel:
    """Return the kernel with offsets from the lowest element of each array instead of its first one.

    The two differ if a stride is negative.  A buffer begins with its lowest element.
    """
    rewriter = Rewriter(kernel, lambda op, rewriter: None)
    for old in kernel.tensors:
        if old.name not in arrays or not arrays[old.name].size:
            continue
        shape, strides = in_elements(old.dtype, arrays[old.name])
        before = sum((n - 1) * -step for n, step in zip(shape, strides, strict=True) if step < 0)
        if before:
            view = replace(old.tensor.view, offset=add(old.tensor.view.offset, before))
            rewriter.values[old] = Value(old.name, replace(old.tensor, view=view))
    if not rewriter.values:
        return kernel
    params = (
        replace(p, value=rewriter.rebuild(p.value)) if isinstance(p, TensorParam) else p
        for p in kernel.params
    )
    return replace(kernel, params=tuple(params), body=rewriter.block(kernel.body))
