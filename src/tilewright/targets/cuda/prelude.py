"""What CUDA text may need before its kernel: storage types, conversions, instructions; no header.

Every piece is emitted only if the text names it, or if a piece that is emitted does.  Conversions follow the
reference: one rounding to nearest even; floats to integers truncate and saturate, NaN becomes 0.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tilewright.dtypes import ALL
from tilewright.targets.atoms import MMA_SYNC
from tilewright.targets.c_integers import INTEGER_TYPES, INTEGERS, called_in_names, integer_type
from tilewright.targets.cfamily import Dialect
from tilewright.targets.cuda import atomics, division, wgmma
from tilewright.targets.cuda.instructions import function
from tilewright.targets.simt.arithmetic import MATH
from tilewright.targets.simt.emitter import THREAD

_TYPES = {
    "half_t": "struct half_t { unsigned short bits; };",
    "bf16_t": "struct bf16_t { unsigned short bits; };",
    "e4m3_t": "struct e4m3_t { unsigned char bits; };",
    "e5m2_t": "struct e5m2_t { unsigned char bits; };",
    "half2_t": "struct __align__(4) half2_t { half_t re, im; };",
}

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
    "bf16_to_float": """
DEVICE float bf16_to_float(bf16_t x) {
  return __uint_as_float((unsigned)x.bits << 16);
}""",
    "float_to_bf16": """
DEVICE bf16_t float_to_bf16(float x) {
  bf16_t y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}""",
    "e4m3_to_float": """
DEVICE float e4m3_to_float(e4m3_t x) {
  // The bits of an f16 whose exponent is 8 too small; 0x7f is NaN.
  const half_t scaled = {(unsigned short)((x.bits & 0x80) << 8 | (x.bits & 0x7f) << 7)};
  return (x.bits & 0x7f) == 0x7f ? __int_as_float(0x7fc00000) : 256.0f * half_to_float(scaled);
}""",
    "e5m2_to_float": """
DEVICE float e5m2_to_float(e5m2_t x) {
  return half_to_float(half_t{(unsigned short)(x.bits << 8)});
}""",
    "float_to_e4m3": """
DEVICE e4m3_t float_to_e4m3(float x) {
  const unsigned sign = __float_as_uint(x) >> 24 & 0x80;
  unsigned y = __float_as_uint(x) & 0x7fffffff;
  if (y > 0x43e80000) {  // beyond 464, the last number that rounds to 448
    y = 0x7f;
  } else if (y < 0x3c800000) {  // subnormal: adding 2**14 leaves multiples of 2**-9 in the last bits
    y = __float_as_uint(__uint_as_float(y) + 16384.0f) - __float_as_uint(16384.0f);
  } else {
    y = (y + 0x7ffff + (y >> 20 & 1) - (120u << 23)) >> 20;
  }
  return e4m3_t{(unsigned char)(sign | y)};
}""",
    "float_to_e5m2": """
DEVICE e5m2_t float_to_e5m2(float x) {
  const unsigned sign = __float_as_uint(x) >> 24 & 0x80;
  unsigned y = __float_as_uint(x) & 0x7fffffff;
  if (y > 0x7f800000) {
    y = 0x7e;  // NaN
  } else if (y >= 0x47700000) {
    y = 0x7c;  // 61440 and beyond round to infinity
  } else if (y < 0x38800000) {  // subnormal: adding 2**7 leaves multiples of 2**-16 in the last bits
    y = __float_as_uint(__uint_as_float(y) + 128.0f) - __float_as_uint(128.0f);
  } else {
    y = (y + 0xfffff + (y >> 21 & 1) - (112u << 23)) >> 21;
  }
  return e5m2_t{(unsigned char)(sign | y)};
}""",
    "i4_to_int": """
DEVICE int i4_to_int(unsigned bits) {
  return (int)(bits << 28) >> 28;
}""",
    "e2m1_to_float": """
DEVICE float e2m1_to_float(unsigned bits) {
  // The exponent of the f32 with these bits is 126 too small.
  return __uint_as_float((bits & 8) << 28 | (bits & 7) << 22) * __uint_as_float(253u << 23);
}""",
    "float_to_e2m1": """
DEVICE unsigned float_to_e2m1(float x) {
  // One more for each middle between two numbers that is passed; ties go to the even one, NaN to 6.
  const float y = x < 0 ? -x : x;
  const unsigned size = !(y <= 0.25f) + !(y < 0.75f) + !(y <= 1.25f) + !(y < 1.75f) + !(y <= 2.5f)
      + !(y < 3.5f) + !(y <= 5.0f);
  return size | (x == x ? __float_as_uint(x) >> 28 & 8 : 0);
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
    "clamp": """
template <class T>
DEVICE T clamp(T x, T low, T high) {
  return x < low ? low : x > high ? high : x;  // NaN stays
}""",
    "max_or_nan": """
template <class T>
DEVICE T max_or_nan(T a, T b) {
  return a > b || a != a ? a : b;
}
DEVICE float max_or_nan(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}""",
    "min_or_nan": """
template <class T>
DEVICE T min_or_nan(T a, T b) {
  return a < b || a != a ? a : b;
}
DEVICE float min_or_nan(float a, float b) {
  float y;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}""",
    "round_to_tf32": """
DEVICE float round_to_tf32(float x) {
  unsigned y;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
  return __uint_as_float(y);
}""",
}


