"""Our library and NumPy in a process each, which time one problem of the survey in turns.

    python benchmarks/survey_hosts.py ours|theirs [busy]

The program answers requests, each a line of JSON.  A process is quiet before it answers: idle threads of a
library do not slow the other one.  On a machine that is busy with other work, processor time is counted, for
one thread in each process.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
from against import Worker
from reporting import BusyClock
from survey_calls import AGREE, NUMPY, NUMPY_F32, OURS, NumpyMemory, calls_of, check, launched
from survey_problems import SurveyProblem

from tilewright.tune.clocks import Clock, clock_for

THEIRS = (NUMPY, NUMPY_F32)
SECONDS, LEAST, MOST = 0.6, 5, 9
"""Seconds of timing, and the number of rounds."""


ONE_THREAD = {"TILEWRIGHT_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class Hosts:
    """Both processes, from the asking side.

    Args:
        busy: whether to count processor time, for one thread.
    """

    def __init__(self, *, busy: bool) -> None:
        env, words = {**os.environ, **(ONE_THREAD if busy else {})}, ("busy",) if busy else ()
        self._workers = {side: Worker(__file__, side, *words, env=env) for side in ("ours", "theirs")}

    def measured(self, one: SurveyProblem, factor: float) -> tuple[dict[str, Any], dict[str, list[float]]]:
        """Check a problem in both processes, and time all calls in turns.

        Args:
            one: the problem.
            factor: factor for the time.

        Returns:
            The facts about our call, and the samples of each call in microseconds.

        Raises:
            RuntimeError: a process refused the problem, or a result is wrong.
        """
        made = {side: worker.ask({"make": one.record()}) for side, worker in self._workers.items()}
        for side, answer in made.items():
            if "failed" in answer:
                raise RuntimeError(f"{side}: {answer['failed']}")
        ours, theirs = (np.array(made[side].pop("sample")) for side in ("ours", "theirs"))
        off, size = np.linalg.norm(theirs - ours), np.linalg.norm(ours)
        if not off <= AGREE * size + 1e-30:
            raise RuntimeError(f"wrong: our result and the peer's differ by {off / size:.3g} in norm")
        calls = [(side, name) for side in made for name in made[side]["calls"]]
        each = sum(sum(made[side]["seconds"]) for side in made)
        rounds = min(max(int(factor * SECONDS / each), LEAST), MOST)
        samples: dict[str, list[float]] = {name: [] for _, name in calls}
        shuffle = random.Random(0).shuffle
        for _ in range(rounds):
            shuffle(calls)
            for side, name in calls:
                samples[name].append(self._workers[side].ask({"sample": name})["us"])
        known = ("error_of_bound", "schedule", "strides", "how")
        return {name: made["ours"][name] for name in known}, samples


class Side:
    """One library, from the answering side.

    Args:
        side: ``"ours"`` or ``"theirs"``.
        clock: the clock.
    """

    def __init__(self, side: str, clock: Clock) -> None:
        self._side, self._clock, self._memory = side, clock, NumpyMemory()
        self._calls: dict[str, tuple[Callable[[], object], int]] = {}

    def make(self, one: SurveyProblem) -> dict[str, Any]:
        """Make the arrays, call each of our calls once, and take one uncounted sample of it."""
        calls = calls_of(self._memory, one)
        answer: dict[str, Any] = {}
        is_theirs = self._side == "theirs"
        works = {name: call for name, call in calls.peers.items() if (name in THEIRS) == is_theirs}
        if is_theirs:
            (made,) = (np.asarray(call()) for call in works.values())
        else:
            plans = launched(self._memory, calls)
            error = check(self._memory, calls, plans)
            works, made = {OURS: calls.ours, **works}, calls.out
            strides = {name: ",".join(map(str, steps)) for name, steps in calls.strides.items()}
            answer |= {"error_of_bound": error, "schedule": repr(plans[-1].schedule), "strides": strides}
        self._calls = {name: (call, self._clock.calls(call)) for name, call in works.items()}
        seconds = [self._clock.sample(*one) * one[1] for one in self._calls.values()]
        sample = np.asarray(calls.sampled(made)).astype(np.complex128).ravel()
        numbers = [*sample.real.tolist(), *sample.imag.tolist()]
        answer |= {"calls": [*works], "seconds": seconds, "sample": numbers}
        return answer | {"how": self._clock.how}

    def sample(self, name: str) -> dict[str, float]:
        """Return the time of a call, in microseconds."""
        return {"us": 1e6 * self._clock.sample(*self._calls[name])}


def main() -> None:
    # Output of libraries must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with nullcontext(BusyClock()) if "busy" in sys.argv else clock_for("cpu") as clock:
        side = Side(sys.argv[1], clock)
        for line in sys.stdin:
            asked = json.loads(line)
            try:
                if "make" in asked:
                    answer = side.make(SurveyProblem.read(asked["make"]))
                else:
                    answer = side.sample(asked["sample"])
            except Exception as error:  # noqa: BLE001 whatever fails is an answer
                answer = {"failed": f"{type(error).__name__}: {error}"}
            print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
