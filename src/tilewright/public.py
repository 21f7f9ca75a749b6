"""The names that authors write as ``tw.…``, each from where it is defined.

`tilewright` itself loads this file when the first of them is asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tilewright.dtypes import (
    DType,
    bf16,
    c32,
    c64,
    c128,
    dtype,
    f8e4m3,
    f8e5m2,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    u8,
    u16,
    u32,
)
from tilewright.errors import (
    CompileError,
    DTypeError,
    HazardError,
    LaunchError,
    LayoutError,
    LegalityError,
    ParseError,
    SignatureError,
    SlowWarning,
    TilewrightError,
    ToolchainError,
    TraceError,
    WrongResultError,
)
from tilewright.ir.mma import MmaAtom, TiledMma
from tilewright.ir.parser import parse_kernel
from tilewright.ir.printer import print_kernel
from tilewright.lang.asynchrony import (
    arrive,
    bulk_commit,
    bulk_wait,
    fence_async,
    launch_dependents,
    mbarrier,
    mma_async,
    mma_commit,
    mma_fence,
    mma_wait,
    prior_grid_wait,
    role,
    role_barrier,
    tma_load,
    tma_store,
    wait,
)
from tilewright.lang.clusters import cluster_barrier
from tilewright.lang.control import let, otherwise, range, unroll, var, when  # noqa: A004
from tilewright.lang.functions import (
    absolute,
    exp,
    exp2,
    fma,
    log,
    maximum,
    minimum,
    rsqrt,
    sqrt,
    tanh,
    where,
)
from tilewright.lang.memory_integers import index
from tilewright.lang.operations import (
    accumulator,
    async_commit,
    async_wait,
    barrier,
    batch_index,
    block_index,
    cluster_index,
    copy,
    copy_async,
    derived,
    fill,
    fragment,
    load,
    mma,
    operand_a,
    operand_b,
    require,
    shared,
    warp_barrier,
    workspace,
)
from tilewright.lang.scalars import ceil_div
from tilewright.lang.specs import TensorSpec
from tilewright.lang.tile_arithmetic import (
    causal_mask,
    coordinates,
    redistribute,
    reduce_max,
    reduce_min,
    reduce_sum,
)
from tilewright.layout.algebra import (
    blocked_product,
    coalesce,
    complement,
    composition,
    left_inverse,
    logical_divide,
    logical_product,
    make_layout,
    raked_product,
    right_inverse,
    tiled_divide,
    zipped_divide,
)
from tilewright.layout.layout import Layout, column_major, row_major
from tilewright.layout.shown import shows
from tilewright.ops.gemm import matmul
from tilewright.runtime.kernel import Kernel, kernel
from tilewright.runtime.prepared import PreparedLaunch
from tilewright.runtime.specimens import Specimen, like
from tilewright.targets import atoms
from tilewright.threads.distribution import Distribution, Mode, blocked, raked
from tilewright.threads.warps import base_tile, by_warps
from tilewright.views.im2col import im2col
from tilewright.views.transforms import Swizzle
from tilewright.views.view import View

if TYPE_CHECKING:
    from tilewright.inspect import draw

__all__ = [
    "CompileError",
    "DType",
    "DTypeError",
    "Distribution",
    "HazardError",
    "Kernel",
    "LaunchError",
    "Layout",
    "LayoutError",
    "LegalityError",
    "MmaAtom",
    "Mode",
    "ParseError",
    "PreparedLaunch",
    "SignatureError",
    "SlowWarning",
    "Specimen",
    "Swizzle",
    "TensorSpec",
    "TiledMma",
    "TilewrightError",
    "ToolchainError",
    "TraceError",
    "View",
    "WrongResultError",
    "absolute",
    "accumulator",
    "arrive",
    "async_commit",
    "async_wait",
    "atoms",
    "barrier",
    "base_tile",
    "batch_index",
    "bf16",
    "block_index",
    "blocked",
    "blocked_product",
    "bulk_commit",
    "bulk_wait",
    "by_warps",
    "c32",
    "c64",
    "c128",
    "causal_mask",
    "ceil_div",
    "cluster_barrier",
    "cluster_index",
    "coalesce",
    "column_major",
    "complement",
    "composition",
    "coordinates",
    "copy",
    "copy_async",
    "derived",
    "draw",
    "dtype",
    "exp",
    "exp2",
    "f8e4m3",
    "f8e5m2",
    "f16",
    "f32",
    "f64",
    "fence_async",
    "fill",
    "fma",
    "fragment",
    "i8",
    "i16",
    "i32",
    "i64",
    "im2col",
    "index",
    "kernel",
    "launch_dependents",
    "left_inverse",
    "let",
    "like",
    "load",
    "log",
    "logical_divide",
    "logical_product",
    "make_layout",
    "matmul",
    "maximum",
    "mbarrier",
    "minimum",
    "mma",
    "mma_async",
    "mma_commit",
    "mma_fence",
    "mma_wait",
    "operand_a",
    "operand_b",
    "otherwise",
    "parse_kernel",
    "print_kernel",
    "prior_grid_wait",
    "raked",
    "raked_product",
    "range",
    "redistribute",
    "reduce_max",
    "reduce_min",
    "reduce_sum",
    "require",
    "right_inverse",
    "role",
    "role_barrier",
    "row_major",
    "rsqrt",
    "shared",
    "sqrt",
    "tanh",
    "tiled_divide",
    "tma_load",
    "tma_store",
    "u8",
    "u16",
    "u32",
    "unroll",
    "var",
    "wait",
    "warp_barrier",
    "when",
    "where",
    "workspace",
    "zipped_divide",
]


# Few draw, and what draws takes a tenth of the time of all imports: it comes when it is asked for.


def __getattr__(name: str) -> Any:
    if name == "draw":
        return import_module("tilewright.inspect.draw")
    raise AttributeError(f"module 'tilewright' has no attribute {name!r}")


@shows
def _svg(what: object) -> str | None:
    found: str | None = import_module("tilewright.inspect.draw.notebooks").svg_of(what)
    return found
