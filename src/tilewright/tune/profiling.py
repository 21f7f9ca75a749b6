"""Profiling: every candidate of a kernel, checked and measured in turns, or the reason against it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from tilewright.errors import LaunchError
from tilewright.schedule.folds.choice import parts_in
from tilewright.schedule.load import Load
from tilewright.schedule.question import Candidate, LoopQuestion, Question
from tilewright.schedule.time_parts import TimeParts, ranked_us, time_parts
from tilewright.tune.contest import Contest, Readings, Result
from tilewright.tune.gemm import build
from tilewright.tune.measure import Effort
from tilewright.tune.subject import Arrays, SubjectArrays, TuningSubject

Progress = Callable[[str, int, int], object]
"""Receives the step, how much of it is done, and its total."""


@dataclass(frozen=True)
class ProfileRow:
    """One candidate.

    Args:
        name: its name in the contest.
        candidate: the candidate.
        parts: number of parts of K, also if the schedule says ``"auto"``.
        against: the reason why it was not measured, or "".
    """

    name: str
    candidate: Candidate
    parts: int = 1
    against: str = ""

    @property
    def splits(self) -> str:
        """Number of parts of K; followed by ``"auto"`` or ``"stream"`` if the schedule says so."""
        said = self.candidate.schedule.split_k
        return f"{self.parts} ({said})" if isinstance(said, str) else str(self.parts)


@dataclass(frozen=True)
class Profile:
    """Every candidate of a kernel.

    Args:
        subject: the kernel.
        rows: the candidates in the order of the rules, the untuned choice first.
        result: the times of candidates and of other libraries.
        rivals: names of the calls of other libraries.
    """

    subject: TuningSubject
    rows: tuple[ProfileRow, ...]
    result: Result
    rivals: tuple[str, ...]

    @property
    def measured(self) -> list[ProfileRow]:
        """The measured rows, the fastest first."""
        taken = self.result.taken
        rows = [row for row in self.rows if not row.against]
        return sorted(rows, key=lambda row: taken[row.name].us.median)

    def relative(self, row: ProfileRow) -> float:
        """Return the model's estimate, relative to that of the untuned choice."""
        return row.candidate.estimate / self.rows[0].candidate.estimate

    def record(self) -> dict[str, Any]:
        """The profile in JSON's types."""
        best, candidates = self.measured[:1], []
        for row in self.rows:
            said: dict[str, Any] = {
                "name": row.name,
                "schedule": repr(row.candidate.schedule),
                "rule": row.candidate.rule,
                "splits": row.splits,
                "estimate": round(self.relative(row), 4),
                "against": row.against or None,
            }
            if not row.against:
                us = self.result.taken[row.name].us
                said |= {
                    "ms": us.median / 1e3,
                    "ms_interval": [us.low / 1e3, us.high / 1e3],
                    "tflops": self.result.tflops(row.name),
                    "gbytes": self.result.gbytes(row.name),
                }
            candidates.append(said)
        return {
            "problem": str(self.subject),
            "shapes": {name: list(one.shape) for name, one in self.subject.specimens.items()},
            "untuned": repr(self.rows[0].candidate.schedule),
            "best": repr(best[0].candidate.schedule) if best else None,
            "candidates": candidates,
            "libraries": list(self.rivals),
            **self.result.record(),
        }


