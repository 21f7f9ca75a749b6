"""Rewriting of kernels: every pass uses this module to map a kernel to a kernel in the same IR.

A pass gives `rewrite_kernel` a function that replaces single operations.  This module rebuilds everything
that depends on a replacement: operands, and the inferred types of results and of views derived from them.
Locations do not change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, replace
from operator import is_
from typing import Any, TypeAlias, TypeVar

from tilewright.errors import Location
from tilewright.ir.builder import Names, make
from tilewright.ir.kernel import Kernel, SizeParam
from tilewright.ir.ops import Block, Op
from tilewright.ir.types import Value
from tilewright.symbolic.nodes import Sym

OpType = TypeVar("OpType", bound=Op)
Change: TypeAlias = "Callable[[Op, Rewriter], Iterable[Op] | None]"
"""Returns the replacement of an operation, whose operands are already rebuilt; None keeps it."""


class Rewriter:
    """Rebuilds operations, and keeps a map from old values to new ones.

    Args:
        kernel: the kernel to rebuild; new names differ from all of its names.
        change: returns the replacement of an operation.
    """

    def __init__(self, kernel: Kernel, change: Change) -> None:
        self.names = names_of(kernel)
        self.change = change
        self.values: dict[Value, Value] = {}

    def define(
        self, op: type[OpType], wanted: str, location: Location | None = None, **attributes: Any
    ) -> OpType:
        """Make a new operation whose result has an unused name."""
        return make(op, self.names.unique(wanted), location, **attributes)

    def rebuild(self, item: Any) -> Any:
        """Return an attribute, operand or block with all replacements applied."""
        match item:
            case Value():
                return self.values.get(item, item)
            case tuple():
                return tuple(self.rebuild(part) for part in item)
            case Block():
                return self.block(item)
            case _:
                return item

    def block(self, block: Block) -> Block:
        """Return a block with every operation rebuilt and then changed; the same one if nothing changes."""
        ops = tuple(new for op in block.ops for new in self.op(op))
        return block if len(ops) == len(block.ops) and all(map(is_, ops, block.ops)) else Block(ops)

    def op(self, op: Op) -> tuple[Op, ...]:
        """Return the replacement of an operation."""
        old = {value.name: value for value in op.results if isinstance(value, Value)}
        rebuilt = self._rebuilt(op) if self.values or op.regions else op
        changed = self.change(rebuilt, self)
        made = (rebuilt,) if changed is None else tuple(changed)
        for new_op in made:
            for result in new_op.results:
                if isinstance(result, Value) and result.name in old and result is not old[result.name]:
                    self.values[old[result.name]] = result
        return made

    def _rebuilt(self, op: Op) -> Op:
        """Return an operation with rebuilt operands and regions, and the type that its result then has."""
        named = [f.name for f in fields(op) if f.name != "location" and op.roles.get(f.name) != "defines"]
        old = {name: getattr(op, name) for name in named}
        new = {name: self.rebuild(value) for name, value in old.items()}
        # Equal blocks may differ in locations.
        if all(new[name] is v or (new[name] == v and not isinstance(v, Block)) for name, v in old.items()):
            return op
        changed = replace(op, **new)
        if not (values := [value for value in op.results if isinstance(value, Value)]):
            return changed
        [value] = values
        shown = "" if value.written is None else value.written[1]
        retyped = make(type(op), value.name, op.location, shown=shown, **new)
        [result] = retyped.results
        return changed if (result.type, result.root) == (value.type, value.root) else retyped


def rewrite_kernel(kernel: Kernel, change: Change) -> Kernel:
    """Return the kernel with operations replaced by ``change``.

    Args:
        kernel: the kernel.
        change: takes an operation with rebuilt operands and the `Rewriter`, and returns the operations that
            replace it, or None.  A result of a replacement replaces the old result of the same name.

    Example:
        Without barriers:

        >>> from tilewright.ir.ops import Barrier
        >>> def silent(op, rewriter):
        ...     return () if isinstance(op, Barrier) else None
        >>> rewrite_kernel(Kernel("k", (), (), 32, Block((Barrier(), Barrier()))), silent).body.ops
        ()
    """
    return replace(kernel, body=Rewriter(kernel, change).block(kernel.body))


def defined_names(kernel: Kernel) -> Iterator[str]:
    """Return the names of everything that a kernel defines: parameters, indices, values."""
    launch = {p.sym for p in kernel.sizes} | {a.sym for a in kernel.grid} | {a.sym for a in kernel.cluster}
    results = [result for op in kernel.walk() for result in op.results]
    yield from sorted(sym.name for sym in launch.union(one for one in results if isinstance(one, Sym)))
    yield from (param.value.name for param in kernel.params if not isinstance(param, SizeParam))
    yield from (result.name for result in results if isinstance(result, Value))


def names_of(kernel: Kernel) -> Names:
    """Return the set of names that a kernel uses, which can make new unique names."""
    names = Names()
    for name in defined_names(kernel):
        names.unique(name)
    return names
