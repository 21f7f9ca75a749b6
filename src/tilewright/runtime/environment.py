"""Environment variables, which only this file reads, and hooks for forked children.

| variable | meaning | default |
|---|---|---|
| `TILEWRIGHT_CACHE_DIR` | directory of compiled artifacts | the user's cache directory |
| `TILEWRIGHT_CACHE_BYTES` | most bytes that the cache keeps | `1GiB` |
| `TILEWRIGHT_THREADS` | threads of the CPU target | the processors this process may use |
| `TILEWRIGHT_TRACEBACK` | `full` shows the frames of the package in tracebacks of its errors | `short` |
| `TILEWRIGHT_LOG` | a line for each call: JSON in `*.jsonl`, else text; `-`: standard error | none |
| `ROCM_PATH` | folder of ROCm, whose compiler and runtime come before others | `/opt/rocm` |

An empty variable counts as unset.
"""

from __future__ import annotations

import gc
import os
import re
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import Generic, Protocol, TypeVar

from tilewright.calls import WANTS_ALL
from tilewright.errors import TilewrightError, shown

CACHE_DIR = "TILEWRIGHT_CACHE_DIR"
CACHE_BYTES = "TILEWRIGHT_CACHE_BYTES"
THREADS = "TILEWRIGHT_THREADS"
TRACEBACK = "TILEWRIGHT_TRACEBACK"
LOG = "TILEWRIGHT_LOG"
ROCM_PATH = "ROCM_PATH"

ROCM = Path("/opt/rocm")
"""The usual folder of ROCm."""

_DEFAULT_CACHE_BYTES = 1 << 30
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_BYTES = re.compile(r"0*(\d{1,20})\s*([KMGT]?)(?:iB|B)?", re.IGNORECASE | re.ASCII)
_MOST_THREADS = 4096


class SettingError(TilewrightError, ValueError):
    """An illegal value of an environment variable; names the variable, the value and a legal example."""

    def __init__(self, variable: str, value: str, problem: str, example: str) -> None:
        self.variable = variable
        self.value = value
        super().__init__(f"{variable}={shown(value)}: {problem}; a legal example: {variable}={example}")


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings in the environment.

    Args:
        cache_dir: an absolute directory for compiled artifacts; None for the user's cache directory.
        cache_bytes: the most bytes that artifacts take on disk.
        threads: threads of the CPU target.
        full_tracebacks: whether errors show the frames of the package.
    """

    cache_dir: Path | None
    cache_bytes: int
    threads: int
    full_tracebacks: bool = False


def settings(variables: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings; nothing is remembered between calls.

    Args:
        variables: the variables; default: the process's environment.

    Raises:
        SettingError: a variable has an illegal value.

    Example:
        >>> settings({"TILEWRIGHT_CACHE_BYTES": "256MiB", "TILEWRIGHT_THREADS": "8"})
        Settings(cache_dir=None, cache_bytes=268435456, threads=8, full_tracebacks=False)
    """

    def text_of(variable: str) -> str:
        return variables.get(variable, "").strip()

    folder: Path | None = None
    if text := text_of(CACHE_DIR):
        try:
            folder = Path(text).expanduser().absolute()
        except (OSError, RuntimeError) as problem:
            raise SettingError(CACHE_DIR, text, f"no such home directory ({problem})", "~/kernels") from None
        if _exists(CACHE_DIR, text, folder, "~/kernels") and not folder.is_dir():
            raise SettingError(CACHE_DIR, text, "this is a file, not a directory", "~/kernels")

    size = _DEFAULT_CACHE_BYTES
    if text := text_of(CACHE_BYTES):
        found = _BYTES.fullmatch(text)
        if found is None:
            raise SettingError(CACHE_BYTES, text, "not a number of bytes, of at most 20 digits", "512MiB")
        size = int(found[1]) * _UNITS[found[2].upper()]

    if text := text_of(THREADS):
        if not (text.isascii() and text.isdigit()):
            raise SettingError(THREADS, text, "not a whole number of threads", "8")
        digits = text.lstrip("0")
        if len(digits) > len(str(_MOST_THREADS)) or not 1 <= int(digits or "0") <= _MOST_THREADS:
            raise SettingError(THREADS, text, f"threads are 1 to {_MOST_THREADS}", "8")
        threads = int(digits)
    else:
        threads = usable_processors()
    return Settings(folder, size, threads, wants_full_tracebacks(variables))


