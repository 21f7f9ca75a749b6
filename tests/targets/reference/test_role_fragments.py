"""Fragments that are made before the roles that use them, or in another role."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import LegalityError
from tilewright.ir import verify
from tilewright.targets.reference import Kind, run

MMA = tw.TiledMma(tw.atoms.fma(tw.f32, each=(2, 2)), warps=(1, 1))
ROWS, COLUMNS = MMA.tile[:2]


def arrays():
    rng = np.random.default_rng(0)
    shapes = {"A": (ROWS, 8), "B": (COLUMNS, 8)}
    made = {name: rng.integers(-9, 9, shape).astype(np.float32) for name, shape in shapes.items()}
    return {**made, "C": np.full((ROWS, COLUMNS), np.nan, np.float32)}


def checked(function, **constants):
    made = arrays()
    kernel = tw.kernel(A="M K", B="N K", C="M N")(function).bind(**constants).trace(*made.values())
    assert not verify.violations(kernel)
    return run(kernel, made), made


def summed(A, B, C, *, idle, filled):
    """All warps make the accumulator of one warp; then a role adds up in it."""
    sA, sB = tw.shared(A.tile((ROWS, 8), (0, 0)).shape, A.dtype), tw.shared((COLUMNS, 8), B.dtype)
    tw.copy(A.tile((ROWS, 8), (0, 0)), sA, threads=(8, 4))
    tw.copy(B.tile((COLUMNS, 8), (0, 0)), sB, threads=(8, 4))
    acc = tw.accumulator(MMA, fill=3) if filled else tw.fragment(MMA.c(), tw.f32)
    tw.barrier()
    if idle:
        with tw.role(warps=idle):
            pass
    with tw.role(warps=1):
        tw.mma(sA, sB, acc, MMA)
        tw.copy(acc, C.tile((ROWS, COLUMNS), (0, 0)))


@pytest.mark.parametrize("idle", [0, 1, 3])
def test_an_accumulator_made_before_the_roles_is_there_in_each(idle) -> None:
    """All threads fill their registers; a role numbers its threads from 0."""
    report, made = checked(summed, idle=idle, filled=True)
    report.raise_if_any()
    assert (made["C"] == 3 + made["A"] @ made["B"].T).all()


@pytest.mark.parametrize("idle", [0, 1])
def test_what_nothing_filled_before_the_roles_is_unwritten_in_each(idle) -> None:
    report, _ = checked(summed, idle=idle, filled=False)
    assert {finding.kind for finding in report.findings} == {Kind.UNWRITTEN}


def loaded(A, B, C, *, by):
    """A fragment is made before the roles; the first or second role loads it, and the second uses it."""
    held = tw.fragment(MMA.c(), tw.f32)
    for role in tw.unroll(2):
        with tw.role(warps=1):
            if role == by:
                tw.copy(A.tile((ROWS, COLUMNS), (0, 0)), held)
            if role == 1:
                tw.copy(held, C.tile((ROWS, COLUMNS), (0, 0)))


def test_what_one_role_loads_is_unwritten_in_another() -> None:
    report, _ = checked(loaded, by=1)
    report.raise_if_any()
    report, _ = checked(loaded, by=0)
    assert [finding.kind for finding in report.findings] == [Kind.UNWRITTEN]


def test_a_fragment_that_belongs_to_another_role_is_refused_and_found() -> None:
    """The text would name a variable of another branch; the reference tells which value would be read."""

    def kept(A, B, C):
        held = []
        with tw.role(warps=1):
            held.append(tw.load(C.tile((ROWS, COLUMNS), (0, 0)), MMA.c()))
        with tw.role(warps=1):
            tw.copy(held[0], C.tile((ROWS, COLUMNS), (0, 0)))

    made = arrays()
    kernel = tw.kernel(A="M K", B="N K", C="M N")(kept)
    traced = kernel.trace(*made.values())
    assert [broken.rule for broken in verify.violations(traced)] == ["scope"]
    with pytest.raises(LegalityError, match="scope"):
        kernel(*made.values(), target="reference")
    assert Kind.UNWRITTEN in {finding.kind for finding in run(traced, made).findings}
