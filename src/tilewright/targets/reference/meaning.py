"""The meaning of every operation that threads execute themselves: the rules of the reference target."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from tilewright.dtypes import DType, u8
from tilewright.functions.conversions import Array
from tilewright.functions.table import TAKE
from tilewright.ir import ops
from tilewright.ir.async_ops import LaunchDependents, Peer, PriorGridWait
from tilewright.ir.copies import ByMap, is_in_background
from tilewright.ir.fragment_ops import Coordinates, PrefixOp, Redistribute, ReduceOp
from tilewright.ir.integer_ops import ReadIndex
from tilewright.ir.mma import TiledMma
from tilewright.ir.op import Op
from tilewright.ir.packed_ops import AsBytes, Pack, Unpack
from tilewright.ir.types import Value
from tilewright.packing import joined, numbers_of
from tilewright.passes.expand_mma import depth_of
from tilewright.symbolic.nodes import Expr
from tilewright.symbolic.rebuilding import evaluate
from tilewright.targets.reference import edges
from tilewright.targets.reference.addressing import accessed_buffer, buffer_of
from tilewright.targets.reference.agents import WHOLE_WARP, Actor, join
from tilewright.targets.reference.checker import Batch
from tilewright.targets.reference.findings import Kind
from tilewright.targets.reference.machine import Simulator
from tilewright.targets.reference.memory import Storage
from tilewright.targets.reference.state import Padded, Steps, Warp, WarpRegisters
from tilewright.targets.rules import RuleTable
from tilewright.targets.target import REFERENCE as TARGET
from tilewright.threads.distribution import Distribution
from tilewright.threads.distribution import registers as registers_of_part
from tilewright.threads.registers import PrefixPlan, Reduction, broadcast, registers_of

REFERENCE = RuleTable(TARGET.name)
"""Rules are called as ``rule(machine, warp, op)``; those that may wait return the steps between waits."""


# ---------------------------------------------------------------- registers


def held(machine: Simulator, warp: Warp, value: Value) -> WarpRegisters:
    """Return a warp's part of a fragment; it is unwritten if only other warps wrote the fragment."""
    shape = machine.shape(warp, value.fragment.distribution)
    registers = warp.registers.get(value)
    if registers is None:
        registers = warp.registers[value] = WarpRegisters.blank(value.dtype, shape, machine.numbers)
    return registers.of_lanes(value.dtype, shape[0], machine.numbers)


def read(machine: Simulator, warp: Warp, op: Op, value: Value) -> Array:
    """Return the values of a fragment, or poison while an MMA uses it; report unwritten elements."""
    registers = held(machine, warp, value)
    require_written(machine, warp, op, value, registers)
    if touch(machine, warp, op, value, "read"):
        return registers.values
    lanes, values = registers.values.shape
    return machine.numbers.poison(value.dtype, (lanes, values))


def require_written(machine: Simulator, warp: Warp, op: Op, value: Value, registers: WarpRegisters) -> None:
    """Report elements of a fragment that nothing has written."""
    if machine.check and np.count_nonzero(registers.written) < registers.written.size:
        missing = np.argwhere(~registers.written)
        lane, number = (int(i) for i in missing[0])
        element = _element(machine, warp, value, lane, number)
        machine.checker.registers(warp.agent, op, value, element, lane, len(missing))


def _element(machine: Simulator, warp: Warp, value: Value, lane: int, number: int) -> tuple[int, ...]:
    """Return the coordinate of the element in a register of a lane."""
    table = value.fragment.distribution.table
    return tuple(int(i) for i in table[warp.rank * machine.lanes + lane, number])


def define(
    machine: Simulator,
    warp: Warp,
    op: Op,
    value: Value,
    values: Array,
    *,
    fill: Any = None,
    beyond: Array | None = None,
) -> None:
    """Write all elements of a fragment.

    Args:
        machine: the machine.
        warp: the warp whose part is written.
        op: the operation.
        value: the fragment.
        values: its elements.
        fill: the value of all elements in all threads, if it is one number.
        beyond: marks of the elements beyond the edge of an array.
    """
    touch(machine, warp, op, value, "write")
    set_beyond(warp, value, beyond)
    warp.replaced.pop(value, None)
    warp.registers[value] = WarpRegisters(values, np.ones(values.shape, bool), fill=fill)


