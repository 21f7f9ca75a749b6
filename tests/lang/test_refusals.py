"""Python that tracing cannot record is refused at the author's line, with the way out."""

# ruff: noqa: B015, B018

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw

from .kernels import ROWS, broken, pointed, trace

DECLARED = {"n": int, "alpha": tw.f32}


def refusal(kernel: Callable[..., Any]) -> tw.TraceError:
    with pytest.raises(tw.TraceError) as caught:
        trace(kernel, DECLARED)
    return caught.value


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
    n / 2  # n / 2


def bitwise_and(A, n, alpha):
    n & 1  # n & 1


def float_of_index(A, n, alpha):
    n * 0.5  # n * 0.5


def division_by_zero(A, n, alpha):
    n // 0  # n // 0


def modulo_of_a_negative(A, n, alpha):
    n % -4  # n % -4


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


def tensor_arithmetic(A, n, alpha):
    A + 1.0  # A + 1.0


def tensor_product(A, n, alpha):
    A @ A  # A @ A


def tensor_assignment(A, n, alpha):
    A[0] = 1.0  # A[0]


def tensor_and_fragment(A, n, alpha):
    tw.fragment(ROWS, tw.f32, 0) + A  # tw.fragment(ROWS, tw.f32, 0) + A


def index_in_arithmetic(A, n, alpha):
    tw.fragment(ROWS, tw.f32, 0) * n  # tw.fragment(ROWS, tw.f32, 0) * n


def mixed_dtypes(A, n, alpha):
    tw.fragment(ROWS, tw.f16, 0) * alpha  # tw.fragment(ROWS, tw.f16, 0) * alpha


def unassignable(A, n, alpha):
    tw.fragment(ROWS, tw.f16, 0).assign(0.0)  # tw.fragment(ROWS, tw.f16, 0).assign(0.0)


def symbolic_tile(A, n, alpha):
    A.tile((8, n), (0, 0))  # A.tile((8, n), (0, 0))


def tile_of_another_rank(A, n, alpha):
    A.tile((8, 8, 8), (0, 0, 0))  # A.tile((8, 8, 8), (0, 0, 0))


def too_many_indices(A, n, alpha):
    A[0, 0, 0]  # A[0, 0, 0]


def stepped_slice(A, n, alpha):
    A[::2]  # A[::2]


def symbolic_shared(A, n, alpha):
    tw.shared((8, n), tw.f16)  # tw.shared((8, n), tw.f16)


def unknown_dtype(A, n, alpha):
    tw.shared((8, 8), "f17")  # tw.shared((8, 8), "f17")


def impossible_swizzle(A, n, alpha):
    A.swizzle(3, 3, 2)  # A.swizzle(3, 3, 2)


def indivisible_partition(A, n, alpha):
    tw.shared((8, 8), tw.f16).partition((3, 8))  # tw.shared((8, 8), tw.f16).partition((3, 8))


def partition_of_symbolic(A, n, alpha):
    A.partition((4, 8))  # A.partition((4, 8))


def copy_of_a_number(A, n, alpha):
    tw.copy(1.0, A)  # tw.copy(1.0, A)


def mma_without_atom(A, n, alpha):
    tw.mma(A, A, tw.fragment(ROWS, tw.f32, 0))  # tw.mma(A, A, tw.fragment(ROWS, tw.f32, 0))


def depth_of_operand(A, n, alpha):
    tw.operand_a(tw.TiledMma(tw.atoms.MMA_F16), 24)  # tw.operand_a(tw.TiledMma(tw.atoms.MMA_F16), 24)


def undistributed_load(A, n, alpha):
    tw.load(A)  # tw.load(A)


def fragment_without_dtype(A, n, alpha):
    tw.fragment(ROWS)  # tw.fragment(ROWS)


def negative_wait(A, n, alpha):
    tw.async_wait(-1)  # tw.async_wait(-1)


def four_axes(A, n, alpha):
    tw.block_index((n, n, n))
    tw.batch_index(n)  # tw.batch_index(n)


def grid_inside_the_kernel(A, n, alpha):
    m = tw.block_index(n)
    tw.batch_index(m + 1)  # tw.batch_index(m + 1)


def workspace_inside_the_kernel(A, n, alpha):
    for k in tw.range(n):
        tw.workspace((k,), tw.f32)  # tw.workspace((k,), tw.f32)


def derived_inside_the_kernel(A, n, alpha):
    for k in tw.range(n):
        tw.derived(k * 2)  # tw.derived(k * 2)


def two_clusters(A, n, alpha):
    tw.cluster_index((2, 1))
    tw.cluster_index((2, 1))  # tw.cluster_index((2, 1))


# ---------------------------------------------------------------- leaving a body early


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


def cases() -> list[tuple[Callable[..., Any], str]]:
    """The kernels above, each with the text that its comment says the caret is under."""
    found = []
    for name, value in globals().items():
        code = getattr(value, "__code__", None)
        if code is not None and code.co_varnames[:3] == ("A", "n", "alpha") and name not in LEAVING:
            [line] = [text for text in inspect.getsource(value).splitlines() if "  # " in text]
            found.append((value, line.split("  # ")[1].strip()))
    return found


@pytest.mark.parametrize(("kernel", "caret"), cases(), ids=lambda value: getattr(value, "__name__", ""))
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
        (tensor_arithmetic, "tw.load"),
        (tensor_assignment, "tw.copy"),
        (symbolic_tile, "keyword-only constant"),
        (symbolic_unroll, "tw.range"),
        (depth_of_operand, "nearest legal choice: K = 16"),
        (indivisible_partition, "threads=(2, 8)"),
        (derived_inside_the_kernel, "depends on k"),
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
