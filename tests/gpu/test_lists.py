"""Lists of arrays on a GPU: any extents and orders, successive calls, graphs, streams."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from tests.canaries import Canaries
from tests.ops.test_list_maps import UNEVEN, apart
from tests.ops.test_lists import ALIGNED, MIXED, check, operands

import tilewright as tw
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.gpu_memory import DeviceArray
from tilewright.runtime.kernel import Bound

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def lists_allowed(canaries: Canaries) -> Iterator[None]:
    """A kernel gets a buffer that spans all of a list; canaries around each array are still checked."""
    with canaries.unguarded("the buffer of a list is no array of the test's"):
        yield


@pytest.fixture
def targets(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the targets that ran."""
    planned, found = Bound.planned, []

    def noted(self: Bound, *given: Any) -> Any:
        made = planned(self, *given)
        found.append(made[0].prepared.executable.target)
        return made

    monkeypatch.setattr(Bound, "planned", noted)
    return found


def results(a: list[Any], b: list[Any], kind: str) -> list[DeviceArray]:
    return [
        DeviceArray.of(np.full((x.shape[0], y.shape[1]), 99, tw.dtype(kind).numpy))
        for x, y in zip(a, b, strict=True)
    ]


def there(arrays: list[Any]) -> list[DeviceArray]:
    return [DeviceArray.of(array) for array in arrays]


@pytest.mark.parametrize("orders", [(0,), (2,), (0, 2)], ids=str)
@pytest.mark.parametrize(("kind", "to"), [("bf16", "bf16"), ("f16", "f32"), ("f32", "f32"), ("i8", "i32")])
@pytest.mark.parametrize("shapes", [MIXED, ALIGNED], ids=["mixed", "aligned"])
def test_products_of_any_extents(
    shapes: list[tuple[int, int, int]], kind: str, to: str, orders: tuple[int, ...], targets: list[str]
) -> None:
    a, b = operands(shapes, kind, 0, orders)
    out = results(a, b, to)
    made = tw.grouped_matmul(there(a), there(b), out=out)
    assert isinstance(made, list)
    CUDA_DRIVER.synchronize()
    check(a, b, [one.host() for one in out])
    assert targets == ["cuda"]


def test_bias_and_activation(targets: list[str]) -> None:
    a, b = operands(ALIGNED, "f16")
    bias = [np.random.default_rng(1).standard_normal(n).astype(np.float16) for _, n, _ in ALIGNED]
    out = results(a, b, "f32")
    tw.grouped_matmul(there(a), there(b), out=out, bias=there(bias), activation="relu")
    CUDA_DRIVER.synchronize()
    check(a, b, [one.host() for one in out], bias, lambda x: np.maximum(x, 0))
    assert targets == ["cuda"]


def test_calls_that_follow_each_other_without_waiting(targets: list[str]) -> None:
    draw = np.random.default_rng(3)
    done = []
    for seed in range(40):
        count = int(draw.integers(1, 300 if seed % 20 == 0 else 12))
        sizes = draw.integers(0, 300, (count, 3)) * draw.integers(0, 2, (count, 1))
        shapes = [(int(m), 8 * int(n // 8), 8 * int(k // 8)) for m, n, k in sizes]
        a, b = operands(shapes, "f16", seed)
        out = results(a, b, "f32")
        tw.grouped_matmul(there(a), there(b), out=out)
        done.append((a, b, out))
    CUDA_DRIVER.synchronize()
    for a, b, out in done:
        check(a, b, [one.host() for one in out])
    assert set(targets) == {"cuda"}


def test_a_captured_graph_reads_its_arrays_again(canaries: Canaries) -> None:
    torch = import_module("torch")
    a, b = operands(ALIGNED, "f16")
    first, second = ([torch.from_numpy(one).cuda() for one in side] for side in (a, b))
    out = [canaries.torch(np.full((m, n), 99, np.float32)) for m, n, _ in ALIGNED]
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):  # the first call
        tw.grouped_matmul(first, second, out=out)
    for seed in range(3):
        tw.grouped_matmul(first[::-1], second[::-1], out_dtype="f32")  # whose table is another
        a, _ = operands(ALIGNED, "f16", seed)
        for there_, here in zip(first, a, strict=True):
            there_.copy_(torch.from_numpy(here))
        for one in out:
            one.fill_(99)
        graph.replay()
        torch.cuda.synchronize()
        check(a, b, [one.cpu().numpy() for one in out])


def test_two_streams_at_once() -> None:
    torch = import_module("torch")
    streams = [torch.cuda.Stream() for _ in range(2)]
    given = [operands(ALIGNED[::step], "f16", seed) for seed, step in enumerate((1, -1))]
    moved = [[[torch.from_numpy(one).cuda() for one in side] for side in sides] for sides in given]
    torch.cuda.synchronize()
    made: list[list[Any]] = [[], []]
    for _ in range(20):
        for at, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                made[at].append(tw.grouped_matmul(*moved[at], out_dtype="f32"))
    torch.cuda.synchronize()
    for (a, b), several in zip(given, made, strict=True):
        for out in several:
            check(a, b, [one.cpu().numpy() for one in out])


LARGE = [(300, 520, 264), (0, 64, 64), (129, 1000, 328), (64, 0, 40), (17, 96, 0), (1, 136, 2056)]


def on_gpu(torch: Any, array: Any) -> Any:
    """Return the array with its strides, inside of a copy of all of its base's memory."""
    held = array.base if array.base is not None else array
    held = held.base if held.base is not None else held
    room = torch.from_numpy(held).cuda()
    first = (array.ctypes.data - held.ctypes.data) // array.itemsize
    steps = [step // array.itemsize for step in array.strides]
    return torch.as_strided(room, array.shape, steps, first)


PING_PONG = tw.Schedule(
    tw.atoms.wgmma("f16", 128), (128, 128, 64), stages=4, staging="tma", roles="ping-pong", blocks=9, groups=2
)


@pytest.mark.parametrize("schedule", [None, PING_PONG], ids=["chosen", "ping-pong"])
@pytest.mark.parametrize("by_columns", [(False, False), (True, True)], ids=["rows", "columns"])
@pytest.mark.parametrize("shapes", [UNEVEN, LARGE], ids=["uneven", "large"])
def test_bulk_copies_by_maps_in_memory(
    shapes: list[tuple[int, int, int]],
    by_columns: tuple[bool, bool],
    schedule: tw.Schedule | None,
    canaries: Canaries,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch = import_module("torch")
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("a machine without wgmma")
    staged, planned = [], Bound.planned

    def noted(self: Bound, *given: Any) -> Any:
        staged.append(self.constants["schedule"].staging)
        return planned(self, *given)

    monkeypatch.setattr(Bound, "planned", noted)
    for seed in range(4):  # tables in the same memory, with maps of other arrays
        a, b = operands(shapes, "f16", seed)
        a, b = apart(a, seed, by_columns[0]), apart(b, seed + 9, by_columns[1])
        bias = [np.random.default_rng(seed).standard_normal(n).astype(np.float16) for _, n, _ in shapes]
        out = [canaries.torch(np.full((m, n), 99, np.float32)) for m, n, _ in shapes]
        first, second, third = ([on_gpu(torch, one) for one in side] for side in (a, b, bias))
        tw.grouped_matmul(first, second, out=out, bias=third, schedule=schedule)
        torch.cuda.synchronize()
        check(a, b, [one.cpu().numpy() for one in out], bias)
    assert staged == ["tma"] * 4
