"""Choose layouts of shared tensors without bank conflicts of a warp's accesses.

Shared memory has 32 banks of 4 bytes.  A warp's accesses of up to 4 bytes are served together, those of 8
bytes in two halves, those of 16 bytes, and ``ldmatrix``, in quarters; lanes that touch different words of one
bank are served one after another.  The accesses follow from the uses of the tensor.  Candidates are swizzles
of whole 16-byte chunks, or two of them in sequence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.arch import REFERENCE
from tilewright.dtypes import DType
from tilewright.ir.async_ops import Peer
from tilewright.ir.copies import is_in_background
from tilewright.ir.legality import widest_vector
from tilewright.ir.ops import Copy, Mma, Op, PartitionOp, Reshape, Shared
from tilewright.ir.types import FragmentType, Memory, Value
from tilewright.passes.expand_mma import loaded_as
from tilewright.passes.memory_instructions import matrix_load
from tilewright.symbolic.nodes import Int, Sym
from tilewright.symbolic.rebuilding import evaluate, symbols
from tilewright.targets.simt.thread_values import first_copy
from tilewright.threads.banks import ABSENT, WORD_BYTES, bank_passes, lanes_together, served_together
from tilewright.threads.distribution import Distribution
from tilewright.views.transforms import Swizzle
from tilewright.views.view import View

Offsets = np.ndarray[Any, np.dtype[np.int64]]

BANKS, BANK_BYTES = REFERENCE.banks, WORD_BYTES
CHUNK_BYTES = 16
"""Bytes of the widest access, which a swizzle must not split."""
CORE_ROWS = 8
"""Rows of a core matrix, of 16 bytes each; it fills all banks once."""


@dataclass(frozen=True)
class Serving:
    """A machine's shared memory: banks, and the order in which a warp's accesses are served.

    Args:
        lanes: threads of a warp.
        banks: banks of shared memory.
        read_order: lanes in the order in which loads of 16 bytes are served; empty for lane order.
        matrices: whether loads use ``ldmatrix`` if it fits.
        pairs: whether accesses wider than a bank that are equal in pairs of lanes are served together.
        by_address: whether asynchronous copies write in the order of addresses.
    """

    lanes: int = BANKS
    banks: int = BANKS
    read_order: tuple[int, ...] = ()
    matrices: bool = True
    pairs: bool = True
    by_address: bool = False


@dataclass(frozen=True)
class WarpAccess:
    """One access of a warp.

    Args:
        offsets: element offset of each lane's first element, of shape (accesses, lanes).
        bytes: width of one lane's access.
    """

    offsets: Offsets
    bytes: int


def passes(offsets: Offsets, width: int, element_bytes: int, banks: int = BANKS) -> int:
    """Return how many passes over shared memory a warp's accesses take.

    Args:
        offsets: element offsets, of shape (accesses, lanes).
        width: bytes of one lane's access.
        element_bytes: bytes of an element.
        banks: banks of shared memory.

    Example:
        Eight rows of 64 bytes, 16 bytes of each: four rows share each group of banks.

        >>> passes(np.arange(32).reshape(1, 32) % 8 * 32, 16, 2)
        16
        >>> passes(np.arange(32).reshape(1, 32) * 8, 16, 2)
        4
    """
    lanes = offsets.shape[1]
    together = min(lanes_together(width, banks, lanes), lanes)
    parts = served_together(offsets * element_bytes, together, lanes)
    return int(bank_passes(parts, width, banks).sum())


def spread_over_banks(
    op: Shared, using: tuple[Op, ...], serving: Serving = Serving()
) -> tuple[Swizzle, ...] | None:
    """Return the swizzles with the fewest passes for the uses of a shared tensor; None for no change."""
    if op.dtype.bytes > CHUNK_BYTES or not isinstance(op.view.elems, int):
        return None
    accesses = list(_accesses(op, using, serving))
    line = serving.banks * BANK_BYTES
    fewest = sum(len(a.offsets) * max(a.offsets.shape[1] * a.bytes // line, 1) for a in accesses)
    chosen: tuple[Swizzle, ...] = ()
    best = _cost(accesses, (), op.dtype, serving.banks)
    if best <= fewest:
        return None
    singles: list[tuple[int, tuple[Swizzle, ...]]] = []
    for swizzle in _candidates(op, line):
        cost = _cost(accesses, (swizzle,), op.dtype, serving.banks)
        singles.append((cost, (swizzle,)))
        if cost < best:
            best, chosen = cost, (swizzle,)
    if best > fewest:
        singles.sort(key=lambda item: item[0])
        for _, (first,) in singles[:4]:
            for second in _candidates(op, line, bits=(1,)):
                # The second must read bits that the first does not change: addresses stay short.
                if second.base + second.shift < first.base + first.bits:
                    continue
                cost = _cost(accesses, (first, second), op.dtype, serving.banks)
                if cost < best:
                    best, chosen = cost, (first, second)
    return chosen or None


def _candidates(op: Shared, line: int, bits: Sequence[int] = (1, 2, 3)) -> Iterator[Swizzle]:
    """Yield swizzles that move whole chunks among the banks and stay within the tensor."""
    assert isinstance(op.view.elems, int)
    chunk = (CHUNK_BYTES // op.dtype.bytes).bit_length() - 1
    moved = (line // CHUNK_BYTES).bit_length() - 1  # bits that number the chunks of a line
    for count in bits:
        for base in range(chunk, chunk + moved + 1 - count):
            for shift in range(count, 8):
                if op.view.elems % (1 << (base + count)) == 0 and op.view.elems >> (base + shift):
                    yield Swizzle(count, base, shift)


def _cost(accesses: Sequence[WarpAccess], swizzles: tuple[Swizzle, ...], dtype: DType, banks: int) -> int:
    total = 0
    for access in accesses:
        offsets = access.offsets
        for swizzle in swizzles:
            picked = offsets >> (swizzle.base + swizzle.shift) & ((1 << swizzle.bits) - 1)
            offsets = offsets ^ (picked << swizzle.base)
        total += passes(offsets, access.bytes, dtype.bytes, banks)
    return total


def _accesses(op: Shared, using: Sequence[Op], serving: Serving) -> Iterator[WarpAccess]:
    """Yield the accesses of the first warp to the tensor."""
    views = {op.result: op.view}
    for user in using:
        if isinstance(user, Reshape):
            views[user.result] = user.transform.apply(views[user.source])
        elif isinstance(user, PartitionOp | Peer):
            views[user.result] = views[user.source]
        elif isinstance(user, Copy) and not (serving.by_address and is_in_background(user)):
            for value in (user.source, user.target):
                if value in views:
                    yield _copied(user, views[value], value is user.source, serving)
        elif isinstance(user, Mma):
            for value in (user.a, user.b):
                if value in views:
                    depth = views[value].shape[1]
                    assert isinstance(depth, int)
                    spread = loaded_as(user, value, depth, views[value])
                    loaded = _loaded(views[value], spread, op.dtype, serving)
                    yield _once_per_pair(loaded) if serving.pairs else loaded


def _copied(op: Copy, view: View, reads: bool, serving: Serving) -> WarpAccess:
    target = op.target.type
    if reads and isinstance(target, FragmentType):
        return _loaded(view, target.distribution, op.source.dtype, serving)
    vector = op.vector or widest_vector(op)
    value = op.source if reads else op.target
    offsets = _of_first_warp(view, op.spread, vector, serving.lanes)
    return WarpAccess(offsets, vector * value.dtype.bytes)


def _loaded(view: View, spread: Distribution, dtype: DType, serving: Serving) -> WarpAccess:
    """Return the access of a load into registers, by ``ldmatrix`` if it fits."""
    if serving.matrices and (how := matrix_load(view, spread, dtype)):
        rows = Distribution(spread.shape, how.lanes, how.values)
        return WarpAccess(_of_first_warp(view, rows, 1, serving.lanes), CHUNK_BYTES)
    dim, run = spread.vector()
    vector = view.vector_width(dim, min(run & -run, CHUNK_BYTES // dtype.bytes))
    offsets, width = _of_first_warp(view, spread, vector, serving.lanes), vector * dtype.bytes
    if width == CHUNK_BYTES and offsets.shape[1] == len(serving.read_order):
        offsets = offsets[:, serving.read_order]
    return WarpAccess(offsets, width)


def _once_per_pair(access: WarpAccess) -> WarpAccess:
    """Count accesses wider than a bank once for each pair of lanes that make the same one.

    The pairs are neighbours, or lanes two apart; one of the two must hold for all lanes.
    """
    offsets = access.offsets
    if access.bytes <= BANK_BYTES or offsets.shape[1] != BANKS:
        return access
    for shape in ((16, 2), (8, 2, 2)):
        paired = offsets.reshape(-1, *shape)
        first, second = (paired[:, :, at] for at in (0, 1))
        if (first == second).all():
            return WarpAccess(np.ascontiguousarray(first.reshape(len(offsets), -1)), access.bytes)
    return access


@dataclass(frozen=True)
class Conflicts:
    """Bank conflicts of accesses of warps to shared memory.

    Args:
        accesses: number of accesses.
        passes: passes over the banks.
        fewest: passes without a conflict; accesses wider than 4 bytes, and ``ldmatrix``, take several.
    """

    accesses: int = 0
    passes: int = 0
    fewest: int = 0

    @property
    def factor(self) -> float:
        """Passes per necessary pass; 1 without conflicts."""
        return self.passes / self.fewest if self.fewest else 1.0

    def __add__(self, other: Conflicts) -> Conflicts:
        return Conflicts(
            self.accesses + other.accesses, self.passes + other.passes, self.fewest + other.fewest
        )

    def __mul__(self, times: int) -> Conflicts:
        return Conflicts(self.accesses * times, self.passes * times, self.fewest * times)


def conflicts_of(op: Copy, value: Value) -> Conflicts:
    """Return the bank conflicts of a copy by all warps.

    Args:
        op: a copy of a lowered kernel.
        value: its source or target, in shared memory.
    """
    view, element_bytes = value.tensor.view, value.dtype.bytes
    if (how := op.matrices) is not None:
        table = Distribution(op.spread.shape, how.lanes, how.values).table
        parts = _parts(_offsets(view, table), True, CHUNK_BYTES, element_bytes)
        # With fewer than four matrices the other lanes repeat addresses, which causes no requests.
        found = int(bank_passes(parts, CHUNK_BYTES).sum()) * how.count // 4
        return Conflicts(len(parts) // 4, found, len(parts) // 4 * how.count)
    vector = op.vector or widest_vector(op)
    offsets, width = _offsets(view, op.spread.table[:, ::vector]), vector * element_bytes
    active = np.ones(op.spread.size_threads, dtype=bool)
    if op.spread.copies > 1 and not op.target.is_fragment:
        thread = Sym("thread", 0, op.spread.size_threads - 1)
        active = np.asarray(evaluate(first_copy(op.spread, thread), {thread: np.arange(len(active))}))
    warps = sum(bool(active[lane : lane + BANKS].any()) for lane in range(0, len(active), BANKS))
    parts = _parts(offsets, active, width, element_bytes)
    return Conflicts(warps * len(offsets), int(bank_passes(parts, width).sum()), len(parts))


def asked_by_descriptor(value: Value) -> Conflicts:
    """Return the bank conflicts of a matrix engine that reads a whole operand by a descriptor.

    It reads core matrices of eight rows of 16 bytes; one matrix can fill all banks once.

    Args:
        value: an operand (rows, K) of an asynchronous multiply, in shared memory.

    Source: PTX ISA, section on the shared memory layout of wgmma.
    """
    view, element_bytes = value.tensor.view, value.dtype.bytes
    unit = CHUNK_BYTES // element_bytes
    along = 1 if view.vector_width(1, unit) == unit else 0
    steps = [unit, unit]
    steps[1 - along] = CORE_ROWS
    extents = [extent for extent in view.shape if isinstance(extent, int)]
    grid = np.stack(np.meshgrid(*map(np.arange, extents), indexing="ij"), -1)
    cores = grid[:: steps[0], :: steps[1]].reshape(-1, 1, 2)
    rows = np.zeros((1, CORE_ROWS, 2), np.int64)
    rows[0, :, 1 - along] = np.arange(CORE_ROWS)
    offsets = _offsets(view, (cores + rows).swapaxes(0, 1))
    found = int(bank_passes(offsets * element_bytes, CHUNK_BYTES).sum())
    return Conflicts(1, found, len(offsets))


def _parts(offsets: Offsets, active: Any, width: int, element_bytes: int) -> Offsets:
    """Return the addresses of the parts in which accesses of all warps are served, without empty parts.

    Args:
        offsets: element offsets, of shape (accesses, threads).
        active: a mask of the threads that take part.
        width: bytes of one lane's access.
        element_bytes: bytes of an element.
    """
    found: Offsets = served_together(np.where(active, offsets * element_bytes, ABSENT), lanes_together(width))
    used: Offsets = found[(found != ABSENT).any(axis=1)]
    return used


def in_shared(value: Value) -> bool:
    """Return whether a value is a tensor in shared memory with known addresses."""
    return value.is_tensor and value.tensor.memory is Memory.SHARED and not value.tensor.indices


def passes_per_access(op: Copy) -> float | None:
    """Return the predicted passes over the banks of one access of a warp, 1.0 without conflicts.

    Accesses wider than 4 bytes, and ``ldmatrix``, are served in parts; this is the number for one part.

    Args:
        op: a copy of a lowered kernel.

    Returns:
        The number of the worse side, or None if neither side is in shared memory.
    """
    sides = [conflicts_of(op, value) for value in (op.source, op.target) if in_shared(value)]
    return max((side.passes / side.fewest for side in sides), default=None)


def _offsets(view: View, table: Offsets) -> Offsets:
    """Return the element offsets of accesses, of shape (accesses, threads); indices of stages are 0.

    Args:
        view: the view of the tensor.
        table: coordinates, of shape (threads, accesses, rank).
    """
    at = dict(zip(view.coords, np.moveaxis(table, -1, 0), strict=True))
    outer: dict[Sym, Int] = dict.fromkeys(symbols(view.offset) - at.keys(), 0)
    offsets = np.broadcast_to(evaluate(view.offset, {**outer, **at}), table.shape[:2])
    return np.ascontiguousarray(offsets.T).astype(np.int64)


def _of_first_warp(view: View, spread: Distribution, vector: int, lanes: int) -> Offsets:
    return _offsets(view, spread.table[:lanes, ::vector])
