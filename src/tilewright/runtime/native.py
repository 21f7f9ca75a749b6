"""C++ compilers: finding one, naming it for the cache, and compiling text into shared libraries.

The text is freestanding. It uses no headers and no C++ library, so any compiler will do, and nothing is built
on first use. We prefer a compiler of the system, then the one in the `ziglang` package.
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
# Without errno and floating-point traps, loops with branches vectorise; results do not change.
# Without contraction, every operation rounds once; micro-kernels call fma explicitly.
ARITHMETIC = ("-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off")
LINKING = ("-shared", "-nostdlib")
OUTPUT = ("-fPIC", "-fvisibility=hidden", "-fno-stack-protector", "-fno-asynchronous-unwind-tables")
NATIVE = "-march=native"
WIDE_VECTORS = "-mprefer-vector-width=512"

_EXCERPTS = 3
_TEXT = "the generated text"

_POOLS: dict[tuple[Toolchain, Triple | None], bytes] = {}
"""Object files of the code that worker threads run, by compiler and machine. Every kernel links one."""


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
        """Everything that machine code depends on besides the text: compiler, flags, processor; no paths."""
        return f"{self.name} {self.version} {' '.join((*flags(), *LINKING))} {host_features()}"

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


@dataclass(frozen=True)
class Triple:
    """Another machine to compile for; needs clang or zig.

    Args:
        name: e.g. ``"aarch64-linux-gnu"``; empty for the system of this machine, for which gcc compiles too.
        cpu: e.g. ``"x86-64-v3"``; empty for the baseline.
    """

    name: str
    cpu: str = ""


# ---------------------------------------------------------------- the processor


@lru_cache(maxsize=1)
def processor_flags() -> frozenset[str]:
    """Return the instruction-set extensions of this processor that Linux lists; empty if unknown."""
    try:
        listed = Path("/proc/cpuinfo").read_text(errors="replace")
    except (FileNotFoundError, PermissionError):  # other errors propagate: the result is cached
        return frozenset()
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", listed, re.MULTILINE)
    return frozenset(found[1].split()) if found else frozenset()


@lru_cache(maxsize=1)
def host_features() -> str:
    """Return the processor for a cache key: machine and a digest of its extensions."""
    listed = " ".join(sorted(processor_flags())) or platform.processor()
    return f"{platform.machine()}-{hashlib.sha256(listed.encode()).hexdigest()[:16]}"


def host_arch() -> str:
    """Return the widest architecture of the CPU target that this processor implements."""
    machine, has = platform.machine().lower(), processor_flags()
    if machine in ("aarch64", "arm64"):
        return "aarch64"
    if machine not in ("x86_64", "amd64"):
        return "generic"
    if has >= {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"}:
        return "x86-64-v4"
    return "x86-64-v3" if has >= {"avx2", "fma", "bmi2"} else "x86-64"


def flags(triple: Triple | None = None) -> tuple[str, ...]:
    """Return the compiler's flags for this processor or another machine."""
    if triple is None:
        cpu, machine = host_arch(), [NATIVE]
    else:
        cpu, machine = (
            triple.cpu,
            [
                *([f"--target={triple.name}"] if triple.name else []),
                *([f"-march={triple.cpu}"] if triple.cpu else []),
            ],
        )
    wide = [WIDE_VECTORS] if cpu == "x86-64-v4" else []
    return (*LANGUAGE, *ARITHMETIC, *OUTPUT, *machine, *wide)


# ---------------------------------------------------------------- finding compilers


def find_toolchains(path: str | None = None) -> tuple[Toolchain, ...]:
    """Return every C++ compiler: those on ``path`` (default: PATH), then the `ziglang` package."""
    found: dict[str, Toolchain] = {}
    for command in SYSTEM_COMPILERS:
        if where := find_program(command, path):
            try:
                asked = run_tool([where, "--version"], timeout=60)
            except (OSError, subprocess.TimeoutExpired) as problem:
                if isinstance(problem, OSError) and is_shortage(problem):
                    raise  # a later call may succeed, and the result is remembered
                continue
            first = asked.stdout.partition("\n")[0]
            if asked.returncode != 0 or not first:
                continue
            if "clang" in first:
                version = re.search(r"version (\S+)", first)
                found.setdefault("clang", Toolchain("clang", version[1] if version else first, (where,)))
            elif "Free Software Foundation" in asked.stdout:
                found.setdefault("gcc", Toolchain("gcc", first.rpartition(") ")[2] or first, (where,)))
    if zig := ziglang():
        # Not its driver ``zig c++``: that builds a C++ library for more than a minute, and needs a cache.
        found["zig"] = Toolchain("zig", zig[1], (zig[0], "clang"), (zig[0], "ld.lld"))
    return tuple(found.values())


