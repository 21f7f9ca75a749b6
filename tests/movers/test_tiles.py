"""Tiles by their place: the four forms of an iterator, over global and over shared memory."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import LegalityError, TraceError

TARGETS = ("reference", "cpu")
THREADS = 32


def ran(kernel, x, y, target, **constants):
    y[...] = np.nan
    assert kernel(x, y, target=target, **constants).target == target
    if target == "reference":
        kernel.check(x, y, partial="Y", **constants).raise_if_any()
    return y


@tw.kernel(X="M N", Y="M N")
def by_form(X, Y, *, tile, form):
    """Copy every tile of X to its place in Y; the place has one of the forms."""
    tw.block_index(1)
    source, target = X.tiles(tile), Y.tiles(tile)
    for i in tw.range(source.shape[0]):
        for j in tw.range(source.shape[1]):
            moved = {
                "it(x, y)": lambda i=i, j=j: source[i, j],
                "it(x, _)": lambda i=i, j=j: source[i, :][j],
                "it(_, y)": lambda i=i, j=j: source[:, j][i],
                "it(i)": lambda i=i, j=j: source[i][j],
            }[form]()
            tw.copy(moved, target[i, j], threads=(THREADS, 1))


FORMS = ("it(x, y)", "it(x, _)", "it(_, y)", "it(i)")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("form", FORMS)
def test_every_form_over_global_memory(form, target) -> None:
    x = np.random.default_rng(0).standard_normal((70, 45)).astype(np.float32)
    assert (ran(by_form, x, np.empty_like(x), target, tile=(32, 16), form=form) == x).all()


@tw.kernel(X="M N", Y="M N")
def reversed_in_shared(X, Y, *, form):
    """Copy four chunks of a row of a shared tile, last first: Y[:, 16 (3 - j) + i] = X[:, 16 j + i]."""
    m = tw.block_index(tw.ceil_div(X.shape[0], 32))
    held = tw.shared((32, 64), X.dtype)
    tw.copy(X.tile((32, 64), (m, 0)), held, threads=(THREADS, 1))
    tw.barrier()
    chunks, out = held.tiles((32, 16)), Y.tile((32, 64), (m, 0)).tiles((32, 16))
    assert chunks.shape == (1, 4)
    row = chunks[0, :]
    for j in tw.range(row.shape[0]):
        source = {
            "it(i)": lambda j=j: row[j],
            "it(x, y)": lambda j=j: chunks[0, j],
            "it(_, y)": lambda j=j: chunks[:, j][0],
            "it(x, _)": lambda j=j: chunks[-1, :][j],
        }[form]()
        tw.copy(source, out[0, 3 - j], threads=(THREADS, 1))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("form", FORMS)
def test_every_form_over_shared_memory(form, target) -> None:
    x = np.random.default_rng(1).standard_normal((70, 64)).astype(np.float32)
    wanted = np.concatenate([x[:, 16 * j : 16 * j + 16] for j in (3, 2, 1, 0)], axis=1)
    assert (ran(reversed_in_shared, x, np.empty_like(x), target, form=form) == wanted).all()


@tw.kernel(X="M N", Y="M N")
def whole_rows(X, Y):
    m = tw.block_index(tw.ceil_div(X.shape[0], 32))
    rows = tw.shared((32, 48), X.dtype)
    tw.copy(X.tile((32, 48), (m, 0)), rows, threads=(THREADS, 1))
    tw.barrier()
    strips = rows.tiles((8, None))
    assert strips.shape == (4,)
    out = Y.tile((32, 48), (m, 0)).tiles((8, None))
    for i in tw.unroll(4):
        tw.copy(strips[i], out[-4 + i], threads=(8, 4))


def test_a_dimension_that_is_not_cut_is_not_counted() -> None:
    x = np.random.default_rng(2).standard_normal((40, 48)).astype(np.float32)
    for target in TARGETS:
        assert (ran(whole_rows, x, np.empty_like(x), target) == x).all()


@tw.kernel(X="M N", Y="M N")
def wrong(X, Y, *, what):
    tw.block_index(1)
    what(X)


@pytest.mark.parametrize(
    ("what", "says"),
    [
        (lambda X: X.tiles((32,)), "rank 2"),
        (lambda X: X.tiles((32, 16))[0, 0, 0], "3 indices for tiles along 2 dimensions"),
        (lambda X: X.tiles((32, 16))[1:, 0], "an index or ':' chooses tiles"),
        (lambda X: list(X.tiles((32, 16))), "tw.range"),
        (lambda X: X.tiles((32, X.shape[1])), "must be known"),
        (lambda X: X.tile((32, 16, 8), (0, 0, 0), projection=(1, None)), "projection (1, None)"),
        (lambda X: X.tile((32, None), (0, 1)), "only one of both"),
    ],
)
def test_wrong_tiles_are_refused(what, says) -> None:
    x = np.zeros((64, 64), np.float32)
    with pytest.raises((TraceError, LegalityError)) as raised:
        wrong.trace(x, x, what=what)
    assert says in str(raised.value)


@tw.kernel(A="M K", B="N K", C="M N")
def projected(A, B, C, *, block):
    """Project a block's tile and its place (m, n, k) to the dimensions of each tensor."""
    m, n = tw.block_index(tw.ceil_div(C.shape, block[:2]))
    at = (m, n, 0)
    a = tw.load(A.tile(block, at, projection=(1, None, 1)).partition((32, 1)))
    assert A.tile(block, at, projection=(1, None, 1)).shape == (block[0], block[2])
    assert B.tile(block, at, projection=(None, 1, 1)).shape == (block[1], block[2])
    assert C.tile(block, at, projection=(1, 1, None)).shape == block[:2]
    tw.copy(a, C.tile(block, at, projection=(1, 1, None)))


