"""Legality rules that hold on every target.

They are about copies, matrix multiplies, shared-memory tensors, and arithmetic on fragments.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from operator import attrgetter

import numpy as np

from tilewright.arch import REFERENCE, in_words
from tilewright.dtypes import DType, has_infinity, limits, nearest_held
from tilewright.errors import Violation
from tilewright.functions.table import CONVERSION, FUNCTIONS, TAKE
from tilewright.ir.async_legality import verify_kinds, verify_mma_async
from tilewright.ir.copies import Copy, verify_reduction
from tilewright.ir.fragment_ops import choice_dtype, widest_map
from tilewright.ir.op import Op
from tilewright.ir.ops import Elementwise, Fill, FragmentOp, Mma, Shared
from tilewright.ir.types import FragmentType, Memory, OperandTypeError, TensorType, Value
from tilewright.layout.layout import Layout
from tilewright.layout.limits import dealt
from tilewright.symbolic.expr import add, expand, mul
from tilewright.symbolic.nodes import And, Expr, Int, Sym, bounds
from tilewright.symbolic.rebuilding import substitute, symbols
from tilewright.threads.distribution import Distribution, registers
from tilewright.threads.registers import broadcast
from tilewright.views.questions import footprint, strides
from tilewright.views.view import View


def spelled(shape: tuple[Int, ...]) -> str:
    """Format a shape for messages."""
    return f"({', '.join(map(str, shape))}{',' * (len(shape) == 1)})"


def literal_obstacle(dtype: DType, value: object) -> tuple[str, str] | None:
    """Return why a dtype cannot hold a plain number, and the nearest value that it holds; None if it can."""
    if not isinstance(value, int | float):
        return None
    if (nearest := nearest_held(dtype, value)) is not None:
        return f"{value} becomes {'0' if abs(value) < 1 else 'infinite'} in {dtype}", str(nearest)
    if dtype.kind not in ("int", "uint"):
        return None
    low = -(2 ** (dtype.bits - 1)) if dtype.kind == "int" else 0
    high = low + 2**dtype.bits - 1
    if isinstance(value, float) and not value.is_integer():
        near = min(max(round(value), low), high) if math.isfinite(value) else "an integer"
        return f"{value} is not a value of {dtype}", f"{near}, or .to(tw.f32) first"
    if not low <= value <= high:
        text = f"{value} is not within {low} to {high}, the range of {dtype}"
        return text, str(low if value < low else high)
    return None


def verify_literals(op: Op, dtype: DType, values: tuple[object, ...]) -> Iterator[Violation]:
    """Require plain numbers to be values of the other operands' dtype."""
    for value in values:
        if (found := literal_obstacle(dtype, value)) is not None:
            yield op.violation("dtype", *found)


def verify_fragment(op: FragmentOp) -> Iterator[Violation]:
    """Require the dtype to hold the fragment's initial value."""
    yield from verify_literals(op, op.dtype, (op.fill,))


def verify_fill(op: Fill) -> Iterator[Violation]:
    """Require the dtype to hold the value."""
    yield from verify_literals(op, op.target.dtype, (op.value,))
    if isinstance(op.value, Value):
        yield from verify_conversion(op, op.value, op.target)


