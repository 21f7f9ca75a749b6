"""Notebooks show layouts, views and maps as pictures, and their text stays short."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

import tilewright as tw
from tilewright.symbolic.nodes import Sym

MAP = tw.atoms.MMA_F16.c


@pytest.mark.parametrize(
    ("what", "picture"),
    [
        (tw.Layout((4, (2, 4)), (2, (1, 8))), tw.draw.draw_layout),
        (tw.Swizzle(2, 0, 2).apply(tw.View.strided((4, 4), (4, 1))), tw.draw.draw_layout),
        (MAP, tw.draw.draw_distribution),
    ],
    ids=["layout", "view", "map"],
)
def test_notebooks_show_the_picture_that_draw_gives(what, picture) -> None:
    assert what._repr_svg_() == picture(what).svg
    assert ET.fromstring(what._repr_svg_()).tag.endswith("svg")


@pytest.mark.parametrize(
    "what",
    [
        tw.Layout((4096, 4096)),
        tw.Layout((Sym("M", 1), 4)),
        tw.View.strided((Sym("M", 1), 4), (4, 1)),
        tw.blocked((1024, 1024), (32, 8), order=(1, 0)),
        tw.Distribution((2, 2), (tw.Mode(4, 0, 1),), ()),
    ],
    ids=["large", "symbolic", "symbolic view", "large map", "map that leaves its tile"],
)
def test_what_cannot_be_looked_at_stays_text(what) -> None:
    assert what._repr_svg_() is None


def test_text_is_short() -> None:
    view = tw.View.strided((4, 8), (8, 1))
    assert repr(view) == "View((4, 8) -> 8*i0 + i1)"
    assert repr(tw.Layout((4, 8), (8, 1))) == "Layout((4, 8), (8, 1))"
    held = "threads (4 along 1 by 2, 8 along 0 by 1), values (2 along 1 by 1, 2 along 0 by 8)"
    assert repr(MAP) == f"Distribution((16, 8): {held})"
    assert (
        repr(tw.atoms.MMA_F16) == "<atom mma.m16n8k16.f32.f16: 16 x 8 x 16, f16 * f16 + f32, 32 lanes, sm_80>"
    )
    assert repr(tw.draw.draw_layout(view)) == "Picture(title='View of 4 x 8', width=460, height=226)"


def test_drawing_is_imported_when_it_is_asked_for() -> None:
    program = """
import sys, tilewright as tw
assert not [name for name in sys.modules if name.startswith("tilewright.inspect")]
assert tw.Layout((2, 2))._repr_svg_().startswith("<svg ")
assert tw.draw is sys.modules["tilewright.inspect.draw"]
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    assert "draw" in tw.__all__
    with pytest.raises(AttributeError, match="no attribute 'drawn'"):
        tw.drawn  # noqa: B018
