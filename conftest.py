"""A skipped test counts as failed: tests that cannot run everywhere carry a marker, and are deselected.

The markers `gpu` and `two_gpus` are for tests that need GPUs: `-m gpu` runs them, and without a GPU they
fail.  `disassembler` is for tests that compare the code objects for AMD GPUs with the output of
`llvm-objdump`.  `torch` is for all of `tests/torch` and `tests/distributed`, and the examples of
`tilewright.torch` and `tilewright.distributed`; these files import PyTorch, so without `-m torch` they are
not even read.

Every GPU test uses the fixture `canaries`: see `tests/canaries.py`.

Golden files hold the text that a test expects; `--update-golden` rewrites them, and you read the diff.
"""

from __future__ import annotations

import difflib
import gc
import os
import re
from collections.abc import Callable, Generator, Iterable
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import settings

ROOT = Path(__file__).parent

# Several processes test at once; a product of NumPy's in each must not ask for all processors.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# The same cases on every machine, and no failure because a machine was busy.
settings.register_profile("house", deadline=None, derandomize=True)
settings.load_profile("house")

NO_SKIPS = "skipping is a failure here; mark what needs a GPU with `pytest.mark.gpu`. The skip said: {}"


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = NO_SKIPS.format(reason)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Processes that tests start import this tree, whatever ``PYTHONPATH`` is, and compile it once.

    If Python may write no bytecode, they share a folder of bytecode during the session: otherwise some
    hundred processes would compile hundreds of modules each.
    """
    paths = dict.fromkeys((str(ROOT / "src"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", "") and "PYTHONPYCACHEPREFIX" not in os.environ:
        bytecode = TemporaryDirectory(prefix="bytecode-of-tests-", ignore_cleanup_errors=True)
        config.add_cleanup(bytecode.cleanup)
        os.environ["PYTHONPYCACHEPREFIX"] = bytecode.name
    if (minutes := config.getoption("--minutes")) is not None:
        config.pluginmanager.register(import_module("tests.turns").Deadline(minutes), "deadline")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write golden files instead of comparing")
    parser.addoption(
        "--every-mutant", action="store_true", help="try all mutants, not the part that the commit draws"
    )
    parser.addoption(
        "--every-case",
        action="store_true",
        help="run all cases of tests marked `in_turns`",
    )
    parser.addoption(
        "--minutes",
        type=float,
        help="cases that begin later run only if the seed draws them; the summary counts the others",
    )
    parser.addoption(
        "--fuzz-seed",
        type=int,
        help="draws cases, mutants and wrong calls; default: the commit's hash",
    )
    parser.addoption(
        "--torch-device", default="cpu", help="where the tests in PyTorch (-m torch) have their tensors"
    )
    parser.addoption("--jax-platform", default="cpu", help="where the tests in JAX (-m jax) compute")
    parser.addoption(
        "--every-compiler",
        action="store_true",
        help="execute what the older compiler for AMD GPUs makes of every case",
    )


FRAMEWORKS = {"torch": "PyTorch", "jax": "JAX"}
"""Frameworks by the marker of their tests."""

FOLDERS = {"torch": "torch", "distributed": "torch", "jax": "jax"}
"""Markers by the folders whose files import a framework, in the tests and in the package."""


def _framework_of(path: Path) -> str | None:
    """The marker of a folder whose files import a framework."""
    is_one = path.parent in (ROOT / "tests", ROOT / "src" / "tilewright") and path.name in FOLDERS
    return FOLDERS[path.name] if is_one else None


def _asks_for(marker: str, config: pytest.Config) -> bool:
    return re.search(rf"(?<!not )\b{marker}\b", config.option.markexpr) is not None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    marker = _framework_of(collection_path)
    return True if marker is not None and not _asks_for(marker, config) else None


def pytest_report_header(config: pytest.Config) -> str:
    cases = "all" if _runs_every_case(config) else "those that the seed draws; all of them: --every-case"
    lines = [f"fuzz seed: {_fuzz_seed(config)}", f"cases of tests in turns: {cases}"]
    for marker, name in FRAMEWORKS.items():
        run = "run" if _asks_for(marker, config) else f"left out; with them alone: -m {marker}"
        lines.append(f"tests in {name}: {run}")
    return "\n".join(lines)


def _fuzz_seed(config: pytest.Config) -> int:
    return int(import_module("tests.turns").seed_of(config))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give the seed to a worker of pytest-xdist."""
    node.workerinput["seed"] = _fuzz_seed(node.config)


