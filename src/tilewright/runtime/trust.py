"""Who may have written a file that holds code: this user and root, and nobody else.

A library from the cache runs with all that the process may do.  So the directory that it lies in, and every
symbolic link and directory on the way there, must be such that no other user could have put it there.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

if sys.platform != "win32":
    import grp
    import pwd

_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_MOST_LINKS = 40


def distrust(directory: Path) -> str | None:
    """Why code in a directory cannot be trusted; None if nobody but the user and root can have put it there.

    What is missing is trusted, as this process will make it; systems without owners of files are too.

    Args:
        directory: an absolute path.
    """
    if not hasattr(os, "geteuid"):
        return None
    for place, state, last in _way(directory, _MOST_LINKS):
        if state is None:
            return f"{place} leads in a circle"
        what = "the symbolic link " if stat.S_ISLNK(state.st_mode) else ""
        if not owned(state):
            return f"{what}{place} belongs to another user (uid {state.st_uid})"
        if not what and state.st_mode & _OTHERS and (last or not _shared_safely(state)):
            return f"{place} may be written by other users (mode {stat.S_IMODE(state.st_mode):o})"
    return None


def owned(state: os.stat_result) -> bool:
    """Whether a file or directory belongs to this user or to root."""
    return not hasattr(os, "geteuid") or state.st_uid in (0, os.geteuid())


def private(state: os.stat_result) -> bool:
    """Whether nobody but this user and root may write a file or directory."""
    return owned(state) and (not hasattr(os, "geteuid") or not state.st_mode & _OTHERS)


def _way(path: Path, links: int) -> Iterator[tuple[Path, os.stat_result | None, bool]]:
    """Every directory and link on the way to a path, and whether it is the end; None if links never end."""
    place = Path(path.anchor)
    yield place, os.lstat(place), False
    parts = path.parts[1:]
    for at, part in enumerate(parts):
        place = place.parent if part == ".." else place / part  # it has no links, as those end the loop
        try:
            state = os.lstat(place)
        except OSError:  # not there yet, or not for us to see
            return
        last = at == len(parts) - 1
        yield place, state, last
        if stat.S_ISLNK(state.st_mode):
            if not links:
                yield place, None, last
                return
            beyond = Path(place.parent / os.readlink(place), *parts[at + 1 :])
            yield from _way(beyond, links - 1)
            return


def _shared_safely(state: os.stat_result) -> bool:
    """Whether others who may write a directory cannot exchange what is ours in it."""
    sticky = bool(state.st_mode & stat.S_ISVTX)
    return sticky or (not state.st_mode & stat.S_IWOTH and _is_alone(state.st_gid))


def _is_alone(group: int) -> bool:
    """Whether a group is the user's own, as many systems give everyone one, and has no other member."""
    try:
        found, user = grp.getgrgid(group), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    return user.pw_gid == group and found.gr_name == user.pw_name and set(found.gr_mem) <= {user.pw_name}
