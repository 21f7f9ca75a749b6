"""Kernels that the tests of the IR print, parse and verify: one for each operation, and random ones."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

import tilewright as tw
from tilewright.ir.kernel import Kernel
from tilewright.lang.program import Program
from tilewright.lang.specs import TensorSpec

ROWS = tw.blocked((16, 8), (4, 8), (1, 0))
MMA = tw.TiledMma(tw.atoms.MMA_F16, repeats=(1, 2))
DECLARED = {"A": "M K", "C": "M N", "n": int, "alpha": tw.f32}
SPECS = {
    "A": TensorSpec(tw.f16, 2, 1, (8, 8), (8, 1), 16, False),
    "C": TensorSpec(tw.f32, 2, 1, (2, 2), (2, 1), 8, True),
}


def trace(function: Callable[..., Any]) -> Kernel:
    return Program(function, DECLARED).trace(SPECS)


# ---------------------------------------------------------------- one per operation


def shared(A, C, n, alpha):
    tw.shared((16, 8), tw.bf16, layout=tw.row_major((16, 8), 12), elems=192)


def fragment(A, C, n, alpha):
    tw.fragment(ROWS, tw.f32, -math.inf)
    tw.accumulator(MMA, None)


def view(A, C, n, alpha):
    tile = A.tile((16, 8), (n, 0))
    tile[2:-2, 3].swizzle(0, 0, 0)
    tile.permute(1, 0).pad((1, 0), (0, n)).pad_to((1, 4))
    tile.unmerge(0, (4, 4)).merge(0, 2).broadcast(1, 3)
    A.embed(0, (n, 3), (1, 2), 1)
    tw.shared((8, 64), tw.f16).swizzle(3, 3, 3)


def partition(A, C, n, alpha):
    C.tile((8, 8), (0, 0)).partition((4, 8), vector_dim=0)
    A.tile((8, 8), (0, 0)).partition((8, 4, 2), (1, 1, None))


def copy(A, C, n, alpha):
    sA = tw.shared((16, 8), A.dtype)
    tw.copy(A.tile((16, 8), (n, 0)), sA, threads=(16, 1), vector=8)
    part = C.tile((16, 8), (0, n)).partition((4, 8))
    x = tw.load(part)
    tw.copy(x, C.tile((16, 8), (n, 0)))
    tw.copy(tw.load(part, other=-math.inf), C.tile((16, 8), (n, 0)))


def copy_async(A, C, n, alpha):
    tw.copy_async(A.tile((16, 8), (n, 0)), tw.shared((16, 8), A.dtype), threads=(16, 1), vector=4)


def async_commit(A, C, n, alpha):
    tw.async_commit()


def async_wait(A, C, n, alpha):
    tw.async_wait()
    tw.async_wait(2)


def fill(A, C, n, alpha):
    x = tw.fragment(ROWS, tw.f32)
    tw.fill(x, 0.5)
    tw.fill(x, alpha)


def elementwise(A, C, n, alpha):
    x = tw.fragment(ROWS, tw.f32, 0)
    y = tw.where(x < 1e-30, -x, tw.maximum(x * alpha, tw.exp(x)))
    y.to(tw.f16)


def reduce(A, C, n, alpha):
    x = tw.fragment(ROWS, tw.f16, 0)
    tw.reduce_sum(x, 1)
    tw.reduce_max(x, 0, block=8)
    tw.reduce_min(x, -1, per_thread=True)
    wide = tw.fragment(tw.raked((16, 32), (2, 32), 1, 1), tw.f16, 0)
    wide - tw.reduce_sum(wide, 0, scratch=tw.shared((2, 32), tw.f32))


def prefix(A, C, n, alpha):
    x = tw.fragment(ROWS, tw.f16, 0)
    tw.prefix_sum(x, 1)
    wide = tw.fragment(tw.raked((16, 32), (2, 32), 1, 1), tw.i32, 0)
    tw.prefix_sum(wide, 0, scratch=tw.shared((16, 32), tw.i32))


def redistribute(A, C, n, alpha):
    x = tw.fragment(ROWS, tw.f32, 0)
    tw.redistribute(x, tw.Distribution(ROWS.shape, ROWS.threads, ROWS.values[::-1]))
    tw.redistribute(x, tw.blocked((16, 8), (8, 4), (1, 0)), scratch=tw.shared((16, 8), tw.f32))
    acc = tw.accumulator(MMA)
    tw.copy(acc[:, 8:16], C.tile((16, 8), (0, n)))


def coordinates(A, C, n, alpha):
    x = tw.fragment(ROWS, tw.f32, 0)
    rows, columns = tw.coordinates(x, 0) + n, 3 * n - tw.coordinates(ROWS, -1)
    tw.where(rows < columns, x, tw.causal_mask(x, 2 * n, 0))
    rows.to(tw.i8, saturate=True)


def mma(A, C, n, alpha):
    sA, sB = tw.shared((16, 16), tw.f16), tw.shared((16, 16), tw.f16)
    acc = tw.accumulator(MMA)
    tw.mma(sA, sB, acc)
    tw.mma(tw.load(sA, tw.operand_a(MMA, 16)), tw.load(sB, tw.operand_b(MMA, 16)), acc)


def barrier(A, C, n, alpha):
    tw.barrier()


def warp_barrier(A, C, n, alpha):
    tw.warp_barrier()


def var(A, C, n, alpha):
    tw.var(n * 2)


def set_var(A, C, n, alpha):
    tw.var(0).set(n)


def get_var(A, C, n, alpha):
    x = tw.var(0)
    A.tile((8, 8), (x.get(), 0))


def let(A, C, n, alpha):
    x = tw.let(n * 2 + 1)
    A.tile((8, 8), (x, 0))


def read_index(A, C, n, alpha):
    sI = tw.shared((8,), tw.i32)
    x = tw.index(sI[n % 8], 0, A.shape[0] + 1, multiple=2)
    A.tile((8, 8), (x, tw.index(sI[0])))


def gather(A, C, n, alpha):
    sI = tw.shared((16,), tw.i32)
    tw.copy(A.rows(sI, padded=True).tile((16, 8), (0, n)), tw.shared((16, 8), A.dtype), threads=(16, 1))
    C[:, sI[2:10]].permute(1, 0).tile((8, 8), (0, n)).partition((8, 4))


def counters(A, C, n, alpha):
    turns = tw.counter((4, 8))
    tw.await_(turns[n, 0], n + 1)
    tw.signal(turns[n, 0], of=n)
    tw.signal(turns[1, n], 2)
    x = tw.ticket(turns[0, 0], of=8)
    A.tile((8, 8), (x, tw.ticket(turns[0, 1])))
    tw.reset(turns[1, n])


def loop(A, C, n, alpha):
    for _k in tw.range(tw.ceil_div(A.shape[1], 32), provenance="mainloop"):
        for _j in tw.range(2, n, 4, unroll=4):
            tw.barrier()


def branch(A, C, n, alpha):
    m = tw.block_index(n)
    with tw.when((m < 3) & (n > 2) | ~(m == n - 1)):
        tw.barrier()
    with tw.otherwise(), tw.when(n < 5):
        pass


def launch(A, C, n, alpha):
    m, _k = tw.block_index(tw.ceil_div(A.shape, (64, 32)))
    b = tw.batch_index(n)
    c = tw.hopper.cluster_index((2, 1))
    space = tw.workspace((tw.derived(n * 4), 3), tw.f32, zeroed=True)
    tw.copy(space.tile((8, 4), (m + b, c[0])), tw.shared((8, 4), tw.f32), threads=(8, 1))


EACH: dict[str, Callable[..., Any]] = {
    "shared": shared,
    "fragment": fragment,
    "view": view,
    "partition": partition,
    "copy": copy,
    "copy_async": copy_async,
    "async_commit": async_commit,
    "async_wait": async_wait,
    "fill": fill,
    "elementwise": elementwise,
    "reduce": reduce,
    "prefix": prefix,
    "redistribute": redistribute,
    "coordinates": coordinates,
    "mma": mma,
    "barrier": barrier,
    "warp_barrier": warp_barrier,
    "var": var,
    "set_var": set_var,
    "get_var": get_var,
    "let": let,
    "gather": gather,
    "read_index": read_index,
    **dict.fromkeys(("signal", "ticket", "await_", "reset"), counters),
    "for": loop,
    "if": branch,
}


# ---------------------------------------------------------------- arbitrary kernels


@st.composite
def kernels(draw: st.DrawFn) -> Kernel:
    """Draw a kernel of random statements, traced through the language."""

    def author(A, C, n, alpha):
        m, b = tw.block_index(tw.ceil_div(A.shape, (16, 8)))
        _statements(draw, [A, C], [n, m, b, A.shape[0], C.shape[1]], [alpha], 3)

    return trace(author)


def _statements(draw: Any, tensors: list[Any], integers: list[Any], numbers: list[Any], depth: int) -> None:
    """Draw a few statements over visible values; later statements see the values that they define."""
    tensors, integers, numbers = list(tensors), list(integers), list(numbers)
    fragments: list[Any] = [tw.fragment(ROWS, tw.f32, draw(st.sampled_from([None, 0, 1.5, -math.inf])))]
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(
            st.sampled_from(["view", "copy", "math", "number", "var", "sync", "mma", "for", "if", "int"])
        )
        if kind == "view":
            with contextlib.suppress(tw.TraceError):  # no such element
                tensors.append(_viewed(draw, _pick(draw, tensors), integers))
        elif kind == "int":
            integers.append(_integer(draw, integers))
        elif kind == "copy":
            fragments.append(_copied(draw, _pick(draw, tensors[:2]), _integer(draw, integers)))
        elif kind == "math":
            fragments.append(_fragment(draw, fragments, numbers))
        elif kind == "number":
            numbers.append(_pick(draw, numbers) * draw(st.floats(allow_nan=False)))
        elif kind == "var":
            x = tw.var(_integer(draw, integers))
            x.set(x.get() + _integer(draw, integers))
            integers.append(x.get())
        elif kind == "sync":
            draw(st.sampled_from([tw.barrier, tw.warp_barrier, tw.async_commit, tw.async_wait]))()
        elif kind == "mma":
            mma(None, None, None, None)
        elif depth == 0:
            tw.barrier()
        elif kind == "for":
            start, step = draw(st.integers(0, 3)), draw(st.integers(1, 4))
            for k in tw.range(
                start, _integer(draw, integers), step, unroll=draw(st.sampled_from((False, True, 3)))
            ):
                _statements(draw, tensors, [*integers, k], numbers, depth - 1)
        else:
            with tw.when(_condition(draw, integers)):
                _statements(draw, tensors, integers, numbers, depth - 1)
            if draw(st.booleans()):
                with tw.otherwise():
                    _statements(draw, tensors, integers, numbers, depth - 1)


def _copied(draw: Any, tensor: Any, at: Any) -> Any:
    """Return a tile that passed through shared memory, in any dtype."""
    sT = tw.shared((16, 8), draw(st.sampled_from([tw.f16, tw.f32, tw.i8])))
    threads, vector = draw(st.sampled_from([(16, 1), (4, 8), (16, 2)])), draw(st.sampled_from([None, 1]))
    try:
        tile = tensor.tile((16, 8), (at, 0))
    except tw.TraceError:  # no such tile
        return tw.load(sT, ROWS).to(tw.f32)
    send = tw.copy_async if tile.dtype == sT.dtype and draw(st.booleans()) else tw.copy
    send(tile, sT, threads=threads, vector=vector)
    return tw.load(sT, ROWS).to(tw.f32)


def _pick(draw: Any, values: list[Any]) -> Any:
    return values[draw(st.integers(0, len(values) - 1))]


def _integer(draw: Any, known: list[Any]) -> Any:
    x, y = _pick(draw, known), _pick(draw, [*known, 1, 2, 3, 8, 12])
    by = draw(st.sampled_from([2, 3, 8, 32]))
    operation = draw(st.integers(0, 8))
    return (
        *(x, x + y, x - y, x * by, x // by, x % by),
        *(x ^ by, tw.minimum(x, y), tw.maximum(y, x) * by + x),
    )[operation]


def _condition(draw: Any, known: list[Any]) -> Any:
    x, y = _integer(draw, known), _integer(draw, known)
    first, second = x < y, x + y >= 3
    operation = draw(st.integers(0, 4))
    if isinstance(first, bool) or isinstance(second, bool):
        return first
    return (first, first & second, first | second, ~first, ~(x == y) & (first | second))[operation]


def _viewed(draw: Any, tensor: Any, integers: list[Any]) -> Any:
    if len(tensor.shape) != 2:
        return tensor.merge(0, len(tensor.shape)) if len(tensor.shape) > 1 else tensor.broadcast(0, 3)
    at = _integer(draw, integers)
    operation = draw(st.integers(0, 6))
    changes: list[Callable[[], Any]] = [
        lambda: tensor.tile((8, 8), (at, 0)),
        lambda: tensor.permute(1, 0),
        lambda: tensor.pad((1, 0), (2, 3)),
        lambda: tensor.pad_to((16, 8)),
        lambda: tensor.broadcast(1, 5),
        lambda: tensor.embed(0, (4, 3), (1, 2), 1),
        lambda: tensor[:, 0:2] if isinstance(tensor.shape[1], int) and tensor.shape[1] > 2 else tensor[at],
    ]
    return changes[operation]()


def _fragment(draw: Any, known: list[Any], numbers: list[Any]) -> Any:
    x, y = _pick(draw, known), _pick(draw, [*known, *numbers])
    literal = draw(st.floats(width=32, allow_nan=False) | st.integers(-1000, 1000))
    operation = draw(st.integers(0, 9))
    changes: list[Callable[[], Any]] = [
        lambda: x + y,
        lambda: literal - x,
        lambda: -x / y,
        lambda: tw.where(x <= y, x, literal),
        lambda: tw.minimum(x, literal),
        lambda: x.to("f16").to(tw.f32),
        lambda: x.assign(tw.tanh(x)),
        lambda: x - tw.reduce_max(x, draw(st.integers(0, 1))),
        lambda: tw.where(tw.coordinates(x, 0) < literal // 1 % 99, x, y),
        lambda: tw.redistribute(x, ROWS) * tw.exp2(x.to("f8e4m3", saturate=True).to(tw.f32)),
    ]
    return changes[operation]()
