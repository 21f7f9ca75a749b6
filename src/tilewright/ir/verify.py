"""Verifier of whole kernels: rules of operations, scopes of values and symbols, agreement of threads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from tilewright.calls import launches
from tilewright.errors import Violation
from tilewright.ir import clusters, meetings, prior_grid_legality
from tilewright.ir.async_ops import MBarrier, MmaAsync, Role, RoleBarrier
from tilewright.ir.bulk_legality import verify_maps
from tilewright.ir.copies import is_bulk
from tilewright.ir.fragment_ops import Reduce
from tilewright.ir.kernel import Derived, Kernel, SizeParam
from tilewright.ir.legality_table import broken_rules
from tilewright.ir.ops import Block, For, GetVariable, Let, Mma, Op, ReadIndex, SetVariable, Variable
from tilewright.ir.packed_legality import verify_packed
from tilewright.ir.types import Memory, OperandTypeError, TensorType, Value
from tilewright.symbolic.nodes import And, Cond, Expr, Less, Sym
from tilewright.symbolic.rebuilding import symbols
from tilewright.views.view import View


@launches
def violations(kernel: Kernel) -> list[Violation]:
    """Return every rule that a kernel breaks on any target; those from tracing come first; see `Kernel`.

    Args:
        kernel: a traced kernel.

    Returns:
        The broken rules, each with the author's line; empty if there are none.

    Example:
        >>> import tilewright as tw
        >>> @tw.kernel(X="N")
        ... def look(X):
        ...     tw.copy(X.tile((32,), (0,)), X.tile((64,), (0,)), threads=32)
        >>> traced = look.trace(tw.like("f32", 64))
        >>> [found] = tw.ir.violations(traced)
        >>> found.rule, found.nearest
        ('shape', '(64,) on both sides')
    """
    found = list(kernel.violations)
    for op in kernel.walk():
        found.extend(op.kept("broken", _broken))
    found.extend(_scopes(kernel))
    found.extend(_warps(kernel))
    found.extend(_inner_roles(kernel.body))
    found.extend(_barriers_in_loops(kernel.body))
    found.extend(prior_grid_legality.violations(kernel))
    found.extend(clusters.violations(kernel))
    found.extend(meetings.violations(kernel))
    found.extend(verify_maps(kernel.walk()))
    found.extend(_places_from_memory(kernel))
    return found


def _broken(op: Op) -> tuple[Violation, ...]:
    try:
        return tuple(broken_rules(op)) or tuple(verify_packed(op))
    except OperandTypeError as error:
        return (op.violation("operand", str(error), f"an operand of {op.verb} as print_kernel shows it"),)


def _places_from_memory(kernel: Kernel) -> Iterator[Violation]:
    """Require shared tiles of asynchronous engines to lie inside their tensor: engines ignore predicates."""
    read = _from_memory(kernel)
    for op in kernel.walk() if read else ():
        tiles = (op.a, op.b) if isinstance(op, MmaAsync) else op.ends if is_bulk(op) else ()
        for tile in tiles:
            kind = tile.type
            if not isinstance(kind, TensorType) or kind.memory is not Memory.SHARED:
                continue
            conditions = kind.view.valid.parts if isinstance(kind.view.valid, And) else (kind.view.valid,)
            escaping = [one for one in conditions if symbols(one) & read]
            if escaping:
                names = ", ".join(sorted({sym.name for one in escaping for sym in symbols(one) & read}))
                stops = [one.right for one in escaping if isinstance(one, Less) and one.left in read]
                yield op.violation(
                    "place in shared memory",
                    f"where {tile} lies follows from an integer in memory, {names}, which may lead out of "
                    f"{tile.buffer}: {op.verb} does not look",
                    f"tw.index(..., 0, {stops[0] if stops else 'stop'}), which declares its range",
                )


def _from_memory(kernel: Kernel) -> set[Sym]:
    """Return integers that are read from memory or depend on these."""
    found: set[Sym] = set()
    variables: set[Value] = set()
    count = -1
    while count < len(found) + len(variables):  # a variable may be set after its use
        count = len(found) + len(variables)
        for op in kernel.walk():
            match op:
                case ReadIndex():
                    found.add(op.result)
                case Let() if symbols(op.value) & found:
                    found.add(op.result)
                case For() if (symbols(op.start) | symbols(op.stop)) & found:
                    found.add(op.index)
                case Variable() if symbols(op.initial) & found:
                    variables.add(op.result)
                case SetVariable() if symbols(op.value) & found:
                    variables.add(op.variable)
                case GetVariable() if op.variable in variables:
                    found.add(op.result)
    return found


def _scopes(kernel: Kernel) -> Iterator[Violation]:
    params = {p.value for p in kernel.params if not isinstance(p, SizeParam)}
    outer: set[Any] = {*params, *(p.sym for p in kernel.sizes)}
    outer |= {axis.sym for axis in kernel.grid} | {axis.sym for axis in kernel.cluster}
    defined = {result: op for op in kernel.walk() for result in op.results}
    yield from _block_scopes(kernel.body, outer, defined)


def _block_scopes(block: Block, outer: set[Any], defined: dict[Any, Op]) -> Iterator[Violation]:
    visible = set(outer)
    for op in block.ops:
        named = dict.fromkeys((*op.operands, *sorted(op_symbols(op), key=lambda sym: sym.name)))
        for name in named:
            if name not in visible and name not in op.results:
                yield _out_of_scope(op, name, defined)
        visible.update(op.results)
        for region in op.regions:
            yield from _block_scopes(region, visible, defined)
        if isinstance(op, For | Role):
            visible.difference_update(op.results)


def _out_of_scope(op: Op, name: Any, defined: dict[Any, Op]) -> Violation:
    if name not in defined:
        return op.violation("scope", f"{name} is used, but belongs to another kernel")
    place = defined[name].location
    where = f" at {place.frame}" if place is not None else ""
    other = "a tw.var" if isinstance(name, Sym) else "copy it there to what is"
    return op.violation(
        "scope",
        f"{name} is used outside of the loop or branch that defines it{where}",
        f"use {name} inside, or {other} made outside",
    )


def _warps(kernel: Kernel) -> Iterator[Violation]:
    for op in kernel.walk():
        if isinstance(op, Reduce):
            yield from op.outside_warps(kernel.lanes)
        if isinstance(op, Mma) and not op.mma.atom.asynchronous and op.mma.atom.lanes != kernel.lanes:
            yield op.violation(
                "warp size",
                f"{op.mma.atom} has {op.mma.atom.lanes} lanes, the kernel {kernel.lanes}",
                f"an atom of {kernel.lanes} lanes",
            )
        if isinstance(op, RoleBarrier):
            yield from _meeting(op, kernel)
    if kernel.threads % kernel.lanes and kernel.threads > kernel.lanes:
        nearest = -(-kernel.threads // kernel.lanes) * kernel.lanes
        yield Violation(
            "threads",
            f"{kernel.threads} threads are no multiple of {kernel.lanes} lanes",
            f"{nearest} threads",
        )


def _meeting(op: RoleBarrier, kernel: Kernel) -> Iterator[Violation]:
    """Require a role barrier to have whole warps, at most those of the block."""
    if op.threads % kernel.lanes or op.threads < kernel.lanes:
        nearest = max(-(-op.threads // kernel.lanes), 1) * kernel.lanes
        yield op.violation("role_barrier", f"{op.threads} threads are no whole warps", str(nearest))
    if op.threads > kernel.threads:
        text = f"waits for {op.threads} threads; the block has {kernel.threads}"
        yield op.violation("role_barrier", text, str(kernel.threads))


def _inner_roles(block: Block, outer: Role | None = None) -> Iterator[Violation]:
    """Require nested roles to fit in the outer role; only the outermost may set registers."""
    for op in block.ops:
        if isinstance(op, Role) and outer is not None:
            yield from _inner_role(op, outer)
        for region in op.regions:
            yield from _inner_roles(region, op if isinstance(op, Role) else outer)


def _barriers_in_loops(block: Block, *, in_loop: bool = False) -> Iterator[Violation]:
    """Refuse transaction barriers in loops: each iteration would initialise them again, in any phase."""
    for op in block.ops:
        if isinstance(op, MBarrier) and in_loop:
            text = f"{op.result} is made in a loop: every turn would initialise it again, while it is in use"
            yield op.violation("mbarrier", text, "make it before the loop")
        for region in op.regions:
            yield from _barriers_in_loops(region, in_loop=in_loop or isinstance(op, For))


def _inner_role(op: Role, outer: Role) -> Iterator[Violation]:
    last = op.first + op.warps
    if last > outer.count:
        room = outer.count - op.first
        yield op.violation(
            "role",
            f"{op.warps} warps from warp {op.first} on; the role around it has {outer.count}",
            f"tw.role(warps={room})" if room > 0 else f"tw.role(warps={last}) around it",
        )
    if op.registers is not None:
        yield op.violation(
            "registers",
            f"registers={op.registers} of a role inside of a role; whole warpgroups set them together",
            f"registers={op.registers} of the outermost role",
        )


def op_symbols(op: Op) -> frozenset[Sym]:
    """Return the symbols in an operation's own attributes, without those in the types of its operands."""
    return op.kept("symbols", _named)


