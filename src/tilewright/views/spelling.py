"""Transforms as authors write them: ``[stage, g]``, ``.tile((64, 64), (m, n))``, ``.merge(0)``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, fields
from typing import Any

from tilewright.symbolic.nodes import Expr, Int
from tilewright.symbolic.spelling import format_int
from tilewright.views.transforms import Merge, Permute, Slice, Transform


def as_written(transform: Transform, shape: Sequence[Int]) -> str:
    """Return the source text that applies a transform to a tensor of this shape.

    Example:
        >>> from tilewright.symbolic.nodes import Sym
        >>> as_written(Slice((Sym("stage", 0, 3), (0, 64), (0, 8))), (4, 64, 64))
        '[stage, :, :8]'
        >>> as_written(Merge(0, 2), (4, 64))
        '.merge(0)'
    """
    if isinstance(transform, Slice):
        parts = [":" if part == (0, n) else _part(part) for part, n in zip(transform.at, shape, strict=True)]
        while len(parts) > 1 and parts[-1] == ":":
            parts.pop()
        return f"[{', '.join(parts)}]"
    record: Any = transform
    given = [(f, getattr(record, f.name)) for f in fields(record)]
    if isinstance(transform, Merge) and transform.count == 2:
        given = given[:1]
    shown = [_argument(value) for f, value in given if f.default is MISSING or value != f.default]
    if isinstance(transform, Permute):
        shown = [_argument(dim) for dim in transform.order]
    letters = (f"_{letter.lower()}" if letter.isupper() else letter for letter in type(transform).__name__)
    return f".{''.join(letters).lstrip('_')}({', '.join(shown)})"


def _part(part: Any) -> str:
    if part is None:
        return ":"
    if isinstance(part, tuple):
        start, stop = (None if end is None else _argument(end) for end in part)
        return f"{'' if start in (None, '0') else start}:{stop or ''}"
    return _argument(part)


def _argument(value: Any) -> str:
    if isinstance(value, tuple):
        inner = ", ".join(map(_argument, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return format_int(value) if isinstance(value, int | Expr) else str(value)
