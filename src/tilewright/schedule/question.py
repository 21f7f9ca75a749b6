"""The input of the choice of a schedule, a problem on a machine; and its candidates.

The input includes the dtypes whose products the machine supports, and the instruction for each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import prod

from tilewright.arch import Arch
from tilewright.dataflow.nodes import ArrayPart, Operand, Span
from tilewright.dtypes import FP8, DType
from tilewright.errors import DTypeError
from tilewright.ir.mma import MmaAtom
from tilewright.lang.specs import TensorSpec
from tilewright.schedule.factors import Factor
from tilewright.schedule.folds.form import FoldForm
from tilewright.schedule.form import Form, reduced_in_parts
from tilewright.schedule.needs import ROW_BYTES
from tilewright.schedule.schedule import Schedule
from tilewright.symbolic.nodes import Sym
from tilewright.symbolic.rebuilding import evaluate, symbols
from tilewright.targets.atoms import MMA_F64, MMA_F64_M16K4, TENSOR_CORE

SUPPORTED = ("f64", "f32", "f16", "bf16", *(made.name for made in FP8), "i8")
"""Element types that are multiplied without a conversion."""

INTEGERS = ("i32", "i64", "u32", "u64")
"""Wider integers, which no matrix unit supports; `matmul` multiplies all but i8 as unsigned ones."""


# ---------------------------------------------------------------- classes of arrays


WIDTHS, PAIR = (16, 4), 8
"""Widths of access in bytes that classes of arrays distinguish; narrower ones move element by element.
Arrays with elements of 4 bytes also distinguish accesses of two, which may be a complex number."""


@lru_cache(maxsize=1024)
def coarse(spec: TensorSpec, arch: Arch) -> TensorSpec:
    """The class of an array, without properties that no access uses.

    It keeps only the widest access of `WIDTHS` that divides each stride, the start, and the extent of the
    contiguous dimension.  It keeps none of them if threads have vector registers, because their accesses may
    begin anywhere.  Packed elements share bytes in any case.

    Example:
        >>> from tilewright.arch import REFERENCE
        >>> from tilewright.dtypes import f16
        >>> from tilewright.targets.target import CPU
        >>> spec = TensorSpec(f16, 2, 1, (256, 34), (24, 1), 16, False)
        >>> coarse(spec, REFERENCE)
        f16[1i, 2i] strides [8i, 1] align 16
        >>> coarse(spec, CPU.architecture("x86-64-v3"))
        f16[1i, 1i] strides [1i, 1] align 2
    """
    size, together = spec.dtype.bytes, spec.dtype.per_byte
    widths = () if arch.vector_registers else (*WIDTHS, *((PAIR,) if 2 * size == PAIR else ()))

    def width(count: int) -> int:
        counts = (w // size * together for w in widths if w >= size)
        return max((one for one in counts if count % one == 0), default=together)

    return replace(
        spec,
        extent_divisors=tuple(
            width(divisor) if dim == spec.unit_dim else 1 for dim, divisor in enumerate(spec.extent_divisors)
        ),
        stride_divisors=tuple(
            1 if dim == spec.unit_dim else width(divisor) for dim, divisor in enumerate(spec.stride_divisors)
        ),
        align=max((w for w in widths if spec.align % w == 0), default=min(spec.align, size)),
    )


UNKNOWN = 4096
"""Extent assumed when a kernel is compiled for a class of arrays."""

MOST_COVERED = 256
"""Rows or columns that one tile covers if the result is reduced along them. Longer ones are reduced across
tiles, if that is possible."""

IN_ORDER = ("workspace", "reduce-scatter", "cluster")
"""Reductions with an estimate that add the parts of K in the same order in every run."""

BAND = 8
"""Rows of tiles in a band (`group_m`), unless another number measured better for a proposal."""


@dataclass(frozen=True)
class Splitting:
    """A request to split K, with the rest of the schedule left to the rules.

    Args:
        split_k: as in a schedule; None: the rules choose.
        reduction: as in a schedule; None: the reduction of `IN_ORDER` with the least estimated time.
        batch_invariant: whether K and the dtypes alone determine the order of additions, so that a row has
            the same bits among any other rows.
    """

    split_k: int | str | None = None
    reduction: str | None = None
    batch_invariant: bool = False

    @property
    def reductions(self) -> tuple[str, ...]:
        """The reductions to try.

        Only a workspace supports streams.  Only there, few and many rows have the same order of additions and
        no block waits.
        """
        if self.reduction is not None:
            return (self.reduction,)
        return IN_ORDER[:1] if self.batch_invariant or self.split_k == "stream" else IN_ORDER


@dataclass(frozen=True)
class Question:
    """A problem that needs a schedule.

    Args:
        form: the computation.
        specs: the classes of the arrays.
        extents: extents of all spans: batches first, then m, n and k.
        arch: the machine.
        processors: number of processors in use.
        splitting: the request to split K; None: the rules choose.
        longest: index of the loop with the most elements along K.
        inner: most columns of an inner product; 0 without inner products.
    """

    form: Form
    specs: Mapping[str, TensorSpec]
    extents: tuple[int, ...]
    arch: Arch
    processors: int
    splitting: Splitting | None = None
    longest: int = 0
    inner: int = 0

    @property
    def of_longest_loop(self) -> Question:
        """The problem with the products of the longest loop alone, along all of K."""
        return replace(self, form=self.form.loops[self.longest].without_inner, longest=0, inner=0)

    @cached_property
    def shape(self) -> tuple[int, int, int]:
        """Extents (M, N, K)."""
        m, n, k = self.extents[-3:]
        return m, n, k

    @cached_property
    def items(self) -> int:
        """Batch items of the problem."""
        return prod(self.extents[:-3])

    @property
    def exceeds_grid(self) -> bool:
        """Whether there are more batch items than an axis of a grid has blocks."""
        return self.items > self.arch.grid[-1]

    @cached_property
    def classes(self) -> dict[str, TensorSpec]:
        """The classes of the arrays, without properties that no access uses."""
        return {name: coarse(spec, self.arch) for name, spec in self.specs.items()}

    @cached_property
    def dtype(self) -> DType:
        """Dtype in which operand A is multiplied."""
        return self.form.a.view.dtype

    @cached_property
    def b_dtype(self) -> DType:
        """Dtype in which operand B is multiplied."""
        return self.form.b.view.dtype

    @cached_property
    def decodes(self) -> bool:
        """Whether an operand is decoded inside the main loop."""
        return not all(factor.is_plain for factor in self.form.factors)

    @cached_property
    def reads_result_sized(self) -> bool:
        """Whether the epilogue reads an array of the size of the result."""
        inner = {self.form.m, self.form.n}
        return any(isinstance(node, ArrayPart) and inner <= {*node.at} for node in self.form.flow.walk())

    @property
    def stores_lines(self) -> bool:
        """Whether a result is stored along rows only, or along columns only."""
        return bool(self.form.lines)

    @cached_property
    def covered(self) -> tuple[int, int]:
        """Rows and columns that one tile must hold, because the result is reduced along them; else 0."""
        return (0, 0) if self.across else self._reduced

    @property
    def across(self) -> bool:
        """Whether reductions go across tiles, because rows or columns are too long for one tile."""
        return max(self._reduced) > MOST_COVERED and bool(reduced_in_parts(self.form))

    @cached_property
    def _reduced(self) -> tuple[int, int]:
        """Rows and columns along which the result is reduced; else 0."""
        m, n, _ = self.shape
        least = [0, 0]
        for node in self.form.reductions:
            rows = node.argument.axes[node.axis] == self.form.m
            least[0 if rows else 1] = m if rows else n
        return least[0], least[1]

    @cached_property
    def has_whole_operands(self) -> bool:
        """Whether the operands are whole arrays, not batch items or views."""
        return not self.form.batch and not any(one.part.operand.transforms for one in self.form.factors)

    @cached_property
    def majors(self) -> tuple[str, str]:
        """Contiguous dimensions of A and B: ``"k"``, ``"mn"``, or ``""`` for neither."""
        return self.major(self.form.a), self.major(self.form.b)

    @cached_property
    def cut_rows(self) -> tuple[bool, bool]:
        """Whether rows of A, and of B, begin within cache lines; see `is_cut`."""
        return self.is_cut(self.form.a), self.is_cut(self.form.b)

    def is_cut(self, factor: Factor) -> bool:
        """Whether rows of an operand do not begin at cache lines, so that each takes one line more."""
        spec = self.form.spec(factor.part.operand, self.specs)
        steps = [step for dim, step in enumerate(spec.stride_divisors) if dim != spec.unit_dim]
        # Divisors of strides are known up to 16 elements only; extents up to 256.
        unit = spec.extent_divisors[spec.unit_dim or 0] * spec.dtype.bytes
        return any(step * spec.dtype.bytes % ROW_BYTES for step in steps) and unit % ROW_BYTES != 0

    @cached_property
    def memory_us(self) -> float:
        """Time to move A, B and C once at the memory's rate of copies; 0 if the rate is not known."""
        (m, n, k), rates = self.shape, self.arch.rates
        if rates is None:
            return 0.0
        board = rates.boards[0]
        a, b = (sum(one.dtype.bytes for one in side) for side in (self.form.rows_m, self.form.rows_n))
        moved = (m * k * a + k * n * b + m * n * self.dtype.bytes) * self.items
        return moved / (board.copied_gbytes_per_s or board.memory_gbytes_per_s) / 1e3

    def major(self, factor: Factor) -> str:
        """The contiguous dimension of an operand; see `majors`."""
        unit = self.form.spec(factor.part.operand, self.specs).unit_dim
        if unit is None:
            return ""
        span = factor.part.at[unit]
        return "k" if span == factor.depth else "mn" if span == factor.row else ""

    @cached_property
    def transposed(self) -> Question:
        """The problem ``C^T = B^T @ A^T``: operands, rows and columns change places."""
        *batch, m, n, k = self.extents
        return replace(self, form=self.form.arranged(True), extents=(*batch, n, m, k))


