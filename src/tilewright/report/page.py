"""Reports: the page, one HTML text that loads nothing, laid out from the facts; reports from Python."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from html import escape
from math import prod
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

from tilewright.argument_checks import is_number, legal
from tilewright.calls import launches
from tilewright.errors import LaunchError, shown
from tilewright.report.facts import KernelFacts, runs_here
from tilewright.runtime.arrays import described
from tilewright.runtime.backends import backend_for
from tilewright.runtime.binding import arrays_of, bind, integer, number
from tilewright.runtime.gpu_memory import device_put
from tilewright.runtime.kernel import Bound, Kernel
from tilewright.runtime.outputs import output
from tilewright.runtime.specimens import Specimen, in_order, like, with_arrays
from tilewright.targets.target import CPU, REFERENCE, target_named
from tilewright.tune.gemm import OperationLaunch
from tilewright.tune.subject import TuningSubject, by_name

TEMPLATE = Path(__file__).with_name("page.html")

SECTIONS = {
    "flow": "Graph",
    "schedule": "Schedule",
    "passes": "Passes",
    "layouts": "Who holds what",
    "timeline": "Pipeline",
    "accesses": "Accesses",
    "resources": "Resources",
    "machine_code": "Machine code",
    "check": "Checker",
    "time": "Time",
    "source": "Source",
}
"""The sections of a page after the author's lines, with their titles."""

_WORD = re.compile(r"[A-Za-z_]\w*")
_KINDS = {
    "matrix": "matrix",
    "barrier": "wait",
    "wait": "wait",
    "stack": "bad",
    "cache invalidation": "bad",
}

Record = Mapping[str, Any]


def page_of(record: Record) -> str:
    """Return the page of a report.

    Args:
        record: the facts, as `KernelFacts.record` returns them.
    """
    return _Page(record).text()


