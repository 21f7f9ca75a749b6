"""Complex products of every kind, for the tests of all targets: their numbers, and the check of results."""

from __future__ import annotations

from typing import Any

import numpy as np

import tilewright as tw
from tilewright.checking.compare import Accumulation
from tilewright.checking.composed_products import compare_complex, planes
from tilewright.checking.sample import normal
from tilewright.dtypes import DType

C = {"f16": tw.c32, "f32": tw.c64, "f64": tw.c128}


def numbers(rng: np.random.Generator, shape: tuple[int, ...], part: DType, how: str) -> Any:
    """Return random complex numbers: interleaved or planar, dense, transposed or with odd strides."""
    layout, _, order = how.partition(" ")
    if order == "transposed":
        turned = numbers(rng, (*shape[:-2], *shape[:-3:-1]), part, layout)
        return tuple(one.mT for one in turned) if layout == "planar" else turned.swapaxes(-1, -2)
    step = 1 if order == "" else 3
    held = normal(rng, (*shape[:-1], step * shape[-1] + 5, 2), part)[..., : step * shape[-1] : step, :]
    if layout == "planar":
        return held[..., 0], np.ascontiguousarray(held[..., 1])
    return np.stack([held[..., 0], held[..., 1]], -1).view(C[part.name].numpy)[..., 0]


def poisoned(shape: tuple[int, ...], part: DType, how: str) -> Any:
    whole = np.full((*shape[:-1], 2 * shape[-1] + 3, 2), np.nan, part.numpy)
    if how.startswith("planar"):
        return whole[..., : shape[-1], 0], whole[..., shape[-1] : -3, 1]
    return whole.view(C[part.name].numpy)[..., 1 : 2 * shape[-1] : 2, 0]


def check(
    d: Any, a: Any, b: Any, c: Any, *, how: Accumulation | None = None, conjugates: Any, **factors: Any
) -> None:
    """Check each element of every matrix of the batches."""
    (a, b, d), added = (planes(one) for one in (a, b, d)), None if c is None else planes(c)
    sides = [(re, -im if wanted else im) for (re, im), wanted in zip((a, b), conjugates, strict=True)]
    shape = d[0].shape
    lead = shape[:-2]
    for index in np.ndindex(lead):
        one, other = (
            tuple(np.broadcast_to(x, (*lead, *x.shape[-2:]))[index] for x in side) for side in sides
        )
        c_there = None if added is None else tuple(np.broadcast_to(x, shape)[index] for x in added)
        made = tuple(x[index] for x in d)
        compare_complex(one, other, made, c_there, how=how, **factors).raise_if_wrong()


CASES = {
    # dtype of the parts, layouts of a, b, c and out, (M, N, K), batches of a and b, conjugates, alpha, beta
    "c64": ("f32", "interleaved", "interleaved", None, None, (70, 61, 150), (), (), (0, 0), 1, None),
    "c64, everything": (
        *("f32", "interleaved transposed", "interleaved odd", "interleaved", "interleaved"),
        *((33, 18, 65), (2, 1), (3,), (1, 0), 0.5 - 2j, 1 + 1j),
    ),
    "c128": ("f64", "interleaved", "planar", "planar odd", "interleaved", (19, 35, 40), (), (), (1, 1), 2, 1),
    "f32 planes": (
        "f32",
        "planar odd",
        "planar transposed",
        None,
        None,
        (33, 40, 20),
        (),
        (4,),
        (0, 1),
        1j,
        None,
    ),
    "c32": ("f16", "interleaved", "interleaved", None, "interleaved", (65, 30, 70), (), (), (0, 0), 1, None),
    "bf16 planes": ("bf16", "planar", "planar", "planar", "planar", (30, 65, 33), (), (), (0, 0), 1, -0.5),
    "f64 planes": ("f64", "planar", "interleaved transposed", None, None, (5, 3, 0), (), (), (0, 0), 1, None),
}


def made(name: str, seed: int = 0) -> tuple[dict[str, Any], dict[str, Any], tuple[int, int]]:
    part, *layouts, (m, n, k), lead_a, lead_b, conjugates, alpha, beta = CASES[name]
    element, rng = tw.dtype(part), np.random.default_rng(seed)
    lead = np.broadcast_shapes(lead_a, lead_b)
    shapes = ((*lead_a, m, k), (*lead_b, k, n), (*lead, m, n))
    arrays = {
        one: numbers(rng, shape, element, layout)
        for one, shape, layout in zip("abc", shapes, layouts, strict=False)
        if layout is not None
    }
    if layouts[3] is not None:
        arrays["out"] = poisoned(shapes[2], element, layouts[3])
    return arrays, {"alpha": alpha, "beta": beta}, conjugates
