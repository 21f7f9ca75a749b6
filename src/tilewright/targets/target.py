"""The targets: their names, the memory that they serve, and their architectures.

A target's name is written only here; other code asks the target's record.  A record holds plain values, and
names no package of a higher layer.  A package with a part for each target, such as the backends of `runtime`,
has its own table, `TargetParts`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tilewright.arch import ARCHITECTURES, PROCESSORS, Arch
from tilewright.errors import LaunchError, close_to, shown
from tilewright.namespaces import run_imports

HOST = "cpu"
"""DLPack's and the frameworks' name of host memory."""

GPU = "cuda"
"""DLPack's and the frameworks' name of NVIDIA GPU memory."""

AMD_GPU = "rocm"
"""DLPack's and the frameworks' name of AMD GPU memory."""


Part = TypeVar("Part")


class TargetParts(Mapping[str, Part]):
    """The parts of one kind that targets have, e.g. backends, by the target's name.

    A row is a function that imports its part and returns it.  So readers and `lint-imports` see each import,
    and a target's modules load when its part is first asked for.

    Args:
        rows: by the target's name.

    Example:
        >>> def counts():
        ...     from os import cpu_count
        ...     return cpu_count
        >>> parts = TargetParts({"cpu": counts})
        >>> list(parts), parts["cpu"]() > 0
        (['cpu'], True)
    """

    def __init__(self, rows: Mapping[str, Callable[[], Part]]) -> None:
        self._rows = rows
        self._found: dict[str, Part] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, target: str) -> Part:
        if target not in self._found:
            self._found[target] = run_imports(self._rows[target])
        return self._found[target]


def _nvidia() -> Mapping[str, Arch]:
    from tilewright.targets.nvidia import ARCHITECTURES

    return ARCHITECTURES


def _amd() -> Mapping[str, Arch]:
    from tilewright.targets.amd import ARCHITECTURES

    return ARCHITECTURES


MACHINES: TargetParts[Mapping[str, Arch]] = TargetParts({"nvidia": _nvidia, "amd": _amd})
"""The architectures of GPUs, by vendor."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """One target, as data.

    Args:
        name: the name for users.
        called: other common names; messages suggest the name for them.
        memory: the memory of its arrays: `HOST`, or the frameworks' name of a device.
        serves: whether it is the default target for arrays in this memory.
        machines: its architectures by name, or their vendor in `MACHINES`.
        arch: the architecture to compile for without a device; empty for that of this machine.
        machine_code: whether it compiles to machine code, and so has passes, and a speed worth measuring.
        warps: whether its text is the program of one thread; a warp's accesses may then conflict in banks.
        counters: whether the vendor's profiler reads counters of its kernels.
        shape: extents (M, N, K) of a problem that shows its speed.
    """

    name: str
    called: tuple[str, ...]
    memory: str
    serves: bool
    machines: Mapping[str, Arch] | str = field(compare=False, repr=False)
    arch: str = ""
    machine_code: bool = True
    warps: bool = False
    counters: bool = False
    shape: tuple[int, int, int]

    @property
    def architectures(self) -> Mapping[str, Arch]:
        """Its architectures by name."""
        return MACHINES[self.machines] if isinstance(self.machines, str) else self.machines

    def architecture(self, name: Any) -> Arch:
        """Return its architecture with this name; an `Arch` is returned unchanged.

        Raises:
            LaunchError: no such architecture; the message lists the names.
        """
        if isinstance(name, Arch):
            return name
        known = self.architectures
        if isinstance(name, str) and name in known:
            return known[name]
        names = f"{', '.join(known)}{close_to(name, known)}"
        owner = next((other.name for other in TARGETS.values() if name in other.architectures), "")
        other = f"; it belongs to target {owner}: pass target={owner!r} too" if owner else ""
        raise LaunchError(f"unknown architecture {shown(name)} of target {self.name}; known: {names}{other}")


REFERENCE = Target(
    name="reference",
    called=("numpy",),
    memory=HOST,
    serves=False,
    machines=ARCHITECTURES,
    machine_code=False,
    shape=(64, 64, 64),
)
CPU = Target(
    name="cpu",
    called=("host",),
    memory=HOST,
    serves=True,
    machines=PROCESSORS,
    shape=(1024, 1024, 1024),
)
CUDA = Target(
    name="cuda",
    called=("gpu", "nvidia"),
    memory=GPU,
    serves=True,
    machines="nvidia",
    arch="sm_90a",
    warps=True,
    counters=True,
    shape=(4096, 4096, 4096),
)
HIP = Target(
    name="hip",
    called=("amd", "rocm"),
    memory=AMD_GPU,
    serves=True,
    machines="amd",
    arch="gfx942",
    warps=True,
    shape=(4096, 4096, 4096),
)

TARGETS: dict[str, Target] = {target.name: target for target in (REFERENCE, CPU, CUDA, HIP)}
"""Every target by its name."""

MEANT = {other: target.name for target in TARGETS.values() for other in target.called}
"""Target names by other common names."""


def target_named(name: Any) -> Target:
    """Return the target with this name.

    Raises:
        LaunchError: no such target; the message lists the names.
    """
    if not isinstance(name, str) or name not in TARGETS:
        near = close_to(MEANT.get(name, name) if isinstance(name, str) else name, TARGETS)
        raise LaunchError(f"unknown target {shown(name)}; choose one of {', '.join(TARGETS)}{near}")
    return TARGETS[name]


def serving(memory: str) -> Target:
    """Return the default target for arrays of a memory."""
    return next(target for target in TARGETS.values() if target.serves and target.memory == memory)


def owner(arch: str) -> Target:
    """Return the target that has an architecture with this name.

    Example:
        >>> owner("gfx942").name, owner("sm_80").name
        ('hip', 'cuda')
    """
    return next(target for target in TARGETS.values() if arch in target.architectures)