def verify_elementwise(op: Elementwise) -> Iterator[Violation]:
    """Require a known function with the right number of operands, and compatible distributions and dtypes."""
    if obstacle := FUNCTIONS[op.function].counts(len(op.operands_)):
        yield op.violation("elementwise", obstacle)
    values = [v for v in op.operands_ if isinstance(v, Value)]
    maps: dict[Distribution, Value] = {}
    for value in values:
        if value.is_fragment:
            maps.setdefault(value.fragment.distribution, value)
    if maps:
        widest = widest_map(list(maps))
        for spread, value in maps.items():
            if broadcast(widest, spread) is not None:
                continue
            full = maps[widest]
            shapes = " and ".join(f"{v} {spelled(v.fragment.shape)}" for v in (full, value))
            both = "; ".join(f"{v}: {v.fragment.distribution}" for v in (full, value))
            wanted, given = full.fragment.shape, value.fragment.shape
            nearest = moved(value, full)
            if len(wanted) != len(given) or any(g not in (1, w) for g, w in zip(given, wanted, strict=True)):
                nearest = f"fragments of shape {spelled(wanted)}, or 1 along dimensions to broadcast"
            elif wanted != given:
                projected = f"tw.load(tensor, {full}.distribution.projected({given}))"
                nearest = f"the result of a reduction of {full}, or {projected}"
            text = (
                f"{op.function} of {shapes}, whose elements are distributed differently over the "
                f"threads ({both})"
            )
            yield op.violation("elementwise", text, nearest)
            break
    if op.function in CONVERSION:
        for value in values:
            yield from verify_conversion(op, value, op.result)
    elif op.function == TAKE:
        yield from verify_literals(op, op.result.dtype, op.operands_[1:])
        if len(values) != 1 or len(op.table) != len(op.operands_) - 1:
            yield op.violation("elementwise", "take takes codes, and a table of plain numbers")
    elif values:
        of_choice = choice_dtype(op.function, op.operands_)
        kind = values[-1].dtype if of_choice is None else op.result.dtype
        yield from verify_literals(op, kind, op.operands_)
        if op.function != "select" or len(values) > 1 or of_choice is not None:
            yield from _verify_kinds(op, kind)


def _verify_kinds(op: Elementwise, kind: DType) -> Iterator[Violation]:
    """Combine truth values only with truth values; require kernel integers to fit the others' dtype."""
    is_mask = kind.kind == "bool"
    for operand in op.operands_:
        if isinstance(operand, Value | float):
            continue
        if isinstance(operand, bool):
            if not is_mask:
                yield op.violation("dtype", f"{operand} is not a value of {kind}", str(int(operand)))
        elif is_mask:
            yield op.violation(
                "dtype",
                f"{operand} is not a truth value",
                f"mask.to(tw.i32), or {bool(operand)}" if isinstance(operand, int) else "mask.to(tw.i32)",
            )
        elif isinstance(operand, Expr) and kind.kind in ("int", "uint") and kind.name not in ("i32", "i64"):
            low, high = bounds(operand)
            least, most = limits(kind)
            if low < least or high > most:
                yield op.violation(
                    "dtype",
                    f"the integer {operand}, {low} to {high}, need not be within {least} to {most}, the "
                    f"range of {kind}",
                    ".to(tw.i32) first",
                )


def moved(source: Value, like: Value) -> str:
    """Return the call that gives a fragment another fragment's map."""
    given, wanted = source.fragment.distribution, like.fragment.distribution
    local = registers(given, wanted, (0,) * given.rank)
    scratch = "" if local is not None else f", scratch=tw.shared({given.shape}, tw.{source.dtype})"
    return f"tw.redistribute({source}, like={like}{scratch})"


def verify_conversion(op: Op, source: Value, target: Value) -> Iterator[Violation]:
    """Refuse conversions to or from complex dtypes."""
    kinds = source.dtype, target.dtype
    if kinds[0] != kinds[1] and any(kind.components > 1 for kind in kinds):
        rule = "complex numbers are not converted"
        text = f"{op.verb} of {source} to {target} converts {kinds[0]} to {kinds[1]}; {rule}"
        yield op.violation("dtype", text, f"{kinds[0]} on both sides")


# ---------------------------------------------------------------- nearest shapes of a copy


def nearest_shapes(source: Value, target: Value, shapes: tuple[Sequence[Int], Sequence[Int]]) -> str:
    """Return the transform that gives one side in memory the shape of the other; empty if none exists.

    Args:
        source: the source of the copy.
        target: the target of the copy.
        shapes: the shapes of both.
    """
    if not all(isinstance(extent, int) for shape in shapes for extent in shape):
        # A tile of the side that is a whole array, in the shape of the other side.
        for value, own, wanted in ((source, *shapes), (target, *shapes[::-1])):
            known = [all(isinstance(extent, int) for extent in shape) for shape in (own, wanted)]
            if known == [False, True] and len(own) == len(wanted) <= 3:
                at = tuple(Sym(name) for name in "mnk"[: len(own)])
                return f"{value}.tile({spelled(tuple(wanted))}, {spelled(at)})"
        return ""
    from_source, from_target = shapes, shapes[::-1]
    tried = (
        (source, _permuted(*from_source)),
        (target, _permuted(*from_target)),
        (target, _with_one_more(*from_target)),
        (source, _with_one_more(*from_source)),
        (source, _repeated(*from_source)),  # the target must not be written several times
    )
    return next((f"{value}.{way}" for value, way in tried if way and not value.is_fragment), "")


