"""Sinks and dropout of `tw.attention`, element by element against float64 with the same random numbers."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.turns import calls_on

import tilewright as tw
from tilewright.checking.references import attention_room, score_room
from tilewright.ops.attending.flow import BySoftmax, Scores, attention_with_terms
from tilewright.ops.wanted import dropout_of
from tilewright.schedule.folds.form import fold_form_of
from tilewright.schedule.folds.masks import Trials, masks_of
from tilewright.targets.target import CUDA, HIP
from tilewright.testing import device_get, device_put

from .attending import Packed, Problem, beyond

pytestmark = pytest.mark.in_turns(6)

U = tw.f32.unit_roundoff
PROBLEMS = [
    Problem((2, 4, 2), (37, 50), (16, 24), diagonal=3),
    Problem((1, 2, 2), (70, 90), (64, 64), tw.bf16),
    Problem((1, 3, 1), (20, 61), (33, 17), tw.f32, diagonal=-4, scale=-0.3),
    Problem((2, 6, 2), (1, 70), (32, 16), tw.f16),
    Problem((2, 4, 2), (300, 400), (64, 64), tw.bf16, diagonal=100),
]
SINKS = np.float32([0.5, -3.0, 4.0, -math.inf, 20.0, 0.0])
WORDS: list[dict[str, Any]] = [
    {"sinks": True},
    {"dropout": 0.3, "seed": 7, "offset": 5},
    {"sinks": True, "dropout": 0.9, "seed": 2**50},
]


def named(given: Any) -> str:
    """The name of a case."""
    return f"{given.heads}-{given.rows}-{given.columns}" if isinstance(given, Problem) else str(given)


def numbered(shape: tuple[int, ...]) -> Any:
    """Return the number of each weight (B, H, M, N): rows have a multiple of four numbers."""
    keys = shape[-1]
    return np.arange(math.prod(shape[:-1])).reshape(*shape[:-1], 1) * (-(-keys // 4) * 4) + np.arange(keys)


def compare(problem: Problem, words: dict[str, Any], out: Any, lse: Any, numbers: Any = None) -> list[str]:
    """Return which results exceed their bounds.

    Dropped weights are off by ``1 / (1 - p)`` times as much as others at most.  A sink multiplies the result
    by the share of the keys, whose relative error is the error of the logarithm of the sum.
    """
    s, v = problem.scores(), problem._wide(problem.v)
    top = s.max(axis=-1, initial=-np.inf)
    base = np.where(np.isinf(top), 0.0, top)
    with np.errstate(divide="ignore"):
        right = base + np.log(np.exp(s - base[..., None]).sum(axis=-1))
    sinks = SINKS[: problem.heads[1]].astype(np.float64)[:, None] if words.get("sinks") else -np.inf
    with np.errstate(invalid="ignore"):
        right = np.logaddexp(right, sinks)
    p = words.get("dropout", 0.0)
    numbers = numbered(s.shape) if numbers is None else numbers
    bits = tw.testing.philox(numbers, words.get("seed", 0), words.get("offset", 0))
    weights = np.exp(s - np.where(np.isinf(right), 0, right)[..., None])
    weights = weights * (bits >= round(p * 2**32)) / (1 - p)
    wanted = weights @ v
    arrays = (problem.q, *map(problem._for_each_head, (problem.k, problem.v)))
    of_lse = score_room(*arrays[:2], problem.by)[..., 0] + (problem.rows[1] + 8) * U
    finite = np.where(np.isinf(right), 0, np.abs(right)) + np.abs(base)
    of_lse = of_lse + 16 * U * (finite + np.where(np.isinf(sinks), 0, np.abs(sinks)) + 1)
    room = attention_room(*arrays, problem.by, problem.diagonal) / (1 - p)
    room = room + problem.element.unit_roundoff * np.abs(wanted)
    room = room + (of_lse[..., None] + 4 * U) * (weights @ np.abs(v))
    texts = []
    error = np.abs(out.astype(np.float64) - wanted)
    if not (error <= room).all():
        texts.append(f"out: {beyond(out, error, room)}")
    assert (np.isinf(right) == np.isinf(lse)).all()
    error = np.abs(np.where(np.isinf(right), 0, lse - np.where(np.isinf(right), 0, right)))
    if not (error <= of_lse).all():
        texts.append(f"lse: {beyond(lse, error, of_lse)}")
    return texts


def given(problem: Problem, words: dict[str, Any]) -> dict[str, Any]:
    """The arguments other than queries, keys and values."""
    made = {**problem.words, **words}
    if made.pop("sinks", False):
        made["sinks"] = SINKS[: problem.heads[1]].copy()
    return made


@pytest.mark.parametrize("target", ["reference", "cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("words", WORDS, ids=str)
@pytest.mark.parametrize("problem", PROBLEMS, ids=named)
def test_every_element(problem: Problem, words: dict[str, Any], target: str) -> None:
    shape = (*problem.q.shape[:3], problem.columns[1])
    for _ in calls_on(target):
        out = device_put(np.full(shape, np.nan, problem.element.numpy), target)
        lse = device_put(np.full(shape[:3], np.nan, np.float32), target)
        arrays = [device_put(one, target) for one in (problem.q, problem.k, problem.v)]
        more = given(problem, words)
        if "sinks" in more:
            more["sinks"] = device_put(more["sinks"], target)
        assert tw.attention(*arrays, **more, out=out, lse=lse, target=target) is out
        assert compare(problem, words, device_get(out), device_get(lse)) == []


def test_replays_take_other_seeds() -> None:
    """One plan serves calls with other seeds and probabilities; probability 0 drops nothing."""
    problem, made = PROBLEMS[0], []
    for seed, p in ((1, 0.5), (2, 0.5), (2, 0.5), (2, 0.25), (3, 0.0), (1, 0.5)):
        words = {"dropout": p, "seed": seed}
        arrays = (problem.q, problem.k, problem.v)
        out, lse = tw.attention(*arrays, **given(problem, words), return_lse=True, target="cpu")
        assert compare(problem, words, out, lse) == []
        made.append(out)
    assert (made[0] == made[5]).all()
    assert (made[0] != made[1]).any()
    assert (made[1] == made[2]).all()


def by_schedule(problem: Problem, words: dict[str, Any], arch: str) -> tuple[Any, Any]:
    """Return the results of an architecture's schedule for many rows, on the reference."""
    (b, h, g), (m, n), (d, e) = problem.heads, problem.rows, problem.columns
    r, kind = h // g, problem.element
    between, exponent = BySoftmax.of(1.0 if words.get("bias") else problem.by)
    terms = frozenset({"sinks"} if words.get("sinks") else ()) | (
        {"dropout"} if "dropout" in words else set()
    )
    drawn = dropout_of("attention", *(words.get(x, 0) for x in ("dropout", "seed", "offset"))).numbers
    bound = {
        "scores": Scores(problem.diagonal is not None),
        "between": between,
        "with_lse": True,
        "from_last": False,
        "terms": terms,
    }
    kernel = attention_with_terms.bind(**bound)
    numbers = (exponent, problem.diagonal or 0, *drawn)
    shapes = [(8, g, r, 999, d), (8, g, n, d), (8, g, n, e), (8, g, r, 999, e)]
    like = [tw.like(kind, shape) for shape in shapes] + [tw.like("f32", (8, g, r, 999))]
    like += [tw.like(kind, (8, g, r, 999, n), strides=(0,) * 5), tw.like("f32", (g, r))]
    like.append(tw.like("i32", (8,)))
    found = kernel.schedule_for(*like, *numbers, target="cuda", arch=arch)
    assert isinstance(found, tw.Schedule)
    assert (found.staging == "tma") == (arch == "sm_90a")
    found = replace(found, blocks=3) if arch == "sm_90a" else found
    out, lse = np.full((b, g, r, m, e), np.nan, kind.numpy), np.full((b, g, r, m), np.nan, np.float32)
    bias = np.broadcast_to(np.zeros((), kind.numpy), (b, g, r, m, n))
    sinks, lengths = SINKS[:h].reshape(g, r).copy(), np.zeros(b, np.int32)
    arrays = (problem.q.reshape(b, g, r, m, d), problem.k, problem.v, out, lse, bias, sinks, lengths)
    done = attention_with_terms.bind(**bound, schedule=found)(*arrays, *numbers, target="reference")
    assert done.target == "reference"
    return out.reshape(b, h, m, e), lse.reshape(b, h, m)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("words", WORDS[1:], ids=str)
