"""Simulated AMD GPUs: a target for each architecture and compiler, which executes listings.

A kernel or operation that is called with such a target goes through all steps of a launch: the choice for the
arrays, the compiler, and its listing.  Only the last step differs: NumPy executes the listing, on the
caller's own arrays.  ``"gfx942"`` and ``"gfx1151"`` use the newer compiler, and names that end in
``" older"`` the older one; ``"gfx942 reference"`` executes the traced kernel itself, with 64 lanes.
"""

from __future__ import annotations

import sys
from collections import ChainMap, Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import numpy as np
from numpy.lib.array_utils import byte_bounds

from tilewright.amdgcn import Listing, execute, read_listing
from tilewright.ir.kernel import Kernel, ScalarParam, SizeParam, TensorParam, Workspace
from tilewright.lang.program import Parameter
from tilewright.runtime import amdgcn, backends
from tilewright.runtime.amdgcn import AmdToolchain
from tilewright.runtime.arrays import describe, elements
from tilewright.runtime.binding import Binding, number
from tilewright.runtime.executable import Executable
from tilewright.runtime.hip import HipBackend
from tilewright.runtime.reference import PreparedReference
from tilewright.targets.rules import EmittedText
from tilewright.targets.target import HIP, HOST, TARGETS

ARCHS = ("gfx942", "gfx1151")

OLDER = Path(sys.prefix) / "older-compiler" / "ziglang"
"""Where ``sh dev test`` puts an older version of the PyPI compiler, with the clang of LLVM 19."""

OLDER_VERSION = "0.14.1"

SYSTEM = ("rocm", "clang")
"""What compilers are called that a machine has of its own."""


@cache
def toolchain(which: str) -> AmdToolchain:
    """Return the newer or the older version of the PyPI compiler, or the system's.

    Args:
        which: ``"newer"``, ``"older"`` or ``"system"``.
    """
    if which != "older":
        names = ("zig",) if which == "newer" else SYSTEM
        return next(found for found in amdgcn.find_toolchains() if found.name in names)
    zig = OLDER / "zig"
    if not zig.is_file():
        raise FileNotFoundError(
            f"there is no {zig}, the older compiler that kernels for AMD GPUs are tried with: `sh dev test` "
            f"installs it, or `pip install --no-deps --target {OLDER.parent} ziglang=={OLDER_VERSION}`"
        )
    return AmdToolchain("zig", OLDER_VERSION, (str(zig), "clang"), (str(zig), "ld.lld"))


@cache
def others() -> tuple[str, ...]:
    """Return the other compilers that must accept the same text: the older one, and the system's if any."""
    system = any(found.name in SYSTEM for found in amdgcn.find_toolchains())
    return ("older", "system") if system else ("older",)


def listings(made: Executable) -> Iterator[str]:
    """Return the listings of a kernel's text by its own compiler and by the others.

    Args:
        made: the kernel.
    """
    assert made.arch is not None
    yield made.assembly
    for other in others():
        yield amdgcn.compile_text(made.source, made.arch, made.kernel.name, toolchain(other))


class Machine(HipBackend):
    """An AMD GPU; NumPy executes its kernels from the listing of one compiler."""

    arch: ClassVar[str]
    compiler: ClassVar[str]

    def arch_name(self) -> str:
        return self.arch

    def compile(self, kernel: Kernel, arch: str | None, listing: EmittedText | None = None) -> Executable:
        """Compile with this compiler; the others compile the newer one's text, too."""
        if self.compiler == "reference":
            return Executable(self.name, self.arch, kernel)
        with patch.object(amdgcn, "find_toolchain", lambda arch: toolchain(self.compiler)):
            made = super().compile(kernel, self.arch, listing)
        COMPILED[self.compiler] += 1
        for other in others() if self.compiler == "newer" else ():
            amdgcn.compile_text(made.source, self.arch, kernel.name, toolchain(other))
            COMPILED[other] += 1
        return replace(made, target=self.name)

    def prepare(self, executable: Executable, binding: Binding, parameters: Sequence[Parameter]) -> Any:
        if self.compiler == "reference":
            return PreparedReference(executable, binding, tuple(parameters))
        return Prepared(executable, binding, tuple(parameters))


