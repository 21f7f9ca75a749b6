"""Parser for printed integers, conditions and transforms, which use Python's syntax."""

from __future__ import annotations

import ast
import keyword
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from tilewright.argument_checks import is_integer, is_number
from tilewright.dtypes import ALL
from tilewright.errors import ParseError, TilewrightError, shown
from tilewright.symbolic import expr
from tilewright.symbolic.nodes import Cond, Constant, Expr, Int
from tilewright.views.transforms import TRANSFORMS

_MISFITS = (
    TilewrightError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
_BINARY: dict[type, Callable[[Int, Int], Int]] = {
    ast.Add: expr.add,
    ast.Sub: lambda a, b: expr.add(a, expr.mul(b, -1)),
    ast.Mult: expr.mul,
    ast.FloorDiv: expr.floordiv,
    ast.Mod: expr.mod,
    ast.BitXor: expr.xor,
}

WORDS = frozenset((*keyword.kwlist, "inf", "nan", *ALL))
"""Words with a meaning of their own in printed kernels and flows, which Python's parser reads."""


def statements(text: str, first: str) -> list[ast.stmt]:
    """Parse a text whose first line must be ``first``, and return its statements.

    Raises:
        ParseError: the text begins with another line, or is not valid Python.
    """
    found = text.split("\n", 1)[0]
    if found != first:
        raise ParseError(f"the text starts with {shown(found)}, not with {first!r}")
    try:
        return ast.parse(text).body
    except SyntaxError as error:
        raise ParseError(f"line {error.lineno}: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise ParseError(f"line 1: {error}") from None


class TextReader:
    """Reads values of printed texts.

    Args:
        names: values of names, in addition to dtypes, ``inf`` and ``nan``.
    """

    CALLS: ClassVar[Mapping[str, Callable[..., Any]]] = {
        "min": expr.minimum,
        "max": expr.maximum,
        **{transform.__name__: transform for transform in TRANSFORMS},
    }
    """Functions that a call in a printed value may name."""

    def __init__(self, names: Mapping[str, Any] | None = None) -> None:
        self.names: dict[str, Any] = {"inf": float("inf"), "nan": float("nan"), **ALL, **(names or {})}

    def guarded(self, read: Callable[[Any], Any], node: ast.stmt) -> Any:
        """Read a statement; turn any failure into a `ParseError` with the line."""
        try:
            return read(node)
        except ParseError:
            raise
        except _MISFITS as error:
            text = ast.unparse(node).split("\n", 1)[0].removesuffix(":")
            raise ParseError(f"line {node.lineno}: {text}: {type(error).__name__}: {error}") from error

    def arguments(self, call: ast.Call) -> tuple[list[Any], dict[str, Any]]:
        """Return the positional and the keyword arguments of a call."""
        return [self.value(a) for a in call.args], {str(w.arg): self.value(w.value) for w in call.keywords}

    def value(self, node: ast.expr) -> Any:
        """Return the value of an expression."""
        match node:
            case ast.Constant(value=value):
                if type(value) is int and not is_number(value):
                    raise ParseError(f"line {node.lineno}: {shown(value)} has more than 64 bits")
                return value
            case ast.Name(id=name) if name in self.names:
                return self.names[name]
            case ast.Tuple(elts=elements):
                return tuple(self.value(element) for element in elements)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                value = self.value(operand)
                if not isinstance(value, int | float | Expr):
                    raise ParseError(f"line {node.lineno}: not a number: {ast.unparse(operand)}")
                return expr.mul(value, -1) if not isinstance(value, float) else -value
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                made = _BINARY[type(op)](self.integer(left), self.integer(right))
                if isinstance(made, Expr) or is_integer(made):
                    return made
                raise ParseError(f"line {node.lineno}: {ast.unparse(node)} has more than 64 bits")
            case ast.Compare() | ast.BoolOp() | ast.UnaryOp(op=ast.Not()):
                return self.cond(node)
            case ast.Call(func=ast.Name(id="select"), args=[condition, left, right]):
                return expr.select(self.cond(condition), self.integer(left), self.integer(right))
            case ast.Call(func=ast.Name(id=name)) if name in self.CALLS:
                positional, named = self.arguments(node)
                return self.CALLS[name](*positional, **named)
        raise ParseError(f"line {node.lineno}: not a value: {ast.unparse(node)}")

    def integer(self, node: ast.expr) -> Int:
        """Return the integer value of an expression."""
        value = self.value(node)
        if isinstance(value, bool | Expr) or is_integer(value):
            return value  # type: ignore[no-any-return]
        raise ParseError(f"line {node.lineno}: not an integer of 64 bits: {ast.unparse(node)}")

    def cond(self, node: ast.expr) -> Cond:
        """Return the condition of an expression."""
        match node:
            case ast.Constant(value=bool(value)):
                return Constant(value)
            case ast.Compare(left=left, ops=[ast.Lt()], comparators=[right]):
                return expr.less(self.integer(left), self.integer(right))
            case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
                return expr.equal(self.integer(left), self.integer(right))
            case ast.BoolOp(op=ast.And(), values=values):
                return expr.all_of(*(self.cond(value) for value in values))
            case ast.BoolOp(op=ast.Or(), values=values):
                return expr.any_of(*(self.cond(value) for value in values))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return expr.negate(self.cond(operand))
        raise ParseError(f"line {node.lineno}: not a condition: {ast.unparse(node)}")
