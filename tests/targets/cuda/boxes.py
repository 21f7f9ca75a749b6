"""Boxes by TMA to and from tensors of two to five dimensions: over every edge, with all kinds of strides."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from tests.movers.random_movers import Array, Placed, moves_right, random_bits
from tests.windows import window

import tilewright as tw
from tilewright.ir.kernel import Kernel

NAMES = "P Q R M N"
ROW_BYTES = 128


def first_elements(tensor, rows, before):
    """Return the number of this block's box, and its first element.

    The first box lies ``before`` the tensor in each dimension; others follow to the end, and one beyond it.
    """
    columns = ROW_BYTES // tensor.dtype.bytes
    steps = (*(1 for _ in tensor.shape[:-2]), rows, columns)
    counts = [tw.ceil_div(n + b, step) + 1 for n, b, step in zip(tensor.shape, before, steps, strict=True)]
    number = tw.block_index((math.prod(counts),))[0]
    at, rest = [], number
    for count, step, b in reversed(list(zip(counts, steps, before, strict=True))):
        at.insert(0, tw.let(rest % count * step - b))
        rest = rest // count
    return number, at


def box_at(tensor, shape, at):
    """Return the box of a shape at an element, with extent 1 in the dimensions that the shape lacks."""
    outer = len(at) - len(shape)
    return window(tensor, (1,) * outer + tuple(shape), at)[(0,) * outer]


def load_boxes(X, Z, *, rows, before):
    """Z[box] = X at the box, and 0 outside of X."""
    number, at = first_elements(X, rows, before)
    held = tw.shared((rows, ROW_BYTES // X.dtype.bytes), X.dtype, swizzle=128)
    full = tw.hopper.mbarrier(1, arrivals=1)
    tw.barrier()
    tw.hopper.arrive(full[0], expect_bytes=rows * ROW_BYTES)
    tw.hopper.tma_load(box_at(X, held.shape, at), held, full[0])
    tw.hopper.wait(full[0], 0)
    tw.copy(held, Z[number].tile(held.shape, (0, 0)), threads=(min(rows, 32), 8))


def store_boxes(Y, Z, *, rows):
    """Y at the box = Z[box]; elements outside of Y are dropped. No box begins before Y."""
    number, at = first_elements(Y, rows, (0,) * len(Y.shape))
    held = tw.shared((rows, ROW_BYTES // Y.dtype.bytes), Y.dtype, swizzle=128)
    tw.copy(Z[number].tile(held.shape, (0, 0)), held, threads=(min(rows, 32), 8))
    tw.hopper.fence_async()
    tw.barrier()
    tw.hopper.tma_store(held, box_at(Y, held.shape, at))
    tw.hopper.bulk_commit()
    tw.hopper.bulk_wait(0)


@dataclass(frozen=True)
class Case:
    """A tensor, the order of its dimensions in memory, and the boxes.

    Args:
        dtype: element type.
        shape: extents.
        order: the dimensions from the one with the largest stride to the last one, which is contiguous.
        gaps: 16-byte units left free after each dimension of ``order``, from the second one on.
        rows: of a box.
        before: how far the first box that is loaded lies before the tensor, in each dimension; in the last
            one in units of 16 bytes.
    """

    dtype: str
    shape: tuple[int, ...]
    order: tuple[int, ...]
    gaps: tuple[int, ...]
    rows: int
    before: tuple[int, ...]

    @property
    def placed(self) -> Placed:
        """Every stride but the last is a multiple of 16 bytes; the array begins 16 bytes after a boundary."""
        unit = self.unit
        strides, reach = dict.fromkeys(self.order, 1), 1
        for dim, gap in zip(self.order[::-1], (0, *self.gaps[::-1]), strict=True):
            strides[dim] = 1 if dim == self.order[-1] else (-(-reach // unit) + gap) * unit
            reach = strides[dim] * self.shape[dim]
        return Placed(tuple(strides[dim] for dim in range(len(self.shape))), unit)

    @property
    def unit(self) -> int:
        """Elements in 16 bytes."""
        return 16 // tw.dtype(self.dtype).bytes

    @property
    def has_whole_rows(self) -> bool:
        """Whether rows are multiples of 16 bytes."""
        return self.shape[-1] % self.unit == 0

    def with_whole_rows(self) -> Case:
        """Return the case with rows rounded up to multiples of 16 bytes, and a gap between each two."""
        last = -(-self.shape[-1] // self.unit) * self.unit
        gaps = (*self.gaps[:-1], max(self.gaps[-1], 1))
        return replace(self, shape=(*self.shape[:-1], last), gaps=gaps)

    @property
    def steps(self) -> tuple[int, ...]:
        """The extents of a box."""
        columns = ROW_BYTES // tw.dtype(self.dtype).bytes
        return (*(1 for _ in self.shape[:-2]), self.rows, columns)

    def ahead(self, kernel: Any) -> tuple[int, ...]:
        """The number of elements of the first box before the tensor, in each dimension."""
        if kernel is store_boxes:
            return (0,) * len(self.shape)
        return (*self.before[:-1], self.before[-1] * self.unit)

    def counts(self, kernel: Any) -> tuple[int, ...]:
        """The number of boxes in each dimension."""
        sizes = zip(self.shape, self.ahead(kernel), self.steps, strict=True)
        return tuple(-(-(n + b) // step) + 1 for n, b, step in sizes)

    def bound(self, kernel: Any) -> Any:
        """The kernel for tensors of this rank."""
        names = NAMES[-2 * len(self.shape) + 1 :]
        tensor = "X" if kernel is load_boxes else "Y"
        chosen = {"before": self.ahead(kernel)} if kernel is load_boxes else {}
        return tw.kernel(**{tensor: names, "Z": "B C D"})(kernel).bind(rows=self.rows, **chosen)

    def arrays(self, kernel: Any) -> tuple[Array, Array]:
        """Return a tensor and the boxes one after the other, both poisoned."""
        element = tw.dtype(self.dtype)
        boxes = (math.prod(self.counts(kernel)), *self.steps[-2:])
        tensor = Array(self.shape, self.placed, element)
        whole = Placed((boxes[1] * boxes[2], boxes[2], 1), 0)
        return tensor, Array(boxes, whole, element)

    def trace(self, kernel: Any) -> Kernel:
        tensor, boxes = self.arrays(kernel)
        return self.bound(kernel).trace(tensor.array, boxes.array)

    def is_right(self, kernel: Any, target: str) -> bool:
        """Run on random bits; return whether every byte of the result, and around it, is right."""
        loads, arrays = kernel is load_boxes, self.arrays(kernel)
        wanted = self.arrays(kernel)[loads]
        self.move(kernel, random_bits(arrays[not loads]), wanted.array)
        return moves_right(self.bound(kernel), arrays, wanted, target, loads=loads)

    def move(self, kernel: Any, given: Any, wanted: Any) -> None:
        """Compute the kernel's meaning by a loop."""
        loads = kernel is load_boxes
        if loads:
            wanted.view(np.uint8)[...] = 0
        boxes, tensor = (wanted, given) if loads else (given, wanted)
        for number, at in enumerate(np.ndindex(self.counts(kernel))):
            first = [i * step - b for i, step, b in zip(at, self.steps, self.ahead(kernel), strict=True)]
            sizes = zip(first, self.steps, self.shape, strict=True)
            inside = [slice(max(f, 0), min(f + step, n)) for f, step, n in sizes]
            if any(part.start >= part.stop for part in inside):
                continue
            box = boxes[number].reshape(self.steps)
            here = box[tuple(slice(p.start - f, p.stop - f) for p, f in zip(inside, first, strict=True))]
            there = tensor[tuple(inside)]
            (here if loads else there)[...] = there if loads else here


