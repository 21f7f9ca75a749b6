"""Dataflow kernels at run time: which explicit program serves a class of arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tilewright.arch import Arch
from tilewright.dataflow.nodes import Flow
from tilewright.errors import LaunchError, shown
from tilewright.ir.kernel import Kernel
from tilewright.lang.program import Program
from tilewright.lang.specs import TensorSpec
from tilewright.namespaces import part
from tilewright.runtime.recent import Recent
from tilewright.schedule.form import Form, form_of
from tilewright.schedule.question import Question, Splitting, coarse, extents_of
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.tables import chosen

EXPANDED = "tilewright.schedule.expand:Expanded"
"""What expands dataflow kernels; it is loaded when the first of them is."""

TABLES = "tilewright.runtime.tables:table_for"
"""What finds the table of measured schedules of a machine; loaded when the first schedule is chosen."""

MOST_FLOWS = 256
"""Of how many classes of arrays the recorded flow is remembered."""


@dataclass(frozen=True)
class Explicit:
    """An explicit program, for a class of arrays.

    Args:
        program: the author's, or the one that a schedule made of it.
        specs: the class that it is traced for; it may be wider than the one that was asked about.
        constants: of the program.
        schedule: the schedule; None of a program that is explicit by itself.
        traced: what it recorded, where it was traced to find out.
        flow: what a dataflow kernel computes; None of a program that is explicit by itself.
    """

    program: Program
    specs: Mapping[str, TensorSpec]
    constants: Mapping[str, Any]
    schedule: Schedule | None = None
    traced: Kernel | None = None
    flow: Flow | None = None


class Scheduled:
    """What a program is under its schedules; of one that is explicit by itself, the program.

    Args:
        program: the author's.
        constants: its constants.
        schedule: the one that the caller wants; None: one is chosen; or how K is to be split by it.
    """

    def __init__(
        self, program: Program, constants: Mapping[str, Any], schedule: Schedule | Splitting | None
    ) -> None:
        self._program, self._constants = program, constants
        self._schedule = schedule if isinstance(schedule, Schedule) else None
        self._splitting = schedule if isinstance(schedule, Splitting) else None
        self._is_explicit = False
        self._flows: Recent[Any, tuple[Flow, Form]] = Recent(MOST_FLOWS)
        self._programs: Recent[Any, Any] = Recent(MOST_FLOWS)

    def forget(self) -> None:
        """Let go of everything that was recorded."""
        self._is_explicit = False
        self._flows.forget()
        self._programs.forget()

    def forget_class(
        self, schedule: Schedule | None, arch: Arch, specs: Iterable[tuple[str, TensorSpec]]
    ) -> None:
        """Let go of the flow of a class of arrays, and of its program under one schedule."""
        self._flows.drop((arch.name, *specs))
        self._programs.drop((schedule, *specs))

    def explicit(
        self,
        specs: Mapping[str, TensorSpec],
        arch: Arch,
        shapes: Mapping[str, tuple[int, ...]],
        processors: int,
    ) -> Explicit:
        """The explicit program for a class of arrays.

        Args:
            specs: the class of each array.
            arch: the architecture.
            shapes: extents of the arrays.
            processors: of this machine; 0: those of the architecture's best known product.

        Raises:
            LaunchError: a schedule for a program that is explicit by itself.
            ScheduleError: a schedule that is not legal for the class and the architecture.
        """
        classes = {name: coarse(spec, arch) for name, spec in specs.items()}
        made = self._recorded(specs, classes, arch)
        if not isinstance(made, tuple):
            return Explicit(self._program, specs, self._constants, traced=made)
        flow, form = made
        schedule = self._schedule or chosen(
            self._question(form, specs, arch, shapes, processors), part(TABLES)(arch, processors)
        )
        program = self._expanded(flow, schedule, classes)
        settled, _ = program.settled(classes, arch)
        return Explicit(program, classes, {}, settled, flow=flow)

    def question(
        self,
        specs: Mapping[str, TensorSpec],
        arch: Arch,
        shapes: Mapping[str, tuple[int, ...]],
        processors: int,
    ) -> Question | None:
        """The problem that a schedule is chosen for, of the arguments of `explicit`; None if it is explicit.

        Raises:
            LaunchError: as `explicit`.
        """
        classes = {name: coarse(spec, arch) for name, spec in specs.items()}
        made = self._recorded(specs, classes, arch)
        return self._question(made[1], specs, arch, shapes, processors) if isinstance(made, tuple) else None

    def _question(
        self,
        form: Form,
        specs: Mapping[str, TensorSpec],
        arch: Arch,
        shapes: Mapping[str, tuple[int, ...]],
        processors: int,
    ) -> Question:
        extents, count = extents_of(form, shapes), processors or _processors(arch)
        return Question(form, specs, extents, arch, count, self._splitting)

    def _recorded(
        self, specs: Mapping[str, TensorSpec], classes: Mapping[str, TensorSpec], arch: Arch
    ) -> tuple[Flow, Form] | Kernel | None:
        """The flow for a class of arrays, and its form; of an explicit program what it recorded, once."""
        if self._is_explicit:
            return None
        key = (arch.name, *classes.items())
        known = self._flows.get(key)
        if known is None:
            made = self._program.run(specs, self._constants, arch)
            if isinstance(made, Kernel):
                self._refuse_schedule()
                self._is_explicit = True
                return made
            if classes != specs:  # what Python decided is right for all arrays of the wider class
                made = self._program.run(classes, self._constants, arch)
            assert isinstance(made, Flow), "what records a flow records one for every class"
            known = (made, form_of(made))
            self._flows.keep(key, known)
        return known

    def _expanded(self, flow: Flow, schedule: Schedule, specs: Mapping[str, TensorSpec]) -> Any:
        """An `Expanded` program."""
        key = (schedule, *specs.items())
        found = self._programs.get(key)
        if found is None:
            found = part(EXPANDED)(self._program, flow, schedule)
            self._programs.keep(key, found)
        return found

    def _refuse_schedule(self) -> None:
        if self._schedule is not None:
            raise LaunchError(
                f"kernel {self._program.name}: schedule= is for kernels that say in tiles what is computed; "
                "this one says how; nearest legal choice: tw.tiles and tw.steps in its body, or no schedule"
            )


def without_schedule(
    program: Program, constants: Mapping[str, Any]
) -> tuple[Mapping[str, Any], Schedule | Splitting | None]:
    """The constants that a caller gives, and the schedule among them, which is none of the program's.

    Raises:
        LaunchError: something else than a schedule.
    """
    if "schedule" not in constants or "schedule" in program.constants:
        return constants, None
    given = constants["schedule"]
    if given is not None and not isinstance(given, Schedule | Splitting):
        raise LaunchError(
            f"kernel {program.name}: schedule={shown(given)} is none; nearest legal choice: "
            "tw.Schedule(...), or None, for which one is chosen"
        )
    return {name: value for name, value in constants.items() if name != "schedule"}, given


def _processors(arch: Arch) -> int:
    """Those of the product that is known of an architecture."""
    return arch.rates.boards[0].multiprocessors if arch.rates is not None else 1
