"""`gram`: a matrix by its own transpose; half of the result is computed, and stored in both triangles."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from string import ascii_lowercase
from typing import Any

from tilewright.calls import launches
from tilewright.dtypes import DType
from tilewright.errors import DTypeError, LaunchError
from tilewright.ops.einsum import plan_einsum
from tilewright.ops.ending import Conversion, Output, finishing
from tilewright.ops.launching import Call, Launch, LaunchPlan
from tilewright.ops.matmul import PLAIN, multiplied
from tilewright.ops.planning import of_sums
from tilewright.ops.problem import MatrixBatch, posed_with
from tilewright.ops.products import batches
from tilewright.ops.replay import Done, Located, Replay, called, repeated
from tilewright.ops.results import check_sums, result_dtype
from tilewright.ops.tiled_product import Algebra, EndingTerm, ProductOperand, TiledProduct, kernel_of
from tilewright.ops.wanted import HALVES_OF, Wanted, check_numbers, said
from tilewright.runtime.kernel import Kernel
from tilewright.runtime.plans import Plans
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import HOST, TARGETS

SIDE = 128
"""Approximate rows and columns of a tile on large GPUs."""

_PLANS: Plans[Replay] = Plans()


@lru_cache(maxsize=64)
def symmetric(rank: int, number: DType) -> Kernel:
    """``D[..., m, n] = alpha * sum_k A[..., m, k] * B[..., k, n]``, which is symmetric.

    Half of its tiles are computed, and each is stored to both of its places.

    Args:
        rank: number of batch dimensions.
        number: the dtype of alpha.
    """
    lead = batches(rank)

    @kernel_of(A=f"{lead}m k", B=f"{lead}k n", D=f"{lead}m n", alpha=number)
    def gemm_symmetric(*, precision: str, terms: frozenset[str]) -> TiledProduct:
        changed: list[EndingTerm] = [Conversion(number), *finishing(terms, None)] if terms else []
        ending, algebra = [*changed, Output(("D",))], Algebra(precision=precision)
        return TiledProduct(
            ProductOperand(("A",)), ProductOperand(("B",)), ending, algebra, is_symmetric=True
        )

    return gemm_symmetric


@repeated(_PLANS, PLAIN)
@launches
def gram(
    a: Any,
    out: Any = None,
    *,
    alpha: float = 1.0,
    precision: str = "exact",
    out_dtype: DType | str | None = None,
    schedule: Schedule | None = None,
    target: str | None = None,
    stream: Any = None,
) -> Any:
    """``out = alpha * (a @ a^H)``: the transpose for real numbers, the conjugate transpose for complex ones.

    Real results are symmetric.  If there are more tiles than the machine computes at once, blocks compute
    those on and below the diagonal, and store each to both of its places.  Complex arrays, few tiles, and f32
    split in halves are multiplied as in `einsum`.

    Args:
        a: array (..., M, K) of f64, f32, f16 or bf16, or complex, of any strides.
        out: array (..., M, M) to write, of any strides, without overlap; default: a new array.
        alpha: a number.
        precision: as in `matmul`.
        out_dtype: dtype of a new result; default: that of ``a``.
        schedule: how it is computed; default: chosen for the array's shape and the machine.
        target: ``"cpu"``, ``"cuda"`` or ``"reference"``; default: where the arrays lie.
        stream: the CUDA stream; default: the framework's current stream.

    Returns:
        ``out``.

    Raises:
        LaunchError: shapes or devices do not fit, or ``out`` shares memory with ``a``.
        DTypeError: an unsupported dtype.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> a = np.arange(6, dtype=np.float32).reshape(2, 3)
        >>> tw.gram(a, target="reference")
        array([[ 5., 14.],
               [14., 50.]], dtype=float32)
        >>> tw.gram(np.complex64([[1, 1j]]), target="reference")
        array([[2.+0.j]], dtype=complex64)
    """
    wanted = Wanted(alpha, None, None, precision, out_dtype, schedule=schedule, target=target)
    arrays = (a, a, out)

    def first(located: Sequence[Located]) -> Done:
        given = dict(zip(PLAIN, arrays, strict=True))
        shape = getattr(a, "shape", None)
        rank = len(shape) if isinstance(shape, tuple) else 2  # `multiplied` refuses other objects
        if rank < 2:
            near = "a matrix, a[:, None] or a[None, :]"
            raise LaunchError(f"gram: a has shape {shape}", near)
        lead = ascii_lowercase[: rank - 2]
        words = f"{lead}yz,{lead}xz->{lead}yx"
        plan = (wanted, stream, located, lambda call: plan_gram(call, wanted, words, located), (False, True))
        return multiplied("gram", given, *plan, words)

    numbers = (said(alpha), *wanted.words) if schedule is None else None
    return called(_PLANS, arrays, numbers, (alpha,), stream, first)


def plan_gram(call: Call, wanted: Wanted, subscripts: str, located: Sequence[Located] = ()) -> LaunchPlan:
    """Check the arguments of `gram` of real numbers, and plan its launch.

    Args:
        call: the arrays of the call; ``a`` and ``b`` are the same.
        wanted: its other arguments.
        subscripts: the product as a contraction.
        located: the keys and addresses of the arrays, if the caller has read them.

    Raises:
        LaunchError: shapes or devices do not fit, or ``out`` shares memory with ``a``.
        DTypeError: an unsupported dtype.
    """
    infos = call.infos
    kind = infos["a"].dtype
    if not kind.is_float or kind.bits < 16:
        raise DTypeError(f"gram of {kind}", "f16, bf16, f32, f64 or a complex dtype")
    made = result_dtype(call.dtypes, wanted, "gram")
    *batch, rows, depth = infos["a"].shape
    backend = call.serve(wanted.target)
    tiles = prod(batch) * (-(-rows // SIDE)) ** 2
    fills = (
        TARGETS[backend.name].memory == HOST or tiles > backend.processors() or wanted.schedule is not None
    )
    if not fills or wanted.alpha == 0 or HALVES_OF.get(wanted.precision, 0) or not tiles * depth:
        return plan_einsum(subscripts, {name: call.arrays.get(name) for name in PLAIN}, wanted, located)
    check_sums("gram", call.dtypes, depth, made, wanted)
    call.make("out", (*batch, rows, rows), made)
    check_numbers("gram", call.number, alpha=wanted.alpha)
    call.check_apart()
    layouts = call.layouts
    shape, strides = layouts["a"].shape, layouts["a"].strides
    order = [*range(len(batch)), len(batch) + 1, len(batch)]
    layouts["b"] = MatrixBatch(tuple(shape[dim] for dim in order), tuple(strides[dim] for dim in order))
    problem, _ = posed_with(layouts, wanted)
    seen = [call.seen(name, problem.operands[name]) for name in PLAIN]
    terms = frozenset({"alpha"} if wanted.alpha != 1 else ())
    precision = of_sums(wanted.precision, kind)
    kernel = symmetric(len(problem.batch), call.number).bind(
        precision=precision, terms=terms, schedule=wanted.schedule
    )
    product = Launch(kernel, tuple(seen), call.stand_ins(PLAIN), (wanted.alpha,))
    return call.plan(product, warns=wanted.schedule is None)
