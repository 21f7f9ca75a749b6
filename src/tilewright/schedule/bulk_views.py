"""Rules of bulk copies: which arrays, views and traced tiles they can move."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache

from tilewright.arch import BULK
from tilewright.dataflow.nodes import Flow, Operand, Span
from tilewright.dtypes import DType
from tilewright.ir.async_legality import TMA_DTYPES, verify_bulk_copy
from tilewright.ir.builder import Builder
from tilewright.ir.copies import Copy
from tilewright.lang import operations as tw
from tilewright.lang.scalars import Index, Scalar
from tilewright.lang.specs import TensorSpec
from tilewright.lang.tensors import Tensor
from tilewright.lang.tracer import current
from tilewright.schedule.needs import ROW_BYTES
from tilewright.schedule.work import MOST
from tilewright.symbolic.nodes import Sym, divisor
from tilewright.views.boxes import NoBox, find_box
from tilewright.views.transforms import Permute, Slice, Tile, Transform
from tilewright.views.view import View

# ---------------------------------------------------------------- arrays


def against_array(name: str, spec: TensorSpec) -> Iterator[tuple[str, str]]:
    """Reasons why bulk copies neither load nor store boxes of an array.

    Args:
        name: name of the array.
        spec: its class.

    Yields:
        A sentence with the value and the limit, and a change of the array that would help, or "".
    """
    unit = max(BULK.unit_bytes // spec.dtype.bytes, 1)
    if spec.dtype.is_packed:
        yield f"{name} is packed {spec.dtype}, which bulk copies move only as bytes of dtype u8", ""
    if spec.dtype.bytes > 1 and spec.dtype.name not in TMA_DTYPES:
        yield f"{name} is {spec.dtype}, a dtype that bulk copies do not support", ""
    if not 2 <= spec.rank <= BULK.rank:
        yield f"{name} has {spec.rank} dimensions; bulk copies move boxes of 2 to {BULK.rank}", ""
    if spec.align < BULK.unit_bytes:
        yield f"{name} is aligned to {spec.align} bytes; bulk copies need {BULK.unit_bytes}", ""
    if spec.unit_dim is None:
        yield f"{name} has no contiguous dimension", ""
        return
    for dim, multiple in enumerate(spec.stride_divisors):
        if dim != spec.unit_dim and multiple % unit:
            text = (
                f"the stride of dimension {dim} of {name} is a multiple of {multiple} {spec.dtype} "
                f"elements; bulk copies need a multiple of {BULK.unit_bytes} bytes"
            )
            yield text, f"rows of {name} padded to a multiple of {unit}"
    if spec.signed:
        yield f"strides of {name} may be negative; bulk copies need positive strides", ""


def against_store(name: str, spec: TensorSpec) -> Iterator[str]:
    """Reasons why bulk copies do not store boxes of an array; they write whole units of 16 bytes."""
    for text, _ in against_array(name, spec):
        yield text
    if spec.unit_dim is None:
        return
    unit, extent = max(BULK.unit_bytes // spec.dtype.bytes, 1), spec.extent_divisors[spec.unit_dim]
    if extent % unit:
        yield (
            f"the length of the rows of {name} is a multiple of {extent} {spec.dtype} elements, not of "
            f"{BULK.unit_bytes} bytes; bulk copies store units of {BULK.unit_bytes} bytes, and would "
            "overwrite the data after each row"
        )


def against_tiles(
    flow: Flow,
    operand: Operand,
    at: Sequence[Span],
    wanted: Sequence[Span],
    specs: Mapping[str, TensorSpec],
    shape: tuple[int, int],
    *,
    stored: bool,
) -> Iterator[tuple[str, str]]:
    """Reasons why bulk copies do not move tiles of an array or a view.

    Args:
        flow: the flow.
        operand: the array, or the view.
        at: the span of each of its dimensions.
        wanted: the spans of a tile, the contiguous one last.
        specs: the classes of the arrays, by name.
        shape: extents of a tile, in the order of ``wanted``.
        stored: whether tiles are stored to the array, not loaded.

    Yields:
        A sentence with the value and the limit, and a change of the array that would help, or "".
    """
    spec, name = specs[operand.name], operand.name
    if stored:
        yield from ((text, "") for text in against_store(name, spec))
    else:
        yield from against_array(name, spec)
    if not operand.transforms or spec.unit_dim is None:
        return
    arrays = (one for one in flow.parameters if isinstance(one, Operand))
    extents = next(one.shape for one in arrays if one.name == name)
    order = tuple(at.index(span) for span in wanted)
    if stored and operand.indices:
        yield f"{name} as a view: gathered rows may lie anywhere in {name}", ""
        return
    for text in _against_boxes(extents, spec, operand.transforms, order, shape):
        yield f"{name} as a view: {text.replace('{tensor}', name)}", ""


@lru_cache(maxsize=1024)
def _against_boxes(
    extents: tuple[Sym | int, ...],
    spec: TensorSpec,
    transforms: tuple[Transform, ...],
    order: tuple[int, int],
    shape: tuple[int, int],
) -> tuple[str, ...]:
    """Reasons why tiles of a view are not boxes that bulk copies move.

    Args:
        extents: extents of the array.
        spec: the array's class.
        transforms: the transforms that make the view.
        order: the dimensions of the view that a tile spans, the contiguous one last.
        shape: the tile's extents, in this order.
    """
    steps = [
        1 if dim == spec.unit_dim else Sym(f"step{dim}", 0, None, known)
        for dim, known in enumerate(spec.stride_divisors)
    ]
    view = View.strided(extents, steps)
    for transform in transforms:
        view = transform.apply(view)
    anywhere = tuple(None if dim in order else Sym(f"at{dim}", 0, MOST) for dim in range(view.rank))
    view = Slice(anywhere).apply(view)
    kept = sorted(order)
    view = Permute(tuple(kept.index(dim) for dim in order)).apply(view)
    view = Tile(shape, (Sym("row", 0, MOST), Sym("column", 0, MOST))).apply(view)
    box = find_box(view, extents, (0, 1))
    if isinstance(box, NoBox):
        return (box.reason,)
    found, width, unit = [], ROW_BYTES // spec.dtype.bytes, BULK.unit_bytes // spec.dtype.bytes
    if box.inner != spec.unit_dim or box.sides[box.inner] != width:
        rule = f"it needs {width} contiguous elements, {ROW_BYTES} bytes"
        text = f"a row of its box has {box.sides[box.inner]} elements of dimension {box.inner}; {rule}"
        found.append(text)
    if divisor(box.starts[box.inner]) % unit:
        found.append(f"its tiles begin at {box.starts[box.inner]}, which is no multiple of {unit}")
    if set(box.steps) != {1}:
        found.append(f"its tiles take one of every {max(box.steps)} elements")
    if max(box.spans) > BULK.extent:
        found.append(f"its tiles span {max(box.spans)} elements; bulk copies span at most {BULK.extent}")
    return tuple(found)


# ---------------------------------------------------------------- traced tiles


@contextmanager
def aside() -> Iterator[None]:
    """Discard the operations that this context records, so that a check adds none to the kernel."""
    tracer = current()
    kept, tracer.builder = tracer.builder, Builder()
    try:
        yield
    finally:
        tracer.builder = kept


def anywhere(name: str = "place") -> Index:
    """A symbolic index of at least 0."""
    return Scalar(Sym(name, 0, 2**31 - 1))


def against_bulk(tensor: Tensor, dtype: DType, *, stored: bool) -> tuple[str, ...]:
    """Reasons why no bulk copy moves a tile from or to rows of shared memory under the swizzle.

    Call it within `aside`.

    Args:
        tensor: the tile in global memory, contiguous along its last dimension.
        dtype: the dtype in shared memory.
        stored: whether it is stored to global memory, not loaded.
    """
    *_, columns = tensor.shape
    if int(columns) * dtype.bytes != ROW_BYTES:
        return (f"rows of {columns} {dtype} do not have {ROW_BYTES} bytes",)
    held = tw.shared(tuple(int(extent) for extent in tensor.shape), dtype, swizzle=ROW_BYTES, name="held")
    return _against(tensor, held, stored=stored)


def against_row(tensor: Tensor) -> tuple[str, ...]:
    """Reasons why no bulk copy loads a tile of one row into consecutive elements of shared memory.

    Call it within `aside`.

    Args:
        tensor: the tile; one of its extents is not 1.
    """
    held = tw.shared(tuple(int(extent) for extent in tensor.shape), tensor.dtype, name="held")
    return _against(tensor, held, stored=False)


def _against(tensor: Tensor, held: Tensor, *, stored: bool) -> tuple[str, ...]:
    source, target = (held, tensor) if stored else (tensor, held)
    copy = Copy(source.value, target.value, engine="bulk", completion="group" if stored else "barrier")
    return tuple(violation.message for violation in verify_bulk_copy(copy))
