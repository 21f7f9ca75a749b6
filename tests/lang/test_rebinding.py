"""Variables that change inside a traced loop or branch are refused if the change would be lost."""

# ruff: noqa: F841

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tilewright as tw

from .kernels import ROWS, pointed, trace
from .refused import DECLARED, refusal


class Ring:
    """An author's own object with state."""

    def __init__(self) -> None:
        self.phase = 0

    def advance(self) -> None:
        self.phase ^= 1


def scalar(A, n, alpha):
    x = n + 1
    for k in tw.range(n):
        A[x]
        x = k * 2


def scalar_augmented(A, n, alpha):
    x = n + 1
    for _k in tw.range(n):
        x += 1


def condition(A, n, alpha):
    x = n < 3
    for k in tw.range(n):
        x = x & (k < 2)


def tensor(A, n, alpha):
    x = A.tile((8, 8), (0, 0))
    for k in tw.range(n):
        x = A.tile((8, 8), (k, 0))


def fragment(A, n, alpha):
    x = tw.fragment(ROWS, tw.f32, 0)
    for _k in tw.range(n):
        x = x + 1.0


def number(A, n, alpha):
    x = alpha
    for _k in tw.range(n):
        x = x * 2.0


def argument(A, n, alpha):
    for _k in tw.range(n):
        n = n - 1


def plain_counter(A, n, alpha):
    x = 0
    for _k in tw.range(n):
        A[x]
        x = x + 1


def plain_then_symbolic(A, n, alpha):
    x = 0
    for k in tw.range(n):
        x = x + k


def absent_then_tensor(A, n, alpha):
    x = None
    for k in tw.range(n):
        if x is None:
            x = A.tile((8, 8), (k, 0))


def read_after_the_loop(A, n, alpha):
    x = 0
    for _k in tw.range(n):
        x = 5
    A[x]


def inner_of_nested(A, n, alpha):
    x = n + 1
    for _j in tw.range(n):
        for _k in tw.range(n):
            x = x + 1


def outer_of_nested(A, n, alpha):
    x = n + 1
    for _j in tw.range(n):
        for k in tw.range(n):
            A[k]
        x = x + 1


def the_second_loop_carries(A, n, alpha):
    for _k in tw.range(n):
        x = n + 1
    for _k in tw.range(n):
        x = x + 1


def unpacked(A, n, alpha):
    x, y = n + 1, 0
    for k in tw.range(n):
        x, y = k, y


def pair(A, n, alpha):
    x = (n, n + 1)
    for k in tw.range(n):
        x = (k, n)


def walrus(A, n, alpha):
    x = n + 1
    for k in tw.range(n):
        A[(x := k)]


def loop_variable(A, n, alpha):
    x = n + 1
    for x in tw.range(n):
        A[x]


def branch_scalar(A, n, alpha):
    x = n + 1
    with tw.when(n > 3):
        x = n + 2
    A[x]


def branch_plain(A, n, alpha):
    x = 0
    with tw.when(n > 3):
        x = 1
    A[x]


def branch_new(A, n, alpha):
    with tw.when(n > 3):
        x = 0
    A[x]


def branch_else(A, n, alpha):
    with tw.when(n > 3):
        x = 0
        A[x]
    with tw.otherwise():
        x = 1
        A[x]
    A[x]


def branch_augmented(A, n, alpha):
    x = n + 1
    with tw.when(n > 3):
        x += 1


def helper_loop(A, n):
    x = n + 1
    for k in tw.range(n):
        x = x + k
    return x


def in_a_helper(A, n, alpha):
    helper_loop(A, n)


def closure(A, n, alpha):
    x = n + 1

    def change() -> None:
        nonlocal x
        x = x + 1

    for _k in tw.range(n):
        change()


def pairs_of(n):
    for k in tw.range(n):
        yield k, k + 1


def through_a_generator(A, n, alpha):
    x = n + 1
    for k, _next in pairs_of(n):
        x = x + k


REBOUND = [
    scalar,
    scalar_augmented,
    condition,
    tensor,
    fragment,
    number,
    plain_counter,
    plain_then_symbolic,
    absent_then_tensor,
    read_after_the_loop,
    inner_of_nested,
    outer_of_nested,
    the_second_loop_carries,
    unpacked,
    pair,
    walrus,
    loop_variable,
    branch_scalar,
    branch_plain,
    branch_new,
    branch_else,
    branch_augmented,
    in_a_helper,
    through_a_generator,
]


@pytest.mark.parametrize("kernel", REBOUND, ids=lambda kernel: kernel.__name__)
def test_refused_at_the_name_that_is_bound(kernel: Callable[..., Any]) -> None:
    error = refusal(kernel)
    assert error.message.startswith("x is ")
    # From Python 3.13 on, two neighbouring stores are one instruction, which has the place of the second.
    assert pointed(error) in ("x" if kernel is not unpacked else ("x", "y"))


def in_the_other_branch(A, n, alpha):
    x, is_first = 0, True
    if is_first:
        with tw.when(n > 1):
            x = n + 1
            A[x]
    else:
        A[x]


def in_a_return_of_the_other_branch(A, n, alpha):
    def found(is_first):
        if is_first:
            last = n + 1
            with tw.when(n > 1):
                A[last]
            return last
        with tw.when(n > 1):
            last = n + 2
            A[last]
        return n

    found(False)


@pytest.mark.parametrize("kernel", [in_the_other_branch, in_a_return_of_the_other_branch])
def test_what_is_read_only_where_the_code_cannot_go_is_no_loss(kernel: Callable[..., Any]) -> None:
    trace(kernel, DECLARED)


def test_an_argument_is_a_variable_too() -> None:
    error = refusal(argument)
    assert (error.message.split(";")[0], pointed(error)) == ("n is rebound inside the loop", "n")


def test_a_helper_shows_its_callers() -> None:
    location = refusal(in_a_helper).location
    assert location is not None
    assert [frame.function for frame in location.frames] == ["helper_loop", "in_a_helper"]


def test_what_another_function_changes_is_refused_at_the_loop() -> None:
    error = refusal(closure)
    assert error.message.startswith("x is rebound inside the loop")
    assert pointed(error) == "tw.range(n)"


@pytest.mark.parametrize(
    ("kernel", "advice"),
    [
        (scalar, "`tw.var`"),
        (fragment, "`x.assign(...)` or `x += ...`"),
        (tensor, "one tensor and an index"),
        (plain_counter, "from 0 to 1 inside the loop"),
        (branch_new, "bound inside the branch and used after it"),
    ],
)
def test_the_message_says_what_to_do(kernel: Callable[..., Any], advice: str) -> None:
    assert advice in refusal(kernel).message


def list_entry(A, n, alpha):
    xs = [n, n + 1]
    for k in tw.range(n):
        xs[1] = k


def plain_list_entry(A, n, alpha):
    xs = [0]
    for _k in tw.range(n):
        xs[0] += 1


def dictionary_entry(A, n, alpha):
    xs = {"row": n}
    with tw.when(n > 3):
        xs["row"] = n + 1


def attribute(A, n, alpha):
    ring = Ring()
    for _k in tw.range(n):
        A[ring.phase]
        ring.advance()


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        (list_entry, "xs[1]"),
        (plain_list_entry, "xs[0]"),
        (dictionary_entry, "xs['row']"),
        (attribute, "ring.phase"),
    ],
)
def test_parts_of_objects_are_watched(kernel: Callable[..., Any], name: str) -> None:
    assert refusal(kernel).message.startswith(f"{name} is replaced inside the ")
