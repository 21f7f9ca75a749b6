"""CUDA's rules for bulk tensor copies, and for tensor maps that lie in memory.

Source: PTX ISA, sections on cp.async.bulk.tensor, tensor maps and fence.proxy.
"""

from __future__ import annotations

from tilewright.ir import async_ops as ops
from tilewright.ir.bulk_legality import known_box
from tilewright.ir.clusters import sharing
from tilewright.ir.copies import AcquireMap, ByMap, Copy, is_bulk_load
from tilewright.ir.types import MapInMemory
from tilewright.targets.cuda.places import address_of, barrier_of, by_first_thread
from tilewright.targets.cuda.spelling import CUDA_RULES
from tilewright.targets.cuda.tensor_maps import map_of
from tilewright.targets.simt.emitter import SimtEmitter
from tilewright.targets.statements import Code, call, code, named


@CUDA_RULES.rule(Copy, variant="bulk")
def bulk_copy(emitter: SimtEmitter, op: Copy) -> None:
    """``cp.async.bulk.tensor``, by the role's first thread."""
    if is_bulk_load(op):
        _tma_load(emitter, op)
    else:
        _tma_store(emitter, op)


def _tma_load(emitter: SimtEmitter, op: Copy) -> None:
    """``cp.async.bulk.tensor`` into shared memory, completing on the barrier; of several blocks by a mask."""
    assert op.barrier is not None, "the verifier asks for one"
    place = barrier_of(emitter, op.barrier, op.stage)
    places = [_map(emitter, op), address_of(emitter, op.target), place]
    function, how = "tma_load", "by TMA"
    if op.multicast:
        function, how = "tma_load_multicast", f"by TMA, to all blocks along {_axes(op.multicast)}"
        places.append(_mask(emitter, op.multicast))
    if op.readers != 0:
        function += "_read_by"
        places.append(emitter.spell(op.readers))
    emitter.comment(op, f"{op.source} -> {op.target}, {how}")
    _walk_box(emitter, op, function, places)


def _axes(axes: tuple[int, ...]) -> str:
    return f"axis {axes[0]}" if len(axes) == 1 else f"axes {', '.join(map(str, axes))}"


def _mask(emitter: SimtEmitter, axes: tuple[int, ...]) -> Code:
    """One bit for each block that gets the box."""
    mask, shift = sharing(emitter.kernel.cluster, axes)
    return Code(f"{mask:#x}") if shift == 0 else code(f"{mask:#x} << {{}}", emitter.spell(shift, tight=True))


def _tma_store(emitter: SimtEmitter, op: Copy) -> None:
    """``cp.async.bulk.tensor`` out of shared memory, or ``cp.reduce.async.bulk.tensor``."""
    function, how = "tma_store", "by TMA"
    if op.reduction is not None:
        function, how = f"tma_{op.reduction}", f"each {op.reduction!r} by TMA"
    emitter.comment(op, f"{op.source} -> {op.target}, {how}")
    _walk_box(emitter, op, function, [_map(emitter, op), address_of(emitter, op.source)])


def _walk_box(emitter: SimtEmitter, op: Copy, function: str, places: list[Code]) -> None:
    """The first thread names where the box begins, the fastest dimension first."""
    box = known_box(op)
    starts = [emitter.spell(box.starts[dim]) for dim in reversed(box.order)]
    by_first_thread(emitter, call(f"{function}_{len(starts)}d", *places, *starts))


def _map(emitter: SimtEmitter, op: Copy) -> Code:
    held = op.ends[0].tensor.map
    if held is None:
        return code("&{}", named(map_of(emitter.kernel, op).name))
    return _map_in_memory(emitter, held)


def _map_in_memory(emitter: SimtEmitter, held: MapInMemory) -> Code:
    """The address of a tensor map in a table."""
    place = emitter.plus(emitter.name(held.table.buffer), held.table.tensor.view.at((held.row, held.column)))
    return code("(const {}*)({})", named("tensor_map_t"), place)


@CUDA_RULES.rule(ops.BulkCommit)
def bulk_commit(emitter: SimtEmitter, op: ops.BulkCommit) -> None:
    """``cp.async.bulk.commit_group``."""
    emitter.comment(op, "close the group of stores")
    by_first_thread(emitter, call("bulk_commit"))


@CUDA_RULES.rule(ops.BulkWait)
def bulk_wait(emitter: SimtEmitter, op: ops.BulkWait) -> None:
    """``cp.async.bulk.wait_group.read``."""
    emitter.comment(op, f"wait until at most {op.pending} groups of stores read shared memory")
    by_first_thread(emitter, call("bulk_wait", of=[op.pending]))


@CUDA_RULES.rule(ByMap)
def by_map(emitter: SimtEmitter, op: ByMap) -> None:
    """A view has no text of its own; a bulk copy names the address of the map."""


@CUDA_RULES.rule(AcquireMap)
def acquire_map(emitter: SimtEmitter, op: AcquireMap) -> None:
    """``fence.proxy.tensormap``, of the scope of the system: the host has written the map."""
    held = op.source.tensor.map
    assert held is not None, "the verifier asks for one"
    emitter.comment(op, f"the tensor map of {op.source}, as it was written before the launch")
    by_first_thread(emitter, call("acquire_map", _map_in_memory(emitter, held)))
