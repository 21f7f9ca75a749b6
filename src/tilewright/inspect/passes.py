"""A kernel on its way through a target's passes: as text after one of them, or what changed between two."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from tilewright.errors import LaunchError, close_to, shown
from tilewright.ir.printer import print_kernel
from tilewright.passes.pipeline import Stage


def listed(stages: Sequence[Stage]) -> str:
    """The passes in their order: name, what each does, and the choices that it made for this kernel."""
    width = max(len(stage.name) for stage in stages)
    lines = []
    for stage in stages:
        lines.append(f"{stage.name:<{width}}  {stage.about}")
        lines += [f"{'':<{width}}  - {note}" for note in stage.notes]
    return "\n".join(lines)


def after(stages: Sequence[Stage], name: str) -> str:
    """The kernel's text after a pass, with the notes of this pass and of those before it as comments.

    Raises:
        LaunchError: there is no such pass; lists those that there are.
    """
    last = _place(stages, name)
    first, rest = print_kernel(stages[last].kernel).split("\n", 1)
    notes = [f"# {stage.name}: {note}" for stage in stages[: last + 1] for note in stage.notes]
    return "\n".join([first, *notes, rest])


def difference(stages: Sequence[Stage], before: str, after: str) -> str:
    """What changed in the kernel's text between two passes, as a unified diff; says so where nothing did.

    Raises:
        LaunchError: there is no such pass; lists those that there are.
    """
    old, new = (stages[_place(stages, name)].kernel for name in (before, after))
    texts = [print_kernel(kernel).splitlines() for kernel in (old, new)]
    names = [f"{old.name} after {before}", f"{new.name} after {after}"]
    lines = list(difflib.unified_diff(texts[0], texts[1], names[0], names[1], lineterm=""))
    return "\n".join(lines) or f"no difference: {old.name} is the same after {before} and after {after}"


def _place(stages: Sequence[Stage], name: str) -> int:
    names = [stage.name for stage in stages]
    if name not in names:
        raise LaunchError(f"no pass {shown(name)}; choose one of {', '.join(names)}{close_to(name, names)}")
    return names.index(name)
