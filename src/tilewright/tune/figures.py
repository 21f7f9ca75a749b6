"""Pictures of measurements, drawn by matplotlib where it is installed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilewright.errors import ToolchainError
from tilewright.runtime.outputs import check_output, output
from tilewright.tune.statistics import Interval

FORMATS = ("png", "svg", "pdf")


def new_figure(inches: tuple[float, float]) -> Any:
    """An empty figure.

    Args:
        inches: width and height.

    Raises:
        ToolchainError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ToolchainError(
            "pictures are drawn by matplotlib; install it with `pip install 'tilewright[plot]'`"
        ) from None
    return Figure(figsize=inches, layout="constrained")


def save(figure: Any, path: Path) -> None:
    """Write a figure; the same figure is the same file.

    Raises:
        ToolchainError: no picture is written in the format of such a file.
        OutputError: the file cannot be written.
    """
    from matplotlib import rc_context

    kind = _format(path)
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
    with output(path) as file, rc_context({"svg.hashsalt": "tilewright"}):
        figure.savefig(file, format=kind, dpi=150, metadata=metadata)


def check_drawable(path: Path) -> None:
    """Find out before the work whether its picture can be drawn.

    Raises:
        ToolchainError: as `new_figure` and `save`.
        OutputError: the file cannot be written.
    """
    new_figure((1, 1))
    _format(path)
    check_output(path)


def _format(path: Path) -> str:
    kind = path.suffix.lstrip(".").lower()
    if kind not in FORMATS:
        raise ToolchainError(f"no picture of format {path.suffix!r}; nearest: .png, .svg or .pdf")
    return kind


def draw_intervals(
    path: Path, found: Mapping[str, Interval], *, about: str, title: str, mark: float | None = None
) -> None:
    """Write a picture of medians with their intervals, a line for each.

    Args:
        path: .png, .svg or .pdf.
        found: the intervals, by name, from top to bottom.
        about: what they are, below the axis.
        title: above the picture.
        mark: where a line stands that they are compared with; None: nowhere.

    Raises:
        ToolchainError: as `new_figure` and `save`.
        OutputError: the file cannot be written.
    """
    figure = new_figure((8, 1.2 + 0.24 * len(found)))
    axes = figure.add_subplot()
    medians = [one.median for one in found.values()]
    off = [
        [one.median - one.low for one in found.values()],
        [one.high - one.median for one in found.values()],
    ]
    axes.errorbar(medians, range(len(found)), xerr=off, fmt="o", markersize=4, capsize=2)
    axes.set_yticks(range(len(found)), [*found], fontsize=8)
    axes.invert_yaxis()
    if mark is not None:
        axes.axvline(mark, color="black", linewidth=0.8)
    axes.set_xlabel(about)
    axes.set_title(title, fontsize=10)
    save(figure, path)
