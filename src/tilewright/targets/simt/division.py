"""Pieces of text that divide and shift as the reference does.

Indices have positive divisors, elements of fragments any.
"""

from __future__ import annotations

_INDICES = {
    "floor_div": """
template <class A, class B>
DEVICE auto floor_div(A a, B b) {
  return a / b - (a % b != 0 && a < 0);
}""",
    "floor_mod": """
template <class A, class B>
DEVICE auto floor_mod(A a, B b) {
  return (a % b + b) % b;
}""",
    "quotient": """
DEVICE int quotient(int n, long long inverse) {
  // n / d, with inverse = (2^63 - 1) / d
  const unsigned long long twice = 2u * (unsigned)n + 2u;
  return (twice * (unsigned)(inverse >> 32) + (twice * (unsigned)inverse >> 32)) >> 32;
}""",
    "remainder": """
DEVICE int remainder(int n, int d, long long inverse) {
  return n - quotient(n, inverse) * d;
}""",
    "min_int": """
template <class A, class B>
DEVICE decltype(A() + B()) min_int(A a, B b) {
  return a < b ? a : b;
}""",
    "max_int": """
template <class A, class B>
DEVICE decltype(A() + B()) max_int(A a, B b) {
  return a > b ? a : b;
}""",
}

_WHOLE = {
    "floor_quotient": """
template <class T>
DEVICE T floor_quotient(T a, T b) {
  // Rounded down; 0 for b = 0, and the least a over -1 is itself.
  if (b == 0) return 0;
  if (b == (T)-1 && (T)-1 < 0) return (T)(0 - (unsigned long long)a);
  return a / b - (a % b != 0 && (a < 0) != (b < 0));
}""",
    "floor_remainder": """
template <class T>
DEVICE T floor_remainder(T a, T b) {
  // With the sign of b; 0 for b = 0.
  if (b == 0 || (b == (T)-1 && (T)-1 < 0)) return 0;
  const T rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}""",
    "shifted_left": """
template <class T>
DEVICE T shifted_left(T a, T count) {
  // A count outside of the bits shifts all of them out.
  const bool inside = count >= 0 && count < (T)(8 * sizeof(T));
  return inside ? (T)((unsigned long long)a << count) : (T)0;
}""",
    "shifted_right": """
template <class T>
DEVICE T shifted_right(T a, T count) {
  // A count outside of the bits shifts all of them out.
  const bool inside = count >= 0 && count < (T)(8 * sizeof(T));
  return inside ? (T)(a >> count) : (T)(a < 0 ? -1 : 0);
}""",
}


def _of_floats(real: str, suffix: str) -> dict[str, str]:
    """Quotient and rest of one type of floats, the steps being those of NumPy and Python."""
    return {
        f"floor_remainder_{real}": f"""
DEVICE {real} floor_remainder_{real}({real} a, {real} b) {{
  const {real} rest = fmod{suffix}(a, b);
  if (rest == 0) return copysign{suffix}(({real})0, b);
  return (rest < 0) != (b < 0) ? rest + b : rest;
}}""",
        f"floor_quotient_{real}": f"""
DEVICE {real} floor_quotient_{real}({real} a, {real} b) {{
  if (b == 0) return a / b;
  const {real} rest = fmod{suffix}(a, b);
  const {real} near = (a - rest) / b - (rest != 0 && (rest < 0) != (b < 0) ? 1 : 0);
  if (near == 0) return copysign{suffix}(({real})0, a / b);
  const {real} below = floor{suffix}(near);
  return near - below > ({real})0.5 ? below + 1 : below;
}}""",
    }


PIECES: dict[str, str] = {**_INDICES, **_WHOLE, **_of_floats("float", "f"), **_of_floats("double", "")}
"""Every piece by the name that it defines."""
