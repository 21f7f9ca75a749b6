"""The backend of each target, and the choice of a backend for a call."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from tilewright.arch import REFERENCE, Arch
from tilewright.errors import LaunchError
from tilewright.namespaces import import_whole
from tilewright.runtime.arrays import ArrayInfo
from tilewright.runtime.drivers import driver_for
from tilewright.runtime.executable import Backend, Executable, Prepared
from tilewright.runtime.frameworks import NOWHERE, memory_of
from tilewright.targets.target import CPU, CUDA, HIP, HOST, TARGETS, TargetParts, serving, target_named
from tilewright.targets.target import REFERENCE as INTERPRETED


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
    {INTERPRETED.name: _reference, CPU.name: _cpu, CUDA.name: _cuda, HIP.name: _hip}
)
"""The backend of each target."""


def backend_named(name: Any) -> Backend:
    """Return the backend of a target.

    Raises:
        LaunchError: no such target; lists the names.
    """
    return _made(target_named(name).name)


def arch_of(backend: Backend, arch: str | None) -> Arch:
    """Return a backend's architecture by name; default: that of this machine.

    Raises:
        LaunchError: no such architecture.
    """
    return TARGETS[backend.name].architecture(arch or backend.arch_name())


def arch_named(target: str | None, arch: str | None) -> Arch:
    """Return a target's architecture; without a target, that of the reference.

    Raises:
        LaunchError: no such target or architecture, or an architecture without a target.
    """
    if target is not None:
        return arch_of(backend_named(target), arch)
    if arch is not None:
        # The target that has the architecture; CUDA for an unknown name.
        owners = (one.name for one in TARGETS.values() if arch in one.architectures)
        wanted = next(owners, CUDA.name)
        raise LaunchError(f"arch={arch!r} without a target", f"add target={wanted!r}")
    return REFERENCE


def processors_of(target: str | None, arch: Arch) -> int:
    """Return the number of a target's processors on this machine; 0 if it has another architecture."""
    if target is None:
        return 0
    backend = backend_named(target)
    return backend.processors() if arch.name == backend.arch_name() else 0


@cache
def _made(name: str) -> Backend:
    # filelock registers fork hooks. A fork that waits for an import runs only some of the hooks that the
    # import registers, and they complain. Imported by itself, the package makes that wait short.
    import_whole("filelock")
    return BACKENDS[name]()


def backend_for(kernel: str, arrays: Sequence[tuple[str, ArrayInfo]], target: str | None) -> Backend:
    """Return the backend of a target; by default, the one that serves the memory of the arrays.

    Args:
        kernel: the kernel's name in messages.
        arrays: names and metadata; specimens do not count.
        target: the wanted target, or None.

    Raises:
        LaunchError: the arrays lie on different devices, or the target cannot reach them, or it cannot launch
            on this machine.
    """
    arrays = [(name, info) for name, info in arrays if info.device != NOWHERE]
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
        near = f"nearest: target={serving(memory).name!r}, or move the arrays"
        text = f"kernel {kernel}: target {chosen.name!r} cannot reach arrays {where}; {near}"
        raise LaunchError(text)
    return backend_named(chosen.name)


__all__ = ["Backend", "Executable", "Prepared", "backend_for", "backend_named"]
