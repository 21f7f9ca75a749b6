"""Pictures: colours and marks, written as SVG, PNG, PDF or text, and shown by notebooks."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any, Literal, TypeAlias

from tilewright.errors import LayoutError, ToolchainError
from tilewright.runtime.outputs import output

# ---------------------------------------------------------------- colours
#
# Distinct for any colour vision, and bright enough for dark text.


PAPER = "#ffffff"
INK = "#1f2328"
FAINT = "#59636e"
RULE = "#d1d9e0"
LINE = "#8c959f"

HUES = ("#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#f0e442", "#0072b2", "#d55e00", "#8c8c8c")
"""Okabe and Ito's palette for readers with any colour vision, its black as grey.

Source: M. Okabe, K. Ito, "Color Universal Design", 2008.
"""

TINTS = (0.68, 0.52, 0.36, 0.22)
"""Share of the hue in each of the four tints."""

_SCALE = ("#f4fae4", "#c5e6c3", "#7fcdbb", "#58a9cf")


def mixed(colour: str, other: str, share: float) -> str:
    """Mix ``share`` of one colour with the rest of another.

    Example:
        >>> mixed("#000000", "#ffffff", 0.25)
        '#bfbfbf'
    """
    pairs = zip(_channels(colour), _channels(other), strict=True)
    return "#" + "".join(f"{round(share * a + (1 - share) * b):02x}" for a, b in pairs)


def of_thread(thread: int) -> str:
    """Return the colour of a thread: four neighbours share a hue, and 32 threads have different colours."""
    return mixed(HUES[thread // 4 % len(HUES)], PAPER, TINTS[thread % 4])


def of_fraction(fraction: float) -> str:
    """Return the colour of a number between 0 and 1: the larger, the darker."""
    place = min(max(fraction, 0.0), 1.0) * (len(_SCALE) - 1)
    at = min(int(place), len(_SCALE) - 2)
    return mixed(_SCALE[at + 1], _SCALE[at], place - at)


def _channels(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


# ---------------------------------------------------------------- marks


# Of the font's size. All usual monospaced fonts have this width; the other is a generous mean.
MONO_WIDTH = 0.602
SANS_WIDTH = 0.62
BOLD_WIDTH = 0.68


@dataclass(frozen=True)
class BoxMark:
    """A rectangle; ``hatched`` if no element exists; ``note`` is its tooltip."""

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
        """Estimate of its width, rather too large than too small."""
        each = MONO_WIDTH if self.mono else BOLD_WIDTH if self.bold else SANS_WIDTH
        return len(self.text) * self.size * each

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


Mark: TypeAlias = BoxMark | Label | Line


@dataclass(frozen=True)
class TextSpan:
    """A piece of a line of text, and its background."""

    text: str
    fill: str | None = None


def plain(lines: Iterable[str]) -> tuple[tuple[TextSpan, ...], ...]:
    """Return lines without colours."""
    return tuple((TextSpan(line),) for line in lines)


# ---------------------------------------------------------------- PNG and PDF, through matplotlib


PIXELS_PER_INCH = 96
POINTS_PER_INCH = 72
SHARPNESS = 2
"""Pixels of a PNG per pixel of the picture."""

_ANCHORS = {"start": "left", "middle": "center", "end": "right"}


def raster(marks: Sequence[Mark], size: tuple[float, float], suffix: str) -> bytes:
    """Render marks on paper of a size in pixels, in the format of a suffix.

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
    # No date, so that equal pictures give equal files.
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
        case BoxMark():
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


# ---------------------------------------------------------------- pictures


MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, monospace"
SANS = "system-ui, -apple-system, Segoe UI, Helvetica, Arial, DejaVu Sans, sans-serif"

SUFFIXES = (".svg", ".png", ".pdf", ".txt")


