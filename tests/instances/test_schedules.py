"""Instances as schedules: the same tiles, on ragged shapes, and notes about every difference."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from tests.eight_lines import product_of_rows as product
from tests.movers.random_movers import Array, Placed

import tilewright as tw
from tilewright.checking.compare import Accumulation, compare_gemm
from tilewright.dtypes import dtype

from .seeds import NARROW, SEED, XDL, along_k

BOTH = replace(
    NARROW,
    block_size=32,
    m_per_block=16,
    a_block_transfer=along_k((4, 8, 1)),
    b_block_transfer=along_k((4, 8, 1)),
    c_shuffle=replace(NARROW.c_shuffle, cluster_lengths=(1, 8, 1, 4)),
)
"""One wave alone: neither operand goes through shared memory."""
PREFETCHED = replace(NARROW, num_prefetch=2)
SMALL_XDL = replace(
    XDL,
    block_size=128,
    m_per_block=64,
    n_per_block=32,
    m_per_xdl=16,
    n_per_xdl=16,
    m_xdl_per_wave=2,
    n_xdl_per_wave=2,
    a_block_transfer=along_k((4, 32, 1)),
    b_block_transfer=along_k((4, 32, 1)),
    c_shuffle=replace(XDL.c_shuffle, cluster_lengths=(1, 16, 1, 8), scalar_per_vector=2),
)


def in_dtypes(kind: str, sums: str, **changes: Any) -> tw.ck.DeviceGemmXdl:
    """Return the small XDL instance with other dtypes."""
    names = ("a_dtype", "b_dtype", "c_shuffle_dtype", "c_dtype")
    out = "i32" if kind == "i8" else kind
    made = dict.fromkeys(names[:2], kind) | dict.fromkeys(names[2:], out)
    return replace(SMALL_XDL, **made, acc_dtype=sums, **changes)


RUN: dict[str, tuple[Any, tuple[tuple[int, int, int], ...]]] = {
    "seed": (SEED, ((130, 261, 150),)),
    "A past shared memory": (NARROW, ((70, 45, 100), (33, 64, 8), (1, 1, 1))),
    "A and B past shared memory": (BOTH, ((35, 45, 100), (16, 32, 96))),
    "two steps ahead": (PREFETCHED, ((70, 45, 100), (32, 32, 32))),
    "xdl": (SMALL_XDL, ((70, 45, 100),)),
    "bf16": (in_dtypes("bf16", "f32"), ((70, 45, 40),)),
    "i8": (in_dtypes("i8", "i32"), ((70, 45, 40),)),
    "f32": (in_dtypes("f32", "f32"), ((70, 45, 40),)),
    "f64": (in_dtypes("f64", "f64"), ((70, 45, 40),)),
}
"""Instances, each with ragged problems that no specialization of theirs need pad."""

SHALLOW = in_dtypes(
    "i8",
    "i32",
    k_per_block=16,
    a_block_transfer=along_k((2, 64, 1)),
    b_block_transfer=along_k((2, 32, 1), dst_scalar_per_vector_k1=4),
)


def random_matrix(rng: np.random.Generator, rows: int, columns: int, kind: tw.DType, layout: str) -> Any:
    """Return a matrix of a layout with an odd number of elements between rows, or columns."""
    strides = (1, rows + 3) if layout == "column" else (columns + 3, 1)
    made = Array((rows, columns), Placed(strides, 0), kind)
    values = rng.standard_normal((rows, columns)) if kind.is_float else rng.integers(-9, 10, (rows, columns))
    made.array[...] = values.astype(kind.numpy)
    return made.array


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("name", RUN)
def test_an_instance_computes_ragged_products(name: str, target: str) -> None:
    instance, problems = RUN[name]
    assert instance.check().ok, instance.check()
    schedule = instance.schedule(target)
    for number, (m, n, k) in enumerate(problems):
        rng = np.random.default_rng(number)
        a = random_matrix(rng, m, k, dtype(instance.a_dtype), instance.a_layout)
        b = random_matrix(rng, k, n, dtype(instance.b_dtype), instance.b_layout)
        out = Array((m, n), Placed((n + 5, 1), 0), dtype(instance.c_dtype))
        tw.matmul(a, b, out.array, schedule=schedule, target=target)
        compare_gemm(a, b, out.array, Accumulation.of(schedule.atom)).raise_if_wrong()
        assert out.is_whole_around()


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("instance", [SEED, NARROW])
def test_what_ran_is_the_schedule_of_the_instance(instance: Any, target: str) -> None:
    schedule = instance.schedule(target)
    a, b, c = (np.ones(shape, np.float16) for shape in ((20, 40), (40, 30), (20, 30)))
    ran = product.bind(schedule=schedule)(a, b, c, target=target)
    assert (ran.target, ran.schedule) == (target, schedule)
    assert (c == 40).all()


@pytest.mark.parametrize("name", ["A past shared memory", "A and B past shared memory", "two steps ahead"])
def test_no_hazard(name: str) -> None:
    instance, ((m, n, k), *_) = RUN[name]
    kernel = product.bind(schedule=instance.schedule("reference"))
    a, b, c = (np.ones(shape, np.float16) for shape in ((m, k), (k, n), (m, n)))
    report = kernel.check(a, b, c)
    assert report.is_clean, report


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "cpu", "reference", "x86-64-v3"])
def test_the_seed_as_a_schedule(arch: str) -> None:
    assert SEED.schedule(arch) == tw.Schedule(
        tw.atoms.MMA_F16, (128, 256, 64), warps=(2, 4), staging="registers", group_m=8, epilogue="staged"
    )


@pytest.mark.parametrize(
    ("instance", "warps", "stages", "staging", "bypass"),
    [
        (SEED, (2, 4), 1, "registers", ""),
        (NARROW, (2, 1), 1, "registers", "a"),
        (BOTH, (1, 1), 1, "registers", "ab"),
        (PREFETCHED, (2, 1), 3, "cp_async", ""),
        (XDL, (4, 2), 1, "registers", ""),
        (SMALL_XDL, (4, 1), 1, "registers", ""),
    ],
)
def test_waves_steps_and_ways_are_carried_over(
    instance: Any, warps: tuple[int, int], stages: int, staging: str, bypass: str
) -> None:
    made = instance.schedule("sm_80")
    assert made.tile == instance.tile
    assert (made.warps, made.stages, made.staging, made.bypass) == (warps, stages, staging, bypass)
    assert made.mma.threads == instance.block_size


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", ["seed", "A past shared memory"])
def test_what_is_compiled_takes_what_the_instance_says(name: str, arch: str) -> None:
    instance = RUN[name][0]
    m, n, k = instance.tile
    given = [tw.like("f16", 4096, 4096), tw.like("f16", 4096, 4096, order="F"), tw.like("f16", 4096, 4096)]
    made = product.bind(schedule=instance.schedule(arch)).compile(*given, target="cuda", arch=arch)
    assert made.kernel.threads == instance.block_size
    assert not made.resources["spill_store_bytes"]
    operands = sum(2 * rows * k for rows, enabled in zip((m, n), instance.enable_lds, strict=True) if enabled)
    assert made.kernel.shared_bytes >= operands
    held = {tensor.name for tensor in made.kernel.tensors}
    assert "mma.sync" in made.source
    assert ("sA" in made.source) == instance.enable_lds[0]
    assert held == {"A", "B", "C"}


def test_every_field_is_carried_over_or_spoken_of() -> None:
    """A field missing in both the schedule and the notes would be lost silently."""
    odd = replace(
        NARROW,
        a_element_op="Scale",
        b_element_op="Scale",
        c_element_op="Relu",
        c_shuffle_dtype="f32",
        num_prefetch=2,
        loop_scheduler="Interwave",
        pipeline_version="v2",
        acc_dtype="f16",
    )
    spoken = " ".join(odd.notes("sm_80"))
    in_schedule = {"block_size", "m_per_block", "n_per_block", "k_per_block", "m_repeat", "n_repeat", "k1"}
    in_schedule |= {"a_enable_lds", "b_enable_lds", "a_dtype", "b_dtype", "c_dtype"}
    of_arrays = {"a_layout", "b_layout", "c_layout"}
    silent = [f.name for f in fields(odd) if f.name not in in_schedule | of_arrays and f.name not in spoken]
    assert silent == []


@pytest.mark.parametrize(
    ("instance", "arch", "said"),
    [
        (SEED, "sm_80", "m_per_wmma, n_per_wmma: 16 x 16 x 16 by WMMA is multiplied by mma.m16n8k16.f32.f16"),
        (SEED, "cpu", "a block of 256 threads runs on one thread of"),
        (XDL, "sm_80", "2 x 2 waves of 64 threads are 4 x 2 warps of 32"),
        (NARROW, "sm_80", "a_block_transfer: A bypasses shared memory"),
        (SEED, "sm_80", "not (K0, rows, K1) with an extra row"),
        (replace(SEED, acc_dtype="f16"), "sm_80", "acc_dtype: sums are in f32, not in f16"),
        (replace(SEED, c_element_op="Relu"), "sm_80", 'tw.matmul(activation="relu") does'),
        (replace(SEED, a_element_op="Scale"), "sm_80", "a_element_op: Scale is no part of a schedule"),
        (replace(SEED, pipeline_version="v2"), "sm_80", "pipeline_version: v2 is computed as v1"),
        (SHALLOW, "sm_80", "steps are 32 deep, not 16"),
    ],
)
def test_what_is_another_here_is_said(instance: Any, arch: str, said: str) -> None:
    assert any(said in note for note in instance.notes(arch)), instance.notes(arch)


def test_an_impossible_instance_has_no_schedule() -> None:
    with pytest.raises(tw.LegalityError, match="BlockSize: 128; legal: 2 x 4 waves of 32 threads: 256"):
        replace(SEED, block_size=128).schedule("sm_80")


def test_an_architecture_on_which_nothing_runs_is_refused() -> None:
    with pytest.raises(
        tw.LaunchError, match=r"'gfx900'\): no target has this architecture; known: reference"
    ):
        SEED.schedule("gfx900")
    with pytest.raises(tw.LegalityError, match="Arch: gfx942; legal: what has WMMA"):
        SEED.schedule("gfx942")


def test_where_the_instance_is_at_home_it_is_carried_over_whole() -> None:
    """Its instructions, the places of its K1, the extra row of A, and its padding are the same."""
    made = SEED.schedule("gfx1151", b_memory="f8e4m3")
    assert made == tw.Schedule(
        tw.atoms.WMMA_F16,
        (128, 256, 64),
        warps=(2, 4),
        staging="registers",
        group_m=8,
        epilogue="staged",
        k1=(8, 8),
        extra_rows=(1, 0),
        dealt=((32, 8), (16, 16)),
        turned="b",
        whole="mnk",
        interleaved=True,
    )
    assert made.mma.threads == SEED.block_size
    assert SEED.schedule("gfx1151").dealt[1] == (32, 8), "16 bytes are 8 of f16"
    padded = {name: replace(SEED, gemm_specialization=name) for name in ("MNKPadding", "NPadding")}
    assert {name: one.schedule("gfx1151").whole for name, one in padded.items()} == {
        "MNKPadding": "",
        "NPadding": "mk",
    }
    assert replace(XDL, gemm_specialization="MNKPadding").schedule("gfx942") == tw.Schedule(
        tw.atoms.MFMA_F16_K16,
        (256, 128, 32),
        warps=(2, 2),
        staging="registers",
        group_m=8,
        epilogue="staged",
        k1=(8, 8),
        extra_rows=(1, 1),
        dealt=((64, 4), (64, 4)),
        interleaved=True,
    )


def test_what_is_another_at_home_is_said() -> None:
    fields = {note.partition(":")[0] for note in SEED.notes("gfx1151")}
    assert fields == {
        "a_block_transfer.thread_cluster_lengths",
        "b_block_transfer",
        "b_block_transfer.lds_extra",
        "c_shuffle",
    }
