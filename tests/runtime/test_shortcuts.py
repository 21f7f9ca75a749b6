"""Shortcuts run only the right launches, and keep nothing alive."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from tilewright.ops import matmul, replay
from tilewright.runtime import plans, shortcut_table, workers

pytestmark = pytest.mark.in_turns(3)

Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every launch counts as short, because these tests do not measure times."""
    monkeypatch.setattr(workers, "INLINE_NS", 1e12)
    matmul._SHORTCUTS.forget()


def matrices(m: int, n: int, k: int, seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((m, k)).astype(np.float32), rng.standard_normal((k, n)).astype(np.float32)


def known(a: Array, b: Array, out: Array | None = None) -> Any:
    """Return the answer of the shortcut, or None."""
    return matmul._SHORTCUTS.call(a, b) if out is None else matmul._SHORTCUTS.call(a, b, out)


def close(c: Array, a: Array, b: Array) -> bool:
    return bool(np.allclose(c, a.astype(np.float64) @ b, rtol=1e-4, atol=1e-4))


class Own(np.ndarray):
    """A user's class."""


STEPS = st.sampled_from([1, 1, 1, 2, 3, -1, -2])


@settings(max_examples=16, deadline=None)
@given(
    sizes=st.tuples(*[st.sampled_from([1, 5, 16])] * 3),
    steps=st.tuples(*[STEPS] * 6),
    turns=st.tuples(*[st.booleans()] * 3),
    values=st.integers(0, 1 << 20),
)
def test_the_second_product_of_arrays_like_these_is_a_shortcut(
    sizes: tuple[int, int, int], steps: tuple[int, ...], turns: tuple[bool, ...], values: int
) -> None:
    m, n, k = sizes
    rng = np.random.default_rng(values)

    def drawn(rows: int, columns: int, at: int) -> Array:
        row_step, column_step = steps[2 * at : 2 * at + 2]
        shape = (rows * abs(row_step), columns * abs(column_step))
        base = rng.standard_normal(shape[::-1] if turns[at] else shape).astype(np.float32)
        return (base.T if turns[at] else base)[::row_step, ::column_step]

    for fresh in (True, False):
        for again in (False, True):
            a, b, out = drawn(m, k, 0), drawn(k, n, 1), drawn(m, n, 2)
            c = known(a, b) if fresh else known(a, b, out)
            if again:
                assert c is not None
                assert fresh or c is out
            c = c if again else tw.matmul(a, b) if fresh else tw.matmul(a, b, out)
            assert (c.shape, c.dtype) == ((m, n), np.float32)
            assert close(c, a, b)


def test_a_fresh_output_is_an_ordinary_array_of_its_own() -> None:
    a, b = matrices(9, 7, 5)
    tw.matmul(a, b)
    made = [known(a, b) for _ in range(3)]
    assert len({array.ctypes.data for array in made}) == 3
    assert all(array.flags.owndata and array.flags.c_contiguous and array.flags.writeable for array in made)
    assert {sys.getrefcount(array) for array in made} == {sys.getrefcount(np.empty(3)) + 2}
    first = weakref.ref(made[0])
    del made
    assert first() is None


def test_what_is_counted_stays_as_it_was() -> None:
    a, b = matrices(9, 7, 5)
    out = np.empty((9, 7), np.float32)
    tw.matmul(a, b), tw.matmul(a, b, out)
    objects = (a, b, out, None, out.dtype, np.empty)
    before = [sys.getrefcount(each) for each in objects]
    for _ in range(1000):
        known(a, b), known(a, b, out), known(a, a)
    now = [sys.getrefcount(each) for each in objects]
    assert all(abs(one - other) < 10 for one, other in zip(before, now, strict=True))


def test_only_arrays_like_those_that_are_known() -> None:
    a, b = matrices(8, 8, 8)
    out = np.empty((8, 8), np.float32)
    tw.matmul(a, b), tw.matmul(a, b, out)
    frozen = out.copy()
    frozen.flags.writeable = False
    off = np.frombuffer(bytes(4 * 65), np.float32, 64, 4).reshape(8, 8)
    other = [a.T, a[:7], a.astype(np.float64), a.view(np.int32), a[None], off, a.view(Own), [[1.0]], None]
    for each in other:
        assert known(each, b) is None
        assert known(a, each) is None
        assert known(a, b, each if each is not None else 1.0) is None
    assert known(a, b, frozen) is None
    assert matmul._SHORTCUTS.call(a) is None
    assert matmul._SHORTCUTS.call(a, b, out, out) is None
    assert matmul._SHORTCUTS.call() is None
    assert known(a, b, out) is out
    with pytest.raises(TypeError):
        matmul._SHORTCUTS.call(a, b, out=out)


def test_columns_have_shortcuts_whatever_their_stride_across_one_element() -> None:
    """One launch serves both arrays, because the stride of a dimension of one element is never used."""
    a, column = matrices(9, 1, 5)
    turned = np.ascontiguousarray(column.T).T
    turned = np.lib.stride_tricks.as_strided(turned, (5, 1), (4, 20))
    assert column.strides != turned.strides
    for b in (column, turned, column):
        tw.matmul(a, b), tw.matmul(a, b)
        made = known(a, b)
        assert made is not None
        assert close(made, a, b)


def test_launches_that_other_threads_share_do_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A repeated call asks this, so that it reads no environment, which takes tens of microseconds."""

    def refused() -> None:
        raise AssertionError("the environment was read")

    launcher = object.__new__(workers.Launcher)
    monkeypatch.setattr(workers, "INLINE_NS", 1000.0)
    monkeypatch.setattr(workers, "settings", refused)
    for threads in (1, 2):
        monkeypatch.setattr(workers._shared, "threads", threads)
        for block_ns, of_eight in ((1.0, True), (1e9, threads == 1), (float("inf"), threads == 1)):
            launcher._block_ns = block_ns
            assert [launcher.stays(blocks) for blocks in (1, 8)] == [True, of_eight]


@pytest.fixture
def unlocked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every launch counts as long, so that it releases the interpreter's lock."""
    monkeypatch.setattr(workers, "LOCKED_NS", -1)


def test_one_launch_at_a_time_runs_without_the_lock(unlocked: None) -> None:
    """Meanwhile others take the ordinary path: their scratch memory is another one."""
    a, b = matrices(9, 7, 5)
    out = np.empty((9, 7), np.float32)
    tw.matmul(a, b), tw.matmul(a, b, out)
    guard = workers._shared.is_unlocked
    assert known(a, b, out) is out
    assert guard.value == 0
    before = sys.getrefcount(out), sys.getrefcount(out.dtype), sys.getrefcount(None)
    guard.value = 1
    try:
        for _ in range(100):
            assert known(a, b) is None
            assert known(a, b, out) is None
        assert close(tw.matmul(a, b), a, b)
    finally:
        guard.value = 0
    now = sys.getrefcount(out), sys.getrefcount(out.dtype), sys.getrefcount(None)
    assert all(abs(one - other) < 10 for one, other in zip(before, now, strict=True))
    assert close(known(a, b), a, b)


def test_a_forked_child_may_use_the_scratch_memory() -> None:
    shared = workers._Shared()
    shared.is_unlocked.value = 1
    shared.renew()
    assert shared.is_unlocked.value == 0


def test_other_threads_run_during_a_long_launch(unlocked: None) -> None:
    """No thread is asked for the lock, so another one runs only if a launch releases it."""
    a, b = matrices(8, 512, 512)
    tw.matmul(a, b)
    assert known(a, b) is not None
    begun, ended = threading.Event(), threading.Event()

    def wait() -> None:
        begun.wait()
        ended.set()

    other, interval = threading.Thread(target=wait), sys.getswitchinterval()
    other.start()
    sys.setswitchinterval(1000.0)
    try:
        begun.set()
        turns = 0
        while not ended.is_set() and turns < 1_000_000:
            assert known(a, b) is not None
            turns += 1
        assert ended.is_set()
    finally:
        sys.setswitchinterval(interval)
        other.join()


def test_many_threads_have_their_own_products(unlocked: None) -> None:
    pairs = [matrices(8, 256, 256, seed) for seed in range(6)]
    for _ in range(2):
        tw.matmul(*pairs[0])
    taken = []

    def multiply(a: Array, b: Array) -> bool:
        right = []
        for _ in range(50):
            found = known(a, b)
            taken.append(found is not None)
            right.append(close(tw.matmul(a, b) if found is None else found, a, b))
        return all(right)

    with ThreadPoolExecutor(len(pairs)) as pool:
        assert all(pool.map(multiply, *zip(*pairs, strict=True)))
    assert any(taken)


def test_a_table_that_is_dropped_while_it_gets_a_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may drop it at any time, because it loads many kernels."""
    a, b = matrices(11, 6, 5)
    add, dropped = shortcut_table.ShortcutTable.add, []

    def add_and_drop(*args: Any) -> None:
        add(*args)
        matmul._SHORTCUTS.forget()
        dropped.append(args)

    with monkeypatch.context() as patch:
        patch.setattr(shortcut_table.ShortcutTable, "add", add_and_drop)
        for _ in range(3):
            assert close(tw.matmul(a, b), a, b)
    assert dropped
    for _ in range(2):
        assert close(tw.matmul(a, b), a, b)
    assert close(known(a, b), a, b)


def test_arrays_that_are_reshaped_in_place_are_others() -> None:
    a, b = matrices(8, 8, 8)
    tw.matmul(a, b)
    assert known(a, b) is not None
    a.resize((4, 16), refcheck=False)
    assert known(a, b) is None


def test_an_output_that_shares_memory_is_refused_as_before() -> None:
    memory = np.zeros((16, 8), np.float32)
    a, b = memory[:8], np.ones((8, 8), np.float32)
    tw.matmul(a, b, memory[8:])
    assert known(a, b, memory[8:]) is not None
    assert known(a, b, memory[4:12]) is None
    with pytest.raises(tw.LaunchError, match="out and a share memory"):
        tw.matmul(a, b, memory[4:12])
    with pytest.raises(tw.LaunchError, match="out and a share memory"):
        tw.matmul(memory[8:][::-1], b, memory[8:])


def test_a_call_that_says_more_takes_the_ordinary_way() -> None:
    a, b = matrices(8, 8, 8)
    tw.matmul(a, b)
    with pytest.raises(tw.LaunchError, match="is for GPUs; the cpu target runs"):
        tw.matmul(a, b, stream=7)
    with pytest.raises(tw.LaunchError, match="cannot reach"):
        tw.matmul(a, b, target="cuda")


def test_arrays_that_are_named_are_those_of_their_names() -> None:
    a, b = matrices(8, 8, 8)
    out, other = np.zeros((2, 8, 8), np.float32)
    for _ in range(4):
        assert close(tw.matmul(a, b, out), a, b)
        assert close(tw.matmul(b=a, a=b), b, a)
        assert close(tw.matmul(a, b, out=other), a, b)
        assert close(tw.matmul(a, b), a, b)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'b'"):
        tw.matmul(a, out=out)


def through_table(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Collect the results of shortcuts from now on."""
    found: list[Any] = []
    table = shortcut_table.ShortcutTable
    make = table.__init__

    def noting(self: Any, library: Any) -> None:
        make(self, library)
        answer = self.call

        def call(*arrays: Any) -> Any:
            made = answer(*arrays)
            if made is not None:
                found.append(made)
            return made

        self.call = call

    monkeypatch.setattr(table, "__init__", noting)
    return found


def test_calls_that_name_a_target_have_shortcuts_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any arguments may be named, in any order; each call gives its own product."""
    found = through_table(monkeypatch)
    calls = (
        lambda a, b, out: tw.matmul(a, b, target="cpu"),
        lambda a, b, out: tw.matmul(a, b, out, target="cpu"),
        lambda a, b, out: tw.matmul(a, b, out=out, target="cpu"),
        lambda a, b, out: tw.matmul(a, b, target="cpu", out=out),
        lambda a, b, out: tw.matmul(a, b, precision="exact", target="cpu"),
        lambda a, b, out: tw.matmul(a, b, target="cpu", out_dtype="f32", out=out),
    )
    for number in range(5):
        for at, call in enumerate(calls):
            a, b = matrices(7, 6, 5, 10 * number + at)
            out = np.full((7, 6), np.nan, np.float32)
            made = call(a, b, out)
            assert close(made, a, b)
            assert (number < 3) or found[-1] is made, at
            assert (made is out) == (not np.isnan(out).any())


@pytest.mark.parametrize("kind", [np.complex64, np.complex128])
@pytest.mark.parametrize("texts", [{}, {"target": "cpu"}])
def test_complex_arrays_have_shortcuts_whose_addresses_lie_inside_them(
    kind: type, texts: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Complex kernels take each array twice, and the first call's factors as numbers."""
    found = through_table(monkeypatch)
    rng = np.random.default_rng(3)
    for number in range(6):
        real, imaginary = rng.standard_normal((2, 13, 29))
        whole = (real + 1j * imaginary).astype(kind)
        a, b = whole[:9, :7], whole[2:9, 9:20]
        for out in (None, np.full((9, 11), np.nan, kind)):
            made = tw.matmul(a, b, out=out, **texts) if out is not None else tw.matmul(a, b, **texts)  # type: ignore[arg-type]
            assert made.dtype == kind
            assert np.allclose(made, a.astype(np.complex128) @ b, rtol=1e-4, atol=1e-4)
            assert number < 4 or found[-1] is made
            assert out is None or made is out
        twice = tw.complex_matmul(a, b, alpha=2j, target="cpu")
        assert np.allclose(twice, 2j * (a.astype(np.complex128) @ b), rtol=1e-4, atol=1e-4)
    with pytest.raises(tw.LaunchError, match="share memory"):
        tw.matmul(a, b, out=whole[:9, :11], **texts)  # type: ignore[arg-type]


def test_texts_are_no_arrays_and_other_texts_are_other_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    found = through_table(monkeypatch)
    a, b = matrices(6, 6, 6)
    out = np.zeros((6, 6), np.float32)
    for _ in range(4):
        tw.matmul(a, b, out=out, target="cpu"), tw.matmul(a, b, target="cpu")
    assert found
    found.clear()
    assert close(tw.matmul(b=a, a=b, target="cpu"), b, a)
    for wrong, words in (
        ({"target": "tpu"}, "target"),
        ({"target": a}, "target"),
        ({"target": ["cpu"]}, "target"),
        ({"target": "cpu", "stream": 7}, "is for GPUs"),
        ({"target": "cpu", "activation": "none"}, "activation"),
    ):
        with pytest.raises(tw.TilewrightError, match=words):
            tw.matmul(a, b, **wrong)  # type: ignore[arg-type]
    for some in ((a,), (), (a, b, out)):
        with pytest.raises(TypeError):
            tw.matmul(*some, out=out, target="cpu")
    relu = tw.matmul(a, b, activation="relu", target="cpu")
    for _ in range(4):
        again = tw.matmul(a, b, activation="relu", target="cpu")
        assert np.array_equal(again, relu)
        assert not (again < 0).any()
    assert found[-1] is again
    with pytest.raises(tw.LaunchError, match="share memory"):
        tw.matmul(a, b, out=a, target="cpu")


def test_tables_of_many_texts_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    found = through_table(monkeypatch)
    monkeypatch.setattr(replay, "MOST_SAID", 2)
    a, b = matrices(6, 5, 4)
    ways = [{"target": "cpu"}, {"precision": "exact"}, {"out_dtype": "f32"}, {"out_dtype": "f64"}]
    for how in ways * 4:
        for _ in range(4):
            assert close(tw.matmul(a, b, **how), a, b)  # type: ignore[arg-type]
    assert len(found) >= len(ways)


def test_launches_that_other_threads_share_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers.Launcher, "stays", lambda self, blocks: False)
    a, b = matrices(8, 8, 8)
    for _ in range(3):
        assert close(tw.matmul(a, b), a, b)
    assert known(a, b) is None


