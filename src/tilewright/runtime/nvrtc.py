"""NVRTC, which compiles CUDA text without a GPU, a driver or headers, and NVIDIA's disassembler."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from tilewright.errors import CompileError, ToolchainError
from tilewright.namespaces import import_whole

FLAGS = ("--std=c++17", "--fmad=false", "--ptxas-options=-v", "--no-cache")
"""Options of every compilation: no fast math, no contraction; fused operations call ``fmaf``.

We switch off NVRTC's own cache: its results come without the assembler's warnings and figures, and
`runtime.cache` keeps the code already.
"""

FATAL = ("C7508", "C7510", "C7511", "C7517")
"""Assembler warnings of wrong or slow code: an ignored setmaxnreg, or wgmma that wait for each other."""

WRONG_CODE = {"f64.f64.f64.f64": ((13, 1), "--ptxas-options=-O2")}
"""Texts that old versions miscompile: words in them, the first correct version, an option that avoids it.

Between two turns of a loop, the assembler of NVRTC 13.0 leaves out the wait for the last ``mma.m16n8k4`` of
f64.  The next one adds to an unfinished sum, whose registers may already hold addresses.  Results were wrong
on an H200, and the waits are missing in the machine code.  At level 2 of the optimiser they are there.
"""

SERIALIZED = "wgmma.mma_async instructions are serialized"
"""Assembler warning (C7514, C7515, C7520 of NVRTC 13.0) of wgmma that wait for each other.

Versions disagree on which texts get it. Results are right, so we report it with the registers, as no error.
"""

RESOURCES = {
    "registers": r"Used (\d+) registers",
    "stack_bytes": r"(\d+) bytes stack frame",
    "spill_store_bytes": r"(\d+) bytes spill stores",
    "spill_load_bytes": r"(\d+) bytes spill loads",
}
"""Patterns of the assembler's log for the resources of a thread."""


@dataclass(frozen=True)
class Binary:
    """Machine code for one architecture.

    Args:
        cubin: the ELF image.
        log: the compiler's output.
        resources: ``registers``, ``stack_bytes``, ``spill_store_bytes``, ``spill_load_bytes`` per thread.
    """

    cubin: bytes
    log: str
    resources: dict[str, int]


@lru_cache(maxsize=1)
def _nvrtc() -> Any:
    try:
        import_whole("cuda.bindings.nvrtc")
        from cuda.bindings import nvrtc
    except ImportError as error:
        near = "install it with: pip install 'tilewright[cuda]'"
        text = f"CUDA text is compiled by NVRTC, which cannot be loaded ({error}); {near}"
        raise ToolchainError(text) from error
    return nvrtc


def version() -> tuple[int, int]:
    """NVRTC's version.

    Raises:
        ToolchainError: NVRTC is not installed.
    """
    nvrtc = _nvrtc()
    try:
        _, major, minor = nvrtc.nvrtcVersion()
    except (RuntimeError, OSError) as error:
        raise ToolchainError(
            f"the NVRTC library is not found ({error}); install it with: pip install 'tilewright[cuda]'"
        ) from error
    return int(major), int(minor)


def toolchain_id() -> str:
    """Return everything that an artifact depends on besides text and architecture, for the cache key."""
    major, minor = version()
    helped = (f"{words}: {option}" for words, (right, option) in WRONG_CODE.items() if version() < right)
    return f"nvrtc {major}.{minor} {' '.join((*FLAGS, *FATAL, *RESOURCES, *helped))}"


LINES = "-lineinfo"
"""Adds the line of the text to each instruction; the instructions stay the same."""


def compile_text(text: str, arch: str, name: str = "kernel", *, lines: bool = False) -> Binary:
    """Compile CUDA text to machine code.

    Args:
        text: the source, without includes.
        arch: e.g. ``"sm_90a"``.
        name: what messages call the source.
        lines: whether the code keeps the line of the text for each instruction.

    Raises:
        CompileError: the compiler refused the text, or gave a warning in `FATAL`.
        ToolchainError: NVRTC is not installed.
    """
    installed, nvrtc = version(), _nvrtc()
    program = _checked(nvrtc, nvrtc.nvrtcCreateProgram(text.encode(), f"{name}.cu".encode(), 0, [], []))
    options = [f"--gpu-architecture={arch}".encode(), *(flag.encode() for flag in FLAGS)]
    options += [LINES.encode()] if lines else []
    options += [
        option.encode()
        for words, (right, option) in WRONG_CODE.items()
        if words in text and installed < right
    ]
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        log = _bytes(nvrtc, program, "ProgramLog").rstrip(b"\x00 \n").decode(errors="replace")
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            # Add the source line after each message that names one.
            source, quoted = text.split("\n"), list[str]()
            for message in log.split("\n"):
                quoted.append(message)
                found = re.search(r"\.cu\((\d+)\)", message)
                if found and int(found[1]) <= len(source):
                    quoted.append(f"    {source[int(found[1]) - 1].strip()}")
            raise CompileError(f"NVRTC refused {name} for {arch}: {status.name}", "\n".join(quoted), text)
        cubin = _bytes(nvrtc, program, "CUBIN")
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    if warned := [code for code in FATAL if code in log]:
        raise CompileError(f"the assembler warned of {', '.join(warned)} in {name} for {arch}", log, text)
    return Binary(cubin, log, _resources(log))


