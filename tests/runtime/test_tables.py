"""The files of measured schedules, and kernels that run under the user's table, the package's, or none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.ops.products import plain
from tilewright.runtime import tables
from tilewright.runtime.backends import arch_named, processors_of
from tilewright.schedule.choice import candidates
from tilewright.schedule.question import Question
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.tables import (
    MeasuredSchedule,
    OtherVersionError,
    ScheduleTable,
    TableError,
    Version,
    class_of,
)

pytestmark = pytest.mark.in_turns(3)

SHAPE = (40, 50, 60)


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_known_products: None) -> Iterator[Path]:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(tables, "SHIPPED", tmp_path / "shipped")
    tables.forget()
    yield tmp_path
    tables.forget()


def version() -> Version:
    arch = arch_named("cpu", None)
    found = tables.version_of(arch, processors_of("cpu", arch))
    assert found is not None
    return found


def question() -> Question:
    m, n, k = SHAPE
    arrays = [tw.like("f32", m, k), tw.like("f32", k, n), tw.like("f32", m, n)]
    found = plain(0).bind(precision="exact").question(*arrays, target="cpu")
    assert found is not None
    return found


def another(at: int = 1) -> Schedule:
    return [one.schedule for one in candidates(question()) if not one.against][at]


def table(schedule: Schedule, of: Version | None = None) -> ScheduleTable:
    return ScheduleTable(
        of or version(), (MeasuredSchedule(class_of(question()), (1, *SHAPE), schedule, 1.0, 1.0, 1),)
    )


def ran() -> Schedule:
    """Return the schedule that a product of NumPy arrays has now; the product must be right."""
    rng = np.random.default_rng(0)
    a, b = rng.integers(-4, 5, (40, 60)).astype(np.float32), rng.integers(-4, 5, (60, 50)).astype(np.float32)
    np.testing.assert_array_equal(tw.matmul(a, b, target="cpu"), a @ b)
    found = plain(0).bind(precision="exact").schedule_for(a, b, np.empty((40, 50), np.float32), target="cpu")
    assert found is not None
    return found


def test_without_a_table_the_rules_choose() -> None:
    assert ran() == candidates(question())[0].schedule


def test_a_kernel_runs_under_what_the_users_table_says() -> None:
    tuned = another()
    tables.save(table(tuned), tables.user_table(version()))
    assert tuned != candidates(question())[0].schedule
    assert ran() == tuned


def test_the_users_entry_goes_before_that_of_the_package(directory: Path) -> None:
    shipped = directory / "shipped" / tables.file_name(version())
    tables.save(table(another(1)), shipped)
    assert ran() == another(1)
    tables.save(table(another(2)), tables.user_table(version()))
    assert ran() == another(1), "a table is read once"
    tables.forget()
    assert ran() == another(2)


def test_there_is_none_of_another_machine() -> None:
    assert tables.table_for(arch_named("cpu", "generic"), 0) is None
    assert tables.version_of(arch_named("reference", None), 1) is None


def test_a_table_of_another_version_is_not_used_and_said_so() -> None:
    old = Version("older", "older", *list(vars(version()).values())[2:])
    path = tables.user_table(version())
    tables.save(table(another(), old), path)
    with pytest.raises(OtherVersionError, match=r"table .*\.json: of another version: schedule format older"):
        tables.load(path, version())
    with pytest.warns(
        RuntimeWarning, match="of another version.*it is not used; tilewright tune makes it anew"
    ):
        assert ran() == candidates(question())[0].schedule
    assert ran(), "said once"


@pytest.mark.parametrize("text", ["", "{", "[1, 2", '{"version": 3}', "\x00\xff", "[" * 10000])
def test_a_damaged_table_is_not_used_and_said_so(text: str) -> None:
    path = tables.user_table(version())
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(TableError, match="table "):
        tables.load(path, version())
    with pytest.warns(RuntimeWarning, match="it is not used"):
        assert ran() == candidates(question())[0].schedule


def test_a_table_is_json_that_a_person_reads() -> None:
    path = tables.user_table(version())
    tables.save(table(another()), path)
    found = json.loads(path.read_text())
    assert found["entries"][0]["schedule"] == repr(another())
    assert found["entries"][0]["extents"] == [1, *SHAPE]
