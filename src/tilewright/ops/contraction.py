"""Contractions of two arrays as products of matrices: their subscripts, axes and kernels.

Each axis belongs to the batches, the rows, the columns or K.

If two arrays have matching strides along several axes, these are joined.  Of the other axes of the rows (or
columns), a kernel takes the outer ones as batches, and merges the inner ones.  If merged axes of an array
have several strides, the kernel reads the array through a view.  The extents of this view are compile-time
constants, except the outermost one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NoReturn, TypeAlias

from tilewright.dtypes import DType, f32
from tilewright.errors import LaunchError, shown
from tilewright.ops.ending import Conversion, Output, Saturation, Units
from tilewright.ops.problem import (
    INDEX,
    Axes,
    Dim,
    MatrixBatch,
    Problem,
    grouped,
    groups_of,
    is_part_of,
    merged,
)
from tilewright.ops.products import rare_numbers
from tilewright.ops.results import SCALES
from tilewright.ops.tiled_product import Algebra, EndingTerm, ProductOperand, TiledProduct, kernel_of
from tilewright.runtime.arrays import ArrayInfo
from tilewright.runtime.frameworks import row_major
from tilewright.runtime.kernel import Kernel

# ---------------------------------------------------------------- subscripts

ELLIPSIS = "..."
"""Stands in subscripts for all axes without a letter, which are broadcast, aligned at the last one."""


@dataclass(frozen=True)
class Subscripts:
    """A label for each axis of two operands and of the result.

    An axis has its letter, or, for an ellipsis, a number that counts from the last axis.

    Args:
        a: labels of the first operand.
        b: labels of the second operand.
        out: labels of the result.
    """

    a: tuple[str, ...]
    b: tuple[str, ...]
    out: tuple[str, ...]

    @property
    def bare(self) -> tuple[str, ...]:
        """The axes of ellipses, in the order of the result."""
        count = max((int(label) for label in (*self.a, *self.b) if label.isdigit()), default=-1) + 1
        return tuple(str(number) for number in reversed(range(count)))


def read_subscripts(text: str, ranks: Sequence[int]) -> Subscripts:
    """Read the subscripts of two operands, in the notation of NumPy.

    Args:
        text: such as ``"bik,kj->bij"``; without an arrow the result has the letters that occur once, in
            alphabetical order, after the axes of ellipses.
        ranks: number of axes of each operand.

    Raises:
        LaunchError: the text does not fit two operands of these ranks.

    Example:
        >>> read_subscripts("ij,jk", (2, 2)).out
        ('i', 'k')
        >>> read_subscripts("...ij,jk->...ik", (4, 2))
        Subscripts(a=('1', '0', 'i', 'j'), b=('j', 'k'), out=('1', '0', 'i', 'k'))
    """
    if not isinstance(text, str):
        raise LaunchError(f"einsum of subscripts {shown(text)}", 'a string such as "ik,kj->ij"')
    left, arrow, right = "".join(text.split()).partition("->")
    operands = left.split(",")
    if len(operands) != 2:
        near = (
            "multiply two of them first, then the result and the next one"
            if len(operands) > 2
            else "ij,jk->ik"
        )
        _refuse(text, f"{len(operands)} operands; einsum multiplies two", near)
    if arrow and "," in right:
        _refuse(text, "a comma in the result; the result is one array")
    labels = list[tuple[str, ...]]()
    for name, part, rank in zip("ab", operands, ranks, strict=True):
        before, dots, after = part.partition(ELLIPSIS)
        first, last = _letters(text, before), _letters(text, after)
        unnamed = rank - len(first) - len(last)
        if unnamed < 0 or (unnamed and not dots):
            dims = f"{rank} dimension{'' if rank == 1 else 's'}"
            nearest = f"{ELLIPSIS}{part}" if unnamed > 0 else None
            _refuse(text, f"{part!r} for {name}, an array of {dims}", nearest)
        labels.append((*first, *(str(number) for number in reversed(range(unnamed))), *last))
    a, b = labels
    bare = Subscripts(a, b, ()).bare
    if arrow:
        return Subscripts(a, b, _of_result(text, right, bare, (a, b)))
    letters = [label for label in (*a, *b) if not label.isdigit()]
    return Subscripts(a, b, (*bare, *sorted(label for label in letters if letters.count(label) == 1)))


def _of_result(
    text: str, part: str, bare: tuple[str, ...], operands: tuple[tuple[str, ...], ...]
) -> tuple[str, ...]:
    """Return the labels after the arrow."""
    before, dots, after = part.partition(ELLIPSIS)
    if bare and not dots:
        _refuse(
            text,
            f"the operands have axes at {ELLIPSIS}, and the result has no {ELLIPSIS}; nearest legal "
            f"choice: ->{ELLIPSIS}{part}",
        )
    found = (*_letters(text, before), *(bare if dots else ()), *_letters(text, after))
    for label in found:
        if found.count(label) > 1:
            nearest = f"->{''.join(one for at, one in enumerate(part) if one == '.' or one not in part[:at])}"
            _refuse(text, f"{label!r} twice in the result", nearest)
        if not any(label in operand for operand in operands):
            _refuse(text, f"the result has {label!r}, which no operand has", f"->{part.replace(label, '')}")
    return found


def _letters(text: str, part: str) -> tuple[str, ...]:
    for letter in part:
        if not (letter.isascii() and letter.isalpha()):
            _refuse(text, f"{letter!r} is no letter; letters name the axes")
    return tuple(part)


def _refuse(text: str, why: str, nearest: str | None = None) -> NoReturn:
    raise LaunchError(f"einsum of {text!r}: {why}", nearest)


# ---------------------------------------------------------------- axes as matrices


ADDED = ("bias", "multiply", "residual", "c")
"""Arrays that are broadcast to the result."""

AFTER_SUMS = (*ADDED, "scale")
"""Arrays that a kernel reads after the sums, by the first parts of their names."""


@dataclass(frozen=True)
class Seen:
    """A kernel's view of an array: a dimension for each of its batches, then those of its groups of axes.

    A group has one dimension, and one more for each inner axis with a separate stride.

    Args:
        batch: the kernel's batches that the array has.
        groups: the groups of ``"m"``, ``"k"`` and ``"n"`` that the array has, in this order, each with the
            extents inside its first dimension.
    """

    batch: tuple[int, ...]
    groups: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def lead(self) -> str:
        """Its axes along batches, as `tiled_product` writes them."""
        return "".join(f"b{number} " for number in self.batch)

    @property
    def axes(self) -> str:
        """All of its axes."""
        return self.lead + " ".join("*".join((group, *map(str, inner))) for group, inner in self.groups)


@dataclass(frozen=True)
class Contraction:
    """A contraction of two arrays, as a kernel computes it.

    Args:
        batch: number of batch dimensions, which are taken index by index.
        seen: the view of each array, by name, in the order of the kernel.
        order: the dimensions of the result's view, in the order of its subscripts; empty if nothing depends
            on the positions of elements.
    """

    batch: int
    seen: tuple[tuple[str, Seen], ...]
    order: tuple[int, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The arrays of the kernel, in its order, with those of `RARE_ARRAYS` that the call has."""
        return (*IN_KERNEL, *(name for name in RARE_ARRAYS if name in dict(self.seen)))

    def of(self, name: str) -> Seen:
        """The view of an array; the result replaces an absent array."""
        found = dict(self.seen)
        return found.get(name, found["out"])


