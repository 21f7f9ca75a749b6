"""From a block of threads to one thread: whole tiles, with accumulators in the order of micro-tiles.

Operations are collective and come in program order, so doing each of them on its whole tile, one after the
other, is one of the orders that the threads could have run in.  Barriers then hold nothing back, and an
asynchronous copy that is complete at once is complete when it is waited for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from tilewright.ir.types import Memory, TensorType, Value
from tilewright.passes.rewrite import Rewriter, rewrite_kernel
from tilewright.targets.cpu.arch import MicroTile, micro_atom, micro_tile, operand_dtype
from tilewright.targets.cpu.linear import distinct, slowest_first
from tilewright.threads.distribution import Distribution, Mode

SYNCHRONISATION = (Barrier, WarpBarrier, AsyncCommit, AsyncWait)


def whole(shape: tuple[int, ...], order: Sequence[int] | None = None) -> Distribution:
    """One thread that holds a tile, with the last of its dimensions in some order fastest."""
    dims = reversed(range(len(shape)) if order is None else order)
    return Distribution(shape, (), tuple(Mode(shape[dim], dim, 1) for dim in dims))


def _memory_orders(kernel: Kernel) -> dict[Distribution, tuple[int, ...]]:
    """Dimension order of fragments, by distribution: that of the first global tensor that they exchange with.

    A copy between the two is then one run, or few.
    """
    found: dict[Distribution, tuple[int, ...]] = {}
    for op in kernel.walk():
        if isinstance(op, Copy):
            for value, other in ((op.source, op.target), (op.target, op.source)):
                if value.is_fragment and isinstance(other.type, TensorType):
                    order = slowest_first(other.type.view)
                    if order is not None and other.type.memory is Memory.GLOBAL:
                        found.setdefault(value.fragment.distribution.canonical, order)
    return found


class _Together(NamedTuple):
    """Numbers of operands B, sums and products of consecutive multiplies."""

    factors: int
    sums: int
    products: int


def _together(kernel: Kernel) -> dict[Distribution, _Together]:
    """Widths multiplied together, by accumulator distribution; the least if they differ."""
    found: dict[Distribution, _Together] = {}
    blocks = (kernel.body, *(region for op in kernel.walk() for region in op.regions))
    for multiplies in (run for block in blocks for run in _runs(block)):
        factors, sums = (len(distinct([getattr(op, side) for op in multiplies])) for side in "bc")
        one = _Together(factors, sums, len(multiplies))
        spread = multiplies[0].mma.c()
        found[spread] = min(found.get(spread, one), one, key=lambda several: several.products)
    return found


def _runs(block: Block) -> Iterator[list[Mma]]:
    """Multiplies of one kind that follow each other."""
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
    """The one-thread distribution that stands for each distribution of the kernel."""

    arch: Arch
    together: Mapping[Distribution, _Together] = field(default_factory=dict)
    tiles: dict[Distribution, MicroTile] = field(default_factory=dict)
    accumulators: dict[Distribution, Distribution] = field(default_factory=dict)
    operands: frozenset[str] = frozenset()
    orders: Mapping[Distribution, tuple[int, ...]] = field(default_factory=dict)

    def add(self, op: Mma) -> None:
        spread = op.mma.c()
        if spread not in self.tiles:
            rows, columns = spread.shape
            size, beside = op.mma.atom.c_dtype.computed.bytes, self.together[spread]._asdict()
            self.tiles[spread] = micro_tile(self.arch, rows, columns, size, **beside)
            self.accumulators[spread.canonical] = self.mma(op).c()

    def mma(self, op: Mma) -> TiledMma:
        rows, columns, _ = op.mma.tile
        tile = self.tiles[op.mma.c()]
        atom = micro_atom(
            tile, operand_dtype(op.mma.atom, depth_of(op.a), tile.lanes, self.arch), op.mma.atom
        )
        return TiledMma(atom, repeats=(rows // tile.rows, columns // tile.columns))

    def of(self, spread: Distribution) -> Distribution:
        found = self.accumulators.get(spread.canonical)
        return found or whole(spread.shape, self.orders.get(spread.canonical))

    def redistributed(self, op: Redistribute) -> tuple[Op, ...]:
        """A copy in the wanted order; a tile that is only multiplied is packed from any order."""
        name, source = op.result.name, op.source
        if name not in self.operands or any(op.start) or op.distribution.shape != source.fragment.shape:
            taken: dict[str, Any] = {
                "source": source,
                "start": op.start,
                "distribution": self.of(op.distribution),
            }
            return (make(Redistribute, name, op.location, **taken),)
        spread = source.fragment.distribution
        made = make(FragmentOp, name, op.location, dtype=source.dtype, distribution=spread)
        return (made, Copy(source, made.result, location=op.location))

    def change(self, op: Op, rewriter: Rewriter) -> Iterable[Op] | None:
        match op:
            case Copy():
                spread = None if op.distribution is None else self.of(op.distribution)
                return (replace(op, distribution=spread, vector=None, engine=None, completion="none"),)
            case FragmentOp():
                spread = self.of(op.distribution)
                name = op.result.name
                return (
                    make(FragmentOp, name, op.location, dtype=op.dtype, distribution=spread, fill=op.fill),
                )
            case PartitionOp():
                spread = self.of(op.distribution)
                return (
                    make(PartitionOp, op.result.name, op.location, source=op.source, distribution=spread),
                )
            case Coordinates():
                spread, name = self.of(op.distribution), op.result.name
                return (make(Coordinates, name, op.location, distribution=spread, dim=op.dim),)
            case Redistribute():
                return self.redistributed(op)
            case Mma():
                return (replace(op, mma=self.mma(op)),)
        return () if isinstance(op, SYNCHRONISATION) else None


def depth_of(operand: Value) -> int:
    """Depth of an operand of a multiply."""
    shape = operand.fragment.shape if operand.is_fragment else operand.tensor.shape
    assert isinstance(shape[1], int)
    return shape[1]


def _operands(kernel: Kernel) -> frozenset[str]:
    """The fragments that multiplies read and nothing else names but what defines them."""
    multiplied: set[str] = set()
    named: set[str] = set()
    for op in kernel.walk():
        factors = (op.a, op.b) if isinstance(op, Mma) else ()
        multiplied.update(value.name for value in factors if value.is_fragment)
        named.update(value.name for value in op.operands if value not in factors)
    return frozenset(multiplied - named)


def drop_threads(kernel: Kernel, arch: Arch) -> tuple[Kernel, tuple[str, ...]]:
    """The kernel for one thread per block, without synchronisation.

    Returns:
        The kernel, and a note on what fell away.
    """
    sequence = _Sequence(arch, _together(kernel), operands=_operands(kernel), orders=_memory_orders(kernel))
    for op in kernel.walk():
        if isinstance(op, Mma):
            sequence.add(op)
    made = rewrite_kernel(replace(kernel, threads=1, lanes=1), sequence.change)
    notes = []
    if kernel.threads > 1:
        dropped = sum(isinstance(op, SYNCHRONISATION) for op in kernel.walk())
        notes.append(
            f"one thread does the work of {kernel.threads}; {dropped} synchronisations hold nothing back"
        )
    if any(is_in_background(op) for op in kernel.walk()):
        notes.append("asynchronous copies complete at once")
    notes += [
        f"accumulators of {shape[0]}x{shape[1]} lie in micro-tiles of {tile.rows}x{tile.columns}"
        for shape, tile in {spread.shape: tile for spread, tile in sequence.tiles.items()}.items()
    ]
    return made, tuple(notes)
