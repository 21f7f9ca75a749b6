"""C++ compilers: finding one, naming it for the cache, and turning text into shared libraries.

The text is freestanding: no headers and no C++ library, so that any compiler will do and nothing is built on
first use.  A system compiler is preferred; without one, the compiler in the `ziglang` package serves.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from tilewright.errors import MORE_ROOM, CompileError, ToolchainError, is_shortage, way_out
from tilewright.runtime.libraries import damage
from tilewright.runtime.workers import POOL_SOURCE

if sys.platform != "win32":
    import resource

SYSTEM_COMPILERS = ("c++", "g++", "clang++")
"""Compilers looked for on PATH, in this order."""

LANGUAGE = ("-std=c++17", "-fno-exceptions", "-fno-rtti", "-fwrapv", "-fno-strict-aliasing")
# No errno and no floating-point traps: neither changes a result, and loops with branches vectorise.
# Contraction is off, so that every operation rounds once; micro-kernels call fma by its name.
ARITHMETIC = ("-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off")
LINKING = ("-shared", "-nostdlib")
OUTPUT = ("-fPIC", "-fvisibility=hidden", "-fno-stack-protector", "-fno-asynchronous-unwind-tables")
NATIVE = "-march=native"
WIDE_VECTORS = "-mprefer-vector-width=512"

_EXCERPTS = 3

_POOLS: dict[tuple[Toolchain, Triple | None], bytes] = {}
"""The object files of what the worker threads run, linked to every kernel: one for each way to compile."""


@dataclass(frozen=True)
class Toolchain:
    """A C++ compiler.

    Args:
        name: ``"gcc"``, ``"clang"`` or ``"zig"``.
        version: as the compiler reports it.
        compiler: the command that compiles C++.
        linker: the command that links, if the compiler does not.
    """

    name: str
    version: str
    compiler: tuple[str, ...]
    linker: tuple[str, ...] = ()

    @property
    def identity(self) -> str:
        """What the generated code depends on: compiler, version, flags and processor; no paths."""
        return f"{self.name} {self.version} {' '.join((*flags(), *LINKING))} {host_features()}"

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


@dataclass(frozen=True)
class Triple:
    """A machine to compile for other than this one; only clang and zig can.

    Args:
        name: e.g. ``"aarch64-linux-gnu"``.
        cpu: e.g. ``"x86-64-v3"``; empty for the least of its kind.
    """

    name: str
    cpu: str = ""


# ---------------------------------------------------------------- the processor


@lru_cache(maxsize=1)
def processor_flags() -> frozenset[str]:
    """The instruction-set extensions of this processor, as the kernel lists them; empty if it does not."""
    try:
        listed = Path("/proc/cpuinfo").read_text(errors="replace")
    except (FileNotFoundError, PermissionError):  # other errors pass, and must not be remembered
        return frozenset()
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", listed, re.MULTILINE)
    return frozenset(found[1].split()) if found else frozenset()


@lru_cache(maxsize=1)
def host_features() -> str:
    """The processor as part of a cache key: machine and a digest of its extensions."""
    listed = " ".join(sorted(processor_flags())) or platform.processor()
    return f"{platform.machine()}-{hashlib.sha256(listed.encode()).hexdigest()[:16]}"


def host_arch() -> str:
    """The name of the widest architecture of the CPU target that this processor implements."""
    machine, has = platform.machine().lower(), processor_flags()
    if machine in ("aarch64", "arm64"):
        return "aarch64"
    if machine not in ("x86_64", "amd64"):
        return "generic"
    if has >= {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"}:
        return "x86-64-v4"
    return "x86-64-v3" if has >= {"avx2", "fma", "bmi2"} else "x86-64"


def flags(triple: Triple | None = None) -> tuple[str, ...]:
    """The compiler's flags, for this processor or for another machine."""
    if triple is None:
        wide = (WIDE_VECTORS,) if host_arch() == "x86-64-v4" else ()
        return (*LANGUAGE, *ARITHMETIC, *OUTPUT, NATIVE, *wide)
    cpu = (f"-march={triple.cpu}",) if triple.cpu else ()
    wide = (WIDE_VECTORS,) if triple.cpu == "x86-64-v4" else ()
    return (*LANGUAGE, *ARITHMETIC, *OUTPUT, f"--target={triple.name}", *cpu, *wide)


# ---------------------------------------------------------------- finding compilers


def find_toolchains(path: str | None = None) -> tuple[Toolchain, ...]:
    """Every C++ compiler found: those on ``path`` (default: PATH), then the `ziglang` package."""
    found: dict[str, Toolchain] = {}
    for command in SYSTEM_COMPILERS:
        if (where := find_program(command, path)) and (made := _probe(where)):
            found.setdefault(made.name, made)
    if zig := _zig():
        found.setdefault(zig.name, zig)
    return tuple(found.values())


