"""One GEMM kernel on one problem, step by step: trace, compile, run, verify, time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright import dtypes
from tilewright.calls import launches
from tilewright.checking.compare import Accumulation, GemmComparison, compare_gemm
from tilewright.checking.composed_products import compare_halves
from tilewright.checking.sample import Operands
from tilewright.dtypes import DType, dtype
from tilewright.errors import LaunchError, TilewrightError
from tilewright.ir.kernel import Kernel as IrKernel
from tilewright.ir.mma import MmaAtom
from tilewright.ops.grades import F32, HALVES_OF, is_split
from tilewright.ops.halves import Split, splitting, transposed
from tilewright.ops.problem import Problem, problem_of
from tilewright.ops.products import in_halves, output_dtype, plain
from tilewright.runtime.arrays import ArrayInfo, describe
from tilewright.runtime.executable import Executable
from tilewright.runtime.frameworks import Strided
from tilewright.runtime.gpu_memory import ALIGNMENT, device_get, device_put
from tilewright.runtime.kernel import Bound
from tilewright.schedule.schedule import Schedule
from tilewright.tune.measure import Effort, Measurement, do_bench, first_time, measure, perf_line
from tilewright.tune.rivals import rivals

Array = npt.NDArray[Any]

OURS = "tilewright"
"""The name of our own timing beside the rivals'."""

_UNWRITTEN = 0xFF


@launches.made("bind a kernel, and give it operands of tw.testing.operands(...)")
class Trial:
    """A GEMM kernel with its constants fixed, and the operands to run it on.

    The output starts as bytes of ones, which are NaN in every float dtype: an element that the kernel does
    not write is found.

    Args:
        bound: the kernel; takes A (M, K), B (N, K), C (M, N), or B (K, N) if it names the dimensions so.
        operands: A (M, K) and B (K, N), in host memory.
        target: which target runs it.
        atom: the MMA atom it multiplies with; says how it adds up.  Default: that of its schedule.
        about: what tells this kernel from others, for its name, e.g. ``"192x256x256, fma.f32.f32"``.
            Default: what its schedule is.
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
        self.bound = bound
        self.operands = operands
        self.target = target
        self.dtype = dtype(operands.a.dtype)
        self.out_dtype = out or output_dtype(self.dtype)
        m, n, _ = operands.shape
        blank = np.full(m * n * self.out_dtype.bytes, _UNWRITTEN, np.uint8)
        self._a, self._b, self._c = (
            device_put(array, target)
            for array in (operands.a, operands.b, blank.view(self.out_dtype.numpy).reshape(m, n))
        )
        self._arguments = self._arranged()
        self.schedule = bound.schedule_for(*self._arguments, target=target) if atom is None else None
        if self.schedule is not None:
            period = self.schedule.promote * self.schedule.block_k or None
            about = about or _said(self.schedule)
            atom = self.schedule.atom
        if atom is None:
            raise LaunchError(f"kernel {bound.program.name} is explicit; nearest legal choice: atom=")
        self.atom, self.period = atom, period
        self.name = f"{bound.program.name}<{target}, {self.dtype}, {about}>"

    def _arranged(self) -> tuple[Any, ...]:
        """The kernel's arguments."""
        return self._a, self._b if _takes_b_by_rows(self.bound) else self._b.T, self._c

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
        """Run the kernel to its end; gives back the executable and the seconds that the call took.

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
        """The libraries that a user would call instead, on the same matrices; by name."""
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


def gemm_trial(
    operands: Operands, target: str, precision: str = "exact", schedule: Schedule | None = None
) -> Trial:
    """The kernel of `matmul` on some matrices.

    Args:
        operands: A and B.
        target: ``"cpu"``, ``"cuda"`` or ``"reference"``.
        precision: ``"exact"``, or ``"tf32"`` to multiply f32 on tensor cores.
        schedule: how it is computed; default: chosen for the matrices and the machine.

    Raises:
        DTypeError: no product of such numbers.
        ScheduleError: the schedule is not legal for the matrices and the machine.
        ToolchainError: the target cannot reach a device.
    """
    return Trial(plain(0).bind(precision=precision, schedule=schedule), operands, target)


def _takes_b_by_rows(bound: Bound) -> bool:
    """Whether a kernel names the dimensions of its second array as (K, N)."""
    a, b, *_ = (parameter.dims for parameter in bound.program.parameters)
    return bool(a) and a[-1:] == b[:1]


def _said(schedule: Schedule) -> str:
    """A schedule in short."""
    tile = "x".join(str(extent) for extent in schedule.tile)
    return f"{tile}, {schedule.atom}, stages {schedule.stages}"


# ----------------------------------------------------------------
# F32 by halves: splitting the operands, multiplying the halves.


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
