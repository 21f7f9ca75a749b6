"""`complex_matmul`: products of complex matrices, interleaved or in two planes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.calls import launches
from tilewright.dtypes import DType
from tilewright.namespaces import part
from tilewright.ops.replay import Replay, called
from tilewright.runtime.plans import Plans
from tilewright.schedule.schedule import Reduction, Schedule, SplitK

PLAN = "tilewright.ops.complex_planning:plan_words"
"""Plans products of complex arrays. Imported when the first are multiplied."""

PARTS = ("a", "a_im", "b", "b_im", "c", "c_im", "out", "out_im")
"""The arrays of a call; of an interleaved one the first has both parts, and the second is None."""

_PLANS: Plans[Replay] = Plans()


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

    Every array is interleaved, complex numbers of NumPy, PyTorch or CuPy, or planar: a pair ``(re, im)`` of
    real arrays of one shape, as of bf16, which has no complex numbers. One kernel computes both parts; sums
    of real products are in f32 (f64 of f64). On GPUs, where that is estimated to be faster, a launch first
    splits the interleaved operands of a large product into planes, in memory that is kept for the stream,
    since TMA cannot copy arrays of stride 2. Each part of the result is a sum of 2 K products: with the
    partial sums bounded by ``P``, it is off by at most ``4 u sqrt(2 K) P`` if roundings are independent,
    ``u = 2**-24`` (``2**-53`` of f64), and rounded once.

    Args:
        a: array (..., M, K) of c32 (``torch.complex32``), c64 or c128, or a pair of real arrays of f64, f32,
            f16 or bf16, or vectors (K,); of any strides, so that a transpose is ``a.T``.
        b: array (..., K, N) whose parts are of the same dtype. Leading dimensions are batches, which are
            broadcast against those of ``a``.
        c: array that is broadcast to the result; it may be ``out``.
        alpha: a number, real or complex. With 0, ``a`` and ``b`` must fit, but are not read.
        beta: a number, real or complex; default: 1 if ``c`` is given. With 0, ``c`` must fit, but is not
            read. Without ``c`` it is ``out`` that is multiplied and added to.
        out: array to write, or a pair; default: a new array of the framework of ``a``, or a pair if ``a`` is.
        conjugate_a: whether the conjugates of ``a`` are multiplied.
        conjugate_b: whether those of ``b`` are.
        method: ``"4m"``, four products of real matrices, which is as accurate as complex arithmetic; or
            ``"3m"``, three products, of which one multiplies sums ``re + im`` that a launch writes before.
            Its real parts have the errors of ``re re`` and ``im im``, its imaginary parts those of all three
            and ``8 u_in sqrt(sum (product of sums)^2)``, ``u_in`` the unit roundoff of the dtype of the
            parts, even where the imaginary parts are small; sums of f16 may exceed 65504.
        precision: ``"exact"``; or how parts of f32 are multiplied on tensor cores: ``"f32"`` in two halves of
            11 bits each, which is as near as multiply-adds of f32, ``"tf32"`` in 11 bits, or
            ``"f16"`` in 11 bits, scaled row by row: where factors within a row differ by more than
            2**16, and small ones meet large ones of the other operand, ``"f32"`` and ``"f16"`` may lose all
            of their products. ``"tf32"`` has numbers below 2**-126 as multiples of 2**-136; no finite one
            becomes infinite. For f16 and bf16 ``"f32"`` says that sums lose no more than sums in f32.
        out_dtype: dtype of a new result; default: that of ``a``.
        schedule: how it is computed; default: chosen for the arrays' shapes and the machine.
        split_k: into how many parts K is split, as `matmul` has it: a number, ``"auto"`` or ``"stream"``.
        reduction: how the partial sums are added: ``"workspace"``, ``"turnstile"`` or ``"atomic"``. Real and
            imaginary parts have separate partial sums, which the other reductions of `matmul` do not divide
            among blocks.
        batch_invariant: whether the bits of a row must not depend on how many rows there are, as `matmul`
            has it.
        target: ``"cpu"``, ``"cuda"`` or ``"reference"``; default: where the arrays lie.
        stream: the CUDA stream; default: the framework's current stream.

    Returns:
        ``out``.

    Raises:
        LaunchError: shapes or devices do not fit, ``out`` shares memory with what is read, or an argument is
            none of those above.
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
    """The product of complex arrays; one like an earlier one needs addresses and numbers alone.

    Args:
        op: the operation's name in messages.
        given: ``a``, ``b``, ``c`` and ``out``.
        numbers: ``alpha`` and ``beta``.
        how: the other arguments of `complex_matmul`, in its order, but ``stream``.
        stream: the caller's.
        subscripts: of a contraction; None: of matrices.
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
