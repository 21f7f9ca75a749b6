"""Dataflow kernels at run time: the choice of an explicit program for a class of arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from tilewright.arch import Arch
from tilewright.dataflow.nodes import Flow
from tilewright.errors import LaunchError, ScheduleError, TraceError, shown
from tilewright.ir.kernel import Kernel
from tilewright.lang.program import Program
from tilewright.lang.specs import TensorSpec
from tilewright.namespaces import part
from tilewright.runtime.recent import Recent
from tilewright.schedule.choice import first_legal
from tilewright.schedule.folds.form import FoldForm, fold_form_of, is_folded
from tilewright.schedule.folds.rows import with_rows
from tilewright.schedule.form import Form, form_of
from tilewright.schedule.question import LoopQuestion, Question, Splitting, coarse, question_of
from tilewright.schedule.real_flow import (
    RealFlow,
    is_complex,
    paired_arrays,
    real_program,
    real_shape,
    real_spec,
)
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.tables import ScheduleTable, chosen

EXPANDED = "tilewright.schedule.expand:Expanded"
"""The class that expands dataflow kernels; imported at the first use."""

EXPANDED_FOLD = "tilewright.schedule.folds.expand:ExpandedFold"
"""The class that expands loops that carry a state; imported at the first use."""

TABLES = "tilewright.runtime.tables:table_for"
"""The function that finds a machine's table of measured schedules; imported at the first use."""

PRINTER = "tilewright.dataflow.printer:print_flow"
"""The function that prints flows; imported at the first use."""

KEPT = "tilewright.runtime.cache:kept"
"""The function that keeps objects for later processes; imported at the first use."""

MOST_FLOWS = 256
"""Classes of arrays for which the recorded flow is kept."""


@dataclass(frozen=True)
class TraceRequest:
    """A request to trace a kernel.

    Args:
        specs: the class of each array.
        arch: the architecture.
        shapes: extents of the arrays, from which a dataflow kernel's schedule is chosen.
        processors: processors of this machine, if it has this architecture; 0: those of the architecture's
            best known product.
    """

    specs: Mapping[str, TensorSpec]
    arch: Arch
    shapes: Mapping[str, tuple[int, ...]]
    processors: int = 0


@dataclass(frozen=True)
class RecordedFlow:
    """The flow that a program records for a class of arrays.

    Args:
        program: the author's program.
        flow: the graph.
        form: its form.
        classes: the class of each of the caller's arrays.
        paired: the complex arrays that are passed as pairs; others are passed as parts.
    """

    program: Program
    flow: Flow
    form: Form | FoldForm
    classes: tuple[tuple[str, TensorSpec], ...]
    paired: frozenset[str] = frozenset()

    @property
    def in_loops(self) -> bool:
        """Whether it is expanded into loops that carry a state.

        One schedule can serve both kinds of expansion: tiles compute rows that they cover, and loops longer
        rows.
        """
        return isinstance(self.form, FoldForm)

    def real(self, specs: Mapping[str, TensorSpec]) -> dict[str, TensorSpec]:
        """Return the classes of arrays as the flow has them: complex numbers are pairs or parts."""
        return {name: real_spec(spec, paired=name in self.paired) for name, spec in specs.items()}

    def seen(self, request: TraceRequest) -> TraceRequest:
        """Return a request for the arrays as the flow has them."""
        shapes = {
            name: real_shape(shape, request.specs[name].dtype, paired=name in self.paired)
            for name, shape in request.shapes.items()
        }
        return replace(request, specs=self.real(request.specs), shapes=shapes)

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """All that its schedules and explicit kernels depend on: the graph, its lines, the parameters."""
        program, flow = self.program, self.flow
        locations = (repr(one.location) for some in (flow.walk(), flow.stores, flow.moved) for one in some)
        return program.name, repr(program.parameters), part(PRINTER)(flow), *locations


@dataclass(frozen=True)
class Explicit:
    """An explicit program for a class of arrays.

    Args:
        program: the author's program, or the program that a schedule made of it.
        specs: the class that it is traced for, which may be wider than the wanted class.
        constants: the program's constants.
        schedule: the schedule of a dataflow kernel; None for an explicit kernel.
        traced: the traced kernel, if the choice needed a trace.
        recorded: the flow of a dataflow kernel; None for an explicit kernel.
    """

    program: Program
    specs: Mapping[str, TensorSpec]
    constants: Mapping[str, Any]
    schedule: Schedule | None = None
    traced: Kernel | None = None
    recorded: RecordedFlow | None = None

    @property
    def flow(self) -> Flow | None:
        """The graph of a dataflow kernel; None for an explicit kernel."""
        return None if self.recorded is None else self.recorded.flow

    @property
    def key(self) -> tuple[Any, ...]:
        """All that determines the traced kernel: schedule, kind of expansion, and the class of each array.

        A flow has the caller's classes and those of its real arrays: an array of f64 and one of c64, whose
        numbers are passed as pairs, have the same real class.
        """
        made = self.recorded
        if made is None:
            return self.schedule, False, (), *self.specs.items()
        return self.schedule, made.in_loops, made.classes, *self.specs.items()

    def described(self, arch: Arch) -> list[str]:
        """Return everything that the explicit kernel of a flow depends on, as texts.

        Args:
            arch: the architecture that it is traced for.
        """
        assert self.recorded is not None, "an author's function depends on more than its text"
        return [*self.recorded.texts, *_spec_texts(self.specs), repr(self.schedule), repr(arch)]


