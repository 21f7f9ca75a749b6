"""HIP as a dialect of per-thread programs: what clang knows for AMD GPUs without any header.

What is here is all that a target for AMD GPUs adds to `tilewright.targets.simt` for kernels of multiply-adds:
a dialect, architectures, a rule table without a rule of its own, and a tuple of passes.

Source: LLVM, "User Guide for AMDGPU Backend", sections "Memory Model", "Address Spaces" and "Code Object V5
Metadata"; clang, "AMDGPU Support"; the ISA documents of CDNA 3 and RDNA 3.5.
"""

from __future__ import annotations

import tilewright as tw
from tilewright.arch import Arch, Board, Rates
from tilewright.errors import Violation
from tilewright.ir.kernel import Kernel
from tilewright.ir.mma import MmaAtom
from tilewright.passes.expand_mma import expand_mma
from tilewright.passes.pipeline import Pass, run_passes
from tilewright.passes.quotients import derive_inverses
from tilewright.passes.vectors import resolve_vectors, settle_async
from tilewright.targets.c_integers import INTEGERS, called_in_names, integer_type, suffix
from tilewright.targets.listing import Listing
from tilewright.targets.rules import RuleTable
from tilewright.targets.simt import prelude
from tilewright.targets.simt.arithmetic import MATH
from tilewright.targets.simt.dialect import Function, SimtDialect
from tilewright.targets.simt.emit import emit_text
from tilewright.targets.simt.emitter import SIMT_RULES
from tilewright.targets.simt.legality import beyond
from tilewright.threads.distribution import Distribution, Mode

from . import atomics

GFX942 = Arch(
    name="gfx942",
    vendor="amd",
    features=frozenset({"gfx9", "mfma"}),
    lanes=64,
    threads=1024,
    grid=(2**31 - 1, 65535, 65535),
    shared_bytes=65536,
    registers=131072,
    thread_registers=512,
    register_unit=8,
    banks=32,
    bank_bytes=4,
    sector_bytes=64,
    line_bytes=128,
    rates=Rates(
        {"f16": 2048, "bf16": 2048, "f8e4m3": 4096, "f8e5m2": 4096, "i8": 4096, "f32": 256, "f64": 256},
        {"f32": 256, "f64": 128},
        128,
        (Board("Instinct MI300X", 304, 2100, 5300, 256),),
        "AMD Instinct MI300X datasheet; CDNA 3 white paper",
    ),
)
GFX1151 = Arch(
    name="gfx1151",
    vendor="amd",
    features=frozenset({"gfx11", "wmma"}),
    lanes=32,
    other_lanes=(64,),
    threads=1024,
    grid=(2**31 - 1, 65535, 65535),
    shared_bytes=65536,
    registers=98304,
    thread_registers=256,
    register_unit=24,
    banks=32,
    bank_bytes=4,
    sector_bytes=64,
    line_bytes=128,
    rates=Rates(
        {"f16": 512, "bf16": 512, "i8": 512},
        {"f32": 256},
        128,
        (Board("Radeon 8060S", 40, 2900, 256, 2),),
        "AMD Ryzen AI Max+ 395 product page; RDNA 3 white paper",
    ),
)
ARCHITECTURES = {arch.name: arch for arch in (GFX942, GFX1151)}

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
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup", "local");
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
  int words[sizeof(T) / 4];
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
    "max_or_nan": """
template <class T>
DEVICE T max_or_nan(T a, T b) {
  return a > b || a != a ? a : b;
}""",
    "min_or_nan": """
template <class T>
DEVICE T min_or_nan(T a, T b) {
  return a < b || a != a ? a : b;
}""",
}

_MATH = {
    name: f"DEVICE {real} {name}({', '.join(f'{real} {x}' for x in letters)}) "
    f"{{ return __builtin_{name}({', '.join(letters)}); }}"
    for real, suffix in (("float", "f"), ("double", ""))
    for name, letters in (
        (f"fma{suffix}", "xyz"),
        (f"fmod{suffix}", "xy"),
        (f"fmod{suffix}", "xy"),
        (f"exp{suffix}", "x"),
        (f"log{suffix}", "x"),
        (f"sqrt{suffix}", "x"),
        (f"fabs{suffix}", "x"),
        (f"floor{suffix}", "x"),
        (f"copysign{suffix}", "xy"),
    )
}


def _to_integers() -> dict[str, str]:
    """Truncated and saturated; NaN gives 0."""
    found = {}
    for kind in (made for made in INTEGERS if made.bits >= 32):
        name, called = integer_type(kind), called_in_names(kind)
        low = 0 if kind.kind == "uint" else -(1 << (kind.bits - 1))
        high, end = low + (1 << kind.bits) - 1, suffix(kind)
        least = f"{low + 1}{end} - 1" if low else "0"
        for real in ("float", "double"):
            found[f"{real}_to_{called}"] = f"""
DEVICE {name} {real}_to_{called}({real} x) {{
  if (x >= {float(high + 1)!r}) return {high}{end};
  return x > {float(low)!r} ? ({name})x : x == x ? {least} : 0;
}}"""
    return found


