"""What was predicted of a launch, beside what was measured of it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.errors import UnknownCountError
from tilewright.inspect.measured import (
    ASYNC_PASSES,
    CONFLICTS,
    DURATION,
    FEWEST,
    LOAD_PASSES,
    LOAD_WAITS,
    LOADS,
    MATRIX_LOAD_PASSES,
    MATRIX_LOADS,
    MATRIX_STORE_PASSES,
    MATRIX_STORES,
    PASSES,
    REGISTERS,
    STORE_PASSES,
    STORE_WAITS,
    STORES,
    WAITS,
    measured,
)
from tilewright.inspect.predicted import SharedTraffic, predicted_traffic
from tilewright.inspect.subject import Subject
from tilewright.ir.async_ops import MmaAsync
from tilewright.targets.target import CUDA

DERIVED: Mapping[str, tuple[Callable[[float, float], float], str, str]] = {
    CONFLICTS: (operator.sub, PASSES, FEWEST),
    WAITS: (operator.add, LOAD_WAITS, STORE_WAITS),
    "sectors per global load": (operator.truediv, "global load sectors", "global load requests"),
    "sectors per global store": (operator.truediv, "global store sectors", "global store requests"),
}
"""Figures that follow from two others."""

SHOWN = (
    *(LOADS, LOAD_PASSES, MATRIX_LOADS, MATRIX_LOAD_PASSES),
    *(STORES, STORE_PASSES, MATRIX_STORES, MATRIX_STORE_PASSES, ASYNC_PASSES),
    *(PASSES, CONFLICTS, WAITS),
    *("global load requests", "sectors per global load", "global store requests", "sectors per global store"),
    *("DRAM bytes", DURATION, REGISTERS),
)


@dataclass(frozen=True)
class Comparison:
    """A launch as predicted and as measured, each figure by its name.

    Args:
        kernel: its name.
        arch: for which architecture.
        predicted: figures that follow from the IR, and registers.
        measured: figures that Nsight Compute read; empty if nothing was launched.
        unknown: why nothing is predicted of shared memory; empty if it is.
    """

    kernel: str
    arch: str
    predicted: Mapping[str, float]
    measured: Mapping[str, float]
    unknown: str = ""

    def __str__(self) -> str:
        """A table; ``-`` where there is nothing to say."""
        rows = [("", "predicted", "measured")]
        rows += [(name, _spelled(name, self.predicted), _spelled(name, self.measured)) for name in SHOWN]
        name, *widths = (max(len(row[column]) for row in rows) for column in range(3))
        lines = [f"{row[0]:<{name}}  {row[1]:>{widths[0]}}  {row[2]:>{widths[1]}}" for row in rows]
        if self.unknown:
            lines.append(f"shared memory is not predicted: {self.unknown}")
        return "\n".join(lines)


def predict(subject: Subject, arch: str | None = None) -> Comparison:
    """What is predicted of a launch on CUDA, on these arrays and numbers; nothing is measured.

    Args:
        subject: the kernel.
        arch: the architecture; default: this machine's.
    """
    made = subject.compile(CUDA.name, arch)
    assert made.listing is not None
    lowered = made.listing.kernel
    predicted: dict[str, float] = {REGISTERS: made.resources["registers"]}
    unknown = ""
    try:
        predicted |= predicted_figures(predicted_traffic(lowered, subject.binding(lowered)))
    except UnknownCountError as error:
        unknown = str(error)
    found = with_derived(predicted)
    if any(isinstance(op, MmaAsync) for op in lowered.walk()):
        # Nsight Compute adds what `wgmma` reads of shared memory to the sums.
        found = {name: figure for name, figure in found.items() if name not in (PASSES, FEWEST)}
    return Comparison(made.kernel.name, made.arch, found, {}, unknown)


def compare(subject: Subject, ncu: str, arguments: Sequence[str]) -> Comparison:
    """What is predicted of a launch on this machine's GPU, and what is measured of it.

    Args:
        subject: the kernel.
        ncu: Nsight Compute's program.
        arguments: of `tilewright inspect`, which make the same subject in the process that is watched.

    Raises:
        ToolchainError: `ncu` cannot measure.
    """
    listing = subject.compile(CUDA.name).listing
    assert listing is not None
    found = measured(ncu, listing.entry, ["inspect", *arguments, "--launch"])
    return replace(predict(subject), measured=with_derived(found))


def predicted_figures(traffic: SharedTraffic) -> dict[str, float]:
    """What a launch asks of shared memory, by the names of what is measured.

    Wavefronts of ``cp.async`` are not predicted, nor sums with them: data arrives by lines of global memory,
    so that a row of 64 bytes, half a line, takes as long as one of 128.  Which lines there are depends on
    where the arrays lie, and a copy past the end has none.
    """
    found: dict[str, float] = {}
    for asked, instructions, passes in (
        (traffic.loads, LOADS, LOAD_PASSES),
        (traffic.matrix_loads, MATRIX_LOADS, MATRIX_LOAD_PASSES),
        (traffic.stores, STORES, STORE_PASSES),
        (traffic.matrix_stores, MATRIX_STORES, MATRIX_STORE_PASSES),
    ):
        found |= {instructions: asked.instructions, passes: asked.passes}
    if traffic.async_copies.instructions:
        return found
    return found | {ASYNC_PASSES: 0, PASSES: traffic.all.passes, FEWEST: traffic.all.fewest}


def with_derived(figures: Mapping[str, float]) -> dict[str, float]:
    """The figures, and those that follow from them.

    Example:
        >>> with_derived({"all wavefronts": 10, "fewest wavefronts": 8})["bank conflicts"]
        2
    """
    found = dict(figures)
    for name, (combine, left, right) in DERIVED.items():
        if {left, right} <= figures.keys() and (figures[right] or combine is not operator.truediv):
            found[name] = combine(figures[left], figures[right])
    return found


def _spelled(name: str, figures: Mapping[str, float]) -> str:
    if name not in figures:
        return "-"
    whole = name != DURATION and DERIVED.get(name, (None,))[0] is not operator.truediv
    return f"{figures[name]:,.{0 if whole else 2}f}"
