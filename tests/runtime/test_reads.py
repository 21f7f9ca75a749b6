"""A kernel never uses the old value of a global for some shapes and the new one for others."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.runtime.reads import Reads

FILL = 2.0
SETTINGS = types.SimpleNamespace(fill=2.0)
TABLE = [1.0, 2.0]
ARRAY = np.array([2.0])
MODULE = types.ModuleType("settings")
MODULE.fill = 2.0  # type: ignore[attr-defined]
COUNTED = 0
LOG: list[int] = []


def filled(X: Any, value: float) -> None:
    part = X.tile((64,), (tw.block_index(tw.ceil_div(X.shape[0], 64)),))
    tw.copy(tw.fragment(part.partition((32,)), fill=value), part)


def through_a_function() -> float:
    return FILL


@tw.kernel(X="N")
def reads_a_global(X):
    filled(X, FILL)


@tw.kernel(X="N")
def reads_a_function(X):
    filled(X, through_a_function())


@tw.kernel(X="N")
def reads_an_attribute(X):
    filled(X, SETTINGS.fill)


@tw.kernel(X="N")
def reads_a_module(X):
    filled(X, MODULE.fill)


@tw.kernel(X="N")
def reads_a_list(X):
    filled(X, [value for value in TABLE][1])  # noqa: C416


@tw.kernel(X="N")
def reads_an_array(X):
    filled(X, float(ARRAY[0]))


def set_global(value: float) -> None:
    global FILL
    FILL = value


def set_item(value: float) -> None:
    TABLE[1] = value


def set_array(value: float) -> None:
    ARRAY[0] = value


CHANGES: dict[Any, Callable[[float], None]] = {
    reads_a_global: set_global,
    reads_a_function: set_global,
    reads_an_attribute: lambda value: setattr(SETTINGS, "fill", value),
    reads_a_module: lambda value: setattr(MODULE, "fill", value),
    reads_a_list: set_item,
    reads_an_array: set_array,
}


@pytest.mark.parametrize("kernel", CHANGES, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_all_shapes_take_the_new_value(kernel: Any, target: str) -> None:
    change = CHANGES[kernel]
    change(2.0)
    bound, sizes = kernel.bind(), (64, 65, 130)

    def seen(size: int) -> float:
        x = np.full(size, np.nan, np.float32)
        assert bound(x, target=target).target == target
        assert (x == x[0]).all()
        return float(x[0])

    fresh = iter(range(200, 300, 16))
    try:
        assert [seen(size) for size in sizes] == [2.0] * 3
        for value in (3.0, -0.0, 2.0):
            change(value)
            assert seen(next(fresh)) == value
            assert [str(seen(size)) for size in sizes] == [str(value)] * 3
    finally:
        change(2.0)


def test_the_kernel_with_other_constants_takes_the_new_value_too() -> None:
    @tw.kernel(X="N")
    def scaled(X, *, by):
        filled(X, by * FILL)

    x = np.zeros(64, np.float32)
    try:
        set_global(2.0)
        scaled(x, by=1.0, target="cpu")
        scaled(x, by=10.0, target="cpu")
        set_global(3.0)
        scaled(x, by=100.0, target="cpu")
        assert (x == 300).all()
        for by in (1.0, 10.0):
            scaled(x, by=by, target="cpu")
            assert (x == 3 * by).all()
    finally:
        set_global(2.0)


def test_a_cell_of_an_enclosing_function_and_a_function_among_the_constants() -> None:
    value = 2.0

    def chosen() -> float:
        return value

    @tw.kernel(X="N")
    def kernel(X, *, choose):
        filled(X, choose())

    seen = []
    for value in (2.0, 3.0, 4.0):
        for size in (64, 64 + int(value)):
            x = np.zeros(size, np.float32)
            kernel(x, choose=chosen, target="cpu")
            seen.append(float(x[-1]))
    # The first launch of a known shape may still have the old value; what follows a new shape has not.
    assert seen == [2.0, 2.0, 2.0, 3.0, 4.0, 4.0]


def test_functions_of_one_name_are_told_apart() -> None:
    def reading(value: list[float]) -> Callable[[], float]:
        return lambda: value[0]

    values = [[1.0], [2.0]]
    first, second = map(reading, values)
    reads = Reads([lambda: first() + second()])
    for value in values:
        assert reads.changed() == ()
        value[0] += 1
        assert len(reads.changed()) == 1


def test_a_helper_that_is_defined_anew_is_noticed() -> None:
    module = types.ModuleType("helpers")
    exec("def helper(): return 2.0", vars(module))

    @tw.kernel(X="N")
    def kernel(X):
        filled(X, module.helper())

    x, y = np.zeros(64, np.float32), np.zeros(65, np.float32)
    kernel(x, target="cpu")
    exec("def helper(): return 5.0", vars(module))
    kernel(y, target="cpu")
    kernel(x, target="cpu")
    assert (x == 5).all()
    assert (y == 5).all()


def test_nothing_is_compiled_anew_while_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = []
    real = type(reads_a_list.program).run
    monkeypatch.setattr(
        type(reads_a_list.program), "run", lambda self, *a: traced.append(self.name) or real(self, *a)
    )
    bound = tw.kernel(X="N")(reads_a_list.program.function).bind()
    for size in (64, 65, 66, 67, 65, 64, 128):
        bound(np.zeros(size, np.float32), target="cpu")
    assert len(traced) == len({64: 64, 65: 1, 66: 2, 128: 128})


def test_what_the_kernel_itself_changes_is_left_alone() -> None:
    @tw.kernel(X="N")
    def counts(X):
        global COUNTED
        COUNTED += 1
        LOG.append(COUNTED)
        filled(X, 1.0)

    bound = counts.bind()
    for size in (64, 65, 64, 65, 68, 64, 65):
        bound(np.zeros(size, np.float32), target="cpu")
    assert LOG == [1, 2, 3]


def test_what_the_library_loads_late_is_no_change() -> None:
    """`tw.maximum` is not loaded before the first kernel that uses it is traced."""

    def uses(X):
        tw.maximum(tw.minimum(X, 1), 2)

    reads = Reads([uses])
    assert reads.changed() == ()
    assert reads._seen == {}


def test_the_librarys_own_kernels_are_not_looked_at() -> None:
    from tilewright.ops.products import plain

    assert Reads([plain(0).program.function])._functions == ()
