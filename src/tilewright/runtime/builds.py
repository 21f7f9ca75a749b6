"""What a bound kernel has made so far: its traces and executables, for each class of arrays."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from tilewright.arch import Arch
from tilewright.dataflow.nodes import Flow
from tilewright.errors import LegalityError, ToolchainError, way_out
from tilewright.ir import verify
from tilewright.ir.kernel import Kernel
from tilewright.lang.program import Program
from tilewright.lang.specs import TensorSpec
from tilewright.runtime import loaded
from tilewright.runtime.backends import arch_of, processors_of
from tilewright.runtime.executable import Backend, Executable
from tilewright.runtime.reads import Reads
from tilewright.runtime.recent import Recent
from tilewright.runtime.scheduled import Explicit, Scheduled
from tilewright.schedule.question import Question, Splitting
from tilewright.schedule.schedule import Schedule

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
        self._executables: Recent[Any, Executable] = Recent(MOST_CLASSES, loaded.last_use)
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
            loaded.enter(found)
        return found


def _compile(backend: Backend, kernel: Kernel, arch: str | None) -> Executable:
    try:
        return backend.compile(kernel, arch)
    except OSError as problem:
        reason = f"{problem.strerror or problem}; {way_out(problem)}"
        raise ToolchainError(f"cannot compile {kernel.name} for {backend.name}: {reason}") from problem
