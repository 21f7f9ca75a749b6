"""Findings of the hazard checker, and their text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

import numpy as np

from tilewright.ir.ops import Op
from tilewright.ir.types import TensorType, Value
from tilewright.symbolic.rebuilding import evaluate, symbols
from tilewright.targets.reference.agents import WHOLE_WARP, Actor, Proxy


class Kind(Enum):
    """The kind of a hazard."""

    WRITE_WRITE = "write-write race"
    WRITE_READ = "write-read race"
    READ_WRITE = "read-write race"
    IN_FLIGHT = "in-flight access"
    UNWRITTEN = "unwritten read"
    STALE = "stale read"
    DUPLICATE = "one element written twice"
    OVERLAP = "copy onto itself"
    OUT_OF_BOUNDS = "out-of-bounds access"
    MISALIGNED = "misaligned access"
    RANGE = "integer outside of its range"
    DIVERGENCE = "barrier divergence"
    DEADLOCK = "deadlock"
    PROXY = "missing proxy fence"
    UNFENCED = "missing mma_fence"
    MAP = "wrong tensor map"
    UNINITIALISED = "uninitialised barrier"
    PHASE = "wrong phase"
    OVERTAKEN = "unguarded wait"
    TRANSACTION = "wrong expected bytes"
    DIVISION = "division by zero"
    EDGE = "element beyond an edge in a result"
    UNFINISHED = "unfinished at the end"
    BEGUN = "reaches a block that may not have begun"
    ENDED = "reaches a block that may have ended"
    UNCOVERED = "elements never written"
    STEPS = "result that depends on the length of a step"
    COUNTER = "wrong count"
    NOT_RESET = "counter not reset"
    RESIDENT = "blocks that must run at once"
    SCOPE = "scope too narrow"
    ARMED = "counter left from an earlier call"


@dataclass(frozen=True)
class AccessSite:
    """A place in the program that touches a tensor: an operation, its operand, and the action."""

    op: Op
    value: Value
    action: str

    def __str__(self) -> str:
        return describe(self.op)


def describe(op: Op) -> str:
    """Print an operation in one line, without its attributes.

    Example:
        >>> from tilewright.ir.ops import Barrier
        >>> describe(Barrier())
        'barrier()'
    """
    return f"{op.verb}({', '.join(map(str, op.operands))})"


@dataclass(frozen=True)
class Access:
    """One access: the action, the agent, and the place in the program.

    Args:
        action: ``"read"``, ``"write"`` or, for a synchronisation, ``"wait"`` and the like.
        op: the operation.
        agent: ``"warp"``, or the name of an asynchronous agent; empty for all agents of a run.
        block: index of the block in the grid, x first.
        warp: index of the warp in its block.
        lane: index of the lane in its warp; None if all lanes act together, or an asynchronous agent.
        rank: the rank of the block in its cluster; None without clusters.
        device: the rank whose GPU the agent runs on; None in a run of one GPU.
    """

    action: str
    op: Op
    agent: str
    block: tuple[int, ...]
    warp: int
    lane: int | None
    rank: int | None = None
    device: int | None = None

    @staticmethod
    def of(site: AccessSite, agent: Actor, lane: int) -> Access:
        """Return the access of a site by an agent.  Agents of the asynchronous proxy have no lanes."""
        of_lanes = agent.proxy is Proxy.GENERIC
        one = int(lane) if of_lanes and lane != WHOLE_WARP else None
        place = agent.block, agent.warp, one, agent.rank, agent.device
        return Access(site.action, site.op, agent.name, *place)

    def __str__(self) -> str:
        who = "" if self.lane is None else f"lane {self.lane}"
        warp = f"warp {self.warp}" if self.agent == "warp" else f"{self.agent} of warp {self.warp}"
        block = f"block {self.block}" if self.block else ""
        if self.rank is not None:
            block += f" of rank {self.rank} in its cluster"
        parts = (block, warp, who) if self.warp >= 0 else (self.agent,)
        device = "" if self.device is None else f"rank {self.device}"
        actor = ", ".join(part for part in (device, *parts) if part)
        lines = [f"  {self.action}{f' by {actor}' * bool(self.agent)}, in {describe(self.op)}"]
        if self.op.location is not None:
            lines += [f"  {line}" for line in self.op.location.excerpt().splitlines()]
        return "\n".join(lines)


@dataclass(frozen=True, repr=False)
class Finding:
    """A hazard: one pair of places in the program, with one example.

    Args:
        kind: the kind of the hazard.
        tensor: name of the tensor; empty for a synchronisation.
        memory: ``"shared"``, ``"global"`` or ``"registers"``; empty for a synchronisation.
        element: coordinate of an example element in the tensor, or None if it lies outside.
        offset: element offset of the example in the buffer.
        access: the access at which the hazard was seen.
        earlier: the access that it conflicts with, if there are two.
        reason: the broken rule, and the remedy.
        count: number of elements, or of times for a synchronisation.
        unit: the noun of the count.
    """

    kind: Kind
    tensor: str
    memory: str
    element: tuple[int, ...] | None
    offset: int
    access: Access
    earlier: Access | None
    reason: str
    count: int = 1
    unit: str = "elements"

    def __repr__(self) -> str:
        where = [line.strip() for line in str(self.access).splitlines()[:2]]
        return f"<{self._head()}: {' '.join(where)}>"

    def __str__(self) -> str:
        parts = [self._head(), *([str(self.earlier)] if self.earlier is not None else []), str(self.access)]
        return "\n".join([*parts, f"  {self.reason}"])

    def _head(self) -> str:
        head = self.kind.value
        if self.tensor:
            index = f" at offset {self.offset}" if self.element is None else ""
            if self.element:
                index = f"[{', '.join(map(str, self.element))}]"
            times = f", {self.count} {self.unit} in all" if self.count > 1 else ""
            head = f"{head} on {self.memory} {self.tensor}{index}{times}"
        return head


def element_of(value: Value, offset: int) -> tuple[int, ...] | None:
    """Return the coordinate in a tensor at an offset; None outside of it or if the shape is unknown."""
    if not isinstance(value.type, TensorType):
        return None
    view = value.type.view
    shape = [extent for extent in view.shape if isinstance(extent, int)]
    if len(shape) != view.rank or math.prod(shape) > 1 << 22 or symbols(view.offset) - set(view.coords):
        return None
    grid = np.indices(shape, sparse=True)
    offsets = evaluate(view.offset, dict(zip(view.coords, grid, strict=True)))
    found = np.argwhere(np.broadcast_to(offsets, shape) == offset)
    return tuple(int(i) for i in found[0]) if len(found) else None


def strided_element(shape: Sequence[int], strides: Sequence[int], offset: int) -> tuple[int, ...] | None:
    """Return the coordinate in a strided array, by the offset from its lowest address, or None.

    Example:
        >>> strided_element((4, 5), (8, 1), 19), strided_element((4, 5), (-8, 1), 19)
        ((2, 3), (1, 3))
        >>> strided_element((4, 5), (8, 1), 21) is None
        True
    """
    if offset < 0:
        return None
    index = [0] * len(shape)
    for dim in sorted(range(len(shape)), key=lambda d: -abs(strides[d])):
        step = abs(strides[dim])
        if step > 0 and shape[dim] > 0:
            at = min(offset // step, shape[dim] - 1)
            index[dim] = at if strides[dim] > 0 else shape[dim] - 1 - at
            offset -= at * step
    return None if offset else tuple(index)


@dataclass
class Findings:
    """Collects findings: one per kind, tensor and pair of sites, with a count; at most ``limit``."""

    limit: int
    _found: dict[tuple[object, ...], Finding] = field(default_factory=dict)
    _counts: dict[tuple[object, ...], int] = field(default_factory=dict)
    _reach: dict[tuple[object, ...], int] = field(default_factory=dict)

    def is_new(self, key: tuple[object, ...], count: int, reach: int = 0) -> bool:
        """Count an occurrence; return whether to keep it: the first of its key, or a larger ``reach``."""
        self._counts[key] = self._counts.get(key, 0) + count
        if key in self._found:
            return reach > self._reach[key]
        return len(self._found) < self.limit

    def add(self, key: tuple[object, ...], finding: Finding, reach: int = 0) -> None:
        """Keep a finding as the example of its key."""
        self._found[key] = finding
        self._reach[key] = reach

    @property
    def omitted(self) -> int:
        """Number of findings beyond the limit."""
        return len(self._counts) - len(self._found)

    def all(self) -> tuple[Finding, ...]:
        """Return the findings in the order of their first occurrence, with their counts."""
        return tuple(replace(found, count=self._counts[key]) for key, found in self._found.items())
