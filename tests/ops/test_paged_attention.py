"""`tw.attention` over pages: pages lie in any order, and what no batch uses is NaN."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.ops.attending.flow import DRAWN, BySoftmax, Scores, paged_attention
from tilewright.ops.wanted import UNDROPPED
from tilewright.targets.target import CUDA, HIP
from tilewright.testing import device_get, device_put

from .attending import Padded

pytestmark = pytest.mark.in_turns(4)

PADDED = [
    (Padded((4, 2), 37, (64, 64), tw.bf16, "last"), 16),
    (Padded((4, 1), 20, (24, 40), diagonal=3), 20),
    (Padded((8, 2), 1, (64, 64), tw.bf16, "last"), 64),
    (Padded((3, 3), 9, (33, 17), tw.f32, "last", (37, 0, 150)), 7),
    (Padded((4, 2), 3, (128, 128), tw.f16), 256),
]
"""Prefill and decode; pages of powers of two and of other numbers; rows at odd addresses."""


def named(given: Any) -> str:
    """The name of a case."""
    return f"{given.heads}-{given.rows}-{given.diagonal}" if isinstance(given, Padded) else str(given)


CASES = [
    *((*one, "reference") for one in PADDED),
    (*PADDED[3], "cpu"),
    *(pytest.param(*one, "cuda", marks=pytest.mark.gpu) for one in PADDED),
]


@pytest.mark.parametrize(("padded", "rows", "target"), CASES, ids=named)
def test_every_batch(padded: Padded, rows: int, target: str) -> None:
    k, v, table = (device_put(one, target) for one in padded.in_pages(rows))
    out, lse = (device_put(one, target) for one in padded.poisoned())
    q, lengths = (device_put(one, target) for one in (padded.q, padded.lengths))
    for _ in range(1 + (target == "cuda")):  # the second call is replayed
        words = {**padded.words, "out": out, "lse": lse, "target": target}
        assert tw.attention(q, k, v, k_lengths=lengths, k_pages=table, **words) is out
        padded.check(device_get(out), device_get(lse))


def test_whole_pages_and_sinks() -> None:
    """Without lengths each batch has all of its pages; sinks and windows serve pages, too."""
    padded = Padded((4, 2), 5, (16, 24), tw.f32, lengths=(64, 64), keys=64)
    k, v, table = padded.in_pages(16)
    sinks = np.float32([0.5, -3.0, 4.0, 0.0])
    words = {"causal": True, "diagonal": 50, "window": 9, "sinks": sinks, "target": "reference"}
    found = tw.attention(padded.q, k, v, k_pages=table.astype(np.int64), **words)
    wanted = tw.attention(padded.q, padded.k, padded.v, **words)
    assert np.abs(found - wanted).max() < 1e-5


# ---------------------------------------------------------------- schedules


def arguments(padded: Padded, rows: int, *, split: bool) -> tuple[list[Any], Any, Any, Any]:
    """Return the arguments of the dataflow kernel, the kernel, and memory for the results."""
    (h, g), (d, e), m, batches = padded.heads, padded.columns, padded.rows, len(padded.lengths)
    (out, lse), (k, v, table) = padded.poisoned(), padded.in_pages(rows)
    between, exponent = BySoftmax.of(d**-0.5)
    between = replace(between, power=0.0) if split else between
    words = {"scores": Scores(padded.diagonal is not None), "between": between, "with_lse": True}
    words |= {"from_last": padded.diagonal == "last", "terms": frozenset({"lengths"}), "page": rows}
    given = [padded.q.reshape(batches, g, h // g, m, d), k, v, out.reshape(batches, g, h // g, m, e)]
    given += [lse.reshape(batches, g, h // g, m), np.zeros((g, h // g), np.float32), padded.lengths, table]
    diagonal = padded.diagonal if isinstance(padded.diagonal, int) else 0
    return [*given, exponent, diagonal, *UNDROPPED], paged_attention.bind(**words), out, lse


FORMS = {
    "pages of 16": (PADDED[0], "sm_90a", "cp_async", 1),
    "pages of 16, in parts": (PADDED[0], "sm_90a", "cp_async", 3),
    "pages of 20, in parts": (PADDED[1], "sm_90a", "cp_async", 3),
    "one warp": (PADDED[2], "sm_80", "cp_async", 1),
    "one warp, in parts": (PADDED[2], "sm_80", "cp_async", 3),
    "pages of 64 by bulk copies": (PADDED[2], "sm_90a", "tma", 1),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_schedule(form: str) -> None:
    (padded, rows), arch, staging, split = FORMS[form]
    given, kernel, out, lse = arguments(padded, rows, split=split > 1)
    found = kernel.schedule_for(*given, target="cuda", arch=arch)
    assert isinstance(found, tw.Schedule)
    assert found.staging == staging
    kernel = paged_attention.bind(**kernel.constants, schedule=replace(found, split_k=split))
    assert kernel(*given, target="reference").target == "reference"
    padded.check(out, lse)


def test_the_flow_is_what_it_says() -> None:
    """The evaluator, in f64 with steps of 7 keys, agrees; the flow prints and reads back."""
    padded, rows = PADDED[0]
    given, kernel, _, _ = arguments(padded, rows, split=False)
    flow = kernel.flow(*given)
    assert tw.ir.parse_flow(tw.ir.print_flow(flow)) == flow
    arrays = dict(zip(("Q", "K", "V", "O", "L", "sinks", "lengths", "pages"), given, strict=False))
    numbers = dict(zip(("exponent", "diagonal", *DRAWN), given[8:], strict=True))
    for name in "KV":  # the evaluator multiplies what weighs 0
        arrays[name] = np.nan_to_num(arrays[name].astype(np.float32)).astype(arrays[name].dtype)
    found = tw.ir.evaluate(flow, arrays, numbers, rounded=False, run=7)
    padded.check(found["O"].reshape(5, 4, 37, 64), found["L"].reshape(5, 4, 37))


def test_the_checker_finds_pages_that_do_not_exist() -> None:
    padded = Padded((2, 1), 5, (16, 16), lengths=(37, 0, 100), keys=100)
    given, kernel, _, _ = arguments(padded, 16, split=False)
    assert not kernel.check(*given, outputs=("O", "L")).findings
    given[7][0, 2] = len(given[1])
    found = kernel.check(*given, outputs=("O", "L")).findings
    assert any(f"row {len(given[1])}" in one.reason for one in found)


def test_another_page_is_another_result() -> None:
    """The comparison finds pages in another order."""
    padded = Padded((2, 1), 5, (16, 16), lengths=(37, 60), keys=64)
    k, v, table = padded.in_pages(16)
    table[1, :2] = table[1, 1::-1]
    words = {"k_lengths": padded.lengths, "return_lse": True, "target": "reference"}
    out, lse = tw.attention(padded.q, k, v, k_pages=table, **words)
    padded.check(out, lse)  # keys in another order have the same weights
    table[1, 0] = table[0, 0]
    out, lse = tw.attention(padded.q, k, v, k_pages=table, **words)
    with pytest.raises(AssertionError, match="elements are wrong"):
        padded.check(out, lse)


COMPILED = [
    (CUDA.name, "sm_90a", 16, 128),
    (CUDA.name, "sm_90a", 20, 64),
    (HIP.name, "gfx1100", 16, 128),
]


@pytest.mark.parametrize(("target", "arch", "rows", "columns"), COMPILED)
def test_text_compiles_without_spills(target: str, arch: str, rows: int, columns: int) -> None:
    """Threads copy 16 bytes of a row at once, in parts of the keys."""
    q, lse = (16, 8, 1, 4, columns), (16, 8, 1, 4)
    pool, table = (500, rows, 8, columns), (16, 8000 // rows)
    like = [tw.like("f16", shape) for shape in (q, pool, pool, q)] + [tw.like("f32", lse)]
    like += [tw.like("f32", (8, 1)), tw.like("i32", (16,)), tw.like("i32", table)]
    between, exponent = BySoftmax.of(columns**-0.5)
    between = replace(between, power=0.0)
    words = {"scores": Scores(False), "between": between, "with_lse": True, "from_last": False}
    words |= {"terms": frozenset({"lengths"}), "page": rows}
    given = (*like, exponent, 0, *UNDROPPED)
    found = paged_attention.bind(**words).schedule_for(*given, target=target, arch=arch)
    assert isinstance(found, tw.Schedule)
    parts = replace(found, split_k="auto", blocks=264)
    made = paged_attention.bind(**words, schedule=parts).compile(*given, target=target, arch=arch)
    used = made.resources
    most = 1 if arch == "gfx1100" else 0  # the number of a page takes a register that the loop lacks
    assert used.get("spill_store_bytes", 0) + used.get("spilled_registers", 0) <= most
    assert ("copy_async<16>" in made.source) == (target == CUDA.name)


# ---------------------------------------------------------------- arguments

Q, POOL, TABLE = (
    np.ones((2, 4, 3, 16), np.float16),
    np.ones((5, 8, 2, 16), np.float16),
    np.int32([[0, 1], [2, 3]]),
)
LENGTHS = np.int32([16, 9])
WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "rank": ({"q": Q[0]}, tw.LaunchError, r"choice: q \(B, H, M, D\), k \(P, S, G, D\)"),
    "table": ({"k_pages": TABLE[:1]}, tw.LaunchError, r"k_pages with shape \(2, T\), T pages for each batch"),
    "floats": ({"k_pages": TABLE.astype(np.float32)}, tw.DTypeError, "k_pages is f32; .* i32 or i64"),
    "list": ({"k_lengths": [16, 9]}, tw.LaunchError, "argument k_lengths: .*list is not an array"),
    "no rows": (
        {"k": POOL[:, :0], "v": POOL[:, :0]},
        tw.LaunchError,
        r"choice: k with shape \(5, 1, 2, 16\), a row in each page",
    ),
    "beyond": ({"k_pages": TABLE + 2}, tw.LaunchError, r"k_pages\[1, 1\] is 5; k has 5 pages; .*: 4"),
    "below 0": ({"k_pages": TABLE - 1}, tw.LaunchError, r"k_pages\[0, 0\] is -1; .*: 0"),
    "values": ({"v": POOL[:, :4]}, tw.LaunchError, r"v with shape \(5, 8, 2, 16\), one value for each key"),
    "heads": ({"q": Q[:, :3]}, tw.LaunchError, "a multiple of the heads of k"),
    "lengths": ({"k_lengths": np.int32([17, 3])}, tw.LaunchError, r"k_lengths\[0\] is 17; k has 16 keys"),
    "bias": ({"bias": np.zeros((3, 16), np.float32)}, tw.LaunchError, "k_pages with bias; .*: no bias"),
    "offsets": ({"k_offsets": np.int32([0, 2])}, tw.LaunchError, "k_pages with k_offsets"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_refused(name: str) -> None:
    changed, error, words = WRONG[name]
    given: dict[str, Any] = {"q": Q, "k": POOL, "v": POOL, "k_pages": TABLE, "k_lengths": LENGTHS} | changed
    with pytest.raises(error, match=words):
        tw.attention(given.pop("q"), given.pop("k"), given.pop("v"), **given)


def test_numbers_of_pages_in_host_memory_are_checked_at_every_call() -> None:
    table = TABLE.copy()
    for _ in range(2):
        tw.attention(Q, POOL, POOL, k_pages=table, k_lengths=LENGTHS, target="reference")
    table[1] = 4, 5
    with pytest.raises(tw.LaunchError, match=r"k_pages\[1, 1\] is 5"):
        tw.attention(Q, POOL, POOL, k_pages=table, k_lengths=LENGTHS, target="reference")
    table[1] = 4, -1
    tw.attention(Q, POOL, POOL, k_pages=table, k_lengths=np.int32([16, 8]), target="reference")
