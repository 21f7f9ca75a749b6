"""`reduced_matmul`: reductions of the rows or columns of a product, which is not stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import prod
from operator import itemgetter
from typing import Any

from tilewright import dtypes
from tilewright.calls import launches
from tilewright.dtypes import DType
from tilewright.errors import DTypeError, LaunchError, close_to, shown
from tilewright.ops.ending import AxisReductions, Conversion, Output, finishing
from tilewright.ops.launching import Call, Launch, LaunchPlan
from tilewright.ops.planning import of_sums
from tilewright.ops.problem import MatrixBatch, problem_of, result_shape
from tilewright.ops.products import batches
from tilewright.ops.replay import Located, Replay, called, repeated
from tilewright.ops.results import check_whole_bytes, result_dtype
from tilewright.ops.tiled_product import Algebra, EndingTerm, ProductOperand, TiledProduct, kernel_of
from tilewright.ops.wanted import Wanted, check_numbers, check_words, said
from tilewright.runtime.arrays import ArrayInfo
from tilewright.runtime.frameworks import row_major
from tilewright.runtime.kernel import Kernel
from tilewright.runtime.plans import Plans
from tilewright.schedule.schedule import Schedule

REDUCED = {"sum": "total", "max": "top", "min": "least", "logsumexp": "lse"}
"""The kernel's array of each reduction, in its order."""

REDUCTIONS = tuple(REDUCED)
"""Names of the reductions of rows or columns."""

PRODUCT = "product"
"""The array that stores the elements before they are reduced."""

ARRAYS = ("a", "b", "bias", PRODUCT)
"""Arrays of a call. Its results follow them."""

_PLANS: Plans[Replay] = Plans()


@lru_cache(maxsize=64)
def reduced(rank: int, number: DType, axis: int) -> Kernel:
    """Reductions ``wanted`` of ``activation(alpha * A @ B + bias)`` along one axis.

    Args:
        rank: number of batch dimensions.
        number: the dtype in which all but the sums is computed, and of alpha.
        axis: 1 to reduce each row, or 0 to reduce each column.
    """
    lead = batches(rank)
    kept = f"{lead}{'n' if axis == 0 else 'm'}"
    arrays = {"A": f"{lead}m k", "B": f"{lead}k n", "bias": "n", "D": f"{lead}m n"}

    @kernel_of(**arrays, **dict.fromkeys(REDUCED.values(), kept), alpha=number)
    def gemm_reduced(*, precision: str, wanted: frozenset[str], activation: str | None) -> TiledProduct:
        ending: list[EndingTerm] = [Conversion(number), *finishing(wanted, activation)]
        ending += [Output(("D",))] if PRODUCT in wanted else []
        kinds = {kind: name for kind, name in REDUCED.items() if kind in wanted}
        ending.append(AxisReductions(axis, kinds))
        return TiledProduct(
            ProductOperand(("A",)), ProductOperand(("B",)), ending, Algebra(precision=precision)
        )

    return gemm_reduced


