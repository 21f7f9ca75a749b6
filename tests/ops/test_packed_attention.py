"""`tw.attention` of packed sequences: each sequence equals its own attention in float64, in every element."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.ops.attending.flow import DRAWN, BySoftmax, Scores, packed_attention
from tilewright.ops.attending.gradients import packed_gradient_of_queries, packed_gradients_of_keys
from tilewright.ops.wanted import UNDROPPED
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import CUDA, HIP

from .attending import Packed
from .test_attention_backward import NAMES, Backward

pytestmark = pytest.mark.in_turns(6)

LENGTHS = [(0, 5), (37, 20), (1, 70), (64, 64), (9, 0), (0, 0), (130, 150)]
PACKED = [
    Packed((4, 2), LENGTHS, (64, 64)),
    Packed((4, 2), LENGTHS, (64, 64), tw.bf16, diagonal=0),
    Packed((4, 1), LENGTHS, (24, 40), diagonal="last"),
    Packed((2, 2), [(1, 33), (1, 200), (1, 0)], (128, 128), tw.bf16, diagonal="last", gap=0),
    Packed((3, 3), LENGTHS[:4], (33, 17), diagonal=-3),
    Packed((2, 1), LENGTHS[:4], (16, 8), tw.f32, diagonal="last"),
]
"""Sequences with and without queries and keys, masks from both ends, rows at odd addresses."""


NUMBERS = ("exponent", "diagonal", *DRAWN)


def named(given: Any) -> str:
    """The name of a case."""
    return f"{given.heads}-{given.columns}-{given.diagonal}" if isinstance(given, Packed) else str(given)


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("packed", PACKED, ids=named)
def test_every_sequence(packed: Packed, target: str) -> None:
    out, lse = packed.poisoned()
    offsets = {"q_offsets": packed.q_offsets, "k_offsets": packed.k_offsets.astype(np.int64)}
    found = tw.attention(
        packed.q, packed.k, packed.v, **packed.words, **offsets, out=out, lse=lse, target=target
    )
    assert found is out
    packed.check(out, lse)


def arguments(packed: Packed, out: Any, lse: Any) -> tuple[list[Any], Any]:
    """Return the arguments of the dataflow kernel, and the kernel."""
    (h, g), (d, e) = packed.heads, packed.columns
    between, exponent = BySoftmax.of(d**-0.5)
    kernel = packed_attention.bind(
        scores=Scores(packed.diagonal is not None),
        between=between,
        with_lse=True,
        from_last=packed.diagonal == "last",
        terms=frozenset(),
    )
    arrays = [
        packed.q.reshape(-1, g, h // g, d).transpose(1, 2, 0, 3),
        packed.k.swapaxes(0, 1),
        packed.v.swapaxes(0, 1),
        out.reshape(-1, g, h // g, e).transpose(1, 2, 0, 3),
        lse.reshape(-1, g, h // g).transpose(1, 2, 0),
    ]
    for offsets in (packed.q_offsets, packed.k_offsets):
        arrays += [offsets[:-1].copy(), offsets[1:].copy()]
    arrays.insert(5, np.zeros((g, h // g), np.float32))
    diagonal = packed.diagonal if isinstance(packed.diagonal, int) else 0
    return [*arrays, exponent, diagonal, *UNDROPPED], kernel


WAYS = {
    "by warps, in the background": ("sm_80", {}),
    "by warpgroups": ("sm_90a", {}),
    "by warpgroups, a block for each tile": (
        "sm_90a",
        {"blocks": 0, "group_n": 0, "epilogue": "staged"},
    ),
    "in parts": ("sm_80", {"split_k": 3}),
}
"""Architectures whose schedules the reference runs, with changed fields."""


def scheduled(packed: Packed, way: str) -> tuple[list[Any], Any, Any, Any]:
    """Return the arguments, the kernel under a schedule, and memory for the results."""
    (arch, changes), (out, lse) = WAYS[way], packed.poisoned()
    given, kernel = arguments(packed, out, lse)
    constants = kernel.constants
    if way == "in parts":  # states merge if scores are subtracted first
        constants = constants | {"between": replace(constants["between"], power=0.0)}
    found = kernel.schedule_for(*given, target="cuda", arch=arch)
    if arch == "sm_90a":  # the schedule of many rows
        d, e = (-(-side // 8) * 8 for side in packed.columns)
        g, r = packed.heads[1], packed.heads[0] // packed.heads[1]
        shapes = [(g, r, 9999, d), (g, 9999, d), (g, 9999, e), (g, r, 9999, e)]
        like = [tw.like(packed.element, shape) for shape in shapes] + [tw.like("f32", (g, r, 9999))]
        found = kernel.schedule_for(*like, *given[5:], target="cuda", arch=arch)
        assert found.staging == "tma"
        changes = {"blocks": 3, **changes}
    assert isinstance(found, Schedule)
    return given, packed_attention.bind(**constants, schedule=replace(found, **changes)), out, lse


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("packed", PACKED[:4], ids=named)
def test_every_form_of_schedule(packed: Packed, way: str) -> None:
    given, kernel, out, lse = scheduled(packed, way)
    assert kernel(*given, target="reference").target == "reference"
    packed.check(out, lse)


@pytest.mark.parametrize("packed", PACKED[1:3], ids=named)
def test_the_flow_is_what_it_says(packed: Packed) -> None:
    """The evaluator, in f64 with steps of 7 keys, agrees; the flow prints and reads back."""
    out, lse = packed.poisoned()
    given, kernel = arguments(packed, out, lse)
    flow = kernel.flow(*given)
    assert tw.ir.parse_flow(tw.ir.print_flow(flow)) == flow
    names = ("Q", "K", "V", "O", "L", "sinks", "q_starts", "q_ends", "k_starts", "k_ends")
    arrays = dict(zip(names, given, strict=False))
    numbers = dict(zip(NUMBERS, given[10:], strict=True))
    found = tw.ir.evaluate(flow, arrays, numbers, rounded=False, run=7)
    heads, columns = packed.heads[0], packed.columns[1]
    packed.check(
        found["O"].transpose(2, 0, 1, 3).reshape(-1, heads, columns),
        found["L"].transpose(2, 0, 1).reshape(-1, heads),
    )


@pytest.mark.parametrize("way", [*WAYS][1:])
def test_the_checker_has_no_findings(way: str) -> None:
    packed = Packed((2, 1), [(37, 20), (0, 3), (66, 140)], (16, 16), diagonal="last", gap=0)
    given, kernel, _, _ = scheduled(packed, way)
    assert not kernel.check(*given, outputs=("O", "L")).findings


def test_sequences_that_overlap_are_found_by_the_checker() -> None:
    packed = Packed((1, 1), [(40, 20), (40, 30)], (16, 16))
    given, kernel, _, _ = scheduled(packed, "by warps, in the background")
    given[7][0] += 5  # the first sequence ends inside of the second one
    assert kernel.check(*given, outputs=("O", "L")).findings


@pytest.mark.parametrize("change", ["keys of the next", "a key less", "a diagonal further"])
def test_another_bound_is_another_result(change: str) -> None:
    """The comparison detects a sequence that sees a wrong key."""
    packed = Packed((2, 1), [(37, 40), (30, 35)], (16, 16), diagonal="last")
    out, lse = packed.poisoned()
    given, kernel = arguments(packed, out, lse)
    if change == "a diagonal further":
        given[11] = -1
    else:
        given[9][0] += 1 if change == "keys of the next" else -1
    kernel(*given, target="cpu")
    with pytest.raises(AssertionError, match="elements are wrong"):
        packed.check(out, lse)


def test_queries_and_keys_with_the_same_offsets() -> None:
    packed = Packed((2, 2), [(5, 5), (40, 40)], (16, 16), gap=0)
    found, lse = tw.attention(
        packed.q, packed.k, packed.v, q_offsets=packed.q_offsets, return_lse=True, target="cpu"
    )
    packed.check(found, lse)


COMPILED = [
    *((CUDA.name, arch) for arch in ("sm_80", "sm_90a")),
    *((HIP.name, arch) for arch in ("gfx942", "gfx1100")),
]


@pytest.mark.parametrize("columns", [64, 128])
@pytest.mark.parametrize(("target", "arch"), COMPILED)
def test_text_compiles_without_spills(target: str, arch: str, columns: int) -> None:
    shapes = [(8, 2, 20000, columns), (8, 20000, columns), (8, 20000, columns), (8, 2, 20000, columns)]
    like = [tw.like("f16", shape) for shape in shapes] + [tw.like("f32", (8, 2, 20000))]
    like += [tw.like("f32", (8, 2)), *(tw.like("i32", (17,), align=4) for _ in range(4))]
    between, exponent = BySoftmax.of(columns**-0.5)
    words = {"scores": Scores(True), "between": between, "with_lse": True, "from_last": True}
    kernel = packed_attention.bind(**words, terms=frozenset())
    made = kernel.compile(*like, exponent, 0, *UNDROPPED, target=target, arch=arch)
    used = made.resources
    assert used.get("spill_store_bytes", 0) + used.get("spilled_registers", 0) == 0
    assert not used.get("serialized_wgmma", 0)
    assert ("wgmma" in made.source) == (arch == "sm_90a")


# ---------------------------------------------------------------- gradients

ROWS = [(5, 7), (0, 3), (40, 70), (64, 30), (7, 0)]
GRADIENTS: list[tuple[tuple[int, int], tuple[int, int], tw.DType, dict[str, Any]]] = [
    ((4, 2), (24, 40), tw.f16, {}),
    ((2, 2), (64, 64), tw.bf16, {"causal": True}),
    ((3, 1), (16, 24), tw.f32, {"causal": True, "diagonal": "last", "soft_cap": 2.0}),
    ((2, 1), (32, 32), tw.f16, {"causal": True, "diagonal": 3, "window": 9}),
]
"""Heads, columns, the dtype, and words of attention."""


class PackedBackward:
    """Problems of packed gradients; see `Packed`."""

    def __init__(self, case: Any, lengths: list[tuple[int, int]]) -> None:
        heads, columns, element, self.words = case
        self.problems = []
        for number, (m, n) in enumerate(lengths):
            words = self.words | ({"diagonal": n - m} if self.words.get("diagonal") == "last" else {})
            one = Backward((1, *heads), (m, n), columns, element, words, seed=number)
            self.problems.append(one)
        self.arrays = {name: self._joined(name) for name in ("q", "k", "v", "out", "lse", "dout")}
        self.offsets = [np.cumsum([0, *rows]).astype(np.int32) for rows in zip(*lengths, strict=True)]
        shapes = {name: self.arrays[name[1:]].shape for name in NAMES}
        self.results = {name: np.full(shape, np.nan, element.numpy) for name, shape in shapes.items()}

    def _joined(self, name: str) -> Any:
        return np.concatenate([np.moveaxis(one.arrays[name][0], 0, 1) for one in self.problems])

    def check(self, results: dict[str, Any]) -> None:
        """Check that every element of each sequence is within its bound."""
        for number, one in enumerate(self.problems):
            q, k = (slice(int(ends[number]), int(ends[number + 1])) for ends in self.offsets)
            found = {
                name: np.moveaxis(made[q if name == "dq" else k], 1, 0)[None]
                for name, made in results.items()
            }
            if 0 in one.rows:
                assert all((made == 0).all() for made in found.values())
            else:
                assert one.wrong(found) == []


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("case", GRADIENTS, ids=str)
def test_gradients_of_every_sequence(case: Any, target: str) -> None:
    packed = PackedBackward(case, ROWS)
    words = {**packed.words, **dict(zip(("q_offsets", "k_offsets"), packed.offsets, strict=True))}
    found = tw.attention_backward(**packed.arrays, **words, **packed.results, target=target)
    assert all(one is made for one, made in zip(found, packed.results.values(), strict=True))
    packed.check(packed.results)


def test_gradients_by_warpgroups() -> None:
    """The test runs sm_90a's schedules for many rows on the reference; sequences begin at any row."""
    columns = 64
    case = ((2, 2), (columns, columns), tw.bf16, {"causal": True, "diagonal": "last"})
    packed = PackedBackward(case, [(5, 7), (0, 3), (140, 170), (7, 0)])
    arrays, results = packed.arrays, packed.results
    rows = arrays["lse"][:, :, None].transpose(1, 2, 0)
    shift = np.where(np.isinf(rows), np.inf, rows * math.log2(math.e)).astype(np.float32)
    delta = (arrays["dout"].astype(np.float64) * arrays["out"].astype(np.float64)).sum(-1)
    q, dout, dq = (x[:, :, None].transpose(1, 2, 0, 3) for x in (arrays["q"], arrays["dout"], results["dq"]))
    k, v, dk, dv = (x.swapaxes(0, 1) for x in (arrays["k"], arrays["v"], results["dk"], results["dv"]))
    read = [q, k, v, dout, shift, delta[:, :, None].transpose(1, 2, 0).astype(np.float32)]
    for offsets in packed.offsets:
        read += [offsets[:-1].copy(), offsets[1:].copy()]
    scale = columns**-0.5
    numbers = (scale * math.log2(math.e), scale, 0, *UNDROPPED)
    words = {"scores": Scores(True), "factor": 1.0, "from_last": True, "drops": False}
    many, keys = (tw.like("bf16", shape) for shape in ((8, 1, 20000, columns), (8, 20000, columns)))
    like = [many, keys, keys, many, *[tw.like("f32", (8, 1, 20000))] * 2, *[tw.like("i32", (5,))] * 4]
    for kernel, stored, alike in (
        (packed_gradient_of_queries, (dq,), (many,)),
        (packed_gradients_of_keys, (dk, dv), (keys, keys)),
    ):
        found = kernel.bind(**words).schedule_for(*like, *alike, *numbers, target="cuda", arch="sm_90a")
        assert isinstance(found, Schedule)
        assert found.staging == "tma"
        made = kernel.bind(**words, schedule=replace(found, blocks=3))
        assert made(*read, *stored, *numbers, target="reference").target == "reference"
    packed.check(results)


