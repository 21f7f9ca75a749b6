"""Forms for few rows: legal for every dtype of the atom, deep rings, right, and not chosen unmeasured."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.checking.compare import Accumulation, gemm_bound
from tilewright.ir import verify
from tilewright.ops.products import output_dtype, plain
from tilewright.schedule.candidates import candidates
from tilewright.schedule.choose import Candidate, Question, choose
from tilewright.schedule.choose_few_rows import STREAMS, Stream
from tilewright.schedule.expand import Expanded
from tilewright.schedule.memory import memory_us
from tilewright.schedule.resources import Case
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
    return [one for one in candidates(asked) if one.rule.startswith("few rows")]


@pytest.mark.parametrize("dtype", ["bf16", "f8e4m3", "i8", "f32"])
@pytest.mark.parametrize("rows", [1, 9, 17, 64])
def test_every_form_is_legal_and_keeps_enough_bytes_on_their_way(dtype: str, rows: int) -> None:
    asked = question(dtype, (rows, 4096, 4096), "tf32" if dtype == "f32" else "exact")
    found = proposed(asked)
    assert len(found) == len(STREAMS)
    for one in found:
        assert one.against == ()
        case = Case(one.schedule, asked.form, asked.specs, asked.arch)
        at_once = asked.arch.shared_bytes // case.shared_bytes
        stage = sum(side.stage_bytes(one.schedule.block_k) for side in case.sides)
        assert at_once * (one.schedule.stages - 1) * stage >= IN_FLIGHT
        assert one.estimate >= memory_us(asked)
        assert one.schedule.tile[1] >= rows


def test_they_are_tried_but_not_chosen_before_they_are_measured() -> None:
    asked = question("bf16", (16, 4096, 4096))
    assert not choose(asked).swap_ab
    assert proposed(question("bf16", (65, 4096, 4096))) == []


@pytest.mark.parametrize("stream", STREAMS, ids=str)
def test_elements_and_kernels(stream: Stream) -> None:
    problem = Problem(np.random.default_rng(2), (11, 168, 1096))
    a, b, out = problem.operand("M K"), problem.operand("N K"), problem.output("M N")
    asked = question("f16", (11, 168, 1096))
    schedule = stream.schedule(asked, 16, promoted_every=0)
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
    wide = STREAMS[1].schedule(question("bf16", (64, 512, 512)), 64, promoted_every=0)
    made = plain(0).bind(precision="exact", schedule=wide).compile(*given, target="cuda", arch="sm_90a")
    assert "wgmma.mma_async.sync.aligned.m64n64k16" in made.source
    assert made.resources["spill_store_bytes"] == made.resources["stack_bytes"] == 0
