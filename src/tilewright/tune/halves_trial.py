"""A product of f32 by halves on one problem: what splits the operands, what multiplies their halves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tilewright import dtypes
from tilewright.checking.compare import Accumulation, GemmComparison
from tilewright.checking.composed_products import compare_halves
from tilewright.checking.sample import Operands
from tilewright.ops.grades import F32, HALVES_OF, is_split
from tilewright.ops.halves import Split, splitting, transposed
from tilewright.ops.problem import Problem, problem_of
from tilewright.ops.products import in_halves
from tilewright.runtime.arrays import ArrayInfo, describe
from tilewright.runtime.device_array import device_put
from tilewright.runtime.executable import Executable
from tilewright.runtime.scratch import ALIGNMENT
from tilewright.runtime.strided import Strided
from tilewright.schedule.schedule import Schedule
from tilewright.tune.trial import Trial, gemm_trial


class HalvesTrial(Trial):
    """As `Trial`: the kernel that multiplies halves, behind those that make them, which are launched with it.

    Args:
        operands: A (M, K) and B (K, N) of f32, in host memory.
        target: which target runs it.
        precision: ``"f32"`` or ``"f16"``.
        schedule: of the product; default: chosen.
    """

    def __init__(
        self, operands: Operands, target: str, precision: str, schedule: Schedule | None = None
    ) -> None:
        self.halves = HALVES_OF[precision]
        bound = in_halves(0, dtypes.f32).bind(
            both=precision == F32, terms=frozenset(), activation=None, schedule=schedule
        )
        super().__init__(bound, operands, target)

    def _arranged(self) -> tuple[Any, ...]:
        """The halves and their units, in memory of their own, and the result, which stands for all else."""
        infos, problem = _posed(self._a, self._b, self._c)
        a = Split.of(self._a, infos["a"], problem.operands["a"], is_turned=False)
        b = Split.of(self._b, infos["b"], problem.operands["b"], is_turned=True)
        self._held = device_put(np.empty(a.bytes + b.bytes + ALIGNMENT, np.uint8), self.target)
        start = -(-describe(self._held).pointer // ALIGNMENT) * ALIGNMENT
        of_a, of_b = a.placed(start), b.placed(start + a.bytes)
        both = self.halves == HALVES_OF[F32]
        self._split = splitting((a, b), (of_a, of_b), both).prepare(0, self.target)
        out = Strided(self._c, infos["out"])
        row = Strided(self._c, replace(out.info, shape=out.info.shape[1:], strides=out.info.strides[1:]))
        halves = (*of_a[:2], *(transposed(one) for one in of_b[:2]))
        return (*halves, of_a[2], of_b[2], out, row, out, out, 1.0, 1.0)

    def launch(self) -> Executable:
        """Start all launches; gives back what multiplies."""
        prepared, arguments, pointers = self._split
        prepared.launch(arguments, pointers, None)
        return super().launch()

    def verify(self) -> GemmComparison:
        """Compare every element of C under the bound of halves."""
        how = Accumulation.of(self.atom, self.period)
        return compare_halves(self.operands.a, self.operands.b, self.result(), how, self.halves)


def graded_trial(
    operands: Operands, target: str, precision: str = "exact", schedule: Schedule | None = None
) -> Trial:
    """The kernel of `matmul` on some matrices, as `gemm_trial`, by halves where `matmul` multiplies these.

    Args:
        operands: A and B.
        target: ``"cpu"``, ``"cuda"`` or ``"reference"``.
        precision: one of those of `matmul`.
        schedule: how it is computed; default: chosen for the matrices and the machine.
    """
    out = np.empty((operands.a.shape[0], operands.b.shape[1]), operands.a.dtype)
    infos, problem = _posed(operands.a, operands.b, out)
    if is_split(infos, problem, precision, schedule, target):
        return HalvesTrial(operands, target, precision, schedule)
    return gemm_trial(operands, target, "exact" if precision in HALVES_OF else precision, schedule)


def _posed(a: Any, b: Any, out: Any) -> tuple[dict[str, ArrayInfo], Problem]:
    """What arrays are, and the problem that they pose."""
    infos = {name: describe(array) for name, array in zip(("a", "b", "out"), (a, b, out), strict=True)}
    return infos, problem_of(infos)
