"""Specialisation: the class of the caller's arrays, and what a bound kernel has made for each class."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from tilewright.arch import Arch
from tilewright.dataflow.nodes import Flow
from tilewright.errors import DTypeError, LaunchError, LegalityError, ToolchainError, way_out
from tilewright.ir import verify
from tilewright.ir.kernel import Kernel
from tilewright.lang.program import Program
from tilewright.lang.specs import TensorSpec
from tilewright.runtime import recent
from tilewright.runtime.arrays import ArrayInfo, described
from tilewright.runtime.backends import arch_named, arch_of, backend_for, backend_named, processors_of
from tilewright.runtime.executable import Backend, Executable
from tilewright.runtime.reads import Reads
from tilewright.runtime.recent import Recent
from tilewright.runtime.scheduled import Explicit, Scheduled
from tilewright.runtime.specimens import Specimen, check_count, in_order
from tilewright.schedule.question import Question, Splitting
from tilewright.schedule.schedule import Schedule

MAX_EXTENT = 2**31 - 1

_EXTENT_DIVISOR = 256
_STRIDE_DIVISOR = 16
_ALIGN_BYTES = 16

KINDS = ("float", "int", "uint", "bool")
"""The kinds of dtypes that kernels compute with."""


def spec_of(info: ArrayInfo, name: str = "array") -> TensorSpec:
    """The class that an array belongs to.

    Args:
        info: the array.
        name: what messages call it.

    Raises:
        LaunchError: an extent is 2**31 or more.
        DTypeError: no kernel computes with its dtype.

    Example:
        >>> import numpy as np
        >>> from tilewright.runtime.arrays import describe
        >>> spec_of(describe(np.empty((130, 96), np.float16))).stride_divisors
        (16, 1)
    """
    _check_extents(info, name)
    if info.dtype.kind not in KINDS:
        raise DTypeError(
            f"{name} is {info.dtype}, with which kernels do not compute; nearest legal choice: its bytes, "
            f"{name}.view(np.uint8)"
        )
    unit, empty = _unit_dim(info), 0 in info.shape
    return TensorSpec(
        dtype=info.dtype,
        rank=len(info.shape),
        unit_dim=unit,
        extent_divisors=tuple(math.gcd(extent, _EXTENT_DIVISOR) for extent in info.shape),
        stride_divisors=tuple(
            1 if dim == unit else math.gcd(0 if empty else stride, _STRIDE_DIVISOR * info.dtype.per_byte)
            for dim, stride in enumerate(info.strides)
        ),
        align=math.gcd(0 if empty else info.pointer, _ALIGN_BYTES),
        wide=_reach(info) > MAX_EXTENT,
        signed=not empty and min(info.strides, default=0) < 0,
    )


def specs_of(program: Program, arguments: Sequence[Any]) -> dict[str, TensorSpec]:
    """The classes of the arrays among the arguments of a kernel, by the names of its parameters.

    Raises:
        LaunchError: too many or too few arguments, or one that is no array.
    """
    check_count(program, arguments)
    return {
        p.name: argument
        if isinstance(argument, TensorSpec)
        else spec_of(described(program.name, p.name, argument))
        for p, argument in zip(program.parameters, arguments, strict=True)
        if p.kind == "tensor"
    }


def shapes_of(program: Program, arguments: Sequence[Any]) -> dict[str, tuple[int, ...]]:
    """Extents of the arrays among the arguments; a `TensorSpec` has none."""
    found = arrays_of(program, arguments, classes=True)
    return {name: info.shape for name, info in found.items()}


def arrays_of(program: Program, arguments: Sequence[Any], *, classes: bool = False) -> dict[str, ArrayInfo]:
    """What the arrays among the arguments of a kernel are, by parameter.

    Args:
        program: the kernel.
        arguments: in the order of its parameters.
        classes: whether a `TensorSpec` may stand for an array, and is left out; a launch has need of arrays.

    Raises:
        LaunchError: too many or too few arguments, or one that is no array.
    """
    check_count(program, arguments)
    return {
        p.name: described(program.name, p.name, argument)
        for p, argument in zip(program.parameters, arguments, strict=True)
        if p.kind == "tensor" and not (classes and isinstance(argument, TensorSpec))
    }


def serving(
    program: Program, arguments: Sequence[Any], arrays: Mapping[str, ArrayInfo], target: str | None
) -> Backend:
    """The backend that serves the arrays among the arguments; specimens lie nowhere.

    Raises:
        LaunchError: arrays on different devices, or a target that cannot reach them.
    """
    pairs = zip(program.parameters, arguments, strict=True)
    nowhere = {p.name for p, argument in pairs if isinstance(argument, Specimen)}
    there = [(name, info) for name, info in arrays.items() if name not in nowhere]
    return backend_for(program.name, there, target)


def compiling(program: Program, arguments: Sequence[Any], target: str | None) -> Backend:
    """The backend that compiles for arrays, or for what stands for them.

    Raises:
        LaunchError: only specimens or classes of arrays, and no target.
    """
    if target is not None:
        return backend_named(target)
    pairs = zip(program.parameters, arguments, strict=True)
    if all(isinstance(a, TensorSpec | Specimen) for p, a in pairs if p.kind == "tensor"):
        raise LaunchError(f"kernel {program.name}: say target= when compiling without arrays")
    return serving(program, arguments, arrays_of(program, arguments, classes=True), None)


def _check_extents(info: ArrayInfo, name: str) -> None:
    for dim, extent in enumerate(info.shape):
        if extent > MAX_EXTENT:
            raise LaunchError(f"{name}: extent {extent} of dimension {dim} must be at most {MAX_EXTENT}")


def _unit_dim(info: ArrayInfo) -> int | None:
    """The last dimension of stride 1 that is stepped along; the last of stride 1 if none is.

    An array without elements has no strides worth the name: it counts as packed, the last dimension fastest.
    """
    if 0 in info.shape:
        return len(info.shape) - 1
    units = [dim for dim, stride in enumerate(info.strides) if stride == 1]
    stepped = [dim for dim in units if info.shape[dim] > 1]
    found = stepped or units
    return found[-1] if found else None


def _reach(info: ArrayInfo) -> int:
    """The largest number that addressing the array takes: a part of an offset, or a stride, taken or not."""
    steps = [abs(stride) for stride in info.strides]
    pairs = zip(info.shape, steps, strict=True)
    return max((0 if 0 in info.shape else sum((extent - 1) * step for extent, step in pairs), *steps))


# ---------------------------------------------------------------- traces and executables of a bound kernel


MOST_CLASSES = 256
"""For how many classes of arrays one bound kernel remembers traces and executables."""


class Forgetful(Protocol):
    """Who remembers what was made of a program."""

    def forget(self) -> None:
        """Let go of all."""


class Surroundings:
    """What a program reads from around it, and who remembers what was made of it, whatever the constants."""

    def __init__(self, program: Program) -> None:
        self.reads = Reads([program.function])
        self.users: weakref.WeakSet[Forgetful] = weakref.WeakSet()


class Builds:
    """Traces and executables of a program with its constants fixed; made when asked for, kept while used.

    Args:
        program: the author's function.
        constants: its constants.
        around: what the function reads beside its parameters.
        schedule: how a dataflow kernel is computed; None: a good one is chosen for each problem.
    """

    def __init__(
        self,
        program: Program,
        constants: Mapping[str, Any],
        around: Surroundings,
        schedule: Schedule | Splitting | None = None,
    ) -> None:
        self._program = program
        self._constants = constants
        self._scheduled = Scheduled(program, constants, schedule)
        self._traces: Recent[Any, Kernel] = Recent(MOST_CLASSES)
        self._executables: Recent[Any, Executable] = Recent(MOST_CLASSES, recent.last_use)
        self._own = Reads(constants.values())
        self.around = around

    def keep_up(self) -> None:
        """Begin anew, here and for all other constants, if a value that is read around the kernel changed."""
        if self.around.reads.changed() or self._own.changed():
            for user in list(self.around.users):
                user.forget()

    def forget(self, executable: Executable | None) -> None:
        """Let go of one executable and of what it was made of, or of everything.

        The bound of executables in the process bounds all traces, flows and expanded programs with it.
        """
        if executable is None:
            self._executables.forget()
            self._traces.forget()
            self._scheduled.forget()
            return
        for key in self._executables:
            if self._executables.find(key) is executable:
                _, _, arch, schedule, *specs = key
                self._executables.drop(key)
                self._traces.drop((schedule, arch, *specs))
                self._scheduled.forget_class(schedule, arch, specs)

    def trace(
        self,
        specs: Mapping[str, TensorSpec],
        arch: Arch,
        shapes: Mapping[str, tuple[int, ...]] | None = None,
        processors: int = 0,
    ) -> Kernel:
        """The traced kernel for a class of arrays and an architecture.

        Args:
            specs: the class of each array.
            arch: the architecture.
            shapes: extents of the arrays, for which a dataflow kernel's schedule is chosen.
            processors: how many the machine has, if it is this one.
        """
        return self._traced(self._explicit(specs, arch, shapes or {}, processors), arch)

    def schedule(
        self,
        specs: Mapping[str, TensorSpec],
        arch: Arch,
        shapes: Mapping[str, tuple[int, ...]],
        processors: int,
    ) -> Schedule | None:
        """The schedule for a class of arrays, of the arguments of `trace`; None of an explicit program."""
        return self._explicit(specs, arch, shapes, processors).schedule

    def question(
        self,
        specs: Mapping[str, TensorSpec],
        arch: Arch,
        shapes: Mapping[str, tuple[int, ...]],
        processors: int,
    ) -> Question | None:
        """The problem that a schedule is chosen for, of the arguments of `trace`; None if it is explicit."""
        return self._scheduled.question(specs, arch, shapes, processors)

    def _explicit(
        self,
        specs: Mapping[str, TensorSpec],
        arch: Arch,
        shapes: Mapping[str, tuple[int, ...]],
        processors: int,
    ) -> Explicit:
        """The explicit program that serves a class of arrays: the author's own, or what a schedule made."""
        found = self._scheduled.explicit(specs, arch, shapes, processors)
        if found.traced is not None:
            self._settle()
            self._traces.keep((found.schedule, arch, *found.specs.items()), found.traced)
        return found

    def _traced(self, made: Explicit, arch: Arch) -> Kernel:
        key = (made.schedule, arch, *made.specs.items())
        found = self._traces.get(key)
        if found is None:
            found = made.program.trace(made.specs, made.constants, arch)
            self._settle()
            self._traces.keep(key, found)
        return found

    def _settle(self) -> None:
        self.around.reads.settle()
        self._own.settle()

    def executable(
        self,
        specs: Mapping[str, TensorSpec],
        backend: Backend,
        arch: str | None,
        check: Callable[[Kernel, Flow | None], object] = lambda kernel, flow: None,
        written_for: Arch | None = None,
        shapes: Mapping[str, tuple[int, ...]] | None = None,
    ) -> Executable:
        """The kernel for the class of some arrays; ``check`` may refuse it before it is compiled.

        Args:
            specs: the class of each array.
            backend: what compiles it.
            arch: the architecture's name; default: that of this machine.
            check: may refuse the kernel, and what it computes, before it is compiled.
            written_for: the architecture that it is traced for; default: the one that it is compiled for.
            shapes: extents of the arrays, for which a dataflow kernel's schedule is chosen.
        """
        traced_for = written_for or arch_of(backend, arch)
        made = self._explicit(specs, traced_for, shapes or {}, processors_of(backend.name, traced_for))
        key = (backend.name, arch or backend.arch_name(), traced_for, made.schedule, *made.specs.items())
        found = self._executables.get(key)
        if found is None:
            kernel = self._traced(made, traced_for)
            broken = [*verify.violations(kernel), *backend.violations(kernel, arch)]
            if broken:
                raise LegalityError(kernel.name, backend.name, broken)
            check(kernel, made.flow)
            found = replace(_compile(backend, kernel, arch), schedule=made.schedule, flow=made.flow)
            self._executables.keep(key, found)
            recent.enter(found)
        return found