@dataclass(frozen=True)
class LoopQuestion:
    """A loop that carries a state, and needs a schedule.

    Args:
        form: the computation.
        specs: the classes of the arrays, without properties that no access uses.
        shapes: extents of the arrays.
        arch: the machine.
        processors: number of processors in use.
    """

    form: FoldForm
    specs: Mapping[str, TensorSpec]
    shapes: Mapping[str, tuple[int, ...]]
    arch: Arch
    processors: int

    @property
    def of_spans(self) -> dict[Span, int]:
        """The extent of every span."""
        return self.form.extents(self.shapes)

    @property
    def extents(self) -> tuple[int, ...]:
        """Items with a loop of their own, rows, elements of the loop, then columns and depths of products."""
        form, of_spans = self.form, self.of_spans
        items = prod(of_spans[span] for span in (*form.batch, *form.fold.turns))
        inside = [of_spans[span] for span in (*form.columns, *form.depths)]
        return (items, of_spans[form.m], of_spans[form.n], *(inside or [1]))


@dataclass(frozen=True)
class Candidate:
    """A schedule that a rule proposes for a problem.

    Args:
        schedule: the schedule.
        estimate: its time by the rule's model. Each model has its own unit: compare estimates for one
            question only.
        rule: the rule that proposes it, in words.
        against: known reasons to refuse it, a sentence each.
    """

    schedule: Schedule
    estimate: float
    rule: str
    against: tuple[str, ...] = ()


