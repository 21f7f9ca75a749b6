"""Which engine may move a tile: asked of the rules of legality, before anything is recorded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tilewright.dtypes import DType
from tilewright.ir.builder import Builder
from tilewright.ir.bulk_legality import verify_bulk_copy
from tilewright.ir.copies import Copy
from tilewright.lang import operations as tw
from tilewright.lang.scalars import Index, Scalar
from tilewright.lang.tensors import Tensor
from tilewright.lang.tracer import current
from tilewright.schedule.needs import ROW_BYTES
from tilewright.symbolic.nodes import Sym


@contextmanager
def aside() -> Iterator[None]:
    """What is recorded here is forgotten: a question to the rules leaves nothing behind in the kernel."""
    tracer = current()
    kept, tracer.builder = tracer.builder, Builder()
    try:
        yield
    finally:
        tracer.builder = kept


def anywhere(name: str = "place") -> Index:
    """A place of which nothing is known but that it is not negative."""
    return Scalar(Sym(name, 0, 2**31 - 1))


def against_bulk(tensor: Tensor, dtype: DType, *, stored: bool) -> tuple[str, ...]:
    """Why no bulk copy moves a tile between global memory and rows of shared memory under the swizzle.

    Call it within `aside`.

    Args:
        tensor: the tile in global memory, contiguous along its last dimension.
        dtype: in which it is held in shared memory.
        stored: whether it goes to global memory, or comes from there.
    """
    *_, columns = tensor.shape
    if int(columns) * dtype.bytes != ROW_BYTES:
        return (f"rows of {columns} {dtype} are not {ROW_BYTES} bytes",)
    held = tw.shared(tuple(int(extent) for extent in tensor.shape), dtype, swizzle=ROW_BYTES, name="held")
    return _against(tensor, held, stored=stored)


def against_row(tensor: Tensor) -> tuple[str, ...]:
    """Why no bulk copy brings a tile of one row in global memory to neighbours in shared memory.

    Call it within `aside`.

    Args:
        tensor: the tile, of which one extent is not 1.
    """
    held = tw.shared(tuple(int(extent) for extent in tensor.shape), tensor.dtype, name="held")
    return _against(tensor, held, stored=False)


def _against(tensor: Tensor, held: Tensor, *, stored: bool) -> tuple[str, ...]:
    source, target = (held, tensor) if stored else (tensor, held)
    copy = Copy(source.value, target.value, engine="bulk", completion="group" if stored else "barrier")
    return tuple(violation.message for violation in verify_bulk_copy(copy))