def _compile(backend: Backend, kernel: Kernel, arch: str | None) -> Executable:
    try:
        return backend.compile(kernel, arch)
    except OSError as problem:
        reason = f"{problem.strerror or problem}; {way_out(problem)}"
        raise ToolchainError(f"cannot compile {kernel.name} for {backend.name}: {reason}") from problem


# ---------------------------------------------------------------- the flow and the schedule of a bound kernel


class BoundFlow:
    """What a bound kernel has of dataflow."""

    program: Program
    constants: Mapping[str, Any]
    _builds: Builds

    def flow(self, *arguments: Any, **named: Any) -> Flow:
        """What a dataflow kernel computes, whatever its schedule, for arguments as `compile` takes them.

        Args:
            arguments: as for `compile`.
            named: likewise.

        Raises:
            LaunchError: the arguments do not fit the kernel, or it is explicit: it says how.

        Example:
            >>> import numpy as np
            >>> import tilewright as tw
            >>> @tw.kernel(A="M K", B="N K", C="M N")
            ... def doubled(A, B, C):
            ...     for m, n in tw.tiles(C):
            ...         acc = tw.zeros()
            ...         for k in tw.steps(A.shape[1]):
            ...             acc += A[m, k] @ B[n, k].T
            ...         C[m, n] = 2 * acc
            >>> a, b, c = (np.ones((8, 8), np.float16) for _ in range(3))
            >>> flow = doubled.flow(a, b, c)
            >>> [span.name for span in flow.tiles], flow.stores[0].value.function
            (['m', 'n'], 'mul')
            >>> doubled(a, b, c, target="reference").target, c[0, 0].item()
            ('reference', 16.0)
        """
        made = self.program.run(
            specs_of(self.program, in_order(self.program, arguments, named)), self.constants
        )
        if not isinstance(made, Flow):
            raise LaunchError(
                f"kernel {self.program.name} is explicit: it says how, and not in tiles what is computed; "
                "nearest legal choice: trace"
            )
        return made

    def schedule_for(
        self, *arguments: Any, target: str | None = None, arch: str | None = None, **named: Any
    ) -> Schedule | None:
        """The schedule that a dataflow kernel runs under, for arguments as `compile` takes them.

        Args:
            arguments: as for `compile`.
            target: the target; default: the machine that the reference is.
            arch: the target's architecture; default: that of this machine.
            named: as for `compile`.

        Returns:
            The one that it is bound to, else the one that is chosen; with another engine where bulk copies
            cannot carry an array.  None of an explicit kernel.

        Raises:
            LaunchError: the arguments do not fit the kernel, or no such target or architecture.
            ScheduleError: a schedule that is not legal for them.

        Example:
            >>> import numpy as np
            >>> import tilewright as tw
            >>> @tw.kernel(A="M K", B="K N", C="M N")
            ... def gemm(A, B, C):
            ...     for m, n in tw.tiles(C):
            ...         acc = tw.zeros()
            ...         for k in tw.steps(A.shape[1]):
            ...             acc += A[m, k] @ B[k, n]
            ...         C[m, n] = acc
            >>> arrays = [tw.like("bf16", (4096, 4096))] * 3
            >>> gemm.bind().schedule_for(*arrays, target="cuda", arch="sm_90a").staging
            'tma'
            >>> a, b, c = (np.ones((8, 8), np.float32) for _ in range(3))
            >>> gemm(a, b, c, target="cpu").schedule == gemm.bind().schedule_for(a, b, c, target="cpu")
            True
        """
        given, machine, processors = self._machine(arguments, named, target, arch)
        specs, shapes = specs_of(self.program, given), shapes_of(self.program, given)
        return self._builds.schedule(specs, machine, shapes, processors)

    def question(
        self, *arguments: Any, target: str | None = None, arch: str | None = None, **named: Any
    ) -> Question | None:
        """The problem that `schedule_for` chooses a schedule for, with the same arguments.

        Returns:
            The problem, for `tilewright.schedule.choice`; None of an explicit kernel.

        Raises:
            LaunchError: the arguments do not fit the kernel, or no such target or architecture.
        """
        given, machine, processors = self._machine(arguments, named, target, arch)
        specs, shapes = specs_of(self.program, given), shapes_of(self.program, given)
        return self._builds.question(specs, machine, shapes, processors)

    def _machine(
        self, arguments: tuple[Any, ...], named: Mapping[str, Any], target: str | None, arch: str | None
    ) -> tuple[Sequence[Any], Arch, int]:
        """The arguments in order, the architecture, and how many of its processors there are."""
        machine = arch_named(target, arch)
        self._builds.keep_up()
        return in_order(self.program, arguments, named), machine, processors_of(target, machine)
