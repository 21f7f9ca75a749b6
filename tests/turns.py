"""Large families of tests run in part: the commit's hash draws the part.

Cases: of a parametrized test with the marker `in_turns(n)`, one case in n runs.  In a file with the marker,
tests without their own marker are drawn likewise.  ``pytest --every-case`` runs all of them, and so does
naming a test.

Mutants: one mutant in `SHARE` of a large family is tried.  ``pytest --every-mutant`` tries all, and writes
the results into `every_mutant.txt`, a line for each family.  `--update-golden` also tries all of them.

The draw depends only on the commit, so a failure can be repeated; ``--fuzz-seed`` repeats the draw of
another commit.  CI runs everything (`dev`), but ends in time on a slow machine: `Deadline`.
"""

from __future__ import annotations

import fcntl
import re
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from zlib import crc32

import pytest
from _pytest.runner import runtestprotocol

SHARE = 6
"""The number of parts into which a family of mutants is divided."""

RECORD = Path(__file__).with_name("every_mutant.txt")
"""What the last run of all mutants found."""


Name = TypeVar("Name")


@dataclass(frozen=True)
class Turns:
    """The part of a family of mutants that is tried.

    Args:
        family: the name of the family in the record.
        every: whether all of them are tried.
        draw: the number that picks the part.
    """

    family: str
    every: bool
    draw: int

    def among(self, names: Iterable[Name], parts: int = SHARE) -> set[Name]:
        """Return the names of one part of ``parts``; families begin at different ones."""
        listed = list(names)
        first = (self.draw + crc32(self.family.encode())) % min(parts, max(len(listed), 1))
        return {*listed} if self.every else {*listed[first::parts]}

    def record(self, outcomes: Mapping[str, str] | Iterable[tuple[str, str]]) -> None:
        """If all were tried, record how many there were, and which checks detected how many."""
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


def calls_on(target: str) -> range:
    """Return two calls, the second of which is replayed; on the reference, which replays none, one call."""
    return range(1 if target == "reference" else 2)


def seed_of(config: Any) -> int:
    """Return the number that seeds the session's draws: ``--fuzz-seed``, or the commit's hash."""
    given = config.getoption("--fuzz-seed")
    if given is None:
        given = getattr(config, "workerinput", {}).get("seed")
    return commit_number(config.rootpath) if given is None else int(given)


def commit_number(root: Path) -> int:
    """Return the first 28 bits of the hash of the checked-out commit; 0 outside of a git repository."""
    try:
        asked = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return 0
    return int(asked.stdout[:7], 16)


def draw_of(item: Any, seed: int) -> int:
    """Return the number by which a test picks the part that it tries.

    A test in turns runs only for seeds of one remainder, so the remainder cannot pick the part as well: the
    quotient does.
    """
    mark = item.get_closest_marker("in_turns")
    return seed if mark is None else seed // int(mark.args[0])


def left_out(items: Iterable[Any], seed: int, needs_gpu: Callable[[Any], bool]) -> dict[int, Any]:
    """Return the collected tests that the seed does not draw, by their `id`.

    The cases of a function are ordered by a hash of their names, so that every value of each parameter
    appears in most draws.  Functions without parameters are drawn together with others of their file.
    Tests that need a GPU run seldom, and always run whole.
    """
    families: dict[tuple[str, int], list[Any]] = {}
    for item in items:
        mark = item.get_closest_marker("in_turns")
        if mark is not None and not needs_gpu(item):
            [parts] = mark.args
            function, bracket, _ = item.nodeid.partition("[")
            family = function if bracket else function.partition("::")[0]
            families.setdefault((family, parts), []).append(item)
    found: dict[int, Any] = {}
    for (_, parts), family in families.items():
        family.sort(key=lambda item: (crc32(item.nodeid.encode()), item.nodeid))
        first = seed % min(parts, len(family))
        found.update({id(item): item for n, item in enumerate(family) if n < first or (n - first) % parts})
    return found


class Deadline:
    """A plugin of pytest: cases that the seed does not draw run only if they begin in time.

    The summary says how many cases were left out; these are not among the tests that passed.

    Args:
        minutes: the time for all cases, from now.
    """

    def __init__(self, minutes: float) -> None:
        self.minutes = minutes
        self.until = time.monotonic() + 60 * minutes
        self.waiting: dict[int, Any] = {}
        """The cases that the seed does not draw, by their `id`."""
        self.left_out = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: Any, nextitem: Any) -> bool | None:
        """Take a late case's turn without a call of the test and without a report."""
        if id(item) not in self.waiting or time.monotonic() < self.until:
            return None
        item.runtest = lambda: None
        runtestprotocol(
            item, log=False, nextitem=nextitem
        )  # fixtures that the next case does not need end here
        self.left_out += 1
        return True

    def pytest_sessionfinish(self, session: Any) -> None:
        """A worker of pytest-xdist tells its number of cases."""
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["left_out"] = self.left_out

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Add the number of a worker, which is missing if the worker crashed."""
        self.left_out += getattr(node, "workeroutput", {}).get("left_out", 0)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say what did not run."""
        if self.left_out:
            terminalreporter.section("left out")
            terminalreporter.line(
                f"{self.left_out} cases that the seed does not draw did not begin within "
                f"{self.minutes:g} minutes, and did not run"
            )


def recorded(golden: Path) -> dict[str, str]:
    """Return the lines of a golden file of mutants, by the mutant's name, which ends at two blanks."""
    lines = golden.read_text(encoding="utf-8").splitlines() if golden.exists() else []
    return {line.partition("  ")[0]: line for line in lines}
