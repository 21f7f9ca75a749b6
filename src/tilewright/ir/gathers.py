"""Views with an index tensor along one dimension: gathered or scattered rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from tilewright.dtypes import i64, limits, u64
from tilewright.errors import LayoutError
from tilewright.ir.op import Op
from tilewright.ir.traits import NAMES
from tilewright.ir.types import Type, Value
from tilewright.symbolic.expr import all_of, less
from tilewright.symbolic.nodes import Element, Sym
from tilewright.views.view import coordinates


@dataclass(frozen=True)
class Gather(Op):
    """A view of chosen rows: ``result[..., i, ...] = source[..., index[i], ...]`` along dimension ``dim``.

    Elements of rows outside of ``[0, extent)`` are invalid, and so are those past the edge of ``index``.  The
    operation that accesses the view reads the index.

    Args:
        source: a tensor in memory.
        index: a tensor of integers of one dimension, in memory.
        dim: the dimension of the source.
        padded: whether rows outside are allowed; otherwise the reference reports them.
    """

    name = "gather"
    traits = NAMES
    roles: ClassVar = {"result": "defines", "source": "uses", "index": "uses"}
    result: Value
    source: Value
    index: Value
    dim: int = 0
    padded: bool = False

    @staticmethod
    def infer(source: Value, index: Value, dim: int = 0, padded: bool = False) -> Type:
        """Type of the result."""
        old, numbers = source.tensor, index.tensor
        if not 0 <= dim < old.view.rank:
            raise LayoutError(
                f"dimension {dim} of {source}, of rank {old.view.rank}; nearest legal choice: "
                f"{min(max(dim, 0), old.view.rank - 1)}"
            )
        if numbers.view.rank != 1 or numbers.dtype.kind not in ("int", "uint") or numbers.dtype.bits < 8:
            raise LayoutError(
                f"rows of {source} are chosen by {index}, of rank {numbers.view.rank} and {numbers.dtype}; "
                "nearest legal choice: integers of 8 bits or more, of one dimension"
            )
        if numbers.indices or any(index.buffer is known.buffer for known in old.indices):
            raise LayoutError(
                f"rows of {source} are chosen by {index}, whose own elements are chosen, or choose others of "
                "it; nearest legal choice: a copy of it in shared memory"
            )
        shape = (*old.shape[:dim], numbers.shape[0], *old.shape[dim + 1 :])
        at = coordinates(shape)
        # Generated code has signed integers, so it sees rows of 2**63 and more as negative.
        least, most = (int(end) for end in limits(i64 if numbers.dtype == u64 else numbers.dtype))
        row = Element(Sym(index.buffer.name), numbers.view.at((at[dim],)), least, most)
        exists = numbers.view.valid_at((at[dim],))
        inside = all_of(exists, less(-1, row), less(row, old.shape[dim]))
        view = old.view.map(shape, [*at[:dim], row, *at[dim + 1 :]], inside)
        return replace(old, view=view, distribution=None, indices=(*old.indices, index))
