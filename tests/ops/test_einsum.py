"""`einsum`: NumPy's subscripts, permuted results through views and bulk copies, refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.ops.layouts import layouts
from tests.schedule.small import CASES
from tests.turns import calls_on

import tilewright as tw
from tilewright.functions.philox import rounds
from tilewright.functions.table import DERIVATIVES, FUNCTIONS
from tilewright.ops.contraction import posed, read_subscripts
from tilewright.ops.einsum import ARRAYS, plan_einsum
from tilewright.ops.wanted import Dropout, Wanted
from tilewright.runtime.arrays import describe
from tilewright.tune.einsum_trial import Contracted, EinsumTrial

pytestmark = pytest.mark.in_turns(3)

TARGETS = pytest.mark.parametrize("target", ["reference", "cpu"])
Array = np.ndarray[Any, Any]


def derivative_of(name: str, x: Array) -> Array:
    """The derivative of an activation, of f32 or f64."""

    def call(function: str, *given: Any) -> Array:
        return np.asarray(FUNCTIONS[function].meaning(*(np.asarray(one, x.dtype) for one in given)))

    return np.asarray(DERIVATIVES[name](x, call))


HEADS = "bsk,khd->bhsd"
"""A projection to heads: what a layer of attention begins with."""

CONTRACTIONS = {
    "bik,kj->bij": ((2, 5, 6), (6, 7)),
    HEADS: ((2, 7, 6), (6, 3, 4)),
    "bhsd,hde->bse": ((2, 3, 5, 4), (3, 4, 6)),
    "abcd,dcef->bfae": ((3, 4, 5, 6), (6, 5, 2, 7)),
    "aibk,kj->abij": ((2, 3, 4, 5), (5, 6)),
    "abcde,edfgh->hbgcfa": ((2, 3, 2, 2, 3), (3, 2, 2, 3, 2)),
    "bij,bjk->ikb": ((3, 4, 5), (3, 5, 6)),
    "ij,jk": ((3, 4), (4, 5)),
    "ca,bc": ((3, 4), (5, 3)),
    "cb,ca": ((3, 4), (3, 5)),
    "i,j->ij": ((3,), (4,)),
    "i,i": ((30,), (30,)),
    "bi,bi->b": ((3, 4), (3, 4)),
    "ii,ij->j": ((4, 4), (4, 5)),
    "ij,k->k": ((3, 4), (5,)),
    ",->": ((), ()),
    "ij,->ji": ((3, 4), ()),
    "...ij,jk->...ik": ((2, 3, 4, 5), (5, 6)),
    "...ij,...jk->ik...": ((2, 1, 4, 5), (3, 5, 6)),
    "i...,i": ((4, 3, 2), (4,)),
    "ij,jk->ki": ((1, 4), (4, 5)),
    "ij,jk->ik": ((0, 4), (4, 5)),
    "ik,kj->ij": ((3, 0), (0, 5)),
}


def whole(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> Array:
    """Return small integers whose sums and products are exact."""
    return np.asarray(rng.integers(-3, 4, shape)).astype(tw.dtype(kind).numpy)


@pytest.mark.parametrize(
    ("subscripts", "target"),
    [
        *((one, "reference") for one in CONTRACTIONS),
        *((one, "cpu") for one in [*CONTRACTIONS][1:6]),
        *(pytest.param(one, "cuda", marks=pytest.mark.gpu) for one in CONTRACTIONS),
    ],
)
def test_contractions_are_numpy_s(subscripts: str, target: str) -> None:
    rng = np.random.default_rng(1)
    a, b = (whole(rng, shape, "f32") for shape in CONTRACTIONS[subscripts])
    want = np.einsum(subscripts, a, b)
    there = [tw.testing.device_put(one, target) for one in (a, b)]
    for _ in calls_on(target):
        made = tw.testing.device_get(tw.einsum(subscripts, *there, target=target))
        assert made.shape == want.shape
        assert np.array_equal(made, want)


@pytest.mark.parametrize("target", ["reference", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("shape", [(3, 1, 4), (2, 1, 7, 1), (2, 3, 1, 1), (2, 3, 7, 4), (7, 1), (1,), ()])
def test_what_is_added_is_broadcast_as_by_numpy(shape: tuple[int, ...], target: str) -> None:
    rng = np.random.default_rng(2)
    a, b = whole(rng, (2, 7, 6), "f16"), whole(rng, (6, 3, 4), "f16")
    bias, residual = whole(rng, shape, "f16"), whole(rng, (3, 7, 4), "f16")
    want = np.maximum(-0.5 * np.einsum(HEADS, a, b).astype(np.float64) + bias, 0) + residual
    there = [tw.testing.device_put(one, target) for one in (a, b, bias, residual)]
    words = {"bias": there[2], "residual": there[3], "activation": "relu"}
    made = tw.einsum(HEADS, *there[:2], alpha=-0.5, **words, target=target)
    assert np.array_equal(tw.testing.device_get(made), want)


@TARGETS
def test_results_of_any_strides_and_nothing_outside_of_them(target: str) -> None:
    rng = np.random.default_rng(3)
    a, b = whole(rng, (2, 140, 24), "f16")[:, :, ::2], whole(rng, (12, 3, 8), "f16")[::-1]
    out = np.full((3, 2, 9, 141), np.nan, np.float32)
    inner = out[..., :-1, 1:].transpose(1, 0, 3, 2)
    assert tw.einsum(HEADS, a, b, inner, target=target) is inner
    assert np.array_equal(inner, np.einsum(HEADS, a.astype(np.float32), b.astype(np.float32)))
    inner[...] = np.nan
    assert np.isnan(out).all()


def test_the_plan_of_a_result_without_elements_launches_nothing() -> None:
    given = dict.fromkeys(ARRAYS) | {"a": np.ones((0, 3), np.float32), "b": np.ones((3, 4), np.float32)}
    plan = plan_einsum("mk,kn->mn", given, Wanted(target="reference"))
    assert str(plan) == "no launch: the result is empty"
    assert (plan.launches, plan.schedule, plan.moved_bytes, plan.run()) == ((), None, 0, ())
    assert plan.launch().result.shape == (0, 4)


BULK = {
    "heads of 64": (HEADS, ((2, 128, 64), (64, 2, 64)), True),
    "heads of 128": (HEADS, ((1, 70, 72), (72, 2, 128)), True),
    "short rows": (HEADS, ((3, 64, 64), (64, 3, 64)), True),
    "K of two strides": ("bhsd,hde->bse", ((2, 2, 128, 64), (2, 64, 72)), True),
    "rows of two strides": ("aibk,kj->abij", ((2, 64, 3, 64), (64, 64)), True),
    "heads first": ("bsk,khd->hbsd", ((2, 70, 64), (64, 3, 128)), True),
    "heads of 40": (HEADS, ((2, 70, 64), (64, 3, 40)), False),
}
"""Whether bulk copies carry everything."""


def compiled(subscripts: str, shapes: Any, schedule: Any) -> Any:
    """Return the kernel for an H200, for f16 with a bias."""
    given = Contracted.drawn(subscripts, shapes, tw.f16).arrays
    in_call = {name: given.get(name) for name in ARRAYS}
    product = plan_einsum(subscripts, in_call, Wanted(schedule=schedule)).product
    return product.kernel.compile(*product.arrays, *product.numbers, target="cuda", arch="sm_90a")


@pytest.mark.parametrize("target", ["reference", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(
    ("name", "epilogue"), [*((name, "staged") for name in BULK), ("short rows", "overlapped")]
)
def test_boxes_of_views_are_carried_by_bulk_copies(name: str, epilogue: str, target: str) -> None:
    """The reference executes them as an H200 does; each element equals the graph's."""
    subscripts, shapes, by_bulk = BULK[name]
    schedule = replace(CASES["cooperative, overlapped"].schedule, epilogue=epilogue)
    trial = EinsumTrial(Contracted.drawn(subscripts, shapes, tw.f16), target, "silu", schedule)
    trial.run()
    trial.verify().raise_if_wrong()
    made = compiled(subscripts, shapes, schedule)
    assert made.schedule == schedule
    assert ("tma_store" in made.source) == by_bulk
    assert any("stored by threads, row by row, instead of TMA" in note for note in made.notes) != by_bulk


