"""The generated text of gathers, scatters and integers from memory, run on the host."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from tests.targets import grouped
from tests.targets.gathered import columns, expected_rows, gather, scatter
from tests.targets.test_memory_integers import case, segments

from tilewright.ir.kernel import SizeParam, TensorParam
from tilewright.runtime.native import find_toolchains
from tilewright.symbolic.rebuilding import evaluate
from tilewright.targets import cuda, reference

RNG = np.random.default_rng(11)
X = RNG.standard_normal((75, 53)).astype(np.float32)
WHOLE = RNG.standard_normal((64, 48)).astype(np.float32)
CHOSEN = RNG.integers(-2, 78, 90)
BACK = RNG.permutation(100)[:75].astype(np.uint8)


def poison(*shape: int) -> np.ndarray[Any, Any]:
    return np.full(shape, np.nan, np.float32)


CASES: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = {
    "gather": (
        gather,
        (X, CHOSEN, poison(90, 53)),
        {"way": "shared", "outside": 2.5},
        expected_rows(X, CHOSEN, 2.5),
    ),
    "gather_async": (
        gather,
        (WHOLE, CHOSEN.astype(np.int16), poison(90, 48)),
        {"way": "async", "index": "shared"},
        expected_rows(WHOLE, CHOSEN, 0),
    ),
    "gather_registers": (
        gather,
        (WHOLE, CHOSEN.astype(np.int32), poison(90, 48)),
        {"way": "registers", "outside": -1.0},
        expected_rows(WHOLE, CHOSEN, -1),
    ),
    "columns": (columns, (X, CHOSEN % 53, poison(75, 90)), {}, X[:, CHOSEN % 53]),
}


def scattered() -> tuple[Any, ...]:
    expected = poison(100, 53)
    expected[BACK] = X
    return (scatter, (X, BACK, poison(100, 53)), {"way": "direct"}, expected)


CASES["scatter"] = scattered()
CASES["scatter_registers"] = (scatter, (X, BACK, poison(100, 53)), {"way": "registers"}, CASES["scatter"][3])


GROUPS = [grouped.arguments((70, 0, 5, 64), 75, 71, gathered) for gathered in (False, True)]


@pytest.fixture(scope="module")
def emulator(emulation: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    traced = {name: made.trace(*given, **how) for name, (made, given, how, _) in CASES.items()}
    listings = {name: cuda.emit(kernel, "sm_90a") for name, kernel in traced.items()}
    for gathered in (False, True):
        traced = grouped.grouped.trace(*GROUPS[gathered], gathered=gathered)
        listings[f"grouped {gathered}"] = cuda.emit(traced, "sm_90a")
    listings["segments"] = cuda.emit(segments.trace(*case("i64", 3)), "sm_90a")
    machine = emulation["Emulator"](listings, find_toolchains()[0], tmp_path_factory.mktemp("gathers"))
    return machine, listings, emulation["Guarded"]


def run(emulator: Any, name: str, arrays: tuple[Any, ...]) -> list[Any]:
    """Run the text on copies of the arrays, with poison around each, and return them."""
    machine, listings, guarded = emulator
    kernel = listings[name].kernel
    names = [value.name for value in kernel.tensors]
    held = {key: guarded(array) for key, array in zip(names, arrays, strict=True)}
    env = reference.bind_sizes(kernel, {key: each.array for key, each in held.items()}, {})
    packed: list[Any] = []
    for param in kernel.params:
        if isinstance(param, TensorParam):
            packed.append(ctypes.c_void_p(held[param.value.name].address))
        elif isinstance(param, SizeParam):
            packed.append((ctypes.c_longlong if param.bits == 64 else ctypes.c_int)(env[param.sym]))
    grid = [int(evaluate(axis.extent, env)) for axis in kernel.grid]
    machine.run(name, grid, kernel.threads, packed)
    assert all(each.untouched for each in held.values())
    return [each.array for each in held.values()]


@pytest.mark.parametrize("name", CASES)
def test_rows_are_numpys(name: str, emulator: Any) -> None:
    *_, found = run(emulator, name, CASES[name][1])
    np.testing.assert_array_equal(found, CASES[name][3])


def test_loops_run_as_often_as_memory_says(emulator: Any) -> None:
    x, offsets, sums, empty = case("i64", 3)
    _, _, found, none = run(emulator, "segments", (x, offsets, sums, empty))
    for g in range(len(sums)):
        rows = x[offsets[g] : offsets[g + 1]].astype(np.float64)
        assert (np.abs(found[g] - rows.sum(0)) <= 2.0**-20 * np.abs(rows).sum(0) + 1e-30).all()
        assert none[g] == (len(rows) == 0)


@pytest.mark.parametrize("gathered", [False, True])
def test_rows_are_multiplied_by_the_matrix_of_their_group(gathered: bool, emulator: Any) -> None:
    *_, found = run(emulator, f"grouped {gathered}", GROUPS[gathered])
    grouped.check(GROUPS[gathered], found, gathered)
