"""`gated_matmul`: two products of the same rows in one kernel; one gates the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from tilewright import dtypes
from tilewright.calls import launches
from tilewright.dtypes import DType
from tilewright.errors import DTypeError, LaunchError
from tilewright.ops.ending import (
    NO_LATE_TERMS,
    Addend,
    Conversion,
    LateTerms,
    Nonlinearity,
    Output,
    RowScales,
    Saturation,
    finishing,
)
from tilewright.ops.launching import Call, Launch, LaunchPlan
from tilewright.ops.planning import as_parameter, of_sums
from tilewright.ops.problem import Problem, posed_with, result_shape
from tilewright.ops.products import RARE, batches, rare_arrays, rare_numbers
from tilewright.ops.replay import Done, Located, Replay, called, repeated
from tilewright.ops.results import asked_dtype, check_whole_bytes
from tilewright.ops.scales import (
    OPERANDS,
    broadcast_scale,
    multiplied_as,
    multiplied_on,
    number_of,
    scaled_dtype,
)
from tilewright.ops.tiled_product import (
    Algebra,
    EndingTerm,
    KernelArrays,
    ProductOperand,
    TiledProduct,
    Tiles,
    kernel_of,
)
from tilewright.ops.wanted import NO_DROPOUT, Wanted, check_numbers, check_splitting, check_words, dropout_of
from tilewright.runtime.arrays import ArrayInfo
from tilewright.runtime.backends import arch_of
from tilewright.runtime.frameworks import Strided
from tilewright.runtime.kernel import Kernel
from tilewright.runtime.plans import Plans
from tilewright.schedule.schedule import Reduction, Schedule, SplitK
from tilewright.targets.target import TARGETS

OP = "gated_matmul"
"""The operation's name in messages."""

SCALES = ("scale_a", "scale_b", "scale_c")
BIASES = ("bias_b", "bias_c")

ARRAYS = ("a", "b", "out", "c", *SCALES, *BIASES, "multiply", "residual")
"""The arrays of a call."""

IN_KERNEL = ("a", "b", "c", *SCALES, *BIASES, "out")
"""The kernel's arrays, in the order of its parameters.

The kernel reads no absent array; a call passes ``out`` in its place.
"""

GATED = Algebra(((0, 0, 0, 1), (0, 1, 1, 1)), (((0, 1),), ((1, 1),)))
"""The algebra of A times both parts of the second operand, B and C."""

_PLANS: Plans[Replay] = Plans()


@dataclass(frozen=True)
class Gate(EndingTerm):
    """Multiplies two results, after the separate terms of each."""

    first: tuple[EndingTerm, ...]
    second: tuple[EndingTerm, ...]

    def emit(self, values: Tiles, arrays: KernelArrays) -> Tiles:
        """Finish both products, each with its own terms."""
        made = list[Any]()
        for value, terms in zip(values, (self.first, self.second), strict=True):
            own: Tiles = [value]
            for term in terms:
                own = term.emit(own, arrays)
            made += own
        return [made[0] * made[1]]


@lru_cache(maxsize=64)
def gated(rank: int, number: DType, multiplied: DType | None, rare: tuple[str, ...] = ()) -> Kernel:
    """``D = dropout(activation(scale (A @ B) + bias_b) * (scale (A @ C) + bias_c) * Y) + R``.

    Args:
        rank: number of batch dimensions.
        number: the dtype in which all but the sums is computed.
        multiplied: the dtype in which operands are multiplied.
        rare: the terms of the call, among ``multiply``, ``residual`` and ``dropout``.
    """
    lead = batches(rank)
    arrays = {"A": f"{lead}m k", "B": f"{lead}k n", "C": f"{lead}k n", "scale_a": f"{lead}m"}
    arrays |= {**dict.fromkeys(("scale_b", "scale_c"), f"{lead}n"), **dict.fromkeys(BIASES, "n")}

    arrays |= {"D": f"{lead}m n", **rare_arrays(lead, rare)}

    @kernel_of(**arrays, alpha_b=dtypes.f32, alpha_c=dtypes.f32, **rare_numbers(rare, number))
    def gemm_gated(
        *, precision: str, terms: frozenset[str], activation: str | None, late: LateTerms = NO_LATE_TERMS
    ) -> TiledProduct:
        found = list[tuple[EndingTerm, ...]]()
        for own in "bc":
            given = (f"alpha_{own}", "scale_a", f"scale_{own}")
            scales = RowScales(*(name if name in terms else "" for name in given))
            bias = [Addend((f"bias_{own}",))] if f"bias_{own}" in terms else []
            found.append((Conversion(number), scales, *bias))
        if activation is not None:
            found[0] = (*found[0], Nonlinearity(activation))
        a, b = ProductOperand(("A",), multiplied), ProductOperand(("B", "C"), multiplied)
        ending = [Gate(*found), *finishing(terms, None, late), Saturation("D"), Output(("D",))]
        return TiledProduct(a, b, ending, replace(GATED, precision=precision))

    return gemm_gated