@pytest.mark.parametrize("target", ["reference", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_stores_of_any_path_have_the_same_bits(target: str) -> None:
    subscripts, shapes, _ = BULK["heads of 64"]
    drawn = Contracted.drawn(subscripts, shapes, tw.f16, residual=True)
    found = []
    for path in ("direct", "staged", "overlapped"):
        schedule = replace(CASES["cooperative, overlapped"].schedule, epilogue=path)
        trial = EinsumTrial(drawn, target, "gelu", schedule)
        trial.run()
        found.append(trial.result().view(np.uint16))
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])
    assert len(np.unique(found[0])) > 1000


@pytest.mark.parametrize("subscripts", ["i,jk->i", "jk,i->i", "ijk,k->i", "k,ijk->ij"])
def test_axes_that_are_read_backwards_are_seen_as_forwards(subscripts: str) -> None:
    """Negative strides add no dimension: axes that can be joined forwards can be joined backwards."""
    a, b, out = subscripts.replace("->", ",").split(",")
    extents, named = {"i": 4, "j": 10, "k": 6}, read_subscripts(subscripts, (len(a), len(b)))
    found = []
    for step in (1, -1):
        infos = {}
        for name, letters in (("a", a), ("b", b), ("out", out)):
            apart = np.empty([*(extents[one] for one in letters), 2], np.float32)[..., 0]
            infos[name] = describe(apart[(slice(None, None, step),) * len(letters)])
        found.append(posed(named, layouts(infos)))
    forwards, backwards = found
    assert [name for name, _ in backwards.contraction.seen] == ["a", "b", "out"]
    assert backwards.contraction == forwards.contraction
    for name, one in backwards.layouts.items():
        assert one.shape == forwards.layouts[name].shape
        assert tuple(map(abs, one.strides)) == forwards.layouts[name].strides


