"""`matmul`: describes the operands, looks up or plans a launch for them, and launches.

`multiplied` and `plan_matmul` also serve `einsum`, `gemm_chain` and the tuner.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilewright import dtypes
from tilewright.argument_checks import MOST
from tilewright.calls import launches
from tilewright.dataflow.nodes import EXACT, TF32
from tilewright.dtypes import FP8, DType
from tilewright.errors import DTypeError, LaunchError, shown
from tilewright.namespaces import part
from tilewright.ops.launching import Call, Launch, LaunchPlan
from tilewright.ops.planning import (
    UPDATED,
    as_parameter,
    check_real,
    drop_unread_c,
    is_flat,
    is_split,
    multiplications,
    of_sums,
    scale_of_c,
    widened_on,
)
from tilewright.ops.problem import Problem, posed_with, result_shape
from tilewright.ops.products import combined, in_halves, plain
from tilewright.ops.replay import Done, Located, Replay, called, remember, repeated
from tilewright.ops.results import SCALES, check_sums, check_whole_bytes, result_dtype, whole_product
from tilewright.ops.wanted import (
    HALVES_OF,
    NO_DROPOUT,
    Wanted,
    check_derivative,
    check_numbers,
    check_splitting,
    check_words,
    dropout_of,
    said,
)
from tilewright.runtime.arrays import ArrayInfo
from tilewright.runtime.backends import arch_of
from tilewright.runtime.plans import Plans, Shortcuts
from tilewright.schedule.schedule import Reduction, Schedule, SplitK
from tilewright.targets.target import CUDA, HOST, TARGETS

COMPLEX = "tilewright.ops.complex_matmul:multiplied"
"""Multiplies complex arrays. Imported when the first are multiplied."""

IN_HALVES = "tilewright.ops.splitting:plan_of_halves"
"""Plans a product of operands split in halves. Imported when the first is planned."""

PLANES, FROM_PLANES = "tilewright.ops.planes:planes_of", "tilewright.ops.planes:plan_from_planes"
"""Choose the operands to rewrite in scratch memory, and plan their product. Imported at the first use."""

IS_LONG_DOT, PLAN_DOT = "tilewright.ops.dots:is_long_dot", "tilewright.ops.dots:plan_dot"
"""Plan dot products of long vectors. Imported when the first vectors are multiplied on an NVIDIA GPU."""

ARRAYS = ("a", "b", "out", "c", "bias", "residual", "multiply", "sums")
"""The arrays of a call."""

PLAIN = ("a", "b", "out")
"""The arrays of the kernel of a product without terms, in its order."""

COMBINED = ("a", "b", "c", "bias", "residual", "out")
"""The arrays of the kernel with terms after the sums.

The kernel reads no absent array; a call passes ``out`` in its place.
"""

LEAST_REWRITTEN = 2.0**26
"""Least number of multiplications of a call for which a prepass rewrites operands.

