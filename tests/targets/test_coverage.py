"""Which target executes which operation: one table, and the errors for missing operations."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import LegalityError, Violation
from tilewright.ir.async_ops import ASYNC_OPS
from tilewright.ir.copies import BULK_VERBS
from tilewright.ir.ops import KINDS
from tilewright.targets import cpu, cuda, reference

RULES = {"reference": reference.REFERENCE, "cuda": cuda.CUDA_RULES, "cpu": cpu.CPU_RULES}

BESIDE = {kind for kind in KINDS if kind[0] in ASYNC_OPS or kind[1] == "bulk"}
EXECUTES = {"reference": {*KINDS}, "cuda": {*KINDS}, "cpu": {*KINDS} - BESIDE}
"""What each target executes; the cpu target, whose threads have nothing beside them, refuses the rest."""


@tw.kernel(A="M K", B="N K", maps="G F", C="M N")
def every_asynchronous_operation(A, B, maps, C, *, mma):
    block = tw.block_index(2)
    rank = tw.hopper.cluster_index(2)
    sA = tw.shared((64, 64), A.dtype, swizzle=128)
    sB = tw.shared((64, 64), B.dtype, swizzle=128)
    sC = tw.shared((64, 64), C.dtype, swizzle=128)
    full = tw.hopper.mbarrier(1, arrivals=1)
    tw.hopper.prior_grid_wait()
    tw.hopper.cluster_barrier()
    nothing = tw.fragment(tw.blocked((64, 64), (64, 4)), C.dtype, 0)
    tw.copy(nothing, tw.hopper.peer(sC, 1 - rank))
    tw.hopper.cluster_arrive()
    tw.hopper.cluster_wait()
    with tw.role(warps=4):
        tw.hopper.arrive(full[0], expect_bytes=2 * 64 * 64 * A.dtype.bytes)
        tw.hopper.tma_load(A.tile((64, 64), (block, 0)), sA, full[0])
        columns = tw.hopper.by_map(B[0:64], maps, block, 0)
        tw.hopper.acquire_map(columns)
        tw.hopper.tma_load(columns.tile((64, 64), (0, 0)), sB, full[0])
    with tw.role(warps=4):
        acc = tw.accumulator(mma)
        tw.hopper.wait(full[0], 0)
        tw.hopper.mma_fence()
        tw.hopper.mma_async(sA, sB, acc)
        tw.hopper.mma_commit()
        tw.hopper.mma_wait()
        tw.copy(acc, sC)
        tw.hopper.fence_async()
        tw.role_barrier(1, 128)
        tw.hopper.tma_store(sC, C.tile((64, 64), (block, 0)))
        tw.hopper.bulk_commit()
        tw.hopper.bulk_wait()
        tw.hopper.launch_dependents()


def arguments():
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, (rows, 64)).astype(ml_dtypes.bfloat16) for rows in (128, 64))
    maps = np.zeros((2, 16), np.int64)
    maps[:, 1:7] = 64, 64, 64, 1, 64, 64
    return a, b, maps, np.zeros((128, 64), ml_dtypes.bfloat16)


BOUND = every_asynchronous_operation.bind(mma=tw.TiledMma(tw.atoms.wgmma(tw.bf16, 64), (1, 1)))


@pytest.mark.parametrize("target", RULES)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: name_of(kind))
def test_a_target_has_a_rule_exactly_for_what_it_executes(kind, target) -> None:
    assert (RULES[target].find(*kind) is not None) == (kind in EXECUTES[target])


def name_of(kind) -> str:
    """Return the name of an operation, or of a copy with its engine."""
    return f"{kind[0].name} {kind[1]}".strip()


def refusal(kind) -> str:
    """Return what the cpu target suggests instead."""
    verbs = BULK_VERBS if kind[1] == "bulk" else (kind[0].name,)
    found = next(violation for violation in refused_by_cpu() if violation.message.split()[0] in verbs)
    assert found.nearest
    return f"refused; {found.nearest}"


def test_the_table_is_the_one_that_people_read(golden) -> None:
    width = max(len(name_of(kind)) for kind in KINDS)
    lines = [" " * width + "  " + "  ".join(EXECUTES)]
    for kind in KINDS:
        marks = (
            ("yes" if kind in kinds else refusal(kind)).ljust(len(name)) for name, kinds in EXECUTES.items()
        )
        lines.append(f"{name_of(kind):{width}}  {'  '.join(marks)}".rstrip())
    golden("\n".join(lines) + "\n", "coverage.txt")


def test_the_reference_executes_all_asynchronous_operations() -> None:
    a, b, maps, c = arguments()
    kernel = BOUND.trace(a, b, maps, c)
    assert set(ASYNC_OPS) <= {type(op) for op in kernel.walk()}
    assert BOUND(a, b, maps, c, target="reference").target == "reference"
    assert (c == (a.astype(np.float32) @ b.astype(np.float32).T).astype(ml_dtypes.bfloat16)).all()


def refused_by_cpu() -> list[Violation]:
    return [v for v in cpu.violations(BOUND.trace(*arguments()), "x86-64-v3") if v.rule == "target"]


def test_the_cpu_target_refuses_each_kind_once_with_what_to_write_instead(golden) -> None:
    with pytest.raises(LegalityError) as refused:
        BOUND(*arguments(), target="cpu")
    found = [violation for violation in refused.value.violations if violation.rule == "target"]
    assert {violation.message.split()[0] for violation in found} == {op.name for op in ASYNC_OPS} | {
        *BULK_VERBS
    }
    assert all("runs on cuda and reference" in violation.message for violation in found)
    golden(str(refused.value) + "\n", "refused_by_cpu.txt")