@dataclass(frozen=True)
class Picture:
    """A picture; notebooks show it, `save` writes it.

    It has its own background, so that it looks the same on light and on dark pages.

    Args:
        title: the title.
        width: width of the picture, in pixels.
        height: height of the picture, in pixels.
        marks: the drawing, the first mark at the bottom.
        lines: the picture as lines of text.

    Example:
        >>> from tilewright.inspect.draw import draw_layout
        >>> from tilewright.layout.layout import Layout
        >>> picture = draw_layout(Layout((2, 4), (4, 1)))
        >>> print(picture.text)
        Layout (2,4):(4,1)
        (i0, i1) -> offset, 8 elements in the buffer
        <BLANKLINE>
           0  1  2  3
        0  0  1  2  3
        1  4  5  6  7
        >>> picture.svg.startswith("<svg ")
        True
    """

    title: str
    width: float
    height: float
    marks: tuple[Mark, ...] = field(repr=False)
    lines: tuple[tuple[TextSpan, ...], ...] = field(repr=False, default=())

    @cached_property
    def svg(self) -> str:
        """The picture as SVG; equal pictures give equal text."""
        width, height = _number(self.width), _number(self.height)
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="{MONO}" role="img">'
        )
        hatch = (
            '<defs><pattern id="tilewright-nothing" width="6" height="6" patternUnits="userSpaceOnUse" '
            f'patternTransform="rotate(45)"><rect width="6" height="6" fill="{PAPER}"/>'
            f'<line x1="0" y1="0" x2="0" y2="6" stroke="{RULE}" stroke-width="2"/></pattern></defs>'
        )
        paper = (
            f'<rect x="0.5" y="0.5" width="{_number(self.width - 1)}" height="{_number(self.height - 1)}" '
            f'rx="6" fill="{PAPER}" stroke="{RULE}"/>'
        )
        title = f"<title>{escape(self.title, quote=False)}</title>"
        return "\n".join([head, title, hatch, paper, *map(_element, self.marks), "</svg>\n"])

    @property
    def text(self) -> str:
        """The picture as plain text."""
        return "\n".join("".join(span.text for span in line).rstrip() for line in self.lines)

    def _repr_svg_(self) -> str:
        """Return the picture for notebooks."""
        return self.svg

    def save(self, path: str | Path) -> Path:
        """Write the picture to a file, in the format of its suffix: ``.svg``, ``.png``, ``.pdf``, ``.txt``.

        Raises:
            LayoutError: the file has another suffix.
            OutputError: the file cannot be written.
            ToolchainError: PNG or PDF, and matplotlib is not installed.
        """
        target = Path(path)
        check_suffix(target)
        if target.suffix == ".svg":
            content = self.svg.encode()
        elif target.suffix == ".txt":
            content = f"{self.text}\n".encode()
        else:
            content = raster(self.marks, (self.width, self.height), target.suffix)
        with output(target) as file:
            file.write(content)
        return target


def check_suffix(path: Path) -> None:
    """Check that a picture can be written in the format of a file.

    Raises:
        LayoutError: the suffix is unknown.
    """
    if path.suffix not in SUFFIXES:
        nearest = path.with_suffix(".svg") if path.name else path / "picture.svg"
        near = f"nearest: {nearest}; choose one of {', '.join(SUFFIXES)}"
        text = f"a picture cannot be written as {path.suffix or 'a file without suffix'!r}; {near}"
        raise LayoutError(text)


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _element(mark: Mark) -> str:
    match mark:
        case BoxMark():
            fill = "url(#tilewright-nothing)" if mark.hatched else mark.fill
            return (
                f'<rect x="{_number(mark.x)}" y="{_number(mark.y)}" width="{_number(mark.width)}" '
                f'height="{_number(mark.height)}" fill="{fill}" stroke="{mark.edge}" '
                f'stroke-width="{_number(mark.thick)}"'
                + (f"><title>{escape(mark.note, quote=False)}</title></rect>" if mark.note else "/>")
            )
        case Line():
            return (
                f'<line x1="{_number(mark.x0)}" y1="{_number(mark.y0)}" x2="{_number(mark.x1)}" '
                f'y2="{_number(mark.y1)}" stroke="{mark.ink}" stroke-width="{_number(mark.thick)}"/>'
            )
        case Label():
            look = "" if mark.mono else f' font-family="{SANS}"'
            look += ' font-weight="600"' if mark.bold else ""
            # The baseline of all usual fonts lies a third of the size below the middle.
            return (
                f'<text x="{_number(mark.x)}" y="{_number(mark.y + mark.size * 0.35)}" '
                f'font-size="{_number(mark.size)}" text-anchor="{mark.anchor}" fill="{mark.ink}"{look}>'
                f"{escape(mark.text, quote=False)}</text>"
            )
