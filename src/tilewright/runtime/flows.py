"""What a bound kernel says of dataflow: what it computes, and the schedule that is chosen for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.arch import Arch
from tilewright.dataflow.nodes import Flow
from tilewright.errors import LaunchError
from tilewright.lang.program import Program
from tilewright.runtime.backends import arch_named, processors_of
from tilewright.runtime.builds import Builds
from tilewright.runtime.specialise import shapes_of, specs_of
from tilewright.runtime.specimens import in_order
from tilewright.schedule.question import Question
from tilewright.schedule.schedule import Schedule


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
