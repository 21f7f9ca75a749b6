"""Reports: findings, counters and coverage of a run, and of one kernel at many sizes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from tilewright.calls import launches
from tilewright.errors import HazardError, LegalityError, Violation
from tilewright.ir.async_ops import Arrive, MBarrier, Wait
from tilewright.ir.copies import is_bulk_load
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import Block, For, If, Let, Op
from tilewright.ir.types import Memory, TensorType
from tilewright.symbolic.nodes import Int, Mod, Sym
from tilewright.symbolic.rebuilding import parts, substitute, symbols
from tilewright.targets.reference.findings import AccessSite, Finding, describe

# ---------------------------------------------------------------- coverage


SHOWN = 8
"""Largest number of operations and loops that the head of a report names."""


@dataclass
class Trail:
    """The operations that have run so far.

    Args:
        ran: the operations, by identity.
        trips: the most iterations that any warp made of each loop, by identity.
        took: the values of conditions, by the identity of the `tw.when`.
    """

    ran: set[int] = field(default_factory=set)
    trips: dict[int, int] = field(default_factory=dict)
    took: dict[int, set[bool]] = field(default_factory=dict)

    def turned(self, loop: For, trips: int) -> None:
        """Record that a warp ran a loop."""
        self.trips[id(loop)] = max(trips, self.trips.get(id(loop), 0))


@dataclass(frozen=True)
class ShortLoop:
    """A loop that no warp ran often enough to use its ring twice.

    Args:
        place: the author's line.
        trips: the most iterations of any warp.
        stages: stages of the longest ring that the loop steps through.
    """

    place: str
    trips: int
    stages: int

    @property
    def needed(self) -> int:
        """Iterations that use every stage twice, plus one."""
        return 2 * self.stages + 1

    def __str__(self) -> str:
        times = f"{self.trips} time{'s' * (self.trips != 1)}"
        ring = f"its ring of {self.stages} stages" if self.stages > 1 else "its one stage"
        return f"the loop at {self.place} ran {times}; {ring} needs {self.needed} to be used twice over"


@dataclass(frozen=True)
class Coverage:
    """The sizes, blocks and operations that a run covered, see `Report`.

    Args:
        sizes: the kernel's sizes, by name.
        grid: blocks along each axis of the grid.
        blocks: number of blocks that ran to their end.
        threads: threads per block.
        lanes: threads per warp.
        left_out: the reason why blocks did not run, and the facts known about them; empty if all ran.
        idle: operations that never ran, each with its line; only the first one of a nested block.
        short: loops that were too short to use their ring twice.
        condition_values: the values that the condition of each executed `tw.when` without `tw.otherwise`
            had, by its line.
    """

    sizes: tuple[tuple[str, int], ...] = ()
    grid: tuple[int, ...] = ()
    blocks: int = 0
    threads: int = 1
    lanes: int = 1
    left_out: str = ""
    idle: tuple[str, ...] = ()
    short: tuple[ShortLoop, ...] = ()
    condition_values: Mapping[str, frozenset[bool]] = field(default_factory=dict, hash=False)

    def lines(self) -> Iterator[str]:
        """Yield the sentences of the head of a report."""
        total = math.prod(self.grid)
        ran = f"{self.blocks} of {total}" if self.blocks != total else f"{total}"
        sizes = f", for {', '.join(f'{name} = {size}' for name, size in self.sizes)}" if self.sizes else ""
        yield (
            f"ran {ran} block{'s' * (total != 1)} of {self.threads} threads in warps of {self.lanes}{sizes}"
        )
        if self.left_out:
            yield self.left_out
        yield from _some([f"never ran: {what}" for what in self.idle], "operations that never ran")
        yield from _some([str(loop) for loop in self.short], "short loops")


def _some(lines: list[str], what: str) -> list[str]:
    rest = len(lines) - SHOWN
    return lines if rest <= 0 else [*lines[:SHOWN], f"and {rest} more {what}"]


def place(op: Op) -> str:
    """Return the author's lines of an operation, the innermost first."""
    return "an unknown line" if op.location is None else str(op.location)


def idle(kernel: Kernel, trail: Trail) -> tuple[str, ...]:
    """Return the operations of a kernel that have not run."""
    return tuple(dict.fromkeys(_idle(kernel.body, trail)))


