"""The meaning of every operation that threads execute themselves: the rules of the reference target."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import numpy as np

from tilewright.dtypes import DType
from tilewright.functions.conversions import Array
from tilewright.ir import ops
from tilewright.ir.fragment_ops import Coordinates, Redistribute, Reduce
from tilewright.ir.integer_ops import ReadIndex
from tilewright.ir.mma import TiledMma
from tilewright.ir.ops import Copy, Op
from tilewright.ir.packed_ops import AsBytes, Pack, Unpack
from tilewright.ir.types import Value
from tilewright.packing import joined, numbers_of
from tilewright.symbolic.nodes import Expr
from tilewright.symbolic.rebuilding import evaluate
from tilewright.targets.reference import edges
from tilewright.targets.reference.addressing import accessed_buffer, buffer_of
from tilewright.targets.reference.agents import WHOLE_WARP, Actor, join
from tilewright.targets.reference.findings import Kind
from tilewright.targets.reference.machine import Simulator
from tilewright.targets.reference.memory import Storage
from tilewright.targets.reference.state import Padded, Steps, Warp, WarpRegisters
from tilewright.targets.rules import RuleTable
from tilewright.targets.target import REFERENCE as TARGET
from tilewright.threads.distribution import Distribution
from tilewright.threads.distribution import registers as registers_of_part
from tilewright.threads.registers import Reduction, broadcast, registers_of

# ---------------------------------------------------------------- copies onto themselves
# The accesses of one thread are in order, but a copy does not specify an order: a target may move one vector
# after another, or read all before it writes any.


REASON = (
    "the same operation reads this element at another place of the tile, before or after it is written: "
    "bring all of it into registers first, with tw.load"
)


def find_overlap(machine: Simulator, warp: Warp, op: Copy, agent: Actor) -> None:
    """Report elements that the lanes of a warp read and write in one copy, unless where they already are."""
    source, target = (buffer_of(warp, value) for value in (op.source, op.target))
    if source is None or target is None:
        return
    if source.history is None or source.history is not target.history:
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
        machine.checker.defect(Kind.OVERLAP, agent, site, target, elements[moved], lanes[moved], REASON)


def _accessed_places(
    machine: Simulator, warp: Warp, value: Value, spread: Distribution, buffer: Storage
) -> tuple[Array, Array, Array, Array] | None:
    """What a warp touches of a tensor: elements, their places in the history, in the tile, and the lanes."""
    footprint = machine.footprints.of(warp.rank, value, spread, machine.gathers.environment(warp, value))
    if footprint is None:
        return None
    usable = footprint.valid & ~buffer.outside(footprint.offsets.ravel()).reshape(footprint.valid.shape)
    elements = footprint.offsets[usable]
    inside = np.ravel_multi_index(tuple(np.moveaxis(footprint.coordinates[usable], -1, 0)), spread.shape)
    lanes = np.nonzero(usable)[0]
    at, places, lanes = buffer.places(elements, lanes)
    return at, places, np.repeat(inside, buffer.units), lanes


# ---------------------------------------------------------------- integers in memory


def read_index(machine: Simulator, warp: Warp, op: ReadIndex) -> int:
    """The integer that all lanes of a warp read; 0 outside of the array, or where it cannot be read."""
    view = op.source.tensor.view
    buffer, agent = accessed_buffer(machine.checker, warp, op, op.source, "read", machine.check), warp.agent
    if buffer is None:
        return 0
    at = np.array([warp.int(view.offset)], np.int64)
    everyone = np.array([WHOLE_WARP], np.int16)
    site = machine.checker.site(op, op.source, "read")
    inside = machine.keep_within(warp, agent, site, buffer, at[:, None], np.ones((1, 1), bool))
    if not evaluate(view.valid, warp.env):
        return 0
    if buffer.outside(at).any():
        if inside:
            reason = f"{buffer.owner} has the elements 0 to {len(buffer.elements) - 1}"
            machine.checker.defect(Kind.OUT_OF_BOUNDS, agent, site, buffer, at, everyone, reason)
        return 0
    found = int(buffer.elements[at[0]])
    if not machine.check:
        return found
    is_unwritten = is_poison(buffer, at)
    machine.checker.reads(agent, site, buffer, at, everyone)
    return 0 if is_unwritten else _within(machine, warp, op, found, (site, buffer, at, everyone))


def is_poison(buffer: Storage, at: Array) -> bool:
    """Whether an element has no value yet: what it holds would make loops without an end."""
    if buffer.written or buffer.history is None:
        return False
    _, places, _ = buffer.places(at, np.zeros(1, np.int16))
    return bool((buffer.history.writes.event[places] == 0).any())


def _within(
    machine: Simulator, warp: Warp, op: ReadIndex, found: int, access: tuple[int, Storage, Array, Array]
) -> int:
    """What was read, or the nearest integer that the author declared possible."""
    low, stop = (None if end is None else warp.int(end) for end in (op.low, op.stop))
    wrong = ""
    nearest = found
    if low is not None and found < low:
        wrong, nearest = f"{found} is read, which is less than {low}", low
    elif stop is not None and found >= stop:
        wrong, nearest = f"{found} is read, which is not less than {stop}", max(stop - 1, low or 0)
    elif found % op.multiple:
        wrong = f"{found} is read, which is no multiple of {op.multiple}"
    if wrong:
        site, buffer, at, lanes = access
        said = {"low": op.low, "stop": op.stop, "multiple": op.multiple if op.multiple > 1 else None}
        span = "".join(f", {name}={end}" for name, end in said.items() if end is not None)
        reason = f"{wrong}, but the kernel says tw.index({op.source}{span})"
        machine.checker.defect(Kind.RANGE, warp.agent, site, buffer, at, lanes, reason)
    return nearest


# ---------------------------------------------------------------- registers


def read(machine: Simulator, warp: Warp, op: Op, value: Value) -> Array:
    """The values of a fragment, all of which must have been written; poison while an MMA uses it."""
    registers = held(machine, warp, value)
    _require_written(machine, warp, op, value, registers)
    if touch(machine, warp, op, value, "read"):
        return registers.values
    return machine.numbers.poison(value.dtype, (registers.values.shape[0], registers.values.shape[1]))


def held(machine: Simulator, warp: Warp, value: Value) -> WarpRegisters:
    """A warp's part of a fragment; what was made in the role of other warps is there, and unwritten."""
    shape = machine.shape(warp, value.fragment.distribution)
    registers = warp.registers.get(value)
    if registers is None:
        registers = warp.registers[value] = WarpRegisters.blank(value.dtype, shape, machine.numbers)
    return registers.of_lanes(value.dtype, shape[0], machine.numbers)


