"""Tensor maps: what TMA must know of a tensor and a box; derived here, filled in by the launcher."""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.copies import is_bulk, is_bulk_load
from tilewright.ir.kernel import Kernel, TensorMap
from tilewright.ir.types import Value


def derive_tensor_maps(kernel: Kernel) -> Kernel:
    """Add a tensor map for every pair of a tensor and a box that TMA copies."""
    maps: dict[tuple[str, tuple[int, ...]], TensorMap] = {}
    for op in kernel.walk():
        if not is_bulk(op):
            continue
        tensor, tile = (op.source, op.target) if is_bulk_load(op) else (op.target, op.source)
        key = (tensor.name, box_of(tensor, tile))
        if key not in maps:
            same = sum(1 for name, _ in maps if name == tensor.name)
            name = f"{tensor.name}_map" + (f"_{same}" if same else "")
            maps[key] = TensorMap(name, tensor.name, key[1], tensor.dtype)
    return replace(kernel, tensor_maps=tuple(maps.values())) if maps else kernel


def box_of(tensor: Value, tile: Value) -> tuple[int, ...]:
    """The box of a tensor that a shared tile takes: 1 in the leading dimensions that the tile lacks."""
    shape = tuple(int(extent) for extent in tile.tensor.shape if isinstance(extent, int))
    return (1,) * (tensor.tensor.view.rank - len(shape)) + shape


def map_of(kernel: Kernel, tensor: Value, tile: Value) -> TensorMap:
    """The map of a tensor and a box."""
    box = box_of(tensor, tile)
    return next(m for m in kernel.tensor_maps if (m.tensor, m.box) == (tensor.name, box))