def _runs_every_case(config: pytest.Config) -> bool:
    """Return whether no test takes turns: on request, for named cases, or for cases that failed before."""
    failed = config.getoption("lf", False) or config.getoption("failedfirst", False)
    named = config.getoption("keyword") or any("::" in argument for argument in config.args)
    return bool(named or failed) or any(map(config.getoption, ("--every-case", "--update-golden")))


@pytest.fixture(scope="session")
def fuzz_seed(request: pytest.FixtureRequest) -> int:
    """Return the seed of the session: from the commit, or ``--fuzz-seed``."""
    return _fuzz_seed(request.config)


@pytest.fixture
def turns(request: pytest.FixtureRequest) -> Any:
    """Return the mutants to try: see `tests/turns.py`."""
    every = any(request.config.getoption(option) for option in ("--every-mutant", "--update-golden"))
    found = import_module("tests.turns")
    number = found.draw_of(request.node, _fuzz_seed(request.config))
    return found.Turns(request.node.nodeid.removeprefix("tests/"), every, number)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(text, "name.txt")` compares with `golden/name.txt` next to the test."""

    def check(text: str, name: str) -> None:
        path = Path(request.path).parent / "golden" / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")
        elif (expected := path.read_text(encoding="utf-8") if path.exists() else "") != text:
            lines = (expected.splitlines(), text.splitlines(), f"golden/{name}", "this run")
            diff = "\n".join(difflib.unified_diff(*lines, lineterm=""))
            pytest.fail(f"{diff}\nif this is what it should say: pytest --update-golden", pytrace=False)

    return check


@pytest.fixture
def no_known_products() -> None:
    """`matmul` knows no kernel yet, as in a new process."""
    matmul, products = (import_module(f"tilewright.ops.{name}") for name in ("matmul", "products"))
    for kernels in (products.plain, products.combined):
        kernels.cache_clear()
    matmul._PLANS.forget()
    matmul._SHORTCUTS.forget()


def runs_on_gpu(item: Any) -> bool:
    """Return whether a test has a marker for GPUs."""
    return any(item.get_closest_marker(name) for name in ("gpu", "two_gpus"))


@pytest.fixture(autouse=True, scope="session")
def nothing_kept() -> Generator[None, None, None]:
    """Keep no kernel for later processes: tests replace functions, which no key includes."""
    with patch("tilewright.runtime.cache.library", lambda: ""):
        yield


@pytest.fixture(autouse=True, scope="session")
def first_choices_are_legal() -> Generator[None, None, None]:
    """Let no test pass because a later proposal takes the place of an illegal choice."""
    with patch("tilewright.runtime.scheduled.first_legal", lambda question: None):
        yield


@pytest.fixture(autouse=True)
def canaries(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Generator[Any, None, None]:
    """In every GPU test, outputs lie between canaries, which are checked when the test ends."""
    if not runs_on_gpu(request.node):
        yield None
        return
    with import_module("tests.canaries").in_force(monkeypatch) as made:
        yield made


@pytest.fixture(autouse=True)
def kernels_executed(request: pytest.FixtureRequest) -> Generator[None, None, None]:
    """In every example of a docstring: each kernel is executed (`tests/examples_run.py`)."""
    if not isinstance(request.node, pytest.DoctestItem):
        yield
        return
    with import_module("tests.examples_run").every_kernel_executed(request.node.name):
        yield


def without_canaries(items: Iterable[Any]) -> list[str]:
    """Return the GPU tests that do not use the fixture."""
    return [item.nodeid for item in items if runs_on_gpu(item) and "canaries" not in item.fixturenames]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if missing := without_canaries(items):
        raise pytest.UsageError(f"GPU tests without the fixture `canaries`: {', '.join(missing)}")
    for item in items:
        for marker in filter(None, map(_framework_of, item.path.parents)):
            item.add_marker(marker)
            item.add_marker(pytest.mark.filterwarnings(f"ignore::DeprecationWarning:{marker}"))
    deadline, every = config.pluginmanager.get_plugin("deadline"), _runs_every_case(config)
    if every and deadline is None:
        return
    waiting = import_module("tests.turns").left_out(items, _fuzz_seed(config), runs_on_gpu)
    if every:
        deadline.waiting = waiting
        return
    items[:] = [item for item in items if id(item) not in waiting]
    config.hook.pytest_deselected(items=[*waiting.values()])


def pytest_collection_finish() -> None:
    """Collected tests live until the end; the garbage collector skips them, and runs seldom.

    Tracing makes many objects that live as long as their kernel, and a collection after every 700 objects
    took a tenth of its time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _refuse_skip(report)
    return report
