"""The report of a kernel's machine code: figures of its main loop, the author's lines, as text or HTML."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from tilewright.inspect.isa.instructions import Body, IsaKind, IsaLine, ListingLoop
from tilewright.inspect.isa.reading import LOADS, Isa
from tilewright.ir.copies import is_bulk
from tilewright.ir.kernel import Kernel
from tilewright.ir.op import Op
from tilewright.ir.ops import Copy, For
from tilewright.symbolic.expr import product
from tilewright.targets.rules import EmittedText
from tilewright.targets.simt.banks import Conflicts

# ----------------------------------------------------------------
# Sources of instructions: operation, arrays, author's line.


_LOC = re.compile(r"^\s*\.loc\s+\d+\s+(\d+)\b(.*)$")
_PLACE = re.compile(r":(\d+):\d+")


@dataclass(frozen=True)
class InstructionSource:
    """The source of an instruction.

    Args:
        line: its line of the emitted text.
        op: its operation.
        tensors: the author's arrays that it accesses, or whose numbers it moves.
        says: the work of the operation, in words.
        place: the author's line, and the field of the schedule that made the operation, if any.
    """

    line: int
    op: Op
    tensors: tuple[str, ...]
    says: str
    place: str


def sources(listing: EmittedText, lines: Mapping[int, int]) -> dict[int, InstructionSource]:
    """Return the sources of instructions, as far as they are known.

    Args:
        listing: the emitted text, with the operation of each line.
        lines: the line of the text for each instruction, by any key.
    """
    text, held = listing.text.splitlines(), holdings(listing.kernel)
    names = [param.name for param in listing.kernel.tensors]
    first: dict[int, int] = {}
    for line, of in sorted(listing.lines.items()):
        first.setdefault(id(of), line)
    known: dict[int, InstructionSource] = {}
    found = {}
    for name, line in lines.items():
        if (op := listing.lines.get(line)) is None:
            continue
        if line not in known:
            touched = {value.buffer.name for value in (*op.read, *op.written)}
            arrays = touched & {*names} or frozenset().union(*(held.get(one, frozenset()) for one in touched))
            place = ""
            if op.location is not None:
                origin = op.location.origin
                place = str(op.location.frame) + ("" if origin is None else f" {origin.field}")
            # The comment at the beginning of the operation's text describes it, else the text.
            begins = text[first[id(op)] - 1].strip()
            says = begins.removeprefix("// ")
            if op.location is not None and says != begins:
                says = says.partition(": ")[2] or says
            if isinstance(op, Copy):
                says = says.removeprefix(f"{op.source} -> {op.target}")
                says = f"{op.source.buffer.name} -> {op.target.buffer.name}{says}"
            if isinstance(op, For):
                says = f"loop over {op.index.name}"
            known[line] = InstructionSource(line, op, tuple(n for n in names if n in arrays), says, place)
        found[name] = known[line]
    return found


def compiled_lines(listing: str) -> dict[int, int]:
    r"""Return the source line of each line of a compiler's listing.

    For an inlined function this is the line that calls the outermost function.

    Args:
        listing: a listing with directives ``.loc``, whose comments name the calls of inlined functions.

    Example:
        >>> compiled_lines(".loc 0 9 1 ; k.hip:9:1 @[ k.hip:48:2 ]\n s_nop 0\n .loc 0 0 0\n s_nop 1")
        {2: 48}
    """
    found, current = {}, 0
    for number, text in enumerate(listing.splitlines(), 1):
        if match := _LOC.match(text):
            places = _PLACE.findall(match[2])
            current = int(places[-1] if places else match[1])
        elif current:
            found[number] = current
    return found


def holdings(kernel: Kernel) -> dict[str, frozenset[str]]:
    """Return the names of the arrays whose numbers each buffer holds, also after arithmetic.

    Args:
        kernel: lowered.
    """
    arrays = {param.name: frozenset([param.name]) for param in kernel.tensors}
    held, before = dict(arrays), -1
    while sum(map(len, held.values())) != before:
        before = sum(map(len, held.values()))
        for op in kernel.walk():
            of = frozenset().union(*(held.get(value.buffer.name, frozenset()) for value in op.read))
            for value in (*op.written, *op.results):
                name = getattr(value, "buffer", value).name
                held[name] = arrays.get(name) or held.get(name, frozenset()) | of
    return held


# ---------------------------------------------------------------- the report


MEMORY = (
    *(IsaKind.GLOBAL_LOAD, IsaKind.GLOBAL_STORE, IsaKind.TO_SHARED),
    *(IsaKind.SHARED_LOAD, IsaKind.SHARED_STORE, IsaKind.STACK),
)
"""Kinds of instructions whose widths are reported."""

MAIN, LOADING = "the main loop", "the loop that loads for it"

COLUMNS = ("line", "instruction", "passes", "arrays", "what it does", "where it was written")


@dataclass(frozen=True)
class IsaReport:
    """A kernel's machine code, with the sources and bank conflicts of its instructions.

    Args:
        title: the kernel, its target and architecture.
        isa: its machine code.
        sources: the sources of instructions, by the line of the listing.
        conflicts: bank conflicts, by the line of the listing.
        counted: the way in which conflicts were counted or predicted, in words.
        notes: further remarks.
    """

    title: str
    isa: Isa
    sources: Mapping[int, InstructionSource] = field(default_factory=dict)
    conflicts: Mapping[int, Conflicts] = field(default_factory=dict)
    counted: str = ""
    notes: tuple[str, ...] = ()

    def tables(self) -> dict[str, list[tuple[str, ...]]]:
        """Return tables of figures by their names, each a list of rows."""
        loops, main = self.loops(), self.isa.main
        tables: dict[str, list[tuple[str, ...]]] = {}
        for name, loop in loops.items():
            rows = tables[f"a turn of {name}, {len(loop.lines)} instructions from line {loop.first}"] = []
            for kind, count in sorted(loop.mix.items(), key=lambda item: -item[1]):
                names = Counter(line.mnemonic for line in loop.of(kind)).most_common()
                told = [f"{times} {mnemonic}" for mnemonic, times in names[:4]] + ["…"] * (len(names) > 4)
                rows.append((kind.value, str(count), ", ".join(told)))
        ratios = [("cache invalidations for each barrier", f"{main.flushes_per_barrier:.3g}")]
        if main.of(IsaKind.SHARED_LOAD):
            shared = f"{main.matrix_per_shared_load:.3g}"
            ratios.insert(0, ("matrix instructions for each shared load", shared))
        if main.of(*LOADS):
            ratios.insert(0, ("matrix instructions for each global load", f"{main.matrix_per_load:.3g}"))
        both = Body(tuple(line for loop in loops.values() for line in loop.lines))
        tables |= {
            "accesses of a lane in a turn": list(_accesses(both, self.conflicts)),
            "boxes that are moved in a turn": list(_boxes(both, self.sources)),
            "ratios in a turn": [*ratios],
            "resources of the kernel": list(_resources(self.isa)),
        }
        return {name: rows for name, rows in tables.items() if rows}

    def loops(self) -> dict[str, ListingLoop]:
        """Return the loops that are listed: the main loop, and the loop of a role that loads for it."""
        loading = self.isa.loading
        return {MAIN: self.isa.main} | ({LOADING: loading} if loading else {})

    def met(self, *kinds: IsaKind) -> Conflicts:
        """Return the bank conflicts of all instructions of some kinds in the main loop."""
        lines = [line.line for line in self.isa.main.of(*kinds)]
        return sum((self.conflicts[line] for line in lines if line in self.conflicts), Conflicts())

    def rows(self, loop: ListingLoop | None = None) -> Iterator[tuple[IsaLine, str, tuple[str, ...]]]:
        """Yield the instructions of a turn: instruction, label before it, a cell for each column.

        Args:
            loop: the loop; default: the main loop.
        """
        for line in (loop or self.isa.main).turn:
            conflict, source = self.conflicts.get(line.line), self.sources.get(line.line)
            passes = f"{conflict.factor:.2f}" if conflict else ""
            told = (", ".join(source.tensors), source.says, source.place) if source else ("", "", "")
            yield line, self.isa.labels.get(line.line, ""), (str(line.line), line.text, passes, *told)

    def __str__(self) -> str:
        """The report as text."""
        parts = [self.title]
        for name, table in self.tables().items():
            parts.append("\n".join([name, *_aligned(table)]))
        parts.append("\n".join(self.remarks()))
        for name, loop in self.loops().items():
            found = list(self.rows(loop))
            cells = [COLUMNS, *(tuple(cell.replace("\t", " ") for cell in row) for _, _, row in found)]
            head, *texts = _aligned(cells, most=64)
            lines = [f"{name}, from where a turn begins", head]
            for (_, label, _), text in zip(found, texts, strict=True):
                lines += [f"  {label}:", text] if label else [text]
            parts.append("\n".join(lines))
        return "\n\n".join(part for part in parts if part)

    def remarks(self) -> list[str]:
        """Return the source of bank conflicts, and the notes."""
        return [f"bank conflicts: {self.counted}"] * bool(self.counted) + [f"note: {n}" for n in self.notes]


def _aligned(rows: Sequence[Sequence[str]], most: int = 200) -> list[str]:
    """Align rows in columns; cells of more than ``most`` characters are cut."""
    cut = [[cell if len(cell) <= most else cell[: most - 1] + "…" for cell in row] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*cut, strict=True)]
    return [
        "  " + "  ".join(f"{cell:<{wide}}" for cell, wide in zip(row, widths, strict=True)).rstrip()
        for row in cut
    ]


def _accesses(body: Body, conflicts: Mapping[int, Conflicts]) -> Iterator[tuple[str, ...]]:
    for kind in MEMORY:
        for size, count in sorted(body.widths(kind).items()):
            lines = [line.line for line in body.of(kind) if line.bytes == size]
            met = sum((conflicts[line] for line in lines if line in conflicts), Conflicts())
            if size:
                yield kind.value, f"{count} of {size} bytes", _met(met)
    matrix = [line.line for line in body.of(IsaKind.MATRIX) if line.line in conflicts]
    if matrix:
        met = sum((conflicts[line] for line in matrix), Conflicts())
        yield "operands of matrix instructions", "rows of 16 bytes of shared memory", _met(met)


def _met(met: Conflicts) -> str:
    return f"{met.factor:.2f} passes over the banks for each that is needed" if met.fewest else ""


def _boxes(body: Body, known: Mapping[int, InstructionSource]) -> Iterator[tuple[str, ...]]:
    """Yield the bytes of the tiles of bulk copies, which their instructions do not name."""
    for kind in MEMORY:
        found: Counter[tuple[str, str]] = Counter()
        for line in body.of(kind):
            source = known.get(line.line)
            if not line.bytes and source and isinstance(source.op, Copy) and is_bulk(source.op):
                tile = source.op.ends[1]
                moved = product(*tile.tensor.shape, tile.dtype.bytes)
                found[", ".join(source.tensors), str(moved)] += 1
        for (arrays, size), count in found.items():
            yield kind.value, f"{count} of {size} bytes", arrays


def _resources(isa: Isa) -> Iterator[tuple[str, ...]]:
    for name, value in isa.resources.items():
        if name != "warps_per_simd":
            yield name.replace("_", " "), str(value)
    if isa.limits:
        room = ", ".join(f"{warps} by {name.replace('_', ' ')}" for name, warps in isa.limits.items())
        limited = " and ".join(name.replace("_", " ") for name in isa.limited_by)
        fewest = min(isa.limits.values())
        yield "warps of a SIMD", f"{fewest}, limited by {limited}; there is room for {room}"


# ---------------------------------------------------------------- HTML: one page that loads nothing


_COLOURS = {
    IsaKind.MATRIX: "#d3f9d8",
    IsaKind.GLOBAL_LOAD: "#d0ebff",
    IsaKind.TO_SHARED: "#d0ebff",
    IsaKind.GLOBAL_STORE: "#d0ebff",
    IsaKind.SHARED_LOAD: "#fff3bf",
    IsaKind.SHARED_STORE: "#ffe8cc",
    IsaKind.BARRIER: "#ffd8d8",
    IsaKind.WAIT: "#f3d9fa",
    IsaKind.STACK: "#ffa8a8",
    IsaKind.LANE: "#ffa8a8",
    IsaKind.FLUSH: "#ffa8a8",
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
    """Return the page of a report."""
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
