"""Tuning: measurements are saved at once, wrong winners are found, damaged files are set aside."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.runtime import tables
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.tables import OtherVersionError, ScheduleTable, Version
from tilewright.tune import clocks, tuner
from tilewright.tune import subject as module
from tilewright.tune.gemm import Gemm, build
from tilewright.tune.journal import Journal, Outcome, TuningFiles, set_aside
from tilewright.tune.measure import Effort
from tilewright.tune.subject import Arrays, SubjectArrays, checksum
from tilewright.tune.tuner import Tuned, Tuner

pytestmark = pytest.mark.in_turns(3)

GEMM = Gemm((40, 50, 60), "f32", "nn", "exact", "cpu")
LITTLE = Effort(seconds=0.0, warm_up_seconds=0.0, least=3)


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Use a separate folder for tables, the kernels of all tests, and no wait for a quiet machine."""
    monkeypatch.setattr(clocks, "wait_for_quiet", lambda: None)
    monkeypatch.setattr(tables, "directory", lambda: tmp_path / "tables")
    tables.forget()
    yield tmp_path
    tables.forget()


def version() -> Version:
    question = GEMM.question()
    found = tables.version_of(question.arch, question.processors)
    assert found is not None
    return found


def kept(path: Path, *, renew: bool = False, said: list[str] | None = None) -> TuningFiles:
    return TuningFiles(path, version(), renew=renew, say=(said if said is not None else []).append)


def tuned(journal: Journal, **named: Any) -> Tuned:
    return Tuner(GEMM, journal, LITTLE, **named).run()


def legal() -> list[Schedule]:
    return [one.schedule for one in GEMM.candidates() if not one.against]


def test_the_winner_is_one_of_the_candidates_and_is_taken_from_then_on(directory: Path) -> None:
    store = kept(tables.user_table(version()))
    found = tuned(store.journal)
    assert found.entry.schedule in legal()
    assert (found.measured, found.known) == (3, 0)
    assert set(found.refused) == {repr(one.schedule) for one in GEMM.candidates() if one.against}
    forced = replace(found.entry, schedule=legal()[2], by_rules=False)
    store.add([forced])
    assert GEMM.bound().schedule_for(*GEMM.arguments, target="cpu") == legal()[2]


def test_what_is_measured_is_not_measured_again(directory: Path) -> None:
    path = directory / "a.journal"
    first = tuned(Journal(path, version()), most=2)
    assert (first.measured, first.known) == (2, 0)
    lines = path.read_bytes().splitlines()
    second = tuned(Journal(path, version()))
    assert (second.measured, second.known) == (1, 2)
    assert path.read_bytes().splitlines()[: len(lines)] == lines


def test_what_a_kill_cut_off_is_measured_again_and_all_else_is_kept(directory: Path) -> None:
    path = directory / "a.journal"
    tuned(Journal(path, version()))
    header, *outcomes, _ = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(header + b"".join(outcomes[:2]) + outcomes[2][:-20])
    again = tuned(Journal(path, version()))
    assert (again.measured, again.known) == (1, 2)
    for line in path.read_bytes().splitlines():
        json.loads(line)


def test_a_candidate_that_cannot_be_compiled_is_neither_measured_nor_known(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuner, "build", lambda *given, **named: {legal()[1]: "it is too large"})
    found = tuned(Journal(directory / "a.journal", version()))
    assert (found.measured, found.known) == (2, 0)
    assert found.refused[repr(legal()[1])] == "not compiled: it is too large"


# ---------------------------------------------------------------- what is wrong


def planted(monkeypatch: pytest.MonkeyPatch, wrong: Schedule, call: Callable[[Arrays], object]) -> None:
    """Replace one schedule's kernel by something that takes no time."""
    bind = SubjectArrays.bind

    def other(self: SubjectArrays, schedule: Schedule) -> Callable[[Arrays], Callable[[], object]]:
        if schedule != wrong:
            return bind(self, schedule)
        return lambda arrays: lambda: call(arrays)

    monkeypatch.setattr(SubjectArrays, "bind", other)


