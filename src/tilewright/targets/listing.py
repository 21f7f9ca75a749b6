"""What a text-emitting target gives back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tilewright.errors import Location
from tilewright.ir.kernel import Kernel
from tilewright.ir.op import Op


class Access(NamedTuple):
    """How a copy is spelled where no operation of the lowered kernel says it.

    Args:
        elems: elements per access; None leaves it to the compiler.
        how: in words; why the compiler is free, and what bounds it.
    """

    elems: int | None
    how: str


@dataclass(frozen=True)
class Listing:
    """Generated text and what the launcher must know of it.

    Args:
        text: the source.
        entry: name of the function to call.
        kernel: the lowered kernel that the text spells; its parameters are the function's, in order.
        shared_bytes: shared memory per block (CPU: scratch memory per worker).
        notes: choices the target made, one sentence each (a re-laid-out shared tensor, a widened vector).
        accesses: how copies are spelled, by operation and line, where the target chooses that as it spells.
        lines: for lines of the text, counted from 1, the operation of the lowered kernel that each spells.
    """

    text: str
    entry: str
    kernel: Kernel
    shared_bytes: int
    notes: tuple[str, ...] = ()
    accesses: Mapping[tuple[Op, Location | None], Access] = field(default_factory=dict)
    lines: Mapping[int, Op] = field(default_factory=dict)

    @property
    def code(self) -> str:
        """The text without its lines of comment, which say where the author wrote it: what is compiled."""
        return "\n".join(line for line in self.text.splitlines() if not line.lstrip().startswith("//"))
