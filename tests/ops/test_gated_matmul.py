"""`gated_matmul`: two products of the same rows; each element is within the bound of its graph."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.schedule.small import CASES
from tests.turns import calls_on

import tilewright as tw
from tilewright.checking.compare import Accumulation
from tilewright.checking.flows import compare_flow
from tilewright.checking.references import gated as exact
from tilewright.checking.references import worst_of
from tilewright.ops.gated_matmul import gated
from tilewright.schedule.question import Splitting
from tilewright.testing import device_get, device_put

pytestmark = pytest.mark.in_turns(3)

Array = np.ndarray[Any, Any]
ALL_TARGETS = pytest.mark.parametrize(
    "target", ["reference", "cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
)
SCALED = ("scale_a", "scale_b", "scale_c", "bias_b", "bias_c")
KINDS = ("f64", "f32", "f16", "bf16", "f8e4m3", "f8e5m2", "f8e4m3fnuz", "f8e5m2fnuz", "i8")


def drawn(kind: str, m: int, n: int, k: int, weights: str = "") -> dict[str, Array]:
    """Return operands with gaps between rows, or with reversed rows, and scales and biases of f32."""
    rng = np.random.default_rng(m + n + k)

    def numbers(shape: tuple[int, ...], name: str) -> Array:
        dtype = tw.dtype(name)
        made = rng.standard_normal(shape) if dtype.is_float else rng.integers(-20, 20, shape)
        return np.asarray(made).astype(dtype.numpy)

    weights = weights or kind
    found = {"a": numbers((m, k + 3), kind)[:, :-3], "b": numbers((k, n), weights)}
    found["c"] = numbers((n, k + 5), weights)[:, :-5].T[::-1]
    if kind != "f64":
        found |= {name: numbers((m if name == "scale_a" else n,), "f32") for name in SCALED}
    else:
        found |= {name: numbers((n,), "f64") for name in ("bias_b", "bias_c")}
    return found


def split(given: dict[str, Array]) -> tuple[list[Array], dict[str, Array]]:
    """Operands, and scales and biases."""
    return [given[name] for name in "abc"], {name: one for name, one in given.items() if len(name) > 1}


@ALL_TARGETS
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("m", "n", "k"), [(35, 70, 41), (1, 130, 200), (131, 3, 16), (40, 24, 0)])
def test_every_element(kind: str, m: int, n: int, k: int, target: str) -> None:
    given = drawn(kind, m, n, k)
    out_kind = "f64" if kind == "f64" else "f32"
    whole = np.full((m, n + 8), np.nan, tw.dtype(out_kind).numpy)
    held = device_put(whole, target)
    there = {name: device_put(one, target) for name, one in given.items()}
    first = b""
    for _ in calls_on(target):
        made = tw.gated_matmul(**there, out=held[:, 4:-4], target=target)
        assert made.shape == (m, n)
        back = device_get(held)
        assert not first or back.tobytes() == first, "the same bits when the launch is known"
        first = back.tobytes()
    assert np.isnan(back[:, :4]).all()
    assert np.isnan(back[:, -4:]).all()
    operands, scaling = split(given)
    unit = 2.0**-13 if target == "cuda" and kind.startswith("f8") else 0.0
    right = exact(*operands, "silu", tw.dtype(out_kind), scaling, unit)
    assert worst_of(back[:, 4:-4], right) <= 1


@ALL_TARGETS
@pytest.mark.parametrize(
    ("kind", "weights"),
    [("f16", "f8e4m3"), ("bf16", "i8"), ("f32", "f8e5m2"), ("f8e4m3", "i8"), ("i8", "f8e4m3fnuz")],
)
def test_weights_of_another_dtype(kind: str, weights: str, target: str) -> None:
    given = drawn(kind, 33, 40, 72, weights)
    there = {name: device_put(one, target) for name, one in given.items()}
    made = device_get(tw.gated_matmul(**there, activation="gelu", out_dtype="f32", target=target))
    operands, scaling = split(given)
    assert worst_of(made, exact(*operands, "gelu", tw.f32, scaling)) <= 1


MUTANTS = {
    "the products are exchanged": lambda x: {**x, "b": x["c"], "c": x["b"]},
    "the scales of columns are exchanged": lambda x: {**x, "scale_b": x["scale_c"], "scale_c": x["scale_b"]},
    "the biases are exchanged": lambda x: {**x, "bias_b": x["bias_c"], "bias_c": x["bias_b"]},
    "the second product has no bias": lambda x: {**x, "bias_c": 0 * x["bias_c"]},
    "the second product has no scale": lambda x: {**x, "scale_c": 0 * x["scale_c"] + 1},
    "rows have the scales of others": lambda x: {**x, "scale_a": x["scale_a"][::-1].copy()},
    "the last step along K is lost": lambda x: {**x, "a": x["a"][:, :-1], **{w: x[w][:-1] for w in "bc"}},
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_comparison_rejects_a_mutant(mutant: str) -> None:
    given = drawn("f32", 9, 20, 17)
    operands, scaling = split(given)
    right = exact(*operands, "silu", tw.f32, scaling)
    assert worst_of(tw.gated_matmul(**given, target="reference"), right) <= 1
    wrong = tw.gated_matmul(**MUTANTS[mutant](given), target="reference")
    assert worst_of(wrong, right) > 1
    assert worst_of(tw.gated_matmul(**given, activation="sigmoid", target="reference"), right) > 1


FORMS = [
    name
    for name, case in CASES.items()
    if not case.kinds
    and case.schedule.batches == 1
    and case.schedule.reduction != "reduce-scatter"
    and case.schedule.staging != "mixed"
]
"""All forms but those of several batch items, and of a reduction that divides one result alone.  Threads copy
next to bulk copies only arrays that these cannot carry, such as chosen rows.  These problems have none."""

ON_NVIDIA = [
    name
    for name in FORMS
    if (CASES[name].schedule.roles, CASES[name].schedule.staging) != ("alternating", "registers")
]
"""Alternating groups need matrix cores that work while other units load and compute, as AMD's do."""