@dataclass(frozen=True)
class Posed:
    """A contraction, and the shapes and strides of its arrays' views.

    Args:
        contraction: the contraction that the kernel computes.
        layouts: the arrays, by name.
        is_empty: whether the result has no element.
        problem: the contraction as a product of matrices; None if an array needs a view.
    """

    contraction: Contraction
    layouts: Mapping[str, MatrixBatch]
    is_empty: bool
    problem: Problem | None


def extents_of(named: Subscripts, a: tuple[int, ...], b: tuple[int, ...]) -> dict[str, int]:
    """The extent of each axis.

    Args:
        named: the labels of axes.
        a: shape of the first operand.
        b: shape of the second operand.

    Raises:
        LaunchError: along one axis, the operands have different extents, and neither is 1; or the axes of a
            diagonal have different extents.
    """
    found: dict[str, int] = {}
    for name, shape in (("a", a), ("b", b)):
        own: dict[str, int] = {}
        for label, extent in zip(getattr(named, name), shape, strict=True):
            if own.setdefault(label, extent) != extent:
                raise LaunchError(
                    f"einsum: {name} has shape {shape}, and the axes of the diagonal {label!r} have "
                    f"{own[label]} and {extent} elements",
                    f"{min(own[label], extent)} in both",
                )
            known = found.get(label, 1)
            if extent != known and 1 not in (extent, known):
                what = f"axis {label!r}" if label.isalpha() else "an axis at the ellipsis"
                text = f"einsum of shapes {a} and {b}: {what} has {known} and {extent} elements"
                raise LaunchError(text, f"{known} in both, or 1, which is broadcast")
            found[label] = extent if known == 1 else known
    return found


