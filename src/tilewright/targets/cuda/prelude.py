"""The CUDA dialect, and the pieces of its text that are NVIDIA's: conversions, instructions; no header.

Conversions follow the reference: floats to integers truncate and saturate, NaN becomes 0.
"""

from __future__ import annotations

from tilewright.targets.atoms import MMA_SYNC
from tilewright.targets.cuda import atomics, pairs, wgmma
from tilewright.targets.cuda.instructions import TF32_BITS, function
from tilewright.targets.dialect import INTEGERS, called_in_names, integer_type
from tilewright.targets.simt import prelude
from tilewright.targets.simt.arithmetic import MATH
from tilewright.targets.simt.dialect import SimtDialect

_CONVERSIONS = {
    "half_to_float": """
DEVICE float half_to_float(half_t x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}""",
    "float_to_half": """
DEVICE half_t float_to_half(float x) {
  half_t y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}""",
    "double_to_half": """
DEVICE half_t double_to_half(double x) {
  half_t y;
  asm("cvt.rn.f16.f64 %0, %1;" : "=h"(y.bits) : "d"(x));
  return y;
}""",
    "float_to_bf16": """
DEVICE bf16_t float_to_bf16(float x) {
  bf16_t y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}""",
    "double_to_float_odd": """
DEVICE float double_to_float_odd(double x) {
  // Truncated, with the last bit set if anything was lost: a second rounding then sees no tie.
  const float y = __double2float_rz(x);
  const bool lost = (double)y != x && x == x;
  return __uint_as_float(__float_as_uint(y) | (unsigned)lost);
}""",
    "fast_exp2": """
DEVICE float fast_exp2(float x) {
  // Within 2 units in the last place; results below the least normal number become 0.
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}""",
    "fast_reciprocal": """
DEVICE float fast_reciprocal(float x) {
  // Within a unit in the last place; results below the least normal number become 0.
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}""",
    **{
        name: f"""{text}
DEVICE float {name}(float a, float b) {{
  float y;
  asm("{name[:3]}.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}}"""
        for name, text in prelude.EXTREMES.items()
    },
    "round_to_tf32": """
// Like cvt.rna.tf32.f32, in the same number of instructions; but truncates numbers that would become
// infinite, and NaNs: a NaN whose upper bits are zero becomes infinite.
DEVICE float round_to_tf32(float x) {
  const unsigned bits = __float_as_uint(x);
  return __uint_as_float((fabsf(x) < 0x1.ffep127f ? bits + 0x1000u : bits) & 0xffffe000u);
}""",
}


def _of_integers() -> dict[str, str]:
    """Return conversions from and to integers of at least 32 bits; narrower ones are a clamped ``int``."""
    found = {}
    for kind in (made for made in INTEGERS if made.bits >= 32):
        name, called = integer_type(kind), called_in_names(kind)
        if kind.bits == 64:
            found[f"{called}_to_float_odd"] = f"""
DEVICE float {called}_to_float_odd({name} x) {{
  const float y = __{called}2float_rz(x);
  return __uint_as_float(__float_as_uint(y) | (unsigned)(({name})y != x));
}}"""
        for real in ("float", "double"):
            # The instruction from f32 to 32 bits converts NaN to 0 by itself.
            whole = f"__{real}2{called}_rz(x)"
            value = whole if real == "float" and kind.bits == 32 else f"x == x ? {whole} : 0"
            found[f"{real}_to_{called}"] = f"""
DEVICE {name} {real}_to_{called}({real} x) {{
  return {value};
}}"""
    return found


_CONVERSIONS |= _of_integers()

_MOVES = {
    "load_part": """
DEVICE double load_part(bool exists, const void* from) {
  // By an instruction that the compiler does not join with that of the neighbour.
  double part = 0;
  const unsigned shared = __cvta_generic_to_shared(from);
  if (exists) asm volatile("ld.shared.f64 %0, [%1];" : "=d"(part) : "r"(shared) : "memory");
  return part;
}""",
    "copy_async": """
template <int bytes>
DEVICE void copy_async(void* to, const void* from, bool exists = true) {
  // Reads no byte and writes zeros where the source does not exist.
  const unsigned shared = __cvta_generic_to_shared(to);
  const unsigned long long global = __cvta_generic_to_global(from);
  const int read = exists ? bytes : 0;
  if (bytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 ::"r"(shared), "l"(global), "r"(read) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                 ::"r"(shared), "l"(global), "n"(bytes), "r"(read) : "memory");
  }
}""",
    "async_commit": """
DEVICE void async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}""",
    "async_wait": """
template <int pending>
DEVICE void async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}""",
}