def touch(machine: Simulator, warp: Warp, op: Op, value: Value, action: str) -> bool:
    """Note that an operation touches a fragment; return whether no asynchronous MMA uses the fragment."""
    warp.fenced.discard(value)
    flight = next((flight for flight in warp.flights if flight.value is value), None)
    if flight is not None and machine.check:
        reason = (
            f"the MMA may still be under way: no {warp.missing_wait(flight)} its group before this {action}"
        )
        other = (flight.agent, flight.op)
        machine.checker.fragment(Kind.IN_FLIGHT, warp.agent, op, value, action, other, reason)
    return flight is None


def set_beyond(warp: Warp, value: Value, beyond: Array | None) -> None:
    """Remember which elements of a fragment lie beyond the edge of an array."""
    if beyond is not None and np.count_nonzero(beyond):
        warp.beyond[value] = beyond
    else:
        warp.beyond.pop(value, None)


# ---------------------------------------------------------------- memory and views


@REFERENCE.rule(ops.Shared, ops.Reshape, ops.Gather, ops.PartitionOp, AsBytes, ByMap, Peer)
@REFERENCE.rule(PriorGridWait, LaunchDependents)
def _nothing(machine: Simulator, warp: Warp, op: Op) -> None:
    """Do nothing: shared memory exists from the start, views are no actions, and only one grid runs."""


@REFERENCE.rule(ops.FragmentOp)
def _fragment(machine: Simulator, warp: Warp, op: ops.FragmentOp) -> None:
    registers = WarpRegisters.blank(op.dtype, machine.shape(warp, op.distribution), machine.numbers)
    if op.fill is not None:
        registers.fill = machine.numbers.number(op.fill, op.dtype)
        registers.values[...] = registers.fill
        registers.written[...] = True
    touch(machine, warp, op, op.result, "write")
    set_beyond(warp, op.result, None)
    warp.replaced.pop(op.result, None)
    warp.registers[op.result] = registers


@REFERENCE.rule(ops.Copy, variant="direct")
@REFERENCE.rule(ops.Copy, variant="matrix")
@REFERENCE.rule(ops.Copy, variant="async")
def _copy(machine: Simulator, warp: Warp, op: ops.Copy) -> None:
    agent = warp.copies if is_in_background(op) else warp.agent
    spread, vector = op.spread, machine.instructions.copy_vector(op)
    if op.source.is_fragment:
        values, beyond = read(machine, warp, op, op.source), warp.beyond.get(op.source)
    else:
        other = machine.numbers.number(op.other, op.source.dtype) if op.other != 0 else None
        values = machine.load(warp, agent, op, op.source, spread, vector, other)
        beyond = warp.loaded
    moved = machine.numbers.convert(values, op.source.dtype, op.target.dtype)
    if machine.check and op.source.is_tensor and op.target.is_tensor:
        _find_overlap(machine, warp, op, agent)
    if op.target.is_fragment:
        if op.source.is_fragment and machine.signs.combines(op.source, op.target):
            old = held(machine, warp, op.target)
            beyond = edges.of_change(beyond, old, warp.beyond.get(op.target), moved)
        replaced = warp.replaced.get(op.source)
        define(machine, warp, op, op.target, moved, beyond=beyond)
        if replaced is not None and replaced.shape == moved.shape:
            warp.replaced[op.target] = replaced
    else:
        machine.store(warp, agent, op, op.target, spread, vector, moved, beyond, op.reduction)


OVERLAP = (
    "the same operation reads this element for another element of the tile, before or after it is written; "
    "first load the whole tile into registers with tw.load"
)


def _find_overlap(machine: Simulator, warp: Warp, op: ops.Copy, agent: Actor) -> None:
    """Report elements that a warp reads in a copy and writes at another place of the tile.

    The accesses of one thread are in order, but a copy does not specify an order: a target may move one
    vector after another, or read all before it writes any.
    """
    source, target = (buffer_of(warp, value) for value in (op.source, op.target))
    if source is None or target is None or source.history is None or source.history is not target.history:
        return
    read = _accessed_places(machine, warp, op.source, op.spread, source)
    written = _accessed_places(machine, warp, op.target, op.spread, target)
    if read is None or written is None or not len(read[1]):
        return
    elements, places, inside, lanes = written
    _, known, known_inside, _ = read
    order = np.argsort(known, kind="stable")
    partner = order[np.searchsorted(known, places, sorter=order).clip(max=len(order) - 1)]
    moved = (known[partner] == places) & (known_inside[partner] != inside)
    if moved.any():
        site = machine.checker.site(op, op.target, "write")
        found = Batch(agent, site, target, elements[moved], lanes[moved])
        machine.checker.defect(Kind.OVERLAP, found, OVERLAP)