def result_shape(text: str, named: Subscripts, infos: Mapping[str, ArrayInfo]) -> tuple[int, ...]:
    """The shape of the result, to which all other arrays are broadcast.

    Args:
        text: the subscripts as the caller gave them.
        named: the labels of axes.
        infos: the arrays of the call.

    Raises:
        LaunchError: extents, or shapes, that do not fit.
    """
    extents = extents_of(named, infos["a"].shape, infos["b"].shape)
    shape = tuple(extents[label] for label in named.out)
    if "out" in infos and infos["out"].shape != shape:
        raise LaunchError(f"einsum of {text!r}: out has shape {infos['out'].shape}, the result has {shape}")
    for name in ADDED:
        if name in infos:
            own = infos[name].shape
            pairs = zip(reversed(own), reversed(shape), strict=False)
            if len(own) > len(shape) or any(n not in (1, extent) for n, extent in pairs):
                text_of = (
                    f"{name} has shape {own}, which does not broadcast to the shape of the result, {shape}"
                )
                raise LaunchError(f"einsum of {text!r}: {text_of}")
    return shape


def broadcast_scale(text: str, named: Subscripts, name: str, infos: Mapping[str, ArrayInfo]) -> MatrixBatch:
    """Return a scale with the axes of the result; it repeats along those that its operand lacks.

    Args:
        text: the subscripts as the caller gave them.
        named: the labels of axes.
        name: the scale.
        infos: the arrays of the call.

    Raises:
        LaunchError: the scale has neither one element, nor one for each index of the axes of its operand that
            the result has.
    """
    info, operand = infos[name], name[-1]
    labels, extents = getattr(named, operand), infos[operand].shape
    kept = {label: n for label, n in zip(labels, extents, strict=True) if label in named.out}
    given, steps = list(zip(info.shape, info.strides, strict=True)), dict.fromkeys(named.out, 0)
    is_whole = len(set(labels)) == len(labels) > len(kept)  # then it may have summed axes, of one element
    if is_whole and len(given) == len(labels):
        given = [one for one, label in zip(given, labels, strict=True) if label in kept or one[0] != 1]
    if math.prod(info.shape) != 1:
        fits = [n in (1, extent) for (n, _), extent in zip(given, kept.values(), strict=False)]
        if len(given) != len(kept) or not all(fits):
            near = [str(tuple(kept.values()))]
            near += [str(tuple(kept.get(label, 1) for label in labels))] if is_whole else []
            raise LaunchError(
                f"einsum of {text!r}: {name} has shape {info.shape}",
                "a number" + (f", or an array of shape {' or '.join(near)}" if kept else ""),
            )
        steps |= {label: step for label, (n, step) in zip(kept, given, strict=True) if n > 1}
    shape = tuple(kept[label] if step else 1 for label, step in steps.items())
    return MatrixBatch(shape, tuple(steps.values()))


