"""Look-up tables: by codes in explicit kernels, in operands that are decoded, and after sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.dataflow.evaluate import evaluate
from tilewright.dataflow.parser import parse_flow
from tilewright.dataflow.printer import print_flow
from tilewright.dtypes import DType

from .hip.executed import launched
from .poisoned import TARGETS, Poisoned, attempt
from .test_packed import Placed

RNG = np.random.default_rng(0)
LENGTHS = [1, 2, 16, 19, 256]
CODES = [tw.u8, tw.i8, tw.i32, tw.u32, tw.i64]


def entries(count: int) -> tuple[float, ...]:
    return tuple(np.random.default_rng(count).standard_normal(count).tolist())


@tw.kernel(codes="M N", Y="M N")
def looked_up(codes, Y, *, table):
    m, n = tw.block_index(tw.ceil_div(Y.shape, (16, 32)))
    held = tw.load(codes.tile((16, 32), (m, n)).partition((8, 16)))
    tw.copy(tw.take(table, held, Y.dtype), Y.tile((16, 32), (m, n)))


def wanted(table: tuple[float, ...], codes: np.ndarray, kind: DType) -> np.ndarray:
    """The entries, rounded once to the dtype, and 0 outside of the table."""
    rounded = np.array(table).astype(kind.numpy)
    inside = (codes >= 0) & (codes < len(table))
    return np.where(inside, rounded[np.where(inside, codes, 0).astype(np.int64)], rounded.dtype.type(0))


def drawn(kind: DType, count: int) -> np.ndarray:
    """Codes inside and outside of a table, with the ends of the dtype."""
    info = np.iinfo(kind.numpy)
    codes = RNG.integers(-3, count + 4, (37, 45)).clip(info.min, info.max).astype(kind.numpy)
    codes[0, :5] = info.min, info.max, 0, min(count, info.max), min(2**32 + 1, info.max)
    return codes


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("count", LENGTHS)
def test_codes_choose_entries_and_others_give_0(target: str, count: int) -> None:
    kinds = [tw.f32, tw.f16, tw.bf16, tw.f64]
    for at, kind in enumerate(CODES):
        made, codes = kinds[at % len(kinds)], drawn(kind, count)
        y = Poisoned(codes.shape, made)
        attempt(target, looked_up.bind(table=entries(count)), [codes, y])
        assert np.array_equal(y.array.view(np.uint8), wanted(entries(count), codes, made).view(np.uint8))


def test_tables_of_integers_stay_integers() -> None:
    codes = np.uint8([[0, 1, 2, 3]])
    for target in ("reference", "cpu"):
        y = np.full((1, 4), 9, np.int64)
        looked_up.bind(table=(-5, 2**40, 7))(codes, y, target=target)
        assert y.tolist() == [[-5, 2**40, 7, 0]]


# ---------------------------------------------------------------- in dataflow

GROUP = 16


@tw.kernel(A="M K", W="K N", S="G N", C="M N", E="M N")
def decoded(A, W, S, C, E, *, table, ending):
    tw.require(A.shape[1] % GROUP == 0, "whole groups")
    tw.require(S.shape[0] == tw.ceil_div(A.shape[1], GROUP), "a scale for each group")
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ (tw.take(table, W[k, n], A.dtype) * S[k // GROUP, n])
        C[m, n] = acc
        E[m, n] = acc + tw.take(ending, tw.positions(n))


NUMBERS = entries(16)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("along", [0, 1])
@pytest.mark.parametrize("kind", [tw.f16, tw.bf16, tw.f32], ids=str)
def test_operands_are_decoded_by_a_table(target: str, along: int, kind: DType) -> None:
    m, n, k = 5, 38, 64
    codes = RNG.integers(0, 16, (k, n))
    a, scale = (RNG.standard_normal(shape).astype(kind.numpy) for shape in ((m, k), (k // GROUP, n)))
    place = Placed(target)
    held = place(tw.pack(codes if along else codes.T, tw.u4), tw.u8)
    w = tw.packed(held if along else held.T, tw.u4, along)
    given, scales = place(a, kind), place(scale, kind)
    c, e = (place(np.full((m, n), np.nan), tw.f32) for _ in range(2))
    place.run(decoded.bind(table=NUMBERS, ending=entries(20)), given, w, scales, c, e)
    weights = np.array(NUMBERS).astype(kind.numpy)[codes] * scale.repeat(GROUP, axis=0)
    exact = a.astype(np.float64) @ weights.astype(np.float64)
    size = np.abs(a.astype(np.float64)) @ np.abs(weights.astype(np.float64))
    assert (np.abs(place.read(c) - exact) <= (k + 4) * 2.0**-24 * size).all()
    after = np.where(np.arange(n) < 20, np.resize(np.float32(entries(20)), n), np.float32(0))
    assert np.array_equal(place.read(e), place.read(c) + after)


def arrays() -> dict[str, Any]:
    """The arrays of `decoded`, of 4 rows and as many columns as K."""
    codes = RNG.integers(0, 16, (32, 32))
    a, scale = RNG.standard_normal((4, 32)).astype(np.float16), np.full((2, 32), 0.5, np.float16)
    c, e = (np.zeros((4, 32), np.float32) for _ in range(2))
    return {"A": a, "W": tw.packed(tw.pack(codes.T, tw.u4).T, tw.u4), "S": scale, "C": c, "E": e}


def test_flows_with_tables_are_printed_and_evaluated() -> None:
    given = arrays()
    bound = decoded.bind(table=NUMBERS, ending=entries(20))
    flow = bound(*given.values(), target="reference").flow
    assert parse_flow(print_flow(flow)) == flow
    codes = tw.unpack(given["W"].array.T, tw.u4).T
    found = evaluate(flow, {**given, "W": codes})
    assert np.allclose(found["C"], given["C"], atol=1e-5)
    assert np.allclose(found["E"], given["E"], atol=1e-5)


def test_amd_looks_up_what_the_reference_does() -> None:
    codes = np.arange(-2, 62, dtype=np.int8).reshape(2, 32)
    for kind in (tw.f32, tw.f16):
        y = np.full(codes.shape, np.nan, kind.numpy)
        launched(looked_up.bind(table=entries(19)), "gfx942", {"codes": codes, "Y": y})
        assert np.array_equal(y, wanted(entries(19), codes, kind))


@tw.kernel(table="E", A="M K", codes="N K", other="M N", scale="N", C="M N", D="N M")
def from_memory(table, A, codes, other, scale, C, D):
    """A table in memory: an operand that is decoded and scaled, and elements after the sum."""
    for m, n in tw.tiles(C):
        acc = tw.zeros(dtype=tw.f32)
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ (tw.take(table, codes[n, k], tw.f32) * scale[n][:, None]).T
        C[m, n] = acc + tw.take(table, other[m, n])
        D[n, m] = tw.take(table, other[m, n].T, tw.f16)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", [tw.u8, tw.i32, tw.u64, tw.i64], ids=str)
def test_tables_in_memory_give_0_outside(target: str, kind: DType) -> None:
    """Codes of any stride choose elements of a view; sums are within their bound, the rest is equal."""
    count = 300 if kind == tw.i32 else 19
    table = np.random.default_rng(count).standard_normal(2 * count).astype(np.float32)[::2]
    codes, other = drawn(kind, count).T, drawn(kind, count)[:, ::-1][:, :37].T
    codes, other = codes[:21], other[:, :21]
    a, scale = RNG.standard_normal((37, 37)).astype(np.float32), RNG.standard_normal(21).astype(np.float32)
    place = Placed(target)
    held = [place(one, tw.f32) for one in (table, a)] + [place(one, kind) for one in (codes, other)]
    found = place(np.full((37, 21), np.nan), tw.f32), place(np.full((21, 37), np.nan), tw.f16)
    place.run(from_memory, *held, place(scale, tw.f32), *found)
    entries_of = tuple(table.tolist())
    weights = wanted(entries_of, codes, tw.f32).astype(np.float64) * scale[:, None]
    more = wanted(entries_of, other, tw.f32)
    exact, size = a @ weights.T + more, np.abs(a) @ np.abs(weights.T) + np.abs(more)
    assert (np.abs(place.read(found[0]) - exact) <= (37 + 4) * 2.0**-24 * size).all()
    assert np.array_equal(place.read(found[1]), more.T.astype(np.float16))


def test_gpus_compile_tables_in_memory() -> None:
    """Any dtype that a product takes; the table has no limit of 256 entries."""
    for target, arch in (("cuda", "sm_90a"), ("hip", "gfx942")):
        made = from_memory.compile(
            *(tw.like("f32", 1000), tw.like("f32", 64, 64), tw.like("u16", 64, 64), tw.like("i64", 64, 64)),
            *(tw.like("f32", 64), tw.like("f32", 64, 64), tw.like("f32", 64, 64)),
            target=target,
            arch=arch,
        )
        assert made.target == target


def test_tables_in_memory_that_are_refused() -> None:
    @tw.kernel(T="E", codes="M N", C="M N")
    def computed(T, codes, C):
        for m, n in tw.tiles(C):
            C[m, n] = tw.take(T, codes[m, n] + 1)

    @tw.kernel(T="E", codes="M N", C="M N")
    def of_rows(T, codes, C):
        for m, n in tw.tiles(C):
            C[m, n] = tw.take(C, codes[m, n])

    @tw.kernel(T="E", codes="N M", C="M N")
    def of_a_view(T, codes, C):
        for m, n in tw.tiles(C):
            C[m, n] = tw.take(T, codes.permute(1, 0)[m, n])

    @tw.kernel(T="E", codes="E", C="E")
    def of_itself(T, codes, C):
        for n in tw.tiles(C):
            C[n] = tw.take(codes, codes[n])

    @tw.kernel(T="M E", codes="M N", C="M N")
    def of_a_row(T, codes, C):
        for m, n in tw.tiles(C):
            C[m, n] = tw.take(T[m], codes[m, n])

    codes, c = np.zeros((4, 4), np.int32), np.zeros((4, 4), np.float32)
    for kernel, given, message in (
        (computed, (c[0], codes, c), r"table\[m - n \+ N - 1\] the view .*embed"),
        (of_a_row, (c, codes, c), r"a whole array of one dimension .* the view .*embed"),
        (computed, (c[0], codes, c), r"take from T.*: computed codes; nearest .* codes\[m, n\], or numbers"),
        (of_rows, (c[0], codes, c), "take from C.*; nearest legal choice: an array of one dimension"),
        (of_a_view, (c[0], codes, c), "by a view of codes; nearest .* elements of a whole array"),
        (computed, (c[0], c, c), "computed codes"),
        (of_itself, (c[0], codes[0], c[1]), "codes has the codes, and is the table"),
    ):
        with pytest.raises(tw.TraceError, match=f"(?s){message}"):
            kernel(*given, target="reference")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ((), "take: a table of 0 entries; .* 1 to 256"),
        ((0.5,) * 257, "take: a table of 257 entries; .* 1 to 256"),
        (((1, 2), (3, 4)), r"\(1, 2\) of type tuple is not an operand"),
        ((1.0, float("nan")), "take: the table has the entry nan"),
        ((1.0, 1e30), "take: 1e\\+30 becomes infinite in f16"),
        (3.0, "take: the table is 3.0"),
    ],
)
def test_tables_that_are_refused(table: Any, message: str) -> None:
    with pytest.raises(tw.TraceError, match=message):
        looked_up.bind(table=table).trace(np.zeros((4, 4), np.uint8), np.zeros((4, 4), np.float16))


def test_codes_and_results_that_are_refused() -> None:
    of_floats = np.zeros((4, 4), np.float32)
    with pytest.raises(tw.TilewrightError, match="take by codes of f32: needs integers"):
        looked_up.bind(table=(1.0, 2.0)).trace(of_floats, of_floats)
    with pytest.raises(tw.TilewrightError, match="take of a table of c64: needs real numbers"):
        looked_up.bind(table=(1.0, 2.0)).trace(np.zeros((4, 4), np.uint8), np.zeros((4, 4), np.complex64))
    with pytest.raises(tw.TraceError, match=r"take: 0\.5 is not a value of i32"):
        looked_up.bind(table=(1.0, 0.5)).trace(np.zeros((4, 4), np.uint8), np.zeros((4, 4), np.int32))
