"""A complex product with everything looked at: its arguments, its shapes, its kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from tilewright import dtypes
from tilewright.dataflow.nodes import EXACT, PRECISIONS
from tilewright.dtypes import DType
from tilewright.dtypes import dtype as dtype_named
from tilewright.errors import DTypeError, LaunchError, close_to, shown
from tilewright.ops.complex_parts import Parts, check_apart, interleaved, named, parts_of
from tilewright.ops.complex_products import OPERANDS, RESULTS, four_products
from tilewright.ops.planning import Wanted, warn
from tilewright.ops.problem import Problem, check_broadcast, describe, result_shape
from tilewright.runtime.backends import backend_for
from tilewright.runtime.fresh import fresh
from tilewright.runtime.kernel import Bound
from tilewright.runtime.strided import Strided
from tilewright.schedule.choose import Splitting
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import TARGETS

METHODS = ("4m",)
"""By how many products of real matrices a complex one is computed."""

SUPPORTED = ("f64", "f32", "f16", "bf16")
"""The dtypes of real and imaginary parts that are multiplied."""


class Asked(NamedTuple):
    """What is asked for besides arrays; the arguments of `complex_matmul` by their names."""

    alpha: complex = 1
    beta: complex | None = None
    conjugate_a: bool = False
    conjugate_b: bool = False
    method: str = METHODS[0]
    precision: str = EXACT
    out_dtype: DType | str | None = None
    how: Schedule | Splitting | None = None
    target: str | None = None
    op: str = "complex_matmul"


def product_of_complex(given: Mapping[str, Any], asked: Asked, stream: Any) -> Any:
    """``out = alpha * op(a) @ op(b) + beta * c`` of complex arrays.

    Args:
        given: the arrays ``a``, ``b``, ``c`` and ``out``; None for those that are not there.
        asked: what is asked for besides.
        stream: the CUDA stream.

    Raises:
        LaunchError: shapes, devices or arguments do not fit.
        DTypeError: an unsupported dtype or mixture.
    """
    _check_words(asked)
    parts = {name: parts_of(asked.op, name, one) for name, one in given.items() if one is not None}
    beta = _scale_of_c(parts, asked)
    kind = _result_dtype(parts, asked)
    shape = result_shape(parts["a"].shape, parts["b"].shape)
    infos = {name: one.info for name, one in named(parts).items()}
    backend = backend_for(asked.op, list(infos.items()), asked.target).name
    if "c" in parts and beta == 0:  # it fits, and is not read
        check_broadcast("c", parts.pop("c").re.info, shape)
    if "out" not in parts:
        parts["out"] = parts_of(asked.op, "out", _new(parts["a"], shape, kind))
    arrays = named(parts)
    problem = describe({name: one.info for name, one in arrays.items()})
    check_apart(asked.op, parts)
    seen = {name: _seen(one, problem, name) for name, one in arrays.items()}
    kernel = _kernel(parts, problem, asked, beta)
    tensors = tuple(seen.get(name, seen["out"]) for name in (*OPERANDS, *RESULTS))
    numbers = (asked.alpha.real, asked.alpha.imag, beta.real, beta.imag)
    _launch(kernel, (*tensors, *numbers), backend, asked, stream)
    return parts["out"].given


def complex_matmul(given: Mapping[str, Any], asked: Mapping[str, Any], stream: Any) -> Any:
    """`complex_matmul`, with its other arguments by the names of `Asked`."""
    return product_of_complex(given, Asked(**asked), stream)


def matmul_of_complex(arrays: Mapping[str, Any], wanted: Wanted, stream: Any) -> Any:
    """`matmul` of complex arrays, given by the names of its arguments.

    Raises:
        LaunchError: also an activation, a bias or a residual, which are functions of real numbers here.
        DTypeError: as `product_of_complex`.
    """
    refused = [name for name in ("bias", "residual") if name in arrays]
    refused += ["activation"] if wanted.activation is not None else []
    if refused:
        raise LaunchError(
            f"matmul: {' and '.join(refused)} of complex arrays; nearest legal choice: c=, which is "
            "broadcast to the result and added"
        )
    asked = Asked(
        wanted.alpha,
        wanted.beta,
        precision=wanted.precision,
        out_dtype=wanted.out_dtype,
        how=wanted.how,
        target=wanted.target,
        op="matmul",
    )
    given = {name: arrays.get(name) for name in ("a", "b", "c", "out")}
    return product_of_complex(given, asked, stream)


def _launch(kernel: Bound, arguments: tuple[Any, ...], backend: str, asked: Asked, stream: Any) -> None:
    names = (parameter.name for parameter in kernel.program.parameters if parameter.kind == "tensor")
    infos = {name: one.info for name, one in zip(names, arguments, strict=False)}
    plan, pointers = kernel.planned(arguments, backend, infos)
    if TARGETS[backend].warps and not isinstance(asked.how, Schedule):
        warn(plan.prepared.executable)
    plan.prepared.launch(arguments, pointers, stream)


def _kernel(parts: Mapping[str, Parts], problem: Problem, asked: Asked, beta: complex) -> Bound:
    """The kernel of a product, and what is done with its sums."""
    terms = {"alpha"} if asked.alpha != 1 else set()
    terms |= {"turn"} if asked.alpha.imag else set()
    terms |= {"c"} if "c" in parts else set()
    terms |= {"turn c"} if "c" in parts and beta.imag else set()
    kinds = {one.dtype for one in parts.values()}
    number = dtypes.f64 if dtypes.f64 in kinds else dtypes.f32
    pairs = ((asked.conjugate_a, "a"), (asked.conjugate_b, "b"), (False, "c"))
    conjugates = tuple(wanted ^ parts[name].is_conjugate for wanted, name in pairs if name in parts)
    return four_products(len(problem.batch), number).bind(
        # Other numbers than those of f32 are multiplied as they are in any case.
        precision=asked.precision if parts["a"].dtype == dtypes.f32 else EXACT,
        terms=frozenset(terms),
        conjugates=(*conjugates, False)[:3],
        schedule=asked.how,
    )


def _seen(array: Strided, problem: Problem, name: str) -> Strided:
    matrices = problem.operands[name]
    return Strided(array.array, replace(array.info, shape=matrices.shape, strides=matrices.strides))


def _new(like: Parts, shape: tuple[int, ...], kind: DType) -> Any:
    """A new result, of one array if that is what ``a`` is, else of two."""
    if like.is_planar:
        makes = fresh(like.given[0], shape, kind)
        return makes.make(), makes.make()
    return fresh(like.given, shape, interleaved(kind)).make()


def _check_words(asked: Asked) -> None:
    """Refuse a precision or a method that does not exist."""
    for name, words in (("precision", PRECISIONS), ("method", METHODS)):
        given = getattr(asked, name)
        if given not in words:
            near = close_to(given, words) if isinstance(given, str) else ""
            raise LaunchError(f"{name}={shown(given)}; choose one of {', '.join(words)}{near}")


def _scale_of_c(parts: dict[str, Parts], asked: Asked) -> complex:
    """What ``c`` is multiplied by; without ``c`` it is ``out``, which is added to the arrays as such."""
    if asked.beta is None:
        return 1
    if asked.beta != 0 and "c" not in parts:
        if "out" not in parts:
            raise LaunchError(
                f"{asked.op}: beta={asked.beta} multiplies neither c nor out; nearest legal choice: c="
            )
        parts["c"] = parts["out"]
    return asked.beta


def _result_dtype(parts: Mapping[str, Parts], asked: Asked) -> DType:
    """The dtype of the parts of the result.

    Raises:
        DTypeError: a mixture, a dtype that has no product, or a result whose imaginary parts would be lost.
    """
    a, b = parts["a"], parts["b"]
    if a.dtype != b.dtype:
        raise DTypeError(f"{asked.op} of {a.name_of_dtype} and {b.name_of_dtype}: convert one of them first")
    if a.dtype.name not in SUPPORTED:
        raise DTypeError(
            f"{asked.op}: no product of {a.name_of_dtype} yet; nearest: pairs of {', '.join(SUPPORTED)}"
        )
    if asked.out_dtype is None:
        return parts["out"].dtype if "out" in parts else a.dtype
    wanted = dtype_named(asked.out_dtype)
    if wanted.components != 2 and not (a.is_planar and wanted.is_float):
        raise DTypeError(
            f"out_dtype is {wanted}, a @ b is complex: the imaginary parts would be lost; nearest legal "
            "choice: c64"
        )
    if "out" in parts:
        raise DTypeError(
            f"out is {parts['out'].name_of_dtype}, and out_dtype={wanted}; nearest legal choice: "
            "one of them alone"
        )
    return wanted.component
