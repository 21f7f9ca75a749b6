"""If the system runs out of a resource, an error says what to do, or the library does without it."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tilewright as tw
from tilewright.ops import replay
from tilewright.runtime import amdgcn, libraries, native, workers
from tilewright.runtime.cache import Cache
from tilewright.runtime.libraries import Library
from tilewright.runtime.workers import Scratch

from .cached import KEY, built
from .exact import Product

pytestmark = pytest.mark.in_turns(3)

TEXT = 'extern "C" __attribute__((visibility("default"))) void nothing() {}\n'


def compiler(folder: Path, body: str) -> native.Toolchain:
    """Write a compiler that runs a shell script."""
    path = folder / "c++"
    path.write_bytes(b"#!/bin/sh\n" + body.encode("latin-1") + b"\n")
    path.chmod(0o755)
    return native.Toolchain("gcc", "1.0", (str(path),))


@pytest.fixture(scope="module")
def whole() -> bytes:
    return native.compile_library(TEXT)


# Compilers.


def test_a_compiler_that_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(tw.ToolchainError, match=r"gcc 1\.0 reported no error, but .*empty; .*set TMPDIR"):
        native.compile_library(TEXT, compiler(tmp_path, "exit 0"))


@pytest.mark.parametrize("missing", ["all", "all but 63", "all but 500", "half", "a byte"])
def test_a_library_that_is_cut_off_is_not_published(
    missing: str, tmp_path: Path, whole: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = {"all": 0, "all but 63": 63, "all but 500": 500, "half": len(whole) // 2}
    size = kept.get(missing, len(whole) - 1)
    (tmp_path / "cut.so").write_bytes(whole[:size])
    cut = compiler(tmp_path, f"cp {tmp_path}/cut.so kernel.so")
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    with pytest.raises(tw.ToolchainError, match=r"cannot be used: its? "):
        Cache.default().get_or_build(KEY, ".so", lambda: native.compile_library(TEXT, cut), {})
    assert Cache.default().stats().entries == 0


@pytest.mark.usefixtures("no_known_products")
def test_a_library_without_the_kernel_is_not_published(
    tmp_path: Path, whole: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("tilewright.runtime.host.compile_library", lambda text: whole)
    with pytest.raises(tw.ToolchainError, match="the compiled library gemm has no function"):
        Product(1, 7, 7, 7).wrong()
    assert Cache.default().stats().entries == 0


def test_a_compiler_that_speaks_latin_1(tmp_path: Path) -> None:
    speaks = compiler(tmp_path, "printf 'kernel.cpp:1:1: error: d\xe9clar\xe9' >&2; exit 1")
    with pytest.raises(tw.CompileError, match="refused the generated text") as caught:
        native.compile_library(TEXT, speaks)
    assert "d\ufffdclar\ufffd" in caught.value.log
    (tmp_path / "c++").write_bytes(b"#!/bin/sh\nprintf 'g++ (G\xe9) 1.0\\nFree Software Foundation'\n")
    assert native.find_toolchains(f"{tmp_path}:/bin")[0] == native.Toolchain(
        "gcc", "1.0", (str(tmp_path / "c++"),)
    )


def test_a_compiler_that_is_killed(tmp_path: Path) -> None:
    with pytest.raises(tw.ToolchainError, match=r"c\+\+ was ended by signal 9 .*nearest: "):
        native.compile_library(TEXT, compiler(tmp_path, "kill -9 $$"))


ENDED = "signal terminated program cc1plus"
CRASHES = {
    f"c++: internal compiler error: Segmentation fault {ENDED}": r"signal 11 .*ulimit -s",
    f"c++: fatal error: Killed {ENDED}": r"signal 9 .*memory",
    "clang: error: unable to execute command: Segmentation fault (core dumped)": r"signal 11 .*ulimit -s",
    "PLEASE submit a bug report to LLVM\nBus error": r"signal \d+ .*ulimit -s",
    "x.cpp:3:1: internal compiler error: in emit_insn": r"failed by itself .*emit_insn.*newer compiler",
}


@pytest.mark.parametrize("log", CRASHES)
def test_a_compiler_that_reports_a_crash_does_not_blame_the_text(log: str, tmp_path: Path) -> None:
    quoted = log.replace("\n", "\\n")
    crashing = compiler(tmp_path, f"printf '{quoted}' >&2; exit 4")
    with pytest.raises(tw.ToolchainError, match=CRASHES[log]):
        native.compile_library(TEXT, crashing)


@pytest.mark.parametrize("found", native.find_toolchains(), ids=str)
def test_a_compiler_with_too_small_a_stack(found: native.Toolchain, tmp_path: Path) -> None:
    where, *more = found.compiler
    body = f'ulimit -s 64; exec {where} {" ".join(more)} "$@"'
    with pytest.raises(tw.ToolchainError, match=r"signal 11 .*nearest: allow a larger stack"):
        native.compile_library(TEXT, compiler(tmp_path, body))


def test_a_compiler_for_amd_gpus_that_crashes(tmp_path: Path) -> None:
    crashing = compiler(tmp_path, f"printf '{next(iter(CRASHES))}' >&2; exit 1").compiler
    with pytest.raises(tw.ToolchainError, match=r"signal 11 .*ulimit -s"):
        amdgcn.compile_text("", "gfx942", toolchain=amdgcn.AmdToolchain("clang", "1", crashing))


def test_a_compiler_without_room_for_its_files(tmp_path: Path) -> None:
    full = compiler(tmp_path, "echo 'fatal error: cc.s: No space left on device' >&2; exit 1")
    with pytest.raises(tw.ToolchainError, match=r"c\+\+ ran out of disk space; .*set TMPDIR"):
        native.compile_library(TEXT, full)


# Folders.


def test_no_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(tw.ToolchainError, match=r"cannot compile a kernel: No such file .*set TMPDIR"):
        native.compile_library(TEXT)


def test_a_full_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, *_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(
        tw.ToolchainError, match="No space left on device; the disk is full: make room, or set"
    ):
        native.compile_library(TEXT)


def test_no_folder_for_artifacts_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    cache, builds = Cache(tmp_path / "file" / "cache"), []
    with pytest.warns(RuntimeWarning, match="this process keeps its own in memory"):
        entry = cache.get_or_build(KEY, ".bin", lambda: builds.append(1) or b"code", {"registers": 4})
    assert (entry.data, entry.meta, entry.hit) == (b"code", {"registers": 4}, False)
    assert built(cache, KEY, b"another").data == b"code"
    assert builds == [1]


def test_a_folder_that_may_not_execute(whole: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache's own folder does not matter, as nothing is loaded from it; these folders do."""
    real, refused = ctypes.CDLL, []

    def load(path: str) -> ctypes.CDLL:
        if path.startswith(("/proc", tempfile.gettempdir())) or refused[:1] == ["all"]:
            refused.append(path)
            raise OSError(f"{path}: failed to map segment from shared object")
        return real(path)

    monkeypatch.setattr(libraries.ctypes, "CDLL", load)
    assert Library(whole).address("nothing")
    assert len(refused) == 2
    refused.insert(0, "all")
    with pytest.raises(
        tw.ToolchainError, match=r"cannot load .*failed to map .*set TMPDIR to a folder .*load"
    ):
        Library(whole)
    assert not [path for path in refused[1:] if os.path.exists(path)], "it leaves nothing behind"