def wants_full_tracebacks(variables: Mapping[str, str] = os.environ) -> bool:
    """Return whether errors show the frames of the package.

    Raises:
        SettingError: the variable has an illegal value.
    """
    text = variables.get(TRACEBACK, "").strip()
    if text not in ("", "short", "full"):
        raise SettingError(TRACEBACK, text, "tracebacks are short or full", "full")
    return text == "full"


def log_file(variables: Mapping[str, str] = os.environ) -> str:
    """Return the file for a log of calls; empty if no log is wanted.

    Args:
        variables: the variables; default: the process's environment.

    Example:
        >>> log_file({"TILEWRIGHT_LOG": " calls.jsonl"}), log_file({})
        ('calls.jsonl', '')
    """
    return variables.get(LOG, "").strip()


def rocm_folder(variables: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of ROCm, which need not exist.

    Args:
        variables: the variables; default: the process's environment.

    Raises:
        SettingError: the variable's value is no path.

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
    """Return how many processors this process may use, from its affinity mask if the system has one."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _exists(variable: str, text: str, path: Path, example: str) -> bool:
    """Return whether the path in a variable exists.

    Raises:
        SettingError: the system cannot use it as a path.
    """
    try:
        return path.exists()
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        raise SettingError(variable, text, f"no path that this system can use ({reason})", example) from None


def _shows_all() -> bool:
    """Return whether tracebacks show all frames; an illegal value raises only where settings are read."""
    try:
        return wants_full_tracebacks()
    except SettingError:
        return True


WANTS_ALL[:] = [_shows_all]


# ---------------------------------------------------------------- forks
#
# A child has a copy of its parent's memory, and only the thread that forked. Locks that other threads held
# stay locked for ever, the workers of the parent's pool are missing, and the CUDA driver refuses to work.
# Objects with state like this have a method ``renew``, which runs first in the child.


class Renewed(Protocol):
    """An object that replaces its state in a forked child."""

    def renew(self) -> None:
        """Replace state that only the parent may use; no other thread exists meanwhile."""


Owner = TypeVar("Owner", bound=Renewed)

_owners: weakref.WeakSet[Renewed] = weakref.WeakSet()


def renew_after_fork(owner: Owner) -> Owner:
    """Call ``owner.renew()`` in every forked child, as long as the owner lives."""
    _owners.add(owner)
    return owner


Held = TypeVar("Held")


class OfProcess(Generic[Held]):
    """State that a forked child begins anew.

    Args:
        make: makes the state of a process.
    """

    def __init__(self, make: Callable[[], Held]) -> None:
        self._make = make
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Begin anew in a forked child."""
        self.held = self._make()


class CollectorPause:
    """Pauses Python's garbage collector for a block: making a kernel fills memory with objects that stay.

    The collector would go through all of them again and again, and find nothing.  Blocks may be nested, and
    run in several threads; the collector goes on when the last one ends, if it was on when the first began.

    Example:
        >>> import gc
        >>> with CollectorPause() as pause, pause:
        ...     gc.isenabled()
        False
        >>> gc.isenabled()
        True
    """

    def __init__(self) -> None:
        self._inside, self._was_on = 0, False
        self._lock = RLock()  # a signal handler may make a kernel, too
        renew_after_fork(self)

    def renew(self) -> None:
        """Let the collector go on in a forked child, in which the other threads' blocks never end."""
        self._lock = RLock()
        if self._inside and self._was_on:
            gc.enable()
        self._inside = 0

    def __enter__(self) -> CollectorPause:
        with self._lock:
            if not self._inside:
                self._was_on = gc.isenabled()
                gc.disable()
            self._inside += 1
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside = max(self._inside - 1, 0)  # 0 in a child that was forked within the block
            if not self._inside and self._was_on:
                gc.enable()


COLLECTOR_PAUSE = CollectorPause()
"""The pause of this process."""


def _renew_all() -> None:
    for owner in list(_owners):
        owner.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
