"""Tiles that divide a tensor need no predicate, whether or not its extent has a known bound."""

from __future__ import annotations

import pytest

from tilewright.ir.integer_ops import grid_index, loop_index
from tilewright.symbolic.nodes import TRUE, Sym
from tilewright.views.transforms import Tile
from tilewright.views.view import View


@pytest.mark.parametrize("high", [None, 4096, 2**31 - 1])
def test_whole_tiles_are_always_valid(high: int | None) -> None:
    M, K, stride = Sym("M", 0, high, 256), Sym("K", 0, high, 32), Sym("stride", 0, None, 8)
    m, k = grid_index("m", M // 256), loop_index("k", 0, K // 32, 1)
    view = View.strided((M, K), (stride, 1))
    assert Tile((256, 32), (m, k)).apply(view).valid == TRUE
    assert str(Tile((256, 64), (m, k)).apply(view).valid) != "True"