MFMA = MmaAtom(
    "mfma.32x32x8.f32.f16",
    *(tw.f16, tw.f16, tw.f32),
    *(Distribution((32, 8), (Mode(32, 0, 1), Mode(2, 1, 4)), (Mode(4, 1, 1),)) for _ in "ab"),
    Distribution((32, 32), (Mode(32, 1, 1), Mode(2, 0, 4)), (Mode(4, 0, 1), Mode(4, 0, 8))),
    instruction="mfma",
    feature="mfma",
    section="AMD CDNA 3 ISA, 'Matrix Arithmetic Instructions'",
)
"""Of 64 lanes: each holds four numbers along K of one row of A and one of B, and 16 of one column of C."""

WMMA = MmaAtom(
    "wmma.16x16x16.f32.f16",
    *(tw.f16, tw.f16, tw.f32),
    *(Distribution((16, 16), (Mode(16, 0, 1), Mode(2, None, 0)), (Mode(16, 1, 1),)) for _ in "ab"),
    Distribution((16, 16), (Mode(16, 1, 1), Mode(2, 0, 1)), (Mode(8, 0, 2),)),
    instruction="wmma",
    feature="wmma",
    section="AMD RDNA 3.5 ISA, 'Wave Matrix Multiply Accumulate'",
)
"""Of 32 lanes: lanes 16 apart hold the same row of A and of B, and every second number of one column of C."""

BUILTINS = {
    "mfma": ("__builtin_amdgcn_mfma_f32_32x32x8f16({}, {}, {}, 0, 0, 0)", 4, 16),
    "wmma": ("__builtin_amdgcn_wmma_f32_16x16x16_f16_w32({}, {}, {})", 16, 8),
}
"""For each kind of instruction: its builtin, the halves of A and of B that a lane holds, the floats of C."""


def instruction(atom: MmaAtom) -> Function | None:
    """The function that executes an atom."""
    if atom.instruction not in BUILTINS:
        return None
    form, halves, floats = BUILTINS[atom.instruction]
    m, n, k = atom.shape
    name = f"{atom.instruction}_{m}x{n}x{k}_{atom.a_dtype}"
    return Function(
        name,
        f"""
DEVICE void {name}(float* c, const void* a, const void* b) {{
  typedef _Float16 halves __attribute__((ext_vector_type({halves}), may_alias, aligned(4)));
  typedef float floats __attribute__((ext_vector_type({floats}), aligned(4)));
  *(floats*)c = {form.format("*(const halves*)a", "*(const halves*)b", "*(const floats*)c")};
}}""",
    )


DIALECT = SimtDialect(
    types=prelude.STORAGE,
    function="__attribute__((device)) inline",
    pieces=(
        *(_WORDS, _MATH, prelude.TYPES, prelude.DIVISION, _CONVERSIONS),
        *(_to_integers(), prelude.CONVERSIONS, prelude.MOVES, _ORDER, atomics.PIECES),
    ),
    words={2: "word_2", 4: "word_4", 8: "word_8", 16: "word_16"},
    align="__attribute__((aligned({})))",
    needs=prelude.NEEDS,
    atomics=atomics.ATOMICS,
    built_in=MATH,
    float_of="__builtin_bit_cast(float, ",
    bits_of="__builtin_bit_cast(unsigned, ",
    not_a_number='__builtin_nanf("")',
    infinity="__builtin_inff()",
    kernel='extern "C" __attribute__((global)) void {bounds} {entry}(',
    bounds="__attribute__((amdgpu_flat_work_group_size({threads}, {threads})))",
    thread="__builtin_amdgcn_workitem_id_x()",
    block="__builtin_amdgcn_workgroup_id_{}()",
    shared="__attribute__((shared, aligned({align}))) unsigned char {name}[{bytes}];",
    barrier="block_barrier",
    barrier_of_shared="block_barrier_of_shared",
    warp_barrier="wave_barrier",
    exchange="exchanged",
    instruction=instruction,
)

HIP_RULES = RuleTable("hip", SIMT_RULES)

PASSES = (
    Pass("widths", "Copies get the widest accesses.", lambda kernel, arch: resolve_vectors(kernel)),
    Pass("settle-async", "All is copied at once.", lambda kernel, arch: settle_async(kernel, arch)),
    Pass("operands", "Multiplies load their operands.", lambda kernel, arch: expand_mma(kernel)),
    Pass("inverses", "Divisors get an inverse.", lambda kernel, arch: derive_inverses(kernel)),
)


def refusals(kernel: Kernel, arch: Arch) -> list[Violation]:
    """Every limit of an architecture that a kernel exceeds."""
    return list(beyond(kernel, arch, DIALECT, ARCHITECTURES.values()))


def emit(kernel: Kernel, arch: Arch) -> Listing:
    """The HIP text of a kernel that was traced for an architecture."""
    return emit_text(kernel, run_passes(kernel, arch, PASSES), arch, HIP_RULES, DIALECT)
