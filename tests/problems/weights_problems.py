"""Random products with weights in groups along K, of 4 and 8 bits; a number gives one problem."""

from __future__ import annotations

from tilewright import dtypes
from tilewright.dtypes import PACKED
from tilewright.ops.ending import ACTIVATIONS
from tilewright.tune.scaled_trial import ScaledOperands, ScaledTrial

from .scaled_problems import compared
from .sets import extents, generators

LARGEST = {"reference": 70, "cpu": 200, "cuda": 700}
"""Of M and N."""

GROUPS = {"reference": (8, 32, 64), "cpu": (32, 64, 128), "cuda": (32, 64, 128)}
"""Neighbours along K that have a scale in common."""

MOST_GROUPS = {"reference": 3, "cpu": 5, "cuda": 30}

WIDE, WEIGHTS = (dtypes.f16, dtypes.bf16), (dtypes.i4, *PACKED, dtypes.i8)


def weights_problem(number: int, target: str) -> ScaledTrial:
    """Return a problem for a target.

    Args:
        number: which; numbers of one set need the same few kernels.
        target: ``"reference"``, ``"cpu"`` or ``"cuda"``.
    """
    terms, rng = generators(number, target)
    kinds = WIDE[terms.integers(len(WIDE))], WEIGHTS[terms.integers(len(WEIGHTS))]
    group = int(terms.choice(GROUPS[target]))
    scales = ("scale_a", "scale_b") if terms.integers(2) else ("scale_b",)
    zeros, bias = bool(terms.integers(2)), bool(terms.integers(2))
    activation = (None, *ACTIVATIONS)[terms.integers(1 + len(ACTIVATIONS))]
    m, n = extents(terms, rng, LARGEST[target], 2)
    k = group * int(rng.integers(1, 1 + MOST_GROUPS[target]))
    m = int(rng.integers(1, 65)) if terms.integers(2) else m
    layout = str(terms.choice(["nt", "nt", "tt", "nn"]))
    n += n % 2 if layout[1] == "n" else 0  # two neighbours along N share a byte
    made = ScaledOperands.drawn(
        (m, n, k), kinds, scales=scales, bias=bias, layout=layout, seed=number, group=group, zeros=zeros
    )
    return ScaledTrial(made, target, activation=activation)


def carried_out(number: int, target: str) -> str:
    """Compute a problem twice, the second time with a known launch, and compare every element.

    Returns:
        The error in words; empty if results are right.
    """
    return compared(weights_problem(number, target))
