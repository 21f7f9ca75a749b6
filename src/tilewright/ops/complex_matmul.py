"""`complex_matmul`: products of complex matrices, interleaved or in two planes; its launches and its plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tilewright import dtypes
from tilewright.calls import launches
from tilewright.dataflow.nodes import EXACT, TF32
from tilewright.dtypes import DType
from tilewright.dtypes import dtype as dtype_named
from tilewright.errors import DTypeError, LaunchError, close_to, shown
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
    FACTOR,
    OPERANDS,
    RESULTS,
    ComplexFactor,
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
    as_matrix,
    by_halves,
    by_one_product,
    product_of_doubled,
    strategy_for,
)
from tilewright.ops.contraction import Contraction, Ending, Subscripts, check_no_view, posed, read_subscripts
from tilewright.ops.contraction import result_shape as contracted_shape
from tilewright.ops.ending import DropoutMask, Multiplier
from tilewright.ops.launching import OWN, Call, Launch, LaunchPlan
from tilewright.ops.planning import FASTER_FROM, is_flat, is_split, multiplications, of_sums
from tilewright.ops.problem import (
    IMAGINARY,
    MatrixBatch,
    Problem,
    check_broadcast,
    numbered_problem,
    problem_of,
    result_shape,
)
from tilewright.ops.replay import Done, Located, Replay, called, repeated
from tilewright.ops.results import agreed, check_whole_bytes
from tilewright.ops.splitting import transposed
from tilewright.ops.wanted import (
    F16,
    F32,
    HALVES_OF,
    NO_DROPOUT,
    Dropout,
    Wanted,
    check_numbers,
    check_splitting,
    dropout_of,
)
from tilewright.runtime.arrays import ArrayInfo, Fresh
from tilewright.runtime.arrays import fresh as fresh_array
from tilewright.runtime.backends import Backend, backend_for
from tilewright.runtime.frameworks import Strided
from tilewright.runtime.kernel import Bound
from tilewright.runtime.plans import Plans
from tilewright.schedule.question import Splitting
from tilewright.schedule.schedule import Reduction, Schedule, SplitK
from tilewright.targets.target import TARGETS

PRECISIONS = (EXACT, TF32, F32, F16)
"""Precisions in which parts of f32 are multiplied."""

SUPPORTED = ("f64", "f32", "f16", "bf16")
"""The dtypes of real and imaginary parts that are multiplied."""

GIVEN = ("a", "b", "c", "out", "multiply")
"""The arguments of a call that are arrays, or pairs of arrays."""

PARTS = ("a", "a_im", "b", "b_im", "c", "c_im", "out", "out_im", *FACTOR)
"""The arrays of a call; the first of an interleaved array has both parts. Absent ones are None."""

TURNED = ("k m", "n k")
"""Axes of A and B if they are contiguous along M and along K."""

_PLANS: Plans[Replay] = Plans()


@repeated(_PLANS, PARTS)
@launches
def complex_matmul(
    a: Any,
    b: Any,
    c: Any = None,
    *,
    alpha: complex = 1,
    beta: complex | None = None,
    multiply: Any = None,
    dropout: float = 0.0,
    seed: int = 0,
    offset: int = 0,
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

    With all terms it is ``out = dropout((alpha * op(a) @ op(b) + beta * c) * multiply)``.

    Every array is interleaved (complex numbers of NumPy, PyTorch or CuPy) or planar: a pair ``(re, im)`` of
    real arrays of one shape, e.g. of bf16, which has no complex dtype. One kernel computes both parts; sums
    of real products are in f32 (f64 for f64). TMA cannot copy arrays of stride 2. On GPUs a launch therefore
    first splits interleaved operands of a large product into planes if that is estimated to be faster; the
    planes are in memory that is kept for the stream.

    Each part of the result is a sum of 2 K products. Let ``P`` bound the partial sums, and ``u`` be
    ``2**-24`` (``2**-53`` for f64). If roundings are independent, a part is off by at most ``4 u sqrt(2 K)
    P``, and is rounded once.

    Args:
        a: array (..., M, K), or a vector (K,), of c32 (``torch.complex32``), c64 or c128; or a pair of real
            arrays of f64, f32, f16 or bf16. Any strides, so that a transpose is ``a.T``.
        b: array (..., K, N) whose parts are of the same dtype. Leading dimensions are batches, which are
            broadcast against those of ``a``.
        c: array that is broadcast to the result; it may be ``out``.
        alpha: a number, real or complex. With 0, ``a`` and ``b`` are checked, but not read.
        beta: a number, real or complex: the factor of ``c``, or of the old values of ``out`` if there is no
            ``c``; default: 1 if ``c`` is given. With 0, ``c`` is checked, but not read.
        multiply: array that is broadcast to the result and multiplied with it: complex, or real of f64, f32,
            f16 or bf16, e.g. a window.
        dropout: the probability that an element, i.e. both its parts, is set to 0, as in `matmul`.
        seed: the seed of dropout, as in `matmul`.
        offset: the offset of dropout, as in `matmul`.
        out: array to write, or a pair; default: a new array of the framework of ``a``, or a pair if ``a`` is.
        conjugate_a: whether to multiply the conjugate of ``a``.
        conjugate_b: whether to multiply the conjugate of ``b``.
        method: ``"4m"``, four products of real matrices, as accurate as complex arithmetic; or ``"3m"``,
            three products, one of which multiplies sums ``re + im`` that a launch writes before. With
            ``"3m"`` real parts have the errors of ``re re`` and ``im im``. Imaginary parts have the errors of
            all three products and ``8 u_in sqrt(sum (product of sums)^2)``, where ``u_in`` is the unit
            roundoff of the dtype of the parts, even if the imaginary parts are small. Sums of f16 may exceed
            65504.
        precision: ``"exact"``, or the form in which tensor cores multiply parts of f32: ``"f32"`` (two halves
            of 11 bits each, about as exact as multiply-adds of f32), ``"tf32"`` (11 bits), or ``"f16"`` (11
            bits, with a scale for each row). ``"f32"`` and ``"f16"`` may lose all products of a small element
            of a row with large elements of the other operand, if elements of the row differ by more than a
            factor of 2**16; use ``"exact"`` then. ``"tf32"`` rounds numbers below 2**-126 to multiples of
            2**-136, and keeps finite numbers finite. For f16 and bf16, ``"f32"`` guarantees that sums lose no
            more than sums in f32.
        out_dtype: dtype of a new result; default: that of ``a``.
        schedule: how it is computed; default: chosen for the arrays' shapes and the machine.
        split_k: number of parts of K, as in `matmul`, or ``"auto"`` or ``"stream"``.
        reduction: how the partial sums are added: ``"workspace"``, ``"turnstile"`` or ``"atomic"``. Real and
            imaginary parts have separate partial sums, which the other reductions of `matmul` do not divide
            among blocks.
        batch_invariant: whether the bits of a row must not depend on the number of rows, as in `matmul`.
        target: ``"cpu"``, ``"cuda"`` or ``"reference"``; default: where the arrays lie.
        stream: the CUDA stream; default: the framework's current stream.

    Returns:
        ``out``.

    Raises:
        LaunchError: shapes or devices do not fit, ``out`` shares memory with an array that is read, or an
            argument has a value that is not listed above.
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

        A factor for each column, real or complex:

        >>> tw.complex_matmul(a, a, multiply=np.float32([10, 1]), target="reference")
        array([[10.+20.j,  0. +1.j],
               [20. +0.j,  0. +2.j]], dtype=complex64)
    """
    dropped = dropout_of("complex_matmul", dropout, seed, offset)
    options = (conjugate_a, conjugate_b, method, precision, out_dtype)
    how = (schedule, split_k, reduction, batch_invariant, target)
    arrays = (a, b, c, out, multiply)
    return multiplied("complex_matmul", arrays, (alpha, beta), (*options, *how), stream, dropped)


