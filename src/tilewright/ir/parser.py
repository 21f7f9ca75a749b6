"""Parser of printed kernels, based on Python's own parser."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from tilewright.calls import Calls, misfit_of_fields
from tilewright.errors import ParseError
from tilewright.functions.conversions import AlignedSum
from tilewright.ir import kernel as k
from tilewright.ir.async_ops import Role
from tilewright.ir.builder import make
from tilewright.ir.copies import Matrices
from tilewright.ir.integer_ops import grid_index, loop_index
from tilewright.ir.mma import MmaAtom, TiledMma
from tilewright.ir.ops import OPS, Block, Fill, For, If, Op
from tilewright.ir.printer import VERSION
from tilewright.ir.types import Memory, ScalarType, TensorType, Value
from tilewright.symbolic.nodes import TRUE, Sym
from tilewright.symbolic.rebuilding import Guard
from tilewright.threads.distribution import Distribution, Mode
from tilewright.views.reading import TextReader, statements
from tilewright.views.view import View, coordinates

_OPS = {op.name: op for op in OPS}
_SOURCES = {source.__name__: source for source in (k.Extent, k.Stride, k.Argument, k.Derived)}


def _matrices(
    count: int, transposed: bool, lanes: Iterable[Any], values: Iterable[Any], word: int
) -> Matrices:
    first, second = (tuple(Mode(*mode) for mode in modes) for modes in (lanes, values))
    return Matrices(count, transposed, first, second, word)


@Calls(ParseError)
def parse_kernel(text: str) -> k.Kernel:
    """Parse a text of `tilewright.ir.printer.print_kernel` and return the kernel; see `print_kernel`.

    Args:
        text: a printed kernel of the same IR version.

    Raises:
        ParseError: the text is not a printed kernel of this version.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N")
        ... def look(X):
        ...     tw.barrier()
        >>> traced = look(np.ones(64, np.float32), target="reference").kernel
        >>> text = tw.ir.print_kernel(traced)
        >>> [op.name for op in tw.ir.parse_kernel(text).walk()]
        ['barrier']
    """
    return _KernelParser().kernel(statements(text, f"# tilewright ir {VERSION}"))


class _KernelParser(TextReader):
    CALLS: ClassVar[Mapping[str, Callable[..., Any]]] = {
        **TextReader.CALLS,
        "Matrices": _matrices,
        "AlignedSum": AlignedSum,
        **_SOURCES,
    }

    def kernel(self, found: list[ast.stmt]) -> k.Kernel:
        if not found:
            raise ParseError("line 2: expected kernel(name, threads=..., lanes=...)")
        head = self.guarded(self.head, found[0])
        made = [self.guarded(self.statement, statement) for statement in found[1:]]
        if not all(type(head[one]) is int and head[one] > 0 for one in ("threads", "lanes")):
            raise ParseError("line 2: threads and lanes of a kernel are positive integers")
        if type(head["resident"]) is not int or head["resident"] < 0:
            raise ParseError("line 2: resident blocks of a kernel are an integer, at least 0")
        if not isinstance(head["name"], str):
            raise ParseError("line 2: the name of a kernel is a string")
        params = [m for m in made if isinstance(m, k.TensorParam | k.ScalarParam | k.SizeParam | k.Workspace)]
        return k.Kernel(
            name=head["name"],
            params=tuple(sorted(params, key=lambda param: isinstance(param, k.SizeParam))),
            grid=tuple(m for m in made if isinstance(m, k.GridAxis)),
            threads=head["threads"],
            body=Block(tuple(m for m in made if isinstance(m, Op))),
            cluster=tuple(m for m in made if isinstance(m, k.ClusterAxis)),
            lanes=head["lanes"],
            resident=head["resident"],
            guards=tuple(m for m in made if isinstance(m, Guard)),
            tensor_maps=tuple(m for m in made if isinstance(m, k.TensorMap)),
        )

    def head(self, statement: ast.stmt) -> dict[str, Any]:
        match statement:
            case ast.Expr(value=ast.Call(func=ast.Name(id="kernel"), args=[name], keywords=words)):
                found = {"name": self.value(name), **{str(w.arg): self.value(w.value) for w in words}}
                if found.keys() - {"resident"} == {"name", "threads", "lanes"}:
                    return {"resident": 0, **found}
        raise ParseError(f"line {statement.lineno}: expected kernel(name, threads=..., lanes=...)")

    def block(self, statements: Iterable[ast.stmt]) -> Block:
        made = [self.guarded(self.statement, statement) for statement in statements]
        return Block(tuple(op for op in made if isinstance(op, Op)))

    def statement(self, node: ast.stmt) -> Any:
        made = self.made(node)
        held = made.value.type if isinstance(made, k.TensorParam | k.ScalarParam | k.Workspace) else None
        for record in (made, held):
            if record is not None and (wrong := misfit_of_fields(record)):
                raise ParseError(f"line {node.lineno}: {wrong}")
        return made

    def made(self, node: ast.stmt) -> Any:
        match node:
            case ast.Pass():
                return None
            case ast.For(
                target=ast.Name(id=name), iter=ast.Call(func=ast.Name(id="range")) as call, body=body
            ):
                (start, stop, step), extra = self.arguments(call)
                index = self.names[name] = loop_index(name, start, stop, step)
                return For(index, start, stop, step, self.block(body), **extra)
            case ast.If(test=test, body=body, orelse=orelse):
                return If(self.cond(test), self.block(body), self.block(orelse))
            case ast.With(
                items=[ast.withitem(context_expr=ast.Call(func=ast.Name(id="role")) as call) as item],
                body=body,
            ):
                _, named = self.arguments(call)
                if isinstance(item.optional_vars, ast.Name):
                    name = item.optional_vars.id
                    named["index"] = self.names[name] = loop_index(name, 0, named["groups"], 1)
                return Role(**named, body=self.block(body))
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as call):
                return self.define(name, call)
            case ast.Expr(value=ast.Call(func=ast.Name(id="guard"), args=[condition, message, *values])):
                return Guard(self.cond(condition), self.value(message), tuple(map(self.value, values)))
            case ast.Expr(value=ast.Call(func=ast.Name(id=name)) as call) if name in _OPS:
                return self.op(name, *self.arguments(call))
        raise ParseError(f"line {node.lineno}: not a statement of a kernel: {ast.unparse(node)}")

    def define(self, name: str, call: ast.Call) -> Any:
        what = call.func.id if isinstance(call.func, ast.Name) else ""
        made: Any
        positional, named = self.arguments(call)
        if what in _OPS:
            made = self.op(what, positional, named, name)
            [self.names[name]] = made.results
            return made
        match what:
            case "size":
                sym = Sym(name, named["low"], named["high"], named["divisor"])
                made, self.names[name] = k.SizeParam(sym, positional[0], named["bits"]), sym
            case "scalar":
                value = Value(name, ScalarType(positional[0]))
                made, self.names[name] = k.ScalarParam(value), value
            case "tensor" | "workspace":
                value = Value(name, TensorType(Memory.GLOBAL, positional[0], positional[1], named["align"]))
                made = k.TensorParam(value)
                if what == "workspace":
                    made = k.Workspace(value, named["elems"], named["zeroed"], named.get("resets", False))
                self.names[name] = value
            case "tensor_map":
                made = k.TensorMap(name, *positional)
            case "grid":
                sym = grid_index(name, positional[0])
                made, self.names[name] = k.GridAxis(sym, *positional), sym
            case "cluster":
                sym = Sym(name, 0, positional[1] - 1)
                made, self.names[name] = k.ClusterAxis(sym, *positional), sym
            case "distribution":
                shape, threads, values = positional
                modes = (tuple(Mode(*m) for m in group) for group in (threads, values))
                self.names[name], made = Distribution(shape, *modes), None
            case "tiled_mma":
                self.names[name], made = TiledMma(*positional, **named), None
            case "atom":
                self.names[name], made = MmaAtom(*positional, **named), None
            case _:
                raise ParseError(f"line {call.lineno}: unknown operation {what!r}")
        return made

    def op(self, what: str, positional: list[Any], named: dict[str, Any], result: str = "") -> Op:
        op = _OPS[what]
        named_only = {f.name for f in dataclasses.fields(op) if f.default is not dataclasses.MISSING}
        fields = [name for name, role in op.roles.items() if role != "defines" and name not in named_only]
        operands = dict(zip(fields, positional, strict=True))
        for field, operand in operands.items():
            if not isinstance(operand, Value | tuple) and not (op is Fill and field == "value"):
                raise TypeError(f"{field} of {what} is not a value but {operand!r}")
        return make(op, result, **operands, **named) if result else op(**operands, **named)

    def value(self, node: ast.expr) -> Any:
        match node:
            case ast.Call(func=ast.Name(id="view")):
                return self.view(node)
        return super().value(node)

    def view(self, node: ast.Call) -> View:
        shape = self.value(node.args[0])
        hidden = {sym.name: sym for sym in coordinates(shape)}
        outer = self.names
        self.names = {**outer, **hidden}
        offset, elems = self.value(node.args[1]), self.value(node.args[2])
        valid = self.cond(node.args[3]) if len(node.args) > 3 else TRUE
        self.names = outer
        return View(shape, offset, elems, valid)
