"""The kernels of `einsum`: products of matrices that may be views of arrays of more dimensions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tilewright.dataflow.nodes import EXACT, SUMMED
from tilewright.dtypes import DType, f32, u32, u64
from tilewright.lang.asynchrony import prior_grid_wait
from tilewright.lang.dataflow.loops import steps, tiles, zeros
from tilewright.lang.dataflow.positions import positions
from tilewright.lang.derivatives import derivative as slope
from tilewright.lang.exact_functions import round as nearest
from tilewright.lang.operations import require
from tilewright.lang.random import dropout
from tilewright.ops.contraction import Contraction, Seen
from tilewright.ops.products import ACTIVATIONS, with_halves
from tilewright.runtime.decorator import kernel
from tilewright.runtime.kernel import Kernel

IN_KERNEL = ("a", "b", "bias", "multiply", "residual", "out")
"""The arrays of the kernel, in its order; for one that is not given ``out`` stands, and is not read."""

_FIRST = {"m": "out", "n": "out", "k": "a"}
"""The array over which a group of axes is stepped along."""


NUMBERS = ("alpha", "seed", "offset", "threshold", "scale")
"""The numbers of the kernel, behind its arrays."""


@dataclass(frozen=True)
class Ending:
    """What is done with the sums.

    Args:
        terms: which of the arrays and numbers there are.
        activation: its name; None: none.
        derivative: of which activation, if of one, the derivative of what is multiplied is taken.
        saturate: whether the result stays in the finite range of its dtype.
    """

    terms: frozenset[str]
    activation: str | None = None
    derivative: str | None = None
    saturate: bool = False


@lru_cache(maxsize=256)
def contraction(made: Contraction, number: DType) -> Kernel:
    """``D = dropout(activation(alpha * A @ B + bias) * multiply) + residual`` of arrays seen as matrices.

    Args:
        made: how they are seen.
        number: the dtype in which all but the sums is computed, and of alpha and scale.
    """
    seen, declared = _declared(made, dict(zip(IN_KERNEL, "ABXYRD", strict=True)), number)

    @kernel(**declared)
    def gemm_contraction(
        A: Any,
        B: Any,
        X: Any,
        Y: Any,
        R: Any,
        D: Any,
        alpha: Any,
        seed: Any,
        offset: Any,
        threshold: Any,
        scale: Any,
        *,
        precision: str,
        ending: Ending,
    ) -> None:
        whole = _all_matrices((A, B, X, Y, R, D), seen)
        numbers = dict(zip(NUMBERS, (alpha, seed, offset, threshold, scale), strict=True))
        for *batch, m, n in tiles(whole["out"]):
            acc, at = zeros(), {"batch": batch, "m": m, "n": n}
            for k in steps(whole["a"].shape[-1]):
                left, right = (_tile(whole, made, name, {**at, "k": k}) for name in "ab")
                acc += left.matmul(right, precision=precision)
            value: Any = acc.to(number) if ending.terms else acc
            whole["out"][(*batch, m, n)] = _ended(value, D, whole, made, at, numbers, ending)

    return gemm_contraction


@lru_cache(maxsize=64)
def contraction_in_halves(made: Contraction) -> Kernel:
    """The same of operands that are split in halves, as `products.in_halves` has them.

    Args:
        made: how arrays are seen; the operands through no view.
    """
    names = dict(zip(IN_KERNEL[2:], "XYRD", strict=True))
    halves = {name: _dimensions(name.upper(), made.of(name)) for name in "ab"}
    seen, declared = _declared(made, names, f32)
    lead = {name: "".join(f"B{number} " for number in made.of(name).batch) for name in "ab"}
    operands = {**dict.fromkeys(("A1", "A2"), halves["a"]), **dict.fromkeys(("B1", "B2"), halves["b"])}
    units = {"p": f"{lead['a']}M", "q": f"{lead['b']}N"}

    @kernel(**operands, **units, **declared)
    def gemm_contraction_in_halves(
        A1: Any,
        A2: Any,
        B1: Any,
        B2: Any,
        p: Any,
        q: Any,
        X: Any,
        Y: Any,
        R: Any,
        D: Any,
        alpha: Any,
        seed: Any,
        offset: Any,
        threshold: Any,
        scale: Any,
        *,
        both: bool,
        ending: Ending,
    ) -> None:
        whole = _all_matrices((A1, B1, X, Y, R, D), seen)
        numbers = dict(zip(NUMBERS, (alpha, seed, offset, threshold, scale), strict=True))
        for *batch, m, n in tiles(whole["out"]):
            prior_grid_wait()
            acc, at = zeros(precision=SUMMED if both else EXACT), {"batch": batch, "m": m, "n": n}
            of_a, of_b = (tuple(batch[number] for number in made.of(name).batch) for name in "ab")
            for k in steps(A1.shape[-1]):
                a, b = [half[(*of_a, m, k)] for half in (A1, A2)], [half[(*of_b, k, n)] for half in (B1, B2)]
                acc = with_halves(acc, a, b, both=both)
            unit = p[(*of_a, m, None)] * q[(*of_b, n)]
            value = acc * unit * unit  # the square of the unit may be out of range
            whole["out"][(*batch, m, n)] = _ended(value, D, whole, made, at, numbers, ending)

    return gemm_contraction_in_halves


def _declared(
    made: Contraction, names: Mapping[str, str], number: DType
) -> tuple[dict[str, Seen], dict[str, Any]]:
    """How arrays are seen, and what a kernel declares of those that are named, and of its numbers."""
    seen = {name: made.of(name) for name in IN_KERNEL}
    declared: dict[str, Any] = {own: _dimensions(own, seen[name]) for name, own in names.items()}
    kinds = (number, u64, u64, u32, number)
    return seen, {**declared, **dict(zip(NUMBERS, kinds, strict=True))}


def _ended(
    value: Any,
    out: Any,
    whole: Mapping[str, Any],
    made: Contraction,
    at: Mapping[str, Any],
    numbers: Mapping[str, Any],
    ending: Ending,
) -> Any:
    """What is stored, of the sums of a tile."""
    terms, number = ending.terms, value.dtype
    if "alpha" in terms:
        value = numbers["alpha"] * value
    if "bias" in terms:
        value = value + _tile(whole, made, "bias", at).to(number)
    if ending.activation is not None:
        value = ACTIVATIONS[ending.activation](value)
    if "multiply" in terms:
        factor = _tile(whole, made, "multiply", at).to(number)
        value = value * (factor if ending.derivative is None else slope(ending.derivative, factor))
    if "dropout" in terms:
        drawn = (numbers[name] for name in ("threshold", "scale", "seed", "offset"))
        value = dropout(value, _index(out, made, at), *drawn)
    if "residual" in terms:
        value = value + _tile(whole, made, "residual", at).to(number)
    if ending.saturate:
        is_rounded = value.dtype.is_float and not out.dtype.is_float
        value = (nearest(value) if is_rounded else value).to(out.dtype, saturate=True)
    return value


def _dimensions(array: str, seen: Seen) -> str:
    """The names of an array's dimensions: outer ones with equally many elements inside have one name."""
    found = [f"B{number}" for number in seen.batch]
    for group, inner in seen.groups:
        name = group.upper()
        found.append(f"{name}{math.prod(inner)}" if inner else name)
        found += [f"{name}{array}{number}" for number in range(len(inner))]
    return " ".join(found)


