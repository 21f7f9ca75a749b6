"""Tiled MMAs of a given tile: the repeats that fill it, the grid of warps, refused tiles."""

from __future__ import annotations

import itertools

import pytest

import tilewright as tw
from tilewright.errors import LayoutError

MMA_F16 = tw.atoms.MMA_F16


@pytest.mark.parametrize(
    ("atom", "tile", "warps", "repeats"),
    [
        (MMA_F16, (128, 128), (2, 2), (4, 8)),
        (MMA_F16, (256, 128), (4, 2), (4, 8)),
        (MMA_F16, (16, 8), (1, 1), (1, 1)),
        (tw.atoms.fma(tw.f32), (64, 64), (2, 2), (8, 4)),
        (tw.atoms.wgmma(tw.bf16, 128), (128, 256), (2, 1), (1, 2)),
    ],
)
def test_the_repeats_fill_the_tile(atom, tile, warps, repeats) -> None:
    made = tw.TiledMma(atom, tile=tile, warps=warps)
    assert (made.warps, made.repeats, made.tile[:2]) == (warps, repeats, tile)
    said = tw.TiledMma(atom, warps, repeats)
    assert (made, hash(made), repr(made)) == (said, hash(said), repr(said))
    assert tw.TiledMma(atom, warps, repeats, tile=tile) == said


def test_one_warp_is_the_default() -> None:
    assert tw.TiledMma(MMA_F16, tile=(32, 32)) == tw.TiledMma(MMA_F16, (1, 1), (2, 4))
    assert tw.TiledMma(MMA_F16) == tw.TiledMma(MMA_F16, (1, 1), (1, 1))


def bits_read(mma: tw.TiledMma) -> int:
    """Return the bits of A and B that all warps hold for a step, or that atoms read from shared memory."""
    atom, depth = mma.atom, mma.tile[2]
    if atom.asynchronous:
        m, n, k = atom.shape
        atoms = mma.warps[0] * mma.warps[1] * mma.repeats[0] * mma.repeats[1]
        return atoms * k * (m * atom.a_dtype.bits + n * atom.b_dtype.bits)
    held = ((mma.a(depth), atom.a_dtype), (mma.b(depth), atom.b_dtype))
    return sum(spread.size_threads * spread.size_values * dtype.bits for spread, dtype in held)


@pytest.mark.parametrize("warps", [1, 2, 4, 6, 8, 16])
@pytest.mark.parametrize("tile", [(128, 128), (64, 256), (256, 64), (192, 96), (384, 192), (48, 16)])
@pytest.mark.parametrize("atom", [MMA_F16, tw.atoms.MMA_I8, tw.atoms.wgmma(tw.f16, 64)], ids=str)
def test_of_a_number_of_warps_the_grid_reads_the_fewest_bytes(atom, tile, warps) -> None:
    """All grids are tried, by the maps of their operands; if the tile is refused, none fits."""
    fitting = [
        tw.TiledMma(
            atom, (m, warps // m), (tile[0] // atom.shape[0] // m, tile[1] // atom.shape[1] * m // warps)
        )
        for m in range(1, warps + 1)
        if warps % m == 0 and tile[0] % (atom.shape[0] * m) == tile[1] % (atom.shape[1] * (warps // m)) == 0
    ]
    if not fitting:
        with pytest.raises(LayoutError, match="nearest legal choice: tile="):
            tw.TiledMma(atom, tile=tile, warps=warps)
        return
    made = tw.TiledMma(atom, tile=tile, warps=warps)
    assert made in fitting
    assert made.tile[:2] == tile
    fewest = min(map(bits_read, fitting))
    assert bits_read(made) == fewest
    assert made.warps[0] == max(mma.warps[0] for mma in fitting if bits_read(mma) == fewest)


@pytest.mark.parametrize(
    ("warps", "tile", "nearest"),
    [
        ((2, 2), (100, 128), (96, 128)),
        ((2, 2), (120, 1), (128, 16)),
        ((4, 2), (65, 120), (64, 128)),
        (6, (100, 128), (96, 128)),
        (7, (64, 64), (64, 56)),
        (4, (1, 1), (32, 16)),
    ],
)
def test_other_tiles_are_refused_with_the_nearest_one(warps, tile, nearest) -> None:
    with pytest.raises(LayoutError) as raised:
        tw.TiledMma(MMA_F16, tile=tile, warps=warps)
    said = str(raised.value)
    assert f"a tile of {tile} by " in said
    assert MMA_F16.name in said
    near = tuple(map(int, said.rpartition("tile=(")[2].rstrip(")").split(",")))
    assert tw.TiledMma(MMA_F16, tile=near, warps=warps).tile[:2] == near
    if isinstance(warps, tuple):
        assert near == nearest
    else:  # no legal tile of any grid is nearer
        change = [abs(a / b - 1) for a, b in zip(near, tile, strict=True)]
        for m, n in itertools.product(range(1, warps + 1), repeat=2):
            other = (max(round(tile[0] / 16 / m), 1) * 16 * m, max(round(tile[1] / 8 / n), 1) * 8 * n)
            assert m * n != warps or sum(change) <= sum(
                abs(a / b - 1) for a, b in zip(other, tile, strict=True)
            )


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"warps": 4}, "warps=4 must be two positive integers, along M and N"),
        ({"warps": 0, "tile": (64, 64)}, "warps=0 must be a positive integer"),
        ({"warps": (2, 2), "repeats": (1, 1), "tile": (64, 64)}, "do not make the tile (64, 64)"),
        ({"warps": (2, 2), "tile": (64, 0)}, "tile=(64, 0) must be two positive integers"),
        ({"warps": (2, 2), "tile": (64, 64, 32)}, "nearest legal choice: tile=(64, 64)"),
        ({"warps": 2048, "tile": (2048, 2048)}, "at most 1024"),
    ],
)
def test_what_says_no_tile_is_refused(how, said) -> None:
    with pytest.raises(LayoutError) as raised:
        tw.TiledMma(MMA_F16, **how)
    assert said in str(raised.value)


def test_the_text_of_a_kernel_has_the_repeats() -> None:
    @tw.kernel(C="M N")
    def ones(C, *, mma):
        tw.copy(tw.accumulator(mma, fill=1), C.tile(mma.tile[:2], (0, 0)))
        tw.mma(
            tw.shared((mma.tile[0], 16), tw.f16), tw.shared((mma.tile[1], 16), tw.f16), tw.accumulator(mma)
        )

    spec = tw.like("f32", 64, 64)
    tiled, repeated = tw.TiledMma(MMA_F16, tile=(64, 64), warps=4), tw.TiledMma(MMA_F16, (2, 2), (2, 4))
    texts = [tw.ir.print_kernel(ones.trace(spec, mma=mma)) for mma in (tiled, repeated)]
    assert texts[0] == texts[1] == tw.ir.print_kernel(tw.ir.parse_kernel(texts[0]))
    assert "(2, 2), (2, 4)" in texts[0]
