"""Canaries: in a GPU test every array lies in a larger buffer of poison, with poison after each of its rows.

The fixture `canaries` of the root `conftest.py` is in force in every test that runs on a GPU.  It gives
`DeviceArray.of` arrays with canaries, refuses launches that write anywhere else, and looks at all canaries
when the test ends.  Arrays of frameworks get theirs by `Canaries.torch` and `Canaries.cupy`.

A row is followed by 16 elements of poison, so that strides keep their divisors and the same kernels are
compiled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from tests.movers.random_movers import POISON, Array, Placed

from tilewright.dtypes import dtype
from tilewright.runtime import gpu_memory
from tilewright.runtime.arrays import ArrayInfo, describe, reach
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.device import PreparedCuda
from tilewright.runtime.driver import Driver
from tilewright.runtime.gpu_memory import ALIGNMENT, DeviceArray

GAP = 16
"""Elements of poison behind a row."""

plain = DeviceArray.of
"""An array in GPU memory without canaries, for tests that launch nothing."""

plain_scratch = gpu_memory._taken
"""What gives memory between kernels without canaries, for tests of that memory itself."""


def spaced(array: np.ndarray[Any, Any]) -> Placed:
    """Return the strides of an array with a gap after each row; arrays that have gaps get C order."""
    given = array.strides if array.flags.forc else np.empty(array.shape, array.dtype).strides
    strides = [stride // array.itemsize for stride in given]
    reach = 1
    # Dimensions of extent 1 have no rows, and keep strides of which nothing follows.
    for rank, dim in enumerate(sorted(_stepped(array.shape), key=lambda dim: (strides[dim], -dim))):
        strides[dim], reach = reach, reach * array.shape[dim]
        if rank == 0:  # what has gaps has whole units of them, where bulk copies may be wanted
            reach = reach + GAP if array.flags.forc else -(-reach // GAP) * GAP + GAP
    return Placed(tuple(strides), 0)  # type: ignore[arg-type]


def _stepped(shape: Sequence[int]) -> list[int]:
    return [dim for dim, extent in enumerate(shape) if extent > 1]


def held(array: np.ndarray[Any, Any]) -> Array:
    """Return the values of an array, inside of a buffer of poison in host memory."""
    made = Array(array.shape, spaced(array), dtype(array.dtype))  # type: ignore[arg-type]
    made.array[...] = array
    return made


class Guarded(DeviceArray):
    """An array in GPU memory, inside of a buffer with canaries; results of operations on it are such, too."""

    __module__ = DeviceArray.__module__  # by which operations know what makes results

    current: ClassVar[Canaries]
    """Of the test that runs: calls that are known from other tests make their results by it."""

    @classmethod
    def empty(cls, shape: tuple[int, ...], element: Any, index: int = 0, driver: Any = None) -> Guarded:
        """Return an array of poison, like `DeviceArray.empty`."""
        poison = np.full(math.prod(shape) * element.bytes, 0xFF, np.uint8)
        return cls.current.of(poison.view(element.numpy).reshape(shape), index)

    def __init__(
        self, buffer: DeviceArray, array: Array, shape: Any, strides: Any, offset: int | None = None
    ) -> None:
        self._offset = array.offset if offset is None else offset  # of the first element, in the buffer
        address = buffer.memory.address + self._offset
        size = array.buffer.nbytes - self._offset
        held = buffer.memory
        memory: Any = SimpleNamespace(address=address, index=held.index, driver=held.driver, size_bytes=size)
        super().__init__(memory, shape, strides, dtype(array.array.dtype))
        self._buffer, self._array = buffer, array

    @property
    def T(self) -> Guarded:  # noqa: N802
        return Guarded(self._buffer, self._array, self.shape[::-1], self.strides[::-1], self._offset)

    def reshape(self, *shape: int) -> Guarded:
        seen = super().reshape(*shape)
        return Guarded(self._buffer, self._array, seen.shape, seen.strides, self._offset)

    def __getitem__(self, key: Any) -> Guarded:
        """Return a part of the array, as NumPy slices it."""
        whole = np.empty(self._array.buffer.nbytes, np.uint8)
        seen = self._seen(whole)[key]
        offset = seen.ctypes.data - whole.ctypes.data
        return Guarded(self._buffer, self._array, seen.shape, seen.strides, offset)

    def host(self) -> np.ndarray[Any, Any]:
        return self._seen(self._buffer.host()).copy(order="K")

    def _seen(self, whole: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the array's elements in a copy of its buffer."""
        return np.ndarray(self.shape, self.dtype, whole, self._offset, self.strides)

    def write(self, array: np.ndarray[Any, Any]) -> None:
        whole = self._buffer.host()
        self._seen(whole)[...] = array
        self._buffer.memory.fill(whole.ctypes.data, whole.nbytes)


