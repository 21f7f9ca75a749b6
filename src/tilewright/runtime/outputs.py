"""Files that a user names to be written: whole or not at all, and through what is there."""

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
    """Find out before the work whether its result can be written; nothing is opened.

    Raises:
        OutputError: it is a directory, read-only or a disk, or its folder is missing or may not be written.
    """
    with _told(path):
        found = _found(path)
        if found is not None:
            if stat.S_ISDIR(found.st_mode):
                raise OutputError(path, "it is a directory")
            if stat.S_ISBLK(found.st_mode) or stat.S_ISSOCK(found.st_mode):
                raise OutputError(path, f"it is a {'disk' if stat.S_ISBLK(found.st_mode) else 'socket'}")
            # The superuser may write a read-only file; nobody means to by giving its name here.
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
    """A file to write, whose bytes get the name when all of them are there.

    An ordinary file is replaced in one step and keeps its mode; behind a symbolic link, the file that it
    means.  Anything else that may be written is written through, at the end, and stays what it is: a device,
    a pipe, a file with several names or of another user, the standard output itself.

    Raises:
        OutputError: it cannot be written; what was there stays as it was, if it can be replaced.
    """
    check_output(path)
    with _told(path):
        found = _found(path)
        place = Path(os.path.realpath(path))
        if found is None or _replaceable(place, found):
            with _replacing(place, found) as file:
                yield file
            return
        content = io.BytesIO()
        yield content
        if is_standard_output(path):  # opened once more, a file would be written from its beginning
            sys.stdout.flush()
            handle = os.dup(1)
        else:
            whole = os.O_TRUNC if stat.S_ISREG(found.st_mode) else 0
            handle = os.open(path, os.O_WRONLY | getattr(os, "O_NOCTTY", 0) | whole)
        with os.fdopen(handle, "wb") as through:
            through.write(content.getbuffer())


def is_standard_output(path: Path) -> bool:
    """Whether what is written to a path goes where the standard output goes: into a file or a pipe."""
    try:
        found = os.stat(path)
        # A device, such as a terminal or /dev/null, keeps nothing that could be mixed up.
        return not stat.S_ISCHR(found.st_mode) and os.path.samestat(found, os.fstat(1))
    except OSError:
        return False


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    """Say what the system refuses as an error about the path."""
    try:
        yield
    except OutputError:
        raise
    except OSError as error:
        raise OutputError(path, error.strerror or str(error)) from None


def _found(path: Path) -> os.stat_result | None:
    """What is there, behind symbolic links; None if nothing."""
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


def _replaceable(place: Path, found: os.stat_result) -> bool:
    """Whether a new file may take the place of what is there without anybody noticing another difference."""
    own = found.st_uid == os.geteuid() if hasattr(os, "geteuid") else True
    alone = stat.S_ISREG(found.st_mode) and found.st_nlink == 1 and own
    return alone and not is_standard_output(place) and os.access(place.parent, os.W_OK | os.X_OK)


@contextlib.contextmanager
def _replacing(place: Path, found: os.stat_result | None) -> Iterator[BinaryIO]:
    # The system gives a new file its mode.  The umask can only be read by changing it for all threads.
    handle, made = _new_file(place.parent, 0o666 if found is None else 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        if found is not None:
            made.chmod(stat.S_IMODE(found.st_mode))
        made.replace(place)
    except BaseException:
        made.unlink(missing_ok=True)
        raise


def _new_file(folder: Path, mode: int) -> tuple[int, Path]:
    """Create a file of a random name; its mode is the one given without the bits of the umask."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    while True:
        path = folder / f".tilewright-{os.urandom(8).hex()}"
        with contextlib.suppress(FileExistsError):
            return os.open(path, flags, mode), path
