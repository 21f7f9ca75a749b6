"""Plans `matmul`: checks arguments, shapes and memory, and binds the kernel."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from tilewright import dtypes
from tilewright.calls import launches
from tilewright.dataflow.nodes import EXACT, SUMMED, TF32
from tilewright.dtypes import FP8, DType
from tilewright.errors import LaunchError, close_to, shown
from tilewright.namespaces import part
from tilewright.ops.ending import ACTIVATIONS
from tilewright.ops.launching import Call, Launch, LaunchPlan
from tilewright.ops.prepasses import HALVES_OF, multiplying
from tilewright.ops.problem import Matrices, check_broadcast, problem_of, result_shape
from tilewright.ops.products import combined, plain
from tilewright.ops.replay import Done, Located
from tilewright.ops.results import check_sums, result_dtype
from tilewright.runtime.aliases import is_same
from tilewright.runtime.arrays import ArrayInfo, describe, overlap, sharing
from tilewright.runtime.backends import arch_of
from tilewright.runtime.binding import check_output
from tilewright.runtime.binding import number as held_number
from tilewright.runtime.frameworks import Strided
from tilewright.schedule.question import Splitting
from tilewright.schedule.schedule import Reduction, Schedule, SplitK
from tilewright.targets.matrix_cores import nearest
from tilewright.targets.target import HOST, TARGETS

INTEGERS = "tilewright.ops.integers:whole_product"
"""Says how integers are multiplied; loaded for the first."""

COMPLEX = "tilewright.ops.complex_matmul:multiplied"
"""Multiplies complex arrays. Imported when the first are multiplied."""


class Wanted(NamedTuple):
    """What is asked for besides arrays; the arguments of `matmul` by their names, the numbers first."""

    alpha: complex = 1.0
    beta: complex | None = None
    activation: str | None = None
    precision: str = "exact"
    out_dtype: DType | str | None = None
    schedule: Schedule | None = None
    target: str | None = None
    split_k: int | str | None = None
    reduction: str | None = None
    batch_invariant: bool = False

    @property
    def words(self) -> tuple[Any, ...]:
        """All but the numbers: what a plan depends on, whatever numbers it is launched with."""
        return self[2:]

    @property
    def how(self) -> Schedule | Splitting | None:
        """What is known of the schedule; None: nothing."""
        splitting = Splitting(self.split_k, self.reduction, self.batch_invariant)
        return splitting if self.schedule is None and splitting != Splitting() else self.schedule


@launches.of("matmul")
def asked(
    alpha: complex = 1.0,
    beta: complex | None = None,
    activation: str | None = None,
    precision: str = "exact",
    out_dtype: DType | str | None = None,
    schedule: Schedule | None = None,
    target: str | None = None,
    split_k: SplitK | None = None,
    reduction: Reduction | None = None,
    batch_invariant: bool = False,
) -> Wanted:
    """What is asked for besides arrays.

    Raises:
        LaunchError: an argument of another kind.
    """
    wanted = Wanted(alpha, beta, activation, precision, out_dtype, schedule, target)
    wanted = wanted._replace(split_k=split_k, reduction=reduction, batch_invariant=batch_invariant)
    check_splitting(wanted)
    return wanted


def check_splitting(wanted: Wanted, op: str = "matmul") -> None:
    """A schedule says itself how K is split; atomics add in no order.

    Args:
        wanted: what is asked for.
        op: what errors call the product.
    """
    splitting = Splitting(wanted.split_k, wanted.reduction, wanted.batch_invariant)
    if wanted.schedule is not None and splitting != Splitting():
        raise LaunchError(
            f"{op}: schedule= says how K is split, and so do split_k, reduction and batch_invariant; "
            "nearest legal choice: one or the other, as in schedule=tw.Schedule(..., split_k=4)"
        )
    if wanted.batch_invariant and wanted.split_k == "stream":
        raise LaunchError(
            f'{op}: batch_invariant=True with split_k="stream", whose shares begin where the number of rows '
            'puts them; nearest legal choice: split_k="auto"'
        )
    if wanted.batch_invariant and wanted.reduction == "atomic":
        raise LaunchError(
            f'{op}: batch_invariant=True with reduction="atomic", which adds parts as they come; '
            'nearest legal choice: reduction="workspace"'
        )


ARRAYS = ("a", "b", "out", "c", "bias", "residual")
"""The arrays of a call."""

UPDATED = ("c", "residual")
"""Arrays that may be the result: a thread reads an element of them before it stores that element."""

PLAIN = ("a", "b", "out")
"""The arrays of the kernel of a product and nothing else, in its order."""

COMBINED = ("a", "b", "c", "bias", "residual", "out")
"""Those of the kernel that does something with the sums; for what it does not read it is given ``out``."""


def multiplied(
    given: Mapping[str, Any], wanted: Wanted, stream: Any, located: Sequence[Located] = ()
) -> Done:
    """Check everything about a call of `matmul`, plan it, and launch it; of complex arrays `complex_matmul`.

    Args:
        given: the arrays by the names of `ARRAYS`; None for one that is not given.
        wanted: what is asked for besides.
        stream: the caller's.
        located: the keys and addresses of the arrays, if those were read.

    Raises:
        LaunchError: shapes, devices or arguments do not fit.
        DTypeError: an unsupported dtype or mixture.
    """
    check_words(wanted)
    known = dict[str, ArrayInfo]()
    if not (_is_pair(given["a"]) or _is_pair(given["b"])):
        read = dict(zip(given, located, strict=False))
        for name in ("a", "b"):
            known[name] = describe(given[name], f"matmul, argument {name}", located=read.get(name))
    if not known or 2 in (info.dtype.components for info in known.values()):
        return Done(_product_of_complex(given, wanted, stream), None)
    return plan_matmul(given, wanted, located, known).launch(stream)


def _product_of_complex(given: Mapping[str, Any], wanted: Wanted, stream: Any) -> Any:
    """`matmul` of complex arrays.

    Raises:
        LaunchError: also an activation, a bias or a residual, which are functions of real numbers here.
    """
    if added := [name for name in ("bias", "residual") if given.get(name) is not None]:
        raise LaunchError(
            f"matmul: {' and '.join(added)} of complex arrays; nearest legal choice: c=, which is "
            "broadcast to the result and added"
        )
    if wanted.activation is not None:
        raise LaunchError(
            f"matmul: activation={shown(wanted.activation)} of complex arrays, where it is not defined; "
            "nearest legal choice: None"
        )
    arrays = tuple(given.get(name) for name in ("a", "b", "c", "out"))
    options = (False, False, "4m", wanted.precision, wanted.out_dtype)
    how = (wanted.schedule, wanted.split_k, wanted.reduction, wanted.batch_invariant, wanted.target)
    return part(COMPLEX)("matmul", arrays, (wanted.alpha, wanted.beta), (*options, *how), stream)


def plan_matmul(
    given: Mapping[str, Any],
    wanted: Wanted,
    located: Sequence[Located] = (),
    known: Mapping[str, ArrayInfo] = MappingProxyType({}),
) -> LaunchPlan:
    """The launches of `matmul` of real numbers.

    Args:
        given: the arrays by the names of `ARRAYS`; None for one that is not given.
        wanted: what is asked for besides.
        located: the keys and addresses of the arrays, if those were read.
        known: descriptions of arrays that there are already.

    Raises:
        LaunchError: shapes, devices or arguments do not fit.
        DTypeError: an unsupported dtype or mixture.
    """
    call = Call.of("matmul", given, located=located, known=known)
    arrays, infos = call.arrays, call.infos
    _refuse_complex_numbers(wanted)
    beta = _scale_of_c(call, wanted.beta)
    is_whole = not infos["a"].dtype.is_float or not infos["b"].dtype.is_float
    whole = part(INTEGERS)(infos, wanted) if is_whole else None
    kind = result_dtype(infos, wanted) if whole is None else whole.result
    shape = result_shape(infos["a"].shape, infos["b"].shape)
    backend = call.serve(wanted.target)
    if "c" in infos and beta == 0:  # it fits, and is not read
        check_broadcast("c", infos.pop("c"), shape)
        del arrays["c"]
    check_sums("matmul", infos, infos["a"].shape[-1] if wanted.alpha != 0 else 0, kind, wanted)
    call.make("out", shape, kind)
    check_numbers("matmul", number_dtype(infos), alpha=wanted.alpha, beta=beta)
    problem = problem_of(infos) if wanted.alpha != 0 else problem_of(infos).without_products()
    check_apart(infos, updated=UPDATED)
    call.updated = frozenset(("out", name) for name in UPDATED)
    seen = {name: seen_as(arrays[name], infos[name], problem.operands[name]) for name in arrays}
    terms = _terms(arrays, wanted)
    plan_product = multiplying(infos, problem, wanted.precision, wanted.how, backend)
    if plan_product is not None:
        asked = {
            "grade": wanted.precision,
            "terms": terms,
            "activation": wanted.activation,
            "schedule": wanted.how,
            "alpha": wanted.alpha,
            "beta": beta,
            "on_host": not TARGETS[backend.name].warps,
        }
        made: LaunchPlan = plan_product(call, _with_absent(seen), problem, asked)
        return made
    features = arch_of(backend, None).features if infos["a"].dtype in FP8 else frozenset()
    multiplied = widened_on(infos["a"].dtype, features) if wanted.schedule is None else ()
    names, rank = COMBINED if terms else PLAIN, len(problem.batch)
    numbers: tuple[Any, ...] = ()
    if whole is not None:
        kernel = plain(rank, whole.multiplied).bind(precision=EXACT, schedule=wanted.how)
        on_gpu = TARGETS[backend.name].memory != HOST
        seen |= {name: whole.seen(seen[name], on_gpu=on_gpu) for name in ("a", "b")}
        names = PLAIN
    elif terms:
        kernel = combined(rank, number_dtype(infos), *multiplied).bind(
            precision=of_sums(wanted.precision, infos["a"].dtype),
            terms=terms,
            activation=wanted.activation,
            schedule=wanted.how,
        )
        numbers = (wanted.alpha, beta)
    else:
        precision = of_sums(wanted.precision, infos["a"].dtype)
        kernel = plain(rank, *multiplied).bind(precision=precision, schedule=wanted.how)
    seen = _with_absent(seen)
    product = Launch(kernel, tuple(seen[name] for name in names), call.stand_ins(names), numbers)
    return call.plan(product, warns=wanted.schedule is None)


def _is_pair(array: Any) -> bool:
    """Whether an array is complex as it is given: real and imaginary parts, or PyTorch's lazy conjugate.

    Two rows of numbers are no pair, though they are no array either.
    """
    lazy = getattr(array, "is_conj", None)
    if isinstance(array, tuple | list):
        return len(array) == 2 and not any(isinstance(part, tuple | list | int | float) for part in array)
    return callable(lazy) and bool(lazy())


def _refuse_complex_numbers(wanted: Wanted) -> None:
    for name in ("alpha", "beta"):
        given = getattr(wanted, name)
        if isinstance(given, complex | np.complexfloating):
            raise LaunchError(
                f"matmul: {name}={shown(given)} beside arrays of real numbers; nearest legal choice: "
                f"{name}={given.real:g}, or complex arrays"
            )


def widened_on(dtype: DType, features: frozenset[str]) -> tuple[DType, ...]:
    """f16, if it holds the numbers of a dtype and matrix cores multiply it alone; else nothing.

    Args:
        dtype: of the operands.
        features: what the architecture has; matrix cores are those of AMD.

    Example:
        >>> widened_on(dtypes.f8e4m3, frozenset({"gfx11"})), widened_on(dtypes.f8e4m3, frozenset({"gfx12"}))
        ((f16,), ())
    """
    lacks = dtype in FP8 and nearest(dtype, dtypes.f32, features) is None
    return (dtypes.f16,) if lacks and nearest(dtypes.f16, dtypes.f32, features) else ()


def _with_absent(seen: Mapping[str, Strided]) -> dict[str, Strided]:
    """All arrays; what is not there is not read, and any array of the shape stands for it."""
    return {"c": seen["out"], "residual": seen["out"], "bias": _row(seen["out"]), **seen}


def number_dtype(infos: Mapping[str, ArrayInfo]) -> DType:
    """The dtype in which all but the sums is computed, and of alpha and beta.

    In f64 integers of 32 bits, and arrays of f64, lose nothing before the result is rounded.
    """
    wide = dtypes.f64 in {info.dtype for info in infos.values()} or not infos["a"].dtype.is_float
    return dtypes.f64 if wide else dtypes.f32


def said(number: Any) -> str:
    """What a plan depends on of alpha and of beta: fractions, of which integers refuse to be multiples."""
    if number is None:
        return ""
    # By 1 nothing is multiplied, and what is multiplied by 0 is not read.
    if number in (0, 1):
        return str(int(number))
    return "whole" if isinstance(number, int) or float(number).is_integer() else "fraction"


def check_numbers(op: str, kind: DType, **numbers: Any) -> None:
    """Refuse numbers of a call that the dtype in which they are multiplied makes infinite or 0.

    Args:
        op: what errors call the operation.
        kind: the dtype.
        numbers: by the names of the arguments.

    Raises:
        LaunchError: one is none, or becomes infinite or 0; says the nearest that does not.
    """
    for name, given in numbers.items():
        parts = {name: given}
        if isinstance(given, complex | np.complexfloating):
            parts = {f"{name}.real": given.real, f"{name}.imag": given.imag}
        for part_name, value in parts.items():
            held_number(f"{op}: {part_name}", kind, value)


def of_sums(precision: str, dtype: DType) -> str:
    """How exact the sums of a kernel are that multiplies numbers of a dtype as they are."""
    if dtype == dtypes.f32:
        return precision if precision == TF32 else EXACT
    return SUMMED if precision == SUMMED and dtype.is_float and dtype.bits < 32 else EXACT


def _terms(arrays: Mapping[str, Any], wanted: Wanted) -> frozenset[str]:
    """What is done with the sums; empty if they are the result."""
    terms = {name for name in ("c", "bias", "residual") if name in arrays}
    terms |= {"alpha"} if wanted.alpha not in (0, 1) else set()
    return frozenset(terms | ({"activation"} if wanted.activation is not None else set()))


def seen_as(array: Any, info: ArrayInfo, matrices: Matrices) -> Strided:
    """An array as the matrices of a problem."""
    return Strided(array, replace(info, shape=matrices.shape, strides=matrices.strides))


def _row(given: Strided) -> Strided:
    info = given.info
    return Strided(given.array, replace(info, shape=info.shape[-1:], strides=info.strides[-1:]))


def check_words(wanted: Wanted) -> None:
    """Refuse a precision or an activation that does not exist."""
    for name, words in (("precision", (EXACT, TF32, *HALVES_OF)), ("activation", tuple(ACTIVATIONS))):
        given = getattr(wanted, name)
        if (name == "precision" or given is not None) and given not in words:
            near = close_to(given, words) if isinstance(given, str) else ""
            raise LaunchError(f"{name}={shown(given)}; choose one of {', '.join(words)}{near}")


def _scale_of_c(call: Call, beta: Any) -> Any:
    """The factor of ``c``; without ``c`` it multiplies ``out``, which is added to the arrays as ``c``."""
    if beta is None:
        return 1.0
    if beta != 0 and "c" not in call.arrays:
        if "out" not in call.arrays:
            raise LaunchError(f"matmul: beta={beta} multiplies neither c nor out; nearest legal choice: c=")
        call.arrays["c"], call.infos["c"] = call.arrays["out"], call.infos["out"]
    return beta


def check_apart(infos: Mapping[str, ArrayInfo], written: str = "out", updated: Collection[str] = ()) -> None:
    """An array that is written can be, and shares no memory with another one.

    Args:
        infos: the arrays of a call.
        written: the name of one that is written.
        updated: arrays that may be the same one, element for element.

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