class Canaries:
    """The canaries of one test."""

    def __init__(self) -> None:
        self._watched: list[tuple[Array, Callable[[], np.ndarray[Any, Any]]]] = []
        self._covered: list[tuple[int, int]] = []
        self._written: dict[int, tuple[Any, frozenset[str]]] = {}  # by a kernel, which is kept
        self._unguarded = ""

    def of(self, array: np.ndarray[Any, Any], index: int = 0, driver: Driver = CUDA_DRIVER) -> Guarded:
        """Return a copy in GPU memory, like `DeviceArray.of`."""
        made = held(array)
        buffer = plain(made.buffer, index, driver)
        self._watch(made, buffer.memory.address, buffer.host)
        return Guarded(buffer, made, array.shape, made.array.strides)

    def torch(self, array: np.ndarray[Any, Any], device: str = "cuda") -> Any:
        """Return a copy as a PyTorch tensor."""
        torch = import_module("torch")
        made = held(array)
        buffer = torch.from_numpy(made.buffer.copy()).to(device)
        self._watch(made, buffer.data_ptr(), lambda: buffer.cpu().numpy())
        element = torch.from_numpy(np.empty(0, array.dtype)).dtype
        strides = tuple(stride // array.itemsize for stride in made.array.strides)
        start = made.offset // array.itemsize
        return buffer.view(element).as_strided(array.shape, strides, start)

    def cupy(self, array: np.ndarray[Any, Any]) -> Any:
        """Return a copy as a CuPy array."""
        cupy = import_module("cupy")
        made = held(array)
        buffer = cupy.asarray(made.buffer)
        self._watch(made, buffer.data.ptr, lambda: cupy.asnumpy(buffer))
        return cupy.ndarray(array.shape, array.dtype, buffer.data + made.offset, made.array.strides)

    def _watch(self, array: Array, address: int, read: Callable[[], np.ndarray[Any, Any]]) -> None:
        self._watched.append((array, read))
        self._covered.append((address, address + array.buffer.nbytes))

    def check(self) -> None:
        """Fail if a canary has changed; forget all arrays."""
        watched, self._watched = self._watched, []
        self._covered.clear()
        for number, (array, read) in enumerate(watched):
            array.buffer[...] = read()
            if not array.is_whole_around():
                wrong = np.flatnonzero(array.around() != POISON)
                pytest.fail(
                    f"array {number} of this test, of shape {array.array.shape} and {array.array.dtype}: "
                    f"{len(wrong)} bytes outside of it were written, the first {wrong[0] - array.offset} "
                    "bytes from its start"
                )

    def require(self, name: str, info: ArrayInfo) -> None:
        """Fail if memory that a kernel writes has no canaries around it."""
        if self._unguarded or 0 in info.shape:
            return
        first, last = (info.pointer + side for side in reach(info))
        self._require(name, first, last)

    def _require(self, name: str, first: int, last: int) -> None:
        if not any(low <= first and last <= high for low, high in self._covered):
            pytest.fail(
                f"the kernel writes {name}, which has no canaries: make it by DeviceArray.of, canaries.torch "
                "or canaries.cupy"
            )

    @contextmanager
    def unguarded(self, reason: str) -> Iterator[None]:
        """Allow outputs without canaries, for a reason."""
        self._unguarded = reason
        try:
            yield
        finally:
            self._unguarded = ""

    def launch(self, prepared: PreparedCuda, arguments: Sequence[Any], pointers: Sequence[int]) -> None:
        """Find the arrays that a launch will write.

        Later launches of one call receive only addresses, so their first byte must have canaries.
        """
        kernel = prepared.executable.kernel
        if id(kernel) not in self._written:
            self._written[id(kernel)] = (kernel, kernel.written_params)
        arrays = [a for a in arguments if not isinstance(a, int | float | complex | np.generic)]
        written = self._written[id(kernel)][1]
        if len(arrays) == len(kernel.tensors):
            for value, array in zip(kernel.tensors, arrays, strict=True):
                if value.name in written:
                    self.require(value.name, describe(array))
        elif not self._unguarded:
            for value, pointer in zip(kernel.tensors, pointers, strict=True):
                if value.name in written:
                    self._require(value.name, pointer, pointer + 1)


@contextmanager
def in_force(monkeypatch: pytest.MonkeyPatch) -> Iterator[Canaries]:
    """`DeviceArray.of` and `scratch` give memory with canaries, and nothing else is written.

    After the memory of `scratch` come up to 255 bytes that its alignment leaves over, and then canaries.
    """
    made, launch = Canaries(), PreparedCuda.launch

    def guarded(self: PreparedCuda, arguments: Sequence[Any], pointers: Sequence[int], stream: Any) -> None:
        made.launch(self, arguments, pointers)
        launch(self, arguments, pointers, stream)

    def taken(key: Hashable, size_bytes: int, device: tuple[str, int]) -> SimpleNamespace:
        given = made.of(np.full(size_bytes + ALIGNMENT, 0xFF, np.uint8), device[1])
        address = -(-given.memory.address // ALIGNMENT) * ALIGNMENT
        return SimpleNamespace(address=address, size_bytes=0, keeps=given)

    monkeypatch.setattr(gpu_memory, "_taken", taken)
    monkeypatch.setattr(gpu_memory._idle, "held", {})  # what is put back there goes with the test
    monkeypatch.setattr(DeviceArray, "of", made.of)
    monkeypatch.setattr(Guarded, "current", made, raising=False)
    monkeypatch.setattr(PreparedCuda, "launch", guarded)
    yield made
    made.check()