def check_no_view(made: Contraction) -> None:
    """Refuse a batch-invariant contraction through views, whose tiles are loaded in ways that depend on rows.

    Args:
        made: the contraction.

    Raises:
        LaunchError: an operand or the result needs a view.
    """
    views = [name for name in ("a", "b", "out") if any(inner for _, inner in made.of(name).groups)]
    if views:
        near = "operands and a result whose axes can be joined, or batch_invariant=False"
        raise LaunchError(f"einsum: batch_invariant=True, and {' and '.join(views)} need a view", near)


def posed(
    named: Subscripts, arrays: Mapping[str, MatrixBatch], *, indexed: bool = False, multiplies: bool = True
) -> Posed:
    """The contraction of arrays, as a kernel computes it.

    Args:
        named: the labels of axes.
        arrays: the arrays called ``a``, ``b`` and ``out``, and those of `ADDED` and `SCALES` that the call
            has, with the axes of the result.
        indexed: whether something depends on the position of an element in the result.
        multiplies: whether there are products; otherwise K is 0, and ``a`` and ``b`` are not read.

    Raises:
        LaunchError: extents that do not fit.

    Example:
        >>> from tilewright.ops.contraction import read_subscripts
        >>> a, b = MatrixBatch((2, 7, 6), (42, 6, 1)), MatrixBatch((6, 3, 4), (12, 4, 1))
        >>> given = {"a": a, "b": b, "out": MatrixBatch((2, 3, 7, 4), (84, 28, 4, 1))}
        >>> posed(read_subscripts("bsk,khe->bhse", (3, 3)), given).contraction.of("out")
        Seen(batch=(), groups=(('m', (7,)), ('n', (4,))))
    """
    extents = extents_of(named, arrays["a"].shape, arrays["b"].shape)
    shape = tuple(extents[label] for label in named.out)
    of_index = {INDEX: MatrixBatch(shape, row_major(shape))} if indexed else {}
    dims = {
        label: Dim(extent, _steps(label, named, {**arrays, **of_index}))
        for label, extent in extents.items()
        if extent != 1
    }
    axes: dict[str, list[Dim]] = {"batch": [], "m": [], "n": [], "k": []}
    for label, dim in dims.items():
        has_a, has_b = label in named.a, label in named.b
        group = "k" if label not in named.out else "batch" if has_a and has_b else "m" if has_a else "n"
        axes[group].append(dim)
    if not multiplies or any(dim.extent == 0 for dim in axes["k"]):
        axes["k"] = [Dim(0, dict.fromkeys(arrays, 1))]
    joined = grouped(axes, (*arrays, *of_index))
    seen = {name: _seen(name, joined) for name in arrays}
    contraction = Contraction(
        len(joined.batch),
        tuple((name, one) for name, (one, _) in seen.items()),
        _places(joined) if indexed else (),
    )
    layouts = {name: layout for name, (_, layout) in seen.items()}
    problem = None if joined.needs_view else joined.problem(arrays)
    return Posed(contraction, layouts, 0 in shape, problem)


def _places(axes: Axes) -> tuple[int, ...]:
    """The dimensions of the result's view, in the order of its subscripts."""
    pieces = [piece for group in "mn" for piece in merged(axes.groups[group], ("out", INDEX))]
    steps = [dim.steps[INDEX] for dim in (*axes.batch, *pieces)]
    return tuple(sorted(range(len(steps)), key=lambda dim: -steps[dim]))


def _steps(label: str, named: Subscripts, arrays: Mapping[str, MatrixBatch]) -> dict[str, int]:
    """Stride of each array along an axis; 0 if the array lacks the axis, or has one element there."""
    found = {}
    for name, one in arrays.items():
        is_operand = is_part_of(name, "a", "b")
        labels = getattr(named, name[0]) if is_operand else named.out[len(named.out) - len(one.shape) :]
        steps = zip(labels, one.shape, one.strides, strict=True)
        # An axis that an operand has twice is its diagonal.
        found[name] = sum(step for own, extent, step in steps if own == label and extent != 1)
    return found


