"""Each argument of a call is part of its plan's key, except numbers that are passed to the kernel."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import pytest

import tilewright as tw
from tilewright.ops.replay import MOST_CHANGES, CallForm, WholeCall
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
        others: values for the arguments after them, other than the defaults.
        numbers: arguments that say nothing but what the kernel is given.
        plans: where its plans are kept.
        given: arguments that every call needs, by name.
    """

    call: Callable[..., Any]
    arrays: Sequence[Any]
    others: Mapping[str, Any]
    plans: str
    numbers: frozenset[str] = frozenset()
    given: Mapping[str, Any] = {}


PLANNED = {"schedule", "q_offsets", "k_offsets", "k_lengths", "k_pages"}
"""Calls with these arguments are planned each time: offsets in host memory are checked at every call."""

CASES = {
    "matmul": Case(
        tw.matmul,
        (SQUARE, SQUARE),
        {"out": SQUARE.copy(), "c": SQUARE, "alpha": 2.0, "beta": 0.0, "bias": ROW, "activation": "relu"}
        | {"multiply": SQUARE, "derivative": "relu", **DRAWN, "residual": SQUARE, "saturate": True}
        | {"sums": SQUARE.copy(), **HOW, **SPLIT, "batch_invariant": True},
        "matmul",
        SEEDS,
    ),
    "complex_matmul": Case(
        tw.complex_matmul,
        (COMPLEX, COMPLEX),
        {"c": COMPLEX, "alpha": 2.0, "beta": 0.0, "out": COMPLEX.copy(), "conjugate_a": True}
        | {"conjugate_b": True, "method": "3m", **HOW, "out_dtype": "c128", **SPLIT, "batch_invariant": True}
        | {"multiply": COMPLEX, **DRAWN},
        "complex_matmul",
        SEEDS,
    ),
    "einsum": Case(
        tw.einsum,
        ("ij,jk->ik", SQUARE, SQUARE),
        {"out": SQUARE.copy(), "c": SQUARE, "alpha": 2.0, "beta": 0.0, "bias": ROW, "activation": "relu"}
        | {"multiply": SQUARE, "derivative": "relu", **DRAWN, "residual": SQUARE, "saturate": True}
        | {**HOW, **SPLIT, "batch_invariant": True, "conjugate_a": True, "conjugate_b": True}
        | {"scale_a": 2.0, "scale_b": ROW},
        "einsum",
        SEEDS | {"conjugate_a", "conjugate_b"},  # of real numbers
    ),
    "scaled_mm": Case(
        tw.scaled_mm,
        (HALF, HALF),
        {"out": HALF.copy(), "scale_a": 2.0, "scale_b": ROW, "zero_b": ROWS, "group": 4, "bias": ROW}
        | {"activation": "relu", "out_dtype": "f32", "prepass": True, "schedule": SCHEDULE, **TARGET}
        | {"c": SQUARE, "beta": 0.0, "multiply": SQUARE, "derivative": "relu", **DRAWN, "residual": SQUARE}
        | {**SPLIT, "batch_invariant": True, "table": tw.NF4},
        "scaled",
        SEEDS,
    ),
    "scaled_mm of groups": Case(
        tw.scaled_mm,
        (HALF, HALF),
        {"out": HALF.copy(), "scale_a": 2.0, "scale_b": BATCH[0, :2].copy(), "zero_b": ROWS, "group": 8}
        | {"bias": ROW, "activation": "relu", "out_dtype": "f32", "prepass": False, "schedule": SCHEDULE}
        | {"c": SQUARE, "beta": 0.0, "multiply": SQUARE, "derivative": "relu", **DRAWN, "residual": SQUARE}
        | {**TARGET, **SPLIT, "batch_invariant": True, "table": tw.NF4},
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
        {"ends": ENDS.astype(np.int64), "out": SQUARE.copy(), "bias": ROWS[:1], "activation": "relu", **HOW}
        | {"alpha": 2.0, "beta": 0.0, "c": SQUARE, "multiply": SQUARE, "derivative": "relu", **DRAWN}
        | {"residual": SQUARE, "saturate": True},
        "grouped",
        SEEDS,
        given={"ends": ENDS},
    ),
    "gemm_chain": Case(
        tw.gemm_chain,
        (SQUARE, SQUARE, SQUARE),
        {"activation": "relu", "out": SQUARE.copy(), "fused": True, **TARGET, "alpha": 2.0, "bias_b": ROW}
        | {"bias_c": ROW, "multiply": SQUARE, **DRAWN, "residual": SQUARE, "precision": "tf32"}
        | {"out_dtype": "f64", "saturate": True},
        "gemm_chain",
        SEEDS,
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
        | {"return_lse": True, "out_dtype": "f16", "window": 5, "soft_cap": 3.0}
        | {"bias": ROW.copy(), "sinks": ROW[:1].copy(), "q_offsets": ENDS, "k_offsets": ENDS}
        | {"k_lengths": ENDS, "k_pages": ENDS[None], **DRAWN, **TARGET},
        "attention",
        SEEDS,
    ),
    "attention_backward": Case(
        tw.attention_backward,
        (SQUARE, SQUARE, SQUARE, SQUARE, ROW, SQUARE),
        {"causal": True, "diagonal": 1, "scale": 0.5, "window": 5, "soft_cap": 3.0, "bias": ROW.copy()}
        | {name: SQUARE.copy() for name in ("dq", "dk", "dv")}
        | {"q_offsets": ENDS, "k_offsets": ENDS, **DRAWN, **TARGET}
        | {"sinks": ROW[:1].astype(np.float16), "dbias": ROWS[:1].copy(), "dsinks": ROW[1:2].copy()}
        | {"return_dbias": True, "return_dsinks": True},
        "attention_backward",
        SEEDS,
        given={"bias": ROWS[:1].copy(), "sinks": ROW[1:2].copy()},
    ),
}