class _Page:
    def __init__(self, record: Record) -> None:
        self.record = record
        self.hues = {name: at % 8 for at, name in enumerate(record["arrays"])}
        self.names: dict[str, list[str]] = dict(record["names"])
        for node in record["flow"].get("nodes", ()):
            for name in node["names"]:
                self.names.setdefault(name, [])
        self.maps: list[dict[str, Any]] = []

    def text(self) -> str:
        """Return the whole page."""
        record = self.record
        on = f"{record['target']} {record['arch']}"
        arrays = ", ".join(
            f"{self.marked(name)} {one['dtype']}[{' × '.join(map(str, one['shape']))}]"
            for name, one in record["arrays"].items()
        )
        numbers = "".join(f", {escape(name)} = {escape(one)}" for name, one in record["numbers"].items())
        parts = [
            f'<header><h1>{escape(record["kernel"])} <span class="on">on {escape(on)}</span></h1>',
            *(f"<p>{escape(record[key])}</p>" for key in ("about", "note") if record[key]),
            f"<p><code>{arrays}{numbers}</code></p></header>",
            '<nav aria-label="sections">',
            *(f'<a href="#{name}">{title}</a>' for name, title in SECTIONS.items()),
            '<button id="theme" type="button">light or dark</button></nav>',
            '<div class="page"><aside><section id="lines"><h2>The author\'s lines</h2>',
            *self.lines(),
            "</section></aside><main>",
        ]
        for name, title in SECTIONS.items():
            section = record[name]
            parts.append(f'<section id="{name}"><h2>{title}</h2>')
            if isinstance(section, Mapping) and "missing" in section:
                parts.append(f'<p class="missing">{escape(section["missing"])}</p>')
            else:
                parts += getattr(self, name)(section)
            parts.append("</section>")
        parts.append("</main></div>")
        maps = json.dumps(self.maps, separators=(",", ":")).replace("<", "\\u003c")
        page = TEMPLATE.read_text(encoding="utf-8")
        title = escape(f"{record['kernel']} on {on}")
        page = page.replace("@@TITLE@@", title).replace("@@MAPS@@", maps)
        return page.replace("@@BODY@@", "\n".join(part for part in parts if part))

    # ------------------------------------------------------------ text with marks

    def marked(self, text: str) -> str:
        """Return a line as HTML, with marks at the names of arrays and values."""
        found, end = [], 0
        for match in _WORD.finditer(text):
            word = match[0]
            arrays = self.names.get(word)
            if arrays is None:
                continue
            found.append(escape(text[end : match.start()], quote=False))
            hue = self.hues.get(arrays[0]) if len(arrays) == 1 else self.hues.get(word)
            look = "t" if hue is None else f"t c{hue}"
            of = " ".join(dict.fromkeys([word, *arrays]))
            found.append(f'<span class="{look}" data-n="{of}">{word}</span>')
            end = match.end()
        return "".join([*found, escape(text[end:], quote=False)])

    def code(self, lines: Iterable[Record], numbered: bool = False) -> str:
        """Return lines of code: each has ``text``, ``at``, and perhaps ``by`` and ``number``."""
        rows = []
        for line in lines:
            number = f'<span class="no">{line["number"]}</span>' if numbered else ""
            by = f'<span class="by">{escape(line["by"], quote=False)}</span>' if line.get("by") else ""
            place = f' data-l="{escape(line["at"])}"' if line["at"] else ""
            rows.append(f'<span class="ln"{place}>{number}{self.marked(line["text"])}{by}</span>')
        return f'<div class="code" tabindex="0">{"".join(rows)}</div>'

    def changed(self, lines: Iterable[str]) -> str:
        """Return the lines of a difference."""
        rows = []
        for line in lines:
            look = {"+": " add", "-": " del", "@": " gap"}.get(line[:1], "")
            rows.append(f'<span class="ln{look}">{self.marked(line)}</span>')
        return f'<div class="code" tabindex="0">{"".join(rows)}</div>'

    # ------------------------------------------------------------ sections

    def lines(self) -> Iterator[str]:
        """Yield the author's lines."""
        section = self.record["lines"]
        if "missing" in section:
            yield f'<p class="missing">{escape(section["missing"])}</p>'
            return
        file = escape(section["file"])
        if section["of_the_library"]:
            file = f"The library wrote the kernel of this operation, in <code>{file}</code>"
        yield f'<p class="about">{file}. Point at a line or a name: see it everywhere.</p>'
        yield self.code(section["lines"], numbered=True)

    def flow(self, section: Record) -> Iterator[str]:
        """Yield the graph and the text of the flow."""
        yield f'<div class="wide">{section["svg"]}</div>'
        yield "<details><summary><b>The flow as text</b></summary>"
        yield self.code(section["text"])
        yield "</details>"

    def schedule(self, section: Record) -> Iterator[str]:
        """Yield the schedule, why it was chosen, and the next best ones."""
        fields = "".join(
            f"<code>{escape(name)}={escape(text)}</code>" for name, text in section["fields"].items()
        )
        yield f'<div class="fields">{fields}</div>'
        rule = section["candidates"][0]["rule"]
        why = f"{section['how']}{f'; rule: {rule}' if rule else ''}"
        yield (
            f'<p class="about">Chosen because {escape(why)}. {section["legal"]} proposals are legal. '
            f"Class of the problem: <code>{escape(section['class'])}</code>.</p>"
        )
        if (row := section["measured_row"]) is not None:
            rows = [[name, str(value)] for name, value in row.items()]
            yield _table(["measured row", ""], rows)
        candidates = section["candidates"]
        if candidates[0]["parts_us"]:
            yield from self._parts(candidates)
        elif known := [one for one in candidates if one["estimate"] is not None]:
            least = known[0]["estimate"] or 1.0
            rows = [[one["name"], f"{one['estimate'] / least:.3f}"] for one in known]
            yield _table(["", "estimated time, relative to the first row"], rows)
        yield f'<p class="about">Constants of the estimate: {escape(section["constants"])}.</p>'
        times = [one["total_us"] or one["estimate"] for one in candidates]
        if None not in times and min(times) < times[0]:
            yield (
                '<p class="about">The choice does not have the smallest estimate: the rules propose '
                "schedules in an order of their own. <code>tilewright tune</code> measures all of them.</p>"
            )
        rows = [[one["name"], one["schedule"], one["rule"], one["limit"]] for one in candidates]
        yield _table(["", "schedule", "rule", "limited by"], rows)

    def _parts(self, candidates: Sequence[Record]) -> Iterator[str]:
        longest = max(one["total_us"] for one in candidates)
        yield '<div class="wide"><table><tr><th>part of the estimate, µs</th>'
        yield "".join(f"<th>{escape(one['name'])}</th>" for one in candidates) + "</tr>"
        rows = [(name, [one["parts_us"][name] for one in candidates]) for name in candidates[0]["parts_us"]]
        rows += [
            ("main loop", [one["main_loop_us"] for one in candidates]),
            ("total", [one["total_us"] for one in candidates]),
        ]
        for name, values in rows:
            look = ' class="total"' if name in ("main loop", "total") else ""
            cells = "".join(
                f'<td class="num{" other" * (at > 0)}" style="background-size:{100 * us / longest:.1f}% 70%">'
                f"{us:.2f}</td>"
                for at, us in enumerate(values)
            )
            yield f"<tr{look}><td>{escape(name.replace('_', ' '))}</td>{cells}</tr>"
        yield "</table></div>"
        yield (
            '<p class="about">Multiplication, shared memory, latency and memory overlap, so that the parts '
            "do not add up to the total.</p>"
        )

    def passes(self, section: Sequence[Record]) -> Iterator[str]:
        """Yield the kernel after each pass: the first and the last whole, the others as differences."""
        yield (
            '<p class="about">The explicit kernel. On the right of a line stands the field of the schedule '
            "that made it.</p>"
        )
        for at, stage in enumerate(section):
            more = sum(line.startswith("+") for line in stage["difference"])
            less = sum(line.startswith("-") for line in stage["difference"])
            count = (
                f'<span class="good">+{more}</span> <span class="bad">−{less}</span>'
                if more or less
                else f"{len(stage['lines'])} lines"
                if not at
                else '<span class="same">no change</span>'
            )
            is_open = " open" if not at else ""
            name, about = escape(stage["name"]), escape(stage["about"])
            yield f'<details{is_open}><summary><span class="count">{count}</span>'
            yield f"<b>{name}</b> {about}</summary>"
            if stage["notes"]:
                yield f"<ul>{''.join(f'<li>{escape(note)}</li>' for note in stage['notes'])}</ul>"
            if not at:
                yield self.code(stage["lines"])
            elif more or less:
                yield self.changed(stage["difference"])
            yield "</details>"
        yield f"<details><summary><b>After all passes</b> {len(section[-1]['lines'])} lines</summary>"
        yield self.code(section[-1]["lines"])
        yield "</details>"

    def layouts(self, section: Record) -> Iterator[str]:
        """Yield the tensors in shared memory and the fragments."""
        if section["shared"]:
            yield "<h3>Shared memory</h3>"
            yield '<p class="about">A colour for each bank. Point at an element to see its bank.</p>'
            yield '<div class="maps">'
            for one in section["shared"]:
                extents, tile = (" × ".join(map(str, one.get(key, ()))) for key in ("shape", "tile"))
                first = f"; the first {tile}" if tile and tile != extents else ""
                about = f"{extents} {one['dtype']}, {one['bytes']:,} bytes{first}"
                yield from self._map([one["name"]], about, one, one.get("tile", []), one["view"])
            yield "</div>"
        if section["fragments"]:
            yield "<h3>Registers</h3>"
            yield '<p class="about">A colour for each thread. Point at an element to see its thread.</p>'
            yield '<div class="maps">'
            for one in section["fragments"]:
                extents = " × ".join(map(str, one["shape"]))
                about = f"{extents} on {one['threads']} threads, {one['values']} values each"
                yield from self._map(one["names"], about, one, one["shape"], "")
            yield "</div>"
        if not section["shared"] and not section["fragments"]:
            yield '<p class="missing">The kernel has neither shared memory nor fragments.</p>'

    def _map(
        self, names: Sequence[str], about: str, one: Record, shape: Sequence[int], view: str
    ) -> Iterator[str]:
        said = ", ".join(self.marked(name) for name in names[:8]) + (" …" if len(names) > 8 else "")
        title = f"<p><b>{said}</b>: {escape(about)}</p>"
        if "missing" in one:
            yield f'<div class="map">{title}<p class="missing">{escape(one["missing"])}</p></div>'
            return
        rows, columns = prod(shape[:-1]), shape[-1] if shape else 1
        made: dict[str, Any] = {"rows": rows, "columns": columns, "hint": view}
        if "offsets" in one:
            made |= {"kind": "shared", "offsets": one["offsets"], "bytes": one["element_bytes"]}
        else:
            made |= {"kind": "held", "thread": one["thread"], "value": one["value"], "lanes": one["lanes"]}
        yield (
            f'<div class="map" id="map{len(self.maps)}">{title}<canvas role="img" '
            f'aria-label="{escape(about)}"></canvas><p class="said">{escape(view)}</p></div>'
        )
        self.maps.append(made)

    def timeline(self, section: Record) -> Iterator[str]:
        """Yield the picture of the pipeline."""
        yield f'<p class="about">{escape(section["about"])}.</p>'
        yield f'<div class="drawn">{section["svg"]}</div>'

    def accesses(self, section: Record) -> Iterator[str]:
        """Yield the accesses of each copy."""
        yield f'<p class="about">Each copy and its accesses; {escape(section["about"])}.</p>'
        head = ("from", "to", "access", "passes over the banks", "sectors per needed sector", "line")
        yield '<div class="wide"><table><tr>' + "".join(f"<th>{one}</th>" for one in head) + "</tr>"
        for one in section["copies"]:
            wide = "" if one["elems"] is None else f"{one['elems']} elements, {one['bytes']} bytes"
            kind = "in the background" if one["asynchronous"] else ""
            said = "; ".join(filter(None, [wide, kind, one["how"], "at once" if one["at_once"] else ""]))
            if one["matrices"]:
                said = f"{one['matrices']} matrices; {said}"
            cells = [self.marked(one["source"]), self.marked(one["target"]), escape(said)]
            cells += ["" if one[key] is None else f"{one[key]:.2f}" for key in ("passes", "sectors")]
            cells.append(escape(one["line"]))
            place = f' data-l="{escape(one["at"])}"' if one["at"] else ""
            yield f"<tr{place}>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
        yield "</table></div>"

    def resources(self, section: Record) -> Iterator[str]:
        """Yield registers, shared memory, spills and occupancy."""
        yield from _tiles(section["rows"])
        if section["occupancy"]:
            yield "<h3>Occupancy</h3>"
            yield from _tiles(section["occupancy"])
        if section["notes"]:
            yield f"<ul>{''.join(f'<li>{escape(note)}</li>' for note in section['notes'])}</ul>"

    def machine_code(self, section: Record) -> Iterator[str]:
        """Yield the machine code of the main loop, by line."""
        yield f'<p class="about">{escape(section["title"])}. {escape(" ".join(section["remarks"]))}</p>'
        if "lines" in section:
            count = {"instructions": section["instructions"], "with vectors": section["vector_instructions"]}
            yield from _tiles(count)
            yield self.code({"text": line, "at": ""} for line in section["lines"])
            return
        for name, rows in section["tables"].items():
            yield f"<h3>{escape(name)}</h3>"
            yield _table((), rows)
        for name, rows in section["loops"].items():
            yield f"<details open><summary><b>{escape(name)}</b></summary>"
            yield '<div class="code" tabindex="0"><table class="isa"><tr>'
            yield "".join(f"<th>{escape(one)}</th>" for one in section["columns"]) + "</tr>"
            for row in rows:
                if row["label"]:
                    yield f'<tr class="label"><td></td><td colspan="5">{escape(row["label"])}:</td></tr>'
                look = _KINDS.get(
                    row["kind"], "memory" if "load" in row["kind"] or "store" in row["kind"] else ""
                )
                marks = f' data-l="{escape(row["at"])}"' if row["at"] else ""
                cells = [escape(one, quote=False) for one in row["cells"]]
                cells[3] = self.marked(row["cells"][3])
                yield f'<tr class="{look}"{marks}>' + "".join(f"<td>{one}</td>" for one in cells) + "</tr>"
            yield "</table></div></details>"

    def check(self, section: Record) -> Iterator[str]:
        """Yield the verdict of the checker, and what it covered."""
        verdict = "clean" if section["clean"] else f"{len(section['findings'])} findings"
        look = "good" if section["clean"] else "bad"
        yield f'<p><b class="{look}">{verdict}</b> at {len(section["sizes"])} sizes in {section["seconds"]} s'
        yield f" (limit {section['limit_seconds']} s)</p>"
        if section["schedule"]:
            yield f'<p class="about">Under <code>{escape(section["schedule"])}</code>.</p>'
        rows = [
            [_arrays(one), one["why"], str(one["blocks"]), str(one["findings"])] for one in section["sizes"]
        ]
        rows += [[_arrays(one), one["why"], "", f"refused: {one['reason']}"] for one in section["refused"]]
        rows += [[_arrays(one), one["why"], "", "not tried, as time was up"] for one in section["left_out"]]
        yield _table(["arrays", "why", "blocks", "findings"], rows)
        for finding in section["findings"]:
            yield f'<p class="missing">{escape(finding)}</p>'

    def time(self, section: Record) -> Iterator[str]:
        """Yield the predicted and the measured time."""
        tiles = {}
        for name in ("predicted", "measured"):
            us = section[f"{name}_us"]
            if us is not None:
                tiles[f"{name}, µs"] = f"{us:.4g}"
                if section["flops"]:
                    tiles[f"{name}, TFlops"] = f"{section['flops'] / us / 1e6:.4g}"
                tiles[f"{name}, GB/s of the arrays"] = f"{section['bytes'] / us / 1e3:.4g}"
        yield from _tiles(tiles)
        predicted, measured = escape(section["predicted"]), escape(section["measured"])
        yield f'<p class="about">Predicted: {predicted}. Measured: {measured}.</p>'

    def source(self, section: Record) -> Iterator[str]:
        """Yield the generated text."""
        if section["notes"]:
            yield f"<ul>{''.join(f'<li>{escape(note)}</li>' for note in section['notes'])}</ul>"
        yield self.code(section["lines"])


