"""What stands before a kernel's text: macros, and those helper functions that the text calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tilewright.targets.cpu import conversions, functions

MACROS = """\
#if defined(__clang__)
#define CONTRACTED
#define CONTRACT _Pragma("clang fp contract(fast)")
#define UNROLL _Pragma("clang loop unroll(full)")
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety) unroll(disable)")
#else
#define CONTRACTED __attribute__((noinline, optimize("fp-contract=fast")))
#define CONTRACT
#define UNROLL _Pragma("GCC unroll 16")
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

typedef long long Index;
"""
"""CONTRACTED functions may fuse a product with the sum it goes into; INDEPENDENT loops carry no element."""

INTEGERS: dict[str, tuple[tuple[str, ...], str]] = {
    name: (("quotient",) if name == "remainder" else (), f"static inline {text}")
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
// x with `drop` fewer fraction bits, rounded to nearest, ties away from 0.
template <typename Bits, typename Real>
static inline Real keep(Real x, int drop) {
  const Bits bits = __builtin_bit_cast(Bits, x), size = bits & 0x7fffffff;
  const Bits kept = (bits + (1 << (drop - 1))) & (-1 << drop), finite = (size - 0x7f800000) >> 31;
  return __builtin_bit_cast(Real, (kept & finite) | (bits & ~finite));
}"""

_CLAMP = """\
template <typename Real>
static inline Real clamp(Real x, Real low, Real high) {
  return x < low ? low : x > high ? high : x;  // NaN stays
}"""

SNIPPETS: Mapping[str, tuple[tuple[str, ...], str]] = {
    **conversions.SNIPPETS,
    **functions.SNIPPETS,
    **INTEGERS,
    "keep": ((), _KEEP),
    "clamp": ((), _CLAMP),
}
"""Every helper function by name, with the names of those that it calls; in an order that C++ accepts."""

OWN_NAMES = (
    "Index",
    "given",
    "next_block",
    "scratch",
    "block",
    "blocks",
    "arguments",
    "keep",
    "clamp",
    "bits_of_f32",
)
"""Other names that the text uses."""


def prelude(calls: Iterable[str]) -> str:
    """The helper functions of these names and those that they call."""
    wanted: set[str] = set()
    todo = list(calls)
    while todo:
        name = todo.pop()
        if name not in wanted:
            wanted.add(name)
            todo.extend(SNIPPETS[name][0])
    return "\n\n".join(text for name, (_, text) in SNIPPETS.items() if name in wanted)
