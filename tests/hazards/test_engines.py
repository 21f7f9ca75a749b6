"""``ldmatrix`` and ``stmatrix`` are of the whole warp: what one lane names, another reads."""

from __future__ import annotations

import numpy as np

import tilewright as tw
from tilewright.ir.ops import Copy
from tilewright.targets import cuda
from tilewright.targets.reference import Kind

from .test_aliases import matrix
from .test_mutants import TENSOR

MAP = TENSOR.c()
"""A tile of 32 x 32, as the accumulators of tensor cores lie in the lanes of two warps."""
PLAIN = tw.blocked((32, 32), (32, 2))
"""Half a row for each of 64 threads: no matrix instruction moves it."""


@tw.kernel(X="M N", Y="M N")
def there_and_back(X, Y, *, spread, ordered):
    """Each thread brings to shared memory what it takes from there."""
    held = tw.shared((32, 32), X.dtype)
    tw.copy(tw.load(X.tile((32, 32), (0, 0)), like=spread), held)
    if ordered:
        tw.warp_barrier()
    tw.copy(tw.load(held, like=spread), Y.tile((32, 32), (0, 0)))


@tw.kernel(X="M N", Y="M N")
def in_place(X, Y, *, ordered):
    """A shared tile is doubled where it lies."""
    held = tw.shared((32, 32), X.dtype)
    tw.copy(X.tile((32, 32), (0, 0)), held, threads=(32, 2))
    tw.barrier()
    doubled = tw.load(held, like=MAP) * 2
    if ordered:
        tw.warp_barrier()
    tw.copy(doubled, held)
    tw.barrier()
    tw.copy(held, Y.tile((32, 32), (0, 0)), threads=(32, 2))


def copies(kernel, x, **constants):
    """The copies of a kernel by whether a matrix instruction loads or stores them."""
    lowered, _ = cuda.lower(kernel.trace(x, x.copy(), **constants), cuda.architecture("sm_90a"))
    return [op.engine == "matrix" for op in lowered.walk() if isinstance(op, Copy)]


def test_the_text_has_these_instructions_and_they_are_found() -> None:
    x = matrix(32, 32, np.float16)
    assert copies(there_and_back, x, spread=MAP, ordered=False) == [False, True, True, False]
    text = there_and_back.compile(x, x.copy(), spread=MAP, ordered=False, target="cuda", arch="sm_90a").source
    assert "ldmatrix_x4(" in text
    assert "stmatrix_x4(" in text
    assert not any(copies(there_and_back, x, spread=PLAIN, ordered=False))


def test_stmatrix_then_ldmatrix_without_a_warp_barrier_is_a_race() -> None:
    x = matrix(32, 32, np.float16)
    assert there_and_back.check(x, np.zeros_like(x), spread=MAP, ordered=True).is_clean
    [finding] = there_and_back.check(x, np.zeros_like(x), spread=MAP, ordered=False).findings
    assert (finding.kind, finding.tensor, finding.count) == (Kind.WRITE_READ, "held", 32 * 32)
    assert "write by block (), warp" not in str(finding)
    assert "lane" not in str(finding.access).splitlines()[0]
    assert "GPUs move this tile by ldmatrix or stmatrix" in finding.reason
    assert "a tw.warp_barrier() belongs between line" in finding.reason


def test_a_thread_that_reads_what_it_wrote_itself_needs_no_barrier() -> None:
    x = matrix(32, 32, np.float16)
    assert there_and_back.check(x, np.zeros_like(x), spread=PLAIN, ordered=False).is_clean
    wide = matrix(32, 32, np.float64)
    assert there_and_back.check(wide, np.zeros_like(wide), spread=MAP, ordered=False).is_clean


def test_ldmatrix_then_stmatrix_needs_the_warp_barrier_too() -> None:
    x = matrix(32, 32, np.float16)
    assert in_place.check(x, np.zeros_like(x), ordered=True).is_clean
    [finding] = in_place.check(x, np.zeros_like(x), ordered=False).findings
    assert finding.kind is Kind.READ_WRITE


def test_warps_of_another_size_have_no_such_instructions() -> None:
    x = matrix(32, 32, np.float16)
    assert there_and_back.check(x, np.zeros_like(x), spread=MAP, ordered=False, lanes=64).is_clean
