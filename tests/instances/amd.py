"""The tuned instance on gfx1151: A in fp16, B in fp8, a scale for each column and a bias, in one kernel."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import tilewright as tw
from tilewright.instances.gemms import bound_to
from tilewright.ops.products import scaled
from tilewright.runtime.executable import Executable
from tilewright.runtime.hip import listing_together

from .seeds import SEED

ARCH = "gfx1151"
INSTANCES = {name: replace(SEED, gemm_specialization=name) for name in ("Default", "MNKPadding")}
"""The two specializations, which are two kernels of one code object."""

ROWS = tw.TensorSpec(tw.f16, 2, 1, (1, 16), (16, 1), 16, False)
WEIGHTS = replace(ROWS, dtype=tw.f8e4m3)
VECTOR = tw.TensorSpec(tw.f32, 1, 0, (1,), (1,), 16, False)
SPECS = {"A": ROWS, "B": WEIGHTS, "scale_a": VECTOR, "scale_b": VECTOR, "bias": VECTOR, "D": ROWS}
"""Row-major matrices, each row at a multiple of 16 bytes."""


TERMS: dict[str, Any] = {"multiplied": tw.f16, "terms": frozenset({"scale_b", "bias"}), "activation": None}
"""A scale for each column, and a bias."""


def bound(name: str = "Default", **changes: Any) -> Any:
    """Return the kernel of a specialization with a changed schedule."""
    made = bound_to(INSTANCES[name], scaled(0), ARCH, tw.f8e4m3, **TERMS)
    if not changes:
        return made
    assert isinstance(made.schedule, tw.Schedule)
    return scaled(0).bind(**TERMS, schedule=replace(made.schedule, **changes))


@functools.cache
def compiled(name: str) -> Executable:
    """Return a compiled specialization."""
    made: Executable = bound(name).compile(**SPECS, target="hip", arch=ARCH)
    return made


@functools.cache
def both() -> str:
    """Return the listing of both specializations."""
    return listing_together([compiled(name) for name in INSTANCES])
