"""Output files that a user names are replaced as a whole, written through, or refused."""

from __future__ import annotations

import os
import stat
import threading
from itertools import count
from pathlib import Path

import pytest

from tilewright.runtime.outputs import OutputError, check_output, is_standard_output, output


def write(path: Path, content: bytes = b"new") -> None:
    with output(path) as file:
        file.write(content)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_new_file_has_the_mode_of_new_files(folder: Path) -> None:
    write(Path("x"))
    Path("y").write_bytes(b"")
    assert Path("x").read_bytes() == b"new"
    assert Path("x").stat().st_mode == Path("y").stat().st_mode
    assert names(folder) == ["x", "y"]


@pytest.mark.parametrize("umask", [0o000, 0o027, 0o077])
def test_a_new_file_obeys_the_umask_and_other_threads_keep_theirs(umask: int, folder: Path) -> None:
    stop, others = threading.Event(), []

    def make_others() -> None:
        while not stop.is_set():
            os.close(os.open("other", os.O_CREAT | os.O_WRONLY, 0o777))
            others.append(stat.S_IMODE(os.stat("other").st_mode))
            os.unlink("other")

    before = os.umask(umask)
    thread = threading.Thread(target=make_others)
    try:
        thread.start()
        for turn in count():
            write(Path(f"x{turn}"))
            assert stat.S_IMODE(Path(f"x{turn}").stat().st_mode) == 0o666 & ~umask
            if turn >= 299 and others:  # on a busy machine the other thread may start late
                break
    finally:
        stop.set()
        thread.join()
        os.umask(before)
    assert set(others) == {0o777 & ~umask}


def test_nobody_reads_what_replaces_a_private_file(folder: Path) -> None:
    Path("x").write_bytes(b"old")
    Path("x").chmod(0o600)
    with output(Path("x")) as file:
        file.write(b"new")
        modes = {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert modes == {0o600}


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o755])
def test_a_file_is_replaced_in_one_step_and_keeps_its_mode(folder: Path, mode: int) -> None:
    path = Path("x")
    path.write_bytes(b"old")
    path.chmod(mode)
    with path.open("rb") as reader, output(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
        assert reader.read() == b"old"
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert names(folder) == ["x"]


def test_what_fails_leaves_what_was_there(folder: Path) -> None:
    Path("x").write_bytes(b"old")

    def fail() -> None:
        with output(Path("x")) as file:
            file.write(b"ne")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError):
        fail()
    assert Path("x").read_bytes() == b"old"
    assert names(folder) == ["x"]


@pytest.mark.parametrize("target", ["there/x", "there/missing"])
def test_a_symbolic_link_stays_and_its_file_is_written(folder: Path, target: str) -> None:
    Path("there").mkdir()
    Path("there/x").write_bytes(b"old")
    Path("a").symlink_to(target)
    Path("b").symlink_to("a")
    write(Path("b"))
    assert Path("a").is_symlink()
    assert Path("b").is_symlink()
    assert Path(target).read_bytes() == b"new"
    assert names(folder) == ["a", "b", "there"]


def test_a_file_of_several_names_keeps_them() -> None:
    Path("x").write_bytes(b"longer than what comes")
    os.link("x", "y")
    write(Path("x"))
    assert Path("y").read_bytes() == b"new"
    assert Path("x").samefile("y")


def test_a_device_is_written_through() -> None:
    before = os.stat("/dev/null")
    write(Path("/dev/null"))
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert os.path.samestat(before, os.stat("/dev/null"))
    with pytest.raises(OutputError, match="cannot write /dev/full: No space left on device"):
        write(Path("/dev/full"))


def test_a_pipe_is_written_through() -> None:
    os.mkfifo("x")
    got = []
    reader = threading.Thread(target=lambda: got.append(Path("x").read_bytes()))
    reader.start()
    write(Path("x"), b"n" * 100_000)
    reader.join(20)
    assert got == [b"n" * 100_000]
    assert stat.S_ISFIFO(os.stat("x").st_mode)


@pytest.mark.parametrize("mode", [0o444, 0o400, 0o000])
def test_a_read_only_file_is_refused(mode: int) -> None:
    Path("x").write_bytes(b"old")
    Path("x").chmod(mode)
    for attempt in (check_output, write):
        with pytest.raises(OutputError, match="cannot write x: it is read-only"):
            attempt(Path("x"))
    Path("x").chmod(0o600)
    assert Path("x").read_bytes() == b"old"


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        (".", "it is a directory"),
        ("/", "it is a directory"),
        ("no/such/x", "there is no directory no/such"),
        ("x/y", "Not a directory"),
        ("n" * 300, "File name too long"),
        ("loop", "Too many levels of symbolic links"),
    ],
)
def test_what_cannot_be_written_is_told_before_and_then(path: str, reason: str) -> None:
    Path("x").write_bytes(b"old")
    Path("loop").symlink_to("loop")
    for attempt in (check_output, write):
        with pytest.raises(OutputError, match=reason):
            attempt(Path(path))


def test_a_name_of_the_longest_legal_length() -> None:
    write(Path("n" * 255))
    assert Path("n" * 255).read_bytes() == b"new"


def test_the_standard_output_is_known(capfd: pytest.CaptureFixture[str]) -> None:
    assert is_standard_output(Path("/dev/stdout"))
    Path("x").write_bytes(b"")
    assert not is_standard_output(Path("x"))
    write(Path("/dev/stdout"))
    write(Path("/dev/stdout"))
    assert capfd.readouterr().out == "newnew"