@lru_cache(maxsize=1)
def find_toolchain() -> Toolchain:
    """Return the C++ compiler to use.

    Raises:
        ToolchainError: no compiler was found; says what to install.
    """
    return choose(find_toolchains())


def choose(found: Sequence[Toolchain]) -> Toolchain:
    """Return the first compiler.

    Raises:
        ToolchainError: the list is empty; says what to install.
    """
    if not found:
        raise ToolchainError(
            f"the cpu target needs a C++ compiler and found none: neither {', '.join(SYSTEM_COMPILERS)} "
            "on PATH nor the ziglang package; install one with `pip install 'tilewright[native]'`"
        )
    return found[0]


def toolchain_id() -> str:
    """Return everything that compiled code depends on besides its text, for the cache key.

    Raises:
        ToolchainError: no compiler was found.
    """
    return find_toolchain().identity


def ziglang() -> tuple[str, str] | None:
    """Return the program inside the `ziglang` package and the package's version; None without the package.

    Python imports any folder of that name on its path. A folder without metadata is not the package.
    """
    try:
        spec = importlib.util.find_spec("ziglang")
        version = importlib.metadata.version("ziglang")
    except (ImportError, ValueError):  # a module of that name may have no specification
        return None
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for name in ("zig", "zig.exe"):
            if program := find_program(name, os.path.abspath(folder)):
                return program, version
    return None


def find_program(name: str, path: str | None = None) -> str | None:
    """Return the absolute path of a program; None if no folder has it.

    Commands run in temporary folders, so a relative path would not do.

    Args:
        name: the program.
        path: folders, written like PATH; default: PATH.
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
        ToolchainError: there is no compiler, it could not be run, or it left a damaged library.
    """
    try:
        chosen = toolchain or find_toolchain()
        compiler = [*chosen.compiler, "-x", "c++", *flags(triple)]
        with tempfile.TemporaryDirectory(prefix="tilewright-", ignore_cleanup_errors=True) as folder:
            pool, known = Path(folder, "pool.o"), _POOLS.get((chosen, triple))
            if known is None:
                Path(folder, "pool.cpp").write_text(POOL_SOURCE, encoding="utf-8")
                run_compiler([*compiler, "-c", "pool.cpp", "-o", "pool.o"], folder, _TEXT, POOL_SOURCE)
            else:
                pool.write_bytes(known)
            Path(folder, "kernel.cpp").write_text(source, encoding="utf-8")
            if chosen.linker:
                commands = [
                    [*compiler, "-c", "kernel.cpp", "-o", "kernel.o"],
                    [*chosen.linker, "-shared", "kernel.o", "pool.o", "-o", "kernel.so"],
                ]
            else:
                late = ["-Wl,-undefined,dynamic_lookup"] if platform.system() == "Darwin" else []
                linked = ["kernel.cpp", "-x", "none", "pool.o", "-o", "kernel.so"]
                commands = [[*compiler, *LINKING, *late, *linked]]
            for command in commands:
                run_compiler(command, folder, _TEXT, source)
            library = Path(folder, "kernel.so")
            data = library.read_bytes() if library.exists() else b""
            if (fault := damage(data)) is not None:
                raise ToolchainError(
                    f"{chosen} reported no error, but the library that it left cannot be used: {fault}; "
                    f"is the disk full? nearest: {MORE_ROOM}"
                )
            if known is None and pool.exists():
                _POOLS[chosen, triple] = pool.read_bytes()  # the library is whole, so this file is too
            return data
    except OSError as problem:
        reason = f"{problem.strerror or problem}"
        raise ToolchainError(f"cannot compile a kernel: {reason}; {way_out(problem)}") from problem


