"""Compilers for AMD GPUs: finding one, and turning HIP text into the listing of its machine code.

What is compiled is always a listing, the compiler's own assembly text: from it resources are read, and a code
object is assembled where a device loads one.  ROCm's clang is preferred; then one of the system, then the one
inside the `ziglang` package, then the library that ROCm's hiprtc compiles with (`comgr`).  None of them needs
ROCm's headers.  A compiler is taken if it compiles the whole prelude; older ones do not, and are passed over.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from tilewright.errors import MORE_ROOM, CompileError, ToolchainError, way_out
from tilewright.runtime import comgr
from tilewright.runtime.cache import Cache, key
from tilewright.runtime.environment import rocm_folder
from tilewright.runtime.native import crash, find_program, ziglang
from tilewright.targets.hip.prelude import probe_text
from tilewright.targets.target import HIP

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

LEAST_LLVM = 19
"""The first LLVM that has all that the prelude calls: fences of one address space."""

_EXCERPTS = 3

_SECONDS = 60
"""Seconds that a compiler has to say its version, or to compile the prelude."""

_COMPILES = b"compiles"
"""The answer of a compiler that compiles the prelude, in the cache."""

Made = TypeVar("Made", str, bytes)


@dataclass(frozen=True)
class AmdToolchain:
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


@dataclass(frozen=True)
class CompilerTrial:
    """A compiler that was found, and whether it compiles.

    Args:
        what: name, version and place of the compiler.
        toolchain: how it is called; None if it is no clang.
        reason: why it is passed over; empty if it compiles the prelude.
    """

    what: str
    toolchain: AmdToolchain | None
    reason: str = ""

    @property
    def usable(self) -> AmdToolchain | None:
        """The compiler, if it compiles."""
        return None if self.reason else self.toolchain

    @property
    def makes_code_objects(self) -> bool:
        """Whether it compiles, and has a linker."""
        return self.usable is not None and bool(self.usable.linker or self.usable.library)


def try_toolchains(
    path: str | None = None, rocm: Path | None = None, arch: str = HIP.arch
) -> Iterator[CompilerTrial]:
    """Try every compiler that is found, the preferred one first, on the whole prelude.

    The answer of a compiler is kept in the cache until the compiler changes.

    Args:
        path: folders in which the system's compilers are looked for; default: PATH.
        rocm: the folder of ROCm; default: as the environment says.
        arch: the architecture that the compiler must know.
    """
    rocm_compiles = False
    for name, found in _found(path, rocm or rocm_folder()):
        if name == "rocm" and rocm_compiles:
            continue
        if isinstance(found, CompilerTrial):
            yield found
            continue
        trial = CompilerTrial(f"{found} at {found.place}", found, _refusal(found, arch))
        rocm_compiles = rocm_compiles or (name == "rocm" and not trial.reason)
        yield trial


def find_toolchains(
    path: str | None = None, rocm: Path | None = None, arch: str = HIP.arch
) -> tuple[AmdToolchain, ...]:
    """Every compiler that compiles, the preferred one first; see `try_toolchains`."""
    usable = (trial.usable for trial in try_toolchains(path, rocm, arch))
    return tuple(dict.fromkeys(found for found in usable if found))


@lru_cache(maxsize=64)
def find_toolchain(arch: str = HIP.arch) -> AmdToolchain:
    """The first compiler that compiles for an architecture.

    Raises:
        ToolchainError: none does; says which were tried, and what to install.
    """
    return choose(try_toolchains(arch=arch), arch)


def choose(trials: Iterable[CompilerTrial], arch: str = HIP.arch) -> AmdToolchain:
    """The first compiler that compiles and has a linker; if none has one, the first that compiles.

    Raises:
        ToolchainError: none does; says which were tried, and what to install.
    """
    passed, unlinked = [], []
    for trial in trials:
        if trial.usable is None:
            passed.append(f"{trial.what}: {trial.reason}")
        elif trial.makes_code_objects:
            return trial.usable
        else:
            unlinked.append(trial.usable)
    if unlinked:
        return unlinked[0]
    said = f"found none that compiles for {arch}: {', '.join(passed)}" if passed else "found none"
    raise ToolchainError(
        f"the hip target needs a clang for AMD GPUs, of LLVM {LEAST_LLVM} or later, and {said}; looked for "
        f"ROCm's in {rocm_folder()}, for {', '.join(SYSTEM_COMPILERS)} on PATH, for the ziglang package and "
        f"for ROCm's {comgr.LIBRARY}; install one with `pip install 'tilewright[native]'`"
    )


def _found(path: str | None, rocm: Path) -> Iterator[tuple[str, AmdToolchain | CompilerTrial]]:
    """All compilers found on the search path, by name; for a program that is no compiler, the reason."""
    for place in ROCM_COMPILERS:
        where = rocm / place
        if where.is_file():
            yield "rocm", _asked("rocm", str(where), str(where.parent))
    for command in SYSTEM_COMPILERS:
        if found := find_program(command, path):
            yield "clang", _asked("clang", found, path)
    if zig := _zig():
        yield "zig", zig
    with contextlib.suppress(ToolchainError):
        yield "comgr", AmdToolchain("comgr", comgr.version(), (), library=comgr.library().path)


def _asked(name: str, where: str, linkers: str | None) -> AmdToolchain | CompilerTrial:
    """The compiler at a place, by the version that it reports."""
    try:
        version = _said([where, "--version"])
    except OSError as problem:
        return CompilerTrial(where, None, f"it cannot be run: {problem.strerror or problem}")
    except subprocess.TimeoutExpired:
        return CompilerTrial(where, None, f"it did not say its version in {_SECONDS} s")
    found = re.search(r"clang version (\d+)(\S*)", version)
    if found is None:
        return CompilerTrial(where, None, "it does not call itself a clang")
    beside = str(Path(where).resolve().parent)
    candidates = ((f"ld.lld-{found[1]}", linkers), ("ld.lld", beside), ("ld.lld", linkers))
    linker = next((at for called, there in candidates if (at := find_program(called, there))), None)
    return AmdToolchain(name, found[1] + found[2], (where,), (linker,) if linker else ())


def _zig() -> AmdToolchain | None:
    """The compiler and the linker inside the `ziglang` package; its driver ``zig c++`` takes no HIP."""
    found = ziglang()
    return found and AmdToolchain("zig", found[1], (found[0], "clang"), (found[0], "ld.lld"))


def _said(command: list[str]) -> str:
    """What a command says."""
    made = subprocess.run(
        command, capture_output=True, check=False, encoding="utf-8", errors="replace", timeout=_SECONDS
    )
    return made.stdout


def _refusal(toolchain: AmdToolchain, arch: str) -> str:
    """Why a compiler cannot compile the prelude for an architecture; empty if it can.

    A compiler's answer is kept in the cache; why it could not be run is asked again.
    """
    text = probe_text(HIP.architecture(arch))

    def build() -> bytes:
        try:
            compile_text(text, arch, "the prelude", toolchain, seconds=_SECONDS)
        except CompileError as refused:
            return (_first_error(refused.log) or "it refuses the prelude").encode()
        return _COMPILES

    try:
        place = Path(toolchain.place).resolve()
        seen = place.stat()
        parts = [text, arch, toolchain.identity, str(place), str(seen.st_size), str(seen.st_mtime_ns)]
        meta: dict[str, object] = {"compiler": str(toolchain), "target": HIP.name, "arch": arch}
        answer = Cache.default().get_or_build(key(parts), ".probe", build, meta).data
    except (OSError, ToolchainError) as problem:
        return str(problem)
    return "" if answer == _COMPILES else answer.decode(errors="replace")


def _first_error(log: str) -> str:
    """The first error of a compiler's log, without the place in the text."""
    found = re.search(r"^.*?\b(error: .*)$", log, re.MULTILINE)
    return found[1].strip() if found else log.strip().partition("\n")[0]


