"""Compiled artifacts on disk, addressed by what they were made from.

A per-key lock file lets one process build while the others wait; where locks do not work, an artifact may be
built more than once, and is whole all the same (see `entries`).
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import os
import shutil
import tempfile
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_path

from tilewright.runtime import entries
from tilewright.runtime.entries import Entry
from tilewright.runtime.environment import CACHE_DIR, settings
from tilewright.runtime.forks import renew_after_fork

__all__ = ["Cache", "Entry", "Stats", "key", "package_hash", "source_hash"]

_LOADED_NS = time.time_ns()
_LITTER_SECONDS = 3600.0

_warned: set[Path] = set()
_shared: dict[tuple[Path, int], Cache] = {}


def key(parts: Mapping[str, str] | Sequence[str]) -> str:
    """The address of what is made from `parts`: a sha256 in hexadecimal.

    Every part counts with its length, so two different splits of one text never meet; the parts of a mapping
    count with their names, in any order.

    Args:
        parts: everything that the artifact depends on: the kernel's canonical text, `package_hash()`, the
            toolchain, the target's features.

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


@functools.cache
def package_hash() -> str:
    """The sha256 of this package's own source files: what a generated text depends on besides the kernel.

    Computed once: the code that runs does not change when a file does.  A file edited after this process
    loaded it makes the hash unlike any other, so that what the old code makes is never found under the new
    code's key.
    """
    return source_hash(Path(__file__).parents[1], _LOADED_NS)


def source_hash(root: Path, loaded_ns: int) -> str:
    """The sha256 of the files under `root`, by relative path; of this process alone if one changed since.

    Args:
        root: a directory; files that Python or an editor left there do not count.
        loaded_ns: when the files were loaded, in nanoseconds since the epoch.
    """
    digest, now = hashlib.sha256(), time.time_ns()
    for path, name in sorted(_sources(str(root), ""), key=lambda pair: pair[1]):
        with open(path, "rb", buffering=0) as file:
            data = file.read()
            changed = os.fstat(file.fileno()).st_mtime_ns
        digest.update(b"%d:%b%d:" % (len(name.encode()), name.encode(), len(data)))
        digest.update(data)
        if loaded_ns < changed <= now:
            digest.update(os.urandom(16))
    return digest.hexdigest()


def _sources(directory: str, prefix: str) -> Iterator[tuple[str, str]]:
    with os.scandir(directory) as found:
        for item in found:
            if item.name.startswith((".", "__pycache__")) or item.name.endswith(("~", ".pyc")):
                continue
            if item.is_dir():
                yield from _sources(item.path, f"{prefix}{item.name}/")
            else:
                yield item.path, prefix + item.name


@dataclass(frozen=True, slots=True)
class Stats:
    """What a cache holds, and what this process had from it.

    Args:
        root: its directory.
        entries: artifacts in it.
        bytes: their size, with their records.
        capacity_bytes: the size above which the least recently used ones go.
        hits: artifacts that were there when this process asked.
        builds: artifacts that this process built.
    """

    root: Path
    entries: int
    bytes: int
    capacity_bytes: int
    hits: int
    builds: int


