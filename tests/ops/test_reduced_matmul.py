"""`reduced_matmul`: reduced rows and columns of a product; each element is within the graph's bound."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.schedule.small import CASES

import tilewright as tw
from tilewright.checking.compare import Accumulation
from tilewright.checking.flows import compare_flow
from tilewright.ops.reduced_matmul import ARRAYS, REDUCTIONS, plan_reduced
from tilewright.ops.wanted import Wanted

pytestmark = pytest.mark.in_turns(3)

Array = np.ndarray[Any, Any]
ALL_TARGETS = pytest.mark.parametrize(
    "target", ["reference", "cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
)
POISON = 7.7e7


def drawn(kind: str, lead: tuple[int, ...], m: int, n: int, k: int, axis: int) -> dict[str, Array]:
    """Return operands with gaps between their rows, and poisoned results."""
    rng = np.random.default_rng(m + n + k)
    shapes = {"a": (*lead, m, k), "b": (k, n), "bias": (n,)}
    dtype = tw.dtype(kind)
    made = {name: rng.standard_normal((*shape[:-1], shape[-1] + 5)) for name, shape in shapes.items()}
    given = {name: one.astype(dtype.numpy)[..., :-5] for name, one in made.items()}
    kind_out = np.float64 if kind == "f64" else np.float32
    kept = (*lead, m if axis == -1 else n)
    given |= {name: np.full(kept, POISON, kind_out) for name in REDUCTIONS}
    return given | {"product": np.full((*lead, m, n), POISON, kind_out)}


def verified(given: dict[str, Array], axis: int, words: dict[str, Any], schedule: Any = None) -> None:
    """Compare every element with the kernel's graph under its bound."""
    wanted = Wanted(words["alpha"], activation=words["activation"], schedule=schedule)
    in_order = [given[name] for name in (*ARRAYS, *REDUCTIONS)]
    product = plan_reduced(in_order, REDUCTIONS, axis, wanted).product
    bound, seen = product.kernel, product.arrays
    arrays = [
        np.lib.stride_tricks.as_strided(
            one.array, one.info.shape, [step * one.array.itemsize for step in one.info.strides]
        )
        for one in seen
    ]
    names = [p.name for p in bound.program.parameters if p.kind == "tensor"]
    by_name = dict(zip(names, arrays, strict=True))
    stored = {name: by_name.pop(name) for name in ("total", "top", "least", "lse", "D")}
    how = Accumulation.of(schedule.atom, schedule.promote * schedule.block_k or None) if schedule else None
    flow = bound.flow(*arrays, words["alpha"])
    found = compare_flow(flow, stored, by_name, {"alpha": words["alpha"]}, how or Accumulation.of(FMA))
    found.raise_if_wrong()


FMA = tw.atoms.fma("f32")


@pytest.mark.in_turns(3)
@ALL_TARGETS
@pytest.mark.parametrize(
    ("lead", "m", "n", "axis", "activation"),
    [
        ((), 40, 300, -1, None),
        ((2,), 9, 30, -1, "tanh"),
        ((2,), 270, 20, -2, "gelu"),
        ((), 35, 300, -2, None),
    ],
)
def test_every_element(
    lead: tuple[int, ...], m: int, n: int, axis: int, activation: str | None, target: str
) -> None:
    given = drawn("f32", lead, m, n, 17, axis)
    there = {name: tw.testing.device_put(one, target) for name, one in given.items()}
    words = {"alpha": 0.5, "activation": activation}
    outs = tuple(there[name] for name in REDUCTIONS)
    more = {name: there[name] for name in ("bias", "product")}
    first: list[bytes] = []
    for _ in range(2):
        made = tw.reduced_matmul(
            there["a"], there["b"], REDUCTIONS, axis, outs, **words, **more, target=target
        )
        assert all(one is other for one, other in zip(made, outs, strict=True))
        first.append(b"".join(tw.testing.device_get(one).tobytes() for one in made))
    assert first[0] == first[1], "the same bits at each run"
    found = {name: tw.testing.device_get(there[name]) for name in (*REDUCTIONS, "product")}
    verified(given | found, axis, words)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_the_comparison_rejects_another_row(name: str) -> None:
    given = drawn("f32", (), 6, 300, 17, -1)
    words = {"alpha": 1.0, "activation": None}
    outs = tuple(given[one] for one in REDUCTIONS)
    more = {one: given[one] for one in ("bias", "product")}
    tw.reduced_matmul(given["a"], given["b"], REDUCTIONS, -1, outs, **more, target="reference")
    verified(given, -1, words)
    given[name][:2] = given[name][1::-1].copy()
    with pytest.raises(tw.WrongResultError):
        verified(given, -1, words)