@repeated(_PLANS, ARRAYS)
@launches
def gated_matmul(
    a: Any,
    b: Any,
    c: Any,
    out: Any = None,
    *,
    activation: str | None = "silu",
    scale_a: Any = None,
    scale_b: Any = None,
    scale_c: Any = None,
    bias_b: Any = None,
    bias_c: Any = None,
    multiply: Any = None,
    dropout: float = 0.0,
    seed: int = 0,
    offset: int = 0,
    residual: Any = None,
    precision: str = "exact",
    out_dtype: DType | str | None = None,
    schedule: Schedule | None = None,
    split_k: SplitK | None = None,
    reduction: Reduction | None = None,
    batch_invariant: bool = False,
    target: str | None = None,
    stream: Any = None,
) -> Any:
    """``out = activation(a @ b) * (a @ c)``, element by element: a gated layer such as SwiGLU in one kernel.

    With all terms it is ``out = dropout(activation(scale_a * (a @ b) * scale_b + bias_b) * (scale_a * (a @ c)
    * scale_c + bias_c) * multiply) + residual``.  The kernel loads each tile of ``a`` once for both products,
    and stores neither of them.  Sums are in f32 (f64 for f64, i32 for i8); the rest is computed in f32 (f64
    for f64) and rounded once.

    A result of 8 bits saturates, as in `scaled_mm`.

    Args:
        a: array (..., M, K) of f64, f32, f16, bf16, f8e4m3, f8e5m2, f8e4m3fnuz, f8e5m2fnuz or i8, or a vector
            (K,); of any strides.
        b: array (..., K, N) of the same dtype, or of another dtype that `scaled_mm` multiplies with that of
            ``a``: weights of 8 bits with f16, bf16 or f32. Leading dimensions are batches, which are
            broadcast against those of ``a``.
        c: array of the shape and dtype of ``b``; of any strides.
        out: array (..., M, N) to write, of any strides, but no two elements may overlap; default: a new array
            of the framework of ``a``.
        activation: the function of ``a @ b``: ``"relu"``, ``"gelu"``, ``"gelu_tanh"``, ``"silu"``,
            ``"sigmoid"`` or ``"tanh"``; None: the two products are multiplied as they are.
        scale_a: a number, or an array of f32, f16 or bf16 with one element, or with one for each row of
            ``a``. Operands of f64 take no scales.
        scale_b: a number, or an array with one element, or with one for each column of ``b``.
        scale_c: the same for ``c``.
        bias_b: array (N,) of f32, f16 or bf16 (f64 for operands of f64), added to each row of ``a @ b``.
        bias_c: the same for ``a @ c``.
        multiply: array that is broadcast to the result and multiplied with it, of one of the dtypes of ``a``.
        dropout: as in `matmul`.
        seed: the seed of dropout, as in `matmul`.
        offset: the offset of dropout, as in `matmul`.
        residual: array that is broadcast to the result and added last, of one of the dtypes of ``a``; it may
            be ``out``.
        precision: ``"exact"``, or ``"tf32"`` for f32 on tensor cores, as in `matmul`. f32 is not split in
            halves: ``"f32"`` and ``"f16"`` mean ``"exact"`` here, which is at least as accurate.
        out_dtype: dtype of a new result; default: the dtype in which operands are multiplied, f16 for fp8,
            and f32 for two i8.
        schedule: how it is computed; default: chosen for the arrays' shapes and the machine.
        split_k: number of parts of K, as in `matmul`, or ``"auto"`` or ``"stream"``.
        reduction: how the partial sums are added: ``"workspace"``, ``"turnstile"`` or ``"atomic"``. The two
            products have separate partial sums, which the other reductions of `matmul` do not divide among
            blocks.
        batch_invariant: whether the bits of a row must not depend on the number of rows, as in `matmul`.
        target: ``"cpu"``, ``"cuda"`` or ``"reference"``; default: where the arrays lie.
        stream: the CUDA stream; default: the framework's current stream.

    Returns:
        ``out``.

    Raises:
        LaunchError: shapes or devices do not fit, ``out`` shares memory with an array that is read, or an
            argument has a value that is not listed above.
        DTypeError: an unsupported dtype or mixture.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> x = np.float32([[1, 2], [-3, 1]])
        >>> gate, up = np.float32([[1, 0], [0, 1]]), np.float32([[1, 1], [1, -1]])
        >>> tw.gated_matmul(x, gate, up, activation="relu", target="reference")
        array([[ 3., -2.],
               [-0., -4.]], dtype=float32)
        >>> words = {"activation": "relu", "scale_c": 0.5, "bias_b": np.float32([4, 0])}
        >>> tw.gated_matmul(x, gate, up, **words, target="cpu")
        array([[ 7.5, -1. ],
               [-1. , -2. ]], dtype=float32)
    """
    numbers = dict[str, float]()
    scales = dict[str, Any](scale_a=scale_a, scale_b=scale_b, scale_c=scale_c)
    for name, scale in scales.items():
        number = None if scale is None else number_of(OP, name, scale)
        if number is not None:
            numbers[name], scales[name] = number, None
    of_a = numbers.get("scale_a", 1.0)
    factors: tuple[Any, ...] = of_a * numbers.get("scale_b", 1.0), of_a * numbers.get("scale_c", 1.0)
    if numbers:
        both = {f"scale_a times {name}": one for name, one in zip(SCALES[1:], factors, strict=True)}
        check_numbers(OP, dtypes.f32, **numbers, **both)
    arrays = (a, b, out, c, *scales.values(), bias_b, bias_c, multiply, residual)
    how = (schedule, target, split_k, reduction, batch_invariant)
    dropped, more = NO_DROPOUT, factors
    if dropout or seed or offset:
        dropped = dropout_of(OP, dropout, seed, offset)
        more = (*factors, *dropped.numbers)
    wanted = Wanted(1.0, None, activation, precision, out_dtype, *how, None, False, dropped)
    words = (factors[0] == 1, factors[1] == 1, *wanted.words) if schedule is None else None

    def first(located: Sequence[Located]) -> Done:
        return plan_gated(dict(zip(ARRAYS, arrays, strict=True)), wanted, factors, located).launch(stream)

    return called(_PLANS, arrays, words, more, stream, first)


