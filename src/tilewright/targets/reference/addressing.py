"""Addresses of accesses: rows chosen by integers in memory, and buffers of other blocks of the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from tilewright.functions.conversions import Array
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import Gather, Op
from tilewright.ir.types import Value
from tilewright.symbolic.nodes import Element, Int, Sym
from tilewright.symbolic.rebuilding import elements, evaluate, split_elements
from tilewright.targets.reference.checker import ROW_TWICE, Batch, Checker
from tilewright.targets.reference.findings import Kind
from tilewright.targets.reference.memory import Storage
from tilewright.targets.reference.state import BlockState, Visit, Warp


class Gathers:
    """Finds the views of a kernel whose rows are chosen by integers in memory (`ir.ops.Gather`)."""

    def __init__(self, kernel: Kernel) -> None:
        self._of: dict[Value, tuple[Gather, ...]] = {}
        self._elements: dict[Value, tuple[Element, ...]] = {}
        for op in kernel.walk():
            for result in op.results:
                sources = (self._of.get(source, ()) for source in op.operands)
                own = (op,) if isinstance(op, Gather) else ()
                if gathers := (*(gather for known in sources for gather in known), *own):
                    self._of[result] = gathers

    def chooses(self, value: Value) -> bool:
        """Return whether the rows of a view come from integers in memory."""
        return value in self._of

    def environment(self, warp: Warp, value: Value) -> Mapping[Sym, Any]:
        """Return the values of symbols in a warp's access.  An index array is a function that reads it."""
        if not value.tensor.indices:
            return warp.env
        tables = {
            Sym(index.buffer.name): partial(_integers, warp.block.buffers[index.buffer])
            for index in value.tensor.indices
        }
        return {**warp.env, **tables}

    def read(self, checker: Checker, warp: Warp, op: Op, value: Value, coordinates: Array) -> None:
        """Check the reads of an access's row indices: order, bounds, and the rows that they name.

        Args:
            checker: the checker.
            warp: the warp.
            op: the access.
            value: the accessed view.
            coordinates: the elements that it accesses; shape (lanes, values, rank).
        """
        view = value.tensor.view
        if value not in self._elements:
            self._elements[value] = elements((view.valid, view.offset))
        places = np.moveaxis(coordinates, -1, 0)
        env = {**self.environment(warp, value), **dict(zip(view.coords, places, strict=True))}
        shape = coordinates.shape[:-1]
        known = np.broadcast_to(np.asarray(evaluate(split_elements(view.valid)[0], env), bool), shape)
        for element in self._elements[value]:
            gather = next(g for g in self._of[value] if g.index.buffer.name == element.table.name)
            at = np.broadcast_to(np.asarray(evaluate(element.at, env), np.int64), shape)
            wanted = np.stack([at[known], np.nonzero(known)[0]])
            at, lanes = np.unique(wanted, axis=1) if wanted.size else wanted
            buffer = warp.block.buffers[gather.index.buffer]
            site = checker.site(op, gather.index, "read")
            batch = checker.inside(Batch(warp.agent, site, buffer, at, lanes.astype(np.int16)))
            checker.reads(batch)
            if gather.padded:
                continue
            extent = warp.int(gather.source.tensor.shape[gather.dim])
            found = buffer.elements[batch.at]
            rows = found.astype(np.int64)
            strange = (rows < 0) | (rows >= extent)
            if strange.any():
                reason = (
                    f"row {found[strange][0]} of {gather.source}, of {extent} along dimension "
                    f"{gather.dim}, reads as other= says and is not written; if that is meant, say "
                    f"rows({gather.index}, padded=True)"
                )
                checker.defect(Kind.RANGE, batch.only(strange), reason)

    def once(self, checker: Checker, batch: Batch) -> Batch:
        """Return each element that a warp writes once; report rows that occur twice."""
        found, first, counts = np.unique(batch.at, return_index=True, return_counts=True)
        again = np.isin(batch.at, found[counts > 1])
        again[first] = False
        if again.any():
            checker.defect(Kind.DUPLICATE, batch.only(again), ROW_TWICE)
        return batch.only(first)


def _integers(buffer: Storage, at: Any) -> Any:
    """Return elements of a buffer as integers, and -1 outside of the buffer."""
    at = np.asarray(at)
    inside = ~buffer.outside(at.ravel()).reshape(at.shape)
    found = np.full(at.shape, -1, np.int64)
    found[inside] = buffer.elements[at[inside]]
    return found if found.ndim else int(found)


# ---------------------------------------------------------------- shared memory of other blocks


def block_of(warp: Warp, rank: Int | None) -> BlockState | None:
    """Return the block of a rank in a warp's cluster, or None; with rank None, the own block."""
    if rank is None:
        return warp.block
    number, blocks = warp.int(rank), warp.block.cluster.blocks
    return blocks[number] if 0 <= number < len(blocks) else None


def buffer_of(warp: Warp, value: Value) -> Storage | None:
    """Return the memory of a tensor; None if the cluster has no block of that rank."""
    block = block_of(warp, value.tensor.block)
    return None if block is None else block.buffers[value.buffer]


def accessed_block(checker: Checker, warp: Warp, op: Op, rank: Int | None, action: str) -> BlockState | None:
    """Return the block of a rank in a warp's cluster; report a rank that does not exist."""
    block = block_of(warp, rank)
    if block is None and rank is not None:
        last = len(warp.block.cluster.blocks) - 1
        reason = f"rank {warp.int(rank)} in a cluster of the ranks 0 to {last}"
        checker.waiting(Kind.OUT_OF_BOUNDS, warp.agent, op, None, reason, action)
    return block


def accessed_buffer(
    checker: Checker, warp: Warp, op: Op, value: Value, action: str, check: bool
) -> Storage | None:
    """Return the memory of a tensor that a warp accesses; report another block that may not have begun.

    Args:
        checker: receives findings.
        warp: the warp.
        op: the operation.
        value: the tensor.
        action: ``"read"`` or ``"write"``.
        check: whether to look for hazards.
    """
    block = accessed_block(checker, warp, op, value.tensor.block, action)
    if block is None:
        return None
    found = block.buffers[value.buffer]
    if block is not warp.block and check:
        if not any(warp.agent.comes_after(other.agent.slot, 1) for other in block.warps):
            reason = (
                f"block {block.index} may not have begun before this {action} of its {value.buffer}: no "
                "cluster_barrier comes before it"
            )
            checker.waiting(Kind.BEGUN, warp.agent, op, None, reason, action)
        block.visits[warp.agent, found] = Visit(op, warp.agent.time, action, str(value.buffer))
    return found
