"""The ladder's programs are vector code: micro-kernels for multiplies, the compiler's for other loops."""

from __future__ import annotations

import platform
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import Mma
from tilewright.runtime import native
from tilewright.targets import cpu

from .ladder import NAMES, case, example

REMARKS = {
    "gcc": ("-fopt-info-vec-optimized", r"^[^:\n]*:(\d+):\d+: optimized: .*vectorized"),
    "clang": ("-Rpass=loop-vectorize|slp-vectorizer", r"^[^:\n]*:(\d+):\d+: remark: .*ectorized"),
}
REMARKS["zig"] = REMARKS["clang"]
FUSED = {"x86-64-v4": r"\bvfn?m\w+ps\b.*%zmm", "x86-64-v3": r"\bvfn?m\w+ps\b.*%ymm", "aarch64": r"\bfmla\s+v"}
ALONE = {"x86-64-v4": r"\bvfn?m(add|sub)\w+s[sd]\b", "x86-64-v3": r"\bvfn?m(add|sub)\w+s[sd]\b"}


def im2col(extent: int) -> Kernel:
    """Example 05 on an image of whole tiles, or of none."""
    found = example("05")
    image = np.zeros((2, 5, 4, 6, 2, 64) if extent % 2 == 0 else found["SMALL"], np.float32)
    windows = found["windows"](image, found["LARGE"].constants["taps"])
    return found["LARGE"].trace(image, np.zeros(found["matrix_of"](windows).shape, np.float32))


def kernel_of(name: str, extent: int) -> Kernel:
    return im2col(extent) if name == "im2col" else case(name, extent).kernel


WIDEST = {"x86_64": ("x86-64-v4", ("-march=x86-64-v4", "-mtune=generic"))}
"""By machine: an architecture, and options with which compilers choose the same vectors on every host."""


def vectorised(
    toolchain: native.Toolchain, text: str, folder: Path, options: tuple[str, ...] = ()
) -> tuple[set[int], str]:
    """Return the lines that the compiler reports as vectorised, and the assembly."""
    (folder / "kernel.cpp").write_text(text)
    flag, remark = REMARKS[toolchain.name]
    command = [
        *toolchain.compiler,
        "-x",
        "c++",
        *native.flags(),
        *options,
        flag,
        "-S",
        "kernel.cpp",
        "-o",
        "kernel.s",
    ]
    made = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    lines = {int(found[1]) for found in re.finditer(remark, made.stderr, re.MULTILINE)}
    return lines, (folder / "kernel.s").read_text()


def loops(text: str) -> dict[range, str]:
    """Return the bodies of loops over elements by line; for a short loop compilers name the body's line."""
    lines, found = text.splitlines(), dict[range, str]()
    for at, line in enumerate(lines):
        if line.strip() == "INDEPENDENT":
            head, end = lines[at + 1], at + 2
            while head.endswith("{") and lines[end].strip() != "}":
                end += 1
            body = [re.sub(r"^\s*for \(.*?; \+\+\w+\) ", "", head), *lines[at + 2 : end]]
            found[range(at + 2, end + 1)] = "\n".join(part.strip() for part in body if part.strip() != "{")
    return found


def is_left_to_the_library(body: str, toolchain: native.Toolchain) -> bool:
    """Return whether a loop only fills or only moves: compilers call memset for it, clang memcpy."""
    values = [line.partition(" = ")[2] for line in body.splitlines()]
    reads = [value for value in values if "[" in value or "(" in value]
    moves = all(re.fullmatch(r"\w+\[[^\]]*\];", value) for value in values)
    return not reads or (moves and toolchain.name != "gcc")


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("name", [*NAMES, "im2col"])
def test_each_loop_over_elements_is_vector_code(
    toolchain: native.Toolchain, name: str, tmp_path: Path
) -> None:
    arch, options = WIDEST.get(platform.machine(), (native.host_arch(), ()))
    text = cpu.emit(kernel_of(name, 512), arch).text
    lines, _ = vectorised(toolchain, text, tmp_path, options)
    found = loops(text)
    assert found
    scalar = [body for places, body in found.items() if lines.isdisjoint(places)]
    assert [body for body in scalar if not is_left_to_the_library(body, toolchain)] == []


@pytest.mark.in_turns(5)
@pytest.mark.parametrize("extent", [512, 131])
@pytest.mark.parametrize("name", NAMES)
def test_each_multiply_is_micro_kernels(
    toolchain: native.Toolchain, name: str, extent: int, tmp_path: Path
) -> None:
    """Every multiply calls a micro-kernel, and no product is added in a register of one element."""
    arch = native.host_arch()
    listing = cpu.emit(kernel_of(name, extent), arch)
    multiplies = sum(isinstance(op, Mma) for op in listing.kernel.walk())
    block = listing.text[listing.text.index("// One block.") :]
    assert multiplies
    loops = re.split(r"\bIndex m_panel(?:_\d+)? = 0;", block)[1:]
    assert len(loops) == multiplies
    assert all(re.search(r"\bmultiply_\w+<\d+,\d+>\(", loop) for loop in loops)
    _, assembly = vectorised(toolchain, listing.text, tmp_path)
    shapes = {op.mma.atom.shape for op in listing.kernel.walk() if isinstance(op, Mma)}
    for rows, columns, _ in shapes:
        vectors = rows * columns * 4 // cpu.PROCESSORS[arch].vector_bytes
        assert len(re.findall(FUSED.get(arch, r"mulps|fmla"), assembly)) >= vectors
    assert not re.findall(ALONE.get(arch, r"\bmulss\b"), assembly)
