"""Pairs of narrow numbers in the generated text, run on the host."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from tests.targets.test_pairs import CODES, NARROW, WIDE, check, codes, widened

import tilewright as tw
from tilewright.runtime.native import find_toolchains
from tilewright.targets import cuda


def test_every_code_is_widened_to_itself(emulation: dict[str, Any], tmp_path: Any) -> None:
    listings = {
        kind.name: cuda.emit(widened.trace(*(tw.like(one, CODES) for one in (kind, *WIDE))), "sm_90a")
        for kind in NARROW
    }
    machine = emulation["Emulator"](listings, find_toolchains()[0], tmp_path)
    for kind in NARROW:
        arrays = [codes(kind), *(np.zeros(CODES, wide.numpy) for wide in WIDE)]
        sizes = [ctypes.c_int(CODES) for param in listings[kind.name].kernel.sizes]
        packed = [*(ctypes.c_void_p(array.ctypes.data) for array in arrays), *sizes]
        machine.run(kind.name, [1, 1, 1], listings[kind.name].kernel.threads, packed)
        for made in arrays[1:]:
            check(kind, made)
