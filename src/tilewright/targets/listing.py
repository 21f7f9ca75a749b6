"""What a text-emitting target gives back."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.kernel import Kernel


@dataclass(frozen=True)
class Listing:
    """Generated text and what the launcher must know of it.

    Args:
        text: the source.
        entry: name of the function to call.
        kernel: the lowered kernel that the text spells; its parameters are the function's, in order.
        shared_bytes: shared memory per block (CPU: scratch memory per worker).
        notes: choices the target made, one sentence each (a re-laid-out shared tensor, a widened vector).
    """

    text: str
    entry: str
    kernel: Kernel
    shared_bytes: int
    notes: tuple[str, ...] = ()
