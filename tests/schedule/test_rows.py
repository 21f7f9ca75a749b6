"""A reduction of whole rows becomes a loop that carries a state, on every target."""

from __future__ import annotations

import inspect
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.dataflow.nodes import Folded, Literal
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.gpu_memory import DeviceArray
from tilewright.schedule.folds.block import FoldBlock
from tilewright.schedule.folds.form import fold_form_of
from tilewright.schedule.folds.masks import Trials, masks_of
from tilewright.schedule.folds.rows import RowLoops, in_loops, with_rows
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import CUDA
from tilewright.testing import compare_algebra

from . import folding, whole_rows
from .folding import scores, strided
from .test_folds import COMPILED, GROUPS, MMA, SCHEDULES, run
from .test_parts import ALGEBRA, LIKE
from .test_parts import weighted as by_hand
from .whole_rows import cases, of_rows

NAMES = [name for name, _ in cases(0)]


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("name", NAMES)
def test_random_problems_under_chosen_schedules(name: str, target: str) -> None:
    for seed, ragged in ((1, True), (2, False)):
        run(dict(cases(seed, ragged=ragged))[name], target)


@pytest.mark.parametrize("name", NAMES)
def test_the_row_and_its_loop_have_one_meaning(name: str) -> None:
    """The values of the whole row, and of the loop with steps of any length, are within the bound."""
    case = dict(cases(3))[name]
    flow = case.kernel.flow(**case.arguments())
    loop = in_loops(flow)
    assert any(isinstance(node, Folded) for node in loop.walk())
    assert not any(isinstance(node, Folded) for node in flow.walk())
    arrays = {key: one for key, one in case.given.items() if isinstance(one, np.ndarray)}
    numbers = {key: one for key, one in case.given.items() if key not in arrays}
    with np.errstate(all="ignore"):
        assert case.wrong(tw.ir.evaluate(flow, arrays, numbers)) == []
        for length in (1, 40, None):
            assert case.wrong(tw.ir.evaluate(loop, arrays, numbers, run=length)) == []
    is_passed = any(span.kind == "steps" for store in loop.stores for span in store.at)
    for one in (flow,) if is_passed else (flow, loop):  # no author stores a step
        assert tw.ir.parse_flow(tw.ir.print_flow(one)) == one


def test_steps_that_a_mask_hides_are_left_out() -> None:
    case = dict(cases(3))["causal"]
    form = fold_form_of(case.kernel.flow(**case.arguments()))
    [mask] = masks_of(form)
    assert Trials(form).leaves_state(mask)


@pytest.mark.parametrize("way", SCHEDULES)
def test_attention_under_every_form_of_schedule(way: str) -> None:
    schedule = SCHEDULES[way]
    kind = "f4" if schedule.atom.instruction == "fma" else "f2"
    case = dict(cases(4))[f"attention, {kind}, 24, 40"]
    kernel = case.kernel.bind(schedule=schedule)
    run(case, "reference", kernel)
    if not schedule.by_bulk:
        run(case, "cpu", kernel)


@pytest.mark.parametrize("name", ["attention, f2, 24, 40", "cross entropy, f2, K = 24", "moments"])
@pytest.mark.parametrize("parts", [2, 5])
def test_the_loop_of_a_row_is_split(name: str, parts: int) -> None:
    case = dict(cases(5))[name]
    known = case.kernel.bind().schedule_for(**case.arguments(), target="reference")
    step = max(known.atom.shape[1], 16)
    small = replace(known, tile=(known.tile[0], step, known.tile[2]), split_k=parts, blocks=0)
    run(case, "reference", case.kernel.bind(schedule=small))


PASSED = [
    "attention, f2, 24, 40",
    "attention, f4, 24, 40",
    "causal",
    "gradient of cross entropy",
]


def loops_of(kernel: Any, *arrays: Any) -> int:
    """Return the number of loops along whole rows in the online form."""
    flow = in_loops(kernel.flow(*arrays))
    return len({id(node.fold) for node in flow.walk() if isinstance(node, Folded)})


def in_two(kernel: Any, schedule: Any = None, **arguments: Any) -> Any:
    """Return the kernel with two passes under a schedule, or under the chosen one."""
    known = schedule or kernel.bind().schedule_for(**arguments, target="reference")
    return kernel.bind(schedule=replace(known, fold="two passes"))