def test_a_batch_along_which_an_operand_repeats_is_joined_with_rows_if_strides_allow_it() -> None:
    """It is joined as in `matmul`; otherwise it stays a batch, and no array needs a view."""
    named = read_subscripts("bij,bjk->bik", (3, 3))
    b, out = np.empty((1, 6, 10), np.float32), np.empty((5, 7, 10), np.float32)
    for rows, batches in ((7, 0), (8, 1)):  # with a gap between the batches, rows cannot be joined
        a = np.empty((5, rows, 6), np.float32)[:, :7]
        infos = {"a": describe(a), "b": describe(b), "out": describe(out)}
        made = posed(named, layouts(infos))
        assert made.contraction.batch == batches
        assert made.problem is not None
        assert made.problem.m == (7 if batches else 35)


def test_a_projection_to_heads_has_the_main_loop_of_a_product() -> None:
    made = compiled(HEADS, ((2, 2048, 512), (512, 64, 64)), None)
    assert (made.schedule.staging, made.schedule.atom.asynchronous) == ("tma", True)
    assert made.schedule.tile == (128, 256, 64)
    assert made.resources["spill_store_bytes"] == 0
    assert "tma_store_4d" in made.source


def test_the_comparison_rejects_other_elements() -> None:
    trial = EinsumTrial(Contracted.drawn(HEADS, ((2, 7, 6), (6, 3, 4)), tw.f32), "reference")
    trial.run()
    assert trial.verify().ok
    stored = trial.launch()
    stored[0, 1], stored[1, 1] = stored[1, 1].copy(), stored[0, 1].copy()
    assert not EinsumTrial.verify(trial).ok


@pytest.mark.parametrize(
    ("subscripts", "shapes", "message"),
    [
        ("ij,jk,kl", ((2, 3), (3, 4)), "3 operands.*choice: multiply two of them first"),
        ("ij->ij", ((2, 3), (3, 4)), "1 operands.*choice: ij,jk->ik"),
        (
            "ij,jk->il",
            ((2, 3), (3, 4)),
            "the result has 'l', which no operand has; nearest legal choice: ->i",
        ),
        ("ij,jk->ii", ((2, 3), (3, 4)), "'i' twice in the result; nearest legal choice: ->i"),
        (
            "ij,jk->ik",
            ((2, 3), (4, 5)),
            "axis 'j' has 3 and 4 elements; nearest legal choice: 3 in both",
        ),
        ("ijk,jk->ik", ((2, 3), (3, 5)), "'ijk' for a, an array of 2 dimensions"),
        ("ij,jk->ik", ((2, 2, 3), (3, 5)), r"nearest legal choice: \.\.\.ij"),
        ("i j,j1->ik", ((2, 3), (3, 5)), "'1' is no letter"),
        (
            "eXe,b->",
            ((5, 4, 1), (5,)),
            r"a has shape \(5, 4, 1\), and the axes of the diagonal 'e' have 5 and 1 .*: 1 in both",
        ),
        ("ij,kk->ik", ((2, 3), (1, 4)), "b has shape .* 'k' have 1 and 4 elements"),
        ("...ij,jk->ik", ((2, 2, 3), (3, 5)), r"have axes at \.\.\., and the result has no"),
    ],
)
def test_what_says_nothing_is_refused(subscripts: str, shapes: Any, message: str) -> None:
    a, b = (np.zeros(shape, np.float32) for shape in shapes)
    with pytest.raises(tw.LaunchError, match=message):
        tw.einsum(subscripts, a, b, target="reference")


