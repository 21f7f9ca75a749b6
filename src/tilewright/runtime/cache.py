"""A cache of compiled artifacts on disk, addressed by everything that they depend on.

A lock file per key lets one process build while the others wait. Without working locks, several processes may
build an artifact, but every reader still finds a whole one (see `entries`).

`kept` also keeps Python objects that depend only on their inputs and on the source of this library.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import io
import os
import pickle
import shutil
import sys
import tempfile
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import numpy as np
from platformdirs import user_cache_path

from tilewright.namespaces import BEGUN
from tilewright.runtime import entries
from tilewright.runtime.entries import CacheEntry
from tilewright.runtime.environment import CACHE_DIR, renew_after_fork, settings
from tilewright.runtime.recent import Recent
from tilewright.runtime.trust import distrust

__all__ = ["Cache", "CacheEntry", "Stats", "kept", "key", "library"]

Made = TypeVar("Made")

_LITTER_SECONDS = 3600.0
_MOST_UNWRITTEN = 64

_warned: set[Path] = set()
_shared: dict[tuple[Path, int], Cache] = {}


def key(parts: Mapping[str, str] | Sequence[str]) -> str:
    """Return the address of an artifact that depends on `parts`: a sha256 in hexadecimal.

    The hash includes the length of every part, so two splits of one text differ. For a mapping it includes
    the names, in sorted order.

    Args:
        parts: everything that the artifact depends on: the generated text, the toolchain with its options,
            the target and its features.

    Raises:
        TypeError: `parts` is one string.

    Example:
        >>> key(["ab", "c"]) == key(["a", "bc"])
        False
        >>> key({"text": "kernel f", "target": "cpu"}) == key({"target": "cpu", "text": "kernel f"})
        True
    """
    if isinstance(parts, str):
        raise TypeError("key() takes several parts, not one string; write key([text])")
    if isinstance(parts, Mapping):
        kind, pieces = "named", [piece for pair in sorted(parts.items()) for piece in pair]
    else:
        kind, pieces = "ordered", list(parts)
    digest = hashlib.sha256(f"{kind} {len(pieces)} ".encode())
    for piece in pieces:
        encoded = piece.encode("utf-8", "surrogatepass")
        digest.update(b"%d:" % len(encoded))
        digest.update(encoded)
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Stats:
    """Figures of a cache.

    Args:
        root: its directory.
        entries: number of artifacts.
        bytes: size of artifacts and records.
        capacity_bytes: the size above which the least recently used artifacts are removed.
        hits: artifacts that this process found.
        builds: artifacts that this process built.
    """

    root: Path
    entries: int
    bytes: int
    capacity_bytes: int
    hits: int
    builds: int


class Cache:
    """A directory of artifacts, shared by any number of processes of one user.

    Artifacts are code that will run, so a directory that other users may write is not used.  This process
    then keeps its artifacts in a directory of its own, as it does if it cannot write the cache.

    Args:
        root: the directory; made when first needed.
        capacity_bytes: the size above which the least recently used artifacts are removed.
        grace_seconds: artifacts used within this time, by any process, are never removed; neither are those
            with a live `CacheEntry` in this process.

    Example:
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     cache = Cache(Path(directory))
        ...     first = cache.get_or_build(key(["text"]), ".bin", lambda: b"machine code", {"registers": 40})
        ...     again = cache.get_or_build(key(["text"]), ".bin", lambda: b"machine code", {})
        >>> first.hit, again.hit, again.data, again.meta
        (False, True, b'machine code', {'registers': 40})
    """

    def __init__(self, root: Path, capacity_bytes: int = 1 << 30, grace_seconds: float = 600.0) -> None:
        self.root = root
        self.capacity_bytes = capacity_bytes
        self.grace_seconds = grace_seconds
        self._private: tuple[Path, int] | None = None
        self._unwritten: Recent[str, CacheEntry] = Recent(_MOST_UNWRITTEN)
        self._alive: weakref.WeakSet[CacheEntry] = weakref.WeakSet()
        self._held_bytes: int | None = None
        self._added_bytes = 0
        self._hits = 0
        self._builds = 0
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Replace the lock in a forked child: another thread of the parent may have held it."""
        # Reentrant, because a signal handler may use the cache.
        self._counting = threading.RLock()

    @classmethod
    def default(cls) -> Cache:
        """Return the cache that the environment asks for; one object per process and setting."""
        found = settings()
        asked = found.cache_dir or user_cache_path("tilewright", appauthor=False), found.cache_bytes
        return _shared.get(asked) or _shared.setdefault(asked, cls(*asked))

    def get_or_build(
        self,
        key: str,
        suffix: str,
        build: Callable[[], bytes],
        meta: Mapping[str, object],
        *,
        is_quick: bool = False,
    ) -> CacheEntry:
        """Return the artifact of `key`; build it if it is missing or damaged, or has other metadata.

        Args:
            key: the address, from `key()`.
            suffix: the ending of the file name, e.g. ``".cubin"``.
            build: makes the artifact; called at most once, and by one process at a time for a key.
            meta: metadata in JSON's types; written after `build` ran, which may change it.  The metadata of
                an artifact that is found must have the same names, with values of the same types.
            is_quick: whether building takes little longer than waiting for another process and for the disk.
                Several processes may then build the artifact, and a machine that stops may lose it.

        Returns:
            The entry; its file stays while the entry is alive in this process.

        Raises:
            ValueError: `key` or `suffix` cannot be part of a file name.
        """
        name = entries.file_name(key, suffix)
        home: Path | None = self._home
        if home is self.root and (reason := self.distrust()) is not None:
            try:
                home = self._move_out(reason)
            except OSError:
                self._warn(reason, "in memory")
                home = None
        entry = self._find(name, home, meta)
        if entry is None:
            if is_quick or home is None:
                entry = self._publish(home, name, build(), meta, is_safe=not is_quick)
            else:
                with entries.locked(entries.place(home, name)):
                    entry = self._find(name, home, meta)
                    entry = entry or self._publish(home, name, build(), meta, is_safe=True)
        with self._counting:
            self._hits += entry.hit
            self._alive.add(entry)
            if not entry.hit:
                self._builds += 1
                self._make_room(len(entry.data))
        return entry

    def clear(self) -> int:
        """Remove every artifact and return their number. Nothing else under the root is touched.

        Loaded code keeps working, in this and in other processes.
        """
        found, litter = self._scan()
        for entry in found:
            entries.remove(entry.artifact)
        _sweep(litter)
        self._held_bytes = None
        return len(found)

    def stats(self) -> Stats:
        """Return the figures of the cache."""
        found, _ = self._scan()
        size = sum(entry.size for entry in found)
        return Stats(self._home, len(found), size, self.capacity_bytes, self._hits, self._builds)

    def distrust(self) -> str | None:
        """Return why the root is not used; None if no other user can have put code there."""
        return distrust(self.root.absolute())

    @property
    def _home(self) -> Path:
        """The directory that this process writes: the root, or its own once the root was refused."""
        if self._private is not None and self._private[1] == os.getpid():
            return self._private[0]
        return self.root

    def _scan(self) -> tuple[list[entries.ListedEntry], list[tuple[Path, float]]]:
        """List the directory that this process writes; nothing of a root that it does not use."""
        unused = self._home is self.root and self.distrust() is not None
        return ([], []) if unused else entries.scan(self._home)

    def _find(self, name: str, home: Path | None, meta: Mapping[str, object]) -> CacheEntry | None:
        places = [] if home is None else [home]
        if home != self.root and self.distrust() is None:
            places = [self.root, *places]
        found = (entries.load(entries.place(place, name)) for place in places)
        fits = (entry for entry in found if entry is not None and _has_form(entry.meta, meta))
        return next(fits, None) or self._unwritten.get(name)

    def _publish(
        self, home: Path | None, name: str, data: bytes, meta: Mapping[str, object], *, is_safe: bool
    ) -> CacheEntry:
        """Write an entry to `home`, else to a private directory; keep it in memory if both fail."""
        problem: OSError | None = None
        while home is not None:
            try:
                return entries.publish(entries.place(home, name), data, meta, is_safe=is_safe)
            except OSError as raised:
                problem = problem or raised
                own, home = home != self.root, None
                if not own:
                    with contextlib.suppress(OSError):
                        home = self._move_out(str(raised.strerror or raised))
        entry = entries.unwritten(entries.place(self.root, name), data, meta)
        self._unwritten.keep(name, entry)
        if problem is not None:
            self._warn(str(problem.strerror or problem), "in memory")
        return entry

    def _move_out(self, reason: str) -> Path:
        home, process = Path(tempfile.mkdtemp(prefix="tilewright-")), os.getpid()
        self._private, self._held_bytes = (home, process), None
        # A forked child runs this too, and must leave its parent's directory alone.
        atexit.register(lambda: shutil.rmtree(home, ignore_errors=True) if os.getpid() == process else None)
        self._warn(reason, "until it ends")
        return home

    def _warn(self, reason: str, how: str) -> None:
        if self.root in _warned:
            return
        _warned.add(self.root)
        message = (
            f"cannot keep compiled kernels in {self.root} ({reason}); this process keeps its own {how}; set "
            f"{CACHE_DIR} to a directory that this user can write and nobody else"
        )
        # The stack level of the first caller outside the package.
        inside, level = str(Path(__file__).parents[1]), 1
        frame: FrameType | None = sys._getframe()
        while frame is not None and frame.f_code.co_filename.startswith(inside):
            frame, level = frame.f_back, level + 1
        warnings.warn(message, RuntimeWarning, stacklevel=level)

    def _make_room(self, added: int) -> None:
        """Remove the least recently used artifacts if the directory exceeds its capacity."""
        self._added_bytes += added
        if self._held_bytes is None or self._added_bytes * 16 > self.capacity_bytes:
            # Other processes add too: count again.
            self._added_bytes = 0
            self._held_bytes = sum(entry.size for entry in self._scan()[0])
        else:
            self._held_bytes += added
        if self._held_bytes <= self.capacity_bytes:
            return
        found, litter = self._scan()
        in_use = {entry.path.name for entry in self._alive}
        size = sum(entry.size for entry in found)
        for entry in sorted(found, key=lambda entry: entry.used):
            if size <= self.capacity_bytes or entry.used > time.time() - self.grace_seconds:
                break
            if entry.artifact.name not in in_use:
                entries.remove(entry.artifact)
                size -= entry.size
        _sweep(litter)
        self._held_bytes = size


