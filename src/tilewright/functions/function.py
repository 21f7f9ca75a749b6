"""The row of an elementwise function, and the dtypes that functions accept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tilewright.dtypes import ALL, DType, boolean

Obstacle: TypeAlias = Callable[[DType], str]
"""Returns why a function does not take a dtype, and what to do instead; empty if it takes it."""


def anything(kind: DType) -> str:
    """Return no obstacle: every dtype is accepted."""
    return ""


def numbers(kind: DType) -> str:
    """Return why a dtype holds no numbers; empty unless it holds truth values."""
    boolean = "needs numbers; combine truth values with & | ^ ~, or convert them with .to(tw.i32)"
    return boolean if kind.kind == "bool" else ""


def real_numbers(kind: DType) -> str:
    """Return why a dtype is no integer or real float; empty if it is one."""
    return numbers(kind) or ("needs real numbers" if kind.components > 1 else "")


def complex_numbers(kind: DType) -> str:
    """Return why a dtype is no complex one; empty if it is one."""
    return "" if kind.components == 2 else "needs complex numbers"


def parts(kind: DType) -> str:
    """Return why a dtype cannot hold a part of complex numbers; empty if it can."""
    return "" if kind.name in WITH_PARTS else f"needs parts of {', '.join(WITH_PARTS)}; convert first"


def floats(kind: DType) -> str:
    """Return why a dtype is no float; empty if it is one."""
    return "" if kind.is_float else "needs a float; convert it first"


def bits(kind: DType) -> str:
    """Return why a dtype is no integer or boolean; empty if it is one."""
    return "needs integers; convert them first" if kind.is_float else ""


def integers(kind: DType) -> str:
    """Return why a dtype is no integer; empty if it is one."""
    return numbers(kind) or bits(kind)


def fused(kind: DType) -> str:
    """Return why a dtype is neither f32 nor f64; empty if it is."""
    return "" if kind.name in ("f32", "f64") else "needs f32 or f64; convert first"


WITH_PARTS = {"f16": "c32", "f32": "c64", "f64": "c128"}
"""Complex dtypes by the real dtype of their parts; bf16 has none."""


@dataclass(frozen=True)
class Function:
    """One elementwise function.

    Args:
        name: its name in printed kernels.
        arity: number of operands.
        takes: the check of the operands' dtype; all operands have one dtype.
        meaning: the result for NumPy arrays of the dtype in which the operands compute.  None for conversions
            and choices, which need the dtypes.
        c: the function of C's mathematics library for ``double``; the one for ``float`` ends in f.  Empty if
            C has an operator or no function.
        ulp: the largest error on any target, in units in the last place of f32 or f64; 0 means that
            all targets give the same bits.
        of_operand: whether the error is in units of the operand times the spacing of numbers at 1, not of
            the result's last place.
        text: an algorithm in C++, ``<name>_f64``, for targets without a mathematics library; for f32 it
            computes in f64 and rounds once.
        non_negative: whether no result is negative.
        keeps_sign: `all` if no result is negative unless an operand is; `any` if no result is negative unless
            all operands are.
        gives: the dtype of the result: ``"operands"``; ``"truth"``; ``"part"``: that of a part of complex
            operands; ``"pair"``: the complex dtype with parts of the operands' dtype; ``"asked"``: the
            operation names it.
        fewest: the smallest number of operands; 0: ``arity``.
    """

    name: str
    arity: int
    takes: Obstacle
    meaning: Callable[..., Any] | None = None
    c: str = ""
    ulp: float = 0.0
    of_operand: bool = False
    text: str = ""
    non_negative: bool = False
    keeps_sign: Callable[..., bool] | None = None
    gives: str = "operands"
    fewest: int = 0

    def counts(self, operands: int) -> str:
        """Return why a number of operands is wrong; empty if it is right."""
        if (self.fewest or self.arity) <= operands <= self.arity:
            return ""
        wanted = f"{self.fewest} to {self.arity}" if self.fewest else f"{self.arity}"
        return f"{self.name} takes {wanted} operands, not {operands}"

    def result(self, kind: DType) -> DType:
        """Return the dtype of the result for operands of a dtype that it takes.

        Example:
            >>> from tilewright.dtypes import c64, f16
            >>> size = Function("abs", 1, numbers, gives="part")
            >>> size.result(c64), size.result(f16)
            (f32, f16)
        """
        made = {"truth": boolean, "part": kind.component}.get(self.gives, kind)
        return ALL[WITH_PARTS[kind.name]] if self.gives == "pair" else made

    def c_name(self, kind: DType) -> str:
        """Return the C name of the function for operands that compute in f32 or f64.

        Example:
            >>> from tilewright.dtypes import f32, f64
            >>> root = Function("sqrt", 1, floats, c="sqrt")
            >>> root.c_name(f32), root.c_name(f64)
            ('sqrtf', 'sqrt')
        """
        return f"{self.c}f" if kind.bits == 32 else self.c


def horner(variable: str, coefficients: Sequence[float], end: str = "", fused: str = "") -> str:
    """Return a polynomial as C text by Horner's rule, from coefficients with the lowest first.

    Args:
        variable: text of the variable.
        coefficients: the coefficients.
        end: suffix of numbers, ``"f"`` for f32.
        fused: a multiply-add, such as ``"fmaf({sum}, {x}, {term})"``; default: a product and a sum.

    Example:
        >>> horner("x", [1.0, -0.5, 0.25])
        '1.0 + x * (-0.5 + x * 0.25)'
        >>> horner("x", [1.0, -0.5], "f", "fmaf({sum}, {x}, {term})")
        'fmaf(-0.5f, x, 1.0f)'
    """
    text = f"{coefficients[-1]!r}{end}"
    for term in (f"{coefficient!r}{end}" for coefficient in reversed(coefficients[:-1])):
        inner = text if text.replace(".", "").replace("e-", "").isdigit() else f"({text})"
        text = fused.format(sum=text, x=variable, term=term) if fused else f"{term} + {variable} * {inner}"
    return text