def set_beyond(warp: Warp, value: Value, beyond: Array | None) -> None:
    """Remember which elements of a fragment lie beyond the edge of an array."""
    if beyond is not None and np.count_nonzero(beyond):
        warp.beyond[value] = beyond
    else:
        warp.beyond.pop(value, None)


def require_written(machine: Simulator, warp: Warp, op: Op, value: Value) -> None:
    """Report elements of a fragment that nothing has written."""
    _require_written(machine, warp, op, value, held(machine, warp, value))


def _require_written(machine: Simulator, warp: Warp, op: Op, value: Value, registers: WarpRegisters) -> None:
    if machine.check and np.count_nonzero(registers.written) < registers.written.size:
        missing = np.argwhere(~registers.written)
        lane, number = (int(i) for i in missing[0])
        thread = warp.rank * machine.lanes + lane
        element = tuple(int(i) for i in value.fragment.distribution.table[thread, number])
        machine.checker.registers(warp.agent, op, value, element, lane, len(missing))


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
        warp: whose part of it.
        op: what writes it.
        value: the fragment.
        values: its elements.
        fill: the number that they all are, in every thread.
        beyond: which of them lie beyond the edge of an array.
    """
    touch(machine, warp, op, value, "write")
    set_beyond(warp, value, beyond)
    warp.registers[value] = WarpRegisters(values, np.ones(values.shape, bool), fill=fill)


def touch(machine: Simulator, warp: Warp, op: Op, value: Value, action: str) -> bool:
    """Note that an operation touches a fragment; whether no asynchronous MMA uses it."""
    warp.fenced.discard(value)
    flight = next((flight for flight in warp.flights if flight.value is value), None)
    if flight is None:
        return True
    if machine.check:
        closed = "mma_wait covers" if flight.group < warp.mma_group else "mma_commit closes"
        reason = f"the MMA may still be under way: no {closed} its group before this {action}"
        other = (flight.agent, flight.op)
        machine.checker.fragment(Kind.IN_FLIGHT, warp.agent, op, value, action, other, reason)
    return False


# ---------------------------------------------------------------- the rule table


REFERENCE = RuleTable(TARGET.name)
"""Rules are called as ``rule(machine, warp, op)``; those that may wait give back the steps between waits."""


# ---------------------------------------------------------------- memory and views


@REFERENCE.rule(ops.Shared, ops.Reshape, ops.Gather, ops.Partition)
def _nothing(machine: Simulator, warp: Warp, op: ops.Op) -> None:
    """Shared memory exists from the block's start, and a view is no action."""