def plan_gated(
    given: Mapping[str, Any], wanted: Wanted, factors: tuple[float, ...], located: Sequence[Located] = ()
) -> LaunchPlan:
    """Check the arguments of `gated_matmul`, and plan its launches.

    Args:
        given: the arrays by the names of `ARRAYS`; None for an absent one.
        wanted: the other arguments of the call.
        factors: the products of the scales that are numbers, of both results.
        located: the keys and addresses of the arrays, if the caller has read them.

    Raises:
        LaunchError: shapes or devices do not fit, or ``out`` shares memory with an input.
        DTypeError: an unsupported dtype or mixture.
    """
    check_words(wanted)
    check_splitting(wanted, OP)
    call = Call.of(OP, given, ("a", "b", "c"), located)
    infos = call.infos
    terms = {name for name in (*SCALES, *BIASES) if name in infos}
    terms |= {f"alpha_{own}" for own, factor in zip("bc", factors, strict=True) if factor != 1}
    multiplied, kind = _dtypes(call.dtypes, wanted, terms)
    shape = _shape(infos)
    backend = call.serve(wanted.target)
    call.make("out", shape, kind)
    if infos["out"].shape != shape:
        raise LaunchError(f"{OP}: out has shape {infos['out'].shape}", shape)
    call.check_apart(updated=("residual",))
    if wanted.schedule is None and multiplied != dtypes.f64:  # a schedule decides the dtype itself
        machine = TARGETS[backend.name], arch_of(backend, None)
        first, second = (multiplied_on(infos["a"], infos[own], *machine) for own in "bc")
        multiplied = first if first == second else dtypes.f16
    problem, late = _problem(call, wanted)
    drops = {"dropout"} if wanted.dropped.probability else set()
    rare = tuple(name for name in RARE if name in drops | (infos.keys() - {"c"}))
    terms |= {*rare}
    number = dtypes.f64 if multiplied == dtypes.f64 else dtypes.f32
    kernel = gated(len(problem.batch), number, multiplied, rare).bind(
        precision=of_sums(wanted.precision, multiplied),
        terms=frozenset(terms),
        activation=wanted.activation,
        late=late,
        schedule=wanted.how,
    )
    names = (*IN_KERNEL, *(name for name in rare if name in infos))
    seen = list[Strided]()
    for name in names:
        there = name if name in infos else "out"
        matrices = problem.operands["b_c" if name == "c" else there]
        seen.append(call.seen(there, as_parameter(name, matrices)))
    numbers = (*factors, *(wanted.dropped.numbers if drops else ()))
    product = Launch(kernel, tuple(seen), call.stand_ins(names), numbers)
    return call.plan(product, warns=wanted.schedule is None)