def specimens(m: int, n: int, k: int, layout: str) -> dict[str, Any]:
    """Return the arrays of the kernel: f16 operands and an f32 result."""
    like: dict[str, Any] = {"A": tw.like("f16", (m, k), order="CF"[layout[0] == "t"])}
    like |= {name: tw.like("f16", (k, n), order="CF"[layout[1] == "t"]) for name in "BC"}
    like |= {name: tw.like("f32", m if name == "scale_a" else n) for name in SCALED}
    return like | {"D": tw.like("f32", m, n)}


def integer_product(a: Any, b: Any) -> Any:
    """Return the exact product of matrices of 61-bit integers; products of thirds are exact in f64."""
    assert a.shape[1] <= 2**11
    parts = [
        [(one >> np.uint64(21 * i) & np.uint64(2**21 - 1)).astype(float) for i in range(3)] for one in (a, b)
    ]
    pairs = itertools.product(enumerate(parts[0]), enumerate(parts[1]))
    return sum((x @ y).astype(np.int64).astype(object) << 21 * (i + j) for (i, x), (j, y) in pairs)


@pytest.mark.in_turns(8)
@pytest.mark.parametrize("name", [name for name in FORMS if name != "deep slices"])
def test_every_form_is_the_same_polynomial(name: str) -> None:
    case = CASES[name]
    like = specimens(*case.shape(3), case.layout)
    rng = np.random.default_rng(3)
    prime = 2**61 - 1
    held = {x: rng.integers(0, prime, like[x].shape, np.uint64) for x in ("A", "B", "C", "bias_b", "bias_c")}
    words = {"precision": "exact", "terms": frozenset(["bias_b", "bias_c"]), "activation": None}
    bound = gated(0, tw.f32, tw.f16).bind(**words, schedule=case.schedule)
    found = tw.testing.residues(bound, *like.values(), 1.0, 1.0, given=held)
    a, b, c = (held[name] for name in "ABC")
    bias_b, bias_c = (held[name].astype(object) for name in ("bias_b", "bias_c"))
    want = (integer_product(a, b) + bias_b) * (integer_product(a, c) + bias_c) % prime
    assert (np.asarray(found["D"]).astype(object) == want).all()


@pytest.mark.in_turns(8)
@pytest.mark.parametrize(
    ("name", "target"),
    [
        *((name, "reference") for name in ("cp_async, staged", "split, stream", "ping-pong, overlapped")),
        *(pytest.param(name, "cuda", marks=pytest.mark.gpu) for name in ON_NVIDIA),
    ],
)
def test_every_element_under_every_form(name: str, target: str) -> None:
    case = CASES[name]
    m, n, k = case.shape(case.turns)
    rng = np.random.default_rng(5)
    arrays = {}
    for one, spec in specimens(m, n, k, case.layout).items():
        order = "F" if len(spec.shape) > 1 and spec.strides[0] == 1 else "C"
        arrays[one] = np.asarray(rng.standard_normal(spec.shape), tw.dtype(spec.dtype).numpy, order=order)
    arrays["D"][:] = np.nan
    terms = frozenset(SCALED)
    bound = gated(0, tw.f32, tw.f16).bind(
        precision="exact", terms=terms, activation="gelu", schedule=case.schedule
    )
    there = [device_put(one, target) for one in arrays.values()]
    bound(*there, 1.0, 1.0, target=target)
    stored = {"D": np.array(device_get(there[-1]))}
    read = {one: array for one, array in arrays.items() if one != "D"}
    how = Accumulation.of(case.schedule.atom, case.schedule.promote * case.schedule.block_k or None)
    flow = bound.flow(*arrays.values(), 1.0, 1.0)
    compare_flow(flow, stored, read, {"alpha_b": 1.0, "alpha_c": 1.0}, how).raise_if_wrong()


