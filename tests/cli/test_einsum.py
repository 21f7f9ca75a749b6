"""`tilewright einsum`: its output and its errors."""

from __future__ import annotations

import pytest
from tests.programs import CliRunner

import tilewright as tw
from tilewright.cli.verbs import app
from tilewright.tune.einsum_trial import Contracted, EinsumTrial


def test_it_contracts_verifies_and_times() -> None:
    given = ("einsum", "bsk,khd->bhsd", "2x5x6", "6x3x4", "--dtype", "f16", "--target", "reference")
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 0, result.output
    assert "2x3x5x4" in result.output
    assert "one product of matrices, out seen through a view" in result.output
    assert "correct: 120 elements" in result.output
    assert result.output.splitlines()[-1].endswith("einsum<reference, f16, bsk,khd->bhsd>")


def test_a_result_without_axes_is_one_number() -> None:
    given = ("einsum", "i,i->", "5", "5", "--target", "reference", "--no-time")
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[0].split(maxsplit=1) == ["result", "one number"]


def test_it_drops_elements() -> None:
    given = ("einsum", "bsk,khd->bhsd", "2x5x6", "6x3x4", "--dropout", "0.5", "--target", "reference")
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 0, result.output
    assert "correct: 120 elements" in result.output


@pytest.mark.parametrize(("precision", "count"), [("f32", "three products"), ("f16", "one product")])
def test_it_contracts_halves_at_a_grade_of_precision(precision: str, count: str) -> None:
    schedule = f"tw.Schedule(tw.atoms.MMA_F16, (32, 32, 32), warps=(2, 2), promote={int(precision == 'f32')})"
    given = ("einsum", "bsk,khd->bhsd", "2x9x40", "40x2x5", "--precision", precision, "--activation", "gelu")
    result = CliRunner().invoke(app, (*given, "--schedule", schedule, "--target", "reference"))
    assert result.exit_code == 0, result.output
    assert f"adds up {count} of them" in result.output
    assert "correct: 180 elements" in result.output


def test_halves_are_held_to_their_own_bound() -> None:
    """One half of each number exceeds the bound of two halves, and that of f32 products, by far."""
    made = Contracted.drawn("ik,kj->ij", ((20, 64), (64, 24)), tw.f32)
    schedule = tw.Schedule(tw.atoms.MMA_F16, (32, 32, 32), warps=(2, 2), promote=1)
    trial = EinsumTrial(made, "reference", schedule=schedule, precision="f16")
    trial.run()
    assert trial.verify().ok
    trial.precision = "f32"
    assert trial.verify().wrong > 100


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("ij,jk", "2x3", "4x5"), "axis 'j' has 3 and 4 elements"),
        (("ij,jk", "2,3", "3x5"), "integers with x between them"),
        (("ij,jk", "2x3", "3x5", "--dtype", "f12"), "unknown dtype"),
        (("ij,jk", "2x3", "3x5", "--dropout", "1"), "nearest legal choice: a number from 0 to below 1"),
        (("ij,jk", "2x3", "3x5", "--activation", "rely"), "relu"),
        (("ij,jk", "2x3", "3x5", "--precision", "f33"), "choose one of exact, tf32, f32, f16"),
        (("ij,jk", "2x3", "3x5", "--dtype", "f16", "--precision", "tf32"), "nearest: --precision f32"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(words: tuple[str, ...], message: str) -> None:
    result = CliRunner().invoke(app, ("einsum", *words, "--target", "reference"))
    assert result.exit_code == 2 or isinstance(result.exception, Exception)
    assert message in result.output + str(result.exception)
