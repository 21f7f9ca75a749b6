"""Profiling and tuning on a GPU: every candidate is right, and a second run measures nothing."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

import tilewright as tw
from tilewright.cli.tune import KernelInFile
from tilewright.runtime import tables
from tilewright.schedule.tables import Version
from tilewright.tune.gemm import Gemm
from tilewright.tune.journal import Journal
from tilewright.tune.measure import Effort
from tilewright.tune.profiling import profile
from tilewright.tune.tuner import Tuner

pytestmark = pytest.mark.gpu

FOLDING = Path(__file__).parents[1] / "schedule/folding.py"
LITTLE = Effort(seconds=0.0, warm_up_seconds=0.0, least=3)


def version(gemm: Gemm) -> Version:
    question = gemm.question()
    found = tables.version_of(question.arch, question.processors)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("dtype", "layout", "shape"),
    [
        ("bf16", "nt", (520, 264, 320)),
        ("f16", "nn", (16, 512, 4096)),
        ("f8e4m3", "nt", (128, 256, 1024)),
        ("f32", "tn", (200, 136, 72)),
        ("i8", "nt", (144, 80, 256)),
    ],
)
def test_every_candidate_is_right(dtype: str, layout: str, shape: tuple[int, int, int]) -> None:
    gemm = Gemm(shape, dtype, layout, "exact", "cuda")
    made = profile(gemm, effort=LITTLE, processes=8)
    assert not made.result.wrong
    legal = [one for one in gemm.candidates() if not one.against]
    assert len(made.measured) == len(legal)
    assert all(made.result.checks[row.name]["error_of_bound"] <= 1 for row in made.measured)
    assert made.result.buffers["sets"] > 1


@pytest.mark.parametrize(
    ("name", "shapes", "constants"),
    [
        ("attention", [("f16", 1, 2, rows, 64) for rows in (300, 520, 520, 300)], ("scale=0.125",)),
        ("top_k", [("f16", 300, 64), ("f16", 1000, 64), ("f32", 300, 32), ("i32", 300, 32)], ()),
    ],
)
def test_every_candidate_of_a_loop_is_right(name: str, shapes: list[Any], constants: tuple[str, ...]) -> None:
    arrays = tuple(tw.like(*shape) for shape in shapes)
    loop = KernelInFile(f"{FOLDING}:{name}", constants, arrays, "cuda")
    made = profile(loop, effort=LITTLE, processes=8, most=12)
    assert not made.result.wrong
    assert len(made.measured) == min(12, sum(not one.against for one in loop.candidates()))
    assert all(made.result.checks[row.name]["error_of_bound"] <= 1 for row in made.measured)


def test_what_is_measured_is_not_measured_again(tmp_path: Path) -> None:
    gemm = Gemm((256, 256, 256), "bf16", "nt", "exact", "cuda")
    first = Tuner(gemm, Journal(tmp_path / "j", version(gemm)), LITTLE, processes=4, most=4).run()
    second = Tuner(gemm, Journal(tmp_path / "j", version(gemm)), LITTLE, most=4).run()
    assert (first.measured, second.measured, second.known) == (4, 0, 4)
    assert first.entry.schedule in [one.schedule for one in gemm.candidates()]


def test_the_table_that_comes_with_the_package_is_in_use_on_its_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    asked = Gemm((16, 4096, 4096), "bf16", "nt", "exact", "cuda").question()
    found = version(Gemm((16, 4096, 4096), "bf16", "nt", "exact", "cuda"))
    tables.forget()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = tables.table_for(asked.arch, asked.processors)
    tables.forget()
    is_shipped = (found.arch, found.device, found.processors) == ("sm_90a", "NVIDIA H200", 132)
    assert (table is not None) == is_shipped
    if table is not None:
        assert next(table.nearest(asked)).extents == (1, 16, 4096, 4096)
