"""`einsum`: contractions of two arrays, with any order of axes in the result, in one kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from tilewright.calls import launches
from tilewright.dtypes import DType, f64
from tilewright.errors import DTypeError, LaunchError
from tilewright.ops.contraction import (
    NAMES,
    Contraction,
    Ending,
    broadcast_scale,
    check_no_view,
    contraction,
    contraction_in_halves,
    posed,
    read_subscripts,
    result_shape,
)
from tilewright.ops.ending import RowScales, finishing
from tilewright.ops.launching import Call, Launch, LaunchPlan
from tilewright.ops.matmul import multiplied
from tilewright.ops.planning import (
    MOST_ITEMS,
    MOST_RANK,
    UPDATED,
    check_real,
    drop_unread_c,
    is_split,
    of_sums,
    scale_of_c,
)
from tilewright.ops.replay import Done, Located, Replay, called, repeated
from tilewright.ops.results import SCALES, check_sums, result_dtype
from tilewright.ops.scales import WIDE, number_of
from tilewright.ops.splitting import plan_of_halves
from tilewright.ops.wanted import (
    HALVES_OF,
    NO_DROPOUT,
    UNDROPPED,
    Wanted,
    check_derivative,
    check_numbers,
    check_splitting,
    check_words,
    dropout_of,
    said,
)
from tilewright.runtime.arrays import ArrayInfo
from tilewright.runtime.plans import Plans
from tilewright.schedule.schedule import Reduction, Schedule, SplitK

ARRAYS = ("a", "b", "out", "bias", "multiply", "residual", "c", *SCALES)
"""The arrays of a call."""

_PLANS: Plans[Replay] = Plans()


@repeated(_PLANS, ARRAYS)
@launches
def einsum(
    subscripts: str,
    a: Any,
    b: Any,
    out: Any = None,
    *,
    c: Any = None,
    alpha: complex = 1.0,
    beta: complex | None = None,
    scale_a: Any = None,
    scale_b: Any = None,
    bias: Any = None,
    activation: str | None = None,
    multiply: Any = None,
    derivative: str | None = None,
    dropout: float = 0.0,
    seed: int = 0,
    offset: int = 0,
    residual: Any = None,
    precision: str = "exact",
    out_dtype: DType | str | None = None,
    saturate: bool = False,
    schedule: Schedule | None = None,
    split_k: SplitK | None = None,
    reduction: Reduction | None = None,
    batch_invariant: bool = False,
    conjugate_a: bool = False,
    conjugate_b: bool = False,
    target: str | None = None,
    stream: Any = None,
) -> Any:
    """``out = dropout(activation(alpha * contraction(a, b) + beta * c + bias) * multiply) + residual``.

    With scales the sums are ``alpha * scale_a * contraction(a, b) * scale_b``.

    One kernel computes it, and no array is copied.  Axes with matching strides are merged; axes whose strides
    do not match, e.g. those of a permuted result, are read and stored through views.  On Hopper bulk copies
    (TMA) load operands, and store permuted results if every tile is a box of the array; see the page on
    epilogues.

    Args:
        subscripts: as in NumPy's einsum, letters for the axes of ``a``, of ``b``, and of the result:
            ``"bik,kj->bij"``.  Letters that the result lacks are summed over; a letter that one operand has
            twice selects its diagonal; ``...`` stands for all axes without a letter, which are broadcast.
            Without ``->`` the result has the letters that occur once, in alphabetical order.
        a: array of f64, f32, f16, bf16, f8e4m3, f8e5m2, f8e4m3fnuz, f8e5m2fnuz or i8, of any strides; or
            complex: of c32, c64 or c128, or a pair ``(re, im)`` of real arrays, as in `complex_matmul`.
            Complex arrays take ``c``, ``alpha``, ``beta``, ``multiply`` and dropout, and no other terms.
        b: array of the same dtype.
        out: array to write, of the result's shape and any strides; default: a new array of the framework of
            ``a``, contiguous in the order of the subscripts.
        c: array that is broadcast to the result; it may be ``out``.
        alpha: a number, as in `matmul`.
        beta: a number, as in `matmul`: the factor of ``c``, or of ``out`` if there is no ``c``.
        scale_a: a number, which multiplies ``alpha``; or an array of f32, f16 or bf16 (or f64 for operands of
            f64) of one element, or with one for each index of the axes of ``a`` that the result has, in the
            order of ``a``: for ``"bsk,khe->bhse"`` of shape (b, s), or (b, s, 1) with summed axes of one
            element. Axes of one element are repeated. Complex arrays take no arrays of scales.
        scale_b: the same for ``b``: in the example of shape (h, e).
        bias: array that is broadcast to the result by NumPy's rules, and added before the activation.
        activation: as in `matmul`.
        multiply: array that is broadcast to the result, and multiplied with the activation's value.
        derivative: the name of an activation: multiplies by ``activation'(multiply)`` instead of
            ``multiply``, for the gradient of a layer.
        dropout: the probability ``p`` that an element is set to 0; the others are divided by ``1 - p``.
        seed: the seed of dropout, an integer from 0 to ``2**63 - 1``. The dropped elements depend on
            ``seed``, ``offset`` and the number of an element in the result, in the order of its subscripts,
            and on nothing else; `testing.philox` computes them.
        offset: an integer in the same range; use another one for each layer or step of one seed.
        residual: array that is broadcast to the result and added last; it may be ``out``.
        precision: as in `matmul`. ``"f32"`` and ``"f16"`` split operands of f32 in halves only if the
            operands need no view; other operands are multiplied without tensor cores, at least as exactly.
        out_dtype: dtype of a new result; default: as in `matmul`.
        saturate: whether numbers beyond the finite range of the result's dtype, infinities included, become
            the nearest number of it; otherwise they become infinity in f16 and f8e5m2, and NaN in f8e4m3.
            NaN stays NaN.  With it the result may have an integer dtype: numbers are rounded to the nearest
            integer, and NaN becomes 0.
        schedule: how it is computed; default: chosen for the arrays' shapes and the machine.
        split_k: number of parts of K, as in `matmul`.
        reduction: how the partial sums are added, as in `matmul`.
        batch_invariant: whether the bits of a row must not depend on the number of rows, as in `matmul`. It
            is refused if an array needs a view.
        conjugate_a: whether to multiply the conjugate of ``a``; real arrays stay as they are.
        conjugate_b: the same for ``b``.
        target: ``"cpu"``, ``"cuda"`` or ``"reference"``; default: where the arrays lie.
        stream: the CUDA stream; default: the framework's current stream.

    Returns:
        ``out``.

    Raises:
        LaunchError: subscripts, shapes or devices do not fit, or ``out`` shares memory with an array that is
            read.
        DTypeError: an unsupported dtype or mixture.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> x = np.arange(12, dtype=np.float32).reshape(2, 2, 3)  # batch, position, channel
        >>> w = np.ones((3, 2, 2), np.float32)  # channel, head, element
        >>> y = tw.einsum("bsk,khe->bhse", x, w, bias=np.float32([[0, 1]]), target="reference")
        >>> y.shape, y[1, 0]
        ((2, 2, 2, 2), array([[21., 22.],
               [30., 31.]], dtype=float32))

        A scale for each position and for each channel of the result:

        >>> scales = {"scale_a": np.float32([[1, 10], [0, 1]]), "scale_b": np.float32([[1, 2], [3, 4]])}
        >>> tw.einsum("bsk,khe->bhse", x, w, **scales, target="reference")[0, 1]
        array([[  9.,  12.],
               [360., 480.]], dtype=float32)
    """
    scales, factor = [scale_a, scale_b], "alpha"
    if scale_a is not None or scale_b is not None:
        alpha, scales, factor = _numbers_apart(alpha, scales)
    arrays = (a, b, out, bias, multiply, residual, c, *scales)
    dropped, drawn = NO_DROPOUT, NO_DROPOUT.words
    numbers: tuple[Any, ...] = (alpha, *UNDROPPED)
    if dropout or seed or offset:
        dropped = dropout_of("einsum", dropout, seed, offset)
        numbers, drawn = (alpha, *dropped.numbers), dropped.words
    if beta != 0 and (c is not None or beta is not None):  # else c is not read, and the kernel has no beta
        numbers = (alpha, 1.0 if beta is None else beta, *numbers[1:])
    words: tuple[Any, ...] | None = None
    if schedule is None:
        more = (target, split_k, reduction, batch_invariant, derivative, saturate, drawn)
        words = (subscripts, said(alpha), said(beta), activation, precision, out_dtype, *more)

    def first(located: Sequence[Located]) -> Done:
        how = (schedule, target, split_k, reduction, batch_invariant)
        wanted = Wanted(alpha, beta, activation, precision, out_dtype, *how, derivative, saturate, dropped)
        given, conjugates = dict(zip(ARRAYS, arrays, strict=True)), (conjugate_a, conjugate_b)
        of_call = ("einsum", given, wanted, stream, located)
        return multiplied(
            *of_call, lambda call: _plan(subscripts, call, wanted, factor), conjugates, subscripts
        )

    return called(_PLANS, arrays, words, numbers, stream, first)


def _numbers_apart(alpha: complex, scales: Sequence[Any]) -> tuple[complex, list[Any], str]:
    """Return alpha times the scales that are numbers, the arrays of other scales, and the factors' names."""
    arrays, names = list[Any](), ["alpha"]
    for name, scale in zip(SCALES, scales, strict=True):
        number = None if scale is None else number_of("einsum", name, scale)
        if number is not None:
            alpha *= number
            names.append(name)
        arrays.append(scale if number is None else None)
    return alpha, arrays, " times ".join(names)


