"""The artifact cache: keys, one build among many processes, whole entries or none."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.runtime import entries
from tilewright.runtime.cache import Cache, key

from .cached import KEY, built, files, refuse, wait_for

PARTS = st.lists(st.text(max_size=4), max_size=4)


# Keys.


@given(PARTS, PARTS)
def test_keys_meet_only_when_the_parts_do(a: list[str], b: list[str]) -> None:
    assert (key(a) == key(b)) == (a == b)


@given(st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=3))
def test_names_count_and_their_order_does_not(parts: dict[str, str]) -> None:
    assert key(parts) == key(dict(reversed(parts.items())))
    assert key(parts) != key([piece for pair in sorted(parts.items()) for piece in pair])
    assert key(parts) != key({**parts, "another": ""})


def test_one_string_is_no_list_of_parts() -> None:
    with pytest.raises(TypeError, match=r"write key\(\[text\]\)"):
        key("text")


def test_two_kernels_of_one_name_never_meet(cache: Cache) -> None:
    texts = [f"kernel gemm() {{ range(0, {n}) }}" for n in (16, 32)]
    paths = {built(cache, key([text]), text.encode()).path for text in texts}
    assert sorted(path.read_bytes() for path in paths) == [text.encode() for text in texts]


@pytest.mark.parametrize("bad", ["", "../../etc/passwd", "ABCDEF0123456789", "0" * 15, KEY + "\n"])
def test_a_key_is_a_digest(cache: Cache, bad: str) -> None:
    with pytest.raises(ValueError, match="not a hexadecimal digest"):
        built(cache, bad)


@pytest.mark.parametrize("bad", ["", "cubin", "./x", ".json", ".lock", ".tmp", ".a.json"])
def test_a_suffix_is_a_free_name_ending(cache: Cache, bad: str) -> None:
    with pytest.raises(ValueError, match=r"not a free name ending; nearest: '\.bin'"):
        built(cache, KEY, suffix=bad)


# Hits, builds and meta data.


def test_the_second_time_is_a_hit(cache: Cache) -> None:
    first = cache.get_or_build(KEY, ".cubin", lambda: b"code", {"registers": 40, "log": ["ok"]})
    second = cache.get_or_build(KEY, ".cubin", refuse, {})
    assert not first.hit
    assert second.hit
    assert first.path == second.path == cache.root / "artifacts" / KEY[:2] / f"{KEY}.cubin"
    assert first.meta == second.meta == {"registers": 40, "log": ["ok"]}
    assert first.data == second.data == second.path.read_bytes() == b"code"
    assert (cache.stats().hits, cache.stats().builds, cache.stats().entries) == (1, 1, 1)


def test_the_build_may_add_to_the_meta_data(cache: Cache) -> None:
    meta: dict[str, object] = {}

    def build() -> bytes:
        meta["registers"] = 40
        return b"code"

    assert cache.get_or_build(KEY, ".bin", build, meta).meta == {"registers": 40}


def test_suffixes_are_different_artifacts(cache: Cache) -> None:
    assert built(cache, KEY, b"text", ".ptx").data == b"text"
    assert built(cache, KEY, b"code", ".cubin").data == b"code"
    assert cache.get_or_build(KEY, ".ptx", refuse, {}).data == b"text"


def test_a_failing_build_leaves_nothing_and_may_be_tried_again(cache: Cache) -> None:
    def fail() -> bytes:
        raise OSError("no compiler")

    with pytest.raises(OSError, match="no compiler"):
        cache.get_or_build(KEY, ".bin", fail, {})
    assert files(cache) == [".lock"]
    assert built(cache, KEY).data == b"code"


def test_a_build_that_gives_nothing_is_refused(cache: Cache) -> None:
    with pytest.raises(ValueError, match="empty artifact"):
        built(cache, KEY, b"")


def test_threads_build_once(cache: Cache) -> None:
    builds: list[int] = []

    def build() -> bytes:
        builds.append(1)
        time.sleep(0.05)
        return b"code"

    threads = [threading.Thread(target=cache.get_or_build, args=(KEY, ".bin", build, {})) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(builds) == 1
    assert (cache.stats().hits, cache.stats().builds) == (7, 1)


# Several processes.

WORKER = """
import os, sys, time
from pathlib import Path
from tilewright.runtime.cache import Cache, key

base, seconds = Path(sys.argv[1]), float(sys.argv[2])

def build():
    (base / f"building-{os.getpid()}").touch()
    time.sleep(seconds)
    return b"%d" % os.getpid() * 20000

(base / f"ready-{os.getpid()}").touch()
while not (base / "go").exists():
    time.sleep(0.002)