A smaller product takes less time than the launch of the prepass.
"""

_PLAIN_NUMBERS = {float, int, type(None)}

_PLANS: Plans[Replay] = Plans()
_SHORTCUTS = Shortcuts()


@repeated(_PLANS, ARRAYS, _SHORTCUTS)
@launches
def matmul(
    a: Any,
    b: Any,
    out: Any = None,
    *,
    c: Any = None,
    alpha: complex = 1.0,
    beta: complex | None = None,
    bias: Any = None,
    activation: str | None = None,
    multiply: Any = None,
    derivative: str | None = None,
    dropout: float = 0.0,
    seed: int = 0,
    offset: int = 0,
    residual: Any = None,
    saturate: bool = False,
    sums: Any = None,
    precision: str = "exact",
    out_dtype: DType | str | None = None,
    schedule: Schedule | None = None,
    split_k: SplitK | None = None,
    reduction: Reduction | None = None,
    batch_invariant: bool = False,
    target: str | None = None,
    stream: Any = None,
) -> Any:
    """``out = dropout(activation(alpha * (a @ b) + beta * c + bias) * multiply) + residual``.

    Shapes follow NumPy's rules.  Every term is optional, and one kernel computes them all.

    Products are exact, sums are in f32 (f64 for f64, i32 for i8), and the result is rounded once.

    Integers and booleans follow `numpy.matmul`: the result has NumPy's dtype, and sums wrap in it.  i16 by
    i16 is i16, u8 by i8 is i16, u32 by i32 is i64, u64 by i64 is f64.  There is one exception: i8 by i8, or
    by booleans, is i32.  If ``out_dtype`` is an integer or float dtype that holds all values of NumPy's
    dtype, operands are multiplied in ``out_dtype``.  Integers other than i8 take no terms, except ``c`` with
    ``beta=0``, and ``alpha`` of 0 or 1.

    A product of booleans is boolean: the or of ands.  A byte other than 0 is true.  GPUs that multiply
    booleans as i8 take bytes as they are: if an array may hold other bytes than 0 and 1, pass ``array != 0``.

    Args:
        a: array (..., M, K), or a vector (K,), of any strides: of f64, f32, f16, bf16, f8e4m3, f8e5m2,
            f8e4m3fnuz, f8e5m2fnuz, integers or booleans. Complex arrays, or pairs ``(re, im)``, are
            multiplied by `complex_matmul`.
        b: array (..., K, N), or a vector (K,), of the same dtype; integer dtypes may differ. Leading
            dimensions are batches, which are broadcast against those of ``a``; a vector's missing dimension
            is missing in the result too.
        out: array to write, of the result's shape and any strides, but no two elements may overlap; default:
            a new array of the framework of ``a``.
        c: array that is broadcast to the result; it may be ``out``.
        alpha: a number, which is real unless the arrays are complex. With 0, ``a`` and ``b`` are checked, but
            not read. A number that becomes infinite or 0 in f32 (in f64 for f64 and integers) is refused.
        beta: a number, likewise: the factor of ``c``, or of the old values of ``out`` if there is no ``c``;
            default: 1 if ``c`` is given. With 0, ``c`` is checked, but not read.
        bias: array (N,), added to each row.
        activation: ``"relu"``, ``"gelu"``, ``"gelu_tanh"``, ``"silu"``, ``"sigmoid"`` or ``"tanh"``.
        multiply: array that is broadcast to the result, and multiplied with the activation's value.
        derivative: the name of an activation: multiplies by ``activation'(multiply)`` instead of
            ``multiply``, for the gradient of a layer.
        dropout: the probability ``p`` that an element is set to 0; the others are divided by ``1 - p``.
        seed: the seed of dropout, an integer from 0 to ``2**63 - 1``. The dropped elements depend on
            ``seed``, ``offset`` and the number of an element in the result (its place in C order), and on
            nothing else; `testing.philox` computes them.
        offset: an integer in the same range; use another one for each layer or step of one seed.
        residual: array that is broadcast to the result and added last; it may be ``out``.
        saturate: whether numbers beyond the finite range of the result's dtype, infinities included, become
            the nearest number of it. NaN stays NaN. With it the result may have an integer dtype: numbers are
            rounded to the nearest integer, ties to even, and NaN becomes 0.
        sums: array of the result's shape and of a float dtype. The same kernel writes the argument of the
            activation to it, ``alpha * (a @ b) + beta * c + bias``, which the gradient of a layer needs. The
            activation is that of the numbers before they are rounded. Operands are float.
        precision: ``"exact"``, or the form in which tensor cores multiply f32: ``"f32"`` (two halves of 11
            bits each), ``"tf32"`` (11 bits), or ``"f16"`` (11 bits, with a scale for each row). ``"f32"`` and
            ``"f16"`` may lose all products of a small element of a row with large elements of the other
            operand, if elements of the row differ by more than a factor of 2**16; use ``"exact"`` then.
            ``"tf32"`` rounds numbers below 2**-126 to multiples of 2**-136, and keeps finite numbers finite.
            For f16, bf16 and fp8, ``"f32"`` guarantees that sums lose no more than sums in f32.
        out_dtype: dtype of a new result; default: as above for integers, f16 for fp8, otherwise the dtype of
            ``a``.
        schedule: how it is computed; default: chosen for the arrays' shapes and the machine.
        split_k: number of parts of K, each summed by its own block; or ``"auto"`` for as many parts as fill
            the machine, or ``"stream"`` to divide the steps of all tiles into equal shares; default: the
            schedule's. See `Schedule`.
        reduction: how the partial sums are added. ``"workspace"``, ``"reduce-scatter"`` and ``"turnstile"``
            add in an order that depends only on the problem and the machine. ``"cluster"`` adds in the order
            of the parts, in the shared memory of the 2 to 8 blocks that compute them. ``"atomic"`` adds in
            any order. Default: the estimated fastest of ``"workspace"``, ``"reduce-scatter"`` and
            ``"cluster"``, which give the same bits at every run; ``"workspace"`` for ``"stream"`` and with
            ``batch_invariant``.
        batch_invariant: whether the bits of a row of the result must not depend on the number of rows. The
            order of a sum then follows from K and the dtypes alone, and from ``split_k`` if that is a number,
            for arrays that are contiguous along the same dimensions. That order has parts, and
            ``split_k="auto"`` gives each part a block. If the ``reduction`` makes blocks wait for each other,
            but not all of them run at once, one block adds all parts in the same order. ``"stream"`` and
            ``reduction="atomic"`` are refused.
        target: ``"cpu"``, ``"cuda"`` or ``"reference"``; default: where the arrays lie.
        stream: the CUDA stream; default: the framework's current stream.

    Returns:
        ``out``.

    Raises:
        LaunchError: shapes or devices do not fit, ``out`` shares memory with an array that is read, or an
            argument has a value that is not listed above.
        DTypeError: an unsupported dtype or mixture.

    Warns:
        SlowWarning: once for each dtype that the GPU has tensor cores for, but this multiplies without them:
            f8e4m3 and f8e5m2 from sm_89 on, because sums of these tensor cores keep only 13 bits. On sm_90a
            there is no warning if both arrays are contiguous along K: tensor cores multiply them, and f32
            sums collect their results at short intervals. Also once for integers of 32 and of 64 bits, for
            which GPUs have no tensor cores; integers of 16 bits are multiplied as 32 bits. Products of u8, of
            i8 and of booleans use tensor cores.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> a = np.arange(6, dtype=np.float32).reshape(2, 3)
        >>> tw.matmul(a, a.T, target="reference")
        array([[ 5., 14.],
               [14., 50.]], dtype=float32)
        >>> tw.matmul(a, a.T, bias=np.float32([-20, 0]), activation="relu", target="reference")
        array([[ 0., 14.],
               [ 0., 50.]], dtype=float32)
    """
    how = (schedule, target, split_k, reduction, batch_invariant)
    late = (derivative, saturate, dropout_of("matmul", dropout, seed, offset))
    wanted = Wanted(alpha, beta, activation, precision, out_dtype, *how, *late)
    arrays = (a, b, out, c, bias, residual, multiply, sums)
    numbers: tuple[Any, ...] = (alpha, 1.0 if beta is None else beta)
    if wanted.dropped is not NO_DROPOUT:
        numbers += wanted.dropped.numbers

    def first(located: Sequence[Located]) -> Done:
        check_splitting(wanted)
        of_call = ("matmul", dict(zip(ARRAYS, arrays, strict=True)), wanted, stream, located)
        done = multiplied(*of_call, lambda call: plan_of(call, wanted))
        is_plain = wanted == Wanted() and stream is None and all(one is None for one in arrays[3:])
        if done.record is not None and is_plain:
            remember(_SHORTCUTS, done.record, (a, b, done.result))
        return done

    return called(_PLANS, arrays, _words(wanted), numbers, stream, first)


def _words(wanted: Wanted) -> tuple[Any, ...] | None:
    """The arguments that a plan depends on, except arrays and numbers; None to plan each call anew."""
    numbers: tuple[Any, Any] = (wanted.alpha, wanted.beta)
    if wanted.schedule is not None:
        return None
    for number in numbers:
        kind = type(number)
        if kind not in _PLAIN_NUMBERS or (kind is int and not -MOST <= number < 2 * MOST):
            return None  # an integer of more than 64 bits is refused
    return *map(said, numbers), *wanted.words


# ---------------------------------------------------------------- real and complex arrays


def multiplied(
    op: str,
    given: Mapping[str, Any],
    wanted: Wanted,
    stream: Any,
    located: Sequence[Located],
    plan: Callable[[Call], LaunchPlan],
    conjugates: tuple[bool, bool] = (False, False),
    subscripts: str | None = None,
) -> Done:
    """Plan and launch a call of `matmul` or `einsum`; complex arrays go to `complex_matmul`.

    Args:
        op: the operation's name in messages.
        given: the arrays by name, ``a`` and ``b`` first; None for an absent one.
        wanted: the other arguments of the call.
        stream: the caller's stream.
        located: the keys and addresses of the arrays, if the caller has read them.
        plan: plans a call of real arrays.
        conjugates: whether ``a`` and ``b`` are conjugated.
        subscripts: the subscripts of a contraction; None for a product of matrices.

    Raises:
        LaunchError: shapes, devices or arguments do not fit.
        DTypeError: an unsupported dtype or mixture.
    """
    check_words(wanted)
    if not (is_pair(given["a"]) or is_pair(given["b"])):
        call = Call.of(op, given, located=located, real=True)
        if not call.is_complex:
            return plan(call).launch(stream)
    check_complex(op, given, wanted)
    arrays = tuple(given.get(name) for name in ("a", "b", "c", "out", "multiply"))
    options = (*conjugates, "4m", wanted.precision, wanted.out_dtype)
    how = (wanted.schedule, wanted.split_k, wanted.reduction, wanted.batch_invariant, wanted.target)
    factors = (wanted.alpha, wanted.beta)
    made = part(COMPLEX)(op, arrays, factors, (*options, *how), stream, wanted.dropped, subscripts)
    return Done(made, None, passed_on=True)


def is_pair(array: Any) -> bool:
    """Whether an argument is a pair of real and imaginary parts, or PyTorch's lazy conjugate.

    A list of two rows of numbers is not a pair.
    """
    lazy = getattr(array, "is_conj", None)
    if isinstance(array, tuple | list):
        return len(array) == 2 and not any(isinstance(part, tuple | list | int | float) for part in array)
    return callable(lazy) and bool(lazy())


def check_complex(op: str, given: Mapping[str, Any], wanted: Wanted) -> None:
    """Refuse terms that only real products have.

    Args:
        op: the operation's name in messages.
        given: the arrays of the call by name.
        wanted: its other arguments.

    Raises:
        LaunchError: a bias, an activation or a later term.
    """
    if added := [name for name in ("bias", "residual") if given.get(name) is not None]:
        raise LaunchError(
            f"{op}: {' and '.join(added)} with complex arrays", "c=, which is broadcast and added"
        )
    if given.get("sums") is not None:
        raise LaunchError(f"{op}: sums with complex arrays, whose result is the sums; nearest: out=")
    if scaled := [name for name in SCALES if given.get(name) is not None]:
        raise LaunchError(f"{op}: {' and '.join(scaled)} with complex arrays", "alpha=, a number")
    if wanted.activation is not None:
        rule = "activations are defined for real numbers only"
        text = f"{op}: activation={shown(wanted.activation)} with complex arrays; {rule}"
        raise LaunchError(text, "None")
    late = {"derivative": wanted.derivative is not None, "saturate": wanted.saturate}
    if there := [name for name, is_there in late.items() if is_there]:
        near = "compute the product, then apply a function of NumPy or of your framework"
        raise LaunchError(f"{op}: {' and '.join(there)} with complex arrays", near)


# ---------------------------------------------------------------- the plan


def plan_matmul(given: Mapping[str, Any], wanted: Wanted, located: Sequence[Located] = ()) -> LaunchPlan:
    """The launches of `matmul` of real numbers.

    Args:
        given: the arrays by the names of `ARRAYS`; None for an absent one.
        wanted: the other arguments of the call.
        located: the keys and addresses of the arrays, if the caller has read them.

    Raises:
        LaunchError: shapes, devices or arguments do not fit.
        DTypeError: an unsupported dtype or mixture.
    """
    return plan_of(Call.of("matmul", given, located=located), wanted)


def plan_of(call: Call, wanted: Wanted) -> LaunchPlan:
    """The launches of a call of `matmul`; see `plan_matmul`.

    Args:
        call: the arrays of the call.
        wanted: its other arguments.
    """
    infos = call.infos
    check_real("matmul", wanted)
    check_derivative("matmul", wanted.derivative, multiplies="multiply" in infos)
    beta, kinds = scale_of_c(call, wanted.beta), call.dtypes
    stored = kinds.pop("sums", None)
    is_whole = not kinds["a"].is_float or not kinds["b"].is_float
    whole = whole_product(kinds, wanted) if is_whole else None
    kind = result_dtype(kinds, wanted) if whole is None else whole.result
    shape = result_shape(infos["a"].shape, infos["b"].shape)
    backend = call.serve(wanted.target)
    drop_unread_c(call, beta, shape)
    depth = infos["a"].shape[-1] if wanted.alpha != 0 else 0
    check_sums("matmul", call.dtypes, depth, kind, wanted)
    call.make("out", shape, kind)
    if stored is not None:
        _check_stored(infos, kinds["a"], shape)
        call.check_apart("sums")
    check_numbers("matmul", call.number, alpha=wanted.alpha, beta=beta)
    problem, late = posed_with(call.layouts, wanted, multiplies=wanted.alpha != 0)
    call.check_apart(updated=UPDATED)

    # The kernel, its arrays and its numbers.
    seen = {name: call.seen(name, problem.operands[name]) for name in infos}
    row = call.seen("out", as_parameter("bias", problem.operands["out"]))
    seen = {"c": seen["out"], "residual": seen["out"], "bias": row, **seen}  # absent ones are not read
    terms = set[str](infos.keys() & {"c", "bias", "residual", "multiply", "sums"})
    terms |= {"alpha"} if wanted.alpha not in (0, 1) else set()
    terms |= {"dropout"} if wanted.dropped.probability else set()
    terms |= {"saturate"} if wanted.saturate else set()
    terms |= {"activation"} if wanted.activation is not None else set()
    rank = len(problem.batch)
    rare = tuple(name for name in ("sums", "multiply", "dropout") if name in terms)
    names = (*COMBINED, *(name for name in rare if name in infos))
    numbers: tuple[Any, ...] = (wanted.alpha, beta)
    numbers += wanted.dropped.numbers if "dropout" in rare else ()
    ending: dict[str, Any] = {"terms": frozenset(terms), "activation": wanted.activation}
    ending |= {"late": late, "schedule": wanted.how}
    size, fits = multiplications(problem), is_flat(problem)
    if is_split(call.dtypes, wanted.precision, wanted.how, backend.name, size, fits=fits):
        both = HALVES_OF[wanted.precision] == 2
        kernel = in_halves(rank, dtypes.f32, rare).bind(both=both, **ending)
        operands = {name: (seen.pop(name), problem.operands[name]) for name in ("a", "b")}
        rest = {name: seen[name] for name in names[2:]}
        of_halves: LaunchPlan = part(IN_HALVES)(call, operands, kernel, rest, numbers, both)
        return of_halves
    if not terms and is_dot(call, problem, wanted):
        of_dots: LaunchPlan = part(PLAN_DOT)(call, problem, of_sums(wanted.precision, kinds["a"]))
        return of_dots
    features = arch_of(backend, None).features if kinds["a"] in FP8 else frozenset()
    widened = widened_on(kinds["a"], features) if wanted.schedule is None else ()
    precision = of_sums(wanted.precision, kinds["a"])
    if whole is not None:
        kernel = plain(rank, whole.multiplied).bind(precision=EXACT, schedule=wanted.how)
        on_gpu = TARGETS[backend.name].memory != HOST
        seen |= {name: whole.seen(seen[name], on_gpu=on_gpu) for name in ("a", "b")}
        names, numbers = PLAIN, ()
    elif terms:
        to = widened[0] if widened else None
        kernel = combined(rank, call.number, to, rare).bind(precision=precision, **ending)
    else:
        kernel = plain(rank, *widened).bind(precision=precision, schedule=wanted.how)
        names, numbers = PLAIN, ()
    product = Launch(kernel, tuple(seen[name] for name in names), call.stand_ins(names), numbers)
    if planes := planes_first(call, problem, wanted):
        from_planes: LaunchPlan = part(FROM_PLANES)(planes, call, product)
        return from_planes
    return call.plan(product, warns=wanted.schedule is None)


def _check_stored(infos: Mapping[str, ArrayInfo], operand: DType, shape: tuple[int, ...]) -> None:
    """Check the array for the argument of the activation.

    Args:
        infos: the arrays of the call.
        operand: the dtype of ``a``.
        shape: the shape of the result.

    Raises:
        LaunchError: it has another shape.
        DTypeError: it, or an operand, is not of a real float dtype.
    """
    there = infos["sums"]
    if there.shape != shape:
        raise LaunchError(f"matmul: sums has shape {there.shape}", shape)
    check_whole_bytes("matmul", "sums", there.dtype, dtypes.f32)
    if not operand.is_float:
        raise DTypeError(f"matmul: sums with operands of {operand}", "sums=None")
    if not there.dtype.is_float or there.dtype.components > 1:
        raise DTypeError(f"matmul: sums is {there.dtype}", "f32")


def planes_first(call: Call, problem: Problem, wanted: Wanted) -> tuple[Any, ...]:
    """Return the operands that a prepass writes to scratch memory first; see `planes_of`.

    Args:
        call: the arrays of the call.
        problem: the product of these arrays.
        wanted: the other arguments of the call.
    """
    if call.target != CUDA.name or multiplications(problem) < LEAST_REWRITTEN:
        return ()
    if wanted.precision != TF32 and call.infos["a"].dtype == dtypes.f32:
        return ()
    found: tuple[Any, ...] = part(PLANES)(call.infos, problem, wanted.precision, wanted.how, call.machine)
    return found


def is_dot(call: Call, problem: Problem, wanted: Wanted) -> bool:
    """Whether a call is a dot product of vectors that are long enough to be read as matrices.

    Args:
        call: the arrays of the call.
        problem: the product of these arrays.
        wanted: the other arguments of the call.
    """
    if (problem.m, problem.n) != (1, 1) or wanted.how is not None or call.target != CUDA.name:
        return False
    return bool(part(IS_LONG_DOT)(call.infos, problem))
