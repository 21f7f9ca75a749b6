"""`scaled_mm`: products of operands of different widths, with scales, in one kernel."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tilewright import dtypes
from tilewright.calls import launches
from tilewright.dtypes import DType
from tilewright.errors import LaunchError
from tilewright.ops.packed_weights import PackedWeights
from tilewright.ops.planning import Wanted, check_apart, check_words, seen_as
from tilewright.ops.problem import Problem, describe, result_shape
from tilewright.ops.products import scaled, scaled_by_blocks, scaled_in_groups
from tilewright.ops.recalled import OUT, Done, called
from tilewright.ops.scale_blocks import as_blocks, beside_operands, operand_sized, shared_rows
from tilewright.ops.scale_groups import OF_GROUPS, in_groups, without_groups
from tilewright.ops.scales import (
    LARGEST,
    SCALES,
    TINIEST,
    broadcast_scales,
    check_prepass,
    multiplied_as,
    multiplied_on,
    number_of,
    pays_widened,
    pays_widened_groups,
    scaled_dtype,
)
from tilewright.ops.slow import warn
from tilewright.runtime.aliases import Pair
from tilewright.runtime.arrays import ArrayInfo
from tilewright.runtime.arrays import describe as described
from tilewright.runtime.backends import arch_of, backend_for
from tilewright.runtime.fresh import Fresh, fresh
from tilewright.runtime.kernel import Bound
from tilewright.runtime.plans import Plan, Plans
from tilewright.runtime.strided import Strided
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import TARGETS, part

ARRAYS = ("a", "b", "out", "scale_a", "scale_b", "bias", "zero_b")
"""The arrays of a call."""

IN_KERNEL = ("a", "b", "scale_a", "scale_b", "bias", "out")
"""Those of the kernel, in its order; what is not given is not read, and ``out`` stands for it."""

WITH_GROUPS = ("a", "b", "scale_a", "scale_b", "zero_b", "bias", "out")
"""The same where weights have groups; of scales and zero points one stands for the other if need be."""

WIDENED_FIRST = "tilewright.ops.widening:multiply"
"""What widens operand B in memory first; loaded when it is wanted."""

WIDENED_GROUPS = "tilewright.ops.widening_groups:multiply"
WIDENING_GROUPS = "tilewright.ops.widening_groups:widening_of"
"""The same of weights in groups."""

_ORDER = {names: tuple(map(ARRAYS.index, names)) for names in (IN_KERNEL, WITH_GROUPS)}
_PLANS = Plans()


@launches
def scaled_mm(
    a: Any,
    b: Any,
    out: Any = None,
    *,
    scale_a: Any = None,
    scale_b: Any = None,
    zero_b: Any = None,
    group: int | None = None,
    bias: Any = None,
    activation: str | None = None,
    out_dtype: DType | str | None = None,
    prepass: bool | None = None,
    schedule: Schedule | None = None,
    target: str | None = None,
    stream: Any = None,
) -> Any:
    """``out = activation(scale_a * (a @ b) * scale_b + bias)``, for operands of the same or different widths.

    With ``group`` each run of ``group`` neighbours along K of a column has its own scale and zero point:
    ``out = activation(scale_a * (a @ w) + bias)``, where ``w[k, n] = (b[k, n] - zero_b[k // group, n]) *
    scale_b[k // group, n]`` is computed in the dtype of the multiplication, and rounded there.

    Scales may belong to blocks of 128 places along K, and of 128 rows or columns besides: then ``out =
    activation(sum over blocks of scale_a * scale_b * (a @ b) + bias)``, where the sum over a block is
    multiplied by the scales of that block and added to those of the other blocks, in f32.

    It is one kernel, which reads the narrower operand in its own dtype and converts it exactly before it is
    multiplied: on Hopper in registers.  Where that is faster, a separate kernel converts ``b`` in memory
    first: on Hopper for thousands of rows of ``a``, and for more than 256 rows by weights of 4 bits in
    groups; on processors for groups whose length is no multiple of 8.  See ``prepass``.

    Sums are in f32 (of two i8 in i32); the rest is computed in f32 and rounded once.

    A result of 8 bits saturates: what is beyond its range, infinities too, becomes the nearest number that it
    has; of integers each is rounded to the nearest one, ties to even.  Wider results overflow to infinity.
    NaN, whether it is among the operands, the scales or the bias, gives NaN; in integers, which have none, 0.

    Args:
        a: array (..., M, K) of f32, f16, bf16, f8e4m3, f8e5m2, f8e4m3fnuz, f8e5m2fnuz or i8, or a vector
            (K,); of any strides.
        b: array (..., K, N) of one of these, or a vector (K,); of any strides; or `packed` numbers of 4 bits,
            i4 or f4e2m1, of two dimensions, best contiguous along K.  Two dtypes are multiplied as
            the wider one, i8 and fp8 as f16.  Two of f8e4m3 and f8e5m2 are multiplied as they are on Hopper,
            if both are contiguous along K, and two of one kind on AMD's GPUs that have matrix cores for it;
            elsewhere two kinds of fp8 are multiplied as f16, and so are two of the same kind on other GPUs.
            f16 and bf16 are not mixed.  Shapes follow NumPy's rules, as in `matmul`.
        out: array to write; default: a new array of the framework of ``a``.
        scale_a: a number; or an array of f32, f16 or bf16 with one element, or with one for each row of
            ``a``: of the shape of ``a`` without K, or with 1 in the place of K; or with one for each row and
            block, (..., M, ceil(K / 128)), or each block of rows and of K, (..., ceil(M / 128), ceil(K /
            128)).
        scale_b: the same for each column of ``b``, with the axes of blocks in the order of the axes of ``b``:
            (..., ceil(K / 128), N) or (..., ceil(K / 128), ceil(N / 128)); with ``group`` an array
            (K / group, N).
        zero_b: with ``group``, what is subtracted from the numbers of ``b`` before they are scaled: an array
            (K / group, N) of f32, f16, bf16, i8 or u8.
        group: how many neighbours along K have a scale in common; a divisor of K.
        bias: array (N,) of f32, f16 or bf16, added to each row.
        activation: as in `matmul`.
        out_dtype: dtype of a new result, one of those of ``a``; default: the dtype in which operands are
            multiplied, f16 for fp8, and f32 for two i8.
        prepass: whether a separate kernel converts ``b`` in memory before the product, to memory of twice the
            bytes of ``b`` (four times those of numbers of 4 bits); default: where that is faster, as above.
        schedule: how it is computed; default: chosen for the arrays' shapes and the machine.
        target: ``"cpu"``, ``"cuda"`` or ``"reference"``; default: where the arrays lie.
        stream: the CUDA stream; default: the framework's current stream.

    Returns:
        ``out``.

    Raises:
        LaunchError: shapes or devices do not fit, or ``out`` shares memory with what is read.
        DTypeError: an unsupported dtype or mixture.

    Example:
        >>> import ml_dtypes
        >>> import numpy as np
        >>> import tilewright as tw
        >>> a = np.float16([[1, 2], [3, 4]])
        >>> weights = np.array([[1, 0.5], [0, 448]], ml_dtypes.float8_e4m3fn)
        >>> tw.scaled_mm(a, weights, scale_b=np.float32([2, 0.25]), target="reference")
        array([[  2.  , 224.1],
               [  6.  , 448.5]], dtype=float16)
        >>> tw.scaled_mm(a, weights, scale_a=10.0, out_dtype="i8", target="reference")
        array([[ 10, 127],
               [ 30, 127]], dtype=int8)

        Weights of 4 bits, in two groups along K:

        >>> codes = tw.packed(tw.pack([[-8, 7, 1, 2]], tw.i4).T, tw.i4)
        >>> scales = np.float16([[0.5], [2]])
        >>> tw.scaled_mm(np.float16([1, 1, 1, 1]), codes, scale_b=scales, group=2, target="reference")
        array([5.5], dtype=float16)
    """
    if isinstance(b, PackedWeights):
        b, scale_b, zero_b, group = _of_packed(b, scale_b, zero_b, group)
    given = {"a": a, "b": b, "out": out, "scale_a": scale_a, "scale_b": scale_b, "bias": bias}
    number, arrays = _numbers_apart(given | {"zero_b": zero_b})
    wanted = Wanted(number, None, activation, "exact", out_dtype, schedule, target)
    return called(
        _PLANS,
        arrays,
        (number == 1, activation, out_dtype, prepass, schedule, target, group),
        (number,),
        stream,
        # Which says what is wrong with which.
        lambda: _checked(dict(zip(ARRAYS, arrays, strict=True)), wanted, group, prepass, stream),
    )


def _of_packed(weights: PackedWeights, *beside: Any) -> tuple[Any, Any, Any, int | None]:
    """Weights with scales and zero points of their own."""
    if any(one is not None for one in beside):
        raise LaunchError(
            f"scaled_mm: b is {weights!r}, which have their own scale_b, zero_b and group; nearest legal "
            "choice: none of these beside them"
        )
    return weights.b, weights.scale_b, weights.zero_b, weights.group


def _standing_in(arrays: Sequence[Any]) -> tuple[int, ...]:
    """The arrays of a kernel of groups: the one of scales and zero points that is given, where one is not."""
    scale, zero = (ARRAYS.index(name) for name in OF_GROUPS)
    instead = {scale: zero} if arrays[scale] is None else {zero: scale} if arrays[zero] is None else {}
    return tuple(instead.get(place, place) for place in _ORDER[WITH_GROUPS])


def _numbers_apart(given: Mapping[str, Any]) -> tuple[float, list[Any]]:
    """The product of the scales that are numbers, and the arrays, in the place of a number None."""
    product, arrays = 1.0, []
    for name in ARRAYS:
        array = given[name]
        number = number_of("scaled_mm", name, array)
        arrays.append(array if number is None else None)
        product *= 1.0 if number is None else number
    if math.isfinite(product) and product and not TINIEST <= abs(product) <= LARGEST:
        beyond = "overflows" if abs(product) > LARGEST else "underflows"
        raise LaunchError(
            f"scaled_mm: scale_a and scale_b are numbers whose product {product:.4g} {beyond} f32; "
            "nearest legal choice: arrays of one element, by which results are multiplied in turn"
        )
    return product, arrays


def _checked(
    given: Mapping[str, Any], wanted: Wanted, group: int | None, prepass: bool | None, stream: Any
) -> Done:
    """`scaled_mm` with everything looked at."""
    check_words(wanted)
    arrays = {name: array for name, array in given.items() if array is not None or name in ("a", "b")}
    infos = {name: described(array, f"scaled_mm, argument {name}") for name, array in arrays.items()}
    kind = scaled_dtype(infos, wanted)
    shape = result_shape(infos["a"].shape, infos["b"].shape, "scaled_mm")
    serving = backend_for("scaled_mm", list(infos.items()), wanted.target)
    backend = serving.name
    made: tuple[tuple[int, Fresh], ...] = ()
    if "out" not in arrays:
        made = ((OUT, fresh(given["a"], shape, kind)),)
        arrays["out"] = made[0][1].make()
        infos["out"] = described(arrays["out"])
    grouped = in_groups(infos, group)
    places = _standing_in(list(given.values())) if grouped else _ORDER[IN_KERNEL]
    order = tuple(OUT if given[ARRAYS[place]] is None else place for place in places)
    shared = None if grouped else shared_rows(infos)
    if shared is not None:
        problem = describe(beside_operands(infos))
    else:
        problem = describe(broadcast_scales(without_groups(infos) if grouped else infos))
    check_apart(infos)
    terms = {name for name in (*SCALES, "zero_b", "bias") if name in arrays}
    terms |= {"alpha"} if wanted.alpha != 1 else set()
    multiplied = multiplied_as(infos["a"].dtype, infos["b"].dtype)
    widens = prepass is True
    if wanted.schedule is None:  # which says itself what is multiplied
        arch = arch_of(serving, None)
        multiplied = multiplied_on(infos["a"], infos["b"], TARGETS[backend], arch)
        if prepass is None and shared is None:
            if grouped:
                pays = pays_widened_groups(infos, multiplied, arch.features, TARGETS[backend])
                widens = pays and not problem.batch
            else:
                widens = pays_widened(infos, multiplied, arch.features)
    if shared is not None and not multiplied.is_float:
        multiplied = dtypes.f16  # in which products of two i8 are exact, and are added up in f32
    check_prepass(prepass, infos, multiplied, grouped=grouped, in_blocks=shared is not None)
    if grouped and prepass and problem.batch:
        raise LaunchError(f"prepass=True of batches {problem.batch} that are no rows; use prepass=None")
    of = scaled_in_groups if grouped else scaled if shared is None else scaled_by_blocks
    kernel = of(len(problem.batch)).bind(
        multiplied=multiplied,
        terms=frozenset(terms),
        activation=wanted.activation,
        schedule=wanted.schedule,
        **({"group": group} if grouped else {"shared": shared} if shared else {}),
    )
    if grouped:
        names = [ARRAYS[place] for place in places]
        beside = {name: Strided(arrays[name], infos[name]) for name in OF_GROUPS if name in arrays}
        seen = tuple(beside.get(name) or _seen(name, arrays, infos, problem) for name in names)
        if widens:
            found = _after_widening(kernel, seen, arrays, infos, problem, (wanted.alpha,), backend, stream)
            if found is None:
                return Done(arrays["out"], None)
            plan = Plan.of(found, [one.info for one in seen], tuple(_apart(arrays, WITH_GROUPS)))
            return Done(arrays["out"], replace(plan, order=order, fresh=made))
    else:
        seen = tuple(_seen(name, arrays, infos, problem, shared) for name in IN_KERNEL)
    if widens:
        found = part(WIDENED_FIRST)(kernel, seen, (wanted.alpha,), backend, stream)
        if found is None:
            return Done(arrays["out"], None)
        plan = Plan.of(found, [one.info for one in seen], tuple(_apart(arrays)))
        return Done(arrays["out"], replace(plan, order=order, fresh=made))
    arguments = (*seen, wanted.alpha)
    tensors = (p.name for p in kernel.program.parameters if p.kind == "tensor")
    by_name = {name: one.info for name, one in zip(tensors, seen, strict=True)}
    plan, pointers = kernel.planned(arguments, backend, by_name)
    if TARGETS[backend].warps and wanted.schedule is None:
        warn(plan.prepared.executable)
    plan.prepared.launch(arguments, pointers, stream)
    # The reference reads the arrays themselves, which are not seen as the caller has them.
    is_known = TARGETS[backend].machine_code
    return Done(arrays["out"], replace(plan, order=order, fresh=made) if is_known else None)


def _after_widening(
    kernel: Bound,
    seen: Sequence[Strided],
    arrays: Mapping[str, Any],
    infos: Mapping[str, ArrayInfo],
    problem: Problem,
    numbers: tuple[complex, ...],
    backend: str,
    stream: Any,
) -> Any:
    """Widen weights in groups, and multiply; what does so again, if anything can."""
    asked = dict(kernel.constants)
    terms, group = asked["terms"], asked.pop("group")
    product = scaled(0).bind(**{**asked, "terms": terms - {*OF_GROUPS}})
    plain = {name: array for name, array in arrays.items() if name not in OF_GROUPS}
    given = tuple(_seen(name, plain, infos, problem) for name in IN_KERNEL)
    widening = part(WIDENING_GROUPS)(group, terms & {*OF_GROUPS})
    beside = [seen[WITH_GROUPS.index(name)] for name in OF_GROUPS]
    return part(WIDENED_GROUPS)(product, given, widening, beside, numbers, backend, stream)


def _apart(arrays: Mapping[str, Any], names: tuple[str, ...] = IN_KERNEL) -> Iterator[Pair]:
    """The result and each array that is read, which must not share memory."""
    out = names.index("out")
    yield from (Pair(out, place, False) for place, name in enumerate(names[:out]) if name in arrays)


def _seen(
    name: str,
    arrays: Mapping[str, Any],
    infos: Mapping[str, ArrayInfo],
    problem: Problem,
    shared: tuple[int, int] | None = None,
) -> Strided:
    """An array of the kernel; the result stands for one that is not given, for it is not read."""
    there = name if name in arrays else "out"
    if shared is not None and name in SCALES:
        if there == "out":
            return seen_as(arrays[there], infos[there], problem.operands[there])
        sized = problem.operands[operand_sized(name)]
        return seen_as(arrays[name], infos[name], as_blocks(name, sized, shared[SCALES.index(name)]))
    found = seen_as(arrays[there], infos[there], problem.operands[there])
    rank = len(found.info.shape)
    dims = {
        "scale_a": [*range(rank - 1)],
        "scale_b": [*range(rank - 2), rank - 1],
        "bias": [rank - 1],
    }.get(name, [*range(rank)])
    shape, strides = (tuple(of[dim] for dim in dims) for of in (found.info.shape, found.info.strides))
    return Strided(found.array, replace(found.info, shape=shape, strides=strides))
