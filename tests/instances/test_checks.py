"""Every check of an instance and of a problem: legal ones pass, and errors name the nearest legal choice."""

from __future__ import annotations

import time
from dataclasses import fields, replace
from itertools import product
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import LaunchError
from tilewright.schedule.machine_rules import near_divisor
from tilewright.targets.amd import ARCHITECTURES

from .seeds import NARROW, SEED, XDL

PROBLEM = (512, 512, 512)
GIB = 1 << 30


def changed(instance: Any, changes: dict[str, Any]) -> Any:
    """Return an instance with changed fields, e.g. ``{"c_shuffle.scalar_per_vector": 4}``."""
    for name, value in changes.items():
        outer, _, inner = name.partition(".")
        new = replace(getattr(instance, outer), **{inner: value}) if inner else value
        instance = replace(instance, **{outer: new})
    return instance


@pytest.mark.parametrize(
    ("instance", "arch"), [(SEED, "gfx1151"), (NARROW, "gfx1151"), (XDL, "gfx942"), (XDL, "gfx950")]
)
def test_the_instances_are_legal(instance: Any, arch: str) -> None:
    checks = instance.check(PROBLEM, arch)
    assert checks.ok, checks
    checks.require()
    assert all(row.nearest == "" for row in checks)


A, B, C = "a_block_transfer", "b_block_transfer", "c_shuffle"
IMPOSSIBLE: list[tuple[Any, dict[str, Any], dict[str, str]]] = [
    (
        SEED,
        {"acc_dtype": "f64"},
        {"AccDataType": 'acc_dtype="f32"', "MPerWmma and NPerWmma": 'acc_dtype="f32"'},
    ),
    (SEED, {"b_dtype": "f8e4m3"}, {"MPerWmma and NPerWmma": 'b_dtype="f16"'}),
    (SEED, {"m_per_wmma": 32, "m_repeat": 2}, {"MPerWmma and NPerWmma": "m_per_wmma=16 and n_per_wmma=16"}),
    (
        XDL,
        {"m_per_xdl": 64, "m_xdl_per_wave": 2},
        {"MPerXdl and NPerXdl": "m_per_xdl=32 and n_per_xdl=32"},
    ),
    (SEED, {"block_size": 128}, {"BlockSize": "block_size=256", "ABlockTransfer threads": "of 128 threads"}),
    (
        SEED,
        {"m_per_block": 96, f"{A}.thread_cluster_lengths": (8, 32, 1)},
        {"MPerBlock": "m_per_block=128", "BlockSize": "block_size=128"},
    ),
    (
        SEED,
        {
            "n_per_block": 240,
            f"{B}.thread_cluster_lengths": (8, 16, 1),
            f"{C}.cluster_lengths": (1, 32, 1, 6),
        },
        {"NPerBlock": "n_per_block=256", "BlockSize": "block_size=192"},
    ),
    (
        SEED,
        {"k_per_block": 60},
        {"KPerBlock and K1": "=64", "KPerBlock and the instruction": "=64"},
    ),
    (XDL, {"ak1": 5}, {"KPerBlock and AK1": "k_per_block=30"}),
    (XDL, {"bk1": 3}, {"KPerBlock and BK1": "k_per_block=33"}),
    (SEED, {f"{A}.thread_cluster_lengths": (4, 48, 1)}, {"ABlockTransferThreadClusterLengths": "(4, 32, 1)"}),
    (SEED, {f"{B}.thread_cluster_lengths": (3, 64, 1)}, {"BBlockTransferThreadClusterLengths": "(2, 64, 1)"}),
    (SEED, {f"{B}.thread_cluster_lengths": (8, 64, 1)}, {"BBlockTransfer threads": "of 256 threads"}),
    (SEED, {f"{A}.src_vector_dim": 1}, {"ABlockTransferSrcVectorDim": "src_vector_dim=2"}),
    (SEED, {"b_layout": "column"}, {"BBlockTransferSrcVectorDim": "src_vector_dim=2"}),
    (SEED, {f"{A}.src_scalar_per_vector": 16}, {"ABlockTransferSrcScalarPerVector": "vector=8"}),
    (SEED, {f"{B}.src_scalar_per_vector": 8}, {"BBlockTransferSrcScalarPerVector": "vector=4"}),
    (SEED, {f"{A}.dst_scalar_per_vector_k1": 6}, {"ABlockTransferDstScalarPerVector_K1": "k1=2"}),
    (SEED, {f"{B}.dst_scalar_per_vector_k1": 16}, {"BBlockTransferDstScalarPerVector_K1": "k1=8"}),
    (NARROW, {f"{A}.src_scalar_per_vector": 16}, {"ABlockTransferSrcScalarPerVector": "vector=8"}),
    (NARROW, {f"{A}.src_vector_dim": 1}, {"ABlockTransferSrcVectorDim": "src_vector_dim=2"}),
    (SEED, {"c_layout": "column"}, {"CLayout": 'c_layout="row"'}),
    (SEED, {f"{C}.m_repeat_per_shuffle": 3}, {"CShuffleMRepeatPerShuffle": "m_repeat_per_shuffle=2"}),
    (SEED, {f"{C}.n_repeat_per_shuffle": 8}, {"CShuffleNRepeatPerShuffle": "n_repeat_per_shuffle=4"}),
    (SEED, {f"{C}.cluster_lengths": (1, 24, 1, 8)}, {"CShuffleBlockTransferClusterLengths": "(1, 16, 1, 8)"}),
    (SEED, {f"{C}.cluster_lengths": (2, 16, 1, 8)}, {"CShuffleBlockTransferClusterLengths": "(1, 16, 1, 8)"}),
    (SEED, {f"{C}.cluster_lengths": (1, 32, 1, 16)}, {"CShuffleBlockTransfer threads": "of 256 threads"}),
    (SEED, {f"{C}.scalar_per_vector": 16}, {"CShuffleBlockTransferScalarPerVector_NPerBlock": "vector=8"}),
    (SEED, {"k_per_block": 128}, {"LDS": "k_per_block"}),
    (SEED, {"num_prefetch": 3}, {"NumPrefetch": "num_prefetch=2"}),
    (NARROW, {"loop_scheduler": "Interwave"}, {"LoopScheduler": 'loop_scheduler="Default"'}),
    (SEED, {"a_enable_lds": False}, {"AEnableLds": "a_enable_lds=None"}),
    (SEED, {"b_enable_lds": False}, {"BEnableLds": "b_enable_lds=None"}),
    (NARROW, {"a_enable_lds": False, "num_prefetch": 2}, {"AEnableLds": "a_enable_lds=None"}),
]
"""Changes that make an instance impossible, and what is said to be nearest for checks that then fail."""


