"""Results along whole rows whose blocks keep their step: right, checked, and equal as algebra."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.lang.fragments import elementwise
from tilewright.schedule.folds.form import fold_form_of
from tilewright.schedule.folds.kept import ExchangedStates, KeptStep, kept_powers
from tilewright.schedule.folds.parts import StateMerge
from tilewright.schedule.schedule import Schedule
from tilewright.testing import compare_algebra

from . import folding, whole_rows
from .folding import scores, strided
from .test_folds import COMPILED, FMA, MMA, SCHEDULES, run
from .test_parts import ALGEBRA
from .test_rows import IN_PARTS
from .test_shifts import neither
from .whole_rows import cases, of_rows

PLAIN = [way for way, one in SCHEDULES.items() if not one.by_bulk]
BY_GROUPS = replace(IN_PARTS, fold="kept", split_k="auto", blocks=5)
"""Five blocks of two warpgroups; each has several tiles of rows, or parts of them, one after the other."""

ONE_GROUP = replace(
    BY_GROUPS, atom=tw.atoms.wgmma("f16", 64), tile=(64, 64, 64), groups=1, stages=2, blocks=7
)


def kept(schedule: Schedule, columns: int = 0) -> Schedule:
    """The schedule whose blocks keep a step: the whole row, if its columns are given, or parts that wait."""
    if not columns:
        return replace(schedule, width=0, fold="kept", split_k="auto", blocks=60)
    rows, _, depth = schedule.tile
    return replace(schedule, width=0, fold="kept", tile=(rows, -(-columns // 16) * 16, depth))


@pytest.mark.parametrize("way", PLAIN)
def test_every_form_of_schedule(way: str) -> None:
    is_fma = SCHEDULES[way].atom.instruction == "fma"
    case = dict(cases(31))["softmax, f4, K = 40" if is_fma else "softmax, f2, K = 24"]
    whole = case.kernel.bind(schedule=kept(SCHEDULES[way], 94))
    for target in ("reference", "cpu"):
        run(case, target, whole)
    run(case, "reference", case.kernel.bind(schedule=kept(SCHEDULES[way])))


@pytest.mark.parametrize("name", ["logarithms", "gradient of scores"])
def test_more_results(name: str) -> None:
    """Several results, one of rows alone, biases along the row, and values that need the scores."""
    case = dict(cases(31))[name]
    run(case, "cpu", case.kernel.bind(schedule=kept(MMA, 94)))
    run(case, "reference", case.kernel.bind(schedule=kept(MMA)))


@pytest.mark.parametrize("by_column", [False, True])
@pytest.mark.parametrize(("M", "K", "N"), [(200, 136, 320), (70, 64, 72), (5, 8, 600)])
def test_blocks_of_warpgroups(M: int, K: int, N: int, by_column: bool) -> None:
    x, w, s, off = scores(np.random.default_rng(N), M, K, N, "f2")
    w = np.asfortranarray(w) if by_column else w
    case = of_rows(whole_rows.softmax, {"X": x, "W": w}, s, off, "f2")
    wide = replace(ONE_GROUP, blocks=max(7, -(-N // 64)))
    for schedule in (
        BY_GROUPS,
        wide,
        replace(BY_GROUPS, epilogue="staged"),
        replace(wide, epilogue="staged"),
    ):
        run(case, "reference", case.kernel.bind(schedule=schedule))


@pytest.mark.parametrize(("N", "stride"), [(94, 104), (96, 98)])
def test_rows_that_bulk_copies_would_overrun_are_stored_from_registers(N: int, stride: int) -> None:
    """Rows whose length or stride is no multiple of 16 bytes."""
    x, w, s, off = scores(np.random.default_rng(N), 70, 24, N, "f2")
    padded = np.zeros((24, 128), w.dtype)
    padded[:, :N] = w
    case = of_rows(whole_rows.softmax, {"X": x, "W": padded[:, :N]}, s, off, "f2")
    whole = np.full((70, stride), 777, np.float16)
    with pytest.raises(tw.ScheduleError, match=r'(?s)16 bytes.*epilogue="direct"'):
        run(
            case,
            "reference",
            case.kernel.bind(schedule=replace(BY_GROUPS, epilogue="staged")),
            Y=whole[:, :N],
        )
    run(case, "reference", case.kernel.bind(schedule=BY_GROUPS), Y=whole[:, :N])
    assert (whole[:, N:] == 777).all()


def test_biases_batches_and_results_of_rows_by_warpgroups() -> None:
    for name in ("logarithms", "gradient of scores"):
        case = dict(cases(14, ragged=False))[name]
        run(case, "reference", case.kernel.bind(schedule=BY_GROUPS))


def test_a_row_of_one_step_needs_no_other_block() -> None:
    case = dict(cases(14, ragged=False))["softmax, f2, K = 24"]
    for blocks in (0, 3):
        run(case, "reference", case.kernel.bind(schedule=replace(BY_GROUPS, split_k=1, blocks=blocks)))


def test_masked_rows() -> None:
    """A mask by positions changes scores in place, and hides whole steps, which are stored as zeros."""

    @tw.kernel(X="M K", W="K N", Y="M N", shift=int)
    def causal(X, W, Y, shift):
        for m in tw.tiles(Y.shape[0]):
            s = X[m] @ W
            s = tw.where(tw.positions(s) <= tw.positions(m)[:, None] + shift, s, -np.inf)
            Y[m] = tw.softmax(s)

    x, w, s, off = scores(np.random.default_rng(3), 90, 24, 136, "f2")
    for shift in (5, 0):
        seen = np.arange(136) <= np.arange(90)[:, None] + shift
        case = of_rows(causal, {"X": x, "W": w, "shift": shift}, np.where(seen, s, -np.inf), off, "f2")
        for schedule in (kept(MMA), kept(MMA, 136), BY_GROUPS):
            run(case, "reference", causal.bind(schedule=schedule))


def test_strides_and_poisoned_gaps() -> None:
    x, w, s, off = scores(np.random.default_rng(8), 37, 24, 94, "f2")
    case = of_rows(whole_rows.softmax, {"X": strided(x, 8), "W": strided(w, 6)}, s, off, "f2")
    run(case, "reference", case.kernel.bind(schedule=kept(MMA)))


def test_scores_up_to_1e30_have_finite_results() -> None:
    rng = np.random.default_rng(4)
    bf16 = tw.bf16.numpy
    x = (rng.standard_normal((70, 32)) * 1e14).astype(bf16)
    w = (rng.standard_normal((32, 200)) * 1e14).astype(bf16)
    mma = replace(MMA, atom=tw.atoms.MMA_BF16)
    for schedule in (kept(mma), kept(mma, 200), replace(BY_GROUPS, atom=tw.atoms.wgmma("bf16", 128))):
        y = np.full((70, 200), np.nan, np.float32)
        whole_rows.softmax.bind(schedule=schedule)(x, w, y, target="reference")
        assert np.isfinite(y).all()
        assert np.allclose(y.sum(axis=1), 1, atol=1e-4)


def test_powers_of_the_step_are_kept() -> None:
    """One exponential for each element; the results of the other kernel need the scores."""
    x, w = tw.like("f16", 64, 64), tw.like("f16", 64, 256)
    form = fold_form_of(whole_rows.softmax.flow(x, w, tw.like("f16", 64, 256)), "kept")
    assert len(kept_powers(form)) == 1
    case = dict(cases(14))["logarithms"]
    assert not kept_powers(fold_form_of(case.kernel.flow(**case.arguments()), "kept"))
    kernel = whole_rows.softmax.bind(schedule=kept(MMA))
    text = tw.ir.print_kernel(kernel.trace(x, w, tw.like("f16", 64, 256)))
    powers = [one for one in text.splitlines() if "function='exp2'" in one]
    assert len([one for one in powers if "(mul_2,)" in one]) == 1, "of the tile; the others are of rows"
    assert "function='exp'" not in text, "scores follow from sums, so that powers of two are as exact"


# ---------------------------------------------------------------- algebra

LIKE = (tw.like("f16", 40, 16), tw.like("f16", 16, 112), tw.like("f32", 40, 112))


@tw.kernel(X="M K", W="K N", Y="M N")
def powers(X, W, Y):
    """Normalised powers of two: the same for any shift of the exponents."""
    for m, n in tw.tiles(Y):
        s = X[m] @ W
        top = tw.maximum(s.max(axis=1), -3e38)
        p = tw.exp2((s - top[:, None]) * 0.25)
        Y[m, n] = p * (1.0 / p.sum(axis=1))[:, None]


@pytest.fixture
def anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a kernel without what was traced before; ``max`` gives another number than its arguments."""
    monkeypatch.setitem(tw.targets.reference.exponentials.PAIRS.functions, "max", neither)
    made: list[Any] = []

    def bound(schedule: Schedule) -> Any:
        made.append(powers.bind(schedule=schedule))
        made[-1].forget()
        return made[-1]

    yield bound
    for one in made:
        one.forget()


