"""Reports of one kernel at many sizes, merged into one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from tilewright.errors import HazardError, LegalityError
from tilewright.targets.reference.coverage import ShortLoop
from tilewright.targets.reference.findings import Finding
from tilewright.targets.reference.report import Report

Sizes: TypeAlias = tuple[tuple[str, int], ...]


@dataclass(frozen=True, repr=False)
class SizesReport:
    """What executing a kernel at many sizes showed.

    Args:
        kernel: the kernel's name.
        reports: for each of the sizes what the run found and counted.
        refused: sizes that the kernel does not take, with the first line of why.
        left_out: sizes that were not tried, as time was up.
        why: what each of the sizes shows.
    """

    kernel: str
    reports: tuple[tuple[Sizes, Report], ...]
    refused: tuple[tuple[Sizes, str], ...] = ()
    left_out: tuple[Sizes, ...] = ()
    why: Mapping[Sizes, str] = field(default_factory=dict)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The hazards of all sizes, each kind at its place once."""
        return tuple(found for found, _ in self._merged())

    @property
    def is_clean(self) -> bool:
        """Whether something ran, and nothing was found at any of the sizes."""
        return bool(self.reports) and all(report.is_clean for _, report in self.reports)

    @property
    def idle(self) -> tuple[str, ...]:
        """Operations that ran at none of the sizes."""
        runs = [report.coverage.idle for _, report in self.reports]
        return tuple(op for op in runs[0] if all(op in idle for idle in runs)) if runs else ()

    @property
    def one_sided(self) -> tuple[str, ...]:
        """Conditions that were true at all of the sizes where they were looked at, each with its line."""
        ways: dict[str, frozenset[bool]] = {}
        for _, report in self.reports:
            for where, went in report.coverage.ways.items():
                ways[where] = ways.get(where, frozenset()) | went
        return tuple(where for where, went in ways.items() if went == {True})

    @property
    def short(self) -> tuple[ShortLoop, ...]:
        """Loops that were too short for their ring at all of the sizes, as they were at the longest."""
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
            LegalityError: it has none, but is not legal for the target that was named.
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
    """Sizes as they are printed.

    Example:
        >>> spelled((("M", 64), ("K", 0)))
        'M = 64, K = 0'
    """
    return ", ".join(f"{name} = {size}" for name, size in sizes)


def _several(sizes: list[Sizes] | tuple[Sizes, ...]) -> str:
    return "; ".join(spelled(one) for one in sizes)
