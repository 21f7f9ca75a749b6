"""The figures of `scripts/counts.py` are right for a small package, and do not grow for the library."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from operator import le
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]

MOST_FILES = 480
MOST_CLASS_NAMES = 2
"""Names that classes of two files or more have.  Whoever gets below one of the two lowers it."""


def script() -> Any:
    spec = importlib.util.spec_from_file_location("counts", ROOT / "scripts" / "counts.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["counts"] = module
    spec.loader.exec_module(module)
    return module


COUNTS = script()

FIRST = '''"""A file.

class Nothing: of a docstring.
"""

import second  # the other one


class Twice:
    """Here."""


def begin(a, b):
    """It goes to and fro."""
    # A comment.
    second.middle([a])
    _once(b)
    return second.end({"a": a})


def _once(b):
    return _often(b)


def _often(a):
    text = """two
    lines"""
    return second.sideways(_often, text)


def again(record):
    return second.end(record)
'''
SECOND = """class Twice: ...
class Alone(Twice): ...
def middle(given): return None
def end(given):
    if isinstance(given, dict):
        import first
        return first.again(given["a"])
def sideways(one, two): return None
"""


def package(folder: Path) -> Any:
    (folder / "first.py").write_text(FIRST)
    (folder / "second.py").write_text(SECOND)
    return COUNTS.Source(folder)


def test_figures_of_a_small_package(tmp_path: Path) -> None:
    source = package(tmp_path)
    assert (source.files(), source.short_files()) == (2, 2)
    assert source.code_lines() == 14 + 8
    assert source.class_names() == {"Twice": ["first.py", "second.py"]}
    assert source.used_once() == 0.5  # `_once` is named once, `_often` twice
    assert source.median_function() == 2  # of 4, 2, 4, 2, 1, 4 and 1 lines


def test_the_way_of_an_argument(tmp_path: Path, monkeypatch: Any) -> None:
    """It is followed in collections, and only as far as functions receive it."""
    package(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    import first  # type: ignore[import-not-found]

    a, b = np.zeros(3), np.zeros(4)
    way = COUNTS.way_of(a, lambda: first.begin(a, b), tmp_path)
    assert way.files == ("first.py", "second.py", "first.py", "second.py")
    assert (way.distinct, way.returns) == (2, 2)
    assert COUNTS.way_of(b, lambda: first.begin(a, b), tmp_path).files[0] == "first.py"
    assert COUNTS.way_of(np.zeros(3), lambda: first.begin(a, b), tmp_path).files == ()


WAYS = """
import numpy as np
import tilewright as tw
from tests.house.test_counts import COUNTS
a, b, out = np.ones((71, 37), "f2"), np.ones((37, 67), "f2"), np.empty((71, 67), "f2")
way = COUNTS.way_of(a, lambda: tw.matmul(a, b, out, target="cpu"))
weights, scales = np.ones((37, 67), "i1"), np.ones(67, "f4")
other = COUNTS.way_of(weights, lambda: tw.scaled_mm(a, weights, scale_b=scales, target="cpu"))
assert "ops/matmul.py" in way.files and "ops/scaled.py" in other.files
print(way.distinct, way.returns, other.distinct, other.returns)
"""


def test_the_ways_of_operands_do_not_grow() -> None:
    """First calls on the CPU run in a separate process, because later calls take other ways."""
    command = [sys.executable, "-c", WAYS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = tuple(map(int, done.stdout.split()))
    assert all(map(le, found, (7, 6, 8, 7))), found


def test_figures_do_not_grow() -> None:
    source = COUNTS.Source()
    assert source.files() <= MOST_FILES, "put it into a file that is there, or join two others"
    names = source.class_names()
    assert len(names) <= MOST_CLASS_NAMES, f"another file has a class of that name: {names}"
