"""`tw.attention` on a GPU: more tiles than multiprocessors, any strides, PyTorch's tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.canaries import Canaries
from tests.ops.attending import Problem
from tests.ops.test_attention import (
    EQUAL,
    FEW,
    PROBLEMS,
    STRIDES,
    check_infinities,
    equal_scores,
    in_parts,
    named,
    poisoned,
    size,
    strided,
    with_infinities,
)
from tests.ops.test_attention import LARGE as LARGE_SCORES
from tests.ops.test_attention_backward import Backward

import tilewright as tw
from tilewright.runtime.gpu_memory import DeviceArray

pytestmark = pytest.mark.gpu

LARGE = [
    Problem((2, 12, 12), (1100, 700), (64, 64), tw.bf16),  # three warpgroups, 144 tiles
    Problem((2, 12, 4), (1100, 700), (128, 128), tw.f16, diagonal=0),
    Problem((1, 24, 3), (1030, 1500), (96, 96), tw.bf16, diagonal=470),
    Problem((1, 20, 5), (900, 400), (192, 192), tw.f16),
    Problem((1, 20, 4), (900, 400), (256, 256), tw.bf16, diagonal=-100),
    Problem((1, 18, 6), (1000, 300), (192, 128), tw.bf16, diagonal=0),
    Problem((1, 3, 1), (5, 5000), (80, 72), tw.f16, scale=-0.1),
    Problem((2, 4, 2), (300, 500), (33, 17), tw.f16, diagonal=11),  # of which bulk copies carry nothing
    Problem((1, 4, 2), (300, 200), (64, 64), tw.f32, diagonal=0),
    Problem((1, 2, 2), (130, 140), (192, 256), tw.f32),
]


@pytest.mark.parametrize("problem", [*PROBLEMS, *LARGE], ids=named)
def test_random_data(problem: Problem) -> None:
    out = DeviceArray.of(poisoned(problem))
    lse = DeviceArray.of(np.full(out.shape[:-1], np.nan, np.float32))
    given = [DeviceArray.of(x) for x in (problem.q, problem.k, problem.v)]
    found = tw.attention(*given, **problem.words, out=out, lse=lse, target="cuda")
    assert found is out
    problem.check(out.host())
    problem.check_lse(lse.host())


DECODED = [
    Problem((1, 8, 2), (1, 20000), (128, 128), tw.bf16),
    Problem((2, 8, 8), (16, 6000), (64, 64), diagonal=5984),
    Problem((1, 6, 2), (4, 9001), (96, 64)),
    Problem((1, 2, 1), (3, 5000), (33, 17), tw.f32, scale=1.5),
]


@pytest.mark.parametrize("problem", DECODED, ids=named)
def test_few_queries(problem: Problem) -> None:
    """Blocks share the keys, and repeated calls give the same bits."""
    given = [DeviceArray.of(x) for x in (problem.q, problem.k, problem.v)]
    found = []
    for _ in range(3):
        out = DeviceArray.of(poisoned(problem))
        lse = DeviceArray.of(np.full(out.shape[:-1], np.nan, np.float32))
        tw.attention(*given, **problem.words, out=out, lse=lse, target="cuda")
        found.append((out.host().tobytes(), lse.host().tobytes()))
    problem.check(out.host())
    problem.check_lse(lse.host())
    assert len(set(found)) == 1


@pytest.mark.parametrize("parts", [3, 14, "auto"])
@pytest.mark.parametrize("problem", FEW, ids=named)
def test_parts_of_the_keys(problem: Problem, parts: int | str) -> None:
    in_parts(problem, parts, "cuda", DeviceArray.of)


@pytest.mark.parametrize("how", STRIDES)
def test_any_strides(how: str) -> None:
    problem = Problem((2, 4, 2), (200, 150), (64, 48), diagonal=3)
    problem.q, problem.k, problem.v = (strided(x, how) for x in (problem.q, problem.k, problem.v))
    out = DeviceArray.of(poisoned(problem) if how == "one for all" else strided(poisoned(problem), how))
    given = [DeviceArray.of(x) for x in (problem.q, problem.k, problem.v)]
    tw.attention(*given, **problem.words, out=out, target="cuda")
    problem.check(out.host())


def test_it_is_the_same_each_time() -> None:
    """The order of sums does not depend on which block is first."""
    problem = Problem((2, 12, 4), (1100, 700), (128, 128), diagonal=0)
    given = [DeviceArray.of(x) for x in (problem.q, problem.k, problem.v)]
    results = []
    for _ in range(20):
        out = DeviceArray.of(poisoned(problem))
        tw.attention(*given, **problem.words, out=out, target="cuda")
        results.append(out.host())
    problem.check(results[0])
    assert all(np.array_equal(results[0], other) for other in results[1:])


GRADIENTS: list[tuple[Any, ...]] = [
    ((2, 12, 12), (1100, 700), (64, 64), tw.bf16, {}),
    ((2, 12, 4), (1100, 701), (64, 64), tw.f16, {"causal": True, "diagonal": -100}),
    ((2, 12, 4), (1101, 700), (128, 128), tw.f16, {"causal": True}),
    ((1, 24, 3), (1030, 1500), (96, 80), tw.bf16, {"causal": True, "diagonal": 470, "window": 600}),
    ((2, 12, 12), (700, 900), (128, 128), tw.bf16, {"soft_cap": 4.0}),
    ((1, 24, 24), (600, 700), (192, 128), tw.f16, {}),
]


@pytest.mark.parametrize("how", GRADIENTS, ids=str)
def test_gradients_of_many_tiles(how: tuple[Any, ...]) -> None:
    """Bulk copies can store the rows; the bits are the same each time, and nothing else is written."""
    problem = Backward(*how)
    given = {name: DeviceArray.of(one) for name, one in problem.arrays.items()}
    found = []
    for _ in range(3):
        held = {
            name: DeviceArray.of(np.full(problem.arrays[name[1:]].shape, np.nan, problem.element.numpy))
            for name in ("dq", "dk", "dv")
        }
        tw.attention_backward(**given, **held, **problem.words, target="cuda")
        found.append({name: one.host() for name, one in held.items()})
    assert problem.wrong(found[0]) == []
    assert all((found[0][name] == other[name]).all() for other in found[1:] for name in found[0])


@pytest.mark.parametrize("causal", [False, True])
def test_torch_tensors(causal: bool, canaries: Canaries) -> None:
    """Heads are inside of rows, as projections write them; PyTorch computes in f32."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 300, h, 64, device="cuda").half().transpose(1, 2) for h in (8, 2, 2))
    out = canaries.torch(np.full((2, 8, 300, 64), np.nan, np.float16))
    assert tw.attention(q, k, v, causal=causal, out=out) is out
    wide = [x.float() for x in (q, k.repeat_interleave(4, 1), v.repeat_interleave(4, 1))]
    wanted = torch.nn.functional.scaled_dot_product_attention(*wide, is_causal=causal)
    assert out.dtype == torch.float16
    assert float((out.float() - wanted).abs().max()) < 4e-3


def both(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """Return the result and the logarithms."""
    out = DeviceArray.of(poisoned(problem))
    lse = DeviceArray.of(np.full(out.shape[:-1], np.nan, np.float32))
    given = [DeviceArray.of(x) for x in (problem.q, problem.k, problem.v)]
    tw.attention(*given, **problem.words, out=out, lse=lse, target="cuda")
    return out.host(), lse.host()


@pytest.mark.parametrize("problem", LARGE_SCORES, ids=size)
def test_scores_of_any_size(problem: Problem) -> None:
    """The largest score of a row has weight 1, and equal scores have equal weights, at any size."""
    out, lse = both(problem)
    problem.check(out)
    problem.check_lse(lse)


@pytest.mark.parametrize(("element", "number", "depth"), EQUAL, ids=str)
def test_equal_scores(element: tw.DType, number: float, depth: int) -> None:
    problem = equal_scores(element, number, depth)
    out, lse = both(problem)
    problem.check(out)
    problem.whole = False
    problem.check_lse(lse)


@pytest.mark.parametrize("element", [tw.f16, tw.f32], ids=str)
def test_infinite_scores(element: tw.DType) -> None:
    problem = with_infinities(element)
    check_infinities(problem, *both(problem))
