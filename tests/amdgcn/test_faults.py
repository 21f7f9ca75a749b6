"""Each fault that the interpreter detects, in a listing of a few lines, and the same listing without it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.amdgcn import (
    DeadlockError,
    LdsRaceError,
    ListingError,
    ListingParseError,
    MissedBarrierError,
    MissingWaitError,
    OutOfBoundsError,
    StoredTwiceError,
    UninitialisedError,
    UnknownInstructionError,
    UnreplicatedLanesError,
    execute,
    known_mnemonics,
)

TEXT = """
.amdgcn_target "amdgcn-amd-amdhsa--{arch}"
faulty:
  {body}
  s_endpgm
.amdhsa_kernel faulty
  .amdhsa_group_segment_fixed_size 256
  .amdhsa_private_segment_fixed_size 16
  .amdhsa_user_sgpr_count 2
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
.end_amdhsa_kernel
.amdgpu_metadata
amdhsa.kernels:
  - .args:
      - .offset: 0
        .size: 8
        .value_kind: global_buffer
    .name: faulty
.end_amdgpu_metadata
"""
FIRST_LINE = 4


def run(arch: str, *body: str, threads: int = 64, **more: Any) -> np.ndarray:
    """Executes one block; the kernel's only argument is an array of 64 numbers, 0 to 63."""
    array = np.arange(64, dtype=np.int32)
    text = TEXT.format(arch=arch, body="\n  ".join(body))
    execute(text, [array], (1,), (threads,), **more)
    return array


def old(*body: str, **more: Any) -> np.ndarray:
    """Run on gfx942, with the address of the array in s[2:3] and four times the thread's number in v1."""
    return run("gfx942", "s_load_dwordx2 s[2:3], s[0:1], 0x0", "v_lshlrev_b32_e32 v1, 2, v0", *body, **more)


def new(*body: str, **more: Any) -> np.ndarray:
    """Run on gfx1151, with the same registers."""
    return run("gfx1151", "s_load_b64 s[2:3], s[0:1], 0x0", "v_lshlrev_b32_e32 v1, 2, v0", *body, **more)


LOADED = ("s_waitcnt lgkmcnt(0)", "global_load_dword v2, v1, s[2:3]", "s_waitcnt vmcnt(0)")
STORED = ("v_add_u32_e32 v2, 1, v2", "global_store_dword v1, v2, s[2:3]")


def test_a_listing_without_a_fault() -> None:
    assert np.array_equal(old(*LOADED, *STORED), np.arange(1, 65))


@pytest.mark.parametrize("place", [0, 2])
def test_a_dropped_wait(place: int) -> None:
    body = [line for at, line in enumerate(LOADED) if at != place]
    with pytest.raises(MissingWaitError, match=r"used before .*must be at most 0 here") as found:
        old(*body, *STORED)
    assert found.value.line == FIRST_LINE + 2 + (0 if place == 0 else 2)
    assert found.value.text == (LOADED[1] if place == 0 else STORED[0])


def test_loads_come_in_order_and_a_weaker_wait_is_found() -> None:
    loads = ("s_waitcnt lgkmcnt(0)", "global_load_dword v2, v1, s[2:3]", "global_load_dword v3, v1, s[2:3]")
    use = (
        "v_add_u32_e32 v2, 1, v2",
        "s_waitcnt vmcnt(0)",
        "v_add_u32_e32 v2, v2, v3",
        "global_store_dword v1, v2, s[2:3]",
    )
    assert np.array_equal(old(*loads, "s_waitcnt vmcnt(1)", *use), 2 * np.arange(64) + 1)
    with pytest.raises(MissingWaitError, match=r"v2 .*vmcnt must be at most 1 here"):
        old(*loads, "s_waitcnt vmcnt(2)", *use)


def test_stores_count_with_loads_on_gfx942_and_apart_on_gfx1151() -> None:
    """A store precedes the load: gfx942 must wait for both; gfx1151 counts stores separately."""
    body = (
        "v_mov_b32_e32 v3, 7",
        "s_waitcnt lgkmcnt(0)",
        "{load} v2, v1, s[2:3]",
        "{store} v1, v3, s[2:3]",
        "s_waitcnt vmcnt(1)",
        "v_add_f32_e32 v4, v2, v2",
    )
    old(*(line.format(load="global_load_dword", store="global_store_dword") for line in body))
    with pytest.raises(MissingWaitError, match="vmcnt must be at most 0 here"):
        new(*(line.format(load="global_load_b32", store="global_store_b32") for line in body), threads=32)


