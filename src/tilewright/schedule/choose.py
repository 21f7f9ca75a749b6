"""Choosing a schedule: what is asked, and who answers for each target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.arch import Arch
from tilewright.dataflow.nodes import Span
from tilewright.dtypes import DType
from tilewright.lang.specs import TensorSpec
from tilewright.schedule.form import Factor, Form
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import TARGETS, part

UNKNOWN = 4096
"""The extent that is assumed where a kernel is compiled for a class of arrays."""


@dataclass(frozen=True)
class Question:
    """A problem for which a schedule is wanted.

    Args:
        form: what is computed.
        specs: the classes of the arrays.
        extents: of every span, batches first, then m, n and k.
        arch: the machine.
        processors: how many of its processors there are.
    """

    form: Form
    specs: Mapping[str, TensorSpec]
    extents: tuple[int, ...]
    arch: Arch
    processors: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """Extents (M, N, K)."""
        m, n, k = self.extents[-3:]
        return m, n, k

    @property
    def dtype(self) -> DType:
        """Of operand A in memory."""
        return self.form.a.dtype

    @property
    def majors(self) -> tuple[str, str]:
        """Along what A and B are contiguous: ``"k"``, ``"mn"``, or ``""`` along neither."""
        return self._major(self.form.a), self._major(self.form.b)

    def _major(self, factor: Factor) -> str:
        unit = self.specs[factor.name].unit_dim
        if unit is None:
            return ""
        span = factor.part.at[unit]
        return "k" if span == factor.depth else "mn" if span == factor.row else ""


def choose(question: Question) -> Schedule:
    """A good schedule for a problem on a machine."""
    owner = next(target for target in TARGETS.values() if question.arch.name in target.architectures)
    chosen: Schedule = part(owner.chooser)(question)
    return chosen


def extents_of(form: Form, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """The extent of every span, of arrays of these shapes; `UNKNOWN` of those that have none."""
    known: dict[Span, int] = {}
    places = [(factor.part.operand.name, factor.part.at) for factor in (form.a, form.b)]
    for name, at in (*places, *((store.operand.name, store.at) for store in form.stores)):
        known.update(zip(at, shapes.get(name, ()), strict=False))
    return tuple(known.get(span, UNKNOWN) for span in (*form.batch, form.m, form.n, form.a.depth))
