"""`tw.attention` on every target, element by element against float64 and against the dataflow kernel."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from tests.far import far, guarded
from tests.turns import calls_on

import tilewright as tw
from tilewright.checking.references import attention_room
from tilewright.ops.attending.choice import AttentionQuestion, chosen
from tilewright.ops.attending.flow import BySoftmax, Scores
from tilewright.ops.attending.flow import attention as flow_of_attention
from tilewright.ops.attending.problem import shares_rows
from tilewright.runtime.arrays import describe
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.frameworks import Strided
from tilewright.runtime.gpu_memory import DeviceArray
from tilewright.targets.target import CUDA
from tilewright.testing import device_get, device_put

from .attending import Problem

pytestmark = pytest.mark.in_turns(3)

PROBLEMS = [
    Problem((1, 2, 2), (70, 90), (64, 64)),
    Problem((2, 4, 2), (33, 130), (64, 64), tw.bf16, diagonal=97),
    Problem((1, 2, 1), (130, 140), (96, 96), tw.bf16, diagonal=-20),
    Problem((1, 2, 1), (20, 40), (192, 192), diagonal=0),
    Problem((1, 1, 1), (70, 90), (256, 256), tw.bf16),
    Problem((1, 3, 1), (5, 33), (40, 136), diagonal=28, scale=-0.2),
    Problem((1, 1, 1), (1, 70), (16, 8), tw.bf16, scale=0.0),
    Problem((2, 6, 2), (1, 70), (32, 16), tw.f16, diagonal=50),  # one row of each head
    Problem((2, 6, 2), (5, 70), (32, 16), tw.bf16),  # few rows of each head, without a mask
]


def named(given: Any) -> str:
    """The name of a case."""
    return given if isinstance(given, str) else f"{given.heads}-{given.rows}-{given.columns}"


def poisoned(problem: Problem) -> Any:
    (b, h, _), (m, _), (_, e) = problem.heads, problem.rows, problem.columns
    return np.full((b, h, m, e), np.nan, problem.element.numpy)


WAYS = [
    *((problem, "reference") for problem in PROBLEMS),
    *((problem, "cpu") for problem in (PROBLEMS[1], PROBLEMS[5])),
]


@pytest.mark.in_turns(4)
@pytest.mark.parametrize(("problem", "target"), WAYS, ids=named)
def test_random_data(problem: Problem, target: str) -> None:
    out = poisoned(problem)
    lse = np.full(out.shape[:-1], np.nan, np.float32)
    found = tw.attention(
        problem.q,
        problem.k,
        problem.v,
        **problem.words,
        out=out,
        lse=lse,
        target=target,
    )
    assert found is out
    problem.check(out)
    problem.check_lse(lse)


def by_warpgroups(problem: Problem, blocks: int = 3) -> tuple[Any, Any]:
    """Return the result and the logarithms of sm_90a's schedule for many rows, on the reference.

    Args:
        problem: the problem; its arrays may have any strides.
        blocks: blocks of the persistent grid.
    """
    (b, h, g), (m, n), (d, e) = problem.heads, problem.rows, problem.columns
    between, exponent = BySoftmax.of(problem.by)
    kernel = flow_of_attention.bind(
        scores=Scores(problem.diagonal is not None), between=between, with_lse=True
    )
    like = [tw.like(problem.element, (8, g, *shape)) for shape in ((h // g, 999, d), (n, d), (n, e))]
    like += [tw.like(problem.element, (8, g, h // g, 999, e)), tw.like("f32", (8, g, h // g, 999))]
    numbers = exponent, problem.diagonal or 0
    known = kernel.schedule_for(*like, *numbers, target="cuda", arch="sm_90a")
    assert isinstance(known, tw.Schedule)
    assert known.staging == "tma"
    out = np.full((b, g, h // g, m, e), np.nan, problem.element.numpy)
    lse = np.full(out.shape[:-1], np.nan, np.float32)
    arrays = problem.q.reshape(b, g, h // g, m, d), problem.k, problem.v, out, lse
    done = flow_of_attention.bind(**kernel.constants, schedule=replace(known, blocks=blocks))(
        *arrays, *numbers, target="reference"
    )
    assert done.target == "reference"
    return out.reshape(b, h, m, e), lse.reshape(b, h, m)


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("problem", PROBLEMS, ids=named)
def test_random_data_by_warpgroups(problem: Problem) -> None:
    out, lse = by_warpgroups(problem)
    problem.check(out)
    problem.check_lse(lse)


@pytest.mark.parametrize("problem", PROBLEMS[:4], ids=named)
def test_the_dataflow_kernel_is_what_it_says(problem: Problem) -> None:
    """The bounds of the kernels rest on the fold, which is right to the rounding of f64."""
    problem = replace(problem, scale=0.125)  # which f32 holds
    found = problem.flow()
    assert np.allclose(found["O"], problem.expected(), rtol=1e-12, atol=1e-12)
    problem.check(found["O"])
    problem.check_lse(found["L"])


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("diagonal", [None, 11])
def test_f32(diagonal: int | None, target: str) -> None:
    problem = Problem((1, 4, 2), (37, 45), (33, 17), tw.f32, diagonal=diagonal)
    out, lse = tw.attention(problem.q, problem.k, problem.v, **problem.words, return_lse=True, target=target)
    problem.check(out)
    problem.check_lse(lse)


@pytest.mark.parametrize("target", ["reference", "cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(("element", "kind"), [(tw.f16, "f32"), (tw.bf16, "f32"), (tw.f32, "bf16")], ids=str)
def test_results_of_another_dtype_are_rounded_to_it(element: tw.DType, kind: str, target: str) -> None:
    """The bound of the docstring holds, with the unit roundoff of the result's dtype for the last step."""
    problem, made = Problem((1, 4, 2), (37, 45), (33, 17), element, diagonal=11), tw.dtype(kind)
    whole = device_put(np.full((1, 4, 37, 25), np.nan, made.numpy), target)
    q, k, v = (device_put(x, target) for x in (problem.q, problem.k, problem.v))
    for _ in calls_on(target):
        tw.attention(q, k, v, **problem.words, out=whole[..., 3:-5], target=target)
    new, lse = tw.attention(q, k, v, **problem.words, out_dtype=kind, return_lse=True, target=target)
    back = device_get(whole)
    assert np.isnan(back[..., :3].astype(np.float32)).all()
    assert np.isnan(back[..., -5:].astype(np.float32)).all()
    k, v = (np.repeat(x, 2, axis=1) for x in (problem.k, problem.v))
    wanted = problem.expected()
    room = attention_room(problem.q, k, v, problem.by, problem.diagonal)
    room += (made.unit_roundoff - element.unit_roundoff) * np.abs(wanted)
    for found in (back[..., 3:-5], device_get(new)):
        assert found.dtype == made.numpy
        assert (np.abs(found.astype(np.float64) - wanted) <= room).all()
    problem.check_lse(device_get(lse))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_text_for_results_of_f32_spills_nothing(arch: str) -> None:
    problem = Problem((1, 4, 2), (256, 256), (64, 64), tw.f16)
    asked = question(problem, arch)
    asked = asked._replace(infos={**asked.infos, "out": replace(asked.infos["out"], dtype=tw.f32)})
    answer = chosen(asked)
    out, lse = np.zeros(problem.q.shape, np.float32), np.zeros((*problem.q.shape[:-1], 1), np.float32)
    given = {"q": problem.q, "k": problem.k, "v": problem.v, "out": out, "lse": lse}
    views = answer.views({name: describe(array) for name, array in given.items()})
    arrays = (Strided(given[name], info) for name, info in views.items())
    ran = answer.kernel.compile(*arrays, *answer.numbers, target="cuda", arch=arch)
    assert ran.target == "cuda"
    assert ran.resources["spill_store_bytes"] == 0


