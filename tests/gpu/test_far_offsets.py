"""Arrays with at least 2**31 elements between the first and the last, in 26 GB of GPU memory."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock
from tests.canaries import Canaries
from tests.far import strides
from tests.movers.random_movers import POISON
from tests.schedule.small import CASES, residual

import tilewright as tw
from tilewright.checking.compare import Accumulation
from tilewright.checking.flows import compare_flow
from tilewright.errors import LaunchError
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.gpu_memory import DeviceArray, DeviceMemory

pytestmark = pytest.mark.gpu
SHAPE = (200, 136, 264)
GUARD = 64
"""Bytes of poison behind a row."""
PATIENCE_SECONDS = 90
"""Seconds to wait for memory that other tests use at the same time."""
FORMS = {
    "chosen": None,
    **{name: CASES[name].schedule for name in ("direct", "registers", "cp_async, staged", "fragments")},
    "overlapped": CASES["cooperative, overlapped, residual"].schedule,
}


@pytest.fixture
def alone() -> Iterator[None]:
    """Wait until no other process has these arrays: several tests with a part of theirs wait for ever."""
    with FileLock(Path(tempfile.gettempdir()) / "tilewright_far_offsets.lock"):
        yield


def memory_in_turn(size_bytes: int) -> DeviceMemory:
    """Allocate memory of a GPU; wait until other processes have returned enough of theirs."""
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return DeviceMemory(size_bytes, 0)
        except LaunchError as error:
            if "OUT_OF_MEMORY" not in str(error) or time.monotonic() > until:
                raise
            time.sleep(1)


class Far:
    """Rows of an array in a GPU's memory, gigabytes apart, with canaries after each."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        kind = tw.dtype(array.dtype)
        self.rows, self.step = np.ascontiguousarray(array), strides(array.shape, kind)[0] * kind.bytes
        self.around = np.full((len(array), GUARD), POISON, np.uint8)
        memory = memory_in_turn(self.step * (len(array) - 1) + self.rows[0].nbytes + GUARD)
        self.array = DeviceArray(memory, array.shape, (self.step, kind.bytes), kind)
        self._copy("cuMemcpyHtoD")

    def host(self) -> np.ndarray[Any, Any]:
        """Return a copy in host memory."""
        self._copy("cuMemcpyDtoH")
        return self.rows

    def _copy(self, function: str) -> None:
        """Copy every row and the bytes after it."""
        with CUDA_DRIVER.current(0):
            CUDA_DRIVER.call("cuCtxSynchronize")
            for at, pair in enumerate(zip(self.rows, self.around, strict=True)):
                there = self.array.memory.address + at * self.step
                for here in pair:
                    places = (there, here.ctypes.data)
                    CUDA_DRIVER.call(
                        function, *places[:: 1 if function == "cuMemcpyHtoD" else -1], here.nbytes
                    )
                    there += here.nbytes


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", FORMS)
def test_every_element_is_found(name: str, canaries: Canaries) -> None:
    rng, (m, n, k) = np.random.default_rng(0), SHAPE
    given = {
        "A": rng.standard_normal((m, k)).astype(np.float16),
        "B": rng.standard_normal((n, k)).astype(np.float16),
        "bias": rng.standard_normal(n).astype(np.float32),
        "R": rng.standard_normal((m, n)).astype(np.float32),
        "C": np.full((m, n), np.nan, np.float32),
    }
    there = {name: Far(array) if array.ndim > 1 else DeviceArray.of(array) for name, array in given.items()}
    arrays = [one.array if isinstance(one, Far) else one for one in there.values()]
    with canaries.unguarded("gigabytes lie between rows: each has canaries of its own behind it"):
        ran = residual.bind(schedule=FORMS[name])(*arrays)
    assert ran.target == "cuda"
    read = {name: array for name, array in given.items() if name != "C"}
    how = Accumulation.of(ran.schedule.atom, ran.schedule.promote * ran.schedule.block_k or None)
    result = there["C"].host()
    assert (there["C"].around == POISON).all()
    found = compare_flow(residual.flow(*given.values()), {"C": result}, read, how=how)
    assert found.ok, found
