"""Hopper's machine code in the listing of CUDA's disassembler: example 03, and the library's products.

``golden/hopper.sass`` has the recorded loops of example 03, which need no tool.  All other tests compile and
disassemble; they bring `nvdisasm` with them (the package nvidia-cuda-nvdisasm).
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import tilewright as tw
from tilewright.inspect.from_files import from_file
from tilewright.inspect.isa import IsaKind, IsaReport, isa_report, page
from tilewright.inspect.isa.making import of_products, read_sass
from tilewright.inspect.isa.report import InstructionSource
from tilewright.inspect.subject import Subject, library_gemm
from tilewright.ir.async_ops import MmaAsync
from tilewright.ir.ops import Copy
from tilewright.runtime import nvrtc
from tilewright.runtime.device import cubin_with_lines
from tilewright.runtime.nvrtc import disassemble, find_nvdisasm, version_of
from tilewright.targets.nvidia import SM_90A
from tilewright.targets.simt.banks import asked_by_descriptor

EXAMPLE = f"{Path(__file__).parents[2] / 'examples' / '03_hopper_gemm.py'}:hopper_gemm"
CONSTANTS = ("mma=tw.TiledMma(tw.atoms.wgmma(tw.f16, 64))", "stages=3", "buffers=1", "blocks=132", "group=8")
LISTED = Path(__file__).parent / "golden" / "hopper.sass"
TAKES = {"registers": 168, "shared_bytes": 90160, "spill_store_bytes": 0, "stack_bytes": 0}
THREADS = 384


@functools.cache
def example() -> Subject:
    """Tiles of 128 x 64 by 64; two warpgroups multiply and one loads."""
    return from_file(EXAMPLE, "f16", "M=512,N=512,K=512", CONSTANTS)


@functools.cache
def report() -> IsaReport:
    return isa_report(example(), "cuda", "sm_90a")


# ---------------------------------------------------------------- without any tool


def test_what_was_listed_is_read_into_two_loops() -> None:
    """The loop that multiplies has two steps of K in an iteration, and the loop that loads has four."""
    isa, _ = read_sass(LISTED.read_text(), SM_90A, TAKES, THREADS)
    assert isa.kernel == "hopper_gemm"
    assert isa.main.mnemonics["HGMMA.64x64x16.F32"] == isa.main.mix[IsaKind.MATRIX] == 8
    assert isa.main.mix[IsaKind.SHARED_ATOMIC] == 2, "an arrival at `empty` in each step"
    assert isa.loading is not None
    assert isa.loading.mnemonics["UTMALDG.2D"] == isa.loading.mix[IsaKind.TO_SHARED] == 8
    assert isa.loading.mnemonics["SYNCS.PHASECHK.TRANS64.TRYWAIT"] == 4
    assert not {IsaKind.OTHER, IsaKind.STACK} & {line.kind for line in isa.whole.lines}
    assert isa.limits == {"warps": 16, "registers": 3, "shared_bytes": 6}
    assert isa.limited_by == ("registers",)


def test_figures_of_what_was_listed(golden: Callable[[str, str], None]) -> None:
    isa, _ = read_sass(LISTED.read_text(), SM_90A, TAKES, THREADS)
    figures = str(IsaReport("hopper_gemm for cuda sm_90a", isa)).partition("the main loop, from")[0]
    golden(figures.rstrip() + "\n", "hopper.txt")


def test_a_loop_that_loads_for_itself_has_no_other() -> None:
    text = LISTED.read_text().replace("WARPGROUP.ARRIVE ;", "LDG.E.128 R4, [R2.64] ;", 1)
    isa, _ = read_sass(text, SM_90A, TAKES, THREADS)
    assert isa.loading is None
    assert isa.main.widths(IsaKind.GLOBAL_LOAD) == {16: 1}


# ---------------------------------------------------------------- as it is listed now


def excerpt(text: str) -> str:
    """Return the parts of a listing with the two loops, from a loop's label to its branch back."""
    isa, _ = read_sass(text, SM_90A, TAKES, THREADS)
    assert isa.loading is not None
    compiler = "NVRTC {}.{}".format(*nvrtc.version())
    lines, kept = text.splitlines(), [f"// {compiler}", ".text.hopper_gemm:"]
    for loop in (isa.main, isa.loading):
        begin = lines.index(f"{loop.label}:")
        back = max(line.line for line in loop.lines if line.jumps == loop.label)
        kept += [line for line in lines[begin:back] if "//##" not in line]
    return "\n".join([*kept, "        /*ffff*/                   EXIT ;", ""])


def test_what_was_listed_is_what_is_listed(request: pytest.FixtureRequest) -> None:
    """The same compiler gives the recorded text; another one gives the same products and copies."""
    made = example().compile("cuda", "sm_90a")
    now = excerpt(disassemble(cubin_with_lines(made), find_nvdisasm(), lines=True))
    if request.config.getoption("--update-golden"):
        LISTED.write_text(now)
    then = LISTED.read_text()
    if then.partition("\n")[0] == now.partition("\n")[0]:
        assert then == now, "another listing of the same compiler: pytest --update-golden"
    mixes = []
    for text in (then, now):
        isa, _ = read_sass(text, SM_90A, TAKES, THREADS)
        assert isa.loading is not None
        mixes.append((isa.main.mnemonics["HGMMA.64x64x16.F32"] > 0, isa.loading.mnemonics["UTMALDG.2D"] > 0))
    assert mixes == [(True, True)] * 2


def test_the_disassembler_says_its_version() -> None:
    assert [int(number) for number in version_of(find_nvdisasm()).split(".")] >= [12, 0]