def test_they_count_as_launches_and_are_forgotten_with_their_executable() -> None:
    a, b = matrices(11, 8, 8)
    tw.matmul(a, b)
    [(prepared, *_)] = matmul._SHORTCUTS._table._known
    prepared.recent = False
    known(a, b)
    assert prepared.recent
    executable = prepared.executable
    matmul._SHORTCUTS.forget(replace(executable))
    assert known(a, b) is not None, "another one was forgotten"
    gone = weakref.ref(matmul._SHORTCUTS._table)
    matmul._SHORTCUTS.forget(executable)
    assert known(a, b) is None
    gc.collect()
    assert gone() is None


def test_when_there_are_too_many_they_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "MOST_SHORTCUTS", 3)
    pairs = [matrices(8, 8, k) for k in range(1, 6)]
    for a, b in pairs:
        tw.matmul(a, b)
    assert [known(a, b) is not None for a, b in pairs] == [False, False, False, True, True]
    for a, b in pairs:
        assert close(tw.matmul(a, b), a, b)


def _refuse() -> Any:
    raise tw.ToolchainError("the cpu target needs a C++ compiler and found none")


@pytest.mark.parametrize(("name", "value"), [("_is_readable", lambda: False), ("_library", _refuse)])
def test_where_there_can_be_none_all_takes_the_ordinary_way(
    name: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shortcut_table, name, value)
    mine = matmul._SHORTCUTS
    monkeypatch.setattr(mine, "_refused", False)
    a, b = matrices(8, 8, 8)
    for _ in range(2):
        assert close(tw.matmul(a, b), a, b)
    assert mine.call(a, b) is None


def test_an_interpreter_without_a_lock_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shortcut_table._is_readable()
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    assert not shortcut_table._is_readable()


def test_memory_that_cannot_be_had_is_an_error_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = matrices(8, 8, 8)
    tw.matmul(a, b)
    table = matmul._SHORTCUTS._table

    def no_memory(*_: object, **__: object) -> None:
        raise MemoryError("none left")

    table._head[2] = id(no_memory)
    with pytest.raises(MemoryError, match="none left"):
        matmul._SHORTCUTS.call(a, b)
