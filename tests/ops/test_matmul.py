"""`matmul` on arrays in host memory: dtypes, ragged and empty shapes, strides, and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.checking.compare import Accumulation, compare_gemm
from tilewright.checking.sample import operands
from tilewright.ops import matmul as in_ops
from tilewright.ops.products import output_dtype, plain
from tilewright.runtime import arrays
from tilewright.runtime.arrays import ArrayInfo
from tilewright.runtime.plans import Plans
from tilewright.schedule.question import SUPPORTED

pytestmark = pytest.mark.in_turns(3)

TARGETS = ("reference", "cpu")
SHAPES = [(1, 1, 1), (129, 129, 67), (1, 70, 33), (65, 1, 3), (33, 31, 0), (0, 5, 4), (5, 0, 4)]


def accumulation(a: Any, b: Any, c: Any, target: str) -> Accumulation:
    """Return the accumulation of the chosen kernel."""
    schedule = plain(0).bind(precision="exact").schedule_for(a, b, c, target=target)
    assert schedule is not None
    return Accumulation.of(schedule.atom, schedule.promote * schedule.block_k or None)


def check(a: Any, b: Any, target: str, out: Any = None) -> None:
    element = tw.dtype(a.dtype)
    c = tw.matmul(a, b, out, target=target)
    assert c.dtype == output_dtype(element).numpy
    compare_gemm(a, b, c, accumulation(a, b, c, target)).raise_if_wrong()


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", SUPPORTED)
def test_dtypes_and_shapes(name: str, target: str) -> None:
    for m, n, k in SHAPES:
        made = operands("random", tw.dtype(name), (max(m, 1), max(n, 1), max(k, 1)))
        check(made.a[:m, :k], made.b[:k, :n], target)


@pytest.mark.parametrize("target", TARGETS)
def test_strides(target: str) -> None:
    x = np.random.default_rng(0).standard_normal((150, 150)).astype(np.float32)
    x.flags.writeable = False
    for a, b in (
        (x.T, x.T[:, :7]),
        (x[::2, ::3], x[1:51, 5:50]),
        (np.broadcast_to(x[0], (40, 150)), x),
        (np.broadcast_to(np.float32(2), (40, 30)), np.broadcast_to(x[0, 0], (30, 20))),
    ):
        check(a, b, target)
        check(a, b, target, np.zeros((2 * len(a), 3 * b.shape[1]), np.float32)[::2, ::3])


@pytest.mark.parametrize("target", ["reference", "cpu", "cuda"])
@pytest.mark.parametrize("name", [name for name, kind in tw.dtypes.ALL.items() if kind.is_packed])
def test_dtypes_without_a_gemm(name: str, target: str) -> None:
    element = tw.dtype(name)
    x = tw.Packed(np.zeros((8, 8), np.uint8), element)
    with pytest.raises(tw.DTypeError, match=f"matmul of {name} is not supported; nearest: f64, f32"):
        tw.matmul(x, x, target=target)


def test_an_output_that_shares_memory_with_an_operand() -> None:
    x = np.random.default_rng(1).standard_normal((64, 128)).astype(np.float32)
    a, b = x[:, :64], x[:, 64:]
    with pytest.raises(tw.LaunchError, match="out and a share memory"):
        tw.matmul(a, b, a)
    with pytest.raises(tw.LaunchError, match="out and b share memory"):
        tw.matmul(a.copy(), b, b.T)
    expected = a[:, :32] @ b[:32]
    check(a[:, :32].copy(), b[:32].copy(), "cpu", x[:, 32:96])
    assert np.allclose(x[:, 32:96], expected, atol=1e-4)


def test_an_output_that_cannot_hold_the_product() -> None:
    x = np.ones((4, 4), np.float32)
    with pytest.raises(
        tw.DTypeError, match=r"out is i32, a @ b is f32: the fractions would be lost; .*: f32"
    ):
        tw.matmul(x, x, np.zeros((4, 4), np.int32))
    with pytest.raises(tw.DTypeError, match="is c64, a @ b is f32: the result has no imaginary parts"):
        tw.matmul(x, x, out_dtype="c64", target="reference")
    with pytest.raises(tw.LaunchError, match="stream=7 is for GPUs; the reference target runs before"):
        tw.matmul(x, x, stream=7, target="reference")
    with pytest.raises(tw.LaunchError, match=r"out: builtins.list is not an array"):
        tw.matmul(x, x, [1.0])


def test_a_known_problem_is_one_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((70, 33), (33, 50)))
    out = np.empty((70, 50), np.float32)
    tw.matmul(a, b, out)
    monkeypatch.setattr("tilewright.ops.matmul.multiplied", None)
    for _ in range(2):
        x, y, found = a.copy(), b.copy(), np.full_like(out, np.nan)
        assert tw.matmul(x, y, out=found) is found
        assert (found == out).all()


def test_other_arrays_get_plans_of_their_own() -> None:
    rng = np.random.default_rng(4)

    def draw(shape: tuple[int, int], dtype: Any = np.float32) -> Any:
        return rng.standard_normal(shape).astype(dtype)

    a, b = draw((70, 33)), draw((33, 50))
    wide, off = draw((140, 66)), np.frombuffer(draw((1, 70 * 33 + 1)).tobytes()[4:], np.float32)
    for x, y, dtype in (
        (a, b, np.float32),
        (wide[::2, ::2], b, np.float32),
        (a, np.asfortranarray(b), np.float32),
        (off.reshape(70, 33), b, np.float32),
        (a[:69], b, np.float32),
        (a, b[:, :49], np.float32),
        (a, b, np.float64),
        (a.astype(np.float64), b.astype(np.float64), np.float64),
        (a.astype(np.float16), b.astype(np.float16), np.float32),
        (a, b, np.float32),
    ):
        for out in (
            np.full((len(x), y.shape[1]), np.nan, dtype),
            np.full((y.shape[1], len(x)), np.nan, dtype).T,
        ):
            for _ in range(2):
                out[:] = np.nan
                tw.matmul(x, y, out=out)
                compare_gemm(x, y, out, accumulation(x, y, out, "cpu")).raise_if_wrong()


def test_a_known_problem_still_refuses_an_output_that_shares_memory() -> None:
    x = np.random.default_rng(5).standard_normal((64, 256)).astype(np.float32)
    b, whole = np.ones((64, 64), np.float32), x.copy()
    tw.matmul(x[:, :64], b, out=x[:, 64:128])  # apart, though their rows interleave
    with pytest.raises(tw.LaunchError, match="out and a share memory"):
        tw.matmul(x[:, :64], b, out=x[:, 32:96])
    with pytest.raises(tw.LaunchError, match="out and b share memory"):
        tw.matmul(whole[:, :64], x[:, 128:192], out=x[:, 160:224])
    assert (x[:, :64] == whole[:, :64]).all()
    assert (x[:, 128:] == whole[:, 128:]).all()


@pytest.mark.parametrize("given", [[[1.0, 2.0], [3.0, 4.0]], [1.0, 2.0], ((1, 2), (3, 4))])
def test_numbers_in_sequences_are_no_pair_of_planes(given: Any) -> None:
    for a, b in ((given, np.ones((2, 2))), (np.ones((2, 2)), given)):
        with pytest.raises(tw.LaunchError, match=r"argument [ab]: builtins\.\w+ is not an array; nearest"):
            tw.matmul(a, b)


def test_what_a_call_refuses_is_refused_when_the_problem_is_known() -> None:
    a, out = np.ones((8, 8), np.float32), np.empty((8, 8), np.float32)
    tw.matmul(a, a, out)
    with pytest.raises(tw.LaunchError, match="precision='fast'"):
        tw.matmul(a, a, out, precision="fast")
    with pytest.raises(tw.LaunchError, match="cannot reach arrays in host memory"):
        tw.matmul(a, a, out, target="cuda")
    with pytest.raises(tw.LaunchError, match="stream=3 is for GPUs"):
        tw.matmul(a, a, out, stream=3)
    out.flags.writeable = False
    with pytest.raises(tw.LaunchError, match="read-only"):
        tw.matmul(a, a, out)


def test_plans_that_come_and_go_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.runtime.plans.KEPT", 3)
    in_ops._PLANS.forget()
    monkeypatch.setattr("tilewright.ops.matmul._PLANS", plans := Plans())
    for n in range(1, 8):
        a = np.ones((n, n), np.float32)
        assert (tw.matmul(a, a, np.empty_like(a)) == n).all()
    assert len(plans) == 3


def test_what_an_array_is_is_found_out_once_and_travels(monkeypatch: pytest.MonkeyPatch) -> None:
    """One description of each array is used by the call, the plan and the launch."""
    seen: list[tuple[int, ...]] = []

    def counting(array: Any, name: str = "", stream: int = 0, located: Any = None) -> ArrayInfo:
        found = arrays.describe(array, name, stream, located=located)
        seen.append(found.shape)
        return found

    monkeypatch.setattr("tilewright.ops.launching.describe", counting)
    monkeypatch.setattr("tilewright.runtime.binding.described", lambda *_: pytest.fail("described again"))
    a, b = np.ones((3, 5), np.float32), np.ones((5, 7), np.float32)
    out = np.full((3, 7), np.nan, np.float32)
    for _ in range(3):
        assert (tw.matmul(a, b, out, target="cpu") == 5).all()
    assert seen == [(3, 5), (5, 7), (3, 7)]