class StoppedError(Exception):
    """A call that would be planned."""


class Noted(Plans):
    """Plans that note their look-ups, and can stop unknown calls."""

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
    """Replace an operation's plans by a record of its look-ups."""
    noted, where = Noted(), f"tilewright.ops.{CASES[request.node.callspec.params['name']].plans}"
    import_module(where)._PLANS.forget()  # whole calls are kept there
    monkeypatch.setattr(f"{where}._PLANS", noted)
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
        assert plans.found or parameter in PLANNED
        assert (known in plans.found) == (parameter in case.numbers), parameter


def test_other_subscripts_find_another_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    import_module("tilewright.ops.einsum")._PLANS.forget()
    monkeypatch.setattr("tilewright.ops.einsum._PLANS", plans := Noted())
    a, b = np.arange(64, dtype=np.float32).reshape(2, N, 4)[0], np.ones((4, N), np.float32)
    for subscripts, product in (("ij,jk->ik", a @ b), ("ij,jk->ki", (a @ b).T)):
        assert (tw.einsum(subscripts, a, b, target="cpu") == product).all()
    assert plans.found == [None, None]


# ---------------------------------------------------------------- whole calls


def kept(name: str) -> list[WholeCall]:
    """Return the calls of an operation that are kept whole."""
    calls = import_module(f"tilewright.ops.{CASES[name].plans}")._PLANS._calls
    return [*calls._values.values()]


def copies(values: Sequence[Any]) -> list[Any]:
    """Return the values, with a copy of each array in its own memory."""
    return [one.copy() if isinstance(one, np.ndarray) else one for one in values]


def bits(result: Any) -> tuple[type, list[bytes]]:
    """Return the bits of each result, and whether the results are a tuple."""
    return type(result), [one.tobytes() for one in (result if isinstance(result, tuple) else (result,))]


def test_a_tuple_of_one_reduction_stays_a_tuple() -> None:
    for _ in range(4):
        (made,) = tw.reduced_matmul(SQUARE, SQUARE, ("sum",), target="cpu")
        assert np.array_equal(made, tw.reduced_matmul(SQUARE, SQUARE, "sum", target="cpu"))


