"""`scaled_mm`: products of operands of different widths, with scales, in one kernel."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from tilewright.calls import launches
from tilewright.dtypes import DType
from tilewright.errors import LaunchError
from tilewright.namespaces import part
from tilewright.ops.rearranged_weights import RearrangedWeights
from tilewright.ops.replay import Replay, called, repeated
from tilewright.ops.scales import LARGEST, SCALES, TINIEST, number_of
from tilewright.ops.wanted import NO_DROPOUT, Wanted, dropout_of, said
from tilewright.runtime.plans import Plans
from tilewright.schedule.schedule import Reduction, Schedule, SplitK

ARRAYS = ("a", "b", "out", "scale_a", "scale_b", "bias", "zero_b", "c", "multiply", "residual")
"""The arrays of a call."""

PLAN = "tilewright.ops.scaled_planning:plan_scaled"
"""Checks everything, and plans. Imported at the first call."""

_PLANS: Plans[Replay] = Plans()


class ScaledExtras(NamedTuple):
    """Arguments of `scaled_mm` that `matmul` does not have.

    Args:
        group: number of neighbours along K that share a scale; None: there are no groups.
        prepass: whether operand B is widened in memory first; None: if that is faster.
    """

    group: int | None = None
    prepass: bool | None = None


@repeated(_PLANS, ARRAYS)
@launches
def scaled_mm(
    a: Any,
    b: Any,
    out: Any = None,
    *,
    scale_a: Any = None,
    scale_b: Any = None,
    zero_b: Any = None,
    group: int | None = None,
    c: Any = None,
    beta: float | None = None,
    bias: Any = None,
    activation: str | None = None,
    multiply: Any = None,
    derivative: str | None = None,
    dropout: float = 0.0,
    seed: int = 0,
    offset: int = 0,
    residual: Any = None,
    out_dtype: DType | str | None = None,
    prepass: bool | None = None,
    schedule: Schedule | None = None,
    split_k: SplitK | None = None,
    reduction: Reduction | None = None,
    batch_invariant: bool = False,
    target: str | None = None,
    stream: Any = None,
) -> Any:
    """``out = activation(scale_a * (a @ b) * scale_b + bias)``, for operands of the same or different widths.

    With all terms it is ``out = dropout(activation(scale_a * (a @ b) * scale_b + beta * c + bias) *
    multiply) + residual``.

    With ``group``, each run of ``group`` neighbours along K in a column of ``b`` has its own scale and zero
    point: ``out = activation(scale_a * (a @ w) + bias)``, where ``w[k, n] = (b[k, n] - zero_b[k // group, n])
    * scale_b[k // group, n]`` is computed in, and rounded to, the dtype of the multiplication.

    Scales may belong to blocks of 128 places along K, or to blocks of 128 places along K by 128 rows or
    columns: then ``out = activation(sum over blocks of scale_a * scale_b * (a @ b) + bias)``.  The sum over a
    block is multiplied by the scales of that block and added to those of the other blocks, in f32.

    The MX formats have groups of 32 neighbours, whose scales are powers of 2 (`f8e8m0`).  For mxfp4, ``b`` is
    `packed` f4e2m1.  Each product of a number and its scale is rounded once, and is exact unless it leaves
    the range of the dtype of the multiplication; the scale 255 is NaN.

    One kernel reads the narrower operand in its own dtype, and converts it exactly before the multiplication,
    on Hopper in registers.  If it is faster, a separate kernel converts ``b`` in memory first.  On Hopper
    this happens for thousands of rows of ``a``, and for 4-bit weights in groups from 257 rows on.  On
    processors it happens for groups whose length is no multiple of 8, and from 512 rows on for group lengths
    that only tiles of less than 32 along K divide, e.g. 136.  See ``prepass``.

    Sums are in f32 (i32 for two i8); the rest is computed in f32 and rounded once.

    A result of 8 bits saturates: numbers beyond its range, infinities included, become the nearest number
    that it has.  Integer results are rounded to the nearest integer, ties to even.  Wider results overflow to
    infinity.  NaN in the operands, the scales or the bias gives NaN, or 0 in an integer result.

    Args:
        a: array (..., M, K) of f32, f16, bf16, f8e4m3, f8e5m2, f8e4m3fnuz, f8e5m2fnuz or i8, or a vector
            (K,); of any strides.
        b: array (..., K, N) of one of these, or a vector (K,); of any strides; or `packed` numbers of 4 bits,
            i4 or f4e2m1, of two dimensions, best contiguous along K.  Shapes follow NumPy's rules, as in
            `matmul`.  Different dtypes are multiplied as the wider one, i8 and fp8 as f16; f16 and bf16 are
            not mixed.  Tensor cores of Hopper multiply f8e4m3 and f8e5m2 as they are, alone or mixed, if both
            arrays are contiguous along K.  Matrix cores of AMD's GPUs multiply two arrays of one fp8 dtype as
            they are if they have that dtype.  Other products of fp8 on GPUs, and mixtures of fp8 dtypes on
            processors, are computed as f16.
        out: array to write; default: a new array of the framework of ``a``.
        scale_a: a number, or an array of f32, f16 or bf16: of one element; or with a scale for each row of
            ``a``, of the shape of ``a`` without K or with 1 in the place of K; or with a scale for each row
            and block of K, (..., M, ceil(K / 128)); or for each block of rows and of K, (..., ceil(M / 128),
            ceil(K / 128)).
        scale_b: the same for each column of ``b``; axes of blocks are in the order of the axes of ``b``:
            (..., ceil(K / 128), N) or (..., ceil(K / 128), ceil(N / 128)).  With ``group`` an array (K /
            group, N), also of f8e8m0.
        zero_b: zero points, with ``group``: they are subtracted from the numbers of ``b`` before these are
            scaled.  An array (K / group, N) of f32, f16, bf16, i8 or u8.
        group: number of neighbours along K that share a scale; a divisor of K.
        c: array that is broadcast to the result, of one of the dtypes of ``a``; it may be ``out``.
        beta: a number, as in `matmul`: the factor of ``c``, or of ``out`` if there is no ``c``.
        bias: array (N,) of f32, f16 or bf16, added to each row.
        activation: as in `matmul`.
        multiply: array that is broadcast to the result, as in `matmul`, of one of the dtypes of ``a``.
        derivative: as in `matmul`: multiplies by ``derivative'(multiply)``.
        dropout: as in `matmul`.
        seed: the seed of dropout, as in `matmul`.
        offset: the offset of dropout, as in `matmul`.
        residual: array that is broadcast to the result and added last, of one of the dtypes of ``a``; it may
            be ``out``.
        out_dtype: dtype of a new result, one of those of ``a``; default: the dtype in which operands are
            multiplied, f16 for fp8, and f32 for two i8.
        prepass: whether a separate kernel converts ``b`` in memory before the product.  It needs memory for
            the converted numbers: twice the bytes of ``b``, or four times for numbers of 4 bits.  Default: if
            it is faster, as above.
        schedule: how it is computed; default: chosen for the arrays' shapes and the machine.
        split_k: number of parts of K, as in `matmul`, or ``"auto"``, or, without scales of blocks,
            ``"stream"``. With this or one of the next two arguments the kernel of the product converts ``b``
            unless ``prepass=True``.
        reduction: how the partial sums are added, as in `matmul`.
        batch_invariant: whether the bits of a row must not depend on the number of rows, as in `matmul`.
        target: ``"cpu"``, ``"cuda"`` or ``"reference"``; default: where the arrays lie.
        stream: the CUDA stream; default: the framework's current stream.

    Returns:
        ``out``.

    Raises:
        LaunchError: shapes or devices do not fit, or ``out`` shares memory with an array that is read.
        DTypeError: an unsupported dtype or mixture.

    Example:
        >>> import ml_dtypes
        >>> import numpy as np
        >>> import tilewright as tw
        >>> a = np.float16([[1, 2], [3, 4]])
        >>> weights = np.array([[1, 0.5], [0, 448]], ml_dtypes.float8_e4m3fn)
        >>> tw.scaled_mm(a, weights, scale_b=np.float32([2, 0.25]), target="reference")
        array([[  2.  , 224.1],
               [  6.  , 448.5]], dtype=float16)
        >>> tw.scaled_mm(a, weights, scale_a=10.0, out_dtype="i8", target="reference")
        array([[ 10, 127],
               [ 30, 127]], dtype=int8)

        Weights of 4 bits, in two groups along K:

        >>> codes = tw.packed(tw.pack([[-8, 7, 1, 2]], tw.i4).T, tw.i4)
        >>> scales = np.float16([[0.5], [2]])
        >>> tw.scaled_mm(np.float16([1, 1, 1, 1]), codes, scale_b=scales, group=2, target="reference")
        array([5.5], dtype=float16)

        Weights of mxfp4, of which 32 have the scale 2:

        >>> codes = tw.packed(tw.pack(np.full((1, 32), -1.5), tw.f4e2m1).T, tw.f4e2m1)
        >>> scales = np.full((1, 1), 2, ml_dtypes.float8_e8m0fnu)
        >>> tw.scaled_mm(np.ones((1, 32), np.float16), codes, scale_b=scales, group=32, target="reference")
        array([[-96.]], dtype=float16)
    """
    if isinstance(b, RearrangedWeights):
        if any(one is not None for one in (scale_b, zero_b, group)):
            raise LaunchError(
                f"scaled_mm: b is {b!r}, which already contain scale_b, zero_b and group; nearest legal "
                "choice: leave these arguments out"
            )
        b, scale_b, zero_b, group = b.b, b.scale_b, b.zero_b, b.group
    number, scales = _numbers_apart((scale_a, scale_b))
    arrays = (a, b, out, *scales, bias, zero_b, c, multiply, residual)
    dropped, drawn = NO_DROPOUT, NO_DROPOUT.words
    numbers: tuple[Any, ...] = (number,)
    if beta != 0 and (c is not None or beta is not None):  # else c is not read, and the kernel has no beta
        numbers = (number, 1.0 if beta is None else beta)
    if dropout or seed or offset:
        dropped = dropout_of("scaled_mm", dropout, seed, offset)
        numbers, drawn = (*numbers, *dropped.numbers), dropped.words
    split = (split_k, reduction, batch_invariant)
    late = (said(beta), derivative, drawn)
    words = (number == 1, activation, out_dtype, schedule, target, group, prepass, *split, *late)

    def first(located: Any) -> Any:
        how = (schedule, target, *split)
        wanted = Wanted(number, beta, activation, "exact", out_dtype, *how, derivative, False, dropped)
        given, extras = dict(zip(ARRAYS, arrays, strict=True)), ScaledExtras(group, prepass)
        return part(PLAN)(given, wanted, extras, located).launch(stream)

    return called(_PLANS, arrays, words, numbers, stream, first)


def _numbers_apart(scales: tuple[Any, Any]) -> tuple[float, list[Any]]:
    """The product of the scales that are numbers, and the array of each scale, or None for a number."""
    numbers, arrays, product = dict[str, float](), list[Any](), 1.0
    for name, scale in zip(SCALES, scales, strict=True):
        number = None if scale is None else number_of("scaled_mm", name, scale)
        arrays.append(scale if number is None else None)
        if number is not None:
            numbers[name] = number
            product *= number
    fits = TINIEST <= abs(product) <= LARGEST
    if not fits and all(number and math.isfinite(number) for number in numbers.values()):
        beyond, bound = ("overflows", LARGEST) if abs(product) > LARGEST else ("underflows", TINIEST)
        nearest = f"{math.copysign(bound, product)}"
        if all(TINIEST <= abs(number) <= LARGEST for number in numbers.values()):
            nearest = "arrays of one element; the results are multiplied by one after the other"
        raise LaunchError(
            f"scaled_mm: {' times '.join(numbers)} is {product:.4g}, which {beyond} f32; "
            f"nearest legal choice: {nearest}"
        )
    return product, arrays