def _arrays(row: Record) -> str:
    shapes = ((name, " × ".join(map(str, shape))) for name, shape in row["arrays"].items())
    return ", ".join(f"{name} {shape}" for name, shape in shapes)


def _tiles(rows: Mapping[str, Any]) -> Iterator[str]:
    yield '<div class="tiles">'
    for name, value in rows.items():
        shown = f"{value:,}" if isinstance(value, int) else str(value)
        bad = ' class="bad"' if "spill" in name and value else ""
        yield f'<div class="tile"><b{bad}>{escape(shown)}</b><span>{escape(name)}</span></div>'
    yield "</div>"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    top = f"<tr>{''.join(f'<th>{escape(one)}</th>' for one in head)}</tr>" if head else ""
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="wide"><table>{top}{body}</table></div>'


# ---------------------------------------------------------------- reports made in Python

PLANNED = "The operation was planned for arrays of this machine; its kernel is scheduled for the target."
"""The remark of a report on an operation for a target that this machine does not have."""


def is_absent(target: str, arch: str | None) -> bool:
    """Return whether this machine cannot run a target.  A call is then planned on the processor.

    Args:
        target: the target.
        arch: the architecture; None: the target's own.
    """
    return target != REFERENCE.name and not runs_here(target, arch)


def rescheduled(subject: OperationLaunch, target: str) -> OperationLaunch:
    """Return the kernel of a call that was planned on this machine, to be scheduled for another target.

    Args:
        subject: the kernel of a call on the processor.
        target: the target.
    """
    kernel = Bound(subject.kernel.program, subject.kernel.constants)
    text = subject.text.removesuffix(f" on {CPU.name}") + f" on {target}"
    return replace(subject, kernel=kernel, target=target, text=text)