def test_without_files_in_memory_a_private_one_does(whole: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    assert Library(whole).address("nothing")


# File descriptors, threads, memory.

STARVED = """
import os, resource
import numpy as np
import tilewright as tw
for dtype in (np.int16, np.float32):  # the modules that multiply integers are loaded, too
    a = np.ones((33, 33), dtype)
    assert (tw.matmul(a, a, target="cpu") == 33).all()
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))), hard))
b = np.ones((50, 50), np.float16)
for dtype in (np.float16, np.int8, np.float64):
    b = np.ones((50, 50), dtype)
    try:
        tw.matmul(b, b, target="cpu")
    except tw.ToolchainError as problem:
        assert "ulimit -n" in str(problem), problem
    else:
        raise SystemExit("it found a file descriptor")
assert (tw.matmul(a, a, target="cpu") == 33).all()
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
assert (tw.matmul(b, b, target="cpu") == 50).all()
print("done")
"""


def test_without_file_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    command = [sys.executable, "-W", "ignore", "-c", STARVED]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (ran.stdout.strip(), ran.returncode) == ("done", 0), ran.stderr


@pytest.mark.parametrize("given", [0, 1])
def test_without_threads_one_works(given: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[[threading.Thread], None] = threading.Thread.start
    left = [given]

    def start(self: threading.Thread) -> None:
        if not left[0]:
            raise RuntimeError("can't start new thread")
        left[0] -= 1
        real(self)

    shared = workers._Shared()
    monkeypatch.setattr(workers, "_shared", shared)
    monkeypatch.setenv("TILEWRIGHT_THREADS", "4")
    monkeypatch.setattr(workers, "INLINE_NS", 0)  # no launch is short
    monkeypatch.setattr(threading.Thread, "start", start)
    for table in replay._tables:  # a shortcut of one thread starts no others
        table.forget()
    product = Product(3, 300, 300, 100)
    assert product.wrong(4) == 0
    assert shared.threads == given + 1
    shared.close()


def test_without_memory() -> None:
    with pytest.raises(tw.LaunchError, match=r"cannot have \d+ bytes of memory .*nearest: a smaller tile"):
        Scratch(1 << 60)


LARGE_RESULT = """
import resource, sys, tempfile
import numpy as np, tilewright as tw
row, b = np.ones(3, np.float32), np.ones((3, 3), np.float32)
tw.matmul(b, b, target="cpu")
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
rows = np.broadcast_to(row, (2**31, 3))
calls = {
    "matmul": lambda: tw.matmul(rows, b, target="cpu"),
    "alpha": lambda: tw.matmul(rows, b, alpha=2.0, target="cpu"),
    "einsum": lambda: tw.einsum("mk,kn->nm", rows, b, target="cpu"),
    "complex": lambda: tw.complex_matmul(
        np.broadcast_to(row.astype(np.complex64), (2**31, 3)), b.astype(np.complex64), target="cpu"
    ),
    "attention": lambda: tw.attention(rows, b, b, target="cpu"),
}
for name, call in calls.items():
    try:
        call()
    except tw.LaunchError as problem:
        print(name, problem)
with tempfile.TemporaryFile() as file:
    out = np.memmap(file, np.float32, "w+", shape=(5, 3))
    print("mapped", (tw.matmul(np.broadcast_to(row, (5, 3)), b, out=out, target="cpu") == 3).all())
"""


def test_a_result_that_does_not_fit_into_memory() -> None:
    ran = subprocess.run([sys.executable, "-c", LARGE_RESULT], capture_output=True, text=True, check=True)
    lines = ran.stdout.splitlines()
    asked = ["matmul", "alpha", "einsum", "complex", "attention", "mapped"]
    assert [line.partition(" ")[0] for line in lines] == asked, ran.stderr
    told = "GiB, more than the free memory; nearest: fewer rows"
    assert all("the result, " in line and told in line for line in lines[:-1])
    assert lines[-1] == "mapped True"
