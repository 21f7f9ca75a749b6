"""The tuner's files: a table that is always whole, and a journal of every outcome.

Each outcome is on disk before the next measurement, so that a kill loses none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tilewright.errors import shown
from tilewright.runtime import tables
from tilewright.runtime.tables import MOST_BYTES
from tilewright.runtime.trust import lock_own, make_directories, open_own, read_own
from tilewright.schedule.tables import (
    MeasuredSchedule,
    OtherVersionError,
    ScheduleTable,
    TableError,
    Version,
    checked,
)


@dataclass(frozen=True)
class Outcome:
    """The outcome of one candidate of one problem.

    Args:
        problem: the problem's class and extents, as text.
        schedule: the schedule of the candidate, as text.
        us: its median time; 0 if it was not timed.
        speed: its speed relative to the untuned choice, measured in turns.
        against: the reason why it was not timed or must not win, or "".
    """

    problem: str
    schedule: str
    us: float = 0.0
    speed: float = 0.0
    against: str = ""


OUTCOME = {"problem": str, "schedule": str, "us": float, "speed": float, "against": str}
"""The fields of an outcome in JSON."""


class Journal:
    """A file of lines of JSON: its version, then outcomes and winners in their order.

    Args:
        path: the file; it is made with the first line.
        version: the version of its measurements.

    Raises:
        OtherVersionError: the file is of another version, or of another machine.
        TableError: the file is no journal.
        UntrustedError: another user may have written the file.

    Example:
        >>> import tempfile
        >>> version = Version("format", "rules", "sm_90a", "a GPU", 132)
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     Journal(Path(directory, "a.journal"), version).add(Outcome("p", "s", 10.0, 1.2))
        ...     again = Journal(Path(directory, "a.journal"), version)
        >>> again.outcomes("p")["s"].speed, again.outcomes("q")
        (1.2, {})
    """

    def __init__(self, path: Path, version: Version) -> None:
        self.path, self.version = path, version
        self._outcomes: dict[tuple[str, str], Outcome] = {}
        self.entries: dict[tuple[str, Any], MeasuredSchedule] = {}
        try:
            data, _ = read_own(self.path, MOST_BYTES + 1)
        except FileNotFoundError:
            return
        if not data:
            return
        if len(data) > MOST_BYTES:
            raise TableError(f"journal {self.path}: damaged: more than {MOST_BYTES} bytes")
        whole = data[: data.rfind(b"\n") + 1]
        first, *rest = whole.splitlines() or [b""]
        found = Version.of(self._object(first, 1).get("version"), f"journal {self.path}, line 1")
        if differs := self.version.against(found):
            raise OtherVersionError(f"journal {self.path}: of another version: {differs}")
        for number, text in enumerate(rest, 2):
            where, line = f"journal {path}, line {number}", self._object(text, number)
            if "outcome" in line:
                self._remember(Outcome(**checked(line["outcome"], OUTCOME, where)))
            elif "entry" in line:
                self._won(MeasuredSchedule.of(line["entry"], where))
            else:
                raise TableError(f"{where}: damaged: neither an outcome nor an entry, but {shown(line)}")
        if whole != data:  # a kill cut off the last line
            with open(open_own(self.path, os.O_RDWR), "rb+") as file:
                file.truncate(len(whole))

    def outcomes(self, problem: str) -> dict[str, Outcome]:
        """Return the last outcome of each candidate of a problem, by the text of its schedule."""
        return {schedule: found for (of, schedule), found in self._outcomes.items() if of == problem}

    def add(self, outcome: Outcome) -> None:
        """Write an outcome to disk before this returns."""
        self._write({"outcome": asdict(outcome)})
        self._remember(outcome)

    def win(self, entry: MeasuredSchedule) -> None:
        """Write the winner of a problem to disk before this returns."""
        self._write({"entry": entry.record()})
        self._won(entry)

    def _remember(self, outcome: Outcome) -> None:
        self._outcomes[outcome.problem, outcome.schedule] = outcome

    def _won(self, entry: MeasuredSchedule) -> None:
        self.entries[entry.kind, entry.extents] = entry

    def _object(self, line: bytes, number: int) -> dict[str, Any]:
        """Parse a line, which must be an object of JSON."""
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise TableError(f"journal {self.path}, line {number}: damaged: {error}") from None
        if not isinstance(found, dict):
            raise TableError(f"journal {self.path}, line {number}: damaged: no object, but {shown(found)}")
        return found

    def _write(self, line: dict[str, Any]) -> None:
        make_directories(self.path.parent)
        with open(open_own(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND), "ab") as file:
            if file.tell() == 0:
                file.write(_text({"version": asdict(self.version)}))
            file.write(_text(line))
            file.flush()
            os.fsync(file.fileno())


def _text(line: dict[str, Any]) -> bytes:
    return f"{json.dumps(line)}\n".encode()


def set_aside(path: Path) -> Path | None:
    """Rename a file, so that it is kept for inspection; returns its new path, or None without a file."""
    if not os.path.lexists(path):
        return None
    number = next(n for n in range(1, 10**6) if not os.path.lexists(f"{path}.aside-{n}"))
    return path.rename(path.with_name(f"{path.name}.aside-{number}"))


# ---------------------------------------------------------------- table and journal of one tuning run


Say = Callable[[str], object]


class TuningFiles:
    """A table and its journal, opened for new entries.

    A damaged file is set aside under another name, and made anew. The journal also holds the entries of a
    damaged table.

    Args:
        path: the file of the table; the journal's name ends with ``.journal``.
        version: the version of new measurements.
        renew: whether existing files are set aside in any case.
        say: receives the name of each file that was set aside, and the reason.

    Raises:
        OtherVersionError: a file is of another version, or of another machine.
        UntrustedError: another user may have written a file or its directory; nothing is changed.
        OSError: a file cannot be read, or cannot be renamed.
    """

    def __init__(self, path: Path, version: Version, *, renew: bool, say: Say) -> None:
        self.path, self.version = path, version
        log = path.with_suffix(".journal")
        tables.prepare_directory(path)

        def put_aside(file: Path, why: str) -> None:
            if (moved := set_aside(file)) is not None:
                say(f"{file} is now {moved.name}: {why}")

        for file in (path, log) if renew else ():
            put_aside(file, "as was asked for")
        damaged = ""
        try:
            try:
                tables.load(path, version)
            except OtherVersionError:
                raise
            except TableError as error:
                damaged = str(error)
            except FileNotFoundError:
                pass
            try:
                self.journal = Journal(log, version)
            except OtherVersionError:
                raise
            except TableError as error:
                put_aside(log, str(error))
                self.journal = Journal(log, version)
        except OtherVersionError as error:
            raise OtherVersionError(
                f"{error}; nearest: --renew, which sets it aside and measures anew"
            ) from None
        if damaged:
            put_aside(path, damaged)
        if self.journal.entries:
            self.add(self.journal.entries.values())

    def add(self, entries: Iterable[MeasuredSchedule]) -> None:
        """Add entries to the table, and keep entries that other processes added meanwhile."""
        with lock_own(self.path.with_name(f"{self.path.name}.lock")):
            try:
                table = tables.load(self.path, self.version)
            except FileNotFoundError:
                table = ScheduleTable(self.version)
            tables.save(table.joined(entries), self.path)
        tables.forget()
