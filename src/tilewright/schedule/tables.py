"""Tables of measured schedules: the fastest schedule for each measured problem on one device, as text.

A table holds for the rules that proposed its schedules, and for the text format of schedules.  The library
refuses a table if either has changed.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any, get_type_hints

from tilewright.argument_checks import MOST
from tilewright.errors import ParseError, TilewrightError, shown
from tilewright.ir.mma import MmaAtom
from tilewright.namespaces import part
from tilewright.schedule.choice import choose, for_several_loops, split_candidates
from tilewright.schedule.estimate import estimate_of
from tilewright.schedule.legality import is_carried, reasons
from tilewright.schedule.load import Load
from tilewright.schedule.question import LoopQuestion, Question
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.skipping import is_masked
from tilewright.schedule.time_parts import time_parts
from tilewright.targets import atoms

NEAR = 1.0
"""Largest distance of a measured shape from a new one: the norm of the log2 of the ratios of their extents.

One extent twice as large is at this distance.  Further away the model of the rules is better than the table.
"""

RULES = "3e780339e0f9"
"""Hash of the schedules that the rules propose for the corpus of `benchmarks/rules.py`.

A test computes it anew.  If the rules propose other schedules, it changes, and earlier tables are refused.
"""

CHOOSE_LOOP = "tilewright.schedule.folds.choice:choose"
"""The function that chooses a schedule for a loop that carries a state; imported at the first use."""

LOOP_REASONS = "tilewright.schedule.folds.legality:reasons"
"""The function that lists reasons against a schedule for this kind of loop; imported at the first use."""

PRINTER = "tilewright.dataflow.printer:print_flow"
"""The function that prints flows; imported at the first use."""

# ---------------------------------------------------------------- schedules as text

MAKERS: dict[str, Callable[..., MmaAtom]] = {
    "wgmma": atoms.wgmma,
    "fma": atoms.fma,
    "dots": atoms.dots,
}
"""The functions that make atoms."""


@functools.cache
def schedule_format(count: int | None = None) -> str:
    """Return the number of fields of a schedule, and a hash of them and of their defaults.

    The text of a schedule omits fields with their defaults.  A new last field does not change the meaning of
    older texts, which have the format of the fields before it.

    Args:
        count: number of leading fields to include; None: all.
    """
    known = fields(Schedule)[:count]
    defaults = {field.name: field.default for field in known}
    meaning = " ".join(name if value is MISSING else f"{name}={value!r}" for name, value in defaults.items())
    return f"{len(known)} fields, {hashlib.sha256(meaning.encode()).hexdigest()[:12]}"


def read_schedule(text: str) -> Schedule:
    """Read a schedule from its `repr`.

    The text is not executed, so that files from anywhere can be read: only `tw.Schedule`, the atoms of
    `tw.atoms` and literals have a meaning.

    Raises:
        ParseError: the text is not a schedule, or a field has a value that no schedule has.

    Example:
        >>> written = 'tw.Schedule(tw.atoms.wgmma("bf16", 256), (128, 256, 64), stages=4, staging="tma")'
        >>> repr(read_schedule(written)) == written
        True
    """
    try:
        call = ast.parse(text, mode="eval").body
        if not isinstance(call, ast.Call) or ast.unparse(call.func) != "tw.Schedule":
            raise ValueError("no call of tw.Schedule")
        given = [_value(argument) for argument in call.args]
        named = {keyword.arg or "**": _value(keyword.value) for keyword in call.keywords}
        return Schedule(*given, **named)
    except (TilewrightError, SyntaxError, TypeError, ValueError, RecursionError, MemoryError) as error:
        start = text if len(text) <= 200 else f"{text[:200]}…"
        raise ParseError(f"{start!r} is no schedule: {error}") from None


def _value(node: ast.expr) -> Any:
    """The value of an argument: an atom, or a literal."""
    if not isinstance(node, ast.Attribute | ast.Call):
        return ast.literal_eval(node)
    name = ast.unparse(node.func if isinstance(node, ast.Call) else node).removeprefix("tw.atoms.")
    if isinstance(node, ast.Call):
        if name not in MAKERS:
            raise ValueError(f"unknown atom {name}; known: {', '.join(MAKERS)} and the constants of tw.atoms")
        named = {keyword.arg or "**": ast.literal_eval(keyword.value) for keyword in node.keywords}
        return MAKERS[name](*map(ast.literal_eval, node.args), **named)
    found = getattr(atoms, name, None)
    if not isinstance(found, MmaAtom):
        raise ValueError(f"unknown atom {name}")
    return found


# ---------------------------------------------------------------- tables

Extents = tuple[int, ...]
"""Batches, M, N and K of a product; of a loop that carries a state, `LoopQuestion.extents`."""


class TableError(TilewrightError, ValueError):
    """A table that cannot be used: it is damaged, of another version, or of another device."""


class OtherVersionError(TableError):
    """A table that is not damaged, but belongs to another version or another device."""


@dataclass(frozen=True)
class Version:
    """The versions and the machine to which a table is bound.

    Args:
        format: format of the text of a schedule, from `schedule_format`.
        rules: hash of the rules that proposed the measured schedules, from `RULES`.
        arch: the architecture.
        device: name of the machine.
        processors: number of its processors that were used.
    """

    format: str
    rules: str
    arch: str
    device: str
    processors: int

    @staticmethod
    def now(arch: str, device: str, processors: int) -> Version:
        """The version of tables that this library makes on a machine."""
        return Version(schedule_format(), RULES, arch, device, processors)

    @staticmethod
    def of(record: Any, where: str) -> Version:
        """Read a version from its record.

        Raises:
            TableError: the record is not a version.
        """
        found = Version(**checked(record, get_type_hints(Version), where))
        count = found.format.partition(" ")[0]
        is_prefix = count.isdecimal() and len(count) <= 3 and found.format == schedule_format(int(count))
        # Texts of an older format mean the same today if its fields begin the list of fields.
        return replace(found, format=schedule_format()) if is_prefix else found

    def against(self, other: Version) -> str:
        """Return the difference from another version in words, or ""."""
        names = {"format": "schedule format", "rules": "hash of the candidate rules"}
        pairs = ((name, value, asdict(other)[name]) for name, value in asdict(self).items())
        return "; ".join(
            f"{names.get(name, name)} {there}, not {here}" for name, here, there in pairs if here != there
        )


def checked(record: Any, fields: Mapping[str, type], where: str) -> dict[str, Any]:
    """Check and return the fields of a record that was read as JSON.

    Args:
        record: the JSON value.
        fields: the type of each field; a float is finite, and may be written as an integer.
        where: location of the record, for error messages.

    Raises:
        TableError: the record is not an object with exactly these fields; names the first wrong one.

    Example:
        >>> checked({"us": 1}, {"us": float}, "table t.json, entry 0")
        {'us': 1.0}
        >>> checked({"us": "1"}, {"us": float}, "table t.json, entry 0")
        Traceback (most recent call last):
        tilewright.schedule.tables.TableError: table t.json, entry 0: damaged: us='1' is no float
    """
    if not isinstance(record, dict) or record.keys() != fields.keys():
        raise TableError(
            f"{where}: damaged: the entry must be an object with {', '.join(fields)}, and is {shown(record)}"
        )
    found: dict[str, Any] = {}
    for name, kind in fields.items():
        value: Any = record[name]
        if kind is float and type(value) is int and abs(value) <= sys.float_info.max:
            value = float(value)
        if type(value) is not kind or value in (math.inf, -math.inf) or value != value:
            raise TableError(f"{where}: damaged: {name}={shown(value)} is no {kind.__name__}")
        found[name] = value
    return found


@dataclass(frozen=True)
class MeasuredSchedule:
    """The fastest schedule that was measured for one problem.

    Args:
        kind: class of the problem, from `class_of`.
        extents: see `Extents`.
        schedule: the fastest schedule.
        us: its median time.
        speed: time of the untuned choice, relative to this time.
        measured: number of schedules that were measured.
        by_rules: whether the rules choose this schedule themselves.
    """

    kind: str
    extents: Extents
    schedule: Schedule
    us: float
    speed: float
    measured: int
    by_rules: bool = False

    def distance(self, extents: Extents) -> float:
        """Distance of the problem from one with other extents; see `NEAR`.

        Example:
            >>> from tilewright.targets.atoms import fma
            >>> schedule = Schedule(fma("f32"), (32, 32, 32))
            >>> entry = MeasuredSchedule("", (1, 64, 64, 512), schedule, 1.0, 1.0, 1)
            >>> entry.distance((1, 64, 64, 512)), entry.distance((1, 128, 64, 512))
            (0.0, 1.0)
        """
        pairs = zip(self.extents, extents, strict=True)
        return math.hypot(*(math.log2(max(mine, 1) / max(other, 1)) for mine, other in pairs))

    def record(self) -> dict[str, Any]:
        """The entry as a JSON object."""
        return asdict(self) | {"schedule": repr(self.schedule), "extents": list(self.extents)}

    @staticmethod
    def of(record: Any, where: str) -> MeasuredSchedule:
        """Read an entry from its record.

        Args:
            record: a JSON object, as `record` makes it.
            where: location of the record, for error messages.

        Raises:
            TableError: the record is not an entry.
        """
        kinds = get_type_hints(MeasuredSchedule) | {"extents": list, "schedule": str}
        found = checked(record, kinds, where)
        extents = found["extents"]
        if len(extents) < 4 or not all(type(one) is int and 0 <= one < MOST for one in extents):
            raise TableError(
                f"{where}: damaged: extents={shown(extents)} are not four or more extents of 63 bits"
            )
        try:
            schedule = read_schedule(found["schedule"])
        except ParseError as error:
            raise TableError(f"{where}: damaged: {error}") from None
        return MeasuredSchedule(**found | {"extents": tuple(extents), "schedule": schedule})


@dataclass(frozen=True)
class ScheduleTable:
    """Measured schedules of one device.

    Args:
        version: the versions and the machine to which they are bound.
        entries: one for each problem, in any order.
    """

    version: Version
    entries: tuple[MeasuredSchedule, ...] = ()

    @cached_property
    def digest(self) -> str:
        """A hash of the whole table."""
        return hashlib.sha256(repr((self.version, self.entries)).encode()).hexdigest()

    def joined(self, entries: Iterable[MeasuredSchedule]) -> ScheduleTable:
        """The table with more entries, which replace those for the same problems."""
        found = {(entry.kind, entry.extents): entry for entry in (*self.entries, *entries)}
        return replace(self, entries=tuple(found[key] for key in sorted(found)))

    def nearest(self, question: Question | LoopQuestion) -> Iterator[MeasuredSchedule]:
        """The entries of the question's class, the nearest first, none further than `NEAR`."""
        kind, extents = class_of(question), extents_of(question)
        ranked = sorted(
            (entry.distance(extents), entry.extents, at)
            for at, entry in enumerate(self.entries)
            if entry.kind == kind and len(entry.extents) == len(extents)
        )
        return (self.entries[at] for distance, _, at in ranked if distance <= NEAR)

    def find(self, question: Question | LoopQuestion) -> MeasuredSchedule | None:
        """Return the nearest entry whose schedule is legal for a problem; None if the rules choose.

        The rules choose if no entry is near, if the nearest entry is their own choice, or if its schedule
        should lose more than it gained where it was measured; see `is_worth`.
        """
        found = self.nearest(question)
        legal = (one for one in found if one.by_rules or not _against(one.schedule, question))
        nearest = next(legal, None)
        return None if nearest is None or nearest.by_rules or not is_worth(nearest, question) else nearest

    def record(self) -> dict[str, Any]:
        """The table as a JSON object."""
        return {"version": asdict(self.version), "entries": [entry.record() for entry in self.entries]}

    @staticmethod
    def of(record: Any, wanted: Version) -> ScheduleTable:
        """Read a table from its record.

        Args:
            record: a JSON object, as `record` makes it.
            wanted: the version that the table must have.

        Raises:
            OtherVersionError: the table has another version.
            TableError: the record is not a table.
        """
        fields = checked(record, {"version": dict, "entries": list}, "no table")
        version = Version.of(fields["version"], "its version")
        if differs := wanted.against(version):
            raise OtherVersionError(f"of another version: {differs}")
        entries = (MeasuredSchedule.of(entry, f"entry {at}") for at, entry in enumerate(fields["entries"]))
        return ScheduleTable(version, tuple(entries))