@pytest.mark.parametrize(("target", "arch"), COMPILED)
def test_gradients_compile_without_spills(target: str, arch: str) -> None:
    q, k = (tw.like("f16", shape) for shape in ((8, 2, 20000, 64), (8, 20000, 64)))
    rows = tw.like("f32", (8, 2, 20000))
    read = (q, k, k, q, rows, rows, *(tw.like("i32", (17,), align=4) for _ in range(4)))
    words = {"scores": Scores(True), "factor": 1.0, "from_last": True, "drops": False}
    for kernel, results in ((packed_gradient_of_queries, (q,)), (packed_gradients_of_keys, (k, k))):
        made = kernel.bind(**words).compile(
            *read, *results, 0.1, 0.2, 0, *UNDROPPED, target=target, arch=arch
        )
        used = made.resources
        most = 16 if arch == "gfx1100" else 8  # bounds take registers that its loops lack
        assert used.get("spill_store_bytes", 0) + used.get("spilled_registers", 0) <= most, used


# ---------------------------------------------------------------- arguments

X = np.ones((6, 2, 16), np.float16)
OFFSETS = np.int32([0, 2, 6])
WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "rank": ({"q": X[None]}, tw.LaunchError, r"nearest legal choice: \(T, H, D\), \(U, G, D\)"),
    "descending": ({"q_offsets": np.int32([0, 4, 2])}, tw.LaunchError, r"q_offsets\[2\] is 2; .* choice: 4"),
    "beyond": ({"k_offsets": np.int32([0, 4, 7])}, tw.LaunchError, r"k_offsets\[2\] is 7; .* choice: 6"),
    "below 0": ({"q_offsets": np.int32([-1, 4, 6])}, tw.LaunchError, r"q_offsets\[0\] is -1; .* choice: 0"),
    "none": ({"q_offsets": np.int32([])}, tw.LaunchError, r"q_offsets with shape \(B \+ 1,\)"),
    "count": ({"k_offsets": np.int32([0, 6])}, tw.LaunchError, r"k_offsets with shape \(3,\)"),
    "floats": ({"q_offsets": np.float32([0, 6])}, tw.DTypeError, "q_offsets is f32; .* i32 or i64"),
    "k alone": ({"q_offsets": None, "k_offsets": OFFSETS}, tw.LaunchError, "k_offsets without q_offsets"),
    "more keys": ({"k": np.ones((7, 2, 16), np.float16)}, tw.LaunchError, r"v with shape \(7, 2, 16\)"),
    "bias": ({"bias": np.zeros((2, 6, 6), np.float32)}, tw.LaunchError, "bias with q_offsets; .* no bias"),
    "heads": ({"k": X[:, :0], "v": X[:, :0]}, tw.LaunchError, "2 heads, as q has, or a divisor"),
    "out": ({"out": X[:5].copy()}, tw.LaunchError, r"out with shape \(6, 2, 16\)"),
    "diagonal": ({"causal": True, "diagonal": "first"}, tw.LaunchError, "'first'; .*: 'last', or an integer"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_refused(name: str) -> None:
    changed, error, words = WRONG[name]
    given: dict[str, Any] = {"q": X, "k": X, "v": X, "q_offsets": OFFSETS} | changed
    with pytest.raises(error, match=words):
        tw.attention(given.pop("q"), given.pop("k"), given.pop("v"), **given)


def test_offsets_in_host_memory_are_checked_at_every_call() -> None:
    offsets = OFFSETS.copy()
    for _ in range(3):
        tw.attention(X, X, X, q_offsets=offsets, target="cpu")
    offsets[1] = 7
    with pytest.raises(tw.LaunchError, match="offsets do not descend"):
        tw.attention(X, X, X, q_offsets=offsets, target="cpu")
