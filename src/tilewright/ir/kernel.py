"""Kernels: parameters, launch shape, guards and a body."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

from tilewright.arch import REFERENCE
from tilewright.calls import layouts
from tilewright.dtypes import DType
from tilewright.errors import Violation
from tilewright.ir.async_ops import ClusterArrive, MBarrier, PriorGridWait
from tilewright.ir.ops import Block, Op, Shared
from tilewright.ir.types import Value
from tilewright.symbolic.guards import Guard
from tilewright.symbolic.nodes import Int, Sym


@dataclass(frozen=True)
class TensorParam:
    """An array of the caller's."""

    value: Value


@dataclass(frozen=True)
class ScalarParam:
    """A number of the caller's, passed by value."""

    value: Value


@dataclass(frozen=True)
class Extent:
    """Where a size comes from: the extent of dimension ``dim`` of parameter ``tensor``."""

    tensor: str
    dim: int


@dataclass(frozen=True)
class Stride:
    """Where a size comes from: the stride, in elements, of dimension ``dim`` of parameter ``tensor``."""

    tensor: str
    dim: int


@dataclass(frozen=True)
class Argument:
    """Where a size comes from: the integer argument ``name``."""

    name: str


@dataclass(frozen=True)
class Derived:
    """Where a size comes from: an expression over other sizes, computed once by the launcher."""

    value: Int


Source: TypeAlias = Extent | Stride | Argument | Derived


@dataclass(frozen=True)
class SizeParam:
    """An integer passed to the kernel; ``bits`` is 64 where offsets need it."""

    sym: Sym
    source: Source
    bits: int = 32


@dataclass(frozen=True)
class Workspace:
    """Global memory that the launcher allocates and keeps; zeroed before every launch if ``zeroed``.

    Args:
        value: the tensor.
        elems: number of elements, over the kernel's sizes.
        zeroed: whether it holds zeros when the kernel starts.
        resets: whether it also holds zeros when the kernel has ended (`tw.counter`): it is then cleared once,
            when it is allocated, and never again.
    """

    value: Value
    elems: Int
    zeroed: bool = False
    resets: bool = False


Param: TypeAlias = TensorParam | ScalarParam | SizeParam | Workspace


@dataclass(frozen=True)
class TensorMap:
    """What TMA must know of an array and a box: derived from the launch's arguments, passed by value.

    Args:
        name: its name in generated text.
        tensor: the parameter whose address, extents and strides it holds.
        box: how many elements of each dimension the box reaches over.
        dtype: element type.
        order: the tensor's dimensions as the box lies in shared memory, from the slowest to the fastest.
        steps: every how many-th element of each dimension it takes.
        is_swizzled: whether the box lies in rows of 128 bytes under the swizzle, and not as one row.
    """

    name: str
    tensor: str
    box: tuple[int, ...]
    dtype: DType
    order: tuple[int, ...]
    steps: tuple[int, ...]
    is_swizzled: bool = True

    @property
    def key(self) -> tuple[str, tuple[int, ...], tuple[int, ...], tuple[int, ...], bool]:
        """What tells it from others: the tensor, and the form of the box."""
        return self.tensor, self.box, self.order, self.steps, self.is_swizzled


@dataclass(frozen=True)
class GridAxis:
    """One axis of the launch grid: a symbol in ``[0, extent)``. ``kind`` is ``"block"`` or ``"batch"``."""

    sym: Sym
    extent: Int
    kind: str = "block"


@dataclass(frozen=True)
class ClusterAxis:
    """The block's index in its cluster along grid axis ``axis``, a symbol in ``[0, extent)``; extent > 1."""

    sym: Sym
    axis: int
    extent: int