def _accessed_places(
    machine: Simulator, warp: Warp, value: Value, spread: Distribution, buffer: Storage
) -> tuple[Array, Array, Array, Array] | None:
    """Return the elements that a warp touches, their places in the history and in the tile, and the lanes."""
    footprint = machine.footprints.of(warp.rank, value, spread, machine.gathers.environment(warp, value))
    if footprint is None:
        return None
    usable = footprint.valid & ~buffer.outside(footprint.offsets.ravel()).reshape(footprint.valid.shape)
    inside = np.ravel_multi_index(tuple(np.moveaxis(footprint.coordinates[usable], -1, 0)), spread.shape)
    at, places, lanes = buffer.places(*footprint.elements(usable))
    return at, places, np.repeat(inside, buffer.units), lanes


@REFERENCE.rule(ops.AsyncCommit)
def _async_commit(machine: Simulator, warp: Warp, op: ops.AsyncCommit) -> None:
    warp.copies.advance()


@REFERENCE.rule(ops.AsyncWait)
def _async_wait(machine: Simulator, warp: Warp, op: ops.AsyncWait) -> None:
    committed = warp.copies.time - 1
    machine.deliver(warp, committed - op.pending)


@REFERENCE.rule(ops.Fill)
def _fill(machine: Simulator, warp: Warp, op: ops.Fill) -> None:
    kind, value = op.target.dtype, op.value
    if isinstance(value, Value):
        made = machine.numbers.convert(np.asarray(warp.scalars[value]), value.dtype, kind)
    else:
        made = machine.numbers.number(value, kind)
    shape = machine.shape(warp, op.target.fragment.distribution)
    define(machine, warp, op, op.target, np.full(shape, made), fill=made)


# ---------------------------------------------------------------- arithmetic


@REFERENCE.rule(ops.Elementwise)
def _elementwise(machine: Simulator, warp: Warp, op: ops.Elementwise) -> None:
    operands: list[Any] = []
    dtypes: list[DType | None] = []
    marks: list[Array | None] = []
    replaced: list[Array | None] = []
    for operand in op.operands_:
        dtypes.append(operand.dtype if isinstance(operand, Value) else None)
        marks.append(None)
        replaced.append(None)
        if not isinstance(operand, Value):
            operands.append(_wrapped(warp.int(operand), op) if isinstance(operand, Expr) else operand)
        elif not operand.is_fragment:
            operands.append(warp.scalars[operand])
        else:
            values, beyond = read(machine, warp, op, operand), warp.beyond.get(operand)
            operands.append(_broadcast(op, operand, values))
            if beyond is not None and beyond.shape == values.shape:
                marks[-1] = _broadcast(op, operand, beyond)
            if operand in warp.replaced:
                replaced[-1] = _broadcast(op, operand, warp.replaced[operand])
    values = machine.numbers.elementwise(op.function, operands, dtypes, op.result.dtype)
    for operand in op.operands_ if warp.padded else ():
        if isinstance(operand, Value) and operand in warp.padded:
            total, unit = warp.registers[operand].values, operand.dtype.unit_roundoff
            edges.check_padding_share(warp.padded.pop(operand), total, np.asarray(values), unit)
    if not op.result.is_fragment:
        warp.scalars[op.result] = values
        return
    shape = machine.shape(warp, op.result.fragment.distribution)
    beyond = edges.of_elementwise(op.function, operands, marks)
    beyond = None if beyond is None else np.broadcast_to(beyond, shape)
    define(machine, warp, op, op.result, np.broadcast_to(values, shape), beyond=beyond)
    if any(part is not None for part in (*marks, *replaced)):
        replaced_here = edges.replaced_by(op.function, operands, marks, replaced)
        if replaced_here is not None and np.count_nonzero(replaced_here):
            warp.replaced[op.result] = np.broadcast_to(replaced_here, shape)


