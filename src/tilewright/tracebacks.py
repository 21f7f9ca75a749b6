"""Tracebacks of errors without the frames of the package.

An error that a user can fix is about the user's line, and the package's own frames rarely help. So public
functions cut them: `trim` in an ``except`` block, then a bare ``raise``, which adds no frame. The variable
`TILEWRIGHT_TRACEBACK` (see `tilewright.runtime.environment`) keeps all frames, and so does
``error.full_traceback``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, TracebackType

PACKAGE = str(Path(__file__).parent) + os.sep

WANTS_ALL: list[Callable[[], bool]] = []
"""Return whether the user wants whole tracebacks; `tilewright.runtime.environment` adds the function."""


def trim(error: BaseException) -> None:
    """Cut the frames of the package out of the traceback of an error.

    A cause or context that the package raised itself is dropped too.
    """
    if not getattr(error, "of_users", False) or any(wanted() for wanted in WANTS_ALL):
        return
    error.full_traceback = _whole(error)  # type: ignore[attr-defined]
    error.__traceback__ = _of_users(error.__traceback__)
    origin = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if origin is None:
        return
    if _of_users(origin.__traceback__) is None:
        error.__cause__ = None  # which hides the context too
    else:
        origin.__traceback__ = _of_users(origin.__traceback__)


def mark(error: BaseException) -> None:
    """Mark an error of any class that was raised in user code called by the package, for `trim`."""
    *_, last = _entries(error.__traceback__)
    if not is_ours(last.tb_frame):
        error.of_users = True  # type: ignore[attr-defined]


def is_ours(frame: FrameType) -> bool:
    """Return whether a frame executes a function of this package."""
    file = frame.f_code.co_filename
    # Generated methods of dataclasses have no file, but the module of their class.
    return file.startswith(PACKAGE) or (
        file == "<string>" and str(frame.f_globals.get("__name__")).startswith("tilewright.")
    )


def _whole(error: BaseException) -> TracebackType | None:
    """Return the traceback of an error with the frames that inner public functions cut out."""
    now = list(_entries(error.__traceback__))
    before = list(_entries(getattr(error, "full_traceback", None)))
    kept = sum(not is_ours(part.tb_frame) for part in before)
    return _joined([*now[: len(now) - kept], *before])


def _of_users(chain: TracebackType | None) -> TracebackType | None:
    """Return the traceback without the frames of the package."""
    return _joined([part for part in _entries(chain) if not is_ours(part.tb_frame)])


def _entries(chain: TracebackType | None) -> Iterator[TracebackType]:
    """Return the entries of a traceback, the outermost first."""
    while chain is not None:
        yield chain
        chain = chain.tb_next


def _joined(parts: list[TracebackType]) -> TracebackType | None:
    """Return a new traceback of these entries; the entries themselves do not change."""
    made: TracebackType | None = None
    for part in reversed(parts):
        made = TracebackType(made, part.tb_frame, part.tb_lasti, part.tb_lineno)
    return made
