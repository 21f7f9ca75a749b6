"""Plans `matmul`: checks arguments, poses the problem, chooses a prepass, and binds the kernel.

It also has the steps that planners of other operations share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from tilewright import dtypes
from tilewright.arch import Arch
from tilewright.dataflow.nodes import EXACT, SUMMED, TF32
from tilewright.dtypes import FP8, DType
from tilewright.errors import LaunchError, shown
from tilewright.namespaces import part
from tilewright.ops.launching import Call, Launch, LaunchPlan
from tilewright.ops.problem import Matrices, Problem, check_broadcast, posed_with, result_shape
from tilewright.ops.products import combined, in_halves, plain
from tilewright.ops.replay import Done, Located
from tilewright.ops.results import SCALES, check_sums, result_dtype, whole_product
from tilewright.ops.wanted import HALVES_OF, Wanted, check_derivative, check_numbers, check_words
from tilewright.runtime.backends import arch_of
from tilewright.schedule.question import Splitting
from tilewright.schedule.schedule import Schedule
from tilewright.targets.matrix_cores import nearest
from tilewright.targets.target import CUDA, HOST, TARGETS

COMPLEX = "tilewright.ops.complex_matmul:multiplied"
"""Multiplies complex arrays. Imported when the first are multiplied."""

IN_HALVES = "tilewright.ops.halves:plan_of_halves"
"""Plans a product of operands split in halves. Imported when the first is planned."""

PLANES, FROM_PLANES = "tilewright.ops.planes:planes_of", "tilewright.ops.planes:plan_from_planes"
"""Choose the operands to rewrite in scratch memory, and plan their product. Imported at the first use."""

IS_LONG_DOT, PLAN_DOT = "tilewright.ops.dots:is_long_dot", "tilewright.ops.dots:plan_dot"
"""Plan dot products of long vectors. Imported when the first vectors are multiplied on an NVIDIA GPU."""

ARRAYS = ("a", "b", "out", "c", "bias", "residual", "multiply")
"""The arrays of a call."""

UPDATED = ("c", "residual")
"""Arrays that may be the result: a thread reads an element of them before it stores that element."""

PLAIN = ("a", "b", "out")
"""The arrays of the kernel of a product without terms, in its order."""

COMBINED = ("a", "b", "c", "bias", "residual", "out")
"""The arrays of the kernel with terms after the sums; ``out`` stands for absent ones, which are not read."""


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


def check_complex(op: str, given: Mapping[str, Any], wanted: Wanted) -> None:
    """Refuse the terms of a complex product that are functions of real numbers here.

    Args:
        op: the operation's name in messages.
        given: the arrays of the call by name.
        wanted: its other arguments.

    Raises:
        LaunchError: a bias, an activation or a later term.
    """
    if added := [name for name in ("bias", "residual") if given.get(name) is not None]:
        raise LaunchError(
            f"{op}: {' and '.join(added)} with complex arrays; nearest legal choice: c=, which is "
            "broadcast and added"
        )
    if scaled := [name for name in SCALES if given.get(name) is not None]:
        raise LaunchError(
            f"{op}: {' and '.join(scaled)} with complex arrays; nearest legal choice: alpha=, a number"
        )
    if wanted.activation is not None:
        raise LaunchError(
            f"{op}: activation={shown(wanted.activation)} with complex arrays; activations are defined for "
            "real numbers only; nearest legal choice: None"
        )
    late = {"derivative": wanted.derivative is not None, "saturate": wanted.saturate}
    if there := [name for name, is_there in late.items() if is_there]:
        raise LaunchError(
            f"{op}: {' and '.join(there)} with complex arrays; nearest legal choice: compute the product, "
            "then apply a function of NumPy or of your framework"
        )


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
    is_whole = not kinds["a"].is_float or not kinds["b"].is_float
    whole = whole_product(kinds, wanted) if is_whole else None
    kind = result_dtype(kinds, wanted) if whole is None else whole.result
    shape = result_shape(infos["a"].shape, infos["b"].shape)
    backend = call.serve(wanted.target)
    drop_unread_c(call, beta, shape)
    depth = infos["a"].shape[-1] if wanted.alpha != 0 else 0
    check_sums("matmul", call.dtypes, depth, kind, wanted)
    call.make("out", shape, kind)
    check_numbers("matmul", call.number, alpha=wanted.alpha, beta=beta)
    problem, late = posed_with(infos, wanted)
    problem = problem if wanted.alpha != 0 else problem.without_products()
    call.check_apart(updated=UPDATED)

    # The kernel, its arrays and its numbers.
    seen = {name: call.seen(name, problem.operands[name]) for name in infos}
    row = call.seen("out", as_parameter("bias", problem.operands["out"]))
    seen = {"c": seen["out"], "residual": seen["out"], "bias": row, **seen}  # absent ones are not read
    terms = set[str](infos.keys() & {"c", "bias", "residual", "multiply"})
    terms |= {"alpha"} if wanted.alpha not in (0, 1) else set()
    terms |= {"dropout"} if wanted.dropped.probability else set()
    terms |= {"saturate"} if wanted.saturate else set()
    terms |= {"activation"} if wanted.activation is not None else set()
    rank = len(problem.batch)
    rare = tuple(name for name in ("multiply", "dropout") if name in terms)
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


def is_pair(array: Any) -> bool:
    """Whether an argument is a pair of real and imaginary parts, or PyTorch's lazy conjugate.

    A list of two rows of numbers is not a pair.
    """
    lazy = getattr(array, "is_conj", None)
    if isinstance(array, tuple | list):
        return len(array) == 2 and not any(isinstance(part, tuple | list | int | float) for part in array)
    return callable(lazy) and bool(lazy())


def check_real(op: str, wanted: Wanted) -> None:
    """Refuse a complex alpha or beta of real arrays.

    Args:
        op: the operation's name in messages.
        wanted: the arguments of the call besides its arrays.
    """
    for name in ("alpha", "beta"):
        given = getattr(wanted, name)
        if isinstance(given, complex | np.complexfloating):
            raise LaunchError(
                f"{op}: {name}={shown(given)} is complex and the arrays are real; nearest legal choice: "
                f"{name}={given.real:g}, or complex arrays"
            )


def widened_on(dtype: DType, features: frozenset[str]) -> tuple[DType, ...]:
    """``(f16,)`` for fp8 numbers that matrix cores do not multiply as they are, but as f16; else ``()``.

    Args:
        dtype: dtype of the operands.
        features: features of the architecture; matrix cores are AMD's.

    Example:
        >>> widened_on(dtypes.f8e4m3, frozenset({"gfx11"})), widened_on(dtypes.f8e4m3, frozenset({"gfx12"}))
        ((f16,), ())
    """
    lacks = dtype in FP8 and nearest(dtype, dtypes.f32, features) is None
    return (dtypes.f16,) if lacks and nearest(dtypes.f16, dtypes.f32, features) else ()


def of_sums(precision: str, dtype: DType) -> str:
    """Precision of the sums in a kernel that multiplies a dtype without conversion."""
    if dtype == dtypes.f32:
        return precision if precision == TF32 else EXACT
    return SUMMED if precision == SUMMED and dtype.is_float and dtype.bits < 32 else EXACT


def as_parameter(name: str, matrices: Matrices) -> Matrices:
    """Return an array as a kernel takes it: scales and biases have fewer dimensions than the matrices.

    Args:
        name: the parameter of the kernel.
        matrices: the array in the problem.
    """
    if name == "scale_a":
        return matrices.without(-1)
    if name.startswith("scale_"):
        return matrices.without(-2)
    return matrices.without(*range(len(matrices.shape) - 1)) if name.startswith("bias") else matrices


def scale_of_c(call: Call, beta: Any) -> Any:
    """The factor of ``c``; without ``c`` it multiplies ``out``, which is added to the arrays as ``c``."""
    if beta is None:
        return 1.0
    if beta != 0 and "c" not in call.arrays:
        if "out" not in call.arrays:
            raise LaunchError(
                f"{call.op}: beta={beta} needs c or out, and neither is given; nearest legal choice: c="
            )
        call.arrays["c"], call.infos["c"] = call.arrays["out"], call.infos["out"]
    return beta


def drop_unread_c(call: Call, beta: Any, shape: tuple[int, ...]) -> None:
    """Check the shape of ``c``, and remove it from the call if ``beta`` is 0.

    Args:
        call: the arrays of the call.
        beta: the factor of ``c``.
        shape: the shape of the result.

    Raises:
        LaunchError: ``c`` is not broadcast to the result.
    """
    if "c" in call.infos and beta == 0:
        check_broadcast("c", call.infos.pop("c"), shape)
        del call.arrays["c"]


# ---------------------------------------------------------------- prepasses that rewrite operands in memory


LAUNCH_US = 4.0
"""Overhead of one more kernel launch, in µs."""

DENSE_SHARE = 0.7
"""Fraction of the peak rate that products of dense operands reach.

