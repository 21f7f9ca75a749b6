"""What is told of a kernel's machine code: figures of its main loop, and the loop with the author's lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.inspect.isa.execution import Conflicts
from tilewright.inspect.isa.instructions import IsaLine, Kind
from tilewright.inspect.isa.loops import Body, Loop
from tilewright.inspect.isa.reading import LOADS, Isa
from tilewright.inspect.isa.sources import Source
from tilewright.ir.copies import is_bulk
from tilewright.ir.ops import Copy
from tilewright.symbolic.arithmetic import product

MEMORY = (
    *(Kind.GLOBAL_LOAD, Kind.GLOBAL_STORE, Kind.TO_SHARED),
    *(Kind.SHARED_LOAD, Kind.SHARED_STORE, Kind.STACK),
)
"""Kinds of instructions whose widths are told."""

MAIN, LOADING = "the main loop", "the loop that loads for it"

COLUMNS = ("line", "instruction", "passes", "arrays", "what it does", "where it was written")


@dataclass(frozen=True)
class IsaReport:
    """A kernel's machine code, with what is known of it.

    Args:
        title: the kernel, its target and architecture.
        isa: its machine code.
        sources: by the line of the listing, where an instruction comes from.
        conflicts: by the line of the listing, how its accesses met in banks.
        counted: in words, how that is known, or why it is not.
        notes: what else is to be said.
    """

    title: str
    isa: Isa
    sources: Mapping[int, Source] = field(default_factory=dict)
    conflicts: Mapping[int, Conflicts] = field(default_factory=dict)
    counted: str = ""
    notes: tuple[str, ...] = ()

    def tables(self) -> dict[str, list[tuple[str, ...]]]:
        """Figures by the names of their tables, each a list of rows."""
        loops, tables = self.loops(), {}
        for name, loop in loops.items():
            turn = f"a turn of {name}, {len(loop.lines)} instructions from line {loop.first}"
            tables[turn] = list(_mix(loop))
        both = Body(tuple(line for loop in loops.values() for line in loop.lines))
        tables |= {
            "accesses of a lane in a turn": list(_accesses(both, self.conflicts)),
            "boxes that are moved in a turn": list(_boxes(both, self.sources)),
            "for each other": list(_ratios(self.isa.main)),
            "what the kernel takes": list(_resources(self.isa)),
        }
        return {name: rows for name, rows in tables.items() if rows}

    def loops(self) -> dict[str, Loop]:
        """What is shown instruction by instruction: the main loop, and that of a role which loads for it."""
        loading = self.isa.loading
        return {MAIN: self.isa.main} | ({LOADING: loading} if loading else {})

    def met(self, *kinds: Kind) -> Conflicts:
        """How the accesses of instructions of some kinds in the main loop met in banks, all together."""
        lines = [line.line for line in self.isa.main.of(*kinds)]
        return sum((self.conflicts[line] for line in lines if line in self.conflicts), Conflicts())

    def rows(self, loop: Loop | None = None) -> Iterator[tuple[IsaLine, str, tuple[str, ...]]]:
        """A loop from where a turn begins: instruction, label before it, a cell for each column.

        Args:
            loop: which; default: the main loop.
        """
        for line in (loop or self.isa.main).turn:
            conflict, source = self.conflicts.get(line.line), self.sources.get(line.line)
            passes = f"{conflict.factor:.2f}" if conflict else ""
            told = (", ".join(source.tensors), source.says, source.place) if source else ("", "", "")
            yield line, self.isa.labels.get(line.line, ""), (str(line.line), line.text, passes, *told)

    def __str__(self) -> str:
        """All of it as text."""
        parts = [self.title]
        for name, table in self.tables().items():
            parts.append("\n".join([name, *_aligned(table)]))
        parts.append("\n".join(self.remarks()))
        for name, loop in self.loops().items():
            parts.append("\n".join([f"{name}, from where a turn begins", *self._listing(loop)]))
        return "\n\n".join(part for part in parts if part)

    def remarks(self) -> list[str]:
        """How bank conflicts are known, and notes."""
        return [f"bank conflicts: {self.counted}"] * bool(self.counted) + [f"note: {n}" for n in self.notes]

    def _listing(self, loop: Loop) -> Iterator[str]:
        found = list(self.rows(loop))
        cells = [COLUMNS, *(_without_tabs(row) for _, _, row in found)]
        text, *rows = _aligned(cells, most=64)
        yield text
        for (_, label, _), row in zip(found, rows, strict=True):
            if label:
                yield f"  {label}:"
            yield row


def _without_tabs(row: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(cell.replace("\t", " ") for cell in row)


def _aligned(rows: Sequence[Sequence[str]], most: int = 200) -> list[str]:
    """Rows in columns as wide as their widest cell, but no wider than ``most``, where cells are cut."""
    cut = [[cell if len(cell) <= most else cell[: most - 1] + "…" for cell in row] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*cut, strict=True)]
    return [
        "  " + "  ".join(f"{cell:<{wide}}" for cell, wide in zip(row, widths, strict=True)).rstrip()
        for row in cut
    ]


def _mix(body: Body) -> Iterator[tuple[str, ...]]:
    for kind, count in sorted(body.mix.items(), key=lambda item: -item[1]):
        names = Counter(line.mnemonic for line in body.of(kind)).most_common()
        told = [f"{times} {name}" for name, times in names[:4]] + ["…"] * (len(names) > 4)
        yield kind.value, str(count), ", ".join(told)


def _accesses(body: Body, conflicts: Mapping[int, Conflicts]) -> Iterator[tuple[str, ...]]:
    for kind in MEMORY:
        for size, count in sorted(body.widths(kind).items()):
            lines = [line.line for line in body.of(kind) if line.bytes == size]
            met = sum((conflicts[line] for line in lines if line in conflicts), Conflicts())
            if size:
                yield kind.value, f"{count} of {size} bytes", _met(met)
    matrix = [line.line for line in body.of(Kind.MATRIX) if line.line in conflicts]
    if matrix:
        met = sum((conflicts[line] for line in matrix), Conflicts())
        yield "operands of matrix instructions", "rows of 16 bytes of shared memory", _met(met)


def _met(met: Conflicts) -> str:
    return f"{met.factor:.2f} passes over the banks for each that is needed" if met.fewest else ""


def _boxes(body: Body, known: Mapping[int, Source]) -> Iterator[tuple[str, ...]]:
    """What bulk copies move, of which an instruction says nothing: the bytes of their tiles."""
    for kind in MEMORY:
        found: Counter[tuple[str, str]] = Counter()
        for line in body.of(kind):
            source = known.get(line.line)
            if not line.bytes and source and isinstance(source.op, Copy) and is_bulk(source.op):
                tile = source.op.ends[1]
                moved = product(*tile.tensor.shape, tile.dtype.bytes)
                found[", ".join(source.tensors), str(moved)] += 1
        for (arrays, size), count in found.items():
            yield kind.value, f"{count} of {size} bytes", arrays


def _ratios(body: Body) -> Iterator[tuple[str, ...]]:
    if body.of(*LOADS):
        yield "matrix instructions for each global load", f"{body.matrix_per_load:.3g}"
    if body.of(Kind.SHARED_LOAD):
        yield "matrix instructions for each shared load", f"{body.matrix_per_shared_load:.3g}"
    yield "cache invalidations for each barrier", f"{body.flushes_per_barrier:.3g}"


def _resources(isa: Isa) -> Iterator[tuple[str, ...]]:
    for name, value in isa.resources.items():
        if name != "warps_per_simd":
            yield name.replace("_", " "), str(value)
    if isa.limits:
        room = ", ".join(f"{warps} by {name.replace('_', ' ')}" for name, warps in isa.limits.items())
        limited = " and ".join(name.replace("_", " ") for name in isa.limited_by)
        fewest = min(isa.limits.values())
        yield "warps of a SIMD", f"{fewest}, limited by {limited}; there is room for {room}"
