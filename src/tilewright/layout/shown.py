"""Pictures of layouts, views and maps in notebooks. A higher-level package registers the drawing function."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Draw = Callable[[object], str | None]
DrawType = TypeVar("DrawType", bound=Draw)

_draw: list[Draw] = []


def shows(draw: DrawType) -> DrawType:
    """Register the function that draws an object as SVG; it returns None if there is nothing to draw."""
    _draw[:] = [draw]
    return draw


class Shown:
    """Base class of objects that notebooks show as a picture."""

    __slots__ = ()

    def _repr_svg_(self) -> str | None:
        """Return SVG for a notebook, or None to show the text."""
        return _draw[0](self) if _draw else None
