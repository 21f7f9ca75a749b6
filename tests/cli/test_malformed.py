"""Words without meaning, anywhere in the command line: a message and status 2, never a traceback."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.programs import CliRunner

from tilewright.cli.verbs import app

WORDS = (
    "", "x", "-1", "0", "1.5", "9" * 5000, "n" * 5000, "(((((", "(" * 3000, "é×٣", "1,2,3", "a=b", "NaN", "/",
    "../..", "{}", "tw.", "tw.x", "x" * 200 + "/y", "--", "-",
)  # fmt: skip
"""Nothing, text, numbers of every kind, long names, brackets without an end, directories, Python, options."""

SMALL = ("--target", "reference", "--no-time")
SCALE = ("inspect", "k.py:scale", "--shape", "N=64", "--target", "reference")

PLACES: dict[str, tuple[tuple[str, ...], ...]] = {
    "gemm": (
        ("gemm", *SMALL, "{}"),
        ("gemm", *SMALL, "{}", "8", "8"),
        ("gemm", *SMALL, "{}", "{}"),
        ("gemm", *SMALL, "8x8x{}"),
        *(("gemm", *SMALL, "8", "8", "8", o, "{}") for o in ("--dtype", "--layout", "--init", "--data")),
        *(("gemm", *SMALL, "8", "8", "8", o, "{}") for o in ("--precision", "--seed", "-o")),
        ("gemm", "8", "8", "8", "--no-time", "--target", "{}"),
    ),
    "inspect": (
        ("inspect", "{}:k"),
        ("inspect", "{}.py"),
        ("inspect", "k.py:{}"),
        *((*SCALE, option, "{}") for option in ("--dtype", "--target", "--arch", "--set", "--shape")),
        (*SCALE, "--shape", "N={}"),
        (*SCALE, "--set", "width={}"),
        ("inspect", "--target", "reference", "--shape", "8x8x{}"),
    ),
    "draw": (
        *(("draw", what, "{}") for what in ("layout", "map", "banks", "timeline")),
        ("draw", "layout", "4:1 | {}"),
        ("draw", "layout", "4:1 | Swizzle({})"),
        ("draw", "layout", "{}:{}"),
        ("draw", "layout", "4:1", "-o", "{}"),
        ("draw", "layout", "4:1", "-o", "{}.svg"),
        *(("draw", "map", f"{atom}{{}}") for atom in ("mma.", "wgmma.m64n", "fma.f32.f32.", "ldmatrix.")),
        *(("draw", "map", "mma.m16n8k16", o, "{}") for o in ("--operand", "--warps", "--repeats", "--depth")),
        *(("draw", "banks", "(32,32):(32,1)", o, "{}") for o in ("--access", "--threads", "--vector")),
        *(("draw", "banks", "(32,32):(32,1)", o, "{}") for o in ("--dtype", "--operand", "--at")),
        *(("draw", "timeline", "gemm", "--shape", "64x64x64", o, "{}") for o in ("--block", "--set")),
        *(("draw", "timeline", "gemm", o, "{}") for o in ("--shape", "--dtype")),
    ),
    "others": (("cache", "{}"), ("doctor", "{}"), ("{}",), ("draw", "{}")),
}  # fmt: skip

KERNELS = """
import tilewright as tw

@tw.kernel(X="N")
def scale(X, *, width=64):
    part = X.tile((width,), (tw.block_index(tw.ceil_div(X.shape[0], width)),))
    tw.copy(tw.load(part.partition((32,))) * 2.0, part)
"""


def commands(place: str, seed: int) -> Iterator[list[str]]:
    for number, pattern in enumerate(PLACES[place]):
        for word in WORDS[(number + seed) % 5 :: 5]:  # each word in every fifth place
            yield [part.replace("{}", word) for part in pattern]


@pytest.mark.parametrize("place", PLACES)
def test_a_word_that_means_nothing_is_told(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fuzz_seed: int
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("k.py").write_text(KERNELS)
    refused = 0
    for command in commands(place, fuzz_seed):
        shown = [word[:30] for word in command]
        result = CliRunner().invoke(app, command, prog_name="tilewright")
        assert result.exception is None or isinstance(result.exception, SystemExit), (shown, result.exception)
        assert result.exit_code in (0, 2), (shown, result.output[:1000])
        if result.exit_code == 2:
            refused += 1
            assert result.stderr.count("\n") < 9, (shown, result.stderr[:1000])
            if result.stderr.startswith("tilewright: "):
                assert max(map(len, re.findall(r"\S+", result.stderr))) < 300, shown
    assert refused > 12 or place == "others"
    assert {path.name for path in tmp_path.iterdir()} <= {
        "k.py",
        "__pycache__",
        *WORDS,
        *(f"{w}.svg" for w in WORDS),
    }


FILES = {
    "exits.py": (b"import sys\nsys.exit(3)\n", "ends the program when it is imported; put everything except"),
    "loops.py": (b"def f(): f()\nf()\n", "RecursionError: maximum recursion depth"),
    "null.py": (b"\0\0", "null bytes"),
    "latin.py": (b"x = '\xe9'\n", "SyntaxError"),
    "empty.py": (b"", "has no kernel; a function becomes one by @tw.kernel"),
    "missing.py": (None, "no such file"),
    "n" * 300 + ".py": (None, "File name too long"),
}


@pytest.mark.parametrize("name", FILES, ids=lambda name: name[:12])
def test_a_file_without_kernels_is_told(name: str, tmp_path: Path) -> None:
    content, message = FILES[name]
    if content is not None:
        (tmp_path / name).write_bytes(content)
    result = CliRunner().invoke(app, ["inspect", os.fspath(tmp_path / name)])
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert result.stderr.count("\n") < 30
