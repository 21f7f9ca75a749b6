"""Constants of a listing that instructions find by their distance."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.amdgcn import ListingError, OutOfBoundsError, execute

LISTING = """
.amdgcn_target "amdgcn-amd-amdhsa--gfx942"
looked_up:
  s_load_dwordx2 s[2:3], s[0:1], 0x0
  ;;#ASMSTART
  s_getpc_b64 s[4:5]
  s_add_u32 s4, s4, squares@rel32@lo+4
  s_addc_u32 s5, s5, squares@rel32@hi+12
  v_lshlrev_b32_e32 v0, 2, v0
  global_load_dword v1, v0, s[4:5]
  s_waitcnt vmcnt(0) lgkmcnt(0)
  global_store_dword v0, v1, s[2:3]
  s_endpgm
  .section .rodata
other:
  .byte 1, 2
  .size other, 2
squares:
  .long 0, 1
  .quad 0x900000004
  .zero 8
.amdhsa_kernel looked_up
  .amdhsa_user_sgpr_count 2
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
.end_amdhsa_kernel
.amdgpu_metadata
amdhsa.kernels:
  - .args:
      - .offset: 0
        .size: 8
        .value_kind: global_buffer
    .name: looked_up
.end_amdgpu_metadata
"""


def test_constants_are_loaded() -> None:
    out = np.full(6, -1, np.int32)
    execute(LISTING, [out], (1,), (6,))
    assert out.tolist() == [0, 1, 4, 9, 0, 0]


def test_loads_beyond_them_are_found() -> None:
    with pytest.raises(OutOfBoundsError, match="the listing's constants"):
        execute(LISTING, [np.zeros(64, np.int32)], (1,), (64,))


def test_a_constant_that_the_listing_does_not_have() -> None:
    with pytest.raises(ListingError, match="unknown constant 'cubes'") as caught:
        execute(LISTING.replace("squares@", "cubes@"), [np.zeros(4, np.int32)], (1,), (4,))
    assert caught.value.line == 7
    with pytest.raises(ListingError, match=r"bytes of other are not understood: \.byte what"):
        execute(LISTING.replace(".byte 1, 2", ".byte what"), [np.zeros(4, np.int32)], (1,), (4,))
