"""The facts of a report on one kernel, section by section, in JSON's types."""

from __future__ import annotations

import difflib
import inspect
import re
import shutil
import subprocess
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.dataflow.printer import print_flow
from tilewright.errors import LayoutError, TilewrightError
from tilewright.inspect.draw import draw_timeline
from tilewright.inspect.draw.layouts import offsets_of
from tilewright.inspect.draw.timelines import MOST_STEPS
from tilewright.inspect.isa.making import isa_report
from tilewright.inspect.isa.report import COLUMNS, holdings
from tilewright.inspect.report import movements
from tilewright.inspect.subject import FEW, Array, Subject
from tilewright.ir.ops import Shared
from tilewright.ir.printer import print_kernel
from tilewright.passes.pipeline import Stage
from tilewright.report.graph import drawn, graph_of, place_of
from tilewright.runtime.backends import backend_named
from tilewright.runtime.executable import Executable
from tilewright.runtime.specimens import Specimen, like
from tilewright.runtime.tables import table_for
from tilewright.schedule.load import Load, resident_blocks
from tilewright.schedule.question import Candidate, LoopQuestion, Question
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.tables import class_of, extents_of
from tilewright.schedule.time_parts import TimeParts, ranked_us, time_parts
from tilewright.targets.target import CPU, TARGETS, target_named
from tilewright.threads.distribution import Distribution
from tilewright.tune.measure import QUICK, measure
from tilewright.tune.profiling import constants_source
from tilewright.tune.subject import SubjectArrays, TuningSubject
from tilewright.views.transforms import Slice
from tilewright.views.view import View

NEXT = 3
"""Number of runner-up schedules that a report shows."""

MOST_CELLS = 16384
"""Largest number of elements of a tile whose holders are listed."""

SHOWN = (32, 128)
"""Most rows and columns of a tensor in shared memory that are shown; swizzles repeat after 8 rows."""

MEASURED_FLOPS = 2 * 10**10
"""Largest number of operations of a kernel that is measured on a processor for a report."""

CHECKED_SIZES = {
    256: "whole tiles",
    200: "tiles that edges cut",
    64: "less than most tiles",
    129: "one more than whole tiles",
    1: "a single element along each dimension",
}
"""Largest extents of the arrays that the checker runs on, each with the reason to try it."""

CODE_LINES = 400
"""Largest number of lines of a processor's machine code that are listed."""

_WORD = re.compile(r"[A-Za-z_]\w*")


# ---------------------------------------------------------------- the subject


@dataclass(frozen=True)
class GivenSubject(Subject):
    """The subject of an inspection on arrays of given shapes and strides.

    Args:
        given: a specimen of each array, by parameter.
    """

    given: Mapping[str, Specimen] = field(default_factory=dict)

    @staticmethod
    def of(subject: TuningSubject) -> GivenSubject:
        """Return the subject of an inspection with the kernel and the arrays of a tuner's subject."""
        bound, arrays = subject.bound(), subject.specimens
        dtypes = {name: one.dtype for name, one in arrays.items()}
        extents: dict[str, int] = {}
        for one in bound.program.parameters:
            if one.kind == "tensor" and len(one.named) == len(arrays[one.name].shape):
                extents |= dict(zip(one.named, arrays[one.name].shape, strict=True))
        return GivenSubject(bound, dtypes, extents, numbers=subject.numbers, given=arrays)

    def specimens(self) -> list[Specimen | None]:
        """Return the specimen of each array, None for a number."""
        return [self.given.get(one.name) for one in self.bound.program.parameters]

    def small_arrays(self, most: int) -> dict[str, Array]:
        """Return arrays of small random integers of at most ``most`` along each dimension, by parameter."""
        rng, arrays = np.random.default_rng(0), dict[str, Array]()
        for name, one in self.given.items():
            shape = tuple(min(extent, most) for extent in one.shape)
            order = sorted(range(len(shape)), key=lambda dim: -one.strides[dim])
            made = np.empty([shape[dim] for dim in order], one.dtype.numpy)
            array = made.transpose(np.argsort(order)) if shape else made
            array[...] = rng.integers(0 if one.dtype.kind in ("uint", "bool") else -4, 2, shape)
            arrays[name] = array
        return arrays


