"""Plans complex products: checks arguments and shapes, picks a strategy, and binds the kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from tilewright import dtypes
from tilewright.dataflow.nodes import EXACT, TF32
from tilewright.dtypes import DType
from tilewright.dtypes import dtype as dtype_named
from tilewright.errors import DTypeError, LaunchError, close_to, shown
from tilewright.ops.complex_doubled import as_matrix, product_of_doubled
from tilewright.ops.complex_matmul import PARTS
from tilewright.ops.complex_parts import (
    Parts,
    are_paired,
    are_together,
    as_pairs,
    check_apart,
    interleaved,
    named,
    parts_of,
    with_both,
)
from tilewright.ops.complex_products import (
    APART,
    RESULTS,
    Pairs,
    Together,
    contracted,
    four_products,
    products_of_halves,
    terms_of,
    three_products,
)
from tilewright.ops.complex_strategies import (
    METHODS,
    ComplexStrategy,
    by_halves,
    by_one_product,
    strategy_for,
)
from tilewright.ops.contraction import Posed, check_no_view, posed, read_subscripts
from tilewright.ops.contraction import result_shape as contracted_shape
from tilewright.ops.launching import OWN, Call, Launch, LaunchPlan
from tilewright.ops.planning import of_sums, seen_as
from tilewright.ops.prepasses import FASTER_FROM, is_split
from tilewright.ops.problem import IMAGINARY, Problem, check_broadcast, problem_of, result_shape
from tilewright.ops.replay import Located
from tilewright.ops.results import agreed, check_whole_bytes
from tilewright.ops.wanted import F16, F32, HALVES_OF, Wanted, check_numbers, check_splitting
from tilewright.runtime.arrays import ArrayInfo, Fresh
from tilewright.runtime.arrays import fresh as fresh_array
from tilewright.runtime.backends import Backend, backend_for
from tilewright.runtime.frameworks import Strided
from tilewright.schedule.question import Splitting
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import TARGETS

PRECISIONS = (EXACT, TF32, F32, F16)
"""Precisions in which parts of f32 are multiplied."""

SUPPORTED = ("f64", "f32", "f16", "bf16")
"""The dtypes of real and imaginary parts that are multiplied."""


class ComplexWanted(NamedTuple):
    """The arguments of `complex_matmul` other than its arrays; numbers come first."""

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
    subscripts: str | None = None


def plan_complex(
    given: Mapping[str, Any], asked: ComplexWanted, located: Sequence[Located] = ()
) -> LaunchPlan:
    """The launches of ``out = alpha * op(a) @ op(b) + beta * c``, after a check of everything.

    Args:
        given: the arrays ``a``, ``b``, ``c`` and ``out``; None for absent ones.
        asked: the other arguments of the call.
        located: the keys and addresses of the arrays of `PARTS`, if the caller has read them.

    Raises:
        LaunchError: shapes, devices or arguments do not fit.
        DTypeError: an unsupported dtype or mixture.
    """
    for name, words in (("precision", PRECISIONS), ("method", METHODS)):
        word = getattr(asked, name)
        if word not in words:
            near = close_to(word, words) if isinstance(word, str) else ""
            raise LaunchError(f"{name}={shown(word)}; choose one of {', '.join(words)}{near}")
    if asked.precision in HALVES_OF and asked.method == METHODS[1]:
        raise LaunchError(
            f'{asked.op}: precision="{asked.precision}" with method="3m", which loses the accuracy that '
            'this precision asks for; nearest legal choice: method="4m"'
        )
    arguments = {name: one for name, one in given.items() if one is not None or name in ("a", "b")}
    read = dict(zip(PARTS, located, strict=True)) if located else {}
    parts = {name: parts_of(asked.op, name, one, read) for name, one in arguments.items()}
    scale = 1 if asked.beta is None else asked.beta
    if scale != 0 and asked.beta is not None and "c" not in parts:
        if "out" not in parts:
            raise LaunchError(
                f"{asked.op}: beta={asked.beta} needs c or out, and neither is given; nearest legal "
                "choice: c="
            )
        parts["c"] = parts["out"]
    kind = _result_dtype(parts, asked)
    labels = None
    if asked.subscripts is not None:
        labels = read_subscripts(asked.subscripts, [len(parts[name].shape) for name in ("a", "b")])
        shape = contracted_shape(asked.subscripts, labels, {name: one.re.info for name, one in parts.items()})
    else:
        shape = result_shape(parts["a"].shape, parts["b"].shape, asked.op)
    infos = {name: one.info for name, one in named(parts).items()}
    backend = backend_for(asked.op, list(infos.items()), asked.target)
    if "c" in parts and scale == 0:  # it fits, and is not read
        check_broadcast("c", parts.pop("c").re.info, shape)
    fresh: tuple[Fresh, ...] = ()
    if "out" not in parts:
        like = parts["a"]
        if like.is_planar:
            fresh = (fresh_array(like.given[0], shape, kind),) * 2
        else:
            fresh = (fresh_array(like.given, shape, interleaved(kind)),)
        made = tuple(one.make() for one in fresh)
        parts["out"] = parts_of(asked.op, "out", made if len(made) == 2 else made[0])
    arrays = named(parts)
    number = dtypes.f64 if dtypes.f64 in {one.dtype for one in parts.values()} else dtypes.f32
    check_numbers(asked.op, number, alpha=asked.alpha, beta=scale)
    alpha, beta = complex(asked.alpha), complex(scale)
    check_apart(asked.op, parts)
    call = _call(asked.op, parts, fresh, backend)
    infos = {name: one.info for name, one in arrays.items()}
    contraction: Posed | None = None
    problem: Problem | None
    if labels is not None:
        contraction = posed(labels, infos, multiplies=alpha != 0)
        if contraction.is_empty:
            return call.plan(result=parts["out"].given)
        problem = contraction.problem
        if isinstance(asked.how, Splitting) and asked.how.batch_invariant:
            check_no_view(contraction.contraction)
    else:
        whole = problem_of(infos)
        problem = whole if alpha != 0 else whole.without_products()
    alpha = alpha or complex(1)  # a product by 0 has K = 0
    if problem is not None:
        seen = {name: seen_as(one.array, one.info, problem.operands[name]) for name, one in arrays.items()}
    else:
        assert contraction is not None
        seen = {name: Strided(one.array, contraction.infos[name]) for name, one in arrays.items()}
    precision = of_sums(asked.precision, parts["a"].dtype)
    sides = ((asked.conjugate_a, "a"), (asked.conjugate_b, "b"), (False, "c"))
    conjugates = tuple(wanted ^ (name in parts and parts[name].is_conjugate) for wanted, name in sides)
    infos = {name: one.info for name, one in seen.items()}
    if problem is None:
        strategy = ComplexStrategy(METHODS[0])
    elif is_split(infos, problem, asked.precision, asked.how, backend.name, FASTER_FROM / 4):
        strategy = by_halves(infos, problem, both=HALVES_OF[asked.precision] == 2)
    else:
        is_plain = (alpha, asked.how, asked.method, precision) == (1, None, METHODS[0], EXACT)
        one = (
            by_one_product(infos, problem, call.machine, conjugates)
            if is_plain and "c" not in parts
            else None
        )
        strategy = one or strategy_for(
            infos, problem, asked.method, precision, call.machine, asked.how, conjugates
        )
    has_warps = TARGETS[backend.name].warps
    before = strategy.prepass(seen, on_host=not has_warps)
    there = {**seen, **(before.made if before is not None else {})}
    # What is not added is not read, and the result stands for it.
    results = RESULTS if strategy.doubled is None else RESULTS[2:3]
    names = [one if one in there else "out" for one in (*strategy.operands, *results)]
    numbers: tuple[float, ...] = ()
    if strategy.doubled is not None:
        there |= {one: as_matrix(there[one]) for one in ("a", "out")}
        kernel = product_of_doubled().bind(schedule=None)
    else:
        numbers = (alpha.real, alpha.imag, beta.real, beta.imag)
        pairs = _pairs(seen) if has_warps else APART
        in_background = has_warps or (isinstance(asked.how, Schedule) and asked.how.copies_in_background)
        together = _together(seen, strategy) if in_background and problem is not None else (False, False)
        constants: dict[str, Any] = {"terms": terms_of(alpha, beta, adds="c" in parts)}
        if strategy.halves is None:
            constants["precision"] = precision
        if problem is not None:
            rank = len(problem.batch)
            if strategy.halves is not None:
                multiply = products_of_halves(rank, number, both=strategy.halves.both)
            elif strategy.method == METHODS[0]:
                multiply = four_products(rank, number, together=together)
            else:
                multiply = three_products(rank, number)
        else:
            assert contraction is not None
            multiply = contracted(contraction.contraction, number)
        kernel = multiply.bind(**constants, conjugates=conjugates, pairs=pairs, schedule=asked.how)
        joined: list[tuple[str, Callable[[Strided], Strided]]]
        joined = [(one, as_pairs) for one, kind in zip(("c", "out"), pairs, strict=True) if kind is not None]
        joined += [(one, with_both) for one, is_one in zip(("a", "b"), together, strict=True) if is_one]
        for whole_name, join in joined:  # one array has both parts
            there[whole_name] = join(there[whole_name])
            names = [whole_name if one == whole_name + IMAGINARY else one for one in names]
    launches = [] if before is None else [before.launch]
    places = (OWN if before is not None and one in before.made else one for one in names)
    launches.append(Launch(kernel, tuple(there[one] for one in names), tuple(places), numbers))
    return call.plan(
        *launches,
        result=parts["out"].given,
        scratch_bytes=strategy.size_bytes,
        reason=str(strategy),
        warns=not isinstance(asked.how, Schedule),
        details=strategy,
    )


def _call(op: str, parts: Mapping[str, Parts], fresh: Sequence[Fresh], backend: Backend) -> Call:
    """The call, with the arrays of `PARTS`; the first array of an interleaved operand has both parts."""
    arrays, infos = dict[str, Any](), dict[str, ArrayInfo]()
    inside = dict[str, tuple[str, int]]()
    for name, one in parts.items():
        same = "out" if one is parts["out"] else name
        if one.is_planar:
            inside |= {name: (same, 0), name + IMAGINARY: (same + IMAGINARY, 0)}
            found = {name: one.re.info, name + IMAGINARY: one.im.info}
            given = one.given
        else:
            inside |= {name: (same, 0), name + IMAGINARY: (same, one.dtype.bytes)}
            re = one.re.info
            found = {name: replace(re, shape=(*re.shape, 2), strides=(*re.strides, 1))}
            given = (one.given,)
        if same == name:
            arrays |= dict(zip(found, given, strict=True))
            infos |= found
    makers = tuple((PARTS.index("out") + at, maker) for at, maker in enumerate(fresh))
    written = ("out", "out" + IMAGINARY) if parts["out"].is_planar else ("out",)
    updated = frozenset({("out", "c"), ("out" + IMAGINARY, "c" + IMAGINARY)})
    return Call(op, PARTS, frozenset(arrays), arrays, infos, backend, makers, written, updated, inside)


def _pairs(seen: Mapping[str, Strided]) -> Pairs:
    """Whether the addend, and the result, are seen as arrays of pairs."""
    found: list[DType | None] = []
    for name in ("c", "out"):
        re, im = seen.get(name), seen.get(name + IMAGINARY)
        beside = re is not None and im is not None and are_paired(re.info, im.info)
        found.append(re.info.dtype if re is not None and beside else None)
    return found[0], found[1]


def _together(seen: Mapping[str, Strided], strategy: ComplexStrategy) -> Together:
    """Which operands of four products are copied with both parts at once: f64, in 16 bytes."""
    if strategy.halves is not None or strategy.method != METHODS[0]:
        return (False, False)
    planes = {one.name for one in strategy.planes}
    pairs = ((name, seen[name].info, seen[name + IMAGINARY].info) for name in ("a", "b"))
    a, b = (name not in planes and re.dtype == dtypes.f64 and are_together(re, im) for name, re, im in pairs)
    return a, b


def plan_words(
    op: str,
    given: Sequence[Any],
    numbers: tuple[complex, complex | None],
    words: tuple[Any, ...],
    located: Sequence[Located],
    subscripts: str | None = None,
) -> LaunchPlan:
    """The launches of a product.

    Args:
        op: the operation's name in messages.
        given: ``a``, ``b``, ``c`` and ``out``.
        numbers: ``alpha`` and ``beta``.
        words: the other arguments of `complex_matmul`, in its order, but ``stream``.
        located: the keys and addresses of the arrays of `PARTS`, if the caller has read them.
        subscripts: the subscripts of a contraction; None for a product of matrices.
    """
    options, (schedule, split_k, reduction, batch_invariant, target) = words[:5], words[5:]
    split = Wanted(schedule=schedule, split_k=split_k, reduction=reduction, batch_invariant=batch_invariant)
    check_splitting(split, op)
    asked = ComplexWanted._make((*numbers, *options, split.how, target, op, subscripts))
    return plan_complex(dict(zip(("a", "b", "c", "out"), given, strict=True)), asked, located)


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
            f"{asked.op}: products of {a.name_of_dtype} are not supported; nearest: pairs of "
            f"{', '.join(SUPPORTED)}"
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
