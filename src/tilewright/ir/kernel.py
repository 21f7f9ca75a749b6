"""Kernels: parameters, launch shape, guards and a body."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, TypeAlias

from tilewright.arch import REFERENCE
from tilewright.calls import layouts
from tilewright.dtypes import DType
from tilewright.errors import Violation
from tilewright.ir.async_ops import ClusterArrive, MBarrier, PriorGridWait
from tilewright.ir.copies import is_bulk
from tilewright.ir.op import Block, Op
from tilewright.ir.ops import Shared
from tilewright.ir.types import TensorType, Value
from tilewright.symbolic.nodes import Cond, Expr, Int, Sym
from tilewright.symbolic.rebuilding import Guard, symbols
from tilewright.views.view import View


@dataclass(frozen=True)
class TensorParam:
    """An array argument."""

    value: Value


@dataclass(frozen=True)
class ScalarParam:
    """A number argument, passed by value."""

    value: Value


@dataclass(frozen=True)
class Extent:
    """Source of a size: the extent of dimension ``dim`` of parameter ``tensor``."""

    tensor: str
    dim: int


@dataclass(frozen=True)
class Stride:
    """Source of a size: the stride, in elements, of dimension ``dim`` of parameter ``tensor``."""

    tensor: str
    dim: int


@dataclass(frozen=True)
class Argument:
    """Source of a size: the integer argument ``name``."""

    name: str


@dataclass(frozen=True)
class Derived:
    """Source of a size: an expression over other sizes, computed once by the launcher."""

    value: Int


Source: TypeAlias = Extent | Stride | Argument | Derived


@dataclass(frozen=True)
class SizeParam:
    """An integer passed to the kernel; ``bits`` is 64 if offsets need it."""

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
        resets: whether the kernel also leaves zeros (`tw.counter`).  It is then cleared only once, when it is
            allocated.
    """

    value: Value
    elems: Int
    zeroed: bool = False
    resets: bool = False


Param: TypeAlias = TensorParam | ScalarParam | SizeParam | Workspace


@dataclass(frozen=True)
class TensorMap:
    """The TMA descriptor of an array and a box: derived from the launch's arguments, passed by value.

    Args:
        name: its name in generated text.
        tensor: the parameter whose address, extents and strides it holds.
        box: number of tensor elements that the box spans in each dimension.
        dtype: element type.
        order: the tensor's dimensions in the order of the box in shared memory, from slowest to fastest.
        steps: step between the elements of the box in each dimension.
        is_swizzled: whether shared memory holds swizzled rows of 128 bytes; otherwise it holds one row.
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
        """The identity of the map: the tensor, and the form of the box."""
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
        guards: conditions that the launcher checks.
        tensor_maps: TMA descriptors, passed after the parameters; a target derives them.
        resident: blocks that a multiprocessor runs at once, for which a compiler limits the registers of a
            thread; 0: the compiler decides.
        violations: rules broken while tracing; no target compiles a kernel with violations.
        notes: choices made while tracing: the inserted barriers, with reasons.

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
    resident: int = 0
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
        """The array parameters."""
        return tuple(p.value for p in self.params if isinstance(p, TensorParam))

    @property
    def sizes(self) -> tuple[SizeParam, ...]:
        """The integer parameters."""
        return tuple(p for p in self.params if isinstance(p, SizeParam))

    @property
    def workspaces(self) -> tuple[Workspace, ...]:
        """The workspaces, which the launcher owns."""
        return tuple(p for p in self.params if isinstance(p, Workspace))

    def walk(self) -> Iterator[Op]:
        """Yield every operation in program order, outer before inner."""
        return iter(self._ops)

    @cached_property
    def _ops(self) -> tuple[Op, ...]:
        return tuple(self.body.walk())

    @cached_property
    def passed(self) -> tuple[Param, ...]:
        """The parameters that a launch passes: not arrays that only TMA uses, nor the sizes of those."""
        if not self.tensor_maps:
            return self.params
        mapped = {tensor_map.tensor for tensor_map in self.tensor_maps}
        others: set[Value] = set()  # buffers that operations other than TMA name
        for op in self.walk():
            if not is_bulk(op):
                others.update(value.buffer for value in (*op.read, *op.written))
            elif (held := op.ends[0].tensor.map) is not None:
                others.add(held.table.buffer)
        kept = tuple(
            param
            for param in self.params
            if not isinstance(param, TensorParam) or param.value.name not in mapped or param.value in others
        )
        used = used_symbols(replace(self, params=kept))
        return tuple(param for param in kept if not isinstance(param, SizeParam) or param.sym in used)

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory, each tensor starting at its alignment."""
        return layout_shared(self)[1]

    @property
    def waits_for_prior_grid(self) -> bool:
        """Whether a grid of this kernel may start before the previous grid has ended."""
        return any(isinstance(op, PriorGridWait) for op in self.walk())

    @cached_property
    def splits_cluster_barriers(self) -> bool:
        """Whether the kernel has separate arrive and wait operations for cluster barriers."""
        return any(isinstance(op, ClusterArrive) for op in self.walk())

    @cached_property
    def written_params(self) -> frozenset[str]:
        """Names of the array parameters that the kernel writes."""
        written = {value.buffer for op in self.walk() for value in op.written}
        return frozenset(value.name for value in self.tensors if value in written)


