"""What bulk copies ask of a view that they load or store: that its tiles are boxes of the array behind it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from tilewright.arch import BULK
from tilewright.dataflow.nodes import Operand, Span
from tilewright.lang.specs import TensorSpec
from tilewright.schedule.bulk_arrays import against_array, against_store
from tilewright.schedule.form import Form
from tilewright.schedule.groups import MOST
from tilewright.schedule.needs import ROW_BYTES
from tilewright.symbolic.nodes import Sym, divisor
from tilewright.views.boxes import NoBox, find_box
from tilewright.views.transforms import Permute, Slice, Tile, Transform
from tilewright.views.view import View


def against_tiles(
    form: Form,
    operand: Operand,
    at: Sequence[Span],
    wanted: Sequence[Span],
    specs: Mapping[str, TensorSpec],
    shape: tuple[int, int],
    *,
    stored: bool,
) -> Iterator[tuple[str, str]]:
    """Why bulk copies do not move tiles of an array, or of a view of one.

    Args:
        form: what is computed.
        operand: the array, or the view.
        at: the span of each of its dimensions.
        wanted: the spans of a tile, of which the last one is that along which it is contiguous.
        specs: the classes of the arrays, by name.
        shape: extents of a tile, in the order of ``wanted``.
        stored: whether tiles go to the array, or come from it.

    Yields:
        A sentence with the value and the limit, and how the array could be changed; empty if nobody can.
    """
    spec, name = specs[operand.name], operand.name
    if stored:
        yield from ((text, "") for text in against_store(name, spec))
    else:
        yield from against_array(name, spec)
    if not operand.transforms or spec.unit_dim is None:
        return
    arrays = (one for one in form.flow.parameters if isinstance(one, Operand))
    extents = next(one.shape for one in arrays if one.name == name)
    order = tuple(at.index(span) for span in wanted)
    for text in _against_boxes(extents, spec, operand.transforms, order, shape):
        yield f"{name}, seen through a view: {text.replace('{tensor}', name)}", ""


@lru_cache(maxsize=1024)
def _against_boxes(
    extents: tuple[Sym | int, ...],
    spec: TensorSpec,
    transforms: tuple[Transform, ...],
    order: tuple[int, int],
    shape: tuple[int, int],
) -> tuple[str, ...]:
    """Why a tile of a view, wherever it lies, is no box that bulk copies move.

    Args:
        extents: of the array behind it.
        spec: the array's class.
        transforms: what makes the view of it.
        order: the view's dimensions that a tile has, the contiguous one last.
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
        found.append(
            f"its rows are pieces of {box.sides[box.inner]} elements of dimension {box.inner}, not of "
            f"{width} neighbours, {ROW_BYTES} bytes"
        )
    if divisor(box.starts[box.inner]) % unit:
        found.append(f"its tiles begin at {box.starts[box.inner]}, which is no multiple of {unit}")
    if set(box.steps) != {1}:
        found.append(f"its tiles take one of {max(box.steps)} elements")
    if max(box.spans) > BULK.extent:
        found.append(f"its tiles reach over {max(box.spans)} elements; bulk copies take {BULK.extent}")
    return tuple(found)
