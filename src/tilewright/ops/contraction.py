"""A contraction of two arrays as a product of matrices: which axes are batches, rows, columns and K.

Axes that two arrays step along alike are joined.  What is left of the rows (or columns) is cut in two: outer
axes that a kernel takes one index after the other, as batches, and inner ones that are merged.  An array in
which merged axes have several strides is seen through a view, in which all but the outermost extent are known
when the kernel is compiled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.errors import LaunchError
from tilewright.ops.problem import Dim, merged
from tilewright.ops.subscripts import Subscripts
from tilewright.runtime.arrays import ArrayInfo

TILE = {"m": 128, "n": 256}
"""Rows and columns of the tiles that large problems are computed in."""

MOST_WASTE = 1.13
"""By how much longer the last tile may make an axis that is cut in tiles of its own."""

MOST_WASTE_OF_VIEWS = 1.5
"""The same where an operand would be seen through a view otherwise."""

INDEX = "index"
"""In the place of an array: the number of each element of the result, in the order of its subscripts."""

ADDED = ("bias", "multiply", "residual")
"""Arrays that are broadcast to the result."""


@dataclass(frozen=True)
class Seen:
    """How a kernel sees an array: one dimension for each batch that it has, then those of its groups of axes.

    A group has one dimension, and one more for each axis inside of it that has a stride of its own.

    Args:
        batch: which of the kernel's batches it has.
        groups: the groups that it has, ``"m"``, ``"k"`` and ``"n"`` in this order, each with the extents of
            what is inside of its first dimension.
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
        batch: how many dimensions are taken one index after the other.
        seen: how each array is seen, by name, in the order of the kernel.
        order: the dimensions of the result as it is seen, in the order of its subscripts; empty if nothing
            depends on where its elements stand.
    """

    batch: int
    seen: tuple[tuple[str, Seen], ...]
    order: tuple[int, ...] = ()

    def of(self, name: str) -> Seen:
        """How an array is seen; the result stands for one that there is not."""
        found = dict(self.seen)
        return found.get(name, found["out"])


@dataclass(frozen=True)
class Posed:
    """A contraction, and the extents and strides of its arrays as they are seen.

    Args:
        contraction: what the kernel is made for.
        infos: the arrays, by name.
        is_empty: whether the result has no element.
    """

    contraction: Contraction
    infos: Mapping[str, ArrayInfo]
    is_empty: bool


def extents_of(named: Subscripts, arrays: Mapping[str, ArrayInfo]) -> dict[str, int]:
    """The extent of each axis.

    Args:
        named: the labels of axes.
        arrays: the arrays called ``a`` and ``b``.

    Raises:
        LaunchError: extents of two arrays that differ, and neither of them is 1; or of one array that differ.
    """
    found: dict[str, int] = {}
    for name in ("a", "b"):
        own: dict[str, int] = {}
        for label, extent in zip(getattr(named, name), arrays[name].shape, strict=True):
            if own.setdefault(label, extent) != extent:
                raise LaunchError(
                    f"einsum: {name} has shape {arrays[name].shape}, and the diagonal {label!r} has axes of "
                    f"{own[label]} and {extent} elements; nearest legal choice: "
                    f"{min(own[label], extent)} in both"
                )
            known = found.get(label, 1)
            if extent != known and 1 not in (extent, known):
                what = f"axis {label!r}" if label.isalpha() else "an axis behind an ellipsis"
                raise LaunchError(
                    f"einsum of shapes {arrays['a'].shape} and {arrays['b'].shape}: {what} has {known} and "
                    f"{extent} elements; nearest legal choice: {known} in both, or 1, which is broadcast"
                )
            found[label] = extent if known == 1 else known
    return found


def posed(
    named: Subscripts, arrays: Mapping[str, ArrayInfo], *, indexed: bool = False, multiplies: bool = True
) -> Posed:
    """The contraction that arrays pose.

    Args:
        named: the labels of axes.
        arrays: the arrays called ``a``, ``b`` and ``out``, and those of `ADDED` that there are, which have
            the axes of the result.
        indexed: whether something depends on where an element of the result stands.
        multiplies: whether there are products; else K is 0, and nothing of ``a`` and ``b`` is read.

    Raises:
        LaunchError: extents that do not fit.

    Example:
        >>> import numpy as np
        >>> from tilewright.ops.subscripts import read_subscripts
        >>> from tilewright.runtime.arrays import describe
        >>> a, b, out = np.ones((2, 7, 6)), np.ones((6, 3, 4)), np.ones((2, 3, 7, 4))
        >>> given = {"a": describe(a), "b": describe(b), "out": describe(out)}
        >>> posed(read_subscripts("bsk,khe->bhse", (3, 3)), given).contraction.of("out")
        Seen(batch=(), groups=(('m', (7,)), ('n', (4,))))
    """
    extents = extents_of(named, arrays)
    axes = {label: Dim(extent, _steps(label, named, arrays)) for label, extent in extents.items()}
    if indexed:
        count = 1
        for label in reversed(named.out):
            axes[label] = replace(axes[label], steps={**axes[label].steps, INDEX: count})
            count *= axes[label].extent
    axes = {label: dim for label, dim in axes.items() if dim.extent != 1}
    added = [name for name in ADDED if name in arrays] + ([INDEX] if indexed else [])
    groups: dict[str, list[Dim]] = {"batch": [], "m": [], "n": [], "k": []}
    for label, dim in axes.items():
        has_a, has_b = label in named.a, label in named.b
        group = "k" if label not in named.out else "batch" if has_a and has_b else "m" if has_a else "n"
        groups[group].append(dim)
    is_empty = any(axes[label].extent == 0 for label in named.out if label in axes)
    if not multiplies or any(dim.extent == 0 for dim in groups["k"]):
        groups["k"] = [Dim(0, {"a": 1, "b": 1})]
    members = {"batch": ("a", "b"), "m": ("a",), "n": ("b",), "k": ("a", "b")}
    for name, dims in groups.items():
        own = members[name] if name == "k" else (*members[name], "out", *added)
        groups[name] = merged(_ordered(dims, name), own)
    outer_m, groups["m"] = _cut(groups["m"], "a", TILE["m"])
    outer_n, groups["n"] = _cut(groups["n"], "b", TILE["n"])
    batch = [*groups["batch"], *outer_m, *outer_n]
    batch = sorted(batch, key=lambda dim: -abs(dim.steps["out"]))
    made = {name: _seen(name, info, batch, groups) for name, info in arrays.items()}
    seen = tuple((name, seen) for name, (seen, _) in made.items())
    order = _places(batch, groups) if indexed else ()
    infos = {name: info for name, (_, info) in made.items()}
    return Posed(Contraction(len(batch), seen, order), infos, is_empty)


def _places(batch: Sequence[Dim], groups: Mapping[str, Sequence[Dim]]) -> tuple[int, ...]:
    """The dimensions of the result as it is seen, in the order of its subscripts."""
    pieces = [piece for group in "mn" for piece in merged(groups[group], ("out", INDEX)) or [Dim(1, {})]]
    steps = [dim.steps.get(INDEX, 0) for dim in (*batch, *pieces)]
    return tuple(sorted(range(len(steps)), key=lambda dim: -steps[dim]))


def _steps(label: str, named: Subscripts, arrays: Mapping[str, ArrayInfo]) -> dict[str, int]:
    """By how much each array steps along an axis; 0 where it has none, or one element."""
    found = {}
    for name, info in arrays.items():
        labels = getattr(named, name) if name in ("a", "b") else named.out[len(named.out) - len(info.shape) :]
        steps = zip(labels, info.shape, info.strides, strict=True)
        # An axis that an operand has twice is its diagonal.
        found[name] = sum(step for own, extent, step in steps if own == label and extent != 1)
    return found


def _ordered(dims: list[Dim], group: str) -> list[Dim]:
    """Axes of a group, slowest first: of the result, or along K of an operand that is contiguous there."""
    by = "out"
    if group == "k":
        by = next((name for name in ("a", "b") if any(abs(dim.steps[name]) == 1 for dim in dims)), "a")
    return sorted(dims, key=lambda dim: (-abs(dim.steps[by]), -abs(dim.steps["a"]), -abs(dim.steps["b"])))


def _cut(dims: list[Dim], operand: str, tile: int) -> tuple[list[Dim], list[Dim]]:
    """Outer axes, of which each index has tiles of its own, and inner ones that are cut in tiles together."""
    waste = MOST_WASTE if len(merged(dims, (operand,))) < 2 else MOST_WASTE_OF_VIEWS
    for place in reversed(range(1, len(dims))):
        inner = math.prod(dim.extent for dim in dims[place:])
        if inner >= tile and -(-inner // tile) * tile <= waste * inner:
            return dims[:place], dims[place:]
    return [], dims


def _seen(
    name: str, info: ArrayInfo, batch: Sequence[Dim], groups: Mapping[str, Sequence[Dim]]
) -> tuple[Seen, ArrayInfo]:
    """How an array is seen: a view of no more dimensions than its strides need."""
    has = {"a": "mk", "b": "kn"}.get(name, "mn")
    whole = [number for number, dim in enumerate(batch) if dim.steps[name] or name == "out"]
    shape = [batch[number].extent for number in whole]
    strides = [batch[number].steps[name] for number in whole]
    found: list[tuple[str, tuple[int, ...]]] = []
    for group in has:
        dims = groups[group]
        varies = any(dim.steps[name] for dim in dims)
        if name in ADDED and not varies and (group == "m" or found):
            continue  # what varies along nothing is taken along columns
        alike = (name, INDEX) if name == "out" and any(INDEX in dim.steps for dim in dims) else (name,)
        pieces = merged(dims, alike) or [Dim(1, {name: 0})]
        shape += [piece.extent for piece in pieces]
        strides += [piece.steps[name] for piece in pieces]
        found.append((group, tuple(piece.extent for piece in pieces[1:])))
    seen = Seen(tuple(whole), tuple(found))
    return seen, replace(info, shape=tuple(shape), strides=tuple(strides))
