"""The generated text, run on the host, converts every number to every dtype with saturation."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
from tests.targets.test_saturation import NUMBERS, compare, outputs, samples, saturating

from tilewright.dtypes import DType
from tilewright.ir.kernel import SizeParam, TensorParam
from tilewright.runtime.native import find_toolchains
from tilewright.symbolic.rebuilding import evaluate
from tilewright.targets import cuda, reference

SAMPLES = {kind.name: samples(kind) for kind in NUMBERS}


@pytest.fixture(scope="module")
def emulator(emulation: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    listings = {
        name: cuda.emit(saturating.trace(x, *outputs(x).values()), "sm_90a") for name, x in SAMPLES.items()
    }
    made = emulation["Emulator"](listings, find_toolchains()[0], tmp_path_factory.mktemp("saturation"))
    return made, listings


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("source", NUMBERS, ids=str)
def test_any_number_becomes_any_other(source: DType, emulator: Any) -> None:
    machine, listings = emulator
    x, kernel = SAMPLES[source.name], listings[source.name].kernel
    made = outputs(x)
    given = {"X": x, **made}
    env = reference.bind_sizes(kernel, given, {})
    packed: list[Any] = []
    for param in kernel.params:
        if isinstance(param, TensorParam):
            packed.append(ctypes.c_void_p(given[param.value.name].ctypes.data))
        elif isinstance(param, SizeParam):
            packed.append((ctypes.c_longlong if param.bits == 64 else ctypes.c_int)(env[param.sym]))
    grid = [int(evaluate(axis.extent, env)) for axis in kernel.grid]
    machine.run(source.name, grid, kernel.threads, packed)
    compare(x, source, list(made.values()))
