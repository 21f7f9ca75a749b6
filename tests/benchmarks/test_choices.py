"""Chosen schedules are nearly as fast as the fastest measured ones, and the shipped table has them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.programs import run_here

from tilewright.runtime import tables
from tilewright.schedule.tables import RULES, ScheduleTable, Version

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "benchmarks" / "results" / "h200_candidates.json"
VERSION = Version.now("sm_90a", "NVIDIA H200", 132)


def run(*arguments: object, script: str = "choices.py") -> tuple[int, str]:
    done = run_here(ROOT / "benchmarks" / script, *arguments, cwd=ROOT)
    return done.status, done.stdout + done.stderr


@pytest.fixture(scope="module")
def shipped() -> ScheduleTable:
    """Return the table of an H200, which has this version."""
    return tables.load(tables.SHIPPED / tables.file_name(VERSION), VERSION)


def test_tables_are_bound_to_what_the_rules_propose() -> None:
    """After other proposals, ``rules.py --write`` takes their hash; then the table must be made anew."""
    status, said = run(script="rules.py")
    assert (status, said.strip()) == (0, RULES), said


def test_the_shipped_table_is_what_measurements_and_rules_say_now() -> None:
    """Illegal schedules are not written.  ``choices.py --table`` makes the table anew."""
    status, said = run("--check")
    assert status == 0, said
    means = dict(re.findall(r"^([\w ]+): .*the worst ([\d.]+):", said, re.MULTILINE))
    for group in ("few rows", "batched", "batched 16", "batched 32"):
        assert float(means[group]) >= 0.97
    # Where the fastest was measured after the rules were fitted; the table has it.
    assert float(means["small"]) >= 0.94
    assert float(means["split f32"]) >= 0.9
    assert float(means["grouped"]) >= 0.9  # groups of uneven sizes, of which the rules know the average


def test_a_table_of_other_measurements_is_another(tmp_path: Path) -> None:
    """Unknown or illegal schedules enter no table, however fast they were; faster rows do."""
    found = json.loads(KEPT.read_text("utf-8"))
    row = next(row for row in found["rows"] if row["shape"] == [512, 512, 512])
    slow = max(row["times"], key=lambda text: row["times"][text])
    refused = slow.replace("stages=", "stages=9")
    row["times"] |= {refused: [0.1, 0.1, 0.1], "tw.Schedule(tw.atoms.ABSENT)": [0.1, 0.1, 0.1]}
    other = tmp_path / "other.json"
    other.write_text(json.dumps(found))
    assert run(other, "--check")[0] == 0
    row["times"][slow] = [0.2, 0.2, 0.2]
    other.write_text(json.dumps(found))
    status, said = run(other, "--check")
    assert status == 1
    assert "--table writes it again" in said


def test_the_shipped_table_speaks_of_every_kind(shipped: ScheduleTable) -> None:
    kinds = {entry.kind for entry in shipped.entries}
    assert "bf16[k] x bf16[k] -> bf16[n], exact" in kinds
    assert "bf16[k] x bf16[k] -> bf16[n], exact, rows in groups" in kinds
    assert all(entry.speed >= 1 and entry.measured > 1 for entry in shipped.entries)
    assert all(entry.by_rules == (entry.speed == 1) for entry in shipped.entries)


def test_constants_are_fitted() -> None:
    status, said = run("--steps", 3, "--constants", "ticket_us", script="fit_times.py")
    assert status == 0, said
    before, after = (float(loss) for loss in re.findall(r"^loss ([\d.]+)", said, re.MULTILINE))
    assert 0 < after <= before
    assert re.search(r"^ticket_us = [\d.]+$", said, re.MULTILINE)


def test_the_estimate_is_compared_with_the_models_and_its_choice_with_theirs() -> None:
    status, said = run("--fit", "--draws", 1, "--quick", 16, script="estimates.py")
    assert status == 0, said
    rows = re.findall(r"^all products +\d+ +([\d.]+) +([\d.]+) +\d+ +([\d.]+) +([\d.]+)$", said, re.MULTILINE)
    assert len(rows) == 2, "the H200, and the H100 of which nothing is fitted"
    for own, own_far, models, models_far in (map(float, row) for row in rows):
        assert own < models
        assert own_far < models_far
    found = re.findall(
        r"^share of the fastest, choice of the ([\w, ]+): ([\d.]+) in the mean", said, re.MULTILINE
    )
    shares = {name: float(mean) for name, mean in found}
    assert shares["estimate"] > 0.93
    assert shares["rules, if not slower"] >= shares["rules"] - 0.01
    assert re.search(r"^launch_us=[4-6]\.\d+, ", said, re.MULTILINE), "the launch is found from products"
