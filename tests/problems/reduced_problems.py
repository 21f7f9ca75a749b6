"""Random reductions of products: extents, axes, dtypes, strides, and whether the product is stored too."""

from __future__ import annotations

from typing import Any

import numpy as np

import tilewright as tw
from tilewright.checking.references import reductions
from tilewright.ops.reduced_matmul import REDUCTIONS
from tilewright.testing import device_get, device_put

from .sets import generators

KINDS = ("f16", "bf16", "f32", "f64")
EXTENTS = (1, 2, 5, 16, 33, 64, 130, 257, 300, 520)
ELEMENTS = {"reference": 2.0**18, "cpu": 2.0**22, "cuda": 2.0**26}
"""Products of a problem, at most."""

UNIT = {"f64": 2.0**-53}
"""Of rounding, in what sums are computed; f32 of all others."""


def drawn(number: int, target: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arrays of a problem, and its other arguments."""
    terms, rng = generators(number, target)
    kind = KINDS[terms.integers(len(KINDS))]
    lead = [(), (), (2,), (3, 2)][terms.integers(4)]
    extents = [int(rng.choice(EXTENTS)) for _ in range(3)]
    while np.prod([*lead, *extents], dtype=np.float64) > ELEMENTS[target]:
        extents[int(np.argmax(extents))] //= 2
    m, n, k = extents
    shapes: dict[str, tuple[int, ...]] = {"a": (*lead, m, k), "b": (k, n)}
    if lead and terms.integers(2):
        shapes["b"] = (lead[-1], k, n)
    if terms.integers(2):
        shapes["bias"] = (n,)
    arrays = {}
    for name, shape in shapes.items():
        made = rng.standard_normal(shape if terms.integers(2) else shape[::-1]).astype(tw.dtype(kind).numpy)
        arrays[name] = made if made.shape == shape else made.T
    names = [name for name in REDUCTIONS if terms.integers(2)] or ["logsumexp"]
    words = {
        "reduce": tuple(names),
        "axis": -1 - int(terms.integers(2)),
        "alpha": float(terms.choice([1, 0.5])),
    }
    words["activation"] = (None, None, "relu", "tanh")[terms.integers(4)]
    if "bias" in arrays and words["axis"] == -1:  # a column that is masked has no maximum
        arrays["bias"][masked(rng, n)] = -np.inf
    return arrays, words | {"stores": not terms.integers(3)}


def masked(rng: np.random.Generator, columns: int) -> slice:
    """Return a range of columns that a bias masks: the first, the last, or some between; never all."""
    begin, end = sorted(int(one) for one in rng.integers(1, max(columns, 2), 2))
    return (
        (slice(0, begin), slice(end, columns), slice(begin, end))[rng.integers(3)]
        if columns > 1
        else slice(0)
    )


def within(found: Any, exact: Any, room: Any) -> Any:
    """Return which numbers are within the bound; infinities must be equal."""
    with np.errstate(invalid="ignore"):
        return (found == exact) | (np.isfinite(exact) & (np.abs(found - exact) <= room))


def carried_out(number: int, target: str, like: str = "") -> str:
    """Compute a problem twice, and compare every element with f64.

    Args:
        number: number of the problem.
        target: the target.
        like: the target whose problem sizes are used; default: this one.

    Returns:
        The error in words; empty if results are right.
    """
    arrays, words = drawn(number, like or target)
    stores, about = words.pop("stores"), f"{ {name: one.shape for name, one in arrays.items()} }, {words}"
    wide = {name: one.astype(np.float64) for name, one in arrays.items()}
    whole = words["alpha"] * (wide["a"] @ wide["b"]) + wide.get("bias", 0)
    added = np.abs(wide.get("bias", np.zeros(1)))
    size = np.abs(words["alpha"]) * (np.abs(wide["a"]) @ np.abs(wide["b"])) + np.where(
        np.isinf(added), 0, added
    )
    kind, axis = tw.dtype(arrays["a"].dtype).name, words["axis"]
    unit = UNIT.get(kind, 2.0**-24)
    # Tensor cores keep a bit less of sums, and activations are off by 2**-19 at most.
    near = 4 * (wide["a"].shape[-1] + 8) * unit * size + (2.0**-19 if words["activation"] == "tanh" else 0)
    x = {"relu": lambda y: np.maximum(y, 0), "tanh": np.tanh}.get(words["activation"], np.asarray)(whole)
    want = reductions(x, near, axis, unit)
    there = {name: device_put(one, target) for name, one in arrays.items()}
    product = np.full(x.shape, 7.7e7, np.float64 if kind == "f64" else np.float32)
    if stores:
        there["product"] = device_put(product, target)
    found = []
    for _ in range(2):
        made = tw.reduced_matmul(**there, **words, target=target)
        found.append([np.array(device_get(one)) for one in made])
    for name, one, again in zip(words["reduce"], *found, strict=True):
        if not within(one, want[name].wanted, want[name].room).all():
            return f"{about}: {name} is off by {np.nanmax(np.abs(one - want[name].wanted)):.3}"
        if one.tobytes() != again.tobytes():
            return f"{about}: the second {name} has other bits"
    if stores and not within(device_get(there["product"]), x, near + unit * np.abs(x)).all():
        return f"{about}: the product is wrong"
    return ""
