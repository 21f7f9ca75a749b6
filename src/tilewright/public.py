"""The public names ``tw.…``. `tilewright` imports this module when the first of them is used."""

from typing import TYPE_CHECKING, Any

from tilewright.dtypes import (
    DType,
    bf16,
    c32,
    c64,
    c128,
    dtype,
    f4e2m1,
    f8e4m3,
    f8e4m3fnuz,
    f8e5m2,
    f8e5m2fnuz,
    f8e8m0,
    f16,
    f32,
    f64,
    i4,
    i8,
    i16,
    i32,
    i64,
    u4,
    u8,
    u16,
    u32,
    u64,
)
from tilewright.errors import (
    CompileError,
    DTypeError,
    HazardError,
    LaunchError,
    LayoutError,
    LegalityError,
    ParseError,
    ScheduleError,
    SignatureError,
    SlowWarning,
    TilewrightError,
    ToolchainError,
    TraceError,
    WrongResultError,
)
from tilewright.ir.mma import MmaAtom, TiledMma
from tilewright.lang import exact_functions, functions
from tilewright.lang.control import MutableIndex, index, let, otherwise, range, unroll, var, when  # noqa: A004
from tilewright.lang.dataflow.indexing import alias, arrives, leaves, positions
from tilewright.lang.dataflow.loops import full, steps, tiles, zeros
from tilewright.lang.dataflow.rows import softmax
from tilewright.lang.dataflow.tiles import Tile
from tilewright.lang.exact_functions import *  # noqa: F403
from tilewright.lang.fragments import Fragment, Number
from tilewright.lang.functions import *  # noqa: F403
from tilewright.lang.launch import batch_index, block_index, derived, require, workspace
from tilewright.lang.operations import (
    accumulator,
    async_commit,
    async_wait,
    barrier,
    copy,
    copy_async,
    fill,
    fragment,
    load,
    mma,
    operand_a,
    operand_b,
    shared,
    warp_barrier,
)
from tilewright.lang.roles import role, role_barrier
from tilewright.lang.scalars import Condition, Scalar, ceil_div
from tilewright.lang.signals import await_, counter, reset, signal, ticket
from tilewright.lang.specs import TensorSpec
from tilewright.lang.tensors import Tensor
from tilewright.lang.tile_arithmetic import (
    argmax,
    causal_mask,
    coordinates,
    prefix_sum,
    redistribute,
    reduce_max,
    reduce_min,
    reduce_sum,
)
from tilewright.layout.layout import Layout, column_major, row_major, shows
from tilewright.namespaces import import_whole
from tilewright.ops.grouped import grouped_matmul
from tilewright.ops.matmul import matmul
from tilewright.ops.rearranged_weights import RearrangedWeights, rearrange_weights
from tilewright.packing import NF4, pack, unpack
from tilewright.runtime.executable import Executable
from tilewright.runtime.kernel import Bound, Kernel, PreparedLaunch, kernel
from tilewright.runtime.packed_arrays import Packed, packed
from tilewright.runtime.specimens import Specimen, like
from tilewright.schedule.schedule import Schedule
from tilewright.targets import atoms
from tilewright.threads.distribution import Distribution, Mode, blocked, raked
from tilewright.threads.warps import base_tile, by_warps
from tilewright.views.im2col import im2col
from tilewright.views.transforms import Swizzle
from tilewright.views.view import View

if TYPE_CHECKING:
    from tilewright.inspect import draw
    from tilewright.ops.attention import attention
    from tilewright.ops.attention_backward import attention_backward
    from tilewright.ops.col2im import col2im
    from tilewright.ops.complex_matmul import complex_matmul
    from tilewright.ops.einsum import einsum
    from tilewright.ops.gated_matmul import gated_matmul
    from tilewright.ops.gemm_chain import gemm_chain
    from tilewright.ops.gram import gram
    from tilewright.ops.reduced_matmul import reduced_matmul
    from tilewright.ops.scaled import scaled_mm
    from tilewright.report.page import KernelReport, kernel_report
    from tilewright.runtime.cuda import device_count
    from tilewright.shipping.loading import load_kernel
    from tilewright.targets.reference.report import Report

