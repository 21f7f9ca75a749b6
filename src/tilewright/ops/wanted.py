"""The arguments of a product other than its arrays, and their checks."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tilewright.calls import launches
from tilewright.dataflow.nodes import EXACT, TF32
from tilewright.dtypes import DType
from tilewright.errors import LaunchError, close_to, shown
from tilewright.functions.table import DERIVATIVES
from tilewright.ops.ending import ACTIVATIONS, LateTerms
from tilewright.runtime.binding import number as held_number
from tilewright.schedule.question import Splitting
from tilewright.schedule.schedule import REDUCTIONS, Schedule

F32, F16 = "f32", "f16"
HALVES_OF = {F32: 2, F16: 1}
"""Number of halves of an f32 number that are multiplied, by precision."""


class Dropout(NamedTuple):
    """Elements to drop: those whose random bits are below the probability's share of ``2**32``.

    Args:
        probability: probability that an element is dropped.
        seed: the key of the random numbers.
        offset: the upper half of their counter.
    """

    probability: float = 0.0
    seed: int = 0
    offset: int = 0

    @property
    def numbers(self) -> tuple[int, int, int, float]:
        """The kernel's numbers: seed, offset, threshold, and the factor of the elements that stay."""
        if not self.probability:
            return self.seed, self.offset, 0, 1.0
        threshold = min(round(self.probability * 2**32), 2**32 - 1)
        return self.seed, self.offset, threshold, 1 / (1 - self.probability)

    @property
    def words(self) -> bool | None:
        """The part of dropout that a plan depends on: None without dropout, else `makes_fractions`."""
        return self.makes_fractions if self.probability else None

    @property
    def makes_fractions(self) -> bool:
        """Whether the factor of the elements that stay makes fractions of integers."""
        return not float(1 / (1 - self.probability)).is_integer()


NO_DROPOUT = Dropout()
UNDROPPED = NO_DROPOUT.numbers


def dropout_of(op: str, probability: float, seed: int, offset: int) -> Dropout:
    """The dropout of a call.

    Args:
        op: the operation's name in messages.
        probability: probability that an element is dropped.
        seed: the key of the random numbers.
        offset: the upper half of their counter.

    Raises:
        LaunchError: a probability that is not below 1, or a number below 0.
    """
    are_plain = type(probability) in (float, int) and type(seed) is type(offset) is int
    if are_plain and not (probability or seed or offset):
        return NO_DROPOUT
    _check_dropout(probability, seed, offset)
    if not 0 <= probability < 1:
        raise LaunchError(f"{op}: dropout={shown(probability)}", "a number from 0 to below 1")
    for name, given in (("seed", seed), ("offset", offset)):
        if given < 0:
            raise LaunchError(f"{op}: {name}={given}", "an integer of at least 0")
    return Dropout(probability, seed, offset)


@launches.of("matmul")
def _check_dropout(dropout: float, seed: int, offset: int) -> None:
    """Refuse values of other types."""


class Wanted(NamedTuple):
    """The arguments of a product other than its arrays, by their names in `matmul`; numbers come first."""

    alpha: complex = 1.0
    beta: complex | None = None
    activation: str | None = None
    precision: str = "exact"
    out_dtype: DType | str | None = None
    schedule: Schedule | None = None
    target: str | None = None
    split_k: int | str | None = None
    reduction: str | None = None
    batch_invariant: bool = False
    derivative: str | None = None
    saturate: bool = False
    dropped: Dropout = NO_DROPOUT

    @property
    def words(self) -> tuple[Any, ...]:
        """Everything that a plan depends on, except the numbers, which are arguments of each launch."""
        return *self[2:-1], self.dropped.words

    @property
    def late(self) -> LateTerms:
        """The constants of the terms after the activation; the order of the result is not known yet."""
        return LateTerms(self.derivative, (), self.saturate)

    @property
    def how(self) -> Schedule | Splitting | None:
        """The caller's constraints on the schedule, or None."""
        splitting = Splitting(self.split_k, self.reduction, self.batch_invariant)
        return splitting if self.schedule is None and splitting != Splitting() else self.schedule


def check_splitting(wanted: Wanted, op: str = "matmul") -> None:
    """Refuse a schedule with a split of K, and batch invariance with streams or atomics.

    Args:
        wanted: the other arguments of the call.
        op: the operation's name in messages.
    """
    splitting = Splitting(wanted.split_k, wanted.reduction, wanted.batch_invariant)
    if wanted.schedule is not None and splitting != Splitting():
        rule = "split_k, reduction and batch_invariant may not be given"
        text = f"{op}: schedule= already fixes the split of K, so {rule}"
        raise LaunchError(text, "schedule=tw.Schedule(..., split_k=4), or no schedule=")
    if wanted.batch_invariant and wanted.split_k == "stream":
        raise LaunchError(
            f'{op}: batch_invariant=True with split_k="stream", which cuts K at places that depend on the '
            "number of rows",
            'split_k="auto"',
        )
    if wanted.batch_invariant and wanted.reduction and not REDUCTIONS[wanted.reduction].is_ordered:
        raise LaunchError(
            f'{op}: batch_invariant=True with reduction="{wanted.reduction}", which adds the parts in the '
            "order of their arrival",
            'reduction="workspace"',
        )


def said(number: Any) -> str:
    """The property of alpha or beta that a plan depends on: integer products refuse fractions."""
    if number is None:
        return ""
    if isinstance(number, complex):
        return "complex"
    # A factor of 1 needs no multiplication; an array with the factor 0 is not read.
    if number in (0, 1):
        return str(int(number))
    return "whole" if isinstance(number, int) or float(number).is_integer() else "fraction"


def check_numbers(op: str, kind: DType, **numbers: Any) -> None:
    """Refuse numbers of a call that the dtype in which they are multiplied makes infinite or 0.

    Args:
        op: the operation's name in messages.
        kind: the dtype.
        numbers: the numbers, by the names of the arguments.

    Raises:
        LaunchError: a value is no number, or becomes infinite or 0; the message has the nearest legal one.
    """
    for name, given in numbers.items():
        parts = {name: given}
        if isinstance(given, complex | np.complexfloating):
            parts = {f"{name}.real": given.real, f"{name}.imag": given.imag}
        for part_name, value in parts.items():
            held_number(f"{op}: {part_name}", kind, value)


def check_words(wanted: Wanted) -> None:
    """Refuse a precision or an activation that does not exist."""
    for name, words in (("precision", (EXACT, TF32, *HALVES_OF)), ("activation", tuple(ACTIVATIONS))):
        given = getattr(wanted, name)
        if (name == "precision" or given is not None) and given not in words:
            near = close_to(given, words) if isinstance(given, str) else ""
            raise LaunchError(f"{name}={shown(given)}; choose one of {', '.join(words)}{near}")


def check_derivative(op: str, derivative: str | None, *, multiplies: bool) -> None:
    """Refuse a derivative of an unknown activation, or without the array ``multiply``.

    Args:
        op: the operation's name in messages.
        derivative: the name of the activation; None: none.
        multiplies: whether the caller gave ``multiply``.
    """
    if derivative is None:
        return
    if derivative not in DERIVATIVES:
        near = close_to(derivative, DERIVATIVES)
        raise LaunchError(f"derivative={shown(derivative)}; choose one of {', '.join(DERIVATIVES)}{near}")
    if not multiplies:
        near = "multiply=, the array to which the activation was applied"
        raise LaunchError(f"{op}: derivative={derivative!r} needs multiply", near)