def multiplied(
    op: str,
    given: tuple[Any, Any, Any, Any, Any],
    numbers: tuple[complex, complex | None],
    how: tuple[Any, ...],
    stream: Any,
    dropped: Dropout = NO_DROPOUT,
    subscripts: str | None = None,
) -> Any:
    """Multiply complex arrays; a call with the metadata of an earlier one is replayed.

    Args:
        op: the operation's name in messages.
        given: the arrays in the order of `GIVEN`.
        numbers: ``alpha`` and ``beta``.
        how: the other arguments of `complex_matmul`, in its order, but ``stream``.
        stream: the caller's stream.
        dropped: the elements to drop.
        subscripts: the subscripts of a contraction; None for a product of matrices.
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
    except OverflowError:  # an integer is too large: planning refuses it by name
        are_pairs = False
    if are_pairs:
        passed = (alpha.real, alpha.imag, beta.real, beta.imag, *dropped.numbers)
        said = (alpha == 0, alpha == 1, alpha.imag == 0, numbers[1] is None, beta == 0, beta.imag == 0)
        # The types tell a pair, in which no part may be None, from an interleaved array.
        updates = given[2] is not None and arrays[4] is arrays[6] and arrays[5] is arrays[7]
        words = (said, *map(type, given), updates, *how, dropped.words, subscripts)

    def first(located: Sequence[Located]) -> Done:
        (schedule, split_k, reduction, batch_invariant), target = how[5:9], how[9]
        split = Wanted(
            schedule=schedule, split_k=split_k, reduction=reduction, batch_invariant=batch_invariant
        )
        check_splitting(split, op)
        asked = ComplexWanted._make((*numbers, *how[:5], split.how, target, op, dropped, subscripts))
        return plan_complex(dict(zip(GIVEN, given, strict=True)), asked, located).launch(stream)

    made = called(_PLANS, arrays, words, passed, stream, first, _result)
    return made if given[3] is None else given[3]


def _result(arrays: Sequence[Any]) -> Any:
    """The result among the arrays of a replayed call."""
    re, im = arrays[6:8]
    return re if im is None else (re, im)


# ---------------------------------------------------------------- the plan


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
    dropped: Dropout = NO_DROPOUT
    subscripts: str | None = None


@dataclass(frozen=True)
class ComplexProduct:
    """A complex product of real arrays.

    Args:
        asked: the arguments of the call other than its arrays.
        seen: the real and imaginary parts by name, as the kernel sees them.
        pose: the product of matrices, or the contraction if an array needs a view.
        number: the dtype in which alpha and beta are multiplied.
        alpha: the factor of the sums; 1 if the caller's is 0, because K is 0 then.
        beta: the factor of the addend.
        conjugates: whether A, B and the addend are conjugated.
        factor_conjugate: whether the factor of the result is conjugated.
        order: the dimensions of the result in the order that numbers its elements, if elements are dropped.
    """

    asked: ComplexWanted
    seen: Mapping[str, Strided]
    pose: Problem | Contraction
    number: DType
    alpha: complex
    beta: complex
    conjugates: tuple[bool, bool, bool]
    factor_conjugate: bool
    order: tuple[int, ...]

    @property
    def precision(self) -> str:
        """Precision of the products in one kernel."""
        return of_sums(self.asked.precision, self.seen["a"].info.dtype)

    def strategy(self, call: Call) -> ComplexStrategy:
        """Return the strategy with the least estimated time.

        Args:
            call: the arrays of the call.
        """
        asked, problem, machine = self.asked, self.pose, call.machine
        if isinstance(problem, Contraction):
            return ComplexStrategy(METHODS[0], contraction=problem)
        infos = {name: one.info for name, one in self.seen.items()}
        kinds = {name: info.dtype for name, info in infos.items()}
        words = (asked.precision, asked.how, call.target, multiplications(problem))
        if is_split(kinds, *words, fits=is_flat(problem), from_size=FASTER_FROM / 4):
            return by_halves(infos, problem, both=HALVES_OF[asked.precision] == 2)
        is_plain = (self.alpha, asked.how, asked.method, self.precision) == (1, None, METHODS[0], EXACT)
        one = None
        if is_plain and not self.order and infos.keys().isdisjoint(("c", "multiply")):
            one = by_one_product(infos, problem, machine, self.conjugates)
        of_problem = (asked.method, self.precision, machine, asked.how, self.conjugates)
        return one or strategy_for(infos, problem, *of_problem)

    def launch(self, strategy: ComplexStrategy, made: Mapping[str, Strided], *, has_warps: bool) -> Launch:
        """Return the launch that multiplies.

        Args:
            strategy: the launches of the product.
            made: the arrays that a prepass writes, by name.
            has_warps: whether the target has warps.
        """
        there, how = {**self.seen, **made}, self.asked.how
        if strategy.doubled is not None:
            there |= {name: as_matrix(there[name]) for name in ("a", "out")}
            return _launch(
                product_of_doubled().bind(schedule=None), (*strategy.operands, "out"), there, made, ()
            )
        in_background = has_warps or (isinstance(how, Schedule) and how.copies_in_background)
        together = self._together(strategy) if in_background else ("", "")
        of_c, of_out = APART  # dtypes of the parts of arrays that are seen as pairs
        if has_warps:
            of_c, of_out = (_dtype_of_pairs(there, name) for name in ("c", "out"))
        pairs = of_c, of_out
        terms = terms_of(self.alpha, self.beta, adds="c" in there)
        constants: dict[str, Any] = {"terms": terms, "conjugates": self.conjugates, "pairs": pairs}
        of_factor = _dtype_of_pairs(there, FACTOR[0]) if has_warps else None
        if late := self._late(of_factor):
            constants["late"] = late
        if strategy.halves is None:
            constants["precision"] = self.precision
        rare = (*(name for name in FACTOR if name in there), *(("dropout",) if self.order else ()))
        if isinstance(self.pose, Contraction):
            multiply = contracted(self.pose, self.number, rare)
        elif strategy.halves is not None:
            both = strategy.halves.both
            multiply = products_of_halves(len(self.pose.batch), self.number, both=both, rare=rare)
        elif strategy.method == METHODS[0]:
            multiply = four_products(len(self.pose.batch), self.number, together, rare)
        else:
            multiply = three_products(len(self.pose.batch), self.number, rare)
        # The result replaces an absent addend, which the kernel does not read.
        names = [one if one in there else "out" for one in (*strategy.operands, *RESULTS)]
        names += [one for one in FACTOR if one in there]
        joined: list[tuple[str, Callable[[Strided], Strided]]]
        of_pairs = (("c", of_c), ("out", of_out), (FACTOR[0], of_factor))
        joined = [(one, as_pairs) for one, kind in of_pairs if kind is not None]
        for one, axes in zip(("a", "b"), together, strict=True):
            if axes:
                joined.append((one, with_both))
                there[one] = transposed(there[one]) if axes in TURNED else there[one]
        for whole, join in joined:  # one array has both parts
            there[whole] = join(there[whole])
            names = [whole if one == whole + IMAGINARY else one for one in names]
        numbers: tuple[float, ...] = (self.alpha.real, self.alpha.imag, self.beta.real, self.beta.imag)
        numbers += self.asked.dropped.numbers if self.order else ()
        return _launch(multiply.bind(**constants, schedule=how), names, there, made, numbers)

    def _late(self, of_factor: DType | None) -> Ending:
        """The terms after the addend.

        Args:
            of_factor: the dtype of the parts of the factor if they are read as pairs.
        """
        found: Ending = ()
        if FACTOR[1] in self.seen:
            found = (ComplexFactor(self.factor_conjugate, of_factor),)
        elif FACTOR[0] in self.seen:
            found = (Multiplier(FACTOR[0]),)
        return (*found, DropoutMask("out", self.order)) if self.order else found

    def _together(self, strategy: ComplexStrategy) -> Together:
        """The axes of A, and of B, if copies move both parts of a number in 8 or 16 bytes; otherwise ""."""
        if strategy.operands != OPERANDS or strategy.contraction is not None:
            return ("", "")
        planes = {one.name for one in strategy.planes}

        def axes_of(name: str, axes: str, turned: str) -> str:
            re, im = self.seen[name].info, self.seen[name + IMAGINARY].info
            if name in planes or re.dtype not in (dtypes.f64, dtypes.f32) or not are_together(re, im):
                return ""
            *_, high, low = map(abs, re.strides)
            return turned if re.dtype == dtypes.f32 and high < low else axes

        return axes_of("a", "m k", TURNED[0]), axes_of("b", "k n", TURNED[1])


def _dtype_of_pairs(there: Mapping[str, Strided], name: str) -> DType | None:
    """The dtype of the parts of an array if both parts of a number are moved as one; else None."""
    if name + IMAGINARY not in there or not are_paired(there[name].info, there[name + IMAGINARY].info):
        return None
    return there[name].info.dtype


def _launch(
    kernel: Bound,
    names: Sequence[str],
    there: Mapping[str, Strided],
    made: Mapping[str, Strided],
    numbers: tuple[float, ...],
) -> Launch:
    places = tuple(OWN if name in made else name for name in names)
    return Launch(kernel, tuple(there[name] for name in names), places, numbers)


def plan_complex(
    given: Mapping[str, Any], asked: ComplexWanted, located: Sequence[Located] = ()
) -> LaunchPlan:
    """The launches of ``out = dropout((alpha * op(a) @ op(b) + beta * c) * multiply)``, after all checks.

    Args:
        given: the arrays by the names of `GIVEN`; None for absent ones.
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
            "this precision asks for",
            'method="4m"',
        )
    parts, beta = _parts(given, asked, located)
    kind = _result_dtype(parts, asked)
    axes, shape = _shape(parts, asked)
    backend = backend_for(asked.op, [(name, one.info) for name, one in named(parts).items()], asked.target)
    if "c" in parts and beta == 0:  # it fits, and is not read
        check_broadcast("c", parts.pop("c").shape, shape)
    fresh: tuple[Fresh, ...] = ()
    if "out" not in parts:  # in planes if a is
        like, stored = parts["a"], kind if parts["a"].is_planar else interleaved(kind)
        maker = fresh_array(like.given[0] if like.is_planar else like.given, shape, stored)
        fresh = (maker, maker) if like.is_planar else (maker,)
        arrays_of_out = tuple(one.make() for one in fresh)
        parts["out"] = parts_of(asked.op, "out", arrays_of_out if like.is_planar else arrays_of_out[0])
    number = dtypes.f64 if dtypes.f64 in {one.dtype for one in parts.values()} else dtypes.f32
    check_numbers(asked.op, number, alpha=asked.alpha, beta=beta)
    check_apart(asked.op, parts)
    call = _call(asked.op, parts, fresh, backend)
    if axes is not None and 0 in shape:
        return call.plan(result=parts["out"].given)
    arrays = named(parts)
    pose, layouts, order = _pose(arrays, axes, asked)
    seen = {
        name: Strided(one.array, replace(one.info, shape=layouts[name].shape, strides=layouts[name].strides))
        for name, one in arrays.items()
    }
    sides = ((asked.conjugate_a, "a"), (asked.conjugate_b, "b"), (False, "c"), (False, FACTOR[0]))
    a, b, c, factor = (wanted ^ (name in parts and parts[name].is_conjugate) for wanted, name in sides)
    factors = complex(asked.alpha) or complex(1), complex(beta)  # with alpha = 0, K is 0
    product = ComplexProduct(asked, seen, pose, number, *factors, (a, b, c), factor, order)

    strategy, has_warps = product.strategy(call), bool(TARGETS[backend.name].warps)
    before = strategy.prepass(seen, on_host=not has_warps)
    made = {} if before is None else before.made
    launches: list[Launch] = [] if before is None else [before]
    launches.append(product.launch(strategy, made, has_warps=has_warps))
    return call.plan(
        *launches,
        result=parts["out"].given,
        scratch_bytes=strategy.size_bytes,
        reason=str(strategy),
        warns=not isinstance(asked.how, Schedule),
        details=strategy,
    )