@REFERENCE.rule(ops.Fragment)
def _fragment(machine: Simulator, warp: Warp, op: ops.Fragment) -> None:
    registers = WarpRegisters.blank(op.dtype, machine.shape(warp, op.distribution), machine.numbers)
    if op.fill is not None:
        registers.fill = machine.numbers.number(op.fill, op.dtype)
        registers.values[...] = registers.fill
        registers.written[...] = True
    touch(machine, warp, op, op.result, "write")
    set_beyond(warp, op.result, None)
    warp.registers[op.result] = registers


@REFERENCE.rule(ops.Copy, variant="direct")
@REFERENCE.rule(ops.Copy, variant="matrix")
def _copy(machine: Simulator, warp: Warp, op: ops.Copy) -> None:
    _move(machine, warp, op, warp.agent)


@REFERENCE.rule(ops.Copy, variant="async")
def _copy_async(machine: Simulator, warp: Warp, op: ops.Copy) -> None:
    _move(machine, warp, op, warp.copies)


def _move(machine: Simulator, warp: Warp, op: ops.Copy, agent: Actor) -> None:
    spread = op.spread
    vector = machine.vectors.of_copy(op)
    if op.source.is_fragment:
        values, beyond = read(machine, warp, op, op.source), warp.beyond.get(op.source)
    else:
        other = machine.numbers.number(op.other, op.source.dtype) if op.other != 0 else None
        values = machine.load(warp, agent, op, op.source, spread, vector, other)
        beyond = warp.loaded
    moved = machine.numbers.convert(values, op.source.dtype, op.target.dtype)
    if machine.check and op.source.is_tensor and op.target.is_tensor:
        find_overlap(machine, warp, op, agent)
    if op.target.is_fragment:
        if op.source.is_fragment and machine.signs.combines(op.source, op.target):
            old = held(machine, warp, op.target)
            beyond = edges.of_change(beyond, old, warp.beyond.get(op.target), moved)
        define(machine, warp, op, op.target, moved, beyond=beyond)
    else:
        machine.store(warp, agent, op, op.target, spread, vector, moved, beyond, op.reduction)


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
    for operand in op.operands_:
        marks.append(None)
        if isinstance(operand, Value):
            is_fragment = operand.is_fragment
            values = read(machine, warp, op, operand) if is_fragment else warp.scalars[operand]
            operands.append(_broadcast(op, operand, values) if is_fragment else values)
            dtypes.append(operand.dtype)
            beyond = warp.beyond.get(operand)
            if beyond is not None and beyond.shape == values.shape:
                marks[-1] = _broadcast(op, operand, beyond)
        else:
            operands.append(_held(warp.int(operand), op) if isinstance(operand, Expr) else operand)
            dtypes.append(None)
    values = machine.numbers.elementwise(op.function, operands, dtypes, op.result.dtype)
    for operand in op.operands_ if warp.padded else ():
        if isinstance(operand, Value) and operand in warp.padded:
            total, unit = warp.registers[operand].values, operand.dtype.unit_roundoff
            edges.settle(warp.padded.pop(operand), total, np.asarray(values), unit)
    if op.result.is_fragment:
        shape = machine.shape(warp, op.result.fragment.distribution)
        beyond = edges.of_elementwise(op.function, operands, marks)
        beyond = None if beyond is None else np.broadcast_to(beyond, shape)
        define(machine, warp, op, op.result, np.broadcast_to(values, shape), beyond=beyond)
    else:
        warp.scalars[op.result] = values


def _broadcast(op: ops.Elementwise, operand: Value, values: Array) -> Array:
    """What belongs to an operand's registers, for each register of the result."""
    places = _places(op.result.fragment.distribution, operand.fragment.distribution)
    return values if places is None else values[:, places]


@lru_cache(maxsize=1024)
def _places(full: Distribution, part: Distribution) -> Array | None:
    """The register of an operand for each of the result's; None if it is the same one."""
    digits = broadcast(full, part)
    assert digits is not None, "verified"
    return None if len(digits) == 1 else registers_of(digits, full.size_values)


def _held(number: int, op: ops.Elementwise) -> int:
    """An integer as what stands beside it holds it: integers wrap, floats are rounded later."""
    beside = next((v.dtype for v in op.operands_ if isinstance(v, Value)), op.result.dtype)
    if beside.kind not in ("int", "uint"):
        return number
    low = -(1 << (beside.bits - 1)) if beside.kind == "int" else 0
    return (number - low) % (1 << beside.bits) + low