@lru_cache(maxsize=1)
def find_toolchain() -> Toolchain:
    """The C++ compiler to use.

    Raises:
        ToolchainError: there is none; says what to install.
    """
    return choose(find_toolchains())


def choose(found: Sequence[Toolchain]) -> Toolchain:
    """The first of the compilers found.

    Raises:
        ToolchainError: there is none; says what to install.
    """
    if not found:
        raise ToolchainError(
            f"the cpu target needs a C++ compiler and found none: neither {', '.join(SYSTEM_COMPILERS)} "
            "on PATH nor the ziglang package; install one with `pip install 'tilewright[native]'`"
        )
    return found[0]


def toolchain_id() -> str:
    """What compiled code depends on besides its text, for the cache key.

    Raises:
        ToolchainError: no compiler was found.
    """
    return find_toolchain().identity


def _probe(where: str) -> Toolchain | None:
    try:
        asked = _ask([where, "--version"], timeout=60)
    except (OSError, subprocess.TimeoutExpired) as problem:
        if isinstance(problem, OSError) and is_shortage(problem):
            raise  # it may work later: what is found is remembered
        return None
    if asked.returncode != 0 or not asked.stdout:
        return None
    first = asked.stdout.splitlines()[0]
    if "clang" in first:
        version = re.search(r"version (\S+)", first)
        return Toolchain("clang", version[1] if version else first, (where,))
    if "Free Software Foundation" in asked.stdout:
        return Toolchain("gcc", first.rpartition(") ")[2] or first, (where,))
    return None


def _zig() -> Toolchain | None:
    """The compiler and the linker inside the `ziglang` package.

    Its driver is not used: that builds a C++ library for more than a minute on first use, and needs a cache.
    """
    found = ziglang()
    return found and Toolchain("zig", found[1], (found[0], "clang"), (found[0], "ld.lld"))


def ziglang() -> tuple[str, str] | None:
    """The program inside the `ziglang` package and the package's version; None without the package.

    Any folder of that name on Python's path can be imported.  Without metadata it is not the package.
    """
    try:
        spec = importlib.util.find_spec("ziglang")
        version = importlib.metadata.version("ziglang")
    except (ImportError, ValueError):  # a module may stand in its place, without a specification
        return None
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for name in ("zig", "zig.exe"):
            if program := find_program(name, os.path.abspath(folder)):
                return program, version
    return None


def find_program(name: str, path: str | None = None) -> str | None:
    """The absolute path of a program; None if it is in no folder.

    Commands run in temporary folders, where a relative path means something else.

    Args:
        name: the program.
        path: folders, as PATH has them; default: PATH.
    """
    found = shutil.which(name, path=path)
    return found and os.path.abspath(found)


# ---------------------------------------------------------------- compiling


def compile_library(source: str, toolchain: Toolchain | None = None, triple: Triple | None = None) -> bytes:
    """Compile C++ text into a shared library, together with the code that the worker threads run.

    Args:
        source: freestanding C++.
        toolchain: which compiler; default: `find_toolchain`.
        triple: another machine to compile for; default: this one.

    Returns:
        The library's bytes, for `tilewright.runtime.libraries.Library`.

    Raises:
        CompileError: the compiler refused the text; carries its log and the offending lines.
        ToolchainError: there is no compiler, it could not be run, or what it left is no whole library.
    """
    try:
        chosen = toolchain or find_toolchain()
        with tempfile.TemporaryDirectory(prefix="tilewright-", ignore_cleanup_errors=True) as folder:
            pool, known = Path(folder, "pool.o"), _POOLS.get((chosen, triple))
            if known is None:
                Path(folder, "pool.cpp").write_text(POOL_SOURCE, encoding="utf-8")
                _run([*_compiling(chosen, triple), "-c", "pool.cpp", "-o", "pool.o"], folder, POOL_SOURCE)
            else:
                pool.write_bytes(known)
            Path(folder, "kernel.cpp").write_text(source, encoding="utf-8")
            for command in _commands(chosen, triple):
                _run(command, folder, source)
            made = _made(Path(folder, "kernel.so"), chosen)
            if known is None and pool.exists():
                _POOLS[chosen, triple] = pool.read_bytes()  # whole, for the library is
            return made
    except OSError as problem:
        reason = f"{problem.strerror or problem}"
        raise ToolchainError(f"cannot compile a kernel: {reason}; {way_out(problem)}") from problem


def _made(path: Path, toolchain: Toolchain) -> bytes:
    """The library that a compiler left, if it is whole.

    Raises:
        ToolchainError: it is not.
    """
    data = path.read_bytes() if path.exists() else b""
    if (problem := damage(data)) is not None:
        raise ToolchainError(
            f"{toolchain} reported no error, but the library that it left cannot be used: {problem}; "
            f"is the disk full? nearest: {MORE_ROOM}"
        )
    return data


