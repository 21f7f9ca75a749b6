"""Counters: bank conflicts of shared memory, sectors of global memory, barriers."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.targets.reference.findings import Site

UNCOALESCED = 1.5
"""Above how many sectors for each that is needed a copy is called uncoalesced."""


@dataclass
class BankCount:
    """Requests to shared memory from one place in the program.

    Args:
        site: the place.
        requests: how many requests of at most 128 bytes.
        wavefronts: how many passes they take; equal to ``requests`` without conflicts.
        worst: the largest number of passes of one request.
    """

    site: Site
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

    site: Site
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
    """What a run counted.

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