@REFERENCE.rule(ops.Mma)
def _mma(machine: Simulator, warp: Warp, op: ops.Mma) -> None:
    accumulator = held(machine, warp, op.c)
    depth = _depth(op.a)
    shapes = op.mma.a(depth), op.mma.b(depth)
    (a, b), beyond = zip(
        *(
            _operand(machine, warp, op, value, spread)
            for value, spread in zip((op.a, op.b), shapes, strict=True)
        ),
        strict=True,
    )
    c = read(machine, warp, op, op.c)
    result, sums_beyond = c.copy(), warp.beyond.get(op.c)
    for part in _parts(machine, warp, op.mma):
        maps = _dense(op.mma, depth, warp.rank * machine.lanes + part.start, part.stop - part.start)
        dense = [
            _scattered(values[part], index, shape)
            for values, (index, shape) in zip((a, b), maps[:2], strict=True)
        ]
        index = maps[2][0]
        before = _scattered(c[part], index, (len(dense[0]), len(dense[1])))
        sums = machine.numbers.multiply_add(machine.adding(op), dense[0], dense[1], before, op.negative)
        result[part] = sums[index]
        if any(marks is not None for marks in beyond):
            marks = [
                _scattered(np.zeros(v.shape, bool)[part] if m is None else m[part], index, shape)
                for v, m, (index, shape) in zip((a, b), beyond, maps[:2], strict=True)
            ]
            rows, columns, wrong = edges.of_multiply(dense[0], dense[1], (marks[0], marks[1]))
            if sums_beyond is None:
                sums_beyond = np.zeros(c.shape, bool)
            sums_beyond = sums_beyond.copy()
            sums_beyond[part] |= rows[index[0]] | columns[index[1]]
            if wrong.any():
                edges.report_products(machine.checker, warp.agent, op, dense, marks, wrong)
    warp.registers[op.c] = WarpRegisters(result, accumulator.written)
    set_beyond(warp, op.c, sums_beyond)


def _depth(value: Value) -> int:
    shape = value.fragment.shape if value.is_fragment else value.tensor.shape
    depth = shape[1]
    assert isinstance(depth, int)
    return depth


def _operand(
    machine: Simulator, warp: Warp, op: ops.Mma, value: Value, spread: Distribution
) -> tuple[Array, Array | None]:
    """An operand's elements, and which of them lie beyond the edge of an array."""
    if value.is_fragment:
        return read(machine, warp, op, value), warp.beyond.get(value)
    vector = machine.vectors.of_operand(op, value, spread)
    return machine.load(warp, warp.agent, op, value, spread, vector), warp.loaded


def _parts(machine: Simulator, warp: Warp, mma: TiledMma) -> list[slice]:
    """The lanes of a warp, split where one execution of the atom ends and the next begins."""
    lanes = machine.shape(warp, mma.c())[0]
    step = min(mma.atom.lanes, machine.lanes)
    return [slice(start, min(start + step, lanes)) for start in range(0, lanes, step)]


@lru_cache(maxsize=256)
def _dense(mma: TiledMma, depth: int, thread: int, count: int) -> tuple[tuple[Any, tuple[int, ...]], ...]:
    """Where the fragments of ``count`` threads lie in the smallest boxes of A, B and C that hold them all."""
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


@REFERENCE.rule(ops.ReadIndex)
def _read_index(machine: Simulator, warp: Warp, op: ops.ReadIndex) -> None:
    warp.env[op.result] = read_index(machine, warp, op)


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
            if gap.first <= number < gap.behind:
                continue
        warp.env[op.index] = index
        yield from machine.steps(warp, op.body)


@REFERENCE.rule(ops.If)
def _if(machine: Simulator, warp: Warp, op: ops.If) -> Steps:
    holds = warp.cond(op.condition)
    machine.trail.took.setdefault(id(op), set()).add(holds)
    yield from machine.steps(warp, op.then if holds else op.otherwise)


# ---------------------------------------------------------------- bytes that hold several numbers


@REFERENCE.rule(AsBytes)
def _as_bytes(machine: Simulator, warp: Warp, op: AsBytes) -> None:
    """A view is no action."""


@REFERENCE.rule(Unpack)
def _unpack(machine: Simulator, warp: Warp, op: Unpack) -> None:
    numbers = numbers_of(read(machine, warp, op, op.source), op.packed)
    beyond = warp.beyond.get(op.source)
    beyond = None if beyond is None else np.repeat(beyond, op.packed.per_byte, axis=1)
    made = machine.numbers.convert(numbers, op.packed, op.target.dtype)
    order = np.argsort(registers_of(op.digits, made.shape[1]))
    beyond = None if beyond is None else beyond[:, order]
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