def _has_form(found: object, wanted: object) -> bool:
    """Return whether metadata that was read has the names and types of the wanted metadata."""
    if isinstance(wanted, Mapping):
        return isinstance(found, Mapping) and all(
            name in found and _has_form(found[name], value) for name, value in wanted.items()
        )
    return type(found) is type(wanted)


def _sweep(litter: list[tuple[Path, float]]) -> None:
    """Remove files that ended processes left; young files may belong to a running one."""
    for path, changed in litter:
        if changed < time.time() - _LITTER_SECONDS:
            entries.unlink(path)


# ---------------------------------------------------------------- objects that only depend on the library

PACKAGE = Path(__file__).parents[1]
"""The folder of the library's source."""

SUFFIX = ".made"
"""File name ending of kept objects."""

PICKLED = ("tilewright", "numpy", "builtins", "collections", "functools", "types", "_codecs", "copyreg")
"""Packages whose classes a kept object may have."""

CLOCK_SECONDS = 2.0
"""Resolution of the coarsest clock of a file system."""


@cache
def library() -> str:
    """Return the hash of the source that this process runs; "" if that is not known."""
    return source_of(PACKAGE, BEGUN)


def source_of(folder: Path, begun: float) -> str:
    """Return a hash of a folder of Python source, of Python and of NumPy.

    Args:
        folder: the folder.
        begun: time when the process began to import it.

    Returns:
        The hash; "" if the folder has no source or cannot be read, or if a file changed since the process
        began, so that the process may run what the file had before.

    Example:
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     root, later = Path(directory), time.time() + 60
        ...     write = (root / "a.py").write_text
        ...     found = [write(text) and source_of(root, later) for text in ("1", "2", "1")]
        >>> found[0] == found[2] != found[1]
        True
    """
    found = []
    try:
        for path in sorted(folder.rglob("*.py")):
            with path.open("rb", buffering=0) as file:
                state = os.fstat(file.fileno())
                if max(state.st_mtime, state.st_ctime) > begun - CLOCK_SECONDS:
                    return ""
                found += [str(path), hashlib.sha256(file.read()).hexdigest()]
    except OSError:
        return ""
    return key([sys.version, np.__version__, *found]) if found else ""


