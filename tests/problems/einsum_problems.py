"""Random contractions; a number always gives the same problem."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.dtypes import dtype
from tilewright.functions.philox import philox
from tilewright.functions.table import DERIVATIVES
from tilewright.ops.ending import ACTIVATIONS
from tilewright.ops.wanted import Dropout
from tilewright.tune.einsum_trial import Contracted, EinsumTrial

from .sets import generators

ELEMENTS = {"reference": 12_000, "cpu": 300_000, "cuda": 30_000_000}
"""Of the index space of a problem, at most."""

KINDS = ("f16", "f16", "bf16", "f32", "f64", "i8", "f8e4m3")
BATCHES = {"reference": 12, "cpu": 1_000, "cuda": 10_000}
"""Of a problem, at most: each has tiles, and so blocks, of its own."""

GROUPS = "bmnk"
EXTENTS = (1, 2, 3, 5, 8, 16, 40, 64, 130)


def einsum_problem(number: int, target: str) -> EinsumTrial:
    """Return a problem for a target.

    Args:
        number: which; numbers of one set need the same few kernels.
        target: ``"reference"``, ``"cpu"`` or ``"cuda"``.
    """
    terms, rng = generators(number, target)
    kind = dtype(KINDS[terms.integers(len(KINDS))])
    counts = {group: int(terms.integers(3 if group == "b" else 4)) for group in GROUPS}
    letters = iter("abcdefghijklmnop")
    groups = {group: [next(letters) for _ in range(counts[group])] for group in GROUPS}
    extents = {one: int(EXTENTS[terms.integers(len(EXTENTS))]) for axes in groups.values() for one in axes}
    for axes in groups.values():  # the outermost one is not compiled in
        if axes:
            extents[axes[0]] = int(rng.integers(1, 9))
    while np.prod([*extents.values()], dtype=np.float64) > ELEMENTS[target]:
        widest = max(extents, key=lambda one: extents[one])
        extents[widest] = (extents[widest] + 1) // 2
    while np.prod([extents[one] for one in groups["b"]], dtype=np.float64) > BATCHES[target]:
        widest = max(groups["b"], key=lambda one: extents[one])
        extents[widest] = (extents[widest] + 1) // 2
    a = [*groups["b"], *groups["m"], *groups["k"]]
    b = [*groups["b"], *groups["k"], *groups["n"]]
    out = [*groups["b"], *groups["m"], *groups["n"]]
    for axes in (a, b, out):
        if terms.integers(3):
            terms.shuffle(axes)
    subscripts = f"{''.join(a)},{''.join(b)}->{''.join(out)}"
    shapes = tuple(extents[one] for one in a), tuple(extents[one] for one in b)
    bias, residual = bool(terms.integers(2)), not terms.integers(4)
    adds = kind.is_float
    activation = (None, None, *ACTIVATIONS)[terms.integers(2 + len(ACTIVATIONS))] if adds else None
    derivative = (None, *DERIVATIVES)[terms.integers(1 + len(DERIVATIVES))] if activation else None
    words: dict[str, Any] = {"bias": bias, "multiply": derivative is not None or not terms.integers(4)}
    adds_c = not terms.integers(3)
    words |= {"residual": residual, "c": adds_c, "whole": activation is None, "seed": number}
    made = Contracted.drawn(subscripts, shapes, kind, **words)
    alpha = 0.5 if adds and terms.integers(2) else 1.0
    # Half of whole numbers are dropped: the others are doubled, which is exact.
    share = 0.5 if activation is None else 0.25
    dropped = Dropout(share, number, 1 << 40) if adds and not terms.integers(4) else Dropout()
    split_k = (None, None, None, 2, "auto")[terms.integers(5)]
    words = {"alpha": alpha, "derivative": derivative, "dropped": dropped, "split_k": split_k}
    words |= {"beta": -2.0 if adds_c else None}
    return EinsumTrial(made, target, activation, saturate=not terms.integers(4), **words)


def by_numpy(trial: EinsumTrial) -> np.ndarray[Any, Any]:
    """Return NumPy's result for whole numbers, which are exact in f64."""
    given = {name: one.astype(np.float64) for name, one in trial.given.arrays.items()}
    made = trial.alpha * np.einsum(trial.given.subscripts, given["a"], given["b"], optimize=True)
    made = made + (trial.beta or 0) * given.get("c", 0)
    made = (made + given.get("bias", 0)) * given.get("multiply", 1)
    if trial.dropped.probability:
        seed, offset, threshold, scale = trial.dropped.numbers
        kept = philox(np.arange(made.size).reshape(made.shape), seed, offset) >= threshold
        made = np.where(kept, made * scale, 0)
    return np.asarray(made + given.get("residual", 0))


def carried_out(number: int, target: str) -> str:
    """Compute a problem twice, the second time with a known launch, and compare every element.

    Returns:
        The error in words; empty if results are right.
    """
    trial = einsum_problem(number, target)
    shapes = [one.shape for one in trial.given.arrays.values()]
    trial.run()
    found, first = trial.verify(), trial.result().copy()
    if not found.ok:
        return f"{trial.name}, {shapes}: {found}"
    if trial.activation is None and not np.array_equal(first, by_numpy(trial).astype(first.dtype)):
        return f"{trial.name}, {shapes}: not what NumPy's einsum computes"
    trial.run()
    same = first.tobytes() == trial.result().tobytes()
    return "" if same else f"{trial.name}, {shapes}: other bits when its launch is known"
