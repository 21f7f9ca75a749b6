"""Successive multiply-adds with shared operands become one loop, which loads an operand once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir.copies import Copy
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import For, Mma, Op
from tilewright.ir.types import Memory
from tilewright.ops.complex_products import four_products
from tilewright.passes import expand_mma as passed
from tilewright.passes.expand_mma import expand_mma
from tilewright.passes.rewrite import Rewriter, rewrite_kernel
from tilewright.runtime.nvrtc import compile_text
from tilewright.targets import cuda
from tilewright.targets.atoms import MMA_TF32, fma
from tilewright.targets.reference import run
from tilewright.targets.reference.residues import PRIME, Residues

from .several_products import BARRIER, COMPLEX, traced
from .test_passes import sound

pytestmark = pytest.mark.in_turns(3)

FMA = tw.TiledMma(fma("f32"), (2, 2), tile=(32, 32))
M, N, K = 40, 24, 20
"""Two ragged tiles along M and one along N; three steps, of which the last one is half full."""


def loads(kernel: Kernel) -> list[str]:
    """Return the tensors in shared memory that are read into registers, in order."""
    copies = [op for op in kernel.walk() if isinstance(op, Copy) and op.source.is_tensor]
    shared = (op for op in copies if op.source.tensor.memory is Memory.SHARED and op.target.is_fragment)
    return [op.source.buffer.name for op in shared]


def loops(kernel: Kernel) -> list[int]:
    """Return the number of multiplies in each loop over atoms."""
    unrolled = (op for op in kernel.walk() if isinstance(op, For) and op.unroll)
    return [sum(isinstance(inner, Mma) for inner in op.body.ops) for op in unrolled]


@pytest.mark.parametrize(
    ("order", "multiplies", "loaded"),
    [
        (COMPLEX, [4], 4),
        (COMPLEX[:1], [1], 2),
        (COMPLEX[:2], [1, 1], 4),
        (COMPLEX[::2], [2], 3),
        ((COMPLEX[0], BARRIER, COMPLEX[2]), [1, 1], 4),
        (COMPLEX[:1] * 2, [2], 2),
    ],
    ids=["complex", "one", "nothing in common", "A in common", "a barrier between", "twice the same"],
)
def test_a_turn_loads_an_operand_once(order: Any, multiplies: list[int], loaded: int) -> None:
    expanded = expand_mma(traced(order, FMA))
    sound(expanded)
    assert loops(expanded) == multiplies
    assert len(loads(expanded)) == loaded


def test_tensor_cores_take_a_loop_for_each_product() -> None:
    """Tensor cores were measured with a loop for each product."""
    expanded = expand_mma(traced(COMPLEX, tw.TiledMma(MMA_TF32, (2, 2))))
    assert len(loads(expanded)) == 8
    assert max([0, *loops(expanded)]) <= 1


def computed(kernel: Kernel) -> list[Any]:
    """Return C and D of random integers modulo the prime: the order of sums does not matter."""
    rng = np.random.default_rng(11)
    shapes = {"A": (M, K), "A2": (M, K), "B": (N, K), "B2": (N, K), "C": (M, N), "D": (M, N)}
    held = {name: rng.integers(PRIME, size=shape, dtype=np.uint64) for name, shape in shapes.items()}
    report = run(kernel, held, numbers=Residues(), outputs=("C", "D"), whole=("C", "D"))
    report.raise_if_any()
    return [held["C"], held["D"]]


def same(one: Kernel, other: Kernel) -> bool:
    return all((x == y).all() for x, y in zip(computed(one), computed(other), strict=True))


def test_it_computes_what_was_computed_before() -> None:
    before = traced(COMPLEX, FMA)
    assert same(before, expand_mma(before))


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_product_of_another_operand_that_is_loaded_is_seen(at: int) -> None:
    before, seen = expand_mma(traced(COMPLEX, FMA)), []

    def change(op: Op, rewriter: Rewriter) -> Iterable[Op] | None:
        if not isinstance(op, Mma):
            return None
        seen.append(op)
        others = [one.b for one in seen[:-1] if one.b is not op.b]
        return (replace(op, b=others[0]),) if len(seen) == at + 1 else None

    assert not same(before, rewrite_kernel(before, change))
    assert len(seen) == len(COMPLEX)


def test_complex_numbers_take_fewer_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler's figures, for interleaved arrays under one schedule, with one loop and with several."""
    whole = np.empty((512, 512, 2), np.float32)
    words: dict[str, Any] = {"terms": frozenset(), "conjugates": (False,) * 3, "precision": "exact"}
    given = (*(whole[..., 0], whole[..., 1]) * 4, 1, 0, 0, 0)
    atom = tw.atoms.fma("f32", each=(4, 4), paired=True)
    schedule = tw.Schedule(atom, (32, 64, 16), warps=(2, 2), stages=3, staging="cp_async", group_m=8)
    bound = four_products(0, tw.f32).bind(**words, schedule=schedule)
    kernel = bound.trace(*given, target="cuda", arch="sm_90a")
    taken = {}
    for together in (True, False):
        if not together:
            monkeypatch.setattr(passed, "_runs", lambda block: ())
        text = cuda.emit(kernel, "sm_90a").text
        assert text.count("16 bytes at a time") == (4 if together else 8)
        resources = compile_text(text, "sm_90a").resources
        assert resources["spill_store_bytes"] == 0
        taken[together] = resources["registers"]
    assert taken[True] <= 0.6 * taken[False]


@tw.kernel(A="M K", B="N K", C="M N")
def stages_at_once(A, B, C, *, count):
    stages = [(tw.shared((64, 16), A.dtype), tw.shared((64, 16), B.dtype)) for _ in range(count)]
    acc = tw.accumulator(tw.TiledMma(fma("f32"), (2, 1), tile=(64, 64)))
    m, n = tw.block_index(tw.ceil_div(C.shape, (64, 64)))
    for k in tw.range(tw.ceil_div(A.shape[1], 16 * count)):
        for at, (a, b) in enumerate(stages):
            tw.copy(A.tile((64, 16), (m, k * count + at)), a)
            tw.copy(B.tile((64, 16), (n, k * count + at)), b)
        tw.barrier()
        for a, b in stages:
            tw.mma(a, b, acc)
        tw.barrier()
    tw.copy(acc, C.tile((64, 64), (m, n)))


def test_an_iteration_with_more_multiply_adds_than_a_block_may_unroll_is_not_unrolled() -> None:
    rng = np.random.default_rng(12)
    a, b = (rng.integers(-3, 4, (70, 192)).astype(np.float32) for _ in range(2))
    c = np.full((70, 70), np.nan, np.float32)
    bound = stages_at_once.bind(count=6)
    expanded = expand_mma(bound.trace(a, b, c, target="reference"))
    assert [
        op.unroll for op in expanded.walk() if isinstance(op, For) and op.index.name.startswith("k_step")
    ] == [1] * 6
    bound(a, b, c, target="reference")
    assert (c == a @ b.T).all()