@pytest.mark.parametrize("problem", PROBLEMS[:2], ids=named)
def test_schedules_drop_the_same_weights(problem: Problem, words: dict[str, Any], arch: str) -> None:
    assert compare(problem, words, *by_schedule(problem, words, arch)) == []


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_packed_sequences(target: str) -> None:
    """The numbers of weights count the rows and keys of all sequences."""
    packed = Packed((4, 2), [(20, 30), (0, 4), (33, 17), (5, 0)], (16, 24), diagonal="last", gap=3)
    words = WORDS[2]
    out, lse = packed.poisoned()
    offsets = {"q_offsets": packed.q_offsets, "k_offsets": packed.k_offsets}
    more = {**words, "sinks": SINKS[:4].copy()}
    arrays = (packed.q, packed.k, packed.v)
    tw.attention(*arrays, **packed.words, **offsets, **more, out=out, lse=lse, target=target)
    numbers = numbered((packed.heads[0], len(packed.q), len(packed.k)))
    for number, (m, n) in enumerate(packed.lengths):
        problem, rows = packed.alone(number)
        first = int(packed.k_offsets[number])
        if m:
            seen = numbers[:, rows, first : first + n][None]
            results = (x[rows].swapaxes(0, 1)[None] for x in (out, lse))
            assert compare(problem, words, *results, numbers=seen) == []


