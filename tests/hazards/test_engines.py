"""``ldmatrix`` and ``stmatrix`` belong to a whole warp: a lane reads where another lane's address points."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import TraceError
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
def there_and_back(X, Y, *, spread, ordered, engine=None):
    """Each thread writes elements to shared memory and reads the same elements."""
    held = tw.shared((32, 32), X.dtype)
    tw.copy(tw.load(X.tile((32, 32), (0, 0)), like=spread), held, engine=engine)
    if ordered:
        tw.warp_barrier()
    taken = tw.fragment(spread, X.dtype)
    tw.copy(held, taken, engine=engine)
    tw.copy(taken, Y.tile((32, 32), (0, 0)))


@tw.kernel(X="M N", Y="M N")
def in_place(X, Y, *, ordered):
    """Double a shared tile in place."""
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
    """Return, for each copy of a kernel, whether a matrix instruction executes it."""
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


def test_the_author_may_say_who_moves_a_tile() -> None:
    """With the direct engine, each thread reads its own elements; "matrix" is like no choice."""
    x = matrix(32, 32, np.float16)
    assert copies(there_and_back, x, spread=MAP, ordered=False, engine="direct") == [False] * 4
    assert there_and_back.check(x, np.zeros_like(x), spread=MAP, ordered=False, engine="direct").is_clean
    assert copies(there_and_back, x, spread=MAP, ordered=False, engine="matrix") == [False, True, True, False]
    report = there_and_back.check(x, np.zeros_like(x), spread=MAP, ordered=False, engine="matrix")
    assert [finding.kind for finding in report.findings] == [Kind.WRITE_READ]
    y = np.zeros_like(x)
    assert there_and_back(x, y, spread=MAP, ordered=True, engine="matrix", target="cpu").target == "cpu"
    assert (x == y).all()


def test_engines_that_do_not_move_such_tiles_are_refused() -> None:
    x = matrix(32, 32, np.float16)
    traced = there_and_back.trace(x, x.copy(), spread=PLAIN, ordered=True, engine="matrix")
    for arch, count in (("sm_90a", 2), ("sm_80", 2)):
        found = [violation for violation in cuda.violations(traced, arch) if violation.rule == "engine"]
        assert len(found) == count
        assert found[0].message.startswith(f"{arch} moves no matrices of 8 rows of 16 bytes")
        assert found[0].nearest == "engine='direct', or no engine= to let the target choose"
    verbs = {
        "bulk": "tw.hopper.tma_load or tw.hopper.tma_store",
        "async": "tw.copy_async",
        "tma": "engine='direct'",
    }
    for engine, verb in verbs.items():
        with pytest.raises(TraceError, match=f"engine='{engine}'.; nearest legal choice: {verb}"):
            there_and_back.trace(x, x.copy(), spread=PLAIN, ordered=True, engine=engine)