@pytest.mark.parametrize("name", CASES)
def test_a_repeated_call_gives_the_bits_of_the_planned_one(name: str) -> None:
    """One argument after the other is given, with random numbers in other memory and poisoned results."""
    case, rng = CASES[name], np.random.default_rng(5)
    plans = import_module(f"tilewright.ops.{case.plans}")._PLANS
    plans.forget()
    alone = [{}, *({one: other} for one, other in case.others.items() if one != "schedule")]

    def drawn(value: Any) -> Any:
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "fc":
            return value.copy() if isinstance(value, np.ndarray) else value
        return rng.uniform(0.5, 2, value.shape).astype(value.dtype)

    def call(more: Mapping[str, Any], given: Sequence[Any]) -> Any:
        named = {**case.given, "target": "cpu", **more}
        names = [*named]
        arrays, rest = given[: len(case.arrays)], dict(zip(names, given[len(case.arrays) :], strict=True))
        for written in ("out", "lse", "product", "dq", "dk", "dv", "dbias", "dsinks"):
            if isinstance(rest.get(written), np.ndarray):
                rest[written][...] = np.nan
        return case.call(*arrays, **rest)

    def values(more: Mapping[str, Any]) -> list[Any]:
        return [drawn(one) for one in (*case.arrays, *{**case.given, "target": "cpu", **more}.values())]

    expected = list[tuple[Mapping[str, Any], list[Any], tuple[type, list[bytes]]]]()
    for more in alone:
        for _ in range(2):
            plans.forget()
            given = values(more)
            with suppress(tw.TilewrightError):  # some arguments need others
                expected.append((more, given, bits(call(more, copies(given)))))
    plans.forget()
    for _ in range(4):
        for more, given, wanted in expected:
            assert bits(call(more, copies(given))) == wanted, more
    assert len(kept(name)) >= len(expected) // 4, "most calls are kept whole"


def test_an_array_that_is_passed_twice_is_two_arrays_of_another_call() -> None:
    rng = np.random.default_rng(6)
    x, y, z = (rng.random((N, N), np.float32) for _ in range(3))
    for _ in range(4):
        tw.gated_matmul(x, y, y, activation=None, target="cpu")
    found = tw.gated_matmul(x, y, z, activation=None, target="cpu")
    assert np.allclose(found, (x @ y) * (x @ z), rtol=1e-5)
    left, right, out = (one.astype(np.complex64) for one in (x, y, z))
    for _ in range(4):
        tw.complex_matmul(left, right, c=out, out=out, beta=0.5, target="cpu")
    c, out = np.ones_like(left), np.full_like(left, np.nan)
    for _ in range(4):
        tw.complex_matmul(left, right, c=c, out=out, beta=0.5, target="cpu")
    assert np.allclose(out, left @ right + 0.5, rtol=1e-5)


def test_an_array_that_is_changed_in_place_is_read_again() -> None:
    """The same object gets other strides, another shape, and another address."""
    rng = np.random.default_rng(7)
    a, b = rng.random((N, N), np.float32), rng.random((N, N), np.float32)
    for _ in range(4):
        tw.einsum("mk,kn->mn", a, b, target="cpu")
    assert kept("einsum")
    for _ in range(3):
        a.shape, b.shape = (4, 2 * N), (2 * N, 4)
        assert np.allclose(tw.einsum("mk,kn->mn", a, b, target="cpu"), a @ b, rtol=1e-5)
        a.shape, b.shape = (N, N), (N, N)
        assert np.allclose(tw.einsum("mk,kn->mn", a, b, target="cpu"), a @ b, rtol=1e-5)
    out = np.zeros((N, N), np.float32)
    for _ in range(4):
        tw.einsum("mk,kn->mn", a, b, out, target="cpu")
    out.flags.writeable = False
    with pytest.raises(tw.LaunchError, match="read-only"):
        tw.einsum("mk,kn->mn", a, b, out, target="cpu")


def test_values_that_are_equal_but_differ_have_other_keys() -> None:
    """Zeros of both signs share a form; 1 and 1.0 have forms of their own, and True is refused."""
    import_module("tilewright.ops.einsum")._PLANS.forget()
    a, c = np.zeros((N, N), np.float32), np.full((N, N), -0.0, np.float32)
    form = CallForm(("a", "beta", "alpha"), (a, 0.0, 1j))
    keys = [form.read((a, beta, alpha))[0] for beta in (0.0, -0.0) for alpha in (0j, complex(0, -0.0))]
    assert len({*keys}) == 4
    for alpha in (1, 1.0):
        for _ in range(3):
            assert (tw.einsum("mk,kn->mn", a, a, c=c, alpha=alpha, target="cpu") == 0).all()
    assert len(kept("einsum")) == 2
    with pytest.raises(tw.LaunchError, match="alpha=True"):
        tw.einsum("mk,kn->mn", a, a, c=c, alpha=True, target="cpu")