class _ChangedError(Exception):
    """The source changed while an object was made."""


class _Unpickler(pickle.Unpickler):
    """Reads objects of the packages that the key knows; whether an entry is trusted is decided before."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a class.

        Raises:
            UnpicklingError: it is of another package, whose source is not part of the key.
        """
        if module.partition(".")[0] not in PICKLED:
            raise pickle.UnpicklingError(f"{module}.{name} is not of this library")
        return super().find_class(module, name)


def kept(parts: Sequence[str], make: Callable[[], Made], meta: Mapping[str, object]) -> Made:
    """Return what `make` returns, or what an earlier process made of the same parts with the same library.

    Args:
        parts: everything that the object depends on besides the source of the library.
        make: makes the object, which is never changed afterwards.
        meta: metadata in JSON's types, for people.

    Example:
        >>> kept(["6 x 7"], lambda: 6 * 7, {"what": "a product"})
        42
    """
    if not (source := library()):
        return make()
    made: list[Made] = []

    def build() -> bytes:
        made.append(make())
        # Modules that were imported since the source was hashed may be newer.
        states = (path.stat() for path in PACKAGE.rglob("*.py"))
        if any(max(state.st_mtime, state.st_ctime) > BEGUN - CLOCK_SECONDS for state in states):
            raise _ChangedError
        return pickle.dumps(made[0], pickle.HIGHEST_PROTOCOL)

    try:
        entry = Cache.default().get_or_build(key([source, *parts]), SUFFIX, build, meta, is_quick=True)
    except OSError:  # the compiler, which needs the cache too, says what is wrong
        return made[0] if made else make()
    except _ChangedError:
        return made[0]
    except (pickle.PicklingError, AttributeError, TypeError, RecursionError):
        if not made:  # the error is of `make`
            raise
        return made[0]
    if made:
        return made[0]
    try:
        found: Made = _Unpickler(io.BytesIO(entry.data)).load()
    except Exception:  # noqa: BLE001 a class may raise anything
        return make()
    return found