def _parts(
    given: Mapping[str, Any], asked: ComplexWanted, located: Sequence[Located]
) -> tuple[dict[str, Parts], complex]:
    """The real and imaginary parts of the arrays, and the factor of ``c``, which may be ``out``."""
    read = dict(zip(PARTS, located, strict=True)) if located else {}
    parts = {
        name: parts_of(asked.op, name, one, read, may_be_real=name == FACTOR[0])
        for name, one in given.items()
        if one is not None or name in ("a", "b")
    }
    if asked.beta is None:
        return parts, 1
    if asked.beta != 0 and "c" not in parts:
        if "out" not in parts:
            raise LaunchError(f"{asked.op}: beta={asked.beta} needs c or out, and neither is given", "c=")
        parts["c"] = parts["out"]
    return parts, asked.beta


def _shape(parts: Mapping[str, Parts], asked: ComplexWanted) -> tuple[Subscripts | None, tuple[int, ...]]:
    """The labels of a contraction's axes, None for a product of matrices; and the shape of the result."""
    a, b = parts["a"].shape, parts["b"].shape
    if asked.subscripts is None:
        return None, result_shape(a, b, asked.op)
    axes = read_subscripts(asked.subscripts, (len(a), len(b)))
    infos = {name: one.re.info for name, one in parts.items()}
    return axes, contracted_shape(asked.subscripts, axes, infos)


