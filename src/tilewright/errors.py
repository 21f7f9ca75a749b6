"""The errors and source locations.

Every error that a user can cause derives from `TilewrightError`. It names the fault, the value and, if there
is one, the nearest legal choice. Errors about a line of a kernel have a `Location` and show the line with a
caret.
"""

from __future__ import annotations

import difflib
import errno
import linecache
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from types import TracebackType
from typing import Any

LONGEST_VALUE = 120
"""Most characters of a value in a message."""


def shown(value: object) -> str:
    """Return a value as messages show it: its `repr`, shortened; its type if `repr` fails.

    Example:
        >>> shown("f16"), shown(10**5000), len(shown(list(range(10**4))))
        ("'f16'", 'an integer of 16610 bits', 120)
    """
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    try:
        text = " ".join(repr(value).split())
    except Exception:  # noqa: BLE001 a user's `__repr__` may raise anything
        text = f"<{type(value).__name__}>"
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 1] + "…"


CLOSE = 0.7
"""Least similarity of a name to suggest it; ``f64`` and ``f16`` have 0.67."""

LOOSELY_CLOSE = 0.4
"""Likewise, for long names with several parts, such as those of MMA atoms."""


def nearest_name(name: object, names: Iterable[str], least: float = CLOSE) -> str:
    """Return the known name that is most similar to a name, in any case; empty if none is similar.

    Args:
        name: what was given.
        names: the known names.
        least: the least similarity of the two, from 0 to 1.
    """
    folded = {one.casefold(): one for one in names}
    close = difflib.get_close_matches(name.casefold(), folded, 1, least) if isinstance(name, str) else []
    return folded[close[0]] if close else ""


def close_to(name: object, names: Iterable[str], least: float = CLOSE) -> str:
    """Return ``"; did you mean ...?"`` with the `nearest_name`, or ``""`` if no name is near.

    Example:
        >>> close_to("cdua", ["cpu", "cuda"]), close_to("x", ["cpu", "cuda"])
        ("; did you mean 'cuda'?", '')
        >>> close_to("Gelu", ["relu", "gelu"]), close_to("f64", ["f32", "f16"])
        ("; did you mean 'gelu'?", '')
    """
    near = nearest_name(name, names, least)
    return f"; did you mean {near!r}?" if near else ""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a call stack: the file, the function, and the span of source it was executing.

    Columns count bytes of UTF-8 from 0, as in Python's code objects; messages count characters.
    """

    file: str
    line: int
    column: int
    end_column: int
    function: str

    def __str__(self) -> str:
        return f"{PurePath(self.file).name}:{self.line}:{self._characters(self.column) + 1}"

    def _characters(self, column: int) -> int:
        """Convert a column in bytes to a column in characters."""
        text = linecache.getline(self.file, self.line)
        return column if text.isascii() else len(text.encode()[:column].decode(errors="ignore"))

    def excerpt(self) -> str:
        """The source line with a caret under the span; empty when the source is not available."""
        text = linecache.getline(self.file, self.line).rstrip("\n")
        if not text.strip():
            return ""
        indent = len(text) - len(text.lstrip())
        start, end = max(self._characters(self.column), indent), self._characters(self.end_column)
        stop = end if end > start else len(text)
        shown = text[indent:]
        return f"    {shown}\n    {' ' * (start - indent)}{'^' * max(1, min(stop, len(text)) - start)}"


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of an operation that a schedule made from a value of a dataflow kernel.

    Args:
        node: the value of the kernel's graph.
        frames: where the author wrote the value, the innermost frame first; empty if unknown.
        field: the field of the schedule that determines the operation, e.g. ``"staging"``.
        value: the value of that field, as the schedule spells it.
    """

    node: Any = field(compare=False)
    frames: tuple[Frame, ...]
    field: str
    value: str

    def __str__(self) -> str:
        return f"{self.field}={self.value}"


@dataclass(frozen=True, slots=True)
class Location:
    """The place where an operation was written: the innermost frame first, then its callers up to the kernel.

    Args:
        frames: the frames of the code that wrote the operation; the library's for a schedule's operation.
        origin: the origin of a schedule's operation; messages then show the origin.
    """

    frames: tuple[Frame, ...]
    origin: Origin | None = None

    @property
    def shown(self) -> tuple[Frame, ...]:
        """The frames in the author's code."""
        return (self.origin.frames if self.origin is not None else ()) or self.frames

    @property
    def frame(self) -> Frame:
        """The innermost frame in the author's code."""
        return self.shown[0]

    def __str__(self) -> str:
        made_by = "" if self.origin is None else f" by {self.origin}"
        return " < ".join(str(frame) for frame in self.shown) + made_by

    def excerpt(self) -> str:
        """The line and caret of every frame, innermost first; then the field of the schedule."""
        parts = []
        for depth, frame in enumerate(self.shown):
            parts.append(f"  {'at' if depth == 0 else 'called from'} {frame} in {frame.function}")
            if text := frame.excerpt():
                parts.append(text)
        if self.origin is not None:
            parts.append(f"  as the schedule makes it by {self.origin}")
        return "\n".join(parts)


