"""Sine and cosine: rows, and an algorithm that is exact for arguments of every size.

An argument is reduced to an eighth of a turn either way, as the sum of two doubles.  Up to 2**20 a
multiple of pi/2 is subtracted in three parts; beyond, the argument's bits are multiplied by those 192 bits
of 2/pi that matter.

Source: M. H. Payne, R. N. Hanek, "Radian reduction for trigonometric functions", SIGNUM Newsletter 18 (1983).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tilewright.functions.function import FLOATS, Function, horner

_TWO_OVER_PI = (
    *(0xA2F9836E4E441529, 0xFC2757D1F534DDC0, 0xDB6295993C439041, 0xFE5163ABDEBBC561, 0xB7246E3A424DD2E0),
    *(0x06492EEA09D1921C, 0xFE1DEB1CB129A73E, 0xE88235F52EBB4484, 0xE99C7026B45F7E41, 0x3991D639835339F4),
    *(0x9C845F8BBDF9283B, 0x1FF897FFDE05980F, 0xEF2F118B5A0A6D1F, 0x6D367ECF27CB09B7, 0x4F463F669E5FEA2D),
    *(0x7527BAC7EBE5F17B, 0x3D0739F78A5292EA, 0x6BFB5FB11F8D5D08, 0x56033046FC7B6BAB),
)
"""Its binary digits after the point, 64 to a word."""


def _chosen(first: int, words: tuple[int, ...]) -> str:
    """The word at index ``at`` of those that begin at ``first``, by comparisons: no table in memory."""
    if len(words) == 1:
        return f"0x{words[0]:x}ull"
    half = len(words) // 2
    low, high = _chosen(first, words[:half]), _chosen(first + half, words[half:])
    return f"(at < {first + half} ? {low} : {high})"


_REDUCE = f"""\
static inline unsigned long long two_over_pi(int at) {{
  return {_chosen(-1, (0, *_TWO_OVER_PI, 0))};
}}

struct Quarter {{ double near, rest; int turns; }};

// x - turns * pi/2 as a sum of two doubles, for |x| up to 2**20.
static inline Quarter small_quarter(double x) {{
  const double shift = {1.5 * 2**52!r}, n = (x * {2 / math.pi!r} + shift) - shift;
  // The first two parts of pi/2 have 33 bits: multiples of them are exact.
  const double left = x - n * 1.5707963267341256, step = n * 6.077100506303966e-11;
  const double near = left - step, back = near - left;
  const double rest = (left - (near - back)) - (step + back) - n * 2.0222662487959506e-21;
  const double sum = near + rest;
  return Quarter{{sum, rest - (sum - near), (int)n & 3}};
}}

// The same for larger numbers.
static inline Quarter large_quarter(double x) {{
  const long long bits = bits_of_f64(x < 0 ? -x : x);
  const unsigned long long whole = (bits & ((1ll << 52) - 1)) | 1ll << 52;
  // Digits that make multiples of four quarters with |x| = whole * 2**exponent are left out.
  const int exponent = (int)(bits >> 52) - 1075, skipped = exponent - 2 + 64;
  const int word = skipped / 64, rest = skipped % 64;
  unsigned long long part[3];
  for (int i = 0; i < 3; ++i) {{
    const int at = word + i - 1;
    const unsigned long long high = two_over_pi(at), low = two_over_pi(at + 1);
    part[i] = rest ? high << rest | low >> (64 - rest) : high;
  }}
  const unsigned __int128 low = (unsigned __int128)whole * part[2];
  const unsigned __int128 middle = (unsigned __int128)whole * part[1] + (unsigned long long)(low >> 64);
  const unsigned long long high = whole * part[0] + (unsigned long long)(middle >> 64);
  // Two bits of quarters, then their fraction, as a signed number in [-1/2, 1/2).
  const unsigned __int128 fraction = ((unsigned __int128)high << 64 | (unsigned long long)middle) << 2 |
                                     (unsigned long long)low >> 62;
  const __int128 turned = (__int128)fraction;
  const int turns = (int)(high >> 62) + (turned < 0);
  const long long top = (long long)(turned >> 66);
  const double next = (double)(unsigned long long)(turned >> 2) * 5.421010862427522e-20;  // 2**-64
  // The first 26 bits make exact products with the first 26 of pi/2.
  const double kept = f64_of_bits(bits_of_f64((double)top) & ~((1ll << 27) - 1));
  const double scale = 2.168404344971009e-19;  // 2**-62
  const double a = kept * scale, b = ((double)(top - (long long)kept) + next) * scale;
  const double large = a * 1.5707963109016418, small = a * 1.5893254773528196e-08 + b * {math.pi / 2!r};
  const double near = large + small, tail = small - (near - large);
  return x < 0 ? Quarter{{-near, -tail, -turns & 3}} : Quarter{{near, tail, turns & 3}};
}}

static inline double sine_after(double x, int ahead) {{
  const double size = x < 0 ? -x : x;
  if (!(size < __builtin_inf())) return x - x;
  const Quarter q = size < 1048576.0 ? small_quarter(x) : large_quarter(x);
  const int turns = (q.turns + ahead) & 3;
  const double y = q.near, z = y * y;
  const double sine = {horner("z", [(-1) ** n / math.factorial(2 * n + 1) for n in range(1, 9)])};
  const double cosine = {horner("z", [(-1) ** n / math.factorial(2 * n) for n in range(2, 10)])};
  const double half = 0.5 * z, most = 1.0 - half;
  const double made = turns & 1 ? most + (((1.0 - most) - half) + (z * z * cosine - y * q.rest))
                                : y + (q.rest * most + y * z * sine);
  return turns & 2 ? -made : made;
}}

static inline double sin_f64(double x) {{ return x == 0 ? x : sine_after(x, 0); }}"""


def _through_f64(function: Any) -> Any:
    """Of f32 too in f64, where NumPy's versions for f32 are less exact."""
    return lambda x: function(x.astype(np.float64)).astype(x.dtype)


CIRCLE = (
    Function("sin", 1, FLOATS, _through_f64(np.sin), c="sin", ulp=2.0, text=_REDUCE, needs=("f64_bits",)),
    Function(
        *("cos", 1, FLOATS, _through_f64(np.cos)),
        c="cos",
        ulp=2.0,
        text="static inline double cos_f64(double x) { return sine_after(x, 1); }",
        needs=("sin_f64",),
    ),
)
