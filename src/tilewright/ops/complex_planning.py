"""A complex product with everything looked at: its arguments, its shapes, its kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tilewright import dtypes
from tilewright.dataflow.nodes import EXACT, TF32
from tilewright.dtypes import DType
from tilewright.dtypes import dtype as dtype_named
from tilewright.errors import DTypeError, LaunchError, close_to, shown
from tilewright.ops.complex_parts import Parts, check_apart, interleaved, named, parts_of
from tilewright.ops.complex_products import RESULTS, four_products, terms_of, three_products
from tilewright.ops.complex_recalled import Known, located
from tilewright.ops.complex_ways import METHODS, Way, way_for
from tilewright.ops.planning import Wanted, warn
from tilewright.ops.problem import IMAGINARY, Problem, check_broadcast, describe, result_shape
from tilewright.runtime.arrays import current_stream, stream_handle
from tilewright.runtime.backends import Backend, arch_of, backend_for
from tilewright.runtime.executable import Executable
from tilewright.runtime.fresh import Fresh
from tilewright.runtime.fresh import fresh as fresh_array
from tilewright.runtime.kernel import Bound
from tilewright.runtime.plans import KEPT, Plan, Plans
from tilewright.runtime.recent import Recent
from tilewright.runtime.scratch import scratch
from tilewright.runtime.strided import Strided
from tilewright.schedule.choose import Splitting
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import TARGETS

PRECISIONS = (EXACT, TF32)
"""How exactly parts of f32 are multiplied."""

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


_PLANS = Plans()
_KNOWN: Recent[Any, Known] = Recent(KEPT)


@dataclass(frozen=True)
class Product:
    """A product that fits, and can be launched.

    Args:
        parts: the complex arrays.
        arrays: their real and imaginary parts as the problem has them, by name.
        problem: what is multiplied.
        way: what is launched.
        kernel: the kernel of the product.
        numbers: alpha and beta.
        backend: what serves it.
        fresh: what makes each array of the result; empty where it is given.
    """

    parts: Mapping[str, Parts]
    arrays: Mapping[str, Strided]
    problem: Problem
    way: Way
    kernel: Bound
    numbers: tuple[float, ...]
    backend: Backend
    fresh: tuple[Fresh, ...] = ()

    @property
    def out(self) -> Any:
        """The result."""
        return self.parts["out"].given

    def launch(self, stream: Any = None) -> tuple[Executable, ...]:
        """Launch it; returns what ran, in order."""
        first = self.arrays["a"]
        device = first.info.device
        if not self.way.planes:
            return (self._multiply(self.arrays, stream),)
        if not isinstance(device, str):
            given = [one.array for one in self.arrays.values()]
            stream = current_stream(device, given) if stream is None else stream_handle(stream)
        ran, arrays = [], dict(self.arrays)
        with scratch(self.way.size_bytes, device, stream or 0) as address:
            for one in self.way.planes:
                re, im = (self.arrays[name] for name in (one.name, one.name + IMAGINARY))
                planes = one.placed(re, address)
                address += one.size_bytes
                on_host = not TARGETS[self.backend.name].warps
                bound, arguments = one.launchable(re, im, planes, on_host=on_host)
                ran.append(_launched(bound, arguments, self.backend.name, stream))
                arrays |= planes
            return (*ran, self._multiply(arrays, stream))

    def known(self) -> tuple[Known, Plan] | None:
        """What launches it again on arrays like these; None where that must be looked at each time."""
        if self.way.planes or not TARGETS[self.backend.name].machine_code:
            return (
                None  # the reference reads the arrays themselves, which are not seen as the caller has them
            )
        arguments = self._arguments(self.arrays)
        plan, _ = _planned(self.kernel, arguments, self.backend.name)
        names = [name if name in self.arrays else "out" for name in (*self.way.operands, *RESULTS)]
        places = []
        for name in names:
            whole = name.removesuffix(IMAGINARY)
            whole = "out" if self.parts[whole] is self.parts["out"] else whole
            end = name[len(name.removesuffix(IMAGINARY)) :]
            parts = self.parts[whole]
            offset = parts.dtype.bytes if end and not parts.is_planar else 0
            places.append((whole + end if parts.is_planar else whole, offset))
        in_place = "c" in self.parts and _at_once(self.parts["c"], self.parts["out"])
        known = Known(tuple(places), self.fresh)
        return known, known.apart(plan, in_place=in_place)

    def _arguments(self, arrays: Mapping[str, Strided]) -> tuple[Any, ...]:
        absent = arrays["out"]  # stands for what is not added, and is not read
        tensors = (arrays.get(name, absent) for name in (*self.way.operands, *RESULTS))
        return (*tensors, *self.numbers)

    def _multiply(self, arrays: Mapping[str, Strided], stream: Any) -> Executable:
        executable = _launched(self.kernel, self._arguments(arrays), self.backend.name, stream)
        if TARGETS[self.backend.name].warps and not isinstance(self.kernel.schedule, Schedule):
            warn(executable)
        return executable


def _launched(bound: Bound, arguments: tuple[Any, ...], backend: str, stream: Any) -> Executable:
    plan, pointers = _planned(bound, arguments, backend)
    plan.prepared.launch(arguments, pointers, stream)
    return plan.prepared.executable


def _at_once(one: Parts, other: Parts) -> bool:
    """Whether two complex arrays that fit each other begin at the same addresses."""
    pairs = ((one.re, other.re), (one.im, other.im))
    return one.is_planar == other.is_planar and all(x.info.pointer == y.info.pointer for x, y in pairs)


def _planned(bound: Bound, arguments: tuple[Any, ...], backend: str) -> tuple[Plan, list[int]]:
    names = (parameter.name for parameter in bound.program.parameters if parameter.kind == "tensor")
    infos = {name: one.info for name, one in zip(names, arguments, strict=False)}
    return bound.planned(arguments, backend, infos)


def product_of_complex(given: Mapping[str, Any], asked: Asked) -> Product:
    """``out = alpha * op(a) @ op(b) + beta * c`` of complex arrays, ready to be launched.

    Args:
        given: the arrays ``a``, ``b``, ``c`` and ``out``; None for those that are not there.
        asked: what is asked for besides.

    Raises:
        LaunchError: shapes, devices or arguments do not fit.
        DTypeError: an unsupported dtype or mixture.
    """
    _check_words(asked)
    parts = {name: parts_of(asked.op, name, one) for name, one in given.items() if one is not None}
    alpha, beta = complex(asked.alpha), complex(_scale_of_c(parts, asked))
    kind = _result_dtype(parts, asked)
    shape = result_shape(parts["a"].shape, parts["b"].shape)
    infos = {name: one.info for name, one in named(parts).items()}
    backend = backend_for(asked.op, list(infos.items()), asked.target)
    if "c" in parts and beta == 0:  # it fits, and is not read
        check_broadcast("c", parts.pop("c").re.info, shape)
    fresh: tuple[Fresh, ...] = ()
    if "out" not in parts:
        fresh = _new(parts["a"], shape, kind)
        made = tuple(one.make() for one in fresh)
        parts["out"] = parts_of(asked.op, "out", made if len(made) == 2 else made[0])
    arrays = named(parts)
    problem = describe({name: one.info for name, one in arrays.items()})
    check_apart(asked.op, parts)
    seen = {name: _seen(one, problem, name) for name, one in arrays.items()}
    precision = (
        asked.precision if parts["a"].dtype == dtypes.f32 else EXACT
    )  # others are multiplied as they are
    pairs = ((asked.conjugate_a, "a"), (asked.conjugate_b, "b"), (False, "c"))
    conjugates = tuple(wanted ^ (name in parts and parts[name].is_conjugate) for wanted, name in pairs)
    way = way_for(
        {name: one.info for name, one in seen.items()},
        problem,
        asked.method,
        precision,
        (arch_of(backend, None), backend.processors()),
        asked.how,
        conjugates,
    )
    makes = four_products if way.method == METHODS[0] else three_products
    number = dtypes.f64 if dtypes.f64 in {one.dtype for one in parts.values()} else dtypes.f32
    kernel = makes(len(problem.batch), number).bind(
        precision=precision,
        terms=terms_of(alpha, beta, adds="c" in parts),
        conjugates=conjugates,
        schedule=asked.how,
    )
    numbers = (alpha.real, alpha.imag, beta.real, beta.imag)
    return Product(parts, seen, problem, way, kernel, numbers, backend, fresh)


def complex_matmul(given: Mapping[str, Any], asked: Mapping[str, Any], stream: Any) -> Any:
    """`complex_matmul`, with its other arguments by the names of `Asked`."""
    return _computed(given, Asked(**asked), stream)


def _computed(given: Mapping[str, Any], asked: Asked, stream: Any) -> Any:
    """The result of a product, of which one that is known needs addresses and numbers alone."""
    alpha, beta = complex(asked.alpha), complex(1 if asked.beta is None else asked.beta)
    numbers = (alpha.real, alpha.imag, beta.real, beta.imag)
    said = (alpha == 1, alpha.imag == 0, asked.beta is None, beta == 0, beta.imag == 0)
    found = located(given, (said, asked._replace(alpha=1, beta=None)))
    plan = None if found is None else _PLANS.find(found.key)
    known = None if found is None or plan is None else _KNOWN.get(found.key)
    if found is not None and plan is not None and known is not None:
        made = known.launch(plan, found, numbers, stream)
        if made is not None:
            return given["out"] if made is True else made
    product = product_of_complex(given, asked)
    product.launch(stream)
    if found is not None and (again := product.known()) is not None:
        _KNOWN.keep(found.key, again[0])
        _PLANS.keep(found.key, again[1])
    return product.out


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
    return _computed(given, asked, stream)


def _seen(array: Strided, problem: Problem, name: str) -> Strided:
    matrices = problem.operands[name]
    return Strided(array.array, replace(array.info, shape=matrices.shape, strides=matrices.strides))


def _new(like: Parts, shape: tuple[int, ...], kind: DType) -> tuple[Fresh, ...]:
    """What makes a new result: one array if that is what ``a`` is, else two."""
    if like.is_planar:
        return (fresh_array(like.given[0], shape, kind),) * 2
    return (fresh_array(like.given, shape, interleaved(kind)),)


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
