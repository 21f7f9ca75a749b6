"""Arguments for tracing the kernels of `kernels.py`: `CASES` maps a name to a function that traces one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.passes.several_products import COMPLEX, traced
from tests.schedule.small import batched as several
from tests.schedule.small import product
from tests.targets import signals

import tilewright as tw
from tilewright import atoms
from tilewright.dtypes import DType, boolean
from tilewright.ir.kernel import Kernel
from tilewright.lang.specs import TensorSpec

from .kernels import (
    basic_gemm,
    batched,
    control,
    dependent,
    doubled_and_rounded,
    elementwise,
    fused,
    im2col,
    in_clusters,
    in_slices,
    maps,
    pipelined_gemm,
    replicated,
    rows,
    running,
    through_everything,
    through_matrices,
    through_shared,
    tiles,
    transpose,
)


def matrix(
    dtype: DType, divisors: tuple[int, int], stride: int = 1, unit: int = 1, wide: bool = False
) -> TensorSpec:
    """A matrix whose extents have these divisors; stride 1 along ``unit``, and a multiple along the other."""
    align = min(16, (stride & -stride) * dtype.bytes)
    strides = (stride, 1) if unit == 1 else (1, stride)
    return TensorSpec(dtype, 2, unit, divisors, strides, align, wide)


def _gemm(
    dtype: DType, out: DType, mma: tw.TiledMma, tile: Any, threads: Any, vector: Any, whole: bool
) -> Kernel:
    m, n, k = tile if whole else (1, 1, 1)
    stride = 16 // dtype.bytes if whole else 1
    specs = (matrix(dtype, (m, k), stride), matrix(dtype, (n, k), stride), matrix(out, (m, n), stride))
    return basic_gemm.trace(*specs, tile=tile, threads=threads, mma=mma, vector=vector)


def _pipelined(
    dtype: DType,
    out: DType,
    mma: tw.TiledMma,
    tile: Any,
    stages: int,
    units: tuple[int, int] = (1, 1),
    divisor: int = 16,
    wide: bool = False,
) -> Kernel:
    stride = 16 // dtype.bytes if divisor > 1 else 1
    a, b = (matrix(dtype, (divisor, divisor), stride, unit, wide) for unit in units)
    c = matrix(out, (divisor, divisor), stride, 1, wide)
    return pipelined_gemm.trace(a, b, c, tile=tile, mma=mma, stages=stages)


def _elementwise(source: DType, target: DType, *functions: Callable[[Any], Any], divisor: int = 8) -> Kernel:
    specs = (matrix(source, (1, divisor), divisor), matrix(target, (1, divisor), divisor))
    return elementwise.trace(*specs, tile=(32, 32), threads=(32, 4), functions=functions)


def _arithmetic(dtype: DType) -> tuple[Callable[[Any], Any], ...]:
    every = (
        lambda x: x * 3 - 1,
        lambda x: tw.minimum(tw.maximum(x, -2), 2) if dtype.kind != "uint" else tw.minimum(x, 2),
        lambda x: tw.where(x < 1, x + x, -x if dtype.kind != "uint" else x),
        lambda x: tw.absolute(x) / 2 if dtype.kind != "uint" else x / 2,
    )
    floats = (
        lambda x: tw.exp(x) + tw.log(tw.absolute(x) + 1.0),
        lambda x: tw.sqrt(tw.absolute(x)) + tw.rsqrt(x * x + 0.5) + tw.tanh(x),
    )
    return (*every, *floats) if dtype.is_float else every


MMA_F16 = tw.TiledMma(atoms.MMA_F16, (4, 2), (4, 8))
SMALL = {
    name: tw.TiledMma(atom, (2, 2), (2, 4))
    for name, atom in {
        "f16": atoms.MMA_F16,
        "f16_f16": atoms.MMA_F16_F16,
        "bf16": atoms.MMA_BF16,
        "tf32": atoms.MMA_TF32,
        "i8": atoms.MMA_I8,
    }.items()
}
"""Tensor-core atoms on 128 threads; tiles of 64 x 64."""


def simt(dtype: DType, each: tuple[int, int] = (4, 4)) -> tw.TiledMma:
    """Multiply-adds on 128 threads."""
    return tw.TiledMma(atoms.fma(dtype, each=each), (2, 2))


def _im2col(divisor: int, stride: Any = 1, dilation: Any = 1, padding: Any = 0) -> Kernel:
    image = TensorSpec(tw.f32, 4, 3, (1, 1, 1, divisor), (divisor, divisor, divisor, 1), 16, False)
    bound = im2col.bind(stride=stride, dilation=dilation, padding=padding)
    return bound.trace(image, matrix(tw.f32, (1, divisor), divisor))


def _scheduled(schedule: tw.Schedule, divisor: int) -> Kernel:
    """Expand a dataflow kernel."""
    operand, out = (matrix(kind, (divisor, divisor), divisor) for kind in (tw.f16, tw.f32))
    return product.bind(schedule=schedule).trace(operand, operand, out, target="cuda", arch="sm_80")


def _small_products(schedule: tw.Schedule) -> Kernel:
    """Batches of ragged products under a schedule."""
    spec = TensorSpec(tw.f16, 3, 2, (1, 1, 1), (1, 1, 1), 2, False)
    return several.bind(schedule=schedule).trace(spec, spec, spec, target="cuda", arch="sm_80")


A_WARP = tw.Schedule(atoms.MMA_F16, (32, 32, 32), stages=2, staging="cp_async", epilogue="staged", batches=4)
SWAPPED = tw.Schedule(
    atoms.MMA_F16, (64, 16, 32), (4, 1), stages=3, staging="cp_async", epilogue="staged", swap_ab=True
)
PAST_SHARED = tw.Schedule(atoms.MMA_F16, (64, 32, 32), warps=(4, 1), staging="registers", bypass="a")
TOGETHER = replace(PAST_SHARED, bypass="", k1=(8, 16), extra_rows=(1, 0), dealt=((32, 4), (16, 8)))

CASES: dict[str, Callable[[], Kernel]] = {
    "small_products": lambda: _small_products(A_WARP),
    "swapped": lambda: _scheduled(SWAPPED, 16),
    "past_shared": lambda: _scheduled(PAST_SHARED, 16),
    "together": lambda: _scheduled(TOGETHER, 16),
    "together_ragged": lambda: _scheduled(replace(TOGETHER, stages=3, staging="cp_async"), 1),
    "past_shared_ragged": lambda: _scheduled(replace(PAST_SHARED, bypass="ab", epilogue="staged"), 1),
    "rows": lambda: rows.trace(
        matrix(tw.f32, (1, 16), 16),
        TensorSpec(tw.i32, 1, 0, (1,), (1,), 16, False),
        matrix(tw.f32, (1, 16), 16),
        tile=(128, 64),
        threads=64,
    ),
    **{
        f"packed_{kind}": lambda kind=kind: doubled_and_rounded.trace(
            matrix(kind, (1, 32), 32), matrix(kind, (1, 32), 32), tile=(32, 64), threads=64
        )
        for kind in (tw.i4, tw.f4e2m1)
    },
    "im2col": lambda: _im2col(16),
    "im2col_ragged": lambda: _im2col(1, stride=(2, 1), dilation=(1, 2), padding=((1, 0), 2)),
    "basic_gemm_f16": lambda: _gemm(tw.f16, tw.f16, MMA_F16, (256, 128, 32), 256, 8, True),
    "ragged_gemm_f16": lambda: _gemm(tw.f16, tw.f16, SMALL["f16"], (64, 64, 32), 128, None, False),
    "complex_by_fma": lambda: traced(COMPLEX, simt(tw.f32)),
    "padded_gemm_f32": lambda: _gemm(tw.f32, tw.f32, simt(tw.f32), (32, 64, 16), 128, None, False),
    "gemm_f64": lambda: _gemm(tw.f64, tw.f64, simt(tw.f64), (32, 64, 8), (32, 4), None, False),
    "gemm_f16_fma": lambda: _gemm(tw.f16, tw.f16, simt(tw.f16), (32, 64, 16), (32, 4), None, True),
    "gemm_bf16_fma": lambda: _gemm(tw.bf16, tw.f32, simt(tw.bf16), (32, 64, 16), (32, 4), None, False),
    "gemm_f8e4m3": lambda: _gemm(tw.f8e4m3, tw.f16, simt(tw.f8e4m3), (32, 64, 16), (32, 4), None, False),
    "gemm_f8e5m2": lambda: _gemm(tw.f8e5m2, tw.f8e5m2, simt(tw.f8e5m2), (32, 64, 16), (32, 4), None, True),
    "gemm_i8_fma": lambda: _gemm(tw.i8, tw.i32, simt(tw.i8), (32, 64, 16), (32, 4), None, False),
    "gemm_i8": lambda: _gemm(tw.i8, tw.i32, SMALL["i8"], (64, 64, 64), 128, 16, True),
    "gemm_tf32": lambda: _gemm(tw.f32, tw.f32, SMALL["tf32"], (64, 64, 16), 128, 4, True),
    "gemm_f16_f16": lambda: _gemm(tw.f16, tw.f16, SMALL["f16_f16"], (64, 64, 32), (32, 4), 8, True),
    "gemm_bf16": lambda: _gemm(tw.bf16, tw.bf16, SMALL["bf16"], (64, 64, 32), 128, 8, True),
    "pipelined_gemm_f16": lambda: _pipelined(
        tw.f16, tw.f16, tw.TiledMma(atoms.MMA_F16, (2, 4), (4, 4)), (128, 128, 32), 4
    ),
    "pipelined_gemm_f16_nn": lambda: _pipelined(tw.f16, tw.f16, SMALL["f16"], (64, 64, 32), 3, (1, 0)),
    "pipelined_gemm_f16_tt": lambda: _pipelined(
        tw.f16, tw.f32, SMALL["f16"], (64, 64, 32), 3, (0, 0), wide=True
    ),
    "pipelined_gemm_f16_ragged": lambda: _pipelined(tw.f16, tw.f16, SMALL["f16"], (64, 64, 32), 3, divisor=1),
    "pipelined_gemm_bf16_tn": lambda: _pipelined(tw.bf16, tw.f32, SMALL["bf16"], (64, 64, 32), 2, (0, 1)),
    "pipelined_gemm_tf32": lambda: _pipelined(tw.f32, tw.f32, SMALL["tf32"], (64, 64, 32), 3, (1, 0)),
    "pipelined_gemm_i8": lambda: _pipelined(tw.i8, tw.i32, SMALL["i8"], (64, 64, 64), 3, (1, 0)),
    "pipelined_gemm_f32": lambda: _pipelined(
        tw.f32, tw.f32, tw.TiledMma(atoms.fma(tw.f32, each=(8, 8)), (4, 2)), (128, 128, 8), 3
    ),
    "pipelined_gemm_f32_ragged": lambda: _pipelined(tw.f32, tw.f32, simt(tw.f32), (32, 64, 16), 3, divisor=1),
    **{
        f"arithmetic_{dtype}": lambda dtype=dtype: _elementwise(dtype, dtype, *_arithmetic(dtype))
        for dtype in (
            tw.f64,
            tw.f32,
            tw.f16,
            tw.bf16,
            tw.f8e4m3,
            tw.f8e5m2,
            tw.i64,
            tw.i32,
            tw.i16,
            tw.i8,
            tw.u8,
        )
    },
    **{
        f"convert_{source}_{target}": lambda source=source, target=target: _elementwise(
            source, target, lambda x: x.to(target)
        )
        for source in (
            tw.f64,
            tw.f32,
            tw.f16,
            tw.bf16,
            tw.f8e4m3,
            tw.f8e5m2,
            tw.i64,
            tw.i32,
            tw.i8,
            tw.u8,
            boolean,
        )
        for target in (
            tw.f64,
            tw.f32,
            tw.f16,
            tw.bf16,
            tw.f8e4m3,
            tw.f8e5m2,
            tw.i64,
            tw.i32,
            tw.i16,
            tw.i8,
            tw.u64,
            tw.u32,
            tw.u8,
        )
        if source != target
    },
    "copy_converts": lambda: through_shared.trace(
        matrix(tw.f32, (4, 8), 8), matrix(tw.f16, (4, 8), 8), tile=(32, 64), threads=(16, 8), back=(32, 4)
    ),
    "copy_narrow": lambda: through_shared.trace(
        matrix(tw.u8, (1, 1), 1), matrix(tw.u8, (1, 1), 1), tile=(32, 64), threads=(16, 8), back=(8, 4)
    ),
    "copy_complex": lambda: through_shared.trace(
        matrix(tw.c64, (1, 2), 2), matrix(tw.c64, (1, 2), 2), tile=(16, 32), threads=(16, 8), back=(16, 4)
    ),
    "copy_large": lambda: through_shared.trace(
        matrix(tw.f32, (1, 1), 1), matrix(tw.f64, (1, 1), 1), tile=(128, 128), threads=(2, 16), back=(4, 16)
    ),
    **{
        f"matrices_{source}_{target}{'_trans' * columns}": (
            lambda source=source, target=target, columns=columns: through_matrices.trace(
                matrix(source, (1, 1)),
                matrix(target, (1, 1)),
                tile=(64, 64),
                mma=SMALL["f16"],
                columns=columns,
            )
        )
        for source, target in ((tw.f32, tw.f16), (tw.f32, tw.bf16), (tw.f16, tw.f16))
        for columns in (False, True)
    },
    "through_everything": lambda: through_everything.trace(
        matrix(tw.f16, (1, 8), 8), matrix(tw.bf16, (1, 8), 8), tile=(32, 64), threads=(16, 8)
    ),
    "control": lambda: control.trace(
        matrix(tw.f32, (1, 4), 4), matrix(tw.f32, (1, 4), 4), 0.0, 0, tile=(16, 64), threads=(16, 4)
    ),
    "batched": lambda: batched.trace(
        TensorSpec(tw.f16, 3, 2, (1, 1, 8), (8, 8, 1), 16, True),
        TensorSpec(tw.f32, 3, 2, (1, 1, 8), (8, 8, 1), 16, True),
        tile=(32, 64),
        threads=(16, 8),
    ),
    "replicated": lambda: replicated.trace(
        matrix(tw.f32, (1, 4), 4),
        TensorSpec(tw.f16, 1, 0, (4,), (1,), 8, False),
        matrix(tw.f32, (1, 4), 4),
        tile=(16, 64),
        threads=(8, 16),
    ),
    "slices": lambda: in_slices.trace(
        matrix(tw.f32, (1, 1), 1), matrix(tw.f32, (1, 1), 1), mma=tw.TiledMma(atoms.MMA_F16, repeats=(1, 4))
    ),
    **{
        f"{name}_{x}": lambda case=case, x=x, y=y, spread=spread: case.trace(
            matrix(x, (1, 1), 1), matrix(y, (1, 1), 1), spread=spread
        )
        for name, case in (("tiles", tiles), ("maps", maps))
        for x, y, spread in (
            (tw.f32, tw.f16 if name == "tiles" else tw.f32, SMALL["f16"].c()),
            (tw.f64, tw.i16 if name == "tiles" else tw.f64, tw.raked((64, 64), (32, 4), 2, 1)),
            (tw.i8, tw.u8 if name == "tiles" else tw.i8, tw.blocked((64, 64), (4, 16), (0, 1))),
            (tw.bf16, tw.f8e4m3 if name == "tiles" else tw.f32, tw.blocked((64, 64), (1, 64), (0, 1))),
        )
    },
    **{
        f"running_{kind}_{spread.size_threads}": lambda kind=kind, spread=spread: running.trace(
            matrix(kind, (1, 1), 1), matrix(kind, (1, 1), 1), spread=spread
        )
        for kind in (tw.f32, tw.f16, tw.i32)
        for spread in (tw.blocked((16, 64), (2, 16)), tw.blocked((4, 256), (2, 64)))
    },
    "fused_f16": lambda: fused.trace(
        *(matrix(tw.f16, (16, 16), 8) for _ in range(4)),
        first=tw.TiledMma(atoms.MMA_F16, (2, 1), (2, 4)),
        second=tw.TiledMma(atoms.MMA_F16, (2, 1), (2, 6)),
    ),
    "transpose": lambda: transpose.trace(
        matrix(tw.f32, (1, 4), 4), matrix(tw.f32, (1, 4), 4), tile=(32, 32), threads=(8, 8)
    ),
}

SIGNALS: dict[str, Callable[[], Kernel]] = {
    "turnstile": lambda: signals.SMALL_TURNSTILE.trace(*(matrix(tw.f32, (1, 4), 4) for _ in range(3))),
    "last_block_sum": lambda: signals.last_block_sum.trace(tw.like("f32", 1000), tw.like("f32", 1)),
    "around": lambda: signals.around.bind(blocks=4).trace(tw.like("f32", 256), tw.like("f32", 256)),
}
"""Cases whose blocks signal to each other; run one block after the other, they would wait for ever."""

CLUSTERS: dict[str, Callable[[], Kernel]] = {
    "in_clusters": lambda: in_clusters.trace(
        matrix(tw.f32, (64, 32), 4), matrix(tw.f32, (64, 32), 4), tile=(16, 32), threads=(8, 4), blocks=2
    ),
    "dependent": lambda: dependent.trace(
        matrix(tw.f32, (1, 4), 4), matrix(tw.f32, (1, 4), 4), tile=(16, 32), threads=32
    ),
}
"""Cases for architectures that have clusters."""
