"""Compiled kernels in the cache, end to end: one build among eight processes, damage, equal names."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.runtime import host

pytestmark = pytest.mark.in_turns(3)

PROGRAM = """
import json, sys, time
from pathlib import Path
import numpy as np
import tilewright as tw

@tw.kernel(X="N", Y="N")
def times(X, Y, *, factor):
    n = tw.block_index(tw.ceil_div(X.shape[0], 64))
    x = tw.load(X.tile((64,), (n,)).partition((32,)))
    tw.copy(x * factor, Y.tile((64,), (n,)))

base, x, y = Path(sys.argv[1]), np.arange(1000, dtype=np.float32), np.empty(1000, np.float32)
(base / f"ready-{sys.argv[2]}").touch()
while not (base / "go").exists():
    time.sleep(0.002)
ran = times(x, y, factor=3.0, target="cpu")
print(json.dumps([ran.target, ran.cached, bool((y == 3 * x).all()), str(ran.path)]))
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def libraries(cache: Path) -> list[Path]:
    return sorted(cache.rglob("*.so"))


def test_eight_processes_compile_one_kernel_once(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, tmp_path / "program.py", tmp_path]
    workers = [subprocess.Popen([*command, str(n)], stdout=subprocess.PIPE, text=True) for n in range(8)]
    deadline = time.monotonic() + 120
    while len(list(tmp_path.glob("ready-*"))) < 8 and time.monotonic() < deadline:
        time.sleep(0.01)
    (tmp_path / "go").touch()
    answers = [json.loads(worker.communicate(timeout=120)[0]) for worker in workers]
    [path] = libraries(cache)
    assert [answer[0] for answer in answers] == ["cpu"] * 8
    assert sorted(answer[1] for answer in answers) == [False] + [True] * 7
    assert all(answer[2] for answer in answers)
    assert {answer[3] for answer in answers} == {str(path)}


def times_kernel() -> Any:
    @tw.kernel(X="N", Y="N")
    def times(X, Y, *, factor):
        n = tw.block_index(tw.ceil_div(X.shape[0], 64))
        x = tw.load(X.tile((64,), (n,)).partition((32,)))
        tw.copy(x * factor, Y.tile((64,), (n,)))

    return times


def run(kernel: Any, factor: float) -> Any:
    x, y = np.arange(1000, dtype=np.float32), np.empty(1000, np.float32)
    executable = kernel(x, y, factor=factor, target="cpu")
    assert executable.target == "cpu"
    assert (y == factor * x).all()
    return executable


def test_a_damaged_library_is_compiled_again(cache: Path) -> None:
    first = run(times_kernel(), 5.0)
    assert not first.cached
    whole = first.path.read_bytes()
    first.path.unlink()  # it is mapped into this process: write a new file
    first.path.write_bytes(whole[: len(whole) // 2])
    again = run(times_kernel(), 5.0)
    assert not again.cached
    assert again.path == first.path
    assert run(times_kernel(), 5.0).cached


def test_kernels_of_one_name_and_other_constants_never_meet(cache: Path) -> None:
    made = [run(times_kernel(), factor) for factor in (2.0, 3.0, 2.5)]
    assert len({executable.path for executable in made}) == 3
    assert [path.read_bytes() for path in libraries(cache)] == [
        executable.path.read_bytes() for executable in sorted(made, key=lambda executable: executable.path)
    ]
    assert run(times_kernel(), 3.0).cached


def test_where_a_kernel_was_written_and_what_traced_it_do_not_count(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the text counts: the same text from another line or library version is in the cache."""
    kernel = (
        "import tilewright as tw\n"
        "@tw.kernel(X='N', Y='N')\n"
        "def twice(X, Y):\n"
        "    n = tw.block_index(tw.ceil_div(X.shape[0], 64))\n"
        "    x = tw.load(X.tile((64,), (n,)).partition((32,)))\n"
        "    tw.copy(x + x, Y.tile((64,), (n,)))\n"
    )
    x, found = np.ones(100, np.float32), []
    for name, above in (("one", ""), ("other", "\n\n")):
        path = cache.parent / f"{name}.py"
        path.write_text(above + kernel)
        y = np.empty_like(x)
        found.append(runpy.run_path(str(path))["twice"](x, y, target="cpu"))
        assert (y == 2).all()
    first, second = found
    assert first.listing.text != second.listing.text
    assert [first.cached, second.cached] == [False, True]
    assert first.path == second.path
    monkeypatch.setattr(host, "toolchain_id", lambda: "another compiler")
    assert not runpy.run_path(str(path))["twice"](x, y, target="cpu").cached


def test_one_name_and_other_text_never_meet(cache: Path) -> None:
    def made(more: bool) -> Any:
        @tw.kernel(X="N", Y="N")
        def same_name(X, Y):
            n = tw.block_index(tw.ceil_div(X.shape[0], 64))
            x = tw.load(X.tile((64,), (n,)).partition((32,)))
            tw.copy(x + x if more else x, Y.tile((64,), (n,)))

        return same_name

    x = np.ones(100, np.float32)
    for more in (True, False):
        y = np.empty_like(x)
        assert not made(more)(x, y, target="cpu").cached
        assert (y == 1 + more).all()
