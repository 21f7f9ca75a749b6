"""Compilers for AMD GPUs: finding one, and turning HIP text into the listing of its machine code.

What is compiled is always a listing, the compiler's own assembly text: from it resources are read, and a code
object is assembled where a device loads one.  ROCm's clang is preferred; then one of the system, then the one
inside the `ziglang` package, then the library that ROCm's hiprtc compiles with (`comgr`).  None of them needs
ROCm's headers.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TypeVar

from tilewright.errors import CompileError, ToolchainError
from tilewright.runtime import comgr
from tilewright.runtime.environment import rocm_folder
from tilewright.runtime.ways_out import way_out

CODE_OBJECT = "-mcode-object-version=5"
"""The version of code objects, pinned."""

COMMANDS = ("-xhip", "--cuda-device-only")
"""What a command is told of the text, and a library knows."""

FLAGS = (*COMMANDS, "-nogpulib", "-nogpuinc", "-O3", "-std=c++17", "-ffp-contract=off", CODE_OBJECT)
"""Options of every compilation: no fast math, no contraction; what rounds once is written ``fmaf``."""

TRIPLE = "amdgcn-amd-amdhsa"

ROCM_COMPILERS = ("lib/llvm/bin/amdclang++", "llvm/bin/amdclang++", "llvm/bin/clang++", "bin/amdclang++")
"""ROCm's compiler, below the folder where ROCm is installed, by its versions."""

SYSTEM_COMPILERS = ("clang++-22", "clang++-21", "clang++-20", "clang++-19", "clang++")
"""Compilers looked for on PATH, in this order."""

_EXCERPTS = 3

Made = TypeVar("Made", str, bytes)


@dataclass(frozen=True)
class Toolchain:
    """A clang that compiles for AMD GPUs.

    Args:
        name: ``"rocm"``, ``"clang"``, ``"zig"`` or ``"comgr"``.
        version: as the compiler reports it.
        compiler: the command that compiles and assembles; empty where a library does.
        linker: the command that links; empty if there is none, so that no code object can be made.
        library: the path of the library that does all of it; empty where commands do.
    """

    name: str
    version: str
    compiler: tuple[str, ...]
    linker: tuple[str, ...] = ()
    library: str = ""

    @property
    def identity(self) -> str:
        """What a listing depends on besides the text and the architecture: compiler, version and flags."""
        return f"{self.name} {self.version} {' '.join(FLAGS)}"

    @property
    def place(self) -> str:
        """Where it lies."""
        return self.library or self.compiler[0]

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def find_toolchains(path: str | None = None, rocm: Path | None = None) -> tuple[Toolchain, ...]:
    """Every compiler found, the preferred one first.

    Args:
        path: where the system's are looked for; default: PATH.
        rocm: where ROCm is installed; default: as the environment says.
    """
    return tuple(dict.fromkeys(_found(path, rocm or rocm_folder())))


@lru_cache(maxsize=1)
def find_toolchain() -> Toolchain:
    """The compiler to use.

    Raises:
        ToolchainError: there is none; says what to install.
    """
    return choose(tuple(islice(_found(None, rocm_folder()), 1)))


def choose(found: Sequence[Toolchain]) -> Toolchain:
    """The first of the compilers found.

    Raises:
        ToolchainError: there is none; says what to install.
    """
    if not found:
        raise ToolchainError(
            "the hip target needs a clang for AMD GPUs and found none: neither ROCm's in "
            f"{rocm_folder()} nor {', '.join(SYSTEM_COMPILERS)} on PATH nor the ziglang package nor "
            f"ROCm's {comgr.LIBRARY}; install one with `pip install 'tilewright[native]'`"
        )
    return found[0]


def _found(path: str | None, rocm: Path) -> Iterator[Toolchain]:
    for place in ROCM_COMPILERS:
        where = rocm / place
        if where.is_file() and (made := _probe("rocm", str(where), str(where.parent))):
            yield made
            break
    for command in SYSTEM_COMPILERS:
        if (found := shutil.which(command, path=path)) and (made := _probe("clang", found, path)):
            yield made
    if zig := _zig():
        yield zig
    with contextlib.suppress(ToolchainError):
        yield Toolchain("comgr", comgr.version(), (), library=comgr.library().path)


def _probe(name: str, where: str, linkers: str | None) -> Toolchain | None:
    """The compiler at a place, if it is a clang with the backend for AMD GPUs."""
    try:
        version, targets = (_said([where, option]) for option in ("--version", "--print-targets"))
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"clang version (\d+)(\S*)", version)
    if found is None or not re.search(r"^\s*amdgcn\b", targets, re.MULTILINE):
        return None
    beside = str(Path(where).resolve().parent)
    candidates = ((f"ld.lld-{found[1]}", linkers), ("ld.lld", beside), ("ld.lld", linkers))
    linker = next((at for called, there in candidates if (at := shutil.which(called, path=there))), None)
    return Toolchain(name, found[1] + found[2], (where,), (linker,) if linker else ())


