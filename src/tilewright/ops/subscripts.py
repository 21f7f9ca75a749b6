"""The subscripts of `einsum`: which letter names which axis of which array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from tilewright.errors import LaunchError, shown

ELLIPSIS = "..."
"""In subscripts: all axes that have no letter, which are broadcast from the last one on."""


@dataclass(frozen=True)
class Subscripts:
    """A label for each axis of two operands and of the result.

    An axis has its letter, or, behind an ellipsis, a number, counted from the last of them.

    Args:
        a: of the first operand.
        b: of the second.
        out: of the result.
    """

    a: tuple[str, ...]
    b: tuple[str, ...]
    out: tuple[str, ...]

    @property
    def bare(self) -> tuple[str, ...]:
        """The axes behind ellipses, in the order of the result."""
        count = max((int(label) for label in (*self.a, *self.b) if label.isdigit()), default=-1) + 1
        return tuple(str(number) for number in reversed(range(count)))


def read_subscripts(text: str, ranks: Sequence[int]) -> Subscripts:
    """Subscripts as NumPy has them, of two operands.

    Args:
        text: such as ``"bik,kj->bij"``; without an arrow the result has the letters that stand once, in
            the order of the alphabet, behind the axes of ellipses.
        ranks: how many axes the operands have.

    Raises:
        LaunchError: text that says nothing about two such operands.

    Example:
        >>> read_subscripts("ij,jk", (2, 2)).out
        ('i', 'k')
        >>> read_subscripts("...ij,jk->...ik", (4, 2))
        Subscripts(a=('1', '0', 'i', 'j'), b=('j', 'k'), out=('1', '0', 'i', 'k'))
    """
    if not isinstance(text, str):
        raise LaunchError(f'einsum of subscripts {shown(text)}; nearest legal choice: text, as "ik,kj->ij"')
    whole = "".join(text.split())
    left, arrow, right = whole.partition("->")
    operands = left.split(",")
    if len(operands) != 2:
        near = "two of them, and the result with the next one" if len(operands) > 2 else "ij,jk->ik"
        _refuse(text, f"{len(operands)} operands, where two are multiplied; nearest legal choice: {near}")
    if arrow and "," in right:
        _refuse(text, "a comma in the result, which is one array")
    named = zip("ab", operands, ranks, strict=True)
    a, b = (_labels(text, name, part, rank) for name, part, rank in named)
    bare = Subscripts(a, b, ()).bare
    return Subscripts(a, b, _of_result(text, right, bare, (a, b)) if arrow else _implied(a, b, bare))


def _of_result(
    text: str, part: str, bare: tuple[str, ...], operands: tuple[tuple[str, ...], ...]
) -> tuple[str, ...]:
    """The labels behind the arrow."""
    before, dots, behind = part.partition(ELLIPSIS)
    if bare and not dots:
        _refuse(
            text, f"axes behind {ELLIPSIS} that the result lacks; nearest legal choice: ->{ELLIPSIS}{part}"
        )
    found = (*_letters(text, before), *(bare if dots else ()), *_letters(text, behind))
    for label in found:
        if found.count(label) > 1:
            nearest = f"->{''.join(one for at, one in enumerate(part) if one == '.' or one not in part[:at])}"
            _refuse(text, f"{label!r} twice in the result; nearest legal choice: {nearest}")
        if not any(label in operand for operand in operands):
            nearest = f"->{part.replace(label, '')}"
            _refuse(
                text, f"{label!r} of the result is an axis of no operand; nearest legal choice: {nearest}"
            )
    return found


def _implied(a: tuple[str, ...], b: tuple[str, ...], bare: tuple[str, ...]) -> tuple[str, ...]:
    """The labels of a result that is not named."""
    letters = [label for label in (*a, *b) if not label.isdigit()]
    return (*bare, *sorted(label for label in letters if letters.count(label) == 1))


def _labels(text: str, name: str, part: str, rank: int) -> tuple[str, ...]:
    """The labels of an operand."""
    before, dots, behind = part.partition(ELLIPSIS)
    first, last = _letters(text, before), _letters(text, behind)
    left = rank - len(first) - len(last)
    if left < 0 or (left and not dots):
        nearest = f"; nearest legal choice: {ELLIPSIS}{part}" if left > 0 else ""
        _refuse(text, f"{part!r} for {name}, an array of {rank} dimension{'' if rank == 1 else 's'}{nearest}")
    return (*first, *(str(number) for number in reversed(range(left))), *last)


def _letters(text: str, part: str) -> tuple[str, ...]:
    for letter in part:
        if not (letter.isascii() and letter.isalpha()):
            _refuse(text, f"{letter!r}; axes are named by letters")
    return tuple(part)


def _refuse(text: str, why: str) -> NoReturn:
    raise LaunchError(f"einsum of {text!r}: {why}")