@pytest.mark.parametrize("tile", [(128, 256)])
@pytest.mark.parametrize(("kind", "layout"), [("f16", "t"), ("bf16", "n"), ("bf16", "t"), ("i8", "t")])
def test_a_large_layer_on_hopper_goes_by_wgmma(kind: str, layout: str, tile: tuple[int, int]) -> None:
    """The kernel uses bulk copies, has two accumulators as large as a product's own, and spills nothing."""
    extent = 4096
    dtype = tw.dtype(kind)
    arrays = [tw.like(dtype, (extent, extent))]
    arrays += [tw.like(dtype, (extent, extent), order="CF"[layout == "t"]) for _ in "BC"]
    arrays += [tw.like("f32", extent) for _ in SCALED] + [tw.like("f16", (extent, extent))]
    terms = frozenset(SCALED[:3]) if kind == "i8" else frozenset()
    bound = gated(0, tw.f32, dtype).bind(precision="exact", terms=terms, activation="silu")
    made = bound.compile(*arrays, 1.0, 1.0, target="cuda", arch="sm_90a")
    schedule = made.schedule
    assert schedule.atom.asynchronous
    assert (schedule.staging, schedule.roles) == ("tma", "cooperative")
    assert (schedule.tile[0], 2 * schedule.tile[1]) == tile
    assert made.resources["spill_store_bytes"] == made.resources["spill_load_bytes"] == 0


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(("kind", "multiplied"), [("f32", "f32"), ("bf16", "bf16"), ("f8e4m3", "f16")])
@pytest.mark.parametrize("how", [Splitting(2, None), Splitting("auto", None), Splitting(None, None, True)])
def test_k_is_split_as_is_asked(arch: str, kind: str, multiplied: str, how: Splitting) -> None:
    arrays = [tw.like(kind, (16, 4096)), *(tw.like(kind, (4096, 256), order="F") for _ in "BC")]
    arrays += [tw.like("f32", 16 if name == "scale_a" else 256) for name in SCALED]
    bound = gated(0, tw.f32, tw.dtype(multiplied)).bind(
        precision="exact", terms=frozenset(), activation="relu", schedule=how
    )
    made = bound.compile(*arrays, tw.like("f32", (16, 256)), 1.0, 1.0, target="cuda", arch=arch)
    if how.split_k is not None:
        assert made.schedule.split_k == how.split_k
    assert made.schedule.reduction != "reduce-scatter"


@ALL_TARGETS
def test_what_is_known_is_launched_again_on_other_arrays(target: str) -> None:
    for seed in range(3):
        given = drawn("f32", 30, 20, 8)
        given = {name: one * np.float32(1 + seed) for name, one in given.items()}
        there = {name: device_put(one, target) for name, one in given.items()}
        made = device_get(tw.gated_matmul(**there, activation="tanh", target=target))
        operands, scaling = split(given)
        assert worst_of(made, exact(*operands, "tanh", tw.f32, scaling)) <= 1


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_numbers_are_passed_to_the_kernel(target: str) -> None:
    given = drawn("f16", 9, 20, 17)
    a, b, c = (given[name] for name in "abc")
    for scales in (
        {"scale_a": 2.0},
        {"scale_a": 3, "scale_b": 0.5},
        {"scale_c": -0.25, "bias_b": given["bias_b"]},
    ):
        made = tw.gated_matmul(a, b, c, **scales, out_dtype="f32", target=target)
        assert worst_of(made, exact(a, b, c, "silu", tw.f32, scales)) <= 1


def test_a_result_of_8_bits_saturates() -> None:
    a, b = np.float32([[100, 1, -100]]).T, np.float32([[1000.0]])
    for kind, most, least in (("i8", 127, -128), ("f8e4m3", 448, -448)):
        made = tw.gated_matmul(a, b, -b, activation=None, out_dtype=kind, target="reference")
        np.testing.assert_array_equal(made.astype(np.float32), [[least]] * 3)
        made = tw.gated_matmul(a, b, b, activation=None, out_dtype=kind, target="cpu")
        np.testing.assert_array_equal(made.astype(np.float32), [[most]] * 3)


