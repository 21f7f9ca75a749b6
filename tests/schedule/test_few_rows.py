"""Forms for few rows: legal for every dtype, deep rings, right, chosen; K is split if that pays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tilewright as tw
from tilewright.checking.compare import Accumulation, compare_gemm, gemm_bound
from tilewright.ir import verify
from tilewright.ops.products import output_dtype, plain
from tilewright.schedule.choice import candidates, choose, proposals, split_candidates
from tilewright.schedule.estimate import BULK
from tilewright.schedule.expand import Expanded
from tilewright.schedule.legality import reasons
from tilewright.schedule.load import Load
from tilewright.schedule.proposals_wgmma import STREAMS, RowStream
from tilewright.schedule.question import Candidate, Question, Splitting
from tilewright.schedule.resources import ScheduleOnMachine
from tilewright.schedule.splitting import rule_of, sharing
from tilewright.targets import cuda

from .epilogues import Bounded, Problem, assert_within

IN_FLIGHT = 64 * 1024
"""Bytes that a multiprocessor should have on their way: 132 times as many are 8.6 MB."""


def question(dtype: str, shape: tuple[int, int, int], precision: str = "exact") -> Question:
    m, n, k = shape
    kind = tw.dtype(dtype)
    given = (tw.like(kind, m, k), tw.like(kind, k, n, order="F"), tw.like(output_dtype(kind), m, n))
    found = plain(0).bind(precision=precision).question(*given, target="cuda", arch="sm_90a")
    assert found is not None
    return found


def proposed(asked: Question) -> list[Candidate]:
    found = (one for one in candidates(asked) if one.rule.startswith("few rows"))
    return [one for one in found if one.schedule.split_k == 1]


@pytest.mark.parametrize("dtype", ["bf16", "f8e4m3", "i8", "f32"])
@pytest.mark.parametrize("rows", [1, 9, 17, 64])
def test_every_form_is_legal_and_keeps_enough_bytes_on_their_way(dtype: str, rows: int) -> None:
    asked = question(dtype, (rows, 4096, 4096), "tf32" if dtype == "f32" else "exact")
    found = proposed(asked)
    assert len(found) == len(STREAMS)
    for one in found:
        assert one.against == ()
        case = ScheduleOnMachine(one.schedule, asked.form, asked.specs, asked.arch)
        at_once = asked.arch.shared_bytes // case.shared_bytes
        kept = [(side.tile.kept(one.schedule.atom), max(side.sharing, 1) * side.rows) for side in case.sides]
        stage = sum(dtype.bytes_of(rows_of_side * case.tile[2]) for dtype, rows_of_side in kept)
        assert at_once * (one.schedule.stages - 1) * stage >= IN_FLIGHT
        assert one.estimate >= asked.memory_us
        assert one.schedule.tile[1] >= rows


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f8e4m3", "i8"])
@pytest.mark.parametrize("rows", [1, 8, 16])
def test_they_are_chosen(dtype: str, rows: int) -> None:
    for columns, depth in ((4096, 4096), (14336, 4096), (4096, 14336)):
        assert choose(question(dtype, (rows, columns, depth))).swap_ab
    assert proposed(question(dtype, (65, 4096, 4096))) == []


def test_k_has_parts_where_multiprocessors_would_be_idle() -> None:
    """The choice is legal without changes; K is not split if there are many tiles, or if K is short."""
    for shape in ((64, 64, 65536), (16, 16, 262144), (256, 256, 65536), (128, 128, 16384)):
        asked = question("f16", shape)
        chosen = choose(asked)
        assert Load(asked, chosen).parts > 1
        assert Load(asked, chosen).tiles * 2 <= asked.processors
        assert reasons(chosen, asked.form, asked.specs, asked.arch) == []
    for shape in ((512, 512, 512), (1024, 1024, 1024), (256, 4096, 4096), (4096, 4096, 4096)):
        assert choose(question("f16", shape)).split_k == 1


@pytest.mark.parametrize("shape", [(704, 736, 88200), (528, 1232, 76256), (1024, 1232, 18128)])
def test_rows_in_two_cache_lines_make_tiles_larger(shape: tuple[int, int, int]) -> None:
    """They cost more than twice the time of the cache, which larger tiles ask for fewer bytes."""
    m, n, k = shape
    cut, whole = question("f16", shape), question("f16", (m, n, -(-k // 64) * 64))
    for schedule in (choose(cut), choose(whole)):
        (*_, lines), (*_, once) = (BULK.waits(Load(asked, schedule)) for asked in (cut, whole))
        assert lines / once == pytest.approx(BULK.cut_row, rel=0.01)
    chosen, narrow = (choose(asked).tile for asked in (cut, whole))
    assert 1 / chosen[0] + 1 / chosen[1] <= 1 / narrow[0] + 1 / narrow[1]
    assert Load(cut, choose(cut)).parts > 1


def test_narrow_tiles_are_chosen_where_they_are_as_many_as_multiprocessors() -> None:
    for rows, narrow in ((64, True), (33, True), (16, False), (65, False)):
        chosen = choose(question("bf16", (rows, 4096, 4096)))
        assert (chosen.tile[:2] == (64, 32)) == narrow
    assert choose(question("bf16", (64, 4096, 14336))).tile[:2] == (64, 32)


def test_threads_copy_few_rows_that_bulk_copies_cannot_load() -> None:
    asked = question("f16", (16, 4096, 4097))
    found = candidates(asked)
    assert all(one.schedule.staging != "tma" for one in found)
    assert found[0].against == ()
    assert (found[0].schedule.swap_ab, found[0].schedule.tile[1]) == (True, 16)


@pytest.mark.parametrize("shape", [(1, 4096, 4096), (64, 4096, 4096), (4096, 4096, 4096), (256, 256, 65536)])
def test_what_is_batch_invariant_is_rated_as_the_rest_is(shape: tuple[int, int, int]) -> None:
    asked = question("bf16", shape)
    found = split_candidates(replace(asked, splitting=Splitting(batch_invariant=True)))
    assert next(found).estimate <= 1.3 * next(proposals(asked)).estimate


def test_a_reduction_costs_what_its_parts_do() -> None:
    """More parts take longer; unsplit K takes no time; a stream takes time although its tiles are many."""
    asked = question("bf16", (64, 4096, 4096))
    whole = choose(question("bf16", (512, 512, 512)))
    assert BULK.meeting_us(Load(asked, whole)) == 0
    for reduction in ("workspace", "cluster"):
        times = [
            BULK.meeting_us(Load(asked, replace(whole, split_k=parts, reduction=reduction)))
            for parts in (2, 4, 8)
        ]
        assert 0 < times[0] < times[1] < times[2]
    assert BULK.meeting_us(Load(asked, replace(whole, split_k="stream", blocks=132))) > 0


@pytest.mark.parametrize("stream", STREAMS, ids=str)
def test_elements_and_kernels(stream: RowStream) -> None:
    problem = Problem(np.random.default_rng(2), (11, 168, 1096))
    a, b, out = problem.operand("M K"), problem.operand("N K"), problem.output("M N")
    asked = question("f16", (11, 168, 1096))
    schedule = stream.schedule(asked, 16, promoted=0)
    bound = plain(0).bind(precision="exact", schedule=schedule)
    ran = bound(a, b.T, out, target="reference")
    assert (ran.target, ran.schedule) == ("reference", schedule)
    exact, _, error = gemm_bound(a, b.T, Accumulation.of(schedule.atom), tw.f32)
    assert_within(out, Bounded(exact, error), tw.f16)
    problem.assert_canaries()
    kernel = Expanded(bound.program, asked.form.flow, schedule).trace(asked.specs, arch=asked.arch)
    assert [*verify.violations(kernel), *cuda.violations(kernel, "sm_90a")] == []


def test_two_groups_compile_without_spills() -> None:
    given = (tw.like("bf16", 64, 512), tw.like("bf16", 512, 512, order="F"), tw.like("bf16", 64, 512))
    wide = STREAMS[1].schedule(question("bf16", (64, 512, 512)), 64, promoted=0)
    made = plain(0).bind(precision="exact", schedule=wide).compile(*given, target="cuda", arch="sm_90a")
    assert "wgmma.mma_async.sync.aligned.m64n64k16" in made.source
    assert made.resources["spill_store_bytes"] == made.resources["stack_bytes"] == 0


def test_parts_are_counted_with_tiles_that_only_fill_a_cluster() -> None:
    asked = question("bf16", (357, 40, 4096))
    schedule = tw.Schedule(
        tw.atoms.wgmma("bf16", 64),
        (128, 64, 64),
        stages=4,
        staging="tma",
        roles="cooperative",
        groups=2,
        blocks=24,
        registers=0,
        split_k="auto",
    )
    assert Load(asked, schedule).parts == 24 // 3
    assert Load(asked, replace(schedule, cluster=(2, 2))).parts == 24 // 8


@pytest.mark.parametrize("shape", [(4096, 16, 16384), (672, 32, 13824), (608, 8, 22776)])
def test_few_columns_have_the_forms_of_few_rows_of_the_transposed_product(
    shape: tuple[int, int, int],
) -> None:
    m, n, k = shape
    found = [one for one in candidates(question("f16", shape)) if not one.against]
    mirrored = [one for one in candidates(question("f16", (n, m, k))) if not one.against]
    theirs = {replace(one.schedule, swap_ab=False) for one in mirrored if one.schedule.swap_ab}
    ours = {one.schedule for one in found if one.rule.startswith("of the transposed product")}
    assert ours
    assert ours <= theirs
    assert found[0].schedule in ours
    assert found[0].schedule.tile[1] <= 64


def test_operands_are_shared_only_in_clusters_that_tiles_fill() -> None:
    asked = question("bf16", (256, 256, 65536))
    schedule = tw.Schedule(
        tw.atoms.wgmma("bf16", 128), (128, 128, 64), stages=4, staging="tma", blocks=132, split_k="auto"
    )
    found = {one.cluster: one.blocks for one in sharing(Load(asked, schedule))}
    assert found == {(2, 1): 132, (1, 2): 132, (2, 2): 116}


# ---------------------------------------------------------------- few tiles


WAVES = ((256, 6144, 4096), (512, 3072, 8192), (256, 5120, 5120), (1024, 1600, 6400), (512, 6400, 1600))
"""Problems of which tiles of 128 columns leave a fifth of 132 multiprocessors idle, or more."""


@pytest.mark.parametrize("shape", WAVES)
def test_few_tiles_are_as_narrow_as_makes_one_wave(shape: tuple[int, int, int]) -> None:
    asked = question("bf16", shape)
    found = [one for one in candidates(asked) if not one.against]
    assert found[0].rule.startswith("one wave")
    tiles = Load(asked, found[0].schedule).tiles
    assert 120 <= tiles <= asked.processors
    whole = [one for one in found if one.rule.startswith("form") and one.schedule.split_k == 1]
    assert found[0].estimate <= 0.95 * min(BULK.time_us(Load(asked, one.schedule)) for one in whole)


@pytest.mark.parametrize("shape", [(4096, 4096, 4096), (512, 4096, 4096), (256, 256, 65536)])
def test_where_waves_are_full_or_k_is_deep_nothing_changes(shape: tuple[int, int, int]) -> None:
    assert not candidates(question("bf16", shape))[0].rule.startswith("one wave")


def test_rules_of_fitted_tiles_say_how_k_is_split() -> None:
    """Also those in clusters, which share operands."""
    asked = question("bf16", (600, 192, 16384))
    found = [one for one in candidates(asked) if one.rule.startswith("tiles of")]
    assert any(one.schedule.cluster != (1, 1) for one in found)
    assert all(one.rule.endswith(rule_of(Load(asked, one.schedule))) for one in found)


@pytest.mark.parametrize("shape", [(0, 512, 8192), (512, 0, 8192), (0, 0, 8192), (512, 512, 0)])
@pytest.mark.parametrize("processors", [1, 2, 132])
def test_products_of_nothing_have_schedules(shape: tuple[int, int, int], processors: int) -> None:
    """Also if a few processors take several parts each."""
    assert choose(replace(question("bf16", shape), processors=processors)).atom.asynchronous


def test_a_wave_of_an_operand_along_its_columns_has_whole_rows_of_bulk_copies() -> None:
    given = tw.like("bf16", 256, 4096), tw.like("bf16", 4096, 6144), tw.like("bf16", 256, 6144)
    asked = plain(0).bind(precision="exact").question(*given, target="cuda", arch="sm_90a")
    assert asked is not None
    found = [one for one in candidates(asked) if one.rule.startswith("one wave")]
    assert found
    for one in found:
        assert not one.against
        assert one.schedule.tile[1] % 64 == 0


@pytest.mark.parametrize(
    ("layout", "rows", "columns", "groups"),
    [
        *(("nt", 128, 80, 2), ("tt", 128, 96, 2), ("nt", 64, 144, 1), ("tt", 64, 160, 1)),
        *(("nn", 64, 192, 1), ("tn", 128, 192, 2), ("nt", 256, 112, 2), ("nn", 192, 128, 3)),
    ],
)
def test_elements_of_tiles_of_one_wave(layout: str, rows: int, columns: int, groups: int) -> None:
    """The reference runs a ragged problem, and the kernel for Hopper spills nothing."""
    made = tw.Schedule(
        tw.atoms.wgmma("bf16", columns), (rows, columns, 64), stages=3, staging="tma", roles="cooperative",
        groups=groups, group_m=8, epilogue="staged", buffers=1, registers=0,
    )  # fmt: skip
    problem = Problem(np.random.default_rng(5), (rows + 8, columns + 24, 136))
    names = ("M K" if layout[0] == "n" else "K M", "K N" if layout[1] == "n" else "N K")
    a, b = (problem.operand(name, tw.bf16) for name in names)
    a, b = (one if way else one.T for one, way in ((a, layout[0] == "n"), (b, layout[1] == "n")))
    out = problem.output("M N", tw.bf16)
    ran = plain(0).bind(precision="exact", schedule=made)(a, b, out, target="reference")
    assert (ran.target, ran.schedule) == ("reference", made)
    found = compare_gemm(a, b, out, Accumulation.of(made.atom))
    assert found.ok, found
    problem.assert_canaries()
    m, n, k = 512, 1024, 512
    given = (
        tw.like("bf16", m, k, order="C" if layout[0] == "n" else "F"),
        tw.like("bf16", k, n, order="C" if layout[1] == "n" else "F"),
    )
    built = (
        plain(0)
        .bind(precision="exact", schedule=made)
        .compile(*given, tw.like("bf16", m, n), target="cuda", arch="sm_90a")
    )
    assert built.resources["spill_store_bytes"] == 0
    assert "cp.async.bulk.tensor" in built.source


@tw.kernel(A="M K", B="N K", R="M N", C="M N")
def with_a_residual(A, B, R, C):
    """The epilogue reads an array of the size of the result."""
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        C[m, n] = acc + R[m, n]


@pytest.mark.parametrize("shape", [(1536, 3072, 2048), (2304, 1536, 512)])
def test_tiles_of_an_epilogue_that_reads_a_result_sized_array_spill_nothing(
    shape: tuple[int, int, int],
) -> None:
    """Tiles of 192 x 192 and 192 x 144 with three groups make one wave, but spilled."""
    m, n, k = shape
    given = tw.like("bf16", m, k), tw.like("bf16", n, k), tw.like("bf16", m, n), tw.like("bf16", m, n)
    built = with_a_residual.compile(*given, target="cuda", arch="sm_90a")
    assert built.schedule.atom.asynchronous
    assert built.resources["spill_store_bytes"] == 0
