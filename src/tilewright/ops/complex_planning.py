"""A complex product with everything looked at: its arguments, its shapes, its kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

from tilewright import dtypes
from tilewright.dataflow.nodes import EXACT, TF32
from tilewright.dtypes import DType
from tilewright.dtypes import dtype as dtype_named
from tilewright.errors import DTypeError, LaunchError, close_to, shown
from tilewright.ops.complex_doubled import as_matrix, product_of_doubled
from tilewright.ops.complex_pairs import are_paired, are_together, as_pairs, with_both
from tilewright.ops.complex_parts import Parts, check_apart, interleaved, named, parts_of
from tilewright.ops.complex_products import (
    APART,
    RESULTS,
    Pairs,
    Together,
    four_products,
    products_of_halves,
    terms_of,
    three_products,
)
from tilewright.ops.complex_recalled import are_one, in_parts, plan_of, result_of
from tilewright.ops.complex_ways import METHODS, Way, by_halves, by_one_product, way_for
from tilewright.ops.grades import F16, F32, FASTER_FROM, HALVES_OF, is_split
from tilewright.ops.launching import Launch, LaunchPlan
from tilewright.ops.planning import Wanted, check_numbers, check_splitting, of_sums
from tilewright.ops.problem import IMAGINARY, Problem, check_broadcast, problem_of, result_shape
from tilewright.ops.recalled import OWN, Done, called
from tilewright.ops.results import agreed, check_whole_bytes
from tilewright.ops.slow import warn
from tilewright.runtime.arrays import Fresh
from tilewright.runtime.arrays import fresh as fresh_array
from tilewright.runtime.backends import Backend, arch_of, backend_for
from tilewright.runtime.executable import Executable, Prepared
from tilewright.runtime.frameworks import Strided
from tilewright.runtime.kernel import Bound, Kernel
from tilewright.runtime.plans import Plan, Plans
from tilewright.schedule.question import Splitting
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.sources import PAIRED
from tilewright.targets.target import TARGETS

PRECISIONS = (EXACT, TF32, F32, F16)
"""How exactly parts of f32 are multiplied."""

SUPPORTED = ("f64", "f32", "f16", "bf16")
"""The dtypes of real and imaginary parts that are multiplied."""


class ComplexWanted(NamedTuple):
    """What is asked for besides arrays; `complex_matmul`'s arguments by their names, the numbers first."""

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

    @property
    def words(self) -> tuple[Any, ...]:
        """All but the numbers: what a plan depends on, whatever numbers it is launched with."""
        return self[2:]


