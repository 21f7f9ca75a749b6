"""Endings of products: the terms between the sums of an algebra and the stores.

A term takes a tile of each result (one, or the real and the imaginary part) and returns the same number of
tiles.  It names arrays as `tiled_product` does, and numbers by their names in the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any

from tilewright.dtypes import DType, boolean, f32, f64, u32, u64
from tilewright.lang.dataflow.indexing import positions
from tilewright.lang.exact_functions import bitcast
from tilewright.lang.exact_functions import round as nearest
from tilewright.lang.functions import derivative as slope
from tilewright.lang.functions import dropout, exp, gelu, log, relu, sigmoid, silu, tanh
from tilewright.ops.tiled_product import EndingTerm, KernelArrays, Tiles

ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "relu": relu,
    "gelu": gelu,
    "gelu_tanh": partial(gelu, approximate=True),
    "silu": silu,
    "sigmoid": sigmoid,
    "tanh": tanh,
}
"""The functions that may be applied to each element, by name."""


@dataclass(frozen=True)
class Conversion(EndingTerm):
    """Converts to a dtype.  It is recorded even if values already have the dtype."""

    dtype: DType

    def emit(self, values: Tiles, arrays: KernelArrays) -> Tiles:
        """Convert each tile."""
        return [value.to(self.dtype) for value in values]


@dataclass(frozen=True)
class Alpha(EndingTerm):
    """Multiplies by a number, or by both parts of a complex one."""

    numbers: tuple[str, ...] = ("alpha",)

    def emit(self, values: Tiles, arrays: KernelArrays) -> Tiles:
        """Multiply by the number."""
        return times([arrays.given[name] for name in self.numbers], values)


@dataclass(frozen=True)
class Addend(EndingTerm):
    """Adds arrays times a number.

    Args:
        arrays: an array for each result.
        numbers: the number, or both parts of a complex one; empty: 1.
        conjugate: whether the second array, of imaginary parts, is negated.
    """

    arrays: tuple[str, ...]
    numbers: tuple[str, ...] = ()
    conjugate: bool = False

    def emit(self, values: Tiles, arrays: KernelArrays) -> Tiles:
        """Add the arrays."""
        added: Tiles = [tile.to(value.dtype) for tile, value in zip(self._read(arrays), values, strict=True)]
        added = [added[0], -added[1]] if self.conjugate else added
        added = times([arrays.given[name] for name in self.numbers], added) if self.numbers else added
        return [value + one for value, one in zip(values, added, strict=True)]

    def _read(self, arrays: KernelArrays) -> Tiles:
        return [arrays.tile(one) for one in self.arrays]


def times(factor: Sequence[Any], values: Tiles) -> Tiles:
    """Return values times a real factor, or both parts of a complex value times a complex factor.

    Args:
        factor: the factor, or its real and imaginary parts.
        values: the values, or the real and imaginary parts of one.
    """
    if len(factor) == 1:
        return [factor[0] * value for value in values]
    (re, im), (x, y) = factor, values
    return [re * x - im * y, re * y + im * x]


@dataclass(frozen=True)
class RowScales(EndingTerm):
    """Multiplies sums by a number and by scales, in f32 without overflow or underflow on the way.

    Each of two scales is split in two factors near its square root, the first a power of 2.  The sums are
    multiplied by the first factor of one scale times the second of the other, then by the other two.  Both
    products are finite if the scales are, and near the square root of the product of the scales, so that the
    value between is between the sum and the result.  The factors of a third scale are multiplied with these
    products.  Sums in f64 are multiplied by one scale after the other.

    Args:
        number: one factor for all sums; "": none.
        rows: the array of a scale for each row; "": none.
        columns: the array of a scale for each column; "": none.
    """

    number: str = ""
    rows: str = ""
    columns: str = ""

    def emit(self, values: Tiles, arrays: KernelArrays) -> Tiles:
        """Multiply by the scales."""
        given = [arrays.given[self.number]] if self.number else []
        given += [arrays.tile(one) for one in (self.rows, self.columns) if one]
        if (dtype := values[0].dtype) == f64:
            for one in given:
                values = [value * one.to(dtype) for value in values]
            return values
        scales = [one.to(f32) for one in given]
        if len(scales) < 2:
            return [value * scales[0] for value in values] if scales else values
        (first, second), (other, rest), *third = map(_split, scales)
        one, two = first * rest, second * other
        for left, right in third:
            one, two = one * left, two * right
        return [value * one * two for value in values]


EXPONENT_BIAS = 127
"""The bias of the exponent of an f32, which begins at bit 23."""


def _split(scale: Any) -> tuple[Any, Any]:
    """Two factors of a scale in f32 near its square root; the first is a power of 2, and not below it."""
    exponent = bitcast(scale, u32) >> 23 & 0xFF
    power = exponent + (EXPONENT_BIAS + 1) >> 1 << 23
    return bitcast(power, f32), scale * bitcast(2 * EXPONENT_BIAS * 2**23 - power, f32)


@dataclass(frozen=True)
class Units(EndingTerm):
    """Multiplies sums of split operands by the squared unit of their row and that of their column."""

    rows: str
    columns: str

    def emit(self, values: Tiles, arrays: KernelArrays) -> Tiles:
        """Multiply by the squared units."""
        unit = arrays.tile(self.rows) * arrays.tile(self.columns)
        return [value * unit * unit for value in values]  # the square of the unit may be out of range


@dataclass(frozen=True)
class Nonlinearity(EndingTerm):
    """Applies one of `ACTIVATIONS`."""

    name: str

    def emit(self, values: Tiles, arrays: KernelArrays) -> Tiles:
        """Apply the activation."""
        return [ACTIVATIONS[self.name](value) for value in values]


@dataclass(frozen=True)
class Multiplier(EndingTerm):
    """Multiplies by an array, or by the derivative of an activation at the elements of the array."""

    array: str
    derivative: str | None = None

    def emit(self, values: Tiles, arrays: KernelArrays) -> Tiles:
        """Multiply by the factor."""
        factor = arrays.tile(self.array).to(values[0].dtype)
        factor = factor if self.derivative is None else slope(self.derivative, factor)
        return [value * factor for value in values]


@dataclass(frozen=True)
class DropoutMask(EndingTerm):
    """Sets random elements to 0, chosen by their numbers in the result, and scales the others.

    Args:
        result: the array of the result.
        order: its dimensions, as the kernel sees them, in the order that numbers its elements.
    """

    result: str
    order: tuple[int, ...]

    def emit(self, values: Tiles, arrays: KernelArrays) -> Tiles:
        """Drop elements by their numbers."""
        steps, count, name = dict[int, Any](), 1, self.result.split()[0]
        for dim in reversed(self.order):
            steps[dim], count = count, count * arrays.given[name].shape[dim]
        digits = list[Any]()
        for span, _, inner in arrays.axes(self.result):
            rest, found = positions(arrays.spans[span]), list[Any]()
            for extent in reversed(inner):
                found.append(rest % extent)
                rest = rest // extent
            digits += [digit[:, None] if span == "m" else digit for digit in (rest, *reversed(found))]
        *others, index = [digit.to(u64) * steps[dim] for dim, digit in enumerate(digits)]
        for other in others:
            index = index + other
        drawn = [arrays.given[name] for name in ("threshold", "scale", "seed", "offset")]
        return [dropout(value, index, *drawn) for value in values]


@dataclass(frozen=True)
class AxisReductions(EndingTerm):
    """Stores reductions along an axis, and passes the values on.

    Args:
        axis: 1, along which rows are reduced, or 0.
        stored: the array of each reduction that is stored: ``"sum"``, ``"max"``, ``"min"``, ``"logsumexp"``.
    """

    axis: int
    stored: Mapping[str, str]

    def emit(self, values: Tiles, arrays: KernelArrays) -> Tiles:
        """Store the reductions."""
        [value], axis = values, self.axis
        high: Any = value.max(axis=axis) if self.stored.keys() & {"max", "logsumexp"} else None
        for kind, array in self.stored.items():
            if kind == "logsumexp":
                above = value - (high[:, None] if axis else high)
                made = log(exp(above).sum(axis=axis)) + high
            else:
                made = high if kind == "max" else getattr(value, kind)(axis=axis)
            arrays.store(array, made)
        return values


@dataclass(frozen=True)
class Wrapping(EndingTerm):
    """Truncates integers to the bits of the result; for booleans, compares the sum with 0."""

    result: str

    def emit(self, values: Tiles, arrays: KernelArrays) -> Tiles:
        """Convert modulo the range of the dtype."""
        dtype = arrays.given[self.result].dtype
        return [value != 0 if dtype == boolean else value.to(dtype) for value in values]


@dataclass(frozen=True)
class Saturation(EndingTerm):
    """Converts to the nearest finite number of a result's dtype; see `saturated`."""

    result: str
    most_bits: int = 8

    def emit(self, values: Tiles, arrays: KernelArrays) -> Tiles:
        """Convert with saturation."""
        dtype = arrays.given[self.result].dtype
        return [saturated(value, dtype, self.most_bits) for value in values]


