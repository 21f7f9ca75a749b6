"""Elements beyond an array's edge are found in asynchronous multiplies that use them."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.targets.test_hopper_attention import case

import tilewright as tw
from tilewright.targets.reference.findings import Finding, Kind

EXAMPLE = Path(__file__).parents[2] / "examples" / "10_hopper_attention.py"
MASK = "scores.assign(tw.where(there, scores, -math.inf))"


def findings(bound: Any, keys: int) -> list[Finding]:
    """Return the findings in attention of 100 queries; the last tile lacks 28."""
    one = case((1, 1, 100, keys, 64))
    kernel = bound(one.element, 64, causal=False, keys=64, groups=2)
    return list(kernel.check(one.q, one.k, one.v, one.o, one.scale, 0).findings)


@pytest.fixture(scope="module")
def unmasked(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Attention without a mask counts the keys beyond the edge, with scores of 0."""
    text = EXAMPLE.read_text().replace(
        'Path(__file__).with_name("09', f'Path({str(EXAMPLE)!r}).with_name("09'
    )
    assert text.count(MASK) == 1
    file = tmp_path_factory.mktemp("unmasked") / EXAMPLE.name
    file.write_text(text.replace(MASK, "scores.assign(scores + 0.0)"))
    return runpy.run_path(str(file))["bound"]


def test_a_softmax_over_keys_beyond_the_edge_is_found(unmasked: Any) -> None:
    found = findings(unmasked, 94)
    assert found
    assert {finding.kind for finding in found} == {Kind.EDGE}
    assert "beyond the edge of an array" in str(found[0])
    assert "tw.reduce_max(scores, 1)" in str(found[0])


def test_a_softmax_over_whole_tiles_has_no_edge(unmasked: Any) -> None:
    assert findings(unmasked, 128) == []


def test_a_softmax_over_masked_keys_is_clean() -> None:
    assert findings(runpy.run_path(str(EXAMPLE))["bound"], 94) == []


@tw.kernel(A="M K", B="N K", C="M N")
def products(A, B, C, *, other, in_registers):
    """One warpgroup computes ``C = A @ B.T`` of 64x64 each; operands are ``other`` beyond the edge."""
    mma = tw.TiledMma(tw.atoms.wgmma(A.dtype, 64))
    held = [tw.shared((64, 64), A.dtype, swizzle=128) for _ in range(2)]
    for given, place in zip((A, B), held, strict=True):
        part = tw.load(given.tile((64, 64), (0, 0)).partition((16, 8)), other=other)
        tw.copy(part, place.partition((16, 8)))
    sums = tw.accumulator(mma)
    left = tw.fragment(tw.operand_a(mma, 64), A.dtype)
    tw.copy(A.tile((64, 64), (0, 0)), left, other=other)
    tw.hopper.fence_async()
    tw.barrier()
    tw.hopper.mma_fence()
    tw.hopper.mma_async(left if in_registers else held[0], held[1], sums)
    tw.hopper.mma_commit()
    tw.hopper.mma_wait(0)
    tw.copy(sums, C.tile((64, 64), (0, 0)))


@pytest.mark.parametrize("in_registers", [False, True])
@pytest.mark.parametrize(("other", "depth"), [(1, 50), (0, 50), (1, 64)])
def test_products_beyond_the_edge_of_k_are_found(other: int, depth: int, in_registers: bool) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((rows, depth)).astype(np.float16) for rows in (60, 40))
    kernel = products.bind(other=other, in_registers=in_registers)
    report = kernel.check(a, b, np.zeros((60, 40), np.float32))
    assert {finding.kind for finding in report.findings} == ({Kind.EDGE} if other and depth < 64 else set())