def test_projections_of_a_blocks_tile() -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal((n, 16)).astype(np.float32) for n in (64, 48))
    c = np.full((64, 48), np.nan, np.float32)
    projected(a, b, c, block=(32, 16, 16), target="reference")
    assert all((c[:, 16 * n : 16 * n + 16] == a).all() for n in range(3))


# ---------------------------------------------------------------- from the end, and outside


@tw.kernel(X="M N", Y="M N")
def one_tile(X, Y, *, at, form):
    tw.block_index(1)
    source = X.tile((16, 32), at) if form == "tile" else X.tiles((16, 32))[at]
    tw.copy(source, Y.tile((16, 32), (0, 0)), threads=(16, 2))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("form", ["tile", "tiles"])
@pytest.mark.parametrize("at", [(-1, 0), (-2, -1), (1, -3), (-5, -3), (-6, 0), (0, -4), (5, 0), (-7, -9)])
def test_constants_count_from_the_end_and_outside_is_zero(at, form, target) -> None:
    """The array has 5 x 3 tiles: places before the first and after the last tile read as 0."""
    x = np.random.default_rng(0).standard_normal((70, 90)).astype(np.float32)
    tiles = np.zeros((80, 96), np.float32)
    tiles[:70, :90] = x
    m, n = (place + count if place < 0 else place for place, count in zip(at, (5, 3), strict=True))
    inside = 0 <= m < 5 and 0 <= n < 3
    wanted = tiles[16 * m : 16 * m + 16, 32 * n : 32 * n + 32] if inside else np.zeros((16, 32), np.float32)
    assert (ran(one_tile, x, np.empty_like(x), target, at=at, form=form)[:16, :32] == wanted).all()


@tw.kernel(X="M N", Y="M N")
def neighbours(X, Y):
    """Y[16 i:, 0:32] = the tile before, Y[16 i:, 32:64] = the tile after; stores leave the array likewise."""
    tw.block_index(1)
    for i in tw.range(tw.ceil_div(X.shape[0], 16)):
        tw.copy(X.tile((16, 32), (i - 1, 0)), Y.tile((16, 32), (i, 0)), threads=(16, 2))
        tw.copy(X.tile((16, 32), (i + 1, 0)), Y.tile((16, 32), (i, 1)), threads=(16, 2))
        tw.copy(X.tile((16, 32), (i, 0)), Y.tile((16, 32), (i - 2, 2)), threads=(16, 2))


@pytest.mark.parametrize("target", TARGETS)
def test_a_tile_before_the_first_reads_as_zero_and_is_not_written(target) -> None:
    around = np.random.default_rng(1).standard_normal((120, 96)).astype(np.float32)
    whole = np.full_like(around, np.nan)
    x, y = around[40:88], whole[40:88]
    neighbours(x, y, target=target)
    assert not y[:16, :32].any()
    assert (y[16:, :32] == x[:-16, :32]).all()
    assert (y[:-16, 32:64] == x[16:, :32]).all()
    assert not y[-16:, 32:64].any()
    assert (y[:16, 64:] == x[32:, :32]).all()
    assert np.isnan(whole[:40]).all()
    assert np.isnan(whole[88:]).all()


@pytest.mark.parametrize(
    ("what", "says"),
    [
        (lambda s: s.tile((16, 32), (4, 0)), "tile index 4 of dimension 0 is outside [-4, 4)"),
        (lambda s: s.tile((16, 32), (0, -5)), "tile index -5 of dimension 1 is outside [-4, 4)"),
        (lambda s: s.tiles((16, 32))[4, 0], "tile index 4 of dimension 0 is outside [-4, 4)"),
        (lambda s: s.tiles((16, 32))[:, -5][0], "tile index -5 of dimension 1 is outside [-4, 4)"),
        (lambda s: s[64], "index 64 of dimension 0 is outside [-64, 64)"),
        (lambda s: s[:, -129], "index -129 of dimension 1 is outside [-128, 128)"),
        (lambda s: s[-70:], "slice -70: of dimension 0 is outside [-64, 64]"),
        (lambda s: s[:, 8:129], "slice 8:129 of dimension 1 is outside [-128, 128]"),
        (lambda s: tw.fragment(MAP, s.dtype, 0)[:, 64:136], "slice 64:136 is outside [-128, 128]"),
        (lambda s: tw.fragment(MAP, s.dtype, 0)[:, -136:-64], "slice -136:-64 is outside [-128, 128]"),
    ],
)
def test_a_constant_that_is_certainly_outside_is_refused_with_the_range(what, says) -> None:
    """Tiles before and after the array, and starts that count from the end twice: s[-70:] of 64 rows."""

    @tw.kernel(X="M N")
    def outside(X):
        tw.block_index(1)
        what(tw.shared((64, 128), X.dtype))

    with pytest.raises(TraceError) as raised:
        outside.trace(np.zeros((4, 4), np.float32))
    assert str(raised.value).startswith(f"{says}\n")


MAP = tw.raked((4, 128), (4, 8), 1, 1)
