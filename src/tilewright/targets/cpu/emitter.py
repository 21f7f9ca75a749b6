"""The emitter of the CPU target: places of values, helper functions, and literals."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from tilewright.arch import Arch
from tilewright.dtypes import DType, f32, f64
from tilewright.errors import Location
from tilewright.ir.fragment_ops import PrefixOp, ReduceOp
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import Op, Redistribute, Shared
from tilewright.ir.types import FragmentType, Memory, Value
from tilewright.symbolic.nodes import Int, Sym
from tilewright.targets.cfamily import Emitter
from tilewright.targets.cpu import conversions, functions
from tilewright.targets.cpu.conversions import STORAGE, convert
from tilewright.targets.cpu.linear import fragment_view
from tilewright.targets.cpu.live import NeededExtents
from tilewright.targets.cpu.multiply import Multiply, Pointwise, made_by, panel_elems
from tilewright.targets.cpu.prelude import INTEGERS, OWN_NAMES
from tilewright.targets.dialect import Dialect, suffix
from tilewright.targets.rules import CopySpelling, RuleTable
from tilewright.targets.statements import Code, call, code, named, names_in
from tilewright.views.view import View

CACHE_LINE_BYTES = 64
LARGE_BYTES, STAGGER_BYTES = 4096, 9 * CACHE_LINE_BYTES
"""Least size of an array in scratch memory that is followed by a gap, and the bytes of the gap.

Arrays at equal offsets within a page evict each other from the first-level cache.
"""

SELF = "THIS_FUNCTION"
"""Stands for a function's own name in its text."""

DIALECT = Dialect(
    STORAGE,
    unroll="// the author asks for unrolling; the compiler decides",
    copied="// the author asks for {} copies of the body; the compiler decides",
    reserved=frozenset((*conversions.SNIPPETS, *functions.SNIPPETS, *INTEGERS, *OWN_NAMES)),
)


@dataclass(frozen=True)
class CopySide:
    """One side of a copy.

    Args:
        name: the pointer.
        dtype: the element type.
        view: maps coordinates to offsets from the pointer.
        is_scratch: whether it is in the thread's own memory.
    """

    name: Code
    dtype: DType
    view: View
    is_scratch: bool


