"""Every random mover on a GPU: every bit arrives, and nothing else is written."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tilewright as tw
from tilewright.ops.device_array import DeviceArray

pytestmark = pytest.mark.gpu

RANDOM = runpy.run_path(str(Path(__file__).parents[1] / "movers" / "random_movers.py"))
MOVERS = RANDOM["movers"]()
GROUPS = 10


def placed(array: Any, element: Any) -> tuple[DeviceArray, DeviceArray]:
    """The whole buffer on the GPU, and the array in it."""
    buffer = DeviceArray.of(array.buffer)
    memory = SimpleNamespace(address=buffer.memory.address + array.offset)
    return buffer, DeviceArray(memory, array.array.shape, array.strides, element)


@pytest.mark.parametrize("group", range(GROUPS))
def test_three_hundred_random_movers(group: int) -> None:
    for made in MOVERS[group::GROUPS]:
        x, y = made.arrays()
        element = tw.dtype(made.dtype)
        kept, source = placed(x, element)
        buffer, target = placed(y, element)
        assert made.bound(source, target).target == "cuda"
        y.buffer[...] = buffer.host()
        assert y.same_bits(x), made
        del kept
