"""The tuner: which of a kernel's candidates is fastest, measured so that a kill loses nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from tilewright.errors import LaunchError, WrongResultError
from tilewright.schedule.question import Candidate, LoopQuestion, Question
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.tables import MeasuredSchedule, class_of, extents_of
from tilewright.tune.contest import Contest
from tilewright.tune.gemm import build
from tilewright.tune.journal import Journal, Outcome
from tilewright.tune.measure import Effort, Interval
from tilewright.tune.profiling import Progress, scaled
from tilewright.tune.subject import Arrays, SubjectArrays, TuningSubject

UNTUNED = "untuned"
FINALISTS = 4
"""Number of the fastest candidates that are measured once more, all in turns."""


@dataclass(frozen=True)
class Tuned:
    """The outcome of tuning a kernel.

    Args:
        entry: the entry for the table.
        speed: the speed of the winner relative to the untuned choice, in the final.
        measured: number of candidates that were measured now.
        known: number of candidates whose outcome the journal had already.
        refused: the reasons against all others, by schedule.
    """

    entry: MeasuredSchedule
    speed: Interval
    measured: int
    known: int
    refused: dict[str, str]


@dataclass
class Tuner:
    """Measures the candidates of a kernel, each in turns with the untuned choice, then the best together.

    Args:
        subject: the kernel.
        journal: receives every outcome at once; a candidate with an outcome there is not measured again.
        effort: the effort for each candidate.
        processes: number of processes that compile.
        most: number of legal candidates to measure, in the order of the rules; None: all.
        seed: seed of the numbers; the winner is verified on those of the next seed.
        progress: receives the step, and how much of it is done.
    """

    subject: TuningSubject
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
        found = self.subject.candidates()
        legal = [candidate for candidate in found if not candidate.against][: self.most]
        refused = {repr(one.schedule): "; ".join(one.against) for one in found if one.against}
        if not legal:
            why = next(iter(refused.values()), "it is explicit, so that no schedule makes it")
            raise LaunchError(f"{self.subject} has no candidates: {why}", "tw.steps")
        known = self.journal.outcomes(self._problem)
        left = [one for one in legal if repr(one.schedule) not in known]
        already = len(legal) - len(left)
        # A candidate that cannot be compiled has an outcome too.
        wanted = list(dict.fromkeys(one.schedule for one in (legal[0], *left)))
        failed = build(
            self.subject,
            wanted,
            self.processes,
            done=lambda done: self.progress("compiling", done, len(wanted)),
        )
        for schedule, why in failed.items():
            self.journal.add(Outcome(self._problem, repr(schedule), against=f"not compiled: {why}"))
        left = [one for one in left if one.schedule not in failed]
        arrays, untuned = SubjectArrays(self.subject, self.seed), legal[0].schedule
        contest = self._contest(arrays)
        if not contest.enter(UNTUNED, arrays.bind(untuned), arrays.check(untuned)):
            raise WrongResultError(f"{self.subject}: the untuned choice is wrong: {contest.wrong[UNTUNED]}")
        for count, candidate in enumerate(left):
            self.progress("measuring", count, len(left))
            self.journal.add(self._outcome(candidate.schedule, untuned, arrays))
        self.progress("measuring", len(left), len(left))
        outcomes = self.journal.outcomes(self._problem)
        refused |= {text: one.against for text, one in outcomes.items() if one.against}
        entry, speed = self._final(legal, arrays)
        self.journal.win(entry)
        return Tuned(entry, speed, len(left), already, refused)

    @cached_property
    def _problem(self) -> str:
        return f"{class_of(self._question)} {extents_of(self._question)}"

    @cached_property
    def _question(self) -> Question | LoopQuestion:
        found = self.subject.question()
        assert found is not None, "a dataflow kernel"
        return found

    def _outcome(self, schedule: Schedule, untuned: Schedule, arrays: SubjectArrays) -> Outcome:
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

    def _final(self, legal: list[Candidate], arrays: SubjectArrays) -> tuple[MeasuredSchedule, Interval]:
        """Return the winner among the fastest, verified on other numbers, and its speed.

        Raises:
            WrongResultError: the winner is the untuned choice, and is wrong on other numbers.
        """
        untuned, schedules = legal[0].schedule, {repr(one.schedule): one.schedule for one in legal}
        while True:
            outcomes = self.journal.outcomes(self._problem)
            usable = [text for text, one in outcomes.items() if text in schedules and not one.against]
            usable.sort(key=lambda text: -outcomes[text].speed)
            right = [schedules[text] for text in usable[:FINALISTS]]
            names = {UNTUNED: untuned} | {
                f"finalist {at}": one for at, one in enumerate(right, 1) if one != untuned
            }
            contest = self._contest(arrays)
            for name, schedule in names.items():
                contest.enter(name, arrays.bind(schedule))
            self.progress("final", 0, 1)
            taken = contest.run(scaled(self.effort, 2 * len(names))).taken
            arrays.check_inputs(arrays.sets)
            self.progress("final", 1, 1)
            # The winner's interval lies above the untuned choice, or the untuned choice wins.
            speeds = {timing.name: taken.speed(timing.name, UNTUNED) for timing in taken.timings}
            faster = {name: speed.median for name, speed in speeds.items() if speed.low > 1}
            winner = max(faster, key=faster.__getitem__, default=UNTUNED)
            schedule = names[winner]
            self.progress("verifying", 0, 1)
            others = SubjectArrays(self.subject, self.seed + 1, sets=1)
            contest = self._contest(others)
            is_right = contest.enter(winner, others.bind(schedule), others.check(schedule, whole=True))
            self.progress("verifying", 1, 1)
            if is_right:
                question, us, speed = self._question, taken[winner].us.median, speeds[winner]
                kind, extents = class_of(question), extents_of(question)
                count, by_rules = len(outcomes), schedule == untuned
                entry = MeasuredSchedule(kind, extents, schedule, us, speed.median, count, by_rules)
                return entry, speed
            why = contest.wrong[winner]
            if schedule == untuned:
                raise WrongResultError(f"{self.subject}: the untuned choice is wrong: {why}")
            against = f"wrong on other numbers than it was measured on: {why}"
            self.journal.add(Outcome(self._problem, repr(schedule), against=against))

    def _contest(self, arrays: SubjectArrays) -> Contest[Arrays]:
        return Contest(self.subject.contested(arrays.about), arrays.sets, self.subject.bytes)
