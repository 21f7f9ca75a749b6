"""Asynchronous MMA with A from registers: its text and its meaning; tests/gpu runs the same kernel."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.checking.compare import Accumulation, compare_gemm
from tilewright.ir import async_ops, ops, verify
from tilewright.passes.rewrite import rewrite_kernel
from tilewright.runtime.nvrtc import FATAL, compile_text
from tilewright.targets import cuda
from tilewright.targets.reference import Kind, run

register_gemm = runpy.run_path(str(Path(__file__).parent / "registers.py"))["register_gemm"]

TILES = {
    "one warpgroup": {},
    "two along M": {"warps": (2, 1)},
    "two along N": {"warps": (1, 2)},
    "two repeats": {"repeats": (2, 1)},
}


def bound(dtype=tw.bf16, columns=64, through="global", **tile):
    return register_gemm.bind(mma=tw.TiledMma(tw.atoms.wgmma(dtype, columns), **tile), through=through)


def operands(dtype, m=150, n=136, k=152):
    """Return operands with ragged M, N and K, in rows of a multiple of 16 bytes."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(dtype.numpy) for shape in ((m, k), (n, k)))
    return {"A": a, "B": b, "C": np.full((m, n), np.nan, dtype.numpy)}


def trace(dtype, columns, through, **tile):
    spec = tw.TensorSpec(dtype, 2, 1, (8, 8), (8, 1), 16, False)
    return bound(dtype, columns, through, **tile).trace(spec, spec, spec)


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("through", ["global", "shared"])
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize(("dtype", "columns"), [(tw.bf16, 32), (tw.f16, 128)], ids=str)
def test_it_is_right_and_clean_on_the_reference(dtype, columns, tile, through) -> None:
    kernel, arrays = bound(dtype, columns, through, **TILES[tile]), operands(dtype)
    traced = kernel.trace(*arrays.values())
    report = run(traced, arrays)
    report.raise_if_any()
    assert report.uncovered == {"C": 0}
    how = Accumulation.of(kernel.constants["mma"].atom)
    compare_gemm(arrays["A"], arrays["B"].T, arrays["C"], how).raise_if_wrong()


@pytest.mark.parametrize("through", ["global", "shared"])
@pytest.mark.parametrize(
    ("dtype", "columns", "tile"),
    [(tw.f16, 16, "one warpgroup"), (tw.f16, 256, "two along M"), (tw.bf16, 128, "two repeats")],
    ids=str,
)
def test_it_compiles_without_spills_or_warnings(dtype, columns, tile, through) -> None:
    kernel = trace(dtype, columns, through, **TILES[tile])
    assert [str(v) for v in (*verify.violations(kernel), *cuda.violations(kernel, "sm_90a"))] == []
    binary = compile_text(cuda.emit(kernel, "sm_90a").text, "sm_90a")
    assert binary.resources["spill_store_bytes"] == binary.resources["stack_bytes"] == 0
    assert not any(code in binary.log for code in FATAL)


@pytest.mark.parametrize("through", ["global", "shared"])
def test_golden(golden, through) -> None:
    text = cuda.emit(trace(tw.bf16, 64, through), "sm_90a").text
    golden(text[text.index('extern "C"') :], f"register_gemm_{through}.cu")


def changed(visit) -> set[tuple[Kind, str]]:
    """Return the findings in a changed kernel."""
    arrays = operands(tw.bf16)
    report = run(rewrite_kernel(bound().trace(*arrays.values()), visit), arrays, blocks=[(0, 0)])
    return {(finding.kind, finding.tensor) for finding in report.findings}


def test_a_missing_fence_is_found() -> None:
    def without(op, rewriter):
        return () if isinstance(op, async_ops.MmaFence) else None

    assert changed(without) >= {(Kind.UNFENCED, "a"), (Kind.UNFENCED, "acc")}


def test_registers_that_are_written_while_they_multiply_are_found() -> None:
    def zeroed(op, rewriter):
        if isinstance(op, async_ops.MmaAsync):
            return (op, ops.Fill(op.a, 0, location=op.location))
        return None

    assert (Kind.IN_FLIGHT, "a") in changed(zeroed)


def test_a_wait_for_one_group_too_few_is_found() -> None:
    def early(op, rewriter):
        return (replace(op, pending=1),) if isinstance(op, async_ops.MmaWait) else None

    assert (Kind.IN_FLIGHT, "acc") in changed(early)
