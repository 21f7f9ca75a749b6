"""A product as data: operands, an algebra of their parts, and an ending; and the writer of its kernel.

`kernel_of` writes every dataflow kernel of the family.  A schedule says how the hardware computes it.

A string names an array of a kernel and the span along each of its dimensions: ``"A b0 m k"``.  If it has only
the name, the array has the spans that the kernel declares.  Besides spans it may have these words:

- ``"k/32"``: one element for 32 neighbours along K;
- ``"m*7*2"``: three dimensions along M; the inner ones have 7 and 2 elements;
- ``"new"``: an axis that the array does not have;
- ``"re"``, ``"im"``: the first or the second index of a dimension of both parts of complex numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple, TypeAlias

from tilewright.dataflow.nodes import EXACT, SUMMED
from tilewright.dtypes import DType, f8e4m3, f8e5m2, f16, f32, u8, u32
from tilewright.lang.asynchrony import prior_grid_wait
from tilewright.lang.dataflow.loops import steps, tiles, zeros
from tilewright.lang.exact_functions import bitcast, maximum, take
from tilewright.lang.launch import require
from tilewright.lang.program import by_name
from tilewright.lang.scalars import ceil_div
from tilewright.runtime.kernel import Kernel, kernel

OCP_FP8 = {f8e4m3, f8e5m2}
"""The two kinds of fp8 that are multiplied as they are, also with each other."""

FIXED: Mapping[str, int | None] = {"new": None, "re": 0, "im": 1}
"""Index along axes without a loop."""

WORD = re.compile(r"(\w+)(?:/(\d+))?((?:\*\d+)*)")
"""A span, how many neighbours share an element, and the extents of inner dimensions."""


class ArrayAxis(NamedTuple):
    """How an array is indexed along one span, or along a key of `FIXED`."""

    span: str
    shared: int = 0
    inner: tuple[int, ...] = ()


@lru_cache(maxsize=1024)
def axes_of(words: str) -> tuple[ArrayAxis, ...]:
    """Read the axes of an array.

    Example:
        >>> axes_of("k/32 m*7*2")
        (ArrayAxis(span='k', shared=32, inner=()), ArrayAxis(span='m', shared=0, inner=(7, 2)))
    """
    return tuple(
        ArrayAxis(span, int(shared or 0), tuple(map(int, inner.split("*")[1:])))
        for span, shared, inner in WORD.findall(words)
    )


def dimensions(name: str, axes: Sequence[ArrayAxis]) -> str:
    """Name the dimensions of an array; outer ones of a span share a name if their inner extents agree.

    Example:
        >>> dimensions("D", axes_of("b0 m*7 n"))
        'B0 M7 MD0 N'
    """
    found = list[str]()
    for span, _, inner in axes:
        outer = "P" if span in FIXED else span.upper()
        found.append(f"{outer}{prod(inner)}" if inner else outer)
        found += [f"{outer}{name}{at}" for at in range(len(inner))]
    return " ".join(found)


@dataclass(frozen=True)
class KernelArrays:
    """The arrays and numbers of a kernel, and the spans of the loops that are open.

    Args:
        given: the arrays and numbers as the kernel takes them, by name.
        declared: the axes of each array, by name.
        matrices: the arrays with one dimension for each axis, by name.
        spans: the spans, by name.
    """

    given: Mapping[str, Any]
    declared: Mapping[str, tuple[ArrayAxis, ...]]
    matrices: Mapping[str, Any]
    spans: Mapping[str, Any]

    @staticmethod
    def of(given: Mapping[str, Any], declared: Mapping[str, tuple[ArrayAxis, ...]]) -> KernelArrays:
        """The arrays and numbers of a kernel before its first loop."""
        return KernelArrays(given, declared, {n: _merged(given[n], axes) for n, axes in declared.items()}, {})

    def within(self, **spans: Any) -> KernelArrays:
        """The arrays and numbers inside more loops."""
        return replace(self, spans={**self.spans, **spans})

    def axes(self, array: str) -> tuple[ArrayAxis, ...]:
        """The axes of an array."""
        name, _, words = array.partition(" ")
        return axes_of(words) if words else self.declared[name]

    def matrix(self, array: str) -> Any:
        """An array with one dimension for each axis."""
        return self.matrices[array.split()[0]]

    def extent(self, array: str, span: str) -> Any:
        """Number of elements of an array along a span."""
        return self.matrix(array).shape[[axis.span for axis in self.axes(array)].index(span)]

    def tile(self, array: str) -> Any:
        """The tile of an array at the open spans; an array with only rows becomes a column.

        Tiles of operands have rows along M, or along K if they have columns, in any order of the axes.
        """
        tile, spans = self.matrix(array)[self._index(array)], [axis.span for axis in self.axes(array)]
        if "m" in spans and {"n", "k", "new"}.isdisjoint(spans):
            return tile[:, None]
        is_turned = [span for span in spans if span in ("m", "n", "k")] in (["k", "m"], ["n", "k"])
        return tile.T if is_turned else tile

    def store(self, array: str, value: Any) -> None:
        """Store a tile at the open spans."""
        self.matrix(array)[self._index(array)] = value

    def _index(self, array: str) -> tuple[Any, ...]:
        spans = {**FIXED, **self.spans}
        pairs = ((spans[axis.span], axis.shared) for axis in self.axes(array))
        return tuple(span // shared if shared else span for span, shared in pairs)

    def require_extents(self, first: Mapping[str, str]) -> None:
        """Require that all arrays have equal extents along each span.

        Args:
            first: for each span, by name, the array that defines its extent.
        """
        known = set[str]()
        for name, axes in self.declared.items():
            for span in (axis.span for axis in axes if axis.span in first):
                own, other = self.extent(name, span), self.extent(first[span], span)
                if str(own) != str(other) and f"{own} {other}" not in known:
                    known.add(f"{own} {other}")
                    require(own == other, f"{name} and {first[span]} must have equal extents along {span}")

    def require_shared(self, array: str, first: Mapping[str, str], *, whole: bool) -> None:
        """Require that an array has one element for each group of neighbours along its axes.

        Args:
            array: the array.
            first: as in `require_extents`.
            whole: whether the last group must be complete.
        """
        for axis in sorted(axis for axis in self.axes(array) if axis.shared):
            extent = self.extent(first[axis.span], axis.span)
            if whole:
                require(extent % axis.shared == 0, f"K must be a multiple of {axis.shared}")
            made = self.extent(array, axis.span) == ceil_div(extent, axis.shared)
            require(
                made, f"{array.split()[0]} must have one element for each {axis.shared} along {axis.span}"
            )


def _merged(array: Any, axes: tuple[ArrayAxis, ...]) -> Any:
    """An array with one dimension for each axis."""
    if not any(axis.inner for axis in axes):
        return array
    index = list[slice]()
    for axis in axes:
        index.append(slice(None))
        for extent in axis.inner:
            require(array.shape[len(index)] == extent, f"this kernel was made for an extent of {extent}")
            index.append(slice(0, extent))
    array = array[tuple(index)]
    for place, axis in enumerate(axes):
        array = array.merge(place, 1 + len(axis.inner)) if axis.inner else array
    return array


@dataclass(frozen=True)
class ProductOperand:
    """The arrays of an operand, and how a tile of them is decoded before it is multiplied.

    Args:
        parts: the matrices that an algebra multiplies: one, both parts of complex numbers, or halves.
        multiplied: the dtype in which they are multiplied; None: their own.
        zeros: array of zero points, subtracted from groups of neighbours along K; "": none.
        factors: array of factors of groups, or of bytes of powers of 2, applied after the zero points; "":
            none.
        scales: array of factors of the products of blocks along K; "": none.
        table: the number of each code, if elements are codes; empty: elements are numbers.
    """

    parts: tuple[str, ...]
    multiplied: DType | None = None
    zeros: str = ""
    factors: str = ""
    scales: str = ""
    table: tuple[float, ...] = ()

    def require_extents(self, arrays: KernelArrays, first: Mapping[str, str]) -> None:
        """Require an element for each group of neighbours and each block; no group may be cut.

        Args:
            arrays: the arrays of the kernel.
            first: for each span, by name, the array that defines its extent.
        """
        for array in filter(None, (self.factors or self.zeros, self.scales)):
            arrays.require_shared(array, first, whole=array != self.scales)

    def tiles(self, arrays: KernelArrays) -> list[Any]:
        """A tile of each part, decoded."""
        return [self._decoded(arrays.tile(part), arrays) for part in self.parts]

    def _decoded(self, tile: Any, arrays: KernelArrays) -> Any:
        factor = arrays.tile(self.factors) if self.factors else None
        tile = take(self.table, tile, self.multiplied) if self.table else tile
        if factor is not None and factor.dtype == u8:
            # f16 cannot hold all of these powers of 2: the product is computed in f32, and rounded once.
            wide = f32 if self.multiplied == f16 else self.multiplied
            inside = replace(self, multiplied=wide, factors="", table=())
            return self._converted(inside._decoded(tile, arrays) * inside._converted(power_of_two(factor)))
        tile = self._converted(tile)
        if self.zeros:
            tile = tile - self._converted(arrays.tile(self.zeros))
        return tile if factor is None else tile * self._converted(factor)

    def _converted(self, tile: Any) -> Any:
        """A tile in the dtype of the multiplication; both kinds of fp8 are multiplied as they are."""
        dtype = self.multiplied
        as_it_is = dtype is None or tile.dtype == dtype or {tile.dtype, dtype} <= OCP_FP8
        return tile if as_it_is else tile.to(dtype)


def power_of_two(codes: Any) -> Any:
    """The f32 numbers of bytes of `f8e8m0`: ``2 ** (code - 127)``, and NaN for 255.

    The code is the exponent of an f32, except for 0 (a subnormal number) and 255 (infinity in f32).
    """
    bits = codes.to(u32)
    return bitcast(maximum(bits << 23, 1 << 22) | ((bits + 1) >> 8) << 22, f32)


@dataclass(frozen=True)
class Algebra:
    """Products of parts of operands, and results computed from their totals.

    Args:
        products: (part of A, part of B, total, sign), in the order in which they are added up.
        results: for each result (total, sign); the first sign is 1.
        precision: precision of the products.
        sums: precision of the sums.
    """

    products: tuple[tuple[int, int, int, int], ...] = ((0, 0, 0, 1),)
    results: tuple[tuple[tuple[int, int], ...], ...] = (((0, 1),),)
    precision: str = EXACT
    sums: str = EXACT

    @property
    def totals(self) -> int:
        """Number of totals."""
        return len({total for _, _, total, _ in self.products})

    def in_halves(self, *, both: bool) -> Algebra:
        """The algebra for parts that are split in two halves.

        Products of two second halves are omitted.  Products of two first halves, the largest, are added last.

        Args:
            both: whether second halves are multiplied.
        """
        pairs = ((1, 0), (0, 1), (0, 0)) if both else ((0, 0),)
        rows = ((i, j, row) for i, j in pairs for row in self.products)
        made = tuple((2 * a + i, 2 * b + j, total, sign) for i, j, (a, b, total, sign) in rows)
        return replace(self, products=made, sums=SUMMED if both else EXACT)


Tiles: TypeAlias = Sequence[Any]
"""A tile of each result."""


class EndingTerm:
    """One step from the sums to the stores."""

    def emit(self, values: Tiles, arrays: KernelArrays) -> Tiles:
        """Record the step, and return the results after it."""
        raise NotImplementedError


@dataclass(frozen=True)
class TiledProduct:
    """The computation of a product kernel.

    Args:
        a: the operand with rows along M.
        b: the operand with columns along N.
        ending: the terms between the results of the algebra and the stores, stores included.
        algebra: the products and sums of the parts.
        out: the array whose last two dimensions are cut in tiles.
        ends: the array of the ends of groups of rows; "": rows are in no groups.
        ends_along_k: the array of the ends of groups along K, which the first axis of the result numbers; "":
            each product has all of K.
        waits: whether a launch before this one, which may still run, writes operands.
        is_symmetric: whether the result is symmetric: half of its tiles are computed, and stored twice.
    """

    a: ProductOperand
    b: ProductOperand
    ending: Sequence[EndingTerm]
    algebra: Algebra = Algebra()
    out: str = "D"
    ends: str = ""
    ends_along_k: str = ""
    waits: bool = False
    is_symmetric: bool = False


def kernel_by_name(**declared: Any) -> Callable[[Callable[..., None]], Kernel]:
    """Decorator that makes a kernel from a function of its arrays and numbers, as attributes of one object.

    Args:
        declared: the dimensions of each array, and the dtype of each number, in order.
    """
    return lambda function: kernel(**declared)(by_name(declared, function))


def kernel_of(**declared: Any) -> Callable[[Callable[..., TiledProduct]], Kernel]:
    """Decorator that makes a kernel from a function that returns a `TiledProduct`.

    The function takes the compile-time constants by keyword; its name is the kernel's.

    Args:
        declared: the axes of each array (see the module), and the dtype of each number, in order.
    """
    axes = {name: axes_of(one) for name, one in declared.items() if isinstance(one, str)}
    dims = {name: dimensions(name, own) for name, own in axes.items()}

    def decorate(what: Callable[..., TiledProduct]) -> Kernel:
        def gemm(given: Any, **constants: Any) -> None:
            made, whole = what(**constants), KernelArrays.of(vars(given), axes)
            a, b, algebra = made.a, made.b, made.algebra
            first = {"m": made.out, "n": made.out, "k": a.parts[0]}
            whole.require_extents(first)
            for operand in (a, b):
                operand.require_extents(whole, first)
            if made.is_symmetric:
                require(
                    whole.extent(made.out, "m") == whole.extent(made.out, "n"), "the result must be square"
                )
            lead = ["g"] if made.ends else [axis.span for axis in whole.axes(made.out)[:-2]]
            groups = whole.given[made.ends] if made.ends else None
            for *batch, m, n in tiles(whole.matrix(made.out), groups=groups):
                tile = whole.within(m=m, n=n, **dict(zip(lead, batch, strict=True)))
                if made.waits:
                    prior_grid_wait()
                acc = [zeros(precision=algebra.sums) for _ in range(algebra.totals)]
                depth = whole.extent(a.parts[0], "k")
                cut = {"begin": None, "end": tile.tile(made.ends_along_k)} if made.ends_along_k else {}
                for k in steps(depth, **cut):
                    step = tile.within(k=k)
                    left, right = a.tiles(step), b.tiles(step)
                    scales = tuple(step.tile(one.scales) if one.scales else None for one in (a, b))
                    for i, j, total, sign in algebra.products:
                        product = left[i].matmul(right[j], precision=algebra.precision, scales=scales)
                        if sign > 0:
                            acc[total] += product
                        else:
                            acc[total] -= product
                values: Tiles = [_combined(acc, row) for row in algebra.results]
                for term in made.ending:
                    values = term.emit(values, tile)
                if made.is_symmetric:
                    tile.store(" ".join([made.out, *lead, "n", "m"]), values[0].T)

        return kernel(**{**declared, **dims})(by_name(declared, gemm, what))

    return decorate


def _combined(totals: Sequence[Any], row: Sequence[tuple[int, int]]) -> Any:
    """A result: totals that are added to the first one, or subtracted from it."""
    (first, _), *others = row
    value = totals[first]
    for total, sign in others:
        value = value + totals[total] if sign > 0 else value - totals[total]
    return value