class TilewrightError(Exception):
    """Base of all errors raised by tilewright.

    Its traceback has only the user's frames; ``full_traceback`` has all frames.

    Args:
        message: the fault, with the value.
        nearest: the nearest legal choice, which ends the message; None: it names no choice.
    """

    of_users = True
    full_traceback: TracebackType | None = None
    origin: Origin | None = None
    """The value of a dataflow kernel that was being expanded when it was raised."""

    def __init__(self, message: str, nearest: object = None) -> None:
        super().__init__(message if nearest is None else f"{message}; nearest legal choice: {nearest}")


class SignatureError(TilewrightError, TypeError):
    """A call with arguments that a function does not have, or a kernel with illegal parameters."""


class LayoutError(TilewrightError, ValueError):
    """A layout or view operation that has no legal result, or whose legality cannot be decided."""


class DTypeError(TilewrightError, TypeError):
    """An unknown dtype, or a combination of dtypes that an operation does not support."""


class LocatedError(TilewrightError):
    """An error about a line of a kernel; shows the line with a caret."""

    def __init__(self, message: str, location: Location | None = None, nearest: object = None) -> None:
        self.message = message if nearest is None else f"{message}; nearest legal choice: {nearest}"
        self.location = location
        super().__init__(self.message if location is None else f"{self.message}\n{location.excerpt()}")


class TraceError(LocatedError):
    """A kernel's Python code did something that tracing cannot record."""


class ParseError(TilewrightError, ValueError):
    """A text is not a printed kernel."""


class MissingRuleError(LocatedError):
    """A target has no rule for an operation; names both."""


class UnknownCountError(LocatedError):
    """The sizes of a launch do not determine how often an operation is executed."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule of the legality report.

    Args:
        rule: short name of the rule, e.g. ``"vector width"``.
        message: what is wrong, in one sentence with the offending value.
        nearest: the nearest legal choice, as the author would write it; empty if there is none.
        location: the author's line.
    """

    rule: str
    message: str
    nearest: str = ""
    location: Location | None = None

    def __str__(self) -> str:
        lines = [f"{self.rule}: {self.message}"]
        if self.nearest:
            lines.append(f"  nearest legal choice: {self.nearest}")
        if self.location is not None:
            lines.append(self.location.excerpt())
        return "\n".join(lines)


class LegalityError(TilewrightError):
    """A kernel breaks rules of the language or of its target; lists every violation at once."""

    def __init__(self, kernel: str, target: str, violations: Sequence[Violation]) -> None:
        self.kernel = kernel
        self.target = target
        self.violations = tuple(violations)
        count = len(self.violations)
        head = f"kernel {kernel} is not legal for {target}: {count} violation{'s' * (count != 1)}"
        super().__init__("\n\n".join([head, *(str(v) for v in self.violations)]))


class ScheduleError(LegalityError):
    """A schedule is not legal for a kernel, its arrays and a machine; lists every reason at once."""

    def __init__(self, kernel: str, machine: str, schedule: str, reasons: Sequence[Violation]) -> None:
        super().__init__(kernel, machine, reasons)
        self.schedule = schedule
        count = len(self.violations)
        head = (
            f"kernel {kernel} on {machine}: the schedule is refused, for {count} reason{'s' * (count != 1)}"
        )
        self.args = ("\n\n".join([f"{head}\n  {schedule}", *(str(v) for v in self.violations)]),)


class LaunchError(TilewrightError, ValueError):
    """Arguments that do not fit a kernel: dtype, rank, extent, alignment, device."""


class SlowWarning(UserWarning):
    """A result is computed correctly, but far slower than the hardware allows; warned once for each cause."""


class ToolchainError(TilewrightError):
    """No compiler or driver library for a target on this machine; says what to install."""


class CompileError(TilewrightError):
    """A compiler refused generated text; carries the compiler's log and the text."""

    def __init__(self, message: str, log: str, source: str) -> None:
        self.log = log
        self.source = source
        super().__init__(f"{message}\n{log}")


class HazardError(TilewrightError):
    """The reference target found hazards (races, out-of-bounds or unwritten accesses, deadlock)."""


class WrongResultError(TilewrightError):
    """A computed array differs from its reference by more than the bound."""


MORE_ROOM = "make room, or set TMPDIR to a folder that has some"

_SHORTAGES = {
    errno.ENOSPC: f"the disk is full: {MORE_ROOM}",
    errno.EDQUOT: f"the disk quota is used up: {MORE_ROOM}",
    errno.EMFILE: "this process has no file descriptors left: close some files, or allow more (`ulimit -n`)",
    errno.ENFILE: "the system has no file descriptors left: end some processes",
    errno.EAGAIN: "the limit of processes is reached: end some, or allow more (`ulimit -u`)",
    errno.ENOMEM: "there is no memory left: free some, or allow more (`ulimit -v`)",
}
_FOLDER = "nearest: set TMPDIR to a folder that this process may write to and load code from"


def is_shortage(problem: OSError) -> bool:
    """Return whether the error is a shortage of a resource, which a later call may not meet."""
    return problem.errno in _SHORTAGES


def way_out(problem: OSError) -> str:
    """Return advice to the user for an error of the system.

    Example:
        >>> way_out(OSError(errno.ENOSPC, "No space left on device"))
        'the disk is full: make room, or set TMPDIR to a folder that has some'
    """
    return _SHORTAGES.get(problem.errno or 0, _FOLDER)
