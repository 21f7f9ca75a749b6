"""Rules for every picture."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from tilewright.inspect.draw import Picture
from tilewright.inspect.draw.picture import BoxMark, Label, Line

SVG = "{http://www.w3.org/2000/svg}"
MOST_PIXELS = (1800, 2200)
MOST_BYTES = 4 << 20


def overlaps(labels: list[Label]) -> list[tuple[Label, Label]]:
    """Labels that lie on each other."""
    found = []
    ordered = sorted(labels, key=lambda label: label.extent[1])
    for number, label in enumerate(ordered):
        left, _, right, bottom = label.extent
        for other in ordered[number + 1 :]:
            x0, y0, x1, _ = other.extent
            if y0 >= bottom - 0.01:
                break
            if x0 < right - 0.01 and left < x1 - 0.01:
                found.append((label, other))
    return found


def check_picture(picture: Picture) -> None:
    """Check that labels do not overlap, marks are on the paper, and the SVG is XML with all of them."""
    labels = [mark for mark in picture.marks if isinstance(mark, Label)]
    assert labels
    assert all(label.text for label in labels)
    assert not overlaps(labels)
    assert picture.width <= MOST_PIXELS[0]
    assert picture.height <= MOST_PIXELS[1]
    for mark in picture.marks:
        match mark:
            case Label():
                left, top, right, bottom = mark.extent
            case BoxMark():
                left, top, right, bottom = mark.x, mark.y, mark.x + mark.width, mark.y + mark.height
            case Line():
                left, right = sorted((mark.x0, mark.x1))
                top, bottom = sorted((mark.y0, mark.y1))
        assert left >= 0, mark
        assert top >= 0, mark
        assert right <= picture.width, mark
        assert bottom <= picture.height, mark
    tree = ET.fromstring(picture.svg)
    assert [node.text for node in tree.iter(f"{SVG}text")] == [label.text for label in labels]
    boxes = sum(isinstance(mark, BoxMark) for mark in picture.marks)
    assert len(list(tree.iter(f"{SVG}rect"))) == boxes + 2  # the paper, and the hatching's
    assert len(picture.svg) <= MOST_BYTES
    assert picture.text.splitlines()[0] == picture.title


def test_labels_on_each_other_are_found() -> None:
    assert overlaps([Label(10, 10, "one"), Label(14, 12, "two")])
    assert not overlaps([Label(10, 10, "one"), Label(10, 21, "two")])