def saturated(value: Any, dtype: DType, most_bits: int = 8) -> Any:
    """Convert to the nearest finite number of a dtype of at most ``most_bits``; leave wider dtypes alone."""
    if dtype.bits > most_bits:
        return value
    is_rounded = value.dtype.is_float and not dtype.is_float
    return (nearest(value) if is_rounded else value).to(dtype, saturate=True)


@dataclass(frozen=True)
class Output(EndingTerm):
    """Stores each result to its array."""

    arrays: tuple[str, ...]

    def emit(self, values: Tiles, arrays: KernelArrays) -> Tiles:
        """Store each tile."""
        for array, value in zip(self.arrays, values, strict=True):
            arrays.store(array, value)
        return values


@dataclass(frozen=True)
class LateTerms:
    """The constants of the terms after the activation.

    Args:
        derivative: the activation whose derivative at ``multiply`` is the factor; None: the factor is
            ``multiply`` itself.
        order: the dimensions of the result, as the kernel sees them, in the order that numbers its elements
            for dropout; empty: no element is dropped.
        saturates: whether the result stays in the finite range of its dtype.
    """

    derivative: str | None = None
    order: tuple[int, ...] = ()
    saturates: bool = False


NO_LATE_TERMS = LateTerms()


def finishing(
    terms: Set[str],
    activation: str | None = None,
    late: LateTerms = NO_LATE_TERMS,
    bias: str = "bias",
    axes: str = "",
) -> list[EndingTerm]:
    """``dropout(activation(alpha * value + beta * C + bias) * Y) + R``, perhaps saturated.

    Args:
        terms: the terms of the call, among ``"alpha"``, ``"c"``, ``"bias"``, ``"sums"``, ``"multiply"``,
            ``"residual"``. With ``"sums"`` the argument of the activation is stored too, to S.
        activation: its name; None: none.
        late: the constants of the terms after it.
        bias: the array that is added before the activation.
        axes: the axes of C, S, Y, R and the result D; "": the declared ones.
    """
    c, s, y, r, d = (f"{name} {axes}".strip() for name in "CSYRD")
    before: dict[str, EndingTerm] = {"alpha": Alpha(), "c": Addend((c,), ("beta",)), "bias": Addend((bias,))}
    found = [term for name, term in before.items() if name in terms]
    found += [Output((s,))] if "sums" in terms else []
    found += [] if activation is None else [Nonlinearity(activation)]
    found += [Multiplier(y, late.derivative)] if "multiply" in terms else []
    found += [DropoutMask(d, late.order)] if late.order else []
    found += [Addend((r,))] if "residual" in terms else []
    return found + ([Saturation("D", most_bits=64)] if late.saturates else [])
