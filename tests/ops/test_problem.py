"""Problems follow NumPy's rules for shapes; joining dimensions keeps their meaning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.ops.layouts import layouts

import tilewright as tw
from tilewright.ops.problem import Problem, problem_of, result_shape
from tilewright.runtime import arrays

pytestmark = pytest.mark.in_turns(3)

Array = np.ndarray[Any, Any]
EXTENTS = st.sampled_from([0, 1, 1, 2, 2, 3])
SHAPES = st.lists(EXTENTS, max_size=5).map(tuple)


@settings(max_examples=600)
@given(SHAPES, SHAPES)
def test_shapes_are_numpys(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    try:
        expected = np.matmul(np.ones(a), np.ones(b)).shape
    except ValueError:
        with pytest.raises(tw.LaunchError, match="matmul of shapes"):
            result_shape(a, b)
        return
    assert result_shape(a, b) == expected


@st.composite
def laid_out(draw: st.DrawFn, shape: tuple[int, ...], values: Any, repeats: bool) -> Array:
    """Return an array with dimensions in any order in memory, some reversed, with gaps, or repeated."""
    order = draw(st.permutations(range(len(shape))))
    steps = [draw(st.sampled_from([1, 1, 1, 2, -1])) for _ in shape]
    larger = [shape[dim] * abs(steps[dim]) for dim in order]
    base = values(tuple(larger)).transpose([order.index(dim) for dim in range(len(shape))])
    view = base[(*(slice(None, None, step) for step in steps), ...)]
    for dim in range(len(shape)):
        if repeats and shape[dim] and draw(st.integers(0, 5)) == 0:
            view = np.broadcast_to(np.take(view, [0], dim), shape)
    return view


@st.composite
def problems(draw: st.DrawFn) -> dict[str, Array]:
    """Arrays of a product by NumPy's rules."""
    batch = draw(st.lists(EXTENTS, max_size=3))
    m, n, k = (draw(st.sampled_from([0, 1, 2, 3, 4])) for _ in range(3))

    def lead() -> tuple[int, ...]:
        kept = [1 if draw(st.integers(0, 3)) == 0 else extent for extent in batch]
        return tuple(kept[draw(st.integers(0, len(kept))) :] if draw(st.booleans()) else kept)

    shape_a = (k,) if draw(st.integers(0, 5)) == 0 else (*lead(), m, k)
    shape_b = (k,) if draw(st.integers(0, 5)) == 0 else (*lead(), k, n)
    rng = np.random.default_rng(draw(st.integers(0, 999)))

    def numbers(shape: tuple[int, ...]) -> Array:
        return rng.integers(-9, 10, shape).astype(np.float64)

    shape = result_shape(shape_a, shape_b)
    made = {
        "a": draw(laid_out(shape_a, numbers, True)),
        "b": draw(laid_out(shape_b, numbers, True)),
        "out": draw(laid_out(shape, lambda extents: np.full(extents, np.nan), False)),
    }
    if draw(st.booleans()):
        part = tuple(1 if draw(st.integers(0, 3)) == 0 else extent for extent in shape)
        made["c"] = draw(laid_out(part[draw(st.integers(0, len(part))) :], numbers, True))
    if draw(st.integers(0, 2)) == 0:
        columns = 1 if len(shape_b) == 1 else n
        made["bias"] = draw(laid_out((columns,), numbers, True))
    return made


def matrices(problem: Problem, name: str, array: Array) -> Array:
    """Return an operand of the problem, in the caller's memory."""
    made = problem.operands[name]
    strides = tuple(step * array.itemsize for step in made.strides)
    return np.lib.stride_tricks.as_strided(array, made.shape, strides)


@settings(max_examples=800, deadline=None)
@given(problems())
def test_what_a_problem_says_is_the_product(given: dict[str, Array]) -> None:
    problem = problem_of(layouts({name: arrays.describe(array) for name, array in given.items()}))
    a, b, out = (matrices(problem, name, given[name]) for name in ("a", "b", "out"))
    assert a.shape == (*problem.batch, problem.m, problem.k)
    assert b.shape == (*problem.batch, problem.k, problem.n)
    assert out.shape == (*problem.batch, problem.m, problem.n)
    total = a @ b
    expected = np.matmul(given["a"], given["b"])
    if "c" in given:
        total, expected = total + matrices(problem, "c", given["c"]), expected + given["c"]
    if "bias" in given:
        total = total + matrices(problem, "bias", given["bias"])
        expected = expected + (given["bias"] if given["b"].ndim > 1 else given["bias"][0])
    out[...] = total
    np.testing.assert_array_equal(given["out"], expected)


