"""Python that tracing cannot record is refused at the author's line, with an alternative."""

# ruff: noqa: B015, B018

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw

from .kernels import ROWS, pointed, trace
from .refused import DECLARED, cases, refusal

# ---------------------------------------------------------------- Python decides


def if_condition(A, n, alpha):
    if n > 3:  # n > 3
        tw.barrier()


def if_scalar(A, n, alpha):
    if n:  # n
        tw.barrier()


def while_condition(A, n, alpha):
    while n > 3:  # n > 3
        tw.barrier()


def and_condition(A, n, alpha):
    (n > 3) and (n < 5)  # n > 3


def or_condition(A, n, alpha):
    (n > 3) or (n < 5)  # n > 3


def not_condition(A, n, alpha):
    not (n > 3)  # not (n > 3)


def chained_comparison(A, n, alpha):
    tw.when(1 < n < 5)  # 1 < n < 5


def assert_condition(A, n, alpha):
    assert n > 3  # n > 3


def equality_as_truth(A, n, alpha):
    if n == 3:  # n == 3
        tw.barrier()


def conditional_expression(A, n, alpha):
    A[0 if n > 3 else 1]  # n > 3


def membership(A, n, alpha):
    n in (1, 2)  # n in (1, 2)


def minimum(A, n, alpha):
    min(n, 3)  # min(n, 3)


def maximum(A, n, alpha):
    max(n, 3)  # max(n, 3)


def sorting(A, n, alpha):
    sorted([n, 3])  # sorted([n, 3])


def python_range(A, n, alpha):
    range(n)  # range(n)


def list_index(A, n, alpha):
    [1, 2][n]  # [1, 2][n]


def integer(A, n, alpha):
    int(n)  # int(n)


def repetition(A, n, alpha):
    np.zeros(n)  # np.zeros(n)


def dictionary_key(A, n, alpha):
    {n: 1}  # {n: 1}


def compared_conditions(A, n, alpha):
    (n > 3) == True  # (n > 3) == True  # noqa: E712


def fragment_truth(A, n, alpha):
    x = tw.fragment(ROWS, tw.f32, 0)
    if x:  # x
        tw.barrier()


def fragment_comparison(A, n, alpha):
    x = tw.fragment(ROWS, tw.f32, 0)
    if x == 0.0:  # x == 0.0
        tw.barrier()


def fragment_maximum(A, n, alpha):
    x = tw.fragment(ROWS, tw.f32, 0)
    max(x, 0.0)  # max(x, 0.0)


def number_truth(A, n, alpha):
    if alpha:  # alpha
        tw.barrier()


def number_comparison(A, n, alpha):
    if alpha != 0.0:  # alpha != 0.0
        tw.barrier()


def number_equality(A, n, alpha):
    if alpha == 1.0:  # alpha == 1.0
        tw.barrier()


def iterated_tensor(A, n, alpha):
    for _row in A:  # A
        tw.barrier()


def unpacked_tensor(A, n, alpha):
    _x, _y = A  # _x, _y


def variable_truth(A, n, alpha):
    x = tw.var(0)
    if x:  # x
        tw.barrier()


def true_division(A, n, alpha):
    tw.range(n / 2)  # tw.range(n / 2)


def bitwise_and(A, n, alpha):
    n & 6  # n & 6


def float_of_index(A, n, alpha):
    A.tile((8, 8), (n * 0.5, 0))  # A.tile((8, 8), (n * 0.5, 0))


def division_by_zero(A, n, alpha):
    n // 0  # n // 0


def modulo_of_zero(A, n, alpha):
    n % (n * 0)  # n % (n * 0)


def symbolic_step(A, n, alpha):
    tw.range(0, 8, n)  # tw.range(0, 8, n)


def zero_step(A, n, alpha):
    tw.range(0, 8, 0)  # tw.range(0, 8, 0)


def no_span(A, n, alpha):
    tw.range()  # tw.range()


def symbolic_unroll(A, n, alpha):
    tw.unroll(n)  # tw.unroll(n)


def enumerated(A, n, alpha):
    for _i, _k in enumerate(tw.range(n)):  # tw.range(n)
        tw.barrier()


def zipped(A, n, alpha):
    for _i, _k in zip(tw.range(n), range(3), strict=False):  # tw.range(n)
        tw.barrier()


def listed(A, n, alpha):
    list(tw.range(n))  # tw.range(n)


def in_a_comprehension(A, n, alpha):
    [A[k] for k in tw.range(n)]  # tw.range(n)


def in_a_generator_expression(A, n, alpha):
    tuple(A[k] for k in tw.range(n))  # tw.range(n)


def otherwise_alone(A, n, alpha):
    tw.barrier()
    with tw.otherwise():  # tw.otherwise()
        tw.barrier()


def otherwise_twice(A, n, alpha):
    with tw.when(n > 3):
        tw.barrier()
    with tw.otherwise():
        tw.barrier()
    with tw.otherwise():  # tw.otherwise()
        tw.barrier()


def otherwise_after_an_operation(A, n, alpha):
    with tw.when(n > 3):
        tw.barrier()
    tw.barrier()
    with tw.otherwise():  # tw.otherwise()
        tw.barrier()


def otherwise_in_another_region(A, n, alpha):
    with tw.when(n > 3):
        tw.barrier()
    for _k in tw.range(n):
        with tw.otherwise():  # tw.otherwise()
            tw.barrier()


def when_of_a_number(A, n, alpha):
    tw.when(n)  # tw.when(n)


@pytest.mark.parametrize(
    ("kernel", "caret"), cases(globals()), ids=lambda value: getattr(value, "__name__", "")
)
def test_refused_at_the_line(kernel: Callable[..., Any], caret: str) -> None:
    assert caret in pointed(refusal(kernel))


@pytest.mark.parametrize(
    ("kernel", "advice"),
    [
        (if_condition, "tw.when"),
        (and_condition, "&, |"),
        (membership, "joined by |"),
        (minimum, "tw.minimum"),
        (python_range, "tw.range"),
        (fragment_truth, "tw.where"),
        (true_division, "tw.ceil_div"),
        (symbolic_unroll, "tw.range"),
        (variable_truth, ".get()"),
    ],
)
def test_the_message_says_what_to_do(kernel: Callable[..., Any], advice: str) -> None:
    assert advice in refusal(kernel).message


# ---------------------------------------------------------------- no refusal


def test_what_can_be_proved_may_be_decided() -> None:
    def kernel(A, n, alpha):
        m = tw.block_index(8)
        if m < 8:
            tw.barrier()
        if m >= 8 or m < 0:
            raise AssertionError

    assert [op.name for op in trace(kernel, DECLARED).walk()] == ["barrier"]


def test_text_of_symbolic_values() -> None:
    def kernel(A, n, alpha):
        x = tw.fragment(ROWS, tw.f32, 0)
        texts.append(f"{n + 1} {n < 3} {A.shape} {alpha} {x} {A} {tw.var(n)}")

    texts: list[str] = []
    trace(kernel, DECLARED)
    [text] = texts
    assert text.startswith("n + 1 n < 3 (A_0, A_1) alpha x: f32 fragment (8, 8) A: global f16 ")
    assert "0x" not in text


def test_outside_of_a_kernel() -> None:
    with pytest.raises(tw.TraceError, match="inside a kernel") as caught:
        tw.barrier()
    assert pointed(caught.value) == "tw.barrier()"
    assert caught.value.location is not None
    assert len(caught.value.location.frames) == 1
