"""Chosen schedules are legal for every problem, and their tiles hold whole reduced dimensions."""

from __future__ import annotations

import random

import numpy as np
import pytest
from tests.eight_lines import product as gemm

import tilewright as tw
from tilewright.runtime.binding import spec_of
from tilewright.schedule.choice import choose
from tilewright.schedule.form import form_of
from tilewright.schedule.legality import check, with_fallback
from tilewright.schedule.question import Question, coarse, extents_of
from tilewright.targets.target import TARGETS

RESULT = {"f8e4m3": "bf16", "i8": "i32"}


@tw.kernel(A="M K", B="N K", C="M N", r="M")
def row_sums(A, B, C, r):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        C[m, n] = acc
        r[m] = acc.sum(axis=1)


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90a", "x86-64-v3", "numpy"])
@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16", "f8e4m3", "i8"])
def test_every_problem_gets_a_legal_schedule(arch: str, dtype: str) -> None:
    rng = random.Random(arch + dtype)
    owner = next(target for target in TARGETS.values() if arch in target.architectures)
    machine = owner.architecture(arch)
    for _ in range(60):
        m, n, k = (rng.choice((rng.randint(0, 300), rng.randint(1, 9000))) for _ in range(3))
        orders = [rng.choice("CF") for _ in range(3)]
        shapes = {"A": (m, k), "B": (n, k), "C": (m, n)}
        given = {
            name: tw.like(RESULT.get(dtype, dtype) if name == "C" else dtype, *shape, order=order)
            for (name, shape), order in zip(shapes.items(), orders, strict=True)
        }
        specs = {name: coarse(spec_of(one.info), machine) for name, one in given.items()}
        form = form_of(gemm.program.run(specs, {}, machine))
        chosen = choose(Question(form, specs, extents_of(form, shapes), machine, 132))
        check(with_fallback(chosen, form, specs, machine)[0], form, specs, machine)


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("columns", [1, 33, 100, 250])
def test_a_tile_holds_what_is_reduced(target: str, columns: int) -> None:
    rng = np.random.default_rng(columns)
    a, b = (rng.integers(-3, 4, (rows, 40)).astype(np.float32) for rows in (70, columns))
    c, r = np.full((70, columns), np.nan, np.float32), np.full(70, np.nan, np.float32)
    assert row_sums(a, b, c, r, target=target).target == target
    np.testing.assert_array_equal(c, a @ b.T)
    np.testing.assert_array_equal(r, (a @ b.T).sum(axis=1))


@pytest.mark.parametrize("columns", [60, 200])
def test_reductions_are_compiled_for_hopper(columns: int) -> None:
    x = tw.like("bf16", 512, 512)
    made = row_sums.compile(
        x, tw.like("bf16", columns, 512), tw.like("bf16", 512, columns), tw.like("f32", 512),
        target="cuda", arch="sm_90a",
    )  # fmt: skip
    assert "wgmma" in made.source


@pytest.mark.parametrize("shape", [(0, 64, 256), (64, 0, 256), (64, 64, 0), (0, 0, 0)])
def test_a_problem_of_nothing_gets_a_schedule(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    arrays = [np.zeros(extents, np.float16) for extents in ((m, k), (n, k), (m, n))]
    assert gemm.bind().compile(*arrays, target="cuda", arch="sm_90a").schedule.tile
