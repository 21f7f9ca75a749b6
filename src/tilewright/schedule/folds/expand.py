"""Expansion of a flow whose loop carries a state to an explicit kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.arch import REFERENCE, Arch
from tilewright.dataflow.nodes import Flow
from tilewright.errors import TraceError
from tilewright.ir.kernel import Kernel
from tilewright.lang.program import EXPLICIT, Parameter, Program
from tilewright.lang.specs import TensorSpec
from tilewright.schedule.folds.block import FoldBlock
from tilewright.schedule.folds.choice import check
from tilewright.schedule.folds.elementwise import ElementwiseBlock
from tilewright.schedule.folds.form import fold_form_of
from tilewright.schedule.folds.groups import GroupBlock
from tilewright.schedule.folds.trials import against_merge
from tilewright.schedule.provenance import expanding
from tilewright.schedule.schedule import Schedule


class ExpandedFold(Program):
    """The explicit program of a dataflow kernel whose loop carries a state, under a schedule.

    Args:
        program: the author's program.
        flow: the flow that it records.
        schedule: how the flow is computed.

    Raises:
        TraceError: a merge that the author states disagrees with the steps of its loop.
    """

    def __init__(self, program: Program, flow: Flow, schedule: Schedule) -> None:
        form = fold_form_of(flow, schedule.fold)
        for fold in form.folds:
            if why := against_merge(flow, fold):
                raise TraceError(
                    f"the merge of the loop over {fold.span.name} is wrong: {why}; nearest legal choice: "
                    "a merge of the states of two parts, in their order, that is the state of both",
                    next(one.first.location for one in fold.merges if one is not None),
                )

        block = ElementwiseBlock if form.is_elementwise else GroupBlock if schedule.by_bulk else FoldBlock

        def explicit(*arguments: Any) -> None:
            given = dict(zip((p.name for p in program.parameters), arguments, strict=True))
            with expanding(schedule, form.subject):
                block(form, schedule, given).run()

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
