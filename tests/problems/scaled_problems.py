"""Random products with scales; a number always gives the same problem."""

from __future__ import annotations

import numpy as np

from tilewright.ops.ending import ACTIVATIONS
from tilewright.ops.products import BLOCK
from tilewright.ops.scales import NARROW, OPERANDS, SCALES, WIDE
from tilewright.tune.scaled_trial import ScaledOperands, ScaledTrial

from .sets import extents, generators

LARGEST = {"reference": 70, "cpu": 200, "cuda": 700}
"""Of an extent."""


def scaled_problem(number: int, target: str, *, by_blocks: bool = False) -> ScaledTrial:
    """Return a problem for a target.

    Args:
        number: which; numbers of one set need the same few kernels.
        target: ``"reference"``, ``"cpu"`` or ``"cuda"``.
        by_blocks: whether each has scales of blocks along K, instead of one of four.
    """
    terms, rng = generators(number, target)
    wide, narrow, other = (kinds[terms.integers(len(kinds))] for kinds in (WIDE, NARROW, NARROW))
    kinds = [(wide, narrow), (narrow, wide), (narrow, other), (wide, wide)][terms.integers(4)]
    scales = tuple(name for name in SCALES if terms.integers(2) or by_blocks)
    out = (None, *OPERANDS)[terms.integers(1 + len(OPERANDS))]
    activation = (None, *ACTIVATIONS)[terms.integers(1 + len(ACTIVATIONS))]
    bias = bool(terms.integers(2))
    m, n, k = extents(terms, rng, LARGEST[target], 3)
    shape = (int(rng.integers(1, 65)) if terms.integers(3) == 0 else m, n, k)
    layout = str(terms.choice(["nt", "nn", "tn", "tt"]))
    # Drawn behind all else, so that the other problems are those of before.
    has_blocks = terms.integers(4) == 0 or by_blocks
    blocks = tuple(int(terms.choice((1, BLOCK))) for _ in SCALES) if has_blocks else None
    if blocks is not None:  # several blocks are wanted
        shape = (*shape[:2], shape[2] + BLOCK)
    made = ScaledOperands.drawn(
        shape, kinds, scales=scales, bias=bias, layout=layout, blocks=blocks, seed=number
    )
    return ScaledTrial(made, target, out, activation)


def carried_out(number: int, target: str) -> str:
    """Compute a problem twice, the second time with a known launch, and compare every element.

    Returns:
        The error in words; empty if results are right.
    """
    return compared(scaled_problem(number, target))


def carried_out_by_blocks(number: int, target: str) -> str:
    """Run a problem with scales of blocks along K, like `carried_out`."""
    return compared(scaled_problem(number, target, by_blocks=True))


def compared(trial: ScaledTrial) -> str:
    """Compute a product twice; return the error in words, empty if results are right."""
    trial.run()
    found, first = trial.verify(), trial.result().copy()
    if not found.ok:
        return f"{trial.name}, {trial.operands.shape}: {found}"
    trial.run()
    same = np.array_equal(first.view(np.uint8), trial.result().view(np.uint8))
    return "" if same else f"{trial.name}, {trial.operands.shape}: other bits when its launch is known"