def strided(array: Any, how: str) -> Any:
    """Return the same numbers in an array with other strides."""
    b, h, m, d = array.shape
    if how == "rows before heads":
        return array.swapaxes(1, 2).copy().swapaxes(1, 2)
    if how == "columns first":
        return array.swapaxes(2, 3).copy().swapaxes(2, 3)
    if how == "every other column":
        return np.repeat(array, 2, axis=3)[..., ::2]
    if how == "backwards":
        return array[:, :, ::-1].copy()[:, :, ::-1]
    if how == "padded":
        held = np.zeros((b, h, m + 3, d + 8), array.dtype)
        held[:, :, :m, :d] = array
        return held[:, :, :m, :d]
    return np.broadcast_to(array[:1, :1], array.shape)  # stride 0


STRIDES = ["rows before heads", "columns first", "every other column", "backwards", "padded", "one for all"]


STRIDED = [
    *((how, "reference") for how in STRIDES),
    *((how, "cpu") for how in ("rows before heads", "backwards")),
]


@pytest.mark.in_turns(4)
@pytest.mark.parametrize(("how", "target"), STRIDED)
def test_any_strides(how: str, target: str) -> None:
    problem = Problem((2, 4, 2), (35, 40), (32, 48), diagonal=3)
    problem.q, problem.k, problem.v = (strided(x, how) for x in (problem.q, problem.k, problem.v))
    out = poisoned(problem)
    out = out if how == "one for all" else strided(out, how)
    tw.attention(problem.q, problem.k, problem.v, **problem.words, out=out, target=target)
    problem.check(out)


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("how", ["rows before heads", "padded", "one for all"])
def test_any_strides_of_warpgroups(how: str) -> None:
    problem = Problem((2, 2, 2), (35, 40), (32, 48), diagonal=3)
    problem.q, problem.k, problem.v = (strided(x, how) for x in (problem.q, problem.k, problem.v))
    problem.check(by_warpgroups(problem)[0])


@pytest.mark.parametrize("diagonal", [None, -3, 0, 39, 500])
@pytest.mark.parametrize("how", ["rows before heads", "padded", "one for all"])
def test_one_row_of_each_head(how: str, diagonal: int | None) -> None:
    """Heads that share keys become rows of one head; the mask hides keys."""
    problem = Problem((2, 6, 2), (1, 40), (32, 48), diagonal=diagonal)
    problem.q, problem.k, problem.v = (strided(x, how) for x in (problem.q, problem.k, problem.v))
    found = tw.attention(
        problem.q, problem.k, problem.v, **problem.words, return_lse=True, target="reference"
    )
    problem.check(found[0])
    problem.check_lse(found[1])


