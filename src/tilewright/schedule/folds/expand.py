"""Expansion of a flow whose loop carries a state to an explicit kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.arch import REFERENCE, Arch
from tilewright.dataflow.nodes import Flow
from tilewright.ir.kernel import Kernel
from tilewright.lang.program import EXPLICIT, Parameter, Program
from tilewright.lang.specs import TensorSpec
from tilewright.schedule.folds.block import FoldBlock
from tilewright.schedule.folds.choice import check
from tilewright.schedule.folds.form import fold_form_of
from tilewright.schedule.folds.groups import GroupBlock
from tilewright.schedule.provenance import expanding
from tilewright.schedule.schedule import Schedule


class ExpandedFold(Program):
    """The explicit program of a dataflow kernel whose loop carries a state, under a schedule.

    Args:
        program: the author's program.
        flow: the flow that it records.
        schedule: how the flow is computed.
    """

    def __init__(self, program: Program, flow: Flow, schedule: Schedule) -> None:
        form = fold_form_of(flow, schedule.fold)

        def explicit(*arguments: Any) -> None:
            given = dict(zip((p.name for p in program.parameters), arguments, strict=True))
            with expanding(schedule, form.fold.steps[0]):
                (GroupBlock if schedule.by_bulk else FoldBlock)(form, schedule, given).run()

        self.function = explicit
        self.name = program.name
        self.__doc__ = program.__doc__
        self.parameters: tuple[Parameter, ...] = program.parameters
        self.constants = ()
        self.sync = EXPLICIT
        self.defaults = {}
        self.form, self.schedule = form, schedule

    def trace(
        self,
        specs: Mapping[str, TensorSpec],
        constants: Mapping[str, Any] | None = None,
        arch: Arch = REFERENCE,
    ) -> Kernel:
        """Record the explicit kernel.

        Raises:
            ScheduleError: the schedule is not legal on this machine; lists every reason.
        """
        self.settled(specs, arch)
        return super().trace(specs, constants, arch)

    def settled(self, specs: Mapping[str, TensorSpec], arch: Arch) -> tuple[Schedule, tuple[str, ...]]:
        """The schedule under which it runs, and a note for each change to the requested one.

        Raises:
            ScheduleError: it is not legal on this machine.
        """
        check(self.schedule, self.form, specs, arch)
        return self.schedule, ()