def profile(
    subject: TuningSubject,
    *,
    effort: Effort,
    processes: int,
    most: int | None = None,
    seed: int = 0,
    progress: Progress = lambda step, done, total: None,
    readings: Readings | None = None,
) -> Profile:
    """Check and measure every candidate of a kernel.

    Args:
        subject: the kernel.
        effort: the effort for each candidate.
        processes: number of processes that compile.
        most: number of legal candidates to measure, in the order of the rules; None: all.
        seed: seed of the numbers.
        progress: receives the step, and how much of it is done.
        readings: the clocks and the power meanwhile.

    Raises:
        LaunchError: the kernel is explicit, and has no candidates.
    """
    rows, legal, question = list[ProfileRow](), 0, subject.question()
    if question is None:
        text = f"{subject} is explicit, so that no schedules are compared"
        raise LaunchError(text, "tw.testing.do_bench, or tilewright inspect --measure")
    for count, candidate in enumerate(subject.candidates()):
        name = "untuned" if count == 0 else f"candidate {count}"
        against = "; ".join(candidate.against)
        legal += not against
        if not against and most is not None and legal > most:
            against = f"left out: {most} were asked for"
        schedule = candidate.schedule
        if isinstance(question, LoopQuestion):
            parts = parts_in(schedule, question)
        else:
            parts = Load(question, schedule).parts
        rows.append(ProfileRow(name, candidate, parts, against))
    wanted = [row.candidate.schedule for row in rows if not row.against]
    failed = build(subject, wanted, processes, done=lambda done: progress("compiling", done, len(wanted)))
    arrays = SubjectArrays(subject, seed)
    contest: Contest[Arrays] = Contest(subject.contested(arrays.about), arrays.sets, subject.bytes)
    found: list[ProfileRow] = []
    for count, row in enumerate(rows):
        progress("checking", count, len(rows))
        schedule = row.candidate.schedule
        if not row.against and schedule in failed:
            row = replace(row, against=f"not compiled: {failed[schedule]}")
        elif not row.against and not contest.enter(row.name, arrays.bind(schedule), arrays.check(schedule)):
            row = replace(row, against=f"wrong: {contest.wrong[row.name]}")
        found.append(row)

    def rival(name: str) -> Callable[[Arrays], Callable[[], object]]:
        return lambda given: subject.rivals(given)[name]

    libraries = subject.rivals(arrays.sets[0])
    names = tuple(name for name in libraries if contest.enter(name, rival(name)))
    progress("timing", 0, 1)
    result = contest.run(scaled(effort, len(wanted) + len(names)), readings)
    progress("timing", 1, 1)
    return Profile(subject, tuple(found), result, names)


@dataclass(frozen=True)
class Reason:
    """A candidate with the parts of its estimated time.

    Args:
        candidate: the candidate.
        parts: the parts.
    """

    candidate: Candidate
    parts: TimeParts

    def record(self) -> dict[str, Any]:
        """The parts in JSON's types, in us."""
        found = {name: round(us, 3) for name, us in asdict(self.parts).items()}
        return {
            "schedule": repr(self.candidate.schedule),
            "rule": self.candidate.rule,
            "parts_us": found,
            "main_loop_us": round(self.parts.main_loop, 3),
            "total_us": round(self.parts.total, 3),
            "limit": self.parts.limit,
        }


def reasons_of(subject: TuningSubject, arch: str | None = None) -> list[Reason]:
    """Return the untuned choice and its runner-up, each with the parts of its estimated time.

    The runner-up is the other legal candidate with the least estimate.  Nothing is compiled or measured.

    Args:
        subject: the product.
        arch: the architecture; default: that of this machine.

    Raises:
        LaunchError: no rates of the architecture are known, or it is no product.

    Example:
        >>> from tilewright.tune.gemm import Gemm
        >>> choice, other = reasons_of(Gemm((64, 4096, 4096), "bf16", "nt", "exact", "cuda"), "sm_90a")
        >>> choice.parts.limit, choice.candidate.schedule == other.candidate.schedule
        ('memory', False)
    """
    question = subject.question(arch)
    if not isinstance(question, Question):
        text = f"profile --why: {subject} is no product, whose time is estimated in parts"
        raise LaunchError(text, "tilewright profile without --why")
    if question.arch.rates is None:
        text = f"profile --why: no rates are known of {question.arch.name}, so that no time is estimated"
        raise LaunchError(text, "--target cuda --arch sm_90a")
    choice, *others = [one for one in subject.candidates(arch) if not one.against]
    ranked = sorted(others, key=lambda one: ranked_us(Load(question, one.schedule)))
    found = []
    for one in (choice, *ranked[:1]):
        parts = time_parts(Load(question, one.schedule))
        assert parts is not None, "the rates are known"
        found.append(Reason(one, parts))
    return found


def constants_source(subject: TuningSubject, arch: str | None = None) -> str:
    """Return the source of the constants of the estimate, in words."""
    question = subject.question(arch)
    assert question is not None, "a dataflow kernel"
    found = question.arch
    return found.times.source or f"nothing on {found.name}: rates of its data sheet"


def scaled(effort: Effort, count: int) -> Effort:
    """Return the effort for a number of calls, from the effort for one."""
    seconds, warm_up = effort.seconds * count, effort.warm_up_seconds * count
    return Effort(seconds=seconds, warm_up_seconds=warm_up, least=effort.least, most=effort.most)
