"""Golden texts compile everywhere, every operation has a rule, and loops are vector code."""

from __future__ import annotations

import platform
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.dtypes import DType
from tilewright.errors import CompileError, LaunchError
from tilewright.ir.async_ops import ASYNC_OPS
from tilewright.ir.copies import is_in_background
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import KINDS, Mma
from tilewright.ir.parser import parse_kernel
from tilewright.ir.printer import print_kernel
from tilewright.runtime import native
from tilewright.targets import cpu

from .test_vector_code import WIDEST

pytestmark = pytest.mark.in_turns(3)

TRIPLES = {
    "x86-64-v4": native.Triple("x86_64-linux-gnu", "x86-64-v4"),
    "x86-64-v3": native.Triple("x86_64-linux-gnu", "x86-64-v3"),
    "x86-64": native.Triple("x86_64-linux-gnu"),
    "aarch64": native.Triple("aarch64-linux-gnu"),
}
STRICT = ("-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-Wno-pass-failed", "-Wno-psabi")


@tw.kernel(A="M K", B="N K", C="M N")
def gemm(A, B, C, *, tile, mma):
    tile_m, tile_n, tile_k = tile
    m, n = tw.block_index(tw.ceil_div(C.shape, (tile_m, tile_n)))
    sA = tw.shared((tile_m, tile_k), A.dtype)
    sB = tw.shared((tile_n, tile_k), B.dtype)
    acc = tw.accumulator(mma)
    for k in tw.range(tw.ceil_div(A.shape[1], tile_k)):
        tw.copy_async(A.tile((tile_m, tile_k), (m, k)), sA, threads=(4, 8), vector=4)
        tw.copy_async(B.tile((tile_n, tile_k), (n, k)), sB, threads=(4, 8), vector=4)
        tw.async_commit()
        tw.async_wait(0)
        tw.barrier()
        tw.mma(sA, sB, acc)
        tw.barrier()
    tw.copy(acc, C.tile((tile_m, tile_n), (m, n)))


@tw.kernel(X="M N", bias="N", Y="N M", alpha=tw.f32)
def epilogue(X, bias, Y, alpha, *, tile):
    m, n = tw.block_index(tw.ceil_div(X.shape, tile))
    x = tw.load(X.tile(tile, (m, n)).partition((4, 8)))
    b = tw.load(bias.tile((tile[1],), (n,)).broadcast(0, tile[0]), like=x)
    scaled = x * alpha + b.to(tw.f32)
    active = tw.where(scaled < 0, tw.exp(scaled) - 1.0, scaled)
    staged = tw.shared(tile, Y.dtype)
    tw.copy(active, staged)
    tw.barrier()
    tw.copy(staged.permute(1, 0), Y.tile((tile[1], tile[0]), (n, m)), threads=(8, 4))


