"""Functions of floats: rows, and how to compute those that not every target has."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tilewright.dtypes import DType, f64
from tilewright.functions.function import FLOATS, Domain, Function, horner


def _powers(kind: DType) -> str:
    lost = "which loses as many bits as y * log(x) has before its point"
    if kind == f64:
        return f"no target has it; nearest legal choice: tw.exp(y * tw.log(x)), {lost}"
    return FLOATS.obstacle(kind) or ("needs real numbers" if kind.components > 1 else "")


def _rsqrt(x: Any) -> Any:
    return (1 / np.sqrt(x)).astype(x.dtype)


def erf(x: Any) -> Any:
    """The error function of an array.

    Example:
        >>> erf(np.float64([0, 0.5])).round(4).tolist()
        [0.0, 0.5205]
    """
    return np.vectorize(math.erf, otypes=[np.float64])(x).astype(x.dtype)


_ERF_NEAR = [2 / math.sqrt(math.pi) * (-1) ** n / (math.factorial(n) * (2 * n + 1)) for n in range(18)]
"""The Taylor series of erf(x) / x in x**2, for |x| < 0.875."""

_ERFCX = (
    *(0.21711627311807302, -0.1695687561767031, 0.0581735011931321, -0.015754189355256493),
    *(0.003229153309185736, -0.0004485251719668658, 2.5992191459845714e-05, 3.981684362135936e-06),
    *(-8.639471641658629e-07, -1.8529008003607575e-08, 2.01356075846877e-08, -1.5402180897133378e-10),
    *(-5.128420571985109e-10, 1.0762360791458454e-12, 1.4532223554357854e-11, 4.860432853236188e-13),
    *(-3.806187587700898e-13, -3.3454376683285246e-14),
)
"""e**(x**2) * (1 - erf(x)) for x in [0.875, 6], interpolated at 18 Chebyshev nodes in (x - 3) / (x + 3)."""

_ERF_TEXT = f"""\
static inline double erf_f64(double y) {{
  const double size = y < 0 ? -y : y;
  const double x = size < 6.0 ? size : 6.0, z = x * x;
  const double near = x + x * ({horner("z", [_ERF_NEAR[0] - 1, *_ERF_NEAR[1:]])});
  const double u = 2.268292682926829 * ((x - 3.0) / (x + 3.0) + 0.10752688172043011);
  const double far = 1.0 - exp_f64(-z) * ({horner("u", _ERFCX)});
  const double made = x < 0.875 ? near : far;
  return y != y ? y : y < 0 ? -made : y == 0 ? y : made;
}}"""

_LOG2_TEXT = """\
static inline double log2_f64(double x) {
  const bool subnormal = x < 2.2250738585072014e-308;
  const long long bits = bits_of_f64(subnormal ? x * 4503599627370496.0 : x);
  // x = m * 2**e with m in [sqrt(1/2), sqrt(2)), as in log.
  const long long e = (bits - 0x3fe6a09e667f3bcdll) >> 52;
  const double m = f64_of_bits(bits - (e << 52));
  const double near = (double)(e - (subnormal ? 52 : 0)) + log_f64(m) * 1.4426950408889634;
  return x > 0 && x < __builtin_inf() ? near : log_f64(x);
}"""

# What adding and subtracting 2**52 leaves is rounded to an integer, ties to even.
_ROUND_TEXT = """\
static inline double round_f64(double x) {
  const double size = x < 0 ? -x : x, near = (size + 4503599627370496.0) - 4503599627370496.0;
  return !(size < 4503599627370496.0) ? x : near == 0 ? x * 0.0 : x < 0 ? -near : near;
}"""

_FLOOR_TEXT = """\
static inline double floor_f64(double x) {
  const double near = round_f64(x);
  return near > x ? near - 1.0 : near;
}"""

FLOATING = (
    Function("div", 2, FLOATS, np.divide, keeps_sign=all),
    Function("pow", 2, Domain(_powers), np.power, c="pow", ulp=4.0, keeps_sign=all),
    # NumPy's exp and log of f32 are the least exact: 2.52 and 3.83, says its documentation.
    Function("exp", 1, FLOATS, np.exp, c="exp", ulp=3.0, non_negative=True),
    Function("exp2", 1, FLOATS, np.exp2, c="exp2", ulp=2.0, non_negative=True),
    Function("log", 1, FLOATS, np.log, c="log", ulp=4.0),
    Function("sqrt", 1, FLOATS, np.sqrt, c="sqrt", non_negative=True),
    Function("rsqrt", 1, FLOATS, _rsqrt, c="rsqrt", ulp=2.0, keeps_sign=all),
    Function("tanh", 1, FLOATS, np.tanh, c="tanh", ulp=2.5),
    Function("erf", 1, FLOATS, erf, c="erf", ulp=2.0, text=_ERF_TEXT, needs=("exp_f64",)),
    Function(
        *("log2", 1, FLOATS, lambda x: np.log2(x.astype(np.float64)).astype(x.dtype)),
        c="log2",
        ulp=2.0,
        text=_LOG2_TEXT,
        needs=("log_f64", "f64_bits"),
    ),
    Function("round", 1, FLOATS, np.rint, c="rint", text=_ROUND_TEXT, keeps_sign=all),
    Function("floor", 1, FLOATS, np.floor, c="floor", text=_FLOOR_TEXT, needs=("round_f64",), keeps_sign=all),
)
