"""The tuner's files: a table that is always whole, and a journal of every outcome.

Each outcome is on disk before the next measurement, so that a kill loses none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
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
    """What came of one candidate of one problem.

    Args:
        problem: the problem's class and extents, as text.
        schedule: the candidate's, as text.
        us: its median time; 0 if it was not timed.
        speed: how many times as fast as the untuned choice it was, in turns with it.
        against: why it was not timed, or must not win; empty if nothing speaks against it.
    """

    problem: str
    schedule: str
    us: float = 0.0
    speed: float = 0.0
    against: str = ""

    @staticmethod
    def of(record: Any, where: str) -> Outcome:
        """An outcome from its record.

        Args:
            record: what `asdict` gave, after a way through JSON.
            where: the record's place, as errors name it.

        Raises:
            TableError: it is none.
        """
        return Outcome(**checked(record, OUTCOME, where))


OUTCOME = {"problem": str, "schedule": str, "us": float, "speed": float, "against": str}
"""The fields of an outcome in JSON."""


class Journal:
    """A file of lines of JSON: its version, then outcomes and winners in the order in which they came.

    Args:
        path: the file; it is made with the first line.
        version: what all of it depends on.

    Raises:
        OtherVersionError: what is there was measured by another version, or on another machine.
        TableError: what is there is no journal.
        UntrustedError: another user may have written what is there.

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
        for number, line in enumerate(self._lines(), 2):
            where = f"journal {path}, line {number}"
            if "outcome" in line:
                self._remember(Outcome.of(line["outcome"], where))
            elif "entry" in line:
                self._won(MeasuredSchedule.of(line["entry"], where))
            else:
                raise TableError(f"{where}: damaged: neither an outcome nor an entry, but {shown(line)}")

    def outcomes(self, problem: str) -> dict[str, Outcome]:
        """What came of the candidates of a problem so far, by the text of their schedules; the last word."""
        return {schedule: found for (of, schedule), found in self._outcomes.items() if of == problem}

    def add(self, outcome: Outcome) -> None:
        """Keep an outcome; it is on disk when this returns."""
        self._write({"outcome": asdict(outcome)})
        self._remember(outcome)

    def win(self, entry: MeasuredSchedule) -> None:
        """Keep the winner of a problem; likewise."""
        self._write({"entry": entry.record()})
        self._won(entry)

    def _remember(self, outcome: Outcome) -> None:
        self._outcomes[outcome.problem, outcome.schedule] = outcome

    def _won(self, entry: MeasuredSchedule) -> None:
        self.entries[entry.kind, entry.extents] = entry

    def _lines(self) -> Iterator[dict[str, Any]]:
        """What is there; a last line that a kill cut off is removed, once all lines before it are read."""
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
        for number, line in enumerate(rest, 2):
            yield self._object(line, number)
        if whole != data:
            with open(open_own(self.path, os.O_RDWR), "rb+") as file:
                file.truncate(len(whole))

    def _object(self, line: bytes, number: int) -> dict[str, Any]:
        """A line of JSON."""
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
    """Give a file another name, under which it can be looked at; the new path, or None if there was none."""
    if not os.path.lexists(path):
        return None
    number = next(n for n in range(1, 10**6) if not os.path.lexists(f"{path}.aside-{n}"))
    return path.rename(path.with_name(f"{path.name}.aside-{number}"))


# ---------------------------------------------------------------- table and journal of one tuning run


Say = Callable[[str], object]


class Kept:
    """A table and its journal, opened to be added to.

    What is damaged is set aside, under another name, and made anew; the entries of a damaged table stand in
    the journal too.

    Args:
        path: of the table; the journal's ends with ``.journal``.
        version: of what is measured now.
        renew: whether what is there is set aside in any case.
        say: is told what was set aside, and why.

    Raises:
        OtherVersionError: what is there was measured by another version or on another machine.
        UntrustedError: another user may have written a file or its directory; nothing is changed.
        OSError: a file cannot be read, or cannot be given another name.
    """

    def __init__(self, path: Path, version: Version, *, renew: bool, say: Say) -> None:
        self.path, self.version, self._say = path, version, say
        log = path.with_suffix(".journal")
        tables.prepare_directory(path)
        for file in (path, log) if renew else ():
            self._aside(file, "as was asked for")
        try:
            damaged = self._is_damaged()
            self.journal = self._journal(log)
        except OtherVersionError as error:
            raise OtherVersionError(
                f"{error}; nearest: --renew, which sets it aside and measures anew"
            ) from None
        if damaged:
            self._aside(path, damaged)
        if self.journal.entries:
            self.add(self.journal.entries.values())

    def add(self, entries: Iterable[MeasuredSchedule]) -> None:
        """Put entries into the table, beside what other processes have put there meanwhile."""
        with lock_own(self.path.with_name(f"{self.path.name}.lock")):
            try:
                table = tables.load(self.path, self.version)
            except FileNotFoundError:
                table = ScheduleTable(self.version)
            tables.save(table.joined(entries), self.path)
        tables.forget()

    def _is_damaged(self) -> str:
        """Why the table that is there is none; empty if it is one, or nothing is there."""
        try:
            tables.load(self.path, self.version)
        except OtherVersionError:
            raise
        except TableError as error:
            return str(error)
        except FileNotFoundError:
            return ""
        return ""

    def _journal(self, path: Path) -> Journal:
        try:
            return Journal(path, self.version)
        except OtherVersionError:
            raise
        except TableError as error:
            self._aside(path, str(error))
            return Journal(path, self.version)

    def _aside(self, path: Path, why: str) -> None:
        if (moved := set_aside(path)) is not None:
            self._say(f"{path} is now {moved.name}: {why}")
