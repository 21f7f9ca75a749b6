"""The disassembler of NVIDIA's machine code, which CUDA's toolkit brings: finding it, and running it."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import tempfile
from pathlib import Path

from tilewright.errors import ToolchainError

PROGRAM = "nvdisasm"


def find_nvdisasm(path: str | None = None) -> str:
    """Where the disassembler is: on PATH, or in the package of PyPI.

    Args:
        path: where it is looked for; default: PATH.

    Raises:
        ToolchainError: it is nowhere; says what to install.
    """
    if found := shutil.which(PROGRAM, path=path):
        return found
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for place in sorted(Path(folder).glob(f"*/bin/{PROGRAM}*")):
            return str(place)
    raise ToolchainError(
        f"NVIDIA's machine code is read by `{PROGRAM}`, which is neither on PATH nor a package; it comes "
        "with the CUDA toolkit, and with `pip install nvidia-cuda-nvdisasm`"
    )


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
        command = [program, "--print-code", *(["--print-line-info-inline"] if lines else []), str(where)]
        try:
            done = subprocess.run(
                command, capture_output=True, check=False, encoding="utf-8", errors="replace"
            )
        except OSError as problem:
            raise ToolchainError(f"cannot run {program}: {problem.strerror or problem}") from problem
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or ["nothing"]
        raise ToolchainError(f"`{program}` failed with status {done.returncode}: {said[-1]}")
    return done.stdout
