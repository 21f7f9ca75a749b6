"""Activations as C++: of f32 and of f64, for vectors, without a branch."""

from __future__ import annotations

from tilewright.dtypes import f32, f64
from tilewright.functions.function import horner
from tilewright.functions.table import GELU, GELU_TANH, LOWEST, SILU_SLOPE

Snippet = tuple[tuple[str, ...], str]


def _f32(coefficients: tuple[float, ...], variable: str) -> str:
    """A polynomial of f32."""
    text = f"{coefficients[-1]!r}f"
    for coefficient in reversed(coefficients[:-1]):
        text = f"{coefficient!r}f + {variable} * ({text})"
    return text


_FINITE_BELOW = {
    name: f"(x < {LOWEST[kind]!r}{end} ? {LOWEST[kind]!r}{end} : x)"
    for name, kind, end in (("f32", f32, "f"), ("f64", f64, ""))
}
"""x, or the lowest finite number for -inf, by dtype; NaN stays NaN."""


def _sigmoid(name: str, real: str) -> Snippet:
    return (
        (f"exp_{name}",),
        f"""\
static inline {real} sigmoid_{name}({real} x) {{
  const {real} small = exp_{name}(x < 0 ? x : -x);
  return (x < 0 ? small : 1) / (1 + small);
}}""",
    )


def _share(function: str, name: str, real: str, slope: str) -> Snippet:
    """``x / (1 + 2**t)``, ``t / x`` in terms of z, the square of x."""
    return (
        (f"exp2_{name}",),
        f"""\
static inline {real} {function}_{name}({real} x) {{
  const {real} z = x * x, t = x * ({slope});
  return {_FINITE_BELOW[name]} / (1 + exp2_{name}(t));
}}""",
    )


_GELU_F64: Snippet = (
    ("erf_f64",),
    f"""\
static inline double gelu_f64(double x) {{
  return {_FINITE_BELOW["f64"]} * (0.5 + 0.5 * erf_f64(x * {0.5**0.5!r}));
}}""",
)

SNIPPETS: dict[str, Snippet] = {
    "sigmoid_f32": _sigmoid("f32", "float"),
    "sigmoid_f64": _sigmoid("f64", "double"),
    "silu_f32": _share("silu", "f32", "float", f"{SILU_SLOPE!r}f"),
    "silu_f64": (
        ("sigmoid_f64",),
        f"static inline double silu_f64(double x) {{ return {_FINITE_BELOW['f64']} * sigmoid_f64(x); }}",
    ),
    "gelu_f32": _share("gelu", "f32", "float", _f32(GELU, "z")),
    "gelu_f64": _GELU_F64,
    "gelu_tanh_f32": _share("gelu_tanh", "f32", "float", _f32(GELU_TANH, "z")),
    "gelu_tanh_f64": _share("gelu_tanh", "f64", "double", horner("z", GELU_TANH)),
}
"""By name, each with the names of those that it calls."""
