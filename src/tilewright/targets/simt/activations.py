"""Activations in the text of one thread: a few instructions of f32, and what f64 needs.

``fast_exp2`` and ``fast_reciprocal`` are the dialect's: within 2 and 1 units in the last place, and 0 for
results below the least normal number.
"""

from __future__ import annotations

from tilewright.dtypes import f32, f64
from tilewright.functions.table import GELU, GELU_TANH, LOWEST, SILU_SLOPE

_FINITE_BELOW = f"fmaxf(x, {LOWEST[f32]!r}f)"
"""x, or the lowest finite number for -inf and for NaN, whose share is NaN."""

_FINITE_BELOW_F64 = f"fmax(x, {LOWEST[f64]!r})"


def _fused(coefficients: tuple[float, ...], variable: str) -> str:
    """A polynomial in f32 by fused multiply-adds, the lowest coefficient first."""
    text = f"{coefficients[-1]!r}f"
    for coefficient in reversed(coefficients[:-1]):
        text = f"fmaf({text}, {variable}, {coefficient!r}f)"
    return text


def _share(name: str, slope: str) -> str:
    return f"""
DEVICE float {name}(float x) {{
  // x / (1 + 2**t)
  const float t = x * {slope};
  return {_FINITE_BELOW} * fast_reciprocal(1.0f + fast_exp2(t));
}}"""


PIECES: dict[str, str] = {
    "fast_sigmoid": """
DEVICE float fast_sigmoid(float x) {
  // Within 5 units in the last place; results below the least normal number become 0.
  return fast_reciprocal(1.0f + expf(-x));
}""",
    "fast_silu": _share("fast_silu", f"{SILU_SLOPE!r}f"),
    "fast_gelu": _share("fast_gelu", _fused(GELU, "(x * x)")),
    "fast_gelu_tanh": _share("fast_gelu_tanh", _fused(GELU_TANH, "(x * x)")),
    "sigmoid": """
DEVICE double sigmoid(double x) {
  const double small = exp(-fabs(x));
  return (x < 0 ? small : 1.0) / (1.0 + small);
}""",
    "silu": f"""
DEVICE double silu(double x) {{
  return {_FINITE_BELOW_F64} * sigmoid(x);
}}""",
    "gelu": f"""
DEVICE double gelu(double x) {{
  return {_FINITE_BELOW_F64} * (0.5 + 0.5 * erf(x * {0.5**0.5!r}));
}}""",
    "gelu_tanh": f"""
DEVICE double gelu_tanh(double x) {{
  return {_FINITE_BELOW_F64} / (1.0 + exp2(x * ({GELU_TANH[0]!r} + {GELU_TANH[1]!r} * (x * x))));
}}""",
}
"""By the names that they define; those of f32 are the fast ones."""

NEEDS: dict[str, tuple[str, ...]] = {
    **{f"fast_{name}": ("fast_exp2", "fast_reciprocal") for name in ("silu", "gelu", "gelu_tanh")},
    "fast_sigmoid": ("fast_reciprocal",),
    "silu": ("sigmoid",),
}
