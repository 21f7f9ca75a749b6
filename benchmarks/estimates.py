"""Compare the estimate of time with measured times, and its choices with the fastest measured schedules.

    python benchmarks/estimates.py [--fit] [--draws 2] [--above 1.15]

The measured products are those of `products/h200.json` and `h100.json`, each with the schedule
that was chosen for it, and the candidates of `choices.py`.  Prints the median and the 90th percentile of
|log(estimate / time)| for each kind of problem, of the estimate and of the models that rank the proposals.
Then it prints shares: the fastest measured time of a problem over that of the choice.

With ``--fit`` constants are fitted to one half of the problems and judged on the other half, and the reverse.
The halves are drawn at random ``--draws`` times, and the means of all draws are printed.  Last come the
constants that are fitted to all problems of the H200, and their errors on the H100, of which nothing is
fitted: its record differs in the rate of the memory.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from choices import KEPT, Row, rows_of
from dense_problems import Problem, question
from reporting import ROOT, table

import tilewright as tw
from tilewright.arch import Board, TimeConstants
from tilewright.schedule.estimate import estimate_of
from tilewright.schedule.load import Load
from tilewright.schedule.question import WIDTHS
from tilewright.schedule.tables import read_schedule
from tilewright.schedule.time_parts import WorkCounts, doubt, parts_of
from tilewright.targets.nvidia import SM_90A

Floats = npt.NDArray[np.float64]

PRODUCTS = ROOT / "benchmarks" / "products"
H100 = Board("H100 SXM", 132, 1980, 3350, 50)
"""The other card: its data sheet."""

HELD = ("arrival_us", "synchronous", "source")
"""Constants that are set by hand: too few measured schedules depend on them."""

FITTED = tuple(one.name for one in fields(TimeConstants) if one.name not in HELD)
FEW, DEEP = 64, 16
"""Most rows or columns of a product of few rows; K of a deep product, relative to its rows and columns."""

NEAR, FAR, SCALE = 1.3, 0.4, 0.1
"""Schedules up to this multiple of the fastest time have full weight, others this weight; the error above
which the loss grows linearly."""


@dataclass(frozen=True)
class Measured:
    """A measured product under a schedule.

    Args:
        kind: kind of the problem.
        of: number of the problem whose candidates were measured; -1: only the choice was.
        work: what the schedule does.
        us: its time.
        weight: weight in the fit.
    """

    kind: str
    of: int
    work: WorkCounts
    us: float
    weight: float = 1.0

    def estimate(self, constants: TimeConstants) -> float:
        """The estimated time."""
        return parts_of(self.work, constants).total

    def ranked(self, constants: TimeConstants) -> float:
        """The estimated time by which schedules are compared."""
        return self.estimate(constants) * doubt(self.work.load)


def kind_of(problem: Problem) -> str:
    """Name the kind of a problem."""
    m, n, k = problem.shape
    size = tw.dtype(problem.dtype).bytes
    rows = (k if problem.layout[0] == "n" else m, k if problem.layout[1] == "t" else n)
    if problem.items:
        return "batches"
    if any(row * size % WIDTHS[0] for row in rows):
        return "rows of odd length"
    if k >= DEEP * max(m, n):
        return "deep K"
    return "few rows or columns" if min(m, n) <= FEW else "other products"


def products(path: Path, board: Board | None = None) -> Iterator[Measured]:
    """Yield the measured products of a file."""
    found = json.loads(path.read_text(encoding="utf-8"))
    for dtype, layout, items, m, n, k, us, at in found["rows"]:
        kernel = "tf32_product" if dtype == "tf32" else "batched" if items else "product"
        problem = Problem("", (m, n, k), "f32" if dtype == "tf32" else dtype, layout, kernel, items=items)
        load = Load(question(problem), read_schedule(found["schedules"][at]))
        yield Measured(kind_of(problem), -1, WorkCounts(load, board), us)


def candidates(rows: Sequence[Row]) -> Iterator[Measured]:
    """Yield the measured candidates of problems without groups."""
    for at, row in enumerate(rows):
        asked = row.question()
        least = row.times[row.fastest][0]
        for text, (us, *_) in row.times.items():
            weight = 2 * (1 if us < NEAR * least else FAR) * (8 / len(row.times)) ** 0.5
            yield Measured("candidates", at, WorkCounts(Load(asked, read_schedule(text))), us, weight)


def errors(rows: Sequence[Measured], constants: TimeConstants) -> Floats:
    """Return log(estimate / time) of each row."""
    return np.log([one.estimate(constants) / one.us for one in rows])


def changed(start: TimeConstants, values: Sequence[float]) -> TimeConstants:
    """Return constants with other values of those that are fitted."""
    made: dict[str, Any] = dict(zip(FITTED, map(float, values), strict=True))
    return replace(start, **made)


def fitted(rows: Sequence[Measured], start: TimeConstants, turns: int = 6) -> TimeConstants:
    """Return the constants with the least robust loss, by damped Gauss-Newton steps in their logarithms."""
    weights = np.array([one.weight for one in rows])
    at = np.log([getattr(start, name) for name in FITTED])

    def wrong(logs: Floats) -> Floats:
        return weights * errors(rows, changed(start, [*np.exp(logs)]))

    def loss(found: Floats) -> float:
        return float(np.sum(np.sqrt(1 + (found / SCALE) ** 2)))

    now, damping = wrong(at), 1e-2
    for _ in range(turns):
        slopes = np.stack([(wrong(at + step) - now) / 1e-3 for step in 1e-3 * np.eye(len(at))], axis=1)
        robust = 1 / np.sqrt(1 + (now / SCALE) ** 2)
        square = slopes.T @ (robust[:, None] * slopes)
        while damping < 1e6:
            move = np.linalg.solve(
                square + damping * np.diag(np.diag(square) + 1e-9), slopes.T @ (robust * now)
            )
            tried = at - np.clip(move, -1, 1)
            if loss(found := wrong(tried)) < loss(now):
                at, now, damping = tried, found, damping / 4
                break
            damping *= 8
    return changed(start, [*np.exp(at)])


def halves(rows: Sequence[Measured], seed: int) -> npt.NDArray[np.bool_]:
    """Draw half of the problems; the candidates of a problem stay together."""
    draw = np.random.default_rng(seed)
    some = {*draw.permutation(sorted({one.of for one in rows} - {-1}))[::2].tolist()}
    return np.array([one.of in some if one.of >= 0 else bool(draw.random() < 0.5) for one in rows])


def share(
    rows: Sequence[Measured], estimates: Sequence[float], choice: Measured | None, above: float
) -> float:
    """Return the fastest time over that of the choice, among the candidates of one problem.

    Args:
        rows: the candidates.
        estimates: their estimates.
        choice: the rules' choice, which stays unless another estimate is less by the factor ``above``.
        above: that factor.
    """
    best = int(np.argmin(estimates))
    picked = rows[best]
    if choice is not None and estimates[best] * above >= estimates[rows.index(choice)]:
        picked = choice
    return min(one.us for one in rows) / picked.us


def shares(
    rows: Sequence[Measured], ranked: Floats, chosen: dict[int, str], above: float
) -> dict[str, list[float]]:
    """Return the shares of three choices: by the rules, by the estimate, and by both."""
    found: dict[str, list[float]] = {"rules": [], "estimate": [], "rules, if not slower": []}
    for at, text in chosen.items():
        where = [place for place, one in enumerate(rows) if one.of == at]
        own = [rows[place] for place in where]
        choice = next((one for one in own if repr(one.work.load.schedule) == text), None)
        if choice is None or len(own) < 2:
            continue
        estimates = [float(ranked[place]) for place in where]
        found["rules"].append(min(one.us for one in own) / choice.us)
        found["estimate"].append(share(own, estimates, None, above))
        found["rules, if not slower"].append(share(own, estimates, choice, above))
    return found


def spread(found: Floats) -> list[str]:
    """Return the median and the 90th percentile of absolute values."""
    size = np.abs(found)
    return [f"{np.median(size):.3f}", f"{np.percentile(size, 90):.3f}"] if len(size) else ["", ""]


def lines(rows: Sequence[Measured], found: Floats) -> Iterator[list[str]]:
    """Yield a line for each kind of problem, and for all."""
    models = {
        place: model for place, one in enumerate(rows) if (model := estimate_of(one.work.load)) is not None
    }
    kinds: list[str] = sorted({one.kind for one in rows})
    for kind in (*kinds, "all products"):
        at = [
            place
            for place, one in enumerate(rows)
            if one.kind == kind or (kind == "all products" and one.kind != "candidates")
        ]
        old = [place for place in at if place in models]
        before = np.log([models[place].time_us(rows[place].work.load) / rows[place].us for place in old])
        yield [kind, str(len(at)), *spread(found[at]), str(len(old)), *spread(before)]


HEAD = ("kind", "rows", "median", "90th", "rows of models", "median", "90th")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--fit", action="store_true", help="fit constants to random halves, and to all")
    parser.add_argument("--draws", type=int, default=2, help="number of random halves")
    parser.add_argument("--above", type=float, default=1.15, help="gain for which the rules' choice is left")
    parser.add_argument("--quick", type=int, default=1, help="take every n-th product")
    asked = parser.parse_args()
    found, _ = rows_of([KEPT])
    kept = [row for row in found if not row.problem.sizes]
    chosen = {at: row.choice() for at, row in enumerate(kept)}
    rows = [*products(PRODUCTS / "h200.json")][:: asked.quick]
    rows += candidates(kept)
    others = [*products(PRODUCTS / "h100.json", H100)][:: asked.quick]
    constants = SM_90A.times

    def judge(made: TimeConstants) -> Floats:
        return np.array([row.ranked(made) for row in rows])

    wrong, ranked = [errors(rows, constants)], [judge(constants)]
    if asked.fit:
        wrong, ranked = [], []
        for seed in range(asked.draws):
            half = halves(rows, seed)
            off, order = np.zeros(len(rows)), np.zeros(len(rows))
            for one in (half, ~half):
                made = fitted([row for row, mine in zip(rows, one, strict=True) if mine], constants)
                off[~one], order[~one] = errors(rows, made)[~one], judge(made)[~one]
            wrong.append(off)
            ranked.append(order)
    print("H200, held out" if asked.fit else "H200, with the constants of the library")
    print(table(HEAD, lines(rows, np.mean(np.abs(wrong), axis=0))))
    for name in ("rules", "estimate", "rules, if not slower"):
        each = np.array([shares(rows, order, chosen, asked.above)[name] for order in ranked])
        means = np.mean([[np.mean(one), np.percentile(one, 10), np.min(one)] for one in each], axis=0)
        said = "{:.3f} in the mean, {:.3f} at the tenth percentile, least {:.3f}".format(*means)
        print(f"share of the fastest, choice of the {name}: {said}, of {each.shape[1]} problems")
    if asked.fit:
        constants = fitted(rows, constants)
        print(*(f"{name}={getattr(constants, name):.3g}" for name in FITTED), sep=", ")
    print("H100, constants of the H200")
    print(table(HEAD, lines(others, errors(others, constants))))


if __name__ == "__main__":
    main()
