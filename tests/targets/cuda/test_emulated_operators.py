"""Every operator of fragments in the generated text, run on the host, equals NumPy's; the text compiles."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
from tests.targets.operators import FLOATS, INTEGERS, compare, kernel_of, operands, outputs

from tilewright.dtypes import DType
from tilewright.ir.kernel import SizeParam, TensorParam
from tilewright.runtime.native import find_toolchains
from tilewright.runtime.nvrtc import compile_text
from tilewright.symbolic.rebuilding import evaluate
from tilewright.targets import cuda, reference

DTYPES = (*FLOATS, *INTEGERS)


@pytest.fixture(scope="module")
def emulator(emulation: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    listings = {}
    for dtype in DTYPES:
        x, y = operands(dtype)
        traced = kernel_of(dtype, 64).trace(x, y, *outputs(dtype, len(x)).values())
        listings[str(dtype)] = cuda.emit(traced, "sm_90a")
    made = emulation["Emulator"](listings, find_toolchains()[0], tmp_path_factory.mktemp("operators"))
    return made, listings


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_operators_are_numpys(dtype: DType, emulator: Any) -> None:
    machine, listings = emulator
    x, y = operands(dtype)
    made = outputs(dtype, len(x))
    given, kernel = {"X": x, "Y": y, **made}, listings[str(dtype)].kernel
    env = reference.bind_sizes(kernel, given, {})
    packed: list[Any] = []
    for param in kernel.params:
        if isinstance(param, TensorParam):
            packed.append(ctypes.c_void_p(given[param.value.name].ctypes.data))
        elif isinstance(param, SizeParam):
            packed.append((ctypes.c_longlong if param.bits == 64 else ctypes.c_int)(env[param.sym]))
    machine.run(str(dtype), [int(evaluate(kernel.grid[0].extent, env))], kernel.threads, packed)
    compare(dtype, x, y, made)


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_text_compiles(dtype: DType, emulator: Any) -> None:
    listing = emulator[1][str(dtype)]
    assert compile_text(listing.text, "sm_90a", listing.entry)