@pytest.mark.parametrize(
    ("instance", "changes", "nearest"), IMPOSSIBLE, ids=[str(changes) for _, changes, _ in IMPOSSIBLE]
)
def test_what_cannot_be_is_named(instance: Any, changes: dict[str, Any], nearest: dict[str, str]) -> None:
    made = changed(instance, changes)
    failed = {row.name: row for row in made.check().failed}
    for name, near in nearest.items():
        assert near in failed[name].nearest, failed
    with pytest.raises(tw.LegalityError, match="nearest legal choice"):
        made.check().require()


IMPOSSIBLE_PROBLEMS: list[tuple[Any, dict[str, Any], Any, dict[str, str]]] = [
    (SEED, {}, (512, 512, 100), {"vector load of A": "K=104, or a_block_transfer.src_scalar_per_vector=4"}),
    (SEED, {"gemm_specialization": "KPadding"}, (512, 512, 100), {"vector load of A": "K=104"}),
    (
        SEED,
        {f"{B}.src_scalar_per_vector": 4, "gemm_specialization": "NPadding"},
        (512, 250, 512),
        {"vector load of B": "N=252", "vector store of C": "c_shuffle.scalar_per_vector=2"},
    ),
    (SEED, {"gemm_specialization": "NPadding"}, (512, 100, 512), {"vector store of C": "N=104"}),
    (SEED, {}, (500, 512, 512), {"whole tiles along M": 'M=512, or gemm_specialization="MPadding"'}),
    (
        SEED,
        {"gemm_specialization": "MPadding"},
        (500, 480, 512),
        {"whole tiles along N": 'N=512, or gemm_specialization="MNPadding"'},
    ),
    (SEED, {}, (512, 512, 480), {"whole tiles along K": 'K=512, or gemm_specialization="KPadding"'}),
    (XDL, {"ak1": 16}, (512, 512, 8), {"AK1": 'K=16, or gemm_specialization="KPadding"'}),
    (XDL, {"bk1": 16}, (512, 512, 8), {"BK1": 'K=16, or gemm_specialization="KPadding"'}),
    (SEED, {"num_prefetch": 2}, (512, 512, 320), {"steps along K": "K=384"}),
    (SEED, {"pipeline_version": "v2"}, (512, 512, 64), {"steps along K": "K=128"}),
    (SEED, {}, (512, 512, 512, 504, -1, -1), {"ALayout and StrideA": "(512, 1)"}),
    (SEED, {}, (512, 512, 512, -1, 500, -1), {"BLayout and StrideB": "(512, 1)"}),
    (XDL, {}, (512, 512, 512, -1, -1, 1), {"CLayout and StrideC": "(512, 1)"}),
    (SEED, {}, (2 << 20, 256, 1024), {"A in memory": "parts of A along M"}),
    (SEED, {}, (128, 2 << 20, 1024), {"B in memory": "parts of B along N"}),
]


