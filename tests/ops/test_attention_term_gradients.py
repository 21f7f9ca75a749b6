"""The gradients of a bias and of sinks by `tw.attention_backward`, element by element against f64.

With the names of `tests.ops.test_attention_backward`: an element ``db = p g`` before it is summed is off by
``p (|g| (e + 4 u) + y)``.  A share ``exp(sink - lse)`` of a sink has the relative error ``expm1(2 u (|sink| +
|lse|)) + 6 u``, and ``delta`` is off by ``2 (E + 2) u sum |dout out|``.  Sums of n terms are off by ``2 (n +
2) u`` times the sum of magnitudes, and a result is rounded to its dtype.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.turns import calls_on

import tilewright as tw
from tilewright.ops.attending.flow import Scores
from tilewright.ops.attending.term_gradients import (
    gradient_of_bias,
    gradient_of_columns,
    gradient_of_rows,
    gradient_of_sinks,
    packed_gradient_of_sinks,
    sum_of_heads,
)
from tilewright.testing import device_get, device_put

from .attending import Packed
from .test_attention_backward import Array, Backward, U, causal

pytestmark = pytest.mark.in_turns(4)


def reduced(array: Array, shape: tuple[int, ...]) -> Array:
    """The sum along the dimensions that an array of a shape is broadcast along."""
    whole = (1,) * (array.ndim - len(shape)) + shape
    axes = tuple(at for at, extent in enumerate(whole) if extent != array.shape[at])
    return array.sum(axis=axes, keepdims=True).reshape(shape)


def of_sinks(sinks: Array, lse: Array, delta: Array, off: Array) -> tuple[Array, Array]:
    """The gradient of sinks, and its largest error; all arrays have rows last."""
    finite = np.where(np.isinf(lse), 0, lse)
    share = np.where(np.isinf(lse), 0, np.exp(sinks[:, None] - finite))
    moved = np.expm1(2 * U * (np.abs(sinks)[:, None] + np.abs(finite))) + 6 * U
    terms = delta.size // delta.shape[-2]
    room = share * (np.abs(delta) * (moved + 2 * (terms + 2) * U) + off)
    axes = tuple(at for at in range(delta.ndim) if at != delta.ndim - 2)
    return -(share * delta).sum(axis=axes), room.sum(axis=axes)


def term_gradients(problem: Backward) -> dict[str, tuple[Array, Array]]:
    """The gradients of a bias and of sinks in f64, and the largest error of each element."""
    (d, e), made = problem.columns, {}
    q, k, v, dout, out = (problem.wide(name) for name in ("q", "k", "v", "dout", "out"))
    lse = problem.arrays["lse"].astype(np.float64)
    p, s, _, _ = problem.weights(lse)
    delta, cap = (dout * out).sum(axis=-1), problem.words.get("soft_cap") or 0
    of_delta = 2 * (e + 2) * U * (np.abs(dout) * np.abs(out)).sum(axis=-1)
    if problem.biased:
        x = 2 * (d + 1) * U * abs(problem.scale) * (np.abs(q) @ np.abs(k).swapaxes(-1, -2))
        x += U * (4 * np.abs(np.where(np.isinf(s), 0, s)) + 8 * cap)
        x += 3 * U * np.where(np.isinf(lse), 0, np.abs(lse))[..., None]
        x += 2 * U * np.where(np.isinf(problem.arrays["bias"]), 0, np.abs(problem.arrays["bias"]))
        y = 2 * (e + 3) * U * problem.kept * (np.abs(dout) @ np.abs(v).swapaxes(-1, -2)) + of_delta[..., None]
        inner = problem.kept * (dout @ v.swapaxes(-1, -2)) - delta[..., None]
        shape, terms = problem.arrays["bias"].shape, p.size // problem.arrays["bias"].size
        off = p * (np.abs(inner) * (np.expm1(x) + 8 * U + 2 * (terms + 2) * U) + y)
        right = reduced(p * inner, shape)
        made["dbias"] = right, reduced(off, shape) + 2 * U * np.abs(right) + 1e-38
    if problem.has_sinks:
        sinks = problem.arrays["sinks"].astype(np.float64)
        right, room = of_sinks(sinks, lse, delta, of_delta)
        made["dsinks"] = right, room + 2 * U * np.abs(right) + 1e-38
    return made


def wrong(problem: Backward, found: dict[str, Array]) -> list[str]:
    return problem.wrong(found, term_gradients(problem))


def run(problem: Backward, target: str) -> dict[str, Array]:
    """The gradients of terms in poisoned arrays with odd strides, twice the same bits."""
    there = {name: device_put(one, target) for name, one in problem.arrays.items()}
    names = [f"d{name}" for name in ("bias", "sinks") if name in problem.arrays]
    bits = []
    for _ in calls_on(target):
        held = {
            name: device_put(np.full((*problem.arrays[name[1:]].shape, 3), np.nan, np.float32), target)
            for name in names
        }
        results = {name: one[..., 1] for name, one in held.items()}
        words = {f"return_{name}": True for name in names}
        found = tw.attention_backward(**there, **results, **words, **problem.words, target=target)
        assert all(one is results[name] for one, name in zip(found[3:], names, strict=True))
        back = {name: device_get(one) for name, one in held.items()}
        assert all(np.isnan(one[..., ::2]).all() for one in back.values())
        bits.append({name: one[..., 1] for name, one in back.items()})
    assert all((bits[0][name] == bits[-1][name]).all() for name in names)
    return bits[0]


SMALL = Backward((2, 4, 2), (19, 37), (16, 24), tw.f32, causal(9), biased=True, has_sinks=True)
PROBLEMS = [
    SMALL,
    replace(SMALL, bias_shape=(2, 4, 19, 37), element=tw.f16),
    replace(SMALL, bias_shape=(19, 37), words={"dropout": 0.4, "seed": 3}),
    replace(SMALL, bias_shape=(2, 1, 19, 37), element=tw.bf16, words=causal(5, window=9)),
    replace(SMALL, bias_shape=(37,), element=tw.f16, words={"dropout": 0.4, "seed": 3}),
    replace(SMALL, bias_shape=(4, 1, 37), words=causal(2, soft_cap=1.5)),
    replace(SMALL, bias_shape=(2, 1, 19, 1), words={"dropout": 0.3, "seed": 1}),
    replace(SMALL, bias_shape=(1,), element=tw.f16),
    Backward((3, 2, 1), (1, 70), (32, 8), tw.f16, {"scale": -0.3}, has_sinks=True),
    Backward((1, 6, 2), (140, 90), (64, 64), tw.f16, biased=True, bias_shape=(1, 140, 90)),
    Backward((2, 2, 2), (70, 150), (40, 72), tw.bf16, causal(80), True, (2, 1, 1, 150), has_sinks=True),
]
TARGETS = ["reference", "cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def name(problem: Backward) -> str:
    return f"{problem.name}-{problem.bias_shape}-{problem.has_sinks}"


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("problem", PROBLEMS, ids=name)
def test_random_data(problem: Backward, target: str) -> None:
    assert wrong(problem, run(problem, target)) == []


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(8, 700, 900), (700, 900), (900,), (8, 700, 1)], ids=str)
def test_many_tiles_on_a_gpu(shape: tuple[int, ...]) -> None:
    problem = Backward((2, 8, 2), (700, 900), (64, 64), tw.f16, causal(200), True, shape, has_sinks=True)
    assert wrong(problem, run(problem, "cuda")) == []


@pytest.mark.parametrize("at", range(2), ids=("bias", "sinks"))
def test_the_formulas_are_the_derivatives(at: int) -> None:
    """Central differences in f64 of the loss ``sum(dout * out)``, for each element of a tiny problem."""
    problem = Backward(
        (2, 2, 1), (4, 5), (3, 2), tw.f64, causal(1, soft_cap=1.5), True, (4, 5), has_sinks=True
    )
    problem.arrays |= {one: problem.arrays[one].astype(np.float64) for one in ("bias", "sinks")}
    p, _, lse, _ = problem.weights()
    problem.arrays |= {"out": p @ problem.wide("v"), "lse": lse}
    key = ("bias", "sinks")[at]
    right, _ = term_gradients(problem)[f"d{key}"]
    array, step = problem.arrays[key], 1e-5
    for place in np.ndindex(array.shape):
        kept, losses = array[place], []
        for sign in (1, -1):
            array[place] = kept + sign * step
            losses.append(float((problem.wide("dout") * (problem.weights()[0] @ problem.wide("v"))).sum()))
        array[place] = kept
        assert abs((losses[0] - losses[1]) / (2 * step) - right[place]) <= 1e-8


def test_wrong_gradients_are_found() -> None:
    """A batch that is left out, a stale scale, and rows that are exchanged."""
    for problem in (PROBLEMS[2], PROBLEMS[4]):
        right = {key: one for key, (one, _) in term_gradients(problem).items()}
        assert wrong(problem, right) == []
        for key in right:
            assert wrong(problem, right | {key: right[key] * (1 + 2**-12)})
            assert wrong(problem, right | {key: right[key][..., ::-1]})
        first = replace(problem, heads=(1, *problem.heads[1:]))
        first.arrays = {
            key: one if key in ("bias", "sinks") else one[:1] for key, one in problem.arrays.items()
        }
        assert wrong(problem, {key: one for key, (one, _) in term_gradients(first).items()})


@pytest.mark.parametrize("target", TARGETS)
def test_sinks_of_packed_sequences(target: str) -> None:
    """Rows of no sequence hold no numbers, and add nothing; a sequence without keys has shares of 1."""
    packed = Packed((4, 2), [(9, 20), (0, 5), (33, 40), (3, 0)], (16, 24), tw.f16, "last")
    sinks = np.float32([-1, 0, 1, 2])
    out, lse = packed.poisoned()
    rng = np.random.default_rng(1)
    dout = np.full_like(out, np.nan)
    dout[packed.gap : -packed.gap] = rng.standard_normal(dout[packed.gap : -packed.gap].shape)
    given = [device_put(one, target) for one in (packed.q, packed.k, packed.v, out, lse, dout, sinks)]
    q, k, v, held, rows, moved, of_heads = given
    words = {
        "q_offsets": device_put(packed.q_offsets, target),
        "k_offsets": device_put(packed.k_offsets, target),
        "sinks": of_heads,
        "target": target,
        **packed.words,
    }
    tw.attention(q, k, v, out=held, lse=rows, **words)
    *_, found = tw.attention_backward(q, k, v, held, rows, moved, return_dsinks=True, **words)
    rows_of = np.concatenate([np.arange(*packed.q_offsets[at : at + 2]) for at in range(4)])
    wide, high, logs = (device_get(one)[rows_of].astype(np.float64) for one in (held, moved, rows))
    delta, off = (wide * high).sum(-1).T, 2 * 26 * U * np.abs(wide * high).sum(-1).T
    right, room = of_sinks(sinks.astype(np.float64), logs.T, delta, off)
    assert (np.abs(device_get(found) - right) <= room + 2 * U * np.abs(right)).all()


def test_sinks_of_packed_sequences_whose_keys_have_the_same_offsets() -> None:
    """Offsets that serve queries and keys give the bits of two equal arrays."""
    rng = np.random.default_rng(3)
    q, k, v, dout = (rng.standard_normal((24, heads, 16), np.float32) for heads in (4, 2, 2, 4))
    sinks, offsets = np.float32([-1, 0, 1, 2]), np.int32([0, 9, 9, 24])
    found = []
    for own in ({}, {"k_offsets": offsets.copy()}):
        words = {"q_offsets": offsets, "sinks": sinks, "causal": True, "target": "cpu", **own}
        lse = np.full((24, 4), np.nan, np.float32)
        out = tw.attention(q, k, v, lse=lse, **words)
        found.append(tw.attention_backward(q, k, v, out, lse, dout, return_dsinks=True, **words)[-1])
    assert np.isfinite(found[0]).all()
    assert (found[0] == found[1]).all()


def test_nothing_to_add() -> None:
    for rows, heads in (((0, 5), (1, 2, 1)), ((5, 0), (1, 2, 1)), ((3, 4), (0, 2, 2))):
        for shape in ((1, *rows), (rows[1],)):
            problem = Backward(heads, rows, (8, 8), tw.f32, biased=True, bias_shape=shape, has_sinks=True)
            found = tw.attention_backward(
                **problem.arrays, return_dbias=True, return_dsinks=True, target="reference"
            )
            assert [one.shape for one in found[3:]] == [shape, (2,)]
            assert all((one == 0).all() for one in found[3:])


X, ROWS = np.ones((2, 4, 6, 16), np.float16), np.zeros((2, 4, 6), np.float32)
WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"return_dbias": True}, tw.LaunchError, "return_dbias=True without bias; nearest legal choice: bias="),
    (
        {"dsinks": np.zeros(4, np.float32)},
        tw.LaunchError,
        "dsinks without sinks; nearest legal choice: sinks=",
    ),
    ({"sinks": np.zeros(3, np.float32)}, tw.LaunchError, r"sinks with shape \(4,\)"),
    (
        {"bias": np.zeros(6, np.float32), "dbias": np.zeros((6, 6), np.float32)},
        tw.LaunchError,
        r"dbias with shape \(6,\), as bias has",
    ),
    (
        {"bias": np.zeros(6, np.float32), "dbias": np.zeros(6)},
        tw.DTypeError,
        "dbias is f64; nearest legal choice: one of f16, bf16, f32",
    ),
]


@pytest.mark.parametrize(("changed", "error", "text"), WRONG)
def test_what_does_not_fit_is_refused(changed: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        tw.attention_backward(X, X, X, X, ROWS, X, **changed)


def kernels(element: str) -> dict[str, tuple[Any, list[Any]]]:
    """Each kernel, and its arguments."""
    b, g, r, m = 8, 8, 2, 2048
    q, k = tw.like(element, (b, g, r, m, 64)), tw.like(element, (b, g, m, 64))
    rows = tw.like("f32", (b, g, r, m))
    bias = tw.like("f32", (b, g, r, m, m), strides=(0, m * m * 2, m * m, m, 1))
    bound = {"scores": Scores(True, scale=0.2), "factor": 1.0, "drops": False}
    numbers, read = (0.1, 0.2, 0, 1, 2, 3, 1.5), (q, k, k, q, rows, rows, bias)
    of_batch, sinks, ends = tw.like("f32", (b, 16)), tw.like("f32", (16,)), tw.like("i32", (b,))
    by_batch, packed = tw.like("f32", (b, 16, m)), tw.like("f32", (16, m))
    return {
        "bias": (gradient_of_bias.bind(**bound, adds="prior"), [*read, bias, bias, 0, 16, *numbers]),
        "rows": (gradient_of_rows.bind(**bound), [*read, rows, *numbers]),
        "columns": (gradient_of_columns.bind(**bound), [*read, rows, *numbers]),
        "sinks": (gradient_of_sinks.bind(), [by_batch, by_batch, sinks, of_batch]),
        "packed sinks": (packed_gradient_of_sinks.bind(), [packed, packed, sinks, ends, ends, of_batch]),
        "heads": (sum_of_heads.bind(), [tw.like("f32", (1, 4, 1, m, b)), tw.like("f32", (1, 4, m))]),
    }


@pytest.mark.parametrize("key", kernels("f16"))
@pytest.mark.parametrize(("target", "arch"), [("cuda", "sm_90a"), ("hip", "gfx942")])
def test_text_compiles(target: str, arch: str, key: str) -> None:
    kernel, given = kernels("f16")[key]
    used = kernel.compile(*given, target=target, arch=arch).resources
    assert not used.get("serialized_wgmma", 0)
    spilled = used.get("spill_store_bytes", 0) + used.get("spilled_registers", 0)
    assert spilled <= 32 * (key == "columns"), used  # two scores and their terms need more than 255
