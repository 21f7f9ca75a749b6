"""The names of the instructions that have a meaning here."""

from __future__ import annotations

from tilewright.amdgcn.atomics import ATOMICS, COMPARING
from tilewright.amdgcn.compares import COMPARISONS
from tilewright.amdgcn.decode_packed import SPECIAL
from tilewright.amdgcn.decode_vector import VECTOR
from tilewright.amdgcn.flow import BRANCHES, NOTHING
from tilewright.amdgcn.scalar_floats import SCALAR_FLOATS
from tilewright.amdgcn.scalars import SAVING, SCALARS

_OTHERS = """
s_endpgm s_barrier s_waitcnt s_waitcnt_vscnt v_readfirstlane_b32 v_readlane_b32 v_writelane_b32
v_mbcnt_lo_u32_b32 v_mbcnt_hi_u32_b32 v_permlane16_b32 v_permlanex16_b32 ds_bpermute_b32 ds_permute_b32
ds_swizzle_b32 s_load_b32 s_load_b64 s_load_b128 s_load_b256 s_load_b512 s_load_dword s_load_dwordx2
s_load_dwordx4 s_load_dwordx8 s_load_dwordx16 v_wmma_f32_16x16x16_f16 v_wmma_f32_16x16x16_bf16
v_wmma_f16_16x16x16_f16 v_wmma_bf16_16x16x16_bf16 v_wmma_i32_16x16x16_iu8 v_wmma_i32_16x16x16_iu4
v_mfma_f32_32x32x8_f16 v_mfma_f32_16x16x16_f16 v_mfma_f32_32x32x8_bf16_1k v_mfma_f32_16x16x16_bf16_1k
v_mfma_i32_32x32x16_i8 v_mfma_i32_16x16x32_i8 v_mfma_f32_32x32x2_f32 v_mfma_f32_16x16x4_f32
v_mfma_f64_16x16x4_f64 v_mfma_f32_32x32x16_fp8_fp8 v_mfma_f32_16x16x32_fp8_fp8 v_mfma_f32_32x32x16_bf8_bf8
v_mfma_f32_16x16x32_bf8_bf8 global_load_lds_dword s_getpc_b64
"""
_LOADS = """
dword dwordx2 dwordx3 dwordx4 ubyte sbyte ushort sshort ubyte_d16 short_d16 short_d16_hi b32 b64 b96 b128 u8
i8 u16 i16 d16_b16 d16_hi_b16 d16_u8 d16_hi_u8
"""
_STORES = """
dword dwordx2 dwordx3 dwordx4 byte short short_d16_hi byte_d16_hi b8 b16 b32 b64 b96 b128 d16_hi_b16
d16_hi_b8
"""
_LDS = """
read_b32 read_b64 read_b96 read_b128 read_u8 read_i8 read_u16 read_i16 read_u16_d16 read_u16_d16_hi
read2_b32 read2_b64 read2st64_b32 read2st64_b64 write_b8 write_b16 write_b32 write_b64 write_b96 write_b128
write2_b32 write2_b64 write2st64_b32 write2st64_b64 load_b32 load_b64 load_b96 load_b128 load_u8 load_i8
load_u16 load_i16 load_u16_d16 load_u16_d16_hi load_2addr_b32 load_2addr_b64 load_2addr_stride64_b32
load_2addr_stride64_b64 store_b8 store_b16 store_b32 store_b64 store_b96 store_b128 store_2addr_b32
store_2addr_b64 store_2addr_stride64_b32 store_2addr_stride64_b64
"""


def known_mnemonics() -> list[str]:
    """Mnemonics that are executed, without what says how they are encoded."""
    names = {*VECTOR, *SPECIAL, *SCALARS, *SCALAR_FLOATS, *SAVING, *NOTHING, *BRANCHES, *_OTHERS.split()}
    names |= {f"v_{way}_{form}" for way in ("cmp", "cmpx") for form in COMPARISONS}
    for way, forms in (("load", _LOADS), ("store", _STORES)):
        names |= {
            f"{space}_{way}_{form}"
            for space in ("global", "flat", "scratch", "buffer")
            for form in forms.split()
        }
    names |= {f"ds_{form}" for form in _LDS.split()}
    names |= {f"global_atomic_{form}" for form in (*ATOMICS, *COMPARING)}
    return sorted(names)
