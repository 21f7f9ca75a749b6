"""Trust in files that the library keeps: only this user and root may have written them.

A library from the cache runs with all rights of the process. So no other user may be able to write its
directory, or replace a directory or symbolic link on the path to it.

Tables, journals, records and lock files follow the same rule. `open_own` opens them without following a link,
and checks the open file: it must be an ordinary file of this user or root that nobody else may write. No file
is truncated before this check.

Write permission for a group counts as for other users, unless the group is the user's private group. Systems
with private groups often have umask 002, which gives files mode 664.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock

from tilewright.errors import TilewrightError

if sys.platform != "win32":
    import grp
    import pwd

_MOST_LINKS = 40


class UntrustedError(TilewrightError, PermissionError):
    """A file or directory that another user may have written, or that is not the library's; says why."""

    def __init__(self, path: str | Path, reason: str) -> None:
        super().__init__(f"{path} is not used: {reason}")


def distrust(directory: Path, sticky: bool = False) -> str | None:
    """Return why code in a directory cannot be trusted; None if only the user and root can have put it there.

    Missing directories are trusted, because this process will make them; so are systems without file owners.

    Args:
        directory: an absolute path.
        sticky: whether others may add files, if they cannot replace ours; `open_own` rejects theirs.
    """
    if not hasattr(os, "geteuid"):
        return None
    for place, state, last in _way(directory, _MOST_LINKS):
        if state is None:
            return f"{place} is a circular symbolic link"
        what = "the symbolic link " if stat.S_ISLNK(state.st_mode) else ""
        if not owned(state):
            return f"{what}{place} belongs to another user (uid {state.st_uid})"
        is_sticky = state.st_mode & stat.S_ISVTX  # others cannot replace our files in it
        if not what and _others_write(state) and ((last and not sticky) or not is_sticky):
            return f"{place} may be written by other users (mode {stat.S_IMODE(state.st_mode):o})"
    return None


def owned(state: os.stat_result) -> bool:
    """Return whether a file or directory belongs to this user or to root."""
    return not hasattr(os, "geteuid") or state.st_uid in (0, os.geteuid())


def private(state: os.stat_result) -> bool:
    """Return whether only this user and root may write a file or directory."""
    return owned(state) and (not hasattr(os, "geteuid") or not _others_write(state))


def check_directory(directory: Path) -> None:
    """Check that no other user can replace files in a directory.

    Raises:
        UntrustedError: another user can.
    """
    if (reason := distrust(directory.absolute(), sticky=True)) is not None:
        raise UntrustedError(directory, f"{reason}; nearest: a directory that nobody else may write")