def _idle(block: Block, trail: Trail) -> Iterator[str]:
    for op in block.ops:
        if id(op) not in trail.ran:
            more = sum(1 for _ in block.walk()) - 1
            others = f", with {more} other operation{'s' * (more != 1)} of its block" if more else ""
            yield f"{describe(op)} at {place(op)}{others}"
            return
        for region in op.regions:
            yield from _idle(region, trail)


def condition_values(kernel: Kernel, trail: Trail) -> dict[str, frozenset[bool]]:
    """Return the values that the condition of each executed `tw.when` without `tw.otherwise` had.

    Such a condition that was never false leaves no operation that `idle` could name.
    """
    found: dict[str, frozenset[bool]] = {}
    for op in kernel.walk():
        if isinstance(op, If) and not op.otherwise.ops and id(op) in trail.took:
            found[place(op)] = found.get(place(op), frozenset()) | trail.took[id(op)]
    return found


def short_loops(kernel: Kernel, trail: Trail) -> tuple[ShortLoop, ...]:
    """Return the loops that reuse memory but have too few iterations to use their ring twice."""
    found = []
    for op in kernel.walk():
        if isinstance(op, For) and not (isinstance(op.start, int) and isinstance(op.stop, int)):
            loop = ShortLoop(place(op), trail.trips.get(id(op), 0), stages_of(op))
            if loop.stages and loop.trips < loop.needed:
                found.append(loop)
    return tuple(dict.fromkeys(found))


def stages_of(loop: For) -> int:
    """Return the stages of the longest ring that a loop uses; 1 if it writes shared memory; otherwise 0.

    A remainder of the loop's index indexes a ring of shared memory or transaction barriers.  The remainder
    may have a name (`tw.let`).
    """
    longest = 0
    lets: dict[Sym, Int] = {}
    for op in loop.body.walk():
        if isinstance(op, Let):
            lets[op.result] = substitute(op.value, lets)
        for value in op.operands:
            if isinstance(value.type, TensorType) and value.type.memory is Memory.SHARED:
                longest = max(longest, _remainder(substitute(value.type.view.offset, lets), loop.index))
                longest = max(longest, int(value in op.written))
        if isinstance(op, Arrive | Wait) or is_bulk_load(op):
            longest = max(longest, _remainder(substitute(op.stage, lets), loop.index))
    return longest


def _remainder(value: object, index: Sym) -> int:
    rings = (part for part in parts(value) if isinstance(part, Mod) and index in symbols(part.left))
    return max((ring.right for ring in rings if isinstance(ring.right, int)), default=0)


def rings(kernel: Kernel) -> int:
    """Return the stages of the longest ring of a kernel's loops or transaction barriers; at least 1."""
    loops = (stages_of(op) for op in kernel.walk() if isinstance(op, For))
    barriers = (op.stages for op in kernel.walk() if isinstance(op, MBarrier))
    return max((1, *loops, *barriers))


def covered(
    kernel: Kernel,
    env: Mapping[Sym, int],
    trail: Trail,
    grid: tuple[int, ...],
    blocks: int,
    lanes: int,
    left_out: str,
) -> Coverage:
    """Return the coverage of a run, for the head of its report."""
    strides = {param.sym for param in kernel.sizes if "stride" in param.sym.name}
    sizes = tuple((sym.name, env[sym]) for sym in extents(kernel) if sym in env and sym not in strides)
    missing, short = idle(kernel, trail), short_loops(kernel, trail)
    took = condition_values(kernel, trail)
    return Coverage(sizes, grid, blocks, kernel.threads, lanes, left_out, missing, short, took)


def extents(kernel: Kernel) -> tuple[Sym, ...]:
    """Return the symbols that are extents of the kernel's arrays, in the order of the parameters."""
    shapes = (value.tensor.shape for value in kernel.tensors)
    return tuple(dict.fromkeys(extent for shape in shapes for extent in shape if isinstance(extent, Sym)))


# ---------------------------------------------------------------- counters


UNCOALESCED = 1.5
"""Ratio of touched to needed sectors above which a copy is reported as uncoalesced."""


@dataclass
class BankCount:
    """Requests to shared memory from one place in the program.

    Args:
        site: the place.
        requests: number of requests of at most 128 bytes.
        wavefronts: number of passes of these requests; equal to ``requests`` without conflicts.
        worst: the largest number of passes of one request.
    """

    site: AccessSite
    requests: int = 0
    wavefronts: int = 0
    worst: int = 0

    @property
    def average(self) -> float:
        """Passes per request: 1.0 without conflicts."""
        return self.wavefronts / self.requests if self.requests else 0.0

    def add(self, requests: int, wavefronts: int, worst: int) -> None:
        """Count the requests of one warp."""
        self.requests += requests
        self.wavefronts += wavefronts
        self.worst = max(self.worst, worst)


