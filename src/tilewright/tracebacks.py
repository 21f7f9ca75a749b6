"""Tracebacks of errors: which frames are the user's, and how those of the package are left out.

An error that a user can mend is about the user's line.  What the package did to find it is of no use to most
readers, so its frames are cut out where an error leaves a public function.  Everything is shown on request:
see `TILEWRIGHT_TRACEBACK` in `tilewright.runtime.environment`, or look at ``error.full_traceback``.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, TracebackType

PACKAGE = str(Path(__file__).parent) + os.sep

WANTS_ALL: list[Callable[[], bool]] = []
"""Says whether the user asked for whole tracebacks; set by the one file that reads the environment."""


def is_ours(frame: FrameType) -> bool:
    """Whether a frame executes a function of this package."""
    file = frame.f_code.co_filename
    # What dataclasses generate has no file, but the module of its class.
    return file.startswith(PACKAGE) or (
        file == "<string>" and str(frame.f_globals.get("__name__")).startswith("tilewright.")
    )


def entries(chain: TracebackType | None) -> Iterator[TracebackType]:
    """The entries of a traceback, the outermost first."""
    while chain is not None:
        yield chain
        chain = chain.tb_next


def joined(parts: list[TracebackType]) -> TracebackType | None:
    """A new traceback of these entries; those given are not changed."""
    made: TracebackType | None = None
    for part in reversed(parts):
        made = TracebackType(made, part.tb_frame, part.tb_lasti, part.tb_lineno)
    return made


def of_users(chain: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames of the package."""
    return joined([part for part in entries(chain) if not is_ours(part.tb_frame)])


def whole(error: BaseException) -> TracebackType | None:
    """The traceback of an error with all that was cut out of it so far."""
    now = list(entries(error.__traceback__))
    before = list(entries(getattr(error, "full_traceback", None)))
    # Of what an inner function cut, the first entry still stands in the traceback: its own.
    seam = next((at for at, part in enumerate(now) if before and part.tb_frame is before[0].tb_frame), None)
    return joined(now if seam is None else [*now[:seam], *before])


def trim(error: BaseException) -> None:
    """Cut the frames of the package out of an error's traceback and of those that it came from.

    What was raised by the package alone on the way to the error tells a user nothing, and is left out.
    """
    if any(wanted() for wanted in WANTS_ALL):
        return
    error.full_traceback = whole(error)  # type: ignore[attr-defined]
    error.__traceback__ = of_users(error.__traceback__)
    origin = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if origin is None:
        return
    if of_users(origin.__traceback__) is None:
        error.__cause__ = None  # which hides the context too
    else:
        origin.__traceback__ = of_users(origin.__traceback__)


def rendered(error: BaseException) -> list[str]:
    """The lines that show an error: the user's frames, and what it says.

    Example:
        >>> rendered(ValueError("no"))
        ['ValueError: no']
    """
    chain = error.__traceback__
    shown = chain if any(wanted() for wanted in WANTS_ALL) else of_users(chain)
    return "".join(traceback.format_exception(type(error), error, shown)).splitlines()


def install(kind: type[BaseException]) -> None:
    """Show errors of a class that nobody caught without the frames of the package; others as before."""
    before = sys.excepthook

    def show(cls: type[BaseException], error: BaseException, chain: TracebackType | None) -> None:
        if isinstance(error, kind) and not any(wanted() for wanted in WANTS_ALL):
            chain = of_users(chain)
            error.__traceback__ = chain
        before(cls, error, chain)

    sys.excepthook = show