@pytest.mark.parametrize("name", PASSED)
def test_two_passes(name: str) -> None:
    for seed, ragged in ((15, True), (16, False)):
        case = dict(cases(seed, ragged=ragged))[name]
        kernel = in_two(case.kernel, **case.arguments())
        for target in ("reference", "cpu"):
            run(case, target, kernel)
    loops = in_loops(case.kernel.flow(**case.arguments()), "two passes")
    assert len({id(node.fold) for node in loops.walk() if isinstance(node, Folded)}) == 2


@pytest.mark.parametrize("way", [way for way, one in SCHEDULES.items() if not one.by_bulk])
def test_two_passes_under_every_form_of_schedule(way: str) -> None:
    schedule = SCHEDULES[way]
    kind = "f4" if schedule.atom.instruction == "fma" else "f2"
    case = dict(cases(17))[f"attention, {kind}, 24, 40"]
    for target in ("reference", "cpu"):
        run(case, target, in_two(case.kernel, schedule))


@pytest.mark.parametrize(("target", "arch"), COMPILED)
def test_gpus_compile_two_passes(target: str, arch: str) -> None:
    case = dict(cases(18))["attention, f2, 64, 64"]
    older = "sm_80" if arch == "sm_90a" else arch  # warpgroups have one loop
    known = case.kernel.bind().schedule_for(**case.arguments(), target=target, arch=older)
    made = in_two(case.kernel, known).compile(**case.arguments(), target=target, arch=arch)
    used = made.resources
    assert used.get("spill_store_bytes", 0) + used.get("spilled_registers", 0) <= 8


@tw.kernel(Q="M D", K="N D", V="N E", O="M E", L="M", scale=tw.f32)
def weighted(Q, K, V, O, L, scale):
    """Return averages weighted by powers, and their scaled total."""
    for m, e in tw.tiles(O):
        s = Q[m] @ K.T
        top = tw.maximum(s.max(axis=1), -3e38)
        p = tw.exp2((s - top[:, None]) * 0.25)  # a number of unknown sign would take a loop more
        total = p.sum(axis=1)
        O[m, e] = (p * (1.0 / total)[:, None]).to(V.dtype) @ V[:, e]
        L[m] = total * tw.exp2(top * scale)


def test_online_and_two_passes_are_equal_over_pairs_of_residues() -> None:
    """They also equal the hand-written loop of `test_parts`; an inverted rescale differs."""
    one = weighted.bind(schedule=ALGEBRA)
    two = weighted.bind(schedule=replace(ALGEBRA, fold="two passes"))
    steps = weighted.bind(schedule=replace(ALGEBRA, tile=(32, 32, 16)))
    for first, second in ((one, two), (one, steps), (one, by_hand.bind(schedule=ALGEBRA))):
        compare_algebra(first, second, *LIKE, scale=0.25, exponentials=True).raise_if_wrong()


