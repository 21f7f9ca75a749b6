"""`tilewright scaled`: its output and its errors."""

from __future__ import annotations

import pytest
from tests.programs import CliRunner

from tilewright.cli.verbs import app


def test_it_multiplies_verifies_and_times() -> None:
    given = ("scaled", "5", "8", "40", "--weights", "i8", "--out-dtype", "f8e4m3", "--target", "reference")
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 0, result.output
    assert "A of f16, B of i8, multiplied as f16" in result.output
    assert "correct: 40 elements" in result.output
    assert "tilewright: 1 launch, " in result.output
    assert "convert, GEMM, scale and bias (tilewright): 3 launches, " in result.output
    assert "convert, GEMM, scale and bias (tilewright): correct: 40 elements" in result.output
    assert result.output.splitlines()[-1].endswith("scaled_mm<reference, f16 x i8 -> f8e4m3>")


def test_scales_of_one_block_along_k() -> None:
    given = ("scaled", "5", "8", "100", "--dtype", "f8e4m3", "--blocks", "1x128", "--target", "reference")
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 0, result.output
    assert "correct: 40 elements" in result.output
    assert result.output.splitlines()[-1].startswith("Perf: ")


def test_scales_of_blocks() -> None:
    given = ("scaled", "5", "8", "140", "--dtype", "f8e4m3", "--blocks", "1x128", "--target", "reference")
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 0, result.output
    assert "correct: 40 elements" in result.output
    assert "promote=" in result.output


def test_weights_of_4_bits_in_groups() -> None:
    given = ("scaled", "5", "8", "96", "--weights", "i4", "--group", "32", "--zeros", "--target", "reference")
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 0, result.output
    assert "A of f16, B of i4, multiplied as f16" in result.output
    assert "correct: 40 elements" in result.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("4", "8", "96", "--weights", "i4", "--group", "64"), "does not divide K, 96; nearest: 48"),
        (("4", "8", "96", "--weights", "i4", "--zeros"), "nearest: --group 96"),
        (("--blocks", "64x128"), "choose one of 1x128"),
        (("4", "8", "96", "--blocks", "1x128", "--group", "32"), "one or the other"),
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


@pytest.mark.parametrize("verb", ["scaled", "complex"])
def test_extents_that_are_none_are_told_with_the_command_that_was_given(verb: str) -> None:
    result = CliRunner().invoke(app, (verb, "a", "b", "c"))
    assert result.exit_code == 2
    assert f"tilewright {verb} 512 512 512" in result.output
    result = CliRunner().invoke(app, (verb, "4", "8"))
    assert result.exit_code == 2
    assert "a.npy" not in result.output
