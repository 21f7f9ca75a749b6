"""Plans `matmul`: checks arguments, shapes and memory, and binds the kernel."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from tilewright import dtypes
from tilewright.dataflow.nodes import EXACT, SUMMED, TF32
from tilewright.dtypes import FP8, DType
from tilewright.errors import LaunchError, shown
from tilewright.namespaces import part
from tilewright.ops.ending import LateTerms
from tilewright.ops.launching import Call, Launch, LaunchPlan
from tilewright.ops.prepasses import multiplying
from tilewright.ops.problem import Matrices, Problem, check_broadcast, problem_of, result_shape
from tilewright.ops.products import combined, plain
from tilewright.ops.replay import Done, Located
from tilewright.ops.results import check_sums, result_dtype, whole_product
from tilewright.ops.wanted import Wanted, check_derivative, check_numbers, check_words
from tilewright.runtime.aliases import is_same
from tilewright.runtime.arrays import ArrayInfo, describe, overlap, sharing
from tilewright.runtime.backends import arch_of
from tilewright.runtime.binding import check_output
from tilewright.runtime.frameworks import Strided
from tilewright.targets.matrix_cores import nearest
from tilewright.targets.target import HOST, TARGETS

COMPLEX = "tilewright.ops.complex_matmul:multiplied"
"""Multiplies complex arrays. Imported when the first are multiplied."""


ARRAYS = ("a", "b", "out", "c", "bias", "residual", "multiply")
"""The arrays of a call."""

UPDATED = ("c", "residual")
"""Arrays that may be the result: a thread reads an element of them before it stores that element."""

PLAIN = ("a", "b", "out")
"""The arrays of the kernel of a product without terms, in its order."""

COMBINED = ("a", "b", "c", "bias", "residual", "out")
"""The arrays of the kernel with terms after the sums; ``out`` stands for absent ones, which are not read."""

INDEX = "index"
"""Stands for an array with the number of each element of the result; dropout depends on these numbers."""


def multiplied(
    given: Mapping[str, Any], wanted: Wanted, stream: Any, located: Sequence[Located] = ()
) -> Done:
    """Check a call of `matmul`, plan it, and launch it; complex arrays go to `complex_matmul`.

    Args:
        given: the arrays by the names of `ARRAYS`; None for an absent one.
        wanted: the other arguments of the call.
        stream: the caller's stream.
        located: the keys and addresses of the arrays, if the caller has read them.

    Raises:
        LaunchError: shapes, devices or arguments do not fit.
        DTypeError: an unsupported dtype or mixture.
    """
    check_words(wanted)
    known = dict[str, ArrayInfo]()
    if not (is_pair(given["a"]) or is_pair(given["b"])):
        read = dict(zip(given, located, strict=False))
        for name in ("a", "b"):
            known[name] = describe(given[name], f"matmul, argument {name}", located=read.get(name))
    if not known or 2 in (info.dtype.components for info in known.values()):
        check_complex("matmul", given, wanted)
        arrays = tuple(given.get(name) for name in ("a", "b", "c", "out"))
        options = (False, False, "4m", wanted.precision, wanted.out_dtype)
        how = (wanted.schedule, wanted.split_k, wanted.reduction, wanted.batch_invariant, wanted.target)
        factors = (wanted.alpha, wanted.beta)
        return Done(part(COMPLEX)("matmul", arrays, factors, (*options, *how), stream), None)
    return plan_matmul(given, wanted, located, known).launch(stream)


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
    if wanted.activation is not None:
        raise LaunchError(
            f"{op}: activation={shown(wanted.activation)} with complex arrays; activations are defined for "
            "real numbers only; nearest legal choice: None"
        )
    late = {"multiply": given.get("multiply") is not None, "derivative": wanted.derivative is not None}
    late |= {"dropout": bool(wanted.dropped.probability), "saturate": wanted.saturate}
    if there := [name for name, is_there in late.items() if is_there]:
        raise LaunchError(
            f"{op}: {' and '.join(there)} with complex arrays; nearest legal choice: compute the product, "
            "then apply a function of NumPy or of your framework"
        )


def plan_matmul(
    given: Mapping[str, Any],
    wanted: Wanted,
    located: Sequence[Located] = (),
    known: Mapping[str, ArrayInfo] = MappingProxyType({}),
) -> LaunchPlan:
    """The launches of `matmul` of real numbers.

    Args:
        given: the arrays by the names of `ARRAYS`; None for an absent one.
        wanted: the other arguments of the call.
        located: the keys and addresses of the arrays, if the caller has read them.
        known: existing descriptions of arrays.

    Raises:
        LaunchError: shapes, devices or arguments do not fit.
        DTypeError: an unsupported dtype or mixture.
    """
    call = Call.of("matmul", given, located=located, known=known)
    arrays, infos = call.arrays, call.infos
    check_real("matmul", wanted)
    check_derivative("matmul", wanted.derivative, multiplies="multiply" in arrays)
    beta = scale_of_c(call, wanted.beta)
    is_whole = not infos["a"].dtype.is_float or not infos["b"].dtype.is_float
    whole = whole_product(infos, wanted) if is_whole else None
    kind = result_dtype(infos, wanted) if whole is None else whole.result
    shape = result_shape(infos["a"].shape, infos["b"].shape)
    backend = call.serve(wanted.target)
    drop_unread_c(call, beta, shape)
    check_sums("matmul", infos, infos["a"].shape[-1] if wanted.alpha != 0 else 0, kind, wanted)
    call.make("out", shape, kind)
    check_numbers("matmul", number_dtype(infos), alpha=wanted.alpha, beta=beta)
    problem, late = posed_with(infos, wanted)
    problem = problem if wanted.alpha != 0 else problem.without_products()
    check_updated(call)
    seen = {name: seen_as(arrays[name], infos[name], problem.operands[name]) for name in arrays}
    terms = _terms(arrays, wanted)
    rare = tuple(name for name in ("multiply", "dropout") if name in terms)
    ending = {"terms": terms, "activation": wanted.activation, "late": late, "schedule": wanted.how}
    numbers: tuple[Any, ...] = (wanted.alpha, beta)
    numbers += wanted.dropped.numbers if "dropout" in rare else ()
    names, rank = (*COMBINED, *(name for name in rare if name in arrays)), len(problem.batch)
    how = (wanted.precision, wanted.how, backend)
    plan_product = multiplying(infos, problem, *how, is_plain=not terms)
    if plan_product is not None:
        seen = _with_absent(seen)
        asked = {
            "grade": wanted.precision,
            "arrays": {name: seen[name] for name in names},
            "rare": rare,
            "ending": ending,
            "numbers": numbers,
            "on_host": not TARGETS[backend.name].warps,
        }
        made: LaunchPlan = plan_product(call, problem, asked)
        return made
    features = arch_of(backend, None).features if infos["a"].dtype in FP8 else frozenset()
    multiplied = widened_on(infos["a"].dtype, features) if wanted.schedule is None else ()
    if whole is not None:
        kernel = plain(rank, whole.multiplied).bind(precision=EXACT, schedule=wanted.how)
        on_gpu = TARGETS[backend.name].memory != HOST
        seen |= {name: whole.seen(seen[name], on_gpu=on_gpu) for name in ("a", "b")}
        names, numbers = PLAIN, ()
    elif terms:
        precision = of_sums(wanted.precision, infos["a"].dtype)
        to = multiplied[0] if multiplied else None
        kernel = combined(rank, number_dtype(infos), to, rare).bind(precision=precision, **ending)
    else:
        precision = of_sums(wanted.precision, infos["a"].dtype)
        kernel = plain(rank, *multiplied).bind(precision=precision, schedule=wanted.how)
        names, numbers = PLAIN, ()
    seen = _with_absent(seen)
    product = Launch(kernel, tuple(seen[name] for name in names), call.stand_ins(names), numbers)
    return call.plan(product, warns=wanted.schedule is None)


def posed_with(arrays: Mapping[str, ArrayInfo], wanted: Wanted) -> tuple[Problem, LateTerms]:
    """The problem of the arrays, and the constants of the terms after the activation.

    Dropout needs the place of each element in the result.  The numbers of elements are therefore an array of
    the problem: dimensions are joined only if neighbours have neighbouring numbers.

    Args:
        arrays: the arrays for `problem_of`.
        wanted: the other arguments of the call.
    """
    late = wanted.late
    if not wanted.dropped.probability:
        return problem_of(arrays), late
    steps, count = list[int](), 1
    for extent in reversed(arrays["out"].shape):
        steps.append(count)
        count *= extent
    problem = problem_of({**arrays, INDEX: replace(arrays["out"], strides=tuple(reversed(steps)))})
    strides = problem.operands[INDEX].strides
    order = tuple(sorted(range(len(strides)), key=lambda dim: -strides[dim]))
    return problem, replace(late, order=order)


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


def _with_absent(seen: Mapping[str, Strided]) -> dict[str, Strided]:
    """All arrays; another array of the same shape replaces an absent one, which is not read."""
    return {"c": seen["out"], "residual": seen["out"], "bias": _row(seen["out"]), **seen}


def number_dtype(infos: Mapping[str, ArrayInfo]) -> DType:
    """The dtype of alpha and beta, and of all computations but the sums.

    It is f64 for integers and arrays of f64, so that only the result is rounded.
    """
    wide = dtypes.f64 in {info.dtype for info in infos.values()} or not infos["a"].dtype.is_float
    return dtypes.f64 if wide else dtypes.f32


def of_sums(precision: str, dtype: DType) -> str:
    """Precision of the sums in a kernel that multiplies a dtype without conversion."""
    if dtype == dtypes.f32:
        return precision if precision == TF32 else EXACT
    return SUMMED if precision == SUMMED and dtype.is_float and dtype.bits < 32 else EXACT


def _terms(arrays: Mapping[str, Any], wanted: Wanted) -> frozenset[str]:
    """The names of the terms after the sums; empty if the sums are the result."""
    terms = {name for name in ("c", "bias", "residual", "multiply") if name in arrays}
    terms |= {"alpha"} if wanted.alpha not in (0, 1) else set()
    terms |= {"dropout"} if wanted.dropped.probability else set()
    terms |= {"saturate"} if wanted.saturate else set()
    return frozenset(terms | ({"activation"} if wanted.activation is not None else set()))


def seen_as(array: Any, info: ArrayInfo, matrices: Matrices) -> Strided:
    """An array with the shape and strides of its matrices in a problem."""
    return Strided(array, replace(info, shape=matrices.shape, strides=matrices.strides))


def seen_in_kernel(name: str, array: Any, info: ArrayInfo, matrices: Matrices) -> Strided:
    """Return an array as the kernel sees it: scales and biases have fewer dimensions than the matrices.

    Args:
        name: the parameter of the kernel.
        array: the array.
        info: its description.
        matrices: its matrices in the problem.
    """
    dims = [*range(len(matrices.shape))]
    if name == "scale_a":
        del dims[-1]
    elif name.startswith("scale_"):
        del dims[-2]
    elif name.startswith("bias"):
        del dims[:-1]
    shape, strides = (tuple(of[dim] for dim in dims) for of in (matrices.shape, matrices.strides))
    return Strided(array, replace(info, shape=shape, strides=strides))


def _row(given: Strided) -> Strided:
    info = given.info
    return Strided(given.array, replace(info, shape=info.shape[-1:], strides=info.strides[-1:]))


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


def check_updated(call: Call, updated: Collection[str] = UPDATED) -> None:
    """Check that ``out`` shares no memory with other arrays, and record which arrays it may replace.

    Args:
        call: the arrays of the call.
        updated: arrays that may be ``out``, element for element.

    Raises:
        LaunchError: ``out`` cannot be written, or shares memory.
    """
    check_apart(call.infos, updated=updated)
    call.updated = frozenset(("out", name) for name in updated)


def check_apart(infos: Mapping[str, ArrayInfo], written: str = "out", updated: Collection[str] = ()) -> None:
    """Check that a written array is writable, and shares no memory with another array.

    Args:
        infos: the arrays of a call.
        written: the name of the written array.
        updated: arrays that may be the same array, element for element.

    Raises:
        LaunchError: it cannot be written, or shares memory.
    """
    out = infos[written]
    check_output("the call", written, out)
    for name, info in infos.items():
        if name == written or (name in updated and is_same(info, out)):
            continue
        if overlap(out, info):
            why = f"elements of {name} would be overwritten before they are read"
            raise sharing(f"{written} and {name}", why, written)
