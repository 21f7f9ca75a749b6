"""A product that follows its own prepass begins while the prepass runs, and waits for its arrays."""

from __future__ import annotations

import pytest

import tilewright as tw
from tilewright import dtypes
from tilewright.ir.async_ops import LaunchDependents, PriorGridWait
from tilewright.ops.products import in_halves
from tilewright.ops.splitting import Tiling, splitting_of_both

ARRAYS = [tw.like("f16", (256, 256))] * 3


@tw.kernel(A="M K", B="K N", C="M N")
def behind(A, B, C):
    for m, n in tw.tiles(C):
        tw.hopper.prior_grid_wait()
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]
        C[m, n] = acc


def test_a_flow_says_so_and_is_another_one() -> None:
    flow = behind.flow(*ARRAYS)
    text = tw.ir.print_flow(flow)
    assert flow.waits_for_prior_grid
    assert "\nprior_grid_wait()\n" in text
    assert tw.ir.parse_flow(text) == flow
    other = tw.ir.parse_flow(text.replace("prior_grid_wait()\n", ""))
    assert not other.waits_for_prior_grid
    assert other != flow


@pytest.mark.parametrize(
    ("target", "arch", "waits"),
    [("cuda", "sm_90a", True), ("cuda", "sm_80", False), ("hip", "gfx942", False)],
)
def test_it_waits_first_of_all_where_the_machine_lets_it_begin_early(
    target: str, arch: str, waits: bool
) -> None:
    kernel = behind.trace(*ARRAYS, target=target, arch=arch)
    assert kernel.waits_for_prior_grid == waits
    assert isinstance(kernel.body.ops[0], PriorGridWait) == waits


@pytest.mark.parametrize(("arch", "begins"), [("sm_90a", True), ("sm_80", False)])
def test_what_splits_operands_lets_their_product_begin(arch: str, begins: bool) -> None:
    one = [tw.like("f32", (256, 256)), *[tw.like("f16", (256, 256))] * 2, tw.like("f32", (256,))]
    tilings = (Tiling.of(256, 256, along_rows=False), Tiling.of(256, 256, along_rows=True))
    split = splitting_of_both(0, 0).bind(tilings=tilings, both=True)
    found = split.trace(*one, *one, target="cuda", arch=arch)
    assert any(isinstance(op, LaunchDependents) for op in found.walk()) == begins
    halves = [tw.like("f16", (256, 256))] * 4
    rest = [tw.like("f32", shape) for shape in ((256,), (256,), (256, 256), (256,), (256, 256), (256, 256))]
    product = in_halves(0, dtypes.f32).bind(both=True, terms=frozenset(), activation=None)
    assert product.trace(*halves, *rest, 1.0, 0.0, target="cuda", arch=arch).waits_for_prior_grid == begins
