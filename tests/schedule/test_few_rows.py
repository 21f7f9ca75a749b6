"""Forms for few rows: legal for every dtype, deep rings, right, chosen; K in parts where that pays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tilewright as tw
from tilewright.checking.compare import Accumulation, gemm_bound
from tilewright.ir import verify
from tilewright.ops.products import output_dtype, plain
from tilewright.schedule.choice import candidates, choose, proposals, split_candidates
from tilewright.schedule.estimate import BULK
from tilewright.schedule.expand import Expanded
from tilewright.schedule.legality import reasons
from tilewright.schedule.load import Load, memory_us
from tilewright.schedule.proposals_wgmma import STREAMS, RowStream
from tilewright.schedule.question import Candidate, Question, Splitting
from tilewright.schedule.resources import ScheduleOnMachine
from tilewright.schedule.splitting import sharing
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
        assert one.estimate >= memory_us(asked)
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
    """More parts take longer to meet; none take no time; a stream meets though its tiles are many."""
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


def test_operands_are_shared_only_in_clusters_that_tiles_fill() -> None:
    asked = question("bf16", (256, 256, 65536))
    schedule = tw.Schedule(
        tw.atoms.wgmma("bf16", 128), (128, 128, 64), stages=4, staging="tma", blocks=132, split_k="auto"
    )
    found = {one.cluster: one.blocks for one in sharing(Load(asked, schedule))}
    assert found == {(2, 1): 132, (1, 2): 132, (2, 2): 116}
