"""Tables and pictures of layouts and distributions, and the example that shows them."""

from __future__ import annotations

import builtins
import importlib.util
import xml.etree.ElementTree as ET
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tilewright.errors import LayoutError, ToolchainError
from tilewright.inspect.draw import draw_distribution, draw_layout, offset_table
from tilewright.layout.distribution import Distribution, Mode, blocked
from tilewright.layout.expr import Sym
from tilewright.layout.layout import Layout, row_major
from tilewright.layout.transforms import PadTo, Slice, Swizzle
from tilewright.layout.view import View

EXAMPLE = Path(__file__).parents[2] / "examples" / "01_layouts.py"
SVG = "{http://www.w3.org/2000/svg}"


def cells(path: Path) -> int:
    """The cells of a picture: its filled paths inside the axes, less the background."""
    tree = ET.parse(path)
    return sum(group.get("id", "").startswith("patch_") for group in tree.iter(f"{SVG}g"))


def test_tables() -> None:
    assert offset_table(Layout((2, (2, 2)), (2, (1, 4)))).splitlines() == [
        "   0  1  2  3",
        "0  0  1  4  5",
        "1  2  3  6  7",
    ]
    padded = PadTo((2, 4)).apply(View.strided((1, 3), (3, 1)))
    assert offset_table(padded).splitlines() == ["   0  1  2  3", "0  0  1  2  ·", "1  ·  ·  ·  ·"]
    assert offset_table(Layout(3, 5)).splitlines() == ["  0  1   2", "  0  5  10"]
    assert offset_table(Layout((2, 2, 2))).splitlines()[0] == "     0  1"


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_pictures_are_written(tmp_path: Path, suffix: str) -> None:
    swizzled = Swizzle(1, 1, 1).apply(View.strided((4, 8), (8, 1)))
    path = draw_layout(swizzled, tmp_path / f"swizzled{suffix}")
    assert path.stat().st_size > 1000
    magic = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}
    assert path.read_bytes().startswith(magic[suffix])


def test_every_cell_is_drawn_and_labelled(tmp_path: Path) -> None:
    path = draw_layout(Layout((4, 8)), tmp_path / "a.svg", title="four by eight")
    assert cells(path) >= 32
    text = path.read_text()
    assert "four by eight" in text
    assert all(f"<!-- {offset} -->" in text for offset in range(32))


def test_the_same_picture_is_the_same_file(tmp_path: Path) -> None:
    first, second = (draw_layout(row_major((3, 5)), tmp_path / f"{name}.svg") for name in "ab")
    assert first.read_bytes() == second.read_bytes()


def test_distributions_show_thread_and_value(tmp_path: Path) -> None:
    text = draw_distribution(blocked((4, 8), (4, 2), (1, 0)), tmp_path / "a.svg").read_text()
    assert all(f"<!-- T{thread} -->" in text for thread in range(8))
    assert "4 x 8 on 8 threads, 4 values each" in text
    copies = Distribution((4,), (Mode(4, 0, 1), Mode(2, None, 0)), ())
    assert "<!-- T1,5 -->" in draw_distribution(copies, tmp_path / "b.svg").read_text()
    half = Distribution((4,), (Mode(2, 0, 1),), ())
    assert "T2" not in draw_distribution(half, tmp_path / "c.svg").read_text()


def test_what_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LayoutError, match="not static"):
        draw_layout(row_major((Sym("M", 1), 4)), tmp_path / "a.svg")
    with pytest.raises(LayoutError, match="not static"):
        offset_table(Slice((Sym("i", 0, 3), None)).apply(View.strided((4, 4), (4, 1))))
    with pytest.raises(LayoutError, match="too many to look at"):
        draw_layout(row_major((128, 128)), tmp_path / "a.svg")


def test_without_matplotlib_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = builtins.__import__

    def missing(name: str, *rest: Any, **named: Any) -> ModuleType:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return plain(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ToolchainError, match=r"tilewright\[plot\]"):
        draw_layout(Layout(4), tmp_path / "a.svg")
    assert offset_table(Layout(2)) == "  0  1\n  0  1"


@pytest.fixture
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("layouts_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_draws_into_its_directory(
    example: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["01_layouts.py", "--small", "-o", str(tmp_path / "pictures")])
    assert example.main() == 0
    names = {"nested", "nested_twice", "transposed", "padded_and_unmerged", "threads"}
    assert {path.stem for path in (tmp_path / "pictures").glob("*.png")} == names
    assert {path.stem for path in (tmp_path / "pictures").glob("*.svg")} == names


def test_the_example_fails_where_a_table_is_wrong(
    example: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["01_layouts.py", "--small", "-o", str(tmp_path)])
    monkeypatch.setattr(example, "LAYOUTS", [lambda scale: (Layout((2, 2)), lambda i, j: 2 * i + j)])
    assert example.main() == 1
    assert "differs from the formula at [(0, 1), (1, 0)]" in capsys.readouterr().out
