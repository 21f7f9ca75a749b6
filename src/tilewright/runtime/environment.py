"""The process around us: its environment variables, which only this file reads, and its forks.

| variable | meaning | default |
|---|---|---|
| `TILEWRIGHT_CACHE_DIR` | where compiled artifacts are kept | the user's cache directory |
| `TILEWRIGHT_CACHE_BYTES` | the most bytes that the cache keeps | `1GiB` |
| `TILEWRIGHT_THREADS` | threads of the CPU target | the processors this process may use |
| `TILEWRIGHT_TRACEBACK` | `full` shows the frames of the package in tracebacks of its errors | `short` |
| `ROCM_PATH` | where ROCm is installed; its compiler and runtime come before others | `/opt/rocm` |

An empty variable counts as unset.
"""

from __future__ import annotations

import os
import re
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from tilewright import tracebacks
from tilewright.errors import TilewrightError, shown

CACHE_DIR = "TILEWRIGHT_CACHE_DIR"
CACHE_BYTES = "TILEWRIGHT_CACHE_BYTES"
THREADS = "TILEWRIGHT_THREADS"
TRACEBACK = "TILEWRIGHT_TRACEBACK"
ROCM_PATH = "ROCM_PATH"

ROCM = Path("/opt/rocm")
"""Where ROCm is installed as a rule."""

_DEFAULT_CACHE_BYTES = 1 << 30
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_BYTES = re.compile(r"0*(\d{1,20})\s*([KMGT]?)(?:iB|B)?", re.IGNORECASE | re.ASCII)
_MOST_THREADS = 4096


class SettingError(TilewrightError, ValueError):
    """An environment variable has a value that means nothing; names it, the value and a legal example."""

    def __init__(self, variable: str, value: str, problem: str, example: str) -> None:
        self.variable = variable
        self.value = value
        super().__init__(f"{variable}={shown(value)}: {problem}; a legal example: {variable}={example}")


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment says.

    Args:
        cache_dir: an absolute directory for compiled artifacts; None for the user's cache directory.
        cache_bytes: the size that the artifacts may take on disk, in bytes.
        threads: how many threads the CPU target runs.
        full_tracebacks: whether errors show the frames of the package too.
    """

    cache_dir: Path | None
    cache_bytes: int
    threads: int
    full_tracebacks: bool = False


def settings(variables: Mapping[str, str] = os.environ) -> Settings:
    """What the environment says now; nothing is remembered between calls.

    Args:
        variables: where to look; the process's environment unless given.

    Raises:
        SettingError: a variable has a value that means nothing.

    Example:
        >>> settings({"TILEWRIGHT_CACHE_BYTES": "256MiB", "TILEWRIGHT_THREADS": "8"})
        Settings(cache_dir=None, cache_bytes=268435456, threads=8, full_tracebacks=False)
    """
    return Settings(
        _cache_dir(variables), _cache_bytes(variables), _threads(variables), wants_full_tracebacks(variables)
    )


def wants_full_tracebacks(variables: Mapping[str, str] = os.environ) -> bool:
    """Whether errors show the frames of the package too.

    Raises:
        SettingError: the variable has a value that means nothing.
    """
    text = variables.get(TRACEBACK, "").strip()
    if text not in ("", "short", "full"):
        raise SettingError(TRACEBACK, text, "tracebacks are short or full", "full")
    return text == "full"


def rocm_folder(variables: Mapping[str, str] = os.environ) -> Path:
    """Where ROCm is installed, if it is.

    Args:
        variables: where to look; the process's environment unless given.

    Raises:
        SettingError: the system takes the variable's value for no path.

    Example:
        >>> rocm_folder({}).as_posix(), rocm_folder({"ROCM_PATH": "/usr/rocm-7"}).as_posix()
        ('/opt/rocm', '/usr/rocm-7')
    """
    text = variables.get(ROCM_PATH, "").strip()
    path = Path(text or ROCM)
    if text:
        _exists(ROCM_PATH, text, path, str(ROCM))
    return path


def usable_processors() -> int:
    """How many processors this process may use: its affinity mask where the system has one."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cache_dir(variables: Mapping[str, str]) -> Path | None:
    text = variables.get(CACHE_DIR, "").strip()
    if not text:
        return None
    try:
        path = Path(text).expanduser().absolute()
    except (OSError, RuntimeError) as problem:
        raise SettingError(CACHE_DIR, text, f"no such home directory ({problem})", "~/kernels") from None
    if _exists(CACHE_DIR, text, path, "~/kernels") and not path.is_dir():
        raise SettingError(CACHE_DIR, text, "this is a file, not a directory", "~/kernels")
    return path


def _exists(variable: str, text: str, path: Path, example: str) -> bool:
    """Whether something has the path that a variable says.

    Raises:
        SettingError: the system takes it for no path.
    """
    try:
        return path.exists()
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        raise SettingError(variable, text, f"no path that this system can use ({reason})", example) from None


def _cache_bytes(variables: Mapping[str, str]) -> int:
    text = variables.get(CACHE_BYTES, "").strip()
    if not text:
        return _DEFAULT_CACHE_BYTES
    found = _BYTES.fullmatch(text)
    if found is None:
        raise SettingError(CACHE_BYTES, text, "not a number of bytes, of at most 20 digits", "512MiB")
    return int(found[1]) * _UNITS[found[2].upper()]


def _threads(variables: Mapping[str, str]) -> int:
    text = variables.get(THREADS, "").strip()
    if not text:
        return usable_processors()
    if not (text.isascii() and text.isdigit()):
        raise SettingError(THREADS, text, "not a whole number of threads", "8")
    digits = text.lstrip("0")
    if len(digits) > len(str(_MOST_THREADS)) or not 1 <= int(digits or "0") <= _MOST_THREADS:
        raise SettingError(THREADS, text, f"threads are 1 to {_MOST_THREADS}", "8")
    return int(digits)


def _shows_all() -> bool:
    """What errors ask while they are shown.  A wrong value is refused where settings are read, not here."""
    try:
        return wants_full_tracebacks()
    except SettingError:
        return True


tracebacks.WANTS_ALL[:] = [_shows_all]


# ---------------------------------------------------------------- forks
#
# A child begins with a copy of its parent's memory and one thread, the one that forked. A lock that another
# thread held stays locked for ever, the workers of the parent's pool do not exist, and the CUDA driver
# refuses to work. An object with such state has a method ``renew``, which runs first in the child.


class Renewed(Protocol):
    """Something that begins anew in a forked child."""

    def renew(self) -> None:
        """Replace what only the parent may use; no other thread exists meanwhile."""


Owner = TypeVar("Owner", bound=Renewed)

_owners: weakref.WeakSet[Renewed] = weakref.WeakSet()


def renew_after_fork(owner: Owner) -> Owner:
    """Have ``owner.renew()`` called in every forked child while something else keeps the owner alive."""
    _owners.add(owner)
    return owner


def _renew_all() -> None:
    for owner in list(_owners):
        owner.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