def test_wrong_terms_are_found() -> None:
    problem, words = PROBLEMS[0], WORDS[2] | {"dropout": 0.3}
    arrays = (problem.q, problem.k, problem.v)
    out, lse = tw.attention(*arrays, **given(problem, words), return_lse=True, target="cpu")
    assert compare(problem, words, out, lse) == []
    for change in ({"seed": 1}, {"offset": 1}, {"dropout": 0.31}, {"sinks": False}):
        assert compare(problem, words | change, out, lse)
    assert compare(problem, words, out[:, ::-1], lse[:, ::-1])
    numbers = np.arange(out[..., 0].size * problem.rows[1]).reshape(*lse.shape, -1)
    assert compare(problem, words, out, lse, numbers=numbers)  # rows are no multiple of four


def test_hidden_steps_are_left_out_with_dropout() -> None:
    """Dropout chooses between equal numbers in hidden steps: 0 and a dropped 0."""
    arrays = [np.zeros(shape, np.float16) for shape in ((1, 2, 1, 9, 16), (1, 2, 7, 16), (1, 2, 7, 8))]
    arrays += [np.zeros((1, 2, 1, 9, 8), np.float16), np.zeros((1, 2, 1, 9), np.float32)]
    arrays += [np.zeros((1, 2, 1, 9, 7), np.float16), np.zeros((2, 1), np.float32), np.zeros(1, np.int32)]
    words = {"scores": Scores(True), "between": BySoftmax.of(0.3)[0], "with_lse": True, "from_last": False}
    kernel = attention_with_terms.bind(**words, terms=frozenset({"dropout"}))
    form = fold_form_of(kernel.flow(*arrays, 0.3, 0, 1, 2, 3, 1.5))
    assert [Trials(form).leaves_state(one) for one in masks_of(form)] == [True]


COMPILED = [
    *((CUDA.name, arch) for arch in ("sm_80", "sm_90a")),
    *((HIP.name, arch) for arch in ("gfx942", "gfx1100")),
]


@pytest.mark.parametrize("terms", [{"sinks"}, {"dropout"}], ids=str)
@pytest.mark.parametrize(("target", "arch"), COMPILED)
def test_text_compiles_without_spills(target: str, arch: str, terms: set[str]) -> None:
    kernel = attention_with_terms.bind(
        scores=Scores(True),
        between=BySoftmax.of(0.125)[0],
        with_lse=True,
        from_last=False,
        terms=frozenset(terms),
    )
    q, k, rows = (8, 8, 2, 4096, 64), (8, 8, 4096, 64), (8, 8, 2, 4096)
    like = [tw.like("f16", shape) for shape in (q, k, k, q)] + [tw.like("f32", rows)]
    like += [tw.like("f16", (*rows, 4096), strides=(0,) * 5), tw.like("f32", (8, 2)), tw.like("i32", (4,))]
    used = kernel.compile(*like, 0.1, 0, 1, 2, 3, 1.5, target=target, arch=arch).resources
    assert used.get("spill_store_bytes", 0) + used.get("spilled_registers", 0) == 0, used
    assert not used.get("serialized_wgmma", 0)


X = np.ones((2, 4, 6, 16), np.float16)
WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"sinks": np.zeros(3, np.float32)}, tw.LaunchError, r"sinks with shape \(4,\)"),
    ({"sinks": np.zeros(4)}, tw.DTypeError, "sinks is f64; nearest legal choice: one of f16, bf16, f32"),
    ({"dropout": 1.0}, tw.LaunchError, "dropout=1.0; nearest legal choice: a number from 0 to below 1"),
    ({"dropout": 0.5, "seed": -1}, tw.LaunchError, "seed=-1; nearest legal choice: an integer of at least 0"),
]


@pytest.mark.parametrize(("changed", "error", "text"), WRONG)
def test_what_does_not_fit_is_refused(changed: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        tw.attention(X, X, X, **changed)