def _against(schedule: Schedule, question: Question | LoopQuestion) -> Sequence[object]:
    """The reasons to refuse a schedule; none if it is legal."""
    if isinstance(question, LoopQuestion):
        found: Sequence[object] = part(LOOP_REASONS)(schedule, question.form, question.specs, question.arch)
        return found
    return reasons(schedule, question.form, question.classes, question.arch)


def class_of(question: Question | LoopQuestion) -> str:
    """The class of a problem: everything but its extents.

    For products it names dtypes, contiguous dimensions, precision, and whether rows are grouped.  Elementwise
    epilogues do not matter, because they take about the same time under all schedules.  Other problems have
    the same class only if their flow, dtypes and contiguous dimensions are equal: loops that carry a state,
    several loops, and products that decode operands, read arrays of the size of the result, reduce it, or
    leave out tiles.
    """
    if isinstance(question, Question) and (kind := _product_class(question)):
        return kind
    flow = question.form.author if isinstance(question, Question) else question.form.flow
    specs = question.specs
    arrays = ", ".join(f"{name} {spec.dtype}[{spec.unit_dim}]" for name, spec in specs.items())
    text = hashlib.sha256(part(PRINTER)(flow).encode()).hexdigest()[:12]
    return f"{flow.name} {text}: {arrays}"