A, B = np.zeros((2, 3), np.float32), np.zeros((3, 4), np.float32)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            {"c": B[:, :3]},
            r"b has shape \(3, 4\), and c has shape \(3, 3\); nearest legal choice: the same shape",
        ),
        ({"b": B[:, 0], "c": B[:, 0]}, r"b has shape \(3,\); nearest legal choice: a matrix, b\[:, None\]"),
        ({"a": B}, r"gated_matmul of shapes \(3, 4\) and \(3, 4\): K is 4 in a and 3 in b"),
        ({"out": A}, r"out has shape \(2, 3\); nearest legal choice: \(2, 4\)"),
        ({"bias_c": A[0]}, r"bias_c has shape \(3,\); nearest legal choice: \(4,\), one number"),
        ({"scale_c": A[0]}, r"scale_c has shape \(3,\); nearest legal choice: a number, or one for each col"),
        ({"scale_a": 1e30, "scale_b": 1e30}, "scale_a times scale_b=1.*e.60 becomes infinite in f32"),
        ({"activation": "swish"}, "activation='swish'; choose one of"),
        ({"batch_invariant": True, "reduction": "atomic"}, "gated_matmul: batch_invariant=True with"),
    ],
)
def test_what_is_no_gated_product_is_refused(words: dict[str, Any], message: str) -> None:
    with pytest.raises(tw.LaunchError, match=message):
        tw.gated_matmul(**({"a": A, "b": B, "c": B} | words), target="reference")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"c": B.astype(np.float64)}, "b is f32, and c is f64; nearest legal choice: f32 for both"),
        ({"a": A.astype(np.float64)}, "gated_matmul of f64 and f32; nearest legal choice: f64 for both"),
        ({"a": A.astype(np.float16)}, "gated_matmul of f16 and f32: convert one of them first"),
        ({"a": A.astype(np.int16)}, "gated_matmul of i16; nearest: f32, f16"),
        ({"a": A.astype(np.complex64)}, "gated_matmul of c64; nearest: f32, f16"),
        ({"scale_b": np.zeros(4, np.int8)}, "scale_b is i8; nearest legal choice: f32, f16, bf16"),
        (
            {"scale_b": np.ones(4, ml_dtypes.float8_e8m0fnu)},
            "scale_b is f8e8m0; nearest legal choice: f32, f16, bf16$",
        ),
        ({"bias_c": np.zeros(4)}, "bias_c is f64; nearest legal choice: f32, f16, bf16"),
        ({"out_dtype": "i32"}, "gated_matmul: out_dtype is i32; nearest: f32"),
    ],
)
def test_dtypes_that_are_refused(words: dict[str, Any], message: str) -> None:
    with pytest.raises(tw.DTypeError, match=message):
        tw.gated_matmul(**({"a": A, "b": B, "c": B} | words), target="reference")
    wide = {name: one.astype(np.float64) for name, one in {"a": A, "b": B, "c": B}.items()}
    with pytest.raises(tw.DTypeError, match="alpha_b, alpha_c with operands of f64, and scales are f32"):
        tw.gated_matmul(**wide, scale_a=2.0, target="reference")


@pytest.mark.parametrize("name", ["a", "b", "c", "bias_b"])
def test_the_result_shares_no_memory_with_what_is_read(name: str) -> None:
    square = {one: np.ones((4, 4), np.float32) for one in "abc"} | {"bias_b": np.ones(4, np.float32)}
    out = square[name] if name != "bias_b" else np.ones((4, 4), np.float32)
    square["bias_b"] = out[0] if name == "bias_b" else square["bias_b"]
    with pytest.raises(tw.LaunchError, match=f"out and {name}"):
        tw.gated_matmul(**square, out=out, target="reference")
    tw.gated_matmul(**square, out=np.ones((4, 4), np.float32), target="cpu")
    with pytest.raises(tw.LaunchError, match=f"out and {name}"):
        tw.gated_matmul(**square, out=out, target="cpu")


@pytest.mark.parametrize("replaced", [{"split_k": 2}, {"schedule": replace(CASES["cp_async"].schedule)}])
def test_batches_are_broadcast(replaced: dict[str, Any]) -> None:
    rng = np.random.default_rng(2)
    a = rng.standard_normal((2, 3, 33, 40)).astype(np.float16)
    b, c = (rng.standard_normal((3, 40, 48)).astype(np.float16) for _ in "bc")
    scale = rng.standard_normal((2, 3, 33), np.float32)
    made = tw.gated_matmul(a, b, c, scale_a=scale, out_dtype="f32", **replaced, target="reference")
    assert worst_of(made, exact(a, b, c, "silu", tw.f32, {"scale_a": scale})) <= 1
