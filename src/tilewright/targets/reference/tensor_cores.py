"""Asynchronous MMA: the unit of a warpgroup executes the MMAs that all its warps have issued, in order.

An MMA executes as late as possible: it reads its operands and computes its sums when a warp of the group
waits for it.  Each warp sees its own sums after its own wait.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tilewright.functions.conversions import Array
from tilewright.ir.async_ops import MmaAsync
from tilewright.ir.types import Value
from tilewright.targets.reference import edges
from tilewright.targets.reference.agents import Actor, Clocks, Proxy, Visibility
from tilewright.targets.reference.checker import Batch
from tilewright.targets.reference.findings import Kind
from tilewright.targets.reference.machine import Simulator
from tilewright.targets.reference.meaning import held, require_written, set_beyond
from tilewright.targets.reference.memory import Storage
from tilewright.targets.reference.state import Issue, MmaUnit, RegisterUse, Warp

MISSING = "no mma_wait covers its group"
SHOWN = "no arrive after the mma_wait and wait at that mbarrier, and no role_barrier, comes before"


def issue_mma(machine: Simulator, warp: Warp, op: MmaAsync) -> None:
    """Issue ``c += a @ b.T`` by one warp of a warpgroup; the MMA begins with the last warp."""
    size = max(op.mma.atom.lanes // machine.lanes, 1)
    leader = warp.index - warp.rank % size
    unit = warp.block.units.setdefault(leader, MmaUnit(warp.block.slots.units + leader, size))
    number = unit.issued.get(warp, 0)
    unit.issued[warp] = number + 1
    if number not in unit.issues:
        unit.issues[number] = _issue(machine, warp, op, unit)
    issue = unit.issues[number]
    warp.note("issue", (warp.block.rank, unit.slot), 1, number, op)
    if issue.op is not op:
        reason = "the warps of one warpgroup issue different MMAs"
        machine.checker.waiting(Kind.DIVERGENCE, warp.agent, op, (issue.agent, issue.op), reason)
    for value in (op.c, *([op.a] if op.a.is_fragment else [])):
        registers = warp.registers[value] = held(machine, warp, value)
        if machine.check:
            overwritten = value is op.c and issue.is_fresh
            if not overwritten and not any(flight.value is value for flight in warp.flights):
                require_written(machine, warp, op, value, registers)
            if value not in warp.fenced:
                reason = (
                    f"no mma_fence between the last access to {value} and this MMA, "
                    "which may use its registers before that access is over"
                )
                machine.checker.fragment(Kind.UNFENCED, warp.agent, op, value, "use", None, reason)
        warp.flights.append(RegisterUse(value, warp.mma_group, op, issue.agent))
    known = issue.agent.clocks.known
    np.minimum(known, warp.agent.issues["shared"].known, out=known)
    issue.parts[warp] = warp.registers[op.c]
    if len(issue.parts) < unit.size or not machine.check:
        return
    for value, place in ((op.a, issue.a), (op.b, issue.b)):
        if place is not None:
            buffer, at = place[0], place[1].ravel()
            site = machine.checker.site(op, value, "read")
            machine.keep_within(warp, issue.agent, site, buffer, at)
            batch = Batch.of_first_lane(issue.agent, site, buffer, at)
            machine.checker.reads(machine.checker.inside(batch))


def _issue(machine: Simulator, warp: Warp, op: MmaAsync, unit: MmaUnit) -> Issue:
    """Return a new MMA; the warpgroup's place in the tiled MMA determines its operands."""
    mma = op.mma
    group = warp.rank // unit.size
    along_m, along_n = group % mma.warps[0], group // mma.warps[0]
    everything = np.full((len(Visibility), machine.agents), np.iinfo(np.int64).max)
    agent = Actor(
        unit.slot,
        unit.slot,
        warp.block.index,
        warp.index - warp.rank % unit.size,
        "asynchronous MMA",
        Clocks(everything),
        Proxy.ASYNC,
        warp.mma_group,
        issuer=warp.agent.clocks,
        missing=MISSING,
        shown=SHOWN,
        rank=warp.agent.rank,
        group=warp.agent.group,
        device=warp.agent.device,
    )

    rows, columns = (extent * repeat for extent, repeat in zip(mma.atom.shape, mma.repeats, strict=False))
    origin = (along_m * rows, along_n * columns)

    def operand(value: Value, start: int, count: int) -> tuple[Storage, Array]:
        box = machine.footprints.box(value, warp.env)
        return warp.block.buffers[value.buffer], box[start : start + count]

    a = operand(op.a, origin[0], rows) if op.a.is_tensor else None
    fresh = op.fresh if isinstance(op.fresh, bool) else warp.cond(op.fresh)
    return Issue(op, warp.mma_group, agent, origin, fresh, a, operand(op.b, origin[1], columns))