def test_scalar_loads_come_in_any_order() -> None:
    body = ("s_load_dwordx2 s[4:5], s[0:1], 0x0", "s_waitcnt lgkmcnt(1)", "s_add_u32 s6, s2, 0")
    with pytest.raises(MissingWaitError, match=r"s2 .*lgkmcnt must be at most 0"):
        old(*body)


def test_what_is_on_its_way_is_not_overwritten() -> None:
    with pytest.raises(MissingWaitError, match="v2 is used before"):
        old(LOADED[0], LOADED[1], "v_mov_b32_e32 v2, 0")


def test_uninitialised_registers_are_found_where_something_depends_on_them() -> None:
    with pytest.raises(UninitialisedError, match="a stored number depends on v2, which was never written"):
        old(LOADED[0], *STORED)
    with pytest.raises(UninitialisedError, match="an address depends on v5"):
        old(LOADED[0], "global_load_dword v2, v5, s[2:3]")
    with pytest.raises(UninitialisedError, match="a branch depends on scc"):
        old("s_cmp_eq_u32 s9, 0", "s_cbranch_scc1 .LBB0_1", ".LBB0_1:")
    with pytest.raises(UninitialisedError, match="the mask of active lanes"):
        old("v_cmp_eq_u32_e32 vcc, 0, v9", "s_and_saveexec_b64 s[4:5], vcc")


def test_undefined_bits_that_nothing_depends_on_are_no_fault() -> None:
    """The upper half of a register is cut off; a select does not take a lane that was never written."""
    half = (
        "v_and_b32_e32 v2, 0xffff, v7",
        "v_and_b32_e32 v2, 0xffff0000, v2",
        "global_store_dword v1, v2, s[2:3]",
    )
    assert not old(LOADED[0], *half).any()
    added = (
        "v_and_b32_e32 v2, 0xffff0000, v7",
        "v_mad_u32_u24 v2, v0, 3, v2",
        "v_and_b32_e32 v2, 0xffff, v2",
        "global_store_dword v1, v2, s[2:3]",
    )
    assert np.array_equal(old(LOADED[0], *added), 3 * np.arange(64))
    chosen = (
        "v_cmp_gt_u32_e32 vcc, 32, v0",
        "s_and_saveexec_b64 s[4:5], vcc",
        "v_mov_b32_e32 v2, 5",
        "s_mov_b64 exec, s[4:5]",
    )
    picked = ("v_cndmask_b32_e32 v2, 6, v2, vcc", "global_store_dword v1, v2, s[2:3]")
    assert np.array_equal(old(LOADED[0], *chosen, *picked), np.repeat([5, 6], 32))
    with pytest.raises(UninitialisedError, match=r"wave 0, lane 32"):
        old(LOADED[0], *chosen, "global_store_dword v1, v2, s[2:3]")


def test_lds_that_nothing_was_stored_to() -> None:
    body = ("ds_read_b32 v2, v1", "s_waitcnt lgkmcnt(0)", "global_store_dword v1, v2, s[2:3]")
    with pytest.raises(
        UninitialisedError, match=rf"loaded from LDS that nothing was stored to \(line {FIRST_LINE + 2}\)"
    ):
        old(*body)


EXCHANGED = (
    "v_xor_b32_e32 v3, 0x80, v1",
    "ds_store_b32 v1, v0",
    "s_waitcnt lgkmcnt(0)",
    "s_barrier",
    "ds_load_b32 v2, v3",
    "s_waitcnt lgkmcnt(0)",
    "global_store_b32 v1, v2, s[2:3]",
)


def test_races_in_lds() -> None:
    assert np.array_equal(new(*EXCHANGED), np.arange(64) ^ 32)
    with pytest.raises(
        LdsRaceError,
        match=rf"reads LDS at byte \d+, which wave \d of its block writes at line {FIRST_LINE + 3}",
    ):
        new(*(line for line in EXCHANGED if line != "s_barrier"))
    with pytest.raises(
        LdsRaceError, match="with no barrier between"
    ):  # the store may come behind the barrier
        new(*(line for at, line in enumerate(EXCHANGED) if at != 2))
    with pytest.raises(LdsRaceError, match=r"writes LDS .* reads at line"):
        new(*EXCHANGED, "ds_store_b32 v1, v0")
    with pytest.raises(LdsRaceError, match="writes LDS at byte 0"):
        new("v_mov_b32_e32 v2, 0", "ds_store_b32 v2, v0")
    new("v_mov_b32_e32 v2, 0", "ds_store_b32 v2, v0", threads=32)  # one wave is in order with itself


