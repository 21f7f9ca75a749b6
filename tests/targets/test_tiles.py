"""Tiles in registers, on every target: reductions, broadcasts, other maps, coordinates.

Maps of threads and registers are drawn at random; results are compared with NumPy in float64, sums under the
bound of `Reduce`.  Around every output lies poison that must stay.
"""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from tilewright.dtypes import DType
from tilewright.threads.distribution import registers

from .poisoned import TARGETS, Poisoned, attempt

pytestmark = pytest.mark.in_turns(3)

DTYPES = [tw.f64, tw.f32, tw.f16, tw.bf16, tw.i32, tw.i16, tw.i8, tw.u8]


@tw.kernel(X="M N", R="M P", C="Q N", Y="M N", W="M N", Z="M N", shift=int)
def everything(X, R, C, Y, W, Z, shift, *, spread, other, function):
    """Compute row and column reductions, a broadcast of both, another map and a mask."""
    tile = spread.shape
    reduce = {"sum": tw.reduce_sum, "max": tw.reduce_max, "min": tw.reduce_min}[function]
    x = tw.load(X.tile(tile, (0, 0)), like=spread)
    wide = tw.f32 if x.dtype.is_float and x.dtype.bits < 32 else x.dtype
    rows, columns = (
        reduce(x, dim, scratch=tw.shared(_scratch(spread, dim), wide, name=f"scratch{dim}")) for dim in (1, 0)
    )
    tw.copy(rows, R.tile((tile[0], 1), (0, 0)))
    tw.copy(columns, C.tile((1, tile[1]), (0, 0)))
    tw.copy(x - rows + columns, Y.tile(tile, (0, 0)))
    moved = tw.redistribute(x, other, scratch=tw.shared(tile, x.dtype, name="moving"))
    tw.copy(moved, W.tile(tile, (0, 0)))
    seen = tw.coordinates(moved, 0) + shift >= 2 * tw.coordinates(moved, -1)
    tw.copy(tw.where(seen, moved, 1), Z.tile(tile, (0, 0)))


