"""The operations: frozen dataclasses with typed fields; effects, printing and cloning derive from the fields.

Operations do not depend on targets.  Every operation is collective over the threads of the block, unless its
distribution has fewer.  `tilewright.ir.op.Op.roles` gives its reads and writes, its traits give the memories
and engines, and `orders` gives the accesses that it orders.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from tilewright.dtypes import DType, boolean
from tilewright.functions.conversions import number
from tilewright.ir.async_ops import ASYNC_OPS
from tilewright.ir.copies import ENGINES, Copy, Gather
from tilewright.ir.fragment_ops import FRAGMENT_OPS, Redistribute, result_dtype, widest_map
from tilewright.ir.integer_ops import INTEGER_OPS, GetVariable, Let, ReadIndex, SetVariable, Variable
from tilewright.ir.mma import TiledMma
from tilewright.ir.op import (
    ADDRESSED,
    ASYNC,
    CONTROL,
    EMPTY,
    IN_REGISTERS,
    NAMES,
    REGISTERS,
    SHARED,
    Block,
    Op,
    Ordering,
    Traits,
)
from tilewright.ir.packed_ops import PACKED_OPS
from tilewright.ir.signal_ops import SIGNAL_OPS
from tilewright.ir.types import FragmentType, Memory, ScalarType, TensorType, Type, Value
from tilewright.symbolic.nodes import Cond, Int, Sym
from tilewright.threads.distribution import Distribution
from tilewright.views.transforms import Transform
from tilewright.views.view import View

__all__ = [
    "KINDS",
    "OPS",
    "AsyncCommit",
    "AsyncWait",
    "Barrier",
    "Block",
    "Copy",
    "Elementwise",
    "Fill",
    "For",
    "FragmentOp",
    "Gather",
    "GetVariable",
    "If",
    "Let",
    "Mma",
    "Op",
    "PartitionOp",
    "ReadIndex",
    "Redistribute",
    "Reshape",
    "SetVariable",
    "Shared",
    "Variable",
    "WarpBarrier",
]

# ---------------------------------------------------------------- memory and views


@dataclass(frozen=True)
class Shared(Op):
    """A tensor in shared memory, uninitialised; ``elems`` elements are allocated.

    ``at`` is the planned byte offset in the block's shared memory; overlapping tensors share memory.  None:
    tensors without an offset follow one another, after those with one.
    """

    name = "shared"
    traits = NAMES
    roles: ClassVar = {"result": "defines"}
    result: Value
    dtype: DType
    view: View
    elems: int
    align: int = 128
    at: int | None = None

    @staticmethod
    def infer(dtype: DType, view: View, elems: int, align: int = 128, at: int | None = None) -> Type:
        """Type of the result."""
        return TensorType(Memory.SHARED, dtype, view, align)


@dataclass(frozen=True)
class FragmentOp(Op):
    """A tile in registers; filled with ``fill``, or uninitialised if it is None."""

    name = "fragment"
    traits = IN_REGISTERS
    roles: ClassVar = {"result": "defines"}
    result: Value
    dtype: DType
    distribution: Distribution
    fill: float | int | None = None

    @staticmethod
    def infer(dtype: DType, distribution: Distribution, fill: float | int | None = None) -> Type:
        """Type of the result."""
        return FragmentType(dtype, distribution)


@dataclass(frozen=True)
class Reshape(Op):
    """Another view of the same memory: ``result = transform(source)``."""

    name = "view"
    traits = NAMES
    roles: ClassVar = {"result": "defines", "source": "uses"}
    result: Value
    source: Value
    transform: Transform

    @staticmethod
    def infer(source: Value, transform: Transform) -> Type:
        """Type of the result."""
        old = source.tensor
        return replace(old, view=transform.apply(old.view), distribution=None)


@dataclass(frozen=True)
class PartitionOp(Op):
    """Distribute the coordinates of a tensor over threads."""

    name = "partition"
    traits = NAMES
    roles: ClassVar = {"result": "defines", "source": "uses"}
    result: Value
    source: Value
    distribution: Distribution

    @staticmethod
    def infer(source: Value, distribution: Distribution) -> Type:
        """Type of the result."""
        return replace(source.tensor, distribution=distribution)


@dataclass(frozen=True)
class AsyncCommit(Op):
    """Close the group of asynchronous copies that each thread issued since its last commit."""

    name = "async_commit"
    traits = CONTROL


@dataclass(frozen=True)
class AsyncWait(Op):
    """Wait until at most ``pending`` of the groups that each thread committed are unfinished.

    Makes a thread's own copies visible to itself; others see them after a barrier.

    Args:
        pending: number of groups.
        accesses: number of a thread's accesses that may be unfinished, for hardware that counts accesses;
            None: the hardware counts groups.
    """

    name = "async_wait"
    traits = CONTROL
    orders = Ordering("thread", (SHARED,), (ASYNC,))
    pending: int = 0
    accesses: int | None = None


@dataclass(frozen=True)
class Fill(Op):
    """Set every element of a fragment."""

    name = "fill"
    traits = IN_REGISTERS
    roles: ClassVar = {"target": "writes", "value": "reads"}
    target: Value
    value: float | int | Value


# ---------------------------------------------------------------- arithmetic


@dataclass(frozen=True)
class Elementwise(Op):
    """``result = function(operands...)``, element by element over fragments of one distribution.

    A fragment with extent 1 along some dimensions broadcasts along them, if its map is the projection of the
    other map.  Scalars, numbers and integers apply to every element.  Types narrower than f32 compute in f32
    and round once.
    """

    name = "elementwise"
    traits = IN_REGISTERS
    roles: ClassVar = {"result": "defines", "operands_": "reads"}
    result: Value
    function: str
    operands_: tuple[Value | float | bool | Int, ...]
    dtype: DType | None = None

    @property
    def table(self) -> tuple[float, ...]:
        """The numbers of the table of a look-up by codes, rounded to the dtype of the result."""
        kind, plain = self.result.dtype, (one for one in self.operands_ if isinstance(one, float | int))
        return tuple(float(number(one, kind)) if kind.is_float else int(one) for one in plain)

    @staticmethod
    def infer(
        function: str, operands_: tuple[Value | float | bool | Int, ...], dtype: DType | None = None
    ) -> Type:
        """Type of the result: a fragment if any operand is one, with the map that the others broadcast to."""
        values = [v for v in operands_ if isinstance(v, Value)]
        kinds = [v.dtype for v in values]
        if function == "select" and not isinstance(operands_[0], Value):
            kinds.insert(0, boolean)
        chosen = result_dtype(function, kinds, dtype)
        maps = [v.type.distribution for v in values if isinstance(v.type, FragmentType)]
        return FragmentType(chosen, widest_map(maps)) if maps else ScalarType(chosen)


@dataclass(frozen=True)
class Mma(Op):
    """``c[m, n] += sum_k a[m, k] * b[n, k]``, products exact, sums in c's dtype.

    Args:
        a: (M, K), in shared memory or a fragment distributed as ``mma.a(K)``.
        b: (N, K), in shared memory or a fragment distributed as ``mma.b(K)``.
        c: fragment distributed as ``mma.c()``.
        mma: atom, warps, repeats.
        negative: whether to subtract the products.
    """

    name = "mma"
    traits = Traits((REGISTERS, SHARED))
    roles: ClassVar = {"a": "reads", "b": "reads", "c": "updates"}
    a: Value
    b: Value
    c: Value
    mma: TiledMma
    negative: bool = False


# ---------------------------------------------------------------- synchronisation


@dataclass(frozen=True)
class Barrier(Op):
    """All threads of the block wait for each other; orders their accesses to shared and global memory."""

    name = "barrier"
    traits = CONTROL
    orders = Ordering("block", ADDRESSED)


@dataclass(frozen=True)
class WarpBarrier(Op):
    """All lanes of each warp wait for each other; orders their accesses to memory."""

    name = "warp_barrier"
    traits = CONTROL
    orders = Ordering("warp", ADDRESSED)


# ---------------------------------------------------------------- control


@dataclass(frozen=True)
class For(Op):
    """``for index in range(start, stop, step): body``.

    ``unroll`` requests a copy of the body per iteration, or is the unroll factor.

    ``provenance`` names the construct that the loop implements ("mainloop" for the K loop of a GEMM).
    """

    name = "for"
    traits = CONTROL
    roles: ClassVar = {"index": "defines"}
    index: Sym
    start: Int
    stop: Int
    step: int
    body: Block
    unroll: bool | int = False
    provenance: str = ""


@dataclass(frozen=True)
class If(Op):
    """``if condition: then else: otherwise``; the condition is the same for all threads of the block."""

    name = "if"
    traits = CONTROL
    condition: Cond
    then: Block
    otherwise: Block = EMPTY


OPS: tuple[type[Op], ...] = (
    *(Shared, FragmentOp, Reshape, Gather, PartitionOp, Copy, AsyncCommit, AsyncWait, Fill),
    Elementwise,
    *FRAGMENT_OPS,
    *PACKED_OPS,
    *(Mma, Barrier, WarpBarrier, *INTEGER_OPS, For, If),
    *SIGNAL_OPS,
    *ASYNC_OPS,
)

KINDS: tuple[tuple[type[Op], str], ...] = tuple(
    (op, variant) for op in OPS for variant in (ENGINES if op is Copy else ("",))
)
"""Every operation, and every engine of copies: a target may have one rule for each."""