BARRIER_BYTES = 8
"""Bytes of shared memory of one transaction barrier."""


def layout_shared(kernel: Kernel) -> tuple[dict[Value, int], int]:
    """Return the byte offset of every shared tensor and barrier, and the total size.

    Tensors without a planned offset follow one another, after those with one.
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


# ---------------------------------------------------------------- symbols of a launch


def op_symbols(op: Op) -> frozenset[Sym]:
    """Return the symbols in an operation's own attributes, without those in the types of its operands."""
    return op.cached("symbols", _named)


def _named(op: Op) -> frozenset[Sym]:
    named = (_symbols(getattr(op, f.name)) for f in fields(op) if f.name != "location")
    return frozenset(sym for syms in named for sym in syms)


def _symbols(value: Any) -> set[Sym]:
    if isinstance(value, Expr | Cond):
        return symbols(value)
    if isinstance(value, tuple):
        return {sym for part in value for sym in _symbols(part)}
    if isinstance(value, View):
        inner = _symbols(value.offset) | _symbols(value.valid) | _symbols(value.elems)
        return (inner - set(value.coords)) | _symbols(value.shape)
    if isinstance(value, Value) and isinstance(value.type, TensorType):
        return set()
    if hasattr(value, "apply"):
        return {sym for f in fields(value) for sym in _symbols(getattr(value, f.name))}
    return set()


def used_symbols(kernel: Kernel) -> set[Sym]:
    """Return every symbol that the kernel needs in its arrays, operations, views and launch shape."""
    found = {sym for array in kernel.tensors for sym in _symbols(array.tensor.view)}
    mapped = {tensor_map.tensor for tensor_map in kernel.tensor_maps}
    for op in kernel.walk():
        found |= op_symbols(op)
        for value in op.operands:
            # A tensor map holds the sizes of the array that TMA moves.
            by_map = is_bulk(op) and value.buffer.name in mapped
            if isinstance(value.type, TensorType) and op.read + op.written and not by_map:
                found |= _symbols(value.type.view) | _symbols(value.type.block)
    for axis in kernel.grid:
        found |= _symbols(axis.extent)
    for guard in kernel.guards:
        found |= symbols(guard.condition).union(*map(_symbols, guard.values))
    for space in kernel.workspaces:
        found |= _symbols(space.elems)
    for size in reversed(kernel.sizes):  # a derived size depends on earlier sizes
        if isinstance(size.source, Derived) and size.sym in found:
            found |= _symbols(size.source.value)
    return found