class Cache:
    """A directory of artifacts, shared by any number of processes.

    Args:
        root: the directory; made when first needed.
        capacity_bytes: the size above which the least recently used artifacts are removed.
        grace_seconds: an artifact that any process used so recently is never removed; neither is one whose
            `Entry` is still alive in this process.

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
        self._alive: weakref.WeakSet[Entry] = weakref.WeakSet()
        self._held_bytes: int | None = None
        self._added_bytes = 0
        self._hits = 0
        self._builds = 0
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """In a forked child: the lock is free, also if another thread of the parent held it."""
        # A signal handler may use the cache while its thread counts.
        self._counting = threading.RLock()

    @classmethod
    def default(cls) -> Cache:
        """The cache that the environment asks for, one object in this process for equal settings."""
        found = settings()
        root = found.cache_dir or user_cache_path("tilewright", appauthor=False)
        return _shared.setdefault((root, found.cache_bytes), cls(root, found.cache_bytes))

    def get_or_build(
        self, key: str, suffix: str, build: Callable[[], bytes], meta: Mapping[str, object]
    ) -> Entry:
        """The artifact of `key`, built if it is not there or damaged.

        Args:
            key: the address, from `key()`.
            suffix: how the file's name ends, e.g. ``".cubin"``.
            build: makes the artifact; called at most once, and by one process at a time for a key.
            meta: what to remember about it, in JSON's types; written after `build` ran, which may add to it.

        Returns:
            The entry; its path stays while the entry is alive in this process.

        Raises:
            ValueError: `key` or `suffix` cannot be part of a file's name.
        """
        name = entries.file_name(key, suffix)
        entry = self._find(name)
        if entry is None:
            with entries.locked(entries.place(self._home, name)):
                entry = self._find(name)
                if entry is None:
                    entry = self._keep(name, build(), meta)
        with self._counting:
            self._hits += entry.hit
            self._alive.add(entry)
            if not entry.hit:
                self._builds += 1
                self._make_room(len(entry.data))
        return entry

    def clear(self) -> int:
        """Remove every artifact; returns how many there were. Nothing else under the root is touched."""
        found, litter = entries.scan(self._home)
        for entry in found:
            entries.remove(entry.artifact)
        _sweep(litter)
        self._held_bytes = None
        return len(found)

    def stats(self) -> Stats:
        """How much the cache holds, and what this process had from it."""
        found, _ = entries.scan(self._home)
        size = sum(entry.size for entry in found)
        return Stats(self._home, len(found), size, self.capacity_bytes, self._hits, self._builds)

    @property
    def _home(self) -> Path:
        """Where this process writes: the root, or its own directory once the root refused."""
        if self._private is not None and self._private[1] == os.getpid():
            return self._private[0]
        return self.root

    def _find(self, name: str) -> Entry | None:
        entry = entries.load(entries.place(self.root, name))
        if entry is None and self._home is not self.root:
            entry = entries.load(entries.place(self._home, name))
        return entry

    def _keep(self, name: str, data: bytes, meta: Mapping[str, object]) -> Entry:
        try:
            return entries.publish(entries.place(self._home, name), data, meta)
        except OSError as problem:
            if self._home is not self.root:
                raise
            return entries.publish(entries.place(self._move_out(problem), name), data, meta)

    def _move_out(self, problem: OSError) -> Path:
        home, process = Path(tempfile.mkdtemp(prefix="tilewright-")), os.getpid()
        self._private, self._held_bytes = (home, process), None
        # A forked child ends through here too, and must leave its parent's directory alone.
        atexit.register(lambda: shutil.rmtree(home, ignore_errors=True) if os.getpid() == process else None)
        if self.root not in _warned:
            _warned.add(self.root)
            message = (
                f"cannot write compiled kernels to {self.root} ({problem.strerror or problem}); this process "
                f"keeps its own until it ends; set {CACHE_DIR} to a directory that can be written"
            )
            warnings.warn(message, RuntimeWarning, stacklevel=4)
        return home

    def _make_room(self, added: int) -> None:
        """Remove what was used longest ago, once the directory holds more than it may."""
        self._added_bytes += added
        if self._held_bytes is None or self._added_bytes * 16 > self.capacity_bytes:
            # Other processes add too: count again.
            self._added_bytes = 0
            self._held_bytes = sum(entry.size for entry in entries.scan(self._home)[0])
        else:
            self._held_bytes += added
        if self._held_bytes <= self.capacity_bytes:
            return
        found, litter = entries.scan(self._home)
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


def _sweep(litter: list[tuple[Path, float]]) -> None:
    """Remove what ended processes left; what is young may belong to one that runs."""
    for path, changed in litter:
        if changed < time.time() - _LITTER_SECONDS:
            entries.unlink(path)
