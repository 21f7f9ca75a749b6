"""What a copy to shared memory leaves out: elements of the tensor that the view it writes through cuts off.

What is read there later was written in an earlier turn.  Elements outside of the tensor have no place in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.functions.conversions import Array
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import Partition, Reshape
from tilewright.ir.types import Value
from tilewright.symbolic.nodes import Int, Sym
from tilewright.symbolic.rebuilding import evaluate
from tilewright.targets.reference.footprint import Footprint
from tilewright.views.transforms import Swizzle, Transform
from tilewright.views.view import View


class Leftovers:
    """Where the elements of views lie in the tensors that they are views of."""

    def __init__(self, kernel: Kernel) -> None:
        self._made: dict[Value, tuple[Value, Transform | None]] = {}
        for op in kernel.walk():
            if isinstance(op, Reshape):
                self._made[op.result] = op.source, op.transform
            elif isinstance(op, Partition):
                self._made[op.result] = op.source, None
        self._coordinates: dict[Value, tuple[Int, ...] | None] = {}

    def left_out(self, value: Value, footprint: Footprint, env: Mapping[Sym, int]) -> Array | None:
        """Which elements of a footprint are invalid although the tensor has them; shape (lanes, values).

        None: none are.
        """
        if footprint.absent is None:
            return None
        absent = footprint.absent.copy()
        if value not in self._coordinates:
            self._coordinates[value] = self._in_root(value)
        found = self._coordinates[value]
        if found is None:
            return None
        places = np.moveaxis(footprint.coordinates, -1, 0)
        mapping: dict[Sym, Any] = {**env, **dict(zip(value.tensor.view.coords, places, strict=True))}
        for at, extent in zip(found, value.buffer.tensor.shape, strict=True):
            place, whole = evaluate(at, mapping), evaluate(extent, env)
            absent &= (place >= 0) & (place < whole)
        return absent

    def _in_root(self, value: Value) -> tuple[Int, ...] | None:
        """The coordinates in the tensor itself of a view's elements; None if the view says no coordinates."""
        chain: list[Transform] = []
        while value in self._made:
            value, transform = self._made[value]
            if transform is not None:
                chain.append(transform)
        if any(isinstance(transform, Swizzle) for transform in chain):
            return None
        if value.root is not None:
            return None  # its rows are chosen in memory
        root = value.tensor.view
        made = []
        for coordinate in root.coords:
            view = View(root.shape, coordinate, root.elems)
            for transform in reversed(chain):
                view = transform.apply(view)
            made.append(view.offset)
        return tuple(made)
