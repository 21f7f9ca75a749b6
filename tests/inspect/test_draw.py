"""Cells of pictures equal plain Python, labels do not overlap, and files are readable."""

from __future__ import annotations

import builtins
import importlib.util
import itertools
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tilewright.cli.notation import matrix_map, matrix_rows, read_layout, read_map
from tilewright.dtypes import f16
from tilewright.errors import LayoutError, ToolchainError
from tilewright.inspect.draw import (
    Picture,
    bank_requests,
    draw_banks,
    draw_distribution,
    draw_layout,
    offset_table,
    picture,
)
from tilewright.inspect.draw.layouts import holders, offsets_of
from tilewright.inspect.draw.picture import BoxMark, Label
from tilewright.ir.mma import TiledMma
from tilewright.layout.layout import Layout, row_major
from tilewright.symbolic.nodes import Sym
from tilewright.targets.atoms import MMA_F16, MMA_I8, wgmma
from tilewright.threads.banks import bank_conflicts
from tilewright.threads.distribution import Distribution, Mode, blocked, raked
from tilewright.views.transforms import PadTo, Slice
from tilewright.views.view import View

from .pictures import check_picture


def luminance(colour: str) -> float:
    """Return the relative luminance of a colour, after WCAG 2.2."""
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(colour: str, other: str) -> float:
    """Return the contrast ratio of two colours after WCAG 2.2, from 1 to 21; text needs at least 4.5."""
    high, low = sorted((luminance(colour), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


pytestmark = pytest.mark.in_turns(3)

EXAMPLE = Path(__file__).parents[2] / "examples" / "01_layouts.py"

SWIZZLED = "(64,64):(64,1) | Swizzle(3,3,3)"
TINY = read_layout("(16,16):(16,1) | Swizzle(1,3,3)")

PICTURES: dict[str, Callable[[], Picture]] = {
    "nested": lambda: draw_layout(Layout((4, (2, 4)), (2, (1, 8)))),
    "swizzled": lambda: draw_layout(TINY),
    "padded": lambda: draw_layout(PadTo((4, 4)).apply(View.strided((3, 7), (7, 1)))),
    "line": lambda: draw_layout(Layout(100, 3)),
    "cube": lambda: draw_layout(Layout((2, 3, 4))),
    "point": lambda: draw_layout(Layout((1, 1))),
    "tile_128x64": lambda: draw_layout(read_layout("(128,64):(64,1) | Swizzle(3,3,3)")),
    "tall": lambda: draw_layout(row_major((512, 16))),
    "wide": lambda: draw_layout(row_major((16, 512))),
    "scattered": lambda: draw_layout(Layout((128, 64), (1, 128))),
    "mma_c": lambda: draw_distribution(*read_map("mma.m16n8k16")),
    "mma_a": lambda: draw_distribution(*read_map("mma.m16n8k16", "A", (2, 2), (1, 1), 32)),
    "mma_b": lambda: draw_distribution(*read_map("mma.m16n8k16", "B", (2, 1), (1, 2))),
    "wgmma_c": lambda: draw_distribution(*read_map("wgmma.m64n128k16")),
    "wgmma_b": lambda: draw_distribution(wgmma(f16, 32).b),
    "ldmatrix": lambda: draw_distribution(*read_map("ldmatrix.x4")),
    "partial": lambda: draw_distribution(Distribution((4,), (Mode(2, 0, 1),), ())),
    "conflicts": lambda: draw_banks(row_major((16, 64)), raked((16, 64), (16, 2), 8, 1), 8, 2),
    "no_conflicts": lambda: draw_banks(
        read_layout("(16,64):(64,1) | Swizzle(3,3,3)"), blocked((16, 64), (16, 2), (0, 1)), 8, 2
    ),
    "bytes": lambda: draw_banks(row_major((32, 64)), blocked((32, 64), (32, 1), (0, 1)), 1, 1),
}
GOLDEN = ("nested", "swizzled", "padded", "mma_c", "ldmatrix", "no_conflicts")


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_in_order(name: str) -> None:
    check_picture(PICTURES[name]())


@pytest.mark.parametrize("name", GOLDEN)
def test_pictures_as_text(name: str, golden: Callable[[str, str], None]) -> None:
    picture = PICTURES[name]()
    golden(picture.svg, f"{name}.svg")
    golden(picture.text + "\n", f"{name}.txt")


def test_colours_differ_and_are_readable() -> None:
    threads = [picture.of_thread(thread) for thread in range(32)]
    assert len(set(threads)) == 32
    assert all(contrast(fill, picture.INK) >= 4.5 for fill in threads)
    shades = [picture.of_fraction(step / 50) for step in range(51)]
    assert all(contrast(fill, picture.INK) >= 4.5 for fill in shades)
    light = [contrast(fill, "#000000") for fill in shades]
    assert light == sorted(light, reverse=True)
    assert contrast(picture.FAINT, picture.PAPER) >= 4.5


# ---------------------------------------------------------------- what is in the cells


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


def notes(picture: Picture) -> list[str]:
    return [mark.note for mark in picture.marks if isinstance(mark, BoxMark) and mark.note]


def test_offsets_are_those_of_the_formula() -> None:
    """A swizzle of 128-byte rows in plain Python: the row number permutes pieces of 16 bytes."""
    view = read_layout(SWIZZLED)
    expected = {(i, j): 64 * i + (j // 8 ^ i % 8) * 8 + j % 8 for i in range(64) for j in range(64)}
    shape, offsets = offsets_of(view)
    assert shape == (64, 64)
    assert dict(zip(itertools.product(range(64), range(64)), offsets, strict=True)) == expected
    # Small cells: a box for each run of neighbours, with the offset of its first.
    firsts = {
        at: offset
        for at, offset in expected.items()
        if at[1] == 0 or offset != expected[at[0], at[1] - 1] + 1
    }
    assert notes(draw_layout(view)) == [f"({i}, {j}): offset {offset}" for (i, j), offset in firsts.items()]


def test_every_element_of_a_view_or_none() -> None:
    picture = draw_layout(PadTo((4, 4)).apply(View.strided((3, 7), (7, 1))))
    expected = [
        f"({i}, {j}): " + (f"offset {7 * i + j}" if i < 3 and j < 7 else "no element")
        for i in range(4)
        for j in range(8)
    ]
    assert notes(picture) == expected
    assert sum(isinstance(mark, BoxMark) and mark.hatched for mark in picture.marks) == 11


def mma_c(lane: int, value: int) -> tuple[int, int]:
    """PTX ISA: the accumulator of m16n8: rows by lane // 4, columns by lane % 4."""
    return lane // 4 + (8 if value >= 2 else 0), lane % 4 * 2 + value % 2


def mma_a(lane: int, value: int) -> tuple[int, int]:
    """PTX ISA: A of m16n8k16."""
    return (
        lane // 4 + (8 if value in (2, 3, 6, 7) else 0),
        lane % 4 * 2 + value % 2 + (8 if value >= 4 else 0),
    )


def wgmma_c(lane: int, value: int) -> tuple[int, int]:
    """PTX ISA: the accumulator of m64nN: 16 rows per warp, 8 columns per four values."""
    row = lane // 32 * 16 + lane % 32 // 4 + (8 if value % 4 >= 2 else 0)
    return row, value // 4 * 8 + lane % 4 * 2 + value % 2


def ldmatrix(lane: int, value: int) -> tuple[int, int]:
    """Matrix value // 2; its row lane // 4, two columns by lane % 4; matrices down, then right."""
    matrix = value // 2
    return matrix % 2 * 8 + lane // 4, matrix // 2 * 8 + lane % 4 * 2 + value % 2


def ldmatrix_trans(lane: int, value: int) -> tuple[int, int]:
    matrix = value // 2
    return matrix % 2 * 8 + lane % 4 * 2 + value % 2, matrix // 2 * 8 + lane // 4


@pytest.mark.parametrize(
    ("distribution", "values", "formula"),
    [
        (read_map("mma.m16n8k16")[0], 4, mma_c),
        (read_map("mma.m16n8k16", "A")[0], 8, mma_a),
        (read_map("wgmma.m64n64k16.f32.bf16")[0], 32, wgmma_c),
        (read_map("ldmatrix.x4")[0], 8, ldmatrix),
        (read_map("ldmatrix.x2")[0], 4, ldmatrix),
        (read_map("ldmatrix.x1")[0], 2, ldmatrix),
        (read_map("ldmatrix.x4.trans")[0], 8, ldmatrix_trans),
        (read_map("ldmatrix.x1.trans")[0], 2, ldmatrix_trans),
    ],
)
def test_maps_are_those_of_the_isa(
    distribution: Distribution, values: int, formula: Callable[[int, int], tuple[int, int]]
) -> None:
    expected: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for thread, value in itertools.product(range(distribution.size_threads), range(values)):
        expected.setdefault(formula(thread, value), []).append((thread, value))
    assert holders(distribution) == expected
    told = notes(draw_distribution(distribution))
    assert f"{min(expected)}: T{expected[min(expected)][0][0]} V{expected[min(expected)][0][1]}" == told[0]
    if len(told) == len(expected):
        assert told == [f"{at}: T{t} V{v}" for at, [(t, v)] in sorted(expected.items())]


def test_tiled_operands_show_all_who_hold_an_element() -> None:
    distribution = TiledMma(MMA_F16, warps=(2, 2), repeats=(1, 1)).a(16)
    held = holders(distribution)
    for warp_m, warp_n, lane, value in itertools.product(range(2), range(2), range(32), range(8)):
        row, column = mma_a(lane, value)
        assert (32 * (warp_m + 2 * warp_n) + lane, value) in held[16 * warp_m + row, column]
    assert {len(pairs) for pairs in held.values()} == {2}
    assert notes(draw_distribution(distribution))[0] == "(0, 0): T0,64 V0"


def test_rows_of_ldmatrix_give_the_registers_that_the_atom_wants() -> None:
    assert holders(matrix_map("ldmatrix.x4")) == holders(MMA_F16.a)
    rows = matrix_rows("ldmatrix.x4")
    assert [rows.coordinate(lane, 0) for lane in (0, 7, 8, 16, 31)] == [
        (0, 0),
        (7, 0),
        (8, 0),
        (0, 8),
        (15, 8),
    ]


def degrees_of(
    offset: Callable[[int, int], int], touched: list[list[tuple[int, int]]], width: int
) -> list[int]:
    """Return the passes of each group of lanes from byte addresses: the most different words in one bank."""
    degrees = []
    for group in touched:
        words = {(offset(i, j) + byte) // 4 for i, j in group for byte in range(width)}
        degrees.append(max(sum(word % 32 == bank for word in words) for bank in range(32)))
    return degrees


@pytest.mark.parametrize(
    ("spelled", "offset", "degree"),
    [
        ("(16,64):(64,1)", lambda i, j: 2 * (64 * i + j), 8),
        ("(16,64):(72,1)", lambda i, j: 2 * (72 * i + j), 1),
        ("(16,64):(64,1) | Swizzle(3,3,3)", lambda i, j: 2 * (64 * i + (j // 8 ^ i % 8) * 8 + j % 8), 1),
        ("(16,64):(64,1) | Swizzle(1,3,3)", lambda i, j: 2 * (64 * i + (j // 8 ^ i % 2) * 8 + j % 8), 4),
    ],
)
def test_banks_of_ldmatrix(spelled: str, offset: Callable[[int, int], int], degree: int) -> None:
    tile = read_layout(f"{spelled} | Tile((16,16),(0,0))")
    assert isinstance(tile, View)
    requests = bank_requests(tile, matrix_rows("ldmatrix.x4"), 8, 2)
    groups = [[(m % 2 * 8 + row, m // 2 * 8) for row in range(8)] for m in range(4)]
    assert [request.degree for request in requests] == degrees_of(offset, groups, 16) == [degree] * 4
    for request, group in zip(requests, groups, strict=True):
        for (thread, word), (at, part) in zip(request.hits, itertools.product(group, range(4)), strict=True):
            assert word == offset(*at) // 4 + part
            assert thread == 16 * (at[1] // 8) + at[0]
    assert bank_conflicts(tile, matrix_rows("ldmatrix.x4"), 8, 2) == degree


@pytest.mark.parametrize("pitch", [32, 33, 34, 36, 40, 48, 64])
@pytest.mark.parametrize(("vector", "size"), [(1, 1), (1, 2), (1, 4), (2, 2), (4, 2), (2, 4), (4, 4), (1, 8)])
def test_degrees_agree_with_the_layouts(pitch: int, vector: int, size: int) -> None:
    if pitch % vector:
        pitch += vector - pitch % vector
    view = View.strided((32, 8), (pitch, 1))
    columns = blocked((32, 8), (32, 1), (0, 1))
    requests = bank_requests(view, columns, vector, size)
    together = min(32, 128 // (vector * size))
    groups = [
        [(row, access) for row in range(start, start + together)]
        for access in range(0, 8, vector)
        for start in range(0, 32, together)
    ]
    expected = degrees_of(lambda i, j: size * (pitch * i + j), groups, vector * size)
    assert [request.degree for request in requests] == expected
    assert max(expected) == bank_conflicts(view, columns, vector, size)
    picture = draw_banks(view, columns, vector, size)
    assert (f"{max(expected)}-way" in picture.title) == (max(expected) > 1)


def test_words_that_several_threads_read_take_one_pass() -> None:
    same = Distribution((1, 8), (Mode(32, None, 0),), (Mode(8, 1, 1),))
    requests = bank_requests(View.strided((1, 8), (8, 1)), same, 1, 4)
    assert {request.degree for request in requests} == {1}
    texts = [mark.text for mark in draw_banks(row_major((1, 8)), same, 1, 4).marks if isinstance(mark, Label)]
    assert texts.count("T0-31") == 8


# ---------------------------------------------------------------- files


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf", ".txt"])
def test_pictures_are_written(tmp_path: Path, suffix: str) -> None:
    first, second = (draw_layout(TINY).save(tmp_path / f"{name}{suffix}") for name in "ab")
    magic = {".png": b"\x89PNG", ".svg": b"<svg", ".pdf": b"%PDF", ".txt": b"View of 16 x 16"}
    assert first.read_bytes().startswith(magic[suffix])
    assert first.read_bytes() == second.read_bytes()


def test_png_has_every_mark(tmp_path: Path) -> None:
    """There is ink at every label: a cell without its number would have one colour."""
    from matplotlib.image import imread

    picture = draw_layout(Layout((4, 8)))
    image = imread(picture.save(tmp_path / "a.png"))
    assert image.shape[:2] == (round(2 * picture.height), round(2 * picture.width))
    for mark in picture.marks:
        if isinstance(mark, Label):
            left, top, right, bottom = (round(2 * edge) for edge in mark.extent)
            assert len({tuple(pixel) for row in image[top:bottom, left:right] for pixel in row}) > 1, mark


def test_notebooks_show_svg() -> None:
    picture = draw_layout(Layout((2, 2)))
    assert picture._repr_svg_() == picture.svg
    assert ET.fromstring(picture.svg).tag.endswith("svg")


def test_what_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LayoutError, match="not static"):
        draw_layout(row_major((Sym("M", 1), 4)))
    with pytest.raises(LayoutError, match="not static"):
        offset_table(Slice((Sym("i", 0, 3), None)).apply(View.strided((4, 4), (4, 1))))
    with pytest.raises(LayoutError, match=r"nearest: Slice\(\(\(0, 64\), \(0, 128\)\)\)"):
        draw_layout(row_major((128, 128)))
    with pytest.raises(LayoutError, match="too many to look at"):
        draw_distribution(TiledMma(MMA_I8, (8, 8), (4, 4)).c())
    with pytest.raises(LayoutError, match=r"nearest: .*a\.svg"):
        draw_layout(Layout(4)).save(tmp_path / "a.jpg")
    with pytest.raises(LayoutError, match="nearest legal: 1"):
        draw_banks(View.strided((32, 8), (9, 1)), blocked((32, 8), (32, 1), (0, 1)), 2, 2)


@pytest.mark.parametrize("shape", [(128, 128), (9000,), (4, 4096), (4096, 4), (3, 700, 5), (2, 2, 2, 8000)])
def test_the_slice_that_is_named_can_be_drawn(shape: tuple[int, ...]) -> None:
    with pytest.raises(LayoutError) as caught:
        draw_layout(row_major(shape))
    at = eval(str(caught.value).partition("nearest: Slice(")[2][:-1])
    check_picture(draw_layout(Slice(at).apply(View.of(row_major(shape)))))


def test_without_matplotlib_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = builtins.__import__

    def missing(name: str, *rest: Any, **named: Any) -> ModuleType:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return plain(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ToolchainError, match=r"tilewright\[plot\]"):
        draw_layout(Layout(4)).save(tmp_path / "a.png")
    assert draw_layout(Layout(4)).save(tmp_path / "a.svg").is_file()


# ---------------------------------------------------------------- the example


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
