"""Random products of f32 at each grade of precision; a number always gives the same problem."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.ops.test_halves import BULK, SYNC, assert_right, operands

import tilewright as tw
from tilewright.checking.compare import Accumulation, gemm_bound

from .placing import Placed
from .sets import extents, generators

LARGEST = {"reference": 90, "cpu": 200, "cuda": 700}
"""Of an extent."""

KINDS = ("normal", "positive", "wide")
GRADES = ("f32", "f32", "f16", "tf32", "exact")


def carried_out(number: int, target: str) -> str:
    """Compute a problem twice, the second time with a known launch, and compare every element.

    Args:
        number: number of the problem; numbers of one set need the same few kernels.
        target: ``"reference"``, ``"cpu"`` or ``"cuda"``.

    Returns:
        The error in words; empty if results are right.
    """
    terms, rng = generators(number, target)
    grade, layout = str(terms.choice(GRADES)), str(terms.choice(["nn", "nt", "tn", "tt"]))
    kind, shape = str(rng.choice(KINDS)), extents(terms, rng, LARGEST[target], 3)
    schedule = _schedule(grade, target, int(terms.integers(3)))
    a, b = operands(kind, shape, layout, number)  # type: ignore[no-untyped-call]
    out = Placed(np.full(shape[:2], np.nan, np.float32), target)
    given = [Placed(x, target).there for x in (a, b)]
    # Products of this size are split only where the answer must not depend on how many rows there are.
    words: dict[str, Any] = {"precision": grade, "schedule": schedule, "target": target}
    words["batch_invariant"] = schedule is None and grade in ("f32", "f16")
    made = []
    for _ in range(2):
        tw.matmul(*given, out=out.there, **words)
        made.append(out.fetched().copy())
    name = f"{grade}, {kind}, {layout}, {shape}, {'chosen' if schedule is None else schedule}"
    try:
        if (grade in ("f32", "f16") and target == "cuda") or schedule is not None:
            promoted = grade == "f32"
            how = schedule or (SYNC if promoted else tw.Schedule(SYNC.atom, (64, 64, 32), promote=0))
            assert_right(a, b, made[0], how, halves=2 if promoted else 1)
        else:
            _assert_near(a, b, made[0], 2.0**-10 if grade == "tf32" else 0.0)
    except AssertionError as error:
        return f"{name}: {error}"
    same = np.array_equal(*(one.view(np.uint32) for one in made))
    return "" if same else f"{name}: other bits when its launch is known"


def _schedule(grade: str, target: str, drawn: int) -> Any:
    """Return a schedule for halves on the reference; other targets use them if they pay."""
    if target != "reference" or grade not in ("f32", "f16") or drawn == 2:
        return None
    if grade == "f32":
        return (SYNC, BULK)[drawn]
    return tw.Schedule(SYNC.atom, (64, 64, 32), warps=(2, 2), stages=3, staging="cp_async")


def _assert_near(a: Any, b: Any, made: Any, relative: float) -> None:
    """Check every element within the bound of f32 sums, and of products with a relative error."""
    with np.errstate(over="ignore"):
        bound = gemm_bound(a, b, Accumulation.default(tw.f32), tw.f32)[2]
    sizes = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64)
    bound = bound + relative * sizes * (1 + a.shape[1] * tw.f32.unit_roundoff)
    off = np.abs(made - a.astype(np.float64) @ b.astype(np.float64))
    assert (off <= bound).all(), f"{(off / bound).max():.3} of the bound"