def test_numbers_that_change_are_not_kept() -> None:
    """A call with a new seed each time takes the ordinary path; repeated numbers are found."""
    plans = import_module("tilewright.ops.scaled")._PLANS
    plans.forget()
    a = np.ones((N, N), np.float32)
    for seed in range(2 * MOST_CHANGES):
        found = tw.scaled_mm(a, a, dropout=0.5, seed=seed + 1, offset=2, target="cpu")
        assert ((found == 0) | (found == 2 * N)).all()
        assert not kept("scaled_mm")
    for _ in range(3):
        for scale in range(1, 9):
            assert (tw.scaled_mm(a, a, scale_a=scale / 4, target="cpu") == N * scale / 4).all()
    assert len(kept("scaled_mm")) == 8, "numbers that come again are"
    seen = list[Any]()
    for seed in (3, 4):
        seen += [tw.scaled_mm(a, a, dropout=0.5, seed=seed, target="cpu").tobytes() for _ in range(4)]
    assert seen[:4] == [seen[0]] * 4
    assert seen[4:] == [seen[4]] * 4
    assert seen[0] != seen[4]


def test_what_is_returned_is_the_result_though_it_was_another_argument_too() -> None:
    rng = np.random.default_rng(8)
    a, b, out = (rng.random((N, N), np.float32) for _ in range(3))
    for _ in range(4):
        assert tw.matmul(a, b, out, residual=out, target="cpu") is out
    residual, other = np.ones((N, N), np.float32), np.full((N, N), np.nan, np.float32)
    for _ in range(4):
        assert tw.matmul(a, b, other, residual=residual, target="cpu") is other
        assert np.allclose(other, a @ b + 1, rtol=1e-5)
        assert (residual == 1).all()


def test_pairs_and_rearranged_weights_are_read_anew() -> None:
    """Planes in tuples and lists exchange their parts; weights get other scales."""
    import_module("tilewright.ops.complex_matmul")._PLANS.forget()
    rng = np.random.default_rng(9)
    planes = [rng.random((N, N), np.float32) for _ in range(6)]
    a, b, c, d, re, im = planes
    for first, second in (((a, b), [c, d]), ((b, a), [c, d]), ((a, b), [d, a])):
        out = [re, im]
        for _ in range(4):
            re[...] = im[...] = np.nan
            assert tw.complex_matmul(first, second, out=out, target="cpu") is out
            wanted = (first[0] + 1j * first[1]) @ (second[0] + 1j * second[1])
            assert np.allclose(re + 1j * im, wanted, rtol=1e-4)
    assert kept("complex_matmul")

    class Own(np.ndarray):
        """A user's class."""

    for _ in range(4):
        tw.complex_matmul((a.view(Own), b), [c, d], out=[re, im], target="cpu")
        assert np.allclose(re + 1j * im, (a + 1j * b) @ (c + 1j * d), rtol=1e-4)
    with pytest.raises(tw.LaunchError, match=r"a\[1\]: .*NoneType is not an array"):
        tw.complex_matmul((a, None), [c, d], out=[re, im], target="cpu")
    import_module("tilewright.ops.scaled")._PLANS.forget()
    x, codes = rng.random((N, 32), np.float32), rng.integers(-8, 8, (N, 32))
    b4 = tw.packed(tw.pack(codes, tw.i4).T, tw.i4)
    for factor in (1, 2, 3):
        scales = np.full((2, N), factor, np.float32)
        weights = tw.rearrange_weights(b4, scales, group=16, target="cpu")
        for _ in range(3):
            found = tw.scaled_mm(x, weights, target="cpu")
            assert np.allclose(found, factor * (x @ codes.T), rtol=1e-2, atol=1e-2)
    assert len(kept("scaled_mm")) == 1


def test_a_table_that_forgets_keeps_calls_of_every_form_again() -> None:
    """A form is kept again after `forget`, even if too many of its calls could not be kept."""
    plans = import_module("tilewright.ops.scaled")._PLANS
    rng = np.random.default_rng(3)
    x, w = rng.random((N, N), np.float32), rng.random((N, N), np.float32)
    scale = np.ones(N, np.float32)

    def repeat() -> int:
        for _ in range(3):
            found = tw.scaled_mm(x, w, scale_b=scale, target="cpu")
            assert np.allclose(found, x @ w, rtol=1e-4)
        return len(kept("scaled_mm"))

    plans.forget()
    assert repeat() == 1
    for form in plans.forms.values():
        form.is_kept = form.is_found = False
    plans._calls.forget(lambda _: True)
    assert repeat() == 0
    plans.forget()
    assert repeat() == 1
