"""The checker and inspect name copies that touch more sectors of global memory than necessary."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.inspect.report import counters, movements
from tilewright.targets.reference.report import UNCOALESCED


@tw.kernel(X="M N", Y="M N")
def staged(X, Y, *, threads):
    m, n = tw.block_index(tw.ceil_div(Y.shape, (64, 32)))
    held = tw.shared((64, 32), X.dtype)
    tw.copy(X.tile((64, 32), (m, n)), held, threads=threads)
    tw.barrier()
    tw.copy(held, Y.tile((64, 32), (m, n)), threads=threads)


@tw.kernel(X="M N", Y="N M")
def transposed(X, Y):
    m, n = tw.block_index(tw.ceil_div(X.shape, (64, 64)))
    held = tw.shared((64, 64), X.dtype)
    tw.copy(X.tile((64, 64), (m, n)), held, threads=128)
    tw.barrier()
    tw.copy(held.permute(1, 0), Y.tile((64, 64), (n, m)), threads=128, vector=1)


EXAMPLES = Path(__file__).parents[2] / "examples"

CHUNKS = tw.row_major((32, 4))
"""Each thread takes a contiguous chunk, as a tuple of counts used to mean."""


@pytest.mark.parametrize(
    ("threads", "columns", "touched", "fewest"),
    [
        (CHUNKS, 256, 16384, 8192),
        (CHUNKS, 255, 65280, 8160),
        (128, 256, 8192, 8192),
        (128, 255, 9952, 8192),
    ],
)
def test_sectors_of_a_copy_by_chunks_and_by_a_number_of_threads(threads, columns, touched, fewest) -> None:
    x = np.ones((256, columns), np.float32)
    report = staged.check(x, np.zeros_like(x), threads=threads)
    assert report.is_clean
    assert [(count.touched, count.fewest) for count in report.counters.sectors] == [(touched, fewest)] * 2
    factor = touched / fewest
    assert len(report.notes) == (2 if factor > UNCOALESCED else 0)
    for note, name in zip(report.notes, "XY", strict=False):
        asked = f"{touched} sectors of global {name}.tile((64, 32), (m, n)) where {fewest} would do"
        assert f"{asked}, {factor:.2f} times as many" in note
        assert "test_uncoalesced.py:" in note
        assert note in str(report)


@pytest.mark.parametrize(
    ("threads", "columns", "said"),
    [(CHUNKS, 256, "2.00"), (CHUNKS, 255, "8.00"), (128, 256, ""), (128, 255, "")],
)
def test_inspect_names_them_with_the_same_factor(threads, columns, said) -> None:
    x = tw.like("f32", 256, columns)
    made = staged.compile(x, x, threads=threads, target="cuda", arch="sm_80")
    lines = [str(one) for one in movements(made.listing.kernel, "cuda", made.kernel)]
    assert len(lines) == 2
    for line in lines:
        assert (", uncoalesced: " in line) == bool(said)
        assert f"{said} sectors of global memory for each that it needs" * bool(said) in line


@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_counters_and_resources_predict_the_same_wavefronts(dtype) -> None:
    """One counts the tensor with the author's layout, the other with the compiled kernel's."""
    x = tw.like(dtype, 128, 128)
    made = transposed.compile(x, x, target="cuda", arch="sm_80")
    report = transposed.check(x, x, partial="Y")
    moved = movements(made.listing.kernel, "cuda", made.kernel)
    text = counters(report, made)
    for one in moved:
        assert f"{one.source} -> {one.target}: {one.passes:.2f} wavefronts per request predicted" in text
    assert "of shared" not in text
    assert "sectors for" in text
    as_written = {round(count.average, 2) for count in report.counters.banks}
    assert as_written != {round(one.passes, 2) for one in moved}, "else this test shows nothing"


def test_what_is_contiguous_along_rows_and_written_along_columns_is_named() -> None:
    x = tw.like("f32", 128, 128)

    @tw.kernel(X="M N", Y="N M")
    def naive(X, Y):
        m, n = tw.block_index(tw.ceil_div(X.shape, (32, 32)))
        tw.copy(X.tile((32, 32), (m, n)).permute(1, 0), Y.tile((32, 32), (n, m)), threads=128)

    report = naive.check(x, x)
    (note,) = report.notes
    assert "reads" in note
    assert "8.00 times" in note


@pytest.mark.parametrize(
    ("example", "name", "arrays"),
    [
        ("02_basic_gemm", "LARGE", [("f16", 512, 512)] * 3),
        ("04_optimized_gemm", "LARGE", [("f16", 512, 512)] * 3),
        ("05_im2col", "LARGE", [("f32", 32, 9, 9, 7, 4, 64), ("f32", 4, 7840, 1728)]),
    ],
)
def test_copies_of_the_examples_are_coalesced(example, name, arrays) -> None:
    """Except for accumulators that are stored by their own map, two neighbours at a time."""
    bound = runpy.run_path(str(EXAMPLES / f"{example}.py"))[name]
    made = bound.compile(*(tw.like(*array) for array in arrays), target="cuda", arch="sm_80")
    moved = movements(made.listing.kernel, "cuda", made.kernel)
    factors = {one.source: one.sectors for one in moved if one.sectors is not None}
    assert factors.pop("acc (registers)", 2.0) == 2.0
    assert factors
    assert set(factors.values()) == {1.0}
