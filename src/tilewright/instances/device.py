"""The public methods of a device GEMM's instance, and its kernels named by their symbols."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.argument_checks import Count
from tilewright.calls import launches
from tilewright.dtypes import DType, dtype
from tilewright.errors import DTypeError, LaunchError, shown
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
        """Return a problem whose matrices have the instance's layouts.

        Args:
            m: rows of A and C.
            n: columns of B and C.
            k: columns of A and rows of B.
            stride_a: elements from one row of A to the next, or from one column if A is column-major; -1: the
                length of a row or column.
            stride_b: the same for B.
            stride_c: the same for C.

        Raises:
            LaunchError: an extent is below 1.
        """
        return GemmProblem(
            packed(m, k, self.a_layout, stride_a),
            packed(k, n, self.b_layout, stride_b),
            packed(m, n, self.c_layout, stride_c),
        )

    @launches
    def check(self, problem: GemmProblem | Sequence[int] | None = None, arch: str = "") -> Checks:
        """Check the instance, and whether it can compute a problem.

        Args:
            problem: extents ``(m, n, k)``, with or without the strides of `problem`, or a `GemmProblem`;
                None: only the instance is checked.
            arch: the architecture, such as ``"gfx1151"``; default: the limits of all architectures.

        Returns:
            A row for each rule, with the value, the legal values, and the nearest legal choice.

        Raises:
            LaunchError: the problem has another form.
        """
        rows = list(rules_of_instances(self, arch))
        if problem is not None:
            if not isinstance(problem, GemmProblem):
                if len(problem) not in (3, 6):
                    raise LaunchError(
                        f"check(problem={shown(problem)}): {len(problem)} integers; nearest legal choice: "
                        "(m, n, k), or (m, n, k, stride_a, stride_b, stride_c)"
                    )
                problem = self.problem(*problem)
            rows += rules_of_problems(self, problem)
        return Checks(self.type_string, rows)

    @launches
    def schedule(self, arch: str, b_memory: DType | str | None = None) -> Schedule:
        """Return the schedule of the instance's tiles, as close to the instance as the architecture permits.

        The tile, the depth of a step, the waves, the prefetched steps, operands that skip shared memory and
        the order of tiles are the instance's; `notes` lists the differences.  If the architecture has the
        instance's instructions, the schedule uses them, interleaves the repeats of waves, and keeps K1
        neighbours together, with the extra row; extents that are not padded must then be whole tiles.

        Args:
            arch: an architecture, such as ``"gfx1151"``, or a target, such as ``"cpu"``.
            b_memory: the dtype of B in memory, if it is widened before shared memory, such as ``"f8e4m3"``.

        Raises:
            LegalityError: the instance is not legal; lists all reasons.
            LaunchError: the architecture is unknown.
        """
        place = place_of(arch)
        self.check(arch=arch if arch in machines() else "").require()
        try:
            wide = None if b_memory is None else dtype(b_memory)
        except DTypeError as error:
            raise DTypeError(f"DeviceGemm.schedule(b_memory=...): {error}") from None
        return schedule_of(self, place, wide)

    @launches
    def notes(self, arch: str) -> tuple[str, ...]:
        """Return the differences between the instance and its `schedule`, each beginning with the field.

        Args:
            arch: an argument of `schedule`.
        """
        return tuple(notes_of(self, place_of(arch)))


# ---------------------------------------------------------------- kernels named by their symbols


def bound_to(
    instance: DeviceGemm, kernel: Kernel, arch: str, b_memory: DType | str | None = None, **constants: Any
) -> Bound:
    """Bind a dataflow kernel to the schedule of an instance, with the instance's symbol as its name.

    Args:
        instance: the instance.
        kernel: the kernel.
        arch: an argument of `DeviceGemm.schedule`.
        b_memory: an argument of `DeviceGemm.schedule`.
        constants: constants of the kernel.
    """
    program = copy.copy(kernel.program)
    program.name = instance.symbol
    return Kernel(program).bind(schedule=instance.schedule(arch, b_memory), **constants)
