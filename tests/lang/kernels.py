"""Classes of arrays, tracing, the basic GEMM, and places of carets, for the tests of the language."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Mapping
from typing import Any

import tilewright as tw
from tilewright.errors import LocatedError, Location
from tilewright.ir.kernel import Kernel
from tilewright.ir.verify import violations
from tilewright.lang.program import Program
from tilewright.lang.specs import TensorSpec

ROWS = tw.blocked((8, 8), (4, 8), (1, 0))


def spec(
    dtype: tw.DType = tw.f16,
    *,
    rank: int = 2,
    unit_dim: int | None = -1,
    extents: int = 8,
    strides: int = 8,
    align: int = 16,
    wide: bool = False,
) -> TensorSpec:
    """Return a class of arrays; by default row-major with multiples of 8 everywhere."""
    unit = None if unit_dim is None else unit_dim % rank
    steps = tuple(1 if dim == unit else strides for dim in range(rank))
    return TensorSpec(dtype, rank, unit, (extents,) * rank, steps, align, wide)


def trace(function: Callable[..., Any], declared: Mapping[str, Any] | None = None, **given: Any) -> Kernel:
    """Trace with specs by name; other values are constants.  Tensors default to f16 matrices."""
    program = Program(function, declared)
    specs = {p.name: given.pop(p.name, spec()) for p in program.parameters if p.kind == "tensor"}
    return program.trace(specs, given)


def broken(kernel: Kernel) -> list[str]:
    """Return the broken rules, as ``"rule: message"``."""
    return [f"{violation.rule}: {violation.message}" for violation in violations(kernel)]


def ops(kernel: Kernel) -> list[str]:
    return [op.verb for op in kernel.walk()]


def names(kernel: Kernel) -> list[str]:
    """Return names of all results, in order."""
    return [value.name for op in kernel.walk() for value in op.results]


def pointed(error: LocatedError | Location) -> str:
    """Return the source text over the caret; the rest of the line if it continues in the next."""
    location = error.location if isinstance(error, LocatedError) else error
    assert location is not None
    frame = location.frame
    return linecache.getline(frame.file, frame.line)[frame.column : frame.end_column or None]


def basic_gemm(A, B, C, *, tile, threads, mma):
    tile_m, tile_n, tile_k = tile
    m, n = tw.block_index(tw.ceil_div(C.shape, (tile_m, tile_n)))
    sA = tw.shared((tile_m, tile_k), A.dtype)
    sB = tw.shared((tile_n, tile_k), B.dtype)
    acc = tw.accumulator(mma, fill=0)
    for k in tw.range(tw.ceil_div(A.shape[1], tile_k)):
        tw.copy(A.tile((tile_m, tile_k), (m, k)), sA, threads=threads, vector=8)
        tw.copy(B.tile((tile_n, tile_k), (n, k)), sB, threads=threads, vector=8)
        tw.barrier()
        tw.mma(sA, sB, acc)
        tw.barrier()
    tw.copy(acc, C.tile((tile_m, tile_n), (m, n)))


DIMS = {"A": "M K", "B": "N K", "C": "M N"}
MMA = tw.TiledMma(tw.atoms.MMA_F16, warps=(4, 2), repeats=(4, 8))
CONSTANTS: dict[str, Any] = {"tile": (256, 128, 32), "threads": (64, 4), "mma": MMA}


def traced_gemm(**changes: Any) -> Kernel:
    given = {"C": spec(tw.f32), **CONSTANTS, **changes}
    return trace(basic_gemm, DIMS, **given)
