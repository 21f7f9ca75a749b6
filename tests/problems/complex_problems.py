"""Random complex products, each the same for its number."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.ops.complex_cases import check, numbers, poisoned

import tilewright as tw
from tilewright.checking.compare import Accumulation
from tilewright.ops.complex_planning import SUPPORTED, Asked, product_of_complex
from tilewright.ops.complex_ways import METHODS
from tilewright.runtime.device_array import device_get, device_put

LARGEST = {"reference": 50, "cpu": 150, "cuda": 600}
"""Of an extent."""

KERNELS = {"reference": 1 << 30, "cpu": 16, "cuda": 64}
"""Of how many sets of dtypes and terms problems are drawn, each of which is compiled."""

ORDERS = ("", " transposed", " odd")
FACTORS = (1, 0.5, 2j, 1 - 1j)
BATCHES = (((), ()), ((), ()), ((2,), ()), ((2, 1), (3,)))


def carried_out(number: int, target: str) -> str:
    """Compute a problem, and compare every element.

    Args:
        number: which; what is compiled is the same for numbers that are as far apart as `KERNELS` says.
        target: ``"reference"``, ``"cpu"`` or ``"cuda"``.

    Returns:
        What is wrong; empty if nothing is.
    """
    terms, rng = np.random.default_rng(number % KERNELS[target]), np.random.default_rng(number)
    part = tw.dtype(str(terms.choice(SUPPORTED)))
    method = METHODS[int(terms.integers(4) == 0)]
    conjugates = [bool(flag) for flag in terms.integers(2, size=2)]
    alpha, beta = (FACTORS[terms.integers(len(FACTORS))] for _ in range(2))
    adds = bool(terms.integers(2))
    leads = BATCHES[terms.integers(len(BATCHES))]
    m, n, k = (int(extent) for extent in rng.integers(1, LARGEST[target], 3))
    lead = np.broadcast_shapes(*leads)
    shapes = ((*leads[0], m, k), (*leads[1], k, n), (*lead, m, n))
    a, b, c = (numbers(rng, shape, part, _layout(rng, part.name)) for shape in shapes)
    out = poisoned(shapes[2], part, _layout(rng, part.name, orders=1))
    given: dict[str, Any] = {"a": a, "b": b, "c": c if adds else None, "out": out}
    there = {name: one if one is None else _put(one, target) for name, one in given.items()}
    flags = {"conjugate_a": conjugates[0], "conjugate_b": conjugates[1]}
    asked = Asked(alpha, beta if adds else None, method=method, target=target, **flags)
    ran = product_of_complex(there, asked).launch()
    schedule = ran[-1].schedule
    assert (ran[-1].target, schedule is None) == (target, False)
    how = Accumulation.of(schedule.atom, schedule.promote * schedule.block_k or None)
    d = there["out"]
    made = tuple(map(device_get, d)) if isinstance(d, tuple) else device_get(d)
    factors = {"alpha": alpha, "beta": beta if adds else 0}
    try:
        check(made, a, b, given["c"], how=how, conjugates=conjugates, method=method, **factors)
    except tw.WrongResultError as error:
        return f"{part} {method} {shapes} {flags} {factors}: {error}"
    return ""


def _layout(rng: np.random.Generator, part: str, orders: int = len(ORDERS)) -> str:
    """Interleaved or planar, and an order."""
    kind = "planar" if part == "bf16" or rng.integers(2) else "interleaved"
    return kind + ORDERS[rng.integers(orders)]


def _put(given: Any, target: str) -> Any:
    return (
        tuple(device_put(one, target) for one in given)
        if isinstance(given, tuple)
        else device_put(given, target)
    )
