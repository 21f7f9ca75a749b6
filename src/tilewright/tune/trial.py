"""One GEMM kernel on one problem, step by step: trace, compile, run, verify, time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.calls import launches
from tilewright.checking.compare import Accumulation, GemmComparison, compare_gemm
from tilewright.checking.composed_products import compare_halves
from tilewright.checking.sample import Operands
from tilewright.dataflow.nodes import EXACT
from tilewright.dtypes import DType, dtype
from tilewright.errors import LaunchError, TilewrightError
from tilewright.ir.kernel import Kernel as IrKernel
from tilewright.ir.mma import MmaAtom
from tilewright.ops.launching import LaunchPlan
from tilewright.ops.matmul import ARRAYS, plan_matmul
from tilewright.ops.products import output_dtype
from tilewright.ops.wanted import HALVES_OF, Wanted
from tilewright.runtime.executable import Executable
from tilewright.runtime.gpu_memory import device_get, device_put
from tilewright.runtime.kernel import Bound
from tilewright.schedule.schedule import Schedule
from tilewright.tune.measure import Effort, Measurement, do_bench, first_time, measure, perf_line
from tilewright.tune.rivals import rivals

Array = npt.NDArray[Any]

OURS = "tilewright"
"""Name of our own timing."""

_UNWRITTEN = 0xFF


def accumulation_of(schedule: Schedule) -> Accumulation:
    """Return how a kernel adds up its products under a schedule."""
    return Accumulation.of(schedule.atom, schedule.promote * schedule.block_k or None)


class FlowTrial(ABC):
    """A call of an operation on a target: it runs, is compared with the graph of its kernel, and is timed."""

    name: str
    target: str
    plan: LaunchPlan
    _there: dict[str, Any]

    @abstractmethod
    def launch(self) -> Any:
        """Start it; on a GPU it may still run when this returns."""

    @abstractmethod
    def time(self, effort: Effort | None = None) -> Measurement:
        """Measure it in turns with other libraries."""

    @property
    @abstractmethod
    def flops(self) -> int:
        """Operations of one call."""

    @property
    @abstractmethod
    def bytes(self) -> int:
        """The fewest bytes that move: every array once."""

    def run(self) -> float:
        """Run it to its end; returns the seconds of the call."""
        return first_time(self.launch, self.target)[1]

    def result(self) -> Any:
        """Return the result in host memory."""
        return np.asarray(device_get(self._there["out"]))

    def scheduled(self) -> Schedule:
        """Return the schedule of the product."""
        found = self.plan.schedule
        assert found is not None, "the kernel is a dataflow kernel"
        return found

    def perf(self, microseconds: float) -> str:
        """``Perf: <ms> ms, <x> TFlops, <y> GB/s, <name>`` for the time of one call."""
        return perf_line(microseconds, self.flops, self.bytes, self.name)


@launches.made("bind a kernel, and give it operands of tw.testing.operands(...)")
class Trial:
    """A GEMM kernel with its constants fixed, and the operands to run it on.

    All bits of the output are set before the launch. They are NaN in every float dtype, so that elements
    that the kernel does not write are found.

    Args:
        bound: the kernel; takes A (M, K), B (N, K), C (M, N), or B (K, N) if it names the dimensions so.
        operands: A (M, K) and B (K, N), in host memory.
        target: the target that runs it.
        atom: the kernel's MMA atom, which decides the bound of its sums.  Default: the schedule's.
        about: a description for its name, e.g. ``"192x256x256, fma.f32.f32"``.  Default: its schedule.
        out: dtype of C; default: that of the library's GEMM.
        period: products after which the kernel adds its sums to others in f32; None: never, or as its
            schedule promotes them.

    Raises:
        LaunchError: an explicit kernel, which has no schedule, without an atom.

    Example:
        >>> import tilewright as tw
        >>> mma = tw.TiledMma(tw.atoms.fma(tw.f32), tile=(32, 32))
        >>> @tw.kernel(A="M K", B="N K", C="M N")
        ... def small_gemm(A, B, C):
        ...     m, n = tw.block_index(tw.ceil_div(C.shape, (32, 32)))
        ...     acc = tw.accumulator(mma)
        ...     for k in tw.range(tw.ceil_div(A.shape[1], 8)):
        ...         a = tw.load(A.tile((32, 8), (m, k)), tw.operand_a(mma, 8))
        ...         b = tw.load(B.tile((32, 8), (n, k)), tw.operand_b(mma, 8))
        ...         tw.mma(a, b, acc)
        ...     tw.copy(acc, C.tile((32, 32), (m, n)))
        >>> made = tw.testing.operands("random", tw.f32, (40, 50, 60), layout="nt")
        >>> trial = tw.testing.Trial(small_gemm.bind(), made, "reference", mma.atom, "40x50x60")
        >>> trial.run()[0].target, trial.verify().ok
        ('reference', True)
    """

    def __init__(
        self,
        bound: Bound,
        operands: Operands,
        target: str,
        atom: MmaAtom | None = None,
        about: str = "",
        out: DType | None = None,
        period: int | None = None,
    ) -> None:
        self._put(operands, target, out)
        self.bound = bound
        a_dims, b_dims, *_ = (parameter.dims for parameter in bound.program.parameters)
        takes_b_by_rows = bool(a_dims) and a_dims[-1:] == b_dims[:1]  # (K, N), not (N, K)
        self._arguments = (self._a, self._b if takes_b_by_rows else self._b.T, self._c)
        self._describe(atom, about, period)

    def _put(self, operands: Operands, target: str, out: DType | None = None) -> None:
        """Place the matrices in the memory of the target."""
        self.operands, self.target = operands, target
        self.dtype = dtype(operands.a.dtype)
        self.out_dtype = out or output_dtype(self.dtype)
        m, n, _ = operands.shape
        blank = np.full(m * n * self.out_dtype.bytes, _UNWRITTEN, np.uint8)
        self._a, self._b, self._c = (
            device_put(array, target)
            for array in (operands.a, operands.b, blank.view(self.out_dtype.numpy).reshape(m, n))
        )

    def _describe(self, atom: MmaAtom | None, about: str, period: int | None) -> None:
        """Set the atom, the accumulation period and the name."""
        self.schedule = None
        if atom is None:
            self.schedule = self.bound.schedule_for(*self._arguments, target=self.target)
        if self.schedule is not None:
            period = self.schedule.promote * self.schedule.block_k or None
            atom, tile = self.schedule.atom, "x".join(map(str, self.schedule.tile))
            about = about or f"{tile}, {atom}, stages {self.schedule.stages}"
        if atom is None:
            raise LaunchError(f"kernel {self.bound.program.name} is explicit", "atom=")
        self.atom, self.period = atom, period
        self.name = f"{self.bound.program.name}<{self.target}, {self.dtype}, {about}>"

    def trace(self) -> IrKernel:
        """Record the kernel for the class of these arrays."""
        return self.bound.trace(*self._arguments, target=self.target)

    def compile(self) -> Executable:
        """Check the kernel, and compile it or find it in the cache.

        Raises:
            LegalityError: it breaks rules for these arrays; lists all of them.
            CompileError: a compiler refused the generated text.
            ToolchainError: there is no compiler.
        """
        return self.bound.compile(*self._arguments, target=self.target)

    def launch(self) -> Executable:
        """Start the kernel; on a GPU it may still run when this returns."""
        return self.bound(*self._arguments, target=self.target)

    def run(self) -> tuple[Executable, float]:
        """Run the kernel to its end; returns the executable and the seconds of the call.

        Raises:
            TilewrightError: another target ran than was asked for.
        """
        executable, seconds = first_time(self.launch, self.target)
        if executable.target != self.target:
            raise TilewrightError(f"asked for target {self.target}, but {executable.target} ran")
        return executable, seconds

    def result(self) -> Array:
        """C, in host memory."""
        return np.asarray(device_get(self._c))

    def verify(self) -> GemmComparison:
        """Compare every element of C with a reference of higher precision."""
        made = self.operands
        return compare_gemm(made.a, made.b, self.result(), Accumulation.of(self.atom, self.period))

    def rivals(self) -> dict[str, Callable[[], object]]:
        """Return calls of other libraries on the same matrices, by name."""
        return rivals(self._a, self._b, self._c, self.target, tf32=self.atom.precision == 10)

    def time(self, effort: Effort | None = None) -> Measurement:
        """Measure the kernel in turns with its rivals."""
        return measure({OURS: self.launch, **self.rivals()}, self.target, effort=effort)

    @property
    def flops(self) -> int:
        """Operations: a multiplication and an addition for each m, n, k."""
        m, n, k = self.operands.shape
        return 2 * m * n * k

    @property
    def bytes(self) -> int:
        """The fewest bytes that move: A and B read once, C written once."""
        m, n, k = self.operands.shape
        return (m * k + k * n) * self.dtype.bytes + m * n * self.out_dtype.bytes

    def perf(self, microseconds: float | None = None) -> str:
        """``Perf: <ms> ms, <x> TFlops, <y> GB/s, <name>`` for the time of one call; default: measured now."""
        if microseconds is None:
            microseconds = 1e3 * do_bench(self.launch, self.target)
        return perf_line(microseconds, self.flops, self.bytes, self.name)


class PlannedTrial(Trial):
    """The launches of `matmul` for some matrices: the product, and the prepass that writes its operands.

    Args:
        operands: A (M, K) and B (K, N), in host memory.
        target: the target that runs it.
        precision: the precision of `matmul`.
        schedule: the schedule of the product; default: the choice of `matmul`.

    Raises:
        DTypeError: `matmul` does not multiply this dtype.
        ScheduleError: the schedule is not legal for the matrices and the machine.
        ToolchainError: the target cannot reach a device.
    """

    def __init__(
        self, operands: Operands, target: str, precision: str = EXACT, schedule: Schedule | None = None
    ) -> None:
        self._put(operands, target)
        given = dict.fromkeys(ARRAYS) | {"a": self._a, "b": self._b, "out": self._c}
        self.plan = plan_matmul(given, Wanted(precision=precision, schedule=schedule, target=target))
        self.bound = self.plan.product.kernel
        self._arguments = (*self.plan.product.arrays, *self.plan.product.numbers)
        self.halves = HALVES_OF.get(precision, 0) if "both" in self.bound.constants else 0
        self._describe(None, "", None)

    def launch(self) -> Executable:
        """Start all launches; returns the product's executable."""
        # A plan prepares its launches each time, which times of small products would show.
        return self.plan.run()[-1] if len(self.plan.launches) > 1 else super().launch()

    def verify(self) -> GemmComparison:
        """Compare every element of C with a reference of higher precision; of halves under their bound."""
        if not self.halves:
            return super().verify()
        how = Accumulation.of(self.atom, self.period)
        return compare_halves(self.operands.a, self.operands.b, self.result(), how, self.halves)
