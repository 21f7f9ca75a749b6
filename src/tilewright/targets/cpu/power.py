"""x ** y of f32 as C++: e ** (y log x) in f64, whose error vanishes when the result is rounded to f32."""

from __future__ import annotations

_POW = """\
static inline float pow_f32(float x, float y) {
  if (y == 0 || x == 1) return 1;
  if (x != x || y != y) return x + y;
  const double size = x < 0 ? -(double)x : (double)x, height = y < 0 ? -(double)y : (double)y;
  // Every float from 2**24 on is even; no fraction begins at 2**23.
  const bool whole = height >= 8388608.0 || (double)(int)height == height;
  const bool odd = height < 16777216.0 && whole && ((int)height & 1);
  const bool negative = bits_of_f32(x) >> 31;
  const double infinity = __builtin_inf();
  double made = 0;
  if (negative && !whole && size != 0 && size != infinity) return __builtin_nanf("");
  if (size == 1) made = 1;
  else if (size == 0 || size == infinity || height == infinity) made = (size > 1) == (y > 0) ? infinity : 0;
  else made = exp_f64((double)y * log_f64(size));
  return (float)(negative && odd ? -made : made);
}"""

SNIPPETS: dict[str, tuple[tuple[str, ...], str]] = {"pow_f32": (("bits", "exp_f64", "log_f64"), _POW)}
"""The function by its name, with the names of those that it calls."""
