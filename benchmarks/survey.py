"""The survey: problems drawn by a seed, each timed in turns with the best call of a peer.

    python benchmarks/survey.py --commit HASH --cache FOLDER --json results/h200_survey.json [--seconds 540]
    python benchmarks/survey.py --phase compile|time …     [--parts "aligned; odd, small"] [--per-part 20]
    python benchmarks/survey.py --target cpu --json results/cpu_survey.json
    python benchmarks/survey.py --summary results/h200_survey.json [--before FILE] [--plot FILE]

It is the measure of every change of speed.  `survey_problems.py` states the distributions.  All kernels are
compiled first, in parallel processes that share the cache; then one process checks each result and times our
call and the peer's in turns with a cold second-level cache.  On processors each library has a process of its
own, because idle threads of a BLAS keep polling after a product.  A wrong result is printed, and the exit
status is 1.

**Seeds.**  The default seed is the first eight hexadecimal digits of the measured commit, which nobody could
know when the commit was written: judge on it.  Fit and develop on other seeds, which begin with ``f17``, as
in ``--seed f1700001``; a row that served to fit or to tune judges nothing.

With ``--candidates N`` up to N proposals are timed in turns with the choice for `REGRETTED` problems of each
part, and all their times are kept: they show the regret of the choice.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import survey_table
from isolated import DeviceLostError, Progress, Record, parser, run
from reporting import table
from survey_calls import (
    OURS,
    OURS_F32,
    Calls,
    NumpyMemory,
    TorchMemory,
    agreeing,
    calls_of,
    check,
    launched,
    recorded,
)
from survey_hosts import Hosts
from survey_problems import PARTS, SurveyProblem, survey

import tilewright as tw
from tilewright.arch import Arch
from tilewright.errors import TilewrightError, WrongResultError
from tilewright.ops.launching import LaunchPlan
from tilewright.schedule.choice import candidates
from tilewright.schedule.estimate import estimate_of
from tilewright.schedule.load import Load
from tilewright.schedule.question import Question
from tilewright.schedule.schedule import Schedule
from tilewright.tune.clocks import Clock, clock_for
from tilewright.tune.contest import rounded
from tilewright.tune.measure import Effort, Measurement, Timing, measure

HANGS_SECONDS = 90
"""Seconds after which a step of a problem is given up."""

CALL_SECONDS, LEAST, MOST = 0.03, 5, 21
"""Seconds of timing for each call, and the number of its samples."""

COMPILING = 0.6
"""Share of the time that compilation may take; the rest is compiled when it is timed."""

SCHEDULED = ("matmul", "mixed", "scaled")
"""Kinds of calls that take a schedule."""

REGRETTED = 4
"""Problems of a part whose candidates are timed."""

SEED_DIGITS = 8


# ---------------------------------------------------------------- what is known without a measurement


def question_of(plan: LaunchPlan) -> Question | None:
    """Return the question that the product of a plan asked; None for other kernels than products."""
    if not plan.launches:
        return None
    one = plan.product
    found = one.kernel.question(*one.arrays, *one.numbers, target=plan.target)
    return found if isinstance(found, Question) else None


def predicted_us(question: Question, schedule: Schedule) -> float | None:
    """Return the estimated time of a schedule; None without a model or without the machine's rates."""
    load = Load(question, schedule)
    model = estimate_of(load)
    return (model.time_us(load) or None) if model is not None else None


def limit_us(one: SurveyProblem, arch: Arch, processors: int) -> tuple[float, str] | None:
    """Return the time of all bytes or of all operations at the machine's rates, and which is longer."""
    rates = arch.rates
    if rates is None:
        return None
    board = rates.boards[0]
    kind = "tf32" if one.precision == "tf32" else "f32" if one.dtype == "c64" else one.dtype
    each = rates.tensor_flops.get(kind) or rates.fma_flops.get(kind) or rates.fma_flops["f32"]
    arithmetic = one.flops / (each * processors * board.clock_mhz)
    memory = one.bytes / (board.copied_gbytes_per_s or board.memory_gbytes_per_s) / 1e3
    return (memory, "bytes") if memory > arithmetic else (arithmetic, "operations")


