"""Rewriting of kernels: every pass uses this module to map a kernel to a kernel in the same IR.

A pass gives `rewrite_kernel` a function that replaces single operations.  This module rebuilds everything
that depends on a replacement: operands, the inferred types of results and of views derived from them, index
symbols with a new range, and expressions over replaced symbols.  Locations do not change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, TypeAlias, TypeVar

from tilewright.errors import Location
from tilewright.ir.builder import Names, make
from tilewright.ir.integer_ops import grid_index, loop_index
from tilewright.ir.kernel import (
    Derived,
    GridAxis,
    Kernel,
    Param,
    ScalarParam,
    SizeParam,
    Workspace,
    defined_symbols,
)
from tilewright.ir.ops import Block, For, Op
from tilewright.ir.types import Type, Value
from tilewright.symbolic.nodes import Cond, Expr, Int, Sym
from tilewright.symbolic.rebuilding import Guard, substitute
from tilewright.views.transforms import TRANSFORMS
from tilewright.views.view import View, coordinates

OpType = TypeVar("OpType", bound=Op)
Change: TypeAlias = "Callable[[Op, Rewriter], Iterable[Op] | None]"
"""Returns the replacement of an operation, whose operands are already rebuilt; None keeps it."""


class Rewriter:
    """Rebuilds operations, and keeps a map from old values and symbols to new ones.

    Args:
        kernel: the kernel to rebuild; new names differ from all of its names.
        change: returns the replacement of an operation.
        symbols: symbols to replace by expressions.
    """

    def __init__(self, kernel: Kernel, change: Change, symbols: Mapping[Sym, Int] | None = None) -> None:
        self.names = names_of(kernel)
        self.change = change
        self.values: dict[Value, Value] = {}
        self.symbols: dict[Sym, Int] = dict(symbols or {})

    def define(
        self, op: type[OpType], wanted: str, location: Location | None = None, **attributes: Any
    ) -> OpType:
        """Make a new operation whose result has an unused name."""
        return make(op, self.names.unique(wanted), location, **attributes)

    def rebuild(self, item: Any) -> Any:
        """Return an attribute, operand, type, transform or block with all replacements applied."""
        match item:
            case Value():
                return self.values.get(item, item)
            case Expr() | Cond():
                return substitute(item, self.symbols)
            case View() if self.symbols:  # coordinates contain the extents, so they are rebuilt, too
                symbols = self.symbols
                shape = tuple(substitute(extent, symbols) for extent in item.shape)
                mapping = {**symbols, **dict(zip(item.coords, coordinates(shape), strict=True))}
                return View(
                    shape,
                    substitute(item.offset, mapping),
                    substitute(item.elems, symbols),
                    substitute(item.valid, mapping),
                    None if item.index is None else tuple(substitute(i, mapping) for i in item.index),
                )
            case tuple():
                return tuple(self.rebuild(part) for part in item)
            case Block():
                return self.block(item)
            case _ if type(item) in TRANSFORMS:
                return type(item)(*(self.rebuild(getattr(item, f.name)) for f in fields(item)))
            case _:
                return item

    def block(self, block: Block) -> Block:
        """Return a block with every operation rebuilt and then changed."""
        return Block(tuple(new for op in block.ops for new in self.op(op)))

    def op(self, op: Op) -> tuple[Op, ...]:
        """Return the replacement of an operation."""
        old = {value.name: value for value in op.results if isinstance(value, Value)}
        if isinstance(op, For):
            start, stop = self.rebuild(op.start), self.rebuild(op.stop)
            index = op.index
            if (start, stop) != (op.start, op.stop):
                index = loop_index(index.name, start, stop, op.step)
                self.symbols[op.index] = index
            body = self.block(op.body)
            rebuilt: Op = replace(op, index=index, start=start, stop=stop, body=body)
        elif not (self.values or self.symbols or op.regions):
            rebuilt = op  # nothing is replaced so far
        else:
            kept = {f.name: getattr(op, f.name) for f in fields(op) if f.name != "location"}
            defined = {name for name, role in op.roles.items() if role == "defines"}
            new = {name: v if name in defined else self.rebuild(v) for name, v in kept.items()}
            rebuilt = op if _same(kept, new) else self._retyped(replace(op, **new), old)
            if rebuilt is not op and hasattr(op, "symbol"):
                rebuilt = self._renamed(op, {f: v for f, v in new.items() if f not in defined})
        changed = self.change(rebuilt, self)
        made = (rebuilt,) if changed is None else tuple(changed)
        for new_op in made:
            for result in new_op.results:
                if isinstance(result, Value) and result.name in old and result is not old[result.name]:
                    self.values[old[result.name]] = result
        return made

    def _retyped(self, op: Op, old: Mapping[str, Value]) -> Op:
        if not old:
            return op
        [value] = old.values()
        attributes = {
            f.name: getattr(op, f.name)
            for f in fields(op)
            if f.name != "location" and op.roles.get(f.name) != "defines"
        }
        shown = "" if value.written is None else value.written[1]
        fresh = make(type(op), value.name, op.location, shown=shown, **attributes)
        [result] = fresh.results
        return op if (result.type, result.root) == (value.type, value.root) else fresh

    def _renamed(self, op: Op, attributes: Mapping[str, Any]) -> Op:
        """Rebuild an operation that defines an integer, because its known range may be different now."""
        [old] = op.results
        made = make(type(op), old.name, op.location, **attributes)
        [self.symbols[old]] = made.results
        return made


def _same(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    return all(value is new[name] or value == new[name] for name, value in old.items())


def rewrite_kernel(
    kernel: Kernel, change: Change | None = None, symbols: Mapping[Sym, Int] | None = None
) -> Kernel:
    """Return the kernel with operations replaced by ``change`` and ``symbols`` replaced by expressions.

    Args:
        kernel: the kernel.
        change: takes an operation with rebuilt operands and the `Rewriter`, and returns the operations that
            replace it, or None.  A result of a replacement replaces the old result of the same name.
        symbols: sizes to replace, e.g. by integers; the parameters remain, so the launcher is not affected.

    Example:
        Without barriers:

        >>> from tilewright.ir.ops import Barrier
        >>> def silent(op, rewriter):
        ...     return () if isinstance(op, Barrier) else None
        >>> rewrite_kernel(Kernel("k", (), (), 32, Block((Barrier(), Barrier()))), silent).body.ops
        ()
    """
    rewriter = Rewriter(kernel, change or (lambda op, rewriter: None), symbols)
    params = tuple(_param(param, rewriter) for param in kernel.params)
    grid = []
    for axis in kernel.grid:
        extent = rewriter.rebuild(axis.extent)
        sym = axis.sym if extent == axis.extent else grid_index(axis.sym.name, extent)
        if sym != axis.sym:
            rewriter.symbols[axis.sym] = sym
        grid.append(GridAxis(sym, extent, axis.kind))
    guards = tuple(
        Guard(
            rewriter.rebuild(guard.condition),
            guard.message,
            tuple(rewriter.rebuild(value) for value in guard.values),
        )
        for guard in kernel.guards
    )
    return replace(kernel, params=params, grid=tuple(grid), guards=guards, body=rewriter.block(kernel.body))


def _param(param: Param, rewriter: Rewriter) -> Param:
    if isinstance(param, SizeParam):
        if isinstance(param.source, Derived):
            return replace(param, source=Derived(rewriter.rebuild(param.source.value)))
        return param
    if isinstance(param, ScalarParam) or not rewriter.symbols:
        return param
    value = param.value
    kind: Type = replace(value.tensor, view=rewriter.rebuild(value.tensor.view))
    if kind != value.type:
        rewriter.values[value] = Value(value.name, kind)
    if isinstance(param, Workspace):
        return replace(param, value=rewriter.rebuild(value), elems=rewriter.rebuild(param.elems))
    return replace(param, value=rewriter.rebuild(value))


def defined_names(kernel: Kernel) -> Iterator[str]:
    """Return the names of everything that a kernel defines: parameters, indices, values."""
    yield from sorted(sym.name for sym in defined_symbols(kernel))
    for param in kernel.params:
        if not isinstance(param, SizeParam):
            yield param.value.name
    for op in kernel.walk():
        for value in op.results:
            if isinstance(value, Value):
                yield value.name


def names_of(kernel: Kernel) -> Names:
    """Return the set of names that a kernel uses, which can make new unique names."""
    names = Names()
    for name in defined_names(kernel):
        names.unique(name)
    return names
