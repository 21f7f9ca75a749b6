"""Random problems of loops that carry a state, of whole rows, and of the gradients of attention.

A number always gives the same problem.  Loops run in random parts; the merge of their states follows from
their steps, or is stated by their authors.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from tests.ops.test_attention_backward import Backward
from tests.schedule import folding, whole_rows
from tests.schedule.folding import FoldCase, U, poison
from tests.schedule.test_merges import decayed, welford
from tests.schedule.test_places import KINDS as NUMBERS
from tests.schedule.test_places import centres_case, columns_case, products_case, rows_case
from tests.schedule.test_scan_states import continuing, several, summed
from tests.schedule.test_scans import uniform, with_gates
from tests.schedule.test_slices import elements_case, interleaved, interleaved_case
from tests.schedule.test_slices import products_case as sliced_products
from tests.schedule.whole_rows import of_rows, weighed

from tilewright.targets.target import CPU, CUDA, REFERENCE

from .attention_problems import KINDS
from .placing import Placed
from .sets import extents, generators

LARGEST = {REFERENCE.name: 90, CPU.name: 600, CUDA.name: 3000}
"""Elements of the loop's span, and rows of gradients."""

ROWS = {REFERENCE.name: 40, CPU.name: 100, CUDA.name: 500}
"""Rows of the results of loops."""

CHOSEN = "chosen"
"""The schedule of the rules, in place of one with random steps."""

PARTS = (1, 2, 3, 5, 8, 13, 14, 40, "auto")
"""Parts of a loop: more than 12 are merged in two rounds."""

Array = np.ndarray[Any, Any]