def are_equal(one: Any, other: Any) -> bool:
    return compare_algebra(one, other, *LIKE, exponentials=True).ok


WAYS = {
    "parts of 16": kept(ALGEBRA),
    "parts of 64": replace(kept(ALGEBRA), tile=(32, 64, 16)),
    "two stages": replace(kept(ALGEBRA), staging="cp_async", stages=2),
    "multiply-adds": replace(kept(ALGEBRA), atom=tw.atoms.fma("f16", "f32", each=(2, 2))),
    "warpgroups": ONE_GROUP,
    "warpgroups, staged": replace(ONE_GROUP, epilogue="staged"),
    "second pass": replace(ALGEBRA, width=0),
}


@pytest.mark.parametrize("way", WAYS)
def test_parts_are_equal_to_the_whole_for_any_shifts(way: str, anew: Any) -> None:
    whole = anew(replace(kept(ALGEBRA, 112)))
    assert are_equal(whole, anew(WAYS[way]))


def without_factor(merge: Any, rule: Any, place: Any, own: Any, both: Any) -> Any:
    """Powers and sums keep the extreme of their part."""
    return elementwise("mul", right(merge, rule, place, own, own), 1.0)


def inverted(merge: Any, rule: Any, place: Any, own: Any, both: Any) -> Any:
    return right(merge, rule, place, both, own)


