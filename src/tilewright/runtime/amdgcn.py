"""Compilers for AMD GPUs: finding one, and compiling HIP text to a listing of its machine code.

We always compile to a listing, the compiler's own assembly text. We read resources from it, and assemble a
code object where a device loads one. We prefer ROCm's clang, then a clang of the system, then the one inside
the `ziglang` package, then the library that ROCm's hiprtc compiles with (`comgr`). None of them needs ROCm's
headers. We take a compiler only if it compiles the whole prelude; older ones do not.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from tilewright.errors import CompileError, ToolchainError, way_out
from tilewright.runtime import comgr
from tilewright.runtime.cache import Cache, key
from tilewright.runtime.environment import rocm_folder
from tilewright.runtime.native import Toolchain, excerpts, find_program, run_compiler, run_tool, ziglang
from tilewright.targets.hip.prelude import probe_text
from tilewright.targets.target import HIP

CODE_OBJECT = "-mcode-object-version=5"
"""The version of code objects, pinned."""

COMMANDS = ("-xhip", "--cuda-device-only")
"""Options that a command needs and the library does not."""

FLAGS = (*COMMANDS, "-nogpulib", "-nogpuinc", "-O3", "-std=c++17", "-ffp-contract=off", CODE_OBJECT)
"""Options of every compilation: no fast math, no contraction; fused operations call ``fmaf``."""

TRIPLE = "amdgcn-amd-amdhsa"

ROCM_COMPILERS = ("lib/llvm/bin/amdclang++", "llvm/bin/amdclang++", "llvm/bin/clang++", "bin/amdclang++")
"""Paths of ROCm's compiler in ROCm's folder, in the order that we try."""

SYSTEM_COMPILERS = ("clang++-22", "clang++-21", "clang++-20", "clang++-19", "clang++")
"""Compilers looked for on PATH, in this order."""

LEAST_LLVM = 19
"""The first LLVM whose fences can name one address space, as the prelude needs."""

_SECONDS = 60
"""Seconds that a compiler may take to report its version, or to compile the prelude."""

_COMPILES = b"compiles"
"""The cached result for a compiler that compiles the prelude."""

Made = TypeVar("Made", str, bytes)


@dataclass(frozen=True)
class AmdToolchain(Toolchain):
    """A clang that compiles for AMD GPUs.

    Args:
        name: ``"rocm"``, ``"clang"``, ``"zig"`` or ``"comgr"``.
        version: as the compiler reports it.
        compiler: the command that compiles and assembles; empty if ``library`` is set.
        linker: the command that links; if empty, no code object can be made.
        library: the path of a library that compiles, assembles and links; empty if commands do this.
    """

    library: str = ""

    @property
    def identity(self) -> str:
        """Everything that a listing depends on besides text and architecture: compiler, version and flags."""
        return f"{self} {' '.join(FLAGS)}"

    @property
    def place(self) -> str:
        """The path of the compiler or library."""
        return self.library or self.compiler[0]


@dataclass(frozen=True)
class CompilerTrial:
    """A compiler that was found, and whether it compiles the prelude.

    Args:
        what: name, version and path of the compiler.
        toolchain: the compiler; None if it is no clang.
        reason: the reason to skip it; empty if it compiles the prelude.
    """

    what: str
    toolchain: AmdToolchain | None
    reason: str = ""

    @property
    def usable(self) -> AmdToolchain | None:
        """The compiler; None if it is skipped."""
        return None if self.reason else self.toolchain

    @property
    def makes_code_objects(self) -> bool:
        """Whether it compiles and links."""
        return self.usable is not None and bool(self.usable.linker or self.usable.library)


def try_toolchains(
    path: str | None = None, rocm: Path | None = None, arch: str = HIP.arch
) -> Iterator[CompilerTrial]:
    """Compile the whole prelude with every compiler that is found, the preferred one first.

    The result is cached until the compiler changes.

    Args:
        path: folders to search for compilers of the system; default: PATH.
        rocm: the folder of ROCm; default: from the environment.
        arch: the architecture to compile for.
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
    """Return every compiler that compiles the prelude, the preferred one first; see `try_toolchains`."""
    usable = (trial.usable for trial in try_toolchains(path, rocm, arch))
    return tuple(dict.fromkeys(found for found in usable if found))


@lru_cache(maxsize=64)
def find_toolchain(arch: str = HIP.arch) -> AmdToolchain:
    """Return the first compiler that compiles for an architecture.

    Raises:
        ToolchainError: none does; lists those that were tried, and what to install.
    """
    return choose(try_toolchains(arch=arch), arch)