def extents_of(form: Form, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """The extents of batches, m and n, and those along K, for arrays of these shapes.

    The extent of a span of other arrays is `UNKNOWN`.
    """
    sizes: dict[Sym, int] = {}
    for operand in form.flow.parameters:
        if isinstance(operand, Operand):
            pairs = zip(operand.shape, shapes.get(operand.name, ()), strict=False)
            sizes.update((size, extent) for size, extent in pairs if isinstance(size, Sym))
    spans = (*form.batch, form.m, form.n, *form.depths)
    known = {span: evaluate(span.extent, sizes) for span in spans if symbols(span.extent) <= sizes.keys()}
    if (cut := form.flow.grouped) is not None and cut.groups is not None:
        groups = shapes.get(cut.groups.ends.name, (1,))
        known[cut.groups.index] = groups[0]
        known[cut] = -(-known.get(cut, UNKNOWN) // max(groups[0], 1))  # rows of a group, on average
    if (cut := form.bounded) is not None and cut.groups is not None:
        groups = known.get(cut.groups.index, 1)
        known[cut] = -(-known.get(cut, UNKNOWN) // max(groups, 1))  # elements of a group, on average
    return tuple(int(known.get(span, UNKNOWN)) for span in spans)


def question_of(
    form: Form,
    specs: Mapping[str, TensorSpec],
    shapes: Mapping[str, tuple[int, ...]],
    arch: Arch,
    processors: int,
    splitting: Splitting | None = None,
) -> Question:
    """The question for arrays of some shapes; the other arguments are those of `Question`."""
    extents, first = extents_of(form, shapes), len(form.batch) + 2
    depths = extents[first:]
    whole = *extents[:first], sum(depths)
    own = [at for at, loop in enumerate(form.loops) if loop.products and not loop.reads_inner]
    longest = max(own, key=lambda at: depths[at])
    columns = [depths[form.depths.index(one.columns)] for one in form.inner]
    return Question(form, specs, whole, arch, processors, splitting, longest, max(columns, default=0))


def widened(schedule: Schedule, question: Question) -> Schedule:
    """The schedule with a tile that covers all reduced rows and columns."""
    m, n, k = schedule.tile
    unit_m, unit_n, _ = schedule.atom.shape
    units = (unit_m * schedule.warps[0], unit_n * schedule.warps[1])
    rows, columns = (-(-least // unit) * unit for least, unit in zip(question.covered, units, strict=True))
    return replace(schedule, tile=(max(m, rows), max(n, columns), k))


def tensor_core(question: Question) -> MmaAtom | None:
    """The atom of ``mma.sync`` for the operands and sums of a product, if it has the requested precision.

    Raises:
        DTypeError: no product of this dtype is supported.
    """
    dtype = question.dtype
    if dtype.name not in (*SUPPORTED, *INTEGERS):
        near = ", ".join((*SUPPORTED, *INTEGERS))
        if dtype.components > 1:
            near = f"real and imaginary parts as arrays of {dtype.component}, or tw.complex_matmul"
        raise DTypeError(f"no product of {dtype} yet; nearest: {near}")
    found = TENSOR_CORE.get(dtype.name)
    if dtype.name == "f64":
        # Hopper multiplies tiles of 8 x 8 at half of its rate.
        found = MMA_F64_M16K4 if MMA_F64_M16K4.feature in question.arch.features else MMA_F64
    if found is None or found.c_dtype != question.form.sum.dtype:
        return None
    return None if dtype.name == "f32" and question.form.precision != "tf32" else found