def test_instructions_name_the_authors_arrays_and_lines() -> None:
    found = report()
    assert "an assembler's lines are coarse" in found.notes[0]
    lines = Path(EXAMPLE.removesuffix(":hopper_gemm")).read_text().splitlines()

    def written(line: int) -> str:
        return lines[int(found.sources[line].place.split(":")[1]) - 1].strip()

    for line in found.isa.main.of(IsaKind.MATRIX):
        assert found.sources[line.line].tensors == ("A", "B")
        assert written(line.line).startswith("tw.hopper.mma_async(sA[stage, g], sB[stage], acc")
    assert found.isa.loading is not None
    copies = {written(line.line) for line in found.isa.loading.of(IsaKind.TO_SHARED)}
    assert {copy.partition(".tile")[0] for copy in copies} == {
        "tw.hopper.tma_load(A",
        "tw.hopper.tma_load(B",
    }
    loops = [line for loop in found.loops().values() for line in loop.lines]
    known = [line.line in found.sources for line in loops]
    assert sum(known) > 0.9 * len(known)
    stores = [line for line in found.isa.whole.lines if line.mnemonic.startswith("UTMASTG")]
    assert {found.sources[line.line].tensors for line in stores} == {("C",)}


def test_the_report_says_what_a_turn_moves_and_what_the_kernel_takes() -> None:
    found = report()
    tables = {name.partition(",")[0]: rows for name, rows in found.tables().items()}
    assert {"a turn of the main loop", "a turn of the loop that loads for it"} <= tables.keys()
    assert tables["boxes that are moved in a turn"] == [
        ("global load into shared memory", "4 of 16384 bytes", "A"),
        ("global load into shared memory", "4 of 8192 bytes", "B"),
    ]
    taken = dict(tables["resources of the kernel"])
    assert (taken["registers"], taken["spill store bytes"], taken["stack bytes"]) == ("168", "0", "0")
    assert taken["shared bytes"] == "90160"
    assert taken["warps of a SIMD"].startswith("3, limited by registers")
    assert "inf" not in str(found)


def test_a_page_has_both_loops() -> None:
    made, found = page(report()), report()
    assert "<h2>the main loop, from where a turn begins</h2>" in made
    assert "<h2>the loop that loads for it, from where a turn begins</h2>" in made
    assert made.count("UTMALDG.2D [") == 8
    assert all(line.text.split()[0] in made for line in found.isa.main.lines)


def test_a_ring_of_threads_copies_shows_widths_and_banks() -> None:
    """`mma.sync`: a lane loads 16 bytes of global memory; matrices of shared memory have no conflict."""
    schedule = tw.Schedule(tw.atoms.MMA_F16, (64, 64, 32), (2, 2), stages=3, staging="cp_async")
    found = isa_report(library_gemm("f16", "512x512x512", "nt", schedule=schedule), "cuda", "sm_80")
    main = found.isa.main
    assert found.isa.loading is None
    assert main.widths(IsaKind.TO_SHARED) == Counter({16: len(main.of(IsaKind.TO_SHARED))})
    assert main.of(IsaKind.SHARED_LOAD)
    assert all(line.mnemonic.startswith("LDSM.16.M") for line in main.of(IsaKind.SHARED_LOAD))
    assert found.met(IsaKind.SHARED_LOAD, IsaKind.TO_SHARED).factor == 1
    assert {found.sources[line.line].tensors for line in main.of(IsaKind.MATRIX)} == {("A", "B")}


# ---------------------------------------------------------------- what assemblers leave out, and banks


def test_a_product_without_a_line_of_its_own_is_of_the_product_before_it() -> None:
    found = report()
    first, second, *_ = found.isa.main.of(IsaKind.MATRIX)
    other = next(one for one in found.sources.values() if not isinstance(one.op, MmaAsync | Copy))
    wrong: dict[int, InstructionSource] = {**found.sources, second.line: other}
    assert of_products(found.isa, wrong)[second.line] == found.sources[first.line]
    assert of_products(found.isa, {second.line: other})[second.line] == other, "nothing is known before it"


@tw.kernel(A="M K")
def copied(A, *, swizzle):
    tw.copy(A.tile((64, 64), (0, 0)), tw.shared((64, 64), A.dtype, swizzle=swizzle), threads=128)


@pytest.mark.parametrize(("swizzle", "passes"), [(128, 64), (None, 512)])
def test_operands_of_descriptors_need_their_swizzle(swizzle: int | None, passes: int) -> None:
    """64 x 64 of f16 are 64 core matrices; without a swizzle, eight rows of 128 bytes conflict."""
    kernel = copied.trace(tw.like("f16", 64, 64), target="cuda", arch="sm_90a", swizzle=swizzle)
    (copy,) = (op for op in kernel.walk() if isinstance(op, Copy))
    asked = asked_by_descriptor(copy.target)
    assert (asked.passes, asked.fewest) == (passes, 64)


@pytest.mark.parametrize("order", ["nn", "nt"])
def test_operands_that_lie_along_their_rows_need_as_few(order: str) -> None:
    listing = library_gemm("f16", "512x512x512", order).listing("cuda", "sm_90a")
    assert listing is not None
    products = [op for op in listing.kernel.walk() if isinstance(op, MmaAsync)]
    assert products
    for value in (value for op in products for value in (op.a, op.b)):
        asked = asked_by_descriptor(value)
        bytes_ = value.tensor.shape[0] * value.tensor.shape[1] * value.dtype.bytes
        assert asked.passes == asked.fewest == bytes_ // 128
