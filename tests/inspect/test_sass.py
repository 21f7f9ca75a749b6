"""Loops, kinds, widths and the author's lines in a disassembler's listing of NVIDIA's machine code."""

from __future__ import annotations

import stat
import struct
from pathlib import Path

import pytest

from tilewright.cli.doctor import cuda_tools
from tilewright.errors import LaunchError, ToolchainError
from tilewright.inspect.isa import Gates, IsaKind, broken, isa_report
from tilewright.inspect.isa.making import read_sass
from tilewright.inspect.subject import library_gemm
from tilewright.ir.ops import Copy, Mma
from tilewright.runtime import nvrtc
from tilewright.runtime.device import cubin, cubin_with_lines
from tilewright.runtime.nvrtc import disassemble, find_nvdisasm, version_of
from tilewright.targets.nvidia import SM_80, SM_90A

LISTING = """
\t.target\tsm_80
.section\t.text.gemm,"ax",@progbits
gemm:
.text.gemm:
\t//## File "gemm.cu", line 20
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_2:
\t//## File "gemm.cu", line 9 inlined at "gemm.cu", line {copy}
\t//## File "gemm.cu", line {copy}
        /*0010*/              @!PT LDS RZ, [RZ] ;
        /*0020*/                   LDGSTS.E.BYPASS.128 [R77+0x8000], [R4.64], !P6 ;
        /*0030*/                   LDGDEPBAR ;
        /*0040*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*0050*/                   LDSM.16.M88.4 R8, [R2] ;
        /*0060*/                   LDSM.16.M88.2 R12, [R2] ;
\t//## File "gemm.cu", line {mma}
        /*0070*/                   HMMA.16816.F32 R4, R8, R12, R4 ;
        /*0080*/                   HGMMA.64x256x16.F32 R24, gdesc[UR8], R24, gsb0 ;
        /*0090*/              @!P1 BRA `(.L_x_2) ;
        /*00a0*/                   STG.E.64 [R2.64], R4 ;
        /*00b0*/                   EXIT ;
.L_x_9:
        /*00c0*/                   BRA `(.L_x_9) ;
.text.other:
        /*0000*/                   EXIT ;
"""
TAKES = {"registers": 216, "shared_bytes": 98304, "spill_store_bytes": 0, "stack_bytes": 0}


def test_a_listing_is_read_into_loops() -> None:
    isa, lines = read_sass(LISTING.format(copy=30, mma=40), SM_80, TAKES, 128)
    assert isa.kernel == "gemm"
    assert [line.mnemonic for line in isa.main.lines] == [
        *("LDS", "LDGSTS.E.BYPASS.128", "LDGDEPBAR", "BAR.SYNC.DEFER_BLOCKING"),
        *("LDSM.16.M88.4", "LDSM.16.M88.2", "HMMA.16816.F32", "HGMMA.64x256x16.F32", "BRA"),
    ]
    assert isa.main.label == ".L_x_2"
    assert isa.main.mix[IsaKind.MATRIX] == 2
    assert isa.main.widths(IsaKind.TO_SHARED) == {16: 1}
    assert isa.main.widths(IsaKind.SHARED_LOAD) == {16: 1, 8: 1}
    assert isa.main.mix[IsaKind.HINT] == 1, "what is never executed loads nothing"
    assert isa.whole.widths(IsaKind.GLOBAL_STORE) == {8: 1}
    assert isa.limits == {"warps": 16, "registers": 2, "shared_bytes": 1}
    assert isa.limited_by == ("shared_bytes",)
    first, *_, last = isa.main.lines
    assert (lines[first.line], lines[last.line]) == (30, 40)
    assert [one.gate for one in broken(isa, Gates(warps=2))] == [
        "matrix_per_load",
        "shared_load_bytes",
        "warps",
    ]


@pytest.mark.parametrize(
    ("text", "kind", "width"),
    [
        ("LDG.E.128.CONSTANT R4, [R2.64]", IsaKind.GLOBAL_LOAD, 16),
        ("LDS.U.128 R4, [R2]", IsaKind.SHARED_LOAD, 16),
        ("STS.U16 [R2], R4", IsaKind.SHARED_STORE, 2),
        ("STSM.16.M88.4 [R2], R4", IsaKind.SHARED_STORE, 16),
        ("STL.64 [R1], R4", IsaKind.STACK, 8),
        ("UTMALDG.2D [UR8], [UR4]", IsaKind.TO_SHARED, 0),
        ("SYNCS.PHASECHK.TRANS64.TRYWAIT P2, [UR8+0x38000], R4", IsaKind.WAIT, 0),
        ("SYNCS.ARRIVE.TRANS64.A1T0 RZ, [R5+URZ+0x38020], RZ", IsaKind.SHARED_ATOMIC, 0),
        ("WARPGROUP.DEPBAR.LE gsb0, 0x1", IsaKind.WAIT, 0),
        ("UIADD3 UR8, UR24, 0x1, URZ", IsaKind.SCALAR, 0),
        ("R2UR UR4, R2", IsaKind.SCALAR, 0),
        ("ULDC.64 UR4, c[0x0][0x118]", IsaKind.CONSTANT_LOAD, 0),
        ("CCTL.IVALL", IsaKind.FLUSH, 0),
        ("IMAD.WIDE.U32 R4, R42, -0x55555555, RZ", IsaKind.VECTOR, 0),
        ("USETMAXREG.DEALLOC.CTAPOOL 0x18", IsaKind.HINT, 0),
    ],
)
def test_kinds_and_widths(text: str, kind: IsaKind, width: int) -> None:
    isa, _ = read_sass(f".text.k:\n        /*0000*/    {text} ;\n", SM_90A, TAKES, 128)
    (line,) = isa.whole.lines
    assert (line.kind, line.bytes) == (kind, width)


