"""Weights widened in memory before the product: every element, repeated calls, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.checking.compare import Accumulation
from tilewright.checking.flows import compare_flow
from tilewright.ops.products import scaled
from tilewright.ops.scaled import ARRAYS, ScaledExtras, plan_scaled
from tilewright.ops.scales import pays_widened
from tilewright.ops.wanted import Wanted
from tilewright.ops.widening import Wide, widen
from tilewright.runtime.arrays import describe
from tilewright.runtime.frameworks import Strided
from tilewright.targets.target import CUDA

ON_ALL = pytest.mark.parametrize("target", ["reference", "cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
HOPPER = CUDA.architecture("sm_90a").features
Array = np.ndarray[Any, Any]


def drawn(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> Array:
    if kind == "i8":
        return rng.integers(-128, 128, shape).astype(np.int8)
    return rng.standard_normal(shape).astype(tw.dtype(kind).numpy)


def odd(array: Array, along_k: bool) -> Array:
    """Return the same numbers inside of a larger array, with longer rows of K or of N."""
    k, n = array.shape
    around = np.full((n, k + 5) if along_k else (k, n + 3), 1, array.dtype)
    there = around[:, :k].T if along_k else around[:, :n]
    there[...] = array
    return there


@pytest.mark.in_turns(4)
@ON_ALL
@pytest.mark.parametrize("along_k", [True, False])
@pytest.mark.parametrize(("wide", "narrow"), [("f16", "f8e4m3"), ("bf16", "i8")])
def test_every_element_is_within_the_bound_of_its_graph(
    wide: str, narrow: str, along_k: bool, target: str
) -> None:
    rng, (m, n, k) = np.random.default_rng(5), (37, 43, 530)
    a, b = drawn(rng, (m, k), wide), odd(drawn(rng, (k, n), narrow), along_k)
    scale, bias = rng.uniform(0.01, 0.02, n).astype(np.float32), rng.standard_normal(n).astype(np.float32)
    put, back = tw.testing.device_put, tw.testing.device_get
    on = [put(one, target) for one in (a, b, scale, bias)]
    asked = {"scale_b": on[2], "bias": on[3], "activation": "relu", "target": target}
    made = back(tw.scaled_mm(on[0], on[1], **asked, prepass=True))
    again = back(tw.scaled_mm(on[0], on[1], **asked, prepass=True))
    assert np.array_equal(made, again)
    kernel = scaled(0).bind(
        multiplied=tw.dtype(wide), terms=frozenset({"scale_b", "bias"}), activation="relu"
    )
    given = {"A": a, "B": b, "scale_a": np.ones(m, np.float32), "scale_b": scale, "bias": bias}
    flow = kernel.flow(*given.values(), made, 1.0)
    atom = kernel.schedule_for(*given.values(), made, 1.0, target=target).atom
    found = compare_flow(flow, {"D": made}, given, {"alpha": 1.0}, Accumulation.of(atom))
    found.raise_if_wrong()
    a[3] = np.roll(a[3], 1)
    wrong = compare_flow(flow, {"D": made}, given, {"alpha": 1.0}, Accumulation.of(atom))
    with pytest.raises(tw.WrongResultError):
        wrong.raise_if_wrong()


@ON_ALL
def test_batches_share_what_repeats_and_calls_see_other_arrays(target: str) -> None:
    rng = np.random.default_rng(6)
    for _ in range(2):
        a = rng.integers(-3, 4, (3, 5, 24)).astype(np.float16)
        b = rng.integers(-3, 4, (24, 16)).astype(np.int8)
        there, weights = tw.testing.device_put(a, target), tw.testing.device_put(b, target)
        made = tw.scaled_mm(there, weights, scale_a=2.0, prepass=True, target=target)
        assert np.array_equal(tw.testing.device_get(made), 2.0 * (a.astype(np.float64) @ b))


@pytest.mark.parametrize("repeated", [(0,), (1,), (2,), (0, 1), (0, 2), (0, 1, 2)], ids=str)
def test_what_batches_repeat_takes_memory_once(repeated: tuple[int, ...]) -> None:
    batch = [1 if dim in repeated else extent for dim, extent in enumerate((3, 4, 5))]
    one = np.empty((*batch, 24, 48), np.int8)
    copies = [
        Wide.of(Strided(x, describe(x)), tw.f16).copy for x in (one, np.broadcast_to(one, (3, 4, 5, 24, 48)))
    ]
    assert copies[0].bytes == copies[1].bytes == 2 * one.size
    assert copies[1].strides == tuple(
        0 if dim in repeated else step for dim, step in enumerate(copies[0].strides)
    )


def test_it_is_done_where_it_was_measured_to_pay() -> None:
    def asked(rows: int, order: str, *, b: str = "f8e4m3", n: int = 4096) -> bool:
        weights = np.empty((4096, n), tw.dtype(b).numpy, order=order)
        infos = {"a": describe(np.empty((rows, 4096), np.float16)), "b": describe(weights)}
        return pays_widened(infos, tw.f16, HOPPER)

    assert [asked(rows, "F") for rows in (256, 4096, 8192)] == [False, False, True]
    assert [asked(rows, "C") for rows in (256, 1024, 4096)] == [False, False, True]
    assert not asked(8192, "F", b="f16")
    assert not asked(8192, "F", n=64)


def test_the_pass_moves_16_bytes_at_once() -> None:
    given = tw.like("f8e4m3", 4096, 4096), tw.like("f16", 4096, 4096)
    made = widen(0).compile(*given, target="cuda", arch="sm_90a")
    assert "16 bytes at a time" in made.source
    assert made.resources["spill_store_bytes"] == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"b": np.ones((6, 5), np.float16)}, "b is f16, a is f16, and they are multiplied in f16"),
        ({"a": np.ones((4, 6), np.int8)}, "multiplied in"),
        ({"prepass": "yes"}, "prepass must be True or False"),
    ],
    ids=str,
)
def test_a_pass_that_widens_nothing_is_refused(change: dict[str, Any], message: str) -> None:
    given = {"a": np.ones((4, 6), np.float16), "b": np.ones((6, 5), np.int8), "prepass": True, **change}
    with pytest.raises(tw.LaunchError, match=message):
        tw.scaled_mm(given.pop("a"), given.pop("b"), **given, target="reference")


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_two_launches_on_the_host_refuse_a_stream_as_one_does(target: str) -> None:
    """Both the first call and a replayed one refuse it."""
    a, b = np.ones((9, 32), np.float16), np.ones((32, 11), np.int8)
    rule = f"stream='left' is for GPUs; the {target} target runs before it returns; .*: stream=None"
    for prepass in (False, True):
        for _ in range(2):
            with pytest.raises(tw.LaunchError, match=rule):
                tw.scaled_mm(a, b, prepass=prepass, stream="left", target=target)
            tw.scaled_mm(a, b, prepass=prepass, target=target)


def test_a_plan_does_not_count_arrays_that_stand_for_absent_ones() -> None:
    """The launch writes and reads a copy of B; scales and bias are absent and count nothing."""
    a, b = np.ones((64, 32), np.float16), np.ones((32, 48), np.int8)
    given = dict.fromkeys(ARRAYS) | {"a": a, "b": b}
    plan = plan_scaled(given, Wanted(target="reference"), ScaledExtras(prepass=True))
    copy_bytes = 32 * 48 * 2
    assert plan.moved_bytes == a.nbytes + b.nbytes + 2 * copy_bytes + plan.result.nbytes
