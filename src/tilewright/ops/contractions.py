"""The kernels of `einsum`: products of matrices that may be views of arrays of more dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

from tilewright.dtypes import DType, f32, u32, u64
from tilewright.lang.dataflow.indexing import positions
from tilewright.lang.functions import derivative as slope
from tilewright.lang.functions import dropout
from tilewright.ops.contraction import Contraction
from tilewright.ops.ending import Conversion, Output, Saturation, Units
from tilewright.ops.tiled_product import (
    Algebra,
    EndingTerm,
    KernelArrays,
    Operand,
    TiledProduct,
    Tiles,
    kernel_of,
)
from tilewright.runtime.kernel import Kernel

IN_KERNEL = ("a", "b", "bias", "multiply", "residual", "out")
"""The arrays of the kernel, in its order; for one that is not given ``out`` stands, and is not read."""

NAMES = dict(zip(IN_KERNEL, "ABXYRD", strict=True))
"""What the kernel calls them."""

NUMBERS = ("alpha", "seed", "offset", "threshold", "scale")
"""The numbers of the kernel, after its arrays."""

Ending: TypeAlias = tuple[EndingTerm, ...]
"""What is done with the sums before they are stored: a constant of the kernels."""


@dataclass(frozen=True)
class Multiplier(EndingTerm):
    """Multiplies by an array, or by the derivative of an activation at the elements of the array."""

    array: str
    derivative: str | None = None

    def _emit(self, values: Tiles, arrays: KernelArrays) -> Tiles:
        factor = arrays.tile(self.array).to(values[0].dtype)
        factor = factor if self.derivative is None else slope(self.derivative, factor)
        return [value * factor for value in values]


@dataclass(frozen=True)
class DropoutMask(EndingTerm):
    """Sets elements to 0 by their numbers in the result, and scales the others.

    Args:
        result: the array of the result.
        order: its dimensions, as the kernel sees them, in the order that numbers its elements.
    """

    result: str
    order: tuple[int, ...]

    def _emit(self, values: Tiles, arrays: KernelArrays) -> Tiles:
        steps, count = dict[int, Any](), 1
        for dim in reversed(self.order):
            steps[dim], count = count, count * arrays.given[self.result].shape[dim]
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


@lru_cache(maxsize=256)
def contraction(made: Contraction, number: DType) -> Kernel:
    """``D = dropout(activation(alpha * A @ B + bias) * multiply) + residual`` of arrays seen as matrices.

    Args:
        made: how they are seen.
        number: the dtype in which all but the sums is computed, and of alpha and scale.
    """

    @kernel_of(**_declared(made, NAMES, number))
    def gemm_contraction(*, precision: str, ending: Ending) -> TiledProduct:
        only_saturates = not ending or isinstance(ending[0], Saturation)
        terms = [*([] if only_saturates else [Conversion(number)]), *ending, Output(("D",))]
        return TiledProduct(Operand(("A",)), Operand(("B",)), terms, Algebra(precision=precision))

    return gemm_contraction


@lru_cache(maxsize=64)
def contraction_in_halves(made: Contraction) -> Kernel:
    """The same of operands that are split in halves, as `products.in_halves` has them.

    Args:
        made: how arrays are seen; the operands through no view.
    """
    declared, batch_of_a, batch_of_b = dict[str, str](), *(made.of(name).lead for name in "ab")
    for name in "ab":
        declared |= dict.fromkeys((f"{name.upper()}1", f"{name.upper()}2"), made.of(name).axes)
    declared |= {"p": f"{batch_of_a}m", "q": f"{batch_of_b}n"}
    rest = {name: NAMES[name] for name in IN_KERNEL[2:]}

    @kernel_of(**declared, **_declared(made, rest, f32))
    def gemm_contraction_in_halves(*, both: bool, ending: Ending) -> TiledProduct:
        terms = (Units(f"p {batch_of_a}m new", "q"), *ending, Output(("D",)))
        a, b = Operand(("A1", "A2")), Operand(("B1", "B2"))
        return TiledProduct(a, b, terms, Algebra().in_halves(both=both), waits=True)

    return gemm_contraction_in_halves


def _declared(made: Contraction, names: Mapping[str, str], number: DType) -> dict[str, str | DType]:
    """What a kernel declares of the arrays that are named, and of its numbers."""
    arrays = {own: made.of(name).axes for name, own in names.items()}
    kinds = (number, u64, u64, u32, number)
    return {**arrays, **dict(zip(NUMBERS, kinds, strict=True))}
