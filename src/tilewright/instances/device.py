"""The public methods of a device GEMM's instance, and its kernels by their names in a code object."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.argument_checks import Count
from tilewright.calls import launches
from tilewright.dtypes import DType, dtype
from tilewright.errors import LaunchError, shown
from tilewright.instances.instance_rules import rules_of_instances
from tilewright.instances.problem import PACKED, GemmProblem, packed, rules_of_problems
from tilewright.instances.template import Template
from tilewright.instances.to_schedule import notes_of, place_of, schedule_of
from tilewright.instances.words import Checks, machines
from tilewright.runtime.kernel import Bound, Kernel
from tilewright.schedule.schedule import Schedule


@dataclass(frozen=True, kw_only=True, repr=False)
class DeviceGemm(Template):
    """``C = c_op(a_op(A) @ b_op(B))``: one tuned kernel, by every parameter of its template."""

    @launches
    def problem(
        self,
        m: Count,
        n: Count,
        k: Count,
        stride_a: int = PACKED,
        stride_b: int = PACKED,
        stride_c: int = PACKED,
    ) -> GemmProblem:
        """A problem whose matrices have the instance's layouts.

        Args:
            m: rows of A and C.
            n: columns of B and C.
            k: columns of A and rows of B.
            stride_a: elements from one row of A to the next, or from one column, where A is column-major; -1:
                as many as a row, or a column, has.
            stride_b: the same of B.
            stride_c: the same of C.

        Raises:
            LaunchError: an extent below 1.
        """
        return GemmProblem(
            packed(m, k, self.a_layout, stride_a),
            packed(k, n, self.b_layout, stride_b),
            packed(m, n, self.c_layout, stride_c),
        )

    @launches
    def check(self, problem: GemmProblem | Sequence[int] | None = None, arch: str = "") -> Checks:
        """Whether the instance can be at all, and whether it computes a problem; every check with its reason.

        Args:
            problem: extents ``(m, n, k)``, with the strides of `problem` or without, or a `GemmProblem`;
                None: of the instance alone.
            arch: the architecture, such as ``"gfx1151"``; default: what all have.

        Returns:
            A row for each check, with what is there, what is legal, and the nearest legal choice.

        Raises:
            LaunchError: what is no problem.
        """
        rows = list(rules_of_instances(self, arch))
        if problem is not None:
            rows += rules_of_problems(self, self._problem(problem))
        return Checks(self.type_string, rows)

    @launches
    def schedule(self, arch: str, b_memory: DType | str | None = None) -> Schedule:
        """The schedule that computes the instance's tiles here, as near as the machine permits.

        The tile, the depth of a step, the waves, what is on its way while a step is multiplied, the way past
        shared memory and the order of the tiles are the instance's; `notes` has what is another.  Where the
        architecture has the instance's instructions, these multiply, waves take turns at their repeats, K1
        neighbours stay together, with the extra row, and extents that are not padded must be whole tiles.

        Args:
            arch: an architecture, such as ``"gfx1151"``, or a target, such as ``"cpu"``.
            b_memory: the dtype of B in memory, if it is widened on its way to shared memory, such as
                ``"f8e4m3"``.

        Raises:
            LegalityError: the instance itself is not legal; lists every reason.
            LaunchError: no such architecture.
        """
        place = place_of(arch)
        self.check(arch=arch if arch in machines() else "").require()
        return schedule_of(self, place, None if b_memory is None else dtype(b_memory))

    @launches
    def notes(self, arch: str) -> tuple[str, ...]:
        """What of the instance is not as it says under its `schedule`, each beginning with the field.

        Args:
            arch: as `schedule` takes it.
        """
        return tuple(notes_of(self, place_of(arch)))

    def _problem(self, given: GemmProblem | Sequence[int]) -> GemmProblem:
        if isinstance(given, GemmProblem):
            return given
        if len(given) not in (3, 6):
            raise LaunchError(
                f"check(problem={shown(given)}): {len(given)} integers; nearest legal choice: (m, n, k), or "
                "(m, n, k, stride_a, stride_b, stride_c)"
            )
        return self.problem(*given)


# ---------------------------------------------------------------- kernels by their names in a code object


def bound_to(
    instance: DeviceGemm, kernel: Kernel, arch: str, b_memory: DType | str | None = None, **constants: Any
) -> Bound:
    """A dataflow kernel under the schedule of an instance, named by its symbol.

    Args:
        instance: the instance.
        kernel: what is computed.
        arch: the architecture, as `schedule` of the instance takes it.
        b_memory: likewise.
        constants: of the kernel.
    """
    program = copy.copy(kernel.program)
    program.name = instance.symbol
    return Kernel(program).bind(schedule=instance.schedule(arch, b_memory), **constants)
