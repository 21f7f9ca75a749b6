"""The disassembler of NVIDIA's machine code, which CUDA's toolkit brings: finding it, and running it."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from tilewright.errors import ToolchainError

PROGRAM = "nvdisasm"

PACKAGE = "nvidia-cuda-nvdisasm"
"""What brings it from PyPI."""

WHEELS = {"nvidia": "*/bin", "triton": "backends/nvidia/bin"}
"""Packages that bring it, and where it lies in them."""

TOOLKIT = "/usr/local/cuda/bin"
"""Where CUDA's toolkit is as a rule, which need not be on PATH."""


def find_nvdisasm(path: str | None = None) -> str:
    """Where the disassembler is: on PATH, in a package of PyPI, or where CUDA's toolkit is as a rule.

    Args:
        path: where it is looked for first; default: PATH.

    Raises:
        ToolchainError: it is nowhere; says what to install.
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
    """The version that a disassembler says it has.

    Args:
        program: the disassembler.

    Raises:
        ToolchainError: it cannot be run, or says none.
    """
    said = _run([program, "--version"])
    if (found := re.search(r"release [\d.]+, V([\d.]+)", said)) is None:
        raise ToolchainError(f"`{program} --version` names no version: {said.strip()[:80]!r}")
    return found[1]


def disassemble(cubin: bytes, program: str, *, lines: bool = False) -> str:
    """The listing of a cubin's machine code.

    Args:
        cubin: as NVRTC made it.
        program: the disassembler.
        lines: whether it says from which line of the text each instruction comes.

    Raises:
        ToolchainError: it failed; quotes what it said.
    """
    with tempfile.TemporaryDirectory(prefix="tilewright-", ignore_cleanup_errors=True) as folder:
        where = Path(folder, "kernel.cubin")
        where.write_bytes(cubin)
        return _run([program, "--print-code", *(["--print-line-info-inline"] if lines else []), str(where)])


def _run(command: list[str]) -> str:
    """What a program says.

    Raises:
        ToolchainError: it cannot be run, or failed; quotes what it said.
    """
    try:
        done = subprocess.run(command, capture_output=True, check=False, encoding="utf-8", errors="replace")
    except OSError as problem:
        raise ToolchainError(f"cannot run {command[0]}: {problem.strerror or problem}") from problem
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or ["nothing"]
        raise ToolchainError(f"`{command[0]}` failed with status {done.returncode}: {said[-1]}")
    return done.stdout
