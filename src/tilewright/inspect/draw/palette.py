"""Colours that everybody can tell apart, and dark text can be read on."""

from __future__ import annotations

PAPER = "#ffffff"
INK = "#1f2328"
FAINT = "#59636e"
RULE = "#d1d9e0"
LINE = "#8c959f"

HUES = ("#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#f0e442", "#0072b2", "#d55e00", "#8c8c8c")
"""Okabe and Ito's palette for readers with any colour vision, its black as grey.

Source: M. Okabe, K. Ito, "Color Universal Design", 2008.
"""

TINTS = (0.68, 0.52, 0.36, 0.22)
"""How much of a hue is left in each of the four tints."""

_SCALE = ("#f4fae4", "#c5e6c3", "#7fcdbb", "#58a9cf")


def mixed(colour: str, other: str, share: float) -> str:
    """``share`` of one colour and the rest of another.

    Example:
        >>> mixed("#000000", "#ffffff", 0.25)
        '#bfbfbf'
    """
    pairs = zip(_channels(colour), _channels(other), strict=True)
    return "#" + "".join(f"{round(share * a + (1 - share) * b):02x}" for a, b in pairs)


def of_thread(thread: int) -> str:
    """The colour of a thread: neighbours in fours share a hue, and 32 threads have colours of their own."""
    return mixed(HUES[thread // 4 % len(HUES)], PAPER, TINTS[thread % 4])


def of_fraction(fraction: float) -> str:
    """The colour of a number between 0 and 1: the larger, the darker."""
    place = min(max(fraction, 0.0), 1.0) * (len(_SCALE) - 1)
    at = min(int(place), len(_SCALE) - 2)
    return mixed(_SCALE[at + 1], _SCALE[at], place - at)


def contrast(colour: str, other: str) -> float:
    """The contrast ratio of two colours, from 1 to 21; text is readable from 4.5 on.

    Source: WCAG 2.2, "contrast ratio".

    Example:
        >>> round(contrast("#000000", "#ffffff"))
        21
    """
    high, low = sorted((_luminance(colour), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def _channels(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def _luminance(colour: str) -> float:
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in (channel / 255 for channel in _channels(colour))
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