def plan_einsum(
    subscripts: str, given: Mapping[str, Any], wanted: Wanted, located: Sequence[Located] = ()
) -> LaunchPlan:
    """Check the arguments of `einsum` of real numbers, and plan its launches.

    Args:
        subscripts: the labels of the axes.
        given: the arrays by the names of `ARRAYS`; None or no entry for an absent one.
        wanted: the other arguments.
        located: the keys and addresses of the arrays, if the caller has read them.

    Raises:
        LaunchError: subscripts, shapes or devices do not fit, or ``out`` shares memory with an input.
        DTypeError: an unsupported dtype or mixture.
    """
    check_words(wanted)
    return _plan(subscripts, Call.of("einsum", given, located=located), wanted)


def _plan(subscripts: str, call: Call, wanted: Wanted, factor: str = "alpha") -> LaunchPlan:
    infos = call.infos
    check_splitting(wanted, "einsum")
    check_derivative("einsum", wanted.derivative, multiplies="multiply" in infos)
    check_real("einsum", wanted)
    beta = scale_of_c(call, wanted.beta)
    for name in SCALES:
        legal = (*WIDE, f64) if infos["a"].dtype == f64 else WIDE
        if name in infos and infos[name].dtype not in legal:
            raise DTypeError(f"einsum: {name} is {infos[name].dtype}", ", ".join(map(str, legal)))
    kind = result_dtype(call.dtypes, wanted, "einsum")
    named = read_subscripts(subscripts, [len(infos[name].shape) for name in ("a", "b")])
    shape = result_shape(subscripts, named, infos)
    scales = {name: broadcast_scale(subscripts, named, name, infos) for name in SCALES if name in infos}
    axes = zip(named.a, infos["a"].shape, strict=True)
    depth = prod(extent for axis, extent in axes if axis not in named.out) if wanted.alpha != 0 else 0
    backend = call.serve(wanted.target).name
    drop_unread_c(call, beta, shape)
    check_sums("einsum", call.dtypes, depth, kind, wanted)
    call.make("out", shape, kind)
    check_numbers("einsum", call.number, **{factor: wanted.alpha}, beta=beta)
    call.check_apart(updated=UPDATED)
    drops = bool(wanted.dropped.probability)
    problem = posed(named, call.layouts | scales, indexed=drops, multiplies=wanted.alpha != 0)
    made, layouts = problem.contraction, problem.layouts
    if problem.is_empty:
        return call.plan(details=made)
    if wanted.batch_invariant:
        check_no_view(made)
    seen = {name: call.seen(name, one) for name, one in layouts.items()}
    seen = {name: seen.get(name, seen["out"]) for name in made.names}
    numbers = (wanted.alpha, *((beta,) if "c" in made.names else ()), *wanted.dropped.numbers)
    ending = ending_of(made, infos, wanted)
    against, how, precision = against_halves(made), wanted.how, wanted.precision
    size = prod(layouts["out"].shape) * layouts["a"].shape[-1]
    fits = not against and max(layouts["out"].shape[: made.batch], default=0) <= MOST_ITEMS
    if is_split(call.dtypes, precision, how, backend, size, fits=fits):
        if against and isinstance(how, Schedule):
            raise LaunchError(
                f"einsum: precision={precision!r} needs operands split in halves, which the f16 atom "
                f"{how.atom.name} cannot multiply: {against}",
                'precision="exact" or "tf32"',
            )
        both = HALVES_OF[wanted.precision] == 2
        kernel = contraction_in_halves(made).bind(both=both, ending=ending, schedule=wanted.how)
        operands = {name: (seen.pop(name), layouts[name]) for name in "ab"}
        return replace(plan_of_halves(call, operands, kernel, seen, numbers, both), details=made)
    kernel = contraction(made, call.number).bind(
        precision=of_sums(wanted.precision, infos["a"].dtype), ending=ending, schedule=wanted.how
    )
    product = Launch(kernel, tuple(seen.values()), call.stand_ins(seen), numbers)
    return call.plan(product, warns=wanted.schedule is None, details=made)


def against_halves(made: Contraction) -> str:
    """Reason why operands cannot be split in halves, or "": they must be matrices."""
    for name in "ab":
        seen = made.of(name)
        if any(inner for _, inner in seen.groups):
            return f"{name} needs a view"
        if len(seen.batch) > MOST_RANK:
            return f"{name} has {len(seen.batch)} dimensions of batches"
    return ""


def ending_of(made: Contraction, infos: Mapping[str, ArrayInfo], wanted: Wanted) -> Ending:
    """The terms after the sums.

    Args:
        made: the contraction.
        infos: the arrays of the call.
        wanted: the other arguments.
    """
    terms = {"c", "bias", "multiply", "residual"} & infos.keys()
    terms |= {"alpha"} if wanted.alpha not in (0, 1) else set()
    late, scales = replace(wanted.late, order=made.order), tuple[RowScales, ...]()
    if not infos.keys().isdisjoint(SCALES):
        names = (name if name in terms | infos.keys() else "" for name in ("alpha", *SCALES))
        scales, terms = (RowScales(*names),), terms - {"alpha"}
    return (*scales, *finishing(terms, wanted.activation, late, NAMES["bias"]))
