"""The page of options agrees with calls: each run checks a share of its answers."""

from __future__ import annotations

import pytest
from scripts import options

SHARES = 48
"""Parts that the questions are divided in; a run asks for one of them."""


def test_a_share_of_the_answers_is_what_calls_say(fuzz_seed: int) -> None:
    every = [*options.questions()]
    asked = every[fuzz_seed % SHARES :: SHARES]
    assert options.differing(options.answered(asked), options.PAGE.read_text()) == []


def test_a_wrong_answer_is_found() -> None:
    text = options.PAGE.read_text()
    [one] = [q for q in options.questions() if q == ("einsum", "dropout", "f32", "cpu")]
    [wrong] = options.differing({one: "dropout is refused"}, text)
    assert wrong == "einsum, dropout, f32, cpu: the page says '', the call 'dropout is refused'"


@pytest.mark.parametrize("op", options.OPERATIONS)
def test_every_option_of_an_operation_has_a_row(op: str) -> None:
    text = options.PAGE.read_text()
    tables = text.split("\n## ")
    [table] = [one for one in tables if one.startswith(f"{options.heading(op)}\n")]
    for option in options.OPTIONS:
        assert f"\n| {option} |" in table
