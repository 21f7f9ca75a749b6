"""General matrix multiply: the kernel, and `matmul` for arrays."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tilewright import dtypes
from tilewright.calls import launches
from tilewright.dtypes import DType
from tilewright.errors import DTypeError, LaunchError, TilewrightError, close_to
from tilewright.ir.mma import TiledMma
from tilewright.lang import operations as tw
from tilewright.lang.scalars import ceil_div
from tilewright.lang.tensors import Tensor
from tilewright.ops.config import MATHS, Config, default_config
from tilewright.ops.mainloop import mainloop
from tilewright.ops.slow import warn_if_slow
from tilewright.runtime.arrays import LOCATORS, ArrayInfo, describe, locate_new, overlap
from tilewright.runtime.backends import backend_for
from tilewright.runtime.decorator import kernel
from tilewright.runtime.kernel import Bound
from tilewright.runtime.plans import Plans
from tilewright.runtime.shortcuts import Shortcuts
from tilewright.targets.target import TARGETS
from tilewright.tracebacks import trim


@kernel(A="M K", B="N K", C="M N")
def gemm(A: Tensor, B: Tensor, C: Tensor, *, tile: tuple[int, int, int], mma: TiledMma, stages: int) -> None:
    """``C[m, n] = sum_k A[m, k] * B[n, k]``: data-parallel, one block per tile of C."""
    m, n = tw.block_index(ceil_div(C.shape, tile[:2]))
    acc = mainloop(A, B, (m, n), tile=tile, mma=mma, stages=stages)
    tw.copy(acc, C.tile(tile[:2], (m, n)))


@dataclass(frozen=True)
class Problem:
    """What is to be multiplied, and where.

    Args:
        m: rows of A and C.
        n: columns of B and C.
        k: columns of A, rows of B.
        dtype: element type of A and B.
        target: the target that runs it.
    """

    m: int
    n: int
    k: int
    dtype: DType
    target: str


def output_dtype(dtype: DType) -> DType:
    """The dtype of ``a @ b`` for operands of ``dtype``: i32 for integers, f16 for fp8, else the same."""
    if dtype.kind == "int":
        return dtypes.i32
    return dtypes.f16 if dtype.bits == 8 else dtype


def problem_of(a: ArrayInfo, b: ArrayInfo, target: str | None = None) -> Problem:
    """The problem that two arrays pose.

    Raises:
        LaunchError: not two matrices whose inner extents agree.
        DTypeError: different dtypes.
    """
    if len(a.shape) != 2 or len(b.shape) != 2:
        raise LaunchError(f"matmul takes matrices (M, K) and (K, N), not shapes {a.shape} and {b.shape}")
    if a.shape[1] != b.shape[0]:
        raise LaunchError(
            f"matmul of shapes {a.shape} and {b.shape}: K is {a.shape[1]} in a and {b.shape[0]} in b"
        )
    if a.dtype != b.dtype:
        raise DTypeError(f"matmul of {a.dtype} and {b.dtype}: convert one of them first")
    backend = backend_for("matmul", [("a", a), ("b", b)], target)
    return Problem(a.shape[0], b.shape[1], a.shape[1], a.dtype, backend.name)


def matmul(
    a: Any,
    b: Any,
    out: Any = None,
    *,
    math: str = "exact",
    target: str | None = None,
    config: Config | None = None,
    stream: Any = None,
) -> Any:
    """``out[m, n] = sum_k a[m, k] * b[k, n]``, summed in f32 (f64 for f64, i32 for i8), rounded once.

    Args:
        a: (M, K) array of f64, f32, f16, bf16, f8e4m3, f8e5m2 or i8; any strides, none negative.
        b: (K, N) array of the same dtype.
        out: (M, N) array to write; default: a new array of the inputs' framework.
        math: ``"exact"``, or ``"tf32"`` to multiply f32 on tensor cores with 10 fraction bits.
        target: ``"cpu"``, ``"cuda"`` or ``"reference"``; default: where the arrays lie.
        config: tile, tiled MMA and stages; default: chosen for target, dtype and shape.
        stream: the CUDA stream; default: the framework's current stream.

    Returns:
        ``out``.

    Raises:
        LaunchError: shapes, devices or strides do not fit, or ``out`` shares memory with ``a`` or ``b``.
        DTypeError: an unsupported dtype or mixture.

    Warns:
        SlowWarning: once for each dtype that a GPU has tensor cores for and this multiplies without them:
            f8e4m3 and f8e5m2 from sm_89 on, whose sums would keep 13 bits there.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> a = np.arange(6, dtype=np.float32).reshape(2, 3)
        >>> tw.matmul(a, a.T, target="reference")
        array([[ 5., 14.],
               [14., 50.]], dtype=float32)
    """
    try:
        if math == "exact" and target is None and config is None and stream is None:
            found = _SHORTCUTS.call(a, b) if out is None else _SHORTCUTS.call(a, b, out)
            if found is not None:
                return found
        if out is None:
            return _checked(a, b, None, math, target, config, stream)
        # A known problem needs only the addresses, and a look at whether they are far enough apart.
        try:
            key_a, at_a = LOCATORS.get(type(a), locate_new)(a, 0)
            key_b, at_b = LOCATORS.get(type(b), locate_new)(b, 0)
            key_out, at_out = LOCATORS.get(type(out), locate_new)(out, 0)
            key = (key_a, key_b, key_out, type(b), math, target, config)
            known = _PLANS.find(key)
        except (LaunchError, TypeError):  # TypeError: something that has no hash
            return _checked(a, b, out, math, target, config, stream)  # which says what is wrong with which
        pointers = (at_a, at_b, at_out)
        if known is None or not known.apart(pointers):
            return _checked(a, b, out, math, target, config, stream, key)
        known.prepared.launch((a, b, out), pointers, stream)
        if known.prepared.may_be_inlined and (math, target, config, stream) == _PLAIN:
            _SHORTCUTS.keep(known.prepared, (a, b, out), (0, 1, 2), fresh=False)
    except TilewrightError as error:
        trim(error)
        raise
    return out


_PLANS = Plans()
_SHORTCUTS = Shortcuts()
_PLAIN = ("exact", None, None, None)


@launches.of("matmul")
def _checked(
    a: Any,
    b: Any,
    out: Any,
    math: str,
    target: str | None,
    config: Config | None,
    stream: Any,
    key: Hashable | None = None,
) -> Any:
    """`matmul` with everything looked at; with a key, it is remembered for arrays like these."""
    if math not in MATHS:
        raise LaunchError(f"math={math!r}; choose one of {', '.join(MATHS)}{close_to(math, MATHS)}")
    info_a, info_b = describe(a, "matmul, argument a"), describe(b, "matmul, argument b")
    problem = problem_of(info_a, info_b, target)
    fresh = out is None
    if fresh:
        out = _empty_like(a, (problem.m, problem.n), output_dtype(problem.dtype))
        info_out = describe(out)
    else:
        info_out = describe(out, "matmul, argument out")
        _check_out(info_out, problem, {"a": info_a, "b": info_b})
    chosen = config or _config(problem.target, problem.dtype, shape(problem), math)
    arguments = (a, _transposed(b), out)
    arrays = {"A": info_a, "B": describe(arguments[1], "matmul, argument b"), "C": info_out}
    plan, pointers = bind(chosen).planned(arguments, problem.target, arrays)
    if TARGETS[problem.target].warps and config is None:
        warn_if_slow(chosen.mma.atom, plan.prepared.executable.arch)
    plan.prepared.launch(arguments, pointers, stream)
    if plan.prepared.may_be_inlined and (math, target, config, stream) == _PLAIN:
        _SHORTCUTS.keep(plan.prepared, (a, b, out), (0, 1, 2), fresh=fresh)
    # The reference reads the arrays themselves, and some frameworks copy to transpose.
    if key is not None and TARGETS[problem.target].machine_code and pointers[1] == info_b.pointer:
        _PLANS.keep(key, plan)
    return out


_config = lru_cache(maxsize=4096)(default_config)


def _check_out(out: ArrayInfo, problem: Problem, operands: Mapping[str, ArrayInfo]) -> None:
    if out.shape != (problem.m, problem.n):
        raise LaunchError(f"out has shape {out.shape}, a @ b has {(problem.m, problem.n)}")
    made = output_dtype(problem.dtype)
    if made.is_float and not out.dtype.is_float:
        raise DTypeError(f"out is {out.dtype}, a @ b is {made}: the fractions would be lost")
    for name, operand in operands.items():
        if overlap(out, operand):
            raise LaunchError(
                f"out and {name} share memory, or interleave in too intricate a way to tell: elements of "
                f"{name} would be overwritten before they are read; nearest legal choice: another array"
            )


def shape(problem: Problem) -> tuple[int, int, int]:
    """Extents (M, N, K)."""
    return (problem.m, problem.n, problem.k)


def bind(config: Config) -> Bound:
    """The GEMM kernel with one configuration."""
    return gemm.bind(tile=config.tile, mma=config.mma, stages=config.stages)


def _transposed(b: Any) -> Any:
    """``b`` with its dimensions exchanged, in the same memory."""
    if isinstance(b, np.ndarray):  # a subclass may answer .T with something else
        return np.asarray(b).T
    if not hasattr(b, "T"):
        raise LaunchError(
            f"b of type {type(b).__name__} has no .T, by which its dimensions are exchanged; nearest: "
            "numpy.from_dlpack(b), or that of the framework it lies in"
        )
    return b.T


def _empty_like(a: Any, extents: tuple[int, int], dtype: DType) -> Any:
    """An uninitialised array of the framework and device of ``a``."""
    library: Any = sys.modules.get(type(a).__module__.partition(".")[0])
    if isinstance(a, np.ndarray):
        return np.empty(extents, dtype.numpy)
    if getattr(library, "__name__", "") == "torch":
        names = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64", "i32": "int32"}
        return library.empty(extents, dtype=getattr(library, names[dtype.name]), device=a.device)
    if hasattr(library, "empty"):
        return library.empty(extents, dtype=dtype.numpy)
    raise LaunchError(f"cannot make an output for {type(a).__name__}; pass out=")
