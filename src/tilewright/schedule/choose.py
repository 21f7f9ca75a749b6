"""Choosing a schedule: the question, and the form of an answer; `choose_by_target` has the answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tilewright.arch import Arch
from tilewright.dataflow.nodes import Operand, Part, Reduce
from tilewright.dtypes import DType
from tilewright.lang.specs import TensorSpec
from tilewright.schedule.crossing import reduced_in_parts
from tilewright.schedule.factors import Factor
from tilewright.schedule.form import Form
from tilewright.schedule.schedule import Schedule
from tilewright.symbolic.nodes import Sym
from tilewright.symbolic.rebuilding import evaluate, symbols

UNKNOWN = 4096
"""The extent that is assumed where a kernel is compiled for a class of arrays."""

MOST_COVERED = 256
"""Rows or columns that one tile covers where the result is reduced along them; longer ones are reduced across
tiles, if that is possible."""

IN_ORDER = ("workspace", "reduce-scatter", "cluster")
"""Ways in which parts of K are added up in one order, at every run, and whose times are estimated."""


@dataclass(frozen=True)
class Splitting:
    """How the K of a product is to be split, where that is said and the rest of its schedule is not.

    Args:
        split_k: as a schedule has it; None: as the rules choose.
        reduction: as a schedule has it; None: the one of `IN_ORDER` that is estimated to be the fastest.
        batch_invariant: whether the order in which products are added follows from K and the dtypes alone, so
            that the bits of a row are those that it has among any other rows.
    """

    split_k: int | str | None = None
    reduction: str | None = None
    batch_invariant: bool = False

    @property
    def reductions(self) -> tuple[str, ...]:
        """The reductions that are tried.

        Only in a workspace are the steps of streams added up, and have few and many rows the same order in
        which nobody waits.
        """
        if self.reduction is not None:
            return (self.reduction,)
        return IN_ORDER[:1] if self.batch_invariant or self.split_k == "stream" else IN_ORDER


@dataclass(frozen=True)
class Question:
    """A problem for which a schedule is wanted.

    Args:
        form: what is computed.
        specs: the classes of the arrays.
        extents: of every span, batches first, then m, n and k.
        arch: the machine.
        processors: how many of its processors there are.
        splitting: how K is to be split; None: as the rules choose.
    """

    form: Form
    specs: Mapping[str, TensorSpec]
    extents: tuple[int, ...]
    arch: Arch
    processors: int
    splitting: Splitting | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """Extents (M, N, K)."""
        m, n, k = self.extents[-3:]
        return m, n, k

    @property
    def dtype(self) -> DType:
        """Of operand A as it is multiplied."""
        return self.form.a.view.dtype

    @property
    def b_dtype(self) -> DType:
        """Of operand B as it is multiplied."""
        return self.form.b.view.dtype

    @property
    def decodes(self) -> bool:
        """Whether an operand is computed from what lies in memory, between the multiplications."""
        return not all(factor.is_plain for factor in self.form.factors)

    @property
    def reads_result_sized(self) -> bool:
        """Whether an array with an element for each one of the result is read besides the operands."""
        inner = {self.form.m, self.form.n}
        return any(isinstance(node, Part) and inner <= {*node.at} for node in self.form.flow.walk())

    @property
    def stores_lines(self) -> bool:
        """Whether something is stored along rows or columns alone."""
        inner = {self.form.m, self.form.n}
        return any(not inner <= {*store.at} for store in self.form.stores)

    @property
    def covered(self) -> tuple[int, int]:
        """Rows and columns that one tile must hold, because the result is reduced along them; 0 if not."""
        return (0, 0) if self.across else self._reduced

    @property
    def across(self) -> bool:
        """Whether reductions go across tiles, of rows and columns that are longer than tiles should be."""
        return max(self._reduced) > MOST_COVERED and bool(reduced_in_parts(self.form))

    @property
    def _reduced(self) -> tuple[int, int]:
        """Rows and columns that the result is reduced along; 0 if not."""
        m, n, _ = self.shape
        least = [0, 0]
        for node in self.form.flow.walk():
            if isinstance(node, Reduce):
                rows = node.argument.axes[node.axis] == self.form.m
                least[0 if rows else 1] = m if rows else n
        return least[0], least[1]

    @property
    def majors(self) -> tuple[str, str]:
        """Along what A and B are contiguous: ``"k"``, ``"mn"``, or ``""`` along neither."""
        return self.major(self.form.a), self.major(self.form.b)

    def major(self, factor: Factor) -> str:
        """Along what an operand is contiguous; see `majors`."""
        unit = self.form.spec(factor.part.operand, self.specs).unit_dim
        if unit is None:
            return ""
        span = factor.part.at[unit]
        return "k" if span == factor.depth else "mn" if span == factor.row else ""


@dataclass(frozen=True)
class Candidate:
    """A schedule that a rule proposes for a problem.

    Args:
        schedule: the schedule.
        estimate: its time by the rule's model, which has a unit of its own: only estimates for one question
            are compared.
        rule: what proposes it, in words.
        against: why it is refused, a sentence each; empty if it is legal, as far as has been asked.
    """

    schedule: Schedule
    estimate: float
    rule: str
    against: tuple[str, ...] = ()


def extents_of(form: Form, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """The extent of every span, of arrays of these shapes; `UNKNOWN` of those that have none."""
    sizes: dict[Sym, int] = {}
    for operand in form.flow.parameters:
        if isinstance(operand, Operand):
            pairs = zip(operand.shape, shapes.get(operand.name, ()), strict=False)
            sizes.update((size, extent) for size, extent in pairs if isinstance(size, Sym))
    spans = (*form.batch, form.m, form.n, form.a.depth)
    known = {span: evaluate(span.extent, sizes) for span in spans if symbols(span.extent) <= sizes.keys()}
    if (cut := form.flow.grouped) is not None and cut.groups is not None:
        groups = shapes.get(cut.groups.ends.name, (1,))
        known[cut.groups.index] = groups[0]
        known[cut] = -(-known.get(cut, UNKNOWN) // max(groups[0], 1))  # rows of a group, on average
    return tuple(int(known.get(span, UNKNOWN)) for span in spans)


def widened(schedule: Schedule, question: Question) -> Schedule:
    """The schedule with a tile that holds all that is reduced."""
    m, n, k = schedule.tile
    unit_m, unit_n, _ = schedule.atom.shape
    units = (unit_m * schedule.warps[0], unit_n * schedule.warps[1])
    rows, columns = (-(-least // unit) * unit for least, unit in zip(question.covered, units, strict=True))
    return replace(schedule, tile=(max(m, rows), max(n, columns), k))