def test_mutants_of_the_rescale_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    keep = RowLoops._keep

    def inverted(self: RowLoops, function: str, exponents: Any, node: Any) -> Any:
        turned = tuple((key, (-number, names)) for key, (number, names) in exponents)
        return keep(self, function, turned, node)

    def left_out(self: RowLoops, function: str, exponents: Any, node: Any) -> Any:
        return Literal(node.dtype, (), 1.0)

    hand = by_hand.bind(schedule=ALGEBRA)
    for mutant in (inverted, left_out):
        monkeypatch.setattr(RowLoops, "_keep", mutant)
        other = weighted.bind(schedule=ALGEBRA)
        other.forget()
        assert not compare_algebra(hand, other, *LIKE, scale=0.25, exponentials=True).ok
        other.forget()


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("size", [1.0, 1e6, 1e-9])
@pytest.mark.parametrize("kind", ["f2", "f4"])
def test_a_factor_follows_the_loop_only_if_the_narrow_operand_has_the_range(
    kind: str, size: float, target: str
) -> None:
    """Without the division, f32 values might overflow when they are converted to f16."""

    @tw.kernel(X="M K", W="K N", Y="M N")
    def linear_of_norm(X, W, Y):
        for m, n in tw.tiles(Y):
            x = X[m].to(tw.f32)
            inverse = tw.rsqrt((x * x).sum(axis=1) / X.shape[1])
            Y[m, n] = (x * inverse[:, None]).to(W.dtype) @ W[:, n]

    rng = np.random.default_rng(31)
    x = (rng.standard_normal((5, 300)) * (size if kind == "f4" else 1)).astype(kind)
    w, y = rng.standard_normal((300, 7)).astype(np.float16), np.full((5, 7), np.nan, np.float32)
    assert loops_of(linear_of_norm, x, w, y) == (1 if kind == "f2" else 2)
    assert linear_of_norm(x, w, y, target=target).target == target
    wide = x.astype(np.float64)
    units = wide / np.sqrt((wide**2).mean(axis=1))[:, None]
    room = 2.0**-10 * np.abs(units) @ np.abs(w.astype(np.float64)) + 1e-4
    assert (np.abs(y - units @ w.astype(np.float64)) <= room).all()


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("form", ["no extreme", "an extreme of more", "a guard", "a negative factor"])
def test_weights_that_do_not_reach_1_are_divided_before_they_are_narrow(form: str, target: str) -> None:
    @tw.kernel(Q="M D", K="N D", V="N E", O="M E")
    def averages(Q, K, V, O):
        for m, e in tw.tiles(O):
            s = Q[m] @ K.T
            if form == "no extreme":
                p = tw.exp(s)
            elif form == "an extreme of more":
                p = tw.where(tw.positions(s) == 150, 0.0, tw.exp(s - s.max(axis=1)[:, None]))
            elif form == "a guard":
                p = tw.exp(s - 45.0 - tw.maximum((s - 45.0).max(axis=1), 0.0)[:, None])
            else:
                p = tw.exp((s - s.max(axis=1)[:, None]) * -1.0)
            total = p.sum(axis=1)
            O[m, e] = (p / total[:, None]).to(V.dtype) @ V[:, e]

    rng = np.random.default_rng(32)
    q, k, v = (rng.standard_normal(shape).astype(np.float16) for shape in ((5, 16), (200, 16), (200, 8)))
    if form == "an extreme of more":
        q, k = np.abs(2 * q), (0.3 * k).astype(np.float16)
        k[150] = 1.25
    elif form != "a negative factor":
        q = (2 * q).astype(np.float16)
    s = q.astype(np.float64) @ k.astype(np.float64).T
    p = np.exp((s - s.max(axis=1)[:, None]) if form != "a negative factor" else s.min(axis=1)[:, None] - s)
    if form == "an extreme of more":
        p[:, 150] = 0
    p /= p.sum(axis=1)[:, None]
    out = np.full((5, 8), np.nan, np.float32)
    assert loops_of(averages, q, k, v, out) >= 2
    assert averages(q, k, v, out, target=target).target == target
    assert (np.abs(out - p @ v.astype(np.float64)) <= 4e-3 * (p @ np.abs(v.astype(np.float64)) + 0.01)).all()


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_powers_of_an_extreme_of_other_values_wait_for_the_whole_row(target: str) -> None:
    """With the maximum of the steps so far they may overflow."""

    @tw.kernel(S="M N", T="M N", total="M")
    def relative(S, T, total):
        for m in tw.tiles(total):
            total[m] = tw.exp(T[m] - S[m].max(axis=1)[:, None]).sum(axis=1)

    rng = np.random.default_rng(33)
    s, t = np.zeros((3, 300), np.float32), rng.standard_normal((3, 300)).astype(np.float32)
    s[:, 290], t[:, 5] = 100, 95
    total = np.full(3, np.nan, np.float32)
    assert relative(s, t, total, target=target).target == target
    assert np.allclose(total, np.exp(t.astype(np.float64) - 100).sum(axis=1), rtol=1e-5)


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_an_infinite_maximum_that_is_replaced(target: str) -> None:
    """Terms of a row with the maximum +inf are not 0, unlike those of a row with the maximum -inf."""

    @tw.kernel(X="M N", total="M")
    def finite_total(X, total):
        for m in tw.tiles(total):
            x = X[m]
            top = x.max(axis=1)
            base = tw.where(top == math.inf, 0.0, top)
            p = tw.where(x == math.inf, 0.0, tw.exp(x - base[:, None]))
            total[m] = tw.log(p.sum(axis=1)) + base

    x = np.random.default_rng(34).standard_normal((3, 2000)).astype(np.float32)
    x[:, 1500] = math.inf
    total = np.full(3, np.nan, np.float32)
    assert finite_total(x, total, target=target).target == target
    x[:, 1500] = -math.inf
    assert np.allclose(total, np.log(np.exp(x.astype(np.float64)).sum(axis=1)), rtol=1e-5)


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_a_factor_of_a_narrower_dtype_than_the_sum(target: str) -> None:
    @tw.kernel(X="M N", W="N E", Y="M E")
    def relative(X, W, Y):
        for m, e in tw.tiles(Y):
            Y[m, e] = (X[m] / X[m].max(axis=1)[:, None]) @ W[:, e]

    rng = np.random.default_rng(35)
    x, w = rng.uniform(1, 2, (5, 100)).astype(np.float16), rng.standard_normal((100, 6)).astype(np.float16)
    y = np.full((5, 6), np.nan, np.float32)
    assert relative(x, w, y, target=target).target == target
    wide, matrix = x.astype(np.float64), w.astype(np.float64)
    units = wide / wide.max(axis=1)[:, None]
    assert (np.abs(y - units @ matrix) <= 2.0**-10 * units @ np.abs(matrix)).all()


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("kind", ["f2", "f8"])
def test_extremes_of_another_dtype_than_the_sum(kind: str, target: str) -> None:
    """Powers in f16 would round the sum in every step, so the maximum has its own loop."""

    @tw.kernel(X="M N", W="N E", Y="M E")
    def averages(X, W, Y):
        for m, e in tw.tiles(Y):
            Y[m, e] = tw.exp(X[m] - X[m].max(axis=1)[:, None]).to(W.dtype) @ W[:, e]

    rng = np.random.default_rng(37)
    narrow = "f2" if kind == "f2" else "f4"
    x, w = rng.standard_normal((5, 200)).astype(kind), rng.standard_normal((200, 6)).astype(narrow)
    y = np.full((5, 6), np.nan, np.float32)
    assert loops_of(averages, x, w, y) == (2 if kind == "f2" else 1)
    assert averages(x, w, y, target=target).target == target
    wide = x.astype(np.float64)
    p = np.exp(wide - wide.max(axis=1)[:, None])
    u = 2.0**-9 if kind == "f2" else 2.0**-18
    assert (np.abs(y - p @ w.astype(np.float64)) <= u * p @ np.abs(w.astype(np.float64))).all()


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_large_queries_of_f32_are_multiplied_by_a_small_number_first(target: str) -> None:
    @tw.kernel(Q="M D", K="N D", V="N E", O="M E", scale=tw.f32)
    def attention(Q, K, V, O, scale):
        for m, e in tw.tiles(O):
            O[m, e] = tw.softmax(scale * Q[m] @ K.T) @ V[:, e]

    rng = np.random.default_rng(36)
    q, k, v = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, 4), (70, 4), (70, 5)))
    out, scale = np.full((3, 5), np.nan, np.float32), float(np.float32(1e-38))
    large = np.float32(1e20)
    assert attention(large * q, k * large, v, out, scale, target=target).target == target
    right = tw.testing.softmax_attention(q, k, v, 100.0)
    assert np.abs(out - right).max() < 1e-3


