"""Instances: the type string, and the values that follow from fields, equal the reference's row by row."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw

from .seeds import HALF, NARROW, SEED, XDL, along_k

NAMES = [field.name for field in fields(SEED)]


def test_the_type_string_is_the_one_that_the_reference_prints() -> None:
    assert SEED.type_string == (
        "DeviceGemmWmma_CShuffle<256, 128, 256, 64, 8, 16, 16, 4, 4> AEnableLds: 1, BEnableLds: 1, "
        "NumPrefetch: 1, LoopScheduler: Default, PipelineVersion: v1"
    )
    assert str(SEED) == SEED.type_string
    changed = replace(SEED, num_prefetch=2, loop_scheduler="Interwave", pipeline_version="v2")
    assert changed.type_string.endswith("NumPrefetch: 2, LoopScheduler: Interwave, PipelineVersion: v2")


def test_the_type_string_of_xdl() -> None:
    assert replace(XDL, gemm_specialization="MNPadding").type_string == (
        "DeviceGemm_Xdl_CShuffle<MNPadding, 256, 256, 128, 32, 8, 8, 32, 32, 4, 2, 8, 8, 1, 1> "
        "LoopScheduler: Default, PipelineVersion: v1"
    )


@pytest.mark.parametrize("instance", [SEED, XDL, NARROW])
def test_an_instance_prints_as_what_makes_it(instance: Any) -> None:
    assert eval(repr(instance), {"tw": tw, **vars(tw)}) == instance


DERIVED = {
    "waves": (2, 4),
    "wave_size": 32,
    "threads": 256,
    "instruction": (16, 16, 16),
    "tile": (128, 256, 64),
    "tiles": ((8, 128, 8), (8, 256, 8)),
    "thread_slices": ((2, 2, 8), (2, 4, 8)),
    "may_skip_lds": (False, False),
    "enable_lds": (True, True),
    "lds": (tw.Layout((8, 128, 8), (1032, 8, 1)), tw.Layout((8, 256, 8), (2056, 8, 1))),
    "lds_elems": (8248, 16440),
    "lds_bytes": 49376,
    "c_shuffle_tile": (32, 64),
    "accumulators": 128,
}
"""What the reference derives of its instance."""


@pytest.mark.parametrize("name", DERIVED)
def test_what_follows_is_what_the_reference_derives(name: str) -> None:
    assert getattr(SEED, name) == DERIVED[name]


def test_without_the_extra_row_k0_lies_whole_tiles_apart() -> None:
    plain = replace(SEED, a_block_transfer=replace(SEED.a_block_transfer, lds_extra=False))
    assert plain.lds[0] == tw.Layout((8, 128, 8), (1024, 8, 1))
    assert plain.lds_elems == (8192, 16440)
    assert plain.lds_bytes == 2 * (8192 + 16440)


def test_the_result_may_take_more_shared_memory_than_the_operands() -> None:
    shuffle = replace(SEED.c_shuffle, m_repeat_per_shuffle=4, n_repeat_per_shuffle=4)
    assert replace(SEED, c_shuffle=shuffle).lds_bytes == 128 * 256 * 2


def test_k1_of_16_makes_an_instruction_of_32() -> None:
    assert replace(SEED, k1=16).instruction == (16, 16, 32)


@pytest.mark.parametrize(
    ("changes", "enabled"),
    [
        ({}, (False, True)),
        ({"num_prefetch": 2}, (True, True)),
        ({"a_layout": "column"}, (True, True)),
        ({"n_repeat": 1}, (True, True)),
        ({"k1": 4}, (False, True)),
        ({"k1": 4, "m_repeat": 2}, (True, True)),
        ({"k1": 4, "m_repeat": 2, "n_repeat": 1}, (True, False)),
        ({"m_repeat": 2}, (False, False)),
        ({"m_repeat": 2, "b_layout": "row"}, (False, True)),
        ({"a_enable_lds": True}, (True, True)),
        ({"b_enable_lds": False}, (False, False)),
    ],
)
def test_which_operand_goes_past_shared_memory(changes: dict[str, Any], enabled: tuple[bool, bool]) -> None:
    assert replace(NARROW, **changes).enable_lds == enabled


def test_what_goes_past_shared_memory_takes_none() -> None:
    assert NARROW.lds[0] is None
    assert NARROW.lds_elems == (0, 3 * 264 + 31 * 8 + 8)
    assert NARROW.lds_bytes == max(2 * 1048, 32 * 16 * 2)


def test_what_follows_for_xdl() -> None:
    assert (XDL.waves, XDL.wave_size, XDL.threads, XDL.instruction) == ((2, 2), 64, 256, (32, 32, 8))
    assert XDL.lds[0] == tw.Layout((4, 256, 8), (2056, 8, 1))
    assert XDL.lds_bytes == 2 * (3 * 2056 + 256 * 8 + 3 * 1032 + 128 * 8)
    assert replace(XDL, ak1=4).lds[0] == tw.Layout((8, 256, 4), (1028, 4, 1))
    assert XDL.enable_lds == (True, True)


@pytest.mark.parametrize(
    ("specialization", "padded"),
    [
        ("Default", (100, 200, 72)),
        ("MPadding", (128, 200, 72)),
        ("NPadding", (100, 256, 72)),
        ("KPadding", (100, 200, 128)),
        ("MNPadding", (128, 256, 72)),
        ("MKPadding", (128, 200, 128)),
        ("NKPadding", (100, 256, 128)),
        ("MNKPadding", (128, 256, 128)),
    ],
)
def test_each_specialization_pads_its_extents(specialization: str, padded: tuple[int, int, int]) -> None:
    assert replace(SEED, gemm_specialization=specialization).padded(100, 200, 72) == padded


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"block_size": 0}, "block_size must be a positive integer; nearest legal choice: block_size=1"),
        ({"gemm_specialization": "KNPadding"}, "gemm_specialization must be one of 'Default', 'MPadding'"),
        ({"a_layout": "Row"}, "a_layout must be one of 'row', 'column'"),
        ({"pipeline_version": "v3"}, "pipeline_version must be one of 'v1', 'v2'"),
        ({"c_element_op": "x + 1"}, "c_element_op must be a name such as"),
        ({"a_block_transfer": (4, 64, 1)}, "a_block_transfer must be a BlockTransfer"),
        ({"mrepeat": 4}, "has no parameter 'mrepeat'"),
    ],
)
def test_a_wrong_field_is_refused_with_what_is_legal(wrong: dict[str, Any], said: str) -> None:
    given = {name: getattr(SEED, name) for name in NAMES}
    with pytest.raises(tw.TilewrightError) as refused:
        tw.ck.DeviceGemmWmma(**given | wrong)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"thread_cluster_arrange_order": (1, 0, 1)}, "must be 0, 1 and 2 in any order"),
        ({"thread_cluster_lengths": (4, 64)}, "must be 3 positive integers"),
        ({"src_vector_dim": 3}, "must be 0, 1 or 2"),
        ({"lds_extra": 1}, "must be True or False"),
    ],
)
def test_a_wrong_field_of_a_transfer_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(tw.LaunchError, match=said):
        along_k(**wrong)


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(tw.DTypeError, match="f12"):
        replace(SEED, a_dtype="f12")


def test_fields_are_plain_values_whatever_they_were_given_as() -> None:
    same = replace(SEED, block_size=np.int64(256), a_dtype="float16")
    assert same == SEED
    assert hash(same) == hash(SEED)
    assert type(same.block_size) is int
    assert HALF["a_dtype"] == same.a_dtype