def backward(number: int, target: str) -> str:
    """Compute the gradients of attention twice; the second call replays the launches of the first.

    Returns:
        What is wrong; empty if nothing is.
    """
    terms, rng = generators(number, target)
    element = KINDS[terms.integers(len(KINDS))]
    depth, width = (int(terms.integers(1, 17)) * (1 if terms.integers(3) == 0 else 8) for _ in range(2))
    shared, ratio, batches = (int(n) for n in rng.integers(1, 3, 3))
    rows, keys = extents(terms, rng, LARGEST[target] // 2, 2)
    words: dict[str, Any] = {}
    if terms.integers(2):
        words |= {"causal": True, "diagonal": int(rng.integers(-rows, keys + 1))}
        words |= {"window": int(rng.integers(1, keys + 1))} if terms.integers(3) == 0 else {}
    words |= {"soft_cap": 3.0} if terms.integers(4) == 0 else {}
    words |= {"scale": float(rng.normal() * 0.3)} if terms.integers(3) == 0 else {}
    heads, biased = (batches, shared * ratio, shared), bool(terms.integers(4) == 0)
    problem = Backward(heads, (rows, keys), (depth, width), element, words, biased, seed=number)
    wrong = problem.wrong(problem.run(target))
    return f"{problem.name}: {wrong}" if wrong else ""


def computed(case: FoldCase, target: str, terms: np.random.Generator, *, fold: str = "") -> str:
    """Compute a case twice, under its chosen schedule with steps of random length.

    Args:
        case: the problem.
        target: the target.
        terms: properties that the problem's set shares.
        fold: how whole rows are computed; empty: the case is a loop, and has random parts; `CHOSEN`: the
            schedule stays as it is.

    Returns:
        The error in words; empty if results are right.
    """
    known = case.kernel.bind().schedule_for(**case.arguments(), target=target)
    assert known is not None, "a dataflow kernel"
    run, parts = int(terms.integers(1, 4)), PARTS[terms.integers(len(PARTS))]
    if not known.by_bulk and fold != CHOSEN:  # warpgroups have steps of their own
        rows, _, depth = known.tile
        known = replace(known, tile=(rows, max(known.atom.shape[1:]) * run, depth), split_k=1, blocks=0)
        if fold:
            known = replace(known, fold=fold)
        else:
            known = replace(known, split_k=parts, blocks=20 if parts == "auto" else 0)
    wrong = placed_twice(case.kernel.bind(schedule=known), case, target)
    return f"{known}: {wrong}" if wrong else ""


def placed_twice(kernel: Any, case: FoldCase, target: str) -> str:
    """Launch a kernel twice on the arrays of a case; return what is wrong, or an empty text."""
    bits = []
    for _ in range(2):  # the second launch finds counters that the first one has reset
        placed = {
            name: Placed(value, target)
            for name, value in case.arguments().items()
            if isinstance(value, np.ndarray)
        }
        held = case.arguments() | {name: one.there for name, one in placed.items()}
        ran = kernel(**held, target=target).target
        assert ran == target, ran
        bits.append({name: placed[name].fetched().copy() for name in case.results})
    same = all(bits[0][name].tobytes() == bits[1][name].tobytes() for name in case.results)
    wrong = case.wrong(bits[0]) if same else "other bits in the second launch"
    return str(wrong or "")


# ---------------------------------------------------------------- loops


def _moments(rng: np.random.Generator, M: int, N: int, kind: str) -> FoldCase:
    """Welford's formulas, whose merge the author states."""
    x = (float(rng.uniform(-50, 50)) + rng.standard_normal((M, N))).astype(kind)
    wide = x.astype(np.float64)
    off, spread = (N + 16) * U * np.abs(wide).max(axis=1), wide.var(axis=1)
    # A step's mean is off by `off`, and each merge moves the mean and the squares once more.
    return FoldCase(
        welford,
        {"X": x},
        {"mean": poison("f4", M), "variance": poison("f4", M)},
        {"mean": wide.mean(axis=1), "variance": spread},
        {"mean": 2 * off, "variance": 16 * (N + 16) * U * spread + 16 * off**2 + 8 * off * np.sqrt(spread)},
    )


def _decayed(rng: np.random.Generator, M: int, N: int, kind: str) -> FoldCase:
    """A sum whose older terms have smaller weights: the order of parts matters."""
    rate = float(np.float32(rng.uniform(0.01, 0.3)))
    x, weights = rng.standard_normal((M, N)).astype(kind), np.exp2(rate * (np.arange(N) - N + 1.0))
    # The exponents are rounded at sizes up to rate * N.
    sizes = np.abs(x.astype(np.float64)) @ (weights * (1 + rate * (N - 1.0 - np.arange(N))))
    return FoldCase(
        decayed,
        {"X": x, "rate": rate},
        {"y": poison("f4", M)},
        {"y": x.astype(np.float64) @ weights},
        {"y": (N + 100) * U * sizes + 2.0**-120},
    )


def _argmax(rng: np.random.Generator, M: int, N: int, kind: str) -> FoldCase:
    """Small integers, many of them equal: the first largest one counts."""
    x, w = (rng.integers(-3, 4, shape).astype(kind) for shape in ((M, 20), (20, N)))
    s = x.astype(np.float64) @ w.astype(np.float64)
    return FoldCase(
        folding.argmax,
        {"X": x, "W": w},
        {"best": poison("f4", M), "at": poison("i4", M)},
        {"best": s.max(axis=1), "at": s.argmax(axis=1)},
        {"best": 0, "at": 0},
    )


def _cross_entropy(rng: np.random.Generator, M: int, N: int, kind: str) -> FoldCase:
    x, w, s, room = folding.scores(rng, M, int(rng.integers(1, 100)), N, kind)
    words, lse = rng.integers(0, N, M).astype(np.int32), np.logaddexp.reduce(s, axis=1)
    off = 2 * room + (N + 100) * U + 16 * U * (np.abs(s).max(axis=1) + np.abs(lse) + 1)
    return FoldCase(
        folding.cross_entropy,
        {"X": x, "W": w, "word": words},
        {"loss": poison("f4", M)},
        {"loss": lse - s[np.arange(M), words]},
        {"loss": off},
    )


def _attention(rng: np.random.Generator, M: int, N: int, kind: str) -> FoldCase:
    """Few queries of several heads, as in decoding."""
    D, E, scale = (*(int(n) for n in rng.integers(1, 97, 2)), float(np.float32(rng.uniform(0.05, 0.5))))
    M, made = min(M, 16), []
    q, k, v = (rng.standard_normal((1, 2, *shape)).astype(kind) for shape in ((M, D), (N, D), (N, E)))
    for head in range(2):
        x, w = q[0, head].astype(np.float64), k[0, head].astype(np.float64)
        off = scale * 4 * (D + 4) * U * (np.abs(x) @ np.abs(w).T).max(axis=1)
        made.append(weighed(scale * x @ w.T, v[0, head], off, kind))
    return FoldCase(
        folding.attention,
        {"Q": q, "K": k, "V": v, "scale": scale},
        {"O": poison(kind, 1, 2, M, E)},
        {"O": np.stack([one for one, _ in made])[None]},
        {"O": np.stack([room for _, room in made])[None]},
    )


LOOPS = (_moments, _decayed, _argmax, _cross_entropy, _attention, _attention)


def loops(number: int, target: str) -> str:
    """Compute a loop that carries a state, in random parts.

    Returns:
        What is wrong; empty if nothing is.
    """
    terms, rng = generators(number, target)
    make, kind = LOOPS[terms.integers(len(LOOPS))], str(terms.choice(["f2", "f4"]))
    (count,), (long,) = extents(terms, rng, ROWS[target], 1), extents(terms, rng, LARGEST[target], 1)
    return computed(make(rng, count, long, kind), target, terms)


def lists(number: int, target: str) -> str:
    """Find the largest scores of each row and their places, up to 32, by a computation that a step repeats.

    Returns:
        What is wrong; empty if nothing is.
    """
    return computed(*_lists(number, target, folding.top_k), fold="online")


def lists_in_parts(number: int, target: str) -> str:
    """Likewise in random parts, whose lists merge.

    Returns:
        What is wrong; empty if nothing is.
    """
    return computed(*_lists(number, target, folding.top_k_in_parts))


def _lists(number: int, target: str, kernel: Any) -> tuple[FoldCase, str, np.random.Generator]:
    """Draw lists of the largest scores."""
    terms, rng = generators(number, target)
    kind, most = str(terms.choice(["f2", "f4"])), int(terms.integers(1, 33))
    (M,), (N,) = extents(terms, rng, ROWS[target], 1), extents(terms, rng, LARGEST[target], 1)
    k, depth = min(most, N), int(terms.integers(1, 50))
    x, w = (rng.integers(-3, 4, (rows, depth)).astype(kind) for rows in (M, N))
    s = x.astype(np.float64) @ w.astype(np.float64).T
    at = np.argsort(-s, axis=1, kind="stable")[:, :k]
    results = {"best": poison("f4", M, k), "at": poison("i4", M, k)}
    expected, room = {"best": np.take_along_axis(s, at, 1), "at": at}, {"best": 0, "at": 0}
    return FoldCase(kernel, {"X": x, "W": w}, results, expected, room), target, terms


def recurrences(number: int, target: str) -> str:
    """Compute linear attention with a state that decays: by one factor, or by one for each position.

    Returns:
        What is wrong; empty if nothing is.
    """
    terms, rng = generators(number, target)
    make, kind = (uniform, with_gates)[terms.integers(2)], str(terms.choice(["f2", "f4"]))
    (N,), (D, E) = extents(terms, rng, LARGEST[target], 1), extents(terms, rng, 64, 2)
    case = make(int(rng.integers(1, 4)), N, D, E, kind, str(terms.choice(["f4", kind])))
    return computed(case, target, terms, fold="online" if target == CPU.name else CHOSEN)


def going_on(number: int, target: str) -> str:
    """Compute recurrences that begin with a state in memory and store their last one.

    They run over all elements of a batch, or over sequences with bounds in memory; the last kind has no
    products, and carries a number for each row.

    Returns:
        What is wrong; empty if nothing is.
    """
    terms, rng = generators(number, target)
    which, kind = int(terms.integers(3)), str(terms.choice(["f2", "f4"]))
    out, order = str(terms.choice(["f4", kind])), str(terms.choice(["C", "C", "F"]))
    (N,), (D, E) = extents(terms, rng, LARGEST[target], 1), extents(terms, rng, 64, 2)
    count = int(rng.integers(1, 7))
    if which == 0:
        case = continuing(min(count, 3), N, D, E, kind, out, seed=number, gap=int(terms.choice([0, 1, 8])))
    elif which == 1:
        case = several(count, N, D, E, kind, out, seed=number, order=order)
    else:
        case = summed(count, N, D, kind, seed=number, order=order)
    return computed(case, target, terms, fold="online" if target == CPU.name else CHOSEN)


def places(number: int, target: str) -> str:
    """Find the places of extremes: of rows, of columns, and of products; some rows have NaN or are infinite.

    Returns:
        What is wrong; empty if nothing is.
    """
    terms, rng = generators(number, target)
    which, kind = int(terms.integers(4)), str(terms.choice(NUMBERS))
    (M,), (N,) = extents(terms, rng, ROWS[target], 1), extents(terms, rng, 3 * LARGEST[target], 1)
    if which < 2:
        make, gap = (rows_case, columns_case)[which], int(terms.choice([0, 1, 8]))
        case = make(rng, M, N, kind, gap, str(terms.choice(["C", "C", "F"])))
        return computed(case, target, terms, fold="" if which == 0 and target == CPU.name else CHOSEN)
    kind, K = str(terms.choice(["f2", "f4"])), int(rng.integers(1, 100))
    if which == 2:
        return computed(
            products_case(rng, int(rng.integers(1, 4)), M, N, K, kind), target, terms, fold=CHOSEN
        )
    return computed(
        centres_case(rng, M, N, K, kind), target, terms, fold="" if target == CPU.name else CHOSEN
    )


def slices(number: int, target: str) -> str:
    """Compute products and elements of slices with a step, and store to such slices.

    Returns:
        What is wrong; empty if nothing is.
    """
    terms, rng = generators(number, target)
    which, kind = int(terms.integers(3)), str(terms.choice(["f2", "f4"]))
    gap, order = int(terms.choice([0, 1, 8])), str(terms.choice(["C", "C", "F"]))
    M, N = extents(terms, rng, ROWS[target], 2)
    if which == 0:
        (K,), last = extents(terms, rng, ROWS[target], 1), int(terms.integers(2))
        case = sliced_products(rng, M, N, K, kind, last=last, gap=gap, order=order)
        return placed_twice(case.kernel, case, target)
    if which == 1:
        case = elements_case(rng, M, N + 1, kind, gap=gap, order=order)
        return placed_twice(case.kernel, case, target)
    return placed_twice(interleaved, interleaved_case(rng, M, N, kind, order=order), target)


# ---------------------------------------------------------------- whole rows


def rows(number: int, target: str) -> str:
    """Compute softmax(X W), or attention in six lines, over whole rows: online, or in two passes.

    Returns:
        What is wrong; empty if nothing is.
    """
    terms, rng = generators(number, target)
    which, kind = int(terms.integers(3)), str(terms.choice(["f2", "f4"]))
    (M,), (N,) = extents(terms, rng, ROWS[target], 1), extents(terms, rng, LARGEST[target], 1)
    x, w, s, off = folding.scores(rng, M, int(rng.integers(1, 100)), N, kind)
    if which == 0:
        return computed(
            of_rows(whole_rows.softmax, {"X": x, "W": w}, s, off, kind), target, terms, fold="online"
        )
    fold, scale = str(terms.choice(["online", "two passes"])), float(np.float32(rng.uniform(0.05, 0.5)))
    v = rng.standard_normal((N, int(rng.integers(1, 97)))).astype(kind)
    given: dict[str, Any] = {"Q": x, "K": np.ascontiguousarray(w.T), "V": v, "scale": scale}
    if which == 1:
        mask = np.where(rng.random((M, N)) < 0.2, -np.inf, rng.standard_normal((M, N))).astype(np.float32)
        kernel, given["mask"], hidden = whole_rows.attention, mask, scale * s + mask
    else:
        shift = int(rng.integers(-M, N))
        seen = np.arange(N) <= np.arange(M)[:, None] + shift
        kernel, given["shift"], hidden = whole_rows.causal, shift, np.where(seen, scale * s, -np.inf)
        given |= {name: given[name][None, None] for name in "QKV"}
    made, room = weighed(hidden, v, scale * off, kind)
    shape = (M, v.shape[1]) if which == 1 else (1, 1, M, v.shape[1])
    case = FoldCase(kernel, given, {"O": poison(kind, *shape)}, {"O": made}, {"O": room})
    return computed(case, target, terms, fold=fold)
