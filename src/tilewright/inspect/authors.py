"""Errors that the author's own Python raises, told with the author's line instead of a traceback."""

from __future__ import annotations

from tilewright.errors import Location, TilewrightError, TraceError
from tilewright.lang.program import Program
from tilewright.lang.source import raised_at

DEEPEST = 8
"""Calls within one another that are shown."""


def in_kernel(program: Program, error: Exception) -> TraceError | None:
    """What to raise instead of an error that a kernel's function raised; None of others, and of our own."""
    if isinstance(error, TilewrightError | MemoryError):
        return None
    kernel = getattr(program.function, "__code__", None)
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code is not kernel:
        traceback = traceback.tb_next
    if traceback is None:
        return None
    return TraceError(f"kernel {program.name}: {_named(error)}", raised_at(error, traceback))


def told(error: Exception, file: str) -> str:
    """An error, and where a file raised it if it did."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code.co_filename != file:
        traceback = traceback.tb_next
    where = raised_at(error, traceback) if traceback is not None else None
    if where is not None and len(where.frames) > DEEPEST:  # recursion without an end
        where = Location(where.frames[:DEEPEST])
    return _named(error) + (f"\n{where.excerpt()}" if where else "")


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
