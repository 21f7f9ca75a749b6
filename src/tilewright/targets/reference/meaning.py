"""The rules of the reference target: what each operation means."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from tilewright.dtypes import DType
from tilewright.functions.conversions import Array
from tilewright.ir import ops
from tilewright.ir.mma import TiledMma
from tilewright.ir.types import Value
from tilewright.symbolic.nodes import Expr
from tilewright.targets.reference import edges
from tilewright.targets.reference.agents import Agent, join
from tilewright.targets.reference.fragments import define, held, read, set_beyond, touch
from tilewright.targets.reference.integers import read_index
from tilewright.targets.reference.machine import Machine
from tilewright.targets.reference.overlaps import find_overlap
from tilewright.targets.reference.state import Registers, Steps, Warp
from tilewright.targets.rules import RuleTable
from tilewright.targets.target import REFERENCE as TARGET
from tilewright.threads.distribution import Distribution
from tilewright.threads.registers import broadcast, registers_of

REFERENCE = RuleTable(TARGET.name)
"""Rules are called as ``rule(machine, warp, op)``; those that may wait give back the steps between waits."""


# ---------------------------------------------------------------- memory and views


@REFERENCE.rule(ops.Shared, ops.Reshape, ops.Gather, ops.Partition)
def _nothing(machine: Machine, warp: Warp, op: ops.Op) -> None:
    """Shared memory exists from the block's start, and a view is no action."""


@REFERENCE.rule(ops.Fragment)
def _fragment(machine: Machine, warp: Warp, op: ops.Fragment) -> None:
    registers = Registers.blank(op.dtype, machine.shape(warp, op.distribution), machine.numbers)
    if op.fill is not None:
        registers.fill = machine.numbers.number(op.fill, op.dtype)
        registers.values[...] = registers.fill
        registers.written[...] = True
    touch(machine, warp, op, op.result, "write")
    set_beyond(warp, op.result, None)
    warp.registers[op.result] = registers


@REFERENCE.rule(ops.Copy, variant="direct")
@REFERENCE.rule(ops.Copy, variant="matrix")
def _copy(machine: Machine, warp: Warp, op: ops.Copy) -> None:
    _move(machine, warp, op, warp.agent)


@REFERENCE.rule(ops.Copy, variant="async")
def _copy_async(machine: Machine, warp: Warp, op: ops.Copy) -> None:
    _move(machine, warp, op, warp.copies)


def _move(machine: Machine, warp: Warp, op: ops.Copy, agent: Agent) -> None:
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
def _async_commit(machine: Machine, warp: Warp, op: ops.AsyncCommit) -> None:
    warp.copies.advance()


@REFERENCE.rule(ops.AsyncWait)
def _async_wait(machine: Machine, warp: Warp, op: ops.AsyncWait) -> None:
    committed = warp.copies.time - 1
    machine.deliver(warp, committed - op.pending)


@REFERENCE.rule(ops.Fill)
def _fill(machine: Machine, warp: Warp, op: ops.Fill) -> None:
    kind, value = op.target.dtype, op.value
    if isinstance(value, Value):
        made = machine.numbers.convert(np.asarray(warp.scalars[value]), value.dtype, kind)
    else:
        made = machine.numbers.number(value, kind)
    shape = machine.shape(warp, op.target.fragment.distribution)
    define(machine, warp, op, op.target, np.full(shape, made), fill=made)


# ---------------------------------------------------------------- arithmetic


@REFERENCE.rule(ops.Elementwise)
def _elementwise(machine: Machine, warp: Warp, op: ops.Elementwise) -> None:
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
def _mma(machine: Machine, warp: Warp, op: ops.Mma) -> None:
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
    warp.registers[op.c] = Registers(result, accumulator.written)
    set_beyond(warp, op.c, sums_beyond)


def _depth(value: Value) -> int:
    shape = value.fragment.shape if value.is_fragment else value.tensor.shape
    depth = shape[1]
    assert isinstance(depth, int)
    return depth


def _operand(
    machine: Machine, warp: Warp, op: ops.Mma, value: Value, spread: Distribution
) -> tuple[Array, Array | None]:
    """An operand's elements, and which of them lie beyond the edge of an array."""
    if value.is_fragment:
        return read(machine, warp, op, value), warp.beyond.get(value)
    vector = machine.vectors.of_operand(op, value, spread)
    return machine.load(warp, warp.agent, op, value, spread, vector), warp.loaded


def _parts(machine: Machine, warp: Warp, mma: TiledMma) -> list[slice]:
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
def _barrier(machine: Machine, warp: Warp, op: ops.Barrier) -> Steps:
    yield machine.arrive(warp, op, warp.block.barrier)


@REFERENCE.rule(ops.WarpBarrier)
def _warp_barrier(machine: Machine, warp: Warp, op: ops.WarpBarrier) -> None:
    join([warp.agent])


# ---------------------------------------------------------------- control and integers


@REFERENCE.rule(ops.Variable)
def _variable(machine: Machine, warp: Warp, op: ops.Variable) -> None:
    warp.variables[op.result] = warp.int(op.initial)


@REFERENCE.rule(ops.SetVariable)
def _set_variable(machine: Machine, warp: Warp, op: ops.SetVariable) -> None:
    warp.variables[op.variable] = warp.int(op.value)


@REFERENCE.rule(ops.Let)
def _let(machine: Machine, warp: Warp, op: ops.Let) -> None:
    warp.env[op.result] = warp.int(op.value)


@REFERENCE.rule(ops.GetVariable)
def _get_variable(machine: Machine, warp: Warp, op: ops.GetVariable) -> None:
    warp.env[op.result] = warp.variables[op.variable]


@REFERENCE.rule(ops.ReadIndex)
def _read_index(machine: Machine, warp: Warp, op: ops.ReadIndex) -> None:
    warp.env[op.result] = read_index(machine, warp, op)


@REFERENCE.rule(ops.For)
def _for(machine: Machine, warp: Warp, op: ops.For) -> Steps:
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
def _if(machine: Machine, warp: Warp, op: ops.If) -> Steps:
    holds = warp.cond(op.condition)
    machine.trail.took.setdefault(id(op), set()).add(holds)
    yield from machine.steps(warp, op.then if holds else op.otherwise)
