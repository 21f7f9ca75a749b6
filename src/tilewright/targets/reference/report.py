"""Reports: what a run found and counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.errors import HazardError
from tilewright.targets.reference.counters import Counters
from tilewright.targets.reference.findings import Finding


@dataclass(frozen=True)
class Report:
    """What executing a kernel on the reference showed.

    Args:
        kernel: the kernel's name.
        findings: hazards, in the order in which they were seen.
        omitted: how many more hazards there are than are listed.
        counters: bank conflicts, sectors, barriers.
        uncovered: for each array that the kernel writes, how many of its elements no block wrote; known only
            when hazards were looked for.
        blocks: how many blocks were executed.
    """

    kernel: str
    findings: tuple[Finding, ...]
    omitted: int
    counters: Counters
    uncovered: Mapping[str, int]
    blocks: int

    @property
    def is_clean(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def raise_if_any(self) -> None:
        """Raise if anything was found.

        Raises:
            HazardError: the kernel has hazards; the message describes each.
        """
        if self.findings:
            raise HazardError(str(self))

    def __str__(self) -> str:
        count = len(self.findings) + self.omitted
        head = f"kernel {self.kernel}: {count or 'no'} finding{'s' * (count != 1)}"
        tail = [f"and {self.omitted} more"] if self.omitted else []
        return "\n\n".join([head, *(str(finding) for finding in self.findings), *tail])
