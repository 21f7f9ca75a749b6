"""Grouped 4-bit weights for few rows: the generated text, run on the host."""

from __future__ import annotations

import ctypes
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir.kernel import Extent
from tilewright.ops.products import scaled_in_groups
from tilewright.runtime.native import find_toolchains
from tilewright.schedule.resources import ScheduleOnMachine
from tilewright.symbolic.rebuilding import evaluate
from tilewright.targets import cuda
from tilewright.targets.target import CUDA

pytestmark = pytest.mark.in_turns(3)

M, N, K, GROUP = 5, 72, 320, 64
FEW_ROWS = tw.Schedule(
    tw.atoms.MMA_F16, (64, 8, 128), (4, 1), stages=3, staging="fragments", swap_ab=True, epilogue="direct"
)


def arrays(wide: tw.DType, kind: tw.DType = tw.i4) -> dict[str, Any]:
    """The kernel's arrays in host memory, by its names."""
    rng = np.random.default_rng(0)
    numbers = rng.integers(*((-8, 8) if kind == tw.i4 else (0, 16)), (K, N))
    return {
        "A": rng.standard_normal((M, K)).astype(wide.numpy),
        "B": tw.packed(tw.pack(numbers.T, kind).T, kind),
        "scale_a": np.ones(M, np.float32),
        "scale_b": rng.uniform(0.5, 2, (K // GROUP, N)).astype(wide.numpy),
        "zero_b": rng.integers(-8, 8, (K // GROUP, N)).astype(np.int8),
        "bias": np.zeros(N, np.float32),
        "D": np.full((M, N), np.nan, np.float32),
        "numbers": numbers,
    }


ORDERS = {
    "apart": ((64, 8, 128), (4, 1)),
    "apart, of two instructions": ((64, 8, 128), (2, 1)),
    "neighbours": ((64, 16, 128), (4, 1)),
}
"""Tiles and warps, by how the two numbers of a register lie in memory."""


def listing(wide: tw.DType, given: dict[str, Any], order: str, table: tuple[float, ...] = ()) -> Any:
    atom = {"f16": tw.atoms.MMA_F16, "bf16": tw.atoms.MMA_BF16}[wide.name]
    kernel = scaled_in_groups(0).bind(
        multiplied=wide,
        group=GROUP,
        terms=frozenset({"scale_b", "zero_b"}),
        activation=None,
        table=table,
        schedule=replace(FEW_ROWS, atom=atom, tile=ORDERS[order][0], warps=ORDERS[order][1]),
    )
    *given_arrays, _ = given.values()
    return cuda.emit(kernel.trace(*given_arrays, 1.0), "sm_90a")


@pytest.mark.parametrize("table", [(), tw.NF4], ids=["integers", "NF4"])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("wide", [tw.f16, tw.bf16], ids=str)
def test_few_rows_are_multiplied_by_what_the_words_hold(
    wide: tw.DType, order: str, table: tuple[float, ...], emulation: dict[str, Any], tmp_path: Any
) -> None:
    given = arrays(wide, tw.u4 if table else tw.i4)
    made = listing(wide, given, order, table)
    name, stem = "i4x8_apart_to" if "apart" in order else "i4x8_to", "half" if wide == tw.f16 else "bf16"
    if table:  # always of neighbours
        name, stem = "taken", rf"{stem}_\w+"
    assert re.search(rf"\b{name}_{stem}\(&", made.text)
    machine = emulation["Emulator"]({"few": made}, find_toolchains()[0], tmp_path)
    held = {name: array.array if name == "B" else array for name, array in given.items() if name != "numbers"}
    held["B"] = np.ascontiguousarray(held["B"].T)  # the bytes in their order
    guarded = {name: emulation["Guarded"](array) for name, array in held.items()}
    strides = {"B": (1, K), "A": (K, 1), "D": (N, 1), "scale_b": (N, 1), "zero_b": (N, 1)}
    shapes = {"A": (M, K), "B": (K, N), "scale_b": (K // GROUP, N)}
    env = {}
    for size in made.kernel.sizes:
        of = shapes if isinstance(size.source, Extent) else strides
        env[size.sym] = of[size.source.tensor][size.source.dim]
    packed = [ctypes.c_void_p(array.address) for array in guarded.values()]
    packed += [ctypes.c_float(1.0), *(ctypes.c_int(value) for value in env.values())]
    grid = [int(evaluate(axis.extent, env)) for axis in made.kernel.grid]
    machine.run("few", grid, made.kernel.threads, packed)
    zeros, scales = (given[name].astype(np.float64).repeat(GROUP, 0) for name in ("zero_b", "scale_b"))
    numbers = given["numbers"]
    if table:  # rounded as numbers, and again without their zero points
        numbers = (np.array(table).astype(wide.numpy).astype(np.float64)[numbers] - zeros).astype(wide.numpy)
        numbers, zeros = numbers.astype(np.float64), 0.0
    weights = ((numbers - zeros) * scales).astype(wide.numpy).astype(np.float64)
    size = np.abs(given["A"].astype(np.float64)) @ np.abs(weights)
    off = np.abs(guarded["D"].array - given["A"].astype(np.float64) @ weights)
    assert (off <= K * 2.0**-22 * size).all()
    assert all(array.untouched for array in guarded.values())


def test_loads_are_vectors_and_nothing_is_spilled() -> None:
    schedule = replace(FEW_ROWS, tile=(128, 8, 256), stages=4, split_k=4)
    kernel = scaled_in_groups(0).bind(
        multiplied=tw.f16, group=128, terms=frozenset({"scale_b"}), activation=None, schedule=schedule
    )
    b = tw.packed(np.empty((4096, 2048), np.uint8).T, tw.i4)
    wide, of_groups = tw.like("f16", 16, 4096), tw.like("f16", 32, 4096)
    rows, columns = tw.like("f32", 16), tw.like("f32", 4096)
    given = (wide, b, rows, of_groups, of_groups, columns, wide, 1.0)
    made = kernel.compile(*given, target="cuda", arch="sm_90a")
    question = kernel.question(*given, target="cuda", arch="sm_90a")
    case = ScheduleOnMachine(schedule, question.form, question.specs, CUDA.architecture("sm_90a"))
    assert (case.run, case.shared_bytes) == (16, made.resources["shared_bytes"])
    assert "pair_mul_half(&" in made.source
    assert made.source.count("*(uint2*)&sB_held") == 5  # one before the loop, four parts in it
    assert "at once" not in made.source[: made.source.index("extern")]
    assert made.resources["spill_store_bytes"] == 0
