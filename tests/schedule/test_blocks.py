"""Blocks that lists in memory keep: products, sampled products and attention; engines, refusals, texts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.checking.compare import Accumulation
from tilewright.checking.flows import compare_flow

from .block_kernels import attended, attention, by_blocks, product, sampled, samples
from .forms import FORMS

BULK = [name for name, schedule in FORMS.items() if schedule.by_bulk]


def close(found: np.ndarray[Any, Any], exact: np.ndarray[Any, Any], bound: float) -> bool:
    """Return whether all elements exist and are near; kept blocks alone have numbers."""
    return bool((np.abs(found.astype(np.float64) - exact) <= bound).all())


# ---------------------------------------------------------------- products


@pytest.mark.parametrize(("target", "block", "kind"), [("reference", 64, "f16"), ("cpu", 24, "f32")])
@pytest.mark.parametrize("seed", range(2))
def test_products_by_kept_blocks(target: str, block: int, kind: str, seed: int) -> None:
    arrays, exact = product(seed, block, kind=tw.dtype(kind).numpy)
    launch = by_blocks.bind(block=block)(*arrays.values(), target=target)
    assert launch.target == target
    assert close(arrays["C"], exact, 2e-4)
    before = {name: array for name, array in arrays.items() if name != "C"}
    compared = compare_flow(
        launch.flow, {"C": arrays["C"]}, before, how=Accumulation.of(launch.schedule.atom)
    )
    assert compared.ok, compared


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("form", FORMS)
def test_every_schedule(form: str) -> None:
    arrays, exact = product(3, 64)
    schedule = replace(FORMS[form], unroll=2)  # nobody else's
    launch = by_blocks.bind(block=64, schedule=schedule)(*arrays.values(), target="reference")
    assert (launch.target, launch.schedule) == ("reference", schedule)
    assert close(arrays["C"], exact, 2e-4)


@pytest.mark.parametrize("block", [24, 56])
def test_blocks_that_hold_no_step_next_to_bulk_copies(block: int) -> None:
    arrays, exact = product(2, block)
    schedule = replace(FORMS["cooperative"], staging="mixed")
    launch = by_blocks.bind(block=block, schedule=schedule)(*arrays.values(), target="reference")
    assert (launch.target, launch.schedule) == ("reference", schedule)
    assert close(arrays["C"], exact, 2e-4)


@pytest.mark.parametrize("form", ["cooperative", "cp_async"])
def test_no_hazard(form: str) -> None:
    arrays, _ = product(4, 64)
    report = by_blocks.bind(block=64, schedule=FORMS[form]).check(*arrays.values())
    assert report.is_clean, report


@pytest.mark.parametrize("form", ["cooperative", "wgmma, cp_async"])
def test_sampled_products(form: str) -> None:
    arrays, exact = samples(5)
    launch = sampled.bind(schedule=FORMS[form])(*arrays.values(), target="reference")
    assert (launch.target, launch.schedule) == ("reference", FORMS[form])
    assert close(arrays["C"], exact, 2e-4)


def test_the_reference_finds_a_block_outside() -> None:
    @tw.kernel(A="M K", B="L S N", blocks="J", C="M N")
    def strict(A, B, blocks, C):
        tw.require(A.shape[1] == blocks.shape[0] * 64, "an integer for each block")
        for m, n in tw.tiles(C):
            acc = tw.zeros()
            for k in tw.steps(blocks.shape[0] * 64):
                acc += A[m, k] @ B[:, :64].rows(blocks).merge(0)[k, n]
            C[m, n] = acc

    a, b, c = np.ones((64, 128), np.float16), np.ones((3, 64, 64), np.float16), np.empty((64, 64), np.float32)
    for form in ("cooperative", "cp_async"):
        bound = strict.bind(schedule=FORMS[form])
        assert bound(a, b, np.int32([2, 0]), c, target="reference").schedule == FORMS[form]
        assert (c == 128).all()
        with pytest.raises(tw.HazardError, match=r"row 3 of .*, of 3 along dimension 0"):
            bound(a, b, np.int32([2, 3]), c, target="reference")


# ---------------------------------------------------------------- attention


@pytest.mark.parametrize(("target", "block"), [("reference", 48), ("cpu", 64)])
def test_attention_to_kept_blocks(target: str, block: int) -> None:
    arrays, exact = attended(6, block)
    launch = attention.bind(block=block)(*arrays.values(), 0.125, target=target)
    assert launch.target == target
    assert close(arrays["O"], exact, 4e-3)


def test_warpgroups_attend_to_kept_blocks() -> None:
    arrays, exact = attended(7, 64, rows=136)
    schedule = tw.Schedule(
        tw.atoms.wgmma("f16", 64),
        (128, 64, 64),
        stages=2,
        staging="tma",
        roles="cooperative",
        groups=2,
        blocks=2,
        epilogue="staged",
        registers=240,
        width=64,
        resident=True,
    )
    bound = attention.bind(block=64, schedule=schedule)
    launch = bound(*arrays.values(), 0.125, target="reference")
    assert (launch.target, launch.schedule) == ("reference", schedule)
    assert close(arrays["O"], exact, 4e-3)
    wide = replace(schedule, atom=tw.atoms.wgmma("f16", 96), tile=(128, 96, 64))
    words = r"steps of 96 do not divide the 64 neighbours in a chosen row of K(.|\n)*tile=\(128, 32, 64\)"
    with pytest.raises(tw.ScheduleError, match=words):
        attention.bind(block=64, schedule=wide)(*arrays.values(), 0.125, target="reference")


# ---------------------------------------------------------------- texts, engines, refusals


def test_flows_are_texts() -> None:
    arrays, _ = product(1, 16)
    flow = by_blocks.bind(block=16)(*arrays.values(), target="cpu").flow
    text = tw.ir.print_flow(flow)
    assert "Rows(dim=0, index=columns, padded=True), Merge(dim=0, count=2)" in text
    assert "k = steps(16*J, g, ends, begins, 16)" in text
    assert tw.ir.parse_flow(text) == flow
    found = tw.ir.evaluate(flow, {name: array for name, array in arrays.items() if name != "C"})["C"]
    assert close(arrays["C"], np.asarray(found, np.float64), 2e-4)


def like(block: int, kind: str = "f16") -> list[Any]:
    """Return specimens of the arrays of `by_blocks`."""
    lists_of = ("i32", (512,)), ("i32", (32,)), ("i32", (32,))
    dense = (kind, (4096 // block, block, 1024)), ("f32", (32, 256, 1024))
    return [tw.like(*one) for one in ((kind, (256, 512 * block)), *lists_of, *dense)]


@pytest.mark.parametrize(
    ("arch", "staging"), [("sm_90a", "tma"), ("sm_80", "cp_async"), ("gfx942", "registers")]
)
def test_engines(arch: str, staging: str) -> None:
    target = "hip" if arch.startswith("gfx") else "cuda"
    bound = by_blocks.bind(block=64)
    made = bound.compile(*like(64), target=target, arch=arch)
    schedule = bound.schedule_for(*like(64), target=target, arch=arch)
    assert schedule.staging == staging
    assert "columns[" in made.source
    if arch == "sm_90a":
        assert schedule.atom.asynchronous
        assert "copy_async" not in made.source
        assert made.resources["spill_store_bytes"] == 0
        assert not made.notes


@pytest.mark.parametrize("block", [24, 32])
def test_blocks_that_hold_no_step_are_copied_by_threads(block: int) -> None:
    """Steps along K have 128 bytes: boxes would cross blocks."""
    made = by_blocks.bind(block=block).compile(*like(block), target="cuda", arch="sm_90a")
    assert (
        by_blocks.bind(block=block).schedule_for(*like(block), target="cuda", arch="sm_90a").staging != "tma"
    )
    assert "copy_async" in made.source


def test_bounds_count_whole_blocks() -> None:
    @tw.kernel(A="M K", B="K N", ends="G", C="G M N")
    def odd(A, B, ends, C, *, block):
        for g, m, n in tw.tiles(C):
            acc = tw.zeros()
            for k in tw.steps(A.shape[1], end=ends[g], block=block):
                acc += A[m, k] @ B[k, n]
            C[g, m, n] = acc

    a, b, c = np.ones((4, 32), np.float32), np.ones((32, 4), np.float32), np.empty((1, 4, 4), np.float32)
    with pytest.raises(
        tw.TraceError, match=r"tw.steps\(K\) with block=24; nearest legal choice: an extent of whole"
    ):
        odd.bind(block=24)(a, b, np.int32([1]), c, target="cpu")
    odd.bind(block=1)(a, b, np.int32([3]), c, target="cpu")
    assert (c == 3).all()


# ---------------------------------------------------------------- explicit kernels


@tw.kernel(X="M B N", I="R", Y="S N")
def copied(X, I, Y):
    chosen = X[:, :16].rows(I, padded=True).merge(0)
    r = tw.block_index(tw.ceil_div(Y.shape[0], 8))
    held = tw.shared((8, 64), X.dtype, swizzle=128)
    full = tw.hopper.mbarrier(1, arrivals=1)
    tw.barrier()
    tw.hopper.arrive(full[0], expect_bytes=8 * 128)
    tw.hopper.tma_load(chosen.tile((8, 64), (r, 0)), held, full[0])
    tw.hopper.wait(full[0], 0)
    tw.copy(held, Y.tile((8, 64), (r, 0)), threads=32)


def test_bulk_copies_load_a_tile_within_a_block() -> None:
    x = np.random.default_rng(0).standard_normal((3, 16, 64)).astype(np.float16)
    index, y = np.int64([2, -1, 0, 1 << 40]), np.full((64, 64), 9, np.float16)
    assert copied(x, index, y, target="reference").target == "reference"
    assert np.array_equal(y[:16], x[2])
    assert np.array_equal(y[32:48], x[0])
    assert (y[16:32] == 0).all()
    assert (y[48:] == 0).all()
    assert copied.check(x, index, y).is_clean
    source = copied.compile(x, index, y, target="cuda", arch="sm_90a").source
    assert "min_int(max_int(chosen_1, -1)" in source


def test_a_tile_of_several_blocks_is_no_box() -> None:
    @tw.kernel(X="M B N", I="R")
    def crossing(X, I):
        held = tw.shared((32, 64), X.dtype, swizzle=128)
        full = tw.hopper.mbarrier(1, arrivals=1)
        tw.hopper.tma_load(X[:, :16].rows(I).merge(0).tile((32, 64), (0, 0)), held, full[0])

    with pytest.raises(
        tw.LegalityError, match=r"gathered rows may lie anywhere in X\n.* blocks of rows that hold"
    ):
        crossing.compile(tw.like("f16", 4, 16, 64), tw.like("i32", 4), target="cuda", arch="sm_90a")
