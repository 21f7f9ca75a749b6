"""Architectures as data: what a compiler is told, and what a block may use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilewright.errors import LaunchError, close_to, shown

MOST_BLOCKS = (2**31 - 1, 65535, 65535)
"""Most blocks of a grid along x, y and z."""


@dataclass(frozen=True)
class Arch:
    """One kind of machine.

    Args:
        name: what the compiler calls it.
        vendor: ``"nvidia"``.
        features: what operations and atoms may ask for.
        shared_bytes: most shared memory of one block.
        lanes: threads of a warp.
        threads: most threads of one block.
        registers: 32-bit registers of one multiprocessor.
        cluster: most blocks of one cluster; 1 without clusters.
        grid: most blocks along each axis, x first.
    """

    name: str
    vendor: str
    features: frozenset[str]
    shared_bytes: int
    lanes: int = 32
    threads: int = 1024
    registers: int = 65536
    cluster: int = 1
    grid: tuple[int, ...] = MOST_BLOCKS


_SM_80 = frozenset({"sm_80", "cp_async"})
_SM_90 = _SM_80 | {"sm_89", "sm_90", "sm_90a", "cluster", "f64_tensor"}

SM_80 = Arch("sm_80", "nvidia", _SM_80 | {"f64_tensor"}, 166912)
SM_86 = Arch("sm_86", "nvidia", _SM_80, 101376)
SM_89 = Arch("sm_89", "nvidia", _SM_80 | {"sm_89"}, 101376)
SM_90A = Arch("sm_90a", "nvidia", _SM_90, 232448, cluster=8)

ARCHITECTURES: dict[str, Arch] = {arch.name: arch for arch in (SM_80, SM_86, SM_89, SM_90A)}
"""Every architecture by name.  Source: CUDA C++ Programming Guide, "Compute Capabilities"."""


def architecture(name: Any) -> Arch:
    """The architecture of a name.

    Raises:
        LaunchError: no such architecture; lists the names.
    """
    if isinstance(name, Arch):
        return name
    if not isinstance(name, str) or name not in ARCHITECTURES:
        known = f"{', '.join(ARCHITECTURES)}{close_to(name, ARCHITECTURES)}"
        raise LaunchError(f"unknown architecture {shown(name)}; known: {known}")
    return ARCHITECTURES[name]


def of_capability(major: int, minor: int) -> Arch:
    """The architecture to compile for on a GPU of a compute capability: its own, or the nearest below.

    Raises:
        LaunchError: the GPU is older than the oldest, or no text for it would run.

    Example:
        >>> of_capability(9, 0).name, of_capability(8, 7).name, of_capability(8, 9).name
        ('sm_90a', 'sm_86', 'sm_89')
    """
    older = {
        (8, 0): SM_80,
        (8, 6): SM_86,
        (8, 9): SM_89,
        (9, 0): SM_90A,
    }
    fits = [arch for (big, small), arch in older.items() if big == major and small <= minor]
    if not fits:
        raise LaunchError(
            f"no architecture for compute capability {major}.{minor}; known: {', '.join(ARCHITECTURES)}"
        )
    return fits[-1]
