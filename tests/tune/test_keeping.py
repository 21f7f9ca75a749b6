"""The tuner's files: other users' files are never read, cut or written; damaged files are set aside."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import tilewright as tw
from tilewright.cli.verbs import app
from tilewright.runtime import tables, trust
from tilewright.runtime.trust import UntrustedError, lock_own, open_own, write_own
from tilewright.schedule.tables import MeasuredSchedule, ScheduleTable, TableError, Version
from tilewright.tune.gemm import Gemm
from tilewright.tune.journal import Journal, Outcome, TuningFiles

VERSION = Version.now("x86-64-v3", "a processor", 2)
SCHEDULE = tw.Schedule(tw.atoms.fma("f32"), (32, 32, 8))
ENTRY = MeasuredSchedule("k", (1, 8, 8, 8), SCHEDULE, 1.0, 1.0, 1)
DIARY = b"line one\nthe last line of a diary, without its end"


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    tables.forget()
    yield
    tables.forget()


def kept(path: Path, said: list[str] | None = None, renew: bool = False) -> TuningFiles:
    return TuningFiles(path, VERSION, renew=renew, say=(said if said is not None else []).append)


def used(path: Path) -> None:
    """Do everything that the tuner does with its files."""
    store = kept(path)
    store.journal.add(Outcome("p", "s", 1.0, 1.0))
    store.journal.win(ENTRY)
    store.add([ENTRY])


# ---------------------------------------------------------------- who may have written a file


def linked(path: Path, victim: Path) -> None:
    path.symlink_to(victim)


def linked_nowhere(path: Path, victim: Path) -> None:
    path.symlink_to(victim.with_name("missing"))


def of_two_names(path: Path, victim: Path) -> None:
    os.link(victim, path)


def writable_by_all(path: Path, victim: Path) -> None:
    path.write_bytes(victim.read_bytes())
    path.chmod(0o666)


def of_another_user(path: Path, victim: Path) -> None:
    path.write_bytes(victim.read_bytes())
    FOREIGN.add((path.stat().st_dev, path.stat().st_ino))


def a_pipe(path: Path, victim: Path) -> None:
    os.mkfifo(path)


def a_socket(path: Path, victim: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # names of sockets are short
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name)
    finally:
        os.chdir(here)


FOREIGN: set[tuple[int, int]] = set()


@pytest.fixture
def foreign(monkeypatch: pytest.MonkeyPatch) -> None:
    real = trust.owned
    FOREIGN.clear()
    monkeypatch.setattr(
        trust, "owned", lambda state: (state.st_dev, state.st_ino) not in FOREIGN and real(state)
    )


PLANTS = (linked, linked_nowhere, of_two_names, writable_by_all, of_another_user, a_pipe, a_socket)


@pytest.mark.parametrize("content", [b"", DIARY], ids=["empty", "diary"])
@pytest.mark.parametrize("name", ["t.json", "t.journal", "t.json.lock"])
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_what_a_stranger_planted_is_not_read_cut_or_written(
    plant: Callable[[Path, Path], None], name: str, content: bytes, tmp_path: Path, foreign: None
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    victim, planted = tmp_path / "home" / "victim", tmp_path / "work" / name
    victim.write_bytes(content)
    plant(planted, victim)
    try:
        used(tmp_path / "work" / "t.json")
    except OSError as error:
        assert isinstance(error, UntrustedError) or plant is a_socket, "nobody opens a socket by its name"  # noqa: PT017
        assert name in str(error)  # noqa: PT017
        aside = planted
    else:
        assert plant is of_two_names, "its content may be the user's own"
        aside = planted if name == "t.journal" and not content else planted.with_name(f"{name}.aside-1")
    assert victim.read_bytes() == content
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["victim"]
    if aside.is_file() and not aside.is_symlink():
        assert aside.read_bytes() == content


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_no_table_is_kept_where_others_exchange_files(
    mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trust, "_is_alone", lambda group: False)
    work = tmp_path / "work"
    work.mkdir()
    work.chmod(mode)
    with pytest.raises(UntrustedError, match=r"work may be written by other users .*; nearest: a directory"):
        used(work / "t.json")
    with pytest.raises(UntrustedError, match="may be written by other users"):
        tables.save(ScheduleTable(VERSION), work / "t.json")
    with pytest.raises(UntrustedError, match="may be written by other users"):
        used(work / "inside" / "t.json")
    assert not list(work.rglob("*.*"))
    work.chmod(0o700)  # the nearest choice of the message
    used(work / "t.json")


def test_a_table_lies_in_a_folder_of_the_user_s_private_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This is a checkout under the umask 002, with a table like all other files."""
    monkeypatch.setattr(trust, "_is_alone", lambda group: True)
    work = tmp_path / "work"
    work.mkdir()
    used(work / "t.json")
    work.chmod(0o775)
    for path in work.iterdir():
        path.chmod(0o664)
    used(work / "t.json")
    assert tables.load(work / "t.json", VERSION).entries == (ENTRY,)