def choose(trials: Iterable[CompilerTrial], arch: str = HIP.arch) -> AmdToolchain:
    """Return the first compiler that compiles and links, else the first that compiles.

    Raises:
        ToolchainError: none compiles; lists those that were tried, and what to install.
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
    said = f"none of the compilers found works for {arch}: {', '.join(passed)}" if passed else "found none"
    raise ToolchainError(
        f"the hip target needs a clang for AMD GPUs, of LLVM {LEAST_LLVM} or later, and {said}; looked for "
        f"ROCm's in {rocm_folder()}, for {', '.join(SYSTEM_COMPILERS)} on PATH, for the ziglang package and "
        f"for ROCm's {comgr.LIBRARY}; install one with `pip install 'tilewright[native]'`"
    )


def _found(path: str | None, rocm: Path) -> Iterator[tuple[str, AmdToolchain | CompilerTrial]]:
    """Return all compilers by name; for a program that is no clang, the reason."""
    for place in ROCM_COMPILERS:
        where = rocm / place
        if where.is_file():
            yield "rocm", _asked("rocm", str(where), str(where.parent))
    for command in SYSTEM_COMPILERS:
        if found := find_program(command, path):
            yield "clang", _asked("clang", found, path)
    if zig := ziglang():  # the compiler and the linker inside; the driver ``zig c++`` takes no HIP
        program, version = zig
        yield "zig", AmdToolchain("zig", version, (program, "clang"), (program, "ld.lld"))
    with contextlib.suppress(ToolchainError):
        yield "comgr", AmdToolchain("comgr", comgr.version(), (), library=comgr.library().path)


def _asked(name: str, where: str, linkers: str | None) -> AmdToolchain | CompilerTrial:
    """Return the compiler at a path, from the version that it reports."""
    try:
        version = run_tool([where, "--version"], timeout=_SECONDS).stdout
    except OSError as problem:
        return CompilerTrial(where, None, f"it cannot be run: {problem.strerror or problem}")
    except subprocess.TimeoutExpired:
        return CompilerTrial(where, None, f"it did not print its version within {_SECONDS} s")
    found = re.search(r"clang version (\d+)(\S*)", version)
    if found is None:
        return CompilerTrial(where, None, "its version text does not name clang")
    own = str(Path(where).resolve().parent)
    candidates = ((f"ld.lld-{found[1]}", linkers), ("ld.lld", own), ("ld.lld", linkers))
    linker = next((at for called, there in candidates if (at := find_program(called, there))), None)
    return AmdToolchain(name, found[1] + found[2], (where,), (linker,) if linker else ())


def _refusal(toolchain: AmdToolchain, arch: str) -> str:
    """Return why a compiler cannot compile the prelude for an architecture; empty if it can.

    The result is cached, unless the compiler could not be run.
    """
    text = probe_text(HIP.architecture(arch))

    def build() -> bytes:
        try:
            compile_text(text, arch, "the prelude", toolchain, seconds=_SECONDS)
        except CompileError as refused:
            log = refused.log.strip()
            found = re.search(r"^.*?\b(error: .*)$", log, re.MULTILINE)
            first = found[1].strip() if found else log.partition("\n")[0]
            return (first or "it cannot compile the prelude").encode()
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


# ---------------------------------------------------------------- compiling


LINES = "-gline-tables-only"
"""Adds the line of the text to each instruction; the instructions stay the same."""


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
        toolchain: the compiler; default: `find_toolchain`.
        lines: whether the listing gives the line of the text for each instruction.
        seconds: time limit of a command; default: none.

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
    return _run(what, text, "kernel.hip", [command], "kernel.s", seconds).decode()


def assemble(listing: str, arch: str, name: str = "kernel", toolchain: AmdToolchain | None = None) -> bytes:
    """Assemble and link a listing into the code object that a device loads.

    Args:
        listing: the result of `compile_text`.
        arch: the architecture that it was compiled for.
        name: what messages call it.
        toolchain: assembler and linker; default: `find_toolchain`.

    Raises:
        CompileError: the assembler refused the listing.
        ToolchainError: there is no assembler or linker, or it could not be run.
    """
    chosen, what = toolchain or find_toolchain(arch), f"{name} for {arch}"
    if chosen.library:
        return _by_library(what, listing, lambda: comgr.code_object(listing, arch, [CODE_OBJECT]))
    if not chosen.linker:
        near = "install lld of the same version, or `pip install 'tilewright[native]'`"
        text = f"{chosen} has no linker ld.lld, so no code object can be made of {name}; {near}"
        raise ToolchainError(text)
    assembled = [*chosen.compiler, "-x", "assembler", "-target", TRIPLE, f"-mcpu={arch}"]
    commands = [
        [*assembled, CODE_OBJECT, "-c", "kernel.s", "-o", "kernel.o"],
        [*chosen.linker, "-shared", "kernel.o", "-o", "kernel.hsaco"],
    ]
    return _run(what, listing, "kernel.s", commands, "kernel.hsaco")


def _by_library(what: str, source: str, act: Callable[[], Made]) -> Made:
    """Call the library; its refusals become errors like those of a command."""
    try:
        return act()
    except comgr.RefusedError as refused:
        log = str(refused)
        raise CompileError(f"{comgr.LIBRARY} refused {what}{excerpts(log, source)}", log, source) from None


def _run(
    what: str,
    source: str,
    file: str,
    commands: Sequence[Sequence[str]],
    made: str,
    seconds: float | None = None,
) -> bytes:
    """Write the source to a file in a new folder, run commands there, and return the file that they made."""
    try:
        with tempfile.TemporaryDirectory(prefix="tilewright-", ignore_cleanup_errors=True) as folder:
            Path(folder, file).write_text(source, encoding="utf-8")
            for command in commands:
                run_compiler(list(command), folder, what, source, seconds)
            return Path(folder, made).read_bytes()
    except OSError as problem:
        reason = f"{problem.strerror or problem}; {way_out(problem)}"
        raise ToolchainError(f"cannot compile {what}: {reason}") from problem
