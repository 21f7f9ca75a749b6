"""Writing the files that a user names: whole or not at all, and through links and devices."""

from __future__ import annotations

import contextlib
import io
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from tilewright.errors import TilewrightError

ANYBODY = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


class OutputError(TilewrightError, OSError):
    """A file cannot be written; says which and why."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"cannot write {path}: {reason}")


def check_output(path: Path) -> None:
    """Check that a file can be written, before the work that makes it; nothing is opened.

    Raises:
        OutputError: it is a directory, a disk, a socket or read-only, or its folder is missing or read-only.
    """
    with _told(path):
        found = _found(path)
        if found is not None:
            if stat.S_ISDIR(found.st_mode):
                raise OutputError(path, "it is a directory")
            if stat.S_ISBLK(found.st_mode) or stat.S_ISSOCK(found.st_mode):
                raise OutputError(path, f"it is a {'disk' if stat.S_ISBLK(found.st_mode) else 'socket'}")
            # The superuser could write a read-only file, but giving its name here does not mean that.
            if not found.st_mode & ANYBODY or not os.access(path, os.W_OK):
                raise OutputError(path, "it is read-only")
            return
        folder = Path(os.path.realpath(path)).parent
        if not folder.is_dir():
            raise OutputError(path, f"there is no directory {path.parent}")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise OutputError(path, f"{path.parent} may not be written")


@contextlib.contextmanager
def output(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing; it gets its name when it is complete.

    An ordinary file, or the target of a symbolic link, is replaced in one step and keeps its mode.  A device,
    a pipe, a file with several names or of another user, and the standard output stay what they are, and are
    written at the end.

    Raises:
        OutputError: it cannot be written.  An ordinary file then stays as it was.
    """
    check_output(path)
    with _told(path):
        found = _found(path)
        place = Path(os.path.realpath(path))
        if found is None or (
            # Nobody notices a new file in its place.
            stat.S_ISREG(found.st_mode)
            and found.st_nlink == 1
            and (not hasattr(os, "geteuid") or found.st_uid == os.geteuid())
            and not is_standard_output(place)
            and os.access(place.parent, os.W_OK | os.X_OK)
        ):
            with _replacing(place, found) as file:
                yield file
            return
        content = io.BytesIO()
        yield content
        if is_standard_output(path):  # opening the file again would overwrite its beginning
            sys.stdout.flush()
            handle = os.dup(1)
        else:
            whole = os.O_TRUNC if stat.S_ISREG(found.st_mode) else 0
            handle = os.open(path, os.O_WRONLY | getattr(os, "O_NOCTTY", 0) | whole)
        with os.fdopen(handle, "wb") as through:
            through.write(content.getbuffer())


def is_standard_output(path: Path) -> bool:
    """Return whether a path is the file or pipe that the standard output goes to."""
    try:
        found = os.stat(path)
        # A terminal or /dev/null keeps no content that could be mixed up.
        return not stat.S_ISCHR(found.st_mode) and os.path.samestat(found, os.fstat(1))
    except OSError:
        return False


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    """Turn an error of the system into an error about the path."""
    try:
        yield
    except OutputError:
        raise
    except OSError as error:
        raise OutputError(path, error.strerror or str(error)) from None


def _found(path: Path) -> os.stat_result | None:
    """Return the state of a path after symbolic links; None if it does not exist."""
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


@contextlib.contextmanager
def _replacing(place: Path, found: os.stat_result | None) -> Iterator[BinaryIO]:
    """Write a new file with a random name, and rename it to the place."""
    # The system applies the umask, which can only be read by changing it for all threads.
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    while True:
        made = place.parent / f".tilewright-{os.urandom(8).hex()}"
        with contextlib.suppress(FileExistsError):
            handle = os.open(made, flags, 0o666 if found is None else 0o600)
            break
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        if found is not None:
            made.chmod(stat.S_IMODE(found.st_mode))
        made.replace(place)
    except BaseException:
        made.unlink(missing_ok=True)
        raise
