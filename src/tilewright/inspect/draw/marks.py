"""What pictures are made of: boxes, lines and labels at given places, and spans of coloured text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tilewright.inspect.draw.palette import INK, LINE, PAPER

# Of the font's size. All usual monospaced fonts have this width; the other is a generous mean.
MONO_WIDTH = 0.602
SANS_WIDTH = 0.62
BOLD_WIDTH = 0.68


@dataclass(frozen=True)
class Box:
    """A rectangle; ``hatched`` where nothing exists; ``note`` is shown to those who point at it."""

    x: float
    y: float
    width: float
    height: float
    fill: str = PAPER
    edge: str = LINE
    thick: float = 0.75
    hatched: bool = False
    note: str = ""


@dataclass(frozen=True)
class Label:
    """Text on one line; ``(x, y)`` is the middle of its height, and its ``anchor`` along it."""

    x: float
    y: float
    text: str
    size: float = 10
    anchor: Literal["start", "middle", "end"] = "middle"
    ink: str = INK
    bold: bool = False
    mono: bool = True

    @property
    def width(self) -> float:
        """About how wide it is; wider rather than narrower."""
        return (
            len(self.text)
            * self.size
            * (MONO_WIDTH if self.mono else BOLD_WIDTH if self.bold else SANS_WIDTH)
        )

    @property
    def extent(self) -> tuple[float, float, float, float]:
        """Left, top, right, bottom of the text."""
        left = self.x - {"start": 0.0, "middle": 0.5, "end": 1.0}[self.anchor] * self.width
        return left, self.y - self.size / 2, left + self.width, self.y + self.size / 2


@dataclass(frozen=True)
class Line:
    """A straight line."""

    x0: float
    y0: float
    x1: float
    y1: float
    ink: str = INK
    thick: float = 1.5


Mark: TypeAlias = Box | Label | Line


@dataclass(frozen=True)
class Span:
    """A piece of a line of text, and the colour behind it."""

    text: str
    fill: str | None = None


def plain(lines: Iterable[str]) -> tuple[tuple[Span, ...], ...]:
    """Lines without colours."""
    return tuple((Span(line),) for line in lines)