@pytest.mark.parametrize("how", ["contiguous", "rows before heads", "padded"])
def test_few_rows_of_heads_that_share_keys(how: str) -> None:
    """They are rows of one head if they have one stride, which rows before heads do not have."""
    problem = Problem((2, 6, 2), (3, 50), (32, 16))
    out = poisoned(problem)
    if how != "contiguous":
        problem.q, out = strided(problem.q, how), strided(out, how)
    infos = {name: describe(array) for name, array in (("q", problem.q), ("k", problem.k), ("out", out))}
    infos["lse"] = replace(infos["out"], shape=(*out.shape[:-1], 1))
    assert shares_rows(infos, None) == (how == "contiguous")
    assert not shares_rows(infos, 47)
    for target in ("reference", "cpu"):
        out[:] = np.nan
        tw.attention(problem.q, problem.k, problem.v, out=out, target=target)
        problem.check(out)


FEW = [
    Problem((1, 2, 1), (1, 700), (64, 64)),
    Problem((1, 2, 2), (16, 333), (40, 24), tw.bf16, diagonal=317),
    Problem((2, 2, 1), (5, 130), (32, 16), scale=-0.2),
    Problem((1, 1, 1), (70, 90), (16, 16), tw.f16, diagonal=-20),  # some rows see no key
    Problem((1, 2, 1), (3, 200), (32, 16), tw.f32, scale=3.0, sizes=(2.0**7, 2.0**7)),
    Problem((1, 1, 1), (9, 300), (16, 24), scale=2.0**-70, sizes=(2.0**8, 2.0**7)),
]


@pytest.mark.parametrize(("parts", "target"), [(3, "reference"), (2, "cpu"), (14, "cpu")])
@pytest.mark.parametrize("problem", FEW, ids=named)
def test_parts_of_the_keys_in_blocks(problem: Problem, parts: int, target: str) -> None:
    """Every part has at least 16 keys; masks leave some parts without keys."""
    in_parts(problem, parts, target)