_2D = {"shape": (37, 150), "order": (0, 1), "gaps": (1,), "rows": 16, "before": (3, 1)}
_3D = {"shape": (3, 21, 70), "order": (0, 1, 2), "gaps": (0, 3), "rows": 8, "before": (1, 0, 1)}
_4D = {"shape": (2, 3, 19, 72), "order": (0, 2, 1, 3), "gaps": (5, 0, 1), "rows": 16, "before": (0, 1, 2, 0)}
_5D = {"shape": (2, 2, 3, 9, 66), "order": (2, 0, 3, 1, 4), "gaps": (0, 1, 0, 7), "rows": 8}
_5D |= {"before": (1, 0, 1, 1, 3)}
_WHOLE = {"shape": (2, 32, 128), "order": (0, 1, 2), "gaps": (0, 0), "rows": 32, "before": (0, 0, 0)}
_ONE = {"shape": (1, 1, 1, 1, 1), "order": (0, 1, 2, 3, 4), "gaps": (0, 0, 0, 0), "rows": 8}
_ONE |= {"before": (0, 0, 0, 0, 0)}
_TALL = {"shape": (2, 300, 40), "order": (1, 0, 2), "gaps": (0, 1), "rows": 256, "before": (0, 5, 0)}

COMMON = ("f16", "f32", "i8")
CASES: dict[str, Case] = {
    f"{name}-{dtype}": Case(dtype, **made)
    for name, made, dtypes in (
        ("2d", _2D, COMMON),
        ("3d", _3D, COMMON),
        ("4d", _4D, COMMON),
        ("5d", _5D, (*COMMON, "bf16", "f64", "i32", "f8e4m3")),
        ("whole", _WHOLE, ("f16", "f64")),
        ("one", _ONE, COMMON),
        ("tall", _TALL, ("f16",)),
    )
    for dtype in dtypes
}
STORES = {name: case.with_whole_rows() for name, case in CASES.items()}
"""The same with rows that a store may write: multiples of 16 bytes, and canaries between all of them."""
REFUSED = {name: case for name, case in CASES.items() if not case.has_whole_rows}
"""Those whose rows end within 16 bytes: a store would overwrite what follows each of them."""

LOADED = [pytest.param(case, load_boxes, id=f"{name}-load") for name, case in CASES.items()]
STORED = [pytest.param(case, store_boxes, id=f"{name}-store") for name, case in STORES.items()]
LEGAL = [*LOADED, *STORED]
