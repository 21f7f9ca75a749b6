"""The entry file names missing tools at once, instead of failing later."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SH = os.path.realpath(shutil.which("sh") or "")  # a script names it, and takes no path with a space


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Return the files that set-up reads, in a directory whose name has a space."""
    directory = tmp_path / "a clone"
    directory.mkdir()
    for name in ("dev", "pyproject.toml"):
        shutil.copy(ROOT / name, directory)
    return directory


def dev(
    clone: Path, *arguments: str, programs: dict[str, str], environment: Mapping[str, str] = {}
) -> subprocess.CompletedProcess[str]:
    """Run `dev` with a PATH of basic tools and the given shell scripts."""
    path = clone.parent / "bin"
    path.mkdir(exist_ok=True)
    for tool in ("cat", "chmod", "cksum", "dirname", "mkdir", "rm"):
        found = shutil.which(tool)
        assert found
        (path / tool).unlink(missing_ok=True)
        (path / tool).symlink_to(found)
    for name, body in programs.items():
        (path / name).write_text(f"#!{SH}\n{body}\n")
        (path / name).chmod(0o755)
    assert SH
    return subprocess.run(
        [SH, clone / "dev", *arguments],
        env={**environment, "PATH": str(path)},
        capture_output=True,
        text=True,
    )


def test_it_asks_what_to_do(clone: Path) -> None:
    result = dev(clone, programs={})
    assert result.returncode == 1
    assert (
        "sh dev demo, sh dev test [arguments of pytest], sh dev torch, sh dev jax, or sh dev docs"
        in result.stderr
    )


def test_it_names_the_python_it_needs(clone: Path) -> None:
    result = dev(clone, "test", programs={"python3": "exit 1"})
    assert result.returncode == 1
    assert "Python 3.11 or newer is needed" in result.stderr
    assert not (clone / ".venv").exists()


def test_it_names_a_missing_pip(clone: Path) -> None:
    only_bare_environments = """
case "$*" in
-c* | --version) ;;
"-m venv --without-pip .venv") mkdir -p .venv/bin ;;
*) exit 1 ;;
esac"""
    result = dev(clone, "demo", programs={"python3": only_bare_environments})
    assert result.returncode == 1
    assert "pip is needed" in result.stderr


def test_it_installs_the_compiler_only_where_none_is(clone: Path) -> None:
    without = dev(clone, "demo", programs={"python3": "case $1 in -c) ;; *) exit 1 ;; esac"})
    assert "extras: plot,native" in without.stdout


def test_it_keeps_to_the_compiler_that_is_there(clone: Path) -> None:
    programs = {"python3": "case $1 in -c) ;; *) exit 1 ;; esac", "c++": ""}
    assert "extras: plot (" in dev(clone, "demo", programs=programs).stdout


# Makes an environment whose pip installs while the file `answer of pip` exists.
WORKING_PYTHON = """
[ "$1 $2" = "-m venv" ] || exit 0
mkdir -p .venv/bin
echo 'case $3 in install) exec cat "$PWD/answer of pip" ;; esac' >.venv/bin/python
echo 'echo the demo runs' >.venv/bin/tilewright
chmod +x .venv/bin/python .venv/bin/tilewright
"""


def test_it_sets_up_once(clone: Path) -> None:
    (clone / "answer of pip").touch()
    first, second = (dev(clone, "demo", programs={"python3": WORKING_PYTHON}) for _ in range(2))
    assert "setting up" in first.stdout
    assert "the demo runs" in first.stdout
    assert second.stdout == "the demo runs\n"


def test_it_sets_up_again_when_the_project_asks_for_more(clone: Path) -> None:
    (clone / "answer of pip").touch()
    dev(clone, "demo", programs={"python3": WORKING_PYTHON})
    with (clone / "pyproject.toml").open("a") as stream:
        stream.write("# one more\n")
    assert "setting up" in dev(clone, "demo", programs={"python3": WORKING_PYTHON}).stdout


def test_it_starts_over_after_an_interruption(clone: Path) -> None:
    (clone / "answer of pip").touch()
    dev(clone, "demo", programs={"python3": WORKING_PYTHON})
    (clone / ".venv" / "unfinished").touch()
    (clone / ".venv" / "half a package").touch()
    result = dev(clone, "demo", programs={"python3": WORKING_PYTHON})
    assert "starting over" in result.stdout
    assert "the demo runs" in result.stdout
    assert not (clone / ".venv" / "half a package").exists()


def test_it_leaves_no_stamp_when_installing_fails(clone: Path) -> None:
    result = dev(clone, "demo", programs={"python3": WORKING_PYTHON})
    assert "installing the packages failed" in result.stderr
    assert [path.name for path in (clone / ".venv").iterdir() if "set-up" in path.name] == []
    assert (clone / ".venv" / "unfinished").exists()


@pytest.mark.parametrize(("variable", "whole"), [("", False), ("true", True), ("1", False)])
def test_ci_runs_every_case(clone: Path, variable: str, whole: bool) -> None:
    """Every check is a program that prints its arguments; the environment is already set up."""
    tools = clone / ".venv" / "bin"
    tools.mkdir(parents=True)
    for name in ("python", "ruff", "mypy", "lint-imports", "pytest"):
        (tools / name).write_text(f'#!{SH}\necho "ran {name} $*"\n')
        (tools / name).chmod(0o755)
    script = (clone / "dev").read_text().replace("set_up test test\n", "")
    (clone / "dev").write_text(script)
    result = dev(clone, "test", "tests/some.py", programs={}, environment={"CI": variable})
    assert result.returncode == 0, result.stderr
    [line] = [line for line in result.stdout.splitlines() if line.startswith("ran pytest")]
    options = "--every-case --every-mutant --every-compiler --fuzz-seed=27 --minutes=40 --durations=60 "
    assert line == f"ran pytest {options if whole else ''}tests/some.py"
