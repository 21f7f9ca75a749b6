"""The HIP dialect, and the pieces of its text that are AMD's: what clang knows without any header.

Conversions follow the reference: floats to integers truncate and saturate, NaN becomes 0.

Source: LLVM, "User Guide for AMDGPU Backend", sections "Memory Model", "Address Spaces" and "Code Object V5
Metadata"; clang, "AMDGPU Support", and its language extensions.
"""

from __future__ import annotations

from tilewright.arch import Arch
from tilewright.functions.formulas import FORMULAS
from tilewright.targets.dialect import (
    INTEGER_TYPES,
    INTEGERS,
    AtomicFunction,
    called_in_names,
    integer_type,
    suffix,
)
from tilewright.targets.hip.instructions import LOADS_TO_SHARED, function
from tilewright.targets.matrix_cores import MATRIX_CORES
from tilewright.targets.simt import prelude
from tilewright.targets.simt.dialect import PairFunction, SimtDialect

_WORDS = {
    "word_2": "typedef unsigned short word_2 __attribute__((may_alias));",
    "word_4": "typedef unsigned word_4 __attribute__((may_alias));",
    "word_8": "typedef unsigned word_8 __attribute__((ext_vector_type(2), may_alias));",
    "word_16": "typedef unsigned word_16 __attribute__((ext_vector_type(4), may_alias));",
    "float2": "typedef float float2 __attribute__((ext_vector_type(2)));",
    "double2": "typedef double double2 __attribute__((ext_vector_type(2)));",
}

_ORDER = {
    "block_barrier": """
DEVICE void block_barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}""",
    "block_barrier_of_shared": """
DEVICE void block_barrier_of_shared() {
  // Orders accesses to shared memory alone: loads from global memory stay on their way.
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup", "local");
#if __clang_major__ < 22 && defined(__GFX11__)
  // The builtin of these compilers waits for all loads.
  asm volatile("s_barrier" : : : "memory");
#elif __clang_major__ < 22 && defined(__GFX12__)
  asm volatile("s_barrier_signal -1\\n\\ts_barrier_wait -1" : : : "memory");
#else
  __builtin_amdgcn_s_barrier();
#endif
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup", "local");
}""",
    "in_this_order": """
DEVICE void in_this_order() {
  // The compiler moves nothing across, not even products, which access no memory.
  __builtin_amdgcn_sched_barrier(0);
}""",
    "wave_barrier": """
DEVICE void wave_barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}""",
    "exchanged": """
template <class T>
DEVICE T exchanged(T x, int apart) {
  int words[(sizeof(T) + 3) / 4] = {};
  __builtin_memcpy(words, &x, sizeof(T));
  const int lane = __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u));
  for (int& word : words) word = __builtin_amdgcn_ds_bpermute((lane ^ apart) * 4, word);
  __builtin_memcpy(&x, words, sizeof(T));
  return x;
}""",
}

_CONVERSIONS = {
    "half_to_float": """
DEVICE float half_to_float(half_t x) {
  return __builtin_bit_cast(_Float16, x.bits);
}""",
    "float_to_half": """
DEVICE half_t float_to_half(float x) {
  return half_t{__builtin_bit_cast(unsigned short, (_Float16)x)};
}""",
    "double_to_half": """
DEVICE half_t double_to_half(double x) {
  return half_t{__builtin_bit_cast(unsigned short, (_Float16)x)};
}""",
    "float_to_bf16": """
DEVICE bf16_t float_to_bf16(float x) {
  const unsigned bits = BITS_OF(x);
  const unsigned near = bits + 0x7fff + (bits >> 16 & 1);
  return bf16_t{(unsigned short)(x == x ? near >> 16 : 0x7fff)};
}""",
    "double_to_float_odd": """
DEVICE float double_to_float_odd(double x) {
  // A number that is no float becomes its odd neighbour: a second rounding then sees no tie.
  const float near = (float)x;
  const unsigned bits = BITS_OF(near);
  if (near == x || x != x || bits & 1) return near;
  return FLOAT_OF(fabs(near) < fabs(x) ? bits + 1 : bits - 1);
}""",
    "fast_exp2": """
DEVICE float fast_exp2(float x) {
  // Within a unit in the last place; results below the least normal number become 0.
  return __builtin_amdgcn_exp2f(x);
}""",
    "fast_reciprocal": """
DEVICE float fast_reciprocal(float x) {
  // Within a unit in the last place.
  return __builtin_amdgcn_rcpf(x);
}""",
    **prelude.EXTREMES,
    "max": """
template <class T>
DEVICE T max(T a, T b) {
  return a > b ? a : b;
}""",
    "min": """
template <class T>
DEVICE T min(T a, T b) {
  return a < b ? a : b;
}""",
    "abs": """
template <class T>
DEVICE T abs(T x) {
  return x < 0 ? -x : x;
}""",
}

