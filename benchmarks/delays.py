"""The mutants of the Hopper GEMM that run on a GPU: their problems, and the warps that are delayed.

A delay is inserted into generated text, in front of the lines that match a pattern.  The delayed warps spin
for a number of cycles, so that any code that fails to wait for them runs ahead.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

FUNCTION = """
__device__ __forceinline__ void delay(int cycles) {
  const long long start = clock64();
  while (clock64() - start < cycles) {}
}
"""
KERNEL = 'extern "C" __global__'
COMMENT = r"// [^:]+:\d+: "
"""Comment above the text of an operation: the author's line."""


@dataclass(frozen=True)
class Delay:
    """Warps ``first`` to ``last`` of every block spin in front of each line that matches ``before``."""

    before: str
    first: int
    last: int
    cycles: int = 200_000

    @property
    def statement(self) -> str:
        """Return the line to insert."""
        warps = f"threadIdx.x / 32 >= {self.first} && threadIdx.x / 32 <= {self.last}"
        if self.first == self.last:
            warps = f"threadIdx.x / 32 == {self.first}"
        return f"if ({warps}) delay({self.cycles});"


@dataclass(frozen=True)
class Case:
    """A problem, the kernel's constants for it, and a delay.

    Args:
        shape: M, N and K.
        columns: columns of a tile.
        stages: stages of the ring.
        buffers: buffers of each warpgroup's epilogue.
        blocks: blocks of the grid.
        delay: None if the mutant fails without a delay.
    """

    shape: tuple[int, int, int] = (1000, 1096, 1048)
    columns: int = 128
    stages: int = 3
    buffers: int = 2
    blocks: int = 40
    delay: Delay | None = None

    def record(self) -> dict[str, Any]:
        """Return its entry in a result."""
        delay = None if self.delay is None else f"{self.delay.statement} before {self.delay.before}"
        chosen = {"columns": self.columns, "stages": self.stages, "buffers": self.buffers}
        return {"shape": self.shape, **chosen, "blocks": self.blocks, "delay": delay}


def delayed(text: str, delay: Delay | None) -> str:
    """Insert a delay into generated text, in front of every matching line of the kernel.

    Raises:
        ValueError: no line matches.
    """
    if delay is None:
        return text
    prelude, kernel, body = text.partition(KERNEL)
    late, places = re.subn(rf"(?m)^( *)(?={delay.before})", rf"\1{delay.statement}\n\1", body)
    if not places:
        raise ValueError(f"no line of the kernel fits {delay.before!r}")
    return prelude + FUNCTION + kernel + late


LOADER, FIRST, LAST = 0, 4, 7
"""Warps of a block: the one that loads, and the first and last of the first multiplying warpgroup."""

LATE_LOADER = Delay(COMMENT + r"A\.tile\(.*\) -> sA", LOADER, LOADER, 20_000)
LATE_MULTIPLIER = Delay(COMMENT + "wait for full", FIRST, LAST, 20_000)
LATE_TILE = Delay(COMMENT + r"part\w* -> buffer", LAST, LAST)
LATE_STORE = Delay(COMMENT + r"buffer\w* -> \w+, by TMA", FIRST, FIRST)
LATE_START = Delay(COMMENT + "warps 0 to 3", 1, 1, 2_000_000)

DEEP = Case((2048, 2048, 2048), columns=256, buffers=2, blocks=128)
"""The tensor cores are the slowest part: stages are released while they still read them."""
SHALLOW = Case((1000, 1096, 64), buffers=1, blocks=8)
"""One step along K, and one buffer for all stores: only their order keeps them apart."""
BUSY = Case((4096, 4096, 64), columns=256, buffers=1, blocks=132)
"""As much output as possible, so that stores take long."""


def rows() -> dict[str, Case]:
    """Return the cases of each mutant, by its name in tests/hazards/golden/hopper_mutants.txt."""
    return {
        # waits and their phases
        "wait 0: removed": Case(delay=LATE_MULTIPLIER),
        "wait 0: other parity": Case(),
        "wait 1: removed": Case(delay=LATE_LOADER),
        "wait 1: other parity": Case(delay=LATE_LOADER),
        "wait 1: next stage, around": Case(delay=LATE_LOADER),
        # arrivals and their number
        "arrive 1: removed": Case(),
        "arrive 1: twice": Case(delay=LATE_MULTIPLIER),
        "mbarrier 1: arrivals +1": Case(),
        "mbarrier 1: arrivals -1": Case(delay=LATE_MULTIPLIER),
        # bytes
        "arrive 0: bytes -32768": Case(delay=LATE_LOADER),
        "arrive 0: bytes +16": Case(),
        # stages
        "arrive 1: next stage, around": Case(delay=LATE_MULTIPLIER),
        "if 0: always": Case(delay=LATE_MULTIPLIER),
        # asynchronous MMA
        "mma_wait 0: removed": DEEP,
        "mma_wait 0: one more pending": DEEP,
        "mma_wait 1: removed": Case(),
        # the epilogue
        "role_barrier 2: removed": replace(SHALLOW, delay=LATE_STORE),
        "role_barrier 1: removed": replace(SHALLOW, delay=LATE_TILE),
        "bulk_wait 1: removed": BUSY,
        "fence_async 0: removed": BUSY,
        # a warp waits at a barrier whose phases do not wait for it; each stage is filled only once
        "role 1: for all warps around it": Case((128, 128, 192), blocks=1, delay=LATE_START),
    }