@pytest.mark.parametrize(
    ("instance", "changes", "problem", "nearest"),
    IMPOSSIBLE_PROBLEMS,
    ids=[f"{problem}, {changes}" for _, changes, problem, _ in IMPOSSIBLE_PROBLEMS],
)
def test_what_is_not_computed_is_named(
    instance: Any, changes: dict[str, Any], problem: Any, nearest: dict[str, str]
) -> None:
    failed = {row.name: row for row in changed(instance, changes).check(problem).failed}
    for name, near in nearest.items():
        assert near in failed[name].nearest, failed


def array(rows: int, columns: int, order: str = "C", dtype: Any = np.float16) -> Any:
    return np.zeros((rows, columns), dtype, order=order)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("arrays", "failed"),
    [
        ((array(128, 64), array(64, 256), array(128, 256)), set()),
        ((array(128, 64), array(128, 256), array(128, 256)), {"ProblemSize"}),
        ((array(128, 64), array(64, 256), array(128, 512)), {"ProblemSize"}),
        ((array(128, 64, "F"), array(64, 256), array(128, 256)), {"ALayout and StrideA"}),
        ((array(128, 64), array(64, 256, "F"), array(128, 256)), {"BLayout and StrideB"}),
        ((array(128, 64), array(64, 256), array(128, 512)[:, ::2]), {"CLayout and StrideC"}),
        ((array(128, 64, dtype=np.float32), array(64, 256), array(128, 256)), {"ADataType"}),
        ((array(128, 64), array(64, 256, dtype=np.int8), array(128, 256)), {"BDataType"}),
        ((array(128, 64), array(64, 256), array(128, 256, dtype=np.float32)), {"CDataType"}),
    ],
)
def test_arrays_are_taken_as_they_lie_in_memory(arrays: tuple[Any, Any, Any], failed: set[str]) -> None:
    assert {row.name for row in SEED.check(tw.ck.GemmProblem.of(*arrays)).failed} == failed


def test_there_is_no_check_that_is_never_failed() -> None:
    """An instance or a problem above fails each check."""
    failed = {
        row.name for instance, changes, _ in IMPOSSIBLE for row in changed(instance, changes).check().failed
    }
    for instance, changes, problem, _ in IMPOSSIBLE_PROBLEMS:
        failed |= {row.name for row in changed(instance, changes).check(problem).failed}
    failed |= {f"{letter}DataType" for letter in "ABC"} | {"ProblemSize", "Arch"}
    known = {row.name for instance in (SEED, NARROW, XDL) for row in instance.check(PROBLEM, "gfx1151")}
    assert known - failed == set()


@pytest.mark.parametrize(("instance", "arch"), [(SEED, "gfx942"), (XDL, "gfx1151"), (SEED, "sm_90a")])
def test_an_architecture_without_the_instruction_is_refused(instance: Any, arch: str) -> None:
    assert [row.name for row in instance.check(arch=arch).failed] == ["Arch"]


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("instance", [SEED, NARROW, XDL], ids=["seed", "narrow", "xdl"])
def test_checks_and_schedules_know_the_same_architectures(instance: Any, arch: str) -> None:
    """They know every architecture of target hip, and no other: checked instances have a schedule."""
    is_home = arch.startswith("gfx9") == (instance is XDL)
    checks = instance.check(arch=arch)
    assert checks.ok == is_home
    if is_home:
        made = instance.schedule(arch)
        assert made.atom.instruction == {"wmma": "wmma", "xdl": "mfma"}[instance.matrix]
        assert made.atom.feature in ARCHITECTURES[arch].features
        assert made.tile[:2] == (instance.m_per_block, instance.n_per_block)
    else:
        with pytest.raises(tw.LegalityError, match="Arch: "):
            instance.schedule(arch)
    for row in checks.failed:
        nearest = row.nearest.removeprefix('arch="').removesuffix('"')
        assert instance.check(arch=nearest).ok


@pytest.mark.parametrize("arch", ["gfx908", "gfx940", "gfx1250"])
def test_an_architecture_without_a_record_passes_neither(arch: str) -> None:
    for instance in (SEED, XDL):
        assert not instance.check(arch=arch).ok
        with pytest.raises(tw.LaunchError, match="no target has this architecture"):
            instance.schedule(arch)