_PLANS = Plans()


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
        pairs: which of ``c`` and ``out`` the kernel sees as pairs of both parts, and their dtype.
        together: which of ``a`` and ``b`` it sees as one array of both parts.
        fresh: what makes each array of the result; empty where it is given.
    """

    parts: Mapping[str, Parts]
    arrays: Mapping[str, Strided]
    problem: Problem
    way: Way
    kernel: Bound
    numbers: tuple[float, ...]
    backend: Backend
    pairs: Pairs = APART
    together: Together = (False, False)
    fresh: tuple[Fresh, ...] = ()

    @property
    def out(self) -> Any:
        """The result."""
        return self.parts["out"].given

    def launch(self, stream: Any = None) -> tuple[Executable, ...]:
        """Launch it; returns what ran, in order."""
        return tuple(one.executable for one in self.start(stream))

    def start(self, stream: Any = None) -> tuple[Prepared, ...]:
        """Launch it; returns what was launched, in order."""
        launches = self.plan.start(self.backend.name, stream)
        if TARGETS[self.backend.name].warps and not isinstance(self.kernel.schedule, Schedule):
            warn(launches[-1].executable)
        return launches

    @cached_property
    def plan(self) -> LaunchPlan:
        """Its launches."""
        arrays, call, made = dict(self.arrays), [*self.arrays], dict[str, Strided]()
        launches = list[Launch]()
        before = self.way.prepass(arrays, on_host=not TARGETS[self.backend.name].warps)
        if before is not None:
            launches.append(before.launch(call))
            made = {**before.made}
            arrays |= made
        # What is not added is not read, and the result stands for it.
        results = RESULTS if self.way.doubled is None else RESULTS[2:3]
        names = [one if one in arrays else "out" for one in (*self.way.operands, *results)]
        if self.way.doubled is not None:
            arrays |= {one: as_matrix(arrays[one]) for one in ("a", "out")}
        for whole, part in zip(("c", "out"), self.pairs, strict=True):
            if part is not None:  # the array of real parts stands for both
                arrays[whole] = as_pairs(arrays[whole])
                names = [whole if one == whole + IMAGINARY else one for one in names]
        for whole, is_one in zip(("a", "b"), self.together, strict=True):
            if is_one:
                arrays[whole] = with_both(arrays[whole])
                names = [whole if one == whole + IMAGINARY else one for one in names]
        places = tuple(OWN if one in made else call.index(one) for one in names)
        launches.append(Launch(self.kernel, tuple(arrays[one] for one in names), places, self.numbers))
        return LaunchPlan(tuple(launches), tuple(self.arrays.values()), self.way.size_bytes, str(self.way))

    def known(self, launches: Sequence[Prepared]) -> Plan | None:
        """What launches it again on arrays like these; None where that must be looked at each time."""
        if not TARGETS[self.backend.name].machine_code:
            return None  # which reads the arrays themselves, which are not seen as the caller has them
        return plan_of(self.plan, launches, self.parts, (*self.arrays,), self.fresh)


def product_of_complex(given: Mapping[str, Any], asked: ComplexWanted) -> Product:
    """``out = alpha * op(a) @ op(b) + beta * c`` of complex arrays, ready to be launched.

    Args:
        given: the arrays ``a``, ``b``, ``c`` and ``out``; None for those that are not there.
        asked: what is asked for besides.

    Raises:
        LaunchError: shapes, devices or arguments do not fit.
        DTypeError: an unsupported dtype or mixture.
    """
    _check_words(asked)
    arguments = {name: one for name, one in given.items() if one is not None or name in ("a", "b")}
    parts = {name: parts_of(asked.op, name, one) for name, one in arguments.items()}
    scale = _scale_of_c(parts, asked)
    kind = _result_dtype(parts, asked)
    shape = result_shape(parts["a"].shape, parts["b"].shape, asked.op)
    infos = {name: one.info for name, one in named(parts).items()}
    backend = backend_for(asked.op, list(infos.items()), asked.target)
    if "c" in parts and scale == 0:  # it fits, and is not read
        check_broadcast("c", parts.pop("c").re.info, shape)
    fresh: tuple[Fresh, ...] = ()
    if "out" not in parts:
        fresh = _new(parts["a"], shape, kind)
        made = tuple(one.make() for one in fresh)
        parts["out"] = parts_of(asked.op, "out", made if len(made) == 2 else made[0])
    arrays = named(parts)
    problem = problem_of({name: one.info for name, one in arrays.items()})
    number = dtypes.f64 if dtypes.f64 in {one.dtype for one in parts.values()} else dtypes.f32
    check_numbers(asked.op, number, alpha=asked.alpha, beta=scale)
    alpha, beta = complex(asked.alpha), complex(scale)
    if alpha == 0:
        problem, alpha = problem.without_products(), complex(1)
    check_apart(asked.op, parts)
    seen = {name: _seen(one, problem, name) for name, one in arrays.items()}
    precision = of_sums(asked.precision, parts["a"].dtype)
    pairs = ((asked.conjugate_a, "a"), (asked.conjugate_b, "b"), (False, "c"))
    conjugates = tuple(wanted ^ (name in parts and parts[name].is_conjugate) for wanted, name in pairs)
    infos = {name: one.info for name, one in seen.items()}
    if is_split(infos, problem, asked.precision, asked.how, backend.name, FASTER_FROM / 4):
        way = by_halves(infos, problem, both=HALVES_OF[asked.precision] == 2)
    else:
        machine = (arch_of(backend, None), backend.processors())
        is_plain = (alpha, asked.how, asked.method, precision) == (1, None, METHODS[0], EXACT)
        one = by_one_product(infos, problem, machine, conjugates) if is_plain and "c" not in parts else None
        way = one or way_for(infos, problem, asked.method, precision, machine, asked.how, conjugates)
    if way.doubled is not None:
        kernel = product_of_doubled().bind(schedule=None)
        return Product(parts, seen, problem, way, kernel, (), backend, fresh=fresh)
    constants: dict[str, Any] = {"terms": terms_of(alpha, beta, adds="c" in parts), "conjugates": conjugates}
    beside = _pairs(seen) if TARGETS[backend.name].warps else APART
    constants["pairs"] = beside
    if way.halves is None:
        constants["precision"] = precision
    in_background = isinstance(asked.how, Schedule) and asked.how.staging in PAIRED
    in_background |= TARGETS[backend.name].warps
    together = _together(seen, way) if in_background else (False, False)
    kernel = _kernel_of(way, together)(len(problem.batch), number).bind(**constants, schedule=asked.how)
    numbers = (alpha.real, alpha.imag, beta.real, beta.imag)
    return Product(parts, seen, problem, way, kernel, numbers, backend, beside, together, fresh)


def _pairs(seen: Mapping[str, Strided]) -> Pairs:
    """Which of what is added and what is written are seen as pairs of both parts."""
    found: list[DType | None] = []
    for name in ("c", "out"):
        re, im = seen.get(name), seen.get(name + IMAGINARY)
        beside = re is not None and im is not None and are_paired(re.info, im.info)
        found.append(re.info.dtype if re is not None and beside else None)
    return found[0], found[1]


def _together(seen: Mapping[str, Strided], way: Way) -> Together:
    """Which operands of four products are copied with both parts at once: of f64, 16 bytes."""
    if way.halves is not None or way.method != METHODS[0]:
        return (False, False)
    planes = {one.name for one in way.planes}
    pairs = ((name, seen[name].info, seen[name + IMAGINARY].info) for name in ("a", "b"))
    a, b = (name not in planes and re.dtype == dtypes.f64 and are_together(re, im) for name, re, im in pairs)
    return a, b


def _kernel_of(way: Way, together: Together) -> Callable[[int, DType], Kernel]:
    """What makes the kernel of a product."""
    if way.halves is not None:
        return partial(products_of_halves, both=way.halves.both)
    return partial(four_products, together=together) if way.method == METHODS[0] else three_products


def complex_matmul(
    given: Mapping[str, Any],
    asked: Mapping[str, Any],
    split: tuple[int | str | None, str | None, bool],
    stream: Any,
) -> Any:
    """`complex_matmul`, with how K is split, and its other arguments by the names of `ComplexWanted`."""
    wanted = ComplexWanted(**asked)
    if split != (None, None, False):
        parts = Wanted(schedule=asked["how"], split_k=split[0], reduction=split[1], batch_invariant=split[2])
        check_splitting(parts, wanted.op)
        wanted = wanted._replace(how=parts.how)
    return _computed(given, wanted, stream)


def _computed(given: Mapping[str, Any], asked: ComplexWanted, stream: Any) -> Any:
    """The result of a product, of which one that is known needs addresses and numbers alone."""
    try:
        alpha, beta = complex(asked.alpha), complex(1 if asked.beta is None else asked.beta)
    except OverflowError:  # of an integer: who plans says which
        return _anew(given, asked, stream).out
    complexes = (given["a"], given["b"], given["c"], given["out"])
    whole = [(None, None) if one is None else in_parts(one) for one in complexes]
    words: tuple[Any, ...] | None = None
    if {*map(len, whole)} == {2}:
        said = (alpha == 0, alpha == 1, alpha.imag == 0, asked.beta is None, beta == 0, beta.imag == 0)
        # The types tell a pair, in which no part may be None, from an interleaved array.
        is_in_place = given["c"] is not None and are_one(*whole[2:])
        words = (*said, *map(type, given.values()), is_in_place, *asked.words)
    made = called(
        _PLANS,
        [one for parts in whole for one in parts],
        words,
        (alpha.real, alpha.imag, beta.real, beta.imag),
        stream,
        lambda: _anew(given, asked, stream),
        result_of,
    )
    return made if given["out"] is None else given["out"]


def _anew(given: Mapping[str, Any], asked: ComplexWanted, stream: Any) -> Done:
    """A product with everything looked at."""
    product = product_of_complex(given, asked)
    return Done(product.out, product.known(product.start(stream)))


def matmul_of_complex(arrays: Mapping[str, Any], wanted: Wanted, stream: Any) -> Any:
    """`matmul` of complex arrays, given by the names of its arguments.

    Raises:
        LaunchError: also an activation, a bias or a residual, which are functions of real numbers here.
        DTypeError: as `product_of_complex`.
    """
    if added := [name for name in ("bias", "residual") if name in arrays]:
        raise LaunchError(
            f"matmul: {' and '.join(added)} of complex arrays; nearest legal choice: c=, which is "
            "broadcast to the result and added"
        )
    if wanted.activation is not None:
        raise LaunchError(
            f"matmul: activation={shown(wanted.activation)} of complex arrays, where it is not defined; "
            "nearest legal choice: None"
        )
    asked = ComplexWanted(
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


def _check_words(asked: ComplexWanted) -> None:
    """Refuse a precision or a method that does not exist."""
    for name, words in (("precision", PRECISIONS), ("method", METHODS)):
        given = getattr(asked, name)
        if given not in words:
            near = close_to(given, words) if isinstance(given, str) else ""
            raise LaunchError(f"{name}={shown(given)}; choose one of {', '.join(words)}{near}")
    if asked.precision in HALVES_OF and asked.method == METHODS[1]:
        raise LaunchError(
            f'{asked.op}: precision="{asked.precision}" with method="3m", which is less accurate; '
            'nearest legal choice: method="4m"'
        )


def _scale_of_c(parts: dict[str, Parts], asked: ComplexWanted) -> complex:
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


def _result_dtype(parts: Mapping[str, Parts], asked: ComplexWanted) -> DType:
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
    out = parts["out"].dtype if "out" in parts else None
    if asked.out_dtype is None:
        return out or a.dtype
    wanted = dtype_named(asked.out_dtype)
    check_whole_bytes(asked.op, "out_dtype", wanted, a.dtype)
    if wanted.components != 2 and not (a.is_planar and wanted.is_float):
        raise DTypeError(
            f"out_dtype is {wanted}, a @ b is complex: the imaginary parts would be lost; nearest legal "
            "choice: c64"
        )
    said = (parts["out"].name_of_dtype, wanted) if "out" in parts else None
    return agreed(wanted.component, out, a.dtype, said)
