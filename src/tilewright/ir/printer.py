"""Printer of kernels as text in Python's syntax; `tilewright.ir.parser` reads it back.

The canonical text has no addresses, no paths and no locations.  `print_kernel` with ``locations=True``
appends the author's line to each operation.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

from tilewright.calls import layouts
from tilewright.dtypes import DType
from tilewright.functions.conversions import AlignedSum
from tilewright.ir.async_ops import Role
from tilewright.ir.copies import Matrices
from tilewright.ir.kernel import Kernel, Param, ScalarParam, SizeParam, TensorParam
from tilewright.ir.mma import MmaAtom, TiledMma
from tilewright.ir.ops import Block, For, If, Op
from tilewright.ir.types import Value
from tilewright.symbolic.nodes import TRUE, Cond, Expr, Sym
from tilewright.symbolic.spelling import format_cond, format_int
from tilewright.threads.distribution import Distribution
from tilewright.views.transforms import TRANSFORMS
from tilewright.views.view import View

VERSION = 1


@layouts
def print_kernel(kernel: Kernel, *, locations: bool = False) -> str:
    """Return the kernel as text, which `parse_kernel` reads back.

    Args:
        kernel: a traced kernel.
        locations: whether to print the author's line after each operation.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N")
        ... def nothing(X):
        ...     tw.barrier()
        >>> text = tw.ir.print_kernel(nothing(np.ones(64, np.float32), target="reference").kernel)
        >>> text.splitlines()[-1], tw.ir.print_kernel(tw.ir.parse_kernel(text)) == text
        ('barrier()', True)
    """
    return _KernelPrinter(locations).kernel(kernel)


class _KernelPrinter:
    def __init__(self, locations: bool) -> None:
        self.locations = locations
        self.pool: dict[Any, str] = {}
        self.pooled: list[str] = []

    def kernel(self, kernel: Kernel) -> str:
        head = [f"# tilewright ir {VERSION}"]
        more = f", resident={kernel.resident}" if kernel.resident else ""
        head.append(f"kernel({kernel.name!r}, threads={kernel.threads}, lanes={kernel.lanes}{more})")
        others = [param for param in kernel.params if not isinstance(param, SizeParam)]
        head += [self.param(param) for param in (*kernel.sizes, *others)]
        for axis in kernel.grid:
            head.append(f"{axis.sym.name} = grid({self.show(axis.extent)}, {axis.kind!r})")
        for member in kernel.cluster:
            head.append(f"{member.sym.name} = cluster({member.axis}, {member.extent})")
        for made in kernel.tensor_maps:
            form = f"{made.box}, {made.dtype}, {made.order}, {made.steps}"
            form += "" if made.is_swizzled else ", False"
            head.append(f"{made.name} = tensor_map({made.tensor!r}, {form})")
        for guard in kernel.guards:
            named = "".join(f", {self.show(value)}" for value in guard.values)
            head.append(f"guard({format_cond(guard.condition)}, {guard.message!r}{named})")
        body = self.block(kernel.body, 0)
        return "\n".join([*head, *self.pooled, *body]) + "\n"

    def param(self, param: Param) -> str:
        if isinstance(param, SizeParam):
            sym = param.sym
            source = self.call(type(param.source).__name__, param.source)
            return (
                f"{sym.name} = size({source}, low={sym.low}, high={sym.high}, "
                f"divisor={sym.divisor}, bits={param.bits})"
            )
        value = param.value
        if isinstance(param, ScalarParam):
            return f"{value.name} = scalar({value.dtype})"
        kind = value.tensor
        text = f"{kind.dtype}, {self.show(kind.view)}, align={kind.align}"
        if isinstance(param, TensorParam):
            return f"{value.name} = tensor({text})"
        resets = ", resets=True" if param.resets else ""
        return (
            f"{value.name} = workspace({text}, elems={self.show(param.elems)}, zeroed={param.zeroed}{resets})"
        )

    def block(self, block: Block, depth: int) -> list[str]:
        lines = [line for op in block.ops for line in self.op(op, depth)]
        return lines or ["    " * depth + "pass"] if depth else lines

    def op(self, op: Op, depth: int) -> list[str]:
        indent = "    " * depth
        note = ""
        if self.locations and op.location is not None:
            origin = op.location.origin
            note = f"  # {op.location.frame}" + (f" by {origin}" if origin is not None else "")
        if isinstance(op, For):
            span = f"{self.show(op.start)}, {self.show(op.stop)}, {op.step}"
            extra = f", unroll={op.unroll!r}" if op.unroll else ""
            extra += f", provenance={op.provenance!r}" if op.provenance else ""
            head = f"{indent}for {op.index.name} in range({span}{extra}):{note}"
            return [head, *self.block(op.body, depth + 1)]
        if isinstance(op, If):
            lines = [f"{indent}if {format_cond(op.condition)}:{note}", *self.block(op.then, depth + 1)]
            if op.otherwise.ops:
                lines += [f"{indent}else:", *self.block(op.otherwise, depth + 1)]
            return lines
        if isinstance(op, Role):
            index = "" if op.index is None else f" as {op.index.name}"
            head = f"{indent}with {self.call(op.name, op)}{index}:{note}"
            return [head, *self.block(op.body, depth + 1)]
        results = ", ".join(value.name for value in op.results)
        text = self.call(op.name, op)
        return [f"{indent}{results} = {text}{note}" if results else f"{indent}{text}{note}"]

    def call(self, name: str, record: Any) -> str:
        operands, attributes = [], []
        for f in fields(record):
            role = getattr(record, "roles", {}).get(f.name)
            value = getattr(record, f.name)
            if f.name == "location" or role == "defines" or isinstance(value, Block):
                continue
            if role is not None and f.default is MISSING:
                operands.append(self.show(value))
            elif value != f.default:
                attributes.append(f"{f.name}={self.show(value)}")
        return f"{name}({', '.join([*operands, *attributes])})"

    def show(self, value: Any) -> str:
        match value:
            case Value() | Sym():
                return value.name
            case Expr():
                return format_int(value)
            case Cond():
                return format_cond(value)
            case DType():
                return value.name
            case View():
                valid = "" if value.valid == TRUE else f", {format_cond(value.valid)}"
                parts = f"{self.show(value.shape)}, {self.show(value.offset)}, {self.show(value.elems)}"
                return f"view({parts}{valid})"
            case Distribution():
                return self.named(value, "d", self.distribution)
            case TiledMma():
                return self.named(value, "mma", self.mma)
            case MmaAtom():
                return self.named(value, "atom", self.atom)
            case tuple():
                return "(" + "".join(f"{self.show(part)}, " for part in value).removesuffix(" ") + ")"
            case _ if type(value) in (*TRANSFORMS, Matrices, AlignedSum):
                return self.call(type(value).__name__, value)
            case _:
                return repr(value)

    def named(self, value: Any, prefix: str, spell: Any) -> str:
        if value not in self.pool:
            text = spell(value)
            self.pool[value] = f"{prefix}{sum(name.startswith(prefix) for name in self.pool.values())}"
            self.pooled.append(f"{self.pool[value]} = {text}")
        return self.pool[value]

    def distribution(self, value: Distribution) -> str:
        modes = [tuple(tuple(mode) for mode in group) for group in (value.threads, value.values)]
        return f"distribution({value.shape}, {modes[0]}, {modes[1]})"

    def mma(self, value: TiledMma) -> str:
        turns = ", interleaved=True" if value.interleaved else ""
        return f"tiled_mma({self.show(value.atom)}, {value.warps}, {value.repeats}{turns})"

    def atom(self, value: MmaAtom) -> str:
        maps = ", ".join(self.show(part) for part in (value.a, value.b, value.c))
        dtypes = f"{value.a_dtype}, {value.b_dtype}, {value.c_dtype}"
        rest = "".join(
            f", {field.name}={self.show(getattr(value, field.name))}"
            for field in fields(value)[7:]
            if field.compare and getattr(value, field.name) != field.default
        )
        return f"atom({value.name!r}, {dtypes}, {maps}{rest})"
