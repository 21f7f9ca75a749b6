"""C++ compilers are found, named and run; compiled entries run on every thread, also after a fork."""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import os
import struct
import subprocess
import sys
import threading
import weakref
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tilewright.errors import CompileError, ToolchainError
from tilewright.runtime import amdgcn, native, workers
from tilewright.runtime.libraries import Library

TOOLCHAINS = native.find_toolchains()
COUNT = """
extern "C" __attribute__((visibility("default")))
void count(const void* arguments, long long* next_block, void* scratch, long long blocks) {
  struct Given { long long* hits; long long* where; int work; };
  const Given* given = (const Given*)arguments;
  for (;;) {
    long long block = __atomic_fetch_add(next_block, 1, __ATOMIC_RELAXED);
    if (block >= blocks) break;
    volatile double x = 1;
    for (int i = 0; i < given->work; ++i) x = x * 1.0001;
    __atomic_fetch_add(given->hits + block, 1, __ATOMIC_RELAXED);
    given->where[block] = (long long)scratch;
  }
}
"""


class Counted:
    """A launch of `COUNT`: how often each block ran, and with which scratch memory."""

    def __init__(self, blocks: int, work: int = 0) -> None:
        self.blocks = blocks
        self.hits = (ctypes.c_longlong * blocks)()
        self.where = (ctypes.c_longlong * blocks)()
        packed = struct.pack("@PPi", ctypes.addressof(self.hits), ctypes.addressof(self.where), work)
        self.buffer = ctypes.create_string_buffer(packed)

    def run(self, launcher: workers.Launcher) -> Counted:
        launcher.launch(ctypes.addressof(self.buffer), self.blocks)
        return self


@pytest.fixture(scope="module")
def library() -> Library:
    return Library(native.compile_library(COUNT))


@pytest.mark.parametrize("toolchain", TOOLCHAINS, ids=str)
def test_every_toolchain_makes_a_library_that_runs(toolchain: native.Toolchain) -> None:
    library = Library(native.compile_library(COUNT, toolchain))
    made = Counted(100).run(workers.Launcher(library, "count", 1))
    assert list(made.hits) == [1] * 100


def test_a_toolchain_is_found() -> None:
    assert native.find_toolchain() == TOOLCHAINS[0]


def test_the_identity_names_version_flags_and_processor_but_no_path() -> None:
    toolchain = native.find_toolchain()
    identity = native.toolchain_id()
    assert toolchain.version in identity
    assert native.NATIVE in identity
    assert native.host_features() in identity
    assert os.sep not in identity.replace("clang/", "")


def test_a_search_path_without_compilers_leaves_the_package(tmp_path: Path) -> None:
    assert all(toolchain.name == "zig" for toolchain in native.find_toolchains(str(tmp_path)))


def test_a_broken_compiler_is_passed_over(tmp_path: Path) -> None:
    for name, body in (("c++", "exit 1"), ("g++", "echo unknown program 1.0")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    assert all(toolchain.name == "zig" for toolchain in native.find_toolchains(str(tmp_path)))


def test_a_folder_that_is_called_like_the_package_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ziglang").mkdir()
    (tmp_path / "ziglang" / "zig").touch(0o755)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "ziglang", raising=False)
    importlib.invalidate_caches()
    assert importlib.util.find_spec("ziglang") is not None
    assert native.ziglang() is None
    assert not [found for found in native.find_toolchains() if found.name == "zig"]
    trials = amdgcn.try_toolchains(str(tmp_path), tmp_path)
    assert not [trial for trial in trials if trial.toolchain and trial.toolchain.name == "zig"]
    monkeypatch.setitem(sys.modules, "ziglang", ModuleType("ziglang"))  # it has no specification
    assert native.ziglang() is None


