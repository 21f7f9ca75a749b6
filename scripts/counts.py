"""Figures that show whether the source has become easier to follow.

    python scripts/counts.py
    python scripts/counts.py --json counts.json

Each figure is the value of a function below, whose first sentence defines it.  The script prints them as a
table, followed by the class names that occur in several files.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import statistics
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "tilewright"
sys.path.insert(0, str(ROOT / "src"))

FEW_LINES = 100
CLASS = re.compile(r"^[ ]*class (\w+)[(:]", re.MULTILINE)
READS, READS_RECORD = "_locate_numpy", "located"
"""Functions that read the metadata of a NumPy array, or of the record of any array."""

NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}


@dataclass(frozen=True)
class File:
    """A Python file.

    Args:
        path: its path.
    """

    path: Path

    @cached_property
    def tree(self) -> ast.Module:
        """Its syntax tree."""
        return ast.parse(self.path.read_bytes())

    @cached_property
    def code(self) -> frozenset[int]:
        """Numbers of its lines of code: neither blank, nor only a comment or docstring."""
        with self.path.open("rb") as file:
            tokens = [one for one in tokenize.tokenize(file.readline) if one.type not in NO_CODE]
        lines = {at for one in tokens for at in range(one.start[0], one.end[0] + 1)}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str):
                lines -= {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}
        return frozenset(lines)

    @property
    def lines(self) -> int:
        """Number of all its lines."""
        return len(self.path.read_bytes().splitlines())

    def nodes(self, *kinds: type[Any]) -> Iterator[Any]:
        """Yield its nodes of some kinds."""
        return (node for node in ast.walk(self.tree) if isinstance(node, kinds))


class Source:
    """The files of a package.

    Args:
        folder: the package's folder.
    """

    def __init__(self, folder: Path = PACKAGE) -> None:
        self.folder = folder
        self.all = [File(path) for path in sorted(folder.rglob("*.py"))]

    def code_lines(self) -> int:
        """Lines that are neither blank nor only a comment or docstring."""
        return sum(len(file.code) for file in self.all)

    def files(self) -> int:
        """Python files in the package."""
        return len(self.all)

    def short_files(self) -> int:
        """Files of fewer than 100 lines, blank ones and comments included."""
        return sum(file.lines < FEW_LINES for file in self.all)

    def median_function(self) -> float:
        """Median number of code lines of all functions, with signatures and without decorators."""
        return statistics.median(
            sum(at in file.code for at in range(node.lineno, node.end_lineno + 1))
            for file in self.all
            for node in file.nodes(ast.FunctionDef, ast.AsyncFunctionDef)
        )

    def used_once(self) -> float:
        """Share of private functions that are named in only one place, among those with a unique name.

        A name is private if it begins with one underscore.  Uses as variables or attributes are counted in
        the whole package.
        """
        defined: Counter[str] = Counter()
        named: Counter[str] = Counter()
        for file in self.all:
            for node in file.nodes(ast.FunctionDef, ast.AsyncFunctionDef, ast.Name, ast.Attribute):
                if isinstance(node, ast.Name | ast.Attribute):
                    named[node.id if isinstance(node, ast.Name) else node.attr] += 1
                elif node.name.startswith("_") and not node.name.startswith("__"):
                    defined[node.name] += 1
        alone = [name for name, count in defined.items() if count == 1]
        return sum(named[name] == 1 for name in alone) / len(alone)

    def class_names(self) -> dict[str, list[str]]:
        """Class names that occur in two or more files, with those files."""
        found: dict[str, set[str]] = defaultdict(set)
        for file in self.all:
            for name in CLASS.findall(file.path.read_text()):
                found[name].add(str(file.path.relative_to(self.folder)))
        return {name: sorted(found[name]) for name in sorted(found) if len(found[name]) > 1}


# ---------------------------------------------------------------- the way of an argument


@dataclass(frozen=True)
class Way:
    """The way of an argument through the package.

    Args:
        files: files in which a function receives it, in order; neighbours differ.
    """

    files: tuple[str, ...]

    @property
    def distinct(self) -> int:
        """Number of files whose functions receive the array, its `ArrayInfo`, or a container of either."""
        return len({*self.files})

    @property
    def returns(self) -> int:
        """Number of times that it returns to a file that it had left."""
        return len(self.files) - self.distinct


def way_of(array: Any, call: Callable[[], object], folder: Path = PACKAGE) -> Way:
    """Follow an array through a call: return the files of a package that receive it.

    Args:
        array: a NumPy array.
        call: makes the call.
        folder: the package's folder.
    """
    from tilewright.runtime.arrays import ArrayInfo

    address = array.ctypes.data
    files: list[str] = []

    def is_it(value: Any) -> bool:
        return value is array or (isinstance(value, ArrayInfo) and value.pointer == address)

    def carries(value: Any) -> bool:
        if is_it(value):
            return True
        if isinstance(value, list | tuple):
            return any(map(is_it, value))
        if isinstance(value, dict):
            return any(map(is_it, value.values()))
        if is_dataclass(value) and not isinstance(value, type):
            return any(is_it(getattr(value, one.name, None)) for one in fields(value))
        return False

    def called(code: CodeType, frame: FrameType) -> None:
        count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
        if any(carries(frame.f_locals.get(name)) for name in code.co_varnames[:count]):
            place = str(Path(code.co_filename).relative_to(folder))
            if files[-1:] != [place]:
                files.append(place)

    followed(call, called, folder)
    return Way(tuple(files))


def descriptions(call: Callable[[], object]) -> tuple[int, int]:
    """Count how often a call reads the metadata of NumPy arrays, and of their records."""
    found: Counter[str] = Counter()
    place = PACKAGE / "runtime" / "frameworks.py"
    followed(call, lambda code, frame: found.update([code.co_name]), place)
    assert found[READS], f"{place.name} has no {READS}, which this counts"
    return found[READS], found[READS_RECORD]


def followed(call: Callable[[], object], seen: Callable[[CodeType, FrameType], None], under: Path) -> None:
    """Make a call, and report each function call from files under a path."""
    start = str(under)

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(start):
            sys.setprofile(None)
            try:
                seen(frame.f_code, frame)
            finally:
                sys.setprofile(profile)

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)


def first_calls() -> dict[str, float]:
    """Return the ways of arguments through first calls on the CPU, and how often arrays are described."""
    import numpy as np

    import tilewright as tw

    found: dict[str, float] = {}
    a, b, out = np.ones((70, 40), "f2"), np.ones((40, 72), "f2"), np.empty((70, 72), "f2")
    weights, scales = np.ones((40, 72), "i1"), np.ones(72, "f4")
    x, y, z = np.ones((70, 40), "c8"), np.ones((40, 72), "c8"), np.empty((70, 72), "c8")
    ways = {
        "a of matmul": way_of(a, lambda: tw.matmul(a, b, out, target="cpu")),
        "b of scaled_mm": way_of(weights, lambda: tw.scaled_mm(a, weights, scale_b=scales, target="cpu")),
    }
    for name, way in ways.items():
        found[f"{name}: files"] = way.distinct
        found[f"{name}: returns to a file"] = way.returns
    # Other layouts, so that these are first calls, too.
    turned, columns = np.ones((40, 70), "f2").T, np.ones((72, 40), "f2").T
    calls = {
        "matmul": lambda: tw.matmul(turned, columns, out, target="cpu"),
        "complex_matmul": lambda: tw.complex_matmul(x, y, out=z, target="cpu"),
    }
    for name, call in calls.items():
        arrays, records = descriptions(call)
        found[f"{name} of 3 arrays: reads of their metadata"] = arrays
        found[f"{name} of 3 arrays: reads of records of them"] = records
    return found


def counted(*, calls: bool = True) -> tuple[dict[str, float], dict[str, list[str]]]:
    """Return all figures, and the class names that occur in several files.

    Args:
        calls: whether to follow first calls, which compiles kernels.
    """
    source = Source()
    names = source.class_names()
    figures: dict[str, float] = {
        "lines of code": source.code_lines(),
        "files": source.files(),
        "files of fewer than 100 lines": source.short_files(),
        "lines of code of a function, median": source.median_function(),
        "private functions named once, per cent": round(100 * source.used_once(), 1),
        "class names in two files or more": len(names),
    }
    return (figures | first_calls() if calls else figures), names


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, help="a file to write the figures to")
    parser.add_argument(
        "--source", action="store_true", help="only the figures of the source; makes no calls"
    )
    asked = parser.parse_args()
    figures, names = counted(calls=not asked.source)
    width = max(map(len, figures))
    for name, value in figures.items():
        print(f"{name:{width}}  {value:>8g}")
    print(f"\nclass names in two files or more ({len(names)}):")
    for name, places in names.items():
        print(f"  {name}: {', '.join(places)}")
    if asked.json is not None:
        asked.json.write_text(json.dumps({"figures": figures, "class names": names}, indent=1) + "\n")


if __name__ == "__main__":
    main()
