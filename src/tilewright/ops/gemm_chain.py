"""`gemm_chain`: two products, one after the other, in one kernel if their sizes allow it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from operator import itemgetter
from typing import Any, NamedTuple, NoReturn

from tilewright.calls import launches
from tilewright.dataflow.nodes import EXACT
from tilewright.dtypes import DType, bf16, f16, f32, f64
from tilewright.errors import DTypeError, LaunchError
from tilewright.ops.attending import flow
from tilewright.ops.attending.choice import Answer, AttentionQuestion, against_warpgroups
from tilewright.ops.attending.problem import in_four
from tilewright.ops.launching import OWN, Call, Launch, LaunchPlan
from tilewright.ops.matmul import plan_matmul
from tilewright.ops.planning import LAUNCH_US, copied_us
from tilewright.ops.problem import check_broadcast
from tilewright.ops.replay import Located, Replay, called, repeated
from tilewright.ops.results import result_dtype
from tilewright.ops.wanted import NO_DROPOUT, Dropout, Wanted, check_numbers, check_words, dropout_of, said
from tilewright.runtime.arrays import ArrayInfo
from tilewright.runtime.frameworks import Strided
from tilewright.runtime.plans import Plans
from tilewright.schedule.folds.choice import estimate as loop_clocks
from tilewright.schedule.load import Load
from tilewright.schedule.question import LoopQuestion, Question
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.time_parts import time_parts
from tilewright.targets.target import CUDA

FUSED = (f16, bf16, f32)

MOST_COLUMNS = 256
"""Most columns of ``a`` and of the result of one kernel."""

ROWS = 128
"""Rows of a tile, on most machines."""

OCCUPIED = 0.75
"""Share of the processors that need a tile for one kernel to pay, on machines without estimates."""

FEW_COLUMNS = 1024
"""Most columns of the first product at which one block takes less time than two launches."""

CHAIN_OVERLAP = 0.75
"""Time of a loop by warpgroups, relative to its work: products of a step overlap with functions of another.