@pytest.mark.parametrize("way", [way for way, one in SCHEDULES.items() if not one.by_bulk])
def test_a_second_pass_under_every_form_of_schedule(way: str) -> None:
    schedule = replace(SCHEDULES[way], width=0)
    name = "softmax, f4, K = 40" if schedule.atom.instruction == "fma" else "softmax, f2, K = 24"
    case = dict(cases(12))[name]
    for target in ("reference", "cpu"):
        run(case, target, case.kernel.bind(schedule=schedule))


IN_PARTS = replace(
    GROUPS,
    atom=tw.atoms.wgmma("f16", 128),
    tile=(128, 128, 64),
    width=0,
    resident=False,
    epilogue="direct",
    stages=3,
    blocks=2,
)
"""Warpgroups whose scores are sums of several tiles."""


@pytest.mark.parametrize("by_column", [False, True])
@pytest.mark.parametrize(("M", "K", "N"), [(200, 136, 320), (70, 64, 72), (300, 200, 136), (5, 8, 600)])
def test_rows_without_mixtures_by_warpgroups(M: int, K: int, N: int, by_column: bool) -> None:
    """A loop for maximum and total, and a second pass; the rows have 0, 1 and several tiles."""
    x, w, s, off = scores(np.random.default_rng(N), M, K, N, "f2")
    w = np.asfortranarray(w) if by_column else w
    case = of_rows(whole_rows.softmax, {"X": x, "W": w}, s, off, "f2")
    one_group = replace(
        IN_PARTS, atom=tw.atoms.wgmma("f16", 64), tile=(64, 64, 64), groups=1, stages=2, blocks=0
    )
    for schedule in (IN_PARTS, replace(IN_PARTS, epilogue="staged"), replace(one_group, epilogue="staged")):
        kernel = case.kernel.bind(schedule=schedule)
        run(case, "reference", kernel)
    assert not kernel.check(**case.arguments(), outputs=("Y",)).findings