def _all_matrices(arrays: Sequence[Any], seen: Mapping[str, Seen]) -> dict[str, Any]:
    """The arrays of a kernel as batches of matrices, by name, whose extents fit each other."""
    given = zip(IN_KERNEL, arrays, strict=True)
    whole = {name: _matrices(array, seen[name]) for name, array in given}
    _require_extents(whole, seen)
    return whole


def _matrices(array: Any, seen: Seen) -> Any:
    """The batches of matrices that an array is seen as."""
    index = [slice(None)] * len(seen.batch)
    for _, inner in seen.groups:
        index.append(slice(None))
        for extent in inner:
            require(array.shape[len(index)] == extent, f"{extent} elements, as the kernel was made for")
            index.append(slice(0, extent))
    if any(inner for _, inner in seen.groups):
        array = array[tuple(index)]
    for place, (_, inner) in enumerate(seen.groups, len(seen.batch)):
        if inner:
            array = array.merge(place, 1 + len(inner))
    return array


def _require_extents(whole: Mapping[str, Any], seen: Mapping[str, Seen]) -> None:
    """Views have as many rows, columns and K as the arrays that these are stepped along of."""
    for name, own in seen.items():
        for group, _ in own.groups:
            other = _FIRST[group]
            if own.count(group) == seen[other].count(group):
                continue
            counts = (whole[one].shape[seen[one].place(group)] for one in (name, other))
            require(next(counts) == next(counts), f"{name} and {other} have as many elements along {group}")


def _tile(whole: Mapping[str, Any], made: Contraction, name: str, at: Mapping[str, Any]) -> Any:
    """The part of an array that a tile is computed from.

    Args:
        whole: the arrays as matrices.
        made: how they are seen.
        name: of the array.
        at: the place along each group of axes, and of the batches, which are ``"batch"``.
    """
    seen = made.of(name)
    lead = tuple(at["batch"][number] for number in seen.batch)
    found = whole[name][(*lead, *(at[group] for group, _ in seen.groups))]
    return found if len(seen.groups) > 1 or seen.has("n") else found[:, None]


def _index(out: Any, made: Contraction, at: Mapping[str, Any]) -> Any:
    """The number of each element of a tile of the result, in the order of its subscripts."""
    seen, steps, count = made.of("out"), {}, 1
    for dim in reversed(made.order):
        steps[dim], count = count, count * out.shape[dim]
    digits = [positions(span) for span in at["batch"]]
    for group, inner in seen.groups:
        rest, found = positions(at[group]), []
        for extent in reversed(inner):
            found.append(rest % extent)
            rest = rest // extent
        digits += [digit[:, None] if group == "m" else digit for digit in (rest, *reversed(found))]
    terms = [digit.to(u64) * steps[dim] for dim, digit in enumerate(digits)]
    index = terms[-1]
    for term in terms[:-1]:
        index = index + term
    return index
