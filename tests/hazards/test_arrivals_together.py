"""Several arrays that arrive, vectors, and endings of any kind: results, missing waits, refusals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw

from .test_added_arrivals import STAGED
from .test_arrivals import PLAIN

SCHEDULES = {
    "plain": PLAIN,
    "the library's choice": None,
    "bulk stores": STAGED,
    "ping-pong": replace(STAGED, roles="ping-pong", groups=2, blocks=2),
}


@tw.kernel(A="M K", B="K N", P="M N", Q="N M", R="R", S="S", C="M N")
def two_parts(A, B, P, Q, R, S, C, *, left_out=""):
    for m, n in tw.tiles(C):
        if left_out != "P":
            tw.arrives(P, R, 1, first=1)
        if left_out != "Q":
            tw.arrives(Q, S, 1)
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]
        C[m, n] = P[m, n] + acc + Q[n, m].T


@tw.kernel(A="M K", B="K N", P="M N", Q="N M", R="R", S="S", C="M N")
def factor_and_part(A, B, P, Q, R, S, C, *, left_out=""):
    for m, n in tw.tiles(C):
        if left_out != "A":
            tw.arrives(A, R, 1, first=1)
        if left_out != "Q":
            tw.arrives(Q, S, 1)
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]
        C[m, n] = P[m, n] + acc + Q[n, m].T


def sends(part: Any, inbox: Any, ready: Any) -> list[Any]:
    """The copies of the shards of an array, in their order."""
    rows, made = -(-len(part) // len(ready)), list[Any]()
    for at in range(len(ready)):
        cut, counter = slice(at * rows, (at + 1) * rows), ready[at : at + 1]
        made.append(
            tw.testing.send(part[cut], inbox[cut], counter, 1)
            if len(part[cut])
            else tw.testing.post(counter, 1)
        )
    return made


class Two:
    """Arrays of a kernel in which two of them arrive, in three and in two shards."""

    def __init__(self, kernel: Any, schedule: tw.Schedule | None) -> None:
        (m, n, k), rng = (136, 72, 128), np.random.default_rng(7)
        is_f16 = schedule is not None and schedule.atom.a_dtype == tw.f16
        self.kernel, self.schedule, kind = kernel, schedule, np.float16 if is_f16 else np.float32
        self.a, self.b = rng.standard_normal((m, k)).astype(kind), rng.standard_normal((k, n)).astype(kind)
        self.p, self.q = rng.standard_normal((m, n), np.float32), rng.standard_normal((n, m), np.float32)
        self.c = np.full((m, n), np.nan, np.float32)

    def run(self, left_out: str = "") -> Any:
        whole = {"A": self.a, "P": self.p, "Q": self.q}
        first = "P" if self.kernel is two_parts else "A"
        given = whole | {name: np.full_like(whole[name], np.nan) for name in (first, "Q")}
        r, s = np.zeros(3, np.uint32), np.zeros(2, np.uint32)
        bound = self.kernel.bind(schedule=self.schedule, left_out=left_out)
        launch = tw.testing.launch(bound, given["A"], self.b, given["P"], given["Q"], r, s, self.c)
        copies = [sends(whole[first], given[first], r), sends(self.q, given["Q"], s)]
        return tw.testing.ranks([[launch], *copies])

    def check(self) -> None:
        a, b = self.a.astype(np.float64), self.b.astype(np.float64)
        terms = abs(a) @ abs(b) + abs(self.p) + abs(self.q.T)
        assert (abs(self.c - (a @ b + self.p + self.q.T)) <= (a.shape[1] + 3) * 2.0**-23 * terms).all()


@pytest.mark.parametrize("kernel", [two_parts, factor_and_part], ids=["two parts", "a factor and a part"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_two_arrays_arrive_along_different_dimensions(kernel: Any, name: str) -> None:
    """A tile waits for each with its own counters, before the loop or after it."""
    two = Two(kernel, SCHEDULES[name])
    two.run().raise_if_any()
    two.check()


@pytest.mark.parametrize(
    ("kernel", "left_out"),
    [(two_parts, "P"), (two_parts, "Q"), (factor_and_part, "A"), (factor_and_part, "Q")],
)
@pytest.mark.parametrize("name", ["plain", "bulk stores"])
def test_each_missing_wait_is_found(kernel: Any, left_out: str, name: str) -> None:
    findings = Two(kernel, SCHEDULES[name]).run(left_out).findings
    assert any(f"on global {left_out}[" in str(one) for one in findings)
    assert all(f"on global {left_out}[" in str(one) for one in findings)


# ---------------------------------------------------------------- vectors, and other endings


@tw.kernel(A="M K", B="K N", P="M", READY="R", C="M N")
def scaled_rows(A, B, P, READY, C):
    for m, n in tw.tiles(C):
        tw.arrives(P, READY, 1)
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]
        C[m, n] = acc * P[m][:, None]


@tw.kernel(A="M K", B="K N", P="N", READY="R", C="M N")
def with_bias(A, B, P, READY, C):
    for m, n in tw.tiles(C):
        tw.arrives(P, READY, 1)
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]
        C[m, n] = acc + P[n]


@tw.kernel(A="M K", B="K N", P="M", READY="R", C="M N")
def first_columns(A, B, P, READY, C):
    for m, n in tw.tiles(C):
        tw.arrives(P, READY, 1)
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]
        C[m, n] = tw.where(tw.positions(n).to(tw.f32) <= P[m][:, None], acc, 0.0)


@tw.kernel(A="M K", B="K N", P="M N", READY="R", C="M N")
def probabilities(A, B, P, READY, C):
    for m in tw.tiles(C.shape[0]):
        tw.arrives(P, READY, 1)
        C[m] = tw.softmax(A[m] @ B + P[m], axis=1)


@tw.kernel(A="M K", B="K N", P="M N", READY="R", C="M N")
def bell(A, B, P, READY, C):
    for m, n in tw.tiles(C):
        tw.arrives(P, READY, 1)
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]
        x = acc + P[m, n]
        C[m, n] = x * tw.exp(-x * x)


def _softmax(x: Any) -> Any:
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def _bell(x: Any) -> Any:
    return x * np.exp(-x * x)


ENDINGS: dict[str, tuple[Any, str, Callable[[Any, Any], Any]]] = {
    "scales of rows": (scaled_rows, "M", lambda ab, p: ab * p[:, None]),
    "a bias of columns": (with_bias, "N", lambda ab, p: ab + p),
    "numbers of a mask": (first_columns, "M", lambda ab, p: np.where(np.arange(40) <= p[:, None], ab, 0)),
    "softmax": (probabilities, "M N", lambda ab, p: _softmax(ab + p)),
    "a function of the sum": (bell, "M N", lambda ab, p: _bell(ab + p)),
}


@pytest.mark.parametrize("schedule", [PLAIN, None], ids=["plain", "the library's choice"])
@pytest.mark.parametrize("depth", [24, 0])
@pytest.mark.parametrize("name", ENDINGS)
def test_vectors_arrive_and_endings_are_any_function(name: str, depth: int, schedule: Any) -> None:
    kernel, dims, meaning = ENDINGS[name]
    if kernel is probabilities and schedule is not None:
        schedule = None if depth == 0 else replace(PLAIN, tile=(32, 64, 16))  # whole rows in a tile
    rng, (m, n) = np.random.default_rng(depth), (70, 40)
    a, b = rng.standard_normal((m, depth), np.float32), rng.standard_normal((depth, n), np.float32)
    part = rng.standard_normal({"M": (m,), "N": (n,), "M N": (m, n)}[dims], np.float32)
    part = part * 20 + 20 if kernel is first_columns else part
    inbox, ready = np.full_like(part, np.nan), np.zeros(3, np.uint32)
    c = np.full((m, n), np.nan, np.float32)
    launch = tw.testing.launch(kernel.bind(schedule=schedule), a, b, inbox, ready, c)
    tw.testing.ranks([[launch], sends(part, inbox, ready)]).raise_if_any()
    exact = meaning(a.astype(np.float64) @ b.astype(np.float64), part.astype(np.float64))
    np.testing.assert_allclose(c, exact, rtol=2e-5, atol=2e-5)


# ---------------------------------------------------------------- refusals


@tw.kernel(A="M K", B="K N", P="M", READY="R", C="M N")
def scaled_factor(A, B, P, READY, C, *, again=False):
    for m, n in tw.tiles(C):
        tw.arrives(P, READY, 1)
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += (A[m, k] * P[m][:, None]) @ B[k, n]
        C[m, n] = acc * P[m][:, None] if again else acc


@tw.kernel(A="M K", B="K N", P="M K", READY="R", C="M N")
def multiplied_factor(A, B, P, READY, C, *, again=False):
    for m, n in tw.tiles(C):
        tw.arrives(P, READY, 1)
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += (A[m, k] * P[m, k]) @ B[k, n]
            if again:
                acc += P[m, k] @ B[k, n]
        C[m, n] = acc


@pytest.mark.parametrize("again", [False, True])
def test_an_array_that_scales_a_factor_is_refused(again: bool) -> None:
    """Also if it is read after the loop, too: the wait there would come too late."""
    matrix, ready = tw.like("f32", 64, 64), tw.like("u32", 2)
    with pytest.raises(tw.TraceError, match="P arrives in shards, and is combined with a factor") as caught:
        scaled_factor.bind(again=again).schedule_for(matrix, matrix, tw.like("f32", 64), ready, matrix)
    assert "nearest legal choice: P after the loop, where it scales the sum" in str(caught.value)
    with pytest.raises(tw.TraceError, match="P arrives in shards, and is combined with a factor") as caught:
        multiplied_factor.bind(again=again).schedule_for(matrix, matrix, matrix, ready, matrix)
    assert "nearest legal choice: an earlier kernel, which waits for P" in str(caught.value)
