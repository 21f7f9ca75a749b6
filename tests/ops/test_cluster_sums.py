"""`matmul` with K split among the blocks of a cluster."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.checking.compare import compare_gemm
from tilewright.ops.products import plain
from tilewright.schedule.choice import split_candidates
from tilewright.schedule.question import Question, Splitting

from .test_products import drawn, nothing_else_written, within

WAYS: dict[str, dict[str, Any]] = {
    "4": {"split_k": 4},
    "auto": {"split_k": "auto"},
    "batch-invariant": {"split_k": 8, "batch_invariant": True},
}


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("way", WAYS)
def test_the_product_is_the_same(way: str) -> None:
    a, b = drawn(1, 37, 1500, dtype=np.float16), drawn(2, 45, 1500, dtype=np.float16).T
    out = within((37, 45), np.float16)
    assert tw.matmul(a, b, out, target="reference", reduction="cluster", **WAYS[way]) is out
    compare_gemm(a, b, out).raise_if_wrong()
    assert nothing_else_written(out)


def test_the_bits_are_those_of_as_many_parts_elsewhere() -> None:
    a, b = drawn(1, 37, 700), drawn(2, 700, 45)
    made = [
        tw.matmul(a, b, split_k=3, reduction=reduction, target="reference")
        for reduction in ("cluster", "workspace")
    ]
    assert made[0].tobytes() == made[1].tobytes()


def question(shape: tuple[int, int, int], asked: Splitting) -> Question:
    m, n, k = shape
    bound = plain(0).bind(precision="exact", schedule=asked)
    arrays = tw.like("bf16", m, k), tw.like("bf16", k, n, order="F"), tw.like("bf16", m, n)
    return bound.question(*arrays, target="cuda", arch="sm_90a")


@pytest.mark.parametrize("shape", [(1, 4096, 4096), (512, 512, 32768)], ids=str)
def test_gpus_have_kernels_for_it(shape: tuple[int, int, int]) -> None:
    for split_k in (4, None):
        first = next(split_candidates(question(shape, Splitting(split_k, "cluster"))))
        assert first.schedule.reduction == "cluster"
        assert first.schedule.split_k in ((2, 4, 8) if split_k is None else (4,))
        assert (first.schedule.atom.instruction, first.schedule.staging) == ("wgmma", "tma")


def test_it_is_proposed_where_nothing_else_is_asked_for_and_not_where_a_workspace_is() -> None:
    shape = (512, 512, 8192)
    found = [one.schedule.reduction for one in split_candidates(question(shape, Splitting("auto")))]
    assert {*found} == {"workspace", "reduce-scatter", "cluster"}
    named = split_candidates(question(shape, Splitting("auto", "workspace")))
    assert {one.schedule.reduction for one in named} == {"workspace"}


def test_such_a_kernel_compiles() -> None:
    bound = plain(0).bind(precision="exact", schedule=Splitting(4, "cluster"))
    arrays = tw.like("bf16", 512, 8192), tw.like("bf16", 8192, 512, order="F"), tw.like("bf16", 512, 512)
    made = bound.compile(*arrays, target="cuda", arch="sm_90a")
    assert not made.resources["spill_store_bytes"]


@pytest.mark.parametrize("asked", [{"split_k": 4}, {"split_k": "stream"}])
def test_where_there_are_no_clusters_another_way_is_named(asked: dict[str, Any]) -> None:
    a = drawn(1, 32, 32)
    with pytest.raises(tw.LaunchError) as refused:
        tw.matmul(a, a, target="cpu", reduction="cluster", **asked)
    assert 'nearest legal choice: reduction="workspace"' in str(refused.value)