def awaited(warp: Warp, pending: int) -> Iterator[tuple[MmaUnit, int, Issue]]:
    """Yield the MMAs of a warp that a wait covers: their unit and their number there."""
    done = warp.mma_group - 1 - pending
    for unit in warp.block.units.values():
        for number, issue in list(unit.issues.items()):
            if warp in issue.parts and issue.group <= done:
                yield unit, number, issue


def is_issued(warp: Warp, pending: int) -> bool:
    """Return whether all warps of the warpgroup have issued the MMAs that a wait covers."""
    return all(len(issue.parts) == unit.size for unit, _, issue in awaited(warp, pending))


def wait_mma(machine: Simulator, warp: Warp, pending: int) -> None:
    """Execute MMAs of a warp until at most ``pending`` groups are left; then the warp sees their sums."""
    done = warp.mma_group - 1 - pending
    for unit, number, issue in awaited(warp, pending):
        if not issue.is_done:
            _execute(machine, issue)
        part = issue.parts[warp]
        if part.ahead is not None:
            part.values, part.ahead = part.ahead, None
        issue.waited.add(warp)
        if len(issue.waited) == unit.size:
            del unit.issues[number]
    for unit in warp.block.units.values():
        if warp in unit.issued:
            warp.agent.learn_time(Visibility.BLOCK, unit.slot, done)
    warp.flights = [flight for flight in warp.flights if flight.group > done]


def _execute(machine: Simulator, issue: Issue) -> None:
    issue.is_done = True
    op = issue.op
    b, b_marks = _sampled(*issue.b)
    if issue.a is not None:
        a, a_marks = _sampled(*issue.a)
    else:  # A lies in the registers of the group
        spread = op.mma.a(b.shape[1]).table
        rows = op.mma.atom.shape[0] * op.mma.repeats[0]
        a = np.zeros((rows, b.shape[1]), machine.numbers.storage(op.mma.atom.a_dtype))
        a_marks = np.zeros(a.shape, bool)
        for warp in issue.parts:
            lanes = spread[warp.rank * machine.lanes :][: machine.lanes]
            place = lanes[..., 0] - issue.origin[0], lanes[..., 1]
            a[place] = warp.registers[op.a].values
            if (outside := warp.beyond.get(op.a)) is not None:
                a_marks[place] = outside
    beyond = None  # rows and columns of the sums that lie beyond an edge
    if machine.check and (a_marks.any() or b_marks.any()):
        marks = (a_marks, b_marks)
        *beyond, wrong = edges.of_multiply(a, b, marks)
        if wrong.any():
            edges.report_products(machine.checker, issue.agent, op, (a, b), marks, wrong, issue.origin)
    table, places = op.mma.c().table, {}
    before = np.zeros((len(a), len(b)), machine.numbers.storage(op.mma.atom.c_dtype))
    for warp, part in issue.parts.items():
        first = warp.rank * machine.lanes
        spread = table[first : first + machine.lanes]
        places[warp] = spread[..., 0] - issue.origin[0], spread[..., 1] - issue.origin[1]
        if not issue.is_fresh:
            before[places[warp]] = part.values if part.ahead is None else part.ahead
    sums = machine.numbers.multiply_add(machine.adding(op), a, b, before, op.negative)
    for warp, part in issue.parts.items():
        index = places[warp]
        part.ahead = sums[index]
        if issue.is_fresh:
            part.written[...] = True
        if beyond is not None:
            sums_beyond = beyond[0][index[0]] | beyond[1][index[1]]
            had = None if issue.is_fresh else warp.beyond.get(op.c)
            set_beyond(warp, op.c, sums_beyond if had is None else had | sums_beyond)
        elif issue.is_fresh:
            set_beyond(warp, op.c, None)


def _sampled(buffer: Storage, box: Array) -> tuple[Array, Array]:
    """Return the elements of a box, with poison outside of the allocation, and their edge marks."""
    outside = buffer.outside(box.ravel()).reshape(box.shape)
    at = np.where(outside, 0, box)
    values: Array = buffer.elements[at]
    if outside.any():
        values[outside] = buffer.numbers.poison(buffer.owner.dtype, ())
    return values, np.zeros(box.shape, bool) if buffer.beyond is None else buffer.beyond[at] & ~outside
