"""Copies directly into shared memory: distribution by target address, and waits that count accesses.

Hardware that loads into shared memory without registers writes the elements of a warp's lanes at consecutive
addresses.  This pass therefore indexes each copy in the order of its target addresses and deals the elements
to threads in this order.  A swizzled tile is indexed by the bits of one linear index.  The source element of
each thread follows from its target address.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from tilewright.arch import Arch, in_words
from tilewright.ir.async_ops import Role
from tilewright.ir.copies import Copy, is_in_background
from tilewright.ir.kernel import Kernel
from tilewright.ir.legality import widest_vector
from tilewright.ir.ops import AsyncCommit, AsyncWait, Block, For, If, Op, Reshape
from tilewright.ir.types import Value
from tilewright.passes.hazards import hazards
from tilewright.passes.memory_instructions import settle_async
from tilewright.passes.pipeline import Passed
from tilewright.passes.rewrite import Rewriter, rewrite_kernel
from tilewright.symbolic.expr import add, expand, mul
from tilewright.symbolic.nodes import TRUE
from tilewright.symbolic.rebuilding import evaluate, substitute, symbols
from tilewright.threads.distribution import Distribution, Mode
from tilewright.views.transforms import Bits
from tilewright.views.view import View

# ---------------------------------------------------------------- access counts
# Some hardware counts accesses, which complete in the order in which they started, and has no groups.  A wait
# may then leave pending the accesses that certainly started after the last one that must be complete.  This
# number is the minimum over all paths through the kernel.


@dataclass(frozen=True)
class _PathCounts:
    """Minimum numbers of started accesses over all paths to a point.

    Args:
        open: accesses since the last commit.
        groups: accesses in each of the last groups, the last group first.
    """

    open: int
    groups: tuple[int, ...]

    def or_(self, other: _PathCounts) -> _PathCounts:
        """Return the minimum over two paths."""
        return _PathCounts(min(self.open, other.open), tuple(map(min, self.groups, other.groups)))


class _Count:
    """A data-flow analysis that records the minimum number of accesses at each wait.

    Args:
        threads: threads of the block; an access by only some of them is not counted.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.found: dict[int, int] = {}

    def block(self, block: Block, state: _PathCounts) -> _PathCounts:
        """Return the state after a block."""
        for op in block.ops:
            state = self.op(op, state)
        return state

    def op(self, op: Op, state: _PathCounts) -> _PathCounts:
        """Return the state after one operation."""
        match op:
            case AsyncWait():
                left = state.open + sum(state.groups[: op.pending])
                self.found[id(op)] = min(left, self.found.get(id(op), left))
            case AsyncCommit():
                return _PathCounts(0, (state.open, *state.groups)[: len(state.groups)])
            case For():
                return self.loop(op, state)
            case If():
                return self.block(op.then, state).or_(self.block(op.otherwise, state))
            case _ if is_in_background(op) and op.spread.size_threads >= self.threads:
                each = op.spread.size_values // (op.vector or 1)
                return _PathCounts(state.open + each, state.groups)
            case _:
                for region in op.regions:
                    state = state.or_(self.block(region, state))
        return state

    def loop(self, op: For, state: _PathCounts) -> _PathCounts:
        """Return the state after a loop with any number of iterations, including none."""
        while (again := state.or_(self.block(op.body, state))) != state:
            state = again
        return state


def accesses_under_way(kernel: Kernel) -> list[int]:
    """Return, for each wait in program order, how many accesses of a thread may be pending after it.

    Args:
        kernel: the kernel; the vector widths of its copies must be known.
    """
    waits = [op for op in kernel.walk() if isinstance(op, AsyncWait)]
    count = _Count(kernel.threads)
    count.block(kernel.body, _PathCounts(0, (0,) * max((op.pending for op in waits), default=0)))
    return [count.found[id(op)] for op in waits]


# ---------------------------------------------------------------- distribution by address


def deal_by_address(kernel: Kernel, arch: Arch) -> Passed:
    """Distribute asynchronous copies by address; make copies synchronous if this is impossible.

    Afterwards a wait for groups of copies has the number of accesses per thread that may be in flight.

    Returns:
        The kernel, and a note with the reason for each pair of tensors that is copied synchronously.
    """
    if not arch.async_bytes:
        return settle_async(kernel, arch)
    dealt, notes = _dealt(kernel, arch, {})
    # Refuse tensors in which threads touch elements that others have copied, without a barrier in between.
    copied = {op.target.buffer.name for op in dealt.walk() if is_in_background(op)}
    unmet = {
        found.tensor.name: f"there is no barrier where {found}"
        for found in (hazards(dealt, copied) if copied else ())
        if found.needs_barrier and not found.has_barrier
    }
    if unmet:
        dealt, notes = _dealt(kernel, arch, unmet)
    # Make waits count accesses; drop waits and groups if no copy is asynchronous.
    counts = iter(accesses_under_way(dealt))
    are_there = any(is_in_background(op) for op in dealt.walk())

    def change(op: Op, rewriter: Rewriter) -> Iterable[Op] | None:
        if isinstance(op, AsyncWait):
            count = next(counts)
            return (replace(op, accesses=count),) if are_there else ()
        return () if isinstance(op, AsyncCommit) and not are_there else None

    return rewrite_kernel(dealt, change), notes


