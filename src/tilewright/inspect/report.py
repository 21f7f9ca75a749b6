"""The report of a compiled kernel as text: resources, accesses of each copy, and its passes."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from tilewright.arch import REFERENCE, in_words
from tilewright.errors import LaunchError, LayoutError, Location, close_to, shown
from tilewright.ir.copies import is_by_threads, is_in_background
from tilewright.ir.kernel import Kernel
from tilewright.ir.legality import widest_vector
from tilewright.ir.ops import Copy, Op
from tilewright.ir.printer import print_kernel
from tilewright.ir.types import Memory, TensorType, Value
from tilewright.passes.packed import copy_bytes
from tilewright.passes.pipeline import Stage
from tilewright.runtime.executable import Executable
from tilewright.symbolic.rebuilding import symbols
from tilewright.targets.reference.report import UNCOALESCED, Report
from tilewright.targets.rules import CopySpelling
from tilewright.targets.simt.banks import passes_per_access
from tilewright.targets.target import CUDA, TARGETS, target_named
from tilewright.threads.banks import coalescing

# ---------------------------------------------------------------- sectors of global memory, from the IR
#
# The sectors of a copy, relative to the fewest for its bytes.


LARGE = 8193
"""Stands for an unknown size, times its known divisor. It is so large that no edge cuts a tile."""


def sector_factor(kernel: Kernel, op: Copy) -> float | None:
    """Return the requested sectors of a copy per necessary sector, of the worse of its two sides.

    Args:
        kernel: the traced kernel.
        op: a copy of it.

    Returns:
        1.0 for a coalesced copy; None if neither side is in global memory, or if it is unknown.
    """
    found = [_factor(kernel, op, value) for value in (op.source, op.target)]
    return max((factor for factor in found if factor is not None), default=None)


def _factor(kernel: Kernel, op: Copy, value: Value) -> float | None:
    if not isinstance(value.type, TensorType) or value.type.memory is not Memory.GLOBAL:
        return None
    if value.type.indices:
        return None  # the rows are known only at a launch
    view = value.type.view
    sizes = {param.sym for param in kernel.sizes}
    free = (symbols(view.offset) | symbols(view.valid)) - set(view.coords)
    # Sizes are large; other integers, e.g. indices of blocks, have their smallest value that is not negative.
    at = {sym: sym.divisor * LARGE if sym in sizes else max(sym.low, 0) for sym in free}
    vector = widest_vector(op) if op.vector is None else op.vector
    try:
        traffic = coalescing(view, op.spread, vector, value.dtype.bytes, kernel.lanes, at)
    except (LayoutError, ZeroDivisionError):
        return None
    return traffic.sectors / traffic.minimum if traffic.minimum else None


# ---------------------------------------------------------------- the report


_UNITS = {"registers": "registers per thread"}

Accesses: TypeAlias = Mapping[tuple[Op, Location | None], CopySpelling]

FUSED = CopySpelling(None, "a loop that it shares with its neighbours")


@dataclass(frozen=True)
class Movement:
    """The accesses of one copy.

    Args:
        source: name and memory of the source.
        target: name and memory of the target.
        elems: elements per access; None if the target has not chosen.
        bytes: bytes per access of the memory.
        asynchronous: whether it runs in the background.
        how: the accesses in words, if the target chooses them with its text.
        sectors: requested sectors of global memory per necessary sector; None if unknown.
        at_once: whether it should run in the background, but its accesses are too narrow.
        line: the author's line.
        matrices: matrices of one ``ldmatrix`` or ``stmatrix``; 0 for other accesses.
        passes: predicted passes over the banks per access of shared memory, 1.0 without conflicts; None
            without a prediction.
    """

    source: str
    target: str
    elems: int | None
    bytes: int | None
    asynchronous: bool
    line: str
    matrices: int = 0
    passes: float | None = None
    at_once: bool = False
    how: str = ""
    sectors: float | None = None

    def __str__(self) -> str:
        kind = "asynchronous copy" if self.asynchronous else "copy"
        width = "width: the compiler's choice" if self.how else "width not chosen"
        if self.elems is not None:
            width = f"{self.elems} element{'s' * (self.elems > 1)} ({self.bytes} bytes) per access"
        if self.matrices:
            width = f"{self.matrices} matrices (16 bytes of each lane) per access"
        width += f", {self.how}" if self.how else ""
        if self.passes is not None:
            conflicts = "no bank conflict" if self.passes == 1 else f"{self.passes:.2f} passes over the banks"
            width += f", {conflicts} predicted"
        if self.sectors is not None and self.sectors > UNCOALESCED:
            width += f", uncoalesced: {self.sectors:.2f} sectors of global memory for each that it needs"
        if self.at_once:
            width += f", at once: copies in the background move {in_words(REFERENCE.async_bytes)} bytes"
        where = f", {self.line}" if self.line else ""
        return f"{kind} {self.source} -> {self.target}: {width}{where}"


def movements(
    kernel: Kernel, target: str = CUDA.name, traced: Kernel | None = None, accesses: Accesses | None = None
) -> tuple[Movement, ...]:
    """Return the accesses of each copy, in program order; equal copies of several stages once.

    Args:
        kernel: lowered for the target.
        target: the target; bank conflicts are predicted if it has warps.
        accesses: the target's spelling of copies, from its `EmittedText`; a copy that is missing there shares
            a loop with others.
        traced: the kernel before it was lowered, with the author's copies in the background.
    """
    factors: dict[Location | None, float] = {}
    background = set[Location | None]()
    if traced:
        moved = copy_bytes(traced)  # if elements share bytes, bytes are copied
        known = ((op.location, sector_factor(moved, op)) for op in moved.walk() if is_by_threads(op))
        factors = {location: factor for location, factor in known if factor is not None}
        background = {op.location for op in traced.walk() if is_in_background(op)}
    warps = target_named(target).warps
    found: dict[Movement, None] = {}
    for op in kernel.walk():
        if is_by_threads(op):
            elems, words = op.vector, ""
            if accesses is not None:
                elems, words = accesses.get((op, op.location), FUSED)
            memory = op.target if op.source.is_fragment else op.source
            size = None if elems is None else memory.dtype.bytes_of(elems)
            line = str(op.location.frame) if op.location else ""
            names = (_place(op.source), _place(op.target))
            predicted: tuple[int, float | None] = (0, None)
            if warps and elems is not None:
                predicted = (op.matrices.count if op.matrices else 0, passes_per_access(op))
            asynchronous = is_in_background(op)
            at_once = warps and not asynchronous and op.location in background
            sectors = factors.get(op.location) if warps else None
            made = Movement(*names, elems, size, asynchronous, line, *predicted, at_once, words, sectors)
            found[made] = None
    return tuple(found)


def _place(value: Value) -> str:
    memory = "registers" if value.is_fragment else value.tensor.memory.value
    return f"{value.buffer.name} ({memory})"


def resources(executable: Executable) -> str:
    """Describe the launch shape of a kernel, the compiler's report, and the accesses of each copy."""
    kernel = executable.kernel if executable.listing is None else executable.listing.kernel
    warps = TARGETS[executable.target].warps
    rows: list[tuple[str, Any]] = [
        ("target", f"{executable.target} {executable.arch}"),
        ("threads per block", kernel.threads),
        ("threads per warp", kernel.lanes),
        ("shared bytes", kernel.shared_bytes),
    ]
    reported = {**executable.resources}
    if executable.listing is not None and not warps:
        rows[-1] = ("scratch bytes per worker", executable.listing.shared_bytes)
    rows += [
        (_UNITS.get(name, name.replace("_", " ")), value)
        for name, value in reported.items()
        if name != "shared_bytes"
    ]
    if executable.path is not None and executable.path.exists():  # not cleared since
        what = "listing bytes" if executable.assembly else "machine code bytes"
        rows.append((what, executable.path.stat().st_size))
    if warps:
        measured = "; --measure reads the GPU's counters" if TARGETS[executable.target].counters else ""
        rows.append(("bank conflicts", f"predicted for each copy{measured}"))
    accesses = executable.listing.accesses if executable.listing and not warps else None
    moved = map(str, movements(kernel, executable.target, executable.kernel, accesses))
    width = max(len(name) for name, _ in rows)
    return "\n".join([*(f"{name:<{width}}  {value}" for name, value in rows), "", *moved])


