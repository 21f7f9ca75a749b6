"""What notebooks show of layouts, views and maps: a picture, drawn by a room that this one does not know."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Draw = Callable[[object], str | None]
DrawType = TypeVar("DrawType", bound=Draw)

_draw: list[Draw] = []


def shows(draw: DrawType) -> DrawType:
    """Make a function draw what notebooks show: SVG, or None where there is nothing to look at."""
    _draw[:] = [draw]
    return draw


class Shown:
    """Base of what notebooks show as a picture."""

    __slots__ = ()

    def _repr_svg_(self) -> str | None:
        """What notebooks show; None leaves them with the text."""
        return _draw[0](self) if _draw else None