@repeated(_PLANS, (*ARRAYS, "out"))
@launches
def reduced_matmul(
    a: Any,
    b: Any,
    reduce: Any,
    axis: int = -1,
    out: Any = None,
    *,
    alpha: float = 1.0,
    bias: Any = None,
    activation: str | None = None,
    product: Any = None,
    precision: str = "exact",
    schedule: Schedule | None = None,
    target: str | None = None,
    stream: Any = None,
) -> Any:
    """``out[m] = reduce over n of activation(alpha * (a @ b) + bias)[m, n]``, or over m of each column.

    One kernel computes it, and stores the elements only if ``product`` is given.  Rows that are longer than a
    tile are reduced across tiles, in the same order at every run.

    Args:
        a: array (..., M, K) of f64, f32, f16, bf16 or fp8, of any strides.
        b: array (..., K, N) of the same dtype. Leading dimensions are broadcast as in `matmul`.
        reduce: ``"sum"``, ``"max"``, ``"min"``, or ``"logsumexp"``, the logarithm of the sum of exponentials
            (a softmax is ``exp(x - logsumexp)``); or a tuple of some of them.
        axis: -1 for one number per row, or -2 for one number per column.
        out: array (..., M), or (..., N), to write; for a tuple of reductions, a tuple of arrays; default: new
            arrays of f32, or of f64 if the operands are of f64.
        alpha: a number, as in `matmul`.
        bias: array (N,), added to each row.
        activation: as in `matmul`.
        product: array (..., M, N) to write the elements to before they are reduced.
        precision: as in `matmul`; but f32 is not split in halves: ``"f32"`` and ``"f16"`` mean ``"exact"``
            here, which is at least as accurate.
        schedule: how it is computed; default: chosen for the arrays' shapes and the machine.
        target: ``"cpu"``, ``"cuda"`` or ``"reference"``; default: where the arrays lie.
        stream: the CUDA stream; default: the framework's current stream.

    Returns:
        ``out``.  The page on epilogues has the error bounds of sums and logarithms.  Maxima of rows with NaN
        are NaN, and so is the logarithm for rows whose maximum is infinite.

    Raises:
        LaunchError: shapes or devices do not fit, there is nothing to reduce, or an array that is written
            shares memory with another one.
        DTypeError: an unsupported dtype or mixture.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> q = np.float32([[1, 0], [0, 2]])
        >>> tw.reduced_matmul(q, q.T, ("max", "sum"), target="reference")
        (array([1., 4.], dtype=float32), array([1., 4.], dtype=float32))
        >>> tw.reduced_matmul(q, q.T, "logsumexp", target="reference").round(3)
        array([1.313, 4.018], dtype=float32)
    """
    names = _names(reduce)
    if out is None:
        outs: tuple[Any, ...] = (None,) * len(names)
    else:
        outs = (out,) if isinstance(reduce, str) else tuple(out) if isinstance(out, tuple | list) else ()
    if len(outs) != len(names):
        raise LaunchError(
            f"reduced_matmul: out is {shown(out)}", f"a tuple of {len(names)} arrays, of {', '.join(names)}"
        )
    wanted = Wanted(alpha, None, activation, precision, schedule=schedule, target=target)
    given = (a, b, bias, product, *outs)
    made = called(
        _PLANS,
        given,
        (said(alpha), names, axis, *wanted.words) if schedule is None else None,
        (alpha,),
        stream,
        lambda located: plan_reduced(given, names, axis, wanted, located).launch(stream),
        itemgetter(slice(len(ARRAYS), None)),
    )
    return made[0] if isinstance(reduce, str) else tuple(made)


