"""A mutation campaign: change the library's source in one place, and see whether a nearby test fails.

    python scripts/mutate.py --map [--jobs 2]
    python scripts/mutate.py --count 200 --seed 1 [--jobs 2] [--json tests/src_mutants.json]
    python scripts/mutate.py --again

``--map`` runs the tests of the rooms once under `coverage` (``pip install coverage``), and writes into
`.mutation/` which tests execute which line.  After that a mutant takes seconds: the quickest tests that
execute its line run until one fails.  If none fails, the mutant has survived.  The record keeps each mutant
with its outcome.  For a survivor that is equivalent to the original, a person writes the reason into ``why``.
After tests were added, run ``--map`` and ``--again`` to retry the mutants that no test had killed.

Mutants change the meaning: a comparison, an operator, a constant, a condition, a sort, a rounding, a dropped
call.  Lines that change no result are left out: messages, and rules that only rank legal schedules.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".mutation"
RECORD = ROOT / "tests" / "src_mutants.json"
ROOMS = ("ops", "schedule", "dataflow", "targets/cpu")
RANKING = ("choose", "candidates", "tables", "_time", "estimate", "gains", "slow")
"""Parts of the names of files that only rank legal schedules or warn; they are not mutated."""
TESTS = (
    *(
        "tests/ops",
        "tests/schedule",
        "tests/dataflow",
        "tests/targets/cpu",
        "tests/targets/cuda",
        "tests/lang",
    ),
    *("tests/problems", "tests/checking", "tests/hazards", "tests/targets/hip/test_members.py"),
)
MOST_TESTS, MOST_SECONDS, ENDED_AFTER_S = 40, 40.0, 240.0
"""Limits for one mutant: number of tests, their seconds on the unchanged source, and the timeout."""

COMPARED = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
COMPUTED = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
}
CALLED = {
    "min": "max",
    "max": "min",
    "any": "all",
    "all": "any",
    "sorted": "list",
    "round": "int",
    "abs": "+",
}


@dataclass(frozen=True)
class Mutant:
    """One change of one file.

    Args:
        file: the path below `src/tilewright`.
        function: the function that is changed.
        line: its line, counted from 1.
        before: the source text that is replaced.
        after: the text that replaces it.
        start: the offset of ``before`` in the file.
    """

    file: str
    function: str
    line: int
    before: str
    after: str
    start: int

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Return an identity of a mutant that does not depend on its line number."""
        return self.file, self.function, self.before, self.after