Facts: TypeAlias = dict[str, Any]
"""The sections of a report, in JSON's types."""

legal(
    "Facts",
    "the facts of a report, as tw.kernel_report collects them",
    "facts",
    lambda value: isinstance(value, dict) and {"report", "kernel", "target", "arch"} <= value.keys(),
)


@launches.made("tw.kernel_report(kernel, *arguments) makes one")
class KernelReport:
    """A report on a kernel, as data and as a page; made by `kernel_report`.

    Attributes:
        facts: the sections of the report, in JSON's types.
    """

    def __init__(self, facts: Facts) -> None:
        self.facts = facts

    @cached_property
    def page(self) -> str:
        """The page: one HTML text that loads nothing."""
        return page_of(self.facts)

    @property
    def missing(self) -> dict[str, str]:
        """The reason for each section that this machine could not make."""
        sections = {name: one for name, one in self.facts.items() if isinstance(one, dict)}
        return {name: one["missing"] for name, one in sections.items() if "missing" in one}

    def save(self, path: str | PathLike[str]) -> None:
        """Write the page to a file.

        Args:
            path: the file, which is replaced in one step.

        Raises:
            LaunchError: ``path`` is neither a string nor a path.
            OutputError: the file cannot be written; an earlier one stays as it was.
        """
        if not isinstance(path, str | PathLike):
            raise LaunchError(f"path={shown(path)}", "'report.html'")
        with output(Path(path)) as file:
            file.write(self.page.encode())

    def _repr_html_(self) -> str:
        """Return the page as notebooks show it."""
        return f'<iframe srcdoc="{escape(self.page)}" style="width: 100%; height: 80vh"></iframe>'

    def __repr__(self) -> str:
        return f"<report on {self.facts['kernel']}, for {self.facts['target']} {self.facts['arch']}>"


