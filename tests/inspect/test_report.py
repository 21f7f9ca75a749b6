"""What is said of a compiled kernel."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.inspect.report import movements, resources
from tilewright.inspect.subject import Subject, library_gemm, read_shape
from tilewright.runtime.executable import Executable


@tw.kernel(X="N", Y="N")
def double(X, Y, *, tile):
    n = tw.block_index(tw.ceil_div(X.shape[0], tile))
    x = tw.load(X.tile((tile,), (n,)).partition((32,)))
    tw.copy(x + x, Y.tile((tile,), (n,)))


@tw.kernel(X="N", Y="N", alpha=tw.f32)
def scaled(X, Y, alpha, *, tile):
    n = tw.block_index(tw.ceil_div(X.shape[0], tile))
    x = tw.load(X.tile((tile,), (n,)).partition((32,)))
    tw.copy(x * alpha, Y.tile((tile,), (n,)))


def of(kernel: object, dtype: tw.DType, n: int) -> Subject:
    bound = kernel.bind(tile=128)  # type: ignore[attr-defined]
    return Subject(bound, {"X": dtype, "Y": dtype}, {"N": n})


def test_widths_of_copies_on_cuda() -> None:
    executable = of(double, tw.f32, 4096).compile("cuda", "sm_80")
    assert executable.listing is not None
    moved = movements(executable.listing.kernel)
    assert [(m.elems, m.bytes) for m in moved] == [(4, 16), (4, 16)]
    assert str(moved[0]).startswith(
        "copy X (global) -> x (registers): 4 elements (16 bytes) per access, test_report"
    )


def test_a_length_that_no_width_divides_is_copied_one_by_one() -> None:
    executable = of(double, tw.f32, 4097).compile("cuda", "sm_80")
    assert executable.listing is not None
    assert {m.elems for m in movements(executable.listing.kernel)} == {1}


def test_resources_list_what_the_compiler_reported() -> None:
    text = resources(of(double, tw.f16, 4096).compile("cuda", "sm_90a"))
    rows = dict(line.split("  ", 1) for line in text.splitlines() if "  " in line)
    assert rows["target"].strip() == "cuda sm_90a"
    assert int(rows["registers per thread"]) > 0
    assert int(rows["spill store bytes"]) == 0
    assert int(rows["machine code bytes"]) > 0


def test_the_reference_has_neither_code_nor_scratch() -> None:
    text = resources(of(double, tw.f16, 4096).compile("reference"))
    assert "machine code" not in text
    assert "threads per block" in text


def test_a_kernel_with_numbers_is_compiled_but_not_counted() -> None:
    subject = of(scaled, tw.f32, 256)
    assert isinstance(subject.compile("cpu"), Executable)
    with pytest.raises(tw.LaunchError, match="alpha is a number"):
        subject.on_reference()


def test_counters_of_a_small_problem() -> None:
    report = of(double, tw.f32, 100_000).on_reference()
    assert report.is_clean
    assert report.blocks == 2
    assert {count.excess for count in report.counters.sectors} == {1.0}


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_layouts_of_the_gemm(layout: str) -> None:
    subject = library_gemm("reference", "f32", "M=8,N=16,K=24", layout, "exact")
    a, b, c = subject.specs()
    assert a is not None
    assert b is not None
    assert c is not None
    assert a.unit_dim == (1 if layout[0] == "n" else 0)  # A is (M, K)
    assert b.unit_dim == (0 if layout[1] == "n" else 1)  # B is (N, K), the transpose of what the user has
    assert c.unit_dim == 1


def test_shapes_by_letter_and_by_name() -> None:
    assert read_shape("3840x4096x4096") == {"M": 3840, "N": 4096, "K": 4096}
    assert read_shape("rows=3") == {"rows": 3}
    for wrong in ("8", "8x8", "8x8x8x8", "M=", "M=8;N=8", "", "axbxc"):
        with pytest.raises(tw.LaunchError, match="means nothing"):
            read_shape(wrong)


def test_arrays_are_described_and_never_filled() -> None:
    # Its matrices would take 4 TiB.
    ir = library_gemm("cuda", "f16", "1000000x1000000x1000", "nn", "exact").trace()
    assert "gemm" in ir
    assert np.dtype(np.float16).itemsize == 2