def _dtypes(of: Mapping[str, DType], wanted: Wanted, terms: set[str]) -> tuple[DType, DType]:
    """The dtype in which operands are multiplied on any machine, and that of the result."""
    kinds = [of[name] for name in "abc"]
    if kinds[1] != kinds[2]:
        raise DTypeError(f"{OP}: b is {kinds[1]}, and c is {kinds[2]}", f"{kinds[1]} for both")
    for name, kind in of.items():
        check_whole_bytes(OP, name, kind, "a dtype of whole bytes")
    if dtypes.f64 not in kinds:
        return multiplied_as(kinds[0], kinds[1], OP), scaled_dtype(of, wanted, OP)
    if kinds[0] != kinds[1]:
        raise DTypeError(f"{OP} of {kinds[0]} and {kinds[1]}", "f64 for both")
    if scales := sorted(terms - {*BIASES}):
        text = f"{OP}: {', '.join(scales)} with operands of f64, and scales are f32"
        raise DTypeError(text, "scale the operands before the call")
    for name in BIASES:
        if name in of and of[name] not in (*OPERANDS[:3], dtypes.f64):
            raise DTypeError(f"{OP}: {name} is {of[name]}", "f64")
    for name in ("multiply", "residual"):
        if name in of and of[name] not in (*OPERANDS, dtypes.f64):
            raise DTypeError(f"{OP}: {name} is {of[name]}", "f64")
    made = asked_dtype(of, wanted, dtypes.f64)
    if made not in (dtypes.f64, *OPERANDS):
        raise DTypeError(f"{OP}: the result is {made}", "f64")
    return dtypes.f64, made


def _shape(infos: Mapping[str, ArrayInfo]) -> tuple[int, ...]:
    """The shape of the result.

    Raises:
        LaunchError: shapes that do not fit.
    """
    a, b, c = (infos[name].shape for name in "abc")
    if len(b) < 2:
        raise LaunchError(f"{OP}: b has shape {b}", "a matrix, b[:, None]")
    if b != c:
        raise LaunchError(f"{OP}: b has shape {b}, and c has shape {c}", "the same shape for both")
    shape = result_shape(a, b, OP)
    for name in BIASES:
        if name in infos and infos[name].shape != shape[-1:]:
            raise LaunchError(
                f"{OP}: {name} has shape {infos[name].shape}", f"{shape[-1:]}, one number for each column"
            )
    return shape


def _problem(call: Call, wanted: Wanted) -> tuple[Problem, LateTerms]:
    """The problem of the arrays; ``c`` has the dimensions of ``b``."""
    infos, whole = call.infos, call.layouts
    whole["b_c"] = whole.pop("c")
    for name in (name for name in SCALES if name in infos):
        operand = infos["a" if name == "scale_a" else "b"].shape
        is_whole = name == "scale_a" or len(infos["a"].shape) > 1
        whole[name] = broadcast_scale(OP, name, infos[name], operand, whole=is_whole, blocks=False)
    return posed_with(whole, wanted)
