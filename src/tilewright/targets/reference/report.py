"""Reports: what a run found and counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tilewright.calls import launches
from tilewright.errors import HazardError, LegalityError, Violation
from tilewright.targets.reference.counters import UNCOALESCED, Counters
from tilewright.targets.reference.coverage import Coverage, place
from tilewright.targets.reference.findings import Finding


@launches.made("kernel.check(...) gives one")
@dataclass(frozen=True, repr=False)
class Report:
    """Findings and counters of one run on the reference; made by `Kernel.check`.

    Args:
        kernel: the kernel's name.
        findings: hazards, in the order in which they were seen.
        omitted: how many more hazards there are than are listed.
        counters: bank conflicts, sectors, barriers.
        uncovered: for each array that the kernel writes, how many of its elements no block wrote; known only
            when hazards were looked for.
        blocks: how many blocks were executed.
        target: the target and architecture whose rules were asked too; empty if none was named.
        violations: the rules of that target that the kernel breaks.
        coverage: what the run was about: sizes, blocks, operations that never ran, loops that were short.
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
        """Whether nothing was found, and the kernel is legal for the target that was named."""
        return not self.findings and not self.violations

    @property
    def notes(self) -> tuple[str, ...]:
        """No hazards: waits that order nothing, copies that request more sectors than they need."""
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
            LegalityError: it has none, but is not legal for the target that was named.
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
