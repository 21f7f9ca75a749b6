"""Integers that must be known while the kernel is traced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.errors import TraceError
from tilewright.lang.scalars import Index, as_tuple, unwrap
from tilewright.lang.source import here
from tilewright.symbolic.nodes import Int


def ints(values: Index | Sequence[Index]) -> tuple[Int, ...]:
    """Unwrap one or several integers that the author wrote."""
    return tuple(unwrap(value) for value in as_tuple(values))


def static(what: str, values: int | Sequence[int]) -> tuple[int, ...]:
    """Return integers that must be known while the kernel is traced.

    Raises:
        TraceError: one of them is symbolic.
    """
    found = ints(values)
    if not all(isinstance(value, int) for value in found):
        raise TraceError(
            f"{what} {found} must be known while the kernel is traced; "
            "make what varies a keyword-only constant of the kernel",
            here(),
        )
    return tuple(value for value in found if isinstance(value, int))


def constant(what: str, value: int) -> int:
    """Return an integer that must be known while the kernel is traced; see `static`."""
    return static(what, value)[0]


def kept(what: str, values: Sequence[Any], projection: Sequence[int | None] | None) -> Sequence[Any]:
    """Return the values whose entry in a projection is not None; all values without a projection.

    Raises:
        TraceError: the projection has a different length.
    """
    if projection is None:
        return values
    if len(projection) != len(values):
        raise TraceError(f"projection {tuple(projection)} for a {what} of {len(values)} entries", here())
    return [value for value, keep in zip(values, projection, strict=True) if keep is not None]