@dataclass
class SectorCount:
    """Requests to global memory from one place in the program.

    Args:
        site: the place.
        touched: 32-byte sectors touched, summed over requests.
        fewest: sectors that could hold the requested bytes.
    """

    site: AccessSite
    touched: int = 0
    fewest: int = 0

    @property
    def excess(self) -> float:
        """Sectors touched for each that is needed: 1.0 for coalesced accesses."""
        return self.touched / self.fewest if self.fewest else 0.0

    def add(self, touched: int, fewest: int) -> None:
        """Count the requests of one warp."""
        self.touched += touched
        self.fewest += fewest


@dataclass(frozen=True)
class Counters:
    """The counters of a run.

    Args:
        banks: one entry per place that touches shared memory.
        sectors: one entry per place that touches global memory.
        barriers: block barriers completed, over all blocks.
    """

    banks: tuple[BankCount, ...] = ()
    sectors: tuple[SectorCount, ...] = ()
    barriers: int = 0

    def __str__(self) -> str:
        lines = [
            f"{c.site.action}s of shared {c.site.value} in {c.site}: {c.average:.2f} wavefronts per request, "
            f"worst {c.worst}"
            for c in self.banks
        ]
        lines += [
            f"{c.site.action}s of global {c.site.value} in {c.site}: {c.touched} sectors for {c.fewest}"
            for c in self.sectors
        ]
        return "\n".join([*lines, f"{self.barriers} barriers"])


# ---------------------------------------------------------------- the report of a run


