"""`tilewright complex`: its output and its errors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.programs import CliRunner

import tilewright as tw
from tilewright.cli.verbs import app
from tilewright.ops.complex_matmul import ComplexWanted
from tilewright.tune.complex_trial import SIX, ComplexTrial
from tilewright.tune.trial import OURS

pytestmark = pytest.mark.in_turns(3)


def test_it_multiplies_verifies_and_says_what_is_launched() -> None:
    given = ("complex", "5", "8", "40", "--method", "3m", "--conjugate", "a", "--target", "reference")
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 0, result.output
    assert "three products in one kernel, after planes: sums of a and sums of b" in result.output
    assert f"{OURS}: 2 launches" in result.output
    assert f"{SIX}: 6 launches" in result.output
    assert "correct: worst element" in result.output
    assert result.output.splitlines()[-1].endswith("complex_matmul<reference, c64, 5x8x40>")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--dtype", "i8"), "choose one of f64, f32, f16, bf16"),
        (("--method", "5m"), "choose one of 4m, 3m"),
        (("--conjugate", "c"), "choose one of none, a, b, ab"),
        (("4", "4"), "three extents"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(words: tuple[str, ...], message: str) -> None:
    result = CliRunner().invoke(app, ("complex", *words, "--target", "reference"))
    assert result.exit_code == 2 or isinstance(result.exception, Exception)
    assert message in result.output + str(result.exception)


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_six_launches_compute_the_same(target: str) -> None:
    trial = ComplexTrial((40, 33, 20), tw.f32, target, asked=ComplexWanted())
    trial.run()
    assert trial.verify().ok
    six = trial.six_launches()
    six.launch()
    re, im = six.out
    np.testing.assert_allclose(re + 1j * im, trial.a @ trial.b, rtol=1e-4, atol=1e-4)
    assert trial.launches == {OURS: 1, SIX: 6}
    assert trial.moved == {OURS: 8 * (800 + 660 + 1320), SIX: 4 * (4 * (800 + 660 + 1320) + 6 * 1320)}


def test_products_of_halves_are_verified() -> None:
    schedule = "tw.Schedule(tw.atoms.MMA_F16, (32, 32, 32), warps=(2, 2), promote=1)"
    given = ("complex", "9", "8", "40", "--precision", "f32", "--target", "reference", "--schedule", schedule)
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 0, result.output
    assert (
        "twelve products of halves in one kernel, after a kernel that splits the operands in halves"
        in result.output
    )
    assert "correct: worst element" in result.output


KEPT = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize("number", range(3))
def test_the_table_that_is_kept_has_the_launches_and_bytes_of_both_flows(number: int) -> None:
    """A launch counts the bytes of all arrays that it names, for one kernel and for six launches."""
    row = json.loads((KEPT / "results" / "cpu_complex.json").read_text())["rows"][number]
    asked = ComplexWanted(method=row["method"], precision=row["precision"])
    trial = ComplexTrial(tuple(row["shape"]), tw.dtype(row["dtype"]), "cpu", row["planar"], asked)
    trial.run()
    assert (trial.launches, trial.moved) == (row["launches"], row["bytes"])
    page = (KEPT / "RESULTS.md").read_text()
    words = f"{row['dtype']} {'planes' if row['planar'] else 'interleaved'} {row['method']}"
    for flow, count in trial.launches.items():
        line = f"| {words} {row['precision']} {row['shape'][0]} | {flow} | {count} |"
        assert f"{line} {trial.moved[flow] / 1e6:.1f} |" in page