@pytest.mark.parametrize("waited", [True, False])
def test_a_read_that_is_waited_for_behind_a_barrier_races_on_either_side(waited: bool) -> None:
    """One wave reads while a wave of another branch writes the same; both then reach their barrier."""
    body = (
        "v_readfirstlane_b32 s4, v0",
        "v_and_b32_e32 v4, 0xfc, v1",
        "s_cmp_lg_u32 s4, 0",
        "s_cbranch_scc1 .LBB0_1",
        "ds_write_b32 v4, v0",
        "s_waitcnt lgkmcnt(0)",
        ".LBB0_1:",
        "s_barrier",
        "s_cbranch_scc1 .LBB0_2",
        "ds_read_b32 v3, v4",
        "s_waitcnt lgkmcnt(0)" if waited else "s_nop 0",
        "s_barrier",
        "s_waitcnt lgkmcnt(0)",
        "s_endpgm",
        ".LBB0_2:",
        "ds_write_b32 v4, v0",
        "s_waitcnt lgkmcnt(0)",
        "s_barrier",
    )
    with pytest.raises(LdsRaceError, match="with no barrier between"):
        old(*body, threads=128)


def test_atomics_race_with_other_accesses_alone() -> None:
    zero = ("v_mov_b32_e32 v2, 0", "v_mov_b32_e32 v3, 1")
    new(*zero, "ds_add_u32 v2, v3", "ds_add_u32 v2, v3")
    with pytest.raises(LdsRaceError, match="reads LDS at byte 0"):
        new(*zero, "ds_add_u32 v2, v3", "s_waitcnt lgkmcnt(0)", "ds_load_b32 v4, v2")


def test_loads_into_lds_are_waited_for_by_vmcnt() -> None:
    body = (
        "s_mov_b32 m0, 0",
        "s_waitcnt lgkmcnt(0)",
        "global_load_lds_dword v1, s[2:3]",
        "s_waitcnt vmcnt(0)",
        "ds_read_b32 v2, v1",
        "s_waitcnt lgkmcnt(0)",
        "v_add_u32_e32 v2, v2, v2",
        "global_store_dword v1, v2, s[2:3]",
    )
    assert np.array_equal(old(*body), 2 * np.arange(64))
    with pytest.raises(MissingWaitError, match="vmcnt"):
        old(*(line for line in body if "vmcnt" not in line))


def test_accesses_out_of_bounds() -> None:
    with pytest.raises(
        OutOfBoundsError, match="LDS is accessed at bytes 256 to 259 of 256, in wave 0, lane 63"
    ):
        old("ds_write_b32 v1, v0 offset:4")
    with pytest.raises(
        OutOfBoundsError,
        match=r"a load of 4 bytes 0 bytes after the end of argument 0 \(256 bytes\), in 1 lanes",
    ):
        old("s_waitcnt lgkmcnt(0)", "global_load_dword v2, v1, s[2:3] offset:4")
    with pytest.raises(OutOfBoundsError, match=r"a store .* argument 0"):
        old("s_waitcnt lgkmcnt(0)", "global_store_dword v1, v0, s[2:3] offset:-4")
    with pytest.raises(OutOfBoundsError, match="scratch memory is accessed at bytes 16 to 19 of 16"):
        old("scratch_store_dword off, v0, off offset:16")
    with pytest.raises(OutOfBoundsError, match="a flat address is 0x0"):
        old("v_mov_b32_e32 v2, 0", "v_mov_b32_e32 v3, 0", "flat_load_dword v4, v[2:3]")


IN_LDS = (
    *("s_waitcnt lgkmcnt(0)", "s_mov_b64 s[4:5], src_shared_base"),
    *("v_mov_b32_e32 v2, v1", "v_mov_b32_e32 v3, s5"),
)
"""The flat address of a number in LDS for each thread, in v[2:3]."""
OUT = ("s_waitcnt vmcnt(0) lgkmcnt(0)", "global_store_dword v1, v4, s[2:3]")


def test_undefined_bits_that_flat_accesses_move_through_lds() -> None:
    stored = old(*IN_LDS, "flat_store_dword v[2:3], v0", "ds_read_b32 v4, v1", *OUT)
    assert stored.tolist() == list(range(64))
    with pytest.raises(UninitialisedError, match="v4, loaded from LDS that nothing was stored to"):
        old(*IN_LDS, "flat_load_dword v4, v[2:3]", *OUT)
    with pytest.raises(UninitialisedError, match="v4, loaded from LDS that nothing was stored to"):
        old(*IN_LDS, "flat_store_dword v[2:3], v6", "ds_read_b32 v4, v1", *OUT)


