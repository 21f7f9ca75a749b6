"""Instructions whose results were computed by hand from the published descriptions."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from tests.amdgcn.wave import bits, do, get, put, wave

from tilewright.amdgcn.operands import operand

BOTH = ("gfx1151", "gfx942")
NEW, OLD = BOTH[:1], BOTH[1:]


class Case(NamedTuple):
    """An instruction, and registers before and after it."""

    text: str
    before: dict[str, Any]
    after: dict[str, int]
    archs: tuple[str, ...] = BOTH


F = bits
CASES = [
    Case(
        "v_add_co_u32 v0, vcc_lo, v1, v2", {"v1": 0xFFFFFFFF, "v2": 2}, {"v0": 1, "vcc_lo": 0xFFFFFFFF}, NEW
    ),
    Case("v_add_co_u32_e32 v0, vcc, v1, v2", {"v1": 3, "v2": 2}, {"v0": 5, "vcc": 0}, OLD),
    Case("v_add_co_ci_u32_e64 v0, null, v1, v2, s4", {"v1": 3, "v2": 2, "s4": 1}, {"v0": 6}, NEW),
    Case(
        "v_subb_co_u32_e32 v0, vcc, v1, v2, vcc",
        {"v1": 0, "v2": 0, "vcc": 1},
        {"v0": 0xFFFFFFFF, "vcc": 1},
        OLD,
    ),
    Case(
        "v_mad_u64_u32 v[0:1], null, v2, v3, v[4:5]",
        {"v2": 1 << 31, "v3": 6, "v[4:5]": 5},
        {"v[0:1]": (3 << 32) + 5},
        NEW,
    ),
    Case("v_mad_i64_i32 v[0:1], vcc, v2, v3, 0", {"v2": 0xFFFFFFFF, "v3": 3}, {"v[0:1]": 2**64 - 3}, OLD),
    Case(
        "v_lshl_add_u64 v[0:1], v[2:3], 3, v[4:5]",
        {"v[2:3]": 1 << 33, "v[4:5]": 7},
        {"v[0:1]": (1 << 36) + 7},
        OLD,
    ),
    # A constant in floating point has the bits of a number of 64 bits where an operand has 64.
    Case(
        "v_lshl_add_u64 v[0:1], v[2:3], 0, 1.0",
        {"v[2:3]": 1 << 52},
        {"v[0:1]": 0x4000000000000000},
        OLD,
    ),
    # 2**512 * 2**512 - 2**1023: the product alone has no number.
    Case(
        "v_fma_f64 v[0:1], v[2:3], v[2:3], v[4:5]",
        {"v[2:3]": 0x5FF0000000000000, "v[4:5]": 0xFFE0000000000000},
        {"v[0:1]": 0x7FE0000000000000},
    ),
    Case(
        "v_perm_b32 v0, v1, v2, v3",
        {"v1": 0x77665544, "v2": 0x33221180, "v3": 0x0D0C0804},
        {"v0": 0xFF000044},
    ),
    Case(
        "v_perm_b32 v0, v1, v2, s3",
        {"v1": 0x77665544, "v2": 0x33221180, "s3": 0x00010207},
        {"v0": 0x80112277},
    ),
    Case("v_alignbit_b32 v0, v1, v2, 8", {"v1": 0x12345678, "v2": 0x9ABCDEF0}, {"v0": 0x789ABCDE}),
    Case("v_alignbyte_b32 v0, v1, v2, 1", {"v1": 0x12345678, "v2": 0x9ABCDEF0}, {"v0": 0x789ABCDE}),
    Case("v_bfe_u32 v0, v1, 8, 12", {"v1": 0xABCDEF12}, {"v0": 0xDEF}),
    Case("v_bfe_i32 v0, v1, 8, 12", {"v1": 0xABCDEF12}, {"v0": 0xFFFFFDEF}),
    Case(
        "v_bfi_b32 v0, v1, v2, v3", {"v1": 0x0000FFFF, "v2": 0x11112222, "v3": 0x33334444}, {"v0": 0x33332222}
    ),
    Case("v_mul_i32_i24_e32 v0, v1, v2", {"v1": 0x12FFFFFF, "v2": 5}, {"v0": 0xFFFFFFFB}),
    Case("v_mul_hi_u32_u24_e32 v0, v1, v2", {"v1": 0xFFFFFFFF, "v2": 0xFFFFFF}, {"v0": 0xFFFF}),
    Case("v_mad_u32_u24 v0, v1, v2, 1", {"v1": 0x01000003, "v2": 7}, {"v0": 22}),
    Case("v_med3_i32 v0, v1, v2, 0", {"v1": 0xFFFFFFF0, "v2": 9}, {"v0": 0}),
    Case("v_med3_f32 v0, v1, v2, v3", {"v1": F(np.nan), "v2": F(3.0), "v3": F(-2.0)}, {"v0": F(-2.0)}),
    Case("v_max_f32_e32 v0, v1, v2", {"v1": 0x80000000, "v2": 0}, {"v0": 0}),
    Case("v_min_f32_e32 v0, v1, v2", {"v1": F(np.nan), "v2": F(4.0)}, {"v0": F(4.0)}),
    Case("v_fma_f32 v0, v1, v1, -1.0", {"v1": F(1 + 2**-12)}, {"v0": F(2**-11 + 2**-24)}),
    Case(
        "v_fma_f64 v[0:1], v[2:3], v[2:3], -1.0",
        {"v[2:3]": F(1 + 2**-30, "f8")},
        {"v[0:1]": F(2**-29 + 2**-60, "f8")},
    ),
    Case("v_fmaak_f32 v0, v1, v2, 0x40400000", {"v1": F(2.0), "v2": F(5.0)}, {"v0": F(13.0)}),
    Case("v_fmamk_f32 v0, v1, 0x40400000, v2", {"v1": F(2.0), "v2": F(5.0)}, {"v0": F(11.0)}),
    Case("v_fmac_f32_e32 v0, v1, v2", {"v0": F(1.0), "v1": F(2.0), "v2": F(5.0)}, {"v0": F(11.0)}),
    Case("v_add_f32_e64 v0, -|v1|, v2 clamp", {"v1": F(2.0), "v2": F(5.0)}, {"v0": F(1.0)}),
    Case("v_mul_f32_e64 v0, v1, 0.5 mul:4", {"v1": F(3.0)}, {"v0": F(6.0)}),
    Case("v_cndmask_b32_e64 v0, v1, -|v2|, s4", {"v1": 1, "v2": F(2.0), "s4": 1}, {"v0": F(-2.0)}, NEW),
    Case("v_cndmask_b32_e64 v0, v1, |v2|, vcc", {"v1": 1, "v2": F(-2.0), "vcc": 1}, {"v0": F(2.0)}, OLD),
    Case("v_ffbh_i32_e32 v0, v1", {"v1": 0xFFFFF000}, {"v0": 20}, OLD),
    Case("v_cls_i32_e32 v0, v1", {"v1": 0xFFFFFFFF}, {"v0": 0xFFFFFFFF}, NEW),
    Case("v_ldexp_f32 v0, v1, -1", {"v1": F(3.0)}, {"v0": F(1.5)}),
    Case("v_rndne_f32_e32 v0, v1", {"v1": F(2.5)}, {"v0": F(2.0)}),
    Case("v_fract_f32_e32 v0, v1", {"v1": F(-0.25)}, {"v0": F(0.75)}),
    Case("v_cvt_i32_f32_e32 v0, v1", {"v1": F(-2.9)}, {"v0": 0xFFFFFFFE}),
    Case("v_cvt_u32_f32_e32 v0, v1", {"v1": F(-2.9)}, {"v0": 0}),
    Case("v_cvt_i32_f32_e32 v0, v1", {"v1": F(3e9)}, {"v0": 0x7FFFFFFF}),
    Case("v_cvt_f32_ubyte2_e32 v0, v1", {"v1": 0x00C80000}, {"v0": F(200.0)}),
    Case("v_cvt_f16_f32_e32 v0, v1", {"v0": 0xAAAABBBB, "v1": F(65520.0)}, {"v0": 0x7C00}, OLD),
    Case("v_cvt_f16_f32_e32 v0.h, v1", {"v0": 0xAAAABBBB, "v1": F(1.0)}, {"v0": 0x3C00BBBB}, NEW),
    Case(
        "v_cvt_pkrtz_f16_f32 v0, v1, v2",
        {"v1": F(65519.0), "v2": F(1 + 2**-10 + 2**-11)},
        {"v0": 0x3C017BFF},
        OLD,
    ),
    Case("v_cvt_pk_rtz_f16_f32_e32 v0, v1, v2", {"v1": F(-1.0), "v2": F(2.0)}, {"v0": 0x4000BC00}, NEW),
    Case(
        "v_cvt_pk_fp8_f32 v0, v1, v2",
        {"v0": 0x12345678, "v1": F(1.0), "v2": F(-240.0)},
        {"v0": 0x1234FF40},
        OLD,
    ),
    Case(
        "v_cvt_pk_bf8_f32 v0, v1, v2 op_sel:[0,0,1]",
        {"v0": 0x12345678, "v1": F(1.0), "v2": F(2.0)},
        {"v0": 0x44405678},
        OLD,
    ),
    Case("v_cvt_f32_fp8_sdwa v0, v1 src0_sel:BYTE_2", {"v1": 0x00440000}, {"v0": F(1.5)}, OLD),
    Case("v_cvt_pk_f32_fp8_e32 v[0:1], v2", {"v2": 0x4044}, {"v[0:1]": (F(1.0) << 32) | F(1.5)}, OLD),
    Case("v_cmp_class_f32_e64 s4, v1, 0x204", {"v1": F(np.inf)}, {"s4": 0xFFFFFFFF}, NEW),
    Case("v_cmp_nlt_f32_e32 vcc, v1, v2", {"v1": F(np.nan), "v2": F(1.0)}, {"vcc": 2**64 - 1}, OLD),
    Case("v_cmp_lg_f32_e32 vcc_lo, v1, v2", {"v1": F(np.nan), "v2": F(1.0)}, {"vcc_lo": 0}, NEW),
    Case(
        "v_pk_fma_f16 v0, v1, v2, v3",
        {"v1": 0x40003C00, "v2": 0x42004200, "v3": 0x3C000000},
        {"v0": 0x47004200},
    ),
    Case(
        "v_pk_add_f16 v0, v1, v2 op_sel:[0,1] op_sel_hi:[0,1]",
        {"v1": 0x40003C00, "v2": 0x42000000},
        {"v0": 0x44004400},
    ),
    Case(
        "v_pk_mul_f32 v[0:1], v[2:3], v[4:5] op_sel_hi:[1,0]",
        {"v[2:3]": (F(3.0) << 32) | F(2.0), "v[4:5]": F(5.0)},
        {"v[0:1]": (F(15.0) << 32) | F(10.0)},
        OLD,
    ),
    Case(
        "v_pk_mov_b32 v[0:1], v[2:3], v[4:5] op_sel:[1,0]",
        {"v[2:3]": 0x2222222211111111, "v[4:5]": 0x4444444433333333},
        {"v[0:1]": 0x3333333322222222},
        OLD,
    ),
    Case(
        "v_fma_mix_f32 v0, v1, v2, v3 op_sel:[1,0,0] op_sel_hi:[1,1,0]",
        {"v1": 0x40000000, "v2": 0x4200, "v3": F(1.0)},
        {"v0": F(7.0)},
    ),
    Case("v_fma_mixhi_f16 v0, v1, v2, 0", {"v0": 0x1111AAAA, "v1": F(2.0), "v2": F(0.5)}, {"v0": 0x3C00AAAA}),
    Case(
        "v_dot2_f32_f16 v0, v1, v2, v3", {"v1": 0x40003C00, "v2": 0x42004400, "v3": F(0.5)}, {"v0": F(10.5)}
    ),
    Case(
        "v_dot4_i32_iu8 v0, v1, v2, 1 neg_lo:[1,0,0]",
        {"v1": 0x000000FF, "v2": 0x000000FF},
        {"v0": 0xFFFFFF02},
        NEW,
    ),
    Case("v_dot4_i32_i8 v0, v1, v2, 1", {"v1": 0x02FF0000, "v2": 0x03FF0000}, {"v0": 8}, OLD),
    Case(
        "v_or_b32_sdwa v0, v1, v2 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1 src1_sel:BYTE_0",
        {"v1": 0x12340000, "v2": 0x5678},
        {"v0": 0x127C},
        OLD,
    ),
    Case(
        "v_add_nc_u16 v0.l, v1.h, v2.l",
        {"v0": 0xAAAA0000, "v1": 0xFFFF0000, "v2": 2},
        {"v0": 0xAAAA0001},
        NEW,
    ),
    Case("v_add_u16_e32 v0, v1, v2", {"v0": 0xAAAA0000, "v1": 0xFFFF, "v2": 2}, {"v0": 1}, OLD),
    Case(
        "v_fma_f16 v0, v1, v2, v3",
        {"v0": 0xAAAA0000, "v1": 0x4000, "v2": 0x4200, "v3": 0x3C00},
        {"v0": 0xAAAA4700},
        OLD,
    ),
    Case(
        "v_pack_b32_f16 v0, v1, v2 op_sel:[1,0,0]", {"v1": 0x12345678, "v2": 0x9ABCDEF0}, {"v0": 0xDEF01234}
    ),
    Case("v_dual_mov_b32 v0, v1 :: v_dual_mov_b32 v1, v0", {"v0": 1, "v1": 2}, {"v0": 2, "v1": 1}, NEW),
    Case(
        "v_dual_fmac_f32 v0, v1, v2 :: v_dual_add_f32 v1, v0, v2",
        {"v0": F(1.0), "v1": F(2.0), "v2": F(3.0)},
        {"v0": F(7.0), "v1": F(4.0)},
        NEW,
    ),
    Case("s_bfe_u32 s0, s1, 0x80004", {"s1": 0x00001234}, {"s0": 0x23, "scc": 1}),
    Case("s_bfe_i32 s0, s1, 0x80004", {"s1": 0x00000F84}, {"s0": 0xFFFFFFF8, "scc": 1}),
    Case("s_lshl2_add_u32 s0, s1, s2", {"s1": 0x40000001, "s2": 3}, {"s0": 7, "scc": 1}),
    Case("s_add_i32 s0, s1, s2", {"s1": 0x7FFFFFFF, "s2": 1}, {"s0": 0x80000000, "scc": 1}),
    Case("s_addc_u32 s0, s1, s2", {"s1": 0xFFFFFFFF, "s2": 0, "scc": 1}, {"s0": 0, "scc": 1}),
    Case("s_max_i32 s0, s1, s2", {"s1": 5, "s2": 5}, {"s0": 5, "scc": 1}),
    Case("s_movk_i32 s0, 0xfc00", {}, {"s0": 0xFFFFFC00}),
    Case("s_cmpk_lg_u32 s0, 0xfc00", {"s0": 0xFC00}, {"scc": 0}),
    Case("s_ashr_i64 s[0:1], s[2:3], 33", {"s[2:3]": 1 << 63}, {"s[0:1]": 2**64 - 2**30, "scc": 1}),
    Case("s_bcnt1_i32_b64 s0, s[2:3]", {"s[2:3]": 0xF0000000F}, {"s0": 8, "scc": 1}),
    Case("s_ff1_i32_b32 s0, s1", {"s1": 0x50}, {"s0": 4}, OLD),
    Case("s_clz_i32_u32 s0, s1", {"s1": 0x00FFFFFF}, {"s0": 8}, NEW),
    Case("s_mul_hi_u32 s0, s1, s2", {"s1": 1 << 31, "s2": 6}, {"s0": 3}),
    Case("s_cvt_f32_u32 s0, s1", {"s1": 7}, {"s0": F(7.0)}, NEW),
    Case(
        "s_and_not1_saveexec_b32 s0, s1",
        {"s1": 0xF, "exec_lo": 0x3},
        {"s0": 3, "exec_lo": 0xC, "scc": 1},
        NEW,
    ),
    Case(
        "s_and_saveexec_b64 s[0:1], s[2:3]",
        {"s[2:3]": 0, "exec": 0x3},
        {"s[0:1]": 3, "exec": 0, "scc": 0},
        OLD,
    ),
]


@pytest.mark.parametrize(
    ("arch", "case"),
    [(arch, case) for case in CASES for arch in case.archs],
    ids=lambda one: getattr(one, "text", one),
)
def test_one_instruction(arch: str, case: Case) -> None:
    made = wave(arch)
    for name, value in {"vcc": 0, "scc": 0, **case.before}.items():
        put(made, name, value)
    do(made, case.text)
    for name, value in case.after.items():
        assert hex(get(made, name)) == hex(value), name


def test_a_result_is_written_in_active_lanes_alone() -> None:
    made = wave("gfx1151")
    put(made, "v1", np.arange(32))
    put(made, "v0", 9)
    put(made, "exec_lo", 0x5)
    do(made, "v_add_nc_u32_e32 v0, 1, v1")
    assert [get(made, "v0", lane) for lane in range(4)] == [1, 9, 3, 9]
    do(made, "v_cmp_lt_u32_e32 vcc_lo, 1, v1")
    assert get(made, "vcc_lo") == 0x4  # inactive lanes give 0
    do(made, "v_cmpx_eq_u32_e32 2, v1")
    assert get(made, "exec_lo") == 0x4


def test_lanes_read_others() -> None:
    made = wave("gfx942")
    put(made, "v1", np.arange(64))
    do(made, "v_mov_b32_dpp v0, v1 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf")
    assert [get(made, "v0", lane) for lane in (0, 1, 62)] == [1, 0, 63]
    put(made, "v0", 99)
    do(made, "v_mov_b32_dpp v0, v1 row_shr:1 row_mask:0xf bank_mask:0xf")
    assert [get(made, "v0", lane) for lane in (0, 1, 16, 17)] == [99, 0, 99, 16]
    do(made, "v_mov_b32_dpp v0, v1 row_shr:1 row_mask:0xf bank_mask:0xf bound_ctrl:1")
    assert [get(made, "v0", lane) for lane in (0, 1)] == [0, 0]
    do(made, "v_add_u32_dpp v2, v1, v1 row_newbcast:3 row_mask:0xf bank_mask:0xf")
    assert [get(made, "v2", lane) for lane in (0, 17)] == [3, 36]
    put(made, "v3", 4 * ((np.arange(64) + 5) % 64))
    do(made, "ds_bpermute_b32 v4, v3, v1")
    assert [get(made, "v4", lane) for lane in (0, 60)] == [5, 1]
    do(made, "ds_permute_b32 v5, v3, v1")
    assert [get(made, "v5", lane) for lane in (5, 1)] == [0, 60]
    do(made, 'ds_swizzle_b32 v6, v1 offset:swizzle(BITMASK_PERM,"00p1i")')
    assert [get(made, "v6", lane) for lane in (0, 4, 35)] == [3, 7, 34]
    do(made, "v_readlane_b32 s0, v1, 63", "v_writelane_b32 v1, s0, 2", "v_readfirstlane_b32 s1, v1")
    assert (get(made, "s0"), get(made, "v1", 2), get(made, "s1")) == (63, 63, 0)
    do(made, "v_mbcnt_lo_u32_b32 v7, -1, 0", "v_mbcnt_hi_u32_b32 v7, -1, v7")
    assert [get(made, "v7", lane) for lane in (0, 31, 40, 63)] == [0, 31, 40, 63]


def test_lanes_read_inactive_lanes_if_asked() -> None:
    made = wave("gfx1151")
    put(made, "v1", 50 + np.arange(32))
    put(made, "exec_lo", 0xFFFFFFFE)
    put(made, "s1", 0x11111111)
    put(made, "s2", 0)
    texts = {
        "v_mov_b32_dpp v0, v1 quad_perm:[1,0,0,3] row_mask:0xf bank_mask:0xf": [99, 99, 99, 53],
        "v_mov_b32_dpp v0, v1 quad_perm:[1,0,0,3] row_mask:0xf bank_mask:0xf bound_ctrl:1": [99, 0, 0, 53],
        "v_mov_b32_dpp v0, v1 quad_perm:[1,0,0,3] row_mask:0xf bank_mask:0xf fi:1": [99, 50, 50, 53],
        "v_mov_b32_dpp v0, v1 row_shr:1 row_mask:0xf bank_mask:0xf fi:1": [99, 50, 51, 52],
        "v_permlane16_b32 v0, v1, s1, s1": [99, 51, 51, 51],
        "v_permlane16_b32 v0, v1, s2, s2": [99, 99, 99, 99],
        "v_permlane16_b32 v0, v1, s2, s2 op_sel:[0,1]": [99, 0, 0, 0],
        "v_permlane16_b32 v0, v1, s2, s2 op_sel:[1,0]": [99, 50, 50, 50],
    }
    for text, expected in texts.items():
        put(made, "v0", 99)
        do(made, text)
        assert [get(made, "v0", lane) for lane in range(4)] == expected, text


def test_lanes_that_keep_a_result_keep_its_undefined_bits() -> None:
    made = wave("gfx1151")
    put(made, "v1", np.arange(32))
    put(made, "s2", 0)
    put(made, "exec_lo", 0xFFFFFFFE)
    do(made, "v_permlane16_b32 v0, v1, s2, s2", "v_permlanex16_b32 v2, v0, s2, s2 op_sel:[1,0]")
    for register, undefined in (("v0", range(16)), ("v2", {0, *range(16, 32)})):
        bits_of_lanes = made.undefined_bits(operand(register).registers[0])
        assert bits_of_lanes is not None
        assert set(np.flatnonzero(bits_of_lanes[0])) == set(undefined), register


def test_lds_by_bytes_pairs_and_atomics() -> None:
    made = wave("gfx1151")
    lanes = np.arange(32)
    put(made, "v0", 4 * lanes)
    put(made, "v1", 0x80FF0000 + lanes)
    do(made, "ds_store_b32 v0, v1", "ds_load_i8 v2, v0 offset:2", "ds_load_u16_d16_hi v3, v0 offset:2")
    assert get(made, "v2", 3) == 0xFFFFFFFF
    put(made, "v4", 0x1234)
    do(made, "ds_load_u16_d16_hi v4, v0 offset:2")
    assert get(made, "v4", 3) == 0x80FF1234
    put(made, "v10", 8 * (lanes // 2))
    do(made, "ds_load_2addr_b32 v[5:6], v10 offset0:1 offset1:0")
    assert (get(made, "v5", 4), get(made, "v6", 4)) == (0x80FF0005, 0x80FF0004)
    put(made, "v7", 0)
    put(made, "v8", 1)
    do(made, "ds_add_rtn_u32 v9, v7, v8")
    assert sorted(get(made, "v9", lane) - 0x80FF0000 for lane in range(32)) == list(range(32))
    do(made, "ds_load_b32 v9, v7")
    assert get(made, "v9", 5) == 0x80FF0020
    put(made, "v20", 0x80FF0020)
    put(made, "v21", 77)
    do(made, "ds_cmpstore_rtn_b32 v22, v7, v21, v20", "ds_load_b32 v9, v7")
    assert get(made, "v9") == 77
    old = wave("gfx942")
    for name, value in (("v7", 0), ("v1", 5), ("v20", 5), ("v21", 77)):
        put(old, name, value)
    do(old, "ds_write_b32 v7, v1", "ds_cmpst_rtn_b32 v22, v7, v20, v21", "ds_read_b32 v9, v7")
    assert (get(old, "v22"), get(old, "v9")) == (5, 77)
