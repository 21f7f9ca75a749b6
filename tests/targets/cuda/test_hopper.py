"""The hand-written Hopper kernel: its text, its resources, and what the architecture refuses."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

import tilewright as tw
from tilewright.ir import verify
from tilewright.runtime.nvrtc import FATAL, compile_text
from tilewright.targets import cuda

EXAMPLE = runpy.run_path(str(Path(__file__).parents[3] / "examples" / "03_hopper_gemm.py"))


def trace(dtype=tw.bf16, columns=256, divisor=256, **choices):
    spec = tw.TensorSpec(dtype, 2, 1, (divisor, divisor), (min(divisor, 16), 1), 16, False)
    return EXAMPLE["bind"](dtype, columns=columns, **choices).trace(spec, spec, spec)


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("dtype", [tw.bf16, tw.f16], ids=str)
@pytest.mark.parametrize("columns", EXAMPLE["STAGES"])
@pytest.mark.parametrize("divisor", [256, 8])
def test_it_compiles_without_spills_or_warnings(dtype, columns, divisor) -> None:
    kernel = trace(dtype, columns, divisor)
    assert [str(v) for v in (*verify.violations(kernel), *cuda.violations(kernel, "sm_90a"))] == []
    binary = compile_text(cuda.emit(kernel, "sm_90a").text, "sm_90a")
    assert binary.resources["spill_store_bytes"] == binary.resources["stack_bytes"] == 0
    assert not any(code in binary.log for code in FATAL)


def test_golden(golden) -> None:
    golden(cuda.emit(trace(), "sm_90a").text, "hopper_gemm_bf16.cu")


def test_printed_and_parsed_it_is_the_same() -> None:
    kernel = trace()
    for each in (kernel, cuda.emit(kernel, "sm_90a").kernel):
        text = tw.ir.print_kernel(each)
        assert tw.ir.print_kernel(tw.ir.parse_kernel(text)) == text


def test_only_maps_reach_the_kernel() -> None:
    lowered = cuda.emit(trace(), "sm_90a").kernel
    assert [tensor_map.name for tensor_map in lowered.tensor_maps] == ["A_map", "B_map", "C_map"]
    assert [param.sym.name for param in lowered.passed] == ["M", "K", "N", "grid"]


@pytest.mark.parametrize("columns", EXAMPLE["STAGES"])
def test_rows_of_c_that_end_within_16_bytes_are_written_from_registers(columns) -> None:
    inputs, output = (tw.TensorSpec(tw.bf16, 2, 1, (1, n), (n, 1), 16, False) for n in (8, 1))
    kernel = EXAMPLE["bind"](tw.bf16, columns=columns).trace(inputs, inputs, output)
    assert [str(v) for v in (*verify.violations(kernel), *cuda.violations(kernel, "sm_90a"))] == []
    listing = cuda.emit(kernel, "sm_90a")
    assert [tensor_map.name for tensor_map in listing.kernel.tensor_maps] == ["A_map", "B_map"]
    binary = compile_text(listing.text, "sm_90a")
    assert binary.resources["spill_store_bytes"] == binary.resources["stack_bytes"] == 0
    assert not any(code in binary.log for code in FATAL)


def test_rows_that_are_no_multiple_of_16_bytes_are_refused() -> None:
    broken = verify.violations(trace(divisor=4))
    assert {violation.rule for violation in broken} == {"tma"}
    assert "not of 16 bytes" in broken[0].message