def _gemm(dtype: DType, tile: tuple[int, int, int], *, columns: bool = False) -> Kernel:
    """The extents are multiples of 4, which allows asynchronous copies."""
    A, B = np.zeros((68, 36), dtype.numpy), np.zeros((72, 36), dtype.numpy)
    atom = tw.atoms.fma(dtype)
    C = np.zeros((68, 72), atom.c_dtype.numpy, order="F" if columns else "C")
    mma = tw.TiledMma(atom, repeats=(tile[0] // 4, tile[1] // 8))
    return gemm.trace(A, B, C, tile=tile, mma=mma)


def _epilogue() -> Kernel:
    X, bias = np.zeros((37, 50), np.float32), np.zeros(50, np.float16)
    return epilogue.trace(X, bias, np.zeros((50, 37), tw.bf16.numpy), 0.0, tile=(32, 32))


CASES: dict[str, Callable[[], Kernel]] = {
    "gemm_f32": lambda: _gemm(tw.f32, (48, 64, 32)),
    "gemm_f16": lambda: _gemm(tw.f16, (48, 64, 32)),
    "gemm_i8": lambda: _gemm(tw.i8, (16, 24, 8), columns=True),
    "epilogue": _epilogue,
}
ARCHS = {
    "gemm_f32": tuple(TRIPLES),
    "gemm_f16": ("x86-64-v4",),
    "gemm_i8": ("x86-64-v3",),
    "epilogue": ("aarch64",),
}
GOLDEN = [(case, arch) for case, archs in ARCHS.items() for arch in archs]


@pytest.mark.parametrize(("case", "machine_arch"), GOLDEN)
def test_golden(golden: Callable[[str, str], None], case: str, machine_arch: str) -> None:
    golden(cpu.emit(CASES[case](), machine_arch).text, f"{case}.{machine_arch}.cpp")


def compiled(
    toolchain: native.Toolchain, text: str, folder: Path, *options: str, triple: native.Triple | None = None
) -> str:
    """Return the assembly of a text, compiled with warnings as errors."""
    (folder / "kernel.cpp").write_text(text)
    command = [
        *toolchain.compiler,
        "-x",
        "c++",
        *native.flags(triple),
        *options,
        "-S",
        "kernel.cpp",
        "-o",
        "kernel.s",
    ]
    made = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    return (folder / "kernel.s").read_text()


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("case", CASES)
def test_no_compiler_warns(toolchain: native.Toolchain, case: str, tmp_path: Path) -> None:
    compiled(toolchain, cpu.emit(CASES[case](), native.host_arch()).text, tmp_path, *STRICT)


@pytest.mark.parametrize("machine_arch", TRIPLES)
def test_other_machines_are_compiled_for(machine_arch: str, tmp_path: Path) -> None:
    """Cross-compilation needs clang; with only gcc, the test compiles for this machine."""
    for toolchain in native.find_toolchains():
        if toolchain.name != "gcc":
            text = cpu.emit(CASES["gemm_f32"](), machine_arch).text
            made = compiled(toolchain, text, tmp_path, *STRICT, triple=TRIPLES[machine_arch])
            fused = {"x86-64-v4": r"vfmadd.*zmm", "x86-64-v3": r"vfmadd.*ymm", "aarch64": r"fmla\s+v\d+\.4s"}
            assert re.search(fused.get(machine_arch, "mulps"), made)
            text = cpu.emit(CASES["gemm_i8"](), machine_arch).text
            compiled(toolchain, text, tmp_path, triple=TRIPLES[machine_arch])


def test_micro_kernels_are_vector_code_without_spills(toolchain: native.Toolchain, tmp_path: Path) -> None:
    """The loop has a fused multiply-add for each vector of the micro-tile, and does not use the stack."""
    arch = native.host_arch()
    text = cpu.emit(CASES["gemm_f32"](), arch).text
    assembly = compiled(toolchain, text, tmp_path)
    tile = cpu.lower(CASES["gemm_f32"](), arch)[0]
    rows, columns, _ = next(op.mma.atom.shape for op in tile.walk() if isinstance(op, Mma))
    vectors = columns * 4 // cpu.PROCESSORS[arch].vector_bytes
    name = rf"\w*multiply_f32ILi{rows}ELi{vectors}E\w*(\.constprop\.\d+)?"
    body = re.search(rf"^{name}:[^\n]*\n(.*?)^\s*\.size", assembly, re.MULTILINE | re.DOTALL)
    assert body is not None
    widest = {
        "x86-64-v4": r"vfmadd\w+\s.*%zmm",
        "x86-64-v3": r"vfmadd\w+\s.*%ymm",
        "aarch64": r"fmla\s+v\d+\.4s",
    }
    fused = len(re.findall(widest.get(arch, r"mulps"), body[2]))
    assert fused >= rows * vectors
    assert fused % (rows * vectors) == 0, "an unrolled loop has each of them as often as the others"
    # Without a frame, rbp is a register like any other, such as the address of a panel.
    stack = "%r[sb]p" if re.search(r"movq\s+%rsp, %rbp", body[2]) else "%rsp"
    spilled = re.findall(rf"vmov[ua]ps[^\n]*\({stack}\)", body[2])
    assert not spilled


SCALAR_MOVE = {"x86_64": r"\tv?movs[sd]\s+%xmm\d+, *[^%]", "aarch64": r"\tstr\s+s\d+"}
"""A store of a single element."""


def test_copies_of_whole_runs_are_vector_code(toolchain: native.Toolchain, tmp_path: Path) -> None:
    """Arrays have whole tiles: elements of A are read singly to be broadcast, and none is stored singly."""
    A, B, C = (
        np.zeros((48, 32), np.float32),
        np.zeros((64, 32), np.float32, order="F"),
        np.zeros((48, 64), np.float32),
    )
    mma = tw.TiledMma(tw.atoms.fma(tw.f32), repeats=(12, 8))
    kernel = whole_tiles.trace(A, B, C, tile=(48, 64, 32), mma=mma)
    arch, options = WIDEST.get(platform.machine(), (native.host_arch(), ()))
    assembly = compiled(toolchain, cpu.emit(kernel, arch).text, tmp_path, *options)
    moves = re.findall(SCALAR_MOVE.get(platform.machine(), r"\bnone\b"), assembly)
    assert len(moves) <= 4


@tw.kernel(A="M K", B="N K", C="M N")
def whole_tiles(A, B, C, *, tile, mma):
    m, n = tw.block_index((A.shape[0] // tile[0], B.shape[0] // tile[1]))
    sA, sB = tw.shared((tile[0], tile[2]), A.dtype), tw.shared((tile[1], tile[2]), B.dtype)
    acc = tw.accumulator(mma)
    for k in tw.range(A.shape[1] // tile[2]):
        tw.copy(A.tile((tile[0], tile[2]), (m, k)), sA, threads=(4, 8))
        tw.copy(B.tile((tile[1], tile[2]), (n, k)), sB, threads=(4, 8))
        tw.barrier()
        tw.mma(sA, sB, acc)
        tw.barrier()
    tw.copy(acc, C.tile(tile[:2], (m, n)))


@pytest.mark.parametrize(
    "kind",
    [kind for kind in KINDS if kind[0] not in ASYNC_OPS and kind[1] != "bulk"],
    ids=lambda kind: f"{kind[0].name} {kind[1]}".strip(),
)
def test_every_operation_has_a_rule(kind: Any) -> None:
    assert cpu.CPU_RULES.find(*kind) is not None


def test_lowering_gives_a_kernel_that_prints_and_parses_back() -> None:
    for case, make in CASES.items():
        for arch in cpu.PROCESSORS:
            lowered, _ = cpu.lower(make(), arch)
            text = print_kernel(lowered)
            assert print_kernel(parse_kernel(text)) == text, (case, arch)
            assert lowered.threads == 1
            assert not any(is_in_background(op) for op in lowered.walk())


def test_notes_say_what_was_changed() -> None:
    _, notes = cpu.lower(CASES["gemm_f16"](), "x86-64-v3")
    assert notes == (
        "one thread does the work of 32; 4 synchronisations are removed",
        "asynchronous copies complete at once",
        "accumulators of 48x64 lie in micro-tiles of 6x16",
        "sA holds its elements as f32, exactly",
        "sB holds its elements as f32, exactly",
        "sB re-laid out: (64, 32) -> 512*(i0 // 16) + 16*i1 + (i0 % 16)",
    )


def test_emitting_twice_gives_the_same_text() -> None:
    assert cpu.emit(CASES["gemm_f16"](), "x86-64-v4") is not cpu.emit(CASES["gemm_f16"](), "x86-64-v4")
    first, second = (cpu.emit(CASES["gemm_f16"](), "x86-64-v4").text for _ in range(2))
    assert first == second


def test_lines_name_the_author_and_his_file() -> None:
    text = cpu.emit(CASES["gemm_f32"](), "x86-64-v4").text
    line = next(n for n, t in enumerate(Path(__file__).read_text().splitlines(), 1) if "tw.mma(sA" in t)
    assert f"// test_text.py:{line}: acc += sA * sB" in text


def test_an_unknown_architecture_lists_the_known_ones() -> None:
    with pytest.raises(LaunchError, match="x86-64-v3"):
        cpu.emit(CASES["epilogue"](), "pentium")
    with pytest.raises(LaunchError, match="aarch64"):
        cpu.violations(CASES["epilogue"](), "pentium")


@tw.kernel(X="N", Y="N")
def doubled(X, Y):
    x = tw.load(X.tile((32,), (0,)).partition((32,)))
    tw.copy(x + x, Y.tile((32,), (0,)))


@tw.kernel(X="N", Y="N")
def moved(X, Y):
    tw.copy(X.tile((32,), (0,)), Y.tile((32,), (0,)), threads=(32,))


def test_complex_arithmetic_is_refused_at_its_line() -> None:
    x = np.zeros(32, np.complex64)
    [broken] = cpu.violations(doubled.trace(x, x), "x86-64-v3")
    assert broken.rule == "dtype"
    assert broken.nearest == "two f32: a.real and a.imag as arrays of their own, or tw.complex_matmul"
    assert broken.location is not None
    assert cpu.violations(moved.trace(x, x), "x86-64-v3") == []


def test_floats_do_not_accumulate_in_integers() -> None:
    atom = tw.atoms.fma(tw.f32, acc=tw.i32)
    A, C = np.zeros((32, 32), np.float32), np.zeros((32, 32), np.int32)
    mma = tw.TiledMma(atom, repeats=(8, 4))
    [broken] = cpu.violations(gemm.trace(A, A, C, tile=(32, 32, 32), mma=mma), "x86-64-v3")
    assert broken.rule == "atom"


def test_text_that_a_compiler_refuses_is_an_error_with_its_lines() -> None:
    text = cpu.emit(CASES["gemm_f32"](), native.host_arch()).text
    with pytest.raises(CompileError, match="undeclared"):
        native.compile_library(text.replace("k < depth;", "k < undeclared;"))


def test_this_machine_has_an_architecture() -> None:
    assert native.host_arch() in cpu.PROCESSORS
    assert (native.host_arch() == "aarch64") == (platform.machine() in ("aarch64", "arm64"))
