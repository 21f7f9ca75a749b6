"""Contests: wrong kernels do not take part, calls find cold arrays, and the record has the conditions."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.tune import contest as module
from tilewright.tune.contest import MOST_SETS, Contest, ContestSubject, Readings, sets_for
from tilewright.tune.figures import new_figure, save
from tilewright.tune.machine import cache_bytes
from tilewright.tune.measure import Effort

SUBJECT = ContestSubject("double", "cpu", 1000, 8000, "whole numbers from 0 on")
LITTLE = Effort(seconds=0.0, warm_up_seconds=0.0, least=3)
Arrays = tuple[Any, Any]


def arrays(count: int = 2) -> list[Arrays]:
    return [(np.arange(500.0), np.empty(500)) for _ in range(count)]


def add(given: Arrays) -> Callable[[], object]:
    return lambda: np.add(given[0], given[0], given[1])


def copy(given: Arrays) -> Callable[[], object]:
    return lambda: np.copyto(given[1], given[0])


def check(call: Callable[[], object], given: Arrays) -> Mapping[str, Any]:
    given[1][...] = np.nan
    call()
    np.testing.assert_array_equal(given[1], 2 * given[0])
    return {"elements": given[1].size}


def test_who_is_wrong_takes_no_part() -> None:
    contest = Contest(SUBJECT, arrays(), 8000)
    assert contest.enter("add", add, check)
    assert not contest.enter("copy", copy, check)
    contest.again("add", "add again")
    found = contest.run(LITTLE)
    assert [timing.name for timing in found.taken.timings] == ["add", "add again"]
    assert "Mismatched elements" in found.wrong["copy"]
    assert found.checks == {"add": {"elements": 500}}


def test_what_cannot_be_bound_takes_no_part() -> None:
    def refuses(given: Arrays) -> Callable[[], object]:
        raise tw.LaunchError("no such launch")

    contest = Contest(SUBJECT, arrays(), 8000)
    assert not contest.enter("refuses", refuses)
    found = contest.run(LITTLE)
    assert found.wrong == {"refuses": "no such launch"}
    assert found.taken.timings == ()
    assert found.record()["rounds"] == 0


def test_every_call_takes_the_next_set_of_arrays() -> None:
    used: list[int] = []
    contest = Contest(SUBJECT, [*range(5)], 8000)
    contest.enter("one", lambda at: lambda: used.append(at))
    contest.run(LITTLE)
    assert len(used) > 10
    assert used == [at % 5 for at in range(len(used))]


@pytest.mark.parametrize("set_bytes", [100_000, 1 << 20, 5 << 20, 1 << 30])
def test_twice_the_cache_lies_between_two_uses(set_bytes: int) -> None:
    count = sets_for(set_bytes, "cpu")
    assert 2 <= count <= MOST_SETS
    assert (count - 1) * set_bytes >= 2 * cache_bytes("cpu") or count == MOST_SETS


def test_the_record_says_how_it_was_measured(tmp_path: Path) -> None:
    (tmp_path / "clocks").write_text("1000, 100, 40\n")
    readings = Readings(tmp_path / "clocks")
    contest = Contest(SUBJECT, arrays(3), 8000)
    contest.enter("add", add, lambda call, given: _meanwhile(tmp_path, check(call, given)))
    contest.enter("library", add)
    found = contest.run(LITTLE, _marked(readings, tmp_path))
    record = json.loads(json.dumps(found.record()))
    assert record["distribution"] == "whole numbers from 0 on"
    assert record["buffers"] == {"sets": 3, "set_bytes": 8000, "cache_bytes": cache_bytes("cpu")}
    assert record["clock"] == {"mhz": 1980.0, "watts": 700.0, "celsius": 60.0}
    assert record["checks"] == {"add": {"elements": 500}}
    us = record["timings"]["add"]
    assert us["low_us"] <= us["median_us"] <= us["high_us"]
    assert record["tflops"]["add"] == pytest.approx(1000 / us["median_us"] / 1e6)
    assert record["gbytes"]["add"] == pytest.approx(8000 / us["median_us"] / 1e3)
    assert record["speed"]["add"]["library"][0] == pytest.approx(
        1 / record["speed"]["library"]["add"][0], rel=0.2
    )


def test_a_picture_has_a_known_format(tmp_path: Path) -> None:
    with pytest.raises(tw.ToolchainError, match=r"no picture of format '\.bmp'; nearest: \.png, "):
        save(new_figure((1, 1)), tmp_path / "rates.bmp")


def _meanwhile(path: Path, found: Mapping[str, Any]) -> Mapping[str, Any]:
    """Readings before the timing begins do not count."""
    (path / "clocks").write_text("1000, 100, 40\n1200, 120, 41\n")
    return found


def _marked(readings: Readings, path: Path) -> Readings:
    """Readings that continue when a mark is set."""
    mark = readings.mark

    def marked() -> int:
        at = mark()
        with (path / "clocks").open("a") as file:
            file.write("1980, 700, 60\n")
        return at

    readings.mark = marked  # type: ignore[method-assign]
    return readings


def test_all_of_a_small_problem_is_cold_on_a_device_by_its_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small problems have only a few sets; the clock overwrites the cache as well."""
    monkeypatch.setattr(module, "cache_bytes", lambda target: 50 << 20)
    assert sets_for(1000, "cuda") == MOST_SETS
    assert sets_for(100 << 20, "cuda") == 2
