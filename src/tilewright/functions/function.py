"""The row of an elementwise function, and the dtypes that functions accept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tilewright.dtypes import DType


class Domain(NamedTuple):
    """The dtypes that a function takes.

    Args:
        obstacle: why it does not take a dtype, and what to do instead; empty if it takes it.
    """

    obstacle: Callable[[DType], str]


def _numbers(kind: DType) -> str:
    boolean = "needs numbers; combine truth values with & | ^ ~, or convert them with .to(tw.i32)"
    return boolean if kind.kind == "bool" else ""


def _real_numbers(kind: DType) -> str:
    return _numbers(kind) or ("needs real numbers" if kind.components > 1 else "")


def _floats(kind: DType) -> str:
    return "" if kind.is_float else "needs a float; convert it first"


def _bits(kind: DType) -> str:
    return "needs integers; convert them first" if kind.is_float else ""


def _integers(kind: DType) -> str:
    return _numbers(kind) or _bits(kind)


ANY = Domain(lambda kind: "")
NUMBERS = Domain(_numbers)
REAL_NUMBERS = Domain(_real_numbers)
INTEGERS = Domain(_integers)
BITS = Domain(_bits)
"""Integers and truth values."""
FLOATS = Domain(_floats)
FUSED = Domain(lambda kind: "" if kind.name in ("f32", "f64") else "needs f32 or f64; convert first")


@dataclass(frozen=True)
class Function:
    """One elementwise function.

    Args:
        name: in printed kernels.
        arity: number of operands.
        takes: the dtypes of its operands, all of one dtype unless it says otherwise.
        meaning: what it gives for NumPy arrays of the dtype in which the operands compute; None of
            conversions and choices, which need the dtypes.
        c: the function of C's mathematics library for ``double``, that for ``float`` ends in f; empty if C
            has an operator, or none.
        ulp: the largest error on any target, in units in the last place of f32 or f64; 0 means that
            all targets give the same bits.
        of_operand: whether the error is in units of the operand times the spacing of numbers at 1, not of
            the result's last place.
        text: an algorithm in C++, ``<name>_f64``, for targets without a mathematics library; of f32 it
            computes in f64 and rounds once.
        needs: the functions that ``text`` calls.
        non_negative: whether no result is negative.
        keeps_sign: `all` or `any` if the result is not negative where all, or any, of the operands are not.
        gives: ``"operands"`` for a result of their dtype, ``"truth"``, or ``"asked"`` for the dtype that
            the operation names.
    """

    name: str
    arity: int
    takes: Domain
    meaning: Callable[..., Any] | None = None
    c: str = ""
    ulp: float = 0.0
    of_operand: bool = False
    text: str = ""
    needs: tuple[str, ...] = ()
    non_negative: bool = False
    keeps_sign: Callable[..., bool] | None = None
    gives: str = "operands"

    def c_name(self, kind: DType) -> str:
        """Return the C name of the function for operands that compute in f32 or f64.

        Example:
            >>> from tilewright.dtypes import f32, f64
            >>> root = Function("sqrt", 1, FLOATS, c="sqrt")
            >>> root.c_name(f32), root.c_name(f64)
            ('sqrtf', 'sqrt')
        """
        return f"{self.c}f" if kind.bits == 32 else self.c


def horner(variable: str, coefficients: Sequence[float]) -> str:
    """Return a polynomial as C text by Horner's rule, from coefficients with the lowest first.

    Example:
        >>> horner("x", [1.0, -0.5, 0.25])
        '1.0 + x * (-0.5 + x * 0.25)'
    """
    text = repr(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        inner = text if text.replace(".", "").replace("e-", "").isdigit() else f"({text})"
        text = f"{coefficient!r} + {variable} * {inner}"
    return text