def _checked(nvrtc: Any, result: tuple[Any, ...]) -> Any:
    status, *values = result
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise ToolchainError(f"NVRTC failed: {status.name}")
    return values[0] if values else None


def _bytes(nvrtc: Any, program: Any, what: str) -> bytes:
    size = int(_checked(nvrtc, getattr(nvrtc, f"nvrtcGet{what}Size")(program)))
    # One byte more: NVRTC writes into the object, and Python shares all bytes objects of length 1.
    data = bytes(size + 1)
    _checked(nvrtc, getattr(nvrtc, f"nvrtcGet{what}")(program, data))
    return data[:size]


def _resources(log: str) -> dict[str, int]:
    found = {name: re.search(pattern, log) for name, pattern in RESOURCES.items()}
    made = {name: int(match[1]) for name, match in found.items() if match}
    return made | ({"serialized_wgmma": log.count(SERIALIZED)} if SERIALIZED in log else {})


# ----------------------------------------------------------------
# Nvdisasm, the disassembler of CUDA's toolkit.


PROGRAM = "nvdisasm"

PACKAGE = "nvidia-cuda-nvdisasm"
"""The package on PyPI that has it."""

WHEELS = {"nvidia": "*/bin", "triton": "backends/nvidia/bin"}
"""Packages that have it, and its path in them."""

TOOLKIT = "/usr/local/cuda/bin"
"""The usual folder of CUDA's toolkit, which may not be on PATH."""


def find_nvdisasm(path: str | None = None) -> str:
    """Return the path of the disassembler: on PATH, in a package of PyPI, or in CUDA's toolkit.

    Args:
        path: folders to search first; default: PATH.

    Raises:
        ToolchainError: not found; says what to install.
    """
    if found := shutil.which(PROGRAM, path=path):
        return found
    for package, below in WHEELS.items():
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or []) if spec else []:
            for place in sorted(Path(folder).glob(f"{below}/{PROGRAM}*")):
                return str(place)
    if found := shutil.which(PROGRAM, path=TOOLKIT):
        return found
    raise ToolchainError(
        f"NVIDIA's machine code is read by `{PROGRAM}`, which is neither on PATH, nor in a package, nor in "
        f"{TOOLKIT}; it comes with the CUDA toolkit, and with `pip install {PACKAGE}`"
    )


def version_of(program: str) -> str:
    """Return the version that a disassembler reports.

    Args:
        program: the disassembler.

    Raises:
        ToolchainError: it cannot be run, or reports no version.
    """
    said = _run([program, "--version"])
    if (found := re.search(r"release [\d.]+, V([\d.]+)", said)) is None:
        raise ToolchainError(f"`{program} --version` names no version: {said.strip()[:80]!r}")
    return found[1]


def disassemble(cubin: bytes, program: str, *, lines: bool = False) -> str:
    """Return the listing of a cubin's machine code.

    Args:
        cubin: the machine code.
        program: the disassembler.
        lines: whether the listing gives the line of the text for each instruction.

    Raises:
        ToolchainError: the program failed; quotes its output.
    """
    with tempfile.TemporaryDirectory(prefix="tilewright-", ignore_cleanup_errors=True) as folder:
        where = Path(folder, "kernel.cubin")
        where.write_bytes(cubin)
        return _run([program, "--print-code", *(["--print-line-info-inline"] if lines else []), str(where)])


def _run(command: list[str]) -> str:
    """Return the output of a program.

    Raises:
        ToolchainError: it cannot be run, or failed; quotes its output.
    """
    try:
        done = subprocess.run(command, capture_output=True, check=False, encoding="utf-8", errors="replace")
    except OSError as problem:
        raise ToolchainError(f"cannot run {command[0]}: {problem.strerror or problem}") from problem
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or ["nothing"]
        raise ToolchainError(f"`{command[0]}` failed with status {done.returncode}: {said[-1]}")
    return done.stdout
