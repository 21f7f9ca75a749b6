"""Default configurations are legal for every shape: tiles of whole atoms, kernels without a broken rule."""

from __future__ import annotations

import random

import pytest

import tilewright as tw
from tilewright.ir import verify
from tilewright.lang.specs import TensorSpec
from tilewright.ops.config import SUPPORTED, Config, default_config
from tilewright.ops.gemm import bind, output_dtype
from tilewright.targets import cpu, cuda

LEGAL = {
    "cpu": lambda kernel: cpu.violations(kernel, "x86-64-v3"),
    "cuda": lambda kernel: [*cuda.violations(kernel, "sm_80"), *cuda.violations(kernel, "sm_90a")],
    "reference": lambda kernel: [],
}


def shapes(count: int) -> list[tuple[int, int, int]]:
    drawn = random.Random(0)

    def extent() -> int:
        return drawn.randint(1, drawn.choice((8, 64, 300, 4096)))

    return [(extent(), extent(), extent()) for _ in range(count)]


def is_of_whole_atoms(config: Config) -> bool:
    m, n, k = config.mma.tile
    return config.tile[:2] == (m, n) and config.tile[2] % k == 0


@pytest.mark.parametrize("target", LEGAL)
@pytest.mark.parametrize(("name", "math"), [*((name, "exact") for name in SUPPORTED), ("f32", "tf32")])
def test_2000_shapes_have_legal_configurations(target: str, name: str, math: str) -> None:
    dtype = tw.dtype(name)
    chosen = {shape: default_config(target, dtype, shape, math) for shape in shapes(2000)}
    wrong = {shape: config for shape, config in chosen.items() if not is_of_whole_atoms(config)}
    assert not wrong, f"{len(wrong)} of {len(chosen)}, e.g. {next(iter(wrong.items()))}"
    operand, sums = (
        TensorSpec(kind, 2, 1, (1, 1), (1, 1), 16, False) for kind in (dtype, output_dtype(dtype))
    )
    distinct = sorted(set(chosen.values()), key=str)
    for config in random.Random(1).sample(distinct, min(len(distinct), 4)):
        kernel = bind(config).trace(operand, operand, sums)
        assert [*verify.violations(kernel), *LEGAL[target](kernel)] == []
