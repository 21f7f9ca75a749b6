"""Every code of 8-bit floats in the generated text, run on the host."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from tests.targets.test_codes import (
    CODES,
    FP8,
    HALVES,
    WIDER,
    check_narrowed,
    check_widened,
    codes,
    every_half,
    narrowed,
    there_and_back,
)

from tilewright.runtime.native import find_toolchains
from tilewright.targets import cuda


def test_every_code_is_its_number_and_every_half_is_rounded(emulation: dict[str, Any], tmp_path: Any) -> None:
    given: dict[str, list[Any]] = {
        "narrowed": [every_half(), *(np.zeros(HALVES, kind.numpy) for kind in FP8)]
    }
    for kind in FP8:
        wide = [np.zeros(CODES, one.numpy) for one in (*WIDER, kind)]
        given[kind.name] = [codes(kind), *wide]
    traced = {
        name: (narrowed if name == "narrowed" else there_and_back).trace(*arrays)
        for name, arrays in given.items()
    }
    listings = {name: cuda.emit(kernel, "sm_90a") for name, kernel in traced.items()}
    machine = emulation["Emulator"](listings, find_toolchains()[0], tmp_path)
    for name, arrays in given.items():
        kernel = listings[name].kernel
        sizes = [ctypes.c_int(len(arrays[0])) for _ in kernel.sizes]
        blocks = len(arrays[0]) // (4096 if name == "narrowed" else CODES)
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in arrays]
        machine.run(name, [blocks, 1, 1], kernel.threads, [*pointers, *sizes])
    check_narrowed(every_half(), given["narrowed"][1:])
    for kind in FP8:
        check_widened(kind, given[kind.name][1:])