def test_losses_and_biases_by_warpgroups() -> None:
    """Results of rows alone, arrays along the loop, and several results of both passes."""
    for name in ("logarithms", "gradient of scores"):
        case = dict(cases(14, ragged=False))[name]
        run(case, "reference", case.kernel.bind(schedule=IN_PARTS))
    rng = np.random.default_rng(15)
    x, w, s, off = scores(rng, 150, 72, 264, "f2")
    words, loss = rng.integers(0, 264, 150).astype(np.int32), np.full(150, np.nan, np.float32)
    kernel = folding.cross_entropy.bind(schedule=IN_PARTS)
    assert kernel(x, w, words, loss, target="reference").schedule == IN_PARTS
    right = np.logaddexp.reduce(s, axis=1) - s[np.arange(150), words]
    assert (np.abs(loss - right) <= 2 * off + 1e-5 * (np.abs(s).max(axis=1) + 1)).all()


@pytest.mark.parametrize("shape", [(2048, 1024, 2048), (20000, 1024, 16384)])
def test_rows_without_mixtures_have_warpgroups(shape: tuple[int, int, int]) -> None:
    """No product is serialized, and nothing spills."""
    M, K, N = shape
    x, w = tw.like("bf16", (M, K)), tw.like("bf16", (K, N))
    calls: list[Any] = [
        (whole_rows.softmax, (x, w, tw.like("bf16", (M, N)))),
        (folding.cross_entropy, (x, w, tw.like("i32", (M,)), tw.like("f32", (M,)))),
    ]
    for kernel, arrays in calls:
        made = kernel.compile(*arrays, target="cuda", arch="sm_90a")
        assert made.schedule is not None
        assert (made.schedule.staging, made.schedule.resident) == ("tma", False)
        assert made.schedule.groups == 2
        assert (made.schedule.split_k == "auto") == (M < 10000 or kernel is whole_rows.softmax)
        assert not made.resources.get("serialized_wgmma", 0)
        assert not made.resources["spill_store_bytes"]


@pytest.mark.parametrize("N", [1024, 1500])
def test_long_rows(N: int) -> None:
    """No tile covers the rows."""
    rng = np.random.default_rng(N)
    x, w, s, off = scores(rng, 40, 64, N, "f2")
    case = of_rows(whole_rows.softmax, {"X": x, "W": w}, s, off, "f2")
    run(case, "cpu")
    for target, arch in COMPILED:
        made = case.kernel.compile(**case.arguments(), target=target, arch=arch)
        assert made.resources.get("spill_store_bytes", 0) <= 16


@tw.kernel(X="M K", W="K N", Y="M N")
def covered(X, W, Y):
    for m, n in tw.tiles(Y):
        acc = tw.zeros(dtype=tw.f32)
        for k in tw.steps(X.shape[1]):
            acc += X[m, k] @ W[k, n]
        Y[m, n] = tw.softmax(acc, axis=1)


@pytest.mark.parametrize(("N", "in_loops"), [(256, False), (1024, True), (3000, True)])
def test_reductions_along_columns_that_no_tile_covers_become_loops(N: int, in_loops: bool) -> None:
    x, w, y = tw.like("f16", 512, 256), tw.like("f16", 256, N), tw.like("f16", 512, N)
    made = covered.compile(x, w, y, target=CUDA.name, arch="sm_90a")
    assert made.flow is not None
    assert any(span.name == "n_row" for one in made.flow.sums for span in one.axes if span) == in_loops
    schedule = Schedule(tw.atoms.MMA_F16, (64, N, 64), (2, 2))
    if in_loops:
        with pytest.raises(tw.ScheduleError, match="registers per thread"):
            covered.bind(schedule=schedule).compile(x, w, y, target=CUDA.name, arch="sm_90a")


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_rows_of_any_length_by_one_kernel(target: str) -> None:
    """Short rows have one tile; the largest tile of a processor has 2048 columns."""
    for N in (40, 3000, 40):
        x, w, s, off = scores(np.random.default_rng(N), 9, 8, N, "f4")
        run(of_rows(covered, {"X": x, "W": w}, s, off, "f4"), target)