def _scratch(spread: tw.Distribution, dim: int) -> tuple[int, ...]:
    """Return one element for each result and each warp that holds a part of it."""
    warps, weight = 1, 1
    for mode in spread.threads:
        inside = min(max(32 // weight, 1), mode.extent)
        warps *= mode.extent // inside if mode.dim == dim else 1
        weight *= mode.extent
    return tuple(warps if d == dim else extent for d, extent in enumerate(spread.shape))


@st.composite
def spreads(draw: st.DrawFn, shape: tuple[int, int], most_threads: int = 128) -> tw.Distribution:
    """Each bit of the coordinates selects threads or registers, in any order; some threads hold copies."""
    bits = [(dim, 1 << bit) for dim in (0, 1) for bit in range(shape[dim].bit_length() - 1)]
    order = draw(st.permutations(bits))
    count = draw(st.integers(0, min(len(order), most_threads.bit_length() - 1)))
    threads = [tw.Mode(2, dim, step) for dim, step in order[:count]]
    copies = draw(st.integers(0, min(2, most_threads.bit_length() - 1 - count)))
    for _ in range(copies):
        threads.insert(draw(st.integers(0, len(threads))), tw.Mode(2, None, 0))
    return tw.Distribution(shape, tuple(threads), tuple(tw.Mode(2, d, s) for d, s in order[count:]))


def drawn(shape: tuple[int, int], element: DType, rng: np.random.Generator, exact: bool) -> np.ndarray:
    if exact or not element.is_float:
        low = 0 if element.kind == "uint" else -3
        return rng.integers(low, 4, shape).astype(element.numpy)
    return (rng.standard_normal(shape) * 2.0 ** rng.integers(-4, 5, shape)).astype(element.numpy)


def checked(
    target: str,
    spread: tw.Distribution,
    other: tw.Distribution,
    element: DType,
    function: str,
    extents: tuple[int, int],
    *,
    exact: bool,
    seed: int = 0,
    lanes: int | None = None,
) -> None:
    """Run `everything` on part of a tile, and compare every element."""
    m, n = extents
    rng = np.random.default_rng(seed)
    made = {
        name: Poisoned(shape, element)
        for name, shape in {
            "X": (m, n),
            "R": (m, 1),
            "C": (1, n),
            "Y": (m, n),
            "W": (m, n),
            "Z": (m, n),
        }.items()
    }
    made["X"].array[...] = drawn((m, n), element, rng, exact)
    shift = int(rng.integers(-4, n))
    bound = everything.bind(spread=spread, other=other, function=function)
    attempt(target, bound, [*made.values(), shift], lanes)
    got = {name: p.array.astype(np.float64) for name, p in made.items()}
    # Past the array's edge a tile holds 0.
    tile = np.zeros(spread.shape)
    tile[:m, :n] = got["X"]
    reduced = {"sum": np.sum, "max": np.max, "min": np.min}[function]
    for name, axis, count in (("R", 1, spread.shape[1]), ("C", 0, spread.shape[0])):
        wanted = wrapped(reduced(tile, axis=axis, keepdims=True), element)[:m, :n]
        room = sum_bound(tile, axis, count, element)[:m, :n] if function == "sum" and not exact else 0
        assert (np.abs(got[name] - wanted) <= room + rounding(wanted, element)).all(), name
    difference = wrapped(got["X"] - got["R"], element)
    both = wrapped(difference + got["C"], element)
    # R and C are read back rounded, so only the two operations round.
    assert (np.abs(got["Y"] - both) <= 2 * rounding(both, element) + rounding(difference, element)).all()
    np.testing.assert_array_equal(got["W"], got["X"])
    rows, columns = np.indices((m, n))
    np.testing.assert_array_equal(got["Z"], np.where(rows + shift >= 2 * columns, got["X"], 1))


def wrapped(values: np.ndarray, element: DType) -> np.ndarray:
    """Return integers modulo their range."""
    return values if element.is_float else values.astype(np.int64).astype(element.numpy).astype(np.float64)


def sum_bound(tile: np.ndarray, axis: int, count: int, element: DType) -> np.ndarray:
    """Return ``gamma_(n-1) sum |x|``, an error bound for any order of summation."""
    if not element.is_float:
        return np.zeros_like(np.abs(tile).sum(axis=axis, keepdims=True))
    u = (tw.f64 if element == tw.f64 else tw.f32).unit_roundoff * max(count - 1, 0)
    return u / (1 - u) * np.abs(tile).sum(axis=axis, keepdims=True)


def rounding(values: np.ndarray, element: DType) -> np.ndarray:
    """Return one rounding to the dtype; float64 replaces the exact value, so f64 gets a few roundings."""
    tiny = float(ml_dtypes.finfo(element.numpy).smallest_subnormal) if element.is_float else 0
    return (4 if element == tw.f64 else 1) * element.unit_roundoff * np.abs(values) + tiny


SHAPES = [(8, 16), (16, 16), (4, 32), (32, 2)]
EXTENTS = st.tuples(st.floats(0.3, 1), st.floats(0.3, 1))


@settings(max_examples=60)
@given(
    data=st.data(),
    shape=st.sampled_from(SHAPES),
    element=st.sampled_from(DTYPES),
    function=st.sampled_from(["sum", "max", "min"]),
    part=EXTENTS,
    exact=st.booleans(),
    lanes=st.sampled_from([32, 64, 128]),
)
def test_any_map_on_the_reference(data, shape, element, function, part, exact, lanes) -> None:
    spread, other = data.draw(spreads(shape)), data.draw(spreads(shape))
    extents = tuple(max(1, int(e * p)) for e, p in zip(shape, part, strict=True))
    seed = data.draw(st.integers(0, 99))
    checked("reference", spread, other, element, function, extents, exact=exact, seed=seed, lanes=lanes)


MMA = tw.TiledMma(tw.atoms.MMA_F16, (2, 2), (1, 2))
WIDE = tw.TiledMma(tw.atoms.wgmma(tw.f16, 32))
MAPS = {
    "rows": tw.blocked((32, 32), (32, 1), (1, 0)),
    "columns": tw.raked((32, 32), (4, 8), 1, 0),
    "blocks": tw.blocked((32, 32), (8, 4), (0, 1)),
    "mma": MMA.c(),
    "operand": tw.TiledMma(tw.atoms.MMA_F16, (2, 1)).a(32),
    "two_warps_share_rows": tw.raked((32, 32), (16, 4), 2, 1),
    "copies": tw.Distribution(
        (32, 32),
        (tw.Mode(2, None, 0), tw.Mode(16, 1, 2), tw.Mode(4, 0, 1)),
        (tw.Mode(8, 0, 4), tw.Mode(2, 1, 1)),
    ),
}


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("function", ["sum", "max", "min"])
def test_maps_that_people_use(name: str, function: str, target: str) -> None:
    at = list(MAPS).index(name)
    element = DTYPES[(at + len(function)) % len(DTYPES)]
    other = list(MAPS.values())[at - 1]
    for exact in (True, False):
        checked(target, MAPS[name], other, element, function, (32, 27), exact=exact, seed=at)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("element", DTYPES, ids=str)
def test_every_dtype(element: DType, target: str) -> None:
    checked(target, MAPS["mma"], MAPS["blocks"], element, "sum", (31, 32), exact=False, seed=3)


def test_a_lost_value_is_noticed() -> None:
    """The bound of a sum is far smaller than any of its terms."""
    rng = np.random.default_rng(1)
    tile = drawn((32, 32), tw.f32, rng, exact=False).astype(np.float64)
    room = sum_bound(tile, 1, 32, tw.f32) + rounding(tile.sum(axis=1, keepdims=True), tw.f32)
    assert (np.abs(tile) > room).mean() > 0.99


# ---------------------------------------------------------------- special values


@tw.kernel(X="M N", S="M P", B="M P", T="M P")
def specials(X, S, B, T):
    x = tw.load(X.tile((16, 32), (0, 0)), like=tw.raked((16, 32), (4, 8), 2, 1))
    tw.copy(tw.reduce_max(x, 1), S.tile((16, 1), (0, 0)))
    tw.copy(tw.reduce_min(x, -1), B.tile((16, 1), (0, 0)))
    tw.copy(tw.reduce_sum(x, 1), T.tile((16, 1), (0, 0)))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("element", [tw.f32, tw.f16, tw.f64], ids=str)
def test_nan_and_infinity(element: DType, target: str) -> None:
    """NaN wins in a maximum and a minimum, in any place; infinities are ordinary numbers."""
    x = np.random.default_rng(0).standard_normal((16, 32)).astype(element.numpy)
    for row in range(8):
        x[row, (5 * row) % 32] = np.nan
    x[8], x[9], x[10, 3], x[11, 4] = -np.inf, np.inf, np.inf, -np.inf
    x[12, 0], x[12, 31] = np.inf, -np.inf
    arguments = [Poisoned(shape, element) for shape in ((16, 32), (16, 1), (16, 1), (16, 1))]
    arguments[0].array[...] = x
    attempt(target, specials.bind(), arguments)
    highest, lowest, total = (p.array[:, 0].astype(np.float64) for p in arguments[1:])
    wide = x.astype(np.float64)
    np.testing.assert_array_equal(highest, wide.max(axis=1))
    np.testing.assert_array_equal(lowest, wide.min(axis=1))
    assert np.isnan(highest[:8]).all()
    with np.errstate(invalid="ignore"):
        sums = wide.sum(axis=1)
    assert (np.isnan(total) == np.isnan(sums)).all()
    assert (np.isinf(total) == np.isinf(sums)).all()


# ---------------------------------------------------------------- blocks and threads


@tw.kernel(X="M N", B="M P", T="M Q")
def parts(X, B, T, *, spread, block):
    x = tw.load(X.tile((16, 64), (0, 0)), like=spread)
    largest = tw.reduce_max(tw.absolute(x), 1, block=block)
    tw.copy(largest, B.tile((16, 64 // block), (0, 0)))
    tw.copy(tw.reduce_sum(x, 1, per_thread=True), T.tile((16, 4), (0, 0)))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("block", [1, 2, 8, 32, 64])
def test_one_result_for_each_block_and_each_thread(block: int, target: str) -> None:
    spread = tw.TiledMma(tw.atoms.MMA_F16, repeats=(1, 8)).c()
    arguments = [Poisoned(shape, tw.f32) for shape in ((16, 64), (16, 64 // block), (16, 4))]
    x = np.random.default_rng(block).integers(-9, 9, (16, 64)).astype(np.float32)
    arguments[0].array[...] = x
    attempt(target, parts.bind(spread=spread, block=block), arguments)
    np.testing.assert_array_equal(arguments[1].array, np.abs(x).reshape(16, -1, block).max(axis=2))
    # Lane t of four holds columns 8 j + 2 t and 8 j + 2 t + 1.
    np.testing.assert_array_equal(arguments[2].array, x.reshape(16, 8, 4, 2).sum(axis=(1, 3)))


@tw.kernel(X="M N", Y="M P")
def one_element(X, Y):
    x = tw.load(X.tile((1, 1), (0, 0)).partition((1, 1)))
    tw.copy(tw.reduce_sum(x, 1), Y.tile((1, 1), (0, 0)))


@pytest.mark.parametrize("target", TARGETS)
def test_a_tile_of_one_element_is_its_sum(target: str) -> None:
    arguments = [Poisoned((1, 1), tw.f32) for _ in range(2)]
    arguments[0].array[...] = 3
    attempt(target, one_element.bind(), arguments)
    assert arguments[1].array.item() == 3


# ---------------------------------------------------------------- an accumulator becomes an operand


@tw.kernel(A="M K", B="N K", D="M P", C="P N")
def chained(A, B, D, C, *, first, second):
    """``D = f16(A Bᵀ) Cᵀ``: the first product stays in registers."""
    m, n, _ = first.tile
    sA, sB = tw.shared((m, 32), A.dtype), tw.shared((n, 32), A.dtype)
    sC = tw.shared((second.tile[1], n), A.dtype)
    for source, target in ((A, sA), (B, sB), (C, sC)):
        tw.copy(source.tile(target.shape, (0, 0)), target, threads=(4, 8))
    tw.barrier()
    product = tw.accumulator(first)
    tw.mma(sA, sB, product)
    acc = tw.accumulator(second)
    tw.mma(tw.redistribute(product.to(A.dtype), tw.operand_a(second, n)), sC, acc)
    tw.copy(acc, D.tile((m, second.tile[1]), (0, 0)))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("repeats", [1, 2])
@pytest.mark.parametrize("atom", [tw.atoms.MMA_F16, tw.atoms.MMA_BF16], ids=str)
def test_an_accumulator_becomes_operand_a(atom: tw.MmaAtom, repeats: int, target: str) -> None:
    first, second = tw.TiledMma(atom, (2, 1), (repeats, 4)), tw.TiledMma(atom, (2, 1), (repeats, 6))
    m, rng = 32 * repeats, np.random.default_rng(repeats)
    a, b, c = (
        rng.integers(-3, 4, shape).astype(atom.a_dtype.numpy) for shape in ((m, 32), (32, 32), (45, 32))
    )
    d = Poisoned((m, 45), tw.f32)
    arguments = [Poisoned(x.shape, atom.a_dtype) for x in (a, b)] + [d, Poisoned(c.shape, atom.a_dtype)]
    for p, x in zip((arguments[0], arguments[1], arguments[3]), (a, b, c), strict=True):
        p.array[...] = x
    attempt(target, chained.bind(first=first, second=second), arguments)
    product = (a.astype(np.float64) @ b.astype(np.float64).T).astype(atom.a_dtype.numpy).astype(np.float64)
    np.testing.assert_array_equal(d.array, product @ c.astype(np.float64).T)


def test_accumulators_and_operands_of_tensor_cores_share_threads() -> None:
    """mma.sync and wgmma: the accumulator's threads hold the same elements as operand A."""
    for first, second in (
        (tw.TiledMma(tw.atoms.MMA_BF16, (4, 1), (2, 8)), tw.TiledMma(tw.atoms.MMA_BF16, (4, 1), (2, 16))),
        (tw.TiledMma(tw.atoms.wgmma(tw.bf16, 128), (2, 1)), tw.TiledMma(tw.atoms.wgmma(tw.bf16, 64), (2, 1))),
    ):
        k = first.tile[1]
        table = registers(first.c(), second.a(k), (0, 0))
        assert table is not None
        assert sorted(table) == list(range(first.c().size_values))
    two = tw.TiledMma(tw.atoms.MMA_BF16, (2, 2), (2, 4))
    assert registers(two.c(), two.a(64), (0, 0)) is None, "warps along N hold other columns"


# ---------------------------------------------------------------- masks


@tw.kernel(Y="M N", row=int, column=int)
def masked(Y, row, column):
    m, n = tw.block_index(tw.ceil_div(Y.shape, (16, 32)))
    x = tw.fragment(tw.raked((16, 32), (4, 8), 4, 1), tw.f32, 2.5)
    seen = tw.causal_mask(x, 16 * m + row, column + 32 * n)
    tw.copy(seen, Y.tile((16, 32), (m, n)))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("row", "column"), [(0, 0), (-7, 3), (40, -2)])
def test_the_causal_mask(row: int, column: int, target: str) -> None:
    y = Poisoned((35, 70), tw.f32)
    if target == "cuda":
        attempt(target, masked.bind(), [y, row, column])
    else:
        masked(y.array, row, column, target=target)
        assert y.is_intact()
    i, j = np.indices((35, 70))
    np.testing.assert_array_equal(y.array, np.where(column + j <= row + i, 2.5, -math.inf).astype(np.float32))


@tw.kernel(Y="M N", row=int, column=int)
def masked_once(Y, row, column):
    tw.block_index(1)
    x = tw.fragment(tw.raked((16, 32), (4, 8), 4, 1), tw.f32, 2.5)
    tw.copy(tw.causal_mask(x, row, column), Y.tile((16, 32), (0, 0)))


LEAST, LARGEST = -(2**31), 2**31 - 1


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("row", "column"),
    [
        *((LARGEST, 0), (LARGEST - 9, 5), (LARGEST, LEAST), (LEAST, 0), (LEAST, LARGEST), (LEAST, LEAST)),
        *((0, LARGEST - 4), (LARGEST, LARGEST - 7), (LEAST + 40, LEAST + 33), (-1, LARGEST), (LARGEST, -1)),
        *((7, 23), (8, 23), (-15, 0), (-16, 0), (31, 0), (30, 0), (-17, 1), (3, -29)),
    ],
)
def test_the_causal_mask_of_any_32_bit_integers(row: int, column: int, target: str) -> None:
    y = Poisoned((16, 32), tw.f32)
    if target == "cuda":
        attempt(target, masked_once.bind(), [y, row, column])
    else:
        assert masked_once(y.array, row, column, target=target).target == target
        assert y.is_intact()
    i, j = np.indices((16, 32))
    np.testing.assert_array_equal(y.array, np.where(column + j <= row + i, 2.5, -math.inf).astype(np.float32))


@pytest.mark.parametrize("number", [2**31, -(2**31) - 1])
def test_integers_of_more_than_32_bits_are_refused(number: int) -> None:
    nearest = LARGEST if number > 0 else LEAST
    with pytest.raises(tw.LaunchError, match=f"row={number} does not fit 32 bits; nearest: {nearest}$"):
        masked_once(np.zeros((16, 32), np.float32), number, 0, target="cpu")