def proposals(question: Question, most: int) -> list[Schedule]:
    """Return the choice, the next proposals in the order of the rules, and others evenly from the rest."""
    legal = [one.schedule for one in candidates(question) if not one.against]
    first, rest = legal[: -(-most // 2)], legal[-(-most // 2) :]
    step = max(-(-len(rest) // max(most - len(first), 1)), 1)
    return [*first, *rest[::step]][:most]


def described(plans: Sequence[LaunchPlan]) -> dict[str, Any]:
    """Return the schedule of a call, its number of launches with the reason, and its predicted time.

    The estimate is that of the product: a call with prepasses has none.
    """
    if not plans:
        return {}
    plan = plans[-1]
    question, schedule = question_of(plan), plan.schedule
    found: dict[str, Any] = {"schedule": repr(schedule) if schedule is not None else None}
    found["launches"] = sum(len(one.launches) for one in plans)
    if len(plan.launches) > 1:
        found["reason"] = plan.reason
    if question is not None and schedule is not None and found["launches"] == 1:
        found["predicted_us"] = predicted_us(question, schedule)
    return found


# ---------------------------------------------------------------- compiling


@cache
def _compiling(device: str) -> TorchMemory | NumpyMemory:
    return TorchMemory(device, fill=False)


def build(one: SurveyProblem, device: str, most: int) -> dict[str, Any]:
    """Compile the kernels of our call, and of proposals, into the cache; nothing is launched."""
    begin = time.perf_counter()
    found: dict[str, Any] = {"problem": str(one), "part": one.part}
    memory = _compiling(device)
    try:
        calls = calls_of(memory, one)
        with recorded(launch=False) as plans:
            calls.ours()
        found |= described(plans)
        question = question_of(plans[-1]) if most and plans else None
        if question is not None and one.op in SCHEDULED:
            schedules = dict.fromkeys(proposals(question, most))
            for schedule in [*schedules]:
                try:
                    with recorded(launch=False):
                        calls.ours(schedule=schedule)
                except TilewrightError as error:  # it is legal, but for the compiler
                    found.setdefault("refused", {})[repr(schedule)] = str(error).strip()[:200]
                    del schedules[schedule]
            found["candidates"] = [repr(schedule) for schedule in schedules]
    except (TilewrightError, RuntimeError) as error:
        found["failed"] = str(error).strip()[:300]
    return found | {"seconds": round(time.perf_counter() - begin, 2)}


def build_all(
    problems: Sequence[SurveyProblem], asked: argparse.Namespace, until: float
) -> list[dict[str, Any]]:
    """Compile in parallel until the time is up."""
    counts, made, work = Counter[str](), list[dict[str, Any]](), []
    for one in problems:
        counts[one.part] += 1
        work.append((one, asked.device, asked.candidates if counts[one.part] <= REGRETTED else 0))
    # Spawned: a forked child of a process that uses a GPU cannot compile.
    pool = ProcessPoolExecutor(min(asked.processes, len(work)), get_context("spawn"))
    try:
        running = {pool.submit(build, *given): given[0] for given in work}
        for future in as_completed(running, timeout=max(until - time.time(), 1)):
            try:
                made.append(future.result())
            except BrokenProcessPool:
                made.append({"problem": str(running[future]), "failed": "the process that compiled it ended"})
            if "failed" in made[-1]:
                print(f"NOT COMPILED {made[-1]['problem']}: {made[-1]['failed']}", flush=True)
            if len(made) % 100 == 0:
                print(f"{len(made)} of {len(work)} problems compiled", flush=True)
    except TimeoutError:
        print(f"time is up: {len(made)} of {len(work)} problems are compiled", flush=True)
    pool.shutdown(wait=True, cancel_futures=True)
    return made


# ---------------------------------------------------------------- timing on a GPU


@cache
def _timing(device: str) -> tuple[TorchMemory, Clock]:
    """Return the memory and the clock of all problems."""
    memory = TorchMemory(device)
    memory.torch.zeros(1, device=device)  # PyTorch's device is the clock's
    return memory, _OPEN.enter_context(clock_for(memory.target))


_OPEN = ExitStack()


@dataclass(frozen=True)
class ProblemTask:
    """A task of the survey, which is listed by its problem and in the group of its part.

    Args:
        problem: the problem.
    """

    problem: SurveyProblem

    @property
    def group(self) -> str:
        return self.problem.part

    def __str__(self) -> str:
        return str(self.problem)


@dataclass(frozen=True)
class SurveyTask(ProblemTask):
    """Checks and times a problem on a GPU.

    Args:
        device: PyTorch's name of the device.
    """

    device: str

    def measure(self, seconds: float, progress: Progress) -> dict[str, Any]:
        """Compare a sample with f64, and time our call and the peer's in turns; see `isolated.Task`."""
        memory, clock = _timing(self.device)
        try:
            return self._measured(memory, clock, seconds, progress)
        except Exception:
            try:
                memory.wait()
            except RuntimeError as lost:
                raise DeviceLostError(str(lost)) from None
            raise

    def _measured(
        self, memory: TorchMemory, clock: Clock, seconds: float, progress: Progress
    ) -> dict[str, Any]:
        progress.begin("our call and its check", HANGS_SECONDS)
        calls = calls_of(memory, self.problem)
        plans = launched(memory, calls)
        row = {"call": self.problem.record(), **self._known(plans, progress)}
        row["strides"] = {name: ",".join(map(str, steps)) for name, steps in calls.strides.items()}
        try:
            row["error_of_bound"] = check(memory, calls, plans)
        except WrongResultError as error:
            print(f"WRONG {self}: {error}; {row.get('schedule')}", flush=True)
            return row | {"failed": str(error)}
        progress.begin("the peer", HANGS_SECONDS)
        row["without"] = agreeing(memory, calls)
        for name, why in row["without"].items():
            if why.startswith("it differs"):
                print(f"DIFFERS {self}, {name}: {why}", flush=True)
        timed: dict[str, Any] = {OURS: calls.ours, **calls.peers}
        wanted = progress.record.found.get("candidates", {}).get(str(self), ())
        others, wrong = {}, {}
        for number, text in enumerate(wanted):
            progress.begin(f"candidate {text}", HANGS_SECONDS)
            try:
                others[f"candidate {number}"] = text, candidate(memory, calls, text)
            except WrongResultError as error:
                wrong[text] = str(error)
                print(f"WRONG {self} {text}: {error}", flush=True)
        timed |= {name: call for name, (_, call) in others.items()}
        progress.begin("timing", HANGS_SECONDS)
        effort, late = Effort(seconds * CALL_SECONDS * len(timed), 0.0, LEAST, MOST), late_of(clock)
        taken = measure(timed, memory.target, effort=effort, clock=clock)
        if late_of(clock) > late:
            row["late"] = late_of(clock) - late
        row |= outcome({one.name: one.samples_us for one in taken.timings}, [*calls.peers])
        if wanted:
            row["candidates"] = {text: round(taken[name].us.median, 3) for name, (text, _) in others.items()}
        if wrong:
            row["wrong"] = wrong
        return row

    def _known(self, plans: Sequence[LaunchPlan], progress: Progress) -> dict[str, Any]:
        """Return what is known without a measurement."""
        known = progress.record.found.get("known", {}).get(str(self))
        row = dict(known) if known is not None else described(plans)
        if plans:
            limit = limit_us(self.problem, *plans[-1].call.machine)
            row["limit_us"], row["limit"] = limit if limit is not None else (None, "")
        return row


def late_of(clock: Clock) -> int:
    """Return the number of samples in which the device waited for the host."""
    found = re.search(r"waited for the host in (\d+) of", clock.how)
    return int(found[1]) if found else 0


def candidate(memory: TorchMemory, calls: Calls, text: str) -> Any:
    """Return a call of ours under a schedule, after a check of its result.

    Raises:
        WrongResultError: it is wrong.
    """
    schedule = eval(text, {"tw": tw, "__builtins__": {}})
    ours = calls._replace(ours=partial(calls.ours, schedule=schedule))
    plans = launched(memory, ours)
    check(memory, ours, plans)
    plan = plans[-1]
    record = plan.launch().record
    assert record is not None, "the target has replays"
    arrays = [plan.call.arrays.get(name) for name in plan.call.names]
    at = [plan.call.infos[name].pointer if name in plan.call.infos else None for name in plan.call.names]
    return partial(record.run, arrays, at, plan.product.numbers, None)


def outcome(samples: dict[str, Sequence[float]], peers: Sequence[str]) -> dict[str, Any]:
    """Return the times of our call and of the peer's best, and the speed with its interval.

    On processors f16 and bf16 are compared with our own f32.
    """
    taken = Measurement("", tuple(Timing(name, tuple(found)) for name, found in samples.items()))
    us = {name: taken[name].us.median for name in samples}
    row: dict[str, Any] = {"us": round(us[OURS], 3), "peers": {name: round(us[name], 3) for name in peers}}
    row["rounds"] = len(samples[OURS])
    if peers:
        best = OURS_F32 if OURS_F32 in peers else min(peers, key=us.__getitem__)
        row |= {"peer": best, "peer_us": round(us[best], 3), "speed": rounded(taken.speed(OURS, best))}
    return row


# ---------------------------------------------------------------- timing on processors


@cache
def _hosts(busy: bool) -> Hosts:
    return Hosts(busy=busy)


@dataclass(frozen=True)
class HostTask(ProblemTask):
    """Checks and times a problem on processors, each library in a process of its own.

    Args:
        busy: whether to count processor time, for one thread.
    """

    busy: bool

    def measure(self, seconds: float, progress: Progress) -> dict[str, Any]:
        """Compare a sample with f64, and time both libraries in turns; see `isolated.Task`."""
        progress.begin("processes apart", 2 * HANGS_SECONDS)
        made, samples = _hosts(self.busy).measured(self.problem, seconds)
        peers = [name for name in samples if name != OURS]
        return {"call": self.problem.record()} | made | outcome(samples, peers)


# ---------------------------------------------------------------- the program


def asked_for() -> argparse.Namespace:
    """Return the arguments."""
    made = parser(__doc__)
    made.set_defaults(seconds=540.0)
    made.add_argument("--target", choices=("cuda", "cpu"), default="cuda")
    made.add_argument("--seed", help="hexadecimal digits; default: the first 8 of the commit")
    made.add_argument(
        "--parts", help=f"names with semicolons between them; default: all of {'; '.join(PARTS)}"
    )
    made.add_argument("--per-part", type=int, help="most problems of a part")
    made.add_argument("--most-flops", type=float, help="leave out problems with more operations")
    made.add_argument("--phase", choices=("both", "compile", "time"), default="both")
    made.add_argument("--cache", type=Path, help="folder of compiled kernels; default: a new one")
    made.add_argument("--candidates", type=int, default=0, help="proposals to time for some problems")
    made.add_argument("--summary", type=Path, help="print the summary of a file, and measure nothing")
    made.add_argument("--before", type=Path, help="with --summary: an earlier file of the same seed")
    made.add_argument("--plot", type=Path, help="a picture of predicted and measured times: .png, .svg, .pdf")
    made.add_argument("--busy", action="store_true", help="on processors: processor time, for one thread")
    made.add_argument("--rehearse", action="store_true", help="a GPU's program with PyTorch on processors")
    asked = made.parse_args()
    asked.device = "cpu" if asked.rehearse else asked.target
    if asked.quick and asked.per_part is None:
        asked.per_part = 1
    names = [name for name, part in PARTS.items() if part.target == asked.target]
    asked.names = [name.strip() for name in asked.parts.split(";")] if asked.parts else names
    if unknown := [name for name in asked.names if name not in names]:
        made.error(f"--parts {'; '.join(unknown)}: none of {'; '.join(names)}")
    asked.seed = asked.seed or asked.commit[:SEED_DIGITS]
    if asked.summary is not None:
        return asked
    if not asked.seed or set(asked.seed.lower()) - set("0123456789abcdef"):
        made.error(f"--seed {asked.seed!r}: hexadecimal digits, or --commit HASH")
    return asked


def main() -> None:
    begun = time.time()
    asked = asked_for()
    if asked.summary is not None:
        rows = json.loads(asked.summary.read_text())["rows"]
        print(survey_table.text(rows))
        if asked.before is not None:
            found = survey_table.changes(rows, json.loads(asked.before.read_text())["rows"])
            print(f"\nChange since {asked.before.name}\n{table(survey_table.CHANGE_HEAD, found)}")
        if asked.plot is not None:
            survey_table.draw(rows, asked.plot)
        return
    problems = survey(asked.seed, asked.names, asked.per_part)
    if asked.most_flops is not None:
        problems = [one for one in problems if one.flops <= asked.most_flops]
    on_gpu = asked.target == "cuda"
    tasks: list[Any] = [
        SurveyTask(one, asked.device) if on_gpu else HostTask(one, asked.busy) for one in problems
    ]
    record = Record(asked.json or Path(tempfile.mkdtemp()) / "survey.json", "survey")
    with tempfile.TemporaryDirectory() as folder, _OPEN:
        os.environ.setdefault("TILEWRIGHT_CACHE_DIR", str(asked.cache or folder))
        if asked.until is not None:
            run(tasks, asked, begun, record, asked.device)
            return
        record.found |= {"seed": asked.seed, "target": asked.target, "drawn": asked.names}
        built = (asked.cache or record.path).with_suffix(".builds")
        if on_gpu and asked.phase != "time":
            builds = build_all(problems, asked, begun + COMPILING * asked.seconds)
            built.write_text(json.dumps(builds))
            failed = sum("failed" in one for one in builds)
            print(
                f"{len(builds)} problems compiled, {failed} failed, {time.time() - begun:.0f} s", flush=True
            )
        if asked.phase == "compile":
            sys.exit(f"{failed} problems do not compile" if failed else 0)
        builds = json.loads(built.read_text()) if built.exists() else []
        drop = ("problem", "part", "seconds", "candidates", "refused")
        record.found["known"] = {
            one["problem"]: {name: value for name, value in one.items() if name not in drop}
            for one in builds
            if "failed" not in one
        }
        record.found["candidates"] = {
            one["problem"]: one["candidates"] for one in builds if one.get("candidates")
        }
        run(tasks, asked, begun, record, asked.device)
    rows = record.found["rows"]
    for name in ("known", "candidates", "builds"):
        record.found.pop(name, None)
    record.keep()
    print(survey_table.text(rows))
    bad = [row for row in rows if "failed" in row or row.get("wrong")]
    for row in bad:
        print(f"FAILED {row['group']}: {row['problem']}: {row.get('failed') or row['wrong']}")
    sys.exit(f"{len(bad)} of {len(rows)} rows failed" if bad else 0)


if __name__ == "__main__":
    main()