@pytest.mark.gpu
def test_columns_that_no_tile_covers_on_a_gpu() -> None:
    x, w, s, off = scores(np.random.default_rng(20), 70, 64, 1500, "f2")
    case = of_rows(covered, {"X": x, "W": w}, s, off, "f2")
    given = case.arguments(DeviceArray.of)
    assert covered(**given).target == CUDA.name
    CUDA_DRIVER.synchronize()
    assert case.wrong({"Y": given["Y"].host()}) == []


def test_reductions_with_rows_have_the_same_meaning() -> None:
    x, w, s, off = scores(np.random.default_rng(21), 37, 24, 94, "f2")
    case = of_rows(covered, {"X": x, "W": w}, s, off, "f2")
    flow = covered.flow(**case.arguments())
    rows = with_rows(flow)
    assert with_rows(rows) is rows
    for one in (flow, rows, in_loops(rows)):
        assert case.wrong(tw.ir.evaluate(one, case.given, {}, run=16)) == []


def test_a_second_pass_is_not_split() -> None:
    case = dict(cases(13))["softmax, f2, K = 24"]
    kernel = case.kernel.bind(schedule=replace(MMA, width=0, split_k=2))
    with pytest.raises(tw.ScheduleError, match=r"(?s)Y is stored along n_1 in a second pass.*split_k=1"):
        kernel(**case.arguments(), target="reference")


def test_strides_and_poisoned_gaps() -> None:
    case = dict(cases(6))["attention, f2, 24, 40"]
    odd = {key: strided(one, 3) for key, one in case.given.items() if np.ndim(one) > 1}
    odd |= {key: strided(one, 5) for key, one in case.results.items()}
    for target in ("reference", "cpu"):
        run(case, target, **odd)
        assert odd["O"].base is not None
        assert not odd["O"].base[:, 40:].any(), "between the rows nothing is written"


def test_attention_has_at_most_six_lines() -> None:
    for kernel in (whole_rows.attention, whole_rows.attention_of_rows):
        source = inspect.getsource(kernel.program.function)
        assert len(source.splitlines()) <= 6


def test_a_product_of_whole_rows_is_the_product_in_steps() -> None:
    @tw.kernel(A="M K", B="N K", C="M N")
    def short(A, B, C):
        for m, n in tw.tiles(C):
            C[m, n] = A[m] @ B[n].T

    @tw.kernel(A="M K", B="N K", C="M N")
    def shortest(A, B, C):
        for m, n in tw.tiles(C):
            C[m, n] = A[m] @ B.T

    rng = np.random.default_rng(7)
    a, b = (rng.integers(-4, 5, (rows, 30)).astype(np.float16) for rows in (21, 45))
    for kernel in (short, shortest):
        for target in ("reference", "cpu"):
            c = np.full((21, 45), np.nan, np.float32)
            assert kernel(a, b, c, target=target).target == target
            assert (c == a.astype(np.float64) @ b.astype(np.float64).T).all()


def test_a_loop_over_steps_takes_whole_depths() -> None:
    @tw.kernel(Q="M D", K="N D", V="N E", O="M E")
    def attention(Q, K, V, O):
        for m, e in tw.tiles(O):
            top, total, out = tw.full((m,), -1e38, tw.f32), tw.zeros((m,), tw.f32), tw.zeros((m, e), tw.f32)
            for n in tw.steps(K.shape[0]):
                s = Q[m] @ K[n].T
                new = tw.maximum(top, s.max(axis=1))
                p, keep = tw.exp(s - new[:, None]), tw.exp(top - new)
                total.assign(total * keep + p.sum(axis=1))
                out.assign(out * keep[:, None] + p.to(V.dtype) @ V[n, e])
                top.assign(new)
            O[m, e] = out / total[:, None]

    rng = np.random.default_rng(8)
    q, k, v = (rng.standard_normal(shape).astype(np.float16) for shape in ((37, 24), (94, 24), (94, 40)))
    right = tw.testing.softmax_attention(q, k, v, 1.0)
    for target in ("reference", "cpu"):
        out = np.full((37, 40), np.nan, np.float16)
        assert attention(q, k, v, out, target=target).target == target
        assert np.abs(out - right).max() < 1e-2


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_rows_without_a_finite_score(target: str) -> None:
    """The stored extreme of such a row is -inf."""

    @tw.kernel(X="M N", best="M", total="M")
    def extremes(X, best, total):
        for m in tw.tiles(best):
            x = X[m]
            top = x.max(axis=1)
            best[m] = top
            total[m] = tw.exp(x - tw.maximum(top, -1e30)[:, None]).sum(axis=1)

    x = np.full((4, 90), -np.inf, np.float32)
    x[1, 70], x[2, 0] = 3, -1e38
    best, total = np.full(4, np.nan, np.float32), np.full(4, np.nan, np.float32)
    assert extremes(x, best, total, target=target).target == target
    assert best.tolist() == x.max(axis=1).tolist()
    assert total.tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize(("target", "arch"), COMPILED)
