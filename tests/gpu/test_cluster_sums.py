"""K split among the blocks of a cluster, on a GPU: every form, with the bits of other reductions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.checking.compare import compare_gemm
from tilewright.checking.sample import laid_out, normal
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.gpu_memory import DeviceArray

from .schedules import Form, hopper, product, residual

pytestmark = pytest.mark.gpu

PLAIN = tw.Schedule(tw.atoms.MMA_F16, (64, 128, 32), (2, 2))
RING = replace(PLAIN, stages=3, staging="cp_async")
ONCE = hopper("f16", 128, blocks=0, registers=0)
FEW_ROWS = replace(
    ONCE, atom=tw.atoms.wgmma("f16", 16), tile=(64, 16, 128), groups=1, group_m=0, buffers=1, swap_ab=True
)
OWN = tw.Schedule(tw.atoms.wgmma("f16", 64), (64, 64, 64), stages=3, staging="cp_async")

KINDS: dict[str, tuple[tw.Schedule, int, str, Any]] = {
    "direct": (PLAIN, 2, "f32", product),
    "cp_async": (RING, 3, "f16", product),
    "staged": (replace(RING, epilogue="staged", group_m=4), 4, "f16", residual),
    "wgmma cp_async": (OWN, 5, "f16", product),
    "cooperative": (ONCE, 2, "f16", product),
    "cooperative f32": (ONCE, 3, "f32", product),
    "cooperative residual": (ONCE, 4, "f16", residual),
    "cooperative direct": (replace(ONCE, epilogue="direct"), 8, "f32", residual),
    "few rows": (FEW_ROWS, 8, "f16", product),
}
FORMS = {
    name: Form(
        f"{name} in a cluster",
        replace(schedule, split_k=blocks, reduction="cluster"),
        "f16",
        out,
        kernel,
        ("nn", "nt", "tn") if name != "few rows" else ("nn", "nt"),
    )
    for name, (schedule, blocks, out, kernel) in KINDS.items()
}


@pytest.mark.parametrize("name", FORMS)
def test_every_element_is_right(name: str) -> None:
    form = FORMS[name]
    for layout in form.layouts:
        for seed, shape in enumerate(form.shapes(4, layout)):
            arrays = form.arrays(shape, layout, seed)
            ran, made = form.run(arrays)
            assert ran.target == "cuda"
            form.compare(arrays, made).raise_if_wrong()


@pytest.mark.parametrize("name", FORMS)
def test_the_bits_are_those_of_a_workspace_and_of_every_run(name: str) -> None:
    form = FORMS[name]
    other = replace(form, schedule=replace(form.schedule, reduction="workspace"))
    for seed, shape in enumerate([(300, 272, 4096), (65, 144, 1040)]):
        arrays = form.arrays(shape, "nn", seed)
        wanted = other.run(arrays)[1]["C"].tobytes()
        for _ in range(8):
            ran, made = form.run(arrays)
            assert ran.target == "cuda"
            assert made["C"].tobytes() == wanted


SHAPES = [(1, 4096, 4096), (64, 64, 16384), (512, 512, 8192), (300, 208, 5008)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_product(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    rng = np.random.default_rng(m)
    a, b = normal(rng, (m, k), tw.dtype("bf16")), laid_out(normal(rng, (k, n), tw.dtype("bf16")), "t")
    there = DeviceArray.of(a), DeviceArray.of(b)
    for split_k in (2, 4, 8):
        out: Any = DeviceArray.of(np.full((m, n), np.nan, a.dtype))
        tw.matmul(*there, out, split_k=split_k, reduction="cluster")
        CUDA_DRIVER.synchronize()
        compare_gemm(a, b, out.host()).raise_if_wrong()
