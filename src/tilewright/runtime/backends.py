"""The backends, and which one serves a call."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from tilewright.arch import REFERENCE, Arch
from tilewright.errors import LaunchError, Violation
from tilewright.ir.kernel import Kernel
from tilewright.namespaces import import_whole
from tilewright.runtime.arrays import ArrayInfo
from tilewright.runtime.drivers import driver_for
from tilewright.runtime.executable import Backend, Executable, Prepared
from tilewright.runtime.frameworks import memory_of
from tilewright.targets.target import (
    CPU,
    CUDA,
    HIP,
    HOST,
    TARGETS,
    TargetParts,
    serving,
    target_named,
)
from tilewright.targets.target import (
    REFERENCE as EXECUTED,
)


def _reference() -> type[Backend]:
    from tilewright.runtime.reference import ReferenceBackend

    return ReferenceBackend


def _cpu() -> type[Backend]:
    from tilewright.runtime.host import CpuBackend

    return CpuBackend


def _cuda() -> type[Backend]:
    from tilewright.runtime.device import CudaBackend

    return CudaBackend


def _hip() -> type[Backend]:
    from tilewright.runtime.hip import HipBackend

    return HipBackend


BACKENDS: TargetParts[type[Backend]] = TargetParts(
    {EXECUTED.name: _reference, CPU.name: _cpu, CUDA.name: _cuda, HIP.name: _hip}
)
"""The backend of each target."""


def backend_named(name: Any) -> Backend:
    """The backend of a target.

    Raises:
        LaunchError: no such target; lists the names.
    """
    return _made(target_named(name).name)


def arch_of(backend: Backend, arch: str | None) -> Arch:
    """The architecture of a name that a backend compiles for; without a name that of this machine.

    Raises:
        LaunchError: no such architecture.
    """
    return TARGETS[backend.name].architecture(arch or backend.arch_name())


def arch_named(target: str | None, arch: str | None) -> Arch:
    """A target's architecture; without a target the machine that the reference is.

    Raises:
        LaunchError: no such target or architecture, or an architecture without a target.
    """
    if target is not None:
        return arch_of(backend_named(target), arch)
    if arch is not None:
        raise LaunchError(
            f"arch={arch!r} without a target; nearest legal choice: target={_owner(arch)!r} beside it"
        )
    return REFERENCE


def processors_of(target: str | None, arch: Arch) -> int:
    """How many processors this machine has, if it is of an architecture of the target; else 0."""
    if target is None:
        return 0
    backend = backend_named(target)
    return backend.processors() if arch.name == backend.arch_name() else 0


def broken_rules(kernel: Kernel, target: str | None, arch: str | None) -> tuple[str, tuple[Violation, ...]]:
    """A target's name with its architecture, and its rules that a kernel breaks; nothing without a target."""
    if target is None:
        return "", ()
    backend = backend_named(target)
    chosen = arch or backend.arch_name()
    return f"{target} {chosen}", tuple(backend.violations(kernel, chosen))


def _owner(arch: str) -> str:
    """The target that has an architecture; if none has it, one that has several."""
    return next((target.name for target in TARGETS.values() if arch in target.architectures), CUDA.name)


@cache
def _made(name: str) -> Backend:
    # It registers fork hooks.  A fork that waits for an import runs only half of the hooks that this import
    # registers, and they complain; so the package is imported by itself, and the wait for it is short.
    import_whole("filelock")
    return BACKENDS[name]()


def backend_for(kernel: str, arrays: Sequence[tuple[str, ArrayInfo]], target: str | None) -> Backend:
    """The backend that serves arrays: the one asked for, else by where the arrays lie.

    Args:
        kernel: what messages call it.
        arrays: their names and what they are.
        target: the one asked for.

    Raises:
        LaunchError: arrays on different devices, a target that cannot reach them, or one that can launch
            nothing on this machine.
    """
    devices = {info.device for _, info in arrays}
    if len(devices) > 1:
        places = ", ".join(f"{name} on {info.device}" for name, info in arrays)
        raise LaunchError(f"kernel {kernel}: arrays on different devices: {places}; move them to one")
    memory = memory_of(next(iter(devices), HOST))
    chosen = serving(memory) if target is None else target_named(target)
    driver = driver_for(chosen.name)
    if driver is not None and (reason := driver.missing()):
        raise LaunchError(f"kernel {kernel}: {reason}")
    if chosen.memory != memory and devices:
        where = "in host memory" if memory == HOST else "on a GPU"
        raise LaunchError(
            f"kernel {kernel}: target {chosen.name!r} cannot reach arrays {where}; "
            f"nearest: target={serving(memory).name!r}, or move the arrays"
        )
    return backend_named(chosen.name)


__all__ = ["Backend", "Executable", "Prepared", "backend_for", "backend_named"]