def _broadcast(op: ops.Elementwise, operand: Value, values: Array) -> Array:
    """Return the entry of an operand's registers that belongs to each register of the result."""
    places = _places(op.result.fragment.distribution, operand.fragment.distribution)
    return values if places is None else values[:, places]


@lru_cache(maxsize=1024)
def _places(full: Distribution, part: Distribution) -> Array | None:
    """Return the register of an operand for each register of the result; None if they are the same."""
    digits = broadcast(full, part)
    assert digits is not None, "verified"
    return None if len(digits) == 1 else registers_of(digits, full.size_values)


def _wrapped(number: int, op: ops.Elementwise) -> int:
    """Convert an integer to the dtype of the other operand: integers wrap, floats are rounded later."""
    other = next((v.dtype for v in op.operands_ if isinstance(v, Value)), op.result.dtype)
    if other.kind not in ("int", "uint"):
        return number
    low = -(1 << (other.bits - 1)) if other.kind == "int" else 0
    return (number - low) % (1 << other.bits) + low


@REFERENCE.rule(ops.Mma)
def _mma(machine: Simulator, warp: Warp, op: ops.Mma) -> None:
    accumulator, depth = held(machine, warp, op.c), depth_of(op.a)
    values: list[Array] = []
    beyond: list[Array | None] = []
    for operand, spread in ((op.a, op.mma.a(depth)), (op.b, op.mma.b(depth))):
        if operand.is_fragment:
            values.append(read(machine, warp, op, operand))
            beyond.append(warp.beyond.get(operand))
        else:
            vector = machine.instructions.operand_vector(op, operand, spread)
            values.append(machine.load(warp, warp.agent, op, operand, spread, vector))
            beyond.append(warp.loaded)
    c = read(machine, warp, op, op.c)
    result, sums_beyond = c.copy(), warp.beyond.get(op.c)
    lanes, step = machine.shape(warp, op.mma.c())[0], min(op.mma.atom.lanes, machine.lanes)
    for first in range(0, lanes, step):  # executions of the atom
        part = slice(first, min(first + step, lanes))
        maps = _dense(op.mma, depth, warp.rank * machine.lanes + part.start, part.stop - part.start)
        a, b = (_scattered(x[part], index, shape) for x, (index, shape) in zip(values, maps, strict=False))
        index = maps[2][0]
        before = _scattered(c[part], index, (len(a), len(b)))
        sums = machine.numbers.multiply_add(machine.adding(op), a, b, before, op.negative)
        result[part] = sums[index]
        if any(marks is not None for marks in beyond):
            marks = [
                _scattered(np.zeros(x.shape, bool)[part] if m is None else m[part], place, shape)
                for x, m, (place, shape) in zip(values, beyond, maps, strict=False)
            ]
            rows, columns, wrong = edges.of_multiply(a, b, (marks[0], marks[1]))
            sums_beyond = np.zeros(c.shape, bool) if sums_beyond is None else sums_beyond.copy()
            sums_beyond[part] |= rows[index[0]] | columns[index[1]]
            if wrong.any():
                edges.report_products(machine.checker, warp.agent, op, (a, b), marks, wrong)
    warp.registers[op.c] = WarpRegisters(result, accumulator.written)
    set_beyond(warp, op.c, sums_beyond)


@lru_cache(maxsize=256)
def _dense(mma: TiledMma, depth: int, thread: int, count: int) -> tuple[tuple[Any, tuple[int, ...]], ...]:
    """Place the fragments of ``count`` threads in the smallest boxes of A, B and C that hold them all."""
    threads = slice(thread, thread + count)
    a, b, c = (spread.table[threads] for spread in (mma.a(depth), mma.b(depth), mma.c()))
    row, column = a[..., 0].min(), b[..., 0].min()
    return (
        ((a[..., 0] - row, a[..., 1]), (int(a[..., 0].max() - row) + 1, depth)),
        ((b[..., 0] - column, b[..., 1]), (int(b[..., 0].max() - column) + 1, depth)),
        ((c[..., 0] - row, c[..., 1] - column), ()),
    )


def _scattered(values: Array, index: tuple[Array, Array], shape: tuple[int, ...]) -> Array:
    dense = np.zeros(shape, values.dtype)
    dense[index] = values
    return dense


