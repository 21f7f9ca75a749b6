"""Reports on kernels with integers and rows from memory, or with other blocks' shared memory."""

from __future__ import annotations

import numpy as np
import pytest
from tests.hazards.peers import arguments, exchange
from tests.targets import grouped
from tests.targets.gathered import gather, scatter

from tilewright.inspect.from_files import from_file
from tilewright.inspect.report import sector_factor
from tilewright.ir.ops import Copy

X, INDEX, Y = np.zeros((64, 48), np.float32), np.arange(64, dtype=np.int32), np.zeros((64, 48), np.float32)
KERNELS = {
    "gather": gather.trace(X, INDEX, Y, way="shared"),
    "scatter": scatter.trace(X, INDEX, Y, way="registers"),
    "grouped": grouped.grouped.trace(*grouped.arguments((70, 35), 64, 64, True), gathered=True),
    "peers": exchange.trace(*arguments((64, 64), 2, "read", 0), across=2, way="read"),
}


@pytest.mark.parametrize("name", KERNELS)
def test_sectors_are_told_where_it_is_known_what_a_copy_accesses(name: str) -> None:
    kernel = KERNELS[name]
    for op in (op for op in kernel.walk() if isinstance(op, Copy)):
        known = [v for v in (op.source, op.target) if v.is_tensor and v.tensor.memory.value == "global"]
        factor = sector_factor(kernel, op)
        assert factor is None or factor >= 1
        if all(value.tensor.indices for value in known):
            assert factor is None
        elif name != "grouped":  # where a tile of it begins, and whether it has an element, a variable says
            assert factor is not None


TIMELINES = [
    ("targets/gathered.py:gather", "X=f32,I=i32,Y=f32", "M=40,N=48,R=32", ["way='shared'", "index='shared'"]),
    ("hazards/peers.py:exchange", "f32", "M=64,N=64,R=32", ["across=2", "way='read'"]),
    ("hazards/peers.py:exchange", "i32", "M=64,N=64,R=64", ["across=2", "way='store'", "halves=True"]),
]


@pytest.mark.parametrize(("where", "dtypes", "shape", "constants"), TIMELINES)
def test_timelines_show_who_reads_whose_memory(
    where: str, dtypes: str, shape: str, constants: list[str]
) -> None:
    made = from_file(f"tests/{where}", dtypes, shape, constants).timeline()
    assert len(made.events) > 10
    if "peers" in where:
        pairs = {(event.block, touch.block) for event in made.events for touch in event.touches}
        assert pairs >= {(0, 1), (1, 0)}  # each reads the other's