def _product_class(question: Question) -> str:
    """The class of a product, which other flows may share; "" if a flow has a class of its own."""
    form = question.form
    operands = [form.a.part.operand, form.b.part.operand, *(store.operand for store in form.stores)]
    if (
        not form.is_single
        or len(form.stores) != 1
        or form.lists
        or is_masked(form)
        or any(operand.transforms for operand in operands)
        or question.decodes
        or form.scaled_every
        or question.reads_result_sized
        or question.stores_lines
        or question.covered != (0, 0)
    ):
        return ""
    (store,) = form.stores
    spec = question.specs[store.operand.name]
    along = "" if spec.unit_dim is None else "m" if store.at[spec.unit_dim] == form.m else "n"
    a, b = (
        f"{factor.dtype}[{major or 'strided'}]"
        for factor, major in zip((form.a, form.b), question.majors, strict=True)
    )
    grouped = ", rows in groups" if form.flow.grouped else ", K in groups" if form.bounded else ""
    return f"{a} x {b} -> {spec.dtype}[{along or 'strided'}], {form.precision}{grouped}"


def is_worth(entry: MeasuredSchedule, question: Question | LoopQuestion) -> bool:
    """Whether a measured schedule should be faster than the rules' choice for another problem, too.

    An estimate says how the times of both change from the measured problem to this one.  The measured gain
    must outweigh the difference by each estimate that knows both: that of `time_parts`, and that of the rules
    for their proposals.  Without an estimate, as on CPUs and for loops that carry a state, the
    answer is yes.

    Args:
        entry: an entry of the question's class.
        question: the problem.
    """
    items, *shape = entry.extents
    if isinstance(question, LoopQuestion) or extents_of(question) == entry.extents:
        return True
    batch = [items if dim == 0 else 1 for dim in range(len(question.extents) - 3)]
    there = replace(question, extents=(*batch, *shape))
    loads = [[Load(one, made) for made in (entry.schedule, choose(one))] for one in (there, question)]

    def outweighs(estimated: Callable[[Load], float]) -> bool:
        times = [[estimated(load) for load in pair] for pair in loads]
        if not all(all(pair) for pair in times):
            return True
        before, now = (measured / rules for measured, rules in times)
        return now <= before * entry.speed

    def by_rules(load: Load) -> float:
        model = estimate_of(load)
        return model.time_us(load) if model is not None else 0.0

    def by_parts(load: Load) -> float:
        found = time_parts(load)
        return found.total if found is not None else 0.0

    return outweighs(by_parts) and outweighs(by_rules)