__all__ = [
    "NF4",
    "Bound",
    "CompileError",
    "Condition",
    "DType",
    "DTypeError",
    "Distribution",
    "Executable",
    "Fragment",
    "HazardError",
    "Kernel",
    "KernelReport",
    "LaunchError",
    "Layout",
    "LayoutError",
    "LegalityError",
    "MmaAtom",
    "Mode",
    "MutableIndex",
    "Number",
    "Packed",
    "ParseError",
    "PreparedLaunch",
    "RearrangedWeights",
    "Report",
    "Scalar",
    "Schedule",
    "ScheduleError",
    "SignatureError",
    "SlowWarning",
    "Specimen",
    "Swizzle",
    "Tensor",
    "TensorSpec",
    "Tile",
    "TiledMma",
    "TilewrightError",
    "ToolchainError",
    "TraceError",
    "View",
    "WrongResultError",
    "accumulator",
    "alias",
    "argmax",
    "arrives",
    "async_commit",
    "async_wait",
    "atoms",
    "attention",
    "attention_backward",
    "await_",
    "barrier",
    "base_tile",
    "batch_index",
    "bf16",
    "block_index",
    "blocked",
    "by_warps",
    "c32",
    "c64",
    "c128",
    "causal_mask",
    "ceil_div",
    "col2im",
    "column_major",
    "complex_matmul",
    "coordinates",
    "copy",
    "copy_async",
    "counter",
    "derived",
    "device_count",
    "draw",
    "dtype",
    "einsum",
    "f4e2m1",
    "f8e4m3",
    "f8e4m3fnuz",
    "f8e5m2",
    "f8e5m2fnuz",
    "f8e8m0",
    "f16",
    "f32",
    "f64",
    "fill",
    "fragment",
    "full",
    "gated_matmul",
    "gemm_chain",
    "gram",
    "grouped_matmul",
    "i4",
    "i8",
    "i16",
    "i32",
    "i64",
    "im2col",
    "index",
    "kernel",
    "kernel_report",
    "leaves",
    "let",
    "like",
    "load",
    "load_kernel",
    "matmul",
    "mma",
    "operand_a",
    "operand_b",
    "otherwise",
    "pack",
    "packed",
    "positions",
    "prefix_sum",
    "raked",
    "range",
    "rearrange_weights",
    "redistribute",
    "reduce_max",
    "reduce_min",
    "reduce_sum",
    "reduced_matmul",
    "require",
    "reset",
    "role",
    "role_barrier",
    "row_major",
    "scaled_mm",
    "shared",
    "signal",
    "softmax",
    "steps",
    "ticket",
    "tiles",
    "u4",
    "u8",
    "u16",
    "u32",
    "u64",
    "unpack",
    "unroll",
    "var",
    "warp_barrier",
    "when",
    "workspace",
    "zeros",
]
__all__ += exact_functions.__all__ + functions.__all__


_LATE = {
    "attention": "tilewright.ops.attention",
    "attention_backward": "tilewright.ops.attention_backward",
    "col2im": "tilewright.ops.col2im",
    "complex_matmul": "tilewright.ops.complex_matmul",
    "device_count": "tilewright.runtime.cuda",
    "draw": "tilewright.inspect.draw",
    "einsum": "tilewright.ops.einsum",
    "gated_matmul": "tilewright.ops.gated_matmul",
    "gemm_chain": "tilewright.ops.gemm_chain",
    "gram": "tilewright.ops.gram",
    "kernel_report": "tilewright.report.page",
    "load_kernel": "tilewright.shipping.loading",
    "reduced_matmul": "tilewright.ops.reduced_matmul",
    "scaled_mm": "tilewright.ops.scaled",
    "KernelReport": "tilewright.report.page",
    "Report": "tilewright.targets.reference.report",
}
"""Rarely used names, imported at the first use: they take a tenth of the import time, or load a target."""


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module 'tilewright' has no attribute {name!r}")
    module = import_whole(_LATE[name])
    return module if name == "draw" else getattr(module, name)


@shows
def _svg(what: object) -> str | None:
    found: str | None = import_whole("tilewright.inspect.draw.layouts").svg_of(what)
    return found