def test_flat_stores_to_the_same_bytes_of_an_array() -> None:
    body = ("s_waitcnt lgkmcnt(0)", "v_mov_b32_e32 v2, s2", "v_mov_b32_e32 v3, s3")
    old(*body, "flat_store_dword v[2:3], v0")
    with pytest.raises(StoredTwiceError, match="63 lanes store to bytes"):
        old(*body, "flat_store_dword v[2:3], v0", stores_once=True)


WMMA = "v_wmma_f32_16x16x16_f16 v[32:39], v[16:23], v[24:31], 0"


def test_a_wmma_whose_halves_differ_or_without_all_lanes() -> None:
    filled = [f"v_mov_b32_e32 v{register}, 0" for register in range(16, 32)]
    new(*filled, WMMA, threads=32)
    with pytest.raises(
        UnreplicatedLanesError, match="lanes 0 and 16 of wave 0 hold different numbers of B in v25"
    ):
        new(*filled, "v_mov_b32_e32 v25, v0", WMMA, threads=32)
    with pytest.raises(UnreplicatedLanesError, match="without all lanes active"):
        new(*filled, "s_mov_b32 exec_lo, 1", WMMA, threads=32)


def test_waves_that_never_end() -> None:
    with pytest.raises(DeadlockError, match="5000 instructions were executed"):
        old(".LBB0_1:", "s_sleep 1", "s_branch .LBB0_1", most=5000)


def test_a_barrier_that_some_waves_end_without() -> None:
    """Hardware does not count ended waves; kernels that promise that all waves arrive are reported."""
    first = ("v_readfirstlane_b32 s4, v0", "s_cmp_eq_u32 s4, 0", "s_cbranch_scc1 .LBB0_1")
    body = (*first, "s_barrier", ".LBB0_1:")
    old(*body, threads=256)
    with pytest.raises(MissedBarrierError, match="3 waves wait at a barrier that 1 others") as found:
        old(*body, threads=256, all_meet=True)
    assert found.value.text == "s_barrier"
    old("s_barrier", *first, "s_nop 0", ".LBB0_1:", threads=256, all_meet=True)


def test_waves_that_wait_in_a_loop_starve_no_others() -> None:
    """The first wave waits for a store of the second wave."""
    waiting = (
        "v_mov_b32_e32 v9, 0",
        "v_readfirstlane_b32 s4, v0",
        "s_waitcnt lgkmcnt(0)",
        "s_cmp_eq_u32 s4, 0",
        "s_cbranch_scc0 .LBB0_2",
        ".LBB0_1:",
        "global_load_dword v2, v9, s[2:3]",
        "s_waitcnt vmcnt(0)",
        "v_readfirstlane_b32 s5, v2",
        "s_cmp_eq_u32 s5, 0",
        "s_cbranch_scc1 .LBB0_1",
        "s_endpgm",
        ".LBB0_2:",
    )
    store = ("s_nop 0",) * 300 + ("global_store_dword v9, v0, s[2:3]",)
    assert old(*waiting, *store, threads=128)[0] == 127


def test_what_is_unknown_is_refused_with_its_line_and_the_nearest_known() -> None:
    with pytest.raises(UnknownInstructionError, match=r"'v_add_u33'.*did you mean 'v_add_u32'") as found:
        old("v_add_u33 v1, v2, v3")
    assert (found.value.line, found.value.text) == (FIRST_LINE + 2, "v_add_u33 v1, v2, v3")
    with pytest.raises(UnknownInstructionError, match="'v_wmma_f32_16x16x16_f16' on gfx9"):
        old(WMMA)
    with pytest.raises(UnknownInstructionError, match=r"\['blgp'\]"):
        old("v_mfma_f32_32x32x8_f16 v[0:15], v[16:17], v[18:19], 0 blgp:1")
    with pytest.raises(UnknownInstructionError, match="takes 2 registers of A and B, and 16 of D"):
        old("v_mfma_f32_32x32x8_f16 v[0:15], v[16:19], v[18:19], 0")
    with pytest.raises(UnknownInstructionError, match=r"no label '.LBB0_9'"):
        old("s_branch .LBB0_9")
    with pytest.raises(UnknownInstructionError, match="'gfx1201' are not known"):
        run("gfx1201", "s_nop 0")
    with pytest.raises(ListingParseError, match="operand 'v\\[2' is not understood"):
        old("v_mov_b32_e32 v1, v[2")
    with pytest.raises(ListingError, match="one to three extents"):
        execute(TEXT.format(arch="gfx942", body=""), [np.zeros(4)], (0,), (64,))


def test_every_known_name_is_said_once() -> None:
    names = known_mnemonics()
    assert len(names) == len(set(names)) > 700
