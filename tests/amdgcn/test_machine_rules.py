"""Rules that hardware does not check: listings that keep each rule, and the same listings with it broken."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilewright.amdgcn import (
    MisalignedError,
    OutOfBoundsError,
    RegisterError,
    UnknownInstructionError,
    WaitStateError,
    execute,
)
from tilewright.amdgcn.decode import family_of, step_of
from tilewright.amdgcn.text import instruction as instruction_of

from .test_faults import TEXT, run
from .wave import do, put, wave

SUMS = "v_mfma_f32_32x32x8_f16 v[4:19], v[0:1], v[2:3], 0"
OPERANDS = [f"v_mov_b32_e32 v{register}, 0" for register in range(4)]

TOO_SOON = [
    (
        "the sums by a vector instruction",
        [*OPERANDS, "s_nop 1", SUMS],
        11,
        "v_add_f32_e32 v4, v4, v4",
        "sums",
    ),
    ("by another matrix instruction", [*OPERANDS, SUMS], 11, SUMS.replace("v[0:1]", "v[4:5]"), "sums"),
    ("over them", [*OPERANDS, SUMS], 11, "v_mov_b32_e32 v19, 0", "sums"),
    (
        "the sums of a smaller one",
        [*OPERANDS, "v_mfma_f32_16x16x16_f16 v[4:7], v[0:1], v[2:3], 0"],
        7,
        "v_add_f32_e32 v4, v4, v4",
        "sums",
    ),
    (
        "an address",
        [
            "v_mov_b32_e32 v2, 0",
            "v_mov_b32_e32 v3, 0",
            "s_waitcnt lgkmcnt(0)",
            "v_mov_b32_e32 v4, s2",
            "v_readfirstlane_b32 s2, v4",
        ],
        5,
        "global_load_dword v4, v2, s[2:3]",
        "scalar register",
    ),
    (
        "a division",
        ["v_mov_b32_e32 v2, 1.0", "v_mov_b32_e32 v3, 1.0", "v_div_scale_f32 v4, vcc, v2, v3, v2"],
        4,
        "v_div_fmas_f32 v4, v2, v3, v2",
        "vcc",
    ),
    (
        "other lanes",
        ["v_mov_b32_e32 v2, 1.0"],
        2,
        "v_mov_b32_dpp v3, v2 row_shr:1 row_mask:0xf bank_mask:0xf",
        "other lanes",
    ),
    (
        "a lane's number",
        ["v_mov_b32_e32 v2, 0", "v_readfirstlane_b32 s4, v2"],
        4,
        "v_readlane_b32 s5, v2, s4",
        "lane's number",
    ),
]


@pytest.mark.parametrize(
    ("before", "states", "then", "said"), [case[1:] for case in TOO_SOON], ids=[c[0] for c in TOO_SOON]
)
def test_wait_states(before: list[str], states: int, then: str, said: str) -> None:
    """One wait state fewer than required is found; enough wait states or other instructions are not."""
    body = ["s_load_dwordx2 s[2:3], s[0:1], 0x0", *before]
    for nops in ([f"s_nop {states - 1}"], ["s_nop 0"] * states, ["s_sleep 0"] * states):
        run("gfx942", *body, *nops, then)
    for nops in ([f"s_nop {states - 2}"], ["s_nop 0"] * (states - 1)):
        with pytest.raises(
            WaitStateError, match=rf"{said}.* takes {states} wait states .* are {states - 1}; .*s_nop 0 "
        ):
            run("gfx942", *body, *nops, then)


def test_matrix_instructions_of_gfx90a_take_twice_as_many_passes() -> None:
    before = [*OPERANDS, "v_mfma_f32_32x32x8f16 v[4:19], v[0:1], v[2:3], 0"]
    run("gfx90a", *before, "s_nop 15", "s_nop 2", "v_add_f32_e32 v4, v4, v4")
    with pytest.raises(WaitStateError, match="takes 19 wait states between, and there are 18"):
        run("gfx90a", *before, "s_nop 15", "s_nop 1", "v_add_f32_e32 v4, v4, v4")
    with pytest.raises(WaitStateError, match="nearest: s_nop 15 and s_nop 2 before it"):
        run("gfx90a", *before, "v_add_f32_e32 v4, v4, v4")


@pytest.mark.parametrize("nop", ["s_nop", "s_nop x", "s_nop -5", "s_nop 16", "s_nop 0, 0", "s_nop s0"])
def test_a_nop_gives_1_to_16_wait_states(nop: str) -> None:
    with pytest.raises(UnknownInstructionError, match="s_nop takes a number from 0 to 15"):
        run("gfx942", nop)


@pytest.mark.parametrize("line", ["v_readlane_b32 s1, v1", "v_bitop3_b32 v1, v1, v1 bitop3:0x1"])
def test_an_instruction_without_one_of_its_operands_is_refused(line: str) -> None:
    with pytest.raises(UnknownInstructionError, match=f"this form of '{line.split()[0]}' is not known"):
        run("gfx950", "v_mov_b32 v1, 0", line)


def test_m0_is_not_used_at_once() -> None:
    body = [
        "s_load_dwordx2 s[2:3], s[0:1], 0x0",
        "v_lshlrev_b32_e32 v1, 2, v0",
        "s_waitcnt lgkmcnt(0)",
        "s_mov_b32 m0, 0",
    ]
    load = "global_load_lds_dword v1, s[2:3]"
    run("gfx942", *body, "s_nop 0", load, "s_waitcnt vmcnt(0)")
    with pytest.raises(
        WaitStateError, match="a use of m0 of line 7 by global_load_lds_dword takes 1 wait states"
    ):
        run("gfx942", *body, load, "s_waitcnt vmcnt(0)")


def declared(arch: str, *body: str, **says: int) -> None:
    """Execute a kernel that declares its registers, or LDS."""
    more = "".join(f"  .amdhsa_{name} {value}\n" for name, value in says.items())
    text = TEXT.format(arch=arch, body="\n  ".join(body)).replace(
        "  .amdhsa_user_sgpr_count 2\n", f"  .amdhsa_user_sgpr_count 2\n{more}"
    )
    execute(text, [np.zeros(64, np.int32)], (1,), (64,))


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx1151"])
def test_registers_are_declared(arch: str) -> None:
    declared(arch, "v_mov_b32_e32 v7, 0", next_free_vgpr=8)
    with pytest.raises(RegisterError, match="v8 is beyond the 8 registers that the kernel declares"):
        declared(arch, "v_mov_b32_e32 v8, 0", next_free_vgpr=8)


def test_accumulation_registers_and_scalar_ones_are_declared() -> None:
    declared(
        "gfx942",
        "v_accvgpr_write_b32 a3, 0",
        "s_mov_b32 s9, 0",
        next_free_vgpr=12,
        accum_offset=8,
        next_free_sgpr=10,
    )
    with pytest.raises(RegisterError, match="a4 is beyond the 4 registers"):
        declared("gfx942", "v_accvgpr_write_b32 a4, 0", next_free_vgpr=12, accum_offset=8)
    with pytest.raises(RegisterError, match="v8 is beyond the 8 registers"):
        declared("gfx942", "v_mov_b32_e32 v8, 0", next_free_vgpr=12, accum_offset=8)
    with pytest.raises(RegisterError, match="s10 is beyond the 10 registers"):
        declared("gfx942", "s_mov_b32 s10, 0", next_free_sgpr=10)


def test_tuples_begin_where_they_may() -> None:
    """Vector tuples begin at even registers on gfx90a and later; scalar ones at multiples of 2 or 4."""
    run("gfx1151", "v_mov_b32_e32 v3, 0", "v_mov_b32_e32 v4, 0", "v_lshlrev_b64 v[3:4], 1, v[3:4]")
    for arch in ("gfx90a", "gfx942"):
        run(arch, "v_mov_b32_e32 v4, 0", "v_mov_b32_e32 v5, 0", "v_lshlrev_b64 v[4:5], 1, v[4:5]")
        with pytest.raises(RegisterError, match=r"v\[3:4\] begins at no multiple of 2"):
            run(arch, "v_mov_b32_e32 v3, 0", "v_mov_b32_e32 v4, 0", "v_lshlrev_b64 v[3:4], 1, v[3:4]")
    for arch in ("gfx942", "gfx1151"):
        with pytest.raises(RegisterError, match=r"s\[3:4\] begins at no multiple of 2"):
            run(arch, "s_mov_b64 s[3:4], 0")


def test_shared_memory_has_an_end() -> None:
    for arch, most in (("gfx942", 65536), ("gfx950", 163840), ("gfx1151", 65536)):
        run(arch, "s_nop 0", lds_bytes=most - 256)
        with pytest.raises(
            OutOfBoundsError, match=f"asks for {most + 16} bytes of LDS; a block on {arch} has {most}"
        ):
            run(arch, "s_nop 0", lds_bytes=most - 240)


@pytest.mark.parametrize(
    ("arch", "load", "store"),
    [("gfx942", "ds_read_b128", "ds_write_b128"), ("gfx1151", "ds_load_b128", "ds_store_b128")],
)
def test_sixteen_bytes_are_aligned(arch: str, load: str, store: str) -> None:
    body = ["v_mov_b32_e32 v2, {}", *(f"v_mov_b32_e32 v{register}, 0" for register in range(4, 8))]
    access = [f"{store} v2, v[4:7]", "s_waitcnt lgkmcnt(0)", f"{load} v[8:11], v2", "s_waitcnt lgkmcnt(0)"]
    run(arch, body[0].format(32), *body[1:], *access, threads=1)
    with pytest.raises(MisalignedError, match=r"16 bytes of LDS at 40 in wave 0, lane 0; .* multiple of 16"):
        run(arch, body[0].format(40), *body[1:], *access, threads=1)


LACKING = [
    ("gfx90a", "v_mfma_f32_32x32x16_fp8_fp8 v[4:19], v[0:1], v[2:3], 0", "gfx942"),
    ("gfx90a", "v_mfma_f32_32x32x8_f16 v[4:19], v[0:1], v[2:3], 0", "gfx942"),
    ("gfx942", "v_mfma_f32_32x32x8f16 v[4:19], v[0:1], v[2:3], 0", "gfx90a"),
    ("gfx942", "v_mfma_f32_32x32x16_f16 v[4:19], v[0:3], v[20:23], 0", "gfx950"),
    ("gfx90a", "v_lshl_add_u64 v[4:5], v[0:1], 0, v[2:3]", "gfx942"),
    ("gfx950", "v_cvt_f32_fp8_e32 v4, v0", "gfx942"),
    ("gfx1100", "s_add_f32 s4, s2, s3", "gfx1151"),
]


@pytest.mark.parametrize(
    ("arch", "instruction", "having"), LACKING, ids=[f"{a}-{t.split()[0]}" for a, t, _ in LACKING]
)
def test_what_an_architecture_lacks_is_refused(arch: str, instruction: str, having: str) -> None:
    name = instruction.split()[0]
    with pytest.raises(
        UnknownInstructionError, match=rf"no meaning is known for '{name}' on {arch}; .*{having}"
    ):
        run(arch, instruction)
    step_of(instruction_of(1, instruction), family_of(having))


def test_bits_by_a_table() -> None:
    """``v_bitop3``: the table of a formula is the formula applied to 0xf0, 0xcc and 0xaa."""
    random = np.random.default_rng(5)
    of = wave("gfx950")
    a, b, c = (random.integers(0, 1 << 32, 64, dtype=np.uint32) for _ in range(3))
    for name, value in (("v0", a), ("v1", b), ("v2", c)):
        put(of, name, value)
    for formula in (
        lambda a, b, c: a ^ (b & c),
        lambda a, b, c: ~a & (b | c),
        lambda a, b, c: c & ~b | a & b,
    ):
        table = formula(0xF0, 0xCC, 0xAA) & 0xFF
        do(of, f"v_bitop3_b32 v3, v0, v1, v2 bitop3:{table:#x}")
        assert (of.vector[3][0] == formula(a, b, c)).all()


@pytest.mark.parametrize(
    ("arch", "kinds"),
    [
        ("gfx942", (ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2fnuz)),
        ("gfx950", (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)),
    ],
)
def test_bytes_are_the_numbers_of_the_architecture(arch: str, kinds: Any) -> None:
    """All finite bytes are multiplied by 1; gfx950 has OCP's formats."""
    for name, kind in zip(("fp8", "bf8"), kinds, strict=True):
        every = np.arange(256, dtype=np.uint8).view(kind).astype(np.float64)
        of, one = wave(arch, 64), int(np.array(1, kind).view(np.uint8))
        finite = np.flatnonzero(np.isfinite(every))[:224].astype(np.uint8)
        for chunk in finite.reshape(-1, 32):
            # Row i of A has one number, at k = 0, which lane i holds; all of B is 1.
            put(of, "v0", np.concatenate([chunk, np.zeros(32, np.uint8)]).astype(np.uint32))
            put(of, "v1", 0)
            put(of, "v[2:3]", int.from_bytes(bytes([one] * 8), "little"))
            do(of, f"v_mfma_f32_32x32x16_{name}_{name} v[4:19], v[0:1], v[2:3], 0")
            # Lane 0 holds rows 0-3, 8-11, ... of column 0, lane 32 the others.
            for half in (0, 1):
                rows = [8 * (place // 4) + 4 * half + place % 4 for place in range(16)]
                found = [of.vector[4 + place][0, 32 * half] for place in range(16)]
                assert (np.array(found, np.uint32).view(np.float32) == every[chunk[rows]]).all(), name