def test_a_kernel_that_is_wrong_is_not_timed(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, legal()[1], lambda arrays: arrays[2].fill(1))
    found = tuned(Journal(directory / "a.journal", version()))
    assert found.entry.schedule != legal()[1]
    assert "wrong: " in found.refused[repr(legal()[1])]


def test_a_kernel_that_writes_nothing_is_found(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, legal()[1], lambda arrays: None)
    found = tuned(Journal(directory / "a.journal", version()))
    assert "2000 of 2000 elements were not written" in found.refused[repr(legal()[1])]


def test_a_kernel_that_changes_its_inputs_is_found(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def scribbles(arrays: Arrays) -> None:
        np.matmul(arrays[0], arrays[1], out=arrays[2])
        arrays[1][3, 4] += 1

    planted(monkeypatch, legal()[1], scribbles)
    found = tuned(Journal(directory / "a.journal", version()))
    assert "B, only to be read, was written" in found.refused[repr(legal()[1])]


def test_inputs_that_change_while_it_is_timed_are_found(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next candidate gets the unchanged inputs."""
    calls = iter(range(10**6))

    def scribbles(arrays: Arrays) -> None:
        np.matmul(arrays[0], arrays[1], out=arrays[2])
        if next(calls) > 0:
            arrays[0][0, 0] = 77

    planted(monkeypatch, legal()[1], scribbles)
    found = tuned(Journal(directory / "a.journal", version()))
    assert found.refused[repr(legal()[1])] == "wrong: A, only to be read, was written"
    assert "wrong" not in found.refused.get(repr(legal()[2]), "")


def test_a_winner_that_is_right_on_one_set_of_numbers_alone_is_found(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows the product of the measured numbers, and is the fastest on them."""
    made = SubjectArrays(GEMM, 0, sets=1).made
    product = made["A"] @ made["B"]
    planted(monkeypatch, legal()[2], lambda arrays: np.copyto(arrays[2], product))
    journal = Journal(directory / "a.journal", version())
    found = Tuner(GEMM, journal, Effort(seconds=0.0, warm_up_seconds=0.0, least=9)).run()
    assert found.entry.schedule in legal()[:2]
    (struck,) = (one for one in journal.outcomes(problem(journal)).values() if one.against)
    assert struck.schedule == repr(legal()[2])
    assert struck.against.startswith("wrong on other numbers than it was measured on: wrong: 2000 of 2000")


def problem(journal: Journal) -> str:
    (found,) = {name for name, _ in journal._outcomes}
    return found


def test_where_the_untuned_choice_is_wrong_nothing_is_tuned(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted(monkeypatch, legal()[0], lambda arrays: arrays[2].fill(1))
    with pytest.raises(tw.WrongResultError, match="the untuned choice is wrong"):
        tuned(Journal(directory / "a.journal", version()))
    assert not (directory / "a.journal").exists()


def test_of_a_large_product_some_rows_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_FLOPS", 2 * 7 * 50 * 60)
    arrays = SubjectArrays(GEMM, 0, sets=1)
    call, given = arrays.bind(legal()[0])(arrays.sets[0]), arrays.sets[0]
    assert arrays.check(legal()[0])(call, given)["compared"] == 7 * 50
    assert arrays.check(legal()[0], whole=True)(call, given)["compared"] == 40 * 50


def test_what_cannot_be_compiled_is_an_outcome() -> None:
    broken = tw.Schedule(tw.atoms.MMA_F16, (64, 64, 32), warps=(2, 2))
    assert build(GEMM, [broken], 1)[broken]


def test_several_processes_compile_into_one_cache(
    directory: Path, monkeypatch: pytest.MonkeyPatch, no_known_products: None
) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(directory / "cache"))
    done: list[int] = []
    assert build(GEMM, legal()[:2], 2, done=done.append) == {}
    assert done == [1, 2]
    made = {entry for entry in (directory / "cache").rglob("*") if entry.suffix == ".so"}
    assert len(made) >= 2
    assert build(GEMM, legal()[:2], 2) == {}
    assert {entry for entry in (directory / "cache").rglob("*") if entry.suffix == ".so"} == made


# ---------------------------------------------------------------- files


def test_a_table_of_another_version_is_refused_and_set_aside_on_demand(directory: Path) -> None:
    path, said = directory / "t.json", list[str]()
    tables.save(ScheduleTable(replace(version(), rules="older")), path)
    with pytest.raises(OtherVersionError, match=r"t\.json: of another version: .*; nearest: --renew"):
        kept(path)
    assert json.loads(path.read_text())["version"]["rules"] == "older", "it is as it was"
    store = kept(path, renew=True, said=said)
    assert said == [f"{path} is now t.json.aside-1: as was asked for"]
    store.add([])
    assert tables.load(path, version()) == ScheduleTable(version())


def test_a_damaged_table_is_set_aside_and_built_anew_from_the_journal(directory: Path) -> None:
    path, said = directory / "t.json", list[str]()
    store = kept(path)
    found = tuned(store.journal, most=2)
    store.add([found.entry])
    path.write_text(path.read_text()[:100])
    kept(path, said=said)
    assert said[0].startswith(f"{path} is now t.json.aside-1: table {path}: damaged")
    assert tables.load(path, version()).entries == (found.entry,)
    assert (directory / "t.json.aside-1").stat().st_size == 100


def test_a_damaged_journal_is_set_aside(directory: Path) -> None:
    path, said = directory / "t.json", list[str]()
    path.with_suffix(".journal").write_text("no journal\nat all\n")
    store = kept(path, said=said)
    assert said[0].startswith(f"{directory / 't.journal'} is now t.journal.aside-1")
    assert store.journal.outcomes("") == {}


def test_a_journal_of_another_version_is_refused(directory: Path) -> None:
    path = directory / "t.json"
    Journal(path.with_suffix(".journal"), replace(version(), format="older")).add(Outcome("p", "s"))
    with pytest.raises(OtherVersionError, match=r"t\.journal: of another version: schedule format older"):
        kept(path)


def test_names_of_what_is_set_aside_are_new(directory: Path) -> None:
    for number in (1, 2, 3):
        (directory / "x").write_text(str(number))
        assert set_aside(directory / "x") == directory / f"x.aside-{number}"
    assert set_aside(directory / "x") is None


def test_a_checksum_tells_one_bit() -> None:
    for array in (
        np.ones((5, 7), np.float32),
        np.ones((7, 5), np.float32).T,
        np.ones((300, 600), np.float16),
    ):
        before = checksum(array)
        for at in ((0, 0), (3, 2), (4, 4), (-1, -1)):
            array[at] = np.nextafter(array[at], array.dtype.type(2))
            assert checksum(array) != before
            array[at] = 1
        assert checksum(array) == before


def test_a_killed_command_goes_on_where_it_was(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = directory / "t.json"
    journal = path.with_suffix(".journal")
    words = ["tune", "gemm", "40", "50", "60", "--processes", "1", "--table", str(path)]
    command = [sys.executable, "-m", "tilewright", *words]
    process = subprocess.Popen([*command, "--seconds", "1"], stdout=subprocess.DEVNULL)
    end = time.monotonic() + 120
    while lines(journal) < 2 and time.monotonic() < end:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    before = journal.read_bytes()
    outcomes = lines(journal) - 1
    assert 1 <= outcomes < 3
    assert not path.exists()
    done = subprocess.run([*command, "--seconds", "0"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert f"{3 - outcomes} measured now, {outcomes} known" in done.stdout
    assert journal.read_bytes().startswith(before[: before.rfind(b"\n") + 1])
    found = [json.loads(line).get("outcome", {}).get("schedule") for line in journal.read_text().splitlines()]
    schedules = [schedule for schedule in found if schedule]
    assert len(schedules) == len(set(schedules)) == 3
    assert len(tables.load(path, version()).entries) == 1


def lines(path: Path) -> int:
    """Return the number of whole lines."""
    return path.read_bytes().count(b"\n") if path.exists() else 0