def test_a_larger_shared_memory_is_counted_where_there_is_one() -> None:
    deep = changed(XDL, {"k_per_block": 128, f"{A}.thread_cluster_lengths": (16, 16, 1)})
    assert [row.name for row in deep.check(arch="gfx942").failed] == ["LDS"]
    assert deep.check(arch="gfx950").ok


@pytest.mark.parametrize("instance", [SEED, XDL], ids=["wmma", "xdl"])
@pytest.mark.parametrize("extent", [2**31, 2**62 + 2**31, 2**63 - 1])
def test_extents_far_beyond_a_tile_are_refused_at_once(instance: Any, extent: int) -> None:
    counted = [field.name for field in fields(instance) if type(getattr(instance, field.name)) is int]
    assert len(counted) >= 10
    start = time.process_time()
    for name in counted:
        assert changed(instance, {name: extent}).check(PROBLEM).failed, name
    assert time.process_time() - start < 30


def test_the_nearest_divisor_is_that_of_an_exhaustive_search() -> None:
    for whole in (*range(1, 130), 2**16 + 1, 2**12 * 27):
        divisors = [n for n in range(1, whole + 1) if whole % n == 0]
        for value in (*range(1, 140), whole - 1, whole, whole + 1, 2 * whole):
            nearest = min(divisors, key=lambda n, value=value: (abs(n - value), n))  # type: ignore[misc]
            assert near_divisor(value, whole) == nearest, (value, whole)


SPECIALIZATIONS = ["Default", *(f"{dims}Padding" for dims in ("M", "N", "K", "MN", "MK", "NK", "MNK"))]


@pytest.mark.parametrize("specialization", SPECIALIZATIONS)
def test_each_specialization_takes_what_is_ragged_along_what_it_pads_alone(specialization: str) -> None:
    instance = replace(SEED, gemm_specialization=specialization)
    padded = {dim for dim in "MNK" if dim in specialization.removesuffix("Padding") and dim != "D"}
    for ragged in product((False, True), repeat=3):
        extents = tuple(extent - 24 * cut for extent, cut in zip((256, 512, 128), ragged, strict=True))
        dims = {dim for dim, cut in zip("MNK", ragged, strict=True) if cut}
        failed = {row.name for row in instance.check(extents).failed}
        assert failed == {f"whole tiles along {dim}" for dim in dims - padded}, extents


@pytest.mark.parametrize("specialization", SPECIALIZATIONS)
def test_no_padding_relaxes_what_vectors_ask(specialization: str) -> None:
    instance = replace(SEED, gemm_specialization=specialization)
    failed = {row.name for row in instance.check((256, 510, 124)).failed}
    assert failed >= {"vector load of A", "vector store of C"}


def test_padding_relaxes_what_k1_asks() -> None:
    padded = changed(
        XDL, {"gemm_specialization": "MNKPadding", "ak1": 16, f"{A}.thread_cluster_lengths": (2, 128, 1)}
    )
    assert padded.check((512, 512, 8))["AK1"].ok


def test_checks_print_as_a_table_and_are_found_by_name() -> None:
    checks = SEED.check((512, 512, 100))
    lines = str(checks).splitlines()
    assert len(lines) == len(checks)
    assert [line[:2] for line in lines].count("NO") == len(checks.failed) == 2
    assert "-> K=104, or a_block_transfer.src_scalar_per_vector=4" in str(checks)
    assert checks["BlockSize"].limit == "2 x 4 waves of 32 threads: 256"
    with pytest.raises(tw.LaunchError, match=r"'Blocksize'; there are AccDataType.*BlockSize"):
        checks["Blocksize"]
    assert repr(checks).endswith("2 failed>")


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        ((512, 512), "2 integers"),
        ((512, 0, 512), "n must be a positive integer"),
        ("512", "must be a GemmProblem"),
    ],
)
def test_what_is_no_problem_is_refused(problem: Any, said: str) -> None:
    with pytest.raises(tw.LaunchError, match=said):
        SEED.check(problem)


def test_arrays_that_are_no_matrices_are_refused() -> None:
    with pytest.raises(tw.LaunchError, match="a matrix"):
        tw.ck.GemmProblem.of(np.zeros(3), np.zeros((3, 3)), np.zeros((3, 3)))


def test_tiled_mma_suggests_only_what_its_machine_multiplies() -> None:
    traits = "16x16Xdl_2x2XdlPerWave_8K1"
    with pytest.raises(LaunchError, match=r"gfx942 has no .* f8e4m3 .* choice: f16, bf16, f32 or i8"):
        tw.ck.tiled_mma(traits, "f8e4m3", (128, 128))
    for kind in ("f16", "bf16", "f32", "i8"):
        assert tw.ck.tiled_mma(traits, kind, (128, 128)).atom.a_dtype.name == kind
