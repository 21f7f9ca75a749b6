"""A kernel as a Python object: its name, pickles and copies, and numbers with defaults."""

from __future__ import annotations

import copy
import gc
import inspect
import multiprocessing
import pickle
from typing import Any
from weakref import ref

import numpy as np
import pytest

import tilewright as tw
from tilewright.runtime.kernel import Bound


@tw.kernel(X="N", by=tw.f32, first=int)
def scale(X, by=2.0, first=0, *, tile=64):
    """Multiply the elements from ``first`` on."""
    n = tw.block_index(tw.ceil_div(X.shape[0], tile))
    part = X.tile((tile,), (n,)).partition((32,))
    with tw.when(n * tile >= first):
        tw.copy(tw.load(part) * by, part)


@tw.kernel(A="M K", B="K N", C="M N", alpha=tw.f32)
def scaled_product(A, B, C, alpha=0.5):
    for m, n in tw.tiles(C):
        acc = tw.zeros(dtype=tw.f32)
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]
        C[m, n] = alpha * acc


def numbers(count: int = 100) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal(count).astype(np.float32)


def test_a_kernel_has_the_name_and_the_text_of_its_function() -> None:
    assert scale.__doc__ == "Multiply the elements from ``first`` on."
    assert (scale.__name__, scale.__qualname__, scale.__module__) == ("scale", "scale", __name__)
    assert str(inspect.signature(scale)) == "(X, by=2.0, first=0, *, tile=64)"


@pytest.mark.parametrize("launched", [False, True])
def test_a_kernel_is_pickled_by_its_name_and_a_copy_is_itself(launched: bool) -> None:
    if launched:
        scale(numbers(), target="cpu")
    assert pickle.loads(pickle.dumps(scale)) is scale
    assert copy.copy(scale) is copy.deepcopy(scale) is scale


@pytest.mark.parametrize("launched", [False, True])
def test_a_bound_kernel_is_pickled_with_its_constants(launched: bool) -> None:
    bound = scale.bind(tile=32)
    if launched:
        bound(numbers(), target="cpu")
    assert pickle.loads(pickle.dumps(bound)) is bound
    assert copy.deepcopy(bound) is bound
    with pytest.raises(TypeError, match=r"was not made by Kernel\.bind"):
        pickle.dumps(Bound(bound.program, bound.constants))


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_a_kernel_that_nobody_holds_is_gone_at_once(target: str) -> None:
    """Its executables are gone, too, without a garbage collection; its bound kernel can be copied."""
    gc.disable()
    try:
        made = tw.kernel(scale.program.function, X="N", by=tw.f32, first=int)
        bound, gone = made.bind(tile=32), ref(made)
        made(numbers(), target=target)
        del made
        assert gone() is None
    finally:
        gc.enable()
    assert copy.copy(bound) is copy.deepcopy(bound) is bound
    with pytest.raises(TypeError, match="a kernel that is still there"):
        pickle.dumps(bound)


def test_a_kernel_of_a_function_within_a_function_is_refused_as_such_functions_are() -> None:
    @tw.kernel(X="N")
    def local(X):
        tw.copy(X.tile((32,), (0,)), X.tile((32,), (0,)), threads=32)

    with pytest.raises((AttributeError, pickle.PicklingError), match="local"):
        pickle.dumps(local)
    assert copy.deepcopy(local) is local


@pytest.mark.parametrize(
    "schedule",
    [
        tw.Schedule(tw.atoms.fma("f32"), (32, 32, 8)),
        tw.Schedule(tw.atoms.MMA_F16, (64, 64, 32), warps=(2, 2), stages=3, staging="cp_async"),
    ],
    ids=str,
)
def test_schedules_and_what_they_are_bound_to_are_pickled(schedule: tw.Schedule) -> None:
    again = pickle.loads(pickle.dumps(schedule))
    assert again == schedule == copy.deepcopy(schedule)
    bound = scaled_product.bind(schedule=schedule)
    assert pickle.loads(pickle.dumps(bound)).schedule == schedule


def test_a_new_process_gets_a_kernel(tmp_path: Any) -> None:
    x = numbers()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        [found] = pool.map(run_elsewhere, [(scale.bind(tile=32), x)])
    np.testing.assert_array_equal(found, 2 * x)


def run_elsewhere(given: tuple[Bound, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    bound, x = given
    bound(x, target="reference")
    return x


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_numbers_that_are_left_out_have_their_defaults(target: str) -> None:
    x = numbers()
    for given, named, factor, first in (
        ((), {}, 2.0, 0),
        ((3.0,), {}, 3.0, 0),
        ((3.0, 64), {}, 3.0, 64),
        ((), {"first": 64}, 2.0, 64),
        ((), {"by": 0.5}, 0.5, 0),
    ):
        found = x.copy()
        scale(found, *given, target=target, **named)
        wanted = x.copy()
        wanted[first:] *= np.float32(factor)
        np.testing.assert_array_equal(found, wanted)
    prepared = x.copy()
    scale.bind().prepare(prepared, target=target)()
    np.testing.assert_array_equal(prepared, 2 * x)
    assert scale.check(x).is_clean


def test_a_dataflow_kernel_has_defaults_too() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.integers(-4, 5, (37, 29)).astype(np.float32), rng.integers(-4, 5, (29, 41)).astype(np.float32)
    c = np.full((37, 41), np.nan, np.float32)
    scaled_product(a, b, c, target="cpu")
    np.testing.assert_array_equal(c, 0.5 * (a @ b))
    scaled_product(a, b, c, 2.0, target="cpu")
    np.testing.assert_array_equal(c, 2.0 * (a @ b))


def test_a_wrong_number_of_arguments_says_how_many_there_may_be() -> None:
    with pytest.raises(tw.LaunchError, match=r"takes 1 to 3 arguments \(X, by, first\), 0 given"):
        scale()
    with pytest.raises(tw.LaunchError, match=r"takes 1 to 3 arguments \(X, by, first\), 4 given"):
        scale(numbers(), 1.0, 2, 3)
    with pytest.raises(tw.LaunchError, match=r"takes 3 to 4 arguments \(A, B, C, alpha\), 1 given"):
        scaled_product(numbers())


@pytest.mark.parametrize(
    ("declared", "default", "message"),
    [
        ("N", 1.0, "X=1.0, and X is an array, which has no default"),
        (tw.f32, "a", "X='a', and X is a number"),
        (tw.f32, True, "X=True, and X is a number"),
        (int, 1.5, "X=1.5, and X is an integer"),
    ],
)
def test_a_default_of_another_kind_is_refused(declared: Any, default: Any, message: str) -> None:
    def given(X=default):
        pass

    with pytest.raises(tw.SignatureError, match=message):
        tw.kernel(X=declared)(given)
