"""Elementwise functions as C++ expressions: sqrt is correctly rounded, rsqrt is a division by it."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.dtypes import DType
from tilewright.functions import philox
from tilewright.functions.formulas import FORMULAS, Formulas
from tilewright.targets.cpu import activations, division
from tilewright.targets.cpu.conversions import STORAGE

SNIPPETS: Formulas = {
    **FORMULAS,
    **{name: (needs, f"static inline {text}") for name, (needs, text) in philox.PIECES.items()},
    **activations.SNIPPETS,
    **division.SNIPPETS,
}
"""C++ functions by name, each with the names of those that it calls."""

_PLAIN = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "neg": "-{0}",
    # A NaN wins against a number.
    "min": "(({0} < {1}) | ({0} != {0}) ? {0} : {1})",
    "max": "(({0} > {1}) | ({0} != {0}) ? {0} : {1})",
    "and": "{0} & {1}",
    "or": "{0} | {1}",
    "xor": "{0} ^ {1}",
    "less": "({0} < {1})",
    "less_equal": "({0} <= {1})",
    "equal": "({0} == {1})",
    "not_equal": "({0} != {1})",
}


def spell(function: str, dtype: DType, operands: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """C++ for an elementwise function, and the names of the `SNIPPETS` that it calls.

    Args:
        function: a name of `tilewright.functions.table.FUNCTIONS` other than convert and select.
        dtype: what the operands are computed in.
        operands: names or literals.

    Example:
        >>> from tilewright.dtypes import f32
        >>> spell("rsqrt", f32, ["x"])
        ('1 / __builtin_sqrtf(x)', ())
    """
    suffix = "f" if dtype.name == "f32" else ""
    match function:
        case "sqrt":
            return f"__builtin_sqrt{suffix}({operands[0]})", ()
        case "fma":
            return f"__builtin_fma{suffix}({', '.join(operands)})", ()
        case "rsqrt":
            return f"1 / __builtin_sqrt{suffix}({operands[0]})", ()
        case "abs" if dtype.is_float:
            return f"__builtin_fabs{suffix}({operands[0]})", ()
        case "abs" if dtype.kind == "uint":
            return operands[0], ()
        case "abs":
            return f"({operands[0]} < 0 ? -{operands[0]} : {operands[0]})", ()
        case "invert":
            return f"{'!' if dtype.kind == 'bool' else '~'}{operands[0]}", ()
        case "div":
            return f"{operands[0]} / {operands[1]}", ()
        case "floordiv" | "mod":
            kind = dtype.name if dtype.bits >= 32 else "i32"
            return f"{function}_{kind}({', '.join(operands)})", (f"{function}_{kind}",)
        case "shift_left" | "shift_right":
            return f"{function}<{STORAGE[dtype.name]}>({', '.join(operands)})", (function,)
        case "random_bits" | "random_at_least":
            return f"{function}({', '.join(operands)})", (function,)
        case "pow":
            return f"pow_f32({', '.join(operands)})", ("pow_f32",)
        case _ if f"{function}_{dtype.name}" in SNIPPETS:
            return f"{function}_{dtype.name}({operands[0]})", (f"{function}_{dtype.name}",)
        case _:
            return _PLAIN[function].format(*operands), ()