def changed(node: ast.AST) -> Iterator[str]:
    """Return the texts that may replace a node."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in COMPARED:
            yield ast.unparse(ast.Compare(node.left, [COMPARED[type(op)]()], node.comparators))
        case ast.BinOp(op=op) if type(op) in COMPUTED and not isinstance(
            node.left, ast.Constant | ast.JoinedStr
        ):
            yield f"({ast.unparse(ast.BinOp(node.left, COMPUTED[type(op)](), node.right))})"
        case ast.BoolOp(op=op):
            other = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield f"({ast.unparse(ast.BoolOp(other, node.values))})"
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield f"({ast.unparse(node.operand)})"
        case ast.Constant(value=bool(value)):
            yield str(not value)
        case ast.Constant(value=int(value)) if value < 1 << 16:
            yield str(value + 1)
        case ast.Call(func=ast.Name(id=name), args=[_, *_]) if name in CALLED:
            yield f"{CALLED[name]}({', '.join(map(ast.unparse, [*node.args, *node.keywords]))})"
        case ast.IfExp():
            yield f"({ast.unparse(ast.IfExp(node.test, node.orelse, node.body))})"
        case ast.Expr(value=ast.Call()):
            yield "pass"
        case _:
            return


def mutants(path: Path) -> Iterator[Mutant]:
    """Yield every mutant of a file, in the order of its text."""
    text = path.read_text(encoding="utf-8")
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    lines = text.splitlines()

    def offset(line: int, column: int) -> int:
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    def walk(node: ast.AST, function: str) -> Iterator[Mutant]:
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert):
            return
        if function and isinstance(node, ast.expr | ast.stmt):
            start, end = (
                offset(node.lineno, node.col_offset),
                offset(node.end_lineno or 0, node.end_col_offset or 0),
            )
            for after in changed(node):
                yield Mutant(
                    path.relative_to(ROOT / "src" / "tilewright").as_posix(),
                    function,
                    node.lineno,
                    text[start:end],
                    after,
                    start,
                )
        if isinstance(node, ast.FunctionDef):
            if node.name.startswith("__") and node.name != "__init__":
                return
            for statement in node.body:
                yield from walk(statement, f"{function}.{node.name}".strip("."))
            return
        for child in ast.iter_child_nodes(node):
            yield from walk(child, function)

    yield from walk(ast.parse(text), "")


def sources() -> Iterator[Path]:
    """Return the files that are mutated."""
    for room in ROOMS:
        for path in sorted((ROOT / "src" / "tilewright" / room).rglob("*.py")):
            if not any(word in path.stem for word in RANKING):
                yield path


# The map of lines: here this file is a plugin of pytest.

_coverage: Any = None
_seconds: dict[str, float] = {}


def pytest_sessionstart(session: Any) -> None:
    """Start measuring coverage in each process of pytest-xdist, or in the only process."""
    global _coverage
    name = os.environ.get("PYTEST_XDIST_WORKER")
    if name is None and session.config.getoption("numprocesses", None):
        return
    coverage = __import__("coverage")
    folders = [str(ROOT / "src" / "tilewright" / room) for room in ROOMS]
    _coverage = coverage.Coverage(data_file=str(FOLDER / f"lines.{name}"), source=folders, config_file=False)
    _coverage.start()


def pytest_runtest_protocol(item: Any) -> None:
    """Attribute lines that run from here on to this test."""
    if _coverage is not None:
        _coverage.switch_context(item.nodeid)


def pytest_runtest_logreport(report: Any) -> None:
    """Remember how long a test that passed took."""
    if report.when == "call" and report.passed:
        _seconds[report.nodeid] = report.duration


def pytest_sessionfinish(session: Any) -> None:
    """Write the measurements of this process."""
    if _coverage is not None:
        _coverage.stop()
        _coverage.save()
    if os.environ.get("PYTEST_XDIST_WORKER") is None:
        (FOLDER / "seconds.json").write_text(json.dumps(_seconds))


def quickest(tests: list[str], seconds: dict[str, float]) -> list[str]:
    """Return the quickest of some tests, up to the limits for one mutant."""
    found: list[str] = []
    left = MOST_SECONDS
    for test in sorted((one for one in set(tests) if one in seconds), key=lambda one: (seconds[one], one)):
        left -= seconds[test]
        if found and (left < 0 or len(found) == MOST_TESTS):
            break
        found.append(test)
    return found


def make_map(jobs: int, tests: list[str]) -> None:
    """Run the tests of the rooms, and write which of them execute which line."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "mutate",
        "-n",
        str(jobs),
        "--fuzz-seed=27",
        *(tests or TESTS),
    ]
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "scripts")])
    subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}, check=False)
    data = __import__("coverage").CoverageData(basename=str(FOLDER / "all"))
    for part in sorted(FOLDER.glob("lines.*")):
        one = __import__("coverage").CoverageData(basename=str(part))
        one.read()
        data.update(one)
    seconds = json.loads((FOLDER / "seconds.json").read_text())
    found: dict[str, dict[int, list[str]]] = {}
    for name in data.measured_files():
        lines = {line: quickest(tests, seconds) for line, tests in data.contexts_by_lineno(name).items()}
        found[Path(name).relative_to(ROOT / "src" / "tilewright").as_posix()] = lines
    (FOLDER / "lines.json").write_text(json.dumps(found))