# ---------------------------------------------------------------- reductions and other distributions


@REFERENCE.rule(ReduceOp)
def _reduce(machine: Simulator, warp: Warp, op: ReduceOp) -> None:
    """Combine the registers of each lane in their order, then pairs of lanes."""
    plan, numbers = op.plan, machine.numbers
    combine = numbers.combine(op.function, op.source.dtype)
    values = numbers.widen(read(machine, warp, op, op.source), op.source.dtype)
    beyond = _reduce_marks(machine, warp, op, values) if op.source in warp.beyond else None
    parts = values[:, _registers(plan)]
    with np.errstate(all="ignore"):
        total = parts[..., 0]
        for part in range(1, parts.shape[-1]):
            total = combine(total, parts[..., part])
        for partners in edges.lane_partners(plan, len(total)):
            total = combine(total, total[partners])
    define(machine, warp, op, op.result, numbers.narrowed(total, op.result.dtype), beyond=beyond)


def _reduce_marks(machine: Simulator, warp: Warp, op: ReduceOp, values: Array) -> Array:
    """Return which results lie beyond the edge of an array; report those that mix elements on both sides."""
    registers, marks = _registers(op.plan), warp.beyond[op.source]
    neutral = edges.is_neutral(op, values, marks, machine.signs)
    replaced = warp.replaced.get(op.source, np.zeros_like(marks))
    made, mixed = edges.of_reduce(op, *(part[:, registers] for part in (marks, neutral, replaced)))
    if not mixed.any():
        return made
    wrong = (marks & ~neutral)[:, registers] & mixed[..., None]
    found = int(wrong.sum())

    def report() -> None:
        lane, result, part = (int(i) for i in np.argwhere(wrong)[0])
        number = int(registers[result, part])
        place = _element(machine, warp, op.source, lane, number), lane
        what = f"{edges.spelled(values[lane, number])}, which changes the {op.function} of elements inside"
        edges.report(machine.checker, warp.agent, op, op.source, place, what, found)

    if op.function == "sum" and machine.signs.sole_user(op.result) is not None:
        # The operation that uses the sum may subtract the share of the elements beyond the edge.
        parts = np.where(wrong, values[:, registers].astype(np.float64), 0)
        share, sizes = parts.sum(-1), np.abs(parts).sum(-1)
        for partners in edges.lane_partners(op.plan, len(share)):
            share, sizes = share + share[partners], sizes + sizes[partners]
        extent = op.source.fragment.shape[op.dim]
        warp.padded[op.result] = Padded(share, sizes, mixed, extent, report if found else None)
    elif found:  # otherwise a lane of another warp reports it
        report()
    return made


