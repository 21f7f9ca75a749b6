"""Pictures as PNG and PDF, through matplotlib."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from tilewright.errors import ToolchainError
from tilewright.inspect.draw.marks import Box, Label, Line, Mark
from tilewright.inspect.draw.palette import PAPER, RULE

PIXELS_PER_INCH = 96
POINTS_PER_INCH = 72
SHARPNESS = 2
"""Pixels of a PNG per pixel of the picture."""

_ANCHORS = {"start": "left", "middle": "center", "end": "right"}


def raster(marks: Sequence[Mark], size: tuple[float, float], suffix: str) -> bytes:
    """Marks on paper of a size in pixels, in the format of a file with that suffix.

    Raises:
        ToolchainError: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
        from matplotlib.patches import Rectangle
    except ImportError:
        raise ToolchainError(
            f"{suffix} pictures need matplotlib: pip install 'tilewright[plot]'; .svg and .txt do not"
        ) from None
    width, height = size
    figure = Figure(figsize=(width / PIXELS_PER_INCH, height / PIXELS_PER_INCH))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    for order, mark in enumerate(marks):
        _add(axes, Rectangle, mark, order)
    # The same picture is the same file: no date.
    metadata = {"CreationDate": None} if suffix == ".pdf" else None
    made = io.BytesIO()
    with mpl.rc_context({"hatch.linewidth": 1.5}):
        figure.savefig(
            made, format=suffix[1:], dpi=SHARPNESS * PIXELS_PER_INCH, facecolor=PAPER, metadata=metadata
        )
    return made.getvalue()


def _add(axes: Any, rectangle: Any, mark: Mark, order: int) -> None:
    points = POINTS_PER_INCH / PIXELS_PER_INCH
    match mark:
        case Box():
            place = ((mark.x, mark.y), mark.width, mark.height)
            if mark.hatched:
                axes.add_patch(
                    rectangle(*place, facecolor=PAPER, edgecolor=RULE, hatch="////", lw=0, zorder=order)
                )
            fill = "none" if mark.hatched else mark.fill
            axes.add_patch(
                rectangle(*place, facecolor=fill, edgecolor=mark.edge, lw=mark.thick * points, zorder=order)
            )
        case Line():
            axes.plot(
                [mark.x0, mark.x1], [mark.y0, mark.y1], color=mark.ink, lw=mark.thick * points, zorder=order,
                solid_capstyle="butt",
            )  # fmt: skip
        case Label():
            axes.text(
                mark.x,
                mark.y + mark.size * 0.35,
                mark.text.replace("$", r"\$"),
                size=mark.size * points,
                ha=_ANCHORS[mark.anchor],
                va="baseline",
                color=mark.ink,
                weight="bold" if mark.bold else "normal",
                family="DejaVu Sans Mono" if mark.mono else "DejaVu Sans",
                zorder=order,
            )