def _zig() -> Toolchain | None:
    """The compiler and the linker inside the `ziglang` package; its driver ``zig c++`` takes no HIP."""
    spec = importlib.util.find_spec("ziglang")
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(next(iter(spec.submodule_search_locations)))
    for name in ("zig", "zig.exe"):
        if (folder / name).is_file():
            zig = str(folder / name)
            return Toolchain("zig", importlib.metadata.version("ziglang"), (zig, "clang"), (zig, "ld.lld"))
    return None


def _said(command: list[str]) -> str:
    """What a command says."""
    made = subprocess.run(
        command, capture_output=True, check=False, encoding="utf-8", errors="replace", timeout=60
    )
    return made.stdout


# ---------------------------------------------------------------- compiling


LINES = "-gline-tables-only"
"""Makes the compiler say from which line of the text each instruction comes; it writes the same ones."""


def compile_text(
    text: str, arch: str, name: str = "kernel", toolchain: Toolchain | None = None, *, lines: bool = False
) -> str:
    """Compile HIP text to the listing of its machine code.

    Args:
        text: the source, without includes.
        arch: e.g. ``"gfx942"``.
        name: what messages call the source.
        toolchain: which compiler; default: `find_toolchain`.
        lines: whether the listing says from which line of the text each instruction comes.

    Raises:
        CompileError: the compiler refused the text; carries its log and the offending lines.
        ToolchainError: there is no compiler, or it could not be run.
    """
    chosen, what = toolchain or find_toolchain(), f"{name} for {arch}"
    if chosen.library:
        options = [*(flag for flag in FLAGS if flag not in COMMANDS), *([LINES] if lines else [])]
        return _by_library(what, text, lambda: comgr.listing(text, arch, options))
    command = [*chosen.compiler, *FLAGS, *([LINES] if lines else []), f"--offload-arch={arch}"]
    command += ["-S", "kernel.hip", "-o", "kernel.s"]
    return _run(what, text, ("kernel.hip", text), [command], "kernel.s").decode()


def assemble(listing: str, arch: str, name: str = "kernel", toolchain: Toolchain | None = None) -> bytes:
    """The code object of a listing, which a device loads.

    Args:
        listing: what `compile_text` gave.
        arch: the architecture that it was compiled for.
        name: what messages call it.
        toolchain: which assembler and linker; default: `find_toolchain`.

    Raises:
        CompileError: the assembler refused the listing.
        ToolchainError: there is no assembler or linker, or it could not be run.
    """
    chosen, what = toolchain or find_toolchain(), f"{name} for {arch}"
    if chosen.library:
        return _by_library(what, listing, lambda: comgr.code_object(listing, arch, [CODE_OBJECT]))
    if not chosen.linker:
        raise ToolchainError(
            f"{chosen} has no linker ld.lld, so no code object can be made of {name}; install lld of the "
            "same version, or `pip install 'tilewright[native]'`"
        )
    assembled = [*chosen.compiler, "-x", "assembler", "-target", TRIPLE, f"-mcpu={arch}"]
    commands = [
        [*assembled, CODE_OBJECT, "-c", "kernel.s", "-o", "kernel.o"],
        [*chosen.linker, "-shared", "kernel.o", "-o", "kernel.hsaco"],
    ]
    return _run(what, listing, ("kernel.s", listing), commands, "kernel.hsaco")


def _by_library(what: str, source: str, act: Callable[[], Made]) -> Made:
    """What a library makes; what it refuses is told as what a command refuses."""
    try:
        return act()
    except comgr.RefusedError as refused:
        log = str(refused)
        raise CompileError(f"{comgr.LIBRARY} refused {what}{_excerpts(log, source)}", log, source) from None


def _run(
    what: str, source: str, given: tuple[str, str], commands: Sequence[Sequence[str]], made: str
) -> bytes:
    """What commands leave in a file, in a folder in which they find another one."""
    try:
        with tempfile.TemporaryDirectory(prefix="tilewright-", ignore_cleanup_errors=True) as folder:
            Path(folder, given[0]).write_text(given[1], encoding="utf-8")
            for command in commands:
                _step(what, source, list(command), folder)
            return Path(folder, made).read_bytes()
    except OSError as problem:
        reason = f"{problem.strerror or problem}; {way_out(problem)}"
        raise ToolchainError(f"cannot compile {what}: {reason}") from problem


def _step(what: str, source: str, command: list[str], folder: str) -> None:
    name = Path(command[0]).name
    done = subprocess.run(
        command, capture_output=True, check=False, encoding="utf-8", errors="replace", cwd=folder
    )
    if done.returncode < 0:
        raise ToolchainError(
            f"{name} was ended by signal {-done.returncode} while it compiled {what}; was there too little "
            "memory? nearest: free some, or choose a smaller tile"
        )
    if done.returncode:
        log = done.stderr or done.stdout or f"no output; exit status {done.returncode}"
        raise CompileError(f"{name} refused {what}{_excerpts(log, source)}", log, source)


def _excerpts(log: str, source: str) -> str:
    """The first lines that the compiler complains about, each with its number."""
    lines = source.splitlines()
    numbers = [int(n) for n in re.findall(r"kernel\.(?:hip|s):(\d+):\d+: (?:fatal )?error", log)]
    shown = [n for n in dict.fromkeys(numbers) if 0 < n <= len(lines)][:_EXCERPTS]
    return "".join(f"\n{n:6} | {lines[n - 1]}" for n in shown)
