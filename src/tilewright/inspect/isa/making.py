"""From a kernel and the arrays that it is made for to the report of its machine code."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.amdgcn import ListingError
from tilewright.errors import LaunchError
from tilewright.inspect.isa.execution import BankCounter, Conflicts, execute_listing
from tilewright.inspect.isa.instructions import Kind
from tilewright.inspect.isa.reading import Isa, read_isa
from tilewright.inspect.isa.report import IsaReport
from tilewright.inspect.isa.sources import Source, compiled_lines, sources
from tilewright.inspect.subject import Subject
from tilewright.ir.copies import is_by_threads
from tilewright.ir.ops import Copy
from tilewright.runtime.executable import Executable
from tilewright.runtime.hip import listing_with_lines
from tilewright.targets.simt.banks import in_shared, requests
from tilewright.targets.target import HIP, target_named

FEW = 128
"""The largest extent of the arrays on which a listing is executed."""


def isa_report(subject: Subject, target: str, arch: str | None = None) -> IsaReport:
    """The machine code of a kernel, with the author's lines, and bank conflicts of its accesses.

    Args:
        subject: the kernel, and the arrays that it is made for.
        target: what it is compiled for.
        arch: the target's architecture; default: its own.

    Raises:
        LaunchError: the target has no listing, the architecture is not known, or the kernel has no main loop.
    """
    if target != HIP.name:
        raise LaunchError(
            f"target {target} has no listing of machine code that is read here; nearest legal choice: "
            f"--target {HIP.name} --arch {HIP.arch}"
        )
    target_named(target).architecture(arch or HIP.arch)
    made = subject.compile(target, arch)
    isa = read_isa(made.assembly)
    main = isa.main  # refuses a kernel without one before anything is executed
    known, notes = _sources(made, isa)
    conflicts, counted = _counted(subject, made, isa)
    if not conflicts and main.of(Kind.SHARED_LOAD, Kind.SHARED_STORE):
        conflicts, counted = predicted(known), f"predicted from layouts, for {counted}"
    title = f"{isa.kernel} for {target} {isa.arch.name}"
    return IsaReport(title, isa, known, conflicts, counted, notes)


def _sources(made: Executable, isa: Isa) -> tuple[dict[int, Source], tuple[str, ...]]:
    """Where instructions come from, as the same compiler says with the same instructions."""
    assert made.listing is not None
    text = listing_with_lines(made)
    again, lines = read_isa(text, isa.kernel).whole.lines, compiled_lines(text)
    if [line.text for line in again] != [line.text for line in isa.whole.lines]:
        return {}, ("with line numbers the compiler writes other instructions, so that no lines are shown",)
    pairs = zip(isa.whole.lines, again, strict=True)
    return sources(made.listing, {one.line: lines[two.line] for one, two in pairs if two.line in lines}), ()


def _counted(subject: Subject, made: Executable, isa: Isa) -> tuple[Mapping[int, Conflicts], str]:
    """How accesses meet in banks when the listing is executed, or nothing and why."""
    counter = BankCounter(isa.arch)
    try:
        subject.require_numbers()
        execute_listing(made, subject.small_arrays(FEW), subject.numbers, counter)
    except (ListingError, LaunchError) as error:
        return {}, f"the listing cannot be executed here: {str(error).splitlines()[0]}"
    return (
        counter.lines,
        f"counted while the listing was executed on arrays of at most {FEW} along a dimension",
    )


def predicted(known: Mapping[int, Source]) -> dict[int, Conflicts]:
    """What is predicted, from layouts, of the copies that instructions belong to, by the line of the listing.

    Args:
        known: where instructions come from, by the line of the listing.
    """
    found = {}
    for line, source in known.items():
        op = source.op
        if isinstance(op, Copy) and is_by_threads(op):
            for value in (op.source, op.target):
                if in_shared(value):
                    asked = requests(op, value)
                    found[line] = Conflicts(asked.instructions, asked.passes, asked.fewest)
    return found
