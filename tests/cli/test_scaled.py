"""`tilewright scaled`: what it says, and what it refuses."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from tilewright.cli.verbs import app


def test_it_multiplies_verifies_and_times() -> None:
    given = ("scaled", "5", "8", "40", "--weights", "i8", "--out-dtype", "f8e4m3", "--target", "reference")
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 0, result.output
    assert "A of f16, B of i8, multiplied as f16" in result.output
    assert "correct: 40 elements" in result.output
    assert result.output.splitlines()[-1].endswith("scaled_mm<reference, f16 x i8 -> f8e4m3>")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--weights", "f64"), "choose one of f32"),
        (("--dtype", "f12"), "--dtype"),
        (("--dtype", "bf16", "--weights", "f16"), "convert one of them first"),
        (("--activation", "rely"), "relu"),
        (("4", "4"), "three extents"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(words: tuple[str, ...], message: str) -> None:
    result = CliRunner().invoke(app, ("scaled", *words, "--target", "reference"))
    assert result.exit_code == 2 or isinstance(result.exception, Exception)
    assert message in result.output + str(result.exception)