def test_in_a_directory_with_the_sticky_bit_own_files_are_used_and_no_others(
    tmp_path: Path, foreign: None
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    work.chmod(0o1777)
    used(work / "t.json")
    assert tables.load(work / "t.json", VERSION).entries == (ENTRY,)
    FOREIGN.add(((work / "t.json").stat().st_dev, (work / "t.json").stat().st_ino))
    with pytest.raises(UntrustedError, match="belongs to another user"):
        tables.load(work / "t.json", VERSION)


def test_the_command_refuses_a_cache_that_others_may_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, victim = tmp_path / "cache", tmp_path / "victim"
    (cache / "tables").mkdir(parents=True)
    cache.chmod(0o1777)
    victim.write_bytes(DIARY)
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(cache))
    question = Gemm((8, 8, 8), "f32", "nn", "exact", "cpu").question()
    found = tables.version_of(question.arch, question.processors)
    assert found is not None
    tables.user_table(found).with_suffix(".journal").symlink_to(victim)
    result = CliRunner().invoke(app, ["tune", "gemm", "8", "8", "8"])
    assert result.exit_code == 2
    assert "is not used: " in result.stderr
    assert "nearest: --table" in result.stderr
    assert victim.read_bytes() == DIARY


def test_a_users_table_that_a_stranger_wrote_is_not_used_and_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "directory", lambda: tmp_path / "tables")
    tables.save(ScheduleTable(VERSION, (ENTRY,)), tables.user_table(VERSION))
    tables.user_table(VERSION).chmod(0o666)
    with pytest.warns(RuntimeWarning, match=r"is not used: other users may write it \(mode 666\)"):
        assert tables._joined(VERSION) is None
    tables.user_table(VERSION).chmod(0o644)  # the nearest choice of the message
    assert tables._joined(VERSION) == ScheduleTable(VERSION, (ENTRY,))


def test_what_is_made_is_closed_to_others_under_any_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        used(tmp_path / "some" / "where" / "t.json")
    finally:
        os.umask(before)
    assert all(not place.stat().st_mode & 0o022 for place in (tmp_path / "some").rglob("*"))
    used(tmp_path / "some" / "where" / "t.json")


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(DIARY)
    (tmp_path / "file").symlink_to("victim")
    write_own(tmp_path / "file", b"ours")
    assert (tmp_path / "victim").read_bytes() == DIARY
    assert not (tmp_path / "file").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"ours"


def test_a_pipe_does_not_hang_who_opens_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UntrustedError, match="no ordinary file"):
        open_own(tmp_path / "pipe", os.O_RDONLY)


# ---------------------------------------------------------------- other files of the same names


@pytest.mark.parametrize(
    "content", [DIARY, DIARY + b"\n", b"{", b"x", b"\n", b"3\nabc", b'{"version": 3}\nabc']
)
def test_another_journal_is_set_aside_whole(content: bytes, tmp_path: Path) -> None:
    said = list[str]()
    (tmp_path / "project.journal").write_bytes(content)
    kept(tmp_path / "project.json", said)
    assert (tmp_path / "project.journal.aside-1").read_bytes() == content
    assert said[0].startswith(f"{tmp_path / 'project.journal'} is now project.journal.aside-1: journal ")


def test_a_journal_with_a_damaged_line_is_set_aside_whole(tmp_path: Path) -> None:
    used(tmp_path / "t.json")
    content = (tmp_path / "t.journal").read_bytes() + b"damage\n" + b'{"outcome": {"prob'
    (tmp_path / "t.journal").write_bytes(content)
    kept(tmp_path / "t.json")
    assert (tmp_path / "t.journal.aside-1").read_bytes() == content