def squared(merge: Any, rule: Any, place: Any, own: Any, both: Any) -> Any:
    found = right(merge, rule, place, own, both)
    return elementwise("mul", found, found)


right = StateMerge.keep


@pytest.mark.parametrize("mutant", [without_factor, inverted, squared])
def test_every_wrong_factor_differs(mutant: Any, anew: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = anew(kept(ALGEBRA, 112))
    monkeypatch.setattr(StateMerge, "keep", mutant)
    for way in ("parts of 16", "warpgroups"):
        assert not are_equal(whole, anew(WAYS[way]))


def test_extremes_after_the_exchange_are_no_own_ones(anew: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that reads its extreme after the exchange, or a part that is left out, differs."""
    whole = anew(kept(ALGEBRA, 112))
    made = KeptStep.__init__

    def later(self: KeptStep, block: Any, values: Any, cells: Any, place: Any) -> None:
        made(self, block, values, cells, place)
        self.own = {rule.by: cells[rule.by] for _, rule in self.powers.values()}

    monkeypatch.setattr(KeptStep, "__init__", later)
    assert not are_equal(whole, anew(WAYS["parts of 16"]))
    monkeypatch.undo()
    monkeypatch.setitem(tw.targets.reference.exponentials.PAIRS.functions, "max", neither)
    read = ExchangedStates._merge_tiles

    def short(self: ExchangedStates, segment: Any, turn: Any, cells: Any, count: Any) -> None:
        read(self, segment, turn, cells, count - 1)

    monkeypatch.setattr(ExchangedStates, "_merge_tiles", short)
    assert not are_equal(whole, anew(WAYS["parts of 16"]))


# ---------------------------------------------------------------- hazards


@pytest.mark.parametrize("schedule", [kept(MMA), BY_GROUPS, replace(ONE_GROUP, epilogue="staged")])
def test_the_checker_has_no_findings(schedule: Schedule) -> None:
    x, w, s, off = scores(np.random.default_rng(2), 150, 32, 136, "f2")
    case = of_rows(whole_rows.softmax, {"X": x, "W": w}, s, off, "f2")
    kernel = case.kernel.bind(schedule=schedule)
    assert not kernel.check(**case.arguments(), outputs=("Y",)).findings


def test_the_checker_finds_a_row_that_nobody_awaits(monkeypatch: pytest.MonkeyPatch, anew: Any) -> None:
    x, w, s, off = scores(np.random.default_rng(2), 70, 24, 94, "f2")
    case = of_rows(powers, {"X": x, "W": w}, s, off, "f2")
    for name, stand_in in (
        ("await_", lambda *given, **words: None),
        ("signal", lambda *given, **words: None),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(f"tilewright.schedule.folds.kept.{name}", stand_in)
            assert anew(kept(MMA)).check(**case.arguments(), outputs=("Y",)).findings, name
    assert ExchangedStates.waits


# ---------------------------------------------------------------- refusals, compilers, the choice


def test_what_keeps_no_step() -> None:
    case = dict(cases(19))["moments"]
    with pytest.raises(tw.ScheduleError, match=r'(?s)fold="kept"; nothing is stored along .*fold="online"'):
        run(case, "reference", case.kernel.bind(schedule=kept(FMA)))
    case = dict(cases(19))["softmax, f2, K = 24"]
    for words, message in (
        ({"split_k": 3}, r'split_k=3 with fold="kept"; a row has a block for each step.*split_k="auto"'),
        ({"split_k": "auto", "blocks": 0}, r"it needs the number of blocks.*blocks=132"),
    ):
        with pytest.raises(tw.ScheduleError, match=f"(?s){message}"):
            run(case, "reference", case.kernel.bind(schedule=replace(kept(MMA), **words)))
    for words in ({"split_k": 3}, {"blocks": 0}):
        with pytest.raises(tw.ScheduleError, match=r"(?s)legal choice: (split_k=.auto.|blocks=132)"):
            run(case, "reference", case.kernel.bind(schedule=replace(BY_GROUPS, **words)))
    with pytest.raises(tw.ScheduleError, match=r"(?s)does not run all blocks at the same time.*split_k=1"):
        run(case, "cpu", case.kernel.bind(schedule=kept(MMA)))
    with pytest.raises(tw.LaunchError, match="must be at most 80: one step of the schedule covers it"):
        run(case, "reference", case.kernel.bind(schedule=kept(MMA, 80)))
    with pytest.raises(tw.LaunchError, match="more than 3 blocks, which wait for each other"):
        run(case, "reference", case.kernel.bind(schedule=replace(kept(MMA), blocks=3)))
    case = dict(cases(19, ragged=False))["softmax, f2, K = 24"]
    with pytest.raises(tw.LaunchError, match="a row has more than 1 blocks, which wait for each other"):
        run(case, "reference", case.kernel.bind(schedule=replace(ONE_GROUP, blocks=1)))


@pytest.mark.parametrize(("target", "arch"), COMPILED)
def test_gpus_compile_kept_steps_without_spills(target: str, arch: str) -> None:
    x, w, y = tw.like("f16", 300, 200), tw.like("f16", 200, 520), tw.like("f16", 300, 520)
    made = whole_rows.softmax.compile(x, w, y, target=target, arch=arch)
    assert made.schedule is not None
    assert (made.schedule.fold, made.schedule.split_k) == ("kept", "auto")
    assert made.resources.get("spill_store_bytes", 0) == 0
    assert not made.resources.get("serialized_wgmma", 0)


@pytest.mark.parametrize(
    ("shape", "tile"),
    [
        ((2048, 1024, 2048), (128, 256, 64)),
        ((16384, 1024, 8192), (128, 256, 64)),
        ((16384, 4096, 8192), (128, 256, 64)),
        ((1024, 1024, 512), (64, 64, 64)),
        ((4096, 1024, 60000), None),
    ],
)
def test_the_choice(shape: tuple[int, int, int], tile: tuple[int, int, int] | None) -> None:
    """Few tiles are smaller, and rows of more blocks than processors have a second pass."""
    M, K, N = shape
    arrays = tw.like("bf16", M, K), tw.like("bf16", K, N), tw.like("bf16", M, N)
    made = whole_rows.softmax.bind().schedule_for(*arrays, target="cuda", arch="sm_90a")
    assert (made.fold == "kept") == (tile is not None)
    if tile is not None:
        assert (made.tile, made.split_k, made.blocks, made.epilogue) == (tile, "auto", 132, "staged")


# ---------------------------------------------------------------- parts of rows by warpgroups


@pytest.mark.parametrize(("parts", "blocks"), [("auto", 8), (3, 4), ("auto", 50), (13, 100)])
def test_losses_in_parts_by_warpgroups(parts: int | str, blocks: int) -> None:
    """The last block of a row merges its parts: in one round, and in two of at most 12."""
    rng = np.random.default_rng(15)
    x, w, s, off = scores(rng, 150, 72, 1800, "f2")
    words, loss = rng.integers(0, 1800, 150).astype(np.int32), np.full(150, np.nan, np.float32)
    kernel = folding.cross_entropy.bind(schedule=replace(IN_PARTS, split_k=parts, blocks=blocks))
    kernel(x, w, words, loss, target="reference")
    right = np.logaddexp.reduce(s, axis=1) - s[np.arange(150), words]
    assert (np.abs(loss - right) <= 2 * off + 1e-5 * (np.abs(s).max(axis=1) + 1)).all()
    if blocks == 4:
        assert not kernel.check(x, w, words, loss, outputs=("loss",)).findings


def test_long_vocabularies_have_a_part_for_each_processor() -> None:
    x, w = tw.like("bf16", 4096, 4096), tw.like("bf16", 4096, 128256)
    rows = tw.like("i32", 4096), tw.like("f32", 4096)
    made = folding.cross_entropy.bind().schedule_for(x, w, *rows, target="cuda", arch="sm_90a")
    assert (made.staging, made.split_k, made.groups, made.blocks) == ("tma", "auto", 2, 132)


@tw.kernel(A="M N", D="M N", s="M")
def shifted_rows(A, D, s):
    for m in tw.tiles(s):
        row = A[m] + 1
        D[m] = row
        s[m] = row.sum(axis=1)


@pytest.mark.parametrize("arch", ["sm_90a", None])
def test_rows_of_no_elements_are_not_kept(arch: str | None) -> None:
    """A block takes one step along a kept row, which would add an element to the sum."""
    given = np.zeros((3, 0), np.float32), np.zeros((3, 0), np.float32), np.full(3, np.nan, np.float32)
    bound = shifted_rows.bind()
    if arch is not None:
        bound = shifted_rows.bind(schedule=bound.schedule_for(*given, target="cuda", arch=arch))
    bound(*given, target="reference")
    assert not given[-1].any()