def extents_of(question: Question | LoopQuestion) -> Extents:
    """Number of batch items, M, N and K; or the extents of a loop that carries a state."""
    if isinstance(question, LoopQuestion):
        return question.extents
    return (question.items, *question.shape)


def chosen(question: Question | LoopQuestion, table: ScheduleTable | None) -> Schedule:
    """The schedule of the nearest measured problem, if one is near and legal; else the rules' choice.

    A problem with several loops that was not measured takes the schedule of its longest one, if that is legal
    for all.

    Raises:
        LaunchError: no proposal of the rules can split K as requested.
    """
    is_asked = isinstance(question, Question) and question.splitting is not None
    if table is not None and table.entries and not is_asked:
        found = table.find(question)
        if found is not None:
            return found.schedule
    if isinstance(question, LoopQuestion):
        rules: Schedule = part(CHOOSE_LOOP)(
            question.form, question.specs, question.shapes, question.arch, question.processors
        )
        return rules
    if len(question.form.loops) > 1 and not question.form.inner:
        alone = for_several_loops(chosen(question.of_longest_loop, table))
        if alone is not None:
            # Other loops may have rings of their own, if their operands lie in another order.
            for stages in range(alone.stages, min(alone.stages, 2) - 1, -1):
                if is_carried(question, replace(alone, stages=stages)):
                    return replace(alone, stages=stages)
    if question.splitting is not None:
        return next(split_candidates(question)).schedule
    return choose(question)