@pytest.mark.parametrize("target", ["reference", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name", ["cp_async, staged", "ping-pong, overlapped", "split"])
def test_every_element_on_tensor_cores(name: str, target: str) -> None:
    schedule = replace(CASES[name].schedule, across=True, cluster=(1, 1))
    m, n, k = (extent + more for extent, more in zip(schedule.tile, (7, 24, schedule.block_k), strict=True))
    given = drawn("f16", (), m, n, k, -1)
    given["a"], given["b"] = np.ascontiguousarray(given["a"]), np.ascontiguousarray(given["b"].T).T
    there = {name: tw.testing.device_put(one, target) for name, one in given.items()}
    outs = tuple(there[name] for name in REDUCTIONS)
    words = {"alpha": 1.0, "activation": None}
    more = {name: there[name] for name in ("bias", "product")} | {"schedule": schedule, "target": target}
    tw.reduced_matmul(there["a"], there["b"], REDUCTIONS, -1, outs, **words, **more)
    found = {name: tw.testing.device_get(there[name]) for name in (*REDUCTIONS, "product")}
    verified(given | found, -1, words, schedule)


@ALL_TARGETS
def test_what_is_known_is_launched_again_on_other_arrays(target: str) -> None:
    rng = np.random.default_rng(9)
    for _ in range(3):
        a, b, bias = (rng.standard_normal(shape, np.float32) for shape in ((30, 8), (8, 20), (20,)))
        there = [tw.testing.device_put(one, target) for one in (a, b, bias)]
        whole = a.astype(np.float64) @ b + bias
        made = tw.reduced_matmul(*there[:2], ("min", "sum"), bias=there[2], target=target)
        assert np.abs(tw.testing.device_get(made[0]) - whole.min(1)).max() < 1e-5
        assert np.abs(tw.testing.device_get(made[1]) - whole.sum(1)).max() < 1e-4
    if target != "cpu":
        return
    out = np.zeros(80, np.float32)
    for begin, is_apart in ((32, True), (16, False), (48, True), (0, False)):
        outs = (out[:30], out[begin : begin + 30])
        if is_apart:
            tw.reduced_matmul(a, b, ("min", "sum"), out=outs, bias=bias, target=target)
            assert np.abs(outs[1] - whole.sum(1)).max() < 1e-4
            continue
        with pytest.raises(tw.LaunchError, match="share memory"):
            tw.reduced_matmul(a, b, ("min", "sum"), out=outs, bias=bias, target=target)


def test_each_alone_and_any_together_are_the_same() -> None:
    given = drawn("f64", (2, 3), 5, 33, 8, -1)
    a, b = given["a"], given["b"]
    alone = {name: tw.reduced_matmul(a, b, name, target="reference") for name in REDUCTIONS}
    for names in itertools.permutations(REDUCTIONS, 2):
        made = tw.reduced_matmul(a, b, names, target="reference")
        assert all(np.array_equal(one, alone[name]) for one, name in zip(made, names, strict=True))
    whole = a @ b
    assert np.abs(alone["logsumexp"] - np.log(np.exp(whole).sum(-1))).max() < 1e-13
    assert np.abs(alone["sum"] - whole.sum(-1)).max() < 1e-12
    assert alone["sum"].shape == (2, 3, 5)
    assert tw.reduced_matmul(a[:, :, :0], b, "sum", target="reference").shape == (2, 3, 0)
    for one in (a[:, :, :1], np.ones((2, 3, 1, 8))):  # batches are no rows, even of one row
        made = tw.reduced_matmul(one, b, "sum", -2, target="reference")
        assert np.abs(made - (one @ b).sum(-2)).max() < 1e-12
    assert np.array_equal(tw.reduced_matmul(a[0, 0, :, :0], b[:0], "max", target="reference"), np.zeros(5))


@ALL_TARGETS
@pytest.mark.parametrize("columns", [40, 2100])
def test_a_masked_part_of_a_vocabulary_adds_nothing(columns: int, target: str) -> None:
    """Part of a tile, or whole tiles of a row, are masked; a wholly masked row has NaN."""
    a, b = np.ones((2, 4), np.float32), np.ones((4, columns), np.float32)
    for seen in (slice(0, 10), slice(columns - 10, columns), slice(0, 0)):
        bias = np.full(columns, -np.inf, np.float32)
        bias[seen] = 0
        there = [tw.testing.device_put(one, target) for one in (a, b, bias)]
        made = tw.reduced_matmul(*there[:2], ("max", "logsumexp"), bias=there[2], target=target)
        high, logarithm = (tw.testing.device_get(one) for one in made)
        is_seen = seen.stop > seen.start
        np.testing.assert_array_equal(high, np.full(2, 4 if is_seen else -np.inf))
        np.testing.assert_allclose(logarithm, np.full(2, 4 + np.log(10) if is_seen else np.nan), rtol=1e-6)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"reduce": "mean"}, "reduce='mean'; nearest legal choice: one of sum, max, min, logsumexp"),
        ({"reduce": ()}, r"reduce=\(\); nearest legal choice"),
        ({"reduce": ("max", "max")}, "a tuple of different ones"),
        ({"axis": 1}, "axis=1; nearest legal choice: -1, rows, or -2, columns"),
        ({"out": np.zeros(4, np.float32)}, r"out of max has shape \(4,\); nearest legal choice: \(2,\)"),
        ({"reduce": ("max", "min"), "out": np.zeros(2)}, "a tuple of 2 arrays, of max, min"),
        ({"bias": np.zeros(2, np.float32)}, r"bias has shape \(2,\); nearest legal choice: \(4,\)"),
        (
            {"product": np.zeros((4, 2), np.float32)},
            r"product has shape \(4, 2\); nearest legal choice: \(2, 4\)",
        ),
        ({"b": np.zeros(3, np.float32)}, r"b has shape \(3,\); nearest legal choice: a matrix"),
        ({"b": np.zeros((3, 0), np.float32)}, "an empty axis cannot be reduced"),
        ({"activation": "swish"}, "activation='swish'; choose one of"),
    ],
)
def test_what_is_no_reduction_is_refused(words: dict[str, Any], message: str) -> None:
    given = {"a": np.zeros((2, 3), np.float32), "b": np.zeros((3, 4), np.float32), "reduce": "max"} | words
    with pytest.raises(tw.LaunchError, match=message):
        tw.reduced_matmul(**given, target="reference")


