"""What notebooks show in place of a layout, a view or a map."""

from __future__ import annotations

from tilewright.errors import LayoutError
from tilewright.inspect.draw.layouts import draw_layout
from tilewright.inspect.draw.maps import draw_distribution
from tilewright.layout.layout import Layout
from tilewright.threads.distribution import Distribution
from tilewright.views.view import View


def svg_of(what: object) -> str | None:
    """The picture as SVG; None of what is symbolic, too large to look at, or nothing that is drawn.

    Example:
        >>> str(svg_of(Layout((2, 2)))).startswith("<svg "), svg_of(Layout((4096, 4096)))
        (True, None)
    """
    try:
        match what:
            case Layout() | View():
                return draw_layout(what).svg
            case Distribution():
                return draw_distribution(what).svg
    except LayoutError:
        pass
    return None
