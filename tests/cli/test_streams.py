"""Full or closed standard streams, Ctrl-C, and names that the locale does not know."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.in_turns(3)

COMMAND = f"{shlex.quote(sys.executable)} -m tilewright"
GEMM = "gemm 8 8 8 --target reference --no-time"
ASCII = {**os.environ, "PYTHONIOENCODING": "ascii"}
READER = "import io, sys, numpy; print(numpy.load(io.BytesIO(sys.stdin.buffer.read())).shape)"


def shell(line: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["sh", "-c", line], capture_output=True, timeout=120, **options)


@pytest.mark.parametrize(
    ("verb", "stream"), [("--help", "> /dev/full"), (GEMM, "> /dev/full"), (GEMM, ">&-")]
)
def test_an_output_that_nobody_gets(verb: str, stream: str) -> None:
    done = shell(f"{COMMAND} {verb} {stream}")
    assert done.returncode == 2
    said = done.stderr.decode()
    assert said.startswith("tilewright: ")
    assert said.count("\n") == 1
    assert ("closed" if "-" in stream else "No space left on device") in said


@pytest.mark.parametrize("stream", ["2>&-", "2> /dev/full"])
@pytest.mark.parametrize(("verb", "status"), [(GEMM, 0), ("gemm 8 8", 2)])
def test_errors_that_nobody_gets(stream: str, verb: str, status: int) -> None:
    done = shell(f"{COMMAND} {verb} {stream}")
    assert done.returncode == status
    assert done.stderr == b""
    assert (b"all 64 elements" in done.stdout) == (status == 0)


def test_c_goes_to_the_standard_output_alone() -> None:
    reader = f"{shlex.quote(sys.executable)} -c {shlex.quote(READER)}"
    done = shell(f"{COMMAND} {GEMM} -o /dev/stdout | {reader}")
    assert done.stdout == b"(8, 8)\n"
    assert b"all 64 elements" in done.stderr


def test_a_device_is_no_reader_of_c_alone() -> None:
    done = shell(f"{COMMAND} {GEMM} -o /dev/null > /dev/null")
    assert (done.returncode, done.stderr) == (0, b"")


def test_c_is_appended_where_the_shell_says_so(tmp_path: Path) -> None:
    (tmp_path / "c").write_bytes(b"before")
    done = shell(f"{COMMAND} {GEMM} -o /dev/stdout >> c", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    content = (tmp_path / "c").read_bytes()
    assert content.startswith(b"before\x93NUMPY")
    assert len(content) == 6 + 128 + 8 * 8 * 4


def test_names_that_the_locale_does_not_know_are_spelled(tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/\xff\xe9.npy"
    with open(name, "wb") as file:
        np.save(file, np.eye(8, dtype=np.float32))
    words = GEMM.replace("8 8 8 ", "").split()
    command = [sys.executable, "-m", "tilewright", *words, name, name, "-o", name]
    done = subprocess.run(command, capture_output=True, env=ASCII, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert b"??.npy: C 8x8 f32" in done.stdout


# A shell's background jobs ignore interrupts, and so does what they start: as where the suite runs in one.
HEEDS_INTERRUPTS = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"


def interrupted(program: str, folder: Path) -> None:
    """Run a program, interrupt it after it has made a file, and return its output."""
    process = subprocess.Popen(
        [sys.executable, "-c", HEEDS_INTERRUPTS + program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
    )
    deadline = time.monotonic() + 60
    while not (folder / "there").exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    said = b""
    try:
        for _ in range(4):  # Python drops an interrupt that comes while it frees an object, as people know
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                _, said = process.communicate(timeout=12)
                break
    finally:
        process.kill()
        process.communicate()
    assert said == b"tilewright: interrupted\n"
    assert process.returncode == 130


IMPORTING = """
import importlib.abc, sys, time
from pathlib import Path
class Slow(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "tilewright.MODULE":
            Path("there").touch()
            time.sleep(60)
sys.meta_path.insert(0, Slow())
sys.argv = ["tilewright", "--help"]
from tilewright.cli import main
main()
"""


@pytest.mark.parametrize("module", ["cli.verbs", "tune.trial"])
def test_ctrl_c_during_imports(module: str, tmp_path: Path) -> None:
    interrupted(IMPORTING.replace("MODULE", module), tmp_path)


WORKING = """
import sys, time
from pathlib import Path
from tilewright.cli import main
import tilewright.tune.trial as trial
def slow(self):
    Path("there").touch()
    time.sleep(60)
trial.Trial.run = slow
sys.argv = ["tilewright", "gemm", "8", "8", "8", "--target", "reference", "-o", "c.npy"]
main()
"""


def test_ctrl_c_during_the_work(tmp_path: Path) -> None:
    interrupted(WORKING, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
