"""Random shapes need few kernels: classes of arrays differ only if that makes kernels faster."""

from __future__ import annotations

import random

import pytest
from tests.eight_lines import product as gemm

import tilewright as tw
from tilewright.runtime.binding import spec_of
from tilewright.runtime.scheduled import Scheduled, TraceRequest
from tilewright.targets.target import TARGETS

SHAPES, LARGEST = 300, 4096
RESULT = {"f8e4m3": "bf16", "i8": "i32"}


@pytest.mark.in_turns(5)
@pytest.mark.parametrize(
    ("target", "arch", "processors", "most"), [("cuda", "sm_90a", 132, 73), ("cpu", "x86-64-v3", 2, 12)]
)
@pytest.mark.parametrize("dtype", ["f32", "f16", "f8e4m3", "i8"])
def test_random_shapes(dtype: str, target: str, arch: str, processors: int, most: int) -> None:
    rng = random.Random(dtype)
    scheduled = Scheduled(gemm.program, {}, None)
    seen = set()
    for _ in range(SHAPES):
        m, n, k = (rng.randint(1, LARGEST) for _ in range(3))
        arrays = {"A": tw.like(dtype, m, k), "B": tw.like(dtype, n, k)}
        arrays["C"] = tw.like(RESULT.get(dtype, dtype), m, n)
        specs = {name: spec_of(array.info) for name, array in arrays.items()}
        shapes = {name: array.shape for name, array in arrays.items()}
        made = scheduled.explicit(TraceRequest(specs, TARGETS[target].architecture(arch), shapes, processors))
        seen.add((made.schedule, *made.specs.items()))
    assert 2 <= len(seen) <= most
