"""Comparison of an array with a product: it accepts every correct kernel and notices one lost k.

**Reference.**  Products are exact, and sums are in f64 (for f64 inputs: exact slices added in twice the
precision), rounded once to the output's dtype.  Integers are compared exactly.

**Bound, element by element.**  A sum of ``steps`` roundings, each at most ``u`` times the partial sum at that
moment, is off by about ``u * sqrt(steps) * P / sqrt(3)`` if the roundings are independent, where ``P`` bounds
the partial sums.  We take ``P = max over prefixes of |partial sum| + sqrt(sum (a b)^2)``; the second part
stands for other orders of summation.  The bound allows `SPREAD` times ``u * sqrt(steps) * P``, seven standard
deviations, which no correct element of any matrix reaches.  Three terms are added:

- a matrix unit aligns the products of one step to the largest one and truncates lower bits towards zero, so
  that these errors add up: ``2**-sum_bits`` times ``(k_step + 6) * steps * P``, or its sum over the periods
  of a promoted sum.  If it keeps far fewer bits than f32, this term would accept anything; then errors of
  products add up as far as their signs agree, and otherwise as independent errors do, and each step
  truncates the running sum: see `cut_off`;
- if all products of an element are equal, the roundings repeat: ``u * steps * P``;
- the output's rounding, ``u_out * |c|``, and the smallest number of either dtype.

The classical bound ``K * u * sum |a b|`` is hundreds of times larger and lets a whole lost tile pass.

**Lost terms.**  The residual of a lost k is no noise but the outer product of a column of A and a row of B; a
lost tile leaves the sum of the products of its columns and rows.  The residual is projected onto the patterns
of each k and of each run of 2, 4, ... 256 of them. A result is wrong, even if every element is within its
bound, if a projection is close to minus one (lost) or plus one (added twice) and lies `OUTLIER` deviations
off all others of its length.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from tilewright.argument_checks import legal
from tilewright.calls import launches
from tilewright.dtypes import DType, dtype, f32, f64, i32
from tilewright.errors import DTypeError, LaunchError, WrongResultError
from tilewright.functions.conversions import convert, keep_fraction
from tilewright.ir.mma import MmaAtom

# ---------------------------------------------------------------- arrays as arguments


Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
"""A NumPy array of a dtype that kernels know."""


def _is_array(value: object) -> bool:
    if not isinstance(value, np.ndarray):
        return False
    try:
        dtype(value.dtype)
    except DTypeError:
        return False
    return True


legal("Array", "a NumPy array of a dtype that kernels know", "NumPy arrays of such dtypes", _is_array)


# ---------------------------------------------------------------- compare


SPREAD = 4.0
"""Largest error in units of ``u * sqrt(steps) * P``; one standard deviation is at most 0.58 of them."""

OUTLIER = 8.0
"""Distance of a lost term's projection from the others, in deviations; of 10^5 normal ones none exceeds 5."""

_CHUNKS, _PANEL, _SAMPLE, _SLICES = 64, 1 << 22, 512, 4


@dataclass(frozen=True)
class Accumulation:
    """The order and precision in which a kernel adds up its products.

    Args:
        acc: dtype of the accumulator.
        k_step: number of products that one step adds before it rounds.
        sum_bits: number of bits that a step keeps of its addends, below the leading bit of the largest one;
            None: a step rounds once, and truncates nothing.
        precision: fraction bits of rounded inputs (tf32: 10); None: inputs are exact.
        rounding: the rounding of inputs, one of `ROUNDINGS` of atoms.
        period: number of products after which the sum is added to another one in ``acc``; None: never.

    Example:
        >>> from tilewright.targets.atoms import MMA_TF32
        >>> Accumulation.of(MMA_TF32)
        Accumulation(acc=f32, k_step=8, sum_bits=24, precision=10, rounding='nearest', period=None)
    """

    acc: DType = f32
    k_step: int = 1
    sum_bits: int | None = None
    precision: int | None = None
    rounding: str = "nearest"
    period: int | None = None

    @staticmethod
    def of(atom: MmaAtom, period: int | None = None) -> Accumulation:
        """Return the accumulation of an MMA atom.

        Args:
            atom: the atom.
            period: number of products after which the kernel adds its sum to another one in f32; None: never.
        """
        return Accumulation(atom.c_dtype, atom.step, atom.sum_bits, atom.precision, atom.rounding, period)

    @staticmethod
    def default(element: DType) -> Accumulation:
        """Return the accumulation of single multiply-adds in f32, f64, i32, or the dtype of wide integers."""
        if element.is_float:
            return Accumulation(f64 if element == f64 else f32)
        return Accumulation(element if element.bits > i32.bits else i32)


