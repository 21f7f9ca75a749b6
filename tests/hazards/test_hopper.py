"""The persistent GEMM with roles is right and without findings on the reference, at every awkward size."""

from __future__ import annotations

import runpy
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.checking.compare import Accumulation, compare_gemm
from tilewright.ir import verify
from tilewright.targets.reference import Kind, run

from .hopper import EXAMPLE, PATH, constants, operands, trace

pytestmark = pytest.mark.in_turns(3)

SIZES = {
    "one tile": (128, 64, 64),
    "nothing to sum": (136, 70, 0),
    "one ragged K tile": (130, 72, 8),
    "odd extents": (133, 67, 131),
    "several tiles of each block, 2 * stages + 1 K tiles": (300, 136, 6 * 64 + 24),
    "more blocks than tiles": (64, 64, 200),
}


def checked(shape, **changes):
    arrays, chosen = operands(*shape, changes.get("element", "bf16")), constants(**changes)
    kernel = trace(arrays, **chosen)
    assert not verify.violations(kernel)
    report = run(kernel, arrays)
    report.raise_if_any()
    assert report.uncovered == {"C": 0}
    if shape[2]:
        how = Accumulation.of(chosen["mma"].atom)
        compare_gemm(arrays["A"], arrays["B"].T, arrays["C"], how).raise_if_wrong()
    else:
        assert not arrays["C"].astype(float).any()


@pytest.mark.parametrize("shape", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_the_kernel_is_right_and_clean(shape, stages) -> None:
    checked(shape, stages=stages)


@pytest.mark.parametrize(
    "changes",
    [
        {"columns": 128, "buffers": 2},
        {"columns": 192, "buffers": 3, "blocks": 3},
        {"element": "f16", "blocks": 3, "group": 1},
        {"blocks": 1, "group": 8},
    ],
)
def test_other_tiles_blocks_and_types(changes) -> None:
    checked((200, 200, 5 * 64 + 8), **changes)


def test_a_small_problem_is_checked_in_less_than_two_seconds() -> None:
    arrays = operands(264, 136, 7 * 64 + 8)
    kernel = trace(arrays, **constants())
    begin = time.process_time()
    assert run(kernel, arrays).is_clean
    assert time.process_time() - begin < 2


def test_what_is_not_checked_is_computed_all_the_same() -> None:
    arrays = operands(133, 67, 131)
    run(trace(arrays, **constants()), arrays, check=False)
    how = Accumulation.of(tw.atoms.wgmma(tw.bf16, 64))
    compare_gemm(arrays["A"], arrays["B"].T, arrays["C"], how).raise_if_wrong()


def four_loading_warps(folder: Path) -> dict[str, Any]:
    """In this example all warps of the loading warpgroup wait, not only the first one."""
    text = PATH.read_text()
    assert text.count(", tw.role(warps=1):") == 1
    changed = folder / PATH.name
    changed.write_text(text.replace(", tw.role(warps=1):", ":"))
    return runpy.run_path(str(changed))


@pytest.mark.parametrize("shape", [(128, 64, 64), (300, 136, 6 * 64 + 24)])
@pytest.mark.parametrize("stages", [2, 3])
def test_loading_warps_that_wait_but_never_arrive_are_found(tmp_path, shape, stages) -> None:
    arrays = operands(*shape)
    report = run(trace(arrays, four_loading_warps(tmp_path), **constants(stages=stages)), arrays)
    assert {(finding.kind, finding.tensor) for finding in report.findings} == {(Kind.OVERTAKEN, "empty")}
    assert {finding.access.warp for finding in report.findings} <= {1, 2, 3}


def test_what_an_author_is_told_of_an_unguarded_wait(golden, tmp_path) -> None:
    arrays = operands(300, 136, 6 * 64 + 24)
    report = run(trace(arrays, four_loading_warps(tmp_path), **constants()), arrays, blocks=[(0,)])
    golden(str(report) + "\n", "unguarded_wait.txt")


@pytest.mark.parametrize("shape", [(200, 136, 5 * 64 + 8), (136, 264, 0), (64, 64, 72), (129, 67, 72)])
def test_the_example_is_right_and_clean(shape) -> None:
    bound = EXAMPLE["bind"](tw.bf16, columns=64, stages=2, blocks=3)
    arrays = operands(*shape)
    report = bound.check(*arrays.values())
    report.raise_if_any()
    assert bound(*arrays.values(), target="reference").target == "reference"
    exact = arrays["A"].astype(np.float64) @ arrays["B"].astype(np.float64).T
    np.testing.assert_allclose(arrays["C"].astype(np.float64), exact, rtol=2**-8, atol=1e-4)
