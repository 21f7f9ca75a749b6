"""Number formats that are not in this library, each added by one line of `dtypes.py`, on every target."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tilewright

pytestmark = pytest.mark.in_turns(3)
ROOT = Path(__file__).parents[2]
LAST = 'f8e5m2fnuz = _record("f8e5m2fnuz", 8, "float", ml_dtypes.float8_e5m2fnuz, mantissa=2, dlpack=13)\n'
LINES = (
    'f8e3m4 = _record("f8e3m4", 8, "float", ml_dtypes.float8_e3m4, mantissa=4, dlpack=7)\n'
    'b11 = _record("f8e4m3b11fnuz", 8, "float", ml_dtypes.float8_e4m3b11fnuz, mantissa=3, dlpack=9)\n'
    'u4 = _record("u4", 4, "uint", ml_dtypes.uint4)\n'
)


def test_a_number_format_is_one_line_of_one_file(tmp_path: Path) -> None:
    package = tmp_path / "tilewright"
    package.mkdir()
    source = Path(tilewright.__file__).parent
    for one in source.iterdir():
        if one.name not in ("dtypes.py", "__pycache__"):
            (package / one.name).symlink_to(one)
    text = (source / "dtypes.py").read_text()
    assert LAST in text
    (package / "dtypes.py").write_text(text.replace(LAST, LAST + LINES))
    command = [sys.executable, "-m", "tests.targets.next_formats"]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    made = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert made.stdout.split() == ["f8e3m4", "f8e4m3b11fnuz", "u4"], made.stderr[-2000:]