def _compiling(toolchain: Toolchain, triple: Triple | None) -> list[str]:
    return [*toolchain.compiler, "-x", "c++", *flags(triple)]


def _commands(toolchain: Toolchain, triple: Triple | None) -> list[list[str]]:
    """The commands that make kernel.so of kernel.cpp and pool.o."""
    compiler = _compiling(toolchain, triple)
    if toolchain.linker:
        compiled = [*compiler, "-c", "kernel.cpp", "-o", "kernel.o"]
        return [compiled, [*toolchain.linker, "-shared", "kernel.o", "pool.o", "-o", "kernel.so"]]
    late = ("-Wl,-undefined,dynamic_lookup",) if platform.system() == "Darwin" else ()
    return [[*compiler, *LINKING, *late, "kernel.cpp", "-x", "none", "pool.o", "-o", "kernel.so"]]


def _run(command: list[str], folder: str, source: str) -> None:
    name = os.path.basename(command[0])
    try:
        made = _ask(command, cwd=folder)
    except OSError as error:
        more = f"; {way_out(error)}" if is_shortage(error) else ""
        raise ToolchainError(f"cannot run {name}: {error.strerror}{more}") from error
    if made.returncode != 0:
        if ended := crash(made.returncode, made.stderr, "a kernel"):
            raise ToolchainError(f"{name} {ended}")
        log = made.stderr or made.stdout or f"no output; exit status {made.returncode}"
        if os.strerror(errno.ENOSPC) in log:
            raise ToolchainError(f"{name} had no room for its files; nearest: {MORE_ROOM}")
        raise CompileError(f"{name} refused the generated text{_excerpts(log, source)}", log, source)


def _ask(command: list[str], **more: Any) -> subprocess.CompletedProcess[str]:
    """Run a compiler; what it says may be in any encoding."""
    return subprocess.run(
        command, capture_output=True, check=False, encoding="utf-8", errors="replace", **more
    )


def _excerpts(log: str, source: str) -> str:
    """The first lines that the compiler complains about, each with its number."""
    lines = source.splitlines()
    numbers = [int(n) for n in re.findall(r"kernel\.cpp:(\d+):\d+: (?:fatal )?error", log)]
    shown = [n for n in dict.fromkeys(numbers) if 0 < n <= len(lines)][:_EXCERPTS]
    return "".join(f"\n{n:6} | {lines[n - 1]}" for n in shown)


# ---------------------------------------------------------------- crashes


_CRASHES = re.compile(
    r"^.*(?:internal compiler error|signal terminated program|command failed due to signal"
    r"|unable to execute command|PLEASE (?:submit a bug report|ATTACH)).*$",
    re.MULTILINE,
)
"""Lines that gcc and clang write when the compiler fails, not the text."""


def crash(status: int, log: str, what: str) -> str:
    """Return how a compiler crashed, and the way out; empty if it ended by itself.

    A driver that starts the compiler as a program of its own reports the signal in its log alone.

    Args:
        status: the exit status; the negative number of a signal if one ended the program.
        log: what it wrote.
        what: what it compiled.

    Example:
        >>> print(crash(1, "g++: fatal error: Killed signal terminated program cc1plus", "x"))
        was ended by signal 9 (Killed) while it compiled x; nearest: free some memory, or a smaller tile
        >>> crash(1, "kernel.cpp:3:1: error: expected unqualified-id", "x")
        ''
    """
    line = _CRASHES.search(log)
    if status >= 0 and line is None:
        return ""
    names = {int(number): signal.strsignal(number) or "" for number in signal.valid_signals()}
    number = -status
    if status >= 0 and line is not None:
        number = next((at for at, name in names.items() if name and name in line[0]), 0)
        number = number or next((at for at, name in names.items() if name and name in log), 0)
    if not number:
        said = line[0].strip() if line else ""
        return f"failed by itself while it compiled {what} ({said}); nearest: another or newer compiler"
    told = f"was ended by signal {number} ({names.get(number, '')}) while it compiled {what}"
    if number in (signal.SIGSEGV, getattr(signal, "SIGBUS", 0)):
        return f"{told}; {_stack()}nearest: allow a larger stack (`ulimit -s 8192`), or another compiler"
    return f"{told}; nearest: free some memory, or a smaller tile"


def _stack() -> str:
    """The limit of a stack, if there is one."""
    if sys.platform == "win32":
        return ""
    most = resource.getrlimit(resource.RLIMIT_STACK)[0]
    return "" if most == resource.RLIM_INFINITY else f"its stack may have {most >> 10} KiB; "


# ---------------------------------------------------------------- the processor's name


@functools.cache
def processor_name() -> str:
    """The CPU's name as the system lists it."""
    try:
        listed = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        listed = None
    return listed[1] if listed else platform.processor() or platform.machine()