@dataclass(frozen=True)
class ElementComparison:
    """The outcome of comparing arrays element by element.

    Args:
        wrong: number of wrong elements.
        size: number of elements.
        name: the array with the element that is reported.
        index: its place.
    """

    wrong: int
    size: int
    name: str = ""
    index: tuple[int, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every element is right."""
        return not self.wrong

    @property
    def where(self) -> str:
        """The reported element."""
        return f"{self.name}[{', '.join(map(str, self.index))}]"

    def raise_if_wrong(self) -> None:
        """Raise if an element is wrong.

        Raises:
            WrongResultError: one is; the message names it.
        """
        if not self.ok:
            raise WrongResultError(str(self))


@dataclass(frozen=True)
class GemmComparison:
    """The outcome of a comparison.

    Args:
        ok: whether the array is the product.
        index: the element with the largest error relative to its bound.
        value: the value of that element.
        reference: the correct value.
        error: their difference.
        bound: the largest difference that a correct kernel can have there.
        reason: the error in words, or "".
        resolved: the share of the K positions whose loss would have been noticed.
    """

    ok: bool
    index: tuple[int, int]
    value: float
    reference: float
    error: float
    bound: float
    reason: str
    resolved: float

    def raise_if_wrong(self) -> None:
        """Raise if the array is not the product.

        Raises:
            WrongResultError: it is not; the message names the worst element.
        """
        if not self.ok:
            raise WrongResultError(str(self))

    def __str__(self) -> str:
        where = (
            f"element {self.index} is {self.value:.9g}, expected {self.reference:.9g}, "
            f"off by {self.error:.3g} with a bound of {self.bound:.3g}"
        )
        if not self.ok:
            return f"wrong: {self.reason}; {where}"
        blind = "" if self.resolved == 1 else f"; one lost term would show for {self.resolved:.0%} of all k"
        return f"correct: worst {where}{blind}"


NO_ELEMENTS = GemmComparison(True, (0, 0), 0.0, 0.0, 0.0, 0.0, "", 1.0)


@launches
def compare_gemm(a: Array, b: Array, c: Array, how: Accumulation | None = None) -> GemmComparison:
    """Compare ``c`` with ``a @ b``, element by element, under a derived bound.

    Args:
        a: (M, K); for large matrices compare some rows: ``compare_gemm(a[rows], b, c[rows])``.
        b: (K, N), of a's dtype or another.
        c: (M, N), the result of the kernel.
        how: how the kernel adds up; default: one multiply-add at a time.

    Raises:
        DTypeError: complex arrays.
        LaunchError: the shapes do not fit.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> a, b = rng.standard_normal((2, 64, 64), np.float32)
        >>> compare_gemm(a, b, a @ b).ok, compare_gemm(a, b, a[:, 1:] @ b[1:]).ok
        (True, False)
    """
    if a.ndim != 2 or b.ndim != 2 or c.shape != (a.shape[0], b.shape[1]) or a.shape[1] != b.shape[0]:
        raise LaunchError(f"compare_gemm: a {a.shape} @ b {b.shape} and c {c.shape} do not fit")
    if any(dtype(x.dtype).components != 1 for x in (a, b, c)):
        raise DTypeError("compare_gemm: complex a, b or c: compare the real and imaginary parts")
    left, right = dtype(a.dtype), dtype(b.dtype)
    element = left if left.is_float or (left.bits > right.bits and not right.is_float) else right
    how = how or Accumulation.default(element)
    if c.size == 0:
        return NO_ELEMENTS
    if element.is_float:
        return _compare_floats(inputs(a, how), inputs(b, how), c, how)
    # Integers are compared exactly, modulo the accumulator's width, as sums wrap around.
    narrow = max(a.dtype.itemsize, b.dtype.itemsize) <= 2 and a.shape[1] < 1 << 20
    exact: Any = np.float64 if narrow else np.int64
    wide = (a.astype(exact) @ b.astype(exact)).astype(np.int64).astype(how.acc.numpy)
    reference = convert(wide, how.acc, dtype(c.dtype))
    differ = np.asarray(c != reference)
    row, column = (int(i) for i in np.unravel_index(int(np.argmax(differ)), c.shape))
    value, expected = float(c[row, column]), float(reference[row, column])
    reason = f"{int(differ.sum())} of {c.size} elements differ" if differ.any() else ""
    return GemmComparison(not reason, (row, column), value, expected, abs(value - expected), 0.0, reason, 1.0)


@np.errstate(all="ignore")
def _compare_floats(a: Array, b: Array, c: Array, how: Accumulation) -> GemmComparison:
    panel, out = max(1, _PANEL // c.shape[1]), dtype(c.dtype)
    largest = float(_finfo(out).max)
    sampled = np.linspace(0, len(c) - 1, min(len(c), _SAMPLE)).astype(int)
    worst: tuple[float, tuple[int, int], tuple[float, ...]] | None = None
    wrong, finite, samples = 0, True, []
    for start in range(0, len(c), panel):
        rows = slice(start, start + panel)
        high, low, bound = gemm_bound(a[rows], b, how, out)
        given = c[rows].astype(np.float64)
        rounded = convert(high, f64, out).astype(np.float64)
        # An infinity of the right sign is right if the reference may exceed the largest number.
        same = (given == rounded) | (np.isnan(given) & np.isnan(rounded))
        same |= np.isinf(given) & (np.sign(given) == np.sign(high)) & (np.abs(high) + bound >= largest)
        is_exempt = same & ~(np.isfinite(rounded) & np.isfinite(given))
        error = np.where(is_exempt, 0.0, np.abs((given - high) - low))
        ratio = np.where(np.isfinite(error), error / bound, np.inf)
        wrong += int((ratio > 1).sum())
        finite &= bool(np.isfinite(high).all() and np.isfinite(given).all())
        m, n = (int(i) for i in np.unravel_index(int(np.argmax(ratio)), ratio.shape))
        if worst is None or ratio[m, n] > worst[0]:
            numbers = tuple(float(array[m, n]) for array in (given, high, error, bound))
            worst = (float(ratio[m, n]), (start + m, n), numbers)
        mine = sampled[(sampled >= start) & (sampled < start + panel)] - start
        samples.append([array[mine] for array in ((given - high) - low, high, bound)])
    assert worst is not None
    reason, resolved = "", 0.0
    if wrong:
        reason = f"{wrong} of {c.size} elements are beyond their bound"
    elif finite:
        residual, product, bound = (np.concatenate(parts) for parts in zip(*samples, strict=True))
        reason, resolved = lost_terms(a[sampled], b, residual, product, bound)
    value, reference, off, limit = worst[2]
    return GemmComparison(not reason, worst[1], value, reference, off, limit, reason, resolved)


def gemm_bound(
    a: Array, b: Array, how: Accumulation, out: DType, twice: bool = True
) -> tuple[Array, Array, Array]:
    """Return the product in twice the precision, and the largest error of a correct kernel.

    Args:
        a: (M, K) floats.
        b: (K, N) floats.
        how: how the kernel adds up.
        out: dtype of the kernel's result.
        twice: whether the product is needed in more than f64, where its factors are f64.

    Returns:
        The product's high and low part and the bound, f64 arrays of shape (M, N).
    """
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    (m, depth), n = a.shape, b.shape[1]
    edges = np.linspace(0, depth, max(1, min(_CHUNKS, depth // 16)) + 1).astype(int)
    total, prefix = np.zeros((m, n)), np.zeros((m, n))
    with np.errstate(all="ignore"):
        for start, stop in itertools.pairwise(edges):
            total += wide_a[:, start:stop] @ wide_b[start:stop]
            np.maximum(prefix, np.abs(total), out=prefix)
        squares = (wide_a * wide_a) @ (wide_b * wide_b)
        magnitude = prefix + np.sqrt(squares)
        steps, unit = max(1, -(-depth // how.k_step)), how.acc.unit_roundoff
        # Equal products round the same way again and again.
        spread = np.sqrt(np.maximum(squares - total * total / max(depth, 1), 0) / max(depth, 1))
        repeats = spread < unit * magnitude
        relative = np.where(repeats, unit * steps, SPREAD * unit * np.sqrt(steps))
        cut: Array | float = 0.0
        if how.sum_bits is not None:
            cut = cut_off(wide_a, wide_b, how, magnitude)
        high, low = total, np.zeros((m, n))
        if twice and a.dtype == np.float64:
            high, low = _double_product(a, b)
        smallest = float(_finfo(out.numpy).smallest_subnormal) + float(_finfo(how.acc.numpy).tiny)
        off = relative * magnitude + cut
        bound = off + out.unit_roundoff * (np.abs(high) + off) + smallest
    return high, low, bound


def cut_off(a: Array, b: Array, how: Accumulation, magnitude: Array) -> Array:
    """Return the largest truncation error of each element of a product by the steps of a matrix unit.

    With ``u = 2**-sum_bits * P``, ``P`` the largest partial sum of a period: a product loses up to ``u``
    towards zero, and the running sum up to ``2 * u`` in each step.  If steps keep fewer bits than f32, errors
    of products add up as far as the signs of the products agree, and otherwise as independent errors do.  If
    they keep more, all errors add up. A step may add its products in two groups, as on sm_80; each group
    truncates the accumulator (``u``), and the sum to 23 fraction bits (``2 * u``).

    Args:
        a: (M, K) in f64.
        b: (K, N) in f64.
        how: how the kernel adds up.
        magnitude: bound of the partial sums over all of K.
    """
    assert how.sum_bits is not None
    unit, depth = 2.0**-how.sum_bits, a.shape[1]
    period = min(how.period or depth, depth)
    steady, noise = np.zeros(magnitude.shape), np.zeros(magnitude.shape)
    for start in range(0, depth, max(period, 1)):
        left, right = a[:, start : start + period], b[start : start + period]
        largest = magnitude
        if period < depth:
            largest = np.abs(left @ right) + np.sqrt((left * left) @ (right * right))
        steps = -(-left.shape[1] // how.k_step)
        if how.sum_bits > how.acc.mantissa:
            steady += unit * largest * (how.k_step + 6) * steps
            continue
        agreeing = np.abs(np.sign(left) @ np.sign(right))
        steady += unit * largest * (2 * steps + agreeing)
        noise += left.shape[1] * (unit * largest) ** 2
    return steady + SPREAD * np.sqrt(noise)


def _finfo(element: Any) -> Any:
    kind = dtype(element)
    return ml_dtypes.finfo(kind.numpy if kind.is_float else np.float64)  # type: ignore[no-untyped-call]


def inputs(values: Array, how: Accumulation) -> Array:
    """Return the inputs, rounded to the precision that the kernel multiplies."""
    if values.dtype == np.float64 or how.precision is None:
        return values
    return keep_fraction(values.astype(np.float32), how.precision, how.rounding)


def _double_product(a: Array, b: Array) -> tuple[Array, Array]:
    """Return ``a @ b`` of f64 matrices in twice the precision, as high and low part.

    Each matrix is cut into slices with few enough bits that products of slices add up without rounding.

    Source: Ozaki, Ogita, Oishi, Rump, "Error-free transformations of matrix multiplication", 2012.
    """
    bits = (52 - max(a.shape[1], 1).bit_length()) // 2
    left, right = _slices(a, 1, bits), _slices(b, 0, bits)
    high, low = np.zeros((a.shape[0], b.shape[1])), np.zeros((a.shape[0], b.shape[1]))
    for order in range(2 * len(left) - 1):
        for at in range(max(0, order - len(left) + 1), min(order, len(left) - 1) + 1):
            piece = left[at] @ right[order - at]
            total = high + piece
            back = total - high
            low += (high - (total - back)) + (piece - back)
            high = total
    total = high + low
    return total, low - (total - high)


def _slices(values: Array, axis: int, bits: int) -> list[Array]:
    """Cut an array into slices of ``bits`` bits, relative to the largest element along ``axis``."""
    rest = values.copy()
    found = []
    for _ in range(_SLICES - 1):
        largest = np.abs(rest).max(axis=axis, keepdims=True, initial=0.0)
        # Adding and subtracting a large power of two leaves the leading bits.
        unit = np.exp2(np.ceil(np.log2(np.where(largest > 0, largest, 1.0))) + 53 - bits)
        lead = (rest + unit) - unit
        found.append(lead)
        rest = rest - lead
    return [*found, rest]


def lost_terms(a: Array, b: Array, residual: Array, product: Array, bound: Array) -> tuple[str, float]:
    """Return a reason if terms look lost or repeated, and the share of k whose loss would show."""
    columns = np.linspace(0, product.shape[1] - 1, min(product.shape[1], _SAMPLE)).astype(int)
    log = np.log(bound[:, columns])
    scale_m, scale_n = np.exp(log.mean(axis=1) - log.mean() / 2), np.exp(log.mean(axis=0) - log.mean() / 2)
    left = a.astype(np.float64) / scale_m[:, None]
    right = b[:, columns].astype(np.float64) / scale_n
    alone = np.abs(left).max(axis=0) * np.abs(right).max(axis=1) > 2
    scale = np.outer(scale_m, scale_n)
    noise, whole = (_centred(_centred(x[:, columns] / scale, 0), 1) for x in (residual, product))
    left, right = _centred(left, 0), _centred(right, 1)
    power = float((whole * whole).sum())
    if power > 0:
        # A common relative error of all elements is no lost term.
        noise = noise - whole * ((noise * whole).sum() / power)
    energy = np.linalg.norm(left, axis=0) * np.linalg.norm(right, axis=1)
    usable = energy > 1e-9 * energy.max(initial=0.0)
    overlap = np.einsum("ik,ik->k", left, noise @ right.T) * usable
    energy = np.where(usable, energy, 0.0)
    resolved = alone.copy()
    for width in (1 << w for w in range(9)):
        if width > 1 and width > len(energy) // 16:
            break
        overlaps, energies = _windows(overlap, width), _windows(energy * energy, width)
        at = np.flatnonzero(energies > 0)
        if not len(at):
            break
        projection = overlaps[at] / np.sqrt(energies[at])
        off = np.abs(projection - np.median(projection))
        deviation = float(np.median(off)) / 0.6745
        share = overlaps[at] / energies[at]
        lost = (np.abs(np.abs(share) - 1) < 0.5) & (off > OUTLIER * deviation)
        if lost.any():
            worst = int(np.argmax(np.where(lost, off, 0)))
            which = f"k = {at[worst]}" + (f" to {at[worst] + width - 1}" if width > 1 else "")
            what = "is missing" if share[worst] < 0 else "was added twice"
            return f"of the sum, {which} {what}", float(resolved.mean())
        if width == 1:
            resolved |= energy > 1.5 * OUTLIER * deviation
    return "", float(resolved.mean()) if len(resolved) else 1.0


def _windows(values: Array, width: int) -> Array:
    """Return the sums of ``width`` neighbours, from every start."""
    if width == 1:
        return values
    total = np.concatenate([[0.0], np.cumsum(values)])
    return np.asarray(total[width:] - total[:-width])


def _centred(values: Array, axis: int) -> Array:
    """Subtract the mean along ``axis``, if there are at least four values."""
    return values - values.mean(axis=axis, keepdims=True) if values.shape[axis] >= 4 else values
