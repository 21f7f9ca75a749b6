"""Run a program in this process, with the effect of ``python program words``.

Starting Python with the library takes most of a second, and the tests run some hundred programs.  Only a
fresh start, an exit by a signal, and text on the screen need a separate process.
"""

from __future__ import annotations

import functools
import io
import runpy
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import typer.testing

_COMMANDS = functools.cache(typer.main.get_command)


class CliRunner(typer.testing.CliRunner):
    """Typer's runner; a process makes its commands only once.

    Typer makes the commands of every verb anew for each call, which takes longer than most calls.
    """

    def invoke(self, *args: Any, **kwargs: Any) -> typer.testing.Result:
        with patch("typer.testing._get_command", _COMMANDS):
            return super().invoke(*args, **kwargs)


class Ran(NamedTuple):
    """The exit status of a program, and its output."""

    status: int
    stdout: str
    stderr: str


def run_here(program: Path, *words: object, cwd: Path | None = None) -> Ran:
    """Run a program to its end.

    Args:
        program: its file.
        words: its arguments.
        cwd: the directory that it runs in; default: the present one.
    """
    out, err, status = io.StringIO(), io.StringIO(), 0
    with redirect_stdout(out), redirect_stderr(err), _as_main(program, words), chdir(cwd or Path.cwd()):
        try:
            runpy.run_path(str(program), run_name="__main__")
        except SystemExit as ended:
            status = _status(ended.code)
        except Exception:  # noqa: BLE001 whatever it is, it ends the program
            traceback.print_exc()
            status = 1
    return Ran(status, out.getvalue(), err.getvalue())


@contextmanager
def _as_main(program: Path, words: tuple[object, ...]) -> Iterator[None]:
    """Give a program the arguments, import path and warning filters of a separate process."""
    argv, path, before = sys.argv, [*sys.path], {*sys.modules}
    sys.argv = [str(program), *map(str, words)]
    sys.path.insert(0, str(program.parent))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            yield
    finally:
        sys.argv, sys.path[:] = argv, path
        for name in {*sys.modules} - before:
            if Path(getattr(sys.modules[name], "__file__", None) or "/").parent == program.parent:
                del sys.modules[name]


def _status(code: Any) -> int:
    """Return Python's exit status for a `SystemExit`; an object is printed, and counts as a failure."""
    if code is None or isinstance(code, int):
        return code or 0
    print(code, file=sys.stderr)
    return 1
