"""The folder of the artifact cache, and the entries that it drops when it is full."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tilewright.runtime import entries, trust
from tilewright.runtime.cache import Cache, key

from .cached import KEY, age, built, files, refuse


def three(cache: Cache) -> list[str]:
    keys = [key([str(n)]) for n in range(3)]
    for n, name in enumerate(keys):
        age(built(cache, name, b"x" * 1000), 1000 - n)
    return keys


def held(cache: Cache, keys: list[str]) -> list[bool]:
    return [entries.load(entries.place(cache.root, name + ".bin")) is not None for name in keys]


def test_the_least_recently_used_go(tmp_path: Path) -> None:
    keys = three(Cache(tmp_path))
    cache = Cache(tmp_path, capacity_bytes=3900, grace_seconds=100)
    cache.get_or_build(keys[0], ".bin", refuse, {})  # used now
    keep = built(cache, key(["new"]), b"x" * 1000)
    assert held(cache, keys) == [True, False, True]
    assert cache.stats().bytes <= 3900
    assert keep.path.exists()


def test_what_was_used_a_moment_ago_stays(tmp_path: Path) -> None:
    keys = three(Cache(tmp_path))
    cache = Cache(tmp_path, capacity_bytes=10, grace_seconds=5000)
    built(cache, key(["new"]), b"x" * 1000)
    assert held(cache, keys) == [True, True, True]


def test_what_this_process_holds_stays(tmp_path: Path) -> None:
    keys = three(Cache(tmp_path))
    cache = Cache(tmp_path, capacity_bytes=10, grace_seconds=-100)
    alive = cache.get_or_build(keys[1], ".bin", refuse, {})
    new = built(cache, key(["new"]), b"x" * 1000)
    assert held(cache, keys) == [False, True, False]
    assert alive.path.exists()
    assert new.path.exists()


def test_room_is_made_as_the_cache_grows(tmp_path: Path) -> None:
    cache = Cache(tmp_path, capacity_bytes=10_000, grace_seconds=-100)
    for n in range(60):
        built(cache, key([str(n)]), b"x" * 1000)
        assert cache.stats().bytes <= 10_000 + 1400
    assert cache.stats().entries > 4


def test_what_ended_processes_left_goes(tmp_path: Path) -> None:
    cache = Cache(tmp_path, capacity_bytes=10, grace_seconds=-100)
    built(cache, KEY)
    directory = entries.place(tmp_path, KEY).parent
    mine = directory / "notes.txt"
    endings = ("0.bin", "1.bin.12-ab.tmp", "2.bin.json", "3.lock")
    stray = [directory / f"{KEY[:-1]}{ending}" for ending in endings]
    young = directory / f"{KEY[:-1]}4.bin.13-ab.tmp"
    for path in (*stray, young, mine):
        path.write_bytes(b"x")
        if path is not young:
            os.utime(path, (0, 0))
    built(cache, key(["new"]))
    assert [path.exists() for path in stray] == [False] * 4
    assert young.exists()
    assert mine.exists()


def test_clear(cache: Cache) -> None:
    three(cache)
    mine = cache.root / "notes.txt"
    mine.touch()
    assert cache.clear() == 3
    assert cache.stats().entries == cache.stats().bytes == 0
    assert mine.exists()
    assert not built(cache, KEY).hit


# Directories that cannot be written.


@pytest.fixture
def ended_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the place of private directories in this test; it is removed afterwards."""
    place = tmp_path / "private"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    yield place
    shutil.rmtree(place)


def test_an_unwritable_root_is_left_for_a_private_one(tmp_path: Path, ended_processes: Path) -> None:
    root = tmp_path / "file" / "cache"
    (tmp_path / "file").touch()
    cache = Cache(root)
    with pytest.warns(RuntimeWarning, match=r"cannot keep .*file/cache .*TILEWRIGHT_CACHE_DIR") as caught:
        entry = cache.get_or_build(KEY, ".bin", lambda: b"code", {})
    assert [Path(warning.filename) for warning in caught] == [Path(__file__)]
    # A second warning would be an error here.
    assert built(cache, key(["other"])).path.parents[2] == entry.path.parents[2]
    assert built(Cache(root), KEY).data == b"code"
    assert entry.path.is_relative_to(ended_processes)
    assert cache.get_or_build(KEY, ".bin", refuse, {}).hit
    assert cache.stats().entries == 2


def test_a_full_disk_costs_no_second_build(
    cache: Cache, ended_processes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, builds = os.replace, []

    def full(source: str, target: str) -> None:
        if str(cache.root) in str(target):
            raise OSError(28, "No space left on device")
        real(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(RuntimeWarning, match="No space left on device"):
        entry = cache.get_or_build(KEY, ".bin", lambda: builds.append(1) or b"code", {})
    assert entry.path.is_relative_to(ended_processes)
    assert builds == [1]
    assert files(cache) == [".lock"], "the temporary file is gone"


READER = """
import os, sys, warnings
from pathlib import Path
from tilewright.runtime.cache import Cache, key

if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
cache = Cache(Path(sys.argv[1]))
with warnings.catch_warnings(record=True) as caught:
    hit = cache.get_or_build(key(["kernel gemm"]), ".bin", lambda: b"built", {})
    assert hit.hit and hit.data == b"code" and not caught, (hit, caught)
    new = cache.get_or_build(key(["another"]), ".bin", lambda: b"built", {})
    assert new.data == b"built" and not new.path.is_relative_to(cache.root), new
    assert len(caught) == 1, caught
print(new.path)
"""


def test_a_read_only_cache_still_hits() -> None:
    with tempfile.TemporaryDirectory() as directory:  # pytest's own is closed to other users
        root = Path(directory)
        built(Cache(root), KEY)
        for path in [root, *root.rglob("*")]:
            path.chmod(0o555 if path.is_dir() else 0o444)
        result = subprocess.run([sys.executable, "-c", READER, directory], capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        assert not Path(result.stdout.strip()).parents[2].exists(), "it ends with its process"
        for path in [root, *root.rglob("*")]:
            path.chmod(0o755)


def test_locks_that_do_not_work_change_nothing_else(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(trust.FileLock, "acquire", broken)
    monkeypatch.setattr(trust.FileLock, "__enter__", broken)
    assert built(cache, KEY).data == b"code"
    assert cache.get_or_build(KEY, ".bin", refuse, {}).hit


def test_locks_ask_for_nothing_that_the_oldest_filelock_lacks(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The constructor of filelock 3.12 takes no ``poll_interval``; its `acquire` does."""
    made, newest = list[str](), trust.FileLock

    def oldest(lock_file: str, timeout: float = -1, mode: int = 0o644, thread_local: bool = True) -> object:
        made.append(lock_file)
        return newest(lock_file, timeout, mode, thread_local)

    monkeypatch.setattr(trust, "FileLock", oldest)
    assert built(cache, KEY).data == b"code"
    assert len(made) == 1


def test_the_default_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TILEWRIGHT_CACHE_BYTES", "2MiB")
    first = Cache.default()
    assert (first.root, first.capacity_bytes) == (tmp_path, 2 << 20)
    assert Cache.default() is first
    monkeypatch.setenv("TILEWRIGHT_CACHE_BYTES", "3MiB")
    assert Cache.default().capacity_bytes == 3 << 20
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", "")
    assert Cache.default().root.name == "tilewright"


def test_a_record_is_plain_text(cache: Cache) -> None:
    path = built(cache, KEY).path
    text = path.with_name(path.name + ".json").read_text().splitlines()[0]
    assert json.loads(text)["name"] == f"{KEY}.bin"
