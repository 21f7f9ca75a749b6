"""The function that rounds to tf32 before the multiply, run on the host, equals the reference's."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.functions.conversions import keep_fraction
from tilewright.runtime.native import find_toolchains
from tilewright.targets.cuda.instructions import TF32_BITS

ENTRY = """
extern "C" void run(float* x, int count) { for (int i = 0; i < count; ++i) x[i] = round_to_tf32(x[i]); }"""


def test_each_number_is_rounded_as_the_reference_rounds(emulation: dict[str, Any], tmp_path: Path) -> None:
    """Numbers near powers of 2, at both ends, and ties; NaN stays NaN, unless only its last bits are set."""
    starts = np.arange(0, 0x7F80_0000, 1 << 23, dtype=np.int64)
    near = (starts[:, None] + np.arange(-0x4000, 0x4000, 0x200)).ravel()
    ends = np.arange(0x7F7F_0000, 0x7F80_0001)
    bits = np.unique(np.clip(np.concatenate([near, near - 1, near + 1, ends]), 0, 0x7F80_0000))
    bits = np.concatenate([bits, [0x7FC0_0000, 0x7FFF_FFFF]]).astype(np.uint32)
    given = np.concatenate([bits, bits | np.uint32(1 << 31)]).view(np.float32)
    pieces = (f'#include "{emulation["HEADER"]}"', emulation["DIALECT"].prelude["round_to_tf32"], ENTRY)
    library = emulation["library_of"]("\n".join(pieces), find_toolchains()[0], tmp_path)
    made = given.copy()
    library.run(ctypes.c_void_p(made.ctypes.data), len(made))
    np.testing.assert_array_equal(made, keep_fraction(given, TF32_BITS))
    assert (np.isfinite(made) == np.isfinite(given)).all()
