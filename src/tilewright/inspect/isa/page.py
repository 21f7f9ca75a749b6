"""A report of machine code as one HTML page, which loads nothing from anywhere."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from tilewright.inspect.isa.instructions import Kind
from tilewright.inspect.isa.report import COLUMNS, IsaReport

_COLOURS = {
    Kind.MATRIX: "#d3f9d8",
    Kind.GLOBAL_LOAD: "#d0ebff",
    Kind.TO_SHARED: "#d0ebff",
    Kind.GLOBAL_STORE: "#d0ebff",
    Kind.SHARED_LOAD: "#fff3bf",
    Kind.SHARED_STORE: "#ffe8cc",
    Kind.BARRIER: "#ffd8d8",
    Kind.WAIT: "#f3d9fa",
    Kind.STACK: "#ffa8a8",
    Kind.LANE: "#ffa8a8",
    Kind.FLUSH: "#ffa8a8",
}
_STYLE = """
body { font: 15px/1.4 system-ui, sans-serif; color: #1f2328; background: #fff; margin: 2em; }
table { border-collapse: collapse; margin: 0.5em 0 1.5em; }
td, th { text-align: left; padding: 1px 12px 1px 4px; vertical-align: top; }
th { border-bottom: 1px solid #d0d7de; }
.listing td { font: 13px/1.35 ui-monospace, monospace; white-space: pre; }
.label td { color: #57606a; }
"""


def page(report: IsaReport) -> str:
    """The page of a report."""
    title = escape(report.title)
    parts = [f"<h1>{title}</h1>"]
    for name, rows in report.tables().items():
        parts += [f"<h2>{escape(name)}</h2>", "<table>", *(_row(row) for row in rows), "</table>"]
    parts += [f"<p>{escape(remark)}</p>" for remark in report.remarks()]
    for name, loop in report.loops().items():
        parts += [f"<h2>{escape(name)}, from where a turn begins</h2>", '<table class="listing">']
        parts += [_row(COLUMNS, "th")]
        for line, label, cells in report.rows(loop):
            if label:
                parts.append(f'<tr class="label"><td></td><td>{escape(label)}:</td></tr>')
            parts.append(_row(cells, colour=_COLOURS.get(line.kind, ""), about=line.kind.value))
        parts.append("</table>")
    head = f'<meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
    return "\n".join(["<!doctype html>", f"<html><head>{head}</head><body>", *parts, "</body></html>", ""])


def _row(cells: Iterable[str], tag: str = "td", colour: str = "", about: str = "") -> str:
    style = f' style="background:{colour}"' if colour else ""
    named = f' title="{escape(about)}"' if about else ""
    return f"<tr{style}{named}>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"