def _matrices(count: int, transposed: bool) -> dict[str, str]:
    """Return the functions that load and store 8 x 8 matrices.

    Source: PTX ISA, "Warp-level matrix load instruction: ldmatrix",
    "Warp-level matrix store instruction: stmatrix".
    """
    name, form = f"x{count}" + "_trans" * transposed, f"m8n8.x{count}" + ".trans" * transposed
    loaded, stored = (", ".join(f'"{kind}"(r[{i}])' for i in range(count)) for kind in ("=r", "r"))
    to, of = (", ".join(f"%{first + i}" for i in range(count)) for first in (0, 1))
    return {
        f"ldmatrix_{name}": f"""
DEVICE void ldmatrix_{name}(void* to, const void* from) {{
  unsigned* r = (unsigned*)to;
  const unsigned shared = __cvta_generic_to_shared(from);
  asm volatile("ldmatrix.sync.aligned.{form}.shared.b16 {{{to}}}, [%{count}];"
               : {loaded} : "r"(shared) : "memory");
}}""",
        f"stmatrix_{name}": f"""
DEVICE void stmatrix_{name}(void* to, const void* from) {{
  const unsigned* r = (const unsigned*)from;
  const unsigned shared = __cvta_generic_to_shared(to);
  asm volatile("stmatrix.sync.aligned.{form}.shared.b16 [%0], {{{of}}};"
               ::"r"(shared), {stored} : "memory");
}}""",
    }


_MATRICES = {
    name: text
    for way in ("ld", "st")
    for count in (1, 2, 4)
    for transposed in (False, True)
    for name, text in _matrices(count, transposed).items()
    if name.startswith(way)
}


_CLUSTER = {
    f"cluster_block_{axis}": f"""
DEVICE int cluster_block_{axis}() {{
  int index;
  asm("mov.u32 %0, %%cluster_ctaid.{axis};" : "=r"(index));
  return index;
}}"""
    for axis in "xyz"
}
_CLUSTER["peer"] = """
template <class T>
DEVICE T* peer(T* tile, int block) {
  // Where the same tile lies in another block of the cluster.
  T* there;
  asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(tile), "r"(block));
  return there;
}"""


_ATOMS = {made.name for atom in MMA_SYNC if (made := function(atom))}

FLOATS = {2: "float2", 4: "float4"}
"""Types that store several f32 from registers in one access, by count.

Reading accumulators of asynchronous MMAs as integers would need moves first, and would serialise the MMAs
(NVRTC 13.0 warns with C7511).
"""

DIALECT = SimtDialect(
    floats=FLOATS,
    pairs=pairs.PAIRS,
    types=prelude.STORAGE,
    function="__device__ __forceinline__",
    atomics=atomics.ATOMICS,
    pieces=(
        *(prelude.TYPES, prelude.RANDOM, prelude.DIVISION, _CONVERSIONS, prelude.CONVERSIONS),
        *(pairs.PIECES, prelude.ACTIVATIONS, prelude.MOVES, _MOVES),
        *(_MATRICES, _CLUSTER, wgmma.PIECES, atomics.PIECES),
    ),
    built_in=frozenset(
        (
            *("blockIdx", "threadIdx", "blockDim", "gridDim", "warpSize"),
            *("uint2", "uint4", "float2", "float4", "double2"),
            *("fmod", "fmodf", "floor", "floorf", "copysign", "copysignf"),
            "__byte_perm",
            *(*_ATOMS, *MATH),
        )
    ),
    align="__align__({})",
    float_of="__uint_as_float(",
    bits_of="__float_as_uint(",
    not_a_number="__int_as_float(0x7fc00000)",
    infinity="__int_as_float(0x7f800000)",
    kernel='extern "C" __global__ void {bounds} {entry}(',
    bounds="__launch_bounds__({threads})",
    bounds_resident="__launch_bounds__({threads}, {resident})",
    cluster="__cluster_dims__({})",
    tensor_map="tensor_map_t",
    passed="const __grid_constant__ {} {}",
    thread="threadIdx.x",
    block="blockIdx.{}",
    member="cluster_block_{}",
    shared="extern __shared__ __align__({align}) unsigned char {name}[];",
    uniform="uniform",
    barrier="__syncthreads",
    warp_barrier="__syncwarp",
    exchange="__shfl_xor_sync",
    exchanging=("0xffffffff",),
    instruction=function,
    load_part="load_part",
    rounding={TF32_BITS: "round_to_tf32"},
)