def counters(report: Report, executable: Executable | None = None) -> str:
    """Describe the bank conflicts and sectors of a run on the reference.

    Args:
        report: the report of the run.
        executable: the kernel lowered for CUDA, with other layouts of shared tensors. The conflicts are then
            the prediction of `resources`, not those of the run.
    """
    if executable is None or executable.listing is None or not TARGETS[executable.target].warps:
        return str(report.counters)
    moved = movements(executable.listing.kernel, executable.target, executable.kernel)
    banks = [
        f"{one.source} -> {one.target}: {one.passes:.2f} wavefronts per request predicted"
        f"{f', {one.line}' if one.line else ''}"
        for one in moved
        if one.passes is not None
    ]
    return "\n".join([*banks, str(replace(report.counters, banks=()))])


# ----------------------------------------------------------------
# Passes: the kernel after a pass, and differences between passes.


def listed(stages: Sequence[Stage]) -> str:
    """List the passes in their order, with a description and the choices for this kernel."""
    width = max(len(stage.name) for stage in stages)
    lines = []
    for stage in stages:
        lines.append(f"{stage.name:<{width}}  {stage.about}")
        lines += [f"{'':<{width}}  - {note}" for note in stage.notes]
    return "\n".join(lines)


def after(stages: Sequence[Stage], name: str) -> str:
    """Return the kernel's text after a pass, with the notes of all passes up to this one as comments.

    Raises:
        LaunchError: the pass does not exist; lists all passes.
    """
    last = _place_of_pass(stages, name)
    first, rest = print_kernel(stages[last].kernel).split("\n", 1)
    notes = [f"# {stage.name}: {note}" for stage in stages[: last + 1] for note in stage.notes]
    return "\n".join([first, *notes, rest])


def difference(stages: Sequence[Stage], before: str, after: str) -> str:
    """Return a unified diff of the kernel's text after two passes, or a sentence if nothing changed.

    Raises:
        LaunchError: a pass does not exist; lists all passes.
    """
    old, new = (stages[_place_of_pass(stages, name)].kernel for name in (before, after))
    texts = [print_kernel(kernel).splitlines() for kernel in (old, new)]
    names = [f"{old.name} after {before}", f"{new.name} after {after}"]
    lines = list(difflib.unified_diff(texts[0], texts[1], names[0], names[1], lineterm=""))
    return "\n".join(lines) or f"no difference: {old.name} is the same after {before} and after {after}"


def _place_of_pass(stages: Sequence[Stage], name: str) -> int:
    names = [stage.name for stage in stages]
    if name not in names:
        raise LaunchError(f"no pass {shown(name)}; choose one of {', '.join(names)}{close_to(name, names)}")
    return names.index(name)