def _spec_texts(specs: Mapping[str, TensorSpec]) -> list[str]:
    """Return a text for each class of arrays, with all of its fields."""
    return [f"{name}: {[getattr(spec, one.name) for one in fields(spec)]}" for name, spec in specs.items()]


class Scheduled:
    """A program with its flows and expanded programs; an explicit program has neither.

    Args:
        program: the author's program.
        constants: its constants.
        schedule: the caller's schedule, or a rule for splitting K in the chosen one; None: one is chosen.
    """

    def __init__(
        self, program: Program, constants: Mapping[str, Any], schedule: Schedule | Splitting | None
    ) -> None:
        self._program, self._constants = program, constants
        self._schedule = schedule if isinstance(schedule, Schedule) else None
        self._splitting = schedule if isinstance(schedule, Splitting) else None
        self._is_explicit = False
        self._flows: Recent[Any, RecordedFlow] = Recent(MOST_FLOWS)
        self._programs: Recent[Any, Any] = Recent(MOST_FLOWS)

    def forget(self) -> None:
        """Drop everything that was recorded."""
        self._is_explicit = False
        self._flows.forget()
        self._programs.forget()

    def forget_key(self, arch: Arch, key: tuple[Any, ...]) -> None:
        """Drop the flow of an `Explicit.key`, and its programs under the key's schedule."""
        schedule, _, classes, *specs = key
        self._flows.drop((arch.name, *classes))
        for in_loops in (False, True):
            self._programs.drop((schedule, in_loops, classes, *specs))

    def explicit(self, request: TraceRequest) -> Explicit:
        """Return the explicit program for a class of arrays.

        Raises:
            LaunchError: a schedule was given for an explicit kernel.
            ScheduleError: the schedule is not legal for the class and the architecture.
        """
        arch, classes = request.arch, _classes(request)
        made = self._recorded(request.specs, classes, arch)
        if not isinstance(made, RecordedFlow):
            return Explicit(self._program, request.specs, self._constants, traced=made)
        request, classes = made.seen(request), _coarse(made.real(classes), arch)
        refused: ScheduleError | None = None
        for flow, schedule in self._attempts(made, request):
            try:
                return self._settled(flow, schedule, classes, arch)
            except ScheduleError as error:
                refused = error
        assert refused is not None, "a flow has a schedule"
        raise refused

    def _attempts(self, made: RecordedFlow, request: TraceRequest) -> Iterator[tuple[RecordedFlow, Schedule]]:
        """Yield pairs of a flow and a schedule, which the caller tries in this order.

        A reduction along a row needs a tile of all columns.  If the tile has fewer, the first pair has loops
        over whole rows: under the caller's schedule if there is one, else under a schedule for these loops.
        """
        form, own, question = made.form, self._schedule, None
        if isinstance(form, FoldForm):
            schedule = own or _chosen_loop(form, request)
        else:
            question = self._question(form, request)
            schedule = own or self._chosen(made, question, request)
            is_covered = schedule.across or schedule.tile[1] >= question.covered[1]
            if not is_covered and (rows := _in_rows(made)) is not None:
                yield rows, own or _chosen_loop(rows.form, request)
                if own is None:
                    return
        yield made, schedule  # the launch refuses a bound schedule whose tile is too small
        if own is not None:
            return
        if (rows := _in_rows(made)) is not None:
            yield rows, _chosen_loop(rows.form, request)
        elif question is not None and self._splitting is None and (legal := first_legal(question)):
            yield made, legal

    def _settled(
        self, made: RecordedFlow, schedule: Schedule, classes: Mapping[str, TensorSpec], arch: Arch
    ) -> Explicit:
        """Return the explicit program of a flow under a schedule."""
        key = (schedule, made.in_loops, made.classes, *classes.items())
        program = self._programs.get(key)
        if program is None:
            expanded = EXPANDED_FOLD if made.in_loops else EXPANDED
            program = part(expanded)(made.program, made.flow, schedule)
            self._programs.keep(key, program)
        settled, _ = program.settled(classes, arch)
        return Explicit(program, classes, {}, settled, recorded=made)

    def _chosen(self, made: RecordedFlow, question: Question, request: TraceRequest) -> Schedule:
        """Return the schedule for a problem; for GPUs, kept for later processes.

        An architecture with its number of processors describes a GPU. The rules for other machines may look
        at the machine itself.
        """
        table: ScheduleTable | None = part(TABLES)(request.arch, request.processors)
        if not question.arch.registers:
            return chosen(question, table)
        measured = "" if table is None else table.digest
        asked = [repr(question.extents), repr(question.processors), repr(question.splitting), measured]
        parts = [*made.texts, *_spec_texts(question.specs), *asked, repr(question.arch)]
        meta = {"kernel": self._program.name, "arch": question.arch.name}
        found: Schedule = part(KEPT)(["schedule", *parts], lambda: chosen(question, table), meta)
        return found

    def question(self, request: TraceRequest) -> Question | LoopQuestion | None:
        """Return the problem that a schedule is chosen for; None for an explicit kernel.

        The arguments and errors are those of `explicit`.
        """
        made = self._recorded(request.specs, _classes(request), request.arch)
        if not isinstance(made, RecordedFlow):
            return None
        request = made.seen(request)
        if isinstance(made.form, FoldForm):
            return _loop_question(made.form, request)
        return self._question(made.form, request)

    def _question(self, form: Form, request: TraceRequest) -> Question:
        arch = request.arch
        known = 1 if arch.rates is None else arch.rates.boards[0].multiprocessors
        processors = request.processors or known
        return question_of(form, request.specs, request.shapes, arch, processors, self._splitting)

    def _recorded(
        self, specs: Mapping[str, TensorSpec], classes: Mapping[str, TensorSpec], arch: Arch
    ) -> RecordedFlow | Kernel | None:
        """Return the flow for a class of arrays, and its form; for an explicit program its first trace."""
        if self._is_explicit:
            return None
        key = (arch.name, *classes.items())
        known = self._flows.get(key)
        if known is None:
            made = self._program.run(specs, self._constants, arch)
            if isinstance(made, Kernel):
                if self._schedule is not None:
                    rule = "schedule= is for dataflow kernels, and this kernel is explicit"
                    text = f"kernel {self._program.name}: {rule}"
                    raise LaunchError(text, "tw.tiles and tw.steps in its body, or no schedule")
                self._is_explicit = True
                return made
            if classes != specs:  # Python's decisions must hold for all arrays of the wider class
                made = self._program.run(classes, self._constants, arch)
            assert isinstance(made, Flow), "a dataflow kernel is one for every class"
            program, paired = self._program, frozenset[str]()
            if is_complex(made):
                program, made, paired = self._in_parts(made, classes, arch)
            form = fold_form_of(made) if is_folded(made) else form_of(made)
            known = RecordedFlow(program, made, form, tuple(classes.items()), paired)
            self._flows.keep(key, known)
        return known

    def _in_parts(
        self, made: Flow, classes: Mapping[str, TensorSpec], arch: Arch
    ) -> tuple[Program, Flow, frozenset[str]]:
        """Return the program and the flow over real arrays, and the arrays that are passed as pairs."""
        paired = paired_arrays(made, classes, arch)
        real = _coarse({name: real_spec(one, paired=name in paired) for name, one in classes.items()}, arch)
        # The flow and its explicit kernel need the same divisors of sizes.
        like = {
            name: replace(one, extent_divisors=real[name].extent_divisors[: one.rank])
            for name, one in classes.items()
        }
        again = self._program.run(like, self._constants, arch)
        assert isinstance(again, Flow), "a dataflow kernel is one for every class"
        flow = RealFlow(again, self._program, paired).flow
        return real_program(self._program, again, paired), flow, paired


