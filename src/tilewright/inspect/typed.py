"""What people type at the command line: whole numbers, and words that nearly are known ones."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from tilewright.errors import LaunchError

LARGEST = 2**31 - 1


def whole(what: str, text: str, example: str) -> int:
    """A whole number of at most 31 bits.

    Raises:
        LaunchError: it is something else; ends with the example.

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
    """``"; nearest: …"`` if something near is known, else nothing."""
    by_folded = {name.casefold(): name for name in known}
    close = difflib.get_close_matches(text.casefold(), by_folded, 1, 0.4)
    return f"; nearest: {by_folded[close[0]]}" if close else ""
