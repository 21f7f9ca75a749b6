"""Messages about arguments of the wrong kind; NumPy's integers and names of dtypes are legal."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

import tilewright as tw
from tilewright.layout.tuples import integer, integers

ATOM = tw.atoms.MMA_F16

BAD_CALLS: dict[str, tuple[Callable[[], object], str]] = {
    "base is an atom": (
        lambda: tw.by_warps((128, 64), ATOM, (2, 2)),
        (
            f"by_warps(base={ATOM!r}): base must be a Distribution; nearest legal "
            "choice: operand a, b or c of an atom, a(k), b(k) or c() of a tiled MMA, tw.blocked or tw.raked"
        ),
    ),
    "one count of warps": (
        lambda: tw.by_warps((128, 64), ATOM.c, 4),
        (
            "by_warps(warps=4): warps must be a Layout or two integers, of rows and of columns; nearest "
            "legal choice: warps=(4, 1)"
        ),
    ),
    "tile of letters": (
        lambda: tw.by_warps("ab", ATOM.c, (2, 2)),
        "by_warps(tile='ab'): tile must be two integers, of rows and of columns",
    ),
    "half a row": (
        lambda: tw.by_warps((128.5, 64), ATOM.c, (2, 2)),
        (
            "by_warps(tile=(128.5, 64)): tile must be two integers, of rows and of columns; nearest legal "
            "choice: tile=(128, 64)"
        ),
    ),
    "one repeat": (
        lambda: tw.by_warps((128, 64), ATOM.c, (2, 2), repeats=4),
        (
            "repeats=4: 2x2 warps divide a tile of 128x64 into parts of 64x32, which are 4x4 base tiles of "
            "16x8; nearest legal choice: repeats=(4, 4)"
        ),
    ),
    "atom is a name": (
        lambda: tw.TiledMma("mma", (2, 2), (4, 4)),
        (
            "TiledMma(atom='mma'): atom must be an MmaAtom; nearest legal choice: one of tw.atoms, e.g. "
            "tw.atoms.MMA_F16"
        ),
    ),
    "repeats of an MMA": (
        lambda: tw.TiledMma(ATOM, (2, 2), 4),
        (
            "TiledMma(repeats=4): repeats must be 2 integers or None, at most 4096: each needs its "
            "own registers; nearest legal choice: repeats=(4, 1)"
        ),
    ),
    "lanes of a multiply-add": (
        lambda: tw.atoms.fma("f32", lanes=(0, 8)),
        "lanes=(0, 8) must be two positive integers, lanes along M and N; nearest legal choice: lanes=(1, 8)",
    ),
    "a dimension that is not there": (
        lambda: tw.raked((32, 64), (8, 4), 8, 2),
        "vector_dim=2 of a tile of rank 2; nearest legal choice: vector_dim=1",
    ),
    "no threads": (
        lambda: tw.blocked((32, 64), (0, 4), (1, 0)),
        "threads=(0, 4) must be positive integers; nearest legal choice: threads=(1, 4)",
    ),
    "a vector of nothing": (
        lambda: tw.raked((32, 64), (8, 4), 0, 1),
        "vector=0 must be a positive integer; nearest legal choice: vector=1",
    ),
    "a drawn atom": (
        lambda: tw.draw.draw_distribution(ATOM),
        (
            f"draw_distribution(distribution={ATOM!r}): distribution must be a Distribution; nearest legal "
            "choice: operand a, b or c of an atom, a(k), b(k) or c() of a tiled MMA, tw.blocked or tw.raked"
        ),
    ),
    "a drawn shape": (
        lambda: tw.draw.draw_layout((4, 8)),
        (
            "draw_layout(layout=(4, 8)): layout must be a Layout or a View; nearest legal choice: "
            "tw.Layout(shape)"
        ),
    ),
    "a drawn map that leaves its tile": (
        lambda: tw.draw.draw_distribution(tw.Distribution((2, 2), (tw.Mode(4, 0, 1),), ())),
        "value 0 of thread 2 is (2, 0), outside of a tile of (2, 2)",
    ),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_a_wrong_argument_is_named(name: str) -> None:
    call, said = BAD_CALLS[name]
    with pytest.raises(tw.LayoutError) as caught:
        call()
    assert str(caught.value) == said


def test_integers_of_numpy_are_integers() -> None:
    one, two = np.int64(1), np.array([2, 2])
    tile = np.array([64, 32])
    assert tw.by_warps(tile, ATOM.c, two, repeats=(np.int32(2), 2)) == tw.by_warps((64, 32), ATOM.c, (2, 2))
    mma = tw.TiledMma(ATOM, two, (one, 4))
    assert mma == tw.TiledMma(ATOM, (2, 2), (1, 4))
    assert [type(count) for count in (*mma.warps, *mma.repeats)] == [int] * 4
    assert tw.base_tile(tile, tw.f16) == tw.base_tile((64, 32), tw.f16)
    for made in (tw.blocked(tile, two, np.array([1, 0])), tw.raked(tile, two, np.int8(4), np.int64(1))):
        assert {type(number) for mode in (*made.threads, *made.values) for number in mode} == {int}
    assert tw.blocked(tile, two) == tw.blocked((64, 32), (2, 2))
    assert tw.atoms.wgmma(tw.f16, np.int64(64)) == tw.atoms.wgmma(tw.f16, 64)
    assert tw.atoms.fma(tw.f32, lanes=np.array([4, 8])) == tw.atoms.fma(tw.f32)


def test_names_of_dtypes_are_dtypes() -> None:
    assert tw.base_tile((64, 64), "f16") == tw.base_tile((64, 64), tw.f16)
    assert tw.atoms.fma("f16", "float32") == tw.atoms.fma(tw.f16)
    assert tw.atoms.wgmma("bf16", 64) == tw.atoms.wgmma(tw.bf16, 64)
    assert tw.MmaAtom("own", "f16", "f16", "f32", ATOM.a, ATOM.b, ATOM.c).c_dtype is tw.f32
    spec = tw.TensorSpec("f16", 2, 1, (64, 32), (32, 1), 16, False)
    assert spec == tw.TensorSpec(tw.f16, 2, 1, (64, 32), (32, 1), 16, False)
    assert spec.dtype is tw.f16


@pytest.mark.parametrize("code", ["q", "f", "<f4", "e", "f2"])
def test_codes_of_numpy_are_no_names(code: str) -> None:
    """`i8` would be ambiguous: 8 bits here, 8 bytes in NumPy."""
    with pytest.raises(tw.DTypeError, match=f"unknown dtype '{code}'.*known: f64, f32"):
        tw.dtype(code)
    assert tw.dtype(np.dtype("f2")) is tw.f16


def test_an_unknown_dtype_names_the_nearest() -> None:
    with pytest.raises(tw.DTypeError, match="unknown dtype 'fp8'; nearest: f8e4m3; known: f64"):
        tw.dtype("fp8")
    with pytest.raises(tw.DTypeError, match="unknown dtype 'F16'; nearest: f16; known: f64"):
        tw.dtype("F16")
    with pytest.raises(tw.DTypeError, match="unknown dtype 'flaot16'; nearest: float16; known: f64"):
        tw.dtype("flaot16")


@pytest.mark.parametrize("value", [-math.inf, math.inf, math.nan, True, 0, -3, -(10**30), np.array([2])])
def test_what_is_no_positive_integer(value: object) -> None:
    with pytest.raises(tw.LayoutError, match="must be a positive integer"):
        integer("width", value)
    with pytest.raises(tw.LayoutError, match="must be two positive integers"):
        integers("width", (value, 2), 2)


def test_a_number_where_several_are_asked_for() -> None:
    with pytest.raises(tw.LayoutError, match=r"width=array\(3\) must be two positive integers"):
        integers("width", np.array(3), 2)
    with pytest.raises(tw.LayoutError, match=r"nearest legal choice: width=\(3, 1\)"):
        integers("width", np.int64(3), 2)
    assert integers("width", np.array([3, 4]), 2) == (3, 4)
