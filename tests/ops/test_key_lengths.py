"""`tw.attention` with a number of keys for each batch: each equals its own attention; other keys are NaN."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.ops.attending.flow import BySoftmax, Scores, attention_with_terms
from tilewright.ops.wanted import UNDROPPED
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import CUDA, HIP
from tilewright.testing import device_get, device_put

from .attending import Padded

pytestmark = pytest.mark.in_turns(4)

PADDED = [
    Padded((4, 2), 37, (64, 64), tw.bf16, "last"),
    Padded((4, 1), 70, (24, 40), diagonal=3),
    Padded((8, 2), 1, (64, 64), tw.bf16, "last"),
    Padded((3, 3), 9, (33, 17), tw.f32, "last", (37, 0, 150)),
    Padded((2, 2), 130, (128, 128), lengths=(150, 37)),
]
"""Prefill and decode; masks from both ends; rows at odd addresses."""


def named(given: Any) -> str:
    """The name of a case."""
    return f"{given.heads}-{given.rows}-{given.diagonal}" if isinstance(given, Padded) else str(given)


CASES = [
    *((one, "reference") for one in PADDED[:4]),
    *((one, "cpu") for one in PADDED[2:4]),
    *(pytest.param(one, "cuda", marks=pytest.mark.gpu) for one in PADDED),
]


@pytest.mark.parametrize(("padded", "target"), CASES, ids=named)
def test_every_batch(padded: Padded, target: str) -> None:
    for kind in (np.int32, np.int64)[: 1 + (padded is PADDED[2])]:
        out, lse = (device_put(one, target) for one in padded.poisoned())
        arrays = [device_put(one, target) for one in (padded.q, padded.k, padded.v)]
        lengths = device_put(padded.lengths.astype(kind), target)
        found = tw.attention(*arrays, **padded.words, k_lengths=lengths, out=out, lse=lse, target=target)
        assert found is out
        padded.check(device_get(out), device_get(lse))


def test_with_a_window_a_bias_and_sinks() -> None:
    """Other terms see a batch that has its keys alone."""
    padded = Padded((2, 1), 20, (16, 24), tw.f32, "last", (0, 37, 64))
    rng = np.random.default_rng(7)
    bias = rng.standard_normal((3, 1, 20, 150)).astype(np.float32)
    sinks = rng.standard_normal(2).astype(np.float32)
    words = {"causal": True, "diagonal": "last", "window": 30, "sinks": sinks, "target": "reference"}
    padded_bias = bias.copy()
    for number, count in enumerate(padded.lengths):
        padded_bias[number, ..., count:] = np.nan
    arrays = (padded.q, padded.k, padded.v)
    out = tw.attention(*arrays, k_lengths=padded.lengths, bias=padded_bias, **words)
    for number, count in enumerate(padded.lengths[1:], 1):
        alone = [one[number : number + 1, :, : None if one is padded.q else count].copy() for one in arrays]
        wanted = tw.attention(*alone, bias=bias[number, ..., :count].copy(), **words)
        assert np.abs(out[number] - wanted[0]).max() < 1e-5
    assert (out[0] == 0).all()


# ---------------------------------------------------------------- schedules

WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "by warps, in the background": ("sm_80", {}),
    "by warpgroups": ("sm_90a", {}),
    "by warpgroups, a block for each tile": ("sm_90a", {"blocks": 0, "group_n": 0, "epilogue": "staged"}),
    "in parts": ("sm_80", {"split_k": 3}),
}
"""Architectures whose schedules the reference runs, with changed fields."""


def scheduled(padded: Padded, way: str, *, by_row: bool = False) -> tuple[list[Any], Any, Any, Any]:
    """Return the arguments, the kernel under a schedule, and memory for the results.

    Args:
        padded: the problem.
        way: one of `WAYS`.
        by_row: whether values are contiguous along the keys.
    """
    (arch, changes), (out, lse) = WAYS[way], padded.poisoned()
    (h, g), (d, e), m, batches = padded.heads, padded.columns, padded.rows, len(padded.lengths)
    r = h // g
    between, exponent = BySoftmax.of(d**-0.5)
    between = replace(between, power=0.0) if way == "in parts" else between
    words = {
        "scores": Scores(padded.diagonal is not None),
        "between": between,
        "with_lse": True,
        "from_last": padded.diagonal == "last",
        "terms": frozenset({"lengths"}),
    }
    v = padded.v
    if by_row:
        v = np.zeros((*v.shape[:2], v.shape[3], 160), v.dtype)
        v[..., : padded.keys] = padded.v.swapaxes(2, 3)
        v = v.swapaxes(2, 3)[:, :, : padded.keys]
    given = [padded.q.reshape(batches, g, r, m, d), padded.k, v, out.reshape(batches, g, r, m, e)]
    given += [
        lse.reshape(batches, g, r, m),
        np.broadcast_to(v.dtype.type(0), (batches, g, r, m, padded.keys)),
    ]
    given += [np.zeros((g, r), np.float32), padded.lengths, exponent]
    given += [padded.diagonal if isinstance(padded.diagonal, int) else 0, *UNDROPPED]
    like: list[Any] = given
    if arch == "sm_90a":  # the schedule of many rows
        shapes = [(8, g, r, 999, d), (8, g, 999, d), (8, g, 999, e), (8, g, r, 999, e)]
        strides = {2: {"strides": (g * 1000 * e, 1000 * e, 1, 1000)}} if by_row else {}
        like = [tw.like(padded.element, shape, **strides.get(at, {})) for at, shape in enumerate(shapes)]
        like += [tw.like("f32", (8, g, r, 999))]
        like += [tw.like(padded.element, (8, g, r, 999, 999), strides=(0,) * 5), tw.like("f32", (g, r))]
        like += [tw.like("i32", (8,)), *given[8:]]
        changes = {"blocks": 3, **changes}
    found = attention_with_terms.bind(**words).schedule_for(*like, target="cuda", arch=arch)
    assert isinstance(found, Schedule)
    assert (found.staging == "tma") == (arch == "sm_90a")
    return given, attention_with_terms.bind(**words, schedule=replace(found, **changes)), out, lse


# Each schedule has two of three problems; each problem has two kinds of warps.
@pytest.mark.parametrize(
    ("way", "padded"),
    [(way, PADDED[(0, 1, 4)[at % 3]]) for number, way in enumerate(WAYS) for at in (number, number + 1)],
    ids=named,
)
def test_every_form_of_schedule(padded: Padded, way: str) -> None:
    given, kernel, out, lse = scheduled(padded, way)
    assert kernel(*given, target="reference").target == "reference"
    padded.check(out, lse)


def test_values_that_are_contiguous_along_keys() -> None:
    padded = Padded((2, 2), 70, (64, 64), tw.bf16, "last")
    given, kernel, out, lse = scheduled(padded, "by warpgroups", by_row=True)
    assert kernel(*given, target="reference").target == "reference"
    padded.check(out, lse)


def test_the_flow_is_what_it_says() -> None:
    """The evaluator, in f64 with steps of 7 keys, agrees; the flow prints and reads back."""
    padded = Padded((4, 2), 37, (16, 24), tw.bf16, "last")
    given, kernel, _, _ = scheduled(padded, "by warps, in the background")
    flow = kernel.flow(*given)
    assert tw.ir.parse_flow(tw.ir.print_flow(flow)) == flow
    names = ("Q", "K", "V", "O", "L", "bias", "sinks", "lengths", "exponent", "diagonal")
    named_ = dict(zip(names, given, strict=False))
    numbers = {name: named_.pop(name) for name in ("exponent", "diagonal")}
    numbers |= dict(zip(("seed", "offset", "threshold", "kept"), UNDROPPED, strict=True))
    found = tw.ir.evaluate(flow, named_, numbers, rounded=False, run=7)
    padded.check(found["O"].reshape(5, 4, 37, 24), found["L"].reshape(5, 4, 37))


@pytest.mark.parametrize("way", [*WAYS][1:])
def test_the_checker_has_no_findings(way: str) -> None:
    padded = Padded((2, 1), 70, (16, 16), diagonal="last", lengths=(37, 0, 100), keys=100)
    given, kernel, _, _ = scheduled(padded, way)
    assert not kernel.check(*given, outputs=("O", "L")).findings


def test_a_key_more_is_found() -> None:
    """The comparison finds a batch that sees a key less, or one of NaN."""
    for change in (-1, 1):
        padded = Padded((2, 1), 5, (16, 16), lengths=(37, 60), keys=100)
        arrays = (padded.q, padded.k, padded.v)
        lengths = padded.lengths + np.int32(change)
        out, lse = tw.attention(*arrays, k_lengths=lengths, return_lse=True, target="reference")
        with pytest.raises(AssertionError, match="elements are wrong"):
            padded.check(out, lse)


COMPILED = [
    (CUDA.name, "sm_80", 1),
    (CUDA.name, "sm_90a", 4000),
    (HIP.name, "gfx942", 4000),
    (HIP.name, "gfx1100", 1),
]


@pytest.mark.parametrize(("target", "arch", "rows"), COMPILED)
def test_text_compiles_without_spills(target: str, arch: str, rows: int) -> None:
    shapes = [(8, 8, 1, rows, 128), (8, 8, 8000, 128), (8, 8, 8000, 128), (8, 8, 1, rows, 128)]
    like = [tw.like("f16", shape) for shape in shapes] + [tw.like("f32", (8, 8, 1, rows))]
    like += [tw.like("f16", (8, 8, 1, rows, 8000), strides=(0,) * 5), tw.like("f32", (8, 1))]
    between, exponent = BySoftmax.of(128**-0.5)
    words = {"scores": Scores(rows > 1), "between": between, "with_lse": True, "from_last": rows > 1}
    kernel = attention_with_terms.bind(**words, terms=frozenset({"lengths"}))
    given = (*like, tw.like("i32", (8,)), exponent, 0, *UNDROPPED)
    made = kernel.compile(*given, target=target, arch=arch)
    used = made.resources
    assert used.get("spill_store_bytes", 0) + used.get("spilled_registers", 0) == 0
    assert not used.get("serialized_wgmma", 0)
    if rows > 1:
        assert ("wgmma" in made.source) == (arch == "sm_90a")


# ---------------------------------------------------------------- arguments

X = np.ones((2, 2, 6, 16), np.float16)
WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "shape": ({"k_lengths": np.int32([6])}, tw.LaunchError, r"k_lengths with shape \(2,\), one for each"),
    "floats": ({"k_lengths": np.float32([6, 6])}, tw.DTypeError, "k_lengths is f32; .* choice: i32 or i64"),
    "beyond": ({"k_lengths": np.int32([6, 7])}, tw.LaunchError, r"k_lengths\[1\] is 7; .* 6 keys; .*: 6"),
    "below 0": ({"k_lengths": np.int64([-1, 6])}, tw.LaunchError, r"k_lengths\[0\] is -1; .* choice: 0"),
    "offsets": ({"q_offsets": np.int32([0, 2])}, tw.LaunchError, "k_lengths with q_offsets; .*: k_offsets"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_refused(name: str) -> None:
    changed, error, words = WRONG[name]
    given: dict[str, Any] = {"k_lengths": np.int32([6, 6])} | changed
    arrays = (X[:, 0], X[:, 0], X[:, 0]) if "q_offsets" in given else (X, X, X)
    with pytest.raises(error, match=words):
        tw.attention(*arrays, **given)


def test_lengths_in_host_memory_are_checked_at_every_call() -> None:
    lengths = np.int32([6, 5])
    for _ in range(3):
        tw.attention(X, X, X, k_lengths=lengths, target="reference")
    lengths[1] = 7
    with pytest.raises(tw.LaunchError, match=r"k_lengths\[1\] is 7"):
        tw.attention(X, X, X, k_lengths=lengths, target="reference")