def _permuted(own: Sequence[Int], wanted: Sequence[Int]) -> str:
    swapped = len(own) == len(wanted) == 2 and list(own) == [wanted[1], wanted[0]]
    return "permute(1, 0)" if swapped else ""


def _with_one_more(own: Sequence[Int], wanted: Sequence[Int]) -> str:
    """Return the transform that adds a dimension of extent 1."""
    for at in range(len(wanted)):
        if wanted[at] == 1 and [*wanted[:at], *wanted[at + 1 :]] == list(own) and own:
            dim, parts = (at - 1, (own[at - 1], 1)) if at else (0, (1, own[0]))
            return f"unmerge({dim}, {parts})"
    return ""


def _repeated(own: Sequence[Int], wanted: Sequence[Int]) -> str:
    """Return the transform that adds a dimension along which elements repeat."""
    for at in range(len(wanted)):
        if [*wanted[:at], *wanted[at + 1 :]] == list(own):
            return f"broadcast({at}, {wanted[at]})"
    return ""


# ---------------------------------------------------------------- orders along K
# Both operands of a multiply must have the same order, but any order is legal.


@lru_cache(maxsize=256)
def order_along_k(held: Distribution, wanted: Distribution) -> tuple[int, ...] | None:
    """Return, for each k of an instruction's operand, the tile's k in its position.

    Args:
        held: the map of a fragment.
        wanted: the map of the operand.

    Returns:
        None if rows differ, or if lanes disagree on the order.

    Example:
        >>> from tilewright.threads.distribution import Mode
        >>> wanted = Distribution((1, 4), (Mode(2, 1, 1),), (Mode(2, 1, 2),))
        >>> held = Distribution((1, 4), (Mode(2, 1, 2),), (Mode(2, 1, 1),))
        >>> order_along_k(held, wanted), order_along_k(wanted, wanted)
        ((0, 2, 1, 3), (0, 1, 2, 3))
    """
    if held.shape != wanted.shape or held.table.shape != wanted.table.shape:
        return None
    (rows, there), (wanted_rows, counted) = (
        (spread.table[..., 0], spread.table[..., 1]) for spread in (held, wanted)
    )
    order = np.zeros(wanted.shape[1], np.int64)
    order[counted] = there
    if (rows != wanted_rows).any() or (order[counted] != there).any() or len({*order.tolist()}) < len(order):
        return None
    return tuple(order.tolist())


LARGEST_ACCESS_BYTES = REFERENCE.access_bytes


def _shape(value: Value) -> tuple[Int, ...]:
    if not isinstance(value.type, TensorType | FragmentType):
        raise OperandTypeError(f"{value.name} is neither a tensor nor a fragment but {value.type}")
    return value.type.shape


# ---------------------------------------------------------------- copies


