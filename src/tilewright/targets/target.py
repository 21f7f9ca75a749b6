"""The targets: what each one is called, whose arrays it serves, and where its parts lie.

A target's name stands here and nowhere else; whoever wants to know something of a target asks its record.
A record names its parts by their place, ``"module:name"``, and loads them when they are asked for: what one
target needs is not imported for another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tilewright.arch import Arch
from tilewright.errors import LaunchError, close_to, shown
from tilewright.namespaces import import_whole
from tilewright.passes.pipeline import Pass

HOST = "cpu"
"""What DLPack and the frameworks call the memory of the host."""

GPU = "cuda"
"""What they call the memory of an NVIDIA GPU."""

AMD_GPU = "rocm"
"""What they call the memory of an AMD GPU."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """One target, as data.

    Args:
        name: what users call it.
        called: what else people call it; a message then says the name.
        memory: where the arrays lie that it reaches: `HOST`, or what frameworks call a device.
        serves: whether it runs kernels on such arrays where nobody names a target.
        backend: the class that compiles and launches; see `tilewright.runtime.executable.Backend`.
        known: its architectures, by name.
        lowering: its passes, in their order; empty: it executes the kernel as it was traced.
        arch: the architecture to compile for where there is no such machine; empty: that of this machine.
        machine_code: whether it runs machine code, and so has a speed worth measuring.
        warps: whether its text is the program of one thread; a warp's accesses then meet in banks.
        counters: whether this machine's profiler reads counters of its kernels.
        place: what copies an array of the host to where it reaches it; empty: nothing need be done.
        wait: what returns when all its kernels have ended; empty: launches return then.
        present: what says how many devices there are; empty: it needs none.
        driver: the module that speaks to its driver, see `tilewright.runtime.driver`; empty: it needs none.
        missing: what says why nothing can be launched on this machine, ``""`` where it can; empty: it can.
        tools: what `tilewright doctor` says of its compiler and driver; empty: it needs none.
        clock: the context manager of a clock for its kernels.
        rivals: what a user would call instead.
        chooser: what proposes schedules for a dataflow kernel, of which the first is chosen.
        shape: extents (M, N, K) that show what it can.
    """

    name: str
    called: tuple[str, ...]
    memory: str
    serves: bool
    backend: str
    known: str
    lowering: str = ""
    arch: str = ""
    machine_code: bool = True
    warps: bool = False
    counters: bool = False
    place: str = ""
    wait: str = ""
    present: str = ""
    driver: str = ""
    missing: str = ""
    tools: str = ""
    clock: str
    rivals: str
    chooser: str
    shape: tuple[int, int, int]

    @property
    def architectures(self) -> Mapping[str, Arch]:
        """Its architectures by name."""
        found: Mapping[str, Arch] = part(self.known)
        return found

    @property
    def passes(self) -> tuple[Pass, ...]:
        """Its passes, in their order."""
        found: tuple[Pass, ...] = part(self.lowering) if self.lowering else ()
        return found

    def architecture(self, name: Any) -> Arch:
        """Its architecture of a name, or the architecture itself.

        Raises:
            LaunchError: no such architecture; lists the names.
        """
        if isinstance(name, Arch):
            return name
        known = self.architectures
        if isinstance(name, str) and name in known:
            return known[name]
        names = f"{', '.join(known)}{close_to(name, known)}"
        owner = next((other.name for other in TARGETS.values() if name in other.architectures), "")
        other = f"; it is one of target {owner}: say target={owner!r} too" if owner else ""
        raise LaunchError(f"unknown architecture {shown(name)} of target {self.name}; known: {names}{other}")


REFERENCE = Target(
    name="reference",
    called=("numpy",),
    memory=HOST,
    serves=False,
    backend="tilewright.runtime.reference:ReferenceBackend",
    known="tilewright.arch:ARCHITECTURES",
    machine_code=False,
    clock="tilewright.tune.clocks:host_clock",
    rivals="tilewright.tune.rivals:numpy_rivals",
    chooser="tilewright.schedule.choose_reference:candidates",
    shape=(64, 64, 64),
)
CPU = Target(
    name="cpu",
    called=("host",),
    memory=HOST,
    serves=True,
    backend="tilewright.runtime.host:CpuBackend",
    known="tilewright.targets.cpu.arch:ARCHITECTURES",
    lowering="tilewright.targets.cpu.lowering:PASSES",
    tools="tilewright.cli.doctor:cpu_tools",
    clock="tilewright.tune.clocks:host_clock",
    rivals="tilewright.tune.rivals:numpy_rivals",
    chooser="tilewright.schedule.choose_cpu:candidates",
    shape=(1024, 1024, 1024),
)
CUDA = Target(
    name="cuda",
    called=("gpu", "nvidia"),
    memory=GPU,
    serves=True,
    backend="tilewright.runtime.device:CudaBackend",
    known="tilewright.targets.cuda.arch:ARCHITECTURES",
    lowering="tilewright.targets.cuda.lowering:PASSES",
    arch="sm_90a",
    warps=True,
    counters=True,
    place="tilewright.runtime.device_array:DeviceArray.of",
    wait="tilewright.runtime.cuda:synchronize",
    present="tilewright.runtime.cuda:device_count",
    driver="tilewright.runtime.cuda",
    tools="tilewright.cli.doctor:cuda_tools",
    clock="tilewright.tune.clocks:device_clock",
    rivals="tilewright.tune.rivals:torch_rivals",
    chooser="tilewright.schedule.choose_cuda:candidates",
    shape=(4096, 4096, 4096),
)
HIP = Target(
    name="hip",
    called=("amd", "rocm"),
    memory=AMD_GPU,
    serves=True,
    backend="tilewright.runtime.hip:HipBackend",
    known="tilewright.targets.hip.arch:ARCHITECTURES",
    lowering="tilewright.targets.hip.lowering:PASSES",
    arch="gfx942",
    warps=True,
    place="tilewright.runtime.hip:placed",
    wait="tilewright.runtime.hip_driver:synchronize",
    present="tilewright.runtime.hip_driver:device_count",
    driver="tilewright.runtime.hip_driver",
    missing="tilewright.runtime.hip:missing",
    tools="tilewright.cli.doctor:hip_tools",
    clock="tilewright.tune.clocks:amd_clock",
    rivals="tilewright.tune.rivals:torch_rivals",
    chooser="tilewright.schedule.choose_hip:candidates",
    shape=(4096, 4096, 4096),
)

TARGETS: dict[str, Target] = {target.name: target for target in (REFERENCE, CPU, CUDA, HIP)}
"""Every target by its name."""

MEANT = {other: target.name for target in TARGETS.values() for other in target.called}
"""What people call targets, and their names."""


def target_named(name: Any) -> Target:
    """The target of a name.

    Raises:
        LaunchError: no such target; lists the names.
    """
    if not isinstance(name, str) or name not in TARGETS:
        near = close_to(MEANT.get(name, name) if isinstance(name, str) else name, TARGETS)
        raise LaunchError(f"unknown target {shown(name)}; choose one of {', '.join(TARGETS)}{near}")
    return TARGETS[name]


def serving(memory: str) -> Target:
    """The target that runs kernels on arrays of a memory where nobody names one."""
    return next(target for target in TARGETS.values() if target.serves and target.memory == memory)


def owner(arch: str) -> Target:
    """The target that has an architecture of a name.

    Example:
        >>> owner("gfx942").name, owner("sm_80").name
        ('hip', 'cuda')
    """
    return next(target for target in TARGETS.values() if arch in target.architectures)


def part(place: str) -> Any:
    """What lies at ``"module:name"``."""
    module, _, name = place.partition(":")
    found: Any = import_whole(module)
    for word in name.split("."):
        found = getattr(found, word)
    return found