def run_tests(tests: list[str], tree: Path) -> int:
    """Run pytest on some tests in a tree; return its status, or 1 if they take too long."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-n",
        "0",
        "--timeout=60",
        "-p",
        "no:cacheprovider",
    ]
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "TILEWRIGHT_CACHE_DIR": str(tree / "cache")}
    try:
        run = subprocess.run(
            [*command, *tests], cwd=tree, env=environment, capture_output=True, timeout=ENDED_AFTER_S
        )
    except subprocess.TimeoutExpired:
        return 1
    return run.returncode


def outcome(mutant: Mutant, tests: list[str], tree: Path) -> str:
    """Run the tests on a tree with the mutant, and on the unchanged tree if they fail.

    Returns:
        ``survived``; ``killed``; or ``no test`` if the tests also fail, or are not found, without the mutant.
    """
    path = tree / "src" / "tilewright" / mutant.file
    text = path.read_text(encoding="utf-8")
    end = mutant.start + len(mutant.before)
    path.write_text(text[: mutant.start] + mutant.after + text[end:], encoding="utf-8")
    try:
        status = run_tests(tests, tree)
    finally:
        path.write_text(text, encoding="utf-8")
    if status == 0:
        return "survived"
    return "killed" if run_tests(tests, tree) == 0 else "no test"


def campaign(count: int, seed: int, jobs: int, record: Path, again: bool) -> None:
    """Draw mutants, or take those of the record that were not killed; try each; write the record."""
    lines = json.loads((FOLDER / "lines.json").read_text())

    def nearby(mutant: Mutant) -> list[str]:
        tests: list[str] = lines.get(mutant.file, {}).get(str(mutant.line), [])
        return tests

    reached = [mutant for path in sources() for mutant in mutants(path) if nearby(mutant)]
    before = json.loads(record.read_text())["mutants"] if record.exists() else []
    known = {(one["file"], one["function"], one["before"], one["after"]): one for one in before}
    if again:
        left = {key for key, one in known.items() if one["outcome"] != "killed"}
        drawn = [mutant for mutant in reached if mutant.key in left]
    else:
        drawn = random.Random(seed).sample(reached, min(count, len(reached)))
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(jobs):
            tree = Path(folder) / str(number)
            ignored = shutil.ignore_patterns(".git", ".venv", ".mutation", ".*_cache", "__pycache__", ".whl")
            shutil.copytree(ROOT, tree, ignore=ignored)
            trees.put(tree)

        def one(mutant: Mutant) -> dict[str, Any]:
            tree, tests, began = trees.get(), nearby(mutant), time.monotonic()
            try:
                found = outcome(mutant, tests, tree)
            finally:
                trees.put(tree)
            took = time.monotonic() - began
            shown = f"{mutant.file}:{mutant.line} {mutant.before!r} -> {mutant.after!r}"
            print(f"{found:<9} {took:5.1f} s {len(tests):3d} tests  {shown}", flush=True)
            why = {"why": known.get(mutant.key, {}).get("why", "")} if found == "survived" else {}
            return {**asdict(mutant), "tests": len(tests), "outcome": found, **why}

        tried = list(pool.map(one, drawn))
    if again:
        anew = {(one["file"], one["function"], one["before"], one["after"]) for one in tried}
        tried += [one for key, one in known.items() if key not in anew]
    counts = Counter(one["outcome"] for one in tried)
    equivalent = sum(1 for one in tried if one.get("why"))
    said = {"seed": seed, "reached": len(reached), **counts, "equivalent": equivalent}
    tried.sort(key=lambda one: (one["outcome"], one["file"], one["line"]), reverse=True)
    for mutant in tried:
        mutant.pop("start", None)
    record.write_text(json.dumps({**said, "mutants": tried}, indent=1) + "\n", encoding="utf-8")
    print(said)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--map", action="store_true", help="record which tests execute which line")
    parser.add_argument("--tests", nargs="*", default=[], help="for the map; default: those of the rooms")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--again", action="store_true", help="retry the mutants that no test killed")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path, default=RECORD)
    asked = parser.parse_args()
    if asked.map:
        make_map(asked.jobs, asked.tests)
    else:
        campaign(asked.count, asked.seed, asked.jobs, asked.json, asked.again)


if __name__ == "__main__":
    main()
