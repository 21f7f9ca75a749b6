"""The tuner: which of a product's candidates is fastest, measured so that a kill loses nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from tilewright.errors import WrongResultError
from tilewright.schedule.question import Candidate
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.tables import MeasuredSchedule, class_of, extents_of
from tilewright.tune.contest import Contest, Result
from tilewright.tune.gemm import Arrays, Gemm, GemmArrays, build
from tilewright.tune.journal import Journal, Outcome
from tilewright.tune.measure import Effort, Interval
from tilewright.tune.profiling import Progress, scaled

UNTUNED = "untuned"
FINALISTS = 4
"""How many of the fastest are measured once more, all in turns."""


@dataclass(frozen=True)
class Tuned:
    """What came of tuning a product.

    Args:
        entry: for the table.
        speed: how many times as fast as the untuned choice the winner is, when both were in the final.
        measured: candidates that were measured now.
        known: candidates whose outcome the journal had already.
        refused: the others, with the reasons.
    """

    entry: MeasuredSchedule
    speed: Interval
    measured: int
    known: int
    refused: dict[str, str]


@dataclass
class Tuner:
    """Measures the candidates of a product, each in turns with the untuned choice, then the best together.

    Args:
        gemm: the product.
        journal: where every outcome is kept at once; what it has already is not measured again.
        effort: for each candidate.
        processes: that compile.
        most: how many candidates are looked at, those first that the rules propose first; None: all.
        seed: of the numbers; the winner is verified on those of the next.
        progress: is told how far it is.
    """

    gemm: Gemm
    journal: Journal
    effort: Effort
    processes: int = 1
    most: int | None = None
    seed: int = 0
    progress: Progress = lambda step, done, total: None

    def run(self) -> Tuned:
        """Find the fastest schedule that is right.

        Raises:
            WrongResultError: the untuned choice itself is wrong.
        """
        found = self.gemm.candidates()
        legal = [candidate for candidate in found if not candidate.against][: self.most]
        refused = {repr(one.schedule): "; ".join(one.against) for one in found if one.against}
        known = self.journal.outcomes(self._problem)
        left = [one for one in legal if repr(one.schedule) not in known]
        self._compile(legal, left)
        arrays = GemmArrays(self.gemm, self.seed)
        schedule = legal[0].schedule
        contest = self._contest(arrays)
        if not contest.enter(UNTUNED, arrays.bind(schedule), arrays.check(schedule)):
            raise WrongResultError(f"{self.gemm}: the untuned choice is wrong: {contest.wrong[UNTUNED]}")
        for count, candidate in enumerate(left):
            self.progress("measuring", count, len(left))
            self.journal.add(self._outcome(candidate.schedule, legal[0].schedule, arrays))
        self.progress("measuring", len(left), len(left))
        outcomes = self.journal.outcomes(self._problem)
        refused |= {text: one.against for text, one in outcomes.items() if one.against}
        entry, speed = self._final(legal, arrays)
        self.journal.win(entry)
        return Tuned(entry, speed, len(left), len(legal) - len(left), refused)

    @cached_property
    def _problem(self) -> str:
        question = self.gemm.question()
        return f"{class_of(question)} {extents_of(question)}"

    def _compile(self, legal: list[Candidate], left: list[Candidate]) -> None:
        """Compile what is to be measured; what cannot be is an outcome too."""
        wanted = list(dict.fromkeys(one.schedule for one in (legal[0], *left)))
        failed = build(
            self.gemm, wanted, self.processes, done=lambda done: self.progress("compiling", done, len(wanted))
        )
        for schedule, why in failed.items():
            self.journal.add(Outcome(self._problem, repr(schedule), against=f"not compiled: {why}"))
            left[:] = [one for one in left if one.schedule != schedule]

    def _outcome(self, schedule: Schedule, untuned: Schedule, arrays: GemmArrays) -> Outcome:
        """Check a candidate, and measure it in turns with the untuned choice."""
        outcome, name = Outcome(self._problem, repr(schedule)), "candidate"
        contest = self._contest(arrays)
        if not contest.enter(name, arrays.bind(schedule), arrays.check(schedule)):
            return replace(outcome, against=f"wrong: {contest.wrong[name]}")
        if schedule != untuned:
            contest.enter(UNTUNED, arrays.bind(untuned))
        taken = contest.run(self.effort).taken
        try:
            arrays.check_inputs(arrays.sets)
        except WrongResultError as error:
            return replace(outcome, against=f"wrong: {error}")
        speed = taken.speed(name, UNTUNED).median if schedule != untuned else 1.0
        return replace(outcome, us=taken[name].us.median, speed=speed)

    def _final(self, legal: list[Candidate], arrays: GemmArrays) -> tuple[MeasuredSchedule, Interval]:
        """The winner among the fastest, verified on other numbers, and its speed over the untuned choice."""
        untuned, schedules = legal[0].schedule, {repr(one.schedule): one.schedule for one in legal}
        while True:
            outcomes = self.journal.outcomes(self._problem)
            usable = [text for text, one in outcomes.items() if text in schedules and not one.against]
            right = [schedules[text] for text in usable]
            right.sort(key=lambda schedule: -outcomes[repr(schedule)].speed)
            names = {UNTUNED: untuned} | {
                f"finalist {at}": one for at, one in enumerate(right[:FINALISTS], 1) if one != untuned
            }
            result = self._finalists(names, arrays)
            winner = self._fastest(result)
            if why := self._against(names[winner]):
                self._strike(names[winner], why, untuned)
                continue
            question, us = self.gemm.question(), result.taken[winner].us.median
            speed = result.taken.speed(winner, UNTUNED)
            kind, extents = class_of(question), extents_of(question)
            by_rules = names[winner] == untuned
            return MeasuredSchedule(
                kind, extents, names[winner], us, speed.median, len(outcomes), by_rules
            ), speed

    def _finalists(self, names: dict[str, Schedule], arrays: GemmArrays) -> Result:
        contest = self._contest(arrays)
        for name, schedule in names.items():
            contest.enter(name, arrays.bind(schedule))
        self.progress("final", 0, 1)
        result = contest.run(scaled(self.effort, 2 * len(names)))
        arrays.check_inputs(arrays.sets)
        self.progress("final", 1, 1)
        return result

    def _fastest(self, result: Result) -> str:
        """The fastest of those that are surely faster than the untuned choice; it itself if none is."""
        names = [timing.name for timing in result.taken.timings]
        speeds = {name: result.taken.speed(name, UNTUNED) for name in names}
        surely = [name for name in names if speeds[name].low > 1]
        return max(surely, key=lambda name: speeds[name].median, default=UNTUNED)

    def _against(self, schedule: Schedule) -> str:
        """Why a winner is wrong on other numbers, every element of them; empty if it is not."""
        self.progress("verifying", 0, 1)
        arrays = GemmArrays(self.gemm, self.seed + 1, sets=1)
        contest = self._contest(arrays)
        contest.enter(UNTUNED, arrays.bind(schedule), arrays.check(schedule, whole=True))
        self.progress("verifying", 1, 1)
        return contest.wrong.get(UNTUNED, "")

    def _strike(self, schedule: Schedule, why: str, untuned: Schedule) -> None:
        """Keep that a winner is wrong.

        Raises:
            WrongResultError: it is the untuned choice.
        """
        if schedule == untuned:
            raise WrongResultError(f"{self.gemm}: the untuned choice is wrong: {why}")
        against = f"wrong on other numbers than it was measured on: {why}"
        self.journal.add(Outcome(self._problem, repr(schedule), against=against))

    def _contest(self, arrays: GemmArrays) -> Contest[Arrays]:
        return Contest(self.gemm.subject(arrays.made.about), arrays.sets, self.gemm.bytes)
