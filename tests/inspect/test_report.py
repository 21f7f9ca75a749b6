"""The report on a compiled kernel."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.inspect.from_files import from_file
from tilewright.inspect.report import movements, resources
from tilewright.inspect.subject import Subject, library_gemm, read_shape
from tilewright.runtime.executable import Executable


@tw.kernel(X="N", Y="N")
def reported(X, Y, *, tile):
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
    executable = of(reported, tw.f32, 4096).compile("cuda", "sm_80")
    assert executable.listing is not None
    moved = movements(executable.listing.kernel)
    assert [(m.elems, m.bytes) for m in moved] == [(4, 16), (4, 16)]
    assert str(moved[0]).startswith(
        "copy X (global) -> x (registers): 4 elements (16 bytes) per access, test_report"
    )


def test_a_length_that_no_width_divides_is_copied_one_by_one() -> None:
    executable = of(reported, tw.f32, 4097).compile("cuda", "sm_80")
    assert executable.listing is not None
    assert {m.elems for m in movements(executable.listing.kernel)} == {1}


def test_resources_list_what_the_compiler_reported() -> None:
    text = resources(of(reported, tw.f16, 4096).compile("cuda", "sm_90a"))
    rows = dict(line.split("  ", 1) for line in text.splitlines() if "  " in line)
    assert rows["target"].strip() == "cuda sm_90a"
    assert int(rows["registers per thread"]) > 0
    assert int(rows["spill store bytes"]) == 0
    assert int(rows["machine code bytes"]) > 0


def test_the_reference_has_neither_code_nor_scratch() -> None:
    text = resources(of(reported, tw.f16, 4096).compile("reference"))
    assert "machine code" not in text
    assert "threads per block" in text


def test_a_kernel_with_numbers_is_compiled_without_and_counted_with_them() -> None:
    subject = of(scaled, tw.f32, 256)
    assert isinstance(subject.compile("cpu"), Executable)
    with pytest.raises(tw.LaunchError, match="no value for alpha; give --set alpha=…"):
        subject.on_reference()
    report = dataclasses.replace(subject, numbers={"alpha": 0.5}).on_reference()
    assert report.is_clean
    assert report.blocks == 2


def test_counters_of_a_small_problem() -> None:
    report = of(reported, tw.f32, 100_000).on_reference()
    assert report.is_clean
    assert report.blocks == 2
    assert {count.excess for count in report.counters.sectors} == {1.0}


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_layouts_of_the_gemm(layout: str) -> None:
    subject = library_gemm("f32", "M=8,N=16,K=24", layout, "exact")
    a, b, c = subject.specs()
    assert a is not None
    assert b is not None
    assert c is not None
    assert a.unit_dim == (1 if layout[0] == "n" else 0)  # A is (M, K)
    assert b.unit_dim == (1 if layout[1] == "n" else 0)  # B is (K, N)
    assert c.unit_dim == 1


def test_shapes_by_letter_and_by_name() -> None:
    assert read_shape("3840x4096x4096") == {"M": 3840, "N": 4096, "K": 4096}
    assert read_shape("rows=3") == {"rows": 3}
    for wrong in ("8", "8x8", "8x8x8x8", "M=", "M=8;N=8", "", "axbxc"):
        with pytest.raises(tw.LaunchError, match="means nothing"):
            read_shape(wrong)


def test_arrays_are_described_and_never_filled() -> None:
    # Its matrices would take 4 TiB.
    ir = library_gemm("f16", "1000000x1000000x1000", "nn", "exact").trace()
    assert "gemm" in ir
    assert np.dtype(np.float16).itemsize == 2


LADDER = Path(__file__).parents[2] / "examples"
GEMM = {"M": 3840, "N": 4096, "K": 4096}
IMAGE = {"N": 32, "D": 9, "H": 9, "W": 7, "G": 4, "C": 64, "P": 7840, "T": 1728}


@pytest.mark.parametrize(
    ("kernel", "dtype", "extents", "said"),
    [
        (
            "02_basic_gemm.py:LARGE",
            "f16",
            GEMM,
            [
                "copy A (global) -> sA (shared): 8 elements (16 bytes) per access, no bank conflict",
                "copy sA (shared) -> sA_frag (registers): 4 matrices (16 bytes of each lane) per access, no",
                "copy acc (registers) -> C (global): 2 elements (4 bytes) per access, uncoalesced: 2.00",
            ],
        ),
        (
            "04_optimized_gemm.py:LARGE",
            "f16",
            GEMM,
            [
                "copy A (global) -> rA (registers): 8 elements (16 bytes) per access, 04_",
                "copy rA (registers) -> sA (shared): 8 elements (16 bytes) per access, no bank conflict",
                "copy rB (registers) -> sB (shared): 8 elements (16 bytes) per access, 2.00 passes over",
                "copy sB (shared) -> sB_frag (registers): 4 matrices (16 bytes of each lane) per access, no",
                "copy acc (registers) -> sC (shared): {stored} per access, no bank conflict",
                "copy sC (shared) -> C (global): 8 elements (16 bytes) per access, no bank conflict",
            ],
        ),
        (
            "05_im2col.py:LARGE",
            "f32",
            IMAGE,
            ["copy X (global) -> Y (global): 4 elements (16 bytes) per access, 05_"],
        ),
    ],
)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_what_is_said_of_the_ladder(
    kernel: str, dtype: str, extents: dict[str, int], said: list[str], arch: str
) -> None:
    shape = ",".join(f"{name}={extent}" for name, extent in extents.items())
    subject = from_file(str(LADDER / kernel), dtype, shape, ())
    text = resources(subject.compile("cuda", arch))
    rows = dict(line.split("  ", 1) for line in text.splitlines() if "  " in line)
    assert int(rows["spill store bytes"]) == int(rows["spill load bytes"]) == 0
    assert 0 < int(rows["registers per thread"]) <= 255
    assert int(rows["shared bytes"]) >= 0
    assert rows["bank conflicts"].strip().startswith("predicted for each copy; --measure")
    stored = {"sm_80": "2 elements (4 bytes)", "sm_90a": "4 matrices (16 bytes of each lane)"}[arch]
    for part in said:
        assert part.format(stored=stored) in text


def test_predicted_passes_are_those_that_the_reference_counts() -> None:
    """The operands keep the author's layout when the kernel is lowered."""
    subject = from_file(str(LADDER / "04_optimized_gemm.py:LARGE"), "f16", "256x128x64", ())
    executable = subject.compile("cuda", "sm_90a")
    assert executable.listing is not None
    predicted = {
        m.target: m.passes for m in movements(executable.listing.kernel) if "rA" in m.source + m.target
    }
    predicted |= {
        m.target: m.passes for m in movements(executable.listing.kernel) if m.source.startswith("rB")
    }
    counted = {
        f"{count.site.value} (shared)": count.average
        for count in subject.on_reference().counters.banks
        if count.site.action == "write" and str(count.site.value) in ("sA", "sB")
    }
    assert counted == {name: predicted[name] for name in ("sA (shared)", "sB (shared)")}
    assert counted == {"sA (shared)": 1.0, "sB (shared)": 2.0}
