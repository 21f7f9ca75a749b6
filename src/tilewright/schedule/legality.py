"""Whether a schedule is legal for a kernel, its arrays and a machine, asked before anything is expanded."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.arch import Arch
from tilewright.dataflow.nodes import Node, Store
from tilewright.errors import Location, Origin, ScheduleError, Violation
from tilewright.lang.specs import TensorSpec
from tilewright.schedule.form import Form
from tilewright.schedule.resources import ScheduleOnMachine
from tilewright.schedule.rules import OF_KERNELS, OF_MEANING
from tilewright.schedule.schedule import Schedule


def reasons(schedule: Schedule, form: Form, specs: Mapping[str, TensorSpec], arch: Arch) -> list[Violation]:
    """Every reason why a schedule is refused; none if it is legal.

    Args:
        schedule: the schedule.
        form: what is computed.
        specs: the classes of the arrays, by name.
        arch: the machine.

    Returns:
        The broken rules, each named by its field, with the author's line; no more than one of a kind.
    """
    # Schedules are judged when they are proposed, settled and expanded.
    key = (schedule, tuple(specs.items()), id(arch))
    if key not in form.judged:
        case = ScheduleOnMachine(schedule, form, specs, arch)
        found = dict.fromkeys(reason for rule in (*OF_MEANING, *OF_KERNELS) for reason in rule(case))
        form.judged[key] = (
            arch,
            [
                Violation(field, message, nearest, _location(schedule, field, node))
                for field, message, nearest, node in found
            ],
        )
    return [*form.judged[key][1]]


def check(schedule: Schedule, form: Form, specs: Mapping[str, TensorSpec], arch: Arch) -> None:
    """Refuse a schedule that is not legal.

    Raises:
        ScheduleError: lists every reason, with the value, the limit and the nearest legal choice.
    """
    if found := reasons(schedule, form, specs, arch):
        raise ScheduleError(form.flow.name, arch.name, repr(schedule), found)


def _location(schedule: Schedule, field: str, node: Node | Store) -> Location | None:
    """The author's line, and the field."""
    if node.location is None:
        return None
    frames = node.location.frames
    return Location(frames, Origin(node, frames, field, schedule.spelled(field)))