def _seen(name: str, axes: Axes) -> tuple[Seen, MatrixBatch]:
    """The view of an array with as few dimensions as its strides allow."""
    is_out = is_part_of(name, "out")
    whole = [number for number, dim in enumerate(axes.batch) if dim.steps[name] or is_out]
    dims = [axes.batch[number] for number in whole]
    found: list[tuple[str, tuple[int, ...]]] = []
    for group in groups_of(name):
        own = axes.groups[group]
        is_there = any(dim.extent != 1 for dim in own)
        is_constant = is_there and not any(dim.steps[name] for dim in own)
        if is_constant and is_part_of(name, *AFTER_SUMS) and (group == "m" or found):
            continue  # a constant counts as varying along columns
        pieces = merged(own, (name, INDEX) if is_out and INDEX in own[0].steps else (name,))
        dims += pieces
        found.append((group, tuple(piece.extent for piece in pieces[1:])))
    shape, strides = (tuple(dim.extent for dim in dims), tuple(dim.steps[name] for dim in dims))
    return Seen(tuple(whole), tuple(found)), MatrixBatch(shape, strides)


# ---------------------------------------------------------------- kernels

IN_KERNEL = ("a", "b", "bias", "multiply", "residual", "out")
"""The arrays of each kernel, in its order. ``out`` replaces an absent array, which is not read."""

RARE_ARRAYS = ("c", *SCALES)
"""Arrays that a kernel declares only if the call has them, in its order."""

NAMES = dict(zip((*IN_KERNEL, "c"), "ABXYRDC", strict=True)) | {name: name for name in SCALES}
"""The kernels' names of arrays."""

Ending: TypeAlias = tuple[EndingTerm, ...]
"""The terms between the sums and the stores: a constant of the kernels."""


@lru_cache(maxsize=256)
def contraction(made: Contraction, number: DType) -> Kernel:
    """``D = dropout(activation(alpha * A @ B + beta * C + bias) * Y) + R`` of arrays seen as matrices.

    Scales of A and B may multiply the sums.

    Args:
        made: the views of the arrays.
        number: the dtype of everything but the sums, and of alpha and scale.
    """

    @kernel_of(**_declared(made, made.names, number))
    def gemm_contraction(*, precision: str, ending: Ending) -> TiledProduct:
        only_saturates = not ending or isinstance(ending[0], Saturation)
        terms = [*([] if only_saturates else [Conversion(number)]), *ending, Output(("D",))]
        return TiledProduct(
            ProductOperand(("A",)), ProductOperand(("B",)), terms, Algebra(precision=precision)
        )

    return gemm_contraction


@lru_cache(maxsize=64)
def contraction_in_halves(made: Contraction) -> Kernel:
    """The contraction of operands that are split in halves, as in `products.in_halves`.

    Args:
        made: the views of the arrays; the operands' have no inner axes.
    """
    declared, batch_of_a, batch_of_b = dict[str, str](), *(made.of(name).lead for name in "ab")
    for name in "ab":
        declared |= dict.fromkeys((f"{name.upper()}1", f"{name.upper()}2"), made.of(name).axes)
    declared |= {"p": f"{batch_of_a}m", "q": f"{batch_of_b}n"}

    @kernel_of(**declared, **_declared(made, made.names[2:], f32))
    def gemm_contraction_in_halves(*, both: bool, ending: Ending) -> TiledProduct:
        terms = (Units(f"p {batch_of_a}m new", "q"), *ending, Output(("D",)))
        a, b = ProductOperand(("A1", "A2")), ProductOperand(("B1", "B2"))
        return TiledProduct(a, b, terms, Algebra().in_halves(both=both), waits=True)

    return gemm_contraction_in_halves


def _declared(made: Contraction, names: Sequence[str], number: DType) -> dict[str, str | DType]:
    """Declarations of a kernel's arrays and numbers."""
    arrays = {NAMES[name]: made.of(name).axes for name in names}
    rare = ("c", "dropout") if "c" in names else ("dropout",)
    return {**arrays, "alpha": number, **rare_numbers(rare, number)}
