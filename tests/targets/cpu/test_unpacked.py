"""Products of few rows read B without packing: results are right, with the bits of many rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided
from tests.far import guarded

import tilewright as tw
from tilewright.checking.compare import compare_gemm
from tilewright.checking.composed_products import compare_complex
from tilewright.runtime import native
from tilewright.runtime.native import host_arch
from tilewright.schedule.choice import candidates, choose, split_candidates
from tilewright.schedule.proposals_cpu import COLUMNS, ROWS
from tilewright.schedule.question import Splitting
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.tables import read_schedule
from tilewright.targets import cpu
from tilewright.targets.rules import EmittedText

Array = np.ndarray
Machine = Callable[..., EmittedText]


@tw.kernel(A="M K", B="K N", C="M N")
def product(A, B, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros(dtype=C.dtype)
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]
        C[m, n] = acc


@tw.kernel(A="M K", B="K N", C="M N")
def summed_in_f32(A, B, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros(dtype="f32")
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]
        C[m, n] = acc


def summing(dtype: tw.DType) -> Any:
    """Return the product with sums as wide as the products of a dtype need."""
    return product if dtype == dtype.computed else summed_in_f32


@tw.kernel(A="M K", B="K N", C="M N")
def normed(A, B, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros(dtype=C.dtype)
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]
        C[m, n] = acc - acc.max(axis=1)[:, None]


@tw.kernel(A="M K", B="K N", C="M N")
def doubled(A, B, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros(dtype=C.dtype)
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]
        C[m, n] = 2 * acc


def panels(dtype: tw.DType, *, swap_ab: bool = False) -> Schedule:
    columns = 32 if dtype == tw.f32 else 16
    atom = tw.atoms.fma(dtype, lanes=(1, 1), each=(12, columns))
    return Schedule(atom, (48, 128, 64), staging="panels", balanced=True, swap_ab=swap_ab)


def drawn(shape: tuple[int, int], dtype: tw.DType, seed: int, layout: str) -> Array:
    """Random numbers inside an array of NaN, contiguous along rows (``n``) or columns (``t``)."""
    rows, columns = shape if layout == "n" else shape[::-1]
    whole = np.full((rows + 2, columns + 3), np.nan, dtype.numpy)
    whole[1:-1, 1:-2] = np.random.default_rng(seed).standard_normal((rows, columns))
    inner = whole[1:-1, 1:-2]
    return inner if layout == "n" else inner.T


@pytest.mark.parametrize("swap_ab", [False, True])
@pytest.mark.parametrize("layouts", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("dtype", [tw.f32, tw.f64])
def test_few_rows_have_the_bits_of_rows_among_many(dtype: tw.DType, layouts: str, swap_ab: bool) -> None:
    """The test uses micro-kernels of all heights, and columns and depths with partial vectors and panels.

    The last rows of B are 4 KiB apart, so that fewer of them are read at once.
    """
    apart = 4096 // dtype.bytes - 3
    for n, k in ((1, 65), (7, 64), (32, 3), (33, 130), (160, 1), (301, 77), (64, 0), (apart, 37)):
        b = drawn((k, n), dtype, k, layouts[1])
        a = drawn((40, k), dtype, n, layouts[0])
        bound = product.bind(schedule=panels(dtype, swap_ab=swap_ab))
        many = np.full((40, n), np.nan, dtype.numpy)
        assert bound(a, b, many, target="cpu").target == "cpu"
        compare_gemm(a, b, many).raise_if_wrong()
        for m in (1, 2, 3, 4, 5, 12, 13):
            whole = np.full((m + 2, n + 2), np.nan, dtype.numpy)
            few = whole[1:-1, 1:-1]
            bound(a[:m], b, few, target="cpu")
            assert np.array_equal(few, many[:m]), (m, n, k)
            assert np.isnan(whole).sum() == whole.size - few.size


@pytest.mark.parametrize("dtype", [tw.f32, tw.f64])
def test_few_rows_do_not_pack_an_array(dtype: tw.DType) -> None:
    """Functions of few rows read either layout of B; panels with contiguous columns are read in place."""
    for layouts, names in (
        ("nn", ("multiply_along_columns<1>", "multiply_along_columns<2>", "in_place")),
        ("nt", ("multiply_along_k<1>", "multiply_along_k<4>")),
    ):
        a, b = drawn((40, 30), dtype, 0, layouts[0]), drawn((30, 50), dtype, 1, layouts[1])
        made = product.bind(schedule=panels(dtype))(a, b, np.empty((40, 50), dtype.numpy), target="cpu")
        assert made.listing is not None
        assert all(name in made.listing.text for name in names)


@tw.kernel(A="M K", B="N K", C="M N")
def tiled(A, B, C, *, tile, mma):
    tile_m, tile_n, tile_k = tile
    m, n = tw.block_index(tw.ceil_div(C.shape, (tile_m, tile_n)))
    sA = tw.shared((tile_m, tile_k), A.dtype)
    sB = tw.shared((tile_n, tile_k), A.dtype)
    acc = tw.accumulator(mma)
    for k in tw.range(tw.ceil_div(A.shape[1], tile_k)):
        tw.copy(A.tile((tile_m, tile_k), (m, k)), sA)
        tw.copy(B.tile((tile_n, tile_k), (n, k)), sB)
        tw.barrier()
        tw.mma(sA, sB, acc)
        tw.barrier()
    tw.copy(acc, C.tile((tile_m, tile_n), (m, n)))


KINDS = [tw.f32, tw.f64, tw.f16, tw.bf16]


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("dtype", KINDS)
def test_dot_products_read_no_element_past_an_array(
    machine: Machine, toolchain: native.Toolchain, dtype: tw.DType
) -> None:
    """The test has every width of vectors, few and many rows, and all lengths of the last vector."""
    rng, ran = np.random.default_rng(dtype.bytes), 0
    result = tw.f64 if dtype == tw.f64 else tw.f32
    for arch in cpu.PROCESSORS:
        mma, kernel = tw.TiledMma(tw.atoms.dots(dtype, (12, 48)), repeats=(2, 2)), None
        for _ in range(25):
            m, n = int(rng.integers(1, 50)), int(rng.integers(1, 200))
            k = int(rng.choice([1, 3, 15, 16, 17, 31, 32, 33, 47, 100, int(rng.integers(1, 200))]))
            a, b = (between_guards(rng, shape, dtype.numpy, "n") for shape in ((m, k), (n, k)))
            c = between_guards(rng, (m, n), result.numpy, "n")
            if kernel is None:  # for any strides and addresses
                kinds = [
                    guarded((29, 37), np.dtype(one), row_step=41)
                    for one in (dtype.numpy, dtype.numpy, result.numpy)
                ]
                kernel = tiled.trace(*kinds, tile=(24, 96, 32), mma=mma)
            listing = machine(kernel, {"A": a, "B": b, "C": c}, arch=arch, toolchain=toolchain)
            assert np.array_equal(c, a.astype(np.float64) @ b.T.astype(np.float64)), (arch, m, n, k)
            ran += "multiply_dots" in listing.text
    # Micro-tiles of other processors have a number of columns that is no multiple of 4.
    assert ran >= 25 * (3 if dtype == tw.f64 else len(cpu.PROCESSORS))


@pytest.mark.parametrize("swap_ab", [False, True])
@pytest.mark.parametrize("dtype", KINDS)
def test_dot_products_of_any_layout_are_products(dtype: tw.DType, swap_ab: bool) -> None:
    """Operands that are not contiguous along K are packed and multiplied in the ordinary way."""
    lanes = 64 // dtype.computed.bytes
    schedule = Schedule(
        tw.atoms.dots(dtype, depth=lanes), (12, 128, 64), staging="panels", balanced=True, swap_ab=swap_ab
    )
    for layouts in ("nn", "nt", "tn", "tt"):
        for m, n, k in (
            (1, 1, 65),
            (3, 7, 64),
            (12, 32, 3),
            (13, 33, 130),
            (2, 160, 1),
            (5, 301, 77),
            (4, 64, 0),
        ):
            a = drawn((m, k), dtype, n, layouts[0])
            b = drawn((k, n), dtype, k, layouts[1])
            whole = np.full((m + 2, n + 2), np.nan, dtype.numpy)
            out = whole[1:-1, 1:-1]
            made = summing(dtype).bind(schedule=schedule)(a, b, out, target="cpu")
            assert made.target == "cpu"
            compare_gemm(a, b, out).raise_if_wrong()
            assert np.isnan(whole.astype(np.float32)).sum() == whole.size - out.size
            assert made.listing is not None
            along_k = layouts[0] == "n" if swap_ab else layouts[1] == "t"
            assert k == 0 or ("multiply_dots" in made.listing.text) == along_k, (layouts, m, n, k)


def test_numbers_that_are_not_finite_stay_in_their_sums() -> None:
    """The last vector of a row overlaps the one before; elements added before count once."""
    schedule = Schedule(tw.atoms.dots("f32"), (12, 128, 64), staging="panels", balanced=True)
    for k in (17, 31, 40, 100):
        a, b = np.ones((3, k), np.float32), np.ones((k, 6), np.float32, order="F")
        a[1, k - 3] = 0
        b[k - 16, 2] = b[k - 3, 4] = np.inf
        out = np.empty((3, 6), np.float32)
        made = product.bind(schedule=schedule)(a, b, out, target="cpu")
        assert made.listing is not None
        assert "multiply_dots" in made.listing.text
        with np.errstate(invalid="ignore"):
            assert np.array_equal(out, a @ b, equal_nan=True)


@pytest.mark.parametrize("dtype", KINDS)
def test_few_rows_by_columns_along_k_are_dot_products(dtype: tw.DType) -> None:
    """This does not hold along columns, for many rows or short K, or for batch-invariant products."""

    def chosen(m: int, n: int, k: int, layouts: str, splitting: Splitting | None = None) -> Schedule:
        a, b = (
            tw.like(dtype, *shape) if one == "n" else tw.like(dtype, *shape, strides=(1, shape[0]))
            for shape, one in zip(((m, k), (k, n)), layouts, strict=True)
        )
        asked = summing(dtype).bind().question(a, b, tw.like(dtype, m, n), target="cpu", arch="x86-64-v4")
        assert asked is not None
        if splitting is None:
            return choose(asked)
        return next(split_candidates(replace(asked, splitting=splitting))).schedule

    for m, n, k, layouts, swap in (
        (1, 900, 900, "nt", False),
        (2, 900, 64, "tt", False),
        (800, 1, 300, "nn", True),
        (90, 2, 512, "nt", True),
    ):
        made = chosen(m, n, k, layouts)
        assert (made.atom.instruction, made.swap_ab) == ("dots", swap), (m, n, k)
        assert read_schedule(repr(made)) == made
        assert chosen(m, n, k, layouts, Splitting(batch_invariant=True)).atom.instruction == "fma"
    for m, n, k, layouts in (
        (1, 900, 900, "nn"),
        (13, 900, 900, "nt"),
        (12, 900, 64, "tt"),
        (4, 900, 15, "nt"),
        (800, 1, 300, "tn"),
    ):
        assert chosen(m, n, k, layouts).atom.instruction == "fma", (m, n, k, layouts)


def test_a_column_is_multiplied_along_the_columns_of_the_transposed_operand() -> None:
    """A is read in whole rows of the transposed operand, instead of a few elements of each column."""
    for dtype, m, k in ((tw.f64, 2839, 2796), (tw.f32, 2839, 2796), (tw.f64, 500, 90)):
        a = tw.like(dtype, m, k, strides=(1, m))
        for arch in ("x86-64-v3", "x86-64-v4"):
            given = a, tw.like(dtype, k, 1), tw.like(dtype, m, 1)
            asked = product.bind().question(*given, target="cpu", arch=arch)
            assert asked is not None
            made = choose(asked)
            assert (made.atom.instruction, made.swap_ab) == ("fma", True), (dtype, arch)


@pytest.mark.parametrize("dtype", [tw.f32, tw.f64])
@pytest.mark.parametrize("layouts", ["nn", "tn"])
def test_rows_that_crowd_a_cache_are_packed_with_the_same_bits(dtype: tw.DType, layouts: str) -> None:
    """Rows of B that are a power of 2 apart are packed for many rows, others are read in place.

    With a short K, a few rows of the result are complete before the next ones begin; see the next test.
    """
    made = panels(dtype)
    schedule = replace(made, tile=(192, 128, 64))
    bound, rng = product.bind(schedule=schedule), np.random.default_rng(dtype.bytes)
    for m, n, k in ((150, 256, 64), (150, 256, 9), (24, 512, 130), (97, 130, 64), (190, 33, 5)):
        a = rng.standard_normal((m, k) if layouts[0] == "n" else (k, m)).astype(dtype.numpy)
        a = a if layouts[0] == "n" else a.T
        b = rng.standard_normal((k, n)).astype(dtype.numpy)
        apart = np.full((k, n + 5), np.nan, dtype.numpy)
        apart[:, :n] = b
        results = []
        for one in (b, apart[:, :n]):
            whole = np.full((m + 2, n + 2), np.nan, dtype.numpy)
            assert bound(a, one, whole[1:-1, 1:-1], target="cpu").target == "cpu"
            compare_gemm(a, one, whole[1:-1, 1:-1]).raise_if_wrong()
            assert np.isnan(whole).sum() == whole.size - m * n
            results.append(whole[1:-1, 1:-1])
        assert np.array_equal(*results), (m, n, k)


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("dtype", [tw.f32, tw.f64])
@pytest.mark.parametrize("layouts", ["nn", "nt", "tn", "tt"])
def test_products_of_few_steps_stay_in_their_arrays(
    machine: Machine, toolchain: native.Toolchain, dtype: tw.DType, layouts: str
) -> None:
    """The test has every width of vectors, one and two steps of tiles, and columns beyond a part of B."""
    rng, columns = np.random.default_rng([dtype.bytes, *map(ord, layouts)]), []
    for arch in processors_of(toolchain, [tw.f32, tw.f64].index(dtype) + (layouts[1] == "t")):
        mma = tw.TiledMma(tw.atoms.fma(dtype, lanes=(1, 1), each=(4, 64)), repeats=(6, 16))
        kernel = None
        for _ in range(40):
            m, n = int(rng.integers(5, 30)), int(rng.choice([rng.integers(1, 200), rng.integers(200, 1200)]))
            k = int(rng.choice([1, 2, 3, 8, 31, 32, 33, 35, 64, int(rng.integers(1, 70))]))
            a = between_guards(rng, (m, k), dtype.numpy, layouts[0])
            b = between_guards(rng, (n, k), dtype.numpy, layouts[1])
            c, past = between_guards(rng, (m, n), dtype.numpy, "n"), 12345
            step = c.strides[0] // c.itemsize
            rows = as_strided(c, (m - 1, step), (c.strides[0], c.itemsize))  # all but the last one
            rows[:, n:] = past
            c[...] = past
            if kernel is None:  # for any strides and addresses
                kinds = [
                    guarded((29, 37), np.dtype(dtype.numpy), row_step=41, column=one == "t")
                    for one in (*layouts, "n")
                ]
                kernel = tiled.trace(*kinds, tile=(24, 1024, 32), mma=mma)
            listing = machine(kernel, {"A": a, "B": b, "C": c}, arch=arch, toolchain=toolchain)
            assert "multiply_shallow" in listing.text
            assert np.array_equal(c, a @ b.T), (arch, m, n, k)  # all sums are exact
            assert (rows[:, n:] == past).all()
            columns.append(n)
    assert max(columns) > 1024  # more than one tile


@pytest.mark.parametrize("layouts", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("dtype", [tw.f32, tw.f64])
def test_products_of_few_steps_have_the_bits_of_packed_ones(dtype: tw.DType, layouts: str) -> None:
    """A result of twice the sums is stored from its fragment, so that B is packed or read by panels."""
    rng = np.random.default_rng([dtype.bytes, *map(ord, layouts)])
    made = replace(panels(dtype), tile=(48, 512, 64))
    for _ in range(12):
        m, n, k = int(rng.integers(6, 120)), int(rng.integers(1, 700)), int(rng.integers(1, 129))
        k = k if rng.random() < 0.5 else int(rng.integers(1, 12))
        a, b = drawn((m, k), dtype, m, layouts[0]), drawn((k, n), dtype, n, layouts[1])
        results = []
        for one in (product, doubled):
            whole = np.full((m + 2, n + 2), np.nan, dtype.numpy)
            ran = one.bind(schedule=made)(a, b, whole[1:-1, 1:-1], target="cpu")
            assert ran.listing is not None
            assert ("multiply_shallow" in ran.listing.text) == (one is product)
            assert np.isnan(whole).sum() == whole.size - m * n
            results.append(whole[1:-1, 1:-1])
        compare_gemm(a, b, results[0]).raise_if_wrong()
        assert np.array_equal(2 * results[0], results[1]), (m, n, k)


@pytest.mark.parametrize("layout", ["n", "t"])
@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_few_complex_rows_have_the_bits_of_rows_among_many(dtype: Any, layout: str) -> None:
    """Conjugates change signs; a tile of K ends inside the sums; the result lies in an array of NaN."""
    rng = np.random.default_rng([np.dtype(dtype).itemsize, ord(layout)])

    def numbers(shape: tuple[int, int], layout: str) -> Array:
        rows, columns = shape if layout == "n" else shape[::-1]
        whole = np.full((rows + 2, columns + 3), np.nan, dtype)
        made = rng.standard_normal((rows, columns, 2)).astype(np.dtype(dtype).char.lower())
        whole[1:-1, 1:-2] = made.view(dtype)[..., 0]
        return whole[1:-1, 1:-2] if layout == "n" else whole[1:-1, 1:-2].T

    for n, k in ((1, 65), (7, 64), (33, 3), (160, 300), (601, 77), (40, 1), (1100, 9)):
        a, b = numbers((40, k), "n"), numbers((k, n), layout)
        conjugates = bool(rng.integers(2)), bool(rng.integers(2))
        words = {
            "conjugate_a": conjugates[0],
            "conjugate_b": conjugates[1],
            "batch_invariant": True,
            "target": "cpu",
        }
        many = tw.complex_matmul(a, b, **words)
        for m in (1, 2, 3, 4, 5):
            whole = np.full((m + 2, n + 2), np.nan, dtype)
            few = whole[1:-1, 1:-1]
            tw.complex_matmul(a[:m], b, out=few, **words)
            sides = [
                (one.real, -one.imag if wanted else one.imag)
                for one, wanted in zip((a[:m], b), conjugates, strict=True)
            ]
            compare_complex(*sides, (few.real, few.imag)).raise_if_wrong()
            assert np.array_equal(few, many[:m]), (m, n, k)
            assert np.isnan(whole).sum() == whole.size - few.size


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_few_complex_rows_read_no_element_past_an_array(dtype: Any) -> None:
    """One or few rows, or columns, with partial vectors and panels; all sums are exact."""
    rng = np.random.default_rng(np.dtype(dtype).itemsize)
    for at in range(60):
        few, n, k = int(rng.integers(1, 5)), int(rng.integers(1, 140)), int(rng.integers(1, 140))
        n = n if rng.random() < 0.8 else 8 * n
        m, n = (few, n) if at % 2 else (n, few)
        a, b, out = (
            between_guards(rng, shape, dtype, str(layout))
            for shape, layout in (((m, k), rng.choice([*"nt"])), ((k, n), rng.choice([*"nt"])), ((m, n), "n"))
        )
        a += 1j * rng.integers(-4, 5, a.shape)
        b += 1j * rng.integers(-4, 5, b.shape)
        tw.matmul(a, b, out=out, target="cpu")
        assert np.array_equal(out, a.astype(np.complex128) @ b), (m, n, k)


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
@pytest.mark.parametrize("layouts", ["nn", "nt", "tn", "tt"])
def test_complex_rows_are_read_in_place_up_to_the_end_of_their_array(dtype: Any, layouts: str) -> None:
    """With few columns whole panels of A are read in place; with more, or few rows, all are copied."""
    rng = np.random.default_rng([np.dtype(dtype).itemsize, *map(ord, layouts)])
    for m, n, k in ((47, 1, 16), (13, 40, 30), (6, 64, 129), (5, 17, 1), (4, 9, 33), (25, 80, 140)):
        a, b, out = (
            between_guards(rng, shape, dtype, layout)
            for shape, layout in (((m, k), layouts[0]), ((k, n), layouts[1]), ((m, n), "n"))
        )
        a += 1j * rng.integers(-4, 5, a.shape)
        b += 1j * rng.integers(-4, 5, b.shape)
        tw.matmul(a, b, out=out, target="cpu")
        assert np.array_equal(out, a.astype(np.complex128) @ b), (m, n, k)  # all sums are exact


def test_gpus_do_not_execute_dot_products() -> None:
    given = tw.like("f32", 64, 64), tw.like("f32", 64, 64), tw.like("f32", 64, 64)
    schedule = Schedule(tw.atoms.dots("f32"), (16, 16, 16))
    with pytest.raises(tw.TilewrightError, match=r"does not execute dots\.f32\.f32\.4x4x16"):
        product.bind(schedule=schedule).trace(*given, target="cuda", arch="sm_90a")
    with pytest.raises(tw.LayoutError, match=r"dots\(i8\): integers; nearest legal choice: fma\(i8\)"):
        tw.atoms.dots("i8")


TILES = [(17, 48, 8), (2, 24, 5), (3, 16, 40), (34, 8, 24), (22, 1008, 12), (14, 2064, 8)]


LAID_OUT = [(tw.f32, "n"), (tw.f32, "t"), (tw.f64, "n"), (tw.i32, "t")]
PROCESSORS = sorted(cpu.PROCESSORS)


# Two of these three go together in every way.
@pytest.mark.in_turns(4)
@pytest.mark.parametrize(
    ("tile", "dtype", "layout", "processor"),
    [
        (TILES[a], *LAID_OUT[b], PROCESSORS[c])
        for a, b, c in np.ndindex(len(TILES), len(LAID_OUT), len(PROCESSORS))
        if (a + b + c) % 2
    ],
)
def test_micro_tiles_of_all_sizes_stay_in_their_memory(
    machine: Machine, tile: tuple[int, int, int], dtype: tw.DType, layout: str, processor: str
) -> None:
    """Micro-tiles have one row or part of a vector, widths that divide no power of 2, or several vectors."""
    tile_m, tile_n, _ = tile
    mma, kernel = tw.TiledMma(tw.atoms.fma(dtype, lanes=(1, 1), each=tile[:2])), None
    for m in (tile_m + 1, tile_m, 4, 3, 2, 1):
        for n, k in ((tile_n + 5, 41), (tile_n, 25), (tile_n - 1, 3), (1, 33)):
            rng = np.random.default_rng(m)
            a, b = (rng.integers(-9, 9, shape).astype(dtype.numpy) for shape in ((m, k), (n, k)))
            b = b if layout == "t" else np.asfortranarray(b)
            whole = np.full((m + 2, n + 2), 99, dtype.numpy)
            c = whole[1:-1, 1:-1]
            kernel = kernel or tiled.trace(a, b, c, tile=tile, mma=mma)
            machine(kernel, {"A": a, "B": b, "C": c}, arch=processor)
            assert np.array_equal(c, a @ b.T)  # all sums are exact
            assert (whole == 99).sum() >= whole.size - c.size
            c[...] = 99
            assert (whole == 99).all()


def between_guards(rng: np.random.Generator, shape: tuple[int, int], dtype: Any, layout: str) -> Array:
    """Return small integers, with exact sums, in an array next to an inaccessible page."""
    step = shape[layout == "n"] + int(rng.choice([0, 1, 3, 16]))
    at_end = bool(rng.random() < 0.7)
    made = guarded(shape, np.dtype(dtype), row_step=step, column=layout == "t", at_end=at_end)
    made[...] = rng.integers(-4, 5, shape)
    return made


def processors_of(toolchain: native.Toolchain, case: int) -> list[str]:
    """Return the processors for which a compiler builds a case: compilers share them, and exchange shares."""
    found = [str(one) for one in native.find_toolchains()]
    mine = (found.index(str(toolchain)) + case) % len(found)
    return [*cpu.PROCESSORS][mine :: len(found)]


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("layout", ["n", "t"])
@pytest.mark.parametrize("dtype", [tw.f32, tw.f64])
def test_no_element_past_an_array_is_read_or_written(
    machine: Machine, toolchain: native.Toolchain, dtype: tw.DType, layout: str
) -> None:
    """The test has every width of vectors, and tiles with one and with several chunks of sums."""
    rng, ran = np.random.default_rng([dtype.bytes, ord(layout)]), 0
    for arch in processors_of(toolchain, [tw.f32, tw.f64].index(dtype) + (layout == "t")):
        for tile, micro in (((24, 96, 16), (12, 48)), ((8, 2304, 32), (4, 64))):
            repeats = tile[0] // micro[0], tile[1] // micro[1]
            mma = tw.TiledMma(tw.atoms.fma(dtype, lanes=(1, 1), each=micro), repeats=repeats)
            kernel = None
            for _ in range(25):
                m = int(rng.choice([1, 2, 3, 4, 5, 12, 13, 23, 30]))
                n = int(rng.integers(1, 70)) if tile[1] < 100 else int(rng.integers(1, 2400))
                k = int(rng.integers(1, 70))
                a = between_guards(rng, (m, k), dtype.numpy, "n")
                b = between_guards(rng, (n, k), dtype.numpy, layout)
                c = between_guards(rng, (m, n), dtype.numpy, "n")
                if kernel is None:  # for any strides and addresses
                    kinds = [
                        guarded((29, 37), np.dtype(dtype.numpy), row_step=41, column=one == "t")
                        for one in ("n", layout, "n")
                    ]
                    kernel = tiled.trace(*kinds, tile=tile, mma=mma)
                listing = machine(kernel, {"A": a, "B": b, "C": c}, arch=arch, toolchain=toolchain)
                assert np.array_equal(c, a @ b.T), (arch, tile, m, n, k)
                ran += f"multiply_along_{'k' if layout == 'n' else 'columns'}" in listing.text
    assert ran >= 25


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("layout", ["n", "t"])
@pytest.mark.parametrize("dtype", [tw.f32, tw.f64])
def test_whole_panels_are_read_from_their_arrays(
    machine: Machine, toolchain: native.Toolchain, dtype: tw.DType, layout: str
) -> None:
    """Up to some panels of either operand, and copied beyond them; the last panel may be a part."""
    rng = np.random.default_rng([dtype.bytes, ord(layout)])
    for arch in processors_of(toolchain, [tw.f32, tw.f64].index(dtype) + (layout == "t")):
        mma = tw.TiledMma(tw.atoms.fma(dtype, lanes=(1, 1), each=(6, 16)), repeats=(12, 8))
        kernel = None
        for m, n in ((5, 16), (6, 33), (24, 64), (29, 65), (48, 47), (70, 90), (72, 128), (75, 16)):
            k = int(rng.choice([1, 2, 15, 16, 17, 33, 40]))
            a = between_guards(rng, (m, k), dtype.numpy, layout)
            b = between_guards(rng, (n, k), dtype.numpy, "t")
            c = between_guards(rng, (m, n), dtype.numpy, "n")
            if kernel is None:  # for any strides and addresses
                kinds = [
                    guarded((29, 37), np.dtype(dtype.numpy), row_step=41, column=one == "t")
                    for one in (layout, "t", "n")
                ]
                kernel = tiled.trace(*kinds, tile=(72, 128, 16), mma=mma)
            listing = machine(kernel, {"A": a, "B": b, "C": c}, arch=arch, toolchain=toolchain)
            assert np.array_equal(c, a @ b.T), (arch, m, n, k)
            assert "const rows = m_panel < " in listing.text
            assert "bool in_place = " in listing.text


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("layouts", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("dtype", [tw.f16, tw.bf16])
@pytest.mark.parametrize("swap_ab", [False, True])
def test_halves_are_moved_up_to_the_end_of_their_arrays(
    machine: Machine, toolchain: native.Toolchain, dtype: tw.DType, layouts: str, swap_ab: bool
) -> None:
    """Panels of B are widened in place or packed, those of A one by one or all, and runs of any length."""
    rng = np.random.default_rng([dtype == tw.f16, *map(ord, layouts), swap_ab])
    atom = tw.atoms.fma(dtype, lanes=(1, 1), each=(12, 32))
    schedule = replace(panels(tw.f32, swap_ab=swap_ab), atom=atom, tile=(192, 128, 64))
    bound = summed_in_f32.bind(schedule=schedule)
    for arch in processors_of(toolchain, layouts.count("n") + swap_ab):
        shapes = [(47, 1, 16), (13, 40, 15), (25, 80, 14), (3, 5, 13)]
        shapes += [(190, 20, 60), (9, 191, 64)]  # panels of A that fill a cache are widened one by one
        shapes.append(tuple(int(one) for one in rng.integers(1, (70, 140, 17))))
        for m, n, k in shapes:
            a, b, c = (
                between_guards(rng, shape, dtype.numpy, layout)
                for shape, layout in (((m, k), layouts[0]), ((k, n), layouts[1]), ((m, n), "n"))
            )
            c[...] = np.nan
            kernel = bound.trace(a, b, c, target="cpu", arch=arch)
            machine(kernel, {"A": a, "B": b, "C": c}, arch=arch, toolchain=toolchain)
            exact = a.astype(np.float64) @ b.astype(np.float64)  # sums are exact in f32, and rounded once
            assert np.array_equal(c, exact.astype(dtype.numpy)), (arch, m, n, k)


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("dtype", KINDS)
def test_sums_of_one_step_are_stored_from_registers(
    machine: Machine, toolchain: native.Toolchain, dtype: tw.DType
) -> None:
    """For every size of micro-tile, all needed elements are stored, and no others."""
    rng, size = np.random.default_rng(dtype.bytes), dtype.bytes
    for arch in processors_of(toolchain, KINDS.index(dtype)):
        mma = tw.TiledMma(tw.atoms.fma(dtype, lanes=(1, 1), each=(12, 32)), repeats=(2, 2))
        kernel = None
        for m, n in [(m, int(rng.integers(1, 70))) for m in (*range(5, 14), 24, 25, 29)] + [(24, 64)]:
            k = int(rng.choice([1, 2, 7, 15, 16, 17, 33]))
            a, b = (between_guards(rng, shape, dtype.numpy, "n") for shape in ((m, k), (n, k)))
            step, at_end = n + int(rng.choice([0, 1, 5, 16])), bool(rng.random() < 0.7)
            c = guarded((m, n), np.dtype(dtype.numpy), row_step=step, at_end=at_end)
            whole = as_strided(c, ((m - 1) * step + n,), (size,))
            whole[...] = 99
            if kernel is None:  # for any strides and addresses
                kinds = [guarded((29, 37), np.dtype(dtype.numpy), row_step=41) for _ in range(3)]
                kernel = tiled.trace(*kinds, tile=(24, 64, 16), mma=mma)
            listing = machine(kernel, {"A": a, "B": b, "C": c}, arch=arch, toolchain=toolchain)
            assert "in_result" in listing.text
            exact = a.astype(np.float64) @ b.T.astype(np.float64)
            assert np.array_equal(c, exact.astype(dtype.numpy)), (arch, m, n, k)
            c[...] = 99
            assert (whole == 99).all(), (arch, m, n, k)


def test_sums_that_something_else_reads_stay_in_their_fragment() -> None:
    """An ending reads the sums, or rows are not contiguous."""
    for kernel, dtype, layout in ((doubled, tw.f32, "n"), (product, tw.f64, "n"), (product, tw.f32, "t")):
        a, b = drawn((29, 9), dtype, 0, "n"), drawn((9, 50), dtype, 1, "n")
        out = drawn((29, 50), dtype, 2, layout)
        made = kernel.bind(schedule=panels(dtype))(a, b, out, target="cpu")
        assert made.listing is not None
        assert ("in_result" in made.listing.text) == (kernel is product and layout == "n")
        factor = 2 if kernel is doubled else 1
        compare_gemm(factor * a, b, out).raise_if_wrong()


@pytest.mark.parametrize("shape", [(500, 3, 600), (300, 2, 900), (2000, 1, 800)])
def test_columns_that_fill_no_vector_are_rows_of_the_transposed_product(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    given = (tw.like("f32", m, k), tw.like("f32", k, n), tw.like("f32", m, n))
    asked = product.bind().question(*given, target="cpu", arch=host_arch())
    assert asked is not None
    chosen = choose(asked)
    assert chosen.swap_ab
    assert not candidates(asked)[0].against
    turned = product.bind().question(
        tw.like("f32", n, k), tw.like("f32", k, m), tw.like("f32", n, m), target="cpu"
    )
    assert turned is not None
    assert not choose(turned).swap_ab


@pytest.mark.parametrize("shape", [(2048, 256, 256), (100, 33, 64), (3000, 129, 64)])
def test_tiles_that_are_computed_as_a_whole_are_no_larger_than_the_product(
    shape: tuple[int, int, int],
) -> None:
    m, n, k = shape
    given = (tw.like("f32", m, k), tw.like("f32", k, n), tw.like("f32", m, n))
    asked = normed.bind().question(*given, target="cpu", arch="x86-64-v3")
    assert asked is not None
    rows, columns, _ = choose(asked).tile
    assert columns == min(side for side in COLUMNS if side >= n)
    assert not any(m <= side < rows for side in ROWS)


@pytest.mark.parametrize("rows", [4, 8])
def test_tiles_of_few_rows_store_all_of_their_sums(rows: int) -> None:
    """With more rows than one tile: functions for few rows add up in the fragment, not in the result."""

    @tw.kernel(A="M K", B="K N", C="M N")
    def gemm(A: Any, B: Any, C: Any) -> None:
        for m, n in tw.tiles(C):
            acc = tw.zeros()
            for k in tw.steps(A.shape[1]):
                acc += A[m, k] @ B[k, n]
            C[m, n] = acc

    rng = np.random.default_rng(rows)
    a, b = rng.standard_normal((41, 7), np.float32), rng.standard_normal((35, 7), np.float32).T
    c = np.full((41, 35), np.nan, np.float32)
    ran = gemm.bind(schedule=tw.Schedule(tw.atoms.fma("f32"), (rows, 32, 16)))(a, b, c, target="cpu")
    assert ran.target == "cpu"
    compare_gemm(a, b, c).raise_if_wrong()
