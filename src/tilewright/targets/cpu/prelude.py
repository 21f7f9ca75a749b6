"""The text before a kernel: macros, and the helper functions that the kernel calls."""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.functions.formulas import Pieces
from tilewright.targets.cpu import conversions, functions

MACROS = """\
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety) unroll(disable)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#define INDEPENDENT _Pragma("GCC ivdep") _Pragma("GCC unroll 1")
#endif

typedef long long Index;
"""
"""INDEPENDENT loops carry no element from one iteration to the next.

GCC would unroll a loop of up to 16 iterations before it vectorises it, forget that they are independent, and
move single elements.
"""

INTEGERS = {
    name: f"static inline {text}"
    for name, text in {
        "floor_div": ("Index floor_div(Index a, Index b) { return a / b - (a % b != 0 && a < 0); }"),
        "floor_mod": "Index floor_mod(Index a, Index b) { return (a % b + b) % b; }",
        "quotient": "Index quotient(Index n, Index inverse) "  # n / d, with inverse = (2^63 - 1) / d
        "{ return (Index)((unsigned __int128)(2 * n + 2) * (unsigned __int128)inverse >> 64); }",
        "remainder": "Index remainder(Index n, Index d, Index inverse) "
        "{ return n - quotient(n, inverse) * d; }",
        "min_int": "Index min_int(Index a, Index b) { return a < b ? a : b; }",
        "max_int": "Index max_int(Index a, Index b) { return a > b ? a : b; }",
        "within": ("Index within(Index x, Index most) { return x < 0 ? 0 : x < most ? x : most; }"),
    }.items()
}
"""Functions on indices, which are 64 bits wide wherever a size is involved."""

_KEEP = """\
// x with `drop` fewer fraction bits, rounded to nearest, ties away from 0, but never to infinity.
template <typename Bits, typename Real>
static inline Real keep(Real x, int drop) {
  const Bits bits = __builtin_bit_cast(Bits, x), size = bits & 0x7fffffff;
  const Bits below = (size - (0x7f800000 - (1 << (drop - 1)))) >> 31, finite = (size - 0x7f800000) >> 31;
  const Bits kept = (bits + ((1 << (drop - 1)) & below)) & (-1 << drop);
  return __builtin_bit_cast(Real, (kept & finite) | (bits & ~finite));
}"""

_CUT = """\
// x with `drop` fewer fraction bits, truncated.
template <typename Bits, typename Real>
static inline Real cut(Real x, int drop) {
  const Bits bits = __builtin_bit_cast(Bits, x), finite = ((bits & 0x7fffffff) - 0x7f800000) >> 31;
  return __builtin_bit_cast(Real, (bits & (-1 << drop) & finite) | (bits & ~finite));
}"""

_FUSED = """\
// a * b + c. If the processor has the instruction, it rounds once; otherwise the product is rounded too.
template <typename Real>
static inline Real fused(Real a, Real b, Real c) {
#if defined(__FMA__) || defined(__AVX512F__) || defined(__ARM_FEATURE_FMA) || defined(__FP_FAST_FMAF)
  if constexpr (sizeof(Real) == sizeof(float)) return __builtin_fmaf(a, b, c);
  else return __builtin_fma(a, b, c);
#else
  return a * b + c;
#endif
}"""
"""The multiply-add of every micro-kernel.

Compilers may not fuse by themselves: they would in some functions and not in others, and the bits of a row
would depend on how many rows the last micro-tile has.
"""