def test_a_lock_of_another_program_is_left_as_it_is(tmp_path: Path) -> None:
    """Package managers use the name ``project.lock``; a file that is not empty is not our lock."""
    (tmp_path / "project.lock").write_bytes(DIARY)
    used(tmp_path / "project.json")
    assert (tmp_path / "project.lock").read_bytes() == DIARY
    (tmp_path / "other").write_bytes(DIARY)
    with (
        pytest.raises(UntrustedError, match="so it is no lock file"),
        lock_own(tmp_path / "other"),
    ):
        pass


def test_names_set_aside_count_links_that_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "t.json").symlink_to("nowhere")
    (tmp_path / "t.json.aside-1").symlink_to("nowhere")
    said = list[str]()
    kept(tmp_path / "t.json", said, renew=True)
    assert said == [f"{tmp_path / 't.json'} is now t.json.aside-2: as was asked for"]
    assert (tmp_path / "t.json.aside-1").is_symlink()
    assert (tmp_path / "t.json.aside-2").is_symlink()


# ---------------------------------------------------------------- JSON of another shape

DEEP = "[" * 100_000
VALUES = (
    "3",
    "null",
    "[]",
    '"s"',
    "{}",
    "1e999",
    "NaN",
    "1" + "0" * 400,
    "-1",
    "true",
    "[1]",
    '{"a": 1}',
    DEEP,
)


def every_change(record: dict[str, Any]) -> Iterator[str]:
    """Yield a record with each field replaced by each of `VALUES`, left out, or with one more."""
    for name in record:
        for value in VALUES:
            marked = json.dumps({**record, name: "\0"})
            yield marked.replace(json.dumps("\0"), value)
        yield json.dumps({key: value for key, value in record.items() if key != name})
    yield json.dumps({**record, "more": 1})
    yield from VALUES


def test_journals_of_every_other_shape_are_damaged_and_set_aside(tmp_path: Path) -> None:
    head = json.dumps({"version": asdict(VERSION)})
    lines = [f'{{"outcome": {one}}}' for one in every_change(asdict(Outcome("p", "s", 1.0, 1.0)))]
    lines += [f'{{"entry": {one}}}' for one in every_change(ENTRY.record())]
    lines += [*VALUES, "{", "\x00"]
    path, refused = tmp_path / "t.journal", 0
    for line in lines:
        path.write_text(f"{head}\n{line}\n")
        try:
            Journal(path, VERSION)
        except TableError as error:
            assert str(error).startswith(f"journal {path}, line 2: damaged: "), error  # noqa: PT017
            refused += 1
    assert refused > 0.8 * len(lines), "some are legal: another text of a problem, another number"
    for first in [*every_change(asdict(VERSION)), *VALUES]:
        for head in (first, f'{{"version": {first}}}'):
            path.write_text(f"{head}\n")
            with pytest.raises(TableError, match=r"^journal "):
                Journal(path, VERSION)


def test_tables_of_every_other_shape_are_damaged(tmp_path: Path) -> None:
    record, path = ScheduleTable(VERSION, (ENTRY,)).record(), tmp_path / "t.json"
    texts = [
        f'{{"version": {json.dumps(record["version"])}, "entries": [{one}]}}'
        for one in every_change(ENTRY.record())
    ]
    texts += [f'{{"version": {one}, "entries": []}}' for one in every_change(record["version"])]
    texts += [*every_change(record), *VALUES]
    refused = 0
    for text in texts:
        path.write_text(text)
        try:
            table = tables.load(path, VERSION)
        except TableError as error:
            assert str(error).startswith(f"table {path}: "), error  # noqa: PT017
            refused += 1
        else:
            tables.save(table, path)
            assert tables.load(path, VERSION) == table
    assert refused > 0.8 * len(texts)


def test_no_damage_of_bytes_is_anything_else_than_damage(tmp_path: Path) -> None:
    used(tmp_path / "t.json")
    source, rng = (tmp_path / "t.journal").read_bytes(), random.Random(7)
    table = (tmp_path / "t.json").read_bytes()
    for content, path, read in (
        (source, tmp_path / "a.journal", lambda path: Journal(path, VERSION)),
        (table, tmp_path / "a.json", lambda path: tables.load(path, VERSION)),
    ):
        for _ in range(300):
            changed = bytearray(content)
            for _ in range(rng.choice([1, 2, 5])):
                at = rng.randrange(len(changed))
                changed[at : at + rng.choice([0, 1, 9])] = rng.choice(
                    [b"", b"9", b"[", b'"', b"\xff", b"e9", b"null"]
                )
            path.write_bytes(changed)
            with contextlib.suppress(TableError):
                read(path)