def test_arguments_that_do_not_fit_are_refused() -> None:
    a, b = np.zeros((2, 3), np.float32), np.zeros((3, 4), np.float32)
    with pytest.raises(tw.LaunchError, match=r"out has shape \(2, 3\), the result has \(2, 4\)"):
        tw.einsum("ij,jk", a, b, a.copy(), target="reference")
    with pytest.raises(
        tw.LaunchError, match=r"bias has shape \(3,\), which does not broadcast to .*\(2, 4\)"
    ):
        tw.einsum("ij,jk", a, b, bias=np.zeros(3, np.float32), target="reference")
    with pytest.raises(tw.LaunchError, match="out and a share memory"):
        tw.einsum("ij,jk->ik", a, np.zeros((3, 3), np.float32), a, target="reference")
    with pytest.raises(tw.LaunchError, match="precision='f3'; choose one of exact, tf32, f32, f16"):
        tw.einsum("ij,jk", a, b, precision="f3", target="reference")
    with pytest.raises(tw.LaunchError, match="einsum: schedule= already fixes the split of K"):
        tw.einsum("ij,jk", a, b, split_k=2, schedule=CASES["direct"].schedule, target="reference")
    with pytest.raises(tw.DTypeError, match="out_dtype is i8, a @ b is f32: the fractions would be lost"):
        tw.einsum("ij,jk", a, b, out_dtype="i8", target="reference")
    with pytest.raises(tw.DTypeError, match="einsum of f32 and f16"):
        tw.einsum("ij,jk", a, b.astype(np.float16), target="reference")


@pytest.mark.parametrize(
    ("activation", "target"),
    [
        *((one, "reference") for one in DERIVATIVES),
        ("gelu", "cpu"),
        *(pytest.param(one, "cuda", marks=pytest.mark.gpu) for one in DERIVATIVES),
    ],
)
def test_gradients_go_back_through_activations(activation: str, target: str) -> None:
    drawn = Contracted.drawn(HEADS, ((2, 7, 6), (6, 3, 4)), tw.f32, bias=False, multiply=True)
    drawn.arrays["multiply"][0, 0, 0] = [np.inf, -np.inf, 1e30, -1e30]
    trial = EinsumTrial(drawn, target, derivative=activation)
    trial.run()
    trial.verify().raise_if_wrong()
    given = {name: one.astype(np.float64) for name, one in drawn.arrays.items()}
    gradient = np.einsum(HEADS, given["a"], given["b"])
    want = gradient * derivative_of(activation, given["multiply"])
    size = np.einsum(HEADS, abs(given["a"]), abs(given["b"]))
    off = np.abs(trial.result() - want)
    assert (off <= 2.0**-19 * np.abs(gradient) + 16 * 2.0**-24 * size).all()
    with pytest.raises(
        tw.LaunchError, match="derivative='gelu' needs multiply; nearest legal choice: multiply="
    ):
        tw.einsum("ij,jk", np.ones((2, 2)), np.ones((2, 2)), derivative="gelu", target="reference")


def test_derivatives_are_slopes() -> None:
    x = np.linspace(-9, 9, 1801) + 0.0003
    meaning = {name: FUNCTIONS[name].meaning for name in DERIVATIVES if name != "relu"}
    meaning["relu"] = lambda y: np.maximum(y, 0)
    for name in DERIVATIVES:
        slope = (meaning[name](x + 1e-5) - meaning[name](x - 1e-5)) / 2e-5
        assert np.abs(derivative_of(name, x) - slope).max() < 1e-9, name
        single = x.astype(np.float32)
        assert (
            np.abs(derivative_of(name, single) - derivative_of(name, single.astype(float))).max() < 2.0**-20
        )
        ends = derivative_of(name, np.array([-np.inf, np.inf, np.nan]))
        assert np.array_equal(ends.round(30), [0, name not in ("sigmoid", "tanh"), np.nan], equal_nan=True)