def compile_archive(
    sources: Sequence[tuple[str, Triple]], toolchain: Toolchain | None = None
) -> tuple[bytes, bytes]:
    """Compile C++ texts into a static and a shared library, together with the code of worker threads.

    Args:
        sources: freestanding C++, each with the machine that it is compiled for.
        toolchain: which compiler; default: `find_toolchain`.

    Returns:
        The bytes of the static library and of the shared one.

    Raises:
        CompileError: the compiler refused a text; carries its log and the offending lines.
        ToolchainError: there is no compiler or archiver, or it could not be run.
    """
    chosen = toolchain or find_toolchain()
    archiver = find_program("ar")
    if chosen.name == "zig":
        archive = [chosen.compiler[0], "ar"]
    elif archiver is None:
        near = "install binutils, or `pip install 'tilewright[native]'`"
        text = f"a static library is made by `ar`, which is not on PATH; {near}"
        raise ToolchainError(text)
    else:
        archive = [archiver]
    with tempfile.TemporaryDirectory(prefix="tilewright-", ignore_cleanup_errors=True) as folder:
        objects = [f"part{at}.o" for at in range(len(sources))]
        for (source, triple), made in zip(sources, objects, strict=True):
            Path(folder, "kernel.cpp").write_text(source, encoding="utf-8")
            compiler = [*chosen.compiler, "-x", "c++", *flags(triple)]
            run_compiler([*compiler, "-c", "kernel.cpp", "-o", made], folder, _TEXT, source)
        run_compiler([*archive, "rcsD", "kernel.a", *objects], folder, _TEXT, "")
        late = ["-Wl,-undefined,dynamic_lookup"] if platform.system() == "Darwin" else []
        linker = [*chosen.linker, "-shared"] if chosen.linker else [*chosen.compiler, *LINKING, *late]
        run_compiler([*linker, *objects, "-o", "kernel.so"], folder, _TEXT, "")
        return Path(folder, "kernel.a").read_bytes(), Path(folder, "kernel.so").read_bytes()


def run_compiler(
    command: list[str], folder: str, what: str, source: str, seconds: float | None = None
) -> None:
    """Run a compiler, an assembler or a linker in a folder.

    Args:
        command: the program and its arguments.
        folder: the folder with its files.
        what: what messages call the source.
        source: the source, for excerpts.
        seconds: time limit; default: none.

    Raises:
        CompileError: it refused the source; carries its log and the offending lines.
        ToolchainError: it could not be run, crashed, had no room, or exceeded the limit.
    """
    name = os.path.basename(command[0])
    try:
        made = run_tool(command, cwd=folder, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise ToolchainError(f"{name} did not compile {what} in {seconds:g} s") from None
    except OSError as error:
        more = f"; {way_out(error)}" if is_shortage(error) else ""
        raise ToolchainError(f"cannot run {name}: {error.strerror}{more}") from error
    if made.returncode != 0:
        if ended := crash(made.returncode, made.stderr, what):
            raise ToolchainError(f"{name} {ended}")
        log = made.stderr or made.stdout or f"no output; exit status {made.returncode}"
        if os.strerror(errno.ENOSPC) in log:
            raise ToolchainError(f"{name} ran out of disk space; nearest: {MORE_ROOM}")
        raise CompileError(f"{name} refused {what}{excerpts(log, source)}", log, source)


def run_tool(command: list[str], **more: Any) -> subprocess.CompletedProcess[str]:
    """Run a program and capture its output, which may be in any encoding."""
    return subprocess.run(
        command, capture_output=True, check=False, encoding="utf-8", errors="replace", **more
    )


def excerpts(log: str, source: str) -> str:
    """Return the first lines that a compiler complains about, each with its number."""
    lines = source.splitlines()
    numbers = [int(n) for n in re.findall(r"kernel\.(?:cpp|hip|s):(\d+):\d+: (?:fatal )?error", log)]
    shown = [n for n in dict.fromkeys(numbers) if 0 < n <= len(lines)][:_EXCERPTS]
    return "".join(f"\n{n:6} | {lines[n - 1]}" for n in shown)


# ---------------------------------------------------------------- crashes


_CRASHES = re.compile(
    r"^.*(?:internal compiler error|signal terminated program|command failed due to signal"
    r"|unable to execute command|PLEASE (?:submit a bug report|ATTACH)).*$",
    re.MULTILINE,
)
"""Lines that gcc and clang write when the compiler itself fails."""


def crash(status: int, log: str, what: str) -> str:
    """Return how a compiler crashed and what to do; empty if it did not crash.

    A driver runs the compiler as a separate program, and reports its signal only in the log.

    Args:
        status: the exit status; negative for a signal.
        log: the compiler's output.
        what: what messages call the source.

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
        stack = ""
        if sys.platform != "win32":
            most = resource.getrlimit(resource.RLIMIT_STACK)[0]
            stack = "" if most == resource.RLIM_INFINITY else f"its stack may have {most >> 10} KiB; "
        return f"{told}; {stack}nearest: allow a larger stack (`ulimit -s 8192`), or another compiler"
    return f"{told}; nearest: free some memory, or a smaller tile"


# ---------------------------------------------------------------- the processor's name


@functools.cache
def processor_name() -> str:
    """Return the CPU's name."""
    try:
        listed = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        listed = None
    return listed[1] if listed else platform.processor() or platform.machine()
