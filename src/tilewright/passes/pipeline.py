"""Pipelines: a target's passes in order, and the kernel after each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from tilewright.arch import Arch
from tilewright.ir.kernel import Kernel

Passed: TypeAlias = tuple[Kernel, tuple[str, ...]]
"""A kernel, and a note for each choice that a pass made."""

TRACED = "trace"
"""Name of the stage before the first pass: the kernel as it was traced."""


@dataclass(frozen=True)
class Pass:
    """One decision, made for the whole kernel.

    Args:
        name: the name of the pass.
        about: one sentence on what the pass does.
        run: maps a kernel and an architecture to a kernel in the same IR; may also return notes on choices.
    """

    name: str
    about: str
    run: Callable[[Kernel, Arch], Kernel | Passed]


class Stage(NamedTuple):
    """The kernel after one pass.

    Args:
        name: the name of the pass; `TRACED` before the first.
        about: what the pass does.
        kernel: the kernel after the pass.
        notes: the choices of the pass.
    """

    name: str
    about: str
    kernel: Kernel
    notes: tuple[str, ...] = ()


def stages(kernel: Kernel, arch: Arch, passes: Sequence[Pass]) -> Iterator[Stage]:
    """Yield the kernel before the first pass and after each pass."""
    yield Stage(TRACED, "The kernel as it was traced.", kernel, kernel.notes)
    for one in passes:
        found = one.run(kernel, arch)
        kernel, notes = (found, ()) if isinstance(found, Kernel) else found
        yield Stage(one.name, one.about, kernel, notes)


def run_passes(kernel: Kernel, arch: Arch, passes: Sequence[Pass]) -> Passed:
    """Return the kernel after all passes, and the notes of all passes in order."""
    notes: list[str] = []
    for stage in stages(kernel, arch, passes):
        kernel = stage.kernel
        notes += stage.notes
    return kernel, tuple(notes)
