"""Errors of users show the user's lines and the fault; the library's frames appear only on request."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

import tilewright as tw
from tilewright import calls

SCRIPTS = {
    "a layout": (
        """
        import tilewright as tw

        def make():
            return tw.layouts.composition(3, tw.Layout(4))

        make()
        """,
        ["<module>", "make"],
        "LayoutError: composition(outer=3): outer must be a Layout",
    ),
    "inside a kernel": (
        """
        import numpy as np
        import tilewright as tw

        def helper(X):
            tw.copy(X, "shared")

        @tw.kernel(X="N")
        def wrong(X):
            helper(X)

        wrong(np.zeros(4, np.float32))
        """,
        ["<module>", "wrong", "helper"],
        "TraceError: copy(target='shared'): target must be a Tensor or a Fragment",
    ),
    "a layout inside a kernel": (
        """
        import numpy as np
        import tilewright as tw

        @tw.kernel(X="N")
        def wrong(X):
            tw.Layout((4, 8), (1, 2, 3))

        wrong.check(np.zeros(4, np.float32))
        """,
        ["<module>", "wrong"],
        "TraceError: shape (4,8) and stride (1,2,3) differ in structure",
    ),
    "a launch": (
        """
        import numpy as np
        import tilewright as tw

        @tw.kernel(X="N")
        def scale(X, *, tile):
            pass

        scale.bind(tile=64)(np.zeros((4, 4), np.float32))
        """,
        ["<module>"],
        "LaunchError: kernel scale: X has rank 2, but is declared as (N) of rank 1",
    ),
    "a product": (
        """
        import numpy as np
        import tilewright as tw

        a = np.zeros((4, 4), np.float32)
        tw.matmul(a, a, schedule="fast")
        """,
        ["<module>"],
        "LaunchError: matmul(schedule='fast'): schedule must be a Schedule or None",
    ),
    "a decorator": (
        """
        import tilewright as tw

        tw.kernel(3)
        """,
        ["<module>"],
        "LaunchError: kernel(function=3): function must be a function or None",
    ),
    "a declaration": (
        """
        import tilewright as tw

        @tw.kernel(X="N", s=float)
        def wrong(X, s):
            pass
        """,
        ["<module>"],
        "SignatureError: kernel wrong: s=<class 'float'> is neither the names of dimensions, such as 'M K', ",
    ),
    "a misspelt name": (
        """
        import tilewright as tw

        tw.Kernal
        """,
        ["<module>"],
        "AttributeError: module 'tilewright' has no attribute 'Kernal'; did you mean tw.Kernel?",
    ),
    "a misspelt name in a kernel": (
        """
        import numpy as np
        import tilewright as tw

        @tw.kernel(X="N")
        def wrong(X):
            tw.coppy(X, X)

        wrong(np.zeros(4, np.float32))
        """,
        ["<module>", "wrong"],
        "AttributeError: module 'tilewright' has no attribute 'coppy'; did you mean tw.copy?",
    ),
    "a keyword": (
        """
        import tilewright as tw

        tw.layouts.coalesce(layot=tw.Layout(4))
        """,
        ["<module>"],
        "SignatureError: coalesce() has no parameter 'layot', only layout, profile; did you mean 'layout'?",
    ),
    "an error of the author": (
        """
        import numpy as np
        import tilewright as tw

        @tw.kernel(X="N")
        def wrong(X):
            return 1 / 0

        wrong(np.zeros(4, np.float32))
        """,
        ["<module>", "wrong"],
        "ZeroDivisionError: division by zero",
    ),
}


def run(script: str, tmp_path: Path, setting: str = "") -> list[str]:
    """Return Python's error output for a failing script."""
    lines = script.splitlines()[1:]
    path = tmp_path / "script.py"
    path.write_text("\n".join(line[8:] for line in lines) + "\n")
    done = subprocess.run(
        [sys.executable, str(path)],
        capture_output=True,
        text=True,
        env={**os.environ, "TILEWRIGHT_TRACEBACK": setting},
    )
    assert done.returncode == 1
    assert done.stdout == ""
    return done.stderr.splitlines()


def functions(said: list[str]) -> list[str]:
    return [line.rsplit(" in ", 1)[1] for line in said if line.startswith("  File ")]


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_prints_the_users_frames_and_the_message(name: str, tmp_path: Path) -> None:
    script, frames, message = SCRIPTS[name]
    said = run(script, tmp_path)
    assert functions(said) == frames, "\n".join(said)
    assert said[0] == "Traceback (most recent call last):"
    assert not [line for line in said[1:] if line.startswith(("Traceback", "During", "The above"))]
    first = next(line for line in said[1:] if not line.startswith(" "))
    assert first.removeprefix("tilewright.errors.").startswith(message)
    assert first.count("id you mean") <= 1, "Python has no guess of its own beside ours"


def test_all_frames_are_shown_on_request(tmp_path: Path) -> None:
    script, frames, _ = SCRIPTS["inside a kernel"]
    said = run(script, tmp_path, "full")
    assert [name for name in functions(said) if name in frames] == frames
    assert len(functions(said)) > len(frames) + 4
    assert any("tilewright/lang/" in line for line in said)


@tw.kernel(X="N")
def wrong(X):
    tw.copy(X, 3)


SPEC = tw.TensorSpec(tw.f16, 1, 0, (16,), (1,), 16, False)


def test_the_error_keeps_all_of_its_frames_beside() -> None:
    with pytest.raises(tw.TraceError) as caught:
        wrong.trace(SPEC)
    shown = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    kept = [frame.name for frame in traceback.extract_tb(caught.value.full_traceback)]
    assert shown[1:] == ["wrong"]
    assert kept[0] == "call"
    assert kept.index("trace") < kept.index("wrong") < len(kept) - 1
    assert all(
        "lang" in frame.filename or "calls" in frame.filename for frame in extracted_after_wrong(caught)
    )


def extracted_after_wrong(caught: pytest.ExceptionInfo[tw.TraceError]) -> list[traceback.FrameSummary]:
    found = list(traceback.extract_tb(caught.value.full_traceback))
    return found[[frame.name for frame in found].index("wrong") + 1 :]


def test_an_error_that_a_user_was_handling_is_still_shown() -> None:
    def handle() -> None:
        try:
            {}["missing"]
        except KeyError:
            tw.Layout("x")

    with pytest.raises(tw.LayoutError) as caught:
        handle()
    assert isinstance(caught.value.__context__, KeyError)
    assert not caught.value.__suppress_context__


def test_pytest_and_debuggers_see_the_users_frames_alone() -> None:
    with pytest.raises(tw.LayoutError) as caught:
        tw.row_major("x")
    assert [Path(str(entry.path)).name for entry in caught.traceback] == [Path(__file__).name]


def test_frames_of_the_package_are_told_from_others() -> None:
    assert not calls.is_ours(sys._getframe())
    with pytest.raises(tw.TraceError) as caught:
        wrong.trace(SPEC)
    frames = [entry.tb_frame for entry in calls._entries(caught.value.full_traceback)]
    assert [calls.is_ours(frame) for frame in frames].count(False) == 1
