"""Pictures, which notebooks show and which are written as SVG, PNG, PDF or text."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path

from tilewright.errors import LayoutError
from tilewright.inspect.draw.marks import Box, Label, Line, Mark, Span
from tilewright.inspect.draw.palette import PAPER, RULE
from tilewright.inspect.draw.raster import raster
from tilewright.runtime.outputs import output

MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, monospace"
SANS = "system-ui, -apple-system, Segoe UI, Helvetica, Arial, DejaVu Sans, sans-serif"

SUFFIXES = (".svg", ".png", ".pdf", ".txt")


@dataclass(frozen=True)
class Picture:
    """A picture; notebooks show it, `save` writes it.

    It lies on paper of its own, so that it reads the same on light and on dark pages.

    Args:
        title: what it shows.
        width: of the whole, in pixels.
        height: of the whole, in pixels.
        marks: what is drawn, the first at the bottom.
        lines: the same as lines of text.

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
    lines: tuple[tuple[Span, ...], ...] = field(repr=False, default=())

    @cached_property
    def svg(self) -> str:
        """The picture as SVG; the same picture is the same text."""
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
        """What notebooks show."""
        return self.svg

    def save(self, path: str | Path) -> Path:
        """Write the picture into a file whose suffix says how: ``.svg``, ``.png``, ``.pdf`` or ``.txt``.

        Raises:
            LayoutError: another suffix.
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
    """Check that a picture can be written into a file of this name.

    Raises:
        LayoutError: it cannot.
    """
    if path.suffix not in SUFFIXES:
        nearest = path.with_suffix(".svg") if path.name else path / "picture.svg"
        raise LayoutError(
            f"a picture cannot be written as {path.suffix or 'a file without suffix'!r}; nearest: "
            f"{nearest}; choose one of {', '.join(SUFFIXES)}"
        )


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _element(mark: Mark) -> str:
    match mark:
        case Box():
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
            # A third of the size below the middle is where letters stand in all usual fonts.
            return (
                f'<text x="{_number(mark.x)}" y="{_number(mark.y + mark.size * 0.35)}" '
                f'font-size="{_number(mark.size)}" text-anchor="{mark.anchor}" fill="{mark.ink}"{look}>'
                f"{escape(mark.text, quote=False)}</text>"
            )
