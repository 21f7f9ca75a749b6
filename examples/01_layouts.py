"""Offset tables of four layouts: nested, nested twice, transposed, and padded then split.

    python examples/01_layouts.py [--small] [-o DIRECTORY]

The program prints each table and compares it with a formula in plain Python.  With -o it also draws each
layout, and a tile that is distributed over threads (as SVG, and as PNG if matplotlib is installed).  It exits
non-zero if a table differs from its formula.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from importlib.util import find_spec
from pathlib import Path

import tilewright as tw
from tilewright.layouts import PadTo, Permute, Unmerge


def nested(scale):
    """A layout of 4 x 8 with a nested second mode: each pair of columns runs through all four rows."""
    columns = 4 * scale
    layout = tw.Layout((4, (2, columns)), (2, (1, 8)))
    return layout, lambda i, j: 2 * i + j % 2 + 8 * (j // 2)


def nested_twice(scale):
    """Both modes are nested, one twice: bits of row and column alternate, as in a Z-order curve."""
    layout = tw.Layout(((2, 2), (2, (2, 2 * scale))), ((2, 8), (1, (4, 16))))

    def formula(i, j):
        return (i % 2) * 2 + (i // 2) * 8 + (j % 2) + (j // 2 % 2) * 4 + (j // 4) * 16

    return layout, formula


def transposed(scale):
    """A row-major matrix with its dimensions swapped: a view of the same buffer."""
    rows, columns = 4, 8 * scale
    view = Permute((1, 0)).apply(tw.View.of(tw.row_major((rows, columns))))
    return view, lambda i, j: j * columns + i


def padded_and_unmerged(scale):
    """A matrix (M, K) of 3 x 7, padded to multiples of 4, with K then split: (K0, M, K1)."""
    m, k = 3 * scale, 7
    padded = PadTo((4, 4)).apply(tw.View.of(tw.row_major((m, k))))
    view = Permute((1, 0, 2)).apply(Unmerge(1, (2, 4)).apply(padded))
    return view, lambda k0, i, k1: i * k + k0 * 4 + k1 if i < m and k0 * 4 + k1 < k else None


LAYOUTS = [nested, nested_twice, transposed, padded_and_unmerged]


def wrong_entries(layout, formula):
    """Return the coordinates at which a layout or view differs from a formula."""
    view = tw.View.of(layout) if isinstance(layout, tw.Layout) else layout
    return [
        at
        for at in itertools.product(*map(range, view.shape))
        if (view.at(at) if view.valid_at(at) else None) != formula(*at)
    ]


def draw(layouts, directory):
    """Draw each layout, and a tile that is distributed over threads."""
    directory.mkdir(parents=True, exist_ok=True)
    threads = tw.blocked((8, 16), threads=(4, 8), order=(1, 0))
    suffixes = ("svg", "png") if find_spec("matplotlib") is not None else ("svg",)
    for suffix in suffixes:
        for make, layout in zip(LAYOUTS, layouts, strict=True):
            tw.draw.draw_layout(layout).save(directory / f"{make.__name__}.{suffix}")
        tw.draw.draw_distribution(threads).save(directory / f"threads.{suffix}")
    print(f"pictures: {directory}")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="smaller layouts")
    parser.add_argument(
        "-o", "--output", type=Path, help="draw pictures into this directory; without it, none"
    )
    arguments = parser.parse_args()
    scale = 1 if arguments.small else 2
    wrong = 0
    for make in LAYOUTS:
        layout, formula = make(scale)
        found = wrong_entries(layout, formula)
        wrong += len(found)
        print(f"{make.__name__}: {layout}")
        print(f"{make.__doc__}\n\n{tw.draw.offset_table(layout)}\n")
        print(f"differs from the formula at {found}\n" if found else "as the formula says\n")
    if arguments.output is not None:
        draw([make(scale)[0] for make in LAYOUTS], arguments.output)
    else:
        print("pictures: none; give -o DIRECTORY")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
