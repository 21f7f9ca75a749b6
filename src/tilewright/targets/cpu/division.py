"""Division rounded down, its rest, and shifts, as C++ without a mathematics library.

Of integers divided by 0 both are 0, and the least integer divided by -1 is itself; of floats the steps are
those of NumPy and Python, over an exact ``fmod``.
"""

from __future__ import annotations

from tilewright.dtypes import DType
from tilewright.targets.c_integers import INTEGERS, integer_type, unsigned_type

_SHIFTS = {
    "shift_left": """\
template <class T>
static inline T shift_left(T a, T count) {
  // A count outside of the bits shifts all of them out.
  const bool inside = count >= 0 && count < (T)(8 * sizeof(T));
  return inside ? (T)((unsigned long long)a << count) : (T)0;
}""",
    "shift_right": """\
template <class T>
static inline T shift_right(T a, T count) {
  // A count outside of the bits shifts all of them out.
  const bool inside = count >= 0 && count < (T)(8 * sizeof(T));
  return inside ? (T)(a >> count) : (T)(a < 0 ? -1 : 0);
}""",
}


_WIDE = tuple(made for made in INTEGERS if made.bits >= 32)
"""Integers that compute in their own type."""


def _of_integers(dtype: DType) -> dict[str, str]:
    name, kind, unsigned = dtype.name, integer_type(dtype), unsigned_type(dtype)
    if kind == unsigned:
        return {
            f"floordiv_{name}": f"static inline {kind} floordiv_{name}({kind} a, {kind} b) "
            "{ return b == 0 ? 0 : a / b; }",
            f"mod_{name}": f"static inline {kind} mod_{name}({kind} a, {kind} b) "
            "{ return b == 0 ? 0 : a % b; }",
        }
    return {
        f"floordiv_{name}": f"""\
static inline {kind} floordiv_{name}({kind} a, {kind} b) {{
  if (b == 0) return 0;
  if (b == -1) return ({kind})(0 - ({unsigned})a);
  return a / b - (a % b != 0 && (a < 0) != (b < 0));
}}""",
        f"mod_{name}": f"""\
static inline {kind} mod_{name}({kind} a, {kind} b) {{
  if (b == 0 || b == -1) return 0;
  const {kind} rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}}""",
    }


def _of_floats(name: str, real: str, bits: str, fraction: int, exponent: int) -> dict[str, str]:
    width = 1 + exponent + fraction
    sign, infinity = f"(({bits})1 << {width - 1})", f"((({bits})1 << {exponent}) - 1 << {fraction})"
    return {
        f"significand_{name}": f"""\
// The significand of a number that is not 0, first bit at {fraction}; e becomes its exponent, biased.
static inline {bits} significand_{name}({bits} a, int& e) {{
  e = (int)(a >> {fraction});
  if (e) return (a & ((({bits})1 << {fraction}) - 1)) | (({bits})1 << {fraction});
  for (e = 1; !(a >> {fraction}); a <<= 1) --e;
  return a;
}}""",
        f"fmod_{name}": f"""\
// Long division, a bit at a time: exact.
static inline {real} fmod_{name}({real} x, {real} y) {{
  const {bits} signed_x = __builtin_bit_cast({bits}, x), sign = signed_x & {sign};
  const {bits} a = signed_x ^ sign, b = __builtin_bit_cast({bits}, y) & ~{sign};
  if (b == 0 || a >= {infinity} || b > {infinity}) return (x * y) / (x * y);
  if (a < b || b == {infinity}) return x;
  int e = 0, f = 0;
  {bits} rest = significand_{name}(a, e);
  const {bits} divisor = significand_{name}(b, f);
  for (; e > f; --e) {{
    if (rest >= divisor) rest -= divisor;
    rest <<= 1;
  }}
  if (rest >= divisor) rest -= divisor;
  if (rest == 0) return __builtin_bit_cast({real}, sign);
  for (; !(rest >> {fraction}); rest <<= 1) --e;
  const {bits} size =
      e > 0 ? (rest ^ (({bits})1 << {fraction})) | (({bits})e << {fraction}) : rest >> (1 - e);
  return __builtin_bit_cast({real}, sign | size);
}}""",
        f"mod_{name}": f"""\
static inline {real} mod_{name}({real} a, {real} b) {{
  const {real} rest = fmod_{name}(a, b);
  if (rest == 0) return b < 0 ? -({real})0 : ({real})0;
  return (rest < 0) != (b < 0) ? rest + b : rest;
}}""",
        f"floordiv_{name}": f"""\
static inline {real} floordiv_{name}({real} a, {real} b) {{
  if (b == 0) return a / b;
  const {real} rest = fmod_{name}(a, b);
  const {real} near = (a - rest) / b - (rest != 0 && (rest < 0) != (b < 0) ? 1 : 0);
  if (near == 0) return (a < 0) != (b < 0) ? -({real})0 : ({real})0;
  // From 2**{fraction} on every number is whole.
  const bool has_fraction = near < ({real})(1ll << {fraction}) && near > -({real})(1ll << {fraction});
  {real} below = has_fraction ? ({real})(long long)near : near;
  if (below > near) below -= 1;
  return near - below > ({real})0.5 ? below + 1 : below;
}}""",
    }


def _calls(name: str) -> tuple[str, ...]:
    function, _, kind = name.partition("_")
    if not kind.startswith("f"):
        return ()
    needs = {"fmod": "significand", "mod": "fmod", "floordiv": "fmod"}.get(function)
    return (f"{needs}_{kind}",) if needs else ()


SNIPPETS: dict[str, tuple[tuple[str, ...], str]] = {
    name: (_calls(name), text)
    for name, text in {
        **_SHIFTS,
        **{name: text for kind in _WIDE for name, text in _of_integers(kind).items()},
        **_of_floats("f32", "float", "unsigned", 23, 8),
        **_of_floats("f64", "double", "unsigned long long", 52, 11),
    }.items()
}
"""C++ functions by name, each with the names of those that it calls."""