COMPILED: Counter[str] = Counter()
"""How many kernels each compiler has compiled, since it was emptied last."""


class Prepared:
    """A launch for arguments of one exact shape."""

    may_be_inlined: ClassVar[bool] = False

    def __init__(self, executable: Executable, binding: Binding, parameters: tuple[Parameter, ...]) -> None:
        self.executable, self.binding, self.parameters = executable, binding, parameters
        self.recent, self.seen = True, 0
        self.memory: dict[str, Any] = {}  # kernels leave counters as they found them
        executable.launches.add(self)

    def inline(self, numbers: Sequence[Any]) -> None:
        """There is no launch without Python."""

    def launch(self, arguments: Sequence[Any], pointers: Sequence[int], stream: Any) -> None:
        """Execute the listing on these arguments."""
        executable = self.executable
        assert executable.listing is not None
        kernel = executable.listing.kernel
        # Known calls pass numbers that the kernel may not have.
        own = arguments[: len(self.parameters)]
        by_name = dict(zip((p.name for p in self.parameters), own, strict=True))
        given: list[Any] = []
        for param in kernel.passed:
            if isinstance(param, TensorParam):
                given.append(seen(by_name[param.value.name]))
            elif isinstance(param, SizeParam):
                given.append((np.int64 if param.bits == 64 else np.int32)(self.binding.sizes[param.sym.name]))
            elif isinstance(param, ScalarParam):
                given.append(number(param.value.name, param.value.dtype, by_name[param.value.name]))
            else:
                assert isinstance(param, Workspace)
                name = param.value.name
                if name not in self.memory or param.zeroed:
                    self.memory[name] = memory(self.binding.workspaces[name], param)
                given.append(self.memory[name])
        grid = (*self.binding.grid, 1, 1)[:3]
        if 0 not in grid:
            block = (kernel.threads, 1, 1)
            made = execute(read(executable.assembly), given, grid, block, most=MOST, all_meet=True)
            EXECUTED.update(made.mnemonics)


MOST = 2_000_000
"""Instructions of all waves after which a kernel is given up, some ten times as many as the longest has."""

EXECUTED: Counter[str] = Counter()
"""How often each instruction was executed, since it was emptied last."""


@cache
def read(assembly: str) -> Listing:
    """Read each listing once."""
    return read_listing(assembly)


REACHED: list[Any] = []
"""Memory that lists of arrays lie in: they are passed as buffers that begin somewhere and end nowhere."""


def seen(array: Any) -> Any:
    """Return an argument as a NumPy array."""
    if isinstance(array, np.ndarray):
        return array
    info = describe(array)
    for low, high in map(byte_bounds, REACHED):
        if low <= info.pointer < high:
            info = replace(info, shape=((high - info.pointer) // info.dtype.bytes,), strides=(1,))
    return elements(info)


def memory(count: int, param: Workspace) -> Any:
    """Return the launcher's memory: counters begin with zeros, the rest with poison."""
    made = np.zeros(max(count, 1), param.value.dtype.numpy)
    if not (param.zeroed or param.resets):
        made.view(np.uint8)[:] = 0xFF
    return made


def _backend(arch: str, compiler: str) -> type[Machine]:
    name = arch if compiler == "newer" else f"{arch} {compiler}"
    return type("Machine", (Machine,), {"name": name, "arch": arch, "compiler": compiler})


BACKENDS: dict[str, type[Any]] = {
    made.name: made
    for compiler in ("newer", "older", "reference")
    for arch in ARCHS
    for made in [_backend(arch, compiler)]
}

MACHINES = {
    name: replace(
        HIP,
        name=name,
        memory=HOST,
        serves=False,
        machine_code=made.compiler != "reference",  # which reads arrays, not addresses
        arch=made.arch,
    )
    for name, made in BACKENDS.items()
}


@contextmanager
def machines() -> Iterator[None]:
    """Register the targets while the with block runs."""
    TARGETS.update(MACHINES)
    try:
        with patch.object(backends, "BACKENDS", ChainMap(BACKENDS, backends.BACKENDS)):
            yield
    finally:
        for name in MACHINES:
            del TARGETS[name]
        backends._made.cache_clear()
