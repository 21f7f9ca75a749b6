"""The canaries of GPU tests detect every byte written outside of an array, and all tests have them."""

from __future__ import annotations

import ast
import ctypes
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.canaries import GAP, Canaries, Guarded, in_force
from tests.movers.random_movers import GUARD_BYTES
from tests.runtime.fake_gpu import Driver, OnGpu
from tests.runtime.fake_gpu import gpu as gpu  # a fixture

import tilewright as tw
from tilewright.runtime.arrays import describe
from tilewright.runtime.binding import spec_of
from tilewright.runtime.gpu_memory import DeviceArray
from tilewright.testing import device_put

ROOT = Path(__file__).parents[2]
SHAPES = [
    ((5, 7), "C"),
    ((5, 7), "F"),
    ((3, 1), "C"),
    ((9,), "C"),
    ((2, 3, 4), "C"),
    ((4, 1, 6), "F"),
    ((1, 1), "C"),
]


@pytest.fixture
def inside(gpu: Driver, monkeypatch: pytest.MonkeyPatch) -> Iterator[Canaries]:
    with in_force(monkeypatch) as made:
        yield made


def filled(shape: tuple[int, ...], order: Any = "C", element: Any = np.float32) -> np.ndarray[Any, Any]:
    values = np.arange(np.prod(shape)).reshape(shape).astype(element)
    return np.asarray(values, order=order)


def test_arrays_that_are_put_on_a_device_have_canaries(inside: Canaries) -> None:
    host = filled((3, 5))
    made = device_put(host, "cuda")
    assert isinstance(made, Guarded)
    assert (made.host() == host).all()


@pytest.mark.parametrize("element", [np.int8, np.float16, ml_dtypes.bfloat16, np.float32, np.complex128])
@pytest.mark.parametrize(("shape", "order"), SHAPES, ids=str)
def test_an_array_has_its_values_and_the_class_of_one_without_canaries(
    shape: tuple[int, ...], order: str, element: Any, inside: Canaries
) -> None:
    host = filled(shape, order, element)
    made = DeviceArray.of(host)
    assert isinstance(made, Guarded)
    assert (made.host() == host).all()
    assert (made.T.host() == host.T).all()
    packed, transposed = OnGpu(host), OnGpu(host.T)
    packed.dtype = transposed.dtype = host.dtype  # type: ignore[attr-defined]
    assert spec_of(describe(made)) == spec_of(describe(packed))
    assert spec_of(describe(made.T)) == spec_of(describe(transposed))


@pytest.mark.parametrize(("shape", "order"), SHAPES, ids=str)
def test_every_byte_around_an_array_and_behind_its_rows_is_a_canary(
    shape: tuple[int, ...], order: str, gpu: Driver
) -> None:
    """The check fails if any byte outside of the array is overwritten."""
    host = filled(shape, order)
    made = Canaries()
    array = made.of(host)
    start = array.memory.address - GUARD_BYTES
    [(held, _)] = made._watched
    own = np.zeros(held.buffer.nbytes, bool)
    np.ndarray((*shape, 4), bool, own, held.offset, (*array.strides, 1))[...] = True
    assert own.sum() == host.nbytes
    assert held.buffer.nbytes >= host.nbytes + 2 * GUARD_BYTES
    stepped = [extent for extent in shape if extent > 1]
    rows = host.size // host.shape[int(np.argmin(array.strides))] if len(stepped) > 1 else 1
    assert (~own).sum() == 2 * GUARD_BYTES + 4 * GAP * (rows - 1)
    for at in np.flatnonzero(~own):
        again = Canaries()
        again._watched = list(made._watched)
        byte = ctypes.c_uint8.from_address(start + int(at))
        kept, byte.value = byte.value, 0
        with pytest.raises(pytest.fail.Exception, match="1 bytes outside of it were written"):
            again.check()
        byte.value = kept
    ctypes.memset(array.memory.address, 7, 4)  # the array's own
    made.check()


@pytest.mark.parametrize("guarded", [True, False])
def test_another_shape_is_the_same_memory(guarded: bool, gpu: Driver) -> None:
    host = filled((24,))
    seen = (Canaries().of(host) if guarded else DeviceArray.of(host)).reshape(2, 3, 4)
    assert isinstance(seen, Guarded) == guarded
    assert (seen.host() == host.reshape(2, 3, 4)).all()
    turned = DeviceArray.of(filled((4, 6))).T
    for array, shape in ((seen, (5, 5)), (seen, (23,)), (turned, (24,))):
        with pytest.raises(tw.LaunchError, match="cannot be viewed with shape"):
            array.reshape(*shape)


