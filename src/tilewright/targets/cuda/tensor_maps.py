"""Tensor maps: what TMA must know of a tensor and a box; derived here, filled in by the launcher."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

from tilewright.ir.bulk_legality import known_box
from tilewright.ir.copies import Copy, is_bulk
from tilewright.ir.kernel import Kernel, TensorMap

Key: TypeAlias = tuple[str, tuple[int, ...], tuple[int, ...], tuple[int, ...], bool]


def derive_tensor_maps(kernel: Kernel) -> Kernel:
    """Add a tensor map for every tensor and form of a box that bulk copies walk; others lie in memory."""
    maps: dict[Key, TensorMap] = {}
    for op in kernel.walk():
        if not is_bulk(op) or op.ends[0].tensor.map is not None or (key := _key(op)) in maps:
            continue
        tensor, box, order, steps, is_swizzled = key
        same = sum(1 for known in maps if known[0] == tensor)
        name = f"{tensor}_map" + (f"_{same}" if same else "")
        maps[key] = TensorMap(name, tensor, box, op.source.dtype, order, steps, is_swizzled)
    return replace(kernel, tensor_maps=tuple(maps.values())) if maps else kernel


def map_of(kernel: Kernel, op: Copy) -> TensorMap:
    """The map of a bulk copy."""
    return next(made for made in kernel.tensor_maps if made.key == _key(op))


def _key(op: Copy) -> Key:
    box = known_box(op)
    return op.ends[0].buffer.name, box.spans, box.order, box.steps, box.is_swizzled