@pytest.mark.parametrize("toolchain", TOOLCHAINS, ids=str)
def test_a_relative_folder_on_the_path_serves(
    toolchain: native.Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "c++"
    script.write_text(f'#!/bin/sh\nexec {" ".join(toolchain.compiler)} "$@"\n')
    script.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    for path in ("bin", f"bin{os.pathsep}", f".{os.pathsep}bin{os.pathsep}/usr/bin"):
        found = native.find_toolchains(path)[0]
        assert found.compiler == (str(script),)
    assert native.compile_library(COUNT, replace(toolchain, compiler=found.compiler))


def test_compilers_tell_what_they_are(tmp_path: Path) -> None:
    reports = {
        "c++": "Debian clang version 14.0.6",
        "g++": "g++ (GCC) 13.1.0\nCopyright (C) 2023 Free Software Foundation, Inc.",
    }
    for name, text in reports.items():
        (tmp_path / name).write_text(f"#!/bin/sh\necho '{text}'\n")
        (tmp_path / name).chmod(0o755)
    found = {
        t.name: t.version for t in native.find_toolchains(f"{tmp_path}:/bin:/usr/bin") if t.name != "zig"
    }
    assert found == {"clang": "14.0.6", "gcc": "13.1.0"}


def test_without_a_compiler_the_error_says_what_to_install() -> None:
    with pytest.raises(ToolchainError, match=r"pip install 'tilewright\[native\]'"):
        native.choose(())


def test_a_compiler_that_vanished_is_named() -> None:
    gone = native.Toolchain("gcc", "1", (os.path.join(os.sep, "nowhere", "g++"),))
    with pytest.raises(ToolchainError, match=r"cannot run g\+\+"):
        native.compile_library(COUNT, gone)


@pytest.mark.parametrize("toolchain", TOOLCHAINS, ids=str)
def test_refused_text_shows_the_lines(toolchain: native.Toolchain) -> None:
    with pytest.raises(CompileError) as caught:
        native.compile_library("int fine;\nint wrong = undeclared;\n", toolchain)
    assert "2 | int wrong = undeclared;" in str(caught.value)
    assert "undeclared" in caught.value.log
    assert caught.value.source.startswith("int fine;")


@pytest.mark.parametrize("blocks", [0, 1, 2, 7, 1000])
def test_every_block_runs_once(library: Library, blocks: int) -> None:
    launcher = workers.Launcher(library, "count", 100)
    for _ in range(5):
        assert list(Counted(blocks).run(launcher).hits) == [1] * blocks


def test_scratch_memory_is_aligned_and_grows(library: Library) -> None:
    for size in (1, 1 << 12, 5 << 20):
        made = Counted(64, work=20_000).run(workers.Launcher(library, "count", size))
        assert all(where % 64 == 0 and where for where in made.where)


def test_several_threads_work_on_a_long_launch(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_THREADS", "3")
    pool = workers.Pool(library, 3)
    monkeypatch.setattr(workers._shared, "pool", pool)
    try:
        used: set[int] = set()
        for _ in range(50):
            made = Counted(64, work=20_000).run(workers.Launcher(library, "count", 1))
            assert list(made.hits) == [1] * 64
            used |= set(made.where)
            if len(used) > 1:
                break
        assert len(used) > 1
    finally:
        pool.close()


def test_a_worker_that_comes_after_the_pool_was_closed_finds_its_memory(library: Library) -> None:
    """A starved thread enters its seat when nobody else refers to the pool any more."""
    turn = threading.Event()

    class Starved:
        address = library.address

        def function(self, name: str) -> Any:
            found = library.function(name)
            if name != "tilewright_serve":
                return found
            return lambda *given: turn.wait(60) and found(*given)

    late: Any = Starved()
    pool = workers.Pool(late, 2)
    threads, memory, code = pool._threads, weakref.ref(pool._memory), weakref.ref(late)
    for thread in threads:
        thread.join = lambda seconds: None  # type: ignore[method-assign, assignment, misc]
    pool.close()
    del pool, late, thread
    gc.collect()
    assert memory() is not None
    assert code() is not None
    turn.set()
    for thread in threads:
        threading.Thread.join(thread, 60)
        assert not thread.is_alive()
    assert memory() is None
    assert code() is None


def test_an_interrupted_launch_leaves_the_pool_to_the_next(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C comes when the pool is taken and the launch does not know it yet."""
    monkeypatch.setenv("TILEWRIGHT_THREADS", "2")
    shared, pool = workers._Shared(), workers.Pool(library, 2)
    shared.pool = pool
    monkeypatch.setattr(workers, "_shared", shared)

    def interrupted(library: Library, launch: object) -> None:
        assert workers._Shared.take(shared, library, launch) is pool
        raise KeyboardInterrupt

    try:
        with monkeypatch.context() as patch:
            patch.setattr(shared, "take", interrupted)
            with pytest.raises(KeyboardInterrupt):
                Counted(64).run(workers.Launcher(library, "count", 1))
        assert shared.take(library, object()) is pool
    finally:
        pool.close()


def test_short_launches_stay_on_the_callers_thread(library: Library) -> None:
    launcher = workers.Launcher(library, "count", 1)
    Counted(4).run(launcher)
    launcher._block_ns = 1.0
    assert len(set(Counted(4).run(launcher).where)) == 1


def test_one_thread_needs_no_pool(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_THREADS", "1")
    alone = workers._Shared()
    monkeypatch.setattr(workers, "_shared", alone)
    made = Counted(64, work=20_000).run(workers.Launcher(library, "count", 1))
    assert list(made.hits) == [1] * 64
    assert len(set(made.where)) == 1
    assert alone.pool is None


def test_launches_from_many_threads_do_not_disturb_each_other(library: Library) -> None:
    launcher = workers.Launcher(library, "count", 1 << 12)
    made = [Counted(200, work=500) for _ in range(8)]
    callers = [threading.Thread(target=one.run, args=(launcher,)) for one in made]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert all(list(one.hits) == [1] * 200 for one in made)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_makes_its_own_threads(library: Library) -> None:
    launcher = workers.Launcher(library, "count", 1)
    Counted(64, work=20_000).run(launcher)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            made = [Counted(64, work=20_000).run(launcher) for _ in range(3)]
            status = 0 if all(list(one.hits) == [1] * 64 for one in made) else 2
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert list(Counted(64, work=20_000).run(launcher).hits) == [1] * 64


def test_the_interpreter_ends_with_threads_asleep_or_polling(tmp_path: Path) -> None:
    (tmp_path / "count.so").write_bytes(native.compile_library(COUNT))
    program = f"""
import ctypes, struct, sys, pathlib
from tilewright.runtime import libraries, workers
library = libraries.Library(pathlib.Path({str(tmp_path / "count.so")!r}).read_bytes())
launcher = workers.Launcher(library, "count", 1)
hits, where = (ctypes.c_longlong * 64)(), (ctypes.c_longlong * 64)()
buffer = ctypes.create_string_buffer(
    struct.pack("@PPi", ctypes.addressof(hits), ctypes.addressof(where), 20_000))
launcher.launch(ctypes.addressof(buffer), 64)
print(sum(hits))
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert (ran.stdout.strip(), ran.stderr) == ("64", "")


@pytest.mark.parametrize(
    "triple",
    [
        native.Triple("aarch64-linux-gnu"),
        native.Triple("x86_64-linux-gnu", "x86-64-v3"),
        native.Triple("x86_64-linux-gnu", "x86-64-v4"),
    ],
    ids=lambda triple: f"{triple.name} {triple.cpu}".strip(),
)
def test_other_machines_can_be_compiled_for(triple: native.Triple) -> None:
    cross = [toolchain for toolchain in TOOLCHAINS if toolchain.name == "zig"]
    for toolchain in cross:
        assert native.compile_library(COUNT, toolchain, triple).startswith(b"\x7fELF")