@layouts.made("kernel.trace(...) of a tw.kernel gives one")
@dataclass(frozen=True, repr=False)
class Kernel:
    """A kernel for one class of arguments.

    Args:
        name: the author's function name.
        params: in launch order: arrays and numbers, workspaces, then sizes.
        grid: axes of the grid, at most three, x first.
        cluster: the block's indices in its cluster, along each axis with several blocks, x first; empty
            without clusters.
        threads: threads per block.
        lanes: threads per warp.
        body: the operations.
        guards: what the launcher checks.
        tensor_maps: passed after the parameters; a target derives them.
        violations: rules broken while tracing; no target compiles a kernel that has any.
        notes: choices that were made while it was traced: which barriers were placed, and why.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="M N")
        ... def double(X):
        ...     tile = X.tile((8, 8), (0, 0)).partition((8, 4))
        ...     tw.copy(tw.load(tile) * 2, tile)
        >>> traced = double(np.ones((8, 8), np.float32), target="reference").kernel
        >>> [f"{op.name}: {op.results[0]}" for op in traced.walk() if op.results]
        ['view: X.tile((8, 8), (0, 0))', 'partition: tile', 'fragment: loaded', 'elementwise: mul']
        >>> traced.tensors[0].type.memory, tw.ir.violations(traced)
        (<Memory.GLOBAL: 'global'>, [])
    """

    name: str
    params: tuple[Param, ...]
    grid: tuple[GridAxis, ...]
    threads: int
    body: Block
    cluster: tuple[ClusterAxis, ...] = ()
    lanes: int = REFERENCE.lanes
    guards: tuple[Guard, ...] = ()
    tensor_maps: tuple[TensorMap, ...] = ()
    violations: tuple[Violation, ...] = field(default=(), compare=False)
    notes: tuple[str, ...] = field(default=(), compare=False)

    def __repr__(self) -> str:
        named = [param.value for param in self.params if isinstance(param, TensorParam | ScalarParam)]
        given = ", ".join(f"{value}: {value.type!r}" for value in named)
        grid = " x ".join(str(axis.extent) for axis in self.grid) or "1"
        count = sum(1 for _ in self.walk())
        return f"<{self.name}: {count} operations, {self.threads} threads, grid {grid}; {given}>"

    @property
    def tensors(self) -> tuple[Value, ...]:
        """The caller's arrays."""
        return tuple(p.value for p in self.params if isinstance(p, TensorParam))

    @property
    def sizes(self) -> tuple[SizeParam, ...]:
        """The integer parameters."""
        return tuple(p for p in self.params if isinstance(p, SizeParam))

    @property
    def workspaces(self) -> tuple[Workspace, ...]:
        """The launcher's own buffers."""
        return tuple(p for p in self.params if isinstance(p, Workspace))

    def walk(self) -> Iterator[Op]:
        """Every operation in program order, outer before inner."""
        return iter(self._ops)

    @cached_property
    def _ops(self) -> tuple[Op, ...]:
        return tuple(self.body.walk())

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory, each tensor starting at its alignment."""
        return layout_shared(self)[1]

    @property
    def waits_for_prior_grid(self) -> bool:
        """Whether a grid of it may begin before the grid before it has ended: it waits where it must."""
        return any(isinstance(op, PriorGridWait) for op in self.walk())

    @cached_property
    def splits_cluster_barriers(self) -> bool:
        """Whether a warp goes on between its arrival at a barrier of the cluster and its wait."""
        return any(isinstance(op, ClusterArrive) for op in self.walk())

    @cached_property
    def written_params(self) -> frozenset[str]:
        """Names of the caller's arrays that the kernel writes."""
        written = {value.buffer for op in self.walk() for value in op.written}
        return frozenset(value.name for value in self.tensors if value in written)


BARRIER_BYTES = 8
"""Bytes of shared memory of one transaction barrier."""


def layout_shared(kernel: Kernel) -> tuple[dict[Value, int], int]:
    """The byte offset of every shared tensor and barrier, and the total.

    Those that no plan gives a place lie one after another, behind those that have one.
    """
    placed = [op for op in kernel.walk() if isinstance(op, Shared) and op.at is not None]
    offsets: dict[Value, int] = {op.result: op.at for op in placed if op.at is not None}
    total = max((offsets[op.result] + op.dtype.bytes_of(op.elems) for op in placed), default=0)
    for op in kernel.walk():
        if isinstance(op, Shared) and op.at is None:
            total = -(-total // op.align) * op.align
            offsets[op.result] = total
            total += op.dtype.bytes_of(op.elems)
        elif isinstance(op, MBarrier):
            total = -(-total // BARRIER_BYTES) * BARRIER_BYTES
            offsets[op.result] = total
            total += op.stages * BARRIER_BYTES
    return offsets, total


def defined_symbols(kernel: Kernel) -> set[Sym]:
    """Every symbol that the kernel's parameters, grid and operations define."""
    found = {p.sym for p in kernel.sizes} | {a.sym for a in kernel.grid} | {a.sym for a in kernel.cluster}
    for op in kernel.walk():
        found |= {result for result in op.results if isinstance(result, Sym)}
    return found
