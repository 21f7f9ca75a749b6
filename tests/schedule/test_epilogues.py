"""Every kind of epilogue: values, layouts, dtypes, ragged shapes, and reductions, compared with f64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir.async_ops import Role
from tilewright.ir.copies import Copy
from tilewright.ir.kernel import Kernel
from tilewright.schedule.epilogue import staged
from tilewright.schedule.epilogue.staged import OverlappedEpilogue, StagedEpilogue, Storer

from .epilogues import (
    KINDS,
    ORACLE,
    TILES,
    WIDE,
    WITHOUT_ROLES,
    Bounded,
    Problem,
    assert_within,
    computed,
    product,
    random_tree,
    run,
)

pytestmark = pytest.mark.in_turns(3)

LEAVES = ("acc", "acc", "bias", "scale", "R", "S", "alpha")
DIMS = {"A": "M K", "B": "N K", "bias": "N", "scale": "M", "R": "M N", "S": "N M", "alpha": tw.f32}
SHAPES = ((136, 136, 72), (70, 61, 40), (130, 8, 136), (1, 144, 64), (128, 256, 16))


def kernel_of(first: Any, second: Any) -> Any:
    """Return a kernel of two values; the second is stored transposed."""

    @tw.kernel(**DIMS, C="M N", D="N M")
    def epilogue(A, B, bias, scale, R, S, alpha, C, D):
        for m, n in tw.tiles(C):
            acc = tw.zeros(dtype=tw.f32)
            for k in tw.steps(A.shape[1]):
                acc += A[m, k] @ B[n, k].T
            zero = acc * 0
            leaves = {
                "acc": acc,
                "bias": bias[n].to(tw.f32),
                "scale": scale[m, None].to(tw.f32),
                "R": R[m, n].to(tw.f32),
                "S": S[n, m].T.to(tw.f32),
                "alpha": alpha,
                "number": float,
            }
            C[m, n] = tw.minimum(tw.maximum(computed(first, leaves, TILES) + zero, -100), 100)
            D[n, m] = tw.minimum(tw.maximum(computed(second, leaves, TILES) + zero, -100), 100).T

    return epilogue


def assert_random_flow(kind: str, seed: int, target: str) -> None:
    """Check one random pair of values, on random arrays."""
    rng = np.random.default_rng([seed, *kind.encode()])
    problem = Problem(rng, SHAPES[rng.integers(len(SHAPES))], aligned=bool(rng.integers(2)))
    dtypes = (tw.f16, tw.f32, tw.bf16, tw.f8e4m3)
    chosen = [dtypes[i] for i in rng.integers(len(dtypes), size=2)]
    given = {
        name: problem.operand(dims, dtypes[rng.integers(3)], int(rng.integers(len(dims.split()))))
        for name, dims in DIMS.items()
        if name in ("bias", "scale", "R", "S")
    }
    a, b = (problem.operand(dims, aligned=True) for dims in ("M K", "N K"))
    alpha = float(np.float32(rng.standard_normal()))
    c = problem.output("M N", chosen[0], int(rng.integers(2)))
    d = problem.output("N M", chosen[1], int(rng.integers(2)))
    trees = [random_tree(rng, LEAVES, 4) for _ in range(2)]
    schedule = KINDS[kind]
    run(kernel_of(*trees), schedule, target, a, b, *given.values(), alpha, c, d)
    acc = product(a, b, schedule)
    wide = {name: array.astype(np.float64) for name, array in given.items()}
    leaves = {
        "acc": acc,
        "bias": Bounded(wide["bias"]),
        "scale": Bounded(wide["scale"][:, None]),
        "R": Bounded(wide["R"]),
        "S": Bounded(wide["S"].T),
        "alpha": Bounded(alpha),
        "number": Bounded,
    }
    for tree, made, dtype in zip(trees, (c, d.T), chosen, strict=True):
        want = computed(tree, leaves, ORACLE).rounded()
        assert_within(made, Bounded(np.clip(want.value, -100, 100) + np.zeros(c.shape), want.error), dtype)
    problem.assert_canaries()


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", KINDS)
def test_random_values(kind: str, seed: int) -> None:
    assert_random_flow(kind, seed, "reference")


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", WITHOUT_ROLES)
def test_random_values_on_the_cpu(kind: str, seed: int) -> None:
    assert_random_flow(kind, 100 + seed, "cpu")


# ---------------------------------------------------------------- lines, batches, scaling of what is there


@tw.kernel(A="B M K", W="N K", scale="B", bias="B N", R="B M N", C="B M N", u="B N", v="B M")
def batched(A, W, scale, bias, R, C, u, v):
    for b, m, n in tw.tiles(C):
        acc = tw.zeros(dtype=tw.f32)
        for k in tw.steps(A.shape[2]):
            acc += A[b, m, k] @ W[n, k].T
        C[b, m, n] = acc * scale[b] + bias[b, n] + R[b, m, n]
        u[b, n] = bias[b, n] * 2
        v[b, m] = scale[b]


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("kind", KINDS)
def test_batches_and_what_does_not_depend_on_sums(kind: str) -> None:
    problem = Problem(np.random.default_rng(5), (136, 72, 64), batch=3)
    a, w = problem.operand("B M K"), problem.operand("N K")
    scale, bias, r = (problem.operand(dims, tw.f32) for dims in ("B", "B N", "B M N"))
    c, u, v = problem.output("B M N", tw.f32), problem.output("B N", tw.f32), problem.output("B M", tw.f32)
    run(batched, KINDS[kind], "reference", a, w, scale, bias, r, c, u, v)
    for i in range(3):
        want = product(a[i], w, KINDS[kind]) * Bounded(np.float64(scale[i])) + Bounded(bias[i][None])
        assert_within(c[i], want + Bounded(r[i]), tw.f32)
    assert (u == bias * 2).all()
    assert (v == scale[:, None]).all()
    problem.assert_canaries()


@tw.kernel(A="M K", B="N K", bias="N", scale="M", alpha=tw.f32, C="M N", D="M N", E="N M", F="M N")
def repeated(A, B, bias, scale, alpha, C, D, E, F):
    for m, n in tw.tiles(C):
        acc = tw.zeros(dtype=tw.f32)
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        C[m, n] = acc
        D[m, n] = bias[n]
        E[n, m] = bias[n, None] - scale[m]
        F[m, n] = alpha


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("kind", KINDS)
def test_values_are_repeated_along_what_they_lack(kind: str) -> None:
    problem = Problem(np.random.default_rng(4), (136, 136, 32))
    a, b = problem.operand("M K"), problem.operand("N K")
    bias, scale = problem.operand("N", tw.f32), problem.operand("M", tw.f32)
    c, d, f = problem.output("M N"), problem.output("M N", tw.f32), problem.output("M N", tw.bf16)
    e = problem.output("N M", tw.f32)
    run(repeated, KINDS[kind], "reference", a, b, bias, scale, 0.25, c, d, e, f)
    assert_within(c, product(a, b, KINDS[kind]), tw.f16)
    assert (d == bias).all()
    assert (e == bias[:, None] - scale).all()
    assert (f == 0.25).all()
    problem.assert_canaries()


@tw.kernel(A="M K", B="N K", C="M N", beta=tw.f32)
def scaled(A, B, C, beta):
    for m, n in tw.tiles(C):
        acc = tw.zeros(dtype=tw.f32)
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        C[m, n] = tw.where(beta == 0, acc, acc + beta * C[m, n])


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("beta", [0.0, 0.75])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_there_counts_unless_beta_is_0(kind: str, beta: float) -> None:
    problem = Problem(np.random.default_rng(6), (136, 136, 40))
    a, b = problem.operand("M K"), problem.operand("N K")
    c = problem.output("M N")
    before = problem.rng.standard_normal(c.shape)
    c[...] = before if beta else np.nan
    before = c.astype(np.float64)
    run(scaled, KINDS[kind], "reference", a, b, c, beta)
    want = product(a, b, KINDS[kind])
    assert_within(c, want + Bounded(before) * Bounded(beta) if beta else want, tw.f16)
    problem.assert_canaries()


# ---------------------------------------------------------------- reductions


@tw.kernel(A="M K", B="N K", C="M N", r="M", c="N")
def softmax(A, B, C, r, c):
    for m, n in tw.tiles(C):
        acc = tw.zeros(dtype=tw.f32)
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        e = tw.exp(acc - acc.max(axis=1)[:, None])
        total = e.sum(axis=1)
        C[m, n] = e / total[:, None]
        r[m] = total
        c[n] = acc.min(axis=0)


REDUCING = [name for name, schedule in KINDS.items() if schedule.roles != "cooperative"]


def assert_softmax(schedule: tw.Schedule, target: str, shape: tuple[int, int, int]) -> None:
    """Check that rows and columns are reduced within their tile, without elements past the edge."""
    problem = Problem(np.random.default_rng(7), shape)
    a, b = problem.operand("M K"), problem.operand("N K")
    a *= np.float16(0.25)
    c, r, least = problem.output("M N", tw.f32), problem.output("M", tw.f32), problem.output("N", tw.f32)
    run(softmax, schedule, target, a, b, c, r, least)
    acc = product(a, b, schedule)
    e = np.exp(acc.value - acc.value.max(1, keepdims=True))
    # Errors of the exponents, of the exponential, of a sum of n terms, and of the quotient, to first order.
    relative = 2 * acc.error.max(1, keepdims=True) + (shape[1] + 8) * tw.f32.unit_roundoff
    relative = relative + 2 * np.abs(acc.value).max() * tw.f32.unit_roundoff
    total = e.sum(1, keepdims=True)
    assert_within(c, Bounded(e / total, 2 * relative * e / total), tw.f32)
    assert_within(r, Bounded(total[:, 0], (relative * total)[:, 0]), tw.f32)
    assert_within(least, Bounded(acc.value.min(0), acc.error.max(0)), tw.f32)
    problem.assert_canaries()


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("shape", [(50, 56, 72), (33, 64, 40), (64, 1, 16)])
@pytest.mark.parametrize("kind", REDUCING)
def test_reductions(kind: str, shape: tuple[int, int, int]) -> None:
    assert_softmax(KINDS[kind], "reference", shape)


@pytest.mark.parametrize("kind", WITHOUT_ROLES)
def test_reductions_on_the_cpu(kind: str) -> None:
    assert_softmax(KINDS[kind], "cpu", (50, 56, 72))


def test_a_tile_must_cover_what_is_reduced() -> None:
    problem = Problem(np.random.default_rng(8), (64, 65, 16))
    arrays = [problem.operand(dims) for dims in ("M K", "N K", "M N", "M", "N")]
    with pytest.raises(tw.LaunchError, match=r"max along n, whose extent is 65.*has 64.*a larger tile"):
        run(softmax, KINDS["direct"], "reference", *arrays)


def test_groups_that_share_rows_reduce_no_columns() -> None:
    problem = Problem(np.random.default_rng(8), (64, 64, 16))
    arrays = [problem.operand(dims) for dims in ("M K", "N K", "M N", "M", "N")]
    with pytest.raises(tw.TilewrightError, match=r"groups share the rows of a tile"):
        run(softmax, KINDS["staged, groups"], "reference", *arrays)


# ---------------------------------------------------------------- who moves what


def gelu_and_residual(A, B, bias, R, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros(dtype=tw.f32)
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        y = acc + bias[n]
        C[m, n] = 0.5 * y * (1 + tw.tanh(0.7978845608 * (y + 0.044715 * y * y * y))) + R[m, n]


def fresh() -> Any:
    """Return a new kernel without remembered launches."""
    return tw.kernel(A="M K", B="N K", bias="N", R="M N", C="M N")(gelu_and_residual)


residual = fresh()


def arrays_of(shape: tuple[int, int, int], along: int = 1, aligned: bool = True) -> list[Any]:
    """Return arrays of `residual`."""
    problem = Problem(np.random.default_rng(9), shape, aligned=aligned)
    given = [problem.operand("M K"), problem.operand("N K"), problem.operand("N")]
    return [*given, problem.operand("M N", along=along), problem.output("M N", along=along)]


def bulk_copies(kernel: Kernel) -> tuple[int, int]:
    """Return the number of bulk copies that load R, and of those that store C."""
    copies = [op for op in kernel.walk() if isinstance(op, Copy) and op.engine == "bulk"]
    return tuple(sum(op.ends[0].buffer.name == name for op in copies) for name in ("R", "C"))  # type: ignore[return-value]


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("kind", KINDS)
def test_no_kind_has_hazards(kind: str) -> None:
    arrays = arrays_of((136, 392, 40))
    schedule = KINDS[kind]
    report = residual.bind(schedule=schedule).check(*arrays)
    assert report.is_clean, str(report)


@pytest.mark.parametrize(
    ("kind", "along", "aligned", "counts"),
    [
        ("staged, groups", 1, True, (0, 1)),
        ("staged, groups", 0, True, (0, 2)),
        ("staged, groups", 1, False, (0, 0)),
        ("overlapped", 1, True, (2, 2)),
        ("overlapped", 0, True, (2, 2)),
    ],
)
def test_bulk_copies_where_they_can(kind: str, along: int, aligned: bool, counts: tuple[int, int]) -> None:
    arrays = arrays_of((192, 264, 64), along, True)
    if not aligned:
        arrays[3], arrays[4] = arrays_of((192, 264, 64), along, False)[3:]
    made = residual.bind(schedule=KINDS[kind])(*arrays, target="reference")
    assert bulk_copies(made.kernel) == counts
    roles = [op for op in made.kernel.walk() if isinstance(op, Role)]
    assert len(roles) == (4 if kind == "overlapped" else 3)


def test_an_overlapped_group_waits_for_no_store() -> None:
    """The role that multiplies contains no store, no wait for one, and no barrier."""
    made = residual.bind(schedule=KINDS["overlapped"])(*arrays_of((192, 264, 64)), target="reference")
    [multiplying] = [
        op for op in made.kernel.walk() if isinstance(op, Role) and (op.groups, op.count) == (2, 4)
    ]
    names = {op.name for op in multiplying.body.walk()}
    assert not names & {"bulk_wait", "bulk_commit", "role_barrier", "barrier"}
    assert not any(isinstance(op, Copy) and op.engine == "bulk" for op in multiplying.body.walk())


def test_buffers_meet_in_no_bank() -> None:
    arrays = arrays_of((128, 128, 32))
    for kind in ("staged, cp_async", "staged, groups"):
        report = residual.bind(schedule=KINDS[kind]).check(*arrays)
        held = [count for count in report.counters.banks if str(count.site).startswith("copy(")]
        assert held
        assert all(count.worst <= 1 for count in held), held


# ---------------------------------------------------------------- mutants


def test_a_buffer_written_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    wait = staged.bulk_wait
    monkeypatch.setattr(staged, "bulk_wait", lambda pending: wait(pending + 1))
    monkeypatch.setattr(StagedEpilogue, "drain", lambda self: wait(0))
    assert not fresh().bind(schedule=KINDS["staged, ping-pong"]).check(*arrays_of((200, 392, 40))).is_clean


@pytest.mark.parametrize("kind", ["staged, cp_async", "staged, groups"])
def test_a_missing_barrier_is_found(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(StagedEpilogue, "meet", lambda self, group: None)
    assert not fresh().bind(schedule=KINDS[kind]).check(*arrays_of((200, 392, 40))).is_clean


def test_a_buffer_given_back_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Storer.__init__

    def eager(self: Storer, epilogue: OverlappedEpilogue) -> None:
        made(self, epilogue)
        self.lag = 0

    monkeypatch.setattr(Storer, "__init__", eager)
    monkeypatch.setattr("tilewright.schedule.epilogue.staged.bulk_wait", lambda pending: None)
    assert not fresh().bind(schedule=KINDS["overlapped"]).check(*arrays_of((200, 392, 40))).is_clean


# ---------------------------------------------------------------- compiled


LARGE = replace(WIDE, atom=tw.atoms.wgmma("f16", 256), tile=(128, 256, 64), stages=4, blocks=132, group_m=8)


@pytest.mark.parametrize(
    "change",
    [
        {"epilogue": "direct"},
        {"epilogue": "staged"},
        {"epilogue": "overlapped"},
        {"epilogue": "overlapped", "stages": 3, "buffers": 4},
    ],
)
def test_gelu_with_bias_and_residual_spills_nothing(change: dict[str, Any]) -> None:
    spec = tw.TensorSpec(tw.f16, 2, 1, (16, 16), (16, 1), 16, False)
    line = tw.TensorSpec(tw.f16, 1, 0, (16,), (1,), 16, False)
    bound = residual.bind(schedule=replace(LARGE, **change))
    made = bound.compile(spec, spec, line, spec, spec, target="cuda", arch="sm_90a")
    assert made.resources["spill_store_bytes"] == made.resources["stack_bytes"] == 0