def _fused_lanes() -> str:
    """Return the multiply-add of vectors, by builtins: GCC 12 compiles the loop over lanes to slow code."""
    lines = []
    for size in (64, 32, 16):
        wide, rest = (512, "_mask") if size == 64 else (256 if size == 32 else "", "")
        lines += ["#if defined(__AVX512F__)"] if size == 64 else []
        for bytes_, real in ((4, "ps"), (8, "pd")):
            added, taken = (f"__builtin_ia32_vf{name}add{real}{wide}{rest}" for name in ("m", "nm"))
            given = "a, b, c, -1, 4" if rest else "a, b, c"
            lines += [
                f"  if constexpr (sizeof a == {size} && sizeof a[0] == {bytes_})",
                f"    return SIGN > 0 ? {added}({given}) : {taken}({given});",
            ]
        lines += ["#endif"] if size == 64 else []
    body = "\n".join(lines)
    return f"""\
// SIGN * a[l] * b[l] + c[l] for each lane l, by one instruction.
template <int SIGN, typename Vector>
static inline Vector fused_lanes(Vector a, Vector b, Vector c) {{
#if defined(__FMA__) && !defined(__clang__)
{body}
#endif
  Vector sum{{}};
  const Index lanes = sizeof a / sizeof a[0];
  UNROLL for (Index l = 0; l < lanes; ++l) sum[l] = fused(SIGN > 0 ? a[l] : -a[l], b[l], c[l]);
  return sum;
}}"""


_CLAMP = """\
template <typename Real>
static inline Real clamp(Real x, Real low, Real high) {
  return x < low ? low : x > high ? high : x;  // NaN stays
}"""

_TAKE_TICKET_OF = """\
// counter += 1, and 0 after of - 1; returns the old value.
static inline unsigned take_ticket_of(unsigned* counter, unsigned of) {
  unsigned old = __atomic_load_n(counter, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(counter, &old, old + 1 < of ? old + 1 : 0, true, __ATOMIC_ACQ_REL,
                                      __ATOMIC_RELAXED)) {}
  return old;
}"""

_AWAIT_COUNTER = """\
extern "C" int sched_yield(void);
extern "C" int clock_gettime(int clock, void* time);

// Returns whether the counter reached the value.  board: the next block; the wait that cannot end, or 0; the
// threads that run blocks; the threads that wait.  If all wait for two seconds, none is left to count.
static bool await_counter(const unsigned* counter, unsigned value, long long* board, long long number) {
  if (__atomic_load_n(counter, __ATOMIC_ACQUIRE) >= value) return true;
#if defined(__APPLE__)
  const int monotonic = 6;
#else
  const int monotonic = 1;
#endif
  __atomic_fetch_add(board + 3, 1, __ATOMIC_RELAXED);
  bool reached = false;
  double since = -1;
  while (!(reached = __atomic_load_n(counter, __ATOMIC_ACQUIRE) >= value)) {
    if (__atomic_load_n(board + 1, __ATOMIC_RELAXED)) break;
    sched_yield();
    if (__atomic_load_n(board + 3, __ATOMIC_RELAXED) < __atomic_load_n(board + 2, __ATOMIC_RELAXED)) {
      since = -1;
      continue;
    }
    long time[2];
    clock_gettime(monotonic, time);
    const double now = time[0] + 1e-9 * time[1];
    if (since < 0) since = now;
    if (now - since > 2) __atomic_store_n(board + 1, number, __ATOMIC_RELAXED);
  }
  __atomic_fetch_sub(board + 3, 1, __ATOMIC_RELAXED);
  return reached;
}"""

SNIPPETS = Pieces(
    {
        "fused": _FUSED,
        **conversions.SNIPPETS,
        **functions.SNIPPETS,
        **INTEGERS,
        "take_ticket_of": _TAKE_TICKET_OF,
        "await_counter": _AWAIT_COUNTER,
        "keep": _KEEP,
        "cut": _CUT,
        "fused_lanes": _fused_lanes(),
        "clamp": _CLAMP,
    }
)
"""Every helper function, in an order that C++ accepts."""

OWN_NAMES = (
    "Index",
    "given",
    "next_block",
    "board",
    "take_ticket_of",
    "await_counter",
    "sched_yield",
    "clock_gettime",
    "scratch",
    "block",
    "blocks",
    "arguments",
    "keep",
    "cut",
    "fused",
    "fused_lanes",
    "clamp",
    "bits_of_f32",
)
"""Other names that the text uses."""


def prelude(calls: Iterable[str]) -> str:
    """Return the text of these helper functions and of the functions that they call."""
    return "\n\n".join(SNIPPETS.texts[name] for name in SNIPPETS.needed(calls))
