"""Loops over all warps count bank conflicts under every swizzle that the library chooses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest
from tests.hazards import test_fused_mutants as fused
from tests.hazards import test_mutants as ladder

import tilewright as tw
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import Copy
from tilewright.ops.products import output_dtype, plain
from tilewright.passes.expand_mma import expand_mma
from tilewright.passes.memory_instructions import resolve_vectors
from tilewright.symbolic.rebuilding import evaluate, symbols
from tilewright.targets import cuda
from tilewright.targets.cuda.emit import choose_engines
from tilewright.targets.simt.banks import conflicts_of, in_shared
from tilewright.threads.distribution import Distribution
from tilewright.views.view import View

LANES, BANKS, WORD_BYTES, ROW_BYTES = 32, 32, 4, 16


def degree(first_bytes: list[int], width: int) -> int:
    """Return the most different words in one bank among lanes that are served together."""
    together = min(LANES, BANKS * WORD_BYTES // max(width, WORD_BYTES))
    worst = 1
    for part in range(0, len(first_bytes), together):
        words: dict[int, set[int]] = {}
        for first in first_bytes[part : part + together]:
            for byte in range(first, first + width):
                words.setdefault(byte // WORD_BYTES % BANKS, set()).add(byte // WORD_BYTES)
        worst = max(worst, *map(len, words.values()))
    return worst


def warps(view: View, spread: Distribution, vector: int, element_bytes: int) -> Iterator[list[int]]:
    """Return the first byte of each lane, for each access of each warp; indices of stages are 0."""
    at = dict(zip(view.coords, np.moveaxis(spread.table[:, ::vector], -1, 0), strict=True))
    stages = dict.fromkeys(symbols(view.offset) - at.keys(), 0)
    offsets = np.broadcast_to(evaluate(view.offset, {**stages, **at}), spread.table[:, ::vector].shape[:2])
    for warp in range(0, len(offsets), LANES):
        yield from (offsets[warp : warp + LANES].T * element_bytes).tolist()


def conflicts(kernel: Kernel) -> Iterator[tuple[str, list[int], float]]:
    """Return the degrees of every copy's accesses to a shared tensor, and the predicted average."""
    for op in kernel.walk():
        for value in (op.source, op.target) if isinstance(op, Copy) else ():
            if not in_shared(value):
                continue
            view, spread, vector, size = value.tensor.view, op.spread, op.vector or 1, value.dtype.bytes
            reads = value is op.source
            asked, width, how = conflicts_of(op, value), vector * size, op.matrices
            if how is not None:  # each lane names a row of 16 bytes
                spread, vector, width = Distribution(spread.shape, how.lanes, how.values), 1, ROW_BYTES
            found = [degree(first_bytes, width) for first_bytes in warps(view, spread, vector, size)]
            name = f"{value.buffer.name} {'read' if reads else 'written'}"
            yield name, found, asked.passes / asked.fewest


def library(name: str, precision: str = "exact", extent: int = 4096) -> Kernel:
    """Return the schedule chosen without `wgmma`, for operands that are contiguous along K."""
    element, square = tw.dtype(name), (extent, extent)
    result = tw.like(output_dtype(element), square)
    arrays = tw.like(element, square), tw.like(element, square, order="F"), result
    return plain(0).trace(*arrays, precision=precision, target="cuda", arch="sm_80")


def of_ladder(name: str) -> Kernel:
    arrays, constants = ladder.CASES[name]
    return ladder.traced(name, arrays, **constants)


def of_fused(name: str) -> Kernel:
    return fused.CASES[name]().trace()


LIBRARY = ("f16", "bf16", "f32", "f64", "i8", "f8e4m3", "f8e5m2")
KERNELS: dict[str, Callable[[], Kernel]] = {
    **{name: partial(of_ladder, name) for name in ladder.CASES if name not in ("im2col", "warp_tiles_gemm")},
    **{name: partial(of_fused, name) for name in fused.CASES},
    **{f"library {name}": partial(library, name) for name in LIBRARY},
    "library f32 as tf32": partial(library, "f32", "tf32"),
    "library f16, small": partial(library, "f16", extent=512),
}
ROWS_OF_128_BYTES = {"A written": (1, 1), "B written": (1, 1), "A read": (8, 1), "B read": (8, 1)}
SPARED = {"A written": (2, 2), "B written": (2, 2), "A read": (1, 1), "B read": (1, 1)}
BY_ALL = {"A written": (1, 1), "B written": (1, 1), "A read": (4, 1), "B read": (4, 1)}
"""Rows of 64 bytes that all threads copy in order."""

DEGREES: dict[str, dict[str, tuple[int, int]]] = {
    "basic_gemm": {"A written": (8, 4), "B written": (8, 4), "A read": (1, 1), "B read": (8, 1)},
    "pipelined_gemm": {"A written": (4, 2), "B written": (4, 2), "A read": (2, 1), "B read": (2, 1)},
    # A and B have the spared layout of the author, which stays.
    "optimized_gemm": {**SPARED, "C written": (4, 1), "C read": (1, 1)},
    **dict.fromkeys(("serial", "buffered", "prefetched"), BY_ALL),
    "attention": {
        f"{name} {how}": (8 if how == "read" else 1, 1) for name in "QKV" for how in ("written", "read")
    },
    "fused_gemms": {
        **dict.fromkeys(("A written", "B written", "C written"), (1, 1)),
        "C read": (4, 1),
        "A read": (2, 1),
        "B read": (2, 1),
    },
    **{f"library {name}": ROWS_OF_128_BYTES for name in ("f16", "bf16", "i8", "f32 as tf32", "f16, small")},
    "library f32": {**ROWS_OF_128_BYTES, "A read": (2, 1), "B read": (4, 1)},
    "library f64": {**ROWS_OF_128_BYTES, "A read": (4, 1), "B read": (4, 1)},
    **{f"library {name}": {**ROWS_OF_128_BYTES, "A read": (4, 1)} for name in ("f8e4m3", "f8e5m2")},
}
"""How many lanes meet in a bank at worst, packed and under the chosen swizzle."""


@pytest.mark.parametrize("name", KERNELS)
def test_accesses_under_the_swizzles_that_are_chosen(name: str) -> None:
    kernel = KERNELS[name]()
    lowered, notes = cuda.lower(kernel, cuda.architecture("sm_90a"))
    packed = conflicts(choose_engines(expand_mma(resolve_vectors(kernel)), stores=False))
    found: dict[str, set[tuple[int, int]]] = {}
    for (what, before, _), (_, after, predicted) in zip(packed, conflicts(lowered), strict=True):
        found.setdefault(what.removeprefix("s"), set()).add((max(before), max(after)))
        assert sum(after) / len(after) == predicted, "the first warp stands for all"
    assert found == {what: {degrees} for what, degrees in DEGREES[name].items()}
    swizzled = {note.partition(" ")[0] for note in notes if "swizzle" in note}
    assert swizzled == {f"s{what[0]}" for what, (before, after) in DEGREES[name].items() if after < before}
