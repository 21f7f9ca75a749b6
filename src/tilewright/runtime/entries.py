"""The cache's files: writing, checking, listing and removing an artifact and its record.

An entry is two files: the artifact, `<key><suffix>`, and its record, `<key><suffix>.json`. The record holds
the artifact's sha256, the caller's metadata and a sha256 of the record itself. Both appear by renaming a
finished file, the record last. So a reader finds a whole entry or none, on network file systems too. Files
and directories that other users may have written count as missing: the digests detect damage, not malice.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import stat
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tilewright.runtime.environment import OfProcess
from tilewright.runtime.trust import (
    is_own_directory,
    lock_own,
    make_directories,
    owned,
    private,
    read_own,
    write_own,
)

_KEY = re.compile(r"[0-9a-f]{16,128}")
_SUFFIX = re.compile(r"\.[a-z0-9]+")
_OURS = re.compile(r"[0-9a-f]{16,128}\.")
_RECORD, _LOCK, _TEMPORARY = ".json", ".lock", ".tmp"

_FORMAT = 1
_WAIT_SECONDS = 300.0
_POLL_SECONDS = 0.01
_TOUCH_SECONDS = 60.0


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class CacheEntry:
    """An artifact found or built.

    Args:
        path: the artifact on disk.
        meta: the builder's metadata.
        hit: whether it was found.
        data: the artifact's bytes, checked against their sha256.
    """

    path: Path
    meta: Mapping[str, object]
    hit: bool
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ListedEntry:
    """An entry as a directory lists it: the artifact, the bytes of both files, the time of its last use."""

    artifact: Path
    size: int
    used: float


def file_name(key: str, suffix: str) -> str:
    """Return the artifact's file name.

    Raises:
        ValueError: `key` or `suffix` cannot be part of a file name.
    """
    if not _KEY.fullmatch(key):
        raise ValueError(f"cache key {key!r} is not a hexadecimal digest; make it with cache.key()")
    if not _SUFFIX.fullmatch(suffix) or suffix in (_RECORD, _LOCK, _TEMPORARY):
        raise ValueError(f"artifact suffix {suffix!r} is not a free name ending; nearest: '.bin'")
    return key + suffix


def place(root: Path, name: str) -> Path:
    """Return the artifact's path, in one of 256 directories."""
    return root / "artifacts" / name[:2] / name


def load(artifact: Path) -> CacheEntry | None:
    """Return the entry; None if record, name and artifact disagree, or another user may have written them."""
    record = f"{artifact}{_RECORD}"
    try:
        if not all(map(is_own_directory, (artifact.parents[1], artifact.parent))):
            return None
        found, state = read_own(record)
        data, _ = read_own(artifact)
    except OSError:
        return None
    text, _, check = found.partition(b"\n")
    if not data or check != _digest(text) + b"\n":
        return None
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(facts, dict):
        return None
    expected = (_FORMAT, artifact.name, _digest(data).decode())
    if (facts.get("format"), facts.get("name"), facts.get("sha256")) != expected:
        return None
    if not isinstance(facts.get("meta"), dict):
        return None
    if state.st_mtime < time.time() - _TOUCH_SECONDS:
        with contextlib.suppress(OSError):  # a directory that others fill may be read-only
            os.utime(record)
    return CacheEntry(artifact, facts["meta"], hit=True, data=data)


def publish(artifact: Path, data: bytes, meta: Mapping[str, object], *, is_safe: bool = True) -> CacheEntry:
    """Write an entry; replace a damaged one.

    Args:
        artifact: the artifact's path.
        data: its bytes.
        meta: its metadata.
        is_safe: whether to wait until the disk has it.

    Raises:
        OSError: the directory cannot be written.
        ValueError: the artifact is empty.
    """
    if not data:
        raise ValueError(f"the build of {artifact.name} gave an empty artifact")
    facts = {"format": _FORMAT, "name": artifact.name, "sha256": _digest(data).decode(), "meta": dict(meta)}
    text = json.dumps(facts, sort_keys=True).encode()
    _make_directory(artifact.parent)
    write_own(artifact, data, is_safe=is_safe)
    write_own(f"{artifact}{_RECORD}", text + b"\n" + _digest(text) + b"\n", is_safe=is_safe)
    return CacheEntry(artifact, json.loads(text)["meta"], hit=False, data=data)


_builders: OfProcess[set[tuple[int, str]]] = OfProcess(set)
"""The artifacts that threads of this process have locked."""


def unwritten(artifact: Path, data: bytes, meta: Mapping[str, object]) -> CacheEntry:
    """Return an entry in memory, if no directory can be written."""
    return CacheEntry(artifact, json.loads(json.dumps(dict(meta))), hit=False, data=data)


@contextlib.contextmanager
def locked(artifact: Path) -> Iterator[None]:
    """Let one process at a time build an artifact, if locks work; publishing is atomic in any case.

    A signal handler does not wait for an artifact that its own thread is building. It builds the artifact
    too.
    """
    builder = (threading.get_ident(), str(artifact))
    if builder in _builders.held:
        yield
        return
    _builders.held.add(builder)
    try:
        with contextlib.ExitStack() as held:
            with contextlib.suppress(OSError, NotImplementedError):
                _make_directory(artifact.parent)
                held.enter_context(lock_own(f"{artifact}{_LOCK}", _WAIT_SECONDS, _POLL_SECONDS))
            yield
    finally:
        _builders.held.discard(builder)


def scan(root: Path) -> tuple[list[ListedEntry], list[tuple[Path, float]]]:
    """Return every entry, and stray files with the times of their last change.

    Directories that other users may write, and links, are skipped.
    """
    entries: list[ListedEntry] = []
    litter: list[tuple[Path, float]] = []
    for directory in sorted(root.glob("artifacts/[0-9a-f][0-9a-f]")):
        if not all(map(is_own_directory, (directory.parent, directory))):
            continue
        files: dict[str, os.stat_result] = {}
        with contextlib.suppress(OSError), os.scandir(directory) as found:
            for item in found:
                if _OURS.match(item.name):
                    with contextlib.suppress(OSError):  # removed since
                        files[item.name] = item.stat(follow_symlinks=False)
        for name, state in files.items():
            stem, ending = os.path.splitext(name)
            if ending == _RECORD and stem in files:
                size = state.st_size + files[stem].st_size
                entries.append(ListedEntry(directory / stem, size, state.st_mtime))
            elif (stem not in files) if ending in (_RECORD, _LOCK) else (name + _RECORD not in files):
                litter.append((directory / name, state.st_mtime))
    return entries, litter


def remove(artifact: Path) -> None:
    """Remove an entry; the record goes first, so no reader finds half an entry."""
    unlink(Path(f"{artifact}{_RECORD}"))
    unlink(artifact)


def unlink(path: Path) -> None:
    """Remove a file, unless another process has removed it or holds it open."""
    with contextlib.suppress(OSError):
        path.unlink()


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode()


def _make_directory(directory: Path) -> None:
    """Make a directory and its parents. Other users may not write in it, nor read the cache's root.

    Raises:
        OSError: the directory cannot be made, or other users may write in it.
    """
    make_directories(directory.parents[1], 0o700)
    for inner in (directory.parent, directory):
        make_directories(inner)
        state = os.lstat(inner)
        if stat.S_ISDIR(state.st_mode) and owned(state) and not private(state):
            os.chmod(inner, 0o755)  # made with a umask that lets a group write
        if not is_own_directory(inner):
            raise PermissionError(errno.EACCES, "other users may write it", str(inner))
