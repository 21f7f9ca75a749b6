"""Random movers: every bit arrives and nothing else is written, on every target; widths are legal."""

from __future__ import annotations

import ctypes
import itertools
import runpy
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.budget import SHARES

import tilewright as tw
from tilewright.errors import LegalityError
from tilewright.ir import verify
from tilewright.ir.kernel import SizeParam, TensorParam
from tilewright.runtime.native import find_toolchains
from tilewright.runtime.nvrtc import compile_text
from tilewright.symbolic.rebuilding import evaluate
from tilewright.targets import cuda, reference

from .random_movers import COUNT, Array, Mover, drawn, widest_of


def sample(count: int, start: int = 0) -> range:
    """Return evenly spaced numbers of movers."""
    return range(start, COUNT, COUNT // count)


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("number", range(COUNT))
def test_on_the_reference(number: int) -> None:
    assert drawn(number).moves_every_bit("reference"), drawn(number)


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("number", range(COUNT))
def test_on_the_cpu(number: int) -> None:
    assert drawn(number).moves_every_bit("cpu"), drawn(number)


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_other_movers_every_day(target: str, fuzz_seed: int) -> None:
    end = time.monotonic() + SHARES["movers"] / 2
    for number in itertools.count(fuzz_seed * 1_000):
        if time.monotonic() > end:
            return
        made = drawn(number)
        assert made.moves_every_bit(target), f"{made}; again: --fuzz-seed={fuzz_seed}"


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("number", sample(15, start=5))
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_the_text_compiles(number: int, arch: str) -> None:
    kernel = drawn(number).trace()
    assert cuda.violations(kernel, arch) == []
    assert "warning" not in compile_text(cuda.emit(kernel, arch).text, arch).log


def emitted(made: Mover) -> Any:
    return cuda.emit(made.trace(), "sm_90a")


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory, fuzz_seed: int) -> Any:
    emulation = runpy.run_path(str(Path(__file__).parents[1] / "targets" / "cuda" / "emulation.py"))
    listings = {str(number): emitted(drawn(number)) for number in range(fuzz_seed % 3, COUNT, 3)}
    return emulation["Emulator"](listings, find_toolchains()[0], tmp_path_factory.mktemp("movers")), listings


def address_of(array: Array) -> int:
    return array.array.__array_interface__["data"][0]


def test_the_text_moves_every_bit_on_the_host(emulator: Any) -> None:
    machine, listings = emulator
    for name, listing in listings.items():
        made, lowered = drawn(int(name)), listing.kernel
        x, y = made.arrays()
        env = reference.bind_sizes(lowered, {"X": x.array, "Y": y.array}, {})
        packed: list[Any] = []
        for param in lowered.params:
            if isinstance(param, TensorParam):
                packed.append(ctypes.c_void_p(address_of({"X": x, "Y": y}[param.value.name])))
            elif isinstance(param, SizeParam):
                packed.append((ctypes.c_longlong if param.bits == 64 else ctypes.c_int)(env[param.sym]))
        grid = [int(evaluate(axis.extent, env)) for axis in lowered.grid]
        machine.run(name, grid, lowered.threads, packed)
        assert y.same_bits(x), made


# ---------------------------------------------------------------- widths


def is_legal(made: Mover, array: Array, width: int) -> bool:
    """Return whether every vector of a thread is contiguous, aligned, and wholly inside or outside."""
    at = made.spread.table.reshape(made.spread.size_threads, -1, width, 2)
    size = array.array.itemsize
    for m in range(-(-made.shape[0] // made.tile[0])):
        for n in range(-(-made.shape[1] // made.tile[1])):
            row, column = at[..., 0] + m * made.tile[0], at[..., 1] + n * made.tile[1]
            inside = (row < made.shape[0]) & (column < made.shape[1])
            address = address_of(array) + row * array.strides[0] + column * array.strides[1]
            some = inside.any(axis=-1)
            if (some != inside.all(axis=-1)).any():
                return False
            steps = address[some] - address[some][:, :1]
            if (steps != np.arange(width) * size).any() or (address[some][:, 0] % (width * size)).any():
                return False
    return True


@pytest.mark.parametrize("number", sample(100, start=1))
def test_no_width_is_more_than_legal(number: int) -> None:
    made = drawn(number)
    widest = widest_of(made)
    x, y = made.arrays()
    assert widest * x.array.itemsize <= 16
    assert is_legal(made, x, widest)
    if made.path in ("global-global", "global-register-global"):
        assert made.path == "global-register-global" or is_legal(made, y, widest)


@pytest.mark.parametrize("number", sample(100, start=2))
def test_a_refused_width_names_the_widest_legal_one(number: int) -> None:
    made = drawn(number)
    if "async" in made.path:
        made = replace(made, path=made.path.replace("async-", ""), vector=None)
    widest = widest_of(made)
    x, y = made.arrays()
    wide = Mover(**{**vars(made), "vector": 2 * widest})
    broken = [
        v
        for v in verify.violations(wide.bound.trace(x.array, y.array))
        if v.rule in ("vector width", "alignment")
    ]
    assert broken
    assert f"vector={widest}" in str(broken[0])


def test_a_width_that_is_refused_does_not_run() -> None:
    x = np.zeros((32, 33), np.float32)
    spread = tw.blocked((32, 32), (32, 1), (0, 1))
    made = next(made for made in map(drawn, range(COUNT)) if made.path == "global-global")
    wide = Mover(**{**vars(made), "vector": 4, "spread": spread, "tile": (32, 32)})
    for target in ("reference", "cpu"):
        with pytest.raises(LegalityError, match="nearest legal choice: vector=1"):
            wide.bound(x, x.copy(), target=target)
