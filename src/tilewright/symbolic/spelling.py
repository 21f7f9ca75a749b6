"""Spelling symbolic integers and conditions as text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tilewright.symbolic.nodes import (
    Add,
    And,
    Cond,
    Constant,
    Element,
    Equal,
    FloorDiv,
    Int,
    Less,
    Max,
    Min,
    Mod,
    Mul,
    Not,
    Or,
    Select,
    Sym,
    Xor,
    spells,
)


@dataclass(frozen=True, slots=True)
class Speller:
    """Spells expressions; C-family targets override what differs from Python's spelling."""

    floordiv: Callable[[str, str, FloorDiv], str] = field(default=lambda a, b, _: f"{a} // {b}")
    mod: Callable[[str, str, Mod], str] = field(default=lambda a, b, _: f"{a} % {b}")
    call: Callable[[str, str, str], str] = field(default=lambda name, a, b: f"{name}({a}, {b})")
    select: Callable[[str, str, str], str] = field(default=lambda c, a, b: f"select({c}, {a}, {b})")
    conjunction: str = " and "
    disjunction: str = " or "
    negation: str = "not "
    true: str = "True"
    false: str = "False"
    name: Callable[[Sym], str] = field(default=lambda sym: sym.name)
    element: Callable[[str, Element], str] = field(default=lambda text, _: text)

    def int(self, value: Int, tight: bool = False) -> str:
        """Spell an integer; ``tight`` asks for parentheses around anything but a name or a call."""
        match value:
            case Sym():
                return self.name(value)
            case Add():
                text = self._sum(value)
            case Mul():
                text = "*".join(self.int(factor, True) for factor in value.factors)
            case FloorDiv():
                text = self.floordiv(self.int(value.left, True), self.int(value.right, True), value)
            case Mod():
                text = self.mod(self.int(value.left, True), self.int(value.right, True), value)
            case Xor():
                text = f"{self.int(value.left, True)} ^ {self.int(value.right, True)}"
            case Min() | Max():
                return self.call(type(value).__name__.lower(), self.int(value.left), self.int(value.right))
            case Element():
                return self.element(f"{self.name(value.table)}[{self.int(value.at)}]", value)
            case Select():
                return self.select(self.cond(value.cond), self.int(value.left), self.int(value.right))
            case _:
                return str(value)
        return f"({text})" if tight and not _is_call(text) else text

    def _sum(self, value: Add) -> str:
        parts: list[str] = []
        for term, factor in sorted(value.terms, key=lambda item: -abs(item[1])):
            spelled = self.int(term, not isinstance(term, Mul) or abs(factor) == 1)
            if abs(factor) == 1 and isinstance(term, Mul):
                spelled = self.int(term)
            text = spelled if abs(factor) == 1 else f"{abs(factor)}*{spelled}"
            parts.append((" - " if factor < 0 else " + ") + text)
        if value.constant or not parts:
            parts.append((" - " if value.constant < 0 else " + ") + str(abs(value.constant)))
        text = "".join(parts)
        return text[3:] if text.startswith(" + ") else "-" + text[3:]

    def cond(self, value: Cond) -> str:
        """Spell a condition."""
        match value:
            case Constant():
                return self.true if value.value else self.false
            case Less():
                return f"{self.int(value.left)} < {self.int(value.right)}"
            case Equal():
                return f"{self.int(value.left)} == {self.int(value.right)}"
            case And():
                return self.conjunction.join(self._operand(part) for part in value.parts)
            case Or():
                return self.disjunction.join(self._operand(part) for part in value.parts)
            case Not():
                return f"{self.negation}({self.cond(value.part)})"
            case _:
                raise TypeError(f"not a condition: {type(value).__name__}")

    def _operand(self, part: Cond) -> str:
        text = self.cond(part)
        return f"({text})" if isinstance(part, And | Or) else text


def _is_call(text: str) -> bool:
    """Return whether a text is one call of a function, which needs no parentheses around it."""
    name, _, inner = text.partition("(")
    if not name.isidentifier() or not inner.endswith(")"):
        return False
    depth = 1
    for letter in inner[:-1]:
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return False
    return True


PYTHON = Speller()


@spells
def format_int(value: Int) -> str:
    """The Python spelling of an integer; reads back as an equal expression."""
    return PYTHON.int(value)


@spells
def format_cond(value: Cond) -> str:
    """The Python spelling of a condition."""
    return PYTHON.cond(value)