_OF_BOTH = (
    ("fma", "xyz"),
    ("fmod", "xy"),
    ("fmax", "xy"),
    ("copysign", "xy"),
    ("fabs", "x"),
    ("floor", "x"),
    ("rint", "x"),
)
"""Functions that clang has for both float types."""

_OF_FLOATS = (("exp", "x"), ("log", "x"), ("log2", "x"))
"""Functions that clang has for f32 alone."""

_WRITTEN = ("tanh", "erf", "sin", "cos")
"""Functions that clang has for neither type."""

_FORMULAS_OF = {
    "float": (*_WRITTEN, "pow"),
    "double": (*_WRITTEN, "exp", "exp2", "log", "log2"),
}
"""Functions written out as formulas, by type."""


def _function(name: str, letters: str, real: str) -> str:
    end = "f" if real == "float" else ""
    given = ", ".join(f"{real} {letter}" for letter in letters)
    return f"""
DEVICE {real} {name}{end}({given}) {{
  return __builtin_{name}{end}({", ".join(letters)});
}}"""


def _written(name: str, real: str) -> str:
    given, passed = (f"{real} x, {real} y", "x, y") if name == "pow" else (f"{real} x", "x")
    end, kind = ("f", "f32") if real == "float" else ("", "f64")
    return f"""
DEVICE {real} {name}{end}({given}) {{
  return {name}_{kind}({passed});
}}"""


_FORMULAS = {
    "bits": """
DEVICE unsigned bits_of_f32(float x) {
  return BITS_OF(x);
}
DEVICE float f32_of_bits(unsigned x) {
  return FLOAT_OF(x);
}""",
    **{name: "\n" + text.replace("static inline", "DEVICE") for name, text in FORMULAS.items()},
}

_MATH = {
    **{f"{name}f": _written(name, "float") for name in _FORMULAS_OF["float"]},
    **{name: _written(name, "double") for name in _FORMULAS_OF["double"]},
    **{f"{name}f": _function(name, letters, "float") for name, letters in (*_OF_BOTH, *_OF_FLOATS)},
    **{name: _function(name, letters, "double") for name, letters in _OF_BOTH},
    "sqrtf": _function("sqrt", "x", "float"),
    "sqrt": _function("sqrt", "x", "double"),
    "rsqrtf": """
DEVICE float rsqrtf(float x) {
  return 1.0f / __builtin_sqrtf(x);
}""",
    "rsqrt": """
DEVICE double rsqrt(double x) {
  return 1.0 / __builtin_sqrt(x);
}""",
}


def _of_integers() -> dict[str, str]:
    """Return conversions from and to integers of at least 32 bits; narrower ones are a clamped ``int``."""
    found = {}
    for kind in (made for made in INTEGERS if made.bits >= 32):
        name, called = integer_type(kind), called_in_names(kind)
        low = 0 if kind.kind == "uint" else -(1 << (kind.bits - 1))
        high, end = low + (1 << kind.bits) - 1, suffix(kind)
        least = f"{low + 1}{end} - 1" if low else "0"
        if kind.bits == 64:
            large = f"x >= {1 << 53}{end}" + (f" || x <= -{1 << 53}{end}" if low else "")
            found[f"{called}_to_float_odd"] = f"""
DEVICE float {called}_to_float_odd({name} x) {{
  // The last bits of large numbers are folded into one, so that the rest fits a double.
  const {name} kept = (x >> 11 | ((x & 0x7ff) != 0)) * 2048;
  return double_to_float_odd((double)({large} ? kept : x));
}}"""
        for real in ("float", "double"):
            found[f"{real}_to_{called}"] = f"""
DEVICE {name} {real}_to_{called}({real} x) {{
  if (x >= {float(high + 1)!r}) return {high}{end};
  return x > {float(low)!r} ? ({name})x : x == x ? {least} : 0;
}}"""
    return found