def verify_copy(op: Copy) -> Iterator[Violation]:
    """Yield the rules of `Copy` that a copy breaks."""
    yield from verify_conversion(op, op.source, op.target)
    if op.other != 0:
        kind = op.source.dtype
        if op.source.is_fragment:
            text = f"the fragment {op.source} has no elements outside, which could read as {op.other}"
            yield op.violation("other", text, "no other=")
        elif kind.kind == "bool" or kind.components > 1:
            yield op.violation("other", f"elements of {kind} outside of {op.source} read as 0", "no other=")
        elif kind.is_float and math.isinf(op.other) and not has_infinity(kind):
            least, most = limits(kind)
            nearest = f"other={most if op.other > 0 else least}"
            yield op.violation("other", f"{kind} has no infinity for other={op.other}", nearest)
        yield from verify_literals(op, kind, (op.other,))
    yield from verify_reduction(op, op.reduction, op.target)
    source, target = _shape(op.source), _shape(op.target)
    if source != target:
        yield op.violation(
            "shape",
            f"copy from {op.source} of shape {spelled(source)} to {op.target} of shape {spelled(target)}",
            nearest_shapes(op.source, op.target, (source, target)) or f"{spelled(target)} on both sides",
        )
        return
    maps = {op.distribution: "threads=..."} if op.distribution is not None else {}
    for value in (op.source, op.target):
        if isinstance(value.type, TensorType | FragmentType) and value.type.distribution is not None:
            maps.setdefault(value.type.distribution, value.name)
    if not maps:
        text = f"no distribution determines which thread copies which elements of {op.source} to {op.target}"
        near = f"threads=..., with one count per dimension that divides {spelled(source)}"
        yield op.violation("distribution", text, near)
    elif len(maps) > 1:
        nearest = "the same distribution on both sides"
        if op.source.is_fragment and op.target.is_fragment:
            nearest = f"{moved(op.source, op.target)}, copied to {op.target}"
        elif op.distribution is not None:
            own = next(v for v in (op.source, op.target) if getattr(v.type, "distribution", None))
            nearest = f"no threads=: {own} brings its own"
        text = f"{' and '.join(maps.values())} distribute the tile differently over the threads"
        yield op.violation("distribution", text, nearest)
    else:
        yield from _verify_spread(op, next(iter(maps)), source)


