"""`tilewright draw map` knows every atom, and the registers of ldmatrix and stmatrix, by name."""

from __future__ import annotations

import pytest
from tests.programs import CliRunner

import tilewright as tw
from tilewright.cli.notation import matrix_map, read_map
from tilewright.cli.verbs import app
from tilewright.inspect.draw.layouts import holders
from tilewright.inspect.draw.picture import BoxMark, of_fraction

NAMED = [atom for atom in vars(tw.atoms).values() if isinstance(atom, tw.MmaAtom)]
MADE = [
    tw.atoms.fma(tw.f32),
    tw.atoms.fma(tw.f16, lanes=(8, 8), each=(2, 4)),
    tw.atoms.fma(tw.i8),
    tw.atoms.wgmma(tw.f16, 8),
    tw.atoms.wgmma(tw.bf16, 256),
]


def drawn(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["draw", "map", *arguments])
    assert result.exit_code == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("atom", [*NAMED, *MADE], ids=str)
def test_every_atom_is_known_by_its_name(atom: tw.MmaAtom) -> None:
    assert len(NAMED) >= 5
    operands = {"A": atom.a, "C": atom.c} if atom.name.startswith("wgmma") else {"A": atom.a, "B": atom.b}
    for operand, spread in {**operands, "C": atom.c}.items():
        made, title = read_map(atom.name, operand)
        assert holders(made) == holders(spread)
        assert title.endswith(f"of {atom.name}")
    assert drawn(atom.name, "--operand", "A").startswith("A (")


@pytest.mark.parametrize("verb", ["ldmatrix", "stmatrix"])
@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("trans", ["", ".trans"])
def test_registers_of_matrices(verb: str, count: int, trans: str) -> None:
    """PTX: register r of lane l belongs to matrix r, row l / 4, and columns 2 (l % 4) and the next."""
    held = holders(matrix_map(f"{verb}.x{count}{trans}"))
    for matrix in range(count):
        top, left = 8 * (matrix % 2), 8 * (matrix // 2)
        for lane in range(32):
            for half in range(2):
                row, column = lane // 4, 2 * (lane % 4) + half
                at = (column, row) if trans else (row, column)
                assert held[top + at[0], left + at[1]] == [(lane, 2 * matrix + half)]
    assert len(held) == 64 * count
    fills = {"ldmatrix": "fills", "stmatrix": "stores"}[verb]
    assert drawn(f"{verb}.x{count}{trans}").startswith(f"Registers that {verb}.x{count}{trans} {fills}\n")


def test_an_unknown_map_names_the_nearest() -> None:
    for given, nearest in (
        ("stmatrix", "stmatrix.x4"),
        ("mma.m16n8k16.f16.f61", "mma.m16n8k16.f16.f16"),
        ("fma.f32.4x8", "fma.f32.f32.4x8"),
    ):
        with pytest.raises(
            tw.LayoutError, match=rf"unknown map '{given}'; choose one of .*; did you mean '{nearest}'\?"
        ):
            read_map(given)


def test_a_layout_that_goes_back_names_its_offsets() -> None:
    result = CliRunner().invoke(app, ["draw", "layout", "(4,8):(-8,1)"])
    assert "(i0, i1) -> offset, offsets -24 to 7\n" in result.stdout
    assert "elements in the buffer" not in result.stdout
    picture = tw.draw.draw_layout(tw.Layout((4, 8), (-8, 1)))
    colours = {box.note: box.fill for box in picture.marks if isinstance(box, BoxMark)}
    assert colours["(3, 0): offset -24"] == of_fraction(0)
    assert colours["(0, 7): offset 7"] == of_fraction(1)
    assert "8 elements in the buffer" in tw.draw.draw_layout(tw.Layout((2, 4), (4, 1))).text
