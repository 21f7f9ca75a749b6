"""What every verb shares: lines of steps, a spinner for those who wait, and errors without tracebacks."""

from __future__ import annotations

import difflib
import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import ParamSpec

import typer

from tilewright.errors import HazardError, TilewrightError, WrongResultError

WRONG = 1
"""Exit status of a result that is not what it should be."""

BAD_INPUT = 2
"""Exit status of a request that cannot be served."""

INTERRUPTED = 130

_MEANT = {"gpu": "cuda", "nvidia": "cuda", "host": "cpu"}

Parameters = ParamSpec("Parameters")


class UsageError(TilewrightError, ValueError):
    """A command that asks for something that cannot be; says what to ask instead."""


def choose(what: str, given: str, known: Sequence[str]) -> None:
    """Check that one of several words was given.

    Raises:
        UsageError: another was; lists the words, and the nearest if one is near.
    """
    if given not in known:
        close = [_MEANT[given]] if given in _MEANT else difflib.get_close_matches(given, known, 1)
        nearest = f"nearest: {close[0]}; " if close else ""
        raise UsageError(f"unknown {what} {given!r}; {nearest}choose one of {', '.join(known)}")


def reports(verb: Callable[Parameters, None]) -> Callable[Parameters, None]:
    """Make a verb say what went wrong in a paragraph, and exit with 1 (wrong result) or 2 (bad request)."""

    @functools.wraps(verb)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        try:
            verb(*args, **kwargs)
            sys.stdout.flush()
        except (WrongResultError, HazardError) as error:
            raise _stop(str(error), WRONG) from None
        except TilewrightError as error:
            raise _stop(str(error), BAD_INPUT) from None
        except MemoryError as error:
            raise _stop(f"not enough memory: {error or 'the matrices are too large'}", BAD_INPUT) from None
        except BrokenPipeError:
            # Whoever read the output has closed it; what is still buffered has nowhere to go.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(BAD_INPUT) from None
        except KeyboardInterrupt:
            raise _stop("interrupted", INTERRUPTED) from None

    return run


def _stop(message: str, status: int) -> typer.Exit:
    typer.echo(f"tilewright: {message}", err=True)
    return typer.Exit(status)


def say(step: str, text: str) -> None:
    """One step and what came of it."""
    typer.echo(f"{step:<9} {text}")
    sys.stdout.flush()


@contextmanager
def working(what: str) -> Iterator[None]:
    """Show that something goes on, on a terminal; it leaves no trace."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    # Seldom enough not to disturb what is timed.
    with Console(stderr=True).status(what, refresh_per_second=4):
        yield


def duration(seconds: float) -> str:
    """A time with the unit that suits it.

    Example:
        >>> duration(0.0000042), duration(0.0123), duration(3.21)
        ('4.2 us', '12.3 ms', '3.21 s')
    """
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} us"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def size(count: float) -> str:
    """Bytes with the unit that suits them.

    Example:
        >>> size(512), size(3 * 2**20)
        ('512 B', '3.0 MiB')
    """
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while count >= 1024 and len(units) > 1:
        count /= 1024
        units.pop(0)
    return f"{count:.0f} B" if units[0] == "B" else f"{count:.1f} {units[0]}"
