"""Random gated products: extents, batches, dtypes and their mixtures, strides, scales, biases, splits."""

from __future__ import annotations

from typing import Any

import numpy as np

import tilewright as tw
from tilewright.checking.references import gated, worst_of
from tilewright.ops.ending import ACTIVATIONS
from tilewright.ops.scales import NARROW, OPERANDS, WIDE
from tilewright.testing import device_get, device_put

from .placing import Placed
from .sets import generators

EXTENTS = (1, 2, 5, 16, 33, 64, 130, 257, 300)
ELEMENTS = {"reference": 2.0**17, "cpu": 2.0**21, "cuda": 2.0**25}
"""Products of a problem, at most."""

POISON = 77
"""What results hold before; every 8-bit dtype has it, or a number near it."""

FP8_UNIT = 2.0**-13
"""Unit roundoff of Hopper's sums of fp8."""


def random(rng: np.random.Generator, shape: tuple[int, ...], kind: tw.DType, depth: int = 1) -> Any:
    """Return numbers of a dtype in a random order of axes, perhaps with gaps between rows and reversed."""
    order = rng.permutation(2) if len(shape) == 2 else np.arange(len(shape))
    inner = [shape[dim] for dim in order]
    whole = (*inner[:-1], inner[-1] + int(rng.integers(0, 2)) * 3)
    drawn = rng.standard_normal(whole) / np.sqrt(depth)
    made = (drawn if kind.is_float else np.clip(np.round(drawn * 40), -127, 127)).astype(kind.numpy)
    made = made[..., : inner[-1]].transpose(np.argsort(order))
    return made[..., ::-1] if rng.integers(4) == 0 else made


def drawn(number: int, target: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arrays of a problem by argument names, and its other arguments."""
    terms, rng = generators(number, target)
    wide, narrow, other = (kinds[terms.integers(len(kinds))] for kinds in (WIDE, NARROW, NARROW))
    pairs = [(tw.f64, tw.f64), (wide, wide), (wide, wide), (wide, narrow), (narrow, other), (narrow, narrow)]
    kind, weights = pairs[terms.integers(len(pairs))]
    lead = [(), (), (2,), (3, 2)][terms.integers(4)]
    extents = [int(rng.choice(EXTENTS)) for _ in range(3)]
    while np.prod([*lead, *extents], dtype=np.float64) > ELEMENTS[target]:
        extents[int(np.argmax(extents))] //= 2
    m, n, k = extents
    of_b = lead if terms.integers(2) else ()
    arrays = {"a": random(rng, (*lead, m, k), kind, k)}
    arrays |= {name: random(rng, (*of_b, k, n), weights) for name in "bc"}
    words: dict[str, Any] = {"activation": (None, *ACTIVATIONS)[terms.integers(1 + len(ACTIVATIONS))]}
    added = (tw.f32, tw.f16, tw.bf16)
    for name, shape in (("scale_a", (*lead, m)), ("scale_b", (*of_b, n)), ("scale_c", (*of_b, n))):
        choice = 0 if kind == tw.f64 else terms.integers(4)
        if choice == 1:
            words[name] = float(rng.uniform(0.25, 2))
        elif choice == 2:
            arrays[name] = random(rng, shape, added[terms.integers(3)])
    for name in ("bias_b", "bias_c"):
        if terms.integers(2):
            arrays[name] = random(rng, (n,), tw.f64 if kind == tw.f64 else added[terms.integers(3)])
    if kind != tw.f64 and terms.integers(2):
        words["out_dtype"] = OPERANDS[terms.integers(len(OPERANDS))].name
    if terms.integers(3) == 0:
        words["split_k"] = (2, 3, "auto", "stream")[terms.integers(4)]
    elif terms.integers(4) == 0:
        words["batch_invariant"] = True
    return arrays, words


def carried_out(number: int, target: str, like: str = "") -> str:
    """Compute a problem twice, the second time with a known launch, and compare every element.

    Args:
        number: number of the problem.
        target: the target.
        like: the target whose problem sizes are used; default: this one.

    Returns:
        The error in words; empty if results are right.
    """
    arrays, words = drawn(number, like or target)
    kinds = {name: tw.dtype(one.dtype).name for name, one in arrays.items()}
    about = f"{ {name: one.shape for name, one in arrays.items()} }, {kinds}, {words}"
    there = {name: device_put(one, target) for name, one in arrays.items()}
    found = []
    for _ in range(2):
        made = tw.gated_matmul(**there, **words, target=target)
        if len(found) == 0:  # and once into an array with gaps, between elements that must stay
            shape, kind = made.shape, tw.dtype(made.dtype).numpy
            around = np.full((*shape[:-1], shape[-1] + 8), POISON).astype(kind)
            into = Placed(around[..., : shape[-1]], target)
            tw.gated_matmul(**there, **words, out=into.there, target=target)
            found.append(np.ascontiguousarray(into.fetched()))
            if (around[..., shape[-1] :] != np.full(8, POISON).astype(kind)).any():
                return f"{about}: something else was written"
        found.append(np.array(device_get(made)))
    scaling = {name: one for name, one in (arrays | words).items() if name.startswith(("scale", "bias"))}
    is_fp8 = target == "cuda" and all(name.startswith("f8") for name in (kinds["a"], kinds["b"]))
    given = (arrays[name] for name in "abc")
    exact = gated(*given, words["activation"], tw.dtype(found[0].dtype), scaling, FP8_UNIT if is_fp8 else 0.0)
    for one in found:
        if (worst := worst_of(one, exact)) > 1:
            return f"{about}: an element is off by {worst:.3g} of its bound"
    return "" if found[1].tobytes() == found[2].tobytes() else f"{about}: other bits when its launch is known"
