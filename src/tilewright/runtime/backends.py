"""The backends, and which one serves a call."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Any

from tilewright.errors import LaunchError, Violation, close_to, shown
from tilewright.ir.kernel import Kernel
from tilewright.runtime.arrays import ArrayInfo
from tilewright.runtime.executable import Backend, Executable, Prepared

BACKENDS = {
    "reference": "tilewright.runtime.reference.ReferenceBackend",
    "cpu": "tilewright.runtime.host.CpuBackend",
    "cuda": "tilewright.runtime.device.CudaBackend",
}
"""The class of every backend, by its target's name.  What a target takes is loaded when it is asked for."""

MEANT = {"gpu": "cuda", "nvidia": "cuda", "host": "cpu", "numpy": "reference"}
"""What people call targets."""


def backend_named(name: Any) -> Backend:
    """The backend of a target.

    Raises:
        LaunchError: no such target; lists the names.
    """
    if not isinstance(name, str) or name not in BACKENDS:
        meant = close_to(MEANT.get(name, name) if isinstance(name, str) else name, BACKENDS)
        raise LaunchError(f"unknown target {shown(name)}; choose one of {', '.join(BACKENDS)}{meant}")
    return _made(name)


def broken_rules(kernel: Kernel, target: str | None, arch: str | None) -> tuple[str, tuple[Violation, ...]]:
    """A target's name with its architecture, and its rules that a kernel breaks; nothing without a target.

    Raises:
        LaunchError: no such target or architecture, or an architecture without a target.
    """
    if target is None:
        if arch is not None:
            raise LaunchError(
                f"arch={arch!r} without a target; nearest legal choice: target='cuda' beside it"
            )
        return "", ()
    backend = backend_named(target)
    chosen = arch or backend.arch_name()
    return f"{target} {chosen}", tuple(backend.violations(kernel, chosen))


@cache
def _made(name: str) -> Backend:
    module, _, backend = BACKENDS[name].rpartition(".")
    made: Backend = getattr(import_module(module), backend)()
    return made


def backend_for(kernel: str, arrays: Sequence[tuple[str, ArrayInfo]], target: str | None) -> Backend:
    """The backend that serves arrays: the one asked for, else by where the arrays lie.

    Args:
        kernel: what messages call it.
        arrays: their names and what they are.
        target: the one asked for.

    Raises:
        LaunchError: arrays on different devices, or a target that cannot reach them.
    """
    devices = {info.device for _, info in arrays}
    if len(devices) > 1:
        places = ", ".join(f"{name} on {info.device}" for name, info in arrays)
        raise LaunchError(f"kernel {kernel}: arrays on different devices: {places}; move them to one")
    on_host = devices <= {"cpu"}
    chosen = ("cpu" if on_host else "cuda") if target is None else target
    backend = backend_named(chosen)
    if (chosen == "cuda") == on_host and devices:
        where = "in host memory" if on_host else "on a GPU"
        raise LaunchError(
            f"kernel {kernel}: target {chosen!r} cannot reach arrays {where}; "
            f"nearest: target={'cpu' if on_host else 'cuda'!r}, or move the arrays"
        )
    return backend


__all__ = ["BACKENDS", "Backend", "Executable", "Prepared", "backend_for", "backend_named"]