def _loop_question(form: FoldForm, request: TraceRequest) -> LoopQuestion:
    """Return the problem of a loop that carries a state."""
    return LoopQuestion(form, _classes(request), request.shapes, request.arch, request.processors)


def _chosen_loop(form: Form | FoldForm, request: TraceRequest) -> Schedule:
    """Return the schedule of a loop that carries a state."""
    assert isinstance(form, FoldForm), "whole rows become a loop"
    table: ScheduleTable | None = part(TABLES)(request.arch, request.processors)
    return chosen(_loop_question(form, request), table)


def _in_rows(made: RecordedFlow) -> RecordedFlow | None:
    """Return a flow with whole rows in place of the reduced columns of a tile; None if that is impossible.

    A loop along the row computes it; this serves rows that no tile covers.
    """
    flow = with_rows(made.flow)
    if flow is made.flow:
        return None
    try:
        return replace(made, flow=flow, form=fold_form_of(flow))
    except TraceError:  # loops do not compute it
        return None


def _classes(request: TraceRequest) -> dict[str, TensorSpec]:
    """Return a coarser class of each array; calls with the same coarse classes share a flow."""
    return _coarse(request.specs, request.arch)


def _coarse(specs: Mapping[str, TensorSpec], arch: Arch) -> dict[str, TensorSpec]:
    return {name: coarse(spec, arch) for name, spec in specs.items()}


def without_schedule(
    program: Program, constants: Mapping[str, Any]
) -> tuple[Mapping[str, Any], Schedule | Splitting | None]:
    """Split the caller's constants into those of the program, and the schedule.

    Raises:
        LaunchError: the schedule is none.
    """
    if "schedule" not in constants or "schedule" in program.constants:
        return constants, None
    given = constants["schedule"]
    if given is not None and not isinstance(given, Schedule | Splitting):
        text = f"kernel {program.name}: schedule={shown(given)} is no schedule"
        raise LaunchError(text, "tw.Schedule(...), or None to let the library choose")
    return {name: value for name, value in constants.items() if name != "schedule"}, given
