"""The command line's names of layouts and maps."""

from __future__ import annotations

import pytest

from tilewright.cli.notation import read_layout, read_map
from tilewright.errors import LayoutError
from tilewright.ir.mma import TiledMma
from tilewright.layout.layout import Layout
from tilewright.targets.atoms import MMA_I8
from tilewright.threads.distribution import blocked
from tilewright.views.view import View


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(4,4", "means nothing"),
        ("", "means nothing"),
        ("(4,4):(1,2):3", "means nothing"),
        ("(4,True)", "means nothing"),
        ("(4,4) | swizzle(1,1,1)", "did you mean 'Swizzle'"),
        ("(4,4) | Swizzle(1,1)", r"takes \(bits, base, shift\)"),
        ("(4,4) | Swizzle", "means nothing"),
        ("(4,4) | Swizzle(3,3,3)", "nearest: 64"),
        ("tw.f16", "is a DType"),
        ("tw.nothing", "AttributeError"),
    ],
)
def test_layouts_that_mean_nothing(text: str, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        read_layout(text)


@pytest.mark.parametrize(
    ("text", "operand", "message"),
    [
        ("mma.m16n8k64", "A", r"did you mean 'mma\.m16n8k16"),
        ("ldmatrix.x3", "A", r"did you mean 'ldmatrix.x\d"),
        ("wgmma.m64n12k16", "A", "nearest legal choice: 16"),
        ("mma.m16n8k16", "D", "choose one of A, B, C"),
        ("wgmma.m64n32k16", "B", "nearest: A or C"),
        ("tw.Layout(4)", "A", "is a Layout"),
    ],
)
def test_maps_that_do_not_exist(text: str, operand: str, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        read_map(text, operand)


def test_names_stand_for_what_the_library_has() -> None:
    assert read_map("mma.m16n8k32", "B")[0] == TiledMma(MMA_I8).b(32)
    assert read_map("wgmma.m64n256k16", "A", (2, 1), depth=64)[0].shape == (128, 64)
    assert read_map("tw.blocked((4, 8), (4, 2), (1, 0))")[0] == blocked((4, 8), (4, 2), (1, 0))
    assert read_map("tw.TiledMma(tw.atoms.MMA_F16, (2, 2))")[0].shape == (32, 16)
    assert read_layout("(8,64)") == Layout((8, 64))
    assert str(read_layout("tw.row_major((8, 64))")) == "(8,64):(64,1)"
    both = read_layout("(8,64):(64,1) | Swizzle(3,3,3) | Permute(order=(1,0))")
    assert isinstance(both, View)
    assert both.at((0, 1)) == 72