def _pose(
    arrays: Mapping[str, Strided], axes: Subscripts | None, asked: ComplexWanted
) -> tuple[Problem | Contraction, Mapping[str, MatrixBatch], tuple[int, ...]]:
    """Return the product of matrices, or the contraction if an array needs a view.

    Return the shapes and strides of its arrays, and the order of the result's dimensions if elements are
    dropped, too.
    """
    layouts = {name: MatrixBatch(one.info.shape, one.info.strides) for name, one in arrays.items()}
    drops, multiplies = asked.dropped.probability > 0, asked.alpha != 0
    if axes is None:
        problem, order = problem_of(layouts, multiplies=multiplies), tuple[int, ...]()
        if drops:
            problem, order = numbered_problem(layouts, multiplies=multiplies)
        return problem, problem.operands, order
    contraction = posed(axes, layouts, indexed=drops, multiplies=multiplies)
    made, order = contraction.contraction, contraction.contraction.order
    if contraction.problem is not None:
        return contraction.problem, contraction.problem.operands, order
    if isinstance(asked.how, Splitting) and asked.how.batch_invariant:
        check_no_view(made)
    return made, contraction.layouts, order


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
        elif one.is_real:
            inside[name], found, given = (same, 0), {name: one.re.info}, (one.given,)
        else:
            inside |= {name: (same, 0), name + IMAGINARY: (same, one.dtype.bytes)}
            re = one.re.info
            found = {name: replace(re, shape=(*re.shape, 2), strides=(*re.strides, 1))}
            given = (one.given,)
        if same == name:
            arrays |= dict(zip(found, given, strict=True))
            infos |= found
    makers = tuple((PARTS.index("out") + at, maker) for at, maker in enumerate(fresh))
    call = Call(op, PARTS, frozenset(arrays), arrays, infos, backend, makers, inside=inside)
    for part in ("", IMAGINARY)[: 1 + parts["out"].is_planar]:
        call.keep_apart("out" + part, ("c" + part,))
    return call


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
        raise DTypeError(f"out_dtype is {wanted}, a @ b is complex: the imaginary parts would be lost", "c64")
    said = (parts["out"].name_of_dtype, wanted) if "out" in parts else None
    return agreed(wanted.component, out, a.dtype, said)
