"""The text for lists of arrays, run on the host, finds every element of every array."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.ops.test_lists import operands

import tilewright as tw
from tilewright.ops.lists import Extents, ListTable, kernel_for
from tilewright.ops.wanted import Wanted
from tilewright.runtime.arrays import describe, elements
from tilewright.runtime.listed import ArrayList, ListShape
from tilewright.runtime.native import find_toolchains
from tilewright.schedule.question import coarse
from tilewright.symbolic.rebuilding import evaluate
from tilewright.targets import cuda, reference
from tilewright.targets.target import CUDA

from .test_emulated import arguments

ARCH = CUDA.architecture("sm_90a")
SCHEDULES = {
    "cp_async": tw.Schedule(
        tw.atoms.MMA_F16, (64, 32, 32), (2, 1), stages=2, staging="cp_async", blocks=3, group_m=2
    ),
    "registers": tw.Schedule(tw.atoms.MMA_F16, (32, 64, 16), (1, 2), staging="registers", blocks=2),
    "swapped": tw.Schedule(
        tw.atoms.MMA_F16, (64, 32, 32), (2, 1), stages=2, staging="cp_async", blocks=4, swap_ab=True
    ),
}
SHAPES = {
    "cp_async": [(130, 40, 72), (0, 8, 8), (8, 64, 0), (16, 0, 32), (65, 72, 136)],
    "registers": [(5, 7, 9), (33, 70, 40), (0, 4, 4), (64, 65, 31)],
    "swapped": [(40, 72, 24), (7, 136, 64), (1, 8, 8)],
}


class Case:
    """Lists of integers in the memory of the host, with poison around each array, and their kernel."""

    def __init__(self, name: str, guarded: Any) -> None:
        shapes = SHAPES[name]
        orders = (1, 2, 3) if name == "registers" else (0,)
        made = [[np.rint(2 * one).astype(one.dtype) for one in side] for side in operands(shapes, "f16")]
        made = [[_ordered(one, orders[at % len(orders)]) for at, one in enumerate(side)] for side in made]
        self.guards = [guarded(np.full((m, n), np.nan, np.float16)) for m, n, _ in shapes]
        self.a, self.b = made
        self.out = [one.array for one in self.guards]
        given = {"a": self.a, "b": self.b, "out": self.out}
        infos = {name: [describe(one) for one in list_] for name, list_ in given.items()}
        shapes_of = {name: ListShape(list_) for name, list_ in infos.items()}
        self.lists = {
            name: ArrayList.of(name, given[name], shapes_of[name], [one.pointer for one in list_])
            for name, list_ in infos.items()
        }
        names = {"a": "A", "b": "B", "out": "D"}
        specs = tuple((names[name], coarse(shape.spec, ARCH)) for name, shape in shapes_of.items())
        schedule = SCHEDULES[name]
        bound = kernel_for(specs, (len(shapes), 64, 64, 64), Wanted(schedule=schedule), ARCH, 4)
        extents = [Extents(*shape) for shape in shapes]
        form = bound.constants["form"]
        self.table = ListTable(shapes_of, extents, form, schedule, dict(specs)).filled(self.lists)
        buffers = [self.lists[name].buffer for name in ("a", "b", "b", "out")]
        self.kernel = bound.trace(*buffers, self.table, len(shapes), target="cuda", arch=ARCH.name)
        self.arrays = {
            name: elements(one.info) for name, one in zip(("A", "B", "bias", "D"), buffers, strict=True)
        } | {"table": self.table}

    def run(self, name: str, emulator: Any) -> None:
        lowered = cuda.lower(self.kernel, ARCH)[0]
        env = reference.bind_sizes(lowered, self.arrays, {"count": len(self.a)})
        places = {name: SimpleNamespace(address=one.ctypes.data) for name, one in self.arrays.items()}
        packed, kept = arguments(lowered, places, env)
        grid = [int(evaluate(axis.extent, env)) for axis in lowered.grid]
        emulator.run(name, grid, lowered.threads, packed)
        del kept


def _ordered(array: Any, order: int) -> Any:
    """Return numbers in rows, in columns, or in rows with gaps."""
    if order == 2:
        return np.asfortranarray(array)
    if order == 3:
        return np.concatenate((array, array), axis=1)[:, : array.shape[1]]
    return array


@pytest.fixture(scope="module")
def cases(emulation: dict[str, Any]) -> dict[str, Case]:
    return {name: Case(name, emulation["Guarded"]) for name in SCHEDULES}


@pytest.fixture(scope="module")
def emulator(
    cases: dict[str, Case], emulation: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Any:
    listings = {name: cuda.emit(case.kernel, ARCH.name) for name, case in cases.items()}
    return emulation["Emulator"](listings, find_toolchains()[0], tmp_path_factory.mktemp("lists"))


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_element_of_every_product(name: str, cases: dict[str, Case], emulator: Any) -> None:
    case = cases[name]
    case.run(name, emulator)
    for a, b, out, guard in zip(case.a, case.b, case.out, case.guards, strict=True):
        exact = a.astype(np.float64) @ b.astype(np.float64)  # sums of few integers, which f16 holds
        assert np.array_equal(out.astype(np.float64), exact)
        assert guard.untouched