@REFERENCE.rule(PrefixOp)
def _prefix(machine: Simulator, warp: Warp, op: PrefixOp) -> None:
    """Digits of a coordinate, finest first: registers by rising number, then pairs of lanes."""
    plan, numbers, dtype = op.plan, machine.numbers, op.source.dtype
    combine = numbers.combine("sum", dtype)
    values = numbers.widen(read(machine, warp, op, op.source), dtype)
    places = registers_of(plan.runs.kept, plan.runs.result.size_values)[:, None]
    places = places + registers_of(plan.registers, values.shape[1] // len(places))
    with np.errstate(all="ignore"):
        sums = _prefix_sums(plan, values[:, places], combine)
        start = None
        if op.before is not None:
            start = numbers.widen(read(machine, warp, op, op.before), dtype)
            sums = combine(start[..., None], sums)
    made = np.empty_like(values)
    made[:, places] = sums
    marks = warp.beyond.get(op.source)
    if marks is not None:
        wrong = (marks & (values != 0))[:, places]
        reached = np.empty_like(marks)
        reached[:, places] = _prefix_sums(plan, wrong.astype(np.int64), np.add) > 0
        replaced = warp.replaced.get(op.source, np.zeros_like(marks))
        if (mixed := reached & ~marks & ~replaced).any():
            lane, number = (int(i) for i in np.argwhere(mixed)[0])
            place = _element(machine, warp, op.source, lane, number), lane
            what = "added to the prefix sums of elements inside"
            edges.report(machine.checker, warp.agent, op, op.source, place, what, int(mixed.sum()))
    define(machine, warp, op, op.result, numbers.narrowed(made, op.result.dtype), beyond=marks)


def _prefix_sums(plan: PrefixPlan, parts: Array, combine: Any) -> Array:
    """Return prefix sums of runs, of shape (lanes, runs, values of a run in a lane)."""
    lanes, runs, upper = parts.shape
    sums, total, lower = parts.copy(), parts, 1
    for stage in plan.stages:
        if stage.in_lanes:
            before, apart = np.zeros_like(total), stage.weight
            while apart < stage.weight * stage.extent:
                other = total[np.arange(lanes) ^ apart]
                is_later = (np.arange(lanes) & apart != 0)[:, None, None]
                before = np.where(is_later, combine(before, other), before)
                total = combine(total, other)
                apart *= 2
            by_runs = sums.reshape(lanes, runs, upper, lower)
            sums = combine(before[..., None], by_runs).reshape(parts.shape)
            continue
        upper //= stage.extent
        total = total.reshape(lanes, runs, upper, stage.extent)
        by_digits = sums.reshape(lanes, runs, upper, stage.extent, lower)
        before = total[..., 0]
        for digit in range(1, stage.extent):
            by_digits[..., digit, :] = combine(before[..., None], by_digits[..., digit, :])
            before = combine(before, total[..., digit])
        total, sums, lower = before, by_digits.reshape(parts.shape), lower * stage.extent
    return sums


def _registers(plan: Reduction) -> Array:
    """Return the source registers that are reduced to each register of the result: (results, values)."""
    kept = registers_of(plan.kept, plan.result.size_values)
    return kept[:, None] + registers_of(plan.reduced, plan.count)


@REFERENCE.rule(Redistribute)
def _redistribute(machine: Simulator, warp: Warp, op: Redistribute) -> None:
    values, beyond = read(machine, warp, op, op.source), warp.beyond.get(op.source)
    start = [warp.int(at) for at in op.start]
    chosen = registers_of_part(op.source.fragment.distribution, op.distribution, start)
    assert chosen is not None, "the verifier refuses what threads do not hold"
    part = slice(machine.shape(warp, op.distribution)[0]), list(chosen)
    define(machine, warp, op, op.result, values[part], beyond=None if beyond is None else beyond[part])
    if op.source in warp.replaced:
        warp.replaced[op.result] = warp.replaced[op.source][part]


@REFERENCE.rule(Coordinates)
def _coordinates(machine: Simulator, warp: Warp, op: Coordinates) -> None:
    threads = machine.footprints.threads(warp.rank, op.distribution)
    define(machine, warp, op, op.result, op.distribution.table[threads][..., op.dim].astype(np.int32))


@REFERENCE.rule(Unpack)
def _unpack(machine: Simulator, warp: Warp, op: Unpack) -> None:
    numbers = numbers_of(read(machine, warp, op, op.source), op.packed)
    beyond = warp.beyond.get(op.source)
    if op.table:
        kinds, codes = [u8, *(None for _ in op.table)], numbers.view(np.uint8)
        made = machine.numbers.elementwise(TAKE, [codes, *op.table], kinds, op.target.dtype)
    else:
        made = machine.numbers.convert(numbers, op.packed, op.target.dtype)
    order = np.argsort(registers_of(op.digits, made.shape[1]))
    if beyond is not None:
        beyond = np.repeat(beyond, op.packed.per_byte, axis=1)[:, order]
    define(machine, warp, op, op.target, made[:, order], beyond=beyond)


@REFERENCE.rule(Pack)
def _pack(machine: Simulator, warp: Warp, op: Pack) -> None:
    values = read(machine, warp, op, op.source)
    numbers = machine.numbers.convert(values, op.source.dtype, op.packed)
    packed = joined(numbers.view(np.uint8) & np.uint8((1 << op.packed.bits) - 1), op.packed)
    beyond = warp.beyond.get(op.source)
    if beyond is not None:
        beyond = np.asarray(beyond.reshape(len(numbers), -1, op.packed.per_byte).all(axis=-1))
    define(machine, warp, op, op.target, packed, beyond=beyond)


# ---------------------------------------------------------------- synchronisation


@REFERENCE.rule(ops.Barrier)
def _barrier(machine: Simulator, warp: Warp, op: ops.Barrier) -> Steps:
    yield machine.arrive(warp, op, warp.block.barrier)


@REFERENCE.rule(ops.WarpBarrier)
def _warp_barrier(machine: Simulator, warp: Warp, op: ops.WarpBarrier) -> None:
    join([warp.agent])


# ---------------------------------------------------------------- control and integers


@REFERENCE.rule(ops.Variable)
def _variable(machine: Simulator, warp: Warp, op: ops.Variable) -> None:
    warp.variables[op.result] = warp.int(op.initial)


@REFERENCE.rule(ops.SetVariable)
def _set_variable(machine: Simulator, warp: Warp, op: ops.SetVariable) -> None:
    warp.variables[op.variable] = warp.int(op.value)


@REFERENCE.rule(ops.Let)
def _let(machine: Simulator, warp: Warp, op: ops.Let) -> None:
    warp.env[op.result] = warp.int(op.value)


@REFERENCE.rule(ops.GetVariable)
def _get_variable(machine: Simulator, warp: Warp, op: ops.GetVariable) -> None:
    warp.env[op.result] = warp.variables[op.variable]


@REFERENCE.rule(ReadIndex)
def _read_index(machine: Simulator, warp: Warp, op: ReadIndex) -> None:
    """Read an integer by all lanes of a warp; it is 0 outside of the array, or if nothing wrote it.

    An integer outside of its declared range is reported, and replaced by the nearest integer inside.
    """
    warp.env[op.result] = 0
    view, checker = op.source.tensor.view, machine.checker
    buffer = accessed_buffer(checker, warp, op, op.source, "read", machine.check)
    if buffer is None:
        return
    at, site = np.array([warp.int(view.offset)]), checker.site(op, op.source, "read")
    batch = Batch(warp.agent, site, buffer, at, np.array([WHOLE_WARP], np.int16))
    inside = machine.keep_within(warp, warp.agent, site, buffer, at)
    if not evaluate(view.valid, warp.env):
        return
    if buffer.outside(at).any():
        if inside:
            checker.outside(batch)
        return
    found = int(buffer.elements[at[0]])
    if not machine.check:
        warp.env[op.result] = found
        return
    places, history = buffer.places(at, at)[1], buffer.history
    is_written = buffer.written or history is None or history.writes.event[places].all()
    checker.reads(batch)
    if not is_written:
        return  # a loop with poison as its bound would never end
    low, stop = (None if end is None else warp.int(end) for end in (op.low, op.stop))
    wrong, nearest = "", found
    if low is not None and found < low:
        wrong, nearest = f"{found} is read, which is less than {low}", low
    elif stop is not None and found >= stop:
        wrong, nearest = f"{found} is read, which is not less than {stop}", max(stop - 1, low or 0)
    elif found % op.multiple:
        wrong = f"{found} is read, which is no multiple of {op.multiple}"
    if wrong:
        said = {"low": op.low, "stop": op.stop, "multiple": op.multiple if op.multiple > 1 else None}
        span = "".join(f", {name}={end}" for name, end in said.items() if end is not None)
        checker.defect(Kind.RANGE, batch, f"{wrong}, but the kernel says tw.index({op.source}{span})")
    warp.env[op.result] = nearest


@REFERENCE.rule(ops.For)
def _for(machine: Simulator, warp: Warp, op: ops.For) -> Steps:
    turns = range(warp.int(op.start), warp.int(op.stop), op.step)
    machine.trail.turned(op, len(turns))
    gap = None if machine.turns is None else machine.turns.gap(warp, op, turns)
    before = warp.steps
    for number, index in enumerate(turns):
        if gap is not None and machine.turns is not None:
            if number == gap.first - gap.period:
                before = warp.steps.copy()
            elif number == gap.first:
                machine.turns.leave_out(warp, gap, before)
            if gap.first <= number < gap.resume:
                continue
        warp.env[op.index] = index
        yield from machine.steps(warp, op.body)


@REFERENCE.rule(ops.If)
def _if(machine: Simulator, warp: Warp, op: ops.If) -> Steps:
    holds = warp.cond(op.condition)
    machine.trail.took.setdefault(id(op), set()).add(holds)
    yield from machine.steps(warp, op.then if holds else op.otherwise)
