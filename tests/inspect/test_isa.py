"""Listings are read into loops, kinds of instructions and widths of accesses."""

from __future__ import annotations

import pytest

from tilewright.amdgcn.text import instruction
from tilewright.errors import LaunchError, ToolchainError
from tilewright.inspect.isa import IsaKind, read_isa
from tilewright.inspect.isa.instructions import amd_line

NESTED = """
.amdgcn_target "amdgcn-amd-amdhsa--gfx942"
nested:
  s_mov_b32 s0, 0
  s_branch .L3
.L1:
  v_add_f32_e32 v1, v1, v1
  s_cbranch_execz .L2
  global_load_dwordx4 v[4:7], v[2:3], off
.L2:
  s_barrier
  v_mfma_f32_32x32x8_f16 a[0:15], v[4:5], v[6:7], a[0:15]
  s_cbranch_scc1 .L1
  v_mov_b32_e32 v9, 0
  s_cbranch_scc0 .L4
.L3:
  ds_read2_b64 v[4:7], v8 offset1:4
  s_branch .L1
.L4:
  s_endpgm
.amdhsa_kernel nested
.end_amdhsa_kernel
.amdgpu_metadata
amdhsa.kernels:
  - .args: []
    .group_segment_fixed_size: 32768
    .max_flat_workgroup_size: 256
    .name: nested
    .private_segment_fixed_size: 0
    .vgpr_count: 128
    .vgpr_spill_count: 0
.end_amdgpu_metadata
"""


def test_loops_are_found_by_branches_whatever_the_order_of_blocks() -> None:
    """The outer loop's text begins after the inner one; a guarded load belongs to the inner one."""
    isa = read_isa(NESTED)
    inner, outer = isa.loops
    assert (inner.label, inner.depth, inner.around) == (".L1", 2, ".L3")
    assert (outer.label, outer.depth, outer.around) == (".L3", 1, "")
    assert [line.mnemonic for line in outer.lines] == [
        *("v_mov_b32_e32", "s_cbranch_scc0", "ds_read2_b64", "s_branch")
    ]
    assert outer.turn[0].mnemonic == "ds_read2_b64"
    assert isa.main is inner
    assert inner.mix == {
        IsaKind.VECTOR: 1,
        IsaKind.BRANCH: 2,
        IsaKind.GLOBAL_LOAD: 1,
        IsaKind.BARRIER: 1,
        IsaKind.MATRIX: 1,
    }
    assert inner.matrix_per_load == 1
    assert inner.flushes_per_barrier == 0
    assert outer.widths(IsaKind.SHARED_LOAD) == {8: 2}


def test_what_limits_the_warps_of_a_simd() -> None:
    isa = read_isa(NESTED)
    assert isa.limits == {"warps": 8, "registers": 4, "shared_bytes": 2}
    assert isa.limited_by == ("shared_bytes",)
    assert isa.resources["warps_per_simd"] == 2


@pytest.mark.parametrize(
    ("text", "kind", "width"),
    [
        ("v_wmma_f32_16x16x16_f16 v[0:7], v[8:15], v[16:23], v[0:7]", IsaKind.MATRIX, (0, 0)),
        ("v_dual_mov_b32 v1, v2 :: v_dual_mov_b32 v3, v4", IsaKind.VECTOR, (0, 0)),
        ("v_writelane_b32 v1, s2, 3", IsaKind.LANE, (0, 0)),
        ("global_load_b128 v[0:3], v[4:5], off offset:16", IsaKind.GLOBAL_LOAD, (16, 1)),
        ("global_load_d16_hi_b16 v0, v[4:5], off", IsaKind.GLOBAL_LOAD, (2, 1)),
        ("buffer_load_dwordx2 v[0:1], v2, s[0:3], 0 offen", IsaKind.GLOBAL_LOAD, (8, 1)),
        ("global_load_lds_dwordx4 v[0:1], off", IsaKind.TO_SHARED, (16, 1)),
        ("global_store_short v[0:1], v2, off", IsaKind.GLOBAL_STORE, (2, 1)),
        ("global_atomic_add_f32 v0, v1, s[0:1]", IsaKind.GLOBAL_ATOMIC, (0, 0)),
        ("ds_load_2addr_stride64_b64 v[0:3], v4 offset1:1", IsaKind.SHARED_LOAD, (8, 2)),
        ("ds_read_u16_d16_hi v0, v1", IsaKind.SHARED_LOAD, (2, 1)),
        ("ds_read_b64_tr_b16 v[0:1], v2", IsaKind.SHARED_LOAD, (8, 1)),
        ("ds_write2st64_b32 v0, v1, v2 offset1:1", IsaKind.SHARED_STORE, (4, 2)),
        ("ds_add_u32 v0, v1", IsaKind.SHARED_ATOMIC, (0, 0)),
        ("ds_bpermute_b32 v0, v1, v2", IsaKind.EXCHANGE, (0, 0)),
        ("scratch_load_dwordx4 v[0:3], off, off", IsaKind.STACK, (16, 1)),
        ("s_load_b64 s[0:1], s[2:3], 0x0", IsaKind.CONSTANT_LOAD, (0, 0)),
        ("s_waitcnt vmcnt(0) lgkmcnt(1)", IsaKind.WAIT, (0, 0)),
        ("s_wait_dscnt 0x0", IsaKind.WAIT, (0, 0)),
        ("s_barrier", IsaKind.BARRIER, (0, 0)),
        ("s_barrier_signal -1", IsaKind.SCALAR, (0, 0)),
        ("s_barrier_wait -1", IsaKind.BARRIER, (0, 0)),
        ("buffer_gl0_inv", IsaKind.FLUSH, (0, 0)),
        ("buffer_inv sc1", IsaKind.FLUSH, (0, 0)),
        ("buffer_wbl2 sc1", IsaKind.FLUSH, (0, 0)),
        ("s_dcache_inv", IsaKind.FLUSH, (0, 0)),
        ("global_inv scope:SCOPE_SE", IsaKind.FLUSH, (0, 0)),
        ("s_delay_alu instid0(VALU_DEP_1)", IsaKind.HINT, (0, 0)),
        ("s_add_u32 s0, s1, s2", IsaKind.SCALAR, (0, 0)),
        ("image_load v0, v1, s[0:7]", IsaKind.OTHER, (0, 0)),
    ],
)
def test_kinds_and_widths(text: str, kind: IsaKind, width: tuple[int, int]) -> None:
    line = amd_line(instruction(1, text))
    assert (line.kind, (line.bytes, line.accesses)) == (kind, width)


def test_listings_that_say_too_little_are_refused() -> None:
    with pytest.raises(
        LaunchError, match="no main loop: 0 matrix instructions, none of them in one of its 2"
    ):
        _ = read_isa(NESTED.replace("v_mfma_f32_32x32x8_f16", "v_other")).main
    with pytest.raises(LaunchError, match="not a listing for AMD"):
        read_isa("# PTX")
    with pytest.raises(LaunchError, match=r"unknown architecture 'gfx803'.*gfx942"):
        read_isa(NESTED.replace("gfx942", "gfx803"))
    with pytest.raises(LaunchError, match=r"no kernel 'nestd', but.*did you mean"):
        read_isa(NESTED, "nestd")
    with pytest.raises(ToolchainError, match="no metadata of one kernel"):
        read_isa(NESTED.replace(".vgpr_count", ".other"))
