"""The MMA atoms that targets offer, as data.

Fragment maps of ``mma.sync`` from the PTX ISA, section "Matrix fragments for mma.m16n8k*": lane ``4*g + t``
holds rows ``g`` and ``g + 8``; the K positions of 16-bit operands are ``2*t + {0, 1}`` and ``+ 8``.
"""

from __future__ import annotations

from tilewright.calls import layouts
from tilewright.dtypes import DType, bf16, f16, f32, f64, i8, i32
from tilewright.dtypes import dtype as dtype_named
from tilewright.errors import LayoutError
from tilewright.ir.mma import MmaAtom
from tilewright.layout.tuples import integer, integers
from tilewright.namespaces import namespace
from tilewright.threads.distribution import Distribution, Mode

__all__ = ["MMA_BF16", "MMA_F16", "MMA_F16_F16", "MMA_I8", "MMA_TF32", "fma", "wgmma"]

__getattr__, __dir__ = namespace(__name__, __all__)


def _mma_sync(a_dtype: DType, c_dtype: DType, k: int, name: str, precision: int | None = None) -> MmaAtom:
    """The m16n8 atom of ``mma.sync`` with 4 bytes of consecutive K per lane and register."""
    per_register = 4 // a_dtype.bytes
    halves = k // (4 * per_register)
    along_k = (Mode(4, 1, per_register), Mode(8, 0, 1))
    run = (Mode(per_register, 1, 1),) if per_register > 1 else ()
    a = Distribution((16, k), along_k, (*run, Mode(2, 0, 8), Mode(halves, 1, 4 * per_register)))
    b = Distribution((8, k), along_k, (*run, Mode(halves, 1, 4 * per_register)))
    c = Distribution((16, 8), (Mode(4, 1, 2), Mode(8, 0, 1)), (Mode(2, 1, 1), Mode(2, 0, 8)))
    return MmaAtom(f"mma.m16n8k{k}.{name}", a_dtype, a_dtype, c_dtype, a, b, c, "sm_80", precision)


MMA_F16 = _mma_sync(f16, f32, 16, "f32.f16")
MMA_F16_F16 = _mma_sync(f16, f16, 16, "f16.f16")
MMA_BF16 = _mma_sync(bf16, f32, 16, "f32.bf16")
MMA_TF32 = _mma_sync(f32, f32, 8, "f32.tf32", precision=10)
MMA_I8 = _mma_sync(i8, i32, 32, "i32.s8")


@layouts
def fma(
    dtype: DType | str,
    acc: DType | str | None = None,
    lanes: tuple[int, int] = (4, 8),
    each: tuple[int, int] = (1, 1),
) -> MmaAtom:
    """One multiply-add per thread and coordinate: an atom for every dtype and every warp size.

    Args:
        dtype: element type of A and B.
        acc: accumulator type; default: f32 for narrow floats, i32 for integers, else ``dtype``.
        lanes: lanes along M and N; their product is the warp size.
        each: neighbouring rows and columns that one lane computes.

    Example:
        >>> fma(f32, lanes=(8, 8), each=(4, 4)).shape, fma(f32, lanes=(8, 8)).lanes
        ((32, 32, 1), 64)
    """
    dtype, acc = dtype_named(dtype), None if acc is None else dtype_named(acc)
    if acc is None:
        acc = (f64 if dtype is f64 else f32) if dtype.is_float else i32
    lanes_m, lanes_n = integers("lanes", lanes, 2, "lanes along M and N")
    m, n = integers("each", each, 2, "rows and columns of one lane")
    shape = (lanes_m * m, lanes_n * n)
    a = Distribution((shape[0], 1), (Mode(lanes_n, None, 0), Mode(lanes_m, 0, m)), (Mode(m, 0, 1),))
    b = Distribution((shape[1], 1), (Mode(lanes_n, 0, n), Mode(lanes_m, None, 0)), (Mode(n, 0, 1),))
    c = Distribution(shape, (Mode(lanes_n, 1, n), Mode(lanes_m, 0, m)), (Mode(n, 1, 1), Mode(m, 0, 1)))
    name = f"fma.{acc}.{dtype}.{lanes_m}x{lanes_n}" + ("" if (m, n) == (1, 1) else f".{m}x{n}")
    return MmaAtom(name, dtype, dtype, acc, a, b, c)


TENSOR_CORE: dict[str, MmaAtom] = {"f16": MMA_F16, "bf16": MMA_BF16, "f32": MMA_TF32, "i8": MMA_I8}
"""The ``mma.sync`` atom for each dtype of A and B; f32 computes in tf32."""

UNUSED_TENSOR_CORES: dict[str, str] = {"f64": "f64_tensor", "f8e4m3": "sm_89", "f8e5m2": "sm_89"}
"""Dtypes that no atom here multiplies on tensor cores, and the feature of architectures that could.

Source: PTX ISA, "Warp-level matrix instructions: mma", types and target architectures; CUDA C++ Programming
Guide, "Compute Capabilities", for the rate of f64.
"""


def multiplied_without_tensor_cores(atom: MmaAtom, arch: str, features: frozenset[str]) -> str:
    """What to say of an atom that multiplies without the tensor cores that there are for it; else ``""``."""
    name = atom.a_dtype.name
    if not atom.name.startswith("fma.") or UNUSED_TENSOR_CORES.get(name) not in features:
        return ""
    said = (
        f"{name} is multiplied by one fma for each pair of numbers; {arch} has tensor cores for it, which "
        "are not used yet"
    )
    if atom.a_dtype.bits == 8:
        said += (
            "; nearest: convert to f16, which holds each of these numbers, and is multiplied on tensor cores"
        )
    return said


@layouts
def wgmma(dtype: DType | str, n: int) -> MmaAtom:
    """The asynchronous m64 atom of a warpgroup, for f16 or bf16 with an f32 accumulator.

    Source: PTX ISA, "Asynchronous warpgroup-level matrix instructions", register fragments of wgmma.m64nNk16.

    Args:
        dtype: element type of A and B.
        n: columns, a multiple of 8 up to 256.

    Raises:
        LayoutError: no such atom.

    Example:
        >>> wgmma(f16, 256).shape, wgmma(f16, 256).lanes, wgmma(f16, 256).c.size_values
        ((64, 256, 16), 128, 128)
    """
    dtype, n = dtype_named(dtype), integer("n", n, "columns")
    if n % 8 or not 8 <= n <= 256:
        nearest = min(max(round(n / 8) * 8, 8), 256)
        raise LayoutError(f"wgmma has no atom of {n} columns; nearest legal choice: {nearest}")
    if dtype not in (f16, bf16):
        raise LayoutError(f"wgmma atoms exist here for f16 and bf16, not for {dtype}")
    lanes = (Mode(4, 1, 2), Mode(8, 0, 1), Mode(4, 0, 16))
    a = Distribution((64, 16), lanes, (Mode(2, 1, 1), Mode(2, 0, 8), Mode(2, 1, 8)))
    b = Distribution((n, 16), (Mode(128, None, 0),), (Mode(16, 1, 1), Mode(n, 0, 1)))
    c = Distribution((64, n), lanes, (Mode(2, 1, 1), Mode(2, 0, 8), Mode(n // 8, 1, 8)))
    return MmaAtom(f"wgmma.m64n{n}k16.f32.{dtype}", dtype, dtype, f32, a, b, c, "sm_90a")