# ---------------------------------------------------------------- compiling


LINES = "-gline-tables-only"
"""Makes the compiler say from which line of the text each instruction comes; it writes the same ones."""


def compile_text(
    text: str,
    arch: str,
    name: str = "kernel",
    toolchain: AmdToolchain | None = None,
    *,
    lines: bool = False,
    seconds: float | None = None,
) -> str:
    """Compile HIP text to the listing of its machine code.

    Args:
        text: the source, without includes.
        arch: e.g. ``"gfx942"``.
        name: what messages call the source.
        toolchain: which compiler; default: `find_toolchain`.
        lines: whether the listing says from which line of the text each instruction comes.
        seconds: after which a command is given up; default: never.

    Raises:
        CompileError: the compiler refused the text; carries its log and the offending lines.
        ToolchainError: there is no compiler, or it could not be run.
    """
    chosen, what = toolchain or find_toolchain(arch), f"{name} for {arch}"
    if chosen.library:
        options = [*(flag for flag in FLAGS if flag not in COMMANDS), *([LINES] if lines else [])]
        return _by_library(what, text, lambda: comgr.listing(text, arch, options))
    command = [*chosen.compiler, *FLAGS, *([LINES] if lines else []), f"--offload-arch={arch}"]
    command += ["-S", "kernel.hip", "-o", "kernel.s"]
    return _run(what, text, ("kernel.hip", text), [command], "kernel.s", seconds).decode()


def assemble(listing: str, arch: str, name: str = "kernel", toolchain: AmdToolchain | None = None) -> bytes:
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
    chosen, what = toolchain or find_toolchain(arch), f"{name} for {arch}"
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
    what: str,
    source: str,
    given: tuple[str, str],
    commands: Sequence[Sequence[str]],
    made: str,
    seconds: float | None = None,
) -> bytes:
    """What commands leave in a file, in a folder in which they find another one."""
    try:
        with tempfile.TemporaryDirectory(prefix="tilewright-", ignore_cleanup_errors=True) as folder:
            Path(folder, given[0]).write_text(given[1], encoding="utf-8")
            for command in commands:
                _step(what, source, list(command), folder, seconds)
            return Path(folder, made).read_bytes()
    except OSError as problem:
        reason = f"{problem.strerror or problem}; {way_out(problem)}"
        raise ToolchainError(f"cannot compile {what}: {reason}") from problem


def _step(what: str, source: str, command: list[str], folder: str, seconds: float | None) -> None:
    name = Path(command[0]).name
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            check=False,
            encoding="utf-8",
            errors="replace",
            cwd=folder,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        raise ToolchainError(f"{name} did not compile {what} in {seconds:g} s") from None
    if done.returncode:
        if ended := crash(done.returncode, done.stderr, what):
            raise ToolchainError(f"{name} {ended}")
        log = done.stderr or done.stdout or f"no output; exit status {done.returncode}"
        if os.strerror(errno.ENOSPC) in log:
            raise ToolchainError(f"{name} had no room for its files; nearest: {MORE_ROOM}")
        raise CompileError(f"{name} refused {what}{_excerpts(log, source)}", log, source)


def _excerpts(log: str, source: str) -> str:
    """The first lines that the compiler complains about, each with its number."""
    lines = source.splitlines()
    numbers = [int(n) for n in re.findall(r"kernel\.(?:hip|s):(\d+):\d+: (?:fatal )?error", log)]
    shown = [n for n in dict.fromkeys(numbers) if 0 < n <= len(lines)][:_EXCERPTS]
    return "".join(f"\n{n:6} | {lines[n - 1]}" for n in shown)