# ---------------------------------------------------------------- reductions and other distributions


@REFERENCE.rule(Reduce)
def _reduce(machine: Simulator, warp: Warp, op: Reduce) -> None:
    """Registers by their number, then lanes in pairs."""
    plan, numbers = op.plan, machine.numbers
    combine = numbers.combine(op.function, op.source.dtype)
    values = numbers.widen(read(machine, warp, op, op.source), op.source.dtype)
    beyond = _beyond(machine, warp, op, values) if op.source in warp.beyond else None
    parts = values[:, _registers(plan)]
    with np.errstate(all="ignore"):
        total = parts[..., 0]
        for part in range(1, parts.shape[-1]):
            total = combine(total, parts[..., part])
        lanes = np.arange(len(total))
        for digit in plan.lanes:
            apart = digit.weight
            while apart < digit.weight * digit.extent:
                total = combine(total, total[lanes ^ apart])
                apart *= 2
    define(machine, warp, op, op.result, numbers.narrowed(total, op.result.dtype), beyond=beyond)


def _beyond(machine: Simulator, warp: Warp, op: Reduce, values: Array) -> Array:
    """Which results lie beyond the edge of an array; those that mix what does with others are found."""
    registers, marks = _registers(op.plan), warp.beyond[op.source]
    neutral = edges.is_neutral(op, values, marks, machine.signs)
    made, mixed = edges.of_reduce(op, marks[:, registers], neutral[:, registers])
    if mixed.any():
        wrong = (marks & ~neutral)[:, registers] & mixed[..., None]
        if op.function == "sum" and machine.signs.sole_user(op.result) is not None:
            _defer(machine, warp, op, values, wrong, mixed)
        elif wrong.any():  # else another warp's lane shows it
            _report(machine, warp, op, values, wrong)
    return made


def _report(machine: Simulator, warp: Warp, op: Reduce, values: Array, wrong: Array) -> None:
    registers = _registers(op.plan)
    lane, result, part = (int(i) for i in np.argwhere(wrong)[0])
    number = int(registers[result, part])
    thread = warp.rank * machine.lanes + lane
    element = tuple(int(i) for i in op.source.fragment.distribution.table[thread, number])
    changed = f"which changes the {op.function} of elements inside"
    what, place = f"{edges.spelled(values[lane, number])}, {changed}", (element, lane)
    edges.report(machine.checker, warp.agent, op, op.source, place, what, int(wrong.sum()))


def _defer(machine: Simulator, warp: Warp, op: Reduce, values: Array, wrong: Array, mixed: Array) -> None:
    """Let the operation that uses a sum take off what elements beyond an edge added to it."""
    parts = np.where(wrong, values[:, _registers(op.plan)].astype(np.float64), 0)
    share, sizes = parts.sum(-1), np.abs(parts).sum(-1)
    lanes = np.arange(len(share))
    for digit in op.plan.lanes:
        apart = digit.weight
        while apart < digit.weight * digit.extent:
            share, sizes = share + share[lanes ^ apart], sizes + sizes[lanes ^ apart]
            apart *= 2
    extent = op.source.fragment.shape[op.dim]
    report = partial(_report, machine, warp, op, values, wrong) if wrong.any() else None
    warp.padded[op.result] = Padded(share, sizes, mixed, extent, report)


def _registers(plan: Reduction) -> Array:
    """The source's register for each register of the result and each value that is reduced to it."""
    kept = registers_of(plan.kept, plan.result.size_values)
    return kept[:, None] + registers_of(plan.reduced, plan.count)


@REFERENCE.rule(Redistribute)
def _redistribute(machine: Simulator, warp: Warp, op: Redistribute) -> None:
    values = read(machine, warp, op, op.source)
    chosen = registers_of_part(
        op.source.fragment.distribution, op.distribution, [warp.int(at) for at in op.start]
    )
    assert chosen is not None, "the verifier refuses what threads do not hold"
    lanes = machine.shape(warp, op.distribution)[0]
    beyond = warp.beyond.get(op.source)
    beyond = None if beyond is None else beyond[:lanes, list(chosen)]
    define(machine, warp, op, op.result, values[:lanes, list(chosen)], beyond=beyond)


@REFERENCE.rule(Coordinates)
def _coordinates(machine: Simulator, warp: Warp, op: Coordinates) -> None:
    threads = machine.footprints.threads(warp.rank, op.distribution)
    define(machine, warp, op, op.result, op.distribution.table[threads][..., op.dim].astype(np.int32))
