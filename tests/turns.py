"""Mutants take turns: a third of a large family is tried each day, and all where that is asked for.

``pytest --every-mutant tests/hazards tests/schedule/test_mutants.py`` tries all and writes what it found into
`every_mutant.txt`, a line for each family.  `--update-golden` tries all of them as well.
"""

from __future__ import annotations

import fcntl
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path

DAYS = 3
"""After which every mutant has had its turn."""

RECORD = Path(__file__).with_name("every_mutant.txt")
"""What the last run of all mutants found."""


@dataclass(frozen=True)
class Turns:
    """Whose turn it is.

    Args:
        family: what the mutants are called together, in the record.
        every: whether all of them are tried.
    """

    family: str
    every: bool

    def among(self, names: Iterable[str]) -> set[str]:
        """Those that are tried today."""
        listed = list(names)
        return {*listed} if self.every else {*listed[date.today().toordinal() % DAYS :: DAYS]}

    def record(self, outcomes: Mapping[str, str] | Iterable[tuple[str, str]]) -> None:
        """Where all were tried: write down how many, and what showed how many of them to be wrong."""
        if not self.every:
            return
        pairs = outcomes.items() if isinstance(outcomes, Mapping) else outcomes
        found = Counter(re.split(r" \(|:|;", outcome)[0] for _, outcome in pairs)
        counts = ", ".join(f"{count} {what}" for what, count in sorted(found.items()))
        with RECORD.open("a+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            known = dict(line.split(" -> ", 1) for line in file.read().splitlines())
            known[self.family] = f"{found.total()} tried: {counts}"
            file.truncate(0)
            file.write("".join(f"{family} -> {told}\n" for family, told in sorted(known.items())))


def recorded(golden: Path) -> dict[str, str]:
    """The lines of a golden file of mutants, by the mutant's name, which two blanks end."""
    lines = golden.read_text(encoding="utf-8").splitlines() if golden.exists() else []
    return {line.partition("  ")[0]: line for line in lines}
