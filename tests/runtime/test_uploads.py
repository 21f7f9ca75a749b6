"""Tables of lists of arrays on a GPU: their contents, and when their memory is reused."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.ops import lists as in_ops
from tilewright.runtime import gpu_memory, listed
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.plans import Plans
from tilewright.runtime.recent import Recent
from tilewright.schedule.lists import LAST, PLACES, SIZES

from .fake_gpu import Driver, OnGpu

STREAM = 77
SHAPES = [(5, 7, 9), (0, 4, 4), (70, 33, 40)]
SCHEDULE = tw.Schedule(tw.atoms.fma("f32", each=(4, 4)), (32, 32, 16), blocks=6)
POINTERS = ("A", "B", "bias", "D", "table")


@pytest.fixture
def lists(gpu: Driver, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[OnGpu]]:
    """Return A, B and the results of some products, on a GPU with empty caches."""
    monkeypatch.setattr(gpu_memory._uploads, "held", {})
    monkeypatch.setattr(in_ops, "_PLANS", Plans())
    monkeypatch.setattr(in_ops, "_SAME", Recent(4))
    in_ops.kernel_for.cache_clear()  # what was prepared launches through the driver of another test
    in_ops.listed._bound.forget()
    gpu.arguments = len(POINTERS)
    shapes: dict[str, Any] = {"a": [(m, k) for m, _, k in SHAPES], "b": [(k, n) for _, n, k in SHAPES]}
    shapes["out"] = [(m, n) for m, n, _ in SHAPES]
    return {
        name: [OnGpu(np.zeros(shape, np.float32)) for shape in several] for name, several in shapes.items()
    }


def launched(gpu: Driver, lists: dict[str, list[OnGpu]]) -> dict[str, int]:
    """Launch once more, and return the passed addresses."""
    count = len(gpu.launched)
    tw.grouped_matmul(**lists, schedule=SCHEDULE, stream=STREAM)
    assert [one.stream for one in gpu.launched[count:]] == [STREAM], "one launch for all"
    return dict(zip(POINTERS, gpu.launched[-1].words, strict=True))


def test_the_table_says_where_every_array_lies(gpu: Driver, lists: dict[str, list[OnGpu]]) -> None:
    found = launched(gpu, lists)
    assert gpu.launched[-1].shape[0] == SCHEDULE.blocks
    columns = PLACES + 3 * 3
    table = np.frombuffer(ctypes.string_at(found["table"], len(SHAPES) * columns * 8), np.int64)
    rows = table.reshape(len(SHAPES), columns)
    assert rows[:, LAST].tolist() == [1, 1, 1 + 3 * 2]
    assert rows[:, SIZES:PLACES].tolist() == [list(shape) for shape in SHAPES]
    for place, (name, base) in enumerate(zip(("a", "b", "out"), ("A", "B", "D"), strict=True)):
        for row, one in zip(rows[:, PLACES + 3 * place :], lists[name], strict=True):
            if one.array.size:
                assert found[base] + 4 * row[0] == one.address
                assert 4 * row[1] == one.array.strides[0]


def test_memory_is_used_again_when_its_launch_has_ended(gpu: Driver, lists: dict[str, list[OnGpu]]) -> None:
    first = launched(gpu, lists)["table"]  # which loads code, for which other code may have to go
    waits, second = gpu.waits, launched(gpu, lists)["table"]
    assert first != second
    gpu.pending = {2}
    assert launched(gpu, lists)["table"] == first
    assert launched(gpu, lists)["table"] not in (first, second)
    gpu.pending = set()
    assert launched(gpu, lists)["table"] in gpu.memory
    assert gpu.events == 3
    assert gpu.waits == waits, "the host waits for nothing"


def test_memory_of_a_graph_is_its_own(gpu: Driver, lists: dict[str, list[OnGpu]]) -> None:
    before = launched(gpu, lists)["table"]
    gpu.pending = set()
    gpu.capturing.add(STREAM)
    ours = {launched(gpu, lists)["table"] for _ in range(3)}
    assert len(ours) == 3
    gpu.capturing.clear()
    for _ in range(4):
        gpu.pending = set()
        assert launched(gpu, lists)["table"] not in ours
    assert before in ours, "what was idle is taken, and kept"


def test_more_products_take_more_memory(gpu: Driver, lists: dict[str, list[OnGpu]]) -> None:
    less = launched(gpu, lists)["table"]
    gpu.pending = set()
    many = {name: several * 200 for name, several in lists.items() if name != "out"}
    many["out"] = [OnGpu(np.zeros(one.array.shape, np.float32)) for one in lists["out"] * 200]
    more = launched(gpu, many)["table"]
    assert more != less
    assert ctypes.sizeof(gpu.memory[more]) >= 600 * (PLACES + 9) * 8


HALF = [(40, 64, 72), (0, 64, 64), (70, 128, 40), (8, 64, 0), (1, 64, 24)]
BY_MAPS = tw.Schedule(
    tw.atoms.wgmma("f16", 64), (64, 64, 64), stages=3, staging="tma", roles="cooperative", blocks=6
)


def test_tensor_maps_are_encoded_once_and_copied_with_the_table(
    gpu: Driver, lists: dict[str, list[OnGpu]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[list[int], list[int], list[int]]] = []

    def call(name: str, *given: Any) -> Any:
        if name == "cuTensorMapEncodeTiled":
            asked.append(tuple([int(one) for one in several] for several in given[3:6]))
        return gpu.call(name, *given)

    monkeypatch.setattr(CUDA_DRIVER, "call", call)
    monkeypatch.setattr(listed, "_MAPS", Recent(64))

    def operands() -> dict[str, list[OnGpu]]:
        shapes = {"a": [(m, k) for m, _, k in HALF], "b": [(k, n) for _, n, k in HALF]}
        made = {name: [OnGpu(aligned(shape)) for shape in several] for name, several in shapes.items()}
        return made | {"out": [OnGpu(np.zeros((m, n), np.float16)) for m, n, _ in HALF]}

    def launched_by_maps(given: dict[str, list[OnGpu]]) -> np.ndarray[Any, Any]:
        before = [name for name, _ in gpu.used].count("cuMemcpyHtoDAsync")
        tw.grouped_matmul(**given, schedule=BY_MAPS, stream=STREAM)
        assert [name for name, _ in gpu.used].count("cuMemcpyHtoDAsync") == before + 1, "one copy for all"
        table = dict(zip(POINTERS, gpu.launched[-1].words, strict=True))["table"]
        assert table % 128 == 0
        return np.frombuffer(ctypes.string_at(table, len(HALF) * 48 * 8), np.uint64).reshape(-1, 48)

    first, second = operands(), operands()
    rows = launched_by_maps(first)
    wanted = [one.address for name in ("a", "b") for one in first[name] if one.array.size]
    assert gpu.maps == wanted, "one for each array with elements"
    there = [one.array.shape[::-1] for name in ("a", "b") for one in first[name] if one.array.size]
    assert asked == [([*shape], [2 * shape[0]], [64, 64]) for shape in there]
    for at, column in enumerate((16, 32)):
        for row, one in zip(
            rows, first["ab"[at]], strict=True
        ):  # where the driver's own encoding has the address
            assert (row[column : column + 16] == (one.address if one.array.size else 0)).all()
    assert (launched_by_maps(first) == rows).all()
    assert gpu.maps == wanted, "they are known"
    launched_by_maps({**first, "a": second["a"]})
    wanted += [one.address for one in second["a"] if one.array.size]
    assert gpu.maps == wanted, "B is where it was"
    fewer = {name: several[:1] for name, several in first.items()}
    launched_by_maps({**fewer, "a": [OnGpu(aligned((9, 72)))], "out": [OnGpu(np.zeros((9, 64), np.float16))]})
    assert len(gpu.maps) == len(wanted) + 1, "so it is in other lists"


def aligned(shape: tuple[int, int]) -> np.ndarray[Any, Any]:
    """Return an f16 array that begins at a multiple of 16 bytes."""
    room = np.zeros(shape[0] * shape[1] + 64, np.float16)
    start = -room.ctypes.data % 128 // 2
    return room[start : start + shape[0] * shape[1]].reshape(shape)


def test_lists_that_lie_where_they_lay_are_not_looked_at_again(
    gpu: Driver, lists: dict[str, list[OnGpu]], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = launched(gpu, lists)
    with monkeypatch.context() as patched:
        patched.setattr(in_ops, "ListPlan", None)
        patched.setattr(in_ops, "ArrayList", None)
        assert launched(gpu, lists) == first | {"table": gpu.launched[-1].words[-1]}
    _, n, k = SHAPES[-1]
    launched(gpu, lists | {"b": [*lists["b"][:-1], OnGpu(np.zeros((k, n), np.float32))]})
    assert len(in_ops._SAME) == 2
