"""`scaled_mm`: products of operands of different widths, with scales, in one kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.calls import launches
from tilewright.dtypes import DType
from tilewright.errors import LaunchError
from tilewright.ops.planning import Done, Wanted, check_apart, check_words, seen_as, warn
from tilewright.ops.problem import Problem, describe, result_shape
from tilewright.ops.products import scaled
from tilewright.ops.recalled import again, located
from tilewright.ops.scales import SCALES, broadcast_scales, multiplied_as, multiplied_on, scaled_dtype
from tilewright.runtime.arrays import ArrayInfo
from tilewright.runtime.arrays import describe as described
from tilewright.runtime.backends import arch_of, backend_for
from tilewright.runtime.fresh import Fresh, fresh
from tilewright.runtime.plans import Plans
from tilewright.runtime.strided import Strided
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import TARGETS

ARRAYS = ("a", "b", "out", "scale_a", "scale_b", "bias")
"""The arrays of a call."""

IN_KERNEL = ("a", "b", "scale_a", "scale_b", "bias", "out")
"""Those of the kernel, in its order; what is not given is not read, and ``out`` stands for it."""

_ORDER = tuple(map(ARRAYS.index, IN_KERNEL))
_PLANS = Plans()


@launches
def scaled_mm(
    a: Any,
    b: Any,
    out: Any = None,
    *,
    scale_a: Any = None,
    scale_b: Any = None,
    bias: Any = None,
    activation: str | None = None,
    out_dtype: DType | str | None = None,
    schedule: Schedule | None = None,
    target: str | None = None,
    stream: Any = None,
) -> Any:
    """``out = activation(scale_a * (a @ b) * scale_b + bias)``, for operands of the same or different widths.

    It is one kernel.  The narrower operand is widened on its way to the multiplication, exactly: on Hopper in
    registers, behind bulk copies that brought it as narrow as it is.  Sums are in f32 (of two i8 in i32); the
    rest is computed in f32 and rounded once.

    A result of 8 bits saturates: what is beyond its range, infinities too, becomes the nearest number that it
    has; of integers each is rounded to the nearest one, ties to even.  Wider results overflow to infinity.
    NaN, whether it is among the operands, the scales or the bias, gives NaN; in integers, which have none, 0.

    Args:
        a: array (..., M, K) of f32, f16, bf16, f8e4m3, f8e5m2 or i8, or a vector (K,); of any strides.
        b: array (..., K, N) of one of these, or a vector (K,); of any strides.  Two dtypes are multiplied as
            the wider one; f8e4m3, f8e5m2 and i8 with another one of them as f16, and so are two of the same
            fp8 on GPUs but Hopper, and there if one is not contiguous along K.  f16 and bf16 are not mixed.
            Shapes follow NumPy's rules, as in `matmul`.
        out: array to write; default: a new array of the framework of ``a``.
        scale_a: a number; or an array of f32, f16 or bf16 with one element, or with one for each row of
            ``a``: of the shape of ``a`` without K, or with 1 in the place of K.
        scale_b: the same for each column of ``b``.
        bias: array (N,) of f32, f16 or bf16, added to each row.
        activation: as in `matmul`.
        out_dtype: dtype of a new result: f32, f16, bf16, f8e4m3, f8e5m2 or i8; default: the dtype in which
            operands are multiplied, f16 for fp8, and f32 for two i8.
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
    """
    given = {"a": a, "b": b, "out": out, "scale_a": scale_a, "scale_b": scale_b, "bias": bias}
    number, arrays = _numbers_apart(given)
    wanted = Wanted(number, None, activation, "exact", out_dtype, schedule, target)
    key, plan, at = None, None, list[int | None]()
    try:
        keys, at = located(arrays)
        key = None if schedule is not None else (*keys, number == 1, activation, out_dtype, target)
        plan = None if key is None else _PLANS.find(key)
    except (LaunchError, TypeError):  # something that is no array, or that has no hash
        key = None
    if plan is not None and (found := again(plan, arrays, at, _ORDER, (number,), stream)) is not None:
        return found
    # Which says what is wrong with which.
    made = _checked(dict(zip(ARRAYS, arrays, strict=True)), wanted, stream)
    if made.plan is not None and key is not None:
        _PLANS.keep(key, made.plan)
    return made.out


def _numbers_apart(given: Mapping[str, Any]) -> tuple[float, list[Any]]:
    """The product of the scales that are numbers, and the arrays, in the place of a number None."""
    product, arrays = 1.0, []
    for name in ARRAYS:
        array = given[name]
        if name in SCALES and isinstance(array, int | float | np.number):
            product, array = product * float(array), None
        arrays.append(array)
    return product, arrays


def _checked(given: Mapping[str, Any], wanted: Wanted, stream: Any) -> Done:
    """`scaled_mm` with everything looked at."""
    check_words(wanted)
    arrays = {name: array for name, array in given.items() if array is not None or name in ("a", "b")}
    infos = {name: described(array, f"scaled_mm, argument {name}") for name, array in arrays.items()}
    kind = scaled_dtype(infos, wanted)
    shape = result_shape(infos["a"].shape, infos["b"].shape)
    serving = backend_for("scaled_mm", list(infos.items()), wanted.target)
    backend = serving.name
    made: Fresh | None = None
    if "out" not in arrays:
        made = fresh(given["a"], shape, kind)
        arrays["out"] = made.make()
        infos["out"] = described(arrays["out"])
    problem = describe(broadcast_scales(infos))
    check_apart(infos)
    terms = {name for name in (*SCALES, "bias") if name in arrays}
    terms |= {"alpha"} if wanted.alpha != 1 else set()
    multiplied = multiplied_as(infos["a"].dtype, infos["b"].dtype)
    if wanted.schedule is None:  # which says itself what is multiplied
        multiplied = multiplied_on(infos["a"], infos["b"], TARGETS[backend], arch_of(serving, None))
    kernel = scaled(len(problem.batch)).bind(
        multiplied=multiplied,
        terms=frozenset(terms),
        activation=wanted.activation,
        schedule=wanted.schedule,
    )
    seen = tuple(_seen(name, arrays, infos, problem) for name in IN_KERNEL)
    arguments = (*seen, wanted.alpha)
    tensors = (p.name for p in kernel.program.parameters if p.kind == "tensor")
    by_name = {name: one.info for name, one in zip(tensors, seen, strict=True)}
    plan, pointers = kernel.planned(arguments, backend, by_name)
    if TARGETS[backend].warps and wanted.schedule is None:
        warn(plan.prepared.executable)
    plan.prepared.launch(arguments, pointers, stream)
    # The reference reads the arrays themselves, which are not seen as the caller has them.
    is_known = TARGETS[backend].machine_code
    return Done(arrays["out"], replace(plan, fresh=made) if is_known else None)


def _seen(name: str, arrays: Mapping[str, Any], infos: Mapping[str, ArrayInfo], problem: Problem) -> Strided:
    """An array of the kernel; the result stands for one that is not given, for it is not read."""
    there = name if name in arrays else "out"
    found = seen_as(arrays[there], infos[there], problem.operands[there])
    rank = len(found.info.shape)
    dims = {
        "scale_a": [*range(rank - 1)],
        "scale_b": [*range(rank - 2), rank - 1],
        "bias": [rank - 1],
    }.get(name, [*range(rank)])
    shape, strides = (tuple(of[dim] for dim in dims) for of in (found.info.shape, found.info.strides))
    return Strided(found.array, replace(found.info, shape=shape, strides=strides))
