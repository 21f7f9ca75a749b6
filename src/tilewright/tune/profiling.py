"""Profiling: every candidate of a product, checked and measured in turns, or why it was not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from tilewright.schedule.load import Load
from tilewright.schedule.question import Candidate
from tilewright.schedule.schedule import Schedule
from tilewright.tune.contest import Contest, Readings, Result
from tilewright.tune.gemm import Arrays, Gemm, GemmArrays, build
from tilewright.tune.measure import Effort
from tilewright.tune.rivals import rivals

Progress = Callable[[str, int, int], object]
"""Is told what is done now, how many are done, and of how many."""


@dataclass(frozen=True)
class ProfileRow:
    """One candidate.

    Args:
        name: what it is called in the contest.
        candidate: the candidate.
        parts: of K, into how many it is split; what ``"auto"`` comes to.
        against: why it was not measured; empty if it was.
    """

    name: str
    candidate: Candidate
    parts: int = 1
    against: str = ""

    @property
    def splits(self) -> str:
        """Into how many parts K is split, and what the schedule says of it if that is no number."""
        said = self.candidate.schedule.split_k
        return f"{self.parts} ({said})" if isinstance(said, str) else str(self.parts)


@dataclass(frozen=True)
class Profile:
    """Every candidate of a product.

    Args:
        gemm: the product.
        rows: in the order in which the rules propose them, the untuned choice first.
        result: of those that were measured, and of the libraries that a user would call instead.
        rivals: names of those calls.
    """

    gemm: Gemm
    rows: tuple[ProfileRow, ...]
    result: Result
    rivals: tuple[str, ...]

    @property
    def measured(self) -> list[ProfileRow]:
        """Those that were measured, the fastest first."""
        taken = self.result.taken
        rows = [row for row in self.rows if not row.against]
        return sorted(rows, key=lambda row: taken[row.name].us.median)

    def relative(self, row: ProfileRow) -> float:
        """The model's estimate, relative to that of the untuned choice."""
        return row.candidate.estimate / self.rows[0].candidate.estimate

    def record(self) -> dict[str, Any]:
        """The profile in JSON's types."""
        best = self.measured[:1]
        return {
            "problem": str(self.gemm),
            "shape": list(self.gemm.shape),
            "untuned": repr(self.rows[0].candidate.schedule),
            "best": repr(best[0].candidate.schedule) if best else None,
            "candidates": [self._row(row) for row in self.rows],
            "libraries": list(self.rivals),
            **self.result.record(),
        }

    def _row(self, row: ProfileRow) -> dict[str, Any]:
        said: dict[str, Any] = {
            "name": row.name,
            "schedule": repr(row.candidate.schedule),
            "rule": row.candidate.rule,
            "splits": row.splits,
            "estimate": round(self.relative(row), 4),
            "against": row.against or None,
        }
        if row.against:
            return said
        us = self.result.taken[row.name].us
        return said | {
            "ms": us.median / 1e3,
            "ms_interval": [us.low / 1e3, us.high / 1e3],
            "tflops": self.result.tflops(row.name),
            "gbytes": self.result.gbytes(row.name),
        }


def profile(
    gemm: Gemm,
    *,
    effort: Effort,
    processes: int,
    most: int | None = None,
    seed: int = 0,
    progress: Progress = lambda step, done, total: None,
    readings: Readings | None = None,
) -> Profile:
    """Check and measure every candidate of a product.

    Args:
        gemm: the product.
        effort: for each candidate.
        processes: that compile.
        most: how many legal candidates are measured, those first that the rules propose first; None: all.
        seed: of the numbers.
        progress: is told how far it is.
        readings: the clocks and the power meanwhile.
    """
    rows = [*_rows(gemm, gemm.candidates(), most)]
    wanted = [row.candidate.schedule for row in rows if not row.against]
    failed = build(gemm, wanted, processes, done=lambda done: progress("compiling", done, len(wanted)))
    arrays = GemmArrays(gemm, seed)
    contest: Contest[Arrays] = Contest(gemm.subject(arrays.made.about), arrays.sets, gemm.bytes)
    found: list[ProfileRow] = []
    for count, row in enumerate(rows):
        progress("checking", count, len(rows))
        found.append(_entered(row, contest, arrays, failed))
    names = _enter_rivals(gemm, contest, arrays)
    progress("timing", 0, 1)
    result = contest.run(scaled(effort, len(wanted) + len(names)), readings)
    progress("timing", 1, 1)
    return Profile(gemm, tuple(found), result, names)


def scaled(effort: Effort, count: int) -> Effort:
    """The effort for so many calls, of that for one."""
    seconds, warm_up = effort.seconds * count, effort.warm_up_seconds * count
    return Effort(seconds=seconds, warm_up_seconds=warm_up, least=effort.least, most=effort.most)


def _rows(gemm: Gemm, found: tuple[Candidate, ...], most: int | None) -> Iterator[ProfileRow]:
    legal, question = 0, gemm.question()
    for count, candidate in enumerate(found):
        name = "untuned" if count == 0 else f"candidate {count}"
        against = "; ".join(candidate.against)
        legal += not against
        if not against and most is not None and legal > most:
            against = f"left out: {most} were asked for"
        yield ProfileRow(name, candidate, Load(question, candidate.schedule).parts, against)


def _entered(
    row: ProfileRow, contest: Contest[Arrays], arrays: GemmArrays, failed: dict[Schedule, str]
) -> ProfileRow:
    """A row, whose candidate takes part from now on if it can be compiled and is right."""
    schedule = row.candidate.schedule
    if row.against:
        return row
    if why := failed.get(schedule, ""):
        return replace(row, against=f"not compiled: {why}")
    if contest.enter(row.name, arrays.bind(schedule), arrays.check(schedule)):
        return row
    return replace(row, against=f"wrong: {contest.wrong[row.name]}")


def _enter_rivals(gemm: Gemm, contest: Contest[Arrays], arrays: GemmArrays) -> tuple[str, ...]:
    tf32 = gemm.precision == "tf32"

    def calls(given: Arrays) -> dict[str, Callable[[], object]]:
        return rivals(*given, gemm.target, tf32=tf32)

    names = tuple(calls(arrays.sets[0]))
    return tuple(n for n in names if contest.enter(n, lambda given, n=n: calls(given)[n]))  # type: ignore[misc]
