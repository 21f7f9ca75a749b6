"""Pipelines: a target's passes by name, in their order, and the kernel as each of them leaves it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from tilewright.arch import Arch
from tilewright.ir.kernel import Kernel

Passed: TypeAlias = tuple[Kernel, tuple[str, ...]]
"""A kernel, and a note for each choice that was made on the way to it."""

TRACED = "trace"
"""What stands before the first pass: the kernel as it was traced."""


@dataclass(frozen=True)
class Pass:
    """One decision, made for the whole kernel.

    Args:
        name: what people call it.
        about: what it does, in one sentence.
        run: the kernel of the same IR in which the decision is made, for an architecture; with notes if
            there is a choice to tell of.
    """

    name: str
    about: str
    run: Callable[[Kernel, Arch], Kernel | Passed]


class Stage(NamedTuple):
    """A kernel on its way through a target's passes.

    Args:
        name: of the pass that left it so; `TRACED` before the first.
        about: what that pass does.
        kernel: as it is now.
        notes: the choices of that pass.
    """

    name: str
    about: str
    kernel: Kernel
    notes: tuple[str, ...] = ()


def stages(kernel: Kernel, arch: Arch, passes: Sequence[Pass]) -> Iterator[Stage]:
    """The kernel before the first pass, and after each."""
    yield Stage(TRACED, "The kernel as it was traced.", kernel, kernel.notes)
    for one in passes:
        found = one.run(kernel, arch)
        kernel, notes = (found, ()) if isinstance(found, Kernel) else found
        yield Stage(one.name, one.about, kernel, notes)


def run_passes(kernel: Kernel, arch: Arch, passes: Sequence[Pass]) -> Passed:
    """The kernel after all passes, and the notes of each, in their order."""
    notes: list[str] = []
    for stage in stages(kernel, arch, passes):
        kernel = stage.kernel
        notes += stage.notes
    return kernel, tuple(notes)
