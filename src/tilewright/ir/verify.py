"""Verifier of whole kernels: rules of operations, scopes of values and symbols, agreement of threads.

`LEGALITY` lists the rules of each class of operations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tilewright.calls import launches
from tilewright.errors import Violation
from tilewright.ir import clusters, deadlocks
from tilewright.ir.async_legality import verify_bulk_copy, verify_maps, verify_mma_async, verify_role
from tilewright.ir.async_ops import MBarrier, MmaAsync, PriorGridWait, Role, RoleBarrier
from tilewright.ir.copies import ENGINES, Copy, is_bulk
from tilewright.ir.fragment_ops import PrefixOp, ReduceOp
from tilewright.ir.kernel import Kernel, SizeParam, op_symbols
from tilewright.ir.legality import (
    verify_async_copy,
    verify_copy,
    verify_elementwise,
    verify_fill,
    verify_fragment,
    verify_matrix_copy,
    verify_mma,
    verify_shared,
)
from tilewright.ir.op import Block, Op
from tilewright.ir.ops import (
    Elementwise,
    Fill,
    For,
    FragmentOp,
    GetVariable,
    Let,
    Mma,
    ReadIndex,
    SetVariable,
    Shared,
    Variable,
)
from tilewright.ir.packed_ops import verify_packed
from tilewright.ir.types import Memory, OperandTypeError, TensorType, Value
from tilewright.symbolic.nodes import And, Less, Sym
from tilewright.symbolic.rebuilding import symbols


def broken_rules(op: Op) -> Iterator[Violation]:
    """Return the rules that an operation breaks on any target.

    `Op.verify` checks only an operation's own fields; the rules in `LEGALITY` also check its operands.
    """
    yield from op.verify()
    if (rules := LEGALITY.get(type(op))) is not None:
        yield from rules(op)


def _verify_engine(op: Copy) -> Iterator[Violation]:
    """Check engine, memories and completion of a copy, then the rules of the engine."""
    engine = ENGINES.get(op.variant)
    if engine is None:
        yield op.violation("engine", f"unknown engine {op.engine!r}", " or ".join(ENGINES))
        return
    yield from BY_ENGINE[op.variant](op)
    if op.way in engine.ways:
        yield from engine.verify_ends(op)
    for value in (op.source, op.target):
        if op.variant != "direct" and value.is_tensor and value.tensor.block is not None:
            text = f"the {op.variant} engine cannot access {value}, which lies in another block's memory"
            yield op.violation("engine", text, "copy")


BY_ENGINE: Mapping[str, Callable[[Copy], Iterator[Violation]]] = {
    "direct": verify_copy,
    "matrix": verify_matrix_copy,
    "async": verify_async_copy,
    "bulk": verify_bulk_copy,
}
"""The rules of copies, by engine."""

LEGALITY: Mapping[type[Op], Callable[[Any], Iterator[Violation]]] = {
    Copy: _verify_engine,
    Elementwise: verify_elementwise,
    Fill: verify_fill,
    FragmentOp: verify_fragment,
    Mma: verify_mma,
    MmaAsync: verify_mma_async,
    Role: verify_role,
    Shared: verify_shared,
}
"""The rules of each operation class whose legality depends on its operands."""


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
        found.extend(op.cached("broken", _broken))
    visible: set[Any] = {p.value for p in kernel.params if not isinstance(p, SizeParam)}
    visible |= {p.sym for p in kernel.sizes} | {a.sym for a in kernel.grid} | {a.sym for a in kernel.cluster}
    defined = {result: op for op in kernel.walk() for result in op.results}
    found.extend(_block_scopes(kernel.body, visible, defined))
    found.extend(_warps(kernel))
    found.extend(_inner_roles(kernel.body))
    found.extend(_barriers_in_loops(kernel.body))
    if kernel.waits_for_prior_grid:
        found.extend(_before_prior_grid(kernel.body, False, True))
    found.extend(clusters.violations(kernel))
    found.extend(deadlocks.violations(kernel))
    found.extend(verify_maps(kernel.walk()))
    found.extend(_places_from_memory(kernel))
    return found


def _broken(op: Op) -> tuple[Violation, ...]:
    try:
        return tuple(broken_rules(op)) or tuple(verify_packed(op))
    except OperandTypeError as error:
        return (op.violation("operand", str(error), f"an operand of {op.verb} as in print_kernel"),)


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
                    f"the place of {tile} depends on an integer in memory, {names}, which may lead out of "
                    f"{tile.buffer}: {op.verb} does not check it",
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


def _block_scopes(block: Block, outer: set[Any], defined: dict[Any, Op]) -> Iterator[Violation]:
    """Refuse values and symbols outside of the loop or branch that defines them."""
    visible = set(outer)
    for op in block.ops:
        named = dict.fromkeys((*op.operands, *sorted(op_symbols(op), key=lambda sym: sym.name)))
        for name in named:
            if name in visible or name in op.results:
                continue
            if name not in defined:
                yield op.violation("scope", f"{name} is used, but belongs to another kernel")
                continue
            place = defined[name].location
            where = f" at {place.frame}" if place is not None else ""
            other = (
                "a tw.var made outside" if isinstance(name, Sym) else "copy it there to a value made outside"
            )
            text = f"{name} is used outside of the loop or branch that defines it{where}"
            yield op.violation("scope", text, f"use {name} inside, or {other}")
        visible.update(op.results)
        for region in op.regions:
            yield from _block_scopes(region, visible, defined)
        if isinstance(op, For | Role):
            visible.difference_update(op.results)


def _warps(kernel: Kernel) -> Iterator[Violation]:
    for op in kernel.walk():
        if isinstance(op, ReduceOp | PrefixOp):
            yield from op.outside_warps(kernel.lanes)
        if isinstance(op, Mma) and not op.mma.atom.asynchronous and op.mma.atom.lanes != kernel.lanes:
            text = f"{op.mma.atom} has {op.mma.atom.lanes} lanes, the kernel {kernel.lanes}"
            yield op.violation("warp size", text, f"an atom of {kernel.lanes} lanes")
        if isinstance(op, RoleBarrier) and (op.threads % kernel.lanes or op.threads < kernel.lanes):
            nearest = max(-(-op.threads // kernel.lanes), 1) * kernel.lanes
            yield op.violation("role_barrier", f"{op.threads} threads are not whole warps", str(nearest))
        if isinstance(op, RoleBarrier) and op.threads > kernel.threads:
            text = f"waits for {op.threads} threads; the block has {kernel.threads}"
            yield op.violation("role_barrier", text, str(kernel.threads))
    if kernel.threads % kernel.lanes and kernel.threads > kernel.lanes:
        nearest = -(-kernel.threads // kernel.lanes) * kernel.lanes
        text = f"{kernel.threads} threads are not a multiple of {kernel.lanes} lanes"
        yield Violation("threads", text, f"{nearest} threads")


def _inner_roles(block: Block, outer: Role | None = None) -> Iterator[Violation]:
    """Require nested roles to fit in the outer role; only the outermost may set registers."""
    for op in block.ops:
        if isinstance(op, Role) and outer is not None:
            last, room = op.first + op.warps, outer.count - op.first
            if last > outer.count:
                yield op.violation(
                    "role",
                    f"{op.warps} warps from warp {op.first} on; the role around it has {outer.count}",
                    f"tw.role(warps={room})" if room > 0 else f"tw.role(warps={last}) around it",
                )
            if op.registers is not None:
                text = f"registers={op.registers} of a nested role; whole warpgroups set them together"
                yield op.violation("registers", text, f"registers={op.registers} of the outermost role")
        for region in op.regions:
            yield from _inner_roles(region, op if isinstance(op, Role) else outer)


def _barriers_in_loops(block: Block, *, in_loop: bool = False) -> Iterator[Violation]:
    """Refuse transaction barriers in loops: each iteration would initialise them again, in any phase."""
    for op in block.ops:
        if isinstance(op, MBarrier) and in_loop:
            text = f"{op.result} is made in a loop: each iteration would initialise it again while it is used"
            yield op.violation("mbarrier", text, "make it before the loop")
        for region in op.regions:
            yield from _barriers_in_loops(region, in_loop=in_loop or isinstance(op, For))


_PRIOR_GRID = "prior_grid_wait"
"""Name of the rule for grids that start before the previous grid has ended."""


def _before_prior_grid(block: Block, waited: bool, always: bool) -> Iterator[Violation]:
    """Yield accesses to global memory that may precede the wait, and waits that a block may skip.

    The launcher starts a kernel with `PriorGridWait` early.  Two rules make this correct:

    - No block accesses global memory before the wait: the previous grid may not have written the data yet,
      or may still read it.
    - Every block waits.  A block without a wait could end before the previous grid.  The next grid waits only
      for this grid, so its wait could end too early.

    Args:
        block: the operations.
        waited: whether the wait is before the block.
        always: whether every block of the grid executes these operations.
    """
    for op in block.ops:
        if isinstance(op, PriorGridWait):
            if not (waited or always):
                rule = "the next grid would not wait for the previous one"
                text = f"a block may skip this wait and end before the previous grid; {rule}"
                yield op.violation(_PRIOR_GRID, text, "outside of the loop or branch")
            waited = True
        elif not waited:
            accesses = [("reads", value) for value in op.read] + [("writes", value) for value in op.written]
            for verb, value in accesses:
                if value.is_tensor and value.tensor.memory is Memory.GLOBAL:
                    yield op.violation(
                        _PRIOR_GRID,
                        f"{op.verb} {verb} {value.buffer} before the wait for the previous grid, which may "
                        f"not have {'written' if verb == 'reads' else 'read'} it yet",
                        "after tw.hopper.prior_grid_wait()",
                    )
        for region in op.regions:
            yield from _before_prior_grid(region, waited, always and isinstance(op, Role))