def test_gpus_compile_the_cases_without_spills(target: str, arch: str) -> None:
    first = COMPILED.index((target, arch)) % 2
    for number, (name, case) in enumerate(cases(9)):
        by_groups = arch == "sm_90a" and name.startswith(("attention, f2", "causal"))
        if "300" in name or (arch == "gfx1100" and name == "softmax, f4, K = 40"):
            continue  # clang spills the unrolled products of the second pass there
        if (first + number) % 2 and not by_groups:
            continue  # the other machine of the vendor compiles it
        made = case.kernel.compile(**case.arguments(), target=target, arch=arch)
        used = made.resources
        spilled = used.get("spill_store_bytes", 0) + used.get("spilled_registers", 0)
        assert spilled <= 8, (name, used)
        if by_groups:
            assert made.schedule is not None
            assert made.schedule.staging == "tma", "warpgroups compute it"
            assert not used.get("serialized_wgmma", 0)


def test_the_checker_has_no_findings() -> None:
    case = dict(cases(10))["attention, f2, 24, 40"]
    for schedule in (MMA, replace(MMA, staging="cp_async", stages=2), GROUPS):
        kernel = case.kernel.bind(schedule=schedule)
        assert not kernel.check(**case.arguments(), outputs=("O",)).findings
    case = dict(cases(10))["softmax, f2, K = 24"]
    for way in ("direct", "two stages", "depth in parts, two stages"):
        kernel = case.kernel.bind(schedule=replace(SCHEDULES[way], width=0))
        assert not kernel.check(**case.arguments(), outputs=("Y",)).findings