def plan_reduced(
    given: Sequence[Any], names: tuple[str, ...], axis: int, wanted: Wanted, located: Sequence[Located] = ()
) -> LaunchPlan:
    """Check the arguments of `reduced_matmul`, and plan its launches.

    Args:
        given: the arrays of `ARRAYS`, and the results; None for an absent one.
        names: the reductions.
        axis: as `reduced_matmul` takes it.
        wanted: the other arguments of the call.
        located: the keys and addresses of the arrays, if the caller has read them.

    Raises:
        LaunchError: shapes or devices do not fit, or an array that is written shares memory with another one.
        DTypeError: an unsupported dtype or mixture.
    """
    if axis not in (-1, -2):
        raise LaunchError(f"reduced_matmul: axis={axis}", "-1, rows, or -2, columns")
    check_words(wanted)
    call = Call.of("reduced_matmul", dict(zip((*ARRAYS, *names), given, strict=True)), located=located)
    arrays, infos = call.arrays, call.infos
    kind = _dtype(call.dtypes, wanted)
    shape = result_shape(infos["a"].shape, infos["b"].shape, "reduced_matmul")
    _check_shapes(infos, shape, axis)
    kept = (*shape[:-2], shape[-2 if axis == -1 else -1])
    for name in names:
        call.make(name, kept, kind)
    check_numbers("reduced_matmul", call.number, alpha=wanted.alpha)
    call.serve(wanted.target)
    for name in names:
        written = infos[name]
        if written.shape != kept:
            raise LaunchError(f"reduced_matmul: out of {name} has shape {written.shape}", kept)
        check_whole_bytes("reduced_matmul", f"out of {name}", written.dtype, dtypes.f32)
        if not written.dtype.is_float or written.dtype.components > 1:
            raise DTypeError(f"reduced_matmul: out of {name} is {written.dtype}", "f32")
    for name in (*names, *((PRODUCT,) if PRODUCT in infos else ())):
        call.check_apart(name)
    results = tuple(arrays[name] for name in names)
    if not prod(kept):
        return call.plan(result=results)
    place = len(shape) - 1 if axis == -1 else len(shape) - 2
    whole = call.layouts
    for name in names:  # as arrays that are broadcast to the product
        extents, strides = list(whole[name].shape), list(whole[name].strides)
        extents.insert(place, 1)
        strides.insert(place, 0)
        whole[name] = MatrixBatch(tuple(extents), tuple(strides))
    whole["out"] = whole.pop(PRODUCT, MatrixBatch(shape, row_major(shape)))
    problem = problem_of(whole, "m" if axis == -1 else "n", multiplies=wanted.alpha != 0)
    rank, operands = len(problem.batch), problem.operands
    seen = {name: call.seen(name, operands[name]) for name in ARRAYS[:3] if name in infos}
    dim = rank + (1 if axis == -1 else 0)
    seen |= {name: call.seen(name, operands[name].without(dim)) for name in names}
    # A kernel without a bias or a product is given `b` and the first result, and does not read them.
    first = names[0]
    stored = PRODUCT if PRODUCT in arrays else first
    seen["D"] = call.seen(stored, operands["out" if stored == PRODUCT else first])
    seen.setdefault("bias", call.seen("b", operands["b"].without(*range(rank + 1))))
    terms = {*names, *(name for name in ("bias", PRODUCT) if name in arrays)}
    terms |= {"alpha"} if wanted.alpha not in (0, 1) else set()
    bound = reduced(rank, call.number, 1 if axis == -1 else 0).bind(
        precision=of_sums(wanted.precision, infos["a"].dtype),
        wanted=frozenset(terms),
        activation=wanted.activation,
        schedule=wanted.schedule,
    )
    in_order = [seen[name] for name in ("a", "b", "bias", "D")]
    in_order += [seen.get(name, seen[first]) for name in REDUCTIONS]
    in_call = ["a", "b", "bias" if "bias" in arrays else "b", stored]
    in_call += [name if name in names else first for name in REDUCTIONS]
    launch = Launch(bound, tuple(in_order), tuple(in_call), (wanted.alpha,))
    return call.plan(launch, result=results, warns=wanted.schedule is None)


def _names(reduce: Any) -> tuple[str, ...]:
    """The requested reductions, each once."""
    names = (
        (reduce,) if isinstance(reduce, str) else tuple(reduce) if isinstance(reduce, tuple | list) else ()
    )
    wrong = [name for name in names if not isinstance(name, str) or name not in REDUCTIONS]
    if wrong or not names or len(set(names)) < len(names):
        near = close_to(wrong[0], REDUCTIONS) if wrong and isinstance(wrong[0], str) else ""
        near = f"one of {', '.join(REDUCTIONS)}, or a tuple of different ones{near}"
        raise LaunchError(f"reduced_matmul: reduce={shown(reduce)}", near)
    return names


def _dtype(kinds: Mapping[str, DType], wanted: Wanted) -> DType:
    """The dtype of new results; a stored product must hold fractions, too."""
    read = {name: kinds[name] for name in ("a", "b", "bias") if name in kinds}
    kind = result_dtype(read, wanted, "reduced_matmul")
    if not kind.is_float:
        raise DTypeError(f"reduced_matmul of {kinds['a']}", "operands of a float dtype, or your own kernel")
    if PRODUCT in kinds:
        result_dtype(read | {"out": kinds[PRODUCT]}, wanted, "reduced_matmul", written=PRODUCT)
    return dtypes.f64 if kind == dtypes.f64 else dtypes.f32


def _check_shapes(infos: Mapping[str, ArrayInfo], shape: tuple[int, ...], axis: int) -> None:
    """Check that the operands are matrices with something to reduce, and that all shapes fit."""
    for name in ("a", "b"):
        if len(infos[name].shape) < 2:
            near = f"a matrix, {name}[{'None, :' if name == 'a' else ':, None'}]"
            raise LaunchError(f"reduced_matmul: {name} has shape {infos[name].shape}", near)
    if not shape[axis]:
        raise LaunchError(
            f"reduced_matmul: a @ b has shape {shape}: axis {axis} is empty, and an empty "
            "axis cannot be reduced"
        )
    for name, own in (("bias", shape[-1:]), (PRODUCT, shape)):
        if name in infos and infos[name].shape != own:
            raise LaunchError(f"reduced_matmul: {name} has shape {infos[name].shape}", own)