def verify_async_copy(op: Copy) -> Iterator[Violation]:
    """Like `verify_copy`, for async copies: global to shared, equal dtypes, accesses of a supported width."""
    yield from verify_copy(op)
    size = op.source.dtype.bytes_of(op.vector or 0)
    if op.way != ("global", "shared"):
        yield op.violation("copy_async", "asynchronous copies go from global to shared memory", "copy")
    elif op.other != 0:
        text = f"copies in the background read 0 outside of {op.source}, not {op.other}"
        yield op.violation("other", text, "copy")
    elif op.source.dtype != op.target.dtype:
        text = f"cannot convert {op.source.dtype} to {op.target.dtype} in the background"
        yield op.violation("copy_async", text, "copy")
    elif op.vector and size not in (widths := REFERENCE.async_bytes):
        least = max(8 * min(widths) // op.source.dtype.bits, 1)
        fits = widest_vector(op) >= least
        yield op.violation(
            "copy_async",
            f"vector {op.vector} of {op.source.dtype} is {size} bytes; copy_async moves {in_words(widths)}",
            f"vector={least}" if fits else "no vector=, and a synchronous copy",
        )


def verify_matrix_copy(op: Copy) -> Iterator[Violation]:
    """Verify a copy by ``ldmatrix`` or ``stmatrix``: `verify_copy`, and only shared memory and registers."""
    yield from verify_copy(op)
    if set(op.way) != {"shared", "registers"}:
        text = f"matrices move between shared memory and registers, not from {op.way[0]} to {op.way[1]}"
        yield op.violation("engine", text, "engine='direct'")


def _verify_spread(op: Copy, spread: Distribution, shape: tuple[Int, ...]) -> Iterator[Violation]:
    if spread.shape != shape:
        text = f"a distribution of shape {spelled(spread.shape)} for a tile of shape {spelled(shape)}"
        yield op.violation("distribution", text, _nearest_spread(spread, shape))
        return
    if flaw := _flaw(spread):
        yield op.violation(
            "threads x slice = tile",
            f"the distribution does not move every element of the tile {spelled(shape)} exactly once: {flaw}",
            _nearest_spread(spread, shape),
        )
    if (vector := op.vector) is None:
        return
    dim, run = spread.vector()
    nearest = f"vector={widest_vector(op, spread)}"
    widest = 0 if vector < 1 else max(value.dtype.bytes_of(vector) for value in (op.source, op.target))
    if vector < 1 or vector & (vector - 1):
        yield op.violation("vector width", f"vector {vector} is not a power of two", nearest)
    elif run % vector:
        text = (
            f"vectors of {vector} do not divide the {run} contiguous elements of a thread along "
            f"dimension {dim}"
        )
        yield op.violation("vector width", text, nearest)
    elif widest > LARGEST_ACCESS_BYTES:
        text = f"vector {vector} makes accesses of {widest} bytes, more than {LARGEST_ACCESS_BYTES}"
        yield op.violation("vector width", text, nearest)
    else:
        for value in (op.source, op.target):
            if isinstance(value.type, TensorType):
                yield from _verify_access(op, value, dim, vector, nearest)


_flaw = lru_cache(maxsize=1024)(attrgetter("flaw"))


def _nearest_spread(spread: Distribution, shape: tuple[Int, ...]) -> str:
    """Return a map of the tile with about as many threads, or the tile that fits the map."""
    extents = tuple(extent for extent in shape if isinstance(extent, int))
    if len(extents) < len(shape):
        return f"a tile of shape {spelled(spread.shape)}"
    return f"tw.blocked({spelled(extents)}, {spelled(dealt(extents, spread.size_threads))})"


def _verify_access(op: Copy, value: Value, dim: int, vector: int, nearest: str) -> Iterator[Violation]:
    """Check that a tensor can be accessed in vectors along a dimension."""
    kind = value.tensor
    size = kind.dtype.bytes_of(vector)
    if obstacle := kind.view.vector_obstacle(dim, vector):
        units = [d for d in range(kind.view.rank) if _step(kind.view, d) == 1]
        unknown = _unknown(value, dim, vector)
        array = value.buffer.tensor.view
        steps = [_step(array, d) for d in range(array.rank)]
        along = symbols(_step(kind.view, dim))
        gap = next((d for d in reversed(range(array.rank)) if steps[d] in along), None)
        if gap is not None and 1 not in steps:
            step = steps[gap]
            obstacle = f"{value.buffer} is not contiguous along its dimension {gap} (stride {step})"
            packs = value is op.source and gap == array.rank - 1
            nearest += f", or np.ascontiguousarray({value.buffer})" if packs else ", or an array that is"
        elif units and dim not in units:
            obstacle = (
                f"it is contiguous along dimension {units[-1]}, the threads' runs lie along dimension {dim}"
            )
            nearest += f", or vector_dim={units[-1]} if both sides are contiguous along it"
        elif unknown:
            obstacle = " and ".join(
                f"{size}, the {what} of {value.buffer}, need not be a multiple of {vector}"
                + (f" (only of {size.divisor})" if size.divisor > 1 else "")
                for size, what in unknown.items()
            )
            nearest += f", or arrays with {' and '.join(map(str, unknown))} a multiple of {vector}"
        yield op.violation("vector width", f"vector {vector} on {value}: {obstacle}", nearest)
    elif kind.align % size:
        yield op.violation(
            "alignment",
            f"vector {vector} of {kind.dtype} needs addresses that are multiples of {size} bytes, "
            f"{value.buffer} starts at a multiple of {kind.align}",
            nearest,
        )


def _unknown(value: Value, along: int, width: int) -> dict[Sym, str]:
    """Return the sizes of the base array that must be multiples for vectors along a dimension."""
    view, array = value.tensor.view, value.buffer.tensor.view
    parts = view.valid.parts if isinstance(view.valid, And) else (view.valid,)
    edges = {sym for part in parts if view.coords[along] in symbols(part) for sym in symbols(part)}
    found: dict[Sym, str] = {}
    for dim, extent in enumerate(array.shape):
        sizes = (("stride", _step(array, dim), symbols(view.offset)), ("extent", extent, edges))
        for what, size, used in sizes:
            if isinstance(size, Sym) and size.divisor % width and size in used:
                found.setdefault(size, f"{what} of dimension {dim}")
    return found


def _step(view: View, dim: int) -> Int:
    """Return the distance to the next element along a dimension."""
    index = view.coords[dim]
    return expand(add(substitute(view.offset, {index: add(index, 1)}), mul(view.offset, -1)))


def widest_vector(op: Copy, spread: Distribution | None = None) -> int:
    """Return the widest vector in elements that is legal on both sides of a copy, up to the widest access."""
    spread = op.spread if spread is None else spread
    dim, run = spread.vector()
    width = run & -run
    for value in (op.source, op.target):
        limit = 8 * LARGEST_ACCESS_BYTES // value.dtype.bits
        if isinstance(value.type, TensorType):
            limit = min(limit, max(8 * value.type.align // value.dtype.bits, 1))
            limit = value.type.view.vector_width(dim, min(width, limit))
        width = min(width, max(limit, 1))
    return width


# ---------------------------------------------------------------- matrix multiplies


def verify_mma(op: Mma) -> Iterator[Violation]:
    """Yield the rules that an `Mma` breaks; those of `MmaAsync` if it will become one."""
    if op.mma.atom.asynchronous:
        yield from verify_mma_async(op)
        return
    yield from verify_kinds(op)
    for axis, (label, value) in enumerate((("A", op.a), ("B", op.b))):
        yield from _verify_operand(op, axis, label, value)
    # None if an operand has fewer than two dimensions, which `_verify_operand` refuses.
    ka, kb = ((*_shape(value), None, None)[1] for value in (op.a, op.b))
    if None not in (ka, kb) and ka != kb and not any(_is_transposed(op, axis) for axis in (0, 1)):
        yield op.violation("mma shape", f"A = {op.a} has K = {ka}, B = {op.b} has K = {kb}", "equal K")


def _in_one_order(op: Mma) -> bool:
    """Return whether both operands are fragments with the same order of k."""
    if not (op.a.is_fragment and op.b.is_fragment):
        return False
    depths = op.a.fragment.shape[1], op.b.fragment.shape[1]
    a = order_along_k(op.a.fragment.distribution, op.mma.a(depths[0]))
    return a is not None and a == order_along_k(op.b.fragment.distribution, op.mma.b(depths[1]))


def _verify_operand(op: Mma, axis: int, label: str, value: Value) -> Iterator[Violation]:
    mma, shape = op.mma, _shape(value)
    rows, k = mma.tile[axis], mma.tile[2]
    if _is_transposed(op, axis):
        what, side = f"{label} = {value} has shape {spelled(shape)}, (K, {'MN'[axis]})", "MN"[axis]
        turned = f"{value}.permute(1, 0)"
        if value.is_fragment:
            turned = f"tw.load(tensor.permute(1, 0), tw.operand_{label.lower()}(mma, {shape[0]}))"
        yield op.violation("mma shape", f"{what}; tw.mma takes ({side}, K)", turned)
    elif len(shape) != 2 or shape[0] != rows or not isinstance(shape[1], int) or shape[1] % k:
        yield op.violation(
            "mma shape",
            f"{label} = {value} has shape {spelled(shape)}, but {mma.atom} with warps {mma.warps} and "
            f"repeats {mma.repeats} takes ({rows}, a multiple of {k}): {mma.atom.shape[axis]} x "
            f"{mma.warps[axis]} x {mma.repeats[axis]} rows",
            _nearest_mma(op),
        )
    elif isinstance(value.type, FragmentType):
        want = mma.a(shape[1]) if label == "A" else mma.b(shape[1])
        if value.type.distribution != want and not _in_one_order(op):
            yield op.violation(
                "distribution",
                f"fragment {value} is not distributed as operand {label} of {mma.atom}: the warps of "
                f"a {'row' if label == 'A' else 'column'} of the {mma.warps[0]}x{mma.warps[1]} grid hold the "
                "same rows",
                f"tw.load(..., tw.operand_{label.lower()}(mma, {shape[1]}))",
            )
    else:
        what, copied, place = f"{label} = {value}", "copy it to shared memory", value.tensor
        if place.memory is not Memory.SHARED:
            text = (
                f"{label} = {value} lies in global memory, a matrix multiply reads shared memory or registers"
            )
        elif place.block is not None:
            text, copied = (
                f"{label} = {value} lies in another block's shared memory",
                "copy it to the block's own",
            )
        elif place.indices:
            text = f"rows of {what} are chosen by {place.indices[0]}"
        else:
            return
        loaded = f"tw.load({value}, tw.operand_{label.lower()}(mma, {shape[1]}))"
        yield op.violation("mma operand", text, f"{copied}, or {loaded}")


def _is_transposed(op: Mma, axis: int) -> bool:
    """Return whether an operand has the shape (K, rows), so that it fits only after a transpose."""
    shape, other = (_shape(value) for value in ((op.a, op.b)[axis], (op.b, op.a)[axis]))
    rows, k = op.mma.tile[axis], op.mma.tile[2]
    if len(shape) != 2 or len(other) != 2 or not isinstance(shape[0], int) or shape[1] != rows:
        return False
    fits_as_it_is = shape[0] == rows and shape[1] == other[1]
    return shape[0] % k == 0 and shape[0] in other and not fits_as_it_is


def _nearest_mma(op: Mma) -> str:
    """Return the repeats, or else the tiles, that make both operands fit."""
    atom, warps = op.mma.atom, op.mma.warps
    repeats: list[int] = []
    tiles: list[str] = []
    fits = True
    for axis, value in enumerate((op.a, op.b)):
        unit, k = atom.shape[axis] * warps[axis], atom.shape[2]
        rows, depth = (*(extent if isinstance(extent, int) else 0 for extent in _shape(value)), 0, 0)[:2]
        fits = fits and rows > 0 and rows % unit == 0 and depth > 0 and depth % k == 0
        repeats.append(rows // unit)
        tiles.append(f"{'AB'[axis]} ({max(rows // unit, 1) * unit}, {max(depth // k, 1) * k})")
    if fits:
        return f"repeats={tuple(repeats)}"
    return f"{' and '.join(tiles)}, with repeats={tuple(max(count, 1) for count in repeats)}"


# ---------------------------------------------------------------- shared-memory tensors


def verify_shared(op: Shared) -> Iterator[Violation]:
    """Yield the rules of `Shared` that an allocation breaks."""
    shape = op.view.shape
    if empty := [dim for dim, extent in enumerate(shape) if isinstance(extent, int) and extent < 1]:
        least = tuple(max(extent, 1) if isinstance(extent, int) else extent for extent in shape)
        yield op.violation(
            "shared allocation",
            f"{op.result} of shape {shape} has the extent {shape[empty[0]]} along dimension {empty[0]}; "
            "the least is 1",
            f"tw.shared({least}, tw.{op.dtype})",
        )
        return
    if op.at is not None and (op.at < 0 or op.at % op.align):
        text = f"{op.result} lies at byte {op.at}; it wants a multiple of its alignment, {op.align} bytes"
        yield op.violation("shared allocation", text, f"at={max(-(-op.at // op.align), 0) * op.align}")
    if isinstance(op.view.elems, int) and op.view.elems > op.elems:
        yield op.violation(
            "shared allocation",
            f"{op.result} reaches {op.view.elems} elements (the cosize of its layout) "
            f"but allocates {op.elems}",
            f"elems={op.view.elems}",
        )
    reached = footprint(op.view)
    if reached is None:
        return
    nearest = _nearest(op.view)
    if reached.first < 0:
        text = f"the layout {_spelled(op.view)} of {op.result} begins at element {reached.first}, not at 0"
        yield op.violation("shared allocation", text, nearest)
    if reached.twice is not None:
        one, other = (f"[{', '.join(map(str, at))}]" for at in reached.twice)
        text = f"the layout {_spelled(op.view)} of {op.result} puts {one} and {other} into one element"
        yield op.violation("shared layout", text, nearest)


def _spelled(view: View) -> str:
    """Format a view as a layout, if it has a stride along each dimension."""
    known = _strides(view)
    return str(view) if known is None else str(Layout(view.shape, known))


def _strides(view: View) -> tuple[int, ...] | None:
    found = strides(view) or ()
    known = tuple(step for step in found if isinstance(step, int))
    return known if len(known) == view.rank else None


def _nearest(view: View) -> str:
    """Return the layout with the same order of dimensions and large enough strides."""
    given = _strides(view) or (0,) * view.rank
    made, span = list(given), 1
    for dim in sorted(range(view.rank), key=lambda d: (given[d] == 0, abs(given[d]), -d)):
        made[dim], extent = max(abs(given[dim]), span), view.shape[dim]
        span += (extent - 1) * made[dim] if isinstance(extent, int) else 0
    return f"layout=tw.Layout({view.shape}, {tuple(made)})"