@launches.made("kernel.check(...) gives one")
@dataclass(frozen=True, repr=False)
class Report:
    """Findings and counters of one run on the reference; made by `Kernel.check`.

    Args:
        kernel: the kernel's name.
        findings: hazards, in the order in which they were seen.
        omitted: number of hazards that are not listed.
        counters: bank conflicts, sectors, barriers.
        uncovered: for each array that the kernel writes, the number of elements that no block wrote; known
            only if hazards were looked for.
        blocks: number of executed blocks.
        target: the target and architecture whose rules were checked too; empty without one.
        violations: the rules of that target that the kernel breaks.
        coverage: the sizes, the blocks, operations that never ran, and short loops.
        waits: notes about waits for counters that order nothing.
    """

    kernel: str
    findings: tuple[Finding, ...]
    omitted: int
    counters: Counters
    uncovered: Mapping[str, int]
    blocks: int
    target: str = ""
    violations: tuple[Violation, ...] = ()
    coverage: Coverage = field(default_factory=Coverage)
    waits: tuple[str, ...] = ()

    @property
    def is_clean(self) -> bool:
        """Whether nothing was found, and the kernel is legal for the named target."""
        return not self.findings and not self.violations

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes that are no hazards: waits that order nothing, and uncoalesced copies."""
        return self.waits + tuple(
            f"note: {count.site} {count.site.action}s {count.touched} sectors of global {count.site.value} "
            f"where {count.fewest} would do, {count.excess:.2f} times as many, at {place(count.site.op)}"
            for count in self.counters.sectors
            if count.excess > UNCOALESCED
        )

    def raise_if_any(self) -> None:
        """Raise if anything was found.

        Raises:
            HazardError: the kernel has hazards; the message describes each, and each broken rule.
            LegalityError: it has none, but is not legal for the named target.
        """
        if self.findings:
            raise HazardError(str(self))
        if self.violations:
            raise LegalityError(self.kernel, self.target, self.violations)

    def __repr__(self) -> str:
        return f"<{self._head()}>"

    def _head(self) -> str:
        count = len(self.findings) + self.omitted
        return f"kernel {self.kernel}: {count or 'no'} finding{'s' * (count != 1)}"

    def __str__(self) -> str:
        tail = [f"and {self.omitted} more"] if self.omitted else []
        if self.violations:
            tail.append(str(LegalityError(self.kernel, self.target, self.violations)))
        head = "\n".join([self._head(), *self.coverage.lines(), *self.notes])
        return "\n\n".join([head, *(str(finding) for finding in self.findings), *tail])


# ---------------------------------------------------------------- reports at many sizes


Sizes: TypeAlias = tuple[tuple[str, int], ...]


@dataclass(frozen=True, repr=False)
class SizesReport:
    """The reports of one kernel at many sizes.

    Args:
        kernel: the kernel's name.
        reports: the report at each of the sizes.
        refused: sizes that the kernel refuses, with the first line of the reason.
        left_out: sizes that were not tried, because time was up.
        why: the reason to try each of the sizes.
    """

    kernel: str
    reports: tuple[tuple[Sizes, Report], ...]
    refused: tuple[tuple[Sizes, str], ...] = ()
    left_out: tuple[Sizes, ...] = ()
    why: Mapping[Sizes, str] = field(default_factory=dict)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The hazards of all sizes, without repetitions."""
        return tuple(found for found, _ in self._merged())

    @property
    def is_clean(self) -> bool:
        """Whether the kernel ran, and nothing was found at any of the sizes."""
        return bool(self.reports) and all(report.is_clean for _, report in self.reports)

    @property
    def idle(self) -> tuple[str, ...]:
        """Operations that ran at none of the sizes."""
        runs = [report.coverage.idle for _, report in self.reports]
        return tuple(op for op in runs[0] if all(op in idle for idle in runs)) if runs else ()

    @property
    def one_sided(self) -> tuple[str, ...]:
        """Conditions that were true whenever they were evaluated, each with its line."""
        values: dict[str, frozenset[bool]] = {}
        for _, report in self.reports:
            for where, went in report.coverage.condition_values.items():
                values[where] = values.get(where, frozenset()) | went
        return tuple(where for where, went in values.items() if went == {True})

    @property
    def short(self) -> tuple[ShortLoop, ...]:
        """Loops that were too short for their ring at all of the sizes, each with its most iterations."""
        runs = [{loop.place: loop for loop in report.coverage.short} for _, report in self.reports]
        return tuple(
            max((run[place] for run in runs), key=lambda loop: loop.trips)
            for place in (runs[0] if runs else {})
            if all(place in run for run in runs)
        )

    def raise_if_any(self) -> None:
        """Raise if anything was found at any of the sizes.

        Raises:
            HazardError: the kernel has hazards; the message describes each, and at which sizes.
            LegalityError: it has none, but is not legal for the named target.
        """
        if self.findings:
            raise HazardError(str(self))
        for _, report in self.reports:
            if report.violations:
                raise LegalityError(self.kernel, report.target, report.violations)

    def _merged(self) -> list[tuple[Finding, list[Sizes]]]:
        merged: dict[object, tuple[Finding, list[Sizes]]] = {}
        for sizes, report in self.reports:
            for found in report.findings:
                earlier = None if found.earlier is None else (found.earlier.action, found.earlier.op.location)
                key = (found.kind, found.tensor, found.access.action, found.access.op.location, earlier)
                merged.setdefault(key, (found, []))[1].append(sizes)
        return list(merged.values())

    def __repr__(self) -> str:
        count = len(self._merged()) or "no"
        return f"<kernel {self.kernel}: {count} finding{'s' * (count != 1)} at {len(self.reports)} sizes>"

    def __str__(self) -> str:
        found = self._merged()
        head = [repr(self)[1:-1], *self._head()]
        parts = [f"{finding}\n  at {_several(sizes)}" for finding, sizes in found]
        return "\n\n".join(["\n".join(head), *parts])

    def _head(self) -> Iterator[str]:
        for sizes, report in self.reports:
            count = len(report.findings) + report.omitted + len(report.violations)
            why = f" ({self.why[sizes]})" if sizes in self.why else ""
            yield f"{spelled(sizes)}: {count or 'no'} finding{'s' * (count != 1)}{why}"
        yield from (f"{spelled(sizes)}: refused: {why}" for sizes, why in self.refused)
        if self.left_out:
            yield f"not tried, as time was up: {_several(self.left_out)}"
        yield from (f"never ran at any of them: {what}" for what in self.idle)
        yield from (f"true at all of them: the condition at {where}" for where in self.one_sided)
        yield from (f"at most {loop}" for loop in self.short)


def spelled(sizes: Sizes) -> str:
    """Return the text of sizes.

    Example:
        >>> spelled((("M", 64), ("K", 0)))
        'M = 64, K = 0'
    """
    return ", ".join(f"{name} = {size}" for name, size in sizes)


def _several(sizes: list[Sizes] | tuple[Sizes, ...]) -> str:
    return "; ".join(spelled(one) for one in sizes)