def open_own(path: str | Path, flags: int) -> int:
    """Open a file that the library keeps, and return the descriptor.

    Args:
        path: the file.
        flags: as for `os.open`, without `os.O_TRUNC`; a new file gets mode 644.

    Raises:
        UntrustedError: it is a link or no ordinary file, another user may have written it, or it has several
            names and is opened for writing.
        OSError: it cannot be opened.
    """
    # O_NONBLOCK: do not wait for the other end of a pipe.
    safe = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))
    try:
        descriptor = os.open(path, flags | safe, 0o644)
    except OSError:
        if os.path.islink(path):
            raise UntrustedError(path, "it is a symbolic link; nearest: the file itself") from None
        raise
    try:
        _check_own(path, os.fstat(descriptor), written=flags & (os.O_WRONLY | os.O_RDWR) != 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_own(path: str | Path, most_bytes: int = -1) -> tuple[bytes, os.stat_result]:
    """Return the contents and the state of a file that the library keeps.

    Args:
        path: the file.
        most_bytes: most bytes to read; -1: all.

    Raises:
        UntrustedError: as for `open_own`.
        OSError: it cannot be read.
    """
    with open(open_own(path, os.O_RDONLY), "rb") as file:
        return file.read(most_bytes), os.fstat(file.fileno())


def write_own(path: str | Path, data: bytes, *, is_safe: bool = True) -> None:
    """Write a file, whole or not at all; replace a link.

    Args:
        path: the file.
        data: its contents.
        is_safe: whether that also holds if the machine stops; then the disk is waited for.

    Raises:
        OSError: the directory cannot be written.
    """
    temporary = f"{path}.{os.getpid()}-{os.urandom(6).hex()}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o644)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if is_safe:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


@contextlib.contextmanager
def lock_own(path: str | Path, seconds: float = -1, poll_seconds: float = 0.05) -> Iterator[None]:
    """Hold a lock between processes; the lock file is new, or empty and ours.

    Args:
        path: the lock file.
        seconds: time to wait for the lock; -1: for ever.
        poll_seconds: time between attempts.

    Raises:
        UntrustedError: another kind of file has that name, and taking the lock might truncate it.
        OSError: the file cannot be locked, or not in time.
    """
    with contextlib.suppress(FileNotFoundError):
        state = os.lstat(path)
        _check_own(path, state, written=True)
        if state.st_size:
            raise UntrustedError(path, "it is not empty, so it is no lock file; nearest: another name")
    # The constructor takes `poll_interval` only in recent versions of filelock.
    with FileLock(path, timeout=seconds, mode=0o644).acquire(poll_interval=poll_seconds):
        yield


def _check_own(path: str | Path, state: os.stat_result, *, written: bool) -> None:
    if stat.S_ISLNK(state.st_mode):
        reason = "it is a symbolic link"
    elif not stat.S_ISREG(state.st_mode):
        reason = "it is no ordinary file"
    elif not owned(state):
        reason = f"it belongs to another user (uid {state.st_uid})"
    elif not private(state):
        reason = f"other users may write it (mode {stat.S_IMODE(state.st_mode):o}); nearest: chmod go-w"
    elif written and state.st_nlink > 1:
        reason = f"it has {state.st_nlink} hard links"
    else:
        return
    raise UntrustedError(path, reason)


def is_own_directory(directory: Path) -> bool:
    """Return whether a path is a directory, no link, that only this user and root may write.

    Raises:
        OSError: its state cannot be read.
    """
    state = os.lstat(directory)
    return stat.S_ISDIR(state.st_mode) and private(state)


def make_directories(directory: Path, mode: int = 0o755) -> None:
    """Make a directory and its parents; other users may not write in new ones, whatever the umask."""
    for place in (*reversed(directory.parents), directory):
        with contextlib.suppress(FileExistsError):
            if not place.is_dir():
                os.mkdir(place, mode if place == directory else 0o755)


def _way(path: Path, links: int) -> Iterator[tuple[Path, os.stat_result | None, bool]]:
    """Return every directory and link on the way to a path, its state, and whether it is the last.

    The state is None if there are too many links.
    """
    place = Path(path.anchor)
    yield place, os.lstat(place), False
    parts = path.parts[1:]
    for at, part in enumerate(parts):
        place = place.parent if part == ".." else place / part  # no links: they end the loop
        try:
            state = os.lstat(place)
        except OSError:  # missing, or hidden from us
            return
        last = at == len(parts) - 1
        yield place, state, last
        if stat.S_ISLNK(state.st_mode):
            if not links:
                yield place, None, last
                return
            yield from _way(Path(place.parent / os.readlink(place), *parts[at + 1 :]), links - 1)
            return


def _others_write(state: os.stat_result) -> bool:
    """Return whether the mode of a file or directory lets other users than its owner write it."""
    by_group = bool(state.st_mode & stat.S_IWGRP) and not _is_alone(state.st_gid)
    return by_group or bool(state.st_mode & stat.S_IWOTH)


def _is_alone(group: int) -> bool:
    """Return whether a group is the user's primary group, has the user's name, and no other members.

    False if the system does not list the user, as in many containers.
    """
    try:
        found, user = grp.getgrgid(group), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    is_own = user.pw_gid == group and found.gr_name == user.pw_name
    if not is_own or not set(found.gr_mem) <= {user.pw_name}:
        return False
    return all(other.pw_uid == user.pw_uid for other in pwd.getpwall() if other.pw_gid == group)
