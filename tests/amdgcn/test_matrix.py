"""Matrix instructions: each element's place by AMD's tables, and the assumed rounding of sums."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.amdgcn.wave import do, put, wave

from tilewright.amdgcn.matrix import mfma_shape, wmma_shape
from tilewright.amdgcn.state import Waves

FORMATS: dict[str, Any] = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "i8": np.int8,
    "iu8": np.int8,
    "fp8": ml_dtypes.float8_e4m3fnuz,
    "bf8": ml_dtypes.float8_e5m2fnuz,
    "f32": np.float32,
    "f64": np.float64,
    "i32": np.int32,
}
MFMA = [
    *(
        f"v_mfma_f32_{shape}_f16"
        for shape in ("32x32x8", "16x16x16", "32x32x4_2b", "16x16x4_4b", "4x4x4_16b")
    ),
    *(f"v_mfma_f32_{shape}_bf16" for shape in ("32x32x8", "16x16x16", "32x32x4_2b", "16x16x4_4b")),
    *(f"v_mfma_f32_{shape}_f32" for shape in ("32x32x2", "16x16x4", "32x32x1_2b", "16x16x1_4b", "4x4x1_16b")),
    *(f"v_mfma_i32_{shape}_i8" for shape in ("32x32x16", "16x16x32", "32x32x4_2b", "4x4x4_16b")),
    *(
        f"v_mfma_f32_{shape}_{a}_{b}"
        for shape in ("32x32x16", "16x16x32")
        for a in ("fp8", "bf8")
        for b in ("fp8", "bf8")
    ),
    "v_mfma_f64_16x16x4_f64",
]
C = 32
"""C and D begin at this register; A at 0, B at 16."""


def fill(of: Waves, first: int, values: np.ndarray) -> None:
    """Fill registers from numbers of lanes: (lanes, numbers)."""
    words = np.ascontiguousarray(values).view(np.uint32)
    for place in range(words.shape[1]):
        put(of, f"v{first + place}", words[:, place])


def held(of: Waves, first: int, count: int, dtype: Any) -> np.ndarray:
    """Return the numbers of lanes in registers."""
    words = np.stack([of.vector[first + place][0] for place in range(count)], -1)
    return np.ascontiguousarray(words).view(dtype)


def span(first: int, count: int) -> str:
    return f"v[{first}:{first + count - 1}]" if count > 1 else f"v{first}"


def sum_place(m: int, wide: bool, b: int, i: int, j: int) -> tuple[int, int]:
    """Return the lane and the register of D[i][j] of block b."""
    if m == 4:
        return j + 4 * b, i
    if wide:
        return j + 16 * (i % 4), i // 4
    if m == 16:
        return j + 16 * (i // 4), i % 4 + 4 * b
    return j + 32 * (i // 4 % 2), i % 4 + 4 * (i // 8) + 16 * b


@pytest.mark.parametrize("name", MFMA)
def test_where_elements_of_an_mfma_lie(name: str) -> None:
    shape = mfma_shape(name)
    assert shape is not None
    random = np.random.default_rng(3)
    m, k, blocks = shape.m, shape.k, shape.blocks
    a, b = (random.integers(-3, 4, (blocks, m, k)) for _ in range(2))
    c = random.integers(-9, 10, (blocks, m, m))
    each, sums = m * k * blocks // 64, m * m * blocks // 64
    given = []
    for matrix, kind in ((a, shape.of_a), (b, shape.of_b)):
        lanes = np.zeros((64, each), FORMATS[kind])
        for block, i, at in np.ndindex(matrix.shape):
            lane = i + m * (block if blocks > 1 else at // each)
            lanes[lane, at % each] = matrix[block, i, at]
        given.append(lanes)
    of_sums = FORMATS[shape.sums]
    before = np.zeros((64, sums), of_sums)
    wide = shape.sums == "f64"
    for block, i, j in np.ndindex(c.shape):
        before[sum_place(m, wide, block, i, j)] = c[block, i, j]
    made = wave("gfx942", 96)
    fill(made, 0, given[0])
    fill(made, 16, given[1])
    fill(made, C, before)
    put(made, "exec", 0x1)  # which an MFMA does not look at
    registers = each * np.dtype(FORMATS[shape.of_a]).itemsize // 4, sums * np.dtype(of_sums).itemsize // 4
    d = span(C, registers[1])
    do(made, f"{name} {d}, {span(0, registers[0])}, {span(16, registers[0])}, {d}")
    found = held(made, C, registers[1], of_sums)
    expected = a @ b.swapaxes(1, 2) + c
    for block, i, j in np.ndindex(c.shape):
        assert found[sum_place(m, wide, block, i, j)] == expected[block, i, j], (block, i, j)


@pytest.mark.parametrize(
    "name",
    ["f32_16x16x16_f16", "f32_16x16x16_bf16", "f16_16x16x16_f16", "bf16_16x16x16_bf16", "i32_16x16x16_iu8"],
)
def test_where_elements_of_a_wmma_lie(name: str) -> None:
    shape = wmma_shape(f"v_wmma_{name}")
    assert shape is not None
    random = np.random.default_rng(3)
    a, b = (random.integers(-3, 4, (16, 16)) for _ in range(2))
    c = random.integers(-9, 10, (16, 16))
    made = wave("gfx1151")
    rows = np.arange(32) % 16
    fill(made, 0, a[rows].astype(FORMATS[shape.of_a]))
    fill(made, 16, b[rows].astype(FORMATS[shape.of_b]))
    of_sums = FORMATS[shape.sums]
    narrow = np.dtype(of_sums).itemsize == 2
    before = np.zeros((32, 16 if narrow else 8), of_sums)
    step = 2 if narrow else 1
    for i, j in np.ndindex(16, 16):
        before[j + 16 * (i % 2), step * (i // 2)] = c[i, j]
    fill(made, C, before)
    count = len(made_registers := range(16 * np.dtype(FORMATS[shape.of_a]).itemsize // 4))
    assert made_registers
    signs = " neg_lo:[1,1,0]" if shape.of_a == "iu8" else ""
    do(made, f"v_wmma_{name} {span(C, 8)}, {span(0, count)}, {span(16, count)}, {span(C, 8)}{signs}")
    found = held(made, C, 8, of_sums)
    expected = a @ b.T + c
    for i, j in np.ndindex(16, 16):
        assert found[j + 16 * (i % 2), step * (i // 2)] == expected[i, j], (i, j)


def test_signs_and_saturation_of_integers() -> None:
    made = wave("gfx1151")
    for first in (0, 16):
        fill(made, first, np.full((32, 16), 0xFF, np.uint8))
    fill(made, C, np.full((32, 8), 2**31 - 1, np.int32))
    do(made, "v_wmma_i32_16x16x16_iu8 v[40:47], v[0:3], v[16:19], 0")
    assert (held(made, 40, 8, np.int32) == 16 * 255 * 255).all()
    do(made, "v_wmma_i32_16x16x16_iu8 v[40:47], v[0:3], v[16:19], 0 neg_lo:[1,0,0]")
    assert (held(made, 40, 8, np.int32) == -16 * 255).all()
    do(made, "v_wmma_i32_16x16x16_iu8 v[40:47], v[0:3], v[16:19], v[32:39] clamp")
    assert (held(made, 40, 8, np.int32) == 2**31 - 1).all()


@pytest.mark.parametrize("arch", ["gfx1151", "gfx942"])
def test_products_of_one_instruction_are_rounded_once(arch: str) -> None:
    """1 + 2⁻²⁴ + 2⁻²⁴ is 1 + 2⁻²³ with one rounding at the end, and 1 with a rounding after each product."""
    made = wave(arch)
    row = np.zeros(16 if arch == "gfx1151" else 4, np.float16)
    row[:2] = 2.0**-12
    fill(made, 0, np.tile(row, (made.lanes, 1)))
    fill(made, 16, np.tile(row, (made.lanes, 1)))
    if arch == "gfx1151":
        do(made, "v_wmma_f32_16x16x16_f16 v[32:39], v[0:7], v[16:23], 1.0")
        expected = 1 + 2.0**-23
    else:
        do(made, "v_mfma_f32_16x16x16_f16 v[32:35], v[0:1], v[16:17], 1.0")
        expected = 1 + 2.0**-21  # two products in each of four groups of lanes
    assert (held(made, C, 4, np.float32) == np.float32(expected)).all()


def test_what_is_undefined_in_a_row_of_an_operand_is_so_in_that_row_of_the_sums() -> None:
    made = wave("gfx942")
    for first in (16, 17):
        put(made, f"v{first}", 0)
    put(made, "exec", 2**64 - 1 - 2)  # all lanes but that of row 1 and k from 0 to 3
    do(made, "v_mov_b32_e32 v0, 0", "v_mov_b32_e32 v1, 0")
    put(made, "exec", 2**64 - 1)
    do(made, "v_mfma_f32_16x16x16_f16 v[32:35], v[0:1], v[16:17], 0")
    bad = {
        (register - C, lane)
        for register in range(C, C + 4)
        if (bits := made.undefined_bits(register)) is not None
        for lane in np.flatnonzero(bits[0])
    }
    assert bad == {(1, lane) for lane in range(16)}