Fitted to 6 chains on an H200, of 7 to 52 us.
"""


class ChainWords(NamedTuple):
    """The arguments of `gemm_chain` other than its arrays."""

    activation: str | None
    fused: bool | None
    target: str | None
    alpha: float = 1.0
    precision: str = EXACT
    out_dtype: DType | str | None = None
    saturate: bool = False
    dropped: Dropout = NO_DROPOUT

    @property
    def of_first(self) -> Wanted:
        """The arguments of the first product."""
        return Wanted(activation=self.activation, precision=self.precision, target=self.target)

    @property
    def of_second(self) -> Wanted:
        """The arguments of the second product."""
        return Wanted(
            self.alpha,
            precision=self.precision,
            out_dtype=self.out_dtype,
            target=self.target,
            saturate=self.saturate,
            dropped=self.dropped,
        )


ARRAYS = ("a", "b", "c", "out")
"""The arrays of a call without terms."""

OUT = ARRAYS.index("out")

TERMS = ("bias_b", "bias_c", "multiply", "residual")
"""The arrays of terms after one of the products."""

FIRST = {"a": "a", "b": "b", "out": OWN, "bias": "bias_b"}
SECOND = {"a": OWN, "b": "c", "out": "out", "bias": "bias_c", "multiply": "multiply", "residual": "residual"}
"""The arrays of each product of two, by their names in `matmul`; `OWN` is the first result."""

SCRATCH_UNIT = 256
"""Alignment in bytes of arrays in scratch memory."""

_PLANS: Plans[Replay] = Plans()


@repeated(_PLANS, (*ARRAYS, *TERMS))
@launches
def gemm_chain(
    a: Any,
    b: Any,
    c: Any,
    *,
    activation: str | None = None,
    out: Any = None,
    alpha: float = 1.0,
    bias_b: Any = None,
    bias_c: Any = None,
    multiply: Any = None,
    dropout: float = 0.0,
    seed: int = 0,
    offset: int = 0,
    residual: Any = None,
    precision: str = "exact",
    out_dtype: DType | str | None = None,
    saturate: bool = False,
    fused: bool | None = None,
    target: str | None = None,
    stream: Any = None,
) -> Any:
    """``out = activation(a @ b) @ c``, in one kernel that never stores ``a @ b``.

    With all terms it is ``out = dropout((alpha * (activation(a @ b + bias_b) @ c) + bias_c) * multiply) +
    residual``.  Two kernels compute a chain with any other term than the activation, or with another
    ``out_dtype`` or ``precision``; they store ``activation(a @ b + bias_b)``.

    Products are exact and sums are in f32.  The activation of the first sums is rounded to the arrays' dtype
    before it is multiplied by ``c``, and the result is rounded once.

    Let ``u`` be the unit roundoff of f32, ``w`` that of the dtype, and ``h = activation(a @ b)``.  The first
    sums are off by at most ``2 (K + 1) u (|a| @ |b|)[m, n]``; let ``e[m, n]`` be how far this moves the
    activation.  The error of an element is at most ``(e + w |h|) @ |c| + 2 (N + 1) u |h| @ |c| + w |out|``,
    plus the effect of the error of the activation itself.

    Args:
        a: array (M, K), or with one or two leading dimensions, which are batches; of f16, bf16 or f32, or of
            f64, which is always computed as two products.
        b: array (K, N), or with the leading dimensions of ``a``; of the same dtype.
        c: array (N, P), likewise.
        activation: as in `matmul`.
        out: array (..., M, P) to write; default: a new one of the framework of ``a``.
        alpha: a number, as in `matmul`: the factor of the second product.
        bias_b: array (N,), added to each row of ``a @ b`` before the activation.
        bias_c: array (P,), added to each row of the second product.
        multiply: array that is broadcast to the result and multiplied with it.
        dropout: as in `matmul`, of the result.
        seed: the seed of dropout, as in `matmul`.
        offset: the offset of dropout, as in `matmul`.
        residual: array that is broadcast to the result and added last; it may be ``out``.
        precision: as in `matmul`, of both products.
        out_dtype: dtype of a new result; default: that of ``a``.
        saturate: as in `matmul`, of the result.
        fused: whether to use one kernel, for which K and P are at most 256; False: two calls of `matmul`,
            which store ``a @ b``.  Default: one kernel if the sizes allow it, the dtype has 16 bits, and its
            estimated time is less; on machines without estimates, if tiles of 128 rows occupy the machine or
            N is at most 1024.
        target: ``"cpu"``, ``"cuda"`` or ``"reference"``; default: where the arrays lie.
        stream: the CUDA stream; default: the framework's current stream.

    Returns:
        ``out``.

    Raises:
        LaunchError: shapes or devices do not fit, ``out`` shares memory with an array that is read, or
            ``fused`` is True for sizes or terms that do not fit one kernel.
        DTypeError: an unsupported dtype or mixture.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> a, b = np.float16([[1, -2]]), np.float16([[1, 0, 1], [0, 1, 1]])
        >>> tw.gemm_chain(a, b, np.ones((3, 2), np.float16), activation="relu", target="reference").tolist()
        [[1.0, 1.0]]
        >>> words = {"bias_b": np.float16([0, 1, 0]), "alpha": 0.5, "target": "reference"}
        >>> tw.gemm_chain(a, b, np.ones((3, 2), np.float16), residual=np.float16([1, 2]), **words).tolist()
        [[0.5, 1.5]]
    """
    dropped = dropout_of("gemm_chain", dropout, seed, offset)
    words = ChainWords(activation, fused, target, alpha, precision, out_dtype, saturate, dropped)
    arrays = (a, b, c, out, bias_b, bias_c, multiply, residual)
    given = dict(zip((*ARRAYS, *TERMS), arrays, strict=True))
    return called(
        _PLANS,
        arrays,
        (*words[:3], said(alpha), *words[4:-1], dropped.words),
        (alpha, 1.0, *dropped.numbers),
        stream,
        lambda located: plan_chain(given, words, located).launch(stream),
        itemgetter(OUT),
    )


def plan_chain(given: Mapping[str, Any], words: ChainWords, located: Sequence[Located] = ()) -> LaunchPlan:
    """Check the arguments of `gemm_chain`, and plan its launches.

    Args:
        given: the arrays by the names of `ARRAYS` and `TERMS`; None for an absent one.
        words: the other arguments of the call.
        located: the keys and addresses of the arrays, if the caller has read them.

    Raises:
        LaunchError: shapes, devices or arguments do not fit.
        DTypeError: an unsupported dtype or mixture.
    """
    check_words(words.of_first)
    call = Call.of("gemm_chain", given, ("a", "b", "c"), located)
    infos = call.infos
    shape = _result_shape(infos)
    kind = _result_dtype(call.dtypes, words)
    for name in (name for name in TERMS if name in infos):
        own = infos[name].shape
        if name in TERMS[2:]:
            check_broadcast(name, own, shape)
        elif own != (columns := infos[name[-1]].shape[-1:]):
            raise LaunchError(f"gemm_chain: {name} has shape {own}", f"{columns}, one number for each column")
    call.serve(words.target)
    against = _against_one_kernel(infos) or " and ".join(_terms(infos, words, kind))
    if words.fused and against:
        raise LaunchError(f"gemm_chain: fused=True, but {against}", "fused=False")
    call.make("out", shape, kind)
    check_numbers("gemm_chain", call.number, alpha=words.alpha)
    call.check_apart(updated=("residual",))
    if 0 in shape:
        return call.plan()
    question = AttentionQuestion(_seen(infos), *call.machine)
    whole: Launch | None = None
    if not against and words.fused is not False:
        answer = Answer(flow.gemm_chain.bind(activation=words.activation))
        views = answer.views(question.infos)
        seen = tuple(Strided(call.arrays[name], info) for name, info in views.items())
        whole = Launch(answer.kernel, seen, ARRAYS)
        if words.fused:
            return call.plan(whole)

    # Two products.  Scratch memory has the first result, then the arrays of each product's prepass.
    info = infos["a"]
    middle_shape = (*info.shape[:-1], infos["b"].shape[-1])
    strides = tuple(prod(middle_shape[dim + 1 :]) for dim in range(len(middle_shape)))
    first = Strided(
        call.arrays["a"], replace(info, pointer=0, shape=middle_shape, strides=strides, readonly=False)
    )
    size, launches = max(prod(middle_shape) * info.dtype.bytes, 1), list[Launch]()
    for names, wanted in ((FIRST, words.of_first), (SECOND, words.of_second)):
        given = {own: first if name == OWN else call.arrays.get(name) for own, name in names.items()}
        plan = plan_matmul(given, wanted)
        if plan.scratch_bytes:
            size = -(-size // SCRATCH_UNIT) * SCRATCH_UNIT
        launches += (_placed(launch, names, size) for launch in plan.launches)
        size += plan.scratch_bytes
    if whole is not None and one_kernel_pays(question, whole, launches):
        return call.plan(whole)
    return call.plan(
        *launches,
        scratch_bytes=size,
        reason="two kernels: the first product is stored in scratch memory",
        warns=True,
    )


def _placed(launch: Launch, names: Mapping[str, str], offset: int) -> Launch:
    """A launch of one product, with the names of the chain's arrays.

    Args:
        launch: the launch.
        names: the chain's names of the product's arrays.
        offset: offset in scratch memory of the arrays that the product's prepass writes, in bytes.
    """
    arrays = (
        Strided(one.array, replace(one.info, pointer=one.info.pointer + offset)) if name == OWN else one
        for one, name in zip(launch.arrays, launch.names, strict=True)
    )
    return replace(launch, arrays=tuple(arrays), names=tuple(names.get(name, name) for name in launch.names))


def one_kernel_pays(question: AttentionQuestion, whole: Launch, products: Sequence[Launch]) -> bool:
    """Whether one kernel is estimated to be faster than two.

    It must multiply as `matmul` would.  Each of its blocks computes its rows for all of N, so too few rows
    leave most of the machine idle.

    Args:
        question: the chain, seen as attention.
        whole: the launch of one kernel.
        products: the launches of two products, and of their prepasses.
    """
    arch = question.arch
    if question.queries.dtype == f32:
        return False
    if "wgmma" not in arch.features or arch.rates is None:
        batches, heads, rows, _ = question.queries.shape
        tiles = batches * heads * -(-rows // ROWS)
        return tiles >= OCCUPIED * question.processors or question.keys.shape[2] <= FEW_COLUMNS
    if any(against_warpgroups(question)):
        return False
    loop, schedule = _asked(whole, question)
    if not isinstance(loop, LoopQuestion) or schedule is None or not schedule.by_bulk:
        return False
    clocks = loop_clocks(schedule, loop) * CHAIN_OVERLAP
    two_kernels_us = 0.0
    for launch in products:
        asked, of_product = _asked(launch, question)
        if isinstance(asked, Question) and of_product is not None:
            parts = time_parts(Load(asked, of_product))
            assert parts is not None, "the rates are known"
            two_kernels_us += parts.total
        else:  # a prepass
            two_kernels_us += LAUNCH_US + copied_us(launch.moved_bytes, arch)
    return arch.times.launch_us + clocks / arch.rates.boards[0].clock_mhz < two_kernels_us


def _asked(launch: Launch, on: AttentionQuestion) -> tuple[Question | LoopQuestion | None, Schedule | None]:
    """The question of a launch on the machine of another question, and its schedule."""
    given, kernel, name = (*launch.arrays, *launch.own, *launch.numbers), launch.kernel, on.arch.name
    asked = kernel.question(*given, target=CUDA.name, arch=name)
    if asked is not None:
        asked = replace(asked, processors=on.processors or asked.processors)
    return asked, kernel.schedule_for(*given, target=CUDA.name, arch=name)


def _seen(infos: Mapping[str, ArrayInfo]) -> dict[str, ArrayInfo]:
    """The arrays as the kernels see them: ``b`` transposed, and shared matrices as one head."""
    made = {name: in_four(infos[name]) for name in ("a", "b", "c", "out")}
    b = made["b"]
    made["b"] = replace(
        b, shape=(*b.shape[:2], b.shape[3], b.shape[2]), strides=(*b.strides[:2], b.strides[3], b.strides[2])
    )
    for name in ("b", "c"):  # the same for all batches
        if len(infos[name].shape) == 2:
            batches, strides = made["a"].shape[0], made[name].strides
            made[name] = replace(made[name], shape=(batches, 1, *made[name].shape[2:]))
            made[name] = replace(made[name], strides=(0 if batches > 1 else strides[0], *strides[1:]))
    return made


def _terms(infos: Mapping[str, ArrayInfo], words: ChainWords, kind: DType) -> Iterator[str]:
    """Yield reasons why the terms of a call, or the dtype of its result, need two kernels."""
    if kind != infos["a"].dtype:
        yield f"the result is {kind}, and one kernel writes {infos['a'].dtype}"
    if given := [name for name in TERMS if name in infos]:
        yield f"one kernel has no {' or '.join(given)}"
    if words.alpha != 1:
        yield f"alpha is {words.alpha}, and one kernel has no factor"
    if words.dropped.probability:
        yield "one kernel has no dropout"
    if words.precision != EXACT and infos["a"].dtype == f32:
        yield f"precision is {words.precision!r}, and one kernel multiplies f32 exactly"
    if words.saturate:
        yield "one kernel does not saturate"


def _against_one_kernel(infos: Mapping[str, ArrayInfo]) -> str:
    """Reason why one kernel cannot compute both products, or ""."""
    (*_, k), (*_, n, p) = infos["a"].shape, infos["c"].shape
    if infos["a"].dtype not in FUSED:
        return f"the arrays are {infos['a'].dtype}, and one kernel takes {', '.join(map(str, FUSED))}"
    if infos.get("out", infos["a"]).dtype != infos["a"].dtype:
        return f"out is {infos['out'].dtype}, and one kernel writes {infos['a'].dtype}"
    for name, extent, most in (("K", k, MOST_COLUMNS), ("P", p, MOST_COLUMNS), ("N", n, None)):
        if extent < 1 or (most is not None and extent > most):
            limits = "at least 1" if most is None else f"1 to {most}"
            return f"{name} is {extent}, and one kernel takes {limits}"
    shared = {name: len(infos[name].shape) == 2 for name in ("b", "c")}
    if len(infos["a"].shape) > 2 and shared["b"] != shared["c"]:
        return "only one of b and c has batches"
    return ""


def _result_shape(infos: Mapping[str, ArrayInfo]) -> tuple[int, ...]:
    """The shape of the result, of arrays that fit each other.

    Raises:
        LaunchError: shapes do not fit.
        DTypeError: an unsupported dtype or mixture.
    """
    kinds = {name: infos[name].dtype for name in ("a", "b", "c")}
    if len(set(kinds.values())) > 1:
        listed = ", ".join(f"{name} is {kind}" for name, kind in kinds.items())
        raise DTypeError(f"gemm_chain: {listed}", "one dtype")
    if kinds["a"] not in (*FUSED, f64):  # the first product of other dtypes has another dtype than c
        known = ", ".join(map(str, (*FUSED, f64)))
        raise DTypeError(f"gemm_chain of {kinds['a']}", f"one of {known}")
    a, b, c = (infos[name].shape for name in ("a", "b", "c"))
    if not 2 <= len(a) <= 4:
        _refuse(infos, "a with shape (M, K), and one or two leading dimensions")
    for name, shape in (("b", b), ("c", c)):
        if len(shape) < 2 or (len(shape) > 2 and shape[:-2] != a[:-2]):
            text = f"{name} with two dimensions, or with the leading dimensions of a, {a[:-2]}, before them"
            _refuse(infos, text)
    if a[-1] != b[-2]:
        _refuse(infos, f"b with {a[-1]} rows, one for each column of a")
    if b[-1] != c[-2]:
        _refuse(infos, f"c with {b[-1]} rows, one for each column of b")
    shape = (*a[:-1], c[-1])
    if "out" in infos and infos["out"].shape != shape:
        _refuse(infos, f"out with shape {shape}")
    return shape


def _result_dtype(kinds: Mapping[str, DType], words: ChainWords) -> DType:
    """The dtype of the result.

    Raises:
        DTypeError: the result would lose fractions, or a term is complex or packed.
    """
    last = {own: kinds[name] for own, name in SECOND.items() if name in kinds}
    last["a"] = kinds["a"]
    return result_dtype(last, words.of_second, "gemm_chain")


def _refuse(infos: Mapping[str, ArrayInfo], nearest: str) -> NoReturn:
    shapes = ", ".join(f"{name} {info.shape}" for name, info in infos.items() if name in ARRAYS)
    raise LaunchError(f"gemm_chain: {shapes} do not fit", nearest)
