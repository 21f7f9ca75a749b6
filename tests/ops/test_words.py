"""Each argument of a call is part of what its plan is found by, but for numbers that a kernel is given."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import pytest

import tilewright as tw
from tilewright.runtime.plans import Plan, Plans

N = 8
SQUARE, ROW, ROWS = np.ones((N, N), np.float32), np.ones(N, np.float32), np.ones((2, N), np.float32)
HALF, COMPLEX = SQUARE.astype(np.float16), SQUARE.astype(np.complex64)
BATCH, ENDS = SQUARE[None].copy(), np.int32([N])
SCHEDULE = tw.Schedule(tw.atoms.fma("f32"), (32, 32, 8))

TARGET = {"target": "reference"}
SPLIT = {"split_k": 2, "reduction": "atomic"}
DRAWN = {"dropout": 0.5, "seed": 7, "offset": 7}
SEEDS = frozenset({"seed", "offset"})
HOW = {"precision": "tf32", "out_dtype": "f64", "schedule": SCHEDULE, **TARGET}


class Case(NamedTuple):
    """An operation, and another value of each of its arguments.

    Args:
        call: the operation.
        arrays: its first arguments.
        others: what is given for each argument behind them instead of its default.
        numbers: arguments that say nothing but what the kernel is given. A plain `matmul` has a shorter key,
            so that its seed alone finds another plan.
        plans: where its plans are kept.
        given: what is given by name in every call, if anything must be.
    """

    call: Callable[..., Any]
    arrays: Sequence[Any]
    others: Mapping[str, Any]
    plans: str
    numbers: frozenset[str] = frozenset()
    given: Mapping[str, Any] = {}


CASES = {
    "matmul": Case(
        tw.matmul,
        (SQUARE, SQUARE),
        {"out": SQUARE.copy(), "c": SQUARE, "alpha": 2.0, "beta": 0.0, "bias": ROW, "activation": "relu"}
        | {"multiply": SQUARE, "derivative": "relu", **DRAWN, "residual": SQUARE, "saturate": True}
        | {**HOW, **SPLIT, "batch_invariant": True},
        "matmul",
    ),
    "complex_matmul": Case(
        tw.complex_matmul,
        (COMPLEX, COMPLEX),
        {"c": COMPLEX, "alpha": 2.0, "beta": 0.0, "out": COMPLEX.copy(), "conjugate_a": True}
        | {"conjugate_b": True, "method": "3m", **HOW, "out_dtype": "c128", **SPLIT, "batch_invariant": True},
        "complex_matmul",
    ),
    "einsum": Case(
        tw.einsum,
        ("ij,jk->ik", SQUARE, SQUARE),
        {"out": SQUARE.copy(), "c": SQUARE, "alpha": 2.0, "beta": 0.0, "bias": ROW, "activation": "relu"}
        | {"multiply": SQUARE, "derivative": "relu", **DRAWN, "residual": SQUARE, "saturate": True}
        | {**HOW, **SPLIT, "batch_invariant": True, "conjugate_a": True, "conjugate_b": True},
        "einsum",
        SEEDS | {"conjugate_a", "conjugate_b"},  # of real numbers
    ),
    "scaled_mm": Case(
        tw.scaled_mm,
        (HALF, HALF),
        {"out": HALF.copy(), "scale_a": 2.0, "scale_b": ROW, "zero_b": ROWS, "group": 4, "bias": ROW}
        | {"activation": "relu", "out_dtype": "f32", "prepass": True, "schedule": SCHEDULE, **TARGET}
        | {"c": SQUARE, "beta": 0.0, "multiply": SQUARE, "derivative": "relu", **DRAWN, "residual": SQUARE}
        | {**SPLIT, "batch_invariant": True},
        "scaled",
        SEEDS,
    ),
    "scaled_mm of groups": Case(
        tw.scaled_mm,
        (HALF, HALF),
        {"out": HALF.copy(), "scale_a": 2.0, "scale_b": BATCH[0, :2].copy(), "zero_b": ROWS, "group": 8}
        | {"bias": ROW, "activation": "relu", "out_dtype": "f32", "prepass": False, "schedule": SCHEDULE}
        | {"c": SQUARE, "beta": 0.0, "multiply": SQUARE, "derivative": "relu", **DRAWN, "residual": SQUARE}
        | {**TARGET, **SPLIT, "batch_invariant": True},
        "scaled",
        SEEDS,
        given={"scale_b": HALF[:2].copy(), "group": 4},
    ),
    "reduced_matmul": Case(
        tw.reduced_matmul,
        (SQUARE, SQUARE),
        {"reduce": "max", "axis": -2, "out": ROW.copy(), "alpha": 2.0, "bias": ROW, "activation": "relu"}
        | {"product": SQUARE.copy(), "precision": "tf32", "schedule": SCHEDULE, **TARGET},
        "reduced_matmul",
        given={"reduce": "sum"},
    ),
    "gated_matmul": Case(
        tw.gated_matmul,
        (HALF, HALF, HALF),
        {"out": HALF.copy(), "activation": "relu", "scale_a": 2.0, "scale_b": ROW, "scale_c": 0.5}
        | {"bias_b": ROW, "bias_c": ROW, "multiply": SQUARE, **DRAWN, "residual": SQUARE, **HOW}
        | {"out_dtype": "f32", **SPLIT, "batch_invariant": True},
        "gated_matmul",
        SEEDS,
    ),
    "grouped_matmul": Case(
        tw.grouped_matmul,
        (SQUARE, BATCH),
        {"ends": ENDS.astype(np.int64), "out": SQUARE.copy(), "bias": ROWS[:1], "activation": "relu", **HOW},
        "grouped",
        given={"ends": ENDS},
    ),
    "gemm_chain": Case(
        tw.gemm_chain,
        (SQUARE, SQUARE, SQUARE),
        {"activation": "relu", "out": SQUARE.copy(), "fused": True, **TARGET},
        "gemm_chain",
    ),
    "col2im": Case(
        tw.col2im,
        (np.ones((16, 4), np.float32),),
        {"shape": (5, 5, 1, 1), "spatial": (2, 1), "filter": (1, 4), "stride": 2, "dilation": 2, "padding": 1}
        | {"batch": 3, "channel": 0, "group": 0, "groups": 2, "out": np.ones((1, 5, 5, 1), np.float32)}
        | {"accumulate": True, **TARGET},
        "col2im",
        given={"shape": (1, 5, 5, 1), "spatial": (1, 2), "filter": (2, 2)},
    ),
    "attention": Case(
        tw.attention,
        (SQUARE, SQUARE, SQUARE),
        {"causal": True, "diagonal": 1, "scale": 0.5, "out": SQUARE.copy(), "lse": ROW.copy()}
        | {"return_lse": True, "kernel": "warps", **TARGET},
        "attention",
    ),
}


class StoppedError(Exception):
    """A call that would be planned."""


class Noted(Plans):
    """Plans that remember what was found, and stop a call that is not known if that is wanted."""

    def __init__(self) -> None:
        super().__init__()
        self.found = list[Plan | None]()
        self.stops = False
        self.look_up, self.find = self.find, self._noted

    def _noted(self, key: Any) -> Plan | None:
        self.found.append(self.look_up(key))
        if self.stops and self.found[-1] is None:
            raise StoppedError
        return self.found[-1]


@pytest.fixture
def plans(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Noted:
    """The plans of an operation, of which there are none."""
    noted = Noted()
    monkeypatch.setattr(f"tilewright.ops.{CASES[request.node.callspec.params['name']].plans}._PLANS", noted)
    return noted


@pytest.mark.parametrize("name", CASES)
def test_another_argument_finds_another_plan(name: str, plans: Noted) -> None:
    case = CASES[name]
    given = {**case.given, "target": "cpu"}
    parameters = [*inspect.signature(case.call).parameters][len(case.arrays) :]
    assert {*parameters} == {*case.others, "stream"}, "each argument has another value here"
    case.call(*case.arrays, **given)
    case.call(*case.arrays, **given)
    assert plans.found[-1] is not None, "the same call is known"
    known, plans.stops = plans.found[-1], True
    for parameter, other in case.others.items():
        plans.found.clear()
        with suppress(StoppedError, tw.TilewrightError):  # some arguments do not go together
            case.call(*case.arrays, **{**given, parameter: other})
        assert plans.found or parameter == "schedule", "a call with a schedule is planned each time"
        assert (known in plans.found) == (parameter in case.numbers), parameter


def test_other_subscripts_find_another_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.ops.einsum._PLANS", plans := Noted())
    a, b = np.arange(64, dtype=np.float32).reshape(2, N, 4)[0], np.ones((4, N), np.float32)
    for subscripts, product in (("ij,jk->ik", a @ b), ("ij,jk->ki", (a @ b).T)):
        assert (tw.einsum(subscripts, a, b, target="cpu") == product).all()
    assert plans.found == [None, None]
