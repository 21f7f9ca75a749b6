"""Scales of sums: neighbours along K share a factor, which multiplies their partial sum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.checking.compare import Accumulation
from tilewright.checking.flows import StoredComparison, compare_flow
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.gpu_memory import DeviceArray
from tilewright.schedule.resources import ScheduleOnMachine
from tilewright.schedule.schedule import Schedule
from tilewright.targets.atoms import MMA_F16, fma, wgmma

from .mutants import labelled, outcomes

FP8 = ml_dtypes.float8_e4m3fn
DIMS = {"A": "M K", "B": "K N", "SA": "M G", "SB": "G R", "bias": "N", "C": "M N"}


@tw.kernel(**DIMS)
def by_blocks(A, B, SA, SB, bias, C, *, run):
    """A has scales for each row, B for each 32 columns, both for each block of elements along K."""
    tw.require(SA.shape[1] == tw.ceil_div(A.shape[1], run), "a column of scales for each run along K")
    tw.require(SB.shape[1] == tw.ceil_div(B.shape[1], 32), "a column of scales for each 32 columns")
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k].matmul(B[k, n], scales=(SA[m, k // run], SB[k // run, n // 32]))
        C[m, n] = acc + bias[n]


@tw.kernel(A="M K", B="N K", S="N G", C="M N")
def weights(A, B, S, C, *, run):
    """B has scales for each row and each block of elements along K, and is widened."""
    tw.require(S.shape[1] == tw.ceil_div(A.shape[1], run), "a column of scales for each run along K")
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k].matmul(B[n, k].to(A.dtype).T, scales=(None, S[n, k // run].T))
        C[m, n] = acc


SMALL, BULK = (
    Schedule(MMA_F16, (32, 32, 16), promote=2),
    Schedule(
        *(wgmma("f8e4m3", 128), (128, 128, 128)),
        stages=3,
        staging="tma",
        roles="cooperative",
        groups=2,
        promote=1,
        epilogue="staged",
    ),
)
FORMS: dict[str, Schedule] = {
    "direct": SMALL,
    "more often than scales change": replace(SMALL, promote=1),
    "registers": replace(SMALL, staging="registers"),
    "fragments": replace(SMALL, tile=(32, 32, 32), stages=3, staging="fragments", promote=1),
    "columns with numbers of their own": replace(SMALL, tile=(16, 80, 16)),
    "split": replace(SMALL, split_k=2),
    "swapped": replace(SMALL, swap_ab=True),
    "panels": Schedule(
        fma("f16", lanes=(1, 1), each=(6, 16)), (24, 32, 32), staging="panels", promote=1, balanced=True
    ),
    "cooperative": replace(BULK, blocks=2),
    "three groups": replace(BULK, atom=wgmma("f8e4m3", 64), tile=(192, 64, 128), groups=3, registers=152),
    "slices": replace(BULK, atom=wgmma("f8e4m3", 32), tile=(128, 64, 128), blocks=2),
    "slices in a cluster": replace(
        BULK, atom=wgmma("f8e4m3", 32), tile=(64, 64, 128), groups=1, cluster=(2, 2), blocks=4
    ),
    "slices of columns with numbers of their own": replace(
        BULK, atom=wgmma("f8e4m3", 32), tile=(64, 160, 128), groups=1
    ),
    "wide": replace(BULK, atom=wgmma("f8e4m3", 160), tile=(64, 160, 128), groups=1, epilogue="direct"),
    "ping-pong": replace(BULK, tile=(64, 128, 128), roles="ping-pong", blocks=1),
    "columns along rows": replace(BULK, atom=wgmma("f8e4m3", 16), tile=(128, 16, 128), swap_ab=True),
}


def drawn(
    kind: Any, shape: tuple[int, int, int], run: int, seed: int = 0, *, in_columns: bool = False
) -> dict[str, Any]:
    """Draw operands, different scales, and a result that holds NaN.

    Bulk copies load scales of A that are contiguous along M (``in_columns``), in multiples of 16 bytes.
    """
    (m, n, k), rng = shape, np.random.default_rng(seed)
    blocks = -(-k // run)
    made = {"A": rng.standard_normal((m, k)).astype(kind), "B": rng.standard_normal((n, k)).astype(kind).T}
    falling = np.float32(4) ** -np.arange(blocks, dtype=np.float32)
    made["SA"] = rng.uniform(0.5, 2, (m, blocks)).astype(np.float32) * falling
    if in_columns:
        made["SA"] = made["SA"].T.copy().T
    made["SB"] = rng.uniform(-2, 2, (blocks, -(-n // 32))).astype(np.float32)
    made["bias"] = rng.standard_normal(n).astype(np.float32)
    made["C"] = np.full((m, n + 8), np.nan, np.float32)[:, :n]
    return made


def widened(shape: tuple[int, int, int], run: int) -> dict[str, Any]:
    """Draw operands for `weights`."""
    (m, n, k), rng = shape, np.random.default_rng(1)
    made = {"A": rng.standard_normal((m, k)).astype(np.float16), "B": rng.standard_normal((n, k)).astype(FP8)}
    made["S"] = rng.uniform(0.5, 2, (n, -(-k // run))).astype(np.float16)
    return made | {"C": np.full((m, n), np.nan, np.float32)}


def compared(kernel: Any, given: dict[str, Any], target: str) -> Schedule:
    """Run a kernel, and compare every element."""
    there = [DeviceArray.of(one) for one in given.values()] if target == "cuda" else [*given.values()]
    ran = kernel(*there, target=target)
    assert ran.target == target
    if target == "cuda":
        CUDA_DRIVER.synchronize()
        given["C"] = there[-1].host()
    schedule: Schedule = ran.schedule
    how = Accumulation.of(schedule.atom, schedule.promote * schedule.block_k)
    kept = {name: array for name, array in given.items() if name != "C"}
    compare_flow(kernel.flow(*given.values()), {"C": given["C"]}, kept, how=how).raise_if_wrong()
    return schedule


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("shape", [(37, 70, 130), (33, 9, 2), (3, 4, 0), (32, 64, 128)], ids=str)
@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_every_element(target: str, shape: tuple[int, int, int]) -> None:
    schedule = compared(by_blocks.bind(run=64), drawn(np.float16, shape, 64), target)
    assert 64 % (schedule.promote * schedule.block_k) == 0
    schedule = compared(weights.bind(run=64), widened(shape, 64), target)
    assert 64 % (schedule.promote * schedule.block_k) == 0


ON = pytest.mark.parametrize("target", ["reference", pytest.param("cuda", marks=pytest.mark.gpu)])


@pytest.mark.in_turns(4)
@pytest.mark.parametrize(
    ("form", "target"),
    [
        *((form, "reference") for form in FORMS),
        # What lies in panels is multiplied by one thread.
        *(pytest.param(form, "cuda", marks=pytest.mark.gpu) for form in FORMS if form != "panels"),
    ],
)
def test_forms(form: str, target: str) -> None:
    schedule = FORMS[form]
    bulk = schedule.staging == "tma"
    kind, run = (FP8, 128) if bulk else (np.float16, 32)
    shape = (72, 144, 272) if bulk else (40, 72, 80)
    bound = by_blocks.bind(run=run, schedule=schedule)
    assert compared(bound, drawn(kind, shape, run, in_columns=bulk), target) == schedule


@ON
@pytest.mark.parametrize(("rows", "in_columns"), [(72, False), (71, True)])
def test_scales_that_bulk_copies_do_not_carry(rows: int, in_columns: bool, target: str) -> None:
    given = drawn(FP8, (rows, 144, 272), 128, in_columns=in_columns)
    assert compared(by_blocks.bind(run=128, schedule=FORMS["slices"]), given, target) == FORMS["slices"]


DECODED = replace(BULK, atom=wgmma("f16", 16), tile=(128, 16, 128), swap_ab=True)


@ON
@pytest.mark.parametrize("run", [128, 256])
def test_decoded_operands_are_scaled_with_the_last_of_their_parts(run: int, target: str) -> None:
    bound = weights.bind(run=run, schedule=replace(DECODED, promote=run // 128))
    shape = (16, 144, 336)
    assert compared(bound, widened(shape, run), target).staging == "tma"


def test_a_scale_that_is_left_out_is_noticed() -> None:
    bound, given = by_blocks.bind(run=32), drawn(np.float16, (33, 40, 300), 32)
    flow = bound.flow(*given.values())
    kept = {name: array for name, array in given.items() if name != "C"}
    for wrong, ok in ((given["SA"], True), (np.roll(given["SA"], 1, axis=0), False)):
        stored = tw.ir.evaluate(flow, {**kept, "SA": wrong})["C"]
        assert compare_flow(flow, {"C": stored}, kept, how=Accumulation(period=32)).ok == ok


REFUSED = {
    "promote=2": replace(SMALL, promote=4),
    "promote=1": replace(SMALL, tile=(32, 32, 32), promote=0),
    "tile=(32, 32, 32), promote=1": replace(SMALL, tile=(32, 32, 64), promote=1),
    'split_k="auto"': replace(SMALL, blocks=4, split_k="stream"),
}


@pytest.mark.parametrize("near", REFUSED)
def test_sums_of_products_with_other_scales_are_refused(near: str) -> None:
    given = drawn(np.float16, (33, 40, 300), 32)
    with pytest.raises(tw.ScheduleError) as caught:
        by_blocks.bind(run=32, schedule=REFUSED[near])(*given.values(), target="reference")
    assert near in str(caught.value)


def each_place(A, B, SA, SB, bias, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k].matmul(B[k, n], scales=(SA[m, k], None))
        C[m, n] = acc


def of_the_other(A, B, SA, SB, bias, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k].matmul(B[k, n], scales=(None, SA[m, k]))
        C[m, n] = acc


def of_integers(A, B, SA, SB, bias, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k].to(tw.i8).matmul(B[k, n].to(tw.i8), scales=(SA[m, k], None))
        C[m, n] = acc


def beside_another(A, B, SA, SB, bias, C):
    tw.require(SA.shape[1] == tw.ceil_div(A.shape[1], 32), "a scale for 32 elements")
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]
            acc += A[m, k].matmul(B[k, n], scales=(SA[m, k // 32], None))
        C[m, n] = acc


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (each_place, r"a scale that changes with each k; .* nearest legal choice: S\[m, k // 128\]"),
        (of_the_other, r"a scale \[m, k\] of \[k, n\]: the scale varies along an axis"),
        (of_integers, r"scales of f32 of products that are summed in i32; nearest legal choice: operands"),
        (beside_another, r"one of several products has scales; .*nearest legal choice: one product"),
    ],
)
def test_what_has_no_scale_is_refused(function: Any, message: str) -> None:
    given = drawn(np.float16, (32, 48, 2), 32)
    given["SA"] = np.ones((32, 2), np.float32)
    kernel = tw.kernel(**{**DIMS, "SA": "M G" if function is beside_another else "M K"})(function)
    with pytest.raises(tw.TraceError, match=message):
        kernel(*given.values(), target="reference")


@pytest.mark.parametrize("form", ["cooperative", "wide", "columns along rows", "ping-pong", "fragments"])
def test_text_without_spills(form: str) -> None:
    schedule = FORMS[form]
    bulk = schedule.staging == "tma"
    given = drawn(FP8 if bulk else np.float16, (256, 256, 256), 128 if bulk else 32)
    bound = by_blocks.bind(run=128 if bulk else 32, schedule=schedule)
    made = bound.compile(*given.values(), target="cuda", arch="sm_90a" if bulk else "sm_80")
    assert made.schedule == schedule
    assert made.resources["spill_store_bytes"] == made.resources["stack_bytes"] == 0


@pytest.mark.parametrize(
    ("rows", "in_columns", "rides"), [(72, True, True), (72, False, False), (71, True, False)]
)
def test_what_is_said_of_shared_memory_is_what_is_taken(rows: int, in_columns: bool, rides: bool) -> None:
    given = drawn(FP8, (rows, 144, 272), 128, in_columns=in_columns)
    made = by_blocks.bind(run=128, schedule=FORMS["slices"]).compile(
        *given.values(), target="cuda", arch="sm_90a"
    )
    asked = by_blocks.bind(run=128).question(*given.values(), target="cuda", arch="sm_90a")
    assert asked is not None
    case = ScheduleOnMachine(FORMS["slices"], asked.form, asked.specs, asked.arch)
    assert any(buffer.name == "sSA" for buffer in case.shared) == rides == ("sSA" in made.source)
    assert made.resources["shared_bytes"] == case.shared_bytes


@dataclass(frozen=True)
class Small:
    """A ring of scales and operands that is filled twice, as `outcomes` takes it."""

    counts: tuple[int, ...] = (5,)

    @property
    def bound(self) -> Any:
        """The kernel."""
        atom, tile = wgmma("f8e4m3", 32), (64, 64, 128)
        return by_blocks.bind(
            run=128, schedule=replace(BULK, atom=atom, tile=tile, groups=1, stages=2, blocks=1)
        )

    def shape(self, steps: int) -> tuple[int, int, int]:
        """Two tiles, the last of each axis cut."""
        return 72, 48, steps * 128 - 16

    def arrays(self, shape: tuple[int, int, int]) -> dict[str, Any]:
        """Random arrays."""
        return drawn(FP8, shape, 128, in_columns=True)

    def compare(self, arrays: Mapping[str, Any]) -> StoredComparison:
        """Whether the stored results are right."""
        kept = {name: array for name, array in arrays.items() if name != "C"}
        how = Accumulation.of(BULK.atom, 128)
        return compare_flow(by_blocks.bind(run=128).flow(*arrays.values()), {"C": arrays["C"]}, kept, how=how)


WRONG = (
    *("wait(full) by stages: removed", "arrive(empty) by stages: removed", "wait(empty) by staging: removed"),
    *("tma_load(SA, sSA, full) by staging: removed", "arrive(full) by staging: bytes -16"),
    *("view(sSA) by staging: slice 0 one around", "view(sSA) by promote: slice 0 one around"),
)


def test_mutants_of_the_ring_of_scales_are_found() -> None:
    case: Any = Small()
    arrays = case.arrays(case.shape(5))
    assert case.bound.check(*arrays.values()).is_clean
    kernel = case.bound.trace(*arrays.values())
    labels = labelled(kernel)
    assert set(WRONG) <= {*labels.values()}, sorted({*labels.values()})
    found = [*outcomes(case, kernel, {name: label for name, label in labels.items() if label in WRONG})]
    assert {label for label, _ in found} == set(WRONG)
    assert not [label for label, shown in found if shown == "survived"]