_HALVES = "typedef _Float16 halves __attribute__((ext_vector_type(2)));"

_PAIR_BITS = {
    "e4m3": "(unsigned)from[0].bits << 8 | (unsigned)from[1].bits << 24",
    "e5m2": "(unsigned)from[0].bits << 8 | (unsigned)from[1].bits << 24",
    "i8": "((unsigned char)from[0] | (unsigned)(unsigned char)from[1] << 16) ^ 0x64806480",
}
"""Two numbers, one in each 16 bits: fp8 in the upper byte; integers in the lower, the sign bit flipped."""

_PAIR_STEPS = {
    "e4m3": """  // The bits of an f16 whose exponent is 8 too small.  NaN, alone of all numbers, overflows
  // in the first product, and infinity times 0 is NaN.
  typedef short words __attribute__((ext_vector_type(2)));
  const words shifted = __builtin_bit_cast(words, x) >> (words)(short)1;
  const halves small = __builtin_bit_cast(halves, __builtin_bit_cast(unsigned, shifted) & 0xbf80bf80);
  const halves beyond = small * (halves)(_Float16)36864.0f, y = small * (halves)(_Float16)256.0f;
  const halves made = __builtin_elementwise_fma(beyond, (halves)(_Float16)0.0f, y);""",
    "e5m2": "  const halves made = __builtin_bit_cast(halves, x);",
    "i8": """  // The f16 of the bits 0x6400 + b is 1024 + b; the last 128 are those of the sign.
  const halves made = __builtin_bit_cast(halves, x) - (halves)(_Float16)1152.0f;""",
}

_STORAGE = {"e4m3": "e4m3_t", "e5m2": "e5m2_t", "i8": "signed char"}


def _pair(name: str) -> str:
    return f"""
DEVICE void {name}_pair_to_half(half_t* to, const {_STORAGE[name]}* from) {{
  {_HALVES}
  const unsigned x = {_PAIR_BITS[name]};
{_PAIR_STEPS[name]}
  __builtin_memcpy(to, &made, sizeof(made));
}}"""


_PAIRS = {f"{name}_pair_to_half": _pair(name) for name in _PAIR_STEPS}
"""Conversions of two numbers to f16 by packed arithmetic; exact, and NaN stays NaN."""

PAIRS = {
    ("f8e4m3", "f16"): PairFunction("e4m3_pair_to_half"),
    ("f8e5m2", "f16"): PairFunction("e5m2_pair_to_half"),
    ("i8", "f16"): PairFunction("i8_pair_to_half"),
}
"""Conversions by source and target dtype."""

_REDUCED = {
    **{("add", dtype): "add" for dtype in ("f32", "f64", "i32", "u32", "i64", "u64")},
    **{(kind, dtype): kind for kind in ("min", "max", "and", "or") for dtype in ("i32", "u32", "i64", "u64")},
}
_SCOPES = {"global": "AGENT", "shared": "WORKGROUP"}
_COUNTED = "__ATOMIC_{}, __HIP_MEMORY_SCOPE_{}"


