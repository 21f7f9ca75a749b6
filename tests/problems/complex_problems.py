"""Random complex products; a number always gives the same problem."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.ops.complex_cases import check, numbers, poisoned

import tilewright as tw
from tilewright.checking.compare import Accumulation
from tilewright.ops.complex_matmul import SUPPORTED, ComplexWanted, plan_complex
from tilewright.ops.complex_strategies import METHODS

from .placing import Placed
from .sets import extents, generators

LARGEST = {"reference": 50, "cpu": 150, "cuda": 500}
"""Of an extent."""

ORDERS = ("", " transposed", " odd")
FACTORS = (1, 0.5, 2j, 1 - 1j)
BATCHES = (((), ()), ((), ()), ((2,), ()), ((2, 1), (3,)))


def carried_out(number: int, target: str) -> str:
    """Compute a problem, and compare every element.

    Args:
        number: number of the problem; numbers of one set need the same few kernels.
        target: ``"reference"``, ``"cpu"`` or ``"cuda"``.

    Returns:
        The error in words; empty if results are right.
    """
    terms, rng = generators(number, target)
    part = tw.dtype(str(terms.choice(SUPPORTED)))
    method = METHODS[int(terms.integers(4) == 0)]
    conjugates = [bool(flag) for flag in terms.integers(2, size=2)]
    alpha, beta = (FACTORS[terms.integers(len(FACTORS))] for _ in range(2))
    adds = bool(terms.integers(2))
    leads = BATCHES[terms.integers(len(BATCHES))]
    m, n, k = extents(terms, rng, LARGEST[target], 3)
    lead = np.broadcast_shapes(*leads)
    shapes = ((*leads[0], m, k), (*leads[1], k, n), (*lead, m, n))
    a, b, c = (numbers(rng, shape, part, _layout(terms, part.name)) for shape in shapes)
    out = poisoned(shapes[2], part, _layout(terms, part.name, orders=1))
    given: dict[str, Any] = {"a": a, "b": b, "c": c if adds else None, "out": out}
    placed = {name: [Placed(x, target) for x in _parts(one)] for name, one in given.items()}
    there = {name: _joined([one.there for one in arrays]) for name, arrays in placed.items()}
    flags = {"conjugate_a": conjugates[0], "conjugate_b": conjugates[1]}
    asked = ComplexWanted(alpha, beta if adds else None, method=method, target=target, **flags)
    ran = plan_complex(there, asked).run()
    schedule = ran[-1].schedule
    if ran[-1].target != target or schedule is None:
        return f"it ran on {ran[-1].target} with schedule {schedule}"
    how = Accumulation.of(schedule.atom, schedule.promote * schedule.block_k or None)
    made = _joined([one.fetched() for one in placed["out"]])
    factors = {"alpha": alpha, "beta": beta if adds else 0}
    try:
        check(made, a, b, given["c"], how=how, conjugates=conjugates, method=method, **factors)
    except tw.WrongResultError as error:
        return f"{part} {method} {shapes} {flags} {factors}: {error}"
    return ""


def _layout(rng: np.random.Generator, part: str, orders: int = len(ORDERS)) -> str:
    """Draw interleaved or planar, and an order."""
    kind = "planar" if part == "bf16" or rng.integers(2) else "interleaved"
    return kind + ORDERS[rng.integers(orders)]


def _parts(given: Any) -> tuple[Any, ...]:
    """Return an argument's arrays: two planes, one array, or none."""
    return () if given is None else given if isinstance(given, tuple) else (given,)


def _joined(parts: list[Any]) -> Any:
    """Join the parts of `_parts`."""
    return None if not parts else parts[0] if len(parts) == 1 else tuple(parts)