def in_parts(problem: Problem, parts: int | str, target: str, change: Any = lambda array: array) -> None:
    """Compute a problem by the dataflow kernel in parts, and check every element.

    On CUDA the schedule is that of sm_80: warpgroups, which sm_90a has, split no loops.
    """
    (b, h, g), (m, _), (_, e) = problem.heads, problem.rows, problem.columns
    between, exponent = BySoftmax.of(problem.by)
    constants = {
        "scores": Scores(problem.diagonal is not None),
        "between": replace(between, power=0.0),
        "with_lse": True,
    }
    out = np.full((b, g, h // g, m, e), np.nan, problem.element.numpy)
    lse = np.full(out.shape[:-1], np.nan, np.float32)
    q = problem.q.reshape(b, g, h // g, m, -1)
    arrays = [change(array) for array in (q, problem.k, problem.v, out, lse)]
    numbers = exponent, problem.diagonal or 0
    words = {"arch": "sm_80"} if target == "cuda" else {}
    known = flow_of_attention.bind(**constants).schedule_for(*arrays, *numbers, target=target, **words)
    short = replace(known, tile=(known.tile[0], max(known.atom.shape[1:]), known.tile[2]))
    schedule = replace(short, split_k=parts, blocks=40 if parts == "auto" else 0)
    done = flow_of_attention.bind(**constants, schedule=schedule)(*arrays, *numbers, target=target)
    assert done.target == target
    if target == "cuda":
        out, lse = (array.host() for array in arrays[3:])
    problem.check(out.reshape(b, h, m, e))
    problem.check_lse(lse.reshape(b, h, m))


@pytest.mark.parametrize("element", [tw.f32, tw.f16, tw.bf16], ids=str)
def test_processors_read_keys_and_values_of_few_queries_in_place(element: tw.DType) -> None:
    """Pages before and after both are not accessible; any number of keys and columns, any mask."""
    rng = np.random.default_rng(element.bits)
    for draw in range(4):
        m, n = int(rng.integers(1, 9)), int(rng.choice([1, 256, 257, 768, int(rng.integers(1, 700))]))
        d, e = int(rng.choice([16, 64, 100, 131])), int(rng.integers(1, 80))
        diagonal = None if draw % 2 else int(rng.integers(0, n))
        problem = Problem((1, 2, 1), (m, n), (d, e), element, diagonal=diagonal, seed=draw)
        for name in "kv":
            values = getattr(problem, name)
            step, kind = values.shape[-1] + int(rng.choice([0, 1, 7])), np.dtype(element.numpy)
            placed = guarded(values.shape[2:], kind, row_step=step, at_end=bool(rng.random() < 0.7))
            placed[...] = values[0, 0]
            setattr(problem, name, placed[None, None])
        q = problem.q.reshape(1, 1, 2, m, d)
        out = np.full((1, 1, 2, m, e), np.nan, element.numpy)
        lse = np.full(out.shape[:-1], np.nan, np.float32)
        between, exponent = BySoftmax.of(problem.by)
        scores = Scores(problem.diagonal is not None)
        bound = flow_of_attention.bind(scores=scores, between=replace(between, power=0.0), with_lse=True)
        done = bound(q, problem.k, problem.v, out, lse, exponent, problem.diagonal or 0, target="cpu")
        assert done.target == "cpu"
        assert done.listing is not None
        assert n == 1 or "multiply_dots" in done.listing.text
        assert m > 4 or "multiply_along_columns" in done.listing.text
        problem.check(out.reshape(1, 2, m, e))
        problem.check_lse(lse.reshape(1, 2, m))


@pytest.mark.parametrize(("element", "heads"), [(tw.f32, 1), (tw.f32, 4), (tw.f16, 2), (tw.bf16, 4)], ids=str)
def test_processors_read_large_arrays_in_the_order_of_their_addresses(element: tw.DType, heads: int) -> None:
    """Batches are gigabytes apart, so that the text takes arrays for large ones."""
    problem = Problem((2, heads, 1), (1, 300), (64, 72), element)
    for name in "kv":
        values = getattr(problem, name)
        placed = far(values.shape, element)
        placed[...] = values
        setattr(problem, name, placed)
    out = np.full((2, 1, 1, heads, 72), np.nan, element.numpy)
    between, exponent = BySoftmax.of(problem.by)
    bound = flow_of_attention.bind(scores=Scores(False), between=between, with_lse=False)
    q = problem.q.reshape(2, 1, 1, heads, 64)
    done = bound(q, problem.k, problem.v, out, out[..., 0], exponent, 0, target="cpu")
    assert done.target == "cpu"
    assert done.listing is not None
    assert "in_order" in done.listing.text
    problem.check(out.reshape(2, heads, 1, 72))


@pytest.mark.parametrize("rows", [1, 3, 8, 9])
def test_a_tile_of_few_queries_has_no_rows_that_only_fill_it(rows: int) -> None:
    problem = Problem((1, 8, 2), (rows, 1000), (64, 64), tw.f32)
    q, out = problem.q.reshape(1, 2, 4, rows, -1), np.empty((1, 2, 4, rows, 64), np.float32)
    between, exponent = BySoftmax.of(problem.by)
    bound = flow_of_attention.bind(scores=Scores(False), between=replace(between, power=0.0), with_lse=True)
    given = (q, problem.k, problem.v, out, out[..., 0].copy(), exponent, 0)
    for arch in ("x86-64-v3", "x86-64-v4"):
        made = bound.schedule_for(*given, target="cpu", arch=arch)
        assert (made.atom.instruction == "dots") == (rows <= 8)
        assert rows > 8 or made.tile[0] == {1: 1, 3: 4, 8: 8}[rows]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_few_queries_have_parts_of_the_keys(arch: str) -> None:
    """One kernel serves all numbers of keys; with few keys or many queries, a block takes a whole head."""
    many = [Problem((1, 8, 2), (1, keys), (64, 64)) for keys in (5000, 9000)]
    answers = [chosen(question(problem, arch)) for problem in many]
    assert all(isinstance(one.kernel.constants["between"], BySoftmax) for one in answers)
    assert all(one.kernel.constants["between"].power == 0 for one in answers)
    schedules = set()
    for problem, answer in zip(many, answers, strict=True):
        q, out = problem.q[:, :, None], poisoned(problem)[:, :, None]
        lse = out[..., 0].astype(np.float32)
        arrays = (q[:, :2], problem.k, problem.v, out[:, :2], lse[:, :2])
        schedules.add(repr(answer.kernel.schedule_for(*arrays, *answer.numbers, target="cuda", arch=arch)))
        made = answer.kernel.compile(*arrays, *answer.numbers, target="cuda", arch=arch)
        assert made.resources["spill_store_bytes"] == 0
    assert len(schedules) == 1
    assert 'split_k="auto"' in schedules.pop()
    batches = chosen(question(Problem((8, 8, 8), (1, 5000), (64, 64)), arch))  # 64 heads for 132 processors
    assert batches.kernel.constants["between"].power == 0
    for rows, keys in ((1, 100), (1500, 5000)):
        answer = chosen(question(Problem((1, 8, 2), (rows, keys), (64, 64)), arch))
        assert answer.kernel.constants["between"].power > 0


def test_heads_and_batches_may_be_left_out() -> None:
    problem = Problem((1, 1, 1), (9, 20), (16, 24))
    out, lse = tw.attention(*(x[0, 0] for x in (problem.q, problem.k, problem.v)), return_lse=True)
    assert (out.shape, lse.shape) == ((9, 24), (9,))
    problem.check(out[None, None])
    out = tw.attention(problem.q[0], problem.k[0], problem.v[0])
    problem.check(out[None])


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_nothing_to_attend_to(target: str) -> None:
    """Without keys a row is 0 and its logarithm -inf; without rows nothing is written."""
    q, none = np.ones((2, 5, 16), np.float16), np.ones((1, 0, 16), np.float16)
    out, lse = tw.attention(q, none, none, return_lse=True, target=target)
    assert (out == 0).all()
    assert (lse == -np.inf).all()
    rows = tw.attention(q[:, :0], q, q, target=target)
    assert rows.shape == (2, 0, 16)


def test_parts_of_the_keys_are_combined() -> None:
    """`lse` combines attention to two parts of the keys into attention to all keys."""
    problem = Problem((1, 2, 2), (30, 100), (32, 32), tw.f32)
    parts = [
        tw.attention(problem.q, problem.k[:, :, keys], problem.v[:, :, keys], return_lse=True)
        for keys in (slice(0, 37), slice(37, 100))
    ]
    weights = [np.exp(lse.astype(np.float64)) for _, lse in parts]
    total = sum(weights)
    mixed = sum((w / total)[..., None] * out for w, (out, _) in zip(weights, parts, strict=True))
    assert np.allclose(mixed, problem.expected(), rtol=1e-4, atol=1e-5)


def test_known_calls() -> None:
    """A known call is launched on other arrays, allocates missing results, and checks for overlaps."""
    first, second = (Problem((1, 2, 1), (20, 30), (16, 16), diagonal=4, seed=seed) for seed in (1, 2))
    for problem in (first, second, first):
        out, lse = tw.attention(problem.q, problem.k, problem.v, **problem.words, return_lse=True)
        problem.check(out)
        problem.check_lse(lse)
        held = poisoned(problem)
        assert tw.attention(problem.q, problem.k, problem.v, **problem.words, out=held) is held
        problem.check(held)
    both = np.zeros((2, 1, 2, 20, 16), np.float16)
    q = both[0]
    q[...] = first.q
    tw.attention(q, first.k, first.v, **first.words, out=both[1])
    first.check(both[1])
    with pytest.raises(tw.LaunchError, match="out and q share memory"):
        tw.attention(q, first.k, first.v, **first.words, out=q)


# ---------------------------------------------------------------- scores of any size

SIZES = [0, 10, 20, 23, 24, 25, 28, 31, 32, 40, 60]
"""Binary logarithms of the scores' factor."""


def of_size(power: int, *, element: tw.DType = tw.f32, whole: bool = False, **words: Any) -> Problem:
    """Return a problem with most scores around ``2**power``."""
    half = power // 2
    sizes = (2.0**half, 2.0 ** (power - half))
    return Problem((1, 2, 1), (37, 45), (64, 24), element, sizes=sizes, whole=whole, **words)


LARGE = [
    *(of_size(power, diagonal=11 if power % 2 else None) for power in SIZES),
    *(of_size(power, whole=True) for power in SIZES),
    *(of_size(power, whole=True, element=tw.bf16, diagonal=3) for power in (24, 33, 60)),
    *(of_size(power, element=tw.f16, diagonal=20) for power in (18, 24)),
    of_size(26, element=tw.f16, whole=True),
    of_size(4, scale=2.0**31),
    of_size(4, scale=-(2.0**31)),
    of_size(3, scale=-(2.0**63), whole=True),
    of_size(100, scale=2.0**-98),
    of_size(100, scale=2.0**-101, whole=True, diagonal=0),
    of_size(110, scale=-(2.0**-108)),
    of_size(116, scale=0.0, diagonal=7),
]


def size(given: Any) -> str:
    """The name of a case."""
    if not isinstance(given, Problem):
        return str(given)
    kind = "whole" if given.whole else "random"
    return f"{given.element}-{kind}-2^{math.log2(math.prod(given.sizes)):g}-{given.diagonal}-{given.scale}"


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("target", ["cpu", "reference"])
@pytest.mark.parametrize("problem", LARGE, ids=size)
def test_scores_of_any_size(problem: Problem, target: str) -> None:
    """The largest score of a row has weight 1, and equal scores have equal weights, at any size."""
    out, lse = tw.attention(problem.q, problem.k, problem.v, **problem.words, target=target, return_lse=True)
    problem.check(out)
    problem.check_lse(lse)


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("problem", [one for one in LARGE if one.element != tw.f32], ids=size)
def test_scores_of_any_size_by_warpgroups(problem: Problem) -> None:
    out, lse = by_warpgroups(problem)
    problem.check(out)
    problem.check_lse(lse)


@pytest.mark.parametrize("problem", [PROBLEMS[0], *LARGE], ids=size)
def test_a_key_that_is_left_out_is_found(problem: Problem) -> None:
    """The bound of every problem is smaller than the effect of a row's largest key."""
    scores = problem.scores()[0, 0]
    key = int(scores[-1].argmax())
    wrong = problem.without(key).expected().astype(problem.element.numpy)
    with pytest.raises(AssertionError, match="elements are wrong"):
        problem.check(wrong)


EQUAL = [
    (tw.f16, 20000.0, 32),
    (tw.f16, 60000.0, 32),
    (tw.bf16, 2.0**60, 64),
    (tw.f32, 3e18, 24),
    (tw.f32, -7.5, 24),
]


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize(("element", "number", "depth"), EQUAL, ids=str)
def test_equal_scores(element: tw.DType, number: float, depth: int, target: str) -> None:
    """All keys weigh the same."""
    problem = equal_scores(element, number, depth)
    out, lse = tw.attention(problem.q, problem.k, problem.v, return_lse=True, target=target)
    problem.check(out)
    problem.whole = False  # the logarithm has the scores' error, the weights have none
    problem.check_lse(lse)


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("scale", [0.69, 0.7, 1.0, 1.1, -1.0])
def test_a_logarithm_that_f32_holds_is_finite(scale: float, target: str) -> None:
    """The scaled score times log2(e) would be infinite."""
    q = np.full((1, 1, 3, 1), 1.7e19, np.float32)
    _, lse = tw.attention(q, q, q, scale=scale, return_lse=True, target=target)
    np.testing.assert_allclose(lse, np.full(lse.shape, scale * 1.7e19**2), rtol=2.0**-21)


def equal_scores(element: tw.DType, number: float, depth: int) -> Problem:
    """Return a problem with equal scores: sums of equal products are equal."""
    problem = Problem((1, 2, 2), (19, 70), (depth, 24), element, whole=True)
    problem.q[...], problem.k[...] = number, abs(number)
    return problem


def with_infinities(element: tw.DType) -> Problem:
    """Return a problem with scores of -inf in rows 0 and 1, +inf in 2 and 3, and -inf for key 5 elsewhere."""
    problem = Problem((1, 1, 1), (21, 33), (16, 24), element)
    q, k = problem.q[0, 0], problem.k[0, 0]
    k[:, :2] = np.abs(k[:, :2]) + 1
    q[0, 0], q[1, :2], q[2, 2] = -np.inf, -np.inf, np.inf
    k[5, 4], q[:, 4], q[3, 4] = np.inf, -np.abs(q[:, 4]) - 1, 1
    return problem


def check_infinities(problem: Problem, out: Any, lse: Any) -> None:
    """Check that rows of -inf are 0, a key of -inf has weight 0, and only rows with +inf are NaN."""
    assert (out[0, 0, :2] == 0).all()
    assert (lse[0, 0, :2] == -np.inf).all()
    assert np.isnan(out[0, 0, 2:4]).all()
    assert np.isnan(lse[0, 0, 2:4]).all()
    finite = problem.without(5)
    finite.rows, finite.q = (problem.rows[0] - 4, problem.rows[1] - 1), problem.q[:, :, 4:]
    finite.check(out[:, :, 4:])
    finite.check_lse(lse[:, :, 4:])


@pytest.mark.parametrize("element", [tw.f16, tw.f32], ids=str)
@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_infinite_scores(target: str, element: tw.DType) -> None:
    problem = with_infinities(element)
    out, lse = tw.attention(problem.q, problem.k, problem.v, return_lse=True, target=target)
    check_infinities(problem, out, lse)


def test_infinite_scores_by_warpgroups() -> None:
    problem = with_infinities(tw.f16)
    check_infinities(problem, *by_warpgroups(problem))


# ---------------------------------------------------------------- arguments

X = np.ones((2, 4, 6, 16), np.float16)
WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "heads": (
        {"k": X[:, :3], "v": X[:, :3]},
        tw.LaunchError,
        "heads of q that is a multiple of the heads of k, as 3",
    ),
    "no heads": (
        {"k": X[:, :0], "v": X[:, :0]},
        tw.LaunchError,
        "k and v with 4 heads, as q has, or a divisor",
    ),
    "no heads beside three dimensions": (
        {"q": X[0], "k": X[0, :0], "v": X[0, :0]},
        tw.LaunchError,
        "k and v with 4 heads, as q has, or a divisor",
    ),
    "no heads of no batch": (
        {"q": X[:0], "k": X[:0, :0], "v": X[:0, :0]},
        tw.LaunchError,
        "k and v with 4 heads, as q has, or a divisor",
    ),
    "batches": ({"k": X[:1], "v": X[:1]}, tw.LaunchError, "k and v with 2 batches"),
    "columns": ({"k": X[..., :8], "v": X}, tw.LaunchError, "k with 16 columns"),
    "values": ({"v": X[:, :, :5]}, tw.LaunchError, r"v with shape \(2, 4, 6, 16\)"),
    "rank": ({"q": X[0]}, tw.LaunchError, r"\(B, H, M, D\), \(B, G, N, D\)"),
    "width": ({"v": np.ones((2, 4, 6, 513), np.float16)}, tw.LaunchError, "v with 512 columns"),
    "mixture": (
        {"k": X.astype(np.float32)},
        tw.DTypeError,
        "q is f16, k is f32, v is f16; nearest .* one dtype",
    ),
    "dtype": ({name: X.astype(np.float64) for name in "qkv"}, tw.DTypeError, "attention of f64; nearest"),
    "dtype of out": ({"out": X.astype(np.float64)}, tw.DTypeError, "out is f64; nearest .* f16, bf16, f32"),
    "out_dtype": ({"out_dtype": "f64"}, tw.DTypeError, "out_dtype is f64; nearest .* f16, bf16, f32"),
    "two dtypes": ({"out": X.copy(), "out_dtype": "f32"}, tw.DTypeError, "out is f16, and out_dtype=f32"),
    "out": ({"out": X[..., :8].copy()}, tw.LaunchError, r"out with shape \(2, 4, 6, 16\)"),
    "overlap": ({"out": X}, tw.LaunchError, "out and [qkv] share memory"),
    "lse": ({"lse": np.ones((2, 4, 5), np.float32)}, tw.LaunchError, r"lse with shape \(2, 4, 6\)"),
    "dtype of lse": ({"lse": np.ones((2, 4, 6))}, tw.DTypeError, "lse is f64; nearest legal choice: f32"),
    "lse is v": ({"lse": X.view(np.float32)[..., 0]}, tw.LaunchError, "lse and [qkv] share memory"),
    "kernel": ({"kernel": "warps"}, TypeError, "has no parameter 'kernel'"),
    "diagonal": ({"diagonal": 2}, tw.LaunchError, "diagonal=2 moves the causal mask, .* causal=True"),
    "scale": ({"scale": float("nan")}, tw.LaunchError, r"scale=nan; .*: None, which is 1 / sqrt\(D\)"),
    "kind": ({"causal": "yes"}, tw.LaunchError, "causal"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_refused(name: str) -> None:
    changed, error, words = WRONG[name]
    given: dict[str, Any] = {"q": X, "k": X, "v": X} | changed
    with pytest.raises(error, match=words):
        tw.attention(given.pop("q"), given.pop("k"), given.pop("v"), **given)


# ---------------------------------------------------------------- which kernel, and what it takes


def question(problem: Problem, arch: str, *, with_lse: bool = True) -> AttentionQuestion:
    arrays = {"q": problem.q, "k": problem.k, "v": problem.v, "out": poisoned(problem)}
    infos = {name: describe(array) for name, array in arrays.items()}
    return AttentionQuestion(infos, CUDA.architecture(arch), 132, problem.by, problem.diagonal, with_lse)


def test_which_schedule_serves() -> None:
    """The schedule uses bulk copies and warpgroups if the machine, the dtype and the strides allow them."""
    problem, odd = Problem((1, 2, 2), (6000, 320), (64, 64)), Problem((1, 2, 2), (6000, 320), (20, 20))
    by_column, by_row = replace(problem), replace(problem)
    by_column.k = strided(problem.k, "columns first")
    by_row.q = strided(problem.q, "columns first")
    for case, arch, staging in (
        (problem, "sm_90a", "tma"),
        (by_column, "sm_90a", "tma"),
        (by_row, "sm_90a", "cp_async"),
        (problem, "sm_80", "cp_async"),
        (odd, "sm_90a", "cp_async"),  # rows that begin nowhere near 16 bytes
        (replace(problem, element=tw.f32), "sm_90a", "cp_async"),
    ):
        answer = chosen(question(case, arch))
        out, lse = poisoned(case), np.zeros((*case.q.shape[:-1], 1), np.float32)
        given = {"q": case.q, "k": case.k, "v": case.v, "out": out, "lse": lse}
        views = answer.views({name: describe(array) for name, array in given.items()})
        arrays = [Strided(given[name], info) for name, info in views.items()]
        found = answer.kernel.schedule_for(*arrays, *answer.numbers, target="cuda", arch=arch)
        assert isinstance(found, tw.Schedule)
        assert found.staging in ((staging, "direct") if staging == "cp_async" else (staging,))


COMPILED = [
    ("sm_80", Problem((1, 2, 2), (64, 64), (128, 128), diagonal=0)),
    ("sm_90a", Problem((1, 2, 2), (384, 64), (64, 64))),
    ("sm_90a", Problem((1, 2, 2), (64, 64), (256, 256), tw.bf16, diagonal=0)),
    ("sm_90a", Problem((1, 2, 2), (64, 64), (16, 16), tw.bf16)),
]


@pytest.mark.parametrize(("arch", "problem"), COMPILED, ids=named)
def test_text_compiles_without_spills(arch: str, problem: Problem) -> None:
    answer = chosen(question(problem, arch))
    q, out = problem.q[:, :, None], poisoned(problem)[:, :, None]
    lse = out[..., 0].astype(np.float32)
    made = answer.kernel.compile(q, problem.k, problem.v, out, lse, *answer.numbers, target="cuda", arch=arch)
    assert made.arch == arch
    assert made.resources["spill_store_bytes"] == 0
    assert ("wgmma" in made.source) == (arch == "sm_90a")


# ---------------------------------------------------------------- windows, and bounds of scores

CAPPED = [
    # heads, rows, columns, diagonal, window, bound
    ((4, 2), (70, 90), (24, 40), 20, 13, None),
    ((4, 2), (70, 90), (24, 40), 0, 1, None),
    ((2, 1), (1, 130), (16, 16), 129, 20, 5.0),
    ((2, 2), (33, 200), (16, 16), None, None, 2.0),
    ((2, 2), (150, 200), (64, 64), 50, 1000, 30.0),
    ((2, 1), (20, 300), (16, 16), -5, 7, None),
]


def seen_scores(
    q: Any, k: Any, diagonal: int | None, window: int | None, cap: float | None, bias: Any = 0.0
) -> Any:
    """Return scores in f64, and -inf for keys that a row does not see."""
    wide = np.repeat(k.astype(np.float64), q.shape[1] // k.shape[1], axis=1)
    scores = q.shape[-1] ** -0.5 * q.astype(np.float64) @ wide.swapaxes(-1, -2)
    scores = (scores if cap is None else cap * np.tanh(scores / cap)) + np.asarray(bias, np.float64)
    if diagonal is None:
        return scores
    last, key = np.arange(q.shape[2])[:, None] + diagonal, np.arange(k.shape[2])
    seen = (key <= last) & (key > last - (window or k.shape[2] + q.shape[2]))
    return np.where(seen, scores, -np.inf)


BIASES = ["none", "for each head", "for each key", "of bf16, by columns"]
"""How a bias is broadcast."""


def bias_of(kind: str, heads: int, m: int, n: int, rng: Any) -> Any:
    """Return a bias that hides some keys; all rows see the first key."""
    shape = {"for each head": (heads, m, n), "for each key": (1, n), "of bf16, by columns": (n, m)}[kind]
    made = np.where(rng.random(shape) < 0.2, -np.inf, rng.standard_normal(shape))
    if kind == "of bf16, by columns":
        made[0] = 1.0
        return made.astype(tw.bf16.numpy).T
    made[..., 0] = 1.0
    return made.astype(np.float32)


BIASED = [*(("f2", kind) for kind in BIASES), ("f4", BIASES[0]), ("f4", BIASES[3])]
"""Dtypes of the arrays, and biases."""


@pytest.mark.parametrize(
    ("case", "element", "kind", "target"),
    [
        pytest.param(case, *biased, target, marks=[pytest.mark.gpu] * (target == "cuda"))
        for (at, case), (number, biased) in product(enumerate(CAPPED), enumerate(BIASED))
        # The processor and the reference take turns: each sees every case, and every bias.
        for target in ("cuda", ("reference", "cpu")[(at + number) % 2])
    ],
    ids=str,
)
def test_windows_bounds_and_biases(case: Any, element: str, kind: str, target: str) -> None:
    (heads, shared), (m, n), (d, e), diagonal, window, cap = case
    rng = np.random.default_rng(21)
    q, k, v = (
        rng.standard_normal(shape).astype(element)
        for shape in ((1, heads, m, d), (1, shared, n, d), (1, shared, n, e))
    )
    out, lse = np.full((1, heads, m, e), np.nan, element), np.full((1, heads, m), np.nan, np.float32)
    words = {"causal": diagonal is not None, "diagonal": diagonal or 0, "window": window, "soft_cap": cap}
    bias = None if kind == "none" else bias_of(kind, heads, m, n, rng)
    if target == "cuda":
        there = [DeviceArray.of(one) for one in (q, k, v, out, lse)]
        words |= {} if bias is None else {"bias": DeviceArray.of(bias)}
        tw.attention(*there[:3], out=there[3], lse=there[4], **words)
        CUDA_DRIVER.synchronize()
        out, lse = there[3].host(), there[4].host()
    else:
        tw.attention(q, k, v, out=out, lse=lse, bias=bias, target=target, **words)
    scores = seen_scores(q, k, diagonal, window, cap, 0.0 if bias is None else bias)
    top = scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isinf(top), 0, top))
    total = np.maximum(weights.sum(axis=-1, keepdims=True), 1e-300)
    values = np.repeat(v.astype(np.float64), heads // shared, axis=1)
    right, size = weights @ values / total, weights @ np.abs(values) / total
    u, w = 2.0**-24, 2.0**-11 if element == "f2" else 2.0**-24
    # Of a score: its products and sums, and the roundings of its bound.
    sizes = np.abs(q).astype(np.float64) @ np.abs(np.repeat(k, heads // shared, 1)).astype(
        np.float64
    ).swapaxes(-1, -2)
    large = np.abs(scores[np.isfinite(scores)]).max()
    off = u * (2 * (d + 1) * d**-0.5 * sizes.max() + (8 * cap if cap else 0) + 2 * large + 2 * n + 124)
    assert (np.abs(out - right) <= 2 * (w + off) * size + w * np.abs(right) + 2.0**-25).all()
    blind = np.isinf(top[..., 0])
    assert (lse[blind] == -np.inf).all()
    exact = np.log(total[..., 0]) + np.where(blind, 0, top[..., 0])
    assert (np.abs(lse - exact)[~blind] <= (off * (1 + np.abs(exact)))[~blind]).all()


@pytest.mark.parametrize("target", ["cpu", "reference"])
@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize(
    ("diagonal", "window"),
    [(20, 3), (20, 8), (14, 3), (13, 4), (2**40, 2**40 - 7), (0, 2**40), (-3, 2**31 - 1)],
)
def test_windows_that_begin_near_or_beyond_the_last_key(
    rows: int, diagonal: int, window: int, target: str
) -> None:
    rng = np.random.default_rng(6)
    q, k, v = (rng.standard_normal((count, 8)).astype(np.float32) for count in (rows, 14, 14))
    out = tw.attention(q, k, v, causal=True, diagonal=diagonal, window=window, target=target)
    last, key = np.arange(rows)[:, None] + diagonal, np.arange(14)
    s = np.where((key <= last) & (key > last - window), q.astype(float) @ k.T.astype(float) / 8**0.5, -np.inf)
    weights = np.exp(s - np.maximum(s.max(axis=1, keepdims=True), -1e9))
    right = weights @ v / np.maximum(weights.sum(axis=1, keepdims=True), 1e-300)
    assert np.abs(out - right).max() < 100 * 2**-24 * np.abs(v).max()


def test_a_window_that_is_off_by_one_is_another_result() -> None:
    rng = np.random.default_rng(22)
    q, k, v = (rng.standard_normal((1, 1, 40, 16)).astype(np.float32) for _ in range(3))
    found = [tw.attention(q, k, v, causal=True, window=w, target="cpu") for w in (7, 8)]
    assert np.abs(found[0] - found[1])[..., 8:, :].max(axis=-1).min() > 1e-3
    assert (found[0][..., :7, :] == found[1][..., :7, :]).all()
    capped = [tw.attention(q, k, v, soft_cap=c, target="cpu") for c in (1.0, 1.1)]
    assert np.abs(capped[0] - capped[1]).max() > 1e-3


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({"window": 4}, "window=4 counts keys up to the diagonal.*nearest legal choice: causal=True"),
        ({"window": 0, "causal": True}, "window=0; nearest legal choice: 1"),
        ({"soft_cap": -2.0}, "soft_cap=-2.0; nearest legal choice: 1, or None"),
        ({"soft_cap": 1e30}, r"soft_cap=1e\+30; nearest legal choice: 1.09951e\+12, or None"),
        (
            {"bias": np.zeros((8, 7), np.float32)},
            r"bias with shape \(1, 1, 8, 8\), or one that NumPy broadcasts",
        ),
        ({"bias": np.zeros((8, 8), np.int32)}, "bias is i32; nearest legal choice: one of f16, bf16, f32"),
    ],
)
def test_windows_and_bounds_that_are_refused(words: dict[str, Any], why: str) -> None:
    x = np.zeros((1, 1, 8, 16), np.float16)
    with pytest.raises((tw.LaunchError, tw.DTypeError), match=why):
        tw.attention(x, x, x, target="reference", **words)
