"""Specialisation: the traces and executables of a bound kernel, for each class of arrays."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol, TypeAlias

from tilewright.arch import Arch
from tilewright.dataflow.nodes import Flow
from tilewright.errors import LegalityError, ToolchainError, way_out
from tilewright.ir import verify
from tilewright.ir.kernel import Kernel
from tilewright.lang.program import Program
from tilewright.lang.specs import TensorSpec
from tilewright.namespaces import part
from tilewright.runtime import recent
from tilewright.runtime.backends import arch_of, processors_of
from tilewright.runtime.environment import COLLECTOR_PAUSE
from tilewright.runtime.executable import Backend, Executable
from tilewright.runtime.reads import Reads
from tilewright.runtime.recent import Recent
from tilewright.runtime.scheduled import KEPT, Explicit, Scheduled, TraceRequest
from tilewright.schedule.question import Splitting
from tilewright.schedule.schedule import Schedule
from tilewright.targets.rules import EmittedText
from tilewright.targets.target import TARGETS

MOST_CLASSES = 256
"""Classes of arrays for which one bound kernel keeps traces and executables."""


LaunchCheck: TypeAlias = Callable[[Kernel, EmittedText | None, Flow | None], object]
"""Checks whether a kernel can be launched, before it is compiled."""


class Forgetful(Protocol):
    """An object that keeps traces or executables of a program."""

    def forget(self) -> None:
        """Drop all traces and executables."""


class Surroundings:
    """The outside values that a program reads, and the bound kernels that depend on them."""

    def __init__(self, program: Program) -> None:
        self.reads = Reads([program.function])
        self.users: weakref.WeakSet[Forgetful] = weakref.WeakSet()


class Builds:
    """Traces and executables of a program with fixed constants, made on demand and kept while used.

    Args:
        program: the author's function.
        constants: its constants.
        around: the outside values that the function reads.
        schedule: the schedule of a dataflow kernel; None: one is chosen for each problem.
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
        self.scheduled = Scheduled(program, constants, schedule)
        self._traces: Recent[Any, Kernel] = Recent(MOST_CLASSES)
        self._executables: Recent[Any, Executable] = Recent(MOST_CLASSES, recent.last_use)
        self._own = Reads(constants.values())
        self.around = around

    def keep_up(self) -> None:
        """Drop everything, also for other constants, if an outside value of the kernel changed."""
        if self.around.reads.changed() or self._own.changed():
            for user in list(self.around.users):
                user.forget()

    def forget(self, executable: Executable | None) -> None:
        """Drop one executable with its trace, flow and expanded program, or everything.

        So the bound on executables in the process also bounds traces, flows and programs.
        """
        if executable is None:
            self._executables.forget()
            self._traces.forget()
            self.scheduled.forget()
            return
        for key in self._executables:
            if self._executables.find(key) is executable:
                _, _, arch, *of_kernel = key
                self._executables.drop(key)
                self._traces.drop((arch, *of_kernel))
                self.scheduled.forget_key(arch, tuple(of_kernel))

    def trace(self, request: TraceRequest) -> Kernel:
        """Return the traced kernel for a class of arrays and an architecture."""
        return self._traced(self.explicit(request), request.arch)

    def explicit(self, request: TraceRequest) -> Explicit:
        """Return the explicit program for a class of arrays: the author's, or one made by a schedule."""
        found = self.scheduled.explicit(request)
        if found.traced is not None:
            self._settle()
            self._traces.keep((request.arch, *found.key), found.traced)
        return found

    def _traced(self, made: Explicit, arch: Arch) -> Kernel:
        key = (arch, *made.key)
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
        check: LaunchCheck = lambda kernel, text, flow: None,
        written_for: Arch | None = None,
        shapes: Mapping[str, tuple[int, ...]] | None = None,
    ) -> Executable:
        """Return the compiled kernel for a class of arrays.

        Args:
            specs: the class of each array.
            backend: the backend that compiles it.
            arch: the architecture's name; default: that of this machine.
            check: called with the kernel, its text and its flow before compilation; may refuse them.
            written_for: the architecture to trace for; default: the architecture to compile for.
            shapes: extents of the arrays, from which a dataflow kernel's schedule is chosen.
        """
        traced_for = written_for or arch_of(backend, arch)
        with COLLECTOR_PAUSE:
            processors = processors_of(backend.name, traced_for)
            made = self.explicit(TraceRequest(specs, traced_for, shapes or {}, processors))
        key = (backend.name, arch or backend.arch_name(), traced_for, *made.key)
        found = self._executables.get(key)
        if found is None:
            with COLLECTOR_PAUSE:
                kernel, listing = self._lowered(made, traced_for, backend, arch, check)
            try:
                compiled = backend.compile(kernel, arch, listing)
            except OSError as problem:
                reason = f"{problem.strerror or problem}; {way_out(problem)}"
                raise ToolchainError(
                    f"cannot compile {kernel.name} for {backend.name}: {reason}"
                ) from problem
            found = replace(compiled, schedule=made.schedule, flow=made.flow, specs=made.specs)
            self._executables.keep(key, found)
            recent.enter(found)
        return found

    def as_text(
        self,
        specs: Mapping[str, TensorSpec],
        backend: Backend,
        arch: str,
        shapes: Mapping[str, tuple[int, ...]],
        name: str,
    ) -> Executable:
        """Return the kernel for a class of arrays with its text, without a compiler.

        Args:
            specs: the class of each array.
            backend: the backend that emits it.
            arch: the architecture's name.
            shapes: extents of the arrays, from which a dataflow kernel's schedule is chosen.
            name: the name of the kernel and of its function in the text.
        """
        traced_for = arch_of(backend, arch)
        with COLLECTOR_PAUSE:
            request = TraceRequest(specs, traced_for, shapes, processors_of(backend.name, traced_for))
            made = self.explicit(request)
            kernel = replace(self._traced(made, traced_for), name=name)
            if broken := [*verify.violations(kernel), *backend.violations(kernel, arch)]:
                raise LegalityError(self._program.name, backend.name, broken)
            listing = backend.listing(kernel, arch)
        return Executable(
            backend.name, arch, kernel, listing, schedule=made.schedule, flow=made.flow, specs=made.specs
        )

    def _lowered(
        self, made: Explicit, traced_for: Arch, backend: Backend, arch: str | None, check: LaunchCheck
    ) -> tuple[Kernel, EmittedText | None]:
        """Return a legal kernel and its text; those of flows are kept for later processes."""
        checked = []

        def lowered() -> tuple[Kernel, EmittedText | None]:
            kernel = self._traced(made, traced_for)
            broken = [*verify.violations(kernel), *backend.violations(kernel, arch)]
            if broken:
                raise LegalityError(kernel.name, backend.name, broken)
            listing = backend.listing(kernel, arch)
            check(kernel, listing, made.flow)
            checked.append(kernel)
            return kernel, listing

        if made.flow is None or not TARGETS[backend.name].machine_code:
            return lowered()
        name = arch or backend.arch_name()
        parts = ["kernel", *made.described(traced_for), backend.name, name]
        meta = {"kernel": self._program.name, "target": backend.name, "arch": name}
        found: tuple[Kernel, EmittedText | None] = part(KEPT)(parts, lowered, meta)
        if not checked:
            self._traces.keep((traced_for, *made.key), found[0])
            check(*found, made.flow)
        return found