@pytest.mark.parametrize(
    ("a", "b", "batch", "mnk"),
    [
        ((5, 2, 3), (3, 7), (), (10, 7, 3)),  # rows of all batches lie one after the other
        ((5, 4, 2, 3), (3, 7), (), (40, 7, 3)),
        ((5, 2, 3), (5, 3, 7), (5,), (2, 7, 3)),
        ((5, 4, 2, 3), (5, 4, 3, 7), (20,), (2, 7, 3)),
        ((5, 4, 2, 3), (4, 3, 7), (5, 4), (2, 7, 3)),
        ((5, 1, 1, 3), (4, 3, 7), (4,), (5, 7, 3)),  # one row each: the batches are the rows
        ((2, 3), (5, 3, 7), (5,), (2, 7, 3)),
        ((2, 3), (5, 3, 1), (), (2, 5, 3)),  # one column each
        ((3,), (5, 3, 7), (5,), (1, 7, 3)),
        ((5, 2, 3), (3,), (), (10, 1, 3)),
        ((3,), (3,), (), (1, 1, 3)),
        ((1, 1, 2, 3), (1, 3, 7), (), (2, 7, 3)),
        ((5, 0, 3), (5, 3, 7), (5,), (0, 7, 3)),
        ((0, 2, 3), (0, 3, 7), (), (0, 7, 3)),
    ],
)
def test_batches_have_few_dimensions(
    a: tuple[int, ...], b: tuple[int, ...], batch: tuple[int, ...], mnk: tuple[int, int, int]
) -> None:
    given = {"a": np.ones(a), "b": np.ones(b), "out": np.ones(result_shape(a, b))}
    problem = problem_of(layouts({name: arrays.describe(array) for name, array in given.items()}))
    assert (problem.batch, (problem.m, problem.n, problem.k)) == (batch, mnk)


def test_batches_that_lie_inside_the_rows_are_joined_with_them() -> None:
    """In memory, the 6 rows are the outer dimension and the 4 heads the inner one."""
    a, out = (np.ones((6, 4, n)).transpose(1, 0, 2) for n in (3, 7))
    given = {"a": a, "b": np.ones((3, 7)), "out": out}
    problem = problem_of(layouts({name: arrays.describe(array) for name, array in given.items()}))
    assert (problem.batch, problem.m) == ((), 24)
    assert problem.operands["a"].strides == (3, 1)
    apart = given | {
        "a": np.ascontiguousarray(a)
    }  # the rows of A have another order than those of the result
    problem = problem_of(layouts({name: arrays.describe(array) for name, array in apart.items()}))
    assert (problem.batch, problem.m) == ((4,), 6)


@pytest.mark.parametrize(
    ("joined", "batch", "mn"),
    [("mn", (), (10, 7)), ("m", (), (10, 7)), ("n", (5,), (2, 7)), ("", (5,), (2, 7))],
)
def test_batches_are_joined_only_with_what_is_asked(
    joined: str, batch: tuple[int, ...], mn: tuple[int, int]
) -> None:
    given = {"a": np.ones((5, 2, 3)), "b": np.ones((3, 7)), "out": np.ones((5, 2, 7))}
    problem = problem_of(layouts({name: arrays.describe(array) for name, array in given.items()}), joined)
    assert (problem.batch, (problem.m, problem.n)) == (batch, mn)


def test_joined_extents_stay_below_two_to_the_31() -> None:
    one = np.broadcast_to(np.float32(1), (1 << 20, 1 << 20, 3))
    b = np.broadcast_to(np.float32(1), (3, 2))
    out = np.lib.stride_tricks.as_strided(np.zeros(2, np.float32), (1 << 20, 1 << 20, 2), (1 << 23, 8, 4))
    given = {"a": one, "b": b, "out": out}
    problem = problem_of(layouts({name: arrays.describe(array) for name, array in given.items()}))
    assert (problem.batch, problem.m) == ((1 << 20,), 1 << 20)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"a": (), "b": (3,)}, r"a has no dimensions, so there is no K to sum along; nearest .*: a \* b"),
        ({"a": (2, 3), "b": ()}, "b has no dimensions"),
        ({"a": (2, 3), "b": (7, 3)}, "K is 3 in a and 7 in b; nearest: b.T"),
        ({"a": (3, 2), "b": (3, 7)}, "K is 2 in a and 3 in b; nearest: a.T"),
        (
            {"a": (2, 2, 3), "b": (3, 3, 7)},
            r"batch dimensions \(2,\) and \(3,\) do not broadcast: 2 and 3",
        ),
        ({"a": (2, 3), "b": (3, 7), "out": (2, 8)}, r"out has shape \(2, 8\), a @ b has \(2, 7\)"),
        (
            {"a": (2, 3), "b": (3, 7), "c": (3, 7)},
            r"c has shape \(3, 7\), which does not broadcast to .*\(2, 7\)",
        ),
        (
            {"a": (2, 3), "b": (3, 7), "residual": (1, 2, 7)},
            r"residual has shape \(1, 2, 7\), which does not",
        ),
        (
            {"a": (2, 3), "b": (3, 7), "bias": (2,)},
            r"bias has shape \(2,\); nearest legal choice: \(7,\), one number for each column",
        ),
    ],
)
def test_what_does_not_fit(shapes: dict[str, tuple[int, ...]], message: str) -> None:
    made = {name: np.ones(shape) for name, shape in {"out": (2, 7), **shapes}.items()}
    with pytest.raises(tw.LaunchError, match=message):
        problem_of(layouts({name: arrays.describe(array) for name, array in made.items()}))