def _dealt(kernel: Kernel, arch: Arch, refused: Mapping[str, str]) -> Passed:
    """Return the kernel with its copies distributed by address, and notes for the synchronous ones."""
    notes: list[str] = []
    unseen = (
        "this pass does not analyse accesses by warps of other roles"
        if any(isinstance(op, Role) for op in kernel.walk())
        else ""
    )

    def change(op: Op, rewriter: Rewriter) -> Iterable[Op] | None:
        if not is_in_background(op):
            return None
        found = unseen or refused.get(op.target.buffer.name) or _dealing(op, arch)
        if isinstance(found, str):
            notes.append(f"{op.source.buffer} -> {op.target.buffer} is copied synchronously: {found}")
            return (replace(op, engine=None, completion="none"),)
        return found.ops(op, rewriter)

    return rewrite_kernel(kernel, change), tuple(dict.fromkeys(notes))


@dataclass(frozen=True)
class _Dealing:
    """The distribution of a copy: the order of target addresses, and each thread's elements in it."""

    order: Bits
    spread: Distribution
    vector: int

    def ops(self, op: Copy, rewriter: Rewriter) -> tuple[Op, ...]:
        """Return the operations that copy in this order."""
        views = [
            rewriter.define(
                Reshape, f"{end.buffer.name}_by_address", op.location, source=end, transform=self.order
            )
            for end in (op.source, op.target)
        ]
        source, target = (view.result for view in views)
        made = replace(
            op, source=source, target=target, distribution=self.spread, vector=self.vector, matrices=None
        )
        return (*views, made)


def _dealing(op: Copy, arch: Arch) -> _Dealing | str:
    """Return the distribution of a copy by address, or the reason why none exists."""
    source, target = op.source.tensor, op.target.tensor
    if source.indices or target.indices:
        return "its rows are gathered"
    if target.view.valid != TRUE:
        return f"part of {op.target} lies outside its array"
    order = order_of_addresses(target.view)
    if isinstance(order, str):
        return order
    size = op.target.dtype.bytes
    for width in sorted(arch.async_bytes, reverse=True):
        vector = width // size
        if vector and width % size == 0:
            # Each thread in turn gets ``vector`` neighbours, if accesses of this width are legal.
            count = 1 << sum(map(len, order.bits))
            if count < vector:
                continue
            threads = min(1 << (op.spread.size_threads.bit_length() - 1), count // vector)
            modes = (Mode(vector, 0, 1), Mode(count // (vector * threads), 0, vector * threads))
            values = tuple(mode for mode in modes if mode.extent > 1)
            spread = Distribution((count,), (Mode(threads, 0, vector),), values)
            ends = [
                Value(end.name, replace(end.tensor, view=order.apply(end.tensor.view), distribution=None))
                for end in (op.source, op.target)
            ]
            if widest_vector(replace(op, source=ends[0], target=ends[1]), spread) >= vector:
                return _Dealing(order, spread, vector)
    widths = in_words(arch.async_bytes)
    return f"{arch.name} loads {widths} bytes at a time into shared memory, and no access here has that width"


def order_of_addresses(view: View) -> Bits | str:
    """Return the memory order of a tile's elements as `Bits`, or the reason why it is not one.

    Args:
        view: the view of the tile.

    Example:
        >>> from tilewright.views.transforms import Swizzle
        >>> tile = Swizzle(1, 1, 1).apply(View.strided((2, 4), (4, 1)))
        >>> order_of_addresses(tile)
        Bits(bits=(((2,),), ((0,), (1, 2))))
        >>> order_of_addresses(View.strided((2, 4), (5, 1)))
        'its tile does not lie in shared memory without gaps'
    """
    extents = [extent for extent in view.shape if isinstance(extent, int) and extent > 0]
    if len(extents) < view.rank or any(extent & (extent - 1) for extent in extents):
        shape = " x ".join(map(str, view.shape))
        return f"its tile of {shape} has an extent that is no power of two"
    origin = substitute(view.offset, dict.fromkeys(view.coords, 0))
    apart = expand(add(view.offset, mul(origin, -1)))
    if symbols(apart) - set(view.coords):
        return "the order of its tile in shared memory depends on the tile's position"
    index = dict(zip(view.coords, np.indices(extents), strict=True))
    places = np.broadcast_to(evaluate(apart, index), extents)
    count = places.size
    if not np.array_equal(np.sort(places, axis=None), np.arange(count)):
        return "its tile does not lie in shared memory without gaps"
    found = np.argsort(places, axis=None)
    at = [np.unravel_index(found[1 << bit], extents) for bit in range(count.bit_length() - 1)]
    order = Bits(
        tuple(
            tuple(
                tuple(bit for bit, place in enumerate(at) if int(place[dim]) >> row & 1)
                for row in range(extent.bit_length() - 1)
            )
            for dim, extent in enumerate(extents)
        )
    )
    shown = order.apply(View.strided(extents, [math.prod(extents[d + 1 :]) for d in range(len(extents))]))
    if not np.array_equal(np.broadcast_to(shown.at((np.arange(count),)), (count,)), found):
        return "its tile in shared memory is no permutation of address bits"
    return order
