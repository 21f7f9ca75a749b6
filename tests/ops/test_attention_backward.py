"""`tw.attention_backward` on every target, element by element against the formulas in f64, with a bound.

The formulas of the docstring are computed in f64 from the arrays that the call gets, ``out`` and ``lse``
included.  Let ``u`` be the unit roundoff of f32, ``w`` that of the dtype, and ``t`` its smallest positive
number.

- a score s is off by ``x = 2 (D + 1) u |scale| sum |q k| + u (4 |s| + 3 |lse| + 2 |bias| + 8 cap)``, because
  matrix units may truncate; so a weight p has the relative error ``e = expm1(x) + 4 u``;
- ``g = dout vᵀ - delta`` is off by ``y = 2 (E + 2) u (sum |dout v| + sum |dout out|)``;
- the slope ``1 - (s / cap)²`` of a bound is off by ``z = 2 x / cap + 8 u``;
- ``ds = p g slope`` is off by ``p (|g| (e + z + 4 u) + y)``, and rounded to the dtype: ``w |ds| + t``;
- sums of n terms are off by ``2 (n + 1) u`` times the sum of magnitudes, and results are rounded: ``w |dq|``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pytest
from tests.problems.placing import Placed
from tests.schedule.test_folds import FMA, GROUPS, MMA
from tests.turns import calls_on

import tilewright as tw
from tilewright.ops.attending.flow import Scores
from tilewright.ops.attending.gradients import gradient_of_queries, gradients_of_keys, prepare
from tilewright.ops.attending.problem import AttentionWords
from tilewright.ops.attention_backward import ARRAYS, plan_attention_backward
from tilewright.ops.wanted import UNDROPPED
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.schedule.folds.form import fold_form_of
from tilewright.schedule.folds.masks import Trials, masks_of
from tilewright.testing import device_put

from .attending import beyond
from .test_attention import strided

pytestmark = pytest.mark.in_turns(2)

Array = np.ndarray[Any, Any]
U = tw.f32.unit_roundoff
NAMES = ("dq", "dk", "dv")


@dataclass
class Backward:
    """Random arrays of one problem, with the ``out`` and ``lse`` of `tw.attention`.

    Args:
        heads: batches, heads of queries, heads of keys.
        rows: rows of queries, and keys.
        columns: of queries and keys, and of values.
        element: the dtype.
        words: the arguments besides arrays.
        biased: whether a random array is added to the scores.
        bias_shape: its shape; None: heads, rows and keys.
        has_sinks: whether heads have sinks.
        seed: of the numbers.
        how: the strides of all arrays.
    """

    heads: tuple[int, int, int]
    rows: tuple[int, int]
    columns: tuple[int, int]
    element: tw.DType = tw.f16
    words: dict[str, Any] = field(default_factory=dict)
    biased: bool = False
    bias_shape: tuple[int, ...] | None = None
    has_sinks: bool = False
    seed: int = 0
    how: str = ""

    @cached_property
    def arrays(self) -> dict[str, Array]:
        """The arguments of the call, drawn when they are first read."""
        (b, h, g), (m, n), (d, e) = self.heads, self.rows, self.columns
        rng = np.random.default_rng(self.seed)
        shapes = {"q": (b, h, m, d), "k": (b, g, n, d), "v": (b, g, n, e), "dout": (b, h, m, e)}
        made = {name: rng.standard_normal(shape).astype(self.element.numpy) for name, shape in shapes.items()}
        self.arrays = {name: strided(one, self.how) if self.how else one for name, one in made.items()}
        if self.biased:
            shape = (h, m, n) if self.bias_shape is None else self.bias_shape
            bias = np.where(rng.random(shape) < 0.2, -np.inf, rng.standard_normal(shape))
            self.arrays["bias"] = bias.astype(np.float32)
        if self.has_sinks:
            self.arrays["sinks"] = rng.standard_normal(h).astype(np.float32)
        p, _, lse, _ = self.weights()
        out = p * self.kept @ self.wide("v")
        return self.arrays | {"out": out.astype(self.element.numpy), "lse": lse.astype(np.float32)}

    @property
    def scale(self) -> float:
        """The scale."""
        given = self.words.get("scale")
        return self.columns[0] ** -0.5 if given is None else float(given)

    @property
    def kept(self) -> Array:
        """The factor by which dropout multiplies each weight."""
        (b, h, _), (m, n), p = self.heads, self.rows, self.words.get("dropout", 0.0)
        if not p:
            return np.ones(())
        number = np.arange(b * h * m).reshape(b, h, m, 1) * (-(-n // 4) * 4) + np.arange(n)
        bits = tw.testing.philox(number, self.words.get("seed", 0), self.words.get("offset", 0))
        made: Array = (bits >= round(p * 2**32)) / (1 - p)
        return made

    def wide(self, name: str) -> Array:
        """An array in f64, with a head for each head of queries."""
        array = self.arrays[name].astype(np.float64)
        return np.repeat(array, self.heads[1] // array.shape[1], axis=1)

    def weights(self, lse: Array | None = None) -> tuple[Array, Array, Array, Array]:
        """Weights, scores, their logarithms of sums, and the slopes of the bound, in f64."""
        cap, bias = self.words.get("soft_cap"), self.arrays.get("bias", np.zeros(()))
        s = self.scale * self.wide("q") @ self.wide("k").swapaxes(-1, -2)
        bent = np.tanh(s / cap) if cap else np.zeros_like(s)
        s = (cap * bent if cap else s) + bias.astype(np.float64)
        if self.words.get("causal"):
            last = np.arange(self.rows[0])[:, None] + self.words.get("diagonal", 0)
            at, window = np.arange(self.rows[1]), self.words.get("window") or sum(self.rows) + 10**6
            s = np.where((at <= last) & (at > last - window), s, -np.inf)
        if lse is None:
            top = np.max(s, axis=-1, initial=-np.inf)
            base = np.where(np.isinf(top), 0.0, top)
            with np.errstate(divide="ignore"):
                sums = np.exp(s - base[..., None]).sum(axis=-1)
                if self.has_sinks:
                    sums += np.exp(self.arrays["sinks"].astype(np.float64)[:, None] - base)
                lse = np.log(sums) + base
        shift = np.where(np.isinf(lse), np.inf, lse)[..., None]
        return np.exp(s - shift), s, lse, 1 - bent**2

    def gradients(self) -> dict[str, tuple[Array, Array]]:
        """Return each gradient in f64, and the error bound of each element."""
        (_, h, g), (_, n), (d, e), w = self.heads, self.rows, self.columns, self.element.unit_roundoff
        q, k, v, dout, out = (self.wide(name) for name in ("q", "k", "v", "dout", "out"))
        lse = self.arrays["lse"].astype(np.float64)
        p, s, _, slope = self.weights(lse)
        delta, cap = (dout * out).sum(axis=-1), self.words.get("soft_cap") or 0
        finite = np.where(np.isinf(s), 0, s)
        x = 2 * (d + 1) * U * abs(self.scale) * (np.abs(q) @ np.abs(k).swapaxes(-1, -2))
        x += U * (4 * np.abs(finite) + 3 * np.where(np.isinf(lse), 0, np.abs(lse))[..., None] + 8 * cap)
        if self.biased:
            x += 2 * U * np.where(np.isinf(self.arrays["bias"]), 0, np.abs(self.arrays["bias"]))
        kept = self.kept
        y = 2 * (e + 3) * U * kept * (np.abs(dout) @ np.abs(v).swapaxes(-1, -2))
        y += 2 * (e + 2) * U * (np.abs(dout) * np.abs(out)).sum(axis=-1)[..., None]
        moved, z = np.expm1(x) + 4 * U, 2 * x / cap + 8 * U if cap else 0
        inner = kept * (dout @ v.swapaxes(-1, -2)) - delta[..., None]
        ds = p * inner * slope
        least = float(np.finfo(self.element.numpy).smallest_subnormal) if self.element == tw.f16 else 1e-38
        off = p * (np.abs(inner) * (moved + z + 4 * U) + y) + w * np.abs(ds) + least
        of_p, by = p * (moved + w) + least, abs(self.scale)

        def summed(array: Array) -> Array:
            """Return the sum over the heads of queries that share a head."""
            return array.reshape(array.shape[0], g, h // g, *array.shape[2:]).sum(axis=2)

        turned, terms = (lambda one: one.swapaxes(-1, -2)), self.rows[0] * (h // g)
        made = {
            "dq": (self.scale * ds @ k, by * (off + 2 * (n + 1) * U * np.abs(ds)) @ np.abs(k)),
            "dk": (
                summed(self.scale * turned(ds) @ q),
                summed(by * turned(off + 2 * (terms + 1) * U * np.abs(ds)) @ np.abs(q)),
            ),
            "dv": (
                summed(turned(p * kept) @ dout),
                summed(turned((of_p + 2 * (terms + 2) * U * p) * kept) @ np.abs(dout)),
            ),
        }
        return {name: (right, room + 2 * w * np.abs(right) + least) for name, (right, room) in made.items()}

    def wrong(
        self, found: dict[str, Array], bounds: dict[str, tuple[Array, Array]] | None = None
    ) -> list[str]:
        """Return which gradients exceed their bounds: those of `gradients`, or others."""
        texts = []
        for name, (right, room) in (self.gradients() if bounds is None else bounds).items():
            error = np.abs(found[name].astype(np.float64) - right)
            if not (error <= room).all():
                texts.append(f"{name}: {beyond(found[name], error, room)}")
        return texts

    def run(self, target: str) -> dict[str, Array]:
        """Return the gradients of a target; two runs give the same bits, and no other memory is written."""
        there = {name: device_put(one, target) for name, one in self.arrays.items()}
        bits = []
        for _ in calls_on(target):
            held = {name: np.full((*self.padded(name),), np.nan, self.element.numpy) for name in NAMES}
            placed = {name: Placed(one[..., 3:-5], target) for name, one in held.items()}
            results = {name: one.there for name, one in placed.items()}
            found = tw.attention_backward(**there, **results, **self.words, target=target)
            assert all(one is results[name] for one, name in zip(found, NAMES, strict=True))
            bits.append({name: one.fetched() for name, one in placed.items()})
            for one in held.values():
                assert np.isnan(one[..., :3].astype(np.float32)).all()
                assert np.isnan(one[..., -5:].astype(np.float32)).all()
        assert all((bits[0][name] == bits[-1][name]).all() for name in NAMES)
        return bits[0]

    def padded(self, name: str) -> tuple[int, ...]:
        """The shape of a result, with more columns."""
        *rows, columns = self.arrays[name[1:]].shape
        return (*rows, columns + 8)

    @property
    def name(self) -> str:
        """A short description."""
        words = ", ".join(f"{key} {value}" for key, value in self.words.items())
        more = ", ".join(one for one in (words, "bias" if self.biased else "", self.how) if one)
        return f"{self.element}-{self.heads}-{self.rows}-{self.columns}-{more}"


def causal(diagonal: int = 0, **words: Any) -> dict[str, Any]:
    return {"causal": True, "diagonal": diagonal, **words}


PROBLEMS = [
    Backward((1, 2, 2), (37, 50), (24, 24), tw.f32),
    Backward((2, 4, 2), (33, 70), (33, 17), tw.f32, causal(11)),
    Backward((1, 3, 1), (50, 40), (16, 40), tw.f32, causal(-20, window=9, soft_cap=2.0), biased=True),
    Backward((2, 6, 2), (70, 90), (64, 64)),
    Backward((1, 4, 2), (130, 75), (40, 72), tw.f16, causal(5, scale=-0.2)),
    Backward((1, 2, 2), (35, 140), (96, 96), tw.bf16, causal(90, window=40)),
    Backward((1, 2, 1), (40, 33), (128, 128), tw.bf16, {"soft_cap": 5.0}),
    Backward((1, 2, 1), (20, 70), (256, 200), tw.f16, causal(60)),
    Backward((1, 2, 1), (1, 50), (16, 8), tw.bf16, {"scale": 0.0}, biased=True),
    Backward((1, 2, 2), (5, 300), (32, 32), tw.f16, how="rows before heads"),
    Backward((1, 4, 1), (40, 30), (16, 32), tw.f16, causal(), how="backwards"),
    Backward((1, 2, 1), (30, 45), (24, 24), tw.f32, how="columns first"),
    Backward((2, 4, 2), (40, 50), (32, 24), tw.f16, causal(8, dropout=0.3, seed=5, offset=2)),
    Backward((1, 2, 1), (33, 70), (16, 16), tw.f32, {"dropout": 0.5, "seed": 2**40}, biased=True),
]
TARGETS = ["reference", "cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda one: one.name)
def test_random_data(problem: Backward, target: str) -> None:
    assert problem.wrong(problem.run(target)) == []


LARGE = [
    Backward((2, 6, 3), (900, 1100), (64, 64), tw.f16, causal(200), seed=1),
    Backward((1, 8, 8), (1030, 700), (128, 128), tw.bf16, seed=2),
    Backward((1, 4, 1), (300, 2000), (256, 256), tw.f16, causal(1700), seed=3),
    Backward((1, 4, 2), (500, 300), (80, 64), tw.f32, causal(), seed=4),
]


@pytest.mark.gpu
@pytest.mark.parametrize("problem", LARGE, ids=lambda one: one.name)
def test_many_tiles_on_a_gpu(problem: Backward) -> None:
    assert problem.wrong(problem.run("cuda")) == []
    CUDA_DRIVER.synchronize()


def test_the_formulas_are_the_derivatives() -> None:
    """Central differences in f64 of the loss ``sum(dout * out)``, for each element of a tiny problem."""
    for words, biased in ((causal(1, soft_cap=1.5, window=3), True), ({}, False)):
        problem = Backward((1, 2, 1), (4, 5), (3, 2), tw.f64, words, biased=biased)
        p, _, lse, _ = problem.weights()
        problem.arrays |= {"out": p @ problem.wide("v"), "lse": lse}
        for name, (right, _) in problem.gradients().items():
            array, step = problem.arrays[name[1:]], 1e-5
            for at in np.ndindex(array.shape):
                kept, losses = array[at], []
                for sign in (1, -1):
                    array[at] = kept + sign * step
                    losses.append(
                        float((problem.wide("dout") * (problem.weights()[0] @ problem.wide("v"))).sum())
                    )
                array[at] = kept
                assert abs((losses[0] - losses[1]) / (2 * step) - right[at]) <= 1e-8


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_gradients_of_what_attention_returned(target: str) -> None:
    """With the rounded ``out`` and ``lse`` of the forward pass; new results have the dtype of ``q``."""
    problem = Backward((1, 4, 2), (40, 50), (32, 48), tw.f16, causal(-3))
    q, k, v = (problem.arrays[name] for name in "qkv")
    out, lse = tw.attention(q, k, v, **problem.words, return_lse=True, target=target)
    problem.arrays |= {"out": out, "lse": lse}
    found = tw.attention_backward(q, k, v, out, lse, problem.arrays["dout"], **problem.words, target=target)
    assert [one.dtype for one in found] == [np.float16] * 3
    assert problem.wrong(dict(zip(NAMES, found, strict=True))) == []
    assert (found[0][:, :, :3] == 0).all()  # these rows see no key
    assert (found[1][:, :, 38:] == 0).all()  # no row sees these keys
    assert (found[2][:, :, 38:] == 0).all()


def test_wrong_gradients_are_found() -> None:
    """The comparison finds a missing key, exchanged rows, a head that is not summed, and a stale scale."""
    problem = PROBLEMS[3]
    right = {name: one for name, (one, _) in problem.gradients().items()}
    assert problem.wrong(right) == []
    for name in NAMES:
        assert problem.wrong(right | {name: right[name][..., ::-1, :]})
        assert problem.wrong(right | {name: right[name] * (1 + 2**-6)})
    short = replace(problem, rows=(problem.rows[0], problem.rows[1] - 1))
    short.arrays = {
        name: np.delete(one, 7, axis=2) if name in "kv" else one for name, one in problem.arrays.items()
    }
    assert problem.wrong(right | {"dq": short.gradients()["dq"][0]})
    one_head = replace(problem, heads=(2, 2, 2))
    one_head.arrays = {
        name: one[:, ::3] if name in ("q", "out", "lse", "dout") else one
        for name, one in problem.arrays.items()
    }
    for name in ("dk", "dv"):
        assert problem.wrong(right | {name: one_head.gradients()[name][0]})


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_nothing_to_add(target: str) -> None:
    for rows in ((0, 5), (5, 0)):
        problem = Backward((1, 2, 1), rows, (8, 8), tw.f32)
        found = tw.attention_backward(**problem.arrays, target=target)
        assert [one.shape for one in found] == [problem.arrays[name].shape for name in "qkv"]
        assert all((one == 0).all() for one in found)


def test_results_of_another_dtype() -> None:
    problem = Backward((1, 2, 1), (20, 30), (16, 24), tw.f16)
    held = {name: np.full(problem.arrays[name[1:]].shape, np.nan, np.float32) for name in NAMES}
    tw.attention_backward(**problem.arrays, **held, target="cpu")
    assert problem.wrong(held) == []


# ---------------------------------------------------------------- the flows


def flows(problem: Backward, scores: Scores, **bound: Any) -> list[Any]:
    """Return both loops as kernels on the arrays of a problem, and these arrays."""
    (b, h, g), (m, n) = problem.heads, problem.rows
    whole = {
        name: one.reshape(b, g, h // g, *one.shape[2:])
        for name, one in problem.arrays.items()
        if name in ("q", "dout", "lse")
    }
    k, v = problem.arrays["k"], problem.arrays["v"]
    rows = np.zeros((b, g, h // g, m), np.float32)
    read = (whole["q"], k, v, whole["dout"], rows, rows, np.zeros((b, g, h // g, m, n), np.float32))
    bound |= {"scores": scores, "factor": 1.0, "has_bias": False, "drops": False}
    numbers = (0.1, 0.2, 0, *UNDROPPED)
    return [
        (gradient_of_queries.bind(**bound), (*read, np.zeros_like(whole["q"]), *numbers)),
        (gradients_of_keys.bind(**bound), (*read, np.zeros_like(k), np.zeros_like(v), *numbers)),
    ]


@pytest.mark.parametrize("scores", [Scores(True), Scores(True, window=7, soft_cap=(0.1, 2.0))], ids=str)
def test_hidden_steps_are_left_out(scores: Scores) -> None:
    """In both loops, a step in which the mask hides everything changes no sum."""
    for kernel, arrays in flows(PROBLEMS[0], scores):
        form = fold_form_of(kernel.flow(*arrays))
        assert [Trials(form).leaves_state(one) for one in masks_of(form)] == [True]


AT_ONCE = replace(GROUPS, atom=tw.atoms.wgmma("f16", 128), tile=(128, 128, 32))
"""Warpgroups with so long a step that its mixtures follow at once."""

SCHEDULES = {
    "warpgroups": GROUPS,
    "one warpgroup, mixtures at once": replace(AT_ONCE, tile=(64, 128, 32), groups=1, blocks=1),
    "persistent warpgroups": replace(GROUPS, blocks=1, stages=3, epilogue="overlapped"),
    "bands of persistent warpgroups": replace(
        GROUPS, tile=(64, 32, 32), groups=1, blocks=1, group_n=2, epilogue="overlapped"
    ),
    "direct": MMA,
    "two stages": replace(MMA, staging="cp_async", stages=2),
    "results in two tiles": replace(MMA, staging="cp_async", stages=3, width=16),
    "depth in parts": replace(MMA, tile=(32, 16, 16), resident=False),
    "in two parts": replace(MMA, split_k=2),
    "multiply-adds": replace(FMA, staging="cp_async", stages=2),
}


@pytest.mark.parametrize("way", SCHEDULES)
def test_the_checker_has_no_findings(way: str) -> None:
    """Every form of schedule is within its bound, and its waits and barriers suffice."""
    element = tw.f32 if SCHEDULES[way].atom.a_dtype == tw.f32 else tw.f16
    problem = Backward((1, 4, 2), (40, 50), (24, 24), element, causal(-9))
    rows = problem.arrays["lse"]
    shift, delta = np.empty_like(rows), np.empty_like(rows)
    prepare(problem.arrays["dout"], problem.arrays["out"], rows, shift, delta, target="reference")
    found = {}
    for kernel, arrays in flows(problem, Scores(True), schedule=SCHEDULES[way]):
        by_head = (1, 2, 2, 40)
        read = (*arrays[:4], shift.reshape(by_head), delta.reshape(by_head), *arrays[6:-7])
        numbers = (problem.scale * math.log2(math.e), problem.scale, -9, *UNDROPPED)
        assert kernel(*read, *numbers, target="reference").schedule == SCHEDULES[way]
        results = [one.reshape(1, -1, *one.shape[-2:]) for one in read[7:]]
        found |= dict(zip(NAMES[1:] if len(results) == 2 else NAMES[:1], results, strict=True))
        outputs = ("dK", "dV") if len(results) == 2 else ("dQ",)
        assert not kernel.check(*read, *numbers, outputs=outputs).findings
    assert problem.wrong(found) == []


def numbers_of(problem: Backward) -> tuple[Scores, tuple[float, ...]]:
    """Return the options of the scores of a problem, and the numbers of the loops."""
    words, scale = problem.words, problem.scale
    cap = words.get("soft_cap")
    bound = None if cap is None else (scale / cap, cap)
    scores = Scores(words.get("causal", False), words.get("window"), bound)
    exponent = math.log2(math.e) * (scale if cap is None else 1)
    return scores, (exponent, scale, words.get("diagonal", 0), *UNDROPPED)


def large(heads: tuple[int, int, int], columns: tuple[int, int], element: tw.DType) -> list[list[Any]]:
    """Return the arrays of both loops with 999 rows; heads: batches, heads of keys, queries for each."""
    (b, g, r), (d, e) = heads, columns
    q, dout = (tw.like(element, (b, g, r, 999, one)) for one in (d, e))
    k, v = (tw.like(element, (b, g, 999, one)) for one in (d, e))
    rows, bias = tw.like("f32", (b, g, r, 999)), tw.like("f32", (b, g, r, 999, 999))
    read = [q, k, v, dout, rows, rows, bias]
    return [[*read, q], [*read, k, v]]


def by_warpgroups(problem: Backward, blocks: int = 3) -> dict[str, Array]:
    """Return the gradients by sm_90a's schedules for many rows, on the reference.

    Args:
        problem: the problem.
        blocks: blocks of the persistent grid.
    """
    (b, h, g), (m, _), (d, e) = problem.heads, problem.rows, problem.columns
    rows = problem.arrays["lse"]
    shift, delta = np.empty_like(rows), np.empty_like(rows)
    prepare(problem.arrays["dout"], problem.arrays["out"], rows, shift, delta, target="reference")
    scores, numbers = numbers_of(problem)
    found: dict[str, Array] = {}
    for at, (kernel, _) in enumerate(flows(problem, scores)):
        arrays = large((8, 8, h // g), (d, e), problem.element)[at]
        known = kernel.schedule_for(*arrays, *numbers, target="cuda", arch="sm_90a")
        assert isinstance(known, tw.Schedule)
        assert known.staging == "tma"
        known = replace(known, blocks=blocks)
        bound, own = flows(problem, scores, schedule=known)[at]
        seen = [one.reshape(b, g, h // g, m) for one in (shift, delta)]
        results = [np.full_like(one, np.nan) for one in own[7:-7]]
        assert bound(*own[:4], *seen, own[6], *results, *numbers, target="reference").schedule == known
        found |= zip(NAMES[1:] if at else NAMES[:1], results, strict=True)
    found["dq"] = found["dq"].reshape(b, h, m, d)
    return found


BY_WARPGROUPS = [
    Backward((1, 4, 2), (150, 135), (64, 64), tw.f16),
    Backward((1, 4, 1), (70, 150), (64, 64), tw.bf16, causal(90)),
    Backward((1, 2, 1), (130, 150), (128, 128), tw.bf16, causal(20, window=70)),
    Backward((1, 2, 2), (70, 140), (40, 72), tw.f16, causal(70, soft_cap=3.0)),
    Backward((1, 2, 1), (200, 60), (64, 64), tw.f16, causal(-70)),
]


@pytest.mark.parametrize("problem", BY_WARPGROUPS, ids=lambda one: one.name)
def test_random_data_by_warpgroups(problem: Backward) -> None:
    """Three persistent blocks compute all tiles; rows and columns are ragged."""
    assert problem.wrong(by_warpgroups(problem)) == []


@pytest.mark.parametrize("columns", [64, 128])
def test_the_operation_has_warpgroups(columns: int) -> None:
    """This holds also for odd rows: scratch rows begin at addresses that bulk copies can load."""
    q, rows = np.zeros((4, 16, 999, columns), np.float16), np.zeros((4, 16, 999), np.float32)
    words = AttentionWords(True, 0, None, target="reference", op="attention_backward")
    given = dict.fromkeys(("q", "k", "v", "out", "dout"), q) | {"lse": rows}
    plan = plan_attention_backward([given.get(name) for name in ARRAYS], words)
    assert [len(launch.arrays) for launch in plan.launches] == [5, 8, 9]
    for launch in plan.launches[1:]:
        found = launch.kernel.schedule_for(*launch.arrays, *launch.numbers, target="cuda", arch="sm_90a")
        assert isinstance(found, tw.Schedule)
        assert (found.staging, found.tile[2], found.width) == ("tma", columns, columns)
        steps = {one.info.strides for one in launch.arrays if one.info.dtype == tw.f32}
        assert (16000, 1000, 1000, 1) in steps


@pytest.mark.parametrize("columns", [64, 128])
@pytest.mark.parametrize("scores", [Scores(False), Scores(True)], ids=["full", "causal"])
def test_no_multiply_of_the_gradients_is_serialized(columns: int, scores: Scores) -> None:
    """A step has two products, and one or two along the loop; a shared operand is copied once."""
    for at, arrays in enumerate(large((4, 16, 1), (columns, columns), tw.bf16)):
        kernel = flows(PROBLEMS[0], scores)[at][0]
        made = kernel.compile(*arrays, 0.1, 0.1, 0, *UNDROPPED, target="cuda", arch="sm_90a")
        assert made.schedule is not None
        assert (made.schedule.staging, made.schedule.blocks) == ("tma", 132)
        assert not made.resources.get("serialized_wgmma", 0)
        assert made.resources["spill_store_bytes"] <= 8
        for name in ("Q", "K", "V", "dO"):
            assert made.source.count(f"* const s{name} =") == 1


COMPILED = [
    *(("cuda", arch, (64, 128, 256)) for arch in ("sm_80", "sm_90a")),
    *(("hip", arch, (64,)) for arch in ("gfx942", "gfx1100")),
]


@pytest.mark.parametrize(("target", "arch", "columns"), COMPILED)
def test_gpus_compile_the_loops_without_spills(target: str, arch: str, columns: tuple[int, ...]) -> None:
    """A thread may spill up to two numbers, as in `test_folds`."""
    for d in columns:
        problem = Backward((1, 2, 1), (600, 600), (d, d), tw.f16)
        for kernel, arrays in flows(problem, Scores(True)):
            used = kernel.compile(*arrays, target=target, arch=arch).resources
            assert used.get("spill_store_bytes", 0) + used.get("spilled_registers", 0) <= 8, (d, used)
    rows = (1, 2, 600)
    given = [np.zeros((*rows, 64), np.float16)] * 2 + [np.zeros(rows, np.float32) for _ in range(3)]
    assert prepare.compile(*given, target=target, arch=arch).target == target


# ---------------------------------------------------------------- refusals

SMALL = Backward((1, 2, 1), (6, 7), (8, 16), tw.f16).arrays
WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "dout": ({"dout": SMALL["dout"][..., :8]}, tw.LaunchError, r"dout with shape \(1, 2, 6, 16\)"),
    "dout of f32": ({"dout": SMALL["dout"].astype("f4")}, tw.DTypeError, "dout is f32 and q is f16; nearest"),
    "lse": ({"lse": SMALL["lse"].astype("f8")}, tw.DTypeError, "lse is f64; nearest legal choice: f32"),
    "dq": ({"dq": SMALL["k"].copy()}, tw.LaunchError, r"dq with shape \(1, 2, 6, 8\), as q has"),
    "dk": ({"dk": np.zeros((1, 1, 7, 8))}, tw.DTypeError, "dk is f64; nearest legal choice: one of"),
    "the same memory": ({"dk": SMALL["k"]}, tw.LaunchError, "dk and k share memory"),
    "a window": ({"window": 3}, tw.LaunchError, "attention_backward: window=3 counts keys"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_refused(name: str) -> None:
    words, error, text = WRONG[name]
    with pytest.raises(error, match=f"(?s){text}.*") as raised:
        tw.attention_backward(**{**SMALL, **words}, target="reference")
    assert "attention: " not in str(raised.value)


@pytest.mark.parametrize(("batches", "rows"), [(2, 0), (0, 3)])
def test_no_rows_again(batches: int, rows: int) -> None:
    """Later calls failed if a call had only one launch: arrays of scratch memory had no address."""
    q, k = np.zeros((batches, 4, rows, 8), np.float32), np.ones((batches, 4, 5, 8), np.float32)
    lse, sinks = np.zeros(q.shape[:3], np.float32), np.ones(4, np.float32)
    for words in ({}, {"sinks": sinks, "return_dsinks": True}):
        for _ in range(3):
            given = {name: np.full(one.shape, np.nan, np.float32) for name, one in (("dk", k), ("dv", k))}
            dq, dk, dv, *rest = tw.attention_backward(q, k, k, q, lse, q, **given, **words, target="cpu")
            assert dq.shape == q.shape
            assert all(one.shape == k.shape and not one.any() for one in (dk, dv))
            assert all(one.shape == (4,) and not one.any() for one in rest)