_ATOMICS = {
    **{
        (name := f"reduce_{kind}_{dtype}_{memory}"): f"""
DEVICE void {name}({element}* to, {element} x) {{
  __hip_atomic_fetch_{kind}(to, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_{scope});
}}"""
        for kind, dtype in _REDUCED
        for element in [{"f32": "float", "f64": "double"}.get(dtype) or INTEGER_TYPES[dtype]]
        for memory, scope in _SCOPES.items()
    },
    **{
        name: text
        for suffix, scope, domain in (("", "AGENT", "agent"), ("_system", "SYSTEM", ""))
        for name, text in {
            f"signal_counter{suffix}": f"""
DEVICE void signal_counter{suffix}(unsigned* counter, unsigned value) {{
  __hip_atomic_fetch_add(counter, value, {_COUNTED.format("RELEASE", scope)});
}}""",
            f"signal_counter_of{suffix}": f"""
DEVICE void signal_counter_of{suffix}(unsigned* counter, unsigned of) {{
  __builtin_amdgcn_atomic_inc32(counter, of - 1, __ATOMIC_RELEASE, "{domain}");
}}""",
            f"await_counter{suffix}": f"""
DEVICE void await_counter{suffix}(const unsigned* counter, unsigned value) {{
  while (__hip_atomic_load(counter, {_COUNTED.format("ACQUIRE", scope)}) < value) __builtin_amdgcn_s_sleep(1);
}}""",
        }.items()
    },
    "take_ticket": f"""
DEVICE int take_ticket(unsigned* counter) {{
  return __hip_atomic_fetch_add(counter, 1u, {_COUNTED.format("ACQ_REL", "AGENT")});
}}""",
    "take_ticket_of": """
DEVICE int take_ticket_of(unsigned* counter, unsigned of) {
  return __builtin_amdgcn_atomic_inc32(counter, of - 1, __ATOMIC_ACQ_REL, "agent");
}""",
    "reset_counter": f"""
DEVICE void reset_counter(unsigned* counter) {{
  __hip_atomic_store(counter, 0u, {_COUNTED.format("RELAXED", "AGENT")});
}}""",
}

REDUCTIONS = {
    (kind, dtype): tuple(
        AtomicFunction(f"reduce_{kind}_{dtype}_{memory}", memory=memory) for memory in _SCOPES
    )
    for kind, dtype in _REDUCED
}

DIALECT = SimtDialect(
    types=prelude.STORAGE,
    function="__attribute__((device)) inline",
    pieces=(
        *(_WORDS, _FORMULAS, _MATH, prelude.TYPES, prelude.RANDOM, prelude.DIVISION, _CONVERSIONS),
        *(
            _of_integers(),
            prelude.CONVERSIONS,
            _PAIRS,
            prelude.ACTIVATIONS,
            prelude.MOVES,
            _ORDER,
            _ATOMICS,
            LOADS_TO_SHARED,
        ),
    ),
    pairs=PAIRS,
    words={2: "word_2", 4: "word_4", 8: "word_8", 16: "word_16"},
    atomics=REDUCTIONS,
    align="__attribute__((aligned({})))",
    float_of="__builtin_bit_cast(float, ",
    bits_of="__builtin_bit_cast(unsigned, ",
    not_a_number='__builtin_nanf("")',
    infinity="__builtin_inff()",
    kernel='extern "C" __attribute__((global)) void {bounds} {entry}(',
    bounds="__attribute__((amdgpu_flat_work_group_size({threads}, {threads})))",
    thread="__builtin_amdgcn_workitem_id_x()",
    block="__builtin_amdgcn_workgroup_id_{}()",
    shared="__attribute__((shared, aligned({align}))) unsigned char {name}[{bytes}];",
    uniform="of_first_lane",
    asks_whole_warps=True,
    barrier="block_barrier",
    barrier_of_shared="block_barrier_of_shared",
    warp_barrier="wave_barrier",
    exchange="exchanged",
    load_if="load_or_zeros",
    prefetched="in_this_order",
    anew="anew",
    instruction=function,
)


def probe_text(arch: Arch) -> str:
    """Return the whole prelude and the functions of an architecture's atoms, as a test of a compiler.

    Args:
        arch: the architecture.

    Example:
        >>> from tilewright.targets.amd import GFX942
        >>> "mfma_32x32x16_f16" in probe_text(GFX942)
        True
    """
    atoms = [atom for atom in MATRIX_CORES.values() if atom.feature in arch.features]
    made = {found.name: found.text for found in map(function, atoms) if found}
    return "\n".join([*DIALECT.before([*DIALECT.prelude, *made], made), _PROBE])


_PROBE = """
extern "C" __attribute__((global)) void probe(float* numbers) {
  __attribute__((shared)) static float shared[64];
  const unsigned lane = __builtin_amdgcn_workitem_id_x();
  shared[lane] = numbers[lane];
  block_barrier_of_shared();
  in_this_order();
  numbers[lane] = shared[lane ^ 1];
  block_barrier();
}
"""