Measured on an H200: f16 and tf32 reach 0.44 to 0.52 at 1024, where the launch counts, and 0.67 to 0.78 at
2048 to 8192; multiply-adds of f32 reach 0.66 to 0.69.
"""


def prepass_pays(
    flops: float, kind: str, moved_bytes: float, share: float, machine: tuple[Arch, int]
) -> bool:
    """Estimate whether a prepass that makes operands dense saves more time than it takes.

    Args:
        flops: additions and multiplications of the product.
        kind: name of the multiplied dtype.
        moved_bytes: bytes that the prepass reads and writes.
        share: fraction of the peak rate that the product reaches without the prepass.
        machine: architecture and number of processors.
    """
    arch, processors = machine
    if arch.rates is None:
        return False
    board = arch.rates.boards[0]
    units = arch.rates.tensor_flops if kind in arch.rates.tensor_flops else arch.rates.fma_flops
    work = flops / (units[kind] * (processors or board.multiprocessors) * board.clock_mhz)
    return work / DENSE_SHARE + copied_us(moved_bytes, arch) + LAUNCH_US < work / share


def copied_us(moved_bytes: float, arch: Arch) -> float:
    """Time to read and write a number of bytes, in µs; 0 if the rate is not known."""
    if arch.rates is None:
        return 0.0
    board = arch.rates.boards[0]
    return moved_bytes / (board.copied_gbytes_per_s or board.memory_gbytes_per_s) / 1e3


# ----------------------------------------------------------------
#
# Products of f32 on tensor cores, and the sizes from which their prepasses pay.


MOST_RANK = 2
"""Most batch dimensions of an operand that is split."""

FASTER_FROM = 2.0**28
"""Least number of multiplications for which splitting the operands is faster than multiply-adds of f32."""


MOST_ITEMS = 65535
"""Most batches along one dimension: the limit of a grid axis."""


LEAST_REWRITTEN = 2.0**26
"""Least number of multiplications for which anything is rewritten; fewer take less time than a launch."""


def is_split(
    kinds: Mapping[str, DType],
    precision: str,
    how: Schedule | Splitting | None,
    target: str,
    size: float,
    *,
    fits: bool = True,
    from_size: float = FASTER_FROM,
) -> bool:
    """Whether to split operands of f32 in halves, which tensor cores multiply.

    Args:
        kinds: dtypes of the arrays, by name.
        precision: the caller's precision.
        how: the caller's schedule, or constraints on one.
        target: name of the target.
        size: number of multiplications.
        fits: whether the prepass can split the operands, unless the caller's schedule asks for it.
        from_size: least number of multiplications for which splitting is faster.
    """
    if precision not in HALVES_OF or kinds["a"] != dtypes.f32:
        return False
    if isinstance(how, Schedule):
        return how.atom.a_dtype == dtypes.f16
    is_wide = dtypes.f64 in kinds.values()
    has_units = TARGETS[target].warps and TARGETS[target].machine_code
    is_large = size >= from_size or (how is not None and how.batch_invariant)
    return bool(has_units) and not is_wide and fits and is_large


def pays(problem: Problem, from_size: float = FASTER_FROM, *, batch_invariant: bool) -> bool:
    """Whether a product on tensor cores with a prepass is faster than multiply-adds of f32.

    Args:
        problem: the product.
        from_size: least number of multiplications for which it is.
        batch_invariant: whether the answer must not depend on the number of rows.
    """
    return is_flat(problem) and (batch_invariant or multiplications(problem) >= from_size)


def is_flat(problem: Problem) -> bool:
    """Whether the batches of both operands have few dimensions, each of which an axis of a grid can have."""
    operands = (problem.operands["a"], problem.operands["b"])
    ranks = (len(one.shape) - 2 for one in operands)
    return max(ranks) <= MOST_RANK and max(problem.batch, default=0) <= MOST_ITEMS


def multiplications(problem: Problem) -> int:
    """Number of multiplications of a product."""
    return prod(problem.batch) * problem.m * problem.n * problem.k


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
    """Whether vectors are read as matrices, because they are long.

    Args:
        call: the arrays of the call.
        problem: the product of these arrays.
        wanted: the other arguments of the call.
    """
    if (problem.m, problem.n) != (1, 1) or wanted.how is not None or call.target != CUDA.name:
        return False
    return bool(part(IS_LONG_DOT)(call.infos, problem))
