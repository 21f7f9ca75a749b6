"""Reductions by TMA: their meaning on the reference, their text, and their legality errors."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir import verify
from tilewright.runtime.nvrtc import FATAL, compile_text
from tilewright.targets import cuda
from tilewright.targets.reference import Kind

from .bulk_reductions import CASES, combine, expected, made


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_every_block_is_counted(kind: str, name: str) -> None:
    x, y = made(name)
    wanted = expected(kind, x, y)
    combine.check(x.array, y.array, kind=kind).raise_if_any()
    combine(x.array, y.array, kind=kind, target="reference")
    assert (y.array == wanted).all()
    assert y.is_whole_around()


@pytest.mark.parametrize("kind", dict(CASES))
def test_the_text_names_the_reduction(kind: str) -> None:
    x, y = made("i32")
    traced = combine.trace(x.array, y.array, kind=kind)
    assert [*verify.violations(traced), *cuda.violations(traced, "sm_90a")] == []
    text = cuda.emit(traced, "sm_90a").text
    assert f"cp.reduce.async.bulk.tensor.2d.global.shared::cta.{kind}.bulk_group" in text
    assert f"tma_{kind}_2d(&Y_map, held, " in text
    assert not any(code in compile_text(text, "sm_90a").log for code in FATAL)


def test_what_tma_does_not_combine_is_refused() -> None:
    x, y = made("f32")
    [found] = verify.violations(combine.trace(x.array, y.array, kind="max"))
    assert found.message == "TMA has no 'max' of f32; it has that of i32"
    assert found.nearest == "i32, or tw.copy(..., reduction='max')"
    several = verify.violations(combine.trace(x.array, y.array, kind="xor"))
    assert [violation.rule for violation in several] == ["reduction"]


def test_stores_of_several_blocks_are_a_race_and_a_missing_fence_is_found() -> None:
    x, y = made("f32")
    kinds = {finding.kind for finding in combine.check(x.array, y.array, kind=None).findings}
    assert kinds == {Kind.WRITE_WRITE}
    kinds = {finding.kind for finding in combine.check(x.array, y.array, kind="add", fence=False).findings}
    assert kinds == {Kind.PROXY}


def test_the_printed_kernel_reads_back() -> None:
    x, y = made("bf16")
    text = tw.ir.print_kernel(combine.trace(x.array, y.array, kind="add"))
    assert "reduction='add'" in text
    assert tw.ir.print_kernel(tw.ir.parse_kernel(text)) == text
    assert np.isfinite(expected("add", x, y).astype(np.float32)).all()