def test_what_is_written_has_memory_of_its_own_and_holds_fractions() -> None:
    a, b, out = np.zeros((2, 3), np.float32), np.zeros((3, 4), np.float32), np.zeros(4, np.float32)
    with pytest.raises(tw.LaunchError, match="share memory"):
        tw.reduced_matmul(a, b, ("max", "sum"), out=(out[:2], out[1:3]), target="reference")
    with pytest.raises(tw.DTypeError, match="out of max is i32; nearest legal choice: f32"):
        tw.reduced_matmul(a, b, "max", out=np.zeros(2, np.int32), target="reference")
    with pytest.raises(
        tw.DTypeError, match="reduced_matmul of i8; nearest legal choice: operands of a float dtype"
    ):
        tw.reduced_matmul(a.astype(np.int8), b.astype(np.int8), "sum", target="reference")


def test_logits_of_a_vocabulary_are_reduced_by_the_main_loop_of_a_product() -> None:
    """On an H200 the kernel uses bulk copies and wgmma, spills nothing, and stores no whole product."""
    m, n, k = 4096, 32768, 4096
    given = {"a": np.empty((m, k), np.float16), "b": np.empty((n, k), np.float16).T}
    given |= {name: np.empty(m, np.float32) for name in ("max", "logsumexp")}
    names = ("max", "logsumexp")
    in_order = [given.get(name) for name in (*ARRAYS, *names)]
    product = plan_reduced(in_order, names, -1, Wanted()).product
    made = product.kernel.compile(*product.arrays, 1.0, target="cuda", arch="sm_90a")
    assert (made.schedule.staging, made.schedule.across) == ("tma", True)
    assert made.schedule.atom.asynchronous
    assert made.resources["spill_store_bytes"] == 0
    assert "tma_store" not in made.source
