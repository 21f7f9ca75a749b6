"""Reductions into global memory in CUDA text: the right instructions, and all of them compile."""

from __future__ import annotations

import re

import pytest
from tests.targets.reductions import over_rows

import tilewright as tw
from tilewright.ir.copies import REDUCTIONS
from tilewright.runtime.nvrtc import compile_text
from tilewright.targets import cuda

ARRAYS = ("f64", "f32", "f16", "i64", "u64", "i32", "u32")


@tw.kernel(X="N", A="N", B="N", C="N", D="N", E="N", F="N", G="N")
def every_reduction(X, A, B, C, D, E, F, G):
    x = tw.load(X.tile((64,), (0,)).partition((8,)))
    for kind, names in REDUCTIONS.items():
        for array in (A, B, C, D, E, F, G):
            if array.dtype.name in names:
                tw.copy(x.to(array.dtype), array.tile((64,), (0,)), reduction=kind)
                tw.copy(x.to(array.dtype), array.tile((64,), (0,)), vector=1, reduction=kind)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_every_reduction_compiles(arch) -> None:
    kernel = every_reduction.trace(*(tw.like(name, 64) for name in ("f32", *ARRAYS)))
    listing = cuda.emit(kernel, arch)
    used = set(re.findall(r"\breduce_\w+(?=\()", listing.text))
    assert used >= {f"reduce_{kind}_i32" for kind in REDUCTIONS}
    assert ("reduce_add_f32x4" in used) == (arch == "sm_90a")
    assert compile_text(listing.text, arch).cubin


@pytest.mark.parametrize(
    ("name", "arch", "called"),
    [
        ("f32", "sm_80", "reduce_add_f32"),
        ("f32", "sm_90a", "reduce_add_f32x4"),
        ("f16", "sm_80", "reduce_add_f16x2"),
        ("f16", "sm_90a", "reduce_add_f16x8"),
        ("i64", "sm_90a", "reduce_add_i64"),
        ("bf16", "sm_90a", "reduce_add_bf16x8"),
    ],
)
def test_the_widest_instruction_of_the_architecture_is_taken(name, arch, called) -> None:
    kernel = over_rows.bind(kind="add").trace(tw.like(name, 64, 64), tw.like(name, 16, 64))
    assert f" {called}(" in cuda.emit(kernel, arch).text


@pytest.mark.parametrize("vector", [None, 1, 2, 4])
def test_sums_of_bf16_compile_where_there_are_any(vector) -> None:
    kernel = over_rows.bind(kind="add", vector=vector).trace(tw.like("bf16", 64, 64), tw.like("bf16", 16, 64))
    assert compile_text(cuda.emit(kernel, "sm_90a").text, "sm_90a").cubin
    (refused,) = cuda.violations(kernel, "sm_80")
    assert refused.message == "sm_80 has no 'add' of bf16 in memory"
    assert refused.nearest == "a target of f32"