@launches
def kernel_report(
    kernel: Any,
    *arguments: Any,
    target: str | None = None,
    arch: str | None = None,
    check_seconds: float = 4.0,
    measure: bool = True,
    **named: Any,
) -> KernelReport:
    """Collect everything that the library knows about a kernel, as ``tilewright report`` does.

    The page has the author's lines, the graph, the schedule and the reason for it, the kernel after each
    pass, the thread that holds each element, the pipeline, machine code, the checker's verdict, and the time.

    Args:
        kernel: a kernel, the result of `Kernel.bind`, or an operation such as `tw.matmul`, whose last kernel
            is shown.
        arguments: the arguments of a launch or of a call.  A `tw.like` value stands for an array.
        target: the target that the kernel is compiled for; default: where the arrays lie, or the processor.
        arch: the architecture, e.g. ``"sm_90a"``; default: that of this machine.  No GPU is needed.
        check_seconds: the checker begins no further size after this time, in seconds; 0: it does not run.
        measure: whether the kernel is timed if the target runs on this machine.
        named: arguments and constants by name.  If a constant has the name of an argument above, bind it by
            `Kernel.bind` first.

    Returns:
        The report: ``facts`` are its sections in JSON's types, ``page`` is the HTML text, ``save(path)``
        writes it, ``missing`` has the reason for each section that this machine cannot make.  Notebooks show
        the page.

    Raises:
        LaunchError: the arguments do not fit, or the operation launches no kernel.
        LegalityError: the kernel breaks rules of the target.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(A="M K", B="K N", C="M N")
        ... def product(A, B, C):
        ...     for m, n in tw.tiles(C):
        ...         acc = tw.zeros()
        ...         for k in tw.steps(A.shape[1]):
        ...             acc += A[m, k] @ B[k, n]
        ...         C[m, n] = acc
        >>> a, b, c = (np.ones(shape, np.float32) for shape in ((40, 50), (50, 60), (40, 60)))
        >>> product(a, b, c).target, c[0, 0].item()
        ('cpu', 50.0)
        >>> report = tw.kernel_report(product, a, b, c, check_seconds=0, measure=False)
        >>> report.facts["kernel"], report.facts["target"], report.facts["arrays"]["C"]["shape"]
        ('product', 'cpu', [40, 60])
        >>> report.page.startswith("<!doctype html>")
        True
    """
    if not is_number(check_seconds) or not check_seconds >= 0:
        raise LaunchError(f"check_seconds={shown(check_seconds)}", "0")
    if target is not None:
        known = target_named(target)
        if arch is not None:
            known.architecture(arch)
    if isinstance(kernel, Kernel | Bound):
        note, subject = "", _of_kernel(kernel, arguments, named, target, arch)
    elif callable(kernel) and "target" in _parameters(kernel):
        subject, note = _of_call(kernel, arguments, named, target, arch)
    else:
        near = "a function decorated with @tw.kernel, its .bind(…), or an operation such as tw.matmul"
        raise LaunchError(f"kernel_report: {shown(kernel)} is no kernel", near)
    return KernelReport(KernelFacts(subject, subject.target, arch, check_seconds, measure, note).record())


