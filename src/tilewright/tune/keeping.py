"""The tuner's files: a table that is whole at every moment, and the journal beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from tilewright.runtime import tables
from tilewright.runtime.trust import lock_own
from tilewright.schedule.tables import Entry, OtherVersionError, Table, TableError, Version
from tilewright.tune.journal import Journal, set_aside

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

    def add(self, entries: Iterable[Entry]) -> None:
        """Put entries into the table, beside what other processes have put there meanwhile."""
        with lock_own(self.path.with_name(f"{self.path.name}.lock")):
            try:
                table = tables.load(self.path, self.version)
            except FileNotFoundError:
                table = Table(self.version)
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
