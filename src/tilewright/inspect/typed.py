"""Words of the command line: whole numbers, and the nearest known word."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from tilewright.errors import LaunchError

LARGEST = 2**31 - 1


def whole(what: str, text: str, example: str) -> int:
    """Read a whole number of at most 31 bits.

    Raises:
        LaunchError: the text is no such number; ends with the example.

    Example:
        >>> whole("M", "0512", "")
        512
    """
    if not (text.isascii() and text.isdigit()):
        raise LaunchError(f"{what} is {text!r}, which is not a whole number; e.g. {example}")
    digits = text.lstrip("0") or "0"
    if len(digits) > len(str(LARGEST)) or int(digits) > LARGEST:
        shown = digits if len(digits) < 30 else f"a number of {len(digits)} digits"
        raise LaunchError(f"{what} is {shown}; nearest legal choice: {LARGEST}")
    return int(digits)


def nearest(text: str, known: Iterable[str]) -> str:
    """Return ``"; nearest: …"`` with a similar known word, or ""."""
    by_folded = {name.casefold(): name for name in known}
    close = difflib.get_close_matches(text.casefold(), by_folded, 1, 0.4)
    return f"; nearest: {by_folded[close[0]]}" if close else ""
