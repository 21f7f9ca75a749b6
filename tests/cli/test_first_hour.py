"""A newcomer's first commands: version, help, the kernels of a file, modules in its folder."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from tests.programs import CliRunner

import tilewright as tw
from tilewright.cli.verbs import app

KERNELS = '''
from {helper} import WIDTH

import tilewright as tw


@tw.kernel(X="N", Y="N", by=tw.f32, shift=int)
def scale(X, Y, by, shift, *, width=WIDTH, mode):
    """``Y[n] = by * X[n]``.

    More of it.
    """
    part = X.tile((WIDTH,), (tw.block_index(tw.ceil_div(X.shape[0], width)),))
    tw.copy(tw.load(part.partition((32,))) * by, part)


@tw.kernel
def plain(X):
    tw.copy(X.tile((32,), (0,)), X.tile((32,), (1,)), threads=(32,))


FAST = {{"one": scale.bind(mode=1)}}
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def good(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, prog_name="tilewright")
    assert result.exit_code == 0, result.output
    return result.output


def test_the_version() -> None:
    assert good("--version") == f"tilewright {tw.__version__}\n"


@pytest.mark.parametrize(
    "verb", [[], ["gemm"], ["inspect"], ["draw"], ["draw", "layout"], ["cache"], ["doctor"]]
)
def test_help_has_a_short_name(verb: list[str]) -> None:
    assert good(*verb, "-h") == good(*verb, "--help")


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("gemmm 8 8 8", "gemm"),
        ("inspct", "inspect"),
        ("draw layot 4:1", "layout"),
        ("gemm 8 8 8 --dtpye f16", "--dtype"),
        ("inspect k.py:scal", "did you mean 'scale'"),
    ],
)
def test_a_misspelt_word_is_told_what_was_meant(words: str, meant: str, folder: Path) -> None:
    (folder / "helper_a.py").write_text("WIDTH = 64\n")
    (folder / "k.py").write_text(KERNELS.format(helper="helper_a"))
    result = CliRunner().invoke(app, words.split())
    assert result.exit_code == 2
    assert meant in result.stderr


def test_the_kernels_of_a_file_are_listed(folder: Path) -> None:
    (folder / "helper_b.py").write_text("WIDTH = 64\n")
    (folder / "k.py").write_text(KERNELS.format(helper="helper_b"))
    assert (
        good("inspect", "k.py")
        == """\
scale(X (N), Y (N), by: f32, shift: int, *, width=64, mode)
    ``Y[n] = by * X[n]``.
    call: scale(X, Y, by, shift, mode=…)
    look: tilewright inspect k.py:scale --shape N=512 --set mode=…

plain(X)
    call: plain(X)
    look: tilewright inspect k.py:plain

FAST[one](X (N), Y (N), by: f32, shift: int)
    ``Y[n] = by * X[n]``.
    with width=64, mode=1
    call: FAST[one](X, Y, by, shift)
    look: tilewright inspect 'k.py:FAST[one]' --shape N=512
"""
    )


def test_what_the_list_says_can_be_typed(folder: Path) -> None:
    (folder / "helper_c.py").write_text("WIDTH = 64\n")
    (folder / "k.py").write_text(KERNELS.format(helper="helper_c"))
    assert "kernel('scale'" in good("inspect", "k.py:FAST[one]", "--shape", "N=512", "--ir")


@pytest.mark.parametrize("helper", ["common", ".common", "..common", "first_hour.common"])
def test_a_file_of_a_package_finds_its_package(helper: str, folder: Path) -> None:
    package = folder / "first_hour"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "common.py").write_text("WIDTH = 64\n")
    place = package
    if helper == "..common":
        place = package / "inner"
        (place / "__init__.py").touch()
    if helper == "common":  # a script in a folder that is no package
        (package / "__init__.py").unlink()
    (place / "k.py").write_text(KERNELS.format(helper=helper))
    for name in [name for name in sys.modules if name.partition(".")[0] in ("first_hour", "common")]:
        del sys.modules[name]
    assert "scale(X (N)" in good("inspect", str(place / "k.py"))


def test_the_text_of_a_kernel_takes_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise tw.ToolchainError("no NVRTC here")

    monkeypatch.setattr("tilewright.runtime.nvrtc.compile_text", missing)
    monkeypatch.setattr("tilewright.runtime.nvrtc.toolchain_id", missing)
    shape = ("--shape", "72x80x88", "--dtype", "bf16")
    assert "__global__" in good("inspect", "--target", "cuda", "--source", *shape)
    result = CliRunner().invoke(app, ["inspect", "--target", "cuda", "--resources", *shape])
    assert (result.exit_code, result.stderr) == (2, "tilewright: no NVRTC here\n")


def test_extents_may_be_one_word() -> None:
    assert "A 24x40 f32 (n), B 40x16 f32 (n)" in good(
        "gemm", "24x16x40", "--no-time", "--target", "reference"
    )


@pytest.mark.parametrize("content", ["symlink", "read-only", "device"])
def test_the_output_of_gemm_goes_through_what_is_there(content: str, folder: Path) -> None:
    path = Path("c.npy")
    if content == "symlink":
        Path("real.npy").write_bytes(b"old")
        path.symlink_to("real.npy")
    elif content == "read-only":
        path.write_bytes(b"old")
        path.chmod(0o444)
    else:
        path = Path("/dev/null")
    command = ["gemm", "8", "8", "8", "--no-time", "--target", "reference", "-o", str(path)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == (2 if content == "read-only" else 0), result.output
    if content == "symlink":
        assert path.is_symlink()
        assert np.load("real.npy").shape == (8, 8)
    elif content == "read-only":
        assert result.stderr == "tilewright: cannot write c.npy: it is read-only\n"
        assert "operands" not in result.stdout
        assert path.read_bytes() == b"old"
    else:
        assert path.is_char_device()


def test_pictures_go_through_what_is_there(folder: Path) -> None:
    for suffix in ("svg", "png", "txt"):
        Path(f"real.{suffix}").write_bytes(b"old")
        Path(f"a.{suffix}").symlink_to(f"real.{suffix}")
        assert good("draw", "layout", "4:1", "-o", f"a.{suffix}") == f"wrote a.{suffix}\n"
        assert Path(f"a.{suffix}").is_symlink()
        assert len(Path(f"real.{suffix}").read_bytes()) > 30
        Path(f"real.{suffix}").chmod(0o444)
        result = CliRunner().invoke(app, ["draw", "layout", "4:1", "-o", f"a.{suffix}"])
        assert result.exit_code == 2
        assert result.stderr == f"tilewright: cannot write a.{suffix}: it is read-only\n"