def test_the_checker_finds_a_second_pass_that_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last of 6 steps reads the second of 4 stages, which the second pass fills at once."""
    case = dict(cases(14))["softmax, f2, K = 24"]
    kernel = case.kernel.bind(schedule=replace(MMA, width=0, staging="cp_async", stages=4))
    assert not kernel.check(**case.arguments(), outputs=("Y",)).findings
    kernel.forget()
    monkeypatch.setattr(FoldBlock, "empty_rings", lambda self: None)
    assert kernel.check(**case.arguments(), outputs=("Y",)).findings
    kernel.forget()


# ---------------------------------------------------------------- refusals


def refused(kernel: Any, why: str, *arrays: Any) -> None:
    with pytest.raises(tw.TraceError, match=f"(?s){why}.*nearest legal choice: ") as caught:
        kernel(*arrays, target="reference")
    assert "test_rows.py" in str(caught.value)


def test_what_one_loop_does_not_compute() -> None:
    x, y = np.zeros((8, 8), np.float32), np.zeros(8, np.float32)

    @tw.kernel(X="M N", Y="M K", y="M")
    def two_rows(X, Y, y):
        for m in tw.tiles(y):
            y[m] = X[m].sum(axis=1) + Y[m].sum(axis=1)

    refused(two_rows, "the whole rows n and k are reduced", x, np.zeros((8, 5), np.float32), y)


def test_misuse_is_refused_with_the_nearest_choice() -> None:
    x, y = np.zeros((8, 5), np.float32), np.zeros((8, 5), np.float32)

    @tw.kernel(X="M N", Y="M N")
    def of_integers(X, Y):
        for m, n in tw.tiles(Y):
            Y[m, n] = tw.softmax(tw.positions(n))

    @tw.kernel(X="M N", Y="M N")
    def no_axis(X, Y):
        for m, n in tw.tiles(Y):
            Y[m, n] = tw.softmax(X[m], axis=2)

    @tw.kernel(X="M N", Y="M N")
    def part_of_a_row(X, Y):
        for m, n in tw.tiles(Y):
            Y[m, n] = X[m, 1:]

    @tw.kernel(X="M N", Y="M N")
    def array_of_rows(X, Y):
        for m, n in tw.tiles(Y):
            Y[m, n] = tw.softmax(X[m] + Y)

    @tw.kernel(X="M N", Y="M N")
    def no_such_place(X, Y):
        for m, n in tw.tiles(Y):
            Y[m, n] = tw.positions(X[m], 5)

    @tw.kernel(X="M N", Y="M N")
    def too_many(X, Y):
        for m in tw.tiles(Y.shape[0]):
            Y[m] = tw.softmax(X[m, :, :])

    @tw.kernel(X="M N", Y="M N")
    def omitted_twice(X, Y):
        for m in tw.tiles(Y.shape[0]):
            Y[m] = tw.softmax(X[m, ..., ...])

    refused(too_many, "has 2 dimensions and is indexed with 3 indices", x, y)
    refused(omitted_twice, r"is indexed with `\.\.\.` twice", x, y)
    refused(of_integers, r"softmax of .* i32", x, y)
    refused(no_axis, r"softmax\(axis=2\)", x, y)
    refused(part_of_a_row, "the tile has axes that the store does not have", x, y)
    refused(array_of_rows, "axes are aligned from the last one", x, y)
    refused(no_such_place, "positions of axis 5", x, y)


def test_fields_of_schedules_that_loops_of_rows_do_not_take() -> None:
    case = dict(cases(19))["moments"]
    with pytest.raises(tw.ScheduleError, match=r'(?s)fold="two passes"; everything along .*fold="online"'):
        run(case, "reference", in_two(case.kernel, **case.arguments()))
    case = dict(cases(19))["attention, f2, 24, 40"]
    with pytest.raises(tw.ScheduleError, match=r"(?s)2 loops along n follow each other.*split_k=1"):
        run(case, "reference", in_two(case.kernel, replace(MMA, split_k=2)))
    with pytest.raises(tw.ScheduleError, match=r"(?s)2 loops follow each other; warpgroups compute one"):
        run(case, "reference", in_two(case.kernel, GROUPS))


# ---------------------------------------------------------------- GPUs


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_random_problems_on_a_gpu(name: str) -> None:
    for seed, ragged in ((11, True), (12, False)):
        case = dict(cases(seed, ragged=ragged))[name]
        older = case.kernel.bind().schedule_for(**case.arguments(), target=CUDA.name, arch="sm_80")
        for kernel in (case.kernel, *([in_two(case.kernel, older)] if name in PASSED else [])):
            given = case.arguments(DeviceArray.of)
            assert kernel(**given).target == CUDA.name
            CUDA_DRIVER.synchronize()
            assert case.wrong({one: given[one].host() for one in case.results}) == []


@tw.kernel(Q="M D", K="N D", T="M", scale=tw.f32)
def powers_of_any_sign(Q, K, T, scale):
    for m in tw.tiles(T):
        s = Q[m] @ K.T
        T[m] = tw.exp((s - s.max(axis=1)[:, None]) * scale).sum(axis=1)


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("scale", [-0.5, 0.0, 0.5])
def test_powers_with_a_factor_of_any_sign(scale: float, target: str) -> None:
    rng = np.random.default_rng(5)
    q, k = (rng.standard_normal(shape).astype(np.float16) for shape in ((37, 8), (203, 8)))
    found = np.full(37, np.nan, np.float32)
    assert powers_of_any_sign(q, k, found, scale, target=target).target == target
    s = q.astype(np.float64) @ k.T.astype(np.float64)
    exponents = (s - s.max(axis=1)[:, None]) * scale
    # Scores have 8 terms, each rounded in f32; the sum has 203.
    off = abs(scale) * 16 * 2.0**-24 * 2 * (abs(q.astype(np.float64)) @ abs(k.T.astype(np.float64))).max()
    want = np.exp(exponents).sum(axis=1)
    assert (abs(found - want) <= want * (off + (203 + 64 + 2 * abs(exponents).max()) * 2.0**-24)).all()