@pytest.mark.parametrize("target", ["reference", "cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_what_is_dropped_depends_on_the_place_in_the_result_alone(target: str) -> None:
    """Merged and looped axes, results of any strides, a second launch, and each target have one mask."""
    rng = np.random.default_rng(4)
    seed, offset, share = (1 << 62) + 12345, (7 << 32) + 3, 0.3
    for subscripts, shapes, order in (
        (HEADS, ((2, 7, 6), (6, 3, 4)), (0, 1, 2, 3)),
        (HEADS, ((2, 7, 6), (6, 3, 4)), (2, 3, 1, 0)),
        ("abcd,dcef->bfae", ((3, 4, 5, 6), (6, 5, 2, 7)), (0, 1, 2, 3)),
        ("bsk,khd->shbd", ((2, 130, 8), (8, 2, 8)), (0, 1, 2, 3)),
    )[: 4 if target != "cpu" else 1]:
        a, b = (whole(rng, shape, "f32") for shape in shapes)
        want = np.einsum(subscripts, a, b)
        residual = whole(rng, want.shape, "f32")
        kept = tw.testing.philox(np.arange(want.size).reshape(want.shape), seed, offset) >= round(
            share * 2**32
        )
        assert abs(kept.mean() - 0.7) < 5 / np.sqrt(want.size)
        out = np.empty([want.shape[axis] for axis in order], np.float32)
        there = [tw.testing.device_put(one, target) for one in (a, b, residual, out)]
        view = there[3].transpose(np.argsort(order)) if target != "cuda" else there[3]
        if target == "cuda" and order != (0, 1, 2, 3):
            continue
        for number in (seed, seed + 1, seed):
            words = {"dropout": share, "seed": number, "offset": offset}
            tw.einsum(subscripts, *there[:2], view, residual=there[2], **words, target=target)
        made = tw.testing.device_get(view)
        scale = np.float32(1 / (1 - share))
        assert np.array_equal(made, np.where(kept, want * scale, 0) + residual)


def test_dropout_is_one_kernel_whatever_its_numbers_and_refuses_others() -> None:
    a = np.ones((3, 3), np.float32)
    for words in ({"dropout": 1.0}, {"dropout": -0.1}, {"dropout": 0.5, "seed": -1}, {"offset": -1}):
        with pytest.raises(tw.LaunchError, match=f"einsum: {[*words][-1]}=.*; nearest legal choice"):
            tw.einsum("ij,jk", a, a, **words, target="reference")
    trial = EinsumTrial(
        Contracted.drawn(HEADS, ((2, 7, 6), (6, 3, 4)), tw.f16),
        "reference",
        "gelu",
        dropped=Dropout(0.5, 1, 2),
    )
    trial.run()
    trial.verify().raise_if_wrong()
    assert (trial.result() == 0).any()


def test_random_numbers_are_philox_s() -> None:
    """The published answers of Philox 4x32-10 for counters and keys of zeros and of ones are reproduced."""
    assert [hex(word) for word in tw.testing.philox(range(4), 0)] == [
        *("0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8")
    ]
    ones = (1 << 64) - 1
    words = rounds((np.uint64([ones >> 32]),) * 4, (ones >> 32, ones >> 32))
    assert [hex(int(word[0])) for word in words] == ["0x408f276d", "0x41c83b0e", "0xa20bc7c6", "0x6d5451fd"]
    assert np.array_equal(
        tw.testing.philox(np.arange(8), ones, ones)[:4], tw.testing.philox(range(4), ones, ones)
    )


def test_the_threshold_of_dropout_is_the_nearest_integer() -> None:
    """A tenth of ``2**32`` is 429496729.6, and three tenths are 1288490188.8: both are rounded."""
    assert [Dropout(share).numbers[2] for share in (0.1, 0.3, 0.5)] == [429496730, 1288490189, 2**31]
    assert Dropout(1 - 2.0**-40).numbers[2] == 2**32 - 1, "not one more, which 32 bits do not hold"
