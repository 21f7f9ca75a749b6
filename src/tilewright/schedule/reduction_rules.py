"""What schedules ask of reductions along rows and columns of the result."""

from __future__ import annotations

from tilewright.dataflow.nodes import Reduce
from tilewright.schedule.crossing import reduced_in_parts
from tilewright.schedule.facts import Reasons
from tilewright.schedule.resources import ScheduleOnMachine


def reduced(case: ScheduleOnMachine) -> Reasons:
    """What is reduced lies in the tile of one group, which is more than one element long."""
    for node in case.form.flow.walk():
        if not isinstance(node, Reduce):
            continue
        dim = 0 if node.argument.axes[node.axis] == case.form.m else 1
        what = f"{node.combine} along {(case.form.m, case.form.n)[dim].name}"
        if dim == 0 and case.schedule.cooperating > 1 and not case.schedule.across:
            text = f"{what}: groups that share a tile along its rows hold no column as a whole"
            yield "roles", text, 'roles="ping-pong", or groups=1', node
        if case.mma.tile[dim] == 1:
            yield (
                "tile",
                f"{what}: a tile of {case.tile} has nothing to reduce",
                "a tile that covers it",
                node,
            )


def reduced_across(case: ScheduleOnMachine) -> Reasons:
    """Reductions across tiles are of what tiles know by themselves, and each tile is computed once."""
    schedule, form = case.schedule, case.form
    if not schedule.across:
        return
    if not reduced_in_parts(form):
        text = (
            "across=True; nothing is reduced, or more is done with it than storing it along one dimension, "
            "which needs a tile that covers it"
        )
        yield "across", text, "across=False", form.stores[0]
    if schedule.cluster != (1, 1):
        text = f"across=True with cluster={schedule.cluster}, whose blocks may have no tile"
        yield "cluster", text, "cluster=(1, 1)", form.stores[0]