entry = Cache(base / "cache").get_or_build(key(["kernel gemm"]), ".bin", build, {"pid": os.getpid()})
builder = entry.meta["pid"]
print(entry.hit, builder, entry.data == entry.path.read_bytes() == b"%d" % builder * 20000)
"""


def start(base: Path, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WORKER, str(base), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_eight_processes_build_once(tmp_path: Path) -> None:
    workers = [start(tmp_path, 0.3) for _ in range(8)]
    wait_for(lambda: len(list(tmp_path.glob("ready-*"))) == 8)
    (tmp_path / "go").touch()
    outputs = [worker.communicate(timeout=60)[0].split() for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * 8
    (builder,) = (int(path.name.partition("-")[2]) for path in tmp_path.glob("building-*"))
    assert sorted(outputs) == [["False", str(builder), "True"]] + [["True", str(builder), "True"]] * 7
    assert files(Cache(tmp_path / "cache")) == [".bin", ".json", ".lock"]


def test_killed_in_the_middle_of_a_build(tmp_path: Path) -> None:
    worker = start(tmp_path, 600.0)
    (tmp_path / "go").touch()
    wait_for(lambda: list(tmp_path.glob("building-*")))
    worker.kill()
    worker.communicate(timeout=60)
    cache = Cache(tmp_path / "cache")
    assert files(cache) == [".lock"]
    began = time.perf_counter()
    assert not built(cache, KEY).hit
    assert time.perf_counter() - began < 10, "waited for a dead process"
    assert cache.get_or_build(KEY, ".bin", refuse, {}).data == b"code"


# Damage.


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def swap(path: Path) -> None:
    """Replace a file by another entry's file."""
    cache = Cache(path.parents[2])
    other = built(cache, KEY[:2] + "0" * 62, b"other").path
    shutil.copy(other.with_name(other.name + path.suffix if path.suffix == ".json" else other.name), path)


@pytest.mark.parametrize("harm", [flip, truncate, empty, swap, Path.unlink])
@pytest.mark.parametrize("ending", ["", ".json"])
def test_a_damaged_entry_is_built_again(cache: Cache, harm: Callable[[Path], None], ending: str) -> None:
    good = cache.get_or_build(KEY, ".bin", lambda: b"code" * 100, {"registers": 40})
    harm(good.path.with_name(good.path.name + ending))
    mended = cache.get_or_build(KEY, ".bin", lambda: b"new code" * 100, {"registers": 41})
    assert not mended.hit
    again = cache.get_or_build(KEY, ".bin", refuse, {})
    assert (again.data, again.meta) == (b"new code" * 100, {"registers": 41})


def test_every_byte_of_both_files_counts(cache: Cache) -> None:
    entry = cache.get_or_build(KEY, ".bin", lambda: b"code", {"registers": 40})
    record = entry.path.with_name(entry.path.name + ".json")
    for path in (entry.path, record):
        whole = path.read_bytes()
        for position in range(len(whole)):
            path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
            assert entries.load(entry.path) is None, (path, position)
        path.write_bytes(whole)
    assert entries.load(entry.path) is not None


def test_a_record_of_another_format_is_a_miss(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "_FORMAT", 0)
    built(cache, KEY)
    monkeypatch.undo()
    assert not built(cache, KEY).hit


# Room.


SHAPES = ["[]", "null", "3", '"s"', "{}", "[" * 100_000, "\ud800", '{"format": 1e999}', "1" * 5000]
"""Records that are whole, and no records; with `meta` in each of these shapes they are none either."""


@pytest.mark.parametrize("text", SHAPES, ids=lambda text: text[:8].encode("ascii", "replace").decode())
def test_a_whole_record_of_another_shape_is_a_miss(cache: Cache, text: str) -> None:
    path = cache.get_or_build(KEY, ".bin", lambda: b"code", {"resources": {"registers": 40}}).path
    facts = json.dumps({"format": 1, "name": path.name, "sha256": hashlib.sha256(b"code").hexdigest()})
    for record in (text, f'{facts[:-1]}, "meta": {text}}}', facts):
        data = record.encode("utf-8", "surrogatepass")
        digest = hashlib.sha256(data).hexdigest().encode()
        path.with_name(f"{path.name}.json").write_bytes(data + b"\n" + digest + b"\n")
        assert not cache.get_or_build(KEY, ".bin", lambda: b"code", {"resources": {"registers": 0}}).hit
        assert cache.get_or_build(KEY, ".bin", refuse, {"resources": {"registers": 0}}).hit


@pytest.mark.parametrize(
    "meta", [{}, {"resources": 3}, {"resources": {}}, {"resources": {"registers": "40"}}]
)
def test_an_entry_whose_meta_data_have_another_form_is_built_again(
    cache: Cache, meta: dict[str, object]
) -> None:
    cache.get_or_build(KEY, ".bin", lambda: b"code", meta)
    wanted = {"resources": {"registers": 0}}
    assert not cache.get_or_build(KEY, ".bin", lambda: b"code", wanted).hit
    assert cache.get_or_build(KEY, ".bin", refuse, wanted).hit
