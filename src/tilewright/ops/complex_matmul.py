"""`complex_matmul`: products of complex matrices, interleaved or in two planes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.calls import launches
from tilewright.dtypes import DType
from tilewright.namespaces import part
from tilewright.ops.replay import Replay, called, repeated
from tilewright.runtime.plans import Plans
from tilewright.schedule.schedule import Reduction, Schedule, SplitK

PLAN = "tilewright.ops.complex_planning:plan_words"
"""Plans products of complex arrays. Imported when the first are multiplied."""

PARTS = ("a", "a_im", "b", "b_im", "c", "c_im", "out", "out_im")
"""The arrays of a call; for an interleaved array the first has both parts, and the second is None."""

_PLANS: Plans[Replay] = Plans()


@repeated(_PLANS, PARTS)
@launches
def complex_matmul(
    a: Any,
    b: Any,
    c: Any = None,
    *,
    alpha: complex = 1,
    beta: complex | None = None,
    out: Any = None,
    conjugate_a: bool = False,
    conjugate_b: bool = False,
    method: str = "4m",
    precision: str = "exact",
    out_dtype: DType | str | None = None,
    schedule: Schedule | None = None,
    split_k: SplitK | None = None,
    reduction: Reduction | None = None,
    batch_invariant: bool = False,
    target: str | None = None,
    stream: Any = None,
) -> Any:
    """``out = alpha * op(a) @ op(b) + beta * c`` of complex numbers, where ``op`` may conjugate.

    Every array is interleaved (complex numbers of NumPy, PyTorch or CuPy) or planar: a pair ``(re, im)`` of
    real arrays of one shape, e.g. of bf16, which has no complex dtype. One kernel computes both parts; sums
    of real products are in f32 (f64 for f64). TMA cannot copy arrays of stride 2. On GPUs a launch therefore
    first splits interleaved operands of a large product into planes if that is estimated to be faster; the
    planes are in memory that is kept for the stream.

    Each part of the result is a sum of 2 K products. Let ``P`` bound the partial sums, and ``u`` be
    ``2**-24`` (``2**-53`` for f64). If roundings are independent, a part is off by at most ``4 u sqrt(2 K)
    P``, and is rounded once.

    Args:
        a: array (..., M, K), or a vector (K,), of c32 (``torch.complex32``), c64 or c128; or a pair of real
            arrays of f64, f32, f16 or bf16. Any strides, so that a transpose is ``a.T``.
        b: array (..., K, N) whose parts are of the same dtype. Leading dimensions are batches, which are
            broadcast against those of ``a``.
        c: array that is broadcast to the result; it may be ``out``.
        alpha: a number, real or complex. With 0, ``a`` and ``b`` are checked, but not read.
        beta: a number, real or complex: the factor of ``c``, or of the old values of ``out`` if there is no
            ``c``; default: 1 if ``c`` is given. With 0, ``c`` is checked, but not read.
        out: array to write, or a pair; default: a new array of the framework of ``a``, or a pair if ``a`` is.
        conjugate_a: whether to multiply the conjugate of ``a``.
        conjugate_b: whether to multiply the conjugate of ``b``.
        method: ``"4m"``, four products of real matrices, as accurate as complex arithmetic; or ``"3m"``,
            three products, one of which multiplies sums ``re + im`` that a launch writes before. With
            ``"3m"`` real parts have the errors of ``re re`` and ``im im``. Imaginary parts have the errors of
            all three products and ``8 u_in sqrt(sum (product of sums)^2)``, where ``u_in`` is the unit
            roundoff of the dtype of the parts, even if the imaginary parts are small. Sums of f16 may exceed
            65504.
        precision: ``"exact"``, or the form in which tensor cores multiply parts of f32: ``"f32"`` (two halves
            of 11 bits each, about as exact as multiply-adds of f32), ``"tf32"`` (11 bits), or ``"f16"`` (11
            bits, with a scale for each row). ``"f32"`` and ``"f16"`` may lose all products of a small element
            of a row with large elements of the other operand, if elements of the row differ by more than a
            factor of 2**16; use ``"exact"`` then. ``"tf32"`` rounds numbers below 2**-126 to multiples of
            2**-136, and keeps finite numbers finite. For f16 and bf16, ``"f32"`` guarantees that sums lose no
            more than sums in f32.
        out_dtype: dtype of a new result; default: that of ``a``.
        schedule: how it is computed; default: chosen for the arrays' shapes and the machine.
        split_k: number of parts of K, as in `matmul`, or ``"auto"`` or ``"stream"``.
        reduction: how the partial sums are added: ``"workspace"``, ``"turnstile"`` or ``"atomic"``. Real and
            imaginary parts have separate partial sums, which the other reductions of `matmul` do not divide
            among blocks.
        batch_invariant: whether the bits of a row must not depend on the number of rows, as in `matmul`.
        target: ``"cpu"``, ``"cuda"`` or ``"reference"``; default: where the arrays lie.
        stream: the CUDA stream; default: the framework's current stream.

    Returns:
        ``out``.

    Raises:
        LaunchError: shapes or devices do not fit, ``out`` shares memory with an array that is read, or an
            argument has a value that is not listed above.
        DTypeError: real arrays, an unsupported dtype or a mixture.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> a = np.array([[1, 1j], [2, 0]], np.complex64)
        >>> tw.complex_matmul(a, a.T, conjugate_b=True, target="reference")
        array([[2.+0.j, 2.+0.j],
               [2.+0.j, 4.+0.j]], dtype=complex64)

        Planes of real and imaginary parts:

        >>> re, im = tw.complex_matmul((a.real, a.imag), a, alpha=1j, target="reference")
        >>> re.tolist(), im.tolist()
        ([[-2.0, -1.0], [0.0, -2.0]], [[1.0, 0.0], [2.0, 0.0]])
    """
    options = (conjugate_a, conjugate_b, method, precision, out_dtype)
    how = (schedule, split_k, reduction, batch_invariant, target)
    return multiplied("complex_matmul", (a, b, c, out), (alpha, beta), (*options, *how), stream)


def multiplied(
    op: str,
    given: tuple[Any, Any, Any, Any],
    numbers: tuple[complex, complex | None],
    how: tuple[Any, ...],
    stream: Any,
    subscripts: str | None = None,
) -> Any:
    """The product of complex arrays; a repeated call needs only addresses and numbers.

    Args:
        op: the operation's name in messages.
        given: ``a``, ``b``, ``c`` and ``out``.
        numbers: ``alpha`` and ``beta``.
        how: the other arguments of `complex_matmul`, in its order, but ``stream``.
        stream: the caller's stream.
        subscripts: the subscripts of a contraction; None for a product of matrices.
    """
    arrays, are_pairs = list[Any](), True
    for one in given:
        if isinstance(one, tuple | list):
            arrays += one
            are_pairs &= len(one) == 2
        else:
            arrays += (one, None)
    words: tuple[Any, ...] | None = None
    passed: tuple[float, ...] = ()
    alpha = beta = 1 + 0j
    try:
        alpha, beta = complex(numbers[0]), complex(1 if numbers[1] is None else numbers[1])
    except OverflowError:  # of an integer: the plan says which
        are_pairs = False
    if are_pairs:
        passed = (alpha.real, alpha.imag, beta.real, beta.imag)
        said = (alpha == 0, alpha == 1, alpha.imag == 0, numbers[1] is None, beta == 0, beta.imag == 0)
        # The types tell a pair, in which no part may be None, from an interleaved array.
        updates = given[2] is not None and arrays[4] is arrays[6] and arrays[5] is arrays[7]
        words = (said, *map(type, given), updates, *how, subscripts)
    made = called(
        _PLANS,
        arrays,
        words,
        passed,
        stream,
        lambda located: part(PLAN)(op, given, numbers, how, located, subscripts).launch(stream),
        _result,
    )
    if given[3] is not None:
        return given[3]
    return made


def _result(arrays: Sequence[Any]) -> Any:
    """The result, of the arrays of a call that was replayed."""
    re, im = arrays[6:]
    return re if im is None else (re, im)
