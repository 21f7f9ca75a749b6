"""What takes turns: a part of a large family is tried each day, and all where that is asked for.

Mutants: ``pytest --every-mutant tests/hazards tests/schedule/test_mutants.py`` tries all and writes what it
found into `every_mutant.txt`, a line for each family.  `--update-golden` tries all of them as well.

Cases: those of a parametrized test with the marker `in_turns` go one way through the library, with other
numbers.  In a file with the marker all tests take turns that have none of their own.  ``pytest --every-case``
runs all of them, and so does whoever names a test.
"""

from __future__ import annotations

import fcntl
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, TypeVar
from zlib import crc32

DAYS = 6
"""After which every mutant has had its turn."""

RECORD = Path(__file__).with_name("every_mutant.txt")
"""What the last run of all mutants found."""


Name = TypeVar("Name")


@dataclass(frozen=True)
class Turns:
    """Whose turn it is.

    Args:
        family: what the mutants are called together, in the record.
        every: whether all of them are tried.
        day: the day's number; of a test that takes turns itself, the number of its turn.
    """

    family: str
    every: bool
    day: int

    def among(self, names: Iterable[Name], days: int = DAYS) -> set[Name]:
        """Those that are tried today; families begin at different ones."""
        listed = list(names)
        first = (self.day + crc32(self.family.encode())) % min(days, max(len(listed), 1))
        return {*listed} if self.every else {*listed[first::days]}

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


def day_of(config: Any) -> int:
    """The number of the session's day, on which its processes agree, also at midnight."""
    given = config.getoption("--fuzz-seed")
    return int(
        getattr(config, "workerinput", {}).get("day", date.today().toordinal()) if given is None else given
    )


def turn_of(item: Any, day: int) -> int:
    """How often a test has had its turn by some day, which counts without gaps.

    What such a test tries a part of goes by this number.  Days would not do: of those on which it runs, each
    has the same remainder.
    """
    mark = item.get_closest_marker("in_turns")
    return day if mark is None else day // int(mark.args[0])


def waiting(items: Iterable[Any], day: int, needs_gpu: Callable[[Any], bool]) -> dict[int, Any]:
    """The collected tests whose turn is on another day, by their `id`.

    Those of a function come one after the other in an order that has nothing to do with their parameters, so
    that every value of each parameter is tried on most days.  Functions without parameters take turns with
    others of their file.  Tests that need a GPU run seldom, and take no turns.
    """
    families: dict[tuple[str, int], list[Any]] = {}
    for item in items:
        mark = item.get_closest_marker("in_turns")
        if mark is not None and not needs_gpu(item):
            [days] = mark.args
            function, bracket, _ = item.nodeid.partition("[")
            family = function if bracket else function.partition("::")[0]
            families.setdefault((family, days), []).append(item)
    found: dict[int, Any] = {}
    for (_, days), family in families.items():
        family.sort(key=lambda item: (crc32(item.nodeid.encode()), item.nodeid))
        first = day % min(days, len(family))
        found.update({id(item): item for n, item in enumerate(family) if n < first or (n - first) % days})
    return found


def recorded(golden: Path) -> dict[str, str]:
    """The lines of a golden file of mutants, by the mutant's name, which two blanks end."""
    lines = golden.read_text(encoding="utf-8").splitlines() if golden.exists() else []
    return {line.partition("  ")[0]: line for line in lines}