# ---------------------------------------------------------------- the facts


@dataclass(frozen=True)
class KernelFacts:
    """Everything that a report shows of a kernel on arrays of given shapes.

    Args:
        subject: the kernel and its arrays.
        target: the target that it is compiled for.
        arch: the architecture; None: this machine's, or the target's default.
        check_seconds: time after which the checker begins no further size; 0: the checker does not run.
        measured: whether the kernel is timed if the target runs here.
        note: a remark on how the kernel was found, or "".
    """

    subject: TuningSubject
    target: str
    arch: str | None = None
    check_seconds: float = 4.0
    measured: bool = True
    note: str = ""

    # ------------------------------------------------------------ parts that several sections use

    @cached_property
    def inspected(self) -> GivenSubject:
        """The subject of `tilewright inspect`."""
        return GivenSubject.of(self.subject)

    @cached_property
    def machine(self) -> str:
        """The name of the architecture."""
        return (
            target_named(self.target).architecture(self.arch or backend_named(self.target).arch_name()).name
        )

    @cached_property
    def schedule(self) -> Schedule | None:
        """The schedule that the kernel runs under; None for an explicit kernel."""
        return self.inspected.schedule(self.target, self.arch)

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """The traced kernel, and the kernel after each pass."""
        return self.inspected.stages(self.target, self.arch)

    @cached_property
    def executable(self) -> Executable:
        """The compiled kernel."""
        return self.inspected.compile(self.target, self.arch)

    @cached_property
    def question(self) -> Question | LoopQuestion | None:
        """The problem that a schedule is chosen for; None for an explicit kernel."""
        return self.subject.question(self.arch)

    @cached_property
    def names(self) -> dict[str, list[str]]:
        """For each name in the kernel's texts, the author's array whose numbers the value or buffer holds."""
        held, found = holdings(self.stages[-1].kernel), dict[str, list[str]]()
        for one in (stage.kernel for stage in (self.stages[0], self.stages[-1])):
            for op in one.walk():
                for value in (*op.results, *op.read, *op.written):
                    buffer = getattr(value, "buffer", value).name
                    arrays = held.get(buffer, frozenset())
                    if len(arrays) == 1:
                        found[value.name] = found[buffer] = [*arrays]
        return found | {name: [name] for name in self.subject.specimens}

    # ------------------------------------------------------------ the record

    def record(self) -> dict[str, Any]:
        """Return all sections.  A section that cannot be made here has only ``missing``, the reason.

        Raises:
            TilewrightError: the kernel cannot be traced, or breaks rules of the target.
        """
        _ = self.stages, self.schedule  # an illegal kernel is refused before anything is compiled
        program = self.subject.bound().program
        arrays = {
            name: {"dtype": str(one.dtype), "shape": list(one.shape), "strides": list(one.strides)}
            for name, one in self.subject.specimens.items()
        }
        return {
            "report": 1,
            "kernel": program.name,
            "about": (inspect.getdoc(program.function) or "").partition("\n")[0].replace("``", ""),
            "note": self.note,
            "target": self.target,
            "arch": self.machine,
            "arrays": arrays,
            "numbers": {name: repr(one) for name, one in self.subject.numbers.items()},
            "names": self.names,
            "lines": _known(self._lines),
            "flow": _known(self._flow),
            "schedule": _known(self._schedule),
            "passes": self._passes(),
            "layouts": _known(self._layouts),
            "timeline": _known(self._timeline),
            "accesses": _known(self._accesses),
            "resources": _known(self._resources),
            "machine_code": _known(self._machine_code),
            "check": _known(self._check),
            "time": _known(self._time),
            "source": _known(self._source),
        }

    def _lines(self) -> dict[str, Any]:
        function = inspect.unwrap(self.subject.bound().program.function)
        try:
            texts, first = inspect.getsourcelines(function)
        except (OSError, TypeError):
            return {"missing": "the author's file is not there"}
        file = Path(inspect.getsourcefile(function) or "")
        name, library = file.name, Path(__file__).parents[1]
        ours = file.is_relative_to(library)
        dedented = textwrap.dedent("".join(texts)).splitlines()
        lines = [
            {"at": f"{name}:{number}", "number": number, "text": text}
            for number, text in enumerate(dedented, first)
        ]
        where = file.relative_to(library.parent).as_posix() if ours else name
        return {"file": where, "of_the_library": ours, "lines": lines}

    def _flow(self) -> dict[str, Any]:
        if self.question is None:
            return {"missing": "the kernel is explicit: its author wrote what a schedule would expand"}
        flow = self.subject.bound().flow(*self.subject.arguments)
        plain, noted = (print_flow(flow, locations=one).splitlines() for one in (False, True))
        graph = graph_of(flow)
        return {"text": _located(plain, noted), **graph, "svg": drawn(graph)}

    # ------------------------------------------------------------ the schedule and why

    def _schedule(self) -> dict[str, Any]:
        question, schedule = self.question, self.schedule
        if question is None or schedule is None:
            return {"missing": "the kernel is explicit: its author chose the schedule"}
        fields_of = {one.name: schedule.spelled(one.name) for one in fields(schedule)}
        default = {one.name for one in fields(schedule) if getattr(schedule, one.name) == one.default}
        legal = [one for one in self.subject.candidates(self.arch) if not one.against]
        mine = next((one for one in legal if one.schedule == schedule), None)
        others = [one for one in legal if one.schedule != schedule]
        if isinstance(question, Question) and question.arch.rates is not None:
            others.sort(key=lambda one: ranked_us(Load(question, one.schedule)))
        else:
            others.sort(key=lambda one: one.estimate)
        rows = [self._reason("choice", schedule, mine)]
        rows += [self._reason(f"next {at}", one.schedule, one) for at, one in enumerate(others[:NEXT], 1)]
        bound = self.subject.bound()
        table = table_for(question.arch, question.processors)
        entry = None if table is None else table.find(question)
        how, row = "the rules of the target propose it first", None
        if bound.schedule is not None:
            how = "the author of the call bound it"
        elif entry is not None and entry.schedule == schedule:
            how, row = "it is the fastest in the table of measured schedules", entry.record()
        elif legal and mine is not legal[0]:
            how = "the table of measured schedules, or the operation, selects it"
        unit = "us" if rows[0]["parts_us"] else "units of the rule's model"
        return {
            "text": repr(schedule),
            "fields": {name: text for name, text in fields_of.items() if name not in default},
            "how": how,
            "class": class_of(question),
            "extents": list(extents_of(question)),
            "measured_row": row,
            "candidates": rows,
            "legal": len(legal),
            "unit": unit,
            "constants": constants_source(self.subject, self.arch),
        }

    def _reason(self, name: str, schedule: Schedule, candidate: Candidate | None) -> dict[str, Any]:
        question, parts = self.question, None
        if isinstance(question, Question) and question.arch.rates is not None:
            parts = time_parts(Load(question, schedule))
        return {
            "name": name,
            "schedule": repr(schedule),
            "rule": "" if candidate is None else candidate.rule,
            "estimate": None if candidate is None else candidate.estimate,
            "parts_us": _parts(parts),
            "main_loop_us": None if parts is None else round(parts.main_loop, 3),
            "total_us": None if parts is None else round(parts.total, 3),
            "limit": "" if parts is None else parts.limit,
        }

    # ------------------------------------------------------------ texts

    def _passes(self) -> list[dict[str, Any]]:
        found, before = list[dict[str, Any]](), list[str]()
        for at, stage in enumerate(self.stages):
            plain, noted = (print_kernel(stage.kernel, locations=one).splitlines() for one in (False, True))
            diff = list(difflib.unified_diff(before, plain, "before", "after", lineterm="", n=2))[2:]
            found.append(
                {
                    "name": stage.name,
                    "about": stage.about,
                    "notes": list(stage.notes),
                    "lines": _located(plain, noted),
                    "difference": diff if at else [],
                }
            )
            before = plain
        return found

    def _source(self) -> dict[str, Any]:
        listing = self.inspected.listing(self.target, self.arch)
        if listing is None:
            return {"missing": f"the target {self.target} executes the kernel, and generates no text"}
        lines = []
        for number, text in enumerate(listing.text.splitlines(), 1):
            op = listing.lines.get(number)
            lines.append({"at": "" if op is None else place_of(op.location), "text": text})
        return {"lines": lines, "entry": listing.entry, "notes": list(listing.notes)}

    # ------------------------------------------------------------ layouts

    def _layouts(self) -> dict[str, Any]:
        kernel = self.stages[-1].kernel
        shared, held = list[dict[str, Any]](), dict[Distribution, list[str]]()
        for op in kernel.walk():
            if isinstance(op, Shared):
                shared.append(_shared(op))
            for value in op.results:
                if getattr(value, "is_fragment", False):
                    held.setdefault(value.type.distribution, []).append(value.name)
        fragments = [_fragment(one, names, kernel.lanes) for one, names in held.items()]
        return {"shared": shared, "fragments": fragments}

    # ------------------------------------------------------------ the pipeline

    def _timeline(self) -> dict[str, Any]:
        made = self.inspected.timeline(None, self.target)
        picture = draw_timeline(made, 0, max(min(made.steps, MOST_STEPS), 1))
        events = [
            {name: one for name, one in asdict(event).items() if name != "touches"} for event in made.events
        ]
        return {
            "about": f"one block on arrays of at most {FEW} along each dimension, executed by the reference; "
            "steps are logical, not measured",
            "steps": made.steps,
            "events": events,
            "svg": picture.svg,
        }

    # ------------------------------------------------------------ memory and resources

    def _accesses(self) -> dict[str, Any]:
        made, warps = self.executable, TARGETS[self.target].warps
        kernel = made.kernel if made.listing is None else made.listing.kernel
        accesses = made.listing.accesses if made.listing is not None and not warps else None
        moved = movements(kernel, made.target, made.kernel, accesses)
        rows = [asdict(one) | {"text": str(one), "at": one.line.rpartition(":")[0]} for one in moved]
        return {
            "copies": rows,
            "about": "bank conflicts and sectors are predicted from layouts"
            if warps
            else "processors have no banks, and caches instead of sectors",
        }

    def _resources(self) -> dict[str, Any]:
        made = self.executable
        kernel = made.kernel if made.listing is None else made.listing.kernel
        rows: dict[str, Any] = {
            "threads per block": kernel.threads,
            "threads per warp": kernel.lanes,
            "shared bytes": kernel.shared_bytes,
        }
        rows |= {name.replace("_", " "): value for name, value in made.resources.items()}
        if made.path is not None and made.path.exists():
            rows["machine code bytes"] = made.path.stat().st_size
        occupancy: dict[str, Any] = {}
        registers = int(made.resources.get("registers", 0))
        arch = target_named(self.target).architecture(self.machine)
        if TARGETS[self.target].warps and arch.simds:
            blocks = resident_blocks(arch, kernel.shared_bytes, threads=kernel.threads, registers=registers)
            warps = blocks * -(-kernel.threads // kernel.lanes)
            by_shared = resident_blocks(arch, kernel.shared_bytes)
            most = arch.simds * arch.simd_warps
            by_registers = resident_blocks(arch, 0, threads=kernel.threads, registers=registers)
            occupancy = {
                "blocks of a multiprocessor": blocks,
                "warps of a multiprocessor": min(warps, most),
                "largest number of warps": most,
                "blocks by shared memory": by_shared,
                "blocks by registers": by_registers,
            }
        return {"rows": rows, "occupancy": occupancy, "notes": list(made.notes)}

    def _machine_code(self) -> dict[str, Any]:
        if self.target == CPU.name:
            return self._host_code()
        found = isa_report(self.inspected, self.target, self.arch)
        loops = {}
        for name, loop in found.loops().items():
            rows = []
            for line, label, cells in found.rows(loop):
                source = found.sources.get(line.line)
                at = "" if source is None else place_of(source.op.location)
                names = [] if source is None else list(source.tensors)
                rows.append(
                    {"label": label, "kind": line.kind.value, "cells": list(cells), "at": at, "names": names}
                )
            loops[name] = rows
        tables = {name: [list(row) for row in rows] for name, rows in found.tables().items()}
        return {
            "title": found.title,
            "tables": tables,
            "columns": list(COLUMNS),
            "loops": loops,
            "remarks": found.remarks(),
        }

    def _host_code(self) -> dict[str, Any]:
        tool = shutil.which("objdump")
        if tool is None:
            return {"missing": "a processor's machine code is read by objdump, which is not on PATH"}
        path = self.executable.path
        if path is None:
            return {"missing": "the kernel has no file of machine code"}
        command = [tool, "--disassemble", "--no-show-raw-insn", "--no-addresses", str(path)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
        if ended.returncode:
            return {"missing": f"objdump: {ended.stderr.strip().splitlines()[-1]}"}
        functions: dict[str, list[str]] = {}
        name = ""
        for line in ended.stdout.splitlines():
            if found := re.match(r"^(?:[0-9a-f]+ )?<([^>]+)>:$", line):
                name = found[1]
            elif name and line.strip():
                functions.setdefault(name, []).append(line.strip())
        if not functions:
            return {"missing": "objdump finds no function"}
        longest = max(functions, key=lambda one: len(functions[one]))
        vector = [one for one in functions[longest] if re.search(r"%[xyz]mm|\bv\d+\.", one)]
        return {
            "title": f"{longest}, the longest of {len(functions)} functions, by objdump",
            "lines": functions[longest][:CODE_LINES],
            "instructions": len(functions[longest]),
            "vector_instructions": len(vector),
            "remarks": ["the compiler was asked for no line numbers, so that no lines are shown"],
        }

    # ------------------------------------------------------------ verdict and time

    def _check(self) -> dict[str, Any]:
        if not self.check_seconds:
            return {"missing": "left out, as asked"}
        bound, schedule, begun = self.subject.bound(), self.schedule, time.perf_counter()
        if schedule is not None:
            bound = bound.under(schedule)
        made: dict[str, Any] = {"sizes": [], "refused": [], "left_out": [], "findings": [], "clean": False}
        for most, why in CHECKED_SIZES.items():
            arrays = {name: _cut(one, most) for name, one in self.subject.specimens.items()}
            row: dict[str, Any] = {
                "arrays": {name: list(one.shape) for name, one in arrays.items()},
                "why": why,
            }
            if any(row["arrays"] == one["arrays"] for one in (*made["sizes"], *made["refused"])):
                continue  # these sizes were tried: no array reaches the limit
            if time.perf_counter() - begun > self.check_seconds:
                made["left_out"].append(row)
                continue
            try:
                report = bound.check(
                    *(self.subject.named | arrays).values(), target=self.target, arch=self.arch
                )
            except TilewrightError as error:
                made["refused"].append(row | {"reason": str(error).strip().partition("\n")[0]})
                continue
            coverage = report.coverage
            found = [str(one) for one in (*report.findings, *report.violations)]
            made["sizes"].append(
                row
                | {
                    "findings": len(found) + report.omitted,
                    "blocks": report.blocks,
                    "never_ran": list(coverage.idle),
                }
            )
            made["findings"] += [one for one in found if one not in made["findings"]]
        return made | {
            "clean": bool(made["sizes"]) and not made["findings"],
            "schedule": None if schedule is None else repr(schedule),
            "seconds": round(time.perf_counter() - begun, 2),
            "limit_seconds": self.check_seconds,
        }

    def _time(self) -> dict[str, Any]:
        predicted, limit = None, ""
        if isinstance(self.question, Question) and self.schedule is not None:
            parts = time_parts(Load(self.question, self.schedule))
            predicted = None if parts is None else round(parts.total, 3)
            limit = "" if parts is None else parts.limit
        found: dict[str, Any] = {
            "flops": self.subject.flops,
            "bytes": self.subject.bytes,
            "predicted_us": predicted,
            "predicted": f"limited by {limit}" if limit else f"no rates are known of {self.machine}",
            "measured_us": None,
        }
        missing = ""
        if not self.measured:
            missing = "left out, as asked"
        elif not TARGETS[self.target].machine_code:
            missing = f"the time of {self.target} says nothing about a machine"
        elif not runs_here(self.target, self.machine):
            missing = f"no {self.machine} in this machine"
        elif self.subject.flops > MEASURED_FLOPS and self.target == CPU.name:
            missing = f"left out: {self.subject.flops:.3g} operations would take long here"
        if missing:
            return found | {"measured": missing}
        (arrays,) = SubjectArrays(self.subject, 0, 1).sets
        call = self.subject.bound().prepare(*arrays, target=self.target)
        taken = measure({"kernel": call}, self.target, effort=QUICK)
        us = taken["kernel"].us
        return found | {
            "measured": f"median of {len(taken['kernel'].samples_us)} samples; {taken.how}",
            "measured_us": round(us.median, 3),
            "interval_us": [round(us.low, 3), round(us.high, 3)],
        }


def runs_here(target: str, arch: str | None) -> bool:
    """Return whether kernels for a target and an architecture run here; None: any architecture."""
    backend = backend_named(target)
    try:
        return bool(backend.device_name()) and arch in (None, backend.arch_name())
    except TilewrightError:
        return False


def _known(section: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return a section, or the error that explains why this machine has none."""
    try:
        return section()
    except TilewrightError as error:
        return {"missing": str(error)}


def _located(plain: Sequence[str], noted: Sequence[str]) -> list[dict[str, str]]:
    """Return lines of text, each with the author's line and the field of the schedule that made it."""
    found = []
    for text, longer in zip(plain, noted, strict=True):
        place, _, by = longer[len(text) :].removeprefix("  # ").partition(" by ")
        found.append({"text": text, "at": place.rpartition(":")[0], "by": by})
    return found


def _cut(specimen: Specimen, most: int) -> Specimen:
    """Return a specimen of at most ``most`` along each dimension, whose dimensions lie in the same order."""
    shape = tuple(min(extent, most) for extent in specimen.shape)
    strides, step = [0] * len(shape), 1
    for dim in sorted(range(len(shape)), key=lambda dim: (specimen.strides[dim], -dim)):
        strides[dim] = step
        step *= shape[dim]
    return like(specimen.dtype, *shape, strides=strides)


def _parts(parts: TimeParts | None) -> dict[str, float]:
    return {} if parts is None else {name: round(us, 3) for name, us in asdict(parts).items()}


def _shared(op: Shared) -> dict[str, Any]:
    """Return the layout of a tensor in shared memory: the offset of each element of its first tile."""
    view, made = op.view, {"name": op.result.name, "dtype": str(op.dtype), "bytes": op.elems * op.dtype.bytes}
    shape = [extent for extent in view.shape if isinstance(extent, int)]
    made |= {"shape": shape, "view": str(view)}
    if len(shape) != view.rank:
        return made | {"missing": "its extents are known only at a launch"}
    lead = max(len(shape) - 2, 0)
    most = [0] * lead + [*SHOWN][-len(shape) :]
    first = tuple(0 if dim < lead else (0, min(extent, most[dim])) for dim, extent in enumerate(shape))
    shown: View = Slice(first).apply(view)
    try:
        extents, offsets = offsets_of(shown)
    except LayoutError as error:
        return made | {"missing": str(error)}
    return made | {
        "tile": list(extents),
        "offsets": offsets,
        "element_bytes": op.dtype.bytes,
        "about": "the first rows: offset of element (i, j) in elements; banks are 4 bytes wide",
    }


def _fragment(distribution: Distribution, names: Sequence[str], lanes: int) -> dict[str, Any]:
    """Return the map of a fragment: for each element the first thread that holds it, and its value there."""
    shape = list(distribution.shape)
    made: dict[str, Any] = {
        "names": list(dict.fromkeys(names)),
        "shape": shape,
        "threads": distribution.size_threads,
        "values": distribution.size_values,
        "copies": distribution.copies,
        "lanes": lanes,
    }
    count = int(np.prod(shape, dtype=np.int64)) if shape else 1
    if count > MOST_CELLS or distribution.size_threads * distribution.size_values > 8 * MOST_CELLS:
        return made | {"missing": f"{count} elements are too many to show"}
    table = distribution.table.reshape(distribution.size_threads, distribution.size_values, -1)
    thread, value = np.full(shape or [1], -1), np.full(shape or [1], -1)
    for who in reversed(range(distribution.size_threads)):
        for which in range(distribution.size_values):
            at = tuple(table[who, which]) if shape else (0,)
            if all(0 <= one < extent for one, extent in zip(at, shape, strict=False)):
                thread[at], value[at] = who, which
    return made | {"thread": thread.reshape(-1).tolist(), "value": value.reshape(-1).tolist()}
