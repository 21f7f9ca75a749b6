"""Leaving a traced loop or branch early is refused at the statement that leaves."""

from __future__ import annotations

import pytest

import tilewright as tw

from .kernels import broken, pointed, trace
from .refused import DECLARED, refusal


def breaking(A, n, alpha):
    for _k in tw.range(n):
        tw.barrier()
        break
    tw.barrier()


def breaking_under_a_constant(A, n, alpha):
    for _k in tw.range(n):
        tw.barrier()
        if alpha is not None:
            break


def returning(A, n, alpha):
    for _k in tw.range(n):
        return


def returning_from_an_inner_loop(A, n, alpha):
    for _j in tw.range(n):
        for _k in tw.range(n):
            return


def returning_in_a_branch(A, n, alpha):
    with tw.when(n > 3):
        return
    tw.barrier()


def continuing_in_a_branch(A, n, alpha):
    for k in tw.range(n):
        with tw.when(k > 3):
            continue
        tw.barrier()


def breaking_in_otherwise(A, n, alpha):
    for k in tw.range(n):
        with tw.when(k > 3):
            tw.barrier()
        with tw.otherwise():
            break


def returning_in_a_nested_statement(A, n, alpha):
    with tw.when(n > 3):
        for _i in range(3):
            if alpha is not None:
                return


LEAVING = {
    "breaking": "break",
    "breaking_under_a_constant": "break",
    "returning": "return",
    "returning_from_an_inner_loop": "return",
    "returning_in_a_branch": "return",
    "continuing_in_a_branch": "continue",
    "breaking_in_otherwise": "break",
    "returning_in_a_nested_statement": "return",
}


@pytest.mark.parametrize("name", LEAVING)
def test_leaving_a_body_early_is_refused_at_the_statement(name: str) -> None:
    error = refusal(globals()[name])
    assert f"is left by {LEAVING[name]}" in error.message
    assert pointed(error) == LEAVING[name]


def test_a_swallowed_exception_is_refused_at_the_loop() -> None:
    def kernel(A, n, alpha):
        try:
            for _k in tw.range(n):
                raise KeyError
        except KeyError:
            pass

    error = refusal(kernel)
    assert "left by break, return or an exception" in error.message
    assert pointed(error) == "tw.range(n)"


def test_other_exceptions_pass_through() -> None:
    def kernel(A, n, alpha):
        for _k in tw.range(n):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        trace(kernel, DECLARED)


def test_breaking_a_python_loop_in_a_body_is_fine() -> None:
    def kernel(A, n, alpha):
        for k in tw.range(n):
            for i in range(4):
                if i == 2:
                    break
                A[k + i]
            with tw.when(k > 3):
                while True:
                    break

    assert broken(trace(kernel, DECLARED)) == []


def test_without_source_what_can_be_seen_is_still_refused() -> None:
    text = (
        "def kernel(A, n, alpha):\n"
        "    x = n + 1\n"
        "    for k in tw.range(n):\n"
        "        x = x + k\n"
        "def left(A, n, alpha):\n"
        "    for k in tw.range(n):\n"
        "        break\n"
    )
    functions = {"tw": tw, "__name__": "shell"}
    exec(compile(text, "<shell>", "exec"), functions)
    error = refusal(functions["kernel"])
    assert error.message.startswith("x is rebound inside the loop")
    assert str(error).endswith("  at <shell>:4:9 in kernel")
    assert "left by break, return or an exception" in refusal(functions["left"]).message


def test_statements_that_go_on_after_their_last_instruction() -> None:
    def kernel(A, n, alpha):
        with tw.when(
            n
            > 3
        ):  # fmt: skip
            return (
            )  # fmt: skip

    assert pointed(refusal(kernel)) == "return (\n"