def _named(op: Op) -> frozenset[Sym]:
    named = (_symbols(getattr(op, f.name)) for f in fields(op) if f.name != "location")
    return frozenset(sym for syms in named for sym in syms)


def _symbols(value: Any) -> set[Sym]:
    if isinstance(value, Expr | Cond):
        return symbols(value)
    if isinstance(value, tuple):
        return {sym for part in value for sym in _symbols(part)}
    if isinstance(value, View):
        inner = _symbols(value.offset) | _symbols(value.valid) | _symbols(value.elems)
        return (inner - set(value.coords)) | _symbols(value.shape)
    if isinstance(value, Value) and isinstance(value.type, TensorType):
        return set()
    if hasattr(value, "apply"):
        return {sym for f in fields(value) for sym in _symbols(getattr(value, f.name))}
    return set()


def used_symbols(kernel: Kernel) -> set[Sym]:
    """Return every symbol that the kernel needs in its arrays, operations, views and launch shape."""
    found = {sym for array in kernel.tensors for sym in _symbols(array.tensor.view)}
    mapped = {tensor_map.tensor for tensor_map in kernel.tensor_maps}
    for op in kernel.walk():
        found |= op_symbols(op)
        for value in op.operands:
            # A tensor map holds the sizes of the array that TMA moves.
            by_map = is_bulk(op) and value.buffer.name in mapped
            if isinstance(value.type, TensorType) and op.read + op.written and not by_map:
                found |= _symbols(value.type.view) | _symbols(value.type.block)
    for axis in kernel.grid:
        found |= _symbols(axis.extent)
    for guard in kernel.guards:
        found |= symbols(guard.condition).union(*map(_symbols, guard.values))
    for space in kernel.workspaces:
        found |= _symbols(space.elems)
    for size in reversed(kernel.sizes):  # a derived size depends on earlier sizes
        if isinstance(size.source, Derived) and size.sym in found:
            found |= _symbols(size.source.value)
    return found
