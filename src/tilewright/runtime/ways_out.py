"""What to do about an error of the operating system, in a sentence that ends a message."""

from __future__ import annotations

import errno

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
    """Whether something has run out that there may be more of later."""
    return problem.errno in _SHORTAGES


def way_out(problem: OSError) -> str:
    """What a user can do about it.

    Example:
        >>> way_out(OSError(errno.ENOSPC, "No space left on device"))
        'the disk is full: make room, or set TMPDIR to a folder that has some'
    """
    return _SHORTAGES.get(problem.errno or 0, _FOLDER)
