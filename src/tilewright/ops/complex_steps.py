"""A launch that comes before a complex product, and what it leaves in scratch memory for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.runtime.kernel import Bound
from tilewright.runtime.strided import Strided


@dataclass(frozen=True)
class Step:
    """A launch that writes what a product reads.

    Args:
        kernel: what is launched.
        arrays: its arrays, in order, as it sees them.
        given: which of a product's arrays each is; empty of those in scratch memory.
        made: those that it writes, as the product sees them, by name.
    """

    kernel: Bound
    arrays: tuple[Strided, ...]
    given: tuple[str, ...]
    made: Mapping[str, Strided]