def _of_kernel(
    kernel: Kernel | Bound, arguments: Any, named: dict[str, Any], target: str | None, arch: str | None
) -> TuningSubject:
    """Return a kernel on specimens of its arguments, after the checks of a launch."""
    bound, rest = (kernel, named) if isinstance(kernel, Bound) else kernel._split(named)
    given = in_order(bound.program, arguments, rest, numbers=True)
    infos = arrays_of(bound.program, given)
    target = target or backend_for(bound.program.name, [*infos.items()], None).name
    found, integers = dict[str, Any](), dict[str, int]()
    for one, value in zip(bound.program.parameters, given, strict=True):
        found[one.name] = value
        if one.kind == "tensor":
            info = infos[one.name]
            align = min(info.pointer & -info.pointer, 16) or 16
            found[one.name] = like(info.dtype, info.shape, strides=info.strides, align=align)
        elif one.kind == "index":
            integers[one.name] = integer(bound.program.name, one.name, value)
        else:
            number(one.name, one.dtype, value)
    text = f"{bound.program.name} of {by_name(found)} on {target}"
    facts = KernelFacts(OperationLaunch(text, bound, tuple(found.values()), target), target, arch)
    bind(facts.stages[0].kernel, infos, integers)
    return facts.subject


def _parameters(call: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of an operation's parameters; empty if Python cannot read its signature."""
    try:
        return tuple(inspect.signature(call).parameters)
    except (TypeError, ValueError):
        return ()


def _of_call(
    call: Callable[..., Any], arguments: Any, named: dict[str, Any], target: str | None, arch: str | None
) -> tuple[OperationLaunch, str]:
    """Return the last kernel of an operation's call, and a remark on how it was found."""
    name = getattr(call, "__name__", shown(call))
    try:
        inspect.signature(call).bind(*arguments, **named)
    except TypeError as error:
        raise LaunchError(f"{name}: {error}; its arguments are {', '.join(_parameters(call))}") from None
    at = {**{f"argument {number}": one for number, one in enumerate(arguments)}, **named}
    arrays = {where: one for where, one in at.items() if hasattr(one, "shape") and hasattr(one, "dtype")}
    infos = [(where, described(name, where, one)) for where, one in arrays.items()]
    wanted = target or backend_for(name, infos, None).name
    planned = CPU.name if is_absent(wanted, arch) else wanted

    def made(one: Any) -> Any:
        return device_put(with_arrays([one])[0], planned) if isinstance(one, Specimen) else one

    words = {where: made(one) for where, one in named.items()}
    text = f"{name} of {by_name(at)} on {planned}"
    found = OperationLaunch.of_call(text, call, [made(one) for one in arguments], words, planned)
    return (rescheduled(found, wanted), PLANNED) if is_absent(wanted, arch) else (found, "")