def _of_integers() -> dict[str, str]:
    """From and to the integers of at least 32 bits; narrower ones are ends of ``int``."""
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
            # Of f32 to 32 bits, the instruction makes 0 of NaN by itself.
            whole = f"__{real}2{called}_rz(x)"
            value = whole if real == "float" and kind.bits == 32 else f"x == x ? {whole} : 0"
            found[f"{real}_to_{called}"] = f"""
DEVICE {name} {real}_to_{called}({real} x) {{
  return {value};
}}"""
    return found


_CONVERSIONS |= _of_integers()

_MOVES = {
    "load_if": """
template <class Word>
DEVICE Word load_if(bool exists, const void* from) {
  Word word = {};
  if (exists) word = *(const Word*)from;
  return word;
}""",
    "load_or": """
template <class Word>
DEVICE Word load_or(bool exists, const void* from, Word other) {
  if (exists) other = *(const Word*)from;
  return other;
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


def _ldmatrix(count: int, transposed: bool) -> str:
    """Source: PTX ISA, "Warp-level matrix load instruction: ldmatrix"."""
    name = f"ldmatrix_x{count}{'_trans' if transposed else ''}"
    form = f"ldmatrix.sync.aligned.m8n8.x{count}{'.trans' if transposed else ''}.shared.b16"
    outputs = ", ".join(f'"=r"(r[{i}])' for i in range(count))
    names = ", ".join(f"%{i}" for i in range(count))
    return f"""
DEVICE void {name}(void* to, const void* from) {{
  unsigned* r = (unsigned*)to;
  const unsigned shared = __cvta_generic_to_shared(from);
  asm volatile("{form} {{{names}}}, [%{count}];"
               : {outputs} : "r"(shared) : "memory");
}}"""


def _stmatrix(count: int, transposed: bool) -> str:
    """Source: PTX ISA, "Warp-level matrix store instruction: stmatrix"."""
    name = f"stmatrix_x{count}{'_trans' if transposed else ''}"
    form = f"stmatrix.sync.aligned.m8n8.x{count}{'.trans' if transposed else ''}.shared.b16"
    inputs = ", ".join(f'"r"(r[{i}])' for i in range(count))
    names = ", ".join(f"%{i + 1}" for i in range(count))
    return f"""
DEVICE void {name}(void* to, const void* from) {{
  const unsigned* r = (const unsigned*)from;
  const unsigned shared = __cvta_generic_to_shared(to);
  asm volatile("{form} [%0], {{{names}}};"
               ::"r"(shared), {inputs} : "memory");
}}"""


_MATRICES = {
    f"{way}matrix_x{count}{'_trans' if transposed else ''}": write(count, transposed)
    for way, write in (("ld", _ldmatrix), ("st", _stmatrix))
    for count in (1, 2, 4)
    for transposed in (False, True)
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


def _qualified(text: str) -> str:
    return text.strip().replace("DEVICE", "__device__ __forceinline__")


PIECES: dict[str, str] = {
    name: _qualified(text)
    for group in (
        *(_TYPES, division.PIECES, _CONVERSIONS, _MOVES),
        *(_MATRICES, _CLUSTER, wgmma.PIECES, atomics.PIECES),
    )
    for name, text in group.items()
}
"""Every piece by the name that it defines; a piece comes after those that it names."""

_BUILT_IN = {
    "blockIdx",
    "threadIdx",
    "blockDim",
    "gridDim",
    "warpSize",
    "uint2",
    "uint4",
    "float2",
    "double2",
    *("fmod", "fmodf", "floor", "floorf", "copysign", "copysignf"),
}

_ATOMS = {made.name for atom in MMA_SYNC if (made := function(atom))}

DIALECT = Dialect(
    types={
        "f64": "double",
        "f32": "float",
        "f16": "half_t",
        "bf16": "bf16_t",
        "f8e4m3": "e4m3_t",
        "f8e5m2": "e5m2_t",
        **INTEGER_TYPES,
        **{made.name: "unsigned char" for made in ALL.values() if made.is_packed},
        "boolean": "bool",
        "c128": "double2",
        "c64": "float2",
        "c32": "half2_t",
    },
    function="__device__ __forceinline__",
    reserved=frozenset({*PIECES, *MATH, *_BUILT_IN, *_ATOMS, THREAD, "shared_memory"}),
    atomics=atomics.ATOMICS,
)


_NEEDS: dict[str, tuple[str, ...]] = {
    "half2_t": ("half_t",),
    "remainder": ("quotient",),
    **{f"{name}_to_float": (f"{name}_t",) for name in ("half", "bf16")},
    **{f"{name}_to_float": (f"{name}_t", "half_t", "half_to_float") for name in ("e4m3", "e5m2")},
    **{f"float_to_{name}": (f"{name}_t",) for name in ("half", "bf16", "e4m3", "e5m2")},
    "double_to_half": ("half_t",),
    **wgmma.NEEDS,
    **atomics.NEEDS,
}
"""The pieces that a piece names; all others name none."""


def prelude(names: Collection[str], written: Mapping[str, str]) -> list[str]:
    """The pieces that a text which uses these names needs, in order, and the functions written for it."""
    needed: set[str] = set()
    wanted = list(names)
    while wanted:
        name = wanted.pop()
        if name in PIECES and name not in needed:
            needed.add(name)
            wanted += _NEEDS.get(name, ())
    functions = (_qualified(text) for name, text in written.items() if name in names)
    return [*(piece for name, piece in PIECES.items() if name in needed), *functions]
