"""The rules of memory, scopes and threads; all violations are reported at once."""

from __future__ import annotations

from dataclasses import replace

import tilewright as tw
from tilewright.errors import LegalityError
from tilewright.ir.ops import Block, Mma
from tilewright.ir.verify import violations
from tilewright.lang.program import Program

from .broken import found, said, spec

MMA = tw.TiledMma(tw.atoms.MMA_F16, warps=(2, 2), repeats=(4, 4))


def test_allocations_must_hold_their_layout() -> None:
    def author():
        tw.shared((8, 8), tw.f16, elems=63)
        tw.shared((8, 8), tw.f16, layout=tw.row_major((8, 8), 12), elems=92)
        tw.shared((8, 8), tw.f16, layout=tw.row_major((8, 8), 12), elems=91)

    assert said(author) == [
        (
            "shared allocation",
            "shared reaches 64 elements (the cosize of its layout) but allocates 63",
            "elems=64",
        ),
        (
            "shared allocation",
            "shared_2 reaches 92 elements (the cosize of its layout) but allocates 91",
            "elems=92",
        ),
    ]


def test_values_must_not_leave_their_loop_or_branch() -> None:
    def escaped(A, n):
        for k in tw.range(n):
            tile = A.tile((8, 8), (k, 0)).partition((8, 4))
            loaded = tw.load(tile)
        return tile, loaded, k

    def author(A, n):
        tile, loaded, k = escaped(A, n)
        loaded + 1.0
        tw.copy(tile, A.tile((8, 8), (k, 0)))

    rules = [(rule, message.split(" at ")[0]) for rule, message, _ in said(author)]
    where = "is used outside of the loop or branch that defines it"
    assert rules == [("scope", f"{name} {where}") for name in ("loaded", "k", "tile")]


def test_values_must_not_leave_one_way_of_a_branch() -> None:
    def author(A, n):
        made = []
        with tw.when(n > 3):
            made.append(tw.shared((8, 8), tw.f16))
        with tw.otherwise():
            made[0][0]

    [(rule, message, _)] = said(author)
    assert rule == "scope"
    assert message.startswith("shared is used outside of the loop or branch")


def test_values_of_another_kernel() -> None:
    kept = []

    def first(A):
        kept.append(A)
        kept.append(tw.shared((8, 8), A.dtype))

    def author(A):
        tw.copy(kept[0].tile((8, 8), (0, 0)), kept[1], threads=(8, 4))

    found(first)
    assert [message for _, message, _ in said(author)] == [
        "A is used, but belongs to another kernel",
        "shared is used, but belongs to another kernel",
    ]


def test_threads_must_fill_warps() -> None:
    def author(A):
        sA = tw.shared((24, 8), A.dtype)
        tw.copy(A.tile((24, 8), (0, 0)), sA, threads=(24, 2))

    assert said(author) == []  # 48 of 64 threads
    kernel = Program(author).trace({"A": spec()})
    [broken] = violations(replace(kernel, threads=48))
    assert (broken.message, broken.nearest) == ("48 threads are not a multiple of 32 lanes", "64 threads")


def test_a_rewritten_kernel_is_verified_again() -> None:
    def author():
        sA, sB = tw.shared((128, 32), tw.f16), tw.shared((64, 32), tw.f16)
        tw.mma(sA, sB, tw.accumulator(MMA))

    kernel = Program(author).trace({})
    changed = [replace(op, a=op.b) if isinstance(op, Mma) else op for op in kernel.body.ops]
    [violation] = violations(replace(kernel, body=Block(tuple(changed))))
    assert violation.rule == "mma shape"
    assert violation.location == kernel.body.ops[-1].location


def test_all_violations_are_reported_at_once() -> None:
    def author(A):
        sA = tw.shared((64, 32), A.dtype, elems=1)
        tw.copy(A.tile((32, 32), (0, 0)), sA, threads=(8, 4))
        tw.copy(A.tile((64, 32), (0, 0)), sA, threads=(7, 4))
        tw.mma(sA, sA, tw.accumulator(MMA))

    rules = found(author)
    assert [v.rule for v in rules] == [
        *("threads x slice = tile", "shared allocation", "shape", "mma shape"),
    ]
    error = LegalityError("author", "cpu", rules)
    assert str(error).startswith("kernel author is not legal for cpu: 4 violations\n\n")
    assert all(violation.location is not None for violation in rules)
    assert str(error).count("^^^") >= 4
