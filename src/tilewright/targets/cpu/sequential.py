"""From a block of threads to one thread: whole tiles, with accumulators in the order of micro-tiles.

Operations are collective and in program order.  One thread that does each of them on its whole tile, one
after the other, is one of the orders in which the block's threads could run.  So barriers are not needed, and
asynchronous copies complete at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from tilewright.arch import Arch
from tilewright.ir.builder import make
from tilewright.ir.copies import is_in_background
from tilewright.ir.fragment_ops import Coordinates
from tilewright.ir.kernel import Kernel
from tilewright.ir.mma import TiledMma
from tilewright.ir.ops import (
    AsyncCommit,
    AsyncWait,
    Barrier,
    Block,
    Copy,
    FragmentOp,
    Mma,
    Op,
    PartitionOp,
    Redistribute,
    Reshape,
    WarpBarrier,
)
from tilewright.ir.types import Memory, TensorType
from tilewright.passes.expand_mma import depth_of
from tilewright.passes.rewrite import Rewriter, rewrite_kernel
from tilewright.targets.cpu.arch import MicroTile, micro_atom, micro_tile, operand_dtype
from tilewright.targets.cpu.linear import distinct, slowest_first
from tilewright.threads.distribution import Distribution, Mode

SYNCHRONISATION = (Barrier, WarpBarrier, AsyncCommit, AsyncWait)


def whole(shape: tuple[int, ...], order: Sequence[int] | None = None) -> Distribution:
    """Return the distribution of a tile to one thread; the last dimension of the order is fastest."""
    dims = reversed(range(len(shape)) if order is None else order)
    return Distribution(shape, (), tuple(Mode(shape[dim], dim, 1) for dim in dims))


class _Together(NamedTuple):
    """Numbers of operands B, of accumulators and of products of consecutive multiplies."""

    factors: int
    sums: int
    products: int


def _runs(block: Block) -> Iterator[list[Mma]]:
    """Yield consecutive multiplies of one kind."""
    run: list[Mma] = []
    for op in block.ops:
        if isinstance(op, (Reshape, *SYNCHRONISATION)):
            continue
        if run and not (isinstance(op, Mma) and op.mma == run[0].mma):
            yield run
            run = []
        if isinstance(op, Mma):
            run.append(op)
    if run:
        yield run


@dataclass
class _Sequence:
    """Maps each distribution of the kernel to a distribution of one thread.

    Args:
        arch: the processor.
        tiles: the micro-tile, by distribution of an accumulator.
        accumulators: the one-thread distribution, by distribution of an accumulator.
        operands: names of the fragments that only their definition and multiplies name.
        orders: the order of dimensions, by distribution: that of the first global tensor that a fragment is
            copied from or to, so that such a copy is one run, or few.
    """

    arch: Arch
    tiles: dict[Distribution, MicroTile] = field(default_factory=dict)
    accumulators: dict[Distribution, Distribution] = field(default_factory=dict)
    operands: set[str] = field(default_factory=set)
    orders: dict[Distribution, tuple[int, ...]] = field(default_factory=dict)

    @staticmethod
    def of(kernel: Kernel, arch: Arch) -> _Sequence:
        found = _Sequence(arch)
        named: set[str] = set()
        for op in kernel.walk():
            factors = (op.a, op.b) if isinstance(op, Mma) else ()
            found.operands.update(value.name for value in factors if value.is_fragment)
            named.update(value.name for value in op.operands if value not in factors)
            if isinstance(op, Copy):
                for value, other in ((op.source, op.target), (op.target, op.source)):
                    if value.is_fragment and isinstance(other.type, TensorType):
                        order = slowest_first(other.type.view)
                        if order is not None and other.type.memory is Memory.GLOBAL:
                            found.orders.setdefault(value.fragment.distribution.canonical, order)
        found.operands -= named
        # Consecutive multiplies share a micro-tile; where their number differs, the smallest counts.
        together: dict[Distribution, _Together] = {}
        blocks = (kernel.body, *(region for op in kernel.walk() for region in op.regions))
        for multiplies in (run for block in blocks for run in _runs(block)):
            b, c = (len(distinct([getattr(op, side) for op in multiplies])) for side in "bc")
            one, spread = _Together(b, c, len(multiplies)), multiplies[0].mma.c()
            together[spread] = min(together.get(spread, one), one, key=lambda several: several.products)
        for op in kernel.walk():
            if isinstance(op, Mma) and (spread := op.mma.c()) not in found.tiles:
                rows, columns = spread.shape
                size, numbers = op.mma.atom.c_dtype.computed.bytes, together[spread]._asdict()
                found.tiles[spread] = micro_tile(arch, rows, columns, size, **numbers)
                found.accumulators[spread.canonical] = found.mma(op).c()
        return found

    def mma(self, op: Mma) -> TiledMma:
        rows, columns, _ = op.mma.tile
        tile = self.tiles[op.mma.c()]
        atom = micro_atom(
            tile, operand_dtype(op.mma.atom, depth_of(op.a), tile.lanes, self.arch), op.mma.atom
        )
        return TiledMma(atom, repeats=(rows // tile.rows, columns // tile.columns))

    def one_thread(self, spread: Distribution) -> Distribution:
        found = self.accumulators.get(spread.canonical)
        return found or whole(spread.shape, self.orders.get(spread.canonical))

    def change(self, op: Op, rewriter: Rewriter) -> Iterable[Op] | None:
        at = op.location
        kept: dict[str, Any]
        match op:
            case Copy():
                spread = None if op.distribution is None else self.one_thread(op.distribution)
                return (replace(op, distribution=spread, vector=None, engine=None, completion="none"),)
            case Mma():
                return (replace(op, mma=self.mma(op)),)
            case Redistribute():
                name, source = op.result.name, op.source
                is_whole = not any(op.start) and op.distribution.shape == source.fragment.shape
                if name in self.operands and is_whole:  # packing reads a tile in any order
                    spread = source.fragment.distribution
                    made = make(FragmentOp, name, at, dtype=source.dtype, distribution=spread)
                    return (made, Copy(source, made.result, location=at))
                kept = {"source": source, "start": op.start}
            case FragmentOp():
                kept = {"dtype": op.dtype, "fill": op.fill}
            case PartitionOp():
                kept = {"source": op.source}
            case Coordinates():
                kept = {"dim": op.dim}
            case _:
                return () if isinstance(op, SYNCHRONISATION) else None
        spread = self.one_thread(op.distribution)
        return (make(type(op), op.result.name, at, distribution=spread, **kept),)


def drop_threads(kernel: Kernel, arch: Arch) -> tuple[Kernel, tuple[str, ...]]:
    """Return the kernel for one thread per block, without synchronisation, and notes on the changes."""
    sequence = _Sequence.of(kernel, arch)
    made = rewrite_kernel(replace(kernel, threads=1, lanes=1), sequence.change)
    notes = []
    if kernel.threads > 1:
        dropped = sum(isinstance(op, SYNCHRONISATION) for op in kernel.walk())
        notes.append(f"one thread does the work of {kernel.threads}; {dropped} synchronisations are removed")
    if any(is_in_background(op) for op in kernel.walk()):
        notes.append("asynchronous copies complete at once")
    notes += [
        f"accumulators of {shape[0]}x{shape[1]} lie in micro-tiles of {tile.rows}x{tile.columns}"
        for shape, tile in {spread.shape: tile for spread, tile in sequence.tiles.items()}.items()
    ]
    return made, tuple(notes)