def test_what_is_no_listing_is_refused() -> None:
    with pytest.raises(LaunchError, match="no machine code of a kernel for sm_80"):
        read_sass("error: nothing\n", SM_80, TAKES, 128)


def section(elf: bytes, name: str) -> bytes:
    """Return the bytes of a section of an ELF image."""
    (table,) = struct.unpack_from("<Q", elf, 40)
    size, count, names = struct.unpack_from("<HHH", elf, 58)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + at * size) for at in range(count)]
    strings = headers[names][4]
    for start, _, _, _, offset, length in headers:
        if elf[strings + start : elf.index(b"\0", strings + start)] == name.encode():
            return elf[offset : offset + length]
    raise KeyError(name)


def test_line_numbers_change_no_byte_of_the_code() -> None:
    made = library_gemm("f16", "512x512x512", "nt").compile("cuda", "sm_90a")
    one, other = cubin(made), cubin_with_lines(made)
    assert b".debug_line" in other
    assert b".debug_line" not in one
    assert section(one, ".text.gemm") == section(other, ".text.gemm")


# ---------------------------------------------------------------- the disassembler


def stand_in(folder: Path, program: str) -> Path:
    """Write a program that prints the text of a disassembler."""
    made = folder / "nvdisasm"
    made.write_text(f"#!/bin/sh\n{program}\n")
    made.chmod(made.stat().st_mode | stat.S_IXUSR)
    return made


def test_without_a_disassembler_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(nvrtc, "TOOLKIT", "")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ToolchainError, match="pip install nvidia-cuda-nvdisasm"):
        isa_report(library_gemm("f16", "512x512x512"), "cuda", "sm_90a")


@pytest.mark.parametrize(("package", "below"), [("nvidia", "cu13/bin"), ("triton", "backends/nvidia/bin")])
def test_a_package_of_python_may_have_it(
    package: str, below: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder := tmp_path / below).mkdir(parents=True)
    made = stand_in(folder, "true")

    class Spec:
        submodule_search_locations = (str(tmp_path),)

    monkeypatch.setattr(nvrtc.importlib.util, "find_spec", lambda name: Spec if name == package else None)
    assert find_nvdisasm(path="") == str(made)


def test_the_toolkit_need_not_be_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = stand_in(tmp_path, "true")
    monkeypatch.setattr(nvrtc.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(nvrtc, "TOOLKIT", str(tmp_path))
    assert find_nvdisasm(path="") == str(made)


def test_a_disassembler_that_fails_is_quoted(tmp_path: Path) -> None:
    made = stand_in(tmp_path, "echo 'nvdisasm fatal: no ELF' >&2; exit 255")
    with pytest.raises(ToolchainError, match="status 255: nvdisasm fatal: no ELF"):
        disassemble(b"", str(made))
    with pytest.raises(ToolchainError, match="cannot run"):
        disassemble(b"", str(tmp_path / "none"))
    with pytest.raises(ToolchainError, match="--version` names no version: 'five'"):
        version_of(str(stand_in(tmp_path, "echo five")))


def test_doctor_says_which_disassembler_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "Cuda compilation tools, release 12.9, V12.9.88"
    made = stand_in(tmp_path, f"echo '{said}'")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    found = next(check for check in cuda_tools() if check.text.startswith("nvdisasm"))
    assert (found.status, found.fix) == ("ok", "")
    assert found.text.startswith(f"nvdisasm 12.9.88 at {made}: ")
    stand_in(tmp_path, "exit 3")
    broken_one = next(check for check in cuda_tools() if check.text.startswith("nvdisasm"))
    assert broken_one.status == "missing"
    assert "failed with status 3" in broken_one.text
    monkeypatch.setattr(nvrtc.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(nvrtc, "TOOLKIT", "")
    monkeypatch.setenv("PATH", "")
    none = next(check for check in cuda_tools() if check.text.startswith("nvdisasm"))
    assert (none.status, none.fix) == ("missing", "pip install nvidia-cuda-nvdisasm")


def test_a_report_names_arrays_and_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recorded listing replaces the disassembler; the report is of the compiled text."""
    subject = library_gemm("f16", "512x512x512", "nt")
    listing = subject.listing("cuda", "sm_80")
    assert listing is not None
    code = listing.text.splitlines()
    lines = {line: op for line, op in listing.lines.items() if not code[line - 1].lstrip().startswith("//")}
    copy = next(line for line, op in lines.items() if isinstance(op, Copy) and op.engine == "async")
    mma = next(line for line, op in lines.items() if isinstance(op, Mma))
    (tmp_path / "listing").write_text(LISTING.format(copy=copy, mma=mma))
    stand_in(tmp_path, f"cat {tmp_path / 'listing'}")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    found = isa_report(subject, "cuda", "sm_80")
    assert found.counted == "predicted from layouts, for listings for sm_80 are not executed"
    by_name = {line.mnemonic: found.sources[line.line] for line in found.isa.main.lines}
    assert by_name["LDGSTS.E.BYPASS.128"].tensors == ("A",)
    assert by_name["LDGSTS.E.BYPASS.128"].says.startswith("A -> sA, 16 bytes at a time")
    assert by_name["HMMA.16816.F32"].tensors == ("A", "B")
    assert by_name["HMMA.16816.F32"].place.startswith("tiled_product.py:")
    (stored,) = (line.line for line in found.isa.main.of(IsaKind.TO_SHARED))
    assert found.conflicts[stored].factor == 1