class CpuEmitter(Emitter):
    """Collects lines of C++ for one lowered kernel.

    Args:
        kernel: the lowered kernel.
        rules: the CPU target's rules.
        arch: the architecture.
        extents: the needed extents of each multiply.
        read: for copies that feed a multiply, the bounds of what it reads, by dimension.
        reach: for fragments and dimensions, the bounds of what reaches memory.
    """

    def __init__(
        self,
        kernel: Kernel,
        rules: RuleTable,
        arch: Arch,
        extents: Mapping[Op, NeededExtents],
        read: Mapping[Op, Mapping[int, Int]],
        reach: Mapping[tuple[Value, int], Int],
    ) -> None:
        super().__init__(kernel, rules, DIALECT)
        for op in kernel.walk():
            for one in op.ops if isinstance(op, Pointwise) else ():
                for value in one.results:
                    if value.name not in self._spelled:
                        self._spelled[value.name] = self.identifier(value.name)
        self.arch = arch
        self.extents = extents
        self.read = read
        self.reach = reach
        self.accesses: dict[tuple[Op, Location | None], CopySpelling] = {}
        self.calls: dict[str, None] = {}
        self.functions: dict[str, str] = {}
        self.scratch: dict[Value, int] = {}
        self.scratch_bytes = 0
        self._views: dict[FragmentType, View] = {}
        for value, elems in arrays(kernel):
            self.scratch[value] = self.scratch_bytes
            size = -(-elems * value.dtype.bytes // CACHE_LINE_BYTES) * CACHE_LINE_BYTES
            self.scratch_bytes += size + (STAGGER_BYTES if size >= LARGE_BYTES else 0)

    def defined_type(self, sym: Sym, *values: Int) -> str:
        """Return the type of a defined integer: ``Index``, because sizes and their products have 64 bits."""
        super().defined_type(sym, *values)
        return "Index"

    def side(self, value: Value) -> CopySide:
        """Return a tensor or fragment as one side of a copy."""
        if isinstance(value.type, FragmentType):
            return CopySide(self.name(value), value.dtype, self.fragment_view(value.type), True)
        kind = value.tensor
        return CopySide(self.name(value.buffer), kind.dtype, kind.view, kind.memory is Memory.SHARED)

    def fragment_view(self, kind: FragmentType) -> View:
        """Return the map from a fragment's coordinates to offsets in its array."""
        if kind not in self._views:
            self._views[kind] = fragment_view(kind.shape, kind.distribution.values)
        return self._views[kind]

    def call(self, *names: str) -> None:
        """Note that the text calls helper functions."""
        self.calls.update(dict.fromkeys(names))

    def function(self, wanted: str, text: str) -> Code:
        """Add a function for this kernel, whose text calls it `SELF`; return its name."""
        for name, known in self.functions.items():
            if known == text:
                return named(name)
        name = self.names.unique(wanted)
        self.functions[name] = text
        return named(name)

    def convert(self, text: str, source: DType, target: DType) -> Code:
        """Return C++ that converts a value."""
        spelled, needs = convert(text, source, target)
        self.call(*needs)
        return Code(spelled, names_in([text]) | {*needs})

    def within(self, value: Code | int, most: Code | int) -> Code:
        """Return the value clamped to 0 and ``most``."""
        return call("within", value, most)

    @contextmanager
    def turns(
        self, index: str, count: Code | int, step: int = 1, *, independent: bool = False
    ) -> Iterator[None]:
        """Write a loop of an index from 0 to a count; ``independent`` iterations share no element."""
        name, before = named(index), "INDEPENDENT" if independent else ""
        with self.loop("Index", name, 0, code("{} < {}", name, count), step, before):
            yield


def arrays(kernel: Kernel) -> Iterator[tuple[Value, int]]:
    """Yield the shared tensors and fragments that need memory, with their elements, in program order."""
    elems: dict[Value, int] = {}
    panels = {
        copy.target.buffer: panel_elems(op)
        for op in kernel.walk()
        if isinstance(op, Multiply)
        for copy in op.packing
    }
    for op in kernel.walk():
        if isinstance(op, Shared):
            elems[op.result] = panels.get(op.result, op.elems)
            continue
        named: list[Value] = []
        if isinstance(op, Pointwise):
            made: set[Value] = set()
            for one in op.ops:
                named += [value for value in one.read if value not in made]
                made.add(made_by(one))
            named += op.stored
        else:
            named += op.operands
            named += op.results if isinstance(op, ReduceOp | PrefixOp | Redistribute) else ()
        for value in named:
            if value.is_fragment:
                elems.setdefault(value, value.fragment.distribution.size_values)
    yield from elems.items()


# ---------------------------------------------------------------- literals of a storage type


def literal(emitter: CpuEmitter, value: float | int, dtype: DType) -> Code:
    """Return a number as a literal of a dtype, rounded once."""
    if dtype.kind == "bool":
        return Code("true" if value else "false")
    if not dtype.is_float and isinstance(value, int):
        text = f"{value}{suffix(dtype)}"
        return Code(f"({STORAGE[dtype.name]}){text}" if value < 0 else text)
    with np.errstate(over="ignore"):
        near = dtype.component.numpy.type(value)
    if dtype.components > 1:  # the real part is in the low bits; the imaginary part is 0
        return Code(f"({STORAGE[dtype.name]})0x{int.from_bytes(near.tobytes(), 'little'):x}ull")
    if dtype == f32 and math.isfinite(near):
        return Code(f"{float(near)!r}f")
    wide = f"{float(value)!r}"
    if not math.isfinite(value):
        wide = '__builtin_nan("")' if value != value else f"{'-' if value < 0 else ''}__builtin_inf()"
    return emitter.convert(Code(wide), f64, dtype)