@tw.kernel(X="M N", Y="M N")
def copied(X, Y):
    tw.block_index(1)
    tw.copy(X.tile((8, 8), (0, 0)), Y.tile((8, 8), (0, 0)), threads=(8, 4))


def kernel() -> Any:
    return type(copied)(copied.program)


@pytest.mark.parametrize(("shape", "order"), [((5, 40), "C"), ((5, 40), "F"), ((2, 9, 17), "C")], ids=str)
def test_a_part_is_the_memory_of_its_elements(shape: tuple[int, ...], order: str, gpu: Driver) -> None:
    host = filled(shape, order)
    made = Canaries().of(host)
    part = made[1:, ..., 4:-3]
    assert (part.host() == host[1:, ..., 4:-3]).all()
    part.write(np.zeros(part.shape, host.dtype))
    host[1:, ..., 4:-3] = 0
    assert (made.host() == host).all()


def test_a_launch_that_writes_elsewhere_is_refused(inside: Canaries, gpu: Driver) -> None:
    given, elsewhere = DeviceArray.of(filled((8, 8))), OnGpu(filled((8, 8)))
    with pytest.raises(pytest.fail.Exception, match="the kernel writes Y, which has no canaries"):
        kernel()(given, elsewhere)
    with pytest.raises(pytest.fail.Exception, match="the kernel writes Y, which has no canaries"):
        kernel().bind().prepare(given, elsewhere)()
    assert not gpu.launched
    kernel()(elsewhere, given)  # what is only read may lie anywhere
    with inside.unguarded("it is another library's own"):
        kernel()(given, elsewhere)
    assert len(gpu.launched) == 2


def write_beyond_a_row(gpu: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test whose kernel gets rows of 8 elements, and writes 9."""
    with in_force(monkeypatch):
        out = DeviceArray.of(filled((8, 8)))
        launch = gpu._launch

        def planted(*arguments: Any) -> tuple[Any]:
            ctypes.memset(out.memory.address, 0, 9 * 4)
            return launch(*arguments)

        monkeypatch.setattr(gpu, "_launch", planted)
        kernel()(DeviceArray.of(filled((8, 8))), out)


def test_a_test_whose_kernel_writes_beyond_a_row_fails(gpu: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel writes past each row, as stores by TMA do."""
    with pytest.raises(pytest.fail.Exception, match="4 bytes outside of it were written, the first 32 bytes"):
        write_beyond_a_row(gpu, monkeypatch)


def test_every_gpu_test_has_them(request: pytest.FixtureRequest) -> None:
    """Collecting a GPU test without the fixture is an error."""
    root = request.config.pluginmanager.get_plugin(str(ROOT / "conftest.py"))
    assert root is not None

    def item(name: str, marker: str, fixtures: list[str]) -> Any:
        found = {marker: True}
        return SimpleNamespace(nodeid=name, fixturenames=fixtures, get_closest_marker=found.get)

    items = [
        item("gpu with", "gpu", ["canaries"]),
        item("gpu without", "gpu", ["gpu"]),
        item("two without", "two_gpus", []),
        item("none", "other", []),
    ]
    assert root.without_canaries(items) == ["gpu without", "two without"]
    with pytest.raises(pytest.UsageError, match="gpu without, two without"):
        root.pytest_collection_modifyitems(request.config, items)
    assert "canaries" in request.fixturenames


def test_nothing_takes_their_place() -> None:
    """No other fixture has that name, and only launches into a library's own output have no canaries."""
    ours = {"tests/house/test_canaries.py", "tests/canaries.py"}
    unguarded: dict[str, int] = {}
    plain: set[str] = set()
    for path in (ROOT / "tests").rglob("*.py"):
        name = path.relative_to(ROOT).as_posix()
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            assert not (isinstance(node, ast.FunctionDef) and node.name == "canaries"), name
            if isinstance(node, ast.Attribute) and node.attr == "unguarded" and name not in ours:
                unguarded[name] = unguarded.get(name, 0) + 1
        if "from tests.canaries import" in path.read_text(encoding="utf-8") and name not in ours:
            imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
            if any(alias.name == "plain" for node in imports for alias in node.names):
                plain.add(name)
    assert plain == {"tests/gpu/test_device_array.py"}, "what is written has canaries: DeviceArray.of"
    # Those two watch the memory around each array, but not as one buffer: it is far apart, or a list.
    apart = {"tests/gpu/test_far_offsets.py", "tests/gpu/test_lists.py"}
    # Results of benchmarks are PyTorch's own.
    theirs = {"tests/gpu/test_frameworks.py", "tests/benchmarks/test_benchmarks.py"}
    assert set(unguarded) <= theirs | apart
