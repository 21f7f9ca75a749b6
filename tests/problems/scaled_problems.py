"""Random products with scales, each the same for its number."""

from __future__ import annotations

import numpy as np

from tilewright.ops.products import ACTIVATIONS
from tilewright.ops.scales import NARROW, OPERANDS, SCALES, WIDE
from tilewright.tune.scaled_trial import ScaledOperands, ScaledTrial

LARGEST = {"reference": 70, "cpu": 200, "cuda": 900}
"""Of an extent."""

KERNELS = {"reference": 1 << 30, "cpu": 16, "cuda": 64}
"""Of how many sets of dtypes and terms problems are drawn, each of which is compiled."""

UNITS = (1, 8, 16)
"""What all extents of a problem are multiples of: the last one lets bulk copies carry everything."""


def scaled_problem(number: int, target: str) -> ScaledTrial:
    """A problem on a target.

    Args:
        number: which; what is compiled is the same for numbers that are as far apart as `KERNELS` says.
        target: ``"reference"``, ``"cpu"`` or ``"cuda"``.
    """
    terms = np.random.default_rng(number % KERNELS[target])
    rng = np.random.default_rng(number)
    wide, narrow, other = (kinds[terms.integers(len(kinds))] for kinds in (WIDE, NARROW, NARROW))
    kinds = [(wide, narrow), (narrow, wide), (narrow, other), (wide, wide)][terms.integers(4)]
    scales = tuple(name for name in SCALES if terms.integers(2))
    out = (None, *OPERANDS)[terms.integers(1 + len(OPERANDS))]
    activation = (None, *ACTIVATIONS)[terms.integers(1 + len(ACTIVATIONS))]
    bias = bool(terms.integers(2))
    unit = int(rng.choice(UNITS))
    m, n, k = (int(extent) * unit for extent in rng.integers(1, 1 + LARGEST[target] // unit, 3))
    shape = (int(rng.integers(1, 65)) if rng.integers(3) == 0 else m, n, k)
    layout = str(rng.choice(["nt", "nn", "tn", "tt"]))
    made = ScaledOperands.drawn(shape, kinds, scales=scales, bias=bias, layout=layout, seed=number)
    return ScaledTrial(made, target, out, activation)


def carried_out(number: int, target: str) -> str:
    """Compute a problem twice, of which the second time its launch is known, and compare every element.

    Returns:
        What is wrong; empty if nothing is.
    """
    trial = scaled_problem(number, target)
    trial.run()
    found, first = trial.verify(), trial.result().copy()
    if not found.ok:
        return f"{trial.name}, {trial.operands.shape}: {found}"
    trial.run()
    same = np.array_equal(first.view(np.uint8), trial.result().view(np.uint8))
    return "" if same else f"{trial.name}, {trial.operands.shape}: other bits when its launch is known"
